//! The engine as a core: managers, informers and the shell, each file one promise. One program, since each would have most of it.

mod asks;
mod barrier;
mod doubts;
mod dropped;
mod others;
mod pages;
mod panics;
mod parts;
mod patience;
mod premises;
mod refused;
mod synced;
mod terms;
mod timers;
mod turns;
