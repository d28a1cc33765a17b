//! Simulated clusters, and the lists that name what they promise. One program: each holds the whole system, half a gigabyte of it.
#![expect(clippy::panic, reason = "a test fails by panicking")]

mod backups;
mod catalogue;
mod clones;
mod copies;
mod gpus;
mod seeds;
mod shrink;
mod small;
mod workloads;

use carrack_sim::Outcome;

/// What is played is mostly objects that come and go: one part in eight of the time went into the C library's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Fails the test with the failure of what was played, if there is one.
fn must_hold(what: &str, outcome: &Outcome) {
    if let Some(failure) = &outcome.failure {
        panic!("{what}: {failure}");
    }
}

/// How many seeds are played, `SEEDS` in the environment saying otherwise.
fn seeds_played(else_: u64) -> u64 {
    std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(else_)
}
