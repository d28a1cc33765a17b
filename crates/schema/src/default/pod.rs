//! Defaults of pods and of pod templates.

use carrack_types::qos;
use serde_json::{Value, json};

use super::fields::{Fields, each, pair, resource_list, resources, set, set_number, set_text, text, with, with_new};
use super::kinds;
use crate::amounts;

/// Mode of files in volumes: 0644.
const DEFAULT_MODE: i64 = 420;

/// Defaults of a pod itself, after those of its spec. Its priority is none of them: that is its class's, which may be one that
/// it does not name.
pub(super) fn pod(object: &mut Fields) {
    // Its node's addresses are no such pair: they are held against each other.
    with(object, "status", |status| pair(status, "podIP", "podIPs", Some("ip")));
    with_new(object, "spec", |spec| {
        spec_defaults(spec);
        set(spec, "enableServiceLinks", true);
        let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
        for list in ["containers", "initContainers"] {
            each(spec, list, |container| {
                with(container, "resources", requests_from_limits);
                // Not of templates: there they would stay when their pods leave the node's network.
                if host_network {
                    each(container, "ports", host_port);
                }
            });
        }
        ask_as_a_whole(spec);
    });
    with(object, "status", |status| {
        for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
            each(status, list, |container| {
                resource_list(container, "allocatedResources");
                with(container, "resources", resources);
            });
        }
    });
}

/// What a pod as a whole asks for, where it says something of that: of CPUs and memory what its containers ask for, and of what
/// they do not name so much as it may use at most. Huge pages it may use, and asks for, as many as they may use
/// (`defaultHugePagePodLimits` and `defaultPodRequests`).
fn ask_as_a_whole(spec: &mut Fields) {
    let Some(Value::Object(own)) = spec.get("resources") else { return };
    let said = |list: &str| own.get(list).and_then(Value::as_object).cloned().unwrap_or_default();
    let (mut limits, mut requests) = (said("limits"), said("requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for (name, amount) in amounts::of_containers(spec, "limits") {
        if name.starts_with("hugepages-") {
            limits.entry(name).or_insert_with(|| amount.to_string().into());
        }
    }
    if !limits.is_empty() {
        for (name, amount) in amounts::of_containers(spec, "requests") {
            if matches!(name.as_str(), "cpu" | "memory") {
                requests.entry(name).or_insert_with(|| amount.to_string().into());
            }
        }
        for (name, limit) in limits.iter().filter(|(name, _)| qos::may_be_of_pod(name)) {
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
    with(spec, "resources", |own| {
        for (list, amounts) in [("limits", limits), ("requests", requests)] {
            if !amounts.is_empty() {
                own.insert(list.to_owned(), amounts.into());
            }
        }
    });
}

/// A port in the node's network is the node's.
fn host_port(port: &mut Fields) {
    if let Some(number) = port.get("containerPort").cloned() {
        set_number(port, "hostPort", number);
    }
}

/// Defaults of a template (`metadata` and `spec`).
pub(super) fn template(template: &mut Fields) {
    with_new(template, "spec", spec_defaults);
}

fn spec_defaults(spec: &mut Fields) {
    set_text(spec, "dnsPolicy", "ClusterFirst");
    set_text(spec, "restartPolicy", "Always");
    set_text(spec, "schedulerName", "default-scheduler");
    set(spec, "securityContext", json!({}));
    set(spec, "terminationGracePeriodSeconds", 30);
    // `serviceAccount` is the old name of `serviceAccountName`; both always say the same.
    let account =
        [text(spec, "serviceAccountName"), text(spec, "serviceAccount")].into_iter().find(|name| !name.is_empty());
    if let Some(account) = account.map(str::to_owned) {
        spec.insert("serviceAccountName".to_owned(), account.clone().into());
        spec.insert("serviceAccount".to_owned(), account.into());
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        each(spec, list, container_defaults);
    }
    with(spec, "resources", resources);
    resource_list(spec, "overhead");
    each(spec, "volumes", volume);
}

fn container_defaults(container: &mut Fields) {
    if text(container, "imagePullPolicy").is_empty() {
        let policy = if is_latest(text(container, "image")) { "Always" } else { "IfNotPresent" };
        container.insert("imagePullPolicy".to_owned(), policy.into());
    }
    set_text(container, "terminationMessagePath", "/dev/termination-log");
    set_text(container, "terminationMessagePolicy", "File");
    with_new(container, "resources", resources);
    each(container, "ports", |port| set_text(port, "protocol", "TCP"));
    each(container, "env", |variable| {
        with(variable, "valueFrom", |from| with(from, "fieldRef", |field| set_text(field, "apiVersion", "v1")))
    });
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        with(container, probe, |probe| {
            set_number(probe, "timeoutSeconds", 1);
            set_number(probe, "periodSeconds", 10);
            set_number(probe, "successThreshold", 1);
            set_number(probe, "failureThreshold", 3);
            handler(probe);
            with(probe, "grpc", |grpc| set(grpc, "service", ""));
        });
    }
    with(container, "lifecycle", |lifecycle| {
        with(lifecycle, "postStart", handler);
        with(lifecycle, "preStop", handler);
    });
}

fn handler(handler: &mut Fields) {
    with(handler, "httpGet", |get| {
        set_text(get, "path", "/");
        set_text(get, "scheme", "HTTP");
    });
}

/// Whether an image's tag is `latest`, given or, where no digest says which it is, meant.
fn is_latest(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    // What cannot be read has no tag.
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return false;
    }
    match name.rsplit('/').next().unwrap_or(name).rsplit_once(':') {
        Some((_, tag)) => tag == "latest",
        None => digest.is_none(),
    }
}

/// Whether a text is an algorithm and the 32 or more digits that it makes.
fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(_, digits)| digits.len() >= 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn requests_from_limits(resources: &mut Fields) {
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    if limits.is_empty() {
        return;
    }
    with_new(resources, "requests", |requests| {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    });
}

fn volume(volume: &mut Fields) {
    if volume.keys().all(|key| key == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    with(volume, "hostPath", |source| set(source, "type", ""));
    for source in ["secret", "configMap"] {
        with(volume, source, |source| set(source, "defaultMode", DEFAULT_MODE));
    }
    with(volume, "downwardAPI", |source| {
        set(source, "defaultMode", DEFAULT_MODE);
        downward_items(source);
    });
    with(volume, "projected", |source| {
        set(source, "defaultMode", DEFAULT_MODE);
        each(source, "sources", |projection| {
            with(projection, "serviceAccountToken", |token| set(token, "expirationSeconds", 3600));
            with(projection, "podCertificate", |certificate| set(certificate, "maxExpirationSeconds", 86_400));
            with(projection, "downwardAPI", downward_items);
        });
    });
    with(volume, "ephemeral", |source| {
        with(source, "volumeClaimTemplate", |template| with(template, "spec", kinds::claim_spec));
    });
    with(volume, "iscsi", |source| set_text(source, "iscsiInterface", "default"));
    with(volume, "rbd", |source| {
        set_text(source, "pool", "rbd");
        set_text(source, "user", "admin");
        set_text(source, "keyring", "/etc/ceph/keyring");
    });
}

fn downward_items(source: &mut Fields) {
    each(source, "items", |item| with(item, "fieldRef", |field| set_text(field, "apiVersion", "v1")));
}
