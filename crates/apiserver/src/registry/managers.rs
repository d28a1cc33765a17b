//! `metadata.managedFields` on the way of a write.
//!
//! Objects go through the pipeline without it, so that nothing copies it along; the writer's part is
//! noted once defaults are set and what the write may not touch is restored, before admission, whose
//! changes are nobody's.
//!
//! ```text
//!   decide ─► what it comes to
//!     ▲   └─► an object is wanted in the version of a manager ─► the webhook that converts it ─┐
//!     └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;

use carrack_schema::apply::{self, Kind, Managed, Other, Unconverted, Writer};
use carrack_schema::table::ResourceInfo;
use http::header::USER_AGENT;
use serde_json::Value;

use crate::context::Cx;
use crate::convert;
use crate::env::rfc3339_s;
use crate::kinds;
use crate::object::{Object, put_meta};
use crate::registry::options::MAX_NAME_BYTES;
use crate::registry::strategy;
use crate::status::Status;

/// The manager of writes that say nothing of who makes them.
const UNKNOWN: &str = "unknown";

/// Who owns what before a write, or because of it.
pub(crate) enum Managers {
    /// As it is stored; the write is an update.
    Stored(Option<Box<str>>),
    /// As it is after the object has been applied.
    Applied(Managed),
}

/// Takes the managers out of an object.
pub(crate) fn take(object: &mut Object) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// Puts the managers into an object.
pub(crate) fn put(object: &mut Object, managers: Option<&str>) {
    // They were written by the schema crate, as JSON.
    put_meta(object, "managedFields", managers.and_then(|text| serde_json::from_str(text).ok()));
}

/// The name given by `fieldManager`, which [`super::options`] has checked; empty if it is not given.
pub(crate) fn given_name<'a>(cx: &'a Cx<'_>) -> &'a str {
    cx.query.get("fieldManager").unwrap_or_default()
}

/// The manager of a write that is no apply: what the client says, or its user agent up to the first slash.
fn name(cx: &Cx<'_>) -> String {
    let given = given_name(cx);
    if !given.is_empty() {
        return given.to_owned();
    }
    let agent = cx.headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut name: String = agent.split('/').next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect();
    // Header values that are text are ASCII.
    name.truncate(MAX_NAME_BYTES);
    if name.is_empty() { UNKNOWN.to_owned() } else { name }
}

/// An object in another version: what it was, the `apiVersion` of the other version, and what it is there.
type Converted = (Object, String, Object);

/// Objects that are wanted in another version, by its `apiVersion`.
type Wanted = BTreeMap<String, Vec<Object>>;

/// Decides with the writer and the kind of a request. Objects whose versions a webhook converts are decided on again when it
/// has been asked for what that takes: for those of managers that speak another version than the request, and once each.
///
/// # Errors
/// The webhook's.
pub(crate) async fn with<R>(
    cx: &Cx<'_>,
    manager: &str,
    mut decide: impl FnMut(&Kind<'_>, &Writer<'_>) -> R,
) -> Result<R, Status> {
    let mut converted: Vec<Converted> = Vec::new();
    loop {
        let wanted = match decided(cx, manager, &converted, &mut decide) {
            Ok(outcome) => return Ok(outcome),
            Err(wanted) => wanted,
        };
        for (api_version, objects) in wanted {
            let version = version_of(&cx.row, &api_version)
                .ok_or_else(|| Status::internal(format!("there is no version {api_version}")))?;
            let made = cx.server.converter(&cx.row).undefaulted(objects.clone(), version).await?;
            converted.extend(objects.into_iter().zip(made).map(|(from, made)| (from, api_version.clone(), made)));
        }
    }
}

/// The place of a version in its row.
fn version_of(row: &ResourceInfo, api_version: &str) -> Option<usize> {
    row.versions.iter().position(|version| row.api_version(&version.name) == api_version)
}

/// One decision, with what has been converted for it; or what is to be converted first.
fn decided<R>(
    cx: &Cx<'_>,
    manager: &str,
    converted: &[Converted],
    decide: &mut impl FnMut(&Kind<'_>, &Writer<'_>) -> R,
) -> Result<R, Wanted> {
    let now = rfc3339_s(cx.server.env.now());
    let api_version = cx.api_version();
    let subresource = cx.request.subresource.as_deref().unwrap_or_default();
    let writer = Writer { manager, api_version: &api_version, subresource, now: &now };
    let row = &*cx.row;
    let other = |api_version: &str| match version_of(row, api_version) {
        None => Other::Unknown,
        // Versions of a custom resource have schemas of their own, whoever converts between them.
        Some(version) if row.is_custom || carrack_schema::convert::differs(&row.group, &row.kind) => {
            Other::Form(row.versions[version].schema())
        }
        Some(_) => Other::Same,
    };
    let wanted = RefCell::new(Wanted::new());
    let convert = |object: &Object, api_version: &str| {
        if row.conversion.is_none() {
            let version = api_version.rsplit('/').next().unwrap_or_default();
            return Ok(convert::converted(row, version, object.clone()));
        }
        let is_it = |(from, to, _): &&Converted| to == api_version && from == object;
        converted.iter().find(is_it).map(|(.., made)| made.clone()).ok_or_else(|| {
            wanted.borrow_mut().entry(api_version.to_owned()).or_default().push(object.clone());
            Unconverted
        })
    };
    let settle = |object: &mut Object| {
        // What is applied fits; what is stored may have been let in by another definition.
        if let Err(error) = kinds::conform(row, cx.version(), object) {
            tracing::debug!(kind = &*row.kind, name = cx.name(), %error, "a merged object does not fit its kind");
        }
    };
    let kind = Kind { schema: cx.version().schema(), other: &other, convert: &convert, settle: &settle };
    let outcome = decide(&kind, &writer);
    let wanted = wanted.take();
    if wanted.is_empty() { Ok(outcome) } else { Err(wanted) }
}

/// The managers of a new object that was not applied.
pub(crate) fn created(cx: &Cx<'_>, new: &mut Object) -> Option<String> {
    let manager = name(cx);
    // A status that the server sets is nobody's.
    let status = if strategy::takes_status_from_creator(cx) { None } else { new.remove("status") };
    let nothing = apply::nothing(cx.row.is_custom, new);
    let mut managed = Managed::default();
    let noted = decided(cx, &manager, &[], &mut |kind: &Kind<'_>, writer: &Writer<'_>| {
        apply::update(&nothing, new, kind, &mut managed, writer)
    });
    debug_assert!(matches!(noted, Ok(Ok(_))), "nobody was there before who speaks another version");
    if let Some(status) = status {
        new.insert("status".to_owned(), status);
    }
    managed.into_text()
}

/// The managers of an object after an update. `sent` are those that the client sent: it may change
/// them, and an empty list makes them forgotten until the object is next applied. So does a webhook that cannot say what the
/// object is in the version of a manager: an update does not fail for that, and upstream forgets them too (`UpdateNoErrors` of
/// `k8s.io/apimachinery/pkg/util/managedfields/internal/fieldmanager.go`).
pub(crate) async fn updated(
    cx: &Cx<'_>,
    old: &Object,
    new: &Object,
    stored: Option<&str>,
    sent: Option<Value>,
) -> Option<String> {
    let manager = name(cx);
    let sent = sent.filter(|sent| cx.request.subresource.is_none() && stored != Some(&*sent.to_string()));
    let mut managed = match sent {
        Some(sent) if is_reset(&sent) => Managed::default(),
        Some(sent) => Managed::parse(sent)
            .filter(|managed| !managed.is_empty())
            .unwrap_or_else(|| stored.map(Managed::stored).unwrap_or_default()),
        None => stored.map(Managed::stored).unwrap_or_default(),
    };
    if managed.is_empty() {
        return None;
    }
    match with(cx, &manager, |kind, writer| apply::update(old, new, kind, &mut managed, writer)).await {
        Ok(_) => managed.into_text(),
        Err(status) => {
            tracing::warn!(kind = &*cx.row.kind, name = cx.name(), %status, "it is forgotten who owns which field");
            None
        }
    }
}

fn is_reset(sent: &Value) -> bool {
    match sent.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    }
}
