//! What the work of a run is, and for how long: as it was asked for, and as a planted bug needs it, or the seed chooses.

use std::time::Duration;

use carrack_engine::Rng;

use super::Options;
use crate::clones::Scene;
use crate::plants::Bug;

impl Options {
    /// What a run is like under a seed: what the work is follows from the planted bug, if there is one, or from the seed in a
    /// swarm.
    pub(crate) fn of_seed(&self, root: &Rng) -> Self {
        let mut own = self.clone();
        let planted = self.plant.map(|plant| plant.bug);
        own.workloads |= own.whole | planted.is_some_and(Bug::is_of_workloads);
        own.gpus |= planted.is_some_and(Bug::is_of_gpus);
        // Bugs of copies show on whole nodes as well, where somebody asks for these.
        let on_nodes = own.asks_for(crate::backups::COPIED);
        let apart = planted.filter(|_| !on_nodes);
        own.clones |= apart.is_some_and(Bug::is_of_clones) || own.copies;
        own.scene = own.scene.or_else(|| apart.and_then(Bug::scene));
        // Nothing else is to keep the machine from starting, or the pod that comes late.
        own.faults &= planted != Some(Bug::CopiesWhatRuns);
        own.copies |= apart.is_some_and(Bug::is_of_copies) || own.scene.is_some_and(Scene::runs);
        if apart.is_some_and(Bug::is_of_copies) {
            let enough = match planted {
                // Until the second pod waits.
                Some(Bug::UnwantedCopies) => 40,
                _ if own.scene.is_some() => 25,
                _ => 45,
            };
            own.safety = own.safety.min(Duration::from_secs(enough));
        }
        // Leaders are looked for where they cost least.
        own.machines &= !planted.is_some_and(|bug| bug.is_of_leaders() || bug.is_of_calls());
        own.machines &= !matches!(planted, Some(Bug::NominationsKept | Bug::LateWords | Bug::MistakenAnswers));
        own.machines &= !matches!(planted, Some(Bug::SnapshotsAtOnce | Bug::ContentForgotten | Bug::UnmountsWhenTold));
        own.machines &= !matches!(planted, Some(Bug::DeafNominees | Bug::StaleProposals | Bug::WordsLost));
        match planted {
            Some(Bug::OneHoldsAll | Bug::RawNames) => own.safety = own.safety.min(Duration::from_secs(40)),
            Some(Bug::DeafNominees | Bug::ForgottenKinds) => own.safety = own.safety.min(Duration::from_secs(60)),
            Some(
                Bug::StaleProposals
                | Bug::GoingUnminded
                | Bug::Unpaced
                | Bug::LaunchersByLabel
                | Bug::WritingWatches
                | Bug::TenantsChooseGpus
                | Bug::OutdatedStarts
                | Bug::UnfilledDisksStart
                | Bug::ClaimsAddUp,
            ) => {
                own.safety = own.safety.min(Duration::from_secs(60));
            }
            Some(Bug::AdoptedUnasked) => own.safety = own.safety.min(Duration::from_secs(90)),
            Some(
                Bug::IllDevicesGiven
                | Bug::PreStartsIgnored
                | Bug::UnwrittenCounts
                | Bug::RefusedCounts
                | Bug::CordonsUnheard
                | Bug::ReleasesUnheard
                | Bug::SilenceIsWell
                | Bug::HastySandboxes
                | Bug::UnreadIsGone
                | Bug::UnknownIsOver
                | Bug::RegistersOnce
                | Bug::BelievedDrivers
                | Bug::SmallVolumes,
            ) => {
                own.machines = false;
                own.safety = own.safety.min(Duration::from_secs(60));
            }
            Some(Bug::ToldAtOnce | Bug::SecretsOverlooked | Bug::FirstPages | Bug::BelievedAnnotations) => {
                own.machines = false;
                own.safety = own.safety.min(Duration::from_secs(20));
            }
            _ => {}
        }
        let is_of_pods = |bug: Bug| {
            let is_of_nodes = bug.is_of_critical() || bug.is_of_pressure();
            bug.is_of_growth() || bug.is_of_resizes() || bug.is_of_starts() || is_of_nodes
        };
        if planted.is_some_and(is_of_pods) {
            own.machines = false;
            own.safety = own.safety.min(Duration::from_secs(60));
        }
        if planted == Some(Bug::ClocksOfAnother) {
            // Long enough for leaders that come back, and lead again.
            own.safety = Duration::from_secs(300);
        }
        if planted == Some(Bug::AbsenceRemembered) {
            // Long enough for an absence, more than its six minutes, and another one.
            own.safety = Duration::from_secs(600);
        }
        if matches!(planted, Some(Bug::TaintedAlive | Bug::EvictedGuests)) {
            own.safety = own.safety.min(Duration::from_secs(60));
        }
        if planted == Some(Bug::SignalsForgotten) {
            own.safety = own.safety.min(Duration::from_secs(20));
        }
        if planted.is_some_and(|bug| bug.is_of_dead_nodes() || bug.is_of_backups()) {
            own.safety = own.safety.min(Duration::from_secs(60));
        }
        if self.swarm && planted.is_none() {
            let kind = root.fork("kind of work").below(8);
            own.machines = kind != 0;
            own.workloads = matches!(kind, 1 | 2);
            own.gpus = matches!(kind, 2 | 3);
            own.clones = kind == 4;
            own.copies = own.clones && root.fork("copies").one_in(2);
            own.whole = kind == 5;
            own.workloads |= own.whole;
            own.gpus |= own.whole && root.fork("gpus beside").one_in(2);
            if !own.machines && own.only.is_none() && root.fork(crate::critical::PART).one_in(4) {
                own.only = Some(vec![crate::critical::PART]);
            }
        }
        own
    }
}
