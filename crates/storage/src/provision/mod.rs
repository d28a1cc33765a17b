//! What has volumes made, enlarged, copied and removed: the work of external-provisioner, external-resizer and
//! external-snapshotter for this driver.
//!
//! ```text
//!   claim, for this node ─▶ its finalizer ─▶ CreateVolume ─▶ PersistentVolume ─▶ finalizer goes
//!   volume, Released, Delete ─▶ DeleteVolume ─▶ PersistentVolume goes
//!   claim larger than its volume ─▶ ControllerExpandVolume ─▶ volume's capacity ─▶ the node does the rest
//! ```
//!
//! The controllers are of the engine's kind and host in its manager, with the barrier; what they have of their own is
//! [`calls`]: questions to the driver. Everything is derived from names: the volume of a claim is called after the claim's
//! UID, so that asking twice makes one volume, and a claim that has the finalizer is the only trace that a volume may be
//! without a PersistentVolume. Behaviour and names follow <https://github.com/kubernetes-csi/external-provisioner> and
//! <https://github.com/kubernetes-csi/external-resizer>.

pub mod calls;
mod claims;
mod reclaim;
mod resize;
pub mod shell;
mod snapshots;
mod sources;
#[cfg(test)]
mod tests;

use carrack_engine::{Manager, Rng};
use k8s_openapi::api::core::v1::PersistentVolume;

use crate::asking::{self, Asking};
use crate::resize::Resize;
use crate::{DRIVER, TOPOLOGY};
use calls::{Call, Calls, Outcome};

/// Finalizer of a volume: its data goes before it does.
const DATA: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Finalizer of a claim: a volume may have been made for it that no PersistentVolume names.
pub const PROVISIONING: &str = "local.carrack.io/provisioning";

/// A call to the driver.
pub type Out = asking::Out<Call>;
/// A call's end.
pub type In = asking::In<Outcome>;

/// What is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    /// A volume is made without a trace of it on its claim.
    Traceless,
    /// A snapshot goes whose content does not show yet.
    Forgets,
    /// A volume is taken however small it is.
    Small,
}

/// The core.
pub type Provisioner = Asking<Call>;

impl Asking<Call> {
    /// The controllers of a node's driver.
    #[must_use]
    pub fn new(node: &str, rng: Rng) -> Self {
        Self::with(node, rng, None, Calls::default())
    }

    /// Plants the bug that a claim's volume is made without a trace of it on the claim. For the simulator, which must find
    /// it.
    #[must_use]
    pub fn with_planted_traceless(node: &str, rng: Rng) -> Self {
        Self::with(node, rng, Some(Planted::Traceless), Calls::default())
    }

    /// Plants the bug that the driver is asked for several calls about the same volume or snapshot at the same time. For the
    /// simulator, which must find it.
    #[must_use]
    pub fn with_planted_calls_at_once(node: &str, rng: Rng) -> Self {
        Self::with(node, rng, None, Calls::with_planted_at_once())
    }

    /// Plants the bug that a snapshot goes whose content does not show yet, and leaves that behind. For the simulator, which
    /// must find it.
    #[must_use]
    pub fn with_planted_forgotten_contents(node: &str, rng: Rng) -> Self {
        Self::with(node, rng, Some(Planted::Forgets), Calls::default())
    }

    /// Plants the bug that a claim gets what was made for it, however small that is. For the simulator, which must find it.
    #[must_use]
    pub fn with_planted_small_volumes(node: &str, rng: Rng) -> Self {
        Self::with(node, rng, Some(Planted::Small), Calls::default())
    }

    fn with(node: &str, rng: Rng, planted: Option<Planted>, calls: Calls) -> Self {
        let forgets = planted == Some(Planted::Forgets);
        let manager = Manager::new("carrack-local", rng)
            .with(claims::Claims::new(node, calls.clone(), planted))
            .with(reclaim::Reclaim::new(node, calls.clone()))
            .with(Resize(resize::Local { node: node.to_owned(), calls: calls.clone() }))
            .with(snapshots::Snapshots::new(node).forgetting(forgets))
            .with(sources::Sources::new(node))
            .with(snapshots::Contents::new(node, calls.clone()));
        Self::around(manager, calls)
    }
}

/// The node that one of the driver's volumes is at.
fn node_of(volume: &PersistentVolume) -> Option<&str> {
    let spec = volume.spec.as_ref().filter(|s| s.csi.as_ref().is_some_and(|c| c.driver == DRIVER))?;
    let terms = &spec.node_affinity.as_ref()?.required.as_ref()?.node_selector_terms;
    let mut expressions = terms.iter().flat_map(|t| t.match_expressions.iter().flatten());
    let here = expressions.find(|e| e.key == TOPOLOGY && e.operator == "In")?;
    match here.values.as_deref() {
        Some([node]) => Some(node),
        _ => None,
    }
}

/// Whether a volume is one of the driver's at a node.
fn is_here(volume: &PersistentVolume, node: &str) -> bool {
    node_of(volume) == Some(node)
}

/// A list of finalizers without one of them, or with it.
fn finalizers(of: Option<&Vec<String>>, name: &str, with: bool) -> Vec<String> {
    let mut list: Vec<String> = of.into_iter().flatten().filter(|f| *f != name).cloned().collect();
    if with {
        list.push(name.to_owned());
    }
    list
}
