//! What a planted bug is for the part that it is planted in, and in which worlds it shows.

use super::Bug;

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
            Self::ForgottenMemory => Planted::ForgottenMemory,
            Self::HastyShutdowns => Planted::HastyShutdowns,
            Self::ForgottenAllocations => Planted::ForgottenAllocations,
            Self::ForgottenPulls => Planted::ForgottenPulls,
            Self::EndlessSleeps => Planted::EndlessSleeps,
            Self::HooksAside => Planted::HooksAside,
            Self::LateHooks => Planted::LateHooks,
            Self::RestartsAlone => Planted::RestartsAlone,
            Self::ProbesUnnoted => Planted::ProbesUnnoted,
            Self::ReadyUnasked => Planted::ReadyUnasked,
            Self::StatusesOverwrite => Planted::StatusesOverwrite,
            Self::GatesUnread => Planted::GatesUnread,
            Self::DebuggedAgain => Planted::DebuggedAgain,
            Self::DebuggersForgotten => Planted::DebuggersForgotten,
            Self::UnreadServices => Planted::UnreadServices,
            Self::DeferredForever => Planted::DeferredForever,
            Self::ReadOnce => Planted::ReadOnce,
            Self::UnreadIsAbsent => Planted::UnreadIsAbsent,
            Self::RecordsAreMounts => Planted::RecordsAreMounts,
            Self::SharedTokens => Planted::SharedTokens,
            Self::ExpiredTokens => Planted::ExpiredTokens,
            Self::PublishedOnce => Planted::PublishedOnce,
            Self::GrowthAside => Planted::GrowthAside,
            Self::GrowthUnheard => Planted::GrowthUnheard,
            Self::GrowthUnproved => Planted::GrowthUnproved,
            Self::ToldAtOnce => Planted::ToldAtOnce,
            Self::SecretsOverlooked => Planted::SecretsOverlooked,
            Self::BelievedAnnotations => Planted::BelievedAnnotations,
            Self::WordsLost => Planted::WordsLost,
            Self::TornIsKnown => Planted::TornIsKnown,
            Self::UnreadPodsHold => Planted::UnreadPodsHold,
            Self::UnreadVolumesHold => Planted::UnreadVolumesHold,
            Self::IllDevicesGiven => Planted::IllDevicesGiven,
            Self::PreStartsIgnored => Planted::PreStartsIgnored,
            Self::UnwrittenCounts => Planted::UnwrittenCounts,
            Self::UnmountsWhenTold => Planted::UnmountsWhenTold,
            Self::PullsAtOnce => Planted::PullsAtOnce,
            Self::FailedPullsHold => Planted::FailedPullsHold,
            Self::SilenceIsWell => Planted::SilenceIsWell,
            Self::HastySandboxes => Planted::HastySandboxes,
            Self::MirrorsEndPods => Planted::MirrorsEndPods,
            Self::MirrorsLeft => Planted::MirrorsLeft,
            Self::NamesakesTogether => Planted::NamesakesTogether,
            Self::UnreadIsGone => Planted::UnreadIsGone,
            Self::UnknownIsOver => Planted::UnknownIsOver,
            Self::UnreadIsFull => Planted::UnreadIsFull,
            Self::OutdatedIsCurrent => Planted::OutdatedIsCurrent,
            Self::EvictsAtOnce => Planted::EvictsAtOnce,
            Self::CriticalEvicted => Planted::CriticalEvicted,
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
                | Self::OneHoldsAll
                | Self::ForgottenKinds
                | Self::RawNames
                | Self::HastySlices
                | Self::GrantsForgotten
                | Self::ChargesLost
                | Self::LimitsKept
                | Self::LimitsUnheard
                | Self::HastyOwners
                | Self::StaleDependents
                | Self::UnprovedEmptiness
                | Self::UnreadServers
                | Self::TakenClaims
                | Self::BoundsForgotten
                | Self::SilenceIsZero
                | Self::AbsenceRemembered
                | Self::ClocksOfAnother
                | Self::ActsUnlooked
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
                | Self::SpentStay
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
            Self::SpentStay => Some(Scene::Spent),
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
            Self::KeptDisks => Planted::KeptDisks,
            Self::BuriedAlive => Planted::BuriedAlive,
            Self::TaintedAlive => Planted::TaintedAlive,
            Self::StateOfInstances => Planted::StateOfInstances,
            Self::AdoptedUnasked => Planted::AdoptedUnasked,
            Self::UnfilledDisksStart => Planted::UnfilledDisksStart,
            Self::CopiesUnread => Planted::CopiesUnread,
            Self::StartsWhatIsCopied => Planted::StartsWhatIsCopied,
            Self::CopiesWhatRuns => Planted::CopiesWhatRuns,
            Self::UnfrozenDisks | Self::UnfrozenGuests => Planted::UnfrozenDisks,
            Self::StateLeftBehind => Planted::StateLeftBehind,
            Self::StateUnowned => Planted::StateUnowned,
            Self::SpentStay => Planted::SpentStay,
            Self::LeaseByWallClock => Planted::LeaseByWallClock,
            _ => return None,
        })
    }
    /// Whether it shows in machines of nodes that die, and in nothing else.
    pub(crate) fn is_of_dead_nodes(self) -> bool {
        matches!(
            self,
            Self::VanishedNode
                | Self::EndedOnDeadNode
                | Self::KeptDisks
                | Self::BuriedAlive
                | Self::LateWriter
                | Self::BrokenPromise
                | Self::TameWatchdogs
                | Self::HalfClosed
                | Self::LeaseByWallClock
        )
    }
    /// Whether it shows in machines of whole nodes that are snapshotted, cloned and restored, and in nothing else.
    pub(crate) fn is_of_backups(self) -> bool {
        matches!(self, Self::UnfrozenGuests | Self::DeafThaws | Self::BlankCopies)
    }
    /// Whether it shows in claims that ask for more, and in nothing else.
    pub(crate) fn is_of_growth(self) -> bool {
        matches!(self, Self::GrowthAside | Self::GrowthUnheard | Self::GrowthUnproved)
    }
    /// Whether it shows in pods that ask for another size while they run, and in nothing else.
    pub(crate) fn is_of_resizes(self) -> bool {
        matches!(self, Self::ForgottenAllocations | Self::DeferredForever)
    }
    /// Whether it shows in what containers are made of, when they are ready or how they end, and in nothing else.
    pub(crate) fn is_of_starts(self) -> bool {
        matches!(
            self,
            Self::ForgottenPulls
                | Self::UnnotedPulls
                | Self::PullsAtOnce
                | Self::FailedPullsHold
                | Self::ForgottenStops
                | Self::UnreadFiles
                | Self::EndlessSleeps
                | Self::HooksAside
                | Self::LateHooks
                | Self::RestartsAlone
                | Self::ProbesUnnoted
                | Self::ReadyUnasked
                | Self::StatusesOverwrite
                | Self::GatesUnread
                | Self::DebuggedAgain
                | Self::DebuggersForgotten
                | Self::UnreadServices
        )
    }
    /// Whether it shows in static pods, and in nothing else.
    pub(crate) fn is_of_statics(self) -> bool {
        matches!(self, Self::MirrorsEndPods | Self::MirrorsLeft | Self::NamesakesTogether)
    }
    /// Whether it shows in critical pods on a full node, and in nothing else.
    pub(crate) fn is_of_critical(self) -> bool {
        matches!(self, Self::CriticalEnded | Self::CriticalRefused)
    }
    /// Whether it shows in nodes that run low, and in nothing else.
    pub(crate) fn is_of_pressure(self) -> bool {
        matches!(self, Self::UnreadIsFull | Self::OutdatedIsCurrent | Self::EvictsAtOnce | Self::CriticalEvicted)
    }
    /// Whether it shows in calls of a driver's program that go on for too long.
    pub(crate) fn is_of_calls(self) -> bool {
        matches!(self, Self::EndlessCalls | Self::StoppedCalls | Self::OrphanedCalls)
    }
    /// Whether it shows when somebody else leads by then, and in nothing else.
    pub(crate) fn is_of_leaders(self) -> bool {
        matches!(
            self,
            Self::EndlessTerms
                | Self::TermlessBindings
                | Self::EndlessCalls
                | Self::StoppedCalls
                | Self::ClocksOfAnother
                | Self::ActsUnlooked
        )
    }
    /// Whether it is one of the GPU extender.
    pub(crate) fn is_of_gpus(self) -> bool {
        matches!(self, Self::CacheForLedger | Self::HastyRelease | Self::ChosenBefore) || self.is_of_gpu_outsiders()
    }
    /// Whether it shows in what somebody reads who has no cache, and in nothing else.
    pub(crate) fn is_of_reads(self) -> bool {
        matches!(self, Self::NewIsAbsent | Self::BeginningsCut)
    }
    /// Whether it shows in pods with GPUs that come past the scheduler, and in nothing else.
    pub(crate) fn is_of_gpu_outsiders(self) -> bool {
        matches!(self, Self::TenantsChooseGpus | Self::ClaimsAddUp)
    }
}
