//! Labels and annotations of instances, and of the templates that instances are made from.
//!
//! Some are KubeVirt's own, and some of ours: what they say is what its components have done, so nobody else may say it. With
//! one of them on a running instance, a user could have it taken for a guest that its node stops by itself, and a second copy
//! would be started.

use std::collections::BTreeMap;

use carrack_types::well_known::kubevirt::{
    FAILOVER_ANNOTATION, FENCING_TOKEN_ANNOTATION, STARTED_FROM_ANNOTATION, STARTED_WITH_ANNOTATIONS,
    STATE_CLAIM_ANNOTATION,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use super::Faults;

/// The labels that only KubeVirt's components may set. Others of the same prefix are people's, such as
/// `kubevirt.io/domain` in every manual.
pub(crate) const LABELS: [&str; 6] = [
    "kubevirt.io/created-by",
    "kubevirt.io/migrationJobUID",
    "kubevirt.io/nodeName",
    "kubevirt.io/migrationTargetNodeName",
    "kubevirt.io/schedulable",
    "kubevirt.io/install-strategy",
];
/// The annotations that only our components may set.
pub(crate) const ANNOTATIONS: [&str; 6] = [
    FAILOVER_ANNOTATION,
    FENCING_TOKEN_ANNOTATION,
    STARTED_FROM_ANNOTATION,
    STARTED_WITH_ANNOTATIONS[0].1,
    STARTED_WITH_ANNOTATIONS[1].1,
    STATE_CLAIM_ANNOTATION,
];
/// The parts of metadata that are strings by name.
const WORDS: [&str; 2] = ["labels", "annotations"];
/// Annotations that ask for something which nobody does.
const UNSUPPORTED: [&str; 2] = ["kubevirt.io/ignitiondata", "hooks.kubevirt.io/hookSidecars"];

/// What is wrong with the metadata that somebody gave an instance, or instances to come, at `field`.
pub(super) fn check(field: &str, meta: &ObjectMeta, by_component: bool, faults: &mut Faults) {
    if !by_component && !among(&LABELS, meta.labels.as_ref()).is_empty() {
        let message = "creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited";
        faults.unsupported(format!("{field}.labels"), message);
    }
    let at = format!("{field}.annotations");
    if !by_component && let Some(name) = among(&ANNOTATIONS, meta.annotations.as_ref()).into_keys().next() {
        faults.unsupported(&at, format!("only KubeVirt's components may set {name}"));
    }
    for name in UNSUPPORTED {
        if meta.annotations.as_ref().and_then(|all| all.get(name)).is_some_and(|value| !value.is_empty()) {
            faults.unsupported(&at, format!("annotation {name} is not supported"));
        }
    }
}

/// What is wrong with a change of an instance's metadata that is not made by one of KubeVirt's components.
pub(super) fn check_update(old: &ObjectMeta, new: &ObjectMeta, faults: &mut Faults) {
    if among(&LABELS, old.labels.as_ref()) != among(&LABELS, new.labels.as_ref()) {
        faults.unsupported("metadata.labels", "modification of kubevirt.io/ labels on a VMI object is restricted");
    }
    let [before, after] = [old, new].map(|meta| among(&ANNOTATIONS, meta.annotations.as_ref()));
    if let Some(name) = ANNOTATIONS.into_iter().find(|name| before.get(name) != after.get(name)) {
        faults.unsupported("metadata.annotations", format!("only KubeVirt's components may change {name}"));
    }
}

/// Writes labels and annotations of a template that have no value, as `example.com/note:` in a manifest has none, as empty ones: so
/// Go's decoder reads them. The schema leaves a template's metadata open, as upstream's does.
pub(super) fn fill_blanks(object: &mut Map<String, Value>) {
    let Some(metadata) = object.get_mut("spec").and_then(|spec| spec.pointer_mut("/template/metadata")) else { return };
    for field in WORDS {
        if let Some(words) = metadata.get_mut(field).and_then(Value::as_object_mut) {
            words.values_mut().filter(|word| word.is_null()).for_each(|word| *word = json!(""));
        }
    }
}

/// Which label or annotation of a template is no string, as with `example.com/note: yes` in a manifest, which is a truth value
/// there: where the schema leaves a field open, nobody else names it.
pub(super) fn wrong_word(object: &Map<String, Value>) -> Option<String> {
    let metadata = object.get("spec")?.pointer("/template/metadata")?;
    WORDS.into_iter().find_map(|field| {
        let mut words = metadata.get(field)?.as_object()?.iter();
        let (name, _) = words.find(|(_, value)| !value.is_string())?;
        Some(format!("spec.template.metadata.{field}[{name}]"))
    })
}

/// Keeps which claim has a machine's state as the one before says it: whoever replaces a machine by a manifest of his own would
/// have it start with blank variables, and a copy of it under another name would have its state.
pub(super) fn keep_state_claim(object: &mut Map<String, Value>, old: Option<&Map<String, Value>>) {
    let of =
        |object: &Map<String, Value>| object.get("metadata")?.get("annotations")?.get(STATE_CLAIM_ANNOTATION).cloned();
    let (is, was) = (of(object), old.and_then(of));
    if is == was {
        return;
    }
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    match was {
        Some(was) if metadata["annotations"].is_object() => metadata["annotations"][STATE_CLAIM_ANNOTATION] = was,
        Some(was) => metadata["annotations"] = json!({STATE_CLAIM_ANNOTATION: was}),
        None => {
            if let Some(annotations) = metadata["annotations"].as_object_mut() {
                annotations.remove(STATE_CLAIM_ANNOTATION);
            }
        }
    }
}

fn among<'a>(names: &[&str], all: Option<&'a BTreeMap<String, String>>) -> BTreeMap<&'a str, &'a str> {
    let all = all.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    all.filter(|(key, _)| names.contains(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).expect("metadata")
    }

    fn fields(faults: Faults) -> Vec<String> {
        faults.into_vec().into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn what_components_say_is_theirs() {
        let check = |value: Value, by_component: bool, wanted: &[&str]| {
            let mut faults = Faults::default();
            check("spec.template.metadata", &meta(value.clone()), by_component, &mut faults);
            assert_eq!(fields(faults), wanted, "{value}");
        };
        let (labels, annotations) = ("spec.template.metadata.labels", "spec.template.metadata.annotations");
        check(json!({"labels": {"kubevirt.io/domain": "a"}, "annotations": {"a": "b"}}), false, &[]);
        check(json!({"labels": {"kubevirt.io/nodeName": "n"}}), false, &[labels]);
        check(json!({"annotations": {"kubevirt.io/failover": "true"}}), false, &[annotations]);
        check(
            json!({"labels": {"kubevirt.io/nodeName": "n"}, "annotations": {"kubevirt.io/failover": "true"}}),
            true,
            &[],
        );
        check(json!({"annotations": {"hooks.kubevirt.io/hookSidecars": "[]"}}), true, &[annotations]);
        check(json!({"annotations": {"kubevirt.io/ignitiondata": "{}"}}), false, &[annotations]);
        check(json!({"annotations": {"kubevirt.io/ignitiondata": ""}}), false, &[]);
    }

    #[test]
    fn what_a_template_says_is_strings() {
        let template = |metadata: Value| {
            let object = json!({"spec": {"template": {"metadata": metadata}}});
            object.as_object().cloned().unwrap_or_default()
        };
        let check = |metadata: Value, filled: Value, wrong: Option<&str>| {
            let mut object = template(metadata.clone());
            fill_blanks(&mut object);
            assert_eq!(object, template(filled), "{metadata}");
            assert_eq!(wrong_word(&object).as_deref(), wrong, "{metadata}");
        };
        let good = json!({"labels": {"a": "b"}, "annotations": {"c": ""}});
        check(good.clone(), good.clone(), None);
        check(json!({"labels": {"a": "b"}, "annotations": {"c": null}}), good, None);
        for open in [json!(null), json!({}), json!({"labels": null, "annotations": "x"})] {
            check(open.clone(), open, None);
        }
        let odd = json!({"annotations": {"c": "d", "e": true}});
        check(odd.clone(), odd, Some("spec.template.metadata.annotations[e]"));
        let odd = json!({"labels": {"a": 5}, "annotations": {"e": true}});
        check(odd.clone(), odd, Some("spec.template.metadata.labels[a]"));
        let mut bare = Map::new();
        fill_blanks(&mut bare);
        assert_eq!((wrong_word(&bare), bare.len()), (None, 0));
    }

    #[test]
    fn a_machine_keeps_its_state_whoever_replaces_it() {
        let claim = |name: &str| json!({"metadata": {"annotations": {STATE_CLAIM_ANNOTATION: name, "a": "b"}}});
        let check = |new: Value, old: Option<Value>, wanted: Value| {
            let mut object = new.as_object().cloned().unwrap_or_default();
            keep_state_claim(&mut object, old.as_ref().and_then(Value::as_object));
            assert_eq!(Value::Object(object), wanted, "{new} over {old:?}");
        };
        let bare = json!({"metadata": {"annotations": {"a": "b"}}});
        check(bare.clone(), Some(claim("mine")), claim("mine"));
        check(claim("another's"), Some(claim("mine")), claim("mine"));
        check(claim("another's"), Some(bare.clone()), bare.clone());
        check(claim("another's"), None, bare.clone());
        check(bare.clone(), None, bare);
        let none = json!({"metadata": {"name": "vm"}});
        let kept = json!({"metadata": {"name": "vm", "annotations": {STATE_CLAIM_ANNOTATION: "mine"}}});
        check(none, Some(claim("mine")), kept);
    }

    #[test]
    fn nobody_else_says_of_a_guest_that_it_may_run_elsewhere() {
        let check = |old: Value, new: Value, wanted: &[&str]| {
            let mut faults = Faults::default();
            check_update(&meta(old), &meta(new.clone()), &mut faults);
            assert_eq!(fields(faults), wanted, "{new}");
        };
        let bound = json!({"annotations": {"kubevirt.io/failover": "true", "kubevirt.io/fencing-token": "3"}});
        check(bound.clone(), bound.clone(), &[]);
        check(json!({}), bound.clone(), &["metadata.annotations"]);
        check(bound.clone(), json!({"annotations": {"kubevirt.io/failover": "true"}}), &["metadata.annotations"]);
        check(json!({}), json!({"labels": {"kubevirt.io/nodeName": "n"}}), &["metadata.labels"]);
        check(json!({}), json!({"labels": {"a": "b"}, "annotations": {"a": "b"}}), &[]);
    }
}
