//! What is to be different of the target, as JSON patches of the machine in the snapshot.
//!
//! As KubeVirt's clone controller (`vm-target.go`), but for two things. A filter is a key, or the beginning of one, as its
//! manual says; KubeVirt's looks for it anywhere in the key, as a regular expression. And patches are strict ones (RFC 6902):
//! nothing is replaced or removed that is not there.

use std::collections::BTreeMap;

use carrack_types::kubevirt::clone::VirtualMachineCloneSpec;
use carrack_types::kubevirt::domain::Firmware;
use carrack_types::kubevirt::snapshot::SourceVirtualMachine;
use carrack_types::kubevirt::snapshot::names::LAST_RESTORE_ANNOTATION;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::admission::operations;

const DOMAIN: &str = "/spec/template/spec/domain";

/// All patches, in their order; those of the user come last. Each is one operation.
pub(super) fn of(spec: &VirtualMachineCloneSpec, machine: &SourceVirtualMachine) -> Vec<String> {
    let none = ObjectMeta::default();
    let metadata = machine.metadata.as_ref().unwrap_or(&none);
    let template = machine.spec.template.as_ref();
    let inner = template.and_then(|template| template.metadata.as_ref()).unwrap_or(&none);
    let mut all = Vec::new();
    if let Some(template) = template {
        for (n, interface) in template.spec.domain.devices.interfaces.iter().enumerate() {
            let path = format!("{DOMAIN}/devices/interfaces/{n}/macAddress");
            let new = spec.new_mac_addresses.get(&interface.name).map(String::as_str);
            all.extend(set(&path, interface.mac_address.as_deref(), new));
        }
        all.extend(firmware(template.spec.domain.firmware.as_ref(), spec.new_smbios_serial.as_deref()));
    }
    for (path, map, filters) in [
        ("/metadata/labels", &metadata.labels, &spec.label_filters),
        ("/metadata/annotations", &metadata.annotations, &spec.annotation_filters),
        ("/spec/template/metadata/labels", &inner.labels, &spec.template.label_filters),
        ("/spec/template/metadata/annotations", &inner.annotations, &spec.template.annotation_filters),
    ] {
        if let (Some(map), Some(filters)) = (map, filters) {
            all.extend(filtered(path, map, filters));
        }
    }
    let mut all: Vec<String> = all.iter().map(Value::to_string).collect();
    // Admission has refused what is no patch.
    let own = spec.patches.iter().filter_map(|patch| operations(patch)).flatten();
    all.extend(own.map(|operation| json!(operation).to_string()));
    all
}

/// Makes a text another one, or takes it away. An empty one is none.
fn set(path: &str, old: Option<&str>, new: Option<&str>) -> Option<Value> {
    match (old, new.filter(|new| !new.is_empty())) {
        (Some(_), Some(new)) => Some(json!({"op": "replace", "path": path, "value": new})),
        (None, Some(new)) => Some(json!({"op": "add", "path": path, "value": new})),
        (Some(_), None) => Some(json!({"op": "remove", "path": path})),
        (None, None) => None,
    }
}

/// A serial number of its own, and a UUID that is made anew.
fn firmware(old: Option<&Firmware>, serial: Option<&str>) -> Vec<Value> {
    let Some(old) = old else {
        let serial = serial.filter(|serial| !serial.is_empty());
        return serial
            .map(|serial| json!({"op": "add", "path": format!("{DOMAIN}/firmware"), "value": {"serial": serial}}))
            .into_iter()
            .collect();
    };
    let serial = set(&format!("{DOMAIN}/firmware/serial"), old.serial.as_deref(), serial);
    let uuid = set(&format!("{DOMAIN}/firmware/uuid"), old.uuid.as_deref(), None);
    serial.into_iter().chain(uuid).collect()
}

/// Takes away what the filters do not let through. The restore's own annotation is not the source's.
fn filtered(path: &str, map: &BTreeMap<String, String>, filters: &[String]) -> Vec<Value> {
    let away = map.keys().filter(|key| *key != LAST_RESTORE_ANNOTATION && !passes(key, filters));
    let escaped = away.map(|key| key.replace('~', "~0").replace('/', "~1"));
    escaped.map(|key| json!({"op": "remove", "path": format!("{path}/{key}")})).collect()
}

/// Whether some filter names a key, and none with a `!` does.
fn passes(key: &str, filters: &[String]) -> bool {
    let names = |filter: &str| match filter.strip_suffix('*') {
        Some(beginning) => key.starts_with(beginning),
        None => key == filter,
    };
    let (not, only): (Vec<&String>, Vec<&String>) = filters.iter().partition(|filter| filter.starts_with('!'));
    only.into_iter().any(|filter| names(filter)) && !not.into_iter().any(|filter| names(&filter[1..]))
}

#[cfg(test)]
mod tests {
    use carrack_types::kubevirt::clone::VirtualMachineCloneSpec;
    use carrack_types::kubevirt::snapshot::SourceVirtualMachine;
    use serde_json::{Value, json};

    use super::of;

    /// What becomes of a machine by the patches of a clone.
    fn patched(machine: &Value, spec: Value) -> Value {
        let typed: SourceVirtualMachine = serde_json::from_value(machine.clone()).expect("a machine");
        let spec: VirtualMachineCloneSpec = serde_json::from_value(spec).expect("a spec");
        let mut result = machine.clone();
        for patch in of(&spec, &typed) {
            let operation = serde_json::from_str(&patch).expect("one operation");
            json_patch::patch(&mut result, &[operation]).unwrap_or_else(|error| panic!("{patch}: {error}"));
        }
        result
    }

    fn machine(domain: Value) -> Value {
        json!({"metadata": {"name": "golden"}, "spec": {"template": {"spec": {"domain": domain}}}})
    }

    #[test]
    fn mac_addresses() {
        let check = |given: &[Option<&str>], new: Value, wanted: &[Option<&str>]| {
            let interfaces = |macs: &[Option<&str>]| -> Value {
                let one = |(n, mac): (usize, &Option<&str>)| match mac {
                    Some(mac) => json!({"name": format!("i{n}"), "macAddress": mac}),
                    None => json!({"name": format!("i{n}")}),
                };
                machine(json!({"devices": {"interfaces": macs.iter().enumerate().map(one).collect::<Vec<_>>()}}))
            };
            assert_eq!(patched(&interfaces(given), json!({"newMacAddresses": new})), interfaces(wanted), "{new}");
        };
        let (a, b, c) = (Some("de:ad:00:00:be:01"), Some("de:ad:00:00:be:02"), Some("de:ad:00:00:be:03"));
        check(&[a], json!({}), &[None]);
        check(&[None], json!({}), &[None]);
        check(&[a], json!({"i0": b.unwrap()}), &[b]);
        check(&[None], json!({"i0": b.unwrap()}), &[b]);
        check(&[a], json!({"i0": ""}), &[None]);
        check(&[a, b, c], json!({"i1": a.unwrap(), "other": c.unwrap()}), &[None, a, None]);
    }

    #[test]
    fn firmware() {
        let check = |firmware: Value, spec: Value, wanted: Value| {
            let with = |firmware: Value| {
                let mut domain = json!({"devices": {}});
                if !firmware.is_null() {
                    domain["firmware"] = firmware;
                }
                machine(domain)
            };
            assert_eq!(patched(&with(firmware.clone()), spec.clone()), with(wanted), "{firmware} {spec}");
        };
        check(json!({"uuid": "u"}), json!({}), json!({}));
        check(json!({"serial": "s", "uuid": "u"}), json!({}), json!({}));
        check(json!({"serial": "s"}), json!({"newSMBiosSerial": "mine"}), json!({"serial": "mine"}));
        check(json!({"uuid": "u"}), json!({"newSMBiosSerial": "mine"}), json!({"serial": "mine"}));
        check(Value::Null, json!({"newSMBiosSerial": "mine"}), json!({"serial": "mine"}));
        check(Value::Null, json!({}), Value::Null);
    }

    #[test]
    fn labels_and_annotations() {
        let all = [
            "prefix1/something1",
            "prefix1/something2",
            "prefix2/something1",
            "prefix2/something2",
            "somePrefix/something",
            "somePrefix2/something",
            "plain~key",
        ];
        let check = |filters: Value, wanted: &[&str]| {
            let map = |keys: &[&str]| -> Value { keys.iter().map(|key| ((*key).to_owned(), json!("true"))).collect() };
            let with = |keys: &[&str], part: &str, place: &str| {
                let mut machine = machine(json!({"devices": {}}));
                machine.pointer_mut(place).expect("there")[part] = map(keys);
                machine
            };
            for (place, of, part) in
                [("/metadata", "labelFilters", "labels"), ("/metadata", "annotationFilters", "annotations")]
            {
                let spec = json!({of: filters});
                assert_eq!(patched(&with(&all, part, place), spec), with(wanted, part, place), "{filters}");
            }
            let inner = |keys: &[&str], part: &str| {
                let mut machine = machine(json!({"devices": {}}));
                machine["spec"]["template"]["metadata"] = json!({part: map(keys)});
                machine
            };
            for (of, part) in [("labelFilters", "labels"), ("annotationFilters", "annotations")] {
                let spec = json!({"template": {of: filters}});
                assert_eq!(patched(&inner(&all, part), spec), inner(wanted, part), "{filters}");
            }
        };
        check(Value::Null, &all);
        check(json!([]), &[]);
        check(json!(["*"]), &all);
        check(json!(["!prefix1/something1"]), &[]);
        check(
            json!(["prefix*", "!prefix1/something2", "!prefix2/*", "somePrefix2/something"]),
            &["prefix1/something1", "somePrefix2/something"],
        );
        check(json!(["*", "!*"]), &[]);
        check(json!(["plain~key", "something"]), &["plain~key"]);
    }

    #[test]
    fn the_restores_own_annotation_stays_and_the_users_patches_come_last() {
        let mut source = machine(json!({"devices": {}}));
        source["metadata"]["annotations"] = json!({"restore.kubevirt.io/lastRestoreUID": "bar", "other": "x"});
        source["metadata"]["labels"] = json!({"app": "golden"});
        let spec = json!({"annotationFilters": ["somekey/*"], "patches": [
            r#"{"op": "replace", "path": "/metadata/labels/app", "value": "copy"}"#,
            r#"[{"op": "add", "path": "/spec/template/spec/hostname", "value": "copy"}]"#]});
        let result = patched(&source, spec);
        assert_eq!(result["metadata"]["annotations"], json!({"restore.kubevirt.io/lastRestoreUID": "bar"}));
        assert_eq!(result["metadata"]["labels"]["app"], "copy");
        assert_eq!(result["spec"]["template"]["spec"]["hostname"], "copy");
    }
}
