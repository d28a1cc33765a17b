//! Faults whose times are drawn apart, each from a stream of its own: seeds without one play what they would if there were none.

use std::time::Duration;

use carrack_engine::Rng;

use super::Options;
use crate::chance::between;
use crate::intervals::Intervals;

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

impl Intervals {
    /// The same with what is drawn apart, where no bug is planted.
    pub(super) fn with_those_apart(self, root: &Rng, options: &Options) -> Self {
        if !options.faults || options.plant.is_some() {
            return self;
        }
        let of_machines =
            |name: &str, one_in: u64, s: (u64, u64)| mean(root, name, one_in, s).filter(|_| options.machines);
        Self {
            lose: of_machines("lose", 6, (20, 90)),
            evict: of_machines("evict", 2, (5, 30)),
            chatter: of_machines("chatter", 4, (15, 60)),
            half_cut: mean(root, "half cuts", 4, (10, 60)),
            stall: mean(root, "stalls", 4, (30, 120)),
            // A snapshot has until a time of day, and controllers of machines fail it by their own clocks, as KubeVirt's do.
            clock: mean(root, "clocks", 4, (10, 60)).filter(|_| !options.clones),
            server_clock: mean(root, "clocks of servers", 4, (10, 60)).filter(|_| !options.clones),
            moods: mean(root, "moods", 4, (5, 30)),
            full_disk: mean(root, "full disks", 4, (20, 90)),
            full_store: mean(root, "full store", 4, (20, 90)),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In how many of so many seeds each is on.
    fn count(options: &Options) -> [usize; 8] {
        let mut counts = [0; 8];
        for seed in 0..400 {
            let drawn = Intervals::default().with_those_apart(&Rng::new(seed), options);
            let Intervals { half_cut, stall, clock, server_clock, moods, full_disk, full_store, .. } = drawn;
            let has_whims = plugin_whims_one_in(&Rng::new(seed), options) > 0;
            let on = [half_cut, stall, clock, moods, full_disk, full_store].map(|mean| mean.is_some());
            for (count, on) in counts.iter_mut().zip(on.into_iter().chain([has_whims, server_clock.is_some()])) {
                *count += usize::from(on);
            }
        }
        counts
    }

    #[test]
    fn each_is_on_in_a_quarter_of_seeds() {
        let usual = Options::default();
        assert!(count(&usual).iter().all(|count| (70..130).contains(count)), "{:?}", count(&usual));
        assert_eq!(count(&Options { faults: false, ..Options::default() }), [0; 8]);
        assert_eq!(count(&Options { plant: crate::plants::PLANTS.first(), ..Options::default() }), [0; 8]);
        let of_clones = count(&Options { clones: true, ..Options::default() });
        assert!(of_clones[0] > 0 && of_clones[1] > 0 && of_clones[2] == 0, "{of_clones:?}");
        assert_eq!(of_clones[3], of_clones[6], "moods, and whims with them");
        assert_eq!(of_clones[7], 0, "clocks of servers");
    }
}
