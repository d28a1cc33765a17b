//! Where a pod's containers go on a node: best fit, decided from what others hold alone.
//!
//! * A share goes onto the fullest GPU that has room for it, as upstream does it.
//! * Whole GPUs are ones that nobody holds anything of, near to each other ([`crate::near`]).
//! * An init container is over before the containers start: it takes what they will hold, as far as that is enough, and the
//!   pod holds the larger of both.
//!
//! The largest wishes are placed first. That is no search: of a pod with several containers it may be said that it does not
//! fit where some other arrangement would. Of a pod with one container it is exact.

use std::collections::BTreeMap;

use crate::demand::{Asking, Demand, Slot, Want};
use crate::names::CORES;
use crate::near;
use crate::node::{Gpu, Shape};

/// What is in use of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Hundredths of its cores.
    pub cores: u32,
    /// Units of its memory.
    pub memory: u64,
}

impl Use {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { cores: self.cores.saturating_add(other.cores), memory: self.memory.saturating_add(other.memory) }
    }
    /// Without the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self { cores: self.cores.saturating_sub(other.cores), memory: self.memory.saturating_sub(other.memory) }
    }
    /// The larger of each.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { cores: self.cores.max(other.cores), memory: self.memory.max(other.memory) }
    }
    /// Whether nothing is in use.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// What is in use, by the GPU's number.
pub type Uses = BTreeMap<usize, Use>;

/// Which GPUs each container is on.
pub type Places = BTreeMap<Slot, Vec<usize>>;

/// Why a pod has no place on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Others hold what it would need.
    Full(String),
    /// Not even with all others gone.
    TooSmall(String),
}

impl Refusal {
    /// For people.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Full(text) | Self::TooSmall(text) => text,
        }
    }
}

/// What a container uses of each GPU that it is on.
#[must_use]
pub fn part(want: Want, gpu: Option<&Gpu>) -> Use {
    match want {
        Want::Share { cores, memory } => Use { cores, memory },
        Want::Whole(_) => Use { cores: CORES, memory: gpu.map_or(0, |g| g.memory) },
    }
}

/// What a pod holds while its containers are on these GPUs.
#[must_use]
pub fn holds(demand: &Demand, places: &Places, gpus: &[Gpu]) -> Uses {
    let on = |asking: &Asking| -> Vec<(usize, Use)> {
        let gpu = |n: &usize| (*n, part(asking.want, gpus.get(*n)));
        places.get(&asking.slot).into_iter().flatten().map(gpu).collect()
    };
    let (mut steady, mut beside) = (Uses::new(), Uses::new());
    for asking in demand.iter().filter(|a| !a.before) {
        for (gpu, used) in on(asking) {
            add(&mut steady, gpu, used);
            if matches!(asking.slot, Slot::Init(_)) {
                add(&mut beside, gpu, used);
            }
        }
    }
    let mut held = steady;
    for asking in demand.iter().filter(|a| a.before) {
        for (gpu, used) in on(asking) {
            let used = used.and(of(&beside, gpu));
            held.entry(gpu).and_modify(|h| *h = h.or(used)).or_insert(used);
        }
    }
    held
}

fn add(uses: &mut Uses, gpu: usize, used: Use) {
    let entry = uses.entry(gpu).or_default();
    *entry = entry.and(used);
}

fn of(uses: &Uses, gpu: usize) -> Use {
    uses.get(&gpu).copied().unwrap_or_default()
}

/// Finds places on a node, beside what others hold there.
///
/// # Errors
/// Why there are none.
pub fn place(shape: &Shape, others: &Uses, demand: &Demand) -> Result<Places, Refusal> {
    let found = arrange(shape, others, demand).and_then(|places| {
        // With broken GPUs that nobody names, the sum is all that is known.
        let sum = |uses: &Uses| uses.values().map(|u| u64::from(u.cores)).sum::<u64>();
        let (there, more) = (sum(others), sum(&holds(demand, &places, &shape.gpus)));
        if there + more <= shape.cores {
            Ok(places)
        } else {
            Err(format!("{} cores of GPUs are in use, of {}", there, shape.cores))
        }
    });
    found.map_err(|why| match arrange(shape, &Uses::new(), demand) {
        Ok(_) => Refusal::Full(why),
        Err(never) => Refusal::TooSmall(never),
    })
}

fn arrange(shape: &Shape, others: &Uses, demand: &Demand) -> Result<Places, String> {
    let mut places = Places::new();
    let mut order: Vec<&Asking> = demand.iter().filter(|a| !a.before).collect();
    order.sort_by_key(|a| {
        let size = match a.want {
            Want::Whole(count) => (count, 0, 0),
            Want::Share { cores, memory } => (0, cores, memory),
        };
        (std::cmp::Reverse(size), a.slot)
    });
    let (mut steady, mut beside) = (others.clone(), others.clone());
    for asking in order {
        let chosen = choose(&shape.gpus, &steady, &Uses::new(), asking)?;
        for gpu in &chosen {
            let used = part(asking.want, shape.gpus.get(*gpu));
            add(&mut steady, *gpu, used);
            if matches!(asking.slot, Slot::Init(_)) {
                add(&mut beside, *gpu, used);
            }
        }
        places.insert(asking.slot, chosen);
    }
    for asking in demand.iter().filter(|a| a.before) {
        let chosen = choose(&shape.gpus, &beside, &steady, asking)?;
        for gpu in &chosen {
            let used = of(&beside, *gpu).and(part(asking.want, shape.gpus.get(*gpu)));
            steady.entry(*gpu).and_modify(|s| *s = s.or(used)).or_insert(used);
        }
        places.insert(asking.slot, chosen);
    }
    Ok(places)
}

/// GPUs for one container beside what is in use of them; best those where the pod will hold something anyway.
fn choose(gpus: &[Gpu], in_use: &Uses, anyway: &Uses, asking: &Asking) -> Result<Vec<usize>, String> {
    let whole = |gpu: &Gpu| Use { cores: CORES, memory: gpu.memory };
    match asking.want {
        Want::Whole(count) => {
            let free = gpus.iter().enumerate().filter(|(n, gpu)| !gpu.broken && of(in_use, *n).is_none());
            let free: Vec<usize> = free.map(|(n, _)| n).collect();
            let (held, rest): (Vec<usize>, Vec<usize>) = free.iter().partition(|n| !of(anyway, **n).is_none());
            let mut chosen = near::pick(gpus, &held, count.min(held.len())).unwrap_or_default();
            let more = near::pick(gpus, &rest, count - chosen.len());
            let more = more.ok_or_else(|| format!("{} of {count} whole GPUs are free", free.len()))?;
            chosen.extend(more);
            chosen.sort_unstable();
            Ok(chosen)
        }
        Want::Share { cores, memory } => {
            let wanted = Use { cores, memory };
            let fits = gpus.iter().enumerate().filter_map(|(n, gpu)| {
                let (used, all) = (of(in_use, n), whole(gpu));
                let with = used.and(wanted);
                let room = !gpu.broken && with.cores <= all.cores && with.memory <= all.memory;
                let free = all.without(used);
                let growth = with.without(of(anyway, n));
                let growth = if anyway.is_empty() { Use::default() } else { growth };
                room.then_some(((growth.cores, growth.memory, free.cores, free.memory), n))
            });
            let fits: Vec<_> = fits.collect();
            let best = fits.iter().map(|(key, _)| *key).min();
            let equals: Vec<usize> = fits.iter().filter(|(key, _)| Some(*key) == best).map(|(_, n)| *n).collect();
            near::pick(gpus, &equals, 1).ok_or_else(|| format!("no GPU has {cores} cores and {memory} of memory free"))
        }
    }
}

/// How good a place is, for comparing nodes: less is better. The nearest GPUs first where several are taken, then the fullest
/// node.
#[must_use]
pub fn rank(shape: &Shape, others: &Uses, places: &Places) -> (std::cmp::Reverse<usize>, u64, u64) {
    let several = places.values().filter(|gpus| gpus.len() > 1);
    let near = several.map(|chosen| near::closeness(&shape.gpus, chosen)).min().unwrap_or(0);
    let (mut cores, mut memory) = (0_u64, 0_u64);
    for (n, gpu) in shape.gpus.iter().enumerate() {
        let used = of(others, n);
        cores += u64::from(CORES.saturating_sub(used.cores));
        memory = memory.saturating_add(gpu.memory.saturating_sub(used.memory));
    }
    (std::cmp::Reverse(near), cores, memory)
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
