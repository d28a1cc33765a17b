//! Volumes that have grown: the node lets device and file system follow, and says so in the claim's status.
//!
//! ```text
//!   volume's capacity > claim's ─▶ the driver expands it on the node ─▶ claim's status: capacity, no condition any more
//!     └─ claim says NodeResizePending ─▶ NodeResizeInProgress ─┘ └─ it failed ─▶ NodeResizeError; NodeResizeInfeasible: no more
//! ```
//!
//! A volume is looked at as long as a pod has it mounted; one that is nowhere mounted follows when it is. One that several nodes
//! have follows at each of them, and the first tells the claim. Nothing here can take a volume away: what cannot be read, or
//! fails, is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, ContentType, EventRecord, Time};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimCondition, Pod};
use serde_json::{Value, json};

use super::sources::SourceKey;
use super::{Call, Fx, KubeletCore, Owner, PodOp};
use crate::effects::{Op, OpError, OpId, Outcome};
use crate::planted::Planted;
use crate::runtime::Uid;
use crate::volumes::{Expanding, SIZE_CONDITIONS};

/// Between tries, at first and at most.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(120);
/// The condition of a claim whose driver failed on the node.
const FAILED: &str = "NodeResizeError";

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

/// What a claim is told of a driver that failed, where account is kept and it has not heard of that. What cannot be had is not
/// tried again, so that whoever asked can ask for less.
fn failure(e: &Expanding, error: &OpError, now: Time) -> Option<Value> {
    let stage = e.stage()?;
    let stage = if matches!(error, OpError::Infeasible(_)) { "NodeResizeInfeasible" } else { stage };
    let message = format!("failed to expand pvc with {error}");
    let conditions: Vec<_> = e.claim.status.iter().flat_map(|s| s.conditions.iter().flatten()).collect();
    let is_told = |c: &&PersistentVolumeClaimCondition| c.type_ == FAILED && c.message.as_deref() == Some(&message);
    if e.stage() == Some(stage) && conditions.iter().any(is_told) {
        return None;
    }
    let mut list: Vec<Value> = conditions.iter().filter(|c| c.type_ != FAILED).map(|c| json!(c)).collect();
    list.push(json!({"type": FAILED, "status": "True", "lastTransitionTime": now.rfc3339(), "message": message}));
    Some(json!({"allocatedResourceStatuses": {"storage": stage}, "conditions": list}))
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
            if expanding.stage() == Some("NodeResizePending") {
                // From then on nobody takes back what is asked for. It is read anew, and goes on from there.
                let told = json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}});
                self.tell_claim(&expanding, uid, told, fx);
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

    /// Writes into the status of a claim, if it is as it was read.
    fn tell_claim(&mut self, e: &Expanding, uid: &Uid, status: Value, fx: &mut Fx) {
        let name = e.claim_name();
        let patch = json!({
            "metadata": {"uid": e.claim.uid(), "resourceVersion": e.claim.metadata.resource_version},
            "status": status,
        });
        let resource = PersistentVolumeClaim::resource();
        let call = fx.api(ApiRequest::patch(&resource, &name.0, &name.1, "status", ContentType::MergePatch, &patch));
        self.calls.insert(call, Call::Grown(name.clone(), uid.clone()));
        self.growths.0.entry(name).or_default().call = Some(call);
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
            if let Some(told) = failure(e, error, now) {
                self.tell_claim(e, uid, told, fx);
            }
            self.growth_failed(now, name, uid);
            return;
        }
        *self.growths.0.entry(name).or_default() = Growth::default();
        self.volumes.followed(e);
        if e.is_told() {
            return;
        }
        let conditions = e.claim.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let left = conditions.filter(|c| !SIZE_CONDITIONS.contains(&c.type_.as_str()));
        let left: Vec<Value> = left.map(|c| json!(c)).collect();
        let mut told = json!({"capacity": {"storage": e.capacity.to_string()}, "conditions": left});
        if e.stage().is_some() {
            told["allocatedResourceStatuses"] = json!({"storage": null});
        }
        self.tell_claim(e, uid, told, fx);
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
                growth.call = None;
                growth.retry_at = growth.retry_at.max(now + FIRST);
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
