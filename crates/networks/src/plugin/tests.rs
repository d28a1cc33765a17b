//! The plugin with programs that write down how they are called, and an API server that answers from a table.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;

use tempfile::TempDir;

use super::*;

/// What the API server has, and was told.
#[derive(Clone, Default)]
struct Api {
    definitions: Rc<RefCell<BTreeMap<String, Value>>>,
    annotations: Rc<RefCell<Map<String, Value>>>,
    away: Rc<RefCell<bool>>,
    deaf: Rc<RefCell<bool>>,
}

impl Cluster for Api {
    fn definition(&self, namespace: &str, name: &str) -> Result<Option<Value>, String> {
        if *self.away.borrow() {
            return Err("connection refused".to_owned());
        }
        Ok(self.definitions.borrow().get(&format!("{namespace}/{name}")).cloned())
    }

    fn annotate(&self, pod: &Pod, annotations: Map<String, Value>) -> Result<(), String> {
        assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()), ("ns", "pod", "u-1"));
        if *self.away.borrow() || *self.deaf.borrow() {
            return Err("connection refused".to_owned());
        }
        self.annotations.borrow_mut().extend(annotations);
        Ok(())
    }
}

struct World {
    dir: TempDir,
    api: Api,
}

/// Writes down the call; answers ADD with an interface of its own, unless told to fail.
const PROGRAM: &str = r#"#!/bin/sh
dir=$(dirname "$(dirname "$0")")
config=$(cat)
echo "$CNI_COMMAND ${0##*/} $CNI_CONTAINERID $CNI_IFNAME [$CNI_NETNS]" >>"$dir/calls"
echo "$config" >"$dir/told.${0##*/}.$CNI_COMMAND"
echo "$CNI_ARGS" >"$dir/args.${0##*/}.$CNI_COMMAND"
if [ -e "$dir/fails.${0##*/}.$CNI_COMMAND" ]; then
  echo '{"cniVersion": "0.4.0", "code": 11, "msg": "no way", "details": "today"}'
  exit 1
fi
[ "$CNI_COMMAND" = ADD ] || exit 0
echo "{\"cniVersion\": \"0.4.0\", \"interfaces\": [{\"name\": \"$CNI_IFNAME\", \"mac\": \"0a:00:00:00:00:01\", \"sandbox\": \"$CNI_NETNS\"}], \"ips\": [{\"address\": \"10.1.0.2/24\", \"interface\": 0}]}"
"#;

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["bin", "conf", "node"] {
            fs::create_dir(dir.path().join(name)).expect("made");
        }
        fs::write(dir.path().join("conf/10-own.conflist"), r#"{"name": "own"}"#).expect("written");
        let world = Self { dir, api: Api::default() };
        for program in ["one", "two"] {
            world.install(program);
        }
        world.define("ns/a", r#"{"cniVersion": "0.4.0", "plugins": [{"type": "one"}, {"type": "two"}]}"#);
        world.define("other/b", r#"{"cniVersion": "0.4.0", "type": "two"}"#);
        world
    }

    fn install(&self, program: &str) {
        let path = self.dir.path().join("bin").join(program);
        fs::write(&path, PROGRAM).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    }

    fn define(&self, name: &str, config: &str) {
        self.api.definitions.borrow_mut().insert(name.to_owned(), json!({"spec": {"config": config}}));
    }

    fn run(&self, command: &str, id: &str, networks: Option<&str>) -> (u8, Value) {
        self.run_in(command, id, networks, "/run/netns/x", json!({}))
    }

    fn run_in(&self, command: &str, id: &str, networks: Option<&str>, netns: &str, more: Value) -> (u8, Value) {
        let environment = Environment {
            command: command.to_owned(),
            container_id: id.to_owned(),
            netns: netns.to_owned(),
            interface: "eth0".to_owned(),
            args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=u-1".to_owned(),
        };
        let path = |name: &str| self.dir.path().join(name);
        let mut config = json!({
            "cniVersion": "0.4.0", "name": "own", "type": "carrack-networks", "kubeconfig": path("kubeconfig"),
            "stateDir": path("state"), "binDirs": [path("bin")], "confDir": path("conf"), "nodeConfDirs": [path("node")],
            "prevResult": {"cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}],
                           "ips": [{"address": "10.42.0.7/24", "interface": 0}]},
        });
        if let Some(networks) = networks {
            config["runtimeConfig"] = json!({ ANNOTATIONS_CAPABILITY: { NETWORKS_ANNOTATION: networks } });
        }
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let api = self.api.clone();
        let connect = move |_: &Path| Ok(Box::new(api.clone()) as Box<dyn Cluster>);
        let outcome = super::run(&environment, &config.to_string(), &connect);
        (outcome.code, serde_json::from_str(&outcome.stdout).unwrap_or_default())
    }

    /// The calls since the last look.
    fn calls(&self) -> Vec<String> {
        let path = self.dir.path().join("calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, "").expect("written");
        text.lines().map(str::to_owned).collect()
    }

    fn fails(&self, what: &str, yes: bool) {
        let path = self.dir.path().join(format!("fails.{what}"));
        if yes { fs::write(path, "") } else { fs::remove_file(path) }.expect("set");
    }

    fn told(&self, what: &str) -> Value {
        let text = fs::read_to_string(self.dir.path().join(format!("told.{what}"))).expect("it was called");
        serde_json::from_str(&text).expect("JSON")
    }

    /// What is kept: records and locks.
    fn kept(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("state")).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn annotation(&self, name: &str) -> Value {
        self.api.annotations.borrow().get(name).cloned().unwrap_or_default()
    }
}

#[test]
fn pods_that_ask_for_nothing_cost_nothing() {
    let world = World::new();
    *world.api.away.borrow_mut() = true;
    for networks in [None, Some(""), Some(" ")] {
        let (code, result) = world.run("ADD", "c1", networks);
        assert_eq!((code, &result["ips"][0]["address"]), (0, &json!("10.42.0.7/24")), "{networks:?}");
    }
    assert_eq!(world.run("DEL", "c1", None).0, 0);
    assert_eq!((world.calls(), world.kept()), (vec![], vec![]));
}

#[test]
fn networks_are_attached_told_and_detached_in_the_opposite_order() {
    let world = World::new();
    let (code, result) = world.run("ADD", "c1", Some("a,other/b@blue"));
    assert_eq!(
        (code, &result["ips"][0]["address"]),
        (0, &json!("10.42.0.7/24")),
        "the pod network's result stays: {result}"
    );
    let at = "[/run/netns/x]";
    assert_eq!(
        world.calls(),
        [format!("ADD one c1 net1 {at}"), format!("ADD two c1 net1 {at}"), format!("ADD two c1 blue {at}")]
    );
    let status: Value =
        serde_json::from_str(world.annotation(STATUS_ANNOTATION).as_str().expect("told")).expect("JSON");
    assert_eq!(
        status[0],
        json!({"name": "own", "interface": "eth0", "ips": ["10.42.0.7"], "default": true, "dns": {}})
    );
    assert_eq!(
        status[2],
        json!({"name": "other/b", "interface": "blue", "ips": ["10.1.0.2"], "mac": "0a:00:00:00:00:01", "dns": {}})
    );
    assert_eq!(world.kept(), ["c1.json", "c1.lock"]);
    assert_eq!(world.run("CHECK", "c1", None).0, 0);
    assert_eq!(world.calls().len(), 3);

    // What the definition says now does not matter, nor does the API server.
    world.define("ns/a", "nonsense");
    *world.api.away.borrow_mut() = true;
    assert_eq!(world.run_in("DEL", "c1", None, "", json!({})).0, 0);
    assert_eq!(world.calls(), ["DEL two c1 blue []", "DEL two c1 net1 []", "DEL one c1 net1 []"]);
    assert_eq!(world.told("one.DEL")["prevResult"]["ips"][0]["address"], "10.1.0.2/24");
    assert_eq!(world.kept(), Vec::<String>::new());
    // Once more is no harm.
    assert_eq!((world.run("DEL", "c1", None).0, world.calls()), (0, vec![]));
}

#[test]
fn a_hardware_address_is_told_by_the_environment_too() {
    let world = World::new();
    assert_eq!(world.run("ADD", "c1", Some(r#"[{"name": "a", "mac": "02:00:00:00:00:01"}]"#)).0, 0);
    assert_eq!(world.run("DEL", "c1", None).0, 0);
    for (what, told) in [("one.ADD", true), ("two.ADD", true), ("two.DEL", false)] {
        let args = fs::read_to_string(world.dir.path().join(format!("args.{what}"))).expect("it was called");
        assert_eq!(argument(args.trim(), "K8S_POD_UID"), "u-1", "{what}");
        assert_eq!(argument(args.trim(), "MAC"), if told { "02:00:00:00:00:01" } else { "" }, "{what}");
    }
}

#[test]
fn bad_input_is_refused_before_anything_is_made() {
    let world = World::new();
    world.define("ns/broken", "{");
    world.define("ns/strange", r#"{"type": "unknown"}"#);
    world.define("ns/addressless", r#"{"type": "one", "ipam": {"type": "no-ipam"}}"#);
    world.define("ns/file", "");
    let refused = |networks: &str, expected: &str| {
        let (code, result) = world.run("ADD", "c1", Some(networks));
        let message = result["msg"].as_str().unwrap_or_default();
        assert!(code == 1 && message.contains(expected), "{networks}: {code} {result}");
        assert_eq!(world.annotation(FAILURE_ANNOTATION), message, "{networks}");
        assert_eq!((world.calls(), world.kept()), (vec![], vec![]), "{networks}");
    };
    refused("a,missing", "there is no NetworkAttachmentDefinition ns/missing");
    refused("a,broken", "NetworkAttachmentDefinition ns/broken: its config is no JSON object");
    refused("a,strange", "the CNI plugin unknown is not in");
    refused("a,addressless", "the CNI plugin no-ipam is not in");
    refused("a,file", "no file in");
    refused("a@eth0", "there is an interface eth0 already");
    refused(r#"[{"name": "a", "bandwidth": {"ingressRate": 1}}]"#, "network ns/a: the pod asks for bandwidth");
    refused("[", "no list");
    // Mended, it is attached, and the failure is gone.
    assert_eq!(world.run("ADD", "c1", Some("a")).0, 0);
    assert_eq!(world.annotation(FAILURE_ANNOTATION), Value::Null);
}

#[test]
fn what_fails_half_way_is_undone() {
    let world = World::new();
    world.fails("two.ADD", true);
    let (code, result) = world.run("ADD", "c1", Some("a"));
    assert_eq!((code, &result["msg"]), (1, &json!("network ns/a: the CNI plugin two failed: no way: today")));
    let undone = ["DEL two c1 net1 [/run/netns/x]", "DEL one c1 net1 [/run/netns/x]"];
    assert_eq!(world.calls()[2..], undone);
    assert_eq!(world.kept(), Vec::<String>::new());

    // The status cannot be told: no pod runs whose networks nobody knows of.
    world.fails("two.ADD", false);
    *world.api.deaf.borrow_mut() = true;
    assert_eq!(world.run("ADD", "c2", Some("a")).0, 1);
    assert_eq!(world.calls().len(), 4);
    assert_eq!(world.kept(), Vec::<String>::new());
}

#[test]
fn what_cannot_be_undone_is_kept_and_keeps_others_from_being_made() {
    let world = World::new();
    world.fails("two.ADD", true);
    world.fails("one.DEL", true);
    assert_eq!(world.run("ADD", "c1", Some("a")).0, 1);
    assert_eq!(world.run("DEL", "c1", None).0, 1);
    assert_eq!(world.kept(), ["c1.json", "c1.lock"]);
    world.fails("two.ADD", false);
    world.calls();
    let (code, result) = world.run("ADD", "c2", Some("a"));
    assert!(code == 1 && result["msg"].as_str().is_some_and(|why| why.contains("earlier sandbox")), "{result}");
    assert!(world.calls().iter().all(|call| call.starts_with("DEL")), "nothing is made");
    world.fails("one.DEL", false);
    assert_eq!(world.run("ADD", "c2", Some("a")).0, 0);
    assert_eq!(world.kept(), ["c2.json", "c2.lock"]);
}

#[test]
fn a_network_that_takes_the_pod_networks_place_is_left_alone() {
    let world = World::new();
    assert_eq!(world.run("ADD", "c1", Some("a")).0, 0);
    let multus = r#"{"name": "multus-cni-network", "type": "multus"}"#;
    fs::write(world.dir.path().join("conf/00-multus.conf"), multus).expect("written");
    world.calls();
    assert_eq!(world.run("ADD", "c2", Some("a,missing")).0, 0);
    assert_eq!(world.calls(), Vec::<String>::new());
    // What it made itself, it undoes.
    assert_eq!(world.run("DEL", "c1", None).0, 0);
    assert_eq!((world.calls().len(), world.kept()), (2, vec![]));
}

#[test]
fn what_the_runtime_has_forgotten_is_collected() {
    let world = World::new();
    for id in ["c1", "c2", "c3"] {
        // Three pods, as far as their records say.
        assert_eq!(world.run("ADD", id, Some("other/b")).0, 0);
        let path = world.dir.path().join(format!("state/{id}.json"));
        let text = fs::read_to_string(&path).expect("read").replace("u-1", id);
        fs::write(path, text).expect("written");
    }
    world.calls();
    let busy = record::hold(&world.dir.path().join("state"), "c3", true).expect("taken").expect("free");
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]});
    assert_eq!(world.run_in("GC", "", None, "", valid.clone()).0, 0);
    // Its namespace is gone, and the plugin is told so.
    assert_eq!(world.calls(), ["DEL two c2 net1 []"]);
    drop(busy);
    assert_eq!(world.run_in("GC", "", None, "", valid).0, 0);
    assert_eq!(world.calls(), ["DEL two c3 net1 []"]);
    assert_eq!(world.kept(), ["c1.json", "c1.lock"]);
}

#[test]
fn a_damaged_record_is_told_and_holds_up_no_end() {
    for (command, id) in [("DEL", "c1"), ("GC", "")] {
        let world = World::new();
        assert_eq!(world.run("ADD", "c1", Some("a")).0, 0);
        fs::write(world.dir.path().join("state/c1.json"), "{").expect("written");
        let (code, result) = world.run("CHECK", "c1", None);
        assert!(code == 1 && result["msg"].as_str().is_some_and(|why| why.contains("damaged")), "{result}");
        assert_eq!(world.kept(), ["c1.json", "c1.lock"]);
        let (code, result) = world.run_in(command, id, None, "", json!({"cni.dev/valid-attachments": []}));
        assert_eq!((code, world.kept()), (0, vec!["c1.damaged".to_owned()]), "{command}: {result}");
    }
}

#[test]
fn the_protocol() {
    let world = World::new();
    assert_eq!(world.run("VERSION", "", None).1["cniVersion"], "0.4.0");
    let (code, result) = world.run("STOP", "c1", None);
    assert_eq!((code, result["code"].as_u64()), (1, Some(FAILED)));
    // Whether it can serve an ADD, which is asked for no sandbox.
    for (subnet, expected) in
        [(None, (0, None)), (Some("10.42.0.0/24"), (0, None)), (Some("10.42"), (1, Some(INVALID)))]
    {
        let network = |subnet: &str| json!({"podNetwork": {"bridge": "cni0", "subnet": subnet, "dataDir": "/nowhere"}});
        let more = subnet.map_or_else(|| json!({}), network);
        let (code, result) = world.run_in("STATUS", "", None, "", more);
        assert_eq!((code, result["code"].as_u64()), expected, "{subnet:?}");
    }
    let connect = |_: &Path| Err("nowhere".to_owned());
    let environment = Environment { command: "ADD".to_owned(), ..Environment::default() };
    let outcome = super::run(&environment, "{}", &connect);
    assert!(outcome.code == 1 && outcome.stdout.contains(&format!("\"code\":{INVALID}")), "{outcome:?}");
}
