//! What a pod's status says of its size: what is allocated, what its containers have, and how far a resize is
//! (`convertToAPIContainerStatuses` in `pkg/kubelet/kubelet_pods.go`, and `pkg/kubelet/status/status_manager.go`).

use std::collections::BTreeMap;

use carrack_types::quantity::{Form, Quantity};
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::allocation::{Allocation, with_sizes_of};
use crate::amount;
use crate::runtime::Resources;

/// Condition of a pod whose resize is not allocated.
pub const PENDING: &str = "PodResizePending";
/// Condition of a pod whose allocation is not brought about yet.
pub const IN_PROGRESS: &str = "PodResizeInProgress";

/// The least quota of the CPUs that the kernel takes, in thousandths of one.
const LEAST_LIMIT_MILLI: i128 = 10;
/// The least shares of them.
const LEAST_SHARES: i128 = 2;

/// A resize that is not allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// `Deferred` or `Infeasible`.
    pub reason: &'static str,
    /// Why.
    pub message: String,
    /// Of the pod's spec that was judged.
    pub generation: Option<i64>,
}

/// A resize that is being brought about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Of the pod's spec that was allocated.
    pub generation: Option<i64>,
    /// Why it was not brought about when that was tried last.
    pub error: Option<String>,
}

/// What is known of a pod's size.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes<'a> {
    /// What is allocated.
    pub allocated: Option<&'a Allocation>,
    /// What its running containers have, by their names.
    pub actual: Option<&'a BTreeMap<String, ResourceRequirements>>,
    /// What was brought about of the pod as a whole.
    pub whole: Option<&'a ResourceRequirements>,
    /// What its runtime takes beside its containers.
    pub overhead: Option<&'a BTreeMap<String, ApiQuantity>>,
    /// A resize that is not allocated.
    pub pending: Option<&'a Pending>,
    /// One that is being brought about.
    pub progress: Option<&'a Progress>,
}

/// What a running container has: what it was given, and over that what the runtime tells.
#[must_use]
pub fn actual(
    allocated: &ResourceRequirements,
    given: Option<&ResourceRequirements>,
    told: Option<&Resources>,
) -> ResourceRequirements {
    let mut out = given.map_or_else(|| allocated.clone(), |given| with_sizes_of(allocated, given));
    let Some(told) = told else { return out };
    let put = |list: &mut Option<BTreeMap<String, ApiQuantity>>, name: &str, milli: i64, least: i128| {
        let Some(list) = list else { return };
        let known = list.get(name).and_then(amount::milli).unwrap_or(0);
        // What is too little to be told apart stays as it was asked for, and what is the same as it was written.
        if known != i128::from(milli) && (i128::from(milli) > least || known > least) {
            let in_bytes = || Quantity::from_units(milli / 1000, Form::BinarySi);
            let quantity = if name == "memory" { in_bytes() } else { Quantity::from_millis(milli) };
            list.insert(name.to_owned(), ApiQuantity(quantity.to_string()));
        }
    };
    if told.cpu_quota_us > 0 && told.cpu_period_us > 0 {
        let milli = told.cpu_quota_us.saturating_mul(1000) / told.cpu_period_us;
        put(&mut out.limits, "cpu", milli, LEAST_LIMIT_MILLI);
    }
    if told.memory_limit_bytes > 0 {
        put(&mut out.limits, "memory", told.memory_limit_bytes.saturating_mul(1000), 0);
    }
    if told.cpu_shares > 0 {
        let milli = told.cpu_shares.saturating_mul(1000).saturating_add(1023) / 1024;
        put(&mut out.requests, "cpu", milli, LEAST_SHARES);
    }
    out
}

impl Sizes<'_> {
    /// Says of a container what it is allocated and what it has. One that cannot be resized has what its spec `asked` for. Of one
    /// that asks for nothing it is said that it has nothing: a node that is silent about its first container counts as one that
    /// resizes nothing (`isPodResizeRequestSupported`, `pkg/apis/core/validation`), and clients look at each without asking.
    pub fn tell_container(&self, s: &mut ContainerStatus, asked: Option<&ResourceRequirements>) {
        let Some(all) = self.allocated else { return };
        let none = ResourceRequirements::default();
        let allocated = all.containers.get(&s.name).or(asked).unwrap_or(&none);
        s.allocated_resources.clone_from(&allocated.requests);
        let runs = s.state.as_ref().is_some_and(|state| state.running.is_some());
        let actual = self.actual.and_then(|actual| actual.get(&s.name)).filter(|_| runs);
        s.resources = Some(actual.unwrap_or(allocated).clone());
    }

    /// Says the same of the pod as a whole, if it asks for that. As upstream's, the amounts have the overhead in them.
    pub fn tell_pod(&self, status: &mut PodStatus) {
        let Some(allocated) = self.allocated.and_then(|a| a.pod.as_ref()) else { return };
        let whole = self.whole.unwrap_or(allocated);
        status.allocated_resources = self.heavier(allocated.requests.as_ref());
        let (limits, requests) = (self.heavier(whole.limits.as_ref()), self.heavier(whole.requests.as_ref()));
        status.resources = Some(ResourceRequirements { limits, requests, claims: None });
    }

    fn heavier(&self, list: Option<&BTreeMap<String, ApiQuantity>>) -> Option<BTreeMap<String, ApiQuantity>> {
        let mut list = list.cloned()?;
        for (name, more) in self.overhead.into_iter().flatten() {
            let Some(own) = list.get_mut(name) else { continue };
            if let (Ok(amount), Ok(more)) = (Quantity::try_from(&*own), Quantity::try_from(more)) {
                *own = ApiQuantity((amount + more).to_string());
            }
        }
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn requirements(value: Value) -> ResourceRequirements {
        serde_json::from_value(value).expect("resources")
    }

    fn sized(cpu: &str, memory: &str) -> Value {
        json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
    }

    fn told(cpu_quota_us: i64, cpu_shares: i64, memory_limit_bytes: i64) -> Option<Resources> {
        Some(Resources { cpu_period_us: 100_000, cpu_quota_us, cpu_shares, memory_limit_bytes, ..Resources::default() })
    }

    #[test]
    fn a_container_has_what_the_runtime_tells() {
        for (allocated, given, told, expected) in [
            (sized("1", "1Gi"), None, None, sized("1", "1Gi")),
            (sized("2", "2Gi"), Some(sized("1", "1Gi")), None, sized("1", "1Gi")),
            // Where the runtime tells nothing of a request for memory, it is what was given.
            (
                sized("2", "2Gi"),
                Some(sized("1", "1Gi")),
                told(150_000, 1536, 3 << 29),
                json!({"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": "1500m", "memory": "1536Mi"}}),
            ),
            // The same amount is told as it was written, and too little as it was asked for.
            (sized("1000m", "1024Mi"), None, told(100_000, 1024, 1 << 30), sized("1000m", "1024Mi")),
            (sized("1m", "1Gi"), None, told(1000, 2, 1 << 30), sized("1m", "1Gi")),
            (json!({"requests": {"cpu": "333m"}}), None, told(0, 340, 0), json!({"requests": {"cpu": "333m"}})),
            (json!({}), None, told(0, 2, 0), json!({})),
        ] {
            let given = given.map(requirements);
            let has = actual(&requirements(allocated.clone()), given.as_ref(), told.as_ref());
            assert_eq!(has, requirements(expected), "{allocated} {given:?} {told:?}");
        }
    }

    #[test]
    fn statuses_tell_what_is_allocated_and_what_is() {
        let allocated = Allocation {
            containers: [("a".to_owned(), requirements(sized("2", "2Gi")))].into(),
            pod: Some(requirements(sized("4", "4Gi"))),
        };
        let actual = [("a".to_owned(), requirements(sized("1", "1Gi")))].into();
        let sizes = Sizes { allocated: Some(&allocated), actual: Some(&actual), ..Sizes::default() };
        let (two, four) = (json!({"cpu": "2", "memory": "2Gi"}), json!({"cpu": "4", "memory": "4Gi"}));
        for (name, state, asked, resources, requests) in [
            ("a", json!({"running": {}}), Some(sized("3", "3Gi")), sized("1", "1Gi"), two.clone()),
            ("a", json!({"waiting": {}}), None, sized("2", "2Gi"), two),
            // Who cannot be resized, and who asks for nothing.
            ("i", json!({"running": {}}), Some(sized("4", "4Gi")), sized("4", "4Gi"), four),
            ("i", json!({"running": {}}), None, json!({}), Value::Null),
        ] {
            let mut status: ContainerStatus =
                serde_json::from_value(json!({"name": name, "state": state, "image": "", "imageID": "", "ready": true,
                    "restartCount": 0}))
                .expect("a status");
            sizes.tell_container(&mut status, asked.map(requirements).as_ref());
            let status = serde_json::to_value(status).expect("JSON");
            let told = |field: &str| status.get(field).cloned().unwrap_or_default();
            assert_eq!((told("resources"), told("allocatedResources")), (resources, requests), "{name} {state}");
        }
        let mut status = PodStatus::default();
        sizes.tell_pod(&mut status);
        assert_eq!(status.resources, allocated.pod);
        assert_eq!(status.allocated_resources, allocated.pod.clone().and_then(|r| r.requests));
        let overhead = [("cpu".to_owned(), ApiQuantity("500m".into()))].into();
        Sizes { overhead: Some(&overhead), ..sizes }.tell_pod(&mut status);
        let heavier = requirements(
            json!({"requests": {"cpu": "4500m", "memory": "4Gi"}, "limits": {"cpu": "4500m", "memory": "4Gi"}}),
        );
        assert_eq!(status.resources.as_ref(), Some(&heavier));
        assert_eq!(status.allocated_resources, heavier.requests);
    }
}
