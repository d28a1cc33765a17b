//! The nodes of a cluster with several on this machine: their networks, their agents' processes, and keeping those alive.
//!
//! An agent outlives this process; the next one starts it anew, so that it is told what holds now. Guests and containers
//! do not notice.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, Pki, Sans, Server};
use carrack_noderuntime::members::{self, Member, Members};
use carrack_noderuntime::process::ProcessId;
use carrack_noderuntime::{Layout, containerd, host};
use tokio_util::sync::CancellationToken;

use crate::cli::up::UpArgs;
use crate::kubeconfig::CLUSTER;
use crate::node;
use crate::node::agent::{Credentials, Told};
use crate::roles::{apiserver, virt_controller};

/// How long an agent gets to end before it is killed. Nothing that it drives ends with it.
const AGENT_END: Duration = Duration::from_secs(10);
/// Pauses between starts of an agent that ends again and again.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often a node that is switched off is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// An agent's log is put aside at a start when it has grown above this.
const LOG_LIMIT_BYTES: u64 = 64 << 20;

/// The nodes that the arguments ask for; none when it is the one in this process.
pub fn plan(args: &UpArgs, layout: &Layout) -> anyhow::Result<Option<Members>> {
    let there = members::found(layout).context("cannot look for the nodes of this cluster")?;
    let several = !there.is_empty() || args.nodes.is_some_and(|count| count > 1);
    if several && args.gpus.is_some() {
        anyhow::bail!("--gpus is for a cluster of one node; on others run carrack gpu-plugin");
    }
    if several && args.guard.watchdog.is_some() {
        anyhow::bail!(
            "--watchdog resets the whole machine, and with it all of its nodes; it is for a cluster of one node"
        );
    }
    if several && !args.bind_address.is_unspecified() {
        anyhow::bail!("--bind-address is for a cluster of one node; others reach the API server at several addresses");
    }
    match args.nodes {
        None | Some(1) if there.is_empty() => Ok(None),
        // What was asked for first holds until the cluster is taken down for good.
        None => {
            let count = u8::try_from(there.len()).context("too many nodes")?;
            Ok(Some(Members::new(layout, count, &args.pod_cidr)?))
        }
        Some(count) if usize::from(count) < there.len() => {
            anyhow::bail!(
                "the cluster has {} nodes; to have fewer, take it down with carrack down --purge",
                there.len()
            )
        }
        Some(_) if there.is_empty() && layout.containerd_dir().exists() => {
            anyhow::bail!(
                "the cluster has its one node in this process; to have several, take it down with carrack down --purge"
            )
        }
        Some(count) => Ok(Some(Members::new(layout, count, &args.pod_cidr)?)),
    }
}

/// Makes ready what all nodes need before their agents start: networks, certificates, what they are told.
pub fn prepare(
    args: &UpArgs,
    cluster: &Layout,
    members: &Members,
    pki: &Pki,
    labels: &BTreeMap<String, String>,
) -> anyhow::Result<()> {
    for member in members.all() {
        if let Err(problems) = host::probe(&member.layout) {
            return super::refuse(&problems);
        }
    }
    members::set_up(members).context("the nodes have no network")?;
    for member in members.all() {
        let told = tell(args, cluster, members, member, pki, labels)?;
        let path = member.agent_file();
        let text = serde_json::to_vec_pretty(&told).context("what an agent is told is no JSON")?;
        write_private(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn tell(
    args: &UpArgs,
    cluster: &Layout,
    members: &Members,
    member: &Member,
    pki: &Pki,
    labels: &BTreeMap<String, String>,
) -> anyhow::Result<Told> {
    let now = apiserver::now_unix_s();
    let sans = Sans::loopback().with_name(&member.name).with_address(IpAddr::V4(member.address));
    let server = format!("https://{}:{}", members.gateway(), args.https_port);
    let kubeconfig = |identity: Identity, file: &str| -> anyhow::Result<PathBuf> {
        let client = pki.client(&identity, now)?;
        let kubeconfig = member.layout.data_dir().join(file);
        Kubeconfig::for_certificate(CLUSTER, &identity.user(), &server, pki.ca_pem(), &client)
            .write(&kubeconfig)
            .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
        Ok(kubeconfig)
    };
    let credentials = |identity: Identity, serving: Server, file: &str| -> anyhow::Result<Credentials> {
        let kubeconfig = kubeconfig(identity, file)?;
        let pair = pki.server(&serving, &sans, now)?;
        Ok(Credentials { kubeconfig, cert_pem: pair.certificate, key_pem: pair.key.expose().to_owned() })
    };
    let node = || member.name.clone();
    Ok(Told {
        name: node(),
        address: member.address,
        pod_cidr: member.pod_cidr.clone(),
        api_server: (members.gateway().to_string(), args.https_port),
        labels: labels.clone(),
        kubelet_port: args.kubelet_port,
        virt_handler_port: args.virt_handler_port,
        kubelet_config: args.kubelet_config.as_deref().map(std::path::absolute).transpose()?,
        resource_wait_s: args.resource_wait,
        images_dir: std::path::absolute(args.images_dir.path(cluster))?,
        keep_alive_dir: virt_controller::keep_alive_dir(&cluster.virt_dir()),
        ca_pem: pki.ca_pem().to_owned(),
        kubelet: credentials(Identity::Node { node: node() }, Server::Kubelet { node: node() }, "kubelet.yaml")?,
        virt_handler: credentials(
            Identity::VirtHandler { node: node() },
            Server::VirtHandler { node: node() },
            "virt-handler.yaml",
        )?,
        local_storage: kubeconfig(Identity::LocalStorage { node: node() }, "local-storage.yaml")?,
        storage_faults: args.storage_faults.as_deref().map(std::path::absolute).transpose()?,
        log_level: args.log_level.clone(),
    })
}

/// Keeps a node's agent running until `stop`, unless the node is switched off. The agent is then asked to end, and
/// leaves its containers and guests running.
pub async fn supervise(member: Layout, stop: CancellationToken) {
    let mut pause = FIRST_PAUSE;
    loop {
        match once(&member, &stop).await {
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) => tracing::error!(dir = %member.data_dir().display(), "a node's agent: {error:#}"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
        }
    }
}

/// One life of an agent.
async fn once(member: &Layout, stop: &CancellationToken) -> anyhow::Result<()> {
    end(member).await?;
    while members::off_file(member).exists() {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
    let log_file = member.log_file();
    fs::create_dir_all(member.logs_dir()).with_context(|| format!("cannot write {}", log_file.display()))?;
    containerd::rotate(&log_file, LOG_LIMIT_BYTES)?;
    let log = OpenOptions::new().create(true).append(true).open(&log_file)?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = tokio::process::Command::from(node::inside(member)?);
    command.arg("setsid").arg(program).args(["node", "agent", "--dir"]).arg(member.data_dir());
    let mut child = command
        .env("MALLOC_ARENA_MAX", "2")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(false)
        .spawn()
        .context("it cannot be started")?;
    tokio::select! {
        status = child.wait() => {
            if members::off_file(member).exists() {
                tracing::info!(dir = %member.data_dir().display(), "a node is switched off");
                return Ok(());
            }
            anyhow::bail!("it ended ({}); its log: {}", status?, log_file.display())
        }
        () = stop.cancelled() => {
            let ended = end(member).await;
            // It is this process's child: whoever waits for its end must not find a zombie.
            drop(tokio::time::timeout(AGENT_END, child.wait()).await);
            ended
        }
    }
}

/// Asks the agent that runs to end, and waits for it.
async fn end(member: &Layout) -> anyhow::Result<()> {
    let Some(agent) = ProcessId::from_pidfile(&member.pidfile()) else { return Ok(()) };
    tokio::task::spawn_blocking(move || agent.terminate(AGENT_END)).await?.context("the agent before it does not end")
}

/// Writes a file that nobody else may read, whole or not at all.
fn write_private(path: &Path, text: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let part: PathBuf = path.with_extension("part");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(text)?;
    fs::rename(part, path)
}
