//! A cluster in one thread under one seed: the real cores and API server, simulated everything else.
//!
//! ```text
//!   roles (real cores) ──effects──▶ net ──▶ ApiServer on MemStore ──▶ net ──inputs──▶ roles
//!        │ ▲                       delays, losses, watches that break         ▲
//!        ▼ │                                                                  │
//!   node: containers, volumes, plugins, guests (simulated)      observer ─────┘ every commit
//!                                                                   │
//!                                                     invariants, after every step
//! ```
//!
//! [`run`] plays one seed: a safety phase in which anything may fail, then a liveness phase in which
//! nothing fails any more and the cluster must come to what was asked of it. Everything that happens
//! is an event in one queue, ordered by time and number, so the same seed gives the same trace, byte
//! for byte. [`plants`] are bugs that are put in on purpose: they prove that the invariants can fail. [`small`] runs are many:
//! slices of all this, for seconds. [`shrink()`] makes a failing run smaller.

mod answers;
mod asked;
mod attacher;
mod backups;
mod blind;
mod chance;
mod clones;
mod closings;
mod command;
mod controllers;
mod cordons;
mod counted;
mod cpus;
mod critical;
mod debuggers;
mod disks;
mod drains;
mod env_files;
mod evictions;
mod extender;
mod fickle;
mod flex;
mod forgetful;
mod gates;
mod given;
mod gpu;
mod growth;
mod hall;
mod hang;
mod heritage;
mod hosted;
mod images;
mod imports;
mod impostors;
mod intervals;
mod invariants;
mod keepers;
mod kept_mounts;
mod leaders;
mod ledger;
mod links;
mod lost_data;
mod machines;
mod meddler;
mod memory;
mod meters;
mod mounts;
mod net;
mod node;
mod nominations;
mod observer;
mod onlooker;
mod options;
mod ordered;
mod paces;
mod pages;
mod phantoms;
mod picture;
pub mod plants;
mod pressure;
mod probed;
mod promises;
mod provisioner;
mod pulling;
mod queue;
mod reader;
mod registered;
mod reimaged;
mod replicas;
mod reruns;
mod resizes;
mod results;
mod roaming;
mod role;
mod rounds;
mod sandboxes;
mod server;
mod settings;
mod shrink;
mod silence;
mod sizes;
mod sleepers;
pub mod small;
mod snapshots;
mod statics;
mod storage;
mod taints;
mod tokens;
mod told;
mod trace;
mod unread;
mod unwanted;
mod wants;
mod webhook;
mod workload;
mod world;
mod writers;
mod zones;

pub use clones::{Counts, Mishap, Scene};
pub use command::{Request, simulate};
pub use invariants::{INVARIANTS, Invariant};
pub use options::{Options, PARTS, Part, SWITCHES, Switch};
pub use shrink::{MOST_REPLAYS, Shrunk, shrink};
pub use trace::Trace;
pub use world::{Failure, Outcome, run};
