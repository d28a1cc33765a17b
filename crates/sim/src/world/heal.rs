//! The end of trouble: what fails no more, what was held up and comes now, and what still lasts a while.

use carrack_engine::Time;

use super::{Happening, World};
use crate::hosted::Hosted;
use crate::options::OtherFaults;
use crate::role::Role;

impl World {
    pub(super) fn heal(&mut self) {
        let now = self.queue.now();
        self.mark(format_args!("nothing fails from here on"));
        self.healed = Some(now);
        self.swarm.heal();
        self.swarm.others = OtherFaults::of(false);
        self.net.heal();
        // What a cut link has held up would come when the cut was to end, and hold up all that is said after it.
        for conn in self.server.hurry(now) {
            self.queue.at(now, Happening::Item(conn));
        }
        self.gpus.heal();
        self.flex.heal();
        self.issuer.heal();
        self.room.heal();
        self.rack.is_honest();
        self.set_server();
        for node in self.nodes.values_mut() {
            node.faults = self.swarm.node;
            node.guests.hangs_one_in = 0;
            node.disk.heal();
            if let Some(low) = &mut node.low {
                low.heal();
            }
        }
        // Who is being shut down stays. Where no kubelet is, none was told.
        for number in self.nodes.keys().copied().collect::<Vec<_>>() {
            let life = self.life(Role::Kubelet(number)).unwrap_or_default();
            let Some(node) = self.nodes.get_mut(&number) else { continue };
            let follow = [node.stays(life), node.plugins.heal(now), node.heals_copies(), node.all_return(now, life)];
            self.follow(number, follow.into_iter().flatten().collect());
        }
        for number in self.vanished.clone() {
            self.power(number, true);
        }
        let extender = self.processes.get_mut(&Role::Extender).and_then(|p| p.hosted.as_mut());
        if let Some(Hosted::Extender(core, _)) = extender {
            core.heal();
        }
    }

    /// Since when nothing fails any more and somebody serves the API: a server that was down when trouble ended comes back in its
    /// own time, and nobody can do anything before. None: not yet.
    pub(super) fn calm(&self) -> Option<Time> {
        let healed = self.healed?;
        match self.checker.outages.last() {
            None => Some(healed),
            Some((_, back)) => back.map(|back| back.max(healed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use carrack_engine::WatchItem;

    use super::*;
    use crate::options::Options;
    use crate::small::Base;
    use crate::world::Born;

    /// A cluster with one node, one API server and pods, in which nothing fails by itself.
    fn world() -> World {
        let options = Options { small: true, faults: false, ..Options::default() };
        let mut world = Born::new(Base::of(1), &options).expect("a cluster").world(1);
        assert_eq!((world.nodes.len(), world.server.count()), (1, 1));
        world.faults.clear();
        world
    }

    fn plays(world: &mut World, length: Duration) {
        let until = world.queue.now() + length;
        world.queue.at(until, Happening::Look);
        while world.queue.now() < until {
            let happening = world.queue.pop().expect("something happens");
            world.happen(happening);
        }
    }

    #[test]
    fn what_a_cut_link_has_held_up_comes_when_it_is_whole() {
        let (mut world, kubelet) = (world(), Role::Kubelet(1));
        let begun = world.queue.now();
        world.net.cut(kubelet, begun + Duration::from_secs(90));
        let conn = world.server.conn_of(kubelet).expect("a watch");
        let revision = carrack_store::Store::revision(&*world.server.mem);
        let line = format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{revision}"}}}}}}"#
        );
        world.put(conn, WatchItem::Event(line.clone().into()));
        plays(&mut world, Duration::from_secs(1));
        assert!(world.server.held_up(conn) > 0, "nothing is held up");
        world.heal();
        world.put(conn, WatchItem::Event(line.into()));
        plays(&mut world, Duration::from_millis(5));
        assert_eq!(world.server.held_up(conn), 0);
    }

    #[test]
    fn calm_begins_when_somebody_serves() {
        let mut world = world();
        let down = Duration::from_secs(60);
        world.server_crash(0, down);
        let back = world.queue.now() + down;
        assert_eq!(world.calm(), None, "trouble goes on");
        world.heal();
        assert_eq!(world.calm(), None, "nobody serves");
        plays(&mut world, down);
        assert_eq!(world.calm(), Some(back));
    }

    #[test]
    fn calm_begins_with_the_end_of_trouble() {
        let mut world = world();
        world.server_crash(0, Duration::from_secs(1));
        plays(&mut world, Duration::from_secs(2));
        world.heal();
        assert_eq!(world.calm(), world.healed);
    }
}
