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
//! What a manager owns is said in the version that it wrote in. Objects are taken to that version to be held against it, old
//! and new alike, so a field under another name there is the same field; sets in versions that are gone go.
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
mod piece;
mod set;
mod text;
mod view;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::schema::Schema;
use compare::Changes;
use managed::{Entry, Fields};
use merge::Emptied;

pub use managed::{Managed, Operation, Writer};
pub use piece::{atomics, merge_piece};
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
    /// Makes an object of another form, given its `apiVersion`. Where others have to be asked for it, it fails at first, and
    /// what is decided with it is decided again once they have answered.
    pub convert: &'s dyn Fn(&Object, &str) -> Result<Object, Unconverted>,
    /// Drops from an object what is as good as absent, and so is not stored.
    pub settle: &'s dyn Fn(&mut Object),
}

/// It is not known (yet) what an object is in another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not known what the object is in another version")]
pub struct Unconverted;

/// How objects look in some of the versions.
#[derive(Clone, Copy)]
struct Form<'v, 's> {
    /// The `apiVersion` that stands for all that look so: the request's, where it is among them.
    api_version: &'v str,
    schema: &'s Schema,
}

impl<'s> Kind<'s> {
    /// The form of a version, given the request's. None when there is no such version.
    fn form<'v>(&self, own: &'v str, api_version: &'v str) -> Option<Form<'v, 's>> {
        let own = Form { api_version: own, schema: self.schema };
        if api_version == own.api_version {
            return Some(own);
        }
        match (self.other)(api_version) {
            Other::Unknown => None,
            Other::Same => Some(own),
            Other::Form(schema) => Some(Form { api_version, schema }),
        }
    }

    /// An object of one form in another one.
    fn turned<'o>(
        &self,
        object: Cow<'o, Object>,
        from: Form<'_, '_>,
        to: Form<'_, '_>,
    ) -> Result<Cow<'o, Object>, Unconverted> {
        if from.api_version == to.api_version {
            return Ok(object);
        }
        (self.convert)(&object, to.api_version).map(Cow::Owned)
    }
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
    /// It cannot be said before [`Kind::convert`] knows an object in another version.
    #[error(transparent)]
    Unconverted(#[from] Unconverted),
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
///
/// # Errors
/// When an object is not known in the version of a manager. Then `managed` is as it was.
pub fn update(
    old: &Object,
    new: &Object,
    kind: &Kind<'_>,
    managed: &mut Managed,
    who: &Writer<'_>,
) -> Result<bool, Unconverted> {
    let changes = owned_changes(old, new, kind.schema);
    if changes.is_empty() {
        return Ok(false);
    }
    let mut versions = Versions::of(managed, (old, new), changes, kind, who.api_version)?;
    lose(managed, &versions, who, Spared::Updater);
    let gained = std::mem::take(&mut versions.own.changed);
    if !gained.is_empty() {
        managed.give(who, gained);
    }
    managed.entries.retain(|entry| !entry.fields.is_empty());
    cap_updaters(managed);
    Ok(true)
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
fn lose(managed: &mut Managed, versions: &Versions<'_, '_>, who: &Writer<'_>, spared: Spared) {
    let mut gone = false;
    let own = if spared == Spared::Updater { managed.find(who, Operation::Update) } else { None };
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

/// What a write changes, in each version that managers speak. Objects are converted once for each version, however many managers
/// there are that speak it.
struct Versions<'a, 's> {
    /// The request's.
    api_version: &'a str,
    kind: &'a Kind<'s>,
    /// The changes in the request's version.
    own: Changes,
    /// The same in versions that have another form.
    other: BTreeMap<String, Changes>,
}

impl<'a, 's> Versions<'a, 's> {
    /// `own` is what differs between the old object and the new one in the request's version.
    fn of(
        managed: &Managed,
        (old, new): (&Object, &Object),
        own: Changes,
        kind: &'a Kind<'s>,
        api_version: &'a str,
    ) -> Result<Versions<'a, 's>, Unconverted> {
        let mut other: BTreeMap<String, Changes> = BTreeMap::new();
        for entry in &managed.entries {
            let Some(form) = kind.form(api_version, &entry.api_version) else { continue };
            if form.api_version == api_version || other.contains_key(form.api_version) {
                continue;
            }
            // Both are asked for before one is missed, so that they are asked for together.
            let (old, new) = ((kind.convert)(old, form.api_version), (kind.convert)(new, form.api_version));
            other.insert(form.api_version.to_owned(), owned_changes(&old?, &new?, form.schema));
        }
        Ok(Versions { api_version, kind, own, other })
    }

    /// The changes in a version. None when the version is not known.
    fn changes(&self, api_version: &str) -> Option<&Changes> {
        let form = self.kind.form(self.api_version, api_version)?;
        if form.api_version == self.api_version { Some(&self.own) } else { self.other.get(form.api_version) }
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
/// When the object does not fit its schema, or changes what others own and is not forced; when an object is not known in the
/// version of a manager.
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
    let (own, empty) = (Form { api_version: who.api_version, schema: kind.schema }, Object::new());
    if let (Some(live), true) = (live, managed.is_empty()) {
        let mut before = owned_changes(&nothing(false, live), live, kind.schema);
        let who = Writer { manager: BEFORE_FIRST_APPLY, subresource: "", ..*who };
        managed.give(&who, std::mem::take(&mut before.changed));
    }
    let live = live.unwrap_or(&empty);
    fold(&mut managed, live, kind, own)?;

    let mut claims = merge::claimed(config, node);
    strip(&mut claims);
    let mut object = live.clone();
    merge::merge(&mut object, config, node);

    let before = managed.find(who, Operation::Apply).map(|at| managed.entries.remove(at));
    let (last, last_version, last_time) = match before {
        Some(mut entry) => (std::mem::take(entry.fields.set_mut()), entry.api_version, entry.time),
        None => (Set::default(), String::new(), String::new()),
    };
    managed.entries.push(Entry::of(who, Operation::Apply, claims.clone()));
    if let Some(form) = kind.form(own.api_version, &last_version) {
        let mut dropped = last.clone();
        // Fields of another form cannot be told from those that are applied now.
        if form.api_version == own.api_version {
            dropped.subtract(&claims);
        }
        if !dropped.is_empty() {
            object = prune(object, &managed, (&last, form), kind, own)?;
        }
    }

    let changes = owned_changes(live, &object, kind.schema);
    let versions = Versions::of(&managed, (live, &object), changes, kind, own.api_version)?;
    let conflicts = conflicts(&managed, &versions, who);
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
    lose(&mut managed, &versions, who, Spared::Applier);
    // Others are asked about what it empties. What is empty already stays so, and is no change whenever it is applied.
    (kind.settle)(&mut object);
    if last == claims
        && !last_time.is_empty()
        && owned_changes(live, &object, kind.schema).is_empty()
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

/// Drops sets in versions that are gone, and folds those that were made under another schema of their version.
fn fold(managed: &mut Managed, live: &Object, kind: &Kind<'_>, own: Form<'_, '_>) -> Result<(), Unconverted> {
    managed.entries.retain(|entry| kind.form(own.api_version, &entry.api_version).is_some());
    let mut forms: BTreeMap<String, Cow<'_, Object>> = BTreeMap::new();
    for entry in &managed.entries {
        let form = kind.form(own.api_version, &entry.api_version).unwrap_or(own);
        if !forms.contains_key(form.api_version) {
            forms.insert(form.api_version.to_owned(), kind.turned(Cow::Borrowed(live), own, form)?);
        }
    }
    let mut listed = merge::Listed::new();
    for entry in &mut managed.entries {
        let form = kind.form(own.api_version, &entry.api_version).unwrap_or(own);
        if let Some(live) = forms.get(form.api_version) {
            merge::fold_root(entry.fields.set_mut(), live, form.schema.resolve(), &mut listed);
        }
    }
    Ok(())
}

/// Takes out what the applier owned and does not apply any more, unless somebody else owns it. What
/// nobody ever owned goes only together with what it is a part of. `last` is what the applier owned, in the form that it
/// was applied in: what goes is taken out there.
fn prune<'v, 's>(
    merged: Object,
    managed: &'v Managed,
    (last, form): (&Set, Form<'v, 's>),
    kind: &Kind<'s>,
    own: Form<'v, 's>,
) -> Result<Object, Unconverted> {
    let named = |set: &Set, form: Form<'_, '_>| merge::with_named(set, form.schema);
    let claimed = |object: &Object, form: Form<'_, '_>| named(&merge::claimed(object, form.schema.resolve()), form);
    let last = named(last, form);
    // What is owned, in each form.
    let mut owned: BTreeMap<&str, (Form<'_, 's>, Set)> = BTreeMap::new();
    for entry in &managed.entries {
        if let Some(form) = kind.form(own.api_version, &entry.api_version) {
            let (_, all) = owned.entry(form.api_version).or_insert_with(|| (form, Set::default()));
            all.add(entry.fields.to_set());
        }
    }
    let owned_here = owned.remove(form.api_version).map(|(_, set)| set).unwrap_or_default();
    let merged = kind.turned(Cow::Owned(merged), own, form)?;
    let mut kept = merged.clone();
    merge::remove(kept.to_mut(), &last, form.schema.resolve(), Emptied::IsNull);
    let mut kept_form = form;
    // What others own in the applier's form comes first: a conversion may not do without it.
    let here = std::iter::once((form, &owned_here));
    for (form_of_owners, owned) in here.chain(owned.values().map(|(form, set)| (*form, set))) {
        let all = kind.turned(Cow::Borrowed(&*merged), form, form_of_owners)?;
        kept = kind.turned(kept, kept_form, form_of_owners)?;
        let mut unowned = claimed(&all, form_of_owners);
        unowned.subtract(&claimed(&kept, form_of_owners));
        unowned.subtract(&named(owned, form_of_owners));
        kept = Cow::Owned(all.into_owned());
        merge::remove(kept.to_mut(), &unowned, form_of_owners.schema.resolve(), Emptied::IsNull);
        kept_form = form_of_owners;
    }
    let kept = kind.turned(kept, kept_form, form)?;
    let mut gone = claimed(&merged, form);
    gone.subtract(&claimed(&kept, form));
    let mut pruned = merged;
    merge::remove(pruned.to_mut(), &gone.intersection(&last), form.schema.resolve(), Emptied::Goes(Some(&owned_here)));
    kind.turned(pruned, form, own).map(Cow::into_owned)
}

/// What others own of the changes, by manager.
fn conflicts(managed: &Managed, versions: &Versions<'_, '_>, who: &Writer<'_>) -> Vec<(String, Set)> {
    let mut found = Vec::new();
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
