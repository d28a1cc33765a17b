//! What is kept where, as upstream's `policy_static_test.go` has it, and that nothing is given twice.

use proptest::prelude::*;

use super::*;
use crate::config::NodeConfig;

const HUGE: &str = "hugepages-2Mi";

/// Nodes with so much memory, and so much of it in huge pages.
fn machine(nodes: &[(u64, u64)]) -> Machine {
    let sizes = |(memory, huge): &(u64, u64)| Sizes::from([(MEMORY.to_owned(), *memory), (HUGE.to_owned(), *huge)]);
    (0..).zip(nodes.iter().map(sizes)).collect()
}

fn of_memory(bytes: u64) -> Sizes {
    Sizes::from([(MEMORY.to_owned(), bytes)])
}

fn fixed(reserved: &[(u32, u64)]) -> MemoryConfig {
    let reserved = reserved.iter().map(|(node, bytes)| (*node, of_memory(*bytes))).collect();
    MemoryConfig { policy: Policy::Static, reserved }
}

/// A manager of a machine whose nodes keep so much back.
fn manager(machine: &Machine, reserved: &[(u32, u64)]) -> Memory {
    let mut m = Memory::new(fixed(reserved));
    let all = reserved.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(m.set_machine(machine, &of_memory(all)), Ok(true));
    m
}

fn uid(name: &str) -> Uid {
    name.into()
}

fn on(nodes: &[i64]) -> Nodes {
    Nodes::of(nodes.iter().copied())
}

fn hint(nodes: &[i64], preferred: bool) -> Hint {
    Hint { nodes: Some(on(nodes)), preferred }
}

fn asks(memory: u64, huge: u64) -> Sizes {
    let kinds = [(MEMORY, memory), (HUGE, huge)].into_iter().filter(|(_, bytes)| *bytes > 0);
    kinds.map(|(kind, bytes)| (kind.to_owned(), bytes)).collect()
}

/// What is left of memory on each node.
fn free(m: &Memory) -> Vec<u64> {
    m.tables().values().map(|node| node.kinds[MEMORY].free).collect()
}

#[test]
fn reservations_are_upstreams() {
    let limits = "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 4194304}}, \
                  {numaNode: 1, limits: {memory: 100Mi}}]";
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmemoryManagerPolicy: ";
    for (name, policy, unused) in [("Static", Policy::Static, 0), ("None", Policy::None, 1)] {
        let text = format!("{head}{name}\n{limits}\n");
        let (configuration, without) = crate::configuration::read(text.as_bytes()).unwrap();
        let mut node = NodeConfig::default();
        configuration.apply(&mut node).unwrap();
        assert_eq!((node.memory.policy, without.len()), (policy, unused), "{name}");
        let first = Sizes::from([(MEMORY.to_owned(), 1 << 30), (HUGE.to_owned(), 4 << 20)]);
        assert_eq!(node.memory.reserved, BTreeMap::from([(0, first), (1, of_memory(100 << 20))]));
    }
}

#[test]
fn reservations_go_with_the_machine() {
    let two = machine(&[(2048, 0), (2048, 0)]);
    let check = |machine: &Machine, reserved: &[(u32, u64)], kept: u64, expected: Result<bool, &str>| {
        let found = Memory::new(fixed(reserved)).set_machine(machine, &of_memory(kept));
        match (&found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(*found, expected),
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            _ => panic!("{reserved:?}, {kept}: {found:?}"),
        }
    };
    check(&two, &[(0, 512), (1, 512)], 1024, Ok(true));
    check(&two, &[(1, 1024)], 1024, Ok(true));
    check(&two, &[(0, 512), (1, 512)], 1000, Err("comes to 1024 bytes of memory; it must be 1000"));
    check(&two, &[], 100, Err("comes to 0 bytes of memory; it must be 100"));
    check(&two, &[], 0, Err("needs reservedMemory"));
    check(&two, &[(2, 512)], 512, Err("NUMA node 2, which is not there"));
    check(&two, &[(0, 4096)], 4096, Err("it has 2048 bytes, not 4096"));
    check(&Machine::new(), &[(0, 512)], 512, Err("does not tell"));
    check(&machine(&[(2048, 0); 17]), &[(0, 512)], 512, Err("at most 12 NUMA nodes; there are 17"));
    // Huge pages that are reserved have to be kept back, too, which no setting does.
    let mut config = fixed(&[(0, 512)]);
    config.reserved.get_mut(&0).unwrap().insert(HUGE.into(), 2);
    let why = Memory::new(config).set_machine(&machine(&[(2048, 4)]), &of_memory(512)).unwrap_err();
    assert!(why.contains("2 bytes of hugepages-2Mi; it must be 0"), "{why}");
    // Where nothing is kept for anybody, nothing is asked.
    assert_eq!(Memory::new(MemoryConfig::default()).set_machine(&two, &of_memory(7)), Ok(false));
}

#[test]
fn what_pods_cannot_have_is_not_allocatable() {
    let m = manager(&machine(&[(2048, 512), (2048, 0)]), &[(0, 100), (1, 300)]);
    let tables = m.tables();
    let memory = |node: u32| tables[&node].kinds[MEMORY];
    assert_eq!((memory(0).total, memory(0).system_reserved, memory(0).allocatable), (2048, 100, 1436));
    assert_eq!((memory(1).allocatable, tables[&0].kinds[HUGE].allocatable), (1748, 512));
    assert_eq!((tables[&1].cells, tables[&1].blocks, memory(1).free), (on(&[1]), 0, 1748));
    assert_eq!(m.view().allocatable[&1], Sizes::from([(MEMORY.into(), 1748), (HUGE.into(), 0)]));
}

#[test]
fn hints_name_nodes_that_have_enough() {
    let mut m = manager(&machine(&[(2048, 512), (2048, 512)]), &[(0, 512), (1, 512)]);
    let both = vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)];
    for (memory, huge, expected) in [
        (1024, 0, both.clone()),
        (1024, 512, both),
        (1025, 0, vec![hint(&[0, 1], true)]),
        (1024, 513, vec![hint(&[0, 1], true)]),
        (2049, 0, vec![]),
        (1, 1025, vec![]),
    ] {
        assert_eq!(m.hints("p", &asks(memory, huge), &[]), expected, "{memory} {huge}");
    }
    assert!(m.hints("p", &Sizes::from([("hugepages-1Gi".into(), 1)]), &[]).is_empty());
    // Who is on a single node leaves no group that has the node.
    m.assign(&uid("p"), "a", &asks(24, 0), hint(&[0], true), &[]).unwrap();
    assert_eq!(m.hints("q", &asks(1000, 0), &[]), [hint(&[0], true), hint(&[1], true)]);
    assert_eq!(m.hints("q", &asks(1001, 0), &[]), [hint(&[1], true)]);
    assert!(m.hints("q", &asks(1025, 0), &[]).is_empty());
    // Nor the other way round.
    m.release("p");
    m.assign(&uid("p"), "a", &asks(1100, 0), hint(&[0, 1], true), &[]).unwrap();
    assert_eq!(m.hints("q", &asks(1, 0), &[]), [hint(&[0, 1], false)]);
}

/// One container after the other on a machine with 1024 for containers on each node: what it asks for, on which nodes all else of
/// it lies, and which nodes it is bound to.
fn check_assigned(nodes: usize, rows: &[(&str, u64, Hint, Result<&str, Refusal>)]) -> Memory {
    let reserved: Vec<(u32, u64)> = (0..).take(nodes).map(|node| (node, 512)).collect();
    let mut m = manager(&machine(&vec![(1536, 0); nodes]), &reserved);
    for (pod, memory, hint, expected) in rows {
        let before = m.tables();
        let found = m.assign(&uid(pod), "a", &asks(*memory, 0), *hint, &[]);
        let bound = m.nodes_of(pod, "a").map(Nodes::list).unwrap_or_default();
        assert_eq!(found.map(|()| bound.as_str()), *expected, "{pod}");
        assert!(found.is_ok() || (bound.is_empty() && m.tables() == before), "{pod}");
    }
    m
}

#[test]
fn containers_are_bound_to_nodes() {
    let any = Hint::NOWHERE;
    // One node after another is filled, where nothing else is asked for.
    let m = check_assigned(
        2,
        &[
            ("a", 600, any, Ok("0")),
            ("b", 600, any, Ok("1")),
            ("c", 424, any, Ok("0")),
            ("d", 425, any, Err(Refusal::Nowhere)),
            ("e", 24, hint(&[1], true), Ok("1")),
        ],
    );
    assert_eq!((free(&m), m.view().asked), (vec![0, 400], (5, 1)));
    assert_eq!(
        Refusal::Nowhere.rejection().1,
        "Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is \
         available, which is unexpected"
    );
    // What fits no node is bound to a group, and the group stays one.
    let m = check_assigned(
        3,
        &[
            ("a", 1500, any, Ok("0-1")),
            ("b", 100, any, Ok("2")),
            ("c", 500, any, Ok("2")),
            ("d", 500, any, Ok("0-1")),
            ("e", 500, any, Err(Refusal::Nowhere)),
        ],
    );
    assert_eq!(free(&m), [0, 48, 424]);
    check_assigned(
        2,
        &[
            ("a", 1024, hint(&[0], true), Ok("0")),
            // A single node would do, but for what is on it.
            ("b", 1, hint(&[0], true), Err(Refusal::TooFew)),
            ("c", 1100, Hint::ANY, Err(Refusal::Nowhere)),
            ("d", 10, hint(&[0, 1], false), Err(Refusal::Mixed)),
        ],
    );
    // Two nodes where one should do are taken of who does not insist.
    for (preferred, expected) in [(false, Ok("0-1")), (true, Err(Refusal::Apart))] {
        let any = Hint { nodes: None, preferred };
        check_assigned(2, &[("a", 1100, hint(&[0, 1], true), Ok("0-1")), ("b", 100, any, expected)]);
    }
    // What all else lies on is a part of what is needed.
    for preferred in [false, true] {
        check_assigned(2, &[("a", 1100, hint(&[1], preferred), Ok("0-1"))]);
    }
    // Or a part of a group: the group is taken, or nothing.
    for (preferred, expected) in [(false, Ok("0-1")), (true, Err(Refusal::TooWide))] {
        check_assigned(2, &[("a", 1100, Hint::NOWHERE, Ok("0-1")), ("b", 10, hint(&[0], preferred), expected)]);
    }
}

/// As in upstream's tests of init containers: what they had is used again on the same nodes, once.
#[test]
fn what_init_containers_had_is_used_again() {
    let mut m = manager(&machine(&[(2048, 0), (2048, 0)]), &[(0, 512), (1, 512)]);
    let over = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (container, memory, names, left) in [
        ("i1", 1000, &[][..], 536),
        ("i2", 1500, &["i1"], 36),
        // A sidecar takes a part, and who comes next the rest.
        ("s", 400, &["i1", "i2"], 36),
        ("a", 1000, &["i1", "i2"], 36),
        ("b", 136, &["i1", "i2"], 0),
    ] {
        m.assign(&uid("p"), container, &asks(memory, 0), hint(&[0], true), &over(names)).unwrap();
        assert_eq!(free(&m), [left, 1536], "{container}");
    }
    let sizes = |name: &str| m.own("p", name).unwrap().iter().map(|block| block.bytes).sum::<u64>();
    assert_eq!(["i1", "i2", "s", "a", "b"].map(sizes), [0, 0, 400, 1000, 136]);
    // The init containers are bound to their node all the same.
    assert_eq!(m.nodes_of("p", "i1"), Some(on(&[0])));
    // Elsewhere there is nothing to be used again.
    m.assign(&uid("q"), "i1", &asks(1000, 0), hint(&[1], true), &[]).unwrap();
    m.release("p");
    m.assign(&uid("q"), "a", &asks(700, 0), hint(&[0], true), &over(&["i1"])).unwrap();
    assert_eq!(free(&m), [836, 536]);
    assert!(m.release("q") && !m.release("q"));
    assert_eq!(free(&m), [1536, 1536]);
}

#[test]
fn who_has_memory_keeps_it() {
    let two = machine(&[(2048, 512), (2048, 512)]);
    let mut before = manager(&two, &[(0, 512), (1, 512)]);
    before.assign(&uid("p"), "a", &asks(500, 512), hint(&[1], true), &[]).unwrap();
    before.assign(&uid("q"), "a", &asks(100, 0), hint(&[0], true), &[]).unwrap();
    let state = before.checkpoint();
    let again = |config: MemoryConfig, machine: &Machine, kept: u64| {
        let mut m = Memory::new(config);
        let is_anothers = m.load(Some(&state)).unwrap();
        let told = m.told.clone();
        m.set_machine(machine, &of_memory(kept)).unwrap();
        let differences = tables::differences(&told, &m.tables());
        (m, is_anothers, differences)
    };
    // A restart.
    let (m, is_anothers, differences) = again(fixed(&[(0, 512), (1, 512)]), &two, 1024);
    assert_eq!((m.checkpoint() == state, is_anothers, differences), (true, false, vec![]));
    // Another reservation, and another machine: both are told, and who runs keeps what it has.
    let (m, _, differences) = again(fixed(&[(0, 1024)]), &two, 1024);
    assert_eq!(differences.len(), 4, "{differences:?}");
    assert_eq!(differences[0], "memory of NUMA node 0 reserved: 512 bytes then, 1024 now");
    assert_eq!((m.nodes_of("p", "a"), free(&m)), (Some(on(&[1])), vec![412, 1036]));
    let (m, _, differences) = again(fixed(&[(0, 512)]), &machine(&[(2048, 512)]), 512);
    assert_eq!(differences, ["NUMA node 1 is gone"]);
    assert_eq!((m.nodes_of("p", "a"), m.nodes_of("q", "a")), (None, Some(on(&[0]))));
    let (m, _, differences) = again(fixed(&[(0, 512), (1, 512)]), &machine(&[(2048, 512), (1100, 512)]), 1024);
    assert_eq!((differences.len(), free(&m)), (3, vec![924, 0]), "less than is kept: {differences:?}");
    // Another policy: nothing is kept, and that has to be written.
    let (m, is_anothers, _) = again(MemoryConfig::default(), &two, 0);
    assert_eq!((m.holders().count(), m.nodes_of("p", "a"), is_anothers), (0, None, true));
    let written = State { policy: "None".into(), intact: true, ..State::default() };
    assert_eq!(decode(&m.checkpoint()).unwrap(), written);
    // None, and one that cannot be read.
    let mut m = Memory::new(fixed(&[]));
    assert!(!m.load(None).unwrap() && m.load(Some(b"{")).is_err() && m.holders().count() == 0);
}

#[test]
fn the_machine_is_followed() {
    let mut m = manager(&machine(&[(2048, 0)]), &[(0, 512)]);
    m.assign(&uid("p"), "a", &asks(1000, 0), Hint::NOWHERE, &[]).unwrap();
    for (what, machine, news, left) in [
        ("huge pages are reserved", machine(&[(2048, 512)]), true, 24),
        ("nothing is new", machine(&[(2048, 512)]), false, 24),
        ("the machine does not tell", Machine::new(), false, 24),
        ("and are let go again", machine(&[(2048, 0)]), true, 536),
    ] {
        // What is kept back is asked for at the start alone.
        assert_eq!((m.set_machine(&machine, &Sizes::new()), free(&m)), (Ok(news), vec![left]), "{what}");
    }
}

#[test]
fn what_leaves_is_waited_for_where_it_is_enough() {
    let mut m = manager(&machine(&[(2048, 0)]), &[(0, 512)]);
    m.assign(&uid("p"), "a", &asks(1000, 0), Hint::NOWHERE, &[]).unwrap();
    m.assign(&uid("q"), "a", &asks(500, 0), Hint::NOWHERE, &[]).unwrap();
    for (gone, memory, expected) in [("p", 1000, true), ("p", 1037, false), ("q", 600, false), ("r", 36, false)] {
        let asks = [asks(memory, 0)];
        assert_eq!(m.could_without(|uid| &**uid == gone, asks.iter()), expected, "{gone} {memory}");
    }
}

/// What holds at all times.
fn check_books(m: &Memory) {
    let (tables, blocks) = (m.tables(), m.blocks().map(|(.., block)| block).collect::<Vec<_>>());
    for (a, b) in blocks.iter().flat_map(|a| blocks.iter().map(move |b| (a, b))) {
        assert!(a.nodes == b.nodes || !a.nodes.meets(b.nodes), "groups that cross: {a:?} {b:?}");
    }
    for kind in [MEMORY, HUGE] {
        let kept: u64 = blocks.iter().filter(|block| block.kind == kind).map(|block| block.bytes).sum();
        let taken: u64 = tables.values().map(|node| node.kinds[kind].reserved).sum();
        assert_eq!(kept, taken, "{kind} is given twice, or lost");
    }
    for table in tables.values().flat_map(|node| node.kinds.values()) {
        assert_eq!(table.reserved + table.free, table.allocatable);
    }
    let state = decode(&m.checkpoint()).unwrap();
    assert_eq!((state.intact, &state.assigned, &state.tables), (true, &m.assigned, &tables));
}

proptest! {
    /// Containers come, in the order of their pods, with all kinds of hints, and pods go.
    #[test]
    fn nothing_is_given_twice_and_all_comes_back(
        nodes in prop::collection::vec((8_u64..20, 0_u64..6), 1..5),
        acts in prop::collection::vec((0_u8..4, 0_usize..4, 1_u64..14, 0_u64..4, 0_usize..9, any::<bool>()), 0..40),
    ) {
        let machine = machine(&nodes);
        let mut m = manager(&machine, &[(0, 1)]);
        let empty = m.tables();
        for (pod, container, memory, huge, choice, preferred) in acts {
            let (uid, name) = (uid(&format!("p{pod}")), format!("c{container}"));
            if container == 3 {
                m.release(&uid);
            } else if m.own(&uid, &name).is_none() {
                let (before, asks) = (m.clone(), asks(memory, huge));
                // The first two are init containers.
                let over: Vec<String> = (0..container).map(|n| format!("c{n}")).collect();
                let hints = m.hints(&uid, &asks, &over);
                let some = Nodes::of([i64::try_from(choice % nodes.len()).unwrap()]);
                let hint = match choice {
                    0 => Hint::NOWHERE,
                    1..4 => Hint { nodes: Some(some), preferred },
                    _ => hints.get(choice % hints.len().max(1)).copied().unwrap_or(Hint { nodes: None, preferred }),
                };
                match m.assign(&uid, &name, &asks, hint, &over) {
                    Ok(()) => {
                        let bound = m.nodes_of(&uid, &name);
                        prop_assert!(bound.is_some_and(|bound| hint.nodes.is_none_or(|nodes| nodes.within(bound))));
                        // A hint can be had as it is.
                        prop_assert!(!hints.contains(&hint) || bound == hint.nodes);
                    }
                    Err(_) => {
                        prop_assert_eq!(&m.assigned, &before.assigned);
                        prop_assert!(!hints.contains(&hint) && (hint != Hint::NOWHERE || hints.is_empty()));
                    }
                }
            }
            check_books(&m);
        }
        let holders: Vec<Uid> = m.holders().cloned().collect();
        for uid in &holders {
            prop_assert!(m.release(uid));
        }
        prop_assert_eq!(m.tables(), empty);
    }
}
