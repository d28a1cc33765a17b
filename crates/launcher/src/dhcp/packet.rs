//! DHCP messages: what is read of a request, and how an answer is written.
//!
//! The server has one client and one lease, so that it needs six fields of a request and writes a dozen
//! options; the crates for DHCP bring DNS and internationalized names along for options that are not used.
//! Upstream reference: RFC 2131, RFC 2132, RFC 3397 (search list), RFC 3396 (long options).

use crate::spec::DhcpSpec;
use std::net::Ipv4Addr;

/// A day: a monitor that is away for a while is not missed.
const LEASE_S: u32 = 86_400;

/// Some clients drop messages shorter than BOOTP's.
const MIN_BYTES: usize = 300;

const MAGIC: [u8; 4] = [99, 130, 83, 99];
const HEADER_BYTES: usize = 236;

mod option {
    pub(super) const PAD: u8 = 0;
    pub(super) const SUBNET_MASK: u8 = 1;
    pub(super) const ROUTER: u8 = 3;
    pub(super) const DNS: u8 = 6;
    pub(super) const HOST_NAME: u8 = 12;
    pub(super) const DOMAIN_NAME: u8 = 15;
    pub(super) const MTU: u8 = 26;
    pub(super) const BROADCAST: u8 = 28;
    pub(super) const REQUESTED_ADDRESS: u8 = 50;
    pub(super) const LEASE_TIME: u8 = 51;
    pub(super) const MESSAGE_TYPE: u8 = 53;
    pub(super) const SERVER: u8 = 54;
    pub(super) const SEARCH: u8 = 119;
    pub(super) const END: u8 = 255;
}

/// DHCP message types.
mod kind {
    pub(super) const DISCOVER: u8 = 1;
    pub(super) const OFFER: u8 = 2;
    pub(super) const REQUEST: u8 = 3;
    pub(super) const ACK: u8 = 5;
    pub(super) const NAK: u8 = 6;
    pub(super) const INFORM: u8 = 8;
}

/// What the server reads of a client's message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    kind: u8,
    client_address: Ipv4Addr,
    requested_address: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
}

/// An answer and whom it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The message.
    pub bytes: Vec<u8>,
    /// The client's address where it has one in use; everybody's otherwise.
    pub to: Ipv4Addr,
}

/// The answer to `message` from the client with the hardware address `mac`; none if it is not for this server.
pub fn answer(message: &[u8], mac: [u8; 6], lease: &DhcpSpec) -> Option<Answer> {
    let request = parse(message, mac)?;
    if request.server.is_some_and(|server| server != lease.server) {
        return None;
    }
    let wanted = request.requested_address.or(Some(request.client_address).filter(|at| !at.is_unspecified()));
    let kind = match request.kind {
        kind::DISCOVER => kind::OFFER,
        kind::REQUEST if wanted == Some(lease.address) => kind::ACK,
        kind::REQUEST => kind::NAK,
        kind::INFORM => kind::ACK,
        _ => return None,
    };
    let to = if kind == kind::NAK || request.client_address.is_unspecified() {
        Ipv4Addr::BROADCAST
    } else {
        request.client_address
    };
    Some(Answer { bytes: write(message, kind, request.kind == kind::INFORM, lease), to })
}

fn parse(message: &[u8], mac: [u8; 6]) -> Option<Request> {
    let (header, rest) = message.split_at_checked(HEADER_BYTES)?;
    let options = rest.strip_prefix(&MAGIC)?;
    // A request, over Ethernet, with six bytes of address.
    if header[..3] != [1, 1, 6] || header[28..34] != mac {
        return None;
    }
    let address = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from);
    let mut request =
        Request { kind: 0, client_address: address(&header[12..16])?, requested_address: None, server: None };
    let mut left = options;
    loop {
        match *left {
            [] | [option::END, ..] => break,
            [option::PAD, ref more @ ..] => left = more,
            [code, length, ref more @ ..] => {
                let (value, more) = more.split_at_checked(usize::from(length))?;
                match code {
                    option::MESSAGE_TYPE => request.kind = *value.first()?,
                    option::REQUESTED_ADDRESS => request.requested_address = address(value),
                    option::SERVER => request.server = address(value),
                    _ => {}
                }
                left = more;
            }
            [_] => return None,
        }
    }
    Some(request)
}

fn write(request: &[u8], kind: u8, inform: bool, lease: &DhcpSpec) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    out[..3].copy_from_slice(&[2, 1, 6]);
    // The transaction, the flags, the relay and the hardware address are the client's own.
    for range in [4..8, 10..12, 24..28, 28..44] {
        out[range.clone()].copy_from_slice(&request[range]);
    }
    if kind == kind::ACK {
        out[12..16].copy_from_slice(&request[12..16]);
    }
    out.extend(MAGIC);
    push(&mut out, option::MESSAGE_TYPE, &[kind]);
    push(&mut out, option::SERVER, &lease.server.octets());
    if kind != kind::NAK {
        if !inform {
            out[16..20].copy_from_slice(&lease.address.octets());
            push(&mut out, option::LEASE_TIME, &LEASE_S.to_be_bytes());
        }
        let mask = u32::MAX.checked_shl(32 - u32::from(lease.prefix_bits.min(32))).unwrap_or(0);
        push(&mut out, option::SUBNET_MASK, &mask.to_be_bytes());
        push(&mut out, option::BROADCAST, &(u32::from(lease.address) | !mask).to_be_bytes());
        if let Some(router) = lease.router {
            push(&mut out, option::ROUTER, &router.octets());
        }
        push(&mut out, option::DNS, &lease.dns.iter().flat_map(|server| server.octets()).collect::<Vec<_>>());
        if let Some(name) = &lease.hostname {
            push(&mut out, option::HOST_NAME, name.as_bytes());
        }
        if let Some(domain) = lease.search.first() {
            push(&mut out, option::DOMAIN_NAME, domain.as_bytes());
        }
        push(&mut out, option::SEARCH, &search_list(&lease.search));
        if let Some(mtu) = lease.mtu {
            push(&mut out, option::MTU, &mtu.to_be_bytes());
        }
        for (code, value) in lease.options.iter().filter(|(code, _)| !matches!(*code, option::PAD | option::END)) {
            push(&mut out, *code, value);
        }
    }
    out.push(option::END);
    out.resize(out.len().max(MIN_BYTES), option::PAD);
    out
}

/// Writes an option, in pieces if it is long; nothing if it is empty.
fn push(out: &mut Vec<u8>, code: u8, value: &[u8]) {
    for piece in value.chunks(255) {
        out.extend([code, piece.len() as u8]);
        out.extend(piece);
    }
}

/// Domain names as DNS writes them. A name that DNS cannot have is left out.
fn search_list(domains: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    for domain in domains {
        let labels: Vec<&str> = domain.trim_end_matches('.').split('.').collect();
        if domain.len() > 253 || labels.iter().any(|label| !(1..=63).contains(&label.len())) {
            continue;
        }
        for label in labels {
            out.push(label.len() as u8);
            out.extend(label.as_bytes());
        }
        out.push(0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
    const SERVER: [u8; 4] = [10, 0, 2, 1];

    fn lease() -> DhcpSpec {
        DhcpSpec {
            interface: "k6t-eth0".to_owned(),
            server: SERVER.into(),
            address: [10, 0, 2, 2].into(),
            prefix_bits: 24,
            router: Some(SERVER.into()),
            dns: vec![[10, 96, 0, 10].into()],
            search: vec!["default.svc.cluster.local".to_owned(), "svc.cluster.local".to_owned()],
            mtu: Some(1450),
            hostname: Some("demo".to_owned()),
            options: vec![(66, b"tftp.example".to_vec()), (option::END, b"x".to_vec()), (224, b"ours".to_vec())],
        }
    }

    fn request(kind: u8, client: [u8; 4], options: &[(u8, [u8; 4])]) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        out[..8].copy_from_slice(&[1, 1, 6, 0, 0xaa, 0xbb, 0xcc, 0xdd]);
        out[12..16].copy_from_slice(&client);
        out[28..34].copy_from_slice(&MAC);
        out.extend(MAGIC);
        out.extend([option::PAD, option::MESSAGE_TYPE, 1, kind]);
        for (code, value) in options {
            out.extend([*code, 4]);
            out.extend(value);
        }
        out.push(option::END);
        out
    }

    /// The value of an option in a message, pieces joined.
    fn value(message: &[u8], code: u8) -> Option<Vec<u8>> {
        let mut found = None;
        let mut left = &message[HEADER_BYTES + 4..];
        while let [at, length, more @ ..] = left {
            if *at == option::END {
                break;
            }
            let (piece, more) = more.split_at(usize::from(*length));
            if *at == code {
                found.get_or_insert_with(Vec::new).extend(piece);
            }
            left = more;
        }
        found
    }

    /// The kind of the answer, the address given, and whom it goes to.
    #[track_caller]
    fn check(message: &[u8], expected: Option<(u8, [u8; 4], [u8; 4])>) {
        let found = answer(message, MAC, &lease()).map(|answer| {
            let kind = value(&answer.bytes, option::MESSAGE_TYPE).expect("a type")[0];
            assert_eq!(answer.bytes[4..8], message[4..8], "the transaction");
            assert!(answer.bytes.len() >= MIN_BYTES);
            (kind, <[u8; 4]>::try_from(&answer.bytes[16..20]).expect("four bytes"), answer.to.octets())
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn conversations() {
        let (ours, other, none, all) = ([10, 0, 2, 2], [192, 168, 0, 9], [0; 4], [255; 4]);
        let asks = |address| [(option::REQUESTED_ADDRESS, address)];
        check(&request(kind::DISCOVER, none, &[]), Some((kind::OFFER, ours, all)));
        check(&request(kind::DISCOVER, none, &asks(other)), Some((kind::OFFER, ours, all)));
        check(&request(kind::REQUEST, none, &asks(ours)), Some((kind::ACK, ours, all)));
        check(&request(kind::REQUEST, none, &asks(other)), Some((kind::NAK, none, all)));
        check(&request(kind::REQUEST, ours, &[]), Some((kind::ACK, ours, ours)));
        check(&request(kind::REQUEST, other, &[]), Some((kind::NAK, none, all)));
        check(&request(kind::REQUEST, none, &[]), Some((kind::NAK, none, all)));
        check(&request(kind::INFORM, ours, &[]), Some((kind::ACK, none, ours)));
        let selects = |server| [(option::REQUESTED_ADDRESS, ours), (option::SERVER, server)];
        check(&request(kind::REQUEST, none, &selects(SERVER)), Some((kind::ACK, ours, all)));
        check(&request(kind::REQUEST, none, &selects(other)), None);
        for release_or_decline in [4, 7] {
            check(&request(release_or_decline, ours, &[]), None);
        }
        let mut stranger = request(kind::DISCOVER, none, &[]);
        stranger[33] ^= 1;
        check(&stranger, None);
        let mut reply = request(kind::DISCOVER, none, &[]);
        reply[0] = 2;
        check(&reply, None);
    }

    #[test]
    fn what_the_guest_is_told() {
        let ack = answer(&request(kind::DISCOVER, [0; 4], &[]), MAC, &lease()).expect("an answer").bytes;
        let expected: [(u8, &[u8]); 11] = [
            (66, b"tftp.example"),
            (224, b"ours"),
            (option::SUBNET_MASK, &[255, 255, 255, 0]),
            (option::BROADCAST, &[10, 0, 2, 255]),
            (option::ROUTER, &SERVER),
            (option::SERVER, &SERVER),
            (option::DNS, &[10, 96, 0, 10]),
            (option::HOST_NAME, b"demo"),
            (option::DOMAIN_NAME, b"default.svc.cluster.local"),
            (option::MTU, &[5, 170]),
            (option::SEARCH, b"\x07default\x03svc\x07cluster\x05local\0\x03svc\x07cluster\x05local\0"),
        ];
        for (code, bytes) in expected {
            assert_eq!(value(&ack, code).as_deref(), Some(bytes), "option {code}");
        }
    }

    #[test]
    fn long_lists_are_cut_into_pieces() {
        let mut lease = lease();
        lease.search = (0..20).map(|n| format!("{n}.{}.example", "x".repeat(40))).collect();
        lease.search.push("x".repeat(64));
        let offer = answer(&request(kind::DISCOVER, [0; 4], &[]), MAC, &lease).expect("an answer").bytes;
        assert_eq!(value(&offer, option::SEARCH), Some(search_list(&lease.search[..20])));
    }

    proptest! {
        #[test]
        fn no_message_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            answer(&bytes, MAC, &lease());
        }

        #[test]
        fn no_options_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..80), prefix in 0..=255u8) {
            let mut message = request(kind::REQUEST, [0; 4], &[]);
            message.pop();
            message.extend(bytes);
            answer(&message, MAC, &DhcpSpec { prefix_bits: prefix, ..lease() });
        }
    }
}
