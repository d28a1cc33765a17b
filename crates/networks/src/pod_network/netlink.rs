//! Requests to the kernel's networking, one after another: what a program needs that does one thing and ends.
//!
//! The messages are `netlink-packet-route`'s. Its async companion would bring a runtime, whose start costs more than all requests.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with, sockopt,
};

/// How long the kernel may take for an answer: others may hold its lock.
const LIMIT: Duration = Duration::from_secs(30);

/// More than the kernel puts into one datagram for whoever asks with less.
const BUFFER_BYTES: usize = 128 << 10;

/// The group that is told of changes of links (`RTMGRP_LINK`).
const LINKS: u32 = 1;

/// A way to the networking of the namespace that it was opened in.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Hears of changes of links.
#[derive(Debug)]
pub struct Changes {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

fn open(groups: u32) -> io::Result<OwnedFd> {
    // No protocol is `NETLINK_ROUTE`, which is 0.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(LIMIT))?;
    Ok(socket)
}

impl Netlink {
    /// Opens one in the thread's network namespace.
    ///
    /// # Errors
    /// The kernel has no such sockets.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: open(0)?, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Does something, or reads one thing. `flags` besides those of every request.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.answers()
    }

    /// Reads all of a kind.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn list(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(message, NLM_F_REQUEST | NLM_F_DUMP)?;
        self.answers()
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// What comes until the kernel says that it was all.
    fn answers(&mut self) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut answers = Vec::new();
        loop {
            let length = receive(&self.socket, &mut self.buffer)?;
            let mut rest = &self.buffer[..length];
            while rest.len() >= 16 {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
                let step = usize::try_from(message.header.length).unwrap_or(usize::MAX).next_multiple_of(4);
                rest = rest.get(step.max(16)..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(said) => match said.code {
                        None => return Ok(answers),
                        Some(code) => return Err(io::Error::from_raw_os_error(code.get().saturating_neg())),
                    },
                    _ => {}
                }
            }
        }
    }
}

impl Changes {
    /// Listens from now on, in the thread's network namespace.
    ///
    /// # Errors
    /// The kernel has no such sockets.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { socket: open(LINKS)?, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Waits for a change of any link; false when there was none for so long.
    ///
    /// # Errors
    /// The socket's.
    pub fn wait(&mut self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            // More happened than it could keep: something has changed.
            Ok(_) | Err(Errno::NOBUFS | Errno::WOULDBLOCK | Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// One datagram, whole.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::TRUNC) {
            Ok((_, length)) if length > buffer.len() => {
                return Err(io::Error::other(format!("an answer of the kernel has {length} bytes")));
            }
            Ok((_, length)) => return Ok(length),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not answer"));
            }
            Err(error) => return Err(error.into()),
        }
    }
}
