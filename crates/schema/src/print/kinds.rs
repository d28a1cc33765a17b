//! Which cells each built-in kind has. They match the headings of [`super::columns`].

use serde_json::{Value, json};

use super::access::{Row, condition, get, joined, labels, list, number, selector, text};
use super::duration::human_duration;
use super::{duration, pod, storage, workloads};

pub(super) fn cells(group: &str, kind: &str, row: Row<'_>) -> Vec<Value> {
    match (group, kind) {
        ("", "Pod") => pod::cells(row),
        ("", "PodTemplate") => workloads::pod_template(row),
        ("", "ReplicationController") => workloads::replica_set(row, true),
        ("apps", "ReplicaSet") => workloads::replica_set(row, false),
        ("apps", "DaemonSet") => workloads::daemon_set(row),
        ("apps", "Deployment") => workloads::deployment(row),
        ("apps", "StatefulSet") => workloads::stateful_set(row),
        ("apps", "ControllerRevision") => {
            let controller =
                row.list("metadata.ownerReferences").iter().find(|o| o.get("controller") == Some(&Value::Bool(true)));
            let controller = controller.map_or("<none>".to_owned(), owner);
            vec![row.name(), controller.into(), row.number("revision").into(), row.age()]
        }
        ("autoscaling", "Scale") => {
            vec![row.name(), row.number("spec.replicas").into(), row.number("status.replicas").into(), row.age()]
        }
        ("batch", "Job") => workloads::job(row),
        ("batch", "CronJob") => workloads::cron_job(row),
        ("", "Service") => service(row),
        ("", "Endpoints") => vec![row.name(), endpoints(row).into(), row.age()],
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(row),
        ("networking.k8s.io", "Ingress") => ingress(row),
        ("networking.k8s.io", "IngressClass") => {
            let parameters = match row.get("spec.parameters") {
                None => "<none>".to_owned(),
                Some(p) if text(p, "apiGroup").is_empty() => format!("{}/{}", text(p, "kind"), text(p, "name")),
                Some(p) => format!("{}.{}/{}", text(p, "kind"), text(p, "apiGroup"), text(p, "name")),
            };
            vec![row.name(), row.text("spec.controller").into(), parameters.into(), row.age()]
        }
        ("networking.k8s.io", "NetworkPolicy") => {
            vec![row.name(), selector(row.get("spec.podSelector")).into(), row.age()]
        }
        ("networking.k8s.io", "ServiceCIDR") => {
            vec![row.name(), joined(row.list("spec.cidrs").iter().filter_map(Value::as_str), ",", "").into(), row.age()]
        }
        ("networking.k8s.io", "IPAddress") => vec![row.name(), parent_reference(row).into(), row.age()],
        ("", "Node") => node(row),
        ("", "Event") => event(row, "involvedObject"),
        ("events.k8s.io", "Event") => event(row, "regarding"),
        ("", "Namespace") => vec![row.name(), row.text("status.phase").into(), row.age()],
        ("", "ConfigMap") => vec![row.name(), (row.count("data") + row.count("binaryData")).into(), row.age()],
        ("", "Secret") => vec![row.name(), row.text("type").into(), row.count("data").into(), row.age()],
        ("", "ServiceAccount") => vec![row.name(), row.count("secrets").into(), row.age()],
        ("", "ResourceQuota") => resource_quota(row),
        ("", "ComponentStatus") => component_status(row),
        ("", "PersistentVolume") => storage::persistent_volume(row),
        ("", "PersistentVolumeClaim") => storage::claim(row),
        ("storage.k8s.io", "StorageClass") => storage::class(row),
        ("storage.k8s.io", "VolumeAttributesClass") => vec![row.name(), row.text("driverName").into(), row.age()],
        ("storage.k8s.io", "VolumeAttachment") => storage::attachment(row),
        ("storage.k8s.io", "CSINode") => vec![row.name(), row.count("spec.drivers").into(), row.age()],
        ("storage.k8s.io", "CSIDriver") => storage::csi_driver(row),
        ("storage.k8s.io", "CSIStorageCapacity") => {
            vec![row.name(), row.text("storageClassName").into(), row.text("capacity").into()]
        }
        ("autoscaling", "HorizontalPodAutoscaler") => workloads::autoscaler(row),
        ("policy", "PodDisruptionBudget") => vec![
            row.name(),
            int_or_text(row.get("spec.minAvailable")),
            int_or_text(row.get("spec.maxUnavailable")),
            row.number("status.disruptionsAllowed").into(),
            row.age(),
        ],
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            let role = format!("{}/{}", row.text("roleRef.kind"), row.text("roleRef.name"));
            let [users, groups, accounts] = workloads::subjects(row);
            vec![row.name(), role.into(), row.age(), users, groups, accounts]
        }
        ("certificates.k8s.io", "CertificateSigningRequest") => signing_request(row),
        ("certificates.k8s.io", "ClusterTrustBundle") => vec![row.name(), row.text("spec.signerName").into()],
        ("coordination.k8s.io", "Lease") => vec![row.name(), row.text("spec.holderIdentity").into(), row.age()],
        ("scheduling.k8s.io", "PriorityClass") => vec![
            row.name(),
            row.number("value").into(),
            row.flag("globalDefault").into(),
            row.age(),
            row.text_or("preemptionPolicy", "PreemptLowerPriority").into(),
        ],
        ("node.k8s.io", "RuntimeClass") => vec![row.name(), row.text("handler").into(), row.age()],
        ("apiregistration.k8s.io", "APIService") => api_service(row),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration") => {
            vec![row.name(), row.count("webhooks").into(), row.age()]
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy" | "MutatingAdmissionPolicy") => {
            let count = row.count("spec.validations") + row.count("spec.mutations");
            let parameters = match row.get("spec.paramKind") {
                Some(kind) => format!("{}/{}", text(kind, "apiVersion"), text(kind, "kind")),
                None => "<unset>".to_owned(),
            };
            vec![row.name(), count.into(), parameters.into(), row.age()]
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding" | "MutatingAdmissionPolicyBinding") => {
            let parameters = match row.get("spec.paramRef") {
                None => "<unset>".to_owned(),
                Some(p) if text(p, "name").is_empty() => format!("{}/*", text(p, "namespace")),
                Some(p) => format!("{}/{}", text(p, "namespace"), text(p, "name")),
            };
            vec![row.name(), row.text("spec.policyName").into(), parameters.into(), row.age()]
        }
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flow_schema(row),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => priority_level(row),
        ("resource.k8s.io", "ResourceClaim") => vec![row.name(), claim_state(row).into(), row.age()],
        ("resource.k8s.io", "ResourceSlice") => vec![
            row.name(),
            row.text_or("spec.nodeName", "<unset>").into(),
            row.text("spec.driver").into(),
            row.text("spec.pool.name").into(),
            row.age(),
        ],
        ("resource.k8s.io", "DeviceClass" | "ResourceClaimTemplate") => vec![row.name(), row.age()],
        _ => vec![row.name(), row.get("metadata.creationTimestamp").cloned().unwrap_or(Value::Null)],
    }
}

fn owner(owner: &Value) -> String {
    let group = text(owner, "apiVersion").split_once('/').map_or("", |(group, _)| group);
    let kind = text(owner, "kind").to_lowercase();
    let kind = if group.is_empty() { kind } else { format!("{kind}.{group}") };
    format!("{kind}/{}", text(owner, "name"))
}

fn int_or_text(value: Option<&Value>) -> Value {
    match value {
        None | Some(Value::Null) => json!("N/A"),
        Some(Value::String(text)) => text.as_str().into(),
        Some(other) => other.to_string().into(),
    }
}

fn node(row: Row<'_>) -> Vec<Value> {
    let status = row.get("status").unwrap_or(&Value::Null);
    let mut state = match condition(status, "Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if row.flag("spec.unschedulable") {
        state.push_str(",SchedulingDisabled");
    }
    let address = |type_: &str| {
        let found = list(status, "addresses").iter().find(|a| text(a, "type") == type_);
        Value::from(found.map_or("<none>", |a| text(a, "address")))
    };
    vec![
        row.name(),
        state.into(),
        node_roles(row).into(),
        row.age(),
        row.text("status.nodeInfo.kubeletVersion").into(),
        address("InternalIP"),
        address("ExternalIP"),
        row.text_or("status.nodeInfo.osImage", "<unknown>").into(),
        row.text_or("status.nodeInfo.kernelVersion", "<unknown>").into(),
        row.text_or("status.nodeInfo.containerRuntimeVersion", "<unknown>").into(),
    ]
}

fn node_roles(row: Row<'_>) -> String {
    let mut roles: Vec<&str> = Vec::new();
    for (key, value) in row.map("metadata.labels").into_iter().flatten() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/") {
            roles.push(role);
        } else if key == "kubernetes.io/role" {
            roles.extend(value.as_str());
        }
    }
    roles.sort_unstable();
    roles.dedup();
    joined(roles.into_iter(), ",", "<none>")
}

fn service(row: Row<'_>) -> Vec<Value> {
    let type_ = row.text("spec.type");
    let external = joined(row.list("spec.externalIPs").iter().filter_map(Value::as_str), ",", "");
    let external = match type_ {
        "ExternalName" => row.text("spec.externalName").to_owned(),
        "LoadBalancer" => {
            let ingress = row.list("status.loadBalancer.ingress");
            let given = joined(
                ingress.iter().map(|i| if text(i, "ip").is_empty() { text(i, "hostname") } else { text(i, "ip") }),
                ",",
                "",
            );
            match (given.as_str(), external.as_str()) {
                ("", "") => "<pending>".to_owned(),
                (given, "") => given.to_owned(),
                ("", external) => external.to_owned(),
                (given, external) => format!("{given},{external}"),
            }
        }
        _ if external.is_empty() => "<none>".to_owned(),
        _ => external,
    };
    let ports: Vec<String> = row
        .list("spec.ports")
        .iter()
        .map(|port| match number(port, "nodePort") {
            0 => format!("{}/{}", number(port, "port"), text(port, "protocol")),
            node_port => format!("{}:{node_port}/{}", number(port, "port"), text(port, "protocol")),
        })
        .collect();
    vec![
        row.name(),
        type_.into(),
        row.text_or("spec.clusterIP", "<none>").into(),
        external.into(),
        joined(ports.iter().map(String::as_str), ",", "<none>").into(),
        row.age(),
        labels(row.map("spec.selector")).into(),
    ]
}

/// The first three, and how many more there are.
fn first_three(items: &[String], none: &str) -> String {
    match items {
        [] => none.to_owned(),
        [first, second, third, more @ ..] if !more.is_empty() => {
            format!("{first},{second},{third} + {} more...", more.len())
        }
        few => few.join(","),
    }
}

fn endpoints(row: Row<'_>) -> String {
    let mut shown = Vec::new();
    for subset in row.list("subsets") {
        for address in list(subset, "addresses") {
            let ip = text(address, "ip");
            let ports = list(subset, "ports");
            if ports.is_empty() {
                shown.push(ip.to_owned());
            }
            shown.extend(ports.iter().map(|port| host_port(ip, number(port, "port"))));
        }
    }
    first_three(&shown, "<none>")
}

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn endpoint_slice(row: Row<'_>) -> Vec<Value> {
    let ports: Vec<String> = row
        .list("ports")
        .iter()
        .map(|port| match (port.get("port").and_then(Value::as_i64), text(port, "name")) {
            (Some(number), _) => number.to_string(),
            (None, "") => "*".to_owned(),
            (None, name) => name.to_owned(),
        })
        .collect();
    let addresses: Vec<String> = row
        .list("endpoints")
        .iter()
        .flat_map(|e| list(e, "addresses"))
        .filter_map(|a| a.as_str().map(str::to_owned))
        .collect();
    vec![
        row.name(),
        row.text("addressType").into(),
        first_three(&ports, "<unset>").into(),
        first_three(&addresses, "<unset>").into(),
        row.age(),
    ]
}

fn ingress(row: Row<'_>) -> Vec<Value> {
    let hosts: Vec<String> = row
        .list("spec.rules")
        .iter()
        .map(|rule| text(rule, "host").to_owned())
        .filter(|host| !host.is_empty())
        .collect();
    let addresses = row
        .list("status.loadBalancer.ingress")
        .iter()
        .map(|i| if text(i, "ip").is_empty() { text(i, "hostname") } else { text(i, "ip") });
    vec![
        row.name(),
        row.text_or("spec.ingressClassName", "<none>").into(),
        first_three(&hosts, "*").into(),
        joined(addresses, ",", "").into(),
        if row.list("spec.tls").is_empty() { "80" } else { "80, 443" }.into(),
        row.age(),
    ]
}

fn parent_reference(row: Row<'_>) -> String {
    let Some(parent) = row.get("spec.parentRef") else { return "<none>".to_owned() };
    let resource = joined([text(parent, "resource"), text(parent, "group")].into_iter(), ".", "");
    joined([resource.as_str(), text(parent, "namespace"), text(parent, "name")].into_iter(), "/", "<none>")
}

/// Core events and those of `events.k8s.io` say the same under other names.
fn event(row: Row<'_>, about: &str) -> Vec<Value> {
    let core = about == "involvedObject";
    let pick = |core_name: &'static str, new_name: &'static str| if core { core_name } else { new_name };
    let since = |text: &str| duration::since(text, row.now);
    let (first_at, last_at) = (
        row.text(pick("firstTimestamp", "deprecatedFirstTimestamp")),
        row.text(pick("lastTimestamp", "deprecatedLastTimestamp")),
    );
    let first = if first_at.is_empty() { since(row.text("eventTime")) } else { since(first_at) };
    let (last, count) = match row.get("series") {
        Some(series) if !series.is_null() => (since(text(series, "lastObservedTime")), number(series, "count")),
        _ => {
            let last = if last_at.is_empty() { first.clone() } else { since(last_at) };
            (last, row.number(pick("count", "deprecatedCount")).max(1))
        }
    };
    let object = row.get(about).unwrap_or(&Value::Null);
    let kind = text(object, "kind").to_lowercase();
    let target = if text(object, "name").is_empty() { kind } else { format!("{kind}/{}", text(object, "name")) };
    let source = row.get(pick("source", "deprecatedSource")).unwrap_or(&Value::Null);
    let component = match text(source, "component") {
        "" => row.text(pick("reportingComponent", "reportingController")),
        component => component,
    };
    let host = match text(source, "host") {
        "" => row.text("reportingInstance"),
        host => host,
    };
    vec![
        last.into(),
        row.text("type").into(),
        row.text("reason").into(),
        target.into(),
        text(object, "fieldPath").into(),
        joined([component, host].into_iter(), ", ", "").into(),
        row.text(pick("message", "note")).trim().into(),
        first.into(),
        count.into(),
        row.name(),
    ]
}

fn resource_quota(row: Row<'_>) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (name, hard) in row.map("status.hard").into_iter().flatten() {
        let used = row.map("status.used").and_then(|used| used.get(name)).and_then(Value::as_str).unwrap_or("0");
        let shown = format!("{name}: {used}/{}", hard.as_str().unwrap_or_default());
        if name.starts_with("limits") { limits.push(shown) } else { requests.push(shown) }
    }
    vec![row.name(), requests.join(", ").into(), limits.join(", ").into(), row.age()]
}

fn component_status(row: Row<'_>) -> Vec<Value> {
    let healthy = row.list("conditions").iter().find(|c| text(c, "type") == "Healthy");
    let (status, message, error) = healthy.map_or(("Unknown", "", ""), |c| {
        (if text(c, "status") == "True" { "Healthy" } else { "Unhealthy" }, text(c, "message"), text(c, "error"))
    });
    vec![row.name(), status.into(), message.into(), error.into()]
}

fn signing_request(row: Row<'_>) -> Vec<Value> {
    let has = |type_: &str| row.list("status.conditions").iter().any(|c| text(c, "type") == type_);
    let mut state = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if !row.text("status.certificate").is_empty() {
        state.push_str(",Issued");
    }
    let duration =
        row.get("spec.expirationSeconds").and_then(Value::as_i64).map_or("<none>".to_owned(), human_duration);
    vec![
        row.name(),
        row.age(),
        row.text_or("spec.signerName", "<none>").into(),
        row.text("spec.username").into(),
        duration.into(),
        state.into(),
    ]
}

fn api_service(row: Row<'_>) -> Vec<Value> {
    let service = match row.get("spec.service") {
        Some(service) if !service.is_null() => format!("{}/{}", text(service, "namespace"), text(service, "name")),
        _ => "Local".to_owned(),
    };
    let available = row.list("status.conditions").iter().find(|c| text(c, "type") == "Available");
    let available = match available.map(|c| (text(c, "status"), text(c, "reason"))) {
        None => "Unknown".to_owned(),
        Some(("True", _)) => "True".to_owned(),
        Some((status, reason)) => format!("{status} ({reason})"),
    };
    vec![row.name(), service.into(), available.into(), row.age()]
}

fn flow_schema(row: Row<'_>) -> Vec<Value> {
    let dangling = get(row.value, "status").and_then(|status| condition(status, "Dangling")).unwrap_or("?");
    vec![
        row.name(),
        row.text("spec.priorityLevelConfiguration.name").into(),
        row.number("spec.matchingPrecedence").into(),
        row.text_or("spec.distinguisherMethod.type", "<none>").into(),
        row.age(),
        dangling.into(),
    ]
}

fn priority_level(row: Row<'_>) -> Vec<Value> {
    let none = |path: &str| row.get(path).and_then(Value::as_i64).map_or(json!("<none>"), |n| n.to_string().into());
    vec![
        row.name(),
        row.text("spec.type").into(),
        none("spec.limited.nominalConcurrencyShares"),
        none("spec.limited.limitResponse.queuing.queues"),
        none("spec.limited.limitResponse.queuing.handSize"),
        none("spec.limited.limitResponse.queuing.queueLengthLimit"),
        row.age(),
    ]
}

fn claim_state(row: Row<'_>) -> String {
    let mut states = Vec::new();
    if row.is_deleting() {
        states.push("deleted");
    }
    match (row.get("status.allocation").is_some_and(|a| !a.is_null()), row.count("status.reservedFor")) {
        (false, _) => states.push("pending"),
        (true, 0) => states.push("allocated"),
        (true, _) => states.extend(["allocated", "reserved"]),
    }
    states.join(",")
}
