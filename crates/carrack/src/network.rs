//! This machine's addresses, as far as a node needs them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context as _, bail};
use carrack_apiserver::Cidr;

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
    let range = |cidr: &str| -> Option<(u32, u32)> {
        let (address, bits) = cidr.split_once('/')?;
        let mask = u32::MAX.checked_shl(32 - bits.parse::<u32>().ok()?).unwrap_or(0);
        let first = address.parse::<Ipv4Addr>().ok()?.to_bits() & mask;
        Some((first, first | !mask))
    };
    match (range(one), range(two)) {
        (Some((first, last)), Some((other_first, other_last))) if first <= other_last && other_first <= last => {
            bail!("the address ranges {one} and {two} overlap")
        }
        _ => Ok(()),
    }
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
    }
}
