//! The node's CSINode: which CSI drivers are here, what they call the node, and how many volumes they take.
//!
//! It is written whole from what the drivers said; entries of drivers that are not here any more go when
//! their drivers unregister, as upstream's.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, ApiResponse, CallId, Time};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{Call, Fx, KubeletCore, Wake};
use crate::volumes::CsiNodeInfo;

/// What was asked of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Read,
    Written,
}

/// What is known of the CSINode.
#[derive(Debug, Default)]
pub(super) struct CsiNodeState {
    drivers: BTreeMap<String, CsiNodeInfo>,
    /// As read; `Some(None)` when it is not there.
    seen: Option<Option<CSINode>>,
    call: Option<CallId>,
    retry_at: Time,
    due: bool,
}

impl CsiNodeState {
    pub fn up(&mut self, driver: String, info: CsiNodeInfo) {
        self.drivers.insert(driver, info);
        self.due = true;
    }
    pub fn down(&mut self, driver: &str) {
        self.drivers.remove(driver);
        self.due = true;
    }
}

fn entries(drivers: &BTreeMap<String, CsiNodeInfo>) -> Vec<CSINodeDriver> {
    let entry = |(name, info): (&String, &CsiNodeInfo)| CSINodeDriver {
        name: name.clone(),
        node_id: info.node_id.clone(),
        topology_keys: Some(info.topology.keys().cloned().collect::<Vec<_>>()).filter(|k| !k.is_empty()),
        allocatable: i32::try_from(info.max_volumes)
            .ok()
            .filter(|n| *n > 0)
            .map(|count| VolumeNodeResources { count: Some(count) }),
    };
    drivers.iter().map(entry).collect()
}

impl KubeletCore {
    /// Brings the CSINode up to date.
    pub(super) fn step_csi_node(&mut self, now: Time, fx: &mut Fx) {
        let s = &mut self.csi_node;
        if !s.due || s.call.is_some() {
            return;
        }
        if s.retry_at > now {
            let at = s.retry_at;
            self.wake(at, Wake::CsiNode);
            return;
        }
        // Its owner is the Node, which has to be there first.
        let Some(node) = self.node.seen.clone() else { return };
        let name = &self.config.node_name;
        let s = &mut self.csi_node;
        let (asked, request) = match &s.seen {
            None => (Asked::Read, ApiRequest::get(&CSINode::resource(), "", name)),
            Some(seen) => {
                let wanted = entries(&s.drivers);
                if seen.as_ref().is_some_and(|n| n.spec.drivers == wanted) || (seen.is_none() && wanted.is_empty()) {
                    s.due = false;
                    return;
                }
                let owner = OwnerReference {
                    api_version: "v1".into(),
                    kind: "Node".into(),
                    name: name.clone(),
                    uid: node.uid().to_owned(),
                    ..OwnerReference::default()
                };
                let metadata = ObjectMeta {
                    name: Some(name.clone()),
                    owner_references: Some(vec![owner]),
                    ..ObjectMeta::default()
                };
                let request = match seen {
                    None => ApiRequest::create(&CSINode { metadata, spec: CSINodeSpec { drivers: wanted } }),
                    Some(old) => {
                        let mut new = old.clone();
                        new.spec.drivers = wanted;
                        ApiRequest::update(&new)
                    }
                };
                (Asked::Written, request)
            }
        };
        let call = fx.api(request);
        self.calls.insert(call, Call::CsiNode(asked));
        self.csi_node.call = Some(call);
    }

    pub(super) fn csi_node_answered(&mut self, now: Time, asked: Asked, result: Result<ApiResponse, ApiError>) {
        let s = &mut self.csi_node;
        s.call = None;
        match result.and_then(|r| r.json::<CSINode>()) {
            Ok(node) => s.seen = Some(Some(node)),
            Err(e) if e.is_not_found() && asked == Asked::Read => s.seen = Some(None),
            Err(error) => {
                tracing::warn!(%error, "the CSINode is not up to date");
                s.seen = None;
                s.retry_at = now + Duration::from_secs(1);
                self.wake(now + Duration::from_secs(1), Wake::CsiNode);
            }
        }
    }
}
