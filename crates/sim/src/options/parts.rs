//! The parts of the work, by name: which of them there are in a run, and which of those are done.

use carrack_engine::Rng;

use super::Options;
use crate::controllers::{AUTOSCALERS, EDITS, LIMITS};

/// A part of the work.
#[derive(Debug)]
pub struct Part {
    /// Its name on the command line.
    pub name: &'static str,
    /// What people do.
    pub sentence: &'static str,
    /// The name under which its chances are drawn.
    drawn: &'static str,
}

const fn part(name: &'static str, sentence: &'static str) -> Part {
    Part { name, sentence, drawn: name }
}

const fn drawn_as(drawn: &'static str, name: &'static str, sentence: &'static str) -> Part {
    Part { name, sentence, drawn }
}

/// All parts of the work that can be left out.
pub const PARTS: &[Part] = &[
    part("pods", "pods with devices and files come and go"),
    part("claims", "disks are attached from outside, and pods with them come and go"),
    part("tenants", "claims of classes whose volumes are made on the nodes"),
    part("growth", "claims ask for more while their pods run"),
    part("parents", "config maps of a controller that draws its children's names"),
    part("namespaces", "a namespace comes, is filled and goes"),
    part("settings", "config maps change that pods have as files"),
    part("tokens", "pods whose CSI driver wants tokens"),
    part("resizes", "running pods ask for another size"),
    part(crate::images::PART, "pods use an image that few may pull"),
    part(crate::reimaged::PART, "running pods get another image"),
    drawn_as(crate::env_files::PART, "env-files", "pods have variables from a file"),
    part(crate::sleepers::PART, "pods have hooks that sleep"),
    part(crate::probed::PART, "pods have probes that fail"),
    part(crate::links::PART, "pods have variables for services"),
    part(crate::asked::PART, "pods have to pass a probe first"),
    part(crate::ordered::PART, "containers start and end one after another"),
    part(crate::rounds::PART, "all containers of pods start again together"),
    part(crate::gates::PART, "pods have readiness gates that others open and shut"),
    part(crate::debuggers::PART, "somebody looks into pods with ephemeral containers"),
    part(crate::nominations::PART, "pods wait for others to go from a node"),
    part(crate::snapshots::PART, "volumes are snapshotted, and the snapshots deleted"),
    part(crate::phantoms::PART, "pods wait for nodes that are nothing but their objects"),
    part(crate::closings::PART, "nodes close while an extender thinks"),
    part(crate::impostors::PART, "pods call themselves static"),
    part(crate::drains::PART, "nodes are added, drained and taken away"),
    part(crate::statics::PART, "manifests of static pods are written, changed and removed on nodes"),
    part(crate::pressure::PART, "nodes run low, and pods are evicted for that"),
    part("machines", "machines are made, switched and deleted"),
    part("steady", "machines run all the time"),
    part("sets", "a set of equal instances grows and shrinks"),
    part("keepers", "a machine's firmware keeps its variables"),
    part("reruns", "machines run again after failures alone"),
    drawn_as(crate::disks::PART, "hasty-machines", "machines go as soon as they have come"),
    drawn_as(crate::taints::PART, "misplaced-taints", "nodes that are ready are said to be out of service"),
    part(crate::fickle::PART, "machines start anew and are switched off"),
    part(crate::imports::PART, "machines have disks that somebody fills who is late, fails and lies"),
    part(crate::heritage::PART, "machines leave their instance behind"),
    part(crate::backups::PART, "machines are snapshotted while they run, cloned and restored"),
    part(crate::backups::COPIED, "the same, with disks that storage takes no snapshots of, and that are copied"),
    part("gpus", "pods share GPUs"),
    part("definitions", "kinds go with their definition"),
    part("deployments", "Deployments are rolled, scaled and paused"),
    part("stateful", "StatefulSets with claims"),
    part("daemon", "a DaemonSet"),
    part("jobs", "Jobs"),
    part("times", "CronJobs"),
    part("services", "services with endpoints"),
    part("budgets", "pods are evicted as a budget allows"),
    part("quotas", "namespaces with a quota"),
    drawn_as(EDITS, "quota-edits", "quotas change while pods come and go"),
    part("endings", "owners and namespaces go with what is theirs, or without"),
    part("scratch", "pods with claims that go with them"),
    drawn_as(LIMITS, "attachment-limits", "a node attaches few volumes"),
    part(AUTOSCALERS, "a Deployment has as many pods as its metrics ask for"),
];

/// Which parts of the work there are in a run, and which are done.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    there: There,
    /// None: all that there are.
    kept: Option<Vec<&'static str>>,
}

#[derive(Clone, Debug)]
enum There {
    All,
    /// About half of them: a swarm.
    Half(Box<Rng>),
    /// A small run.
    Only(Vec<&'static str>),
}

impl Options {
    /// Which parts of the work there are.
    pub(crate) fn parts(&self, root: &Rng) -> Parts {
        let there = match &self.only {
            Some(only) => There::Only(only.clone()),
            None if self.swarm => There::Half(Box::new(root.fork("parts of the work"))),
            None => There::All,
        };
        Parts { there, kept: self.kept_parts.clone() }
    }
}

impl Parts {
    /// Whether a part is one of them, and done.
    pub(crate) fn has(&self, part: &str) -> bool {
        let is_there = match &self.there {
            There::All => true,
            There::Half(rng) => rng.fork(part).one_in(2),
            There::Only(only) => only.contains(&part),
        };
        is_there && self.keeps(part)
    }

    /// Whether a part is done if it is there.
    pub(crate) fn keeps(&self, part: &str) -> bool {
        let row = PARTS.iter().find(|row| row.drawn == part);
        debug_assert!(row.is_some(), "{part} is missing in the list of parts");
        match (&self.kept, row) {
            (Some(kept), Some(row)) => kept.contains(&row.name),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_can_be_typed_and_are_unique() {
        let mut names = BTreeSet::from([Options::NO_PART]);
        for part in PARTS {
            assert!(names.insert(part.name), "{} is there twice", part.name);
            assert!(!part.name.contains([' ', ',']), "{} cannot be typed", part.name);
        }
    }

    #[test]
    fn what_is_not_kept_is_not_done() {
        let root = Rng::new(1);
        let check = |only: Option<&[&'static str]>, kept: Option<&[&'static str]>, expected: [bool; 2]| {
            let options =
                Options { only: only.map(<[_]>::to_vec), kept_parts: kept.map(<[_]>::to_vec), ..Options::default() };
            let parts = options.parts(&root);
            assert_eq!(["pods", "env files"].map(|part| parts.has(part)), expected, "{only:?}, {kept:?}");
        };
        check(None, None, [true, true]);
        check(None, Some(&["env-files"]), [false, true]);
        check(None, Some(&[]), [false, false]);
        check(Some(&["pods"]), None, [true, false]);
        check(Some(&["pods"]), Some(&["env-files"]), [false, false]);
    }
}
