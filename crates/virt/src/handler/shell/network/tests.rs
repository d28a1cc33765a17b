//! The network of a pod, made in a throwaway namespace with a second one as the outside world.

use std::process::Command;

use super::*;

const PORT_MAC: &str = "02:00:00:00:00:77";
const GUEST_MAC: &str = "02:00:00:00:00:99";

/// Two namespaces joined by a link; the first has `eth0`. They are removed at the end.
struct World {
    pod: String,
    outside: String,
}

impl World {
    fn new(label: &str) -> Self {
        let pod = format!("virt-{label}-{}", std::process::id());
        let world = Self { outside: format!("{pod}-out"), pod };
        for name in [&world.pod, &world.outside] {
            // One that is there is of a test that was killed, whose process id has come again.
            let _left = Command::new("ip").args(["netns", "delete", name]).output();
            run("ip", &["netns", "add", name]);
        }
        let (pod, outside) = (world.pod.as_str(), world.outside.as_str());
        run(
            "ip",
            &[
                "-n", pod, "link", "add", "eth0", "mtu", "1400", "type", "veth", "peer", "name", "peer", "netns",
                outside,
            ],
        );
        run("ip", &["-n", pod, "address", "add", "192.0.2.2/24", "dev", "eth0"]);
        run("ip", &["-n", outside, "address", "add", "192.0.2.1/24", "dev", "peer"]);
        for (ns, link) in [(pod, "lo"), (pod, "eth0"), (outside, "lo"), (outside, "peer")] {
            run("ip", &["-n", ns, "link", "set", "dev", link, "up"]);
        }
        world
    }

    fn inside(&self, arguments: &[&str]) -> String {
        let mut all = vec!["netns", "exec", &self.pod];
        all.extend(arguments);
        run("ip", &all)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for name in [&self.pod, &self.outside] {
            run("ip", &["netns", "delete", name]);
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?} (as root?): {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn network(ports: &[(&str, u16)]) -> PodLink {
    link(Binding::Masquerade(Masquerade {
        guest: Ipv4Addr::new(10, 0, 2, 2),
        gateway: Ipv4Addr::new(10, 0, 2, 1),
        prefix_bits: 24,
        ports: ports.iter().map(|(protocol, port)| ((*protocol).to_owned(), *port)).collect(),
    }))
}

fn link(binding: Binding) -> PodLink {
    let [pod_interface, bridge, tap] = ["eth0", "k6t-eth0", "tap0"].map(str::to_owned);
    PodLink { pod_interface, bridge, tap, multi_queue: false, binding }
}

fn bridged() -> Binding {
    Binding::Bridge { port_mac: PORT_MAC.to_owned() }
}

fn of_mtu(mtu: u16) -> LinkFacts {
    LinkFacts { mtu: Some(mtu), ..LinkFacts::default() }
}

#[tokio::test]
async fn links_and_rules_are_made_once() {
    let world = World::new("once");
    let path = format!("/run/netns/{}", world.pod);
    assert_eq!(in_namespace(&path, &network(&[])).await, Ok(of_mtu(1400)));
    let state = || {
        let links = world.inside(&["ip", "-o", "-d", "link", "show"]);
        let names: Vec<String> = links.lines().filter_map(|line| Some(line.split(": ").nth(1)?.to_owned())).collect();
        (names, world.inside(&["ip", "-o", "-4", "address"]), world.inside(&["nft", "list", "ruleset"]))
    };
    let first = state();
    assert!(first.0.iter().any(|name| name == "k6t-eth0") && first.0.iter().any(|name| name == "tap0"), "{first:?}");
    assert!(first.1.contains("10.0.2.1/24"), "{first:?}");
    assert!(first.2.contains("dnat to 10.0.2.2") && first.2.contains("masquerade"), "{first:?}");
    assert_eq!(in_namespace(&path, &network(&[])).await, Ok(of_mtu(1400)));
    assert_eq!(state(), first);
    // Other ports take the place of the rules, and add none.
    in_namespace(&path, &network(&[("tcp", 22), ("udp", 53)])).await.expect("prepared");
    let rules = state().2;
    assert!(rules.contains("tcp dport 22 dnat") && rules.contains("udp dport 53 dnat"), "{rules}");
    assert_eq!(rules.matches("dnat to").count(), 2, "{rules}");
}

#[tokio::test]
async fn packets_go_both_ways() {
    let world = World::new("flow");
    let path = format!("/run/netns/{}", world.pod);
    in_namespace(&path, &network(&[])).await.expect("prepared");
    // A third namespace on the bridge stands for the guest.
    let guest = format!("{}-guest", world.pod);
    run("ip", &["netns", "add", &guest]);
    let play = || {
        run("ip", &["-n", &world.pod, "link", "add", "g0", "type", "veth", "peer", "name", "ens", "netns", &guest]);
        run("ip", &["-n", &world.pod, "link", "set", "dev", "g0", "master", "k6t-eth0", "up"]);
        run("ip", &["-n", &guest, "address", "add", "10.0.2.2/24", "dev", "ens"]);
        run("ip", &["-n", &guest, "link", "set", "dev", "ens", "up"]);
        run("ip", &["-n", &guest, "route", "add", "default", "via", "10.0.2.1"]);
        // Out: to the world, which knows no route to the guest's network.
        let out = try_tcp(&world.outside, "192.0.2.1:7000", &guest);
        // In: to the pod's address.
        let into = try_tcp_to(&guest, "10.0.2.2:7001", &world.outside, "192.0.2.2:7001");
        (out, into)
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
    run("ip", &["netns", "delete", &guest]);
    assert_eq!(result.expect("no panic"), (true, true));
}

fn try_tcp(server_ns: &str, address: &str, client_ns: &str) -> bool {
    try_tcp_to(server_ns, address, client_ns, address)
}

/// Whether a client in one namespace reaches a server in another.
fn try_tcp_to(server_ns: &str, listen: &str, client_ns: &str, connect: &str) -> bool {
    use std::net::{TcpListener, TcpStream};
    let within = |ns: &str| {
        let file = std::fs::File::open(format!("/run/netns/{ns}")).expect("the namespace");
        move || {
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(kind)).expect("entered");
        }
    };
    let (enter, listen) = (within(server_ns), listen.to_owned());
    let listener = std::thread::spawn(move || {
        enter();
        TcpListener::bind(listen).expect("listens")
    })
    .join()
    .expect("a listener");
    let (enter, connect) = (within(client_ns), connect.parse().expect("an address"));
    let client = std::thread::spawn(move || {
        enter();
        TcpStream::connect_timeout(&connect, std::time::Duration::from_secs(5)).is_ok()
    });
    let reached = client.join().expect("a client");
    drop(listener);
    reached
}

#[tokio::test]
async fn a_bridged_guest_takes_the_pods_place() {
    let world = World::new("bridge");
    let path = format!("/run/netns/{}", world.pod);
    // As its plugin made it, which was asked for the guest's hardware address.
    world.inside(&["ip", "link", "set", "dev", "eth0", "address", GUEST_MAC]);
    world.inside(&["ip", "route", "add", "default", "via", "192.0.2.1"]);
    let wanted = LinkFacts {
        mtu: Some(1400),
        address: Some((Ipv4Addr::new(192, 0, 2, 2), 24)),
        router: Some(Ipv4Addr::new(192, 0, 2, 1)),
    };
    for _ in 0..2 {
        assert_eq!(in_namespace(&path, &link(bridged())).await, Ok(wanted.clone()));
    }
    // A handler that died after the pod's interface was renamed finds the way on.
    world.inside(&["ip", "link", "delete", "tap0"]);
    world.inside(&["ip", "link", "delete", "eth0"]);
    assert_eq!(in_namespace(&path, &link(bridged())).await, Ok(wanted));
    let links = world.inside(&["ip", "-o", "link", "show", "master", "k6t-eth0"]);
    assert!(links.contains("eth0-nic") && links.contains("tap0"), "{links}");
    let guest = format!("{}-guest", world.pod);
    run("ip", &["netns", "add", &guest]);
    let play = || {
        run("ip", &["-n", &world.pod, "link", "add", "g0", "type", "veth", "peer", "name", "ens", "netns", &guest]);
        run("ip", &["-n", &world.pod, "link", "set", "dev", "g0", "master", "k6t-eth0", "up"]);
        run("ip", &["-n", &guest, "link", "set", "dev", "ens", "address", GUEST_MAC]);
        run("ip", &["-n", &guest, "address", "add", "192.0.2.2/24", "dev", "ens"]);
        run("ip", &["-n", &guest, "link", "set", "dev", "ens", "up"]);
        let out = try_tcp(&world.outside, "192.0.2.1:7000", &guest);
        (out, try_tcp(&guest, "192.0.2.2:7001", &world.outside))
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
    run("ip", &["netns", "delete", &guest]);
    assert_eq!(result.expect("no panic"), (true, true));
}

#[tokio::test]
async fn interfaces_that_hear_only_themselves_are_refused_by_name() {
    let world = World::new("macvlan");
    world.inside(&["ip", "link", "add", "mv0", "link", "eth0", "type", "macvlan", "mode", "bridge"]);
    let path = format!("/run/netns/{}", world.pod);
    let link = PodLink { pod_interface: "mv0".to_owned(), ..link(bridged()) };
    let why = in_namespace(&path, &link).await.expect_err("no guest would hear anything");
    assert!(why.contains("mv0 is a macvlan interface"), "{why}");
    assert!(!world.inside(&["ip", "-o", "link", "show"]).contains("k6t-eth0"), "nothing was made");
}

#[test]
fn name_servers_for_the_guest() {
    let text = "# made by hand\nnameserver 10.96.0.10\nnameserver 127.0.0.53\nnameserver fd00::1\nsearch ns.svc.cluster.local svc.cluster.local\noptions ndots:5\n";
    assert_eq!(
        parse_resolver(text),
        (vec![Ipv4Addr::new(10, 96, 0, 10)], vec!["ns.svc.cluster.local".to_owned(), "svc.cluster.local".to_owned()])
    );
    assert_eq!(parse_resolver(""), (vec![], vec![]));
}
