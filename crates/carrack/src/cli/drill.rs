//! The arguments of `carrack drill`.

use std::path::PathBuf;

use clap::Args;

use super::ImagesDir;
use crate::output::Format;

/// `carrack drill`
#[derive(Debug, Args)]
#[command(after_help = "\
A drill plays an incident on a cluster of its own: real processes, containerd, QEMU, sockets and
mounts, in a network namespace and a directory that are gone afterwards. It tells what it does,
watches the machine itself rather than what the cluster says of it, and ends with a verdict on
invariants and a timeline as text and as SVG. The exit status is 1 when an invariant broke.
It needs root, and what `carrack up` needs.

With --kubelet, --scheduler or --apiserver another implementation of that role takes part. A
program is started with upstream's flags:
  kubelet    --kubeconfig FILE --config FILE --hostname-override NAME --node-ip ADDRESS
             --root-dir DIR
  scheduler  --kubeconfig FILE --config FILE
A role that ends by itself ends the drill. On an API server that runs already a drill works in a
namespace of its own, with nodes called drill or drill-N, and takes all of it back at the end.

Examples:
  # Which drills are there, and how can each be made to fail?
  carrack drill --list
  carrack drill --list -o json

  # A node reboots, and its device plugins come late
  carrack drill node-reboot

  # The same with somebody else's kubelet
  carrack drill node-reboot --kubelet /usr/local/bin/kubelet

  # An API that is out for minutes
  carrack drill api-outage --outage 180

  # Is a drill any good? Break something on purpose
  carrack drill kill-9 --plant kill-the-guest")]
pub struct DrillArgs {
    /// Which drill
    #[arg(value_name = "NAME", required_unless_present = "list")]
    pub name: Option<String>,
    /// Print the drills, their invariants, and what can be planted in them
    #[arg(long, conflicts_with = "name")]
    pub list: bool,
    /// Break something on purpose, so that the drill has something to find
    #[arg(long, value_name = "WRONG")]
    pub plant: Option<String>,
    /// How often a drill does again what it does in rounds
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// For how long what is out stays out in each round, for drills of which --list says so
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub outage: Option<u64>,
    /// Directory for the timeline, as drill-NAME.txt and drill-NAME.svg
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub timeline_dir: PathBuf,
    /// A kubelet to take the place of Carrack's
    #[arg(long, value_name = "PATH")]
    pub kubelet: Option<PathBuf>,
    /// A scheduler to take the place of Carrack's
    #[arg(long, value_name = "PATH")]
    pub scheduler: Option<PathBuf>,
    /// An API server that runs already, to take the place of Carrack's: reached at URL, whatever the kubeconfig says. The drill
    /// then stays in this network
    #[arg(long, value_name = "URL", requires = "kubeconfig")]
    pub apiserver: Option<String>,
    /// With --apiserver: a kubeconfig of its administrator, with whose credentials all roles then work
    #[arg(long, value_name = "FILE", requires = "apiserver")]
    pub kubeconfig: Option<PathBuf>,
    /// Where images are built
    #[command(flatten)]
    pub images_dir: ImagesDir,
    /// Output format of the verdict, and of --list
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// The drill is in its own network already
    #[arg(long, hide = true)]
    pub inside: bool,
}
