//! Custom resources as their definition would have them now, whatever was stored and whatever is sent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use carrack_apiserver::admission::{AdmissionPlugin, Attributes, Lookup};
use carrack_apiserver::{Status, storage_prefix};
use carrack_store::{Entry, Op, Revision, Store, StoreError, StoreFuture, Txn, Watch};
use serde_json::{Value, json};

use crate::harness::{Cluster, names, now, revision};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BOATS: &str = "/apis/sea.example.com/v1/namespaces/default/boats";

/// A definition with these properties of a spec.
fn definition(properties: &Value) -> Value {
    json!({
        "metadata": {"name": "boats.sea.example.com"},
        "spec": {
            "group": "sea.example.com", "scope": "Namespaced", "names": {"plural": "boats", "kind": "Boat"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.sail"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": properties},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    })
}

fn boat(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "sea.example.com/v1", "kind": "Boat", "metadata": {"name": name}, "spec": spec})
}

#[test]
fn objects_follow_a_changed_definition() {
    let cluster = Cluster::new();
    let text = json!({"type": "string"});
    let made = cluster.post(CRDS, &definition(&json!({"sail": text, "oars": text}))).expect(201);
    cluster.post(BOATS, &boat("old", json!({"oars": "two"}))).expect(201);
    let mut changed = definition(&json!({"sail": {"type": "string", "default": "lug"}}));
    changed["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    cluster.put(&format!("{CRDS}/boats.sea.example.com"), &changed).expect(200);
    // What is new is completed, what is known no more is pruned, however it is asked for.
    let want = json!({"sail": "lug"});
    let old = cluster.get(&format!("{BOATS}/old")).expect(200);
    assert_eq!(old["spec"], want);
    assert_eq!(cluster.get(BOATS).expect(200)["items"][0]["spec"], want);
    assert_eq!(cluster.watch(&format!("{BOATS}?watch=true")).events()[0]["object"]["spec"], want);
    assert_eq!(names(&cluster.get(&format!("{BOATS}?fieldSelector=spec.sail%3Dlug")).expect(200)), ["old"]);
    // Who writes its status has not changed what it is to be.
    let told = cluster.merge(&format!("{BOATS}/old/status"), &json!({"status": {"afloat": true}})).expect(200);
    assert_eq!((&told["metadata"]["generation"], &told["spec"]), (&old["metadata"]["generation"], &want));
    // Stored it is as it was, but for what is written.
    assert_eq!(cluster.get(&format!("{BOATS}/old")).expect(200)["status"]["afloat"], true);
}

#[test]
fn a_watch_from_before_shows_what_it_replays_as_it_is_defined_now() {
    let cluster = Cluster::new();
    let text = json!({"type": "string"});
    cluster.post(CRDS, &definition(&json!({"sail": text}))).expect(201);
    let first = cluster.post(BOATS, &boat("old", json!({}))).expect(201);
    cluster.delete(&format!("{BOATS}/old")).expect(200);
    let path = format!("{CRDS}/boats.sea.example.com");
    let mut before = cluster.watch(&format!("{BOATS}?watch=true&resourceVersion={}", revision(&first) - 1));
    assert_eq!(before.events()[0]["object"]["spec"], json!({}));
    let lug = json!({"spec": definition(&json!({"sail": {"type": "string", "default": "lug"}}))["spec"]});
    cluster.merge(&path, &lug).expect(200);
    let mut after = cluster.watch(&format!("{BOATS}?watch=true&resourceVersion={}", revision(&first) - 1));
    let told: Vec<_> =
        after.events().iter().map(|event| (event["type"].clone(), event["object"]["spec"].clone())).collect();
    assert_eq!(told, [(json!("ADDED"), json!({"sail": "lug"})), (json!("DELETED"), json!({"sail": "lug"}))]);
}

#[test]
fn a_watch_ends_with_its_definition() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition(&json!({"sail": {"type": "string"}}))).expect(201);
    let path = format!("{CRDS}/boats.sea.example.com");
    let mut watch = cluster.watch(&format!("{BOATS}?watch=true"));
    // What changes nothing of what is served ends nothing.
    cluster.merge(&path, &json!({"metadata": {"labels": {"a": "b"}}})).expect(200);
    cluster.post(BOATS, &boat("a", json!({"sail": "lug"}))).expect(201);
    assert_eq!((watch.summary(), watch.ended), (vec!["ADDED a".to_owned()], false));
    cluster.merge(&path, &json!({"spec": {"names": {"shortNames": ["bo"]}}})).expect(200);
    assert_eq!((watch.summary(), watch.ended), (vec![], true));
    // Those who watch are told that all are gone before they are told that nothing is served.
    let mut watch = cluster.watch(&format!("{BOATS}?watch=true"));
    cluster.delete(&path).expect(200);
    assert_eq!((watch.summary(), watch.ended), (vec!["ADDED a".to_owned(), "DELETED a".to_owned()], true));
}

/// A store that counts the watches that have been opened on the definition of boats, and how often one of these was read.
struct Counted {
    store: Arc<dyn Store>,
    opened: AtomicUsize,
    read: AtomicUsize,
}

impl Counted {
    /// A cluster on such a store.
    fn cluster() -> (Cluster, Arc<Counted>) {
        let mut counted = None;
        let cluster = Cluster::with(|config| {
            let (opened, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let store = Arc::new(Counted { store: config.store.clone(), opened, read });
            config.store = store.clone();
            counted = Some(store);
        });
        (cluster, counted.expect("the store"))
    }
}

impl carrack_store::Layer for Counted {
    fn below(&self) -> &dyn Store {
        &*self.store
    }
    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Option<Arc<Entry>>, Revision)> {
        if key.starts_with("/registry/sea.example.com/boats/") {
            self.read.fetch_add(1, Ordering::Relaxed);
        }
        self.store.get(key)
    }
    fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        if prefix.ends_with("boats.sea.example.com") {
            self.opened.fetch_add(1, Ordering::Relaxed);
        }
        self.store.watch(prefix, after)
    }
}

#[test]
fn however_many_watch_a_definition_is_watched_once() {
    let (cluster, counted) = Counted::cluster();
    let opened = || counted.opened.load(Ordering::Relaxed);
    cluster.post(CRDS, &definition(&json!({"sail": {"type": "string"}}))).expect(201);
    let path = format!("{CRDS}/boats.sea.example.com");
    let watch = || cluster.watch(&format!("{BOATS}?watch=true"));
    let mut all: Vec<_> = (0..5).map(|_| watch()).collect();
    assert_eq!(opened(), 1);
    // Whoever looks first, and whoever has gone, all are told that another one is in force.
    all.remove(0);
    assert!(all.iter_mut().all(|watch| watch.events().is_empty() && !watch.ended));
    all.remove(2);
    cluster.merge(&path, &json!({"spec": {"names": {"shortNames": ["bo"]}}})).expect(200);
    // Who comes now follows the new one.
    let mut late = watch();
    assert!(all.iter_mut().all(|watch| watch.events().is_empty() && watch.ended));
    assert!(late.events().is_empty() && !late.ended);
    assert_eq!(opened(), 2);
    cluster.merge(&path, &json!({"spec": {"names": {"shortNames": ["bt"]}}})).expect(200);
    assert!(late.events().is_empty() && late.ended);
    // When all have gone, nothing is left of it.
    drop((all, late));
    drop(watch());
    drop(watch());
    assert_eq!(opened(), 4);
}

/// There may be thousands, and each has to go by itself.
#[test]
fn who_goes_with_a_definition_has_no_others_looked_at() {
    const MANY: usize = 10;
    let (cluster, counted) = Counted::cluster();
    cluster.post(CRDS, &definition(&json!({"sail": {"type": "string"}}))).expect(201);
    for number in 0..MANY {
        let mut held = boat(&format!("b{number}"), json!({}));
        held["metadata"]["finalizers"] = json!(["example.com/hold"]);
        cluster.post(BOATS, &held).expect(201);
    }
    let path = format!("{CRDS}/boats.sea.example.com");
    cluster.delete(&path).expect(200);
    for number in 0..MANY {
        cluster.get(&path).expect(200);
        counted.read.store(0, Ordering::Relaxed);
        cluster.merge(&format!("{BOATS}/b{number}"), &json!({"metadata": {"finalizers": null}})).expect(200);
        let read = counted.read.load(Ordering::Relaxed);
        assert!(read < 3, "{read} of {MANY} were read for one");
    }
    cluster.get(&path).expect(404);
}

/// What stands in the definition of boats, and what is to stand there.
type Next = Arc<Mutex<Option<[String; 2]>>>;

/// Changes the definition of boats while a boat is on its way to the store, once.
struct Shipyard {
    store: Arc<dyn Store>,
    next: Next,
}

impl Shipyard {
    /// In a cluster whose boats have these properties, all of them texts.
    fn with(properties: &[&str]) -> (Cluster, Next) {
        let next = Next::default();
        let cluster = Cluster::with(|config| {
            config.plugins.push(Box::new(Shipyard { store: config.store.clone(), next: next.clone() }));
        });
        let properties: Value = properties.iter().map(|name| (*name, json!({"type": "string"}))).collect();
        cluster.post(CRDS, &definition(&properties)).expect(201);
        (cluster, next)
    }
}

impl AdmissionPlugin for Shipyard {
    fn name(&self) -> &'static str {
        "Shipyard"
    }
    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        let next = if attributes.row.plural == "boats" { self.next.lock().expect("lock").take() } else { None };
        if let Some([before, after]) = next {
            let key = format!(
                "{}boats.sea.example.com",
                storage_prefix("apiextensions.k8s.io", "customresourcedefinitions", None)
            );
            let entry = now(self.store.get(&key)).expect("readable").0.expect("a definition");
            let text = String::from_utf8(entry.value().to_vec()).expect("text").replacen(&before, &after, 1);
            let value = carrack_store::Value { bytes: text.into(), stamp_at: None };
            let ops = vec![Op::Put(entry.key.clone(), value)];
            now(self.store.transact(Txn { checks: Vec::new(), ops })).expect("committed");
        }
        Ok(())
    }
}

#[test]
fn what_is_written_while_its_definition_changes_is_as_that_has_it() {
    let (cluster, next) = Shipyard::with(&["sail", "deck", "hull", "keel", "mast"]);
    let path = format!("{BOATS}/a");
    let applied = "application/apply-patch+yaml";
    let during = |property: &str| {
        let plain = format!("\"{property}\":{{");
        let default = format!("{plain}\"default\":\"oak\",");
        *next.lock().expect("lock") = Some([plain, default]);
    };
    during("deck");
    assert_eq!(cluster.post(BOATS, &boat("a", json!({}))).expect(201)["spec"], json!({"deck": "oak"}));
    during("hull");
    cluster.merge(&path, &json!({"metadata": {"labels": {"a": "b"}}})).expect(200);
    assert_eq!(cluster.get(&path).expect(200)["spec"], json!({"deck": "oak", "hull": "oak"}));
    during("keel");
    cluster.patch(&format!("{path}?fieldManager=me"), applied, &boat("a", json!({}))).expect(200);
    assert_eq!(cluster.get(&path).expect(200)["spec"]["keel"], "oak");
    during("mast");
    cluster.patch(&format!("{BOATS}/b?fieldManager=me"), applied, &boat("b", json!({}))).expect(201);
    assert_eq!(cluster.get(&format!("{BOATS}/b")).expect(200)["spec"]["mast"], "oak");
}

#[test]
fn what_its_definition_loses_meanwhile_is_not_written() {
    let (cluster, next) = Shipyard::with(&["sail", "deck", "hull", "keel", "mast"]);
    let path = format!("{BOATS}/a");
    let applied = "application/apply-patch+yaml";
    let during = |property: &str| {
        *next.lock().expect("lock") = Some([format!("\"{property}\":{{"), format!("\"old-{property}\":{{")]);
    };
    let mut made = cluster.post(BOATS, &boat("a", json!({}))).expect(201);
    made["spec"] = json!({"deck": "oak", "sail": "lug"});
    during("deck");
    cluster.put(&path, &made).expect(200);
    assert_eq!(cluster.get(&path).expect(200)["spec"], json!({"sail": "lug"}));
    during("hull");
    let config = boat("a", json!({"hull": "oak", "keel": "elm"}));
    cluster.patch(&format!("{path}?fieldManager=me"), applied, &config).expect(200);
    assert_eq!(cluster.get(&path).expect(200)["spec"], json!({"keel": "elm", "sail": "lug"}));
    during("mast");
    let config = boat("b", json!({"keel": "elm", "mast": "oak"}));
    cluster.patch(&format!("{BOATS}/b?fieldManager=me"), applied, &config).expect(201);
    assert_eq!(cluster.get(&format!("{BOATS}/b")).expect(200)["spec"], json!({"keel": "elm"}));
}

#[test]
fn nulls_are_nothing_where_nothing_may_be_null() {
    let cluster = Cluster::new();
    let properties = json!({
        "sail": {"type": "string"},
        "mast": {"type": "string", "default": "oak"},
        "keel": {"type": "string", "nullable": true},
        "crew": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "flags": {"type": "object", "additionalProperties": {"type": "string"}},
    });
    cluster.post(CRDS, &definition(&properties)).expect(201);
    let sent =
        json!({"sail": null, "mast": null, "keel": null, "crew": [{"name": null}], "flags": {"a": null, "b": "c"}});
    let want = json!({"mast": "oak", "keel": null, "crew": [{}], "flags": {"b": "c"}});
    assert_eq!(cluster.post(BOATS, &boat("a", sent.clone())).expect(201)["spec"], want);
    let applied = boat("b", sent);
    let path = format!("{BOATS}/b?fieldManager=me");
    assert_eq!(cluster.patch(&path, "application/apply-patch+yaml", &applied).expect(201)["spec"], want);
    // Items of a list are not dropped.
    cluster.post(BOATS, &boat("c", json!({"crew": [null]}))).refused(422, "Invalid", "spec.crew[0]");
}

#[test]
fn replacing_says_what_it_replaces() {
    let cluster = Cluster::new();
    let made = cluster.post(CRDS, &definition(&json!({"sail": {"type": "string"}}))).expect(201);
    assert_eq!(made["kind"], "CustomResourceDefinition");
    cluster.post(BOATS, &boat("a", json!({"sail": "lug"}))).expect(201);
    let path = format!("{BOATS}/a");
    let refused = "boats.sea.example.com \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update";
    for place in [path.clone(), format!("{path}/status")] {
        cluster.put(&place, &boat("a", json!({}))).refused(422, "Invalid", refused);
    }
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    cluster.post(leases, &json!({"metadata": {"name": "l"}, "spec": {}})).expect(201);
    let taken = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    cluster.put(&format!("{leases}/l"), &taken).refused(422, "Invalid", "must be specified for an update");
    // Patches are about whatever is there, and so are kinds of which upstream says so.
    cluster.merge(&path, &json!({"spec": {"sail": "jib"}})).expect(200);
    let maps = "/api/v1/namespaces/default/configmaps";
    cluster.post(maps, &json!({"metadata": {"name": "m"}})).expect(201);
    cluster.put(&format!("{maps}/m"), &json!({"metadata": {"name": "m"}, "data": {"a": "b"}})).expect(200);
}

#[test]
fn a_long_list_costs_no_more_than_its_length() {
    let cluster = Cluster::new();
    let key = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "integer"}}});
    let properties = json!({
        "numbers": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}},
        "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": key},
        "sail": {"type": "string"},
    });
    cluster.post(CRDS, &definition(&properties)).expect(201);
    let numbers: Vec<u32> = (0..60_000).collect();
    let keyed: Vec<Value> = (0..10_000).map(|k| json!({"k": k})).collect();
    cluster.post(BOATS, &boat("a", json!({"numbers": numbers, "keyed": keyed}))).expect(201);
    cluster.merge(&format!("{BOATS}/a"), &json!({"spec": {"numbers": [1, 2, 1]}})).refused(
        422,
        "Invalid",
        "spec.numbers[2]: Duplicate value: 1",
    );
    let mut longer = keyed;
    longer.push(json!({"k": 10_000}));
    cluster.merge(&format!("{BOATS}/a"), &json!({"spec": {"keyed": longer}})).expect(200);
}
