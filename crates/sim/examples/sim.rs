//! Plays seeds: `cargo run -p carrack-sim --example sim -- SEED RUNS [PLANT] [--trace] [--no-faults] [--workloads] [--gpus] [--clones]`.

use carrack_sim::{Request, simulate};

fn main() -> std::io::Result<()> {
    let (flags, words): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let number = |n: usize| words.get(n).and_then(|w| w.parse().ok()).unwrap_or(1);
    let request = Request {
        seed: number(0),
        runs: number(1),
        plant: words.get(2).cloned(),
        workloads: flags.iter().any(|f| f == "--workloads"),
        clones: flags.iter().any(|f| f == "--clones"),
        gpus: flags.iter().any(|f| f == "--gpus"),
        trace: flags.iter().any(|f| f == "--trace"),
        faults: !flags.iter().any(|f| f == "--no-faults"),
        list_invariants: flags.iter().any(|f| f == "--list-invariants"),
        list_plants: flags.iter().any(|f| f == "--list-plants"),
    };
    std::process::exit(i32::from(!simulate(&request, &mut std::io::stdout())?));
}
