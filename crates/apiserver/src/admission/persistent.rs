//! Volumes: claims get the default storage class, and neither a claim that a pod uses nor a volume
//! that is bound nor a class of attributes that either names goes away (their protection finalizers are
//! set here, and removed by controllers).

use carrack_types::volume::is_default_class;
use carrack_types::well_known::finalizer::{CLAIM_PROTECTION, CLASS_PROTECTION, VOLUME_PROTECTION};
use carrack_types::well_known::storage::CLASS_ANNOTATION;
use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{Object, at, child_mut, finalizers, meta, name, set_finalizers};
use crate::status::Status;

const GROUP: &str = "storage.k8s.io";
const CLASSES: &str = "storageclasses";

/// Fills in `spec.storageClassName`.
pub(super) struct DefaultStorageClass;

impl DefaultStorageClass {
    fn concerns(attributes: &Attributes<'_>) -> bool {
        attributes.is("", "persistentvolumeclaims")
            && attributes.operation == Operation::Create
            && at(&attributes.object, &["spec", "storageClassName"]).is_none()
            && meta(&attributes.object, "annotations").and_then(|a| a.get(CLASS_ANNOTATION)).is_none()
    }
}

impl AdmissionPlugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if Self::concerns(attributes) { vec![Needed::all(GROUP, CLASSES, "")] } else { Vec::new() }
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if !Self::concerns(attributes) {
            return Ok(());
        }
        let is_default = |class: &&Object| is_default_class(|key| meta(class, "annotations")?.get(key)?.as_str());
        // Of several defaults the newest counts, then the first by name, as upstream.
        let created = |class: &Object| crate::object::meta_str(class, "creationTimestamp").to_owned();
        let mut defaults: Vec<&Object> = lookup.list(GROUP, CLASSES, "").into_iter().filter(is_default).collect();
        defaults.sort_by(|a, b| created(b).cmp(&created(a)).then_with(|| name(a).cmp(name(b))));
        if let Some(class) = defaults.first() {
            let class = name(class).to_owned();
            child_mut(&mut attributes.object, "spec").insert("storageClassName".to_owned(), class.into());
        }
        Ok(())
    }
}

/// Sets the protection finalizers.
pub(super) struct StorageObjectInUse;

impl AdmissionPlugin for StorageObjectInUse {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if attributes.operation != Operation::Create {
            return Ok(());
        }
        let finalizer = if attributes.is("", "persistentvolumeclaims") {
            CLAIM_PROTECTION
        } else if attributes.is("", "persistentvolumes") {
            VOLUME_PROTECTION
        } else if attributes.is(GROUP, "volumeattributesclasses") {
            CLASS_PROTECTION
        } else {
            return Ok(());
        };
        let mut all = finalizers(&attributes.object);
        if !all.iter().any(|f| f == finalizer) {
            all.push(finalizer.to_owned());
            set_finalizers(&mut attributes.object, all);
        }
        Ok(())
    }
}

/// Lets a claim grow only where its class says that it can.
pub(super) struct ClaimResize;

impl ClaimResize {
    /// The class of a claim that is to grow; empty when it has none.
    fn grows<'a>(attributes: &'a Attributes<'_>) -> Option<&'a str> {
        if !attributes.is("", "persistentvolumeclaims") || attributes.operation != Operation::Update {
            return None;
        }
        let size = |object: &Object| {
            let text = crate::object::str_at(object, &["spec", "resources", "requests", "storage"]);
            carrack_types::quantity::Quantity::parse(text).unwrap_or_default()
        };
        let old = attributes.old?;
        (size(&attributes.object) > size(old)).then(|| crate::object::str_at(old, &["spec", "storageClassName"]))
    }
}

impl AdmissionPlugin for ClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        match Self::grows(attributes) {
            None | Some("") => Vec::new(),
            Some(class) => vec![Needed::one(GROUP, CLASSES, "", class)],
        }
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let Some(class) = Self::grows(attributes) else { return Ok(()) };
        let bound = attributes.old.is_some_and(|old| crate::object::str_at(old, &["status", "phase"]) == "Bound");
        if !bound {
            return Ok(());
        }
        let expands = lookup
            .get(GROUP, CLASSES, "", class)
            .is_some_and(|class| class.get("allowVolumeExpansion") == Some(&Value::Bool(true)));
        if expands {
            return Ok(());
        }
        Err(attributes.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        ))
    }
}
