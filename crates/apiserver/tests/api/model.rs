//! Whatever is written, in whatever order: a list and the watch from it on show the same state.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map, revision};

#[derive(Clone, Debug)]
enum Write {
    Create(u8),
    Set(u8, u8),
    Label(u8, bool),
    Delete(u8),
    Finalize(u8, bool),
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let name = 0..4_u8;
    let one = prop_oneof![
        name.clone().prop_map(Write::Create),
        (name.clone(), 0..3_u8).prop_map(|(n, v)| Write::Set(n, v)),
        (name.clone(), any::<bool>()).prop_map(|(n, on)| Write::Label(n, on)),
        name.clone().prop_map(Write::Delete),
        (name, any::<bool>()).prop_map(|(n, on)| Write::Finalize(n, on)),
    ];
    prop::collection::vec(one, 0..40)
}

fn apply(cluster: &Cluster, write: &Write) {
    let path = |n: &u8| format!("{CONFIG_MAPS}/m{n}");
    let reply = match write {
        Write::Create(n) => cluster.post(CONFIG_MAPS, &config_map(&format!("m{n}"), "0")),
        Write::Set(n, v) => cluster.merge(&path(n), &json!({"data": {"v": v.to_string()}})),
        Write::Label(n, on) => cluster
            .merge(&path(n), &json!({"metadata": {"labels": {"on": if *on { json!("yes") } else { Value::Null }}}})),
        Write::Delete(n) => cluster.delete(&path(n)),
        Write::Finalize(n, on) => cluster.merge(
            &path(n),
            &json!({"metadata": {"finalizers": if *on { json!(["example.com/f"]) } else { Value::Null }}}),
        ),
    };
    assert!(matches!(reply.code, 200 | 201 | 404 | 409 | 422), "{write:?}: {}", reply.json);
}

fn state(list: &Value) -> BTreeMap<String, Value> {
    list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| (item["metadata"]["name"].as_str().expect("name").to_owned(), item.clone()))
        .collect()
}

fn replay(state: &mut BTreeMap<String, Value>, events: &[Value], newest: &mut u64) {
    for event in events {
        let object = &event["object"];
        let name = object["metadata"]["name"].as_str().expect("name").to_owned();
        let known = state.contains_key(&name);
        assert!(revision(object) > *newest, "events come in order");
        *newest = revision(object);
        match event["type"].as_str() {
            Some("ADDED") => assert!(!known && state.insert(name, object.clone()).is_none()),
            Some("MODIFIED") => assert!(known && state.insert(name, object.clone()).is_some()),
            Some("DELETED") => assert!(known && state.remove(&name).is_some()),
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn list_and_watch_agree_with_the_newest_list(before in writes(), after in writes(), filter in any::<bool>()) {
        let cluster = Cluster::new();
        let query = if filter { "labelSelector=on%3Dyes" } else { "" };
        for write in &before {
            apply(&cluster, write);
        }
        let list = cluster.get(&format!("{CONFIG_MAPS}?{query}")).expect(200);
        let mut known = state(&list);
        let mut newest = revision(&list);
        let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={newest}&{query}"));
        for (i, write) in after.iter().enumerate() {
            apply(&cluster, write);
            if i % 3 == 0 {
                replay(&mut known, &watch.events(), &mut newest);
            }
        }
        replay(&mut known, &watch.events(), &mut newest);
        prop_assert_eq!(&known, &state(&cluster.get(&format!("{CONFIG_MAPS}?{query}")).expect(200)));
        // In pages it is the same.
        let mut paged = BTreeMap::new();
        let mut token = String::new();
        loop {
            let page = cluster.get(&format!("{CONFIG_MAPS}?limit=1&continue={token}&{query}")).expect(200);
            paged.extend(state(&page));
            token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if token.is_empty() {
                break;
            }
        }
        prop_assert_eq!(known, paged);
    }
}
