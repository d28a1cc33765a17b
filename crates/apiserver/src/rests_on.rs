//! Writes that rest on other objects than their own: a child on its owner, a step of a rollout on the others.
//!
//! The premises come in a header ([`RESTS_ON`]); they are looked at where admission is decided, and the transaction of the
//! write pins what was looked at. So a write that arrives late, twice or from somebody who was paused is made only while
//! what it rests on is so. A premise tells whether an object is there and as it was read: its writer must be allowed to
//! read it.

use std::sync::Arc;

use carrack_auth::Attributes;
use carrack_engine::{Premise, RESTS_ON, Term};
use carrack_store::Check;
use k8s_openapi::api::coordination::v1::Lease;
use serde::Deserialize;

use crate::context::Cx;
use crate::keys;
use crate::status::Status;

/// How many premises a write may have.
const MOST: usize = 64;

#[derive(Deserialize)]
struct Partial {
    metadata: PartialMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PartialMetadata {
    uid: String,
    generation: Option<i64>,
}

/// What must be so in the transaction of the request's write.
///
/// # Errors
/// 400 for a header that cannot be read, 403 for an object that the caller may not read, 409 for a premise that does not
/// hold.
pub(crate) async fn checks(cx: &Cx<'_>) -> Result<Vec<Check>, Status> {
    let mut checks = Vec::new();
    for header in cx.headers.get_all(RESTS_ON) {
        let premises: Vec<Premise> = serde_json::from_slice(header.as_bytes())
            .map_err(|error| Status::bad_request(format!("the header {RESTS_ON} cannot be read: {error}")))?;
        if checks.len() + premises.len() > MOST {
            return Err(Status::bad_request(format!("the header {RESTS_ON} may name {MOST} objects at most")));
        }
        for premise in premises {
            checks.push(check(cx, &premise).await?);
        }
    }
    Ok(checks)
}

async fn check(cx: &Cx<'_>, premise: &Premise) -> Result<Check, Status> {
    let Premise { group, resource, namespace, name, .. } = premise;
    may_read(cx, premise).await?;
    let catalog = cx.server.catalog().await?;
    let row = catalog
        .find(group, resource)
        .filter(|row| !row.is_virtual && row.namespaced != namespace.is_empty())
        .ok_or_else(|| {
            Status::bad_request(format!("the header {RESTS_ON} names {resource:?}, which is no such kind"))
        })?;
    let key: Arc<str> = keys::key(row, Some(namespace), name).into();
    let broken = |how: &str| Status::conflict(group, resource, name, how);
    let Some(entry) = cx.server.store.get(&key).await?.0 else {
        return match premise.uid {
            None => Ok(Check::Absent(key)),
            Some(_) => Err(broken("the request rests on it, and it is not there")),
        };
    };
    let value = entry.value();
    let metadata = serde_json::from_slice::<Partial>(&value).map(|partial| partial.metadata).unwrap_or_default();
    // What is stored as something else is no Lease, and is held in no term.
    let term = premise.term.as_ref().and_then(|_| Term::of(&serde_json::from_slice::<Lease>(&value).ok()?));
    if !premise.holds(&metadata.uid, &entry.mod_revision.to_string(), metadata.generation, term.as_ref()) {
        return Err(broken("the request rests on it, and it is not as it was read"));
    }
    Ok(Check::Unchanged(key, entry.mod_revision))
}

async fn may_read(cx: &Cx<'_>, premise: &Premise) -> Result<(), Status> {
    let mut attributes = Attributes::resource("get", &premise.group, &premise.resource);
    attributes.namespace = &premise.namespace;
    attributes.name = &premise.name;
    let list = Attributes { verb: "list", ..attributes };
    let allowed = cx
        .server
        .with_authorizer(|authorizer| {
            authorizer.authorize(cx.caller, &attributes).allowed() || authorizer.authorize(cx.caller, &list).allowed()
        })
        .await?;
    if allowed {
        return Ok(());
    }
    let why = format!("User {:?} cannot rest a write on what it may not read", cx.caller.user);
    Err(Status::forbidden(&premise.group, &premise.resource, &premise.name, &why))
}
