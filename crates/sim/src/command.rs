//! `carrack sim`: plays seeds and says how it went.
#![expect(clippy::disallowed_methods, reason = "shell: it measures how fast simulated time passes")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::invariants::INVARIANTS;
use crate::options::Options;
use crate::plants::{self, PLANTS};
use crate::shrink::{MOST_REPLAYS, Shrunk, shrink};
use crate::small;
use crate::world::{Outcome, run};

/// How often it is told how far many small runs have come, and how far the search for a smaller one.
const PROGRESS: Duration = Duration::from_secs(5);
/// For how long it is tried to make a failing run smaller.
const SHRINKS: Duration = Duration::from_secs(60);

/// What `carrack sim` was asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The first seed.
    pub seed: u64,
    /// How many seeds, one after the other.
    pub runs: u64,
    /// No run begins after so long, whatever is left of them.
    pub end_after: Option<Duration>,
    /// A bug to plant, by name.
    pub plant: Option<String>,
    /// Print the planted bugs there are, and do nothing else.
    pub list_plants: bool,
    /// Print the invariants, each with the bugs that trip it, and do nothing else.
    pub list_invariants: bool,
    /// Draw the run that fails into this file, as SVG.
    pub svg: Option<PathBuf>,
    /// Make the run that fails smaller, unless its trace is kept.
    pub shrink: bool,
    /// What each run is like, but for its plant. Kept traces are printed.
    pub options: Options,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            seed: 1,
            runs: 1,
            end_after: None,
            plant: None,
            list_plants: false,
            list_invariants: false,
            svg: None,
            shrink: true,
            options: Options::default(),
        }
    }
}

impl Request {
    /// Whether the time is over, from when it began.
    fn is_over(&self, begun: Instant) -> bool {
        self.end_after.is_some_and(|time| begun.elapsed() >= time)
    }
}

/// Does what `carrack sim` was asked for. True when all runs kept all invariants.
///
/// # Errors
/// An unknown plant, a picture that cannot be written, or what it writes to.
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
    request.svg.as_deref().map_or(Ok(()), try_picture)?;
    let options = Options { plant, ..request.options.clone() };
    let begun = Instant::now();
    if options.small && request.runs > 1 && !options.keep_trace {
        return simulate_small(request, &options, begun, out);
    }
    let mut sum = Sum::default();
    for seed in (0..request.runs).map(|n| request.seed.wrapping_add(n)) {
        if request.is_over(begun) {
            break;
        }
        let outcome = run(seed, &options);
        sum.runs += 1;
        sum.simulated += outcome.simulated;
        sum.steps += outcome.steps;
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
    sum.say(begun, out)?;
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
        if request.is_over(begun) {
            return false;
        }
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
    let shrunk = if request.shrink && !options.keep_trace { smaller(options, outcome) } else { None };
    let (options, outcome) = shrunk.as_ref().map_or((options, outcome), |shrunk| (&shrunk.options, &shrunk.outcome));
    let found = &failure.replay;
    let failure = outcome.failure.as_ref().unwrap_or(failure);
    if !options.keep_trace {
        out.write_all(failure.timeline.as_bytes())?;
    }
    if let Some(shrunk) = &shrunk {
        let more = if shrunk.complete { "" } else { "; more may be left out" };
        writeln!(out, "\nshrunk in {} replays{more}, from: {found}", shrunk.replays)?;
        writeln!(out, "{}", shrunk.left())?;
    }
    writeln!(out, "\nseed {}: {} is broken: {}", outcome.seed, failure.invariant, failure.message)?;
    writeln!(out, "replay: {}", failure.replay)?;
    // The verdict stands, whatever becomes of its picture.
    if let Some(file) = &request.svg {
        // The same run again, which is quicker than to draw all of those that do not fail.
        let drawn = run(outcome.seed, &Options { draw: true, keep_trace: false, ..options.clone() });
        std::fs::write(file, drawn.picture).map_err(|error| unwritable(file, &error))?;
        writeln!(out, "picture: {}", file.display())?;
    }
    Ok(true)
}

fn unwritable(file: &Path, error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("cannot write {}: {error}", file.display()))
}

/// Whether a picture can be drawn into a file, which is better known before a long run than after it. Nothing is left there.
fn try_picture(file: &Path) -> std::io::Result<()> {
    let is_new = !file.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    let removed = opened.and_then(|_| if is_new { std::fs::remove_file(file) } else { Ok(()) });
    removed.map_err(|error| unwritable(file, &error))
}

/// A failing run with less of all that fails and is done. How far the search is, is said on standard error.
fn smaller(options: &Options, outcome: &Outcome) -> Option<Shrunk> {
    let (begun, mut told) = (Instant::now(), None);
    shrink(outcome, options, &mut |replays| {
        if told.is_none_or(|told: Instant| told.elapsed() >= PROGRESS) {
            told = Some(Instant::now());
            let invariant = outcome.failure.as_ref().map_or("nothing", |failure| failure.invariant);
            let bounds = format!("at most {MOST_REPLAYS} within {} s, none with --no-shrink", SHRINKS.as_secs());
            let said =
                format!("seed {}, {invariant} is broken: {replays} replays to shrink it ({bounds})", outcome.seed);
            // Who does not hear of it misses nothing.
            writeln!(std::io::stderr(), "{said}").unwrap_or_default();
        }
        begun.elapsed() < SHRINKS
    })
}
