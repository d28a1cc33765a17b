//! What the configuration says of CPUs (`cpuManagerPolicy`, `cpuManagerPolicyOptions`, `reservedSystemCPUs`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::CpuSet;

/// Whether containers get CPUs of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// None does.
    #[default]
    None,
    /// Containers of Guaranteed pods that ask for whole CPUs do.
    Static,
}

impl Policy {
    /// By its name in the configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "" | "none" => Self::None,
            "static" => Self::Static,
            _ => return None,
        })
    }
    /// Its name there, and in the checkpoint.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Static => "static",
        }
    }
}

/// How CPUs are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Nobody gets a part of a core (`full-pcpus-only`).
    pub full_cores_only: bool,
    /// Who needs several NUMA nodes gets the same of each (`distribute-cpus-across-numa`).
    pub distribute_across_numa: bool,
    /// CPUs that are reserved are no pod's at all (`strict-cpu-reservation`).
    pub strict_reservation: bool,
    /// Who fits behind one cache lies behind one (`prefer-align-cpus-by-uncorecache`).
    pub prefer_one_cache: bool,
}

impl Options {
    /// Upstream's names, in this order.
    const NAMES: [&str; 4] = [
        "full-pcpus-only",
        "distribute-cpus-across-numa",
        "strict-cpu-reservation",
        "prefer-align-cpus-by-uncorecache",
    ];

    /// As the configuration has them.
    ///
    /// # Errors
    /// Which one is unknown, or neither true nor false. Upstream's alpha options are behind a gate there, and unknown here.
    pub fn read(options: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut out = Self::default();
        for (name, value) in options {
            let value = match value.as_str() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => return Err(format!("bad value {value:?} for the CPU manager's option {name:?}")),
            };
            let flags = [
                &mut out.full_cores_only,
                &mut out.distribute_across_numa,
                &mut out.strict_reservation,
                &mut out.prefer_one_cache,
            ];
            let flag = Self::NAMES.iter().zip(flags).find(|(known, _)| *known == name);
            *flag.ok_or_else(|| format!("unknown CPU manager policy option: {name:?}"))?.1 = value;
        }
        Ok(out)
    }

    /// The reverse.
    #[must_use]
    pub fn written(self) -> BTreeMap<String, String> {
        let flags = [self.full_cores_only, self.distribute_across_numa, self.strict_reservation, self.prefer_one_cache];
        let set = Self::NAMES.into_iter().zip(flags).filter(|(_, is_set)| *is_set);
        set.map(|(name, _)| (name.to_owned(), "true".to_owned())).collect()
    }
}

/// What the CPU manager is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Policy.
    pub policy: Policy,
    /// Its options.
    pub options: Options,
    /// CPUs that nobody gets for himself; where there are none, as many as are reserved are chosen.
    pub reserved: CpuSet,
    /// How long until a container whose CPUs could not be changed is tried again.
    pub retry: Duration,
}

impl Default for CpuConfig {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            options: Options::default(),
            reserved: CpuSet::default(),
            retry: Duration::from_secs(10),
        }
    }
}
