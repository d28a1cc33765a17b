//! A launcher as it runs in a pod: the first process of its own process namespace, in a network namespace of
//! its own, with the three shared directories. Everything is gone when it is dropped.

use carrack_launcher::board::Board;
use carrack_launcher::client::{self, ClientError, Watch};
use carrack_launcher::proto::Call;
use carrack_launcher::spec::{
    CpuSpec, DiskBus, DiskSource, DiskSpec, DiskTuning, MachineSpec, MachineType, NoCloudSpec, Smbios,
};
use carrack_launcher::{Accel, Domain, Layout, Phase};
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

pub const UID: &str = "5a9fc181-957e-5c32-9e5a-2de5e9673531";

/// An emulated guest on a machine that runs other tests.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub struct Pod {
    pub dir: tempfile::TempDir,
    pub layout: Layout,
    namespace: Option<String>,
    child: Child,
}

/// The launcher built beside this test.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("an executable");
    let program = own.ancestors().nth(2).expect("target directory").join("examples/virt-launcher");
    assert!(program.exists(), "cargo test builds it unless told to build only some targets: {}", program.display());
    program
}

impl Pod {
    pub fn start() -> Self {
        Self::start_in(None)
    }

    /// A launcher that finds the programs in `programs` rather than those of the same names elsewhere.
    pub fn start_with(programs: &Path) -> Self {
        let path = std::env::var_os("PATH").expect("a PATH");
        let all = std::iter::once(programs.to_path_buf()).chain(std::env::split_paths(&path));
        Self::launch(None, &[("PATH", std::env::join_paths(all).expect("joined"))])
    }

    pub fn start_in(namespace: Option<String>) -> Self {
        Self::launch(namespace, &[])
    }

    fn launch(namespace: Option<String>, variables: &[(&str, OsString)]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).expect("made");
            path
        };
        let layout =
            Layout { sockets: at("sockets"), public: at("public"), private: at("private"), uid: UID.to_owned() };
        let mut command = match &namespace {
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name, "unshare"]);
                command
            }
            None => Command::new("unshare"),
        };
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.arg(program()).args(arguments(&layout, &[]));
        command.envs(variables.iter().cloned());
        let child = command.stdin(Stdio::null()).spawn().expect("unshare runs");
        Self { dir, layout, namespace, child }
    }

    /// The process id, on the host, of the container's first process, which becomes QEMU.
    pub fn first_process(&self) -> u32 {
        let id = self.child.id();
        let path = format!("/proc/{id}/task/{id}/children");
        std::fs::read_to_string(path).expect("read").trim().parse().expect("one child")
    }

    /// The CPUs that a thread of QEMU's may run on, by what its name begins with.
    pub fn allowed_cpus(&self, name: &str) -> String {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.first_process())).expect("read");
        let threads = tasks.map(|task| task.expect("read").path());
        let is_it =
            |path: &PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.starts_with(name));
        let thread = threads.into_iter().find(is_it).expect(name);
        let status = std::fs::read_to_string(thread.join("status")).expect("read");
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list");
        list.trim().to_owned()
    }

    /// The process id, on the host, of the monitor, known by its command line: the table of file locks would name
    /// it too, but reading that table may skip lines while others lock and unlock.
    pub fn monitor(&self) -> Option<u32> {
        let sockets = self.layout.sockets.to_string_lossy().into_owned();
        let is_monitor = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let words: Vec<&str> = line.split('\0').collect();
            words.contains(&"monitor") && words.contains(&sockets.as_str()) && !words.contains(&"--detach")
        };
        let entries = std::fs::read_dir("/proc").expect("read");
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).find(is_monitor)
    }

    /// Kills the monitor; tells which process it was.
    pub fn kill_monitor(&self) -> u32 {
        let pid = self.monitor().expect("a monitor");
        kill(Signal::KILL, pid);
        pid
    }

    /// Runs the launcher's `command` in the container, as `kubectl exec` would.
    pub fn exec(&self, command: &[&str]) -> ExitStatus {
        let pid = self.first_process().to_string();
        let mut run = Command::new("nsenter");
        run.args(["--target", &pid, "--pid", "--mount", "--net"]).arg(program());
        run.args(arguments(&self.layout, command)).stdin(Stdio::null()).status().expect("nsenter runs")
    }

    /// Starts the launcher's `command` beside the container.
    pub fn spawn(layout: &Layout, command: &[&str]) -> Child {
        Command::new(program()).args(arguments(layout, command)).stdin(Stdio::null()).spawn().expect("it runs")
    }

    /// What the launcher's `command` prints, run where it sees the same directories.
    pub fn output_of(layout: &Layout, command: &[&str]) -> String {
        let output = Command::new(program()).args(arguments(layout, command)).output().expect("it runs");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    pub async fn call(&self, call: Call) -> Result<Domain, ClientError> {
        client::call(&self.layout.command_socket(), call, PATIENCE).await
    }

    /// Waits until the launcher listens, and hands it the machine.
    pub async fn sync(&self, spec: &MachineSpec) -> Result<Domain, ClientError> {
        within(async {
            loop {
                match self.call(Call::Sync { spec: Box::new(spec.clone()) }).await {
                    Err(ClientError::Connect(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                    other => return other,
                }
            }
        })
        .await
    }

    pub async fn until(&self, reached: impl Fn(&Domain) -> bool) -> Domain {
        let mut watch = Watch::open(&self.layout.command_socket()).await.expect("watched");
        let mut last = None;
        let wait = async {
            loop {
                let domain = last.insert(watch.next().await.expect("a state"));
                if reached(domain) {
                    return;
                }
                assert!(domain.phase != Phase::Ended, "{domain:?}");
            }
        };
        let reached = tokio::time::timeout(PATIENCE, wait).await;
        assert!(reached.is_ok(), "it stays at {last:?}");
        last.expect("a state")
    }

    /// The state that was written down.
    pub fn written(&self) -> Domain {
        serde_json::from_slice(&std::fs::read(self.layout.domain_file()).expect("read")).expect("JSON")
    }

    pub async fn ended(&mut self) -> ExitStatus {
        within(async {
            loop {
                if let Some(status) = self.child.try_wait().expect("waited for") {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
    }

    pub fn run_in_namespace(&self, command: &[&str]) -> bool {
        let name = self.namespace.as_deref().expect("a namespace");
        let mut run = Command::new("ip");
        run.args(["netns", "exec", name]).args(command).stdout(Stdio::null()).status().expect("ip runs").success()
    }
}

fn arguments(layout: &Layout, command: &[&str]) -> Vec<String> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    // Before the command's own: what follows a `--` is not for the launcher.
    let (name, own) = command.split_at(command.len().min(1));
    let mut arguments: Vec<String> = name.iter().map(|&part| part.to_owned()).collect();
    arguments.extend([
        "--uid".to_owned(),
        layout.uid.clone(),
        "--sockets-dir".to_owned(),
        path(&layout.sockets),
        "--public-dir".to_owned(),
    ]);
    arguments.extend([path(&layout.public), "--private-dir".to_owned(), path(&layout.private)]);
    arguments.extend(own.iter().map(|&part| part.to_owned()));
    arguments
}

impl Drop for Pod {
    fn drop(&mut self) {
        // The namespace ends with its first process, which ends with its parent.
        self.child.kill().expect("killed");
        self.child.wait().expect("waited for");
    }
}

pub fn kill(signal: Signal, pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    rustix::process::kill_process(pid, signal).expect("sent");
}

/// Waits until a killed process has let go of its files: it is a zombie, or not there at all.
pub async fn dead(pid: u32) {
    let alive = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    within(async {
        while alive() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// A machine without disks: it gets as far as the firmware.
pub fn bare() -> MachineSpec {
    MachineSpec {
        name: "demo".to_owned(),
        namespace: "default".to_owned(),
        uid: UID.to_owned(),
        machine: MachineType::Q35,
        machine_type: None,
        accel: Accel::Tcg,
        cpu: CpuSpec::default(),
        memory_bytes: 192 << 20,
        smbios: Smbios { uuid: Some(UID.to_owned()), ..Smbios::default() },
        disks: Vec::new(),
        nics: Vec::new(),
        graphics: false,
        serial_console: true,
        balloon: true,
        rng: true,
        start_paused: false,
        board: Board::default(),
        run: None,
    }
}

/// The demo guest, from the disk in the image that is built for real, with its user data.
pub fn demo(dir: &Path, user_data: &str) -> MachineSpec {
    let image = dir.join("disk.img");
    carrack_images::guest::build_disk(&image).expect("built");
    let disk = |name: &str, source| DiskSpec {
        name: name.to_owned(),
        source,
        cdrom: false,
        bus: DiskBus::Virtio,
        read_only: false,
        serial: None,
        boot_order: None,
        tuning: DiskTuning::default(),
    };
    let seed = NoCloudSpec {
        user_data: user_data.to_owned(),
        network_data: None,
        instance_id: "demo.default".to_owned(),
        local_hostname: "from-meta-data".to_owned(),
        ..NoCloudSpec::default()
    };
    let disks = vec![
        disk("containerdisk", DiskSource::Ephemeral { path: image }),
        disk("cloudinitdisk", DiskSource::NoCloud(seed)),
    ];
    MachineSpec { disks, ..bare() }
}

/// The guest's console: what it wrote since it was started, and a way to write to it.
pub struct Console {
    stream: UnixStream,
    pub seen: String,
}

impl Console {
    pub async fn open(layout: &Layout) -> Self {
        let stream = within(async {
            loop {
                match UnixStream::connect(layout.serial_socket()).await {
                    Ok(stream) => return stream,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        })
        .await;
        Self { stream, seen: String::new() }
    }

    pub async fn type_line(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\r").as_bytes()).await.expect("written");
    }

    /// Reads until the guest has written `text`; what came before is forgotten.
    pub async fn expect(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        let read = async {
            loop {
                if let Some(at) = self.seen.find(text) {
                    self.seen.drain(..at + text.len());
                    return;
                }
                let count = self.stream.read(&mut buffer).await.expect("read");
                assert!(count > 0, "the console ended after {:?}", self.seen);
                self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        };
        if tokio::time::timeout(PATIENCE, read).await.is_err() {
            panic!("no {text:?} in {:?}", self.seen);
        }
    }

    /// Logs in, and leaves the shell without an echo so that an answer is not mistaken for the question.
    pub async fn log_in(&mut self, user: &str, password: &str) {
        self.expect("login: ").await;
        self.type_line(user).await;
        self.expect("Password: ").await;
        self.type_line(password).await;
        self.expect("$ ").await;
        self.type_line("stty -echo; PS1='ready> '").await;
        self.expect("ready> ").await;
        self.expect("ready> ").await;
    }
}
