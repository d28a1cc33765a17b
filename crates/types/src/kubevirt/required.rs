//! What a schema requires is always written, also when it is empty.
//!
//! A controller reads an object, changes a part and writes it, or keeps a copy of it inside another one. Either would be
//! refused if the typed form left out something that the object must have. Every field that any of the schemas requires
//! is tried here, at every place where it stands.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::instancetype::{
    VirtualMachineClusterInstancetype, VirtualMachineClusterPreference, VirtualMachineInstancetype,
    VirtualMachinePreference,
};
use super::{
    KubeVirt, VirtualMachine, VirtualMachineClone, VirtualMachineInstance, VirtualMachineInstanceMigration,
    VirtualMachineInstancePreset, VirtualMachineInstanceReplicaSet, VirtualMachineRestore, VirtualMachineSnapshot,
    VirtualMachineSnapshotContent, crds,
};
use super::{vm::VolumeSnapshotStatus, vmi::VolumeStatus};

/// Reads and writes an object.
type Through = fn(&Value) -> Value;

fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let read: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    json!(read)
}

const KINDS: &[(&str, Through)] = &[
    ("VirtualMachine", through::<VirtualMachine>),
    ("VirtualMachineInstance", through::<VirtualMachineInstance>),
    ("VirtualMachineInstanceReplicaSet", through::<VirtualMachineInstanceReplicaSet>),
    ("VirtualMachineInstanceMigration", through::<VirtualMachineInstanceMigration>),
    ("VirtualMachineInstancePreset", through::<VirtualMachineInstancePreset>),
    ("KubeVirt", through::<KubeVirt>),
    ("VirtualMachineSnapshot", through::<VirtualMachineSnapshot>),
    ("VirtualMachineSnapshotContent", through::<VirtualMachineSnapshotContent>),
    ("VirtualMachineRestore", through::<VirtualMachineRestore>),
    ("VirtualMachineClone", through::<VirtualMachineClone>),
    ("VirtualMachineInstancetype", through::<VirtualMachineInstancetype>),
    ("VirtualMachineClusterInstancetype", through::<VirtualMachineClusterInstancetype>),
    ("VirtualMachinePreference", through::<VirtualMachinePreference>),
    ("VirtualMachineClusterPreference", through::<VirtualMachineClusterPreference>),
];

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Something of everything that a schema knows, and nothing of it empty.
fn full(schema: &Value) -> Value {
    if schema["x-kubernetes-int-or-string"] == true {
        return json!("1");
    }
    match schema["type"].as_str() {
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        Some("string") => json!("x"),
        Some("integer") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([full(&schema["items"])]),
        Some("object") => {
            let mut fields: Map<String, Value> =
                properties(schema).map(|(name, of)| (name.clone(), full(of))).collect();
            if schema["additionalProperties"].is_object() {
                fields.insert("k".to_owned(), full(&schema["additionalProperties"]));
            }
            Value::Object(fields)
        }
        other => panic!("type {other:?}"),
    }
}

/// The least that a schema takes.
fn empty(schema: &Value) -> Value {
    if schema["x-kubernetes-int-or-string"] == true {
        return json!("0");
    }
    match schema["type"].as_str() {
        Some("string") => json!(""),
        Some("integer") => json!(0),
        Some("boolean") => json!(false),
        Some("array") => json!([]),
        Some("object") => required(schema)
            .map(|name| (name.to_owned(), empty(&schema["properties"][name])))
            .collect::<Map<_, _>>()
            .into(),
        other => panic!("type {other:?}"),
    }
}

/// Every required field below a node: where it is in what [`full`] makes, and what is there when it is empty.
fn all_required(schema: &Value, at: &str, found: &mut Vec<(String, Value)>) {
    found.extend(required(schema).map(|name| (format!("{at}/{name}"), empty(&schema["properties"][name]))));
    for (name, below) in properties(schema) {
        all_required(below, &format!("{at}/{name}"), found);
    }
    for (key, step) in [("items", "0"), ("additionalProperties", "k")] {
        if schema[key].is_object() {
            all_required(&schema[key], &format!("{at}/{step}"), found);
        }
    }
}

/// Required fields that an object does not have.
fn missing(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    if let Value::Object(fields) = value {
        found.extend(required(schema).filter(|name| !fields.contains_key(*name)).map(|name| format!("{at}/{name}")));
        for (name, of) in fields {
            let below = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            missing(below, of, &format!("{at}/{name}"), found);
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        missing(&schema["items"], item, &format!("{at}/{index}"), found);
    }
}

/// Tries every required field of a kind with nothing in it; returns how many there are.
fn check(kind: &str, through: Through, schema: &Value) -> usize {
    let whole = full(schema);
    let mut fields = Vec::new();
    all_required(schema, "", &mut fields);
    for (path, empty) in &fields {
        let mut object = whole.clone();
        *object.pointer_mut(path).unwrap_or_else(|| panic!("{kind}: {path}")) = empty.clone();
        let written = through(&object);
        assert!(written.pointer(path).is_some(), "{kind}: {path} is not written when it is {empty}");
        let mut left_out = Vec::new();
        missing(schema, &written, "", &mut left_out);
        assert!(left_out.is_empty(), "{kind} with {path} as {empty}: {left_out:?}");
    }
    fields.len()
}

#[test]
fn required_fields_are_written_when_they_are_empty() {
    let (mut tried, mut all) = (BTreeSet::new(), 0);
    for crd in crds() {
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let Some((name, through)) = KINDS.iter().find(|(name, _)| *name == kind) else {
            assert!(schema["properties"]["spec"].get("properties").is_none(), "{kind} has types that are not tried");
            continue;
        };
        all += check(name, *through, schema);
        tried.insert(*name);
    }
    assert_eq!(tried.len(), KINDS.len());
    assert!(all > 300, "{all} required fields");
}

#[test]
fn nothing_is_written_of_what_is_neither_there_nor_required() {
    let check = |written: Value, expected: Value| assert_eq!(written, expected);
    check(
        json!(VirtualMachineInstance::default()),
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {},
            "spec": {"domain": {"devices": {}}}}),
    );
    // These are always written upstream, though it names no device, or something is not so.
    check(json!(VolumeStatus::default()), json!({"name": "", "target": ""}));
    check(json!(VolumeSnapshotStatus::default()), json!({"name": "", "enabled": false}));
    // A template that is not there is said by nothing; an empty one would be another.
    check(
        json!(VirtualMachine::default()),
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {}, "spec": {}}),
    );
    check(
        json!(VirtualMachinePreference::default()),
        json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachinePreference",
            "metadata": {}, "spec": {}}),
    );
}
