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
    let said = command("nsenter", &[&format!("--net={namespace}"), "sh", "-ec", &script(network)], None).await?;
    said.trim().parse().map_err(|_| format!("the MTU of {POD_INTERFACE} is not known: {said:.200}"))
}

/// Makes links and rules, and prints the MTU. In a fresh namespace all links are made by one command; where that meets
/// something already there, they are looked at one by one.
///
/// The tap device outlives the QEMU that opens it and belongs to root, so that QEMU needs no capability to open it.
fn script(network: &Masquerade) -> String {
    let Masquerade { gateway, prefix_bits, .. } = network;
    let rules = rules(network);
    format!(
        "pod=$(ip -oneline link show dev {POD_INTERFACE})
pod=${{pod#* mtu }}
mtu=${{pod%% *}}
at_once() {{
ip -batch - <<END
link add name {BRIDGE} mtu $mtu type bridge stp_state 0 forward_delay 0
address add {gateway}/{prefix_bits} dev {BRIDGE}
tuntap add dev {TAP} mode tap user 0
link set dev {TAP} mtu $mtu master {BRIDGE} up
link set dev {BRIDGE} up
END
}}
exists() {{ ip link show dev \"$1\" >/dev/null 2>&1; }}
one_by_one() {{
exists {BRIDGE} || ip link add name {BRIDGE} type bridge stp_state 0 forward_delay 0
ip address replace {gateway}/{prefix_bits} dev {BRIDGE}
exists {TAP} || ip tuntap add dev {TAP} mode tap user 0
ip link set dev {TAP} mtu $mtu master {BRIDGE} up
ip link set dev {BRIDGE} mtu $mtu up
}}
if ! at_once 2>/dev/null; then one_by_one; fi
echo 1 > /proc/sys/net/ipv4/ip_forward
nft -f - <<END
{rules}END
echo $mtu
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
