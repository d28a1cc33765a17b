//! Who owns which field: `metadata.managedFields`, and server-side apply on it.
//!
//! ```text
//!   update:  old ─┐
//!                 ├─► compare ─► others lose what was changed or removed, the writer gains what changed
//!            new ─┘
//!
//!   apply:   live ────┐
//!                     ├─► merge ─► prune ─► compare with live ─► conflicts? ─► as in an update
//!            config ──┘     what the applier owned, does not apply any more, and nobody else owns
//! ```
//!
//! [`set`] has the algebra of sets of fields, [`view`] what a schema says about owning, [`compare`],
//! [`merge`] and [`check`] work on values under that view, [`managed`] is the list itself. All of it
//! is pure; a set is decoded only if a write takes something out of it ([`text`] does the rest).
//!
//! Behaviour follows `sigs.k8s.io/structured-merge-diff` and
//! `k8s.io/apimachinery/pkg/util/managedfields`;
//! <https://kubernetes.io/docs/reference/using-api/server-side-apply/> describes it.

mod check;
mod compare;
mod managed;
mod merge;
mod set;
mod text;
mod view;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::schema::Schema;
use compare::Changes;
use managed::{Entry, Fields};
use merge::Emptied;

pub use managed::{Managed, Operation, Writer};
pub use set::Set;

/// The annotation in which `kubectl apply` keeps what it applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager under which `kubectl apply --server-side` writes.
const KUBECTL: &str = "kubectl";
/// Owns what objects had that nobody was known to own when they were first applied to.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Owns what the oldest of too many updaters owned.
const ANCIENT: &str = "ancient-changes";
/// More updaters than these are folded into [`ANCIENT`] ones.
const MAX_UPDATERS: usize = 10;
/// Annotations have no more bytes altogether; what would not fit is not kept.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

/// More conflicts than these are told to nobody.
const MAX_CONFLICTS: usize = 10_000;

/// Metadata that the server keeps, and that nobody owns.
const UNOWNED: [&[&str]; 11] = [
    &["f:apiVersion"],
    &["f:kind"],
    &["f:metadata", "f:name"],
    &["f:metadata", "f:namespace"],
    &["f:metadata", "f:creationTimestamp"],
    &["f:metadata", "f:selfLink"],
    &["f:metadata", "f:uid"],
    &["f:metadata", "f:clusterName"],
    &["f:metadata", "f:generation"],
    &["f:metadata", "f:managedFields"],
    &["f:metadata", "f:resourceVersion"],
];

/// An object: its top-level fields.
type Object = Map<String, Value>;

/// How another version of a kind stands to that of the request.
pub enum Other<'s> {
    /// There is no such version (any more).
    Unknown,
    /// It has the same form.
    Same,
    /// It has another form, with this schema.
    Form(&'s Schema),
}

/// The kind that an object is of, in the request's version.
pub struct Kind<'s> {
    /// Its schema.
    pub schema: &'s Schema,
    /// The other versions, by `apiVersion`.
    pub other: &'s dyn Fn(&str) -> Other<'s>,
    /// Makes an object of another form, given its `apiVersion`.
    pub convert: &'s dyn Fn(&Object, &str) -> Object,
}

/// Why an object cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// It does not fit its schema. The text is what comes behind `failed to create typed patch object (…): `.
    #[error("{0}")]
    Untyped(String),
    /// Others own what it would change: (manager, path) each.
    #[error("{}", conflict_message(.0))]
    Conflict(Vec<(String, String)>),
}

/// What applying comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The object, without `metadata.managedFields`.
    pub object: Object,
    /// Who owns what of it.
    pub managed: Managed,
}

/// Notes who owns what after a write that made `new` of `old`. Objects come without
/// `metadata.managedFields`; an object that is created was empty before.
///
/// Returns whether anything changed. Times change only where fields do, so that a write that
/// changes nothing stays one.
pub fn update(old: &Object, new: &Object, kind: &Kind<'_>, managed: &mut Managed, who: &Writer<'_>) -> bool {
    let mut changes = owned_changes(old, new, kind.schema);
    if changes.is_empty() {
        return false;
    }
    lose(managed, old, new, &changes, kind, who, Spared::Updater);
    let gained = std::mem::take(&mut changes.changed);
    if !gained.is_empty() {
        managed.give(who, gained);
    }
    managed.entries.retain(|entry| !entry.fields.is_empty());
    cap_updaters(managed);
    true
}

/// The state of a kind's new object before it has any fields: what every built-in object has.
#[must_use]
pub fn nothing(kind_is_custom: bool, new: &Object) -> Object {
    let mut nothing = Object::new();
    nothing.insert("metadata".to_owned(), Value::Object(Map::new()));
    if !kind_is_custom {
        for field in ["spec", "status"] {
            if new.get(field).is_some_and(Value::is_object) {
                nothing.insert(field.to_owned(), Value::Object(Map::new()));
            }
        }
    }
    nothing
}

fn owned_changes(old: &Object, new: &Object, schema: &Schema) -> Changes {
    let mut changes = compare::fields(old, new, schema.resolve());
    for set in [&mut changes.changed, &mut changes.removed] {
        strip(set);
    }
    changes
}

fn strip(set: &mut Set) {
    for path in UNOWNED {
        set.drop_below(path);
    }
    if let Some(metadata) = set.children.get_mut("f:metadata") {
        metadata.member = false;
        if metadata.is_empty() {
            set.children.remove("f:metadata");
        }
    }
}

/// Whose entry is the writer's own when others lose what it changes.
#[derive(Clone, Copy, PartialEq)]
enum Spared {
    /// The applier's, who has said already all that it owns.
    Applier,
    /// The updater's, who is given what it changes afterwards, and so loses only what it removes.
    Updater,
}

/// Takes what changed from those who owned it, but for the writer. Drops entries in versions
/// that are not served any more.
fn lose(
    managed: &mut Managed,
    old: &Object,
    new: &Object,
    changes: &Changes,
    kind: &Kind<'_>,
    who: &Writer<'_>,
    spared: Spared,
) {
    let mut gone = false;
    let own = if spared == Spared::Updater { managed.find(who, Operation::Update) } else { None };
    let mut versions = Versions { api_version: who.api_version, kind, old, new, changes, other: BTreeMap::new() };
    for (place, entry) in managed.entries.iter_mut().enumerate() {
        if spared == Spared::Applier && is_applier(entry, who.manager, who.subresource) {
            continue;
        }
        let Some(changes) = versions.changes(&entry.api_version) else {
            gone = true;
            entry.fields = Fields::Set(Set::default());
            continue;
        };
        let changed = (own != Some(place)).then_some(&changes.changed);
        for lost in changed.into_iter().chain([&changes.removed]) {
            if !lost.is_empty() && entry.fields.meet(lost) {
                entry.fields.set_mut().subtract(lost);
                gone = true;
            }
        }
    }
    if gone {
        managed.entries.retain(|entry| !entry.fields.is_empty());
    }
}

fn is_applier(entry: &Entry, manager: &str, subresource: &str) -> bool {
    entry.operation == Operation::Apply && entry.manager == manager && entry.subresource == subresource
}

/// What a write changes, in each version of the kind. Objects are converted once for each version, however many managers there
/// are that speak it.
struct Versions<'a, 's> {
    /// The request's.
    api_version: &'a str,
    kind: &'a Kind<'s>,
    old: &'a Object,
    new: &'a Object,
    /// The changes in the request's version.
    changes: &'a Changes,
    /// The same in versions that have another form.
    other: BTreeMap<String, Changes>,
}

impl Versions<'_, '_> {
    /// The changes in a version. None when the version is not known.
    fn changes(&mut self, api_version: &str) -> Option<&Changes> {
        if api_version == self.api_version {
            return Some(self.changes);
        }
        match (self.kind.other)(api_version) {
            Other::Unknown => None,
            Other::Same => Some(self.changes),
            Other::Form(schema) => {
                if !self.other.contains_key(api_version) {
                    let convert = |object| (self.kind.convert)(object, api_version);
                    let changes = owned_changes(&convert(self.old), &convert(self.new), schema);
                    self.other.insert(api_version.to_owned(), changes);
                }
                self.other.get(api_version)
            }
        }
    }
}

/// Folds the oldest updaters into one for each version, when there are too many.
fn cap_updaters(managed: &mut Managed) {
    let is_updater = |entry: &Entry| entry.operation == Operation::Update;
    let count = managed.entries.iter().filter(|entry| is_updater(entry)).count();
    if count <= MAX_UPDATERS {
        return;
    }
    let mut updaters: Vec<Entry> = Vec::new();
    let mut rest = Vec::new();
    for entry in std::mem::take(&mut managed.entries) {
        if is_updater(&entry) { updaters.push(entry) } else { rest.push(entry) }
    }
    updaters.sort_by(|a, b| (&a.time, &a.manager).cmp(&(&b.time, &b.manager)));
    let (mut folded, mut left): (Vec<Entry>, usize) = (Vec::new(), count);
    for mut entry in updaters {
        match folded.iter_mut().find(|first| first.api_version == entry.api_version) {
            Some(first) if left > MAX_UPDATERS => {
                first.fields.set_mut().add(std::mem::take(entry.fields.set_mut()));
                ANCIENT.clone_into(&mut first.manager);
                first.subresource.clear();
                first.time = entry.time;
                left -= 1;
            }
            Some(_) => rest.push(entry),
            None => folded.push(entry),
        }
    }
    rest.extend(folded);
    managed.entries = rest;
}

/// Checks that an object fits its schema so that its fields can be owned.
///
/// # Errors
/// [`ApplyError::Untyped`] with the faults.
pub fn check(config: &Object, schema: &Schema) -> Result<(), ApplyError> {
    match &*check::faults(config, schema) {
        [] => Ok(()),
        [one] => Err(ApplyError::Untyped(one.clone())),
        many => Err(ApplyError::Untyped(format!("errors:\n  {}", many.join("\n  ")))),
    }
}

/// Applies an object. `live` is the stored one, or none where it is to be created; neither has
/// `metadata.managedFields`. `resets` says of a top-level field whether this resource ignores it.
///
/// # Errors
/// When the object does not fit its schema, or changes what others own and is not forced.
pub fn apply(
    live: Option<&Object>,
    config: &Object,
    kind: &Kind<'_>,
    mut managed: Managed,
    who: &Writer<'_>,
    force: bool,
    resets: &dyn Fn(&str) -> bool,
) -> Result<Applied, ApplyError> {
    check(config, kind.schema)?;
    let config: &Object = &config
        .iter()
        .filter(|(field, _)| !resets(field))
        .map(|(field, value)| (field.clone(), value.clone()))
        .collect();
    let node = kind.schema.resolve();
    let empty = Object::new();
    if let (Some(live), true) = (live, managed.is_empty()) {
        let mut before = owned_changes(&nothing(false, live), live, kind.schema);
        let who = Writer { manager: BEFORE_FIRST_APPLY, subresource: "", ..*who };
        managed.give(&who, std::mem::take(&mut before.changed));
    }
    let live = live.unwrap_or(&empty);
    let mut listed = merge::Listed::new();
    for entry in managed.entries.iter_mut().filter(|entry| entry.api_version == who.api_version) {
        merge::fold_root(entry.fields.set_mut(), live, node, &mut listed);
    }

    let mut claims = merge::claimed(config, node);
    strip(&mut claims);
    let mut object = live.clone();
    merge::merge(&mut object, config, node);

    let own = managed.find(who, Operation::Apply);
    let before = own.map(|at| managed.entries.remove(at));
    let (last, last_time) = match before {
        Some(mut entry) => (std::mem::take(entry.fields.set_mut()), entry.time),
        None => (Set::default(), String::new()),
    };
    managed.entries.push(Entry::of(who, Operation::Apply, claims.clone()));
    let mut dropped = last.clone();
    dropped.subtract(&claims);
    if !dropped.is_empty() {
        object = prune(object, &managed, &last, kind.schema);
    }

    let changes = owned_changes(live, &object, kind.schema);
    let conflicts = conflicts(&managed, live, &object, &changes, kind, who);
    if !force && !conflicts.is_empty() {
        let allowed = if who.manager == KUBECTL { last_applied(live, who, kind.schema) } else { Set::default() };
        let left: Vec<(String, String)> = conflicts
            .into_iter()
            .flat_map(|(manager, mut set)| {
                set.subtract(&allowed);
                set.paths().into_iter().map(move |path| (manager.clone(), path))
            })
            .take(MAX_CONFLICTS)
            .collect();
        if !left.is_empty() {
            return Err(ApplyError::Conflict(left));
        }
    }
    lose(&mut managed, live, &object, &changes, kind, who, Spared::Applier);
    if changes.is_empty()
        && last == claims
        && !last_time.is_empty()
        && let Some(at) = managed.find(who, Operation::Apply)
    {
        managed.entries[at].time = last_time;
    }
    managed.entries.retain(|entry| !entry.fields.is_empty());
    if who.manager == KUBECTL && who.subresource.is_empty() {
        keep_last_applied(&mut object, config);
    }
    Ok(Applied { object, managed })
}

/// Takes out what the applier owned and does not apply any more, unless somebody else owns it. What
/// nobody ever owned goes only together with what it is a part of.
fn prune(merged: Object, managed: &Managed, last: &Set, schema: &Schema) -> Object {
    let node = schema.resolve();
    let named = |set: &Set| merge::with_named(set, schema);
    let last = named(last);
    let mut owned = Set::default();
    for entry in &managed.entries {
        owned.add(entry.fields.to_set());
    }
    let all = named(&merge::claimed(&merged, node));
    let mut without_last = merged.clone();
    merge::remove(&mut without_last, &last, node, Emptied::IsNull);
    let mut unowned = all.clone();
    unowned.subtract(&named(&merge::claimed(&without_last, node)));
    unowned.subtract(&named(&owned));
    let mut kept = merged.clone();
    merge::remove(&mut kept, &unowned, node, Emptied::IsNull);
    let mut gone = all;
    gone.subtract(&named(&merge::claimed(&kept, node)));
    let mut pruned = merged;
    merge::remove(&mut pruned, &gone.intersection(&last), node, Emptied::Goes(Some(&owned)));
    pruned
}

/// What others own of the changes, by manager.
fn conflicts(
    managed: &Managed,
    live: &Object,
    object: &Object,
    changes: &Changes,
    kind: &Kind<'_>,
    who: &Writer<'_>,
) -> Vec<(String, Set)> {
    let mut found = Vec::new();
    let mut versions =
        Versions { api_version: who.api_version, kind, old: live, new: object, changes, other: BTreeMap::new() };
    for entry in managed.entries.iter().filter(|entry| !is_applier(entry, who.manager, who.subresource)) {
        let Some(changes) = versions.changes(&entry.api_version) else { continue };
        let common = entry.fields.to_set().intersection(&changes.changed);
        if !common.is_empty() {
            found.push((entry.display(), common));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// What `kubectl apply` applied and nobody has changed since: `kubectl` may take it over.
fn last_applied(live: &Object, who: &Writer<'_>, schema: &Schema) -> Set {
    let text = live.get("metadata").and_then(|m| m.get("annotations")).and_then(|a| a.get(LAST_APPLIED));
    let applied = text.and_then(Value::as_str).and_then(|text| serde_json::from_str::<Object>(text).ok());
    let Some(applied) = applied.filter(|applied| applied.get("apiVersion").is_some_and(|v| v == who.api_version))
    else {
        return Set::default();
    };
    let mut set = merge::claimed(&applied, schema.resolve());
    let changes = compare::fields(&applied, live, schema.resolve());
    set.subtract(&changes.changed);
    set.subtract(&changes.removed);
    set
}

/// Keeps the annotation of `kubectl apply` in step, for those that still use it, where there is one.
fn keep_last_applied(object: &mut Object, config: &Object) {
    let annotations = object.get_mut("metadata").and_then(|m| m.get_mut("annotations")).and_then(Value::as_object_mut);
    let Some(annotations) = annotations.filter(|annotations| annotations.contains_key(LAST_APPLIED)) else { return };
    let mut config = config.clone();
    if let Some(own) = config.get_mut("metadata").and_then(|m| m.get_mut("annotations")).and_then(Value::as_object_mut)
    {
        own.remove(LAST_APPLIED);
    }
    let text = Value::Object(config).to_string() + "\n";
    let others_bytes: usize = annotations
        .iter()
        .filter(|(key, _)| *key != LAST_APPLIED)
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    let fits = others_bytes + LAST_APPLIED.len() + text.len() <= MAX_ANNOTATION_BYTES;
    annotations.insert(LAST_APPLIED.to_owned(), json!(if fits { text } else { String::new() }));
}

/// The sentence that names what others own.
fn conflict_message(conflicts: &[(String, String)]) -> String {
    if let [(manager, path)] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {manager}: {path}");
    }
    let mut lines = Vec::new();
    let mut last = None;
    for (manager, path) in conflicts {
        if last != Some(manager) {
            lines.push(format!("conflicts with {manager}:"));
            last = Some(manager);
        }
        lines.push(format!("- {path}"));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

#[cfg(test)]
mod tests;
