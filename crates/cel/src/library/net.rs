//! Kubernetes' libraries of URLs, IP addresses and CIDRs.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Found, Opaque, fail, key, text, truth};
use crate::value::Value;

/// A URL in its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Url {
    /// As it was written.
    pub text: String,
    scheme: String,
    host: String,
    path: String,
    query: String,
}

impl Url {
    /// An absolute URL, or an absolute path.
    fn parse(text: &str) -> Option<Url> {
        if text.is_empty() || text.chars().any(|c| c.is_control() || c == ' ') {
            return None;
        }
        let (scheme, rest) = match text.strip_prefix('/') {
            Some(_) => ("", text),
            None => {
                let (scheme, rest) = text.split_once(':')?;
                let well = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                    && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
                if !well {
                    return None;
                }
                (scheme, rest)
            }
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(rest) => {
                let end = rest.find('/').unwrap_or(rest.len());
                let authority = &rest[..end];
                (authority.rsplit_once('@').map_or(authority, |(_, host)| host), &rest[end..])
            }
            None => ("", rest),
        };
        let port = host.rsplit_once(':').filter(|(name, _)| !name.starts_with('[') || name.ends_with(']'));
        if let Some((_, port)) = port
            && !port.bytes().all(|b| b.is_ascii_digit())
        {
            return None;
        }
        if host.starts_with('[') != host.contains(']') || unescape(path, false).is_none() {
            return None;
        }
        Some(Url {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
        })
    }

    fn name_and_port(&self) -> (&str, &str) {
        if let Some(rest) = self.host.strip_prefix('[')
            && let Some((name, rest)) = rest.split_once(']')
        {
            return (name, rest.trim_start_matches(':'));
        }
        self.host.split_once(':').unwrap_or((&self.host, ""))
    }
}

/// Percent escapes resolved; none when one is malformed.
fn unescape(text: &str, plus_is_space: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            b'+' if plus_is_space => out.push(b' '),
            other => out.push(other),
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// An address and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// An address; IPv4 in IPv6 and zones are refused, as Kubernetes does.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let ip: IpAddr = text.parse().ok()?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => None,
        _ => Some(ip),
    }
}

fn bits(ip: IpAddr) -> (u128, u8) {
    match ip {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

/// The first bits of an address, the others zero.
fn masked(ip: IpAddr, prefix: u8) -> IpAddr {
    let (value, width) = bits(ip);
    let keep = u32::from(width.saturating_sub(prefix));
    let value = if keep >= 128 { 0 } else { (value >> keep) << keep };
    match ip {
        IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::from_bits(u32::try_from(value).unwrap_or(0))),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::from_bits(value)),
    }
}

impl Cidr {
    fn parse(text: &str) -> Option<Cidr> {
        let (address, prefix) = text.split_once('/')?;
        let address = parse_ip(address)?;
        let well = prefix == "0" || !prefix.starts_with('0');
        let prefix: u8 = prefix.parse().ok().filter(|_| well && prefix.bytes().all(|b| b.is_ascii_digit()))?;
        (prefix <= bits(address).1).then_some(Cidr { address, prefix })
    }

    fn contains(&self, ip: IpAddr) -> bool {
        self.address.is_ipv4() == ip.is_ipv4() && masked(ip, self.prefix) == masked(self.address, self.prefix)
    }
}

fn found(opaque: Opaque) -> Found {
    Some(Ok(Value::Opaque(opaque)))
}

pub(super) fn call(function: &str, args: &[Value]) -> Found {
    match (function, args) {
        ("url", [Value::String(given)]) => match Url::parse(given) {
            Some(url) => found(Opaque::Url(Arc::new(url))),
            None => fail(format!("URL parse error during conversion from string: {given:?}")),
        },
        ("isURL", [Value::String(given)]) => truth(Url::parse(given).is_some()),
        ("ip", [Value::String(given)]) => match parse_ip(given) {
            Some(ip) => found(Opaque::Ip(ip)),
            None => fail(format!("IP Address {given:?} parse error during conversion from string")),
        },
        ("isIP", [Value::String(given)]) => truth(parse_ip(given).is_some()),
        ("ip.isCanonical", [Value::String(given)]) => match parse_ip(given) {
            Some(ip) => truth(ip.to_string() == **given),
            None => fail(format!("IP Address {given:?} parse error during conversion from string")),
        },
        ("cidr", [Value::String(given)]) => match Cidr::parse(given) {
            Some(cidr) => found(Opaque::Cidr(cidr)),
            None => fail(format!("network address parse error during conversion from string: {given:?}")),
        },
        ("isCIDR", [Value::String(given)]) => truth(Cidr::parse(given).is_some()),
        (_, [Value::Opaque(Opaque::Url(url))]) => of_url(function, url),
        (_, [Value::Opaque(Opaque::Ip(ip))]) => of_ip(function, *ip),
        (_, [Value::Opaque(Opaque::Cidr(cidr)), rest @ ..]) => of_cidr(function, *cidr, rest),
        _ => None,
    }
}

fn of_url(function: &str, url: &Url) -> Found {
    match function {
        "getScheme" => text(url.scheme.as_str()),
        "getHost" => text(url.host.as_str()),
        "getHostname" => text(url.name_and_port().0),
        "getPort" => text(url.name_and_port().1),
        "getEscapedPath" => text(url.path.as_str()),
        "getQuery" => {
            let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
            for pair in url.query.split('&').filter(|pair| !pair.is_empty()) {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                if let (Some(name), Some(value)) = (unescape(name, true), unescape(value, true)) {
                    all.entry(name).or_default().push(Value::String(value.into()));
                }
            }
            let map = all.into_iter().map(|(name, values)| (key(&name), Value::list(values))).collect();
            Some(Ok(Value::Map(Arc::new(map))))
        }
        _ => None,
    }
}

fn of_ip(function: &str, ip: IpAddr) -> Found {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match function {
        "family" => Some(Ok(Value::Int(if ip.is_ipv4() { 4 } else { 6 }))),
        "isUnspecified" => truth(ip.is_unspecified()),
        "isLoopback" => truth(ip.is_loopback()),
        "isLinkLocalMulticast" => truth(match ip {
            IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
            IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
        }),
        "isLinkLocalUnicast" => truth(link_local),
        "isGlobalUnicast" => {
            let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
            truth(!(broadcast || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || link_local))
        }
        "string" => text(ip.to_string()),
        _ => None,
    }
}

fn of_cidr(function: &str, cidr: Cidr, rest: &[Value]) -> Found {
    let inner = match rest {
        [Value::String(text)] if function == "containsIP" => match parse_ip(text) {
            Some(ip) => Some(Cidr { address: ip, prefix: bits(ip).1 }),
            None => return fail(format!("IP Address {text:?} parse error during conversion from string")),
        },
        [Value::Opaque(Opaque::Ip(ip))] => Some(Cidr { address: *ip, prefix: bits(*ip).1 }),
        [Value::String(text)] => match Cidr::parse(text) {
            Some(cidr) => Some(cidr),
            None => return fail(format!("network address parse error during conversion from string: {text:?}")),
        },
        [Value::Opaque(Opaque::Cidr(inner))] => Some(*inner),
        _ => None,
    };
    match (function, inner) {
        ("containsIP" | "containsCIDR", Some(inner)) => {
            truth(inner.prefix >= cidr.prefix && cidr.contains(inner.address))
        }
        ("ip", None) => found(Opaque::Ip(cidr.address)),
        ("masked", None) => {
            found(Opaque::Cidr(Cidr { address: masked(cidr.address, cidr.prefix), prefix: cidr.prefix }))
        }
        ("prefixLength", None) => Some(Ok(Value::Int(cidr.prefix.into()))),
        ("string", None) => text(cidr.to_string()),
        _ => None,
    }
}
