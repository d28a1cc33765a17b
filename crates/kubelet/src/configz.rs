//! What `/configz` shows: the settings that a kubelet goes by, as the configuration file that would give them.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::amount::Amounts;
use crate::config::NodeConfig;
use crate::configuration::{API_VERSION, KIND};
use crate::eviction::{Least, Signal};
use crate::memory::Sizes;
use crate::runtime::HostFacts;
use crate::shutdown::Group;

/// A duration as Go writes it.
fn span(duration: Duration) -> String {
    carrack_types::duration::format(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// A threshold as it counts on this machine: a share with a bound is whichever of the two is less.
#[expect(clippy::cast_precision_loss, reason = "hundredths of a percent")]
fn least(signal: Signal, least: Least, host: &HostFacts) -> String {
    let share = |share: u64| format!("{}%", share as f64 / 100.0);
    match least {
        Least::Amount(amount) => amount.to_string(),
        Least::OfAll(of_all) => share(of_all),
        Least::OfAllAtMost(of_all, most) => match signal.read(host) {
            Some((_, all)) if Least::OfAll(of_all).of(all) > most => most.to_string(),
            _ => share(of_all),
        },
    }
}

fn amounts(amounts: &Amounts) -> Map<String, Value> {
    let text = |milli: i128| if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") };
    amounts.iter().map(|(name, milli)| (name.clone(), text(*milli).into())).collect()
}

/// The page, on a machine. Nothing in it is secret.
#[must_use]
pub fn page(node: &NodeConfig, host: &HostFacts) -> Value {
    let (policy, scope) = node.topology;
    let (hard, soft) = (&node.eviction.hard, &node.eviction.soft);
    let mut shown = json!({
        "kind": KIND,
        "apiVersion": API_VERSION,
        "podLogsDir": node.log_dir,
        "fileCheckFrequency": span(node.file_check_period),
        "port": node.port,
        "authentication": {
            "anonymous": {"enabled": node.anonymous},
            "webhook": {"enabled": node.token_reviews.is_some(), "cacheTTL": span(node.token_reviews.unwrap_or_default())},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"},
        },
        "clusterDomain": node.cluster_domain,
        "clusterDNS": node.cluster_dns,
        "nodeStatusUpdateFrequency": span(node.status_period),
        "nodeStatusReportFrequency": span(node.status_report_period),
        "nodeLeaseDurationSeconds": node.lease_period.as_secs() * 4,
        "imageMinimumGCAge": span(node.image_gc.min_age),
        "imageMaximumGCAge": span(node.image_gc.max_unused.unwrap_or_default()),
        "imageGCHighThresholdPercent": node.image_gc.high_percent,
        "imageGCLowThresholdPercent": node.image_gc.low_percent,
        "cgroupRoot": node.cgroup_root,
        "cgroupDriver": "cgroupfs",
        "maxPods": node.max_pods,
        "evictionPressureTransitionPeriod": span(node.eviction.transition),
        "evictionMaxPodGracePeriod": node.eviction.max_pod_grace_s,
        "containerLogMaxSize": node.log_max_bytes.to_string(),
        "containerLogMaxFiles": node.log_max_files,
        "containerLogMonitorInterval": span(node.log_monitor_period),
        "configMapAndSecretChangeDetectionStrategy": node.change_detection.name(),
        "topologyManagerPolicy": policy.name(),
        "topologyManagerScope": scope.name(),
        "cpuCFSQuota": node.cpu_quota,
        "cpuCFSQuotaPeriod": span(node.cpu_quota_period),
        "crashLoopBackOff": {"maxContainerRestartPeriod": span(node.restart_wait)},
        "nodeStatusMaxImages": node.status_max_images.and_then(|n| i32::try_from(n).ok()).unwrap_or(-1),
        "podPidsLimit": node.pod_pids.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1),
        "resolvConf": node.resolv_conf.clone().unwrap_or_default(),
        "seccompDefault": node.seccomp_default,
        "providerID": node.provider_id,
        "cpuManagerPolicy": node.cpus.policy.name(),
        "cpuManagerReconcilePeriod": span(node.cpus.retry),
    });
    shown["serializeImagePulls"] = (node.parallel_pulls == Some(1)).into();
    if let Some(most) = node.parallel_pulls {
        shown["maxParallelImagePulls"] = most.into();
    }
    shown["healthzPort"] = node.healthz.map_or(0, |at| at.port()).into();
    if let Some(at) = node.healthz {
        shown["healthzBindAddress"] = json!(at.ip());
    }
    shown["readOnlyPort"] = node.read_only_port.into();
    shown["syncFrequency"] = span(node.sync_period).into();
    shown["tlsMinVersion"] = node.offered.oldest().into();
    if !node.offered.suites().is_empty() {
        shown["tlsCipherSuites"] = json!(node.offered.suites());
    }
    shown["enforceNodeAllocatable"] = json!([if node.enforce_pods { "pods" } else { "none" }]);
    shown["protectKernelDefaults"] = node.protect_kernel.into();
    shown["eventRecordQPS"] = node.event_rate.map_or(0, |(per_second, _)| per_second).into();
    if let Some((_, burst)) = node.event_rate {
        shown["eventBurst"] = burst.into();
    }
    shown["enableDebuggingHandlers"] = node.debugging.into();
    shown["enableSystemLogHandler"] = node.system_logs.into();
    shown["enableSystemLogQuery"] = node.log_queries.into();
    shown["singleProcessOOMKill"] = node.single_process_oom_kill.into();
    shown["registerNode"] = node.register_node.into();
    shown["imagePullCredentialsVerificationPolicy"] = node.image_verification.name().into();
    if !node.image_verification.list().is_empty() {
        shown["preloadedImagesVerificationAllowlist"] = json!(node.image_verification.list());
    }
    if node.pods_per_core > 0 {
        shown["podsPerCore"] = node.pods_per_core.into();
    }
    shown["failSwapOn"] = node.fail_on_swap.into();
    shown["memorySwap"] = json!({"swapBehavior": if node.limited_swap { "LimitedSwap" } else { "NoSwap" }});
    shown["memoryManagerPolicy"] = node.memory.policy.name().into();
    if !node.memory.reserved.is_empty() {
        let limits = |sizes: &Sizes| -> Map<String, Value> {
            sizes.iter().map(|(kind, bytes)| (kind.clone(), bytes.to_string().into())).collect()
        };
        let of_node = |(number, sizes): (&u32, &Sizes)| json!({"numaNode": number, "limits": limits(sizes)});
        shown["reservedMemory"] = node.memory.reserved.iter().map(of_node).collect();
    }
    if !node.cpus.reserved.is_empty() {
        shown["reservedSystemCPUs"] = node.cpus.reserved.to_string().into();
    }
    if node.cpus.options != Default::default() {
        shown["cpuManagerPolicyOptions"] = json!(node.cpus.options.written());
    }
    let map = |entries: Vec<(&str, String)>| -> Value {
        entries.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect::<Map<String, Value>>().into()
    };
    shown["evictionHard"] = map(hard.iter().map(|(signal, l)| (signal.name(), least(*signal, *l, host))).collect());
    if !soft.is_empty() {
        let amounts = soft.iter().map(|(signal, (l, _))| (signal.name(), least(*signal, *l, host)));
        shown["evictionSoft"] = map(amounts.collect());
        let graces = soft.iter().map(|(signal, (_, grace))| (signal.name(), span(*grace)));
        shown["evictionSoftGracePeriod"] = map(graces.collect());
    }
    let group = |g: &Group| json!({"priority": g.priority, "shutdownGracePeriodSeconds": g.grace.as_secs()});
    if !node.shutdown.is_empty() {
        shown["shutdownGracePeriodByPodPriority"] = node.shutdown.list().iter().map(group).collect();
    }
    let reclaim = &node.eviction.reclaim;
    if !reclaim.is_empty() {
        let amounts = reclaim.iter().map(|(signal, l)| (signal.name(), least(*signal, *l, host)));
        shown["evictionMinimumReclaim"] = map(amounts.collect());
    }
    if let Some(path) = &node.static_pod_path {
        shown["staticPodPath"] = path.as_str().into();
    }
    shown["httpCheckFrequency"] = span(node.http_check_period).into();
    if let Some(url) = &node.static_pod_url {
        shown["staticPodURL"] = url.shown().into();
        shown["staticPodURLHeader"] = url.shown_headers().into();
    }
    if !node.reserved.is_empty() {
        shown["systemReserved"] = amounts(&node.reserved).into();
    }
    if !node.taints.is_empty() {
        shown["registerWithTaints"] = json!(node.taints);
    }
    if !node.allowed_sysctls.is_empty() {
        shown["allowedUnsafeSysctls"] = json!(node.allowed_sysctls);
    }
    json!({"kubeletconfig": shown})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (millis, expected) in [
            (0, "0s"),
            (100, "100ms"),
            (1500, "1.5s"),
            (20_000, "20s"),
            (90_000, "1m30s"),
            (300_000, "5m0s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn thresholds_are_shown_as_they_count() {
        for (gib, nodefs, imagefs) in [(0, "10%", "15%"), (10, "10%", "15%"), (1000, "2147483648", "3221225472")] {
            let host = HostFacts { disk_bytes: gib << 30, image_disk_bytes: gib << 30, ..HostFacts::default() };
            let whole = page(&NodeConfig::default(), &host);
            let shown = &whole["kubeletconfig"]["evictionHard"];
            assert_eq!((&shown["nodefs.available"], &shown["imagefs.available"]), (&json!(nodefs), &json!(imagefs)));
        }
    }

    /// The page on a machine of which nothing is known.
    fn page_of(node: &NodeConfig) -> Value {
        page(node, &HostFacts::default())
    }

    /// What a page says, read as a file, and shown again.
    fn again(node: &NodeConfig) -> Value {
        let file = page_of(node)["kubeletconfig"].to_string();
        let (configuration, _) = crate::configuration::read(file.as_bytes()).unwrap();
        let mut read = NodeConfig::default();
        configuration.apply(&mut read).unwrap();
        // The port is the process's.
        read.port = node.port;
        page_of(&read)
    }

    #[test]
    fn the_page_is_the_file_that_gives_it() {
        let plain = NodeConfig::default();
        assert_eq!(again(&plain), page_of(&plain));
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 7\n\
            staticPodPath: /manifests\nevictionHard: {memory.available: 300Mi, nodefs.available: 7.5%}\n\
            evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}\n\
            shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n\
            evictionMinimumReclaim: {memory.available: 200Mi, nodefs.available: 2.5%}\n\
            systemReserved: {cpu: 500m, memory: 1Gi}\nimageMaximumGCAge: 24h\nclusterDNS: [10.96.0.10]\n\
            topologyManagerPolicy: restricted\ntopologyManagerScope: pod\ncpuManagerPolicy: static\n\
            cpuManagerPolicyOptions: {full-pcpus-only: 'true', prefer-align-cpus-by-uncorecache: '1'}\nallowedUnsafeSysctls: [kernel.msg*]\n\
            registerWithTaints: [{key: a, effect: NoSchedule}]\nconfigMapAndSecretChangeDetectionStrategy: Get\n\
            authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}\nenableSystemLogHandler: false\n\
            podsPerCore: 5\nhealthzBindAddress: 192.0.2.1\nmaxParallelImagePulls: 3\nregisterNode: false\nfailSwapOn: true\nmemorySwap: {swapBehavior: LimitedSwap}\n\
            memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 1, limits: {memory: 1124Mi}}]\n\
            imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
            preloadedImagesVerificationAllowlist: [r.io/a]\n\
            tlsMinVersion: VersionTLS12\ntlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\nreadOnlyPort: 10255\n\
            protectKernelDefaults: true\neventRecordQPS: 5\neventBurst: 7\nenforceNodeAllocatable: []\n\
            staticPodURL: http://m.example.com/pods?key=hidden\nstaticPodURLHeader: {X-Key: [hidden]}\nhttpCheckFrequency: 1m\nsyncFrequency: 30s\n";
        let mut full = NodeConfig::default();
        crate::configuration::read(text.as_bytes()).unwrap().0.apply(&mut full).unwrap();
        let shown = page_of(&full);
        assert_eq!(again(&full), shown);
        assert_eq!(shown["kubeletconfig"]["evictionHard"]["nodefs.available"], "7.5%");
        assert_eq!(shown["kubeletconfig"]["systemReserved"]["cpu"], "500m");
        assert_eq!(shown["kubeletconfig"]["podsPerCore"], 5);
        assert_eq!(shown["kubeletconfig"]["maxParallelImagePulls"], 3);
        for (field, expected) in [
            ("tlsMinVersion", json!("VersionTLS12")),
            ("tlsCipherSuites", json!(["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"])),
            ("readOnlyPort", json!(10255)),
            ("protectKernelDefaults", json!(true)),
            ("eventRecordQPS", json!(5)),
            ("eventBurst", json!(7)),
            ("enforceNodeAllocatable", json!(["none"])),
            ("staticPodURL", json!("http://m.example.com/pods")),
            ("staticPodURLHeader", json!({"x-key": ["<masked>"]})),
            ("httpCheckFrequency", json!("1m0s")),
            ("syncFrequency", json!("30s")),
        ] {
            assert_eq!(shown["kubeletconfig"][field], expected, "{field}");
        }
        let healthz = ["healthzBindAddress", "healthzPort"].map(|field| &shown["kubeletconfig"][field]);
        assert_eq!(healthz, [&json!("192.0.2.1"), &json!(10248)]);
        assert_eq!(shown["kubeletconfig"]["reservedMemory"][0]["limits"]["memory"], (1124_u64 << 20).to_string());
        assert_eq!(shown["kubeletconfig"]["preloadedImagesVerificationAllowlist"], json!(["r.io/a"]));
        assert_eq!(shown["kubeletconfig"]["registerNode"], false);
        let authentication = json!({"anonymous": {"enabled": true}, "webhook": {"enabled": false, "cacheTTL": "0s"}});
        assert_eq!(shown["kubeletconfig"]["authentication"], authentication);
        assert_eq!(shown["kubeletconfig"]["configMapAndSecretChangeDetectionStrategy"], "Get");
    }
}
