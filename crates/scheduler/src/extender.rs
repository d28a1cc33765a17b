//! Extenders: programs that are asked over HTTP about nodes, and may bind pods (kube-scheduler-extender v1).
//!
//! Here is what is said to them and how their answers are read; the shell does the talking. An answer counts only as far
//! as it is about what was asked: nodes that were not offered, victims that are not there and answers to nobody's question
//! are dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::core::v1::{Container, Node};
use serde_json::{Value, json};

use crate::{Pod, PodInfo};

/// An extender.
#[derive(Clone, Debug, PartialEq)]
pub struct Extender {
    /// What verbs are appended to, such as `http://127.0.0.1:3456/scheduler`.
    pub url_prefix: String,
    /// Verb that filters nodes; empty when it does not.
    pub filter_verb: String,
    /// Verb that scores nodes.
    pub prioritize_verb: String,
    /// Verb that has a say in who is a victim.
    pub preempt_verb: String,
    /// Verb that binds pods.
    pub bind_verb: String,
    /// How much its scores count.
    pub weight: i64,
    /// How long a call may take.
    pub timeout: Duration,
    /// It knows the nodes itself: names are enough.
    pub node_cache_capable: bool,
    /// It is asked only about pods that ask for one of these; about all when empty.
    pub managed_resources: Vec<String>,
    /// When it can't be reached, pods are scheduled without it.
    pub ignorable: bool,
    /// TLS, when its URL says HTTPS.
    pub tls: Tls,
}

/// How an extender is reached over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Any certificate will do.
    pub insecure: bool,
    /// Name expected in its certificate, when it is not the URL's.
    pub server_name: String,
    /// Certificates that it may be signed with, in PEM.
    pub ca: Vec<u8>,
    /// Client certificate, in PEM.
    pub cert: Vec<u8>,
    /// Its key, in PEM.
    pub key: Vec<u8>,
}

impl Default for Extender {
    fn default() -> Self {
        Self {
            url_prefix: String::new(),
            filter_verb: String::new(),
            prioritize_verb: String::new(),
            preempt_verb: String::new(),
            bind_verb: String::new(),
            weight: 1,
            timeout: Duration::from_secs(5),
            node_cache_capable: false,
            managed_resources: Vec::new(),
            ignorable: false,
            tls: Tls::default(),
        }
    }
}

/// A call to an extender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Names the call; its answer comes back under it.
    pub id: u64,
    /// Which extender, by its place in the configuration.
    pub extender: usize,
    /// Which verb.
    pub verb: String,
    /// JSON.
    pub body: Bytes,
}

/// An answer of an extender, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which call.
    pub id: u64,
    /// The body of a reply with status 200.
    pub result: Result<Bytes, String>,
}

impl Extender {
    /// Whether it has a say in where pods go, and not only binds them.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        [&self.filter_verb, &self.prioritize_verb, &self.preempt_verb].iter().any(|verb| !verb.is_empty())
    }
    /// Whether it wants to be asked about a pod.
    #[must_use]
    pub fn is_interested(&self, pod: &Pod) -> bool {
        let spec = &pod.spec.pod;
        let containers: Vec<&Container> = spec.containers.iter().chain(spec.init_containers.iter().flatten()).collect();
        self.managed_resources.is_empty()
            || containers.iter().filter_map(|c| c.resources.as_ref()).any(|r| {
                let names = r.requests.iter().chain(&r.limits).flat_map(BTreeMap::keys);
                names.into_iter().any(|name| self.managed_resources.contains(name))
            })
    }
    /// What to send about nodes.
    pub fn filter_args<'a>(&self, pod: &Pod, nodes: impl Iterator<Item = (&'a str, &'a Node)>) -> Bytes {
        let pod = typed(pod, "Pod");
        if self.node_cache_capable {
            let names: Vec<&str> = nodes.map(|(name, _)| name).collect();
            return encode(&json!({"Pod": pod, "Nodes": null, "NodeNames": names}));
        }
        // One node after the other: as trees all together would take many times the room of what is sent.
        let mut text = br#"{"NodeNames":null,"Pod":"#.to_vec();
        text.extend_from_slice(&encode(&pod));
        text.extend_from_slice(br#","Nodes":{"apiVersion":"v1","kind":"NodeList","metadata":{},"items":["#);
        for (at, (_, node)) in nodes.enumerate() {
            if at > 0 {
                text.push(b',');
            }
            text.extend_from_slice(&encode(&typed(node, "Node")));
        }
        text.extend_from_slice(b"]}}");
        text.into()
    }
    /// What to send about victims, by node.
    pub fn preempt_args(&self, pod: &Pod, victims: &BTreeMap<String, (Vec<&PodInfo>, usize)>) -> Bytes {
        let pod = typed(pod, "Pod");
        let nodes: serde_json::Map<String, Value> = victims
            .iter()
            .map(|(node, (pods, violations))| {
                let pods: Vec<Value> = pods
                    .iter()
                    .map(|p| if self.node_cache_capable { json!({"UID": &*p.uid}) } else { typed(&*p.pod, "Pod") })
                    .collect();
                (node.clone(), json!({"Pods": pods, "NumPDBViolations": violations}))
            })
            .collect();
        encode(&if self.node_cache_capable {
            json!({"Pod": pod, "NodeNameToVictims": null, "NodeNameToMetaVictims": nodes})
        } else {
            json!({"Pod": pod, "NodeNameToVictims": nodes, "NodeNameToMetaVictims": null})
        })
    }
    /// What to send about a binding.
    #[must_use]
    pub fn bind_args(pod: &PodInfo, node: &str) -> Bytes {
        encode(&json!({"PodName": pod.name(), "PodNamespace": pod.namespace(), "PodUID": &*pod.uid, "Node": node}))
    }
}

fn encode(value: &Value) -> Bytes {
    // A value has string keys and nothing that could fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}

fn typed(object: &impl k8s_openapi::serde::Serialize, kind: &str) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        map.insert("kind".into(), kind.into());
        map.insert("apiVersion".into(), "v1".into());
    }
    value
}

/// A field by its name in any case, as Go reads it; null counts as absent.
fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let map = value.as_object()?;
    let found = map.get(name).or_else(|| map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v));
    found.filter(|v| !v.is_null())
}

fn parse(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|e| format!("its answer is no JSON: {e}"))
}

fn error_in(value: &Value) -> Result<(), String> {
    match field(value, "Error").and_then(Value::as_str) {
        None | Some("") => Ok(()),
        Some(error) => Err(error.chars().take(1024).collect()),
    }
}

/// What a filter said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    /// Names of the nodes that it accepts. Neither list given: none.
    pub accepted: Vec<String>,
    /// Nodes that it refuses, with its reasons.
    pub failed: BTreeMap<String, String>,
    /// Nodes that it refuses whoever leaves them.
    pub hopeless: BTreeMap<String, String>,
}

/// Reads a filter's answer. One that knows nodes by name answers with names, another with nodes: what else is there counts only where
/// that list is missing.
///
/// # Errors
/// It says that it failed, or says nothing that can be read.
pub fn read_filter(body: &[u8], node_cache_capable: bool) -> Result<Filtered, String> {
    let value = parse(body)?;
    error_in(&value)?;
    let reasons = |name: &str| -> BTreeMap<String, String> {
        let map = field(&value, name).and_then(Value::as_object);
        map.into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().chars().take(256).collect()))
            .collect()
    };
    let strings = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    let accepted = match (field(&value, "NodeNames"), field(&value, "Nodes")) {
        (Some(names), list) if node_cache_capable || list.is_none() => strings(names),
        (_, Some(list)) => {
            let items = field(list, "items").and_then(Value::as_array);
            items
                .into_iter()
                .flatten()
                .filter_map(|n| n.pointer("/metadata/name")?.as_str().map(str::to_owned))
                .collect()
        }
        (_, None) => Vec::new(),
    };
    Ok(Filtered { accepted, failed: reasons("FailedNodes"), hopeless: reasons("FailedAndUnresolvableNodes") })
}

/// Reads scores by node, from 0 to 10.
///
/// # Errors
/// It is no list of scores.
pub fn read_scores(body: &[u8]) -> Result<BTreeMap<String, i64>, String> {
    let value = parse(body)?;
    let list = value.as_array().ok_or("its answer is no list of scores")?;
    let score = |v: &Value| {
        let host = field(v, "Host")?.as_str()?.to_owned();
        Some((host, field(v, "Score")?.as_i64()?.clamp(0, 10)))
    };
    Ok(list.iter().filter_map(score).collect())
}

/// Reads victims: UIDs by node.
///
/// # Errors
/// It is no map of victims.
pub fn read_victims(body: &[u8]) -> Result<BTreeMap<String, (Vec<String>, usize)>, String> {
    let value = parse(body)?;
    error_in(&value)?;
    let Some(map) = field(&value, "NodeNameToMetaVictims") else { return Ok(BTreeMap::new()) };
    let map = map.as_object().ok_or("its answer is no map of victims")?;
    Ok(map
        .iter()
        .map(|(node, victims)| {
            let pods = field(victims, "Pods").and_then(Value::as_array);
            let uids = pods.into_iter().flatten().filter_map(|p| field(p, "UID")?.as_str().map(str::to_owned));
            let violations = field(victims, "NumPDBViolations").and_then(Value::as_u64).unwrap_or(0);
            (node.clone(), (uids.collect(), usize::try_from(violations).unwrap_or(0)))
        })
        .collect())
}

/// Reads a binder's answer.
///
/// # Errors
/// It says that it failed.
pub fn read_bind(body: &[u8]) -> Result<(), String> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(());
    }
    error_in(&parse(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_sent_whole_or_by_name() {
        let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"name": "p"}})).expect("a pod");
        let nodes: Vec<Node> = ["a", "b \"\\"]
            .map(|name| carrack_types::json::from_value::<Node>(json!({"metadata": {"name": name}})).expect("a node"))
            .into();
        let named = |count: usize| nodes.iter().take(count).map(|n| (n.metadata.name.as_deref().unwrap_or(""), n));
        for (count, names) in [(0, json!([])), (1, json!(["a"])), (2, json!(["a", "b \"\\"]))] {
            for node_cache_capable in [false, true] {
                let extender = Extender { node_cache_capable, ..Extender::default() };
                let sent: Value = serde_json::from_slice(&extender.filter_args(&pod, named(count))).expect("JSON");
                assert_eq!((&sent["Pod"]["kind"], &sent["Pod"]["metadata"]["name"]), (&json!("Pod"), &json!("p")));
                if node_cache_capable {
                    assert_eq!((&sent["Nodes"], &sent["NodeNames"]), (&Value::Null, &names));
                    continue;
                }
                assert_eq!((&sent["Nodes"]["kind"], &sent["NodeNames"]), (&json!("NodeList"), &Value::Null));
                let items = sent["Nodes"]["items"].as_array().expect("a list");
                assert!(items.iter().all(|item| item["kind"] == "Node" && item["apiVersion"] == "v1"), "{items:?}");
                let found: Value = items.iter().map(|item| item["metadata"]["name"].clone()).collect();
                assert_eq!(found, names);
            }
        }
    }

    #[test]
    fn answers_are_read_as_go_would() {
        let check = |body: &str, accepted: &[&str], failed: &[&str]| {
            for node_cache_capable in [false, true] {
                let read = read_filter(body.as_bytes(), node_cache_capable).expect("an answer");
                assert_eq!(read.accepted, accepted, "{body}");
                assert_eq!(read.failed.keys().collect::<Vec<_>>(), failed, "{body}");
            }
        };
        check(r#"{"NodeNames": ["a"], "Nodes": null, "FailedNodes": {"b": "full"}}"#, &["a"], &["b"]);
        check(r#"{"nodenames": ["a"], "failednodes": null}"#, &["a"], &[]);
        check(r#"{"Nodes": {"items": [{"metadata": {"name": "a"}}]}}"#, &["a"], &[]);
        check(r#"{"Nodes": null, "NodeNames": null}"#, &[], &[]);
        check("{}", &[], &[]);
        check(r#"{"NodeNames": 7, "Nodes": "x", "FailedNodes": []}"#, &[], &[]);
        assert_eq!(
            read_filter(br#"{"NodeNames": ["a"], "Error": "no"}"#, true),
            Err("no".to_owned()),
            "an error beats lists"
        );
        assert!(read_filter(b"<html>", true).is_err());
        // Of both lists, the one counts that is in the form in which it was asked.
        for (node_cache_capable, expected) in [(false, "b"), (true, "a")] {
            let both = br#"{"NodeNames": ["a"], "Nodes": {"items": [{"metadata": {"name": "b"}}]}}"#;
            assert_eq!(read_filter(both, node_cache_capable).expect("an answer").accepted, [expected]);
        }
        assert_eq!(
            read_scores(br#"[{"Host": "a", "Score": 99}, {"host": "b", "score": -1}, 3]"#).expect("scores"),
            BTreeMap::from([("a".to_owned(), 10), ("b".to_owned(), 0)])
        );
        assert!(read_scores(b"{}").is_err());
        assert_eq!(read_bind(b""), Ok(()));
        assert_eq!(read_bind(br#"{"error": "taken"}"#), Err("taken".to_owned()));
        let victims = read_victims(br#"{"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}]}}}"#).expect("victims");
        assert_eq!(victims["n"].0, ["u"]);
    }
}
