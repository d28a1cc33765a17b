//! The networks that a pod asks for, as its annotation has them: a list of names, or JSON.
//!
//! Upstream: the Network Custom Resource Definition De-facto Standard, 4.1, and Multus' reading of it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One network that a pod is to be attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Namespace of the NetworkAttachmentDefinition.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Name of the interface in the pod.
    pub interface: String,
    /// The hardware address that the interface is to have.
    #[serde(default)]
    pub mac: Option<String>,
    /// Addresses that it is to have, with or without the length of their network's prefix.
    #[serde(default)]
    pub ips: Vec<String>,
    /// Further arguments for the plugins.
    #[serde(default)]
    pub cni_args: Map<String, Value>,
    /// The gateway by which the pod's way out is to go, over this interface instead of the pod network.
    #[serde(default)]
    pub default_route: Option<Ipv4Addr>,
    /// What plugins are told besides that declare the capability; without one that does, the pod does not get it.
    #[serde(default)]
    pub capabilities: Map<String, Value>,
}

/// Why an annotation cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// It is neither JSON nor a list of names.
    #[error("the networks of the pod are no list: {0}")]
    Json(String),
    /// A field is missing or wrong.
    #[error("network {index} of the pod: {why}")]
    Field {
        /// Which of the list, from 1.
        index: usize,
        /// What is wrong.
        why: String,
    },
}

/// What an element of the JSON form may say. What no plugin of the network can do is refused, not passed over.
#[derive(Deserialize)]
struct Element {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    interface: String,
    #[serde(default)]
    mac: String,
    #[serde(default)]
    ips: Vec<String>,
    #[serde(default, rename = "cni-args")]
    cni_args: Option<Map<String, Value>>,
    #[serde(default, rename = "default-route")]
    default_route: Vec<String>,
    #[serde(default, rename = "portMappings")]
    port_mappings: Vec<Value>,
    #[serde(default)]
    bandwidth: Option<Value>,
    #[serde(default, rename = "infiniband-guid")]
    infiniband_guid: String,
}

/// Reads an annotation of a pod in `pod_namespace`. Nothing is wanted where it is empty.
///
/// # Errors
/// See [`SelectionError`].
pub fn parse(annotation: &str, pod_namespace: &str) -> Result<Vec<Selection>, SelectionError> {
    let text = annotation.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    // Multus' own way to tell the forms apart.
    let elements = if text.contains(['[', '{', '"']) {
        let read: Vec<Element> = serde_json::from_str(text).map_err(|error| SelectionError::Json(error.to_string()))?;
        read.into_iter().enumerate().map(|(at, element)| from_json(at + 1, element)).collect::<Result<Vec<_>, _>>()?
    } else {
        text.split(',').enumerate().map(|(at, word)| from_word(at + 1, word.trim())).collect::<Result<Vec<_>, _>>()?
    };
    finish(elements, pod_namespace)
}

/// How many networks a pod may ask for: each costs a request, a plugin's run and a record.
const MOST: usize = 32;

fn wrong(index: usize, why: impl Into<String>) -> SelectionError {
    SelectionError::Field { index, why: why.into() }
}

/// `[namespace/]name[@interface]`
fn from_word(index: usize, word: &str) -> Result<Selection, SelectionError> {
    let (path, interface) = word.split_once('@').unwrap_or((word, ""));
    let (namespace, name) = path.split_once('/').unwrap_or(("", path));
    if word.ends_with('@') || path.starts_with('/') {
        return Err(wrong(index, format!("{word:?} is not [NAMESPACE/]NAME[@INTERFACE]")));
    }
    let [namespace, name, interface] = [namespace, name, interface].map(str::to_owned);
    Ok(Selection { namespace, name, interface, ..Selection::default() })
}

fn from_json(index: usize, element: Element) -> Result<Selection, SelectionError> {
    let mut capabilities = Map::new();
    if !element.port_mappings.is_empty() {
        capabilities.insert("portMappings".to_owned(), Value::Array(element.port_mappings));
    }
    if let Some(bandwidth) = element.bandwidth.filter(|bandwidth| !bandwidth.is_null()) {
        capabilities.insert("bandwidth".to_owned(), bandwidth);
    }
    if !element.infiniband_guid.is_empty() {
        capabilities.insert("infinibandGUID".to_owned(), Value::String(element.infiniband_guid));
    }
    let default_route: Option<Ipv4Addr> = match element.default_route.as_slice() {
        [] => None,
        [one] => Some(one.parse().map_err(|_| wrong(index, format!("default-route {one:?} is no IPv4 address")))?),
        _ => return Err(wrong(index, "default-route has more than one gateway")),
    };
    Ok(Selection {
        default_route,
        capabilities,
        namespace: element.namespace,
        name: element.name,
        interface: element.interface,
        mac: Some(element.mac).filter(|mac| !mac.is_empty()),
        ips: element.ips,
        cni_args: element.cni_args.unwrap_or_default(),
    })
}

/// Fills in what was left out, and looks whether all of it can be.
fn finish(mut selections: Vec<Selection>, pod_namespace: &str) -> Result<Vec<Selection>, SelectionError> {
    if selections.len() > MOST {
        return Err(wrong(MOST + 1, format!("a pod can have {MOST} further networks")));
    }
    if let Some(second) = selections.iter().enumerate().filter(|(_, s)| s.default_route.is_some()).nth(1) {
        return Err(wrong(second.0 + 1, "default-route: the pod has one by another network already"));
    }
    let mut taken = BTreeSet::from(["eth0".to_owned(), "lo".to_owned()]);
    for (at, selection) in selections.iter_mut().enumerate() {
        let index = at + 1;
        if selection.namespace.is_empty() {
            selection.namespace = pod_namespace.to_owned();
        }
        if selection.interface.is_empty() {
            selection.interface = format!("net{index}");
        }
        for (what, text) in [("namespace", &selection.namespace), ("name", &selection.name)] {
            if !is_subdomain(text) {
                return Err(wrong(index, format!("{text:?} is no {what}")));
            }
        }
        let interface = &selection.interface;
        if !is_interface(interface) {
            return Err(wrong(index, format!("{interface:?} cannot name an interface")));
        }
        if !taken.insert(interface.clone()) {
            return Err(wrong(index, format!("there is an interface {interface} already")));
        }
        if let Some(mac) = selection.mac.as_ref().filter(|mac| !is_unicast_mac(mac)) {
            return Err(wrong(index, format!("{mac:?} is no hardware address")));
        }
        if let Some(ip) = selection.ips.iter().find(|ip| !is_address(ip)) {
            return Err(wrong(index, format!("{ip:?} is no address")));
        }
    }
    Ok(selections)
}

fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(known) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// What the kernel takes for a link's name, less what makes trouble in scripts.
fn is_interface(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=15).contains(&text.len()) && text.bytes().all(known) && !matches!(text, "." | "..") && !text.starts_with('-')
}

fn is_unicast_mac(text: &str) -> bool {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|part| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok())?).collect();
    bytes.is_some_and(|bytes| bytes.len() == 6 && bytes[0] & 1 == 0 && bytes.iter().any(|byte| *byte != 0))
}

fn is_address(text: &str) -> bool {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(annotation: &str, expected: &[(&str, &str, &str)]) {
        let read = parse(annotation, "own").unwrap_or_else(|error| panic!("{annotation}: {error}"));
        let read: Vec<_> = read.iter().map(|s| (s.namespace.as_str(), s.name.as_str(), s.interface.as_str())).collect();
        assert_eq!(read, expected, "{annotation}");
    }

    #[test]
    fn both_forms_are_read() {
        check("", &[]);
        check("  ", &[]);
        check("a", &[("own", "a", "net1")]);
        check("other/a@blue, b", &[("other", "a", "blue"), ("own", "b", "net2")]);
        check("a,a", &[("own", "a", "net1"), ("own", "a", "net2")]);
        check(r#"[{"name": "a"}]"#, &[("own", "a", "net1")]);
        check(
            r#"[{"name": "a", "namespace": "n", "interface": "x"}, {"name": "b"}]"#,
            &[("n", "a", "x"), ("own", "b", "net2")],
        );
        check("[]", &[]);
    }

    #[test]
    fn addresses_and_arguments_are_kept() {
        let text =
            r#"[{"name": "a", "mac": "02:00:00:00:00:01", "ips": ["10.0.0.5/24", "fd00::1"], "cni-args": {"k": 1}}]"#;
        let read = parse(text, "own").expect("read").remove(0);
        assert_eq!(read.mac.as_deref(), Some("02:00:00:00:00:01"));
        assert_eq!(read.ips, ["10.0.0.5/24", "fd00::1"]);
        assert_eq!(read.cni_args["k"], 1);
        assert_eq!((read.default_route, read.capabilities.len()), (None, 0));
        let text = r#"[{"name": "a", "bandwidth": {"ingressRate": 1}, "infiniband-guid": "c2", "portMappings": [{}]}]"#;
        let told = Value::Object(parse(text, "own").expect("read").remove(0).capabilities);
        let expected = r#"{"bandwidth": {"ingressRate": 1}, "infinibandGUID": "c2", "portMappings": [{}]}"#;
        assert_eq!(serde_json::from_str::<Value>(expected).ok(), Some(told));
        let text = r#"[{"name": "b"}, {"name": "a", "ips": ["10.1.1.21/24"], "default-route": ["10.1.1.254"]}]"#;
        let read = parse(text, "own").expect("read").remove(1);
        assert_eq!(read.default_route, Some(Ipv4Addr::new(10, 1, 1, 254)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        let refused = |annotation: &str, expected: &str| {
            let error = parse(annotation, "own").expect_err(annotation).to_string();
            assert!(error.contains(expected), "{annotation}: {error}");
        };
        refused("[{", "no list");
        refused(r#"{"name": "a"}"#, "no list");
        refused(r#"[{"namespace": "a"}]"#, "missing field `name`");
        refused("a,,b", "network 2");
        refused("a@", "is not [NAMESPACE/]NAME[@INTERFACE]");
        refused("/a", "is not [NAMESPACE/]NAME[@INTERFACE]");
        refused("A", "is no name");
        refused("a_b/c", "is no namespace");
        refused("a/b/c", "is no name");
        refused("a@eth0", "there is an interface eth0 already");
        refused("a@x,b@x", "network 2 of the pod: there is an interface x already");
        assert_eq!(parse(&["a"; MOST].join(","), "own").expect("read").len(), MOST);
        refused(&["a"; MOST + 1].join(","), "a pod can have 32 further networks");
        refused("a@net2,b", "there is an interface net2 already");
        refused("a@sixteen-letters-", "cannot name an interface");
        refused(r#"[{"name": "a", "interface": "a b"}]"#, "cannot name an interface");
        refused(r#"[{"name": "a", "mac": "01:00:00:00:00:01"}]"#, "no hardware address");
        refused(r#"[{"name": "a", "mac": "02:00"}]"#, "no hardware address");
        refused(r#"[{"name": "a", "ips": ["10.0.0"]}]"#, "no address");
        refused(r#"[{"name": "a", "ips": ["10.0.0.1/33"]}]"#, "no address");
        refused(r#"[{"name": "a", "default-route": ["fd00::1"]}]"#, "default-route \"fd00::1\" is no IPv4 address");
        refused(r#"[{"name": "a", "default-route": ["10.0.0.1", "10.0.0.2"]}]"#, "more than one gateway");
        refused(
            r#"[{"name": "a", "default-route": ["10.0.0.1"]}, {"name": "b", "default-route": ["10.1.0.1"]}]"#,
            "network 2 of the pod: default-route",
        );
    }
}
