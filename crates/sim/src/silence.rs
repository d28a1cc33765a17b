//! Container runtimes that do not answer, and what kubelets say of their nodes then.
//!
//! ```text
//!   a listing fails ─ heard ─▶ each write of the Node says that it is not Ready ─▶ a listing works ─ heard ─▶ any of them
//! ```
//!
//! Upstream's kubelet bears with a silent runtime for thirty seconds; this one says at once what it knows. Nothing else follows from
//! it: what ran is unknown then, and not gone.

use std::collections::BTreeSet;

use carrack_engine::ApiRequest;
use carrack_kubelet::{In, Op, OpId};
use serde_json::Value;

use crate::invariants::Breach;
use crate::observer::is_true;

/// The invariant.
pub(crate) const NAME: &str = "silent-runtimes-are-told";

/// What a kubelet has heard of its runtime.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Listings that it has asked for.
    asked: BTreeSet<OpId>,
    /// Why the last of them failed that it has heard of, if it did.
    why: Option<String>,
}

/// Whether a request says that a node is ready.
fn says_ready(request: &ApiRequest) -> bool {
    if !request.path.starts_with("/api/v1/nodes") {
        return false;
    }
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    is_true(&body, "Ready")
}

impl Silence {
    /// A kubelet asks for something.
    pub(crate) fn asks(&mut self, id: OpId, op: &Op) {
        if matches!(op, Op::Relist) {
            self.asked.insert(id);
        }
    }

    /// It observes something.
    pub(crate) fn hears(&mut self, news: &In) {
        if let In::Done(id, outcome) = news
            && self.asked.remove(id)
        {
            self.why = outcome.as_ref().err().map(ToString::to_string);
        }
    }

    /// It sends these requests.
    pub(crate) fn says<'a>(
        &self,
        node: u8,
        mut requests: impl Iterator<Item = &'a ApiRequest>,
        breaches: &mut Vec<Breach>,
    ) {
        if let Some(why) = &self.why
            && requests.any(says_ready)
        {
            let what = format!("node{node}'s kubelet calls it ready, and could not list its runtime: {why}");
            breaches.push(Breach::new(NAME, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::ContentType;
    use carrack_kubelet::runtime::RuntimeSnapshot;
    use carrack_kubelet::{OpError, Outcome, Reply};
    use carrack_types::resource::Kind as _;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;

    fn write(kind: &str, status: &str) -> ApiRequest {
        let patch = json!({"status": {"conditions": [{"type": kind, "status": status}]}});
        ApiRequest::patch(&Node::resource(), "", "node1", "status", ContentType::MergePatch, &patch)
    }

    #[test]
    fn who_knows_of_a_silent_runtime_calls_no_node_ready() {
        let works = || Ok(Reply::Snapshot(RuntimeSnapshot::default()));
        let fails = || Err(OpError::Failed("refused".into()));
        // What was asked for and how that ended, one after the other, and whether the node may be called ready then.
        let cases: [(Vec<(Op, Outcome)>, bool); 5] = [
            (vec![], true),
            (vec![(Op::Relist, works())], true),
            (vec![(Op::Relist, fails())], false),
            (vec![(Op::Relist, fails()), (Op::Relist, works())], true),
            (vec![(Op::ListImages, fails())], true),
        ];
        for (heard, may) in cases {
            let (mut silence, mut ids) = (Silence::default(), 0..);
            for (op, outcome) in heard {
                let id = OpId(ids.next().unwrap_or_default());
                silence.asks(id, &op);
                silence.hears(&In::Done(id, outcome));
            }
            for (request, is_bad) in [(write("Ready", "True"), !may), (write("Ready", "False"), false)] {
                let mut breaches = Vec::new();
                silence.says(1, std::iter::once(&request), &mut breaches);
                assert_eq!(!breaches.is_empty(), is_bad, "{silence:?}");
            }
        }
        assert!(!says_ready(&write("DiskPressure", "True")));
    }
}
