//! Historical behaviour that can be put back, for the simulator to find.

use k8s_openapi::api::core::v1::Pod;

use crate::pods::plan::{Start, newest};
use crate::runtime::ContainerRecord;
use crate::spec::pod::{self, ContainerKind};

/// What is wrong again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A pod whose device plugin is not there is rejected for good (kubernetes #125579).
    FinalRejection,
    /// A volume leaves the node when no pod is known to want it, whatever is still mounted (kubernetes #120150).
    DesiredStateAlone,
    /// Whether a pod may be on this node is asked anew after each restart, and whether its devices are there, although it
    /// runs (kubernetes #123980, #124586, and #118635).
    JudgedAgain,
    /// What a plugin granted before a reboot counts as granted.
    StaleGrants,
    /// A pod that is to go when the kubelet starts is not looked after (kubernetes #118472).
    ForgottenDeletions,
    /// A sandbox that does not run any more is forgotten without CNI DEL: its addresses leak.
    ForgottenNetworks,
    /// Volumes of a pod that something was not read for are taken for unwanted (kubernetes #120150).
    UnreadIsUnwanted,
    /// The Node does not tell which disks are in use, and they are mounted all the same.
    MountsUntold,
    /// A restarted kubelet does not read what it had mounted.
    ForgottenMounts,
    /// A restarted kubelet does not read which CPUs it had assigned.
    ForgottenCpus,
    /// A restarted kubelet does not read for whom it kept memory of NUMA nodes.
    ForgottenMemory,
    /// A restarted kubelet does not read what it had allocated: pods are given what they ask for, whether there is room or not.
    ForgottenAllocations,
    /// Pods whose resize was deferred are not looked at again when others leave room.
    DeferredForever,
    /// A machine that is shut down is let go at once, whatever runs on it.
    HastyShutdowns,
    /// Every container that is over is forgotten at once, the newest too.
    ForgottenEnds,
    /// A config map is read once, and what it becomes is not heard of.
    ReadOnce,
    /// A config map that cannot be read is taken for one that is not there.
    UnreadIsAbsent,
    /// What the records say to be mounted counts as mounted, whatever the disk shows.
    RecordsAreMounts,
    /// A token is kept for its service account, whichever pod it was asked for.
    SharedTokens,
    /// A token that has expired is handed out all the same.
    ExpiredTokens,
    /// A driver that wants to be called again from time to time is called once.
    PublishedOnce,
    /// A volume that is let follow what it holds is not busy with it: its pod goes meanwhile, and the outcome is nobody's.
    GrowthAside,
    /// How that ended is not heard when the volume's pod is to go.
    GrowthUnheard,
    /// However that ended, the claim is told of the new size.
    GrowthUnproved,
    /// A restarted kubelet does not read what it had pulled, and with what.
    ForgottenPulls,
    /// A preStop hook sleeps on when its container has ended, and nobody wakes it.
    EndlessSleeps,
    /// That a container is stopped in order to start again is not noted: how it ends counts as its own end.
    ProbesUnnoted,
    /// A container that is not probed yet has started and is ready.
    ReadyUnasked,
    /// Containers are made whether or not services were read.
    UnreadServices,
    /// Who has ended by a rule by which all containers of his pod are to start again starts again alone.
    RestartsAlone,
    /// Containers are started beside one whose postStart hook they are to wait for.
    HooksAside,
    /// A container that is stopped after others begins its preStop hook when its turn has come, and not with theirs.
    LateHooks,
    /// What an API server has not kept of a status is told it again as soon as it has answered.
    ToldAtOnce,
    /// FlexVolumes that pods call the same are the same one, whatever opens them.
    SecretsOverlooked,
    /// A pod of the API that says that it is of a manifest counts as gone when there is no such manifest.
    BelievedAnnotations,
    /// An API server that was asked in vain for a while has refused to hear how a pod ended.
    WordsLost,
    /// A device checkpoint that cannot be read says that there never were any plugins.
    TornIsKnown,
    /// What a pod has whose record could not be read is never known again.
    UnreadPodsHold,
    /// A volume whose record cannot be read may be there in whichever boot.
    UnreadVolumesHold,
    /// A plugin is asked for devices as they were chosen, whatever it has said of them since.
    IllDevicesGiven,
    /// A container starts whatever its device plugin has answered when it was told of that.
    PreStartsIgnored,
    /// A device checkpoint that could not be written counts as written.
    UnwrittenCounts,
    /// Volumes are unmounted only when the API server has taken down how their pod ended.
    UnmountsWhenTold,
    /// Images are pulled as soon as they are asked for, however many are being pulled.
    PullsAtOnce,
    /// A pull that failed counts as one that is under way.
    FailedPullsHold,
    /// A runtime that cannot be listed is not told of.
    SilenceIsWell,
    /// A sandbox that has died is stopped at once, and what runs in it ends with that, whatever time it has.
    HastySandboxes,
    /// A pod's status is written over whatever is kept by then.
    StatusesOverwrite,
    /// A pod is ready when its containers are, whatever its readiness gates say.
    GatesUnread,
    /// An ephemeral container that has ended is started again.
    DebuggedAgain,
    /// An ephemeral container is told of only while it runs.
    DebuggersForgotten,
    /// A static pod ends with its mirror.
    MirrorsEndPods,
    /// A mirror stays whose static pod is gone.
    MirrorsLeft,
    /// A static pod starts while another one of its name, which its manifest was before, still ends.
    NamesakesTogether,
    /// What a listing could not read of a pod whose containers always start again counts as gone.
    UnreadIsGone,
    /// A container of such a pod whose state the runtime does not know counts as over.
    UnknownIsOver,
    /// A machine whose facts cannot be read counts as one that has no memory left.
    UnreadIsFull,
    /// Facts that were read before the last evicted pod had stopped count for evicting another one.
    OutdatedIsCurrent,
    /// Another pod is evicted while the last one still ends.
    EvictsAtOnce,
    /// A pod that the node cannot do without is evicted as any other.
    CriticalEvicted,
}

/// Starts for the ephemeral containers of a pod that have ended ([`Planted::DebuggedAgain`]).
pub(crate) fn debug_again(pod: &Pod, containers: &[ContainerRecord]) -> Vec<Start> {
    let records: Vec<&ContainerRecord> = containers.iter().collect();
    let again = |name: String| {
        let last = newest(&records, &name).filter(|r| r.exit_code().is_some())?;
        Some(Start {
            name,
            kind: ContainerKind::Ephemeral,
            attempt: last.attempt.saturating_add(1),
            sandbox_id: last.sandbox_id.clone(),
            round: last.round,
        })
    };
    pod::ephemeral_containers(pod).into_iter().filter_map(|(c, _)| again(c.name)).collect()
}
