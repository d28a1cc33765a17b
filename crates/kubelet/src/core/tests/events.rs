//! What the events of pods say, and how often.

use super::*;

/// Events of one reason: about which part, and what they say.
fn told(w: &World, reason: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = w.api.event_writes.iter().filter(|event| event["reason"] == reason);
    of.map(|event| (text(&event["involvedObject"]["fieldPath"]), text(&event["message"]))).collect()
}

fn of_container(message: &str) -> Vec<(String, String)> {
    vec![("spec.containers{c}".to_owned(), message.to_owned())]
}

/// What a hook writes may be a secret.
#[test]
fn hooks_that_fail_are_told_without_their_words() {
    for (hook, reason, message) in [
        ("preStop", "FailedPreStopHook", "PreStopHook failed"),
        ("postStart", "FailedPostStartHook", "PostStartHook failed"),
    ] {
        // The last two can be asked of nobody, as with upstream.
        for handler in [
            json!({"exec": {"command": ["bye"]}}),
            json!({"httpGet": {"port": "nowhere"}}),
            json!({"tcpSocket": {"port": 1}}),
        ] {
            let mut w = World::new(1);
            w.edit_or_create_node();
            w.node.exec_codes.insert("c".into(), 4);
            let mut spec = plain();
            spec["containers"][0]["lifecycle"] = json!({hook: handler});
            w.create("p", spec);
            w.run(5);
            w.delete(5);
            w.run(20);
            assert_eq!(told(&w, reason), of_container(message), "{hook} {handler}");
            w.assert_clean();
        }
    }
}

#[test]
fn names_that_pods_cannot_resolve_are_told() {
    let mut w = World::new(1);
    w.edit_or_create_node();
    let mut spec = plain();
    spec["dnsConfig"] = json!({"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]});
    spec["dnsPolicy"] = "None".into();
    w.create("q", spec);
    w.run(10);
    let left = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: \
                1.1.1.1 2.2.2.2 3.3.3.3";
    assert_eq!(told(&w, "DNSConfigForming"), [(String::new(), left.to_owned())]);
}

/// As upstream's kubelet tells it; the hook did well.
#[test]
fn a_hook_that_was_asked_without_tls_is_told() {
    for hook in ["preStop", "postStart"] {
        for (scheme, is_told) in [("HTTPS", true), ("HTTP", false)] {
            let mut w = World::new(1);
            w.edit_or_create_node();
            w.node.no_tls_at = Some("10.0.0.1:80".into());
            let mut spec = plain();
            spec["containers"][0]["lifecycle"] = json!({hook: {"httpGet": {"port": 80, "scheme": scheme}}});
            w.create("p", spec);
            w.run(5);
            assert_eq!(w.phase(), "Running", "{hook} {scheme}");
            w.delete(5);
            w.run(20);
            let text = "request to HTTPS lifecycle hook 10.0.0.1:80 got HTTP response, retry with HTTP succeeded";
            let expected: Vec<_> = is_told.then(|| (String::new(), text.to_owned())).into_iter().collect();
            assert_eq!(told(&w, "LifecycleHTTPFallback"), expected, "{hook} {scheme}");
            w.assert_clean();
        }
    }
}

/// What is heard before there is a Node waits for it.
#[test]
fn a_plugin_that_is_refused_is_told_of_the_node() {
    let mut w = World::new(1);
    for resource in ["a.io/x", "b.io/x"] {
        w.input(Input::Own(In::PluginRefused { resource: resource.into(), why: "no".into() }));
        w.run(15);
    }
    let messages: Vec<String> = told(&w, "DevicePluginRefused").into_iter().map(|(_, message)| message).collect();
    assert_eq!(messages, ["Device plugin of a.io/x: no", "Device plugin of b.io/x: no"]);
}

/// The runtime tells its end only after it has refused the hook.
#[test]
fn a_hook_whose_container_ended_before_it_is_not_told() {
    let mut w = World::new(1);
    w.edit_or_create_node();
    w.node.exec_ends.insert("c".into());
    let mut spec = plain();
    spec["containers"][0]["lifecycle"] = json!({"preStop": {"exec": {"command": ["bye"]}}});
    w.create("p", spec);
    w.run(5);
    w.delete(5);
    w.run(20);
    assert!(w.asked.iter().any(|(_, op)| matches!(op, Op::Exec { .. })), "it ran");
    assert!(told(&w, "FailedPreStopHook").is_empty());
}

/// It says nothing about its container, which goes on, and whoever wrote it hears of it.
#[test]
fn a_probe_that_cannot_be_asked_is_told() {
    for probe in [json!({"exec": {"command": ["/nope"]}}), json!({"tcpSocket": {"port": "nowhere"}})] {
        let mut w = World::new(1);
        w.edit_or_create_node();
        w.node.exec_error = Some("no such file".into());
        let mut spec = plain();
        let liveness = &mut spec["containers"][0]["livenessProbe"];
        *liveness = probe.clone();
        (liveness["periodSeconds"], liveness["failureThreshold"]) = (1.into(), 1.into());
        w.create("p", spec);
        w.run(15);
        assert_eq!(w.api.objects[POD]["status"]["containerStatuses"][0]["restartCount"], 0, "{probe}");
        let why = if probe["exec"].is_null() { "its port is not among the container's" } else { "no such file" };
        let expected = format!("Liveness probe errored and resulted in unknown state: {why}");
        assert_eq!(told(&w, "Unhealthy"), of_container(&expected), "{probe}");
    }
}

#[test]
fn what_is_no_images_name_is_asked_of_nobody() {
    let lowercase = "invalid reference format: repository name (library/A) must be lowercase";
    for (image, why) in [("nginx:", "invalid reference format"), ("A:1", lowercase)] {
        let mut w = World::new(1);
        w.edit_or_create_node();
        let mut spec = plain();
        spec["containers"][0]["image"] = image.into();
        w.create("p", spec.clone());
        w.run(8);
        let message =
            format!("Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {why}");
        let waiting = w.api.objects[POD]["status"]["containerStatuses"][0]["state"]["waiting"].clone();
        assert_eq!(waiting, json!({"reason": "InvalidImageName", "message": message}));
        assert_eq!(told(&w, "InspectFailed"), of_container(&message));
        assert_eq!(told(&w, "Failed"), of_container("Error: InvalidImageName"));
        assert!(!w.asked.iter().any(|(_, op)| matches!(op, Op::FindImage(_) | Op::PullImage { .. })), "{image}");
        spec["containers"][0]["image"] = "busybox".into();
        w.edit(POD, json!({"spec": spec}));
        w.run(10);
        assert_eq!(w.phase(), "Running", "{image}");
    }
}

/// As often as it is tried: the two events that there are each time become one each, with its count.
#[test]
fn what_a_container_waits_for_is_told_each_time() {
    let non_root = "Error: container has runAsNonRoot and image will run as root (pod: \"p_n(uid-p)\", container: c)";
    let unpulled = "Error: ErrImageNeverPull";
    for (image, policy, security, expected) in [
        ("busybox", "IfNotPresent", json!({"runAsNonRoot": true}), non_root),
        ("nowhere", "Never", json!({}), unpulled),
    ] {
        let mut w = World::new(1);
        w.edit_or_create_node();
        let container = json!({"name": "c", "image": image, "imagePullPolicy": policy, "securityContext": security});
        w.create("p", json!({"containers": [container]}));
        w.run(30);
        assert_eq!(told(&w, "Failed"), of_container(expected), "{image}");
        let repeated = w.api.event_writes.iter().filter(|event| event["count"] == 4).count();
        assert_eq!(repeated, 2, "{image}");
    }
}

#[test]
fn a_machine_without_memory_is_told_of() {
    let mut w = World::new(1);
    w.edit_or_create_node();
    w.run(5);
    w.input(Input::Own(In::SystemOom { process: "stress".into(), pid: 12 }));
    w.run(5);
    let messages: Vec<String> = told(&w, "SystemOOM").into_iter().map(|(_, message)| message).collect();
    assert_eq!(messages, ["System OOM encountered, victim process: stress, pid: 12"]);
}
