//! Tables for admission.

use super::*;
use crate::devices::{Device, PluginOptions};
use crate::spec::manifest::{HASH, SOURCE};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KVM: &str = "devices.kubevirt.io/kvm";

#[derive(Clone)]
struct World {
    metadata: Value,
    pod: Value,
    labels: Value,
    taints: Value,
    node_allocatable: Value,
    node_read: bool,
    admitted_before: bool,
    bound_before_start: bool,
    pressure: crate::eviction::Pressure,
    used: Amounts,
    leaving: Amounts,
    devices: Devices,
    strict_groups: Option<bool>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            metadata: json!({"uid": "u"}),
            pod: json!({"containers": [{"name": "c"}]}),
            labels: json!({"zone": "a", "size": "5"}),
            taints: json!([]),
            node_allocatable: json!({}),
            node_read: true,
            admitted_before: false,
            bound_before_start: false,
            pressure: crate::eviction::Pressure::default(),
            used: Amounts::new(),
            leaving: Amounts::new(),
            devices: Devices::default(),
            strict_groups: None,
        }
    }
}

impl World {
    fn wants(resources: Value) -> Self {
        Self { pod: json!({"containers": [{"name": "c", "resources": {"limits": resources}}]}), ..Self::default() }
    }
    fn kvm(self, advertised: bool, registered: bool, healthy: usize, unhealthy: usize) -> Self {
        let mut devices =
            Devices::restore(BTreeMap::new(), advertised.then(|| KVM.to_owned()).into_iter().collect(), true);
        if registered {
            devices.plugin_up(KVM, 1, PluginOptions::default());
            let list = (0..healthy + unhealthy)
                .map(|n| Device { id: format!("{n}"), healthy: n < healthy, numa_nodes: vec![] })
                .collect();
            devices.plugin_devices(KVM, 1, list);
        }
        Self { devices, ..self }
    }
    /// `admit`, `reject <reason>` or `wait <resource>`.
    fn decide(&self) -> String {
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": self.metadata, "spec": self.pod})).unwrap();
        let node: Node = carrack_types::json::from_value(json!({
            "metadata": {"name": "node", "labels": self.labels},
            "spec": {"taints": self.taints},
            "status": {"allocatable": self.node_allocatable}
        }))
        .unwrap();
        let d = decide(&Inputs {
            pod: &pod,
            node: self.node_read.then_some(&node),
            admitted_before: self.admitted_before,
            bound_before_start: self.bound_before_start,
            allocatable: &Amounts::from([("cpu".into(), 2000), ("pods".into(), 2000), ("memory".into(), 1 << 40)]),
            used: &self.used,
            leaving: &self.leaving,
            host_ports: &BTreeSet::from([HostPort { protocol: "TCP".into(), port: 80, ip: "0.0.0.0".into() }]),
            devices: &self.devices,
            strict_groups: self.strict_groups,
            apparmor: false,
            declared: &["RestartAllContainersOnContainerExits"],
            pressure: self.pressure,
            allowed_sysctls: &[],
            runs: false,
            planted: None,
        });
        match d {
            Decision::Admit => "admit".into(),
            Decision::Reject { reason, .. } => format!("reject {reason}"),
            Decision::Wait { resource, .. } => format!("wait {resource}"),
        }
    }
}

#[test]
fn devices_are_waited_for_and_never_skipped() {
    let vm = || World::wants(json!({KVM: "1"}));
    for (world, expected) in [
        (vm().kvm(false, false, 0, 0), "reject OutOfdevices.kubevirt.io/kvm"),
        (World { bound_before_start: true, ..vm() }, "wait devices.kubevirt.io/kvm"),
        (World { node_allocatable: json!({KVM: "0"}), ..vm() }, "wait devices.kubevirt.io/kvm"),
        (World { node_allocatable: json!({KVM: "1"}), ..vm() }, "admit"),
        (vm().kvm(true, false, 0, 0), "wait devices.kubevirt.io/kvm"),
        (vm().kvm(true, true, 0, 1), "wait devices.kubevirt.io/kvm"),
        (vm().kvm(true, true, 1, 0), "admit"),
        (World::wants(json!({KVM: "2"})).kvm(true, true, 1, 0), "reject OutOfdevices.kubevirt.io/kvm"),
        (
            World { used: Amounts::from([(KVM.into(), 1000)]), ..vm().kvm(true, true, 1, 0) },
            "reject OutOfdevices.kubevirt.io/kvm",
        ),
        (
            World {
                used: Amounts::from([(KVM.into(), 1000)]),
                leaving: Amounts::from([(KVM.into(), 1000)]),
                ..vm().kvm(true, true, 1, 0)
            },
            "wait devices.kubevirt.io/kvm",
        ),
        // Admitted once: whatever became of the plugin.
        (World { admitted_before: true, ..vm().kvm(true, false, 0, 0) }, "admit"),
        (World { admitted_before: true, ..vm() }, "admit"),
    ] {
        assert_eq!(world.decide(), expected);
    }
}

#[test]
fn what_the_runtime_cannot_do_is_refused_and_not_left_out() {
    let strict = json!({"containers": [{"name": "c"}], "securityContext": {"supplementalGroupsPolicy": "Strict"}});
    let merge = json!({"containers": [{"name": "c"}], "securityContext": {"supplementalGroupsPolicy": "Merge"}});
    let confined =
        |kind: &str| json!({"containers": [{"name": "c", "securityContext": {"appArmorProfile": {"type": kind}}}]});
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}});
    let together = json!({"containers": [{"name": "c", "restartPolicy": "Never", "restartPolicyRules": [rule]}]});
    let on_host = json!({"containers": [{"name": "c"}], "hostNetwork": true, "hostUsers": false});
    for (pod, strict_groups, expected) in [
        (&strict, Some(true), "admit"),
        (&strict, None, "admit"),
        (&strict, Some(false), "reject SupplementalGroupsPolicyNotSupported"),
        (&merge, Some(false), "admit"),
        (&confined("RuntimeDefault"), None, "reject AppArmor"),
        (&confined("Unconfined"), None, "admit"),
        (&together, None, "admit"),
        (&on_host, None, "reject PodFeatureUnsupported"),
    ] {
        let world = World { pod: pod.clone(), strict_groups, ..World::default() };
        assert_eq!(world.decide(), expected, "{pod}");
        let began = World { admitted_before: true, ..world };
        assert_eq!(began.decide(), "admit", "one that began here before, whatever kubelet that was: {pod}");
    }
}

#[test]
fn a_node_that_is_low_on_something_takes_few() {
    use crate::eviction::Pressure;
    let (memory, disk, pid) = (
        Pressure { memory: true, ..Pressure::default() },
        Pressure { disk: true, ..Pressure::default() },
        Pressure { pid: true, ..Pressure::default() },
    );
    let all = Pressure { memory: true, disk: true, pid: true };
    let tolerating = |t: Value| json!({"containers": [{"name": "c"}], "tolerations": [t]});
    let plain = || json!({"containers": [{"name": "c"}]});
    let asking = || json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]});
    let any = || tolerating(json!({"operator": "Exists"}));
    let key = |key: &str, effect: &str| tolerating(json!({"key": key, "operator": "Exists", "effect": effect}));
    let mut critical = plain();
    critical["priority"] = 2_000_000_000.into();
    for (pod, pressure, expected) in [
        (plain(), memory, "reject Evicted"),
        (asking(), memory, "admit"),
        (any(), memory, "admit"),
        (key("node.kubernetes.io/memory-pressure", "NoSchedule"), memory, "admit"),
        (key("node.kubernetes.io/memory-pressure", "NoExecute"), memory, "reject Evicted"),
        (key("node.kubernetes.io/disk-pressure", "NoSchedule"), memory, "reject Evicted"),
        // What else it is low on keeps out who tolerates it, too.
        (asking(), disk, "reject Evicted"),
        (any(), disk, "reject Evicted"),
        (key("node.kubernetes.io/disk-pressure", "NoSchedule"), disk, "reject Evicted"),
        (key("node.kubernetes.io/pid-pressure", "NoSchedule"), pid, "reject Evicted"),
        (any(), all, "reject Evicted"),
        (critical, all, "admit"),
        (plain(), Pressure::default(), "admit"),
    ] {
        let world = World { pod: pod.clone(), pressure, ..World::default() };
        assert_eq!(world.decide(), expected, "{pod} {pressure:?}");
        let admitted = World { admitted_before: true, ..world };
        assert_eq!(admitted.decide(), "admit", "who runs is evicted or left alone: {pod}");
    }
}

#[test]
fn resources() {
    for (world, expected) in [
        (World::default(), "admit"),
        (World { node_read: false, ..World::default() }, "wait node"),
        (World::wants(json!({"cpu": "2"})), "admit"),
        (World::wants(json!({"cpu": "2001m"})), "reject OutOfcpu"),
        (World::wants(json!({"hugepages-2Mi": "2Mi"})), "reject OutOfhugepages-2Mi"),
        (World { used: Amounts::from([("pods".into(), 2000)]), ..World::default() }, "reject OutOfpods"),
        (
            World {
                used: Amounts::from([("pods".into(), 2000)]),
                leaving: Amounts::from([("pods".into(), 1000)]),
                ..World::default()
            },
            "wait pods",
        ),
    ] {
        assert_eq!(world.decide(), expected);
    }
}

#[test]
fn placement() {
    let affinity = |expr: Value| {
        json!({"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [expr]}]}}}})
    };
    let taint = json!([{"key": "k", "value": "v", "effect": "NoExecute"}]);
    let tolerates = |t: Value| json!({"containers": [], "tolerations": [t]});
    for (pod, taints, expected) in [
        (json!({"containers": [], "nodeSelector": {"zone": "a"}}), json!([]), "admit"),
        (json!({"containers": [], "nodeSelector": {"zone": "b"}}), json!([]), "reject NodeAffinity"),
        (affinity(json!({"key": "zone", "operator": "In", "values": ["a"]})), json!([]), "admit"),
        (affinity(json!({"key": "zone", "operator": "NotIn", "values": ["a"]})), json!([]), "reject NodeAffinity"),
        (affinity(json!({"key": "none", "operator": "NotIn", "values": ["a"]})), json!([]), "admit"),
        (affinity(json!({"key": "none", "operator": "DoesNotExist"})), json!([]), "admit"),
        (affinity(json!({"key": "size", "operator": "Gt", "values": ["4"]})), json!([]), "admit"),
        (affinity(json!({"key": "size", "operator": "Lt", "values": ["4"]})), json!([]), "reject NodeAffinity"),
        (json!({"containers": []}), taint.clone(), "reject TaintToleration"),
        (json!({"containers": []}), json!([{"key": "k", "effect": "NoSchedule"}]), "admit"),
        (tolerates(json!({"operator": "Exists"})), taint.clone(), "admit"),
        (tolerates(json!({"key": "k", "value": "v"})), taint.clone(), "admit"),
        (tolerates(json!({"key": "k", "value": "w"})), taint, "reject TaintToleration"),
        (
            json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
            json!([]),
            "reject NodePorts",
        ),
        (json!({"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}), json!([]), "admit"),
        (json!({"containers": [], "os": {"name": "windows"}}), json!([]), "reject PodOSNotSupported"),
    ] {
        let world = World { pod: pod.clone(), taints, ..World::default() };
        assert_eq!(world.decide(), expected, "{pod}");
        let admitted = World { admitted_before: true, ..world };
        assert_eq!(admitted.decide(), "admit", "placement is judged once: {pod}");
    }
}

/// One from a URL tolerates nothing by itself, as one from a file does.
#[test]
fn no_taint_keeps_a_static_pod_out() {
    let hash = "0123456789abcdef0123456789abcdef";
    let static_one = || json!({"uid": hash, "annotations": {HASH: hash, SOURCE: "http"}});
    let elsewhere = json!({"containers": [], "nodeSelector": {"zone": "b"}});
    for (metadata, pod, expected) in [
        (static_one(), json!({"containers": []}), "admit"),
        (json!({"uid": "u"}), json!({"containers": []}), "reject TaintToleration"),
        (static_one(), elsewhere, "reject NodeAffinity"),
    ] {
        let taints = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]);
        let world = World { metadata, pod, taints, ..World::default() };
        assert_eq!(world.decide(), expected, "{} {}", world.metadata, world.pod);
    }
}
