//! `carrack sim`: simulated clusters under seeds.

use std::io::Write as _;

use carrack_sim::{Request, simulate};

use crate::cli::sim::SimArgs;

/// Plays the runs that were asked for.
///
/// # Errors
/// When an invariant broke, or a name is unknown.
pub fn run(args: SimArgs) -> anyhow::Result<()> {
    let request = Request {
        seed: args.seed,
        runs: args.runs,
        plant: args.plant,
        list_plants: args.list_plants,
        list_invariants: args.list_invariants,
        trace: args.trace,
        faults: !args.no_faults,
        workloads: args.workloads,
        gpus: args.gpus,
        clones: args.clones,
    };
    let mut out = std::io::stdout().lock();
    let held = simulate(&request, &mut out)?;
    out.flush()?;
    anyhow::ensure!(held, "an invariant broke");
    Ok(())
}
