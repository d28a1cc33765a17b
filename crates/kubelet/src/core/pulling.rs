//! When images are pulled: no more at a time than may be (`serializeImagePulls`, `maxParallelImagePulls`), and for whom it was
//! asked first.
//!
//! ```text
//!  lane ─▶ intent on disk ─▶ (others are pulled) ─▶ pull
//! ```
//!
//! Upstream: `pkg/kubelet/images/puller.go`.

use carrack_engine::Time;

use super::worker::Step;
use super::{Fx, KubeletCore};
use crate::effects::Op;
use crate::planted::Planted;
use crate::runtime::Uid;

impl KubeletCore {
    /// Begins the pulls that may begin. Who is given up while he waits keeps nobody from it: the next one is found anew each time.
    pub(super) fn start_pulls(&mut self, now: Time, fx: &mut Fx) {
        while self.pulls.wanted && self.may_pull() {
            let Some((uid, name)) = self.next_pull() else { return };
            self.pull(now, &uid, &name, fx);
        }
    }

    fn may_pull(&self) -> bool {
        let is_bounded = self.planted != Some(Planted::PullsAtOnce);
        self.config.parallel_pulls.filter(|_| is_bounded).is_none_or(|most| self.pulls.under_way() < most)
    }

    /// The container whose image is pulled next; none while nobody's is, or while that is not on disk.
    fn next_pull(&mut self) -> Option<(Uid, String)> {
        let lanes = self.workers.iter().flat_map(|(uid, w)| w.lanes.iter().map(move |(name, lane)| (uid, name, lane)));
        let waiting: Vec<_> = lanes
            .filter_map(|(uid, name, lane)| match &lane.step {
                Step::MeanPull { image } => Some((lane.pulling_since, uid, name, image)),
                _ => None,
            })
            .collect();
        self.pulls.wanted = !waiting.is_empty();
        let next = waiting.into_iter().filter(|(.., image)| self.pulls.is_meant(image)).min();
        next.map(|(_, uid, name, _)| (uid.clone(), name.clone()))
    }

    fn pull(&mut self, now: Time, uid: &Uid, name: &str, fx: &mut Fx) {
        let Some(mut w) = self.workers.remove(uid) else { return };
        if let Some(lane) = w.lanes.get_mut(name)
            && let Step::MeanPull { image } = lane.step.clone()
        {
            let given = lane.credentials.iter().map(|c| (c.auth.clone(), c.secret.clone()));
            let (auths, secrets): (Vec<_>, Vec<_>) = given.unzip();
            lane.pull_began = now;
            lane.op = self.lane_op(uid, name, Op::PullImage { image: image.clone(), auths }, fx);
            lane.step = Step::PullImage;
            self.pulls.started(lane.op, &image, secrets);
        }
        self.workers.insert(uid.clone(), w);
    }
}
