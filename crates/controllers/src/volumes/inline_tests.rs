//! Single decisions about FlexVolumes that pods bring themselves, as a table. What begins and ends an attachment in any order
//! of events is shown with volumes of claims (`attach_tests.rs`); the simulator has both.

use carrack_engine::testing::Caches;
use carrack_engine::{StatusError, Write};
use serde_json::{Value, json};

use super::super::told::MANAGED;
use super::*;
use crate::node::OUT_OF_SERVICE_TAINT;
use crate::testing::{of, words};

const UNIQUE: &str = "flexvolume-v/d/x";

fn pod(name: &str, node: &str, attaches: Option<&str>) -> Value {
    let mut pod = json!({"metadata": {"namespace": "ns", "name": name, "uid": name}, "spec": {"nodeName": node,
        "containers": [], "volumes": [{"name": "x", "flexVolume": {"driver": "v/d", "fsType": "ext4", "readOnly": true,
            "options": {"size": "1G"}}}]}, "status": {"phase": "Running"}});
    if let Some(attaches) = attaches {
        pod["metadata"]["annotations"] = json!({FLEX_ATTACHES: attaches});
    }
    pod
}

fn node(name: &str, in_use: bool, attached: bool) -> Value {
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "annotations": {MANAGED: "true"}},
        "spec": {"taints": []},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "volumesInUse": if in_use { json!([UNIQUE]) } else { json!([]) },
            "volumesAttached": if attached { json!([{"name": UNIQUE, "devicePath": "/dev/x"}]) } else { json!([]) }}})
}

fn attached(node: &str) -> Value {
    let pod: Pod = of(pod("p", node, None));
    let (_, flex) = brought(&pod).next().expect("it brings one");
    let mut found = serde_json::to_value(attachment(UNIQUE, flex, node)).expect("JSON");
    found["metadata"]["uid"] = format!("va-{node}").into();
    found["status"] = json!({"attached": true, "attachmentMetadata": {"devicePath": "/dev/x"}});
    found
}

fn decide(pods: &[Value], nodes: &[Value], attachments: &[Value]) -> Plan {
    let caches = Caches::new()
        .with_index::<Pod>(BY_FLEX, by_flex)
        .with_index::<VolumeAttachment>(BY_BROUGHT, by_brought)
        .with::<Pod>(pods.iter().cloned().map(of))
        .with::<Node>(nodes.iter().cloned().map(of))
        .with::<VolumeAttachment>(attachments.iter().cloned().map(of));
    InlineAttachDetach::default().reconcile(&Key::new("", UNIQUE), &caches.view(), Time::default())
}

/// What it is about, pods, nodes, attachments, and what is written.
type Case = (&'static str, Vec<Value>, Vec<Value>, Vec<Value>, Vec<String>);

#[test]
fn single_decisions() {
    let attaches = |name: &str, node: &str| pod(name, node, Some("v/c,v/d"));
    let changed = |mut value: Value, change: &dyn Fn(&mut Value)| {
        change(&mut value);
        value
    };
    let create = |node: &str| {
        let name = flex_attachment_name(UNIQUE, node);
        vec!["confirm alive ns/p".to_owned(), format!("create volumeattachments.storage.k8s.io {name}")]
    };
    let told = |list: &str| vec![format!("patch a/status volumesAttached={list}")];
    let is = format!("[{{\"devicePath\":\"/dev/x\",\"name\":\"{UNIQUE}\"}}]");
    let ended = || vec!["confirm unchanged a".to_owned(), format!("delete {}", flex_attachment_name(UNIQUE, "a"))];
    let (free, used) = (|| node("a", false, false), || node("a", true, true));
    let (none, here) = (Vec::new, || vec![attached("a")]);
    let cases: Vec<Case> = vec![
        ("it is attached", vec![attaches("p", "a")], vec![free()], none(), create("a")),
        ("not known whether it is", vec![pod("p", "a", None)], vec![free()], none(), vec![]),
        ("its driver does not", vec![pod("p", "a", Some("v/c"))], vec![free()], none(), vec![]),
        ("not on a node", vec![attaches("p", "")], vec![free()], none(), vec![]),
        (
            "the node attaches by itself",
            vec![attaches("p", "a")],
            vec![changed(free(), &|n| n["metadata"]["annotations"] = json!({}))],
            none(),
            vec![],
        ),
        (
            "the pod goes",
            vec![changed(attaches("p", "a"), &|p| p["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into())],
            vec![free()],
            none(),
            vec![],
        ),
        ("the node is told", vec![attaches("p", "a")], vec![node("a", true, false)], here(), told(&is)),
        ("once", vec![attaches("p", "a")], vec![used()], here(), vec![]),
        // Its driver knows whether another node may have it too.
        (
            "another node",
            vec![attaches("q", "a"), attaches("p", "b")],
            vec![used(), node("b", false, false)],
            here(),
            create("b"),
        ),
        (
            "another of its name, while this one is in use",
            vec![changed(attaches("p", "a"), &|p| p["spec"]["volumes"][0]["flexVolume"]["options"] = json!({}))],
            vec![used()],
            here(),
            vec![],
        ),
        (
            "another of its name, then",
            vec![changed(attaches("p", "a"), &|p| p["spec"]["volumes"][0]["flexVolume"]["options"] = json!({}))],
            vec![free()],
            here(),
            ended(),
        ),
        ("in use", none(), vec![used()], here(), vec![]),
        (
            "in use by one that has ended",
            vec![changed(attaches("p", "a"), &|p| p["status"]["phase"] = "Failed".into())],
            vec![used()],
            here(),
            vec![],
        ),
        ("untold", none(), vec![node("a", false, true)], here(), told("[]")),
        ("ended", none(), vec![free()], here(), ended()),
        (
            "proof that the node is down",
            none(),
            vec![changed(used(), &|n| {
                n["spec"]["taints"] = json!([{"key": OUT_OF_SERVICE_TAINT, "effect": "NoExecute"}]);
                n["status"]["conditions"][0]["status"] = "Unknown".into();
            })],
            here(),
            told("[]"),
        ),
        (
            "another's attachment",
            none(),
            vec![free()],
            vec![changed(attached("a"), &|a| a["spec"]["attacher"] = "other".into())],
            vec![],
        ),
    ];
    for (what, pods, nodes, attachments, expected) in cases {
        assert_eq!(words(&decide(&pods, &nodes, &attachments)), expected, "{what}");
    }
}

#[test]
fn an_attachment_says_all_that_its_attacher_needs() {
    let plan = decide(&[pod("p", "a", Some("v/d"))], &[node("a", false, false)], &[]);
    let created = plan.writes.iter().find_map(|w| match w {
        Write::Create { object, .. } => Some(object),
        _ => None,
    });
    let created = created.expect("one is made");
    assert_eq!(created["metadata"]["annotations"][UNIQUE_NAME], UNIQUE);
    assert_eq!(created["spec"]["attacher"], FLEX_ATTACHER);
    let source = json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": FLEX_ATTACHER,
        "volumeHandle": UNIQUE, "fsType": "ext4", "readOnly": true, "volumeAttributes": {"size": "1G"}}}});
    assert_eq!(created["spec"]["source"], source);
}

#[test]
fn a_volume_called_like_an_attached_one_of_a_claim_waits() {
    let mut of_claim = attached("a");
    of_claim["spec"]["source"] = json!({"persistentVolumeName": "x"});
    let plan = decide(&[pod("p", "a", Some("v/d"))], &[node("a", true, true)], &[of_claim]);
    assert_eq!(words(&plan), Vec::<String>::new());
    assert_eq!(plan.events[0].reason, "FailedAttachVolume");
    // And is not ended for it.
    let mut of_claim = attached("a");
    of_claim["spec"]["source"] = json!({"persistentVolumeName": "x"});
    assert!(decide(&[], &[node("a", false, false)], &[of_claim]).is_none());
}

#[test]
fn a_node_that_came_back_has_all_of_its_time_when_it_goes_again() {
    let mut c = InlineAttachDetach::default();
    let mut look = |pods: &[Value], nodes: &[Value], at_s: i64| {
        let caches = Caches::new()
            .with_index::<Pod>(BY_FLEX, by_flex)
            .with_index::<VolumeAttachment>(BY_BROUGHT, by_brought)
            .with::<Pod>(pods.iter().cloned().map(of))
            .with::<Node>(nodes.iter().cloned().map(of))
            .with::<VolumeAttachment>([of(attached("a"))]);
        words(&c.reconcile(&Key::new("", UNIQUE), &caches.view(), Time::from_unix_s(at_s))).len()
    };
    assert_eq!([look(&[], &[], 0), look(&[], &[], 360)], [0, 2]);
    assert_eq!(look(&[pod("p", "a", Some("v/d"))], &[node("a", true, true)], 1000), 0);
    assert_eq!([look(&[], &[], 2000), look(&[], &[], 2359), look(&[], &[], 2360)], [0, 0, 2]);
}

#[test]
fn carelessness_is_found() {
    let caches = Caches::new()
        .with_index::<Pod>(BY_FLEX, by_flex)
        .with_index::<VolumeAttachment>(BY_BROUGHT, by_brought)
        .with::<Pod>([])
        .with::<Node>([of(node("a", true, true))])
        .with::<VolumeAttachment>([of(attached("a"))]);
    let plan = InlineAttachDetach::with_planted_carelessness().reconcile(
        &Key::new("", UNIQUE),
        &caches.view(),
        Time::default(),
    );
    assert_eq!(words(&plan), ["patch a/status volumesAttached=[]"]);
}

#[test]
fn a_pod_whose_attachment_is_refused_says_why() {
    let pods = [pod("p", "a", Some("v/d")), pod("q", "b", Some("v/d"))];
    let caches = Caches::new().with_index::<Pod>(BY_FLEX, by_flex).with::<Pod>(pods.map(of));
    let write = Plan::none().create(&of::<VolumeAttachment>(attached("a"))).writes.remove(0);
    let error = StatusError { code: 403, message: "not here".into(), ..StatusError::default() };
    let refusal = Refusal { write: &write, error: &error };
    let plan = InlineAttachDetach::default().refused(&Key::new("", UNIQUE), &caches.view(), &refusal, Time::default());
    assert!(plan.writes.is_empty());
    let told: Vec<_> = plan.events.iter().map(|e| (e.regarding.name.as_deref(), e.message.as_str())).collect();
    assert_eq!(told, [(Some("p"), "AttachVolume.Attach failed for volume \"x\" : not here")]);
}
