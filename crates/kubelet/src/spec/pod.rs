//! Readings of a pod's spec that several parts need.

use carrack_types::declared::{RESTART_ALL, may_restart_all};
pub use carrack_types::pod::is_terminal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::qos;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, EphemeralContainer, Pod, PodSpec, Volume};

use super::manifest::{HASH, HASH_LENGTH, SOURCE};
use crate::amount::{self, Amounts};
use crate::devices::{hash_of_print, is_extended};
use crate::runtime::{PodRef, Uid};
use crate::shutdown::CRITICAL;

/// What a container is to its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerKind {
    /// Runs to its end before the others.
    Init,
    /// An init container that keeps running beside the others (`restartPolicy: Always`).
    Sidecar,
    /// A regular one.
    Regular,
    /// Added for debugging; never restarted.
    Ephemeral,
}

/// The pod's restart policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// After any end.
    Always,
    /// After a failure.
    OnFailure,
    /// Never.
    Never,
}

static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);

/// The spec; an empty one where there is none (the API server lets none through).
#[must_use]
pub fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// UID.
#[must_use]
pub fn uid(pod: &Pod) -> Uid {
    pod.metadata.uid.as_deref().unwrap_or_default().into()
}

/// Its name for the runtime.
#[must_use]
pub fn pod_ref(pod: &Pod) -> PodRef {
    PodRef { namespace: pod.namespace().to_owned(), name: pod.name().to_owned(), uid: uid(pod) }
}

/// Restart policy; `Always` by default.
#[must_use]
pub fn restart_policy(pod: &Pod) -> RestartPolicy {
    policy_named(spec(pod).restart_policy.as_deref())
}

fn policy_named(name: Option<&str>) -> RestartPolicy {
    match name {
        Some("Never") => RestartPolicy::Never,
        Some("OnFailure") => RestartPolicy::OnFailure,
        _ => RestartPolicy::Always,
    }
}

/// Init containers with their kinds, in order.
pub fn init_containers(pod: &Pod) -> impl Iterator<Item = (ContainerKind, &Container)> {
    spec(pod).init_containers.iter().flatten().map(|c| {
        let kind =
            if c.restart_policy.as_deref() == Some("Always") { ContainerKind::Sidecar } else { ContainerKind::Init };
        (kind, c)
    })
}

/// Ephemeral containers as plain ones, with the container that each targets.
#[must_use]
pub fn ephemeral_containers(pod: &Pod) -> Vec<(Container, Option<String>)> {
    spec(pod).ephemeral_containers.iter().flatten().map(plain_container).collect()
}

fn plain_container(e: &EphemeralContainer) -> (Container, Option<String>) {
    let c = Container {
        name: e.name.clone(),
        image: e.image.clone(),
        image_pull_policy: e.image_pull_policy.clone(),
        command: e.command.clone(),
        args: e.args.clone(),
        working_dir: e.working_dir.clone(),
        env: e.env.clone(),
        env_from: e.env_from.clone(),
        volume_mounts: e.volume_mounts.clone(),
        security_context: e.security_context.clone(),
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        tty: e.tty,
        termination_message_path: e.termination_message_path.clone(),
        termination_message_policy: e.termination_message_policy.clone(),
        ..Container::default()
    };
    (c, e.target_container_name.clone())
}

/// All containers with their kinds: init, regular, ephemeral.
#[must_use]
pub fn all_containers(pod: &Pod) -> Vec<(ContainerKind, Container)> {
    init_containers(pod)
        .map(|(k, c)| (k, c.clone()))
        .chain(spec(pod).containers.iter().map(|c| (ContainerKind::Regular, c.clone())))
        .chain(ephemeral_containers(pod).into_iter().map(|(c, _)| (ContainerKind::Ephemeral, c)))
        .collect()
}

/// The pod's volumes that some container has: as files, as a device, or to read variables from. What none has is not made ready,
/// and keeps nobody waiting, whatever it is made of (upstream's `GetPodVolumeNames`, `pkg/volume/util`).
#[must_use]
pub fn used_volumes(pod: &Pod) -> Vec<&Volume> {
    let s = spec(pod);
    let plain = s.init_containers.iter().flatten().chain(&s.containers);
    let plain = plain.map(|c| (&c.volume_mounts, &c.volume_devices, &c.env));
    let ephemeral = s.ephemeral_containers.iter().flatten().map(|c| (&c.volume_mounts, &c.volume_devices, &c.env));
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for (mounts, devices, env) in plain.chain(ephemeral) {
        used.extend(mounts.iter().flatten().map(|m| m.name.as_str()));
        used.extend(devices.iter().flatten().map(|d| d.name.as_str()));
        let files = env.iter().flatten().filter_map(|e| e.value_from.as_ref()?.file_key_ref.as_ref());
        used.extend(files.map(|file| file.volume_name.as_str()));
    }
    s.volumes.iter().flatten().filter(|v| used.contains(v.name.as_str())).collect()
}

/// One container by name.
#[must_use]
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<(ContainerKind, std::borrow::Cow<'a, Container>)> {
    use std::borrow::Cow;
    if let Some((k, c)) = init_containers(pod).find(|(_, c)| c.name == name) {
        return Some((k, Cow::Borrowed(c)));
    }
    if let Some(c) = spec(pod).containers.iter().find(|c| c.name == name) {
        return Some((ContainerKind::Regular, Cow::Borrowed(c)));
    }
    ephemeral_containers(pod)
        .into_iter()
        .find(|(c, _)| c.name == name)
        .map(|(c, _)| (ContainerKind::Ephemeral, Cow::Owned(c)))
}

/// Whether the pod is of a manifest on the node. Whoever makes a pod in the API writes its annotations as he likes, and a static
/// one matters more than others: it is known by its UID, which is the manifest's hash, and no UUID as those of the API's are
/// (upstream's kubelet writes the annotation itself, whatever the API says: `pkg/kubelet/config`, `podStorage.merge`).
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    let Some(uid) = pod.metadata.uid.as_deref() else { return false };
    pod.annotation(HASH) == Some(uid)
        && pod.annotation(SOURCE).is_some_and(|source| source != "api")
        && uid.len() == HASH_LENGTH
        && uid.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether it is one that the node cannot do without.
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    spec(pod).priority.is_some_and(|priority| priority >= CRITICAL) || is_static(pod)
}

/// When it was created.
#[must_use]
pub fn created_at(pod: &Pod) -> Time {
    pod.metadata.creation_timestamp.as_ref().map(Time::from).unwrap_or_default()
}

/// The grace period of its deletion, in seconds.
#[must_use]
pub fn grace_s(pod: &Pod) -> i64 {
    pod.metadata.deletion_grace_period_seconds.map_or_else(|| own_grace_s(pod), counted)
}

/// How long it has to end where nobody says otherwise.
#[must_use]
pub fn own_grace(pod: &Pod) -> Duration {
    Duration::from_secs(own_grace_s(pod).unsigned_abs())
}

fn own_grace_s(pod: &Pod) -> i64 {
    counted(spec(pod).termination_grace_period_seconds.unwrap_or(30))
}

/// Less than nothing is a second, as its maker is warned.
fn counted(grace_s: i64) -> i64 {
    if grace_s < 0 { 1 } else { grace_s }
}

/// What the pod requests, as the scheduler counts it, too.
#[must_use]
pub fn requests(pod: &Pod) -> Amounts {
    amount::of_list(&carrack_types::pod::requests(pod))
}

/// What it takes of the node: what it requests, and itself.
#[must_use]
pub fn takes(pod: &Pod) -> Amounts {
    let mut takes = requests(pod);
    takes.insert("pods".into(), 1000);
    takes
}

/// Adds amounts.
pub fn add(to: &mut Amounts, more: &Amounts) {
    for (k, v) in more {
        *to.entry(k.clone()).or_default() += v;
    }
}

/// Extended resources that a container asks for, in whole devices.
#[must_use]
pub fn extended_resources(c: &Container) -> BTreeMap<String, usize> {
    c.resources
        .iter()
        .flat_map(|r| r.limits.iter().flatten())
        .filter(|(name, _)| is_extended(name))
        .map(|(name, q)| (name.clone(), usize::try_from(amount::units(q)).unwrap_or(0)))
        .filter(|(_, n)| *n > 0)
        .collect()
}

/// Whether a container that ended with this code is started again: by the first of its own rules that fits, else by its own
/// policy, else by its pod's (upstream's `ContainerShouldRestart`). An init container that has succeeded is done.
#[must_use]
pub fn restarts(pod: &Pod, kind: ContainerKind, c: &Container, code: i32) -> bool {
    match kind {
        ContainerKind::Sidecar => return true,
        ContainerKind::Ephemeral => return false,
        ContainerKind::Init if code == 0 => return false,
        ContainerKind::Init | ContainerKind::Regular => {}
    }
    let by = |policy: RestartPolicy| match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => code != 0,
        RestartPolicy::Never => false,
    };
    let Some(own) = c.restart_policy.as_deref() else {
        // Of the pod's init containers those that fail are started again under either policy.
        return by(restart_policy(pod));
    };
    let rule = rule_for(c, code);
    rule.is_some_and(|rule| matches!(rule.action.as_str(), "Restart" | RESTART_ALL)) || by(policy_named(Some(own)))
}

/// The first of a container's rules that fits the code with which it ended.
fn rule_for(c: &Container, code: i32) -> Option<&ContainerRestartRule> {
    let fits = |rule: &ContainerRestartRule| {
        let codes = rule.exit_codes.as_ref();
        codes.is_some_and(|codes| match codes.operator.as_str() {
            "In" => codes.values.iter().flatten().any(|value| *value == code),
            "NotIn" => !codes.values.iter().flatten().any(|value| *value == code),
            _ => false,
        })
    };
    c.restart_policy_rules.iter().flatten().find(|rule| fits(rule))
}

/// Whether all containers of its pod are started again when a container has ended with this code.
#[must_use]
pub fn restarts_all(c: &Container, code: i32) -> bool {
    rule_for(c, code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// The containers of a pod, but for ephemeral ones, with whose end all of them may have to be started again.
pub fn restarters(pod: &Pod) -> impl Iterator<Item = &Container> {
    let s = spec(pod);
    s.init_containers.iter().flatten().chain(&s.containers).filter(|c| may_restart_all(c))
}

/// Whether a container that is stopped to start again does so by itself, and alone, however it ends then. Of others it has to be
/// remembered what they were stopped for.
#[must_use]
pub fn starts_again_alone(pod: &Pod, kind: ContainerKind, c: &Container) -> bool {
    restarts(pod, kind, c, 0) && !may_restart_all(c)
}

/// Whether a regular container that is stopped for a probe is started again, however it ends then: by its own policy, else by its
/// pod's. Its rules say nothing of that: they are about how a container ends by itself (upstream's `computePodActions`).
#[must_use]
pub fn restarts_after_a_probe(pod: &Pod, c: &Container) -> bool {
    let own = c.restart_policy.as_deref();
    policy_named(own.or(spec(pod).restart_policy.as_deref())) != RestartPolicy::Never
}

/// The pod's quality of service class.
#[must_use]
pub fn qos_class(pod: &Pod) -> &'static str {
    qos::class_of(spec(pod))
}

/// Whether containers of a pod can have something for themselves: those of a Guaranteed one. A pod with resources of its own
/// shares them out among its containers, and none of these has.
fn may_have_its_own(pod: &Pod) -> bool {
    qos::own(spec(pod)).is_none() && qos_class(pod) == "Guaranteed"
}

/// Memory and huge pages that a container of a Guaranteed pod asks for, in bytes; nothing where its pod is another (upstream's
/// `getRequestedResources`).
#[must_use]
pub fn own_memory(pod: &Pod, c: &Container) -> BTreeMap<String, u64> {
    if !may_have_its_own(pod) {
        return BTreeMap::new();
    }
    let r = c.resources.as_ref();
    let mut asked = amount::amounts(r.and_then(|r| r.limits.as_ref()));
    asked.extend(amount::amounts(r.and_then(|r| r.requests.as_ref())));
    asked.retain(|name, milli| *milli > 0 && (name == "memory" || name.starts_with("hugepages-")));
    let bytes = |milli: i128| u64::try_from((milli + 999) / 1000).unwrap_or(u64::MAX);
    asked.into_iter().map(|(name, milli)| (name, bytes(milli))).collect()
}

/// How many whole CPUs a container of a Guaranteed pod asks for; 0 where it asks for a part of one, or its pod is another.
#[must_use]
pub fn whole_cpus(pod: &Pod, c: &Container) -> usize {
    if !may_have_its_own(pod) {
        return 0;
    }
    let asked = |list: Option<&BTreeMap<String, _>>| list?.get("cpu").and_then(amount::milli);
    let r = c.resources.as_ref();
    let milli = r.and_then(|r| asked(r.requests.as_ref()).or_else(|| asked(r.limits.as_ref()))).unwrap_or(0);
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// Prefix that tells our hashes from those of an upstream kubelet, whose containers are taken over as
/// they are.
pub const HASH_PREFIX: &str = "carrack-";

/// What makes a container another one: a change of it restarts the container. As upstream's, it
/// covers the name and the image.
#[must_use]
pub fn container_hash(c: &Container) -> String {
    let text = format!("{}\0{}", c.name, c.image.as_deref().unwrap_or_default());
    format!("{HASH_PREFIX}{:08x}", hash_of_print(&text))
}

/// The domain that the pod is named in, where it is in one (upstream's `GeneratePodHostNameAndDomain`). Who overrides its
/// hostname is in none.
#[must_use]
pub fn domain(pod: &Pod, cluster_domain: &str) -> Option<String> {
    let s = spec(pod);
    let subdomain = s.subdomain.as_deref().filter(|d| !d.is_empty() && s.hostname_override.is_none())?;
    Some(format!("{subdomain}.{}.svc.{cluster_domain}", pod.namespace()))
}

/// Longest hostname that the kernel keeps.
const MAX_KERNEL_HOSTNAME: usize = 64;

/// The hostname that the kernel is told: with the domain, where the pod wants that (`setHostnameAsFQDN`; upstream's
/// `GetNodenameForKernel`).
///
/// # Errors
/// When that is longer than the kernel keeps: the pod does not run under another name.
pub fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, String> {
    let name = hostname(pod);
    let Some(domain) = domain(pod, cluster_domain).filter(|_| spec(pod).set_hostname_as_fqdn == Some(true)) else {
        return Ok(name);
    };
    let whole = format!("{name}.{domain}");
    if whole.len() > MAX_KERNEL_HOSTNAME {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {whole} is too long \
             ({MAX_KERNEL_HOSTNAME} characters is the max, {} characters requested)",
            whole.len()
        ));
    }
    Ok(whole)
}

/// Hostname in the pod: its own choice or its name, cut to what Linux takes.
#[must_use]
pub fn hostname(pod: &Pod) -> String {
    let s = spec(pod);
    let name = s
        .hostname_override
        .as_deref()
        .or(s.hostname.as_deref().filter(|h| !h.is_empty()))
        .unwrap_or_else(|| pod.name());
    name.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        carrack_types::json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}))
            .unwrap()
    }

    #[test]
    fn grace_periods() {
        for (of_deletion, own, seconds, own_seconds) in [
            (None, None, 30, 30),
            (None, Some(5), 5, 5),
            (Some(3), Some(5), 3, 5),
            (Some(0), Some(5), 0, 5),
            (None, Some(0), 0, 0),
            (None, Some(-5), 1, 1),
            (Some(-1), Some(5), 1, 5),
        ] {
            let mut pod = pod(json!({"containers": [], "terminationGracePeriodSeconds": own}));
            pod.metadata.deletion_grace_period_seconds = of_deletion;
            assert_eq!((grace_s(&pod), own_grace(&pod).as_secs()), (seconds, own_seconds), "{of_deletion:?} {own:?}");
        }
    }

    #[test]
    fn qos_and_requests() {
        let r = |req: &str, lim: &str| json!({"requests": {"cpu": req, "memory": "1Gi"}, "limits": {"cpu": lim, "memory": "1Gi"}});
        for (spec, qos, cpu) in [
            (json!({"containers": [{"name": "a"}]}), "BestEffort", 0),
            (json!({"containers": [{"name": "a", "resources": r("1", "1")}]}), "Guaranteed", 1000),
            (json!({"containers": [{"name": "a", "resources": r("500m", "1")}]}), "Burstable", 500),
            (
                json!({"containers": [{"name": "a", "resources": r("1", "1")}, {"name": "b", "resources": r("1", "1")}],
                       "initContainers": [{"name": "i", "resources": r("3", "3")}]}),
                "Guaranteed",
                3000,
            ),
            (
                json!({"containers": [{"name": "a", "resources": r("1", "1")}],
                       "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": r("1", "1")},
                                          {"name": "i", "resources": r("2", "2")}],
                       "overhead": {"cpu": "100m"}}),
                "Guaranteed",
                3100,
            ),
            (
                json!({"containers": [{"name": "a", "resources": r("500m", "1")}, {"name": "b"}], "resources": r("2", "2")}),
                "Guaranteed",
                2000,
            ),
        ] {
            let p = pod(spec);
            assert_eq!(qos_class(&p), qos);
            assert_eq!(requests(&p).get("cpu").copied().unwrap_or(0), cpu);
        }
    }

    #[test]
    fn the_kernel_is_told_the_name_that_the_pod_wants() {
        let (long, whole) = ("x".repeat(50), "h.s.n.svc.c.l");
        let longest = format!("{long}.sss.n.svc.c.l");
        assert_eq!(longest.len(), MAX_KERNEL_HOSTNAME);
        let longest = longest.as_str();
        let of_long = |subdomain: &str| json!({"hostname": long, "subdomain": subdomain, "setHostnameAsFQDN": true});
        for (spec, domain_of, expected) in [
            (json!({}), None, Some("p")),
            (json!({"setHostnameAsFQDN": true}), None, Some("p")),
            (json!({"hostname": "h", "subdomain": "s"}), Some("s.n.svc.c.l"), Some("h")),
            (json!({"subdomain": "s", "setHostnameAsFQDN": false}), Some("s.n.svc.c.l"), Some("p")),
            (json!({"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true}), Some("s.n.svc.c.l"), Some(whole)),
            (of_long("sss"), Some("sss.n.svc.c.l"), Some(longest)),
            (of_long("four"), Some("four.n.svc.c.l"), None),
            (json!({"hostname": "h", "subdomain": "s", "hostnameOverride": "o"}), None, Some("o")),
        ] {
            let what = spec.to_string();
            let mut spec = spec;
            spec["containers"] = json!([]);
            let p = pod(spec);
            assert_eq!(domain(&p, "c.l").as_deref(), domain_of, "{what}");
            assert_eq!(kernel_hostname(&p, "c.l").ok().as_deref(), expected, "{what}");
        }
    }

    #[test]
    fn nobody_in_the_api_makes_a_static_pod() {
        let (hash, uuid) = ("0123456789abcdef0123456789abcdef", "8f14e45f-ceea-467f-a8e1-1f2b3c4d5e6f");
        for (uid, annotations, expected) in [
            (hash, json!({HASH: hash, SOURCE: "file"}), true),
            (hash, json!({HASH: hash, SOURCE: "api"}), false),
            (hash, json!({HASH: uuid, SOURCE: "file"}), false),
            (uuid, json!({HASH: uuid, SOURCE: "file"}), false),
            (uuid, json!({SOURCE: "file"}), false),
            (uuid, json!({"kubernetes.io/config.mirror": hash, SOURCE: "file"}), false),
        ] {
            let metadata = json!({"name": "p", "namespace": "n", "uid": uid, "annotations": annotations});
            let p: Pod =
                carrack_types::json::from_value(json!({"metadata": metadata, "spec": {"containers": []}})).unwrap();
            assert_eq!((is_static(&p), is_critical(&p)), (expected, expected), "{metadata}");
        }
    }

    #[test]
    fn limits_stand_in_for_requests() {
        let p = pod(json!({"containers": [{"name": "a", "resources": {"limits": {"example.com/x": "2"}}}]}));
        assert_eq!(requests(&p)["example.com/x"], 2000);
        assert_eq!(extended_resources(&spec(&p).containers[0])["example.com/x"], 2);
    }
}
