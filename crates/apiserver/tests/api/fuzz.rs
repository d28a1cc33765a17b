//! Objects and patches that are nearly right: a field of the wrong type, gone, nested too deep, named by a path that
//! leads nowhere. Each gets its status, none the server's 500, and what is stored stays readable.

use std::fmt::Write as _;

use bytes::Bytes;
use carrack_auth::Caller;
use http::Method;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use crate::harness::Cluster;

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x.y/z"],
                     "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true}]},
        "spec": {
            "automountServiceAccountToken": false, "serviceAccountName": "", "terminationGracePeriodSeconds": 3,
            "nodeSelector": {"k": "v"},
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
            "containers": [
                {"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                 "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                 "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
                 "livenessProbe": {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 3},
                 "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
            ],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
                [{"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}]}}},
        },
    })
}

fn deployment() -> Value {
    let mut template = pod();
    template["metadata"] = json!({"labels": {"a": "b"}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": template["metadata"], "spec": template["spec"]},
                 "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}},
    })
}

/// Any JSON, with what decoders stumble over.
fn junk() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec![0.5, -1e300, 1e18, 9_007_199_254_740_993.0]).prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "\u{0}",
            "\u{202e}",
            "-1",
            "1e400",
            "999999999999999999999",
            "1Ki",
            "a/b/c",
            "..",
            "$(x)",
            "\u{1F600}"
        ])
        .prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z$/.~]{0,9}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// What is done to one place of an object.
#[derive(Clone, Debug)]
enum Change {
    Replace(Value),
    Remove,
    /// Another field beside it.
    Add(String, Value),
    /// An item once more.
    Twice,
    /// A directive of strategic merge.
    Direct(&'static str, Value),
    /// So deep in lists.
    Bury(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let directive = prop::sample::select(vec![
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$setElementOrder/finalizers",
        "$deleteFromPrimitiveList/finalizers",
        "$x",
    ]);
    let meaning = prop_oneof![
        prop::sample::select(vec![
            json!("delete"),
            json!("replace"),
            json!("merge"),
            json!(["c"]),
            json!([{"name": "c"}]),
            json!([1])
        ]),
        junk(),
    ];
    prop_oneof![
        3 => junk().prop_map(Change::Replace),
        2 => Just(Change::Remove),
        2 => ("[a-zA-Z]{1,8}", junk()).prop_map(|(key, value)| Change::Add(key, value)),
        1 => Just(Change::Twice),
        2 => (directive, meaning).prop_map(|(key, value)| Change::Direct(key, value)),
        1 => (1_usize..300).prop_map(Change::Bury),
    ]
}

/// Pointers to all places of a value.
fn places(value: &Value) -> Vec<String> {
    fn walk(value: &Value, path: &str, found: &mut Vec<String>) {
        found.push(path.to_owned());
        match value {
            Value::Object(map) => {
                map.iter().for_each(|(key, child)| {
                    walk(child, &format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), found)
                });
            }
            Value::Array(list) => {
                list.iter().enumerate().for_each(|(at, child)| walk(child, &format!("{path}/{at}"), found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(value, "", &mut found);
    found
}

fn apply(object: &mut Value, at: Index, change: Change) {
    let places = places(object);
    let pointer = at.get(&places).clone();
    if let Change::Remove | Change::Twice = change {
        let Some((parent, key)) = pointer.rsplit_once('/') else { return };
        match (object.pointer_mut(parent), change) {
            (Some(Value::Object(map)), _) => drop(map.remove(key)),
            (Some(Value::Array(list)), Change::Remove) => drop(key.parse().ok().map(|at: usize| list.remove(at))),
            (Some(Value::Array(list)), _) => {
                if let Some(item) = key.parse().ok().and_then(|at: usize| list.get(at).cloned()) {
                    list.push(item);
                }
            }
            _ => {}
        }
        return;
    }
    let Some(place) = object.pointer_mut(&pointer) else { return };
    match change {
        Change::Replace(value) => *place = value,
        Change::Bury(depth) => *place = (0..depth).fold(place.take(), |inner, _| Value::Array(vec![inner])),
        Change::Add(key, value) => {
            if let Value::Object(map) = place {
                map.insert(key, value);
            }
        }
        Change::Direct(key, value) => {
            if let Value::Object(map) = place {
                map.insert(key.to_owned(), value);
            }
        }
        Change::Remove | Change::Twice => {}
    }
}

fn operations() -> impl Strategy<Value = Vec<(&'static str, Index, Index, &'static str, Value)>> {
    let name = prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test", "none"]);
    let behind = prop::sample::select(vec!["", "", "", "/-", "/0", "/99999999999999999999", "/~2", "/x/y/z", "/"]);
    prop::collection::vec((name, any::<Index>(), any::<Index>(), behind, junk()), 1..6)
}

/// How an object is sent.
#[derive(Clone, Debug)]
enum Sent {
    Whole { changes: Vec<(Index, Change)>, method: Method, content_type: &'static str },
    Json(Vec<(&'static str, Index, Index, &'static str, Value)>),
}

fn sent() -> impl Strategy<Value = Sent> {
    let changes = prop::collection::vec((any::<Index>(), change()), 1..4);
    let how = prop::sample::select(vec![
        (Method::POST, "application/json"),
        (Method::PUT, "application/json"),
        (Method::POST, "application/yaml"),
        (Method::PATCH, "application/merge-patch+json"),
        (Method::PATCH, "application/strategic-merge-patch+json"),
        (Method::PATCH, "application/apply-patch+yaml"),
    ]);
    prop_oneof![
        4 => (changes, how).prop_map(|(changes, (method, content_type))| Sent::Whole { changes, method, content_type }),
        2 => operations().prop_map(Sent::Json),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn nearly_right_objects_and_patches(kind in any::<bool>(), all in prop::collection::vec(sent(), 1..24)) {
        let cluster = Cluster::new();
        let (collection, base, name) = if kind { (PODS, pod(), "p") } else { (DEPLOYMENTS, deployment(), "d") };
        cluster.post(collection, &base).expect(201);
        for sent in all {
            let (method, content_type, body) = match sent {
                Sent::Whole { changes, method, content_type } => {
                    let mut object = base.clone();
                    changes.into_iter().for_each(|(at, change)| apply(&mut object, at, change));
                    (method, content_type, object)
                }
                Sent::Json(operations) => {
                    let places = places(&base);
                    let patch: Vec<Value> = operations
                        .into_iter()
                        .map(|(op, at, from, behind, value)| {
                            json!({"op": op, "path": format!("{}{behind}", at.get(&places)), "from": from.get(&places), "value": value})
                        })
                        .collect();
                    (Method::PATCH, "application/json-patch+json", Value::from(patch))
                }
            };
            let path = if method == Method::POST { collection.to_owned() } else { format!("{collection}/{name}?fieldManager=f&force=true") };
            let admin = Caller::new("admin", ["system:masters"]);
            let headers = [("content-type", content_type)];
            let reply = cluster.request(admin, method.clone(), &path, &headers, Bytes::from(body.to_string()));
            let what = format!("{method} {path} {content_type} {body}: {} {}", reply.code, reply.json);
            prop_assert!((200..500).contains(&reply.code) && reply.code != 404, "{}", what);
            if reply.code >= 400 {
                prop_assert_eq!(&reply.json["kind"], "Status", "{}", what);
                prop_assert!(reply.json["reason"].is_string() && reply.json["message"].is_string(), "{}", what);
            }
            let list = cluster.get(collection);
            prop_assert!(list.code == 200 && list.json["items"].is_array(), "{}", what);
            prop_assert_eq!(cluster.get(&format!("{collection}/{name}")).code, 200, "{}", what);
        }
    }

    #[test]
    fn selectors_are_read_or_refused(text in "[a-z!=,() ./'\"\\\\<>-]{0,40}", fields in any::<bool>()) {
        let cluster = Cluster::new();
        let mut escaped = String::new();
        for byte in text.bytes() {
            write!(escaped, "%{byte:02x}").expect("memory takes everything");
        }
        let name = if fields { "fieldSelector" } else { "labelSelector" };
        for verb in ["", "&watch=1&timeoutSeconds=1"] {
            let reply = cluster.get(&format!("{PODS}?{name}={escaped}{verb}"));
            prop_assert!(matches!(reply.code, 200 | 400), "{name}={text}: {} {}", reply.code, reply.json);
        }
    }
}

#[test]
fn bodies_that_would_fill_the_memory_or_the_stack() {
    let cluster = Cluster::new();
    let deep = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    let aliases = (1..20).fold("a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, n| {
        let before = format!("*a{},", n - 1).repeat(9);
        format!("{text}a{n}: &a{n} [{before}]\n")
    });
    for (content_type, body) in [
        ("application/json", deep("[", "]", 200_000)),
        ("application/json", deep("{\"a\":", "}", 200_000)),
        ("application/json", format!("{{\"metadata\":{{\"name\":\"a\",\"x\":{}}}}}", deep("[", "]", 5000))),
        ("application/json", format!("{{\"spec\":{{\"terminationGracePeriodSeconds\":{}}}}}", "9".repeat(100_000))),
        ("application/json", format!("{{\"metadata\":{{\"generation\":1e{}}}}}", "9".repeat(1000))),
        ("application/yaml", deep("[", "]", 200_000)),
        ("application/yaml", aliases),
        ("application/yaml", format!("a: {}", "? ".repeat(50_000))),
    ] {
        let admin = Caller::new("admin", ["system:masters"]);
        let reply =
            cluster.request(admin, Method::POST, PODS, &[("content-type", content_type)], Bytes::from(body.clone()));
        assert!(matches!(reply.code, 400 | 413 | 422), "{content_type} {:.80}: {} {}", body, reply.code, reply.json);
        assert_eq!(reply.json["kind"], "Status");
    }
}
