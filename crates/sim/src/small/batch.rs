//! Many small runs: those that begin with the same cluster one after the other, a few of each cluster first.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Base, fork};
use crate::options::Options;
use crate::world::{Born, Outcome, run};

/// How many runs begin with a cluster before it is the next one's turn; then so many times as many, and so on. What shows in a
/// slice of the system shows soon even so, and few clusters begin several times.
const FIRST: usize = 8;
const MORE: usize = 6;

/// How a run ended, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    /// The seed.
    pub seed: u64,
    /// A hash over all lines of the trace.
    pub trace_hash: u64,
    /// How long the run took, in simulated time.
    pub simulated: Duration,
    /// How many events happened.
    pub steps: u64,
    /// Whether all invariants held.
    pub held: bool,
}

impl Brief {
    fn of(outcome: &Outcome) -> Self {
        let Outcome { seed, trace_hash, simulated, steps, .. } = *outcome;
        Self { seed, trace_hash, simulated, steps, held: outcome.failure.is_none() }
    }

    fn bytes(&self) -> Vec<u8> {
        let ns = u64::try_from(self.simulated.as_nanos()).unwrap_or(u64::MAX);
        [self.trace_hash, ns, self.steps, self.held.into()].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn read(seed: u64, bytes: &[u8]) -> Option<Self> {
        let number = |word: &[u8]| word.try_into().ok().map(u64::from_le_bytes);
        let mut numbers = bytes.chunks(8).map(number);
        let mut next = || numbers.next().flatten();
        let (trace_hash, ns, steps, held) = (next()?, next()?, next()?, next()?);
        Some(Self { seed, trace_hash, simulated: Duration::from_nanos(ns), steps, held: held == 1 })
    }
}

/// Plays small runs. Each is told to somebody who looks on, the whole of it where an invariant broke; until that says no.
///
/// # Errors
/// There is no room for another process, or a run differs when it is played again.
pub fn play(
    seeds: impl IntoIterator<Item = u64>,
    options: &Options,
    look: &mut dyn FnMut(&Brief, Option<&Outcome>) -> bool,
) -> std::io::Result<()> {
    let mut left: BTreeMap<Base, Vec<u64>> = BTreeMap::new();
    for seed in seeds {
        left.entry(Base::of(seed)).or_default().push(seed);
    }
    let mut most = FIRST;
    while !left.is_empty() {
        for (base, seeds) in &mut left {
            let later = seeds.split_off(seeds.len().min(most));
            if !of_base(*base, seeds, options, look)? {
                return Ok(());
            }
            *seeds = later;
        }
        left.retain(|_, seeds| !seeds.is_empty());
        most = most.saturating_mul(MORE);
    }
    Ok(())
}

/// Plays runs that begin with the same cluster; false when nobody looks on any more.
fn of_base(
    base: Base,
    seeds: &[u64],
    options: &Options,
    look: &mut dyn FnMut(&Brief, Option<&Outcome>) -> bool,
) -> std::io::Result<bool> {
    // One that is compared is played twice, each time from the beginning.
    let mut born = if options.is_compared() { None } else { Born::new(base, options).ok() };
    for seed in seeds {
        let brief = match &mut born {
            Some(born) => {
                let said = fork::in_copy(|| Brief::of(&born.play(*seed, options)).bytes())?;
                said.as_deref().and_then(|said| Brief::read(*seed, said))
            }
            // If it did not come to rest, each run of it says why.
            None => None,
        };
        if let Some(brief) = brief.filter(|brief| brief.held) {
            if !look(&brief, None) {
                return Ok(false);
            }
            continue;
        }
        // Once more, here, where it can be told in words.
        let outcome = run(*seed, options);
        let again = Brief::of(&outcome);
        if born.is_some() && brief != Some(again) {
            return Err(std::io::Error::other(format!("seed {seed} is another run when it is played again")));
        }
        if !look(&again, Some(&outcome).filter(|_| !again.held)) {
            return Ok(false);
        }
    }
    Ok(true)
}
