//! The work of runs with a planted bug that shows in one part of it alone.

use std::time::Duration;

use carrack_engine::Rng;

use super::{Act, pods, steady, tenants};
use crate::plants::Bug;

/// All the work of a run with a planted bug that shows in one part of it, and in nothing else.
pub(super) fn acts(bug: Bug, rng: &Rng, safety: Duration) -> Option<Vec<Act>> {
    let mut acts = Vec::new();
    match bug {
        bug if bug.is_of_dead_nodes() => steady(&mut rng.fork("steady"), &mut acts),
        Bug::EvictedGuests => {
            steady(&mut rng.fork("steady"), &mut acts);
            crate::evictions::stay(&mut rng.fork("evictions"), true, &mut acts);
        }
        Bug::TaintedAlive => {
            steady(&mut rng.fork("steady"), &mut acts);
            crate::taints::acts(&mut rng.fork(crate::taints::PART), safety, &mut acts);
        }
        Bug::StateOfInstances => crate::keepers::acts(&mut rng.fork("keepers"), safety, true, &mut acts),
        Bug::RerunsAlways => crate::reruns::acts(&mut rng.fork("reruns"), safety, &mut acts),
        Bug::ToldAtOnce
        | Bug::IllDevicesGiven
        | Bug::PreStartsIgnored
        | Bug::UnwrittenCounts
        | Bug::RefusedCounts
        | Bug::SilenceIsWell
        | Bug::HastySandboxes
        | Bug::UnreadIsGone
        | Bug::UnknownIsOver
        | Bug::RegistersOnce => {
            pods(&mut rng.fork("pods"), safety, &mut acts);
        }
        Bug::CordonsUnheard => crate::drains::comers(&mut rng.fork("comers"), safety, &mut acts),
        Bug::ReleasesUnheard => tenants(&mut rng.fork("tenants"), safety, &mut acts),
        Bug::BelievedAnnotations => {
            crate::impostors::acts(&mut rng.fork(crate::impostors::PART), safety, &mut acts);
        }
        Bug::SecretsOverlooked => {
            pods(&mut rng.fork("pods"), safety, &mut acts);
            crate::flex::lock(&mut rng.fork(crate::flex::LOCKED), &mut acts);
        }
        Bug::NominationsKept => {
            crate::nominations::acts(&mut rng.fork(crate::nominations::PART), safety, true, &mut acts);
        }
        Bug::LateWords => crate::nominations::crowds(&mut rng.fork("crowds"), safety, &mut acts),
        Bug::MistakenAnswers => crate::answers::acts(&mut rng.fork("answers"), &mut acts),
        Bug::DeafNominees => crate::phantoms::acts(&mut rng.fork(crate::phantoms::PART), safety, true, &mut acts),
        Bug::StaleProposals => crate::closings::acts(&mut rng.fork(crate::closings::PART), safety, true, &mut acts),
        Bug::GoingUnminded => crate::meddler::acts(&mut rng.fork("leavers"), &mut acts),
        Bug::Unpaced | Bug::WritingWatches | Bug::LaunchersByLabel => steady(&mut rng.fork("steady"), &mut acts),
        Bug::AdoptedUnasked => crate::heritage::acts(&mut rng.fork(crate::heritage::PART), safety, true, &mut acts),
        Bug::UnfilledDisksStart => crate::imports::acts(&mut rng.fork(crate::imports::PART), safety, &mut acts),
        Bug::OutdatedStarts => crate::fickle::acts(&mut rng.fork(crate::fickle::PART), safety, &mut acts),
        Bug::WordsLost | Bug::UnmountsWhenTold => crate::told::acts(&mut rng.fork("mortals"), safety, &mut acts),
        Bug::SignalsForgotten => crate::disks::acts(&mut rng.fork(crate::disks::PART), safety, &mut acts),
        bug if bug.is_of_backups() => {
            crate::backups::acts(&mut rng.fork(crate::backups::PART), safety, &mut acts);
        }
        // Drivers that lie show in claims of which each life of a pod makes something new.
        bug if bug.is_of_growth() || matches!(bug, Bug::BelievedDrivers | Bug::SmallVolumes) => {
            crate::growth::acts(&mut rng.fork("growth"), safety, &mut acts);
        }
        bug if bug.is_of_resizes() => crate::resizes::acts(&mut rng.fork("resizes"), safety, true, &mut acts),
        Bug::ForgottenPulls | Bug::UnnotedPulls => crate::images::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::PullsAtOnce | Bug::FailedPullsHold => crate::pulling::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::ForgottenStops => crate::reimaged::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::UnreadFiles => crate::env_files::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::HooksAside | Bug::LateHooks => crate::ordered::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::RestartsAlone => crate::rounds::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::EndlessSleeps => crate::sleepers::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::ProbesUnnoted => crate::probed::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::ReadyUnasked => crate::asked::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::StatusesOverwrite | Bug::GatesUnread => crate::gates::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::DebuggedAgain | Bug::DebuggersForgotten => {
            crate::debuggers::acts(&mut rng.fork("starts"), safety, &mut acts);
        }
        Bug::UnreadServices => crate::links::acts(&mut rng.fork("starts"), safety, &mut acts),
        Bug::SnapshotsAtOnce | Bug::ContentForgotten => {
            let dies = bug == Bug::ContentForgotten;
            crate::snapshots::acts(&mut rng.fork(crate::snapshots::PART), safety, dies, &mut acts);
        }
        // Who writes manifests goes by what is there, and so has no list of acts.
        bug if bug.is_of_statics() => {}
        bug if bug.is_of_pressure() => {
            crate::pressure::acts(&mut rng.fork(crate::pressure::PART), safety, &mut acts);
        }
        bug if bug.is_of_critical() => {
            crate::critical::acts(&mut rng.fork(crate::critical::PART), safety, &mut acts);
        }
        _ => return None,
    }
    Some(acts)
}
