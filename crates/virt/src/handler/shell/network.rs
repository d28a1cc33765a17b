//! The pod's network for its guest.
//!
//! ```text
//!   masquerade:  eth0 (the pod's address) ── nftables: DNAT in, masquerade out ── k6t-eth0 (10.0.2.1) ── tap0 ── guest 10.0.2.2
//!   bridge:      eth0-nic ── k6t-eth0 ── tap0 ── guest, with the pod's address by DHCP;  eth0 (a dummy) keeps the address
//! ```
//!
//! Everything is made inside the pod's network namespace and goes with it. Doing it again changes nothing: links are
//! made when they are missing, and the table is replaced as a whole in one transaction. What a bridged pod's interface
//! was like is written into the bridge's alias before anything is taken from it, so that a handler that comes back half
//! way finds it there.

use std::io::Read as _;
use std::net::Ipv4Addr;
use std::path::Path;

use carrack_launcher::layout;

use super::command;
use crate::handler::effects::{Binding, LinkFacts, Masquerade, PodLink};

/// Name of the nftables table.
const TABLE: &str = "kubevirt-masquerade";

/// Most of a container's file of name servers that is read, bytes.
const MAX_RESOLVER: u64 = 64 << 10;

/// The DHCP server's address on a bridge that has none of its own; KubeVirt's choice.
const BRIDGE_ADDRESS: &str = "169.254.75.10/32";

/// Prepares an interface of the pod that a process belongs to; returns what it is like.
///
/// # Errors
/// Why not, for people.
pub(super) async fn prepare(pid: u32, link: &PodLink) -> Result<LinkFacts, String> {
    in_namespace(&format!("/proc/{pid}/ns/net"), link).await
}

async fn in_namespace(namespace: &str, link: &PodLink) -> Result<LinkFacts, String> {
    let script = match &link.binding {
        Binding::Masquerade(network) => masquerade(link, network),
        Binding::Bridge { port_mac } => bridge(link, port_mac),
    };
    let said = command("nsenter", &[&format!("--net={namespace}"), "sh", "-ec", &script], None).await?;
    facts(&said).ok_or_else(|| format!("what {} is like is not known: {said:.200}", link.pod_interface))
}

/// Reads `mtu [address/bits|- [router|-]]`.
fn facts(said: &str) -> Option<LinkFacts> {
    let mut words = said.split_whitespace();
    let mtu = words.next()?.parse().ok()?;
    let address = words.next().and_then(|word| {
        let (address, bits) = word.split_once('/')?;
        Some((address.parse::<Ipv4Addr>().ok()?, bits.parse().ok()?))
    });
    let router = words.next().and_then(|word| word.parse().ok());
    Some(LinkFacts { mtu: Some(mtu), address, router })
}

/// Makes links and rules, and prints the MTU. In a fresh namespace all links are made by one command; where that meets
/// something already there, they are looked at one by one.
///
/// The tap device outlives the QEMU that opens it and belongs to root, so that QEMU needs no capability to open it.
fn masquerade(link: &PodLink, network: &Masquerade) -> String {
    let PodLink { pod_interface, bridge, tap, .. } = link;
    let queues = queues(link);
    let Masquerade { gateway, prefix_bits, .. } = network;
    let rules = rules(pod_interface, network);
    format!(
        "pod=$(ip -oneline link show dev {pod_interface})
pod=${{pod#* mtu }}
mtu=${{pod%% *}}
at_once() {{
ip -batch - <<END
link add name {bridge} mtu $mtu type bridge stp_state 0 forward_delay 0
address add {gateway}/{prefix_bits} dev {bridge}
tuntap add dev {tap} mode tap user 0{queues}
link set dev {tap} mtu $mtu master {bridge} up
link set dev {bridge} up
END
}}
exists() {{ ip link show dev \"$1\" >/dev/null 2>&1; }}
one_by_one() {{
exists {bridge} || ip link add name {bridge} type bridge stp_state 0 forward_delay 0
ip address replace {gateway}/{prefix_bits} dev {bridge}
exists {tap} || ip tuntap add dev {tap} mode tap user 0{queues}
ip link set dev {tap} mtu $mtu master {bridge} up
ip link set dev {bridge} mtu $mtu up
}}
if ! at_once 2>/dev/null; then one_by_one; fi
echo 1 > /proc/sys/net/ipv4/ip_forward
nft -f - <<END
{rules}END
echo $mtu
"
    )
}

/// What a tap device is told that has several queues: QEMU opens it once for each.
fn queues(link: &PodLink) -> &'static str {
    if link.multi_queue { " multi_queue" } else { "" }
}

/// The table, in place of what it was.
fn rules(pod_interface: &str, network: &Masquerade) -> String {
    let Masquerade { guest, ports, .. } = network;
    let inbound: String = if ports.is_empty() {
        format!("    iifname \"{pod_interface}\" dnat to {guest}\n")
    } else {
        ports
            .iter()
            .map(|(protocol, port)| {
                let protocol = if protocol == "udp" { "udp" } else { "tcp" };
                format!("    iifname \"{pod_interface}\" {protocol} dport {port} dnat to {guest}\n")
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
    ip saddr {guest} oifname \"{pod_interface}\" masquerade
  }}
}}
"
    )
}

/// Puts the pod's interface and the guest's on one segment, and prints MTU, address and router. A dummy keeps the pod's
/// address where runtimes and monitoring look for it; it answers no ARP in the guest's place. Where the kernel has no
/// dummies, a bridge without ports is one.
///
/// An interface that takes frames for its own hardware address alone is of no use on a bridge, and is refused by name: its guest
/// would hear nobody, and nobody would know why.
fn bridge(link: &PodLink, port_mac: &str) -> String {
    let PodLink { pod_interface: pod, bridge, tap, .. } = link;
    let queues = queues(link);
    // At most fifteen characters, as names of interfaces are.
    let nic: String = format!("{}-nic", pod.chars().take(11).collect::<String>());
    format!(
        "exists() {{ ip link show dev \"$1\" >/dev/null 2>&1; }}
for kind in macvlan ipvlan; do
  if ip -oneline link show dev {pod} type $kind 2>/dev/null | grep -q .; then
    echo \"{pod} is a $kind interface: it takes frames for itself alone, and none for a guest on a bridge; use the plugin bridge\" >&2
    exit 1
  fi
done
exists {bridge} || ip link add name {bridge} type bridge stp_state 0 forward_delay 0
read_alias() {{ ip -oneline link show dev {bridge} | sed -n 's/.*alias //p'; }}
was=$(read_alias)
if [ -z \"$was\" ]; then
  line=$(ip -oneline link show dev {pod})
  line=${{line#* mtu }}
  mtu=${{line%% *}}
  address=$(ip -4 -oneline address show dev {pod} | awk '{{ print $4; exit }}')
  router=$(ip -4 route show default dev {pod} | awk '{{ print $3; exit }}')
  ip link set dev {bridge} alias \"$mtu ${{address:--}} ${{router:--}}\"
  was=$(read_alias)
fi
set -- $was
mtu=$1 address=$2
echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore
exists {tap} || ip tuntap add dev {tap} mode tap user 0{queues}
ip link set dev {tap} mtu $mtu master {bridge} up
ip address replace {BRIDGE_ADDRESS} dev {bridge}
ip link set dev {bridge} mtu $mtu up
if ! exists {nic}; then
  ip link set dev {pod} down
  ip link set dev {pod} name {nic}
fi
ip link set dev {nic} address {port_mac}
ip -4 address flush dev {nic}
ip link set dev {nic} master {bridge} up
if [ $address != - ]; then
  exists {pod} || ip link add name {pod} type dummy 2>/dev/null || ip link add name {pod} type bridge
  ip address replace $address dev {pod}
fi
echo $was
"
    )
}

/// Name servers and search domains of a container, for its guest. What cannot be read is left out: a guest without name
/// servers still has an address.
pub(super) fn resolver(pid: u32) -> (Vec<Ipv4Addr>, Vec<String>) {
    let mut text = String::new();
    // Whoever is in the container can make something else of it. An image may have a link there.
    let root = format!("/proc/{pid}/root");
    let file = layout::open_file(&Path::new(&root).join("etc/resolv.conf"))
        .or_else(|_| layout::open_inside(Path::new(&root), Path::new("etc/resolv.conf")));
    if let Err(error) = file.and_then(|file| file.take(MAX_RESOLVER).read_to_string(&mut text)) {
        tracing::warn!(pid, %error, "a pod's name servers are not known");
    }
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
