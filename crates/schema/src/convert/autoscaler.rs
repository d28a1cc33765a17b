//! HorizontalPodAutoscalers between `autoscaling/v1`, which knows a target for the CPU, and `autoscaling/v2`, which
//! knows any metrics.
//!
//! What v1 has no fields for travels in annotations, so that a client of v1 that writes back what it read loses
//! nothing. Metrics there have the fields of an older version, and the behavior has names that begin with capitals. An
//! annotation that says something else is as good as absent.
//!
//! Upstream: `k8s.io/kubernetes/pkg/apis/autoscaling/{annotations,helpers}.go` and `v1/conversion.go` beside them.

use serde_json::{Map, Value, json};

use crate::{decode, table};

type Fields = Map<String, Value>;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// What v1 says of the spec, and of the status, in annotations.
const OF_SPEC: [&str; 2] = [METRICS, BEHAVIOR];
const OF_STATUS: [&str; 2] = [CURRENT_METRICS, CONDITIONS];

const CPU_TARGET: &str = "targetCPUUtilizationPercentage";
const CPU_CURRENT: &str = "currentCPUUtilizationPercentage";
/// v1 has it even where it is 0, v2 does not.
const CURRENT_REPLICAS: &str = "currentReplicas";

/// How much of the CPU that they request pods are to use where nothing is said of any metric, in percent.
pub(crate) const DEFAULT_CPU_PERCENT: i64 = 80;

/// What stands for `@` in [`FIELDS`]: in what is wanted, and in what is.
const WANTED: &str = "target";
const CURRENT: &str = "current";

const SOURCES: [&str; 5] = ["containerResource", "external", "object", "pods", "resource"];
/// Of which sources of metrics; the field in the annotations; the path in v2.
const FIELDS: [(&[&str], &str, &str); 10] = [
    (&["object"], "target", "describedObject"),
    (&["external", "object", "pods"], "metricName", "metric/name"),
    (&["object", "pods"], "selector", "metric/selector"),
    (&["external"], "metricSelector", "metric/selector"),
    (&["external", "object"], "@Value", "@/value"),
    (&["object"], "averageValue", "@/averageValue"),
    (&["containerResource", "external", "pods", "resource"], "@AverageValue", "@/averageValue"),
    (&["containerResource", "resource"], "@AverageUtilization", "@/averageUtilization"),
    (&["containerResource", "resource"], "name", "name"),
    (&["containerResource"], "container", "container"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToV1,
    ToV2,
}

/// Makes v1 of v2.
pub(super) fn to_v1(map: &mut Fields) {
    forget(map, &OF_SPEC);
    forget(map, &OF_STATUS);
    let mut told: Vec<(&str, Value)> = Vec::new();
    if let Some(spec) = object(map, "spec") {
        let mut others = Vec::new();
        for metric in list(spec.remove("metrics")) {
            match cpu(&metric, WANTED).cloned() {
                Some(target) if !spec.contains_key(CPU_TARGET) => {
                    spec.insert(CPU_TARGET.to_owned(), target);
                }
                _ => others.push(translated(&metric, WANTED, Direction::ToV1)),
            }
        }
        told.push((METRICS, others.into()));
        if let Some(behavior) = spec.remove("behavior") {
            told.push((BEHAVIOR, cased(behavior, Direction::ToV1)));
        }
    }
    if let Some(status) = object(map, "status") {
        let current = list(status.remove("currentMetrics"));
        if let Some(share) = current.iter().filter_map(|metric| cpu(metric, CURRENT)).next_back() {
            status.insert(CPU_CURRENT.to_owned(), share.clone());
        }
        status.entry(CURRENT_REPLICAS).or_insert_with(|| 0.into());
        // Of the CPU, too: there is more to say of it than v1 has a field for.
        told.push((CURRENT_METRICS, translated_all(&current, CURRENT, Direction::ToV1)));
        told.push((CONDITIONS, list(status.remove("conditions")).into()));
    }
    for (name, value) in told {
        if !is_empty(&value) {
            tell(map, name, &value);
        }
    }
}

/// Makes v2 of v1.
pub(super) fn to_v2(map: &mut Fields) {
    let metrics = told(map, METRICS).map(|said| translated_all(&list(Some(said)), WANTED, Direction::ToV2));
    let metrics = list(metrics.and_then(|metrics| fitting("spec", "metrics", metrics)));
    let behavior = told(map, BEHAVIOR).and_then(|said| fitting("spec", "behavior", cased(said, Direction::ToV2)));
    let current = told(map, CURRENT_METRICS).map(|said| translated_all(&list(Some(said)), CURRENT, Direction::ToV2));
    let current = list(current.and_then(|current| fitting("status", "currentMetrics", current)));
    let conditions = list(told(map, CONDITIONS).and_then(|said| fitting("status", "conditions", said)));
    forget(map, &OF_SPEC);
    forget(map, &OF_STATUS);
    if let Some(spec) = object(map, "spec") {
        let mut metrics = metrics;
        let target = spec.remove(CPU_TARGET).filter(|target| !target.is_null());
        // Only the annotation tells whether there is anything else to go by.
        let target = target.or_else(|| metrics.is_empty().then(|| DEFAULT_CPU_PERCENT.into()));
        metrics.extend(target.map(cpu_metric));
        spec.insert("metrics".to_owned(), metrics.into());
        if let Some(behavior) = behavior.filter(|behavior| !is_empty(behavior)) {
            spec.insert("behavior".to_owned(), behavior);
        }
    }
    if let Some(status) = object(map, "status") {
        if status.get(CURRENT_REPLICAS).is_some_and(|replicas| *replicas == 0) {
            status.remove(CURRENT_REPLICAS);
        }
        let share = status.remove(CPU_CURRENT).filter(|share| !share.is_null());
        let of_cpu = share.filter(|_| current.is_empty()).map(
            |share| json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": share}}}),
        );
        let current: Vec<Value> = current.into_iter().chain(of_cpu).collect();
        for (field, items) in [("currentMetrics", current), ("conditions", conditions)] {
            if !items.is_empty() {
                status.insert(field.to_owned(), items.into());
            }
        }
    }
}

/// A metric of v2: pods are to use so much of the CPU that they request, in percent.
pub(crate) fn cpu_metric(percent: impl Into<Value>) -> Value {
    let percent: Value = percent.into();
    let target = json!({"type": "Utilization", "averageUtilization": percent});
    json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
}

/// Whether an object of v1 says in an annotation that it goes by other metrics than the CPU.
pub(crate) fn has_other_metrics(map: &Fields) -> bool {
    map.get("metadata").and_then(|metadata| metadata.get("annotations")).is_some_and(|all| all.get(METRICS).is_some())
}

/// Restores the annotations that say something of a field, `spec` or `status`.
pub(super) fn keep(field: &str, new: &mut Fields, old: Option<&Fields>) {
    let names = match field {
        "spec" => OF_SPEC,
        "status" => OF_STATUS,
        _ => return,
    };
    forget(new, &names);
    let before = old.and_then(|old| old.get("metadata")).and_then(|metadata| metadata.get("annotations"));
    for name in names {
        if let Some(Value::String(text)) = before.and_then(|annotations| annotations.get(name)) {
            annotate(new, name, text.clone());
        }
    }
}

fn object<'a>(map: &'a mut Fields, key: &str) -> Option<&'a mut Fields> {
    map.get_mut(key).and_then(Value::as_object_mut)
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        other => other.is_null(),
    }
}

/// The utilization of the CPU that a metric of v2 is about.
fn cpu<'a>(metric: &'a Value, side: &str) -> Option<&'a Value> {
    let resource = metric.get("resource").filter(|resource| resource.get("name").is_some_and(|name| name == "cpu"))?;
    let is_resource = metric.get("type").is_some_and(|kind| kind == "Resource");
    resource.get(side)?.get("averageUtilization").filter(|share| is_resource && !share.is_null())
}

fn translated_all(metrics: &[Value], side: &str, direction: Direction) -> Value {
    metrics.iter().map(|metric| translated(metric, side, direction)).collect()
}

/// A metric with the other version's fields.
fn translated(metric: &Value, side: &str, direction: Direction) -> Value {
    let mut out = Fields::new();
    out.insert("type".to_owned(), metric.get("type").cloned().unwrap_or_default());
    for source in SOURCES {
        let Some(given) = metric.get(source).filter(|given| given.is_object()) else { continue };
        let mut made = Fields::new();
        for (_, v1, v2) in FIELDS.iter().filter(|(sources, ..)| sources.contains(&source)) {
            let (v1, v2) = (v1.replace('@', side), v2.replace('@', side));
            let (from, to) = if direction == Direction::ToV1 { (v2, v1) } else { (v1, v2) };
            if let Some(value) = given.pointer(&format!("/{from}")).filter(|value| !value.is_null()) {
                put(&mut made, &to, value.clone());
            }
        }
        if direction == Direction::ToV2 && side == WANTED {
            set_type(&mut made);
        }
        out.insert(source.to_owned(), made.into());
    }
    out.into()
}

/// Says of which type a target is, which follows from what it has.
fn set_type(source: &mut Fields) {
    let target = source.entry(WANTED).or_insert_with(|| json!({}));
    let Value::Object(target) = target else { return };
    if target.contains_key("averageValue") && target.get("value").is_some_and(|value| value == "0") {
        // Upstream writes it where there is none.
        target.remove("value");
    }
    let kind = if target.contains_key("averageUtilization") {
        "Utilization"
    } else if target.contains_key("value") && !target.contains_key("averageValue") {
        "Value"
    } else {
        "AverageValue"
    };
    target.insert("type".to_owned(), kind.into());
}

/// Sets a field, or a field of a field.
fn put(fields: &mut Fields, path: &str, value: Value) {
    let Some((outer, inner)) = path.split_once('/') else {
        fields.insert(path.to_owned(), value);
        return;
    };
    if let Value::Object(outer) = fields.entry(outer).or_insert_with(|| json!({})) {
        outer.insert(inner.to_owned(), value);
    }
}

/// A value whose fields have names that begin as they do in the other version; what is null goes.
fn cased(value: Value, direction: Direction) -> Value {
    let name = |name: &str| {
        let mut rest = name.chars();
        let Some(first) = rest.next() else { return String::new() };
        let first = match direction {
            Direction::ToV1 => first.to_ascii_uppercase(),
            Direction::ToV2 => first.to_ascii_lowercase(),
        };
        format!("{first}{}", rest.as_str())
    };
    match value {
        Value::Object(map) => {
            let fields = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(key, value)| (name(&key), cased(value, direction))).collect())
        }
        Value::Array(list) => list.into_iter().map(|value| cased(value, direction)).collect(),
        other => other,
    }
}

/// What an annotation says, if v2 can have it as that field of its spec or status; without what v2 does not know.
fn fitting(half: &str, field: &str, said: Value) -> Option<Value> {
    let row = table::find_kind("autoscaling", "HorizontalPodAutoscaler")?;
    let mut fields = Fields::new();
    fields.insert(field.to_owned(), said);
    let mut whole = Fields::new();
    whole.insert(half.to_owned(), fields.into());
    let mut whole = Value::Object(whole);
    decode::conform(&mut whole, row.version("v2")?.schema()).ok()?;
    Some(whole.get_mut(half)?.get_mut(field)?.take())
}

fn told(map: &Fields, name: &str) -> Option<Value> {
    let text = map.get("metadata")?.get("annotations")?.get(name)?.as_str()?;
    serde_json::from_str(text).ok()
}

fn tell(map: &mut Fields, name: &str, value: &Value) {
    annotate(map, name, value.to_string());
}

fn annotate(map: &mut Fields, name: &str, text: String) {
    let Value::Object(metadata) = map.entry("metadata").or_insert_with(|| json!({})) else { return };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if annotations.is_null() {
        *annotations = json!({});
    }
    if let Value::Object(annotations) = annotations {
        annotations.insert(name.to_owned(), text.into());
    }
}

/// Removes annotations, and with the last of them all.
fn forget(map: &mut Fields, names: &[&str]) {
    let Some(metadata) = object(map, "metadata") else { return };
    let Some(annotations) = object(metadata, "annotations") else { return };
    let before = annotations.len();
    annotations.retain(|name, _| !names.contains(&name.as_str()));
    if annotations.is_empty() && before > 0 {
        metadata.remove("annotations");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(metrics: Value, more: Value) -> Fields {
        let mut spec = json!({"maxReplicas": 3, "metrics": metrics});
        spec.as_object_mut().expect("object").extend(more.as_object().cloned().expect("object"));
        json!({"metadata": {"name": "h"}, "spec": spec}).as_object().cloned().expect("object")
    }

    fn cpu_at(percent: i64) -> Value {
        json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}})
    }

    #[test]
    fn metrics_go_into_annotations_and_come_back() {
        let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}});
        let of_container = json!({"type": "ContainerResource", "containerResource":
            {"name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 60}}});
        let metric = json!({"name": "m", "selector": {"matchLabels": {"a": "b"}}});
        let pods = json!({"type": "Pods", "pods": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "5"}}});
        let of_object = json!({"type": "Object", "object": {"metric": metric, "target": {"type": "Value", "value": "7"},
            "describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"}}});
        let external = json!({"type": "External", "external": {"metric": metric, "target": {"type": "AverageValue", "averageValue": "2"}}});
        let others = [&memory, &of_container, &pods, &of_object, &external];
        let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 5, "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]}});
        for (metrics, target) in [
            (json!([cpu_at(50)]), Some(50)),
            (json!([memory]), None),
            (json!([memory, cpu_at(50)]), Some(50)),
            (json!(others), None),
        ] {
            for more in [json!({}), json!({"behavior": behavior})] {
                let before = v2(metrics.clone(), more.clone());
                let mut object = before.clone();
                to_v1(&mut object);
                let spec = object["spec"].as_object().expect("object");
                assert_eq!(spec.get(CPU_TARGET).and_then(Value::as_i64), target, "{metrics}");
                assert!(!spec.contains_key("metrics") && !spec.contains_key("behavior"), "{spec:?}");
                to_v2(&mut object);
                assert_eq!(object, before, "{metrics} {more}");
            }
        }
        let mut object = v2(json!([memory]), json!({"behavior": behavior}));
        to_v1(&mut object);
        let annotations = &object["metadata"]["annotations"];
        // As upstream's server and its clients have them.
        assert_eq!(
            annotations[METRICS],
            r#"[{"resource":{"name":"memory","targetAverageValue":"1Gi"},"type":"Resource"}]"#
        );
        assert_eq!(
            annotations[BEHAVIOR],
            r#"{"ScaleDown":{"Policies":[{"PeriodSeconds":15,"Type":"Pods","Value":1}],"SelectPolicy":"Max","StabilizationWindowSeconds":5}}"#
        );
    }

    #[test]
    fn what_the_status_says_goes_into_annotations_and_comes_back() {
        let current = json!([
            {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 20, "averageValue": "100m"}}},
            {"type": "Pods", "pods": {"metric": {"name": "m"}, "current": {"averageValue": "3"}}},
        ]);
        let conditions = json!([{"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}]);
        let mut before = v2(json!([cpu_at(50)]), json!({}));
        before.insert("status".to_owned(), json!({"currentMetrics": current, "conditions": conditions}));
        let mut object = before.clone();
        to_v1(&mut object);
        assert_eq!(object["status"], json!({CURRENT_REPLICAS: 0, CPU_CURRENT: 20}));
        // A write of the spec says nothing of the status, nor the other way round.
        let mut written = object.clone();
        forget(&mut written, &OF_STATUS);
        annotate(&mut written, METRICS, "[]".to_owned());
        let wanted = written["metadata"]["annotations"].clone();
        keep("status", &mut written, Some(&object));
        for name in OF_STATUS {
            assert_eq!(written["metadata"]["annotations"][name], object["metadata"]["annotations"][name]);
        }
        assert_eq!(written["metadata"]["annotations"][METRICS], wanted[METRICS]);
        keep("status", &mut written, None);
        assert_eq!(written["metadata"]["annotations"], wanted);
        to_v2(&mut object);
        assert_eq!(object, before);
    }

    #[test]
    fn annotations_that_say_something_else_are_ignored() {
        for text in ["", "x", "7", "{}", "[{\"type\": 7}]", "[{\"type\":\"Resource\",\"resource\":{\"name\":[]}}]"] {
            let mut object = v2(json!([]), json!({}));
            annotate(&mut object, METRICS, text.to_owned());
            annotate(&mut object, BEHAVIOR, text.to_owned());
            to_v2(&mut object);
            assert_eq!(object, v2(json!([cpu_at(DEFAULT_CPU_PERCENT)]), json!({})), "{text}");
        }
    }
}
