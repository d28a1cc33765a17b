//! Planted bugs of workloads and of what they share: slices, budgets, quotas, nodes that attach few volumes, owners, namespaces.

use super::{Bug, Plant};

/// All of them.
pub(super) const OF_WORKLOADS: &[Plant] = &[
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
        name: "limits-kept",
        what: "what is made of a quota's limits later holds nobody: those that it was made with do",
        found_by: "quotas-hold",
        also: &[],
        bug: Bug::LimitsKept,
    },
    Plant {
        name: "limits-unheard",
        what: "a scheduler does not hear how many volumes nodes attach",
        found_by: crate::controllers::ATTACH_FEW,
        also: &[],
        bug: Bug::LimitsUnheard,
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
];
