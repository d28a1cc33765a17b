//! What happened, a line for each event.
//!
//! All lines go into one running hash. The last lines that matter to a reader are kept for the
//! timeline of a failure; all of them are kept only when asked for.

use std::collections::VecDeque;
use std::fmt::Write as _;

use carrack_engine::Time;

/// How many lines a timeline shows.
const TIMELINE: usize = 120;

/// How much a line matters to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    /// Requests that only read, leases, timers.
    Noise,
    /// What changes something.
    Act,
    /// Faults, and what people did.
    Mark,
}

/// The lines of one run.
#[derive(Clone, Debug)]
pub struct Trace {
    start: Time,
    hash: u64,
    count: u64,
    all: Option<String>,
    recent: VecDeque<(Weight, String)>,
    buffer: String,
}

impl Trace {
    pub(crate) fn new(start: Time, keep: bool) -> Self {
        Self {
            start,
            hash: 0xcbf2_9ce4_8422_2325,
            count: 0,
            all: keep.then(String::new),
            recent: VecDeque::new(),
            buffer: String::new(),
        }
    }

    pub(crate) fn line(&mut self, now: Time, weight: Weight, text: std::fmt::Arguments<'_>) {
        self.buffer.clear();
        let since_us = now.since(self.start).as_micros();
        // Writing to a String cannot fail.
        writeln!(self.buffer, "{:>6}.{:06} {text}", since_us / 1_000_000, since_us % 1_000_000).unwrap_or_default();
        for byte in self.buffer.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.count += 1;
        if let Some(all) = &mut self.all {
            all.push_str(&self.buffer);
        }
        if weight > Weight::Noise {
            if self.recent.len() == TIMELINE {
                // Marks stay longer than acts.
                let oldest = self.recent.iter().position(|(w, _)| *w < Weight::Mark).unwrap_or(0);
                self.recent.remove(oldest);
            }
            self.recent.push_back((weight, self.buffer.clone()));
        }
    }

    /// A hash over all lines.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }
    /// How many lines there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.count
    }
    /// Whether nothing has happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// All lines, when they were to be kept.
    #[must_use]
    pub fn text(&self) -> &str {
        self.all.as_deref().unwrap_or_default()
    }
    /// The last lines that matter to a reader.
    #[must_use]
    pub fn timeline(&self) -> String {
        self.recent.iter().map(|(_, line)| line.as_str()).collect()
    }
}
