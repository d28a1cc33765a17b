//! Host ports of pods that run, where somebody has taken their rules away.
//!
//! CNI's `portmap` makes a pod's rules once, with its network. What it was told then is in the runtime's record of that call
//! (libcni's cache); told again, it makes those that are missing. Real Multus keeps its record of the pod network elsewhere: where it
//! makes that, host ports come back with a pod's next start alone.
//!
//! ```text
//!   what is there: rules, before addresses on disk, before records
//!   a sandbox with ports and an address, without a rule twice in a row ─▶ ADD
//!   a rule of a sandbox that has no address                            ─▶ DEL
//! ```
//!
//! A sandbox that goes loses its rules some time before its record, which is why one look is not enough to make them again. Where a
//! look comes between all the same, they go with the next one: an address is there before the first rule and stays until the last
//! one is gone.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use carrack_networks::invoke::is_namespace;
use carrack_networks::pod_network::addresses::{Addresses, Owner};
use carrack_networks::pod_network::{Attachment, PORTS_CAPABILITY, PodNetworkError};
use serde_json::Value;

use crate::host::CNI_BIN_DIRS;
use crate::layout::Layout;
use crate::members::{self, NetworkError};

/// Where libcni keeps what it was asked for and what came of it, on every machine.
const RECORDS: &str = "/var/lib/cni/results";
/// By these rules packets reach `portmap`'s: where they come from, and what they jump to.
const JUMPS: [(&str, &str); 3] =
    [("PREROUTING", "CNI-HOSTPORT-DNAT"), ("OUTPUT", "CNI-HOSTPORT-DNAT"), ("POSTROUTING", "CNI-HOSTPORT-MASQ")];

/// Why they are not put back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortsError {
    /// Which rules there are.
    #[error("rules for host ports")]
    Rules(#[from] NetworkError),
    /// Which sandboxes have addresses or records.
    #[error("what is written down of pods' networks")]
    Records(#[from] io::Error),
    /// `portmap` refuses.
    #[error(transparent)]
    Refused(#[from] PodNetworkError),
}

/// Those of one node's pods.
#[derive(Debug)]
pub(crate) struct HostPorts {
    layout: Layout,
    /// The sandboxes that had no rule at the last look.
    lacked: Mutex<BTreeSet<String>>,
}

impl HostPorts {
    pub(crate) fn new(layout: Layout) -> Self {
        Self { layout, lacked: Mutex::default() }
    }

    /// Looks once, and puts back what was missing at the last look already. Returns whether that was anything. Blocks meanwhile.
    ///
    /// # Errors
    /// See [`PortsError`]. One pod's does not keep the others' from theirs.
    pub(crate) fn look(&self) -> Result<bool, PortsError> {
        let network = self.layout.cni_network();
        let saved = members::nat_rules()?;
        let owners = Addresses::new(&self.layout.cni_ipam_dir(), &network).owners()?;
        let living: BTreeSet<String> = owners.into_iter().map(|owner| owner.sandbox).collect();
        let mut records: Vec<Record> =
            records(&network)?.iter().filter_map(|path| Record::read(&fs::read_to_string(path).ok()?)).collect();
        records.retain(|record| living.contains(&record.owner.sandbox) && is_namespace(&record.netns));

        let with_ports = records.iter().map(|record| record.owner.sandbox.clone()).collect();
        let found = Found { ruled: ruled(&saved, &network), reached: is_reached(&saved), living, with_ports };
        // A set is replaced whole.
        let due = due(&mut self.lacked.lock().unwrap_or_else(PoisonError::into_inner), found.lack());

        let bin_dirs = CNI_BIN_DIRS.map(PathBuf::from);
        let mut first = Ok(());
        let mut put_back = false;
        for record in records.iter().filter(|record| due.contains(&record.owner.sandbox)) {
            let made = record.attachment(&network, &bin_dirs).map(&record.result);
            put_back |= made.is_ok();
            first = first.and(made);
        }
        for sandbox in found.astray() {
            let left = Record::left(sandbox);
            tracing::info!(sandbox = left.owner.sandbox, "rules for host ports of a sandbox that is gone go");
            first = first.and(left.attachment(&network, &bin_dirs).unmap());
        }
        first.map(|()| put_back).map_err(PortsError::Refused)
    }
}

/// What one look has found: sandboxes by their ids.
#[derive(Debug)]
struct Found {
    /// There are rules for them.
    ruled: BTreeSet<String>,
    /// Packets reach those rules.
    reached: bool,
    /// They have addresses.
    living: BTreeSet<String>,
    /// They are to have host ports.
    with_ports: BTreeSet<String>,
}

impl Found {
    /// Those whose host ports lead nowhere.
    fn lack(&self) -> BTreeSet<String> {
        self.with_ports.iter().filter(|sandbox| !self.reached || !self.ruled.contains(*sandbox)).cloned().collect()
    }

    /// Those of which nothing but rules is left.
    fn astray(&self) -> BTreeSet<String> {
        self.ruled.difference(&self.living).cloned().collect()
    }
}

/// Those that lack rules now and did at the last look already. From then on this look is the last one.
fn due(lacked: &mut BTreeSet<String>, lack: BTreeSet<String>) -> BTreeSet<String> {
    let before = std::mem::replace(lacked, lack);
    before.intersection(lacked).cloned().collect()
}

/// The sandboxes of a network for which `portmap` has made rules, by `iptables-save`.
fn ruled(saved: &str, network: &str) -> BTreeSet<String> {
    let mark = format!("--comment \"dnat name: \\\"{network}\\\" id: \\\"");
    let id = |line: &str| Some(line.split_once(&mark)?.1.split_once('\\')?.0.to_owned());
    saved.lines().filter(|line| line.starts_with("-A ")).filter_map(id).collect()
}

/// Whether packets reach such rules, by `iptables-save`.
fn is_reached(saved: &str) -> bool {
    JUMPS.iter().all(|(from, to)| {
        let (from, to) = (format!("-A {from} "), format!(" -j {to}"));
        saved.lines().any(|line| line.starts_with(&from) && line.trim_end().ends_with(&to))
    })
}

/// libcni's records of a network's sandboxes.
///
/// # Errors
/// They cannot be listed.
pub(crate) fn records(network: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(RECORDS) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| is_of(name, network)) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Whether a record's name is that of a sandbox of this network: `carrack-` alone also begins those of the machine's other
/// clusters, whose names go on with a suffix of eight digits and a dash; a sandbox's id is 64 digits.
fn is_of(name: &str, network: &str) -> bool {
    let rest = name.strip_prefix(network).and_then(|rest| rest.strip_prefix('-'));
    rest.and_then(|rest| rest.split('-').next()).is_some_and(|id| id.len() == 64)
}

/// What the runtime has asked for a sandbox that has host ports, and what came of it.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    owner: Owner,
    netns: String,
    args: String,
    ports: Value,
    result: Value,
}

impl Record {
    /// By the file's text; none where the sandbox has no host ports, or the text is no record.
    fn read(text: &str) -> Option<Self> {
        let record: Value = serde_json::from_str(text).ok()?;
        let text = |field: &str| record[field].as_str().map(str::to_owned);
        let ports = &record["capabilityArgs"][PORTS_CAPABILITY];
        if ports.as_array().is_none_or(Vec::is_empty) {
            return None;
        }
        let result = &record["result"];
        let owner = Owner { sandbox: text("containerId")?, interface: text("ifName")? };
        let interfaces = result["interfaces"].as_array()?;
        let inside = interfaces.iter().find(|interface| interface["name"] == owner.interface.as_str())?;
        let pairs = record["cniArgs"].as_array().into_iter().flatten();
        let args: Vec<String> =
            pairs.filter_map(|pair| Some(format!("{}={}", pair[0].as_str()?, pair[1].as_str()?))).collect();
        Some(Self {
            netns: inside["sandbox"].as_str()?.to_owned(),
            args: args.join(";"),
            ports: ports.clone(),
            result: result.clone(),
            owner,
        })
    }

    /// Of a sandbox of which nothing is known but its id.
    fn left(sandbox: String) -> Self {
        let owner = Owner { sandbox, interface: "eth0".to_owned() };
        Self { owner, netns: String::new(), args: String::new(), ports: Value::Null, result: Value::Null }
    }

    fn attachment<'a>(&'a self, network: &'a str, bin_dirs: &'a [PathBuf]) -> Attachment<'a> {
        Attachment {
            name: network,
            cni_version: self.result["cniVersion"].as_str().unwrap_or(crate::config::CNI_VERSION),
            owner: self.owner.clone(),
            netns: &self.netns,
            args: &self.args,
            ports: &self.ports,
            bin_dirs,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SAVED: &str = r#"*nat
:PREROUTING ACCEPT [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A POSTROUTING -s 10.42.0.0/24 -m comment --comment "name: \"carrack\" id: \"pods\"" -j MASQUERADE
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"carrack\" id: \"aa\"" -m multiport --dports 80 -j CNI-DN-1
-A CNI-HOSTPORT-DNAT -p udp -m comment --comment "dnat name: \"carrack\" id: \"aa\"" -m multiport --dports 53 -j CNI-DN-1
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"carrack-12\" id: \"bb\"" -m multiport --dports 81 -j CNI-DN-2
COMMIT
"#;

    fn ids(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn rules_are_known_by_network_and_sandbox() {
        let networks: [(&str, &[&str]); 3] = [("carrack", &["aa"]), ("carrack-12", &["bb"]), ("carrack-1", &[])];
        for (network, expected) in networks {
            assert_eq!(ruled(SAVED, network), ids(expected), "{network}");
        }
        assert!(is_reached(SAVED));
        for (from, _) in JUMPS {
            let without = SAVED.replace(&format!("-A {from} "), "-A OTHER ");
            assert!(!is_reached(&without), "{from}");
        }
        assert!(!is_reached(""));
    }

    #[test]
    fn what_is_missing_and_what_is_too_much() {
        let check = |ruled: &[&str], reached: bool, with_ports: &[&str], lack: &[&str], astray: &[&str]| {
            let found = Found { ruled: ids(ruled), reached, living: ids(&["aa", "bb"]), with_ports: ids(with_ports) };
            assert_eq!((found.lack(), found.astray()), (ids(lack), ids(astray)), "{found:?}");
        };
        check(&["aa"], true, &["aa"], &[], &[]);
        check(&[], false, &["aa", "bb"], &["aa", "bb"], &[]);
        // Somebody has emptied one chain.
        check(&["aa", "bb"], false, &["aa"], &["aa"], &[]);
        check(&["aa"], true, &["aa", "bb"], &["bb"], &[]);
        // Whose record is not there keeps its rules while it has its address.
        check(&["aa", "cc"], true, &[], &[], &["cc"]);
    }

    #[test]
    fn one_look_makes_nothing_again() {
        let looks: [(&[&str], &[&str]); 6] =
            [(&["aa"], &[]), (&["aa", "bb"], &["aa"]), (&["bb"], &["bb"]), (&[], &[]), (&["bb"], &[]), (&["aa"], &[])];
        let mut lacked = BTreeSet::new();
        for (lack, expected) in looks {
            assert_eq!(due(&mut lacked, ids(lack)), ids(expected), "{lack:?}");
        }
    }

    #[test]
    fn records_of_other_networks_are_left() {
        let id = "0123456789abcdef".repeat(4);
        for (name, expected) in [
            (format!("carrack-{id}-eth0"), true),
            (format!("carrack-12345678-{id}-eth0"), false),
            (format!("carrack{id}-eth0"), false),
            ("carrack-12-eth0".to_owned(), false),
        ] {
            assert_eq!(is_of(&name, "carrack"), expected, "{name}");
        }
    }

    #[test]
    fn a_record_says_what_the_sandbox_was_given() {
        let record = json!({
            "kind": "cniCacheV1", "containerId": "aa", "config": "e30=", "ifName": "eth0", "networkName": "carrack",
            "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "web"]],
            "capabilityArgs": {"portMappings": [{"HostPort": 80, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": ""}]},
            "result": {
                "cniVersion": "0.4.0",
                "interfaces": [{"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/ns"}],
                "ips": [{"version": "4", "interface": 2, "address": "10.42.0.2/24", "gateway": "10.42.0.1"}],
            },
        });
        let read = Record::read(&record.to_string()).expect("a record");
        assert_eq!((&*read.owner.sandbox, &*read.netns), ("aa", "/ns"));
        assert_eq!(read.args, "IgnoreUnknown=1;K8S_POD_NAME=web");
        assert_eq!((&read.ports, &read.result), (&record["capabilityArgs"]["portMappings"], &record["result"]));
        let mut others = [record.clone(), record.clone(), record];
        others[0]["capabilityArgs"]["portMappings"] = json!([]);
        others[1]["capabilityArgs"] = Value::Null;
        others[2]["result"]["interfaces"][2]["sandbox"] = Value::Null;
        for other in others {
            assert_eq!(Record::read(&other.to_string()), None, "{other}");
        }
        assert_eq!(Record::read("{"), None);
    }
}
