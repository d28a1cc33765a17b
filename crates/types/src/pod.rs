//! What a pod asks of a node, as scheduler and kubelet both count it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements, Volume};

use crate::quantity::Quantity;

/// Amounts by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Reads a resource list of the API. What is no quantity counts as nothing; admission refuses it.
#[must_use]
pub fn resource_list(
    list: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
) -> ResourceList {
    list.into_iter().flatten().map(|(name, q)| (name.clone(), Quantity::try_from(q).unwrap_or_default())).collect()
}

/// Adds `other` to `to`.
pub fn add(to: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        *to.entry(name.clone()).or_default() += *quantity;
    }
}

/// Takes `other` from `to`; what becomes nothing is dropped.
pub fn subtract(to: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        if let Some(left) = to.get_mut(name) {
            *left -= *quantity;
            if left.is_zero() {
                to.remove(name);
            }
        }
    }
}

/// Raises each of `to` to what `other` has of it, where that is more.
pub fn raise(to: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        let have = to.entry(name.clone()).or_default();
        if *quantity > *have {
            *have = *quantity;
        }
    }
}

/// What a pod's containers take together; `missing` is what each takes of what it does not name.
fn total(spec: &PodSpec, of: impl Fn(&ResourceRequirements) -> ResourceList, missing: &ResourceList) -> ResourceList {
    let each = |c: &Container| {
        let mut list = missing.clone();
        list.extend(c.resources.as_ref().map(&of).unwrap_or_default());
        list
    };
    let init = spec.init_containers.iter().flatten().map(|c| (each(c), c.restart_policy.as_deref() == Some("Always")));
    together(init, spec.containers.iter().map(each))
}

/// What containers take together: those that start a pod, each with whether it is a sidecar, and the others. Init containers run
/// one after another beside the sidecars started before them; at the worst moment the pod needs the larger of that and of its
/// steady state.
#[must_use]
pub fn together(
    init: impl IntoIterator<Item = (ResourceList, bool)>,
    containers: impl IntoIterator<Item = ResourceList>,
) -> ResourceList {
    let mut sum = ResourceList::new();
    for own in containers {
        add(&mut sum, &own);
    }
    let mut sidecars = ResourceList::new();
    let mut worst = ResourceList::new();
    for (own, is_sidecar) in init {
        let mut now = sidecars.clone();
        add(&mut now, &own);
        if is_sidecar {
            add(&mut sidecars, &own);
        }
        raise(&mut worst, &now);
    }
    add(&mut sum, &sidecars);
    raise(&mut sum, &worst);
    sum
}

/// What the scheduler reserves for a pod: requests, with init containers, sidecars and overhead
/// (k8s.io/component-helpers/resource/helpers.go `PodRequests`).
#[must_use]
pub fn requests(pod: &Pod) -> ResourceList {
    pod.spec.as_ref().map(requests_of).unwrap_or_default()
}

/// The same of its spec.
#[must_use]
pub fn requests_of(spec: &PodSpec) -> ResourceList {
    requests_with(spec, &ResourceList::new())
}

/// The same, where each container that says nothing of one of these is taken to ask for so much of it
/// (`NonMissingContainerRequests` there).
#[must_use]
pub fn requests_with(spec: &PodSpec, missing: &ResourceList) -> ResourceList {
    let mut sum = total(spec, asked_by, missing);
    if let Some(own) = &spec.resources {
        // Where the pod as a whole does not request a resource: what its containers ask for, and what it may use at most if they
        // name none of it. The API server writes that down in new pods.
        let named = total(spec, asked_by, &ResourceList::new());
        let limits = resource_list(own.limits.as_ref());
        sum.extend(limits.into_iter().filter(|(name, _)| !named.contains_key(name)));
        sum.extend(resource_list(own.requests.as_ref()));
    }
    add(&mut sum, &resource_list(spec.overhead.as_ref()));
    sum
}

/// What somebody asks for. Limits stand in for requests that are not given, as the API server defaults them.
#[must_use]
pub fn asked_by(resources: &ResourceRequirements) -> ResourceList {
    let mut list = resource_list(resources.limits.as_ref());
    list.extend(resource_list(resources.requests.as_ref()));
    list
}

/// What a pod may use at most, where it says so.
#[must_use]
pub fn limits(pod: &Pod) -> ResourceList {
    let Some(spec) = &pod.spec else { return ResourceList::new() };
    let mut sum = total(spec, |r| resource_list(r.limits.as_ref()), &ResourceList::new());
    sum.extend(resource_list(spec.resources.as_ref().and_then(|own| own.limits.as_ref())));
    sum
}

/// Whether a volume's files are made of what the API has.
#[must_use]
pub fn is_made_of_objects(v: &Volume) -> bool {
    v.config_map.is_some() || v.secret.is_some() || v.projected.is_some() || v.downward_api.is_some()
}

/// Leaves out of a pod the volumes that are its node's own affair: directories there, and files made of what the API has. A
/// volume in memory has room for every source that there is, and takes more than 3 KB.
pub fn forget_local_volumes(pod: &mut Pod) {
    let Some(volumes) = pod.spec.as_mut().and_then(|spec| spec.volumes.as_mut()) else { return };
    volumes.retain(|v| !(is_made_of_objects(v) || v.empty_dir.is_some() || v.host_path.is_some() || v.image.is_some()));
    volumes.shrink_to_fit();
}

/// Leaves out of a pod what its node alone acts on: volumes of its own, and of containers all but their names, images, ports,
/// resources and restart policies, and what is told of their mounts. It cannot be written back whole.
pub fn forget_what_nodes_do(pod: &mut Pod) {
    forget_local_volumes(pod);
    let Some(spec) = &mut pod.spec else { return };
    if spec.volumes.as_ref().is_some_and(Vec::is_empty) {
        spec.volumes = None;
    }
    spec.ephemeral_containers = None;
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        *container = Container {
            name: std::mem::take(&mut container.name),
            image: container.image.take(),
            ports: container.ports.take(),
            resources: container.resources.take(),
            restart_policy: container.restart_policy.take(),
            ..Container::default()
        };
    }
    if let Some(status) = &mut pod.status {
        let told = status.container_statuses.iter_mut().chain(&mut status.init_container_statuses);
        for container in told.flatten() {
            container.volume_mounts = None;
        }
    }
    shrink(pod);
}

/// Gives back the room that lists kept while they were read: four container statuses take 3 KB, and mostly there is one.
fn shrink(pod: &mut Pod) {
    fn fit<T>(list: Option<&mut Vec<T>>) {
        list.into_iter().for_each(Vec::shrink_to_fit);
    }
    fit(pod.metadata.owner_references.as_mut());
    if let Some(spec) = &mut pod.spec {
        spec.containers.shrink_to_fit();
        fit(spec.init_containers.as_mut());
        fit(spec.tolerations.as_mut());
    }
    if let Some(status) = &mut pod.status {
        fit(status.conditions.as_mut());
        fit(status.container_statuses.as_mut());
        fit(status.init_container_statuses.as_mut());
    }
}

/// Whether a pod has ended for good.
#[must_use]
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_look_at_stays() {
        use serde_json::{Value, from_value, json};

        let whole = |container: &Value, volumes: Value| -> Pod {
            let pod = json!({"metadata": {"name": "p", "uid": "u", "labels": {"a": "b"}, "annotations": {"c": "d"}},
                "spec": {"nodeName": "n", "containers": [container], "volumes": volumes, "tolerations": [{"operator": "Exists"}]},
                "status": {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 3, "image": "i",
                    "imageID": "", "ready": true}]}});
            from_value(pod).expect("a pod")
        };
        let kept = json!({"name": "c", "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": "1"}}});
        let mut container = kept.clone();
        container["env"] = json!([{"name": "k", "value": "v"}]);
        container["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        container["livenessProbe"] = json!({"tcpSocket": {"port": 80}});
        let claim = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        let volumes = json!([{"name": "e", "emptyDir": {}}, claim, {"name": "t", "projected": {"sources": []}}]);
        let mut pod = whole(&container, volumes);
        let statuses = pod.status.as_mut().and_then(|status| status.container_statuses.as_mut()).expect("statuses");
        statuses[0].volume_mounts = from_value(json!([{"name": "v", "mountPath": "/v"}])).expect("mounts");
        forget_what_nodes_do(&mut pod);
        assert_eq!(pod, whole(&kept, json!([claim])));
        let mut pod = whole(&container, json!([{"name": "e", "emptyDir": {}}]));
        forget_what_nodes_do(&mut pod);
        assert_eq!(pod, whole(&kept, Value::Null));
    }

    /// What a pod says of itself as a whole, and what it then asks for beside containers that name CPUs and no memory.
    #[test]
    fn pods_ask_as_a_whole() {
        for (own, cpu, memory) in [
            (serde_json::json!({}), 100, 0),
            (serde_json::json!({"limits": {"cpu": "1"}}), 100, 0),
            (serde_json::json!({"limits": {"cpu": "1", "memory": "1"}}), 100, 1000),
            (serde_json::json!({"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "300m"}}), 300, 1000),
        ] {
            let containers = [serde_json::json!({"name": "a", "resources": {"requests": {"cpu": "100m"}}})];
            let spec = serde_json::json!({"resources": own, "containers": containers});
            let pod: Pod = crate::json::from_value(serde_json::json!({"spec": spec})).expect("a pod");
            let sum = requests(&pod);
            let millis = |name: &str| sum.get(name).map_or(0, |amount| amount.millis());
            assert_eq!((millis("cpu"), millis("memory")), (cpu, memory), "{own}");
        }
    }

    #[test]
    fn requests_count_the_worst_moment() {
        let pod: Pod = crate::json::from_value(serde_json::json!({"spec": {
            "overhead": {"cpu": "10m"},
            "initContainers": [
                {"name": "a", "resources": {"requests": {"cpu": "300m"}}},
                {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "b", "resources": {"requests": {"cpu": "500m", "memory": "1Mi"}}}],
            "containers": [
                {"name": "x", "resources": {"requests": {"cpu": "200m"}}},
                {"name": "y", "resources": {"requests": {"cpu": "0.1", "example.com/d": "2"}}}]}}))
        .expect("a pod");
        let sum = requests(&pod);
        // Init: 100m sidecar + 500m; steady: 300m + 100m sidecar.
        assert_eq!(sum["cpu"], Quantity::from_millis(610));
        assert_eq!(sum["memory"].units(), 1 << 20);
        assert_eq!(sum["example.com/d"].units(), 2);
        use crate::quantity::Form;
        let missing = ResourceList::from([
            ("memory".to_owned(), Quantity::from_units(1 << 20, Form::BinarySi)),
            ("x".into(), Quantity::from_units(1, Form::DecimalSi)),
        ]);
        let sum = requests_with(pod.spec.as_ref().expect("a spec"), &missing);
        // Two containers and the sidecar say nothing of memory, nobody anything of the other.
        assert_eq!((sum["memory"].units(), sum["x"].units(), sum["cpu"]), (3 << 20, 3, Quantity::from_millis(610)));
    }
}
