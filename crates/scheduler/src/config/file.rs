//! The file's form. Fields that upstream has and that mean nothing here are read, so that a file written for upstream
//! works; unknown ones are errors.

use serde::Deserialize;
use serde_json::Value;

use super::{ConfigError, wrong};

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    pub profiles: Vec<Profile>,
    #[serde(default)]
    pub extenders: Vec<Extender>,
    pub pod_initial_backoff_seconds: Option<i64>,
    pub pod_max_backoff_seconds: Option<i64>,
    pub percentage_of_nodes_to_score: Option<i64>,
    pub leader_election: Option<LeaderElection>,
    pub parallelism: Option<i64>,
    #[serde(rename = "clientConnection")]
    _client_connection: Option<ClientConnection>,
    #[serde(rename = "enableProfiling")]
    _enable_profiling: Option<bool>,
    #[serde(rename = "enableContentionProfiling")]
    _enable_contention_profiling: Option<bool>,
    #[serde(rename = "delayCacheUntilActive")]
    _delay_cache_until_active: Option<bool>,
}

impl File {
    pub fn check_version(&self) -> Result<(), ConfigError> {
        if self.api_version != API_VERSION {
            return wrong("apiVersion", format_args!("{:?} is not {API_VERSION}", self.api_version));
        }
        if self.kind != "KubeSchedulerConfiguration" {
            return wrong("kind", format_args!("{:?} is not KubeSchedulerConfiguration", self.kind));
        }
        Ok(())
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ClientConnection {
    #[serde(rename = "kubeconfig")]
    _kubeconfig: Option<String>,
    #[serde(rename = "acceptContentTypes")]
    _accept_content_types: Option<String>,
    #[serde(rename = "contentType")]
    _content_type: Option<String>,
    #[serde(rename = "qps")]
    _qps: Option<f64>,
    #[serde(rename = "burst")]
    _burst: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct LeaderElection {
    pub leader_elect: Option<bool>,
    pub resource_name: Option<String>,
    pub resource_namespace: Option<String>,
    pub lease_duration: Option<String>,
    pub renew_deadline: Option<String>,
    pub retry_period: Option<String>,
    pub resource_lock: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Profile {
    pub scheduler_name: Option<String>,
    pub percentage_of_nodes_to_score: Option<i64>,
    #[serde(default)]
    pub plugins: Plugins,
    #[serde(default)]
    pub plugin_config: Vec<PluginConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Plugins {
    pub multi_point: PluginSet,
    pub pre_enqueue: PluginSet,
    pub queue_sort: PluginSet,
    pub pre_filter: PluginSet,
    pub filter: PluginSet,
    pub post_filter: PluginSet,
    pub pre_score: PluginSet,
    pub score: PluginSet,
    pub reserve: PluginSet,
    pub permit: PluginSet,
    pub pre_bind: PluginSet,
    pub bind: PluginSet,
    pub post_bind: PluginSet,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PluginSet {
    pub enabled: Vec<PluginRef>,
    pub disabled: Vec<PluginRef>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PluginRef {
    pub name: String,
    pub weight: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PluginConfig {
    pub name: String,
    #[serde(default)]
    pub args: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct Extender {
    pub url_prefix: String,
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub bind_verb: String,
    pub weight: Option<i64>,
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    pub tls_config: Option<TlsConfig>,
    #[serde(rename = "httpTimeout")]
    pub http_timeout: Option<String>,
    pub node_cache_capable: bool,
    pub managed_resources: Vec<ManagedResource>,
    pub ignorable: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct TlsConfig {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    pub cert_data: String,
    pub key_data: String,
    pub ca_data: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ManagedResource {
    pub name: String,
    #[serde(default)]
    pub ignored_by_scheduler: bool,
}

/// Standard base64, with padding or without.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    let bytes: k8s_openapi::ByteString = serde_json::from_value(Value::from(text)).ok()?;
    Some(bytes.0)
}
