//! Sets of indexes, in the text form of statuses and policies: `1,3-5,7`.

use std::collections::BTreeSet;

use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

/// Annotation and label with a pod's index.
pub(crate) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The most indexes that a Job may have.
const MOST: i32 = 100_000;

/// The index of a pod.
pub(crate) fn of_pod(pod: &Pod) -> Option<i32> {
    let annotation = pod.metadata.annotations.as_ref().and_then(|a| a.get(INDEX)).map(String::as_str);
    annotation.or_else(|| pod.label(INDEX))?.parse().ok().filter(|i| *i >= 0)
}

/// Reads a set. What cannot be read, or lies beyond `below`, is left out.
pub(crate) fn parse(text: &str, below: i32) -> BTreeSet<i32> {
    let below = below.clamp(0, MOST);
    let mut set = BTreeSet::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) else { continue };
        set.extend(first.max(0)..=last.min(below - 1));
    }
    set
}

/// Writes a set.
pub(crate) fn write(set: &BTreeSet<i32>) -> String {
    let mut parts: Vec<(i32, i32)> = Vec::new();
    for index in set {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => parts.push((*index, *index)),
        }
    }
    let text = |(first, last): (i32, i32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    parts.into_iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_a_short_form() {
        for (numbers, text) in
            [(vec![], ""), (vec![3], "3"), (vec![1, 2], "1,2"), (vec![0, 1, 2, 5, 7, 8, 9], "0-2,5,7-9")]
        {
            let set: BTreeSet<i32> = numbers.into_iter().collect();
            assert_eq!(write(&set), text);
            assert_eq!(parse(text, 10), set);
        }
        assert_eq!(parse("1-4,x,-3,8-2000000000", 10), [1, 2, 3, 4, 8, 9].into());
        assert_eq!(parse("0-5", 0), BTreeSet::new());
    }
}
