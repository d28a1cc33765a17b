//! Volumes that have grown: the node lets device and file system follow, and says so in the claim's status.
//!
//! ```text
//!   volume's capacity > claim's ─▶ the driver expands it on the node ─▶ claim's status: capacity, no condition any more
//! ```
//!
//! A volume is looked at as long as a pod has it mounted; one that is nowhere mounted follows when it is. Nothing here can
//! take a volume away: what cannot be read, or fails, is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, ContentType, EventRecord, Time};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::sources::SourceKey;
use super::{Call, Fx, KubeletCore, Owner, PodOp};
use crate::effects::{Op, OpId, Outcome};
use crate::planted::Planted;
use crate::runtime::Uid;
use crate::volumes::Expanding;

/// Between tries, at first and at most.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(120);

/// A claim, by namespace and name.
pub(super) type ClaimName = (String, String);

/// What is under way for claims whose volumes have grown.
#[derive(Debug, Default)]
pub(super) struct Growths(BTreeMap<ClaimName, Growth>);

#[derive(Debug, Default)]
struct Growth {
    op: Option<OpId>,
    call: Option<CallId>,
    retry_at: Time,
    failures: u32,
}

impl KubeletCore {
    /// Lets the volumes of a pod follow that have grown.
    pub(super) fn start_growth(&mut self, now: Time, uid: &Uid, grown: Vec<Expanding>, fx: &mut Fx) {
        if grown.is_empty() {
            return;
        }
        // What has not been tried again for so long has followed, or nobody here has it any more.
        let stays = |g: &Growth| g.op.is_some() || g.call.is_some() || g.retry_at + LONGEST > now;
        self.growths.0.retain(|_, g| stays(g));
        for expanding in grown {
            if expanding.published.id.as_ref().is_some_and(|id| self.volumes.is_busy(id)) {
                continue;
            }
            let growth = self.growths.0.entry(expanding.claim_name()).or_default();
            if growth.op.is_some() || growth.call.is_some() {
                continue;
            }
            if growth.retry_at > now {
                let at = growth.retry_at;
                self.wake_pod(at, uid);
                continue;
            }
            let (claim, name) = (expanding.claim_name(), expanding.name.clone());
            let owner = Owner::Pod(uid.clone(), PodOp::Grow(Box::new(expanding.clone())));
            let op = self.op(owner, Op::ExpandVolume(Box::new(expanding)), fx);
            // The volume is busy with it: its pod does not go before the outcome is known.
            if self.planted != Some(Planted::GrowthAside) {
                self.volumes.grows(uid, &name, op);
            }
            self.growths.0.entry(claim).or_default().op = Some(op);
        }
    }

    fn growth_failed(&mut self, now: Time, claim: ClaimName, uid: &Uid) {
        let growth = self.growths.0.entry(claim).or_default();
        growth.failures += 1;
        growth.retry_at = now + FIRST.saturating_mul(1 << growth.failures.min(8)).min(LONGEST);
        let at = growth.retry_at;
        self.wake_pod(at, uid);
    }

    /// The driver has let a volume follow, or not.
    pub(super) fn growth_done(
        &mut self,
        now: Time,
        uid: &Uid,
        pod: &Pod,
        (id, e): (OpId, &Expanding),
        outcome: &Outcome,
        fx: &mut Fx,
    ) {
        self.volumes.done(now, uid, &e.name, id, outcome);
        if let Some(of_node) = &e.published.id {
            self.volume_rests(of_node);
        }
        if self.planted == Some(Planted::GrowthUnheard) && pod.is_deleting() {
            return;
        }
        let name = e.claim_name();
        self.growths.0.entry(name.clone()).or_default().op = None;
        let volume = &e.published.origin.spec_name;
        if let Err(error) = outcome
            && self.planted != Some(Planted::GrowthUnproved)
        {
            let message = format!("NodeExpandVolume failed for volume {volume:?} : {error}");
            self.event(now, EventRecord::warning(pod, "VolumeResizeFailed", message), fx);
            self.growth_failed(now, name, uid);
            return;
        }
        let conditions = e.claim.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let left: Vec<Value> = conditions
            .filter(|c| !matches!(c.type_.as_str(), "Resizing" | "FileSystemResizePending"))
            .map(|c| json!(c))
            .collect();
        let patch = json!({
            "metadata": {"uid": e.claim.uid(), "resourceVersion": e.claim.metadata.resource_version},
            "status": {"capacity": {"storage": e.capacity.to_string()}, "conditions": left},
        });
        let resource = PersistentVolumeClaim::resource();
        let call = fx.api(ApiRequest::patch(&resource, &name.0, &name.1, "status", ContentType::MergePatch, &patch));
        self.calls.insert(call, Call::Grown(name.clone(), uid.clone()));
        self.growths.0.entry(name).or_default().call = Some(call);
        let message = format!("NodeExpandVolume succeeded for volume {volume:?}");
        self.event(now, EventRecord::normal(pod, "FileSystemResizeSuccessful", message), fx);
    }

    /// The claim has heard of it, or not. In any case it is read anew; if it has not, the driver is asked once more.
    pub(super) fn growth_told(
        &mut self,
        now: Time,
        claim: ClaimName,
        uid: &Uid,
        result: Result<ApiResponse, ApiError>,
    ) {
        self.sources.stale(&SourceKey::Claim { namespace: claim.0.clone(), name: claim.1.clone() });
        match result {
            Ok(_) => {
                // What is known of the claim is older than this; it is not asked for again before it was read.
                let growth = self.growths.0.entry(claim).or_default();
                *growth = Growth { retry_at: now + FIRST, ..Growth::default() };
            }
            Err(error) => {
                tracing::debug!(claim = claim.1, %error, "a claim's new size was not taken");
                if let Some(growth) = self.growths.0.get_mut(&claim) {
                    growth.call = None;
                }
                self.growth_failed(now, claim, uid);
            }
        }
    }
}
