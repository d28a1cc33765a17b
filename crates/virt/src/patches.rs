//! JSON patches in specs: lists of texts, each one operation (RFC 6902), as restores and clones have them.

use json_patch::PatchOperation;
use serde_json::Value;

/// Most bytes that the `copy` operations of a list may add: a few copies of copies would fill the memory.
const MAX_COPIED: usize = 1 << 20;

/// Reads one operation.
///
/// # Errors
/// Why the text is none.
pub fn parse(text: &str) -> Result<PatchOperation, String> {
    serde_json::from_str(text).map_err(|error| format!("patch format is not valid - {error}: {text}"))
}

/// Whether an operation stays within what a machine's owner may change of it: its spec, labels and annotations.
#[must_use]
pub fn stays_within(operation: &PatchOperation) -> bool {
    let within = |path: &str| {
        ["/spec/", "/metadata/labels/", "/metadata/annotations/"].iter().any(|prefix| path.starts_with(prefix))
    };
    let from = match operation {
        PatchOperation::Move(operation) => within(operation.from.as_str()),
        PatchOperation::Copy(operation) => within(operation.from.as_str()),
        _ => true,
    };
    from && within(operation.path().as_str())
}

/// Applies operations in their order.
///
/// # Errors
/// Which of them cannot be applied, and why.
pub fn apply(object: &mut Value, patches: &[String]) -> Result<(), String> {
    let mut copied = 0;
    for text in patches {
        let operation = parse(text)?;
        if let PatchOperation::Copy(copy) = &operation {
            copied += object.pointer(copy.from.as_str()).map_or(0, |from| from.to_string().len());
            if copied > MAX_COPIED {
                return Err(format!("the patches copy more than {MAX_COPIED} bytes"));
            }
        }
        json_patch::patch(object, std::slice::from_ref(&operation))
            .map_err(|error| format!("failed to apply patch {text}: {}", error.kind))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{apply, parse, stays_within};

    #[test]
    fn only_a_machines_own_fields_are_within() {
        let check = |text: &str, within: bool| {
            assert_eq!(stays_within(&parse(text).expect("a patch")), within, "{text}");
        };
        check(r#"{"op": "replace", "path": "/spec/runStrategy", "value": "Always"}"#, true);
        check(r#"{"op": "add", "path": "/metadata/labels/a", "value": "x"}"#, true);
        check(r#"{"op": "remove", "path": "/metadata/annotations/a"}"#, true);
        check(r#"{"op": "replace", "path": "/metadata/name", "value": "x"}"#, false);
        check(r#"{"op": "replace", "path": "/status/ready", "value": true}"#, false);
        check(r#"{"op": "copy", "from": "/metadata/uid", "path": "/spec/x"}"#, false);
        check(r#"{"op": "move", "from": "/spec/a", "path": "/spec/b"}"#, true);
        for text in ["", "{}", "[]", r#"{"op": "replace", "path": "/spec/x"}"#, r#"{"op": "grow", "path": "/spec/x"}"#]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn patches_are_applied_in_order_and_do_not_grow_without_bounds() {
        let check = |patches: &[&str], expected: Result<serde_json::Value, &str>| {
            let mut object = json!({"spec": {"a": "12345678"}});
            let patches: Vec<String> = patches.iter().map(|text| (*text).to_owned()).collect();
            match (apply(&mut object, &patches), expected) {
                (Ok(()), Ok(expected)) => assert_eq!(object, expected),
                (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
                (result, expected) => panic!("{result:?} is not {expected:?}"),
            }
        };
        check(
            &[
                r#"{"op": "add", "path": "/spec/mac", "value": "02:00:00:00:00:01"}"#,
                r#"{"op": "replace", "path": "/spec/mac", "value": "02:00:00:00:00:02"}"#,
            ],
            Ok(json!({"spec": {"a": "12345678", "mac": "02:00:00:00:00:02"}})),
        );
        check(&[r#"{"op": "replace", "path": "/spec/none", "value": 1}"#], Err("failed to apply patch"));
        check(&["x"], Err("patch format is not valid"));
        let double: Vec<String> =
            (0..40).map(|n| format!(r#"{{"op": "copy", "from": "/spec", "path": "/spec/c{n}"}}"#)).collect();
        let double: Vec<&str> = double.iter().map(String::as_str).collect();
        check(&double, Err("copy more than"));
    }
}
