//! The plugin: what the runtime asks of it, and what it answers.
//!
//! ```text
//!   ADD    the pod network, where the configuration says so (`pod_network`), else what the plugins before it made
//!          pod without the annotation ─▶ that result, as it is
//!          else: definitions ─▶ record ─▶ plugins of each network ─▶ status annotation
//!          anything fails ─▶ undo ─▶ failure annotation ─▶ error (the runtime calls DEL once more)
//!   DEL    record ─▶ plugins in the opposite order ─▶ record gone ─▶ the pod network
//!   GC     records and addresses of sandboxes that the runtime does not know ─▶ as DEL
//!   STATUS whether the configuration can be used at all
//! ```
//!
//! Whose turn it is: the runtime's configuration directory decides. Where its first file is another network's than the one that
//! this plugin is part of, that network's plugin (Multus, in practice, which has taken the whole list into its own file) sees to
//! the annotation, and this one does nothing but undo what it has made itself.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::config::{self, Network};
use crate::invoke::{self, Call};
use crate::pod_network::addresses::Owner;
use crate::pod_network::links;
use crate::pod_network::{self, PORTS_CAPABILITY, PodNetwork, PodNetworkError};
use crate::record::{self, Attachment, Held, Pod, Record};
use crate::selection::{self, Selection};
use crate::{FAILURE_ANNOTATION, NETWORKS_ANNOTATION, STATUS_ANNOTATION, status};

/// The versions of the specification that it speaks.
const VERSIONS: [&str; 6] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "0.2.0"];

/// The capability by which the runtime tells a pod's annotations.
pub const ANNOTATIONS_CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

/// The version that is spoken to whoever names none.
pub(crate) const LATEST: &str = "1.0.0";

/// The code of errors that the specification has no code for.
pub(crate) const FAILED: u64 = 100;
/// The specification's code for a configuration that cannot be used.
const INVALID: u64 = 7;

/// What the runtime says in the environment.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `CNI_COMMAND`
    pub command: String,
    /// `CNI_CONTAINERID`
    pub container_id: String,
    /// `CNI_NETNS`
    pub netns: String,
    /// `CNI_IFNAME`
    pub interface: String,
    /// `CNI_ARGS`
    pub args: String,
}

/// What is needed of the API server.
pub trait Cluster {
    /// A NetworkAttachmentDefinition; none where there surely is none.
    ///
    /// # Errors
    /// Nobody knows; why.
    fn definition(&self, namespace: &str, name: &str) -> Result<Option<Value>, String>;
    /// Sets annotations of a pod, and takes away those that are null. The pod is the one with the UID.
    ///
    /// # Errors
    /// They are not set, as far as is known; why.
    fn annotate(&self, pod: &Pod, annotations: Map<String, Value>) -> Result<(), String>;
}

/// A way to the API server by its kubeconfig.
pub type Connect<'a> = &'a dyn Fn(&Path) -> Result<Box<dyn Cluster>, String>;

/// What the program prints, and how it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The standard output.
    pub stdout: String,
    /// The exit status.
    pub code: u8,
}

/// The plugin's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    #[serde(default)]
    name: String,
    #[serde(default)]
    cni_version: String,
    /// Credentials of the node.
    kubeconfig: PathBuf,
    /// Where records are.
    state_dir: PathBuf,
    /// Where plugins are.
    bin_dirs: Vec<PathBuf>,
    /// Where the runtime reads its networks.
    conf_dir: PathBuf,
    /// Where the node has networks for definitions that have no configuration.
    #[serde(default)]
    node_conf_dirs: Vec<PathBuf>,
    /// The pod network, where this plugin makes that, too.
    #[serde(default)]
    pod_network: Option<PodNetwork>,
    #[serde(default)]
    prev_result: Option<Value>,
    #[serde(default)]
    runtime_config: Map<String, Value>,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    valid: Vec<Valid>,
    /// Where this is told, only these sandboxes are collected.
    #[serde(default)]
    stale: Option<Vec<String>>,
    /// Besides, the bridges are to go that plugins made and nobody uses any more: the whole cluster goes.
    #[serde(default)]
    remove_bridges: bool,
}

/// An attachment that is to stay.
#[derive(Clone, Debug, Deserialize)]
struct Valid {
    #[serde(rename = "containerID")]
    container_id: String,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the pod's networks: {0}")]
    Selection(#[from] selection::SelectionError),
    #[error("the API server cannot be reached: {0}")]
    Connect(String),
    #[error("NetworkAttachmentDefinition {0} cannot be read: {1}")]
    Unread(String, String),
    #[error("there is no NetworkAttachmentDefinition {0}")]
    Missing(String),
    #[error("NetworkAttachmentDefinition {0}: {1}")]
    Config(String, config::ConfigError),
    #[error("network {0}: {1}")]
    Plugin(String, String),
    #[error("what an earlier sandbox of the pod was given cannot be taken back: {0}")]
    Earlier(String),
    #[error("the node's records: {0}")]
    Record(#[from] std::io::Error),
    #[error("the networks' status cannot be told: {0}")]
    Told(String),
    #[error("{0}")]
    Runtime(String),
    #[error("the configuration of {plugin}: {0}", plugin = crate::PLUGIN)]
    Settings(String),
    #[error("{}", chain(.0))]
    PodNetwork(#[from] PodNetworkError),
}

impl Refusal {
    fn code(&self) -> u64 {
        match self {
            Self::Settings(_) | Self::PodNetwork(PodNetworkError::Config(_)) => INVALID,
            _ => FAILED,
        }
    }
}

/// An error with its cause.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The answer to VERSION.
pub(crate) fn versions(input: &str) -> Outcome {
    let version = serde_json::from_str::<Value>(input).ok();
    let version = version.and_then(|input| input["cniVersion"].as_str().map(str::to_owned));
    let text = json!({ "cniVersion": version.unwrap_or_else(|| LATEST.to_owned()), "supportedVersions": VERSIONS });
    Outcome { stdout: text.to_string(), code: 0 }
}

/// What is said where something was not done.
pub(crate) fn refusal(version: &str, code: u64, why: &str) -> Outcome {
    let text = json!({ "cniVersion": version, "code": code, "msg": why });
    Outcome { stdout: text.to_string(), code: 1 }
}

/// Does what the runtime asks.
#[must_use]
pub fn run(environment: &Environment, input: &str, connect: Connect<'_>) -> Outcome {
    if environment.command == "VERSION" {
        return versions(input);
    }
    let settings: Result<Settings, _> = serde_json::from_str(input);
    let version = settings.as_ref().map_or_else(|_| LATEST.to_owned(), |settings| settings.cni_version.clone());
    let done = settings.map_err(|error| Refusal::Settings(error.to_string())).and_then(|settings| {
        match environment.command.as_str() {
            "ADD" => add(environment, &settings, connect),
            "DEL" => delete(environment, &settings).map(|()| String::new()),
            "CHECK" => check(environment, &settings).map(|()| String::new()),
            "GC" => collect(&settings).map(|()| String::new()),
            "STATUS" => ready(&settings).map(|()| String::new()),
            other => Err(Refusal::Runtime(format!("CNI_COMMAND {other:?} is not known"))),
        }
    });
    match done {
        Ok(stdout) => Outcome { stdout, code: 0 },
        Err(why) => refusal(&version, why.code(), &why.to_string()),
    }
}

/// A value of `CNI_ARGS`.
fn argument<'a>(args: &'a str, name: &str) -> &'a str {
    args.split(';').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map_or("", |(_, value)| value)
}

/// Whether another plugin is what the runtime calls for the pod network.
fn is_left_to_another(settings: &Settings) -> bool {
    // A directory that cannot be read is one that the runtime cannot read either.
    let first = config::files(&settings.conf_dir).unwrap_or_default().into_iter().next();
    let name = first.and_then(|file| config::name_in(&std::fs::read_to_string(file).ok()?));
    name.is_some_and(|name| name != settings.name)
}

/// The sandbox's attachment to the pod network.
fn on_pod_network<'a>(environment: &'a Environment, settings: &'a Settings) -> pod_network::Attachment<'a> {
    pod_network::Attachment {
        name: &settings.name,
        cni_version: &settings.cni_version,
        owner: Owner { sandbox: environment.container_id.clone(), interface: environment.interface.clone() },
        netns: &environment.netns,
        args: &environment.args,
        ports: settings.runtime_config.get(PORTS_CAPABILITY).unwrap_or(&Value::Null),
        bin_dirs: &settings.bin_dirs,
    }
}

fn add(environment: &Environment, settings: &Settings, connect: Connect<'_>) -> Result<String, Refusal> {
    let Some(network) = &settings.pod_network else {
        let before = settings.prev_result.clone().unwrap_or_else(|| json!({ "cniVersion": settings.cni_version }));
        return add_further(environment, settings, before, connect);
    };
    if settings.prev_result.is_some() {
        return Err(Refusal::Settings("the pod network is made by the first plugin of a list".to_owned()));
    }
    let attachment = on_pod_network(environment, settings);
    let made = network.add(&attachment)?;
    add_further(environment, settings, made, connect).map_err(|why| match network.delete(&attachment) {
        Ok(()) => why,
        // The runtime's DEL does it again.
        Err(left) => Refusal::Runtime(format!("{why}; and not undone: {left}")),
    })
}

/// Makes the networks that the pod asks for besides.
fn add_further(
    environment: &Environment,
    settings: &Settings,
    before: Value,
    connect: Connect<'_>,
) -> Result<String, Refusal> {
    let annotations = settings.runtime_config.get(ANNOTATIONS_CAPABILITY);
    let asked = annotations.and_then(|all| all.get(NETWORKS_ANNOTATION)).and_then(Value::as_str).unwrap_or_default();
    if asked.trim().is_empty() || is_left_to_another(settings) {
        return Ok(before.to_string());
    }
    let part = |name: &str| argument(&environment.args, name).to_owned();
    let pod = Pod { namespace: part("K8S_POD_NAMESPACE"), name: part("K8S_POD_NAME"), uid: part("K8S_POD_UID") };
    if pod.namespace.is_empty() || pod.name.is_empty() {
        return Err(Refusal::Runtime("the runtime does not say which pod it is (CNI_ARGS)".to_owned()));
    }
    let cluster = connect(&settings.kubeconfig).map_err(Refusal::Connect)?;
    let attached = planned(asked, &pod, settings, cluster.as_ref())
        .and_then(|attachments| attach(environment, settings, &pod, attachments, &before, cluster.as_ref()));
    match attached {
        Ok(()) => Ok(before.to_string()),
        Err(why) => {
            let told = [(FAILURE_ANNOTATION.to_owned(), json!(why.to_string()))].into_iter().collect();
            // The runtime says it, too; this is for those who look at the pod.
            match cluster.annotate(&pod, told) {
                Ok(()) => Err(why),
                Err(error) => Err(Refusal::Runtime(format!("{why} (and the pod cannot be told so: {error})"))),
            }
        }
    }
}

/// What the pod asks for, with the configurations that it has now.
fn planned(asked: &str, pod: &Pod, settings: &Settings, cluster: &dyn Cluster) -> Result<Vec<Attachment>, Refusal> {
    let mut attachments = Vec::new();
    for selection in selection::parse(asked, &pod.namespace)? {
        let network = network(&selection, settings, cluster)?;
        if let Some(lacking) = network.lacks(&selection) {
            let why = format!("the pod asks for {lacking}, and no plugin of the network has that capability");
            return Err(Refusal::Plugin(full_name(&selection), why));
        }
        // Before anything is made: what is not there could not undo it either.
        invoke::find_all(&settings.bin_dirs, &network)
            .map_err(|error| Refusal::Plugin(full_name(&selection), chain(&error)))?;
        attachments.push(Attachment { selection, network, result: None });
    }
    Ok(attachments)
}

fn network(selection: &Selection, settings: &Settings, cluster: &dyn Cluster) -> Result<Network, Refusal> {
    let name = full_name(selection);
    let definition = cluster
        .definition(&selection.namespace, &selection.name)
        .map_err(|why| Refusal::Unread(name.clone(), why))?
        .ok_or_else(|| Refusal::Missing(name.clone()))?;
    config::of_definition(&definition, &selection.name, &settings.node_conf_dirs)
        .map_err(|why| Refusal::Config(name, why))
}

fn full_name(selection: &Selection) -> String {
    format!("{}/{}", selection.namespace, selection.name)
}

/// Makes the attachments, or none of them.
fn attach(
    environment: &Environment,
    settings: &Settings,
    pod: &Pod,
    attachments: Vec<Attachment>,
    before: &Value,
    cluster: &dyn Cluster,
) -> Result<(), Refusal> {
    take_back_earlier(pod, settings)?;
    let held = hold(settings, &environment.container_id)?;
    let mut record = Record {
        container_id: environment.container_id.clone(),
        pod: pod.clone(),
        netns: environment.netns.clone(),
        args: environment.args.clone(),
        attachments,
    };
    held.save(&record)?;
    let made = make(&mut record, &held, settings).and_then(|()| tell(&record, before, environment, settings, cluster));
    match made {
        Ok(()) => Ok(()),
        Err(why) => match undo(&mut record, &environment.netns, &held, settings) {
            Ok(()) => held.forget().map_err(Refusal::Record).and(Err(why)),
            // It stays in the record, for the runtime's DEL.
            Err(left) => Err(Refusal::Runtime(format!("{why}; and not undone: {left}"))),
        },
    }
}

/// Undoes what is left of the pod's sandboxes before this one, of which the runtime knows nothing any more, or never will. While
/// that fails there is no further one, or they would grow in number.
fn take_back_earlier(pod: &Pod, settings: &Settings) -> Result<(), Refusal> {
    for id in record::sandboxes(&settings.state_dir)? {
        // Who is at work on one sees to it.
        let Some(held) = record::hold(&settings.state_dir, &id, false)? else { continue };
        // One that cannot be read is not known to be this pod's.
        let Ok(found) = held.load() else { continue };
        let Some(mut record) = found.filter(|record| record.pod == *pod) else { continue };
        let netns = living(&record).to_owned();
        undo(&mut record, &netns, &held, settings).map_err(|why| Refusal::Earlier(why.to_string()))?;
        held.forget()?;
    }
    Ok(())
}

/// The network namespace of a sandbox; none when it is gone.
fn living(record: &Record) -> &str {
    if invoke::is_namespace(&record.netns) { &record.netns } else { "" }
}

fn hold(settings: &Settings, id: &str) -> Result<Held, Refusal> {
    let held = record::hold(&settings.state_dir, id, true)?;
    held.ok_or_else(|| Refusal::Runtime("somebody else is at work on the sandbox".to_owned()))
}

fn make(record: &mut Record, held: &Held, settings: &Settings) -> Result<(), Refusal> {
    for index in 0..record.attachments.len() {
        let Attachment { selection, network, .. } = &record.attachments[index];
        note_bridges(network, settings)?;
        let result = invoke::add(&call(record, &record.netns, settings), network, selection)
            .map_err(|error| Refusal::Plugin(full_name(selection), chain(&error)))?;
        record.attachments[index].result = Some(result);
        held.save(record)?;
    }
    // Last, since plugins may have made ways out of their own. It goes with the sandbox.
    for Attachment { selection, .. } in &record.attachments {
        if let Some(gateway) = selection.default_route {
            links::lead_out(Path::new(&record.netns), &selection.interface, gateway)
                .map_err(|error| Refusal::Plugin(full_name(selection), chain(&error)))?;
        }
    }
    Ok(())
}

fn call<'a>(record: &'a Record, netns: &'a str, settings: &'a Settings) -> Call<'a> {
    Call { container_id: &record.container_id, netns, args: &record.args, dirs: &settings.bin_dirs }
}

/// Tells the pod what it has got.
fn tell(
    record: &Record,
    before: &Value,
    environment: &Environment,
    settings: &Settings,
    cluster: &dyn Cluster,
) -> Result<(), Refusal> {
    let mut entries = vec![status::entry(&settings.name, &environment.interface, before, true)];
    for Attachment { selection, result, .. } in &record.attachments {
        let result = result.clone().unwrap_or_default();
        entries.push(status::entry(&full_name(selection), &selection.interface, &result, false));
    }
    let annotations = [
        (STATUS_ANNOTATION.to_owned(), json!(status::annotation(&entries))),
        (FAILURE_ANNOTATION.to_owned(), Value::Null),
    ];
    cluster.annotate(&record.pod, annotations.into_iter().collect()).map_err(Refusal::Told)
}

/// Detaches all, the last first. What was never begun is undone as well: nobody knows how far a plugin came. What is undone is
/// forgotten at once, so that a call that is cut short leaves less for the next.
fn undo(record: &mut Record, netns: &str, held: &Held, settings: &Settings) -> Result<(), Refusal> {
    let mut first = None;
    for index in (0..record.attachments.len()).rev() {
        let Attachment { selection, network, result } = &record.attachments[index];
        match invoke::del(&call(record, netns, settings), network, selection, result.as_ref()) {
            Ok(()) => {
                record.attachments.remove(index);
                held.save(record)?;
            }
            Err(error) => drop(first.get_or_insert(Refusal::Plugin(full_name(selection), chain(&error)))),
        }
    }
    first.map_or(Ok(()), Err)
}

fn delete(environment: &Environment, settings: &Settings) -> Result<(), Refusal> {
    delete_further(environment, settings)?;
    if let Some(network) = &settings.pod_network {
        network.delete(&on_pod_network(environment, settings))?;
    }
    Ok(())
}

fn delete_further(environment: &Environment, settings: &Settings) -> Result<(), Refusal> {
    // Nearly all pods have none; their ends must not depend on a disk that can be written.
    if !record::is_begun(&settings.state_dir, &environment.container_id) {
        return Ok(());
    }
    let held = hold(settings, &environment.container_id)?;
    if let Some(mut record) = load_last(&held)? {
        undo(&mut record, &environment.netns, &held, settings)?;
    }
    held.forget()?;
    Ok(())
}

/// What is kept of a sandbox that goes. What is damaged nobody can make whole, and the sandbox would never go: so it is put aside.
/// The sandbox's interfaces go with it, and what its networks have handed out besides is freed by hand.
fn load_last(held: &Held) -> std::io::Result<Option<Record>> {
    match held.load() {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            let aside = held.put_aside()?;
            // The runtime's log has it.
            eprintln!(
                "{}: {error}; it is put aside as {}, and addresses that its further networks have handed out stay taken",
                crate::PLUGIN,
                aside.display()
            );
            Ok(None)
        }
        found => found,
    }
}

fn check(environment: &Environment, settings: &Settings) -> Result<(), Refusal> {
    if let Some(network) = &settings.pod_network {
        network.check(&on_pod_network(environment, settings), settings.prev_result.as_ref())?;
    }
    if !record::is_begun(&settings.state_dir, &environment.container_id) {
        return Ok(());
    }
    let held = hold(settings, &environment.container_id)?;
    let Some(record) = held.load()? else {
        held.forget()?;
        return Ok(());
    };
    for Attachment { selection, network, result } in &record.attachments {
        let result = result.clone().unwrap_or_default();
        invoke::check(&call(&record, &environment.netns, settings), network, selection, &result)
            .map_err(|error| Refusal::Plugin(full_name(selection), chain(&error)))?;
    }
    Ok(())
}

/// Whether ADD can be served, as far as the configuration goes. That all addresses are taken is no reason to call the
/// node's network broken: pods end, and others run.
fn ready(settings: &Settings) -> Result<(), Refusal> {
    settings.pod_network.as_ref().map_or(Ok(()), PodNetwork::usable).map_err(Refusal::PodNetwork)
}

/// Undoes what was made for sandboxes that are not valid any more, as far as nobody is at work on them.
fn collect(settings: &Settings) -> Result<(), Refusal> {
    let goes = |id: &str| match &settings.stale {
        Some(stale) => stale.iter().any(|stale| stale == id),
        None => !settings.valid.iter().any(|valid| valid.container_id == id),
    };
    let mut first = None;
    for id in record::sandboxes(&settings.state_dir)? {
        if !goes(&id) {
            continue;
        }
        let Some(held) = record::hold(&settings.state_dir, &id, false)? else { continue };
        let outcome = match load_last(&held) {
            Ok(Some(mut record)) => {
                let netns = living(&record).to_owned();
                undo(&mut record, &netns, &held, settings)
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(()) => held.forget()?,
            Err(why) => drop(first.get_or_insert(why)),
        }
    }
    if settings.remove_bridges {
        bridges::remove_unused(&settings.state_dir)?;
    }
    if let Some(network) = &settings.pod_network {
        for owner in network.owners(&settings.name)?.into_iter().filter(|owner| goes(&owner.sandbox)) {
            // Its namespace is not known, and its links go with that where they are not found by their name.
            let attachment = pod_network::Attachment {
                name: &settings.name,
                cni_version: &settings.cni_version,
                owner,
                netns: "",
                args: "",
                ports: &Value::Null,
                bin_dirs: &settings.bin_dirs,
            };
            if let Err(why) = network.collect(&attachment) {
                first.get_or_insert(why.into());
            }
        }
    }
    first.map_or(Ok(()), Err)
}

/// Remembers the bridges that a network is about to make: its plugin never removes them.
fn note_bridges(network: &Network, settings: &Settings) -> Result<(), Refusal> {
    for plugin in network.plugins.iter().filter(|plugin| plugin.get("type") == Some(&json!("bridge"))) {
        // The plugin's own default.
        let name = plugin.get("bridge").and_then(Value::as_str).unwrap_or("cni0");
        bridges::note(&settings.state_dir, name)?;
    }
    Ok(())
}

mod bridges {
    //! Bridges that were not there before a plugin was called for them: they go with the cluster, once nothing is on them.

    use std::fs;
    use std::io;
    use std::path::Path;
    use std::process::{Command, Stdio};

    const DIR: &str = "bridges";

    fn ip(arguments: &[&str]) -> io::Result<(bool, String)> {
        let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output()?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// Notes a bridge that is not there yet.
    pub fn note(state: &Path, name: &str) -> io::Result<()> {
        if name.is_empty() || name.contains('/') || name.starts_with('.') || ip(&["link", "show", "dev", name])?.0 {
            return Ok(());
        }
        fs::create_dir_all(state.join(DIR))?;
        fs::write(state.join(DIR).join(name), "")
    }

    /// Removes those that nothing is on, and forgets them.
    pub fn remove_unused(state: &Path) -> io::Result<()> {
        let entries = match fs::read_dir(state.join(DIR)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let (listed, ports) = ip(&["-oneline", "link", "show", "master", &name])?;
            let gone = match (listed, ports.trim().is_empty()) {
                (true, true) => ip(&["link", "delete", "dev", &name, "type", "bridge"])?.0,
                // Somebody is on it: it stays, and is remembered.
                (true, false) => false,
                (false, _) => true,
            };
            if gone {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
