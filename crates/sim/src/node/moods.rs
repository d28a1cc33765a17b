//! Device plugins in moods: what they list changes while they are registered, and what they are asked goes wrong.
//!
//! ```text
//!   well ─mood─▶ a device is ill ┐
//!                a device is gone ├─ for a while ─▶ well
//!                it lists nothing ┘
//!                a device falls ill and is well again, many times a second ─▶ well
//!                it lists each device twice, or registers once more ─▶ well
//! ```
//!
//! Only plugins of the simulator's own have moods: those that virt-handler serves are Carrack's. A kubelet knows as much of
//! that as it has heard, so what it asks for is held against that ([`Plugins::hears`]), at the moment at which it asks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::{In, Op, OpError, Outcome, Reply};

use super::plugins::{Plugin, Plugins};
use super::{Follow, NodeEvent};
use crate::chance::between;
use crate::invariants::Breach;

/// The invariants that are looked after here.
pub(crate) const WELL: &str = "devices-are-well-when-asked-for";
pub(crate) const NOTED: &str = "devices-are-noted-before-asked-for";

/// How often a restless device changes, and how soon.
const CHANGES: u32 = 12;
const RESTLESS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(120));
/// How late an answer may be. A kubelet waits for two minutes.
const LATE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What a kubelet has heard of a plugin.
#[derive(Debug)]
pub(super) struct Heard {
    epoch: u64,
    /// Devices, and whether each is well.
    devices: BTreeMap<String, bool>,
}

impl Plugin {
    /// Whether the simulator itself serves it.
    fn is_own(&self) -> bool {
        self.handler.is_none()
    }

    /// Whether it says at present that a device is there and well.
    fn says_well(&self, id: &str) -> bool {
        self.listed.iter().any(|device| device.id == id && device.healthy)
    }

    /// It lists its devices, this much later, and after all that it has listed before.
    fn list(&mut self, now: Time, resource: &str, after: Duration) -> Option<Follow> {
        let (life, epoch) = self.connected?;
        self.said = self.said.max(now + after);
        let devices = self.listed.clone();
        let list = In::PluginDevices { resource: resource.to_owned(), epoch, devices };
        Some(Follow::Kubelet(life, self.said.since(now), Box::new(list)))
    }

    /// It is well again, and says so.
    fn mends(&mut self, now: Time, resource: &str, follow: &mut Vec<Follow>) {
        self.mood += 1;
        if self.listed != self.devices {
            self.listed.clone_from(&self.devices);
            follow.push(Follow::Say(format!("device plugin {resource} is well again")));
            follow.extend(self.list(now, resource, Duration::from_millis(1)));
        }
    }

    /// A device falls ill and is well again, many times.
    fn is_restless(&mut self, now: Time, resource: &str, which: usize, rng: &mut Rng, follow: &mut Vec<Follow>) {
        let mut after = Duration::ZERO;
        for change in 1..=CHANGES {
            after += between(rng, RESTLESS.0, RESTLESS.1);
            if let Some(device) = self.listed.get_mut(which) {
                // The last one leaves it well.
                device.healthy = change % 2 == 0;
            }
            follow.extend(self.list(now, resource, after));
        }
    }

    /// It registers once more; that the old registration is over is heard afterwards.
    fn registers_anew(&mut self, now: Time, resource: &str, epoch: u64, follow: &mut Vec<Follow>) {
        let Some((life, old)) = self.connected else { return };
        self.connected = Some((life, epoch));
        let moment = Duration::from_millis(5);
        self.said = self.said.max(now + moment);
        let up = In::PluginUp { resource: resource.to_owned(), epoch, options: self.options };
        follow.push(Follow::Kubelet(life, self.said.since(now), Box::new(up)));
        follow.extend(self.list(now, resource, moment * 20));
        let down = In::PluginDown { resource: resource.to_owned(), epoch: old };
        follow.push(Follow::Kubelet(life, self.said.since(now) + moment, Box::new(down)));
    }
}

impl Plugins {
    /// A plugin of the simulator's own gets into a mood, for so long. Returns what it does, for the trace.
    pub(crate) fn mood(&mut self, now: Time, lasts: Duration, rng: &mut Rng) -> Option<(String, Vec<Follow>)> {
        let Self { plugins, epoch, fell_short, .. } = self;
        let (&resource, plugin) = plugins.iter_mut().find(|(_, plugin)| plugin.is_own())?;
        let mut follow = Vec::new();
        let which = usize::try_from(rng.below(plugin.devices.len() as u64)).unwrap_or(0);
        let id = plugin.devices.get(which).map(|device| device.id.clone()).unwrap_or_default();
        let (kind, all) = (rng.below(6), rng.one_in(3));
        plugin.mood += 1;
        plugin.listed.clone_from(&plugin.devices);
        let ms = lasts.as_millis();
        let what = match kind {
            0 => {
                plugin.listed.iter_mut().filter(|device| all || device.id == id).for_each(|d| d.healthy = false);
                let which = if all { "all of them" } else { id.as_str() };
                format!("calls {which} ill for {ms} ms")
            }
            1 => {
                plugin.listed.retain(|device| device.id != id);
                *fell_short = true;
                format!("has lost {id} for {ms} ms")
            }
            2 => {
                plugin.listed.clear();
                *fell_short = true;
                format!("lists nothing for {ms} ms")
            }
            3 => {
                plugin.listed.extend(plugin.devices.iter().cloned());
                format!("lists each device twice for {ms} ms")
            }
            4 => {
                plugin.is_restless(now, resource, which, rng, &mut follow);
                format!("calls {id} ill or well, {CHANGES} times")
            }
            _ => {
                *epoch += 1;
                plugin.registers_anew(now, resource, *epoch, &mut follow);
                format!("registers once more, epoch {epoch}")
            }
        };
        if kind < 4 {
            follow.extend(plugin.list(now, resource, Duration::from_millis(1)));
        }
        follow.push(Follow::Later(lasts, NodeEvent::PluginMends { resource, mood: plugin.mood }));
        Some((format!("device plugin {resource} {what}"), follow))
    }

    /// A mood is over, unless there was another one since.
    pub(super) fn mends(&mut self, now: Time, resource: &str, mood: u64) -> Vec<Follow> {
        let mut follow = Vec::new();
        if let Some(plugin) = self.plugins.get_mut(resource).filter(|plugin| plugin.mood == mood) {
            plugin.mends(now, resource, &mut follow);
        }
        follow
    }

    /// Nothing fails any more.
    pub(crate) fn heal(&mut self, now: Time) -> Vec<Follow> {
        let mut follow = Vec::new();
        for (resource, plugin) in &mut self.plugins {
            plugin.mends(now, resource, &mut follow);
        }
        follow
    }

    /// Whether a plugin has ever listed fewer devices than it has: who was sent here for one that was gone is refused, as by
    /// upstream's kubelet.
    pub(crate) fn has_fallen_short(&self) -> bool {
        self.fell_short
    }

    /// How much later a plugin answers than it could.
    pub(super) fn dawdles(&mut self, op: &Op, one_in: u64) -> Duration {
        let (Op::Allocate { resource, .. } | Op::Prefer { resource, .. }) = op else { return Duration::ZERO };
        let is_own = self.plugins.get(resource.as_str()).is_some_and(|plugin| plugin.is_own());
        if is_own && self.whims.one_in(one_in) { between(&mut self.whims, LATE.0, LATE.1) } else { Duration::ZERO }
    }

    /// Why a plugin that is asked for devices does not answer as it should, and whether it has granted them all the same: it
    /// refuses, or dies before or after that. Now and then it grants what it has lost or calls ill.
    pub(super) fn refuses(&mut self, resource: &str, ids: &BTreeSet<String>, one_in: u64) -> Option<(bool, OpError)> {
        let Self { plugins, whims, due, .. } = self;
        let (name, plugin) = plugins.iter_mut().find(|(name, plugin)| **name == resource && plugin.is_own())?;
        if let Some(id) = ids.iter().find(|id| !plugin.says_well(id))
            && whims.one_in(2)
        {
            return Some((false, OpError::Failed(format!("{id} of {resource} is not there, or is ill"))));
        }
        if !whims.one_in(one_in) {
            return None;
        }
        let how = whims.below(3);
        if how == 0 {
            return Some((false, OpError::Failed(format!("the device plugin of {resource} is out of sorts"))));
        }
        plugin.hang_up(resource, due);
        plugin.look(name, 0, whims, due);
        Some((how == 1, OpError::Failed(format!("the device plugin of {resource} has hung up"))))
    }

    /// What a plugin prefers of what there is.
    pub(super) fn prefers(
        &mut self,
        resource: &str,
        available: BTreeSet<String>,
        count: usize,
        one_in: u64,
    ) -> Outcome {
        let is_own = self.plugins.get(resource).is_some_and(|plugin| plugin.is_own());
        if !is_own || !self.whims.one_in(one_in) {
            return Ok(Reply::Preferred(available.into_iter().take(count).collect()));
        }
        match self.whims.below(4) {
            0 => Err(OpError::Failed(format!("the device plugin of {resource} has no preference"))),
            // Too few, too many, and what is not to be had.
            1 => Ok(Reply::Preferred(Vec::new())),
            2 => Ok(Reply::Preferred(available.iter().chain(&available).cloned().collect())),
            _ => Ok(Reply::Preferred(vec!["nobody's".to_owned(); count + 1])),
        }
    }

    /// What has followed of calls since the last look.
    pub(super) fn take_due(&mut self) -> Vec<Follow> {
        std::mem::take(&mut self.due)
    }

    /// A kubelet observes something of a plugin.
    pub(crate) fn hears(&mut self, news: &In) {
        match news {
            In::PluginUp { resource, epoch, .. } if self.heard.get(resource).is_none_or(|h| h.epoch <= *epoch) => {
                self.heard.insert(resource.clone(), Heard { epoch: *epoch, devices: BTreeMap::new() });
            }
            In::PluginDevices { resource, epoch, devices } => {
                if let Some(heard) = self.heard.get_mut(resource).filter(|heard| heard.epoch == *epoch) {
                    heard.devices = devices.iter().map(|device| (device.id.clone(), device.healthy)).collect();
                }
            }
            In::PluginDown { resource, epoch } if self.heard.get(resource).is_some_and(|h| h.epoch == *epoch) => {
                self.heard.remove(resource);
            }
            _ => {}
        }
    }

    /// A kubelet asks for devices: those that it has heard to be well. A registration that is over, as far as it has heard,
    /// answers nothing.
    pub(super) fn asked(&self, resource: &str, epoch: u64, ids: &BTreeSet<String>, breaches: &mut Vec<Breach>) {
        let Some(heard) = self.heard.get(resource).filter(|heard| heard.epoch == epoch) else { return };
        if let Some(id) = ids.iter().find(|id| heard.devices.get(*id) != Some(&true)) {
            let said = if heard.devices.contains_key(id) { "is ill" } else { "is not there" };
            let what = format!("the plugin of {resource} is asked for {id}, of which it has said that it {said}");
            breaches.push(Breach::new(WELL, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_kubelet::devices::{Device, PluginOptions};

    use super::super::plugins::WIDGET;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A plugin that a kubelet in its first life knows, and when.
    fn known() -> (Plugins, Time) {
        let (mut plugins, mut rng) = (Plugins::new(Rng::new(1)), Rng::new(1));
        let now = Time::from_unix_s(1);
        let found = plugins.kubelet_started(0, &mut rng);
        let generation = found.iter().find_map(|follow| match follow {
            Follow::Later(_, NodeEvent::PluginStart { resource: WIDGET, generation }) => Some(*generation),
            _ => None,
        });
        let follow = plugins.connect(now, 1, WIDGET, generation.expect("it looks for the kubelet"), false, &mut rng);
        hear(&mut plugins, follow);
        (plugins, now + SECOND)
    }

    /// The kubelet hears this, in the order of time. Returns what else follows.
    fn hear(plugins: &mut Plugins, follow: Vec<Follow>) -> Vec<Follow> {
        let (mut news, mut rest) = (Vec::new(), Vec::new());
        for next in follow {
            match next {
                Follow::Kubelet(1, after, what) => news.push((after, what)),
                next => rest.push(next),
            }
        }
        news.sort_by_key(|(after, _)| *after);
        for (_, what) in news {
            plugins.hears(&what);
        }
        rest
    }

    /// Of which devices the kubelet may ask the present registration.
    fn may_ask_for(plugins: &Plugins) -> Vec<&'static str> {
        let (_, epoch) = plugins.plugins.get(WIDGET).and_then(|plugin| plugin.connected).expect("it is registered");
        let asks = |id: &&str| {
            let mut breaches = Vec::new();
            plugins.asked(WIDGET, epoch, &BTreeSet::from([(*id).to_owned()]), &mut breaches);
            breaches.is_empty()
        };
        ["w0", "w1", "w2"].into_iter().filter(asks).collect()
    }

    #[test]
    fn each_mood_comes_about_and_passes() {
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let (mut plugins, now) = known();
            assert_eq!(may_ask_for(&plugins), ["w0", "w1"]);
            let (_, follow) = plugins.mood(now, SECOND, &mut Rng::new(seed)).expect("it has moods");
            let rest = hear(&mut plugins, follow);
            seen.insert(may_ask_for(&plugins));
            let end = rest.into_iter().find_map(|follow| match follow {
                Follow::Later(after, NodeEvent::PluginMends { resource, mood }) if after == SECOND => {
                    Some((resource, mood))
                }
                _ => None,
            });
            let (resource, mood) = end.expect("it ends");
            // Nothing fails any more before it is over, or not.
            let over = if seed % 2 == 0 { plugins.heal(now + SECOND) } else { Vec::new() };
            hear(&mut plugins, over);
            let over = plugins.mends(now + SECOND, resource, mood);
            hear(&mut plugins, over);
            assert_eq!(may_ask_for(&plugins), ["w0", "w1"], "seed {seed}");
        }
        assert_eq!(seen, BTreeSet::from([vec![], vec!["w0"], vec!["w1"], vec!["w0", "w1"]]));
    }

    #[test]
    fn what_is_heard_is_of_the_present_registration() {
        let device = |healthy| Device { id: "w0".to_owned(), healthy, numa_nodes: Vec::new() };
        let up = |epoch| In::PluginUp { resource: WIDGET.to_owned(), epoch, options: PluginOptions::default() };
        let list =
            |epoch, healthy| In::PluginDevices { resource: WIDGET.to_owned(), epoch, devices: vec![device(healthy)] };
        let down = |epoch| In::PluginDown { resource: WIDGET.to_owned(), epoch };
        let check = |heard: Vec<In>, epoch: u64, holds: bool| {
            let mut plugins = Plugins::new(Rng::new(1));
            heard.iter().for_each(|news| plugins.hears(news));
            let mut breaches = Vec::new();
            plugins.asked(WIDGET, epoch, &BTreeSet::from(["w0".to_owned()]), &mut breaches);
            assert_eq!(breaches.is_empty(), holds, "{heard:?}, {epoch}");
        };
        check(vec![up(1), list(1, true)], 1, true);
        check(vec![up(1), list(1, false)], 1, false);
        check(vec![up(1)], 1, false);
        check(vec![up(1), list(1, true), up(2)], 2, false);
        check(vec![up(1), list(1, false), up(2), list(1, true), down(1)], 2, false);
        check(vec![up(1), list(1, false), up(2), list(2, true), down(1)], 2, true);
        // Who is not there any more answers nothing.
        check(vec![up(1), list(1, false), up(2)], 1, true);
        check(vec![up(1), list(1, false), down(1)], 1, true);
    }

    #[test]
    fn whims_come_about_and_only_where_there_are_any() {
        let ids = BTreeSet::from(["w0".to_owned()]);
        for (one_in, expected) in [(0, 1), (1, 3)] {
            let mut ways = BTreeSet::new();
            for seed in 0..64 {
                let (mut plugins, _) = known();
                plugins.whims = Rng::new(seed);
                let refused = plugins.refuses(WIDGET, &ids, one_in);
                let hung_up = !plugins.take_due().is_empty();
                ways.insert((refused.as_ref().map(|(granted, _)| *granted), hung_up));
                assert!(refused.is_none_or(|(granted, _)| !granted || hung_up), "seed {seed}");
            }
            assert_eq!(ways.len(), expected, "{ways:?}");
        }
    }
}
