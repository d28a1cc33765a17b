//! What the controllers decide, one look at a time; and what is asked of a real program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use std::time::Duration;

use carrack_engine::shell::Clock;
use carrack_engine::testing::Caches;
use carrack_engine::{
    ApiResponse, Controller, Core as _, Effect, Effects, Input, Key, LeaderElector, Manager, Plan, Rng, Time, Write,
};
use carrack_flexvolume::Capabilities;
use carrack_types::volume::{DEVICE_PATH, FLEX_ATTACHER, FLEX_ATTACHES, UNIQUE_NAME};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::attacher::{Attacher, FINALIZER};
use super::calls::{Answer, Call, Calls, Disk, Outcome};
use super::drivers::{Drivers, DriversOfPods};
use super::{resize, shell};
use crate::asking::{Asking, Out};
use crate::resize::Resize;

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// What a plan patches: the parts of it that say something.
fn patches(plan: &Plan) -> Vec<Value> {
    let patch = |w: &Write| match w {
        Write::Patch { patch, .. } => {
            let mut patch = patch.clone();
            if let Some(metadata) = patch["metadata"].as_object_mut() {
                metadata.retain(|name, _| name != "uid" && name != "resourceVersion");
            }
            if patch["metadata"] == json!({}) {
                patch.as_object_mut().unwrap().remove("metadata");
            }
            patch
        }
        other => panic!("{other:?}"),
    };
    plan.writes.iter().map(patch).collect()
}

fn look(c: &mut dyn Controller, calls: &Calls, caches: &Caches, key: &Key, answer: &Outcome) -> (Vec<Call>, Plan) {
    let plan = c.reconcile(key, &caches.view(), Time::from_unix_s(1000));
    let asked = calls.take();
    if asked.is_empty() {
        return (Vec::new(), plan);
    }
    assert!(plan.is_none(), "it waits for the answer: {plan:?}");
    for (id, _) in &asked {
        calls.answered(*id, answer.clone());
    }
    let plan = c.reconcile(key, &caches.view(), Time::from_unix_s(1000));
    assert!(calls.take().is_empty(), "it asks once");
    (asked.into_iter().map(|(_, call)| call).collect(), plan)
}

fn volume(change: impl Fn(&mut Value)) -> PersistentVolume {
    let mut volume = json!({"metadata": {"name": "pv", "uid": "v", "annotations": {}},
        "spec": {"capacity": {"storage": "1Gi"}, "flexVolume": {"driver": "v/d", "fsType": "ext4", "options": {"o": "1"}},
            "claimRef": {"namespace": "ns", "name": "c", "uid": "u"}}});
    change(&mut volume);
    of(volume)
}

const OPTIONS: &str =
    r#"{"kubernetes.io/fsType":"ext4","kubernetes.io/pvOrVolumeName":"pv","kubernetes.io/readwrite":"rw","o":"1"}"#;

fn disk() -> Disk {
    Disk { driver: "v/d".into(), volume: "pv".into() }
}

fn can(attach: bool, requires_fs_resize: bool) -> Outcome {
    Ok(Answer::Can(Capabilities { attach, requires_fs_resize, ..Capabilities::default() }))
}

#[test]
fn what_a_driver_can_is_written_on_its_volumes() {
    let noted = |attaches: &str| json!({"metadata": {"annotations": {FLEX_ATTACHES: attaches}}});
    let says = |attaches: &str| volume(|v| v["metadata"]["annotations"] = json!({FLEX_ATTACHES: attaches}));
    for (volume, answer, expected) in [
        (volume(|_| ()), can(true, true), vec![noted("true")]),
        (volume(|_| ()), can(false, true), vec![noted("false")]),
        (says("true"), can(true, true), vec![]),
        (says("true"), can(false, true), vec![noted("false")]),
        // Until it can be asked, what it said last holds.
        (says("true"), Err("it is not installed".to_owned()), vec![]),
    ] {
        let calls = Calls::default();
        let mut c = Drivers::new(calls.clone());
        let caches = Caches::new().with([volume.clone()]);
        let (asked, plan) = look(&mut c, &calls, &caches, &Key::new("", "pv"), &answer);
        assert_eq!((asked, patches(&plan)), (vec![Call::Init("v/d".into())], expected), "{volume:?} {answer:?}");
        assert_eq!(plan.error.is_some(), answer.is_err());
        let again = look(&mut c, &calls, &caches, &Key::new("", "pv"), &answer);
        assert!(again.0.is_empty(), "it is not asked again at once");
        calls.tick(Time::from_unix_s(2));
        let again = look(&mut c, &calls, &caches, &Key::new("", "pv"), &answer);
        assert_eq!(again.0.is_empty(), answer.is_ok(), "what has failed is asked again");
    }
    let calls = Calls::default();
    let local = volume(|v| v["spec"]["flexVolume"] = Value::Null);
    let (asked, plan) = look(
        &mut Drivers::new(calls.clone()),
        &calls,
        &Caches::new().with([local]),
        &Key::new("", "pv"),
        &can(true, true),
    );
    assert!(asked.is_empty() && plan.is_none());
}

/// Another program may be in its place by then.
#[test]
fn a_driver_is_asked_again_now_and_then() {
    let calls = Calls::default();
    let mut c = Drivers::new(calls.clone());
    let caches = Caches::new().with([volume(|v| v["metadata"]["annotations"] = json!({FLEX_ATTACHES: "false"}))]);
    let key = Key::new("", "pv");
    let (asked, plan) = look(&mut c, &calls, &caches, &key, &can(false, true));
    assert_eq!((asked.len(), patches(&plan).len(), plan.requeue_after.is_some()), (1, 0, true));
    for (at_s, asks) in [(1059, 0), (1060, 1)] {
        let plan = c.reconcile(&key, &caches.view(), Time::from_unix_s(at_s));
        let asked = calls.take();
        assert_eq!((asked.len(), patches(&plan).len()), (asks, 0), "{at_s}");
        for (id, _) in asked {
            calls.answered(id, can(true, true));
        }
    }
    let plan = c.reconcile(&key, &caches.view(), Time::from_unix_s(1061));
    assert_eq!(patches(&plan), [json!({"metadata": {"annotations": {FLEX_ATTACHES: "true"}}})]);
}

#[test]
fn what_drivers_can_is_written_on_pods_that_bring_volumes() {
    let noted = |attaches: &str| vec![json!({"metadata": {"annotations": {FLEX_ATTACHES: attaches}}})];
    let pod = |says: Option<&str>, phase: &str| -> Pod {
        let volume = |name: &str| json!({"name": name, "flexVolume": {"driver": format!("v/{name}")}});
        let mut pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u", "annotations": {}},
            "spec": {"containers": [], "volumes": [volume("d"), volume("e"), {"name": "x", "emptyDir": {}}]},
            "status": {"phase": phase}});
        if let Some(says) = says {
            pod["metadata"]["annotations"] = json!({FLEX_ATTACHES: says});
        }
        of(pod)
    };
    let no = || Err("it is not installed".to_owned());
    type Case = (Option<&'static str>, Outcome, Outcome, Vec<Value>);
    let cases: Vec<Case> = vec![
        (None, can(true, true), can(true, true), noted("v/d,v/e")),
        (None, can(true, true), can(false, true), noted("v/d")),
        (None, can(false, true), can(false, true), vec![]),
        (None, no(), can(true, true), noted("v/e")),
        (Some("v/d"), can(false, true), can(false, true), noted("")),
        (Some("v/d,v/e"), can(true, true), can(true, true), vec![]),
        // Until it can be asked, what it said last holds.
        (Some("v/d,v/e"), no(), no(), vec![]),
        (Some("v/d"), can(true, true), no(), vec![]),
    ];
    for (says, first, second, expected) in cases {
        let calls = Calls::default();
        let mut c = DriversOfPods::new(calls.clone());
        let caches = Caches::new().with([pod(says, "Running")]);
        let key = Key::new("ns", "p");
        let mut look = || c.reconcile(&key, &caches.view(), Time::from_unix_s(1000));
        let mut plan = look();
        while let [(id, call)] = &calls.take()[..] {
            assert!(plan.is_none(), "it waits for the answer: {plan:?}");
            let answer = if *call == Call::Init("v/d".into()) { &first } else { &second };
            calls.answered(*id, answer.clone());
            plan = look();
        }
        assert_eq!(patches(&plan), expected, "{says:?} {first:?} {second:?}");
        let failed = first.is_err() || second.is_err();
        assert_eq!((plan.error.is_some(), !plan.events.is_empty()), (failed, failed), "{says:?} {first:?} {second:?}");
    }
    let calls = Calls::default();
    let ended = Caches::new().with([pod(None, "Succeeded")]);
    let plan =
        DriversOfPods::new(calls.clone()).reconcile(&Key::new("ns", "p"), &ended.view(), Time::from_unix_s(1000));
    assert!(plan.is_none() && calls.take().is_empty());
}

#[test]
fn attachments_are_done_and_undone() {
    let attachment = |change: &dyn Fn(&mut Value)| -> VolumeAttachment {
        let mut a = json!({"metadata": {"name": "va", "uid": "a", "annotations": {UNIQUE_NAME: "flexvolume-v/d/pv"},
                "finalizers": [FINALIZER]},
            "spec": {"attacher": FLEX_ATTACHER, "nodeName": "n", "source": {"persistentVolumeName": "pv"}}});
        change(&mut a);
        of(a)
    };
    let (options, node) = (OPTIONS.to_owned(), "n".to_owned());
    let attach = || Call::Attach { disk: disk(), options: options.clone(), node: node.clone() };
    let look_at = || Call::IsAttached { disk: disk(), options: options.clone(), node: node.clone() };
    let detach = || Call::Detach { disk: disk(), node: node.clone() };
    let attached = |a: &mut Value| a["status"] = json!({"attached": true});
    let going = |a: &mut Value| a["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let time = Time::from_unix_s(1000).rfc3339();
    let failed = |field: &str| vec![json!({"status": {field: {"time": time, "message": "no"}}})];
    let is = |device: &str| json!({"status": {"attached": true, "attachError": null, "attachmentMetadata": {DEVICE_PATH: device}}});
    let no = || Err("no".to_owned());
    type Case<'a> = (&'a str, VolumeAttachment, bool, Outcome, Vec<Call>, Vec<Value>);
    let cases: Vec<Case<'_>> = vec![
        (
            "the finalizer first",
            attachment(&|a| a["metadata"]["finalizers"] = json!([])),
            true,
            no(),
            vec![],
            vec![json!({"metadata": {"finalizers": [FINALIZER]}})],
        ),
        (
            "attach",
            attachment(&|_| ()),
            true,
            Ok(Answer::Attached("/dev/x".into())),
            vec![attach()],
            vec![is("/dev/x")],
        ),
        ("no device", attachment(&|_| ()), true, Ok(Answer::Attached(String::new())), vec![attach()], vec![is("")]),
        ("refused", attachment(&|_| ()), true, no(), vec![attach()], failed("attachError")),
        (
            "refused as before",
            attachment(&|a| a["status"] = json!({"attached": false, "attachError": {"message": "no"}})),
            true,
            no(),
            vec![attach()],
            vec![],
        ),
        ("another answer", attachment(&|_| ()), true, Ok(Answer::Detached), vec![attach()], vec![]),
        ("no volume", attachment(&|_| ()), false, no(), vec![], vec![]),
        (
            "what a pod brings itself",
            attachment(&|a| {
                let csi = json!({"driver": FLEX_ATTACHER, "volumeHandle": "flexvolume-v/d/pv", "fsType": "ext4",
                    "volumeAttributes": {"o": "1"}});
                a["spec"]["source"] = json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "csi": csi}});
            }),
            false,
            Ok(Answer::Attached("/dev/x".into())),
            vec![attach()],
            vec![is("/dev/x")],
        ),
        ("there", attachment(&attached), true, Ok(Answer::IsAttached(Some(true))), vec![look_at()], vec![]),
        ("not told", attachment(&attached), true, Ok(Answer::IsAttached(None)), vec![look_at()], vec![]),
        ("not known", attachment(&attached), true, no(), vec![look_at()], vec![]),
        (
            "detach",
            attachment(&going),
            true,
            Ok(Answer::Detached),
            vec![detach()],
            vec![json!({"metadata": {"finalizers": []}})],
        ),
        (
            "detach without its volume",
            attachment(&going),
            false,
            Ok(Answer::Detached),
            vec![detach()],
            vec![json!({"metadata": {"finalizers": []}})],
        ),
        ("not detached", attachment(&going), true, no(), vec![detach()], failed("detachError")),
        (
            "detached before",
            attachment(&|a| {
                going(a);
                a["metadata"]["finalizers"] = json!(["other"]);
            }),
            true,
            no(),
            vec![],
            vec![],
        ),
        (
            "another's",
            attachment(&|a| a["spec"]["attacher"] = "disks.test".into()),
            true,
            Ok(Answer::Detached),
            vec![],
            vec![],
        ),
    ];
    for (what, attachment, has_volume, answer, expected, writes) in cases {
        let calls = Calls::default();
        let caches = Caches::new().with([attachment]).with::<PersistentVolume>(has_volume.then(|| volume(|_| ())));
        let mut c = Attacher::new(calls.clone());
        let (asked, plan) = look(&mut c, &calls, &caches, &Key::new("", "va"), &answer);
        assert_eq!((asked, patches(&plan)), (expected, writes), "{what}");
        if answer == Ok(Answer::IsAttached(Some(true))) {
            assert!(plan.requeue_after.is_some(), "{what}: it is looked at again");
            assert!(
                look(&mut c, &calls, &caches, &Key::new("", "va"), &answer).0.is_empty(),
                "{what}: but not at once"
            );
        }
    }
}

#[test]
fn a_lost_disk_is_attached_again_as_what_it_is_then() {
    let attachment: VolumeAttachment = of(json!({"metadata": {"name": "va", "uid": "a", "finalizers": [FINALIZER]},
        "spec": {"attacher": FLEX_ATTACHER, "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
        "status": {"attached": true, "attachmentMetadata": {DEVICE_PATH: "/dev/x"}}}));
    let calls = Calls::default();
    let caches = Caches::new().with([attachment]).with([volume(|_| ())]);
    let mut c = Attacher::new(calls.clone());
    let key = Key::new("", "va");
    let mut look = || c.reconcile(&key, &caches.view(), Time::from_unix_s(1000));
    let mut answers =
        vec![Ok(Answer::IsAttached(Some(false))), Err("no slot".to_owned()), Ok(Answer::Attached("/dev/y".to_owned()))];
    let mut asked = Vec::new();
    let mut plan = look();
    while let [(id, call)] = &calls.take()[..] {
        asked.push(matches!(call, Call::Attach { .. }));
        calls.answered(*id, answers.remove(0));
        plan = look();
        if plan.error.is_some() {
            assert_eq!(look().error, plan.error, "it is not asked again at once");
            assert!(calls.take().is_empty());
            calls.tick(Time::from_unix_s(2));
            plan = look();
        }
    }
    assert_eq!((asked, answers.len()), (vec![false, true, true], 0), "it is not asked for again before it is there");
    let status = &patches(&plan)[0]["status"];
    assert_eq!((&status["attached"], &status["attachmentMetadata"][DEVICE_PATH]), (&json!(true), &json!("/dev/y")));
}

#[test]
fn volumes_grow_by_their_drivers_and_file_systems_where_they_have_to() {
    let claim = |condition: &str| -> PersistentVolumeClaim {
        of(json!({"metadata": {"namespace": "ns", "name": "c", "uid": "u"},
            "spec": {"volumeName": "pv", "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
                "conditions": [{"type": condition, "status": "True"}]}}))
    };
    let expand = Call::Expand { disk: disk(), options: OPTIONS.to_owned(), to: 2 << 30, from: 1 << 30 };
    let init = Call::Init("v/d".into());
    let has = |v: &mut Value| v["spec"]["capacity"]["storage"] = "2Gi".into();
    let block = |v: &mut Value| {
        has(v);
        v["spec"]["volumeMode"] = "Block".into();
    };
    let told = json!({"status": {"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": null}, "conditions": []}});
    let grown = json!({"spec": {"capacity": {"storage": "2Gi"}}});
    type Case<'a> = (&'a str, PersistentVolume, &'a str, Outcome, Vec<Call>, Vec<Value>);
    let cases: Vec<Case<'_>> = vec![
        ("its driver", volume(|_| ()), "Resizing", Ok(Answer::Expanded(2 << 30)), vec![expand.clone()], vec![grown]),
        ("refused", volume(|_| ()), "Resizing", Err("full".into()), vec![expand], vec![]),
        ("nothing on the node", volume(has), "Resizing", can(true, false), vec![init], vec![told.clone()]),
        ("a device", volume(block), "Resizing", Err("not asked".into()), vec![], vec![told]),
        ("the node's turn", volume(has), "FileSystemResizePending", Err("not asked".into()), vec![], vec![]),
    ];
    for (what, volume, condition, answer, expected, writes) in cases {
        let calls = Calls::default();
        let caches = Caches::new().with([claim(condition)]).with([volume]);
        let mut c = Resize(resize::Flex(calls.clone()));
        let (asked, plan) = look(&mut c, &calls, &caches, &Key::new("ns", "c"), &answer);
        assert_eq!((asked, patches(&plan)), (expected, writes), "{what}");
    }
    let calls = Calls::default();
    let caches = Caches::new().with([claim("Resizing")]).with([volume(has)]);
    let mut c = Resize(resize::Flex(calls.clone()));
    let (_, plan) = look(&mut c, &calls, &caches, &Key::new("ns", "c"), &can(true, true));
    let patch = &patches(&plan)[0]["status"];
    assert_eq!((&patch["conditions"][0]["type"], patch.get("capacity")), (&json!("FileSystemResizePending"), None));
    assert_eq!(patch["allocatedResourceStatuses"]["storage"], "NodeResizePending", "kubelets go by it");
}

#[test]
fn a_call_that_fails_is_made_ever_more_rarely_and_one_that_works_begins_anew() {
    let (calls, key) = (Calls::default(), Key::new("", "va"));
    let ask = || calls.ask("c", &key, Call::Detach { disk: disk(), node: "n".into() });
    let mut made = Vec::new();
    let mut answer = |at_ms: i64, works: bool| {
        calls.tick(Time::default() + std::time::Duration::from_millis(at_ms.unsigned_abs()));
        ask();
        for (id, _) in calls.take() {
            made.push(at_ms);
            calls.answered(id, if works { Ok(Answer::Detached) } else { Err("busy".into()) });
            ask();
        }
    };
    (0..80).for_each(|n| answer(n * 100, false));
    answer(15_500, true);
    for at_ms in [15_600, 16_000, 16_100] {
        answer(at_ms, false);
    }
    assert_eq!(made, [0, 500, 1_500, 3_500, 7_500, 15_500, 15_600, 16_100]);
}

#[tokio::test]
async fn calls_have_the_arguments_and_the_defaults_of_the_protocol() {
    let dir = tempfile::tempdir().unwrap();
    let install = |name: &str, answer: &str| {
        let at = dir.path().join(format!("v~{name}"));
        fs::create_dir(&at).unwrap();
        let log = dir.path().join("calls").display().to_string();
        fs::write(at.join(name), format!("#!/bin/sh\necho \"$*\" >>{log}\necho '{answer}'\n")).unwrap();
        fs::set_permissions(at.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    install("able", r#"{"status": "Success", "device": "/dev/x", "attached": true}"#);
    install("unable", r#"{"status": "Not supported"}"#);
    install("broken", "Segmentation fault");
    let drivers = carrack_flexvolume::Drivers::new(dir.path().to_owned());
    let of = |name: &str| Disk { driver: format!("v/{name}"), volume: "pv".into() };
    for (name, expected) in [
        (
            "able",
            [
                Some(Answer::Attached("/dev/x".into())),
                Some(Answer::IsAttached(Some(true))),
                Some(Answer::Detached),
                Some(Answer::Expanded(2)),
            ],
        ),
        (
            "unable",
            [
                Some(Answer::Attached(String::new())),
                Some(Answer::IsAttached(None)),
                Some(Answer::Detached),
                Some(Answer::Expanded(2)),
            ],
        ),
        ("broken", [None, None, None, None]),
    ] {
        let (options, node) = ("{}".to_owned(), "n".to_owned());
        let calls = [
            Call::Attach { disk: of(name), options: options.clone(), node: node.clone() },
            Call::IsAttached { disk: of(name), options: options.clone(), node: node.clone() },
            Call::Detach { disk: of(name), node },
            Call::Expand { disk: of(name), options, to: 2, from: 1 },
        ];
        for (call, expected) in calls.into_iter().zip(expected) {
            assert_eq!(shell::make(&drivers, call.clone()).await.ok(), expected, "{call:?}");
        }
    }
    let log = fs::read_to_string(dir.path().join("calls")).unwrap();
    let lines: Vec<&str> = log.lines().take(4).collect();
    assert_eq!(lines, ["attach {} n", "isattached {} n", "detach pv n", "expandvolume {} v/able/mounts/pv 2 1"]);
}

#[test]
fn who_leads_says_until_when_calls_may_run_and_who_ends_that_they_may_not() {
    let manager = Manager::new("controllers", Rng::new(1)).with_elector(LeaderElector::new("ns", "lease", "me"));
    let (mut core, mut fx) = (Asking::around(manager, Calls::default()), Effects::new());
    // What was told, and which request is under way.
    let look = |fx: &mut Effects<Out<Call>>| {
        let (mut told, mut asked) = (Vec::new(), None);
        while let Some(effect) = fx.pop() {
            match effect {
                Effect::Own(Out::MayCallUntil(until)) => told.push(until),
                Effect::Api(id, _) => asked = Some(id),
                _ => {}
            }
        }
        (told, asked)
    };
    let began = Time::from_unix_s(1000);
    core.step(began, Input::Start, &mut fx);
    let (told, mut asked) = look(&mut fx);
    assert_eq!(told, [Time::default()], "it does not lead");
    let mut told = Vec::new();
    for ms in [100, 300] {
        let lease = json!({"metadata": {"name": "lease", "namespace": "ns", "resourceVersion": "1"}, "spec": {}});
        let reply = ApiResponse { status: 200, body: serde_json::to_vec(&lease).unwrap().into() };
        let input = Input::Api { id: asked.unwrap(), result: Ok(reply) };
        core.step(began + Duration::from_millis(ms), input, &mut fx);
        (told, asked) = look(&mut fx);
    }
    let until = began + Duration::from_millis(100) + carrack_engine::RENEW_DEADLINE;
    assert_eq!(told, [until], "from before the Lease was written");
    core.stop(began + Duration::from_millis(400), &mut fx);
    assert!(
        matches!(fx.pop(), Some(Effect::Own(Out::MayCallUntil(until))) if until == Time::default()),
        "before all else"
    );
}

#[tokio::test]
async fn calls_end_with_the_lead_and_none_begins_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("v~d");
    fs::create_dir(&at).unwrap();
    let begun = dir.path().join("begun");
    fs::write(at.join("d"), format!("#!/bin/sh\necho $$ >>{}\nexec sleep 600\n", begun.display())).unwrap();
    fs::set_permissions(at.join("d"), fs::Permissions::from_mode(0o755)).unwrap();
    let drivers = carrack_flexvolume::Drivers::new(dir.path().to_owned());
    let disk = Disk { driver: "v/d".to_owned(), volume: "pv".to_owned() };
    let call = Call::Detach { disk, node: "n".to_owned() };
    let clock = Clock::default();
    let leads = tokio::sync::watch::Sender::new(Some(clock.now() + Duration::from_secs(60)));
    let made = tokio::spawn({
        let (drivers, call, leads) = (drivers.clone(), call.clone(), leads.subscribe());
        async move { shell::make_until(&drivers, call, leads, clock).await }
    });
    while !fs::read_to_string(&begun).is_ok_and(|text| text.ends_with('\n')) && !made.is_finished() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    leads.send_replace(Some(Time::default()));
    let said = made.await.unwrap().unwrap_err();
    assert!(said.contains("leads no more"), "{said}");
    let said = shell::make_until(&drivers, call, leads.subscribe(), clock).await.unwrap_err();
    assert!(said.contains("leads no more"), "{said}");
    let begun = fs::read_to_string(&begun).unwrap();
    let process = format!("/proc/{}/stat", begun.trim());
    assert_eq!(begun.lines().count(), 1, "it was called once more: {begun:?}");
    while fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
