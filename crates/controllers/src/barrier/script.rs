//! What people do, what nodes do, and how it ends.

use std::collections::BTreeMap;

use carrack_engine::Rng;
use serde_json::{Value, json};

use super::api::{Api, METERS, Path, controller, is_deleting, text, uid};
use super::checks::{demand, is_over, is_ready};
use super::storage;

const NODES: [&str; 3] = ["n0", "n1", "n2"];
const VERSION: &str = "version";
/// Annotation of pods that end by themselves, with how.
const ENDS: &str = "ends";

fn place(api: &str, plural: &str, namespace: &str, name: &str) -> Path {
    let [api, plural, namespace, name] = [api, plural, namespace, name].map(str::to_owned);
    Path { api, plural, namespace, name, sub: String::new() }
}

/// What there is for the controllers to look after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Workloads and their pods.
    Workloads,
    /// Claims of StatefulSets and of pods, volumes to be bound, made and attached, a service, a namespace that comes later and
    /// one that goes, and what another server keeps as well.
    Everything,
}

/// What a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Make,
    Patch,
    Delete,
    /// A namespace goes, and a moment before this comes into it.
    Fill,
}

/// One thing that a person does.
#[derive(Clone, Debug)]
pub struct Step {
    at: Path,
    /// The object, or what is to be otherwise in its spec.
    object: Value,
    act: Act,
}

impl Step {
    pub fn carry_out(&self, api: &mut Api) {
        match self.act {
            Act::Make => return drop(api.create(&self.at, self.object.clone())),
            Act::Delete => return drop(api.delete(&self.at, &self.object)),
            Act::Fill => {
                drop(api.create(&place("api/v1", "secrets", &self.at.name, ""), self.object.clone()));
                return drop(api.delete(&self.at, &Value::Null));
            }
            Act::Patch => {}
        }
        let Some(mut object) = api.objects.get(&self.at).cloned() else { return };
        for (pointer, value) in self.object.as_object().into_iter().flatten() {
            if let Some(field) = object.pointer_mut(pointer) {
                *field = value.clone();
            }
        }
        drop(api.change(&self.at, object));
    }
}

/// What is there from the beginning.
pub fn furnish(api: &mut Api) {
    let mut add = |at: Path, object: Value| drop(api.create(&at, object));
    add(
        place("api/v1", "namespaces", "", ""),
        json!({"metadata": {"name": "ns"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
    );
    for name in NODES {
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"}});
        let annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        let metadata = json!({"name": name, "annotations": annotations});
        add(place("api/v1", "nodes", "", ""), json!({"metadata": metadata, "spec": {}, "status": status}));
    }
}

/// Namespaces that go: one with a Deployment and what another server keeps, and one into which something comes at the last moment.
const DOOMED: [&str; 2] = ["doomed", "short"];
/// More volumes than there are ordinals in a StatefulSet.
const VOLUMES: usize = 8;

/// Beside [`furnish`], for [`Scope::Everything`].
pub fn furnish_more(api: &mut Api) {
    for number in 0..VOLUMES {
        let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/data"}});
        let object =
            json!({"metadata": {"name": format!("disk-{number}")}, "spec": spec, "status": {"phase": "Pending"}});
        drop(api.create(&place("api/v1", "persistentvolumes", "", ""), object));
    }
    storage::furnish(api);
    // Namespaces that go with everything in them; and two things of which one goes with its owner.
    for name in DOOMED {
        let namespace =
            json!({"metadata": {"name": name}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        drop(api.create(&place("api/v1", "namespaces", "", ""), namespace));
    }
    let owner = json!({"metadata": {"name": "house"}});
    let owner = api.create(&place("api/v1", "configmaps", "ns", ""), owner).unwrap_or_default();
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "house", "uid": uid(&owner)});
    let meters = |namespace: &str| place(METERS, "meters", namespace, "");
    drop(api.create(&meters("ns"), json!({"metadata": {"name": "owned", "ownerReferences": [reference]}})));
    drop(api.create(&meters("ns"), json!({"metadata": {"name": "free"}})));
    drop(api.create(&meters("doomed"), json!({"metadata": {"name": "doomed"}})));
}

/// Has the workloads ask for more than pods, and a service and a namespace come along.
pub fn widen(steps: &mut Vec<Step>) {
    let claim = |class: &str| {
        json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}}})
    };
    for step in steps.iter_mut().filter(|step| step.act == Act::Make) {
        let spec = &mut step.object["spec"];
        match step.at.plural.as_str() {
            "deployments" => {
                // Of a class that nobody provides: what is looked at is who makes it, and that it goes.
                let source = json!({"volumeClaimTemplate": {"spec": claim("slow")}});
                spec["template"]["spec"]["volumes"] = json!([{"name": "scratch", "ephemeral": source}]);
            }
            "statefulsets" => {
                let metadata = json!({"name": "data"});
                spec["volumeClaimTemplates"] = json!([{"metadata": metadata, "spec": claim("")}]);
            }
            _ => {}
        }
    }
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.10",
        "type": "ClusterIP", "ipFamilies": ["IPv4"], "ports": [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]}});
    let namespace = json!({"metadata": {"name": "late"}, "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"}});
    let step = |at: Path, object: Value| Step { at, object, act: Act::Make };
    steps.insert(1, step(place("api/v1", "services", "ns", ""), service));
    steps.insert(3, step(place("api/v1", "namespaces", "", ""), namespace));
    // Volumes that are made for the claims, and go when there are fewer pods.
    let policy = json!({"whenDeleted": "Retain", "whenScaled": "Delete"});
    let store = json!({"replicas": 2, "serviceName": "store", "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "persistentVolumeClaimRetentionPolicy": policy, "selector": {"matchLabels": {"app": "store"}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim(storage::CLASS)}],
        "revisionHistoryLimit": 2, "template": template("store", 1, true)});
    steps.insert(1, step(apps("statefulsets", ""), json!({"metadata": {"name": "store"}, "spec": store})));
    let doomed = |plural: &str| place("apis/apps/v1", plural, "doomed", "");
    // Its pods are taken away by no fault of its own.
    let all_at_once = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}});
    let deployment = json!({"replicas": 2, "strategy": all_at_once, "selector": {"matchLabels": {"app": "gone"}},
        "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600, "template": template("gone", 1, true)});
    steps.insert(2, step(doomed("deployments"), json!({"metadata": {"name": "gone"}, "spec": deployment})));
    let patch = |at: Path, object: Value| Step { at, object, act: Act::Patch };
    let delete = |at: Path| Step { at, object: Value::Null, act: Act::Delete };
    let version = json!({"/spec/template/metadata/annotations/version": "2"});
    steps.push(patch(apps("statefulsets", "store"), version));
    steps.push(delete(place("api/v1", "namespaces", "", "doomed")));
    let at = place("api/v1", "namespaces", "", "short");
    steps.push(Step { at, object: json!({"metadata": {"name": "last"}}), act: Act::Fill });
    steps.push(patch(apps("statefulsets", "store"), json!({"/spec/replicas": 1})));
    steps.push(delete(place("api/v1", "configmaps", "ns", "house")));
}

fn found<'a>(api: &'a Api, plural: &'a str, namespace: &str, name: &str) -> Option<&'a Value> {
    api.all(plural).find(|o| text(o, "/metadata/namespace") == namespace && text(o, "/metadata/name") == name)
}

/// Whether everything has what it is to have in the end, once and from the right one.
pub fn whole(api: &Api) -> Result<(), String> {
    let living = |app: &'static str| {
        api.all("pods").filter(move |p| text(p, "/metadata/labels/app") == app && !is_over(p) && !is_deleting(p))
    };
    storage::whole(api)?;
    let stays = DOOMED.iter().find(|name| found(api, "namespaces", "", name).is_some());
    demand(stays.is_none(), || format!("the namespace {stays:?} does not go"))?;
    let meters: Vec<&str> = api.all("meters").map(|meter| text(meter, "/metadata/name")).collect();
    demand(meters == ["free"], || format!("of what another server keeps there is {meters:?}"))?;
    for namespace in ["ns", "late"] {
        for (plural, name) in [("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")] {
            demand(found(api, plural, namespace, name).is_some(), || format!("no {plural} {namespace}/{name}"))?;
        }
    }
    for claim in api.all("persistentvolumeclaims").filter(|claim| !controller(claim).is_empty()) {
        let owner = api.all("pods").find(|pod| uid(pod) == controller(claim));
        demand(owner.is_some(), || format!("{} outlives its pod", uid(claim)))?;
    }
    for pod in living("web") {
        let name = format!("{}-scratch", text(pod, "/metadata/name"));
        let claim = found(api, "persistentvolumeclaims", "ns", &name);
        demand(claim.is_some_and(|c| controller(c) == uid(pod)), || format!("{} has no {name}", uid(pod)))?;
    }
    for pod in living("db") {
        let name = format!("data-{}", text(pod, "/metadata/name"));
        let claim = found(api, "persistentvolumeclaims", "ns", &name).ok_or_else(|| format!("no claim {name}"))?;
        let volume = found(api, "persistentvolumes", "", text(claim, "/spec/volumeName"));
        let bound = volume.is_some_and(|volume| text(volume, "/spec/claimRef/uid") == uid(claim));
        demand(bound && text(claim, "/status/phase") == "Bound", || format!("{name} is not bound: {claim}"))?;
    }
    let slices = api.all("endpointslices").filter(|s| text(s, "/metadata/labels/kubernetes.io~1service-name") == "web");
    let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    let mut told: Vec<&str> = endpoints.map(|endpoint| text(endpoint, "/targetRef/uid")).collect();
    let mut pods: Vec<&str> = living("web").map(uid).collect();
    told.sort_unstable();
    pods.sort_unstable();
    demand(told == pods, || format!("the service stands for {told:?}, and there are {pods:?}"))
}

fn template(app: &str, version: u64, restarts: bool) -> Value {
    let spec = json!({"containers": [{"name": "main", "image": "i"}], "terminationGracePeriodSeconds": 30,
        "restartPolicy": if restarts { "Always" } else { "Never" }});
    json!({"metadata": {"labels": {"app": app}, "annotations": {VERSION: version.to_string()}}, "spec": spec})
}

fn apps(plural: &str, name: &str) -> Path {
    place("apis/apps/v1", plural, "ns", name)
}
fn batch(plural: &str, name: &str) -> Path {
    place("apis/batch/v1", plural, "ns", name)
}

/// The steps of a seed.
pub fn of(rng: &mut Rng) -> Vec<Step> {
    let make = |at: Path, name: &str, spec: Value| Step {
        at,
        object: json!({"metadata": {"name": name}, "spec": spec}),
        act: Act::Make,
    };
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    let surge = rng.below(3);
    let unavailable = rng.below(2).max(u64::from(surge == 0));
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
    let one_by_one = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
    let mut job = |fails: bool| {
        let mut template = template("job", 1, false);
        template["metadata"]["annotations"][ENDS] = if fails { "Failed" } else { "Succeeded" }.into();
        let mode = if rng.one_in(2) { "Indexed" } else { "NonIndexed" };
        json!({"completions": 1 + rng.below(4), "parallelism": 1 + rng.below(3), "backoffLimit": 2, "completionMode": mode,
            "suspend": false, "template": template})
    };
    let (good, bad) = (job(false), job(true));
    let mut steps = vec![
        make(
            apps("deployments", ""),
            "web",
            json!({"replicas": 1 + rng.below(4), "strategy": rolling, "selector": selector("web"),
                "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600, "template": template("web", 1, true)}),
        ),
        make(
            apps("statefulsets", ""),
            "db",
            json!({"replicas": 1 + rng.below(3), "serviceName": "db", "podManagementPolicy": "OrderedReady",
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}, "selector": selector("db"),
                "revisionHistoryLimit": 2, "template": template("db", 1, true)}),
        ),
        make(
            apps("daemonsets", ""),
            "agent",
            json!({"selector": selector("agent"), "updateStrategy": one_by_one, "revisionHistoryLimit": 2,
                "template": template("agent", 1, true)}),
        ),
        make(batch("jobs", ""), "good", good.clone()),
        make(batch("jobs", ""), "bad", bad),
        make(
            batch("cronjobs", ""),
            "often",
            json!({"schedule": "*/5 * * * *", "concurrencyPolicy": "Forbid", "suspend": false, "successfulJobsHistoryLimit": 1,
                "failedJobsHistoryLimit": 1, "jobTemplate": {"spec": good}}),
        ),
    ];
    for n in 2..5 + rng.below(4) {
        let (plural, name) =
            [("deployments", "web"), ("deployments", "web"), ("statefulsets", "db"), ("daemonsets", "agent")]
                [usize::try_from(rng.below(4)).unwrap_or(0)];
        let scale = rng.one_in(2) && plural != "daemonsets";
        let object = match scale {
            true => json!({"/spec/replicas": rng.below(5)}),
            false => json!({"/spec/template/metadata/annotations/version": n.to_string()}),
        };
        steps.push(Step { at: apps(plural, name), object, act: Act::Patch });
    }
    steps.push(Step { at: batch("cronjobs", "often"), object: json!({"/spec/suspend": true}), act: Act::Patch });
    steps
}

/// The node that a pod can only go to.
fn only_node(pod: &Value) -> Option<String> {
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    Some(pod.pointer(&format!("{terms}/0/matchFields/0/values/0"))?.as_str()?.to_owned())
}

/// What a pod becomes next, if its node or the scheduler has something to do.
fn next_of(pod: &Value, node: &str, now: &str) -> Option<Value> {
    let mut next = pod.clone();
    let phase = text(pod, "/status/phase");
    let ends = text(pod, "/metadata/annotations/ends");
    if is_deleting(pod) {
        if pod["metadata"]["deletionGracePeriodSeconds"] == 0 {
            return None;
        }
        if !is_over(pod) {
            next["status"]["phase"] = "Failed".into();
        }
        next["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    } else if text(pod, "/spec/nodeName").is_empty() {
        next["spec"]["nodeName"] = only_node(pod).unwrap_or_else(|| node.to_owned()).into();
    } else if phase == "Pending" {
        next["status"] = json!({"phase": "Running", "startTime": now, "podIP": "10.1.0.1",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}]});
    } else if phase == "Running" && !ends.is_empty() {
        let container = json!({"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": u8::from(ends == "Failed"), "finishedAt": now}}});
        next["status"] = json!({"phase": ends, "startTime": now, "containerStatuses": [container]});
    } else {
        return None;
    }
    Some(next)
}

fn act_on(api: &mut Api, path: &Path, node: &str) -> bool {
    let now = api.now.rfc3339();
    if let Some(pod) = api.objects.get(path).filter(|pod| !is_deleting(pod) && !is_over(pod)).cloned() {
        let done = match text(&pod, "/spec/nodeName") {
            "" => storage::before_binding(api, &pod, node),
            _ if text(&pod, "/status/phase") == "Pending" => storage::before_running(api, &pod),
            _ => None,
        };
        if let Some(done) = done {
            return done;
        }
    }
    let next = api.objects.get(path).and_then(|pod| next_of(pod, node, &now));
    next.is_some_and(|next| api.change(path, next).is_ok())
}

fn pods(api: &Api) -> Vec<Path> {
    api.objects.keys().filter(|path| path.plural == "pods").cloned().collect()
}

/// Some node or the scheduler does something about some pod.
pub fn node_acts(api: &mut Api, rng: &mut Rng) {
    let all = pods(api);
    let at = usize::try_from(rng.below(all.len() as u64)).unwrap_or(0);
    let node = NODES[usize::try_from(rng.below(3)).unwrap_or(0)];
    if let Some(path) = all.get(at) {
        act_on(api, path, node);
    }
    storage::acts(api, rng);
}

/// One thing that is still to be done by nodes. False when there is nothing.
pub fn all_nodes_act(api: &mut Api) -> bool {
    pods(api).iter().any(|path| act_on(api, path, NODES[0])) || storage::all_act(api)
}

/// How workloads are in the end, without what chance decides.
pub type End = BTreeMap<String, Value>;

/// Reads the end.
pub fn end(api: &Api) -> End {
    let mut end = End::new();
    for plural in ["deployments", "statefulsets", "daemonsets", "jobs"] {
        for object in api.all(plural).filter(|o| controller(o).is_empty()) {
            let sets: Vec<&str> = api.all("replicasets").filter(|s| controller(s) == uid(object)).map(uid).collect();
            let own = |p: &&Value| controller(p) == uid(object) || sets.contains(&controller(p));
            let mut pods: Vec<Value> = api
                .all("pods")
                .filter(|p| own(p) && !is_over(p))
                .map(|p| json!([p["metadata"]["annotations"][VERSION], p["status"]["phase"], is_ready(p)]))
                .collect();
            pods.sort_by_key(Value::to_string);
            let conditions = object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
            let mut conditions: Vec<Value> = conditions.map(|c| json!([c["type"], c["status"], c["reason"]])).collect();
            conditions.sort_by_key(Value::to_string);
            // How many of a Job's pods fail until it is given up depends on how many were under way.
            let told = |field: &str| field != "collisionCount" && !(plural == "jobs" && field == "failed");
            let status = object["status"].as_object().into_iter().flatten();
            let counts: BTreeMap<&String, &Value> = status.filter(|(field, v)| v.is_i64() && told(field)).collect();
            end.insert(
                format!("{plural} {}", text(object, "/metadata/name")),
                json!({"pods": pods, "conditions": conditions, "status": counts}),
            );
        }
    }
    end
}
