//! The definition of NetworkAttachmentDefinitions, as the de-facto standard has it.

use serde_json::{Value, json};

/// The kind's group.
pub const GROUP: &str = "k8s.cni.cncf.io";
/// Its version.
pub const VERSION: &str = "v1";
/// Its resource.
pub const PLURAL: &str = "network-attachment-definitions";
/// Its kind.
pub const KIND: &str = "NetworkAttachmentDefinition";

/// The CustomResourceDefinition.
#[must_use]
pub fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{PLURAL}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "plural": PLURAL,
                "singular": "network-attachment-definition",
                "kind": KIND,
                "shortNames": ["net-attach-def"],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "description": "A network that pods can be attached to, besides their own.",
                    "properties": {
                        "apiVersion": { "type": "string" },
                        "kind": { "type": "string" },
                        "metadata": { "type": "object" },
                        "spec": {
                            "type": "object",
                            "description": "How a pod is attached.",
                            "properties": { "config": {
                                "type": "string",
                                "description": "A CNI configuration, or a list of them, in JSON; without it, that of the \
                                                file on the node which is for a network of this name.",
                            } },
                        },
                    },
                } },
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_agree() {
        let crd = crd();
        assert_eq!(crd["metadata"]["name"], "network-attachment-definitions.k8s.cni.cncf.io");
    }
}
