//! What people do with manifests on nodes ([`crate::statics`]).

use carrack_engine::{CallId, Time};

use super::World;
use crate::node::Node;
use crate::role::{Role, node_name};
use crate::server::Asked;
use crate::statics::{Deed, Statics};

impl World {
    /// What people do with manifests follows from the seed.
    pub(super) fn plan_statics(&mut self) {
        self.statics = Statics::new(self.queue.now(), &self.root, self.swarm.nodes, &self.options);
    }

    /// Does what people do with manifests now.
    pub(super) fn write_manifests(&mut self) {
        let now = self.queue.now();
        for deed in self.statics.due(now, &self.nodes, &self.observer) {
            match deed {
                Deed::Writes { number, name, text } => {
                    self.mark(format_args!("somebody writes the manifest {name} on {}", node_name(number)));
                    let Some(node) = self.nodes.get_mut(&number) else { continue };
                    let is_first = !node.manifests.are_read();
                    node.write_manifest(&name, &text);
                    if is_first {
                        self.crash(Role::Kubelet(number), "told to read manifests");
                    }
                }
                Deed::Removes { number, name } => {
                    self.mark(format_args!("somebody removes the manifest {name} from {}", node_name(number)));
                    if let Some(node) = self.nodes.get_mut(&number) {
                        node.remove_manifest(&name);
                    }
                }
                Deed::Restarts { number } => self.crash(Role::Kubelet(number), "started anew, as its Node is gone"),
                Deed::Asks(request) => {
                    self.mark(format_args!("who has to do with manifests asks {}", super::requests::label(&request)));
                    // Nobody waits for the reply.
                    self.send(Role::User, 0, Asked::Call(CallId(0)), request);
                }
            }
        }
    }

    /// Looks at manifests' mirrors, now that nothing fails any more.
    pub(super) fn look_at_mirrors(&mut self, now: Time) {
        let has_kubelet =
            |node: &&Node| node.up && self.processes.get(&Role::Kubelet(node.number)).is_some_and(|p| p.works(now));
        let nodes = self.nodes.values().filter(has_kubelet);
        self.statics.look(now, nodes, &self.observer, &mut self.breaches);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observer::text;
    use crate::options::Options;
    use crate::small::Base;
    use crate::world::{Born, Happening};

    const MIRROR: &str = "default/static0-node1";
    const TEXT: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "static0"},
        "spec": {"containers": [{"name": "main", "image": "sim/run", "imagePullPolicy": "IfNotPresent"}]}}"#;

    /// What the API and the node's runtime have of the pod.
    fn phases(world: &World) -> (Option<&str>, usize) {
        let told = world.observer.get("pod", MIRROR).map(|pod| text(pod, "/status/phase"));
        let running = world.nodes[&1].runtime.running().filter(|c| c.record.pod.name == "static0-node1");
        (told, running.count())
    }

    #[test]
    fn a_manifest_runs_and_is_mirrored_until_it_goes() {
        let options = Options { small: true, faults: false, ..Options::default() };
        let mut world = Born::new(Base::of(1), &options).expect("a cluster").world(1);
        world.faults.clear();
        let plays = |world: &mut World| {
            let until = world.queue.now() + Duration::from_secs(60);
            world.queue.at(until, Happening::Look);
            while world.queue.now() < until {
                let happening = world.queue.pop().expect("something happens");
                world.happens(happening);
            }
            assert!(world.breaches.is_empty(), "{:?}", world.breaches);
        };
        world.nodes.get_mut(&1).expect("a node").write_manifest("static0", TEXT);
        world.crash(Role::Kubelet(1), "told to read manifests");
        plays(&mut world);
        assert_eq!(phases(&world), (Some("Running"), 1));
        world.nodes.get_mut(&1).expect("a node").remove_manifest("static0");
        plays(&mut world);
        assert_eq!(phases(&world), (None, 0));
    }
}
