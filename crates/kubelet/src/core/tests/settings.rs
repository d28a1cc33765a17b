//! Config maps that change under the pods that have them as files.

use super::*;
use crate::config::ChangeDetection;
use crate::volumes::VolumeKind;

const SETTINGS: &str = "/api/v1/namespaces/n/configmaps/settings";

fn reader() -> Value {
    json!({
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent",
            "volumeMounts": [{"name": "settings", "mountPath": "/settings"}]}],
        "volumes": [{"name": "settings", "configMap": {"name": "settings", "optional": true}}],
    })
}

impl World {
    /// Changes the config map, for those who watch it to hear.
    fn set(&mut self, word: &str, immutable: bool) {
        let object =
            json!({"metadata": {"name": "settings", "namespace": "n"}, "immutable": immutable, "data": {"word": word}});
        let news = self.api.put(SETTINGS, object);
        self.tell(news);
    }

    /// What the files of all pods say.
    fn words(&self) -> Vec<String> {
        let of_files = |kind: &VolumeKind| match kind {
            VolumeKind::Files { files, .. } => {
                Some(files.iter().map(|f| String::from_utf8_lossy(&f.data).into_owned()).collect())
            }
            _ => None,
        };
        self.node.volumes.values().filter_map(of_files).collect()
    }

    fn watches_of_settings(&self) -> Vec<WatchId> {
        self.api.watches.iter().filter(|(_, s)| s.as_str() == "configmaps/settings").map(|(id, _)| *id).collect()
    }

    fn with_reader(seed: u64, immutable: bool) -> Self {
        let mut w = Self::new(seed);
        w.edit_or_create_node();
        w.set("a", immutable);
        w.create("p", reader());
        w.run(5);
        assert_eq!(w.words(), ["a"], "seed {seed}");
        w
    }

    fn restart_detecting(&mut self, change_detection: ChangeDetection) {
        self.restart_looking(change_detection, NodeConfig::default().sync_period);
    }

    fn restart_looking(&mut self, change_detection: ChangeDetection, sync_period: Duration) {
        let config = NodeConfig { node_name: "sim".into(), change_detection, sync_period, ..NodeConfig::default() };
        self.restart_as(KubeletCore::new(config, &Rng::new(1)));
    }
}

#[test]
fn a_change_is_in_the_files_within_a_second() {
    each_seed(|seed| {
        let mut w = World::with_reader(seed, false);
        w.create("q", reader());
        w.run(5);
        assert_eq!(w.watches_of_settings().len(), 1, "one for all pods that refer to it");
        w.set("b", false);
        w.run(1);
        assert_eq!(w.words(), ["b", "b"], "seed {seed}");
        w.delete(5);
        w.run(20);
        assert_eq!(w.watches_of_settings().len(), 1, "a pod still refers to it");
        w.set("c", false);
        w.run(1);
        assert_eq!(w.words(), ["c"], "seed {seed}");
        let now = w.now.rfc3339();
        w.edit(
            "/api/v1/namespaces/n/pods/q",
            json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": 1}}),
        );
        w.run(20);
        assert!(w.watches_of_settings().is_empty(), "seed {seed}: nobody refers to it");
    });
}

#[test]
fn what_cannot_change_is_not_watched() {
    let mut w = World::with_reader(2, true);
    assert!(w.watches_of_settings().is_empty());
    // A name that is given to another object is none of its pods' business.
    w.set("b", false);
    w.run(120);
    assert_eq!(w.words(), ["a"]);
    assert!(w.watches_of_settings().is_empty());
}

#[test]
fn what_cannot_be_read_stays_as_it_was() {
    each_seed(|seed| {
        let mut w = World::with_reader(seed, false);
        w.set_api_down(true);
        w.run(60);
        assert_eq!(w.words(), ["a"], "seed {seed}");
        w.restart_kubelet();
        w.run(60);
        assert_eq!(w.words(), ["a"], "seed {seed}");
        w.set("b", false);
        w.set_api_down(false);
        // The longest that an informer waits before it tries again.
        w.run(20);
        assert_eq!(w.words(), ["b"], "seed {seed}");
        let news = w.api.remove(SETTINGS);
        w.tell(news);
        w.run(1);
        assert_eq!(w.words(), [""], "seed {seed}: what is surely gone, and optional, is no file");
    });
}

#[test]
fn a_watch_that_fell_behind_is_begun_anew() {
    each_seed(|seed| {
        let mut w = World::with_reader(seed, false);
        let watches = w.watches_of_settings();
        w.api.watches.remove(&watches[0]);
        w.set("b", false);
        w.run(5);
        assert_eq!(w.words(), ["a"], "seed {seed}: nobody has told");
        let item = WatchItem::Closed(Some(refused(410, "Expired")));
        w.input(Input::Watch { id: watches[0], item });
        w.run(1);
        assert_eq!(w.words(), ["b"], "seed {seed}");
    });
}

#[test]
fn the_strategy_is_the_configurations() {
    for (detection, period_s, after_s, watches) in [
        (ChangeDetection::Watch, 60, 1, 1),
        (ChangeDetection::Cache, 60, 65, 0),
        (ChangeDetection::Get, 60, 65, 0),
        (ChangeDetection::Get, 30, 35, 0),
    ] {
        let mut w = World::with_reader(4, false);
        w.restart_looking(detection, Duration::from_secs(period_s));
        w.run(10);
        assert_eq!(w.watches_of_settings().len(), watches, "{detection:?}");
        w.set("b", false);
        w.run(after_s / 2);
        let soon = if watches == 1 { "b" } else { "a" };
        assert!(after_s == 1 || w.words() == [soon], "{detection:?}");
        w.run(after_s - after_s / 2);
        assert_eq!(w.words(), ["b"], "{detection:?}");
    }
}

/// What a pod is made of is as it was when the pod was made, or newer, whatever was read for others before.
#[test]
fn a_new_pod_finds_no_old_words() {
    for detection in [ChangeDetection::Watch, ChangeDetection::Cache, ChangeDetection::Get] {
        let mut w = World::with_reader(6, false);
        w.restart_detecting(detection);
        w.run(10);
        w.set("b", false);
        w.create("q", reader());
        w.run(5);
        assert_eq!(w.words(), ["b", "b"], "{detection:?}");
    }
}
