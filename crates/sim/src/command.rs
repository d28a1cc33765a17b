//! `carrack sim`: plays seeds and says how it went.
#![expect(clippy::disallowed_methods, reason = "shell: it measures how fast simulated time passes")]

use std::io::Write;
use std::path::PathBuf;
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
    /// Print the invariants, each with the bugs that trip it, and do nothing else.
    pub list_invariants: bool,
    /// Draw the run that fails into this file, as SVG.
    pub svg: Option<PathBuf>,
    /// What each run is like, but for its plant. Kept traces are printed.
    pub options: Options,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            seed: 1,
            runs: 1,
            plant: None,
            list_plants: false,
            list_invariants: false,
            svg: None,
            options: Options::default(),
        }
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
            for plant in PLANTS.iter().filter(|plant| plant.found_by == invariant.name) {
                writeln!(out, "    --plant {}", plant.name)?;
            }
            writeln!(out)?;
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
            if let Some(file) = &request.svg {
                // The same run again, which is quicker than to draw all of those that do not fail.
                let drawn = run(seed, &Options { draw: true, keep_trace: false, ..options.clone() });
                std::fs::write(file, drawn.picture)?;
                writeln!(out, "\npicture: {}", file.display())?;
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
    let hours = simulated.as_secs_f64() / 3600.0;
    let rate = hours / real_s.max(1e-9);
    writeln!(
        out,
        "{} runs, {hours:.2} h simulated in {real_s:.1} s: {rate:.3} simulated hours a second, {steps} events",
        request.runs
    )?;
    Ok(true)
}
