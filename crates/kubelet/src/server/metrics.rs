//! Metrics in Prometheus' text form, under upstream's names.
//!
//! `/metrics` counts what the server does and what runs; `/metrics/resource` is the summary of
//! [`super::stats`] in the form that metrics-server reads, `/metrics/cadvisor` the same once more, with more of it, and
//! `/metrics/slis` is what `/healthz` says.

mod cadvisor;
mod cpus;
mod machine;
mod memory;
mod pods;
mod requests;
mod resizes;
mod runtime;
mod starts;
mod storage;
mod tallies;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;

use super::stats::{CpuStats, MemoryStats, Summary, SwapStats, VolumeStats};
use crate::effects::ProbeCount;

pub(super) use cadvisor::cadvisor;
pub(super) use cpus::cpus;
pub(super) use machine::machine;
pub(super) use memory::memory;
pub(super) use pods::pods;
pub(super) use requests::Requests;
pub(super) use resizes::resizes;
pub(super) use runtime::runtime;
pub(super) use starts::{slis, starts};
pub(super) use storage::{csi, managed, storage};
pub(super) use tallies::tallies;

#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={:?}", escaped(value))).collect();
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{}}} {value}", labels.join(",")));
        }
    }

    /// A counter by one label.
    fn counter(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        counts: impl IntoIterator<Item = (impl AsRef<str>, u64)>,
    ) {
        self.family(name, "counter", help);
        for (value, count) in counts {
            self.sample(name, &[(label, value.as_ref())], count);
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        writeln!(self.0, "{line}").unwrap_or_default();
    }
}

/// Debug formatting escapes backslash, quote and newline as Prometheus wants them; other control
/// characters, which it would write in Rust's way, do not belong into labels.
fn escaped(value: &str) -> String {
    value.chars().filter(|c| !c.is_control()).collect()
}

/// `/metrics`.
pub(super) fn own(node: &str, version: &str, requests: &Requests, pods: &[Arc<Pod>]) -> String {
    let mut page = Page::default();
    page.family("kubernetes_build_info", "gauge", "[ALPHA] The version of this program.");
    page.sample("kubernetes_build_info", &[("git_version", version)], 1);
    page.family("kubelet_node_name", "gauge", "[ALPHA] The node's name. The count is always 1.");
    page.sample("kubelet_node_name", &[("node", node)], 1);
    let running = pods.iter().filter(|pod| phase(pod) == "Running").count();
    page.family("kubelet_running_pods", "gauge", "[ALPHA] Number of pods that have a running pod sandbox");
    page.sample("kubelet_running_pods", &[], running);
    page.family("kubelet_running_containers", "gauge", "[ALPHA] Number of containers currently running");
    for (state, count) in containers_by_state(pods) {
        page.sample("kubelet_running_containers", &[("container_state", state)], count);
    }
    requests.tell(&mut page);
    page.0
}

/// What `/metrics` says of claims' volumes. Several pods may have one; it is told once.
pub(super) fn volumes(all: &[VolumeStats]) -> String {
    let mut page = Page::default();
    let of: BTreeMap<(&str, &str), &VolumeStats> = all
        .iter()
        .filter_map(|v| v.pvc_ref.as_ref().map(|claim| ((claim.namespace.as_str(), claim.name.as_str()), v)))
        .collect();
    type Value = fn(&VolumeStats) -> Option<u64>;
    let families: [(&str, &str, Value); 7] = [
        ("available_bytes", "Number of available bytes in the volume", |v| v.fs.available_bytes),
        ("capacity_bytes", "Capacity in bytes of the volume", |v| v.fs.capacity_bytes),
        ("used_bytes", "Number of used bytes in the volume", |v| v.fs.used_bytes),
        ("inodes", "Maximum number of inodes in the volume", |v| v.fs.inodes),
        ("inodes_free", "Number of free inodes in the volume", |v| v.fs.inodes_free),
        ("inodes_used", "Number of used inodes in the volume", |v| v.fs.inodes_used),
        ("health_status_abnormal", "Whether the volume's driver finds something wrong with it, 0 or 1", |v| {
            v.volume_health_stats.map(|h| u64::from(h.abnormal))
        }),
    ];
    for (name, help, value) in families {
        let name = format!("kubelet_volume_stats_{name}");
        page.family(&name, "gauge", &format!("[ALPHA] {help}"));
        for ((namespace, claim), volume) in &of {
            if let Some(value) = value(volume) {
                page.sample(&name, &[("namespace", namespace), ("persistentvolumeclaim", claim)], value);
            }
        }
    }
    page.0
}

/// `/metrics/probes`.
pub(super) fn probes(counts: &[(ProbeCount, u64)]) -> String {
    let mut page = Page::default();
    page.family(
        "prober_probe_total",
        "counter",
        "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
    );
    for (probe, count) in counts {
        let labels = [
            ("container", probe.container.as_str()),
            ("namespace", probe.pod.namespace.as_str()),
            ("pod", probe.pod.name.as_str()),
            ("pod_uid", &*probe.pod.uid),
            ("probe_type", probe.kind),
            ("result", probe.result),
        ];
        page.sample("prober_probe_total", &labels, count);
    }
    page.0
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn containers_by_state(pods: &[Arc<Pod>]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::from([("created", 0), ("running", 0), ("exited", 0)]);
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()).flat_map(|status| {
        [&status.container_statuses, &status.init_container_statuses].into_iter().flatten().flatten()
    });
    for state in statuses.filter_map(|status| status.state.as_ref()) {
        let name = match (&state.running, &state.terminated) {
            (Some(_), _) => "running",
            (None, Some(_)) => "exited",
            (None, None) => "created",
        };
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// One thing whose use is measured.
struct Measured<'a> {
    labels: Vec<(&'static str, &'a str)>,
    start: Option<&'a MetaTime>,
    cpu: Option<&'a CpuStats>,
    memory: Option<&'a MemoryStats>,
    swap: Option<&'a SwapStats>,
}

/// `/metrics/resource`. Without a summary it says that reading failed, as upstream's does.
pub(super) fn resources(summary: Option<&Summary>) -> String {
    let mut page = Page::default();
    if let Some(summary) = summary {
        let node = &summary.node;
        let of_node = Measured {
            labels: Vec::new(),
            start: None,
            cpu: node.cpu.as_ref(),
            memory: node.memory.as_ref(),
            swap: node.swap.as_ref(),
        };
        let (mut of_pods, mut of_containers) = (Vec::new(), Vec::new());
        for pod in &summary.pods {
            let labels = vec![("namespace", pod.pod_ref.namespace.as_str()), ("pod", pod.pod_ref.name.as_str())];
            for container in &pod.containers {
                let mut labels = labels.clone();
                labels.insert(0, ("container", container.name.as_str()));
                of_containers.push(Measured {
                    labels,
                    start: container.start_time.as_ref(),
                    cpu: container.cpu.as_ref(),
                    memory: container.memory.as_ref(),
                    swap: container.swap.as_ref(),
                });
            }
            of_pods.push(Measured {
                labels,
                start: None,
                cpu: pod.cpu.as_ref(),
                memory: pod.memory.as_ref(),
                swap: pod.swap.as_ref(),
            });
        }
        group(&mut page, "node", &[of_node]);
        group(&mut page, "pod", &of_pods);
        group(&mut page, "container", &of_containers);
    }
    page.family(
        "scrape_error",
        "gauge",
        "[ALPHA] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    page.sample("scrape_error", &[], u8::from(summary.is_none()));
    page.family(
        "resource_scrape_error",
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    page.sample("resource_scrape_error", &[], u8::from(summary.is_none()));
    page.0
}

/// Nanoseconds as seconds, none of them lost.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// One family, of those whose value is known, each with the time when it was measured.
fn measured<'a, V: Display>(
    page: &mut Page,
    (name, kind, help): (&str, &str, &str),
    all: &[Measured<'a>],
    value: impl Fn(&Measured<'a>) -> Option<(V, &'a MetaTime)>,
) {
    page.family(name, kind, help);
    for one in all {
        if let Some((value, time)) = value(one) {
            page.sample(name, &one.labels, format_args!("{value} {}", time.0.as_millisecond()));
        }
    }
}

fn group(page: &mut Page, what: &str, all: &[Measured<'_>]) {
    let name = format!("{what}_cpu_usage_seconds_total");
    let help = format!("[STABLE] Cumulative cpu time consumed by the {what} in core-seconds");
    measured(page, (&name, "counter", &help), all, |one| {
        let cpu = one.cpu?;
        Some((seconds(cpu.usage_core_nano_seconds?), &cpu.time))
    });
    let name = format!("{what}_memory_working_set_bytes");
    let help = format!("[STABLE] Current working set of the {what} in bytes");
    measured(page, (&name, "gauge", &help), all, |one| {
        let memory = one.memory?;
        Some((memory.working_set_bytes?, &memory.time))
    });
    let name = format!("{what}_swap_usage_bytes");
    let help = format!("[ALPHA] Current swap usage of the {what} in bytes");
    measured(page, (&name, "gauge", &help), all, |one| {
        let swap = one.swap?;
        Some((swap.swap_usage_bytes?, &swap.time))
    });
    if what == "container" {
        let help = "[ALPHA] Current swap limit of the container in bytes";
        measured(page, ("container_swap_limit_bytes", "gauge", help), all, |one| {
            let swap = one.swap?;
            // A container without a limit has as much left as there are numbers.
            let limit = swap.swap_available_bytes?.saturating_add(swap.swap_usage_bytes.unwrap_or(0));
            Some((limit, &swap.time))
        });
        page.family(
            "container_start_time_seconds",
            "gauge",
            "[STABLE] Start time of the container since unix epoch in seconds",
        );
        for one in all {
            if let Some(start) = one.start {
                page.sample("container_start_time_seconds", &one.labels, start.0.as_second());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::fixture::pod_of;
    use crate::server::stats::{ContainerStats, NodeStats, PodReference, PodStats};
    use serde_json::json;

    #[test]
    fn counts() {
        let requests = Requests::default();
        let took = std::time::Duration::from_millis(300);
        requests.count("readwrite", &http::Method::GET, "pods", (200, took));
        requests.count("readwrite", &http::Method::GET, "pods", (200, took));
        requests.count("readwrite", &http::Method::PATCH, "other", (404, took));
        let pod = pod_of(json!({"metadata": {"name": "p"}, "status": {"phase": "Running", "containerStatuses": [
            {"name": "a", "state": {"running": {}}}, {"name": "b", "state": {"terminated": {"exitCode": 1}}}]}}));
        let page = own("n\"1", "v1", &requests, &[pod]);
        for line in [
            "kubelet_node_name{node=\"n\\\"1\"} 1",
            "kubelet_running_pods 1",
            "kubelet_running_containers{container_state=\"running\"} 1",
            "kubelet_running_containers{container_state=\"exited\"} 1",
            "kubelet_running_containers{container_state=\"created\"} 0",
            "kubelet_http_requests_total{code=\"200\",method=\"GET\",path=\"pods\",server_type=\"readwrite\"} 2",
            "kubelet_http_requests_total{code=\"404\",method=\"other\",path=\"other\",server_type=\"readwrite\"} 1",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
        }
        for (method, path, count) in [("GET", "pods", 2), ("other", "other", 1)] {
            let of = format!("long_running=\"false\",method=\"{method}\",path=\"{path}\",server_type=\"readwrite\"");
            for (bound, count) in [("0.005", 0), ("0.5", count)] {
                let line = format!("kubelet_http_requests_duration_seconds_bucket{{{of},le=\"{bound}\"}} {count}\n");
                assert!(page.contains(&line), "{line} is missing of\n{page}");
            }
        }
    }

    #[test]
    fn resources_of_all_levels() {
        let time = carrack_engine::Time::from_unix_s(7).meta();
        let cpu = |ns| Some(CpuStats { time: time.clone(), usage_nano_cores: None, usage_core_nano_seconds: Some(ns) });
        let memory = |bytes| {
            let none = MemoryStats {
                time: time.clone(),
                available_bytes: None,
                usage_bytes: None,
                working_set_bytes: None,
                rss_bytes: None,
                page_faults: None,
                major_page_faults: None,
            };
            Some(MemoryStats { working_set_bytes: Some(bytes), ..none })
        };
        let summary = Summary {
            node: NodeStats { node_name: "n".into(), cpu: cpu(1_500_000_001), ..NodeStats::default() },
            pods: vec![PodStats {
                pod_ref: PodReference { name: "p".into(), namespace: "ns".into(), uid: "u".into() },
                containers: vec![ContainerStats {
                    name: "c".into(),
                    start_time: Some(time.clone()),
                    cpu: cpu(3),
                    memory: memory(4),
                    rootfs: None,
                    logs: None,
                    swap: Some(SwapStats {
                        time: time.clone(),
                        swap_available_bytes: Some(6),
                        swap_usage_bytes: Some(2),
                    }),
                }],
                memory: memory(5),
                ..PodStats::default()
            }],
        };
        let page = resources(Some(&summary));
        for line in [
            "node_cpu_usage_seconds_total 1.500000001 7000",
            "pod_memory_working_set_bytes{namespace=\"ns\",pod=\"p\"} 5 7000",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"p\"} 0.000000003 7000",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 4 7000",
            "container_swap_usage_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 2 7000",
            "container_swap_limit_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 8 7000",
            "container_start_time_seconds{container=\"c\",namespace=\"ns\",pod=\"p\"} 7",
            "resource_scrape_error 0",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
        }
        assert!(resources(None).contains("\nresource_scrape_error 1\n"));
        let summary = serde_json::to_value(&summary).expect("encodes");
        assert_eq!(summary["pods"][0]["containers"][0]["memory"]["workingSetBytes"], 4);
        assert_eq!(summary["node"]["cpu"]["usageCoreNanoSeconds"], 1_500_000_001);
    }
}
