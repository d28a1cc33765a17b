//! Which of several free GPUs to take: those that are near to each other, and of the smallest neighbourhood that is large
//! enough, so that large ones stay whole for those who need them.

use std::collections::BTreeMap;

use crate::node::Gpu;

/// Takes `count` of the `free` GPUs; none when there are not so many. With no word on where GPUs sit, those with the lowest
/// numbers.
#[must_use]
pub fn pick(gpus: &[Gpu], free: &[usize], count: usize) -> Option<Vec<usize>> {
    if free.len() < count {
        return None;
    }
    let mut picked = Vec::new();
    take(gpus, free, count, &mut picked);
    picked.sort_unstable();
    Some(picked)
}

/// Of all neighbourhoods with enough free GPUs the narrowest; of equals the one with the fewest, then the first.
fn take(gpus: &[Gpu], free: &[usize], count: usize, picked: &mut Vec<usize>) {
    if count == 0 {
        return;
    }
    let mut around: BTreeMap<&[String], Vec<usize>> = BTreeMap::new();
    for number in free {
        let path = gpus.get(*number).map_or(&[][..], |g| &g.near);
        for depth in 0..=path.len() {
            around.entry(&path[..depth]).or_default().push(*number);
        }
    }
    let enough = around.iter().filter(|(_, part)| part.len() >= count);
    let best = enough.min_by_key(|(path, part)| (std::cmp::Reverse(path.len()), part.len(), part.first().copied()));
    let Some((path, group)) = best else { return };
    // What is nearer to each other than the whole group stays together; one who says no more is alone.
    let mut parts: BTreeMap<(Option<&String>, Option<usize>), Vec<usize>> = BTreeMap::new();
    for number in group {
        let step = gpus.get(*number).and_then(|g| g.near.get(path.len()));
        parts.entry((step, step.is_none().then_some(*number))).or_default().push(*number);
    }
    let mut parts: Vec<Vec<usize>> = parts.into_values().collect();
    parts.sort_by_key(|part| part.first().copied());
    let mut left = count;
    while left > 0 {
        let sizes = || parts.iter().enumerate().map(|(at, part)| (part.len(), at));
        let end = sizes().filter(|(size, _)| *size >= left).min();
        let largest = || sizes().max_by_key(|(size, at)| (*size, std::cmp::Reverse(*at)));
        let Some((size, at)) = end.or_else(largest) else { return };
        let part = parts.remove(at);
        if size <= left {
            picked.extend(&part);
            left -= size;
        } else {
            return take(gpus, &part, left, picked);
        }
    }
}

/// How much all of these GPUs have in common: the length of the common beginning of where they sit.
#[must_use]
pub fn closeness(gpus: &[Gpu], chosen: &[usize]) -> usize {
    let mut paths = chosen.iter().filter_map(|g| gpus.get(*g)).map(|g| &g.near);
    let Some(first) = paths.next() else { return 0 };
    paths.fold(first.len(), |common, path| first.iter().zip(path).take(common).take_while(|(a, b)| a == b).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(near: &[&str], free: &[usize], count: usize, expected: Option<&[usize]>) {
        let gpus: Vec<Gpu> = near
            .iter()
            .map(|path| Gpu {
                near: path.split('/').filter(|s| !s.is_empty()).map(str::to_owned).collect(),
                ..Gpu::default()
            })
            .collect();
        assert_eq!(pick(&gpus, free, count).as_deref(), expected, "{near:?} {free:?} {count}");
    }

    #[test]
    fn near_ones_from_the_smallest_neighbourhood() {
        let two = ["a/0", "a/0", "a/1", "a/1", "b/0", "b/0", "b/1", "b/1"];
        let all: Vec<usize> = (0..8).collect();
        check(&two, &all, 2, Some(&[0, 1]));
        check(&two, &[0, 2, 3, 4], 2, Some(&[2, 3]));
        check(&two, &[0, 2, 4, 5, 6], 1, Some(&[0]));
        check(&two, &[0, 2, 4, 6, 7], 2, Some(&[6, 7]));
        check(&two, &[0, 2, 4, 6], 2, Some(&[0, 2]));
        check(&two, &[1, 2, 3, 4, 5, 6, 7], 3, Some(&[1, 2, 3]));
        check(&two, &all, 4, Some(&[0, 1, 2, 3]));
        check(&two, &all, 5, Some(&[0, 1, 2, 3, 4]));
        check(&two, &all, 9, None);
        check(&two, &all, 0, Some(&[]));
        check(&["", "", ""], &[0, 1, 2], 2, Some(&[0, 1]));
        check(&["", "a", "a"], &[0, 1, 2], 2, Some(&[1, 2]));
        check(&["", "a", "a"], &[0, 1, 2], 3, Some(&[0, 1, 2]));
    }
}
