//! What several roles must say of volumes alike: their names, which each derives by itself, what claims ask for, and which class
//! is the default.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use sha2::{Digest as _, Sha256};

use crate::quantity::Quantity;
use crate::resource::Object as _;
use crate::well_known::storage::{CLASS_ANNOTATION, DEFAULT_CLASS};

/// How a node reports a CSI volume, in `volumesInUse` and `volumesAttached`
/// (<https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/#NodeStatus>).
#[must_use]
pub fn csi_unique_name(driver: &str, handle: &str) -> String {
    format!("{CSI_PREFIX}{driver}^{handle}")
}

/// Name of the VolumeAttachment of a CSI volume to a node: a digest of volume handle, driver and node
/// (pkg/volume/csi/csi_attacher.go, `getAttachmentName`).
#[must_use]
pub fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    format!("csi-{}", digest(&format!("{handle}{driver}{node}")))
}

/// How a node reports a FlexVolume, in `volumesInUse` and `volumesAttached`: the plugin's name and the volume's
/// (pkg/volume/util, `GetUniqueVolumeName`).
#[must_use]
pub fn flex_unique_name(driver: &str, volume: &str) -> String {
    format!("{FLEX_PREFIX}{driver}/{volume}")
}

/// The driver and the volume of a FlexVolume, by the name under which nodes report it.
#[must_use]
pub fn flex_of_unique_name(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(FLEX_PREFIX)?.rsplit_once('/')
}

/// Name of the VolumeAttachment of a FlexVolume to a node. Upstream has none: its controller keeps attachments in memory.
#[must_use]
pub fn flex_attachment_name(unique: &str, node: &str) -> String {
    format!("flexvolume-{}", digest(&format!("{unique}{node}")))
}

/// Name of the VolumeAttachment to a node of the volume that nodes report under this name; none of what cannot be such a name.
#[must_use]
pub fn attachment_of_unique(unique: &str, node: &str) -> Option<String> {
    if let Some((driver, handle)) = unique.strip_prefix(CSI_PREFIX).and_then(|name| name.split_once('^')) {
        return Some(attachment_name(driver, handle, node));
    }
    flex_of_unique_name(unique).map(|_| flex_attachment_name(unique, node))
}

/// A volume that may have to be attached to a node.
#[derive(Clone, Debug)]
pub struct Attachable<'a> {
    /// Who does it.
    pub attacher: &'a str,
    /// How nodes report it.
    pub unique: String,
    /// The handle; none of a FlexVolume.
    pub handle: Option<&'a str>,
}

impl<'a> Attachable<'a> {
    /// What a PersistentVolume is; none if it is never attached.
    #[must_use]
    pub fn of(volume: &'a PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        if let Some(csi) = &spec.csi {
            let unique = csi_unique_name(&csi.driver, &csi.volume_handle);
            return Some(Self { attacher: &csi.driver, unique, handle: Some(&csi.volume_handle) });
        }
        let unique = flex_unique_name(&spec.flex_volume.as_ref()?.driver, volume.name());
        Some(Self { attacher: FLEX_ATTACHER, unique, handle: None })
    }

    /// Name of its VolumeAttachment to a node.
    #[must_use]
    pub fn attachment(&self, node: &str) -> String {
        match self.handle {
            Some(handle) => attachment_name(self.attacher, handle, node),
            None => flex_attachment_name(&self.unique, node),
        }
    }
}

/// Whether a StorageClass serves claims that name none, by its annotations: today's key or the older one
/// (pkg/apis/storage/v1/util, `IsDefaultAnnotation`).
#[must_use]
pub fn is_default_class<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> bool {
    DEFAULT_CLASSES.iter().any(|key| annotation(key) == Some("true"))
}

const DEFAULT_CLASSES: [&str; 2] = [DEFAULT_CLASS, "storageclass.beta.kubernetes.io/is-default-class"];

/// What a claim's storage class is called; empty for none (`component-helpers/storage/volume`, `GetPersistentVolumeClaimClass`).
#[must_use]
pub fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let field = || claim.spec.as_ref()?.storage_class_name.as_deref();
    claim.annotation(CLASS_ANNOTATION).or_else(field).unwrap_or_default()
}

/// How much a claim asks for.
#[must_use]
pub fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref());
    requests.and_then(|r| r.get("storage")).and_then(|q| Quantity::try_from(q).ok()).unwrap_or_default()
}

/// Annotation of a claim: its volume is to be made at this node, which the scheduler has chosen for the first pod that uses it.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const CSI_PREFIX: &str = "kubernetes.io/csi/";
const FLEX_PREFIX: &str = "flexvolume-";
/// The attacher of all FlexVolumes.
pub const FLEX_ATTACHER: &str = "flexvolume.carrack.io";
/// Annotation of PersistentVolumes: whether their FlexVolume driver attaches, as it says. Of pods: which drivers of
/// FlexVolumes that they bring themselves do, with commas between.
pub const FLEX_ATTACHES: &str = "flexvolume.carrack.io/attach";
/// Annotation of VolumeAttachments: how nodes report the volume.
pub const UNIQUE_NAME: &str = "carrack.io/volume";
/// Annotation of Nodes: who may have each volume of `volumesInUse`, as [`Users`] in JSON. A node names a user before it mounts a
/// volume for one of its pods, and until nothing of that is left.
pub const VOLUME_USERS: &str = "carrack.io/volume-users";
/// Annotation of VolumeAttachments: the UIDs, with commas between, of users that had the volume on its node, of which nothing
/// writes there any more nor ever will, for certain.
pub const DEAD_USERS: &str = "carrack.io/dead-users";
/// UIDs of those that may have a volume, by its unique name: see [`user_of`].
pub type Users = BTreeMap<String, BTreeSet<String>>;

/// As whom a pod has its volumes: as its controller, which is still known when somebody has removed the pod; as itself where it
/// has none.
#[must_use]
pub fn user_of(pod: &Pod) -> &str {
    pod.controller_uid().unwrap_or(pod.uid())
}
/// In an attachment's metadata: the device, for the node's `volumesAttached`.
pub const DEVICE_PATH: &str = "devicePath";

/// What a node says of who has its volumes, by its annotation [`VOLUME_USERS`]; none of one that says nothing, or nothing that can
/// be read.
#[must_use]
pub fn users(annotation: Option<&str>) -> Option<Users> {
    serde_json::from_str(annotation?).ok()
}

/// Who may have one volume, by what its node says in [`VOLUME_USERS`]: nobody where nothing is said.
#[must_use]
pub fn users_of(annotation: Option<&str>, unique: &str) -> BTreeSet<String> {
    users(annotation).and_then(|mut all| all.remove(unique)).unwrap_or_default()
}

/// The annotation [`VOLUME_USERS`] that says this; none where nobody has any volume.
#[must_use]
pub fn users_text(all: &Users) -> Option<String> {
    // Maps of strings: this cannot fail.
    (!all.is_empty()).then(|| serde_json::to_string(all).unwrap_or_default())
}

/// The users that an annotation [`DEAD_USERS`] names.
pub fn dead_users(annotation: Option<&str>) -> impl Iterator<Item = &str> {
    annotation.into_iter().flat_map(|list| list.split(',')).filter(|uid| !uid.is_empty())
}

/// Whether a pod's annotation [`FLEX_ATTACHES`] names a driver.
#[must_use]
pub fn lists_driver(list: &str, driver: &str) -> bool {
    list.split(',').any(|one| one == driver)
}

/// SHA-256 in hexadecimal digits.
#[must_use]
pub fn digest(text: &str) -> String {
    let mut out = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing into a string cannot fail.
        write!(out, "{byte:02x}").unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_others_derive_them() {
        assert_eq!(csi_unique_name("d.example", "h"), "kubernetes.io/csi/d.example^h");
        let flex = flex_unique_name("v/d", "pv");
        assert_eq!((flex.as_str(), flex_of_unique_name(&flex)), ("flexvolume-v/d/pv", Some(("v/d", "pv"))));
        assert_eq!(flex_of_unique_name("kubernetes.io/csi/d.example^h"), None);
        assert!(lists_driver("v/d,v/e", "v/e") && !lists_driver("v/d,v/e", "v") && !lists_driver("", "v/d"));
        let text = r#"{"kubernetes.io/csi/d^h":["a","b"]}"#;
        let said = users(Some(text)).expect("what a node says");
        assert_eq!(said["kubernetes.io/csi/d^h"], BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert_eq!(users_of(Some(text), "kubernetes.io/csi/d^h"), said["kubernetes.io/csi/d^h"]);
        assert_eq!((users_of(Some(text), "d^h"), users_of(None, "d^h")), (BTreeSet::new(), BTreeSet::new()));
        assert_eq!((users_text(&said).as_deref(), users_text(&Users::new())), (Some(text), None));
        assert_eq!((users(None), users(Some("")), users(Some(r#"["a"]"#))), (None, None, None));
        assert_eq!(dead_users(Some("a,,b")).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(dead_users(None).count(), 0);
        // printf '%s' hdn | sha256sum
        let digest = "9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d";
        assert_eq!(attachment_name("d", "h", "n"), format!("csi-{digest}"));
    }

    #[test]
    fn what_a_node_reports_leads_to_its_attachment() {
        let check =
            |unique: &str, name: Option<String>| assert_eq!(attachment_of_unique(unique, "n"), name, "{unique}");
        check(&csi_unique_name("d", "h"), Some(attachment_name("d", "h", "n")));
        check(&csi_unique_name("d", "h^1/2"), Some(attachment_name("d", "h^1/2", "n")));
        let flex = flex_unique_name("v/d", "pv");
        check(&flex, Some(flex_attachment_name(&flex, "n")));
        check("kubernetes.io/csi/d", None);
        check("kubernetes.io/nfs/h", None);
    }
}
