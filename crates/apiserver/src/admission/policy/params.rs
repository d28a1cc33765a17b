//! The objects that a binding hands to its policy.

use carrack_store::Range;
use carrack_types::selector;
use serde_json::Value;

use super::super::extend::Asked;
use super::{Binding, Policy, text};
use crate::keys;
use crate::stored;

/// Most objects that one binding may choose; each is an evaluation.
const MAX_PARAMS: usize = 100;

/// The parameters of each evaluation: null once for a policy without; none of them when there are none and
/// that is allowed.
pub(super) async fn find(
    asked: &Asked<'_>,
    policy: &Policy,
    binding: &Binding,
    namespace: &str,
) -> Result<Vec<Value>, String> {
    let Some((api_version, kind)) = &policy.param_kind else { return Ok(vec![Value::Null]) };
    let reference = &binding.param_ref;
    if !reference.is_object() {
        return Ok(vec![Value::Null]);
    }
    let server = asked.cx.server;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let catalog = server.catalog().await.map_err(|status| status.message)?;
    let row = catalog.find_kind(group, kind);
    let Some((row, version)) = row.and_then(|row| Some((row, row.versions.iter().position(|v| v.name == version)?)))
    else {
        return Err(format!("failed to find resource referenced by paramKind: '{api_version}, Kind={kind}'"));
    };
    let given = text(&reference["namespace"]);
    let place = match (row.namespaced, given.as_str()) {
        (false, "") => None,
        (false, _) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned()),
        (true, "") if namespace.is_empty() => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        (true, "") => Some(namespace),
        (true, given) => Some(given),
    };
    let prefix = keys::prefix(row, place);
    let mut entries = Vec::new();
    if let Some(name) = reference["name"].as_str().filter(|name| !name.is_empty()) {
        let (entry, _) = server.store.get(&(prefix + name)).await.map_err(|error| error.to_string())?;
        entries.extend(entry);
    } else {
        let wanted = serde_json::from_value(reference["selector"].clone())
            .map_err(|error| format!("paramRef.selector: {error}"))?;
        let page = server.store.range(Range { prefix, after: None, limit: 0, at: None }).await;
        let page = page.map_err(|error| error.to_string())?;
        entries.extend(page.entries.into_iter().filter(|entry| {
            let memo = stored::memo(entry);
            selector::chooses(&wanted, |label| memo.labels.get(label))
        }));
        if entries.len() > MAX_PARAMS {
            return Err(format!("paramRef.selector chooses more than {MAX_PARAMS} objects"));
        }
    }
    if entries.is_empty() && reference["parameterNotFoundAction"] != "Allow" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    let mut params = Vec::new();
    for entry in entries {
        let object = crate::convert::between(server, row, (row, version), stored::parse(&entry)).await;
        params.push(Value::Object(object.map_err(|status| status.message)?));
    }
    Ok(params)
}
