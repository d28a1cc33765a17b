//! The operations of a JSON patch (RFC 6902), within bounds: whoever sends a patch decides what it costs.

use carrack_schema::decode::Limits;
use json_patch::{Patch, PatchErrorKind, PatchOperation};
use serde_json::Value;

/// A JSON patch has no more operations than this.
const MAX_OPERATIONS: usize = 10_000;
/// All its operations together move no more items of lists than this: one at the front of a long list moves all behind it.
const MAX_MOVED: usize = 20_000_000;

/// Why a patch is not carried out.
pub(crate) enum Fault {
    /// It has too many operations.
    TooMany { operations: usize, limit: usize },
    /// It would make too many bytes by copying.
    TooLarge { limit: usize },
    /// It would move too many items.
    TooMuch { limit: usize },
    /// An operation does not fit the value. `untrue` if it is a test that found something else: that may be what it asks.
    Unfit { path: String, why: String, untrue: bool },
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::TooMany { operations, limit } => {
                write!(f, "The allowed maximum operations in a JSON patch is {limit}, got {operations}")
            }
            Fault::TooLarge { limit } => write!(f, "the patch copies more than {limit} bytes"),
            Fault::TooMuch { limit } => write!(f, "the patch moves more than {limit} items of lists"),
            Fault::Unfit { path, why, .. } => write!(f, "the patch cannot be applied at {path}: {why}"),
        }
    }
}

/// What happens to operations that remove what is not there.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Missing {
    /// They do not fit.
    Fault,
    /// They are done already. Webhooks remove what need not be there, and upstream lets them.
    Done,
}

/// Applies a patch. After a fault the value is of no use.
pub(crate) fn apply(value: &mut Value, patch: &Patch, missing: Missing) -> Result<(), Fault> {
    if patch.0.len() > MAX_OPERATIONS {
        return Err(Fault::TooMany { operations: patch.0.len(), limit: MAX_OPERATIONS });
    }
    let limit = Limits::default().max_bytes;
    let (mut copied_bytes, mut moved) = (0, 0);
    for operation in &patch.0 {
        let counted = from_the_end(operation, value);
        let operation = counted.as_ref().unwrap_or(operation);
        moved += moves(operation, value);
        if moved > MAX_MOVED {
            return Err(Fault::TooMuch { limit: MAX_MOVED });
        }
        match operation {
            PatchOperation::Copy(copy) => {
                // A few copies of copies would fill the memory.
                copied_bytes += value.pointer(copy.from.as_str()).map_or(0, |from| from.to_string().len());
                if copied_bytes > limit {
                    return Err(Fault::TooLarge { limit });
                }
            }
            PatchOperation::Remove(remove)
                if missing == Missing::Done && value.pointer(remove.path.as_str()).is_none() =>
            {
                continue;
            }
            _ if finds_nothing(operation, value) => continue,
            _ => {}
        }
        json_patch::patch(value, std::slice::from_ref(operation)).map_err(|error| Fault::Unfit {
            path: operation.path().to_string(),
            why: error.kind.to_string(),
            untrue: is_untrue(operation, &error.kind, value),
        })?;
    }
    Ok(())
}

/// The operation with places that are counted from the end of a list put in their usual form, if it has any: `-1` is the last
/// item or, where something is added, the place behind it (`gopkg.in/evanphx/json-patch.v4`, `SupportNegativeIndices`).
fn from_the_end(operation: &PatchOperation, value: &Value) -> Option<PatchOperation> {
    let from = match operation {
        PatchOperation::Move(moving) => moving.from.as_str(),
        PatchOperation::Copy(copy) => copy.from.as_str(),
        _ => "",
    };
    let path = operation.path().as_str();
    let is_counted = |path: &str| path.split('/').any(|step| backwards(step).is_some());
    if !is_counted(from) && !is_counted(path) {
        return None;
    }
    let parent = |path: &str| path.rsplit_once('/').map(|(parent, _)| parent.to_owned());
    let adds = match operation {
        PatchOperation::Add(_) | PatchOperation::Copy(_) => true,
        // Within a list there are as many as before.
        PatchOperation::Move(_) => parent(from) != parent(path),
        PatchOperation::Remove(_) | PatchOperation::Replace(_) | PatchOperation::Test(_) => false,
    };
    let mut written = serde_json::to_value(operation).ok()?;
    for (field, text, adds) in [("from", from, false), ("path", path, adds)] {
        if is_counted(text) {
            written[field] = forwards(text, value, adds).into();
        }
    }
    serde_json::from_value(written).ok()
}

/// How far from the end a step is.
fn backwards(step: &str) -> Option<usize> {
    step.strip_prefix('-').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

fn forwards(path: &str, value: &Value, adds: bool) -> String {
    let steps: Vec<&str> = path.split('/').skip(1).collect();
    let mut place = String::new();
    for (index, step) in steps.iter().enumerate() {
        let places = value.pointer(&place).and_then(Value::as_array).map(|list| {
            // One more than there are items, where there will be one more.
            list.len() + usize::from(adds && index + 1 == steps.len())
        });
        let at = places.zip(backwards(step)).and_then(|(places, back)| places.checked_sub(back));
        place.push('/');
        match at {
            Some(at) => place.push_str(&at.to_string()),
            None => place.push_str(step),
        }
    }
    place
}

/// How many items an operation may move: those of the lists that it takes something out of or puts something into.
fn moves(operation: &PatchOperation, value: &Value) -> usize {
    let list = |path: &str| parent(path, value).and_then(Value::as_array).map_or(0, Vec::len);
    match operation {
        PatchOperation::Add(add) => list(add.path.as_str()),
        PatchOperation::Remove(remove) => list(remove.path.as_str()),
        PatchOperation::Move(moving) => list(moving.from.as_str()) + list(moving.path.as_str()),
        PatchOperation::Copy(copy) => list(copy.path.as_str()),
        PatchOperation::Replace(_) | PatchOperation::Test(_) => 0,
    }
}

/// Whether it was a test that failed, by what is there or by a field that an object does not have. What no value could make true is
/// the patch's own fault: a test of an item that a list does not have, or below what is not there
/// (`gopkg.in/evanphx/json-patch.v4`, `Patch.test`).
fn is_untrue(operation: &PatchOperation, kind: &PatchErrorKind, value: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    match kind {
        PatchErrorKind::TestFailed => true,
        PatchErrorKind::InvalidPointer => parent(test.path.as_str(), value).is_some_and(Value::is_object),
        _ => false,
    }
}

/// What the last step of a path is taken in.
fn parent<'v>(path: &str, value: &'v Value) -> Option<&'v Value> {
    path.rsplit_once('/').and_then(|(parent, _)| value.pointer(parent))
}

/// Whether an operation tests that something is null which is not there, in an object that is. Upstream takes that for true
/// (`gopkg.in/evanphx/json-patch.v4`, `Patch.test`), and kube-rs asks so whether an object has finalizers.
fn finds_nothing(operation: &PatchOperation, value: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    let path = test.path.as_str();
    test.value.is_null() && value.pointer(path).is_none() && parent(path, value).is_some_and(Value::is_object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_are_counted_from_the_end_too() {
        for (operation, want) in [
            (json!({"op": "add", "path": "/list/-1", "value": 9}), Some(json!([1, 2, 3, 9]))),
            (json!({"op": "add", "path": "/list/-2", "value": 9}), Some(json!([1, 2, 9, 3]))),
            (json!({"op": "remove", "path": "/list/-1"}), Some(json!([1, 2]))),
            (json!({"op": "replace", "path": "/list/-3", "value": 9}), Some(json!([9, 2, 3]))),
            (json!({"op": "move", "from": "/list/-1", "path": "/list/0"}), Some(json!([3, 1, 2]))),
            (json!({"op": "move", "from": "/list/0", "path": "/list/-1"}), Some(json!([2, 3, 1]))),
            (json!({"op": "copy", "from": "/map/-1", "path": "/list/-"}), Some(json!([1, 2, 3, "x"]))),
            (json!({"op": "remove", "path": "/list/-4"}), None),
        ] {
            let mut value = json!({"list": [1, 2, 3], "map": {"-1": "x"}});
            let patch: Patch = serde_json::from_value(vec![operation.clone()].into()).expect("a patch");
            let outcome = apply(&mut value, &patch, Missing::Fault);
            assert_eq!(outcome.is_ok().then(|| value["list"].clone()), want, "{operation}");
        }
    }

    #[test]
    fn tests_that_fail_are_told_from_those_that_cannot_be_made() {
        for (path, want) in [
            ("/map/a", true),
            ("/map/b", true),
            ("/list/0", true),
            ("/list/7", false),
            ("/list/-", false),
            ("/no/a", false),
        ] {
            let mut value = json!({"list": [1], "map": {"a": 1}});
            let patch = json!([{"op": "test", "path": path, "value": 2}]);
            let patch: Patch = serde_json::from_value(patch).expect("a patch");
            let found = match apply(&mut value, &patch, Missing::Fault) {
                Err(Fault::Unfit { untrue, .. }) => Some(untrue),
                _ => None,
            };
            assert_eq!(found, Some(want), "{path}");
        }
    }

    /// A short patch of a long list is not a long time of work.
    #[test]
    fn what_moves_much_is_refused() {
        for (length, operation, fits) in [
            (1_000, json!({"op": "add", "path": "/list/0", "value": 1}), true),
            (200_000, json!({"op": "add", "path": "/list/0", "value": 1}), false),
            (200_000, json!({"op": "remove", "path": "/list/0"}), false),
            (200_000, json!({"op": "move", "from": "/list/0", "path": "/list/5"}), false),
            (200_000, json!({"op": "copy", "from": "/one", "path": "/list/0"}), false),
            (200_000, json!({"op": "replace", "path": "/list/0", "value": 1}), true),
        ] {
            let mut value = json!({"list": vec![0; length], "one": 1});
            let patch: Patch = serde_json::from_value(vec![operation.clone(); 1_000].into()).expect("a patch");
            let outcome = apply(&mut value, &patch, Missing::Fault);
            assert_eq!(outcome.is_ok(), fits, "{length} {operation}");
        }
    }
}
