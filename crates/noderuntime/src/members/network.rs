//! Makes the nodes' networks, or finds them made: every step may be done again and changes nothing then.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};

use super::{GATEWAY, Member, Members, has_namespace};
use crate::host::find_program;
use crate::layout::Layout;

/// Why the nodes have no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A tool is missing.
    #[error("the program {0} is missing")]
    Missing(&'static str),
    /// A tool could not be run.
    #[error("{0} cannot be run")]
    Run(String, #[source] io::Error),
    /// A tool refused.
    #[error("{0}: {1}")]
    Refused(String, String),
    /// A file of the namespace.
    #[error("{}", .0.display())]
    File(PathBuf, #[source] io::Error),
}

/// Addresses that nobody answers to.
const MULTICAST: &str = "224.0.0.0/4";

/// Where a command runs.
#[derive(Clone, Copy)]
enum At<'a> {
    /// In the cluster's namespace.
    Cluster,
    /// In a node's.
    Node(&'a Path),
}

/// Makes bridge, namespaces, links, addresses, routes and rules for all nodes. Blocks meanwhile.
///
/// # Errors
/// See [`NetworkError`].
pub fn set_up(members: &Members) -> Result<(), NetworkError> {
    let bridge = members.bridge();
    let (gateway, bits) = GATEWAY;
    if run(At::Cluster, "ip", &["link", "show", "dev", &bridge]).is_err() {
        run(At::Cluster, "ip", &["link", "add", &bridge, "type", "bridge"])?;
    }
    run(At::Cluster, "ip", &["address", "replace", &format!("{gateway}/{bits}"), "dev", &bridge])?;
    run(At::Cluster, "ip", &["link", "set", &bridge, "up"])?;
    forward(At::Cluster)?;
    for member in members.all() {
        namespace(&member.layout)?;
        link(members, member)?;
    }
    for member in members.all() {
        routes(At::Cluster, members, None)?;
        let netns = member.netns();
        routes(At::Node(&netns), members, Some(member))?;
        masquerade_node(members, member)?;
    }
    masquerade_nodes(members).map(drop)
}

/// What nodes and their pods send elsewhere than to each other comes from this machine, which passes it on. Returns whether
/// anything had to be done for that. Blocks meanwhile.
///
/// # Errors
/// See [`NetworkError`].
pub fn masquerade_nodes(members: &Members) -> Result<bool, NetworkError> {
    let ((gateway, bits), bridge) = (GATEWAY, members.bridge());
    let hidden = hide(&members.cluster, "nodes", &format!("{gateway}/{bits}"), &bridge)?;
    Ok(pass_on(&members.cluster, "nodes", &bridge)? || hidden)
}

/// What the pods of a node that has this network to itself send elsewhere than to each other comes from the node, which passes it
/// on. It is one rule for all of them: CNI's `ipMasq` makes a chain for each pod, and reads those of all others for it. Returns
/// whether anything had to be done for that. Blocks meanwhile.
///
/// # Errors
/// See [`NetworkError`].
pub fn masquerade(layout: &Layout, pod_cidr: &str) -> Result<bool, NetworkError> {
    let hidden = hide(layout, "pods", pod_cidr, &layout.bridge())?;
    Ok(pass_on(layout, "pods", &layout.bridge())? || hidden)
}

/// What pods send to this machine's loopback addresses goes nowhere; answers to what was asked from here pass. CNI's
/// `portmap` has the kernel take such addresses from the bridge (`route_localnet`) as soon as one pod has a host port, and
/// then any pod would reach what listens for this machine alone (CVE-2020-8558; upstream's rule is in
/// `pkg/kubelet/kubelet_network_linux.go`). Blocks meanwhile.
///
/// # Errors
/// See [`NetworkError`].
pub fn guard_loopback(layout: &Layout) -> Result<(), NetworkError> {
    run(At::Cluster, "nft", &[guard(&layout.loopback_table(), &layout.bridge()).as_str()]).map(drop)
}

/// Whether there is such a table. Blocks meanwhile.
#[must_use]
pub fn is_guarded(layout: &Layout) -> bool {
    run(At::Cluster, "nft", &["list", "table", "ip", &layout.loopback_table()]).is_ok()
}

/// The rules by which this machine's packets change their addresses, as `iptables-save` writes them. Blocks meanwhile.
pub(crate) fn nat_rules() -> Result<String, NetworkError> {
    run(At::Cluster, "iptables-save", &["-t", "nat"])
}

/// The commands for a table with that rule, in one transaction, whatever there was under its name.
fn guard(table: &str, bridge: &str) -> String {
    format!(
        "add table ip {table}; flush table ip {table}; \
         add chain ip {table} input {{ type filter hook input priority -10; policy accept; }}; \
         add rule ip {table} input iifname \"{bridge}\" ip daddr 127.0.0.0/8 ct state new,invalid,untracked drop"
    )
}

/// What comes from a range and leaves by another way than its bridge has this machine's address then. Multicast stays.
fn hide(cluster: &Layout, what: &str, range: &str, bridge: &str) -> Result<bool, NetworkError> {
    let comment = comment(cluster, what);
    let rule = [
        &["POSTROUTING", "-s", range, "!", "-d", MULTICAST, "!", "-o", bridge],
        &["-m", "comment", "--comment", &*comment][..],
    ];
    nat(At::Cluster, "-A", &rule.concat(), "MASQUERADE")
}

/// The comment of a rule has the form that CNI's plugins give theirs, by which `carrack down` finds a cluster's rules.
fn comment(cluster: &Layout, what: &str) -> String {
    format!("name: \"{}\" id: \"{what}\"", cluster.cni_network())
}

/// Where this machine passes on nothing that no rule allows, as with Docker or ufw, there are rules for what comes from a bridge,
/// and for answers to that and what host ports lead there. They come last, so that whatever somebody has forbidden stays so.
///
/// Upstream: kube-proxy's chain `KUBE-FORWARD`; flannel's `FLANNEL-FWD` allows what is for pods from everywhere, too.
fn pass_on(cluster: &Layout, what: &str, bridge: &str) -> Result<bool, NetworkError> {
    // What cannot be read keeps nothing back: there is no such filter.
    let saved = run(At::Cluster, "iptables-save", &["-t", "filter"]).unwrap_or_default();
    if !drops_unasked(&saved) {
        return Ok(false);
    }
    let comment = comment(cluster, what);
    let about = ["-m", "comment", "--comment", &*comment];
    let ways: [&[&str]; 2] =
        [&["-i", bridge], &["-o", bridge, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED,DNAT"]];
    let mut added = false;
    for way in ways {
        added |= rule(At::Cluster, "filter", "-A", &[&["FORWARD"][..], way, &about[..]].concat(), "ACCEPT")?;
    }
    Ok(added)
}

/// Whether what a machine is to pass on is dropped where no rule says otherwise, by `iptables-save`.
fn drops_unasked(saved: &str) -> bool {
    let policy = saved.lines().find_map(|line| line.strip_prefix(":FORWARD "));
    policy.is_some_and(|policy| !policy.starts_with("ACCEPT"))
}

/// Takes a node's namespace away, and with it all that is in it.
///
/// # Errors
/// It cannot be unmounted.
pub fn remove_namespace(member: &Layout) -> io::Result<()> {
    let file = super::netns_of(member);
    while has_namespace(member)? {
        unmount(&file, UnmountFlags::DETACH)?;
    }
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A namespace that is held by a mount.
fn namespace(member: &Layout) -> Result<(), NetworkError> {
    let file = super::netns_of(member);
    let failed = |error| NetworkError::File(file.clone(), error);
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    if has_namespace(member).map_err(failed)? {
        return Ok(());
    }
    fs::write(&file, "").map_err(failed)?;
    run(At::Cluster, "unshare", &[&format!("--net={}", file.display()), "true"]).map(drop)
}

/// The link between bridge and namespace, with the node's address.
fn link(members: &Members, member: &Member) -> Result<(), NetworkError> {
    let netns = member.netns();
    let (inside, outside) = (At::Node(&netns), member.link(&members.cluster));
    if run(inside, "ip", &["link", "show", "dev", "eth0"]).is_err() {
        // A half that is left from an earlier namespace is in the way.
        if run(At::Cluster, "ip", &["link", "show", "dev", &outside]).is_ok() {
            run(At::Cluster, "ip", &["link", "delete", &outside])?;
        }
        run(
            At::Cluster,
            "ip",
            &["link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", &path(&netns)],
        )?;
    }
    run(At::Cluster, "ip", &["link", "set", &outside, "master", &members.bridge(), "up"])?;
    run(inside, "ip", &["link", "set", "lo", "up"])?;
    run(inside, "ip", &["link", "set", "eth0", "up"])?;
    run(inside, "ip", &["address", "replace", &format!("{}/{}", member.address, GATEWAY.1), "dev", "eth0"])?;
    run(inside, "ip", &["route", "replace", "default", "via", &members.gateway().to_string()])?;
    forward(inside)
}

/// A route to every node's pods but to one's own.
fn routes(at: At<'_>, members: &Members, own: Option<&Member>) -> Result<(), NetworkError> {
    for other in members.all().iter().filter(|other| own.is_none_or(|own| own.number != other.number)) {
        run(at, "ip", &["route", "replace", &other.pod_cidr, "via", &other.address.to_string()])?;
    }
    Ok(())
}

/// What a node's pods send elsewhere than to pods comes from the node.
fn masquerade_node(members: &Members, member: &Member) -> Result<(), NetworkError> {
    let netns = member.netns();
    let at = At::Node(&netns);
    nat(at, "-A", &["POSTROUTING", "-s", &member.pod_cidr, "!", "-d", MULTICAST], "MASQUERADE")?;
    for other in members.all() {
        nat(at, "-I", &["POSTROUTING", "-s", &member.pod_cidr, "-d", &other.pod_cidr], "ACCEPT")?;
    }
    Ok(())
}

fn nat(at: At<'_>, how: &str, words: &[&str], target: &str) -> Result<bool, NetworkError> {
    rule(at, "nat", how, words, target)
}

/// A rule that is there already stays. Returns whether it was not.
fn rule(at: At<'_>, table: &str, how: &str, words: &[&str], target: &str) -> Result<bool, NetworkError> {
    let line = |how| ["-w", "-t", table, how].into_iter().chain(words.iter().copied()).chain(["-j", target]);
    if run(at, "iptables", &line("-C").collect::<Vec<_>>()).is_ok() {
        return Ok(false);
    }
    run(at, "iptables", &line(how).collect::<Vec<_>>()).map(|_| true)
}

fn forward(at: At<'_>) -> Result<(), NetworkError> {
    run(at, "sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).map(drop)
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn run(at: At<'_>, program: &'static str, arguments: &[&str]) -> Result<String, NetworkError> {
    let found = |program: &'static str| find_program(program).ok_or(NetworkError::Missing(program));
    let mut command = match at {
        At::Cluster => Command::new(found(program)?),
        At::Node(netns) => {
            let mut command = Command::new(found("nsenter")?);
            command.arg(format!("--net={}", path(netns))).arg("--").arg(found(program)?);
            command
        }
    };
    let what = || format!("{program} {}", arguments.join(" "));
    // A key that interrupts us is not for it: it is through in a moment, and half a network would be told as a failure.
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    let output = command.output().map_err(|error| NetworkError::Run(what(), error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(NetworkError::Refused(what(), String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a network namespace of its own; none where there is no such thing, or no nftables.
    fn nft(script: &str) -> Option<String> {
        let output = Command::new("unshare").args(["--net", "sh", "-c", script]).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn the_loopback_has_one_guard_however_often_it_is_set() {
        if nft("nft add table ip t").is_none() {
            return;
        }
        let commands = guard("carrack-12ab-loopback", "cni-12ab");
        let script = format!("nft '{commands}' && nft '{commands}' && nft list ruleset");
        let rules = nft(&script).expect("the kernel takes it");
        assert_eq!(rules.matches("drop").count(), 1, "{rules}");
        assert!(rules.contains("iifname \"cni-12ab\" ip daddr 127.0.0.0/8 ct state"), "{rules}");
    }

    #[test]
    fn a_machine_that_passes_on_nothing_unasked_is_known() {
        let docker = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [1:60]\n:OUTPUT ACCEPT [0:0]\n:DOCKER - [0:0]\n\
                      -A FORWARD -j DOCKER-USER\nCOMMIT\n";
        let open = "*filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.42.0.9/32 -j DROP\nCOMMIT\n";
        for (saved, expected) in [(docker, true), (open, false), ("", false), ("*filter\n:FORWARDED - [0:0]\n", false)]
        {
            assert_eq!(drops_unasked(saved), expected, "{saved}");
        }
    }
}
