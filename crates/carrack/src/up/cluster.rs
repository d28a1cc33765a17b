#![expect(clippy::disallowed_methods, reason = "shell: assembles the process and measures its start")]
//! The cluster's process: what starts when, and what ends in which order.
//!
//! ```text
//!   lock ─► certificates, store, socket ─► API server ─► scheduler, controllers, virt-controller
//!      └──► containerd ─► pause image ─► kubelet, local-storage, virt-handler ─► virt-launcher image ─► node ready
//!
//!   the end:  roles, then the API server that they talk to; containerd and all containers stay
//! ```
//!
//! Roles talk to the API server in the process, each as its own user, through the same authorization as over HTTPS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_apiserver::serve::{NodeProxy, TlsNodeProxy};
use carrack_apiserver::{ApiServer, InProcess};
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, Pki, Sans, Server};
use carrack_auth::tls::{ClientCa, Reloadable};
use carrack_auth::{Caller, caller};
use carrack_engine::{ApiRequest, ContentType, Method, Transport};
use carrack_noderuntime::members::Members;
use carrack_noderuntime::process::ProcessId;
use carrack_noderuntime::{Containerd, FurtherNetworks, HostFacts, Layout, NodeSettings, host, rules};
use carrack_types::well_known::kubernetes::CONTROL_PLANE_LABEL;
use carrack_types::well_known::kubevirt::SCHEDULABLE_LABEL;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::hold::{Taken, take};
use super::report::Report;
use super::tasks::keep;
use super::wishes::Wishes;
use super::{hold, name, nodes, wishes};
use crate::cli::BuiltIn;
use crate::cli::up::UpArgs;
use crate::down::UP_GRACE;
use crate::kubeconfig::CLUSTER;
use crate::roles::diagnostics::Listen;
use crate::roles::renewal::{self, Renewal};
use crate::roles::{
    self, apiserver, gpu_extender, gpu_plugin, kubelet, local_storage, networks, virt_controller, virt_handler,
};
use crate::{image, log_file, network};

/// How long roles may take to end.
const ROLES_END: Duration = Duration::from_secs(5);
/// The API server, as measures of the requests to it name it: they go over no socket.
const IN_PROCESS: &str = "in-process";

/// What this process is told and finds out about its machine.
struct Machine {
    layout: Layout,
    facts: HostFacts,
    node_name: String,
    node_ip: IpAddr,
    wishes: Wishes,
    gpu_extender: Option<SocketAddr>,
    /// Where the scheduler tells its metrics.
    scheduler_port: Option<SocketAddr>,
    /// Where the controllers do.
    controllers_port: Option<SocketAddr>,
    /// Where virt-controller does.
    virt_controller_port: Option<SocketAddr>,
    /// The nodes, when they are several with agents of their own.
    members: Option<Members>,
    /// The way to the nodes' agents, for the role that asks them for something.
    agents: Option<Arc<dyn NodeProxy>>,
}

/// Runs the cluster until `stop`.
pub async fn run(args: &UpArgs, report: Report, stop: CancellationToken) -> anyhow::Result<()> {
    let began = Instant::now();
    network::refuse_overlap(&args.pod_cidr, &args.service_cidr)?;
    let layout = args.data_dir.layout()?;
    let node_name = name::choose(&layout, args.node_name.as_deref())?;
    let wishes = wishes::read(args, &node_name)?;
    let facts = match host::probe(&layout) {
        Ok(facts) => facts,
        Err(problems) => return super::refuse(&problems),
    };
    let node_ip = network::node_address(args.node_ip, args.bind_address)?;
    network::refuse_own(&args.pod_cidr, node_ip)?;
    if args.replace {
        // What is wrong with flags and files is found while the other one still works.
        nodes::plan(args, &layout)?;
        args.store.choice()?;
        args.access.check(apiserver::ISSUER)?;
        end_running(&layout, &report, &stop).await?;
    }
    let _lock = match take(&layout, &stop, &|text: &str| report.step(text)).await? {
        Taken::Held(lock) => lock,
        Taken::Stopped => return Ok(()),
        Taken::Runs(text) => {
            if !args.replace {
                report.runs(&text);
            }
            bail!(text);
        }
    };
    if let Some(listen) = args.gpu_extender {
        refuse_taken(listen, "--gpu-extender")?;
    }
    let listening = |port: u16| (port != 0).then(|| SocketAddr::new(args.bind_address, port));
    let scheduler_port = listening(args.scheduler_port);
    let controllers_port = listening(args.controllers_port);
    let virt_controller_port = listening(args.virt_controller_port);
    let gpu_extender = args.gpu_extender;
    let members = nodes::plan(args, &layout)?;
    if members.is_none() {
        name::keep(&layout, &node_name)?;
    }
    let mut machine = Machine {
        layout,
        facts,
        node_name,
        node_ip,
        wishes,
        gpu_extender,
        scheduler_port,
        controllers_port,
        virt_controller_port,
        members,
        agents: None,
    };

    let mut ports = Vec::new();
    if machine.members.is_none() {
        ports.extend([(args.kubelet_port, "--kubelet-port"), (args.virt_handler_port, "--virt-handler-port")]);
    }
    ports.extend(scheduler_port.map(|address| (address.port(), "--scheduler-port")));
    ports.extend(controllers_port.map(|address| (address.port(), "--controllers-port")));
    ports.extend(virt_controller_port.map(|address| (address.port(), "--virt-controller-port")));
    let own = [Some((args.https_port, "--https-port")), gpu_extender.map(|listen| (listen.port(), "--gpu-extender"))];
    wishes::refuse_twice(&own.into_iter().flatten().chain(ports.iter().copied()).collect::<Vec<_>>())?;
    for (port, flag) in ports {
        refuse_taken(SocketAddr::new(args.bind_address, port), flag)?;
    }
    report.step("starting the API server");
    let pki = apiserver::open_pki(&machine.layout)?;
    let endpoint = apiserver::Endpoint {
        bind: SocketAddr::new(args.bind_address, args.https_port),
        service_range: network::range(&args.service_cidr)?,
        addresses: std::iter::once(node_ip)
            .chain(machine.members.as_ref().map(|members| IpAddr::V4(members.gateway())))
            .collect(),
        // The host's name, too, where the node has another. One that no node could have is no name for a certificate.
        names: [
            vec![machine.node_name.clone()],
            roles::node_name(None).ok().into_iter().collect(),
            args.tls_san.clone(),
        ]
        .concat(),
    };
    let mut api = apiserver::Role::open(&machine.layout, &pki, &endpoint, &args.store, &args.access).await?;
    let server = api.server.clone();
    machine.agents = Some(Arc::<TlsNodeProxy>::clone(&api.nodes));
    for path in [Some(machine.layout.kubeconfig()), args.write_kubeconfig.clone()].into_iter().flatten() {
        api.write_kubeconfig(&endpoint, &pki, &path)?;
    }

    let (roles_stop, api_stop) = (stop.child_token(), CancellationToken::new());
    let mut serving = tokio::spawn(api.run(api_stop.clone()));
    let mut tasks = JoinSet::new();
    tasks.spawn(log_file::keep(machine.layout.clone(), roles_stop.clone()));

    let node = async {
        match &machine.members {
            None => start_node(args, &machine, &server, &pki, &mut tasks, &roles_stop, &report, began).await,
            Some(members) => {
                let start = Start { args, machine: &machine, server: &server, pki: &pki, report: &report, began };
                start.nodes(members, &mut tasks, &roles_stop).await
            }
        }
    };
    let outcome = tokio::select! {
        ended = &mut serving => Some(ended),
        started = node => match started {
            Ok(()) => tokio::select! {
                () = stop.cancelled() => None,
                ended = &mut serving => Some(ended),
            },
            Err(error) => {
                roles_stop.cancel();
                api_stop.cancel();
                if ProcessId::from_pidfile(&machine.layout.containerd_pidfile()).is_some() {
                    tracing::warn!("containerd goes on: carrack up takes it over, and carrack down stops it");
                }
                hold::remove_pidfile(&machine.layout);
                return Err(error);
            }
        },
        () = stop.cancelled() => None,
    };
    if outcome.is_none() {
        report.interrupted();
    }
    hold::say_ending(&machine.layout);
    roles_stop.cancel();
    if tokio::time::timeout(ROLES_END, async { while tasks.join_next().await.is_some() {} }).await.is_err() {
        tracing::warn!("some roles did not end within {} s", ROLES_END.as_secs());
    }
    api_stop.cancel();
    let ended = match outcome {
        Some(ended) => ended,
        None => serving.await,
    };
    hold::remove_pidfile(&machine.layout);
    match ended.context("the API server panicked")? {
        Ok(()) if stop.is_cancelled() => Ok(()),
        Ok(()) => bail!("the API server ended by itself"),
        Err(error) => Err(error),
    }
}

/// Ends the process of the cluster that runs already, if one does. Containers and guests go on.
/// When it is stopped, it does not wait for that.
async fn end_running(layout: &Layout, report: &Report, stop: &CancellationToken) -> anyhow::Result<()> {
    let Some(running) = ProcessId::from_pidfile(&layout.pidfile()) else { return Ok(()) };
    report.step(&format!("ending the process before this one (pid {})", running.pid));
    let pid = running.pid;
    let ended = tokio::select! {
        ended = tokio::task::spawn_blocking(move || running.terminate(UP_GRACE)) => ended?,
        () = stop.cancelled() => return Ok(()),
    };
    ended.with_context(|| format!("the process before this one (pid {pid}) does not end"))
}

/// Finds out now, while somebody waits for the answer, whether an agent's port is taken.
fn refuse_taken(address: SocketAddr, flag: &str) -> anyhow::Result<()> {
    TcpListener::bind(address).map(drop).with_context(|| format!("cannot listen on {address}: choose another {flag}"))
}

/// The roles that only talk to the API server.
fn start_control_plane(
    tasks: &mut JoinSet<()>,
    machine: &Machine,
    server: &ApiServer,
    ca_pem: &str,
    stop: &CancellationToken,
) {
    let no_groups: [String; 0] = [];
    let (layout, scheduling) = (&machine.layout, &machine.wishes.scheduling);
    if let Some(listen) = machine.gpu_extender {
        let caller = Caller::new(caller::USER_GPU_EXTENDER, no_groups.clone());
        let (api, token) = (client(server, caller), stop.clone());
        tasks.spawn(keep("gpu-extender", stop.clone(), move || {
            gpu_extender::run(gpu_extender::Config::plain(listen), api.clone(), token.clone())
        }));
    }
    let (api, token) = (client(server, Caller::new(caller::USER_SCHEDULER, no_groups.clone())), stop.clone());
    let scheduling = scheduling.clone();
    let listening =
        |address| Listen { address, serving: None, client_ca_pem: ca_pem.to_owned(), server: IN_PROCESS.to_owned() };
    let listen = machine.scheduler_port.map(listening);
    let controllers_listen = machine.controllers_port.map(listening);
    let virt_listen = machine.virt_controller_port.map(listening);
    tasks.spawn(keep("scheduler", stop.clone(), move || {
        let (api, token, config, listen) = (api.clone(), token.clone(), scheduling.clone(), listen.clone());
        async move { roles::scheduler::run(config, None, listen, api, token).await }
    }));
    let (api, token) = (client(server, Caller::new(caller::USER_CONTROLLER_MANAGER, no_groups.clone())), stop.clone());
    let (ca_pem, plugins) = (ca_pem.to_owned(), layout.volume_plugin_dir());
    tasks.spawn(keep("controllers", stop.clone(), move || {
        let (api, token, ca_pem, plugins) = (api.clone(), token.clone(), ca_pem.clone(), plugins.clone());
        let listen = controllers_listen.clone();
        async move { roles::controllers::run(&ca_pem, None, plugins, listen, api, token).await }
    }));
    // It has guests frozen.
    let api = with_agents(server.client_of(Caller::new(caller::USER_VIRT_CONTROLLER, no_groups)), machine);
    let token = stop.clone();
    let config = virt_controller::config(None, &layout.virt_dir());
    tasks.spawn(keep("virt-controller", stop.clone(), move || {
        let (api, token, config, listen) = (api.clone(), token.clone(), config.clone(), virt_listen.clone());
        async move { virt_controller::run(&config, None, listen, api, token).await }
    }));
}

/// containerd, the node's agents and the images that every node needs. Returns when the node is ready.
#[expect(clippy::too_many_arguments, reason = "the one place where everything meets")]
async fn start_node(
    args: &UpArgs,
    machine: &Machine,
    server: &ApiServer,
    pki: &Pki,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
    report: &Report,
    began: Instant,
) -> anyhow::Result<()> {
    let mut renewals = Vec::new();
    let settings = NodeSettings {
        pod_cidr: args.pod_cidr.clone(),
        sandbox_image: carrack_images::reference("pause"),
        masquerade: true,
        networks: Some(further_networks(args, machine, pki, &mut renewals)?),
    };
    let api_ready = async {
        // Roles that come before the roles of RBAC would only be refused.
        wait_ready(server).await;
        tracing::info!("/readyz after {:.0} ms", began.elapsed().as_secs_f64() * 1000.0);
        report.step("starting containerd");
    };
    let (containerd, ()) = tokio::join!(Containerd::start(&machine.layout, &machine.facts, &settings), api_ready);
    let containerd = containerd?;
    virt_controller::install(&*administrator(server)).await?;
    networks::install(&*administrator(server)).await?;
    start_control_plane(tasks, machine, server, pki.ca_pem(), stop);
    tracing::info!(version = containerd.version(), pid = containerd.process().pid, "containerd is ready");
    let token = stop.clone();
    tasks.spawn(async move {
        if let Err(error) = containerd.supervise(token).await {
            tracing::error!(%error, "containerd is not watched any more");
        }
    });
    let images = args.images_dir.path(&machine.layout);
    report.step("importing the image of pods' sandboxes");
    provide(&machine.layout, &images, BuiltIn::Pause).await?;
    let since = apiserver::now_unix_s();
    start_agents(args, machine, server, pki, tasks, stop, &mut renewals)?;
    tasks.spawn(renewal::keep(pki.directory().to_owned(), renewals, stop.clone()));
    report.step("importing the image of virt-launcher");
    provide(&machine.layout, &images, BuiltIn::VirtLauncher).await?;
    report.step("waiting for the node");
    wait_node(server, machine, report, &machine.node_name, since).await;
    name_role(server, &machine.node_name).await?;
    report.ready(&format!(
        "the cluster is ready after {:.1} s: node {} at {}",
        began.elapsed().as_secs_f64(),
        machine.node_name,
        machine.node_ip
    ));
    Ok(())
}

/// What a cluster with several nodes is started from.
struct Start<'a> {
    args: &'a UpArgs,
    machine: &'a Machine,
    server: &'a ApiServer,
    pki: &'a Pki,
    report: &'a Report,
    began: Instant,
}

impl Start<'_> {
    /// The control plane here, and an agent's process for each node. Returns when all nodes are ready.
    async fn nodes(&self, members: &Members, tasks: &mut JoinSet<()>, stop: &CancellationToken) -> anyhow::Result<()> {
        let Self { args, machine, server, pki, report, began } = self;
        wait_ready(server).await;
        virt_controller::install(&*administrator(server)).await?;
        networks::install(&*administrator(server)).await?;
        start_control_plane(tasks, machine, server, pki.ca_pem(), stop);
        report.step("preparing images");
        let images = args.images_dir.path(&machine.layout);
        // Once for all nodes; each agent loads them into its own containerd.
        for image in [BuiltIn::Pause, BuiltIn::VirtLauncher] {
            let dir = images.clone();
            tokio::task::spawn_blocking(move || image::build_one(&dir, image)).await??;
        }
        report.step("starting the nodes");
        let agents = nodes::Agents {
            args: UpArgs::clone(args),
            cluster: machine.layout.clone(),
            members: members.clone(),
            labels: machine.wishes.labels.clone(),
        };
        tokio::task::block_in_place(|| agents.prepare(pki))?;
        let since = apiserver::now_unix_s();
        tasks.spawn(rules::keep_between(members.clone(), stop.clone()));
        for member in members.all() {
            tasks.spawn(nodes::supervise(member.layout.clone(), stop.clone()));
        }
        let renewal: Renewal = Box::new(move |pki, now| agents.renew(pki, now));
        tasks.spawn(renewal::keep(pki.directory().to_owned(), vec![renewal], stop.clone()));
        for member in members.all() {
            // One that is switched off is not waited for.
            if !carrack_noderuntime::members::off_file(&member.layout).exists() {
                report.step(&format!("waiting for {}", member.name));
                wait_node(server, machine, report, &member.name, since).await;
            }
        }
        report.ready(&format!(
            "the cluster is ready after {:.1} s: {} nodes, {} to {}",
            began.elapsed().as_secs_f64(),
            members.all().len(),
            members.all().first().map_or("", |member| &member.name),
            members.all().last().map_or("", |member| &member.name),
        ));
        Ok(())
    }
}

/// What this node's plugin for further networks of pods needs. It is a process of containerd's, and so comes from outside.
fn further_networks(
    args: &UpArgs,
    machine: &Machine,
    pki: &Pki,
    renewals: &mut Vec<Renewal>,
) -> anyhow::Result<FurtherNetworks> {
    let address = if args.bind_address.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { args.bind_address };
    let server = format!("https://{}", SocketAddr::new(address, args.https_port));
    let path = machine.layout.data_dir().join("networks.yaml");
    let identity = Identity::Node { node: machine.node_name.clone() };
    let make = move |pki: &Pki, now_unix_s: i64| -> anyhow::Result<Kubeconfig> {
        let client = pki.client(&identity, now_unix_s)?;
        Ok(Kubeconfig::for_certificate(CLUSTER, &identity.user(), &server, pki.ca_pem(), &client))
    };
    renewals.push(renewal::kubeconfig(path.clone(), pki, apiserver::now_unix_s(), make)?);
    networks::further(path)
}

/// The agents of this node.
fn start_agents(
    args: &UpArgs,
    machine: &Machine,
    server: &ApiServer,
    pki: &Pki,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
    renewals: &mut Vec<Renewal>,
) -> anyhow::Result<()> {
    let name = &machine.node_name;
    let sans = Sans::loopback().with_name(name).with_address(machine.node_ip);
    let mut serving = |server: Server| -> anyhow::Result<kubelet::Served> {
        let certificate = Reloadable::new(&pki.server(&server, &sans, apiserver::now_unix_s())?)?;
        renewals.push(renewal::serving(server, sans.clone(), certificate.clone()));
        Ok(kubelet::Served { certificate, client_ca: ClientCa::new(pki.ca_pem())? })
    };
    let node = kubelet::Node {
        name: name.clone(),
        address: machine.node_ip,
        labels: machine.wishes.labels.clone(),
        api_server: Some((machine.node_ip.to_string(), args.https_port)),
        api_host: IN_PROCESS.to_owned(),
        listen: SocketAddr::new(args.bind_address, args.kubelet_port),
        healthz: None,
        runtime_endpoint: machine.layout.containerd_socket(),
        configuration: machine.wishes.kubelet.clone(),
        container_gc: Default::default(),
        resource_wait: Duration::from_secs(args.resource_wait),
        credentials: kubelet::of_node(&machine.layout),
        boot_id_file: args.boot_id_file.clone(),
    };
    let (api, token, layout) = (client(server, Caller::node(name)), stop.clone(), machine.layout.clone());
    let tls = serving(Server::Kubelet { node: name.clone() })?;
    tasks.spawn(keep("kubelet", stop.clone(), move || {
        let (api, token, layout, node, tls) = (api.clone(), token.clone(), layout.clone(), node.clone(), tls.clone());
        async move { kubelet::run(&layout, node, tls, api, token).await }
    }));
    if let Some(source) = &machine.wishes.gpus {
        let config = gpu_plugin::config(&machine.layout, name, source.clone());
        let (api, token) = (client(server, Caller::node(name)), stop.clone());
        tasks.spawn(keep("gpu-plugin", stop.clone(), move || {
            gpu_plugin::run(config.clone(), api.clone(), token.clone())
        }));
    }
    let (api, token) = (client(server, Caller::local_storage(name)), stop.clone());
    let layout = &machine.layout;
    let faults = args.storage_faults.clone();
    let storage = local_storage::settings(&layout.storage_dir(), &layout.kubelet_root(), name, faults);
    tasks.spawn(keep("local-storage", stop.clone(), move || {
        let (api, token, settings) = (api.clone(), token.clone(), storage.clone());
        async move { local_storage::run(settings, api, token).await }
    }));
    let (api, token, layout) = (client(server, Caller::virt_handler(name)), stop.clone(), machine.layout.clone());
    let tls = serving(Server::VirtHandler { node: name.clone() })?;
    let (name, listen) = (name.clone(), SocketAddr::new(args.bind_address, args.virt_handler_port));
    let keep_alive_dir = virt_controller::keep_alive_dir(&layout.virt_dir());
    let means = virt_handler::Means { keep_alive_dir, watchdog: args.guard.watchdog.clone() };
    tasks.spawn(keep("virt-handler", stop.clone(), move || {
        let (api, token, layout, name, tls) = (api.clone(), token.clone(), layout.clone(), name.clone(), tls.clone());
        let means = means.clone();
        async move { virt_handler::run(&layout, means, &name, listen, tls, api, token).await }
    }));
    Ok(())
}

/// Whether a node has said that it is ready since then. After a restart, what it said before is still stored, and it may be that
/// its kubelet ends as soon as it starts.
fn is_ready(node: &Value, since_unix_s: i64) -> bool {
    let said_at = |condition: &Value| {
        let time = condition["lastHeartbeatTime"].as_str()?.parse::<jiff::Timestamp>().ok()?;
        Some(time.as_second())
    };
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .filter(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        .any(|condition| said_at(condition).is_some_and(|at_s| at_s >= since_unix_s))
}

/// Waits until the node says that it is ready, and its agent answers. Then a while for virt-handler, so that who creates a
/// machine at once is not told that no node takes it; a node on which no guest can run is ready, too.
async fn wait_node(server: &ApiServer, machine: &Machine, report: &Report, name: &str, since_unix_s: i64) {
    let api = with_agents(server.client_of(administrator_caller()), machine);
    let path = format!("/api/v1/nodes/{name}");
    let (mut ready_since, mut silent_since) = (None, None);
    loop {
        if let Ok(response) = api.send(ApiRequest::new(Method::Get, &path)).await
            && let Ok(node) = response.json::<Value>()
            && is_ready(&node, since_unix_s)
        {
            match ask_agent(&*api, &format!("{path}/proxy/healthz/ping")).await {
                Ok(()) => {
                    let since = *ready_since.get_or_insert_with(|| {
                        report.step(&format!("waiting for virt-handler on {name}"));
                        Instant::now()
                    });
                    if node["metadata"]["labels"][SCHEDULABLE_LABEL] == "true" {
                        return;
                    }
                    if since.elapsed() >= HANDLER_IS_READY {
                        tracing::warn!(node = name, "runs no virtual machines so far: {SCHEDULABLE_LABEL} is not true");
                        return;
                    }
                }
                Err(error) => {
                    // It is told once, when it is no matter of moments any more.
                    let (since, told) = silent_since.get_or_insert_with(|| (Instant::now(), false));
                    if !*told && since.elapsed() >= AGENT_ANSWERS {
                        *told = true;
                        let what = "the node is ready, and the API server does not reach its agent";
                        tracing::warn!(node = name, error, "{what}");
                    }
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Asks a node's agent whether it is there, through the API server.
async fn ask_agent(api: &dyn Transport, path: &str) -> Result<(), String> {
    match tokio::time::timeout(AGENT_ANSWERS, api.send(ApiRequest::new(Method::Get, path))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", AGENT_ANSWERS.as_secs())),
    }
}

/// How long a ready node's virt-handler is waited for.
const HANDLER_IS_READY: Duration = Duration::from_secs(15);

/// How long one look at a node's agent takes at the most.
const AGENT_ANSWERS: Duration = Duration::from_secs(1);

/// Says on the node that it is the one with the control plane. A kubelet may not say that of its own node.
async fn name_role(server: &ApiServer, name: &str) -> anyhow::Result<()> {
    let patch = json!({"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}});
    let request = ApiRequest {
        content_type: ContentType::MergePatch,
        body: patch.to_string().into(),
        ..ApiRequest::new(Method::Patch, format!("/api/v1/nodes/{name}"))
    };
    administrator(server)
        .send(request)
        .await
        .map_err(|error| anyhow::anyhow!("cannot label the node {name}: {error}"))?;
    Ok(())
}

/// For what belongs to no role: first objects, and looking whether the cluster is ready.
fn administrator(server: &ApiServer) -> Arc<dyn Transport> {
    client(server, administrator_caller())
}

fn administrator_caller() -> Caller {
    Caller::new("system:admin", [caller::GROUP_MASTERS])
}

/// A client that reaches the agents of nodes, too, where they can be reached.
fn with_agents(api: InProcess, machine: &Machine) -> Arc<dyn Transport> {
    match &machine.agents {
        Some(agents) => Arc::new(api.with_nodes(agents.clone())),
        None => Arc::new(api),
    }
}

fn client(server: &ApiServer, caller: Caller) -> Arc<dyn Transport> {
    Arc::new(server.client_of(caller))
}

/// Builds an image where it is not there yet, and loads it into containerd. Dropped by a signal, it ends what it has begun.
pub(crate) async fn provide(layout: &Layout, dir: &Path, image: BuiltIn) -> anyhow::Result<()> {
    let dir = dir.to_owned();
    let built = tokio::task::spawn_blocking(move || image::build_one(&dir, image)).await??;
    let imported = carrack_images::containerd::ensure(&layout.containerd_socket(), &built).await?;
    tracing::info!(image = built.reference, imported, "image is there");
    Ok(())
}

async fn wait_ready(server: &ApiServer) {
    let api = administrator(server);
    while api.send(ApiRequest::new(Method::Get, "/readyz")).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_said_before_does_not_count() {
        let at =
            |kind: &str, status: &str, time: &str| json!({"type": kind, "status": status, "lastHeartbeatTime": time});
        for (condition, expected) in [
            (at("Ready", "True", "1970-01-01T00:01:40Z"), true),
            (at("Ready", "True", "1970-01-01T00:01:40.5Z"), true),
            (at("Ready", "True", "1970-01-01T00:01:39Z"), false),
            (at("Ready", "False", "1970-01-01T00:01:41Z"), false),
            (at("MemoryPressure", "True", "1970-01-01T00:01:41Z"), false),
            (json!({"type": "Ready", "status": "True"}), false),
        ] {
            let node = json!({"status": {"conditions": [condition]}});
            assert_eq!(is_ready(&node, 100), expected, "{node}");
        }
        assert!(!is_ready(&json!({}), 100));
    }
}
