//! Reads the objects that plugins named, and makes preconditions of those that are pinned.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use carrack_store::{Check, Entry, Range, Store};

use super::{AdmissionPlugin, Attributes, Lookup, Needed};
use crate::keys;
use crate::object::Object;
use crate::status::Status;
use crate::stored;

/// What was found for a write.
#[derive(Default)]
pub(crate) struct Found {
    one: BTreeMap<[String; 4], Read>,
    many: BTreeMap<[String; 3], Vec<Read>>,
    /// What the write rests on.
    pub checks: Vec<Check>,
}

/// An object, parsed when somebody looks into it.
struct Read {
    entry: Arc<Entry>,
    object: OnceLock<Object>,
}

impl Read {
    fn of(entry: Arc<Entry>) -> Read {
        Read { entry, object: OnceLock::new() }
    }

    fn object(&self) -> &Object {
        stored::parsed(&self.entry).unwrap_or_else(|| self.object.get_or_init(|| stored::parse(&self.entry)))
    }
}

impl Lookup for Found {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<&Object> {
        self.one.get(&[group, resource, namespace, name].map(str::to_owned)).map(Read::object)
    }

    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<&Object> {
        let many = self.many.get(&[group, resource, namespace].map(str::to_owned));
        many.into_iter().flatten().map(Read::object).collect()
    }

    fn entries(&self, group: &str, resource: &str, namespace: &str) -> Vec<&Entry> {
        let many = self.many.get(&[group, resource, namespace].map(str::to_owned));
        many.into_iter().flatten().map(|read| &*read.entry).collect()
    }

    fn names(&self, group: &str, resource: &str, namespace: &str) -> Vec<&str> {
        let many = self.many.get(&[group, resource, namespace].map(str::to_owned));
        many.into_iter().flatten().filter_map(|read| read.entry.key.rsplit('/').next()).collect()
    }
}

impl Found {
    /// Makes a precondition of an object that was read in a list: it is unchanged.
    pub(super) fn pin(&mut self, key: &Arc<str>) {
        let pinned = self.checks.iter().any(|check| match check {
            Check::Unchanged(known, _) | Check::Absent(known) | Check::Exists(known) => known == key,
        });
        let entry = self.many.values().flatten().map(|read| &read.entry).find(|entry| entry.key == *key);
        if let (false, Some(entry)) = (pinned, entry) {
            self.checks.push(Check::Unchanged(Arc::clone(key), entry.mod_revision));
        }
    }
}

/// Reads what the plugins need for this write.
pub(crate) async fn fetch(
    store: &dyn Store,
    plugins: &[Box<dyn AdmissionPlugin>],
    attributes: &Attributes<'_>,
) -> Result<Found, Status> {
    let mut needed: Vec<Needed> = plugins.iter().flat_map(|plugin| plugin.needs(attributes)).collect();
    // A pinned wish comes first of its equals, so that it counts.
    needed.sort_by(|a, b| {
        (&a.group, &a.resource, &a.namespace, &a.name, !a.pinned).cmp(&(
            &b.group,
            &b.resource,
            &b.namespace,
            &b.name,
            !b.pinned,
        ))
    });
    needed.dedup_by(|b, a| {
        (&a.group, &a.resource, &a.namespace, &a.name) == (&b.group, &b.resource, &b.namespace, &b.name)
    });
    let mut found = Found::default();
    for Needed { group, resource, namespace, name, pinned } in needed {
        let prefix = keys::of(&group, &resource, Some(namespace.as_str()).filter(|n| !n.is_empty()));
        if name.is_empty() {
            let page = store.range(Range { prefix, after: None, limit: 0, at: None }).await?;
            if pinned {
                let unchanged = |entry: &Arc<Entry>| Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision);
                found.checks.extend(page.entries.iter().map(unchanged));
            }
            found.many.insert([group, resource, namespace], page.entries.into_iter().map(Read::of).collect());
            continue;
        }
        let key: Arc<str> = (prefix + &name).into();
        let (entry, _) = store.get(&key).await?;
        if pinned {
            found.checks.push(match &entry {
                Some(entry) => Check::Unchanged(Arc::clone(&key), entry.mod_revision),
                None => Check::Absent(Arc::clone(&key)),
            });
        }
        if let Some(entry) = entry {
            found.one.insert([group, resource, namespace, name], Read::of(entry));
        }
    }
    Ok(found)
}
