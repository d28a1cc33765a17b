//! What can be left out of a run, by name: each kind of fault, and who takes part besides.
//!
//! All is drawn first, and what is left out is cleared then: so one switch does not turn the others. A new fault is one more row.

use std::time::Duration;

use carrack_engine::Rng;

use super::{Options, Swarm};
use crate::plants::Bug;

/// Something that the seed may have chosen, and that a run can do without.
#[derive(Debug)]
pub struct Switch {
    /// Its name on the command line.
    pub name: &'static str,
    /// What happens, or who takes part, where it is on.
    pub sentence: &'static str,
    off: fn(&mut Swarm),
}

const fn switch(name: &'static str, sentence: &'static str, off: fn(&mut Swarm)) -> Switch {
    Switch { name, sentence, off }
}

/// The first of those who take part: before it in the list stands what goes wrong.
const FIRST_OF_CAST: &str = "meddler";

/// All of them. A small run begins with a cluster that is there already: who takes part in it cannot be left out there.
pub const SWITCHES: &[Switch] = &[
    switch("crashes", "processes are killed, or told to end", |swarm| swarm.intervals.crash = None),
    switch("crashes-at-work", "processes die between two effects", |swarm| swarm.crash_one_in_effects = 0),
    switch("server-crashes", "API servers die", |swarm| swarm.intervals.apiserver_crash = None),
    switch("pauses", "processes hang", |swarm| swarm.intervals.pause = None),
    switch("cuts", "processes are cut off from the API server", |swarm| swarm.intervals.cut = None),
    switch("half-cuts", "processes are cut off one way, or from one API server", |swarm| {
        swarm.intervals.half_cut = None;
    }),
    switch("stalls", "processes stop for longer than a lease lasts", |swarm| swarm.intervals.stall = None),
    switch("clock-jumps", "machines' clocks are set", |swarm| swarm.intervals.clock = None),
    switch("server-clock-jumps", "API servers' clocks are set", |swarm| swarm.intervals.server_clock = None),
    switch("forgotten-history", "history is forgotten, and all watches end", |swarm| swarm.intervals.expire = None),
    switch("floods", "somebody asks too often", |swarm| swarm.intervals.flood = None),
    switch("reboots", "nodes are shut down, or lose their power for a moment", |swarm| swarm.intervals.reboot = None),
    switch("lost-nodes", "a node of machines loses its power for minutes", |swarm| swarm.intervals.lose = None),
    switch("vanishing-nodes", "hollow nodes lose their power", |swarm| swarm.intervals.vanish = None),
    switch("stranded-nodes", "a node is cut off with nobody to look after its guests", |swarm| {
        swarm.intervals.strand = None;
    }),
    switch("hanging-launchers", "launchers hang before their machine starts", |swarm| swarm.launcher_hangs_one_in = 0),
    switch("plugin-flaps", "device plugins come and go", |swarm| swarm.intervals.plugin = None),
    switch("moods", "device plugins lose devices, call some ill, and answer late, wrongly or not at all", |swarm| {
        swarm.intervals.moods = None;
        swarm.node.plugin_whims_one_in = 0;
    }),
    switch("pre-starts", "device plugins are told before a container starts, and may fail then", |swarm| {
        swarm.node.pre_starts = false;
    }),
    switch("full-disks", "nodes' disks are full for a while", |swarm| swarm.intervals.full_disk = None),
    switch("full-store", "the store of the API servers is full for a while", |swarm| swarm.intervals.full_store = None),
    switch("absent-runtimes", "nodes' container runtimes are away for a while, or hang", |swarm| {
        swarm.intervals.runtime_away = None;
    }),
    switch("absent-drivers", "nodes' CSI drivers are away for a while", |swarm| swarm.intervals.driver_away = None),
    switch("lying-drivers", "CSI drivers say that they have done what they have not", |swarm| {
        swarm.node.lies_one_in = 0;
    }),
    switch("unkind-runtimes", "runtimes show what is torn or not all, and lose sight of what runs", |swarm| {
        swarm.node.unkind_one_in = 0;
    }),
    switch("container-exits", "containers end", |swarm| swarm.intervals.container_exit = None),
    switch("sandbox-ends", "pods' sandboxes end under them", |swarm| swarm.intervals.sandbox = None),
    switch("guest-ends", "guests shut down, panic or lose their monitor", |swarm| swarm.intervals.guest = None),
    switch("chatter", "a guest's agent comes and goes", |swarm| swarm.intervals.chatter = None),
    switch("forced-deletions", "somebody deletes pods by force", |swarm| swarm.intervals.force_delete = None),
    switch("evictions", "somebody evicts launchers", |swarm| swarm.intervals.evict = None),
    switch("slow-network", "messages are slow now and then", |swarm| swarm.net.latency.slow_one_in = 0),
    switch("lost-requests", "requests are lost", |swarm| swarm.net.lose_request_one_in = 0),
    switch("lost-replies", "replies are lost after the commit", |swarm| swarm.net.lose_reply_one_in = 0),
    switch("denied-writes", "writes that were made are answered as if something had gone wrong", |swarm| {
        swarm.net.denied_one_in = 0;
    }),
    switch("late-requests", "requests arrive when they were given up", |swarm| swarm.net.late_one_in = 0),
    switch("late-bindings", "bindings arrive when they were given up", |swarm| swarm.net.late_binding_one_in = 0),
    switch("repeats", "requests arrive twice", |swarm| swarm.net.repeat_one_in = 0),
    switch("lagging-watches", "watches lag", |swarm| swarm.net.watch_lags_one_in = 0),
    switch("breaking-watches", "watches break", |swarm| swarm.net.watch_breaks_one_in = 0),
    switch("skew", "clocks are apart", |swarm| swarm.skew = Duration::ZERO),
    switch("slow-store", "the store's operations wait", |swarm| swarm.store_pending_one_in = 0),
    switch("slow-runtime", "a runtime's operations are slow now and then", |swarm| {
        swarm.node.operation.slow_one_in = 0;
    }),
    switch("failing-runtime", "operations on a node fail", |swarm| swarm.node.fail_one_in = 0),
    switch("spoilt-starts", "containers that a runtime fails to start have ended", |swarm| {
        swarm.node.spoils_starts = false;
    }),
    switch("late-plugins", "plugins find a kubelet late", |swarm| swarm.node.plugin_late_one_in = 0),
    switch("slow-growth", "file systems grow slowly", |swarm| swarm.node.grows_slowly_one_in = 0),
    switch("torn-checkpoints", "a loss of power tears the states of a kubelet's managers", |swarm| {
        swarm.node.tears_one_in = 0
    }),
    switch("lost-records", "a loss of power takes a kubelet's last records", |swarm| swarm.node.loses_one_in = 0),
    switch("deaf-disks", "containers of disks do not hear that they are to end", |swarm| swarm.deaf_disks = false),
    switch("slow-tokens", "who issues tokens refuses, or is slow", |swarm| swarm.others.tokens = false),
    switch("lost-gpu-calls", "calls of the GPU extender are lost, late, or come twice", |swarm| {
        swarm.others.gpu_calls = false;
    }),
    switch("failing-copies", "copies of disks hang or fail", |swarm| swarm.others.copies = false),
    switch("failing-calls", "calls to guests' handlers, of meters and of metrics fail", |swarm| {
        swarm.others.calls = false;
    }),
    switch("failing-extender", "the extender misbehaves", |swarm| swarm.others.extender = false),
    switch("failing-attacher", "the CSI driver fails", |swarm| swarm.others.attacher = false),
    switch("silent-meters", "an aggregated API does not say what it serves", |swarm| swarm.others.meters = false),
    switch("lying-metrics", "metrics are late, and not as they should be", |swarm| swarm.others.metrics = false),
    switch("late-services", "kubelets hear of services late", |swarm| swarm.others.services = false),
    switch("late-contents", "who makes contents of snapshots is held up, or dies", |swarm| {
        swarm.others.contents = false;
    }),
    switch("slow-webhook", "the webhook is slow now and then", |swarm| swarm.webhook_delay.slow_one_in = 0),
    switch("wrong-webhook", "the webhook's answers are wrong", |swarm| swarm.webhook_wrong_one_in = 0),
    switch("meddler", "somebody says what only components may say", |swarm| swarm.meddles = false),
    switch("onlooker", "somebody who may only read tries to write", |swarm| swarm.looked_on = false),
    switch("reader", "somebody reads what was just made, and watches without a list before", |swarm| {
        swarm.reads = false
    }),
    switch("gpu-outsiders", "pods with GPUs come past the scheduler", |swarm| swarm.gpu_outsiders = false),
    switch("forgetful-servers", "API servers do not keep all of a pod's status", |swarm| swarm.forgetful = false),
    switch("webhook", "a webhook is asked about pods", |swarm| swarm.webhook = false),
    switch("extender", "the scheduler asks an extender", |swarm| swarm.extender = None),
    switch("more-servers", "there are several API servers", |swarm| swarm.servers = 1),
    switch("third-node", "there are three nodes", |swarm| swarm.nodes = swarm.nodes.min(2)),
    switch("second-node", "there are several nodes", |swarm| {
        swarm.nodes = 1;
        // Who refuses a node knows of another one.
        swarm.extender.iter_mut().for_each(|verbs| verbs.finicky = false);
    }),
    switch("standby-controllers", "a second process of the controllers", |swarm| swarm.standby = false),
    switch("standby-scheduler", "a second process of the scheduler", |swarm| swarm.standby_scheduler = false),
    switch("standby-attacher", "a second process attaches disks", |swarm| swarm.standby_attacher = false),
    switch("elections", "leaders are elected, and others stand by", |swarm| {
        swarm.elect = false;
        (swarm.standby, swarm.standby_scheduler, swarm.standby_attacher) = (false, false, false);
    }),
    switch("cloner-apart", "the controller of clones has a process of its own", |swarm| swarm.cloner_apart = false),
    switch("nameless-targets", "targets of clones are named by their controller", |swarm| {
        swarm.nameless_targets = false;
    }),
    switch("watchdogs", "virt-handlers use watchdogs", |swarm| swarm.watchdogs = None),
    switch("zones", "kubelets say in which zones their nodes are", |swarm| swarm.zones = false),
    switch("kept-memory", "kubelets keep memory of NUMA nodes for containers", |swarm| swarm.keeps_memory = false),
    switch("bounded-pulls", "kubelets pull few images at a time", |swarm| swarm.parallel_pulls = None),
];

impl Options {
    /// Whether the end is held against that of the same run without trouble.
    pub(crate) fn is_compared(&self) -> bool {
        self.compares || self.plant.is_some_and(|plant| plant.bug == Bug::AmountsForgotten)
    }

    /// The same with the same people and the same work, where nothing goes wrong.
    pub(crate) fn without_trouble(&self) -> Self {
        let faults = SWITCHES.iter().map(|switch| switch.name).take_while(|name| *name != FIRST_OF_CAST);
        let without = self.without.iter().copied().chain(faults).collect();
        Self { without, compares: false, keep_trace: false, draw: false, ..self.clone() }
    }
}

impl Swarm {
    /// What the seed chooses, but for what is left out.
    pub(crate) fn draw(root: &Rng, options: &Options) -> Self {
        let mut swarm = Self::drawn(root, options);
        for switch in SWITCHES.iter().filter(|switch| options.without.contains(&switch.name)) {
            (switch.off)(&mut swarm);
        }
        swarm
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::intervals::Intervals;
    use crate::options::{NetFaults, NodeFaults, OtherFaults};

    /// What seeds choose in runs of each kind, without the switches of these names.
    fn drawn(without: &[&'static str]) -> Vec<Swarm> {
        let usual = Options { without: without.to_vec(), ..Options::default() };
        let kinds = [
            usual.clone(),
            Options { workloads: true, ..usual.clone() },
            Options { gpus: true, ..usual.clone() },
            Options { clones: true, ..usual },
        ];
        let mut drawn = Vec::new();
        for options in &kinds {
            drawn.extend((1..=40).map(Rng::new).map(|root| Swarm::draw(&root, &options.of_seed(&root))));
        }
        drawn
    }

    #[test]
    fn each_switch_turns_something_off() {
        let texts = |swarms: Vec<Swarm>| swarms.iter().map(|swarm| format!("{swarm:?}")).collect::<Vec<_>>();
        let all = texts(drawn(&[]));
        let mut names = BTreeSet::new();
        for switch in SWITCHES {
            assert!(names.insert(switch.name), "{} is there twice", switch.name);
            assert!(!switch.name.contains([' ', ',']), "{} cannot be typed", switch.name);
            assert_ne!(texts(drawn(&[switch.name])), all, "{} turns nothing off", switch.name);
        }
    }

    #[test]
    fn nothing_goes_wrong_without_trouble_and_all_take_part() {
        let usual = Options { without: vec!["zones"], compares: true, ..Options::default() };
        let calm = usual.without_trouble();
        assert!(calm.without.len() > 40 && calm.without.contains(&"zones") && !calm.compares, "{:?}", calm.without);
        let is_left = |name: &str| SWITCHES.iter().any(|switch| switch.name == name) && !calm.without.contains(&name);
        for name in ["meddler", "webhook", "more-servers", "elections", "bounded-pulls"] {
            assert!(is_left(name), "{name} is left out");
        }
        for root in (1..=40).map(Rng::new) {
            let Swarm { intervals, crash_one_in_effects, skew, .. } = Swarm::draw(&root, &calm.of_seed(&root));
            assert_eq!(format!("{intervals:?}"), format!("{:?}", Intervals::default()));
            assert!(crash_one_in_effects == 0 && skew.is_zero());
        }
    }

    /// What remains is how long things take. A fault without a row shows here.
    #[test]
    fn each_fault_has_a_switch() {
        let names: Vec<&str> = SWITCHES.iter().map(|switch| switch.name).collect();
        for swarm in drawn(&names) {
            let Swarm { net, node, intervals, others, .. } = swarm.clone();
            let NetFaults { latency, latest, watch_lag, watch_life, timeout, .. } = net;
            let none = NetFaults { latency, latest, watch_lag, watch_life, timeout, ..NetFaults::none() };
            assert_eq!(format!("{net:?}"), format!("{none:?}"));
            let none = NodeFaults { operation: node.operation, ..NodeFaults::none() };
            assert_eq!(format!("{node:?}"), format!("{none:?}"));
            assert_eq!(format!("{intervals:?}"), format!("{:?}", Intervals::default()));
            assert_eq!(format!("{others:?}"), format!("{:?}", OtherFaults::of(false)));
            let slow = [net.latency, node.operation, swarm.webhook_delay].map(|delay| delay.slow_one_in);
            let rest = [swarm.crash_one_in_effects, swarm.store_pending_one_in, swarm.webhook_wrong_one_in];
            assert_eq!((slow, rest, swarm.launcher_hangs_one_in), ([0; 3], [0; 3], 0));
            assert!(swarm.skew.is_zero() && swarm.nodes == 1 && swarm.servers == 1 && swarm.extender.is_none());
        }
    }
}
