//! Where a pod runs.
//!
//! ```text
//!  pod events ─▶ Queue ──pop──▶ filter ──▶ score ──▶ assume ──▶ POST binding ──▶ confirmed by watch
//!                 ▲ ▲             │ nobody fits                    │ refused
//!                 │ └─ backoff ◀──┼────────────────────────────────┘ forget
//!  node events ───┴── unschedulable ◀─┘
//! ```
//!
//! [`Scheduler`] is a pure core. Each pod UID has one owner from pop to done: it is in the queue, in
//! flight (assumed, its binding sent), or bound. Updates of a pod in flight are ignored wherever they
//! arrive. Filters and scores ([`plugins`]) have no side effects.

mod cache;
mod framework;
pub mod plugins;
mod queue;
mod scheduler;

pub use cache::{NodeCache, NodeInfo};
pub use framework::{Filter, PodInfo, Profile, Refusal, Score};
pub use queue::SchedulingQueue;
pub use scheduler::{DEFAULT_SCHEDULER_NAME, Scheduler};
