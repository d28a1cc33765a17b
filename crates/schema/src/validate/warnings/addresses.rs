//! Addresses and ranges of them in forms that not all programs read alike.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What to say about an address.
pub(super) fn address(text: &str) -> Option<String> {
    let Ok(IpAddr::V6(v6)) = text.parse::<IpAddr>() else { return None };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return Some(format!(
            "non-standard IP address \"{text}\" will be considered invalid in a future Kubernetes release: use \"{v4}\""
        ));
    }
    let usual = v6.to_string();
    (usual != text).then(|| format!("IPv6 address \"{text}\" should be in RFC 5952 canonical format (\"{usual}\")"))
}

/// What to say about a range.
pub(super) fn range(text: &str) -> Vec<String> {
    let text = text.trim();
    let Some((start, length)) = text.split_once('/') else { return Vec::new() };
    let (Ok(given), Ok(bits)) = (start.parse::<IpAddr>(), length.parse::<u8>()) else { return Vec::new() };
    // An IPv4 address in the clothes of IPv6, as its readers take it.
    let (address, bits, is_mapped) = match given {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => (IpAddr::V4(v4), bits.saturating_sub(96), true),
            None => (given, bits, false),
        },
        IpAddr::V4(_) => (given, bits, false),
    };
    let first = first(address, bits);
    let usual = format!("{first}/{bits}");
    let mut warnings = Vec::new();
    if first != address {
        let all = if address.is_ipv4() { 32 } else { 128 };
        warnings.push(format!(
            "CIDR value \"{text}\" is ambiguous in this context (should be \"{usual}\" or \"{address}/{all}\"?)"
        ));
    }
    if is_mapped || length != bits.to_string() {
        warnings.push(format!(
            "non-standard CIDR value \"{text}\" will be considered invalid in a future Kubernetes release: use \"{usual}\""
        ));
    }
    if warnings.is_empty() && address.is_ipv6() && usual != text {
        warnings.push(format!("IPv6 CIDR value \"{text}\" should be in RFC 5952 canonical format (\"{usual}\")"));
    }
    warnings
}

/// The first address of the range of so many bits around an address.
fn first(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(bits.into())).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(bits.into())).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, usual) in [
            ("10.0.0.1", None),
            ("2001:db8::1", None),
            ("None", None),
            ("::ffff:10.0.0.1", Some("use \"10.0.0.1\"")),
            ("2001:DB8::1", Some("RFC 5952 canonical format (\"2001:db8::1\")")),
            ("2001:db8:0:0::1", Some("RFC 5952 canonical format (\"2001:db8::1\")")),
        ] {
            let told = address(text);
            assert_eq!(told.is_some(), usual.is_some(), "{text}: {told:?}");
            assert!(told.is_none_or(|told| told.contains(usual.unwrap_or_default())), "{text}");
        }
    }

    #[test]
    fn ranges() {
        for (text, told) in [
            ("10.0.0.0/8", &[][..]),
            ("0.0.0.0/0", &[]),
            ("2001:db8::/32", &[]),
            ("any", &[]),
            ("10.0.0.1/8", &["ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)"]),
            ("2001:db8::1/32", &["ambiguous in this context (should be \"2001:db8::/32\" or \"2001:db8::1/128\"?)"]),
            ("10.0.0.0/08", &["non-standard CIDR value \"10.0.0.0/08\" will be considered invalid"]),
            ("::ffff:10.0.0.0/104", &["use \"10.0.0.0/8\""]),
            (
                "2001:DB8::/32",
                &["IPv6 CIDR value \"2001:DB8::/32\" should be in RFC 5952 canonical format (\"2001:db8::/32\")"],
            ),
        ] {
            let found = range(text);
            assert_eq!(found.len(), told.len(), "{text}: {found:?}");
            assert!(found.iter().zip(told).all(|(found, told)| found.contains(told)), "{text}: {found:?}");
        }
    }
}
