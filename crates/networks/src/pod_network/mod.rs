//! The pod network itself: a bridge, an address of the node's range, and host ports.
//!
//! It does in the process that containerd calls anyway what CNI's `bridge`, `host-local` and `portmap` do in one each, since their
//! starts are most of what they cost. What it makes is the same, and so is what it writes down ([`addresses`]): pods that those
//! made are undone by this, and the other way round.
//!
//! ```text
//!   ADD   address on disk ─▶ pair of links ─▶ portmap, only for a pod that has host ports
//!   DEL   portmap ─▶ links ─▶ address free          each may be done again, and be cut short anywhere
//!   GC    as DEL, for sandboxes that the runtime does not know: an address on disk says that something may have been made
//! ```

pub mod addresses;
pub mod links;
mod netlink;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use self::addresses::{Addresses, Owner, Range};
use self::links::{LinkError, Wanted};
use crate::invoke::{self, Call};

/// The capability by which the runtime tells a pod's host ports.
pub const PORTS_CAPABILITY: &str = "portMappings";

/// The program that sees to host ports.
const PORTMAP: &str = "portmap";

/// What the configuration says of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodNetwork {
    /// The bridge's name.
    pub bridge: String,
    /// The node's range, as CIDR. The bridge has its first address.
    pub subnet: String,
    /// Where it is written down who has which address.
    pub data_dir: PathBuf,
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum PodNetworkError {
    /// The configuration cannot be used.
    #[error("the pod network: {0}")]
    Config(String),
    /// All are taken.
    #[error("the pod network: all addresses of {0} are taken")]
    Full(String),
    /// What is written down cannot be read or written.
    #[error("the pod network: the addresses in {0}")]
    Addresses(String, #[source] io::Error),
    /// Links.
    #[error("the pod network: {0}")]
    Links(String),
    /// Host ports.
    #[error("the pod's host ports: {0}")]
    Ports(String),
    /// The sandbox is not as it was made.
    #[error("the pod network: the sandbox has no address")]
    Unknown,
}

impl From<LinkError> for PodNetworkError {
    fn from(error: LinkError) -> Self {
        Self::Links(crate::plugin::chain(&error))
    }
}

/// One sandbox on it.
#[derive(Debug)]
pub struct Attachment<'a> {
    /// The network's name.
    pub name: &'a str,
    /// The version of the specification that the runtime speaks.
    pub cni_version: &'a str,
    /// Whose interface.
    pub owner: Owner,
    /// The sandbox's network namespace; empty where that is gone.
    pub netns: &'a str,
    /// `CNI_ARGS`
    pub args: &'a str,
    /// The host ports as the runtime tells them; null where it tells none.
    pub ports: &'a Value,
    /// Where other plugins are.
    pub bin_dirs: &'a [PathBuf],
}

impl Attachment<'_> {
    fn has_ports(&self) -> bool {
        self.ports.as_array().is_some_and(|ports| !ports.is_empty())
    }

    /// Makes the host ports, as far as they are not there; `made` is what the runtime was told of the attachment.
    ///
    /// # Errors
    /// [`PodNetworkError::Ports`].
    pub fn map(&self, made: &Value) -> Result<(), PodNetworkError> {
        self.portmap("ADD", self.ports, Some(made))
    }

    /// Undoes host ports, also those that their program did not take: it finds its rules by the sandbox's id, and any port will do.
    ///
    /// # Errors
    /// [`PodNetworkError::Ports`].
    pub fn unmap(&self) -> Result<(), PodNetworkError> {
        let any = json!([{ "hostPort": 1, "containerPort": 1, "protocol": "tcp" }]);
        self.portmap("DEL", &any, None)
    }

    fn portmap(&self, command: &str, ports: &Value, before: Option<&Value>) -> Result<(), PodNetworkError> {
        let mut config = json!({
            "cniVersion": self.cni_version, "name": self.name, "type": PORTMAP, "snat": true,
            "capabilities": { PORTS_CAPABILITY: true }, "runtimeConfig": { PORTS_CAPABILITY: ports },
        });
        if let Some(before) = before {
            config["prevResult"] = before.clone();
        }
        let call = Call { container_id: &self.owner.sandbox, netns: self.netns, args: self.args, dirs: self.bin_dirs };
        invoke::run(&call, command, PORTMAP, &self.owner.interface, &config)
            .map(drop)
            .map_err(|error| PodNetworkError::Ports(crate::plugin::chain(&error)))
    }
}

impl PodNetwork {
    fn range(&self) -> Result<Range, PodNetworkError> {
        if !links::is_name(&self.bridge) {
            return Err(PodNetworkError::Config(format!("{:?} cannot name a bridge", self.bridge)));
        }
        self.subnet.parse().map_err(PodNetworkError::Config)
    }

    /// Whether the configuration can be used.
    ///
    /// # Errors
    /// [`PodNetworkError::Config`].
    pub fn usable(&self) -> Result<(), PodNetworkError> {
        self.range().map(drop)
    }

    fn addresses(&self, name: &str) -> Result<Addresses, PodNetworkError> {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(PodNetworkError::Config(format!("{name:?} is no network's name")));
        }
        Ok(Addresses::new(&self.data_dir, name))
    }

    fn unread(&self, error: io::Error) -> PodNetworkError {
        PodNetworkError::Addresses(self.data_dir.display().to_string(), error)
    }

    /// Makes the attachment, or nothing; returns what the runtime is told.
    ///
    /// # Errors
    /// See [`PodNetworkError`].
    pub fn add(&self, attachment: &Attachment<'_>) -> Result<Value, PodNetworkError> {
        let range = self.range()?;
        let Attachment { owner, cni_version, netns, .. } = attachment;
        if !speaks(cni_version) {
            return Err(PodNetworkError::Config(format!("its results are not told in version {cni_version:?}")));
        }
        if !links::is_name(&owner.interface) {
            return Err(PodNetworkError::Config(format!("{:?} cannot name an interface", owner.interface)));
        }
        if owner.sandbox.is_empty() || owner.sandbox.contains(char::is_whitespace) {
            return Err(PodNetworkError::Config(format!("{:?} is no id of a sandbox", owner.sandbox)));
        }
        let addresses = self.addresses(attachment.name)?;
        let given = addresses.reserve(range, owner).map_err(|error| self.unread(error))?;
        let address = given.ok_or_else(|| PodNetworkError::Full(self.subnet.clone()))?;
        let wanted = Wanted { bridge: &self.bridge, range, address, netns: Path::new(netns) };
        let pair = match links::attach(owner, &wanted) {
            Ok(pair) => pair,
            Err(error) => {
                // It made nothing, or says so below; whose links were in the way keeps an address of its own.
                addresses.release_one(address, owner).map_err(|error| self.unread(error))?;
                return Err(error.into());
            }
        };
        let result = result(cni_version, netns, range, address, &pair);
        if attachment.has_ports()
            && let Err(error) = attachment.map(&result)
        {
            return match self.delete(attachment) {
                Ok(()) => Err(error),
                Err(left) => Err(PodNetworkError::Ports(format!("{error}; and not undone: {left}"))),
            };
        }
        Ok(result)
    }

    /// Undoes what was made for a sandbox, as far as it was.
    ///
    /// # Errors
    /// Something stays, or nobody knows; the address stays taken then.
    pub fn delete(&self, attachment: &Attachment<'_>) -> Result<(), PodNetworkError> {
        let addresses = self.addresses(attachment.name)?;
        if attachment.has_ports() {
            attachment.unmap()?;
        }
        let netns = Some(Path::new(attachment.netns)).filter(|path| !path.as_os_str().is_empty());
        links::detach(&attachment.owner, netns)?;
        addresses.release(&attachment.owner).map_err(|error| self.unread(error))
    }

    /// Looks whether an attachment is as it was made.
    ///
    /// # Errors
    /// It is not, or nobody knows.
    pub fn check(&self, attachment: &Attachment<'_>, made: Option<&Value>) -> Result<(), PodNetworkError> {
        self.range()?;
        let Attachment { owner, netns, .. } = attachment;
        let theirs = self.addresses(attachment.name)?.of(owner).map_err(|error| self.unread(error))?;
        let address = theirs.first().ok_or(PodNetworkError::Unknown)?;
        links::check(owner, &self.bridge, *address, Path::new(netns))?;
        if attachment.has_ports() {
            attachment.portmap("CHECK", attachment.ports, made)?;
        }
        Ok(())
    }

    /// The sandboxes for which something may have been made.
    ///
    /// # Errors
    /// Nobody knows.
    pub fn owners(&self, name: &str) -> Result<BTreeSet<Owner>, PodNetworkError> {
        self.addresses(name)?.owners().map_err(|error| self.unread(error))
    }

    /// Undoes what was made for a sandbox that the runtime does not know any more, and so cannot say whether it had host ports.
    ///
    /// # Errors
    /// See [`PodNetwork::delete`].
    pub fn collect(&self, attachment: &Attachment<'_>) -> Result<(), PodNetworkError> {
        attachment.unmap()?;
        self.delete(attachment)
    }
}

/// Whether results of this version have the form that is told here.
fn speaks(version: &str) -> bool {
    matches!(version, "0.3.0" | "0.3.1" | "0.4.0" | "1.0.0" | "1.1.0")
}

fn result(
    version: &str,
    netns: &str,
    range: Range,
    address: std::net::Ipv4Addr,
    links::Pair { bridge, outside, inside }: &links::Pair,
) -> Value {
    let mut ip =
        json!({ "interface": 2, "address": format!("{address}/{}", range.bits()), "gateway": range.gateway() });
    if version.starts_with("0.") {
        ip["version"] = json!("4");
    }
    json!({
        "cniVersion": version,
        "interfaces": [
            { "name": bridge.name, "mac": bridge.mac },
            { "name": outside.name, "mac": outside.mac },
            { "name": inside.name, "mac": inside.mac, "sandbox": netns },
        ],
        "ips": [ip],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": {},
    })
}
