//! Bugs put in on purpose. Each is a switch that a run can be given; the simulator must find it.

mod absences;
mod bug;
mod clones;
mod mounts;
mod parts;
mod pulls;
mod runs;
mod sandboxes;
mod shortages;
mod statics;
mod statuses;
mod workloads;

use absences::OF_ABSENCES;
pub(crate) use bug::Bug;
use clones::OF_CLONES;
use mounts::OF_MOUNTS;
use pulls::OF_PULLS;
use runs::OF_RUNS;
use sandboxes::OF_SANDBOXES;
use shortages::OF_SHORTAGES;
use statics::OF_STATICS;
use statuses::OF_STATUSES;
use workloads::OF_WORKLOADS;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plant {
    /// Its name.
    pub name: &'static str,
    /// What goes wrong.
    pub what: &'static str,
    /// The invariant that finds it.
    pub found_by: &'static str,
    /// Invariants that may break before that one, as a consequence of the same wrong. Any other that does is a fault of its own.
    pub also: &'static [&'static str],
    pub(crate) bug: Bug,
}

/// All planted bugs.
pub const PLANTS: &[Plant] = &ALL;

const LISTS: [&[Plant]; 11] = [
    OTHERS,
    OF_WORKLOADS,
    OF_CLONES,
    OF_SHORTAGES,
    OF_MOUNTS,
    OF_PULLS,
    OF_ABSENCES,
    OF_RUNS,
    OF_SANDBOXES,
    OF_STATICS,
    OF_STATUSES,
];

/// How many there are.
const COUNT: usize = {
    let (mut count, mut list) = (0, 0);
    while list < LISTS.len() {
        count += LISTS[list].len();
        list += 1;
    }
    count
};

const ALL: [Plant; COUNT] = {
    let mut all = [OTHERS[0]; COUNT];
    let (mut n, mut list) = (0, 0);
    while list < LISTS.len() {
        let mut place = 0;
        while place < LISTS[list].len() {
            all[n] = LISTS[list][place];
            n += 1;
            place += 1;
        }
        list += 1;
    }
    all
};

/// Those that have no list of their own.
const OTHERS: &[Plant] = &[
    Plant {
        name: "stale-reads",
        what: "controllers reconcile on caches that do not show their own writes yet",
        found_by: "no-child-made-twice",
        also: &[],
        bug: Bug::StaleReads,
    },
    Plant {
        name: "forgotten-checkpoint",
        what: "the node's disk loses the device checkpoint when the kubelet restarts",
        found_by: "device-held-once",
        also: &[],
        bug: Bug::ForgottenCheckpoint,
    },
    Plant {
        name: "blind-handler",
        what: "a virt-handler takes silence for death: whoever looks for processes of a vanished pod sees none",
        found_by: "one-guest-per-vm",
        also: &[],
        bug: Bug::BlindHandler,
    },
    Plant {
        name: "final-rejection",
        what: "a pod whose device plugin is not there after a reboot is rejected for good (incident 1)",
        found_by: "plugin-absence-never-fails-a-pod",
        // The kubelet clears up what it has rejected before it could tell.
        also: &["unmounted-on-proof"],
        bug: Bug::FinalRejection,
    },
    Plant {
        name: "sets-by-spec",
        what: "a Deployment counts its ReplicaSets by their specs, and not by the pods that they still have",
        found_by: "rollouts-keep-their-bounds",
        also: &[],
        bug: Bug::SetsBySpec,
    },
    Plant {
        name: "ends-forgotten",
        what: "a Job takes a pod's end for counted before the pod has let go of its finalizer",
        found_by: "ends-count-once",
        also: &[],
        bug: Bug::EndsForgotten,
    },
    Plant {
        name: "deaf-observer",
        what: "the node lifecycle controller takes a time in which it could hear nobody for the nodes' silence",
        found_by: "eviction-needs-a-silent-node",
        also: &[],
        bug: Bug::DeafObserver,
    },
    Plant {
        name: "stored-nominations",
        what: "the scheduler stores nominations beside its queue, lets updates put pods in flight back into it, and preempts \
               without asking the extender",
        found_by: "nominations-follow-the-queue",
        also: &[],
        bug: Bug::StoredNominations,
    },
    Plant {
        name: "leaked-assumptions",
        what: "a pod that could not be bound is still counted on the node that was chosen for it",
        found_by: "room-is-what-the-api-says",
        also: &[],
        bug: Bug::LeakedAssumptions,
    },
    Plant {
        name: "deaf-queue",
        what: "pods that wait for room are not told that a pod has gone",
        found_by: "waiting-pods-fit-nowhere",
        also: &[],
        bug: Bug::DeafQueue,
    },
    Plant {
        name: "lost-event",
        what: "a watch leaves out a change now and then",
        found_by: crate::ledger::NAME,
        also: &[],
        bug: Bug::LostEvent,
    },
    Plant {
        name: "desired-state-alone",
        what: "a disk goes from its node when no pod is known to want it, whatever is still mounted (incident 5)",
        found_by: "disk-in-use-stays",
        // The pod's own part of it may be on its way out.
        also: &["one-call-a-volume"],
        bug: Bug::DesiredStateAlone,
    },
    Plant {
        name: "cache-for-ledger",
        what: "the GPU extender takes what its cache shows for all that it has given out",
        found_by: "gpus-within-bounds",
        also: &[],
        bug: Bug::CacheForLedger,
    },
    Plant {
        name: "hasty-release",
        what: "the GPU extender takes a binding without an answer for one that did not happen, and its GPUs for free",
        found_by: "gpus-are-held",
        also: &[],
        bug: Bug::HastyRelease,
    },
    Plant {
        name: "chosen-before",
        what: "the GPU extender refuses a pod that bears a choice of GPUs already",
        found_by: "annotations-hold-nobody-back",
        also: &[],
        bug: Bug::ChosenBefore,
    },
    Plant {
        name: "tenants-choose-gpus",
        what: "whoever may make pods is believed what he says of their GPUs",
        found_by: "gpus-within-bounds",
        also: &[],
        bug: Bug::TenantsChooseGpus,
    },
    Plant {
        name: "claims-add-up",
        what: "the GPU extender counts what the annotations of pods claim that others have bound, whoever holds that already",
        found_by: crate::gpu::LEDGER,
        also: &[],
        bug: Bug::ClaimsAddUp,
    },
    Plant {
        name: "traceless",
        what: "a claim's volume is made without a trace of it on the claim",
        found_by: "volumes-leave-a-trace",
        also: &[],
        bug: Bug::Traceless,
    },
    Plant {
        name: "stale-server",
        what: "one of several API servers answers reads from what it knew a while ago",
        found_by: "lists-are-newest",
        also: &[],
        bug: Bug::StaleServer,
    },
    Plant {
        name: "one-line",
        what: "all requests stand in one line for their seats, heartbeats behind a flood",
        found_by: crate::hall::OWN_SEATS,
        also: &[],
        bug: Bug::OneLine,
    },
    Plant {
        name: "two-for-one",
        what: "a request that ends gives two seats back, so that more are served than there are seats",
        found_by: crate::hall::BOUNDED,
        also: &[],
        bug: Bug::TwoForOne,
    },
    Plant {
        name: "times-twice",
        what: "a CronJob gives its Jobs names that are new each time, and does not learn from them",
        found_by: "one-job-for-one-time",
        also: &[],
        bug: Bug::TimesTwice,
    },
    Plant {
        name: "claims-go",
        what: "a StatefulSet that shrinks deletes the claims of its pods whatever its policy says",
        found_by: "claims-stay-with-their-users",
        also: &[],
        bug: Bug::ClaimsGo,
    },
    Plant {
        name: "claims-by-name",
        what: "a volume that a claim had goes to the next claim of that name",
        found_by: "one-claim-one-volume",
        also: &[],
        bug: Bug::ClaimsByName,
    },
    Plant {
        name: "takes-free",
        what: "a claim whose volume is to be made at its pod's node gets one that is free, which that node does not reach",
        found_by: crate::lost_data::NAME,
        also: &[],
        bug: Bug::TakesFree,
    },
    Plant {
        name: "careless-detach",
        what: "a disk that no pod is known to want is taken from its node without asking whether that uses it",
        found_by: "one-node-a-disk",
        also: &[],
        bug: Bug::CarelessDetach,
    },
    Plant {
        name: "absence-remembered",
        what: "a node that came back under its name and goes again is taken for one that was gone all the time",
        found_by: crate::controllers::GONE_KEEP,
        also: &[],
        bug: Bug::AbsenceRemembered,
    },
    Plant {
        name: "clocks-of-another",
        what: "who leads again counts on from what it saw when it led before, though others have led meanwhile",
        found_by: crate::controllers::TOLERATIONS_LAST,
        also: &[],
        bug: Bug::ClocksOfAnother,
    },
    Plant {
        name: "hasty-orphans",
        what: "pods of a node that is gone are given up at once",
        found_by: "orphans-wait",
        also: &[],
        bug: Bug::HastyOrphans,
    },
    Plant {
        name: "broken-promise",
        what: "guests run on when their node can renew its lease no more (incident 2)",
        found_by: "failed-on-proof",
        // What is written of its disks comes just before.
        also: &[crate::roaming::DEAD],
        bug: Bug::BrokenPromise,
    },
    Plant {
        name: "tame-watchdogs",
        what: "something pets machines' watchdogs that does not know what their nodes have promised",
        found_by: "failed-on-proof",
        also: &["one-guest-per-vm", crate::roaming::DEAD],
        bug: Bug::TameWatchdogs,
    },
    Plant {
        name: "judged-again",
        what: "a restarted kubelet asks anew whether its pods may be on the node, and rejects those that run (incident 1)",
        found_by: "wanted-containers-are-not-killed",
        // The same with a device whose plugin is not there.
        also: &["plugin-absence-never-fails-a-pod"],
        bug: Bug::JudgedAgain,
    },
    Plant {
        name: "stale-grants",
        what: "a container starts with devices that its plugin granted before the node rebooted",
        found_by: "devices-are-of-this-boot",
        also: &[],
        bug: Bug::StaleGrants,
    },
    Plant {
        name: "forgotten-deletions",
        what: "a pod that is to go when the kubelet starts is not looked after (incident 1, the other half)",
        found_by: "deleted-pods-go",
        also: &[],
        bug: Bug::ForgottenDeletions,
    },
    Plant {
        name: "forgotten-networks",
        what: "a sandbox that a reboot ended is forgotten without giving its addresses back",
        found_by: "gone-means-disconnected",
        also: &[],
        bug: Bug::ForgottenNetworks,
    },
    Plant {
        name: "unread-is-unwanted",
        what: "volumes of a pod go because something that they are made from was not read (incident 5)",
        found_by: "unmounted-on-proof",
        also: &["volume-in-use-stays"],
        bug: Bug::UnreadIsUnwanted,
    },
    Plant {
        name: "mounts-untold",
        what: "the Node does not tell which disks are in use, and they are mounted all the same",
        found_by: "disk-in-use-stays",
        also: &[],
        bug: Bug::MountsUntold,
    },
    Plant {
        name: "forgotten-mounts",
        what: "a restarted kubelet does not read what it had mounted",
        found_by: "volumes-go-with-their-pods",
        also: &["disk-in-use-stays", "liveness", crate::unwanted::NAME],
        bug: Bug::ForgottenMounts,
    },
    Plant {
        name: "forgotten-ends",
        what: "every container that is over is forgotten at once, the newest too",
        found_by: "ends-are-remembered",
        also: &[],
        bug: Bug::ForgottenEnds,
    },
    Plant {
        name: "forgotten-cpus",
        what: "a restarted kubelet does not read which CPUs are whose",
        found_by: crate::cpus::NAME,
        also: &[],
        bug: Bug::ForgottenCpus,
    },
    Plant {
        name: "forgotten-memory",
        what: "a restarted kubelet does not read for whom it kept memory of NUMA nodes",
        found_by: crate::memory::NAME,
        also: &[],
        bug: Bug::ForgottenMemory,
    },
    Plant {
        name: "hasty-shutdowns",
        what: "a machine that is shut down goes down at once, whatever runs on it",
        found_by: crate::node::HELD_UP,
        also: &[],
        bug: Bug::HastyShutdowns,
    },
    Plant {
        name: "forgotten-allocations",
        what: "a restarted kubelet does not read what it had allocated, and gives pods what they ask for",
        found_by: crate::resizes::FITS,
        also: &[],
        bug: Bug::ForgottenAllocations,
    },
    Plant {
        name: "deferred-forever",
        what: "a pod whose resize was deferred is not looked at again when others leave room",
        found_by: crate::resizes::SETTLES,
        also: &[],
        bug: Bug::DeferredForever,
    },
    Plant {
        name: "missing-heartbeat",
        what: "a node that never had a heartbeat counts as one that is heard (incident 2)",
        found_by: "silent-nodes-take-no-machines",
        also: &[],
        bug: Bug::MissingHeartbeat,
    },
    Plant {
        name: "lease-by-wall-clock",
        what: "a node's silence is counted from when its lease says that it was renewed, by whichever clock (incident 2)",
        found_by: "failed-on-proof",
        // What is written of its disks comes just before; and whoever was about to start starts all the same.
        also: &[crate::roaming::DEAD, "one-guest-per-vm", "gone-means-stopped", crate::writers::NAME],
        bug: Bug::LeaseByWallClock,
    },
    Plant {
        name: "vanished-node",
        what: "nobody looks at machines of a node of which neither an object nor a lease is left (incident 2)",
        found_by: "machines-leave-silent-nodes",
        also: &[],
        bug: Bug::VanishedNode,
    },
    Plant {
        name: "ended-on-dead-node",
        what: "nobody clears up the launcher of a machine that ended by itself just before its node died",
        found_by: "machines-leave-silent-nodes",
        also: &[],
        bug: Bug::EndedOnDeadNode,
    },
    Plant {
        name: "kept-disks",
        what: "a disk stays attached to a dead node for as long as that says that it uses it, whoever is known to be dead",
        found_by: crate::roaming::LEFT,
        also: &[],
        bug: Bug::KeptDisks,
    },
    Plant {
        name: "buried-alive",
        what: "a machine's disks count as left by it as soon as its node is silent",
        found_by: crate::roaming::DEAD,
        also: &[],
        bug: Bug::BuriedAlive,
    },
    Plant {
        name: "tainted-alive",
        what: "the taint of a node that is out of service counts on a node that is ready, and whose guests run",
        found_by: "failed-on-proof",
        // What is written of its disks comes just before; and whoever was about to start starts all the same.
        also: &[crate::roaming::DEAD, "one-guest-per-vm", "gone-means-stopped", crate::writers::NAME],
        bug: Bug::TaintedAlive,
    },
    Plant {
        name: "evicted-guests",
        what: "a launcher is evicted whether or not its guest is to stay where it is",
        found_by: crate::evictions::NAME,
        also: &[],
        bug: Bug::EvictedGuests,
    },
    Plant {
        name: "launchers-by-label",
        what: "a handler knows launchers by their label: whose label is taken off before its guest starts never starts it",
        found_by: "liveness",
        also: &[],
        bug: Bug::LaunchersByLabel,
    },
    Plant {
        name: "late-writer",
        what: "a launcher that hung for longer than its node's lease starts its machine, whatever the record of its disk says",
        found_by: crate::writers::NAME,
        // Its instance was failed on the proof that nothing of it starts there any more.
        also: &["one-guest-per-vm", "failed-on-proof"],
        bug: Bug::LateWriter,
    },
    Plant {
        name: "signals-forgotten",
        what: "a container disk that was stopped when it had just started is not told to end once more",
        found_by: crate::disks::NAME,
        also: &[],
        bug: Bug::SignalsForgotten,
    },
    Plant {
        name: "hollow-success",
        what: "a launcher that is ended before its machine has begun ends as if it had run",
        found_by: "success-takes-a-run",
        also: &[],
        bug: Bug::HollowSuccess,
    },
    Plant {
        name: "reruns-always",
        what: "a machine that has shut down is taken for one that was asked to start again, though only failures are to do that",
        found_by: crate::reruns::NAME,
        also: &[],
        bug: Bug::RerunsAlways,
    },
    Plant {
        name: "baseless-writes",
        what: "writes are sent without what they rest on, and made whatever has become of that",
        found_by: "one-pod-for-one-place",
        also: &[crate::leaders::NAME],
        bug: Bug::BaselessWrites,
    },
    Plant {
        name: "one-node",
        what: "all pods are bound to the first node, whichever was chosen for them",
        found_by: "nodes-are-not-overcommitted",
        also: &[],
        bug: Bug::OneNode,
    },
    Plant {
        name: "bindings-overwrite",
        what: "the API server takes bindings of pods that have a node already, and each pod is bound twice",
        found_by: "pod-bound-once",
        also: &[],
        bug: Bug::BindingsOverwrite,
    },
    Plant {
        name: "baseless-bindings",
        what: "a binding does not say which revision of its pod it rests on, and takes effect however late it arrives",
        found_by: "nodes-are-not-overcommitted",
        also: &[],
        bug: Bug::BaselessBindings,
    },
    Plant {
        name: "crossed-runtimes",
        what: "a kubelet is connected with another node's container runtime",
        found_by: "pod-runs-where-bound",
        also: &[],
        bug: Bug::CrossedRuntimes,
    },
    Plant {
        name: "ends-taken-back",
        what: "a kubelet that has told of a pod's end tells afterwards that it runs",
        found_by: "pod-end-is-final",
        also: &[],
        bug: Bug::EndsTakenBack,
    },
    Plant {
        name: "unmounts-first",
        what: "a pod's volumes are unmounted before its containers are stopped",
        found_by: "volume-in-use-stays",
        also: &["unmounted-on-proof"],
        bug: Bug::UnmountsFirst,
    },
    Plant {
        name: "makes-room",
        what: "a storage driver deletes a volume that it has made before it makes another one",
        found_by: "claimed-data-stays",
        also: &[],
        bug: Bug::MakesRoom,
    },
    Plant {
        name: "going-is-gone",
        what: "pods that are to go are deleted at once, whatever of them runs",
        found_by: "gone-means-stopped",
        also: &[crate::told::NAME],
        bug: Bug::GoingIsGone,
    },
    Plant {
        name: "asked-twice",
        what: "an extender is asked to filter once more for every time that it is asked",
        found_by: "one-filter-a-pop",
        also: &[],
        bug: Bug::AskedTwice,
    },
    Plant {
        name: "restless",
        what: "a scheduler that may look at no pod, since too much is under way, wakes for those that are due all the same",
        found_by: "roles-do-not-spin",
        also: &[],
        bug: Bug::Restless,
    },
    Plant {
        name: "zones-lost",
        what: "a scheduler binds pods where nobody labels them as their nodes are labelled",
        found_by: crate::zones::NAME,
        also: &[],
        bug: Bug::ZonesLost,
    },
    Plant {
        name: "nominations-kept",
        what: "a scheduler does not take back what the status of a pod says of where the pod is to go",
        found_by: crate::nominations::NAME,
        also: &[],
        bug: Bug::NominationsKept,
    },
    Plant {
        name: "late-words",
        what: "what a scheduler says of a pod that waits rests on nothing, and is written when the pod has come to a node",
        found_by: crate::nominations::NAME,
        also: &[],
        bug: Bug::LateWords,
    },
    Plant {
        name: "echo",
        what: "the controllers write something again and again that they have written",
        found_by: "roles-do-not-spin",
        also: &[],
        bug: Bug::Echo,
    },
    Plant {
        name: "lease-is-life",
        what: "a scheduler ends when it has lost its Lease, as upstream's does",
        found_by: "roles-do-not-give-up",
        also: &[],
        bug: Bug::LeaseIsLife,
    },
    Plant {
        name: "endless-terms",
        what: "what a leader has sent is made whoever leads by then, as upstream does",
        found_by: crate::leaders::NAME,
        also: &[],
        bug: Bug::EndlessTerms,
    },
    Plant {
        name: "acts-before-it-looks",
        what: "a leader that was stopped writes what it was about to, in whatever term, and looks then whether it still leads",
        found_by: crate::leaders::NAME,
        also: &[],
        bug: Bug::ActsUnlooked,
    },
    Plant {
        name: "termless-bindings",
        what: "a binding is made whoever leads by then, also one that a scheduler's former life has sent",
        found_by: crate::leaders::NAME,
        also: &["nodes-are-not-overcommitted"],
        bug: Bug::TermlessBindings,
    },
    Plant {
        name: "read-once",
        what: "a kubelet reads a config map once, and does not hear of what it becomes",
        found_by: "settings-reach-their-files",
        also: &[],
        bug: Bug::ReadOnce,
    },
    Plant {
        name: "unread-is-absent",
        what: "a config map that cannot be read is taken for one that is not there",
        found_by: "settings-stay-whole",
        also: &["settings-reach-their-files"],
        bug: Bug::UnreadIsAbsent,
    },
    Plant {
        name: "records-are-mounts",
        what: "a restarted kubelet takes what its records name for mounted, whatever the disk shows",
        found_by: "known-mounts-are-there",
        also: &[],
        bug: Bug::RecordsAreMounts,
    },
    Plant {
        name: "guessed-loss",
        what: "a disk whose FlexVolume driver does not say whether it is attached is detached, to be attached anew",
        found_by: "disk-in-use-stays",
        also: &[],
        bug: Bug::GuessedLoss,
    },
    Plant {
        name: "endless-calls",
        what: "a FlexVolume driver goes on when its caller leads no more, and detaches a disk that the next leader has attached again",
        found_by: "disk-in-use-stays",
        also: &[],
        bug: Bug::EndlessCalls,
    },
    Plant {
        name: "stopped-calls",
        what: "a FlexVolume driver goes on while its caller is stopped, and detaches a disk that the next leader has attached again",
        found_by: "disk-in-use-stays",
        also: &[],
        bug: Bug::StoppedCalls,
    },
    Plant {
        name: "orphaned-calls",
        what: "a FlexVolume driver goes on when its caller was killed, and detaches a disk that the caller's next life has attached again",
        found_by: "disk-in-use-stays",
        also: &[],
        bug: Bug::OrphanedCalls,
    },
    Plant {
        name: "careless-inline-detach",
        what: "a FlexVolume that a pod brought itself is detached without asking whether its node uses it",
        found_by: "one-node-a-disk",
        also: &["disk-in-use-stays"],
        bug: Bug::CarelessInlineDetach,
    },
    Plant {
        name: "shared-tokens",
        what: "a kubelet keeps one token for all pods of a service account",
        found_by: "tokens-are-the-pods-own",
        also: &[],
        bug: Bug::SharedTokens,
    },
    Plant {
        name: "expired-tokens",
        what: "a kubelet hands out a token that has expired when it cannot get another",
        found_by: "tokens-are-the-pods-own",
        also: &[],
        bug: Bug::ExpiredTokens,
    },
    Plant {
        name: "published-once",
        what: "a kubelet does not call a driver again that wants to be",
        found_by: "drivers-are-called-again",
        also: &[],
        bug: Bug::PublishedOnce,
    },
    Plant {
        name: "growth-aside",
        what: "a volume whose file system grows on its node is not busy with that: its pod goes meanwhile, and nobody hears how it ended",
        found_by: crate::growth::ONE_CALL,
        also: &[],
        bug: Bug::GrowthAside,
    },
    Plant {
        name: "growth-unheard",
        what: "how a file system's growth ended is not heard where the pod is to go, and the next pod waits for it",
        found_by: crate::growth::HEARD,
        also: &[],
        bug: Bug::GrowthUnheard,
    },
    Plant {
        name: "growth-unproved",
        what: "a claim is told of its new size although the driver could not let the file system follow",
        found_by: crate::growth::TRUE_SIZES,
        also: &[],
        bug: Bug::GrowthUnproved,
    },
    Plant {
        name: "state-of-instances",
        what: "the claim with what a machine keeps beside its disks belongs to its instance, and goes with that",
        found_by: crate::keepers::NAME,
        also: &[],
        bug: Bug::StateOfInstances,
    },
    Plant {
        name: "half-closed-watchdogs",
        what: "a machine's watchdog that did not take its closing is taken for closed, and nobody pets it any more",
        found_by: "healthy-hosts-stay-up",
        also: &[],
        bug: Bug::HalfClosed,
    },
    Plant {
        name: "critical-ended",
        what: "a kubelet tells of a critical pod that it was ended to make room for another one",
        found_by: crate::critical::LESS,
        also: &[],
        bug: Bug::CriticalEnded,
    },
    Plant {
        name: "critical-refused",
        what: "a kubelet tells of a critical pod that there is no room for it, though others could make some",
        found_by: crate::critical::ROOM,
        also: &[],
        bug: Bug::CriticalRefused,
    },
    Plant {
        name: "parts-ahead",
        what: "a pod has its part of a disk as soon as it is bound, whether or not its Node names the disk attached",
        found_by: crate::given::NAME,
        also: &[],
        bug: Bug::PartsAhead,
    },
    Plant {
        name: "forgotten-pulls",
        what: "a restarted kubelet does not know with whose secrets it had pulled an image, and lets everybody use it",
        found_by: crate::images::NAME,
        // What it does not know it drops, too.
        also: &[crate::images::NOTED],
        bug: Bug::ForgottenPulls,
    },
    Plant {
        name: "unnoted-pulls",
        what: "the node's disk loses with what an image was pulled, and a container is made of it",
        found_by: crate::images::NOTED,
        also: &[],
        bug: Bug::UnnotedPulls,
    },
    Plant {
        name: "forgotten-stops",
        what: "the node's disk loses which containers are stopped for another image when the kubelet restarts",
        found_by: crate::reimaged::NAME,
        also: &[],
        bug: Bug::ForgottenStops,
    },
    Plant {
        name: "unread-files",
        what: "a file with variables that cannot be read is taken for one that is not there",
        found_by: crate::env_files::NAME,
        also: &[],
        bug: Bug::UnreadFiles,
    },
    Plant {
        name: "endless-sleeps",
        what: "a hook that sleeps is waited for although its container has ended meanwhile",
        found_by: "deleted-pods-go",
        also: &[],
        bug: Bug::EndlessSleeps,
    },
    Plant {
        name: "hooks-aside",
        what: "a container starts beside one whose postStart hook is to hold it back",
        found_by: crate::ordered::HELD,
        also: &[],
        bug: Bug::HooksAside,
    },
    Plant {
        name: "late-hooks",
        what: "a sidecar's preStop hook waits until the others have ended, and there is no time for it when they take all",
        found_by: crate::ordered::SIGNALS,
        also: &[],
        bug: Bug::LateHooks,
    },
    Plant {
        name: "restarts-alone",
        what: "a container that has ended so that all of its pod start again starts again alone",
        found_by: crate::rounds::NAME,
        also: &[],
        bug: Bug::RestartsAlone,
    },
    Plant {
        name: "unread-services",
        what: "a container is made before its kubelet has read which services there are",
        found_by: crate::links::NAME,
        also: &[],
        bug: Bug::UnreadServices,
    },
    Plant {
        name: "snapshots-at-once",
        what: "a driver is asked to delete a snapshot while it is asked to take it, and may do that in any order",
        found_by: "liveness",
        also: &[],
        bug: Bug::SnapshotsAtOnce,
    },
    Plant {
        name: "content-forgotten",
        what: "a snapshot goes whose content does not show yet, and nobody deletes what its driver has taken",
        found_by: "liveness",
        also: &[],
        bug: Bug::ContentForgotten,
    },
    Plant {
        name: "mistaken-answers",
        what: "a scheduler takes a late answer to what it had asked for a pod for one to what it asks for that pod now",
        found_by: crate::answers::NAME,
        also: &[],
        bug: Bug::MistakenAnswers,
    },
    Plant {
        name: "adopted-unasked",
        what: "a machine takes an instance over that nobody owns, whether or not it is there itself when that is written",
        found_by: crate::heritage::NAME,
        also: &[],
        bug: Bug::AdoptedUnasked,
    },
    Plant {
        name: "unfilled-disks-start",
        what: "a machine starts whether or not its DataVolumes are done",
        found_by: crate::imports::NAME,
        also: &[],
        bug: Bug::UnfilledDisksStart,
    },
    Plant {
        name: "deaf-nominees",
        what: "pods for which a node is being made free are not told when it is deleted, or comes to refuse them",
        found_by: crate::nominations::NODES,
        also: &[],
        bug: Bug::DeafNominees,
    },
    Plant {
        name: "one-holds-all",
        what: "a Job makes no pod as long as one that has ended does not let go of it, whoever keeps it from that",
        found_by: crate::controllers::PASS_HELD,
        also: &[],
        bug: Bug::OneHoldsAll,
    },
    Plant {
        name: "forgotten-kinds",
        what: "whoever reads a kind no more does not look what has become of its objects, which go unheard with their definition",
        found_by: "liveness",
        also: &[],
        bug: Bug::ForgottenKinds,
    },
    Plant {
        name: "raw-names",
        what: "names go into the paths of requests as they stand: an owner whose name makes no path is never asked for, and \
               what names it stays",
        found_by: "liveness",
        also: &[],
        bug: Bug::RawNames,
    },
    Plant {
        name: "stale-proposals",
        what: "a pod has to go from a node that was closed to whoever comes while an extender thought about it",
        found_by: crate::closings::NAME,
        also: &[],
        bug: Bug::StaleProposals,
    },
    Plant {
        name: "going-unminded",
        what: "admission does not look at what is going away: whoever may write an instance says of it what he likes",
        found_by: crate::meddler::NAME,
        also: &[],
        bug: Bug::GoingUnminded,
    },
    Plant {
        name: "writing-watches",
        what: "what a path below watch/ names is done to it, for whoever may watch it",
        found_by: crate::onlooker::NAME,
        also: &[],
        bug: Bug::WritingWatches,
    },
    Plant {
        name: "unpaced-statuses",
        what: "a status is written as often as it changes, however often a guest's agent comes and goes",
        found_by: crate::paces::NAME,
        also: &[],
        bug: Bug::Unpaced,
    },
    Plant {
        name: "told-at-once",
        what: "a server that does not keep a status as it was written is told the same as soon as it has answered",
        found_by: crate::forgetful::NAME,
        also: &[],
        bug: Bug::ToldAtOnce,
    },
    Plant {
        name: "secrets-overlooked",
        what: "a pod gets what another pod's secret has opened, as it calls its own volume the same",
        found_by: crate::flex::OPENED,
        also: &[],
        bug: Bug::SecretsOverlooked,
    },
    Plant {
        name: "first-pages",
        what: "the first page of a list is taken for all of it",
        found_by: crate::pages::NAME,
        also: &[],
        bug: Bug::FirstPages,
    },
    Plant {
        name: "believed-annotations",
        what: "a pod is of a manifest if it says so, and gone if a kubelet that starts anew finds no such manifest",
        found_by: "wanted-containers-are-not-killed",
        also: &[],
        bug: Bug::BelievedAnnotations,
    },
    Plant {
        name: "outdated-starts",
        what: "what is left of a restart counts after its machine was switched off: the machine switches itself on again",
        found_by: crate::fickle::NAME,
        also: &[],
        bug: Bug::OutdatedStarts,
    },
    Plant {
        name: "last-words-lost",
        what: "an API server that was away for a while counts as one that does not take how a pod ended",
        found_by: crate::told::NAME,
        also: &[],
        bug: Bug::WordsLost,
    },
    Plant {
        name: "torn-is-known",
        what: "a device checkpoint that cannot be read counts as one that tells of no plugin",
        found_by: "devices-are-of-this-boot",
        also: &[],
        bug: Bug::TornIsKnown,
    },
    Plant {
        name: "unread-pods-hold",
        what: "what a pod has whose record could not be read is never known again, though it runs with all that it names",
        found_by: crate::unread::NAME,
        also: &[],
        bug: Bug::UnreadPodsHold,
    },
    Plant {
        name: "unread-volumes-hold",
        what: "a disk whose record cannot be read stays in use, though no mount of that boot is left",
        found_by: crate::unread::NAME,
        also: &[],
        bug: Bug::UnreadVolumesHold,
    },
    Plant {
        name: "cordons-unheard",
        what: "a scheduler does not hear that a node is cordoned",
        found_by: crate::cordons::NAME,
        also: &[],
        bug: Bug::CordonsUnheard,
    },
    Plant {
        name: "releases-unheard",
        what: "a volume whose claim is gone does not learn that its node has let go of it, and its data stays",
        found_by: "liveness",
        also: &[],
        bug: Bug::ReleasesUnheard,
    },
];

/// The planted bug of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Plant> {
    PLANTS.iter().find(|plant| plant.name == name)
}
