//! A run as a picture: who ran when, what became of the objects, and what went wrong.
//!
//! A run has more in it than anybody looks at. So all is kept while it is played, and drawn is what a reader of a failure
//! wants: every process, the objects that the failure names, those that changed last before it, and the last faults.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::Time;
use carrack_plot::{Timeline, Tone};

use crate::observer::{Change, deleting, key_of, text};

/// So many lanes of objects are drawn, and so many steps.
const LANES: usize = 40;
const STEPS: usize = 60;
/// Objects that have lanes, with the field that tells their state.
const DRAWN: [(&str, &str); 9] = [
    ("pod", "/status/phase"),
    ("vm", "/status/printableStatus"),
    ("vmi", "/status/phase"),
    ("clone", "/status/phase"),
    ("vmsnapshot", "/status/phase"),
    ("vmrestore", "/metadata/name"),
    ("job", "/metadata/name"),
    ("claim", "/status/phase"),
    ("attachment", "/spec/nodeName"),
];

#[derive(Debug)]
enum What {
    State(String, Tone),
    Gone,
}

/// What is kept of a run that is to be drawn.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    on: bool,
    begun: Time,
    /// In the order of time, by lane; the names of processes' lanes come first.
    events: Vec<(Time, String, What)>,
    processes: BTreeSet<String>,
    steps: Vec<(Time, String)>,
}

impl Picture {
    pub(crate) fn new(on: bool, begun: Time) -> Self {
        Self { on, begun, ..Self::default() }
    }

    /// Something happened to nobody in particular.
    pub(crate) fn step(&mut self, now: Time, text: std::fmt::Arguments<'_>) {
        if self.on {
            self.steps.push((now, text.to_string()));
        }
    }

    /// A process, or a machine, is like this from now on.
    pub(crate) fn process(&mut self, now: Time, lane: String, text: &str, tone: Tone) {
        if self.on {
            self.processes.insert(lane.clone());
            self.events.push((now, lane, What::State(text.to_owned(), tone)));
        }
    }

    /// An object changed.
    pub(crate) fn change(&mut self, now: Time, change: &Change) {
        let Some((resource, field)) = DRAWN.iter().find(|(resource, _)| self.on && *resource == change.resource) else {
            return;
        };
        let lane = format!("{resource} {}", key_of(change.object()));
        let what = match &change.after {
            None => What::Gone,
            Some(object) => {
                let (said, node) = (text(object, field), text(object, "/spec/nodeName"));
                let said = if said.is_empty() { "new" } else { said };
                let at = if node.is_empty() || said == node { String::new() } else { format!(" on {node}") };
                match tone(object, said) {
                    Tone::Down => What::State(format!("is to go ({said}{at})"), Tone::Down),
                    tone => What::State(format!("{said}{at}"), tone),
                }
            }
        };
        self.events.push((now, lane, what));
    }

    /// The picture, as SVG. `broken`: the invariant that broke at the end, and how.
    pub(crate) fn svg(&self, title: &str, now: Time, broken: Option<(&str, &str)>) -> String {
        if !self.on {
            return String::new();
        }
        let lanes = self.lanes(broken.map_or("", |(_, message)| message));
        let mut timeline = Timeline::new(title);
        // Those of processes come first, in their order.
        for lane in lanes.iter().filter(|lane| self.processes.contains(**lane)) {
            timeline.gone(lane, std::time::Duration::ZERO);
        }
        for (at, lane, what) in self.events.iter().filter(|(_, lane, _)| lanes.contains(lane.as_str())) {
            let at = at.since(self.begun);
            match what {
                What::State(text, tone) => _ = timeline.state(lane, at, text, *tone),
                What::Gone => _ = timeline.gone(lane, at),
            }
        }
        for (at, text) in self.steps.iter().skip(self.steps.len().saturating_sub(STEPS)) {
            timeline.step(at.since(self.begun), text, Tone::Plain);
        }
        if let Some((invariant, message)) = broken {
            timeline.step(now.since(self.begun), &format!("{invariant} is broken: {message}"), Tone::Bad);
        }
        timeline.svg()
    }

    /// Which lanes are drawn: all processes; of objects those that a message names, then those that changed last.
    fn lanes(&self, message: &str) -> BTreeSet<&str> {
        let mut last: BTreeMap<&str, Time> = BTreeMap::new();
        for (at, lane, _) in &self.events {
            last.insert(lane, *at);
        }
        let named = |lane: &str| lane.split_once(' ').is_some_and(|(_, name)| message.contains(name));
        let mut objects: Vec<(bool, Time, &str)> = last
            .into_iter()
            .filter(|(lane, _)| !self.processes.contains(*lane))
            .map(|(lane, at)| (named(lane), at, lane))
            .collect();
        objects.sort_by(|a, b| b.cmp(a));
        let drawn = objects.into_iter().take(LANES).map(|(_, _, lane)| lane);
        drawn.chain(self.processes.iter().map(String::as_str)).collect()
    }
}

fn tone(object: &serde_json::Value, said: &str) -> Tone {
    match said {
        _ if deleting(object) => Tone::Down,
        "Failed" => Tone::Bad,
        "Running" | "Succeeded" | "Bound" => Tone::Good,
        "Pending" | "Scheduling" | "Scheduled" | "new" => Tone::Busy,
        _ => Tone::Plain,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, phase: &str) -> Value {
        json!({"metadata": {"namespace": "d", "name": name}, "spec": {"nodeName": "node1"}, "status": {"phase": phase}})
    }

    fn change(before: Option<Value>, after: Option<Value>) -> Change {
        Change { resource: "pod", before, after }
    }

    #[test]
    fn a_picture_has_processes_what_the_failure_names_and_what_changed_last() {
        let begun = Time::from_unix_s(100);
        let mut picture = Picture::new(true, begun);
        picture.process(begun, "scheduler".into(), "life 1", Tone::Good);
        picture.change(Time::from_unix_s(101), &change(None, Some(pod("named", "Pending"))));
        for n in 0..2 * LANES {
            let at = Time::from_unix_s(102 + i64::try_from(n).expect("small"));
            picture.change(at, &change(None, Some(pod(&format!("pod{n:03}"), "Running"))));
        }
        picture.step(Time::from_unix_s(110), format_args!("<somebody> does something"));
        let svg = picture.svg("a run", Time::from_unix_s(200), Some(("liveness", "d/named is Pending")));
        for (wanted, there) in [
            ("scheduler", true),
            ("pod d/named", true),
            ("pod d/pod079", true),
            ("pod d/pod001<", false),
            ("liveness is broken", true),
            ("&lt;somebody&gt; does something", true),
        ] {
            assert_eq!(svg.contains(wanted), there, "{wanted}");
        }
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(Picture::new(false, begun).svg("", begun, None), "");
    }
}
