//! What a machine can have: disks of all kinds, the pod's address by a bridge, an agent, probes, a screen, a size from
//! an instance type, and brothers in a replica set. All in one cluster, with real guests.

use carrack_e2e::{BOOT_S, CALLS, Kubectl, Sandbox, assert_contains, eventually, eventually_true, root, several_cpus};

const GUEST: &str = "localhost/carrack/demo-guest:0.1.0";

/// A machine with a disk of each kind, on the pod's own address.
fn rich() -> String {
    format!(
        r##"
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: rich}}
spec:
  runStrategy: Manual
  template:
    metadata:
      labels: {{app: rich}}
    spec:
      terminationGracePeriodSeconds: 30
      accessCredentials:
        - sshPublicKey:
            source: {{secret: {{secretName: keys}}}}
            propagationMethod: {{qemuGuestAgent: {{users: [kim]}}}}
      readinessProbe:
        exec: {{command: [/bin/true]}}
        periodSeconds: 2
        timeoutSeconds: 5
      domain:
        cpu: {{cores: 2}}
        memory: {{guest: 224Mi}}
        chassis: {{asset: rack-7}}
        firmware: {{serial: serial-1}}
        devices:
          logSerialConsole: true
          disks:
            - {{name: root, disk: {{bus: virtio}}, bootOrder: 1}}
            - {{name: cloud, disk: {{bus: virtio}}}}
            - {{name: kept, disk: {{bus: virtio}}, serial: KEPT-1, cache: none}}
            - {{name: settings, cdrom: {{bus: scsi}}}}
            - {{name: words, disk: {{bus: scsi}}}}
            - {{name: fields, disk: {{bus: virtio}}}}
            - {{name: account, disk: {{bus: virtio}}}}
            - {{name: scratch, disk: {{bus: scsi}}, serial: SCRATCH}}
          interfaces:
            - {{name: default, bridge: {{}}}}
      networks:
        - {{name: default, pod: {{}}}}
      volumes:
        - {{name: root, containerDisk: {{image: "{GUEST}", imagePullPolicy: IfNotPresent}}}}
        - name: cloud
          cloudInitConfigDrive:
            userData: "#cloud-config\nuser: kim\npassword: kim\nhostname: rich\n"
        - {{name: kept, persistentVolumeClaim: {{claimName: kept}}}}
        - {{name: settings, configMap: {{name: settings, volumeLabel: settings}}}}
        - {{name: words, secret: {{secretName: words, volumeLabel: words}}}}
        - name: fields
          downwardAPI:
            volumeLabel: fields
            fields:
              - {{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}
        - {{name: account, serviceAccount: {{serviceAccountName: default}}}}
        - {{name: scratch, emptyDisk: {{capacity: 16Mi}}}}
"##
    )
}

#[test]
fn disks_network_agent_and_screen() {
    let sandbox = Sandbox::up(&["demo"]);
    let kubectl = sandbox.kubectl();
    let directory = sandbox.home().join("kept");
    std::fs::create_dir(&directory).expect("made");
    kubectl.claim("kept", &directory);
    kubectl.ok(&["create", "configmap", "settings", "--from-literal=greeting=from-a-config-map"]);
    kubectl.ok(&["create", "secret", "generic", "words", "--from-literal=word=from-a-secret"]);
    kubectl.ok(&["create", "secret", "generic", "keys", "--from-literal=key=ssh-ed25519 AAAA kim"]);
    kubectl.apply(&rich());
    kubectl.wait_status("rich", "Stopped");
    kubectl.call("virtualmachines/rich/start", r#"{"paused": true}"#);
    kubectl.wait_status("rich", "Paused");
    kubectl.call("virtualmachineinstances/rich/unpause", "{}");
    kubectl.wait_agent("rich");

    // Each volume, as the guest has it.
    let mounted = |label: &str, file: &str, text: &str| {
        let line = format!(
            "mkdir -p /m/{label}; mountpoint -q /m/{label} || mount -o ro $(findfs LABEL={label}) /m/{label}; grep -q '{text}' /m/{label}/{file}"
        );
        kubectl.holds_in_guest("rich", &line);
    };
    mounted("settings", "greeting", "from-a-config-map");
    mounted("words", "word", "from-a-secret");
    mounted("fields", "labels", "app=\"rich\"");
    mounted("cfgdata", "namespace", "default");
    kubectl.holds_in_guest("rich", "[ $(hostname) = rich ] && [ $(nproc) = 2 ]");
    kubectl.holds_in_guest(
        "rich",
        "grep -q rack-7 /sys/class/dmi/id/chassis_asset_tag && grep -q serial-1 /sys/class/dmi/id/product_serial",
    );
    let kept = "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = KEPT-1 ] && dev=/dev/${d##*/}; done";
    kubectl.holds_in_guest("rich", &format!("{kept}; echo written-before | dd of=$dev conv=fsync"));
    assert_eq!(std::fs::metadata(directory.join("disk.img")).expect("an image").len(), 24 << 20);
    kubectl.holds_in_guest("rich", "grep -q 'AAAA kim' /home/kim/.ssh/authorized_keys");

    // The guest has the pod's address itself.
    let address = kubectl.field("vmi", "rich", "/status/interfaces/0/ipAddress");
    let address = address.as_str().expect("an address").to_owned();
    let mac = kubectl.field("vmi", "rich", "/status/interfaces/0/mac");
    kubectl.holds_in_guest("rich", &format!("ifconfig eth0 | grep -q 'inet addr:{address} '"));
    eventually_true("the guest is reached at the pod's address", 60, || {
        let ssh = format!("exec 3<>/dev/tcp/{address}/22; head -c 4 <&3");
        sandbox.program("timeout", &["3", "bash", "-c", &ssh]).output().stdout == "SSH-"
    });

    // What the agent says, what the screen shows, what the console said.
    kubectl.ok(&["wait", "--for=condition=Ready", "vm/rich", "--timeout=60s"]);
    kubectl.ok(&["wait", "--for=condition=AccessCredentialsSynchronized", "vmi/rich", "--timeout=60s"]);
    // A guest that is emulated beside others may take longer for an answer than anybody waits.
    let asked = |what: &str, parts: &[&str]| {
        let answer = eventually(what, 60, || {
            let output =
                kubectl.run(&["get", "--raw", &format!("{CALLS}/virtualmachineinstances/rich/{what}")]).output();
            if output.code == Some(0) { Ok(output.stdout) } else { Err(output.to_string()) }
        });
        assert_contains(&answer, parts);
    };
    asked(
        "guestosinfo",
        &["guestAgentVersion", "carrack-demo", "\"hostname\":\"rich\"", "VirtualMachineInstanceGuestAgentInfo"],
    );
    asked("userlist", &["GuestOSUserList", "items"]);
    asked("filesystemlist", &["FileSystemList"]);
    eventually("the status names the system", 30, || {
        let id = kubectl.field("vmi", "rich", "/status/guestOSInfo/id");
        if id == "carrack-demo" { Ok(()) } else { Err(id.to_string()) }
    });
    let picture = kubectl.ok(&["get", "--raw", &format!("{CALLS}/virtualmachineinstances/rich/vnc/screenshot")]);
    assert!(picture.contains("PNG"), "{} bytes", picture.len());
    let (text, code) = sandbox.page(8186, "/metrics", true);
    assert_eq!(code, "200", "{text}");
    let of_guest = "{namespace=\"default\",name=\"rich\",node=";
    let families = ["storage_write_traffic_bytes_total", "network_receive_bytes_total", "cpu_usage_seconds_total"];
    let samples = families.map(|family| format!("kubevirt_vmi_{family}{of_guest}"));
    assert_contains(&text, &samples.each_ref().map(String::as_str));
    assert_contains(&text, &["drive=\"root\"", "drive=\"kept\"", "drive=\"scratch\""]);
    assert_contains(&text, &["kubevirt_vmi_memory_actual_balloon_bytes", "id=\"1\",state=\"running\""]);
    let pods = ["get", "pods", "-l", "vm.kubevirt.io/name=rich", "-o", "name"];
    let pod = kubectl.ok(&pods).trim().to_owned();
    // The agent may be there before the console asks who is there. A line is in the log once it has ended; the prompt has not.
    eventually("the console's log greets", 60, || {
        let log = kubectl.ok(&["logs", &pod, "-c", "guest-console-log"]);
        if log.contains("Carrack demo guest \"rich\"") { Ok(()) } else { Err(log) }
    });
    // But for a probe that asks before the guest has booted, of which kubelets warn.
    let others = "--field-selector=type=Warning,reason!=Unhealthy";
    let warnings = kubectl.ok(&["get", "events", others, "-o", "jsonpath={.items[*].message}"]);
    assert_eq!(warnings.trim(), "", "a normal life has no warnings");

    // A restart: what is kept is kept, the address's owner is the same.
    let uid = kubectl.field("vmi", "rich", "/metadata/uid");
    kubectl.call("virtualmachines/rich/restart", "{}");
    eventually_true("another instance runs", BOOT_S, || {
        let now = kubectl.field("vmi", "rich", "/metadata/uid");
        !now.is_null() && now != uid && kubectl.field("vmi", "rich", "/status/phase") == "Running"
    });
    kubectl.wait_agent("rich");
    kubectl.holds_in_guest("rich", &format!("{kept}; head -c 14 $dev | grep -q written-before"));
    assert_eq!(kubectl.field("vmi", "rich", "/status/interfaces/0/mac"), mac);
    kubectl.ok(&["delete", "vm", "rich", "--timeout=90s"]);
    kubectl.ok(&["delete", "pvc", "kept", "--timeout=60s"]);
}

fn small(name: &str, kind: &str, more: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n{more}\n  template:\n    \
         metadata: {{labels: {{set: {name}}}}}\n    spec:\n      terminationGracePeriodSeconds: 0\n      domain:\n        \
         devices: {{autoattachGraphicsDevice: false, interfaces: []}}\n"
    )
}

#[test]
fn sizes_and_sets() {
    let sandbox = Sandbox::new();
    sandbox.start(&["--virt-controller-port", "8443"]);
    let kubectl = sandbox.kubectl();
    kubectl.apply(
        "apiVersion: instancetype.kubevirt.io/v1beta1\nkind: VirtualMachineClusterInstancetype\nmetadata: {name: tiny}\n\
         spec: {cpu: {guest: 2}, memory: {guest: 64Mi}}\n---\n\
         apiVersion: instancetype.kubevirt.io/v1beta1\nkind: VirtualMachinePreference\nmetadata: {name: wide}\n\
         spec: {cpu: {preferredCPUTopology: cores}}\n",
    );
    let named = "  runStrategy: Always\n  instancetype: {name: tiny}\n  preference: {name: wide, kind: VirtualMachinePreference}";
    kubectl.apply(&small("sized", "VirtualMachine", named));
    kubectl.wait_status("sized", "Running");
    assert_eq!(kubectl.field("vmi", "sized", "/spec/domain/cpu/cores"), 2);
    assert_eq!(kubectl.field("vmi", "sized", "/spec/domain/memory/guest"), "64Mi");
    let revision = kubectl.field("vm", "sized", "/status/instancetypeRef/controllerRevisionRef/name");
    let revision = revision.as_str().expect("a revision").to_owned();
    assert_contains(&kubectl.ok(&["get", "controllerrevision", &revision, "-o", "yaml"]), &["64Mi", "tiny"]);
    let expanded = kubectl.ok(&[
        "get",
        "--raw",
        "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/sized/expand-spec",
    ]);
    assert_contains(&expanded, &["\"cores\":2", "\"guest\":\"64Mi\""]);
    let (text, code) = sandbox.page(8443, "/metrics", true);
    assert_eq!((code.as_str(), sandbox.page(8443, "/metrics", false).1.as_str()), ("200", "401"), "{text}");
    assert_contains(
        &text,
        &[
            "kubevirt_number_of_vms{namespace=\"default\"} 1",
            "kubevirt_vm_running_status_last_transition_timestamp_seconds{name=\"sized\",namespace=\"default\"} 1",
            "kubevirt_vmi_phase_transition_time_from_creation_seconds_count{phase=\"Running\"} 1",
            "kubevirt_rest_client_requests_total{resource=\"pods\",verb=\"CREATE\",code=\"201\"}",
            "kubevirt_workqueue_adds_total{name=\"virtualmachine\"}",
            "kubevirt_virt_controller_leading_status 1",
            "kubevirt_virt_controller_ready_status 1",
        ],
    );
    // What the machine was started with stays its own.
    kubectl.ok(&["delete", "vmclusterinstancetype", "tiny"]);
    let again = small("again", "VirtualMachine", named);
    // One that names what is not there is taken, and told.
    let taken = kubectl.run(&["apply", "-f", "-"]).input(again.clone()).output();
    assert_eq!(taken.code, Some(0), "{taken}");
    assert_contains(&taken.stderr, &["Warning: Failure to find instancetype", "\"tiny\" not found"]);
    kubectl.ok(&["wait", "--for=condition=Failure", "vm/again", "--timeout=60s"]);
    kubectl.ok(&["delete", "vm", "again", "--timeout=60s"]);
    kubectl.ok(&["delete", "vmi", "sized", "--timeout=60s"]);
    kubectl.wait_status("sized", "Running");
    // It may still be changed, and what is made of a snapshot of it has it for its own.
    kubectl.apply(
        "apiVersion: snapshot.kubevirt.io/v1beta1\nkind: VirtualMachineSnapshot\nmetadata: {name: sized}\nspec:\n  \
         source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: sized}\n---\n\
         apiVersion: snapshot.kubevirt.io/v1beta1\nkind: VirtualMachineRestore\nmetadata: {name: again}\nspec:\n  \
         target: {apiGroup: kubevirt.io, kind: VirtualMachine, name: again}\n  virtualMachineSnapshotName: sized\n",
    );
    kubectl.ok(&["wait", "--for=condition=Ready", "vmrestore/again", "--timeout=60s"]);
    kubectl.ok(&["patch", "vm", "sized", "--type=merge", "-p", r#"{"spec": {"runStrategy": "Halted"}}"#]);
    kubectl.ok(&["delete", "vmrestore,vmsnapshot", "--all", "--timeout=60s"]);
    assert_eq!(kubectl.field("vm", "again", "/spec/instancetype/revisionName"), serde_json::Value::Null);
    let kept = || kubectl.ok(&["get", "controllerrevision", "-o", "name"]);
    eventually("the snapshot's revisions are gone", 60, || {
        if kept().contains("vmsnapshot-content") { Err(kept()) } else { Ok(()) }
    });
    assert_contains(&kept(), &["/again-tiny-", "/again-wide-"]);
    kubectl.ok(&["patch", "vm", "again", "--type=merge", "-p", r#"{"spec": {"runStrategy": "Always"}}"#]);
    kubectl.wait_status("again", "Running");
    assert_eq!(kubectl.field("vmi", "again", "/spec/domain/cpu/cores"), 2);
    assert_eq!(kubectl.field("vmi", "again", "/spec/domain/memory/guest"), "64Mi");
    kubectl.ok(&["delete", "vm", "sized", "again", "--timeout=60s"]);

    let example = root().join("examples/vm-instancetype.yaml").display().to_string();
    kubectl.ok(&["apply", "-f", &example]);
    let expanded = kubectl.ok(&[
        "get",
        "--raw",
        "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/sized/expand-spec",
    ]);
    assert_contains(&expanded, &["\"cores\":1", "\"guest\":\"192Mi\"", "\"virtio\""]);
    kubectl.ok(&["delete", "-f", &example, "--timeout=60s"]);

    let set = "  replicas: 2\n  selector: {matchLabels: {set: web}}";
    let memory = "        memory: {guest: 64Mi}\n";
    kubectl.apply(&format!("{}{memory}", small("web", "VirtualMachineInstanceReplicaSet", set)));
    let counts = |wanted: u64| {
        eventually(&format!("{wanted} replicas"), BOOT_S, || {
            let status = kubectl.field("vmirs", "web", "/status");
            let is = |field: &str| status[field].as_u64().unwrap_or(0) == wanted;
            if is("replicas") && is("readyReplicas") { Ok(()) } else { Err(status.to_string()) }
        });
    };
    counts(2);
    assert_contains(&kubectl.ok(&["get", "vmirs"]), &["DESIRED", "CURRENT", "READY", "web"]);
    kubectl.ok(&["scale", "vmirs", "web", "--replicas=1"]);
    counts(1);
    kubectl.ok(&["delete", "vmirs", "web", "--timeout=60s"]);
    eventually_true("its instances are gone", 60, || kubectl.ok(&["get", "vmi", "-o", "name"]).trim().is_empty());
}

/// The files of this name with the variables of machines' firmware, on the volumes that are mounted for their pods.
fn variables(sandbox: &Sandbox, name: &str) -> Vec<std::path::PathBuf> {
    let pattern = sandbox.data_dir().join("kubelet/pods/*/volumes/kubernetes.io~csi/*/mount/nvram").join(name);
    let listed = sandbox.shell(&format!("ls -d {} 2>/dev/null || true", pattern.display())).ok();
    listed.lines().map(Into::into).collect()
}

/// How often the firmware has started with these variables. UEFI counts its starts in one of them, and each value that a variable
/// has had is a record in the file.
fn starts_counted(files: &[std::path::PathBuf]) -> usize {
    let [file] = files else { return 0 };
    let name: Vec<u8> = "MTC\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::read(file).map_or(0, |bytes| bytes.windows(name.len()).filter(|window| *window == name).count())
}

/// Firmware with secure boot keeps its variables in a file of its own.
const SEALED: &str = "VARS.secboot.fd";

/// A machine with secure boot that keeps its variables.
fn sealed() -> String {
    let domain = "        memory: {guest: 256Mi}\n        features: {smm: {enabled: true}}\n        \
                  firmware: {bootloader: {efi: {secureBoot: true, persistent: true}}}\n";
    format!("{}{domain}", small("sealed", "VirtualMachine", "  runStrategy: Always"))
}

/// The sealed machine is cloned while it runs, and what its firmware keeps comes along as a volume that storage snapshots. Nothing is
/// left of either when both are deleted.
fn is_cloned_by_snapshots(kubectl: &Kubectl<'_>, counts: &dyn Fn(usize)) {
    eventually_true("its class is there", 30, || kubectl.get("volumesnapshotclass", "carrack-local").is_some());
    let able = || kubectl.field("vm", "sealed", "/status/volumeSnapshotStatuses/0");
    let wanted = serde_json::json!({"name": "persistent-state-for-sealed", "enabled": true});
    eventually("it can be snapshotted", 30, || if able() == wanted { Ok(()) } else { Err(able().to_string()) });
    kubectl.apply(
        "apiVersion: clone.kubevirt.io/v1beta1\nkind: VirtualMachineClone\nmetadata: {name: sealed-too}\nspec:\n  \
         source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: sealed}\n  \
         target: {apiGroup: kubevirt.io, kind: VirtualMachine, name: sealed-too}\n",
    );
    kubectl.ok(&["wait", "--for=condition=Ready", "vmclone/sealed-too", "--timeout=120s"]);
    kubectl.ok(&["delete", "vm", "sealed", "--timeout=90s"]);
    let name = kubectl.field("vm", "sealed-too", "/metadata/annotations/kubevirt.io~1persistent-state-claim");
    let name = name.as_str().unwrap_or_default().to_owned();
    assert_ne!(name, "", "the claim of its state");
    assert_eq!(kubectl.field("pvc", &name, "/spec/dataSource/kind"), "VolumeSnapshot");
    assert_eq!(
        kubectl.field("pvc", &name, "/metadata/ownerReferences/0/uid"),
        kubectl.field("vm", "sealed-too", "/metadata/uid")
    );
    // It has never run: a snapshot has what it will begin with all the same, since storage makes that where the snapshot is.
    kubectl.apply(
        "apiVersion: snapshot.kubevirt.io/v1beta1\nkind: VirtualMachineSnapshot\nmetadata: {name: early}\nspec:\n  \
         source: {apiGroup: kubevirt.io, kind: VirtualMachine, name: sealed-too}\n",
    );
    kubectl.ok(&["wait", "--for=condition=Ready", "vmsnapshot/early", "--timeout=120s"]);
    let included = kubectl.field("vmsnapshot", "early", "/status/snapshotVolumes/includedVolumes");
    assert_eq!(included, serde_json::json!(["persistent-state-for-sealed-too"]));
    let start = |name: &str, counted: usize| {
        kubectl.ok(&["patch", "vm", name, "--type=merge", "-p", r#"{"spec": {"runStrategy": "Always"}}"#]);
        counts(counted);
    };
    // It goes on where its source was when it was cloned, and so does what is made of its snapshot.
    start("sealed-too", 2);
    kubectl.ok(&["delete", "vm", "sealed-too", "--timeout=90s"]);
    kubectl.apply(
        "apiVersion: snapshot.kubevirt.io/v1beta1\nkind: VirtualMachineRestore\nmetadata: {name: again}\nspec:\n  \
         target: {apiGroup: kubevirt.io, kind: VirtualMachine, name: sealed-again}\n  virtualMachineSnapshotName: early\n",
    );
    kubectl.ok(&["wait", "--for=condition=Ready", "vmrestore/again", "--timeout=60s"]);
    start("sealed-again", 2);
    kubectl.ok(&["delete", "vmrestore,vmsnapshot", "--all", "--timeout=60s"]);
    kubectl.ok(&["delete", "vm", "sealed-again", "--timeout=90s"]);
    eventually("nothing is left", 60, || {
        let kinds = "vmclone,vmsnapshot,vmsnapshotcontent,vmrestore,volumesnapshot,volumesnapshotcontent";
        let left = kubectl.ok(&["get", kinds, "-o", "name"]);
        let claims = kubectl.ok(&[
            "get",
            "pvc",
            "-l",
            "persistent-state-for in (sealed, sealed-too, sealed-again)",
            "-o",
            "name",
        ]);
        if left.is_empty() && claims.is_empty() { Ok(()) } else { Err(left + &claims) }
    });
}

#[test]
fn firmware_keeps_its_variables() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    // It finds nothing to boot, and needs nobody to have that written down.
    let domain = "        memory: {guest: 256Mi}\n        firmware: {bootloader: {efi: {secureBoot: false, persistent: true}}}\n";
    kubectl.apply(&format!("{}{domain}", small("keeps", "VirtualMachine", "  runStrategy: Always")));
    let counts_in = |name: &str, wanted: usize| {
        eventually(&format!("the firmware has counted {wanted} starts"), BOOT_S, || {
            let files = variables(&sandbox, name);
            // What comes with Microsoft's keys was started once, to have them.
            let counted = starts_counted(&files).saturating_sub(usize::from(name == SEALED));
            if counted == wanted { Ok(()) } else { Err(format!("{counted}, in {files:?}")) }
        });
    };
    let counts = |wanted: usize| counts_in("VARS.fd", wanted);
    kubectl.apply(&sealed());
    counts(1);
    counts_in(SEALED, 1);
    is_cloned_by_snapshots(&kubectl, &|wanted| counts_in(SEALED, wanted));
    let claim =
        || kubectl.ok(&["get", "pvc", "-l", "persistent-state-for=keeps", "-o", "jsonpath={.items[*].metadata.uid}"]);
    let (first, uid) = (claim(), kubectl.field("vm", "keeps", "/metadata/uid"));
    let owner = kubectl.ok(&["get", "pvc", "-o", "jsonpath={.items[*].metadata.ownerReferences[0].uid}"]);
    assert_eq!(owner, uid.as_str().expect("a UID"), "nothing is left of the sealed ones");

    // Nothing of it changes while all of Carrack is killed; then the machine is stopped, and started again.
    sandbox.kill_9();
    sandbox.start(&[]);
    kubectl.wait_status("keeps", "Running");
    counts(1);
    kubectl.ok(&["patch", "vm", "keeps", "--type=merge", "-p", r#"{"spec": {"runStrategy": "Halted"}}"#]);
    kubectl.wait_status("keeps", "Stopped");
    assert_eq!(claim(), first);
    kubectl.ok(&["patch", "vm", "keeps", "--type=merge", "-p", r#"{"spec": {"runStrategy": "Always"}}"#]);
    counts(2);
    assert_eq!(claim(), first, "it is another claim");

    // A snapshot takes them along while the machine runs, by a copy where storage takes none; what was written later goes.
    eventually_true("its class is there", 30, || kubectl.get("volumesnapshotclass", "carrack-local").is_some());
    kubectl.ok(&["delete", "volumesnapshotclass", "carrack-local"]);
    let spec = |kind: &str, spec: &str| {
        let what =
            format!("apiVersion: snapshot.kubevirt.io/v1beta1\nkind: {kind}\nmetadata: {{name: twice}}\nspec:\n{spec}");
        kubectl.apply(&what);
    };
    let machine = "{apiGroup: kubevirt.io, kind: VirtualMachine, name: keeps}";
    spec("VirtualMachineSnapshot", &format!("  source: {machine}\n"));
    kubectl.ok(&["wait", "--for=condition=Ready", "vmsnapshot/twice", "--timeout=120s"]);
    let included = kubectl.field("vmsnapshot", "twice", "/status/snapshotVolumes/includedVolumes");
    assert_eq!(included, serde_json::json!(["persistent-state-for-keeps"]));
    let switch = |strategy: &str, status: &str| {
        let patch = format!("{{\"spec\": {{\"runStrategy\": \"{strategy}\"}}}}");
        kubectl.ok(&["patch", "vm", "keeps", "--type=merge", "-p", &patch]);
        kubectl.wait_status("keeps", status);
    };
    switch("Halted", "Stopped");
    switch("Always", "Running");
    counts(3);
    switch("Halted", "Stopped");
    spec("VirtualMachineRestore", &format!("  target: {machine}\n  virtualMachineSnapshotName: twice\n"));
    kubectl.ok(&["wait", "--for=condition=Ready", "vmrestore/twice", "--timeout=120s"]);
    eventually_true("the claim before goes", 60, || !claim().is_empty() && !claim().contains(&first));
    switch("Always", "Running");
    counts(3);
    kubectl.ok(&["delete", "vmrestore,vmsnapshot", "twice", "--timeout=60s"]);

    // One that comes again under its name would find nothing of it.
    kubectl.ok(&["delete", "vm", "keeps", "--timeout=90s"]);
    eventually_true("the claim goes with the machine", 60, || claim().is_empty());
}

/// A machine whose processor has a CPU to itself, with a trusted platform module.
fn own() -> String {
    let head = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: own}\nspec:\n  runStrategy: Always\n  template:\n";
    let domain = "cpu: {cores: 1, dedicatedCpuPlacement: true}\n        memory: {guest: 64Mi}\n        \
                  devices: {autoattachGraphicsDevice: false, interfaces: [], tpm: {}}\n";
    format!("{head}    spec:\n      terminationGracePeriodSeconds: 0\n      domain:\n        {domain}")
}

#[test]
fn processors_on_cpus_of_their_own() {
    if several_cpus().is_none() {
        return;
    }
    let sandbox = Sandbox::new();
    let config = sandbox.kubelet_config("reservedSystemCPUs: '0'\ncpuManagerPolicy: static\n");
    let start = || sandbox.start(&["--kubelet-config", &config]);
    start();
    let kubectl = sandbox.kubectl();
    let nodes = ["get", "nodes", "-l", "cpumanager=true,kubevirt.io/cpumanager=true", "-o", "name"];
    eventually_true("the node gives whole CPUs away", 60, || kubectl.ok(&nodes).starts_with("node/"));
    let refused = kubectl.run(&["apply", "-f", "-"]).input(own().replace("cores: 1", "cores: 1, threads: 3")).fails();
    assert_contains(&refused, &["Not more than two threads must be provided"]);
    kubectl.apply(&own());
    kubectl.wait_status("own", "Running");
    let class = ["get", "pods", "-l", "vm.kubevirt.io/name=own", "-o", "jsonpath={.items[*].status.qosClass}"];
    assert_eq!(kubectl.ok(&class), "Guaranteed");
    // Their own processes, among those of all: who looks does not find itself by what it looks for.
    let uid = kubectl.field("vmi", "own", "/metadata/uid").as_str().expect("a UID").to_owned();
    let (first, rest) = uid.split_at(1);
    let module = format!("grep -lae '--tpmstate.*[{first}]{rest}' /proc/[0-9]*/cmdline 2>/dev/null || true");
    let pinned = || {
        let line = "for qemu in $(grep -lae 'guest=default_ow[n],' /proc/[0-9]*/cmdline 2>/dev/null); do \
                    for thread in $(grep -l '^CPU 0/' ${qemu%cmdline}task/*/comm); do \
                    grep Cpus_allowed_list ${thread%comm}status; done; done";
        let said = sandbox.shell(line).ok();
        assert_eq!(said.split_whitespace().last(), Some("1"), "{said}");
        assert_eq!(sandbox.shell(&module).ok().lines().count(), 1, "its module");
    };
    pinned();
    // Neither changes with who looks after it.
    sandbox.kill_9();
    start();
    kubectl.wait_status("own", "Running");
    pinned();
    kubectl.ok(&["delete", "vm", "own", "--timeout=60s"]);
    eventually_true("its module is gone", 30, || sandbox.shell(&module).ok().trim().is_empty());
}
