//! Where a pod runs.
//!
//! ```text
//!  pod events ─▶ queue ──pop──▶ class ──▶ volumes ──▶ extenders ──▶ score ──▶ assume ──▶ bind ──▶ confirmed by watch
//!                 ▲ ▲             │ nobody fits                                  │ refused
//!                 │ └─ backoff ◀──┼──────────────────────────────────────────────┘ forget
//!  cluster ───────┴── unschedulable ◀─┴─▶ preemption: victims go, the pod is nominated
//! ```
//!
//! [`Scheduler`] is a pure core. Each pod UID has one owner from pop to done: its row in the [`queue`](SchedulingQueue),
//! which says where it is and to which node it is nominated; there is no other place for a nomination to be left behind.
//! Filters and scores have no side effects. What nodes answer is kept by [`class`], node by node, so that every node is
//! considered for every pod and only what changed is computed. Extenders are asked by effects of the core's own
//! ([`extender`]).

mod amounts;
pub mod class;
mod cluster;
mod config;
mod decide;
mod explain;
pub mod extender;
mod framework;
mod intern;
mod metrics;
pub mod plugins;
mod pod;
mod pod_info;
mod probe;
mod profile;
mod queue;
mod scheduler;
mod tables;
mod text;
mod trim;

pub use cluster::{Cluster, NodeChange, NodeId, NodeInfo, ObjectName, Objects, Seat, name_of};
pub use config::{Config, ConfigError};
pub use decide::{Decider, Found, NodeAnswer, Question};
pub use explain::{Explained, NodeExplained, explain};
pub use framework::{Plugin, PluginSet, Refusal};
pub use metrics::{Ended, Metrics, Shown, Stopwatch};
pub use pod::{Claim, Pod};
pub use pod_info::PodInfo;
pub use probe::Probe;
pub use profile::{DEFAULT_SCHEDULER_NAME, FitStrategy, Profile, SpreadDefaults};
pub use queue::{Counts, Event, Hints, Patience, Place, Row, SchedulingQueue};
pub use scheduler::{Limits, Planted, Scheduler};
pub use text::FitError;
