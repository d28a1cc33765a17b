//! The FlowSchemas and priority levels that are there from the start, with upstream's values
//! (`k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap`).

use serde_json::{Value, json};

use super::{GROUP, LEVELS, SCHEMAS};

/// The number of queues and the hand that is dealt of them.
type Queues = (u64, u64);

/// Name, shares, lendable percentage, and the queues (none: who finds no seat is refused).
const LIMITED: [(&str, u64, u64, Option<Queues>); 7] = [
    ("system", 30, 33, Some((64, 6))),
    ("node-high", 40, 25, Some((64, 6))),
    ("leader-election", 10, 0, Some((16, 4))),
    ("workload-high", 40, 50, Some((128, 6))),
    ("workload-low", 100, 90, Some((128, 6))),
    ("global-default", 20, 50, Some((128, 6))),
    ("catch-all", 5, 0, None),
];

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "group": {"name": name}})
}

fn account(namespace: &str, name: &str) -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": name}})
}

fn resources(verbs: &[&str], group: &str, resources: &[&str], namespaces: &[&str], cluster: bool) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": namespaces, "clusterScope": cluster})
}

fn schema(name: &str, level: &str, precedence: u64, distinguisher: &str, rules: Vec<Value>) -> (&'static str, Value) {
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": rules,
    });
    if !distinguisher.is_empty() {
        spec["distinguisherMethod"] = json!({"type": distinguisher});
    }
    let object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "FlowSchema",
        "metadata": {"name": name, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}}, "spec": spec,
    });
    (SCHEMAS, object)
}

/// A rule for these subjects; everything, unless resources are given.
fn rule(subjects: &[Value], only: &[Value]) -> Value {
    if only.is_empty() {
        let all = resources(&["*"], "*", &["*"], &["*"], true);
        return json!({"subjects": subjects, "resourceRules": [all],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]});
    }
    json!({"subjects": subjects, "resourceRules": only})
}

/// All of them, with the plural names of their kinds.
pub(crate) fn bootstrap() -> Vec<(&'static str, Value)> {
    let mut all: Vec<(&'static str, Value)> = Vec::new();
    let level = |name: &str, spec: Value| {
        let object = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "PriorityLevelConfiguration",
            "metadata": {"name": name, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}}, "spec": spec,
        });
        (LEVELS, object)
    };
    all.push(level(
        "exempt",
        json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}),
    ));
    for (name, shares, lendable, queues) in LIMITED {
        let response = match queues {
            None => json!({"type": "Reject"}),
            Some((queues, hand)) => {
                json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50}})
            }
        };
        let limited =
            json!({"nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response});
        all.push(level(name, json!({"type": "Limited", "limited": limited})));
    }
    let everybody = [group("system:authenticated"), group("system:unauthenticated")];
    let nodes = [group("system:nodes")];
    let leases = |namespaces: &[&str]| {
        resources(&["get", "create", "update"], "coordination.k8s.io", &["leases"], namespaces, false)
    };
    let probes = json!({"subjects": everybody, "nonResourceRules": [
        {"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]});
    all.extend([
        schema("exempt", "exempt", 1, "", vec![rule(&[group("system:masters")], &[])]),
        schema("probes", "exempt", 2, "", vec![probes]),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            "ByUser",
            vec![rule(
                &[user("system:kube-controller-manager"), user("system:kube-scheduler"), account("kube-system", "*")],
                &[leases(&["*"])],
            )],
        ),
        schema(
            "endpoint-controller",
            "workload-high",
            150,
            "ByUser",
            vec![rule(
                &[user("system:kube-controller-manager"), account("kube-system", "endpoint-controller")],
                &[
                    resources(&["get", "create", "update"], "", &["endpoints"], &["*"], false),
                    resources(&["get", "create", "update"], "discovery.k8s.io", &["endpointslices"], &["*"], false),
                ],
            )],
        ),
        schema(
            "workload-leader-election",
            "leader-election",
            200,
            "ByUser",
            vec![rule(&[group("system:serviceaccounts"), user("kubevirt.io:virt-controller")], &[leases(&["*"])])],
        ),
        schema(
            "system-node-high",
            "node-high",
            400,
            "ByUser",
            vec![rule(
                &nodes,
                &[
                    resources(&["*"], "", &["nodes", "nodes/status"], &["*"], true),
                    resources(&["*"], "coordination.k8s.io", &["leases"], &["*"], false),
                ],
            )],
        ),
        // Not upstream's: the agents of virtual machines beat beside the kubelets, and count as they do.
        schema("virt-handlers", "node-high", 410, "ByUser", vec![rule(&[group("kubevirt.io:virt-handlers")], &[])]),
        schema("system-nodes", "system", 500, "ByUser", vec![rule(&nodes, &[])]),
        schema(
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            vec![rule(&[user("system:kube-controller-manager"), user("kubevirt.io:virt-controller")], &[])],
        ),
        schema(
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            vec![rule(&[user("system:kube-scheduler")], &[])],
        ),
        schema(
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            vec![rule(&[account("kube-system", "*")], &[])],
        ),
        schema("service-accounts", "workload-low", 9000, "ByUser", vec![rule(&[group("system:serviceaccounts")], &[])]),
        schema("global-default", "global-default", 9900, "ByUser", vec![rule(&everybody, &[])]),
        schema("catch-all", "catch-all", 10_000, "ByUser", vec![rule(&everybody, &[])]),
    ]);
    all
}
