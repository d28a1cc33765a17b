//! The restricted level: as hardened as a pod can be.

use serde_json::Value;

use super::check::{Pod, Violation, containers, name, quoted, set};

/// Volume types that need no trust in whoever writes the pod.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// What breaks the level, besides what breaks baseline.
pub(super) fn check(pod: &Pod<'_>) -> Vec<Violation> {
    // What only Linux knows.
    let linux = |check: fn(&Pod<'_>) -> Option<Violation>| {
        if pod.since(25) && pod.is_windows() { None } else { check(pod) }
    };
    let found = [linux(escalation), linux(capabilities), volumes(pod), non_root(pod), user(pod), linux(seccomp)];
    found.into_iter().flatten().collect()
}

fn escalation(pod: &Pod<'_>) -> Option<Violation> {
    if !pod.since(8) {
        return None;
    }
    let names = pod.where_(|container| container["securityContext"]["allowPrivilegeEscalation"] != Value::Bool(false));
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&names));
    Violation::new("allowPrivilegeEscalation != false", detail)
}

fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    if !pod.since(22) {
        return None;
    }
    let list = |container: &'_ Value, part: &str| -> Vec<String> {
        let all = container["securityContext"]["capabilities"][part].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let keeping = pod.where_(|container| !list(container, "drop").iter().any(|one| one == "ALL"));
    let mut added = Vec::new();
    let adding = pod.where_(|container| {
        let bad: Vec<String> = list(container, "add").into_iter().filter(|one| one != "NET_BIND_SERVICE").collect();
        let any = !bad.is_empty();
        added.extend(bad);
        any
    });
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&keeping)));
    }
    if !adding.is_empty() {
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&adding),
            quoted(set(added.iter().map(String::as_str)))
        ));
    }
    if details.is_empty() {
        return None;
    }
    Violation::new("unrestricted capabilities", details.join("; "))
}

fn seccomp(pod: &Pod<'_>) -> Option<Violation> {
    if !pod.since(19) {
        return None;
    }
    let good = |kind: &str| matches!(kind, "RuntimeDefault" | "Localhost");
    let (mut setters, mut values) = (Vec::new(), Vec::new());
    let of_pod = pod.context()["seccompProfile"]["type"].as_str();
    if let Some(kind) = of_pod.filter(|kind| !good(kind)) {
        setters.push("pod".to_owned());
        values.push(kind);
    }
    let own = |container: &'_ Value| container["securityContext"]["seccompProfile"]["type"].as_str().map(str::to_owned);
    let mut more = Vec::new();
    let explicit = pod.where_(|container| {
        let bad = own(container).filter(|kind| !good(kind));
        let any = bad.is_some();
        more.extend(bad);
        any
    });
    values.extend(more.iter().map(String::as_str));
    if !explicit.is_empty() {
        setters.push(containers(&explicit));
    }
    if !setters.is_empty() {
        let detail = format!(
            "{} must not set securityContext.seccompProfile.type to {}",
            setters.join(" and "),
            quoted(set(values.iter().copied()))
        );
        return Violation::new("seccompProfile", detail);
    }
    if of_pod.is_some() {
        return None;
    }
    let implicit = pod.where_(|container| own(container).is_none());
    if implicit.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        containers(&implicit)
    );
    Violation::new("seccompProfile", detail)
}

fn volumes(pod: &Pod<'_>) -> Option<Violation> {
    let mut bad = Vec::new();
    for volume in pod.spec["volumes"].as_array().into_iter().flatten() {
        let mut kinds =
            volume.as_object().into_iter().flatten().filter(|(key, value)| *key != "name" && !value.is_null());
        match kinds.next() {
            Some((kind, _)) if VOLUMES.contains(&kind.as_str()) => {}
            Some((kind, _)) => bad.push((name(volume), kind.as_str())),
            None => bad.push((name(volume), "unknown")),
        }
    }
    if bad.is_empty() {
        return None;
    }
    let (names, kinds) =
        (bad.iter().map(|(name, _)| *name).collect::<Vec<_>>(), set(bad.iter().map(|(_, kind)| *kind)));
    let (volumes, use_, types) = if names.len() == 1 { ("volume", "uses", "type") } else { ("volumes", "use", "type") };
    let types = if kinds.len() == 1 { types.to_owned() } else { format!("{types}s") };
    let detail = format!("{volumes} {} {use_} restricted volume {types} {}", quoted(names), quoted(kinds));
    Violation::new("restricted volume types", detail)
}

fn non_root(pod: &Pod<'_>) -> Option<Violation> {
    if pod.since(35) && pod.has_user_namespace() {
        return None;
    }
    let of_pod = pod.context()["runAsNonRoot"].as_bool();
    let own = |container: &Value| container["securityContext"]["runAsNonRoot"].as_bool();
    let mut setters = Vec::new();
    if of_pod == Some(false) {
        setters.push("pod".to_owned());
    }
    let explicit = pod.where_(|container| own(container) == Some(false));
    if !explicit.is_empty() {
        setters.push(containers(&explicit));
    }
    if !setters.is_empty() {
        let detail = format!("{} must not set securityContext.runAsNonRoot=false", setters.join(" and "));
        return Violation::new("runAsNonRoot != true", detail);
    }
    let implicit = pod.where_(|container| own(container).is_none());
    if of_pod == Some(true) || implicit.is_empty() {
        return None;
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&implicit));
    Violation::new("runAsNonRoot != true", detail)
}

fn user(pod: &Pod<'_>) -> Option<Violation> {
    if !pod.since(23) || (pod.since(35) && pod.has_user_namespace()) {
        return None;
    }
    let root = |context: &Value| context["runAsUser"].as_i64() == Some(0);
    let mut setters = Vec::new();
    if root(pod.context()) {
        setters.push("pod".to_owned());
    }
    let names = pod.where_(|container| root(&container["securityContext"]));
    if !names.is_empty() {
        setters.push(containers(&names));
    }
    if setters.is_empty() {
        return None;
    }
    Violation::new("runAsUser=0", format!("{} must not set runAsUser=0", setters.join(" and ")))
}
