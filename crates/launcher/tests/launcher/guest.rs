//! The demo guest for real: from its containerDisk's disk to a login over the serial console and back down.

use crate::pod::{Console, Pod, dead, demo};
use carrack_launcher::proto::Call;
use carrack_launcher::spec::{DhcpSpec, NicModel, NicSpec};
use carrack_launcher::{Domain, EndReason, Phase};
use std::process::Command;

const USER_DATA: &str = "#cloud-config
hostname: kim-vm
user: kim
password: 'se cret#1'
chpasswd:
  expire: False
  list: |
    root:carrack
ssh_pwauth: True
ssh_authorized_keys:
";

/// A network namespace with a bridge and a tap device, as virt-handler prepares a pod's.
struct Network(String);

impl Network {
    fn new() -> Self {
        let name = format!("carrack-launcher-test-{}", std::process::id());
        let this = Self(name.clone());
        // One that is there is of a test that was killed, whose process id has come again.
        let _left = Command::new("ip").args(["netns", "delete", &name]).output();
        run(&["netns", "add", &name]);
        let commands: [&[&str]; 7] = [
            &["link", "set", "lo", "up"],
            &["link", "add", "k6t-eth0", "type", "bridge"],
            &["addr", "add", "10.0.2.1/24", "dev", "k6t-eth0"],
            &["link", "set", "k6t-eth0", "up"],
            &["tuntap", "add", "tap0", "mode", "tap", "multi_queue"],
            &["link", "set", "tap0", "master", "k6t-eth0"],
            &["link", "set", "tap0", "up"],
        ];
        for command in commands {
            run(&[&["-n", &name], command].concat());
        }
        this
    }
}

fn run(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().expect("ip runs").success(), "ip {arguments:?}");
}

impl Drop for Network {
    fn drop(&mut self) {
        run(&["netns", "delete", &self.0]);
    }
}

fn nic() -> NicSpec {
    let lease = DhcpSpec {
        interface: "k6t-eth0".to_owned(),
        server: [10, 0, 2, 1].into(),
        address: [10, 0, 2, 2].into(),
        prefix_bits: 24,
        router: Some([10, 0, 2, 1].into()),
        dns: vec![[10, 96, 0, 10].into()],
        search: vec!["default.svc.cluster.local".to_owned()],
        mtu: Some(1400),
        hostname: Some("demo".to_owned()),
        options: Vec::new(),
    };
    NicSpec {
        name: "default".to_owned(),
        tap: "tap0".to_owned(),
        mac: "52:54:00:12:34:56".to_owned(),
        model: NicModel::Virtio,
        vhost: false,
        queues: Some(2),
        mtu: Some(1400),
        boot_order: None,
        acpi_index: Some(3),
        dhcp: Some(lease),
    }
}

fn reason(domain: &Domain) -> Option<EndReason> {
    domain.end.as_ref().map(|end| end.reason)
}

#[tokio::test]
async fn from_boot_to_power_off() {
    let network = Network::new();
    let mut pod = Pod::start_in(Some(network.0.clone()));
    let key = pod.dir.path().join("key").display().to_string();
    let made = Command::new("dropbearkey").args(["-t", "ed25519", "-f", &key]).output().expect("dropbearkey runs");
    let made = String::from_utf8_lossy(&made.stdout).into_owned();
    let public_key = made.lines().find(|line| line.starts_with("ssh-ed25519 ")).expect("a public key");
    let mut spec = demo(pod.dir.path(), &format!("{USER_DATA}  - {public_key}\n"));
    spec.nics = vec![nic()];
    spec.cpu.cores = 2;
    pod.sync(&spec).await.expect("started");
    let mut console = Console::open(&pod.layout).await;
    console.expect("Carrack demo guest \"kim-vm\"").await;
    console.log_in("kim", "se cret#1").await;
    console.type_line("echo name=$(hostname)").await;
    console.expect("name=kim-vm\r\n").await;
    console.type_line("echo queues=$(ls -d /sys/class/net/eth0/queues/rx-* | wc -l)").await;
    console.expect("queues=2\r\n").await;
    console.type_line("readlink -f /sys/class/net/eth0/device").await;
    console.expect("/0000:01:00.0/").await;

    // The lease arrives in the background: ask until it is there.
    console.type_line("until ifconfig eth0 | grep -q 'inet addr'; do sleep 0.1; done; ifconfig eth0; route -n").await;
    for expected in ["inet addr:10.0.2.2", "Mask:255.255.255.0", "MTU:1400", "10.0.2.1", "ready> "] {
        console.expect(expected).await;
    }
    console.type_line("cat /etc/resolv.conf").await;
    console.expect("search default.svc.cluster.local\r\nnameserver 10.96.0.10\r\n").await;
    assert!(pod.run_in_namespace(&["busybox", "ping", "-c", "1", "-W", "10", "10.0.2.2"]));

    // Over the network with the key: no password is asked for.
    let login = ["dbclient", "-y", "-y", "-i", &key, "kim@10.0.2.2", "test $(hostname) = kim-vm"];
    assert!(pod.run_in_namespace(&login));

    // The monitor dies and the guest does not notice; the next one serves its lease.
    dead(pod.kill_monitor()).await;
    console.type_line("echo still=$((40 + 2))").await;
    console.expect("still=42").await;
    assert!(pod.exec(&["monitor", "--detach"]).success());
    console.type_line("exit").await;
    console.expect("login: ").await;
    console.type_line("root").await;
    console.expect("Password: ").await;
    console.type_line("carrack").await;
    console.expect("# ").await;
    let lease_again = "udhcpc -n -q -i eth0 -t 5 -T 1 -s /bin/true 2>&1 | tail -1";
    console.type_line(lease_again).await;
    console.expect("lease of 10.0.2.2 obtained").await;

    // The power button, as a preStop hook presses it.
    assert!(pod.exec(&["shutdown"]).success());
    assert!(pod.ended().await.success());
    let last = pod.written();
    assert_eq!((last.phase, reason(&last)), (Phase::Ended, Some(EndReason::GuestShutdown)));
    let log = std::fs::read_to_string(pod.layout.serial_log()).expect("the console's log");
    assert!(log.contains("kim-vm login:"), "{log}");
}

#[tokio::test]
async fn restarts_and_an_end_that_nobody_saw() {
    let mut pod = Pod::start();
    let spec = demo(pod.dir.path(), "#cloud-config\nusers:\n  - name: root\n    plain_text_passwd: carrack\n");
    pod.sync(&spec).await.expect("started");
    let mut console = Console::open(&pod.layout).await;
    // The name comes from meta-data when user-data has none.
    console.expect("from-meta-data login: ").await;
    pod.call(Call::SoftReboot).await.expect("pressed");
    let restarted = |domain: &Domain| {
        assert_ne!(domain.phase, Phase::Paused, "nobody has paused it");
        domain.resets >= 1
    };
    let after = pod.until(restarted).await;
    assert!(!after.restart_requested);
    console.expect("from-meta-data login: ").await;
    console.type_line("root").await;
    console.expect("Password: ").await;
    console.type_line("carrack").await;
    console.expect("# ").await;
    console.type_line("reboot").await;
    console.expect("Restarting system").await;
    pod.until(|domain| domain.resets >= 2).await;
    console.expect("from-meta-data login: ").await;

    // It powers itself off while there is no monitor; the next one finds out.
    console.type_line("root").await;
    console.expect("Password: ").await;
    console.type_line("carrack").await;
    console.expect("# ").await;
    pod.kill_monitor();
    console.type_line("poweroff -f").await;
    console.expect("Power down").await;
    // It ends QEMU, and with QEMU everything in the container, the command included.
    pod.exec(&["monitor", "--detach"]);
    assert!(pod.ended().await.success());
    assert_eq!(reason(&pod.written()), Some(EndReason::GuestShutdown));
}
