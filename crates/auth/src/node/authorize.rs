//! The node authorizer: a kubelet reads what its pods need, and writes its own objects.

use std::sync::LazyLock;

use super::graph::{Graph, Referred};
use crate::attributes::Attributes;
use crate::bootstrap;
use crate::rbac::Rule;

/// Leases of nodes are in this namespace.
const NAMESPACE_NODE_LEASE: &str = "kube-node-lease";

/// What every kubelet may do; the objects that belong to one node only are narrowed below.
static NODE_RULES: LazyLock<Vec<Rule>> = LazyLock::new(bootstrap::node_rules);

/// May the kubelet of `node` do this? The error is why not, empty where upstream gives no reason.
///
/// A refusal here is no final one: RBAC may still allow it.
///
/// # Errors
/// The reason of the refusal.
pub fn authorize(graph: &Graph, node: &str, attributes: &Attributes<'_>) -> Result<(), String> {
    let a = attributes;
    let related = |ok: bool| {
        if a.name.is_empty() {
            Err("No Object name found".to_owned())
        } else if ok {
            Ok(())
        } else {
            Err(format!("no relationship found between node '{node}' and this object"))
        }
    };
    let get_only = |ok: bool| {
        if a.verb != "get" {
            return Err("can only get individual resources of this type".to_owned());
        }
        if !a.subresource.is_empty() {
            return Err("cannot get subresource".to_owned());
        }
        related(ok)
    };
    let refers = |what| graph.refers(node, what, a.namespace, a.name);
    if !a.is_resource() {
        return by_rules(a);
    }
    match (a.group, a.resource) {
        ("", "secrets") => read(a).and_then(|()| related(refers(Referred::Secret))),
        ("", "configmaps") => read(a).and_then(|()| related(refers(Referred::ConfigMap))),
        ("", "persistentvolumeclaims") if a.subresource == "status" => match a.verb {
            "update" | "patch" => related(refers(Referred::Claim)),
            _ => Err("can only get/update/patch this type".to_owned()),
        },
        ("", "persistentvolumeclaims") => get_only(refers(Referred::Claim)),
        ("", "persistentvolumes") => get_only(graph.uses_volume(node, a.name)),
        ("resource.k8s.io", "resourceclaims") => get_only(refers(Referred::ResourceClaim)),
        ("storage.k8s.io", "volumeattachments") => get_only(graph.attaches_to(node, a.name)),
        ("", "serviceaccounts") => {
            if a.verb != "create" || a.name.is_empty() {
                return Err("can only create tokens for individual service accounts".to_owned());
            }
            if a.subresource != "token" {
                return Err("can only create token subresource of serviceaccount".to_owned());
            }
            related(refers(Referred::ServiceAccount))
        }
        ("coordination.k8s.io", "leases") => {
            own(a, node, "a node lease")?;
            if a.namespace == NAMESPACE_NODE_LEASE {
                Ok(())
            } else {
                Err(format!("can only access leases in the {NAMESPACE_NODE_LEASE:?} system namespace"))
            }
        }
        ("storage.k8s.io", "csinodes") => own(a, node, "a CSINode"),
        ("resource.k8s.io", "resourceslices") => slice(graph, node, a),
        ("certificates.k8s.io", "podcertificaterequests") => certificate(graph, node, a),
        ("", "nodes") => own_node(a, node),
        ("", "pods") => pod(graph, node, a),
        _ => by_rules(a),
    }
}

fn by_rules(attributes: &Attributes<'_>) -> Result<(), String> {
    if NODE_RULES.iter().any(|rule| rule.allows(attributes)) { Ok(()) } else { Err(String::new()) }
}

/// Reads of one object, also as a list or watch narrowed to its name.
fn read(a: &Attributes<'_>) -> Result<(), String> {
    if !matches!(a.verb, "get" | "list" | "watch") {
        Err("can only read resources of this type".to_owned())
    } else if !a.subresource.is_empty() {
        Err("cannot read subresource".to_owned())
    } else if a.namespace.is_empty() {
        Err("can only read namespaced object of this type".to_owned())
    } else {
        Ok(())
    }
}

/// An object with the node's own name. A create's name is not known here; admission looks at it.
fn own(a: &Attributes<'_>, node: &str, what: &str) -> Result<(), String> {
    if !matches!(a.verb, "get" | "create" | "update" | "patch" | "delete") {
        return Err(format!("can only get, create, update, patch, or delete {what}"));
    }
    if !a.subresource.is_empty() {
        return Err("cannot authorize subresources".to_owned());
    }
    if a.verb != "create" && a.name != node {
        return Err(format!("can only access {what} with the same name as the requesting node"));
    }
    Ok(())
}

fn own_node(a: &Attributes<'_>, node: &str) -> Result<(), String> {
    match (a.subresource, a.verb) {
        // Admission keeps these to the node's own object.
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") => {
            if a.name == node || (a.name.is_empty() && selects(a, "metadata.name", node)) {
                Ok(())
            } else if a.name.is_empty() {
                Err(format!("node '{node}' cannot read all nodes, only its own Node object"))
            } else {
                Err(format!("node '{node}' cannot read '{}', only its own Node object", a.name))
            }
        }
        _ => Err(String::new()),
    }
}

fn pod(graph: &Graph, node: &str, a: &Attributes<'_>) -> Result<(), String> {
    let mine = graph.pod_is_on(node, a.namespace, a.name);
    match (a.subresource, a.verb) {
        ("", "get") if mine => Ok(()),
        ("", "get") => Err(format!("no relationship found between node '{node}' and this object")),
        ("", "list" | "watch") if mine || selects(a, "spec.nodeName", node) => Ok(()),
        ("", "list" | "watch") => Err("can only list/watch pods with spec.nodeName field selector".to_owned()),
        // Admission keeps these to pods bound to the node.
        ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
        _ => Err(String::new()),
    }
}

fn slice(graph: &Graph, node: &str, a: &Attributes<'_>) -> Result<(), String> {
    if !a.subresource.is_empty() {
        return Err("cannot authorize ResourceSlice subresources".to_owned());
    }
    match a.verb {
        "create" => Ok(()),
        "get" | "update" | "patch" | "delete" if graph.slice_is_of(node, a.name) => Ok(()),
        "list" | "watch" | "deletecollection" if selects(a, "spec.nodeName", node) => Ok(()),
        "list" | "watch" | "deletecollection" => {
            Err("can only list/watch/deletecollection resourceslices with nodeName field selector".to_owned())
        }
        _ => Err(format!("no relationship found between node '{node}' and this object")),
    }
}

/// Certificates of pods: a kubelet reads what becomes of its own requests.
fn certificate(graph: &Graph, node: &str, a: &Attributes<'_>) -> Result<(), String> {
    if !a.subresource.is_empty() {
        return Err("nodes may not access the status subresource of PodCertificateRequests".to_owned());
    }
    match a.verb {
        // Admission keeps these to pods that run on the node.
        "create" => Ok(()),
        "get" if graph.certificate_request_is_of(node, a.namespace, a.name) => Ok(()),
        "get" => Err(format!("no relationship found between node '{node}' and this object")),
        "list" | "watch" if selects(a, "spec.nodeName", node) => Ok(()),
        "list" | "watch" => Err("can only list/watch podcertificaterequests with nodeName field selector".to_owned()),
        verb => Err(format!("nodes may not {verb} podcertificaterequests")),
    }
}

/// Whether the request's field selector demands `field` to be `value`.
fn selects(a: &Attributes<'_>, field: &str, value: &str) -> bool {
    // A comma behind a backslash is a part of a value, not the end of a term. What a node asks for needs none.
    if a.field_selector.contains('\\') {
        return false;
    }
    a.field_selector.split(',').any(|term| {
        let pair = term.split_once("==").or_else(|| term.split_once('='));
        pair.is_some_and(|(key, want)| key.trim() == field && want.trim() == value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        let mut graph = Graph::default();
        let mut feed = |group: &str, resource: &str, namespace: &str, name: &str, json: &str| {
            assert!(
                graph.observe(group, resource, namespace, name, Some(json.as_bytes())).expect("parses"),
                "{resource} is of use"
            );
        };
        feed(
            "",
            "pods",
            "ns",
            "web",
            r#"{"spec":{"nodeName":"n1","serviceAccountName":"sa","imagePullSecrets":[{"name":"pull"}],
                "nodeSelector":{"secretName":"trap"},
                "volumes":[{"name":"a","secret":{"secretName":"vol"}},
                           {"name":"b","projected":{"sources":[{"configMap":{"name":"proj"}}]}},
                           {"name":"c","persistentVolumeClaim":{"claimName":"data"}},
                           {"name":"d","ephemeral":{}}],
                "containers":[{"name":"c","env":[{"name":"E","valueFrom":{"secretKeyRef":{"name":"env","key":"k"}}}],
                               "envFrom":[{"configMapRef":{"name":"from"}}]}]}}"#,
        );
        feed(
            "",
            "pods",
            "ns",
            "other",
            r#"{"spec":{"nodeName":"n2","containers":[],"volumes":[{"name":"a","secret":{"secretName":"theirs"}}]}}"#,
        );
        feed(
            "",
            "pods",
            "ns",
            "pending",
            r#"{"spec":{"containers":[],"volumes":[{"name":"a","secret":{"secretName":"unbound"}}]}}"#,
        );
        feed(
            "",
            "pods",
            "ns",
            "mirror",
            r#"{"metadata":{"annotations":{"kubernetes.io/config.mirror":"x"}},
                "spec":{"nodeName":"n1","containers":[],"volumes":[{"name":"a","secret":{"secretName":"mirrored"}}]}}"#,
        );
        feed(
            "",
            "persistentvolumes",
            "",
            "pv1",
            r#"{"spec":{"claimRef":{"namespace":"ns","name":"data"},
                "csi":{"driver":"d","volumeHandle":"h","nodeStageSecretRef":{"namespace":"csi","name":"stage"},
                       "controllerPublishSecretRef":{"namespace":"csi","name":"controller"}}}}"#,
        );
        feed(
            "storage.k8s.io",
            "volumeattachments",
            "",
            "va1",
            r#"{"spec":{"nodeName":"n1","attacher":"d","source":{}}}"#,
        );
        let request = r#"{"spec":{"nodeName":"n1","podName":"web"}}"#;
        feed("certificates.k8s.io", "podcertificaterequests", "ns", "own", request);
        let theirs = r#"{"spec":{"nodeName":"n2","podName":"other"}}"#;
        feed("certificates.k8s.io", "podcertificaterequests", "ns", "theirs", theirs);
        graph
    }

    #[test]
    fn table() {
        let graph = graph();
        let check = |a: Attributes<'_>, want: bool| {
            let got = authorize(&graph, "n1", &a);
            assert_eq!(got.is_ok(), want, "{a:?}: {got:?}");
        };
        let at = Attributes::resource;
        for (resource, name, want) in [
            ("secrets", "pull", true),
            ("secrets", "vol", true),
            ("secrets", "env", true),
            ("secrets", "theirs", false),
            ("secrets", "unbound", false),
            ("secrets", "mirrored", false),
            ("secrets", "trap", false),
            ("configmaps", "proj", true),
            ("configmaps", "from", true),
            ("configmaps", "vol", false),
            ("persistentvolumeclaims", "data", true),
            ("persistentvolumeclaims", "web-d", true),
            ("pods", "web", true),
            ("pods", "mirror", true),
            ("pods", "other", false),
        ] {
            check(at("get", "", resource).in_namespace("ns").named(name), want);
            check(at("get", "", resource).in_namespace("elsewhere").named(name), false);
        }
        check(at("get", "", "secrets").in_namespace("csi").named("stage"), true);
        check(at("get", "", "secrets").in_namespace("csi").named("controller"), false);
        check(at("list", "", "secrets").in_namespace("ns"), false);
        check(at("watch", "", "secrets").in_namespace("ns").named("vol"), true);
        check(at("update", "", "secrets").in_namespace("ns").named("vol"), false);
        check(at("get", "", "persistentvolumes").named("pv1"), true);
        check(at("list", "", "persistentvolumes"), false);
        check(at("get", "storage.k8s.io", "volumeattachments").named("va1"), true);
        check(at("create", "", "serviceaccounts").in_namespace("ns").named("sa").with_subresource("token"), true);
        check(at("create", "", "serviceaccounts").in_namespace("ns").named("other").with_subresource("token"), false);
        check(at("create", "", "serviceaccounts").in_namespace("ns").named("sa"), false);
        check(at("get", "", "nodes").named("n1"), true);
        check(at("get", "", "nodes").named("n2"), false);
        check(at("list", "", "nodes"), false);
        check(Attributes { field_selector: "metadata.name=n1", ..at("list", "", "nodes") }, true);
        check(Attributes { field_selector: "metadata.name!=n1", ..at("list", "", "nodes") }, false);
        check(at("create", "", "nodes"), true);
        check(at("delete", "", "nodes").named("n1"), false);
        check(at("patch", "", "nodes").named("n1").with_subresource("status"), true);
        check(at("update", "", "nodes").named("n1").with_subresource("proxy"), false);
        check(Attributes { field_selector: "spec.nodeName=n1", ..at("watch", "", "pods") }, true);
        check(Attributes { field_selector: "spec.nodeName=n2", ..at("watch", "", "pods") }, false);
        // One term each, which chooses everything but what nobody is called.
        check(Attributes { field_selector: r"spec.nodeName!=x\,spec.nodeName=n1", ..at("list", "", "pods") }, false);
        check(Attributes { field_selector: r"metadata.name!=x\,metadata.name=n1", ..at("list", "", "nodes") }, false);
        let slices = at("deletecollection", "resource.k8s.io", "resourceslices");
        check(Attributes { field_selector: r"spec.nodeName!=x\,spec.nodeName==n1", ..slices }, false);
        check(Attributes { field_selector: "spec.nodeName=n1", ..slices }, true);
        let requests = |verb| at(verb, "certificates.k8s.io", "podcertificaterequests");
        check(requests("create").in_namespace("ns"), true);
        check(Attributes { field_selector: "spec.nodeName=n1", ..requests("watch") }, true);
        check(Attributes { field_selector: "spec.nodeName=n2", ..requests("watch") }, false);
        check(requests("list"), false);
        for (namespace, name, want) in [("ns", "own", true), ("ns", "theirs", false), ("other", "own", false)] {
            check(requests("get").in_namespace(namespace).named(name), want);
        }
        check(requests("get").in_namespace("ns").named("own").with_subresource("status"), false);
        check(requests("update").in_namespace("ns").named("x").with_subresource("status"), false);
        check(at("list", "", "pods"), false);
        check(at("update", "", "pods").in_namespace("ns").named("web").with_subresource("status"), true);
        check(at("update", "", "pods").in_namespace("ns").named("web"), false);
        let lease = |verb| at(verb, "coordination.k8s.io", "leases");
        check(lease("update").in_namespace("kube-node-lease").named("n1"), true);
        check(lease("update").in_namespace("kube-node-lease").named("n2"), false);
        check(lease("update").in_namespace("kube-system").named("n1"), false);
        check(lease("create").in_namespace("kube-node-lease"), true);
        check(lease("list").in_namespace("kube-node-lease"), false);
        check(at("create", "", "events").in_namespace("ns"), true);
        check(at("list", "", "services"), true);
        check(at("list", "node.k8s.io", "runtimeclasses"), true);
        check(at("list", "apps", "deployments"), false);
        check(Attributes::path("get", "/metrics"), false);
    }

    #[test]
    fn what_is_removed_is_closed() {
        let mut graph = graph();
        let secret = Attributes::resource("get", "", "secrets").in_namespace("ns").named("vol");
        assert!(authorize(&graph, "n1", &secret).is_ok());
        assert!(graph.observe("", "pods", "ns", "web", None).expect("a removal"));
        assert!(authorize(&graph, "n1", &secret).is_err());
        let stage = Attributes::resource("get", "", "secrets").in_namespace("csi").named("stage");
        assert!(authorize(&graph, "n1", &stage).is_err(), "no pod uses the claim any more");
    }

    #[test]
    fn what_several_pods_refer_to_is_open_until_the_last_of_them_goes() {
        let mut graph = Graph::default();
        let secret = Attributes::resource("get", "", "secrets").in_namespace("ns").named("s");
        let json = |node: &str| {
            format!(
                r#"{{"spec":{{"nodeName":"{node}","containers":[],"volumes":[{{"name":"a","secret":{{"secretName":"s"}}}}]}}}}"#
            )
        };
        for (name, node) in [("a", Some("n1")), ("b", Some("n1")), ("c", Some("n2")), ("a", Some("n1")), ("b", None)] {
            let json = node.map(&json);
            graph.observe("", "pods", "ns", name, json.as_deref().map(str::as_bytes)).expect("parses");
        }
        let open = |graph: &Graph| ["n1", "n2"].map(|node| authorize(graph, node, &secret).is_ok());
        assert_eq!(open(&graph), [true, true]);
        for (name, left) in [("a", [false, true]), ("c", [false, false])] {
            graph.observe("", "pods", "ns", name, None).expect("a removal");
            assert_eq!(open(&graph), left, "{name}");
        }
        assert_eq!(graph, Graph::default(), "nothing is left of what has gone");
    }

    #[test]
    fn an_object_that_does_not_parse_opens_nothing() {
        let mut graph = graph();
        let secret = Attributes::resource("get", "", "secrets").in_namespace("ns").named("vol");
        assert!(graph.observe("", "pods", "ns", "web", Some(b"{\"spec\":{\"nodeName\":7}}")).is_err());
        assert!(authorize(&graph, "n1", &secret).is_err());
    }
}
