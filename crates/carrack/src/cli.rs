//! The command line, as types. Flags follow kubectl's and k3s's names where they mean the same.

pub mod access;
pub mod bench;
pub mod drill;
pub mod explain;
pub mod node;
pub mod oidc;
pub mod roles;
pub mod sim;
pub mod store;
pub mod up;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use carrack_noderuntime::Layout;
use carrack_noderuntime::layout::DEFAULT_DATA_DIR;
use clap::{Args, Parser, Subcommand};

use crate::output::Format;

/// Virtual machines and pods behind the Kubernetes and KubeVirt APIs, in one binary.
#[derive(Debug, Parser)]
#[command(
    name = "carrack",
    version,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  # Start a cluster on this machine, in the background
  carrack up --detach

  # Use it
  export KUBECONFIG=$(carrack kubeconfig)
  kubectl get nodes,pods,vm,vmi -A
  carrack console demo

  # Stop it, and remove everything it made
  carrack down --purge"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `carrack` does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a whole cluster on this machine
    Up(Box<up::UpArgs>),
    /// Stop the cluster and leave nothing of it running
    Down(DownArgs),
    /// Switch off or look into one of several nodes on this machine
    Node(node::NodeArgs),
    /// Print the path of the administrator's kubeconfig
    Kubeconfig(KubeconfigArgs),
    /// Connect to the serial console of a virtual machine
    Console(ConsoleArgs),
    /// Tell why something is as it is
    Explain(explain::ExplainArgs),
    /// Print the version
    Version(VersionArgs),
    /// Print the script by which a shell completes this command's words
    Completion(CompletionArgs),
    /// Write manual pages, one for each command
    Man(ManArgs),
    /// Build and import the images that Carrack brings along
    Image(ImageArgs),
    /// Measure this machine
    Bench(bench::BenchArgs),
    /// Play clusters in the simulator
    Sim(sim::SimArgs),
    /// Play an incident on real processes, and judge how it went
    Drill(Box<drill::DrillArgs>),
    /// Back up, restore and check a cluster's objects
    Store(store::StoreCommandArgs),
    /// Run the role apiserver: the Kubernetes API, on the embedded store or on etcd
    Apiserver(Box<roles::ApiserverArgs>),
    /// Run the role scheduler: chooses a node for each pod
    Scheduler(roles::SchedulerArgs),
    /// Run the role controllers: workloads, autoscaling, nodes' life, volumes, garbage collection and all others of the core kinds
    Controllers(roles::ControllersArgs),
    /// Run the role virt-controller: virtual machines and their instances
    VirtController(roles::VirtControllerArgs),
    /// Run the role kubelet: the pods of one node
    Kubelet(roles::KubeletArgs),
    /// Run the role virt-handler: the guests of one node
    VirtHandler(roles::VirtHandlerArgs),
    /// Run the role gpu-extender: shares GPUs between pods, for any scheduler
    GpuExtender(roles::GpuExtenderArgs),
    /// Run the role gpu-plugin: offers the GPUs of one node
    GpuPlugin(roles::GpuPluginArgs),
    /// Play nodes that only pretend, to try out a control plane
    Hollow(roles::HollowArgs),
    /// Run the role local-storage: volumes on one node's own disk
    LocalStorage(roles::LocalStorageArgs),
    /// Run the role virt-launcher, in the pod of one virtual machine
    VirtLauncher(carrack_launcher::cli::LauncherArgs),
}

/// Where a cluster lives on this machine.
#[derive(Debug, Clone, Args)]
pub struct DataDir {
    /// Directory that holds everything of this cluster; several clusters have several
    #[arg(long, value_name = "DIR", env = "CARRACK_DATA_DIR", default_value = DEFAULT_DATA_DIR)]
    pub data_dir: PathBuf,
}

impl DataDir {
    /// The layout below the directory, made absolute: names on the machine are derived from it.
    ///
    /// # Errors
    /// The current directory is gone, or a part of the path cannot be followed.
    pub fn layout(&self) -> anyhow::Result<Layout> {
        let absolute = std::path::absolute(&self.data_dir)
            .with_context(|| format!("cannot make {} absolute", self.data_dir.display()))?;
        Ok(Layout::new(resolve_existing(&absolute)))
    }
}

/// The path with the links in its existing part followed, so that one directory has one name.
fn resolve_existing(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), _, _) => real,
        (Err(_), Some(parent), Some(name)) => resolve_existing(parent).join(name),
        _ => path.to_owned(),
    }
}

/// Where images are built.
#[derive(Debug, Clone, Args)]
pub struct ImagesDir {
    /// Directory for built images, which are built again only when what they are made from changed; images below the
    /// data directory without it
    #[arg(long, value_name = "DIR", env = "CARRACK_IMAGES_DIR")]
    pub images_dir: Option<PathBuf>,
}

impl ImagesDir {
    /// The directory.
    pub fn path(&self, layout: &Layout) -> PathBuf {
        self.images_dir.clone().unwrap_or_else(|| layout.images_dir())
    }
}

/// Which cluster to talk to, and where in it.
#[derive(Debug, Clone, Args)]
pub struct ClientArgs {
    /// Path of the kubeconfig; without it and --data-dir, the first file that KUBECONFIG names, and where that is not
    /// set, the one below CARRACK_DATA_DIR or /var/lib/carrack
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace; the context's one without it
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Directory of a cluster on this machine, to take its administrator's kubeconfig
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub data_dir: Option<PathBuf>,
}

/// `carrack down`
#[derive(Debug, Args)]
#[command(after_help = "\
Guests get their power button pressed and --grace seconds to shut down. Then every process,
mount, network namespace, link and packet filter rule of this cluster is removed, also those
that were left by processes killed earlier. The objects, images and disks stay for the next
`carrack up`, unless --purge removes them.

Examples:
  # Stop the cluster; the next `carrack up` finds its objects again
  carrack down

  # At once, and remove its objects, images and disks too
  carrack down --grace 0 --purge")]
pub struct DownArgs {
    /// Where the cluster lives
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Seconds that guests get to shut down
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub grace: u32,
    /// Also remove the data directory: all objects, images and disks
    #[arg(long)]
    pub purge: bool,
}

/// `carrack kubeconfig`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  # Point kubectl at the cluster
  export KUBECONFIG=$(carrack kubeconfig)

  # What is printed from here on holds a private key: files are to be this user's alone
  umask 077

  # Print the file itself, for another machine, which reaches the API server at this address
  carrack kubeconfig --raw --server https://192.0.2.10:6443

  # Make the credentials of a role that runs as a process of its own
  carrack kubeconfig --user scheduler > scheduler.yaml

  # All that virt-handler needs on another machine, the node n2
  carrack kubeconfig --user virt-handler --node-name n2 --server https://192.0.2.10:6443 \\
      --tls-dir n2-serving --node-ip 192.0.2.12 > n2-virt-handler.yaml")]
pub struct KubeconfigArgs {
    /// Where the cluster lives
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Print the file's content instead of its path
    #[arg(long)]
    pub raw: bool,
    /// Print the kubeconfig of a role that is to run as a process of its own
    #[arg(long, value_enum, value_name = "ROLE")]
    pub user: Option<User>,
    /// With --user kubelet, virt-handler or local-storage: name of the node; the host's name without it
    #[arg(long, value_name = "NAME", env = "CARRACK_NODE_NAME")]
    pub node_name: Option<String>,
    /// With --raw or --user: address of the API server as it is reached from elsewhere; its certificate must be for it
    /// (see --tls-san of carrack up)
    #[arg(long, value_name = "URL", value_parser = parse_server)]
    pub server: Option<String>,
    /// With --user kubelet or virt-handler: also make the certificate that it serves with, and write it into this
    /// directory as tls.crt, its key as tls.key, and the authority of those who may ask as ca.crt
    #[arg(long, value_name = "DIR", requires_all = ["user", "node_ip"])]
    pub tls_dir: Option<PathBuf>,
    /// With --tls-dir: an address at which the API server reaches the node
    #[arg(long, value_name = "ADDRESS", requires = "tls_dir")]
    pub node_ip: Vec<IpAddr>,
}

/// A role with credentials of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum User {
    /// The scheduler
    Scheduler,
    /// The controllers
    Controllers,
    /// virt-controller
    VirtController,
    /// The kubelet of a node
    Kubelet,
    /// The virt-handler of a node
    VirtHandler,
    /// The GPU extender
    GpuExtender,
    /// The storage agent of a node
    LocalStorage,
}

/// `carrack console`
#[derive(Debug, Args)]
#[command(after_help = "\
The terminal is handed to the guest, key by key. Ctrl+] ends the session; the guest runs on.
A second connection to the same console ends the first.

Examples:
  # Log in to the guest demo
  carrack console demo

  # In another namespace, and only if it runs already
  carrack console web -n prod --timeout 0

  # In a script: print what the console says until it asks for a login
  carrack console demo --expect 'login:' --timeout 180")]
pub struct ConsoleArgs {
    /// Name of the virtual machine
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Seconds to wait for the guest to run, and with --expect for the text
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=86400))]
    pub timeout: u64,
    /// Type nothing but Enter, and end with success once this text was printed
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub expect: Option<String>,
    /// How to reach the cluster
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `carrack version`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  carrack version

  # For a program
  carrack version -o json")]
pub struct VersionArgs {
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// `carrack completion`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  # In this shell
  source <(carrack completion bash)

  # In all that begin from now on; zsh is to load compinit before
  echo 'source <(carrack completion bash)' >> ~/.bashrc
  echo 'source <(carrack completion zsh)' >> ~/.zshrc
  echo 'carrack completion fish | source' >> ~/.config/fish/config.fish

  # For all users; to be written again with another version of this program
  carrack completion bash > /etc/bash_completion.d/carrack")]
pub struct CompletionArgs {
    /// Which shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

/// A shell that completes words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    /// GNU bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// `carrack man`
#[derive(Debug, Args)]
#[command(after_help = "\
The pages say what --help says.

Examples:
  carrack man /usr/local/share/man/man1
  man carrack-up")]
pub struct ManArgs {
    /// Directory for the pages, carrack.1, carrack-up.1 and so on; it is made where it is missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// `carrack image`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  # Build the demo guest and load it into the running cluster
  carrack image build demo

  # Load an image that another tool saved as an OCI or Docker archive
  carrack image import my-guest.tar")]
pub struct ImageArgs {
    /// What to do
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// What `carrack image` does.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Build images from what is installed here, and load them into the running cluster
    Build(ImageBuildArgs),
    /// Load images from archives into the running cluster
    Import(ImageImportArgs),
}

/// `carrack image build`
#[derive(Debug, Args)]
pub struct ImageBuildArgs {
    /// Which images
    #[arg(value_enum, value_name = "IMAGE", required = true)]
    pub images: Vec<BuiltIn>,
    /// Only write the archives, to the images directory below the data directory
    #[arg(long)]
    pub no_import: bool,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Where images are built
    #[command(flatten)]
    pub images_dir: ImagesDir,
    /// Where the cluster lives
    #[command(flatten)]
    pub data_dir: DataDir,
}

/// An image that Carrack can build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BuiltIn {
    /// The sandbox of every pod
    Pause,
    /// virt-launcher and QEMU
    VirtLauncher,
    /// A shell and the usual tools, for pods
    Busybox,
    /// The demo guest's disk
    Demo,
}

/// `carrack image import`
#[derive(Debug, Args)]
pub struct ImageImportArgs {
    /// OCI or Docker archives
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Where the cluster lives
    #[command(flatten)]
    pub data_dir: DataDir,
}

/// An address range in CIDR form, IPv4 for now, as from its first address: nobody takes one that begins in its middle.
///
/// # Errors
/// It is not `a.b.c.d/n`.
pub fn parse_cidr(text: &str) -> Result<String, String> {
    let bad = || format!("{text:?} is no IPv4 range such as 10.42.0.0/24");
    let (address, bits) = text.split_once('/').ok_or_else(bad)?;
    let address: Ipv4Addr = address.parse().map_err(|_| bad())?;
    let bits: u8 = bits.parse().ok().filter(|bits| (8..=30).contains(bits)).ok_or_else(bad)?;
    let first = Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << (32 - bits)));
    Ok(format!("{first}/{bits}"))
}

/// The address of an API server, without a slash at the end.
///
/// # Errors
/// It is not `https://host` or `https://host:port`.
pub fn parse_server(text: &str) -> Result<String, String> {
    let plain = text.strip_suffix('/').unwrap_or(text);
    let good = plain.parse::<http::Uri>().is_ok_and(|uri| {
        let ends = uri.path_and_query().is_none_or(|path| path.as_str() == "/");
        uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| !host.is_empty()) && ends
    });
    if good { Ok(plain.to_owned()) } else { Err(format!("{text:?} is no address such as https://192.0.2.10:6443")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// A command and all below it.
    fn all(command: &clap::Command) -> Vec<&clap::Command> {
        std::iter::once(command).chain(command.get_subcommands().flat_map(all)).collect()
    }

    /// The lines of a command's help that are to be typed, each as its words.
    fn examples(command: &clap::Command) -> Vec<Vec<String>> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default().replace("\\\n", " ");
        let typed = help.lines().map(str::trim).filter(|line| line.starts_with("carrack ") && !line.contains('…'));
        let words = |line: &str| -> Vec<String> {
            let line = line.split(" >").next().unwrap_or(line).replace('\'', "").replace("$(pidof etcd)", "7");
            line.split_whitespace().map(str::to_owned).collect()
        };
        typed.map(words).collect()
    }

    #[test]
    fn every_command_has_examples_that_can_be_typed() {
        let cli = Cli::command();
        // virt-launcher is started by its pod.
        let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
        for command in shown.filter(|command| command.get_name() != "virt-launcher") {
            assert!(all(command).into_iter().any(|command| !examples(command).is_empty()), "{}", command.get_name());
        }
        for words in all(&cli).into_iter().flat_map(examples) {
            let parsed = Cli::try_parse_from(&words);
            assert!(parsed.is_ok(), "{words:?}: {:?}", parsed.err());
        }
    }

    /// Longer ones are wrapped, and what is pasted from them breaks off there.
    #[test]
    fn help_to_be_pasted_is_not_wrapped() {
        const COLUMNS: usize = 100;
        for command in all(&Cli::command()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > COLUMNS).collect();
            assert!(long.is_empty(), "{}: {long:?}", command.get_name());
        }
    }

    #[test]
    fn ranges() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(parse_cidr(text).ok().as_deref(), expected, "{text}");
        };
        check("10.42.0.0/24", Some("10.42.0.0/24"));
        check("10.42.0.5/24", Some("10.42.0.0/24"));
        check("10.255.3.4/8", Some("10.0.0.0/8"));
        check("10.42.0.7/30", Some("10.42.0.4/30"));
        check("10.42.0.0", None);
        check("10.42.0.0/31", None);
        check("10.42.0.0/7", None);
        check("10.42.0/24", None);
        check("fd00::/64", None);
        check("", None);
    }

    #[test]
    fn numbers_that_cannot_be() {
        let refused = |words: &[&str]| Cli::try_parse_from([&["carrack"][..], words].concat()).is_err();
        assert!(refused(&["up", "--https-port", "0"]) && refused(&["up", "--kubelet-port", "0"]));
        assert!(!refused(&["up", "--https-port", "1"]) && !refused(&["up", "--scheduler-port", "0"]));
        // The clock would run over.
        assert!(refused(&["up", "--timeout", "18446744073709551615"]) && !refused(&["up", "--timeout", "0"]));
        assert!(refused(&["console", "demo", "--timeout", "18446744073709551615"]));
        // No run proves nothing, and no text is never said.
        assert!(refused(&["sim", "--runs", "0"]) && refused(&["console", "demo", "--expect", ""]));
    }

    /// Both may be said: one of them by a variable that holds for all roles of a machine.
    #[test]
    fn upstreams_way_to_say_what_to_log_goes_first() {
        let words = ["carrack", "apiserver", "--log-level", "debug", "--v", "2"];
        let Ok(Cli { command: Command::Apiserver(args) }) = Cli::try_parse_from(words) else { panic!("arguments") };
        assert_eq!(args.log.filter(), "info");
    }

    #[test]
    fn servers() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(parse_server(text).ok().as_deref(), expected, "{text}");
        };
        check("https://192.0.2.10:6443", Some("https://192.0.2.10:6443"));
        check("https://api.example/", Some("https://api.example"));
        check("https://[2001:db8::1]:6443", Some("https://[2001:db8::1]:6443"));
        check("http://192.0.2.10:6443", None);
        check("192.0.2.10:6443", None);
        check("https://a/b", None);
        check("https://", None);
        check("", None);
    }

    #[test]
    fn one_directory_has_one_name() {
        let dir = tempfile::tempdir().expect("a temp dir");
        let real = dir.path().canonicalize().expect("it is there");
        std::fs::create_dir(real.join("a")).expect("made");
        std::os::unix::fs::symlink(real.join("a"), real.join("b")).expect("linked");
        assert_eq!(resolve_existing(&real.join("b/new/dir")), real.join("a/new/dir"));
    }
}
