//! Bugs put in on purpose. Each is a switch that a run can be given; the simulator must find it.

/// A planted bug.
#[derive(Debug, PartialEq, Eq)]
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

/// What a planted bug changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    StaleReads,
    ForgottenCheckpoint,
    BlindHandler,
    SetsBySpec,
    EndsForgotten,
    FinalRejection,
    DeafObserver,
    StoredNominations,
    LeakedAssumptions,
    DeafQueue,
    LostEvent,
    DesiredStateAlone,
    CacheForLedger,
    HastyRelease,
    ChosenBefore,
    Traceless,
    StaleServer,
    OneLine,
    TwoForOne,
    TimesTwice,
    ClaimsGo,
    ClaimsByName,
    TakesFree,
    CarelessDetach,
    HastyOrphans,
    BrokenPromise,
    TameWatchdogs,
    HalfClosed,
    JudgedAgain,
    StaleGrants,
    ForgottenDeletions,
    ForgottenNetworks,
    UnreadIsUnwanted,
    MountsUntold,
    ForgottenMounts,
    ForgottenEnds,
    ForgottenCpus,
    ReadOnce,
    UnreadIsAbsent,
    RecordsAreMounts,
    RandomCloneNames,
    NamesClearedEarly,
    RestoreNotCreatedYet,
    CacheMissIsTerminal,
    CopiesUnread,
    StartsWhatIsCopied,
    CopiesWhatRuns,
    UnwantedCopies,
    CopiesOneByOne,
    UnfrozenDisks,
    StateLeftBehind,
    StateUnowned,
    StateUnminded,
    AdoptsAnything,
    TargetDrawnLate,
    MissingHeartbeat,
    VanishedNode,
    EndedOnDeadNode,
    StateOfInstances,
    LateWriter,
    BaselessWrites,
    OneNode,
    BindingsOverwrite,
    BaselessBindings,
    CrossedRuntimes,
    EndsTakenBack,
    UnmountsFirst,
    MakesRoom,
    GoingIsGone,
    AskedTwice,
    Echo,
    LeaseIsLife,
    EndlessTerms,
    TermlessBindings,
    GuessedLoss,
    EndlessCalls,
    StoppedCalls,
    OrphanedCalls,
    CarelessInlineDetach,
    SharedTokens,
    ExpiredTokens,
    PublishedOnce,
    GrowthAside,
    GrowthUnheard,
    GrowthUnproved,
    UnplacedStay,
    IgnoredUntold,
    OrphansHeld,
    AdoptedUnheld,
    HastySlices,
    GrantsForgotten,
    ChargesLost,
    HastyOwners,
    StaleDependents,
    UnprovedEmptiness,
    UnreadServers,
    TakenClaims,
}

/// All planted bugs.
pub const PLANTS: &[Plant] = &[
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
        also: &[],
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
        found_by: "volumes-are-where-their-pods-are",
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
        also: &[],
        bug: Bug::BrokenPromise,
    },
    Plant {
        name: "tame-watchdogs",
        what: "something pets machines' watchdogs that does not know what their nodes have promised",
        found_by: "failed-on-proof",
        also: &["one-guest-per-vm"],
        bug: Bug::TameWatchdogs,
    },
    Plant {
        name: "judged-again",
        what: "a restarted kubelet asks anew whether its pods may be on the node, and rejects those that run (incident 1)",
        found_by: "wanted-containers-are-not-killed",
        also: &[],
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
        also: &["disk-in-use-stays", "liveness"],
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
        name: "random-clone-names",
        what: "the name of a clone's snapshot is drawn, and known from the clone's status alone (incident 3)",
        found_by: "clones-make-once",
        also: &[],
        bug: Bug::RandomCloneNames,
    },
    Plant {
        name: "names-cleared-early",
        what: "a clone forgets its snapshot and its restore whether they could be deleted or not",
        found_by: "clones-forget-what-is-gone",
        also: &[],
        bug: Bug::NamesClearedEarly,
    },
    Plant {
        name: "restore-not-created-yet",
        what: "a clone waits for a restore that it has deleted itself, and never deletes the snapshot",
        found_by: "liveness",
        also: &[],
        bug: Bug::RestoreNotCreatedYet,
    },
    Plant {
        name: "cache-miss-is-terminal",
        what: "a clone fails because a cache does not show the content of its snapshot",
        found_by: "clones-fail-on-proof",
        also: &[],
        bug: Bug::CacheMissIsTerminal,
    },
    Plant {
        name: "copies-unread",
        what: "disks count as copied as soon as there is a pod that copies them",
        found_by: "copies-are-whole",
        also: &["liveness"],
        bug: Bug::CopiesUnread,
    },
    Plant {
        name: "starts-what-is-copied",
        what: "a machine is started whether or not a pod copies or fills its disks",
        found_by: crate::clones::COPIED_DISKS_REST,
        also: &["copies-are-whole"],
        bug: Bug::StartsWhatIsCopied,
    },
    Plant {
        name: "copies-what-runs",
        what: "a pod that copies a machine's disks is made whether or not the machine was started meanwhile",
        found_by: crate::clones::COPIED_DISKS_REST,
        also: &["copies-are-whole"],
        bug: Bug::CopiesWhatRuns,
    },
    Plant {
        name: "copies-one-by-one",
        what: "a guest begins to copy a disk when it has copied the one before",
        found_by: crate::clones::ONE_INSTANT,
        also: &[],
        bug: Bug::CopiesOneByOne,
    },
    Plant {
        name: "unfrozen-disks",
        what: "nobody freezes a guest whose disks are taken one by one, by storage and by its own copying",
        found_by: crate::clones::ONE_INSTANT,
        also: &[],
        bug: Bug::UnfrozenDisks,
    },
    Plant {
        name: "state-left-behind",
        what: "a restored machine does not get what its snapshot has of the variables that its firmware keeps",
        found_by: crate::clones::RESTORED_STATE,
        also: &[],
        bug: Bug::StateLeftBehind,
    },
    Plant {
        name: "state-unowned",
        what: "a snapshot leaves out what firmware keeps that its machine was restored with, and does not own yet",
        found_by: crate::clones::KEPT_STATE,
        also: &[],
        bug: Bug::StateUnowned,
    },
    Plant {
        name: "state-unminded",
        what: "a machine is cloned whether or not anything can keep what its firmware does",
        found_by: crate::clones::CLONED_STATE,
        also: &[],
        bug: Bug::StateUnminded,
    },
    Plant {
        name: "unwanted-copies",
        what: "a guest goes on copying its disks when the pod that waited for it is gone",
        found_by: crate::clones::COPIED_DISKS_REST,
        also: &["copies-are-whole"],
        bug: Bug::UnwantedCopies,
    },
    Plant {
        name: "adopts-anything",
        what: "a clone takes what has the name of its snapshot for its snapshot, whoever made it",
        found_by: "clones-name-their-own",
        also: &[],
        bug: Bug::AdoptsAnything,
    },
    Plant {
        name: "target-drawn-late",
        what: "the name of a clone's target is drawn when it is restored, and looked for in the clone's spec",
        found_by: "liveness",
        also: &[],
        bug: Bug::TargetDrawnLate,
    },
    Plant {
        name: "missing-heartbeat",
        what: "a node that never had a heartbeat counts as one that is heard (incident 2)",
        found_by: "silent-nodes-take-no-machines",
        also: &[],
        bug: Bug::MissingHeartbeat,
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
        name: "late-writer",
        what: "a launcher that hung for longer than its node's lease starts its machine, whatever the record of its disk says",
        found_by: crate::writers::NAME,
        // Its instance was failed on the proof that nothing of it starts there any more.
        also: &["one-guest-per-vm", "failed-on-proof"],
        bug: Bug::LateWriter,
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
        also: &[],
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
        name: "unplaced-stay",
        what: "nobody says of a pod that is to go and never had a node that it has ended, and its Job waits for that",
        found_by: "liveness",
        also: &[],
        bug: Bug::UnplacedStay,
    },
    Plant {
        name: "ignored-untold",
        what: "a pod of an index does not tell of the failures before it that the failure policy ignores",
        found_by: "failures-are-handed-on",
        also: &[],
        bug: Bug::IgnoredUntold,
    },
    Plant {
        name: "orphans-held",
        what: "pods that a Job left behind keep the finalizer by which it held them",
        found_by: "liveness",
        also: &[],
        bug: Bug::OrphansHeld,
    },
    Plant {
        name: "adopted-unheld",
        what: "a Job takes pods over without holding them, and what they do is not counted",
        found_by: "jobs-hold-their-pods",
        also: &[],
        bug: Bug::AdoptedUnheld,
    },
    Plant {
        name: "hasty-slices",
        what: "pods that run are told to be ready",
        found_by: "slices-tell-of-ready-pods",
        also: &[],
        bug: Bug::HastySlices,
    },
    Plant {
        name: "grants-forgotten",
        what: "a budget counts pods whose eviction was granted as if they were still there",
        found_by: "evictions-keep-their-budget",
        also: &[],
        bug: Bug::GrantsForgotten,
    },
    Plant {
        name: "charges-lost",
        what: "an API server forgets what it has charged to a quota",
        found_by: "quotas-hold",
        also: &[],
        bug: Bug::ChargesLost,
    },
    Plant {
        name: "hasty-owners",
        what: "an owner that is to go after its dependents goes once they were told to go",
        found_by: "owners-go-after-dependents",
        also: &[],
        bug: Bug::HastyOwners,
    },
    Plant {
        name: "stale-dependents",
        what: "the dependents that caches show are taken for all that an owner has, as upstream does",
        found_by: "orphans-stay",
        also: &["owners-go-after-dependents"],
        bug: Bug::StaleDependents,
    },
    Plant {
        name: "unproved-emptiness",
        what: "a namespace is taken for empty when caches show nothing of it",
        found_by: "namespaces-go-empty",
        also: &[],
        bug: Bug::UnprovedEmptiness,
    },
    Plant {
        name: "unread-servers",
        what: "a namespace is emptied of built-in kinds and of those of definitions alone",
        found_by: "namespaces-go-empty",
        also: &[],
        bug: Bug::UnreadServers,
    },
    Plant {
        name: "taken-claims",
        what: "a claim that the pod before had is taken for the one that is made for a pod",
        found_by: "pods-have-their-own-claims",
        also: &[],
        bug: Bug::TakenClaims,
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
];

/// The planted bug of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Plant> {
    PLANTS.iter().find(|plant| plant.name == name)
}

impl Bug {
    /// What it is for a kubelet.
    pub(crate) fn of_kubelet(self) -> Option<carrack_kubelet::Planted> {
        use carrack_kubelet::Planted;
        Some(match self {
            Self::FinalRejection => Planted::FinalRejection,
            Self::DesiredStateAlone => Planted::DesiredStateAlone,
            Self::JudgedAgain => Planted::JudgedAgain,
            Self::StaleGrants => Planted::StaleGrants,
            Self::ForgottenDeletions => Planted::ForgottenDeletions,
            Self::ForgottenNetworks => Planted::ForgottenNetworks,
            Self::UnreadIsUnwanted => Planted::UnreadIsUnwanted,
            Self::MountsUntold => Planted::MountsUntold,
            Self::ForgottenMounts => Planted::ForgottenMounts,
            Self::ForgottenEnds => Planted::ForgottenEnds,
            Self::ForgottenCpus => Planted::ForgottenCpus,
            Self::ReadOnce => Planted::ReadOnce,
            Self::UnreadIsAbsent => Planted::UnreadIsAbsent,
            Self::RecordsAreMounts => Planted::RecordsAreMounts,
            Self::SharedTokens => Planted::SharedTokens,
            Self::ExpiredTokens => Planted::ExpiredTokens,
            Self::PublishedOnce => Planted::PublishedOnce,
            Self::GrowthAside => Planted::GrowthAside,
            Self::GrowthUnheard => Planted::GrowthUnheard,
            Self::GrowthUnproved => Planted::GrowthUnproved,
            _ => return None,
        })
    }
    /// Whether it is one of controllers of workloads.
    pub(crate) fn is_of_workloads(self) -> bool {
        matches!(
            self,
            Self::SetsBySpec
                | Self::EndlessTerms
                | Self::TermlessBindings
                | Self::EndsForgotten
                | Self::TimesTwice
                | Self::ClaimsGo
                | Self::ClaimsByName
                | Self::TakesFree
                | Self::CarelessDetach
                | Self::HastyOrphans
                | Self::BaselessWrites
                | Self::UnplacedStay
                | Self::IgnoredUntold
                | Self::OrphansHeld
                | Self::AdoptedUnheld
                | Self::HastySlices
                | Self::GrantsForgotten
                | Self::ChargesLost
                | Self::HastyOwners
                | Self::StaleDependents
                | Self::UnprovedEmptiness
                | Self::UnreadServers
                | Self::TakenClaims
        )
    }
    /// Whether it is one of the controller of clones.
    pub(crate) fn of_clones(self) -> Option<carrack_virt::controllers::clone::Planted> {
        use carrack_virt::controllers::clone::Planted;
        Some(match self {
            Self::RandomCloneNames => Planted::RandomNames,
            Self::NamesClearedEarly => Planted::NamesClearedEarly,
            Self::RestoreNotCreatedYet => Planted::RestoreNotCreatedYet,
            Self::CacheMissIsTerminal => Planted::CacheMissIsTerminal,
            Self::AdoptsAnything => Planted::AdoptsAnything,
            Self::TargetDrawnLate => Planted::TargetDrawnLate,
            Self::StateUnminded => Planted::StateUnminded,
            _ => return None,
        })
    }
    /// Whether it shows in clones, and in nothing else.
    pub(crate) fn is_of_clones(self) -> bool {
        self.of_clones().is_some() || self == Self::CopiesUnread || self.is_of_copies()
    }
    /// Whether it shows in machines that are copied while they run, or would start, and in nothing else.
    pub(crate) fn is_of_copies(self) -> bool {
        matches!(
            self,
            Self::StartsWhatIsCopied
                | Self::CopiesWhatRuns
                | Self::UnwantedCopies
                | Self::CopiesOneByOne
                | Self::UnfrozenDisks
                | Self::StateLeftBehind
                | Self::StateUnowned
                | Self::StateUnminded
        )
    }
    /// The scene of clones in which it shows, where what the seed chooses would seldom bring it about.
    pub(crate) fn scene(self) -> Option<crate::clones::Scene> {
        use crate::clones::Scene;
        match self {
            Self::CopiesWhatRuns => Some(Scene::Awoken),
            Self::CopiesOneByOne | Self::UnwantedCopies => Some(Scene::Speechless),
            Self::UnfrozenDisks | Self::StateLeftBehind => Some(Scene::Running),
            Self::StateUnowned => Some(Scene::Hasty),
            Self::StateUnminded => Some(Scene::Unkept),
            _ => None,
        }
    }
    /// What it is for the controllers of machines.
    pub(crate) fn of_machines(self) -> Option<carrack_virt::controllers::Planted> {
        use carrack_virt::controllers::Planted;
        Some(match self {
            Self::MissingHeartbeat => Planted::MissingHeartbeat,
            Self::VanishedNode => Planted::VanishedNode,
            Self::EndedOnDeadNode => Planted::EndedOnDeadNode,
            Self::StateOfInstances => Planted::StateOfInstances,
            Self::CopiesUnread => Planted::CopiesUnread,
            Self::StartsWhatIsCopied => Planted::StartsWhatIsCopied,
            Self::CopiesWhatRuns => Planted::CopiesWhatRuns,
            Self::UnfrozenDisks => Planted::UnfrozenDisks,
            Self::StateLeftBehind => Planted::StateLeftBehind,
            Self::StateUnowned => Planted::StateUnowned,
            _ => return None,
        })
    }
    /// Whether it shows in machines of nodes that die, and in nothing else.
    pub(crate) fn is_of_dead_nodes(self) -> bool {
        matches!(
            self,
            Self::VanishedNode
                | Self::EndedOnDeadNode
                | Self::LateWriter
                | Self::BrokenPromise
                | Self::TameWatchdogs
                | Self::HalfClosed
        )
    }
    /// Whether it shows in claims that ask for more, and in nothing else.
    pub(crate) fn is_of_growth(self) -> bool {
        matches!(self, Self::GrowthAside | Self::GrowthUnheard | Self::GrowthUnproved)
    }
    /// Whether it shows when somebody else leads by then, and in nothing else.
    pub(crate) fn is_of_leaders(self) -> bool {
        matches!(self, Self::EndlessTerms | Self::TermlessBindings | Self::EndlessCalls | Self::StoppedCalls)
    }
    /// Whether it is one of the GPU extender.
    pub(crate) fn is_of_gpus(self) -> bool {
        matches!(self, Self::CacheForLedger | Self::HastyRelease | Self::ChosenBefore)
    }
}
