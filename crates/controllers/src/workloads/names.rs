//! What children are called, and the hashes in their names.

use std::collections::BTreeSet;

use carrack_engine::{View, derived_suffix};
use carrack_types::resource::Kind;
use serde::Serialize;

/// Characters of hashes in names: apimachinery's alphabet for names.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// How long a generated name may be before its suffix (apiserver, `names.SimpleNameGenerator`).
pub(crate) const BASE_MAX: usize = 58;
const SUFFIX: usize = 5;

/// Names for children of one purpose, of the form `<base>-xxxxx`, that no object of this kind has: a function of the owner's
/// UID and the purpose, in an order that is always the same. A request that is delivered twice, or later than it should be,
/// so meets the child that it made. A name is used again only when its object is gone.
pub(crate) fn free<'a, C: Kind>(
    view: &'a View<'_>,
    (namespace, base): (&'a str, &'a str),
    uid: &'a str,
    purpose: &'a str,
) -> impl Iterator<Item = String> + 'a {
    let base: String = base.chars().take(BASE_MAX - 1).collect();
    let mut given = BTreeSet::new();
    (0_u64..)
        .map(move |n| format!("{base}-{}", derived_suffix(&[uid, purpose, &n.to_string()], SUFFIX)))
        .filter(move |name| !view.cache::<C>().has(namespace, name) && given.insert(name.clone()))
}

/// FNV-1a of 32 bits, which upstream's template hashes are.
fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// A number in the alphabet of names (apimachinery, `SafeEncodeString` of its decimal digits).
fn encode(number: u32) -> String {
    number.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % 27])).collect()
}

/// The hash of a template in names and in the labels `pod-template-hash` and `controller-revision-hash`: 32 bits, encoded as
/// upstream does. What is hashed is the template's JSON with its keys in order, and the count of collisions, where there were
/// any. Nobody compares such a hash with one made elsewhere: an existing child is found by its template.
pub(crate) fn hash(template: &impl Serialize, collisions: Option<i32>) -> String {
    // Our own types have string keys and no failing serializers.
    let mut bytes = serde_json::to_value(template).map(|v| v.to_string().into_bytes()).unwrap_or_default();
    if let Some(count) = collisions {
        bytes.extend(count.to_le_bytes());
    }
    encode(fnv1a_32(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use carrack_engine::testing::Caches;
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn names_are_the_same_each_time_and_not_taken() {
        let names = |caches: &Caches, purpose: &str| -> Vec<String> {
            free::<Pod>(&caches.view(), ("ns", "web-1"), "uid", purpose).take(3).collect()
        };
        let none = Caches::new().with::<Pod>([]);
        let first = names(&none, "a");
        assert_eq!(first, names(&none, "a"));
        assert_ne!(first, names(&none, "b"));
        assert!(first.iter().all(|n| n.starts_with("web-1-") && n.len() == 11), "{first:?}");
        let metadata =
            ObjectMeta { namespace: Some("ns".into()), name: Some(first[1].clone()), ..ObjectMeta::default() };
        let taken = names(&Caches::new().with([Pod { metadata, ..Pod::default() }]), "a");
        assert_eq!((&taken[0], &taken[1]), (&first[0], &first[2]));
    }

    #[test]
    fn hashes_are_upstreams_numbers() {
        // FNV-1a's published values for these texts.
        assert_eq!(fnv1a_32(b""), 0x811c_9dc5);
        assert_eq!(fnv1a_32(b"foobar"), 0xbf9c_f968);
        // The digit 0 is byte 48, and 48 % 27 is 21: the place of the letter 4.
        assert_eq!(encode(0), "4");
        assert_eq!(encode(123), "567");
        assert_ne!(hash(&"a", None), hash(&"a", Some(1)));
        assert_eq!(hash(&"a", Some(1)), hash(&"a", Some(1)));
    }
}
