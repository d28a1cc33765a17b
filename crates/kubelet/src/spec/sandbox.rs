//! The sandbox of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, SeccompProfile};

use super::pod::{self, spec};
use super::resources;
use crate::config::NodeConfig;
use crate::runtime::{Dns, PortMapping, SandboxSpec, Seccomp, Sharing, labels};

/// Kernel settings that a pod may change, since they belong to its own namespaces
/// (<https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/>).
const SAFE_SYSCTLS: [&str; 11] = [
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
];

/// The first kernel setting that the pod may not change.
#[must_use]
pub fn forbidden_sysctl(pod: &Pod) -> Option<String> {
    spec(pod)
        .security_context
        .iter()
        .flat_map(|s| s.sysctls.iter().flatten())
        .map(|s| s.name.replace('/', "."))
        .find(|name| !SAFE_SYSCTLS.contains(&name.as_str()))
}

/// A seccomp profile; unconfined without one, as upstream does by default.
#[must_use]
pub fn seccomp(profile: Option<&SeccompProfile>, root_dir: &str) -> Seccomp {
    match profile.map(|p| (p.type_.as_str(), p.localhost_profile.as_deref())) {
        Some(("RuntimeDefault", _)) => Seccomp::RuntimeDefault,
        Some(("Localhost", Some(file))) => Seccomp::Localhost(format!("{root_dir}/seccomp/{file}")),
        _ => Seccomp::Unconfined,
    }
}

/// Name resolution by the pod's dnsPolicy
/// (<https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/>).
#[must_use]
pub fn dns(pod: &Pod, config: &NodeConfig, node: &Dns) -> Dns {
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
    dns
}

/// Builds the sandbox.
#[must_use]
pub fn sandbox(pod: &Pod, attempt: u32, config: &NodeConfig, node_dns: &Dns) -> SandboxSpec {
    let s = spec(pod);
    let security = s.security_context.clone().unwrap_or_default();
    let reference = pod::pod_ref(pod);
    let host_network = s.host_network == Some(true);
    let share = |node: Option<bool>| if node == Some(true) { Sharing::Node } else { Sharing::Pod };
    let mut label_map: BTreeMap<String, String> = pod.metadata.labels.clone().unwrap_or_default();
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
        hostname: if host_network { String::new() } else { pod::hostname(pod) },
        log_directory: config.pod_log_dir(&reference),
        dns: dns(pod, config, node_dns),
        ports,
        labels: label_map,
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        cgroup: resources::of_pod(pod, &config.cgroup_root),
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
        runtime_handler: String::new(),
        pod: reference,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
            let pod: Pod = serde_json::from_value(json!({"metadata": {"namespace": "n"}, "spec": spec})).unwrap();
            let d = dns(&pod, config, &node);
            assert_eq!(d.servers, servers, "{spec}");
            assert_eq!(d.searches.first().map(String::as_str), first_search, "{spec}");
        }
    }

    #[test]
    fn sysctls_outside_the_pod_are_forbidden() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "securityContext": {"sysctls": [
            {"name": "net/ipv4/tcp_syncookies", "value": "1"}, {"name": "kernel.msgmax", "value": "1"}]}}}))
        .unwrap();
        assert_eq!(forbidden_sysctl(&pod).as_deref(), Some("kernel.msgmax"));
    }
}
