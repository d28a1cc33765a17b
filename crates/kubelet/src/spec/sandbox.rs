//! The sandbox of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, SELinuxOptions, SeccompProfile};

use super::pod::{self, spec};
use super::resources;
use crate::config::NodeConfig;
use crate::runtime::{Dns, PodCgroup, PortMapping, SandboxSpec, SeLinux, Seccomp, Sharing, labels};

/// Kernel settings that a pod may change, since they belong to its own namespaces
/// (<https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/>).
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
/// Settings that belong to a namespace of the pod, by what their names are or begin with
/// (kubernetes pkg/kubelet/sysctl/namespace.go).
const IPC_SYSCTLS: [&str; 4] = ["kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue."];
const NET_SYSCTLS: &str = "net.";
/// Most name servers and search domains that resolvers read, and most characters of the latter
/// (kubernetes pkg/apis/core/validation, `MaxDNSNameservers` and its neighbours).
const MAX_NAME_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_DOMAIN_CHARS: usize = 253;
/// Most of a pod's annotations and labels that the runtime is given, in bytes. It shows them with each sandbox, and a listing of all
/// is one message of at most 16 MiB: where it is larger nothing is known of any pod of the node.
const MAX_ANNOTATIONS: usize = 16 << 10;
const MAX_LABELS: usize = 8 << 10;

/// Why the pod may not have one of its kernel settings. `allowed` are those that the node allows besides the safe ones; a
/// `*` at the end of one stands for anything.
#[must_use]
pub fn forbidden_sysctl(pod: &Pod, allowed: &[String]) -> Option<String> {
    let s = spec(pod);
    let names = s.security_context.iter().flat_map(|s| s.sysctls.iter().flatten()).map(|s| s.name.replace('/', "."));
    let listed = |name: &str| {
        SAFE_SYSCTLS.contains(&name)
            || allowed.iter().any(|a| a.strip_suffix('*').map_or(a == name, |start| name.starts_with(start)))
    };
    for name in names {
        let why = if !listed(&name) {
            "not allowlisted"
        } else if s.host_network == Some(true) && name.starts_with(NET_SYSCTLS) {
            "not allowed with host net enabled"
        } else if s.host_ipc == Some(true) && IPC_SYSCTLS.iter().any(|start| name.starts_with(start)) {
            "not allowed with host ipc enabled"
        } else {
            continue;
        };
        return Some(format!("forbidden sysctl: {name:?} {why}"));
    }
    None
}

/// Leaves out what resolvers would not read. Returns what is to be said of that.
fn fit(dns: &mut Dns) -> Vec<String> {
    let mut said = Vec::new();
    if dns.servers.len() > MAX_NAME_SERVERS {
        dns.servers.truncate(MAX_NAME_SERVERS);
        let left = dns.servers.join(" ");
        said.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {left}"
        ));
    }
    let before = dns.searches.len();
    dns.searches.truncate(MAX_SEARCHES);
    // Some resolvers end the process that asks over a longer one.
    dns.searches.retain(|domain| domain.len() <= MAX_DOMAIN_CHARS);
    let mut chars = 0;
    let fitting = dns.searches.iter().take_while(|domain| {
        // A space between them counts, too.
        chars += domain.len() + usize::from(chars > 0);
        chars <= MAX_SEARCH_CHARS
    });
    let fitting = fitting.count();
    dns.searches.truncate(fitting);
    if fitting < before {
        let left = dns.searches.join(" ");
        said.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {left}"
        ));
    }
    said
}

/// Labels of SELinux.
#[must_use]
pub fn selinux(options: &SELinuxOptions) -> SeLinux {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    SeLinux {
        user: text(&options.user),
        role: text(&options.role),
        kind: text(&options.type_),
        level: text(&options.level),
    }
}

/// A seccomp profile; without one unconfined, or as the node has it by default.
#[must_use]
pub fn seccomp(profile: Option<&SeccompProfile>, config: &NodeConfig) -> Seccomp {
    match profile.map(|p| (p.type_.as_str(), p.localhost_profile.as_deref())) {
        Some(("RuntimeDefault", _)) => Seccomp::RuntimeDefault,
        // One without a name is no file, and nobody starts with it; to run unconfined for that would be less than was asked for
        // (upstream's CVE-2023-2431).
        Some(("Localhost", file)) => {
            Seccomp::Localhost(format!("{}/seccomp/{}", config.root_dir, file.unwrap_or_default()))
        }
        None if config.seccomp_default => Seccomp::RuntimeDefault,
        _ => Seccomp::Unconfined,
    }
}

/// Name resolution by the pod's dnsPolicy
/// (<https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/>).
#[must_use]
pub fn dns(pod: &Pod, config: &NodeConfig, node: &Dns) -> Dns {
    resolution(pod, config, node).0
}

/// What is left out of the name resolution that a pod gets, in upstream's words (`DNSConfigForming`).
#[must_use]
pub fn dns_troubles(pod: &Pod, config: &NodeConfig, node: &Dns) -> Vec<String> {
    resolution(pod, config, node).1
}

/// The same with what is to be said of what was left out.
fn resolution(pod: &Pod, config: &NodeConfig, node: &Dns) -> (Dns, Vec<String>) {
    let s = spec(pod);
    let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
    let host_network = s.host_network == Some(true);
    let cluster = || Dns {
        servers: config.cluster_dns.iter().map(ToString::to_string).collect(),
        searches: [
            format!("{ns}.svc.{}", config.cluster_domain),
            format!("svc.{}", config.cluster_domain),
            config.cluster_domain.clone(),
        ]
        .into_iter()
        .chain(node.searches.iter().cloned())
        .collect(),
        options: vec!["ndots:5".into()],
    };
    let mut dns = match s.dns_policy.as_deref() {
        Some("None") => Dns::default(),
        Some("Default") => node.clone(),
        Some("ClusterFirstWithHostNet") if !config.cluster_dns.is_empty() => cluster(),
        _ if host_network || config.cluster_dns.is_empty() => node.clone(),
        _ => cluster(),
    };
    if let Some(own) = &s.dns_config {
        let push = |to: &mut Vec<String>, more: &[String]| {
            for m in more {
                if !to.contains(m) {
                    to.push(m.clone());
                }
            }
        };
        push(&mut dns.servers, own.nameservers.as_deref().unwrap_or_default());
        push(&mut dns.searches, own.searches.as_deref().unwrap_or_default());
        for o in own.options.iter().flatten() {
            let name = o.name.clone().unwrap_or_default();
            dns.options.retain(|x| x.split(':').next() != Some(name.as_str()));
            dns.options.push(match o.value.as_deref().filter(|v| !v.is_empty()) {
                Some(v) => format!("{name}:{v}"),
                None => name,
            });
        }
    }
    let said = fit(&mut dns);
    (dns, said)
}

/// A pod's own control group, as the node has it.
#[must_use]
pub fn cgroup(pod: &Pod, config: &NodeConfig) -> PodCgroup {
    resources::of_node(resources::of_pod(pod, &config.cgroup_root), config)
}

/// As many of these as there is room for, the smallest first: what runtimes and networks look for is small, and what is large are
/// copies of whole objects.
fn fitting(all: Option<&BTreeMap<String, String>>, most: usize) -> BTreeMap<String, String> {
    let size = |(key, value): &(&String, &String)| key.len() + value.len();
    let mut smallest: Vec<(&String, &String)> = all.into_iter().flatten().collect();
    smallest.sort_by_key(size);
    let mut taken = 0;
    let fitting = smallest.into_iter().take_while(|entry| {
        taken += size(entry);
        taken <= most
    });
    fitting.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Builds the sandbox.
#[must_use]
pub fn sandbox(pod: &Pod, attempt: u32, config: &NodeConfig, node_dns: &Dns) -> SandboxSpec {
    let s = spec(pod);
    let security = s.security_context.clone().unwrap_or_default();
    let reference = pod::pod_ref(pod);
    let host_network = s.host_network == Some(true);
    let share = |node: Option<bool>| if node == Some(true) { Sharing::Node } else { Sharing::Pod };
    let mut label_map = fitting(pod.metadata.labels.as_ref(), MAX_LABELS);
    label_map.insert(labels::POD_NAME.into(), reference.name.clone());
    label_map.insert(labels::POD_NAMESPACE.into(), reference.namespace.clone());
    label_map.insert(labels::POD_UID.into(), reference.uid.to_string());
    let ports = s
        .init_containers
        .iter()
        .flatten()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"))
        .chain(&s.containers)
        .flat_map(|c| c.ports.iter().flatten())
        .filter(|p| !host_network && p.host_port.is_some_and(|h| h > 0))
        .map(|p| PortMapping {
            protocol: p.protocol.clone().unwrap_or_else(|| "TCP".into()),
            container_port: p.container_port,
            host_port: p.host_port.unwrap_or(0),
            host_ip: p.host_ip.clone().unwrap_or_default(),
        })
        .collect();
    let pid = match (s.host_pid, s.share_process_namespace) {
        (Some(true), _) => Sharing::Node,
        (_, Some(true)) => Sharing::Pod,
        _ => Sharing::Container,
    };
    SandboxSpec {
        attempt,
        hostname: if host_network {
            String::new()
        } else {
            // No sandbox is asked for under a name that is too long.
            pod::kernel_hostname(pod, &config.cluster_domain).unwrap_or_else(|_| pod::hostname(pod))
        },
        log_directory: config.pod_log_dir(&reference),
        dns: dns(pod, config, node_dns),
        ports,
        labels: label_map,
        annotations: fitting(pod.metadata.annotations.as_ref(), MAX_ANNOTATIONS),
        cgroup: cgroup(pod, config),
        sysctls: security.sysctls.iter().flatten().map(|s| (s.name.replace('/', "."), s.value.clone())).collect(),
        network: share(s.host_network),
        pid,
        ipc: share(s.host_ipc),
        run_as_user: security.run_as_user,
        run_as_group: security.run_as_group,
        supplemental_groups: super::container::pod_groups(pod),
        privileged: s
            .init_containers
            .iter()
            .flatten()
            .chain(&s.containers)
            .any(|c| c.security_context.as_ref().is_some_and(|s| s.privileged == Some(true))),
        seccomp: Seccomp::RuntimeDefault,
        selinux: security.se_linux_options.as_ref().map(selinux),
        runtime_handler: String::new(),
        pod: reference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_sandbox_has_the_name_that_its_pod_demands() {
        for (spec, expected) in [
            (json!({"subdomain": "s"}), "p"),
            (json!({"subdomain": "s", "setHostnameAsFQDN": true}), "p.s.n.svc.cluster.local"),
            (json!({"subdomain": "s", "setHostnameAsFQDN": true, "hostNetwork": true}), ""),
        ] {
            let what = spec.to_string();
            let mut spec = spec;
            spec["containers"] = json!([]);
            let pod: Pod = carrack_types::json::from_value(
                json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}),
            )
            .unwrap();
            assert_eq!(sandbox(&pod, 0, &NodeConfig::default(), &Dns::default()).hostname, expected, "{what}");
        }
    }

    #[test]
    fn a_runtime_is_given_no_more_than_it_can_list() {
        let copy = "kubectl.kubernetes.io/last-applied-configuration";
        let network = ("k8s.v1.cni.cncf.io/networks", "lan".to_owned());
        let many =
            |count: usize| (0..count).map(|n| (format!("label-{n:05}"), "x".repeat(63))).collect::<BTreeMap<_, _>>();
        for (large, labels, annotations_left, labels_left) in [
            ("x".repeat(100), many(3), 2, 3),
            ("x".repeat(200_000), many(3), 1, 3),
            // Of 11 and 63 bytes each.
            (String::new(), many(10_000), 2, MAX_LABELS / 74),
        ] {
            let annotations = BTreeMap::from([(copy, large), network.clone()]);
            let metadata = json!({"name": "p", "uid": "u", "labels": labels, "annotations": annotations});
            let pod: Pod =
                carrack_types::json::from_value(json!({"metadata": metadata, "spec": {"containers": []}})).unwrap();
            let s = sandbox(&pod, 0, &NodeConfig::default(), &Dns::default());
            assert_eq!((s.annotations.len(), s.labels.len()), (annotations_left, labels_left + 3));
            assert_eq!(s.annotations.get(network.0), Some(&network.1));
            assert_eq!(s.labels[labels::POD_UID], "u");
        }
    }

    #[test]
    fn name_resolution_follows_the_policy() {
        let config = NodeConfig { cluster_dns: vec!["10.96.0.10".parse().unwrap()], ..NodeConfig::default() };
        let none = NodeConfig::default();
        let node = Dns { servers: vec!["1.1.1.1".into()], searches: vec!["lan".into()], options: vec![] };
        for (spec, config, servers, first_search) in [
            (json!({}), &config, vec!["10.96.0.10"], Some("n.svc.cluster.local")),
            (json!({}), &none, vec!["1.1.1.1"], Some("lan")),
            (json!({"hostNetwork": true}), &config, vec!["1.1.1.1"], Some("lan")),
            (
                json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
                &config,
                vec!["10.96.0.10"],
                Some("n.svc.cluster.local"),
            ),
            (
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["9.9.9.9"], "searches": ["x"]}}),
                &config,
                vec!["9.9.9.9"],
                Some("x"),
            ),
        ] {
            let mut spec = spec;
            spec["containers"] = json!([]);
            let pod: Pod =
                carrack_types::json::from_value(json!({"metadata": {"namespace": "n"}, "spec": spec})).unwrap();
            let d = dns(&pod, config, &node);
            assert_eq!(d.servers, servers, "{spec}");
            assert_eq!(d.searches.first().map(String::as_str), first_search, "{spec}");
        }
    }

    #[test]
    fn what_is_left_out_of_name_resolution_is_said() {
        let config = NodeConfig::default();
        let long = "x".repeat(254);
        let servers = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: \
                       1.1.1.1 2.2.2.2 3.3.3.3";
        let searches =
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: a b";
        let four = json!({"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"], "searches": ["a", long, "b"]});
        for (own, expected) in [(json!({}), vec![]), (four, vec![servers, searches])] {
            let spec = json!({"containers": [], "dnsPolicy": "None", "dnsConfig": own});
            let pod: Pod =
                carrack_types::json::from_value(json!({"metadata": {"namespace": "n"}, "spec": spec})).unwrap();
            assert_eq!(dns_troubles(&pod, &config, &Dns::default()), expected, "{spec}");
        }
    }

    #[test]
    fn name_resolution_holds_no_more_than_resolvers_read() {
        let config = NodeConfig { cluster_dns: vec!["10.96.0.10".parse().unwrap()], ..NodeConfig::default() };
        let node = Dns::default();
        let long = |n: usize| -> Vec<String> { (0..n).map(|i| format!("s{i:02}.{}", "x".repeat(96))).collect() };
        let many: Vec<String> = (0..40).map(|i| format!("s{i}")).collect();
        for (own, servers, searches, options) in [
            (json!({"nameservers": ["1.1.1.1", "1.1.1.1", "2.2.2.2", "3.3.3.3"]}), 3, 3, "ndots:5"),
            (json!({"searches": many}), 1, 32, "ndots:5"),
            // Three of the cluster, of 51 characters with the spaces between, and 19 of 100 with a space each.
            (json!({"searches": long(25)}), 1, 22, "ndots:5"),
            (json!({"options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}]}), 1, 3, "ndots:2 rotate"),
        ] {
            let spec = json!({"containers": [], "dnsConfig": own});
            let pod: Pod =
                carrack_types::json::from_value(json!({"metadata": {"namespace": "n"}, "spec": spec})).unwrap();
            let d = dns(&pod, &config, &node);
            assert_eq!((d.servers.len(), d.searches.len()), (servers, searches), "{own}");
            assert_eq!(d.options.join(" "), options, "{own}");
        }
    }

    #[test]
    fn sysctls_outside_the_pod_are_forbidden() {
        let (none, some) = (vec![], vec!["kernel.msg*".to_owned(), "net.core.somaxconn".to_owned()]);
        let not = |name: &str, why: &str| Some(format!("forbidden sysctl: {name:?} {why}"));
        let (host_net, host_ipc) = (json!({"hostNetwork": true}), json!({"hostIPC": true}));
        for (names, namespaces, allowed, want) in [
            (vec!["net/ipv4/tcp_syncookies", "net.ipv4.tcp_wmem"], json!({}), &none, None),
            (
                vec!["net.ipv4.tcp_syncookies", "kernel.msgmax"],
                json!({}),
                &none,
                not("kernel.msgmax", "not allowlisted"),
            ),
            (vec!["kernel.msgmax", "net.core.somaxconn"], json!({}), &some, None),
            (vec!["net.core.somaxconns"], json!({}), &some, not("net.core.somaxconns", "not allowlisted")),
            (
                vec!["net.ipv4.tcp_syncookies"],
                host_net.clone(),
                &none,
                not("net.ipv4.tcp_syncookies", "not allowed with host net enabled"),
            ),
            (
                vec!["kernel.shm_rmid_forced"],
                host_ipc,
                &none,
                not("kernel.shm_rmid_forced", "not allowed with host ipc enabled"),
            ),
            (vec!["kernel.shm_rmid_forced"], host_net, &none, None),
        ] {
            let list: Vec<_> = names.iter().map(|name| json!({"name": name, "value": "1"})).collect();
            let mut spec = namespaces.clone();
            spec["containers"] = json!([]);
            spec["securityContext"] = json!({"sysctls": list});
            let pod: Pod = carrack_types::json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(forbidden_sysctl(&pod, allowed), want, "{names:?} {namespaces}");
        }
    }
}
