//! Tables of what patches do, and properties that hold for all of them.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn pod_schema() -> &'static Schema {
    crate::builtin::schema("io.k8s.api.core.v1.Pod").expect("the pod's schema")
}

#[track_caller]
fn check(schema: &Schema, original: Value, patch: Value, expected: Value) {
    let text = patch.to_string();
    assert_eq!(apply(original, patch, schema), Ok(expected), "{text}");
}

/// This would take minutes, were each name looked for among all others.
#[test]
fn long_lists_of_names_are_looked_up() {
    let names: Vec<String> = (0..100_000).map(|number| format!("k{number}")).collect();
    let mut data: Map<String, Value> = names.iter().map(|name| (name.clone(), "x".into())).collect();
    let original = json!({"metadata": {"annotations": data, "labels": {"a": "b"}}});
    data.insert("$retainKeys".to_owned(), json!(names));
    let patched = apply(original.clone(), json!({"metadata": {"annotations": data}}), pod_schema());
    assert_eq!(patched, Ok(original));
}

#[test]
fn merges_by_the_schemas_keys() {
    let pod = |containers: Value| json!({"spec": {"containers": containers}});
    let table = [
        // An item changes by its name, in its place.
        (
            pod(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}])),
            pod(json!([{"name": "b", "image": "2"}])),
            pod(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}])),
        ),
        // A new item comes first, as upstream has it.
        (
            pod(json!([{"name": "a"}])),
            pod(json!([{"name": "z", "image": "2"}])),
            pod(json!([{"name": "z", "image": "2"}, {"name": "a"}])),
        ),
        // Deletion by key, and of a key that is not there.
        (
            pod(json!([{"name": "a"}, {"name": "b"}])),
            pod(json!([{"$patch": "delete", "name": "a"}])),
            pod(json!([{"name": "b"}])),
        ),
        (pod(json!([{"name": "a"}])), pod(json!([{"$patch": "delete", "name": "x"}])), pod(json!([{"name": "a"}]))),
        // Replacement of the whole list.
        (
            pod(json!([{"name": "a"}, {"name": "b"}])),
            pod(json!([{"name": "c"}, {"$patch": "replace"}])),
            pod(json!([{"name": "c"}])),
        ),
        // Inner lists by their keys; a null removes.
        (
            pod(
                json!([{"name": "a", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 80, "name": "web"}]}]),
            ),
            pod(
                json!([{"name": "a", "env": [{"name": "X", "value": null, "valueFrom": {"fieldRef": {"fieldPath": "f"}}}], "ports": [{"containerPort": 80, "protocol": "UDP"}]}]),
            ),
            pod(
                json!([{"name": "a", "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "f"}}}], "ports": [{"containerPort": 80, "name": "web", "protocol": "UDP"}]}]),
            ),
        ),
        // Atomic lists are replaced.
        (
            json!({"spec": {"tolerations": [{"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
        ),
        (
            pod(json!([{"name": "a", "args": ["x", "y"]}])),
            pod(json!([{"name": "a", "args": ["z"]}])),
            pod(json!([{"name": "a", "args": ["z"]}])),
        ),
        // Primitive lists that merge are sets.
        (
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["b", "c"]}}),
            json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
        ),
        (
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            json!({"metadata": {"finalizers": ["b"]}}),
        ),
        // Directives of maps.
        (
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}}),
            json!({"metadata": {"labels": {"c": "3"}}}),
        ),
        (
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "delete"}}}),
            json!({"metadata": {"labels": {}}}),
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
            json!({"spec": {"volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/x"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}}),
        ),
        // The order that is asked for; what the patch does not name keeps its place among its own.
        (
            pod(json!([{"name": "a"}, {"name": "b"}, {"name": "c"}])),
            json!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "a", "image": "2"}]}}),
            pod(json!([{"name": "b"}, {"name": "c"}, {"name": "a", "image": "2"}])),
        ),
        (
            pod(json!([{"name": "a"}, {"name": "b"}])),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            pod(json!([{"name": "b"}, {"name": "a"}])),
        ),
        // Where there was nothing, the patch is taken without its directives.
        (
            json!({}),
            json!({"spec": {"containers": [{"name": "a", "x": null}, {"$patch": "delete", "name": "b"}], "$setElementOrder/containers": [{"name": "a"}]}}),
            pod(json!([{"name": "a"}])),
        ),
        (json!({"metadata": {"name": "x"}}), json!({"metadata": null}), json!({})),
    ];
    for (original, patch, expected) in table {
        check(pod_schema(), original, patch, expected);
    }
}

/// What `kubectl apply` sends when a deployment's image and replicas change.
#[test]
fn merges_into_referenced_types() {
    let schema = crate::builtin::schema("io.k8s.api.apps.v1.Deployment").expect("the deployment's schema");
    let original = json!({"spec": {"replicas": 1, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
        "template": {"spec": {"containers": [{"name": "a", "image": "1", "imagePullPolicy": "Always"}]}}}});
    let patch = json!({"spec": {"replicas": 2, "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
        "template": {"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "a", "image": "2"}]}}}});
    let expected = json!({"spec": {"replicas": 2, "strategy": {"type": "Recreate"},
        "template": {"spec": {"containers": [{"name": "a", "image": "2", "imagePullPolicy": "Always"}]}}}});
    check(schema, original, patch, expected);
}

#[test]
fn refuses_what_is_malformed() {
    let original = json!({"spec": {"containers": [{"name": "a"}], "volumes": [{"name": "v", "emptyDir": {}}]}});
    let table = [
        json!({"spec": {"containers": [{"image": "x"}]}}),
        json!({"spec": {"containers": [{"$patch": "delete"}]}}),
        json!({"spec": {"containers": [{"$patch": "odd", "name": "a"}]}}),
        json!({"spec": {"containers": ["a"]}}),
        json!({"spec": {"$patch": "odd"}}),
        json!({"spec": {"$patch": 1}}),
        json!({"spec": {"$retainKeys": "x"}}),
        json!({"spec": {"volumes": [{"$retainKeys": ["name"], "name": "v", "hostPath": {}}]}}),
        json!({"spec": {"$setElementOrder/containers": {}}}),
        json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}}),
    ];
    for patch in table {
        let text = patch.to_string();
        assert!(apply(original.clone(), patch, pod_schema()).is_err(), "{text}");
    }
}

#[test]
fn merge_patch_follows_rfc_7386() {
    let table = [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ];
    for (mut target, patch, expected) in table {
        merge(&mut target, &patch);
        assert_eq!(target, expected, "{patch}");
    }
}

/// Containers with few names, so that patches often meet what is there.
fn containers() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-d]", ("[xy]", prop::collection::btree_map("[A-C]", "[12]", 0..3)), 0..4).prop_map(
        |items| {
            items
                .into_iter()
                .map(|(name, (image, env))| {
                    let env: Vec<_> =
                        env.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
                    json!({"name": name, "image": image, "env": env})
                })
                .collect()
        },
    )
}

fn by_name(list: &Value) -> BTreeMap<String, Value> {
    let items = list.as_array().cloned().unwrap_or_default();
    items.into_iter().map(|item| (item["name"].as_str().unwrap_or_default().to_owned(), item)).collect()
}

proptest! {
    /// Merged lists are the union by key: the model is a map.
    #[test]
    fn a_merged_list_is_the_union_by_key(original in containers(), patch in containers()) {
        let merged = apply(json!({"spec": {"containers": original}}), json!({"spec": {"containers": patch}}), pod_schema());
        let merged = by_name(&merged.expect("a good patch")["spec"]["containers"]);
        let (old, new) = (by_name(&original), by_name(&patch));
        let names: Vec<_> = old.keys().chain(new.keys()).collect();
        prop_assert!(names.iter().all(|name| merged.contains_key(*name)));
        for (name, item) in &merged {
            prop_assert!(names.contains(&name));
            let image = new.get(name).or(old.get(name)).map(|i| &i["image"]);
            prop_assert_eq!(Some(&item["image"]), image);
            let mut env = old.get(name).map(|i| by_name(&i["env"])).unwrap_or_default();
            env.extend(new.get(name).map(|i| by_name(&i["env"])).unwrap_or_default());
            prop_assert_eq!(by_name(&item["env"]), env);
        }
    }

    /// A patch that was applied changes nothing when it is applied again.
    #[test]
    fn applying_twice_is_applying_once(original in containers(), patch in containers()) {
        let patch = json!({"spec": {"containers": patch}});
        let once = apply(json!({"spec": {"containers": original}}), patch.clone(), pod_schema()).expect("a good patch");
        let twice = apply(once.clone(), patch, pod_schema()).expect("a good patch");
        prop_assert_eq!(once, twice);
    }

    /// Whatever the patch, applying ends and keeps no directive.
    #[test]
    fn no_directive_survives(original in containers(), patch in containers(), how in "(delete|replace|merge|odd)", order in containers()) {
        let mut list = patch.as_array().cloned().unwrap_or_default();
        list.push(json!({"name": "a", "$patch": how}));
        let patch = json!({"spec": {"containers": list, "$setElementOrder/containers": order}});
        if let Ok(result) = apply(json!({"spec": {"containers": original}}), patch, pod_schema()) {
            prop_assert!(!result.to_string().contains('$'));
        }
    }
}
