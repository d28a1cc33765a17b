//! The baseline level: nothing that is known to lead out of a container.

use carrack_types::well_known::APPARMOR_PREFIX;
use serde_json::Value;

use super::check::{Pod, Violation, containers, name, plural, quoted, set};

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const SYSCTLS: [&str; 5] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
];
const SYSCTLS_SINCE_27: [&str; 1] = ["net.ipv4.ip_local_reserved_ports"];
const SYSCTLS_SINCE_29: [&str; 4] = [
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
];
const SYSCTLS_SINCE_32: [&str; 2] = ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"];

/// What breaks the level. Checks that a stricter one replaces are left out for `restricted`, from the release on that has the
/// stricter one.
pub(super) fn check(pod: &Pod<'_>, restricted: bool) -> Vec<Violation> {
    let until = |minor: u32, check: fn(&Pod<'_>) -> Option<Violation>| {
        if restricted && pod.since(minor) { None } else { check(pod) }
    };
    // In the order of upstream's names for them, which is the order of its sentences.
    let found = [
        apparmor(pod),
        until(22, capabilities),
        host_namespaces(pod),
        until(0, host_path),
        host_ports(pod),
        host_probes(pod),
        privileged(pod),
        proc_mount(pod),
        selinux(pod),
        until(19, seccomp),
        sysctls(pod),
        host_process(pod),
    ];
    found.into_iter().flatten().collect()
}

fn apparmor(pod: &Pod<'_>) -> Option<Violation> {
    let bad = |kind: &&str| !matches!(*kind, "RuntimeDefault" | "Localhost");
    let mut setters = Vec::new();
    let mut kinds = Vec::new();
    if let Some(kind) = pod.context()["appArmorProfile"]["type"].as_str().filter(bad) {
        setters.push("pod".to_owned());
        kinds.push(kind);
    }
    let names = pod.where_(|container| {
        let kind = container["securityContext"]["appArmorProfile"]["type"].as_str().filter(bad);
        kinds.extend(kind);
        kind.is_some()
    });
    if !names.is_empty() {
        setters.push(containers(&names));
    }
    let mut values: Vec<String> = set(kinds).into_iter().map(str::to_owned).collect();
    let mut annotations = Vec::new();
    for (key, value) in pod.metadata["annotations"].as_object().into_iter().flatten() {
        let profile = value.as_str().unwrap_or_default();
        let fine = profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/");
        if key.starts_with(APPARMOR_PREFIX) && !fine {
            annotations.push(format!("{key}={profile:?}"));
        }
    }
    if !annotations.is_empty() {
        setters.push(plural("annotation", "annotations", annotations.len()).to_owned());
        values.extend(annotations);
    }
    if setters.is_empty() {
        return None;
    }
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
    let shown = quoted(values.iter().map(String::as_str));
    Violation::new(reason, format!("{} must not set AppArmor profile type to {shown}", setters.join(" and ")))
}

fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let mut bad = Vec::new();
    let names = pod.where_(|container| {
        let added = container["securityContext"]["capabilities"]["add"].as_array().into_iter().flatten();
        let before = bad.len();
        bad.extend(added.filter_map(Value::as_str).filter(|one| !CAPABILITIES.contains(one)));
        bad.len() > before
    });
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "{} must not include {} in securityContext.capabilities.add",
        containers(&names),
        quoted(set(bad.iter().copied()))
    );
    Violation::new("non-default capabilities", detail)
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let set: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|field| pod.spec[**field] == Value::Bool(true))
        .map(|field| format!("{field}=true"))
        .collect();
    if set.is_empty() {
        return None;
    }
    Violation::new("host namespaces", set.join(", "))
}

fn host_path(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = pod.spec["volumes"].as_array().into_iter().flatten();
    let names: Vec<&str> = volumes.filter(|volume| !volume["hostPath"].is_null()).map(name).collect();
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} {}", plural("volume", "volumes", names.len()), quoted(names.iter().copied()));
    Violation::new("hostPath volumes", detail)
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let mut ports = Vec::new();
    let names = pod.where_(|container| {
        let before = ports.len();
        let own = container["ports"].as_array().into_iter().flatten();
        ports.extend(own.filter_map(|port| port["hostPort"].as_i64()).filter(|port| *port != 0));
        ports.len() > before
    });
    if names.is_empty() {
        return None;
    }
    let texts: Vec<String> = ports.iter().map(ToString::to_string).collect();
    let shown = set(texts.iter().map(String::as_str));
    let detail = format!(
        "{} {} {} {}",
        containers(&names),
        plural("uses", "use", names.len()),
        plural("hostPort", "hostPorts", shown.len()),
        shown.join(", ")
    );
    Violation::new("hostPort", detail)
}

fn host_probes(pod: &Pod<'_>) -> Option<Violation> {
    if !pod.since(34) {
        return None;
    }
    let mut hosts = Vec::new();
    let names = pod.where_(|container| {
        let before = hosts.len();
        let lifecycle = &container["lifecycle"];
        let handlers = [
            &container["livenessProbe"],
            &container["readinessProbe"],
            &container["startupProbe"],
            &lifecycle["postStart"],
            &lifecycle["preStop"],
        ];
        for handler in handlers {
            let given = [&handler["httpGet"]["host"], &handler["tcpSocket"]["host"]];
            hosts.extend(given.into_iter().filter_map(Value::as_str).filter(|host| !host.is_empty()));
        }
        hosts.len() > before
    });
    if names.is_empty() {
        return None;
    }
    let (names, hosts) = (set(names), set(hosts.iter().copied()));
    let detail = format!(
        "{} {} {} {}",
        containers(&names),
        plural("uses", "use", names.len()),
        plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()),
        quoted(hosts)
    );
    Violation::new("probe or lifecycle host", detail)
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let names = pod.where_(|container| container["securityContext"]["privileged"] == Value::Bool(true));
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} must not set securityContext.privileged=true", containers(&names));
    Violation::new("privileged", detail)
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    if pod.since(35) && pod.has_user_namespace() {
        return None;
    }
    let mut kinds = Vec::new();
    let names = pod.where_(|container| {
        let kind = container["securityContext"]["procMount"].as_str().filter(|kind| *kind != "Default");
        kinds.extend(kind);
        kind.is_some()
    });
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "{} must not set securityContext.procMount to {}",
        containers(&names),
        quoted(set(kinds.iter().copied()))
    );
    Violation::new("procMount", detail)
}

fn seccomp(pod: &Pod<'_>) -> Option<Violation> {
    let bad = |context: &'_ Value| context["seccompProfile"]["type"] == "Unconfined";
    let mut setters = Vec::new();
    if bad(pod.context()) {
        setters.push("pod".to_owned());
    }
    let names = pod.where_(|container| bad(&container["securityContext"]));
    if !names.is_empty() {
        setters.push(containers(&names));
    }
    if setters.is_empty() {
        return None;
    }
    let detail =
        format!("{} must not set securityContext.seccompProfile.type to \"Unconfined\"", setters.join(" and "));
    Violation::new("seccompProfile", detail)
}

fn selinux(pod: &Pod<'_>) -> Option<Violation> {
    let (mut types, mut user, mut role) = (Vec::new(), false, false);
    let since_31 = pod.since(31);
    let mut bad = |options: &'_ Value| {
        let text = |field: &str| options[field].as_str().unwrap_or_default().to_owned();
        let kind = text("type");
        let allowed = matches!(kind.as_str(), "" | "container_t" | "container_init_t" | "container_kvm_t")
            || (since_31 && kind == "container_engine_t");
        let (has_user, has_role) = (!text("user").is_empty(), !text("role").is_empty());
        if !allowed {
            types.push(kind);
        }
        user |= has_user;
        role |= has_role;
        !allowed || has_user || has_role
    };
    let mut setters = Vec::new();
    if bad(&pod.context()["seLinuxOptions"]) {
        setters.push("pod".to_owned());
    }
    let names = pod.where_(|container| bad(&container["securityContext"]["seLinuxOptions"]));
    if !names.is_empty() {
        setters.push(containers(&names));
    }
    if setters.is_empty() {
        return None;
    }
    let mut what = Vec::new();
    let types = set(types.iter().map(String::as_str));
    if !types.is_empty() {
        what.push(format!("{} {}", plural("type", "types", types.len()), quoted(types.iter().copied())));
    }
    if user {
        what.push("user may not be set".to_owned());
    }
    if role {
        what.push("role may not be set".to_owned());
    }
    let detail = format!("{} set forbidden securityContext.seLinuxOptions: {}", setters.join(" and "), what.join("; "));
    Violation::new("seLinuxOptions", detail)
}

fn sysctls(pod: &Pod<'_>) -> Option<Violation> {
    let allowed = |name: &str| {
        SYSCTLS.contains(&name)
            || (pod.since(27) && SYSCTLS_SINCE_27.contains(&name))
            || (pod.since(29) && SYSCTLS_SINCE_29.contains(&name))
            || (pod.since(32) && SYSCTLS_SINCE_32.contains(&name))
    };
    let all = pod.context()["sysctls"].as_array().into_iter().flatten();
    let bad: Vec<&str> = all.map(name).filter(|name| !allowed(name)).collect();
    if bad.is_empty() {
        return None;
    }
    Violation::new("forbidden sysctls", bad.join(", "))
}

fn host_process(pod: &Pod<'_>) -> Option<Violation> {
    let bad = |context: &Value| context["windowsOptions"]["hostProcess"] == Value::Bool(true);
    let mut setters = Vec::new();
    if bad(pod.context()) {
        setters.push("pod".to_owned());
    }
    let names = pod.where_(|container| bad(&container["securityContext"]));
    if !names.is_empty() {
        setters.push(containers(&names));
    }
    if setters.is_empty() {
        return None;
    }
    let detail = format!("{} must not set securityContext.windowsOptions.hostProcess=true", setters.join(" and "));
    Violation::new("hostProcess", detail)
}
