//! The pod network on real links in network namespaces: one that stands for the node, and one for each sandbox. CNI's own programs
//! work on the same addresses, and the plugin is killed wherever it happens to be.
//!
//! Needs root, `unshare`, `ip`, CNI's plugins, and iptables for host ports.

#![expect(clippy::expect_used, reason = "a test whose preparation fails has failed")]
#![expect(clippy::disallowed_methods, reason = "waits no longer than a while for the machine")]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use carrack_networks::loopback;
use carrack_networks::plugin::{self, Environment, Outcome};
use carrack_networks::pod_network::addresses::Owner;
use carrack_networks::pod_network::{Attachment, links};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const STOCK: &str = "/usr/lib/cni";
const BRIDGE: &str = "br-pods";

/// A network namespace that a process holds, and goes with it.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let child = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().expect("unshare runs");
        let namespace = Self(child);
        let own = fs::read_link("/proc/self/ns/net").expect("a namespace");
        let end = Instant::now() + LIMIT;
        while fs::read_link(namespace.path()).is_ok_and(|there| there == own) {
            assert!(Instant::now() < end, "no network namespace: is this root?");
            std::thread::yield_now();
        }
        namespace
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    /// Works in it.
    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).expect("a namespace");
        let inside = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("entered");
            work()
        };
        std::thread::scope(|scope| scope.spawn(inside).join()).expect("the work is done")
    }

    fn run(&self, program: &str, arguments: &[&str]) -> (bool, String) {
        self.within(|| {
            let output = Command::new(program).args(arguments).output().expect("it runs");
            (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
        })
    }

    fn ip(&self, arguments: &[&str]) -> Value {
        let arguments = [&["-json", "-details"], arguments].concat();
        serde_json::from_str(&self.run("ip", &arguments).1).unwrap_or_default()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.0.kill().expect("it is ended");
        self.0.wait().expect("it has ended");
    }
}

struct World {
    dir: TempDir,
    node: Namespace,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("conf")).expect("made");
        let node = Namespace::new();
        node.run("ip", &["link", "set", "lo", "up"]);
        Self { dir, node }
    }

    fn config(&self, more: Value) -> Value {
        let path = |name: &str| self.dir.path().join(name);
        let mut config = json!({
            "cniVersion": "0.4.0", "name": "pods", "type": "carrack-networks", "kubeconfig": path("kubeconfig"),
            "stateDir": path("state"), "binDirs": [STOCK], "confDir": path("conf"),
            "podNetwork": {"bridge": BRIDGE, "subnet": "10.66.0.0/24", "dataDir": path("ipam")},
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        config
    }

    fn environment(command: &str, id: &str, netns: &str) -> Environment {
        Environment {
            command: command.to_owned(),
            container_id: id.to_owned(),
            netns: netns.to_owned(),
            interface: "eth0".to_owned(),
            args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod".to_owned(),
        }
    }

    fn call(&self, command: &str, id: &str, netns: &str, more: Value) -> (u8, Value) {
        let config = self.config(more).to_string();
        let environment = Self::environment(command, id, netns);
        let Outcome { stdout, code } =
            self.node.within(|| plugin::run(&environment, &config, &|_| Err("there is no API server".to_owned())));
        (code, serde_json::from_str(&stdout).unwrap_or(Value::String(stdout)))
    }

    fn add(&self, id: &str, sandbox: &Namespace) -> Ipv4Addr {
        let (code, result) = self.call("ADD", id, &sandbox.path(), json!({}));
        assert_eq!(code, 0, "{result}");
        address(&result)
    }

    fn done(&self, command: &str, id: &str, netns: &str) {
        let (code, result) = self.call(command, id, netns, json!({}));
        assert_eq!(code, 0, "{command} {id}: {result}");
    }

    /// One of CNI's own programs, as the list says that was there before.
    fn stock(&self, command: &str, id: &str, sandbox: &Namespace) -> Value {
        let config = json!({
            "cniVersion": "0.4.0", "name": "pods", "type": "bridge", "bridge": BRIDGE, "isGateway": true, "hairpinMode": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.66.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
                     "dataDir": self.dir.path().join("ipam")},
        });
        let netns = sandbox.path();
        self.node.within(|| {
            let mut child = Command::new(Path::new(STOCK).join("bridge"))
                .envs([("CNI_COMMAND", command), ("CNI_CONTAINERID", id), ("CNI_NETNS", &netns)])
                .envs([("CNI_IFNAME", "eth0"), ("CNI_PATH", STOCK)])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("CNI's plugins are installed");
            child.stdin.take().expect("piped").write_all(config.to_string().as_bytes()).expect("written");
            let output = child.wait_with_output().expect("it ends");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            serde_json::from_slice(&output.stdout).unwrap_or_default()
        })
    }

    /// The addresses that are taken.
    fn taken(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("ipam/pods")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("10.")).collect();
        names.sort();
        names
    }

    fn ports(&self) -> usize {
        let (_, text) = self.node.run("ip", &["-o", "link", "show", "master", BRIDGE]);
        text.lines().count()
    }

    /// Waits until the kernel has taken away what went with a namespace, which it does in its own time.
    fn nothing_left(&self) {
        let end = Instant::now() + LIMIT;
        loop {
            let left = (self.taken(), self.ports());
            if left == (Vec::new(), 0) {
                return;
            }
            assert!(Instant::now() < end, "left: {left:?}");
            std::thread::yield_now();
        }
    }
}

fn address(result: &Value) -> Ipv4Addr {
    let text = result["ips"][0]["address"].as_str().expect("an address");
    text.strip_suffix("/24").expect("of the range").parse().expect("an address")
}

/// What a server in one namespace says to a client in another.
fn talk(server: &Namespace, at: SocketAddr, client: &Namespace, to: SocketAddr) -> String {
    let listener = server.within(|| TcpListener::bind(at)).expect("it listens");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("somebody calls");
            stream.write_all(b"hello").expect("said");
        });
        let mut stream = client.within(|| TcpStream::connect_timeout(&to, LIMIT)).expect("connected");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("heard");
        said
    })
}

#[test]
fn a_pod_gets_a_link_an_address_and_a_way_out_and_loses_them() {
    let world = World::new();
    let sandboxes = [Namespace::new(), Namespace::new()];
    let (code, result) = world.call("ADD", "c1", &sandboxes[0].path(), json!({}));
    assert_eq!(code, 0, "{result}");
    assert_eq!(
        result["ips"],
        json!([{"version": "4", "interface": 2, "address": "10.66.0.2/24", "gateway": "10.66.0.1"}])
    );
    assert_eq!((&result["cniVersion"], &result["routes"]), (&json!("0.4.0"), &json!([{"dst": "0.0.0.0/0"}])));
    assert_eq!(world.add("c2", &sandboxes[1]), Ipv4Addr::new(10, 66, 0, 3));

    // As the runtime is told, so it is.
    let inside = sandboxes[0].ip(&["address", "show", "dev", "eth0"])[0].clone();
    assert_eq!(inside["address"], result["interfaces"][2]["mac"]);
    assert_eq!(result["interfaces"][2]["sandbox"], json!(sandboxes[0].path()));
    let found = inside["addr_info"].as_array().into_iter().flatten().find(|found| found["family"] == "inet");
    let found = found.expect("an address");
    assert_eq!(
        (&found["local"], &found["prefixlen"], &found["broadcast"]),
        (&json!("10.66.0.2"), &json!(24), &json!("10.66.0.255"))
    );
    let routes = sandboxes[0].ip(&["route"]);
    assert_eq!((&routes[0]["dst"], &routes[0]["gateway"]), (&json!("default"), &json!("10.66.0.1")));
    let port =
        world.node.ip(&["link", "show", "dev", result["interfaces"][1]["name"].as_str().expect("a name")])[0].clone();
    assert_eq!(
        (&port["master"], &port["operstate"], &port["address"]),
        (&json!(BRIDGE), &json!("UP"), &result["interfaces"][1]["mac"])
    );
    assert_eq!(port["linkinfo"]["info_slave_data"]["hairpin"], true);
    let bridge = world.node.ip(&["link", "show", "dev", BRIDGE])[0].clone();
    assert_eq!(
        (&bridge["address"], &result["interfaces"][0]["mac"]),
        (&json!("0a:58:0a:42:00:01"), &json!("0a:58:0a:42:00:01"))
    );
    assert_eq!(world.node.run("cat", &["/proc/sys/net/ipv4/ip_forward"]).1.trim(), "1");
    assert_eq!(sandboxes[0].run("cat", &["/proc/sys/net/ipv4/conf/eth0/arp_notify"]).1.trim(), "1");
    // A kernel without IPv6 has no such setting.
    let takes_routes = sandboxes[0].run("cat", &["/proc/sys/net/ipv6/conf/eth0/accept_ra"]).1;
    assert!(matches!(takes_routes.trim(), "0" | ""), "{takes_routes}");

    // Frames pass between pods, and between pod and node, both ways.
    let socket = |address: &str| format!("{address}:7777").parse().expect("an address");
    assert_eq!(talk(&sandboxes[0], socket("10.66.0.2"), &sandboxes[1], socket("10.66.0.2")), "hello");
    assert_eq!(talk(&world.node, socket("10.66.0.1"), &sandboxes[1], socket("10.66.0.1")), "hello");
    assert_eq!(talk(&sandboxes[1], socket("10.66.0.3"), &world.node, socket("10.66.0.3")), "hello");

    world.done("CHECK", "c1", &sandboxes[0].path());
    sandboxes[0].ip(&["address", "flush", "dev", "eth0"]);
    let (code, why) = world.call("CHECK", "c1", &sandboxes[0].path(), json!({}));
    assert!(code == 1 && why["msg"].as_str().is_some_and(|why| why.contains("10.66.0.2 of eth0 is missing")), "{why}");

    for _ in 0..2 {
        world.done("DEL", "c1", &sandboxes[0].path());
        assert_eq!((world.taken(), world.ports()), (vec!["10.66.0.3".to_owned()], 1));
        assert_eq!(sandboxes[0].ip(&["link", "show", "dev", "eth0"]), Value::Null);
    }
    // Its namespace is gone, or was never there.
    for netns in ["", "/nowhere"] {
        world.done("DEL", "c2", netns);
        world.nothing_left();
    }
    // What was just given back is not given at once.
    assert_eq!(world.add("c3", &sandboxes[0]), Ipv4Addr::new(10, 66, 0, 4));
}

#[test]
fn the_way_out_of_a_pod_can_be_another_network() {
    let world = World::new();
    let sandbox = Namespace::new();
    world.add("c1", &sandbox);
    let lines: [&[&str]; 4] = [
        &["link", "add", "net1", "type", "veth", "peer", "name", "other1"],
        &["link", "set", "other1", "up"],
        &["link", "set", "net1", "up"],
        &["address", "add", "10.1.1.21/24", "dev", "net1"],
    ];
    for line in lines {
        assert!(sandbox.run("ip", line).0, "{line:?}");
    }
    let lead_out = |link: &str, gateway: [u8; 4]| links::lead_out(Path::new(&sandbox.path()), link, gateway.into());
    for _ in 0..2 {
        lead_out("net1", [10, 1, 1, 254]).expect("it is led there");
        let routes = sandbox.ip(&["route"]);
        let to = |dst: &str| routes.as_array().into_iter().flatten().filter(|route| route["dst"] == dst).count();
        assert_eq!((to("default"), to("10.66.0.0/24"), to("10.1.1.0/24")), (1, 1, 1), "{routes}");
        assert_eq!((&routes[0]["gateway"], &routes[0]["dev"]), (&json!("10.1.1.254"), &json!("net1")));
    }
    assert!(lead_out("net2", [10, 1, 1, 254]).is_err_and(|why| why.to_string().contains("net2")));
    assert!(lead_out("net1", [10, 9, 9, 9]).is_err(), "nobody is there");
}

#[test]
fn pods_that_the_stock_plugins_made_are_undone_and_the_other_way_round() {
    let world = World::new();
    let sandboxes = [Namespace::new(), Namespace::new(), Namespace::new()];
    assert_eq!(address(&world.stock("ADD", "c1", &sandboxes[0])), Ipv4Addr::new(10, 66, 0, 2));
    // The bridge is there, and the address is respected.
    assert_eq!(world.add("c2", &sandboxes[1]), Ipv4Addr::new(10, 66, 0, 3));
    assert_eq!(address(&world.stock("ADD", "c3", &sandboxes[2])), Ipv4Addr::new(10, 66, 0, 4));
    let socket = "10.66.0.2:7777".parse().expect("an address");
    assert_eq!(talk(&sandboxes[0], socket, &sandboxes[1], socket), "hello");
    world.done("CHECK", "c1", &sandboxes[0].path());
    world.done("DEL", "c1", &sandboxes[0].path());
    assert_eq!((world.taken(), world.ports()), (vec!["10.66.0.3".to_owned(), "10.66.0.4".to_owned()], 2));
    world.stock("DEL", "c2", &sandboxes[1]);
    world.done("DEL", "c3", &sandboxes[2].path());
    world.nothing_left();
}

#[test]
fn many_at_once_get_addresses_of_their_own_on_one_bridge() {
    let world = World::new();
    let sandboxes: Vec<Namespace> = (0..12).map(|_| Namespace::new()).collect();
    let mut addresses: Vec<Ipv4Addr> = std::thread::scope(|scope| {
        let adds: Vec<_> = sandboxes
            .iter()
            .enumerate()
            .map(|(number, sandbox)| (number, sandbox, &world))
            .map(|(number, sandbox, world)| scope.spawn(move || world.add(&format!("c{number}"), sandbox)))
            .collect();
        adds.into_iter().map(|add| add.join().expect("it has one")).collect()
    });
    addresses.sort();
    addresses.dedup();
    assert_eq!((addresses.len(), world.taken().len(), world.ports()), (12, 12, 12));
}

#[test]
fn bad_input_is_refused_and_leaves_nothing() {
    let world = World::new();
    let sandbox = Namespace::new();
    world.node.run("ip", &["link", "add", "taken", "type", "veth", "peer", "name", "other-end"]);
    world.node.run("ip", &["link", "add", "other", "type", "bridge"]);
    world.node.run("ip", &["address", "add", "10.1.0.1/24", "dev", "other"]);
    let network = |bridge: &str, subnet: &str| json!({"podNetwork": {"bridge": bridge, "subnet": subnet, "dataDir": world.dir.path().join("ipam")}});
    let refused_at = |id: &str, netns: &str, more: Value, expected: &str| {
        let (code, said) = world.call("ADD", id, netns, more.clone());
        assert!(code == 1 && said["msg"].as_str().is_some_and(|why| why.contains(expected)), "{more}: {said}");
        assert_eq!((world.taken(), world.ports()), (Vec::new(), 0), "{more}");
    };
    let refused = |more: Value, expected: &str| refused_at("c1", &sandbox.path(), more, expected);
    refused(network("a/b", "10.66.0.0/24"), "cannot name a bridge");
    refused(network("", "10.66.0.0/24"), "cannot name a bridge");
    refused(network(BRIDGE, "10.66.0.0"), "no range of IPv4 addresses");
    refused(network(BRIDGE, "10.66.0.9/24"), "it begins with 10.66.0.0");
    refused(network("taken", "10.66.0.0/24"), "there is a link taken that is no bridge");
    refused(network("other", "10.66.0.0/24"), "the bridge other has the address 10.1.0.1/24, not 10.66.0.1/24");
    refused(
        json!({"podNetwork": {"bridge": BRIDGE, "subnet": "10.66.0.0/24", "dataDir": "/x", "vlan": 3}}),
        "unknown field `vlan`",
    );
    refused(json!({"cniVersion": "0.2.0"}), "not told in version \"0.2.0\"");
    refused(json!({"name": "../x"}), "no network's name");
    refused(json!({"prevResult": {"ips": []}}), "made by the first plugin of a list");
    refused_at("c1", "/nowhere", json!({}), "the network namespace /nowhere cannot be opened");
    refused_at("", &sandbox.path(), json!({}), "no id of a sandbox");
    refused_at("c1 c2", &sandbox.path(), json!({}), "no id of a sandbox");
    // The host ports are refused by their program; the links are undone.
    let ports = json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 0, "protocol": "tcp"}]}});
    refused(ports, "the pod's host ports: the CNI plugin portmap failed");

    // A second interface of the same name is not made, and takes no address from the first.
    let address = world.add("c1", &sandbox);
    let (code, said) = world.call("ADD", "c1", &sandbox.path(), json!({}));
    assert!(code == 1 && said["msg"].as_str().is_some_and(|why| why.contains("already")), "{said}");
    assert_eq!((world.taken(), world.ports()), (vec![address.to_string()], 1));
    fs::write(world.dir.path().join("ipam/pods/10.66.0.2"), "c3\r\neth0").expect("written");
    let small = network(BRIDGE, "10.66.0.0/30");
    let (code, said) = world.call("ADD", "c2", &sandbox.path(), small);
    assert!(code == 1 && said["msg"].as_str().is_some_and(|why| why.contains("are taken")), "{said}");
}

#[test]
fn host_ports_are_there_while_the_pod_is() {
    let world = World::new();
    let sandbox = Namespace::new();
    let ports =
        json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}});
    let rules = || world.node.run("iptables-save", &["-t", "nat"]).1;
    let add = |id: &str| {
        let (code, result) = world.call("ADD", id, &sandbox.path(), ports.clone());
        assert_eq!(code, 0, "{result}");
        assert!(rules().contains("--dport 8080"), "{}", rules());
    };
    add("c1");
    let (at, to) = ("0.0.0.0:80".parse().expect("an address"), "10.66.0.1:8080".parse().expect("an address"));
    assert_eq!(talk(&sandbox, at, &world.node, to), "hello");
    assert_eq!(world.call("DEL", "c1", &sandbox.path(), ports.clone()).0, 0);
    assert!(!rules().contains("--dport 8080"), "{}", rules());
    // Nobody remembers that it had any.
    add("c2");
    world.done("GC", "", "");
    assert!(!rules().contains("--dport 8080"), "{}", rules());
    world.nothing_left();
}

#[test]
fn host_ports_are_made_again_and_not_twice() {
    let world = World::new();
    let sandbox = Namespace::new();
    let ports = json!([{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}]);
    let (code, made) =
        world.call("ADD", "c1", &sandbox.path(), json!({"runtimeConfig": {"portMappings": ports.clone()}}));
    assert_eq!(code, 0, "{made}");
    let rules = || {
        let (_, saved) = world.node.run("iptables-save", &["-t", "nat"]);
        let mut rules: Vec<String> = saved.lines().filter(|line| line.starts_with("-A ")).map(str::to_owned).collect();
        rules.sort();
        rules
    };
    let before = rules();
    assert!(before.iter().any(|rule| rule.contains("dnat name: \\\"pods\\\" id: \\\"c1\\\"")), "{before:#?}");
    let (netns, bin_dirs) = (sandbox.path(), [PathBuf::from(STOCK)]);
    let attachment = Attachment {
        name: "pods",
        cni_version: "0.4.0",
        owner: Owner { sandbox: "c1".to_owned(), interface: "eth0".to_owned() },
        netns: &netns,
        args: "",
        ports: &ports,
        bin_dirs: &bin_dirs,
    };
    // `nft flush ruleset`; somebody who empties one chain; nobody.
    let flushes: [&[&[&str]]; 3] = [&[&["-F"], &["-X"]], &[&["-F", "PREROUTING"]], &[]];
    for flush in flushes {
        for words in flush {
            assert!(world.node.run("iptables", &[&["-t", "nat"][..], *words].concat()).0, "{words:?}");
        }
        world.node.within(|| attachment.map(&made)).expect("made");
        assert_eq!(rules(), before, "{flush:?}");
    }
    world.node.within(|| attachment.unmap()).expect("undone");
    assert!(!rules().iter().any(|rule| rule.contains("--dport 8080")), "{:#?}", rules());
}

#[test]
fn what_the_runtime_has_forgotten_is_collected() {
    let world = World::new();
    let sandboxes = [Namespace::new(), Namespace::new(), Namespace::new()];
    for (id, sandbox) in ["c1", "c2", "c3"].into_iter().zip(&sandboxes) {
        world.add(id, sandbox);
    }
    // An address on disk is all that a plugin has come to which was killed at once.
    fs::write(world.dir.path().join("ipam/pods/10.66.0.9"), "c4\r\neth0").expect("written");
    assert_eq!(world.call("GC", "", "", json!({"stale": ["c2", "c4"]})).0, 0);
    assert_eq!((world.taken(), world.ports()), (vec!["10.66.0.2".to_owned(), "10.66.0.4".to_owned()], 2));
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]});
    assert_eq!(world.call("GC", "", "", valid).0, 0);
    assert_eq!((world.taken(), world.ports()), (vec!["10.66.0.2".to_owned()], 1));
    world.done("CHECK", "c1", &sandboxes[0].path());
}

/// The plugin as a process of its own, for the test below: does nothing unless it is called as such.
#[test]
fn acts_as_the_plugin() {
    let Ok(config) = std::env::var("ACTS_AS_PLUGIN") else { return };
    let part = |name: &str| std::env::var(name).unwrap_or_default();
    let environment = World::environment(&part("CNI_COMMAND"), &part("CNI_CONTAINERID"), &part("CNI_NETNS"));
    let outcome = plugin::run(&environment, &config, &|_| Err("there is no API server".to_owned()));
    println!("{}", outcome.stdout);
    std::process::exit(i32::from(outcome.code));
}

/// Wherever it was killed: the runtime's DEL undoes it where the runtime knows the sandbox, and the collection where it does not.
#[test]
fn killed_anywhere_it_is_undone() {
    let world = World::new();
    let config = world.config(json!({})).to_string();
    let netns = |sandbox: &Namespace| sandbox.path();
    let start = |command: &str, id: &str, sandbox: &Namespace| {
        let path = netns(sandbox);
        world.node.within(|| {
            Command::new(std::env::current_exe().expect("a program"))
                .args(["--exact", "acts_as_the_plugin", "--nocapture"])
                .envs([("ACTS_AS_PLUGIN", config.as_str()), ("CNI_COMMAND", command), ("CNI_CONTAINERID", id)])
                .env("CNI_NETNS", path)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts")
        })
    };
    // How long one takes that is left alone.
    let probe = Namespace::new();
    let began = Instant::now();
    assert!(start("ADD", "probe", &probe).wait().expect("it ends").success());
    let whole = began.elapsed();
    assert!(start("DEL", "probe", &probe).wait().expect("it ends").success());
    world.nothing_left();

    let (mut early, mut late) = (0, 0);
    for round in 0..40u32 {
        let sandbox = Namespace::new();
        let id = format!("c{round}");
        let command = if round % 4 == 3 { "DEL" } else { "ADD" };
        if command == "DEL" {
            world.add(&id, &sandbox);
        }
        let mut child = start(command, &id, &sandbox);
        let ended = if round % 20 == 19 {
            // One that is left alone now may take any time longer than the first one did.
            child.wait().expect("it ends").success()
        } else {
            // Where it is then is anybody's guess, which is the point.
            std::thread::sleep(whole * (round % 20) / 16);
            child.try_wait().expect("it can be asked").is_some()
        };
        *(if ended { &mut late } else { &mut early }) += 1;
        child.kill().ok();
        child.wait().expect("it has ended");
        if round % 2 == 0 {
            world.done("DEL", &id, &sandbox.path());
        } else {
            assert_eq!(world.call("GC", "", "", json!({"stale": [id]})).0, 0);
        }
        world.nothing_left();
        // Nothing is in the way of the next one.
        world.add("after", &sandbox);
        world.done("DEL", "after", &sandbox.path());
    }
    assert!(early > 0 && late > 0, "killed {early}, ended {late}");
}

#[test]
fn a_sandbox_s_own_link_is_set_up() {
    let sandbox = Namespace::new();
    let environment = |command: &str, netns: &str| World::environment(command, "c1", netns);
    let input = r#"{"cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback"}"#;
    for _ in 0..2 {
        let outcome = loopback::run(&environment("ADD", &sandbox.path()), input);
        let result: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        assert_eq!((outcome.code, &result["ips"][0]["address"]), (0, &json!("127.0.0.1/8")));
    }
    assert_eq!(
        sandbox.ip(&["link", "show", "dev", "lo"])[0]["operstate"],
        "UNKNOWN",
        "up, as far as it knows such a thing"
    );
    let to: SocketAddr = "127.0.0.1:7777".parse().expect("an address");
    assert_eq!(talk(&sandbox, to, &sandbox, to), "hello");
    assert_eq!(loopback::run(&environment("DEL", ""), input).code, 0);
    assert_eq!(loopback::run(&environment("STATUS", ""), input).code, 0);
    let refused = loopback::run(&environment("ADD", "/nowhere"), input);
    assert!(refused.code == 1 && refused.stdout.contains("/nowhere cannot be opened"), "{refused:?}");
    assert!(loopback::run(&environment("VERSION", ""), input).stdout.contains("supportedVersions"));
}
