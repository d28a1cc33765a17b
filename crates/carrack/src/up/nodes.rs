//! The nodes of a cluster with several on this machine: their networks, their agents' processes, and keeping those alive.
//!
//! An agent outlives this process; the next one starts it anew, so that it is told what holds now. Guests and containers
//! do not notice.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, Pki, Sans, Server, write_private};
use carrack_noderuntime::members::{self, Member, Members};
use carrack_noderuntime::process::ProcessId;
use carrack_noderuntime::{Layout, host, limits, networks};
use tokio_util::sync::CancellationToken;

use super::tasks::Pauses;
use crate::cli::up::UpArgs;
use crate::kubeconfig::CLUSTER;
use crate::node::agent::{Credentials, Told};
use crate::roles::{apiserver, virt_controller};
use crate::{log_file, network, node};

/// How long an agent gets to end before it is killed. Nothing that it drives ends with it.
const AGENT_END: Duration = Duration::from_secs(10);
/// The longest pause between starts of an agent that ends again and again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often a node that is switched off is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The kubeconfigs of an agent's roles, in its node's directory.
const KUBELET: &str = "kubelet.yaml";
const VIRT_HANDLER: &str = "virt-handler.yaml";
const LOCAL_STORAGE: &str = "local-storage.yaml";

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
    let members = match args.nodes {
        None | Some(1) if there.is_empty() => {
            network::refuse_narrow(&args.pod_cidr, networks::configured_pod_cidr(layout).as_deref())?;
            network::refuse_links([args.pod_cidr.as_str()], Some(layout.bridge().as_str()))?;
            return Ok(None);
        }
        // What was asked for first holds until the cluster is taken down for good.
        None => {
            let count = u8::try_from(there.len()).context("too many nodes")?;
            Members::new(layout, count, &args.pod_cidr)?
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
        Some(count) => {
            let members = Members::new(layout, count, &args.pod_cidr)?;
            // One that has its nodes goes on as it is.
            if there.is_empty() {
                refuse_overlaps(&members, &args.service_cidr)?;
            }
            members
        }
    };
    refuse_second(&members)?;
    let mut new = Vec::new();
    for member in members.all() {
        // A node that has its network goes on with it, whatever link has come since.
        if members::has_namespace(&member.layout).context("cannot look for the nodes' networks")? {
            refuse_another(member)?;
        } else {
            network::refuse_narrow(&member.pod_cidr, networks::configured_pod_cidr(&member.layout).as_deref())?;
            new.push(member.pod_cidr.as_str());
        }
    }
    network::refuse_links(new, None)?;
    Ok(Some(members))
}

/// Refuses another range of pods than that with which the node's network was made: none of its pods would start.
fn refuse_another(member: &Member) -> anyhow::Result<()> {
    let made_with = networks::configured_pod_cidr(&member.layout).filter(|range| *range != member.pod_cidr);
    let Some(range) = made_with else { return Ok(()) };
    anyhow::bail!(
        "the pods of {} have addresses of {range}, and none would start with others: leave --pod-cidr as it was, or take the \
         cluster down first (carrack down), which keeps its objects",
        member.name
    )
}

/// Refuses a cluster beside another one with several nodes: all have the same network for their nodes, and those of the
/// other would not be reached any more.
fn refuse_second(members: &Members) -> anyhow::Result<()> {
    let gateway = members.gateway();
    let listed = network::list_addresses(&["to", &gateway.to_string()])?;
    match other_link(&listed, &members.bridge()) {
        Some(other) => anyhow::bail!(
            "the link {other} has the address {gateway} of the nodes' network: only one cluster with several nodes can \
             run on a machine; take the other one down first"
        ),
        None => Ok(()),
    }
}

/// The link that is not ours of those that `ip -oneline address` lists.
fn other_link(listed: &str, ours: &str) -> Option<String> {
    listed.lines().filter_map(network::link).find(|link| *link != ours).map(str::to_owned)
}

/// Refuses ranges of pods of which one, behind the first, is that of the services or of the nodes themselves.
fn refuse_overlaps(members: &Members, service_cidr: &str) -> anyhow::Result<()> {
    let nodes = format!("{}/24", members.gateway());
    let what = || "the nodes' ranges follow --pod-cidr, each as large as that; the nodes have one of their own";
    network::refuse_overlap(service_cidr, &nodes).with_context(what)?;
    for member in members.all() {
        network::refuse_overlap(&member.pod_cidr, service_cidr).with_context(what)?;
        network::refuse_overlap(&member.pod_cidr, &nodes).with_context(what)?;
    }
    Ok(())
}

/// The agents of all nodes: what each is told follows from this.
pub struct Agents {
    /// What was asked for.
    pub args: UpArgs,
    /// Where the cluster lives.
    pub cluster: Layout,
    /// The nodes.
    pub members: Members,
    /// Labels of each node.
    pub labels: BTreeMap<String, String>,
}

/// What an agent reads at its start, as far as it is there.
fn credentials(member: &Member) -> Vec<Option<Vec<u8>>> {
    let kubeconfigs = [KUBELET, VIRT_HANDLER, LOCAL_STORAGE].map(|file| member.layout.data_dir().join(file));
    kubeconfigs.into_iter().chain([member.agent_file()]).map(|file| fs::read(file).ok()).collect()
}

impl Agents {
    /// Makes ready what all nodes need before their agents start: networks, certificates, what they are told.
    pub fn prepare(&self, pki: &Pki) -> anyhow::Result<()> {
        for member in self.members.all() {
            if let Err(problems) = host::probe(&member.layout) {
                return super::refuse(&problems);
            }
        }
        members::set_up(&self.members).context("the nodes have no network")?;
        for member in self.members.all() {
            self.instruct(member, pki, apiserver::now_unix_s())?;
        }
        Ok(())
    }

    /// Tells each agent what holds now, and has those begin anew whose certificates were issued again: an agent reads
    /// them at its start. Guests and containers do not notice.
    pub fn renew(&self, pki: &Pki, now_unix_s: i64) -> anyhow::Result<()> {
        for member in self.members.all() {
            let before = credentials(member);
            let mut outcome = self.instruct(member, pki, now_unix_s);
            // Also what was written before something failed is for the agent to read.
            if credentials(member) != before
                && let Some(agent) = ProcessId::from_pidfile(&member.layout.pidfile())
            {
                tracing::info!(node = member.name, "its certificates were renewed: its agent begins anew");
                let ended = agent.terminate(AGENT_END);
                outcome = outcome.and(ended.with_context(|| format!("the agent of {} does not end", member.name)));
            }
            if let Err(error) = outcome {
                tracing::error!(node = member.name, "its certificates cannot be renewed: {error:#}");
            }
        }
        Ok(())
    }

    /// Writes down what an agent is told.
    fn instruct(&self, member: &Member, pki: &Pki, now_unix_s: i64) -> anyhow::Result<()> {
        let told = self.tell(member, pki, now_unix_s)?;
        let path = member.agent_file();
        let text = serde_json::to_string_pretty(&told).context("what an agent is told is no JSON")?;
        write_private(&path, &text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn tell(&self, member: &Member, pki: &Pki, now: i64) -> anyhow::Result<Told> {
        let Self { args, cluster, members, labels } = self;
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
            kubelet: credentials(Identity::Node { node: node() }, Server::Kubelet { node: node() }, KUBELET)?,
            virt_handler: credentials(
                Identity::VirtHandler { node: node() },
                Server::VirtHandler { node: node() },
                VIRT_HANDLER,
            )?,
            local_storage: kubeconfig(Identity::LocalStorage { node: node() }, LOCAL_STORAGE)?,
            storage_faults: args.storage_faults.as_deref().map(std::path::absolute).transpose()?,
            log_level: args.log_level.clone(),
        })
    }
}

/// Keeps a node's agent running until `stop`, unless the node is switched off. The agent is then asked to end, and
/// leaves its containers and guests running.
pub async fn supervise(member: Layout, stop: CancellationToken) {
    let mut pauses = Pauses::up_to(LONGEST_PAUSE);
    loop {
        pauses.begins();
        if let Err(error) = once(&member, &stop).await {
            tracing::error!(dir = %member.data_dir().display(), "a node's agent: {error:#}");
        } else {
            // It was switched off, or is to end.
            pauses = Pauses::up_to(LONGEST_PAUSE);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pauses.ended()) => {}
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
    let log_path = member.log_file();
    let log = log_file::open(&log_path)?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = tokio::process::Command::from(node::inside(member)?);
    command.args(limits::as_given()).arg("setsid").arg(program).args(["node", "agent", "--dir"]).arg(member.data_dir());
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
            anyhow::bail!("it ended ({}); its log: {}", status?, log_path.display())
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn ranges_of_pods_are_nobody_elses() {
        let check = |pods: &str, count: u8, services: &str, good: bool| {
            let members = Members::new(&Layout::new("/d"), count, pods).expect("nodes");
            assert_eq!(refuse_overlaps(&members, services).is_ok(), good, "{pods} {count} {services}");
        };
        check("10.42.0.0/24", 3, "10.43.0.0/16", true);
        check("10.42.0.0/24", 100, "10.43.0.0/16", true);
        check("10.42.0.0/16", 1, "10.43.0.0/16", true);
        check("10.42.0.0/16", 2, "10.43.0.0/16", false);
        check("10.43.255.0/24", 2, "10.96.0.0/16", false);
        check("10.42.0.0/24", 2, "10.44.0.0/16", false);
    }

    #[test]
    fn a_second_network_for_nodes_is_seen() {
        let line =
            |link: &str| format!("5: {link}    inet 10.44.0.1/24 scope global {link}\\       valid_lft forever\n");
        assert_eq!(other_link("", "crn-1"), None);
        assert_eq!(other_link(&line("crn-1"), "crn-1"), None);
        assert_eq!(other_link(&(line("crn-1") + &line("crn-2")), "crn-1").as_deref(), Some("crn-2"));
        assert_eq!(other_link(&line("eth0@if7"), "crn-1").as_deref(), Some("eth0"));
    }

    fn arguments(words: &[&str]) -> UpArgs {
        let words = [&["carrack", "up"][..], words].concat();
        let Command::Up(args) = Cli::try_parse_from(words).expect("arguments").command else {
            panic!("another command")
        };
        *args
    }

    #[test]
    fn the_range_of_the_one_node_is_no_links() {
        // Every machine with a loopback has a link in this range; where there is none, or no `ip`, nothing can be seen.
        if !network::list_addresses(&[]).is_ok_and(|listed| listed.contains("127.0.0.1/8")) {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let plan = |words: &[&str]| plan(&arguments(words), &Layout::new(dir.path())).map_err(|why| why.to_string());
        let check = |words: &[&str], expected: &str| match plan(words) {
            Err(why) => assert!(why.contains(expected) && !expected.is_empty(), "{words:?}: {why}"),
            Ok(members) => assert!(members.is_none() && expected.is_empty(), "{words:?}"),
        };
        check(&["--pod-cidr", "203.0.113.0/24"], "");
        check(&["--pod-cidr", "127.0.0.0/8"], "the link lo");
        check(&["--pod-cidr", "127.0.0.0/8", "--nodes", "1"], "the link lo");
    }

    #[test]
    fn agents_are_told_when_their_certificates_were_issued_again() {
        const DAY_S: i64 = 24 * 3600;
        let dir = tempfile::tempdir().expect("a directory");
        let (cluster, begins) = (Layout::new(dir.path()), 1_800_000_000);
        let members = Members::new(&cluster, 1, "10.42.0.0/24").expect("a node");
        let pki = Pki::open_or_create(&cluster.pki_dir(), begins).expect("made");
        let agents = Agents { args: arguments(&[]), cluster, members, labels: BTreeMap::new() };
        let member = &agents.members.all()[0];
        fs::create_dir_all(member.layout.data_dir()).expect("made");
        let mut before = credentials(member);
        assert!(before.iter().all(Option::is_none));
        for (day, changes) in [(0, true), (200, false), (300, true), (301, false)] {
            agents.renew(&pki, begins + day * DAY_S).expect("told");
            let now = credentials(member);
            assert!(now.iter().all(Option::is_some), "day {day}");
            assert_eq!(now.iter().zip(&before).all(|(new, old)| new != old), changes, "day {day}");
            assert_eq!(now != before, changes, "day {day}");
            before = now;
        }
    }
}
