//! Server-side apply: a client says which fields it wants and how, and owns them from then on.
//!
//! An object that is not there is created. The rest is an update in which the fields of others are
//! safe; see [`carrack_schema::apply`] for how.

use std::sync::Arc;

use carrack_schema::apply::{self, ApplyError, Managed};
use carrack_schema::decode::{self, Format, Limits};
use serde_json::Value;

use crate::body::Response;
use crate::context::{Cx, FieldValidation};
use crate::convert;
use crate::kinds;
use crate::object::{Object, Whole, meta, meta_str, str_at};
use crate::registry::create::{self, Made};
use crate::registry::decode as bodies;
use crate::registry::managers::{self, Managers};
use crate::registry::meta as metadata;
use crate::registry::read::readable;
use crate::registry::strategy::{self, Half};
use crate::registry::update::{self, Changed};
use crate::status::{Cause, Details, Status};

/// The media type of objects that are applied.
pub(crate) const MEDIA_TYPE: &str = "application/apply-patch+yaml";

/// What applying came to.
pub(crate) enum Outcome {
    Created(Made),
    Changed(Changed),
}

/// Applies the object in the body.
pub(crate) async fn apply(cx: &mut Cx<'_>, half: Half, body: &[u8]) -> Result<Response, Status> {
    let presenter = cx.presenter()?;
    let config = read(cx, body)?;
    settle(cx, &config)?;
    Ok(match run(cx, &half, config).await? {
        Outcome::Created(made) => create::response(cx, made, &presenter).await?,
        Outcome::Changed(changed) => changed.response(&presenter),
    })
}

/// Who applies, and whether by force.
fn options(cx: &Cx<'_>) -> (String, bool) {
    (managers::given_name(cx).to_owned(), cx.query.flag("force"))
}

/// Reads a body, which is YAML and so may be JSON.
pub(crate) fn read(cx: &mut Cx<'_>, body: &[u8]) -> Result<Object, Status> {
    let is_json = Format::of(body) == Format::Json;
    let json = is_json.then(|| decode::parse(body, Format::Json, Limits::default()).ok()).flatten();
    let parsed = match json {
        // As for YAML.
        Some(mut parsed) => {
            decode::whole_numbers(&mut parsed.value);
            parsed
        }
        None => decode::parse(body, Format::Yaml, Limits::default()).map_err(|error| match error {
            decode::DecodeError::TooLarge { limit } => Status::too_large(limit),
            other => Status::bad_request(format!("error decoding YAML: {other}")),
        })?,
    };
    let findings: Vec<String> = parsed.findings.iter().map(ToString::to_string).collect();
    match cx.field_validation()? {
        _ if findings.is_empty() => {}
        FieldValidation::Ignore => {}
        FieldValidation::Warn => cx.warnings.extend(findings),
        FieldValidation::Strict => {
            return Err(Status::bad_request(format!("error strict decoding YAML: {}", findings.join(", "))));
        }
    }
    match parsed.value {
        Value::Object(object) => Ok(object),
        _ => Err(Status::bad_request("error decoding YAML: the body is not an object")),
    }
}

/// Checks what an applied object says about itself.
fn settle(cx: &Cx<'_>, config: &Object) -> Result<(), Status> {
    let (given, wanted) = (str_at(config, &["apiVersion"]), cx.api_version());
    if given != wanted {
        return Err(Status::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {given}, expected: {wanted}"
        )));
    }
    if str_at(config, &["kind"]).is_empty() {
        let of = format!("{}, Kind=", group_version(cx));
        return Err(untyped(config, &of, &format!("no corresponding type for {of}")));
    }
    bodies::check_type(config, &wanted, &cx.row.kind)?;
    if meta(config, "managedFields").is_some() {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    apply::check(config, cx.version().schema()).map_err(|error| refused(cx, config, error))
}

/// Applies an object of the request's kind.
pub(crate) async fn run(cx: &mut Cx<'_>, half: &Half, mut config: Object) -> Result<Outcome, Status> {
    let dry_run = cx.dry_run()?;
    let (manager, force) = options(cx);
    kinds::conform_applied(&cx.row, cx.version(), &mut config)
        .map_err(|error| Status::bad_request(error.status_message(&cx.version().name, &cx.row.kind)))?;
    metadata::settle_name(cx, &mut config)?;
    strategy::drop_kept_metadata(cx, half, &mut config);
    for round in create::tries(&cx.server.env) {
        if round > 0 {
            cx.fit(&mut config)?;
        }
        let (entry, _) = cx.server.store.get(&cx.key()).await?;
        let Some(entry) = entry else {
            if cx.request.subresource.is_some() {
                return Err(cx.not_found(cx.name()));
            }
            let applied = merge(cx, half, None, &config, &Managed::default(), &manager, force).await?;
            create::may_create(cx, &config).await?;
            match create::make_applied(cx, applied.object, applied.managed, dry_run).await {
                // Somebody else was faster.
                Err(status) if status.reason == "AlreadyExists" => continue,
                made => return made.map(Outcome::Created),
            }
        };
        readable(cx, &entry)?;
        let (old, managed) = convert::load_apart(cx, &entry).await?;
        let (old, managed) = (Whole::from(old), managed.as_deref().map(Managed::stored).unwrap_or_default());
        let applied = merge(cx, half, Some(&old), &config, &managed, &manager, force).await?;
        let managers = Managers::Applied(applied.managed);
        if let Some(changed) =
            update::attempt(cx, half, &Arc::clone(&entry), old, applied.object, managers, dry_run).await?
        {
            return update::after(cx, changed, dry_run).await.map(Outcome::Changed);
        }
        cx.renew().await?;
    }
    Err(create::busy())
}

async fn merge(
    cx: &Cx<'_>,
    half: &Half,
    live: Option<&Object>,
    config: &Object,
    managed: &Managed,
    manager: &str,
    force: bool,
) -> Result<apply::Applied, Status> {
    let resets = |field: &str| match half {
        Half::Main => field == "status" && cx.version().has_status(),
        Half::Status => field != "status" && (field != "metadata" || strategy::keeps_metadata(cx)),
        Half::Approval => field != "status",
        Half::PodSpec | Half::Finalize => field != "spec",
    };
    let applied = managers::with(cx, manager, |kind, writer| {
        apply::apply(live, config, kind, managed.clone(), writer, force, &resets)
    });
    applied.await?.map_err(|error| refused(cx, config, error))
}

fn refused(cx: &Cx<'_>, config: &Object, error: ApplyError) -> Status {
    match error {
        ApplyError::Conflict(ref conflicts) => {
            let causes = conflicts.iter().map(|(manager, path)| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {manager}"),
                field: path.clone(),
            });
            let details = Details { causes: causes.collect(), ..Details::default() };
            let (reason, message) = ("Conflict".into(), error.to_string());
            Status { code: 409, reason, message, details: Some(Box::new(details)) }
        }
        // It is not decided without what a conversion makes.
        error @ ApplyError::Unconverted(_) => Status::internal(error),
        ApplyError::Untyped(why) => untyped(config, &format!("{}, Kind={}", group_version(cx), cx.row.kind), &why),
    }
}

/// The request's group and version, as Go writes them before a kind.
fn group_version(cx: &Cx<'_>) -> String {
    if cx.row.group.is_empty() { format!("/{}", cx.version().name) } else { cx.api_version() }
}

/// Upstream's text for an object that is not of its type. Its code is 500; whose mistake it is, a 400 says.
fn untyped(config: &Object, of: &str, why: &str) -> Status {
    let (namespace, name) = (meta_str(config, "namespace"), meta_str(config, "name"));
    Status::bad_request(format!("failed to create typed patch object ({namespace}/{name}; {of}): {why}"))
}
