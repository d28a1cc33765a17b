//! Clones: what is completed, and what is refused.
//!
//! Fields of faults are spelled as KubeVirt's clone webhook spells them, capitals included: programs compare them.

use carrack_apiserver::Status;
use carrack_apiserver::admission::{AdmissionPlugin, Attributes, Lookup};
use carrack_engine::derived_suffix;
use carrack_types::kubevirt::VirtualMachineClone;
use carrack_types::kubevirt::clone::{GROUP, names, volume_name};
use carrack_types::kubevirt::snapshot::TypedLocalReference;
use carrack_types::well_known::kubevirt;
use json_patch::PatchOperation;

use super::networks::parse_mac;
use super::plugin::{complete, is_deleting, read, refuse, writes_object};
use super::{Faults, is_one_of};
use crate::patches::{parse, stays_within};

/// Longest name of an object.
const NAME_MAX: usize = 253;

/// Admission of clones.
#[derive(Clone, Copy, Debug)]
pub struct CloneAdmission {
    names_targets: bool,
}

impl Default for CloneAdmission {
    fn default() -> Self {
        Self { names_targets: true }
    }
}

impl CloneAdmission {
    /// An admission that leaves targets without a name as they are, as an API server without KubeVirt's mutating webhook
    /// would: the simulator plays that.
    #[must_use]
    pub fn without_names() -> Self {
        Self { names_targets: false }
    }
}

impl AdmissionPlugin for CloneAdmission {
    fn name(&self) -> &'static str {
        "VirtualMachineClones"
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if !self.names_targets || attributes.old.is_some() || !concerns(attributes) {
            return Ok(());
        }
        complete::<VirtualMachineClone>(attributes, complete_clone)
    }

    fn validate(&self, attributes: &Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if !concerns(attributes) || is_deleting(&attributes.object) {
            return Ok(());
        }
        let mut faults = Faults::default();
        match attributes.old {
            None => check_clone(&read(attributes, &attributes.object)?, &mut faults),
            Some(old) if old.get("spec") != attributes.object.get("spec") => {
                faults.invalid("spec", "spec is immutable after creation");
            }
            Some(_) => {}
        }
        refuse(attributes, faults.into_vec())
    }
}

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.is(GROUP, "virtualmachineclones") && writes_object(attributes)
}

/// A target without a name gets one: the source's, and something that nobody else has. It is chosen here, before anything is
/// made, so that all that is made later agrees on it.
pub fn complete_clone(clone: &mut VirtualMachineClone, random: &mut dyn FnMut() -> String) {
    let Some(source) = &clone.spec.source else { return };
    let target = clone.spec.target.get_or_insert_with(|| TypedLocalReference {
        api_group: Some(kubevirt::GROUP.to_owned()),
        kind: names::MACHINE.to_owned(),
        name: String::new(),
    });
    if target.name.is_empty() {
        target.name = target_name(&source.name, &derived_suffix(&[&random()], 5));
    }
}

/// The name of a target that was given none: `clone-<source>-<suffix>`.
#[must_use]
pub(crate) fn target_name(source: &str, suffix: &str) -> String {
    const PREFIX: &str = "clone-";
    let room = NAME_MAX - PREFIX.len() - suffix.len() - 1;
    let stem: String = source.chars().take(room).collect();
    format!("{PREFIX}{}-{suffix}", stem.trim_end_matches(['-', '.']))
}

/// What is wrong with a new clone. That its source is not there is not: it may come later.
pub fn check_clone(clone: &VirtualMachineClone, faults: &mut Faults) {
    let spec = &clone.spec;
    for (field, filters) in [
        ("spec.annotations", &spec.annotation_filters),
        ("spec.labels", &spec.label_filters),
        ("spec.template.annotations", &spec.template.annotation_filters),
        ("spec.template.labels", &spec.template.label_filters),
    ] {
        filters.iter().flatten().for_each(|filter| check_filter(field, filter, faults));
    }
    let source = spec.source.clone().unwrap_or_default();
    if ![names::MACHINE, names::SNAPSHOT].contains(&source.kind.as_str()) {
        faults.invalid("spec.Source.Kind", "Source kind is not supported");
    }
    if spec.target.as_ref().is_some_and(|target| target.kind != names::MACHINE) {
        faults.invalid("spec.Target.Kind", "Target kind is not supported");
    }
    if source.api_group.as_deref().unwrap_or_default().is_empty() {
        faults.invalid("spec.Source.APIGroup", "Source's APIGroup cannot be empty");
    }
    if source.kind.is_empty() {
        faults.invalid("spec.Source", "Source's Kind cannot be empty");
    }
    if source.name.is_empty() {
        faults.invalid("spec.Source.Name", "Source's name cannot be empty");
    }
    if let Some(target) = &spec.target
        && (&source.kind, &source.name) == (&target.kind, &target.name)
    {
        let message = "Target name cannot be equal to source name when both are VirtualMachines";
        faults.invalid("spec.target.name", message);
    }
    for (interface, mac) in spec.new_mac_addresses.iter().filter(|(_, mac)| !mac.is_empty()) {
        if parse_mac(mac).is_none() {
            let message = format!("interface {interface} has malformed MAC address ({mac}).");
            faults.invalid(format!("spec.newMacAddresses.{interface}"), message);
        }
    }
    for (index, patch) in spec.patches.iter().enumerate() {
        check_patch(&format!("spec.patches[{index}]"), patch, faults);
    }
    if !is_one_of(spec.volume_name_policy.as_deref(), &volume_name::ALL) {
        let given = spec.volume_name_policy.as_deref().unwrap_or_default();
        faults.unsupported("spec.volumeNamePolicy", format!("VolumeNamePolicy {given:?} is not supported"));
    }
}

/// A filter is a key, with at most a `!` before and a `*` behind it.
fn check_filter(field: &str, filter: &str, faults: &mut Faults) {
    let wrong = |what: &str, sign: char, rule: &str| {
        format!("{field} filter {filter} is invalid: cannot contain a {what} character ({sign}); FilterRules: {rule}")
    };
    let (Some(first), Some(last)) = (filter.chars().next(), filter.chars().last()) else {
        return faults.invalid(field, "an empty text is not a valid filter");
    };
    if filter.len() == 1 {
        if filter == "!" {
            faults.invalid(field, "a negation character is not a valid filter");
        }
        return;
    }
    if filter[first.len_utf8()..].contains('!') {
        let rule = "NegationChar can be only used at the beginning of the filter";
        faults.invalid(field, wrong("negation", '!', rule));
    }
    if filter[..filter.len() - last.len_utf8()].contains('*') {
        faults.invalid(field, wrong("wildcard", '*', "WildcardChar can be only at the end of the filter"));
    }
}

fn check_patch(field: &str, text: &str, faults: &mut Faults) {
    if serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() {
        return faults.invalid(field, format!("patch is not valid JSON ({text})"));
    }
    let Some(operations) = operations(text) else {
        return faults.invalid(field, format!("{text} is no JSON patch"));
    };
    for operation in operations {
        if !stays_within(&operation) {
            let path = operation.path();
            faults.invalid(field, format!("patching is valid only for elements under /spec/ only: {path}"));
        }
    }
}

/// The operations of a patch, which is one or a list of them; none for a text that is neither.
pub(crate) fn operations(text: &str) -> Option<Vec<PatchOperation>> {
    serde_json::from_str::<Vec<PatchOperation>>(text).ok().or_else(|| parse(text).ok().map(|operation| vec![operation]))
}

#[cfg(test)]
mod tests {
    use carrack_types::kubevirt::VirtualMachineClone;
    use serde_json::{Value, json};

    use super::{Faults, check_clone, complete_clone};

    fn clone(more: Value) -> VirtualMachineClone {
        let mut spec = json!({"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "golden"},
            "target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "copy"}});
        for (field, value) in more.as_object().expect("an object") {
            spec[field] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).expect("a clone")
    }

    #[test]
    fn faults_name_their_fields() {
        let check = |more: Value, wanted: &[&str]| {
            let mut faults = Faults::default();
            check_clone(&clone(more.clone()), &mut faults);
            let fields: Vec<String> = faults.into_vec().into_iter().map(|fault| fault.field).collect();
            assert_eq!(fields, wanted, "{more}");
        };
        let source =
            |group: Value, kind: &str, name: &str| json!({"source": {"apiGroup": group, "kind": kind, "name": name}});
        check(json!({}), &[]);
        check(json!({"target": null}), &[]);
        check(source(json!("snapshot.kubevirt.io"), "VirtualMachineSnapshot", "before"), &[]);
        // A snapshot may have the target's name.
        check(source(json!("snapshot.kubevirt.io"), "VirtualMachineSnapshot", "copy"), &[]);
        check(source(json!("kubevirt.io"), "VirtualMachine", "copy"), &["spec.target.name"]);
        check(source(json!("kubevirt.io"), "Pod", "golden"), &["spec.Source.Kind"]);
        check(source(Value::Null, "VirtualMachine", "golden"), &["spec.Source.APIGroup"]);
        check(source(json!(""), "VirtualMachine", "golden"), &["spec.Source.APIGroup"]);
        check(source(json!("kubevirt.io"), "", "golden"), &["spec.Source.Kind", "spec.Source"]);
        check(source(json!("kubevirt.io"), "VirtualMachine", ""), &["spec.Source.Name"]);
        check(json!({"target": {"kind": "Pod", "name": "copy"}}), &["spec.Target.Kind"]);
        for (field, at) in [("annotationFilters", "spec.annotations"), ("labelFilters", "spec.labels")] {
            for wrong in ["", "!", "mykey/!something", "mykey/something!", "*mykey/something", "mykey/*something", "**"]
            {
                check(json!({field: [wrong]}), &[at]);
                let at = at.replace("spec.", "spec.template.");
                check(json!({"template": {field: ["fine", wrong]}}), &[&at]);
            }
            for right in ["mykey/something", "*", "mykey/something*", "!mykey/something", "!mykey/*", "a", "!*", "ä*"]
            {
                check(json!({field: [right]}), &[]);
            }
        }
        let macs = |mac: &str| json!({"newMacAddresses": {"default": mac}});
        for right in ["00:00:00:00:00:00", "02-00-00-aa-BB-cc", ""] {
            check(macs(right), &[]);
        }
        for wrong in ["00:00:00:00:00", "02:00:00:00:00:0g", "020000000001", "02:00:00:00:00:01:02"] {
            check(macs(wrong), &["spec.newMacAddresses.default"]);
        }
        let patches = |all: &[&str]| json!({"patches": all});
        check(patches(&[r#"{"op": "replace", "path": "/spec/template/spec/hostname", "value": "x"}"#]), &[]);
        check(patches(&[r#"[{"op": "add", "path": "/metadata/labels/a", "value": "x"}]"#]), &[]);
        check(patches(&[r#"{"op": "replace" "path": "/spec/x", "value": 1}"#]), &["spec.patches[0]"]);
        check(patches(&[r#"{"op": "swap", "path": "/spec/x"}"#]), &["spec.patches[0]"]);
        check(patches(&[r#"{"op": "remove", "path": "/metadata/name"}"#]), &["spec.patches[0]"]);
        check(json!({"volumeNamePolicy": "PrefixTargetName"}), &[]);
        check(json!({"volumeNamePolicy": "Whatever"}), &["spec.volumeNamePolicy"]);
    }

    #[test]
    fn a_target_gets_its_name_once() {
        let check = |more: Value, wanted: Option<&str>| {
            let mut clone = clone(more.clone());
            complete_clone(&mut clone, &mut || "drawn".to_owned());
            let target = clone.spec.target.clone().expect("a target");
            assert_eq!((target.kind.as_str(), target.api_group.as_deref()), ("VirtualMachine", Some("kubevirt.io")));
            match wanted {
                Some(name) => assert_eq!(target.name, name, "{more}"),
                None => assert!(target.name.starts_with("clone-golden-") && target.name.len() == 18, "{target:?}"),
            }
            let before = clone.clone();
            complete_clone(&mut clone, &mut || "drawn again".to_owned());
            assert_eq!(clone, before);
        };
        check(json!({}), Some("copy"));
        check(json!({"target": null}), None);
        check(json!({"target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": ""}}), None);
        let long = "a".repeat(253);
        assert_eq!(super::target_name(&long, "bcdfg").len(), 253);
    }
}
