//! Whoever waits for an event is told of the one that helps: clusters that change at random, and after each change filters that are
//! asked anew, of the objects as they are, about every pod that waits.

use std::collections::VecDeque;
use std::fmt::Write as _;

use carrack_engine::StatusError;
use k8s_openapi::api::core::v1::Node;

use super::*;
use crate::Question;

/// A cluster whose objects change, and what was done to it.
struct Cluster {
    world: World,
    rng: Rng,
    nodes: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    /// What the watches of pods and of nodes have not told yet.
    untold: [VecDeque<(&'static str, Value)>; 2],
    made: usize,
    bound: usize,
    done: String,
}

fn read<K: serde::de::DeserializeOwned>(object: &Value) -> Arc<K> {
    Arc::new(serde_json::from_value(object.clone()).expect("an object"))
}

fn random_node(name: &str, rng: &mut Rng) -> Value {
    let mut node = node(name, "1");
    node["metadata"]["labels"] = json!({"kubernetes.io/hostname": name});
    for _ in 0..6 {
        change(&mut node, rng);
    }
    node
}

/// Something of a node becomes another.
fn change(node: &mut Value, rng: &mut Rng) {
    match rng.below(5) {
        0 => node["metadata"]["labels"]["schedulable"] = if rng.one_in(3) { "false" } else { "true" }.into(),
        1 => {
            let taint = json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
            node["spec"]["taints"] = if rng.one_in(3) { taint } else { json!([]) };
        }
        2 => node["spec"]["unschedulable"] = rng.one_in(4).into(),
        3 => node["status"]["allocatable"]["example.com/widget"] = if rng.one_in(2) { "2" } else { "0" }.into(),
        _ => node["status"]["allocatable"]["cpu"] = if rng.one_in(3) { "500m" } else { "1" }.into(),
    }
}

impl Cluster {
    fn new(seed: u64, core: Scheduler) -> Self {
        let mut rng = Rng::new(seed);
        let count = 1 + rng.below(3);
        let names = (0..count).map(|number| format!("n{number}"));
        let nodes: BTreeMap<String, Value> = names.map(|name| (name.clone(), random_node(&name, &mut rng))).collect();
        let world = World::of(core, nodes.values().cloned().collect(), Vec::new());
        let untold = [VecDeque::new(), VecDeque::new()];
        Self { world, rng, nodes, pods: BTreeMap::new(), untold, made: 0, bound: 0, done: String::new() }
    }
    fn note(&mut self, what: &str) {
        writeln!(self.done, "{} {what}", self.world.now.rfc3339()).expect("memory");
    }
    fn tell_pod(&mut self, kind: &'static str, name: &str) {
        let Some(pod) = self.pods.get_mut(name) else { return };
        self.world.revision += 1;
        pod["metadata"]["resourceVersion"] = self.world.revision.to_string().into();
        let pod = pod.clone();
        if kind == "DELETED" {
            self.pods.remove(name);
        }
        self.untold[0].push_back((kind, pod));
    }
    fn tell_node(&mut self, kind: &'static str, mut node: Value) {
        self.world.revision += 1;
        node["metadata"]["resourceVersion"] = self.world.revision.to_string().into();
        self.untold[1].push_back((kind, node));
    }
    /// The watches tell what they have, each in its order; one may lag behind the other.
    fn catch_up(&mut self) {
        for at in [0, 1] {
            while (self.rng.one_in(2) || self.untold[at].len() > 3)
                && let Some((kind, object)) = self.untold[at].pop_front()
            {
                let watched = ["/api/v1/pods", "/api/v1/nodes"][at];
                let id = *self.world.watches.get(watched).expect("it watches");
                self.note(&format!("the watch tells: {kind} {} {}", object["kind"], object["metadata"]["name"]));
                let event = json!({"type": kind, "object": object});
                self.world.step(Input::Watch { id, item: WatchItem::Event(event.to_string().into()) });
            }
        }
    }
    fn any_pod(&mut self, bound: bool) -> Option<String> {
        let names: Vec<&String> =
            self.pods.iter().filter(|(_, pod)| pod["spec"]["nodeName"].is_string() == bound).map(|(n, _)| n).collect();
        let at = self.rng.below(names.len().max(1) as u64);
        names.get(usize::try_from(at).expect("small")).map(|name| (*name).clone())
    }
    fn add(&mut self) {
        self.made += 1;
        let name = format!("p{}", self.made);
        let mut pod = pod(&name, if self.rng.one_in(2) { "300m" } else { "600m" });
        if self.rng.one_in(2) {
            let many = json!({"example.com/widget": (1 + self.rng.below(2)).to_string()});
            pod["spec"]["containers"][0]["resources"]["limits"] = many.clone();
            pod["spec"]["containers"][0]["resources"]["requests"]["example.com/widget"] =
                many["example.com/widget"].clone();
        }
        if self.rng.one_in(2) {
            pod["spec"]["nodeSelector"] = json!({"schedulable": "true"});
        }
        if self.rng.one_in(3) {
            pod["metadata"]["labels"] = json!({"app": "apart"});
            let term =
                json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "apart"}}});
            pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!([term]);
        }
        if self.rng.one_in(4) {
            pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
        }
        pod["spec"]["priority"] = if self.rng.one_in(3) { 100 } else { 0 }.into();
        self.note(&format!("{name} comes: {}", pod["spec"]));
        self.pods.insert(name.clone(), pod);
        self.tell_pod("ADDED", &name);
    }
    /// Something happens.
    fn act(&mut self) {
        match self.rng.below(10) {
            0..3 => self.add(),
            3 => {
                let bound = !self.rng.one_in(4);
                if let Some(name) = self.any_pod(bound) {
                    self.note(&format!("{name} goes"));
                    self.tell_pod("DELETED", &name);
                }
            }
            4 => {
                if let Some(name) = self.any_pod(true) {
                    let ends = self.rng.one_in(2);
                    self.note(&format!("{name} {}", if ends { "has ended" } else { "is to go" }));
                    if let Some(pod) = self.pods.get_mut(&name) {
                        match ends {
                            true => pod["status"]["phase"] = "Succeeded".into(),
                            false => pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into(),
                        }
                    }
                    self.tell_pod("MODIFIED", &name);
                }
            }
            5 if self.rng.one_in(4) => {
                let at = usize::try_from(self.rng.below(self.nodes.len().max(1) as u64)).expect("small");
                match self.nodes.keys().nth(at).cloned() {
                    Some(name) if self.rng.one_in(2) => {
                        self.note(&format!("{name} goes"));
                        if let Some(node) = self.nodes.remove(&name) {
                            self.tell_node("DELETED", node);
                        }
                    }
                    _ => {
                        let name = format!("n{}", self.rng.below(3));
                        if !self.nodes.contains_key(&name) {
                            let node = random_node(&name, &mut self.rng);
                            self.note(&format!("{name} comes: {node}"));
                            self.nodes.insert(name, node.clone());
                            self.tell_node("ADDED", node);
                        }
                    }
                }
            }
            5..8 => {
                let at = usize::try_from(self.rng.below(self.nodes.len().max(1) as u64)).expect("small");
                if let Some((name, node)) = self.nodes.iter_mut().nth(at) {
                    for _ in 0..=self.rng.below(3) {
                        change(node, &mut self.rng);
                    }
                    let (name, node) = (name.clone(), node.clone());
                    self.note(&format!("{name} changes: {node}"));
                    self.tell_node("MODIFIED", node);
                }
            }
            _ => {
                let seconds = 1 + self.rng.below(12);
                self.note(&format!("{seconds} s pass"));
                self.world.pass(s(seconds));
            }
        }
    }
    /// Requests are answered, and what they change is told.
    fn serve(&mut self) {
        while !self.world.sent.is_empty() {
            let (call, request) = self.world.sent.remove(0);
            if !request.path.contains("/pods/") {
                self.world.reply(call, Ok(json!({})));
                continue;
            }
            let path: Vec<&str> = request.path.split('/').collect();
            let name = path.get(6).copied().unwrap_or_default().to_owned();
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let broken = self.rng.one_in(8);
            let lost = || ApiError::Transport("no reply".to_owned());
            if !self.pods.contains_key(&name) {
                let gone = StatusError { code: 404, reason: "NotFound".to_owned(), ..StatusError::default() };
                self.world.reply(call, Err(ApiError::Status(Box::new(gone))));
                continue;
            }
            if broken && self.rng.one_in(2) {
                self.note(&format!("{:?} {} is lost", request.method, request.path));
                self.world.reply(call, Err(lost()));
                continue;
            }
            self.note(&format!("{:?} {} {}", request.method, request.path, if broken { "reply lost" } else { "" }));
            let pod = self.pods.get_mut(&name).expect("it is there");
            let kind = match request.method {
                Method::Get => "",
                Method::Delete => "DELETED",
                Method::Post => {
                    self.bound += 1;
                    pod["spec"]["nodeName"] = body["target"]["name"].clone();
                    "MODIFIED"
                }
                _ => {
                    if let Some(nominated) = body["status"].get("nominatedNodeName") {
                        pod["status"]["nominatedNodeName"] = nominated.clone();
                    }
                    if body["status"].get("conditions").is_some() {
                        pod["status"]["conditions"] = body["status"]["conditions"].clone();
                    }
                    "MODIFIED"
                }
            };
            if !kind.is_empty() {
                self.tell_pod(kind, &name);
            }
            let reply = self.pods.get(&name).cloned().unwrap_or_else(|| json!({}));
            // The watch may be faster than the reply.
            if self.rng.one_in(2) {
                self.catch_up();
            }
            self.world.reply(call, if broken { Err(lost()) } else { Ok(reply) });
        }
    }
    /// Once everything was told, no node takes a pod that waits for an event.
    fn check(&self) -> Result<(), String> {
        self.world.check();
        if self.untold.iter().any(|events| !events.is_empty()) {
            return Ok(());
        }
        let core = &self.world.core;
        let waits = |row: &&crate::Row| matches!(row.place, Place::Unschedulable { .. }) && row.nominated.is_none();
        let mut cluster = core.cluster().bare();
        for node in self.nodes.values() {
            cluster.set_node(read::<Node>(node));
        }
        for pod in self.pods.values() {
            let pod = read::<crate::Pod>(pod);
            cluster.set_pod(&pod);
            let on = core.cluster().node_of(pod.uid()).filter(|_| core.cluster().is_assumed(pod.uid()));
            if let Some(id) = on.and_then(|name| cluster.find(name)) {
                let info = cluster.read(pod);
                cluster.assume(info, id);
            }
        }
        let mut decider = Decider::new(cluster);
        for row in core.queue().iter().filter(waits) {
            let nominated =
                |node: &str| core.queue().nominated_to(node).filter(|p| p.uid != row.pod.uid).cloned().collect();
            let info = decider.cluster.read(row.pod.pod.clone());
            let question = Question { pod: &info, profile: &row.profile, nominated: &nominated };
            let takes = decider.answers(question).into_iter().find(|answer| answer.refusals.is_empty());
            if let Some(takes) = takes {
                let by: Vec<_> = row.refused_by.iter().collect();
                return Err(format!("{} waits, refused by {by:?}, and {} takes it", row.pod.name(), takes.node));
            }
        }
        Ok(())
    }
}

/// Plays a cluster under a seed: how many pods were bound.
fn play(seed: u64, core: Scheduler) -> Result<usize, String> {
    let mut cluster = Cluster::new(seed, core);
    for _ in 0..100 {
        cluster.act();
        cluster.catch_up();
        cluster.serve();
        cluster.catch_up();
        cluster.check().map_err(|breach| format!("seed {seed}:\n{}{breach}", cluster.done))?;
    }
    Ok(cluster.bound)
}

#[test]
fn whoever_waits_fits_nowhere() {
    let new = || Scheduler::new(Config::default(), Rng::new(1));
    let bound: Result<usize, String> = (1..25).map(|seed| play(seed, new())).sum();
    let bound = bound.unwrap_or_else(|breach| panic!("{breach}"));
    assert!(bound > 150, "only {bound} pods were bound");
}

#[test]
fn a_queue_that_is_not_told_of_room_is_found() {
    let deaf = || Scheduler::new(Config::default(), Rng::new(1)).with_planted(Planted::DeafQueue);
    assert!((1..25).any(|seed| play(seed, deaf()).is_err()));
}
