//! `carrack sim`: plays seeds and says how it went.
#![expect(clippy::disallowed_methods, reason = "shell: it measures how fast simulated time passes")]

use std::io::Write;
use std::time::{Duration, Instant};

use crate::invariants::INVARIANTS;
use crate::options::Options;
use crate::plants::{self, PLANTS};
use crate::world::run;

/// What `carrack sim` was asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The first seed.
    pub seed: u64,
    /// How many seeds, one after the other.
    pub runs: u64,
    /// A bug to plant, by name.
    pub plant: Option<String>,
    /// Print the planted bugs there are, and do nothing else.
    pub list_plants: bool,
    /// Print the invariants, and do nothing else.
    pub list_invariants: bool,
    /// What each run is like, but for its plant. Kept traces are printed.
    pub options: Options,
}

impl Default for Request {
    fn default() -> Self {
        Self { seed: 1, runs: 1, plant: None, list_plants: false, list_invariants: false, options: Options::default() }
    }
}

/// Does what `carrack sim` was asked for. True when all runs kept all invariants.
///
/// # Errors
/// An unknown plant, or what it writes to.
pub fn simulate(request: &Request, out: &mut dyn Write) -> std::io::Result<bool> {
    if request.list_plants {
        for plant in PLANTS {
            writeln!(out, "{}\n    {}; found by {}", plant.name, plant.what, plant.found_by)?;
        }
        return Ok(true);
    }
    if request.list_invariants {
        for invariant in INVARIANTS {
            writeln!(out, "{}\n    {}", invariant.name, invariant.sentence)?;
        }
        return Ok(true);
    }
    let plant = match &request.plant {
        None => None,
        Some(name) => Some(plants::find(name).ok_or_else(|| {
            let known: Vec<&str> = PLANTS.iter().map(|p| p.name).collect();
            std::io::Error::other(format!("there is no planted bug {name:?}; there are: {}", known.join(", ")))
        })?),
    };
    let options = Options { plant, ..request.options.clone() };
    let begun = Instant::now();
    let (mut simulated, mut steps) = (Duration::ZERO, 0);
    for seed in (0..request.runs).map(|n| request.seed.wrapping_add(n)) {
        let outcome = run(seed, &options);
        simulated += outcome.simulated;
        steps += outcome.steps;
        if options.keep_trace {
            out.write_all(outcome.trace.text().as_bytes())?;
        }
        if let Some(failure) = &outcome.failure {
            if !options.keep_trace {
                out.write_all(failure.timeline.as_bytes())?;
            }
            writeln!(out, "\nseed {seed}: {} is broken: {}", failure.invariant, failure.message)?;
            writeln!(out, "replay: {}", failure.replay)?;
            return Ok(false);
        }
        writeln!(
            out,
            "seed {seed}: {} s simulated, {} events, trace {:016x}",
            outcome.simulated.as_secs(),
            outcome.steps,
            outcome.trace_hash
        )?;
    }
    let real_s = begun.elapsed().as_secs_f64();
    let rate = simulated.as_secs_f64() / real_s.max(1e-9);
    writeln!(
        out,
        "{} runs, {} s simulated in {real_s:.1} s: {rate:.0} simulated seconds a second, {steps} events",
        request.runs,
        simulated.as_secs()
    )?;
    Ok(true)
}
