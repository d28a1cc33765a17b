//! How large volumes of the nodes' own driver are, beside what was asked for.
//!
//! ```text
//!   claim asks ─▶ CreateVolume ─▶ the driver says how large it is ─▶ large enough: a PersistentVolume
//!                                                              └─▶ smaller: deleted, and asked for again
//! ```
//!
//! A claim may come to ask for more meanwhile; so a volume is held against the least that its claim has ever asked for.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::growth::bytes;
use crate::invariants::Breach;
use crate::observer::{Change, text, uid};

/// The invariant.
pub(crate) const NAME: &str = "volumes-are-as-large-as-asked";

/// The least that each claim has asked for, in bytes, by UID.
#[derive(Debug, Default)]
pub(crate) struct Sizes(BTreeMap<String, u64>);

impl Sizes {
    /// Claims have asked, and volumes have come.
    pub(crate) fn changed(&mut self, changes: &[Change], breaches: &mut Vec<Breach>) {
        for change in changes {
            match (change.resource, &change.before, &change.after) {
                ("claim", _, Some(claim)) => {
                    let asks = bytes(claim, "/spec/resources/requests/storage");
                    let least = self.0.entry(uid(claim).to_owned()).or_insert(asks);
                    *least = asks.min(*least);
                }
                ("claim", Some(claim), None) => _ = self.0.remove(uid(claim)),
                ("volume", None, Some(volume)) => self.made(volume, breaches),
                _ => {}
            }
        }
    }

    /// A volume has come.
    fn made(&self, volume: &Value, breaches: &mut Vec<Breach>) {
        if text(volume, "/spec/csi/driver") != carrack_storage::DRIVER {
            return;
        }
        let (has, of) = (bytes(volume, "/spec/capacity/storage"), text(volume, "/spec/claimRef/uid"));
        if let Some(asked) = self.0.get(of).filter(|asked| has < **asked) {
            let what = format!("{} has {has} bytes, of {asked} that were asked for", text(volume, "/metadata/name"));
            breaches.push(Breach::new(NAME, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_is_held_against_its_claim() {
        let come = |resource: &'static str, after: Value| Change { resource, before: None, after: Some(after) };
        let claim = |size: &str| {
            let spec = json!({"resources": {"requests": {"storage": size}}});
            come("claim", json!({"metadata": {"name": "c", "uid": "u"}, "spec": spec}))
        };
        let volume = |driver: &str, of: &str, size: &str| {
            let spec = json!({"csi": {"driver": driver}, "capacity": {"storage": size}, "claimRef": {"uid": of}});
            come("volume", json!({"metadata": {"name": "v"}, "spec": spec}))
        };
        let own = carrack_storage::DRIVER;
        for (changes, is_bad) in [
            (vec![claim("1Gi"), volume(own, "u", "1Gi")], false),
            (vec![claim("1Gi"), volume(own, "u", "2Gi")], false),
            (vec![claim("1Gi"), volume(own, "u", "512Mi")], true),
            // It asks for more since the volume was asked for.
            (vec![claim("1Gi"), claim("2Gi"), volume(own, "u", "1Gi")], false),
            (vec![claim("1Gi"), volume("other", "u", "512Mi")], false),
            (vec![claim("1Gi"), volume(own, "other", "512Mi")], false),
        ] {
            let mut breaches = Vec::new();
            Sizes::default().changed(&changes, &mut breaches);
            assert_eq!(!breaches.is_empty(), is_bad, "{changes:?}");
        }
    }
}
