//! A cluster of one node whose roles are processes of their own, each of which can be killed and started by itself.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail};
use carrack_auth::pki::Pki;
use carrack_noderuntime::{Containerd, NodeSettings, host, members, power};
use carrack_plot::Tone;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::api::{self, Api};
use super::relay::Relay;
use super::roles::{API_PORT, NODE, Places, Role};
use super::stage::Stage;
use super::visit::{self, Visit};
use crate::cli::BuiltIn;
use crate::roles::apiserver::open_pki;
use crate::roles::{https, virt_controller};

/// The range of the node's pods.
const POD_CIDR: &str = "10.42.0.0/24";
/// How long a start may take.
const START_LIMIT_S: u64 = 60;

/// Who plays the roles that somebody else may play.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    /// The kubelet.
    pub kubelet: Option<PathBuf>,
    /// The scheduler.
    pub scheduler: Option<PathBuf>,
    /// An API server that runs already: its address, and its administrator's kubeconfig.
    pub apiserver: Option<(String, PathBuf)>,
}

/// The cluster's processes.
pub struct Cluster<'a> {
    /// Where it is played.
    pub stage: &'a Stage,
    /// Its files.
    pub places: Places,
    /// Its API.
    pub api: Api,
    pki: Pki,
    /// What is to be taken back from an API server that is somebody else's.
    visit: Option<Visit>,
    containerd: Mutex<Option<CancellationToken>>,
    flags: BTreeMap<Role, Vec<String>>,
}

impl<'a> Cluster<'a> {
    /// Starts the API server, and prepares what roles are told. `extenders` are those that the scheduler asks.
    ///
    /// # Errors
    /// Why it does not start.
    pub fn new(stage: &'a Stage, extenders: &Value) -> anyhow::Result<Self> {
        let places = Places::new(&stage.dir);
        fs::create_dir_all(places.api.data_dir()).context("cannot make the API server's directory")?;
        fs::create_dir_all(places.node.data_dir()).context("cannot make the node's directory")?;
        let pki = open_pki(&places.api)?;
        places.write_serving(&pki)?;
        places.write_configurations(extenders)?;
        let theirs = stage.options.programs.apiserver.as_ref();
        let namespace = match theirs {
            Some((server, kubeconfig)) => {
                places.write_theirs(server, kubeconfig)?;
                visit::namespace(&stage.dir)
            }
            None => {
                places.write_kubeconfig(&pki, Role::Apiserver, &own_server())?;
                api::DEFAULT_NAMESPACE.to_owned()
            }
        };
        let api = {
            let _inside = stage.runtime.enter();
            let transport = https(&places.kubeconfig(Role::Apiserver))?;
            Api::new(transport, stage.runtime.handle().clone(), &namespace)
        };
        let (containerd, flags) = (Mutex::default(), BTreeMap::new());
        let mut cluster = Self { stage, places, api, pki, visit: None, containerd, flags };
        if theirs.is_none() {
            cluster.start(Role::Apiserver)?;
        }
        cluster.wait_api()?;
        if theirs.is_some() {
            cluster.visit = Some(Visit::begin(&cluster.api)?);
            stage.journal.note(&format!("it works in the namespace {namespace}"));
        }
        Ok(cluster)
    }

    /// Flags that one of Carrack's own roles gets besides.
    pub fn with_flags(mut self, role: Role, flags: &[&str]) -> Self {
        self.flags.insert(role, flags.iter().map(|flag| (*flag).to_owned()).collect());
        self
    }

    /// Waits until the API server answers.
    ///
    /// # Errors
    /// It does not.
    pub fn wait_api(&self) -> anyhow::Result<()> {
        self.stage.wait("the API server is ready", START_LIMIT_S, || {
            if self.api.is_ready() { Ok(()) } else { Err("/readyz does not say so".to_owned()) }
        })
    }

    /// Starts a role with the credentials of its own.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, role: Role) -> anyhow::Result<()> {
        self.start_against(role, None)
    }

    /// Starts a role that reaches the API server at this address; at the API server's own without one.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_against(&self, role: Role, server: Option<&str>) -> anyhow::Result<()> {
        let programs = &self.stage.options.programs;
        match (&programs.apiserver, server) {
            (None, server) => self.places.write_kubeconfig(&self.pki, role, server.unwrap_or(&own_server()))?,
            (Some(_), None) => {
                let to = self.places.kubeconfig(role);
                fs::copy(self.places.kubeconfig(Role::Apiserver), &to)
                    .with_context(|| format!("cannot write {}", to.display()))?;
            }
            (Some(_), Some(_)) => bail!("this drill stands between a role and Carrack's own API server"),
        }
        let other = match role {
            Role::Kubelet => programs.kubelet.as_ref(),
            Role::Scheduler => programs.scheduler.as_ref(),
            _ => None,
        };
        let mut command = match other {
            Some(program) => {
                let mut command = Command::new(program);
                command.args(self.places.upstream_flags(role));
                command
            }
            None => {
                let program = std::env::current_exe().context("cannot find this program's own file")?;
                let mut command = Command::new(program);
                command.args(self.places.own_flags(role));
                command.args(self.flags.get(&role).into_iter().flatten());
                command
            }
        };
        let log_file = self.places.log(role);
        let log = OpenOptions::new().create(true).append(true).open(&log_file);
        let log = log.with_context(|| format!("cannot write {}", log_file.display()))?;
        let child = command
            // In a group of its own: a Ctrl+C on the terminal is the drill's to answer.
            .process_group(0)
            .env("CARRACK_BOOT_ID_FILE", members::boot_id_file(&self.places.node))
            .env_remove("CARRACK_DATA_DIR")
            .env_remove("KUBECONFIG")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("a descriptor")?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        self.stage.running.add(role, child, log_file);
        let who = other.map_or_else(|| "runs".to_owned(), |program| format!("runs: {}", program.display()));
        self.stage.journal.state(role.name(), &who, Tone::Good);
        Ok(())
    }

    /// A relay between a role and the API server. The role is to be started against it.
    ///
    /// # Errors
    /// It cannot listen.
    pub fn relay(&self, role: Role) -> anyhow::Result<Relay> {
        if self.stage.options.programs.apiserver.is_some() {
            bail!("a relay works in front of Carrack's own API server only");
        }
        self.places.write_kubeconfig(&self.pki, role, &own_server())?;
        self.stage.runtime.block_on(Relay::start(&self.pki, &self.places.kubeconfig(role)))
    }

    /// Kills a role at once, and waits until it is gone.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill_9(&self, role: Role) -> anyhow::Result<()> {
        let Some(mut child) = self.stage.running.take(role) else { bail!("{} does not run", role.name()) };
        child.kill().and_then(|()| child.wait()).with_context(|| format!("cannot kill {}", role.name()))?;
        self.stage.journal.state(role.name(), "killed", Tone::Down);
        Ok(())
    }

    /// Kills all roles that run in one instant, and waits until they are gone. Returns which they were, in the order in which
    /// they can start again.
    ///
    /// # Errors
    /// One of them cannot be killed.
    pub fn kill_9_all(&self) -> anyhow::Result<Vec<Role>> {
        let roles = self.stage.running.roles();
        let taken = |role: Role| self.stage.running.take(role).map(|child| (role, child));
        let mut children: Vec<(Role, Child)> = roles.into_iter().filter_map(taken).collect();
        for (role, child) in &mut children {
            child.kill().with_context(|| format!("cannot kill {}", role.name()))?;
        }
        for (role, child) in &mut children {
            child.wait().with_context(|| format!("cannot wait for {}", role.name()))?;
            self.stage.journal.state(role.name(), "killed", Tone::Down);
        }
        Ok(children.into_iter().map(|(role, _)| role).collect())
    }

    /// Builds images, and loads them into the node's containerd.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn images(&self, images: &[BuiltIn]) -> anyhow::Result<()> {
        for image in images {
            self.stage.does(crate::up::provide(&self.places.node, &self.stage.options.images_dir, *image))?;
        }
        Ok(())
    }

    /// Starts containerd.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_containerd(&self) -> anyhow::Result<()> {
        let node = &self.places.node;
        power::boot_id(node).context("the node has no boot's id")?;
        let facts = match host::probe(node) {
            Ok(facts) => facts,
            Err(problems) => return crate::up::refuse(&problems),
        };
        let settings = NodeSettings {
            pod_cidr: POD_CIDR.to_owned(),
            sandbox_image: carrack_images::reference("pause"),
            masquerade: true,
            networks: None,
        };
        let containerd = self.stage.runtime.block_on(Containerd::start(node, &facts, &settings))?;
        let stop = CancellationToken::new();
        let token = stop.clone();
        self.stage.runtime.spawn(async move {
            if let Err(error) = containerd.supervise(token).await {
                tracing::error!(%error, "containerd is not watched any more");
            }
        });
        *self.containerd.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop);
        self.stage.journal.state("containerd", "runs", Tone::Good);
        Ok(())
    }

    /// Cuts the node's power: all that runs there ends at once, and what a machine forgets without power is gone. The next
    /// start is in another boot.
    ///
    /// # Errors
    /// Something survives it.
    pub fn cut_power(&self) -> anyhow::Result<()> {
        if let Some(stop) = self.containerd.lock().unwrap_or_else(PoisonError::into_inner).take() {
            stop.cancel();
        }
        for role in self.stage.running.roles().into_iter().filter(|role| role.is_of_node()) {
            self.kill_9(role)?;
        }
        power::cut(&self.places.node).context("something survives the power cut")?;
        self.stage.journal.state("containerd", "without power", Tone::Down);
        power::switch_on(&self.places.node).context("the node stays switched off")
    }

    /// Sees to KubeVirt's kinds.
    ///
    /// # Errors
    /// They cannot be defined, or somebody else's would have to be changed for it.
    pub fn install_kubevirt(&self) -> anyhow::Result<()> {
        let (runtime, transport) = (&self.stage.runtime, &**self.api.transport());
        if self.visit.is_some()
            && let Some(name) = runtime.block_on(virt_controller::other_definition(transport))?
        {
            bail!(
                "the API server has {name} as another version of KubeVirt defines it, and a drill changes nothing there"
            );
        }
        runtime.block_on(virt_controller::install(transport))
    }

    /// Starts the control plane, with KubeVirt's kinds.
    ///
    /// # Errors
    /// Something does not start.
    pub fn start_control_plane(&self) -> anyhow::Result<()> {
        self.install_kubevirt()?;
        for role in [Role::Controllers, Role::Scheduler, Role::VirtController] {
            self.start(role)?;
        }
        Ok(())
    }

    /// Waits until the node has said that it is ready, after this revision of it.
    ///
    /// # Errors
    /// It does not.
    pub fn wait_node(&self, boot_id: Option<&str>) -> anyhow::Result<()> {
        self.stage.wait("the node is ready", START_LIMIT_S, || {
            let node = self.node()?;
            let boot = api::text(&node, "/status/nodeInfo/bootID");
            if !api::is_true(&node, "Ready") {
                return Err("it does not say so".to_owned());
            }
            if boot_id == Some(boot) { Err("it speaks of its boot before".to_owned()) } else { Ok(()) }
        })
    }

    /// The Node.
    ///
    /// # Errors
    /// It cannot be read, or is not there.
    pub fn node(&self) -> Result<Value, String> {
        let node = self.api.get(&format!("{}/{NODE}", api::NODES)).map_err(|error| error.to_string())?;
        node.ok_or_else(|| "there is no Node".to_owned())
    }

    /// Waits until the node offers so many of a resource.
    ///
    /// # Errors
    /// It does not.
    pub fn wait_offer(&self, resource: &str, amount: &str) -> anyhow::Result<()> {
        self.stage
            .wait(&format!("the node offers {amount} of {resource}"), START_LIMIT_S, || self.offers(resource, amount))
    }

    /// Whether the node offers so many of a resource.
    ///
    /// # Errors
    /// What it offers instead.
    pub fn offers(&self, resource: &str, amount: &str) -> Result<(), String> {
        let offered = self.node()?["status"]["allocatable"][resource].clone();
        if offered == json!(amount) { Ok(()) } else { Err(format!("it offers {offered}")) }
    }

    /// Whether the kubelet has written the Node's status since then.
    ///
    /// # Errors
    /// When it has written it last.
    pub fn told_since(&self, unix_s: i64) -> Result<(), String> {
        let told = api::told_at_unix_s(&self.node()?);
        if told.is_some_and(|at| at >= unix_s) { Ok(()) } else { Err(format!("its status is of {told:?}")) }
    }

    /// Asks for an object.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn create(&self, collection: &str, object: &Value) -> anyhow::Result<()> {
        self.api.create(collection, object).with_context(|| format!("cannot create {}", api::name(object)))
    }

    /// A pod that is ready, as it is then.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn wait_pod(&self, name: &str) -> anyhow::Result<Value> {
        self.stage.wait(&format!("the pod {name} is ready"), 90, || self.ready_pod(name))
    }

    /// A pod, if it is ready.
    ///
    /// # Errors
    /// What it is instead.
    pub fn ready_pod(&self, name: &str) -> Result<Value, String> {
        let found = self.api.get(&format!("{}/{name}", api::PODS)).map_err(|error| error.to_string())?;
        let pod = found.ok_or("it is not there")?;
        let going = !api::text(&pod, "/metadata/deletionTimestamp").is_empty();
        if api::is_true(&pod, "Ready") && !going { Ok(pod) } else { Err(super::looks::pod_state(&pod).0) }
    }
}

impl Cluster<'_> {
    /// Takes back from an API server that is somebody else's what the drill brought, while who has to do with it still runs.
    /// Returns what could not be taken back.
    fn leave(&self, visit: &Visit) -> Vec<String> {
        self.stage.step("taking back what the API server was asked for");
        let mut left = Vec::new();
        let mut check = |outcome: anyhow::Result<()>| left.extend(outcome.err().map(|error| format!("{error:#}")));
        // Without them no namespace is ever gone.
        if !self.stage.running.runs(Role::Controllers) {
            check(self.start(Role::Controllers));
        }
        check(visit.empty());
        // Others would register their nodes again.
        self.end_roles(|role| role != Role::Controllers);
        check(visit.take_kinds());
        self.end_roles(|_| true);
        check(visit.take_nodes());
        left
    }

    /// Kills the roles for which this holds.
    fn end_roles(&self, which: impl Fn(Role) -> bool) {
        for role in self.stage.running.roles().into_iter().filter(|role| which(*role)) {
            let Some(mut child) = self.stage.running.take(role) else { continue };
            if let Err(error) = child.kill().and_then(|()| child.wait()) {
                tracing::warn!(%error, role = role.name(), "a role is left");
            }
        }
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if let Some(visit) = self.visit.take() {
            self.stage.leaves(self.leave(&visit));
        }
        if let Some(stop) = self.containerd.lock().unwrap_or_else(PoisonError::into_inner).take() {
            stop.cancel();
        }
        self.end_roles(|_| true);
    }
}

fn own_server() -> String {
    format!("https://127.0.0.1:{API_PORT}")
}
