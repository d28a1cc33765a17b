use super::*;
use serde_json::json;

fn pod(uid: &str, chosen_at: u64, containers: &[(&str, u32, &str)]) -> Pod {
    let list: Vec<_> = containers
        .iter()
        .map(|(name, cores, _)| {
            json!({"name": name, "resources": {"limits": {
                "tencent.com/vcuda-core": cores.to_string(), "tencent.com/vcuda-memory": "4"}}})
        })
        .collect();
    let mut annotations =
        json!({"tencent.com/predicate-node": "n", "tencent.com/predicate-time": chosen_at.to_string()});
    for (number, (_, _, gpus)) in containers.iter().enumerate() {
        annotations[format!("tencent.com/predicate-gpu-idx-{number}")] = (*gpus).into();
    }
    serde_json::from_value(json!({"metadata": {"namespace": "d", "name": uid, "uid": uid, "annotations": annotations},
        "spec": {"nodeName": "n", "containers": list}}))
    .expect("a pod")
}

fn ids(from: u32, count: u32) -> BTreeSet<String> {
    (from..from + count).map(|n| n.to_string()).collect()
}

fn held(uid: &str, container: &str, ids: BTreeSet<String>, visible: Option<&str>) -> Held {
    let env = visible.map(|uuid| BTreeMap::from([(VISIBLE.to_owned(), uuid.to_owned())]));
    Held { uid: uid.into(), container: container.into(), ids, env }
}

fn check(pods: &[Pod], noted: &[Held], asked: &BTreeSet<String>, expected: Result<(&str, &str, &[usize]), &str>) {
    let (names, inventory) = (Names::default(), Inventory::made_up("4x1Gi").expect("GPUs"));
    let found = of(Known { names: &names, node: "n", pods, held: noted, inventory: &inventory }, asked);
    match (&found, expected) {
        (Ok(grant), Ok((pod, container, gpus))) => {
            assert_eq!((grant.pod.as_str(), grant.container.as_str(), grant.gpus.as_slice()), (pod, container, gpus));
        }
        (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
        _ => panic!("{found:?}"),
    }
}

#[test]
fn the_checkpoint_names_the_container() {
    let pods = [pod("a", 1, &[("c", 50, "0")]), pod("b", 2, &[("c", 50, "1")])];
    let second = [held("b", "c", ids(0, 50), None)];
    check(&pods, &second, &ids(0, 50), Ok(("d/b", "c", &[1])));
    check(&pods, &[held("z", "c", ids(0, 50), None)], &ids(0, 50), Err("not on this node"));
    check(&pods, &[held("b", "x", ids(0, 50), None)], &ids(0, 50), Err("no GPUs were chosen"));
    // An init container's devices are handed on: the one that has nothing yet is meant.
    let both = [pod("a", 1, &[("c", 50, "0"), ("e", 50, "1")])];
    let noted = [held("a", "c", ids(0, 50), Some("x")), held("a", "e", ids(0, 50), None)];
    check(&both, &noted, &ids(0, 50), Ok(("d/a", "e", &[1])));
}

#[test]
fn else_the_one_that_was_chosen_first() {
    let pods = [pod("a", 5, &[("c", 50, "0")]), pod("b", 2, &[("c", 50, "1")]), pod("w", 1, &[("c", 200, "2,3")])];
    check(&pods, &[], &ids(0, 50), Ok(("d/b", "c", &[1])));
    check(&pods, &[held("b", "c", ids(50, 50), Some("x"))], &ids(0, 50), Ok(("d/a", "c", &[0])));
    check(&pods, &[], &ids(0, 200), Ok(("d/w", "c", &[2, 3])));
    check(&pods, &[], &ids(0, 30), Err("waits for 30 cores"));
    check(&[], &[], &ids(0, 30), Err("waits for 30 cores"));
    let two = [pod("a", 1, &[("c", 20, "0"), ("e", 20, "1")])];
    check(&two, &[], &ids(0, 20), Ok(("d/a", "c", &[0])));
    check(&two, &[held("a", "c", ids(20, 20), Some("x"))], &ids(0, 20), Ok(("d/a", "e", &[1])));
}

#[test]
fn a_container_with_anothers_gpus_does_not_start() {
    let names = Names::default();
    let inventory = Inventory::made_up("2x1Gi").expect("GPUs");
    let pods = [pod("a", 1, &[("c", 50, "0")]), pod("b", 2, &[("c", 50, "1")])];
    let check = |noted: &[Held]| {
        let known = Known { names: &names, node: "n", pods: &pods, held: noted, inventory: &inventory };
        verify(known, &ids(0, 50))
    };
    assert_eq!(check(&[held("a", "c", ids(0, 50), Some("GPU-fake-0"))]), Ok(()));
    // It stays so, and is said at once.
    assert!(matches!(check(&[held("b", "c", ids(0, 50), Some("GPU-fake-0"))]), Err(Trouble::Final(_))));
    // The kubelet may be about to note it.
    assert!(matches!(check(&[held("a", "c", ids(0, 50), None)]), Err(Trouble::Unknown(_))));
    assert!(matches!(check(&[]), Err(Trouble::Unknown(_))));
    assert!(matches!(check(&[held("z", "c", ids(0, 50), Some("GPU-fake-0"))]), Err(Trouble::Unknown(_))));
}

/// A pod with the card `GPU-b`, which had number 1, on a node with these now: what it is given, and before it starts.
fn check_card(now: &[(&str, bool)], expected: Result<usize, &str>) {
    let names = Names::default();
    let device = |(uuid, broken): &(&str, bool)| Device { uuid: (*uuid).into(), broken: *broken, ..Device::default() };
    let inventory = Inventory { gpus: now.iter().map(device).collect(), shared_files: Vec::new() };
    let mut with_card = pod("a", 1, &[("c", 50, "1")]);
    let annotations = with_card.metadata.annotations.get_or_insert_default();
    annotations.insert("tencent.com/predicate-gpu-uuid-0".to_owned(), "GPU-b".to_owned());
    let (pods, noted) = ([with_card], [held("a", "c", ids(0, 50), Some("GPU-b"))]);
    let known = Known { names: &names, node: "n", pods: &pods, held: &noted, inventory: &inventory };
    let grant = of(known, &ids(0, 50)).expect("it is this one's");
    let (given, starts) = (grant.devices(&inventory), verify(known, &ids(0, 50)));
    match expected {
        Ok(number) => {
            assert_eq!((grant.gpus.as_slice(), starts), (&[number][..], Ok(())), "{now:?}");
            assert_eq!(given.expect("a card")[0].uuid, "GPU-b", "{now:?}");
        }
        Err(part) => {
            assert!(given.expect_err("no card").contains(part), "{now:?}");
            assert!(matches!(&starts, Err(Trouble::Final(why)) if why.contains(part)), "{now:?}: {starts:?}");
        }
    }
}

#[test]
fn a_pod_keeps_its_card_or_is_told_that_it_is_gone() {
    check_card(&[("GPU-a", false), ("GPU-b", false)], Ok(1));
    check_card(&[("GPU-b", false), ("GPU-a", false)], Ok(0));
    check_card(
        &[("GPU-a", false), ("GPU-c", false)],
        Err("GPU GPU-b, which was chosen for container c of d/a, is gone"),
    );
    check_card(&[("GPU-a", false)], Err("is gone: delete the pod"));
    check_card(&[("GPU-a", false), ("GPU-b", true)], Err("is broken or gone"));
}

#[test]
fn what_was_given_works_as_long_as_all_of_it_does() {
    let mut inventory = Inventory::made_up("3x1Gi").expect("GPUs");
    inventory.gpus[2].broken = true;
    for (given, works) in [
        (Some("GPU-fake-0"), true),
        (Some("GPU-fake-0,GPU-fake-1"), true),
        (Some("GPU-fake-0,GPU-fake-2"), false),
        (Some("GPU-fake-9"), false),
        (Some(""), false),
        (None, false),
    ] {
        assert_eq!(work(&held("a", "c", ids(0, 50), given), &inventory), works, "{given:?}");
    }
}

#[test]
fn environments() {
    let inventory = Inventory::made_up("2x1Gi").expect("GPUs");
    let env = |gpus: &[usize], want| {
        let grant = Grant { pod: "p".into(), container: "c".into(), gpus: gpus.to_vec(), gone: Vec::new(), want };
        grant.env(&inventory)
    };
    let share = env(&[1], Want::Share { cores: 30, memory: 2 });
    assert_eq!(share[VISIBLE], "GPU-fake-1");
    assert_eq!((share["CARRACK_GPU_CORES"].as_str(), share["CARRACK_GPU_MEMORY_MIB"].as_str()), ("30", "512"));
    assert_eq!(share["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "30");
    assert_eq!(share["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=512M");
    let whole = env(&[0, 1], Want::Whole(2));
    assert_eq!(whole[VISIBLE], "GPU-fake-0,GPU-fake-1");
    assert_eq!((whole["CARRACK_GPU_CORES"].as_str(), whole["CARRACK_GPU_MEMORY_MIB"].as_str()), ("200", "2048"));
    assert!(!whole.contains_key("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
}
