//! The FlowSchemas and priority levels that are there from the start, with upstream's values
//! (`k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap`).

use carrack_schema::error::FieldError;
use carrack_schema::table::find;
use serde_json::{Value, json};

use super::{GROUP, LEVELS, SCHEMAS};
use crate::kinds;
use crate::object::Object;

/// Says of an object whether its spec is kept as it is here.
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// The level, and the schema, that nothing limits.
const EXEMPT: &str = "exempt";
/// Those without which some request would have no place.
const MANDATORY: [&str; 2] = [EXEMPT, "catch-all"];

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
        "metadata": {"name": name, "annotations": {AUTOUPDATE: "true"}}, "spec": spec,
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
            "metadata": {"name": name, "annotations": {AUTOUPDATE: "true"}}, "spec": spec,
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

/// One of these as it is to be; none where it is so already. The mandatory ones have their spec whatever was made of them, the
/// others as long as their annotation says so, or says nothing and nobody has changed them
/// (`pkg/registry/flowcontrol/ensurer`).
pub(crate) fn mended(plural: &str, wanted: &Value, stored: &Value) -> Option<Value> {
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let said = stored["metadata"]["annotations"][AUTOUPDATE].as_str().and_then(truth);
    let is_kept = MANDATORY.contains(&name) || said.unwrap_or(stored["metadata"]["generation"] == 1);
    let mut mended = stored.clone();
    if said != Some(is_kept) {
        mended["metadata"]["annotations"][AUTOUPDATE] = is_kept.to_string().into();
    }
    if is_kept {
        let mut spec = completed(plural, wanted);
        // What the level lends and is given is for users to say.
        if (plural, name) == (LEVELS, EXEMPT) && stored["spec"]["exempt"].is_object() {
            spec["exempt"] = stored["spec"]["exempt"].clone();
        }
        mended["spec"] = spec;
    }
    (mended != *stored).then_some(mended)
}

/// What is wrong with one of the mandatory ones: their spec is theirs, and a change of it would not last. What the level that
/// nothing limits is given, and lends of it, is for users to say.
///
/// Upstream: `pkg/apis/flowcontrol/validation`.
pub(crate) fn fixed_fault(plural: &str, object: &Object) -> Option<FieldError> {
    let name = crate::object::name(object);
    if !MANDATORY.contains(&name) {
        return None;
    }
    let is_it = |(of, wanted): &(&str, Value)| *of == plural && wanted["metadata"]["name"] == name;
    let (_, wanted) = bootstrap().into_iter().find(is_it)?;
    let (fixed, given) = (completed(plural, &wanted), object.get("spec").cloned().unwrap_or_default());
    let (mut spec, mut but) = (given.clone(), "");
    if (plural, name) == (LEVELS, EXEMPT) {
        spec["exempt"] = fixed["exempt"].clone();
        but = " except the 'spec.exempt' field";
    }
    (spec != fixed)
        .then(|| FieldError::invalid("spec", given, format!("spec of '{name}'{but} must equal the fixed value")))
}

/// The spec of an object in the form in which it is stored: without what is as good as absent, with its defaults.
fn completed(plural: &str, wanted: &Value) -> Value {
    let mut object = wanted.as_object().cloned().unwrap_or_default();
    if let Some(row) = find(GROUP, plural)
        && let Some(version) = row.versions.iter().find(|version| version.name == "v1")
        && kinds::conform(row, version, &mut object).is_ok()
    {
        kinds::default(row, version, &mut object);
    }
    object.remove("spec").unwrap_or_default()
}

/// What Go's `strconv.ParseBool` makes of a text.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stored object of the start, with this put into it.
    fn stored(plural: &str, name: &str, change: impl FnOnce(&mut Value)) -> (Value, Value) {
        let is_it = |(of, object): &(&str, Value)| *of == plural && object["metadata"]["name"] == name;
        let (_, wanted) = bootstrap().into_iter().find(is_it).expect("one of the start");
        let mut object = wanted.clone();
        object["spec"] = completed(plural, &wanted);
        object["metadata"]["generation"] = 2.into();
        change(&mut object);
        (wanted, object)
    }

    /// Whether the spec becomes the wanted one, and what the annotation says then; none where nothing is written.
    #[track_caller]
    fn check(plural: &str, name: &str, change: &dyn Fn(&mut Value), want: Option<(bool, &str)>) {
        let (wanted, object) = stored(plural, name, change);
        let told = mended(plural, &wanted, &object);
        let told = told.as_ref().map(|mended| {
            let said = mended["metadata"]["annotations"][AUTOUPDATE].as_str().unwrap_or_default();
            (mended["spec"] == completed(plural, &wanted), said)
        });
        assert_eq!(told, want, "{plural} {name} {object}");
    }

    #[test]
    fn objects_get_back_what_is_not_for_users_to_say() {
        let precedence = |object: &mut Value| object["spec"]["matchingPrecedence"] = 7.into();
        let shares = |object: &mut Value| object["spec"]["exempt"]["nominalConcurrencyShares"] = 9.into();
        let says = |object: &mut Value, said: &str| object["metadata"]["annotations"][AUTOUPDATE] = said.into();
        let silent = |object: &mut Value, generation: u64| {
            object["metadata"]["annotations"] = Value::Null;
            object["metadata"]["generation"] = generation.into();
        };
        for (plural, object) in bootstrap() {
            check(plural, object["metadata"]["name"].as_str().unwrap_or_default(), &|_| {}, None);
        }
        check(SCHEMAS, "service-accounts", &precedence, Some((true, "true")));
        let off = |object: &mut Value| {
            precedence(object);
            says(object, "false");
        };
        check(SCHEMAS, "service-accounts", &off, None);
        check(SCHEMAS, "catch-all", &off, Some((true, "true")));
        let at = |generation: u64| {
            move |object: &mut Value| {
                precedence(object);
                silent(object, generation);
            }
        };
        check(SCHEMAS, "service-accounts", &at(1), Some((true, "true")));
        check(SCHEMAS, "service-accounts", &at(2), Some((false, "false")));
        check(SCHEMAS, "catch-all", &at(2), Some((true, "true")));
        check(SCHEMAS, "service-accounts", &|object| says(object, "perhaps"), Some((true, "false")));
        check(LEVELS, "exempt", &shares, None);
        check(LEVELS, "catch-all", &|object| object["spec"]["limited"] = Value::Null, Some((true, "true")));
    }

    /// What is said of a mandatory one that somebody has changed.
    #[track_caller]
    fn check_fixed(plural: &str, name: &str, change: &dyn Fn(&mut Value), want: Option<&str>) {
        let (_, object) = stored(plural, name, change);
        let fault = object.as_object().and_then(|object| fixed_fault(plural, object));
        assert_eq!(fault.as_ref().map(|fault| fault.detail.as_str()), want, "{plural} {object}");
    }

    #[test]
    fn the_mandatory_ones_are_not_for_users_to_change() {
        let precedence = |object: &mut Value| object["spec"]["matchingPrecedence"] = 7.into();
        let shares = |object: &mut Value| object["spec"]["limited"]["nominalConcurrencyShares"] = 9.into();
        let own = |object: &mut Value| object["spec"]["exempt"]["nominalConcurrencyShares"] = 9.into();
        let none = |object: &mut Value| object["spec"] = json!({"type": "Exempt"});
        let kind = |object: &mut Value| object["spec"]["type"] = "Limited".into();
        for (plural, object) in bootstrap() {
            check_fixed(plural, object["metadata"]["name"].as_str().unwrap_or_default(), &|_| {}, None);
        }
        check_fixed(LEVELS, "exempt", &own, None);
        check_fixed(LEVELS, "exempt", &none, None);
        check_fixed(SCHEMAS, "probes", &precedence, None);
        let why = "spec of 'exempt' except the 'spec.exempt' field must equal the fixed value";
        check_fixed(LEVELS, "exempt", &kind, Some(why));
        check_fixed(SCHEMAS, "exempt", &precedence, Some("spec of 'exempt' must equal the fixed value"));
        let why = "spec of 'catch-all' must equal the fixed value";
        check_fixed(SCHEMAS, "catch-all", &precedence, Some(why));
        check_fixed(LEVELS, "catch-all", &shares, Some(why));
    }
}
