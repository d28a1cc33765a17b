//! Upstream's configuration file: `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`, strictly decoded
//! (<https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/>).
//!
//! A field that upstream does not have is an error. One that it has and that has no effect here is named, so that
//! nobody relies on it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use carrack_auth::tls::Offered;
use carrack_schema::decode::{self, Format, Limits};
use carrack_schema::strategic;
use carrack_types::duration::parse_unsigned;
use carrack_types::quantity::Quantity;
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::{ChangeDetection, HEALTHZ, NodeConfig};
use crate::cpus;
use crate::eviction::{Least, Signal, Thresholds};
use crate::memory;
use crate::pulled::Verification;
use crate::shutdown::{Group, Groups};
use crate::static_url::{Headers, StaticUrl};
use crate::topology::{Policy, Scope};

/// The version of the file.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Its kind.
pub const KIND: &str = "KubeletConfiguration";

/// Upstream's other fields, which have no effect here.
const NO_EFFECT: &[&str] = &[
    "authorization",
    "cgroupDriver",
    "cgroupsPerQOS",
    "containerLogMaxWorkers",
    "contentType",
    "draManagerReconcilePeriod",
    "enableContentionProfiling",
    "enableDebugFlagsHandler",
    "enableProfilingHandler",
    "enableServer",
    "failCgroupV1",
    "featureGates",
    "hairpinMode",
    "imageServiceEndpoint",
    "iptablesDropBit",
    "iptablesMasqueradeBit",
    "kernelMemcgNotification",
    "kubeAPIBurst",
    "kubeAPIQPS",
    "kubeReservedCgroup",
    "kubeletCgroups",
    "localStorageCapacityIsolation",
    "logging",
    "makeIPTablesUtilChains",
    "maxOpenFiles",
    "memoryReservationPolicy",
    "memoryThrottlingFactor",
    "oomScoreAdj",
    "podCIDR",
    "qosReserved",
    "registryBurst",
    "registryPullQPS",
    "runOnce",
    "runtimeRequestTimeout",
    "showHiddenMetricsForVersion",
    "streamingConnectionIdleTimeout",
    "systemCgroups",
    "systemReservedCgroup",
    "tlsCurvePreferences",
    "topologyManagerPolicyOptions",
    "tracing",
    "userNamespaces",
    "volumePluginDir",
    "volumeStatsAggPeriod",
];

/// A file as read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Configuration {
    static_pod_path: String,
    pod_logs_dir: String,
    file_check_frequency: Span,
    sync_frequency: Span,
    #[serde(rename = "staticPodURL")]
    static_pod_url: String,
    #[serde(rename = "staticPodURLHeader")]
    static_pod_url_header: Headers,
    http_check_frequency: Span,
    /// Address to listen on.
    pub address: Option<IpAddr>,
    /// Port to listen on.
    pub port: Option<u16>,
    healthz_bind_address: Option<IpAddr>,
    healthz_port: Option<u16>,
    read_only_port: Option<u16>,
    /// Certificate to serve with.
    pub tls_cert_file: String,
    /// Its key.
    pub tls_private_key_file: String,
    tls_min_version: String,
    tls_cipher_suites: Vec<String>,
    /// Whether a client certificate is exchanged before it ends.
    pub rotate_certificates: bool,
    /// Whether the certificate to serve with is asked for by a certificate request.
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    authentication: Authentication,
    cluster_domain: String,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Vec<IpAddr>,
    node_status_update_frequency: Span,
    node_status_report_frequency: Span,
    node_lease_duration_seconds: u32,
    #[serde(rename = "imageMinimumGCAge")]
    image_minimum_gc_age: Span,
    #[serde(rename = "imageMaximumGCAge")]
    image_maximum_gc_age: Span,
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high_threshold_percent: Option<u8>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    image_gc_low_threshold_percent: Option<u8>,
    cgroup_root: String,
    max_pods: Option<u32>,
    pods_per_core: Option<u32>,
    register_node: Option<bool>,
    eviction_hard: BTreeMap<String, String>,
    eviction_soft: BTreeMap<String, String>,
    eviction_soft_grace_period: BTreeMap<String, Span>,
    eviction_pressure_transition_period: Span,
    eviction_max_pod_grace_period: Option<i64>,
    eviction_minimum_reclaim: BTreeMap<String, String>,
    merge_default_eviction_settings: bool,
    shutdown_grace_period: Span,
    shutdown_grace_period_critical_pods: Span,
    shutdown_grace_period_by_pod_priority: Vec<ShutdownGrace>,
    container_log_max_size: String,
    container_log_max_files: Option<usize>,
    container_log_monitor_interval: Span,
    system_reserved: BTreeMap<String, String>,
    kube_reserved: BTreeMap<String, String>,
    enforce_node_allocatable: Option<Vec<String>>,
    register_with_taints: Option<Vec<Taint>>,
    allowed_unsafe_sysctls: Vec<String>,
    config_map_and_secret_change_detection_strategy: String,
    enable_controller_attach_detach: Option<bool>,
    topology_manager_policy: String,
    topology_manager_scope: String,
    cpu_manager_policy: String,
    cpu_manager_policy_options: BTreeMap<String, String>,
    cpu_manager_reconcile_period: Span,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: String,
    #[serde(rename = "cpuCFSQuota")]
    cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    cpu_cfs_quota_period: Span,
    crash_loop_back_off: CrashLoopBackOff,
    serialize_image_pulls: Option<bool>,
    max_parallel_image_pulls: Option<usize>,
    image_pull_credentials_verification_policy: String,
    preloaded_images_verification_allowlist: Vec<String>,
    node_status_max_images: Option<i32>,
    pod_pids_limit: Option<i64>,
    #[serde(rename = "providerID")]
    provider_id: String,
    resolv_conf: Option<String>,
    seccomp_default: bool,
    memory_swap: MemorySwap,
    fail_swap_on: Option<bool>,
    protect_kernel_defaults: Option<bool>,
    #[serde(rename = "eventRecordQPS")]
    event_record_qps: Option<u32>,
    event_burst: Option<u32>,
    memory_manager_policy: String,
    reserved_memory: Vec<MemoryReservation>,
    #[serde(rename = "singleProcessOOMKill")]
    single_process_oom_kill: Option<bool>,
    enable_debugging_handlers: Option<bool>,
    enable_system_log_handler: Option<bool>,
    enable_system_log_query: Option<bool>,
    /// Socket of the container runtime.
    pub container_runtime_endpoint: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct CrashLoopBackOff {
    max_container_restart_period: Span,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct MemorySwap {
    swap_behavior: String,
}

/// What no pod has of a NUMA node, by kind of memory.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct MemoryReservation {
    numa_node: u32,
    limits: BTreeMap<String, Value>,
}

/// How long pods from a priority on have when the machine is shut down.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct ShutdownGrace {
    priority: i32,
    shutdown_grace_period_seconds: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Authentication {
    x509: X509,
    webhook: TokenReview,
    anonymous: Anonymous,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct X509 {
    #[serde(rename = "clientCAFile")]
    client_ca_file: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TokenReview {
    enabled: Option<bool>,
    #[serde(rename = "cacheTTL")]
    cache_ttl: Span,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Anonymous {
    enabled: Option<bool>,
}

/// A span of time as Go writes it; none where it is not given or 0.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
struct Span(Option<Duration>);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let span = parse_unsigned(&text).ok_or_else(|| format!("{text:?} is no duration such as 1m30s"))?;
        Ok(Self(Some(span).filter(|span| !span.is_zero())))
    }
}

/// Reads a duration as upstream's flags have it.
///
/// # Errors
/// It is none.
pub fn duration(text: &str) -> Result<Duration, String> {
    Span::try_from(text.to_owned()).map(|span| span.0.unwrap_or_default())
}

/// The fields of a file, in YAML or JSON, whatever it is of.
pub(crate) fn document(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let parsed = decode::parse(bytes, Format::of(bytes), Limits::default()).map_err(|e| e.to_string())?;
    if let Some(finding) = parsed.findings.first() {
        return Err(finding.to_string());
    }
    let Value::Object(fields) = parsed.value else { return Err("it is no object".into()) };
    Ok(fields)
}

/// The fields of a file that is of this kind.
fn fields(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let mut fields = document(bytes)?;
    let kind = (fields.remove("apiVersion"), fields.remove("kind"));
    if kind != (Some(API_VERSION.into()), Some(KIND.into())) {
        return Err("it is no KubeletConfiguration of kubelet.config.k8s.io/v1beta1".into());
    }
    Ok(fields)
}

/// Reads a file, in YAML or JSON. The second part names the fields that are set and have no effect here.
///
/// # Errors
/// What is wrong with it.
pub fn read(bytes: &[u8]) -> Result<(Configuration, Vec<String>), String> {
    finish(fields(bytes)?)
}

/// Reads a file, if there is one, and those that are laid over it, with their names, in this order, as
/// JSON merge patches (upstream's `--config-dir`).
///
/// # Errors
/// What is wrong, and with which of them.
pub fn read_over(base: Option<&[u8]>, over: &[(String, Vec<u8>)]) -> Result<(Configuration, Vec<String>), String> {
    let mut all = Value::Object(base.map(fields).transpose()?.unwrap_or_default());
    for (name, bytes) in over {
        let fields = fields(bytes).map_err(|why| format!("{name}: {why}"))?;
        strategic::merge(&mut all, &Value::Object(fields));
    }
    let Value::Object(fields) = all else { return Err("it is no object".into()) };
    finish(fields)
}

fn finish(mut fields: Map<String, Value>) -> Result<(Configuration, Vec<String>), String> {
    let mut without = Vec::new();
    for name in NO_EFFECT {
        if fields.remove(*name).is_some_and(|value| !value.is_null()) {
            without.push((*name).to_owned());
        }
    }
    fields.retain(|_, value| !value.is_null());
    let configuration: Configuration = serde_json::from_value(Value::Object(fields)).map_err(|e| e.to_string())?;
    configuration.check()?;
    let c = &configuration;
    if !c.reserved_memory.is_empty() && c.memory_manager_policy != memory::Policy::Static.name() {
        without.push("reservedMemory".to_owned());
    }
    if c.static_pod_url.is_empty() && !c.static_pod_url_header.is_empty() {
        without.push("staticPodURLHeader".to_owned());
    }
    if c.event_record_qps == Some(0) && c.event_burst.is_some() {
        without.push("eventBurst".to_owned());
    }
    if Offered::too_old(&c.tls_min_version) {
        without.push("tlsMinVersion".to_owned());
    }
    // Nobody chooses among the suites of 1.3.
    if c.tls_min_version == "VersionTLS13" && !c.tls_cipher_suites.is_empty() {
        without.push("tlsCipherSuites".to_owned());
    } else {
        let old = c.tls_cipher_suites.iter().filter(|name| Offered::too_old(name));
        without.extend(old.map(|name| format!("tlsCipherSuites.{name}")));
    }
    for (field, map) in [("evictionHard", &c.eviction_hard), ("evictionSoft", &c.eviction_soft)] {
        without
            .extend(OF_CONTAINERS.iter().filter(|name| map.contains_key(**name)).map(|name| format!("{field}.{name}")));
    }
    Ok((configuration, without))
}

/// Signals of upstream about the file system of containers' writable layers. It is the kubelet's or the images', and so are its
/// thresholds, whatever is said of its own (upstream's `UpdateContainerFsThresholds`).
const OF_CONTAINERS: [&str; 2] = ["containerfs.available", "containerfs.inodesFree"];

/// The signal of a name; none for one whose threshold is another's.
fn signal(name: &str) -> Result<Option<Signal>, String> {
    match Signal::ALL.into_iter().find(|s| s.name() == name) {
        None if !OF_CONTAINERS.contains(&name) => Err(format!("{name:?} is no eviction signal that is known here")),
        found => Ok(found),
    }
}

/// The amounts by signal; none where a share means never.
fn thresholds(map: &BTreeMap<String, String>) -> Result<BTreeMap<Signal, Option<Least>>, String> {
    let mut out = BTreeMap::new();
    for (name, text) in map {
        let signal = signal(name)?;
        let bad = || format!("{text:?} is no threshold for {name}");
        let least = match text.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.parse().map_err(|_| bad())?;
                if !(0.0..=100.0).contains(&percent) {
                    return Err(bad());
                }
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 10000")]
                let share = (percent * 100.0).round() as u64;
                // 0 % and 100 % mean never, as upstream has it.
                Some(Least::OfAll(share)).filter(|_| percent > 0.0 && percent < 100.0)
            }
            None => {
                let amount: Quantity = text.parse().map_err(|_| bad())?;
                Some(Least::Amount(u64::try_from(amount.units()).map_err(|_| bad())?))
            }
        };
        out.extend(signal.map(|signal| (signal, least)));
    }
    Ok(out)
}

fn milli(map: &BTreeMap<String, String>) -> Result<crate::amount::Amounts, String> {
    map.iter()
        .map(|(name, text)| {
            if !["cpu", "memory", "ephemeral-storage", "pid"].contains(&name.as_str()) {
                return Err(format!("{name:?} cannot be reserved"));
            }
            let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.clone());
            let amount = crate::amount::milli(&quantity).filter(|m| *m >= 0);
            Ok((name.clone(), amount.ok_or_else(|| format!("{text:?} is no amount of {name}"))?))
        })
        .collect()
}

impl Configuration {
    fn check(&self) -> Result<(), String> {
        let (high, low) =
            (self.image_gc_high_threshold_percent.unwrap_or(85), self.image_gc_low_threshold_percent.unwrap_or(80));
        if high > 100 || low >= high {
            return Err("imageGCHighThresholdPercent must be above imageGCLowThresholdPercent, and at most 100".into());
        }
        if self.container_log_max_files.is_some_and(|n| n < 2) {
            return Err("containerLogMaxFiles must be at least 2".into());
        }
        if self.enable_system_log_query == Some(true) && self.enable_system_log_handler == Some(false) {
            return Err("enableSystemLogQuery needs enableSystemLogHandler".into());
        }
        for name in self.eviction_soft.keys() {
            if !self.eviction_soft_grace_period.contains_key(name) {
                return Err(format!("evictionSoft of {name} has no evictionSoftGracePeriod"));
            }
        }
        self.apply(&mut NodeConfig::default())
    }

    /// The authority whose clients are believed, as a file.
    #[must_use]
    pub fn client_ca_file(&self) -> &str {
        &self.authentication.x509.client_ca_file
    }

    /// Changes what the file sets.
    ///
    /// # Errors
    /// What is no amount or threshold.
    pub fn apply(&self, node: &mut NodeConfig) -> Result<(), String> {
        let text = |to: &mut String, from: &str| {
            if !from.is_empty() {
                from.clone_into(to);
            }
        };
        let span = |to: &mut Duration, from: Span| *to = from.0.unwrap_or(*to);
        node.healthz = self.healthz(node.healthz);
        text(&mut node.log_dir, &self.pod_logs_dir);
        text(&mut node.cluster_domain, &self.cluster_domain);
        text(&mut node.cgroup_root, self.cgroup_root.trim_matches('/'));
        if !self.static_pod_path.is_empty() {
            node.static_pod_path = Some(self.static_pod_path.clone());
        }
        if !self.cluster_dns.is_empty() {
            node.cluster_dns.clone_from(&self.cluster_dns);
        }
        span(&mut node.file_check_period, self.file_check_frequency);
        span(&mut node.sync_period, self.sync_frequency);
        if !self.static_pod_url.is_empty() {
            node.static_pod_url = Some(StaticUrl::new(&self.static_pod_url, &self.static_pod_url_header)?);
        }
        span(&mut node.http_check_period, self.http_check_frequency);
        span(&mut node.status_period, self.node_status_update_frequency);
        span(&mut node.status_report_period, self.node_status_report_frequency);
        if self.node_lease_duration_seconds > 0 {
            // Renewed four times in its life, as the default is.
            node.lease_period = Duration::from_secs(u64::from(self.node_lease_duration_seconds).div_ceil(4));
        }
        span(&mut node.image_gc.min_age, self.image_minimum_gc_age);
        node.image_gc.max_unused = self.image_maximum_gc_age.0.or(node.image_gc.max_unused);
        if let Some(high) = self.image_gc_high_threshold_percent {
            node.image_gc.high_percent = u64::from(high);
        }
        if let Some(low) = self.image_gc_low_threshold_percent {
            node.image_gc.low_percent = u64::from(low);
        }
        node.debugging = self.enable_debugging_handlers.unwrap_or(node.debugging);
        node.system_logs = self.enable_system_log_handler.unwrap_or(node.system_logs);
        node.log_queries = self.enable_system_log_query.unwrap_or(node.log_queries);
        node.anonymous = self.authentication.anonymous.enabled.unwrap_or(node.anonymous);
        let webhook = &self.authentication.webhook;
        let kept = webhook.cache_ttl.0.or(node.token_reviews);
        node.token_reviews = kept.filter(|_| webhook.enabled != Some(false));
        node.controller_attach = self.enable_controller_attach_detach.unwrap_or(node.controller_attach);
        node.max_pods = self.max_pods.unwrap_or(node.max_pods);
        node.pods_per_core = self.pods_per_core.unwrap_or(node.pods_per_core);
        node.register_node = self.register_node.unwrap_or(node.register_node);
        self.apply_server(node)?;
        self.apply_events(node);
        self.apply_eviction(&mut node.eviction)?;
        self.apply_shutdown(node)?;
        if !self.container_log_max_size.is_empty() {
            let size: Option<Quantity> = self.container_log_max_size.parse().ok();
            let size = size.and_then(|s| u64::try_from(s.units()).ok());
            node.log_max_bytes =
                size.ok_or_else(|| format!("{:?} is no size of a log", self.container_log_max_size))?;
        }
        node.log_max_files = self.container_log_max_files.unwrap_or(node.log_max_files);
        span(&mut node.log_monitor_period, self.container_log_monitor_interval);
        for map in [&self.system_reserved, &self.kube_reserved] {
            crate::spec::pod::add(&mut node.reserved, &milli(map)?);
        }
        self.apply_enforcement(node)?;
        if let Some(taints) = &self.register_with_taints {
            node.taints.clone_from(taints);
        }
        node.allowed_sysctls.extend(self.allowed_unsafe_sysctls.iter().map(|name| name.replace('/', ".")));
        let bad = |what: &str, name: &str| format!("{name:?} is no {what} that is known here");
        let detection = &self.config_map_and_secret_change_detection_strategy;
        node.change_detection = ChangeDetection::named(detection)
            .ok_or_else(|| bad("configMapAndSecretChangeDetectionStrategy", detection))?;
        let (policy, scope) = (&self.topology_manager_policy, &self.topology_manager_scope);
        node.topology = (
            Policy::named(policy).ok_or_else(|| bad("topologyManagerPolicy", policy))?,
            Scope::named(scope).ok_or_else(|| bad("topologyManagerScope", scope))?,
        );
        node.image_verification = Verification::named(
            &self.image_pull_credentials_verification_policy,
            &self.preloaded_images_verification_allowlist,
        )?;
        self.apply_pulls(node)?;
        self.apply_pods(node)?;
        self.apply_memory(node)?;
        self.apply_cpus(node)
    }

    /// Where `/healthz` is told, of where it would be without this. Port 0 is nowhere, and where it is told at all, what is not said
    /// is upstream's default.
    fn healthz(&self, otherwise: Option<SocketAddr>) -> Option<SocketAddr> {
        if (self.healthz_bind_address, self.healthz_port) == (None, None) {
            return otherwise;
        }
        let rest = otherwise.unwrap_or(HEALTHZ);
        let address = self.healthz_bind_address.unwrap_or(rest.ip());
        Some(SocketAddr::new(address, self.healthz_port.unwrap_or(rest.port()))).filter(|at| at.port() != 0)
    }

    /// As upstream has it (`ValidateKubeletConfiguration`), but that the machine's own services have no bounds here.
    fn apply_enforcement(&self, node: &mut NodeConfig) -> Result<(), String> {
        let Some(named) = &self.enforce_node_allocatable else { return Ok(()) };
        for name in named {
            match name.as_str() {
                "pods" => {}
                "none" if named.len() == 1 => {}
                "none" => return Err("enforceNodeAllocatable: none has to stand alone".into()),
                "system-reserved" | "kube-reserved" | "system-reserved-compressible" | "kube-reserved-compressible" => {
                    let why =
                        "only the pods' control group is bounded here, and whoever made those of services bounds them";
                    return Err(format!("enforceNodeAllocatable: {name} cannot be enforced: {why}"));
                }
                _ => return Err(format!("enforceNodeAllocatable: {name:?} is nothing that can be enforced")),
            }
        }
        node.enforce_pods = named.iter().any(|name| name == "pods");
        Ok(())
    }

    fn apply_server(&self, node: &mut NodeConfig) -> Result<(), String> {
        node.read_only_port = self.read_only_port.unwrap_or(node.read_only_port);
        if !self.tls_min_version.is_empty() || !self.tls_cipher_suites.is_empty() {
            let offered = Offered::named(&self.tls_min_version, &self.tls_cipher_suites);
            node.offered = offered.map_err(|e| format!("tlsMinVersion, tlsCipherSuites: {e}"))?;
        }
        Ok(())
    }

    /// No rate is no limit; no burst is client-go's own (`DefaultBurst`).
    fn apply_events(&self, node: &mut NodeConfig) {
        let (per_second, burst) = node.event_rate.unwrap_or((0, 100));
        let per_second = self.event_record_qps.unwrap_or(per_second);
        let burst = self.event_burst.map_or(burst, |burst| if burst == 0 { 10 } else { burst });
        node.event_rate = Some((per_second, burst)).filter(|(per_second, _)| *per_second > 0);
    }

    fn apply_memory(&self, node: &mut NodeConfig) -> Result<(), String> {
        match self.memory_swap.swap_behavior.as_str() {
            "" => {}
            "NoSwap" => node.limited_swap = false,
            "LimitedSwap" => node.limited_swap = true,
            other => return Err(format!("{other:?} is no memorySwap.swapBehavior that is known here")),
        }
        node.fail_on_swap = self.fail_swap_on.unwrap_or(node.fail_on_swap);
        node.protect_kernel = self.protect_kernel_defaults.unwrap_or(node.protect_kernel);
        node.single_process_oom_kill = self.single_process_oom_kill.unwrap_or(node.single_process_oom_kill);
        let policy = &self.memory_manager_policy;
        node.memory.policy = memory::Policy::named(policy)
            .ok_or_else(|| format!("{policy:?} is no memoryManagerPolicy that is known here"))?;
        let mut reserved = BTreeMap::new();
        for of in &self.reserved_memory {
            memory::reserve(&mut reserved, of.numa_node, &of.limits)?;
        }
        if !reserved.is_empty() {
            node.memory.reserved = reserved;
        }
        Ok(())
    }

    /// Upstream: `ValidateKubeletConfiguration`, and `SetDefaults_KubeletConfiguration` for a number that stands alone.
    fn apply_pulls(&self, node: &mut NodeConfig) -> Result<(), String> {
        match (self.serialize_image_pulls, self.max_parallel_image_pulls) {
            (_, Some(0)) => return Err("maxParallelImagePulls must be positive".into()),
            (Some(true), Some(2..)) => {
                return Err("maxParallelImagePulls must not be above 1 unless serializeImagePulls is false".into());
            }
            (None, None) => {}
            (Some(true), _) => node.parallel_pulls = Some(1),
            (_, most) => node.parallel_pulls = most,
        }
        Ok(())
    }

    /// What holds for each pod and container.
    fn apply_pods(&self, node: &mut NodeConfig) -> Result<(), String> {
        node.cpu_quota = self.cpu_cfs_quota.unwrap_or(node.cpu_quota);
        if let Some(period) = self.cpu_cfs_quota_period.0 {
            if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&period) {
                return Err("cpuCFSQuotaPeriod must be between 1ms and 1s".into());
            }
            node.cpu_quota_period = period;
        }
        if let Some(longest) = self.crash_loop_back_off.max_container_restart_period.0 {
            if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&longest) {
                return Err("crashLoopBackOff.maxContainerRestartPeriod must be between 1s and 300s".into());
            }
            node.restart_wait = longest;
        }
        if let Some(most) = self.node_status_max_images {
            if most < -1 {
                return Err("nodeStatusMaxImages must be -1 or greater".into());
            }
            node.status_max_images = usize::try_from(most).ok();
        }
        if let Some(most) = self.pod_pids_limit {
            node.pod_pids = u64::try_from(most).ok().filter(|most| *most > 0);
        }
        if let Some(path) = &self.resolv_conf {
            node.resolv_conf = Some(path.into()).filter(|_| !path.is_empty());
        }
        node.seccomp_default |= self.seccomp_default;
        if !self.provider_id.is_empty() {
            node.provider_id.clone_from(&self.provider_id);
        }
        Ok(())
    }

    fn apply_cpus(&self, node: &mut NodeConfig) -> Result<(), String> {
        let policy = &self.cpu_manager_policy;
        node.cpus.policy = cpus::Policy::named(policy)
            .ok_or_else(|| format!("{policy:?} is no cpuManagerPolicy that is known here"))?;
        node.cpus.options = cpus::Options::read(&self.cpu_manager_policy_options)?;
        if node.cpus.policy == cpus::Policy::None && node.cpus.options != cpus::Options::default() {
            return Err("cpuManagerPolicyOptions are for cpuManagerPolicy static".into());
        }
        node.cpus.retry = self.cpu_manager_reconcile_period.0.unwrap_or(node.cpus.retry);
        node.cpus.reserved = self.reserved_system_cpus.parse().map_err(|e| format!("reservedSystemCPUs: {e}"))?;
        if !node.cpus.reserved.is_empty() {
            // They are what is kept back, whatever the lists say.
            let count = i128::try_from(node.cpus.reserved.len()).unwrap_or(i128::MAX / 1000);
            node.reserved.insert("cpu".into(), count * 1000);
        }
        Ok(())
    }

    /// As upstream has it (`ValidateKubeletConfiguration`, `pkg/kubelet/apis/config/validation`).
    fn apply_shutdown(&self, node: &mut NodeConfig) -> Result<(), String> {
        let (all, critical) = (self.shutdown_grace_period.0, self.shutdown_grace_period_critical_pods.0);
        let groups = &self.shutdown_grace_period_by_pod_priority;
        for (field, span) in [("shutdownGracePeriod", all), ("shutdownGracePeriodCriticalPods", critical)] {
            if span.is_some_and(|span| span < Duration::from_secs(1)) {
                return Err(format!("{field} must be zero, or a second at least"));
            }
        }
        if critical > all {
            return Err("shutdownGracePeriodCriticalPods must not be longer than shutdownGracePeriod".into());
        }
        let of = |g: &ShutdownGrace| Group {
            priority: g.priority,
            grace: Duration::from_secs(u64::from(g.shutdown_grace_period_seconds)),
        };
        match (all, groups.is_empty()) {
            (Some(_), false) => {
                return Err("shutdownGracePeriodByPodPriority cannot be used together with shutdownGracePeriod".into());
            }
            (Some(all), true) => node.shutdown = Groups::of_two(all, critical.unwrap_or_default()),
            (None, false) => node.shutdown = Groups::new(groups.iter().map(of).collect()),
            (None, true) => {}
        }
        Ok(())
    }

    fn apply_eviction(&self, to: &mut Thresholds) -> Result<(), String> {
        if !self.eviction_hard.is_empty() {
            if !self.merge_default_eviction_settings {
                to.hard.clear();
            }
            for (signal, least) in positive(&self.eviction_hard)? {
                // What is said never to be crossed is not, whatever the default.
                match least {
                    Some(least) => to.hard.insert(signal, least),
                    None => to.hard.remove(&signal),
                };
            }
        }
        for (signal, least) in positive(&self.eviction_soft)? {
            let grace = self.eviction_soft_grace_period.get(signal.name()).and_then(|s| s.0).unwrap_or_default();
            to.soft.extend(least.map(|least| (signal, (least, grace))));
        }
        for name in self.eviction_soft_grace_period.keys() {
            signal(name)?;
        }
        for (signal, more) in thresholds(&self.eviction_minimum_reclaim)? {
            let none =
                || format!("evictionMinimumReclaim of {}: a share must be above 0% and below 100%", signal.name());
            to.reclaim.insert(signal, more.ok_or_else(none)?);
        }
        to.max_pod_grace_s = self.eviction_max_pod_grace_period.unwrap_or(to.max_pod_grace_s);
        to.transition = self.eviction_pressure_transition_period.0.unwrap_or(to.transition);
        Ok(())
    }
}

/// The amounts by signal, none of them zero.
fn positive(map: &BTreeMap<String, String>) -> Result<BTreeMap<Signal, Option<Least>>, String> {
    let all = thresholds(map)?;
    match all.iter().find(|(_, least)| **least == Some(Least::Amount(0))) {
        Some((signal, _)) => Err(format!("the threshold for {} must be positive", signal.name())),
        None => Ok(all),
    }
}

#[cfg(test)]
#[path = "configuration_tests.rs"]
mod tests;
