//! A container's environment, and the expansion of `$(NAME)` in it, in commands and in arguments.
//!
//! What is expanded is expanded again in what comes after it, and may name the same thing many times: a few short lines would fill
//! any memory. So texts are bounded by what a kernel could give to a program.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_types::qos;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service};

use super::env_file::{EnvFiles, Variables};
use super::pod::spec;
use crate::amount::{self, Amounts};

/// Longest text that comes of an expansion, in bytes: no kernel takes a longer one (`MAX_ARG_STRLEN`, 32 pages of up to 64 KiB).
const MAX_TEXT: usize = 2 << 20;
/// Most bytes of all variables, or of all arguments: no kernel takes more than 6 MiB of both together (`execve(2)`).
const MAX_ALL: usize = 8 << 20;
/// Bytes that a variable takes besides its name and its value.
const OF_A_VARIABLE: usize = 24;

/// Where environment values come from besides the spec.
pub trait Sources {
    /// A config map. Unknown is an error; surely absent is `Ok(None)`.
    ///
    /// # Errors
    /// Why it is not known.
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, String>;
    /// A secret.
    ///
    /// # Errors
    /// Why it is not known.
    fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, String>;
}

/// Facts of the pod's place that fields refer to.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Node name.
    pub node_name: String,
    /// Node addresses.
    pub host_ips: Vec<String>,
    /// Pod addresses.
    pub pod_ips: Vec<String>,
    /// What the node can give to pods, in thousandths.
    pub allocatable: Amounts,
}

/// A field of the pod by its path, as fieldRef allows
/// (<https://kubernetes.io/docs/concepts/workloads/pods/downward-api/>).
///
/// # Errors
/// For a path that is not one of them.
pub fn field(pod: &Pod, place: &Place, path: &str) -> Result<String, String> {
    let m = &pod.metadata;
    let map_text = |map: Option<&BTreeMap<String, String>>| {
        let mut text = String::new();
        for (k, v) in map.into_iter().flatten() {
            text.push_str(&format!("{k}={}\n", quoted(v)));
        }
        text.pop();
        text
    };
    let subscript =
        |prefix: &str| path.strip_prefix(prefix).and_then(|r| r.strip_prefix("['")).and_then(|r| r.strip_suffix("']"));
    Ok(match path {
        "metadata.name" => m.name.clone().unwrap_or_default(),
        "metadata.namespace" => m.namespace.clone().unwrap_or_default(),
        "metadata.uid" => m.uid.clone().unwrap_or_default(),
        "metadata.labels" => map_text(m.labels.as_ref()),
        "metadata.annotations" => map_text(m.annotations.as_ref()),
        "spec.nodeName" => place.node_name.clone(),
        "spec.serviceAccountName" => spec(pod).service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => place.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => place.host_ips.join(","),
        "status.podIP" => place.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => place.pod_ips.join(","),
        _ => {
            if let Some(key) = subscript("metadata.labels") {
                m.labels.as_ref().and_then(|l| l.get(key)).cloned().unwrap_or_default()
            } else if let Some(key) = subscript("metadata.annotations") {
                m.annotations.as_ref().and_then(|l| l.get(key)).cloned().unwrap_or_default()
            } else {
                return Err(format!("unsupported fieldPath: {path}"));
            }
        }
    })
}

/// A text as Go quotes it (`%q`): who reads it back knows Go's escapes alone. Marks that belong to the character before them, as
/// many scripts have them, are printed.
fn quoted(text: &str) -> String {
    // Not at the start of a text, such a mark is printed here, too.
    let is_printed = |c: char| ['x', c].iter().collect::<String>().escape_debug().count() == 2;
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\'' | ' ' => out.push(c),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_printed(c) => out.push(c),
            c if u32::from(c) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Resources whose limit is the pod's or the node's where a container has none.
const LIMITED_BY_NODE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// A container's resource by its name (`limits.cpu`), divided and rounded up.
///
/// # Errors
/// For a container or resource that is not there.
pub fn resource_field(
    pod: &Pod,
    own: &Container,
    place: &Place,
    reference: &k8s_openapi::api::core::v1::ResourceFieldSelector,
) -> Result<String, String> {
    let container = match reference.container_name.as_deref().filter(|n| !n.is_empty()) {
        Some(name) => super::pod::container(pod, name)
            .map(|(_, c)| c.into_owned())
            .ok_or_else(|| format!("container {name} not found"))?,
        None => own.clone(),
    };
    let r = container.resources.unwrap_or_default();
    let (list, name) = match reference.resource.split_once('.') {
        Some(("limits", name)) => (r.limits.as_ref(), name),
        Some(("requests", name)) => (r.requests.as_ref(), name),
        _ => return Err(format!("unsupported resource: {}", reference.resource)),
    };
    let is_limit = reference.resource.starts_with("limits.");
    let milli = match list.and_then(|l| l.get(name)).and_then(amount::milli).filter(|milli| *milli != 0) {
        Some(milli) => milli,
        // A limit that is not set, or is none, is that of the pod as a whole, and without one the node's allocatable (upstream's
        // `defaultPodLimitsForDownwardAPI`): who sizes itself by it would else die at its pod's limit.
        None if is_limit && LIMITED_BY_NODE.contains(&name) => {
            let whole = spec(pod).resources.as_ref().and_then(|r| r.limits.as_ref()?.get(name));
            let of_pod = whole.and_then(amount::milli).filter(|milli| *milli != 0 && qos::may_be_of_pod(name));
            of_pod.or_else(|| place.allocatable.get(name).copied()).unwrap_or(0)
        }
        None => 0,
    };
    let divisor = reference.divisor.as_ref().and_then(amount::milli).filter(|d| *d > 0).unwrap_or(1000);
    Ok(((milli + divisor - 1) / divisor).to_string())
}

/// Expands `$(NAME)` to its value; `$$` is a dollar sign; what is not known stays as it stands
/// (kubernetes third_party/forked/golang/expansion).
///
/// # Errors
/// What comes of it is longer than any program could be given.
pub fn expand<'v>(text: &str, value: impl Fn(&str) -> Option<&'v str>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        if out.len() > MAX_TEXT {
            return Err(format!("it expands to more than {MAX_TEXT} bytes"));
        }
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(r) = rest.strip_prefix('$') {
            out.push('$');
            rest = r;
        } else if let Some((name, r)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match value(name) {
                Some(v) => out.push_str(v),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = r;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    if out.len() > MAX_TEXT { Err(format!("it expands to more than {MAX_TEXT} bytes")) } else { Ok(out) }
}

/// Expands a command or its arguments.
///
/// # Errors
/// They are more than any program could be given.
pub fn expand_all(list: &[String], vars: &BTreeMap<String, String>) -> Result<Vec<String>, String> {
    let (mut out, mut bytes) = (Vec::with_capacity(list.len()), 0);
    for text in list {
        let text = expand(text, |name| vars.get(name).map(String::as_str))?;
        bytes += text.len();
        if bytes > MAX_ALL {
            return Err(format!("the arguments are more than {MAX_ALL} bytes"));
        }
        out.push(text);
    }
    Ok(out)
}

/// Variables in the order in which they came.
#[derive(Default)]
struct Collected {
    vars: BTreeMap<String, String>,
    order: Vec<String>,
    /// Of all that came, those included whose place others took: to put them there takes time, too.
    bytes: usize,
}

impl Collected {
    /// A later value takes the place of an earlier one.
    fn put(&mut self, name: String, value: String) -> Result<(), String> {
        self.bytes += name.len() + value.len() + OF_A_VARIABLE;
        if self.vars.insert(name.clone(), value).is_none() {
            self.order.push(name);
        }
        if self.bytes > MAX_ALL { Err(format!("the variables are more than {MAX_ALL} bytes")) } else { Ok(()) }
    }
}

/// Variables that name the services a pod can see, in the manner of Docker links
/// (<https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>).
#[must_use]
pub fn service_env(services: &[Arc<Service>]) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for s in services {
        let Some(spec) = &s.spec else { continue };
        let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { continue };
        let name = s.metadata.name.as_deref().unwrap_or_default().to_ascii_uppercase().replace('-', "_");
        let Some(ports) = spec.ports.as_ref().filter(|p| !p.is_empty()) else { continue };
        out.push((format!("{name}_SERVICE_HOST"), ip.to_owned()));
        out.push((format!("{name}_SERVICE_PORT"), ports[0].port.to_string()));
        for p in ports {
            if let Some(port_name) = p.name.as_deref().filter(|n| !n.is_empty()) {
                out.push((
                    format!("{name}_SERVICE_PORT_{}", port_name.to_ascii_uppercase().replace('-', "_")),
                    p.port.to_string(),
                ));
            }
        }
        let protocol =
            |p: &k8s_openapi::api::core::v1::ServicePort| p.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase();
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        out.push((format!("{name}_PORT"), format!("{}://{host}:{}", protocol(&ports[0]), ports[0].port)));
        for p in ports {
            let prefix = format!("{name}_PORT_{}_{}", p.port, protocol(p).to_ascii_uppercase());
            out.push((prefix.clone(), format!("{}://{host}:{}", protocol(p), p.port)));
            out.push((format!("{prefix}_PROTO"), protocol(p)));
            out.push((format!("{prefix}_PORT"), p.port.to_string()));
            out.push((format!("{prefix}_ADDR"), ip.to_owned()));
        }
    }
    out
}

/// The whole environment of a container, in order, later ones winning. Without `files`, what comes of them lacks.
///
/// # Errors
/// What lacks, for the container's waiting message (`CreateContainerConfigError`).
pub fn environment(
    pod: &Pod,
    c: &Container,
    place: &Place,
    services: &[(String, String)],
    sources: &dyn Sources,
    files: Option<&EnvFiles>,
) -> Result<Vec<(String, String)>, String> {
    let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut all = Collected::default();
    let files = files.map(Variables::of);
    for from in c.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(r) = &from.config_map_ref {
            match sources.config_map(ns, &r.name)? {
                Some(cm) => {
                    for (k, v) in cm.data.iter().flatten() {
                        all.put(format!("{prefix}{k}"), v.clone())?;
                    }
                }
                None if r.optional == Some(true) => {}
                None => return Err(format!("configmap \"{}\" not found", r.name)),
            }
        }
        if let Some(r) = &from.secret_ref {
            match sources.secret(ns, &r.name)? {
                Some(s) => {
                    for (k, v) in s.data.iter().flatten() {
                        all.put(format!("{prefix}{k}"), String::from_utf8_lossy(&v.0).into_owned())?;
                    }
                }
                None if r.optional == Some(true) => {}
                None => return Err(format!("secret \"{}\" not found", r.name)),
            }
        }
    }
    let known_services: BTreeMap<&str, &str> = services.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    for e in c.env.iter().flatten() {
        let value = match (&e.value, &e.value_from) {
            (Some(v), _) if !v.is_empty() => {
                let known = |name: &str| all.vars.get(name).map(String::as_str);
                let expanded = expand(v, |name| known(name).or_else(|| known_services.get(name).copied()));
                Some(expanded.map_err(|why| format!("environment variable {}: {why}", e.name))?)
            }
            (_, None) => Some(String::new()),
            (_, Some(from)) => {
                if let Some(f) = &from.field_ref {
                    Some(field(pod, place, &f.field_path)?)
                } else if let Some(r) = &from.resource_field_ref {
                    Some(resource_field(pod, c, place, r)?)
                } else if let Some(r) = &from.config_map_key_ref {
                    let found = sources.config_map(ns, &r.name)?;
                    match found.as_ref().and_then(|m| m.data.as_ref()?.get(&r.key)) {
                        Some(v) => Some(v.clone()),
                        None if r.optional == Some(true) => None,
                        None if found.is_none() => return Err(format!("configmap \"{}\" not found", r.name)),
                        None => return Err(format!("couldn't find key {} in ConfigMap {ns}/{}", r.key, r.name)),
                    }
                } else if let Some(r) = &from.secret_key_ref {
                    let found = sources.secret(ns, &r.name)?;
                    match found.as_ref().and_then(|m| m.data.as_ref()?.get(&r.key)) {
                        Some(v) => Some(String::from_utf8_lossy(&v.0).into_owned()),
                        None if r.optional == Some(true) => None,
                        None if found.is_none() => return Err(format!("secret \"{}\" not found", r.name)),
                        None => return Err(format!("couldn't find key {} in Secret {ns}/{}", r.key, r.name)),
                    }
                } else if let Some(r) = &from.file_key_ref {
                    match &files {
                        Some(files) => files.value(r)?,
                        None => None,
                    }
                } else {
                    return Err(format!("environment variable {} has an unsupported source", e.name));
                }
            }
        };
        if let Some(value) = value {
            all.put(e.name.clone(), value)?;
        }
    }
    for (k, v) in services {
        if !all.vars.contains_key(k) {
            all.put(k.clone(), v.clone())?;
        }
    }
    let Collected { mut vars, order, .. } = all;
    Ok(order.into_iter().map(|k| (k.clone(), vars.remove(&k).unwrap_or_default())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ResourceFieldSelector;
    use serde_json::{Value, json};

    struct Fixed;
    impl Sources for Fixed {
        fn config_map(&self, _: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, String> {
            match name {
                "cm" => Ok(Some(Arc::new(ConfigMap {
                    data: Some(BTreeMap::from([("k".into(), "v".into())])),
                    ..ConfigMap::default()
                }))),
                "unknown" => Err("timed out".into()),
                _ => Ok(None),
            }
        }
        fn secret(&self, _: &str, _: &str) -> Result<Option<Arc<Secret>>, String> {
            Ok(None)
        }
    }

    fn check(container: serde_json::Value, expected: Result<&[(&str, &str)], &str>) {
        let pod: Pod = carrack_types::json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}},
            "spec": {"serviceAccountName": "sa", "containers": [container]}
        }))
        .unwrap();
        let place =
            Place { node_name: "node".into(), allocatable: Amounts::from([("cpu".into(), 2000)]), ..Place::default() };
        let text = crate::spec::env_file::EnvText("F='file'\n".into());
        let files = EnvFiles::from([(("e".into(), "f".into()), Some(text))]);
        let services = [("S".into(), "svc".into())];
        let got = environment(&pod, &spec(&pod).containers[0], &place, &services, &Fixed, Some(&files));
        let got = got.as_ref().map(|v| v.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>());
        match (got, expected) {
            (Ok(got), Ok(expected)) => {
                assert_eq!(got.split_last(), Some((&("S", "svc"), expected)), "{container}");
            }
            (Err(e), Err(expected)) => assert!(e.contains(expected), "{e}"),
            other => panic!("{container}: {other:?}"),
        }
    }

    #[test]
    fn environments() {
        check(json!({"name": "c"}), Ok(&[]));
        check(
            json!({"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(S)-$(X)-$$(A)"}]}),
            Ok(&[("A", "1"), ("B", "1-svc-$(X)-$(A)")]),
        );
        check(
            json!({"name": "c", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                                        {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                                        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}),
            Ok(&[("A", "b"), ("N", "node"), ("C", "2")]),
        );
        for (limit, of_node) in [("0", "2"), ("1500m", "2"), ("3", "3")] {
            let env = json!([{"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]);
            check(json!({"name": "c", "resources": {"limits": {"cpu": limit}}, "env": env}), Ok(&[("C", of_node)]));
        }
        check(
            json!({"name": "c", "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}],
                   "env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}]}),
            Ok(&[("P_k", "v"), ("K", "v")]),
        );
        check(
            json!({"name": "c", "envFrom": [{"configMapRef": {"name": "none"}}]}),
            Err("configmap \"none\" not found"),
        );
        check(json!({"name": "c", "envFrom": [{"configMapRef": {"name": "none", "optional": true}}]}), Ok(&[]));
        check(
            json!({"name": "c", "envFrom": [{"configMapRef": {"name": "unknown", "optional": true}}]}),
            Err("timed out"),
        );
        check(
            json!({"name": "c", "env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "zz"}}}]}),
            Err("couldn't find key zz in ConfigMap n/cm"),
        );
        let of_file = |key: &str| json!({"fileKeyRef": {"volumeName": "e", "path": "f", "key": key}});
        check(
            json!({"name": "c", "env": [{"name": "K", "valueFrom": of_file("F")}, {"name": "L", "value": "a $(K)"}]}),
            Ok(&[("K", "file"), ("L", "a file")]),
        );
        check(json!({"name": "c", "env": [{"name": "K", "valueFrom": of_file("G")}]}), Err("key \"G\" not found"));
    }

    #[test]
    fn who_has_no_limit_has_that_of_the_pod_or_else_of_the_node() {
        let allocatable = [("cpu", 8_i128), ("memory", 64), ("ephemeral-storage", 32)];
        let allocatable = allocatable.map(|(name, units)| (name.to_owned(), units * 1000)).into();
        let place = Place { allocatable, ..Place::default() };
        for (of_pod, own, resource, expected) in [
            (json!({}), json!({}), "limits.cpu", "8"),
            (json!({"cpu": "2"}), json!({}), "limits.cpu", "2"),
            (json!({"cpu": "0"}), json!({}), "limits.cpu", "8"),
            (json!({"cpu": "2"}), json!({"cpu": "1"}), "limits.cpu", "1"),
            (json!({"cpu": "2"}), json!({}), "limits.memory", "64"),
            (json!({"memory": "48"}), json!({}), "limits.memory", "48"),
            (json!({"memory": "48"}), json!({}), "requests.memory", "0"),
            // Of that a pod has none as a whole.
            (json!({"ephemeral-storage": "1"}), json!({}), "limits.ephemeral-storage", "32"),
        ] {
            let what = format!("{of_pod} {own} {resource}");
            let container = json!({"name": "c", "resources": {"limits": own}});
            let spec = json!({"resources": {"limits": of_pod}, "containers": [container]});
            let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
            let reference = ResourceFieldSelector { resource: resource.into(), ..ResourceFieldSelector::default() };
            let told = resource_field(&pod, &pod.spec.as_ref().unwrap().containers[0], &place, &reference);
            assert_eq!(told.as_deref(), Ok(expected), "{what}");
        }
    }

    /// What Go's `strconv.Quote` makes of them.
    #[test]
    fn texts_are_quoted_as_go_does() {
        for (text, expected) in [
            ("", r#""""#),
            ("it's \"so\" \\", r#""it's \"so\" \\""#),
            ("a\tb\nc\r\u{7}\u{8}\u{b}\u{c}", r#""a\tb\nc\r\a\b\v\f""#),
            ("\0\u{1b}[0m\u{7f}", r#""\x00\x1b[0m\x7f""#),
            ("\u{a0}\u{200b}\u{85}", r#""\u00a0\u200b\u0085""#),
            ("\u{e0001}", r#""\U000e0001""#),
        ] {
            assert_eq!(quoted(text), expected, "{text:?}");
        }
        // The last ones have marks of the characters before them: a sign that is to be in colours, and Hindi.
        for text in ["äöü", "\u{65e5}\u{672c}", "\u{301}", "\u{26a0}\u{fe0f}", "\u{938}\u{94d}\u{924}\u{947}"] {
            assert_eq!(quoted(text), format!("\"{text}\""), "{text:?}");
        }
    }

    #[test]
    fn links_to_services_are_urls() {
        for (ip, url) in [("10.0.0.7", "tcp://10.0.0.7:80"), ("fd00::7", "tcp://[fd00::7]:80")] {
            let spec = json!({"clusterIP": ip, "ports": [{"port": 80}]});
            let service: Service =
                carrack_types::json::from_value(json!({"metadata": {"name": "a-b"}, "spec": spec})).unwrap();
            let env: BTreeMap<String, String> = service_env(&[Arc::new(service)]).into_iter().collect();
            for (name, expected) in
                [("A_B_SERVICE_HOST", ip), ("A_B_PORT", url), ("A_B_PORT_80_TCP", url), ("A_B_PORT_80_TCP_ADDR", ip)]
            {
                assert_eq!(env.get(name).map(String::as_str), Some(expected), "{name} of {ip}");
            }
        }
    }

    #[test]
    fn expansion() {
        let vars = BTreeMap::from([("A".to_owned(), "x".to_owned())]);
        for (text, expected) in [
            ("$(A)", "x"),
            ("$$(A)", "$(A)"),
            ("$(B)", "$(B)"),
            ("$A", "$A"),
            ("a$", "a$"),
            ("$(A", "$(A"),
            ("$$$(A)", "$x"),
        ] {
            let expanded = expand(text, |name| vars.get(name).map(String::as_str));
            assert_eq!(expanded.as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn no_text_grows_beyond_what_a_program_takes() {
        // Each variable is twice the one before it.
        let doubling = |count: usize| {
            let first = json!({"name": "V0", "value": "x".repeat(64)});
            let others =
                (1..count).map(|n| json!({"name": format!("V{n}"), "value": format!("$(V{0})$(V{0})", n - 1)}));
            Value::from_iter(std::iter::once(first).chain(others))
        };
        let many = |count: usize| {
            let long = json!({"name": "LONG", "value": "x".repeat(1 << 20)});
            let others = (1..count).map(|n| json!({"name": format!("V{n}"), "value": "$(LONG)"}));
            Value::from_iter(std::iter::once(long).chain(others))
        };
        let wide = json!([{"name": "A", "value": "x".repeat(1 << 19)}, {"name": "B", "value": "$(A)".repeat(1 << 16)}]);
        for (env, expected) in [
            (doubling(10), None),
            (doubling(64), Some("environment variable V16: it expands to more than 2097152 bytes")),
            (wide, Some("environment variable B: it expands to more than 2097152 bytes")),
            (many(7), None),
            (many(9), Some("the variables are more than 8388608 bytes")),
            (
                json!(vec![json!({"name": "A", "value": ""}); 400_000]),
                Some("the variables are more than 8388608 bytes"),
            ),
        ] {
            let c: Container = serde_json::from_value(json!({"name": "c", "env": env})).unwrap();
            let made = environment(&Pod::default(), &c, &Place::default(), &[], &Fixed, None);
            assert_eq!(made.err().as_deref(), expected);
        }
        let vars = BTreeMap::from([("A".to_owned(), "x".repeat(1 << 20))]);
        for (count, fits) in [(8, true), (9, false)] {
            assert_eq!(expand_all(&vec!["$(A)".to_owned(); count], &vars).is_ok(), fits, "{count}");
        }
    }
}
