//! What may change in an existing pod, by way of the pod itself and of its subresources.

use std::collections::{BTreeMap, BTreeSet};

use carrack_types::qos;
use carrack_types::well_known::{APPARMOR_PREFIX, MIRROR_ANNOTATION};
use serde_json::{Map, Value};

use super::access::{Errors, Place};
use super::alike::{plain, same};
use super::demand::{Change, Demand, Row, changes, check, unique};
use super::{names, pod};
use crate::error::FieldError;

const UPDATE_FORBIDDEN: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks what changed in an existing pod.
pub(super) fn update(object: &Place<'_>, old: &Place<'_>, subresource: &str, errors: &mut Errors) {
    match subresource {
        // The binding sets the node; the API server itself is the one who does it.
        "binding" => {}
        "ephemeralcontainers" => ephemeral(object, old, errors),
        "resize" => resize(object, old, errors),
        "status" => status(object, old, errors),
        _ => main(object, old, errors),
    }
}

fn main(object: &Place<'_>, old_object: &Place<'_>, errors: &mut Errors) {
    let (new, old) = (object.field("spec"), old_object.field("spec"));
    // A spec that says what it said was found good when it came.
    let is_same = same("spec", new.value, old.value);
    if is_same {
        pod::annotated(object, errors);
    } else {
        pod::object(object, errors);
    }
    annotations(object, old_object, errors);
    if is_same {
        return;
    }
    for list in ["containers", "initContainers"] {
        if new.items(list).count() != old.items(list).count() {
            errors.push(FieldError::forbidden(new.path_of(list), "pod updates may not add or remove containers"));
            return;
        }
    }
    deadline(&new, &old, errors);
    let tolerated = |toleration: Place<'_>| plain(&without(toleration.value, &["tolerationSeconds"])).to_string();
    let tolerations: BTreeSet<String> = new.items("tolerations").map(tolerated).collect();
    let kept = old.items("tolerations").all(|toleration| tolerations.contains(&tolerated(toleration)));
    if !kept {
        errors.push(FieldError::forbidden(
            new.path_of("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
    let gates: BTreeSet<&str> = old.items("schedulingGates").map(|gate| gate.text("name")).collect();
    for gate in new.items("schedulingGates") {
        let name = gate.text("name");
        if !gates.contains(name) {
            let text = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(gate.path_of("name"), text));
        }
    }
    let mut allowed = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates"];
    if old.items("schedulingGates").next().is_some() {
        gated(&new, &old, errors);
        // What is not scheduled yet may be narrowed.
        allowed.push("nodeSelector");
    }
    let gated = old.items("schedulingGates").next().is_some();
    if old.number("terminationGracePeriodSeconds").is_some_and(|s| s < 0)
        && new.number("terminationGracePeriodSeconds") == Some(1)
    {
        allowed.push("terminationGracePeriodSeconds");
    }
    let strip = |spec: &Value| {
        let mut spec = without(&plain(spec), &allowed);
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                *container = without(container, &["image"]);
            }
        }
        if gated && let Some(affinity) = spec.get_mut("affinity") {
            *affinity = without(affinity, &["nodeAffinity"]);
            if affinity.as_object().is_some_and(Map::is_empty) {
                spec = without(&spec, &["affinity"]);
            }
        }
        spec
    };
    let changed = changed_fields(&strip(new.value), &strip(old.value));
    if !changed.is_empty() {
        errors.push(FieldError::forbidden(
            new.path.clone(),
            format!("{UPDATE_FORBIDDEN}\nchanged: {}", changed.join(", ")),
        ));
    }
}

/// A pod that waits at a gate may be sent to fewer nodes, not to others.
fn gated(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let kept = old.entries("nodeSelector").all(|(key, value)| new.at(&["nodeSelector"]).value.get(key) == Some(value));
    if !kept {
        new.invalid(
            "nodeSelector",
            "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
            errors,
        );
    }
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = |spec: &Place<'_>| {
        let selector = spec.at(&["affinity", "nodeAffinity", REQUIRED]);
        selector.items("nodeSelectorTerms").map(|term| term.value.clone()).collect::<Vec<Value>>()
    };
    let (now, before) = (terms(new), terms(old));
    if before.is_empty() {
        return;
    }
    let path = format!("{}.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms", new.path);
    if now.len() != before.len() {
        let text = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid(path, now, text));
        return;
    }
    let contains = |now: &Value, before: &Value, field: &str| {
        let texts = |term: &Value| -> BTreeSet<String> {
            term.get(field).and_then(Value::as_array).into_iter().flatten().map(Value::to_string).collect()
        };
        texts(before).is_subset(&texts(now))
    };
    for (index, (now, before)) in now.iter().zip(&before).enumerate() {
        for field in ["matchExpressions", "matchFields"] {
            if !contains(now, before, field) {
                let text = "only additions are allowed (no mutations or deletions)";
                errors.push(FieldError::invalid(format!("{path}[{index}]"), now.clone(), text));
            }
        }
    }
}

/// What annotations say of which a pod is made stays.
fn annotations(object: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let kind = |key: &str| match key {
        MIRROR_ANNOTATION => Some("mirror pod annotation"),
        _ => key.starts_with(APPARMOR_PREFIX).then_some("AppArmor annotations"),
    };
    let (new, old) = (object.field("metadata"), old.field("metadata"));
    let (now, before) = (new.field("annotations").value, old.field("annotations").value);
    let forbid = |key: &str, what: String| FieldError::forbidden(format!("metadata.annotations[{key}]"), what);
    for (key, _) in old.entries("annotations").filter(|(key, value)| now.get(key) != Some(*value)) {
        errors.extend(kind(key).map(|kind| forbid(key, format!("may not remove or update {kind}"))));
    }
    for (key, _) in new.entries("annotations").filter(|(key, _)| before.get(key).is_none()) {
        errors.extend(kind(key).map(|kind| forbid(key, format!("may not add {kind}"))));
    }
}

fn deadline(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let field = "activeDeadlineSeconds";
    if let Some(before) = old.number(field) {
        match new.number(field) {
            None => errors.push(FieldError::invalid(
                new.path_of(field),
                Value::Null,
                "must not update from a positive integer to nil value",
            )),
            Some(now) if now > before => {
                errors.push(FieldError::invalid(
                    new.path_of(field),
                    now,
                    "must be less than or equal to previous value",
                ));
            }
            Some(_) => {}
        }
    }
}

fn is_mirror(object: &Place<'_>) -> bool {
    object.at(&["metadata", "annotations"]).some(MIRROR_ANNOTATION).is_some()
}

fn ephemeral(object: &Place<'_>, old_object: &Place<'_>, errors: &mut Errors) {
    if is_mirror(old_object) {
        errors.push(FieldError::forbidden("", "static pods do not support ephemeral containers"));
        return;
    }
    let (new, old) = (object.field("spec"), old_object.field("spec"));
    pod::object(object, errors);
    let path = new.path_of("ephemeralContainers");
    let mut kept = BTreeMap::new();
    for container in new.items("ephemeralContainers") {
        kept.entry(container.text("name")).or_insert(container.value);
    }
    for container in old.items("ephemeralContainers") {
        let name = container.text("name");
        match kept.get(name) {
            None => {
                let text = format!("existing ephemeral containers \"{name}\" may not be removed\n");
                errors.push(FieldError::forbidden(path.clone(), text));
            }
            Some(now) if plain(now) != plain(container.value) => {
                let text = format!("existing ephemeral containers \"{name}\" may not be changed\n");
                errors.push(FieldError::forbidden(path.clone(), text));
            }
            Some(_) => {}
        }
    }
    let allowed = ["ephemeralContainers"];
    let strip = |spec: &Value| without(&plain(spec), &allowed);
    let changed = changed_fields(&strip(new.value), &strip(old.value));
    if !changed.is_empty() {
        let text = format!(
            "Pod updates may not change fields other than ephemeralContainers\nchanged: {}",
            changed.join(", ")
        );
        errors.push(FieldError::forbidden(new.path.clone(), text));
    }
}

/// A resize: of containers, and of the pod as a whole (`ValidatePodResize`, with what is on since v1.36 without being asked for).
fn resize(object: &Place<'_>, old_object: &Place<'_>, errors: &mut Errors) {
    let (new, old) = (object.field("spec"), old_object.field("spec"));
    let never = if is_mirror(old_object) {
        Some("static pods cannot be resized")
    } else if old.field("os").text("name") == "windows" {
        Some("windows pods cannot be resized")
    } else {
        None
    };
    if let Some(why) = never {
        errors.push(FieldError::forbidden("", why));
        return;
    }
    pod::object(object, errors);
    let class = match old_object.at(&["status"]).text("qosClass") {
        "" => qos::class(old.value),
        class => class,
    };
    if class != qos::class(new.value) {
        let text = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(new.path.clone(), class, text));
    }
    if !is_resized_by_its_node(old_object) {
        errors.push(FieldError::forbidden(new.path.clone(), "Pod running on node without support for resize"));
    }
    let known = errors.len();
    for list in ["containers", "initContainers"] {
        same_containers(list, &new, &old, errors);
    }
    if errors.len() > known {
        return;
    }
    for list in ["containers", "initContainers"] {
        for (now, before) in new.items(list).zip(old.items(list)) {
            if list == "initContainers" && before.text("restartPolicy") != "Always" {
                if plain(now.value) != plain(before.value) {
                    let text = "resources for non-sidecar init containers are immutable";
                    errors.push(FieldError::forbidden(new.path.clone(), text));
                }
                continue;
            }
            resized(&now.field("resources"), &before.field("resources"), errors);
        }
    }
    resized(&new.field("resources"), &old.field("resources"), errors);
    let strip = |spec: &Value| {
        let mut spec = without(&plain(spec), &["resources"]);
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                // What may change of the resources themselves has been looked at.
                *container = without(container, &["resources", "resizePolicy"]);
            }
        }
        spec
    };
    let changed = changed_fields(&strip(new.value), &strip(old.value));
    if !changed.is_empty() {
        let text = format!("only cpu and memory resources are mutable\nchanged: {}", changed.join(", "));
        errors.push(FieldError::forbidden(new.path.clone(), text));
    }
}

/// Whether the node of a pod that runs tells what its containers have: one that does not resizes nothing
/// (`isPodResizeRequestSupported`).
fn is_resized_by_its_node(pod: &Place<'_>) -> bool {
    let status = pod.field("status");
    let mut running = status.items("containerStatuses").filter(|one| one.at(&["state"]).some("running").is_some());
    running.next().is_none_or(|one| one.some("resources").is_some())
}

/// Containers stay what they are, in their order (`validatePodResizeContainerOrdering`).
fn same_containers(list: &str, new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    if new.items(list).count() != old.items(list).count() {
        let text = format!("{list} may not be added or removed on resize");
        errors.push(FieldError::forbidden(new.path_of(list), text));
        return;
    }
    for (now, before) in new.items(list).zip(old.items(list)) {
        if now.text("name") != before.text("name") {
            let text = format!("{list} may not be renamed or reordered on resize");
            errors.push(FieldError::forbidden(now.path_of("name"), text));
        }
    }
}

fn resized(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    for (list, what) in [("requests", "resource requests"), ("limits", "resource limits")] {
        let (now, before) = (new.field(list), old.field(list));
        if old.entries(list).any(|(name, _)| now.value.get(name).is_none()) {
            errors.push(FieldError::forbidden(now.path.clone(), format!("{what} cannot be removed")));
        }
        let others = |place: &Place<'_>| without(place.value, &["cpu", "memory"]);
        let (now_others, others) = (others(&now), others(&before));
        if now_others != others && !(is_nothing(&now_others) && is_nothing(&others)) {
            errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable"));
        }
    }
}

fn is_nothing(value: &Value) -> bool {
    value.as_object().is_none_or(Map::is_empty)
}

/// A status: what does not happen to a pod in the course of its life. That a container which has ended stays so, which
/// upstream demands as well, is not asked for: a pod that starts anew after a power cut begins with its init containers.
fn status(object: &Place<'_>, old_object: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("nominatedNodeName", Demand::Form(names::dns1123_subdomain)),
        ("podIPs[].ip", Demand::Address),
        ("hostIPs[].ip", Demand::Address),
    ];
    let new = object.field("status");
    annotations(object, old_object, errors);
    for condition in new.items("conditions") {
        let kind = condition.text("type");
        if let Some(problem) = names::qualified_name(kind) {
            // Upstream writes this one with a capital letter.
            errors.push(FieldError::invalid(condition.path_of("Type"), kind, problem));
        }
    }
    check(&new, ROWS, errors);
    if let Some(first) = new.items("hostIPs").next()
        && first.text("ip") != new.text("hostIP")
    {
        first.invalid("ip", "must be equal to `hostIP`", errors);
    }
    changes(object, old_object, &[("status.qosClass", Change::Once("field is immutable"))], errors);
    for list in ["podIPs", "hostIPs"] {
        unique(
            new.items(list),
            |address| Some(address.text("ip")),
            |address| FieldError::duplicate(address.path.clone(), address.value.clone()),
            errors,
        );
        let families: Vec<bool> = new.items(list).map(|address| address.text("ip").contains(':')).collect();
        if families.len() > 2 || matches!(families.as_slice(), [one, other] if one == other) {
            new.invalid(list, "may specify no more than one IP for each IP family", errors);
        }
    }
}

fn without(value: &Value, fields: &[&str]) -> Value {
    let mut value = value.clone();
    if let Value::Object(map) = &mut value {
        map.retain(|key, _| !fields.contains(&key.as_str()));
    }
    value
}

/// Names of the fields in which two objects differ.
fn changed_fields(new: &Value, old: &Value) -> Vec<String> {
    let empty = Map::new();
    let (new, old) = (new.as_object().unwrap_or(&empty), old.as_object().unwrap_or(&empty));
    let keys: BTreeSet<&String> = new.keys().chain(old.keys()).collect();
    keys.into_iter().filter(|key| new.get(*key) != old.get(*key)).cloned().collect()
}
