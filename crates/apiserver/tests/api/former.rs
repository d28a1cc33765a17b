//! Objects that an earlier version left under its own keys.

use carrack_store::{Op, Range, Store as _, Txn, Value};
use serde_json::json;

use crate::harness::{Cluster, now};

const MOVED: [(&str, &str); 4] = [
    ("/registry/namespaces/", "/registry/core/namespaces/"),
    ("/registry/configmaps/", "/registry/core/configmaps/"),
    ("/registry/minions/", "/registry/core/nodes/"),
    ("/registry/clusterroles/", "/registry/rbac.authorization.k8s.io/clusterroles/"),
];

#[test]
fn they_are_served_as_ever() {
    let cluster = Cluster::new();
    let paths = [
        "/api/v1/namespaces/default/configmaps/c",
        "/api/v1/nodes/n",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/view",
    ];
    cluster.post("/api/v1/namespaces/default/configmaps", &json!({"metadata": {"name": "c"}})).expect(201);
    cluster.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).expect(201);
    let before = paths.map(|path| cluster.get(path).expect(200));
    let all = |prefix: &str| {
        let range = Range { prefix: prefix.to_owned(), after: None, limit: 0, at: None };
        now(cluster.store.range(range)).expect("readable").entries
    };
    for (new, old) in MOVED {
        for entry in all(new) {
            let key = entry.key.replace(new, old);
            let value = Value { bytes: entry.value(), stamp_at: None };
            let ops = vec![Op::Delete(entry.key.clone()), Op::Put(key.into(), value)];
            cluster.store.commit(Txn { checks: Vec::new(), ops }).expect("committed");
        }
    }
    cluster.get(paths[0]).expect(404);
    now(cluster.api.bootstrap()).expect("it starts");
    for (path, before) in paths.iter().zip(&before) {
        let mut after = cluster.get(path).expect(200);
        assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "it was written anew");
        after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        assert_eq!(after, *before);
    }
    assert!(MOVED.iter().all(|(_, old)| all(old).is_empty()));
}
