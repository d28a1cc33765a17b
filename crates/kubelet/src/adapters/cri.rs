//! The container runtime, over CRI v1 on its unix socket.
//!
//! The runtime may come and go: each call connects anew when it must, and fails on its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use carrack_engine::Time;
use carrack_processes::tasks;
use futures::{StreamExt as _, stream};
use hyper_util::rt::TokioIo;
use k8s_cri::v1;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::{Channel, Endpoint};

use super::credentials::Own;
use super::turns::Turns;
use super::{blocking, cgroups, convert, io_error, log_links, logs, oom, readings, termination, volumes, withheld};
use crate::cpus::CpuSet;
use crate::effects::{OpError, RegistryAuth, Reply};
use crate::runtime::{
    ContainerRecord, ContainerSize, ContainerSpec, ContainerState, ImageRecord, Resources, RuntimeInfo,
    RuntimeSnapshot, SandboxRecord, SandboxSpec, Sharing, labels,
};

/// Largest message, in bytes, as upstream allows.
const MAX_MESSAGE: usize = 16 << 20;
const QUICK: Duration = Duration::from_secs(20);
const SLOW: Duration = Duration::from_secs(240);
/// How long an image may take. Layers may be large and registries far away, and who is cut off begins anew; upstream waits without end.
/// What does not move at all is the runtime's to notice, and runtimes do within minutes.
const PULL: Duration = Duration::from_secs(24 * 3600);
/// How long a command may take that has no limit, in seconds.
const UNLIMITED_S: u64 = 7 * 24 * 3600;
/// How many questions of one listing are asked at the same time.
const AT_ONCE: usize = 16;

/// What never changes of a container or sandbox once it is known.
#[derive(Default)]
struct Known {
    sandbox_ips: BTreeMap<String, Vec<IpAddr>>,
    /// Made in this life, and not started yet.
    made: BTreeMap<String, ContainerRecord>,
    running: BTreeMap<String, ContainerRecord>,
    exited: BTreeMap<String, ContainerRecord>,
}

/// A client of the runtime.
pub struct Cri {
    socket: PathBuf,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    known: Mutex<Known>,
    turns: Turns,
    credentials: Own,
}

/// Why a pod has no control group, and waits for it.
fn no_group(error: std::io::Error) -> OpError {
    OpError::Failed(format!("making the pod's control group: {error}"))
}

/// Removes the log of a container with its other name.
fn remove_log(s: &v1::ContainerStatus) -> Result<(), OpError> {
    let log = Path::new(&s.log_path);
    if let (Some(pod), Some(name)) = (convert::pod_ref(&s.labels), s.labels.get(labels::CONTAINER_NAME)) {
        log_links::remove(log, &pod, name, &s.id).map_err(io_error("removing the link of a log"))?;
    }
    logs::remove(log)
}

/// What the runtime is asked for a listing: of all pods, or of one alone, which does not cost more on a full node.
fn listing(uid: Option<&str>) -> (v1::ListPodSandboxRequest, v1::ListContainersRequest) {
    let of = |uid: &str| [(labels::POD_UID.to_owned(), uid.to_owned())].into();
    let sandboxes = uid.map(|uid| v1::PodSandboxFilter { label_selector: of(uid), ..Default::default() });
    let containers = uid.map(|uid| v1::ContainerFilter { label_selector: of(uid), ..Default::default() });
    (v1::ListPodSandboxRequest { filter: sandboxes }, v1::ListContainersRequest { filter: containers })
}

fn failed(status: tonic::Status) -> OpError {
    match status.code() {
        tonic::Code::NotFound => OpError::NotFound(status.message().to_owned()),
        tonic::Code::DeadlineExceeded => OpError::Failed(format!("deadline exceeded: {}", status.message())),
        _ => OpError::Failed(status.message().to_owned()),
    }
}

/// Why a command was not run, or not to its end. That it took too long is the status' code (upstream's `ExecSync`), or Go's words for
/// that at the end of it. A word between counts for nothing: what could not be run is named there, and may be called `timeout`.
fn not_run(status: tonic::Status, seconds: u64) -> OpError {
    let is_late = status.code() == tonic::Code::DeadlineExceeded;
    if is_late || status.message().ends_with("context deadline exceeded") {
        return OpError::TimedOut(seconds);
    }
    failed(status)
}

fn request<T>(message: T, timeout: Duration) -> tonic::Request<T> {
    let mut r = tonic::Request::new(message);
    r.set_timeout(timeout);
    r
}

/// Runs a call under a deadline of our own too: a runtime that hangs does not read the request's.
async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, OpError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(r) => r.map(tonic::Response::into_inner).map_err(failed),
        Err(_) => Err(OpError::TimedOut(timeout.as_secs())),
    }
}

impl Cri {
    /// A client of the runtime behind a socket. Connects at the first call.
    ///
    /// # Errors
    /// When the channel cannot be set up.
    pub fn new(socket: PathBuf) -> Result<Self, OpError> {
        let endpoint =
            Endpoint::try_from("http://localhost").map_err(|e| OpError::Failed(format!("runtime endpoint: {e}")))?;
        let place = socket.clone();
        let channel = endpoint.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
            let socket = place.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        }));
        Ok(Self {
            socket,
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE),
            known: Mutex::default(),
            turns: Turns::default(),
            credentials: Own::default(),
        })
    }

    /// Name, version and readiness.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn info(&self) -> Result<RuntimeInfo, OpError> {
        let mut client = self.runtime.clone();
        let version =
            within(QUICK, client.version(request(v1::VersionRequest { version: "v1".into() }, QUICK))).await?;
        let status = within(QUICK, client.status(request(v1::StatusRequest { verbose: false }, QUICK))).await?;
        let not = |name: &str| {
            let conditions = status.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
            match conditions.iter().find(|c| c.r#type == name) {
                Some(c) if c.status => None,
                Some(c) => Some(format!("{} reason:{} message:{}", c.r#type, c.reason, c.message)),
                None => Some(format!("{name} is not reported")),
            }
        };
        Ok(RuntimeInfo {
            name: version.runtime_name,
            version: version.runtime_version,
            not_ready: not("RuntimeReady"),
            network_not_ready: not("NetworkReady"),
            strict_groups: status.features.as_ref().is_some_and(|f| f.supplemental_groups_policy),
            handlers: status.runtime_handlers.iter().map(convert::handler).collect(),
        })
    }

    /// Lists all sandboxes and containers of pods. Where the status of one cannot be read, that is told of its pod, and all others
    /// are listed.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn snapshot(&self) -> Result<RuntimeSnapshot, OpError> {
        self.listed(None).await
    }

    /// Lists sandboxes and containers: of all pods, or of one alone.
    async fn listed(&self, uid: Option<&str>) -> Result<RuntimeSnapshot, OpError> {
        let (of_sandboxes, of_containers) = listing(uid);
        let mut client = self.runtime.clone();
        let mut other = self.runtime.clone();
        let (sandboxes, containers) = tokio::try_join!(
            within(QUICK, client.list_pod_sandbox(request(of_sandboxes, QUICK))),
            within(QUICK, other.list_containers(request(of_containers, QUICK))),
        )?;
        let (sandboxes, containers) = (sandboxes.items, containers.containers);
        // What the listing does not say is asked for side by side.
        let listed: Vec<_> = sandboxes.iter().map(|s| self.sandbox(s)).collect();
        let ran: Vec<_> = containers.iter().map(|c| self.container(c)).collect();
        let (listed, ran) = tokio::join!(
            stream::iter(listed).buffered(AT_ONCE).collect::<Vec<_>>(),
            stream::iter(ran).buffered(AT_ONCE).collect::<Vec<_>>(),
        );
        if uid.is_none() {
            self.forget(&sandboxes, &containers);
        }
        let mut unread = BTreeMap::new();
        let listed = sandboxes.iter().map(|s| convert::pod_ref(&s.labels)).zip(listed);
        let ran = containers.iter().map(|c| convert::pod_ref(&c.labels)).zip(ran);
        let (sandboxes, containers) = (readings::sort(listed, &mut unread), readings::sort(ran, &mut unread));
        match unread.first_key_value() {
            Some((_, why)) if uid.is_some() => Err(OpError::Failed(why.clone())),
            _ => Ok(RuntimeSnapshot { sandboxes, containers, unread }),
        }
    }

    /// A sandbox as listed, with its addresses; none for one that is no pod's or was removed meanwhile.
    async fn sandbox(&self, s: &v1::PodSandbox) -> Result<Option<SandboxRecord>, OpError> {
        let Some(pod) = convert::pod_ref(&s.labels) else { return Ok(None) };
        let ready = s.state == i32::from(v1::PodSandboxState::SandboxReady);
        let ips = match self.ips(&s.id) {
            Some(ips) => ips,
            None if !ready => Vec::new(),
            None => match self.sandbox_status(&s.id).await {
                Ok(status) => self.read_ips(&status),
                Err(OpError::NotFound(_)) => return Ok(None),
                Err(e) => return Err(e),
            },
        };
        Ok(Some(SandboxRecord {
            id: s.id.clone(),
            pod,
            attempt: s.metadata.as_ref().map_or(0, |m| m.attempt),
            ready,
            created_at: Time(s.created_at),
            ips,
            runtime_handler: s.runtime_handler.clone(),
        }))
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // What is cached is whole values: a panic elsewhere leaves none half-written.
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn ips(&self, id: &str) -> Option<Vec<IpAddr>> {
        self.known().sandbox_ips.get(id).cloned()
    }

    async fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus, OpError> {
        let mut client = self.runtime.clone();
        let r = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        let reply = within(QUICK, client.pod_sandbox_status(request(r, QUICK))).await?;
        reply.status.ok_or_else(|| OpError::NotFound(format!("sandbox {id}")))
    }

    fn read_ips(&self, status: &v1::PodSandboxStatus) -> Vec<IpAddr> {
        let mut ips: Vec<IpAddr> = Vec::new();
        if let Some(n) = &status.network {
            ips.extend(n.ip.parse::<IpAddr>());
            ips.extend(n.additional_ips.iter().filter_map(|p| p.ip.parse::<IpAddr>().ok()));
        }
        let on_node = status
            .linux
            .as_ref()
            .and_then(|l| l.namespaces.as_ref()?.options.as_ref())
            .is_some_and(|o| o.network == i32::from(v1::NamespaceMode::Node));
        if !ips.is_empty() || on_node {
            self.known().sandbox_ips.insert(status.id.clone(), ips.clone());
        }
        ips
    }

    /// A container as listed, with what only its status says; none for one that is no pod's or was removed meanwhile.
    async fn container(&self, c: &v1::Container) -> Result<Option<ContainerRecord>, OpError> {
        let Some(pod) = convert::pod_ref(&c.labels) else { return Ok(None) };
        let state = v1::ContainerState::try_from(c.state).unwrap_or(v1::ContainerState::ContainerUnknown);
        let cached = match state {
            v1::ContainerState::ContainerRunning => self.known().running.get(&c.id).cloned(),
            v1::ContainerState::ContainerExited => self.known().exited.get(&c.id).cloned(),
            _ => None,
        };
        if cached.is_some() {
            return Ok(cached);
        }
        let name = c
            .labels
            .get(labels::CONTAINER_NAME)
            .cloned()
            .or_else(|| c.metadata.as_ref().map(|m| m.name.clone()))
            .unwrap_or_default();
        let mut record = ContainerRecord {
            id: c.id.clone(),
            sandbox_id: c.pod_sandbox_id.clone(),
            pod,
            name,
            attempt: restart_count(c),
            state: ContainerState::Created,
            created_at: Time(c.created_at),
            started_at: None,
            image: c.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
            image_ref: c.image_ref.clone(),
            hash: c.annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default(),
            round: labels::round(c.annotations.get(labels::ROUND)),
            size: ContainerSize { made_with: c.annotations.get(labels::SIZE).cloned(), actual: None },
            user: None,
        };
        if state == v1::ContainerState::ContainerCreated {
            return Ok(Some(record));
        }
        match self.complete(&mut record).await {
            Ok(()) => Ok(Some(record)),
            Err(OpError::NotFound(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Adds what only a container's status says.
    async fn complete(&self, record: &mut ContainerRecord) -> Result<(), OpError> {
        let status = self.status(&record.id).await?;
        record.started_at = convert::time(status.started_at);
        record.image_ref.clone_from(&status.image_ref);
        record.size.actual = convert::size_of(&status);
        record.user = convert::user_of(&status);
        if let Some(image) = status.image.as_ref().map(|i| i.image.clone()).filter(|i| !i.is_empty()) {
            record.image = image;
        }
        // The state may have moved on since the listing; the newer word counts.
        match v1::ContainerState::try_from(status.state).unwrap_or(v1::ContainerState::ContainerUnknown) {
            v1::ContainerState::ContainerCreated => {}
            v1::ContainerState::ContainerRunning => {
                record.state = ContainerState::Running;
                self.known().running.insert(record.id.clone(), record.clone());
            }
            v1::ContainerState::ContainerExited => {
                record.state = ContainerState::Exited {
                    code: status.exit_code,
                    reason: status.reason.clone(),
                    message: termination::message(&status).await,
                    finished_at: Time(status.finished_at),
                };
                let mut known = self.known();
                known.running.remove(&record.id);
                known.exited.insert(record.id.clone(), record.clone());
            }
            v1::ContainerState::ContainerUnknown => record.state = ContainerState::Unknown,
        }
        record.created_at = Time(status.created_at);
        Ok(())
    }

    fn forget(&self, sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) {
        let sandboxes: BTreeSet<&str> = sandboxes.iter().map(|s| s.id.as_str()).collect();
        let containers: BTreeSet<&str> = containers.iter().map(|c| c.id.as_str()).collect();
        let mut known = self.known();
        known.sandbox_ips.retain(|id, _| sandboxes.contains(id.as_str()));
        known.running.retain(|id, _| containers.contains(id.as_str()));
        known.exited.retain(|id, _| containers.contains(id.as_str()));
    }

    /// The runtime's word on one container.
    ///
    /// # Errors
    /// [`OpError::NotFound`] when there is none.
    pub async fn status(&self, id: &str) -> Result<v1::ContainerStatus, OpError> {
        let mut client = self.runtime.clone();
        let r = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        within(QUICK, client.container_status(request(r, QUICK)))
            .await?
            .status
            .ok_or_else(|| OpError::NotFound(format!("container {id}")))
    }

    /// Sandboxes and containers of one pod.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn snapshot_of(&self, uid: &str) -> Result<RuntimeSnapshot, OpError> {
        self.listed(Some(uid)).await
    }

    /// Runs a sandbox, and says what it is like: no listing has to be waited for.
    ///
    /// # Errors
    /// What the runtime or the network says, or the kernel of the pod's control group.
    pub async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<Reply, OpError> {
        let dir = spec.log_directory.clone();
        tokio::fs::create_dir_all(&dir).await.map_err(io_error(format!("creating {dir}")))?;
        let group = spec.cgroup.clone();
        let parent = blocking(move || cgroups::parent(&group).map_err(no_group)).await?;
        let mut client = self.runtime.clone();
        let r = v1::RunPodSandboxRequest {
            config: Some(convert::sandbox(spec, parent)),
            runtime_handler: spec.runtime_handler.clone(),
        };
        let id = within(SLOW, client.run_pod_sandbox(request(r, SLOW))).await?.pod_sandbox_id;
        let Ok(status) = self.sandbox_status(&id).await else { return Ok(Reply::Made(id)) };
        Ok(Reply::Sandbox(Box::new(SandboxRecord {
            ready: status.state() == v1::PodSandboxState::SandboxReady,
            pod: spec.pod.clone(),
            attempt: spec.attempt,
            created_at: Time(status.created_at),
            ips: self.read_ips(&status),
            runtime_handler: spec.runtime_handler.clone(),
            id,
        })))
    }

    /// Stops a sandbox.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), OpError> {
        let mut client = self.runtime.clone();
        let r = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        within(SLOW, client.stop_pod_sandbox(request(r, SLOW))).await.map(drop)
    }

    /// Forgets a sandbox.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), OpError> {
        let mut client = self.runtime.clone();
        let r = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let removed = within(SLOW, client.remove_pod_sandbox(request(r, SLOW))).await.map(drop);
        self.delete_forgotten(id, removed).await
    }

    /// Makes a container and what it needs on disk; returns its id.
    ///
    /// # Errors
    /// What the disk or the runtime says.
    pub async fn create(&self, sandbox: &SandboxSpec, spec: &ContainerSpec) -> Result<String, OpError> {
        let (files, mounts, node_network) = (spec.files.clone(), spec.mounts.clone(), sandbox.network == Sharing::Node);
        let (limits, group) = (spec.resources.clone(), sandbox.cgroup.clone());
        let config = convert::container(spec, sandbox);
        let turn = self.turns.take(&spec.pod.uid).await;
        let (config, parent) = blocking(move || {
            volumes::prepare_container(&files, &mounts, node_network)?;
            let config = oom::clamped(withheld::from(config, &limits, &group.path));
            Ok((config, cgroups::parent_of_running(&group).map_err(no_group)?))
        })
        .await?;
        drop(turn);
        let mut client = self.runtime.clone();
        let r = v1::CreateContainerRequest {
            pod_sandbox_id: spec.sandbox_id.clone(),
            config: Some(config),
            sandbox_config: Some(convert::sandbox(sandbox, parent)),
        };
        let id = within(SLOW, client.create_container(request(r, SLOW))).await?.container_id;
        self.link_log(sandbox, spec, &id).await;
        let record = ContainerRecord {
            id: id.clone(),
            sandbox_id: spec.sandbox_id.clone(),
            pod: spec.pod.clone(),
            name: spec.name.clone(),
            attempt: spec.attempt,
            state: ContainerState::Created,
            // Its status says.
            created_at: Time::default(),
            started_at: None,
            image: spec.image.clone(),
            image_ref: spec.image_ref.clone(),
            hash: spec.annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default(),
            round: labels::round(spec.annotations.get(labels::ROUND)),
            size: ContainerSize { made_with: spec.annotations.get(labels::SIZE).cloned(), actual: None },
            user: None,
        };
        self.known().made.insert(id.clone(), record);
        Ok(id)
    }

    /// Gives the log of a container its other name. Who has none runs all the same.
    async fn link_log(&self, sandbox: &SandboxSpec, spec: &ContainerSpec, id: &str) {
        let log = PathBuf::from(&sandbox.log_directory).join(&spec.log_path);
        let (pod, name, id) = (spec.pod.clone(), spec.name.clone(), id.to_owned());
        let link = move || log_links::make(&log, &pod, &name, &id).map_err(io_error("linking a log"));
        if let Err(error) = blocking(link).await {
            tracing::warn!(container = spec.name, %error, "the log of a container has no link");
        }
    }

    /// Starts a container, and says what it is like where it was made in this life: no listing has to be waited for.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn start(&self, id: &str) -> Result<Reply, OpError> {
        let mut client = self.runtime.clone();
        let r = v1::StartContainerRequest { container_id: id.to_owned() };
        let made = self.known().made.remove(id);
        within(SLOW, client.start_container(request(r, SLOW))).await?;
        let Some(mut record) = made else { return Ok(Reply::Done) };
        Ok(match self.complete(&mut record).await {
            Ok(()) => Reply::Started(Box::new(record)),
            Err(_) => Reply::Done,
        })
    }

    /// Lets a running container run on these CPUs; all else of it stays as it is.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn give_cpus(&self, id: &str, cpus: &CpuSet) -> Result<(), OpError> {
        let linux = v1::LinuxContainerResources { cpuset_cpus: cpus.to_string(), ..Default::default() };
        self.update(id, linux).await
    }

    /// Lets a running container have these CPUs and this memory; all else of it stays as it is.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn resize(&self, id: &str, limits: &Resources) -> Result<(), OpError> {
        let (size, of) = (convert::size(limits), limits.clone());
        let size = blocking(move || Ok(withheld::resized(size, &of))).await?;
        let result = self.update(id, size).await;
        // What it was is known no more, also where this failed half-way.
        self.known().running.remove(id);
        result
    }

    async fn update(&self, id: &str, linux: v1::LinuxContainerResources) -> Result<(), OpError> {
        let mut client = self.runtime.clone();
        let r = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        within(QUICK, client.update_container_resources(request(r, QUICK))).await.map(drop)
    }

    /// Stops a container.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn stop(&self, id: &str, timeout_s: i64) -> Result<(), OpError> {
        let mut client = self.runtime.clone();
        let r = v1::StopContainerRequest { container_id: id.to_owned(), timeout: timeout_s };
        let limit = Duration::from_secs(u64::try_from(timeout_s).unwrap_or(0)) + Duration::from_secs(120);
        within(limit, client.stop_container(request(r, limit))).await.map(drop)
    }

    /// Forgets a container.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn remove(&self, id: &str) -> Result<(), OpError> {
        // Its log goes first: once it is forgotten nobody knows where that is, and whether the reply comes is not known.
        match self.status(id).await {
            Ok(status) if Path::new(&status.log_path).is_absolute() => {
                if let Err(error) = blocking(move || remove_log(&status)).await {
                    // It goes with its pod's directory.
                    tracing::warn!(id, %error, "the log of a container that goes stays");
                }
            }
            Ok(_) | Err(OpError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        let mut client = self.runtime.clone();
        let r = v1::RemoveContainerRequest { container_id: id.to_owned() };
        self.known().made.remove(id);
        let removed = within(SLOW, client.remove_container(request(r, SLOW))).await.map(drop);
        self.delete_forgotten(id, removed).await
    }

    /// Where a removal was refused for a task that the runtime forgot: deletes that, so that the next removal succeeds.
    async fn delete_forgotten(&self, id: &str, removed: Result<(), OpError>) -> Result<(), OpError> {
        if let Err(OpError::Failed(reason)) = &removed
            && tasks::is_forgotten(reason)
        {
            match tasks::delete(&self.socket, id).await {
                Ok(found) => tracing::warn!(id, found, "the runtime forgot a task of what is to go; it was deleted"),
                Err(error) => tracing::warn!(id, %error, "the runtime forgot a task of what is to go"),
            }
        }
        removed
    }

    /// Runs a command in a container: exit code, and what it wrote.
    ///
    /// # Errors
    /// [`OpError::TimedOut`] when the command took too long; else what the runtime says, or that it says nothing.
    pub async fn exec(&self, id: &str, command: Vec<String>, timeout_s: i64) -> Result<(i32, Vec<u8>), OpError> {
        let mut client = self.runtime.clone();
        // None is as long as anybody waits.
        let seconds = u64::try_from(timeout_s).ok().filter(|s| *s > 0).unwrap_or(UNLIMITED_S);
        let r = v1::ExecSyncRequest { container_id: id.to_owned(), cmd: command, timeout: timeout_s };
        let limit = Duration::from_secs(seconds) + QUICK;
        // The request's own limit is a later one, so that silence is told from a refusal.
        let asked = client.exec_sync(request(r, limit + QUICK));
        let Ok(answered) = tokio::time::timeout(limit, asked).await else { return Err(self.silent(id, seconds).await) };
        let result = match answered {
            Ok(reply) => {
                let reply = reply.into_inner();
                let mut output = reply.stdout;
                output.extend(reply.stderr);
                Ok((reply.exit_code, output))
            }
            Err(s) => Err(not_run(s, seconds)),
        };
        match result {
            Ok((0, _)) | Err(OpError::TimedOut(_)) => result,
            // A container that ended, before the command or with it, is told from a command that failed.
            _ if self.is_over(id).await => Err(OpError::NotFound("the container is not running".into())),
            _ => result,
        }
    }

    /// Why nothing has come of a command in its time. Where the runtime answers otherwise, the command takes too long. Where it does
    /// not answer at all nothing is known of the command, and a container whose probe that was is not to be killed for it.
    async fn silent(&self, id: &str, seconds: u64) -> OpError {
        match self.status(id).await {
            Ok(_) => OpError::TimedOut(seconds),
            Err(gone @ OpError::NotFound(_)) => gone,
            Err(error) => OpError::Failed(format!("the container runtime does not answer: {error}")),
        }
    }

    /// Whether a container is known to run no more.
    async fn is_over(&self, id: &str) -> bool {
        match self.status(id).await {
            Ok(status) => status.state() == v1::ContainerState::ContainerExited,
            Err(e) => matches!(e, OpError::NotFound(_)),
        }
    }

    /// All images.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn images(&self) -> Result<Vec<ImageRecord>, OpError> {
        let mut client = self.images.clone();
        let list = within(QUICK, client.list_images(request(v1::ListImagesRequest::default(), QUICK))).await?;
        let mut images: Vec<ImageRecord> = list.images.into_iter().map(convert::image).collect();
        images.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(images)
    }

    /// One image, if the node has it.
    ///
    /// # Errors
    /// When the runtime does not answer or the name is no image's.
    pub async fn image(&self, name: &str) -> Result<Option<ImageRecord>, OpError> {
        let mut client = self.images.clone();
        let r = v1::ImageStatusRequest {
            image: Some(v1::ImageSpec { image: name.to_owned(), ..Default::default() }),
            verbose: false,
        };
        Ok(within(QUICK, client.image_status(request(r, QUICK))).await?.image.map(convert::image))
    }

    /// The same, with credentials for registries that are the node's own.
    #[must_use]
    pub fn with_credentials(self, credentials: Own) -> Self {
        Self { credentials, ..self }
    }

    /// Pulls an image, with each of these credentials and then of the node's own until one will do. Returns which of these did,
    /// besides the image; none where it was one of the node's own, which are for whoever is on it.
    ///
    /// # Errors
    /// What the runtime or the registry says; of several tries, the last.
    pub async fn pull(
        &self,
        name: &str,
        auths: Vec<RegistryAuth>,
    ) -> Result<(Option<ImageRecord>, Option<usize>), OpError> {
        let mut client = self.images.clone();
        let given = auths.len();
        let own = self.credentials.of(name).await;
        let mut tries: Vec<Option<RegistryAuth>> = auths.into_iter().chain(own).map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let mut result = Ok(());
        let mut with = None;
        for (number, auth) in tries.into_iter().enumerate() {
            with = (number < given).then_some(number);
            let r = v1::PullImageRequest {
                image: Some(v1::ImageSpec { image: name.to_owned(), ..Default::default() }),
                auth: auth.map(convert::auth),
                ..Default::default()
            };
            result = within(PULL, client.pull_image(request(r, PULL))).await.map(drop);
            if result.is_ok() {
                break;
            }
        }
        result?;
        // Pulled it is, also where it cannot be looked at.
        let image = self.image(name).await.unwrap_or_else(|error| {
            tracing::warn!(image = name, %error, "an image that was pulled cannot be looked at");
            None
        });
        Ok((image, with))
    }

    /// Removes an image.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn remove_image(&self, id: &str) -> Result<(), OpError> {
        let mut client = self.images.clone();
        let image = Some(v1::ImageSpec { image: id.to_owned(), ..Default::default() });
        within(SLOW, client.remove_image(request(v1::RemoveImageRequest { image }, SLOW))).await.map(drop)
    }

    /// The directory that images are kept below.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn image_dir(&self) -> Result<Option<PathBuf>, OpError> {
        let dir = self.image_file_systems().await?.into_iter().find_map(|f| f.fs_id).map(|id| id.mountpoint);
        Ok(dir.filter(|d| !d.is_empty()).map(PathBuf::from))
    }

    /// What images use of the file system where they are; none where the runtime does not say.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn image_use(&self) -> Result<Option<v1::FilesystemUsage>, OpError> {
        Ok(self.image_file_systems().await?.into_iter().next())
    }

    async fn image_file_systems(&self) -> Result<Vec<v1::FilesystemUsage>, OpError> {
        let mut client = self.images.clone();
        let asked = client.image_fs_info(request(v1::ImageFsInfoRequest {}, QUICK));
        Ok(within(QUICK, asked).await?.image_filesystems)
    }

    /// The ids of all containers that run.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn running(&self) -> Result<BTreeSet<String>, OpError> {
        let mut client = self.runtime.clone();
        let state = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() };
        let filter = v1::ContainerFilter { state: Some(state), ..Default::default() };
        let r = v1::ListContainersRequest { filter: Some(filter) };
        let list = within(QUICK, client.list_containers(request(r, QUICK))).await?;
        let runs = |c: &v1::Container| c.state() == v1::ContainerState::ContainerRunning;
        Ok(list.containers.into_iter().filter(runs).map(|c| c.id).collect())
    }

    /// What all containers use, those that are over included: they have their layers.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn container_stats(&self) -> Result<Vec<v1::ContainerStats>, OpError> {
        let mut client = self.runtime.clone();
        let r = v1::ListContainerStatsRequest::default();
        Ok(within(QUICK, client.list_container_stats(request(r, QUICK))).await?.stats)
    }

    /// How much memory each of these containers uses, in bytes. What is not known is left out.
    ///
    /// # Errors
    /// When the runtime does not answer.
    pub async fn memory_of(&self, ids: &[String]) -> Result<BTreeMap<String, u64>, OpError> {
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let used = |c: &v1::ContainerStats| {
            let id = c.attributes.as_ref().map(|a| a.id.clone()).filter(|id| ids.contains(id))?;
            let memory = c.memory.as_ref()?;
            // Older runtimes tell of the working set alone.
            let told = [&memory.usage_bytes, &memory.working_set_bytes].into_iter().flatten().map(|v| v.value).max()?;
            Some((id, told))
        };
        Ok(self.container_stats().await?.iter().filter_map(used).collect())
    }

    /// What all sandboxes use, their networks included.
    ///
    /// # Errors
    /// When the runtime does not answer, or does not know the question.
    pub async fn sandbox_stats(&self) -> Result<Vec<v1::PodSandboxStats>, OpError> {
        let mut client = self.runtime.clone();
        let r = v1::ListPodSandboxStatsRequest::default();
        Ok(within(QUICK, client.list_pod_sandbox_stats(request(r, QUICK))).await?.stats)
    }

    /// Lets the runtime open a new log for a container, whose old one was renamed.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn reopen_log(&self, id: &str) -> Result<(), OpError> {
        let mut client = self.runtime.clone();
        let r = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
        within(QUICK, client.reopen_container_log(request(r, QUICK))).await.map(drop)
    }

    /// The URL at which the runtime streams a command.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn exec_url(&self, r: v1::ExecRequest) -> Result<String, OpError> {
        let mut client = self.runtime.clone();
        Ok(within(QUICK, client.exec(request(r, QUICK))).await?.url)
    }

    /// The URL at which the runtime streams a container's own process.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn attach_url(&self, r: v1::AttachRequest) -> Result<String, OpError> {
        let mut client = self.runtime.clone();
        Ok(within(QUICK, client.attach(request(r, QUICK))).await?.url)
    }

    /// The URL at which the runtime forwards ports of a sandbox.
    ///
    /// # Errors
    /// What the runtime says.
    pub async fn port_forward_url(&self, r: v1::PortForwardRequest) -> Result<String, OpError> {
        let mut client = self.runtime.clone();
        Ok(within(QUICK, client.port_forward(request(r, QUICK))).await?.url)
    }
}

fn restart_count(c: &v1::Container) -> u32 {
    c.annotations
        .get(labels::RESTART_COUNT)
        .and_then(|n| n.parse().ok())
        .or_else(|| c.metadata.as_ref().map(|m| m.attempt))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A probe that took too long has failed; of one that could not be run nothing is known.
    #[test]
    fn what_could_not_be_run_did_not_take_too_long() {
        let lacks = "failed to exec in container: exec: \"timeout\": executable file not found in $PATH: unknown";
        for (code, message, is_late) in [
            (tonic::Code::DeadlineExceeded, "timeout 1s exceeded", true),
            (tonic::Code::Unknown, "failed to exec in container: timeout 1s exceeded: context deadline exceeded", true),
            (tonic::Code::Unknown, lacks, false),
            (tonic::Code::Unavailable, "connection error", false),
        ] {
            let why = not_run(tonic::Status::new(code, message), 1);
            assert_eq!(matches!(why, OpError::TimedOut(1)), is_late, "{message}: {why}");
        }
        assert!(matches!(not_run(tonic::Status::not_found("gone"), 1), OpError::NotFound(_)));
    }

    /// A probe says nothing of its container where nobody can carry it out.
    #[tokio::test(start_paused = true)]
    async fn of_what_a_silent_runtime_was_to_run_nothing_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("runtime.sock");
        // It hangs: the kernel takes connections for it, and it never looks at them.
        let _hangs = tokio::net::UnixListener::bind(&socket).unwrap();
        let cri = Cri::new(socket).unwrap();
        let outcome = cri.exec("c", vec!["true".into()], 1).await;
        assert!(matches!(outcome, Err(OpError::Failed(_))), "{outcome:?}");
    }

    #[test]
    fn one_pod_is_asked_for_alone() {
        for uid in [None, Some("u")] {
            let (sandboxes, containers) = listing(uid);
            let of_sandboxes = sandboxes.filter.map(|f| f.label_selector.into_iter().collect::<Vec<_>>());
            let of_containers = containers.filter.map(|f| f.label_selector.into_iter().collect::<Vec<_>>());
            let expected = uid.map(|uid| vec![("io.kubernetes.pod.uid".to_owned(), uid.to_owned())]);
            assert_eq!((&of_sandboxes, &of_containers), (&expected, &expected), "{uid:?}");
        }
    }
}
