//! Between our values of the runtime and CRI's messages.
#![expect(
    clippy::disallowed_types,
    reason = "CRI's generated messages hold hash maps; nothing here depends on their order"
)]

use std::collections::{BTreeMap, HashMap};

use carrack_engine::Time;
use k8s_cri::v1;

use crate::effects::RegistryAuth;
use crate::runtime::{
    ContainerSpec, HandlerFeatures, ImageRecord, PodRef, Propagation, Resources, RunsAs, SandboxSpec, SeLinux, Seccomp,
    Sharing, labels,
};

fn map(m: &BTreeMap<String, String>) -> HashMap<String, String> {
    m.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn namespace(s: Sharing) -> i32 {
    match s {
        Sharing::Pod => v1::NamespaceMode::Pod.into(),
        Sharing::Container => v1::NamespaceMode::Container.into(),
        Sharing::Node => v1::NamespaceMode::Node.into(),
    }
}

fn int(v: Option<i64>) -> Option<v1::Int64Value> {
    v.map(|value| v1::Int64Value { value })
}

fn seccomp(s: &Seccomp) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let (kind, path) = match s {
        Seccomp::Unconfined => (ProfileType::Unconfined, String::new()),
        Seccomp::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
        Seccomp::Localhost(p) => (ProfileType::Localhost, p.clone()),
    };
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: path }
}

fn resources(r: &Resources) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        oom_score_adj: r.oom_score_adj,
        cpuset_cpus: r.cpus.clone(),
        cpuset_mems: r.memory_nodes.clone(),
        hugepage_limits: r
            .hugepages
            .iter()
            .map(|(size, limit)| v1::HugepageLimit { page_size: size.clone(), limit: *limit })
            .collect(),
        ..size(r)
    }
}

/// The CPUs and the memory of a container, and nothing else of its limits.
pub(super) fn size(r: &Resources) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: r.cpu_period_us,
        cpu_quota: r.cpu_quota_us,
        cpu_shares: r.cpu_shares,
        memory_limit_in_bytes: r.memory_limit_bytes,
        ..Default::default()
    }
}

/// The same, as a container's status tells it.
pub(super) fn size_of(status: &v1::ContainerStatus) -> Option<Resources> {
    let r = status.resources.as_ref()?.linux.as_ref()?;
    Some(Resources {
        cpu_period_us: r.cpu_period,
        cpu_quota_us: r.cpu_quota.max(0),
        cpu_shares: r.cpu_shares,
        memory_limit_bytes: r.memory_limit_in_bytes.max(0),
        ..Resources::default()
    })
}

/// Whom a container began as, as its status tells it.
pub(super) fn user_of(status: &v1::ContainerStatus) -> Option<RunsAs> {
    let user = status.user.as_ref()?.linux.as_ref()?;
    Some(RunsAs { uid: user.uid, gid: user.gid, groups: user.supplemental_groups.clone() })
}

/// What a handler of the runtime can.
pub(super) fn handler(h: &v1::RuntimeHandler) -> (String, HandlerFeatures) {
    let can = |what: fn(&v1::RuntimeHandlerFeatures) -> bool| h.features.as_ref().is_some_and(what);
    let features = HandlerFeatures {
        recursive_read_only: can(|f| f.recursive_read_only_mounts),
        user_namespaces: can(|f| f.user_namespaces),
    };
    (h.name.clone(), features)
}

fn selinux(s: &SeLinux) -> v1::SeLinuxOption {
    v1::SeLinuxOption { user: s.user.clone(), role: s.role.clone(), r#type: s.kind.clone(), level: s.level.clone() }
}

fn groups_policy(strict: bool) -> i32 {
    if strict { v1::SupplementalGroupsPolicy::Strict.into() } else { v1::SupplementalGroupsPolicy::Merge.into() }
}

/// A sandbox, in a control group that the adapter has made (or none).
pub(super) fn sandbox(s: &SandboxSpec, cgroup_parent: String) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: s.pod.name.clone(),
            uid: s.pod.uid.to_string(),
            namespace: s.pod.namespace.clone(),
            attempt: s.attempt,
        }),
        hostname: s.hostname.clone(),
        log_directory: s.log_directory.clone(),
        dns_config: Some(v1::DnsConfig {
            servers: s.dns.servers.clone(),
            searches: s.dns.searches.clone(),
            options: s.dns.options.clone(),
        }),
        port_mappings: s
            .ports
            .iter()
            .map(|p| v1::PortMapping {
                protocol: match p.protocol.as_str() {
                    "UDP" => v1::Protocol::Udp.into(),
                    "SCTP" => v1::Protocol::Sctp.into(),
                    _ => v1::Protocol::Tcp.into(),
                },
                container_port: p.container_port,
                host_port: p.host_port,
                host_ip: p.host_ip.clone(),
            })
            .collect(),
        labels: map(&s.labels),
        annotations: map(&s.annotations),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent,
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(v1::NamespaceOption {
                    network: namespace(s.network),
                    pid: namespace(s.pid),
                    ipc: namespace(s.ipc),
                    ..Default::default()
                }),
                run_as_user: int(s.run_as_user),
                run_as_group: int(s.run_as_group.filter(|_| s.run_as_user.is_some())),
                supplemental_groups: s.supplemental_groups.clone(),
                privileged: s.privileged,
                seccomp: Some(seccomp(&s.seccomp)),
                selinux_options: s.selinux.as_ref().map(selinux),
                ..Default::default()
            }),
            sysctls: map(&s.sysctls),
            resources: Some(resources(&s.cgroup.resources)),
            overhead: None,
        }),
        windows: None,
    }
}

/// A container.
pub(super) fn container(c: &ContainerSpec, sandbox: &SandboxSpec) -> v1::ContainerConfig {
    let s = &c.security;
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: c.name.clone(), attempt: c.attempt }),
        image: Some(v1::ImageSpec {
            image: c.image_ref.clone(),
            user_specified_image: c.image.clone(),
            ..Default::default()
        }),
        command: c.command.clone(),
        args: c.args.clone(),
        working_dir: c.working_dir.clone(),
        envs: c.env.iter().map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() }).collect(),
        mounts: c
            .mounts
            .iter()
            .map(|m| v1::Mount {
                container_path: m.container_path.clone(),
                host_path: m.sub_path.as_ref().map_or(&m.host_path, |s| &s.bind_at).clone(),
                readonly: m.read_only,
                recursive_read_only: m.recursive,
                propagation: match m.propagation {
                    Propagation::Private => v1::MountPropagation::PropagationPrivate.into(),
                    Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer.into(),
                    Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional.into(),
                },
                ..Default::default()
            })
            .collect(),
        devices: c
            .devices
            .iter()
            .map(|d| v1::Device {
                container_path: d.container_path.clone(),
                host_path: d.host_path.clone(),
                permissions: d.permissions.clone(),
            })
            .collect(),
        labels: map(&c.labels),
        annotations: map(&c.annotations),
        log_path: c.log_path.clone(),
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        tty: c.tty,
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources(&c.resources)),
            security_context: Some(v1::LinuxContainerSecurityContext {
                capabilities: Some(v1::Capability {
                    add_capabilities: s.add_capabilities.clone(),
                    drop_capabilities: s.drop_capabilities.clone(),
                    add_ambient_capabilities: Vec::new(),
                }),
                privileged: s.privileged,
                namespace_options: Some(v1::NamespaceOption {
                    network: namespace(sandbox.network),
                    pid: if c.target_id.is_empty() { namespace(c.pid) } else { v1::NamespaceMode::Target.into() },
                    ipc: namespace(sandbox.ipc),
                    target_id: c.target_id.clone(),
                    userns_options: None,
                }),
                run_as_user: int(s.run_as_user),
                run_as_username: s.run_as_username.clone(),
                // A group without a user is refused by the runtime.
                run_as_group: int(s.run_as_group.filter(|_| s.run_as_user.is_some() || !s.run_as_username.is_empty())),
                readonly_rootfs: s.read_only_root,
                supplemental_groups: s.supplemental_groups.clone(),
                no_new_privs: s.no_new_privs,
                masked_paths: s.masked_paths.clone(),
                readonly_paths: s.readonly_paths.clone(),
                seccomp: Some(seccomp(&s.seccomp)),
                apparmor: s.apparmor.as_ref().map(seccomp),
                selinux_options: s.selinux.as_ref().map(selinux),
                supplemental_groups_policy: groups_policy(s.strict_groups),
                ..Default::default()
            }),
        }),
        windows: None,
        cdi_devices: c.cdi_devices.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect(),
    }
}

/// The pod that labels name; none for what is not a pod's.
pub(super) fn pod_ref(labels_map: &HashMap<String, String>) -> Option<PodRef> {
    Some(PodRef {
        namespace: labels_map.get(labels::POD_NAMESPACE)?.clone(),
        name: labels_map.get(labels::POD_NAME)?.clone(),
        uid: labels_map.get(labels::POD_UID)?.as_str().into(),
    })
}

/// Nanoseconds since the epoch; none for 0.
pub(super) fn time(ns: i64) -> Option<Time> {
    (ns > 0).then_some(Time(ns))
}

/// Credentials for a registry. Their server is not named, as upstream's kubelet does not (`BasicDockerKeyring.Add`,
/// pkg/credentialprovider): containerd uses none whose server is not a URL of the very host that it asks (its CRI plugin's
/// `ParseAuth`), and neither `registry.example` nor the name of Docker's hub is one.
pub(super) fn auth(a: RegistryAuth) -> v1::AuthConfig {
    v1::AuthConfig { username: a.username, password: a.password, ..Default::default() }
}

/// An image.
pub(super) fn image(i: v1::Image) -> ImageRecord {
    let digest = i.repo_digests.first().cloned().unwrap_or_else(|| i.id.clone());
    ImageRecord {
        names: i.repo_digests.into_iter().chain(i.repo_tags).collect(),
        digest,
        size_bytes: i.size,
        pinned: i.pinned,
        uid: i.uid.map(|u| u.value),
        username: i.username,
        id: i.id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_whom_a_container_began_as() {
        let linux = |linux| Some(v1::ContainerUser { linux });
        let user = v1::LinuxContainerUser { uid: 1, gid: 2, supplemental_groups: vec![2, 3] };
        let known = RunsAs { uid: 1, gid: 2, groups: vec![2, 3] };
        for (user, expected) in [(None, None), (linux(None), None), (linux(Some(user)), Some(known))] {
            let status = v1::ContainerStatus { user, ..Default::default() };
            assert_eq!(user_of(&status), expected, "{status:?}");
        }
    }

    #[test]
    fn credentials_name_no_server() {
        for server in ["registry.example", "registry.example:5000", "https://index.docker.io/v1/"] {
            let told = auth(RegistryAuth { server: server.into(), username: "u".into(), password: "p".into() });
            assert_eq!((told.username.as_str(), told.password.as_str()), ("u", "p"), "{server}");
            assert_eq!(told.server_address, "", "{server}");
        }
    }
}
