//! Volumes: what a pod or a PersistentVolume says about where one comes from.

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::{self, Demand, Row, check};
use super::{limits, names, pod_certificates, storage};
use crate::error::FieldError;

/// Fields of a volume or of a PersistentVolume's spec that are sources, in the order in which the first counts.
const SOURCES: [&str; 31] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "projected",
    "csi",
    "ephemeral",
    "image",
];

const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
const CACHING_MODES: &[&str] = &["None", "ReadOnly", "ReadWrite"];
const AZURE_KINDS: &[&str] = &["Dedicated", "Managed", "Shared"];
const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
const KEY_TYPES: &[&str] = &["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
/// Longest time for which tokens are asked for, in seconds.
const MAX_TOKEN_S: i64 = 1 << 32;

/// What holds of every source, be it of a pod or of a PersistentVolume.
const EVERYWHERE: &[Row] = &[
    ("hostPath.path", Demand::Required),
    ("hostPath.path", Demand::NoBacksteps),
    ("hostPath.type", Demand::OneOf(HOST_PATH_TYPES)),
    ("gcePersistentDisk.pdName", Demand::Required),
    ("gcePersistentDisk.partition", Demand::Between(0, 255)),
    ("awsElasticBlockStore.volumeID", Demand::Required),
    ("awsElasticBlockStore.partition", Demand::Between(0, 255)),
    ("nfs.server", Demand::Required),
    ("nfs.path", Demand::Required),
    ("nfs.path", Demand::Absolute),
    ("iscsi.targetPortal", Demand::Required),
    ("iscsi.iqn", Demand::Required),
    ("iscsi.iqn", Demand::Form(iscsi_name)),
    ("iscsi.initiatorName", Demand::Form(iscsi_name)),
    ("iscsi.lun", Demand::Between(0, 255)),
    ("glusterfs.endpoints", Demand::Required),
    ("glusterfs.path", Demand::Required),
    ("rbd.monitors", Demand::Required),
    ("rbd.image", Demand::Required),
    ("cinder.volumeID", Demand::Required),
    ("cephfs.monitors", Demand::Required),
    ("quobyte.registry", Demand::Needed("must be a host:port pair or multiple pairs separated by commas")),
    ("quobyte.volume", Demand::Required),
    ("flexVolume.driver", Demand::Required),
    ("azureFile.secretName", Demand::Required),
    ("azureFile.shareName", Demand::Required),
    ("vsphereVolume.volumePath", Demand::Required),
    ("photonPersistentDisk.pdID", Demand::Required),
    ("portworxVolume.volumeID", Demand::Required),
    ("azureDisk.diskName", Demand::Required),
    ("azureDisk.diskURI", Demand::Required),
    ("azureDisk.cachingMode", Demand::OneOf(CACHING_MODES)),
    ("azureDisk.kind", Demand::OneOf(AZURE_KINDS)),
    ("scaleIO.gateway", Demand::Required),
    ("scaleIO.system", Demand::Required),
    ("scaleIO.volumeName", Demand::Required),
    ("local.path", Demand::Required),
    ("local.path", Demand::NoBacksteps),
    ("storageos.volumeName", Demand::Required),
    ("storageos.volumeName", Demand::Form(names::dns1123_label)),
    ("csi.driver", Demand::Required),
    ("csi.driver", Demand::Form(names::csi_driver)),
];

/// What holds of the sources of a pod besides.
const OF_PODS: &[Row] = &[
    ("gitRepo.repository", Demand::Required),
    ("gitRepo.directory", Demand::Relative),
    ("secret.secretName", Demand::Required),
    ("secret.defaultMode", Demand::Mode),
    ("secret.items[].key", Demand::Required),
    ("secret.items[].path", Demand::Required),
    ("secret.items[].path", Demand::NotReserved),
    ("secret.items[].mode", Demand::Mode),
    ("configMap.name", Demand::Required),
    ("configMap.defaultMode", Demand::Mode),
    ("configMap.items[].key", Demand::Required),
    ("configMap.items[].path", Demand::Required),
    ("configMap.items[].path", Demand::NotReserved),
    ("configMap.items[].mode", Demand::Mode),
    ("persistentVolumeClaim.claimName", Demand::Required),
    ("csi.nodePublishSecretRef.name", Demand::Required),
    ("csi.nodePublishSecretRef.name", Demand::Form(names::dns1123_subdomain)),
    ("image.pullPolicy", Demand::OneOf(PULL_POLICIES)),
    ("downwardAPI.defaultMode", Demand::Mode),
    ("projected.defaultMode", Demand::Mode),
    ("projected.sources[].secret.name", Demand::Required),
    ("projected.sources[].secret.items[].key", Demand::Required),
    ("projected.sources[].secret.items[].path", Demand::Required),
    ("projected.sources[].secret.items[].path", Demand::NotReserved),
    ("projected.sources[].secret.items[].mode", Demand::Mode),
    ("projected.sources[].configMap.name", Demand::Required),
    ("projected.sources[].configMap.items[].key", Demand::Required),
    ("projected.sources[].configMap.items[].path", Demand::Required),
    ("projected.sources[].configMap.items[].path", Demand::NotReserved),
    ("projected.sources[].configMap.items[].mode", Demand::Mode),
    ("projected.sources[].serviceAccountToken.path", Demand::Required),
    ("projected.sources[].serviceAccountToken.path", Demand::NotReserved),
    (
        "projected.sources[].serviceAccountToken.expirationSeconds",
        Demand::AtLeast(600, "may not specify a duration less than 10 minutes"),
    ),
    ("projected.sources[].clusterTrustBundle.path", Demand::Required),
    ("projected.sources[].clusterTrustBundle.path", Demand::NotReserved),
    ("projected.sources[].podCertificate.credentialBundlePath", Demand::NotReserved),
    ("projected.sources[].podCertificate.keyPath", Demand::NotReserved),
    ("projected.sources[].podCertificate.certificateChainPath", Demand::NotReserved),
    ("ephemeral.volumeClaimTemplate", Demand::Required),
];

/// What holds of the sources of a PersistentVolume besides.
const OF_VOLUMES: &[Row] = &[
    ("csi.volumeHandle", Demand::Required),
    ("csi.controllerPublishSecretRef.name", Demand::Required),
    ("csi.controllerPublishSecretRef.namespace", Demand::Required),
    ("csi.controllerExpandSecretRef.name", Demand::Required),
    ("csi.controllerExpandSecretRef.namespace", Demand::Required),
    ("csi.nodePublishSecretRef.name", Demand::Required),
    ("csi.nodePublishSecretRef.namespace", Demand::Required),
    ("csi.nodeExpandSecretRef.name", Demand::Required),
    ("csi.nodeExpandSecretRef.namespace", Demand::Required),
    ("iscsi.secretRef.name", Demand::Required),
];

fn iscsi_name(text: &str) -> names::Problem {
    const PREFIXES: [&str; 3] = ["iqn", "eui", "naa"];
    (!PREFIXES.iter().any(|prefix| text.starts_with(prefix)))
        .then(|| "must be valid format starting with iqn, eui, or naa".to_owned())
}

/// Checks the volumes of a pod and gives those that can be mounted, by name.
pub(super) fn of_pod<'a>(spec: &Place<'a>, pod_name: &str, errors: &mut Errors) -> Vec<(&'a str, &'a Value)> {
    let (mut good, mut taken) = (Vec::new(), BTreeSet::new());
    for volume in spec.items("volumes") {
        let before = errors.len();
        sources(&volume, &[EVERYWHERE, OF_PODS], errors);
        semantics(&volume, pod_name, errors);
        if let Some(name) = volume.needs_text("name", errors) {
            volume.has_form("name", names::dns1123_label, errors);
            if taken.contains(name) {
                errors.push(FieldError::duplicate(volume.path_of("name"), name));
            }
            if errors.len() == before {
                taken.insert(name);
                good.push((name, volume.value));
            }
        }
    }
    good
}

/// Checks the source of a PersistentVolume's spec.
pub(super) fn of_volume(spec: &Place<'_>, errors: &mut Errors) {
    sources(spec, &[EVERYWHERE, OF_VOLUMES], errors);
}

/// Whether a field is one in which a PersistentVolume says where it comes from.
pub(super) fn is_source(field: &str) -> bool {
    SOURCES.contains(&field)
}

fn sources(place: &Place<'_>, tables: &[&[Row]], errors: &mut Errors) {
    let mut first = None;
    for kind in SOURCES.iter().filter(|kind| place.value.get(**kind).is_some_and(|value| !value.is_null())) {
        if first.is_some() {
            errors.push(FieldError::forbidden(place.path_of(kind), "may not specify more than 1 volume type"));
        } else {
            first = Some(*kind);
        }
    }
    let Some(kind) = first else {
        errors.push(FieldError::required(place.path.clone(), "must specify a volume type"));
        return;
    };
    for table in tables {
        let rows: Vec<Row> = table
            .iter()
            .filter(|(path, _)| path.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.')))
            .copied()
            .collect();
        check(place, &rows, errors);
    }
    if let Some(iscsi) = place.some("iscsi")
        && (iscsi.flag("chapAuthDiscovery") || iscsi.flag("chapAuthSession"))
        && iscsi.some("secretRef").is_none()
    {
        errors.push(FieldError::required(iscsi.path_of("secretRef"), ""));
    }
    if let Some(fc) = place.some("fc") {
        fibre_channel(&fc, errors);
    }
    let flex = place.field("flexVolume");
    for (key, _) in flex.entries("options").filter(|(key, _)| is_reserved(key)) {
        let path = format!("{}[{key}]", flex.path_of("options"));
        errors.push(FieldError::invalid(path, key.as_str(), "kubernetes.io and k8s.io namespaces are reserved"));
    }
}

/// Whether an option of a FlexVolume is the system's own to give: what a driver is told of the pod, its service account and
/// secrets is called so. Upstream reference: `validateFlexVolumeSource` in pkg/apis/core/validation.
fn is_reserved(key: &str) -> bool {
    let namespace = key.split_once('/').map_or(key, |(namespace, _)| namespace);
    let namespace = format!(".{}", namespace.to_lowercase());
    [".kubernetes.io", ".k8s.io"].iter().any(|reserved| namespace.ends_with(reserved))
}

fn fibre_channel(fc: &Place<'_>, errors: &mut Errors) {
    let (targets, wwids) = (fc.texts("targetWWNs"), fc.texts("wwids"));
    match (targets.is_empty(), wwids.is_empty()) {
        (true, true) => errors.push(FieldError::required(
            fc.path_of("targetWWNs"),
            "must specify either targetWWNs or wwids, but not both",
        )),
        (false, false) => fc.invalid("targetWWNs", "targetWWNs and wwids can not be specified simultaneously", errors),
        (false, true) if fc.some("lun").is_none() => {
            errors.push(FieldError::required(fc.path_of("lun"), "lun is required if targetWWNs is specified"));
        }
        (false, true) => check(fc, &[("lun", Demand::Between(0, 255))], errors),
        (true, false) => {}
    }
}

/// What no row can say.
fn semantics(volume: &Place<'_>, pod_name: &str, errors: &mut Errors) {
    if let Some(limit) = volume.at(&["emptyDir"]).some("sizeLimit")
        && demand::quantity(limit.value).is_some_and(|amount| amount.is_negative())
    {
        errors.push(FieldError::forbidden(limit.path, "SizeLimit field must be a valid resource quantity"));
    }
    if let Some(source) = volume.some("downwardAPI") {
        for file in source.items("items") {
            downward_file(&file, errors);
        }
    }
    if let Some(source) = volume.some("projected") {
        projected(&source, errors);
    }
    if let Some(template) = volume.at(&["ephemeral"]).some("volumeClaimTemplate") {
        let metadata = template.field("metadata");
        check(&metadata, &[("labels", Demand::Labels)], errors);
        for (field, value) in metadata.map().into_iter().flatten() {
            let set = !matches!(field.as_str(), "labels" | "annotations" | "creationTimestamp") && !value.is_null();
            if set {
                errors.push(FieldError::forbidden(metadata.path_of(field), "cannot be set"));
            }
        }
        storage::claim(&template.field("spec"), errors);
        let name = format!("{pod_name}-{}", volume.text("name"));
        if !pod_name.is_empty()
            && let Some(problem) = names::dns1123_subdomain(&name)
        {
            let text = format!("PVC name \"{name}\": {problem}");
            errors.push(FieldError::invalid(volume.path_of("name"), volume.text("name"), text));
        }
    }
}

/// Fields of a pod that a file may show.
const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

fn downward_file(file: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[("path", Demand::Required), ("path", Demand::NotReserved), ("mode", Demand::Mode)];
    check(file, ROWS, errors);
    match (file.some("fieldRef"), file.some("resourceFieldRef")) {
        (Some(_), Some(_)) => errors.push(FieldError::invalid(
            file.path.clone(),
            "resource",
            "fieldRef and resourceFieldRef can not be specified simultaneously",
        )),
        (Some(reference), None) => super::environment::field_reference(&reference, FILE_FIELDS, errors),
        (None, Some(reference)) => super::environment::resource_reference(&reference, true, errors),
        (None, None) => {
            errors.push(FieldError::required(file.path.clone(), "one of fieldRef and resourceFieldRef is required"))
        }
    }
}

fn projected(source: &Place<'_>, errors: &mut Errors) {
    let mut paths: BTreeSet<&str> = BTreeSet::new();
    for projection in source.items("sources") {
        let count = projection.map().map_or(0, |map| map.values().filter(|v| !v.is_null()).count());
        if count != 1 {
            let text = if count == 0 {
                errors.push(FieldError::required(projection.path.clone(), "must specify a projection type"));
                continue;
            } else {
                "may not specify more than 1 volume type per source"
            };
            errors.push(FieldError::forbidden(projection.path.clone(), text));
        }
        for file in projection.field("downwardAPI").items("items") {
            downward_file(&file, errors);
        }
        let token = projection.field("serviceAccountToken");
        if token.number("expirationSeconds").is_some_and(|seconds| seconds > MAX_TOKEN_S) {
            token.invalid("expirationSeconds", "may not specify a duration larger than 2^32 seconds", errors);
        }
        if let Some(bundles) = projection.some("clusterTrustBundle") {
            trust_bundles(&bundles, errors);
        }
        if let Some(certificate) = projection.some("podCertificate") {
            pod_certificate(&certificate, errors);
        }
        let listed = ["secret", "configMap", "downwardAPI"]
            .into_iter()
            .flat_map(|kind| projection.field(kind).items("items").collect::<Vec<_>>())
            .map(|item| item.text("path"));
        let own = ["serviceAccountToken", "clusterTrustBundle"].map(|kind| projection.field(kind).text("path"));
        let certificate = projection.field("podCertificate");
        let of_certificate =
            ["credentialBundlePath", "keyPath", "certificateChainPath"].map(|field| certificate.text(field));
        for path in listed.chain(own).chain(of_certificate).filter(|path| !path.is_empty()) {
            if !paths.insert(path) {
                errors.push(FieldError::invalid(source.path.clone(), path, "conflicting duplicate paths"));
            }
        }
    }
}

/// Of which bundles of authorities a file is made: of the one that has this name, or of those of a signer.
fn trust_bundles(source: &Place<'_>, errors: &mut Errors) {
    match (source.some("name"), source.some("signerName")) {
        (Some(_), Some(_)) => {
            let text = "only one of name and signerName may be used";
            errors.push(FieldError::invalid(source.path.clone(), source.value.clone(), text));
        }
        (Some(_), None) => {
            bundle_name(source, errors);
            if source.some("labelSelector").is_some() {
                source.invalid("labelSelector", "labelSelector must be unset if name is specified", errors);
            }
        }
        (None, Some(_)) => {
            const ROWS: &[Row] =
                &[("signerName", Demand::Needed("must be a valid signer name")), ("labelSelector", Demand::Selector)];
            check(source, ROWS, errors);
            limits::signer_name(source, source.text("signerName"), errors);
        }
        (None, None) => {
            errors.push(FieldError::required(source.path.clone(), "either name or signerName must be specified"));
        }
    }
}

/// A bundle's name begins with its signer's, if it has one.
fn bundle_name(source: &Place<'_>, errors: &mut Errors) {
    check(source, &[("name", Demand::Needed("must be a valid object name"))], errors);
    let name = source.text("name");
    let problem = match name.split(':').count() {
        1 | 3 => name.split(':').find_map(names::dns1123_subdomain),
        _ => Some("ClusterTrustBundle without signer name must not have \":\" in its name".to_owned()),
    };
    if let Some(problem) = problem {
        source.invalid("name", format!("not a valid clustertrustbundlename: {problem}"), errors);
    }
}

/// What a pod's certificate is to be like, and where it goes.
fn pod_certificate(source: &Place<'_>, errors: &mut Errors) {
    const PATHS: [&str; 3] = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    let signer = source.text("signerName");
    limits::signer_name(source, signer, errors);
    source.one_of("keyType", KEY_TYPES, errors);
    if let Some(seconds) = source.number("maxExpirationSeconds") {
        let may_s = pod_certificates::life_s(signer);
        let (least_s, most_s) = (may_s.start(), may_s.end());
        if seconds < *least_s {
            let text = format!("if provided, maxExpirationSeconds must be >= {least_s}");
            source.invalid("maxExpirationSeconds", text, errors);
        } else if seconds > *most_s {
            let text = format!("if provided, maxExpirationSeconds must be <= {most_s}");
            source.invalid("maxExpirationSeconds", text, errors);
        }
    }
    if PATHS.iter().all(|path| source.text(path).is_empty()) {
        let text = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.push(FieldError::required(source.path.clone(), text));
    }
}
