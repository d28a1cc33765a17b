//! Answers that come when the pod for which something was asked is on another way already, and what claims come to on the way.

use super::*;

/// A claim whose volume is to be made at a node, if one was chosen.
fn claim(selected: Option<&str>) -> Value {
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "d", "name": "claim",
        "uid": "claim"}, "spec": {"storageClassName": "disks", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    if let Some(node) = selected {
        claim["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": node});
    }
    claim
}

fn with_the_claim() -> Value {
    let mut first = pod("first", "1");
    first["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}]);
    first
}

impl World {
    fn hear(&mut self, collection: &str, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let id = *self.watches.get(collection).expect("it watches");
        let event = json!({"type": "MODIFIED", "object": object});
        self.step(Input::Watch { id, item: WatchItem::Event(event.to_string().into()) });
    }
    fn hear_of_claim(&mut self, claim: Value) {
        self.hear("/api/v1/persistentvolumeclaims", claim);
    }
    /// A node, and a pod whose volume is to be made there.
    fn with_a_claim() -> Self {
        let mut world = Self::new(Config::default(), vec![node("a", "4")], Vec::new());
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disks", "uid": "c"},
            "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"});
        world.hear("/apis/storage.k8s.io/v1/storageclasses", class);
        world.hear_of_claim(claim(None));
        world.tell("ADDED", with_the_claim());
        world
    }
    /// The calls by which the claim, and where the pod is to go, were written last.
    fn asked_for(&mut self) -> (CallId, CallId) {
        let claims = self.take(|request| request.path.ends_with("/persistentvolumeclaims/claim"));
        let says = |request: &ApiRequest| String::from_utf8_lossy(&request.body).contains(r#""nominatedNodeName":"a""#);
        let told = self.take(|request| request.path.ends_with("/pods/first/status") && says(request));
        let ([(claim, _)], [(told, _)]) = (&claims[..], &told[..]) else { panic!("{claims:?}, {told:?}") };
        (*claim, *told)
    }
    /// The same world when all was written, and the pod waits.
    fn waiting() -> Self {
        let mut world = Self::with_a_claim();
        let (claimed, told) = world.asked_for();
        let mut written = claim(Some("a"));
        written["metadata"]["resourceVersion"] = world.revision.to_string().into();
        world.reply(claimed, Ok(written));
        world.reply(told, Ok(json!({})));
        world.hear_of_claim(claim(Some("a")));
        assert_eq!((world.bound(), world.core.waiting.count()), (Vec::new(), 1));
        world
    }
    fn is_back(&self) -> bool {
        self.check();
        matches!(self.place("first"), Some(Place::Backoff { failed: true, .. }))
    }
}

/// What was asked when the pod was on its way the last time says nothing of what is asked now: the late answers of one are no
/// answers of the other, whatever they are.
#[test]
fn late_answers_are_none_to_what_is_asked_anew() {
    for late in [Ok(json!({})), Err(conflict())] {
        let case = format!("{late:?}");
        let mut world = World::with_a_claim();
        let (claimed, old) = world.asked_for();
        world.reply(claimed, Err(conflict()));
        assert!(world.is_back(), "{case}");
        world.pass(s(2));
        let (claimed, told) = world.asked_for();
        world.reply(old, late);
        world.reply(told, Ok(json!({})));
        assert_eq!(
            (world.core.waiting.count(), world.core.hasty().count()),
            (0, 0),
            "the claim was not written: {case}"
        );
        // What becomes of that counts.
        world.reply(claimed, Err(conflict()));
        assert!(world.is_back(), "{case}");
    }
}

/// The same of a claim's own late answer: that it was refused the last time does not end this attempt.
#[test]
fn a_late_refusal_ends_no_other_attempt() {
    let mut world = World::with_a_claim();
    let (old, _) = world.asked_for();
    // Its time is over before anybody has answered.
    world.pass(Profile::default().bind_timeout);
    assert!(world.is_back());
    world.pass(s(2));
    let (claimed, told) = world.asked_for();
    world.reply(old, Err(conflict()));
    world.reply(claimed, Ok(json!({})));
    world.reply(told, Ok(json!({})));
    assert_eq!(world.core.waiting.count(), 1);
    world.check();
}

/// What becomes of the claim while the pod waits, and of the pod then.
#[test]
fn who_gets_no_volume_at_its_node_looks_for_another_one_at_once() {
    let mut world = World::waiting();
    world.hear_of_claim(claim(None));
    assert!(world.is_back(), "its provisioner has given up");
    let mut world = World::waiting();
    world.hear_of_claim(claim(Some("b")));
    assert!(world.is_back(), "another node was chosen");
    let mut world = World::waiting();
    world.tell("DELETED", node("a", "4"));
    assert!(world.is_back(), "nobody makes volumes there any more");
}

/// A claim may be told earlier than its volume, which may be elsewhere than it was to be.
#[test]
fn a_pod_is_bound_when_its_volume_is_seen_where_it_can_be_used() {
    for (at, is_bound) in [("a", true), ("b", false)] {
        let mut world = World::waiting();
        let mut bound = claim(Some("a"));
        bound["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes".into();
        bound["spec"]["volumeName"] = "disk".into();
        world.hear_of_claim(bound);
        assert_eq!(world.bound(), []);
        let names = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [at]}]}]);
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk", "uid": "disk"},
            "spec": {"claimRef": {"namespace": "d", "name": "claim", "uid": "claim"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": names}}}});
        world.hear("/api/v1/persistentvolumes", volume);
        assert_eq!((!world.bound().is_empty(), world.is_back()), (is_bound, !is_bound), "{at}");
    }
}

/// Three pods were to go for another one, and none does. When the first is known to stay, the other one finds a node
/// elsewhere, which it keeps when the second stays; the third was not asked to go.
#[test]
fn a_victim_that_stays_is_no_concern_of_who_goes_elsewhere() {
    let lost = || Err(ApiError::Transport("no reply".to_owned()));
    let mut high = pod("high", "1");
    high["spec"]["priority"] = 10.into();
    let all = ["1", "2", "last"].map(|name| bound_to(pod(name, "300m"), "a"));
    let mut world = World::new(Config::default(), vec![node("a", "1")], all.to_vec());
    world.tell("ADDED", high);
    for (mark, _) in world.marks() {
        world.reply(mark, Ok(json!({})));
    }
    let sent = world.take(|request| request.method == Method::Delete);
    let [(one, _), (other, _)] = sent[..] else { panic!("two deletions: {sent:?}") };
    world.tell("ADDED", bound_to(pod("three", "900m"), "b"));
    world.tell("ADDED", node("b", "1"));
    world.reply(one, lost());
    assert_eq!(world.core.nominations().collect::<Vec<_>>(), [("uid-high", "b")]);
    assert_eq!(world.marks().len(), 1);
    // Whatever is said of it meanwhile comes to the pod as it was known, and so in any order.
    let told = world.take(|request| request.path.ends_with("/pods/high/status"));
    for (_, request) in &told {
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        assert_eq!(body["metadata"]["resourceVersion"], "2", "{told:?}");
    }
    world.reply(other, lost());
    let told = world.take(|request| request.path.ends_with("/pods/high/status"));
    assert!(told.is_empty(), "nothing is taken back: {told:?}");
    assert_eq!(world.core.nominations().collect::<Vec<_>>(), [("uid-high", "b")]);
    assert!(world.marks().is_empty(), "who is left may stay");
    world.check();
}

/// Three pods fill a node, and all have to go for another one: what becomes of the first two deletions, of the pod that
/// they are for, and who is asked to go then (test/integration/scheduler/preemption/async_preemption_failures_test.go).
#[test]
fn the_last_victim_goes_only_when_all_others_do_and_somebody_waits_for_that() {
    let forbidden = || {
        let status = carrack_engine::StatusError { code: 403, reason: "Forbidden".to_owned(), ..Default::default() };
        Err(ApiError::Status(Box::new(status)))
    };
    let mut waits = pod("high", "1");
    waits["spec"]["priority"] = 10.into();
    let all = ["1", "2", "last"].map(|name| bound_to(pod(name, "300m"), "a"));
    for (first, leaves, goes) in
        [(Ok(json!({})), false, true), (forbidden(), false, false), (Ok(json!({})), true, false)]
    {
        let case = format!("{first:?}, who comes leaves: {leaves}");
        let mut world = World::new(Config::default(), vec![node("a", "1")], all.to_vec());
        world.tell("ADDED", waits.clone());
        let marked = world.marks();
        assert_eq!(marked.len(), 2, "{case}");
        for (mark, _) in marked {
            world.reply(mark, Ok(json!({})));
        }
        let sent = world.take(|request| request.method == Method::Delete);
        let [(one, _), (other, _)] = sent[..] else { panic!("two deletions: {sent:?}") };
        if leaves {
            world.tell("DELETED", waits.clone());
        }
        world.reply(one, first);
        world.marks();
        world.reply(other, Ok(json!({})));
        let last = world.marks();
        let asked = last.iter().any(|(_, request)| request.path.ends_with("/pods/last/status"));
        assert_eq!(asked, goes, "{case}: {last:?}");
        world.check();
    }
}

/// Nobody goes for a pod that is not there any more when their deletion could be asked for.
#[test]
fn nobody_goes_for_who_is_gone() {
    for leaves in [false, true] {
        let mut world = World::new(Config::default(), vec![node("a", "1")], vec![low("low", "a"), high()]);
        let [(mark, _)] = world.marks()[..] else { panic!("one victim") };
        if leaves {
            world.tell("DELETED", high());
        }
        world.reply(mark, Ok(json!({})));
        assert_eq!(world.take(|request| request.method == Method::Delete).is_empty(), leaves);
        world.check();
    }
}

/// A volume that somebody has promised to a claim is to stay promised when it is taken from the claim again.
#[test]
fn a_volume_is_marked_as_promised_by_who_promised_it() {
    for by_others in [false, true] {
        let mut world = World::new(Config::default(), vec![node("a", "4")], Vec::new());
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disks", "uid": "c"},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
        world.hear("/apis/storage.k8s.io/v1/storageclasses", class);
        let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk", "uid": "disk"},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "disks"},
            "status": {"phase": "Available"}});
        if by_others {
            volume["spec"]["claimRef"] = json!({"namespace": "d", "name": "claim"});
        }
        world.hear("/api/v1/persistentvolumes", volume);
        world.hear_of_claim(claim(None));
        world.tell("ADDED", with_the_claim());
        let sent = world.take(|request| request.path == "/api/v1/persistentvolumes/disk");
        let [(_, request)] = &sent[..] else { panic!("one write: {sent:?}") };
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        assert_eq!(body["spec"]["claimRef"]["uid"], "claim", "{body}");
        assert_eq!(body["metadata"]["annotations"].is_null(), by_others, "{body}");
    }
}
