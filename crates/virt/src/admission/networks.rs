//! Interfaces and networks: each interface has its network, and each network its interface.

use std::collections::{BTreeMap, BTreeSet};

use carrack_types::kubevirt::{Interface, VirtualMachineInstanceSpec};

use super::{Faults, is_one_of};

const MODELS: [&str; 7] = ["e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio"];

pub(super) fn check(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let interfaces = &spec.domain.devices.interfaces;
    let (nics, networks) = (format!("{field}.domain.devices.interfaces"), format!("{field}.networks"));
    let mut by_name = BTreeMap::new();
    for (index, network) in spec.networks.iter().enumerate() {
        let at = format!("{networks}[{index}]");
        if by_name.insert(network.name.as_str(), network).is_some() {
            faults.duplicate(format!("{at}.name"), format!("Network with name '{}' already exists.", network.name));
        }
        let sources = [network.pod.is_some(), network.multus.is_some(), network.resource_claim.is_some()];
        match sources.iter().filter(|set| **set).count() {
            0 => faults.required(&at, "should have a network type"),
            1 if network.pod.is_none() => faults.unsupported(&at, "only the pod network is supported"),
            1 => {}
            _ => faults.required(&at, "should have only one network type"),
        }
        if !interfaces.iter().any(|interface| interface.name == network.name) {
            let message = format!("{at}.name '{}' not found.", network.name);
            faults.required(format!("{at}.name"), message);
        }
    }
    if spec.networks.iter().filter(|network| network.pod.is_some()).count() > 1 {
        faults.duplicate(&networks, "more than one interface is connected to a pod network");
    }
    let mut seen = BTreeSet::new();
    for (index, interface) in interfaces.iter().enumerate() {
        let at = format!("{nics}[{index}]");
        if !seen.insert(interface.name.as_str()) {
            faults.duplicate(format!("{at}.name"), "Only one interface can be connected to one specific network");
        }
        if !by_name.contains_key(interface.name.as_str()) {
            let message = format!("{at}.name '{}' not found.", interface.name);
            faults.invalid(format!("{at}.name"), message);
        }
        check_interface(&at, interface, faults);
    }
}

fn check_interface(at: &str, interface: &Interface, faults: &mut Faults) {
    let bindings = [
        ("bridge", interface.bridge.is_some()),
        ("slirp", interface.slirp.is_some()),
        ("sriov", interface.sriov.is_some()),
        ("macvtap", interface.macvtap.is_some()),
        ("passt", interface.passt.is_some()),
        ("passtBinding", interface.passt_binding.is_some()),
        ("binding", interface.binding.is_some()),
    ];
    let others: Vec<&str> = bindings.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
    if others.len() + usize::from(interface.masquerade.is_some()) > 1 {
        faults.invalid(at, format!("{at} can only have one binding"));
    }
    for binding in others {
        faults.unsupported(format!("{at}.{binding}"), "only masquerade is supported");
    }
    if !is_one_of(interface.model.as_deref(), &MODELS) {
        let message = format!(
            "interface {at}.name uses model {} that is not supported.",
            interface.model.as_deref().unwrap_or_default()
        );
        faults.unsupported(format!("{at}.model"), message);
    } else if interface.model.as_deref() == Some("igb") {
        faults.unsupported(format!("{at}.model"), "model igb is not supported");
    }
    if let Some(mac) = &interface.mac_address
        && !is_unicast_mac(mac)
    {
        faults.invalid(format!("{at}.macAddress"), format!("interface {at}.name has malformed MAC address ({mac})."));
    }
    if !is_one_of(interface.state.as_deref(), &["up"]) {
        faults.unsupported(format!("{at}.state"), "only state up is supported");
    }
    let mut names = BTreeSet::new();
    for (index, port) in interface.ports.iter().enumerate() {
        let at = format!("{at}.ports[{index}]");
        if !(1..=65535).contains(&port.port) {
            faults.invalid(&at, "Port field must be in range 0 < x < 65536.");
        }
        if !is_one_of(port.protocol.as_deref(), &["TCP", "UDP"]) {
            faults.invalid(format!("{at}.protocol"), "Unknown protocol, only TCP or UDP allowed");
        }
        if let Some(name) = &port.name
            && !names.insert(name)
        {
            faults.duplicate(format!("{at}.name"), format!("Duplicate name of the port: {name}"));
        }
    }
}

/// Six bytes in hex, between colons or hyphens, of one station.
fn is_unicast_mac(text: &str) -> bool {
    let separator = if text.contains('-') { '-' } else { ':' };
    let bytes: Option<Vec<u8>> = text
        .split(separator)
        .map(|part| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten())
        .collect();
    bytes.is_some_and(|bytes| bytes.len() == 6 && bytes[0] & 1 == 0 && bytes.iter().any(|byte| *byte != 0))
}
