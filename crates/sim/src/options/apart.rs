//! Faults whose times are drawn apart, each from a stream of its own: seeds without one play what they would if there were none.

use std::time::Duration;

use carrack_engine::Rng;

use super::Options;
use crate::chance::between;
use crate::intervals::Intervals;
use crate::plants::Bug;

/// For how long there may be trouble at the most with clocks that are set, where there are clones. A snapshot that says nothing of it
/// has five minutes, from when an API server says that it was made until a controller's own clock says that they are over, and fails
/// then, as KubeVirt's does. That a clone succeeds, whatever goes wrong, holds only for what takes less than that by all clocks: so
/// these are apart by less in such runs, too ([`crate::world`]).
const CLONES_HAVE_TIME: Duration = Duration::from_secs(120);

/// A mean time, spread evenly over these seconds, with which something happens in one of so many seeds.
fn mean(root: &Rng, name: &str, one_in: u64, (least_s, most_s): (u64, u64)) -> Option<Duration> {
    let mut own = root.fork(name);
    own.one_in(one_in).then(|| between(&mut own, Duration::from_secs(least_s), Duration::from_secs(most_s)))
}

/// How often device plugins answer late, or not as they should, where they have moods.
pub(super) fn plugin_whims_one_in(root: &Rng, options: &Options) -> u64 {
    let has_moods = Intervals::default().with_those_apart(root, options).moods.is_some();
    if has_moods { 2 + root.fork("whims").below(8) } else { 0 }
}

/// Whether device plugins are to be told before a container starts: in a quarter of seeds. Beside other planted bugs they are not.
pub(super) fn pre_starts(root: &Rng, options: &Options) -> bool {
    match options.plant.map(|plant| plant.bug) {
        Some(bug) => bug == Bug::PreStartsIgnored,
        None => options.faults && root.fork("plugins that are told").one_in(4),
    }
}

/// How often a write that was made is answered as if something had gone wrong: in a quarter of seeds, beside no planted bug.
pub(super) fn denied_one_in(root: &Rng, options: &Options) -> u64 {
    let mut own = root.fork("denied writes");
    let on = own.one_in(4) && options.faults && options.plant.is_none();
    if on { 20 + own.below(280) } else { 0 }
}

/// Whether a container that the runtime fails to start has ended by that: in a quarter of seeds, beside no planted bug.
pub(super) fn spoils_starts(root: &Rng, options: &Options) -> bool {
    options.faults && options.plant.is_none() && root.fork("spoilt starts").one_in(4)
}

/// How often CSI drivers say that they have done what they have not: in some runs, and beside no other planted bug than those
/// of lies.
pub(super) fn lies_one_in(root: &Rng, options: &Options) -> u64 {
    let mut own = root.fork("lying drivers");
    match options.plant.map(|plant| plant.bug) {
        Some(Bug::BelievedDrivers | Bug::SmallVolumes) => 2,
        None if options.faults && own.one_in(4) => 3 + own.below(8),
        _ => 0,
    }
}

/// How often listings of runtimes are torn, or lack what could not be read: in some runs, and beside no other planted bug than those
/// of that.
pub(super) fn unkind_one_in(root: &Rng, options: &Options) -> u64 {
    let mut own = root.fork("unkind runtimes");
    match options.plant.map(|plant| plant.bug) {
        Some(Bug::UnreadIsGone | Bug::UnknownIsOver) => 4,
        None if options.faults && own.one_in(4) => 4 + own.below(12),
        _ => 0,
    }
}

impl Intervals {
    /// The same with what is drawn apart, where no bug is planted.
    pub(super) fn with_those_apart(self, root: &Rng, options: &Options) -> Self {
        if !options.faults || options.plant.is_some() {
            return self;
        }
        // What is cloned has so long that clocks which are a minute apart do not end it.
        let has_time = !options.clones || options.safety <= CLONES_HAVE_TIME;
        let of_machines =
            |name: &str, one_in: u64, s: (u64, u64)| mean(root, name, one_in, s).filter(|_| options.machines);
        Self {
            lose: of_machines("lose", 6, (20, 90)),
            evict: of_machines("evict", 2, (5, 30)),
            chatter: of_machines("chatter", 4, (15, 60)),
            half_cut: mean(root, "half cuts", 4, (10, 60)),
            stall: mean(root, "stalls", 4, (30, 120)),
            clock: mean(root, "clocks", 4, (10, 60)).filter(|_| has_time),
            server_clock: mean(root, "clocks of servers", 4, (10, 60)).filter(|_| has_time),
            moods: mean(root, "moods", 4, (5, 30)),
            full_disk: mean(root, "full disks", 4, (20, 90)),
            full_store: mean(root, "full store", 4, (20, 90)),
            runtime_away: mean(root, "absent runtimes", 4, (20, 90)),
            driver_away: mean(root, "absent drivers", 4, (10, 60)),
            sandbox: mean(root, "ends of sandboxes", 4, (10, 60)),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In how many of so many seeds each is on.
    fn count(options: &Options) -> [usize; 12] {
        let mut counts = [0; 12];
        for seed in 0..400 {
            let drawn = Intervals::default().with_those_apart(&Rng::new(seed), options);
            let Intervals {
                half_cut,
                stall,
                clock,
                server_clock,
                moods,
                full_disk,
                full_store,
                runtime_away,
                driver_away,
                sandbox,
                ..
            } = drawn;
            let has_whims = plugin_whims_one_in(&Rng::new(seed), options) > 0;
            let lies = lies_one_in(&Rng::new(seed), options) > 0;
            let on = [half_cut, stall, clock, moods, full_disk, full_store].map(|mean| mean.is_some());
            let apart = [server_clock, runtime_away, driver_away].map(|mean| mean.is_some());
            let others = [has_whims].into_iter().chain(apart).chain([lies, sandbox.is_some()]);
            for (count, on) in counts.iter_mut().zip(on.into_iter().chain(others)) {
                *count += usize::from(on);
            }
        }
        counts
    }

    #[test]
    fn plugins_are_told_in_a_quarter_of_seeds() {
        let told = |options: &Options| (0..400).filter(|seed| pre_starts(&Rng::new(*seed), options)).count();
        assert!((70..130).contains(&told(&Options::default())));
        assert_eq!(told(&Options { faults: false, ..Options::default() }), 0);
        for (name, expected) in [("ill-devices-given", 0), ("pre-starts-ignored", 400)] {
            let plant = crate::plants::find(name);
            assert_eq!(told(&Options { plant, ..Options::default() }), expected, "{name}");
        }
    }

    #[test]
    fn writes_are_denied_and_starts_spoilt_in_a_quarter_of_seeds() {
        let count = |options: &Options| {
            let roots = || (0..400).map(Rng::new);
            let denied = roots().filter(|root| denied_one_in(root, options) > 0).count();
            [denied, roots().filter(|root| spoils_starts(root, options)).count()]
        };
        let usual = Options::default();
        assert!(count(&usual).iter().all(|count| (70..130).contains(count)), "{:?}", count(&usual));
        assert_eq!(count(&Options { faults: false, ..Options::default() }), [0; 2]);
        assert_eq!(count(&Options { plant: crate::plants::PLANTS.first(), ..Options::default() }), [0; 2]);
    }

    #[test]
    fn runtimes_are_unkind_in_a_quarter_of_seeds() {
        let are = |options: &Options| (0..400).filter(|seed| unkind_one_in(&Rng::new(*seed), options) > 0).count();
        assert!((70..130).contains(&are(&Options::default())));
        assert_eq!(are(&Options { faults: false, ..Options::default() }), 0);
        for (name, expected) in [("hasty-sandboxes", 0), ("unread-is-gone", 400), ("unknown-is-over", 400)] {
            let plant = crate::plants::find(name);
            assert_eq!(are(&Options { plant, ..Options::default() }), expected, "{name}");
        }
    }

    #[test]
    fn each_is_on_in_a_quarter_of_seeds() {
        let usual = Options::default();
        assert!(count(&usual).iter().all(|count| (70..130).contains(count)), "{:?}", count(&usual));
        assert_eq!(count(&Options { faults: false, ..Options::default() }), [0; 12]);
        assert_eq!(count(&Options { plant: crate::plants::PLANTS.first(), ..Options::default() }), [0; 12]);
        let of_clones = count(&Options { clones: true, ..Options::default() });
        assert_eq!(of_clones[3], of_clones[6], "moods, and whims with them");
        assert_eq!(of_clones, count(&usual), "clocks with all else");
        let long = count(&Options { clones: true, safety: CLONES_HAVE_TIME * 2, ..Options::default() });
        assert!(long[0] > 0 && long[1] > 0 && [long[2], long[7]] == [0, 0], "{long:?}");
    }
}
