//! ResourceQuota: what a namespace may hold at most.
//!
//! A write is charged in the transaction that stores it, with the quota pinned: two requests, or two
//! API servers, cannot both take the last of something. That there is no other quota is pinned as well: whoever has
//! read that there is none is decided again when one has come. What goes is given back the same way; the
//! controller that counts anew is for what no write shows (a pod that is overdue), and for what was made while a
//! new quota was counted.
//!
//! What the server is told to limit ([`Limits`]) is refused where no quota is for it.

mod limited;
mod scopes;
mod usage;

use carrack_types::pod::ResourceList;
use carrack_types::quantity::Quantity;
use carrack_types::well_known::storage::CLASS_ANNOTATION;
use serde_json::{Map, Value};

pub(crate) use self::limited::Limits;
use self::limited::Uncovered;
use super::{AdmissionPlugin, Along, Attributes, Change, Lookup, Needed, Operation};
use crate::object::{Object, at, child_mut, meta, name};
use crate::status::Status;

const QUOTAS: &str = "resourcequotas";

pub(super) struct ResourceQuota {
    /// What nobody may have without a quota.
    pub limits: Limits,
}

impl AdmissionPlugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        let namespace = attributes.namespace;
        if namespace.is_empty() || attributes.is("", "events") {
            return Vec::new();
        }
        let mut needed = Vec::new();
        if is_quota(attributes) && attributes.operation != Operation::Delete {
            let counted = counted(&limits(attributes));
            // Not pinned: where much is made and reported, that would hardly ever be still. What this misses was there before the
            // quota, or before its new limit; the controller has it counted once more when it sees that one.
            needed.extend(counted.map(|(group, plural)| Needed::all(&group, &plural, namespace)));
        }
        // What a new object counts for is known only when it is complete; one that goes counts for itself at least.
        let certain = match attributes.operation {
            Operation::Create => attributes.subresource.is_empty(),
            Operation::Delete => attributes.old.is_some(),
            _ => false,
        };
        if certain || !difference(attributes).is_empty() || moves(attributes) {
            needed.push(Needed::all("", QUOTAS, namespace).pinned());
        }
        needed
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if is_quota(attributes) && attributes.operation != Operation::Delete {
            count(attributes, lookup);
        }
        Ok(())
    }

    fn along(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<Vec<Along>, Status> {
        let quotas = lookup.list("", QUOTAS, attributes.namespace);
        if !self.limits.is_empty() && is_limited(attributes) {
            let (group, plural) = (&*attributes.row.group, &*attributes.row.plural);
            let (object, used) = (&attributes.object, of(attributes, &attributes.object));
            if let Some(uncovered) = self.limits.uncovered((group, plural), object, &used, &quotas) {
                return Err(refused(attributes, &uncovered));
            }
        }
        if quotas.is_empty() {
            return Ok(Vec::new());
        }
        let mut changed = Vec::new();
        for quota in quotas {
            if let Some(charged) = charge(attributes, quota)? {
                changed.push(Along {
                    group: "",
                    resource: QUOTAS,
                    namespace: attributes.namespace.to_owned(),
                    name: name(quota).to_owned(),
                    change: Change::Replace(charged),
                });
            }
        }
        Ok(changed)
    }
}

fn is_quota(attributes: &Attributes<'_>) -> bool {
    attributes.row.group.is_empty()
        && attributes.row.plural == QUOTAS
        && matches!(attributes.subresource, "" | "status")
}

/// Whether a write has to have a quota for what is limited: it makes an object, or lets one count for more (upstream's `Handles`
/// of each evaluator).
fn is_limited(attributes: &Attributes<'_>) -> bool {
    let (group, plural) = (&*attributes.row.group, &*attributes.row.plural);
    if attributes.namespace.is_empty() || attributes.is("", "events") {
        return false;
    }
    let counts_more = || difference(attributes).values().any(|by| *by > Quantity::ZERO) || moves(attributes);
    match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") => true,
        (Operation::Update, "resize") => (group, plural) == ("", "pods") && counts_more(),
        (Operation::Update, "") => {
            let counted_anew =
                [("", "persistentvolumeclaims"), ("", "services"), ("resource.k8s.io", "resourceclaims")];
            counted_anew.contains(&(group, plural)) && counts_more()
        }
        _ => false,
    }
}

/// Refuses what no quota is for. Upstream's sentence about scopes stands by itself, without the object's name; there it comes as a
/// 500, since nobody made a Status of it, and clients that do not repeat what is forbidden repeat that.
fn refused(attributes: &Attributes<'_>, uncovered: &Uncovered) -> Status {
    match uncovered {
        Uncovered::Names(names) => attributes.forbidden(&format!("insufficient quota to consume: {names}")),
        Uncovered::Scopes(scopes) => {
            let mut status = attributes.forbidden("");
            status.message = format!("insufficient quota to match these scopes: [{scopes}]");
            status
        }
    }
}

/// The limits that hold once a quota is written: those of its spec. Who writes other ones into the status is taken at his
/// word, as upstream takes him, until the quota is counted the next time.
fn limits(attributes: &Attributes<'_>) -> ResourceList {
    let quota = &attributes.object;
    let said = at(quota, &["status", "hard"]).filter(|_| attributes.subresource == "status");
    let before = attributes.old.and_then(|old| at(old, &["status", "hard"]));
    match said {
        Some(said) if before != Some(said) => usage::amounts(Some(said)),
        _ => scopes::hard(quota),
    }
}

/// The resources that a quota with these limits has to look at.
fn counted(limits: &ResourceList) -> impl Iterator<Item = (String, String)> + use<> {
    let mut all: Vec<_> = limits.keys().filter_map(|name| usage::counted(name)).collect();
    all.sort();
    all.dedup();
    all.into_iter()
}

fn of(attributes: &Attributes<'_>, object: &Object) -> ResourceList {
    usage::of(&attributes.row.group, &attributes.row.plural, object, attributes.env.now().as_second())
}

/// Whether a change leaves alone all that an object may count by: most do, and to add it up takes its time.
fn counts_the_same(old: &Object, new: &Object) -> bool {
    let others = |object: &Object| object.len() - usize::from(object.contains_key("metadata"));
    let metadata = ["deletionTimestamp", "deletionGracePeriodSeconds"];
    others(old) == others(new)
        && old.iter().all(|(field, value)| field == "metadata" || new.get(field) == Some(value))
        && metadata.iter().all(|field| meta(old, field) == meta(new, field))
        && meta(old, "annotations").and_then(|all| all.get(CLASS_ANNOTATION))
            == meta(new, "annotations").and_then(|all| all.get(CLASS_ANNOTATION))
}

/// Whether a change takes an object from the scopes of some quotas to those of others.
fn moves(attributes: &Attributes<'_>) -> bool {
    let plural = &*attributes.row.plural;
    let (Operation::Update, Some(old)) = (attributes.operation, attributes.old) else { return false };
    !counts_the_same(old, &attributes.object)
        && scopes::may_change(plural, old) != scopes::may_change(plural, &attributes.object)
}

/// By how much what the object counts for changes; names that stay as they are left out.
fn difference(attributes: &Attributes<'_>) -> ResourceList {
    let new = (attributes.operation != Operation::Delete).then_some(&attributes.object);
    delta(attributes, new, attributes.old)
}

/// By how much more the one counts than the other.
fn delta(attributes: &Attributes<'_>, new: Option<&Object>, old: Option<&Object>) -> ResourceList {
    if let (Some(new), Some(old)) = (new, old)
        && counts_the_same(old, new)
    {
        return ResourceList::new();
    }
    let mut used = new.map(|new| of(attributes, new)).unwrap_or_default();
    for (name, quantity) in old.map(|old| of(attributes, old)).unwrap_or_default() {
        *used.entry(name).or_default() -= quantity;
    }
    used.retain(|_, quantity| !quantity.is_zero());
    used
}

/// The quota with the write charged to it; none when it is not concerned. What comes into its scopes counts whole, and what
/// leaves them gives back all.
fn charge(attributes: &Attributes<'_>, quota: &Object) -> Result<Option<Object>, Status> {
    let plural = &*attributes.row.plural;
    if is_quota(attributes) && name(quota) == attributes.name {
        return Ok(None);
    }
    let matches = |object: &&Object| scopes::matches(quota, plural, object);
    let new = (attributes.operation != Operation::Delete).then_some(&attributes.object).filter(matches);
    let old = attributes.old.filter(matches);
    if new.is_none() && old.is_none() {
        return Ok(None);
    }
    let hard = match at(quota, &["status", "hard"]) {
        Some(hard) => usage::amounts(Some(hard)),
        None => scopes::hard(quota),
    };
    let quota_name = name(quota);
    // First of all: what a pod does not say is charged nowhere.
    if let Some(pod) = new.filter(|_| plural == "pods" && attributes.operation == Operation::Create)
        && let Some(why) = usage::unsaid(hard.keys(), pod)
    {
        return Err(attributes.forbidden(&format!("failed quota: {quota_name}: {why}")));
    }
    let mut delta = delta(attributes, new, old);
    delta.retain(|name, _| hard.contains_key(name));
    if delta.is_empty() {
        return Ok(None);
    }
    let mut used = usage::amounts(at(quota, &["status", "used"]));
    // What a component reports is so, and is counted.
    let is_told = attributes.subresource == "status";
    let more = |name: &String| !is_told && delta.get(name).is_some_and(|by| *by > Quantity::ZERO);
    let unknown: Vec<&str> = delta.keys().filter(|n| more(n) && !used.contains_key(*n)).map(String::as_str).collect();
    if !unknown.is_empty() {
        let why = format!("status unknown for quota: {quota_name}, resources: {}", unknown.join(","));
        return Err(attributes.forbidden(&why));
    }
    let before = used.clone();
    for (name, by) in &delta {
        let total = used.entry(name.clone()).or_default();
        *total = (*total + *by).max(Quantity::ZERO);
    }
    let over: Vec<&String> = delta.keys().filter(|n| more(n) && used.get(*n) > hard.get(*n)).collect();
    if !over.is_empty() {
        let shown = |list: &ResourceList| {
            let pairs = over.iter().map(|name| format!("{name}={}", list.get(*name).copied().unwrap_or_default()));
            pairs.collect::<Vec<_>>().join(",")
        };
        return Err(attributes.forbidden(&format!(
            "exceeded quota: {quota_name}, requested: {}, used: {}, limited: {}",
            shown(&delta),
            shown(&before),
            shown(&hard)
        )));
    }
    let mut charged = quota.clone();
    child_mut(&mut charged, "status").insert("used".to_owned(), texts(&used));
    Ok(Some(charged))
}

fn texts(list: &ResourceList) -> Value {
    Value::Object(
        list.iter().map(|(name, quantity)| (name.clone(), quantity.to_string().into())).collect::<Map<_, _>>(),
    )
}

/// A new quota, or one with other limits, holds from the start: its status says what is there. Who writes the status
/// asks for it to be counted; what the writer says is used is not taken.
fn count(attributes: &mut Attributes<'_>, lookup: &dyn Lookup) {
    let quota = &attributes.object;
    let hard = limits(attributes);
    let asked = attributes.subresource == "status";
    if !asked && attributes.old.is_some_and(|old| old.get("spec") == quota.get("spec")) {
        return;
    }
    // Of what nothing is charged to nothing is said.
    let known = hard.keys().filter(|name| usage::counted(name).is_some());
    let mut used: ResourceList = known.map(|name| (name.clone(), Quantity::ZERO)).collect();
    for (group, plural) in counted(&hard) {
        for object in lookup.list(&group, &plural, attributes.namespace) {
            if !scopes::matches(quota, &plural, object) {
                continue;
            }
            for (name, quantity) in usage::of(&group, &plural, object, attributes.env.now().as_second()) {
                if let Some(total) = used.get_mut(&name) {
                    *total += quantity;
                }
            }
        }
    }
    // A quota may count quotas, and is one.
    if attributes.operation == Operation::Create {
        for (name, quantity) in usage::of("", QUOTAS, quota, 0) {
            if let Some(total) = used.get_mut(&name) {
                *total += quantity;
            }
        }
    }
    let status = child_mut(&mut attributes.object, "status");
    status.insert("hard".to_owned(), texts(&hard));
    status.insert("used".to_owned(), texts(&used));
}
