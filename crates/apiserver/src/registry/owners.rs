//! Owners that an object names more than once are named once, and who named them so is told.
//!
//! Upstream: `k8s.io/apiserver/pkg/endpoints/handlers/rest.go`, `dedupOwnerReferences`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::context::Cx;
use crate::object::Object;

/// What the client is told to do, as upstream says it.
const ADVICE: &str = "API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed:";

/// Leaves each owner of an object that is written once. It is the client that named them more often, or, after their
/// turn, webhooks and policies.
pub(crate) fn dedupe(cx: &Cx<'_>, object: &mut Object, after_admission: bool) {
    let repeated = drop_repeated(object);
    if repeated.is_empty() {
        return;
    }
    let when = if after_admission { " after mutating admission happens" } else { "" };
    let uids = repeated.join(", ");
    cx.note(format!(".metadata.ownerReferences contains duplicate entries{when}; {ADVICE} {uids}"));
}

/// Drops what is there already; returns the owners' UIDs.
fn drop_repeated(object: &mut Object) -> Vec<String> {
    let owners = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("ownerReferences"));
    let Some(owners) = owners.and_then(Value::as_array_mut).filter(|owners| owners.len() > 1) else {
        return Vec::new();
    };
    let (mut seen, mut repeated) = (BTreeSet::new(), Vec::new());
    owners.retain(|owner| {
        // Fields are in one order, so equals are written alike.
        let is_new = seen.insert(owner.to_string());
        if !is_new {
            repeated.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        }
        is_new
    });
    repeated
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn owners_are_named_once() {
        let owner = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid});
        let (a, b, other) = (owner("a", "1"), owner("b", "2"), owner("other", "1"));
        for (given, left, expected) in [
            (json!(null), json!(null), vec![]),
            (json!([]), json!([]), vec![]),
            (json!([a]), json!([a]), vec![]),
            (json!([a, b]), json!([a, b]), vec![]),
            (json!([a, b, a]), json!([a, b]), vec!["1"]),
            (json!([a, a, b, b, a]), json!([a, b]), vec!["1", "2", "1"]),
            // Validation has its say about these.
            (json!([a, other]), json!([a, other]), vec![]),
        ] {
            let mut object = Object::from_iter([("metadata".to_owned(), json!({"ownerReferences": given}))]);
            assert_eq!(drop_repeated(&mut object), expected);
            assert_eq!(object["metadata"]["ownerReferences"], left);
        }
    }
}
