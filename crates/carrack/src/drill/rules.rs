//! What a drill's verdict is about: invariants by name.
//!
//! Where the simulator checks the same, name and sentence are the simulator's own. The marks (D1, V4) are those under which
//! `docs/incidents` tells what happened.

use carrack_sim::INVARIANTS;

/// An invariant that drills look at.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its mark.
    pub mark: &'static str,
    /// Its name.
    pub name: &'static str,
    /// What must hold; empty where the simulator says it.
    own_sentence: &'static str,
}

impl Rule {
    /// What must hold.
    pub fn sentence(&self) -> &'static str {
        let known = INVARIANTS.iter().find(|invariant| invariant.name == self.name);
        known.map_or(self.own_sentence, |invariant| invariant.sentence)
    }
}

const fn of_simulator(mark: &'static str, name: &'static str) -> Rule {
    Rule { mark, name, own_sentence: "" }
}

/// Incident 1.
pub const PLUGIN_ABSENCE: Rule = of_simulator("D1", "plugin-absence-never-fails-a-pod");
/// Incident 1.
pub const DEVICES_OF_THIS_BOOT: Rule = of_simulator("D2", "devices-are-of-this-boot");
/// Incident 1.
pub const DEVICE_HELD_ONCE: Rule = of_simulator("D3", "device-held-once");
/// Incident 1.
pub const DELETED_PODS_GO: Rule = of_simulator("D4", "deleted-pods-go");
/// Incident 1.
pub const MACHINES_RUN: Rule = Rule {
    mark: "D7",
    name: "machines-run",
    own_sentence: "A machine that is always to run has a running guest once a node is well.",
};
/// Incidents 1 and 2.
pub const ONE_GUEST: Rule = of_simulator("D7", "one-guest-per-vm");
/// Incident 2.
pub const FAILED_ON_PROOF: Rule = of_simulator("N1", "failed-on-proof");
/// Incident 2.
pub const LAUNCHER_ALONE: Rule = Rule {
    mark: "N5",
    name: "launchers-follow-one-another",
    own_sentence: "A machine gets a new launcher pod only when every pod of its instance before is gone.",
};
/// Incident 3.
pub const CHILD_ONCE: Rule = of_simulator("C1", "clones-make-once");
/// Incident 3.
pub const CHILD_KNOWN: Rule = of_simulator("C2", "clones-name-their-own");
/// Incident 3.
pub const NOTHING_LEFT: Rule = Rule {
    mark: "C3",
    name: "clones-leave-nothing",
    own_sentence: "Of a clone that has succeeded neither snapshot nor restore is left.",
};
/// Incident 3.
pub const CLONES_SUCCEED: Rule = Rule {
    mark: "C5",
    name: "clones-succeed-under-lag",
    own_sentence: "However late its controller hears of what it wrote, and wherever it dies, a clone ends with its target.",
};
/// Incident 4.
pub const NOMINATIONS: Rule = Rule {
    mark: "S2",
    name: "nobody-is-nominated-for-nothing",
    own_sentence: "A pod that is bound is nominated nowhere, and with nobody pending nobody is nominated.",
};
/// Incident 4.
pub const GPU_BOUNDS: Rule = of_simulator("S5", "gpus-within-bounds");
/// Incident 4.
pub const ROOM_IS_USED: Rule = Rule {
    mark: "S4",
    name: "room-is-used",
    own_sentence: "As many pods run as there is room for: none is pending beside room that something else seems to take.",
};
/// Incident 5.
pub const VOLUME_IN_USE: Rule = of_simulator("V1", "volume-in-use-stays");
/// Incident 5.
pub const DISK_IN_USE: Rule = of_simulator("V3", "disk-in-use-stays");
/// Incident 5.
pub const MOUNTS_STAY: Rule = of_simulator("V4", "mounts-outlive-agents");
/// Incident 5.
pub const UNWANTED_GO: Rule = of_simulator("V5", "unwanted-volumes-go");
/// Incident 5.
pub const DATA_STAYS: Rule = Rule {
    mark: "V6",
    name: "written-data-stays",
    own_sentence: "What a container wrote is on its disk, in its order and without a gap.",
};
/// Incident 5.
pub const OTHERS_GO_ON: Rule = Rule {
    mark: "V7",
    name: "hung-volumes-hold-up-nobody",
    own_sentence: "A volume that does not answer holds up the containers that use it, and no other pod of its node.",
};
/// Killed agents.
pub const CONTAINERS_STAY: Rule = of_simulator("L7", "wanted-containers-are-not-killed");
/// Killed agents.
pub const ACKNOWLEDGED_STAYS: Rule = Rule {
    mark: "L7",
    name: "acknowledged-writes-stay",
    own_sentence: "What the API server acknowledged is there after it was killed.",
};
/// Killed agents.
pub const WORK_GOES_ON: Rule = Rule {
    mark: "L7",
    name: "killed-roles-come-back",
    own_sentence: "A role that was killed works again when it is started again, and the cluster does what is asked of it.",
};

#[cfg(test)]
mod tests {
    use carrack_sim::INVARIANTS;

    use crate::drill::stories::STORIES;

    #[test]
    fn every_rule_has_a_sentence_and_every_story_rules() {
        for story in STORIES {
            assert!(!story.rules.is_empty(), "{}", story.name);
            for rule in story.rules {
                assert!(rule.sentence().ends_with('.'), "{} says nothing", rule.name);
                assert!(rule.mark.len() == 2, "{}", rule.mark);
                // Two sentences for one invariant would drift apart, and only one of them is told.
                let is_simulated = INVARIANTS.iter().any(|invariant| invariant.name == rule.name);
                assert_eq!(rule.own_sentence.is_empty(), is_simulated, "{}", rule.name);
            }
        }
    }
}
