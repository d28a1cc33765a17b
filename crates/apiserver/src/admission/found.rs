//! Reads the objects that plugins named, and makes preconditions of those that are pinned.

use std::cmp::Reverse;
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
    /// What was looked for, and whether the write rests on it.
    asked: BTreeMap<[String; 4], bool>,
    /// What the write rests on.
    pub checks: Vec<Check>,
}

/// An object, parsed when somebody looks into it.
struct Read {
    entry: Arc<Entry>,
    object: OnceLock<Arc<Object>>,
}

impl Read {
    fn of(entry: Arc<Entry>) -> Read {
        Read { entry, object: OnceLock::new() }
    }

    fn object(&self) -> &Object {
        let read = || stored::parsed(&self.entry).unwrap_or_else(|| Arc::new(stored::parse(&self.entry)));
        self.object.get_or_init(read)
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
    /// Reads what the plugins need besides, as the write is by now. What was read before stays as it was: of an address or a port
    /// that the write has taken since, somebody else's is no reason to refuse it, but to decide again.
    pub(super) async fn complete(
        &mut self,
        store: &dyn Store,
        plugins: &[Box<dyn AdmissionPlugin>],
        attributes: &Attributes<'_>,
    ) -> Result<(), Status> {
        let mut needed: Vec<Needed> = plugins.iter().flat_map(|plugin| plugin.needs(attributes)).collect();
        while !needed.is_empty() {
            self.read(store, needed).await?;
            let found: &Found = self;
            let follows = plugins.iter().flat_map(|plugin| plugin.follows(attributes, found));
            needed = follows.filter(|wanted| !found.has_asked(wanted)).collect();
        }
        Ok(())
    }

    /// Whether there is no need to look for an object once more.
    fn has_asked(&self, wanted: &Needed) -> bool {
        let asked = [&wanted.group, &wanted.resource, &wanted.namespace, &wanted.name].map(Clone::clone);
        self.asked.get(&asked).is_some_and(|was_pinned| *was_pinned || !wanted.pinned)
    }

    /// Looks for what has not been looked for.
    async fn read(&mut self, store: &dyn Store, needed: Vec<Needed>) -> Result<(), Status> {
        let wish = |n: Needed| ([n.group, n.resource, n.namespace, n.name], Reverse(n.pinned));
        let mut needed: Vec<_> = needed.into_iter().map(wish).collect();
        // A pinned wish comes first of its equals, so that it counts: the others have been asked for by then.
        needed.sort();
        for (asked, Reverse(pinned)) in needed {
            if self.asked.get(&asked).is_some_and(|was_pinned| *was_pinned || !pinned) {
                continue;
            }
            self.asked.insert(asked.clone(), pinned);
            let [group, resource, namespace, name] = asked;
            let prefix = keys::of(&group, &resource, Some(namespace.as_str()).filter(|n| !n.is_empty()));
            if name.is_empty() {
                let page = store.range(Range { prefix: prefix.clone(), after: None, limit: 0, at: None }).await?;
                if pinned {
                    let unchanged = |entry: &Arc<Entry>| Check::Unchanged(Arc::clone(&entry.key), entry.mod_revision);
                    self.checks.extend(page.entries.iter().map(unchanged));
                    self.checks.push(Check::NoneSince(prefix.into(), page.revision));
                }
                self.many.insert([group, resource, namespace], page.entries.into_iter().map(Read::of).collect());
                continue;
            }
            let key: Arc<str> = (prefix + &name).into();
            let (entry, _) = store.get(&key).await?;
            if pinned {
                self.checks.push(match &entry {
                    Some(entry) => Check::Unchanged(Arc::clone(&key), entry.mod_revision),
                    None => Check::Absent(Arc::clone(&key)),
                });
            }
            let one = [group, resource, namespace, name];
            match entry {
                Some(entry) => drop(self.one.insert(one, Read::of(entry))),
                None => drop(self.one.remove(&one)),
            }
        }
        Ok(())
    }

    /// Makes a precondition of an object that was read in a list: it is unchanged.
    pub(super) fn pin(&mut self, key: &Arc<str>) {
        let pinned = self.checks.iter().any(|check| check.key() == Some(key));
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
    let mut found = Found::default();
    found.complete(store, plugins, attributes).await?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use carrack_auth::Caller;
    use carrack_store::{MemStore, Op, Txn};
    use futures::FutureExt as _;
    use serde_json::json;

    use super::*;
    use crate::admission::Operation;
    use crate::env::tests::Still;

    /// It wants all nodes, and a namespace that is called as the object.
    struct Wants;

    impl AdmissionPlugin for Wants {
        fn name(&self) -> &'static str {
            "Wants"
        }
        fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
            vec![Needed::all("", "nodes", ""), Needed::one("", "namespaces", "", &attributes.name).pinned()]
        }
    }

    /// It wants a node, and each that the one before names.
    struct Follows;

    impl AdmissionPlugin for Follows {
        fn name(&self) -> &'static str {
            "Follows"
        }
        fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
            vec![Needed::one("", "nodes", "", &attributes.name)]
        }
        fn follows(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<Needed> {
            let mut needed = self.needs(attributes);
            while let Some(wanted) = needed.last()
                && let Some(node) = lookup.get("", "nodes", "", &wanted.name)
                && let Some(next) = node.get("spec").and_then(|spec| spec.get("next")).and_then(|next| next.as_str())
                && needed.iter().all(|wanted| wanted.name != next)
            {
                needed.push(Needed::one("", "nodes", "", next));
            }
            needed
        }
    }

    fn attributes<'a>(caller: &'a Caller, name: &str) -> Attributes<'a> {
        Attributes {
            operation: Operation::Create,
            caller,
            row: carrack_schema::table::find("", "pods").expect("pods"),
            version: "v1",
            subresource: "",
            namespace: "",
            name: name.to_owned(),
            object: Object::new(),
            old: None,
            managers: None,
            old_entry: None,
            deletion: None,
            dry_run: false,
            env: &Still,
        }
    }

    fn put(store: &MemStore, resource: &str, object: serde_json::Value) {
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let value = stored::encode(object.as_object().expect("an object"), "v1", "Any");
        let op = Op::Put((keys::of("", resource, None) + &name).into(), value);
        let done = store.transact(Txn { checks: Vec::new(), ops: vec![op] }).now_or_never();
        done.expect("at once").expect("stored");
    }

    #[test]
    fn what_is_found_may_name_what_is_looked_for_next() {
        let check = |chain: &[(&str, &str)], seen: &[&str], missed: &[&str]| {
            let store = MemStore::default();
            for (name, next) in chain {
                put(&store, "nodes", json!({"metadata": {"name": name}, "spec": {"next": next}}));
            }
            let plugins: Vec<Box<dyn AdmissionPlugin>> = vec![Box::new(Follows)];
            let caller = Caller::apiserver();
            let attributes = attributes(&caller, "a");
            let found = fetch(&store, &plugins, &attributes).now_or_never().expect("at once").expect("read");
            for (names, is_there) in [(seen, true), (missed, false)] {
                for name in names {
                    assert_eq!(found.get("", "nodes", "", name).is_some(), is_there, "{name} of {chain:?}");
                }
            }
        };
        check(&[], &[], &["a"]);
        check(&[("a", "b"), ("b", "c"), ("c", "d")], &["a", "b", "c"], &["d"]);
        check(&[("a", "b"), ("b", "a"), ("c", "a")], &["a", "b"], &["c"]);
    }

    #[test]
    fn what_was_found_stays_and_what_is_new_is_found_besides() {
        let store = MemStore::default();
        let put = |resource: &str, name: &str| put(&store, resource, json!({"metadata": {"name": name}}));
        put("nodes", "a");
        put("namespaces", "y");
        let caller = Caller::apiserver();
        let plugins: Vec<Box<dyn AdmissionPlugin>> = vec![Box::new(Wants)];
        let mut attributes = attributes(&caller, "x");
        let mut found = fetch(&store, &plugins, &attributes).now_or_never().expect("at once").expect("read");
        assert!(found.get("", "namespaces", "", "x").is_none());
        put("nodes", "b");
        put("namespaces", "x");
        attributes.name = "y".to_owned();
        found.complete(&store, &plugins, &attributes).now_or_never().expect("at once").expect("read");
        assert_eq!(found.names("", "nodes", ""), ["a"], "the write may have taken something since");
        assert!(found.get("", "namespaces", "", "x").is_none() && found.get("", "namespaces", "", "y").is_some());
        assert!(matches!(found.checks[..], [Check::Absent(_), Check::Unchanged(..)]), "{:?}", found.checks);
    }
}
