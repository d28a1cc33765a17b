use std::collections::BTreeMap;

use super::*;
use crate::topology::Hint;

/// Cores in a row with their sockets, NUMA nodes and caches; their second threads come after all first ones.
fn machine(cores: u32, threads: u32, place: impl Fn(u32) -> (u32, u32, u32)) -> Topology {
    let cpu = |cpu: u32| {
        let core = cpu % cores;
        let (socket, numa, cache) = place(core);
        (cpu, Place { core, cache, numa, socket })
    };
    Topology::new((0..cores * threads).map(cpu).collect())
}

/// One socket, four cores, eight threads.
fn small() -> Topology {
    machine(4, 2, |_| (0, 0, 0))
}

/// Two sockets that take turns, three cores each.
fn two_sockets() -> Topology {
    machine(6, 2, |core| (core % 2, core % 2, core % 2))
}

/// Two sockets of two NUMA nodes of ten cores.
fn four_nodes() -> Topology {
    machine(40, 2, |core| (core / 20, core / 10, core / 10))
}

/// One socket with four caches of four cores.
fn four_caches(threads: u32) -> Topology {
    machine(16, threads, |core| (0, 0, core / 4))
}

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn check_taken(rows: &[(&str, &Topology, &str, usize, Option<&str>)], options: Options) {
    for (what, topology, free, count, expected) in rows {
        let taken = take::take(topology, &cpus(free), *count, options).map(|cpus| cpus.to_string());
        let expected = expected.map(|text| cpus(text).to_string());
        assert_eq!(taken, expected, "{what}: {count} of {free}");
    }
}

/// Rows as upstream's tests have them, so that either kubelet chooses alike.
#[test]
fn cpus_are_packed() {
    let (small, two, four) = (small(), two_sockets(), four_nodes());
    check_taken(
        &[
            ("more than there are", &small, "0-2", 4, None),
            ("none", &small, "0-7", 0, Some("")),
            ("a thread", &small, "0-7", 1, Some("0")),
            ("a thread of the emptiest core", &small, "1,3,5-7", 1, Some("6")),
            ("a core", &small, "0-7", 2, Some("0,4")),
            ("all", &small, "0-7", 8, Some("0-7")),
            ("the one whole core", &small, "0-3,6", 2, Some("2,6")),
            ("a torn core before others", &two, "1-11", 1, Some("6")),
            ("a socket", &two, "0-11", 6, Some("0,2,4,6,8,10")),
            ("a socket and a core", &two, "0-11", 8, Some("0,6,2,8,4,10,1,7")),
            ("a node", &four, "0-79", 20, Some("0-9,40-49")),
            ("another node, as a core of the first is taken", &four, "1-39,41-79", 20, Some("10-19,50-59")),
            ("a socket of two nodes", &four, "0-79", 40, Some("0-19,40-59")),
            ("three nodes and two cores", &four, "0-79", 64, Some("0-31,40-71")),
        ],
        Options::default(),
    );
}

#[test]
fn cpus_are_distributed() {
    let (two, four) = (two_sockets(), four_nodes());
    let options = Options { distribute_across_numa: true, ..Options::default() };
    check_taken(
        &[
            ("what fits a node", &four, "0-79", 20, Some("0-9,40-49")),
            ("half of it each", &two, "0-11", 8, Some("0,6,2,8,1,7,3,9")),
            ("a quarter of it each", &four, "0-79", 64, Some("0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77")),
            ("a third of it each", &four, "0-79", 48, Some("0-7,10-17,20-27,40-47,50-57,60-67")),
            (
                "of those that are left most alike",
                &four,
                "1-29,32-39,41-69,72-79",
                48,
                Some("1-8,10-17,20-27,41-48,50-57,60-67"),
            ),
            ("not of the first", &four, "2-29,31-39,42-69,71-79", 48, Some("10-17,20-27,31-38,50-57,60-67,71-78")),
            (
                "what does not divide comes of where there is some",
                &four,
                "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76",
                34,
                Some("0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74"),
            ),
            ("what cannot be divided is packed", &four, "0-9,10,20,30,40-49,50,60,70", 25, Some("0-10,40-50,20,60,30")),
        ],
        options,
    );
    let whole = Options { full_cores_only: true, ..options };
    check_taken(&[("in whole cores", &four, "0-79", 22, Some("0-5,10-14,40-45,50-54"))], whole);
    // Many nodes are not tried for ever.
    let many = machine(64, 1, |core| (0, core, core));
    assert_eq!(take::take(&many, &cpus("0-63"), 33, options).map(|cpus| cpus.len()), Some(33));
}

#[test]
fn who_fits_behind_one_cache_lies_behind_one() {
    let (plain, threads) = (four_caches(1), four_caches(2));
    let options = Options { prefer_one_cache: true, ..Options::default() };
    check_taken(
        &[
            ("a cache", &plain, "0-15", 4, Some("0-3")),
            ("the emptiest that has enough", &plain, "2-15", 2, Some("2-3")),
            ("not the emptiest, which has too few", &plain, "2-15", 3, Some("4-6")),
            ("a cache and a part of another", &plain, "1-15", 6, Some("4-7,1-2")),
            ("what fits nowhere is packed", &plain, "0-1,4-5,8-9", 3, Some("0-1,4")),
            ("cores of one", &threads, "0-31", 4, Some("0-1,16-17")),
            ("an odd number", &threads, "0-31", 3, Some("0-1,16")),
        ],
        options,
    );
}

fn manager(topology: &Topology, reserved: &str, options: Options) -> Cpus {
    let config = CpuConfig { policy: Policy::Static, reserved: cpus(reserved), options, ..CpuConfig::default() };
    let mut manager = Cpus::new(config, 2000);
    manager.set_topology(topology).unwrap();
    manager
}

fn uid(name: &str) -> Uid {
    name.into()
}

#[test]
fn what_is_reserved_is_nobodys_own() {
    for (topology, named, milli, options, reserved, shared) in [
        (small(), "", 2000, Options::default(), "0,4", "0-7"),
        (small(), "", 500, Options::default(), "0", "0-7"),
        (small(), "1,3", 9000, Options::default(), "1,3", "0-7"),
        (small(), "1,3", 9000, Options { strict_reservation: true, ..Options::default() }, "1,3", "0,2,4-7"),
        (two_sockets(), "", 2500, Options { full_cores_only: true, ..Options::default() }, "0,2,6", "0-11"),
    ] {
        let config = CpuConfig { policy: Policy::Static, reserved: cpus(named), options, ..CpuConfig::default() };
        let mut m = Cpus::new(config, milli);
        assert_eq!(m.set_topology(&topology), Ok(true));
        assert_eq!(
            (m.reserved.to_string().as_str(), m.shared().to_string().as_str()),
            (reserved, shared),
            "{named} {milli}"
        );
        assert_eq!(m.set_topology(&topology), Ok(false));
    }
    for (named, milli, problem) in
        [("0,9", 0, "names 9"), ("", 0, "needs CPUs that are kept back"), ("", 9000, "9 CPUs are to be kept back")]
    {
        let config = CpuConfig { policy: Policy::Static, reserved: cpus(named), ..CpuConfig::default() };
        let refused = Cpus::new(config, milli).set_topology(&small()).unwrap_err();
        assert!(refused.contains(problem), "{refused}");
    }
}

#[test]
fn containers_are_assigned_what_is_free() {
    let mut m = manager(&small(), "0,4", Options::default());
    let init = [String::from("init")];
    for (pod, container, count, reusable, expected, shared) in [
        ("p", "init", 2, &[][..], "1,5", "0,2-4,6-7"),
        // What an init container had is used again first.
        ("p", "a", 3, &init, "1-2,5", "0,3-4,6-7"),
        ("p", "b", 1, &init, "6", "0,3-4,7"),
        ("q", "a", 1, &[], "3", "0,4,7"),
    ] {
        m.assign(&uid(pod), container, count, None, reusable).unwrap();
        assert_eq!(
            (m.own(pod, container).unwrap().to_string().as_str(), m.shared().to_string().as_str()),
            (expected, shared)
        );
    }
    let refused = m.assign(&uid("r"), "a", 2, None, &[]).unwrap_err();
    assert_eq!(
        refused.rejection(),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to not enough cpus available to satisfy request: requested=2, available=1, which is unexpected"
                .to_owned()
        )
    );
    assert!(!m.holds("r"));
    assert_eq!(m.of("q", "other").unwrap().to_string(), "0,4,7");
    assert_eq!((m.free_without(|uid| &**uid == "q"), m.view().asked, m.view().by_node[&0]), (2, (5, 1), 5));
    assert!(m.release("p") && !m.release("p"));
    assert_eq!(m.shared().to_string(), "0-2,4-7");
}

#[test]
fn nobody_gets_a_part_of_a_core_where_that_is_wanted() {
    let whole = Options { full_cores_only: true, ..Options::default() };
    for (reserved, taken, count, expected) in [
        ("0,4", 0, 2, Ok("1,5")),
        ("0,4", 0, 3, Err("SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2")),
        // The other half of a reserved core is of no use.
        ("0", 0, 6, Ok("1-3,5-7")),
        (
            "0",
            2,
            6,
            Err(
                "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 4, requested CPUs = 6, CPUs per \
                 core = 2",
            ),
        ),
    ] {
        let mut m = manager(&small(), reserved, whole);
        if taken > 0 {
            m.assign(&uid("other"), "a", taken, None, &[]).unwrap();
        }
        let outcome = m.assign(&uid("p"), "a", count, None, &[]);
        let own = m.own("p", "a").map(ToString::to_string).unwrap_or_default();
        match expected {
            Ok(set) => assert_eq!((outcome, own.as_str()), (Ok(()), set)),
            Err(message) => assert_eq!(outcome.unwrap_err().rejection(), ("SMTAlignmentError", message.to_owned())),
        }
    }
}

#[test]
fn hints_name_nodes_that_have_enough() {
    let nodes = |of: &[i64]| Some(Nodes::of(of.iter().copied()));
    let hint = |of: &[i64], preferred| Hint { nodes: nodes(of), preferred };
    let mut m = manager(&two_sockets(), "0,6", Options::default());
    for (count, expected) in [
        (4, vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)]),
        // The first socket could have six, but for what is reserved.
        (6, vec![hint(&[1], true), hint(&[0, 1], false)]),
        (8, vec![hint(&[0, 1], true)]),
        (11, vec![]),
    ] {
        assert_eq!(m.hints("p", "a", count, &[]), expected, "{count}");
        assert_eq!(m.hints_of_pod("p", count), expected, "{count}");
    }
    m.assign(&uid("p"), "init", 2, nodes(&[1]), &[]).unwrap();
    assert_eq!(m.own("p", "init").unwrap().to_string(), "1,7");
    // What is used again ties the next container to its node, and the pod.
    assert_eq!(m.hints("p", "a", 2, &["init".into()]), [hint(&[1], true), hint(&[0, 1], false)]);
    m.assign(&uid("p"), "a", 4, nodes(&[0]), &[]).unwrap();
    assert_eq!(m.own("p", "a").unwrap().to_string(), "2,4,8,10");
    assert_eq!(m.hints_of_pod("p", 8), [hint(&[0, 1], true)]);
}

#[test]
fn who_has_cpus_keeps_them() {
    let mut before = manager(&small(), "0,4", Options::default());
    before.assign(&uid("p"), "a", 2, None, &[]).unwrap();
    before.assign(&uid("q"), "a", 1, None, &[]).unwrap();
    let state = before.checkpoint();
    let again = |config: CpuConfig, topology: &Topology| {
        let mut m = Cpus::new(config, 2000);
        m.load(Some(&state)).unwrap();
        m.set_topology(topology).unwrap();
        let of = |pod: &str| m.of(pod, "a").map(|cpus| cpus.to_string()).unwrap_or_default();
        let shown = (of("p"), of("q"), of("other"));
        (m, shown)
    };
    let fixed = |reserved: &str| CpuConfig { policy: Policy::Static, reserved: cpus(reserved), ..CpuConfig::default() };
    let text = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    // A restart.
    let (m, shown) = again(fixed(""), &small());
    assert_eq!((shown, m.checkpoint() == state), (text("1,5", "2", "0,3-4,6-7"), true));
    // Another reservation, of CPUs that somebody has: they are his as long as he runs, and nobody's own afterwards.
    let (mut m, shown) = again(fixed("1,2"), &small());
    assert_eq!((shown, m.free().to_string()), (text("1,5", "2", "0,3-4,6-7"), "0,3-4,6-7".into()));
    m.release("p");
    assert_eq!(m.free().to_string(), "0,3-7");
    // CPUs that went offline are replaced, as far as there are others.
    let fewer = |online: &[u32]| {
        Topology::new(online.iter().map(|cpu| (*cpu, Place { core: cpu % 4, ..Place::default() })).collect())
    };
    let (_, shown) = again(fixed("0"), &fewer(&[0, 1, 2, 3]));
    assert_eq!(shown, text("1,3", "2", "0"));
    let (m, shown) = again(fixed("0"), &fewer(&[0, 1]));
    assert_eq!((shown, m.holds("q")), (text("1", "0", "0"), false));
    // More CPUs are shared.
    let more = machine(8, 2, |_| (0, 0, 0));
    assert_eq!(again(fixed("0"), &more).1, text("1,5", "2", "0,3-4,6-15"));
    // Another policy: all run everywhere, until that was brought about.
    let (mut m, shown) = again(CpuConfig::default(), &small());
    assert_eq!(shown, text("0-7", "0-7", "0-7"));
    assert!(m.widened() && !m.acts() && m.of("p", "a").is_none());
    assert_eq!(decode(&m.checkpoint()).unwrap(), State { policy: "none".into(), intact: true, ..State::default() });
}

#[test]
fn everybody_runs_somewhere() {
    let strict = Options { strict_reservation: true, ..Options::default() };
    let mut m = manager(&small(), "0", strict);
    m.assign(&uid("p"), "a", 7, None, &[]).unwrap();
    // What is reserved is better than nothing.
    assert_eq!(m.of("q", "a").unwrap().to_string(), "0");
    assert_eq!(Cpus::new(CpuConfig::default(), 0).of("q", "a"), None);
}

#[test]
fn options_are_upstreams() {
    let read = |options: &[(&str, &str)]| {
        Options::read(&options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>())
    };
    let all = [
        ("full-pcpus-only", "true"),
        ("distribute-cpus-across-numa", "1"),
        ("strict-cpu-reservation", "T"),
        ("prefer-align-cpus-by-uncorecache", "TRUE"),
    ];
    let set = read(&all).unwrap();
    assert_eq!(set.written().len(), 4);
    assert_eq!(Options::read(&set.written()), Ok(set));
    assert_eq!(read(&[("full-pcpus-only", "false")]), Ok(Options::default()));
    assert!(read(&[("full-pcpus-only", "yes")]).is_err() && read(&[("align-by-socket", "true")]).is_err());
}
