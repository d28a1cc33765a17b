//! PodTopologyLabels: a pod carries the zone and the region of its node, so that what runs in it can be told where
//! it is (`k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels`, on by default since v1.35).
//!
//! They come with the binding, or with a pod that is made for a node. A node that is not there gives none.

use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::context::Cx;
use crate::keys;
use crate::object::{Object, child_mut, meta, metadata_mut, str_at};
use crate::status::Status;
use crate::stored;

/// What is copied. What the pod says of it gives way: where it is, its node knows best.
const COPIED: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

pub(super) struct PodTopologyLabels;

/// The node that a new pod is made for.
fn wanted<'a>(attributes: &'a Attributes<'_>) -> Option<&'a str> {
    let node = str_at(&attributes.object, &["spec", "nodeName"]);
    (attributes.is("", "pods") && attributes.operation == Operation::Create && !node.is_empty()).then_some(node)
}

/// Labels an object as its node is labelled.
fn copy(node: &Object, object: &mut Object) {
    let Some(Value::Object(labels)) = meta(node, "labels") else { return };
    for key in COPIED {
        if let Some(value) = labels.get(key) {
            child_mut(metadata_mut(object), "labels").insert(key.to_owned(), value.clone());
        }
    }
}

impl AdmissionPlugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        wanted(attributes).map(|node| Needed::one("", "nodes", "", node)).into_iter().collect()
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let node = wanted(attributes).and_then(|name| lookup.get("", "nodes", "", name));
        if let Some(node) = node {
            copy(node, &mut attributes.object);
        }
        Ok(())
    }
}

/// Labels a binding to a node, whose labels become the pod's. Plugins are not asked about bindings. Of what is posted
/// to the resource of all bindings upstream's plugin knows nothing.
pub(super) async fn bind(cx: &Cx<'_>, binding: &mut Object) -> Result<(), Status> {
    let name = str_at(binding, &["target", "name"]);
    let is_to_node = str_at(binding, &["target", "kind"]) == "Node" && !name.is_empty();
    if !is_to_node || cx.request.subresource.as_deref() != Some("binding") {
        return Ok(());
    }
    let (entry, _) = cx.server.untimed.get(&(keys::of("", "nodes", None) + name)).await?;
    if let Some(entry) = entry {
        copy(&stored::parse(&entry), binding);
    }
    Ok(())
}
