//! What a kind needs beyond the table: states that the server sets when an object is made, and which
//! half of an object a write may touch.

use std::collections::BTreeSet;

use carrack_schema::convert;
use carrack_schema::table::ResourceInfo;
use carrack_schema::validate::plain;
use serde_json::{Value, json};

use crate::context::Cx;
use crate::object::{Object, at, child_mut, meta, put_meta};
use crate::registry::pods;

/// Kinds whose status is taken from the creator: agents register themselves with it.
const STATUS_FROM_CREATOR: [(&str, &str); 2] = [("", "nodes"), ("resource.k8s.io", "resourceslices")];

/// Kinds, besides custom resources, that are replaced only by who says which state of them is replaced
/// (`AllowUnconditionalUpdate` of upstream's strategies).
const REPLACED_AT_REVISION: [(&str, &str); 19] = [
    ("certificates.k8s.io", "clustertrustbundles"),
    ("coordination.k8s.io", "leasecandidates"),
    ("coordination.k8s.io", "leases"),
    ("policy", "poddisruptionbudgets"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "apiservices"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
    ("internal.apiserver.k8s.io", "storageversions"),
    ("node.k8s.io", "runtimeclasses"),
    ("storage.k8s.io", "csidrivers"),
    ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "csistoragecapacities"),
    ("storage.k8s.io", "volumeattachments"),
    ("storagemigration.k8s.io", "storageversionmigrations"),
];

/// Kinds of which a PUT makes an object that is not there (`AllowCreateOnUpdate` of upstream's strategies).
const MADE_BY_UPDATE: [(&str, &str); 11] = [
    ("", "endpoints"),
    ("", "events"),
    ("", "limitranges"),
    ("", "services"),
    ("events.k8s.io", "events"),
    ("coordination.k8s.io", "leasecandidates"),
    ("coordination.k8s.io", "leases"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "roles"),
];

/// Kinds, besides custom resources, whose status has its own way and says nothing of the metadata there
/// (`ResetObjectMetaForStatus` in upstream's strategies): who may tell of an object's state takes no finalizers from it.
const METADATA_STAYS: [(&str, &str); 13] = [
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("apiregistration.k8s.io", "apiservices"),
    ("certificates.k8s.io", "podcertificaterequests"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"),
    ("internal.apiserver.k8s.io", "storageversions"),
    ("networking.k8s.io", "servicecidrs"),
    ("resource.k8s.io", "devicetaintrules"),
    ("resource.k8s.io", "resourceclaims"),
    ("resource.k8s.io", "resourcepoolstatusrequests"),
    ("scheduling.k8s.io", "podgroups"),
    ("storage.k8s.io", "volumeattachments"),
    ("storagemigration.k8s.io", "storageversionmigrations"),
];

/// What a write of the status leaves alone of the metadata, where it may change the rest.
const METADATA_STAYS_IN_PART: [(&str, &str, &str); 2] =
    [("", "pods", "ownerReferences"), ("apps", "deployments", "labels")];

/// Metadata whose change counts up the generation, as one of the spec does: what the object's controller copies to others.
const METADATA_COUNTS: [(&str, &str, &str); 2] =
    [("apps", "deployments", "annotations"), ("discovery.k8s.io", "endpointslices", "labels")];

/// Whether a write of the status leaves the metadata alone.
pub(crate) fn keeps_metadata(cx: &Cx<'_>) -> bool {
    cx.row.is_custom || METADATA_STAYS.contains(&(&*cx.row.group, &*cx.row.plural))
}

/// The field of the metadata that a list of kinds has for this one.
fn field_of(list: &[(&str, &str, &'static str)], cx: &Cx<'_>) -> Option<&'static str> {
    let is_it = |group: &str, plural: &str| *group == *cx.row.group && *plural == *cx.row.plural;
    list.iter().find(|(group, plural, _)| is_it(group, plural)).map(|(.., field)| *field)
}

/// Drops from an object that is applied to the status what such a write leaves alone, so that it is not owned either.
pub(crate) fn drop_kept_metadata(cx: &Cx<'_>, half: &Half, config: &mut Object) {
    if let (Half::Status, Some(field)) = (half, field_of(&METADATA_STAYS_IN_PART, cx)) {
        put_meta(config, field, None);
    }
}

/// Whether an update has to say which state of the object it replaces.
pub(crate) fn is_replaced_at_revision(cx: &Cx<'_>) -> bool {
    cx.row.is_custom || REPLACED_AT_REVISION.contains(&(&*cx.row.group, &*cx.row.plural))
}

/// Whether an update makes an object that is not there.
pub(crate) fn is_made_by_update(cx: &Cx<'_>) -> bool {
    cx.request.subresource.is_none() && MADE_BY_UPDATE.contains(&(&*cx.row.group, &*cx.row.plural))
}

/// Whether a new object's status is its creator's.
pub(crate) fn takes_status_from_creator(cx: &Cx<'_>) -> bool {
    !cx.version().has_status() || STATUS_FROM_CREATOR.contains(&(&*cx.row.group, &*cx.row.plural))
}

/// Sets the state of a new object.
pub(crate) fn prepare_create(cx: &Cx<'_>, object: &mut Object) {
    let id = (&*cx.row.group, &*cx.row.plural);
    if !takes_status_from_creator(cx) {
        object.remove("status");
        convert::keep(id.0, &cx.row.kind, "status", object, None);
    }
    match id {
        ("", "pods") => {
            object.insert("status".to_owned(), json!({"phase": "Pending"}));
        }
        ("", "namespaces") => {
            let spec = child_mut(object, "spec");
            let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
            if finalizers.as_array().is_none_or(|list| !list.iter().any(|f| f == "kubernetes")) {
                *finalizers = json!(["kubernetes"]);
            }
            object.insert("status".to_owned(), json!({"phase": "Active"}));
        }
        ("", "persistentvolumes" | "persistentvolumeclaims") => {
            object.insert("status".to_owned(), json!({"phase": "Pending"}));
        }
        ("", "services") => {
            object.insert("status".to_owned(), json!({"loadBalancer": {}}));
        }
        CERTIFICATE_REQUESTS => {
            let caller = cx.caller;
            let spec = child_mut(object, "spec");
            spec.insert("username".to_owned(), caller.user.clone().into());
            spec.insert("groups".to_owned(), caller.groups.clone().into());
            // What its sender says of itself there, who approves it would take for proved.
            spec.remove("uid");
            spec.remove("extra");
            if !caller.uid.is_empty() {
                spec.insert("uid".to_owned(), caller.uid.clone().into());
            }
            if !caller.extra.is_empty() {
                spec.insert("extra".to_owned(), json!(caller.extra));
            }
            object.insert("status".to_owned(), json!({}));
        }
        // What is counted there is counted from 0, which the defaults say.
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("autoscaling", "horizontalpodautoscalers")
        | ("batch", "jobs" | "cronjobs")
        | ("certificates.k8s.io", "podcertificaterequests")
        | ("policy", "poddisruptionbudgets")
        | ("resource.k8s.io", "resourceclaims")
        | ("storage.k8s.io", "volumeattachments") => {
            object.insert("status".to_owned(), json!({}));
            count_template(cx, object, None);
        }
        ("networking.k8s.io", "servicecidrs") => {
            // Nobody has to prepare anything for it.
            let now = crate::env::rfc3339_s(cx.server.env.now());
            let ready = json!({
                "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready",
                "lastTransitionTime": now,
            });
            object.insert("status".to_owned(), json!({"conditions": [ready]}));
        }
        _ => {}
    }
}

/// Which template of a DaemonSet it is, for those that read its pods' labels: a field of upstream's own form of the object,
/// which the API shows as an annotation (pkg/registry/apps/daemonset, pkg/apis/apps/v1/conversion.go).
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Numbers the template of a DaemonSet: a new one may bring its number, and from then on changes of the template count.
pub(crate) fn count_template(cx: &Cx<'_>, new: &mut Object, old: Option<&Object>) {
    if (&*cx.row.group, &*cx.row.plural) != ("apps", "daemonsets") {
        return;
    }
    let number = |object: &Object| {
        let annotations = meta(object, "annotations")?;
        annotations.get(TEMPLATE_GENERATION)?.as_str()?.parse::<i64>().ok().filter(|number| *number > 0)
    };
    // A client in Go that writes back what it read leaves out what is empty, and changes nothing by that.
    let template = |object: &Object| plain(at(object, &["spec", "template"]).unwrap_or(&Value::Null));
    let number = match old {
        None => number(new).unwrap_or(1),
        Some(old) => number(old).unwrap_or(1).saturating_add(i64::from(template(old) != template(new))),
    };
    let annotations = child_mut(child_mut(new, "metadata"), "annotations");
    annotations.insert(TEMPLATE_GENERATION.to_owned(), number.to_string().into());
}

/// Labels by which a Job knows its pods: what they say, in the names of old and of today.
const JOB_LABELS: [(&str, &str); 4] = [
    ("job-name", "name"),
    ("batch.kubernetes.io/job-name", "name"),
    ("controller-uid", "uid"),
    ("batch.kubernetes.io/controller-uid", "uid"),
];

/// Completes a new object that has its name, beside what its creator owns of it.
pub(crate) fn name_given(cx: &Cx<'_>, object: &mut Object) {
    match (&*cx.row.group, &*cx.row.plural) {
        ("batch", "jobs") => select_pods(object),
        CLAIMS => settle_sources(child_mut(object, "spec"), None),
        _ => {}
    }
}

/// Names the pods of a new Job after it where they have been named after what it was called `before`.
pub(crate) fn renamed(row: &ResourceInfo, object: &mut Object, before: &str) {
    let is_manual = at(object, &["spec", "manualSelector"]) == Some(&Value::Bool(true));
    if (&*row.group, &*row.plural) != ("batch", "jobs") || is_manual {
        return;
    }
    let name = meta(object, "name").cloned().unwrap_or_default();
    let mut labels = object.get_mut("spec").and_then(|spec| spec.pointer_mut("/template/metadata/labels"));
    for (label, _) in JOB_LABELS.iter().filter(|(_, field)| *field == "name") {
        let value = labels.as_mut().and_then(|labels| labels.get_mut(*label));
        if let Some(value) = value.filter(|value| **value == *before) {
            *value = name.clone();
        }
    }
}

/// Completes a new object that was admitted. Gives what its creator is told.
pub(crate) fn admitted(cx: &Cx<'_>, object: &mut Object) -> Vec<String> {
    match (&*cx.row.group, &*cx.row.plural) {
        ("", "pods") => pods::complete(object, &crate::env::rfc3339_s(cx.server.env.now())),
        _ => Vec::new(),
    }
}

const CLAIMS: (&str, &str) = ("", "persistentvolumeclaims");

/// What a claim is filled from has two names, the older of which is for claims and snapshots alone, unless the claim
/// has another there already; who gives one gives both (`EnforceDataSourceBackwardsCompatibility` and
/// `NormalizeDataSources` of `pkg/api/persistentvolumeclaim`).
fn settle_sources(spec: &mut Object, old: Option<&Object>) {
    const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
    let given = |field: &str| spec.get(field).filter(|source| source.is_object()).cloned();
    let text = |source: &Value, field: &str| source.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let has_old_name = |source: &Value| {
        let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
        matches!((&*group, &*kind), ("", "PersistentVolumeClaim") | (SNAPSHOTS, "VolumeSnapshot"))
    };
    let is_kept = old.and_then(|old| at(old, &["spec", "dataSource"])).is_some();
    match (given("dataSource").filter(|source| is_kept || has_old_name(source)), given("dataSourceRef")) {
        (Some(source), None) => {
            spec.insert("dataSourceRef".to_owned(), source);
        }
        (None, Some(mut reference)) if text(&reference, "namespace").is_empty() => {
            if let Value::Object(reference) = &mut reference {
                reference.remove("namespace");
            }
            spec.insert("dataSource".to_owned(), reference);
        }
        (None, _) => {
            spec.remove("dataSource");
        }
        (Some(_), Some(_)) => {}
    }
}

/// Whether a claim says what it is filled from by all names that it can have.
fn is_settled(claim: &Object) -> bool {
    at(claim, &["spec"]).and_then(Value::as_object).is_none_or(|before| {
        let mut spec = before.clone();
        settle_sources(&mut spec, Some(claim));
        spec == *before
    })
}

/// Gives a Job without a selector of its own one.
fn select_pods(object: &mut Object) {
    let of_job = |field: &str| meta(object, field).cloned().unwrap_or_default();
    let values = JOB_LABELS.map(|(label, field)| (label, of_job(field)));
    let spec = child_mut(object, "spec");
    if spec.get("manualSelector") == Some(&Value::Bool(true)) {
        return;
    }
    let labels = child_mut(child_mut(child_mut(spec, "template"), "metadata"), "labels");
    for (label, value) in &values {
        labels.entry(*label).or_insert_with(|| value.clone());
    }
    let selected = child_mut(child_mut(spec, "selector"), "matchLabels");
    for (label, value) in &values[3..] {
        selected.entry(*label).or_insert_with(|| value.clone());
    }
}

/// Which half of an object a write goes to.
pub(crate) enum Half {
    /// Everything but the status.
    Main,
    /// The status; and, for built-in kinds, metadata.
    Status,
    /// Some fields of a pod's spec: `ephemeralContainers` or `containers` with their resources.
    PodSpec,
    /// A certificate request's conditions.
    Approval,
    /// A namespace's `spec.finalizers`.
    Finalize,
}

impl Half {
    /// The half that a subresource writes; none when it is not one of these.
    pub(crate) fn of(subresource: &str) -> Option<Half> {
        match subresource {
            "" => Some(Half::Main),
            "status" => Some(Half::Status),
            "ephemeralcontainers" | "resize" => Some(Half::PodSpec),
            "approval" => Some(Half::Approval),
            "finalize" => Some(Half::Finalize),
            _ => None,
        }
    }
}

/// Restores in `new` what this write may not touch.
pub(crate) fn restrict(cx: &Cx<'_>, half: &Half, new: &mut Object, old: &Object) {
    let keep = |new: &mut Object, field: &str| match old.get(field) {
        Some(value) => {
            new.insert(field.to_owned(), value.clone());
        }
        None => {
            new.remove(field);
        }
    };
    let keep_notes = |new: &mut Object, field: &str| convert::keep(&cx.row.group, &cx.row.kind, field, new, Some(old));
    match half {
        Half::Main => {
            if cx.version().has_status() {
                keep(new, "status");
                keep_notes(new, "status");
            }
            match (&*cx.row.group, &*cx.row.plural) {
                ("", "namespaces") => {
                    let finalizers = old.get("spec").and_then(|spec| spec.get("finalizers")).cloned();
                    put(child_mut(new, "spec"), "finalizers", finalizers);
                }
                // What is approved, and for whom it was asked, stays what it was
                // (`csrStrategy.PrepareForUpdate` of `pkg/registry/certificates/certificates`).
                CERTIFICATE_REQUESTS => keep(new, "spec"),
                // Clients may know one of the names alone. So may a claim that was stored before there were two: it stays as it is.
                CLAIMS if is_settled(old) => settle_sources(child_mut(new, "spec"), Some(old)),
                _ => {}
            }
        }
        Half::Status => {
            let others: Vec<String> =
                old.keys().chain(new.keys()).filter(|key| *key != "status" && *key != "metadata").cloned().collect();
            for field in others {
                if !matches!(field.as_str(), "apiVersion" | "kind") {
                    keep(new, &field);
                    keep_notes(new, &field);
                }
            }
            if (&*cx.row.group, &*cx.row.plural) == ("", "pods") {
                // It was given at the start, and need not be repeated.
                let class = old.get("status").and_then(|status| status.get("qosClass")).cloned();
                if let Some(class) = class {
                    child_mut(new, "status").entry("qosClass").or_insert(class);
                }
            }
            if (&*cx.row.group, &*cx.row.plural) == CERTIFICATE_REQUESTS {
                keep_approval(new, old);
            }
            if (&*cx.row.group, &*cx.row.plural) == ("resource.k8s.io", "resourceclaims") {
                drop_released(new, old);
            }
            if keeps_metadata(cx) {
                keep_metadata(new, old);
            } else if let Some(field) = field_of(&METADATA_STAYS_IN_PART, cx) {
                put_meta(new, field, meta(old, field).cloned());
            }
        }
        Half::PodSpec => {
            keep(new, "status");
            keep_metadata(new, old);
            let spec = match cx.request.subresource.as_deref() {
                Some("resize") => resized(new, old),
                _ => with_ephemeral(new, old),
            };
            if let Some(spec) = spec {
                new.insert("spec".to_owned(), spec);
            }
        }
        Half::Approval => {
            keep(new, "spec");
            let conditions = new.get("status").and_then(|status| status.get("conditions")).cloned();
            keep(new, "status");
            put(child_mut(new, "status"), "conditions", conditions);
        }
        Half::Finalize => {
            let finalizers = new.get("spec").and_then(|spec| spec.get("finalizers")).cloned();
            keep(new, "status");
            keep(new, "spec");
            keep_metadata(new, old);
            let finalizers = finalizers.filter(|list| list.as_array().is_some_and(|list| !list.is_empty()));
            put(child_mut(new, "spec"), "finalizers", finalizers);
        }
    }
}

/// The spec as it was, with the ephemeral containers of the new one (`dropNonEphemeralContainerUpdates` of
/// `pkg/registry/core/pod`).
fn with_ephemeral(new: &Object, old: &Object) -> Option<Value> {
    const FIELD: &str = "ephemeralContainers";
    let mut spec = old.get("spec")?.clone();
    let ephemeral = new.get("spec").and_then(|spec| spec.get(FIELD)).cloned();
    put(spec.as_object_mut()?, FIELD, ephemeral);
    Some(spec)
}

/// The spec as it was, with what the new one's containers, and the pod as a whole, are to have; none when they are not the same
/// containers, which the validation refuses (`dropNonResizeUpdates` there).
fn resized(new: &Object, old: &Object) -> Option<Value> {
    let mut spec = old.get("spec")?.clone();
    let new = new.get("spec")?;
    for list in ["containers", "initContainers"] {
        let wanted = new.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut before = spec.get_mut(list).and_then(Value::as_array_mut);
        if before.as_ref().map_or(0, |list| list.len()) != wanted.len() {
            return None;
        }
        for (container, wanted) in before.iter_mut().flat_map(|list| list.iter_mut()).zip(wanted) {
            if container.get("name") != wanted.get("name") {
                return None;
            }
            for field in ["resources", "resizePolicy"] {
                put(container.as_object_mut()?, field, wanted.get(field).cloned());
            }
        }
    }
    put(spec.as_object_mut()?, "resources", new.get("resources").cloned());
    Some(spec)
}

const CERTIFICATE_REQUESTS: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");

/// Who signs does not approve: what was decided is that of the other subresource. Upstream refuses a write that adds or removes
/// a decision here; this one keeps what was.
fn keep_approval(new: &mut Object, old: &Object) {
    let is_decision = |condition: &Value| matches!(condition["type"].as_str(), Some("Approved" | "Denied"));
    let conditions = |object: &Object| -> Vec<Value> {
        let all = object.get("status").and_then(|status| status.get("conditions")).and_then(Value::as_array);
        all.cloned().unwrap_or_default()
    };
    let mut kept: Vec<Value> = conditions(old).into_iter().filter(is_decision).collect();
    kept.extend(conditions(new).into_iter().filter(|condition| !is_decision(condition)));
    if !kept.is_empty() || new.get("status").is_some_and(|status| status.get("conditions").is_some()) {
        child_mut(new, "status").insert("conditions".to_owned(), kept.into());
    }
}

/// What drivers said of devices goes with the devices, whoever takes them back from a claim
/// (`dropDeallocatedStatusDevices` of `pkg/registry/resource/resourceclaim`).
fn drop_released(new: &mut Object, old: &Object) {
    let identity =
        |device: &Value| json!(["driver", "pool", "device", "shareID"].map(|field| device.get(field))).to_string();
    let given = |claim: &Object| -> BTreeSet<String> {
        let results = at(claim, &["status", "allocation", "devices", "results"]).and_then(Value::as_array);
        results.into_iter().flatten().map(identity).collect()
    };
    let (before, now) = (given(old), given(new));
    let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) else { return };
    let Some(told) = status.get_mut("devices").and_then(Value::as_array_mut) else { return };
    told.retain(|device| now.contains(&identity(device)) || !before.contains(&identity(device)));
    if told.is_empty() {
        status.remove("devices");
    }
}

fn keep_metadata(new: &mut Object, old: &Object) {
    if let Some(metadata) = old.get("metadata") {
        new.insert("metadata".to_owned(), metadata.clone());
    }
}

fn put(map: &mut Object, key: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            map.insert(key.to_owned(), value);
        }
        None => {
            map.remove(key);
        }
    }
}

/// Whether a change is one of what the object is to be, so that its generation counts up: anything
/// but status and, of most kinds, metadata. Where the status has no way of its own, it counts as well.
pub(crate) fn changes_spec(cx: &Cx<'_>, new: &Object, old: &Object) -> bool {
    let status_counts = cx.row.is_custom && !cx.version().has_status();
    let counts = |key: &&String| match key.as_str() {
        "metadata" | "apiVersion" | "kind" => false,
        "status" => status_counts,
        _ => true,
    };
    let metadata_counts = field_of(&METADATA_COUNTS, cx).filter(|_| cx.request.subresource.is_none());
    new.keys().filter(counts).any(|key| new.get(key) != old.get(key))
        || old.keys().filter(counts).any(|key| !new.contains_key(key))
        || metadata_counts.is_some_and(|field| meta(new, field) != meta(old, field))
}

/// What is still to be done before an object that is being deleted may go.
pub(crate) fn may_go(cx: &Cx<'_>, object: &Object) -> bool {
    let grace_s = meta(object, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    let namespace_full = (&*cx.row.group, &*cx.row.plural) == ("", "namespaces")
        && object
            .get("spec")
            .and_then(|spec| spec.get("finalizers"))
            .and_then(Value::as_array)
            .is_some_and(|finalizers| !finalizers.is_empty());
    crate::object::is_deleting(object)
        && grace_s == 0
        && !namespace_full
        && crate::object::finalizers(object).is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_of_a_job_are_named_after_it() {
        let labels = |name: &str| json!({"job-name": name, "batch.kubernetes.io/job-name": name, "app": "old"});
        for (plural, manual, expected) in
            [("jobs", false, labels("new")), ("jobs", true, labels("old")), ("cronjobs", false, labels("old"))]
        {
            let row = carrack_schema::table::find("batch", plural).expect(plural);
            let template = json!({"metadata": {"labels": labels("old")}});
            let mut object = Object::from_iter([
                ("metadata".to_owned(), json!({"name": "new"})),
                ("spec".to_owned(), json!({"manualSelector": manual, "template": template})),
            ]);
            renamed(row, &mut object, "old");
            assert_eq!(object["spec"]["template"]["metadata"]["labels"], expected, "{plural}");
        }
    }

    /// Claims that were stored before there were two names are as they are.
    #[test]
    fn claims_with_all_names_are_settled() {
        let source = || json!({"kind": "PersistentVolumeClaim", "name": "a"});
        for (spec, settled) in [
            (json!({}), true),
            (json!({"dataSource": source()}), false),
            (json!({"dataSourceRef": source()}), false),
            (json!({"dataSource": source(), "dataSourceRef": source()}), true),
        ] {
            let claim = Object::from_iter([("spec".to_owned(), spec)]);
            assert_eq!(is_settled(&claim), settled, "{claim:?}");
        }
    }
}
