//! What a machine becomes of what an instance says, field by field.

use std::collections::BTreeMap;

use carrack_engine::Time;
use carrack_launcher::accel::Accel;
use carrack_types::kubevirt::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{keys_by_user, machine};
use crate::handler::effects::{Credential, Prepared};

/// The field of the machine is this, where `null` is what is not there.
#[track_caller]
fn check(domain: Value, accel: Accel, field: &str, wanted: Value) {
    let mut spec = json!({"memory": {"guest": "64Mi"}, "devices": {}});
    for (key, value) in domain.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    let names = spec["devices"]["disks"].as_array().cloned().unwrap_or_default();
    let volumes: Vec<Value> =
        names.iter().map(|disk| json!({"name": disk["name"], "emptyDisk": {"capacity": "1Mi"}})).collect();
    let vmi: VirtualMachineInstance = carrack_types::json::from_value(json!({
        "metadata": {"name": "demo", "namespace": "ns", "uid": "11111111-2222-3333-4444-555555555555"},
        "spec": {"domain": spec, "volumes": volumes, "networks": [{"name": "default", "pod": {}}]}}))
    .expect("an instance");
    let mut pod = Pod::default();
    let strings = r#"{"manufacturer": "Acme", "version": "2"}"#;
    pod.metadata.annotations = Some([("kubevirt.io/smbios".to_owned(), strings.to_owned())].into());
    let made = machine(&vmi, &pod, &Prepared::default(), accel, Time::from_unix_s(0)).expect("a machine");
    let made = serde_json::to_value(made).expect("JSON");
    assert_eq!(made.pointer(field).cloned().unwrap_or_default(), wanted, "{domain}");
}

#[test]
fn clocks() {
    let timer = |timer: Value| json!({"clock": {"utc": {}, "timer": timer}});
    let features = |of: Value, accel: Accel, wanted: Value| check(timer(of), accel, "/cpu/features", wanted);
    features(json!({"hyperv": {}}), Accel::Kvm, json!(["hv-time=on"]));
    features(json!({"hyperv": {"present": false}}), Accel::Kvm, json!([]));
    // The emulator has neither.
    features(json!({"hyperv": {}, "kvm": {"present": false}}), Accel::Tcg, json!([]));
    features(json!({"kvm": {"present": false}}), Accel::Kvm, json!(["kvmclock=off"]));
    features(json!({"kvm": {}}), Accel::Kvm, json!([]));
    let board =
        |of: Value, field: &str, wanted: Value| check(timer(of), Accel::Kvm, &format!("/board/{field}"), wanted);
    board(json!({"rtc": {"track": "guest"}}), "clock_follows_guest", json!(true));
    board(json!({"rtc": {"track": "wall"}}), "clock_follows_guest", Value::Null);
    board(json!({"rtc": {"tickPolicy": "delay"}}), "drop_missed_ticks", json!(true));
    board(json!({"pit": {"tickPolicy": "discard"}}), "drop_missed_pit_ticks", json!(true));
    board(json!({"pit": {"tickPolicy": "delay"}}), "drop_missed_pit_ticks", Value::Null);
}

#[test]
fn hyperv_brings_what_it_rests_on() {
    let check = |hyperv: Value, wanted: Value| {
        check(json!({"features": {"hyperv": hyperv}}), Accel::Kvm, "/cpu/features", wanted)
    };
    check(json!({"relaxed": {}, "vapic": {}}), json!(["hv-relaxed=on", "hv-vapic=on"]));
    check(json!({"synictimer": {}}), json!(["hv-stimer=on", "hv-synic=on", "hv-time=on", "hv-vpindex=on"]));
    check(json!({"tlbflush": {}, "vpindex": {}}), json!(["hv-vpindex=on", "hv-tlbflush=on"]));
    check(json!({"evmcs": {}}), json!(["hv-evmcs=on", "hv-vapic=on"]));
    // What was switched off on purpose is not switched on: QEMU says what is wrong.
    check(json!({"ipi": {}, "vpindex": {"enabled": false}}), json!(["hv-vpindex=off", "hv-ipi=on"]));
}

#[test]
fn devices() {
    let panics = |model: &str| json!({"devices": {"panicDevices": [{"model": model}]}});
    check(panics("pvpanic"), Accel::Kvm, "/board/pci_panic_device", json!(true));
    check(panics("isa"), Accel::Kvm, "/board/pci_panic_device", Value::Null);
    check(panics("hyperv"), Accel::Kvm, "/cpu/features", json!(["hv-crash=on"]));
    check(json!({"devices": {"sound": {"name": "s"}}}), Accel::Kvm, "/board/sound", json!("ich9"));
    check(json!({"devices": {"sound": {"name": "s", "model": "ac97"}}}), Accel::Kvm, "/board/sound", json!("ac97"));
    check(json!({"devices": {"tpm": {}}}), Accel::Kvm, "/board/tpm", json!(true));
    check(json!({"devices": {"useVirtioTransitional": true}}), Accel::Kvm, "/board/transitional", json!(true));
    check(json!({"devices": {"tpm": {"enabled": false}}}), Accel::Kvm, "/board/tpm", Value::Null);
    check(json!({"rebootPolicy": "Terminate"}), Accel::Kvm, "/board/ends_with_reboot", json!(true));
    check(json!({"rebootPolicy": "Reboot"}), Accel::Kvm, "/board/ends_with_reboot", Value::Null);
}

#[test]
fn machine_types() {
    let check = |name: &str, chip_set: &str, version: Value| {
        let machine = json!({"machine": {"type": name}});
        check(machine.clone(), Accel::Kvm, "/machine", json!(chip_set));
        check(machine, Accel::Kvm, "/machine_type", version);
    };
    check("", "q35", Value::Null);
    check("q35", "q35", Value::Null);
    check("pc", "pc", Value::Null);
    check("pc-q35-7.2", "q35", json!("pc-q35-7.2"));
    check("pc-i440fx-7.2", "pc", json!("pc-i440fx-7.2"));
}

#[test]
fn what_firmware_says() {
    for (name, wanted) in [("manufacturer", json!("Acme")), ("version", json!("2")), ("product", Value::Null)] {
        check(json!({}), Accel::Kvm, &format!("/smbios/{name}"), wanted);
    }
    check(json!({"firmware": {"serial": "s"}}), Accel::Kvm, "/smbios/serial", json!("s"));
}

#[test]
fn processors() {
    let cpu = |more: Value| json!({"cpu": more});
    check(cpu(json!({"cores": 2})), Accel::Kvm, "/cpu/dedicated", Value::Null);
    let own = || cpu(json!({"cores": 2, "dedicatedCpuPlacement": true}));
    check(own(), Accel::Kvm, "/cpu/dedicated", json!({"isolate_emulator": false}));
    check(own(), Accel::Kvm, "/cpu/features", json!(["kvm-hint-dedicated=on"]));
    check(own(), Accel::Tcg, "/cpu/features", json!([]));
    let isolated = cpu(json!({"dedicatedCpuPlacement": true, "isolateEmulatorThread": true}));
    check(isolated, Accel::Kvm, "/cpu/dedicated", json!({"isolate_emulator": true}));
}

#[test]
fn threads() {
    let check = |policy: Value, own: &[usize], cpus: u32, wanted: [Option<u32>; 4]| {
        let disks: Vec<Value> = (0..5)
            .map(|n| {
                let bus = if n == 4 { "sata" } else { "virtio" };
                json!({"name": format!("d{n}"), "disk": {"bus": bus}, "dedicatedIOThread": own.contains(&n)})
            })
            .collect();
        let domain = json!({"devices": {"disks": disks}, "ioThreadsPolicy": policy,
            "resources": {"requests": {"cpu": cpus.to_string()}}});
        for (n, wanted) in wanted.into_iter().chain([None]).enumerate() {
            let field = format!("/disks/{n}/tuning/shared_thread");
            check(domain.clone(), Accel::Kvm, &field, wanted.map_or(Value::Null, Value::from));
        }
    };
    check(Value::Null, &[], 1, [None; 4]);
    check(Value::Null, &[1], 1, [Some(1), None, Some(1), Some(1)]);
    check(json!("shared"), &[], 1, [Some(1); 4]);
    check(json!("auto"), &[], 1, [Some(1), Some(2), Some(1), Some(2)]);
    check(json!("auto"), &[0], 2, [None, Some(1), Some(2), Some(3)]);
    check(json!("auto"), &[0, 1, 2], 1, [None, None, None, Some(1)]);
}

#[test]
fn names_of_disks() {
    let disk = |bus: &str| json!({"name": "x", "disk": {"bus": bus}});
    let bare = [json!({"name": "x", "cdrom": {}}), json!({"name": "x", "disk": {}}), json!({"name": "x"}), disk("")];
    let disks = [disk("virtio"), disk("sata"), disk("scsi"), disk("virtio")].into_iter().chain(bare);
    let disks: Vec<_> = disks
        .enumerate()
        .map(|(index, mut disk)| {
            disk["name"] = index.to_string().into();
            serde_json::from_value(disk).expect("a disk")
        })
        .collect();
    let named = super::targets(&disks);
    assert_eq!(named.values().collect::<Vec<_>>(), ["vda", "sda", "sdb", "vdb", "sdc", "sdd", "sde", "sdf"]);
    let many: Vec<_> = (0..28)
        .map(|index| {
            serde_json::from_value(json!({"name": format!("{index:02}"), "disk": {"bus": "virtio"}})).expect("a disk")
        })
        .collect();
    let named: Vec<String> = super::targets(&many).into_values().collect();
    assert_eq!(named[25..], ["vdz", "vdaa", "vdab"]);
}

#[test]
fn further_dhcp_options() {
    let told = |options: Value| {
        let nic = json!([{"name": "default", "masquerade": {}, "dhcpOptions": options}]);
        json!({"devices": {"interfaces": nic}})
    };
    let all = json!({"bootFileName": "b", "tftpServerName": "t", "ntpServers": ["10.0.0.1", "10.0.0.2"],
        "privateOptions": [{"option": 240, "value": "x"}]});
    let wanted = json!([[66, [116]], [67, [98]], [42, [10, 0, 0, 1, 10, 0, 0, 2]], [240, [120]]]);
    check(told(all), Accel::Kvm, "/nics/0/dhcp/options", wanted);
    check(told(json!({})), Accel::Kvm, "/nics/0/dhcp/options", Value::Null);
}

#[test]
fn queues() {
    let check = |devices: Value, cores: u32, model: &str, wanted: Value| {
        let mut devices = devices;
        devices["interfaces"] = json!([{"name": "default", "masquerade": {}, "model": model}]);
        let domain = json!({"devices": devices, "cpu": {"cores": cores}});
        check(domain, Accel::Kvm, "/nics/0/queues", wanted);
    };
    check(json!({}), 4, "virtio", Value::Null);
    check(json!({"networkInterfaceMultiqueue": true}), 4, "virtio", json!(4));
    check(json!({"networkInterfaceMultiqueue": true}), 1, "virtio", Value::Null);
    check(json!({"networkInterfaceMultiqueue": true}), 4, "e1000", Value::Null);
}

#[test]
fn user_data_reaches_the_guest_also_when_it_is_no_text() {
    let check = |source: Value, secret: &[u8], wanted: Value| {
        let vmi: VirtualMachineInstance = carrack_types::json::from_value(json!({
            "metadata": {"name": "demo", "namespace": "ns", "uid": "11111111-2222-3333-4444-555555555555"},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "seed", "disk": {}}]}},
                "volumes": [{"name": "seed", "cloudInitNoCloud": source}]}}))
        .expect("an instance");
        let files = std::collections::BTreeMap::from([("userdata".to_owned(), secret.to_vec())]);
        let prepared = Prepared { secrets: [("seed-udata".to_owned(), files)].into(), ..Prepared::default() };
        let made = machine(&vmi, &Pod::default(), &prepared, Accel::Tcg, Time::from_unix_s(0)).expect("a machine");
        let made = serde_json::to_value(made).expect("JSON");
        let of = &made["disks"][0]["source"];
        assert_eq!(json!([of["user_data"], of["user_data_base64"]]), wanted, "{source}");
    };
    let secret = json!({"secretRef": {"name": "s"}});
    check(json!({"userData": "#x"}), b"", json!(["#x", null]));
    check(json!({"userData": "#x", "userDataBase64": ""}), b"", json!(["#x", null]));
    check(json!({"userDataBase64": "I3g="}), b"", json!(["#x", null]));
    check(secret.clone(), b"#x", json!(["#x", null]));
    // What gzip makes begins so.
    check(json!({"userDataBase64": "H4s="}), b"", json!(["", "H4s="]));
    check(secret, b"\x1f\x8b", json!(["", "H4s="]));
}

#[test]
fn a_disk_of_a_claim_that_is_only_to_be_read_is_not_written_to() {
    let check = |source: Value, wanted: Value| {
        let mut volume = source.clone();
        volume["name"] = json!("root");
        let size = json!([{"name": "root", "persistentVolumeClaimInfo": {"capacity": {"storage": "1Gi"}}}]);
        let vmi: VirtualMachineInstance = carrack_types::json::from_value(json!({
            "metadata": {"name": "demo", "namespace": "ns", "uid": "11111111-2222-3333-4444-555555555555"},
            "spec": {"domain": {"memory": {"guest": "64Mi"},
                "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}}, "volumes": [volume]},
            "status": {"volumeStatus": size}}))
        .expect("an instance");
        let made = |pod: &Pod| {
            let made = machine(&vmi, pod, &Prepared::default(), Accel::Tcg, Time::from_unix_s(0));
            serde_json::to_value(made.expect("a machine")).expect("JSON")["disks"][0].clone()
        };
        let disk = made(&Pod::default());
        assert_eq!(json!([disk["read_only"], disk["source"]["create_bytes"]]), wanted, "{source}");
        // What the cluster's settings say of it goes along, and nothing where they say nothing.
        let pod: Pod = carrack_types::json::from_value(
            json!({"metadata": {"annotations": {"kubevirt.io/less-space-percent": "25"}}}),
        )
        .expect("a pod");
        let is_kept = disk["source"]["type"] == "persistent";
        let told = [&disk, &made(&pod)].map(|disk| disk["source"].get("tolerance_percent").cloned());
        assert_eq!(told, [None, is_kept.then(|| json!(25))], "{source}");
    };
    let claim = |read_only: bool| json!({"persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}});
    check(claim(false), json!([false, 1_u64 << 30]));
    check(claim(true), json!([true, null]));
    check(json!({"ephemeral": claim(true)}), json!([false, null]));
}

#[test]
fn a_user_has_the_keys_of_all_credentials_that_name_him() {
    let keys = |volume: &str, users: &[&str]| {
        let users = users.iter().map(|user| (*user).to_owned()).collect();
        Credential::Keys { volume: volume.to_owned(), users }
    };
    let files = |text: &str| BTreeMap::from([("file".to_owned(), text.as_bytes().to_vec())]);
    let (team, own) = (keys("team", &["root", "fedora"]), keys("own", &["fedora"]));
    let password = Credential::Passwords { volume: "password".to_owned() };
    let wanted = [(&team, files("ssh-rsa A\n# a note\n")), (&own, files("ssh-rsa B")), (&password, files("secret"))];
    let told = serde_json::to_value(keys_by_user(&wanted)).expect("JSON");
    assert_eq!(told, json!({"fedora": ["ssh-rsa A", "ssh-rsa B"], "root": ["ssh-rsa A"]}));
}
