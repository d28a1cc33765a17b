//! How many images are pulled at a time, and in which order.

use super::*;

impl World {
    /// A node that pulls so many images at a time, each for so long, of a registry that has these.
    fn pulls(seed: u64, most: Option<usize>, lasts: Duration, pods: &[&str]) -> Self {
        let mut w = Self::new(seed);
        w.edit_or_create_node();
        w.node.registry.extend(pods.iter().map(|pod| (image_of(pod), None)));
        w.pulls_last = lasts;
        let config = NodeConfig { node_name: "sim".into(), parallel_pulls: most, ..NodeConfig::default() };
        w.restart_kubelet_as(config);
        w
    }

    /// A pod with an image of its own.
    fn create_pulled(&mut self, name: &str) {
        let container = json!({"name": "c", "image": image_of(name), "imagePullPolicy": "IfNotPresent"});
        self.create(name, json!({"terminationGracePeriodSeconds": 1, "containers": [container]}));
    }

    /// The images that were pulled, in their order.
    fn pulled(&self) -> Vec<String> {
        let image = |op: &Op| if let Op::PullImage { image, .. } = op { Some(image.clone()) } else { None };
        self.asked.iter().filter_map(|(_, op)| image(op)).collect()
    }
}

fn image_of(pod: &str) -> String {
    format!("r.io/{pod}:1")
}

#[test]
fn no_more_are_pulled_at_a_time_than_may_be() {
    let pods = ["a", "b", "c", "d", "e"];
    for (most, expected) in [(Some(1), 1), (Some(2), 2), (None, 5)] {
        each_seed(|seed| {
            let mut w = World::pulls(seed, most, Duration::from_secs(5), &pods);
            for pod in pods {
                w.create_pulled(pod);
            }
            let (mut peak, end) = (0, w.now + Duration::from_secs(60));
            while w.now < end {
                w.next();
                peak = peak.max(w.core.pulls.under_way());
            }
            assert_eq!(peak, expected, "seed {seed}");
            let running = pods.iter().filter(|pod| !w.node.running(&format!("uid-{pod}")).is_empty()).count();
            assert_eq!((running, w.pulled().len()), (5, 5), "seed {seed}, {most:?} at a time");
        });
    }
}

/// Whatever they are called, and though one of them goes while it waits.
#[test]
fn who_asked_first_is_first() {
    for (is_deleted, expected) in [(false, &["z", "p", "a"][..]), (true, &["z", "a"])] {
        each_seed(|seed| {
            let mut w = World::pulls(seed, Some(1), Duration::from_secs(60), &["z", "p", "a"]);
            for pod in ["z", "p", "a"] {
                w.create_pulled(pod);
                w.run(10);
            }
            assert_eq!(w.pulled(), [image_of("z")], "seed {seed}");
            if is_deleted {
                w.delete(1);
            }
            w.run(300);
            assert_eq!(w.pulled(), expected.iter().map(|pod| image_of(pod)).collect::<Vec<_>>(), "seed {seed}");
            assert!(!w.node.running("uid-a").is_empty(), "seed {seed}");
        });
    }
}
