//! The pod's network for a guest behind address translation.
//!
//! ```text
//!   pod's network namespace
//!     eth0 (the pod's address) ── nftables: DNAT in, masquerade out ── k6t-eth0 (bridge, 10.0.2.1) ── tap0 ── guest 10.0.2.2
//! ```
//!
//! Everything is made inside the pod's network namespace and goes with it. Doing it again changes nothing: links are
//! made when they are missing, and the table is replaced as a whole in one transaction.

use std::net::Ipv4Addr;

use super::command;
use crate::handler::effects::Masquerade;
use crate::handler::spec::{BRIDGE, POD_INTERFACE, TAP};

/// Name of the nftables table.
const TABLE: &str = "kubevirt-masquerade";

/// Prepares the network of the pod that a process belongs to; returns its MTU.
///
/// # Errors
/// Why not, for people.
pub(super) async fn prepare(pid: u32, network: &Masquerade) -> Result<u16, String> {
    in_namespace(&format!("/proc/{pid}/ns/net"), network).await
}

async fn in_namespace(namespace: &str, network: &Masquerade) -> Result<u16, String> {
    let net = format!("--net={namespace}");
    let links = command("nsenter", &[&net, "ip", "-json", "link", "show", "dev", POD_INTERFACE], None).await?;
    let mtu = mtu(&links).ok_or_else(|| format!("the MTU of {POD_INTERFACE} is not known: {links:.200}"))?;
    command("nsenter", &[&net, "sh", "-ec", &link_script(network, mtu)], None).await?;
    command("nsenter", &[&net, "nft", "-f", "-"], Some(rules(network))).await?;
    Ok(mtu)
}

fn mtu(links: &str) -> Option<u16> {
    let links: serde_json::Value = serde_json::from_str(links).ok()?;
    u16::try_from(links.get(0)?.get("mtu")?.as_u64()?).ok()
}

/// Makes the links. The tap device outlives the QEMU that opens it and belongs to root, so that QEMU needs no
/// capability to open it.
fn link_script(network: &Masquerade, mtu: u16) -> String {
    let Masquerade { gateway, prefix_bits, .. } = network;
    format!(
        "exists() {{ ip link show dev \"$1\" >/dev/null 2>&1; }}
exists {BRIDGE} || ip link add name {BRIDGE} type bridge stp_state 0 forward_delay 0
ip address replace {gateway}/{prefix_bits} dev {BRIDGE}
exists {TAP} || ip tuntap add dev {TAP} mode tap user 0
ip link set dev {TAP} mtu {mtu} master {BRIDGE}
ip link set dev {BRIDGE} mtu {mtu} up
ip link set dev {TAP} up
echo 1 > /proc/sys/net/ipv4/ip_forward
"
    )
}

/// The table, in place of what it was.
fn rules(network: &Masquerade) -> String {
    let Masquerade { guest, ports, .. } = network;
    let inbound: String = if ports.is_empty() {
        format!("    iifname \"{POD_INTERFACE}\" dnat to {guest}\n")
    } else {
        ports
            .iter()
            .map(|(protocol, port)| {
                let protocol = if protocol == "udp" { "udp" } else { "tcp" };
                format!("    iifname \"{POD_INTERFACE}\" {protocol} dport {port} dnat to {guest}\n")
            })
            .collect()
    };
    format!(
        "table ip {TABLE}
delete table ip {TABLE}
table ip {TABLE} {{
  chain prerouting {{
    type nat hook prerouting priority dstnat; policy accept;
{inbound}  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {guest} oifname \"{POD_INTERFACE}\" masquerade
  }}
}}
"
    )
}

/// Name servers and search domains of a container, for its guest. What cannot be read is left out: a guest without name
/// servers still has an address.
pub(super) fn resolver(pid: u32) -> (Vec<Ipv4Addr>, Vec<String>) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/root/etc/resolv.conf")).unwrap_or_default();
    parse_resolver(&text)
}

fn parse_resolver(text: &str) -> (Vec<Ipv4Addr>, Vec<String>) {
    let (mut servers, mut search) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => servers.extend(words.next().and_then(|word| word.parse::<Ipv4Addr>().ok())),
            Some("search") => search = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    // A resolver on the pod's own loopback is not the guest's.
    servers.retain(|server| !server.is_loopback());
    (servers, search)
}

#[cfg(test)]
mod tests;
