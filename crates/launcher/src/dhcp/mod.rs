//! The DHCP server of an interface: one client, one lease, nothing to remember.
//!
//! It listens on the bridge in the pod's network namespace and answers only the guest's hardware address.
//! All it says follows from the specification, so that a server in a new monitor continues where the old one
//! stopped.

mod packet;

pub use packet::{Answer, answer};

use crate::spec::DhcpSpec;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket as StdUdpSocket};
use tokio::net::UdpSocket;

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;

/// Larger than any DHCP message over Ethernet.
const MESSAGE_BYTES: usize = 1500;

/// A server that listens but does not answer yet.
#[derive(Debug)]
pub struct Server {
    socket: UdpSocket,
    mac: [u8; 6],
    lease: DhcpSpec,
}

impl Server {
    /// Listens on the lease's interface for the client with the hardware address `mac`.
    ///
    /// # Errors
    /// The address is no hardware address, the interface does not exist, or the port cannot be bound.
    pub fn bind(lease: &DhcpSpec, mac: &str) -> io::Result<Self> {
        let mac = parse_mac(mac).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no hardware address"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        // Each interface of the guest has a server of its own on this port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_broadcast(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, SERVER_PORT))?;
        let socket = UdpSocket::from_std(StdUdpSocket::from(socket))?;
        socket.bind_device(Some(lease.interface.as_bytes()))?;
        Ok(Self { socket, mac, lease: lease.clone() })
    }

    /// Answers until the task is dropped. A failed answer is logged; the client asks again.
    pub async fn run(self) {
        let mut buffer = [0; MESSAGE_BYTES];
        loop {
            let count = match self.socket.recv_from(&mut buffer).await {
                Ok((count, _)) => count,
                Err(error) => {
                    tracing::warn!(interface = self.lease.interface, %error, "the DHCP server stops");
                    return;
                }
            };
            let Some(answer) = answer(&buffer[..count], self.mac, &self.lease) else { continue };
            if let Err(error) = self.socket.send_to(&answer.bytes, (answer.to, CLIENT_PORT)).await {
                tracing::warn!(interface = self.lease.interface, %error, "a DHCP answer was not sent");
            }
        }
    }
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    if !crate::argv::is_mac(text) {
        return None;
    }
    let mut mac = [0; 6];
    for (byte, part) in mac.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    Some(mac)
}
