//! Templates, and what becomes of them.

use carrack_types::kubevirt::VirtualMachineInstanceSpec;
use serde_json::{Value, json};

use super::Chosen;

fn chosen(instancetype: Value, preference: Value) -> Chosen {
    let read = |value: Value| (!value.is_null()).then_some(value);
    Chosen {
        instancetype: read(instancetype).map(|value| serde_json::from_value(value).expect("an instance type")),
        preference: read(preference).map(|value| serde_json::from_value(value).expect("a preference")),
    }
}

fn spec(value: Value) -> VirtualMachineInstanceSpec {
    serde_json::from_value(value).expect("a spec")
}

#[test]
fn an_instance_type_sets_what_is_open_and_meets_what_is_not() {
    let check = |template: Value, wanted: Result<Value, &[&str]>| {
        let size = json!({"cpu": {"guest": 2}, "memory": {"guest": "1Gi", "overcommitPercent": 50},
            "nodeSelector": {"a": "b"}, "annotations": {"from": "type", "kubevirt.io/failover": "true"}});
        let mut spec = spec(template.clone());
        let result = chosen(size, Value::Null).apply("spec.template.spec", &mut spec);
        match (result, wanted) {
            (Ok(annotations), Ok(wanted)) => {
                assert_eq!(json!(spec.domain), wanted, "{template}");
                assert_eq!(json!(annotations), json!({"from": "type"}), "nothing in the components' name");
                assert_eq!(spec.node_selector["a"], "b");
            }
            (Err(conflicts), Err(fields)) => {
                let found: Vec<&str> = conflicts.iter().map(|conflict| conflict.field.as_str()).collect();
                assert_eq!(found, fields, "{template}");
            }
            other => panic!("{template}: {other:?}"),
        }
    };
    check(
        json!({"domain": {"devices": {}}}),
        Ok(json!({"cpu": {"sockets": 2, "cores": 1, "threads": 1}, "memory": {"guest": "1Gi"},
            "resources": {"requests": {"memory": "536870900"}}, "devices": {}})),
    );
    check(
        json!({"domain": {"cpu": {"cores": 2}, "memory": {"guest": "64Mi"}}}),
        Err(&["spec.template.spec.domain.cpu.cores", "spec.template.spec.domain.memory.guest"]),
    );
    check(
        json!({"nodeSelector": {"a": "c"}, "domain": {"resources": {"requests": {"cpu": "1"}}}}),
        Err(&["spec.template.spec.nodeSelector", "spec.template.spec.domain.resources.requests.cpu"]),
    );
}

#[test]
fn processors_are_shown_as_preferred() {
    let check = |vcpus: u32, cpu: Value, wanted: Option<[u64; 3]>| {
        let size = json!({"cpu": {"guest": vcpus}, "memory": {"guest": "1Gi"}});
        let mut spec = spec(json!({}));
        let result = chosen(size, json!({"cpu": cpu})).apply("spec", &mut spec);
        let cpu = json!(spec.domain.cpu);
        let found = result.ok().map(|_| ["sockets", "cores", "threads"].map(|name| cpu[name].as_u64().unwrap_or(0)));
        assert_eq!(found, wanted, "{vcpus} {cpu}");
    };
    check(4, json!({}), Some([4, 1, 1]));
    check(4, json!({"preferredCPUTopology": "cores"}), Some([1, 4, 1]));
    check(4, json!({"preferredCPUTopology": "preferThreads"}), Some([1, 1, 4]));
    check(1, json!({"preferredCPUTopology": "cores"}), Some([1, 1, 1]));
    check(4, json!({"preferredCPUTopology": "spread"}), Some([2, 2, 1]));
    check(8, json!({"preferredCPUTopology": "spread", "spreadOptions": {"ratio": 4}}), Some([2, 4, 1]));
    check(8, json!({"preferredCPUTopology": "spread", "spreadOptions": {"across": "CoresThreads"}}), Some([1, 4, 2]));
    let both = json!({"preferredCPUTopology": "spread", "spreadOptions": {"across": "SocketsCoresThreads"}});
    check(8, both, Some([2, 2, 2]));
    check(3, json!({"preferredCPUTopology": "spread"}), None);
}

#[test]
fn a_preference_fills_what_is_open_and_demands_what_it_needs() {
    let preference = json!({
        "devices": {"preferredDiskBus": "sata", "preferredInterfaceModel": "e1000", "preferredDiskCache": "none"},
        "firmware": {"preferredUseEfi": true}, "machine": {"preferredMachineType": "pc-q35-7.2"},
        "preferredTerminationGracePeriodSeconds": 7, "requirements": {"cpu": {"guest": 2}, "memory": {"guest": "1Gi"}}});
    let template = json!({"domain": {"cpu": {"cores": 2}, "memory": {"guest": "1Gi"}, "devices": {
        "disks": [{"name": "a", "disk": {}}, {"name": "b", "disk": {"bus": "scsi"}, "cache": "writeback"}],
        "interfaces": [{"name": "default", "masquerade": {}}]}}, "volumes": [{"name": "c"}]});
    let mut filled = spec(template.clone());
    chosen(Value::Null, preference.clone()).apply("spec", &mut filled).expect("met");
    let value = json!(filled);
    let at = |pointer: &str| value.pointer(pointer).cloned().unwrap_or(Value::Null);
    assert_eq!(at("/domain/devices/disks/0"), json!({"name": "a", "disk": {"bus": "sata"}, "cache": "none"}));
    assert_eq!(at("/domain/devices/disks/1"), json!({"name": "b", "disk": {"bus": "scsi"}, "cache": "writeback"}));
    assert_eq!(at("/domain/devices/disks/2/name"), "c");
    assert_eq!(at("/domain/devices/interfaces/0/model"), "e1000");
    assert_eq!(at("/domain/firmware/bootloader/efi"), json!({"secureBoot": false}));
    assert_eq!(at("/domain/machine/type"), "pc-q35-7.2");
    assert_eq!(at("/terminationGracePeriodSeconds"), 7);
    let mut plain = spec(json!({"domain": {"cpu": {"cores": 2}, "memory": {"guest": "1Gi"}}}));
    chosen(Value::Null, preference.clone()).apply("spec", &mut plain).expect("met");
    assert_eq!(json!(plain.domain.devices.interfaces), json!([{"name": "default", "model": "e1000"}]));
    assert_eq!(json!(plain.networks), json!([{"name": "default", "pod": {}}]));

    // What is liked of disks is not said of a CD drive, nor of what is set; what is empty is not.
    let likes = json!({
        "devices": {"preferredDiskBus": "sata", "preferredCdromBus": "scsi", "preferredDiskCache": "none",
            "preferredDiskIO": "native", "preferredDiskBlockSize": {"custom": {"logical": 4096, "physical": 4096}},
            "preferredSoundModel": "ac97", "preferredPanicDeviceModel": "isa"},
        "features": {"preferredHyperv": {"relaxed": {}, "vapic": {}, "spinlocks": {"spinlocks": 8191}}},
        "machine": {"preferredMachineType": "pc-q35-7.2"}});
    let mut windows = spec(json!({"domain": {
        "machine": {"type": ""}, "features": {"hyperv": {"relaxed": {"enabled": false}}},
        "devices": {"disks": [{"name": "a", "disk": {"bus": ""}}, {"name": "cd", "cdrom": {}}],
            "sound": {"name": "s"}}}}));
    chosen(Value::Null, likes.clone()).apply("spec", &mut windows).expect("met");
    let value = json!(windows);
    let at = |pointer: &str| value.pointer(pointer).cloned().unwrap_or(Value::Null);
    assert_eq!(
        at("/domain/devices/disks/0"),
        json!({"name": "a", "disk": {"bus": "sata"}, "cache": "none", "io": "native",
            "blockSize": {"custom": {"logical": 4096, "physical": 4096}}})
    );
    assert_eq!(at("/domain/devices/disks/1"), json!({"name": "cd", "cdrom": {"bus": "scsi"}}));
    // Threads of their own are for disks on virtio, which one that names no bus is not.
    let mut threads = spec(json!({"domain": {"devices": {"disks": [
        {"name": "a", "disk": {"bus": "virtio"}}, {"name": "b", "disk": {}}, {"name": "c"}]}}}));
    let own = json!({"devices": {"preferredDiskDedicatedIoThread": true}});
    chosen(Value::Null, own).apply("spec", &mut threads).expect("met");
    let own: Vec<Option<bool>> = threads.domain.devices.disks.iter().map(|disk| disk.dedicated_io_thread).collect();
    assert_eq!(own, [Some(true), None, None]);
    assert_eq!(at("/domain/devices/sound/model"), "ac97");
    assert_eq!(at("/domain/devices/panicDevices"), json!([{"model": "isa"}]));
    let wanted = json!({"relaxed": {"enabled": false}, "vapic": {}, "spinlocks": {"spinlocks": 8191}});
    assert_eq!(at("/domain/features/hyperv"), wanted);
    assert_eq!(at("/domain/machine/type"), "pc-q35-7.2");
    let mut all = spec(json!({"domain": {"features": {"hypervPassthrough": {"enabled": true}}}}));
    chosen(Value::Null, likes).apply("spec", &mut all).expect("met");
    assert_eq!(all.domain.features.and_then(|features| features.hyperv), None);

    let mut small = spec(json!({"domain": {"cpu": {"cores": 1}, "memory": {"guest": "64Mi"}}}));
    let unmet = chosen(Value::Null, preference.clone()).apply("spec", &mut small).expect_err("too small");
    assert_eq!(unmet.iter().map(|c| c.field.as_str()).collect::<Vec<_>>(), ["spec.domain.cpu", "spec.domain.memory"]);
    let size = json!({"cpu": {"guest": 1}, "memory": {"guest": "2Gi"}});
    let unmet = chosen(size, preference).apply("spec", &mut spec(json!({}))).expect_err("too small");
    assert_eq!(unmet.iter().map(|c| c.field.as_str()).collect::<Vec<_>>(), ["spec.instancetype"]);
    let wide = json!({"requirements": {"memory": {"guest": "1Gi"}}});
    let size = json!({"cpu": {"guest": 1}, "memory": {"guest": "64M"}});
    let unmet = chosen(size, wide).apply("spec", &mut spec(json!({}))).expect_err("too small");
    let why = "failure checking preference requirements: insufficient Memory resources of 64M provided by instance type, \
               preference requires 1Gi";
    assert_eq!(unmet[0].message, why);
}
