//! Calls CNI plugins by the specification: the command in the environment, the configuration on the standard input.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde_json::Value;

use crate::config::Network;
use crate::selection::Selection;

/// How long one plugin may take, in seconds: a lease by DHCP takes some.
const LIMIT_S: i64 = 60;
/// How much of what a plugin says is told on, in characters.
const SAID: usize = 600;

/// Why a plugin did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum InvokeError {
    /// There is no such program.
    #[error("the CNI plugin {program} is not in {dirs}")]
    Missing {
        /// Its name.
        program: String,
        /// Where it was looked for.
        dirs: String,
    },
    /// It could not be called.
    #[error("the CNI plugin {0} cannot be called")]
    Call(String, #[source] io::Error),
    /// It did not end.
    #[error("the CNI plugin {0} did not end within {LIMIT_S} s")]
    Silent(String),
    /// It failed.
    #[error("the CNI plugin {0} failed: {1}")]
    Failed(String, String),
    /// Its answer is none.
    #[error("the CNI plugin {0} gave an answer that is no result: {1}")]
    Answer(String, String),
}

/// Whom a plugin is called for, and where plugins are.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The sandbox.
    pub container_id: &'a str,
    /// Its network namespace; empty where that is gone.
    pub netns: &'a str,
    /// `CNI_ARGS`.
    pub args: &'a str,
    /// Where plugins are, and those that they call themselves.
    pub dirs: &'a [PathBuf],
}

/// Attaches: the plugins one after the other. Returns what they made.
///
/// # Errors
/// See [`InvokeError`]. Those that were called are to be undone.
pub fn add(call: &Call<'_>, network: &Network, selection: &Selection) -> Result<Value, InvokeError> {
    let args = network.arguments(call.args, selection);
    let call = Call { args: &args, ..call.clone() };
    let mut result = None;
    for index in 0..network.plugins.len() {
        let program = network.program(index);
        let config = network.told(index, selection, result.as_ref());
        let said = run(&call, "ADD", program, &selection.interface, &config)?;
        let made = serde_json::from_str::<Value>(&said).ok().filter(Value::is_object);
        result = Some(made.ok_or_else(|| InvokeError::Answer(program.to_owned(), short(&said)))?);
    }
    Ok(result.unwrap_or_default())
}

/// Detaches: the plugins in the opposite order, each told what all of them had made.
///
/// # Errors
/// See [`InvokeError`]. May be done again.
pub fn del(call: &Call<'_>, network: &Network, selection: &Selection, made: Option<&Value>) -> Result<(), InvokeError> {
    let made = made.filter(|_| tells_del(&network.cni_version));
    for index in (0..network.plugins.len()).rev() {
        let config = network.told(index, selection, made);
        run(call, "DEL", network.program(index), &selection.interface, &config)?;
    }
    Ok(())
}

/// Asks whether an attachment is as it was made.
///
/// # Errors
/// It is not, or a plugin could not be asked.
pub fn check(call: &Call<'_>, network: &Network, selection: &Selection, made: &Value) -> Result<(), InvokeError> {
    if !tells_del(&network.cni_version) {
        return Ok(());
    }
    for index in 0..network.plugins.len() {
        let config = network.told(index, selection, Some(made));
        run(call, "CHECK", network.program(index), &selection.interface, &config)?;
    }
    Ok(())
}

/// Whether DEL is told what ADD made, and CHECK exists: since 0.4.0.
fn tells_del(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (0, 4)
}

/// The program of a plugin.
fn find(dirs: &[PathBuf], program: &str) -> Option<PathBuf> {
    dirs.iter().map(|dir| dir.join(program)).find(|path| path.is_file())
}

fn missing(dirs: &[PathBuf], program: &str) -> InvokeError {
    let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    InvokeError::Missing { program: program.to_owned(), dirs: dirs.join(" or ") }
}

/// Looks whether all programs of a network are there: its plugins, and those that hand out their addresses.
///
/// # Errors
/// The first that is missing.
pub fn find_all(dirs: &[PathBuf], network: &Network) -> Result<(), InvokeError> {
    let addresses = |plugin: &serde_json::Map<String, Value>| {
        let program = plugin.get("ipam").and_then(|ipam| ipam["type"].as_str());
        program.filter(|program| !program.is_empty()).map(str::to_owned)
    };
    for (index, plugin) in network.plugins.iter().enumerate() {
        for program in [Some(network.program(index).to_owned()), addresses(plugin)].into_iter().flatten() {
            if program.contains('/') || find(dirs, &program).is_none() {
                return Err(missing(dirs, &program));
            }
        }
    }
    Ok(())
}

/// Runs one plugin, and returns what it says.
///
/// # Errors
/// See [`InvokeError`].
pub fn run(
    call: &Call<'_>,
    command: &str,
    program: &str,
    interface: &str,
    config: &Value,
) -> Result<String, InvokeError> {
    let path = find(call.dirs, program).ok_or_else(|| missing(call.dirs, program))?;
    let search: Vec<String> = call.dirs.iter().map(|dir| dir.display().to_string()).collect();
    let failed = |error: io::Error| InvokeError::Call(program.to_owned(), error);
    // Files and no pipes: nothing waits for a program that its plugin has left behind.
    let [mut input, mut output, mut errors] =
        [memory().map_err(failed)?, memory().map_err(failed)?, memory().map_err(failed)?];
    input.write_all(config.to_string().as_bytes()).and_then(|()| input.rewind()).map_err(failed)?;
    let stdio = |file: &File| file.try_clone().map(Stdio::from);
    let child = Command::new(&path)
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", call.container_id)
        .env("CNI_NETNS", call.netns)
        .env("CNI_IFNAME", interface)
        .env("CNI_ARGS", call.args)
        .env("CNI_PATH", search.join(":"))
        .stdin(stdio(&input).map_err(failed)?)
        .stdout(stdio(&output).map_err(failed)?)
        .stderr(stdio(&errors).map_err(failed)?)
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let Some(status) = wait(child).map_err(failed)? else { return Err(InvokeError::Silent(program.to_owned())) };
    let (said, complained) = (text(&mut output).map_err(failed)?, text(&mut errors).map_err(failed)?);
    if status.success() {
        return Ok(said);
    }
    Err(InvokeError::Failed(program.to_owned(), reason(&said, &complained, status)))
}

fn memory() -> io::Result<File> {
    Ok(File::from(memfd_create("cni", MemfdFlags::CLOEXEC)?))
}

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits for a program; none when it had to be killed.
fn wait(mut child: Child) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_child(&child);
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = Timespec { tv_sec: LIMIT_S, tv_nsec: 0 };
    let ended = loop {
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if ended == 0 {
        // With those that it called: they hold the sandbox's lock.
        kill_process_group(pid, Signal::KILL)?;
        child.wait()?;
        return Ok(None);
    }
    child.wait().map(Some)
}

/// What a plugin's error says: its own message, or what it complained of, or how it ended.
fn reason(said: &str, complained: &str, status: ExitStatus) -> String {
    let error: Value = serde_json::from_str(said).unwrap_or_default();
    let part = |field: &str| error[field].as_str().filter(|text| !text.is_empty());
    match (part("msg"), part("details")) {
        (Some(message), Some(details)) => short(&format!("{message}: {details}")),
        (Some(message), None) => short(message),
        _ if !complained.trim().is_empty() => short(complained),
        _ if !said.trim().is_empty() => short(said),
        _ => status.to_string(),
    }
}

fn short(text: &str) -> String {
    text.trim().chars().take(SAID).collect()
}

/// Whether a path is a network namespace that is still held there. After the machine was started again it is a plain file.
#[must_use]
pub fn is_namespace(path: &str) -> bool {
    /// `NSFS_MAGIC` of the kernel.
    const NSFS: i64 = 0x6e73_6673;
    rustix::fs::statfs(Path::new(path)).is_ok_and(|stat| stat.f_type == NSFS)
}
