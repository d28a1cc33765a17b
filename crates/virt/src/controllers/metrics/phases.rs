//! How long instances take from phase to phase. (Upstream: `perfscale_metrics.go`.)
//!
//! An instance says when it entered which phase. What it said before anybody looked is not counted. An end that was asked for
//! is told in the write that lets the instance go; so one that was being deleted and is gone has succeeded.

use std::collections::BTreeMap;

use carrack_engine::{Key, Time};
use carrack_types::kubevirt::{VirtualMachineInstance, phase};
use carrack_types::resource::Object;

use super::made_since;
use crate::exposition::{Family, Page};

const BETWEEN: &str = "kubevirt_vmi_phase_transition_time_seconds";
const FROM_CREATION: &str = "kubevirt_vmi_phase_transition_time_from_creation_seconds";
const FROM_DELETION: &str = "kubevirt_vmi_phase_transition_time_from_deletion_seconds";

pub(super) const FAMILIES: [Family; 3] = [
    Family {
        name: BETWEEN,
        kind: "histogram",
        help: "Histogram of VM phase transitions duration between different phases in seconds.",
    },
    Family {
        name: FROM_CREATION,
        kind: "histogram",
        help: "Histogram of VM phase transitions duration from creation time in seconds.",
    },
    Family {
        name: FROM_DELETION,
        kind: "histogram",
        help: "Histogram of VM phase transitions duration from deletion time in seconds.",
    },
];

/// Upper bounds of the buckets, seconds: upstream's.
const BOUNDS_S: [f64; 18] =
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0];

/// What was counted.
#[derive(Default)]
pub(super) struct Phases {
    instances: BTreeMap<Key, Known>,
    /// By family, phase and the phase before (only between phases).
    counted: BTreeMap<(&'static str, String, String), Histogram>,
}

/// An instance that was seen.
struct Known {
    uid: String,
    /// How many of its transitions are counted.
    counted: usize,
    phase: String,
    /// When it entered that.
    entered: Time,
    created: Time,
    deleted: Option<Time>,
}

#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: [u32; BOUNDS_S.len()],
    count: u32,
    sum_s: f64,
}

impl Phases {
    /// Looks at an instance as it is now, if it is there.
    pub fn see(&mut self, key: &Key, instance: Option<&VirtualMachineInstance>, since: Time, now: Time) {
        let gone = self.instances.get(key).is_some_and(|known| instance.is_none_or(|vmi| vmi.uid() != known.uid));
        if gone && let Some(mut known) = self.instances.remove(key) {
            let is_over = matches!(known.phase.as_str(), phase::SUCCEEDED | phase::FAILED);
            if known.deleted.is_some() && !is_over {
                self.enters(&mut known, phase::SUCCEEDED, now);
            }
        }
        let Some(vmi) = instance else { return };
        let created = vmi.metadata.creation_timestamp.as_ref().map_or(now, Time::from);
        let transitions = vmi.status.as_ref().map_or(&[][..], |status| &status.phase_transition_timestamps);
        let mut known = self.instances.remove(key).unwrap_or_else(|| Known {
            uid: vmi.uid().to_owned(),
            // What was before anybody looked is not known to the second.
            counted: if made_since(vmi, since) { 0 } else { transitions.len() },
            phase: if made_since(vmi, since) { String::new() } else { vmi.phase().to_owned() },
            entered: created,
            created,
            deleted: None,
        });
        known.deleted = vmi.metadata.deletion_timestamp.as_ref().map(Time::from);
        for transition in transitions.iter().skip(known.counted) {
            let at = transition.phase_transition_timestamp.as_ref().map_or(now, Time::from);
            self.enters(&mut known, &transition.phase, at);
        }
        known.counted = known.counted.max(transitions.len());
        self.instances.insert(key.clone(), known);
    }

    /// An instance enters a phase.
    fn enters(&mut self, known: &mut Known, phase: &str, at: Time) {
        let mut observe = |family: &'static str, before: &str, since: Time| {
            let counted = self.counted.entry((family, phase.to_owned(), before.to_owned())).or_default();
            counted.observe(at.since(since).as_secs_f64());
        };
        observe(BETWEEN, &known.phase, known.entered);
        observe(FROM_CREATION, "", known.created);
        if let Some(deleted) = known.deleted.filter(|_| matches!(phase, phase::SUCCEEDED | phase::FAILED)) {
            observe(FROM_DELETION, "", deleted);
        }
        phase.clone_into(&mut known.phase);
        known.entered = at;
    }

    /// Tells all that was counted.
    pub fn tell(&self, page: &mut Page) {
        for ((family, phase, before), histogram) in &self.counted {
            let mut labels = vec![("phase", phase.as_str())];
            if *family == BETWEEN {
                labels.push(("last_phase", before));
            }
            histogram.tell(family, &labels, page);
        }
    }
}

impl Histogram {
    fn observe(&mut self, value_s: f64) {
        self.count += 1;
        self.sum_s += value_s;
        for (bucket, _) in self.buckets.iter_mut().zip(BOUNDS_S).filter(|(_, bound)| value_s <= *bound) {
            *bucket += 1;
        }
    }

    fn tell(&self, family: &'static str, labels: &[(&str, &str)], page: &mut Page) {
        let name = format!("{family}_bucket");
        let mut bucket = |bound: &str, count: u32| {
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound)]).collect();
            page.line(family, &name, &labels, f64::from(count));
        };
        for (bound, count) in BOUNDS_S.iter().zip(self.buckets) {
            bucket(&bound.to_string(), count);
        }
        bucket("+Inf", self.count);
        page.line(family, &format!("{family}_sum"), labels, self.sum_s);
        page.line(family, &format!("{family}_count"), labels, f64::from(self.count));
    }
}
