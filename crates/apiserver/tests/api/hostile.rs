//! Whatever is sent: an answer with a status, never a panic, never a fault of the server's own.

use bytes::Bytes;
use carrack_auth::Caller;
use http::Method;
use proptest::prelude::*;
use serde_json::json;

use crate::harness::{CONFIG_MAPS, Cluster, config_map};

fn segment() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "api",
            "apis",
            "v1",
            "v2",
            "apps",
            "watch",
            "namespaces",
            "default",
            "pods",
            "configmaps",
            "m",
            "deployments",
            "status",
            "scale",
            "log",
            "exec",
            "binding",
            "token",
            "proxy",
            "finalize",
            "autoscaling",
            "events",
            "events.k8s.io",
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            "openapi",
            "v3",
            "healthz",
            "readyz",
            "nodes",
            "bindings",
        ])
        .prop_map(str::to_owned),
        prop::sample::select(vec!["%2F", "..", "%00", "%zz", "a%2Fb", "%F0%9F%98%80", "+", "%25"])
            .prop_map(str::to_owned),
        "[a-z0-9.-]{0,12}",
    ]
}

fn query() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "watch",
        "limit",
        "continue",
        "labelSelector",
        "fieldSelector",
        "resourceVersion",
        "resourceVersionMatch",
        "dryRun",
        "sendInitialEvents",
        "timeoutSeconds",
        "gracePeriodSeconds",
        "propagationPolicy",
        "fieldValidation",
        "container",
        "pretty",
    ]);
    let value = prop_oneof![
        prop::sample::select(vec![
            "true",
            "0",
            "-1",
            "18446744073709551616",
            "Exact",
            "NotOlderThan",
            "All",
            "a%3Db",
            "a+in+(b,c",
            "metadata.name%3Dm",
            "!a",
            "spec.nodeName!%3D",
            "Orphan",
            "%5C",
            "eyJ2IjoiY2FycmFjay92MSIsInJ2IjoxLCJzdGFydCI6ImEifQ",
        ])
        .prop_map(str::to_owned),
        "[!-~&&[^#%]]{0,20}",
    ];
    prop::collection::vec((name, value).prop_map(|(n, v)| format!("{n}={v}")), 0..4).prop_map(|all| all.join("&"))
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let valid = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"a": "b"}, "finalizers": ["a.b/c"]},
        "data": {"v": "1"}, "spec": {"replicas": 1, "containers": [{"name": "c"}]}, "target": {"name": "n"},
    })
    .to_string()
    .into_bytes();
    let mutated = (Just(valid), any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(
        |(mut text, at, byte, cut)| {
            let at = at.index(text.len());
            text[at] = byte;
            if cut {
                text.truncate(at);
            }
            text
        },
    );
    let patch = prop::sample::select(vec![
        &br#"[{"op":"remove","path":"/metadata"}]"#[..],
        br#"[{"op":"add","path":"/data/-1","value":1}]"#,
        br#"[{"op":"replace","path":"","value":[]}]"#,
        br#"[{"op":"move","from":"/data","path":"/data/v"}]"#,
        br#"{"metadata":null}"#,
        br#"{"metadata":{"labels":[1]},"$patch":"delete"}"#,
        br#"{"data":{"v":1e400}}"#,
        b"k8s\0\x12\x03\x0a\x01x",
        b"",
        b"null",
    ])
    .prop_map(<[u8]>::to_vec);
    prop_oneof![mutated, patch, prop::collection::vec(any::<u8>(), 0..64)]
}

fn request() -> impl Strategy<Value = (Method, String, &'static str, Vec<u8>)> {
    let method = prop::sample::select(vec![
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::HEAD,
        Method::OPTIONS,
    ]);
    let path = prop_oneof![
        prop::collection::vec(segment(), 0..8).prop_map(|segments| format!("/{}", segments.join("/"))),
        Just(CONFIG_MAPS.to_owned()),
        Just(format!("{CONFIG_MAPS}/m")),
    ];
    let content_type = prop::sample::select(vec![
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "text/plain",
        "",
    ]);
    (method, (path, query()).prop_map(|(path, query)| format!("{path}?{query}")), content_type, body())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn every_request_is_answered(requests in prop::collection::vec(request(), 1..40)) {
        let cluster = Cluster::new();
        cluster.post(CONFIG_MAPS, &config_map("m", "1")).expect(201);
        for (method, path, content_type, body) in requests {
            if http::Uri::try_from(&path).is_err() {
                continue;
            }
            let admin = Caller::new("admin", ["system:masters"]);
            let headers = [("content-type", content_type)];
            let reply = cluster.request(admin, method.clone(), &path, &headers, Bytes::from(body.clone()));
            let what = format!("{method} {path} {content_type} {:?}: {} {}", String::from_utf8_lossy(&body), reply.code, reply.json);
            prop_assert!((200..600).contains(&reply.code) && reply.code != 500, "{}", what);
            if reply.code >= 400 && reply.code != 503 {
                prop_assert_eq!(&reply.json["kind"], "Status", "{}", what);
            }
            // What was stored can be read again.
            let list = cluster.get("/api/v1/configmaps");
            prop_assert_eq!(list.code, 200);
            prop_assert!(list.json["items"].is_array(), "{}", what);
        }
    }
}
