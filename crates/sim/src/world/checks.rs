//! What is looked at after each step, and once a second: invariants, and what is still lacking.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;

use super::{Happening, STAYS, STAYS_SMALL, World};
use crate::hosted::Hosted;
use crate::invariants::Breach;
use crate::node::Node;
use crate::role::{Role, node_name};
use crate::trace::Weight;
use crate::workload::User;

impl World {
    pub(super) fn check(&mut self) {
        let changes = self.observer.changes(&self.server.mem);
        self.noticed(&changes);
        self.shown_to_meddlers(&changes);
        for change in &changes {
            self.picture.change(self.queue.now(), change);
            if let Some(text) = crate::observer::describe(change) {
                self.trace.line(self.queue.now(), Weight::Act, format_args!("  {text}"));
            }
        }
        self.checker.changed(self.queue.now(), &changes, &self.observer, &self.nodes, &mut self.breaches);
        for gone in changes.iter().filter(|change| change.resource == "namespace" && change.after.is_none()) {
            let namespace = crate::observer::key_of(gone.object());
            if let Some(meter) = self.server.meters.any_in(&namespace) {
                let what = format!("{namespace} is gone, and another server keeps the meter {meter} in it");
                self.breaches.push(Breach::new("namespaces-go-empty", what));
            }
        }
        for gone in changes.iter().filter(|change| change.resource == "secret" && change.after.is_none()) {
            self.nodes.values_mut().for_each(|node| node.images.secret_gone(self.queue.now(), gone.object()));
        }
        if self.options.gpus {
            crate::gpu::bounds(&changes, &self.observer, &mut self.breaches);
            self.check_gpus(&changes);
        }
        if changes.iter().any(|change| matches!(change.resource, "claim" | "volume")) {
            for (number, node) in &self.nodes {
                crate::node::traces(*number, &node.storage, &self.observer, &mut self.breaches);
            }
        }
        crate::growth::told(&changes, &self.observer, &self.nodes, &mut self.breaches);
        self.sizes.changed(&changes, &mut self.breaches);
        crate::critical::changed(&changes, &self.observer, &mut self.breaches);
        crate::reimaged::changed(&changes, &self.nodes, &mut self.breaches);
        crate::probed::changed(&changes, &self.nodes, &mut self.breaches);
        crate::asked::changed(&changes, &self.nodes, &mut self.breaches);
        crate::gates::changed(&changes, &mut self.breaches);
        crate::debuggers::changed(&changes, &mut self.breaches);
        if self.healed.is_none() {
            let asleep = crate::sleepers::end_asleep(&changes, &self.nodes, &self.root);
            let watchers = crate::rounds::ends(&changes, &self.nodes, &self.root);
            let debuggers = crate::debuggers::ends(&changes, &self.nodes, &self.root);
            for (number, after, event) in asleep.into_iter().chain(watchers).chain(debuggers) {
                self.queue.after(after, Happening::Node(number, event));
            }
        }
        self.zones.changed(self.queue.now(), &changes, &mut self.breaches);
        crate::nominations::bound(&changes, &mut self.breaches);
        crate::lost_data::bound(&changes, &self.observer, &mut self.breaches);
        self.cordons.changed(&changes);
        self.heritage.changed(&changes, &mut self.breaches);
        for request in crate::controllers::belongings(&changes) {
            self.queue.after(Duration::from_millis(100), Happening::Planted(Role::User, Box::new(request)));
        }
        for request in crate::evictions::unlabels(self.options.hint(), &changes) {
            self.queue.after(Duration::from_millis(100), Happening::Planted(Role::User, Box::new(request)));
        }
        for request in crate::gates::sightings(&changes) {
            self.queue.after(Duration::from_millis(100), Happening::Planted(Role::User, Box::new(request)));
        }
        for request in crate::impostors::pictures(&changes) {
            self.queue.after(Duration::from_millis(100), Happening::Planted(Role::User, Box::new(request)));
        }
        if crate::given::is_looked_after(self.bug()) {
            self.given.changed(self.queue.now(), &changes);
            self.given.look(&mut self.nodes, &self.observer, &mut self.breaches);
        }
        if self.options.machines {
            self.machines.changed(self.queue.now(), &changes, &self.observer, &self.nodes, &mut self.breaches);
            self.reruns.changed(&changes, &self.observer, &mut self.breaches);
            self.fickle.changed(&changes, &mut self.breaches);
        }
        if self.options.clones {
            self.begin_fate(&changes);
        }
        if self.options.has_machines() || self.options.clones {
            self.clones.changed(self.queue.now(), &changes, &self.observer, &self.nodes, &mut self.breaches);
        }
        if self.options.copies {
            self.check_room(&changes);
        }
        self.end_forced_copies(&changes);
        // A late writer is a second guest as well; what let it in is said first.
        self.breaches.extend(self.writers.breaches());
        self.checker.nodes(&self.nodes, &self.observer, &mut self.breaches);
        if self.statics.are_there() {
            crate::statics::once(&self.nodes, &mut self.breaches);
        }
        self.server.check(&mut self.breaches);
        if self.options.machines {
            self.roaming.changed(&changes, &self.observer, &self.nodes, &mut self.breaches);
        }
        self.roaming.taken(&self.rack, &self.nodes, &mut self.breaches);
    }

    pub(super) fn user(&self) -> Option<&User> {
        match self.processes.get(&Role::User)?.hosted.as_ref()? {
            Hosted::User(user, _) => Some(user),
            _ => None,
        }
    }

    /// Looks whether all is as it was asked to be, and for how long it has been.
    pub(super) fn look(&mut self) {
        let now = self.queue.now();
        self.queue.after(Duration::from_secs(1), Happening::Look);
        self.check_schedulers();
        self.drain();
        self.write_manifests();
        let small_pages = crate::pages::are_played(&self.root, self.bug());
        for (role, process) in &self.processes {
            if let (Role::Kubelet(number), Some(Hosted::Kubelet(core, _))) = (role, &process.hosted) {
                crate::resizes::set_aside(core, *number, &mut self.breaches);
            }
            if let Some(Hosted::Manager(core, _)) = process.hosted.as_ref().filter(|_| small_pages) {
                crate::pages::look(*role, core, &self.observer, &mut self.breaches);
            }
        }
        let Some(healed) = self.healed else {
            self.look_for_unwanted(now);
            return;
        };
        let lacking = match self.calm() {
            None => "no API server is there".to_owned(),
            Some(calm) => {
                self.look_for_time(now, calm);
                self.user().map_or_else(|| "nobody is there".to_owned(), |user| self.lacking_of(user))
            }
        };
        if lacking.is_empty() {
            let since = *self.good_since.get_or_insert(now);
            self.over = now.since(since) >= if self.options.small { STAYS_SMALL } else { STAYS };
        } else {
            self.good_since = None;
            if now.since(healed) > self.options.liveness {
                self.breaches.push(Breach::new("liveness", lacking.clone()));
            }
        }
        if lacking != self.lacking {
            self.mark(format_args!("lacking: {}", if lacking.is_empty() { "nothing" } else { &lacking }));
            self.lacking = lacking;
        }
    }

    /// What kubelets that could act have not unmounted.
    fn look_for_unwanted(&mut self, now: Time) {
        let mut known = BTreeMap::new();
        for (role, process) in self.processes.iter().filter(|(_, p)| !p.ending && !p.hang.hung(now)) {
            if let (Role::Kubelet(number), Some(Hosted::Kubelet(core, _))) = (role, &process.hosted) {
                known.insert(*number, core.going().cloned().collect());
            }
        }
        self.unwanted.look(now, &known, &self.nodes, &mut self.breaches);
    }

    /// What has only so much time once nothing fails any more.
    fn look_for_time(&mut self, now: Time, calm: Time) {
        self.check_nominations();
        self.passing.look(now, &self.observer, &mut self.breaches);
        self.checker.leaving(now, &self.observer, &self.nodes, &mut self.breaches);
        self.growth.look(now, &self.observer, &self.nodes, &mut self.breaches);
        self.resizes.look(now, &self.observer, &self.nodes, &mut self.breaches);
        self.settings.look(now, &self.observer, &self.nodes, &mut self.breaches);
        let has_kubelet =
            |node: &&Node| node.up && self.processes.get(&Role::Kubelet(node.number)).is_some_and(|p| p.works(now));
        let nodes = self.nodes.values().filter(has_kubelet);
        self.registered.look(now, nodes, &self.observer, &mut self.breaches);
        self.look_at_mirrors(now);
        crate::tokens::look(now, calm, &self.observer, &self.nodes, &mut self.breaches);
        let none = BTreeMap::new();
        let wants = match self.processes.get(&Role::User).and_then(|process| process.hosted.as_ref()) {
            Some(Hosted::User(user, _)) => user.wants(),
            _ => &none,
        };
        self.machines.look(now, calm, wants, &self.observer, &self.nodes, &mut self.breaches);
        if self.options.machines {
            let up = |number: &u8| {
                let mut agents = [Role::Kubelet(*number), Role::VirtHandler(*number)].into_iter();
                agents.all(|role| self.processes.get(&role).is_some_and(|p| p.works(now)))
            };
            let up: BTreeSet<u8> = self.nodes.keys().copied().filter(up).collect();
            self.disks.look(now, calm, &up, &self.observer, &self.nodes, &mut self.breaches);
            let is_dead = |node: &str| self.machines.has_left(node, calm, now);
            self.roaming.look(is_dead, &self.observer, &mut self.breaches);
        }
        if self.options.gpus {
            self.waiting.look(now, &self.observer, &mut self.breaches);
        }
    }

    /// What is not as it was asked to be; empty when all is.
    pub(super) fn lacking_of(&self, user: &User) -> String {
        if !user.done() {
            return user.failures().first().cloned().unwrap_or_else(|| "not everything was asked for yet".into());
        }
        if let Some(failure) = user.failures().first() {
            return failure.clone();
        }
        if let Some(why) = self.drains.lack(&self.observer) {
            return why;
        }
        for node in self.nodes.values().filter(|node| !node.gone) {
            if let Some(why) = crate::wants::node_lacks(&self.observer, &node_name(node.number)) {
                return why;
            }
        }
        let finicky = self.swarm.extender.is_some_and(|verbs| verbs.finicky);
        let crossed = |pod: &serde_json::Value| self.checker.crossed(pod);
        let may_be_gone = |pod: &str| self.lost || self.drains.may_be_gone(pod);
        let (observer, nodes) = (&self.observer, &self.nodes);
        let lacking = crate::wants::lacking(user.wants(), observer, nodes, &may_be_gone, finicky, &crossed);
        lacking
            .or_else(|| self.reruns.lack(&self.observer, &self.nodes))
            .or_else(|| self.settings.lack())
            .or_else(|| self.growth.lack())
            .or_else(|| self.resizes.lack())
            .or_else(|| crate::gates::lack(&self.observer))
            .or_else(|| crate::debuggers::lack(&self.observer))
            .or_else(|| self.registered.lack())
            .or_else(|| self.statics.lack(&self.nodes, &self.observer))
            .or_else(|| crate::tokens::lack(self.healed?, &self.observer, &self.nodes))
            .or_else(|| self.nominations.lack())
            .or_else(|| crate::pressure::lack(&self.observer, &self.nodes))
            .or_else(|| crate::heritage::lack(&self.observer).filter(|_| self.options.machines))
            .or_else(|| crate::imports::lack(&self.observer))
            .or_else(|| self.backups_lack())
            .or_else(|| crate::controllers::left(&self.observer))
            .or_else(|| crate::controllers::volumes_left(&self.observer))
            .or_else(|| crate::controllers::strangers_left(&self.observer))
            .or_else(|| self.gpus_lack())
            .or_else(|| self.clones_lack())
            .unwrap_or_default()
    }

    /// What is lacking of machines on whole nodes that are snapshotted, cloned and restored.
    fn backups_lack(&self) -> Option<String> {
        let is_there = self.options.machines && self.options.has_whole_nodes();
        let stray = || self.clones.stray(&self.observer);
        let lack = || crate::backups::lack(self.queue.now(), &self.observer, &self.nodes).or_else(stray);
        is_there.then(lack).flatten()
    }
}
