//! Device plugins that are to be told before a container starts with their devices (`PreStartContainer`), in some runs.
//!
//! ```text
//!   devices granted ─▶ told ─ well ─▶ the container is made ─▶ it starts
//!                        └ fails ─▶ nothing is made; later all of it again
//! ```
//!
//! A kubelet may tell more often than containers start, since answers are lost and it dies; never less.

use std::collections::BTreeSet;

use carrack_engine::Rng;
use carrack_kubelet::runtime::PodRef;
use carrack_kubelet::{OpError, Outcome, Reply};

use super::plugins::{Plugins, WIDGET};
use crate::invariants::Breach;

/// The invariant.
pub(crate) const TOLD: &str = "plugins-are-told-of-starts";

/// One in so many calls fails, where anything does.
const FAILS_ONE_IN: u64 = 3;

impl Plugins {
    /// The same, with plugins of the simulator's own that are to be told, if there is a chance for their answers.
    pub(super) fn telling(mut self, starts: Option<Rng>) -> Self {
        self.starts = starts;
        self
    }

    /// Draws other chances from here on.
    pub(super) fn reseed_starts(&mut self, rng: &Rng) {
        self.starts = self.starts.as_ref().map(|_| starts_of(rng));
    }

    /// A kubelet tells a plugin that a container with these devices is about to start.
    pub(super) fn pre_start(
        &mut self,
        life: u32,
        resource: &str,
        epoch: u64,
        ids: &BTreeSet<String>,
        may_fail: bool,
    ) -> Outcome {
        if self.plugins.get(resource).and_then(|plugin| plugin.connected) != Some((life, epoch)) {
            return Err(OpError::Failed(format!("the device plugin of {resource} is not there")));
        }
        if may_fail && self.starts.as_mut().is_some_and(|chance| chance.one_in(FAILS_ONE_IN)) {
            return Err(OpError::Failed(format!("the device plugin of {resource} cannot make {ids:?} ready")));
        }
        for id in ids {
            *self.told.entry(format!("{resource}/{id}")).or_default() += 1;
        }
        Ok(Reply::Done)
    }

    /// A container starts with these devices: one start more of those that their plugin was told of.
    pub(super) fn starts(&mut self, pod: &PodRef, container: &str, devices: &[String], breaches: &mut Vec<Breach>) {
        if self.starts.is_none() {
            return;
        }
        let own = format!("{WIDGET}/");
        for device in devices.iter().filter(|device| device.starts_with(&own)) {
            match self.told.get_mut(device).filter(|left| **left > 0) {
                Some(left) => *left -= 1,
                None => {
                    let what = format!(
                        "{container} of {pod} starts with {device}, and its plugin has not answered well to that"
                    );
                    breaches.push(Breach::new(TOLD, what));
                }
            }
        }
    }
}

/// The chance of answers, from a stream of its own.
pub(super) fn starts_of(rng: &Rng) -> Rng {
    rng.fork("starts with devices")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_is_told_of_and_answered_well() {
        let pod = PodRef { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let devices = [format!("{WIDGET}/w0"), "other/d0".to_owned()];
        let ids = BTreeSet::from(["w0".to_owned()]);
        for (is_to_be_told, calls, starts, expected) in
            [(true, 1, 1, 0), (true, 0, 1, 1), (true, 1, 2, 1), (true, 2, 1, 0), (false, 0, 2, 0)]
        {
            let mut plugins = Plugins::new(Rng::new(1)).telling(is_to_be_told.then(|| Rng::new(2)));
            if let Some(plugin) = plugins.plugins.get_mut(WIDGET) {
                plugin.connected = Some((1, 7));
            }
            let mut breaches = Vec::new();
            for _ in 0..calls {
                assert!(plugins.pre_start(1, WIDGET, 7, &ids, false).is_ok());
            }
            for _ in 0..starts {
                plugins.starts(&pod, "c", &devices, &mut breaches);
            }
            assert_eq!(breaches.len(), expected, "{is_to_be_told} {calls} {starts}: {breaches:?}");
        }
    }

    #[test]
    fn an_answer_that_is_none_counts_for_nothing() {
        let ids = BTreeSet::from(["w0".to_owned()]);
        let mut plugins = Plugins::new(Rng::new(1)).telling(Some(Rng::new(2)));
        assert!(plugins.pre_start(1, WIDGET, 7, &ids, false).is_err(), "it is not registered");
        if let Some(plugin) = plugins.plugins.get_mut(WIDGET) {
            plugin.connected = Some((1, 7));
        }
        assert!(plugins.pre_start(1, WIDGET, 6, &ids, false).is_err(), "that registration is over");
        let well = (0..300).filter(|_| plugins.pre_start(1, WIDGET, 7, &ids, true).is_ok()).count();
        assert!((150..250).contains(&well), "{well}");
        assert_eq!(plugins.told.values().copied().collect::<Vec<_>>(), [u32::try_from(well).unwrap()]);
    }
}
