//! Plays seeds: `cargo run -p carrack-sim --example sim -- SEED RUNS [PLANT] [FLAGS]`, with flags of `carrack sim`; those with a
//! value are written `--safety=90`.

use std::time::Duration;

use carrack_sim::{Options, Request, simulate};

fn main() -> std::io::Result<()> {
    let (flags, words): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let number = |n: usize| words.get(n).and_then(|w| w.parse().ok()).unwrap_or(1);
    let has = |flag: &str| flags.iter().any(|f| f == flag);
    let seconds = |flag: &str, usual: Duration| {
        let value = flags.iter().find_map(|f| f.strip_prefix(flag)?.strip_prefix('=')?.parse().ok());
        value.map_or(usual, Duration::from_secs)
    };
    let usual = Options::default();
    let options = Options {
        safety: seconds("--safety", usual.safety),
        liveness: seconds("--liveness", usual.liveness),
        workloads: has("--workloads"),
        gpus: has("--gpus"),
        clones: has("--clones"),
        copies: has("--copies"),
        swarm: has("--swarm"),
        small: has("--small"),
        whole: has("--whole"),
        machines: !has("--no-machines"),
        faults: !has("--no-faults"),
        keep_trace: has("--trace"),
        ..usual
    };
    let request = Request {
        seed: number(0),
        runs: number(1),
        end_after: None,
        plant: words.get(2).cloned(),
        list_invariants: has("--list-invariants"),
        list_plants: has("--list-plants"),
        shrink: !has("--no-shrink"),
        svg: flags.iter().find_map(|f| f.strip_prefix("--svg=")).map(Into::into),
        options,
    };
    std::process::exit(i32::from(!simulate(&request, &mut std::io::stdout())?));
}
