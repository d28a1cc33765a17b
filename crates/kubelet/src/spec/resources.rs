//! CPU, memory and hugepage limits as the kernel takes them
//! (kubernetes pkg/kubelet/cm/helpers_linux.go, pkg/kubelet/qos/policy.go for the values).

use std::collections::{BTreeMap, BTreeSet};

use carrack_types::qos;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::pod::{self, ContainerKind, spec};
use crate::amount::{self, Amounts};
use crate::config::NodeConfig;
use crate::runtime::{HostFacts, PodCgroup, Resources};

const PERIOD_US: i64 = 100_000;
/// The largest quota that the kernel takes (`MAX_BW` in its `kernel/sched`). A pod's group that is refused a larger one would not be
/// made, and the pod would run outside of all that its node bounds.
const MAX_QUOTA_US: i64 = (1 << 44) - 1;

fn shares(milli_cpu: i128) -> i64 {
    i64::try_from(milli_cpu * 1024 / 1000).unwrap_or(262_144).clamp(2, 262_144)
}

fn quota_us(milli_cpu: i128) -> i64 {
    if milli_cpu <= 0 {
        return 0;
    }
    // The kernel takes no quota under 1 ms.
    i64::try_from(milli_cpu * i128::from(PERIOD_US) / 1000).unwrap_or(i64::MAX).clamp(1000, MAX_QUOTA_US)
}

/// Whole bytes: a part of one is one, as a limit of none would be no limit.
fn whole_bytes(milli: i128) -> i64 {
    i64::try_from((milli + 999).div_euclid(1000)).unwrap_or(i64::MAX)
}

fn bytes(amounts: &Amounts, name: &str) -> i64 {
    amounts.get(name).map_or(0, |m| whole_bytes(*m))
}

/// What somebody asks for; limits stand in for requests that are not given.
fn asked(resources: Option<&ResourceRequirements>) -> Amounts {
    resources.map(|r| amount::of_list(&carrack_types::pod::asked_by(r))).unwrap_or_default()
}

fn limits_of(resources: Option<&ResourceRequirements>) -> Amounts {
    amount::amounts(resources.and_then(|r| r.limits.as_ref()))
}

/// Score adjustment: what is guaranteed dies last, what promised nothing dies first.
#[must_use]
pub fn oom_score_adj(pod: &Pod, memory_request_bytes: i64, node_memory_bytes: u64) -> i64 {
    if matches!(pod::spec(pod).priority_class_name.as_deref(), Some("system-node-critical")) {
        return -997;
    }
    match pod::qos_class(pod) {
        "Guaranteed" => -997,
        "BestEffort" => 1000,
        _ => {
            let node = i64::try_from(node_memory_bytes).unwrap_or(i64::MAX).max(1);
            let share = i64::try_from(i128::from(memory_request_bytes) * 1000 / i128::from(node)).unwrap_or(1000);
            (1000 - share).clamp(3, 999)
        }
    }
}

/// The memory that counts for a container's score: of a sidecar at least as much as of the regular container that requests
/// least, so that it is not killed before those that need it.
fn memory_for_score(pod: &Pod, c: &Container, own_bytes: i64) -> i64 {
    let is_sidecar = pod::init_containers(pod).any(|(kind, s)| kind == ContainerKind::Sidecar && s.name == c.name);
    let request = |c: &Container| bytes(&asked(c.resources.as_ref()), "memory");
    let least = spec(pod).containers.iter().map(request).min().filter(|_| is_sidecar);
    own_bytes.max(least.unwrap_or(0)).saturating_add(share_of_pod(pod))
}

/// What each container has of the memory that its pod as a whole requests beyond what its containers do, in bytes (upstream's
/// `remainingPodMemReqPerContainer`, `pkg/kubelet/qos/policy.go`).
fn share_of_pod(pod: &Pod) -> i64 {
    let spec = spec(pod);
    let whole = bytes(&asked(qos::own(spec)), "memory");
    if whole <= 0 {
        return 0;
    }
    let alone = PodSpec { resources: None, overhead: None, ..spec.clone() };
    let of_containers = bytes(&amount::of_list(&carrack_types::pod::requests_of(&alone)), "memory");
    let count = spec.containers.len() + spec.init_containers.iter().flatten().count();
    (whole - of_containers).max(0) / i64::try_from(count.max(1)).unwrap_or(i64::MAX)
}

/// The same as the node has it: without a quota of the CPUs, or over another period.
#[must_use]
pub fn of_config(limits: Resources, config: &NodeConfig) -> Resources {
    if !config.cpu_quota {
        return without_quota(limits);
    }
    let period_us = i64::try_from(config.cpu_quota_period.as_micros()).unwrap_or(PERIOD_US);
    if limits.cpu_quota_us == 0 || period_us == PERIOD_US {
        return limits;
    }
    let quota_us = i128::from(limits.cpu_quota_us) * i128::from(period_us) / i128::from(PERIOD_US);
    let quota_us = i64::try_from(quota_us).unwrap_or(MAX_QUOTA_US).clamp(1000, MAX_QUOTA_US);
    Resources { cpu_period_us: period_us, cpu_quota_us: quota_us, ..limits }
}

/// A pod's own group as the node has it.
#[must_use]
pub fn of_node(cgroup: PodCgroup, config: &NodeConfig) -> PodCgroup {
    let resources = of_config(cgroup.resources, config);
    PodCgroup { resources: Resources { pids: config.pod_pids, ..resources }, ..cgroup }
}

/// Limits of one container.
#[must_use]
pub fn of_container(pod: &Pod, c: &Container, node_memory_bytes: u64) -> Resources {
    let requests = asked(c.resources.as_ref());
    // Who has no limit has that of the whole pod.
    let mut limits = limits_of(spec(pod).resources.as_ref());
    limits.retain(|name, _| qos::may_be_of_pod(name));
    limits.extend(limits_of(c.resources.as_ref()));
    let cpu_limit = limits.get("cpu").copied().unwrap_or(0);
    Resources {
        cpu_period_us: if cpu_limit > 0 { PERIOD_US } else { 0 },
        cpu_quota_us: quota_us(cpu_limit),
        cpu_shares: shares(requests.get("cpu").copied().unwrap_or(0)),
        memory_limit_bytes: bytes(&limits, "memory"),
        oom_score_adj: oom_score_adj(pod, memory_for_score(pod, c, bytes(&requests, "memory")), node_memory_bytes),
        hugepages: hugepages(&limits),
        cpus: String::new(),
        memory_nodes: String::new(),
        pids: None,
        swap_for_bytes: 0,
        dies_whole: false,
    }
}

/// The memory in proportion to which a container may use the node's swap, in bytes, where containers may have some
/// (`LimitedSwap`; upstream's `GetContainerSwapBehavior`): what it requests, if that is less than its limit, of a pod that is
/// Burstable and that the node can do without.
#[must_use]
pub fn swap_for(pod: &Pod, c: &Container) -> i64 {
    let resources = c.resources.as_ref();
    let (request, limit) = (bytes(&asked(resources), "memory"), bytes(&limits_of(resources), "memory"));
    let may = request != limit && pod::qos_class(pod) == "Burstable" && !pod::is_critical(pod);
    if may { request } else { 0 }
}

/// The same, with as much time on the CPUs as there is.
#[must_use]
pub fn without_quota(limits: Resources) -> Resources {
    Resources { cpu_period_us: 0, cpu_quota_us: 0, ..limits }
}

fn hugepages(limits: &Amounts) -> BTreeMap<String, u64> {
    limits
        .iter()
        .filter_map(|(name, m)| {
            let size = amount::units(&k8s_openapi::apimachinery::pkg::api::resource::Quantity(
                name.strip_prefix("hugepages-")?.to_owned(),
            ));
            Some((hugepage_name(u64::try_from(size).ok()?), u64::try_from(m / 1000).ok()?))
        })
        .collect()
}

/// The size in bytes of the pages of an emptyDir of a medium (upstream's `getPageSizeMountOption`): what its name says, if a
/// container asks for such pages; else the one size that containers ask for.
///
/// # Errors
/// What is wrong with the medium, for the pod's events.
pub fn volume_page(pod: &Pod, medium: &str) -> Result<u64, String> {
    let Some(rest) = medium.strip_prefix("HugePages") else {
        return Err(format!("has an unsupported medium {medium}"));
    };
    let size = |text: &str| u64::try_from(amount::units(&Quantity(text.to_owned()))).ok().filter(|size| *size > 0);
    let containers = spec(pod).containers.iter().chain(spec(pod).init_containers.iter().flatten());
    let resources = containers.filter_map(|c| c.resources.as_ref());
    let lists = resources.flat_map(|r| r.requests.iter().chain(&r.limits));
    let asked: BTreeSet<u64> =
        lists.flat_map(BTreeMap::keys).filter_map(|name| size(name.strip_prefix("hugepages-")?)).collect();
    match (rest.strip_prefix('-').map(size), asked.iter().next()) {
        (Some(Some(named)), _) if asked.contains(&named) => Ok(named),
        (Some(_), _) => Err(format!("has the medium {medium}, and no container asks for pages of that size")),
        (None, Some(only)) if rest.is_empty() && asked.len() == 1 => Ok(*only),
        (None, None) if rest.is_empty() => {
            Err(format!("has the medium {medium}, and no container asks for huge pages"))
        }
        (None, _) if rest.is_empty() => {
            Err(format!("has the medium {medium}, and containers ask for pages of several sizes"))
        }
        (None, _) => Err(format!("has an unsupported medium {medium}")),
    }
}

/// A page size in the notation of the hugetlb cgroup: `2MB`, `1GB`.
#[must_use]
pub fn hugepage_name(size_bytes: u64) -> String {
    match size_bytes {
        s if s >= 1 << 30 => format!("{}GB", s >> 30),
        s if s >= 1 << 20 => format!("{}MB", s >> 20),
        s => format!("{}KB", s >> 10),
    }
}

/// The pod's own control group with the limits that hold for all of it: a CPU or memory limit only
/// when every container has one.
#[must_use]
pub fn of_pod(pod: &Pod, root: &str) -> PodCgroup {
    let qos = pod::qos_class(pod);
    let path = match qos {
        "Guaranteed" => format!("/{root}/pod{}", pod::uid(pod)),
        "BestEffort" => format!("/{root}/besteffort/pod{}", pod::uid(pod)),
        _ => format!("/{root}/burstable/pod{}", pod::uid(pod)),
    };
    let whole = limits_of(spec(pod).resources.as_ref());
    let overhead = amount::amounts(spec(pod).overhead.as_ref());
    // As much as those have together that run at the same time: an init container and the sidecars that began before it, too.
    let together = amount::of_list(&carrack_types::pod::limits(pod));
    let has = |c: &Container, name: &str| {
        let limit = c.resources.as_ref().and_then(|r| r.limits.as_ref()?.get(name)).and_then(amount::milli);
        limit.is_some_and(|milli| milli > 0)
    };
    let without_overhead = |name: &str| -> i128 {
        if let Some(own) = whole.get(name).filter(|own| **own > 0) {
            return *own;
        }
        let mut containers = spec(pod).containers.iter().chain(spec(pod).init_containers.iter().flatten());
        if containers.all(|c| has(c, name)) { together.get(name).copied().unwrap_or(0) } else { 0 }
    };
    // What is not limited stays so.
    let limit = |name: &str| match without_overhead(name) {
        0 => 0,
        limit => limit + overhead.get(name).unwrap_or(&0),
    };
    let cpu_limit = limit("cpu");
    let requests = pod::requests(pod);
    PodCgroup {
        path,
        resources: Resources {
            cpu_period_us: if cpu_limit > 0 { PERIOD_US } else { 0 },
            cpu_quota_us: quota_us(cpu_limit),
            cpu_shares: shares(requests.get("cpu").copied().unwrap_or(0)),
            memory_limit_bytes: whole_bytes(limit("memory")),
            oom_score_adj: 0,
            hugepages: BTreeMap::new(),
            cpus: String::new(),
            memory_nodes: String::new(),
            pids: None,
            swap_for_bytes: 0,
            dies_whole: false,
        },
    }
}

/// The groups that pods are in: all of them, and those of the classes that have one. `burstable` is what Burstable pods
/// request of the CPUs, in thousandths.
#[must_use]
pub fn groups(config: &NodeConfig, host: &HostFacts, burstable: i128) -> Vec<PodCgroup> {
    let root = &config.cgroup_root;
    let kept = |name: &str| config.reserved.get(name).copied().filter(|_| config.enforce_pods).unwrap_or(0);
    let memory = match kept("memory") / 1000 {
        // What nothing is kept back of needs no bound.
        0 => 0,
        kept => i64::try_from(i128::from(host.memory_bytes) - kept).unwrap_or(0).max(0),
    };
    let pids = match kept("pid") / 1000 {
        0 => None,
        kept => u64::try_from(i128::from(host.pids_max) - kept).ok().filter(|left| *left > 0),
    };
    let group = |path: String, milli_cpu: i128, memory_limit_bytes: i64| PodCgroup {
        path,
        resources: Resources { cpu_shares: shares(milli_cpu), memory_limit_bytes, ..Resources::default() },
    };
    let all = group(format!("/{root}"), i128::from(host.cpus) * 1000 - kept("cpu"), memory);
    vec![
        PodCgroup { resources: Resources { pids, ..all.resources }, ..all },
        group(format!("/{root}/burstable"), burstable, 0),
        group(format!("/{root}/besteffort"), 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_translate() {
        for (resources, expected) in [
            (json!({}), (0, 0, 2, 0, 1000)),
            (json!({"limits": {"cpu": "500m", "memory": "1Gi"}}), (100_000, 50_000, 512, 1 << 30, -997)),
            (json!({"requests": {"cpu": "2", "memory": "1Gi"}}), (0, 0, 2048, 0, 750)),
            (json!({"limits": {"cpu": "1m"}}), (100_000, 1000, 2, 0, 999)),
            // More than the kernel takes, and less than a byte.
            (
                json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "1E", "memory": "1m"}}),
                (100_000, (1 << 44) - 1, 2, 1, 999),
            ),
        ] {
            let pod: Pod = carrack_types::json::from_value(
                json!({"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "a", "resources": resources}]}}),
            )
            .unwrap();
            let r = of_container(&pod, &pod::spec(&pod).containers[0], 4 << 30);
            assert_eq!(
                (r.cpu_period_us, r.cpu_quota_us, r.cpu_shares, r.memory_limit_bytes, r.oom_score_adj),
                expected,
                "{resources}"
            );
        }
    }

    #[test]
    fn who_may_swap() {
        let memory = |request: &str, limit: &str| json!({"requests": {"memory": request}, "limits": {"memory": limit}});
        for (resources, priority, expected) in [
            (memory("1Gi", "2Gi"), 0, 1 << 30),
            (json!({"requests": {"memory": "1Gi"}}), 0, 1 << 30),
            (memory("1Gi", "1Gi"), 0, 0),
            (json!({"limits": {"memory": "1Gi"}}), 0, 0),
            (json!({"requests": {"cpu": "1"}}), 0, 0),
            (json!({}), 0, 0),
            (memory("1Gi", "2Gi"), 2_000_000_000, 0),
        ] {
            let spec = json!({"priority": priority, "containers": [{"name": "a", "resources": resources}]});
            let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap();
            assert_eq!(swap_for(&pod, &pod::spec(&pod).containers[0]), expected, "{resources} {priority}");
        }
    }

    #[test]
    fn a_whole_pod_has_limits() {
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"uid": "u"}, "spec": {
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "500m"}}}]}}))
        .unwrap();
        let limits = |r: &Resources| (r.cpu_quota_us, r.memory_limit_bytes);
        assert_eq!(limits(&of_pod(&pod, "kubepods").resources), (200_000, 1 << 30));
        let mut heavier = pod.clone();
        heavier.spec.as_mut().unwrap().overhead = Some([("cpu".to_owned(), Quantity("100m".into()))].into());
        assert_eq!(limits(&of_pod(&heavier, "kubepods").resources), (210_000, 1 << 30));
        let of = |n: usize| limits(&of_container(&pod, &spec(&pod).containers[n], 4 << 30));
        assert_eq!([of(0), of(1)], [(200_000, 1 << 30), (50_000, 1 << 30)]);
        // Each container has a quota that the kernel takes, and both together would not.
        let large = json!({"limits": {"cpu": "100M", "memory": "500m"}});
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"uid": "u"}, "spec": {
            "containers": [{"name": "a", "resources": large}, {"name": "b", "resources": large}]}}))
        .unwrap();
        assert_eq!(limits(&of_container(&pod, &spec(&pod).containers[0], 4 << 30)), (10_000_000_000_000, 1));
        assert_eq!(limits(&of_pod(&pod, "kubepods").resources), (MAX_QUOTA_US, 1));
    }

    #[test]
    fn a_pod_is_bounded_by_what_its_containers_have_at_a_time() {
        let container = |name: &str, memory: &str| json!({"name": name, "resources": {"limits": {"memory": memory}}});
        let sidecar = |name: &str, memory: &str| {
            let mut sidecar = container(name, memory);
            sidecar["restartPolicy"] = "Always".into();
            sidecar
        };
        for (init, expected_gib) in [
            (json!([]), 1),
            (json!([container("i", "3Gi")]), 3),
            (json!([sidecar("s", "1Gi")]), 2),
            // It runs beside the sidecar that began before it, and not beside the one after it.
            (json!([sidecar("s", "1Gi"), container("i", "3Gi")]), 4),
            (json!([container("i", "3Gi"), sidecar("s", "1Gi")]), 3),
            (json!([sidecar("s", "1Gi"), {"name": "i"}]), 0),
        ] {
            let spec = json!({"initContainers": init, "containers": [container("c", "1Gi")]});
            let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap();
            assert_eq!(of_pod(&pod, "kubepods").resources.memory_limit_bytes, expected_gib << 30, "{init}");
        }
    }

    #[test]
    fn a_sidecar_outlives_those_that_need_it() {
        let container = |name: &str, memory: &str| json!({"name": name, "resources": {"requests": {"memory": memory}}});
        let mut sidecar = container("s", "1Gi");
        sidecar["restartPolicy"] = "Always".into();
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"uid": "u"}, "spec": {
            "initContainers": [sidecar], "containers": [container("a", "2Gi"), container("b", "3Gi")]}}))
        .unwrap();
        let score = |c: &Container| of_container(&pod, c, 4 << 30).oom_score_adj;
        let sidecar = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref()).map(|c| score(&c[0]));
        let regular: Vec<_> = spec(&pod).containers.iter().map(score).collect();
        assert_eq!((sidecar, regular), (Some(500), vec![500, 250]));
    }

    #[test]
    fn what_a_whole_pod_requests_counts_for_each_of_its_containers() {
        let container = |memory: &str| json!({"name": "c", "resources": {"requests": {"memory": memory}}});
        for (whole, containers, expected) in [
            (json!({"requests": {"memory": "2Gi"}}), vec![json!({"name": "a"}), json!({"name": "b"})], [750, 750]),
            // What they request themselves is taken off, and comes on top.
            (json!({"requests": {"memory": "3Gi"}}), vec![container("1Gi"), json!({"name": "b"})], [500, 750]),
            (json!({"requests": {"memory": "1Gi"}}), vec![container("1Gi"), json!({"name": "b"})], [750, 999]),
            (json!({"requests": {"cpu": "1"}}), vec![container("1Gi"), json!({"name": "b"})], [750, 999]),
        ] {
            let spec = json!({"resources": whole, "containers": containers});
            let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap();
            let scores: Vec<_> =
                pod::spec(&pod).containers.iter().map(|c| of_container(&pod, c, 4 << 30).oom_score_adj).collect();
            assert_eq!(scores, expected, "{whole}");
        }
    }

    #[test]
    fn limits_of_time_are_as_the_node_has_them() {
        let limits = Resources { cpu_period_us: PERIOD_US, cpu_quota_us: 50_000, ..Resources::default() };
        let node = |cpu_quota, millis| NodeConfig {
            cpu_quota,
            cpu_quota_period: std::time::Duration::from_millis(millis),
            ..NodeConfig::default()
        };
        for (config, period, quota) in [
            (node(true, 100), 100_000, 50_000),
            (node(true, 10), 10_000, 5000),
            (node(false, 100), 0, 0),
            (node(true, 1), 1000, 1000),
        ] {
            let has = of_config(limits.clone(), &config);
            assert_eq!((has.cpu_period_us, has.cpu_quota_us), (period, quota));
        }
        let most = Resources { cpu_quota_us: MAX_QUOTA_US, ..limits };
        assert_eq!(of_config(most, &node(true, 1000)).cpu_quota_us, MAX_QUOTA_US);
    }

    #[test]
    fn classes_have_their_share() {
        let host = HostFacts { cpus: 4, memory_bytes: 8 << 30, pids_max: 4000, ..HostFacts::default() };
        let free = NodeConfig::default();
        let amounts = [("cpu", 500), ("memory", (1 << 30) * 1000), ("pid", 1000 * 1000)];
        let reserved: Amounts = amounts.into_iter().map(|(name, milli)| (name.to_owned(), milli)).collect();
        let kept = NodeConfig { reserved, ..NodeConfig::default() };
        let told = NodeConfig { enforce_pods: false, ..kept.clone() };
        for (config, burstable, expected, pids) in [
            (&free, 0, [(4096, 0), (2, 0), (2, 0)], None),
            (&free, 1500, [(4096, 0), (1536, 0), (2, 0)], None),
            (&kept, 250, [(3584, 7 << 30), (256, 0), (2, 0)], Some(3000)),
            (&told, 250, [(4096, 0), (256, 0), (2, 0)], None),
        ] {
            let groups = groups(config, &host, burstable);
            let has: Vec<_> = groups.iter().map(|g| (g.resources.cpu_shares, g.resources.memory_limit_bytes)).collect();
            assert_eq!(has, expected, "{burstable}");
            assert_eq!(groups[1].path, "/kubepods/burstable");
            let has: Vec<_> = groups.iter().map(|g| g.resources.pids).collect();
            assert_eq!(has, [pids, None, None]);
        }
    }

    #[test]
    fn a_volume_has_pages_of_the_size_that_is_asked_for() {
        let pod = |limits: serde_json::Value| -> Pod {
            carrack_types::json::from_value(
                json!({"spec": {"containers": [{"name": "a", "resources": {"limits": limits}}]}}),
            )
            .unwrap()
        };
        let both = json!({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"});
        for (limits, medium, expected) in [
            (json!({"hugepages-2Mi": "4Mi"}), "HugePages", Ok(2 << 20)),
            (json!({"hugepages-2Mi": "4Mi"}), "HugePages-2Mi", Ok(2 << 20)),
            (both.clone(), "HugePages-1Gi", Ok(1 << 30)),
            (both, "HugePages", Err("several sizes")),
            (json!({}), "HugePages", Err("no container asks for huge pages")),
            (json!({"hugepages-2Mi": "4Mi"}), "HugePages-1Gi", Err("no container asks for pages of that size")),
            (json!({"hugepages-2Mi": "4Mi"}), "HugePages-x", Err("no container asks for pages of that size")),
            (json!({"hugepages-2Mi": "4Mi"}), "HugePagesX", Err("unsupported medium")),
            (json!({}), "Disk", Err("unsupported medium")),
        ] {
            match (volume_page(&pod(limits), medium), expected) {
                (Ok(size), Ok(wanted)) => assert_eq!(size, wanted, "{medium}"),
                (Err(text), Err(wanted)) => assert!(text.contains(wanted), "{medium}: {text}"),
                other => panic!("{medium}: {other:?}"),
            }
        }
    }

    #[test]
    fn hugepages_are_named_as_the_kernel_does() {
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"containers": [
            {"name": "a", "resources": {"limits": {"hugepages-2Mi": "64Mi", "hugepages-1Gi": "2Gi"}}}]}}))
        .unwrap();
        let r = of_container(&pod, &pod::spec(&pod).containers[0], 4 << 30);
        assert_eq!(r.hugepages, BTreeMap::from([("2MB".into(), 64 << 20), ("1GB".into(), 2 << 30)]));
        // Who asks for none of a size may have those that the whole pod has.
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"uid": "u"}, "spec": {
            "resources": {"limits": {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}},
            "containers": [{"name": "a", "resources": {"limits": {"hugepages-2Mi": "2Mi"}}}]}}))
        .unwrap();
        let r = of_container(&pod, &pod::spec(&pod).containers[0], 4 << 30);
        assert_eq!(r.hugepages, BTreeMap::from([("2MB".into(), 2 << 20), ("1GB".into(), 1 << 30)]));
    }
}
