//! This machine's addresses, as far as a node needs them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use carrack_apiserver::Cidr;
use carrack_noderuntime::host;

/// How many addresses a range for pods has at least.
const FEWEST: u32 = 16;

/// The address under which others reach this machine: the one it would send from towards the outside. Nothing is sent.
///
/// Without a default route it is the loopback address, which does for a cluster of one node.
pub fn own_address() -> IpAddr {
    // An address for documentation: any outside one has the same route.
    let outside = SocketAddr::from((Ipv4Addr::new(198, 51, 100, 1), 9));
    let found = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect(outside)?;
        socket.local_addr()
    });
    match found {
        Ok(address) if !address.ip().is_unspecified() => address.ip(),
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    }
}

/// A node's address: what was given, else where it listens if that is one address, else the one of the default route.
///
/// # Errors
/// It listens on this machine's own loopback only, and is to have another address: nobody would reach it there.
pub fn node_address(given: Option<IpAddr>, listens: IpAddr) -> anyhow::Result<IpAddr> {
    match given {
        Some(address) if listens.is_loopback() && !address.is_loopback() => bail!(
            "the node's address is {address} (--node-ip), and it listens on {listens} alone (--bind-address): \
             nobody would reach it. Leave one of the two out"
        ),
        Some(address) => Ok(address),
        None if listens.is_unspecified() => Ok(own_address()),
        None => Ok(listens),
    }
}

/// Reads a range of addresses.
///
/// # Errors
/// The range makes no sense.
pub fn range(cidr: &str) -> anyhow::Result<Cidr> {
    Cidr::parse(cidr).with_context(|| format!("{cidr:?} is no address range"))
}

/// Refuses ranges that overlap: packets for one would go to the other.
///
/// # Errors
/// They overlap.
pub fn refuse_overlap(one: &str, two: &str) -> anyhow::Result<()> {
    match (ends(one), ends(two)) {
        (Some((first, last)), Some((other_first, other_last))) if first <= other_last && other_first <= last => {
            bail!("the address ranges {one} and {two} overlap")
        }
        _ => Ok(()),
    }
}

/// The first and the last address of a range.
fn ends(cidr: &str) -> Option<(u32, u32)> {
    let (address, bits) = cidr.split_once('/')?;
    let mask = u32::MAX.checked_shl(32_u32.checked_sub(bits.parse().ok()?)?).unwrap_or(0);
    let first = address.parse::<Ipv4Addr>().ok()?.to_bits() & mask;
    Some((first, first | !mask))
}

/// Refuses ranges for pods that another link of this machine has already, such as the bridge of another cluster: what is for pods
/// would go there. So it does one that differs from the one with which the cluster's own bridge was made: pods of before have
/// its addresses, and none would start in another. A cluster that has its bridge goes on with it, whatever link has come since.
///
/// # Errors
/// Which link, or the links cannot be listed.
pub fn refuse_links<'a>(pod_cidrs: impl IntoIterator<Item = &'a str>, own_bridge: Option<&str>) -> anyhow::Result<()> {
    let listed = list_addresses(&[])?;
    pod_cidrs.into_iter().try_for_each(|pod_cidr| in_the_way(&listed, pod_cidr, own_bridge))
}

/// The same by what `ip -oneline address` lists.
fn in_the_way(listed: &str, pod_cidr: &str, own_bridge: Option<&str>) -> anyhow::Result<()> {
    let Some((first, last)) = ends(pod_cidr) else { return Ok(()) };
    let (own, others): (Vec<_>, Vec<_>) =
        listed.lines().filter_map(address).partition(|(link, _)| Some(*link) == own_bridge);
    if let Some((link, range)) = own.first() {
        ensure!(
            own.iter().any(|(_, range)| ends(range) == Some((first, last))),
            "the bridge {link} has {range}, and no pod would start there in the range {pod_cidr}: leave --pod-cidr as it was, \
             or take the cluster down first (carrack down), which removes the bridge and keeps all objects"
        );
        return Ok(());
    }
    // A wider one is that of a network around this machine, in which the pods' is a part of its own.
    let is_within = |range: &str| ends(range).is_some_and(|(begins, stops)| first <= begins && stops <= last);
    match others.iter().find(|(_, range)| is_within(range)) {
        Some((link, range)) => {
            bail!(
                "the link {link} of this machine has {range}, of the range {pod_cidr} for pods: choose another --pod-cidr"
            )
        }
        None => Ok(()),
    }
}

/// The link of a line, and the range behind its address, or that of whoever is at the other end.
fn address(line: &str) -> Option<(&str, &str)> {
    let range = line.split_whitespace().find(|word| word.contains('/') && ends(word).is_some())?;
    Some((link(line)?, range))
}

/// What `ip -oneline address` lists: the IPv4 addresses of this machine's links, or those that further words choose.
///
/// # Errors
/// The program is missing, or cannot be run.
pub fn list_addresses(which: &[&str]) -> anyhow::Result<String> {
    let ip = host::find_program("ip").context("the program ip is missing")?;
    let listed = Command::new(ip)
        .args(["-4", "-oneline", "address", "show"])
        .args(which)
        .stdin(Stdio::null())
        .output()
        .context("ip cannot be run")?;
    Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
}

/// The link of a line of that list.
pub fn link(line: &str) -> Option<&str> {
    let link = line.split_whitespace().nth(1)?;
    Some(link.split('@').next().unwrap_or(link))
}

/// Refuses a range that has hardly an address for pods, each of which has one of its own: the network, the bridge and the
/// broadcast take three. A node whose network was made with it goes on with it.
///
/// # Errors
/// It is too narrow.
pub fn refuse_narrow(pod_cidr: &str, made_with: Option<&str>) -> anyhow::Result<()> {
    let Some((first, last)) = ends(pod_cidr) else { return Ok(()) };
    ensure!(
        last - first >= FEWEST - 1 || made_with == Some(pod_cidr),
        "the range {pod_cidr} has hardly an address for pods: choose a --pod-cidr of {FEWEST} addresses (a /28) at least, such as \
         10.42.0.0/24"
    );
    Ok(())
}

/// Refuses a range for pods in which this machine itself has its address: it would look for its own network behind the
/// pods' bridge.
///
/// # Errors
/// It has.
pub fn refuse_own(pod_cidr: &str, node_ip: IpAddr) -> anyhow::Result<()> {
    refuse_overlap(pod_cidr, &format!("{node_ip}/32"))
        .with_context(|| format!("the node's address is {node_ip}: choose another --pod-cidr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_reached_where_it_listens() {
        let check = |given: Option<&str>, listens: &str, want: Option<IpAddr>| {
            let ip = |text: &str| text.parse().expect("an address");
            assert_eq!(node_address(given.map(ip), ip(listens)).ok(), want, "{given:?} {listens}");
        };
        let ip = |text: &str| text.parse().ok();
        check(None, "0.0.0.0", Some(own_address()));
        check(None, "::", Some(own_address()));
        check(None, "127.0.0.1", ip("127.0.0.1"));
        check(None, "192.0.2.7", ip("192.0.2.7"));
        check(Some("192.0.2.7"), "0.0.0.0", ip("192.0.2.7"));
        check(Some("192.0.2.7"), "192.0.2.7", ip("192.0.2.7"));
        // Somebody else may hand on what comes to the one to the other.
        check(Some("192.0.2.7"), "10.0.0.1", ip("192.0.2.7"));
        check(Some("192.0.2.7"), "127.0.0.1", None);
    }

    #[test]
    fn ranges_that_links_have_already() {
        let listed = "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n\
                      2: eth0    inet 10.1.2.3/8 brd 10.255.255.255 scope global eth0\\       valid_lft forever\n\
                      3: cni0    inet 10.42.0.1/24 brd 10.42.0.255 scope global cni0\\       valid_lft forever\n\
                      4: tun0    inet 10.9.0.1 peer 10.8.0.2/32 scope global tun0\\       valid_lft forever\n\
                      5: veth1@if7    inet 172.17.0.1/16 scope global veth1\\       valid_lft forever\n\
                      6: wg0    inet 10.42.0.77/32 scope global wg0\\       valid_lft forever\n";
        let check = |cidr: &str, own: Option<&str>, expected: Option<&str>| {
            let why = in_the_way(listed, cidr, own).err().map(|error| error.to_string());
            let fits = match (&why, expected) {
                (Some(why), Some(expected)) => why.contains(expected),
                (None, None) => true,
                _ => false,
            };
            assert!(fits, "{cidr} {own:?}: {why:?}");
        };
        // The network around this machine is wider, and the pods' range a part of it that nobody else has.
        check("10.52.0.0/24", Some("cni-12ab"), None);
        // Somebody has come into the way of a cluster that runs.
        check("10.42.0.0/24", Some("cni0"), None);
        check("10.42.0.64/26", None, Some("the link wg0"));
        check("10.42.0.0/24", Some("cni-12ab"), Some("the link cni0"));
        check("10.42.0.0/16", None, Some("the link cni0"));
        check("10.43.0.0/24", Some("cni0"), Some("the bridge cni0 has 10.42.0.1/24"));
        check("10.42.0.0/25", Some("cni0"), Some("the bridge cni0 has 10.42.0.1/24"));
        check("10.8.0.0/24", None, Some("the link tun0"));
        check("172.16.0.0/12", None, Some("the link veth1 "));
        check("nonsense", None, None);
    }

    #[test]
    fn ranges() {
        assert_eq!(range("10.43.0.0/16").expect("a range").first_usable().to_string(), "10.43.0.1");
        let check = |one, two, good: bool| assert_eq!(refuse_overlap(one, two).is_ok(), good, "{one} {two}");
        check("10.42.0.0/24", "10.43.0.0/16", true);
        check("10.42.0.0/24", "10.42.0.128/25", false);
        check("10.0.0.0/8", "10.43.0.0/16", false);
        check("10.42.0.0/24", "10.42.1.0/24", true);
        let check = |cidr, ip: &str, good: bool| {
            assert_eq!(refuse_own(cidr, ip.parse().expect("an address")).is_ok(), good, "{cidr} {ip}");
        };
        check("10.42.0.0/24", "192.0.2.7", true);
        check("10.42.0.0/24", "10.42.0.7", false);
        check("10.42.0.0/24", "10.42.1.7", true);
        check("10.42.0.0/24", "2001:db8::7", true);
        let check = |cidr, made_with: Option<&str>, good: bool| {
            assert_eq!(refuse_narrow(cidr, made_with).is_ok(), good, "{cidr} {made_with:?}");
        };
        check("10.42.0.16/28", None, true);
        check("10.42.0.16/29", None, false);
        check("10.42.0.0/30", None, false);
        check("10.42.0.16/29", Some("10.42.0.16/29"), true);
        check("10.42.0.16/29", Some("10.42.0.0/24"), false);
    }
}
