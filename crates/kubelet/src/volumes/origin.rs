//! Where a volume's data comes from, once its claim and its persistent volume were read.
//!
//! An [`Origin`] is everything that mounting, unmounting and detaching need. It is written into the
//! pod's local record before anything is done with it, so that a restarted kubelet reads its disk, not
//! the API: claims and persistent volumes never change where their data is.

use std::collections::BTreeMap;

use carrack_types::placement::term_matches;
use carrack_types::resource::Object as _;
use carrack_types::volume::csi_unique_name;
use carrack_types::well_known::finalizer::CLAIM_PROTECTION;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, Volume,
};
use serde::{Deserialize, Serialize};

use super::{NotReady, PayloadSources};
use crate::spec::pod;

/// A secret by namespace and name.
pub type SecretName = (String, String);

/// Who provides a volume, and what it has to be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Driver {
    /// A directory or block device of this node.
    Local {
        /// Path on the node.
        path: String,
    },
    /// A path of the node, through a persistent volume.
    HostPath {
        /// Path on the node.
        path: String,
        /// As of hostPath volumes.
        path_type: String,
    },
    /// A directory of a file server.
    Nfs {
        /// Server.
        server: String,
        /// Exported path.
        path: String,
    },
    /// A FlexVolume driver.
    Flex {
        /// `vendor/driver`.
        driver: String,
        /// Options of the volume; the kubelet's own do not override them.
        options: BTreeMap<String, String>,
        /// Secret whose entries are handed to the driver.
        secret: Option<SecretName>,
    },
    /// A CSI driver.
    Csi {
        /// Name.
        driver: String,
        /// Volume id; empty for one that lives with its pod.
        handle: String,
        /// Volume context.
        attributes: BTreeMap<String, String>,
        /// Secret for NodeStageVolume.
        stage_secret: Option<SecretName>,
        /// Secret for NodePublishVolume.
        publish_secret: Option<SecretName>,
        /// Secret for NodeExpandVolume.
        expand_secret: Option<SecretName>,
        /// Made and removed with the pod, by NodePublishVolume and NodeUnpublishVolume alone.
        ephemeral: bool,
    },
}

/// A volume that a driver provides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Its provider.
    pub driver: Driver,
    /// Name of the persistent volume, or of the pod's volume when there is none.
    pub spec_name: String,
    /// The claim, as namespace and name.
    pub claim: Option<(String, String)>,
    /// A device for containers rather than a file system.
    pub block: bool,
    /// For reading alone.
    pub read_only: bool,
    /// It is the pod that only reads: the volume itself may be written to. Records from before do not say so.
    #[serde(default)]
    pub reads_by_choice: bool,
    /// File system, when one has to be made. Empty for the driver's default.
    pub fs_type: String,
    /// Options of the mount.
    pub mount_options: Vec<String>,
    /// Access modes of the persistent volume.
    pub access_modes: Vec<String>,
}

impl Origin {
    /// Name of the plugin, with which the pod's directory of it is made.
    #[must_use]
    pub fn plugin(&self) -> String {
        match &self.driver {
            Driver::Local { .. } => "kubernetes.io~local-volume".into(),
            Driver::HostPath { .. } => "kubernetes.io~host-path".into(),
            Driver::Nfs { .. } => "kubernetes.io~nfs".into(),
            Driver::Flex { driver, .. } => driver.replace('/', "~"),
            Driver::Csi { .. } => "kubernetes.io~csi".into(),
        }
    }

    /// Name of the volume on this node, the same for all pods that use it; as in the node's
    /// `volumesInUse`. None for what is made ready for each pod alone.
    #[must_use]
    pub fn unique_name(&self) -> Option<String> {
        match &self.driver {
            Driver::Local { .. } => Some(format!("kubernetes.io/local-volume/{}", self.spec_name)),
            Driver::Flex { driver, .. } => Some(format!("flexvolume-{driver}/{}", self.spec_name)),
            Driver::Csi { driver, handle, ephemeral: false, .. } => Some(csi_unique_name(driver, handle)),
            Driver::Csi { .. } | Driver::HostPath { .. } | Driver::Nfs { .. } => None,
        }
    }

    /// Whether two volumes that nodes report under one name are surely not the same. A FlexVolume that a pod brings itself is
    /// called as its pod calls it, so any two pods' may be: upstream's kubelet hands out what was mounted first. Where another
    /// secret opens it, another's data may be behind it, and whoever copies the rest of a pod's volume has not got that secret.
    #[must_use]
    pub fn is_another(&self, other: &Self) -> bool {
        let (Driver::Flex { options, secret, .. }, Driver::Flex { options: others, secret: anothers, .. }) =
            (&self.driver, &other.driver)
        else {
            return false;
        };
        let claimed = (self.claim.is_some(), other.claim.is_some());
        let differs = (options, secret, &self.fs_type) != (others, anothers, &other.fs_type);
        claimed != (true, true) && (claimed != (false, false) || differs)
    }

    /// As the node as a whole has it. Of a disk that pods may write to it has one mount that can be written to, whoever comes first: who
    /// reads only has a part of his own for that.
    #[must_use]
    pub fn of_node(&self) -> Self {
        let may_be_written = self.access_modes.iter().any(|mode| mode != "ReadOnlyMany");
        let is_disk = match self.driver {
            Driver::Local { .. } => true,
            // It may be for reading alone by itself.
            Driver::Flex { .. } => self.reads_by_choice,
            Driver::HostPath { .. } | Driver::Nfs { .. } | Driver::Csi { .. } => false,
        };
        Self { read_only: self.read_only && !(may_be_written && is_disk), reads_by_choice: false, ..self.clone() }
    }

    /// Whether a control plane may attach it to the node and detach it, and so has to be told that it
    /// is in use.
    #[must_use]
    pub fn attachable(&self) -> bool {
        matches!(self.driver, Driver::Csi { ephemeral: false, .. } | Driver::Flex { .. })
    }
}

/// Whether a name can be part of a path on the node without leading elsewhere.
fn plain(name: &str, what: &str) -> Result<(), NotReady> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(NotReady::Failed(format!("{what} {name:?} is not a name")));
    }
    Ok(())
}

/// The origin of a pod's volume; None for volumes that the kubelet makes itself.
///
/// # Errors
/// [`NotReady`] while something is not read, or when the claim cannot be used.
pub fn resolve(pod: &Pod, volume: &Volume, sources: &dyn PayloadSources) -> Result<Option<Origin>, NotReady> {
    let secret =
        |name: Option<&str>| name.filter(|n| !n.is_empty()).map(|n| (pod.namespace().to_owned(), n.to_owned()));
    let own = |driver, read_only: Option<bool>, fs_type: Option<&String>| Origin {
        driver,
        spec_name: volume.name.clone(),
        claim: None,
        block: false,
        read_only: read_only == Some(true),
        reads_by_choice: false,
        fs_type: fs_type.cloned().unwrap_or_default(),
        mount_options: Vec::new(),
        access_modes: vec!["ReadWriteOnce".into()],
    };
    let origin = if let Some(c) = &volume.persistent_volume_claim {
        let mut origin = of_claim(pod, &c.claim_name, None, sources)?;
        if c.read_only == Some(true) {
            origin.reads_by_choice = !origin.read_only;
            origin.read_only = true;
        }
        origin
    } else if volume.ephemeral.is_some() {
        of_claim(pod, &format!("{}-{}", pod.name(), volume.name), Some(pod), sources)?
    } else if let Some(n) = &volume.nfs {
        own(Driver::Nfs { server: n.server.clone(), path: n.path.clone() }, n.read_only, None)
    } else if let Some(f) = &volume.flex_volume {
        let driver = Driver::Flex {
            driver: f.driver.clone(),
            options: f.options.clone().unwrap_or_default(),
            secret: secret(f.secret_ref.as_ref().map(|s| s.name.as_str())),
        };
        own(driver, f.read_only, f.fs_type.as_ref())
    } else if let Some(c) = &volume.csi {
        own(
            inline_csi(c, secret(c.node_publish_secret_ref.as_ref().map(|s| s.name.as_str()))),
            c.read_only,
            c.fs_type.as_ref(),
        )
    } else {
        return Ok(None);
    };
    plain(&origin.spec_name, "volume")?;
    if let Driver::Flex { driver, .. } = &origin.driver {
        let parts: Vec<&str> = driver.split('/').collect();
        if parts.len() > 2 {
            return Err(NotReady::Failed(format!("FlexVolume driver {driver:?} is not vendor/driver")));
        }
        for part in parts {
            plain(part, "FlexVolume driver")?;
        }
    }
    if let Driver::Csi { driver, .. } = &origin.driver {
        plain(driver, "CSI driver")?;
    }
    check_use(pod, volume, &origin)?;
    Ok(Some(origin))
}

fn inline_csi(c: &CSIVolumeSource, publish_secret: Option<SecretName>) -> Driver {
    Driver::Csi {
        driver: c.driver.clone(),
        handle: String::new(),
        attributes: c.volume_attributes.clone().unwrap_or_default(),
        stage_secret: None,
        publish_secret,
        expand_secret: None,
        ephemeral: true,
    }
}

/// A device cannot be mounted as files, nor files be handed out as a device.
fn check_use(pod: &Pod, volume: &Volume, origin: &Origin) -> Result<(), NotReady> {
    let s = pod::spec(pod);
    let containers = s.containers.iter().chain(s.init_containers.iter().flatten());
    for c in containers {
        let mounted = c.volume_mounts.iter().flatten().any(|m| m.name == volume.name);
        let device = c.volume_devices.iter().flatten().any(|d| d.name == volume.name);
        if mounted && origin.block {
            let text = format!("volume {} has volumeMode Block, but is specified in volumeMounts", volume.name);
            return Err(NotReady::Failed(text));
        }
        if device && !origin.block {
            let text = format!("volume {} has volumeMode Filesystem, but is specified in volumeDevices", volume.name);
            return Err(NotReady::Failed(text));
        }
    }
    Ok(())
}

fn of_claim(pod: &Pod, name: &str, owner: Option<&Pod>, sources: &dyn PayloadSources) -> Result<Origin, NotReady> {
    let failed = |text: String| Err(NotReady::Failed(text));
    let namespace = pod.namespace();
    let Some(claim) = sources.claim(namespace, name)? else {
        return failed(format!("persistentvolumeclaim \"{name}\" not found"));
    };
    if let Some(owner) = owner {
        let owned = claim.metadata.owner_references.iter().flatten();
        if !owned.into_iter().any(|o| o.controller == Some(true) && o.uid == owner.uid()) {
            return failed(format!("PVC {namespace}/{name} was not created for pod {namespace}/{}", owner.name()));
        }
    }
    // While it is protected it stays for as long as a pod of a node has it, as this one does (upstream's `getPVCExtractPV`,
    // `pkg/kubelet/volumemanager/populator`).
    if claim.is_deleting() && !claim.has_finalizer(CLAIM_PROTECTION) {
        return failed(format!("PVC {namespace}/{name} is being deleted"));
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
    let bound = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|v| !v.is_empty());
    let Some(volume_name) = bound.filter(|_| phase == "Bound") else {
        return failed(format!("PVC {namespace}/{name} has non-bound phase ({phase:?}) or no volume"));
    };
    let Some(volume) = sources.persistent_volume(&volume_name)? else {
        return failed(format!("persistentvolume \"{volume_name}\" not found"));
    };
    let claimed = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    let ours = claimed.is_some_and(|r| {
        r.uid.as_deref() == Some(claim.uid())
            && r.name.as_deref() == Some(name)
            && r.namespace.as_deref() == Some(namespace)
    });
    if !ours {
        return failed(format!("PV {volume_name} belongs to another claim than {namespace}/{name}"));
    }
    is_reached(&volume, sources)?;
    of_volume(&claim, &volume)
}

/// A volume that is said to be elsewhere is not looked for here: what lies at its path is another one (upstream's
/// `checkNodeAffinity`, `pkg/volume/util/operationexecutor`).
fn is_reached(volume: &PersistentVolume, sources: &dyn PayloadSources) -> Result<(), NotReady> {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|a| a.required.as_ref()) else { return Ok(()) };
    let Some(node) = sources.node() else { return Err(NotReady::Pending) };
    if required.node_selector_terms.iter().any(|term| term_matches(term, &node)) {
        return Ok(());
    }
    let text =
        format!("Storage node affinity check failed for volume {:?}: no matching NodeSelectorTerms", volume.name());
    Err(NotReady::Failed(text))
}

fn of_volume(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<Origin, NotReady> {
    let name = volume.name().to_owned();
    let Some(spec) = &volume.spec else { return Err(NotReady::Failed(format!("PV {name} has no spec"))) };
    let (driver, read_only, fs_type) = if let Some(l) = &spec.local {
        (Driver::Local { path: l.path.clone() }, false, l.fs_type.clone())
    } else if let Some(h) = &spec.host_path {
        (Driver::HostPath { path: h.path.clone(), path_type: h.type_.clone().unwrap_or_default() }, false, None)
    } else if let Some(n) = &spec.nfs {
        (Driver::Nfs { server: n.server.clone(), path: n.path.clone() }, n.read_only == Some(true), None)
    } else if let Some(f) = &spec.flex_volume {
        let secret = f.secret_ref.as_ref().and_then(|s| {
            let namespace = s.namespace.clone().unwrap_or_else(|| claim.namespace().to_owned());
            Some((namespace, s.name.clone()?))
        });
        let driver = Driver::Flex { driver: f.driver.clone(), options: f.options.clone().unwrap_or_default(), secret };
        (driver, f.read_only == Some(true), f.fs_type.clone())
    } else if let Some(c) = &spec.csi {
        (csi(c), c.read_only == Some(true), c.fs_type.clone())
    } else {
        return Err(NotReady::Failed(format!("PV {name} is of a type that this kubelet does not mount")));
    };
    Ok(Origin {
        driver,
        spec_name: name,
        claim: Some((claim.namespace().to_owned(), claim.name().to_owned())),
        block: spec.volume_mode.as_deref() == Some("Block"),
        read_only,
        reads_by_choice: false,
        fs_type: fs_type.unwrap_or_default(),
        mount_options: spec.mount_options.clone().unwrap_or_default(),
        access_modes: spec.access_modes.clone().unwrap_or_default(),
    })
}

fn csi(c: &CSIPersistentVolumeSource) -> Driver {
    let secret = |s: &Option<k8s_openapi::api::core::v1::SecretReference>| {
        s.as_ref().and_then(|s| Some((s.namespace.clone()?, s.name.clone()?)))
    };
    Driver::Csi {
        driver: c.driver.clone(),
        handle: c.volume_handle.clone(),
        attributes: c.volume_attributes.clone().unwrap_or_default(),
        stage_secret: secret(&c.node_stage_secret_ref),
        publish_secret: secret(&c.node_publish_secret_ref),
        expand_secret: secret(&c.node_expand_secret_ref),
        ephemeral: false,
    }
}
