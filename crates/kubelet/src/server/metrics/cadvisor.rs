//! `/metrics/cadvisor`: what containers use, under the names of cAdvisor (`docs/storage/prometheus.md` there), by which most
//! dashboards ask. It is the summary of [`super::super::stats`] once more, with each container's id and image as the runtime has them.
//! cAdvisor's other families, of the kernel's inner life, are not there.

use std::collections::BTreeMap;

use super::{Page, seconds};
use crate::adapters::cgroups::Throttling;
use crate::runtime::{ContainerRecord, ContainerState, Resources, RuntimeSnapshot};
use crate::server::stats::{ContainerStats, FsStats, InterfaceStats, MemoryStats, PodStats, Summary};

/// What tells a container from others.
type Labels<'a> = Vec<(&'static str, &'a str)>;
/// A number of a container, and when it was read, in milliseconds.
type Value = fn(&ContainerStats) -> Option<(String, i64)>;
/// What is told of each container: a family's name, its kind, its help, labels of its own, and the number.
type Row = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)], Value);

fn cpu(c: &ContainerStats) -> Option<(String, i64)> {
    let (cpu, ns) = c.cpu.as_ref().and_then(|cpu| Some((cpu, cpu.usage_core_nano_seconds?)))?;
    Some((seconds(ns), cpu.time.0.as_millisecond()))
}

fn memory(c: &ContainerStats, field: fn(&MemoryStats) -> Option<u64>) -> Option<(String, i64)> {
    let memory = c.memory.as_ref()?;
    Some((field(memory)?.to_string(), memory.time.0.as_millisecond()))
}

fn disk(c: &ContainerStats, field: fn(&FsStats) -> Option<u64>) -> Option<(String, i64)> {
    let disk = c.rootfs.as_ref()?;
    Some((field(disk)?.to_string(), disk.time.0.as_millisecond()))
}

fn swap(c: &ContainerStats) -> Option<(String, i64)> {
    let swap = c.swap.as_ref()?;
    Some((swap.swap_usage_bytes?.to_string(), swap.time.0.as_millisecond()))
}

/// The page.
pub(in crate::server) fn cadvisor(
    summary: &Summary,
    runtime: &RuntimeSnapshot,
    throttling: &BTreeMap<String, Throttling>,
) -> String {
    let mut page = Page::default();
    let failures = "container_memory_failures_total";
    let counted = "Cumulative count of memory allocation failures.";
    let rows: [Row; 9] = [
        (
            "container_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed in seconds.",
            &[("cpu", "total")],
            cpu,
        ),
        ("container_memory_usage_bytes", "gauge", "Current memory usage in bytes, of all kinds.", &[], |c| {
            memory(c, |m| m.usage_bytes)
        }),
        ("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", &[], |c| {
            memory(c, |m| m.working_set_bytes)
        }),
        ("container_memory_rss", "gauge", "Size of RSS in bytes.", &[], |c| memory(c, |m| m.rss_bytes)),
        (failures, "counter", counted, &[("failure_type", "pgfault"), ("scope", "container")], |c| {
            memory(c, |m| m.page_faults)
        }),
        (failures, "counter", counted, &[("failure_type", "pgmajfault"), ("scope", "container")], |c| {
            memory(c, |m| m.major_page_faults)
        }),
        ("container_memory_swap", "gauge", "Container swap usage in bytes.", &[], swap),
        ("container_fs_usage_bytes", "gauge", "Number of bytes that the container has on its file system.", &[], |c| {
            disk(c, |f| f.used_bytes)
        }),
        ("container_fs_limit_bytes", "gauge", "Number of bytes that its file system has room for.", &[], |c| {
            disk(c, |f| f.capacity_bytes)
        }),
    ];
    let all = summary.pods.iter().flat_map(|pod| pod.containers.iter().map(move |c| (pod, c)));
    let with_records = all.map(|(pod, c)| {
        let record = record_of(pod, c, runtime);
        (of_container(pod, c, record), c, record)
    });
    let containers: Vec<_> = with_records.collect();
    let mut last = "";
    for (name, kind, help, own, value) in rows {
        if std::mem::replace(&mut last, name) != name {
            page.family(name, kind, help);
        }
        for (labels, container, _) in &containers {
            if let Some((value, at_ms)) = value(container) {
                let labels = [own, labels.as_slice()].concat();
                page.sample(name, &labels, format!("{value} {at_ms}"));
            }
        }
    }
    let name = "container_start_time_seconds";
    page.family(name, "gauge", "Start time of the container since unix epoch in seconds.");
    for (labels, container, _) in &containers {
        if let Some(start) = &container.start_time {
            page.sample(name, labels, start.0.as_second());
        }
    }
    throttled(
        &mut page,
        containers.iter().filter_map(|(labels, _, record)| Some((labels, throttling.get(&(*record)?.id)?))),
    );
    limits(&mut page, containers.iter().filter_map(|(labels, _, record)| Some((labels, (*record)?))));
    networks(&mut page, summary);
    let name = "container_scrape_error";
    page.family(name, "gauge", "1 if there was an error while getting container metrics, 0 otherwise.");
    page.sample(name, &[], 0);
    page.0
}

/// How often containers that have a quota of the CPUs had used it up, and for how long they were held back for that.
fn throttled<'a>(page: &mut Page, of: impl Iterator<Item = (&'a Labels<'a>, &'a Throttling)>) {
    let all: Vec<_> = of.collect();
    type Count = fn(&Throttling) -> String;
    let families: [(&str, &str, Count); 3] = [
        ("periods", "Number of elapsed enforcement period intervals.", |t| t.periods.to_string()),
        ("throttled_periods", "Number of throttled period intervals.", |t| t.throttled.to_string()),
        ("throttled_seconds", "Total time duration the container has been throttled.", |t| seconds(t.throttled_ns)),
    ];
    for (what, help, value) in families {
        let name = format!("container_cpu_cfs_{what}_total");
        page.family(&name, "counter", help);
        for (labels, throttling) in &all {
            page.sample(&name, labels, value(throttling));
        }
    }
}

/// What the runtime holds of the run that is told of.
fn record_of<'a>(
    pod: &PodStats,
    container: &ContainerStats,
    runtime: &'a RuntimeSnapshot,
) -> Option<&'a ContainerRecord> {
    let is_it = |r: &&ContainerRecord| {
        *r.pod.uid == *pod.pod_ref.uid && r.name == container.name && r.state == ContainerState::Running
    };
    runtime.containers.iter().find(is_it)
}

/// An amount of what a container may use, if it is told.
type Limit = fn(&Resources) -> Option<i64>;

/// What containers may use, where their runtime tells.
fn limits<'a>(page: &mut Page, of: impl Iterator<Item = (&'a Labels<'a>, &'a ContainerRecord)>) {
    let limited: Vec<_> = of.filter_map(|(labels, record)| Some((labels, record.size.actual.as_ref()?))).collect();
    // One that has no quota is not told to have one.
    let families: [(&str, &str, Limit); 4] = [
        ("container_spec_cpu_period", "CPU period of the container.", |r| Some(r.cpu_period_us)),
        ("container_spec_cpu_quota", "CPU quota of the container.", |r| Some(r.cpu_quota_us).filter(|us| *us > 0)),
        ("container_spec_cpu_shares", "CPU share of the container.", |r| Some(r.cpu_shares)),
        ("container_spec_memory_limit_bytes", "Memory limit for the container.", |r| Some(r.memory_limit_bytes)),
    ];
    for (name, help, value) in families {
        page.family(name, "gauge", help);
        for (labels, resources) in &limited {
            if let Some(value) = value(resources) {
                page.sample(name, labels, value);
            }
        }
    }
}

fn of_container<'a>(
    pod: &'a PodStats,
    container: &'a ContainerStats,
    record: Option<&'a ContainerRecord>,
) -> Labels<'a> {
    vec![
        ("container", container.name.as_str()),
        ("image", record.map_or("", |r| r.image.as_str())),
        ("name", record.map_or("", |r| r.id.as_str())),
        ("namespace", pod.pod_ref.namespace.as_str()),
        ("pod", pod.pod_ref.name.as_str()),
    ]
}

/// What went over the interfaces of pods.
fn networks(page: &mut Page, summary: &Summary) {
    type Count = fn(&InterfaceStats) -> Option<u64>;
    let families: [(&str, &str, Count); 4] = [
        ("receive_bytes", "bytes received", |i| i.rx_bytes),
        ("receive_errors", "errors encountered while receiving", |i| i.rx_errors),
        ("transmit_bytes", "bytes transmitted", |i| i.tx_bytes),
        ("transmit_errors", "errors encountered while transmitting", |i| i.tx_errors),
    ];
    for (what, words, count) in families {
        let name = format!("container_network_{what}_total");
        page.family(&name, "counter", &format!("Cumulative count of {words}"));
        let of_pods = summary.pods.iter().filter_map(|pod| Some((pod, pod.network.as_ref()?)));
        for (pod, network) in of_pods {
            for interface in &network.interfaces {
                let labels = [
                    ("interface", interface.name.as_str()),
                    ("namespace", pod.pod_ref.namespace.as_str()),
                    ("pod", pod.pod_ref.name.as_str()),
                ];
                if let Some(count) = count(interface) {
                    page.sample(&name, &labels, format!("{count} {}", network.time.0.as_millisecond()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{ContainerSize, PodRef};
    use crate::server::stats::{CpuStats, NetworkStats, PodReference};

    #[test]
    fn what_dashboards_ask_for_is_there() {
        let time = carrack_engine::Time::from_unix_s(7).meta();
        let memory = MemoryStats {
            time: time.clone(),
            available_bytes: None,
            usage_bytes: Some(6),
            working_set_bytes: Some(5),
            rss_bytes: None,
            page_faults: Some(3),
            major_page_faults: Some(0),
        };
        let cpu = CpuStats { time: time.clone(), usage_nano_cores: None, usage_core_nano_seconds: Some(1_500_000_001) };
        let container = ContainerStats {
            name: "c".into(),
            start_time: Some(time.clone()),
            cpu: Some(cpu),
            memory: Some(memory),
            ..ContainerStats::default()
        };
        let eth = InterfaceStats { name: "eth0".into(), rx_bytes: Some(9), ..InterfaceStats::default() };
        let network = NetworkStats { time, default: eth.clone(), interfaces: vec![eth] };
        let pod = PodStats {
            pod_ref: PodReference { name: "p".into(), namespace: "ns".into(), uid: "u".into() },
            containers: vec![container],
            network: Some(network),
            ..PodStats::default()
        };
        let record = |attempt: u32, state| ContainerRecord {
            id: format!("id{attempt}"),
            sandbox_id: "s".into(),
            pod: PodRef { namespace: "ns".into(), name: "p".into(), uid: "u".into() },
            name: "c".into(),
            attempt,
            state,
            created_at: carrack_engine::Time(0),
            started_at: None,
            image: "busybox".into(),
            image_ref: String::new(),
            hash: String::new(),
            round: 0,
            size: ContainerSize {
                made_with: None,
                actual: Some(Resources { cpu_shares: 512, memory_limit_bytes: 64, ..Resources::default() }),
            },
            user: None,
        };
        let containers = vec![record(0, ContainerState::Created), record(1, ContainerState::Running)];
        let runtime = RuntimeSnapshot { containers, ..RuntimeSnapshot::default() };
        let held_back = Throttling { periods: 9, throttled: 2, throttled_ns: 2_500_000_000 };
        let throttling = BTreeMap::from([("id1".to_owned(), held_back), ("id0".to_owned(), held_back)]);
        let page = cadvisor(&Summary { pods: vec![pod], ..Summary::default() }, &runtime, &throttling);
        let of = "container=\"c\",image=\"busybox\",name=\"id1\",namespace=\"ns\",pod=\"p\"";
        for line in [
            format!("container_cpu_usage_seconds_total{{cpu=\"total\",{of}}} 1.500000001 7000"),
            format!("container_memory_usage_bytes{{{of}}} 6 7000"),
            format!("container_memory_working_set_bytes{{{of}}} 5 7000"),
            format!("container_memory_failures_total{{failure_type=\"pgfault\",scope=\"container\",{of}}} 3 7000"),
            format!("container_memory_failures_total{{failure_type=\"pgmajfault\",scope=\"container\",{of}}} 0 7000"),
            format!("container_start_time_seconds{{{of}}} 7"),
            format!("container_cpu_cfs_periods_total{{{of}}} 9"),
            format!("container_cpu_cfs_throttled_periods_total{{{of}}} 2"),
            format!("container_cpu_cfs_throttled_seconds_total{{{of}}} 2.500000000"),
            "container_scrape_error 0".into(),
            format!("container_spec_cpu_shares{{{of}}} 512"),
            format!("container_spec_memory_limit_bytes{{{of}}} 64"),
            "container_network_receive_bytes_total{interface=\"eth0\",namespace=\"ns\",pod=\"p\"} 9 7000".into(),
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
        }
        for family in ["container_memory_rss{", "container_spec_cpu_quota{"] {
            assert!(!page.contains(family), "what is not known is left out:\n{page}");
        }
    }
}
