//! Images that were pulled with secrets, and who may use them then.

use super::*;

const IMAGE: &str = "r.io/a:1";

fn pod_of(policy: &str, secret: Option<&str>) -> Value {
    let container = json!({"name": "c", "image": IMAGE, "imagePullPolicy": policy});
    let secrets: Vec<Value> = secret.into_iter().map(|name| json!({"name": name})).collect();
    json!({"terminationGracePeriodSeconds": 1, "containers": [container], "imagePullSecrets": secrets})
}

impl World {
    /// A node, and a registry that gives the image to one user; secrets with his credentials, and with another's.
    fn with_registry(seed: u64) -> Self {
        let mut w = Self::new(seed);
        w.edit_or_create_node();
        w.node.registry.insert(IMAGE.into(), Some("u".into()));
        for (name, user) in [("s", "u"), ("t", "u"), ("other", "v")] {
            let config = json!({"auths": {"r.io": {"username": user, "password": "p"}}}).to_string();
            let config = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, config);
            let secret = json!({"metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")},
                "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": config}});
            let news = w.api.put(&format!("/api/v1/namespaces/n/secrets/{name}"), secret);
            w.tell(news);
        }
        w
    }

    /// Whether a pod's container runs, or what it waits for.
    fn waits_for(&self, pod: &str) -> String {
        let state = &self.api.objects[&format!("/api/v1/namespaces/n/pods/{pod}")]["status"]["containerStatuses"][0];
        let state = &state["state"];
        if state["running"].is_object() {
            return "nothing".into();
        }
        state["waiting"]["reason"].as_str().unwrap_or("something").to_owned()
    }

    fn documents(&self, prefix: &str) -> usize {
        self.node.records.keys().filter(|name| name.starts_with(prefix)).count()
    }
}

#[test]
fn who_cannot_pull_an_image_does_not_use_it() {
    for (policy, secret, runs, asks) in [
        ("IfNotPresent", Some("s"), true, false),
        ("Never", Some("s"), true, false),
        // The same credentials in another secret.
        ("Never", Some("t"), true, false),
        ("IfNotPresent", None, false, true),
        ("IfNotPresent", Some("other"), false, true),
        ("Never", None, false, false),
    ] {
        for restarts in [false, true] {
            let mut w = World::with_registry(1);
            w.create("p", pod_of("IfNotPresent", Some("s")));
            w.run(5);
            assert_eq!((w.waits_for("p").as_str(), w.node.pulled_as.len()), ("nothing", 1));
            assert_eq!((w.documents("pulled-"), w.documents("pulling-")), (1, 0));
            if restarts {
                w.restart_kubelet();
            }
            w.create("q", pod_of(policy, secret));
            w.run(5);
            let what = format!("{policy} {secret:?} {restarts}: {}", w.waits_for("q"));
            assert_eq!((w.waits_for("q") == "nothing", w.node.pulled_as.len() > 1), (runs, asks), "{what}");
            if policy == "Never" && !runs {
                assert_eq!(w.waits_for("q"), "ErrImageNeverPull");
            }
            assert_eq!(w.waits_for("p"), "nothing");
            let kept = w.node.records.values().map(|body| String::from_utf8_lossy(body)).collect::<String>();
            assert!(!kept.contains("dockerconfigjson"), "{kept}");
        }
    }
}

#[test]
fn what_anybody_may_pull_everybody_may_use() {
    let mut w = World::with_registry(2);
    w.node.registry.insert(IMAGE.into(), None);
    w.create("p", pod_of("IfNotPresent", None));
    w.run(5);
    w.create("q", pod_of("Never", None));
    w.run(5);
    assert_eq!((w.waits_for("q").as_str(), w.node.pulled_as.len()), ("nothing", 1));
}

/// With the node's own credentials nobody needs any: they do for all pods of the node, and a pod's own are tried before.
#[test]
fn what_the_node_can_pull_all_its_pods_may_use() {
    for (own, secret, is_open) in [
        (Some("u"), None, true),
        (Some("u"), Some("other"), true),
        (Some("u"), Some("s"), false),
        (Some("v"), None, false),
    ] {
        for restarts in [false, true] {
            let mut w = World::with_registry(3);
            w.node.own_user = own.map(str::to_owned);
            w.create("p", pod_of("IfNotPresent", secret));
            w.run(5);
            if restarts {
                w.restart_kubelet();
            }
            w.create("q", pod_of("Never", None));
            w.run(5);
            assert_eq!(w.waits_for("q") == "nothing", is_open, "{own:?} {secret:?} {restarts}: {}", w.waits_for("q"));
        }
    }
}

#[test]
fn with_what_an_image_was_pulled_is_on_disk_before_it_is_used() {
    each_seed(|seed| {
        let mut w = World::with_registry(seed);
        w.create("p", pod_of("IfNotPresent", Some("s")));
        w.run(5);
        let at = |is_it: &dyn Fn(&Op) -> bool| w.asked.iter().position(|(_, op)| is_it(op));
        let noted = at(&|op: &Op| matches!(op, Op::SaveRecord { name, .. } if name.starts_with("pulled-")));
        let used = at(&|op: &Op| matches!(op, Op::CreateContainer(..)));
        assert!(noted.is_some() && noted < used, "seed {seed}: {noted:?} {used:?}");
    });
}

#[test]
fn a_container_that_waits_for_the_disk_says_so() {
    for (unwritten, pulls) in [("pulling-", 0), ("pulled-", 1)] {
        let mut w = World::with_registry(6);
        w.node.unwritten = Some(unwritten);
        w.create("p", pod_of("IfNotPresent", Some("s")));
        w.run(5);
        assert_eq!((w.waits_for("p").as_str(), w.node.pulled_as.len()), ("ErrImagePull", pulls), "{unwritten}");
        w.node.unwritten = None;
        w.run(5);
        assert_eq!((w.waits_for("p").as_str(), w.node.pulled_as.len()), ("nothing", 1), "{unwritten}");
    }
}

/// Also where the secret is gone, and the registry is not there. Another pod does not.
#[test]
fn a_pod_uses_again_what_it_has_used() {
    each_seed(|seed| {
        let mut w = World::with_registry(seed);
        w.create("p", pod_of("IfNotPresent", Some("s")));
        w.run(5);
        assert_eq!(w.waits_for("p"), "nothing", "seed {seed}");
        w.node.registry.clear();
        let news = w.api.remove("/api/v1/namespaces/n/secrets/s");
        w.tell(news);
        w.restart_kubelet();
        w.run(5);
        let first = w.node.containers.keys().next().unwrap().clone();
        w.node.exit(w.now, &first, 1);
        w.create("q", pod_of("IfNotPresent", Some("s")));
        w.run(60);
        let runs = ["uid-p", "uid-q"].map(|uid| !w.node.running(uid).is_empty());
        assert_eq!(runs, [true, false], "seed {seed}");
    });
}

/// A life of the kubelet that ends while an image is being pulled does not open it to everybody.
#[test]
fn an_image_of_an_earlier_life_is_verified() {
    each_seed(|seed| {
        let mut w = World::with_registry(seed);
        w.create("p", pod_of("IfNotPresent", Some("s")));
        while !w.node.images.contains(IMAGE) {
            w.next();
        }
        w.node.registry.clear();
        w.restart_kubelet();
        w.run(15);
        assert_eq!(w.documents("pulled-"), 1, "seed {seed}");
        w.create("q", pod_of("Never", None));
        w.run(5);
        assert_eq!(w.waits_for("q"), "ErrImageNeverPull", "seed {seed}");
        // Who can pull it has it, and his secret does from then on.
        w.node.registry.insert(IMAGE.into(), Some("u".into()));
        w.run(120);
        w.create("r", pod_of("Never", Some("t")));
        w.run(5);
        let all = ["p", "q", "r"].map(|pod| w.waits_for(pod));
        assert_eq!(all, ["nothing", "ErrImageNeverPull", "nothing"], "seed {seed}");
        assert_eq!(w.documents("pulling-"), 0, "seed {seed}");
    });
}

#[test]
fn a_pull_that_fails_takes_nobody_an_image_that_was_there() {
    let mut w = World::with_registry(3);
    w.node.registry.clear();
    w.node.images.insert(IMAGE.into());
    w.create("p", pod_of("Always", Some("other")));
    w.run(5);
    assert_eq!((w.node.pulled_as.len(), w.documents("pull")), (1, 0));
    w.create("q", pod_of("Never", None));
    w.run(3);
    assert_eq!(w.waits_for("q"), "nothing");
}

/// The runtime may be restarted when it has an image and before it says so.
#[test]
fn a_pull_that_is_said_to_have_failed_opens_nothing() {
    each_seed(|seed| {
        let mut w = World::with_registry(seed);
        w.node.pulls_hiccup = true;
        w.create("p", pod_of("IfNotPresent", Some("s")));
        while !w.node.images.contains(IMAGE) {
            w.next();
        }
        w.create("q", pod_of("Never", None));
        w.create("r", pod_of("IfNotPresent", Some("other")));
        w.run(5);
        let runs = ["uid-q", "uid-r"].map(|uid| !w.node.running(uid).is_empty());
        assert_eq!((runs, w.documents("pulled-")), ([false; 2], 1), "seed {seed}");
        w.node.pulls_hiccup = false;
        w.run(120);
        let all = ["p", "q"].map(|pod| w.waits_for(pod));
        assert_eq!(all, ["nothing", "ErrImageNeverPull"], "seed {seed}");
        assert!(w.node.running("uid-r").is_empty(), "seed {seed}");
    });
}

#[test]
fn a_record_goes_with_its_image() {
    let mut w = World::with_registry(4);
    w.create("p", pod_of("IfNotPresent", Some("s")));
    w.run(5);
    w.delete(1);
    w.run(20);
    w.assert_clean();
    assert_eq!(w.documents("pulled-"), 1);
    w.node.images.remove(IMAGE);
    w.run(700);
    assert_eq!(w.documents("pulled-"), 0);
}

#[test]
fn the_policy_says_what_is_verified() {
    for (name, list, preloaded_runs, pulled_runs) in [
        ("NeverVerify", &[][..], true, true),
        ("NeverVerifyPreloadedImages", &[], true, false),
        ("NeverVerifyAllowlistedImages", &["r.io/*".to_owned()], true, true),
        ("NeverVerifyAllowlistedImages", &[], false, false),
        ("AlwaysVerify", &[], false, false),
    ] {
        for (is_pulled, runs) in [(false, preloaded_runs), (true, pulled_runs)] {
            let mut w = World::with_registry(5);
            let image_verification = crate::pulled::Verification::named(name, list).unwrap();
            let config = NodeConfig { node_name: "sim".into(), image_verification, ..NodeConfig::default() };
            w.restart_kubelet_as(config);
            if is_pulled {
                w.create("p", pod_of("IfNotPresent", Some("s")));
                w.run(5);
            } else {
                w.node.images.insert(IMAGE.into());
            }
            w.create("q", pod_of("Never", None));
            w.run(5);
            assert_eq!(w.waits_for("q") == "nothing", runs, "{name} pulled: {is_pulled}");
        }
    }
}
