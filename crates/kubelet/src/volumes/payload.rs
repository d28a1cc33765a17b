//! Contents of the volumes that are made of API objects: configMap, secret, downwardAPI, projected.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_engine::Time;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
    ServiceAccountTokenProjection, Volume,
};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};

use super::NotReady;
use crate::spec::env::{Place, field, resource_field};
use crate::spec::pod::spec;

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Path inside the volume.
    pub path: String,
    /// Contents.
    pub data: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner, where it is not root (tokens of a pod that runs as one user).
    pub owner: Option<u32>,
}

/// A token of a service account. Never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Token {
    /// The token.
    pub token: String,
    /// When it expires, as the API says it.
    pub expires: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a token until {}", self.expires)
    }
}

/// Where the contents come from.
pub trait PayloadSources {
    /// A config map; `Ok(None)` when surely absent.
    ///
    /// # Errors
    /// When it is not known.
    fn config_map(&self, namespace: &str, name: &str) -> Result<Option<Arc<ConfigMap>>, NotReady>;
    /// A secret.
    ///
    /// # Errors
    /// When it is not known.
    fn secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, NotReady>;
    /// A claim; `Ok(None)` when surely absent.
    ///
    /// # Errors
    /// When it is not known.
    fn claim(&self, namespace: &str, name: &str) -> Result<Option<Arc<PersistentVolumeClaim>>, NotReady>;
    /// A persistent volume.
    ///
    /// # Errors
    /// When it is not known.
    fn persistent_volume(&self, name: &str) -> Result<Option<Arc<PersistentVolume>>, NotReady>;
    /// What a CSI driver says about itself.
    ///
    /// # Errors
    /// When it is not known.
    fn csi_driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, NotReady>;
    /// Whether a FlexVolume driver attaches.
    ///
    /// # Errors
    /// When it is not known.
    fn flex_attaches(&self, driver: &str) -> Result<bool, NotReady>;
    /// An attachment, and when it was asked for.
    ///
    /// # Errors
    /// When it is not known.
    fn attachment(&self, name: &str) -> Result<(Option<Arc<VolumeAttachment>>, Time), NotReady>;
    /// The Node of this kubelet; none while it has not been read.
    fn node(&self) -> Option<Arc<Node>>;
    /// A token of the pod's service account.
    ///
    /// # Errors
    /// When there is none yet.
    fn token(&self, pod: &Pod, projection: &ServiceAccountTokenProjection) -> Result<Token, NotReady>;
}

fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    u32::try_from(own.or(default).unwrap_or(0o644)).unwrap_or(0o644) & 0o777
}

/// Picks keys: the listed ones under their paths, or all of them under their own names.
fn pick(
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&Vec<KeyToPath>>,
    default_mode: Option<i32>,
    optional: bool,
    what: &str,
) -> Result<Vec<FileEntry>, NotReady> {
    let Some(items) = items.filter(|i| !i.is_empty()) else {
        return Ok(data
            .iter()
            .map(|(k, v)| FileEntry { path: k.clone(), data: v.clone(), mode: mode(None, default_mode), owner: None })
            .collect());
    };
    let mut out = Vec::new();
    for i in items {
        match data.get(&i.key) {
            Some(v) => out.push(FileEntry {
                path: i.path.clone(),
                data: v.clone(),
                mode: mode(i.mode, default_mode),
                owner: None,
            }),
            None if optional => {}
            None => return Err(NotReady::Failed(format!("{what} key: {}", i.key))),
        }
    }
    Ok(out)
}

fn config_map_files(
    ns: &str,
    name: &str,
    items: Option<&Vec<KeyToPath>>,
    default_mode: Option<i32>,
    optional: bool,
    sources: &dyn PayloadSources,
) -> Result<Vec<FileEntry>, NotReady> {
    match sources.config_map(ns, name)? {
        Some(cm) => {
            let data: BTreeMap<String, Vec<u8>> = cm
                .data
                .iter()
                .flatten()
                .map(|(k, v)| (k.clone(), v.clone().into_bytes()))
                .chain(cm.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())))
                .collect();
            pick(&data, items, default_mode, optional, "configmap references non-existent config")
        }
        None if optional => Ok(Vec::new()),
        None => Err(NotReady::Failed(format!("configmap \"{name}\" not found"))),
    }
}

fn secret_files(
    ns: &str,
    name: &str,
    items: Option<&Vec<KeyToPath>>,
    default_mode: Option<i32>,
    optional: bool,
    sources: &dyn PayloadSources,
) -> Result<Vec<FileEntry>, NotReady> {
    match sources.secret(ns, name)? {
        Some(s) => {
            let data: BTreeMap<String, Vec<u8>> =
                s.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect();
            pick(&data, items, default_mode, optional, "references non-existent secret")
        }
        None if optional => Ok(Vec::new()),
        None => Err(NotReady::Failed(format!("secret \"{name}\" not found"))),
    }
}

fn downward_files(
    pod: &Pod,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
    place: &Place,
) -> Result<Vec<FileEntry>, NotReady> {
    items
        .iter()
        .map(|i| {
            let text = if let Some(f) = &i.field_ref {
                field(pod, place, &f.field_path)
            } else if let Some(r) = &i.resource_field_ref {
                let container = r.container_name.as_deref().unwrap_or_default();
                match crate::spec::pod::container(pod, container) {
                    Some((_, c)) => resource_field(pod, &c, place, r),
                    None => Err(format!("container {container} not found")),
                }
            } else {
                Err(format!("downwardAPI file {} names no source", i.path))
            };
            Ok(FileEntry {
                path: i.path.clone(),
                data: text.map_err(NotReady::Failed)?.into_bytes(),
                mode: mode(i.mode, default_mode),
                owner: None,
            })
        })
        .collect()
}

/// The one user that all containers of the pod run as, if there is one.
fn single_user(pod: &Pod) -> Option<u32> {
    let s = spec(pod);
    let shared = s.security_context.as_ref().and_then(|c| c.run_as_user);
    let mut users = s
        .init_containers
        .iter()
        .flatten()
        .chain(&s.containers)
        .map(|c| c.security_context.as_ref().and_then(|c| c.run_as_user).or(shared));
    let first = users.next()??;
    users.all(|u| u == Some(first)).then(|| u32::try_from(first).ok()).flatten()
}

/// The files of a volume.
///
/// # Errors
/// [`NotReady`] while a source is read, or when one lacks what the volume needs.
pub fn files(
    pod: &Pod,
    volume: &Volume,
    place: &Place,
    sources: &dyn PayloadSources,
) -> Result<Vec<FileEntry>, NotReady> {
    let ns = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut out = if let Some(v) = &volume.config_map {
        config_map_files(ns, &v.name, v.items.as_ref(), v.default_mode, v.optional == Some(true), sources)?
    } else if let Some(v) = &volume.secret {
        let name = v.secret_name.as_deref().unwrap_or_default();
        secret_files(ns, name, v.items.as_ref(), v.default_mode, v.optional == Some(true), sources)?
    } else if let Some(v) = &volume.downward_api {
        downward_files(pod, v.items.as_deref().unwrap_or_default(), v.default_mode, place)?
    } else if let Some(v) = &volume.projected {
        let mut all = Vec::new();
        for source in v.sources.iter().flatten() {
            // An empty file in the place of what somebody trusts would be worse than none.
            for (what, named) in [
                ("clusterTrustBundle", source.cluster_trust_bundle.is_some()),
                ("podCertificate", source.pod_certificate.is_some()),
            ] {
                if named {
                    let text = format!("{what} projection is not enabled in this kubelet");
                    return Err(NotReady::Failed(text));
                }
            }
            if let Some(s) = &source.config_map {
                let optional = s.optional == Some(true);
                all.extend(config_map_files(ns, &s.name, s.items.as_ref(), v.default_mode, optional, sources)?);
            }
            if let Some(s) = &source.secret {
                let optional = s.optional == Some(true);
                all.extend(secret_files(ns, &s.name, s.items.as_ref(), v.default_mode, optional, sources)?);
            }
            if let Some(s) = &source.downward_api {
                all.extend(downward_files(pod, s.items.as_deref().unwrap_or_default(), v.default_mode, place)?);
            }
            if let Some(s) = &source.service_account_token {
                let has_group = spec(pod).security_context.as_ref().is_some_and(|c| c.fs_group.is_some());
                let owner = single_user(pod);
                // A token is for those who run in the pod alone (kubernetes pkg/volume/projected).
                let mode = match (has_group, owner) {
                    (true, _) | (false, Some(_)) => 0o600,
                    _ => mode(None, v.default_mode),
                };
                all.push(FileEntry {
                    path: s.path.clone(),
                    data: sources.token(pod, s)?.token.into_bytes(),
                    mode,
                    owner,
                });
            }
        }
        all
    } else {
        Vec::new()
    };
    for f in &out {
        let escapes =
            f.path.is_empty() || f.path.starts_with('/') || f.path.split('/').any(|p| p == ".." || p.is_empty());
        if escapes || f.path.starts_with("..") {
            return Err(NotReady::Failed(format!("path {:?} must stay inside the volume", f.path)));
        }
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(out)
}
