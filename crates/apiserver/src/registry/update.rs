//! update, and the read-modify-write under every other change of an object.
//!
//! ```text
//!   read ─► change ─► (precondition?) ─► restrict to the half ─► default ─► admit ─► validate
//!     ▲                                                                             │
//!     └────────────── somebody else was faster ◄── write if unchanged ◄─────────────┘
//! ```

use std::sync::Arc;

use carrack_store::{Check, Entry, Op, Revision, Txn, TxnOutcome};

use crate::admission::{self, Asked, Attributes, Operation, Terms, extend, steps};
use crate::body::Response;
use crate::context::Cx;
use crate::convert;
use crate::kinds;
use crate::object::{Object, Whole, meta_str, set_meta};
use crate::present::Presenter;
use crate::registry::create::{busy, tries};
use crate::registry::managers::{self, Managers};
use crate::registry::strategy::{self, Half};
use crate::registry::{create, decode, delete, meta, owners, read};
use crate::rests_on;
use crate::status::Status;
use crate::stored;

/// How a change ended.
pub(crate) enum Changed {
    /// The object as it is now; also when the change changed nothing.
    Stored(Arc<Entry>),
    /// What would have been stored.
    Dry(Object, Revision),
    /// The change was what the deletion waited for; this is the object's last state.
    Gone(Object, Revision),
}

impl Changed {
    pub(crate) fn response(self, presenter: &Presenter) -> Response {
        match self {
            Changed::Stored(entry) => presenter.one(200, &entry),
            Changed::Dry(object, revision) | Changed::Gone(object, revision) => {
                presenter.unstored(200, &object, revision)
            }
        }
    }
}

/// Replaces the object with that in the body.
pub(crate) async fn update(cx: &mut Cx<'_>, half: Half, body: &[u8]) -> Result<Response, Status> {
    let presenter = cx.presenter()?;
    let warnings = cx.warnings.len();
    let mut object = decode::object(cx, body)?;
    // First of all: it may be one that is not there.
    meta::settle_namespace(cx, &mut object)?;
    meta::check_path_name(cx, &object)?;
    owners::dedupe(cx, &mut object, false);
    let changed = change(cx, &half, |cx, _| {
        meta::check_names_state(cx, &object)?;
        Ok(object.clone())
    });
    match changed.await {
        // Who names a state of it does not mean another object.
        Err(status)
            if status.reason == "NotFound"
                && strategy::is_made_by_update(cx)
                && matches!(meta_str(&object, "resourceVersion"), "" | "0") =>
        {
            create::may_create(cx, &object).await?;
            cx.warnings.truncate(warnings);
            create::create(cx, body).await
        }
        changed => changed.map(|changed| changed.response(&presenter)),
    }
}

/// Applies a change to the request's object. `make` is handed the object as it is, in the request's
/// version, and may be called again when another writer was faster.
pub(crate) async fn change<'c>(
    cx: &mut Cx<'c>,
    half: &Half,
    make: impl FnMut(&mut Cx<'c>, &Object) -> Result<Object, Status>,
) -> Result<Changed, Status> {
    change_of(cx, half, false, make).await
}

/// Like [`change`]; `make` is handed `metadata.managedFields` too, if asked for.
pub(crate) async fn change_of<'c>(
    cx: &mut Cx<'c>,
    half: &Half,
    with_managers: bool,
    mut make: impl FnMut(&mut Cx<'c>, &Object) -> Result<Object, Status>,
) -> Result<Changed, Status> {
    let dry_run = cx.dry_run()?;
    for round in tries(&cx.server.env) {
        let entry = read::fetch(cx).await?;
        let (old, stored) = convert::load_apart(cx, &entry).await?;
        let old = Whole::from(old);
        let mut new = if with_managers {
            let mut whole = Object::clone(&old);
            managers::put(&mut whole, stored.as_deref());
            make(cx, &whole)?
        } else {
            make(cx, &old)?
        };
        if round > 0 {
            cx.fit(&mut new)?;
        }
        if let Some(changed) = attempt(cx, half, &entry, old, new, Managers::Stored(stored), dry_run).await? {
            return after(cx, changed, dry_run).await;
        }
        cx.renew().await?;
    }
    Err(busy())
}

/// What follows a change; a stored object comes back in the request's version.
pub(crate) async fn after(cx: &Cx<'_>, changed: Changed, dry_run: bool) -> Result<Changed, Status> {
    if let (Changed::Gone(..), false) = (&changed, dry_run) {
        crate::crd::after_delete(cx).await?;
    }
    Ok(match changed {
        Changed::Stored(entry) => Changed::Stored(cx.converted(entry).await?),
        other => other,
    })
}

/// One attempt; none when another writer was faster. `whole` is the object as it was, without its managers: it is given up before the
/// store is waited for, since with many requests at a time such trees are most of what the server holds.
pub(crate) async fn attempt(
    cx: &mut Cx<'_>,
    half: &Half,
    entry: &Arc<Entry>,
    whole: Whole,
    mut new: Object,
    managers: Managers,
    dry_run: bool,
) -> Result<Option<Changed>, Status> {
    let old = &whole;
    let name = cx.name().to_owned();
    let sent = managers::take(&mut new);
    let revision = entry.mod_revision.to_string();
    meta::prepare_update(cx, &mut new, old, &revision)?;
    strategy::restrict(cx, half, &mut new, old);
    set_meta(&mut new, "resourceVersion", revision.as_str());
    kinds::default(&cx.row, cx.version(), &mut new);
    let managers = match managers {
        Managers::Stored(stored) => managers::updated(cx, old, &new, stored.as_deref(), sent).await,
        Managers::Applied(managed) => managed.into_text(),
    };
    let admitted = admit(cx, new, old, (&**entry, managers.as_deref()), dry_run).await?;
    let (mut new, Terms { mut checks, mut ops, mut warnings }) = admitted;
    if cx.row.has_generation && strategy::changes_spec(cx, &new, old) {
        meta::bump_generation(&mut new);
    }
    strategy::count_template(cx, &mut new, Some(old));
    let (api_version, kind) = convert::storage_type(&cx.row);
    if strategy::may_go(cx, &new) {
        managers::put(&mut new, managers.as_deref());
        // What goes along with the object is not what a change of it would have changed.
        Terms { checks, ops, .. } = delete::departure(cx, old).await?;
        checks.extend(rests_on::checks(cx).await?);
        if dry_run {
            return Ok(Some(Changed::Gone(new, entry.mod_revision)));
        }
        drop(whole);
        checks.push(Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision));
        ops.insert(0, Op::Delete(Arc::clone(&entry.key)));
        return Ok(match cx.server.store.transact(Txn { checks, ops }).await? {
            TxnOutcome::Committed { revision, .. } => {
                set_meta(&mut new, "resourceVersion", revision.to_string());
                Some(Changed::Gone(new, revision))
            }
            TxnOutcome::Failed { .. } => None,
        });
    }
    let dry = dry_run.then(|| new.clone());
    let value = stored::encode_managed(&convert::save(cx, new).await?, managers.as_deref(), &api_version, &kind)?;
    // Last of all: what takes its time, as webhooks do, is done.
    checks.extend(rests_on::checks(cx).await?);
    checks.extend(cx.definition());
    if stored::is_same(entry, &value) {
        cx.warnings.append(&mut warnings);
        return Ok(Some(Changed::Stored(Arc::clone(entry))));
    }
    if let Some(mut new) = dry {
        managers::put(&mut new, managers.as_deref());
        cx.warnings.append(&mut warnings);
        return Ok(Some(Changed::Dry(new, entry.mod_revision)));
    }
    drop(whole);
    checks.push(Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision));
    ops.insert(0, Op::Put(Arc::clone(&entry.key), value));
    match cx.server.store.transact(Txn { checks, ops }).await? {
        TxnOutcome::Committed { entries, .. } => match entries.into_iter().next().flatten() {
            Some(entry) => {
                cx.warnings.append(&mut warnings);
                Ok(Some(Changed::Stored(entry)))
            }
            None => Err(Status::internal(format!("the store returned no entry for a put of {name:?}"))),
        },
        TxnOutcome::Failed { .. } => Ok(None),
    }
}

/// Admission and validation of a changed object; returns it with what it rests on.
async fn admit(
    cx: &Cx<'_>,
    new: Object,
    old: &Whole,
    (entry, managers): (&Entry, Option<&str>),
    dry_run: bool,
) -> Result<(Object, Terms), Status> {
    let server = cx.server;
    let namespace = cx.namespace().unwrap_or_default().to_owned();
    let subresource = cx.request.subresource.clone().unwrap_or_default();
    let mut attributes = Attributes {
        operation: Operation::Update,
        caller: cx.caller,
        row: &cx.row,
        version: &cx.version().name,
        subresource: &subresource,
        namespace: &namespace,
        name: cx.name().to_owned(),
        object: new,
        old: Some(old),
        managers,
        old_entry: Some(entry),
        deletion: None,
        dry_run,
        env: &*server.env,
    };
    let mut found = admission::fetch(&*server.untimed, &server.plugins, &attributes).await?;
    steps::admit(cx, Asked::ALL, &mut attributes, &mut found).await?;
    owners::dedupe(cx, &mut attributes.object, true);
    crate::certificates::complete(server, &mut attributes).await?;
    let errors = server.metrics.cel.timed(&cx.row, cx.version(), &*server.env, || {
        kinds::validate_update(&cx.row, cx.version(), &mut attributes.object, old, &subresource)
    });
    if !errors.is_empty() {
        return Err(meta::invalid(cx, cx.name(), &errors));
    }
    extend::annotate(cx, &attributes, &found);
    steps::validate(cx, Asked::ALL, &attributes, &found).await?;
    server.check_privileges(cx, &attributes.object, Some(old)).await?;
    let terms = admission::terms(&server.plugins, &mut attributes, found)?;
    let Attributes { object, .. } = attributes;
    Ok((object, terms))
}
