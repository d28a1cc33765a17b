//! `KubeSchedulerConfiguration` (kubescheduler.config.k8s.io/v1), read strictly.

mod file;
mod plugins;

use std::time::Duration;

use carrack_types::duration::parse_unsigned;

use crate::extender::{Extender, Tls};
use crate::{Patience, Profile};

/// The longest configuration that is read, in bytes.
const MAX_FILE: usize = 1 << 20;

/// What a scheduler is told at its start.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Its profiles, each for the pods that name it.
    pub profiles: Vec<Profile>,
    /// Its extenders.
    pub extenders: Vec<Extender>,
    /// Delays of its queue.
    pub patience: Patience,
    /// Whether of several schedulers with this configuration one works at a time, and what a dead one has sent is refused.
    /// Without a word about it that is so, as in upstream's, but for schedulers that are not the default one: they share its
    /// user, which may write its Lease alone.
    pub leader_elect: bool,
    /// Name of the Lease by which they elect it, and its namespace.
    pub lease: (String, String),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profiles: vec![Profile::default()],
            extenders: Vec::new(),
            patience: Patience::default(),
            leader_elect: true,
            lease: ("kube-system".to_owned(), "kube-scheduler".to_owned()),
        }
    }
}

/// A configuration that cannot be used, with the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for ConfigError {}

pub(crate) fn wrong<T>(field: &str, what: impl std::fmt::Display) -> Result<T, ConfigError> {
    Err(ConfigError(format!("{field}: {what}")))
}

impl Config {
    /// The default plugins for pods that name this scheduler.
    #[must_use]
    pub fn named(scheduler_name: &str) -> Self {
        let lease = (Self::default().lease.0, scheduler_name.to_owned());
        let named = Self { profiles: vec![Profile::named(scheduler_name)], ..Self::default() };
        if named.has_default_profile() { named } else { Self { leader_elect: false, lease, ..named } }
    }

    fn has_default_profile(&self) -> bool {
        self.profiles.iter().any(|profile| profile.scheduler_name == crate::DEFAULT_SCHEDULER_NAME)
    }

    /// Reads YAML or JSON. Files that it names (certificates) are read by `read_file`.
    ///
    /// # Errors
    /// The field that is unknown or wrong, and why.
    pub fn parse(text: &str, read_file: impl Fn(&str) -> Result<Vec<u8>, String>) -> Result<Self, ConfigError> {
        if text.len() > MAX_FILE {
            return Err(ConfigError(format!("the configuration is longer than {MAX_FILE} bytes")));
        }
        let file: file::File = serde_saphyr::from_str(text).map_err(|e| ConfigError(e.to_string()))?;
        file.check_version()?;
        let mut config = Self::default();
        config.patience.first_backoff = seconds("podInitialBackoffSeconds", file.pod_initial_backoff_seconds, 1)?;
        config.patience.max_backoff = seconds("podMaxBackoffSeconds", file.pod_max_backoff_seconds, 10)?;
        if config.patience.max_backoff < config.patience.first_backoff {
            return wrong("podMaxBackoffSeconds", "must be at least podInitialBackoffSeconds");
        }
        percentage("percentageOfNodesToScore", file.percentage_of_nodes_to_score)?;
        if file.parallelism.is_some_and(|parallelism| parallelism <= 0) {
            return wrong("parallelism", "must be greater than 0");
        }
        if let Some(election) = &file.leader_election {
            if let Some(lock) = election.resource_lock.as_ref().filter(|lock| *lock != "leases") {
                return wrong("leaderElection.resourceLock", format_args!("{lock:?} is not leases"));
            }
            lease_times(election)?;
            config.leader_elect = election.leader_elect.unwrap_or(true);
            let set = |to: &mut String, given: &Option<String>| {
                if let Some(given) = given.as_ref().filter(|g| !g.is_empty()) {
                    to.clone_from(given);
                }
            };
            set(&mut config.lease.0, &election.resource_namespace);
            set(&mut config.lease.1, &election.resource_name);
        }
        config.extenders = file
            .extenders
            .iter()
            .enumerate()
            .map(|(at, e)| extender(&format!("extenders[{at}]"), e, &read_file))
            .collect::<Result<_, _>>()?;
        if config.extenders.iter().filter(|e| !e.bind_verb.is_empty()).count() > 1 {
            return wrong("extenders", "only one of them may have a bindVerb");
        }
        if !file.profiles.is_empty() {
            config.profiles = file
                .profiles
                .iter()
                .enumerate()
                .map(|(at, p)| plugins::profile(&format!("profiles[{at}]"), p))
                .collect::<Result<_, _>>()?;
        }
        if file.leader_election.is_none() {
            config.leader_elect = config.has_default_profile();
        }
        for (at, profile) in config.profiles.iter().enumerate() {
            if config.profiles.iter().take(at).any(|other| other.scheduler_name == profile.scheduler_name) {
                let name = &profile.scheduler_name;
                return wrong(&format!("profiles[{at}].schedulerName"), format_args!("{name:?} is there twice"));
            }
        }
        let ignored: Vec<String> = file
            .extenders
            .iter()
            .flat_map(|e| &e.managed_resources)
            .filter(|r| r.ignored_by_scheduler)
            .map(|r| r.name.clone())
            .collect();
        for profile in &mut config.profiles {
            profile.ignored_resources.extend(ignored.iter().cloned());
        }
        Ok(config)
    }
}

/// All nodes are looked at; what upstream would look at is checked and not used.
fn percentage(field: &str, given: Option<i64>) -> Result<(), ConfigError> {
    match given.filter(|percentage| !(0..=100).contains(percentage)) {
        Some(percentage) => wrong(field, format_args!("{percentage} is not between 0 and 100")),
        None => Ok(()),
    }
}

fn seconds(field: &str, given: Option<i64>, default_s: u64) -> Result<Duration, ConfigError> {
    match given.map(u64::try_from) {
        None => Ok(Duration::from_secs(default_s)),
        Some(Ok(s)) if s > 0 => Ok(Duration::from_secs(s)),
        Some(_) => wrong(field, "must be greater than 0"),
    }
}

/// A duration; none, and one of nothing, are the default, as in upstream's defaults.
fn duration(field: &str, given: Option<&str>, default_s: u64) -> Result<Duration, ConfigError> {
    let default = Duration::from_secs(default_s);
    let Some(text) = given else { return Ok(default) };
    match parse_unsigned(text) {
        Some(duration) if duration.is_zero() => Ok(default),
        Some(duration) => Ok(duration),
        None => wrong(field, format_args!("{text:?} is no duration such as 5s or 1m30s")),
    }
}

/// How long a Lease lasts is the same for all roles; what upstream would take is checked and not used (component-base,
/// `ValidateLeaderElectionConfiguration`).
fn lease_times(election: &file::LeaderElection) -> Result<(), ConfigError> {
    let lease = duration("leaderElection.leaseDuration", election.lease_duration.as_deref(), 15)?;
    let renew = duration("leaderElection.renewDeadline", election.renew_deadline.as_deref(), 10)?;
    duration("leaderElection.retryPeriod", election.retry_period.as_deref(), 2)?;
    if election.leader_elect != Some(false) && lease < renew {
        return wrong("leaderElection.leaseDuration", "must be at least the renewDeadline");
    }
    Ok(())
}

fn extender(
    field: &str,
    file: &file::Extender,
    read_file: &impl Fn(&str) -> Result<Vec<u8>, String>,
) -> Result<Extender, ConfigError> {
    let at = |name: &str| format!("{field}.{name}");
    let weight = file.weight.unwrap_or(1);
    if !file.prioritize_verb.is_empty() && weight <= 0 {
        return wrong(&at("weight"), "must be greater than 0 where there is a prioritizeVerb");
    }
    let https = file.url_prefix.starts_with("https://");
    if !https && !file.url_prefix.starts_with("http://") {
        return wrong(&at("urlPrefix"), format_args!("{:?} is no URL with http or https", file.url_prefix));
    }
    if file.enable_https && !https {
        return wrong(&at("enableHTTPS"), "the urlPrefix is not an https URL");
    }
    if file.bind_verb.is_empty()
        && file.filter_verb.is_empty()
        && file.prioritize_verb.is_empty()
        && file.preempt_verb.is_empty()
    {
        return wrong(field, "has no verb: it would never be asked");
    }
    for resource in &file.managed_resources {
        if !resource.name.contains('/') || resource.name.starts_with("kubernetes.io/") {
            return wrong(&at("managedResources"), format_args!("{:?} is no extended resource", resource.name));
        }
    }
    let timeout = duration(&at("httpTimeout"), file.http_timeout.as_deref(), 5)?;
    let mut tls = Tls::default();
    if let Some(given) = &file.tls_config {
        let load = |name: &str, file: &str, data: &str| match (file.is_empty(), data.is_empty()) {
            (true, true) => Ok(Vec::new()),
            (false, true) => read_file(file).or_else(|e| wrong(&at(name), e)),
            _ => file::base64(data).map_or_else(|| wrong(&at(name), "is no base64"), Ok),
        };
        tls = Tls {
            insecure: given.insecure,
            server_name: given.server_name.clone(),
            ca: load("tlsConfig.caFile", &given.ca_file, &given.ca_data)?,
            cert: load("tlsConfig.certFile", &given.cert_file, &given.cert_data)?,
            key: load("tlsConfig.keyFile", &given.key_file, &given.key_data)?,
        };
        if tls.cert.is_empty() != tls.key.is_empty() {
            return wrong(&at("tlsConfig"), "a certificate needs a key, and a key a certificate");
        }
    }
    Ok(Extender {
        url_prefix: file.url_prefix.trim_end_matches('/').to_owned(),
        filter_verb: file.filter_verb.clone(),
        prioritize_verb: file.prioritize_verb.clone(),
        preempt_verb: file.preempt_verb.clone(),
        bind_verb: file.bind_verb.clone(),
        weight,
        timeout,
        node_cache_capable: file.node_cache_capable,
        managed_resources: file.managed_resources.iter().map(|r| r.name.clone()).collect(),
        ignorable: file.ignorable,
        tls,
    })
}

#[cfg(test)]
mod tests;
