//! Single decisions as a table; and a small world in which nodes, attachers, people and one or two controllers with
//! caches of different age act in any order: no disk is taken from a node that uses it.

use carrack_engine::testing::Caches;
use carrack_engine::{Absent, Rng, StatusError, Write};
use carrack_types::volume::{DEAD_USERS, FLEX_ATTACHER, VOLUME_USERS, attachment_name, flex_attachment_name};
use carrack_types::well_known::kubevirt::SCHEDULABLE_LABEL;
use serde_json::{Value, json};

use super::super::told::MANAGED;
use super::*;
use crate::node::OUT_OF_SERVICE_TAINT;
use crate::testing::{of, words};

const UNIQUE: &str = "kubernetes.io/csi/d^h";

fn volume() -> Value {
    json!({"metadata": {"name": "v", "uid": "v", "resourceVersion": "1"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "d", "volumeHandle": "h"}, "claimRef": {"namespace": "ns", "name": "c", "uid": "c"}}})
}

fn claim() -> Value {
    json!({"metadata": {"namespace": "ns", "name": "c", "uid": "c"}, "spec": {"volumeName": "v"}})
}

fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name, "uid": name}, "spec": {"nodeName": node, "containers": [],
        "volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}]}, "status": {"phase": "Running"}})
}

fn node(name: &str, in_use: bool, attached: bool) -> Value {
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "annotations": {MANAGED: "true"}},
        "spec": {"taints": []},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "volumesInUse": if in_use { json!([UNIQUE]) } else { json!([]) },
            "volumesAttached": if attached { json!([{"name": UNIQUE, "devicePath": ""}]) } else { json!([]) }}})
}

fn attachment(node: &str, attached: bool) -> Value {
    json!({"metadata": {"name": attachment_name("d", "h", node), "uid": format!("va-{node}")},
        "spec": {"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": "v"}},
        "status": {"attached": attached}})
}

fn caches(volume: &Value, pods: &[Value], nodes: &[Value], attachments: &[Value]) -> Caches {
    Caches::new()
        .with::<PersistentVolume>([of(volume.clone())])
        .with::<PersistentVolumeClaim>([of(claim())])
        .with::<CSIDriver>([])
        .with_index::<Pod>(BY_CLAIM, pods::by_claim)
        .with::<Pod>(pods.iter().cloned().map(of))
        .with_index::<Node>(BY_ATTACHED, attached_names)
        .with::<Node>(nodes.iter().cloned().map(of))
        .with_index(BY_VOLUME, by_volume)
        .with::<VolumeAttachment>(attachments.iter().cloned().map(of))
}

fn at(c: &mut AttachDetach, pods: &[Value], nodes: &[Value], attachments: &[Value], now_s: i64) -> (Vec<String>, Plan) {
    let plan =
        c.reconcile(&Key::new("", "v"), &caches(&volume(), pods, nodes, attachments).view(), Time::from_unix_s(now_s));
    let short = |node: &str| attachment_name("d", "h", node);
    let words = words(&plan).into_iter().map(|w| w.replace(&short("a"), "va-a").replace(&short("b"), "va-b"));
    (words.collect(), plan)
}

/// Of kinds that lag apart, the claim's end may be seen before its pod's.
#[test]
fn a_volume_is_looked_at_when_its_pod_goes_after_its_claim() {
    let caches = Caches::new()
        .with_index::<PersistentVolume>(BY_REFERENCE, by_reference)
        .with::<PersistentVolume>([of(volume())])
        .with::<PersistentVolumeClaim>([])
        .with::<VolumeAttachment>([])
        .with_index::<Pod>(BY_NODE, pods::by_node)
        .with::<Pod>([of(pod("p", "a"))])
        .with::<Node>([of(node("a", false, true))]);
    let controller = AttachDetach::default();
    for keys in [caches.keys_for::<Pod>(&controller), caches.keys_for::<Node>(&controller)] {
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), [Key::new("", "v")]);
    }
}

#[test]
fn single_decisions() {
    let told = |list: &str| format!("patch a/status volumesAttached={list}");
    let out_of_service = |mut node: Value| {
        node["spec"]["taints"] = json!([{"key": OUT_OF_SERVICE_TAINT, "effect": "NoExecute"}]);
        node["status"]["conditions"][0]["status"] = "Unknown".into();
        node
    };
    let unmanaged = |mut node: Value| {
        node["metadata"]["annotations"] = json!({});
        node
    };
    // A node that says who has the volume, and whether it is heard; and an attachment that says who of them is dead.
    let named = |users: &str, ready: &str| {
        let mut node = node("a", true, true);
        node["metadata"]["annotations"][VOLUME_USERS] = users.into();
        node["status"]["conditions"][0]["status"] = ready.into();
        node
    };
    let unheard = |mut node: Value| {
        node["metadata"]["labels"] = json!({SCHEDULABLE_LABEL: "false"});
        node
    };
    let by = |users: &str| format!("{{\"{UNIQUE}\":{users}}}");
    let left = |dead: &str| {
        let mut attachment = attachment("a", true);
        attachment["metadata"]["annotations"] = json!({});
        attachment["metadata"]["annotations"][DEAD_USERS] = dead.into();
        attachment
    };
    let none = Vec::<String>::new;
    let give =
        || ["confirm alive ns/p", "patch v annotations={\"carrack.io/attached-to\":\"a\"}"].map(str::to_owned).to_vec();
    let untold = || vec![told("[]")];
    for (pods, nodes, attachments, expected) in [
        (vec![pod("p", "a")], vec![node("a", false, false)], vec![], give()),
        (vec![pod("p", "a")], vec![unmanaged(node("a", false, false))], vec![], none()),
        (vec![pod("p", "a")], vec![out_of_service(node("a", false, false))], vec![], none()),
        (vec![pod("p", "a")], vec![node("a", false, false)], vec![attachment("a", false)], none()),
        (
            vec![pod("p", "a")],
            vec![node("a", false, false)],
            vec![attachment("a", true)],
            vec![told(&format!("[{{\"devicePath\":\"\",\"name\":\"{UNIQUE}\"}}]"))],
        ),
        (vec![pod("p", "a")], vec![node("a", false, true)], vec![attachment("a", true)], none()),
        // A second node has to wait.
        (
            vec![pod("p", "b")],
            vec![node("a", true, true), node("b", false, false)],
            vec![attachment("a", true)],
            none(),
        ),
        // Nobody needs it any more.
        (vec![], vec![node("a", true, true)], vec![attachment("a", true)], none()),
        (vec![], vec![node("a", false, true)], vec![attachment("a", true)], untold()),
        (
            vec![],
            vec![node("a", false, false)],
            vec![attachment("a", true)],
            vec!["confirm unchanged a".to_owned(), "delete va-a".to_owned()],
        ),
        // Somebody else ended the attachment, and the node is still told of it.
        (vec![], vec![node("a", false, true)], vec![], vec!["confirm absent va-a".to_owned(), told("[]")]),
        (vec![], vec![node("a", true, true)], vec![], none()),
        // Everybody is dead who may have it on a node that is not heard.
        (vec![], vec![named(&by(r#"["p"]"#), "Unknown")], vec![left("p")], untold()),
        (vec![], vec![named(&by(r#"["p","q"]"#), "Unknown")], vec![left("o,q,p")], untold()),
        (vec![], vec![named(&by(r#"["p","q"]"#), "Unknown")], vec![left("p")], none()),
        (vec![], vec![named(&by(r#"["p"]"#), "True")], vec![left("p")], none()),
        (vec![], vec![unheard(named(&by(r#"["p"]"#), "True"))], vec![left("p")], untold()),
        (vec![], vec![named(&by("[]"), "Unknown")], vec![left("p")], none()),
        (vec![], vec![named("{}", "Unknown")], vec![left("p")], none()),
        (vec![], vec![named("p", "Unknown")], vec![left("p")], none()),
        (vec![pod("p", "a")], vec![named(&by(r#"["p"]"#), "Unknown")], vec![left("p")], none()),
        // Proof that the node is down, by an operator.
        (vec![], vec![out_of_service(node("a", true, true))], vec![attachment("a", true)], untold()),
    ] {
        let (words, _) = at(&mut AttachDetach::default(), &pods, &nodes, &attachments, 0);
        assert_eq!(words, expected, "{pods:?} {nodes:?} {attachments:?}");
    }
    // A node that is gone: after six minutes, and surely.
    let mut c = AttachDetach::default();
    assert_eq!(at(&mut c, &[], &[], &[attachment("a", true)], 1000).0, none());
    assert_eq!(at(&mut c, &[], &[], &[attachment("a", true)], 1359).0, none());
    let gone = ["confirm absent a", "delete va-a"];
    assert_eq!(at(&mut c, &[], &[], &[attachment("a", true)], 1360).0, gone);
    // One that came back and goes once more has all of its time again, whatever it was seen with meanwhile.
    let used = || (vec![pod("p", "a")], vec![node("a", true, true)], vec![attachment("a", true)]);
    let to_attach = || (vec![pod("p", "a")], vec![node("a", false, false)], vec![]);
    for (start_s, (pods, nodes, attachments), expected) in [(2000, used(), none()), (3000, to_attach(), give())] {
        assert_eq!(at(&mut c, &pods, &nodes, &attachments, start_s).0, expected);
        assert_eq!(at(&mut c, &[], &[], &[attachment("a", true)], start_s + 10).0, none());
        assert_eq!(at(&mut c, &[], &[], &[attachment("a", true)], start_s + 370).0, gone);
    }
    // And before who did not lead, and so did not see whether it was there.
    c.begin();
    assert_eq!(at(&mut c, &[], &[], &[attachment("a", true)], 9000).0, none());
    assert_eq!(at(&mut c, &[], &[], &[attachment("a", true)], 9360).0, gone);
    // The volume is given to a node first, while the one before surely has it no more, and then attached.
    for (last, expected) in [
        ("a", vec!["confirm alive ns/p", "confirm unchanged v", "create volumeattachments.storage.k8s.io va-a"]),
        (
            "b",
            vec!["confirm alive ns/p", "confirm absent va-b", "patch v annotations={\"carrack.io/attached-to\":\"a\"}"],
        ),
    ] {
        let mut given = volume();
        given["metadata"]["annotations"] = json!({LAST_NODE: last});
        let view = caches(&given, &[pod("p", "a")], &[node("a", false, false)], &[]);
        let plan = AttachDetach::default().reconcile(&Key::new("", "v"), &view.view(), Time::default());
        let short = |node: &str| attachment_name("d", "h", node);
        let found: Vec<String> =
            words(&plan).into_iter().map(|w| w.replace(&short("a"), "va-a").replace(&short("b"), "va-b")).collect();
        assert_eq!(found, expected, "given to {last}");
        assert!(plan.premises.iter().any(|(number, _)| number + 1 == plan.writes.len()), "{plan:?}");
    }
    // A disk that was lost may come back as another device.
    let mut moved = attachment("a", true);
    moved["status"]["attachmentMetadata"] = json!({"devicePath": "/dev/y"});
    let (words, _) = at(&mut c, &[pod("p", "a")], &[node("a", true, true)], &[moved], 0);
    assert_eq!(words, [told(&format!("[{{\"devicePath\":\"/dev/y\",\"name\":\"{UNIQUE}\"}}]"))]);
    // Who waits is told why.
    let nodes = [node("a", true, true), node("b", false, false)];
    let (_, plan) = at(&mut c, &[pod("p", "b")], &nodes, &[attachment("a", true)], 0);
    assert_eq!(plan.events[0].reason, "FailedAttachVolume");
    let whole = "Multi-Attach error for volume \"v\" Volume is already";
    assert!(
        plan.events[0].message.starts_with(&format!("{whole} exclusively attached to one node")),
        "{:?}",
        plan.events
    );
    let (_, plan) = at(&mut c, &[pod("o", "a"), pod("p", "b")], &nodes, &[attachment("a", true)], 0);
    assert_eq!(plan.events[0].message, format!("{whole} used by pod(s) o"));
    // And that nobody answers.
    let mut asked = attachment("a", false);
    asked["metadata"]["creationTimestamp"] = "1970-01-01T00:00:10Z".into();
    let nodes = [node("a", false, false)];
    let (_, plan) = at(&mut c, &[pod("p", "a")], &nodes, &[asked.clone()], 100);
    assert_eq!((plan.events.len(), plan.requeue_after.map(|wait| wait.as_secs())), (0, Some(30)));
    let (_, plan) = at(&mut c, &[pod("p", "a")], &nodes, &[asked], 131);
    let late = "timed out waiting for external-attacher of d CSI driver to attach volume v";
    assert!(plan.events[0].message.ends_with(late), "{:?}", plan.events);
    // Who asks to delete a volume that a claim has takes it from nobody.
    let mut going = volume();
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let view = caches(&going, &[pod("p", "a")], &nodes, &[]);
    let plan = AttachDetach::default().reconcile(&Key::new("", "v"), &view.view(), Time::default());
    assert_eq!(crate::testing::words(&plan), give());
}

#[test]
fn a_pod_whose_attachment_is_refused_says_why() {
    let pods = [pod("p", "a"), pod("q", "b")];
    let caches = caches(&volume(), &pods, &[node("a", false, false), node("b", false, false)], &[]);
    let write = Plan::none().create(&of::<VolumeAttachment>(attachment("a", false))).writes.remove(0);
    let error = StatusError { code: 403, message: "not here".into(), ..StatusError::default() };
    let refusal = Refusal { write: &write, error: &error };
    let plan = AttachDetach::default().refused(&Key::new("", "v"), &caches.view(), &refusal, Time::default());
    assert!(plan.writes.is_empty());
    let told: Vec<_> = plan.events.iter().map(|e| (e.regarding.name.as_deref(), e.message.as_str())).collect();
    assert_eq!(told, [(Some("p"), "AttachVolume.Attach failed for volume \"v\" : not here")]);
}

/// What is refused of one node, as by a webhook, ends nothing of the others; that a node is told of what it has no more comes first.
#[test]
fn nodes_do_not_wait_for_one_whose_attachment_is_refused() {
    let mut shared = volume();
    shared["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    let pods = [pod("p", "a"), pod("q", "b")];
    let short = |node: &str| attachment_name("d", "h", node);
    let create = |node: &str| format!("create volumeattachments.storage.k8s.io {}", short(node));
    let attaches = vec!["confirm alive ns/p".to_owned(), create("a"), "confirm alive ns/q".to_owned(), create("b")];
    let untold = vec![format!("confirm absent {}", short("c")), "patch c/status volumesAttached=[]".to_owned()];
    for (others, first) in [(vec![], vec![]), (vec![node("c", false, true)], untold)] {
        let nodes = [vec![node("a", false, false), node("b", false, false)], others].concat();
        let view = caches(&shared, &pods, &nodes, &[]);
        let plan = AttachDetach::default().reconcile(&Key::new("", "v"), &view.view(), Time::default());
        assert_eq!(words(&plan), [first.clone(), attaches.clone()].concat());
        let apart: Vec<usize> = plan.apart.iter().copied().collect();
        assert_eq!(apart, (first.len()..plan.writes.len()).collect::<Vec<_>>(), "{plan:?}");
    }
    // Nor does what ends.
    let nodes = [node("a", false, true), node("b", false, true)];
    let there = [attachment("a", true), attachment("b", true)];
    let (_, plan) = at(&mut AttachDetach::default(), &[], &nodes, &there, 0);
    assert_eq!((plan.writes.len(), plan.apart.len()), (2, 2), "{plan:?}");
}

/// Upstream's tests make the CSIDriver when a pod of it waits already ("should bringup pod after deploying CSIDriver attach=false",
/// `test/e2e/storage/csimock/csi_attach_volume.go`).
#[test]
fn what_was_never_attached_goes_when_its_driver_needs_none() {
    for (required, attached, told, goes) in [
        (Some(false), false, false, true),
        // What is attached stays for as long as its node uses it.
        (Some(false), true, false, false),
        (Some(false), false, true, false),
        (Some(true), false, false, false),
        (None, false, false, false),
    ] {
        let driver = json!({"metadata": {"name": "d"}, "spec": {"attachRequired": required}});
        let nodes = [node("a", true, told)];
        let view = caches(&volume(), &[pod("p", "a")], &nodes, &[attachment("a", attached)]);
        let view = view.with::<CSIDriver>([of(driver)]);
        let plan = AttachDetach::default().reconcile(&Key::new("", "v"), &view.view(), Time::default());
        let gone = format!("delete {}", attachment_name("d", "h", "a"));
        let gone: Vec<String> = goes.then_some(gone).into_iter().collect();
        assert_eq!(words(&plan), gone, "{required:?} {attached} {told}");
    }
}

#[test]
fn what_is_attached_of_a_volume_that_is_gone_goes_where_nobody_uses_it() {
    let named = |mut attachment: Value, unique: bool| {
        if unique {
            attachment["metadata"]["annotations"] = json!({UNIQUE_NAME: UNIQUE});
        }
        attachment
    };
    let untold = ["confirm absent v", "patch a/status volumesAttached=[]"];
    for (node, unique, expected) in [
        (node("a", true, true), true, vec![]),
        (node("a", true, true), false, vec![]),
        // One that upstream's controller made says no name, but has it from the disk.
        (node("a", false, true), false, untold.to_vec()),
        (node("a", false, false), false, vec!["confirm absent v", "confirm unchanged a", "delete va-a"]),
        (node("a", false, true), true, untold.to_vec()),
        (node("a", false, false), true, vec!["confirm absent v", "confirm unchanged a", "delete va-a"]),
    ] {
        let caches = Caches::new()
            .with::<PersistentVolume>([])
            .with::<Node>([of(node.clone())])
            .with_index(BY_VOLUME, by_volume)
            .with::<VolumeAttachment>([of(named(attachment("a", true), unique))]);
        let plan = AttachDetach::default().reconcile(&Key::new("", "v"), &caches.view(), Time::default());
        let found: Vec<String> =
            words(&plan).into_iter().map(|w| w.replace(&attachment_name("d", "h", "a"), "va-a")).collect();
        assert_eq!(found, expected, "{node} {unique}");
    }
}

/// What somebody else made under a name of his own is his.
#[test]
fn what_has_another_name_is_left_alone() {
    let mut odd = attachment("a", true);
    odd["metadata"]["name"] = "mine".into();
    let caches = Caches::new()
        .with::<PersistentVolume>([])
        .with::<Node>([of(node("a", false, false))])
        .with_index(BY_VOLUME, by_volume)
        .with::<VolumeAttachment>([of(odd)]);
    let plan = AttachDetach::default().reconcile(&Key::new("", "v"), &caches.view(), Time::default());
    assert!(plan.writes.is_empty(), "{plan:?}");
}

/// A pod that is to go has its disk as long as a container of it may run.
#[test]
fn pods_end_with_their_containers() {
    let going = |statuses: Value| {
        let mut pod = pod("p", "a");
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        pod["status"]["containerStatuses"] = statuses;
        pod
    };
    let one = |state: Value| json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let (running, ended) = (one(json!({"running": {}})), one(json!({"terminated": {"exitCode": 0}})));
    let unknown = one(Value::Null);
    for (statuses, has_it) in [
        (json!([running]), true),
        (json!([ended, running]), true),
        (json!([ended, unknown]), true),
        (json!([ended]), false),
        (json!([]), false),
    ] {
        let (words, _) = at(
            &mut AttachDetach::default(),
            &[going(statuses.clone())],
            &[node("a", false, true)],
            &[attachment("a", true)],
            0,
        );
        assert_eq!(words.is_empty(), has_it, "{statuses}: {words:?}");
    }
}

#[test]
fn a_flexvolume_is_attached_where_its_driver_says_that_it_attaches() {
    let unique = "flexvolume-v/d/pv";
    let name = flex_attachment_name(unique, "a");
    for (says, in_use, attachments, expected) in [
        (None, false, 0, vec![]),
        (Some("false"), false, 0, vec![]),
        (Some("true"), false, 0, vec!["confirm alive ns/p", "confirm unchanged pv", "create"]),
        (Some("true"), true, 1, vec!["patch a/status"]),
        // What it said before it was upgraded does not hold any more.
        (Some("false"), true, 1, vec![]),
        (Some("false"), false, 1, vec!["confirm unchanged a", "delete"]),
    ] {
        let volume = json!({"metadata": {"name": "pv", "uid": "pv", "resourceVersion": "1",
                "annotations": {LAST_NODE: "a", FLEX_ATTACHES: says}},
            "spec": {"accessModes": ["ReadWriteOnce"], "flexVolume": {"driver": "v/d"},
                "claimRef": {"namespace": "ns", "name": "c", "uid": "c"}}});
        let mut claim = claim();
        claim["spec"]["volumeName"] = "pv".into();
        let mut node = node("a", false, false);
        if in_use {
            node["status"]["volumesInUse"] = json!([unique]);
        }
        let attachment = json!({"metadata": {"name": name, "uid": "va"}, "spec": {"attacher": FLEX_ATTACHER,
                "nodeName": "a", "source": {"persistentVolumeName": "pv"}},
            "status": {"attached": true, "attachmentMetadata": {"devicePath": "/dev/x"}}});
        let mut volume = volume;
        if says.is_none() {
            volume["metadata"]["annotations"] = json!({LAST_NODE: "a"});
        }
        let caches = Caches::new()
            .with::<PersistentVolume>([of(volume)])
            .with::<PersistentVolumeClaim>([of(claim)])
            .with::<CSIDriver>([])
            .with_index::<Pod>(BY_CLAIM, pods::by_claim)
            .with::<Pod>([of(pod("p", "a"))])
            .with::<Node>([of(node)])
            .with_index(BY_VOLUME, by_volume)
            .with::<VolumeAttachment>((0..attachments).map(|_| of(attachment.clone())));
        let plan = AttachDetach::default().reconcile(&Key::new("", "pv"), &caches.view(), Time::default());
        let found = words(&plan);
        assert!(
            found.len() == expected.len() && found.iter().zip(&expected).all(|(f, e)| f.starts_with(e)),
            "{says:?} {in_use} {attachments}: {found:?}"
        );
        for write in &plan.writes {
            if let Write::Create { object, .. } = write {
                assert_eq!(object["metadata"]["name"], name.as_str());
                assert_eq!(object["metadata"]["annotations"][UNIQUE_NAME], unique);
                assert_eq!(object["spec"]["attacher"], FLEX_ATTACHER);
            }
        }
    }
}

/// What the API holds at one time.
#[derive(Clone, Default)]
struct Stored {
    revision: u64,
    volume: Value,
    pods: Vec<Value>,
    nodes: Vec<Value>,
    attachments: Vec<Value>,
}

impl Stored {
    fn bump(&mut self) -> String {
        self.revision += 1;
        self.revision.to_string()
    }
    fn node(&mut self, name: &str) -> &mut Value {
        self.nodes.iter_mut().find(|n| n["metadata"]["name"] == name).expect("a node")
    }
}

struct World {
    now: Stored,
    /// As it was after each step, for caches that lag.
    history: Vec<Stored>,
    /// What is mounted, by node: whatever the API says.
    mounted: BTreeSet<String>,
    /// Nodes that cannot reach the API, but run on.
    cut: BTreeSet<String>,
    born: u32,
    detached_in_use: bool,
    doubly: bool,
    /// A planted bug: what writes rest on besides their objects is not looked at.
    groundless: bool,
}

/// A controller with a plan of which it has carried out so many writes.
struct Actor {
    core: AttachDetach,
    plan: Option<Plan>,
    done: usize,
    /// It sees nothing older than this.
    barrier: usize,
}

impl World {
    fn new() -> Self {
        let nodes = vec![node("a", false, false), node("b", false, false)];
        let now = Stored { revision: 1, volume: volume(), nodes, ..Stored::default() };
        Self {
            history: vec![now.clone()],
            now,
            mounted: BTreeSet::new(),
            cut: BTreeSet::new(),
            born: 0,
            detached_in_use: false,
            doubly: false,
            groundless: false,
        }
    }

    fn people(&mut self, rng: &mut Rng) {
        let node = if rng.one_in(2) { "a" } else { "b" };
        match rng.below(4) {
            0 | 1 if self.now.pods.len() < 2 => {
                self.born += 1;
                let mut pod = pod(&format!("p{}", self.born), node);
                pod["metadata"]["resourceVersion"] = self.now.bump().into();
                self.now.pods.push(pod);
            }
            2 if !self.now.pods.is_empty() => {
                let revision = self.now.bump();
                let pod = &mut self.now.pods[0];
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                pod["metadata"]["resourceVersion"] = revision.into();
            }
            // By force: the object goes at once, whatever runs.
            3 if !self.now.pods.is_empty() && rng.one_in(3) => {
                self.now.bump();
                self.now.pods.remove(0);
            }
            _ => {}
        }
    }

    /// A kubelet: reports before it mounts, mounts what it has read to be attached, unmounts before it unreports.
    fn kubelet(&mut self, name: &str) {
        if self.cut.contains(name) {
            return;
        }
        let wants =
            self.now.pods.iter().any(|p| p["spec"]["nodeName"] == name && p["metadata"]["deletionTimestamp"].is_null());
        let revision = self.now.bump();
        let node = self.now.node(name);
        let has = |list: &Value| list.as_array().is_some_and(|l| !l.is_empty());
        let (reported, attached) = (has(&node["status"]["volumesInUse"]), has(&node["status"]["volumesAttached"]));
        let mounted = self.mounted.contains(name);
        let report = match (wants, reported, mounted) {
            (true, false, _) => Some(json!([UNIQUE])),
            (true, true, false) if attached => {
                self.mounted.insert(name.to_owned());
                None
            }
            (false, _, true) => {
                self.mounted.remove(name);
                None
            }
            (false, true, false) => Some(json!([])),
            _ => None,
        };
        match report {
            Some(list) => {
                node["status"]["volumesInUse"] = list;
                node["metadata"]["resourceVersion"] = revision.into();
            }
            None => {
                // A pod is over when nothing of it is mounted.
                let mounted = self.mounted.contains(name);
                self.now.pods.retain(|p| {
                    mounted || p["spec"]["nodeName"] != name || p["metadata"]["deletionTimestamp"].is_null()
                });
            }
        }
    }

    /// The attacher: carries out what attachments say.
    fn attacher(&mut self) {
        let revision = self.now.bump();
        let deleting = |a: &Value| !a["metadata"]["deletionTimestamp"].is_null();
        if let Some(i) = self.now.attachments.iter().position(deleting) {
            let gone = self.now.attachments.remove(i);
            let node = gone["spec"]["nodeName"].as_str().unwrap_or_default();
            self.detached_in_use |= self.mounted.contains(node);
        } else if let Some(a) = self.now.attachments.iter_mut().find(|a| a["status"]["attached"] == false) {
            a["status"]["attached"] = true.into();
            a["metadata"]["resourceVersion"] = revision.into();
        }
    }

    fn decide(&self, actor: &mut Actor, rng: &mut Rng) {
        let oldest = actor.barrier.max(self.history.len().saturating_sub(8));
        let mut pick = || {
            let span = u64::try_from(self.history.len() - oldest).unwrap_or(1);
            &self.history[oldest + usize::try_from(rng.below(span)).unwrap_or(0)]
        };
        let caches = caches(&pick().volume, &pick().pods, &pick().nodes, &pick().attachments);
        let plan = actor.core.reconcile(&Key::new("", "v"), &caches.view(), Time::from_unix_s(0));
        (actor.plan, actor.done) = (Some(plan), 0);
    }

    /// The next write of a plan: anything may happen between two of them.
    fn carry_out(&mut self, actor: &mut Actor) {
        let Some(plan) = &actor.plan else { return };
        let number = actor.done;
        let going = plan.writes.get(number).is_some_and(|write| {
            let premises = plan.premises.iter().filter(|(n, _)| *n == number).map(|(_, premise)| premise);
            let sound = matches!(write, Write::Confirm { .. }) || self.groundless || self.hold(premises);
            sound && self.write(write)
        });
        actor.done += 1;
        if !going || actor.done == plan.writes.len() {
            actor.plan = None;
            actor.barrier = self.history.len();
        }
    }

    fn hold<'a>(&self, mut premises: impl Iterator<Item = &'a Premise>) -> bool {
        premises.all(|premise| {
            let all: Vec<&Value> = match &*premise.resource {
                "nodes" => self.now.nodes.iter().collect(),
                "volumeattachments" => self.now.attachments.iter().collect(),
                "persistentvolumes" => vec![&self.now.volume],
                other => panic!("{other}"),
            };
            let meta = all.into_iter().map(|o| &o["metadata"]).find(|m| m["name"] == premise.name.as_str());
            let text = |m: &Value, field: &str| m[field].as_str().unwrap_or_default().to_owned();
            match meta {
                None => premise.uid.is_none(),
                Some(m) => premise.holds(&text(m, "uid"), &text(m, "resourceVersion"), None, None),
            }
        })
    }

    /// Whether the API server takes it.
    fn write(&mut self, write: &Write) -> bool {
        let name = write.key().name;
        let meta = |list: &[Value]| list.iter().map(|o| o["metadata"].clone()).find(|m| m["name"] == name.as_str());
        let all: Vec<Value> =
            [&self.now.pods[..], &self.now.nodes, &self.now.attachments, std::slice::from_ref(&self.now.volume)]
                .concat();
        match write {
            Write::Confirm { absent: Absent::Newer { resource_version, .. }, .. } => {
                meta(&all).is_none_or(|m| m["resourceVersion"] == resource_version.as_str())
            }
            Write::Confirm { absent: Absent::Object { .. }, .. } => meta(&all).is_none(),
            Write::Confirm { absent: Absent::End { .. }, .. } => {
                meta(&all).is_some_and(|m| m["deletionTimestamp"].is_null())
            }
            Write::Create { object, .. } => {
                if meta(&self.now.attachments).is_some() {
                    return false;
                }
                self.doubly |= !self.now.attachments.is_empty();
                let mut object = object.clone();
                self.born += 1;
                object["metadata"]["uid"] = format!("va{}", self.born).into();
                object["metadata"]["resourceVersion"] = self.now.bump().into();
                object["status"] = json!({"attached": false});
                self.now.attachments.push(object);
                true
            }
            Write::Delete { options, .. } => {
                let revision = self.now.bump();
                let found = self.now.attachments.iter_mut().find(|a| a["metadata"]["name"] == name.as_str());
                if let Some(a) = found.filter(|a| a["metadata"]["uid"].as_str() == options.uid.as_deref()) {
                    a["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                    a["metadata"]["resourceVersion"] = revision.into();
                }
                true
            }
            Write::Patch { patch, .. } => {
                let revision = self.now.bump();
                if name == "v" {
                    if self.now.volume["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"] {
                        return false;
                    }
                    self.now.volume["metadata"]["annotations"] = patch["metadata"]["annotations"].clone();
                    self.now.volume["metadata"]["resourceVersion"] = revision.into();
                    return true;
                }
                let node = self.now.node(&name);
                if node["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"] {
                    return false;
                }
                node["status"]["volumesAttached"] = patch["status"]["volumesAttached"].clone();
                node["metadata"]["resourceVersion"] = revision.into();
                true
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Plays one seed; whether a disk was taken from a node that used it, and whether it was attached twice.
fn play(seed: u64, careless: bool, two: bool) -> (bool, bool, usize) {
    let mut rng = Rng::new(seed);
    let mut world = World::new();
    let core = || if careless { AttachDetach::with_planted_carelessness() } else { AttachDetach::default() };
    let mut actors: Vec<Actor> =
        (0..if two { 2 } else { 1 }).map(|_| Actor { core: core(), plan: None, done: 0, barrier: 0 }).collect();
    let mut mounts = 0;
    for _ in 0..600 {
        let before = world.mounted.len();
        match rng.below(9) {
            0 => world.people(&mut rng),
            1 | 2 => world.kubelet(if rng.one_in(2) { "a" } else { "b" }),
            3 => world.attacher(),
            4 if rng.one_in(4) => {
                let name = if rng.one_in(2) { "a" } else { "b" };
                if !world.cut.remove(name) {
                    world.cut.insert(name.to_owned());
                }
            }
            5 => {
                // It dies before it acts, and forgets everything.
                let i = usize::try_from(rng.below(2)).unwrap_or(0) % actors.len();
                if rng.one_in(5) {
                    actors[i] = Actor { core: core(), plan: None, done: 0, barrier: 0 };
                }
            }
            _ => {
                let i = usize::try_from(rng.below(2)).unwrap_or(0) % actors.len();
                if actors[i].plan.is_some() {
                    world.carry_out(&mut actors[i]);
                } else {
                    world.decide(&mut actors[i], &mut rng);
                }
            }
        }
        mounts += world.mounted.len().saturating_sub(before);
        world.history.push(world.now.clone());
    }
    (world.detached_in_use, world.doubly, mounts)
}

#[test]
fn no_disk_is_taken_from_a_node_that_uses_it() {
    let mut mounts = 0;
    for seed in 0..60 {
        for two in [false, true] {
            let (taken, doubly, mounted) = play(seed, false, two);
            assert!(!taken, "seed {seed}, two {two}: a disk in use was detached");
            assert!(!doubly, "seed {seed}, two {two}: a single-writer disk was attached twice");
            mounts += mounted;
        }
    }
    assert!(mounts > 100, "hardly anything was mounted: {mounts}");
}

#[test]
fn carelessness_is_found() {
    assert!((0..60).any(|seed| play(seed, true, false).0));
}

impl World {
    /// A controller that knows everything, and hangs before the last write of its plan.
    fn begin_to_act(&mut self, rng: &mut Rng) -> Actor {
        self.history = vec![self.now.clone()];
        let mut actor = Actor { core: AttachDetach::default(), plan: None, done: 0, barrier: 0 };
        self.decide(&mut actor, rng);
        let all = actor.plan.as_ref().map_or(0, |plan| plan.writes.len());
        (1..all).for_each(|_| self.carry_out(&mut actor));
        actor
    }
    /// One that does not hang.
    fn act(&mut self, rng: &mut Rng) {
        let mut actor = self.begin_to_act(rng);
        self.carry_out(&mut actor);
    }
}

/// How many attachments there are after a controller hangs before the last write of its plan, while the pod goes, another one
/// comes on the other node, and a second controller acts.
fn after_a_pause(groundless: bool) -> usize {
    let mut world = World { groundless, ..World::new() };
    let mut rng = Rng::new(1);
    world.now.volume["metadata"]["annotations"] = json!({LAST_NODE: "a"});
    world.now.pods = vec![pod("p1", "a")];
    world.history = vec![world.now.clone()];
    let mut paused = world.begin_to_act(&mut rng);
    world.now.pods = vec![pod("p2", "b")];
    // The volume is given to the other node, and then attached there.
    world.act(&mut rng);
    world.act(&mut rng);
    assert_eq!(world.now.attachments.len(), 1, "the other one has attached it");
    world.carry_out(&mut paused);
    world.now.attachments.len()
}

#[test]
fn a_paused_controller_attaches_no_disk_twice() {
    assert_eq!(after_a_pause(false), 1);
    assert_eq!(after_a_pause(true), 2, "without their grounds writes do that");
}

/// Whether a disk was taken from a node that uses it, after a controller hangs before it ends the attachment, while a pod comes
/// back to the node and a second controller acts.
fn detached_after_a_pause(groundless: bool) -> bool {
    let mut world = World { groundless, ..World::new() };
    let mut rng = Rng::new(1);
    world.now.attachments = vec![attachment("a", true)];
    let mut paused = world.begin_to_act(&mut rng);
    world.now.pods = vec![pod("p", "a")];
    world.kubelet("a");
    world.act(&mut rng);
    world.kubelet("a");
    assert!(world.mounted.contains("a"), "the node was told that it has the disk, and mounts it");
    world.carry_out(&mut paused);
    world.attacher();
    world.detached_in_use
}

#[test]
fn a_paused_controller_detaches_no_disk_in_use() {
    assert!(!detached_after_a_pause(false));
    assert!(detached_after_a_pause(true), "without their grounds writes do that");
}
