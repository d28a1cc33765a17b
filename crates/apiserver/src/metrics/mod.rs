//! What the server tells of itself under `/metrics`, by upstream's names.
//!
//! ```text
//!   request ─► Started ─► counted, timed ─► /metrics: registry, store, process
//!   watch ───► Watching (lives as long as its stream)
//! ```
//!
//! Upstream: `k8s.io/apiserver/pkg/endpoints/metrics` and `k8s.io/apiserver/pkg/storage/etcd3/metrics`.

mod access;
mod admission;
mod answered;
mod cel;
mod conversion;
mod filters;
mod flow;
mod health;
mod impersonation;
mod lists;
mod pod_security;
mod process;
mod store;
mod terminated;
mod text;

use std::sync::atomic::{AtomicBool, Ordering};

use carrack_schema::table::ResourceInfo;
use jiff::SignedDuration;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::env::Env;
use crate::route::RequestInfo;
use crate::status::qualified;

pub(crate) use access::Known;
pub(crate) use admission::{Called, Step};
pub(crate) use conversion::{ConversionMetrics, Failure};
pub(crate) use flow::Counted;
pub(crate) use health::Told;
pub(crate) use lists::Cost;
pub(crate) use pod_security::PodSecurityMetrics;
pub use process::ProcessStats;
pub(crate) use store::Metered;

/// Bounds from a millisecond to sixteen seconds, each twice the one before.
const DOUBLING_SECONDS: [f64; 15] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
const EVENT_BYTES: [f64; 8] = [1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0];

/// How long something took, as histograms have it: a clock that was set back makes nothing of it.
fn seconds(elapsed: SignedDuration) -> f64 {
    elapsed.as_secs_f64().max(0.0)
}

/// A histogram with these bounds.
#[derive(Clone)]
pub(crate) struct Bounds(&'static [f64]);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// What was asked for.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    group: String,
    version: String,
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DeprecatedLabels {
    group: String,
    version: String,
    resource: String,
    subresource: String,
    /// In which release it goes; no kind here says so.
    removed_release: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct InFlightLabels {
    request_kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BuildLabels {
    major: &'static str,
    minor: &'static str,
    git_version: &'static str,
    platform: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AnsweredLabels {
    code: u32,
}

/// What is counted of stored objects.
pub(crate) struct ObjectLabels {
    pub group: String,
    pub resource: String,
}

/// What is not counted as it happens, but looked up when somebody asks.
pub(crate) struct Now {
    /// How many objects of each resource are stored.
    pub objects: Vec<(ObjectLabels, usize)>,
    pub size_bytes: Option<u64>,
    /// Checks of health.
    pub checks: Vec<health::Told>,
    /// APIServices, and whether what they stand for is available.
    pub api_services: Vec<(String, bool)>,
}

/// All of a server's metrics.
pub(crate) struct Metrics {
    registry: Registry,
    answered: answered::Answered,
    /// Of requests that only read, and of others.
    in_flight: [Gauge; 2],
    long_running: Family<RequestLabels, Gauge>,
    watch_events: Family<KindLabels, Counter>,
    watch_event_sizes: Family<KindLabels, Histogram, Bounds>,
    deprecated: Family<DeprecatedLabels, Gauge>,
    pub(crate) broken_handshakes: Counter,
    pub(crate) access: access::AccessMetrics,
    pub(crate) admission: admission::AdmissionMetrics,
    pub(crate) conversion: ConversionMetrics,
    pub(crate) cel: cel::CelMetrics,
    pub(crate) filters: filters::FilterMetrics,
    pub(crate) flow: flow::FlowMetrics,
    pub(crate) health: health::HealthMetrics,
    pub(crate) impersonation: impersonation::ImpersonationMetrics,
    translated: Family<AnsweredLabels, Counter>,
    tunnelled: Family<AnsweredLabels, Counter>,
    pub(crate) lists: lists::ListMetrics,
    pub(crate) store: store::StoreMetrics,
    pub(crate) terminated: terminated::TerminatedMetrics,
}

/// A request that is being answered.
pub(crate) struct Started {
    labels: RequestLabels,
    dry_run: &'static str,
    at: jiff::Timestamp,
    in_flight: Option<Gauge>,
    /// Whether what the path names is served at all.
    pub(crate) known: AtomicBool,
}

/// A watch that runs; dropped with its stream.
pub(crate) struct Watching {
    running: Gauge,
    events: Counter,
    sizes: Histogram,
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(gauge) = &self.in_flight {
            gauge.dec();
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.running.dec();
    }
}

impl Watching {
    /// An event of so many bytes goes out.
    pub(crate) fn event(&self, bytes: usize) {
        self.events.inc();
        self.sizes.observe(bytes as f64);
    }
}

/// The verb as upstream reports it: HTTP's where there is one.
fn reported(verb: &'static str) -> &'static str {
    match verb {
        "create" | "post" => "POST",
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "HEAD",
        "options" => "OPTIONS",
        _ => "other",
    }
}

/// Requests that take as long as their clients like are no load in themselves.
pub(crate) fn is_long_running(info: &RequestInfo) -> bool {
    let Some(resource) = &info.resource else { return false };
    info.verb == "watch"
        || matches!(resource.subresource.as_deref(), Some("attach" | "exec" | "log" | "portforward" | "proxy"))
}

fn labels(info: &RequestInfo, verb: &'static str) -> RequestLabels {
    let found = info.resource.as_ref();
    let scope = match found {
        None => "",
        Some(resource) if resource.name.is_some() => "resource",
        Some(resource) if resource.namespace.is_some() => "namespace",
        Some(_) => "cluster",
    };
    RequestLabels {
        verb,
        group: found.map(|r| r.group.clone()).unwrap_or_default(),
        version: found.map(|r| r.version.clone()).unwrap_or_default(),
        resource: found.map(|r| r.resource.clone()).unwrap_or_default(),
        subresource: found.and_then(|r| r.subresource.clone()).unwrap_or_default(),
        scope,
        component: "apiserver",
    }
}

impl Metrics {
    /// Of a server with these admission plugins, in their order; what one of them counts by itself is told, too.
    pub(crate) fn new(plugins: impl Iterator<Item = &'static str>, pod_security: &PodSecurityMetrics) -> Self {
        let family = |bounds| Family::new_with_constructor(Bounds(bounds));
        let in_flight: Family<InFlightLabels, Gauge> = Family::default();
        let mut metrics = Self {
            registry: Registry::default(),
            answered: answered::Answered::new(),
            in_flight: ["readOnly", "mutating"]
                .map(|request_kind| in_flight.get_or_create_owned(&InFlightLabels { request_kind })),
            long_running: Family::default(),
            watch_events: Family::default(),
            watch_event_sizes: family(&EVENT_BYTES),
            deprecated: Family::default(),
            broken_handshakes: Counter::default(),
            access: access::AccessMetrics::new(),
            admission: admission::AdmissionMetrics::new(plugins),
            conversion: ConversionMetrics::new(),
            cel: cel::CelMetrics::new(),
            filters: filters::FilterMetrics::new(),
            flow: flow::FlowMetrics::new(),
            health: health::HealthMetrics::new(),
            impersonation: impersonation::ImpersonationMetrics::new(),
            translated: Family::default(),
            tunnelled: Family::default(),
            lists: lists::ListMetrics::default(),
            store: store::StoreMetrics::new(),
            terminated: terminated::TerminatedMetrics::default(),
        };
        let registry = &mut metrics.registry;
        metrics.answered.register(registry);
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests that are being answered now, by kind",
            in_flight,
        );
        registry.register(
            "apiserver_longrunning_requests",
            "Watches and other requests that last that are open now",
            metrics.long_running.clone(),
        );
        registry.register(
            "apiserver_watch_events",
            "Number of events sent in watch clients",
            metrics.watch_events.clone(),
        );
        registry.register(
            "apiserver_watch_events_sizes",
            "Watch event size distribution in bytes",
            metrics.watch_event_sizes.clone(),
        );
        registry.register(
            "apiserver_requested_deprecated_apis",
            "Deprecated APIs that have been requested",
            metrics.deprecated.clone(),
        );
        registry.register(
            "apiserver_tls_handshake_errors",
            "Number of connections whose TLS handshake failed",
            metrics.broken_handshakes.clone(),
        );
        registry.register(
            "apiserver_stream_translator_requests",
            "Number of requests for exec and attach by WebSockets of version 5, which become SPDY",
            metrics.translated.clone(),
        );
        registry.register(
            "apiserver_stream_tunnel_requests",
            "Number of requests for port-forward by SPDY inside of WebSockets",
            metrics.tunnelled.clone(),
        );
        metrics.access.register(registry);
        metrics.impersonation.register(registry);
        metrics.admission.register(registry);
        pod_security.register(registry);
        metrics.conversion.register(registry);
        metrics.cel.register(registry);
        metrics.filters.register(registry);
        metrics.flow.register(registry);
        metrics.lists.register(registry);
        metrics.terminated.register(registry);
        metrics.store.register(registry);
        let build: Family<BuildLabels, Gauge> = Family::default();
        let of_this = BuildLabels {
            major: crate::nonresource::MAJOR,
            minor: crate::nonresource::MINOR,
            git_version: crate::nonresource::GIT_VERSION,
            platform: "linux/amd64",
        };
        build.get_or_create(&of_this).set(1);
        registry.register("kubernetes_build_info", "Versions of this server", build);
        metrics
    }

    /// A request has come.
    pub(crate) fn start(&self, info: &RequestInfo, dry_run: bool, env: &dyn Env) -> Started {
        let in_flight = (!is_long_running(info)).then(|| {
            let read_only = matches!(info.verb, "get" | "list" | "watch" | "head" | "options");
            let [reading, writing] = &self.in_flight;
            let gauge = if read_only { reading } else { writing }.clone();
            gauge.inc();
            gauge
        });
        let dry_run = if dry_run { "All" } else { "" };
        let labels = labels(info, reported(info.verb));
        Started { labels, dry_run, at: env.now(), in_flight, known: AtomicBool::new(false) }
    }

    /// A request for a deprecated version has come.
    pub(crate) fn deprecated(&self, row: &ResourceInfo, version: &str, subresource: &str) {
        let labels = DeprecatedLabels {
            group: row.group.to_string(),
            version: version.to_owned(),
            resource: row.plural.to_string(),
            subresource: subresource.to_owned(),
            removed_release: "",
        };
        self.deprecated.get_or_create(&labels).set(1);
    }

    /// It has been answered with this status and, if known, so many bytes; others were waited for so long.
    pub(crate) fn end(
        &self,
        mut started: Started,
        code: u16,
        bytes: Option<usize>,
        elsewhere: SignedDuration,
        env: &dyn Env,
    ) {
        let labels = &mut started.labels;
        if !started.known.load(Ordering::Relaxed) {
            // What does not exist could be named in any number of ways, and would fill the memory.
            for text in [&mut labels.group, &mut labels.version, &mut labels.resource, &mut labels.subresource] {
                text.clear();
            }
        } else if matches!(code, 404 | 405) {
            // Nor can what is no subresource: a HEAD is refused before anybody looks.
            labels.subresource.clear();
        }
        // How long a watch lasts says nothing about the server.
        let took = started.in_flight.is_some().then(|| {
            let elapsed = env.now().duration_since(started.at);
            answered::Took { elapsed, own: elapsed.saturating_sub(elsewhere), bytes }
        });
        self.answered.count(labels, (code, started.dry_run), took);
    }

    /// A request for streams that are translated, or tunnelled, has been answered so.
    pub(crate) fn streamed(&self, tunnelled: bool, code: u16) {
        let family = if tunnelled { &self.tunnelled } else { &self.translated };
        family.get_or_create(&AnsweredLabels { code: code.into() }).inc();
    }

    /// A watch begins.
    pub(crate) fn watch(&self, row: &ResourceInfo, version: &str, info: &crate::route::ResourceRequest) -> Watching {
        let kind =
            KindLabels { group: row.group.to_string(), version: version.to_owned(), resource: row.plural.to_string() };
        let labels = RequestLabels {
            verb: "WATCH",
            group: kind.group.clone(),
            version: kind.version.clone(),
            resource: kind.resource.clone(),
            subresource: String::new(),
            scope: match (&info.name, &info.namespace) {
                (Some(_), _) => "resource",
                (None, Some(_)) => "namespace",
                (None, None) => "cluster",
            },
            component: "apiserver",
        };
        let running = self.long_running.get_or_create_owned(&labels);
        running.inc();
        Watching {
            running,
            events: self.watch_events.get_or_create_owned(&kind),
            sizes: self.watch_event_sizes.get_or_create_owned(&kind),
        }
    }

    /// Everything, in Prometheus' text format 0.0.4.
    pub(crate) fn text(&self, now: &Now, process: Option<ProcessStats>) -> String {
        let Now { objects, size_bytes, checks, api_services } = now;
        let mut out = text::encoded(&self.registry);
        // Under its former name, too, which upstream keeps for a while.
        let former = objects.iter().map(|(of, count)| (vec![("resource", qualified(&of.group, &of.resource))], *count));
        text::family(&mut out, "apiserver_storage_objects", "gauge", "Number of stored objects by resource", former);
        let objects = objects
            .iter()
            .map(|(of, count)| (vec![("group", of.group.clone()), ("resource", of.resource.clone())], *count));
        text::family(&mut out, "apiserver_resource_objects", "gauge", "Number of stored objects by resource", objects);
        if let Some(bytes) = size_bytes {
            let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
            // Upstream numbers the stores that it has.
            let size = [(vec![("storage_cluster_id", "etcd-0".to_owned())], bytes)].into_iter();
            text::family(&mut out, "apiserver_storage_size_bytes", "gauge", "Bytes that the store takes on disk", size);
        }
        health::gauges(&mut out, checks);
        let services =
            api_services.iter().map(|(name, is_there)| (vec![("name", name.clone())], usize::from(!is_there)));
        let help = "Whether an APIService is not available";
        text::family(&mut out, "aggregator_unavailable_apiservice", "gauge", help, services);
        if let Some(process) = process {
            process.write(&mut out);
        }
        out
    }
}
