//! What a pod holds of its node while it is resized in place: of each resource the most of what its spec asks for, what its kubelet has
//! set aside for it and what its containers run with (k8s.io/component-helpers/resource/helpers.go, `PodRequests` with
//! `UseStatusResources`). A resize that its node can never grant (`PodResizePending`, reason `Infeasible`) counts for nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;

use crate::pod::{self, ResourceList};

/// Amounts as the API has them.
type Amounts = BTreeMap<String, Quantity>;

/// What a status says that a container holds, or a pod as a whole.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Held {
    /// The container's name; empty for the pod.
    pub name: String,
    /// What its kubelet has set aside for it.
    pub allocated_resources: Option<Amounts>,
    /// What it runs with.
    pub resources: Option<Running>,
}

/// What runs with how much.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Running {
    /// What it may count on.
    pub requests: Option<Amounts>,
}

impl Held {
    fn of(name: &str, allocated: Option<&Amounts>, resources: Option<&ResourceRequirements>) -> Self {
        Self {
            name: name.to_owned(),
            allocated_resources: allocated.cloned(),
            resources: resources.map(|r| Running { requests: r.requests.clone() }),
        }
    }
    /// What both say, without what is added for the pod's runtime.
    fn lists(&self, overhead: &ResourceList) -> impl Iterator<Item = ResourceList> {
        let running = self.resources.as_ref().and_then(|r| r.requests.as_ref());
        let lists = [self.allocated_resources.as_ref(), running].into_iter().flatten();
        lists.map(|list| {
            let mut list = pod::resource_list(Some(list));
            pod::subtract(&mut list, overhead);
            list
        })
    }
}

/// What a pod's status says that it holds.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Its containers, of all kinds.
    pub containers: Vec<Held>,
    /// The pod as a whole.
    pub pod: Held,
    /// What its spec asks for its node can never grant.
    pub is_infeasible: bool,
}

/// Whether a condition of a pod says that its resize can never be granted (`IsPodResizeInfeasible` there).
#[must_use]
pub fn says_infeasible(kind: &str, reason: Option<&str>) -> bool {
    kind == "PodResizePending" && reason == Some("Infeasible")
}

impl Status {
    /// Reads it.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let Some(status) = &pod.status else { return Self::default() };
        let container = |c: &ContainerStatus| Held::of(&c.name, c.allocated_resources.as_ref(), c.resources.as_ref());
        let containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let mut conditions = status.conditions.iter().flatten();
        Self {
            containers: containers.map(container).collect(),
            pod: Held::of("", status.allocated_resources.as_ref(), status.resources.as_ref()),
            is_infeasible: conditions.any(|c| says_infeasible(&c.type_, c.reason.as_deref())),
        }
    }

    /// Makes the requests of a spec what the pod holds. Where that is what they are, nothing changes.
    pub fn lay_over(&self, spec: &mut PodSpec) {
        let none = ResourceList::new();
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            if let Some(held) = self.containers.iter().find(|held| held.name == container.name) {
                self.raise(&mut container.resources, held, &none);
            }
        }
        // A pod without amounts of its own is what its containers are.
        if spec.resources.is_some() {
            // What a pod as a whole runs with has its overhead in it, which is added to requests later.
            self.raise(&mut spec.resources, &self.pod, &pod::resource_list(spec.overhead.as_ref()));
        }
    }

    fn raise(&self, resources: &mut Option<ResourceRequirements>, held: &Held, overhead: &ResourceList) {
        let lists: Vec<ResourceList> = held.lists(overhead).collect();
        if lists.is_empty() {
            return;
        }
        let asked = resources.as_ref().map(pod::asked_by).unwrap_or_default();
        let mut holds = if self.is_infeasible { ResourceList::new() } else { asked.clone() };
        for mut list in lists {
            // Of a pod as a whole only what it names itself counts: of all else its containers are the sum.
            list.retain(|name, _| !held.name.is_empty() || asked.contains_key(name));
            pod::raise(&mut holds, &list);
        }
        if holds != asked {
            let requests = holds.into_iter().map(|(name, amount)| (name, amount.into())).collect();
            let claims = resources.take().and_then(|resources| resources.claims);
            *resources = Some(ResourceRequirements { requests: Some(requests), limits: None, claims });
        }
    }
}

/// What a pod holds of its node, added up as [`pod::requests`] does.
#[must_use]
pub fn requests(pod: &Pod) -> ResourceList {
    let Some(mut spec) = pod.spec.clone() else { return ResourceList::new() };
    Status::of(pod).lay_over(&mut spec);
    pod::requests_of(&spec)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    /// CPU and memory that a pod of these containers and this status holds, in thousandths and bytes.
    fn check(spec: Value, status: Value, expected: (i64, i64)) {
        let pod: Pod = from_value(json!({"spec": spec, "status": status})).expect("a pod");
        let sum = requests(&pod);
        let amount = |name: &str| sum.get(name).copied().unwrap_or_default();
        assert_eq!((amount("cpu").millis(), amount("memory").units()), expected, "{spec} {status}");
    }
    fn container(name: &str, cpu: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu, "memory": "100"}}})
    }
    fn holds(name: &str, allocated: &str, running: &str) -> Value {
        json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "allocatedResources": {"cpu": allocated, "memory": "100"},
            "resources": {"requests": {"cpu": running, "memory": "100"}}})
    }
    fn pending(reason: &str) -> Value {
        json!([{"type": "Ready", "status": "True"}, {"type": "PodResizePending", "status": "True", "reason": reason}])
    }

    #[test]
    fn the_most_of_what_is_asked_for_set_aside_and_run_with_counts() {
        for (asked, allocated, running, cpu) in [
            ("100m", "100m", "100m", 100),
            // Asked for more, which is deferred or on its way.
            ("200m", "100m", "100m", 200),
            ("200m", "200m", "100m", 200),
            // Asked for less, which is set aside before it is so.
            ("50m", "100m", "100m", 100),
            ("50m", "50m", "100m", 100),
            ("50m", "80m", "60m", 80),
            ("50m", "50m", "50m", 50),
        ] {
            let one = json!({"containers": [container("c", asked)]});
            let status = json!({"containerStatuses": [holds("c", allocated, running)]});
            check(one.clone(), status.clone(), (cpu, 100));
            let mut deferred = status.clone();
            deferred["conditions"] = pending("Deferred");
            check(one.clone(), deferred, (cpu, 100));
            // What can never be granted does not count.
            let mut infeasible = status.clone();
            infeasible["conditions"] = pending("Infeasible");
            let most = [allocated, running].map(|q| q.trim_end_matches('m').parse().expect("a number"));
            check(one, infeasible, (most.into_iter().max().expect("two"), 100));
        }
    }

    #[test]
    fn whose_status_says_nothing_holds_what_it_asks_for() {
        let two = json!({"containers": [container("c", "1"), container("d", "2")]});
        for status in [
            json!({}),
            json!({"conditions": pending("Infeasible")}),
            json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0}]}),
            json!({"containerStatuses": [holds("another", "9", "9")]}),
        ] {
            check(two.clone(), status, (3000, 200));
        }
        check(two, json!({"containerStatuses": [holds("d", "4", "1")]}), (5000, 200));
    }

    #[test]
    fn limits_stand_in_for_requests_until_a_status_says_more() {
        let limited = json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "100"}}}]});
        check(limited.clone(), json!({"containerStatuses": [holds("c", "500m", "500m")]}), (1000, 100));
        check(limited.clone(), json!({"containerStatuses": [holds("c", "2", "500m")]}), (2000, 100));
        let infeasible =
            json!({"containerStatuses": [holds("c", "500m", "500m")], "conditions": pending("Infeasible")});
        check(limited, infeasible, (500, 100));
    }

    #[test]
    fn sidecars_and_init_containers_are_resized_too() {
        let spec = json!({"containers": [container("c", "100m")], "initContainers": [
            {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m", "memory": "100"}}},
            container("init", "300m")]});
        // Either the sidecar and the init container, or the sidecar and the container.
        check(spec.clone(), json!({}), (400, 200));
        check(spec.clone(), json!({"initContainerStatuses": [holds("side", "200m", "100m")]}), (500, 200));
        check(spec.clone(), json!({"initContainerStatuses": [holds("init", "1", "1")]}), (1100, 200));
        check(spec, json!({"containerStatuses": [holds("c", "2", "2")]}), (2100, 200));
    }

    #[test]
    fn a_pod_with_amounts_of_its_own_holds_those() {
        let spec = json!({"containers": [container("c", "100m")], "overhead": {"cpu": "10m"},
            "resources": {"requests": {"cpu": "1"}}});
        check(spec.clone(), json!({}), (1010, 100));
        check(spec.clone(), json!({"containerStatuses": [holds("c", "5", "5")]}), (1010, 100));
        let status = |allocated: &str, running: &str| json!({"allocatedResources": {"cpu": allocated, "memory": "7"}, "resources": {"requests": {"cpu": running}}});
        // Its memory is its containers', and its overhead is there once.
        check(spec.clone(), status("1010m", "1010m"), (1010, 100));
        check(spec.clone(), status("2010m", "1010m"), (2010, 100));
        check(spec.clone(), status("1010m", "3010m"), (3010, 100));
        let mut infeasible = status("510m", "410m");
        infeasible["conditions"] = pending("Infeasible");
        check(spec, infeasible, (510, 100));
    }

    #[test]
    fn a_spec_that_says_what_is_held_stays_as_it_is() {
        let spec =
            json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1000m"}, "limits": {"cpu": "2"}}}]});
        let mut spec: PodSpec = from_value(spec).expect("a spec");
        let before = spec.clone();
        let one = Held {
            name: "c".into(),
            allocated_resources: Some([("cpu".into(), Quantity("1".into()))].into()),
            resources: None,
        };
        Status { containers: vec![one], ..Status::default() }.lay_over(&mut spec);
        assert_eq!(spec, before, "pods that are alike stay so");
    }
}
