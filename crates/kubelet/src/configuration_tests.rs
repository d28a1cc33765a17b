//! What is read of a file, and what of it is refused.

use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

#[test]
fn a_file_of_upstream_applies() {
    let text = format!(
        "{HEAD}staticPodPath: /etc/kubernetes/manifests\nclusterDNS: [10.96.0.10]\nmaxPods: 50\n\
         runtimeRequestTimeout: 0s\nsyncFrequency: 30s\nfileCheckFrequency: 1m30s\ncontainerLogMaxSize: 5Mi\ncontainerLogMaxFiles: 3\n\
         evictionHard: {{memory.available: 300Mi, nodefs.available: 7.5%, imagefs.available: 0%}}\n\
         evictionSoft: {{memory.available: 1Gi}}\nevictionSoftGracePeriod: {{memory.available: 1m}}\n\
         evictionMinimumReclaim: {{memory.available: 200Mi, nodefs.available: 2.29%}}\n\
         systemReserved: {{cpu: 500m, memory: 1Gi}}\nkubeReserved: {{cpu: '1'}}\nimageGCHighThresholdPercent: 90\n\
         authentication:\n  anonymous: {{enabled: true}}\n  webhook: {{cacheTTL: 10s}}\n  x509: {{clientCAFile: /ca.crt}}\nlogging: {{format: json}}\n\
         rotateCertificates: true\nserverTLSBootstrap: true\ntopologyManagerPolicy: restricted\n\
         topologyManagerScope: pod\ncpuCFSQuota: false\ncpuCFSQuotaPeriod: 10ms\nnodeStatusMaxImages: -1\n\
         crashLoopBackOff: {{maxContainerRestartPeriod: 30s}}\npodPidsLimit: 1000\nresolvConf: ''\nproviderID: a:///b\n\
         seccompDefault: true\nmemorySwap: {{swapBehavior: LimitedSwap}}\nfailSwapOn: true\nmemoryManagerPolicy: None\nsingleProcessOOMKill: true\npodsPerCore: 10\nregisterNode: false\nenableDebuggingHandlers: false\ncpuManagerPolicy: static\nreservedSystemCPUs: 0-1,4\ncpuManagerReconcilePeriod: 5s\n\
         cpuManagerPolicyOptions: {{full-pcpus-only: 'true', strict-cpu-reservation: 'false'}}\nconfigMapAndSecretChangeDetectionStrategy: Cache\nallowedUnsafeSysctls: [kernel/msg*]\nnodeStatusUpdateFrequency: 5s\nregisterWithTaints: [{{key: a, effect: NoSchedule}}]\ncgroupRoot: null\n"
    );
    let (c, without) = read(text.as_bytes()).unwrap();
    assert_eq!(without, ["logging", "runtimeRequestTimeout"]);
    assert_eq!(c.client_ca_file(), "/ca.crt");
    assert!(c.rotate_certificates && c.server_tls_bootstrap);
    let mut n = NodeConfig::default();
    c.apply(&mut n).unwrap();
    assert_eq!(n.allowed_sysctls, ["kernel.msg*"]);
    assert_eq!(n.topology, (Policy::Restricted, Scope::Pod));
    assert_eq!(n.change_detection, ChangeDetection::Cache);
    assert_eq!(n.static_pod_path.as_deref(), Some("/etc/kubernetes/manifests"));
    assert_eq!((n.max_pods, n.log_max_bytes, n.log_max_files), (50, 5 << 20, 3));
    assert_eq!((n.file_check_period.as_secs(), n.status_period.as_secs(), n.lease_period.as_secs()), (90, 5, 10));
    assert_eq!(n.sync_period.as_secs(), 30);
    assert_eq!(
        n.eviction.hard,
        BTreeMap::from([
            (Signal::MemoryAvailable, Least::Amount(300 << 20)),
            (Signal::NodefsAvailable, Least::OfAll(750)),
        ])
    );
    assert_eq!(n.eviction.soft[&Signal::MemoryAvailable].1, Duration::from_secs(60));
    assert_eq!(
        n.eviction.reclaim,
        BTreeMap::from([
            (Signal::MemoryAvailable, Least::Amount(200 << 20)),
            (Signal::NodefsAvailable, Least::OfAll(229)),
        ])
    );
    // CPUs that are named take the place of those that are counted.
    assert_eq!((n.reserved["cpu"], n.reserved["memory"]), (3000, (1 << 30) * 1000));
    assert_eq!((n.cpus.policy, n.cpus.reserved.to_string()), (cpus::Policy::Static, "0-1,4".into()));
    assert_eq!((n.cpus.options.full_cores_only, n.cpus.retry.as_secs()), (true, 5));
    assert_eq!((n.cpu_quota, n.cpu_quota_period.as_millis(), n.restart_wait.as_secs()), (false, 10, 30));
    assert_eq!((n.status_max_images, n.pod_pids, n.resolv_conf.clone()), (None, Some(1000), None));
    assert_eq!((n.seccomp_default, n.provider_id.as_str()), (true, "a:///b"));
    assert!(n.limited_swap && n.fail_on_swap && n.single_process_oom_kill && !n.debugging);
    assert!(n.anonymous && n.system_logs && n.token_reviews == Some(Duration::from_secs(10)));
    assert_eq!((n.pods_per_core, n.register_node), (10, false));
    assert_eq!((n.image_gc.high_percent, n.taints.len(), n.cgroup_root.as_str()), (90, 1, "kubepods"));
}

#[test]
fn pods_are_read_from_a_url() {
    for (text, expected, without) in [
        ("", Ok((None, 20)), &[][..]),
        ("staticPodURL: http://m/pods\n", Ok((Some("http://m/pods"), 20)), &[]),
        ("staticPodURL: https://m/\nhttpCheckFrequency: 1m\n", Ok((Some("https://m/"), 60)), &[]),
        ("staticPodURL: http://m/\nstaticPodURLHeader: {X-A: [hidden, b]}\n", Ok((Some("http://m/"), 20)), &[]),
        ("staticPodURLHeader: {X-A: [hidden]}\n", Ok((None, 20)), &["staticPodURLHeader"]),
        ("staticPodURL: /m/pods\n", Err("http:// or https://"), &[]),
        ("staticPodURL: http://m/\nstaticPodURLHeader: {X-A: hidden}\n", Err("list of texts"), &[]),
    ] {
        let read = read(format!("{HEAD}{text}").as_bytes()).map(|(configuration, without)| {
            assert!(!format!("{configuration:?}").contains("hidden"), "{text}");
            let mut n = NodeConfig::default();
            configuration.apply(&mut n).unwrap();
            assert!(!format!("{n:?}").contains("hidden"), "{text}");
            (n.static_pod_url.map(|url| url.shown()), n.http_check_period.as_secs(), without)
        });
        match (&read, expected) {
            (Ok((url, seconds, found)), Ok(expected)) => {
                assert_eq!((url.as_deref(), *seconds), expected, "{text}");
                assert_eq!(found, without, "{text}");
            }
            (Err(why), Err(part)) => assert!(why.contains(part) && !why.contains("hidden"), "{text}: {why}"),
            _ => panic!("{text}: {read:?}"),
        }
    }
}

#[test]
fn healthz_is_told_where_it_is_said() {
    let own: SocketAddr = "127.0.0.1:7".parse().unwrap();
    for (text, otherwise, expected) in [
        ("", None, None),
        ("", Some(own), Some("127.0.0.1:7")),
        ("healthzPort: 0\n", Some(own), None),
        ("healthzBindAddress: 192.0.2.1\nhealthzPort: 0\n", Some(own), None),
        ("healthzPort: 8\n", None, Some("127.0.0.1:8")),
        ("healthzPort: 8\n", Some(own), Some("127.0.0.1:8")),
        ("healthzBindAddress: '::1'\n", None, Some("[::1]:10248")),
        ("healthzBindAddress: 192.0.2.1\n", Some(own), Some("192.0.2.1:7")),
        ("healthzBindAddress: 127.0.0.1\nhealthzPort: 10248\n", None, Some("127.0.0.1:10248")),
    ] {
        let mut n = NodeConfig { healthz: otherwise, ..NodeConfig::default() };
        let (configuration, without) = read(format!("{HEAD}{text}").as_bytes()).unwrap();
        configuration.apply(&mut n).unwrap();
        assert_eq!((n.healthz, without.len()), (expected.map(|at| at.parse::<SocketAddr>().unwrap()), 0), "{text}");
    }
}

#[test]
fn events_are_written_so_many_a_second() {
    for (text, expected, without) in [
        ("", Some((50, 100)), &[][..]),
        ("eventRecordQPS: 5\n", Some((5, 100)), &[]),
        ("eventBurst: 20\n", Some((50, 20)), &[]),
        ("eventRecordQPS: 5\neventBurst: 0\n", Some((5, 10)), &[]),
        ("eventRecordQPS: 0\n", None, &[]),
        ("eventRecordQPS: 0\neventBurst: 20\n", None, &["eventBurst"]),
    ] {
        let mut n = NodeConfig::default();
        let (configuration, found) = read(format!("{HEAD}{text}").as_bytes()).unwrap();
        configuration.apply(&mut n).unwrap();
        assert_eq!(n.event_rate, expected, "{text}");
        assert_eq!(found, without, "{text}");
    }
    assert!(read(format!("{HEAD}eventRecordQPS: -1\n").as_bytes()).is_err());
}

#[test]
fn pods_are_bounded_unless_nobody_is_to_be() {
    for (text, expected) in [
        ("", Ok(true)),
        ("enforceNodeAllocatable: [pods]\n", Ok(true)),
        ("enforceNodeAllocatable: [none]\n", Ok(false)),
        ("enforceNodeAllocatable: []\n", Ok(false)),
        ("enforceNodeAllocatable: [pods, none]\n", Err("has to stand alone")),
        ("enforceNodeAllocatable: [pods, kube-reserved]\n", Err("kube-reserved cannot be enforced")),
        ("enforceNodeAllocatable: [nodes]\n", Err("\"nodes\" is nothing")),
    ] {
        let read = read(format!("{HEAD}{text}").as_bytes()).map(|(configuration, _)| {
            let mut n = NodeConfig::default();
            configuration.apply(&mut n).unwrap();
            n.enforce_pods
        });
        match (&read, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(*found, expected, "{text}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
            _ => panic!("{text}: {read:?}"),
        }
    }
}

#[test]
fn the_server_offers_and_tells_what_is_said() {
    let suite = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    for (text, expected) in [
        ("", Ok(("VersionTLS12", 0, 0, 0))),
        ("tlsMinVersion: VersionTLS13\n", Ok(("VersionTLS13", 0, 0, 0))),
        (&format!("tlsCipherSuites: [{suite}]\nreadOnlyPort: 10255\n"), Ok(("VersionTLS12", 1, 10255, 0))),
        (&format!("tlsMinVersion: VersionTLS13\ntlsCipherSuites: [{suite}]\n"), Ok(("VersionTLS13", 1, 0, 1))),
        // What is older is not served anyway: a node is not to be without its kubelet for naming it.
        ("tlsMinVersion: VersionTLS10\n", Ok(("VersionTLS12", 0, 0, 1))),
        (
            &format!("tlsCipherSuites: [{suite}, TLS_RSA_WITH_AES_256_GCM_SHA384, TLS_RSA_WITH_AES_128_GCM_SHA256]\n"),
            Ok(("VersionTLS12", 1, 0, 2)),
        ),
        ("tlsMinVersion: VersionTLS9\n", Err("\"VersionTLS9\" is no version")),
        ("tlsCipherSuites: [TLS_RSA_WITH_AES_128_CBC_SHA]\n", Err("\"TLS_RSA_WITH_AES_128_CBC_SHA\" cannot be served")),
        ("readOnlyPort: 65536\n", Err("invalid value")),
    ] {
        let read = read(format!("{HEAD}{text}").as_bytes()).map(|(configuration, without)| {
            let mut n = NodeConfig::default();
            configuration.apply(&mut n).unwrap();
            (n.offered.oldest(), n.offered.suites().len(), n.read_only_port, without.len())
        });
        match (&read, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(*found, expected, "{text}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
            _ => panic!("{text}: {read:?}"),
        }
    }
}

#[test]
fn images_are_pulled_so_many_at_a_time() {
    for (text, expected) in [
        ("", None),
        ("serializeImagePulls: true\n", Some(1)),
        ("serializeImagePulls: true\nmaxParallelImagePulls: 1\n", Some(1)),
        ("serializeImagePulls: false\n", None),
        ("serializeImagePulls: false\nmaxParallelImagePulls: 3\n", Some(3)),
        ("maxParallelImagePulls: 3\n", Some(3)),
        ("maxParallelImagePulls: 1\n", Some(1)),
    ] {
        let mut n = NodeConfig::default();
        let (configuration, without) = read(format!("{HEAD}{text}").as_bytes()).unwrap();
        configuration.apply(&mut n).unwrap();
        assert_eq!((n.parallel_pulls, without.len()), (expected, 0), "{text}");
    }
}

#[test]
fn tokens_are_believed_for_a_while_or_not_at_all() {
    for (said, expected_s) in [
        ("{}", Some(120)),
        ("{enabled: true}", Some(120)),
        ("{cacheTTL: 0s}", Some(120)),
        ("{enabled: true, cacheTTL: 5s}", Some(5)),
        ("{enabled: false, cacheTTL: 5s}", None),
    ] {
        let text = format!("{HEAD}authentication: {{webhook: {said}}}\n");
        let mut n = NodeConfig::default();
        read(text.as_bytes()).unwrap().0.apply(&mut n).unwrap();
        assert_eq!(n.token_reviews.map(|kept| kept.as_secs()), expected_s, "{said}");
    }
}

#[test]
fn pods_have_their_time_when_the_machine_is_shut_down() {
    let list = "shutdownGracePeriodByPodPriority:";
    for (text, expected) in [
        ("", Ok("")),
        ("shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n", Ok("0:20 2000000000:10")),
        ("shutdownGracePeriod: 1m\n", Ok("0:60 2000000000:0")),
        (
            &format!(
                "{list}\n- {{priority: 1000, shutdownGracePeriodSeconds: 60}}\n- {{shutdownGracePeriodSeconds: 5}}\n"
            ),
            Ok("0:5 1000:60"),
        ),
        ("shutdownGracePeriodCriticalPods: 10s\n", Err("must not be longer")),
        ("shutdownGracePeriod: 5s\nshutdownGracePeriodCriticalPods: 10s\n", Err("must not be longer")),
        ("shutdownGracePeriod: 500ms\n", Err("a second at least")),
        (&format!("shutdownGracePeriod: 5s\n{list} [{{priority: 1}}]\n"), Err("cannot be used together")),
        (&format!("{list} [{{priority: 1, shutdownGracePeriodSeconds: -1}}]\n"), Err("invalid value")),
    ] {
        let read = read(format!("{HEAD}{text}").as_bytes()).map(|(c, _)| {
            let mut n = NodeConfig::default();
            c.apply(&mut n).unwrap();
            let groups = n.shutdown.list().iter().map(|g| format!("{}:{}", g.priority, g.grace.as_secs()));
            groups.collect::<Vec<_>>().join(" ")
        });
        match (&read, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
            _ => panic!("{text}: {read:?}"),
        }
    }
}

/// Which hard thresholds there are, by the names of their signals.
fn check_hard(said: &str, merged: bool, expected: &[&str]) {
    let text = format!("{HEAD}evictionHard: {{{said}}}\nmergeDefaultEvictionSettings: {merged}\n");
    let mut n = NodeConfig::default();
    read(text.as_bytes()).unwrap().0.apply(&mut n).unwrap();
    let named: Vec<_> = n.eviction.hard.keys().map(|s| s.name()).collect();
    assert_eq!(named, expected, "{said} merged {merged}");
}

#[test]
fn hard_thresholds_stand_for_themselves_or_beside_the_defaults() {
    let (inodes, rest) = (["nodefs.available", "nodefs.inodesFree"], ["imagefs.inodesFree", "pid.available"]);
    let with = |first: &[&'static str]| [first, &inodes, &["imagefs.available"], &rest].concat();
    check_hard("", false, &with(&["memory.available"]));
    check_hard("memory.available: 1Gi", true, &with(&["memory.available"]));
    check_hard("memory.available: 1Gi", false, &["memory.available"]);
    check_hard("allocatableMemory.available: 1Gi", false, &["allocatableMemory.available"]);
    check_hard("memory.available: 0%", true, &with(&[]));
    check_hard("imagefs.available: 100%", true, &[&["memory.available"], &inodes[..], &rest[..]].concat());
    check_hard("containerfs.available: 5%, nodefs.available: 5%", false, &["nodefs.available"]);
}

#[test]
fn thresholds_of_the_containers_file_system_are_named_as_without_effect() {
    let text = format!(
        "{HEAD}evictionHard: {{containerfs.available: 5%}}\nevictionSoft: {{containerfs.inodesFree: 9%}}\n\
         evictionSoftGracePeriod: {{containerfs.inodesFree: 1m}}\n"
    );
    let (_, without) = read(text.as_bytes()).unwrap();
    assert_eq!(without, ["evictionHard.containerfs.available", "evictionSoft.containerfs.inodesFree"]);
}

#[test]
fn files_are_laid_over_each_other() {
    let file = |text: &str| format!("{HEAD}{text}").into_bytes();
    let base = file("maxPods: 50\nclusterDNS: [10.96.0.10]\nevictionHard: {memory.available: 300Mi}\n");
    let over = [
        ("10.conf".to_owned(), file("maxPods: 60\nevictionHard: {nodefs.available: 7.5%}\n")),
        ("20.conf".to_owned(), file("maxPods: 70\nclusterDNS: [10.96.0.11, 10.96.0.12]\nruntimeRequestTimeout: 1s\n")),
    ];
    for (base, over, pods, dns, hard) in
        [(Some(&base), &over[..], 70, 2, 2), (Some(&base), &over[..1], 60, 1, 2), (None, &over[..], 70, 2, 1)]
    {
        let (c, without) = read_over(base.map(Vec::as_slice), over).unwrap();
        let mut n = NodeConfig::default();
        c.apply(&mut n).unwrap();
        assert_eq!((n.max_pods, n.cluster_dns.len(), n.eviction.hard.len()), (pods, dns, hard));
        assert_eq!(without.len(), over.len() - 1);
    }
    let wrong = [("30.conf".to_owned(), b"maxPods: 1\n".to_vec())];
    assert!(read_over(Some(&base), &wrong).unwrap_err().starts_with("30.conf: it is no KubeletConfiguration"));
    // What is wrong together is refused, too.
    let unknown = [("30.conf".to_owned(), file("maxPodz: 1\n"))];
    assert!(read_over(None, &unknown).unwrap_err().contains("unknown field `maxPodz`"));
}

#[test]
fn bad_files_are_refused() {
    for (text, problem) in [
        ("", "version/kind"),
        ("kind: KubeletConfiguration\n", "no KubeletConfiguration"),
        (&format!("{HEAD}maxPodz: 1\n"), "unknown field `maxPodz`"),
        (&format!("{HEAD}authentication: {{webhok: {{}}}}\n"), "unknown field `webhok`"),
        (&format!("{HEAD}authentication: {{anonymous: {{on: true}}}}\n"), "unknown field `on`"),
        (&format!("{HEAD}maxPods: 1\nmaxPods: 2\n"), "already set"),
        (&format!("{HEAD}maxPods: many\n"), "invalid type"),
        (&format!("{HEAD}healthzPort: 65536\n"), "invalid value"),
        (&format!("{HEAD}maxParallelImagePulls: 0\n"), "must be positive"),
        (&format!("{HEAD}maxParallelImagePulls: -1\n"), "invalid value"),
        (&format!("{HEAD}serializeImagePulls: true\nmaxParallelImagePulls: 2\n"), "must not be above 1"),
        (&format!("{HEAD}fileCheckFrequency: 20\n"), "invalid type"),
        (&format!("{HEAD}fileCheckFrequency: 20x\n"), "no duration"),
        (&format!("{HEAD}evictionHard: {{memory.free: 1Gi}}\n"), "no eviction signal"),
        (&format!("{HEAD}evictionHard: {{memory.available: 120%}}\n"), "no threshold"),
        (&format!("{HEAD}evictionHard: {{memory.available: '0'}}\n"), "must be positive"),
        (&format!("{HEAD}evictionHard: {{memory.available: '-1'}}\n"), "no threshold"),
        (&format!("{HEAD}evictionSoftGracePeriod: {{memory.free: 1m}}\n"), "no eviction signal"),
        (&format!("{HEAD}evictionMinimumReclaim: {{memory.available: 0%}}\n"), "above 0%"),
        (&format!("{HEAD}evictionMinimumReclaim: {{memory.free: 1Gi}}\n"), "no eviction signal"),
        (&format!("{HEAD}evictionSoft: {{memory.available: 1Gi}}\n"), "no evictionSoftGracePeriod"),
        (&format!("{HEAD}imageGCHighThresholdPercent: 50\n"), "must be above"),
        (&format!("{HEAD}containerLogMaxFiles: 1\n"), "at least 2"),
        (&format!("{HEAD}containerLogMaxSize: big\n"), "no size"),
        (&format!("{HEAD}topologyManagerPolicy: strict\n"), "no topologyManagerPolicy"),
        (&format!("{HEAD}topologyManagerScope: node\n"), "no topologyManagerScope"),
        (&format!("{HEAD}configMapAndSecretChangeDetectionStrategy: Ask\n"), "no configMapAndSecretChange"),
        (&format!("{HEAD}cpuCFSQuotaPeriod: 2s\n"), "between 1ms and 1s"),
        (&format!("{HEAD}crashLoopBackOff: {{maxContainerRestartPeriod: 10m}}\n"), "between 1s and 300s"),
        (&format!("{HEAD}nodeStatusMaxImages: -2\n"), "-1 or greater"),
        (&format!("{HEAD}imagePullCredentialsVerificationPolicy: Never\n"), "no imagePullCredentials"),
        (&format!("{HEAD}preloadedImagesVerificationAllowlist: [r.io/a]\n"), "is for imagePullCredentials"),
        (&format!("{HEAD}cpuManagerPolicy: dynamic\n"), "no cpuManagerPolicy"),
        (&format!("{HEAD}memoryManagerPolicy: static\n"), "no memoryManagerPolicy"),
        (&format!("{HEAD}reservedMemory: [{{numaNode: -1}}]\n"), "invalid value"),
        (&format!("{HEAD}reservedMemory: [{{limits: {{cpu: '1'}}}}]\n"), "neither memory nor hugepages"),
        (&format!("{HEAD}reservedMemory: [{{limits: {{hugepages-x: 1Gi}}}}]\n"), "neither memory nor hugepages"),
        (&format!("{HEAD}reservedMemory: [{{limits: {{memory: '0'}}}}]\n"), "must not be zero"),
        (&format!("{HEAD}reservedMemory: [{{limits: {{memory: '-1'}}}}]\n"), "no number of bytes"),
        (
            &format!("{HEAD}reservedMemory: [{{limits: {{memory: 1Gi}}}}, {{numaNode: 0, limits: {{memory: 1Gi}}}}]\n"),
            "NUMA node 0: memory is there twice",
        ),
        (&format!("{HEAD}memorySwap: {{swapBehavior: UnlimitedSwap}}\n"), "no memorySwap.swapBehavior"),
        (&format!("{HEAD}reservedSystemCPUs: some\n"), "no list of CPUs"),
        (
            &format!("{HEAD}cpuManagerPolicy: static\ncpuManagerPolicyOptions: {{align-by-socket: 'true'}}\n"),
            "unknown CPU manager policy option",
        ),
        (&format!("{HEAD}cpuManagerPolicy: static\ncpuManagerPolicyOptions: {{full-pcpus-only: yes}}\n"), ""),
        (
            &format!("{HEAD}cpuManagerPolicy: static\ncpuManagerPolicyOptions: {{full-pcpus-only: 'maybe'}}\n"),
            "bad value",
        ),
        (&format!("{HEAD}cpuManagerPolicyOptions: {{full-pcpus-only: 'true'}}\n"), "are for cpuManagerPolicy static"),
        (&format!("{HEAD}systemReserved: {{gpu: 1}}\n"), ""),
        (&format!("{HEAD}systemReserved: {{gpu: '1'}}\n"), "cannot be reserved"),
    ] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(error.contains(problem), "{text}: {error}");
    }
}
