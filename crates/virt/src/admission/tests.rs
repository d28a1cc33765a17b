//! Manifests, and the faults or completions they meet.

use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstanceSpec};
use serde_json::{Value, json};

use super::{Faults, check_instance_spec, check_machine, complete_instance, complete_machine};

fn spec(more: Value) -> VirtualMachineInstanceSpec {
    let mut spec = json!({
        "domain": {
            "devices": {
                "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}]},
            "resources": {"requests": {"memory": "64Mi"}}},
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "containerDisk": {"image": "demo:1"}}]});
    merge(&mut spec, more);
    serde_json::from_value(spec).expect("a spec")
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

fn fields(faults: Faults) -> Vec<String> {
    faults.into_vec().into_iter().map(|fault| fault.field).collect()
}

#[test]
fn faults_name_their_fields() {
    let check = |more: Value, wanted: &[&str]| {
        let mut faults = Faults::default();
        check_instance_spec("spec", &spec(more.clone()), &mut faults);
        assert_eq!(fields(faults), wanted, "{more}");
    };
    let devices = |devices: Value| json!({"domain": {"devices": devices}});
    let disks = |disks: Value| devices(json!({"disks": disks}));
    check(json!({}), &[]);
    check(disks(json!([{"name": "root"}, {"name": "root"}])), &["spec.domain.devices.disks[1].name"]);
    check(disks(json!([{"name": "root"}, {"name": "other"}])), &["spec.domain.devices.disks[1].name"]);
    check(disks(json!([{"name": "root", "disk": {}, "cdrom": {}}])), &["spec.domain.devices.disks[0]"]);
    check(disks(json!([{"name": "root", "disk": {"bus": "ide"}}])), &["spec.domain.devices.disks[0].disk.bus"]);
    check(disks(json!([{"name": "root", "cdrom": {"bus": "virtio"}}])), &["spec.domain.devices.disks[0].cdrom.bus"]);
    check(disks(json!([{"name": "root", "bootOrder": 0}])), &["spec.domain.devices.disks[0].bootOrder"]);
    check(disks(json!([{"name": "root", "serial": "a b"}])), &["spec.domain.devices.disks[0].serial"]);
    check(
        json!({"domain": {"devices": {"disks": [{"name": "root", "bootOrder": 1}],
            "interfaces": [{"name": "default", "masquerade": {}, "bootOrder": 1}]}}}),
        &["spec.domain.devices.interfaces[0].bootOrder"],
    );
    let volumes = |volumes: Value| json!({"volumes": volumes});
    check(volumes(json!([{"name": "root"}])), &["spec.volumes[0]"]);
    check(
        volumes(json!([{"name": "root", "containerDisk": {"image": "a"}, "emptyDisk": {"capacity": "1Gi"}}])),
        &["spec.volumes[0]"],
    );
    check(
        volumes(
            json!([{"name": "root", "containerDisk": {"image": "a"}}, {"name": "root", "containerDisk": {"image": "a"}}]),
        ),
        &["spec.volumes[1].name"],
    );
    check(volumes(json!([{"name": "root", "containerDisk": {}}])), &["spec.volumes[0].containerDisk.image"]);
    check(volumes(json!([{"name": "root", "emptyDisk": {"capacity": "0"}}])), &["spec.volumes[0].emptyDisk.capacity"]);
    check(volumes(json!([{"name": "root", "cloudInitNoCloud": {}}])), &["spec.volumes[0].cloudInitNoCloud"]);
    check(
        volumes(json!([{"name": "root", "cloudInitNoCloud": {"userDataBase64": "%"}}])),
        &["spec.volumes[0].cloudInitNoCloud.userDataBase64"],
    );
    check(
        volumes(json!([{"name": "root", "cloudInitNoCloud": {"userData": "x".repeat(2049)}}])),
        &["spec.volumes[0].cloudInitNoCloud.userData"],
    );
    check(volumes(json!([{"name": "root", "downwardMetrics": {}}])), &["spec.volumes[0].downwardMetrics"]);
    let nics = |nics: Value| devices(json!({"interfaces": nics}));
    check(
        nics(json!([{"name": "lan", "masquerade": {}}])),
        &["spec.networks[0].name", "spec.domain.devices.interfaces[0].name"],
    );
    check(nics(json!([{"name": "default", "bridge": {}}])), &["spec.domain.devices.interfaces[0].bridge"]);
    check(
        nics(json!([{"name": "default", "masquerade": {}, "macAddress": "01:00:00:00:00:01"}])),
        &["spec.domain.devices.interfaces[0].macAddress"],
    );
    check(
        nics(json!([{"name": "default", "masquerade": {}, "ports": [{"port": 0}]}])),
        &["spec.domain.devices.interfaces[0].ports[0]"],
    );
    check(json!({"networks": [{"name": "default", "multus": {"networkName": "x"}}]}), &["spec.networks[0]"]);
    check(json!({"domain": {"resources": {"requests": {"memory": "0"}}}}), &["spec.domain.memory.guest"]);
    check(
        json!({"domain": {"resources": {"requests": {"memory": "-1Mi"}}}}),
        &["spec.domain.resources.requests.memory", "spec.domain.memory.guest"],
    );
    check(json!({"domain": {"resources": {"limits": {"memory": "32Mi"}}}}), &["spec.domain.resources.requests.memory"]);
    check(json!({"domain": {"firmware": {"bootloader": {"efi": {}}}}}), &["spec.domain.firmware.bootloader.efi"]);
    check(json!({"domain": {"machine": {"type": "virt"}}}), &["spec.domain.machine.type"]);
    check(json!({"terminationGracePeriodSeconds": -1}), &["spec.terminationGracePeriodSeconds"]);
    check(json!({"hostname": "Not a label"}), &["spec.hostname"]);
    check(json!({"evictionStrategy": "Maybe"}), &["spec.evictionStrategy"]);
    check(json!({"readinessProbe": {"tcpSocket": {"port": 22}}}), &["spec.readinessProbe"]);
}

#[test]
fn machines() {
    let check = |spec: Value, wanted: &[&str]| {
        let vm: VirtualMachine = serde_json::from_value(json!({"spec": spec})).expect("a machine");
        let mut faults = Faults::default();
        check_machine(&vm, &mut faults);
        assert_eq!(fields(faults), wanted, "{spec}");
    };
    let template = json!({"spec": spec(json!({}))});
    check(json!({"runStrategy": "Always", "template": template}), &[]);
    check(json!({"running": true, "template": template}), &[]);
    check(json!({"running": true, "runStrategy": "Always", "template": template}), &["spec.running"]);
    check(json!({"template": template}), &["spec.running"]);
    check(json!({"runStrategy": "Sometimes", "template": template}), &["spec.runStrategy"]);
    check(json!({"runStrategy": "Always"}), &["spec.template"]);
    check(
        json!({"runStrategy": "Always", "instancetype": {"name": "u1"}, "template": template}),
        &["spec.instancetype"],
    );
    let mut wrong = template.clone();
    wrong["spec"]["domain"]["devices"]["disks"][0]["name"] = json!("other");
    check(json!({"runStrategy": "Always", "template": wrong}), &["spec.template.spec.domain.devices.disks[0].name"]);
}

#[test]
fn what_is_left_out_is_filled_in_and_then_stands() {
    let mut bare: VirtualMachineInstanceSpec = serde_json::from_value(json!({
        "domain": {"devices": {}, "resources": {"requests": {"memory": "64Mi", "cpu": "1500m"}}},
        "volumes": [{"name": "root", "containerDisk": {"image": "demo:1"}}]}))
    .expect("a spec");
    complete_instance(&mut bare, || "a-uuid".to_owned());
    let value = serde_json::to_value(&bare).expect("JSON");
    let at = |path: &str| value.pointer(path).cloned().unwrap_or(Value::Null);
    assert_eq!(at("/domain/machine/type"), "q35");
    assert_eq!(at("/domain/firmware/uuid"), "a-uuid");
    assert_eq!(at("/domain/cpu/cores"), 2);
    assert_eq!(at("/domain/memory/guest"), "64Mi");
    assert_eq!(at("/domain/devices/disks/0"), json!({"name": "root", "disk": {"bus": "virtio"}}));
    assert_eq!(at("/domain/devices/interfaces/0/masquerade"), json!({}));
    assert_eq!(at("/networks/0/pod"), json!({}));
    let mut faults = Faults::default();
    check_instance_spec("spec", &bare, &mut faults);
    assert_eq!(fields(faults), [""; 0]);
    let before = bare.clone();
    complete_instance(&mut bare, || "another".to_owned());
    assert_eq!(bare, before);

    let mut vm: VirtualMachine =
        serde_json::from_value(json!({"spec": {"template": {"spec": {}}}})).expect("a machine");
    complete_machine(&mut vm);
    assert_eq!(vm.spec.template.expect("there").spec.architecture.as_deref(), Some("amd64"));
}
