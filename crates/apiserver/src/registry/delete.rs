//! delete.
//!
//! ```text
//!   DELETE ─► graceful kind, still running ──► deletionTimestamp = now + grace ──(agent: grace 0)─┐
//!          ├► finalizers ───────────────────► deletionTimestamp = now, grace 0 ──(last one goes)─┤
//!          └► neither ──────────────────────────────────────────────────────────────────────────┴► gone
//! ```
//!
//! Upstream: `k8s.io/apiserver/pkg/registry/rest.BeforeDelete` and `generic/registry.Store.Delete`.

use std::sync::Arc;

use carrack_store::{Check, Entry, Op, Revision, Txn, TxnOutcome};
use carrack_types::well_known::finalizer::{FOREGROUND, ORPHAN};
use jiff::SignedDuration;
use serde_json::Value;

use crate::admission::{self, Asked, Attributes, Operation, Terms, set_condition, steps};
use crate::body::Response;
use crate::context::Cx;
use crate::convert;
use crate::env::rfc3339_s;
use crate::object::{Object, child_mut, finalizers, is_deleting, meta, meta_str, set_finalizers, set_meta, str_at};
use crate::registry::create::{busy, tries};
use crate::registry::delete_options::{DeleteOptions, Propagation};
use crate::registry::read::readable;
use crate::registry::{managers, meta as metadata, strategy};
use crate::rests_on;
use crate::status::Status;
use crate::stored;

/// A pod's grace period when it says none, in seconds.
const DEFAULT_GRACE_S: i64 = 30;

/// Kinds whose dependents stay where nobody says what becomes of them (`DefaultGarbageCollectionPolicy` of upstream's
/// strategies): so it was when their clients looked after the pods.
const LEFT_BEHIND: [(&str, &str); 2] = [("", "replicationcontrollers"), ("batch", "jobs")];

/// Kinds of which nobody collects what they leave: they go at once, whatever is asked (`rest.Unsupported` in upstream's
/// strategies).
const OWN_NOTHING: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// What who deletes Jobs without a word of their pods is told, as upstream says it.
const PODS_STAY: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// Kinds of which upstream returns the object when it is gone, not a `Status`.
const RETURNED: [(&str, &str); 7] = [
    ("", "pods"),
    ("", "services"),
    ("", "serviceaccounts"),
    ("", "persistentvolumes"),
    ("", "persistentvolumeclaims"),
    ("", "podtemplates"),
    ("", "resourcequotas"),
];

/// How a deletion ended.
pub(crate) enum Deleted {
    /// The object is gone, or would be; this was its last state.
    Gone(Last, Revision),
    /// It stays until somebody else has done their part; this is its state now.
    Waiting(Arc<Entry>),
    /// What would be left.
    Dry(Object, Revision),
}

/// The last state of an object.
pub(crate) enum Last {
    /// As it was stored.
    Stored(Arc<Entry>),
    /// As it became by going.
    Marked(Object),
}

/// Deletes the request's object.
pub(crate) async fn delete(cx: &mut Cx<'_>, body: &[u8]) -> Result<Response, Status> {
    let options = DeleteOptions::read(cx, body)?;
    warn(cx, &options);
    let presenter = cx.presenter()?;
    let deleted = remove(cx, cx.name(), &options).await?;
    Ok(match deleted {
        Deleted::Waiting(entry) => presenter.one(200, &cx.converted(entry).await?),
        Deleted::Dry(object, revision) => presenter.unstored(200, &object, revision),
        Deleted::Gone(last, revision) if RETURNED.contains(&(&*cx.row.group, &*cx.row.plural)) => match last {
            Last::Stored(entry) => presenter.one_at(200, &*cx.converted(entry).await?, revision),
            Last::Marked(object) => presenter.unstored(200, &object, revision),
        },
        Deleted::Gone(last, _) => {
            let uid = match &last {
                Last::Stored(entry) => meta_str(&stored::parse(entry), "uid").to_owned(),
                Last::Marked(object) => meta_str(object, "uid").to_owned(),
            };
            Status::success(&cx.row.group, &cx.row.plural, cx.name(), &uid).into()
        }
    })
}

/// Warns of dependents that stay because nothing was said of them.
pub(crate) fn warn(cx: &mut Cx<'_>, options: &DeleteOptions) {
    if options.propagation.is_none() && (&*cx.row.group, &*cx.row.plural) == ("batch", "jobs") {
        cx.warnings.push(PODS_STAY.to_owned());
    }
}

/// Deletes an object of the request's resource and namespace.
pub(crate) async fn remove(cx: &Cx<'_>, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
    remove_at(cx, &crate::keys::key(&cx.row, cx.namespace(), name), name, options).await
}

/// Deletes the object under a key of the request's resource.
pub(crate) async fn remove_at(cx: &Cx<'_>, key: &str, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
    remove_born(cx, key, name, options, None).await
}

/// Deletes an object that was found in the store. What was made anew under its name since is another one, and this one is not found.
pub(crate) async fn remove_found(cx: &Cx<'_>, found: &Entry, options: &DeleteOptions) -> Result<Deleted, Status> {
    let memo = stored::memo(found);
    remove_born(cx, &found.key, &memo.name, options, Some(found.create_revision)).await
}

/// Deletes the object under a key, if it is the one that came into being at this revision, where one is said.
async fn remove_born(
    cx: &Cx<'_>,
    key: &str,
    name: &str,
    options: &DeleteOptions,
    born: Option<Revision>,
) -> Result<Deleted, Status> {
    for _ in tries(&cx.server.env) {
        let found = cx.server.store.get(key).await?.0;
        let is_it = |entry: &Arc<Entry>| born.is_none_or(|born| born == entry.create_revision);
        let entry = found.filter(is_it).ok_or_else(|| cx.not_found(name))?;
        readable(cx, &entry)?;
        if let Some(deleted) = attempt(cx, &entry, name, options, Terms::default()).await? {
            return Ok(deleted);
        }
        // Somebody else was faster; a precondition on the revision fails in the next round.
    }
    Err(busy())
}

/// One attempt, with other changes in its transaction; none when another writer was faster.
pub(crate) async fn attempt(
    cx: &Cx<'_>,
    entry: &Arc<Entry>,
    name: &str,
    options: &DeleteOptions,
    also: Terms,
) -> Result<Option<Deleted>, Status> {
    let (old, managers) = convert::load_apart(cx, entry).await?;
    options.check_preconditions(cx, name, meta_str(&old, "uid"), &entry.mod_revision.to_string())?;
    let Terms { mut checks, mut ops, .. } = admit(cx, &old, entry, name, options).await?;
    let mut new = marked(cx, &old, options);
    let may_go = strategy::may_go(cx, &new);
    if options.dry_run {
        rests_on::checks(cx).await?;
        if may_go && !cx.row.graceful_deletion {
            // It would be gone without having been changed before.
            return Ok(Some(Deleted::Gone(Last::Stored(Arc::clone(entry)), entry.mod_revision)));
        }
        managers::put(&mut new, managers.as_deref());
        return Ok(Some(Deleted::Dry(new, entry.mod_revision)));
    }
    checks.extend(also.checks);
    let value = if may_go || new == old {
        None
    } else {
        let (api_version, kind) = convert::storage_type(&cx.row);
        let saved = convert::save(cx, std::mem::take(&mut new)).await?;
        Some(stored::encode_managed(&saved, managers.as_deref(), &api_version, &kind)?)
    };
    // Last of all: what takes its time, as webhooks do, is done.
    checks.extend(rests_on::checks(cx).await?);
    checks.push(Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision));
    if may_go {
        ops.extend(also.ops);
        ops.insert(0, Op::Delete(Arc::clone(&entry.key)));
        let marked = is_deleting(&old).then_some(new);
        // Nobody needs it while the store is waited for, and many may wait.
        drop(old);
        return Ok(match cx.server.store.transact(Txn { checks, ops }).await? {
            TxnOutcome::Committed { revision, .. } => {
                let last = if let Some(mut last) = marked {
                    managers::put(&mut last, managers.as_deref());
                    set_meta(&mut last, "resourceVersion", revision.to_string());
                    Last::Marked(last)
                } else {
                    Last::Stored(Arc::clone(entry))
                };
                Some(Deleted::Gone(last, revision))
            }
            TxnOutcome::Failed { .. } => None,
        });
    }
    let Some(value) = value else { return Ok(Some(Deleted::Waiting(Arc::clone(entry)))) };
    drop(old);
    // What would go along goes when the object goes.
    let mut ops = also.ops;
    ops.insert(0, Op::Put(Arc::clone(&entry.key), value));
    match cx.server.store.transact(Txn { checks, ops }).await? {
        TxnOutcome::Committed { entries, .. } => match entries.into_iter().next().flatten() {
            Some(entry) => Ok(Some(Deleted::Waiting(entry))),
            None => Err(Status::internal("the store returned no entry for a put")),
        },
        TxnOutcome::Failed { .. } => Ok(None),
    }
}

/// Admission of a deletion; returns what it rests on and what goes along with the object.
async fn admit(cx: &Cx<'_>, old: &Object, entry: &Entry, name: &str, options: &DeleteOptions) -> Result<Terms, Status> {
    with_attributes(cx, old, Some((entry, options)), name).await
}

/// What goes along with an object that nothing holds any more. Whether it may go was decided before.
pub(crate) async fn departure(cx: &Cx<'_>, old: &Object) -> Result<Terms, Status> {
    with_attributes(cx, old, None, crate::object::name(old)).await
}

/// `asked` is the old object as it is stored and how it is to go, where it is asked whether it may.
async fn with_attributes(
    cx: &Cx<'_>,
    old: &Object,
    asked: Option<(&Entry, &DeleteOptions)>,
    name: &str,
) -> Result<Terms, Status> {
    let server = cx.server;
    let namespace = meta_str(old, "namespace").to_owned();
    let mut attributes = Attributes {
        operation: Operation::Delete,
        caller: cx.caller,
        row: &cx.row,
        version: &cx.version().name,
        subresource: "",
        namespace: &namespace,
        name: name.to_owned(),
        object: Object::new(),
        old: Some(old),
        managers: None,
        old_entry: asked.map(|(entry, _)| entry),
        deletion: asked.map(|(_, options)| options),
        dry_run: asked.is_some_and(|(_, options)| options.dry_run),
        env: &*server.env,
    };
    let mut found = admission::fetch(&*server.untimed, &server.plugins, &attributes).await?;
    if let Some((_, options)) = asked {
        // An eviction was asked about as such.
        let added = !options.evicts && !options.own;
        let asked = Asked { added, ..Asked::CHECKED };
        steps::admit(cx, asked, &mut attributes, &mut found).await?;
        steps::validate(cx, asked, &attributes, &found).await?;
    }
    admission::terms(&server.plugins, &mut attributes, found)
}

/// The object with its deletion asked for.
fn marked(cx: &Cx<'_>, old: &Object, options: &DeleteOptions) -> Object {
    let mut new = old.clone();
    if is_deleting(old) {
        let left_s = meta(old, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        // Sooner than was said before, by who says so; never later. That it has ended since is for its node to
        // tell, which may still have to clean up after it.
        if let Some(grace_s) = asked_s(options).filter(|grace_s| *grace_s < left_s) {
            mark(cx, &mut new, grace_s, Some((meta_str(old, "deletionTimestamp"), left_s)));
        }
    } else {
        mark(cx, &mut new, grace_s(cx, old, options), None);
        if cx.row.has_generation {
            metadata::bump_generation(&mut new);
        }
        if (&*cx.row.group, &*cx.row.plural) == ("", "namespaces") {
            let status = child_mut(&mut new, "status");
            status.insert("phase".to_owned(), "Terminating".into());
        }
    }
    if options.evicts {
        evict(cx, &mut new, old);
    }
    if !OWN_NOTHING.contains(&(&*cx.row.group, &*cx.row.plural)) {
        propagate(&mut new, options.propagation.or_else(|| unsaid(cx, old)));
    }
    if !is_deleting(old) {
        crate::crd::before_delete(cx, &mut new);
    }
    new
}

/// Says in a pod's conditions that it is evicted (`addConditionAndDeletePod` of upstream's eviction).
fn evict(cx: &Cx<'_>, pod: &mut Object, old: &Object) {
    let status = child_mut(pod, "status");
    let conditions = status.entry("conditions").or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(conditions) = conditions else { return };
    let (kind, reason) = ("DisruptionTarget", "EvictionByEvictionAPI");
    if conditions.iter().any(|c| c["type"] == kind && c["status"] == "True" && c["reason"] == reason) {
        return;
    }
    let now = rfc3339_s(cx.server.env.now());
    set_condition(conditions, kind, "True", reason, "Eviction API: evicting", &now);
    let generation = meta(old, "generation").cloned().unwrap_or_default();
    if let Some(condition) = conditions.iter_mut().find(|c| c["type"] == kind).filter(|_| generation.is_i64()) {
        condition["observedGeneration"] = generation;
    }
}

/// How long the object may still take, in seconds.
fn grace_s(cx: &Cx<'_>, old: &Object, options: &DeleteOptions) -> i64 {
    if !cx.row.graceful_deletion {
        return 0;
    }
    let unscheduled = str_at(old, &["spec", "nodeName"]).is_empty();
    let ended = matches!(str_at(old, &["status", "phase"]), "Succeeded" | "Failed");
    if unscheduled || ended {
        return 0;
    }
    let own = || crate::object::at(old, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64);
    asked_s(options).or_else(|| own().map(counted)).unwrap_or(DEFAULT_GRACE_S)
}

/// How long it may take as far as the caller is concerned, in seconds.
fn asked_s(options: &DeleteOptions) -> Option<i64> {
    options.grace_period_s.map(counted)
}

/// Less than nothing is a second, as upstream has it: only who says 0 does without the node's word.
fn counted(grace_s: i64) -> i64 {
    if grace_s < 0 { 1 } else { grace_s }
}

/// Sets when the object is to be gone. `before` is what was said earlier.
fn mark(cx: &Cx<'_>, object: &mut Object, grace_s: i64, before: Option<(&str, i64)>) {
    let now = cx.server.env.now();
    let at = match before.and_then(|(at, left_s)| Some((at.parse::<jiff::Timestamp>().ok()?, left_s))) {
        // Counted from the moment of the first request.
        Some((at, left_s)) => at
            .checked_sub(SignedDuration::from_secs(left_s))
            .and_then(|asked| asked.checked_add(SignedDuration::from_secs(grace_s)))
            .unwrap_or(now),
        None => now.checked_add(SignedDuration::from_secs(grace_s)).unwrap_or(now),
    };
    set_meta(object, "deletionTimestamp", rfc3339_s(at));
    set_meta(object, "deletionGracePeriodSeconds", grace_s);
}

/// What becomes of the dependents where the caller does not say it: what the object says, else what its kind does.
fn unsaid(cx: &Cx<'_>, old: &Object) -> Option<Propagation> {
    let stay = LEFT_BEHIND.contains(&(&*cx.row.group, &*cx.row.plural))
        && !finalizers(old).iter().any(|f| f == ORPHAN || f == FOREGROUND);
    stay.then_some(Propagation::Orphan)
}

/// Notes for the garbage collector what becomes of the dependents.
fn propagate(object: &mut Object, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let mut all = finalizers(object);
    all.retain(|f| f != ORPHAN && f != FOREGROUND);
    match propagation {
        Propagation::Orphan => all.push(ORPHAN.to_owned()),
        Propagation::Foreground => all.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    set_finalizers(object, all);
}
