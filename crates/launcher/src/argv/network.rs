//! Interfaces, and where they are.
//!
//! Many guests name an interface after its place on the PCI bus, and what is configured under that name is lost with it. So no disk
//! that comes or goes moves one: on q35 each interface has a root port to itself, before those of disks (`slots.rs`), and is
//! `enp1s0`, `enp2s0` and so on, as under KubeVirt (libvirt: `qemuDomainAssignDevicePCISlots` has interfaces first). Those that are
//! older than PCI Express, or on the older chip set, are made before all that may come and go.

use super::{Line, MachineError, invalid, slots};
use crate::spec::{MachineSpec, MachineType, NicModel, NicSpec};
use serde_json::json;

/// Returns how many ports there are.
pub(super) fn nics(line: &mut Line, spec: &MachineSpec) -> Result<usize, MachineError> {
    let mut ports = 0;
    for (index, nic) in spec.nics.iter().enumerate() {
        let is_express = match nic.model {
            // Behind a port it is what virtio 1.0 says, and nothing older.
            NicModel::Virtio => !spec.board.transitional,
            model => model == NicModel::E1000e,
        };
        // Without a port, an interface is beside the disks.
        let port = if spec.machine == MachineType::Q35 && is_express { slots::port(ports) } else { None };
        let bus = port.map(|(bus, device)| {
            line.device(device);
            ports += 1;
            bus
        });
        interface(line, index, nic, bus.as_deref())?;
    }
    Ok(ports)
}

fn interface(line: &mut Line, index: usize, nic: &NicSpec, port: Option<&str>) -> Result<(), MachineError> {
    let field = |name: &str| format!("nics[{index}].{name}");
    // IFNAMSIZ is 16 with the end.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if nic.tap.is_empty() || nic.tap.len() > 15 || !nic.tap.bytes().all(plain) {
        return Err(invalid(field("tap"), "not an interface name"));
    }
    if !is_mac(&nic.mac) {
        return Err(invalid(field("mac"), "not a hardware address"));
    }
    let vhost = if nic.vhost { "on" } else { "off" };
    let queues = nic.queues.filter(|count| *count > 1 && nic.model == NicModel::Virtio);
    let many = queues.map_or_else(String::new, |count| format!(",queues={count}"));
    let netdev = format!("tap,id=hostnet{index},ifname={},script=no,downscript=no,vhost={vhost}{many}", nic.tap);
    line.option("-netdev", netdev);
    let driver = match nic.model {
        NicModel::Virtio => "virtio-net-pci",
        NicModel::E1000 => "e1000",
        NicModel::E1000e => "e1000e",
        NicModel::Ne2kPci => "ne2k_pci",
        NicModel::Pcnet => "pcnet",
        NicModel::Rtl8139 => "rtl8139",
    };
    let mut device = json!({
        "driver": driver, "id": format!("net{index}"), "netdev": format!("hostnet{index}"), "mac": nic.mac,
    });
    if let Some(bus) = port {
        (device["bus"], device["addr"]) = (json!(bus), json!("0x0"));
    }
    match nic.boot_order {
        Some(order) => device["bootindex"] = json!(order),
        // The boot ROM is only needed where the guest boots from the network.
        None => device["romfile"] = json!(""),
    }
    if let (NicModel::Virtio, Some(mtu)) = (nic.model, nic.mtu) {
        device["host_mtu"] = json!(mtu);
    }
    if let Some(count) = queues {
        device["mq"] = json!(true);
        // One for each direction of each, one for changes of settings, one for the queue by which the guest makes them.
        device["vectors"] = json!(count.saturating_mul(2).saturating_add(2));
    }
    if let Some(index) = nic.acpi_index {
        device["acpi-index"] = json!(index);
    }
    line.device(device);
    Ok(())
}

/// Six pairs of hexadecimal digits with colons, as in `52:54:00:12:34:56`.
pub(crate) fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() == 6 && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}
