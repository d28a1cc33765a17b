//! The disks of machines, which all nodes can open: who may write them, by the launcher's own rules, and who has.
//!
//! Each machine counts as having one. Its record is there at once for everybody, as on a file system that all nodes have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use carrack_launcher::writer::{Found, Refusal, Writer, judge};

use crate::invariants::Breach;

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "disks-have-one-writer";

#[derive(Debug, Default)]
struct Known {
    /// The first run of each that was to be started.
    first: BTreeMap<String, String>,
    records: BTreeMap<String, Writer>,
    /// The newest run that has opened each.
    opened: BTreeMap<String, Writer>,
    breaches: Vec<String>,
}

/// What lies on the disks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writers(Arc<Mutex<Known>>);

impl Writers {
    /// A launcher is about to start its machine. `heeds`: it asks whether it may.
    pub(crate) fn open(&self, mine: &Writer, heeds: bool) -> Result<(), Refusal> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.records.get(&mine.machine).cloned().map_or(Found::Nothing, Found::Record);
        match judge(&found, mine, false) {
            Err(refusal) if heeds => return Err(refusal),
            _ => known.records.insert(mine.machine.clone(), mine.clone()),
        };
        match known.opened.get(&mine.machine) {
            Some(newer) if newer.epoch > mine.epoch => {
                let (machine, on, before) = (&mine.machine, &mine.node, &newer.node);
                let what = format!("{machine} opens its disk on {on}, and a newer run of it has had it on {before}");
                known.breaches.push(what);
            }
            _ => {
                known.opened.insert(mine.machine.clone(), mine.clone());
            }
        }
        Ok(())
    }

    /// Whether no other run of a machine was ever to be started.
    pub(crate) fn is_new(&self, mine: &Writer) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known.first.entry(mine.machine.clone()).or_insert_with(|| mine.uid.clone()) == mine.uid
    }

    /// What went wrong since the last look.
    pub(crate) fn breaches(&self) -> Vec<Breach> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.breaches.drain(..).map(|what| Breach::new(NAME, what)).collect()
    }
}
