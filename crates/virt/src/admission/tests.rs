//! Manifests, and the faults or completions they meet.

use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstanceSpec};
use serde_json::{Value, json};

use carrack_types::kubevirt::others::{KubeVirtConfiguration, VirtualMachineInstanceReplicaSet};

use super::{Faults, check_instance, check_machine, check_replica_set, complete_instance, complete_machine};

fn spec(more: Value) -> VirtualMachineInstanceSpec {
    let mut spec = json!({
        "domain": {
            "devices": {
                "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}]},
            "resources": {"requests": {"memory": "64Mi"}}},
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "containerDisk": {"image": "demo:1"}}]});
    merge(&mut spec, more);
    serde_json::from_value(spec).expect("a spec")
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

fn fields(faults: Faults) -> Vec<String> {
    faults.into_vec().into_iter().map(|fault| fault.field).collect()
}

#[test]
fn faults_name_their_fields() {
    let check = |more: Value, wanted: &[&str]| {
        let mut faults = Faults::default();
        check_instance(&spec(more.clone()), &KubeVirtConfiguration::default(), &mut faults);
        assert_eq!(fields(faults), wanted, "{more}");
    };
    let devices = |devices: Value| json!({"domain": {"devices": devices}});
    let disks = |disks: Value| devices(json!({"disks": disks}));
    check(json!({}), &[]);
    check(disks(json!([{"name": "root"}, {"name": "root"}])), &["spec.domain.devices.disks[1].name"]);
    check(disks(json!([{"name": "root"}, {"name": "other"}])), &["spec.domain.devices.disks[1].name"]);
    check(disks(json!([{"name": "root", "disk": {}, "cdrom": {}}])), &["spec.domain.devices.disks[0]"]);
    check(disks(json!([{"name": "root", "disk": {"bus": "ide"}}])), &["spec.domain.devices.disks[0].disk.bus"]);
    check(disks(json!([{"name": "root", "cdrom": {"bus": "virtio"}}])), &["spec.domain.devices.disks[0].cdrom.bus"]);
    check(disks(json!([{"name": "root", "bootOrder": 0}])), &["spec.domain.devices.disks[0].bootOrder"]);
    check(disks(json!([{"name": "root", "serial": "a b"}])), &["spec.domain.devices.disks[0].serial"]);
    check(
        json!({"domain": {"devices": {"disks": [{"name": "root", "bootOrder": 1}],
            "interfaces": [{"name": "default", "masquerade": {}, "bootOrder": 1}]}}}),
        &["spec.domain.devices.interfaces[0].bootOrder"],
    );
    let volumes = |volumes: Value| json!({"volumes": volumes});
    check(volumes(json!([{"name": "root"}])), &["spec.volumes[0]"]);
    check(
        volumes(json!([{"name": "root", "containerDisk": {"image": "a"}, "emptyDisk": {"capacity": "1Gi"}}])),
        &["spec.volumes[0]"],
    );
    check(
        volumes(
            json!([{"name": "root", "containerDisk": {"image": "a"}}, {"name": "root", "containerDisk": {"image": "a"}}]),
        ),
        &["spec.volumes[1].name"],
    );
    check(volumes(json!([{"name": "root", "containerDisk": {}}])), &["spec.volumes[0].containerDisk.image"]);
    check(volumes(json!([{"name": "root", "emptyDisk": {"capacity": "0"}}])), &["spec.volumes[0].emptyDisk.capacity"]);
    check(volumes(json!([{"name": "root", "cloudInitNoCloud": {}}])), &["spec.volumes[0].cloudInitNoCloud"]);
    check(
        volumes(json!([{"name": "root", "cloudInitNoCloud": {"userDataBase64": "%"}}])),
        &["spec.volumes[0].cloudInitNoCloud.userDataBase64"],
    );
    check(
        volumes(json!([{"name": "root", "cloudInitNoCloud": {"userData": "x".repeat(2049)}}])),
        &["spec.volumes[0].cloudInitNoCloud"],
    );
    check(volumes(json!([{"name": "root", "downwardMetrics": {}}])), &["spec.volumes[0].downwardMetrics"]);
    check(
        volumes(json!([{"name": "root", "hostDisk": {"path": "/x", "type": "Disk"}}])),
        &["spec.volumes[0].hostDisk"],
    );
    check(volumes(json!([{"name": "root", "sysprep": {}}])), &["spec.volumes[0].sysprep"]);
    check(volumes(json!([{"name": "root", "configMap": {}}])), &["spec.volumes[0].configMap.name"]);
    check(volumes(json!([{"name": "root", "secret": {}}])), &["spec.volumes[0].secret.secretName"]);
    check(
        volumes(json!([{"name": "root", "serviceAccount": {}}])),
        &["spec.volumes[0].serviceAccount.serviceAccountName"],
    );
    check(volumes(json!([{"name": "root", "dataVolume": {"name": ""}}])), &["spec.volumes[0].name"]);
    check(
        volumes(json!([{"name": "root", "containerDisk": {"image": "a", "path": "disk.img"}}])),
        &["spec.volumes[0].containerDisk"],
    );
    check(
        volumes(json!([{"name": "root", "containerDisk": {"image": "a", "path": "/a/../b"}}])),
        &["spec.volumes[0].containerDisk"],
    );
    check(
        volumes(json!([{"name": "root", "cloudInitConfigDrive": {"userData": "a", "userDataBase64": "YQ=="}}])),
        &["spec.volumes[0].cloudInitConfigDrive"],
    );
    check(
        json!({"domain": {"devices": {"disks": [{"name": "root"}, {"name": "a"}, {"name": "b"}]}},
            "volumes": [{"name": "root", "containerDisk": {"image": "a"}},
                {"name": "a", "serviceAccount": {"serviceAccountName": "x"}},
                {"name": "b", "serviceAccount": {"serviceAccountName": "y"}}]}),
        &["spec.volumes"],
    );
    let nics = |nics: Value| devices(json!({"interfaces": nics}));
    check(
        nics(json!([{"name": "lan", "masquerade": {}}])),
        &["spec.networks[0].name", "spec.domain.devices.interfaces[0].name"],
    );
    check(nics(json!([{"name": "default", "bridge": {}}])), &[]);
    check(nics(json!([{"name": "default", "sriov": {}}])), &["spec.domain.devices.interfaces[0].sriov"]);
    check(nics(json!([{"name": "default", "bridge": {}, "masquerade": {}}])), &["spec.domain.devices.interfaces[0]"]);
    check(
        nics(json!([{"name": "default", "masquerade": {}, "model": "x"}])),
        &["spec.domain.devices.interfaces[0].model"],
    );
    check(
        nics(json!([{"name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:00"}])),
        &["spec.domain.devices.interfaces[0].macAddress"],
    );
    check(
        nics(
            json!([{"name": "default", "masquerade": {}, "ports": [{"port": 1, "name": "x"}, {"port": 2, "name": "x"}]}]),
        ),
        &["spec.domain.devices.interfaces[0].ports[1].name"],
    );
    check(
        nics(json!([{"name": "default", "masquerade": {}, "ports": [{"port": 1, "name": "Not_One"}]}])),
        &["spec.domain.devices.interfaces[0].ports[0].name"],
    );
    check(json!({"networks": [{"name": "default", "pod": {}, "multus": {"networkName": "x"}}]}), &["spec.networks[0]"]);
    check(
        json!({"domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}, {"name": "b", "bridge": {}}]}},
            "networks": [{"name": "default", "pod": {}}, {"name": "b", "pod": {}}]}),
        &["spec.interfaces"],
    );
    check(
        json!({"domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}, {"name": "b", "bridge": {}}]}},
            "networks": [{"name": "default", "pod": {}}, {"name": "b", "multus": {"networkName": "ns/lan"}}]}),
        &[],
    );
    check(
        nics(json!([{"name": "default", "masquerade": {}, "macAddress": "01:00:00:00:00:01"}])),
        &["spec.domain.devices.interfaces[0].macAddress"],
    );
    check(
        nics(json!([{"name": "default", "masquerade": {}, "ports": [{"port": 0}]}])),
        &["spec.domain.devices.interfaces[0].ports[0]"],
    );
    // An object cannot lose a key by what is laid over it: a null takes its value.
    check(
        json!({"networks": [{"name": "default", "multus": {"networkName": "x"}}]}),
        &["spec.domain.devices.interfaces[0].name"],
    );
    check(json!({"domain": {"resources": {"requests": {"memory": "0"}}}}), &["spec.domain.memory.guest"]);
    check(
        json!({"domain": {"resources": {"requests": {"memory": "-1Mi"}}}}),
        &["spec.domain.resources.requests.memory", "spec.domain.memory.guest"],
    );
    check(json!({"domain": {"resources": {"limits": {"memory": "32Mi"}}}}), &["spec.domain.resources.requests.memory"]);
    check(
        json!({"domain": {"resources": {"requests": {"memory": "64k"}}}}),
        &["spec.domain.resources.requests.memory"],
    );
    let loader = |loader: Value| json!({"domain": {"firmware": {"bootloader": loader}}});
    check(loader(json!({"efi": {}})), &["spec.domain"]);
    check(loader(json!({"efi": {"secureBoot": false}})), &[]);
    check(loader(json!({"efi": {"secureBoot": false}, "bios": {}})), &["spec.domain.firmware.bootloader"]);
    check(loader(json!({"efi": {"secureBoot": false, "persistent": true}})), &[]);
    check(json!({"domain": {"features": {"smm": {}}, "firmware": {"bootloader": {"efi": {}}}}}), &[]);
    let boot = |boot: Value| json!({"domain": {"firmware": {"kernelBoot": boot}}});
    check(boot(json!({"kernelArgs": "quiet"})), &["spec.domain.firmware.kernelBoot.kernelArgs"]);
    check(boot(json!({"container": {"image": "a"}})), &["spec.domain.firmware.kernelBoot.container"]);
    check(
        boot(json!({"container": {"image": "", "kernelPath": "/k"}})),
        &["spec.domain.firmware.kernelBoot.container.image"],
    );
    check(
        boot(json!({"container": {"image": "a", "kernelPath": "/"}})),
        &["spec.domain.firmware.kernelBoot.container.kernelPath"],
    );
    check(json!({"domain": {"firmware": {"serial": "a b"}}}), &["spec.domain.firmware.serial"]);
    check(
        json!({"domain": {"cpu": {"features": [{"name": "avx", "policy": "maybe"}]}}}),
        &["spec.domain.cpu.features[0].policy"],
    );
    check(json!({"domain": {"cpu": {"isolateEmulatorThread": true}}}), &["spec.domain.cpu.isolateEmulatorThread"]);
    check(json!({"domain": {"cpu": {"sockets": 4, "maxSockets": 2}}}), &["spec.domain.cpu.sockets"]);
    check(
        json!({"domain": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}}),
        &["spec.domain.resources.requests.cpu"],
    );
    check(json!({"domain": {"memory": {"hugepages": {"pageSize": "x"}}}}), &["spec.domain.hugepages.size"]);
    check(
        json!({"domain": {"memory": {"hugepages": {"pageSize": "1Gi"}}}}),
        &["spec.domain.resources.requests.memory"],
    );
    check(json!({"domain": {"memory": {"hugepages": {"pageSize": "2Mi"}}}}), &[]);
    check(json!({"domain": {"ioThreadsPolicy": "many"}}), &["spec.domain.ioThreadsPolicy"]);
    check(devices(json!({"inputs": [{"name": "a", "type": "mouse"}]})), &["spec.domain.devices.inputs[0].type"]);
    check(
        devices(json!({"inputs": [{"name": "a", "type": "tablet", "bus": "ps2"}]})),
        &["spec.domain.devices.inputs[0].bus"],
    );
    check(
        devices(json!({"watchdog": {"name": "w", "i6300esb": {"action": "bark"}}})),
        &["spec.domain.devices.watchdog.i6300esb.action"],
    );
    check(devices(json!({"watchdog": {"name": "w", "i6300esb": {"action": "poweroff"}}})), &[]);
    check(devices(json!({"autoattachGraphicsDevice": false, "video": {"type": "vga"}})), &["spec.video"]);
    for model in ["vga", "cirrus", "virtio", "bochs", "ramfb"] {
        check(devices(json!({"video": {"type": model}})), &[]);
    }
    for video in [json!({"type": "qxl"}), json!({"type": ""}), json!({})] {
        check(devices(json!({ "video": video })), &["spec.domain.devices.video.type"]);
    }
    let told = |options: Value| {
        devices(json!({"interfaces": [{"name": "default", "masquerade": {}, "dhcpOptions": options}]}))
    };
    let at = |what: &str| format!("spec.domain.devices.interfaces[0].dhcpOptions.{what}");
    check(told(json!({"bootFileName": "b", "tftpServerName": "t", "ntpServers": ["10.0.0.1"]})), &[]);
    check(told(json!({"ntpServers": ["::1"]})), &[&at("ntpServers[0]")]);
    check(told(json!({"ntpServers": ["010.0.0.01"]})), &[]);
    check(told(json!({"ntpServers": ["10.0.1"]})), &[&at("ntpServers[0]")]);
    let own = |option: i32| json!({"option": option, "value": "x"});
    check(told(json!({"privateOptions": [own(224), own(254)]})), &[]);
    check(told(json!({"privateOptions": [own(223)]})), &[&at("privateOptions[0]")]);
    check(told(json!({"privateOptions": [own(240), own(240)]})), &[&at("privateOptions[1]")]);
    check(devices(json!({"sound": {"name": "s", "model": "sb16"}})), &["spec.Sound"]);
    check(devices(json!({"sound": {"name": ""}})), &["spec.Sound"]);
    check(devices(json!({"sound": {"name": "s"}})), &[]);
    check(json!({"domain": {"rebootPolicy": "Terminate"}}), &[]);
    check(json!({"domain": {"rebootPolicy": "Sometimes"}}), &["spec.domain.rebootPolicy"]);
    check(devices(json!({"tpm": {}})), &[]);
    check(devices(json!({"tpm": {"persistent": true}})), &["spec.domain.devices.tpm.persistent"]);
    for name in ["", "q35", "pc", "pc-q35-7.2", "pc-q35-rhel9.2.0", "pc-i440fx-7.2"] {
        check(json!({"domain": {"machine": {"type": name}}}), &[]);
    }
    for name in ["virt", "q35-foo", "pc-q35", "pc-q35 x", "pc-q35-7.2 x", "pc-q35-7.2,accel=kvm", "pc-i440fx"] {
        check(json!({"domain": {"machine": {"type": name}}}), &["spec.domain.machine.type"]);
    }
    check(json!({"terminationGracePeriodSeconds": -1}), &["spec.terminationGracePeriodSeconds"]);
    check(json!({"hostname": "Not a label"}), &["spec.hostname"]);
    check(json!({"evictionStrategy": "Maybe"}), &["spec.evictionStrategy"]);
    check(json!({"readinessProbe": {"tcpSocket": {"port": 22}}}), &[]);
    check(json!({"readinessProbe": {}}), &["spec.readinessProbe"]);
    check(json!({"livenessProbe": {"guestAgentPing": {}, "exec": {"command": ["a"]}}}), &["spec.livenessProbe"]);
    check(json!({"dnsPolicy": "Other"}), &["spec.dnsPolicy"]);
    check(json!({"dnsPolicy": "None"}), &["spec.dnsConfig"]);
    check(json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["x"]}}), &["nameservers"]);
    check(json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["01.1.1.1", "fd00::1"]}}), &[]);
    let searches = |searches: Vec<String>| json!({"dnsConfig": {"searches": searches}});
    check(searches((0..6).map(|n| format!("d{n}")).collect()), &[]);
    check(searches((0..7).map(|n| format!("d{n}")).collect()), &["searchDomains"]);
    check(searches((0..5).map(|n| format!("{}{n}", "d".repeat(60))).collect()), &["searchDomains"]);
    check(json!({"dnsConfig": {"options": [{"name": "ndots", "value": "2"}, {"value": "3"}]}}), &["options"]);
    let probe = json!({"guestAgentPing": {}});
    check(json!({"startStrategy": "Paused", "readinessProbe": probe}), &[]);
    check(json!({"startStrategy": "Paused", "livenessProbe": probe}), &["spec.startStrategy"]);
    check(json!({"architecture": "arm64"}), &["spec.architecture"]);
    let credentials = |credential: Value| json!({"accessCredentials": [credential]});
    let secret = || json!({"secret": {"secretName": "s"}});
    check(credentials(json!({})), &["spec.accessCredentials[0]"]);
    check(
        credentials(json!({"sshPublicKey": {"source": secret(), "propagationMethod": {"noCloud": {}}}})),
        &["spec.accessCredentials[0].sshPublicKey.propagationMethod"],
    );
    check(
        credentials(
            json!({"sshPublicKey": {"source": secret(), "propagationMethod": {"qemuGuestAgent": {"users": []}}}}),
        ),
        &["spec.accessCredentials[0].sshPublicKey.propagationMethod.qemuGuestAgent.users"],
    );
    check(
        credentials(json!({"userPassword": {"source": {}, "propagationMethod": {"qemuGuestAgent": {}}}})),
        &["spec.accessCredentials[0].userPassword.source"],
    );
    check(disks(json!([{"name": "root", "cache": "some"}])), &["spec.domain.devices.disks[0].cache"]);
    check(disks(json!([{"name": "root", "io": "fast"}])), &["spec.domain.devices.disks[0].io"]);
    check(disks(json!([{"name": "root", "errorPolicy": "x"}])), &["spec.domain.devices.disks[0].errorPolicy"]);
    check(
        disks(json!([{"name": "root", "disk": {"bus": "sata", "readonly": true}}])),
        &["spec.domain.devices.disks[0].disk.bus"],
    );
    check(disks(json!([{"name": "root", "disk": {"readonly": true}}])), &["spec.domain.devices.disks[0].disk.bus"]);
    // One of a claim that is only to be read is as one that is.
    let of_claim = |target: Value, read_only: bool| {
        let claim = json!({"claimName": "data", "readOnly": read_only});
        let mut more = disks(json!([{"name": "root", "disk": target}]));
        more["volumes"] = json!([{"name": "root", "persistentVolumeClaim": claim}]);
        more
    };
    check(of_claim(json!({"bus": "sata"}), true), &["spec.domain.devices.disks[0].disk.bus"]);
    check(of_claim(json!({}), true), &["spec.domain.devices.disks[0].disk.bus"]);
    check(of_claim(json!({"bus": "sata", "readonly": true}), true), &["spec.domain.devices.disks[0].disk.bus"]);
    check(of_claim(json!({"bus": "sata"}), false), &[]);
    check(of_claim(json!({"bus": "virtio"}), true), &[]);
    for target in [json!({"bus": "sata"}), json!({})] {
        check(
            disks(json!([{"name": "root", "disk": target, "dedicatedIOThread": true}])),
            &["spec.domain.devices.disks[0]"],
        );
    }
    let large = |target: Value| {
        let size = json!({"custom": {"logical": 4096, "physical": 4096}});
        disks(json!([{"name": "root", "disk": target, "blockSize": size}]))
    };
    check(large(json!({"bus": "virtio"})), &[]);
    check(large(json!({})), &["spec.domain.devices.disks[0].blockSize.custom.logical"]);
    let sized = |size: Value| disks(json!([{"name": "root", "blockSize": size}]));
    check(
        sized(json!({"custom": {"logical": 4096, "physical": 512}})),
        &["spec.domain.devices.disks[0].blockSize.custom.logical"],
    );
    check(
        sized(json!({"custom": {"logical": 512, "physical": 1000}})),
        &["spec.domain.devices.disks[0].blockSize.custom.physical"],
    );
    check(
        sized(json!({"custom": {"logical": 512, "physical": 512}, "matchVolume": {}})),
        &["spec.domain.devices.disks[0].blockSize"],
    );
}

/// As a pod of such a spec is refused, and each time that it is tried.
#[test]
fn where_an_instance_runs_is_as_a_pod_can_have_it() {
    let check = |more: Value, wanted: &[(&str, &str)]| {
        let mut faults = Faults::default();
        check_instance(&spec(more.clone()), &KubeVirtConfiguration::default(), &mut faults);
        let told: Vec<(String, String)> =
            faults.into_vec().into_iter().map(|fault| (fault.field, fault.message)).collect();
        let told: Vec<(&str, &str)> = told.iter().map(|(field, message)| (field.as_str(), message.as_str())).collect();
        assert_eq!(told, wanted, "{more}");
    };
    let on_nodes = |operator: &str| {
        let term = json!({"matchExpressions": [{"key": "disk", "operator": operator, "values": ["fast"]}]});
        let required = json!({"nodeSelectorTerms": [term]});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    };
    check(on_nodes("In"), &[]);
    let term = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]";
    let operator = format!("{term}.matchExpressions[0].operator");
    check(on_nodes("Foo"), &[(operator.as_str(), "Invalid value: \"Foo\": not a valid selector operator")]);
    let spread = |skew: i32| {
        let constraint =
            json!({"maxSkew": skew, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"});
        json!({"topologySpreadConstraints": [constraint]})
    };
    check(spread(1), &[]);
    check(spread(0), &[("spec.topologySpreadConstraints[0].maxSkew", "Invalid value: 0: must be greater than zero")]);
    // Upstream leaves these to the pod.
    check(json!({"tolerations": [{"key": "a", "operator": "Foo"}]}), &[]);
}

#[test]
fn lists_have_a_length_that_a_guest_can_have() {
    let volumes = |count: usize| -> Vec<Value> {
        (0..count).map(|nth| json!({"name": format!("v{nth}"), "containerDisk": {"image": "a"}})).collect()
    };
    let interfaces = |count: usize| -> (Vec<Value>, Vec<Value>) {
        let name = |nth: usize| format!("n{nth}");
        let nics = (0..count).map(|nth| json!({"name": name(nth), "bridge": {}})).collect();
        let networks = (0..count).map(|nth| json!({"name": name(nth), "multus": {"networkName": "a"}})).collect();
        (nics, networks)
    };
    let check = |disks: usize, nics: usize, wanted: &[&str]| {
        let (nics, networks) = interfaces(nics);
        let mut spec = spec(json!({"domain": {"devices": {"disks": [], "interfaces": nics}}, "networks": networks,
            "volumes": volumes(disks)}));
        complete_instance(&mut spec, &KubeVirtConfiguration::default(), String::new);
        assert_eq!(spec.domain.devices.disks.len(), disks, "a disk for each volume");
        let mut faults = Faults::default();
        check_instance(&spec, &KubeVirtConfiguration::default(), &mut faults);
        assert_eq!(fields(faults), wanted);
    };
    check(256, 1, &[]);
    check(257, 1, &["spec.domain.devices.disks", "spec.volumes"]);
    check(1, 257, &["spec.domain.devices.interfaces", "spec.networks"]);
}

#[test]
fn cpus_of_their_own() {
    let check = |cpu: Value, resources: Value, wanted: &[&str]| {
        let mut spec = spec(json!({"domain": {"cpu": cpu}}));
        spec.domain.resources = serde_json::from_value(resources.clone()).expect("resources");
        spec.domain.cpu.get_or_insert_default().dedicated_cpu_placement = true;
        let mut faults = Faults::default();
        super::check_instance_spec("spec", &spec, &KubeVirtConfiguration::default(), &mut faults);
        assert_eq!(fields(faults), wanted, "{cpu} {resources}");
    };
    let here = "spec.domain.cpu.dedicatedCpuPlacement";
    let memory = || json!({"requests": {"memory": "64Mi"}});
    let two = || json!({"cores": 2});
    check(two(), memory(), &[]);
    check(two(), json!({}), &["spec.domain.resources.limits.memory"]);
    check(json!({}), memory(), &[here]);
    check(json!({}), json!({"requests": {"memory": "64Mi", "cpu": "2"}}), &[]);
    check(json!({}), json!({"requests": {"memory": "64Mi", "cpu": "1500m"}}), &["spec.domain.resources.requests.cpu"]);
    check(
        json!({}),
        json!({"requests": {"memory": "64Mi"}, "limits": {"cpu": "1500m"}}),
        &["spec.domain.resources.limits.cpu"],
    );
    check(
        two(),
        json!({"requests": {"memory": "64Mi"}, "limits": {"memory": "65Mi"}}),
        &["spec.domain.resources.requests.memory"],
    );
    check(json!({}), json!({"requests": {"memory": "64Mi", "cpu": "2"}, "limits": {"cpu": "3"}}), &[here]);
    check(two(), json!({"requests": {"memory": "64Mi", "cpu": "3"}}), &[here]);
    check(two(), json!({"requests": {"memory": "64Mi", "cpu": "2"}}), &[]);
    check(json!({"cores": 2, "threads": 3}), memory(), &[here]);
    check(json!({"cores": 2, "isolateEmulatorThread": true}), memory(), &[]);
}

#[test]
fn machines() {
    let check = |spec: Value, wanted: &[&str]| {
        let vm: VirtualMachine = carrack_types::json::from_value(json!({"spec": spec})).expect("a machine");
        let mut faults = Faults::default();
        check_machine(&vm, &KubeVirtConfiguration::default(), false, &mut faults);
        assert_eq!(fields(faults), wanted, "{spec}");
    };
    let template = json!({"spec": spec(json!({}))});
    check(json!({"runStrategy": "Always", "template": template}), &[]);
    check(json!({"running": true, "template": template}), &[]);
    check(json!({"running": true, "runStrategy": "Always", "template": template}), &["spec.running"]);
    check(json!({"template": template}), &["spec.running"]);
    check(json!({"runStrategy": "Sometimes", "template": template}), &["spec.runStrategy"]);
    check(json!({"runStrategy": "Always"}), &["spec.template"]);
    check(json!({"runStrategy": "Always", "instancetype": {"name": "u1"}, "template": template}), &[]);
    check(
        json!({"runStrategy": "Always", "instancetype": {}, "preference": {"name": "p", "kind": "X"}, "template": template}),
        &["spec.instancetype", "spec.preference.kind"],
    );
    let inferred = |field: &str, more: Value| {
        let mut matcher = json!({"inferFromVolume": "root"});
        merge(&mut matcher, more);
        json!({"runStrategy": "Always", field: matcher, "template": template})
    };
    check(inferred("instancetype", json!({"inferFromVolumeFailurePolicy": "Reject"})), &[]);
    check(
        inferred("preference", json!({"name": "p", "kind": "VirtualMachinePreference"})),
        &["spec.preference.name", "spec.preference.kind"],
    );
    check(
        inferred("instancetype", json!({"inferFromVolumeFailurePolicy": "Guess"})),
        &["spec.instancetype.inferFromVolumeFailurePolicy"],
    );
    let mut theirs = template.clone();
    theirs["metadata"] = json!({"labels": {"kubevirt.io/nodeName": "n"}});
    check(json!({"runStrategy": "Always", "template": theirs}), &["spec.template.metadata.labels"]);
    // An instance of it is on the pod network, and has a processor.
    let bare = |more: Value| {
        let mut spec = json!({"domain": {"devices": {}, "memory": {"guest": "64Mi"}}});
        merge(&mut spec, more);
        json!({"runStrategy": "Always", "template": {"spec": spec}})
    };
    let probed = || json!({"readinessProbe": {"tcpSocket": {"port": 22}}});
    check(bare(probed()), &[]);
    let mut alone = bare(probed());
    alone["template"]["spec"]["domain"]["devices"]["autoattachPodInterface"] = json!(false);
    check(alone, &["spec.template.spec.readinessProbe.tcpSocket"]);
    check(bare(json!({"domain": {"cpu": {"dedicatedCpuPlacement": true}}})), &[]);
    let mut wrong = template.clone();
    wrong["spec"]["domain"]["devices"]["disks"][0]["name"] = json!("other");
    check(json!({"runStrategy": "Always", "template": wrong}), &["spec.template.spec.domain.devices.disks[0].name"]);
}

#[test]
fn replica_sets() {
    let check = |selector: Value, labels: Value, wanted: &[&str]| {
        let template = json!({"metadata": {"labels": labels}, "spec": spec(json!({}))});
        let set: VirtualMachineInstanceReplicaSet =
            carrack_types::json::from_value(json!({"spec": {"selector": selector, "template": template}}))
                .expect("a set");
        let mut faults = Faults::default();
        check_replica_set(&set, &KubeVirtConfiguration::default(), false, &mut faults);
        assert_eq!(fields(faults), wanted, "{selector}");
    };
    check(json!({"matchLabels": {"a": "b"}}), json!({"a": "b", "c": "d"}), &[]);
    check(json!({"matchLabels": {"a": "b"}}), json!({"a": "c"}), &["spec.selector"]);
    check(
        json!({"matchLabels": {"a": "b"}}),
        json!({"a": "b", "kubevirt.io/nodeName": "n"}),
        &["spec.template.metadata.labels"],
    );
    let mut faults = Faults::default();
    check_replica_set(&Default::default(), &KubeVirtConfiguration::default(), false, &mut faults);
    assert_eq!(fields(faults), ["spec.template"]);
}

#[test]
fn what_is_left_out_is_filled_in_and_then_stands() {
    let mut bare: VirtualMachineInstanceSpec = serde_json::from_value(json!({
        "domain": {"devices": {}, "resources": {"requests": {"memory": "64Mi", "cpu": "1500m"}}},
        "volumes": [{"name": "root", "containerDisk": {"image": "demo:1"}}]}))
    .expect("a spec");
    let settings = KubeVirtConfiguration::default();
    complete_instance(&mut bare, &settings, || "a-uuid".to_owned());
    let value = serde_json::to_value(&bare).expect("JSON");
    let at = |path: &str| value.pointer(path).cloned().unwrap_or(Value::Null);
    assert_eq!(at("/domain/machine/type"), "q35");
    assert_eq!(at("/domain/firmware/uuid"), "a-uuid");
    assert_eq!((at("/domain/cpu/sockets"), at("/domain/cpu/cores")), (json!(2), json!(1)));
    assert_eq!(at("/domain/memory/guest"), "64Mi");
    assert_eq!(at("/domain/devices/disks/0"), json!({"name": "root", "disk": {"bus": "sata"}}));
    assert_eq!(at("/volumes/0/containerDisk/imagePullPolicy"), "IfNotPresent");
    assert_eq!(at("/domain/devices/interfaces/0/masquerade"), json!({}));
    assert_eq!(at("/networks/0/pod"), json!({}));
    let mut faults = Faults::default();
    check_instance(&bare, &settings, &mut faults);
    assert_eq!(fields(faults), [""; 0]);
    let before = bare.clone();
    complete_instance(&mut bare, &settings, || "another".to_owned());
    assert_eq!(bare, before);

    let mut vm: VirtualMachine =
        carrack_types::json::from_value(json!({"spec": {"template": {"spec": {}}}})).expect("a machine");
    complete_machine(&mut vm, &settings);
    assert_eq!(vm.spec.template.expect("there").spec.architecture.as_deref(), Some("amd64"));
}

#[test]
fn what_is_empty_is_filled_in() {
    let mut blank: VirtualMachineInstanceSpec = serde_json::from_value(json!({
        "architecture": "",
        "domain": {
            "cpu": {"cores": 0, "sockets": 0, "threads": 0, "model": "", "features": [{"name": "avx", "policy": ""}]},
            "devices": {"disks": [{"name": "root", "disk": {"bus": ""}}, {"name": "seed", "cdrom": {"bus": ""}}],
                "inputs": [{"name": "i", "type": ""}],
                "interfaces": [{"name": "default", "masquerade": {}, "model": ""}], "watchdog": {"name": "w"}},
            "firmware": {"uuid": ""}, "machine": {"type": ""},
            "resources": {"requests": {"memory": "64Mi"}, "limits": {"cpu": "2"}}},
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "containerDisk": {"image": "demo:1"}},
            {"name": "seed", "cloudInitNoCloud": {"userData": "x"}}]}))
    .expect("a spec");
    let mut vm: VirtualMachine =
        carrack_types::json::from_value(json!({"spec": {"template": {"spec": blank.clone()}}})).expect("a machine");
    let settings = KubeVirtConfiguration::default();
    complete_instance(&mut blank, &settings, || "a-uuid".to_owned());
    let value = serde_json::to_value(&blank).expect("JSON");
    for (path, wanted) in [
        ("/architecture", json!("amd64")),
        ("/domain/cpu/cores", json!(1)),
        ("/domain/cpu/sockets", json!(2)),
        ("/domain/resources/requests/cpu", json!("2")),
        ("/domain/cpu/model", json!("host-model")),
        ("/domain/cpu/features/0/policy", json!("require")),
        ("/domain/devices/disks/0/disk/bus", json!("sata")),
        ("/domain/devices/disks/1/cdrom", json!({"bus": "sata", "readonly": true, "tray": "closed"})),
        ("/domain/devices/inputs/0", json!({"name": "i", "type": "tablet", "bus": "usb"})),
        ("/domain/devices/interfaces/0/model", json!("virtio")),
        ("/domain/devices/watchdog/i6300esb/action", json!("reset")),
        ("/domain/firmware/uuid", json!("a-uuid")),
        ("/domain/machine/type", json!("q35")),
    ] {
        assert_eq!(value.pointer(path), Some(&wanted), "{path}");
    }
    complete_machine(&mut vm, &settings);
    let template = vm.spec.template.expect("there").spec;
    assert_eq!(template.architecture.as_deref(), Some("amd64"));
    assert_eq!(template.domain.machine.expect("chosen").r#type.as_deref(), Some("q35"));
}

#[test]
fn a_video_device_of_no_kind_is_the_one_that_a_guest_has_anyway() {
    let check = |video: Value, wanted: &Value| {
        let mut spec: VirtualMachineInstanceSpec =
            serde_json::from_value(json!({"domain": {"devices": {"video": video}, "memory": {"guest": "64Mi"}}}))
                .expect("a spec");
        complete_instance(&mut spec, &KubeVirtConfiguration::default(), || "a-uuid".to_owned());
        assert_eq!(json!(spec).pointer("/domain/devices/video").unwrap_or(&Value::Null), wanted);
        let mut faults = Faults::default();
        check_instance(&spec, &KubeVirtConfiguration::default(), &mut faults);
        assert_eq!(fields(faults), [""; 0]);
    };
    check(json!({}), &Value::Null);
    check(json!({"type": ""}), &Value::Null);
    check(json!({"type": "virtio"}), &json!({"type": "virtio"}));
}

#[test]
fn amounts_of_a_guest_follow_from_what_is_asked_for() {
    let check = |domain: Value, path: &str, wanted: Value| {
        let mut spec: VirtualMachineInstanceSpec =
            serde_json::from_value(json!({"domain": domain.clone()})).expect("a spec");
        complete_instance(&mut spec, &KubeVirtConfiguration::default(), || "a-uuid".to_owned());
        assert_eq!(json!(spec).pointer(path).cloned().unwrap_or_default(), wanted, "{domain}");
    };
    let guest = "/domain/memory/guest";
    let of = |requests: Value, limits: Value| json!({"resources": {"requests": requests, "limits": limits}});
    check(of(json!({"memory": "1Gi"}), json!({"memory": "2Gi"})), guest, json!("1Gi"));
    check(of(json!({"memory": "0"}), json!({"memory": "2Gi"})), guest, json!("2Gi"));
    check(json!({"memory": {"hugepages": {"pageSize": "2Mi"}}}), guest, json!("2Mi"));
    check(json!({"memory": {"hugepages": {"pageSize": "2Mi"}, "guest": "64Mi"}}), guest, json!("64Mi"));
    check(json!({}), guest, Value::Null);
    let cpu = "/domain/resources/requests/cpu";
    check(of(json!({}), json!({"cpu": "1200m"})), cpu, json!("1200m"));
    check(of(json!({"cpu": "1"}), json!({"cpu": "2"})), cpu, json!("1"));
    check(of(json!({}), json!({"cpu": "1200m"})), "/domain/cpu/sockets", json!(2));
    check(json!({"cpu": {"cores": 3}}), "/domain/cpu/sockets", json!(1));
}

/// Zeros before numbers go, and what is no address stays what it is.
#[test]
fn addresses_are_written_plainly() {
    let check = |address: &str, wanted: &str| {
        let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({
            "domain": {"devices": {"interfaces": [
                {"name": "default", "masquerade": {}, "dhcpOptions": {"ntpServers": [address]}}]}},
            "networks": [{"name": "default", "pod": {"vmNetworkCIDR": format!("{address}/24")}}],
            "dnsConfig": {"nameservers": [address]}}))
        .expect("a spec");
        complete_instance(&mut spec, &KubeVirtConfiguration::default(), || "a-uuid".to_owned());
        let spec = json!(spec);
        let at = |path: &str| spec.pointer(path).cloned().unwrap_or_default();
        assert_eq!(at("/domain/devices/interfaces/0/dhcpOptions/ntpServers/0"), wanted);
        assert_eq!(at("/networks/0/pod/vmNetworkCIDR"), format!("{wanted}/24"));
        assert_eq!(at("/dnsConfig/nameservers/0"), wanted);
    };
    check("10.10.010.0", "10.10.10.0");
    check("0127.0.0.3", "127.0.0.3");
    check("10.0.2.0", "10.0.2.0");
    check("10.0.0.256", "10.0.0.256");
    check("10..0.1", "10..0.1");
    check("+1.0.0.1", "+1.0.0.1");
}

#[test]
fn images_are_pulled_by_their_tags() {
    let check = |image: &str, wanted: &str| {
        let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({
            "domain": {}, "volumes": [{"name": "root", "containerDisk": {"image": image}}]}))
        .expect("a spec");
        complete_instance(&mut spec, &KubeVirtConfiguration::default(), || "a-uuid".to_owned());
        let disk = spec.volumes[0].container_disk.as_ref();
        assert_eq!(disk.and_then(|disk| disk.image_pull_policy.as_deref()), Some(wanted), "{image}");
    };
    check("demo", "Always");
    check("demo:latest", "Always");
    check("demo:1", "IfNotPresent");
    check("demo@sha256:00", "IfNotPresent");
    check("registry:5000/demo", "IfNotPresent");
}

#[test]
fn the_clusters_settings_are_the_defaults() {
    let settings: KubeVirtConfiguration = serde_json::from_value(json!({
        "machineType": "pc-q35-7.2", "cpuModel": "Haswell", "evictionStrategy": "None",
        "network": {"defaultNetworkInterface": "bridge", "permitBridgeInterfaceOnPodNetwork": false}}))
    .expect("settings");
    let mut bare: VirtualMachineInstanceSpec =
        serde_json::from_value(json!({"domain": {"devices": {}, "memory": {"guest": "64Mi"}}})).expect("a spec");
    complete_instance(&mut bare, &settings, || "a-uuid".to_owned());
    let value = serde_json::to_value(&bare).expect("JSON");
    assert_eq!(value["domain"]["machine"]["type"], "pc-q35-7.2");
    assert_eq!(value["domain"]["cpu"]["model"], "Haswell");
    assert_eq!(value["evictionStrategy"], "None");
    assert_eq!(value["domain"]["devices"]["interfaces"][0]["bridge"], json!({}));
    let mut faults = Faults::default();
    check_instance(&bare, &settings, &mut faults);
    assert_eq!(fields(faults), ["spec.domain.devices.interfaces[0].name"]);
    let mut vm: VirtualMachine =
        carrack_types::json::from_value(json!({"spec": {"template": {"spec": {}}}})).expect("a machine");
    complete_machine(&mut vm, &settings);
    let machine = vm.spec.template.expect("there").spec.domain.machine.expect("chosen");
    assert_eq!(machine.r#type.as_deref(), Some("pc-q35-7.2"));
}
