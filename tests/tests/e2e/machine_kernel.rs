//! A machine whose kernel comes from an image, and what else its guest shows in the same boot: a disk over a claim that stays as it
//! is, ports that are passed on to it and no others, a password, a probe that its agent answers, and memory in huge pages.
#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::fs;

use carrack_e2e::{Kubectl, Output, Sandbox, assert_contains, eventually};
use carrack_images::guest::{KERNEL_ARGS, boot_files};
use carrack_images::layer::{Content, Layer};
use carrack_images::oci::{self, ImageConfig};

/// The image with kernel and initramfs, and nothing else.
const IMAGE: &str = "localhost/carrack/e2e-kernel:1";
const MEMORY_MIB: u64 = 192;
/// What tells this boot's command line from others.
const MARK: &str = "carrack.kernel=from-an-image";
/// Ports of the guest that are passed on: its SSH server, and one at which it waits to be told that its agent is to end.
const SSH: u16 = 22;
const SWITCH: u16 = 7777;
/// One that is not.
const UNLISTED: u16 = 2222;
/// With what a line of names and passwords is told apart by.
const PASSWORD: &str = "a new: word";
/// What the claim's image begins with.
const BEFORE: &str = "as the claim has it";

/// Gives the cluster the image. Returns the kernel's release.
fn import_kernel(sandbox: &Sandbox) -> String {
    let (kernel, initrd) = boot_files().expect("the guest's packages");
    let name = kernel.file_name().expect("a name").to_string_lossy().into_owned();
    let mut layer = Layer::new();
    layer.file("/boot/vmlinuz", Content::Host(kernel), 0o444, 0);
    layer.file("/boot/initrd", Content::Bytes(initrd), 0o444, 0);
    let blob = layer.write(&sandbox.home().join("kernel.layer")).expect("a layer");
    let tar = sandbox.home().join("kernel.tar");
    oci::write(&tar, IMAGE, &ImageConfig::default(), &[blob]).expect("an image");
    sandbox.carrack(&["image", "import", &tar.display().to_string()]).done();
    name.trim_start_matches("vmlinuz-").to_owned()
}

/// The machine: it has no disk to boot from. `pages` is what is said of its memory beside its size.
fn machine(pages: &str) -> String {
    format!(
        r##"
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: direct}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 2
      accessCredentials:
        - userPassword:
            source: {{secret: {{secretName: words}}}}
            propagationMethod: {{qemuGuestAgent: {{}}}}
      readinessProbe: {{guestAgentPing: {{}}, periodSeconds: 2, timeoutSeconds: 5, failureThreshold: 2}}
      domain:
        memory: {{guest: {MEMORY_MIB}Mi{pages}}}
        firmware:
          kernelBoot:
            kernelArgs: "{KERNEL_ARGS} {MARK}"
            container:
              image: "{IMAGE}"
              imagePullPolicy: Never
              kernelPath: /boot/vmlinuz
              initrdPath: /boot/initrd
        devices:
          autoattachGraphicsDevice: false
          disks:
            - {{name: layer, disk: {{bus: virtio}}, serial: LAYER}}
            - {{name: cloud, disk: {{bus: virtio}}}}
          interfaces:
            - {{name: default, masquerade: {{}}, ports: [{{port: {SSH}}}, {{port: {SWITCH}}}]}}
      networks:
        - {{name: default, pod: {{}}}}
      volumes:
        - {{name: layer, ephemeral: {{persistentVolumeClaim: {{claimName: base}}}}}}
        - {{name: cloud, cloudInitNoCloud: {{userData: "#cloud-config\nuser: kim\n"}}}}
"##
    )
}

/// How many huge pages of 2 MiB there are, and how many of them are nobody's.
fn huge_pages() -> (u64, u64) {
    let read = |file: &str| {
        let text = fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{file}")).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    (read("nr_hugepages"), read("free_hugepages"))
}

/// Machines for whose memory there are no huge pages say so, and do not start.
fn too_much_is_refused(kubectl: &Kubectl<'_>) {
    let asking = |memory_mib: u64| {
        format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: huge}}\nspec:\n  runStrategy: Always\n  \
             template:\n    spec:\n      domain:\n        memory: {{guest: {memory_mib}Mi, hugepages: {{pageSize: 2Mi}}}}\n        \
             devices: {{autoattachGraphicsDevice: false, interfaces: []}}\n"
        )
    };
    let odd = kubectl.run(&["apply", "-f", "-"]).input(asking(65)).fails();
    assert_contains(&odd, &["is not a multiple of the page size"]);
    kubectl.apply(&asking(huge_pages().0 * 2 + 64));
    eventually("what there is too little of is told", 60, || {
        let conditions = kubectl.field("vmi", "huge", "/status/conditions").to_string();
        let status = kubectl.field("vm", "huge", "/status/printableStatus");
        let is_told = conditions.contains("Insufficient hugepages-2Mi") && status == "ErrorUnschedulable";
        if is_told { Ok(()) } else { Err(format!("{status}: {conditions}")) }
    });
    kubectl.ok(&["delete", "vm", "huge", "--timeout=60s"]);
}

/// What a server says first to who comes from the node, or from where the program `from` leads.
fn greeting(sandbox: &Sandbox, from: &[&str], address: &str, port: u16) -> Output {
    let line = format!("exec 3<>/dev/tcp/{address}/{port}; head -c 4 <&3");
    let all = [from, ["timeout", "3", "bash", "-c", &line].as_slice()].concat();
    sandbox.program(all[0], &all[1..]).output()
}

/// A port that is listed leads to the guest, and another does not, though the guest listens there.
fn only_listed_ports_are_passed_on(sandbox: &Sandbox, kubectl: &Kubectl<'_>, address: &str, pid: i32) {
    let listens =
        format!("netstat -ltn | grep -q ':{UNLISTED} ' || dropbear -R -w -s -p {UNLISTED} -P /run/unlisted.pid");
    kubectl.holds_in_guest("direct", &listens);
    let greets = |from: &[&str], address: &str, port: u16| {
        eventually(&format!("{address}:{port} greets"), 60, || {
            let said = greeting(sandbox, from, address, port);
            if said.stdout == "SSH-" { Ok(()) } else { Err(said.to_string()) }
        });
    };
    greets(&[], address, SSH);
    // It is reached there by who is in its pod.
    greets(&["nsenter", &format!("--net=/proc/{pid}/ns/net"), "--"], "10.0.2.2", UNLISTED);
    let refused = greeting(sandbox, &[], address, UNLISTED);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused}");
}

#[test]
fn a_kernel_from_an_image_and_what_its_guest_shows() {
    let sandbox = Sandbox::up(&[]);
    let kubectl = sandbox.kubectl();
    let release = import_kernel(&sandbox);
    let directory = sandbox.home().join("base");
    let image = directory.join("disk.img");
    let mut content = BEFORE.as_bytes().to_vec();
    content.resize(16 << 20, 0);
    fs::create_dir(&directory).and_then(|()| fs::write(&image, &content)).expect("written");
    kubectl.claim("base", &directory);
    kubectl.ok(&["create", "secret", "generic", "words", &format!("--from-literal=kim={PASSWORD}")]);
    let is_huge = huge_pages().1 * 2 >= MEMORY_MIB;
    if !is_huge {
        eprintln!("skipped: a guest's memory in huge pages, of which the machine has too few");
    }
    kubectl.apply(&machine(if is_huge { ", hugepages: {pageSize: 2Mi}" } else { "" }));
    too_much_is_refused(&kubectl);
    kubectl.wait_agent("direct");

    kubectl.holds_in_guest("direct", &format!("grep -q {MARK} /proc/cmdline && [ $(uname -r) = {release} ]"));
    let guests = sandbox.guests();
    assert_eq!(guests.len(), 1, "{guests:?}");
    let pid = guests[0].0;
    if is_huge {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("HugetlbPages:")).unwrap_or_default();
        assert_eq!(line.trim(), format!("{} kB", MEMORY_MIB << 10), "{status}");
    }

    // What the guest writes is above the claim.
    let layer = "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = LAYER ] && dev=/dev/${d##*/}; done";
    kubectl.holds_in_guest("direct", &format!("{layer}; head -c {} $dev | grep -q '{BEFORE}'", BEFORE.len()));
    let over = "echo written over it | dd of=$dev conv=fsync && echo 3 >/proc/sys/vm/drop_caches";
    kubectl.holds_in_guest("direct", &format!("{layer}; {over} && head -c 15 $dev | grep -q 'written over it'"));
    assert!(fs::read(&image).expect("the image") == content, "the claim is written to");

    // By the salt that the hash begins with, the password gives the hash.
    kubectl.ok(&["wait", "--for=condition=AccessCredentialsSynchronized", "vmi/direct", "--timeout=60s"]);
    let is_set = format!(
        "hash=$(awk -F : '$1 == \"kim\" {{ print $2 }}' /etc/shadow); salt=${{hash#\\$5\\$}}; \
         [ \"$(echo '{PASSWORD}' | mkpasswd -m sha256 -P 0 -S \"${{salt%%\\$*}}\")\" = \"$hash\" ]"
    );
    kubectl.holds_in_guest("direct", &is_set);

    let address = kubectl.field("vmi", "direct", "/status/interfaces/0/ipAddress");
    let address = address.as_str().expect("an address");
    only_listed_ports_are_passed_on(&sandbox, &kubectl, address, pid);

    // It is ready for as long as its agent answers. Who ends that comes by the network: an agent tells nobody of its own end.
    kubectl.ok(&["wait", "--for=condition=Ready", "vmi/direct", "vm/direct", "--timeout=60s"]);
    let waits = format!("netstat -ltn | grep -q ':{SWITCH} ' || (nc -l -p {SWITCH}; killall qemu-ga)");
    let waits = format!("{{ {waits}; }} </dev/null >/dev/null 2>&1 &");
    kubectl.holds_in_guest("direct", &waits);
    eventually("it is not ready without its agent", 120, || {
        let switched = greeting(&sandbox, &[], address, SWITCH);
        let conditions = kubectl.field("vmi", "direct", "/status/conditions");
        let mut all = conditions.as_array().into_iter().flatten();
        let ready = all.find(|condition| condition["type"] == "Ready");
        let is_ready = ready.is_none_or(|condition| condition["status"] != "False");
        if is_ready { Err(format!("{conditions}\n{switched}")) } else { Ok(()) }
    });

    kubectl.ok(&["delete", "vm", "direct", "--timeout=90s"]);
    assert!(fs::read(&image).expect("the image") == content, "the claim was written to");
    let files = fs::read_dir(&directory).expect("the claim").count();
    assert_eq!(files, 1, "something was left beside the claim's image");
}
