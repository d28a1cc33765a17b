#![expect(clippy::disallowed_methods, reason = "shell: changes the machine's links, and waits no longer than a while")]
//! The links of the pod network: a bridge, and for each sandbox a pair of virtual ones between it and the bridge.
//!
//! ```text
//!   node's namespace          │ sandbox
//!   bridge (gateway) ── vethX ┼ eth0 (address, routes)
//! ```
//!
//! The pair is made by one request, on the bridge and in the sandbox from its first moment. The name of the node's end is derived
//! from sandbox and interface, so that whoever knows these can take the pair away.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage, State,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::addresses::{Owner, Range};
use super::netlink::{Changes, Netlink};

/// How long a new link may take until frames pass.
const UP_LIMIT: Duration = Duration::from_secs(5);

/// Why a link is not there.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The kernel refused.
    #[error("{0}")]
    Kernel(String, #[source] io::Error),
    /// What is there is something else.
    #[error("{0}")]
    Other(String),
}

type Linked<T> = Result<T, LinkError>;

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> LinkError {
    let what = what.into();
    move |error| LinkError::Kernel(what, error)
}

/// What a link is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its hardware address, as people write it.
    pub mac: String,
    index: u32,
    kind: Option<InfoKind>,
    master: u32,
    is_admin_up: bool,
    passes_frames: bool,
}

/// What was made for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The bridge.
    pub bridge: Link,
    /// The end in the node's namespace.
    pub outside: Link,
    /// The end in the sandbox.
    pub inside: Link,
}

/// What a sandbox's end is to be like.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The bridge's name.
    pub bridge: &'a str,
    /// The range of the bridge.
    pub range: Range,
    /// The sandbox's address.
    pub address: Ipv4Addr,
    /// Its network namespace.
    pub netns: &'a Path,
}

/// What the node's end is called: `veth` and 44 bits of a hash (FNV-1a), 15 characters in all.
#[must_use]
pub fn outside_name(owner: &Owner) -> String {
    let text = [owner.sandbox.as_bytes(), b"\0", owner.interface.as_bytes()].concat();
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325, step);
    format!("veth{:011x}", hash >> 20)
}

/// Whether a text can name a link.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let fits = (1..=15).contains(&text.len()) && text != "." && text != "..";
    fits && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b':')
}

fn text_of(mac: &[u8]) -> String {
    mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

fn link_of(message: &LinkMessage) -> Link {
    let mut link = Link {
        name: String::new(),
        mac: String::new(),
        index: message.header.index,
        kind: None,
        master: 0,
        is_admin_up: message.header.flags.contains(LinkFlags::Up),
        passes_frames: false,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(mac) => link.mac = text_of(mac),
            LinkAttribute::Controller(index) => link.master = *index,
            LinkAttribute::OperState(state) => link.passes_frames = *state == State::Up,
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.clone()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    link
}

fn named(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message
}

fn up(message: &mut LinkMessage) {
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// A link by its name; none where there surely is none.
fn find(netlink: &mut Netlink, name: &str) -> Linked<Option<Link>> {
    match netlink.ask(RouteNetlinkMessage::GetLink(named(name)), 0) {
        Ok(answers) => Ok(answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(message) => Some(link_of(message)),
            _ => None,
        })),
        Err(error) if is(&error, Errno::NODEV) => Ok(None),
        Err(error) => Err(failed(format!("the link {name} cannot be looked at"))(error)),
    }
}

fn get(netlink: &mut Netlink, name: &str) -> Linked<Link> {
    find(netlink, name)?.ok_or_else(|| LinkError::Other(format!("the link {name} has vanished")))
}

/// Takes a link away; false where there was none.
fn remove(netlink: &mut Netlink, name: &str) -> Linked<bool> {
    match netlink.ask(RouteNetlinkMessage::DelLink(named(name)), 0) {
        Ok(_) => Ok(true),
        Err(error) if is(&error, Errno::NODEV) => Ok(false),
        Err(error) => Err(failed(format!("the link {name} cannot be removed"))(error)),
    }
}

/// The addresses of a link, with the lengths of their prefixes.
fn addresses(netlink: &mut Netlink, link: &Link) -> Linked<Vec<(Ipv4Addr, u8)>> {
    let mut request = AddressMessage::default();
    request.header.family = AddressFamily::Inet;
    let answers = netlink
        .list(RouteNetlinkMessage::GetAddress(request))
        .map_err(failed(format!("the addresses of {} cannot be read", link.name)))?;
    let mut addresses = Vec::new();
    for answer in answers {
        let RouteNetlinkMessage::NewAddress(message) = answer else { continue };
        if message.header.index != link.index {
            continue;
        }
        addresses.extend(message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(IpAddr::V4(address)) => Some((*address, message.header.prefix_len)),
            _ => None,
        }));
    }
    Ok(addresses)
}

fn add_address(netlink: &mut Netlink, link: &Link, address: Ipv4Addr, range: Range) -> Linked<()> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = range.bits();
    message.header.index = link.index;
    message.attributes = vec![
        AddressAttribute::Local(address.into()),
        AddressAttribute::Address(address.into()),
        AddressAttribute::Broadcast(range.broadcast()),
    ];
    match netlink.ask(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL) {
        Err(error) if !is(&error, Errno::EXIST) => {
            Err(failed(format!("{} cannot have the address {address}", link.name))(error))
        }
        _ => Ok(()),
    }
}

/// The bridge with its address, made where it is not there.
fn bridge(netlink: &mut Netlink, name: &str, range: Range) -> Linked<Link> {
    let found = match find(netlink, name)? {
        Some(found) => found,
        None => make_bridge(netlink, name, range)?,
    };
    if found.kind != Some(InfoKind::Bridge) {
        return Err(LinkError::Other(format!("there is a link {name} that is no bridge")));
    }
    if !found.is_admin_up {
        set_up(netlink, &found)?;
    }
    let there = addresses(netlink, &found)?;
    if !there.contains(&(range.gateway(), range.bits())) {
        if let Some((other, bits)) = there.first() {
            let (gateway, wanted) = (range.gateway(), range.bits());
            return Err(LinkError::Other(format!(
                "the bridge {name} has the address {other}/{bits}, not {gateway}/{wanted}"
            )));
        }
        add_address(netlink, &found, range.gateway(), range)?;
    }
    Ok(found)
}

/// Its hardware address is given, so that it does not change with those of the links on it: pods remember it.
fn make_bridge(netlink: &mut Netlink, name: &str, range: Range) -> Linked<Link> {
    let mut message = named(name);
    let mac = [&[0x0a, 0x58][..], &range.gateway().octets()].concat();
    message.attributes.push(LinkAttribute::Address(mac));
    message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]));
    match netlink.ask(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL) {
        // Another sandbox is made at the same time.
        Err(error) if !is(&error, Errno::EXIST) => {
            return Err(failed(format!("the bridge {name} cannot be made"))(error));
        }
        _ => {}
    }
    take_no_routes(name)?;
    get(netlink, name)
}

/// Nobody on the pod network tells others their routes: any pod could lead to itself what they send by a family of addresses
/// that they were not given (CVE-2020-10749 of nodes, CVE-2020-13401 of containers). Without IPv6 there is no such setting.
fn take_no_routes(name: &str) -> Linked<()> {
    let setting = format!("/proc/sys/net/ipv6/conf/{name}/accept_ra");
    match fs::write(&setting, "0") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(setting)(error)),
        _ => Ok(()),
    }
}

fn set_up(netlink: &mut Netlink, link: &Link) -> Linked<()> {
    let mut message = LinkMessage::default();
    message.header.index = link.index;
    up(&mut message);
    let answer = netlink.ask(RouteNetlinkMessage::SetLink(message), 0);
    answer.map(drop).map_err(failed(format!("{} cannot be set up", link.name)))
}

/// Lets the node pass on what pods send.
fn forward() -> Linked<()> {
    const SETTING: &str = "/proc/sys/net/ipv4/ip_forward";
    if fs::read_to_string(SETTING).is_ok_and(|text| text.trim() == "1") {
        return Ok(());
    }
    fs::write(SETTING, "1").map_err(failed(SETTING))
}

/// Makes a sandbox's pair, with all that belongs to it, or nothing.
///
/// # Errors
/// See [`LinkError`].
pub fn attach(owner: &Owner, wanted: &Wanted<'_>) -> Linked<Pair> {
    let mut netlink = Netlink::open().map_err(failed("the kernel's networking cannot be asked"))?;
    let mut changes = Changes::listen().map_err(failed("the kernel's networking cannot be listened to"))?;
    let netns = open_namespace(wanted.netns)?;
    let bridge = bridge(&mut netlink, wanted.bridge, wanted.range)?;
    forward()?;
    let outside = outside_name(owner);
    make_pair(&mut netlink, &outside, &owner.interface, &bridge, &netns)?;
    let made = finish(&mut netlink, &mut changes, &outside, bridge, &owner.interface, wanted, &netns);
    if let Err(why) = &made
        && let Err(left) = remove(&mut netlink, &outside)
    {
        // The sandbox's namespace goes, and the pair with it.
        return Err(LinkError::Other(format!("{}; and {}", crate::plugin::chain(why), crate::plugin::chain(&left))));
    }
    made
}

fn open_namespace(path: &Path) -> Linked<File> {
    File::open(path).map_err(failed(format!("the network namespace {} cannot be opened", path.display())))
}

fn make_pair(netlink: &mut Netlink, outside: &str, inside: &str, bridge: &Link, netns: &File) -> Linked<()> {
    let mut peer = named(inside);
    peer.attributes.push(LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd()));
    let mut message = named(outside);
    up(&mut message);
    message.attributes.push(LinkAttribute::Controller(bridge.index));
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    match netlink.ask(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL) {
        Ok(_) => Ok(()),
        Err(error) if is(&error, Errno::EXIST) => {
            Err(LinkError::Other(format!("there is a link {inside} in the sandbox, or {outside} on the node, already")))
        }
        Err(error) => Err(failed(format!("the links {inside} and {outside} cannot be made"))(error)),
    }
}

fn finish(
    netlink: &mut Netlink,
    changes: &mut Changes,
    outside: &str,
    bridge: Link,
    inside: &str,
    wanted: &Wanted<'_>,
    netns: &File,
) -> Linked<Pair> {
    let port = get(netlink, outside)?;
    // What a pod sends to a service that it is itself part of comes back by the link that it left by.
    let mut hairpin = LinkMessage::default();
    hairpin.header.index = port.index;
    hairpin.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::PortKind(InfoPortKind::Bridge),
        LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::HairpinMode(true)])),
    ]));
    netlink
        .ask(RouteNetlinkMessage::NewLink(hairpin), 0)
        .map_err(failed(format!("{outside} cannot send back what came from it")))?;
    let inside = within(netns, || address(inside, wanted))??;
    let outside = passing(netlink, changes, outside)?;
    Ok(Pair { bridge, outside, inside })
}

/// The sandbox's end, from within.
fn address(name: &str, wanted: &Wanted<'_>) -> Linked<Link> {
    let mut netlink = Netlink::open().map_err(failed("the sandbox's networking cannot be asked"))?;
    // Who had the address before may be remembered by others.
    let setting = format!("/proc/sys/net/ipv4/conf/{name}/arp_notify");
    fs::write(&setting, "1").map_err(failed(setting))?;
    take_no_routes(name)?;
    let link = get(&mut netlink, name)?;
    set_up(&mut netlink, &link)?;
    add_address(&mut netlink, &link, wanted.address, wanted.range)?;
    add_way_out(&mut netlink, &link, wanted.range.gateway())?;
    Ok(link)
}

/// The way to all that no other route is for.
fn add_way_out(netlink: &mut Netlink, link: &Link, gateway: Ipv4Addr) -> Linked<()> {
    let mut route = RouteMessage::default();
    route.header.address_family = AddressFamily::Inet;
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Boot;
    route.header.scope = RouteScope::Universe;
    route.header.kind = RouteType::Unicast;
    route.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet(gateway)), RouteAttribute::Oif(link.index)];
    let added = netlink.ask(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL);
    added.map(drop).map_err(failed("the sandbox cannot have a way out"))
}

/// Has a sandbox's way out go over this link of its, and over no other. May be done again.
///
/// Upstream: Multus, `DeleteDefaultGW` and `SetDefaultGW`.
///
/// # Errors
/// See [`LinkError`]. The sandbox may have no way out then.
pub fn lead_out(netns: &Path, interface: &str, gateway: Ipv4Addr) -> Linked<()> {
    let netns = open_namespace(netns)?;
    within(&netns, || {
        let mut netlink = Netlink::open().map_err(failed("the sandbox's networking cannot be asked"))?;
        let link = get(&mut netlink, interface)?;
        let mut request = RouteMessage::default();
        request.header.address_family = AddressFamily::Inet;
        let answers = netlink
            .list(RouteNetlinkMessage::GetRoute(request))
            .map_err(failed("the sandbox's routes cannot be read"))?;
        for answer in answers {
            let RouteNetlinkMessage::NewRoute(mut route) = answer else { continue };
            if route.header.destination_prefix_length == 0 && route.header.table == RouteHeader::RT_TABLE_MAIN {
                // What its link is like just now is told there, and refused in a request.
                route.header.flags = RouteFlags::empty();
                netlink
                    .ask(RouteNetlinkMessage::DelRoute(route), 0)
                    .map_err(failed("the sandbox's way out cannot be changed"))?;
            }
        }
        add_way_out(&mut netlink, &link, gateway)
    })?
}

/// Waits until frames pass a link.
fn passing(netlink: &mut Netlink, changes: &mut Changes, name: &str) -> Linked<Link> {
    let end = Instant::now() + UP_LIMIT;
    loop {
        let link = get(netlink, name)?;
        if link.passes_frames {
            return Ok(link);
        }
        let left = end.saturating_duration_since(Instant::now());
        let listened = changes.wait(left).map_err(failed("the kernel's networking cannot be listened to"))?;
        if !listened {
            return Err(LinkError::Other(format!("no frames pass {name} after {} s", UP_LIMIT.as_secs())));
        }
    }
}

/// Does something in a network namespace, in a thread that ends in it.
fn within<T: Send>(netns: &File, work: impl FnOnce() -> T + Send) -> Linked<T> {
    let inside = || {
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| failed("the sandbox's network namespace cannot be entered")(error.into()))?;
        Ok(work())
    };
    let ended = std::thread::scope(|scope| scope.spawn(inside).join());
    ended.map_err(|_| LinkError::Other("the work in the sandbox's network namespace was cut short".to_owned()))?
}

/// Takes away what was made for a sandbox, by this program or by CNI's `bridge`, which names the node's end as it likes. The
/// sandbox's namespace is none where that is gone, and its links with it.
///
/// # Errors
/// Something stays, or nobody knows.
pub fn detach(owner: &Owner, netns: Option<&Path>) -> Linked<()> {
    let mut netlink = Netlink::open().map_err(failed("the kernel's networking cannot be asked"))?;
    if remove(&mut netlink, &outside_name(owner))? {
        return Ok(());
    }
    let Some(netns) = netns else { return Ok(()) };
    let netns = match File::open(netns) {
        Ok(netns) => netns,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(format!("the network namespace {} cannot be opened", netns.display()))(error)),
    };
    within(&netns, || {
        let mut netlink = Netlink::open().map_err(failed("the sandbox's networking cannot be asked"))?;
        remove(&mut netlink, &owner.interface).map(drop)
    })?
}

/// Looks whether a sandbox's pair is as it was made.
///
/// # Errors
/// It is not, and what is missing; or nobody knows.
pub fn check(owner: &Owner, bridge: &str, address: Ipv4Addr, netns: &Path) -> Linked<()> {
    let mut netlink = Netlink::open().map_err(failed("the kernel's networking cannot be asked"))?;
    let missing = |what: String| LinkError::Other(format!("{what} is missing"));
    let bridge = find(&mut netlink, bridge)?.ok_or_else(|| missing(format!("the bridge {bridge}")))?;
    let name = outside_name(owner);
    // A pod that was made by CNI's `bridge` has another name there.
    if find(&mut netlink, &name)?.is_some_and(|port| port.master != bridge.index) {
        return Err(LinkError::Other(format!("{name} is not on the bridge {}", bridge.name)));
    }
    let netns = open_namespace(netns)?;
    within(&netns, || {
        let mut netlink = Netlink::open().map_err(failed("the sandbox's networking cannot be asked"))?;
        let link = find(&mut netlink, &owner.interface)?.ok_or_else(|| missing(owner.interface.clone()))?;
        let there = addresses(&mut netlink, &link)?;
        if there.iter().any(|(found, _)| *found == address) {
            return Ok(());
        }
        Err(missing(format!("the address {address} of {}", link.name)))
    })?
}

/// Sets the sandbox's own link up, which nothing else has to do with.
///
/// # Errors
/// See [`LinkError`].
pub fn set_up_loopback(netns: &Path) -> Linked<()> {
    let netns = open_namespace(netns)?;
    within(&netns, || {
        let mut netlink = Netlink::open().map_err(failed("the sandbox's networking cannot be asked"))?;
        let link = get(&mut netlink, "lo")?;
        if link.is_admin_up { Ok(()) } else { set_up(&mut netlink, &link) }
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_derived_and_fit() {
        let name = |sandbox: &str, interface: &str| {
            outside_name(&Owner { sandbox: sandbox.to_owned(), interface: interface.to_owned() })
        };
        // It is looked for under this name by every later release.
        assert_eq!(name("c1", "eth0"), name("c1", "eth0"));
        assert!(is_name(&name("c1", "eth0")), "{}", name("c1", "eth0"));
        let names: std::collections::BTreeSet<String> = (0..5000)
            .flat_map(|number| [name(&format!("c{number}"), "eth0"), name(&format!("c{number}"), "eth1")])
            .collect();
        assert_eq!(names.len(), 10_000);
        assert_ne!(name("a", "beth0"), name("ab", "eth0"));
    }

    #[test]
    fn what_can_name_a_link() {
        for (text, expected) in [
            ("eth0", true),
            ("cni-0123456789", true),
            ("a234567890123456", false),
            ("", false),
            (".", false),
            ("..", false),
            ("a/b", false),
            ("a b", false),
            ("a:0", false),
            ("\u{e4}", false),
        ] {
            assert_eq!(is_name(text), expected, "{text:?}");
        }
    }
}
