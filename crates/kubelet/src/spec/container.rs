//! A container of a pod, ready for the runtime.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use carrack_types::pod::is_made_of_objects;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod};

use super::env::{expand, expand_all};
use super::pod::{self, ContainerKind, spec};
use super::{resources, sandbox};
use crate::allocation;
use crate::config::NodeConfig;
use crate::devices::AllocateReply;
use crate::runtime::{
    ContainerFiles, ContainerSecurity, ContainerSpec, DeviceNode, HandlerFeatures, ImageRecord, Mount, Propagation,
    Resources, SandboxSpec, Seccomp, Sharing, SubPath, labels,
};
use crate::topology::Nodes;

/// Paths that the runtime hides by default, given to CRI explicitly as upstream does: what is not named here is shown. The
/// counters of interrupts and of the power that the machine takes tell what others on it do.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Longest path that the kernel knows, in bytes (`PATH_MAX`).
const MAX_PATH: usize = 4096;
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// What a container's making rests on besides its spec.
pub struct Inputs<'a> {
    /// The node.
    pub config: &'a NodeConfig,
    /// The sandbox it goes into.
    pub sandbox: &'a SandboxSpec,
    /// Id of that sandbox.
    pub sandbox_id: &'a str,
    /// Restart count.
    pub attempt: u32,
    /// The round of its pod.
    pub round: u32,
    /// The image found on the node.
    pub image: &'a ImageRecord,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// Directory on the node of each volume of the pod.
    pub volumes: &'a BTreeMap<String, String>,
    /// What device plugins granted.
    pub grants: Vec<&'a AllocateReply>,
    /// Addresses of the pod.
    pub pod_ips: &'a [String],
    /// Memory of the node in bytes.
    pub node_memory_bytes: u64,
    /// Id of the running container that an ephemeral one targets.
    pub target_id: String,
    /// The CPUs to run on; none where nobody says.
    pub cpus: Option<crate::cpus::CpuSet>,
    /// They are nobody else's.
    pub own_cpus: bool,
    /// The NUMA nodes to have memory of; none where it may be of all.
    pub memory_nodes: Option<Nodes>,
    /// What the sandbox's handler can.
    pub handler: HandlerFeatures,
}

/// Supplemental groups of a pod: its own and its volumes' group.
#[must_use]
pub fn pod_groups(pod: &Pod) -> Vec<i64> {
    let mut groups = Vec::new();
    if let Some(s) = &spec(pod).security_context {
        groups.extend(s.supplemental_groups.iter().flatten());
        groups.extend(s.fs_group);
    }
    groups
}

/// Whom it runs as and what it may.
///
/// # Errors
/// When the pod demands a user other than root and the image has root or a name.
pub fn security(
    pod: &Pod,
    c: &Container,
    image: &ImageRecord,
    config: &NodeConfig,
) -> Result<ContainerSecurity, String> {
    let own = c.security_context.clone().unwrap_or_default();
    let shared = spec(pod).security_context.clone().unwrap_or_default();
    let run_as_user = own.run_as_user.or(shared.run_as_user);
    let non_root = own.run_as_non_root.or(shared.run_as_non_root) == Some(true);
    if non_root {
        // In the words of upstream's `verifyRunAsNonRoot` (`pkg/kubelet/kuberuntime`).
        let problem = match (run_as_user, image.uid, image.username.as_str()) {
            (Some(0), ..) => Some("container's runAsUser breaks non-root policy".to_owned()),
            (None, Some(0), _) | (None, None, "") => {
                Some("container has runAsNonRoot and image will run as root".to_owned())
            }
            (Some(_), ..) | (None, Some(_), _) => None,
            (None, None, name) => Some(format!(
                "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
            )),
        };
        if let Some(problem) = problem {
            return Err(format!("{problem} (pod: {:?}, container: {})", pod::pod_ref(pod).described(), c.name));
        }
    }
    // Who is nobody in particular is root, and is said to be where he has a group: a runtime gives one to none but users that
    // are named (upstream's `getImageUser`). Whom it is not told it does not look up in the image.
    let run_as_group = own.run_as_group.or(shared.run_as_group);
    let is_root = image.username.is_empty() && run_as_group.is_some();
    let user = run_as_user.or(image.uid).or(is_root.then_some(0));
    let privileged = own.privileged == Some(true);
    let capabilities = own.capabilities.unwrap_or_default();
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    let list = |l: &[&str]| if unmasked { Vec::new() } else { l.iter().map(|s| (*s).to_owned()).collect() };
    Ok(ContainerSecurity {
        privileged,
        run_as_user: user,
        run_as_username: if user.is_none() { image.username.clone() } else { String::new() },
        run_as_group,
        supplemental_groups: pod_groups(pod),
        read_only_root: own.read_only_root_filesystem == Some(true),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        add_capabilities: capabilities.add.unwrap_or_default(),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
        masked_paths: list(&MASKED),
        readonly_paths: list(&READ_ONLY),
        seccomp: sandbox::seccomp(own.seccomp_profile.as_ref().or(shared.seccomp_profile.as_ref()), config),
        apparmor: own.app_armor_profile.as_ref().or(shared.app_armor_profile.as_ref()).map(apparmor),
        selinux: own.se_linux_options.as_ref().or(shared.se_linux_options.as_ref()).map(sandbox::selinux),
        strict_groups: shared.supplemental_groups_policy.as_deref() == Some("Strict"),
    })
}

/// An AppArmor profile, which is named as one of seccomp is.
fn apparmor(profile: &AppArmorProfile) -> Seccomp {
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", Some(name)) if !name.is_empty() => Seccomp::Localhost(name.clone()),
        ("Unconfined", _) => Seccomp::Unconfined,
        _ => Seccomp::RuntimeDefault,
    }
}

/// The file /etc/hosts of a pod that is not on the node's network.
#[must_use]
pub fn hosts_file(pod: &Pod, config: &NodeConfig, pod_ips: &[String]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    let (host, domain) = (pod::hostname(pod), pod::domain(pod, &config.cluster_domain));
    for ip in pod_ips {
        let line = match &domain {
            Some(domain) => writeln!(text, "{ip}\t{host}.{domain}\t{host}"),
            None => writeln!(text, "{ip}\t{host}"),
        };
        // Writing to a String cannot fail.
        line.unwrap_or_default();
    }
    text.push_str(&aliases(pod));
    text
}

/// What a pod adds to its hosts file.
fn aliases(pod: &Pod) -> String {
    let mut text = String::new();
    let aliases = spec(pod).host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for a in aliases {
            text.push_str(&a.ip);
            for h in a.hostnames.iter().flatten() {
                text.push('\t');
                text.push_str(h);
            }
            text.push('\n');
        }
    }
    text
}

/// Whether a volume is for reading alone, whatever a container asks for: what the kubelet makes of API objects, and what the
/// pod says so of (what volumes' `GetAttributes` tell upstream's `makeMounts`, `pkg/kubelet/kubelet_pods.go`).
fn is_for_reading(pod: &Pod, name: &str) -> bool {
    let Some(v) = spec(pod).volumes.iter().flatten().find(|v| v.name == name) else { return false };
    let says = [
        v.persistent_volume_claim.as_ref().and_then(|of| of.read_only),
        v.nfs.as_ref().and_then(|of| of.read_only),
        v.csi.as_ref().and_then(|of| of.read_only),
        v.flex_volume.as_ref().and_then(|of| of.read_only),
    ];
    is_made_of_objects(v) || says.contains(&Some(true))
}

fn mounts(pod: &Pod, c: &Container, inputs: &Inputs<'_>, env: &BTreeMap<String, String>) -> Result<Vec<Mount>, String> {
    let mut out = Vec::new();
    for (index, m) in c.volume_mounts.iter().flatten().enumerate() {
        let host_path = inputs.volumes.get(&m.name).ok_or_else(|| format!("volume \"{}\" is not mounted", m.name))?;
        let sub_path = match (m.sub_path_expr.as_deref().unwrap_or(""), m.sub_path.as_deref().unwrap_or("")) {
            ("", "") => None,
            ("", plain) => Some(plain.to_owned()),
            (expr, _) => {
                let path = expand(expr, |name| env.get(name).map(String::as_str));
                let path = path.map_err(|why| format!("subPath of volume {}: {why}", m.name))?;
                if path.contains("$(") {
                    return Err(format!("failed to expand subPath {expr} of volume {}", m.name));
                }
                Some(path)
            }
        };
        if let Some(p) = &sub_path
            && (p.starts_with('/') || p.split('/').any(|part| part == ".."))
        {
            return Err(format!("subPath {p} of volume {} must stay inside it", m.name));
        }
        // Who asks for `IfPossible` is content with less.
        if m.recursive_read_only.as_deref() == Some("Enabled") && !inputs.handler.recursive_read_only {
            return Err(format!(
                "failed to resolve recursive read-only mode: volume \"{}\" requested recursive read-only mode, but it is not \
                 supported by the runtime",
                m.name
            ));
        }
        let container_path =
            if m.mount_path.starts_with('/') { m.mount_path.clone() } else { format!("/{}", m.mount_path) };
        out.push(Mount {
            container_path,
            host_path: host_path.clone(),
            read_only: m.read_only == Some(true) || is_for_reading(pod, &m.name),
            recursive: m.read_only == Some(true)
                && inputs.handler.recursive_read_only
                && matches!(m.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible")),
            propagation: match m.mount_propagation.as_deref() {
                Some("HostToContainer") => Propagation::HostToContainer,
                Some("Bidirectional") => Propagation::Bidirectional,
                _ => Propagation::Private,
            },
            sub_path: sub_path.map(|path| SubPath {
                path,
                bind_at: format!(
                    "{}/volume-subpaths/{}/{}/{index}",
                    inputs.config.pod_dir(&pod::uid(pod)),
                    m.name,
                    c.name
                ),
            }),
        });
    }
    Ok(out)
}

/// Builds a container.
///
/// # Errors
/// What is wrong with its configuration, for its waiting message.
pub fn container(pod: &Pod, kind: ContainerKind, c: &Container, inputs: Inputs<'_>) -> Result<ContainerSpec, String> {
    let reference = pod::pod_ref(pod);
    let mut env = inputs.env.clone();
    for grant in &inputs.grants {
        for (k, v) in &grant.env {
            if !env.iter().any(|(name, _)| name == k) {
                env.push((k.clone(), v.clone()));
            }
        }
    }
    let vars: BTreeMap<String, String> = env.iter().cloned().collect();
    let mut mounts = mounts(pod, c, &inputs, &vars)?;
    let mounted_at = |mounts: &[Mount], path: &str| mounts.iter().any(|m| m.container_path == path);
    let pod_dir = inputs.config.pod_dir(&reference.uid);
    let host_network = inputs.sandbox.network == Sharing::Node;
    let mut hosts = None;
    let has_aliases = spec(pod).host_aliases.iter().flatten().next().is_some();
    if (!host_network || has_aliases) && !mounted_at(&mounts, "/etc/hosts") {
        let path = format!("{pod_dir}/etc-hosts");
        let text = if host_network { aliases(pod) } else { hosts_file(pod, inputs.config, inputs.pod_ips) };
        hosts = Some((path.clone(), text));
        mounts.push(Mount { container_path: "/etc/hosts".into(), host_path: path, ..Mount::default() });
    }
    let termination_path = c.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".into());
    // The runtime shows it with the container, and all containers are one message.
    if termination_path.len() > MAX_PATH {
        return Err(format!("terminationMessagePath of {} bytes is longer than any path", termination_path.len()));
    }
    let termination_log = format!("{pod_dir}/containers/{}/{}", c.name, inputs.attempt);
    mounts.push(Mount {
        container_path: termination_path.clone(),
        host_path: termination_log.clone(),
        ..Mount::default()
    });
    let mut devices = Vec::new();
    let mut cdi_devices = Vec::new();
    let mut annotations = BTreeMap::new();
    for grant in &inputs.grants {
        for m in &grant.mounts {
            mounts.push(Mount {
                container_path: m.container_path.clone(),
                host_path: m.host_path.clone(),
                read_only: m.read_only,
                ..Mount::default()
            });
        }
        devices.extend(grant.devices.iter().cloned());
        cdi_devices.extend(grant.cdi_devices.iter().cloned());
        annotations.extend(grant.annotations.clone());
    }
    for d in c.volume_devices.iter().flatten() {
        let host_path = inputs.volumes.get(&d.name).ok_or_else(|| format!("volume \"{}\" is not mapped", d.name))?;
        devices.push(DeviceNode {
            container_path: d.device_path.clone(),
            host_path: host_path.clone(),
            permissions: if is_for_reading(pod, &d.name) { "r" } else { "mrw" }.into(),
        });
    }
    annotations.insert(labels::CONTAINER_HASH.into(), pod::container_hash(c));
    annotations.insert(labels::RESTART_COUNT.into(), inputs.attempt.to_string());
    if inputs.round > 0 {
        annotations.insert(labels::ROUND.into(), inputs.round.to_string());
    }
    if matches!(kind, ContainerKind::Regular | ContainerKind::Sidecar) {
        // Strings alone: this cannot fail.
        let size = serde_json::to_string(&allocation::carried(c.resources.as_ref())).unwrap_or_default();
        annotations.insert(labels::SIZE.into(), size);
    }
    annotations.insert(labels::TERMINATION_PATH.into(), termination_path);
    annotations.insert(
        labels::TERMINATION_POLICY.into(),
        c.termination_message_policy.clone().unwrap_or_else(|| "File".into()),
    );
    annotations
        .insert(labels::GRACE_PERIOD.into(), spec(pod).termination_grace_period_seconds.unwrap_or(30).to_string());
    let label_map = BTreeMap::from([
        (labels::POD_NAME.to_owned(), reference.name.clone()),
        (labels::POD_NAMESPACE.to_owned(), reference.namespace.clone()),
        (labels::POD_UID.to_owned(), reference.uid.to_string()),
        (labels::CONTAINER_NAME.to_owned(), c.name.clone()),
    ]);
    let pid = match (&inputs.target_id, kind) {
        (target, ContainerKind::Ephemeral) if !target.is_empty() => Sharing::Container,
        _ => inputs.sandbox.pid,
    };
    Ok(ContainerSpec {
        sandbox_id: inputs.sandbox_id.to_owned(),
        name: c.name.clone(),
        attempt: inputs.attempt,
        image_ref: inputs.image.id.clone(),
        image: c.image.clone().unwrap_or_default(),
        command: expand_all(c.command.as_deref().unwrap_or_default(), &vars)?,
        args: expand_all(c.args.as_deref().unwrap_or_default(), &vars)?,
        working_dir: c.working_dir.clone().unwrap_or_default(),
        mounts,
        devices,
        cdi_devices,
        labels: label_map,
        annotations,
        log_path: format!("{}/{}.log", c.name, inputs.attempt),
        stdin: c.stdin == Some(true),
        stdin_once: c.stdin_once == Some(true),
        tty: c.tty == Some(true),
        resources: of_node(pod, c, &inputs),
        security: security(pod, c, inputs.image, inputs.config)?,
        pid,
        target_id: inputs.target_id,
        files: ContainerFiles {
            log_directory: format!("{}/{}", inputs.sandbox.log_directory, c.name),
            hosts,
            termination_log,
        },
        env,
        pod: reference,
    })
}

/// Limits of a container as the node has them. Who has CPUs for himself is not throttled there.
#[must_use]
pub fn limits(pod: &Pod, c: &Container, node_memory_bytes: u64, config: &NodeConfig, own_cpus: bool) -> Resources {
    let limits = resources::of_config(resources::of_container(pod, c, node_memory_bytes), config);
    let swap_for_bytes = if config.limited_swap { resources::swap_for(pod, c) } else { 0 };
    let limits = Resources { swap_for_bytes, dies_whole: !config.single_process_oom_kill, ..limits };
    if own_cpus { resources::without_quota(limits) } else { limits }
}

/// The same with the CPUs that it runs on, and the NUMA nodes that it has memory of.
fn of_node(pod: &Pod, c: &Container, inputs: &Inputs<'_>) -> Resources {
    let limits = limits(pod, c, inputs.node_memory_bytes, inputs.config, inputs.own_cpus);
    let cpus = inputs.cpus.as_ref().map(ToString::to_string).unwrap_or_default();
    Resources { cpus, memory_nodes: inputs.memory_nodes.map(Nodes::list).unwrap_or_default(), ..limits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Dns, SeLinux};
    use k8s_openapi::api::core::v1::SeccompProfile;
    use serde_json::json;

    fn build(spec_json: serde_json::Value) -> Result<ContainerSpec, String> {
        let pod: Pod = carrack_types::json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec_json}),
        )
        .unwrap();
        let config = NodeConfig { root_dir: "/k".into(), ..NodeConfig::default() };
        let sandbox = sandbox::sandbox(&pod, 0, &config, &Dns::default());
        let c = &spec(&pod).containers[0];
        container(
            &pod,
            ContainerKind::Regular,
            c,
            Inputs {
                config: &config,
                sandbox: &sandbox,
                sandbox_id: "s",
                attempt: 2,
                round: 1,
                image: &ImageRecord { id: "sha256:1".into(), ..ImageRecord::default() },
                env: vec![("A".into(), "x".into())],
                volumes: &BTreeMap::from([("v".to_owned(), "/k/pods/u/volumes/e/v".to_owned())]),
                grants: vec![],
                pod_ips: &["10.0.0.2".into()],
                node_memory_bytes: 1 << 30,
                target_id: String::new(),
                cpus: None,
                own_cpus: false,
                memory_nodes: None,
                handler: HandlerFeatures::default(),
            },
        )
    }

    #[test]
    fn a_container_carries_what_a_restarted_kubelet_needs() {
        let c = build(json!({"containers": [{"name": "c", "image": "busybox", "command": ["sh", "$(A)"],
            "volumeMounts": [{"name": "v", "mountPath": "/data", "subPathExpr": "d/$(A)", "readOnly": true}]}]}))
        .unwrap();
        assert_eq!(c.command, ["sh", "x"]);
        assert_eq!(c.log_path, "c/2.log");
        assert_eq!(c.labels[labels::POD_UID], "u");
        assert_eq!(c.annotations[labels::RESTART_COUNT], "2");
        assert_eq!(labels::round(c.annotations.get(labels::ROUND)), 1);
        let m = &c.mounts[0];
        assert_eq!((m.host_path.as_str(), m.read_only), ("/k/pods/u/volumes/e/v", true));
        assert_eq!(m.sub_path.as_ref().unwrap().path, "d/x");
        assert!(c.files.hosts.as_ref().unwrap().1.contains("10.0.0.2\tp\n"));
        assert!(c.mounts.iter().any(|m| m.container_path == "/dev/termination-log"));
    }

    #[test]
    fn whoever_it_runs_as_has_the_group_that_is_asked_for() {
        let pod = |context: serde_json::Value| -> Pod {
            carrack_types::json::from_value(
                json!({"spec": {"securityContext": context, "containers": [{"name": "c"}]}}),
            )
            .unwrap()
        };
        let of_image =
            |uid: Option<i64>, username: &str| ImageRecord { uid, username: username.into(), ..ImageRecord::default() };
        for (context, image, user, username) in [
            (json!({"runAsGroup": 3}), of_image(None, ""), Some(0), ""),
            (json!({"runAsGroup": 3}), of_image(Some(5), ""), Some(5), ""),
            (json!({"runAsGroup": 3}), of_image(None, "web"), None, "web"),
            (json!({"runAsGroup": 3, "runAsUser": 7}), of_image(None, "web"), Some(7), ""),
            (json!({}), of_image(None, ""), None, ""),
        ] {
            let group = context["runAsGroup"].as_i64();
            let pod = pod(context);
            let s = security(&pod, &spec(&pod).containers[0], &image, &NodeConfig::default()).unwrap();
            assert_eq!(
                (s.run_as_user, s.run_as_username.as_str(), s.run_as_group),
                (user, username, group),
                "{image:?}"
            );
            assert!(s.masked_paths.iter().any(|path| path == "/sys/devices/virtual/powercap"));
        }
    }

    #[test]
    fn mounts_in_a_volume_go_the_ways_that_are_asked_for() {
        for (asked, expected) in [
            (json!(null), Propagation::Private),
            (json!("None"), Propagation::Private),
            (json!("HostToContainer"), Propagation::HostToContainer),
            (json!("Bidirectional"), Propagation::Bidirectional),
        ] {
            let c = build(json!({"containers": [{"name": "c", "image": "busybox",
                "volumeMounts": [{"name": "v", "mountPath": "/data", "mountPropagation": asked}]}]}))
            .unwrap();
            assert_eq!(c.mounts[0].propagation, expected, "{asked}");
        }
    }

    #[test]
    fn what_is_for_reading_cannot_be_written_whatever_a_container_asks_for() {
        let claim = |read_only: bool| json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": read_only}});
        for (volume, expected) in [
            (json!({"configMap": {"name": "m"}}), true),
            (json!({"secret": {"secretName": "s"}}), true),
            (json!({"downwardAPI": {"items": []}}), true),
            (json!({"projected": {"sources": []}}), true),
            (claim(true), true),
            (claim(false), false),
            (json!({"persistentVolumeClaim": {"claimName": "c"}}), false),
            (json!({"nfs": {"server": "s", "path": "/p", "readOnly": true}}), true),
            (json!({"csi": {"driver": "d", "readOnly": true}}), true),
            (json!({"flexVolume": {"driver": "v/d", "readOnly": true}}), true),
            (json!({"flexVolume": {"driver": "v/d"}}), false),
            (json!({"emptyDir": {}}), false),
            (json!({"hostPath": {"path": "/p"}}), false),
        ] {
            let mut volume = volume;
            volume["name"] = "v".into();
            let with = |field: &str, uses: serde_json::Value| {
                let container = json!({"name": "c", "image": "busybox", field: [uses]});
                build(json!({"volumes": [volume.clone()], "containers": [container]})).unwrap()
            };
            let c = with("volumeMounts", json!({"name": "v", "mountPath": "/data", "readOnly": false}));
            assert_eq!(c.mounts[0].read_only, expected, "{volume}");
            let c = with("volumeDevices", json!({"name": "v", "devicePath": "/dev/data"}));
            assert_eq!(c.devices[0].permissions, if expected { "r" } else { "mrw" }, "{volume}");
        }
    }

    #[test]
    fn hosts_of_a_pod() {
        let config = NodeConfig::default();
        let v4 = "10.0.0.2";
        for (spec, ips, lines) in [
            (json!({}), vec![v4], vec!["10.0.0.2\tp"]),
            (
                json!({"hostname": "web", "subdomain": "db"}),
                vec![v4],
                vec!["10.0.0.2\tweb.db.n.svc.cluster.local\tweb"],
            ),
            (json!({"subdomain": "db", "hostnameOverride": "o"}), vec![v4], vec!["10.0.0.2\to"]),
            (json!({}), vec![v4, "fd00::2"], vec!["10.0.0.2\tp", "fd00::2\tp"]),
            (
                json!({"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b.c"]}, {"ip": "1.2.3.5"}]}),
                vec![v4],
                vec!["10.0.0.2\tp", "", "# Entries added by HostAliases.", "1.2.3.4\ta\tb.c", "1.2.3.5"],
            ),
        ] {
            let mut spec = spec;
            spec["containers"] = json!([]);
            let metadata = json!({"name": "p", "namespace": "n", "uid": "u"});
            let pod: Pod = carrack_types::json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
            let ips: Vec<String> = ips.into_iter().map(str::to_owned).collect();
            let text = hosts_file(&pod, &config, &ips);
            assert_eq!(text.lines().skip(7).collect::<Vec<_>>(), lines, "{spec}");
        }
    }

    #[test]
    fn a_pod_on_the_nodes_network_adds_to_its_hosts() {
        for (aliases, expected) in [
            (json!(null), None),
            (json!([{"ip": "1.2.3.4", "hostnames": ["a"]}]), Some("\n# Entries added by HostAliases.\n1.2.3.4\ta\n")),
        ] {
            let c = build(json!({"hostNetwork": true, "hostAliases": aliases,
                "containers": [{"name": "c", "image": "busybox"}]}))
            .unwrap();
            assert_eq!(c.files.hosts.map(|(_, text)| text).as_deref(), expected);
            assert_eq!(c.mounts.iter().any(|m| m.container_path == "/etc/hosts"), expected.is_some());
        }
    }

    #[test]
    fn a_container_is_confined_as_it_or_its_pod_says() {
        let se_linux = json!({"type": "t", "level": "s0"});
        let c = build(json!({
            "securityContext": {"seLinuxOptions": se_linux, "supplementalGroupsPolicy": "Strict",
                "appArmorProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "busybox",
                "securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "web"}}}]}))
        .unwrap();
        assert_eq!(c.security.apparmor, Some(Seccomp::Localhost("web".into())));
        assert_eq!(c.security.selinux, Some(SeLinux { kind: "t".into(), level: "s0".into(), ..SeLinux::default() }));
        assert!(c.security.strict_groups);
        let c = build(json!({"containers": [{"name": "c", "image": "busybox"}]})).unwrap();
        assert_eq!((c.security.apparmor, c.security.selinux, c.security.strict_groups), (None, None, false));
        assert_eq!(c.security.seccomp, Seccomp::Unconfined);
        let config = NodeConfig { seccomp_default: true, ..NodeConfig::default() };
        assert_eq!(sandbox::seccomp(None, &config), Seccomp::RuntimeDefault);
        let nameless: SeccompProfile = serde_json::from_value(json!({"type": "Localhost"})).unwrap();
        let no_file = Seccomp::Localhost("/var/lib/kubelet/seccomp/".into());
        assert_eq!(sandbox::seccomp(Some(&nameless), &NodeConfig::default()), no_file);
    }

    #[test]
    fn bad_containers_are_refused() {
        for (container, message) in [
            (json!({"name": "c", "volumeMounts": [{"name": "w", "mountPath": "/d"}]}), "volume \"w\""),
            (json!({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/d", "subPath": "../x"}]}), "inside"),
            (json!({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/d", "subPathExpr": "$(B)"}]}), "expand"),
            (
                json!({"name": "c", "volumeMounts":
                    [{"name": "v", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "Enabled"}]}),
                "not supported by the runtime",
            ),
            (json!({"name": "c", "terminationMessagePath": "/x".repeat(3000)}), "longer than any path"),
            (json!({"name": "c", "args": vec!["x".repeat(1 << 20); 9]}), "arguments are more than"),
            (
                json!({"name": "c", "securityContext": {"runAsNonRoot": true}}),
                "container has runAsNonRoot and image will run as root (pod: \"p_n(u)\", container: c)",
            ),
            (
                json!({"name": "c", "securityContext": {"runAsNonRoot": true, "runAsUser": 0}}),
                "container's runAsUser breaks non-root policy (pod: \"p_n(u)\", container: c)",
            ),
        ] {
            let e = build(json!({"containers": [container]})).unwrap_err();
            assert!(e.contains(message), "{e}");
        }
    }
}
