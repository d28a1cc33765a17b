//! The operations of a JSON patch (RFC 6902), within bounds: whoever sends a patch decides what it costs.

use carrack_schema::decode::Limits;
use json_patch::{Patch, PatchOperation};
use serde_json::Value;

/// A JSON patch has no more operations than this.
const MAX_OPERATIONS: usize = 10_000;

/// Why a patch is not carried out.
pub(crate) enum Fault {
    /// It has too many operations.
    TooMany { operations: usize, limit: usize },
    /// It would make too many bytes by copying.
    TooLarge { limit: usize },
    /// An operation does not fit the value.
    Unfit { path: String, why: String },
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::TooMany { operations, limit } => {
                write!(f, "The allowed maximum operations in a JSON patch is {limit}, got {operations}")
            }
            Fault::TooLarge { limit } => write!(f, "the patch copies more than {limit} bytes"),
            Fault::Unfit { path, why } => write!(f, "the patch cannot be applied at {path}: {why}"),
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
    let mut copied_bytes = 0;
    for operation in &patch.0 {
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
        json_patch::patch(value, std::slice::from_ref(operation))
            .map_err(|error| Fault::Unfit { path: operation.path().to_string(), why: error.kind.to_string() })?;
    }
    Ok(())
}

/// Whether an operation tests that something is null which is not there, in an object that is. Upstream takes that for true
/// (`gopkg.in/evanphx/json-patch.v4`, `Patch.test`), and kube-rs asks so whether an object has finalizers.
fn finds_nothing(operation: &PatchOperation, value: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    let path = test.path.as_str();
    let parent = path.rsplit_once('/').and_then(|(parent, _)| value.pointer(parent));
    test.value.is_null() && value.pointer(path).is_none() && parent.is_some_and(Value::is_object)
}
