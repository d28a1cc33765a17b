//! What of a listing could be read, and of which pods something could not.

use std::collections::BTreeMap;

use crate::effects::OpError;
use crate::runtime::{PodRef, Uid};

/// Keeps what was read of a listing. Of what was not, the first reason is kept for the pod that it is of: what is no pod's is left
/// out either way.
pub(super) fn sort<T>(
    readings: impl IntoIterator<Item = (Option<PodRef>, Result<Option<T>, OpError>)>,
    unread: &mut BTreeMap<Uid, String>,
) -> Vec<T> {
    let mut read = Vec::new();
    for (pod, reading) in readings {
        match reading {
            Ok(record) => read.extend(record),
            Err(error) => {
                if let Some(pod) = pod {
                    unread.entry(pod.uid).or_insert_with(|| error.to_string());
                }
            }
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_of_its_pod_alone() {
        let of = |uid: &str| Some(PodRef { namespace: "n".into(), name: uid.into(), uid: uid.into() });
        let fails = |why: &str| Err(OpError::Failed(why.into()));
        let readings = [
            (of("a"), Ok(Some(1))),
            (of("b"), fails("first")),
            (of("b"), Ok(Some(2))),
            (of("b"), fails("second")),
            // Removed meanwhile, and nobody's.
            (of("c"), Ok(None)),
            (None, fails("nobody's")),
        ];
        let mut unread = BTreeMap::new();
        assert_eq!(sort(readings, &mut unread), [1, 2]);
        assert_eq!(unread, BTreeMap::from([("b".into(), OpError::Failed("first".into()).to_string())]));
    }
}
