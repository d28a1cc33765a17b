//! The way of a container up and down: what waits for what, images, hooks, and the order of the end.

use super::*;
use crate::effects::{Counted, NetAction, Tally};
use crate::runtime::ContainerState;
use crate::status::pod::READY_TO_START;

impl World {
    /// What of the operations so far a function wants to see.
    fn saw<T>(&self, f: impl Fn(&Op) -> Option<T>) -> Vec<(Time, T)> {
        self.asked.iter().filter_map(|(at, op)| Some((*at, f(op)?))).collect()
    }
}

#[test]
fn a_pod_starts_without_waiting_for_a_listing() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        w.run(2);
        w.deaf = true;
        let mut spec = plain();
        spec["initContainers"] = json!([{"name": "side", "image": "busybox", "restartPolicy": "Always"}]);
        w.create("p", spec);
        w.run(2);
        assert_eq!(w.phase(), "Running", "seed {seed}");
        assert!(w.ready("Ready"));
        assert_eq!(w.node.sandboxes.len(), 1, "seed {seed}: {:?}", w.node.sandboxes);
        assert_eq!(w.node.containers.len(), 2, "seed {seed}: {:?}", w.node.containers);
        let started = |status: &Value| status["state"]["running"]["startedAt"].is_string();
        let status = &w.api.objects[POD]["status"];
        assert!(started(&status["containerStatuses"][0]) && status["podIP"].is_string(), "{status}");
    });
}

#[test]
fn a_sandbox_does_not_wait_for_volumes_and_containers_do() {
    let mut w = World::new(7);
    w.edit_or_create_node();
    let mut spec = plain();
    spec["volumes"] = json!([{"name": "e", "configMap": {"name": "late"}}]);
    w.create("p", spec);
    w.run(10);
    assert_eq!((w.node.sandboxes.len(), w.node.containers.len(), w.phase()), (1, 0, "Pending"));
    assert!(w.api.events.iter().any(|e| e == "FailedMount"), "{:?}", w.api.events);
    let told = |w: &World| (w.ready(READY_TO_START), w.api.objects[POD]["status"]["podIP"].is_string());
    assert_eq!(told(&w), (false, false));
    let news = w.api.put("/api/v1/namespaces/n/configmaps/late", json!({"metadata": {"name": "late"}, "data": {}}));
    w.tell(news);
    w.run(30);
    assert_eq!((w.node.sandboxes.len(), w.phase()), (1, "Running"));
    assert_eq!(told(&w), (true, true));
    w.delete(5);
    w.run(20);
    w.assert_clean();
}

#[test]
fn that_a_pod_may_start_is_not_taken_back_by_a_kubelet_that_starts() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        let news = w.api.put("/api/v1/namespaces/n/configmaps/m", json!({"metadata": {"name": "m"}, "data": {}}));
        w.tell(news);
        let mut spec = plain();
        spec["containers"][0]["image"] = "nowhere".into();
        spec["volumes"] = json!([{"name": "e", "configMap": {"name": "m"}}]);
        w.create("p", spec);
        w.run(10);
        assert!(w.ready(READY_TO_START), "seed {seed}: {}", w.api.objects[POD]["status"]);
        let before = w.api.revision;
        w.restart_kubelet();
        w.run(20);
        for (_, _, event) in w.api.history.iter().filter(|(at, path, _)| *at > before && path == POD) {
            let event: Value = serde_json::from_slice(event).unwrap();
            let mut conditions = event["object"]["status"]["conditions"].as_array().unwrap().iter();
            let told = conditions.find(|c| c["type"] == READY_TO_START).unwrap();
            assert_eq!(told["status"], "True", "seed {seed}: {event}");
        }
    });
}

#[test]
fn a_pod_whose_uid_leads_out_of_its_directory_is_left_alone() {
    for uid in ["..", "a/../../b"] {
        let mut w = World::new(9);
        w.edit_or_create_node();
        let object = json!({"metadata": {"name": "p", "namespace": "n", "uid": uid}, "spec": plain()});
        let news = w.api.put(POD, object);
        w.tell(news);
        w.create("q", plain());
        w.run(10);
        assert_eq!((w.node.sandboxes.len(), w.node.running("uid-q").len()), (1, 1), "{uid}");
    }
}

/// Small runs of the simulator found it, seed 8383: the record stayed until the kubelet was started again.
#[test]
fn a_record_goes_with_its_pod_though_nobody_heard_of_its_writing() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        w.node.mute_disk = true;
        w.create("p", plain());
        w.run(5);
        assert_eq!((w.phase(), w.node.containers.len()), ("Pending", 0), "seed {seed}");
        assert!(w.node.records.keys().any(|name| name.starts_with("pod-")), "seed {seed}");
        w.delete(5);
        w.run(20);
        w.assert_clean();
    });
}

#[test]
fn nothing_is_mounted_or_started_before_the_pod_is_recorded() {
    let mut w = World::new(8);
    w.edit_or_create_node();
    w.create("p", plain());
    w.run(10);
    let at = |f: fn(&Op) -> bool| w.asked.iter().position(|(_, op)| f(op)).unwrap_or_else(|| panic!("{:?}", w.asked));
    let recorded = at(|op| matches!(op, Op::SaveRecord { name, .. } if name.contains("uid-p")));
    assert!(recorded < at(|op| matches!(op, Op::SetUpVolume(_))));
    assert!(recorded < at(|op| matches!(op, Op::CreateContainer(..))));
}

#[test]
fn images_are_pulled_as_the_policy_says() {
    for (policy, image, pulls, state) in [
        ("Always", "busybox", true, "waiting"),
        ("IfNotPresent", "busybox", false, "running"),
        ("Never", "busybox", false, "running"),
        ("IfNotPresent", "nowhere", true, "waiting"),
        ("Never", "nowhere", false, "waiting"),
    ] {
        let mut w = World::new(9);
        w.edit_or_create_node();
        w.create("p", json!({"containers": [{"name": "c", "image": image, "imagePullPolicy": policy}]}));
        w.run(5);
        assert_eq!(!w.node.pulled_as.is_empty(), pulls, "{policy} {image}");
        let shown = &w.api.objects[POD]["status"]["containerStatuses"][0]["state"];
        assert!(shown[state].is_object(), "{policy} {image}: {shown}");
    }
}

#[test]
fn a_container_has_variables_of_a_file_once_it_is_there() {
    let mut w = World::new(12);
    w.edit_or_create_node();
    let mut spec = plain();
    let reference = json!({"volumeName": "e", "path": "vars", "key": "K"});
    spec["containers"][0]["env"] = json!([{"name": "K", "valueFrom": {"fileKeyRef": reference}}]);
    w.create("p", spec);
    w.run(4);
    let waiting = &w.api.objects[POD]["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["reason"], "CreateContainerConfigError", "{waiting}");
    assert!(waiting["message"].as_str().unwrap().contains("not found"), "{waiting}");
    let volume = w.node.volumes.keys().next().unwrap().clone();
    w.node.files.insert(format!("{volume}/vars"), "K='v'\n".into());
    w.run(10);
    assert_eq!(w.phase(), "Running");
    let container = w.node.containers.values().next().unwrap();
    assert!(container.spec.env.contains(&("K".to_owned(), "v".to_owned())), "{:?}", container.spec.env);
}

/// The image is changed back before the kubelet hears that the container was stopped.
#[test]
fn who_is_stopped_for_another_image_starts_again_whichever_it_is_then() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        w.node.images.insert("other".into());
        let mut spec = plain();
        spec["restartPolicy"] = "Never".into();
        w.create("p", spec.clone());
        w.run(5);
        let back = spec.clone();
        spec["containers"][0]["image"] = "other".into();
        w.edit(POD, json!({"spec": spec}));
        while w.node.containers.values().all(|c| c.record.may_run()) {
            w.next();
        }
        w.edit(POD, json!({"spec": back}));
        w.run(30);
        let runs = w.node.containers.values().filter(|c| c.record.may_run());
        let images: Vec<&str> = runs.map(|c| c.record.image.as_str()).collect();
        assert_eq!((images, w.phase()), (vec!["busybox"], "Running"), "seed {seed}");
    });
}

/// Also by a kubelet that finds the old container ended.
#[test]
fn another_image_is_started_whatever_the_policy_is() {
    for policy in ["Never", "OnFailure"] {
        each_seed(|seed| {
            let mut w = World::new(seed);
            w.edit_or_create_node();
            w.node.stop_code = 0;
            w.node.images.insert("other".into());
            let mut spec = plain();
            spec["restartPolicy"] = policy.into();
            w.create("p", spec.clone());
            w.run(5);
            assert_eq!(w.phase(), "Running", "{policy} seed {seed}");
            spec["containers"][0]["image"] = "other".into();
            w.edit(POD, json!({"spec": spec}));
            while w.node.containers.values().all(|c| c.record.may_run()) {
                w.next();
            }
            w.restart_kubelet();
            w.run(30);
            let runs = w.node.containers.values().filter(|c| c.record.may_run());
            let images: Vec<&str> = runs.map(|c| c.record.image.as_str()).collect();
            assert_eq!((images, w.phase()), (vec!["other"], "Running"), "{policy} seed {seed}");
            let is_end = |phase: &String| phase.ends_with("=Failed") || phase.ends_with("=Succeeded");
            assert!(!w.api.phases.iter().any(is_end), "{policy} seed {seed}: {:?}", w.api.phases);
        });
    }
}

#[test]
fn a_container_is_stopped_after_its_hook_and_no_later_than_its_time() {
    let web = json!({"httpGet": {"port": 80, "path": "/bye", "httpHeaders": [{"name": "X", "value": "y"}]}});
    for (hook, before, after_s) in [
        (json!({"exec": {"command": ["bye"]}}), "exec bye", (0, 1)),
        (web, "get /bye", (0, 1)),
        (json!({"sleep": {"seconds": 3}}), "", (3, 4)),
        (json!({"sleep": {"seconds": 60}}), "", (5, 6)),
        (json!({"sleep": {"seconds": 0}}), "", (0, 1)),
    ] {
        let mut w = World::new(10);
        w.edit_or_create_node();
        let mut spec = plain();
        spec["containers"][0]["lifecycle"] = json!({"preStop": hook});
        w.create("p", spec);
        w.run(5);
        assert_eq!(w.phase(), "Running");
        let deleted = w.now;
        w.delete(5);
        w.run(20);
        let hooks = w.saw(|op| match op {
            Op::Exec { command, .. } => Some(format!("exec {}", command.join(" "))),
            Op::Net { action: NetAction::Http { path, headers, .. }, .. } => {
                assert_eq!(headers, &[("X".to_owned(), "y".to_owned())]);
                Some(format!("get {path}"))
            }
            _ => None,
        });
        let stop = w.saw(|op| matches!(op, Op::StopContainer { .. }).then_some(()));
        let took = stop[0].0.since(deleted).as_secs();
        assert!((after_s.0..after_s.1).contains(&took), "{hook}: stopped after {took} s");
        let hooks: Vec<&str> = hooks.iter().filter(|(at, _)| *at <= stop[0].0).map(|(_, what)| what.as_str()).collect();
        assert_eq!(hooks.join(" "), before, "{hook}");
        w.assert_clean();
    }
}

/// A container that ends by itself while its hook sleeps. (Its pod was then never over.)
#[test]
fn a_hook_that_sleeps_ends_with_its_container() {
    let mut w = World::new(10);
    w.edit_or_create_node();
    let mut spec = plain();
    spec["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 60}}});
    w.create("p", spec);
    w.run(5);
    w.delete(90);
    w.run(3);
    let (id, now) = (w.node.running("uid-p")["c"].clone(), w.now);
    w.node.exit(now, &id, 0);
    w.run(10);
    w.assert_clean();
}

/// Most of those that are told to stop end with 0, and a pod that is started again after failures alone was then over. Also by a
/// kubelet that finds the container ended.
#[test]
fn who_is_stopped_for_a_probe_starts_again_however_it_ends() {
    for (policy, probe, goes_on) in
        [("OnFailure", "livenessProbe", true), ("OnFailure", "startupProbe", true), ("Never", "livenessProbe", false)]
    {
        each_seed(|seed| {
            let mut w = World::new(seed);
            w.edit_or_create_node();
            w.node.stop_code = 0;
            w.node.exec_codes.insert("c".into(), 1);
            let mut spec = plain();
            spec["restartPolicy"] = policy.into();
            let exec = json!({"command": ["x"]});
            spec["containers"][0][probe] = json!({"exec": exec, "periodSeconds": 1, "failureThreshold": 2});
            w.create("p", spec);
            while w.node.containers.values().all(|c| c.record.exit_code().is_none()) {
                w.next();
            }
            w.restart_kubelet();
            w.run(8);
            let what = format!("{policy} {probe} seed {seed}: {:?}", w.api.phases);
            let is_end = |phase: &String| phase.ends_with("=Failed") || phase.ends_with("=Succeeded");
            assert_eq!(!w.api.phases.iter().any(is_end), goes_on, "{what}");
            assert_eq!(w.node.containers.values().any(|c| c.record.attempt > 0), goes_on, "{what}");
        });
    }
}

/// What is told of a container before it was ever asked is what the kubelet would go on with after a restart.
#[test]
fn nobody_is_ready_before_he_was_asked() {
    for probe in ["readinessProbe", "startupProbe"] {
        each_seed(|seed| {
            let mut w = World::new(seed);
            w.edit_or_create_node();
            w.node.exec_codes.insert("c".into(), 1);
            let mut spec = plain();
            let exec = json!({"command": ["x"]});
            spec["containers"][0][probe] = json!({"exec": exec, "periodSeconds": 1, "failureThreshold": 1000});
            w.create("p", spec);
            let until = w.now + Duration::from_secs(6);
            while w.now < until {
                w.next();
                let told = &w.api.objects[super::POD]["status"]["containerStatuses"][0];
                assert!(told["ready"] != true, "{probe} seed {seed}: {told}");
                assert!(probe == "readinessProbe" || told["started"] != true, "{probe} seed {seed}: {told}");
            }
            assert!(w.node.containers.values().any(|c| c.record.state == ContainerState::Running), "{probe} {seed}");
        });
    }
}

#[test]
fn a_container_waits_until_services_were_read_once() {
    let host = || Some(("192.0.2.1".to_owned(), 6443));
    for (api_server, links, waits) in
        [(None, true, true), (None, false, true), (host(), true, true), (host(), false, false)]
    {
        let what = format!("{api_server:?} {links}");
        let mut w = World::new(16);
        w.api.denied = Some("services");
        w.restart_kubelet_as(NodeConfig { node_name: "sim".into(), api_server, ..NodeConfig::default() });
        w.edit_or_create_node();
        let mut spec = plain();
        spec["enableServiceLinks"] = links.into();
        w.create("p", spec);
        w.run(10);
        assert_eq!((w.node.sandboxes.len(), w.node.containers.is_empty()), (1, waits), "{what}");
        let of_service = json!({"clusterIP": "10.96.0.7", "ports": [{"port": 5432}]});
        let service = json!({"metadata": {"name": "db", "namespace": "n"}, "spec": of_service});
        w.api.put("/api/v1/namespaces/n/services/db", service);
        w.api.denied = None;
        w.run(90);
        assert_eq!(w.phase(), "Running", "{what}");
        let env = &w.node.containers.values().next().unwrap().spec.env;
        assert_eq!(env.iter().any(|(name, _)| name == "DB_SERVICE_HOST"), links, "{what}: {env:?}");
    }
}

/// A user exchanges the image that does not work.
#[test]
fn another_image_does_not_wait_for_the_crashes_of_the_one_before() {
    let mut w = World::new(17);
    w.edit_or_create_node();
    w.node.images.insert("other".into());
    let mut spec = plain();
    w.create("p", spec.clone());
    w.run(5);
    for _ in 0..3 {
        let (id, now) = (w.node.running("uid-p")["c"].clone(), w.now);
        w.node.exit(now, &id, 1);
        w.run(15);
    }
    let waiting = &w.api.objects[POD]["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["reason"], "CrashLoopBackOff", "{waiting}");
    assert!(w.node.running("uid-p").is_empty());
    spec["containers"][0]["image"] = "other".into();
    w.edit(POD, json!({"spec": spec}));
    w.run(2);
    assert_eq!(w.node.running("uid-p").len(), 1, "{}", w.api.objects[POD]["status"]);
}

/// A manifest of a pod that takes its time to end.
fn slow_manifest(image: &str, ports: &Value) -> crate::spec::manifest::Manifest {
    let container = json!({"name": "c", "image": image, "imagePullPolicy": "IfNotPresent", "ports": ports,
        "lifecycle": {"preStop": {"sleep": {"seconds": 9}}}});
    let text = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "n"},
        "spec": {"terminationGracePeriodSeconds": 10, "containers": [container]}});
    let path = "/manifests/web.json".to_owned();
    let pod = crate::spec::manifest::read(text.to_string().as_bytes(), &path, "sim").map(Box::new);
    crate::spec::manifest::Manifest { path, pod }
}

/// Images of what runs.
fn running_images(w: &World) -> Vec<String> {
    let all = w.node.containers.values().filter(|c| c.record.may_run());
    all.map(|c| c.record.image.clone()).collect()
}

/// The pod of the manifest as it was has the port, and directories of the node. (The new one was rejected for the port and
/// stayed so, and without a port ran beside the old one; and it did where somebody had called that failed before the kubelet was
/// started again.)
#[test]
fn a_changed_manifest_is_followed_once_the_pod_before_has_ended() {
    const MIRROR: &str = "/api/v1/namespaces/n/pods/web-sim";
    let port = || json!([{"containerPort": 80, "hostPort": 8080}]);
    for (ports, is_called_over) in [(json!([]), false), (port(), false), (json!([]), true), (port(), true)] {
        each_seed(|seed| {
            let mut w = World::new(seed);
            w.edit_or_create_node();
            w.node.images.insert("other".into());
            w.node.manifests = Some(vec![slow_manifest("busybox", &ports)]);
            w.run(10);
            assert_eq!(running_images(&w), ["busybox"], "{ports} seed {seed}");
            w.node.manifests = Some(vec![slow_manifest("other", &ports)]);
            for second in 0..40 {
                w.run(1);
                assert!(running_images(&w).len() < 2, "{ports} seed {seed} after {second} s: {:?}", running_images(&w));
                if second == 8 {
                    if is_called_over {
                        w.edit(MIRROR, json!({"status": {"phase": "Failed"}}));
                    }
                    w.restart_kubelet();
                }
            }
            assert_eq!(running_images(&w), ["other"], "{ports} seed {seed}: {:?}", w.api.events);
        });
    }
}

/// The API server may be that pod. The manifest is changed while the kubelet is away.
#[test]
fn a_manifest_that_was_changed_is_followed_without_the_api() {
    for has_ended in [false, true] {
        each_seed(|seed| {
            let mut w = World::new(seed);
            w.edit_or_create_node();
            w.node.images.insert("other".into());
            w.node.manifests = Some(vec![slow_manifest("busybox", &json!([]))]);
            w.run(10);
            assert_eq!(running_images(&w), ["busybox"], "seed {seed}");
            w.set_api_down(true);
            if has_ended {
                let (id, now) = (w.node.containers.keys().next().unwrap().clone(), w.now);
                w.node.exit(now, &id, 1);
            }
            w.node.manifests = Some(vec![slow_manifest("other", &json!([]))]);
            w.restart_kubelet();
            for _ in 0..40 {
                w.run(1);
                assert!(running_images(&w).len() < 2, "seed {seed}: {:?}", running_images(&w));
            }
            assert_eq!(running_images(&w), ["other"], "ended: {has_ended}, seed {seed}");
        });
    }
}

/// Whoever may make pods may call his one the picture of any other.
#[test]
fn an_impostor_is_nobodys_mirror() {
    let mut w = World::new(5);
    w.edit_or_create_node();
    w.node.manifests = Some(vec![slow_manifest("busybox", &json!([]))]);
    w.create("p", plain());
    w.run(10);
    let annotations = &w.api.objects["/api/v1/namespaces/n/pods/web-sim"]["metadata"]["annotations"];
    let hash = annotations["kubernetes.io/config.hash"].as_str().expect("a hash").to_owned();
    let running = |w: &World| -> Vec<String> {
        let all = w.node.containers.values().filter(|c| c.record.may_run());
        all.map(|c| c.record.id.clone()).collect()
    };
    let before = running(&w);
    assert_eq!(before.len(), 2);
    for (name, of) in [("fake-static", hash.as_str()), ("fake-pod", "uid-p")] {
        let annotations = json!({"kubernetes.io/config.mirror": of});
        let metadata =
            json!({"name": name, "namespace": "n", "uid": format!("uid-{name}"), "annotations": annotations});
        let object = json!({"metadata": metadata, "spec": plain(), "status": {"phase": "Failed"}});
        let news = w.api.put(&format!("/api/v1/namespaces/n/pods/{name}"), object);
        w.tell(news);
    }
    w.run(20);
    assert_eq!(running(&w), before);
    let fakes: Vec<&String> = w.api.objects.keys().filter(|path| path.contains("/fake-")).collect();
    assert!(fakes.is_empty(), "{fakes:?}");
}

#[test]
fn sidecars_end_after_the_others_the_last_one_first() {
    let mut w = World::new(11);
    w.edit_or_create_node();
    let mut spec = plain();
    let side = |name: &str| json!({"name": name, "image": "busybox", "restartPolicy": "Always"});
    spec["initContainers"] = json!([side("first"), side("second")]);
    w.create("p", spec);
    w.run(10);
    let names: BTreeMap<String, String> =
        w.node.running("uid-p").into_iter().map(|(name, id)| (id.to_string(), name.to_string())).collect();
    assert_eq!(names.len(), 3);
    w.delete(30);
    w.run(20);
    let order = w.saw(|op| match op {
        Op::StopContainer { id, .. } => names.get(id).cloned(),
        _ => None,
    });
    let order: Vec<&str> = order.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(order, ["c", "second", "first"]);
    w.assert_clean();
}

#[test]
fn a_probe_that_hangs_has_failed() {
    for (probe, ready, restarts) in
        [("readinessProbe", false, false), ("livenessProbe", true, true), ("startupProbe", false, true)]
    {
        let mut w = World::new(12);
        w.edit_or_create_node();
        w.node.exec_hangs.insert("c".into());
        let mut spec = plain();
        spec["containers"][0][probe] =
            json!({"exec": {"command": ["x"]}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 3});
        w.create("p", spec);
        w.run(3);
        assert_eq!((w.phase(), w.ready("Ready")), ("Running", ready), "{probe}");
        w.run(12);
        let count = w.api.objects[POD]["status"]["containerStatuses"][0]["restartCount"].as_u64();
        assert_eq!(count.is_some_and(|n| n > 0), restarts, "{probe}: {count:?}");
        assert!(w.api.events.iter().any(|e| e == "Unhealthy"), "{probe}: {:?}", w.api.events);
    }
}

#[test]
fn a_probe_that_is_sent_to_another_host_does_well_and_is_told_of() {
    for (warning, warned) in [(None, false), (Some("Probe terminated redirects, Response body: x".to_owned()), true)] {
        let mut w = World::new(12);
        w.edit_or_create_node();
        w.node.net_warning.clone_from(&warning);
        let mut spec = plain();
        spec["containers"][0]["readinessProbe"] = json!({"httpGet": {"port": 80}, "periodSeconds": 1});
        w.create("p", spec);
        w.run(10);
        assert!(w.ready("Ready"), "{warning:?}: {}", w.api.objects[POD]["status"]);
        let is_told = w.api.events.iter().any(|e| e == "ProbeWarning");
        assert_eq!(is_told, warned, "{warning:?}: {:?}", w.api.events);
        assert!(!w.api.events.iter().any(|e| e == "Unhealthy"), "{:?}", w.api.events);
    }
}

#[test]
fn the_runtime_is_listed_once_a_second_however_much_has_happened() {
    let mut w = World::new(13);
    w.edit_or_create_node();
    for i in 0..10 {
        w.create(&format!("p{i}"), plain());
    }
    w.run(10);
    let before = w.saw(|op| matches!(op, Op::Relist).then_some(())).len();
    w.run(20);
    let listed = w.saw(|op| matches!(op, Op::Relist).then_some(())).len() - before;
    assert!((15..=20).contains(&listed), "{listed} listings in 20 s");
}

#[test]
fn who_asks_to_be_apart_from_the_nodes_users_is_not_started_among_them() {
    let mut w = World::new(14);
    w.edit_or_create_node();
    // The runtime could, if it were told of other users.
    let can = crate::runtime::HandlerFeatures { user_namespaces: true, ..Default::default() };
    w.node.handlers.insert(String::new(), can);
    for (name, host_users) in [("p", false), ("q", true)] {
        let mut spec = plain();
        spec["hostUsers"] = host_users.into();
        w.create(name, spec);
    }
    w.run(40);
    assert!(w.node.running("uid-p").is_empty() && !w.node.running("uid-q").is_empty());
    assert_eq!(w.node.sandboxes.len(), 1, "{:?}", w.node.sandboxes);
    assert!(w.api.events.iter().any(|e| e == "FailedCreatePodSandBox"), "{:?}", w.api.events);
}

/// Whether the handler of the pod's class and the default one make mounts read-only all the way down, and whether the container
/// that demands it runs.
#[test]
fn a_container_gets_what_the_handler_of_its_sandbox_can() {
    const CLASS: &str = "/apis/node.k8s.io/v1/runtimeclasses/kata";
    for (of_class, of_default, runs) in [(true, false, true), (false, true, false), (true, true, true)] {
        let what = format!("class {of_class}, default {of_default}");
        let mut w = World::new(15);
        w.edit_or_create_node();
        for (handler, recursive_read_only) in [("kata-fc", of_class), ("", of_default)] {
            let can = crate::runtime::HandlerFeatures { recursive_read_only, ..Default::default() };
            w.node.handlers.insert(handler.into(), can);
        }
        w.api.objects.insert(CLASS.into(), json!({"handler": "kata-fc"}));
        // Until the runtime has been asked again what it can.
        w.run(12);
        let mut spec = plain();
        spec["runtimeClassName"] = "kata".into();
        let mount = &mut spec["containers"][0]["volumeMounts"][0];
        (mount["readOnly"], mount["recursiveReadOnly"]) = (true.into(), "Enabled".into());
        w.create("p", spec);
        w.run(10);
        let running = w.node.running("uid-p");
        assert_eq!(!running.is_empty(), runs, "{what}: {}", w.api.objects[POD]["status"]);
        let Some(first) = running.get("c") else { continue };
        assert!(w.node.containers[first].spec.mounts.iter().any(|m| m.recursive), "{what}");
        // The sandbox is what it was made as, whatever has become of the class since.
        w.api.objects.insert(CLASS.into(), json!({"handler": "other"}));
        w.restart_kubelet();
        w.run(10);
        let now = w.now;
        w.node.exit(now, first, 1);
        w.run(30);
        let again = w.node.running("uid-p");
        assert!(again.get("c").is_some_and(|id| id != first), "{what}: {:?}", w.api.objects[POD]["status"]);
        assert_eq!(w.node.sandboxes.len(), 1, "{what}");
    }
}

/// What a container is made of is one thing, and what the runtime says of it another.
#[test]
fn who_is_at_fault_for_a_container_that_is_not_made_is_told() {
    for (error, reason) in [
        (OpError::Config("failed to prepare subPath".into()), "CreateContainerConfigError"),
        (OpError::Failed("no space left on device".into()), "CreateContainerError"),
    ] {
        let mut w = World::new(1);
        w.edit_or_create_node();
        w.create("p", plain());
        while !w.asked.iter().any(|(_, op)| matches!(op, Op::CreateContainer(..))) {
            w.next();
        }
        for input in w.arriving.values_mut() {
            if let Input::Own(In::Done(_, outcome @ Ok(Reply::Made(_)))) = input {
                *outcome = Err(error.clone());
            }
        }
        // Nothing has come of it.
        w.node.containers.clear();
        w.run(3);
        let waiting = &w.api.objects[POD]["status"]["containerStatuses"][0]["state"]["waiting"];
        assert_eq!((&waiting["reason"], &waiting["message"]), (&json!(reason), &json!(error.to_string())));
        w.run(30);
        assert_eq!(w.phase(), "Running", "{error}");
    }
}

/// The runtime has such a container as one that has ended, and never starts it again.
#[test]
fn a_container_that_does_not_start_has_ended() {
    for (policy, goes_on) in [("Never", false), ("Always", true)] {
        let mut w = World::new(1);
        w.edit_or_create_node();
        let mut spec = plain();
        spec["restartPolicy"] = policy.into();
        let mut other = spec["containers"][0].clone();
        other["name"] = "d".into();
        spec["containers"].as_array_mut().unwrap().push(other);
        w.create("p", spec);
        let started = |op: &Op| match op {
            Op::StartContainer(id) => Some(id.clone()),
            _ => None,
        };
        let id = loop {
            if let Some((_, id)) = w.saw(started).into_iter().next() {
                break id;
            }
            w.next();
        };
        for input in w.arriving.values_mut() {
            if let Input::Own(In::Done(_, outcome)) = input
                && matches!(&*outcome, Ok(Reply::Started(record)) if record.id == id)
            {
                *outcome = Err(OpError::Failed("no process could be started in it".into()));
            }
        }
        let (now, made) = (w.now, w.node.containers.get_mut(&id).unwrap());
        let (reason, message) = ("StartError".to_owned(), "no process".to_owned());
        made.record.state = ContainerState::Exited { code: 128, reason, message, finished_at: now };
        made.record.started_at = None;
        let name = made.record.name.clone();
        w.run(30);
        let running = w.node.running("uid-p");
        let again = running.get(&name).is_some_and(|other| *other != id);
        assert_eq!((running.len(), again), (1 + usize::from(goes_on), goes_on), "{policy}: {running:?}");
        let told = w.api.objects[POD]["status"].clone();
        let of = told["containerStatuses"].as_array().unwrap().iter().find(|s| s["name"] == name.as_str()).unwrap();
        let end = if goes_on { &of["lastState"] } else { &of["state"] };
        assert_eq!((&end["terminated"]["exitCode"], &end["terminated"]["reason"]), (&json!(128), &json!("StartError")));
        assert_eq!((w.phase(), &of["restartCount"]), ("Running", &json!(u32::from(goes_on))), "{policy}: {told}");
    }
}

#[test]
fn starts_are_counted_once() {
    let mut w = World::new(1);
    w.edit_or_create_node();
    w.node.registry.insert("far".into(), None);
    let mut spec = plain();
    spec["containers"][0]["image"] = "far".into();
    let sidecar =
        json!({"name": "s", "image": "busybox", "imagePullPolicy": "IfNotPresent", "restartPolicy": "Always"});
    spec["initContainers"] = json!([sidecar]);
    w.create("p", spec);
    w.run(10);
    w.restart_kubelet();
    w.run(10);
    let pods = w.saw(|op| match op {
        Op::Count(Counted::PodStart(took)) => Some(*took),
        _ => None,
    });
    assert!(matches!(pods.as_slice(), [(_, took)] if *took < Duration::from_secs(5)), "{pods:?}");
    let containers = w.saw(|op| match op {
        Op::Count(Counted::Tally(Tally::Started, kind)) => Some(kind.clone()),
        _ => None,
    });
    let kinds: Vec<&str> = containers.iter().map(|(_, kind)| kind.as_str()).collect();
    assert_eq!(kinds, ["init_container", "container"]);
    let pulls = w.saw(|op| match op {
        Op::Count(Counted::ImagePull(bytes, _)) => Some(*bytes),
        _ => None,
    });
    assert!(matches!(pulls.as_slice(), [(_, bytes)] if *bytes > 0), "{pulls:?}");
}
