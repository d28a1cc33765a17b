//! What is said of pods that wait: it rests on the pod as it was known, and is said again where that was out of date.

use super::*;

/// A pod that no node takes.
fn waits(revision: &str) -> Value {
    let mut waits = pod("p", "2");
    waits["metadata"]["resourceVersion"] = revision.into();
    waits
}

impl World {
    /// What was said of p: the calls, the revisions of it on which they rest, and the messages.
    fn words(&mut self) -> Vec<(CallId, String, String)> {
        let sent = self.take(|request| request.path.ends_with("/pods/p/status"));
        let read = |(call, request): (CallId, ApiRequest)| {
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            assert_eq!(text("/status/conditions/0/reason"), "Unschedulable", "{body}");
            (call, text("/metadata/resourceVersion"), text("/status/conditions/0/message"))
        };
        sent.into_iter().map(read).collect()
    }
}

/// On which revisions of a pod rests what is said of it, where its first words are refused since it was written
/// meanwhile, and the watch shows it so before that or after.
fn check(seen: &Value, expected: &[&str]) {
    for is_first in [false, true] {
        let case = format!("{seen}, the watch first: {is_first}");
        let mut world = World::new(Config::default(), vec![node("a", "1")], vec![waits("1")]);
        let said = world.words();
        let [(call, rests_on, _)] = &said[..] else { panic!("it is said once: {said:?}") };
        assert_eq!(rests_on, "1", "{case}");
        if is_first {
            world.tell("MODIFIED", seen.clone());
        }
        world.reply(*call, Err(conflict()));
        if !is_first {
            assert!(world.words().is_empty(), "nobody knows what the pod is now: {case}");
            world.tell("MODIFIED", seen.clone());
        }
        let rest_on: Vec<String> = world.words().into_iter().map(|(_, revision, _)| revision).collect();
        assert_eq!(rest_on, expected, "{case}");
        assert!(world.core.told.take_unsaid("uid-p").is_none(), "{case}");
        world.check();
    }
}

#[test]
fn what_came_too_late_is_said_of_pods_that_still_wait() {
    check(&waits(""), &["2"]);
    check(&bound_to(waits(""), "a"), &[]);
    let mut ended = waits("");
    ended["status"]["phase"] = "Failed".into();
    check(&ended, &[]);
    let mut of_another = waits("");
    of_another["spec"]["schedulerName"] = "another".into();
    check(&of_another, &[]);
}

#[test]
fn what_a_former_attempt_has_shown_is_not_said_again() {
    let mut world = World::new(Config::default(), vec![node("a", "1")], vec![waits("1")]);
    let first = world.words();
    let mut cordoned = node("b", "4");
    cordoned["spec"]["unschedulable"] = true.into();
    world.tell("ADDED", cordoned);
    let second = world.words();
    let ([(first, ..)], [(second, _, message)]) = (&first[..], &second[..]) else { panic!("{first:?}, {second:?}") };
    world.tell("MODIFIED", waits(""));
    world.reply(*first, Err(conflict()));
    assert!(world.words().is_empty(), "there is something else to say");
    world.reply(*second, Err(conflict()));
    let again = world.words();
    let [(_, rests_on, what)] = &again[..] else { panic!("it is said once more: {again:?}") };
    assert_eq!((rests_on.as_str(), what), ("3", message));
    world.check();
}
