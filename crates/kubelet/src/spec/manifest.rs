//! Static pods: manifests on the node's own disk, or at a URL, decoded as strictly as the API server decodes what it is sent
//! (<https://kubernetes.io/docs/tasks/configure-pod-container/static-pod/>).

use carrack_engine::Time;
use carrack_networks::NETWORKS_ANNOTATION;
use carrack_schema::decode::{self, Format, Limits, Parsed};
use carrack_schema::{default, table, validate};
use carrack_types::resource::Object as _;
use carrack_types::well_known::MIRROR_ANNOTATION;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// Annotation with the hash of the manifest, of a static pod.
pub const HASH: &str = "kubernetes.io/config.hash";
/// How long that is, in hexadecimal digits.
pub const HASH_LENGTH: usize = 32;
/// Annotation: where a pod comes from.
pub const SOURCE: &str = "kubernetes.io/config.source";
/// Annotation: when a static pod's manifest was seen first.
pub const SEEN: &str = "kubernetes.io/config.seen";

/// The largest manifest of one pod, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The largest answer of a URL, in bytes, and most pods of one.
pub const MAX_ANSWER_BYTES: usize = 4 << 20;
const MAX_PODS: usize = 512;

/// Where manifests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// On the node's disk (`staticPodPath`).
    File,
    /// At a URL (`staticPodURL`).
    Http,
}

impl Source {
    /// Upstream's name, which its pods have in an annotation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
        }
    }
}

/// A manifest as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Its path, or the URL that it is from.
    pub path: String,
    /// The pod, or what is wrong.
    pub pod: Result<Box<Pod>, String>,
}

/// Reads a manifest for a node.
///
/// # Errors
/// What is wrong with it.
pub fn read(bytes: &[u8], path: &str, node: &str) -> Result<Pod, String> {
    let parsed = parse(bytes, MAX_BYTES)?;
    if !is(&parsed.value, "Pod") {
        return Err("it is no Pod of v1".into());
    }
    finish(parsed, Source::File, node, &hash(bytes, path, node))
}

/// Reads what a URL answers: a Pod or a `PodList`. No byte is no pods, as upstream has it (`extractFromURL`, `pkg/kubelet/config/http.go`).
/// A pod is what it says, however that is written: whoever writes it anew each time makes no other pod of it.
///
/// # Errors
/// What is wrong with it: with one of its pods, none of them is taken.
pub fn read_answer(bytes: &[u8], url: &str, node: &str) -> Result<Vec<Pod>, String> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let Parsed { value, findings } = parse(bytes, MAX_ANSWER_BYTES)?;
    if let Some(finding) = findings.first() {
        return Err(finding.to_string());
    }
    let of = |value: Value| {
        let hash = hash(value.to_string().as_bytes(), url, node);
        finish(Parsed { value, findings: Vec::new() }, Source::Http, node, &hash)
    };
    if is(&value, "Pod") {
        return Ok(vec![of(value)?]);
    }
    if !is(&value, "PodList") {
        return Err("it is neither a Pod nor a PodList of v1".into());
    }
    let items = items(value)?;
    if items.len() > MAX_PODS {
        return Err(format!("it has more than {MAX_PODS} pods"));
    }
    let read = |(number, item): (usize, Value)| of(item).map_err(|why| format!("items[{number}]: {why}"));
    items.into_iter().enumerate().map(read).collect()
}

/// The pods of a list, each as an object that stands alone: in a list they need not say what they are.
fn items(list: Value) -> Result<Vec<Value>, String> {
    let Value::Object(mut list) = list else { return Err("it is no object".into()) };
    let items = list.remove("items");
    if let Some(other) = list.keys().find(|key| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata")) {
        return Err(format!("unknown field {other:?}"));
    }
    let items = match items {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(_) => return Err("its items are no list".into()),
    };
    let alone = |(number, mut item): (usize, Value)| {
        let fields = item.as_object_mut().ok_or_else(|| format!("items[{number}]: it is no object"))?;
        fields.entry("apiVersion").or_insert_with(|| json!("v1"));
        fields.entry("kind").or_insert_with(|| json!("Pod"));
        if is(&item, "Pod") { Ok(item) } else { Err(format!("items[{number}]: it is no Pod of v1")) }
    };
    items.into_iter().enumerate().map(alone).collect()
}

fn parse(bytes: &[u8], max_bytes: usize) -> Result<Parsed, String> {
    decode::parse(bytes, Format::of(bytes), Limits { max_bytes, ..Limits::default() }).map_err(|e| e.to_string())
}

/// Whether something says that it is of this kind of v1.
fn is(value: &Value, kind: &str) -> bool {
    let has = |key: &str, wanted: &str| value.get(key).and_then(Value::as_str) == Some(wanted);
    has("apiVersion", "v1") && has("kind", kind)
}

/// Makes the node's pod of one that was parsed.
fn finish(parsed: Parsed, source: Source, node: &str, hash: &str) -> Result<Pod, String> {
    let Parsed { mut value, mut findings } = parsed;
    let info = table::find("", "pods").ok_or("pods are not known here")?;
    let version = info.version("v1").ok_or("pods of v1 are not known here")?;
    findings.extend(decode::conform(&mut value, version.schema()).map_err(|e| e.to_string())?);
    if let Some(finding) = findings.first() {
        return Err(finding.to_string());
    }
    settle(&mut value, source, node, hash).ok_or("it has no metadata or no spec")?;
    default::apply(info, "v1", &mut value);
    if let Some(error) = validate::create(info, "v1", &value).first() {
        return Err(error.to_string());
    }
    let pod: Pod = carrack_types::json::from_value(value).map_err(|e| e.to_string())?;
    match needs_api(&pod) {
        Some(what) => Err(format!("a static pod cannot have {what}: it runs without the API")),
        None => Ok(pod),
    }
}

/// The pod of a manifest that is seen for the first time.
#[must_use]
pub fn seen(mut pod: Pod, now: Time) -> Pod {
    pod.metadata.annotations.get_or_insert_default().insert(SEEN.into(), now.rfc3339_micros());
    pod
}

/// Names and places it as upstream does (`applyDefaults`, `pkg/kubelet/config/common.go`): what is from a URL may be driven away by
/// taints, unless it says otherwise.
fn settle(value: &mut Value, source: Source, node: &str, hash: &str) -> Option<()> {
    let metadata = value.get_mut("metadata")?.as_object_mut()?;
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
    let name = format!("{name}-{}", node.to_lowercase());
    metadata.insert("name".into(), name.into());
    metadata.insert("uid".into(), hash.into());
    if metadata.get("namespace").and_then(Value::as_str).is_none_or(str::is_empty) {
        metadata.insert("namespace".into(), "default".into());
    }
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({})).as_object_mut()?;
    annotations.insert(HASH.into(), hash.into());
    annotations.insert(SOURCE.into(), source.name().into());
    let spec = value.get_mut("spec")?.as_object_mut()?;
    spec.insert("nodeName".into(), node.into());
    if source == Source::File {
        let tolerations = spec.entry("tolerations").or_insert_with(|| json!([])).as_array_mut()?;
        tolerations.push(json!({"operator": "Exists", "effect": "NoExecute"}));
    }
    value.as_object_mut()?.remove("status");
    Some(())
}

/// What only the API could give it (upstream's `HasAPIObjectReference`, `pkg/api/pod`). The API server takes no picture of a pod
/// that refers to such objects, either: it would run, and nobody would see it.
fn needs_api(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    if pod.annotation(NETWORKS_ANNOTATION).is_some() {
        return Some("further networks");
    }
    if [&spec.service_account_name, &spec.service_account].into_iter().flatten().any(|s| !s.is_empty()) {
        return Some("a service account");
    }
    if spec.image_pull_secrets.as_ref().is_some_and(|secrets| !secrets.is_empty()) {
        return Some("secrets for its images");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("claims of devices");
    }
    for v in spec.volumes.iter().flatten() {
        let projected = || v.projected.iter().flat_map(|p| p.sources.iter().flatten());
        if v.secret.is_some()
            || v.config_map.is_some()
            || v.persistent_volume_claim.is_some()
            || v.ephemeral.is_some()
            || v.flex_volume.as_ref().is_some_and(|flex| flex.secret_ref.is_some())
            || projected().any(|p| p.secret.is_some() || p.config_map.is_some() || p.service_account_token.is_some())
        {
            return Some("volumes of secrets, config maps, tokens or claims");
        }
        if projected().any(|p| p.cluster_trust_bundle.is_some() || p.pod_certificate.is_some()) {
            return Some("volumes of certificates");
        }
        // What a driver is to be given is in its CSIDriver.
        if v.csi.is_some() {
            return Some("volumes of CSI drivers");
        }
    }
    for c in spec.init_containers.iter().flatten().chain(&spec.containers) {
        let env = c.env.iter().flatten().filter_map(|e| e.value_from.as_ref());
        if c.env_from.as_ref().is_some_and(|e| !e.is_empty())
            || env.into_iter().any(|f| f.config_map_key_ref.is_some() || f.secret_key_ref.is_some())
        {
            return Some("an environment of secrets or config maps");
        }
    }
    None
}

/// The pod's UID: another content, file or node is another pod. FNV-1a, 128 bits.
fn hash(bytes: &[u8], path: &str, node: &str) -> String {
    let parts = [path.as_bytes(), &[0], node.as_bytes(), &[0], bytes];
    let hash = parts.into_iter().flatten().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{hash:032x}")
}

/// The API's picture of a static pod.
#[must_use]
pub fn mirror(pod: &Pod, node_uid: &str) -> Value {
    let meta = &pod.metadata;
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.insert(MIRROR_ANNOTATION.into(), annotations.get(HASH).cloned().unwrap_or_default());
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": meta.labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "controller": true, "uid": node_uid,
                "name": pod.spec.as_ref().and_then(|s| s.node_name.clone()),
            }],
        },
        "spec": pod.spec,
    })
}

/// The hash that a mirror pod carries; none for a pod of the API's own.
#[must_use]
pub fn mirrored(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(MIRROR_ANNOTATION).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {a: b}}\nspec:\n  containers:\n  - {name: c, image: x}\n";

    #[test]
    fn a_manifest_is_named_placed_and_defaulted() {
        let pod = read(GOOD.as_bytes(), "/m/web.yaml", "node1").unwrap();
        assert_eq!(
            (pod.metadata.name.as_deref(), pod.metadata.namespace.as_deref()),
            (Some("web-node1"), Some("default"))
        );
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!((spec.node_name.as_deref(), spec.restart_policy.as_deref()), (Some("node1"), Some("Always")));
        let uid = pod.metadata.uid.clone().unwrap();
        assert_eq!(uid.len(), 32);
        assert_eq!(read(GOOD.as_bytes(), "/m/web.yaml", "node1").unwrap().metadata.uid, Some(uid.clone()));
        assert_ne!(read(GOOD.as_bytes(), "/m/other.yaml", "node1").unwrap().metadata.uid, Some(uid.clone()));
        let picture: Pod = carrack_types::json::from_value(mirror(&pod, "n")).unwrap();
        assert_eq!(mirrored(&picture), Some(uid.as_str()));
        assert_eq!(picture.metadata.uid, None);
        assert_eq!(mirrored(&pod), None);
        // When it was seen is no part of what it is.
        let pod = seen(pod, Time::from_unix_s(7));
        assert_eq!(
            (pod.annotation(SEEN), pod.metadata.uid.as_ref()),
            (Some("1970-01-01T00:00:07.000000Z"), Some(&uid))
        );
        assert_eq!(mirror(&pod, "n")["metadata"]["annotations"][SEEN], "1970-01-01T00:00:07.000000Z");
    }

    #[test]
    fn bad_manifests_are_told_apart() {
        let with = |spec: &str| format!("{GOOD}{spec}");
        for (text, problem) in [
            ("", "version/kind"),
            ("{", "EOF"),
            ("a: [", "YAML"),
            ("apiVersion: v1\nkind: Service\n", "no Pod"),
            (&GOOD.replace("image: x", "imagee: x"), "unknown field"),
            (&GOOD.replace("name: c,", "name: C_,"), "name"),
            (&GOOD.replace("spec:", "spec:\n  serviceAccountName: x"), "service account"),
            (&GOOD.replace("labels: {a: b}", "annotations: {k8s.v1.cni.cncf.io/networks: lan}"), "further networks"),
            (&with("  volumes:\n  - {name: v, secret: {secretName: s}}\n"), "volumes of secrets"),
            (&with("  imagePullSecrets: [{name: s}]\n"), "secrets for its images"),
            (&with("  volumes:\n  - {name: v, csi: {driver: d.example.com}}\n"), "CSI drivers"),
            (
                &with("  volumes:\n  - {name: v, flexVolume: {driver: a/b, secretRef: {name: s}}}\n"),
                "volumes of secrets",
            ),
            (
                &with(
                    "  volumes:\n  - name: v\n    ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], \
                     resources: {requests: {storage: 1Gi}}}}}\n",
                ),
                "or claims",
            ),
            (
                &with("  volumes:\n  - {name: v, projected: {sources: [{clusterTrustBundle: {name: b, path: p}}]}}\n"),
                "certificates",
            ),
        ] {
            let error = read(text.as_bytes(), "/m/x.yaml", "n").unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    const URL: &str = "http://m.example.com/pods";

    #[test]
    fn what_a_url_answers_is_one_pod_or_many() {
        let item = r#"{"metadata": {"name": "web", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}"#;
        let list =
            |items: &str| format!(r#"{{"apiVersion": "v1", "kind": "PodList", "metadata": {{}}, "items": [{items}]}}"#);
        let other = item.replace("\"web\"", "\"db\"");
        for (answer, names) in [
            ("", &[][..]),
            (GOOD, &["web-n1"]),
            (&list(item), &["web-n1"]),
            (&list(&format!("{item}, {other}")), &["web-n1", "db-n1"]),
            (&list(""), &[]),
            ("apiVersion: v1\nkind: PodList\nitems: null\n", &[]),
            ("apiVersion: v1\nkind: PodList\n", &[]),
        ] {
            let pods = read_answer(answer.as_bytes(), URL, "n1").unwrap_or_else(|why| panic!("{answer}: {why}"));
            let found: Vec<&str> = pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
            assert_eq!(found, names, "{answer}");
            for pod in &pods {
                assert_eq!(pod.annotation(SOURCE), Some("http"));
                assert_eq!(pod.annotation(HASH), pod.metadata.uid.as_deref());
                assert_eq!(pod.metadata.uid.as_ref().map(String::len), Some(HASH_LENGTH));
                assert!(
                    pod.spec
                        .as_ref()
                        .unwrap()
                        .tolerations
                        .as_ref()
                        .is_none_or(|all| { all.iter().all(|toleration| toleration.key.is_some()) })
                );
            }
        }
        let uid = |answer: &str, url: &str| read_answer(answer.as_bytes(), url, "n1").unwrap()[0].metadata.uid.clone();
        assert_eq!(uid(GOOD, URL), uid(&GOOD.replace("{a: b}", "{ 'a': \"b\" }"), URL), "only its writing is another");
        assert_ne!(uid(GOOD, URL), uid(&GOOD.replace("image: x", "image: y"), URL));
        assert_ne!(uid(GOOD, URL), uid(GOOD, "http://other.example.com/pods"));
    }

    #[test]
    fn of_a_bad_answer_nothing_is_taken() {
        let list = |items: &str| format!("apiVersion: v1\nkind: PodList\nitems: {items}\n");
        let good = "{metadata: {name: a}, spec: {containers: [{name: c, image: x}]}}";
        for (answer, problem) in [
            ("<html>", "version/kind"),
            (" ", "version/kind"),
            ("apiVersion: v1\nkind: List\nitems: []\n", "neither a Pod nor a PodList"),
            ("apiVersion: v1\nkind: PodList\nitems: {}\n", "no list"),
            ("apiVersion: v1\nkind: PodList\nitem: []\n", "unknown field \"item\""),
            (&list("[7]"), "items[0]: it is no object"),
            (&list("[{kind: Service}]"), "items[0]: it is no Pod"),
            (&list(&format!("[{good}, {}]", good.replace("image", "imagee"))), "items[1]: unknown field"),
            (&list(&format!("[{good}, {{metadata: {{name: b}}}}]")), "items[1]: "),
            (&list(&format!("[{}]", vec![good; MAX_PODS + 1].join(", "))), "more than 512 pods"),
        ] {
            let error = read_answer(answer.as_bytes(), URL, "n1").unwrap_err();
            assert!(error.contains(problem), "{}: {error}", &answer[..answer.len().min(200)]);
        }
    }
}
