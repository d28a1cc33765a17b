//! Several nodes on one machine, each with a network namespace, a containerd and an agent's process of its own.
//!
//! ```text
//!    the cluster's namespace                     a node's namespace (nodes/<name>.net)
//!    API server, scheduler …                     agent: kubelet, virt-handler; containerd; pods behind its bridge
//!        │ 10.44.0.1                                 │ 10.44.0.10 + number
//!        └── bridge crn-<suffix> ── veth ────────────┘ eth0
//! ```
//!
//! Each node has a range of pod addresses; every namespace has a route to each of them by way of the node's address, so
//! that pods of different nodes see each other under their own addresses. What leaves the nodes' networks is masqueraded,
//! once by the node (so that replies find it) and once by the machine.
//!
//! A node's namespace is held by a mount below the data directory. It outlives every process, and `carrack down` finds
//! it in the mount table. Whatever lies in it (links, routes, rules) goes with it.

mod network;

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::layout::Layout;

pub(crate) use network::nat_rules;
pub use network::{NetworkError, guard_loopback, is_guarded, masquerade, masquerade_nodes, remove_namespace, set_up};

/// The most nodes that one machine can have here: as many as there are addresses set aside.
pub const MAX_NODES: u8 = 100;

/// The machine's address on the nodes' bridge, and the length of the prefix.
const GATEWAY: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 44, 0, 1), 24);
/// The first node's address has this as its last byte.
const FIRST_ADDRESS: u8 = 11;

/// One node of several on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name: `node-1` and so on.
    pub name: String,
    /// Its number, from 1.
    pub number: u8,
    /// Where its files lie.
    pub layout: Layout,
    /// Its address on the nodes' bridge.
    pub address: Ipv4Addr,
    /// The range of its pods' addresses.
    pub pod_cidr: String,
}

/// The nodes of a cluster whose nodes are several on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    cluster: Layout,
    all: Vec<Member>,
}

/// Why there cannot be so many nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// Too many, or none.
    #[error("{0} nodes: there can be 1 to {MAX_NODES}")]
    Count(u8),
    /// Their ranges of pod addresses have no room.
    #[error("{0:?} has no room behind it for the pods of {1} nodes")]
    PodCidr(String, u8),
}

impl Members {
    /// The nodes `node-1` to `node-<count>` of the cluster in `cluster`. `pod_cidr` is the first one's range; the others
    /// have the ranges of the same size that follow it.
    ///
    /// # Errors
    /// See [`MembersError`].
    pub fn new(cluster: &Layout, count: u8, pod_cidr: &str) -> Result<Self, MembersError> {
        if count == 0 || count > MAX_NODES {
            return Err(MembersError::Count(count));
        }
        let member = |number: u8| {
            let range = nth_range(pod_cidr, number - 1)?;
            let name = format!("node-{number}");
            Some(Member {
                layout: Layout::new(dir(cluster).join(&name)),
                address: Ipv4Addr::from_bits(GATEWAY.0.to_bits() - 1 + u32::from(FIRST_ADDRESS + number - 1)),
                pod_cidr: range,
                name,
                number,
            })
        };
        let all: Option<Vec<Member>> = (1..=count).map(member).collect();
        let all = all.ok_or_else(|| MembersError::PodCidr(pod_cidr.to_owned(), count))?;
        Ok(Self { cluster: cluster.clone(), all })
    }

    /// The nodes.
    #[must_use]
    pub fn all(&self) -> &[Member] {
        &self.all
    }

    /// The machine's address on the nodes' bridge, under which nodes reach the control plane.
    #[must_use]
    pub fn gateway(&self) -> Ipv4Addr {
        GATEWAY.0
    }

    /// The bridge between the nodes: `crn-<suffix>`, at most 12 of the 15 bytes that a link's name may have.
    #[must_use]
    pub fn bridge(&self) -> String {
        bridge(&self.cluster)
    }
}

impl Member {
    /// What holds its network namespace: a file on which it is mounted.
    #[must_use]
    pub fn netns(&self) -> PathBuf {
        netns_of(&self.layout)
    }

    /// What its agent is told, as JSON.
    #[must_use]
    pub fn agent_file(&self) -> PathBuf {
        self.layout.data_dir().join("agent.json")
    }

    /// The machine's end of the link to it.
    fn link(&self, cluster: &Layout) -> String {
        let suffix = cluster.suffix();
        format!("vn{}-{}", self.number, if suffix.is_empty() { "main" } else { &suffix })
    }
}

/// The file that holds a node's network namespace.
#[must_use]
pub fn netns_of(member: &Layout) -> PathBuf {
    member.data_dir().with_extension("net")
}

/// It exists while a node is switched off: its agent is not started then.
#[must_use]
pub fn off_file(member: &Layout) -> PathBuf {
    member.data_dir().with_extension("off")
}

/// Stands for the kernel's word on which boot this is. One kernel runs all nodes; this lets each lose power for itself.
#[must_use]
pub fn boot_id_file(member: &Layout) -> PathBuf {
    member.data_dir().with_extension("boot")
}

/// The directory of the nodes, when there are several.
#[must_use]
pub fn dir(cluster: &Layout) -> PathBuf {
    cluster.data_dir().join("nodes")
}

pub(crate) fn bridge(cluster: &Layout) -> String {
    let suffix = cluster.suffix();
    if suffix.is_empty() { "carrack-nodes".to_owned() } else { format!("crn-{suffix}") }
}

/// The nodes that a cluster has on this machine by what lies there, whoever made them; none for a cluster of one.
///
/// # Errors
/// The directory cannot be read.
pub fn found(cluster: &Layout) -> io::Result<Vec<Layout>> {
    let dirs = carrack_disks::directories(&dir(cluster))?;
    Ok(dirs.into_iter().map(Layout::new).collect())
}

/// Whether a network namespace is mounted on a node's file.
///
/// # Errors
/// The mount table cannot be read.
pub fn has_namespace(member: &Layout) -> io::Result<bool> {
    let file = netns_of(member);
    let parent = file.parent().unwrap_or(Path::new("/"));
    Ok(crate::teardown::mounts_below(parent)?.contains(&file))
}

/// The `n`th range after `cidr` of the same size; none when there is no room.
fn nth_range(cidr: &str, n: u8) -> Option<String> {
    let (address, bits) = cidr.split_once('/')?;
    let bits: u32 = bits.parse().ok().filter(|bits| (8..=30).contains(bits))?;
    let size = 1_u32 << (32 - bits);
    let first = address.parse::<Ipv4Addr>().ok()?.to_bits() & !(size - 1);
    let start = first.checked_add(size.checked_mul(u32::from(n))?)?;
    start.checked_add(size - 1)?;
    Some(format!("{}/{bits}", Ipv4Addr::from_bits(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_one_another() {
        let check = |cidr: &str, n: u8, expected: Option<&str>| assert_eq!(nth_range(cidr, n).as_deref(), expected);
        check("10.42.0.0/24", 0, Some("10.42.0.0/24"));
        check("10.42.0.0/24", 2, Some("10.42.2.0/24"));
        check("10.42.0.9/25", 1, Some("10.42.0.128/25"));
        check("255.255.255.0/24", 0, Some("255.255.255.0/24"));
        check("255.255.255.0/24", 1, None);
        check("10.42.0.0/33", 0, None);
        check("nonsense", 0, None);
    }

    #[test]
    fn nodes_have_names_addresses_and_ranges_of_their_own() {
        let members = Members::new(&Layout::new("/d"), 3, "10.42.0.0/24").expect("members");
        let seen: Vec<String> = members
            .all()
            .iter()
            .map(|m| format!("{} {} {} {}", m.name, m.address, m.pod_cidr, m.netns().display()))
            .collect();
        assert_eq!(
            seen,
            [
                "node-1 10.44.0.11 10.42.0.0/24 /d/nodes/node-1.net",
                "node-2 10.44.0.12 10.42.1.0/24 /d/nodes/node-2.net",
                "node-3 10.44.0.13 10.42.2.0/24 /d/nodes/node-3.net"
            ]
        );
        assert!(members.bridge().len() <= 15 && members.all()[2].link(&Layout::new("/d")).len() <= 15);
        assert_eq!(Members::new(&Layout::new("/d"), 0, "10.42.0.0/24"), Err(MembersError::Count(0)));
        assert_eq!(Members::new(&Layout::new("/d"), 101, "10.42.0.0/24"), Err(MembersError::Count(101)));
        assert!(matches!(Members::new(&Layout::new("/d"), 3, "255.255.255.0/24"), Err(MembersError::PodCidr(..))));
    }
}
