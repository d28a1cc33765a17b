//! watch: where it begins, what it shows, how it ends.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use carrack_apiserver::Body;
use carrack_apiserver::body::Lines;
use carrack_auth::Caller;
use carrack_store::{Op, Revision, Store as _, StoreError, Txn, Value};
use http::Method;
use serde_json::json;

use crate::harness::{CONFIG_MAPS, Cluster, config_map, names, now, revision};

#[test]
fn from_the_beginning_from_now_from_then() {
    let cluster = Cluster::new();
    let first = cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201);
    let mut unset = cluster.watch(&format!("{CONFIG_MAPS}?watch=true"));
    let mut zero = cluster.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=0"));
    let mut then = cluster.watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={}", revision(&first)));
    let mut legacy = cluster.watch("/api/v1/watch/namespaces/default/configmaps");
    assert_eq!(unset.summary(), ["ADDED a"]);
    assert_eq!(zero.summary(), ["ADDED a"]);
    assert_eq!(legacy.summary(), ["ADDED a"]);
    assert!(then.summary().is_empty());
    cluster.merge(&format!("{CONFIG_MAPS}/a"), &json!({"data": {"v": "2"}})).expect(200);
    cluster.post(CONFIG_MAPS, &config_map("b", "1")).expect(201);
    cluster.delete(&format!("{CONFIG_MAPS}/a")).expect(200);
    for watch in [&mut unset, &mut zero, &mut then] {
        assert_eq!(watch.summary(), ["MODIFIED a", "ADDED b", "DELETED a"]);
    }
}

/// What somebody else has put into the store and is no object is neither told nor passed over, until it has been taken away.
#[test]
fn what_is_no_object_is_refused_by_its_key() {
    let cluster = Cluster::new();
    let (key, odd) = ("/registry/configmaps/default/odd", format!("{CONFIG_MAPS}/odd"));
    cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201);
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={}", cluster.store.revision());
    let mut table = cluster.watch_as(&path, "application/json;as=Table;g=meta.k8s.io;v=v1");
    let mut watch = cluster.watch(&path);
    let change = |op| drop(now(cluster.store.transact(Txn { checks: Vec::new(), ops: vec![op] })).expect("changed"));
    cluster.post(CONFIG_MAPS, &config_map("b", "1")).expect(201);
    change(Op::Put(key.into(), Value { bytes: "k8s".into(), stamp_at: None }));
    for reply in [
        cluster.get(&odd),
        cluster.get(CONFIG_MAPS),
        cluster.get(&format!("{CONFIG_MAPS}?limit=3&labelSelector=a%3Db")),
        cluster.put(&odd, &config_map("odd", "1")),
        cluster.merge(&odd, &json!({"data": {"v": "2"}})),
        cluster.delete(&odd),
    ] {
        reply.refused(500, "StorageReadError", key);
    }
    for watch in [&mut watch, &mut table] {
        let events = watch.events();
        let told: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        assert_eq!(told, ["ADDED", "ERROR"]);
        assert_eq!(events[1]["object"]["reason"], "StorageReadError");
    }
    change(Op::Delete(key.into()));
    assert_eq!(names(&cluster.get(CONFIG_MAPS).expect(200)), ["a", "b"]);
}

/// Who may watch may do nothing else, by a path that counts as a watch whatever its method.
#[test]
fn below_watch_there_are_only_watches() {
    let cluster = Cluster::new();
    cluster.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).expect(201);
    cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201);
    for (method, path, code) in [
        (Method::GET, "namespaces/default/configmaps/a", 200),
        (Method::HEAD, "namespaces/default/configmaps/a", 405),
        (Method::POST, "namespaces/default/configmaps", 405),
        (Method::DELETE, "namespaces/default/configmaps/a", 405),
        (Method::GET, "nodes/n1/proxy/pods", 404),
        (Method::OPTIONS, "nodes/n1/proxy/pods", 404),
        (Method::HEAD, "nodes/n1/proxy/pods", 404),
    ] {
        let caller = Caller::new("admin", ["system:masters"]);
        let reply = cluster.raw(caller, method.clone(), &format!("/api/v1/watch/{path}"), &[], Bytes::new());
        assert_eq!(reply.status(), code, "{method} {path}");
    }
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a")).expect(200)["data"]["v"], "1");
}

#[test]
fn watchers_that_see_the_same_are_sent_the_same_bytes() {
    let cluster = Cluster::new();
    let open = |query: &str, accept: &str| {
        let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={}{query}", cluster.store.revision());
        let caller = Caller::new("admin", ["system:masters"]);
        match cluster.raw(caller, Method::GET, &path, &[("accept", accept)], Bytes::new()).into_body() {
            Body::Watch { lines, .. } => lines,
            other => panic!("no watch: {other:?}"),
        }
    };
    let (json, metadata) = ("application/json", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let views = [("", json), ("&labelSelector=a%3Db", json), ("&labelSelector=a%3Dc", json), ("", metadata)];
    let mut pairs = views.map(|(query, accept)| [open(query, accept), open(query, accept)]);
    let mut labelled = config_map("x", "1");
    labelled["metadata"]["labels"] = json!({"a": "b"});
    cluster.post(CONFIG_MAPS, &labelled).expect(201);
    cluster.post(CONFIG_MAPS, &config_map("y", "1")).expect(201);
    let mut seen = Vec::new();
    for pair in &mut pairs {
        let [first, second] = pair.each_mut().map(pieces);
        assert!(first.iter().zip(&second).all(|(a, b)| a.as_ptr() == b.as_ptr()), "not shared");
        assert_eq!(first.len(), second.len());
        seen.push(first.concat().split(|byte| *byte == b'\n').count() - 1);
    }
    assert_eq!(seen, [2, 1, 0, 2]);
}

/// What a watch has to say now.
fn pieces(lines: &mut Lines) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    while let Poll::Ready(Some(piece)) = lines.as_mut().poll_next(&mut Context::from_waker(Waker::noop())) {
        pieces.push(piece);
    }
    pieces
}

#[test]
fn resuming_loses_nothing() {
    let cluster = Cluster::new();
    let list = cluster.get(CONFIG_MAPS).expect(200);
    for i in 0..5 {
        cluster.post(CONFIG_MAPS, &config_map(&format!("m{i}"), "x")).expect(201);
    }
    let mut seen = Vec::new();
    let mut from = revision(&list);
    while seen.len() < 5 {
        // Each watch is cut off after its first event, and the next goes on from there.
        let event = cluster.watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={from}")).events().remove(0);
        from = revision(&event["object"]);
        seen.push(event["object"]["metadata"]["name"].as_str().expect("name").to_owned());
    }
    assert_eq!(seen, ["m0", "m1", "m2", "m3", "m4"]);
}

#[test]
fn a_deletion_carries_its_own_revision() {
    let cluster = Cluster::new();
    let made = cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201);
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={}", revision(&made)));
    cluster.delete(&format!("{CONFIG_MAPS}/a")).expect(200);
    let event = watch.events().remove(0);
    assert_eq!(event["type"], "DELETED");
    assert!(revision(&event["object"]) > revision(&made));
    assert_eq!(event["object"]["data"]["v"], "1");
}

#[test]
fn objects_enter_and_leave_a_selection() {
    let cluster = Cluster::new();
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?watch=true&labelSelector=on%3Dyes"));
    cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let label = |value: serde_json::Value| json!({"metadata": {"labels": {"on": value}}});
    cluster.merge(&path, &label("yes".into())).expect(200);
    cluster.merge(&path, &json!({"data": {"v": "2"}})).expect(200);
    let gone = cluster.merge(&path, &label("no".into())).expect(200);
    cluster.merge(&path, &json!({"data": {"v": "3"}})).expect(200);
    let events = watch.events();
    let types: Vec<_> = events.iter().map(|event| event["type"].as_str().expect("type")).collect();
    assert_eq!(types, ["ADDED", "MODIFIED", "DELETED"]);
    // What the client last saw of it, at the revision of the change that took it away.
    assert_eq!(events[2]["object"]["data"]["v"], "2");
    assert_eq!(events[2]["object"]["metadata"]["labels"]["on"], "yes");
    assert_eq!(revision(&events[2]["object"]), revision(&gone));
}

#[test]
fn pods_of_a_node() {
    let cluster = Cluster::new();
    let mut watch = cluster.watch("/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dn1");
    cluster.running_pod("here");
    cluster.post("/api/v1/namespaces/default/pods", &crate::harness::pod("nowhere")).expect(201);
    assert_eq!(watch.summary(), ["ADDED here"]);
}

#[test]
fn one_object() {
    let cluster = Cluster::new();
    cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201);
    cluster.post(CONFIG_MAPS, &config_map("ab", "1")).expect(201);
    let mut by_field = cluster.watch(&format!("{CONFIG_MAPS}?watch=true&fieldSelector=metadata.name%3Da"));
    let mut by_path = cluster.watch("/api/v1/watch/namespaces/default/configmaps/a");
    // Who names the object gets it, as upstream has it.
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/a?watch=true")).expect(200)["kind"], "ConfigMap");
    assert_eq!(by_field.summary(), ["ADDED a"]);
    assert_eq!(by_path.summary(), ["ADDED a"]);
    cluster.delete(&format!("{CONFIG_MAPS}/ab")).expect(200);
    cluster.delete(&format!("{CONFIG_MAPS}/a")).expect(200);
    assert_eq!(by_field.summary(), ["DELETED a"]);
    assert_eq!(by_path.summary(), ["DELETED a"]);
}

#[test]
fn streaming_lists_say_where_they_end() {
    let cluster = Cluster::new();
    cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201);
    let mut watch = cluster.watch(&format!(
        "{CONFIG_MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    ));
    let events = watch.events();
    assert_eq!(events.len(), 2);
    assert_eq!((events[0]["type"].as_str(), events[1]["type"].as_str()), (Some("ADDED"), Some("BOOKMARK")));
    assert_eq!(events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(events[1]["object"]["kind"], "ConfigMap");
    assert!(revision(&events[1]["object"]) >= revision(&events[0]["object"]));
}

#[test]
fn initial_events_come_as_asked() {
    let cluster = Cluster::new();
    let made = cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201);
    let old = revision(&made) - 1;
    for (query, want) in [
        ("", &["ADDED a"][..]),
        ("&resourceVersion=0", &["ADDED a"]),
        (&format!("&resourceVersion={old}"), &["ADDED a"]),
        ("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", &["ADDED a"]),
        ("&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", &[]),
        ("&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0", &[]),
    ] {
        assert_eq!(cluster.watch(&format!("{CONFIG_MAPS}?watch=true{query}")).summary(), want, "{query}");
    }
}

#[test]
fn bookmarks_tell_of_progress_elsewhere() {
    let cluster = Cluster::new();
    let mut with = cluster.watch(&format!("{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true"));
    let mut without = cluster.watch(&format!("{CONFIG_MAPS}?watch=true"));
    assert!(with.summary().is_empty());
    let other = cluster.running_pod("p");
    let events = with.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["type"], "BOOKMARK");
    assert!(revision(&events[0]["object"]) >= revision(&other));
    assert!(without.summary().is_empty());
    assert!(with.summary().is_empty());
}

#[test]
fn history_that_is_gone() {
    let cluster = Cluster::new();
    let old = revision(&cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201));
    cluster.delete(&format!("{CONFIG_MAPS}/a")).expect(200);
    cluster.post(CONFIG_MAPS, &config_map("b", "1")).expect(201);
    now(cluster.store.compact(Revision(cluster.store.revision().0))).expect("compact");
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={old}"));
    let events = watch.events();
    assert_eq!((events[0]["type"].as_str(), events[0]["object"]["code"].as_u64()), (Some("ERROR"), Some(410)));
    assert_eq!(events[0]["object"]["reason"], "Expired");
    assert!(watch.ended);
}

#[test]
fn a_watch_that_falls_behind_says_so_and_ends() {
    let cluster = Cluster::new();
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?watch=true"));
    cluster.store.interrupt_watches(&StoreError::Lagged);
    let events = watch.events();
    assert_eq!((events[0]["type"].as_str(), events[0]["object"]["code"].as_u64()), (Some("ERROR"), Some(410)));
    assert!(watch.ended);
    // The server's own indexes recover by themselves.
    cluster.post(CONFIG_MAPS, &config_map("after", "1")).expect(201);
}

#[test]
fn tables_have_headings_once() {
    let cluster = Cluster::new();
    cluster.post(CONFIG_MAPS, &config_map("a", "1")).expect(201);
    cluster.post(CONFIG_MAPS, &config_map("b", "1")).expect(201);
    let mut watch =
        cluster.watch_as(&format!("{CONFIG_MAPS}?watch=true"), "application/json;as=Table;v=v1;g=meta.k8s.io");
    let events = watch.events();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0]["object"]["kind"], "Table");
    assert!(events[0]["object"]["columnDefinitions"].is_array());
    assert!(events[1]["object"]["columnDefinitions"].is_null());
    assert_eq!(events[1]["object"]["rows"][0]["object"]["metadata"]["name"], "b");
    // A bookmark has none.
    let now = cluster.store.revision();
    let path = format!("{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true&resourceVersion={now}");
    let mut marked = cluster.watch_as(&path, "application/json;as=Table;v=v1;g=meta.k8s.io");
    assert!(marked.summary().is_empty());
    cluster.running_pod("p");
    assert_eq!(marked.summary(), ["BOOKMARK -"]);
    cluster.post(CONFIG_MAPS, &config_map("c", "1")).expect(201);
    assert!(marked.events()[0]["object"]["columnDefinitions"].is_array());
    let mut partial = cluster
        .watch_as(&format!("{CONFIG_MAPS}?watch=true"), "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
    assert_eq!(partial.events()[0]["object"]["kind"], "PartialObjectMetadata");
}
