//! Whether what a pod asks of a node is left there: host ports and amounts. Shared by the scheduler and the kubelet's
//! admission, so that the one never binds what the other rejects.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

/// A port of the node that a pod takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Port.
    pub port: i32,
    /// `0.0.0.0` for all addresses.
    pub ip: String,
}

const ANY: &str = "0.0.0.0";

impl HostPort {
    /// Whether both cannot be on one node.
    #[must_use]
    pub fn clashes(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == ANY || other.ip == ANY)
    }
}

/// Ports of the node that a pod takes: those of its containers and of its sidecars, sorted, each once. In the host's
/// network a container's ports are the node's, as the API server defaults them.
#[must_use]
pub fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let in_host_network = spec.host_network == Some(true);
    let sidecar = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(sidecar));
    let mut ports: Vec<HostPort> = containers
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|p| {
            Some(HostPort {
                port: p.host_port.filter(|port| *port > 0).or(in_host_network.then_some(p.container_port))?,
                ip: p.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| ANY.into()),
                protocol: p.protocol.clone().unwrap_or_else(|| "TCP".into()),
            })
        })
        .collect();
    ports.sort();
    ports.dedup();
    ports
}

/// As [`host_ports`], of a pod that may have no spec.
#[must_use]
pub fn host_ports_of(pod: &Pod) -> Vec<HostPort> {
    pod.spec.as_ref().map(host_ports).unwrap_or_default()
}

/// The first of a pod's ports that somebody has already.
#[must_use]
pub fn taken<'a, 'b>(
    wanted: &'a [HostPort],
    others: impl Iterator<Item = &'b HostPort> + Clone,
) -> Option<&'a HostPort> {
    wanted.iter().find(|p| others.clone().any(|other| p.clashes(other)))
}

/// Whether an amount is left: `asked` beside what is `used` of a `whole`. All in the same unit. Nothing always fits.
#[must_use]
pub fn fits(asked: i128, used: i128, whole: i128) -> bool {
    asked <= 0 || asked <= whole.saturating_sub(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn ports(spec: Value) -> Vec<HostPort> {
        host_ports(&serde_json::from_value(spec).expect("a spec"))
    }

    #[test]
    fn ports_of_the_node() {
        let check = |spec: Value, expected: &[(&str, i32, &str)]| {
            let found = ports(spec.clone());
            let found: Vec<_> = found.iter().map(|p| (p.protocol.as_str(), p.port, p.ip.as_str())).collect();
            assert_eq!(found, expected, "{spec}");
        };
        let with = |ports: Value| json!({"containers": [{"name": "c", "ports": ports}]});
        check(with(json!([{"containerPort": 80}])), &[]);
        check(with(json!([{"containerPort": 80, "hostPort": 0}])), &[]);
        check(with(json!([{"containerPort": 80, "hostPort": 8080}])), &[("TCP", 8080, "0.0.0.0")]);
        check(
            with(json!([{"containerPort": 1, "hostPort": 2, "hostIP": "127.0.0.1", "protocol": "UDP"}])),
            &[("UDP", 2, "127.0.0.1")],
        );
        check(
            json!({"hostNetwork": true, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}),
            &[("TCP", 80, "0.0.0.0")],
        );
        let init = |policy: Value| {
            json!({"containers": [], "initContainers": [{"name": "i", "restartPolicy": policy,
            "ports": [{"containerPort": 1, "hostPort": 5}]}]})
        };
        check(init(json!(null)), &[]);
        check(init(json!("Always")), &[("TCP", 5, "0.0.0.0")]);
    }

    #[test]
    fn ports_clash_on_the_same_address() {
        let port = |protocol: &str, port: i32, ip: &str| HostPort { protocol: protocol.into(), port, ip: ip.into() };
        let check = |a: &HostPort, b: &HostPort, clash: bool| {
            assert_eq!((a.clashes(b), b.clashes(a)), (clash, clash), "{a:?} {b:?}");
            assert_eq!(taken(std::slice::from_ref(a), std::iter::once(b)).is_some(), clash, "{a:?} {b:?}");
        };
        let all = port("TCP", 80, ANY);
        check(&all, &port("TCP", 80, ANY), true);
        check(&all, &port("TCP", 80, "10.0.0.1"), true);
        check(&port("TCP", 80, "10.0.0.2"), &port("TCP", 80, "10.0.0.1"), false);
        check(&all, &port("UDP", 80, ANY), false);
        check(&all, &port("TCP", 81, ANY), false);
    }

    #[test]
    fn amounts_fit_what_is_left() {
        for (asked, used, whole, fit) in
            [(1, 1, 2, true), (2, 1, 2, false), (0, 5, 2, true), (1, i128::MIN, 0, true), (1, i128::MAX, 0, false)]
        {
            assert_eq!(fits(asked, used, whole), fit, "{asked} beside {used} of {whole}");
        }
    }
}
