//! Bindings whose outcome is unknown: their room goes to nobody else while they may still arrive.

use super::*;

fn at(mut pod: Value, revision: &str) -> Value {
    pod["metadata"]["resourceVersion"] = revision.into();
    pod
}

fn unknown() -> ApiError {
    ApiError::Transport("no reply".to_owned())
}

fn refusal(code: u16, reason: &str) -> ApiError {
    ApiError::Status(Box::new(carrack_engine::StatusError { code, reason: reason.to_owned(), ..Default::default() }))
}

impl World {
    /// One node with room for one of two pods: the first one's binding is under way, the second one waits.
    fn one_of_two() -> Self {
        let mut world = Self::new(Config::default(), vec![node("a", "1")], vec![at(pod("p", "600m"), "7")]);
        world.tell("ADDED", pod("q", "600m"));
        world
    }
    /// The only binding that was sent: its call, and the revision of the pod that it rests on.
    fn binding(&mut self) -> (CallId, String) {
        let sent = self.take(|request| request.path.ends_with("/pods/p/binding"));
        let [(call, request)] = &sent[..] else { panic!("one binding of p: {sent:?}") };
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        assert_eq!((&body["metadata"]["uid"], &body["target"]["name"]), (&json!("uid-p"), &json!("a")));
        (*call, body["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
    }
    fn read(&mut self) -> CallId {
        let sent = self.take(|request| request.method == Method::Get && request.path.ends_with("/pods/p"));
        let [(call, _)] = sent[..] else { panic!("one live read: {sent:?}") };
        call
    }
    /// The write that keeps bindings away: its call, and the revision that it rests on.
    fn fence(&mut self) -> (CallId, String) {
        let sent = self.take(|request| request.method == Method::Patch && request.path.ends_with("/pods/p/status"));
        let [(call, request)] = &sent[..] else { panic!("one write of p's status: {sent:?}") };
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        let condition = &body["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!("PodScheduled"), &json!("False")));
        (*call, body["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
    }
}

#[test]
fn room_is_given_back_when_the_pod_was_written() {
    let mut world = World::one_of_two();
    let (call, rests_on) = world.binding();
    assert_eq!(rests_on, "7");
    world.reply(call, Err(unknown()));
    let read = world.read();
    world.reply(read, Ok(at(pod("p", "600m"), "7")));
    let (fence, rests_on) = world.fence();
    assert_eq!((rests_on.as_str(), world.bound()), ("7", Vec::new()));
    // Nobody knows whether that was written, so it looks, and finds that it was not.
    world.reply(fence, Err(unknown()));
    world.pass(s(1));
    let read = world.read();
    world.reply(read, Ok(at(pod("p", "600m"), "7")));
    let (fence, _) = world.fence();
    // A write that changes nothing keeps nothing away.
    world.reply(fence, Ok(at(pod("p", "600m"), "7")));
    world.pass(s(1));
    let read = world.read();
    world.reply(read, Ok(at(pod("p", "600m"), "7")));
    let (fence, _) = world.fence();
    assert_eq!((world.bound(), world.core.cluster().node_of("uid-p")), (Vec::new(), Some("a")));
    let told = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulerError",
        "message": "binding to node a failed: no reply from the API server: no reply"}]);
    let mut written = at(pod("p", "600m"), "9");
    written["status"]["conditions"] = told;
    world.reply(fence, Ok(written));
    // Whoever waits longest is asked first.
    assert_eq!(world.core.cluster().node_of("uid-p"), None);
    world.pass(s(1));
    assert_eq!(world.bound().len(), 1, "there is room for one of them");
    let failed = world.events("FailedScheduling");
    assert_eq!(failed.iter().filter(|text| text.starts_with("binding to node a failed")).count(), 1, "{failed:?}");
    assert!(!world.told().iter().any(|(reason, _)| reason == "SchedulerError"), "it was told already");
    world.check();
}

#[test]
fn a_pod_that_somebody_else_has_written_goes_to_its_node_all_the_same() {
    let mut world = World::one_of_two();
    for revision in ["7", "8", "9"] {
        let (call, rests_on) = world.binding();
        assert_eq!(rests_on, revision);
        // A conflict may be of the pod's revision.
        world.reply(call, Err(if revision == "8" { unknown() } else { refusal(409, "Conflict") }));
        let read = world.read();
        let next = revision.parse::<u64>().map(|number| number + 1).expect("a number");
        world.reply(read, Ok(at(pod("p", "600m"), &next.to_string())));
    }
    // Not without end: now it waits its backoff out, and its room is free, since no binding can arrive any more.
    assert_eq!(world.core.cluster().node_of("uid-p"), None);
    assert!(world.take(|request| request.path.ends_with("/pods/p/status")).is_empty());
    world.pass(s(1));
    assert_eq!(world.bound().len(), 1);
    world.check();
}

#[test]
fn a_pod_that_has_become_another_one_is_looked_at_anew() {
    let mut world = World::one_of_two();
    let (call, _) = world.binding();
    world.reply(call, Err(refusal(409, "Conflict")));
    let read = world.read();
    let mut other = at(pod("p", "600m"), "8");
    other["metadata"]["labels"] = json!({"other": "label"});
    world.reply(read, Ok(other));
    assert_eq!(world.core.cluster().node_of("uid-p"), None);
    world.check();
}

/// What the API says to the write: whether the pod is forgotten, and whether it is read again at once.
#[test]
fn what_becomes_of_the_write_decides() {
    for (answer, is_gone, reads) in [
        (refusal(404, "NotFound"), true, false),
        (refusal(409, "Conflict"), false, true),
        (refusal(403, "Forbidden"), false, false),
        (unknown(), false, false),
    ] {
        let case = format!("{answer:?}");
        let mut world = World::one_of_two();
        let (call, _) = world.binding();
        world.reply(call, Err(unknown()));
        let read = world.read();
        world.reply(read, Ok(at(pod("p", "600m"), "7")));
        let (fence, _) = world.fence();
        world.reply(fence, Err(answer));
        assert_eq!(world.core.cluster().node_of("uid-p").is_none(), is_gone, "{case}");
        assert_eq!(!world.take(|request| request.method == Method::Get).is_empty(), reads, "{case}");
        world.check();
    }
}
