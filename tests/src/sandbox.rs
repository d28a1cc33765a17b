//! One cluster for one test, and its end without a trace.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use rustix::thread::LinkNameSpaceType;
use serde_json::Value;
use tempfile::TempDir;

use crate::objects::Kind;
use crate::{Kubectl, Run, carrack, kubectl, root};

/// The node's address in the sandbox's network, from the range for documentation.
pub const NODE_IP: &str = "192.0.2.10";
/// The address of another machine in that network, with a network namespace of its own.
pub const OUTSIDE_IP: &str = "192.0.2.1";

/// What the kubelets of a sandbox are told: how full the machine's disks are is no business of a test.
pub const LIMITS: &str = "\
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%}
";

/// What `carrack up` says where there is nothing to start.
const RUNS_ALREADY: &str = "runs already";

/// A network namespace and a data directory, in which `carrack` runs.
#[derive(Debug)]
pub struct Sandbox {
    netns: String,
    dir: TempDir,
    /// Which kinds were served when that was last asked.
    pub(crate) kinds: Mutex<Vec<Kind>>,
}

fn kubelet_configuration(lines: &str) -> String {
    format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{lines}{LIMITS}")
}

impl Sandbox {
    /// An empty sandbox, beside others.
    ///
    /// # Panics
    /// Not root, or the network namespace cannot be made.
    #[must_use]
    pub fn new() -> Self {
        // Short: unix sockets below it have 107 bytes for their paths.
        let dir = tempfile::Builder::new().prefix("ce").tempdir_in("/tmp").expect("a temp dir");
        // A name of its own also beside what a test has left that was killed, whose process id comes again.
        let netns = dir.path().file_name().expect("a name").to_string_lossy().into_owned();
        fs::create_dir(dir.path().join("home")).expect("a home");
        fs::write(dir.path().join("home/boot_id"), "boot-1\n").expect("a boot id");
        fs::write(dir.path().join("home/limits.yaml"), kubelet_configuration("")).expect("a configuration");
        ip(&["netns", "add", &netns]);
        let sandbox = Self { netns, dir, kinds: Mutex::default() };
        let outside = sandbox.outside();
        ip(&["netns", "add", &outside]);
        sandbox.ip(&["link", "set", "lo", "up"]);
        sandbox.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", &outside]);
        for (netns, address) in [(&sandbox.netns, NODE_IP), (&outside, OUTSIDE_IP)] {
            ip(&["-n", netns, "link", "set", "eth0", "up"]);
            ip(&["-n", netns, "address", "add", &format!("{address}/24"), "dev", "eth0"]);
        }
        sandbox.ip(&["route", "add", "default", "via", OUTSIDE_IP]);
        sandbox
    }

    /// Writes a configuration of kubelets with these lines, and what sandboxes need besides; the file for `--kubelet-config`.
    ///
    /// # Panics
    /// It cannot be written.
    #[must_use]
    pub fn kubelet_config(&self, lines: &str) -> String {
        let file = self.home().join("kubelet.yaml");
        fs::write(&file, kubelet_configuration(lines)).expect("a configuration");
        file.display().to_string()
    }

    /// A sandbox without a cluster. Whoever starts the first one need not import the images that every cluster has.
    #[must_use]
    pub fn prepared() -> Self {
        let sandbox = Self::new();
        crate::prepared::give(&sandbox, None);
        sandbox
    }

    /// A sandbox with a running cluster and these images.
    #[must_use]
    pub fn up(images: &[&str]) -> Self {
        let sandbox = Self::new();
        sandbox.start(&[]);
        if !images.is_empty() {
            let arguments: Vec<&str> = ["image", "build"].into_iter().chain(images.iter().copied()).collect();
            sandbox.carrack(&arguments).limit_s(300).done();
        }
        sandbox
    }

    /// `carrack up --detach` with these flags.
    ///
    /// # Panics
    /// It fails, a cluster runs already, or the number of nodes is none.
    pub fn start(&self, flags: &[&str]) {
        let nodes = flags.iter().position(|flag| *flag == "--nodes").and_then(|at| flags.get(at + 1));
        crate::prepared::give(self, nodes.map(|count| count.parse().expect("a number of nodes")));
        let arguments: Vec<&str> = ["up", "--detach"].into_iter().chain(flags.iter().copied()).collect();
        let output = self.carrack(&arguments).limit_s(180).output();
        assert_eq!(output.code, Some(0), "{output}");
        // To one that is just ending, and does not know it, that is no failure.
        assert!(!output.to_string().contains(RUNS_ALREADY), "nothing was started: {output}");
    }

    /// Where the cluster lives.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("d")
    }

    /// Where a cluster may live for a moment.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// A home directory for tools.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// A program in the sandbox's network. `nsenter`, since `ip netns exec` would mount another /sys, and with it hide
    /// the cgroups.
    #[must_use]
    pub fn inside(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.netns)).arg("--").arg(program).current_dir("/");
        // In a session of its own, as a shell would start it: no signal meant for the tests reaches it.
        command.process_group(0);
        command
    }

    /// Any program by name in the sandbox's network.
    #[must_use]
    pub fn program(&self, name: &str, arguments: &[&str]) -> Run {
        Run::new(self.inside(Path::new(name))).args(arguments)
    }

    /// A line for the shell in the sandbox's network, on the sandbox's cluster.
    #[must_use]
    pub fn shell(&self, line: &str) -> Run {
        let mut command = self.inside(Path::new("sh"));
        command.env("CARRACK_DATA_DIR", self.data_dir()).env("HOME", self.home()).env_remove("KUBECONFIG");
        Run::new(command).args(&["-c", line])
    }

    /// `carrack` on the sandbox's data directory. Images are built once for all sandboxes.
    #[must_use]
    pub fn carrack(&self, arguments: &[&str]) -> Run {
        let mut command = self.inside(&carrack());
        command
            .env("CARRACK_DATA_DIR", self.data_dir())
            .env("CARRACK_IMAGES_DIR", root().join("target/e2e-images"))
            .env("CARRACK_BOOT_ID_FILE", self.boot_id_file())
            .env("CARRACK_KUBELET_CONFIG", self.home().join("limits.yaml"))
            .env("HOME", self.home())
            .env("TMPDIR", self.home())
            .env_remove("KUBECONFIG");
        Run::new(command).args(arguments)
    }

    /// The kubectl in PATH.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl<'_> {
        Kubectl { sandbox: self, program: kubectl::from_path() }
    }

    /// The kubectl in PATH, and Debian's where it could be had.
    #[must_use]
    pub fn kubectls(&self) -> Vec<Kubectl<'_>> {
        let debian = kubectl::debian_kubectl().map(|program| Kubectl { sandbox: self, program });
        [self.kubectl()].into_iter().chain(debian).collect()
    }

    /// The network namespace of the other machine.
    fn outside(&self) -> String {
        format!("{}-out", self.netns)
    }

    /// Does something in the sandbox's network: the socket that it makes stays there.
    fn enter<T: Send>(&self, work: impl FnOnce() -> std::io::Result<T> + Send) -> T {
        enter(&self.netns, work)
    }

    /// Listens on a port of the other machine.
    #[must_use]
    pub fn listen_outside(&self, port: u16) -> TcpListener {
        enter(&self.outside(), || TcpListener::bind((OUTSIDE_IP, port)))
    }

    /// Listens on a port of the sandbox's own.
    #[must_use]
    pub fn listen(&self, port: u16) -> TcpListener {
        self.enter(|| TcpListener::bind(("127.0.0.1", port)))
    }

    /// Connects to a port of the sandbox's own.
    #[must_use]
    pub fn connect(&self, port: u16) -> TcpStream {
        self.enter(|| TcpStream::connect(("127.0.0.1", port)))
    }

    /// Runs a program's future in the sandbox's network, with all that it starts.
    ///
    /// # Panics
    /// There is no runtime to be had, or the program panics.
    pub fn run<T: Send>(&self, program: impl Future<Output = T> + Send) -> T {
        self.enter(|| {
            // Threads that it starts inherit the network of the one that starts them.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(program))
        })
    }

    /// A page of a role on a port of the sandbox's own, and the status: as the administrator or as nobody.
    ///
    /// # Panics
    /// There is no kubeconfig.
    #[must_use]
    pub fn page(&self, port: u16, path: &str, as_admin: bool) -> (String, String) {
        let url = format!("https://127.0.0.1:{port}{path}");
        let mut arguments = vec!["-sk".to_owned(), "-w".to_owned(), "\n%{http_code}".to_owned(), url];
        if as_admin {
            arguments.extend(self.credentials());
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = self.program("curl", &arguments).output();
        let (text, code) = output.stdout.rsplit_once('\n').unwrap_or_default();
        (text.to_owned(), code.to_owned())
    }

    /// A stream of the API server's as virtctl opens it, a WebSocket of KubeVirt's protocol: the reply's head is printed, and what
    /// comes until it ends, or until the time is over (status 28).
    ///
    /// # Panics
    /// There is no kubeconfig.
    #[must_use]
    pub fn stream(&self, path: &str, limit_s: u64) -> Run {
        let (limit_s, url) = (limit_s.to_string(), format!("https://127.0.0.1:6443{path}"));
        let headers = [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Protocol: plain.kubevirt.io",
        ];
        let credentials = self.credentials();
        let fixed = ["-iskN", "--http1.1", "--max-time", &limit_s, &url];
        let headers = headers.iter().flat_map(|header| ["-H", header]);
        let all: Vec<&str> = fixed.into_iter().chain(headers).chain(credentials.iter().map(String::as_str)).collect();
        self.program("curl", &all)
    }

    /// What makes curl the administrator. Another curl may read the same files right now: they are replaced whole.
    fn credentials(&self) -> Vec<String> {
        let text = fs::read_to_string(self.data_dir().join("kubeconfig.yaml")).expect("a kubeconfig");
        let config: Value = serde_json::from_str(&text).expect("the file is JSON");
        let options = [("--cert", "client-certificate-data"), ("--key", "client-key-data")].map(|(option, field)| {
            let data = config.pointer(&format!("/users/0/user/{field}")).and_then(Value::as_str).expect("a field");
            let file = self.home().join(field);
            let new = self.home().join(format!("{field}.{:?}", std::thread::current().id()));
            fs::write(&new, self.program("base64", &["-d"]).input(data).ok()).expect("written");
            fs::rename(new, &file).expect("replaced");
            [option.to_owned(), file.display().to_string()]
        });
        options.into_iter().flatten().collect()
    }

    /// The QEMU processes in the cluster's containers: each with its arguments.
    ///
    /// # Panics
    /// There is no `/proc`.
    #[must_use]
    pub fn guests(&self) -> Vec<(i32, Vec<String>)> {
        self.contained(|arguments| arguments.first().is_some_and(|program| program.contains("qemu-system")))
    }

    /// The processes with such arguments in the cluster's containers, which are those whose root directory is one of its snapshots.
    /// Other tests' are none of them.
    ///
    /// # Panics
    /// There is no `/proc`.
    #[must_use]
    pub fn contained(&self, is_one: impl Fn(&[String]) -> bool) -> Vec<(i32, Vec<String>)> {
        let containerd = self.data_dir().join("containerd/root").display().to_string();
        let processes = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
        let of_ours = |path: PathBuf| {
            let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
            let arguments: Vec<String> = read("cmdline").split('\0').map(str::to_owned).collect();
            let is_root = |line: &str| line.split(' ').nth(4) == Some("/") && line.contains(&containerd);
            let found = is_one(&arguments) && read("mountinfo").lines().any(is_root);
            let pid: i32 = path.file_name()?.to_str()?.parse().ok()?;
            found.then_some((pid, arguments))
        };
        processes.filter_map(of_ours).collect()
    }

    /// The process that runs `carrack up`.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn pid(&self) -> i32 {
        let line = fs::read_to_string(self.data_dir().join("carrack.pid")).expect("a pidfile");
        line.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a pid")
    }

    /// Kills the process that runs `carrack up`, at once, and waits until it is gone.
    ///
    /// # Panics
    /// There is none.
    pub fn kill_9(&self) {
        let pid = self.pid();
        let process = rustix::process::Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it is there");
        wait_gone(pid, 10);
    }

    /// What is left of the cluster on the machine, as `scripts/leftovers` sees it; empty when nothing is.
    #[must_use]
    pub fn leftovers(&self) -> String {
        let mut command = self.inside(&root().join("scripts/leftovers"));
        command.arg(self.data_dir());
        let output = Run::new(command).output();
        format!("{}{}", output.stdout, output.stderr)
    }

    fn ip(&self, arguments: &[&str]) {
        ip(&[["-n", self.netns.as_str()].as_slice(), arguments].concat());
    }
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let nodes = ["node-1", "node-2", "node-3"].map(|node| format!("nodes/{node}/logs/carrack.log"));
            for log in ["logs/carrack.log", "logs/containerd.log"].into_iter().chain(nodes.iter().map(String::as_str)) {
                let text = fs::read_to_string(self.data_dir().join(log)).unwrap_or_default();
                if text.is_empty() {
                    continue;
                }
                let lines: Vec<&str> = text.lines().collect();
                eprintln!("---- the end of {log} ----");
                for line in &lines[lines.len().saturating_sub(40)..] {
                    eprintln!("{}", line.chars().take(400).collect::<String>());
                }
            }
        }
        let down = self.carrack(&["down", "--purge", "--grace", "0"]).limit_s(180).output();
        let left = self.leftovers();
        let netns = [self.outside(), self.netns.clone()];
        let removed = netns.map(|netns| Command::new("ip").args(["netns", "delete", &netns]).status());
        let gone = removed.iter().flatten().filter(|status| status.success()).count() == removed.len();
        if down.code == Some(0) && left.is_empty() && gone {
            return;
        }
        let problem = format!("the sandbox did not go cleanly:\n{down}{left}{removed:?}");
        if std::thread::panicking() {
            eprintln!("{problem}");
        } else {
            panic!("{problem}");
        }
    }
}

/// Waits until a process is gone that runs `carrack up` ([`Sandbox::pid`]). What it takes away as it ends goes before it does, and
/// until it is gone a cluster that is started is told that one runs already.
///
/// # Panics
/// It is still there.
pub fn wait_gone(pid: i32, limit_s: u64) {
    crate::eventually_true("the process is gone", limit_s, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
    });
}

/// Does something in a network namespace.
fn enter<T: Send>(netns: &str, work: impl FnOnce() -> std::io::Result<T> + Send) -> T {
    let netns = fs::File::open(format!("/run/netns/{netns}")).expect("the network namespace");
    std::thread::scope(|scope| {
        let inside = scope.spawn(move || {
            rustix::thread::move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        });
        inside.join().expect("it does not panic").expect("the sandbox's network")
    })
}

fn ip(arguments: &[&str]) {
    Run::new(Command::new("ip")).args(arguments).done();
}
