//! A cluster of one node whose roles are processes of their own, each of which can be killed and started by itself.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    running: Mutex<BTreeMap<Role, Child>>,
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
        let kubeconfig = match &stage.options.programs.apiserver {
            Some((_, kubeconfig)) => kubeconfig.clone(),
            None => {
                places.write_kubeconfig(&pki, Role::Apiserver, &own_server())?;
                places.kubeconfig(Role::Apiserver)
            }
        };
        let api = {
            let _inside = stage.runtime.enter();
            Api::new(https(&kubeconfig)?, stage.runtime.handle().clone())
        };
        let cluster = Self {
            stage,
            places,
            api,
            pki,
            running: Mutex::default(),
            containerd: Mutex::default(),
            flags: BTreeMap::new(),
        };
        if stage.options.programs.apiserver.is_none() {
            cluster.start(Role::Apiserver)?;
        }
        cluster.wait_api()?;
        Ok(cluster)
    }

    /// Flags that one of Carrack's own roles gets besides.
    pub fn with_flags(mut self, role: Role, flags: &[&str]) -> Self {
        self.flags.insert(role, flags.iter().map(|flag| (*flag).to_owned()).collect());
        self
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<Role, Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the API server answers.
    ///
    /// # Errors
    /// It does not.
    pub fn wait_api(&self) -> anyhow::Result<()> {
        self.stage.wait("the API server is ready", START_LIMIT_S, || {
            self.fallen(Role::Apiserver)?;
            if self.api.is_ready() { Ok(()) } else { Err("/readyz does not say so".to_owned()) }
        })
    }

    /// Says how a role ended that was to run.
    fn fallen(&self, role: Role) -> Result<(), String> {
        let mut running = self.running();
        let ended = running.get_mut(&role).and_then(|child| child.try_wait().ok().flatten());
        match ended {
            None => Ok(()),
            Some(status) => Err(format!("{} ended ({status}): {}", role.name(), self.last_words(role))),
        }
    }

    fn last_words(&self, role: Role) -> String {
        let text = fs::read_to_string(self.places.log(role)).unwrap_or_default();
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("(it said nothing)").to_owned()
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
            (Some((_, kubeconfig)), None) => {
                let to = self.places.kubeconfig(role);
                fs::copy(kubeconfig, &to).with_context(|| format!("cannot write {}", to.display()))?;
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
        self.running().insert(role, child);
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
        let Some(mut child) = self.running().remove(&role) else { bail!("{} does not run", role.name()) };
        child.kill().and_then(|()| child.wait()).with_context(|| format!("cannot kill {}", role.name()))?;
        self.stage.journal.state(role.name(), "killed", Tone::Down);
        Ok(())
    }

    /// Whether a role is still the process that was started.
    ///
    /// # Errors
    /// It ended.
    pub fn runs(&self, role: Role) -> Result<(), String> {
        self.fallen(role)
    }

    /// Builds images, and loads them into the node's containerd.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn images(&self, images: &[BuiltIn]) -> anyhow::Result<()> {
        for image in images {
            self.stage.going()?;
            let provided = crate::up::provide(&self.places.node, &self.stage.options.images_dir, *image);
            self.stage.runtime.block_on(provided)?;
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
        let of_node: Vec<Role> = self.running().keys().copied().filter(|role| role.is_of_node()).collect();
        for role in of_node {
            self.kill_9(role)?;
        }
        power::cut(&self.places.node).context("something survives the power cut")?;
        self.stage.journal.state("containerd", "without power", Tone::Down);
        power::switch_on(&self.places.node).context("the node stays switched off")
    }

    /// Sees to KubeVirt's kinds.
    ///
    /// # Errors
    /// They cannot be defined.
    pub fn install_kubevirt(&self) -> anyhow::Result<()> {
        self.stage.runtime.block_on(virt_controller::install(&**self.api.transport()))
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
            self.fallen(Role::Kubelet)?;
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
        self.stage.wait(&format!("the node offers {amount} of {resource}"), START_LIMIT_S, || {
            let offered = self.node()?["status"]["allocatable"][resource].clone();
            if offered == json!(amount) { Ok(()) } else { Err(format!("it offers {offered}")) }
        })
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

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if let Some(stop) = self.containerd.lock().unwrap_or_else(PoisonError::into_inner).take() {
            stop.cancel();
        }
        for (role, mut child) in std::mem::take(&mut *self.running()) {
            if let Err(error) = child.kill().and_then(|()| child.wait()) {
                tracing::warn!(%error, role = role.name(), "a role is left");
            }
        }
    }
}

fn own_server() -> String {
    format!("https://127.0.0.1:{API_PORT}")
}
