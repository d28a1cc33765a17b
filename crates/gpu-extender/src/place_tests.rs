//! Placement by table, and against a plain reading of the rules.

use super::*;
use proptest::prelude::*;

fn shape(memories: &[u64]) -> Shape {
    let gpus: Vec<Gpu> = memories.iter().map(|memory| Gpu { memory: *memory, ..Gpu::default() }).collect();
    Shape { cores: 100 * gpus.len() as u64, gpus }
}

fn asking(slot: Slot, want: Want) -> Asking {
    Asking { slot, name: "c".into(), want, before: matches!(slot, Slot::Init(_)) }
}

fn share(cores: u32, memory: u64) -> Want {
    Want::Share { cores, memory }
}

fn uses(list: &[(usize, u32, u64)]) -> Uses {
    list.iter().map(|(gpu, cores, memory)| (*gpu, Use { cores: *cores, memory: *memory })).collect()
}

fn check(memories: &[u64], others: &[(usize, u32, u64)], wants: &[(Slot, Want)], expected: Result<&[&[usize]], bool>) {
    let demand: Demand = wants.iter().map(|(slot, want)| asking(*slot, *want)).collect();
    let found = place(&shape(memories), &uses(others), &demand);
    let shown = format!("{memories:?} {others:?} {wants:?}: {found:?}");
    match (found, expected) {
        (Ok(places), Ok(expected)) => {
            let places: Vec<&[usize]> = wants.iter().map(|(slot, _)| places[slot].as_slice()).collect();
            assert_eq!(places, expected, "{shown}");
        }
        (Err(refusal), Err(never)) => assert_eq!(matches!(refusal, Refusal::TooSmall(_)), never, "{shown}"),
        _ => panic!("{shown}"),
    }
}

#[test]
fn best_fit() {
    let (m0, m1, i0) = (Slot::Main(0), Slot::Main(1), Slot::Init(0));
    check(&[16, 16], &[], &[(m0, share(50, 4))], Ok(&[&[0]]));
    check(&[16, 16], &[(1, 50, 4)], &[(m0, share(50, 4))], Ok(&[&[1]]));
    check(&[16, 16], &[(1, 60, 4)], &[(m0, share(50, 4))], Ok(&[&[0]]));
    check(&[16, 16], &[(1, 10, 14)], &[(m0, share(50, 4))], Ok(&[&[0]]));
    check(&[16, 16], &[(0, 60, 1), (1, 60, 1)], &[(m0, share(50, 4))], Err(false));
    check(&[16, 16], &[], &[(m0, share(50, 17))], Err(true));
    check(&[], &[], &[(m0, share(1, 1))], Err(true));
    check(&[16, 16, 16], &[(0, 1, 1)], &[(m0, Want::Whole(2))], Ok(&[&[1, 2]]));
    check(&[16, 16], &[(0, 1, 1)], &[(m0, Want::Whole(2))], Err(false));
    check(&[16, 16], &[], &[(m0, Want::Whole(3))], Err(true));
    // The whole one is placed first, whatever the order.
    check(&[16, 16], &[], &[(m0, share(50, 4)), (m1, Want::Whole(1))], Ok(&[&[1], &[0]]));
    check(&[16], &[], &[(m0, share(50, 8)), (m1, share(50, 8))], Ok(&[&[0], &[0]]));
    check(&[16], &[], &[(m0, share(50, 9)), (m1, share(50, 8))], Err(true));
    // An init container takes what the others will hold.
    check(&[16, 16], &[(0, 20, 2)], &[(i0, Want::Whole(1)), (m0, share(90, 2))], Ok(&[&[1], &[1]]));
    check(&[16], &[], &[(i0, Want::Whole(1)), (m0, share(90, 2))], Ok(&[&[0], &[0]]));
    check(&[16, 16], &[], &[(i0, share(50, 2)), (m0, share(60, 4))], Ok(&[&[0], &[0]]));
    check(&[16, 16], &[], &[(i0, Want::Whole(2)), (m0, Want::Whole(1))], Ok(&[&[0, 1], &[0]]));
}

#[test]
fn what_a_pod_holds_is_the_larger_of_before_and_after() {
    let demand = vec![asking(Slot::Init(0), Want::Whole(1)), asking(Slot::Main(0), share(30, 2))];
    let shape = shape(&[16]);
    let places = place(&shape, &Uses::new(), &demand).expect("a place");
    assert_eq!(holds(&demand, &places, &shape.gpus), uses(&[(0, 100, 16)]));
    // One that stays beside the others counts with them.
    let mut demand = vec![asking(Slot::Init(0), share(20, 1)), asking(Slot::Init(1), share(50, 1))];
    demand[0].before = false;
    demand.push(asking(Slot::Main(0), share(30, 2)));
    let places = place(&shape, &Uses::new(), &demand).expect("a place");
    assert_eq!(holds(&demand, &places, &shape.gpus), uses(&[(0, 70, 3)]));
}

#[test]
fn broken_gpus_take_nobody() {
    let mut shape = shape(&[16, 16]);
    shape.gpus[0].broken = true;
    let one = vec![asking(Slot::Main(0), share(50, 1))];
    assert_eq!(place(&shape, &Uses::new(), &one).expect("a place")[&Slot::Main(0)], [1]);
    // Where nobody says which, no more are given out than there are sound ones.
    shape.gpus[0].broken = false;
    shape.cores = 100;
    assert!(place(&shape, &uses(&[(0, 60, 1)]), &one).is_err());
    assert!(place(&shape, &uses(&[(0, 50, 1)]), &one).is_ok());
}

fn wants() -> impl Strategy<Value = Want> {
    prop_oneof![3 => (1_u32..100, 1_u64..10).prop_map(|(c, m)| share(c, m)), 1 => (1_usize..4).prop_map(Want::Whole)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whoever is placed leaves every GPU within its bounds, and a pod with one container is refused only when
    /// no GPU, or not enough of them, would do.
    #[test]
    fn nothing_is_given_out_twice(
        memories in prop::collection::vec(4_u64..12, 0..5),
        pods in prop::collection::vec(
            (prop::collection::vec(wants(), 1..3), prop::option::of(wants())), 0..12),
    ) {
        let shape = shape(&memories);
        let mut held = Uses::new();
        for (mains, init) in pods {
            let mut demand: Demand =
                mains.iter().enumerate().map(|(n, want)| asking(Slot::Main(n), *want)).collect();
            demand.extend(init.map(|want| asking(Slot::Init(0), want)));
            match place(&shape, &held, &demand) {
                Ok(places) => {
                    for asking in &demand {
                        let on = &places[&asking.slot];
                        let distinct: std::collections::BTreeSet<_> = on.iter().collect();
                        prop_assert_eq!(distinct.len(), asking.want.gpus());
                        prop_assert!(on.iter().all(|g| *g < memories.len()));
                    }
                    for (gpu, used) in holds(&demand, &places, &shape.gpus) {
                        add(&mut held, gpu, used);
                    }
                    for (gpu, used) in &held {
                        prop_assert!(used.cores <= 100 && used.memory <= memories[*gpu], "{:?}", held);
                    }
                }
                Err(_) if demand.len() == 1 => {
                    let room = |n: usize| Use { cores: 100, memory: memories[n] }.without(of(&held, n));
                    let possible = match demand[0].want {
                        Want::Share { cores, memory } =>
                            (0..memories.len()).any(|n| room(n).cores >= cores && room(n).memory >= memory),
                        Want::Whole(count) =>
                            (0..memories.len()).filter(|n| of(&held, *n).is_none()).count() >= count,
                    };
                    prop_assert!(!possible, "{:?} was refused beside {:?}", demand, held);
                }
                Err(_) => {}
            }
        }
    }
}
