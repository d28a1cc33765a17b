//! Interfaces: how each is bound to the pod's network, and what the guest hears by DHCP.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use carrack_launcher::spec::{DhcpSpec, NicModel, NicSpec};
use carrack_types::kubevirt::devices::DhcpOptions;
use carrack_types::kubevirt::{Interface, Network, VirtualMachineInstance};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::VHOST_NET_RESOURCE;
use k8s_openapi::api::core::v1::Pod;

use super::{has_device, host_name};
use crate::handler::effects::{Binding, Masquerade, PodLink, Prepared};
use crate::identity::{hashed_network, mac_address};

const NTP_SERVERS: u8 = 42;
const TFTP_SERVER: u8 = 66;
const BOOT_FILE: u8 = 67;

/// Most queues that a tap device has.
const MAX_QUEUES: u32 = 256;

/// The pod's interface on the pod network.
pub const POD_INTERFACE: &str = "eth0";

/// Network that guests get when their spec names none; KubeVirt's choice.
const DEFAULT_NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 2, 0), 24);

/// Address under which the DHCP server of a bridged interface speaks; it is nobody's. KubeVirt's choice.
const BRIDGE_DHCP_SERVER: Ipv4Addr = Ipv4Addr::new(169, 254, 75, 10);

/// Seen from both ends, the interfaces of a pod in which a guest has one of its own.
pub(super) struct Names {
    pub pod: String,
    pub bridge: String,
    pub tap: String,
}

/// Names are KubeVirt's: those on the pod network plain, others by a hash of their network's name.
pub(super) fn names(network: &Network) -> Names {
    if is_primary(network) {
        let (pod, bridge, tap) = (POD_INTERFACE, "k6t-eth0", "tap0");
        return Names { pod: pod.to_owned(), bridge: bridge.to_owned(), tap: tap.to_owned() };
    }
    let hash = hashed_network(&network.name);
    Names { pod: format!("pod{hash}"), bridge: format!("k6t-{hash}"), tap: format!("tap{hash}") }
}

/// Whether a network is the pod's own: the cluster's, or one of Multus in its place.
fn is_primary(network: &Network) -> bool {
    network.multus.as_ref().is_none_or(|multus| multus.default)
}

fn network_of<'a>(vmi: &'a VirtualMachineInstance, nic: &Interface) -> Result<&'a Network, String> {
    let found = vmi.spec.networks.iter().find(|network| network.name == nic.name);
    found.ok_or_else(|| format!("interface {} has no network", nic.name))
}

/// What is made of the pod's interfaces before the guest starts.
///
/// # Errors
/// What cannot be, for people.
pub(super) fn links(vmi: &VirtualMachineInstance) -> Result<Vec<PodLink>, String> {
    vmi.spec.domain.devices.interfaces.iter().map(|nic| link(vmi, nic)).collect()
}

fn link(vmi: &VirtualMachineInstance, nic: &Interface) -> Result<PodLink, String> {
    let network = network_of(vmi, nic)?;
    let Names { pod, bridge, tap } = names(network);
    let binding = if nic.bridge.is_some() {
        Binding::Bridge { port_mac: mac_address(vmi.uid(), &format!("port of {}", nic.name)) }
    } else {
        Binding::Masquerade(masquerade(network, nic)?)
    };
    Ok(PodLink { pod_interface: pod, bridge, tap, multi_queue: queues(vmi, nic) > 1, binding })
}

/// In how many queues a guest has an interface's packets: in as many as it has processors, where that is asked for.
/// (Upstream: `NetworkQueuesCapacity` in virt-launcher's converter.)
pub(in crate::handler) fn queues(vmi: &VirtualMachineInstance, nic: &Interface) -> u32 {
    let domain = &vmi.spec.domain;
    let asked = domain.devices.network_interface_multiqueue == Some(true);
    let able = nic.model.as_deref().unwrap_or("virtio") == "virtio";
    if asked && able { domain.vcpus().clamp(1, MAX_QUEUES) } else { 1 }
}

/// The guest's network: the first address is its router's, the second its own.
fn masquerade(network: &Network, nic: &Interface) -> Result<Masquerade, String> {
    let asked = network.pod.as_ref().and_then(|pod| pod.vm_network_cidr.as_deref());
    let (base, prefix_bits) = match asked.filter(|cidr| !cidr.is_empty()) {
        Some(cidr) => {
            parse_cidr(cidr).ok_or_else(|| format!("vmNetworkCIDR {cidr} is no network of at least 4 addresses"))?
        }
        None => DEFAULT_NETWORK,
    };
    let base = u32::from(base);
    let mut ports = Vec::new();
    for port in &nic.ports {
        let number = u16::try_from(port.port).map_err(|_| format!("port {} is out of range", port.port))?;
        ports.push((port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()).to_lowercase(), number));
    }
    Ok(Masquerade { guest: Ipv4Addr::from(base + 2), gateway: Ipv4Addr::from(base + 1), prefix_bits, ports })
}

fn parse_cidr(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let (address, bits): (Ipv4Addr, u8) = (address.parse().ok()?, bits.parse().ok()?);
    if bits > 30 {
        return None;
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
    Some((Ipv4Addr::from(u32::from(address) & mask), bits))
}

/// The MAC address of an interface: the spec's, or one derived from the instance.
#[must_use]
pub fn mac_of(vmi: &VirtualMachineInstance, nic: &Interface) -> String {
    let given = nic.mac_address.as_deref().filter(|mac| !mac.is_empty());
    given.map_or_else(|| mac_address(vmi.uid(), &nic.name), |mac| mac.to_lowercase().replace('-', ":"))
}

/// Name of the interface in the pod.
pub(in crate::handler) fn pod_interface(vmi: &VirtualMachineInstance, nic: &Interface) -> String {
    network_of(vmi, nic).map_or_else(|_| String::new(), |network| names(network).pod)
}

/// Names of a guest's interfaces, by their tap devices.
pub(in crate::handler) fn taps(vmi: &VirtualMachineInstance) -> BTreeMap<String, String> {
    let nics = vmi.spec.domain.devices.interfaces.iter();
    nics.filter_map(|nic| Some((names(network_of(vmi, nic).ok()?).tap, nic.name.clone()))).collect()
}

/// What a guest is told by DHCP besides, by the numbers of RFC 2132.
fn further_options(options: &DhcpOptions) -> Vec<(u8, Vec<u8>)> {
    let text = |code: u8, text: &Option<String>| text.as_ref().map(|text| (code, text.clone().into_bytes()));
    let servers = options.ntp_servers.iter().filter_map(|server| server.parse::<Ipv4Addr>().ok());
    let private = options.private_options.iter();
    let private = private.filter_map(|own| Some((u8::try_from(own.option).ok()?, own.value.clone().into_bytes())));
    [text(TFTP_SERVER, &options.tftp_server_name), text(BOOT_FILE, &options.boot_file_name)]
        .into_iter()
        .flatten()
        .chain([(NTP_SERVERS, servers.flat_map(|server| server.octets()).collect())])
        .chain(private)
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// The guest's interfaces.
///
/// # Errors
/// What cannot be, for people.
pub(super) fn nics(vmi: &VirtualMachineInstance, pod: &Pod, prepared: &Prepared) -> Result<Vec<NicSpec>, String> {
    vmi.spec.domain.devices.interfaces.iter().map(|nic| nic_spec(vmi, pod, nic, prepared)).collect()
}

fn nic_spec(vmi: &VirtualMachineInstance, pod: &Pod, nic: &Interface, prepared: &Prepared) -> Result<NicSpec, String> {
    let network = network_of(vmi, nic)?;
    let PodLink { pod_interface, bridge, tap, binding, .. } = link(vmi, nic)?;
    let found = prepared.links.get(&pod_interface).cloned().unwrap_or_default();
    let model = match nic.model.as_deref().unwrap_or("virtio") {
        "virtio" => NicModel::Virtio,
        "e1000" => NicModel::E1000,
        "e1000e" => NicModel::E1000e,
        "ne2k_pci" => NicModel::Ne2kPci,
        "pcnet" => NicModel::Pcnet,
        "rtl8139" => NicModel::Rtl8139,
        other => return Err(format!("interface {}: model {other} is not supported", nic.name)),
    };
    // What a guest hears is for the network that it has a router on.
    let primary = is_primary(network);
    let lease = match binding {
        Binding::Masquerade(Masquerade { guest, gateway, prefix_bits, .. }) => {
            Some((gateway, guest, prefix_bits, Some(gateway)))
        }
        Binding::Bridge { .. } => {
            found.address.map(|(address, bits)| (BRIDGE_DHCP_SERVER, address, bits, found.router))
        }
    };
    Ok(NicSpec {
        name: nic.name.clone(),
        tap,
        mac: mac_of(vmi, nic),
        vhost: model == NicModel::Virtio && has_device(pod, VHOST_NET_RESOURCE),
        model,
        queues: Some(queues(vmi, nic)).filter(|count| *count > 1),
        mtu: found.mtu,
        boot_order: nic.boot_order,
        acpi_index: nic.acpi_index.and_then(|index| u32::try_from(index).ok()).filter(|index| *index > 0),
        dhcp: lease.map(|(server, address, prefix_bits, router)| DhcpSpec {
            interface: bridge,
            server,
            address,
            prefix_bits,
            router,
            dns: if primary { prepared.dns.clone() } else { Vec::new() },
            search: if primary { prepared.search.clone() } else { Vec::new() },
            mtu: found.mtu,
            hostname: Some(host_name(vmi)),
            options: nic.dhcp_options.as_ref().map(further_options).unwrap_or_default(),
        }),
    })
}
