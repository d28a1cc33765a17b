//! Templates of DataVolumes. Fields of faults are spelled as KubeVirt's webhook spells them: programs compare them.
//!
//! (Upstream: `ValidateDataVolumeTemplate` in pkg/storage/admitters. That a name stands there twice is told here alone.)

use std::collections::BTreeSet;

use carrack_apiserver::admission::{Attributes, Lookup, Needed};
use carrack_apiserver::object::{Object, at};
use carrack_types::data_volumes::DataVolume;
use carrack_types::kubevirt::{VirtualMachineSpec, Volume};
use carrack_types::resource::Kind as _;
use serde_json::Value;

use super::Faults;
use super::plugin::is_deleting;

const DEFINITIONS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");

/// What is looked at to know whether there can be DataVolumes.
pub(super) fn needs(machine: &Object) -> Option<Needed> {
    let has_templates = at(machine, &["spec", "dataVolumeTemplates"])?.as_array().is_some_and(|all| !all.is_empty());
    has_templates.then(|| Needed::one(DEFINITIONS.0, DEFINITIONS.1, "", &DataVolume::resource().qualified()))
}

/// Refuses templates where the kind of what is to be made from them is not there. Those that a machine has stay: with them, it
/// can be stopped and changed.
pub(super) fn check_served(attributes: &Attributes<'_>, lookup: &dyn Lookup, faults: &mut Faults) {
    let templates = |machine: &Object| at(machine, &["spec", "dataVolumeTemplates"]).cloned();
    let is_new = attributes.old.is_none_or(|old| templates(old) != templates(&attributes.object));
    if !is_new || needs(&attributes.object).is_none() {
        return;
    }
    let definition = lookup.get(DEFINITIONS.0, DEFINITIONS.1, "", &DataVolume::resource().qualified());
    if definition.is_none_or(is_deleting) {
        let message = "DataVolume api is not present in cluster. CDI must be installed for DataVolume support.";
        faults.invalid("spec.dataVolumeTemplates", message);
    }
}

/// What is wrong with the templates of a machine in this namespace.
pub(super) fn check(namespace: &str, spec: &VirtualMachineSpec, faults: &mut Faults) {
    let volumes = spec.template.iter().flat_map(|template| &template.spec.volumes);
    let claims: BTreeSet<&str> = volumes
        .filter(|volume| volume.data_volume.is_some() || volume.persistent_volume_claim.is_some())
        .filter_map(Volume::claim_name)
        .collect();
    let mut names = BTreeSet::new();
    for (index, template) in spec.data_volume_templates.iter().enumerate() {
        let of = template["metadata"]["namespace"].as_str().unwrap_or_default();
        if !of.is_empty() && of != namespace {
            let message = format!("Embedded DataVolume namespace {of} differs from VM namespace {namespace}");
            faults.invalid(format!("spec.dataVolumeTemplates[{index}]"), message);
            continue;
        }
        let at = format!("spec.dataVolumeTemplate[{index}]");
        let name = template["metadata"]["name"].as_str().unwrap_or_default();
        let before = faults.count();
        check_one(&at, name, &template["spec"], faults);
        if faults.count() > before {
            continue;
        }
        if !names.insert(name) {
            faults.duplicate(format!("{at}.name"), format!("{at} must not have the same Name as another entry"));
        }
        if !claims.contains(name) {
            let message =
                format!("DataVolumeTemplate entry {at} must be referenced in the VMI template's 'volumes' list");
            faults.required(at, message);
        }
    }
}

fn is_there(value: &Value) -> bool {
    !value.is_null()
}

/// The first thing that is wrong with one of them.
fn check_one(at: &str, name: &str, spec: &Value, faults: &mut Faults) {
    let [pvc, storage] = ["pvc", "storage"].map(|field| &spec[field]);
    if name.is_empty() {
        let message = format!("'name' field must not be empty for DataVolumeTemplate entry {at}.name.");
        return faults.required(format!("{at}.name"), message);
    }
    match (is_there(pvc), is_there(storage)) {
        (false, false) => return faults.invalid(format!("{at}.PVC.Storage"), "Missing Data volume PVC or Storage"),
        (true, true) => {
            let message = "Duplicate storage definition, both target storage and target pvc defined";
            return faults.invalid(format!("{at}.PVC.Storage"), message);
        }
        _ => {}
    }
    let claim = if is_there(pvc) { pvc } else { storage };
    let is_populated = is_there(&claim["dataSource"]) || is_there(&claim["dataSourceRef"]);
    let has_source = is_there(&spec["source"]) || is_there(&spec["sourceRef"]);
    if is_populated && has_source {
        return faults.invalid(format!("{at}.source"), "External population is incompatible with Source and SourceRef");
    }
    if !is_populated && !has_source {
        let message = "Data volume should have either Source, SourceRef, or be externally populated";
        return faults.invalid(format!("{at}.source.sourceRef"), message);
    }
    if is_there(&spec["source"]) {
        match spec["source"].as_object().map_or(0, |source| source.values().filter(|of| is_there(of)).count()) {
            0 => faults.invalid(format!("{at}.source"), "Missing dataVolume valid source"),
            1 => {}
            _ => faults.invalid(format!("{at}.source"), "Multiple dataVolume sources"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_are_refused_by_their_fields() {
        let check = |templates: Value, wanted: &[&str]| {
            let volumes = json!([{"name": "root", "dataVolume": {"name": "d"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "e"}},
                {"name": "other", "ephemeral": {"persistentVolumeClaim": {"claimName": "f"}}}]);
            let spec: VirtualMachineSpec = serde_json::from_value(json!({"dataVolumeTemplates": templates,
                "template": {"spec": {"domain": {"devices": {}}, "volumes": volumes}}}))
            .expect("a spec");
            let mut faults = Faults::default();
            super::check("ns", &spec, &mut faults);
            let fields: Vec<String> = faults.into_vec().into_iter().map(|fault| fault.field).collect();
            assert_eq!(fields, wanted, "{templates}");
        };
        let of = |name: &str, spec: Value| json!([{"metadata": {"name": name}, "spec": spec}]);
        let blank = || json!({"storage": {}, "source": {"blank": {}}});
        check(json!([]), &[]);
        check(of("d", blank()), &[]);
        check(of("e", json!({"pvc": {}, "sourceRef": {"kind": "DataSource", "name": "s"}})), &[]);
        check(of("d", json!({"pvc": {"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}})), &[]);
        check(of("d", json!({"storage": {"dataSourceRef": {"kind": "Image", "name": "s"}}})), &[]);
        check(of("f", blank()), &["spec.dataVolumeTemplate[0]"]);
        check(of("", blank()), &["spec.dataVolumeTemplate[0].name"]);
        check(of("d", json!({"source": {"blank": {}}})), &["spec.dataVolumeTemplate[0].PVC.Storage"]);
        check(of("d", json!({"pvc": {}, "storage": {}})), &["spec.dataVolumeTemplate[0].PVC.Storage"]);
        check(of("d", json!({"pvc": {}})), &["spec.dataVolumeTemplate[0].source.sourceRef"]);
        check(of("d", json!({"pvc": {}, "source": {}})), &["spec.dataVolumeTemplate[0].source"]);
        let two = json!({"pvc": {}, "source": {"blank": {}, "upload": {}}});
        check(of("d", two), &["spec.dataVolumeTemplate[0].source"]);
        let both = json!({"pvc": {"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}, "source": {"blank": {}}});
        check(of("d", both), &["spec.dataVolumeTemplate[0].source"]);
        let placed = |namespace: &str| json!([{"metadata": {"name": "d", "namespace": namespace}, "spec": blank()}]);
        check(placed("ns"), &[]);
        check(placed("elsewhere"), &["spec.dataVolumeTemplates[0]"]);
        let twice = json!([{"metadata": {"name": "d"}, "spec": blank()}, {"metadata": {"name": "d"}, "spec": blank()}]);
        check(twice, &["spec.dataVolumeTemplate[1].name"]);
    }
}
