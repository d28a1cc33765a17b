//! Volumes that have grown and whose node has not followed.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_types::quantity::Quantity;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::effects::OpId;

use super::{Actual, Doing, Driver, PayloadSources, Published, Secrets, Volumes, driver};

/// A volume to let follow.
#[derive(Clone, Debug, PartialEq)]
pub struct Expanding {
    /// What the pod calls it.
    pub name: String,
    /// The volume.
    pub published: Published,
    /// Where the pod has it.
    pub path: String,
    /// Its claim, as read.
    pub claim: Arc<PersistentVolumeClaim>,
    /// What it holds now.
    pub capacity: Quantity,
    /// For the driver.
    pub secrets: Secrets,
}

/// Conditions of claims that are about their size.
pub const CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

impl Expanding {
    /// The claim's namespace and name.
    #[must_use]
    pub fn claim_name(&self) -> (String, String) {
        (self.claim.namespace().to_owned(), self.claim.name().to_owned())
    }

    /// How far the claim says that it is, where whoever has enlarged its volume keeps account of that
    /// (`allocatedResourceStatuses`): such a claim can be taken back when it fails.
    #[must_use]
    pub fn stage(&self) -> Option<&str> {
        stage(&self.claim)
    }

    /// What the volume holds, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.capacity.units()).unwrap_or(0)
    }

    /// Whether its claim has been told of it already: by another node.
    #[must_use]
    pub fn is_told(&self) -> bool {
        let told = storage(self.claim.status.as_ref().and_then(|s| s.capacity.as_ref()));
        told.is_some_and(|told| told >= self.capacity)
    }

    /// What its claim was told of last, in bytes.
    #[must_use]
    pub fn from_bytes(&self) -> u64 {
        let told = storage(self.claim.status.as_ref().and_then(|s| s.capacity.as_ref()));
        told.and_then(|told| u64::try_from(told.units()).ok()).unwrap_or(0)
    }
}

type Amounts = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

fn storage(of: Option<&Amounts>) -> Option<Quantity> {
    of.and_then(|c| c.get("storage")).and_then(|q| Quantity::try_from(q).ok())
}

fn stage(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.allocated_resource_statuses.as_ref()?.get("storage").map(String::as_str)
}

/// Whether it is the node's turn. Where account is kept, it says so; a claim that can never be had is left to whoever asked for
/// it (upstream's `runPreCheck`, `pkg/volume/util/operationexecutor/node_expander.go`).
fn is_nodes_turn(claim: &PersistentVolumeClaim) -> bool {
    let allocated = claim.status.as_ref().and_then(|s| s.allocated_resources.as_ref());
    match stage(claim) {
        Some(stage) => matches!(stage, "NodeResizePending" | "NodeResizeInProgress"),
        None => !allocated.is_some_and(|a| a.contains_key("storage")),
    }
}

/// How large a volume is.
struct Sizes {
    claim: Arc<PersistentVolumeClaim>,
    /// What it holds.
    has: Quantity,
    /// What its claim says.
    told: Quantity,
}

impl Sizes {
    /// None where something cannot be read.
    fn of(published: &Published, sources: &dyn PayloadSources) -> Option<Self> {
        let (namespace, name) = published.origin.claim.as_ref()?;
        let claim = sources.claim(namespace, name).ok()??;
        let volume = sources.persistent_volume(&published.origin.spec_name).ok()??;
        let spec = volume.spec.as_ref()?;
        // The record says what is mounted; a claim of that name may be another one by now.
        if spec.claim_ref.as_ref()?.uid.as_deref() != Some(claim.uid()) {
            return None;
        }
        let has = storage(spec.capacity.as_ref())?;
        let told = storage(claim.status.as_ref()?.capacity.as_ref())?;
        Some(Self { claim, has, told })
    }

    /// Whether this node is to let it follow, which has followed so far. The claim of a volume that several nodes have is told by
    /// the first of them that has followed, and the others follow all the same (`pvcAlreadyUpdated` in upstream's
    /// `node_expander.go`).
    fn is_due(&self, followed: Option<Quantity>) -> bool {
        if self.has > self.told {
            return is_nodes_turn(&self.claim);
        }
        followed.is_some_and(|followed| followed < self.has) && stage(&self.claim).is_none()
    }
}

impl Volumes {
    /// Volumes of a pod that have grown. Where something cannot be read, nothing is done.
    #[must_use]
    pub fn grown(&mut self, uid: &str, sources: &dyn PayloadSources) -> Vec<Expanding> {
        let mut grown = Vec::new();
        for (name, v) in self.pods.get_mut(uid).into_iter().flatten() {
            let Some(published) = v.published.as_deref().filter(|_| v.actual == Actual::Mounted && v.op.is_none())
            else {
                continue;
            };
            let origin = &published.origin;
            if origin.read_only || !matches!(origin.driver, Driver::Csi { ephemeral: false, .. } | Driver::Flex { .. })
            {
                continue;
            }
            let Some(sizes) = Sizes::of(published, sources) else { continue };
            // As large as its claim says, it was when it was looked at first.
            let followed = *v.followed.get_or_insert(sizes.told);
            let is_shared = origin.access_modes.iter().any(|mode| mode == "ReadWriteMany");
            if !sizes.is_due(is_shared.then_some(followed)) {
                continue;
            }
            let secret = match &origin.driver {
                Driver::Csi { expand_secret, .. } => expand_secret.as_ref(),
                Driver::Flex { secret, .. } => secret.as_ref(),
                _ => None,
            };
            let Ok(secrets) = driver::secrets(secret, sources) else { continue };
            let (name, path) = (name.clone(), v.path.clone());
            let (published, Sizes { claim, has: capacity, .. }) = (published.clone(), sizes);
            grown.push(Expanding { name, published, path, claim, capacity, secrets });
        }
        grown
    }

    /// A volume has followed, for whichever pod: this node's others have nothing left to do for it.
    pub fn followed(&mut self, e: &Expanding) {
        let of = &e.published.origin;
        let is_it = |p: &Published| p.origin.spec_name == of.spec_name && p.origin.claim == of.claim;
        for v in self.pods.values_mut().flat_map(BTreeMap::values_mut) {
            if v.published.as_deref().is_some_and(is_it) {
                v.followed = Some(e.capacity);
            }
        }
    }

    /// A volume of a pod is let follow under an id: until that has ended ([`Volumes::done`]) it is not taken away either.
    pub fn grows(&mut self, uid: &str, name: &str, op: OpId) {
        if let Some(v) = self.pods.get_mut(uid).and_then(|p| p.get_mut(name)) {
            v.op = Some((op, Doing::Grow));
        }
    }
}
