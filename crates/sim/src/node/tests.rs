//! What a node keeps, and what it loses.

use carrack_kubelet::devices::{Allocation, encode};
use carrack_kubelet::volumes::staged::StageInputs;
use carrack_kubelet::volumes::{
    Driver, GroupPolicy, Origin, PodInfo, Published, Publishing, Secrets, Staging, VolumeKind, VolumeSetup,
};
use carrack_virt::handler::effects::{Place, Record};

use super::*;

/// How a node answers its kubelet who asks for this.
fn answer(node: &mut Node, now: Time, op: Op) -> Outcome {
    let (observer, mut breaches) = (Observer::of([]), Vec::new());
    let mut due = node.ask(now, 1, OpId(1), op, &mut breaches);
    while let Some(next) = due.pop() {
        match next {
            Follow::Later(_, event) => due.extend(node.happen(now, 1, event, &observer, &mut breaches)),
            Follow::Kubelet(1, _, news) => {
                if let In::Done(_, outcome) = *news {
                    return outcome;
                }
            }
            _ => {}
        }
    }
    panic!("there is no answer")
}

#[test]
fn on_a_full_disk_nothing_is_written_and_what_is_there_can_go() {
    let at = Time::from_unix_s;
    let mut node = Node::new(1, at(1), Rng::new(1), NodeFaults::none(), Rack::default());
    let save = |name: &str| Op::SaveRecord { name: name.to_owned(), body: b"{}".to_vec() };
    assert!(answer(&mut node, at(1), save("pod-a")).is_ok());
    let follow = node.disk.fill(at(1), Duration::from_secs(2));
    assert!(matches!(follow, Follow::Later(after, NodeEvent::Room) if after == Duration::from_secs(2)));
    for op in [
        save("pod-b"),
        Op::SaveCheckpoint(vec![1]),
        Op::SaveCpus(vec![1]),
        Op::SaveMemory(vec![1]),
        Op::SaveAllocated(vec![1]),
        Op::SaveActuated(vec![1]),
    ] {
        let error = answer(&mut node, at(1), op).expect_err("there is no room");
        assert_eq!(error.to_string(), disk::NO_ROOM);
    }
    let Disk { checkpoint, cpus, memory, allocated, actuated, records, .. } = &node.disk;
    assert!([checkpoint, cpus, memory, allocated, actuated].into_iter().all(Option::is_none));
    assert_eq!(records.keys().collect::<Vec<_>>(), ["pod-a"]);
    assert!(answer(&mut node, at(1), Op::DropRecord("pod-a".to_owned())).is_ok());
    assert!(node.disk.records.is_empty());
    // Who is killed in the midst of it has written nothing, either.
    node.ask(at(1), 1, OpId(2), save("pod-c"), &mut Vec::new());
    node.kubelet_died();
    assert!(node.disk.records.is_empty());
    // It is filled again before there is room, and then there is.
    node.disk.fill(at(2), Duration::from_secs(9));
    for (now, has_room) in [(3, false), (11, true), (12, true)] {
        let follow = node.happen(at(now), 1, NodeEvent::Room, &Observer::of([]), &mut Vec::new());
        assert_eq!(matches!(follow.as_slice(), [Follow::Say(_)]), now == 11);
        assert_eq!(answer(&mut node, at(now), save("pod-d")).is_ok(), has_room, "at {now}");
    }
    node.disk.fill(at(12), Duration::from_secs(9));
    node.disk.heal();
    assert!(answer(&mut node, at(12), save("pod-e")).is_ok());
}

#[test]
fn what_a_plugin_is_asked_for_is_written_down_first() {
    let asked: std::collections::BTreeSet<String> = ["w0".to_owned()].into();
    for (written, holds) in [
        (None, false),
        (Some((2, "w0")), true),
        (Some((2, "w1")), false),
        // By a kubelet that is no more.
        (Some((1, "w0")), false),
    ] {
        let mut node = Node::new(1, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default());
        node.disk.noted = written.map(|(life, id): (u32, &str)| {
            let holding = Allocation { ids: [id.to_owned()].into(), ..Allocation::default() };
            let of_pod = BTreeMap::from([("c".to_owned(), BTreeMap::from([(WIDGET.to_owned(), holding)]))]);
            (life, encode(&BTreeMap::from([("u".into(), of_pod)]), &BTreeMap::new(), |_, _| -1))
        });
        let mut breaches = Vec::new();
        let op = Op::Allocate { resource: WIDGET.to_owned(), epoch: 1, ids: asked.clone() };
        node.ask(Time::default(), 2, OpId(1), op, &mut breaches);
        assert_eq!(breaches.iter().all(|breach| breach.invariant != NOTED), holds, "{written:?}");
    }
}

#[test]
fn what_a_loss_of_power_tears_cannot_be_read() {
    let written = br#"{"Data":{},"Checksum":0}"#.to_vec();
    for (tears_one_in, orderly, torn) in [(1, false, true), (1, true, false), (0, false, false)] {
        let mut others = [0; 4];
        for seed in 0..8 {
            let faults = NodeFaults { tears_one_in, ..NodeFaults::none() };
            let mut node = Node::new(1, Time::default(), Rng::new(seed), faults, Rack::default());
            let disk = &mut node.disk;
            for state in
                [&mut disk.checkpoint, &mut disk.cpus, &mut disk.memory, &mut disk.allocated, &mut disk.actuated]
            {
                *state = Some(written.clone());
            }
            node.runtime.pods_end = orderly;
            node.power_off(Time::default());
            let disk = &mut node.disk;
            let is_torn = |state: &mut Option<Vec<u8>>| {
                let left = state.take().unwrap_or_default();
                assert!(left == written || carrack_kubelet::devices::decode(&left).is_err(), "{left:?}, seed {seed}");
                left != written
            };
            assert_eq!(is_torn(&mut disk.checkpoint), torn, "seed {seed}");
            let states = [&mut disk.cpus, &mut disk.memory, &mut disk.allocated, &mut disk.actuated];
            for (times, state) in others.iter_mut().zip(states) {
                *times += u32::from(is_torn(state));
            }
        }
        // Each of the others now and then.
        assert!(others.iter().all(|times| (1..8).contains(times) == torn), "{others:?}");
    }
}

/// Of each kind of records the one that was written last is as before, or cannot be read, and what was dropped last may be there
/// again. All others stay.
#[test]
fn what_a_loss_of_power_takes_was_written_last() {
    let (old, new) = (br#"{"id":"old"}"#.to_vec(), br#"{"id":"new"}"#.to_vec());
    for (loses_one_in, orderly, is_over, expected) in [
        (1, false, false, vec!["pod-b", "pulled-b", "volume-b"]),
        // When the intent to pull is dropped the record is on disk.
        (1, false, true, vec!["pod-b", "volume-b"]),
        (1, true, true, vec![]),
        (0, false, true, vec![]),
    ] {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..32 {
            let faults = NodeFaults { loses_one_in, ..NodeFaults::none() };
            let mut node = Node::new(1, Time::default(), Rng::new(seed), faults, Rack::default());
            for (name, body) in [
                ("pod-b", &old),
                ("pod-a", &old),
                ("volume-a", &old),
                ("pod-b", &new),
                ("volume-b", &new),
                ("pulling-b", &old),
                ("pulled-b", &new),
                ("devices", &new),
            ] {
                node.disk.write(name.to_owned(), body.clone());
            }
            if is_over {
                assert!(node.disk.drop_record("pulling-b").is_ok());
            }
            let written = node.disk.records.clone();
            node.runtime.pods_end = orderly;
            node.power_off(Time::default());
            let left = &node.disk.records;
            let differs = |(name, body): &(&String, &Vec<u8>)| left.get(*name) != Some(*body);
            let lost: Vec<&str> = written.iter().filter(differs).map(|(name, _)| name.as_str()).collect();
            assert_eq!(lost, expected, "{left:?}, seed {seed}");
            let again = (!is_over || !expected.is_empty()).then_some(&old);
            assert_eq!(left.get("pulling-b"), again, "{left:?}, seed {seed}");
            for name in lost {
                let is_readable = |body: &Vec<u8>| serde_json::from_slice::<serde_json::Value>(body).is_ok();
                let before = (name == "pod-b").then_some(&old);
                let is = left.get(name);
                assert!(is == before || is.is_some_and(|body| !is_readable(body)), "{name}: {is:?}, seed {seed}");
                seen.insert((name.to_owned(), is.map(Vec::len)));
            }
        }
        // Each of the three comes about, of each of these.
        assert_eq!(seen.len(), 3 * expected.len(), "{seen:?}");
    }
}

#[test]
fn a_loss_of_power_spoils_one_of_virt_handlers_records() {
    for (loses_one_in, orderly, expected) in [(1, false, 1), (1, true, 0), (0, false, 0)] {
        let faults = NodeFaults { loses_one_in, ..NodeFaults::none() };
        let mut node = Node::new(1, Time::default(), Rng::new(1), faults, Rack::default());
        for uid in ["a", "b"] {
            let place = Place { uid: uid.to_owned(), pod_uid: "pod".to_owned(), compute_id: "c".to_owned() };
            node.guests.records.insert(uid.to_owned(), Record { place, ..Record::default() });
        }
        node.runtime.pods_end = orderly;
        node.power_off(Time::default());
        let spoilt = node.guests.records.values().filter(|record| record.is_unread()).count();
        assert_eq!((node.guests.records.len(), spoilt), (2, expected), "{loses_one_in} {orderly}");
    }
}

/// What is done on the side draws its chances anew, too.
#[test]
fn a_node_goes_on_as_another_seed_has_it() {
    let draws = |seed| {
        let mut node = Node::new(1, Time::default(), Rng::new(0), NodeFaults::none(), Rack::default());
        node.reseed(Rng::new(seed), NodeFaults::none());
        let of_power = [node.tearing.u64(), node.losing.u64(), node.spoiling.u64()];
        [[node.rng.u64(), node.side.u64(), node.lying.u64()], of_power].concat()
    };
    let (one, other) = (draws(1), draws(2));
    assert!(one.iter().zip(&other).all(|(a, b)| a != b), "{one:?}, {other:?}");
}

/// A container keeps what it had when it started, whichever kubelet has that made ready once more.
#[test]
fn what_is_mounted_is_mounted_once() {
    let path = "/var/lib/kubelet/pods/p/volumes/kubernetes.io~empty-dir/scratch";
    let setup = VolumeSetup {
        uid: "p".into(),
        name: "scratch".to_owned(),
        path: path.to_owned(),
        kind: VolumeKind::EmptyDir { tmpfs: true, size_bytes: 0, page_bytes: 0 },
        fs_group: None,
    };
    // Whether the bug is planted, which life of the kubelet comes after the first, whether the volume is unmounted between, and
    // whether the container runs.
    for (anew, life, unmounted, runs, expected) in [
        (false, 1, false, true, 0),
        (false, 2, false, true, 0),
        (true, 1, false, true, 0),
        (true, 2, false, true, 1),
        (true, 2, false, false, 0),
        (false, 2, true, true, 1),
        (false, 2, true, false, 0),
    ] {
        let (mut disk, mut kept, mut breaches) = (Disk::new(1, Rack::default()), Kept::default(), Vec::new());
        disk.mounts_anew = anew;
        assert!(disk.mount(&setup, 1, &mut breaches).is_ok());
        kept.starts("c", "p", &disk);
        if unmounted {
            assert!(disk.unmount("p", path).is_ok());
        }
        assert!(disk.mount(&setup, life, &mut breaches).is_ok());
        kept.look(1, |_| runs, &disk, &mut breaches);
        assert_eq!(breaches.len(), expected, "planted: {anew}, life {life}, unmounted: {unmounted}, runs: {runs}");
    }
}

/// What a kubelet can only look for, since it cannot read what it is made from, is not made.
#[test]
fn what_is_only_looked_for_is_not_mounted() {
    let origin = Origin {
        driver: Driver::Nfs { server: "files".into(), path: "/".into() },
        spec_name: "v".into(),
        claim: None,
        block: false,
        read_only: false,
        reads_by_choice: false,
        fs_type: String::new(),
        mount_options: Vec::new(),
        access_modes: Vec::new(),
    };
    let staging = Staging {
        id: "v".into(),
        origin: origin.clone(),
        path: "/staged".into(),
        device: None,
        identity: None,
        by_control_plane: false,
    };
    let setup = |confirm_only: bool| VolumeSetup {
        uid: "p".into(),
        name: "v".into(),
        path: "/volumes/v".into(),
        kind: VolumeKind::Published(Box::new(Publishing {
            published: Published { origin: origin.clone(), id: Some("v".into()), stage_path: "/staged".into() },
            staging: Some(staging.clone()),
            publish_context: BTreeMap::new(),
            secrets: Secrets::default(),
            pod: PodInfo::default(),
            pod_info: false,
            tokens: Secrets::default(),
            republish: false,
            group_policy: GroupPolicy::None,
            confirm_only,
        })),
        fs_group: None,
    };
    let inputs = |confirm_only: bool| StageInputs { confirm_only, ..StageInputs::default() };
    let (mut disk, mut breaches) = (Disk::new(1, Rack::default()), Vec::new());
    assert!(disk.confirm(&staging, &inputs(true)).is_err());
    assert!(disk.confirm(&staging, &inputs(false)).is_ok());
    assert!(disk.stage(&staging, &inputs(false), "boot").is_ok());
    assert!(disk.confirm(&staging, &inputs(true)).is_ok());
    for (confirm_only, is_there) in [(true, false), (false, true), (true, true)] {
        assert_eq!(disk.mount(&setup(confirm_only), 1, &mut breaches).is_ok(), is_there, "{confirm_only}");
    }
}
