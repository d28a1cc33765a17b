//! Tables for the device manager.

use super::*;

const KVM: &str = "devices.kubevirt.io/kvm";

fn devices(ids: &[(&str, bool)]) -> Vec<Device> {
    ids.iter().map(|(id, healthy)| Device { id: (*id).into(), healthy: *healthy, numa_nodes: vec![] }).collect()
}

fn needs(count: usize) -> BTreeMap<String, usize> {
    BTreeMap::from([(KVM.to_owned(), count)])
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|s| (*s).to_owned()).collect()
}

/// Drives a container to its grant, as the core does.
fn grant(d: &mut Devices, uid: &str, container: &str, count: usize, reusable: &[&str]) -> NextStep {
    let uid: Uid = uid.into();
    match d.next_step(&uid, container, &needs(count), reusable, None) {
        NextStep::Allocate { resource, ids, .. } => {
            assert!(d.allocated(&uid, container, &resource, &ids, AllocateReply::default()));
            d.next_step(&uid, container, &needs(count), reusable, None)
        }
        other => other,
    }
}

fn ids_of(d: &Devices, uid: &str, container: &str) -> BTreeSet<String> {
    d.allocations()[uid][container][KVM].ids.clone()
}

#[test]
fn a_container_waits_until_the_plugin_has_listed_healthy_devices() {
    let uid: Uid = "p".into();
    let mut d = Devices::default();
    let waits = |d: &mut Devices| matches!(d.next_step(&uid, "c", &needs(1), &[], None), NextStep::Wait { resource, .. } if resource == KVM);
    assert!(waits(&mut d), "never registered");
    d.plugin_up(KVM, 1, PluginOptions::default());
    assert!(waits(&mut d), "registered, nothing listed");
    d.plugin_devices(KVM, 1, devices(&[("a", false)]));
    assert!(waits(&mut d), "nothing healthy");
    d.plugin_devices(KVM, 1, devices(&[("a", true)]));
    assert_eq!(
        d.next_step(&uid, "c", &needs(1), &[], None),
        NextStep::Allocate { resource: KVM.into(), epoch: 1, ids: set(&["a"]) }
    );
    d.plugin_down(KVM, 1);
    assert!(waits(&mut d), "hung up");
    assert_eq!(d.capacity()[KVM], (1, 0), "capacity stays, nothing is allocatable");
    d.plugin_up(KVM, 2, PluginOptions::default());
    d.plugin_devices(KVM, 1, devices(&[("b", true)]));
    assert!(waits(&mut d), "a list of an older registration counts for nothing");
    d.plugin_down(KVM, 1);
    d.plugin_devices(KVM, 2, devices(&[("a", true)]));
    assert!(!waits(&mut d), "the hang-up of an older registration counts for nothing");
}

#[test]
fn a_device_is_held_by_one_pod_until_it_is_released() {
    let mut d = Devices::default();
    d.plugin_up(KVM, 1, PluginOptions::default());
    d.plugin_devices(KVM, 1, devices(&[("a", true), ("b", true)]));
    assert_eq!(grant(&mut d, "p1", "c", 1, &[]), NextStep::Ready(vec![]));
    assert_eq!(grant(&mut d, "p2", "c", 1, &[]), NextStep::Ready(vec![]));
    assert!(ids_of(&d, "p1", "c").is_disjoint(&ids_of(&d, "p2", "c")));
    assert!(matches!(grant(&mut d, "p3", "c", 1, &[]), NextStep::Wait { .. }));
    assert!(d.release("p1"));
    assert_eq!(grant(&mut d, "p3", "c", 1, &[]), NextStep::Ready(vec![]));
    assert_eq!(ids_of(&d, "p3", "c"), set(&["a"]));
}

#[test]
fn init_containers_hand_their_devices_on() {
    let mut d = Devices::default();
    d.plugin_up(KVM, 1, PluginOptions::default());
    d.plugin_devices(KVM, 1, devices(&[("a", true), ("b", true)]));
    assert_eq!(grant(&mut d, "p", "init", 1, &[]), NextStep::Ready(vec![]));
    assert_eq!(grant(&mut d, "p", "c1", 1, &["init"]), NextStep::Ready(vec![]));
    assert_eq!(ids_of(&d, "p", "init"), ids_of(&d, "p", "c1"));
    assert_eq!(grant(&mut d, "p", "c2", 1, &["init"]), NextStep::Ready(vec![]));
    assert_ne!(ids_of(&d, "p", "c1"), ids_of(&d, "p", "c2"), "two containers that run together share nothing");
}

#[test]
fn after_a_reboot_the_same_devices_are_asked_for_again() {
    let mut d = Devices::default();
    d.plugin_up(KVM, 1, PluginOptions { pre_start_required: true, ..PluginOptions::default() });
    d.plugin_devices(KVM, 1, devices(&[("a", true), ("b", true)]));
    let uid: Uid = "p".into();
    let reply = AllocateReply {
        env: BTreeMap::from([("K".into(), "v".into())]),
        mounts: vec![PluginMount { container_path: "/c".into(), host_path: "/h".into(), read_only: true }],
        devices: vec![DeviceNode {
            container_path: "/dev/kvm".into(),
            host_path: "/dev/kvm".into(),
            permissions: "rw".into(),
        }],
        annotations: BTreeMap::from([("A".into(), "b".into())]),
        cdi_devices: vec!["vendor.com/x=1".into()],
    };
    let NextStep::Allocate { ids, .. } = d.next_step(&uid, "c", &needs(1), &[], None) else { panic!() };
    assert!(d.allocated(&uid, "c", KVM, &ids, reply.clone()));

    let file = encode(d.allocations(), &d.registered_devices(), |_, _| -1);
    let (allocations, advertised) = decode(&file).unwrap();
    assert_eq!(allocations, *d.allocations(), "the checkpoint keeps everything");
    assert_eq!(advertised, set(&[KVM]));

    let mut same_boot = Devices::restore(allocations.clone(), advertised.clone(), true);
    same_boot.plugin_up(KVM, 1, PluginOptions::default());
    same_boot.plugin_devices(KVM, 1, devices(&[("a", true), ("b", true)]));
    assert_eq!(same_boot.next_step(&uid, "c", &needs(1), &[], None), NextStep::Ready(vec![]));
    assert_eq!(same_boot.granted("p", "c"), vec![&reply]);

    let mut rebooted = Devices::restore(allocations, advertised, false);
    assert!(rebooted.ever_advertised(KVM) && !rebooted.registered(KVM));
    assert!(matches!(rebooted.next_step(&uid, "c", &needs(1), &[], None), NextStep::Wait { .. }));
    rebooted.plugin_up(KVM, 1, PluginOptions::default());
    rebooted.plugin_devices(KVM, 1, devices(&[("a", true), ("b", true)]));
    assert_eq!(
        rebooted.next_step(&uid, "c", &needs(1), &[], None),
        NextStep::Allocate { resource: KVM.into(), epoch: 1, ids }
    );
}

#[test]
fn unhealthy_holdings_wait_and_vanished_ones_are_replaced() {
    for (now, expected) in [
        (devices(&[("a", false), ("b", true)]), None),
        (devices(&[("b", true)]), Some(set(&["b"]))),
        (devices(&[]), None),
    ] {
        let mut d = Devices::default();
        d.plugin_up(KVM, 1, PluginOptions::default());
        d.plugin_devices(KVM, 1, devices(&[("a", true), ("b", true)]));
        grant(&mut d, "p", "c", 1, &[]);
        d.plugin_devices(KVM, 1, now);
        let step = d.next_step(&"p".into(), "c", &needs(1), &[], None);
        match expected {
            None => assert!(matches!(step, NextStep::Wait { .. }), "{step:?}"),
            Some(ids) => assert_eq!(step, NextStep::Allocate { resource: KVM.into(), epoch: 1, ids }),
        }
    }
}

#[test]
fn a_plugin_is_asked_for_what_it_says_is_well() {
    for (listed, epoch, asked, may) in [
        (Some(&[("a", true), ("b", true)][..]), 2, &["a", "b"][..], true),
        (Some(&[("a", true), ("b", false)][..]), 2, &["a"][..], true),
        (Some(&[("a", true), ("b", false)][..]), 2, &["a", "b"][..], false),
        (Some(&[("a", true)][..]), 2, &["a", "b"][..], false),
        (Some(&[][..]), 2, &["a"][..], false),
        // It lists one device twice, and says the same of it both times.
        (Some(&[("a", true), ("a", true)][..]), 2, &["a"][..], true),
        // An older registration, and one that has told nothing yet.
        (Some(&[("a", true)][..]), 1, &["a"][..], false),
        (None, 2, &["a"][..], false),
    ] {
        let mut d = Devices::default();
        d.plugin_up(KVM, 1, PluginOptions::default());
        d.plugin_devices(KVM, 1, devices(&[("a", true), ("b", true)]));
        d.plugin_up(KVM, 2, PluginOptions::default());
        if let Some(listed) = listed {
            d.plugin_devices(KVM, 2, devices(listed));
        }
        assert_eq!(d.may_be_asked_for(KVM, epoch, &set(asked)), may, "{listed:?}, {epoch}, {asked:?}");
        assert!(!d.may_be_asked_for("example.com/other", epoch, &set(asked)));
        d.plugin_down(KVM, 2);
        assert!(!d.may_be_asked_for(KVM, epoch, &set(asked)), "it hung up");
    }
}

#[test]
fn preference_is_asked_for_and_is_only_advice() {
    let options = PluginOptions { preferred_allocation: true, ..PluginOptions::default() };
    for (wish, expected) in
        [(vec!["c".to_owned()], set(&["c"])), (vec!["nonsense".to_owned()], set(&["a"])), (vec![], set(&["a"]))]
    {
        let mut d = Devices::default();
        d.plugin_up(KVM, 1, options);
        d.plugin_devices(KVM, 1, devices(&[("a", true), ("b", true), ("c", true)]));
        let uid: Uid = "p".into();
        assert!(matches!(d.next_step(&uid, "c", &needs(1), &[], None), NextStep::Prefer { count: 1, .. }));
        assert_eq!(
            d.next_step(&uid, "c", &needs(1), &[], Some((KVM, &wish))),
            NextStep::Allocate { resource: KVM.into(), epoch: 1, ids: expected }
        );
    }
}

#[test]
fn a_plugin_that_is_asked_hears_what_the_container_has_in_any_case() {
    let options = PluginOptions { preferred_allocation: true, ..PluginOptions::default() };
    let mut d = Devices::default();
    d.plugin_up(KVM, 1, options);
    d.plugin_devices(KVM, 1, devices(&[("a", true), ("b", true), ("c", true)]));
    let (uid, wish): (Uid, _) = ("p".into(), ["b".to_owned()]);
    d.next_step(&uid, "init", &needs(1), &[], Some((KVM, &wish)));
    assert!(d.allocated("p", "init", KVM, &set(&["b"]), AllocateReply::default()));
    assert_eq!(
        d.next_step(&uid, "c", &needs(2), &["init"], None),
        NextStep::Prefer {
            resource: KVM.into(),
            epoch: 1,
            available: set(&["a", "b", "c"]),
            required: set(&["b"]),
            count: 2
        }
    );
}

#[test]
fn extended_names() {
    for (name, extended) in [
        ("devices.kubevirt.io/kvm", true),
        ("example.com/gpu", true),
        ("cpu", false),
        ("hugepages-2Mi", false),
        ("kubernetes.io/batch", false),
        ("attach.kubernetes.io/x", false),
        ("requests.example.com/x", false),
    ] {
        assert_eq!(is_extended(name), extended, "{name}");
    }
}

#[test]
fn a_broken_checkpoint_is_an_error_and_upstreams_reads() {
    assert!(decode(b"{").is_err());
    let upstream = br#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r.io/x","DeviceIDs":{"0":["a"],"-1":["b"]},"AllocResp":"CgYKAWsSAXY="}],"RegisteredDevices":{"r.io/x":["a","b"],"r.io/y":null}},"Checksum":2679668654}"#;
    let (allocations, advertised) = decode(upstream).unwrap();
    let a = &allocations["u"]["c"]["r.io/x"];
    assert_eq!(a.ids, set(&["a", "b"]));
    assert_eq!(a.reply.as_ref().unwrap().env, BTreeMap::from([("k".into(), "v".into())]));
    assert_eq!(advertised, set(&["r.io/x", "r.io/y"]));
}
