//! What people do: they create, change and delete objects at times that the seed chose.
//!
//! A person repeats what got no answer, as `kubectl` users do, and goes on once the server has
//! answered. What must be true in the end follows from what was done.

mod act;
mod alone;

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{
    ApiError, ApiRequest, CallId, ContentType, Core, DeleteOptions, Effects, Input, Method, Never, Rng, Time, TimerId,
};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstanceReplicaSet};
use carrack_types::resource::{Kind as _, Resource};
use carrack_types::well_known::kubevirt::{NODE_LEASE_NAMESPACE, SCHEDULABLE_LABEL, SUBRESOURCES_GROUP};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use serde_json::{Value, json};

use crate::chance::between;
use crate::node::WIDGET;
use crate::observer::{key_of, text};
use crate::options::Options;
use crate::plants::Bug;
use crate::replicas;
use crate::wants::Want;
pub(crate) use act::{Act, What};

/// How long a person waits before repeating something.
const AGAIN: Duration = Duration::from_secs(1);
/// Most instances of a replica set.
pub(crate) const MOST_INSTANCES: usize = 3;
/// How often a refusal is taken for something that passes.
const TRIES: u32 = 120;
/// The same of what nobody minds.
const FEW_TRIES: u32 = 3;

/// Whether trouble is over in seconds.
pub(crate) fn is_brief(safety: Duration) -> bool {
    safety < Duration::from_secs(20)
}

/// How many of something there are at the most in a run: `most`, or a few where it is over in seconds.
pub(crate) fn up_to(most: u64, safety: Duration) -> u64 {
    if is_brief(safety) { most.div_ceil(4) } else { most }
}

/// Adds a part of the work.
pub(crate) type Part = fn(&mut Rng, Duration, &mut Vec<Act>);

/// What containers are made of, when they are ready, and how they end: parts of the work that are there in some runs alone, and
/// beside no planted bug, each with the name of its chance. Which of them a small run has is chosen with the rest of its work.
pub(crate) const OF_STARTS: [(&str, &str, Part); 11] = [
    (crate::images::PART, "whether images are private", crate::images::acts),
    (crate::reimaged::PART, "whether images change", crate::reimaged::acts),
    (crate::env_files::PART, "whether variables are in files", crate::env_files::acts),
    (crate::sleepers::PART, "whether hooks sleep", crate::sleepers::acts),
    (crate::probed::PART, "whether probes fail", crate::probed::acts),
    (crate::links::PART, "whether lists of services are slow", crate::links::acts),
    (crate::asked::PART, "whether probes are to be passed", crate::asked::acts),
    (crate::ordered::PART, "whether hooks hold back", crate::ordered::acts),
    (crate::rounds::PART, "whether all start again", crate::rounds::acts),
    (crate::gates::PART, "whether pods have gates", crate::gates::acts),
    (crate::debuggers::PART, "whether pods are looked into", crate::debuggers::acts),
];

/// The people.
pub(crate) struct User {
    acts: Vec<Act>,
    next: usize,
    started: Option<Time>,
    call: Option<CallId>,
    timer: Option<TimerId>,
    tries: u32,
    wants: BTreeMap<(&'static str, String), Want>,
    failures: Vec<String>,
}

impl User {
    /// People whose work the seed chooses.
    pub(crate) fn new(rng: &Rng, options: &Options) -> Self {
        let mut acts = Vec::new();
        let parts = options.parts(rng);
        if options.gpus && parts.keeps("gpus") {
            acts.extend(crate::gpu::acts(&mut rng.fork("gpus"), options.safety, !options.workloads));
        }
        if options.workloads {
            let bug = options.hint();
            acts.extend(crate::controllers::acts(&mut rng.fork("workloads"), options.safety, bug, &parts));
            // Where nobody dies, and beside no planted bug.
            let is_quiet = !options.faults && !options.small && options.plant.is_none();
            if is_quiet && parts.has("definitions") && rng.fork("whether kinds go").one_in(2) {
                crate::controllers::definitions(&mut rng.fork("definitions"), options.safety, 2, &mut acts);
            }
        }
        if options.has_hollow_nodes() && !options.has_whole_nodes() {
            return Self::with(acts);
        }
        if options.has_hollow_nodes() {
            // What pretends to end, or to be ready late, does so there alone; and disks are on whole nodes.
            acts.iter_mut().for_each(|act| act.keep_to_nodes(true));
            let whole = Options { workloads: false, gpus: false, whole: false, ..options.clone() };
            let mut others = Self::new(rng, &whole).acts;
            others.iter_mut().for_each(|act| act.keep_to_nodes(false));
            acts.extend(others);
            return Self::with(acts);
        }
        if options.clones {
            return Self::with(crate::clones::acts(&mut rng.fork("clones"), options));
        }
        let bug = options.hint();
        if let Some(acts) = bug.and_then(|bug| alone::acts(bug, rng, options.safety)) {
            return Self::with(acts);
        }
        let critical = crate::critical::PART;
        if options.asks_for(critical) {
            let mut acts = Vec::new();
            crate::critical::acts(&mut rng.fork(critical), options.safety, &mut acts);
            return Self::with(acts);
        }
        let of_pods: [(&str, Part); 5] = [
            ("parents", parents),
            ("namespaces", namespaces),
            ("pods", pods),
            ("claims", claims),
            ("tenants", tenants),
        ];
        let of_machines: [(&str, Part); 2] = [("machines", machines), ("sets", sets)];
        let of_machines = of_machines.into_iter().filter(|_| options.machines);
        if options.asks_for("steady") && parts.keeps("steady") {
            steady(&mut rng.fork("steady"), &mut acts);
        }
        for (part, add) in of_pods.into_iter().chain(of_machines).filter(|(part, _)| parts.has(part)) {
            add(&mut rng.fork(part), options.safety, &mut acts);
        }
        if crate::settings::are_there(bug) && parts.has("settings") {
            crate::settings::acts(&mut rng.fork("settings"), options.safety, &mut acts);
        }
        if crate::tokens::are_there(bug) && parts.has("tokens") {
            crate::tokens::acts(&mut rng.fork("tokens"), options.safety, &mut acts);
        }
        // Planted bugs are looked for among what there was without these.
        if options.faults && bug.is_none() {
            for (part, chance, add) in OF_STARTS.into_iter().filter(|(part, ..)| parts.has(part)) {
                if options.small || rng.fork(chance).one_in(3) {
                    add(&mut rng.fork(part), options.safety, &mut acts);
                }
            }
            let unmade = crate::nominations::PART;
            if parts.has(unmade) {
                let always = options.only.is_some();
                crate::nominations::acts(&mut rng.fork(unmade), options.safety, always, &mut acts);
            }
        }
        if crate::snapshots::are_there(rng, options, bug) && parts.has(crate::snapshots::PART) {
            let dies = crate::snapshots::kill(rng);
            crate::snapshots::acts(&mut rng.fork(crate::snapshots::PART), options.safety, dies, &mut acts);
        }
        if crate::growth::is_there(bug) && parts.has("growth") {
            crate::growth::acts(&mut rng.fork("growth"), options.safety, &mut acts);
        }
        if crate::resizes::are_there(bug) && parts.has("resizes") {
            crate::resizes::acts(&mut rng.fork("resizes"), options.safety, false, &mut acts);
        }
        if options.machines && options.faults && crate::keepers::are_there(bug) && parts.has("keepers") {
            crate::keepers::acts(&mut rng.fork("keepers"), options.safety, false, &mut acts);
        }
        if options.machines && crate::disks::are_there(rng, options, bug) && parts.has(crate::disks::PART) {
            crate::disks::acts(&mut rng.fork(crate::disks::PART), options.safety, &mut acts);
        }
        if options.machines && crate::taints::are_there(rng, options, bug) && parts.has(crate::taints::PART) {
            crate::taints::acts(&mut rng.fork(crate::taints::PART), options.safety, &mut acts);
        }
        if options.machines && crate::reruns::are_there(bug) && parts.has("reruns") {
            crate::reruns::acts(&mut rng.fork("reruns"), options.safety, &mut acts);
        }
        let is_fickle = options.small || rng.fork("whether people change their minds").one_in(4);
        if options.machines && options.faults && bug.is_none() && parts.has(crate::fickle::PART) && is_fickle {
            crate::fickle::acts(&mut rng.fork(crate::fickle::PART), options.safety, &mut acts);
        }
        if crate::phantoms::are_there(rng, options, bug) && parts.has(crate::phantoms::PART) {
            crate::phantoms::acts(&mut rng.fork(crate::phantoms::PART), options.safety, false, &mut acts);
        }
        if crate::closings::are_there(rng, options, bug) && parts.has(crate::closings::PART) {
            crate::closings::acts(&mut rng.fork(crate::closings::PART), options.safety, false, &mut acts);
        }
        if options.machines && crate::heritage::are_there(rng, options, bug) && parts.has(crate::heritage::PART) {
            crate::heritage::acts(&mut rng.fork(crate::heritage::PART), options.safety, false, &mut acts);
        }
        if crate::imports::are_there(rng, options) && parts.has(crate::imports::PART) {
            crate::imports::acts(&mut rng.fork(crate::imports::PART), options.safety, &mut acts);
        }
        if crate::backups::are_there(rng, options) && parts.has(crate::backups::PART) {
            crate::backups::acts(&mut rng.fork(crate::backups::PART), options.safety, &mut acts);
        }
        if crate::backups::are_copied(rng, options) && parts.has(crate::backups::COPIED) {
            crate::backups::copied(&mut rng.fork(crate::backups::COPIED), options.safety, &mut acts);
        }
        if crate::pressure::are_there(rng, options) {
            crate::pressure::acts(&mut rng.fork(crate::pressure::PART), options.safety, &mut acts);
        }
        if crate::impostors::are_there(rng, options, bug) && parts.has(crate::impostors::PART) {
            crate::impostors::acts(&mut rng.fork(crate::impostors::PART), options.safety, &mut acts);
        }
        if crate::flex::is_there(bug) {
            crate::flex::provide(&mut rng.fork("flex"), &mut acts);
        }
        if crate::flex::are_locked(rng, options, bug) {
            crate::flex::lock(&mut rng.fork(crate::flex::LOCKED), &mut acts);
        }
        if options.machines && parts.has("machines") {
            let always = bug == Some(Bug::MissingHeartbeat);
            ghost(&mut rng.fork("ghost"), always, &mut acts);
        }
        if options.machines && options.faults && crate::evictions::are_there(rng, bug) {
            crate::evictions::stay(&mut rng.fork("evictions"), false, &mut acts);
        }
        Self::with(acts)
    }

    fn with(mut acts: Vec<Act>) -> Self {
        acts.sort_by_key(|act| act.at);
        Self {
            acts,
            next: 0,
            started: None,
            call: None,
            timer: None,
            tries: 0,
            wants: BTreeMap::new(),
            failures: Vec::new(),
        }
    }

    /// All that they do.
    pub(crate) fn acts(&self) -> &[Act] {
        &self.acts
    }
    /// Whether everything has been done.
    pub(crate) fn done(&self) -> bool {
        self.next == self.acts.len()
    }
    /// What is to be true now.
    pub(crate) fn wants(&self) -> &BTreeMap<(&'static str, String), Want> {
        &self.wants
    }
    /// What could not be done at all.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    fn go_on(&mut self, now: Time, fx: &mut Effects<Never>) {
        let (Some(act), Some(started)) = (self.acts.get(self.next), self.started) else { return };
        let due = started + act.at;
        if now < due {
            self.timer = Some(fx.timer(due));
            return;
        }
        let request = match &act.what {
            What::Create { resource, object, .. } => {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
                ApiRequest::create_value(resource, namespace, object)
            }
            What::Delete { resource, namespace, name, options, .. } => {
                ApiRequest::delete(resource, namespace, name, options)
            }
            What::Try { resource, name, sub, patch } => {
                ApiRequest::patch(resource, "default", name, sub, ContentType::MergePatch, patch)
            }
            What::Merge { name, sub, patch } => {
                ApiRequest::patch(&Pod::resource(), "default", name, sub, ContentType::StrategicMergePatch, patch)
            }
            What::Patch { resource, namespace, name, patch, .. } => {
                ApiRequest::patch(resource, namespace, name, "", ContentType::MergePatch, patch)
            }
            What::Resize { name, containers } => {
                let patch = json!([{"op": "test", "path": "/status/phase", "value": "Running"},
                    {"op": "replace", "path": "/spec/containers", "value": containers}]);
                ApiRequest::patch(&Pod::resource(), "default", name, "resize", ContentType::JsonPatch, &patch)
            }
            What::Image { name, image } => {
                let patch = json!([{"op": "test", "path": "/status/phase", "value": "Running"},
                    {"op": "replace", "path": "/spec/containers/0/image", "value": image}]);
                ApiRequest::patch(&Pod::resource(), "default", name, "", ContentType::JsonPatch, &patch)
            }
            What::Evict { namespace, name } => {
                let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
                    "metadata": {"namespace": namespace, "name": name}});
                ApiRequest::create_sub(&Pod::resource(), namespace, name, "eviction", &eviction)
            }
            What::Ask { name, what, options } => {
                let path = format!("/apis/{SUBRESOURCES_GROUP}/v1/namespaces/default/virtualmachines/{name}/{what}");
                ApiRequest { body: options.to_string().into(), ..ApiRequest::new(Method::Put, path) }
            }
        };
        self.call = Some(fx.api(request));
    }

    fn answered(&mut self, now: Time, error: Option<&ApiError>, fx: &mut Effects<Never>) {
        let Some(act) = self.acts.get(self.next) else { return };
        let over = match (error, &act.what) {
            (None, _) => true,
            // The first try had taken effect.
            (Some(e), What::Create { .. }) => e.is_already_exists(),
            (Some(e), What::Delete { .. }) => e.is_not_found(),
            (Some(e), What::Resize { .. } | What::Image { .. }) => {
                e.is_not_found() || e.to_string().contains("error in our request")
            }
            (Some(_), What::Try { .. } | What::Merge { .. } | What::Patch { .. }) => false,
            (Some(e), What::Evict { .. }) => !e.is_unknown(),
            (Some(e), What::Ask { .. }) => e.is_conflict() || e.is_not_found(),
        };
        if !over {
            self.tries += 1;
            let is_light = matches!(
                act.what,
                What::Try { .. } | What::Merge { .. } | What::Create { want: Some((_, Want::Any)), .. }
            );
            let may_fail = is_light || matches!(act.what, What::Ask { .. });
            if self.tries < if is_light { FEW_TRIES } else { TRIES } {
                self.timer = Some(fx.timer(now + AGAIN));
                return;
            }
            if !may_fail {
                let why = error.map(ToString::to_string).unwrap_or_default();
                self.failures.push(format!("a person could not {:?}: {why}", act.what));
            }
        }
        self.tries = 0;
        match &act.what {
            What::Create { object, want: Some((kind, want)), .. } => {
                self.wants.insert((kind, key_of(object)), want.clone());
            }
            What::Delete { namespace, name, kind, .. } => {
                let key = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
                if *kind == "namespace" {
                    // Its content goes with it.
                    let inside = format!("{name}/");
                    self.wants
                        .iter_mut()
                        .filter(|((_, k), _)| k.starts_with(&inside))
                        .for_each(|(_, w)| *w = Want::Gone);
                }
                self.wants.insert((kind, key), Want::Gone);
            }
            What::Patch { namespace, name, kind, want: Some(want), .. } => {
                self.wants.insert((kind, format!("{namespace}/{name}")), want.clone());
            }
            What::Create { want: None, .. }
            | What::Patch { want: None, .. }
            | What::Try { .. }
            | What::Merge { .. }
            | What::Resize { .. }
            | What::Image { .. }
            | What::Evict { .. }
            | What::Ask { .. } => {}
        }
        self.next += 1;
        self.go_on(now, fx);
    }
}

impl Core for User {
    type In = Never;
    type Out = Never;

    fn step(&mut self, now: Time, input: Input<Never>, fx: &mut Effects<Never>) {
        match input {
            Input::Start => {
                self.started = Some(now);
                self.go_on(now, fx);
            }
            Input::Timer(id) if self.timer == Some(id) => self.go_on(now, fx),
            Input::Api { id, result } if self.call == Some(id) => {
                self.call = None;
                self.answered(now, result.as_ref().err(), fx);
            }
            _ => {}
        }
    }
}

fn parents(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(up_to(3, safety)) {
        let name = format!("parent{n}");
        let at = between(rng, Duration::from_secs(1), safety / 3);
        acts.push(create_parent(at, "default", &name));
        let lives = between(rng, Duration::from_secs(5), safety);
        if at + lives < safety && rng.one_in(2) {
            acts.push(delete(at + lives, ConfigMap::resource(), "default", &name, "configmap"));
        }
    }
}

fn create_parent(at: Duration, namespace: &str, name: &str) -> Act {
    let metadata = json!({"namespace": namespace, "name": name, "labels": {replicas::LABEL: "true"}});
    create(at, ConfigMap::resource(), json!({"metadata": metadata}), Some(("configmap", Want::Parent)))
}

/// An object is made: it says of which kind it is.
pub(crate) fn create(at: Duration, resource: Resource, mut object: Value, want: Option<(&'static str, Want)>) -> Act {
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = resource.kind.to_string().into();
    Act { at, what: What::Create { resource, object, want } }
}

pub(crate) fn delete(at: Duration, resource: Resource, namespace: &str, name: &str, kind: &'static str) -> Act {
    let options = DeleteOptions::default();
    Act { at, what: What::Delete { resource, namespace: namespace.into(), name: name.into(), options, kind } }
}

/// A machine of the default namespace is switched on or off.
pub(crate) fn switch(at: Duration, name: &str, strategy: &str, want: Want) -> Act {
    let what = What::Patch {
        resource: VirtualMachine::resource(),
        namespace: "default".into(),
        name: name.into(),
        patch: json!({"spec": {"runStrategy": strategy}}),
        kind: "vm",
        want: Some(want),
    };
    Act { at, what }
}

/// What `virtctl` asks of a machine.
pub(crate) fn ask(at: Duration, name: &str, what: &'static str, options: Value) -> Act {
    Act { at, what: What::Ask { name: name.into(), what, options } }
}

/// A node has these taints, and no others.
pub(crate) fn taint(at: Duration, node: String, taints: &Value) -> Act {
    let what = What::Patch {
        resource: Node::resource(),
        namespace: String::new(),
        name: node,
        patch: json!({"spec": {"taints": taints}}),
        kind: "node",
        want: None,
    };
    Act { at, what }
}

/// A pod that is made, and that somebody may delete later.
pub(crate) fn mortal(
    rng: &mut Rng,
    at: Duration,
    safety: Duration,
    object: Value,
    restarts: bool,
    acts: &mut Vec<Act>,
) {
    let name = text(&object, "/metadata/name").to_owned();
    let want = Some(("pod", Want::Pod { restarts, important: false }));
    acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
    let lives = between(rng, safety / 3, safety);
    if at + lives < safety && rng.one_in(3) {
        acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
    }
}

/// A namespace that comes, is filled and goes.
fn namespaces(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    if rng.one_in(2) {
        return;
    }
    let at = between(rng, Duration::from_secs(1), safety / 3);
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "extra"}});
    acts.push(Act { at, what: What::Create { resource: Namespace::resource(), object, want: None } });
    let filled = at + between(rng, Duration::from_secs(1), Duration::from_secs(10));
    acts.push(create_parent(filled, "extra", "inside"));
    let gone = filled + between(rng, Duration::from_secs(1), safety / 3);
    // Its content goes with it.
    acts.push(delete(gone, Namespace::resource(), "", "extra", "namespace"));
}

/// The priority class of pods for which others have to go.
pub(crate) const IMPORTANT: &str = "important";

/// The priority class [`IMPORTANT`] is made.
pub(crate) fn important(acts: &mut Vec<Act>) {
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": IMPORTANT},
        "value": 1000});
    let what = What::Create { resource: PriorityClass::resource(), object: class, want: None };
    acts.push(Act { at: Duration::from_millis(100), what });
}

fn pods(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    important(acts);
    let mut ranks = rng.fork("ranks");
    let mut with_cpus = 0;
    for n in 0..up_to(3, safety) + rng.below(up_to(8, safety)) {
        let name = format!("pod{n}");
        let at = between(rng, Duration::from_secs(1), safety * 2 / 3);
        let restarts = !rng.one_in(4);
        let stops_in_s = rng.below(20);
        let devices = usize::from(!rng.one_in(4));
        let mut limits = json!({"cpu": "100m"});
        if devices > 0 {
            limits[WIDGET] = devices.to_string().into();
        }
        // Not with a device, which may be far from the CPUs that are free.
        if devices == 0 && with_cpus < crate::cpus::MOST_PODS {
            with_cpus += 1;
            crate::cpus::ask(&mut limits);
        }
        let mut volumes = vec![json!({"name": "scratch", "emptyDir": {}})];
        if rng.one_in(2) {
            // Few disks for many pods: they share them, and find them left by others.
            volumes.push(json!({"name": format!("disk{}", rng.below(3)), "flexVolume": {"driver": "sim/disk"}}));
        }
        let mounts = volumes.iter().map(|v| json!({"name": v["name"], "mountPath": format!("/{}", text(v, "/name"))}));
        let mounts: Vec<Value> = mounts.collect();
        let important = ranks.one_in(4);
        let mut object = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "restartPolicy": if restarts { "Always" } else { "Never" },
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1 + rng.below(20),
            "containers": [{"name": "main", "image": "sim/run", "imagePullPolicy": "IfNotPresent",
                "env": [{"name": "STOPS_IN_S", "value": stops_in_s.to_string()}],
                "resources": {"limits": limits},
                "volumeMounts": mounts}],
            "volumes": volumes,
        }});
        if important {
            object["spec"]["priorityClassName"] = IMPORTANT.into();
        }
        let want = Some(("pod", Want::Pod { restarts, important }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        let lives = between(rng, Duration::from_secs(1), safety);
        if at + lives < safety && !rng.one_in(4) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// A volume of the attacher's driver, and a claim that asks for it.
pub(crate) fn disk(volume: &str, handle: &str, claim: &str) -> (Value, Value) {
    let of_volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": crate::attacher::DRIVER, "volumeHandle": handle}}});
    let of_claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "default", "name": claim},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": volume,
            "resources": {"requests": {"storage": "1Gi"}}}});
    (of_volume, of_claim)
}

/// Claims of disks that are attached to their node from outside, and pods that come and go with them.
fn claims(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let create = |at, resource, object| Act { at, what: What::Create { resource, object, want: None } };
    let count = 1 + rng.below(2);
    for n in 0..count {
        let at = between(rng, Duration::from_millis(100), Duration::from_secs(2));
        let (mut volume, claim) = disk(&format!("disk{n}"), &format!("handle{n}"), &format!("claim{n}"));
        // All at one node: a disk that is wanted by two would be waited for without end.
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [crate::role::node_name(1)]}]}]}});
        acts.push(create(at, PersistentVolume::resource(), volume));
        acts.push(create(at, PersistentVolumeClaim::resource(), claim));
    }
    for n in 0..up_to(4, safety) + rng.below(up_to(8, safety)) {
        let name = format!("claimant{n}");
        let at = between(rng, Duration::from_secs(2), safety * 3 / 4);
        let claim = format!("claim{}", rng.below(count));
        let object = user_of(rng, &name, &claim);
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        let lives = between(rng, Duration::from_secs(1), Duration::from_secs(15));
        if at + lives < safety && !rng.one_in(8) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// A claim of a class.
pub(crate) fn claim_of(name: &str, class: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}}})
}

/// A pod that has a claim's volume.
pub(crate) fn user_of(rng: &mut Rng, name: &str, claim: &str) -> Value {
    let grace_s = 1 + rng.below(3);
    mounting(name, grace_s, "data", "persistentVolumeClaim", json!({"claimName": claim}))
}

/// A pod that goes on, with one volume.
pub(crate) fn mounting(name: &str, grace_s: u64, volume: &str, kind: &str, source: Value) -> Value {
    let mut of = json!({"name": volume});
    of[kind] = source;
    json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"namespace": "default", "name": name},
    "spec": {
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": grace_s,
        "containers": [{"name": "main", "image": "sim/run", "imagePullPolicy": "IfNotPresent",
            "env": [{"name": "STOPS_IN_S", "value": "1"}],
            "resources": {"limits": {"cpu": "10m"}},
            "volumeMounts": [{"name": volume, "mountPath": format!("/{volume}")}]}],
        "volumes": [of],
    }})
}

/// In which a volume is hardly made.
const MOMENT: Duration = Duration::from_millis(700);

/// The driver of volumes that are made on the nodes, with a class of such that wait for their first consumer, and one of such
/// that do not.
pub(crate) fn local_driver(acts: &mut Vec<Act>) {
    let mut create = |resource, object| {
        acts.push(Act { at: Duration::from_millis(100), what: What::Create { resource, object, want: None } });
    };
    for (name, mode) in [("late", "WaitForFirstConsumer"), (SOON, "Immediate")] {
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": carrack_storage::DRIVER, "volumeBindingMode": mode, "allowVolumeExpansion": true});
        create(StorageClass::resource(), class);
    }
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": carrack_storage::DRIVER}, "spec": {"attachRequired": false}});
    create(CSIDriver::resource(), driver);
}

/// What the names of [`tenants`] begin with.
pub(crate) const TENANT: &str = "tenant";
/// The class of volumes that are made on the nodes at once.
pub(crate) const SOON: &str = "soon";

/// Claims of storage classes whose volumes are made on the nodes, with a pod for most of them.
fn tenants(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let create = |at, resource, object, want| Act { at, what: What::Create { resource, object, want } };
    local_driver(acts);
    for n in 0..1 + rng.below(up_to(5, safety)) {
        let name = format!("{TENANT}{n}");
        let at = between(rng, Duration::from_secs(1), safety * 2 / 3);
        let class = if rng.one_in(2) { SOON } else { "late" };
        acts.push(create(at, PersistentVolumeClaim::resource(), claim_of(&name, class), None));
        let used = !rng.one_in(if class == SOON { 2 } else { 4 });
        if used {
            let object = user_of(rng, &name, &name);
            acts.push(create(
                at,
                Pod::resource(),
                object,
                Some(("pod", Want::Pod { restarts: true, important: false })),
            ));
        }
        // Some are given up while their volume is being made.
        let least = if rng.one_in(2) { Duration::from_millis(10) } else { Duration::from_secs(5) };
        let most = if rng.one_in(2) { Duration::from_secs(2) } else { safety / 2 };
        let gone = at + between(rng, least, most.max(least));
        let early = class == SOON && !used && rng.one_in(2);
        let gone = if early { at + between(rng, least.min(MOMENT), MOMENT) } else { gone };
        if gone < safety && (early || !rng.one_in(4)) {
            if used {
                acts.push(delete(gone, Pod::resource(), "default", &name, "pod"));
            }
            acts.push(delete(gone, PersistentVolumeClaim::resource(), "default", &name, "claim"));
        }
    }
}

/// A machine like the one of `examples/vm.yaml`.
pub(crate) fn machine(name: &str, strategy: &str, grace_s: u64) -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"runStrategy": strategy, "template": {
            "metadata": {"labels": {"kubevirt.io/domain": name}},
            "spec": {
                "terminationGracePeriodSeconds": grace_s,
                "domain": {
                    "cpu": {"cores": 1},
                    "memory": {"guest": "192Mi"},
                    "devices": {
                        "disks": [{"name": "root", "disk": {"bus": "virtio"}},
                            {"name": "cloudinit", "disk": {"bus": "virtio"}}],
                        "interfaces": [{"name": "default", "masquerade": {}}]}},
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [
                    {"name": "root", "containerDisk": {"image": "sim/guest", "imagePullPolicy": "IfNotPresent"}},
                    {"name": "cloudinit", "cloudInitNoCloud": {"userData": "#cloud-config\n"}}]}}}})
}

/// Machines are made, switched on and off, and deleted; each in its own order of things.
fn machines(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(up_to(3, safety)) {
        let name = format!("vm{n}");
        let mut at = between(rng, Duration::from_secs(1), safety / 3);
        let up = !rng.one_in(4);
        let strategy = match (up, rng.one_in(2)) {
            (true, _) => "Always",
            (false, true) => "Manual",
            (false, false) => "Halted",
        };
        let want = if up { Want::Up } else { Want::Down };
        let object = machine(&name, strategy, rng.below(40));
        acts.push(Act {
            at,
            what: What::Create { resource: VirtualMachine::resource(), object, want: Some(("vm", want)) },
        });
        for _ in 0..rng.below(4) {
            at += between(rng, Duration::from_secs(1), safety / 3);
            let (strategy, want) = if rng.one_in(2) { ("Always", Want::Up) } else { ("Halted", Want::Down) };
            if at < safety {
                acts.push(switch(at, &name, strategy, want));
            }
        }
        at += between(rng, Duration::from_secs(1), safety / 2);
        if at < safety && rng.one_in(2) {
            acts.push(delete(at, VirtualMachine::resource(), "default", &name, "vm"));
        }
    }
}

/// Machines that are to run all the time, and nothing else.
fn steady(rng: &mut Rng, acts: &mut Vec<Act>) {
    for n in 0..3 {
        let name = format!("steady{n}");
        let at = between(rng, Duration::from_secs(1), Duration::from_secs(5));
        let (resource, mut object) = (VirtualMachine::resource(), machine(&name, "Always", 5));
        // Its disk is there before it.
        if rng.fork(&name).one_in(2) {
            object = crate::roaming::with_disk(at / 2, object, acts);
        }
        acts.push(Act { at, what: What::Create { resource, object, want: Some(("vm", Want::Up)) } });
    }
}

/// A node that somebody says takes machines, where nobody is: with the Lease of a handler that has been there, or with
/// nothing at all.
fn ghost(rng: &mut Rng, always: bool, acts: &mut Vec<Act>) {
    if !rng.one_in(6) && !always {
        return;
    }
    let at = between(rng, Duration::from_secs(1), Duration::from_secs(10));
    if !rng.one_in(3) {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": NODE_LEASE_NAMESPACE, "name": "ghost"},
            "spec": {"holderIdentity": "ghost", "leaseDurationSeconds": 10, "leaseTransitions": 1,
                "renewTime": "2026-10-31T00:00:00.000000Z"}});
        acts.push(Act { at, what: What::Create { resource: Lease::resource(), object: lease, want: None } });
    }
    // Not for pods: nothing on it is of use to them.
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "ghost", "labels": {SCHEDULABLE_LABEL: "true"}}, "spec": {"unschedulable": true}});
    let want = Some(("node", Want::Idle));
    acts.push(Act { at, what: What::Create { resource: Node::resource(), object: node, want } });
}

/// A set of equal instances that grows and shrinks.
fn sets(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    if rng.one_in(2) {
        return;
    }
    let size = |rng: &mut Rng| usize::try_from(rng.below(MOST_INSTANCES as u64 + 1)).unwrap_or(0);
    let mut template = machine("set", "Always", 5)["spec"]["template"].clone();
    template["metadata"]["labels"] = json!({"set": "a"});
    let mut at = between(rng, Duration::from_secs(1), safety / 3);
    let count = size(rng);
    let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
        "metadata": {"namespace": "default", "name": "set"},
        "spec": {"replicas": count, "selector": {"matchLabels": {"set": "a"}}, "template": template}});
    let resource = VirtualMachineInstanceReplicaSet::resource();
    let want = Some(("vmirs", Want::Instances(count)));
    acts.push(Act { at, what: What::Create { resource: resource.clone(), object, want } });
    for _ in 0..rng.below(3) {
        at += between(rng, Duration::from_secs(1), safety / 3);
        let count = size(rng);
        let what = What::Patch {
            resource: resource.clone(),
            namespace: "default".into(),
            name: "set".into(),
            patch: json!({"spec": {"replicas": count}}),
            kind: "vmirs",
            want: Some(Want::Instances(count)),
        };
        if at < safety {
            acts.push(Act { at, what });
        }
    }
    at += between(rng, Duration::from_secs(1), safety / 2);
    if at < safety && rng.one_in(3) {
        acts.push(delete(at, resource, "default", "set", "vmirs"));
    }
}
