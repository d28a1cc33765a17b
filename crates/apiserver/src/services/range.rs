//! Ranges of addresses, and how one is chosen from them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range of addresses, such as `10.96.0.0/12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    first: IpAddr,
    bits: u8,
}

/// Which of the two an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// Of an address.
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// As the API names it.
    pub fn text(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// The family by its name.
    pub fn parse(text: &str) -> Option<Family> {
        match text {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        }
    }

    pub(super) fn other(self) -> Family {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Cidr {
    /// Reads `address/bits`; bits of the address behind the prefix are ignored.
    pub fn parse(text: &str) -> Option<Cidr> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let bits: u8 = bits.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        if bits > width {
            return None;
        }
        let range = Cidr { first: address, bits };
        Some(Cidr { first: range.at(number(address) & !(range.size() - 1)), bits })
    }

    /// Its family.
    pub fn family(&self) -> Family {
        Family::of(self.first)
    }

    /// Number of addresses, as far as it matters: of a huge range, 2^64.
    fn size(&self) -> u128 {
        let width = if self.first.is_ipv4() { 32 } else { 128 };
        1_u128 << u32::from(width - self.bits).min(64)
    }

    fn at(&self, number: u128) -> IpAddr {
        match self.first {
            // The number comes from an address of the family.
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX))),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(number)),
        }
    }

    /// Whether a service may have this address: it is in the range, and neither its first nor, with
    /// IPv4, its last one.
    pub fn offers(&self, address: IpAddr) -> bool {
        if Family::of(address) != self.family() {
            return false;
        }
        let Some(offset) = number(address).checked_sub(number(self.first)) else { return false };
        self.usable().contains(&offset)
    }

    /// Offsets that are handed out.
    fn usable(&self) -> std::ops::Range<u128> {
        // The last IPv4 address is the broadcast address.
        let end = if self.first.is_ipv4() { self.size().saturating_sub(1) } else { self.size() };
        1..end.max(1)
    }

    /// The first address that a service may have; the `kubernetes` service has it.
    pub fn first_usable(&self) -> IpAddr {
        self.at(number(self.first) + 1)
    }

    /// An address that is not taken. The lower end is left to those who choose their addresses
    /// themselves, for as long as there is room above (upstream KEP-3070).
    pub fn choose(&self, random: u64, taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let usable = self.usable();
        let reserved = (self.size() / 16).clamp(16, 256).min(usable.end);
        let upper = usable.start.max(reserved)..usable.end;
        let lower = usable.start..upper.start;
        let found = [upper, lower]
            .into_iter()
            .find_map(|band| first_free(&band, random, |offset| !taken(self.at(number(self.first) + offset))));
        found.map(|offset| self.at(number(self.first) + offset))
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

/// The first number of a range that is free, looked for from a random place on.
fn first_free(range: &std::ops::Range<u128>, random: u64, is_free: impl Fn(u128) -> bool) -> Option<u128> {
    let size = range.end.saturating_sub(range.start);
    if size == 0 {
        return None;
    }
    let from = u128::from(random) % size;
    // What is taken is listed in memory, so a free number comes after at most as many steps.
    (0..size).map(|step| range.start + (from + step) % size).find(|offset| is_free(*offset))
}

/// A port of a range that is not taken, with the lower end left to those who choose for themselves.
pub(super) fn choose_port(ports: (u16, u16), random: u64, taken: impl Fn(u16) -> bool) -> Option<u16> {
    let (first, last) = (u128::from(ports.0), u128::from(ports.1));
    let size = last.saturating_sub(first) + 1;
    let reserved = (size / 32).clamp(16, 128).min(size);
    let bands = [first + reserved..last + 1, first..first + reserved];
    let as_port = |number: u128| u16::try_from(number).unwrap_or(0);
    bands.iter().find_map(|band| first_free(band, random, |number| !taken(as_port(number)))).map(as_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_offer_addresses() {
        for (range, address, want) in [
            ("10.96.0.0/12", "10.96.0.1", true),
            ("10.96.0.0/12", "10.111.255.254", true),
            ("10.96.0.0/12", "10.96.0.0", false),
            ("10.96.0.0/12", "10.111.255.255", false),
            ("10.96.0.0/12", "10.112.0.1", false),
            ("10.96.0.0/12", "fd00::1", false),
            ("fd00::/108", "fd00::f:ffff", true),
            ("fd00::/108", "fd00::", false),
            ("fd00::/8", "fd00::1", true),
        ] {
            let cidr = Cidr::parse(range).expect(range);
            assert_eq!(cidr.offers(address.parse().expect(address)), want, "{range} {address}");
        }
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "fd00::/129"] {
            assert_eq!(Cidr::parse(bad), None, "{bad}");
        }
        assert_eq!(Cidr::parse("10.43.7.9/16").map(|c| c.to_string()).as_deref(), Some("10.43.0.0/16"));
        assert_eq!(Cidr::parse("10.43.0.0/16").map(|c| c.first_usable().to_string()).as_deref(), Some("10.43.0.1"));
    }

    #[test]
    fn all_of_a_range_is_handed_out_and_no_more() {
        let cidr = Cidr::parse("10.0.0.0/27").expect("a range");
        let mut taken = std::collections::BTreeSet::new();
        for random in 0..30_u64 {
            let address =
                cidr.choose(random.wrapping_mul(0x9e37_79b9_7f4a_7c15), |a| taken.contains(&a)).expect("room");
            assert!(cidr.offers(address));
            if random < 15 {
                assert!(number(address) & 31 >= 16, "{address} is for those who choose");
            }
            assert!(taken.insert(address), "{address} twice");
        }
        assert_eq!(cidr.choose(7, |a| taken.contains(&a)), None);
    }

    #[test]
    fn ports_are_chosen() {
        let port = choose_port((30000, 32767), 5, |_| false).expect("a port");
        assert!((30086..=32767).contains(&port), "{port}");
        assert_eq!(choose_port((30000, 30001), 5, |port| port == 30000), Some(30001));
        assert_eq!(choose_port((30000, 30001), 5, |_| true), None);
    }
}
