//! Variables for services: a container has those of all services that there were when its kubelet started, however late the
//! kubelet is told of them.
//!
//! ```text
//!   kubelet starts ─┬─▶ pods are known ──────────▶ a container is due ─┐
//!                   └─▶ services: seconds later ───────────────────────┴─▶ it is made, with a variable for each
//! ```
//!
//! Services that come later may lack.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{ApiRequest, Method, Rng};
use carrack_kubelet::runtime::ContainerSpec;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Observer, text, uid};
use crate::plants::Bug;
use crate::role::Role;
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "services-are-read-first";
/// The name of this part of the work.
pub(crate) const PART: &str = "links";

/// The names of the services, and the key of the first.
const SERVICES: [&str; 2] = ["linked-one", "linked-two"];
const FIRST: &str = "default/linked-one";
/// How long a list of services takes that is slow: one kubelet's life in so many has such a list.
const TAKES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(8));
const SLOW_ONE_IN: u64 = 2;

/// Services, and pods that come one after the other: some of them when their kubelet has just started.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for name in SERVICES {
        let object = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}]}});
        let what = What::Create { resource: Service::resource(), object, want: None };
        acts.push(Act { at: Duration::from_millis(200), what });
    }
    for n in 0..6 + rng.below(4) {
        let name = format!("linked{n}");
        let at = between(rng, Duration::from_millis(500), safety * 3 / 4);
        let object = mounting(&name, 1 + rng.below(3), "scratch", "emptyDir", json!({}));
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        let lives = between(rng, Duration::from_secs(2), safety / 3);
        if at + lives < safety && !rng.one_in(3) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// How late a request is that lists services for a kubelet's life, where this is part of the work.
pub(crate) fn delay(
    of: (Role, u32),
    request: &ApiRequest,
    planted: Option<Bug>,
    observer: &Observer,
    root: &Rng,
) -> Option<Duration> {
    let (role, life) = of;
    let lists = request.method == Method::Get
        && request.path.starts_with("/api/v1/services?")
        && !request.path.contains("watch=true");
    let is_part = || planted == Some(Bug::UnreadServices) || observer.get("service", FIRST).is_some();
    if !matches!(role, Role::Kubelet(_)) || !lists || !is_part() {
        return None;
    }
    let mut rng = root.fork(&format!("services for {role} in life {life}"));
    rng.one_in(SLOW_ONE_IN).then(|| between(&mut rng, TAKES.0, TAKES.1))
}

/// The variable that names a service's address, and the address; none where it has none.
fn variable(service: &Value) -> Option<(String, &str)> {
    let address = Some(text(service, "/spec/clusterIP")).filter(|address| !matches!(*address, "" | "None"))?;
    let name = text(service, "/metadata/name").to_ascii_uppercase().replace('-', "_");
    Some((format!("{name}_SERVICE_HOST"), address))
}

/// The services that there were when a node's kubelets started, by their lives: UIDs.
#[derive(Debug, Default)]
pub(crate) struct Links(BTreeMap<u32, BTreeSet<String>>);

impl Links {
    /// A kubelet starts.
    pub(crate) fn begin(&mut self, life: u32, observer: &Observer) {
        self.0.insert(life, observer.all("service").map(|service| uid(service).to_owned()).collect());
    }

    /// The kubelet of a life has a container made: with what it needs to find those services that are still there.
    pub(crate) fn made(&self, life: u32, spec: &ContainerSpec, observer: &Observer, breaches: &mut Vec<Breach>) {
        let (Some(pod), Some(known)) = (observer.pod(&spec.pod), self.0.get(&life)) else { return };
        if pod.pointer("/spec/enableServiceLinks") == Some(&Value::Bool(false)) {
            return;
        }
        let is_seen = |service: &&Value| {
            known.contains(uid(service)) && text(service, "/metadata/namespace") == spec.pod.namespace
        };
        for (name, address) in observer.all("service").filter(is_seen).filter_map(variable) {
            let has = spec.env.iter().find(|(own, _)| *own == name).map(|(_, value)| value.as_str());
            if has != Some(address) {
                let what = format!("{} of {} is made with {has:?} for {name}, not {address}", spec.name, spec.pod);
                breaches.push(Breach::new(NAME, what));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_with_addresses_have_variables() {
        for (address, expected) in [("10.96.0.7", Some("10.96.0.7")), ("None", None), ("", None)] {
            let service = json!({"metadata": {"name": "linked-one"}, "spec": {"clusterIP": address}});
            let found = variable(&service);
            assert_eq!(found, expected.map(|ip| ("LINKED_ONE_SERVICE_HOST".to_owned(), ip)), "{address}");
        }
    }

    #[test]
    fn lists_of_services_are_late_where_there_are_any() {
        let listed = |path: &str| ApiRequest { method: Method::Get, path: path.into(), ..list() };
        let service = json!({"metadata": {"namespace": "default", "name": SERVICES[0]}});
        let (with, without) = (Observer::of([("service", service)]), Observer::of([]));
        let late = |role: Role, request: &ApiRequest, observer: &Observer| {
            (1..20).any(|life| delay((role, life), request, None, observer, &Rng::new(1)).is_some())
        };
        let pods = listed("/api/v1/pods?limit=500");
        assert!(late(Role::Kubelet(1), &list(), &with));
        assert!(!late(Role::Kubelet(1), &list(), &without));
        assert!(!late(Role::Kubelet(1), &pods, &with));
        assert!(!late(Role::Scheduler, &list(), &with));
    }

    fn list() -> ApiRequest {
        ApiRequest::list(&Service::resource(), &carrack_engine::Selector::all(), 500, "")
    }
}
