//! Static pods from a URL, beside those from files; and who has a say in when they end.

use super::*;
use crate::spec::manifest::{Manifest, read_answer};
use crate::static_url::{Headers, StaticUrl};

const URL: &str = "http://m.example.com/pods";
const OF_FILE: &str = "/api/v1/namespaces/n/pods/web-sim";
const OF_URL: &str = "/api/v1/namespaces/n/pods/db-sim";

fn both() -> NodeConfig {
    NodeConfig {
        node_name: "sim".into(),
        static_pod_path: Some("/manifests".into()),
        file_check_period: Duration::from_secs(3),
        static_pod_url: Some(StaticUrl::new(URL, &Headers::default()).expect("a URL")),
        http_check_period: Duration::from_secs(4),
        ..NodeConfig::default()
    }
}

fn answered() -> Vec<Manifest> {
    let container = json!({"name": "c", "image": "other", "imagePullPolicy": "IfNotPresent"});
    let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "db", "namespace": "n"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}]});
    let pods = read_answer(list.to_string().as_bytes(), URL, "sim").expect("pods");
    pods.into_iter().map(|pod| Manifest { path: URL.into(), pod: Ok(Box::new(pod)) }).collect()
}

/// Images of what runs.
fn running(w: &World) -> Vec<&str> {
    let all = w.node.containers.values().filter(|c| c.record.may_run());
    let mut images: Vec<&str> = all.map(|c| c.record.image.as_str()).collect();
    images.sort_unstable();
    images
}

#[test]
fn what_cannot_be_asked_keeps_its_pods_and_what_answers_nothing_ends_them() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.restart_kubelet_as(both());
        w.edit_or_create_node();
        w.node.images.insert("other".into());
        // Nobody answers yet, which holds up no pod of a file, and is told once.
        w.node.manifests = Some(vec![manifest("busybox")]);
        w.node.answers = None;
        w.run(30);
        assert_eq!(running(&w), ["busybox"], "seed {seed}");
        assert_eq!(w.api.objects[OF_FILE]["status"]["phase"], "Running", "seed {seed}");
        assert_eq!(w.api.events.iter().filter(|e| *e == "FailedStaticPod").count(), 1, "seed {seed}");
        w.node.answers = Some(answered());
        w.run(20);
        assert_eq!(running(&w), ["busybox", "other"], "seed {seed}");
        let mirror = &w.api.objects[OF_URL];
        assert_eq!(mirror["status"]["phase"], "Running", "seed {seed}: {mirror}");
        assert_eq!(mirror["metadata"]["annotations"]["kubernetes.io/config.source"], "http");
        let started = |w: &World| w.node.containers.values().map(|c| c.record.started_at).collect::<Vec<_>>();
        let before = started(&w);
        // Silence is no answer, also to a kubelet that starts.
        w.node.answers = None;
        w.run(10);
        w.restart_kubelet_as(both());
        w.run(30);
        assert_eq!((running(&w), started(&w)), (vec!["busybox", "other"], before), "seed {seed}");
        assert!(w.api.objects.contains_key(OF_FILE) && w.api.objects.contains_key(OF_URL), "seed {seed}");
        // One that is empty ends what is from there, and nothing else.
        w.node.answers = Some(Vec::new());
        w.run(30);
        assert_eq!(running(&w), ["busybox"], "seed {seed}");
        assert!(w.api.objects.contains_key(OF_FILE) && !w.api.objects.contains_key(OF_URL), "seed {seed}");
    });
}

/// As who collects the pods of nodes that have no Node any more says of their mirrors. (The pod ended for good, also for a kubelet
/// that was started again.)
#[test]
fn nobody_else_says_that_a_static_pod_is_over() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        w.node.manifests = Some(vec![manifest("busybox")]);
        w.run(10);
        let started = |w: &World| w.node.containers.values().map(|c| c.record.started_at).collect::<Vec<_>>();
        let before = started(&w);
        for (restarts, shown) in [(false, json!({})), (true, json!({})), (true, json!({"containerStatuses": null}))] {
            w.edit(OF_FILE, json!({"status": shown}));
            w.edit(OF_FILE, json!({"status": {"phase": "Failed"}}));
            if restarts {
                w.restart_kubelet();
            }
            w.run(10);
            assert_eq!((running(&w), started(&w)), (vec!["busybox"], before.clone()), "seed {seed}, {restarts}");
            assert_eq!(w.api.objects[OF_FILE]["status"]["phase"], "Running", "seed {seed}, {restarts}");
        }
        w.edit(OF_FILE, json!({"status": {"phase": "Failed"}}));
        let news = w.api.remove(OF_FILE);
        w.tell(news);
        w.run(10);
        assert_eq!((running(&w), started(&w)), (vec!["busybox"], before), "seed {seed}");
        assert_eq!(w.api.objects[OF_FILE]["status"]["phase"], "Running", "seed {seed}");
    });
}

/// What the runtime shows says it again to a kubelet that was started again, and its restart policy.
#[test]
fn a_static_pod_that_has_ended_does_so_once() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        let text = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "n"},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent"}]}});
        let path = "/manifests/web.json".to_owned();
        let pod = crate::spec::manifest::read(text.to_string().as_bytes(), &path, "sim").map(Box::new);
        w.node.manifests = Some(vec![Manifest { path, pod }]);
        w.run(10);
        assert_eq!(running(&w), ["busybox"], "seed {seed}");
        let ids: Vec<String> = w.node.containers.keys().cloned().collect();
        w.node.exit(w.now, &ids[0], 0);
        w.run(10);
        for said in ["Succeeded", "Failed"] {
            w.edit(OF_FILE, json!({"status": {"phase": said}}));
            w.restart_kubelet();
            w.run(10);
            assert_eq!(w.node.containers.keys().cloned().collect::<Vec<_>>(), ids, "seed {seed}, {said}");
            assert_eq!(running(&w), Vec::<&str>::new(), "seed {seed}, {said}");
            // How it has ended was said: what somebody makes of that afterwards is his.
            assert_eq!(w.api.objects[OF_FILE]["status"]["phase"], said, "seed {seed}, {said}");
        }
    });
}

/// (Its status was told no more, until somebody else wrote it.)
#[test]
fn a_mirror_that_is_seen_before_its_pod_is_told_of_it() {
    for has_record in [true, false] {
        each_seed(|seed| {
            let mut w = World::new(seed);
            w.edit_or_create_node();
            w.node.manifests = Some(vec![manifest("busybox")]);
            w.run(10);
            w.edit(OF_FILE, json!({"status": {"phase": "Pending"}}));
            w.node.manifests = None;
            w.node.records.retain(|name, _| has_record || !name.starts_with("pod-"));
            w.restart_kubelet();
            w.run(10);
            w.node.manifests = Some(vec![manifest("busybox")]);
            w.run(10);
            assert_eq!(running(&w), ["busybox"], "seed {seed}, {has_record}");
            assert_eq!(w.api.objects[OF_FILE]["status"]["phase"], "Running", "seed {seed}, {has_record}");
        });
    }
}
