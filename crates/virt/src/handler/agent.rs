//! What a guest's agent says, in KubeVirt's words.
//!
//! All of it comes from inside the guest: it is shown, and nothing is decided by it. What people's terminals would act on is left
//! out of texts, and addresses are addresses. What goes into an instance's status is short: each write carries it.

use std::net::IpAddr;

use carrack_launcher::said::one_line;
use carrack_types::kubevirt::VirtualMachineInstanceSpec;
use carrack_types::kubevirt::vmi::GuestOsInfo;
use serde_json::{Value, json};

use super::effects::AgentInterface;

/// Most file systems, users and commands that are taken from a guest.
const MOST: usize = 256;
/// Most interfaces, which are in the instance's status, and most addresses of each.
const MOST_INTERFACES: usize = 64;
const MOST_ADDRESSES: usize = 16;
/// Longest name and longest hardware address of an interface, characters.
const LONGEST_NAME: usize = 64;
/// The commands that every agent is to have.
const BASIC: [&str; 10] = [
    "guest-ping",
    "guest-get-time",
    "guest-info",
    "guest-shutdown",
    "guest-network-get-interfaces",
    "guest-get-fsinfo",
    "guest-get-host-name",
    "guest-get-users",
    "guest-get-timezone",
    "guest-get-osinfo",
];
/// Longest text that is taken from a guest, characters.
const LONGEST: usize = 256;

fn text(value: &Value) -> String {
    short(value, LONGEST)
}

fn short(value: &Value, longest: usize) -> String {
    one_line(value.as_str().unwrap_or_default(), longest)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten().take(MOST)
}

/// The operating system, from `guest-get-osinfo`.
#[must_use]
pub fn os_info(answer: &Value) -> GuestOsInfo {
    GuestOsInfo {
        name: text(&answer["name"]),
        kernel_release: text(&answer["kernel-release"]),
        version: text(&answer["version"]),
        pretty_name: text(&answer["pretty-name"]),
        version_id: text(&answer["version-id"]),
        kernel_version: text(&answer["kernel-version"]),
        machine: text(&answer["machine"]),
        id: text(&answer["id"]),
    }
}

/// The interfaces, from `guest-network-get-interfaces`; the loopback is nobody's concern.
#[must_use]
pub fn interfaces(answer: &Value) -> Vec<AgentInterface> {
    list(answer)
        .map(|interface| AgentInterface {
            name: short(&interface["name"], LONGEST_NAME),
            mac: short(&interface["hardware-address"], LONGEST_NAME).to_lowercase(),
            addresses: list(&interface["ip-addresses"])
                .filter_map(|address| address["ip-address"].as_str()?.parse::<IpAddr>().ok())
                .map(|address| address.to_string())
                // Addresses of the link alone reach nobody.
                .filter(|address| !address.starts_with("fe80:"))
                .take(MOST_ADDRESSES)
                .collect(),
        })
        .filter(|interface| interface.name != "lo" && !interface.name.is_empty())
        .take(MOST_INTERFACES)
        .collect()
}

/// The commands that an agent carries out, from `guest-info`.
#[must_use]
pub fn commands(answer: &Value) -> Vec<String> {
    let enabled = list(&answer["supported_commands"]).filter(|command| command["enabled"] == true);
    enabled.map(|command| text(&command["name"])).collect()
}

/// What an agent with these commands lacks that is asked of it for an instance. One that names no commands is not judged.
/// (Upstream: `isGuestAgentSupported`.)
pub(super) fn lacks(spec: &VirtualMachineInstanceSpec, commands: &[String]) -> Option<&'static str> {
    if commands.is_empty() {
        return None;
    }
    let credentials = &spec.access_credentials;
    let mut keys = credentials.iter().filter_map(|credential| credential.ssh_public_key.as_ref());
    let mut passwords = credentials.iter().filter_map(|credential| credential.user_password.as_ref());
    let mut probes = [&spec.readiness_probe, &spec.liveness_probe].into_iter().flatten();
    let needs: [(bool, &[&str], &'static str); 4] = [
        (true, &BASIC, "This guest agent doesn't support required basic commands"),
        (
            keys.any(|keys| keys.propagation_method.qemu_guest_agent.is_some()),
            &["guest-ssh-get-authorized-keys", "guest-ssh-add-authorized-keys", "guest-ssh-remove-authorized-keys"],
            "This guest agent doesn't support required public key commands",
        ),
        (
            passwords.any(|password| password.propagation_method.qemu_guest_agent.is_some()),
            &["guest-set-user-password"],
            "This guest agent doesn't support required password commands",
        ),
        (
            probes.any(|probe| probe.exec.is_some()),
            &["guest-exec-status", "guest-exec"],
            "This guest agent doesn't support required exec probe commands",
        ),
    ];
    let has_all = |needed: &[&str]| needed.iter().all(|needed| commands.iter().any(|command| command == needed));
    needs.iter().find(|(asked, needed, _)| *asked && !has_all(needed)).map(|(_, _, why)| *why)
}

/// Users, from `guest-get-users`: the items of a VirtualMachineInstanceGuestOSUserList.
#[must_use]
pub fn users(answer: &Value) -> Vec<Value> {
    let user = |user: &Value| {
        let mut item =
            json!({"userName": text(&user["user"]), "loginTime": user["login-time"].as_f64().unwrap_or(0.0)});
        let domain = text(&user["domain"]);
        if !domain.is_empty() {
            item["domain"] = json!(domain);
        }
        item
    };
    list(answer).map(user).collect()
}

/// File systems, from `guest-get-fsinfo`: the items of a VirtualMachineInstanceFileSystemList.
#[must_use]
pub fn filesystems(answer: &Value) -> Vec<Value> {
    let disk = |disk: &Value| json!({"busType": text(&disk["bus-type"]), "serial": text(&disk["serial"])});
    let filesystem = |system: &Value| {
        let disks: Vec<Value> = list(&system["disk"]).map(disk).collect();
        let mut item = json!({
            "diskName": text(&system["name"]),
            "mountPoint": text(&system["mountpoint"]),
            "fileSystemType": text(&system["type"]),
            "usedBytes": system["used-bytes"].as_i64().unwrap_or(0),
            "totalBytes": system["total-bytes"].as_i64().unwrap_or(0),
        });
        if !disks.is_empty() {
            item["disk"] = Value::Array(disks);
        }
        item
    };
    list(answer).map(filesystem).collect()
}

/// The answers of an agent to the questions behind `guestosinfo`; null where it gave none.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// `guest-info`.
    pub info: Value,
    /// `guest-get-osinfo`.
    pub os: Value,
    /// `guest-get-host-name`.
    pub host: Value,
    /// `guest-get-timezone`.
    pub zone: Value,
    /// `guest-get-users`.
    pub users: Value,
    /// `guest-get-fsinfo`.
    pub filesystems: Value,
    /// `guest-fsfreeze-status`.
    pub frozen: Value,
}

/// A VirtualMachineInstanceGuestAgentInfo.
#[must_use]
pub fn agent_info(answers: &Answers) -> Value {
    let command = |command: &Value| {
        let mut item = json!({"name": text(&command["name"]), "enabled": command["enabled"] == true});
        if command["success-response"] == true {
            item["successResponse"] = json!(true);
        }
        item
    };
    let commands: Vec<Value> = list(&answers.info["supported_commands"]).map(command).collect();
    let os = serde_json::to_value(os_info(&answers.os)).unwrap_or_default();
    let offset = answers.zone["offset"].as_i64();
    let zone = offset.map(|offset| format!("{}, {offset}", text(&answers.zone["zone"])));
    let mut info = json!({
        "guestAgentVersion": text(&answers.info["version"]),
        "supportedCommands": commands,
        "hostname": text(&answers.host["host-name"]),
        "os": os,
        "timezone": zone.unwrap_or_default(),
        "userList": users(&answers.users),
        "fsInfo": {"disks": filesystems(&answers.filesystems)},
    });
    if answers.frozen == "frozen" {
        info["fsFreezeStatus"] = json!("frozen");
    }
    info
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Answers, BASIC, agent_info, commands, filesystems, interfaces, lacks, os_info, users};

    #[test]
    fn what_an_agent_lacks() {
        let check = |spec: Value, names: &[&str], wanted: Option<&str>| {
            let mut whole = json!({"domain": {"devices": {}}});
            spec.as_object().into_iter().flatten().for_each(|(key, value)| whole[key] = value.clone());
            let enabled = names.iter().map(|name| json!({"name": name, "enabled": true}));
            let all: Vec<Value> = enabled.chain([json!({"name": "guest-exec", "enabled": false})]).collect();
            let told = commands(&json!({"supported_commands": all}));
            assert_eq!(told, names);
            let why = lacks(&serde_json::from_value(whole).expect("a spec"), &told);
            assert_eq!(why, wanted.map(|what| format!("This guest agent doesn't support required {what}")).as_deref());
        };
        let secret = json!({"secret": {"secretName": "s"}});
        let keys = json!({"accessCredentials": [{"sshPublicKey": {"source": secret,
            "propagationMethod": {"qemuGuestAgent": {"users": ["u"]}}}}]});
        let drive = json!({"accessCredentials": [{"sshPublicKey": {"source": secret,
            "propagationMethod": {"noCloud": {}}}}]});
        let password = json!({"accessCredentials": [{"userPassword": {"source": secret,
            "propagationMethod": {"qemuGuestAgent": {}}}}]});
        let probe = json!({"livenessProbe": {"exec": {"command": ["uname"]}}});
        let with = |more: &[&'static str]| [&BASIC[..], more].concat();
        let ssh =
            ["guest-ssh-get-authorized-keys", "guest-ssh-add-authorized-keys", "guest-ssh-remove-authorized-keys"];
        check(json!({}), &[], None);
        check(json!({}), &BASIC, None);
        check(json!({}), &BASIC[1..], Some("basic commands"));
        check(keys.clone(), &BASIC, Some("public key commands"));
        check(keys, &with(&ssh), None);
        check(drive, &BASIC, None);
        check(password.clone(), &BASIC, Some("password commands"));
        check(password, &with(&["guest-set-user-password"]), None);
        check(probe, &with(&["guest-exec-status"]), Some("exec probe commands"));
    }

    #[test]
    fn answers_in_kubevirts_words() {
        let os = os_info(
            &json!({"id": "debian", "name": "Debian GNU/Linux", "kernel-release": "6.1.0", "machine": "x86_64"}),
        );
        assert_eq!((os.id.as_str(), os.kernel_release.as_str()), ("debian", "6.1.0"));
        let found = interfaces(&json!([
            {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1"}]},
            {"name": "eth0", "hardware-address": "02:AA:00:00:00:01",
                "ip-addresses": [{"ip-address": "10.0.2.2"}, {"ip-address": "fe80::1"}]}]));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].mac.as_str(), found[0].addresses.as_slice()),
            ("02:aa:00:00:00:01", &["10.0.2.2".to_owned()][..])
        );
        assert_eq!(
            users(&json!([{"user": "demo", "login-time": 1.5}])),
            [json!({"userName": "demo", "loginTime": 1.5})]
        );
        assert_eq!(
            filesystems(&json!([{"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 1, "total-bytes": 2,
                "disk": [{"bus-type": "virtio", "serial": "s"}]}])),
            [json!({"diskName": "vda1", "mountPoint": "/", "fileSystemType": "ext4", "usedBytes": 1, "totalBytes": 2,
                "disk": [{"busType": "virtio", "serial": "s"}]})]
        );
        let info = agent_info(&Answers {
            info: json!({"version": "7.2.0", "supported_commands": [{"name": "guest-ping", "enabled": true}]}),
            zone: json!({"zone": "UTC", "offset": 0}),
            frozen: json!("frozen"),
            ..Answers::default()
        });
        assert_eq!(info["guestAgentVersion"], "7.2.0");
        assert_eq!(info["supportedCommands"][0], json!({"name": "guest-ping", "enabled": true}));
        assert_eq!((&info["timezone"], &info["fsFreezeStatus"]), (&json!("UTC, 0"), &json!("frozen")));
        // A guest may say anything.
        let addresses =
            json!([{"ip-address": "2001:DB8::1"}, {"ip-address": "\u{1b}[2J"}, {"ip-address": "10.0.2.2\n"}]);
        let many: Vec<Value> = (0..99).map(|nth| json!({"ip-address": format!("10.0.0.{nth}")})).collect();
        let odd = json!([{"name": "a\u{1b}[31m", "hardware-address": "x".repeat(999), "ip-addresses": addresses},
            {"name": "b", "ip-addresses": many}]);
        let found = interfaces(&odd);
        assert_eq!((found[0].name.as_str(), found[0].mac.len()), ("a [31m", 64));
        assert_eq!((found[0].addresses.as_slice(), found[1].addresses.len()), (&["2001:db8::1".to_owned()][..], 16));
        let crowd: Vec<Value> = (0..200).map(|nth| json!({"name": format!("eth{nth}")})).collect();
        assert_eq!(interfaces(&json!(crowd)).len(), 64);
        assert_eq!(agent_info(&Answers::default())["hostname"], "");
        let long = os_info(&json!({"id": "x".repeat(9999)}));
        assert_eq!(long.id.len(), 256);
    }
}
