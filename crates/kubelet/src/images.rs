//! Images that nobody needs: which of them go when their file system fills up
//! (<https://kubernetes.io/docs/concepts/architecture/garbage-collection/#containers-images>).
//!
//! An image that came from no registry (`localhost/…`) could not be had again, and never goes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;

use crate::runtime::ImageRecord;

/// When images go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Use of the file system, in percent, from which images go. With 100 nobody looks at that where none goes for being long
    /// unused (upstream's `StartGarbageCollection`).
    pub high_percent: u64,
    /// Use, in percent, down to which they go.
    pub low_percent: u64,
    /// Youngest image that may go.
    pub min_age: Duration,
    /// Images unused for longer go in any case; none where there is no such limit.
    pub max_unused: Option<Duration>,
}

impl Policy {
    /// Whether images go for what the file system has left.
    fn looks_at_use(&self) -> bool {
        self.high_percent < 100 || self.max_unused.is_some()
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self { high_percent: 85, low_percent: 80, min_age: Duration::from_secs(120), max_unused: None }
    }
}

/// How long an image that the runtime would not remove is left alone, and not counted on.
const LEFT_ALONE: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
struct Known {
    found_at: Time,
    used_at: Option<Time>,
    kept_at: Option<Time>,
}

impl Known {
    fn new(now: Time) -> Self {
        Self { found_at: now, used_at: None, kept_at: None }
    }
}

/// What is remembered of images.
#[derive(Clone, Debug, Default)]
pub struct Images {
    known: BTreeMap<String, Known>,
}

/// Images that may go, the first ones first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Their ids.
    pub remove: Vec<String>,
    /// Those of them that go for their age alone.
    pub aged: BTreeSet<String>,
    /// Bytes that could not be freed though they should be.
    pub lacking_bytes: u64,
}

impl Images {
    /// Takes a new listing. `used` holds ids, names and digests that containers and pods refer to.
    pub fn listed(&mut self, now: Time, images: &[ImageRecord], used: &BTreeSet<&str>) {
        self.known.retain(|id, _| images.iter().any(|i| i.id == *id));
        for image in images {
            let known = self.known.entry(image.id.clone()).or_insert(Known::new(now));
            if is_used(image, used) {
                known.used_at = Some(now);
            }
        }
    }

    /// The runtime would not remove an image.
    pub fn not_removed(&mut self, now: Time, id: &str) {
        if let Some(known) = self.known.get_mut(id) {
            known.kept_at = Some(now);
        }
    }

    /// Which images go. `disk` is what is left and all, in bytes; `all` takes every image that is not used.
    #[must_use]
    pub fn select(
        &self,
        now: Time,
        images: &[ImageRecord],
        used: &BTreeSet<&str>,
        disk: (u64, u64),
        policy: &Policy,
        all: bool,
    ) -> Selection {
        let (left, size) = disk;
        let used_percent = if size == 0 { 0 } else { 100 - (u128::from(left.min(size)) * 100 / u128::from(size)) };
        let mut free_bytes = 0;
        if all {
            free_bytes = u64::MAX;
        } else if policy.looks_at_use() && used_percent >= u128::from(policy.high_percent) {
            let wanted = size / 100 * (100 - policy.low_percent.min(100));
            free_bytes = wanted.saturating_sub(left);
        }
        let mut out = Selection::default();
        let mut candidates: Vec<(&ImageRecord, Known)> = images
            .iter()
            .filter(|i| !i.pinned && !is_used(i, used) && !is_local(i))
            .filter_map(|i| Some((i, *self.known.get(&i.id)?)))
            .filter(|(_, k)| now.since(k.found_at) >= policy.min_age)
            .filter(|(_, k)| k.kept_at.is_none_or(|at| now.since(at) >= LEFT_ALONE))
            .collect();
        candidates.sort_by_key(|(i, k)| (k.used_at, k.found_at, i.id.clone()));
        for (image, known) in candidates {
            let old = policy.max_unused.is_some_and(|most| now.since(known.used_at.unwrap_or(known.found_at)) > most);
            if free_bytes > 0 || old {
                out.remove.push(image.id.clone());
                out.aged.extend((free_bytes == 0).then(|| image.id.clone()));
                free_bytes = free_bytes.saturating_sub(image.size_bytes);
            }
        }
        out.lacking_bytes = if all { 0 } else { free_bytes };
        out
    }
}

/// Whether it came from no registry. One whose name was given to another image has none left, and nobody asks for it again.
fn is_local(image: &ImageRecord) -> bool {
    !image.names.is_empty() && image.names.iter().all(|name| name.starts_with("localhost/"))
}

fn is_used(image: &ImageRecord, used: &BTreeSet<&str>) -> bool {
    used.contains(image.id.as_str())
        || used.contains(image.digest.as_str())
        || image.names.iter().any(|n| used.contains(n.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, size_bytes: u64) -> ImageRecord {
        ImageRecord { id: id.into(), names: vec![format!("r.io/{id}:1")], size_bytes, ..ImageRecord::default() }
    }

    #[test]
    fn the_longest_unused_goes_first_and_no_more_than_needed() {
        let (t0, t1) = (Time::from_unix_s(0), Time::from_unix_s(1000));
        let local = ImageRecord { names: vec!["localhost/x:1".into()], ..image("local", 500) };
        let pinned = ImageRecord { pinned: true, ..image("pinned", 500) };
        let all = [image("a", 30), image("b", 30), image("c", 30), image("used", 500), local, pinned];
        let mut images = Images::default();
        images.listed(t0, &all, &BTreeSet::from(["b"]));
        let used = BTreeSet::from(["r.io/used:1"]);
        images.listed(t1, &all, &used);
        for (now, left, everything, expected, lacking) in [
            (t1, 160, false, "", 0),
            (t1, 150, false, "a c", 0),
            (t1, 100, false, "a c b", 10),
            (t1, 900, true, "a c b", 0),
            (Time::from_unix_s(60), 0, true, "", 0),
        ] {
            let s = images.select(now, &all, &used, (left, 1000), &Policy::default(), everything);
            assert_eq!((s.remove.join(" ").as_str(), s.lacking_bytes), (expected, lacking), "{left}");
        }
        let never = Policy { high_percent: 100, ..Policy::default() };
        assert_eq!(images.select(t1, &all, &used, (0, 1000), &never, false), Selection::default(), "whatever is left");
        assert_eq!(images.select(t1, &all, &used, (0, 1000), &never, true).remove.len(), 3, "unless the node runs low");
        let aged = Policy { max_unused: Some(Duration::from_secs(9000)), ..never };
        for (left, expected) in [(0, 3), (20, 0)] {
            let s = images.select(t1, &all, &used, (left, 1000), &aged, false);
            assert_eq!(s.remove.len(), expected, "who looks after old ones looks after a full disk, {left}");
        }
        // One that stays is left alone for a while, and the next one goes in its place.
        let mut stays = images.clone();
        stays.not_removed(t1, "a");
        let mut after = |s: i64| {
            stays.listed(Time::from_unix_s(1000 + s), &all, &used);
            stays.select(Time::from_unix_s(1000 + s), &all, &used, (160, 1000), &Policy::default(), true).remove
        };
        assert_eq!((after(299).join(" "), after(300).join(" ")), ("c b".into(), "a c b".into()));
        let nameless = [ImageRecord { names: Vec::new(), ..image("nameless", 10) }];
        let mut others = Images::default();
        others.listed(t0, &nameless, &BTreeSet::new());
        for (used, expected) in [(BTreeSet::new(), "nameless"), (BTreeSet::from(["nameless"]), "")] {
            let s = others.select(t1, &nameless, &used, (900, 1000), &Policy::default(), true);
            assert_eq!(s.remove.join(" "), expected);
        }
        let policy = Policy { max_unused: Some(Duration::from_secs(900)), ..Policy::default() };
        let s = images.select(t1, &all, &used, (900, 1000), &policy, false);
        assert_eq!((s.remove.join(" ").as_str(), s.aged.len()), ("a c b", 3));
    }
}
