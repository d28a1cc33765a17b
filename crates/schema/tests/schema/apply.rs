//! What holds of field ownership whatever the kind and the objects are.
#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;

use crate::common::make;
use carrack_schema::apply::{Applied, ApplyError, Kind, Managed, Other, Set, Writer, apply, nothing, update};
use carrack_schema::schema::Schema;
use carrack_schema::{decode, strategic, table};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

fn unknown(_: &str) -> Other<'static> {
    Other::Unknown
}

fn kind(schema: &'static Schema) -> Kind<'static> {
    Kind { schema, other: &unknown, convert: &|object, _| Ok(object.clone()), settle: &|_| {} }
}

fn who(manager: &'static str) -> Writer<'static> {
    Writer { manager, api_version: "v1", subresource: "", now: "2026-01-01T00:00:00Z" }
}

fn run(
    kind: &Kind<'_>,
    state: Option<&Applied>,
    manager: &'static str,
    config: &Object,
    force: bool,
) -> Result<Applied, ApplyError> {
    let managed = state.map(|state| state.managed.clone()).unwrap_or_default();
    apply(state.map(|state| &state.object), config, kind, managed, &who(manager), force, &|_| false)
}

/// The paths that a manager owns.
fn owned(state: &Applied, manager: &str) -> BTreeSet<String> {
    let json = state.managed.clone().into_json().unwrap_or_default();
    json.as_array()
        .into_iter()
        .flatten()
        .filter(|entry| entry["manager"] == manager)
        .flat_map(|entry| Set::parse(entry["fieldsV1"].clone()).expect("a set").paths())
        .collect()
}

fn made(row: usize, seed: u64) -> (&'static Schema, Object) {
    let info = &table::builtin()[row];
    let version = info.versions.first().expect("a version");
    let schema = version.schema();
    let mut object = make(schema, &mut seed.clone(), 7);
    let conforms = decode::conform(&mut object, schema);
    assert_eq!(conforms, Ok(vec![]));
    let Value::Object(mut object) = object else { panic!("an object") };
    // Metadata that the server keeps is nobody's.
    for field in ["apiVersion", "kind"] {
        object.remove(field);
    }
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.retain(|name, _| matches!(name.as_str(), "labels" | "annotations" | "finalizers" | "ownerReferences"));
    }
    object.retain(|_, value| has_leaves(value));
    (schema, object)
}

/// Drops lists and maps in which there is nothing: an empty list of items is nobody's.
fn has_leaves(value: &mut Value) -> bool {
    match value {
        Value::Array(list) => {
            list.retain_mut(has_leaves);
            !list.is_empty()
        }
        Value::Object(map) => {
            map.retain(|_, value| has_leaves(value));
            !map.is_empty()
        }
        _ => true,
    }
}

/// A tree without nulls whose lists are leaves.
fn tree() -> impl Strategy<Value = Object> {
    let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..4_i64).prop_map(Value::from), Just(json!([1, 2]))];
    let value = leaf.prop_recursive(3, 20, 4, |inner| {
        prop::collection::btree_map("[a-d]", inner, 1..4).prop_map(|map| Value::Object(map.into_iter().collect()))
    });
    prop::collection::btree_map("[a-d]", value, 0..4).prop_map(|map| map.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Applying again what was applied changes nothing, whatever the kind.
    #[test]
    fn twice_is_once(row in 0..table::builtin().len(), first in any::<u64>(), second in any::<u64>()) {
        let (schema, live) = made(row, first);
        let (_, config) = made(row, second);
        let kind = kind(schema);
        // Made lists may have an item twice, which cannot be applied.
        let Ok(once) = run(&kind, None, "a", &live, false).and_then(|state| run(&kind, Some(&state), "b", &config, true))
        else { return Ok(()) };
        let twice = run(&kind, Some(&once), "b", &config, false).expect("no conflict with oneself");
        prop_assert_eq!(&twice, &once);
        // And for whoever updates it, nothing has changed either.
        let mut managed = once.managed.clone();
        prop_assert_eq!(update(&once.object, &twice.object, &kind, &mut managed, &who("c")), Ok(false));
        prop_assert_eq!(managed, once.managed);
    }

    /// What one applier stops applying leaves all that others own.
    #[test]
    fn others_keep_theirs(row in 0..table::builtin().len(), first in any::<u64>(), second in any::<u64>()) {
        let (schema, mine) = made(row, first);
        let (_, theirs) = made(row, second);
        let kind = kind(schema);
        let Ok(both) = run(&kind, None, "b", &theirs, false).and_then(|state| run(&kind, Some(&state), "a", &mine, true))
        else { return Ok(()) };
        let before = owned(&both, "b");
        let left = run(&kind, Some(&both), "a", &Object::new(), false).expect("nothing to conflict");
        prop_assert!(owned(&left, "a").is_empty());
        prop_assert_eq!(owned(&left, "b"), before.clone());
        if before == owned(&run(&kind, None, "b", &theirs, false).expect("alone"), "b") {
            // They lost nothing to the first, so all of theirs is there.
            let again = run(&kind, Some(&left), "b", &theirs, false).expect("they own it");
            // But for the order of items, which the applied object may change.
            let nothing = update(&left.object, &again.object, &kind, &mut left.managed.clone(), &who("c"));
            prop_assert_eq!(nothing, Ok(false));
        }
    }

    /// A writer owns what its update changed, and nobody owns what is gone.
    #[test]
    fn updates_are_noted(row in 0..table::builtin().len(), first in any::<u64>(), second in any::<u64>()) {
        let (schema, old) = made(row, first);
        let (_, new) = made(row, second);
        let kind = kind(schema);
        let mut managed = Managed::default();
        update(&nothing(false, &old), &old, &kind, &mut managed, &who("a")).expect("one version");
        update(&old, &new, &kind, &mut managed, &who("b")).expect("one version");
        let state = Applied { object: new.clone(), managed };
        let (a, b) = (owned(&state, "a"), owned(&state, "b"));
        prop_assert!(a.is_disjoint(&b));
        // Going back: whoever owned something that changes, owns it no more.
        let mut managed = state.managed;
        update(&new, &Object::new(), &kind, &mut managed, &who("c")).expect("one version");
        let nothing_left = owned(&Applied { object: Object::new(), managed }, "b");
        prop_assert!(nothing_left.is_empty(), "{nothing_left:?}");
    }

    /// Sets go through their JSON form unchanged, however they were made.
    #[test]
    fn sets_round_trip(row in 0..table::builtin().len(), seed in any::<u64>()) {
        let (schema, object) = made(row, seed);
        let mut managed = Managed::default();
        update(&Object::new(), &object, &kind(schema), &mut managed, &who("a")).expect("one version");
        let Some(json) = managed.into_json() else { return Ok(()) };
        let parsed = Managed::parse(json.clone()).expect("it was written here");
        prop_assert_eq!(parsed.into_json(), Some(json.clone()));
        prop_assert_eq!(Managed::stored(&json.to_string()).into_json(), Some(json));
    }

    /// Where nothing is known of the form, applying is a merge patch, and what is not applied any more
    /// is what a second patch would null.
    #[test]
    fn merging_is_a_merge_patch(live in tree(), first in tree(), second in tree()) {
        let kind = kind(Schema::anything());
        let mut model = Value::Object(live.clone());
        strategic::merge(&mut model, &Value::Object(first.clone()));
        let started = Applied { object: live, managed: Managed::default() };
        let state = run(&kind, Some(&started), "a", &first, true).expect("forced");
        prop_assert_eq!(Value::Object(state.object.clone()), model.clone());
        strategic::merge(&mut model, &Value::Object(second.clone()));
        let state = run(&kind, Some(&state), "a", &second, true).expect("forced");
        // All of what is applied is there; more may be, if nobody or another owns it.
        let mut again = Value::Object(state.object.clone());
        strategic::merge(&mut again, &Value::Object(second));
        prop_assert_eq!(Value::Object(state.object), again);
    }
}

/// Each list that is owned by item names keys that its items have.
#[test]
fn every_kind_has_a_view() {
    fn walk(schema: &Schema, seen: &mut BTreeSet<String>, lists: &mut usize) {
        if let Some(name) = &schema.reference
            && !seen.insert(name.to_string())
        {
            return;
        }
        let node = schema.resolve();
        if let Some(items) = &node.items {
            let keys: Vec<&str> = match (&schema.list, &schema.patch.key) {
                (carrack_schema::schema::ListType::Map(keys), _) => keys.iter().map(|key| &**key).collect(),
                (carrack_schema::schema::ListType::Unspecified, Some(key)) if schema.patch.merge => vec![key],
                _ => Vec::new(),
            };
            for key in &keys {
                assert!(items.resolve().property(key).is_some(), "{:?} has no {key}", items.reference);
            }
            *lists += usize::from(!keys.is_empty());
            walk(items, seen, lists);
        }
        for (_, property) in &node.properties {
            walk(property, seen, lists);
        }
        if let carrack_schema::schema::Additional::Of(values) = &node.additional {
            walk(values, seen, lists);
        }
    }
    let (mut seen, mut lists) = (BTreeSet::new(), 0);
    for row in table::builtin() {
        for version in &row.versions {
            walk(version.schema(), &mut seen, &mut lists);
        }
    }
    assert!(lists > 40, "only {lists} lists are owned by item");
}
