//! What a guest's QEMU says of itself, over its spare monitor: which jobs it works on, and whether it ever stopped.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Sandbox;

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the QEMU of one guest.
pub struct Qemu {
    lines: BufReader<UnixStream>,
    events: Vec<Value>,
    /// The process.
    pub pid: u32,
}

impl Qemu {
    /// Connects to the QEMU of an instance with this UID. QEMU gives its spare monitor to one client at a time.
    ///
    /// # Panics
    /// It does not run, or does not answer.
    #[must_use]
    pub fn of(sandbox: &Sandbox, uid: &str) -> Self {
        let pid = find(sandbox, uid).expect("its QEMU runs");
        let socket = PathBuf::from(format!("/proc/{pid}/root/var/run/kubevirt-private/{uid}/qmp-spare"));
        let stream = UnixStream::connect(&socket).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut qemu = Self { lines: BufReader::new(stream), events: Vec::new(), pid };
        assert!(qemu.line()["QMP"].is_object());
        qemu.ask("qmp_capabilities", json!({})).expect("it speaks");
        qemu
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("read");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("QEMU says {line:?}: {error}"))
    }

    /// Has a command executed.
    ///
    /// # Errors
    /// QEMU's refusal.
    ///
    /// # Panics
    /// It does not answer.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        let text = json!({ "execute": command, "arguments": arguments }).to_string();
        writeln!(self.lines.get_mut(), "{text}").expect("written");
        loop {
            let mut answer = self.line();
            if !answer["event"].is_null() {
                self.events.push(answer);
            } else if answer["error"].is_null() {
                return Ok(answer["return"].take());
            } else {
                return Err(answer["error"].to_string());
            }
        }
    }

    /// Ids of the jobs that have not concluded.
    ///
    /// # Panics
    /// It does not answer.
    pub fn jobs(&mut self) -> Vec<String> {
        let jobs = self.ask("query-jobs", json!({})).expect("answered");
        let works = |job: &&Value| job["status"] == "running" || job["status"] == "ready";
        let jobs = jobs.as_array().into_iter().flatten().filter(works);
        jobs.filter_map(|job| job["id"].as_str().map(str::to_owned)).collect()
    }

    /// Names of the events since it was connected to.
    ///
    /// # Panics
    /// It does not answer.
    pub fn events(&mut self) -> Vec<String> {
        // Whatever was said before the answer has been read then.
        self.ask("query-status", json!({})).expect("answered");
        self.events.iter().filter_map(|event| event["event"].as_str().map(str::to_owned)).collect()
    }
}

/// The process in the cluster's containers whose command line has the UID of its instance.
fn find(sandbox: &Sandbox, uid: &str) -> Option<u32> {
    let containerd = sandbox.data_dir().join("containerd/root").display().to_string();
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|pid: &u32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let line = read("cmdline");
        let is_root = |line: &str| line.split(' ').nth(4) == Some("/") && line.contains(&containerd);
        line.starts_with("qemu-system") && line.contains(uid) && read("mountinfo").lines().any(is_root)
    })
}
