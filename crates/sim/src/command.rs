//! `carrack sim`: plays seeds and says how it went.
#![expect(clippy::disallowed_methods, reason = "shell: it measures how fast simulated time passes")]

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::invariants::INVARIANTS;
use crate::options::Options;
use crate::plants::{self, PLANTS};
use crate::small;
use crate::world::{Outcome, run};

/// How often it is told how far many small runs have come.
const PROGRESS: Duration = Duration::from_secs(5);

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
    if options.small && request.runs > 1 && !options.keep_trace {
        return simulate_small(request, &options, begun, out);
    }
    let (mut simulated, mut steps) = (Duration::ZERO, 0);
    for seed in (0..request.runs).map(|n| request.seed.wrapping_add(n)) {
        let outcome = run(seed, &options);
        simulated += outcome.simulated;
        steps += outcome.steps;
        if options.keep_trace {
            out.write_all(outcome.trace.text().as_bytes())?;
        }
        if broke(request, &options, &outcome, out)? {
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
    Sum { runs: request.runs, simulated, steps }.say(begun, out)?;
    Ok(true)
}

/// Plays many small runs.
fn simulate_small(request: &Request, options: &Options, begun: Instant, out: &mut dyn Write) -> std::io::Result<bool> {
    let seeds = (0..request.runs).map(|n| request.seed.wrapping_add(n));
    let (mut sum, mut told, mut broken) = (Sum::default(), begun, None);
    out.flush()?;
    small::play(seeds, options, &mut |brief, outcome| {
        if let Some(outcome) = outcome {
            broken = Some(outcome.clone());
            return false;
        }
        sum.runs += 1;
        sum.simulated += brief.simulated;
        sum.steps += brief.steps;
        if told.elapsed() < PROGRESS {
            return true;
        }
        told = Instant::now();
        write!(out, "of {}: ", request.runs).and_then(|()| sum.say(begun, out)).and_then(|()| out.flush()).is_ok()
    })?;
    if let Some(outcome) = &broken {
        broke(request, options, outcome, out)?;
        writeln!(out, "{} runs before it held, in {:.1} s", sum.runs, begun.elapsed().as_secs_f64())?;
        return Ok(false);
    }
    sum.say(begun, out)?;
    Ok(true)
}

/// What was played.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    runs: u64,
    simulated: Duration,
    steps: u64,
}

impl Sum {
    fn say(self, begun: Instant, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { runs, simulated, steps } = self;
        let real_s = begun.elapsed().as_secs_f64().max(1e-9);
        let hours = simulated.as_secs_f64() / 3600.0;
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let (rate, by_run) = (hours / real_s, runs as f64 / real_s);
        writeln!(
            out,
            "{runs} runs, {hours:.2} h simulated in {real_s:.1} s: {rate:.3} simulated hours and {by_run:.1} runs a second, {steps} events"
        )
    }
}

/// Tells how a run failed, if it did.
fn broke(request: &Request, options: &Options, outcome: &Outcome, out: &mut dyn Write) -> std::io::Result<bool> {
    let Some(failure) = &outcome.failure else { return Ok(false) };
    if !options.keep_trace {
        out.write_all(failure.timeline.as_bytes())?;
    }
    if let Some(file) = &request.svg {
        // The same run again, which is quicker than to draw all of those that do not fail.
        let drawn = run(outcome.seed, &Options { draw: true, keep_trace: false, ..options.clone() });
        std::fs::write(file, drawn.picture)?;
        writeln!(out, "\npicture: {}", file.display())?;
    }
    writeln!(out, "\nseed {}: {} is broken: {}", outcome.seed, failure.invariant, failure.message)?;
    writeln!(out, "replay: {}", failure.replay)?;
    Ok(true)
}
