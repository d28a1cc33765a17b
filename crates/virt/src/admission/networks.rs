//! Interfaces and networks: each interface has its network, and each network its interface.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use carrack_types::kubevirt::devices::DhcpOptions;
use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::kubevirt::{Interface, Network, VirtualMachineInstanceSpec};

use super::{Faults, is_one_of};

const MODELS: [&str; 7] = ["", "e1000", "e1000e", "ne2k_pci", "pcnet", "rtl8139", "virtio"];
/// The hardware address of the bridge in a pod behind address translation.
const RESERVED_MAC: &str = "02:00:00:00:00:00";

pub(super) fn check(
    field: &str,
    spec: &VirtualMachineInstanceSpec,
    settings: &KubeVirtConfiguration,
    faults: &mut Faults,
) {
    let interfaces = &spec.domain.devices.interfaces;
    let (nics, networks) = (format!("{field}.domain.devices.interfaces"), format!("{field}.networks"));
    let mut by_name = BTreeMap::new();
    for (index, network) in spec.networks.iter().enumerate() {
        let at = format!("{networks}[{index}]");
        if by_name.insert(network.name.as_str(), network).is_some() {
            let message =
                format!("Network with name {:?} already exists, every network must have a unique name", network.name);
            faults.duplicate(format!("{at}.name"), message);
        }
        source(&at, network, faults);
        if !interfaces.iter().any(|interface| interface.name == network.name) {
            faults.required(format!("{at}.name"), format!("{at}.name '{}' not found.", network.name));
        }
    }
    primary(field, &networks, &spec.networks, faults);
    let mut seen = BTreeSet::new();
    for (index, interface) in interfaces.iter().enumerate() {
        let at = format!("{nics}[{index}]");
        if !seen.insert(interface.name.as_str()) {
            faults.duplicate(format!("{at}.name"), "Only one interface can be connected to one specific network");
        }
        let network = by_name.get(interface.name.as_str()).copied();
        if network.is_none() {
            faults.invalid(format!("{at}.name"), format!("{at}.name '{}' not found.", interface.name));
        }
        binding(&at, interface, network, settings, faults);
        attributes(&at, interface, faults);
        // Ports mean something on the pod network alone.
        if network.is_some_and(|network| network.pod.is_some()) {
            ports(&at, interface, faults);
        }
    }
}

fn source(at: &str, network: &Network, faults: &mut Faults) {
    match (network.pod.is_some(), &network.multus, network.resource_claim.is_some()) {
        (_, _, true) => faults.unsupported(at, "networks from resource claims are not supported"),
        (false, None, false) => faults.required(at, "should have a network type"),
        (true, Some(_), false) => faults.required(at, "should have only one network type"),
        (false, Some(multus), false) => {
            if multus.network_name.is_empty() {
                faults.required(at, "CNI delegating plugin must have a networkName");
            }
            if multus.default {
                faults.unsupported(at, "another network in the pod network's place is not supported");
            }
        }
        (true, None, false) => {}
    }
}

/// One network at most is the pod's own.
fn primary(field: &str, networks: &str, all: &[Network], faults: &mut Faults) {
    let pods = all.iter().filter(|network| network.pod.is_some()).count();
    let defaults = all.iter().filter(|network| network.multus.as_ref().is_some_and(|multus| multus.default)).count();
    if pods > 1 {
        // Upstream's path, which leaves the devices out.
        let at = format!("{field}.interfaces");
        faults.duplicate(&at, format!("more than one interface is connected to a pod network in {at}"));
    }
    if defaults > 1 {
        faults.invalid(networks, "Multus CNI should only have one default network");
    }
    if pods > 0 && defaults > 0 {
        faults.invalid(networks, "Pod network cannot be defined when Multus default network is defined");
    }
}

fn binding(
    at: &str,
    interface: &Interface,
    network: Option<&Network>,
    settings: &KubeVirtConfiguration,
    faults: &mut Faults,
) {
    let others = [
        ("slirp", interface.slirp.is_some()),
        ("sriov", interface.sriov.is_some()),
        ("macvtap", interface.macvtap.is_some()),
        ("passt", interface.passt.is_some()),
        ("passtBinding", interface.passt_binding.is_some()),
        ("binding", interface.binding.is_some()),
    ];
    let others: Vec<&str> = others.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
    if others.len() + usize::from(interface.masquerade.is_some()) + usize::from(interface.bridge.is_some()) > 1 {
        faults.invalid(at, format!("{at} can only have one binding"));
    }
    for binding in others {
        faults.unsupported(format!("{at}.{binding}"), "only masquerade and bridge are supported");
    }
    let on_pod = network.is_some_and(|network| network.pod.is_some());
    if interface.masquerade.is_some() && network.is_some() && !on_pod {
        faults.invalid(format!("{at}.name"), "Masquerade interface only implemented with pod network");
    }
    if interface.masquerade.is_some() && interface.mac_address.as_deref() == Some(RESERVED_MAC) {
        let message = "The requested MAC address is reserved for the in-pod bridge. Please choose another one.";
        faults.invalid(format!("{at}.macAddress"), message);
    }
    let permitted = settings.network.as_ref().and_then(|network| network.permit_bridge_interface_on_pod_network);
    if interface.bridge.is_some() && on_pod && permitted == Some(false) {
        let message = "Bridge on pod network configuration is not enabled under kubevirt-config";
        faults.invalid(format!("{at}.name"), message);
    }
}

fn attributes(at: &str, interface: &Interface, faults: &mut Faults) {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if interface.name.is_empty() || !interface.name.chars().all(plain) {
        let message =
            "Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)";
        faults.invalid(format!("{at}.name"), message);
    }
    if !is_one_of(interface.model.as_deref(), &MODELS) {
        let model = interface.model.as_deref().unwrap_or_default();
        let message = format!("interface {at}.name uses model {model} that is not supported.");
        faults.unsupported(format!("{at}.model"), message);
    }
    if let Some(mac) = interface.mac_address.as_deref().filter(|mac| !mac.is_empty())
        && !is_unicast_mac(mac)
    {
        faults.invalid(format!("{at}.macAddress"), format!("interface {at}.name has malformed MAC address ({mac})."));
    }
    if interface.pci_address.is_some() {
        faults.unsupported(format!("{at}.pciAddress"), "PCI addresses are not supported");
    }
    if let Some(options) = &interface.dhcp_options {
        dhcp_options(&format!("{at}.dhcpOptions"), options, faults);
    }
    if !is_one_of(interface.state.as_deref(), &["", "up"]) {
        faults.unsupported(format!("{at}.state"), "only state up is supported");
    }
}

fn dhcp_options(at: &str, options: &DhcpOptions, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, own) in options.private_options.iter().enumerate() {
        let at = format!("{at}.privateOptions[{index}]");
        if !seen.insert(own.option) {
            faults.invalid(&at, "Found Duplicates: you have provided duplicate DHCPPrivateOptions");
        }
        if !(224..=254).contains(&own.option) {
            faults.invalid(at, "provided DHCPPrivateOptions are out of range, must be in range 224 to 254");
        }
    }
    for (index, server) in options.ntp_servers.iter().enumerate() {
        if parse_address(server).is_none_or(|address| address.is_ipv6()) {
            let at = format!("{at}.ntpServers[{index}]");
            faults.invalid(at, "NTP servers must be a list of valid IPv4 addresses.");
        }
    }
}

fn ports(at: &str, interface: &Interface, faults: &mut Faults) {
    let mut names = BTreeSet::new();
    for (index, port) in interface.ports.iter().enumerate() {
        let at = format!("{at}.ports[{index}]");
        match port.port {
            0 => faults.required(&at, "Port field is mandatory."),
            1..=65535 => {}
            _ => faults.invalid(&at, "Port field must be in range 0 < x < 65536."),
        }
        if !is_one_of(port.protocol.as_deref(), &["", "TCP", "UDP"]) {
            faults.invalid(format!("{at}.protocol"), "Unknown protocol, only TCP or UDP allowed");
        }
        let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) else { continue };
        if !names.insert(name) {
            faults.duplicate(format!("{at}.name"), format!("Duplicate name of the port: {name}"));
        }
        if !is_port_name(name) {
            faults.invalid(format!("{at}.name"), format!("Invalid name of the port: {name}"));
        }
    }
}

/// An IANA service name: up to fifteen small letters, digits and hyphens, with a letter among them.
fn is_port_name(name: &str) -> bool {
    let known = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    name.len() <= 15
        && name.bytes().all(known)
        && name.bytes().any(|c| c.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

/// An address. Zeros before the numbers of one of version 4 mean nothing, as upstream has it; there are programs that take such
/// numbers for octal ones, and others that refuse them. (Upstream: `ParseIPSloppy`.)
pub(super) fn parse_address(text: &str) -> Option<IpAddr> {
    let number = |part: &str| {
        let is_plain = part.bytes().all(|digit| digit.is_ascii_digit());
        is_plain.then(|| part.parse::<u8>().ok()).flatten()
    };
    let numbers = text.split('.').map(number).collect::<Option<Vec<u8>>>();
    let four: Option<[u8; 4]> = numbers.and_then(|numbers| numbers.try_into().ok());
    four.map(IpAddr::from).or_else(|| text.parse().ok())
}

/// Six bytes in hex, between colons or hyphens.
pub(super) fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let separator = if text.contains('-') { '-' } else { ':' };
    let byte = |part: &str| {
        let is_hex = part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hex.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    text.split(separator).map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// Whether a text is the address of one station.
fn is_unicast_mac(text: &str) -> bool {
    parse_mac(text).is_some_and(|bytes| bytes[0] & 1 == 0 && bytes != [0; 6])
}
