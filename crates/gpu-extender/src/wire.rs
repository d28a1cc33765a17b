//! The words of the extender protocol (kube-scheduler-extender v1), read as Go reads them: names of fields in any case, null
//! for nothing; and written as Go writes them.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A JSON object whose fields are found in any case.
struct Fields<'a>(BTreeMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    fn read(text: &'a [u8]) -> Result<Self, String> {
        let map: BTreeMap<String, &RawValue> =
            serde_json::from_slice(text).map_err(|e| format!("no JSON object: {e}"))?;
        Ok(Self(map.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value)).collect()))
    }
    fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied().filter(|value| value.get() != "null")
    }
    fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|e| format!("{name}: {e}"))
    }
    fn text(&self, name: &str) -> Result<String, String> {
        Ok(self.get(name)?.unwrap_or_default())
    }
}

/// What a filter or a prioritizer is asked.
#[derive(Clone, Debug)]
pub struct Args {
    /// The pod.
    pub pod: Box<Pod>,
    /// Names of the nodes in question, in the order in which they were given.
    pub names: Vec<String>,
    /// The nodes themselves, where they were sent.
    nodes: Option<BTreeMap<String, Box<RawValue>>>,
}

#[derive(Deserialize)]
struct Named {
    metadata: Name,
}
#[derive(Deserialize)]
struct Name {
    #[serde(default)]
    name: String,
}

/// What a filter says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    /// Nodes that are accepted.
    pub accepted: Vec<String>,
    /// Nodes that are full.
    pub failed: BTreeMap<String, String>,
    /// Nodes that are refused whoever leaves them.
    pub hopeless: BTreeMap<String, String>,
}

impl Args {
    /// Reads them.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let fields = Fields::read(body)?;
        let pod = fields.get("pod")?.ok_or("there is no Pod")?;
        let list = fields.raw("nodes").map(|raw| Fields::read(raw.get().as_bytes())).transpose()?;
        let items: Option<Vec<Box<RawValue>>> =
            list.map(|list| list.get("items")).transpose()?.map(Option::unwrap_or_default);
        let (mut names, mut nodes) = (Vec::new(), None);
        if let Some(items) = items {
            let mut map = BTreeMap::new();
            for item in items {
                let named: Named = serde_json::from_str(item.get()).map_err(|e| format!("nodes: {e}"))?;
                names.push(named.metadata.name.clone());
                map.insert(named.metadata.name, item);
            }
            nodes = Some(map);
        }
        if let Some(given) = fields.get::<Vec<String>>("nodenames")? {
            names = given;
        }
        Ok(Self { pod, names, nodes })
    }

    /// A filter's answer, in the form in which it was asked: with nodes where nodes were sent, with names otherwise.
    #[must_use]
    pub fn answer(&self, filtered: &Filtered) -> Bytes {
        let nodes = self.nodes.as_ref().map(|nodes| {
            let items: Vec<&RawValue> =
                filtered.accepted.iter().filter_map(|name| nodes.get(name)).map(AsRef::as_ref).collect();
            json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": items})
        });
        let names = self.nodes.is_none().then_some(&filtered.accepted);
        bytes(&json!({"Nodes": nodes, "NodeNames": names, "FailedNodes": filtered.failed,
            "FailedAndUnresolvableNodes": filtered.hopeless, "Error": ""}))
    }
}

/// A filter's or binder's failure. (To a preempting scheduler this says nothing of any node.)
#[must_use]
pub fn failure(text: &str) -> Bytes {
    bytes(&json!({"Error": text}))
}

/// Scores of nodes, 0 to 10.
#[must_use]
pub fn scores(scores: &[(String, i64)]) -> Bytes {
    let list: Vec<Value> = scores.iter().map(|(host, score)| json!({"Host": host, "Score": score})).collect();
    bytes(&Value::Array(list))
}

/// What is asked about victims: by node their UIDs, and how many disruption budgets they would break.
#[derive(Clone, Debug)]
pub struct Preemption {
    /// The pod that wants in.
    pub pod: Box<Pod>,
    /// Victims by node.
    pub victims: BTreeMap<String, (Vec<String>, i64)>,
}

impl Preemption {
    /// Reads it: pods as a whole, or UIDs alone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let fields = Fields::read(body)?;
        let pod = fields.get("pod")?.ok_or("there is no Pod")?;
        let mut victims = BTreeMap::new();
        for (name, whole) in [("nodenametovictims", true), ("nodenametometavictims", false)] {
            let map: BTreeMap<String, Box<RawValue>> = fields.get(name)?.unwrap_or_default();
            for (node, raw) in map {
                let of_node = Fields::read(raw.get().as_bytes())?;
                let pods: Vec<Box<RawValue>> = of_node.get("pods")?.unwrap_or_default();
                let uid = |pod: &RawValue| -> Result<String, String> {
                    let fields = Fields::read(pod.get().as_bytes())?;
                    match fields.raw("metadata") {
                        Some(metadata) if whole => Fields::read(metadata.get().as_bytes())?.text("uid"),
                        _ => fields.text("uid"),
                    }
                };
                let uids: Vec<String> = pods.iter().map(|pod| uid(pod)).collect::<Result<_, _>>()?;
                victims.insert(node, (uids, of_node.get("numpdbviolations")?.unwrap_or(0)));
            }
        }
        Ok(Self { pod, victims })
    }

    /// The answer: the nodes that remain.
    #[must_use]
    pub fn answer(victims: &BTreeMap<String, (Vec<String>, i64)>) -> Bytes {
        let nodes: serde_json::Map<String, Value> = victims
            .iter()
            .map(|(node, (uids, violations))| {
                let pods: Vec<Value> = uids.iter().map(|uid| json!({"UID": uid})).collect();
                (node.clone(), json!({"Pods": pods, "NumPDBViolations": violations}))
            })
            .collect();
        bytes(&json!({"NodeNameToMetaVictims": nodes}))
    }
}

/// What a binder is told to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Name of the pod.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// The node.
    pub node: String,
}

impl Bind {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it, or missing.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let fields = Fields::read(body)?;
        let [name, namespace, uid, node] =
            ["podname", "podnamespace", "poduid", "node"].map(|name| match fields.text(name) {
                Ok(text) if text.is_empty() => Err(format!("{name} is missing")),
                other => other,
            });
        Ok(Self { name: name?, namespace: namespace?, uid: uid?, node: node? })
    }
}

fn bytes(value: &Value) -> Bytes {
    // A value has string keys and nothing that could fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_in_any_case() {
        let check = |body: &str, expected: Result<&[&str], &str>| match (Args::read(body.as_bytes()), expected) {
            (Ok(args), Ok(names)) => assert_eq!(args.names, names, "{body}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{body}: {error}"),
            (other, _) => panic!("{body}: {other:?}"),
        };
        check(r#"{"Pod": {}, "Nodes": null, "NodeNames": ["a", "b"]}"#, Ok(&["a", "b"]));
        check(r#"{"pod": {}, "nodenames": ["a"]}"#, Ok(&["a"]));
        check(r#"{"Pod": {}, "Nodes": {"items": [{"metadata": {"name": "a"}}]}}"#, Ok(&["a"]));
        check(r#"{"Pod": {}, "Nodes": {"Items": null}}"#, Ok(&[]));
        check(r#"{"Pod": {}}"#, Ok(&[]));
        check("{}", Err("no Pod"));
        check("[]", Err("no JSON object"));
        check("", Err("no JSON object"));
        check(r#"{"Pod": 7}"#, Err("pod"));
        check(r#"{"Pod": {}, "NodeNames": "a"}"#, Err("nodenames"));
        check(r#"{"Pod": {}, "Nodes": {"items": [7]}}"#, Err("nodes"));
    }

    #[test]
    fn answers_have_the_form_of_the_question() {
        let filtered = Filtered { accepted: vec!["a".into()], ..Filtered::default() };
        let answer = |body: &str| -> Value {
            serde_json::from_slice(&Args::read(body.as_bytes()).expect("args").answer(&filtered)).expect("JSON")
        };
        let named = answer(r#"{"Pod": {}, "NodeNames": ["a", "b"]}"#);
        assert_eq!((&named["NodeNames"], &named["Nodes"]), (&json!(["a"]), &Value::Null));
        let whole = answer(
            r#"{"Pod": {}, "Nodes": {"items": [{"metadata": {"name": "b"}}, {"metadata": {"name": "a"}, "x": 1}]}}"#,
        );
        assert_eq!(whole["Nodes"]["items"], json!([{"metadata": {"name": "a"}, "x": 1}]));
        assert_eq!(whole["NodeNames"], Value::Null);
    }

    #[test]
    fn victims_by_pod_and_by_uid() {
        let check = |body: Value| {
            let read = Preemption::read(body.to_string().as_bytes()).expect("victims");
            assert_eq!(read.victims, BTreeMap::from([("n".to_owned(), (vec!["u".to_owned()], 2))]), "{body}");
        };
        check(
            json!({"Pod": {}, "NodeNameToVictims": {"n": {"Pods": [{"metadata": {"uid": "u"}}], "NumPDBViolations": 2}},
            "NodeNameToMetaVictims": null}),
        );
        check(json!({"Pod": {}, "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}}}));
        assert!(Preemption::read(br#"{"Pod": {}, "NodeNameToMetaVictims": {"n": {"Pods": 7}}}"#).is_err());
    }

    #[test]
    fn binds_name_everything() {
        let whole = json!({"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n"});
        assert_eq!(Bind::read(whole.to_string().as_bytes()).expect("a bind").uid, "u");
        assert!(Bind::read(br#"{"PodName": "p", "PodNamespace": "d", "PodUID": "", "Node": "n"}"#).is_err());
        assert!(Bind::read(b"7").is_err());
    }
}
