//! What a run is like where the caller chooses nothing.

use std::time::Duration;

use super::Options;

impl Default for Options {
    fn default() -> Self {
        Self {
            faults: true,
            plant: None,
            safety: Duration::from_secs(120),
            liveness: Duration::from_secs(900),
            keep_trace: false,
            draw: false,
            machines: true,
            workloads: false,
            gpus: false,
            whole: false,
            clones: false,
            copies: false,
            swarm: false,
            small: false,
            scene: None,
            mishap: None,
            cloner_apart: None,
            only: None,
            without: Vec::new(),
            kept_parts: None,
            heal_after: None,
            compares: false,
        }
    }
}
