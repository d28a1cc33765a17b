//! delete: at once, gracefully, after finalizers, as a collection; namespaces.

use std::sync::{Arc, Mutex};

use carrack_apiserver::admission::{AdmissionPlugin, Attributes, Lookup, Operation};
use carrack_apiserver::{Status, storage_prefix};
use carrack_store::{Op, Store, Txn};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map, names, now, pod, revision};

const EVENTS: &str = "/api/v1/namespaces/default/events";
const PODS: &str = "/api/v1/namespaces/default/pods";

#[test]
fn plain_objects_go_at_once() {
    let cluster = Cluster::new();
    let made = cluster.post(CONFIG_MAPS, &config_map("m", "x")).expect(201);
    let status = cluster.delete(&format!("{CONFIG_MAPS}/m")).expect(200);
    assert_eq!((status["kind"].as_str(), status["status"].as_str()), (Some("Status"), Some("Success")));
    assert_eq!(status["details"]["uid"], made["metadata"]["uid"]);
    assert_eq!(
        (status["details"]["name"].as_str(), status["details"]["kind"].as_str()),
        (Some("m"), Some("configmaps"))
    );
    cluster.delete(&format!("{CONFIG_MAPS}/m")).refused(404, "NotFound", "configmaps \"m\" not found");
}

#[test]
fn preconditions() {
    let cluster = Cluster::new();
    let made = cluster.post(CONFIG_MAPS, &config_map("m", "x")).expect(201);
    let path = format!("{CONFIG_MAPS}/m");
    cluster.delete_with(&path, &json!({"preconditions": {"uid": "other"}})).refused(
        409,
        "Conflict",
        "the UID in the precondition (other) does not match the UID in record",
    );
    cluster.delete_with(&path, &json!({"preconditions": {"resourceVersion": "1"}})).refused(
        409,
        "Conflict",
        "the ResourceVersion in the precondition (1) does not match",
    );
    // One that cannot be read is not none.
    cluster.delete_with(&path, &json!({"preconditions": {"uid": 5}})).refused(
        400,
        "BadRequest",
        "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: json: cannot unmarshal number",
    );
    let right =
        json!({"preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": revision(&made).to_string()}});
    cluster.delete_with(&path, &right).expect(200);
}

/// A dry run is answered as what it stands for.
#[test]
fn a_dry_run_answers_the_same() {
    let cluster = Cluster::new();
    for (plural, object, kind, is_marked) in [
        ("configmaps", json!({"metadata": {"name": "x"}}), "Status", false),
        ("configmaps", json!({"metadata": {"name": "x", "finalizers": ["example.com/hold"]}}), "ConfigMap", true),
        ("serviceaccounts", json!({"metadata": {"name": "x"}}), "ServiceAccount", false),
        ("pods", pod("x"), "Pod", true),
    ] {
        let place = format!("/api/v1/namespaces/default/{plural}");
        let uid = cluster.post(&place, &object).expect(201)["metadata"]["uid"].clone();
        let path = format!("{place}/x");
        let before = cluster.get(&path).expect(200);
        let dry = cluster.delete(&format!("{path}?dryRun=All")).expect(200);
        assert_eq!(dry["kind"], kind, "{plural}: {dry}");
        let told = if kind == "Status" { &dry["details"]["uid"] } else { &dry["metadata"]["uid"] };
        assert_eq!(*told, uid, "{plural}: {dry}");
        assert_eq!(dry["metadata"]["deletionTimestamp"].is_string(), is_marked, "{plural}: {dry}");
        assert_eq!(cluster.get(&path).expect(200), before, "{plural}");
        assert_eq!(cluster.delete(&path).expect(200)["kind"], kind, "{plural}");
    }
}

#[test]
fn a_running_pod_is_given_time() {
    let cluster = Cluster::new();
    cluster.running_pod("p");
    let path = format!("{PODS}/p");
    // Beside a body, the query says nothing but that it is a dry run.
    let body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    let dry = cluster.delete_with(&format!("{path}?gracePeriodSeconds=0&dryRun=All"), &body).expect(200);
    assert_eq!(dry["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(cluster.get(&path).expect(200)["metadata"].get("deletionTimestamp"), None);
    let marked = cluster.delete_with(&format!("{path}?gracePeriodSeconds=0"), &body).expect(200);
    assert_eq!(marked["kind"], "Pod");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2027-01-15T08:00:30Z");
    assert_eq!(marked["metadata"]["generation"], 2);
    // Asking again changes nothing; asking for less shortens it, counted from the first request.
    cluster.env.advance(5);
    assert_eq!(revision(&cluster.delete(&path).expect(200)), revision(&marked));
    assert_eq!(
        revision(&cluster.delete_with(&path, &json!({"gracePeriodSeconds": 60})).expect(200)),
        revision(&marked)
    );
    let sooner = cluster.delete_with(&path, &json!({"gracePeriodSeconds": 10})).expect(200);
    assert_eq!(sooner["metadata"]["deletionTimestamp"], "2027-01-15T08:00:10Z");
    assert_eq!(sooner["metadata"]["deletionGracePeriodSeconds"], 10);
    // The node agent says that it is done.
    let mut watch = cluster.watch(&format!("{PODS}?watch=true&resourceVersion={}", revision(&sooner)));
    let last = cluster.delete_with(&path, &json!({"gracePeriodSeconds": 0})).expect(200);
    assert_eq!(last["kind"], "Pod");
    assert_eq!(watch.summary(), ["DELETED p"]);
    cluster.get(&path).expect(404);
}

#[test]
fn a_pod_that_does_not_run_goes_at_once() {
    let cluster = Cluster::new();
    cluster.post(PODS, &pod("waiting")).expect(201);
    cluster.delete(&format!("{PODS}/waiting")).expect(200);
    cluster.get(&format!("{PODS}/waiting")).expect(404);
    cluster.running_pod("ended");
    cluster.merge(&format!("{PODS}/ended/status"), &json!({"status": {"phase": "Failed"}})).expect(200);
    cluster.delete(&format!("{PODS}/ended")).expect(200);
    cluster.get(&format!("{PODS}/ended")).expect(404);
    cluster.running_pod("forced");
    cluster.delete(&format!("{PODS}/forced?gracePeriodSeconds=0")).expect(200);
    cluster.get(&format!("{PODS}/forced")).expect(404);
    // One that ended on its way goes when its node says so.
    cluster.running_pod("going");
    let going = format!("{PODS}/going");
    cluster.delete(&going).expect(200);
    cluster.merge(&format!("{going}/status"), &json!({"status": {"phase": "Succeeded"}})).expect(200);
    for (asked, left_s) in
        [(json!({}), 30), (json!({"gracePeriodSeconds": 40}), 30), (json!({"gracePeriodSeconds": -5}), 1)]
    {
        let marked = cluster.delete_with(&going, &asked).expect(200);
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], left_s, "{asked}");
    }
    cluster.delete(&format!("{going}?gracePeriodSeconds=0")).expect(200);
    cluster.get(&going).expect(404);
}

#[test]
fn finalizers_hold_an_object() {
    let cluster = Cluster::new();
    let mut object = config_map("m", "x");
    object["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    cluster.post(CONFIG_MAPS, &object).expect(201);
    let path = format!("{CONFIG_MAPS}/m");
    let marked = cluster.delete(&path).expect(200);
    assert_eq!(
        (marked["kind"].as_str(), marked["metadata"]["deletionGracePeriodSeconds"].as_i64()),
        (Some("ConfigMap"), Some(0))
    );
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let added = json!({"metadata": {"finalizers": ["example.com/a", "example.com/b", "example.com/c"]}});
    let refused = cluster.merge(&path, &added).refused(
        422,
        "Invalid",
        "no new finalizers can be added if the object is being deleted",
    );
    assert_eq!(refused["details"]["causes"].as_array().map(Vec::len), Some(1), "{refused}");
    cluster
        .merge(&path, &json!({"metadata": {"deletionTimestamp": null, "finalizers": ["example.com/b"]}}))
        .expect(200);
    assert!(cluster.get(&path).expect(200)["metadata"]["deletionTimestamp"].is_string());
    let mut watch = cluster.watch(&format!("{CONFIG_MAPS}?watch=true&labelSelector=x"));
    assert!(watch.summary().is_empty());
    cluster.merge(&path, &json!({"metadata": {"finalizers": null}})).expect(200);
    cluster.get(&path).expect(404);
}

#[test]
fn a_graceful_pod_with_a_finalizer_waits_for_both() {
    let cluster = Cluster::new();
    cluster.running_pod("p");
    let path = format!("{PODS}/p");
    cluster.merge(&path, &json!({"metadata": {"finalizers": ["example.com/a"]}})).expect(200);
    cluster.delete(&path).expect(200);
    let stopped = cluster.delete_with(&path, &json!({"gracePeriodSeconds": 0})).expect(200);
    assert_eq!(stopped["metadata"]["deletionGracePeriodSeconds"], 0);
    cluster.merge(&path, &json!({"metadata": {"finalizers": []}})).expect(200);
    cluster.get(&path).expect(404);
}

#[test]
fn pods_of_jobs_and_replication_controllers_stay_where_nothing_is_said() {
    let cluster = Cluster::new();
    let template = |policy: &str| {
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": policy,
            "containers": [{"name": "c", "image": "i"}]}})
    };
    let batch = "/apis/batch/v1/namespaces/default/jobs";
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let controllers = "/api/v1/namespaces/default/replicationcontrollers";
    let job = json!({"metadata": {"name": "o"}, "spec": {"template": template("Never")}});
    let controller = json!({"metadata": {"name": "o"}, "spec": {"template": template("Always")}});
    let set = json!({"metadata": {"name": "o"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template("Always")}});
    let none = Value::Null;
    let background = json!({"propagationPolicy": "Background"});
    let foreground = json!({"propagationPolicy": "Foreground"});
    // The kind, what it says itself, what is asked, what it says then (nothing: it is gone), how often it is warned of
    let (orphan, waits) = (json!(["orphan"]), json!(["foregroundDeletion"]));
    for (path, object, before, options, want, told) in [
        (batch, &job, &none, &none, &orphan, 1),
        (batch, &job, &none, &json!({}), &orphan, 1),
        (batch, &job, &none, &background, &none, 0),
        (batch, &job, &none, &foreground, &waits, 0),
        (batch, &job, &waits, &none, &waits, 1),
        (controllers, &controller, &none, &none, &orphan, 0),
        (controllers, &controller, &none, &background, &none, 0),
        (sets, &set, &none, &none, &none, 0),
    ] {
        let at = format!("{path}/o");
        let mut object = object.clone();
        if !before.is_null() {
            object["metadata"]["finalizers"] = before.clone();
        }
        cluster.post(path, &object).expect(201);
        let reply = cluster.delete_with(&at, options);
        let note = format!("{path} {before} {options}");
        assert_eq!(reply.headers.get_all("warning").iter().count(), told, "{note}");
        let reply = reply.expect(200);
        assert_eq!(reply["metadata"]["finalizers"], *want, "{note}");
        if !want.is_null() {
            assert!(reply["metadata"]["deletionTimestamp"].is_string(), "{note}");
            cluster.merge(&at, &json!({"metadata": {"finalizers": null}})).expect(200);
        }
        cluster.get(&at).expect(404);
    }
    cluster.post(batch, &job).expect(201);
    let reply = cluster.delete(batch);
    assert_eq!(reply.headers.get_all("warning").iter().count(), 1);
    reply.expect(200);
    assert_eq!(cluster.get(&format!("{batch}/o")).expect(200)["metadata"]["finalizers"], orphan);
}

#[test]
fn propagation_becomes_a_finalizer() {
    let cluster = Cluster::new();
    for (policy, want) in [("Orphan", json!(["orphan"])), ("Foreground", json!(["foregroundDeletion"]))] {
        cluster.post(CONFIG_MAPS, &config_map("m", "x")).expect(201);
        let path = format!("{CONFIG_MAPS}/m");
        let marked = cluster.delete_with(&path, &json!({"propagationPolicy": policy})).expect(200);
        assert_eq!(marked["metadata"]["finalizers"], want);
        // Changing one's mind is allowed.
        cluster.delete_with(&path, &json!({"propagationPolicy": "Background"})).expect(200);
        cluster.get(&path).expect(404);
    }
    // Nobody would ever take it from an event.
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    for policy in ["Orphan", "Foreground"] {
        cluster.post(EVENTS, &event).expect(201);
        cluster.delete_with(&format!("{EVENTS}/e"), &json!({"propagationPolicy": policy})).expect(200);
        cluster.get(&format!("{EVENTS}/e")).expect(404);
    }
    cluster.post(CONFIG_MAPS, &config_map("m", "x")).expect(201);
    cluster.delete_with(&format!("{CONFIG_MAPS}/m"), &json!({"propagationPolicy": "Sideways"})).refused(
        422,
        "Invalid",
        "propagationPolicy",
    );
}

#[test]
fn collections() {
    let cluster = Cluster::new();
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        let mut object = config_map(name, "x");
        object["metadata"]["labels"] = json!({"color": color});
        cluster.post(CONFIG_MAPS, &object).expect(201);
    }
    let deleted = cluster.delete(&format!("{CONFIG_MAPS}?labelSelector=color%3Dred")).expect(200);
    assert_eq!(names(&deleted), ["a", "c"]);
    let left = || names(&cluster.get(CONFIG_MAPS).expect(200)).join(" ");
    assert_eq!(left(), "b");
    for name in ["d", "e"] {
        cluster.post(CONFIG_MAPS, &config_map(name, "x")).expect(201);
    }
    let check = |query: &str, options: Value, told: &[&str], want: &str| {
        let told: &[String] = &told.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let reply = cluster.delete_with(&format!("{CONFIG_MAPS}?{query}"), &options).expect(200);
        assert_eq!((&names(&reply)[..], left().as_str()), (told, want), "{query}");
    };
    check("dryRun=All", Value::Null, &["b", "d", "e"], "b d e");
    check("", json!({"dryRun": ["All"]}), &["b", "d", "e"], "b d e");
    check("fieldSelector=metadata.name%3Dd", Value::Null, &["d"], "b e");
    // A page of them goes, and the reply says where the next one begins.
    check("limit=1", Value::Null, &["b"], "e");
    let another = json!({"preconditions": {"uid": "another"}});
    cluster.delete_with(CONFIG_MAPS, &another).refused(409, "Conflict", "does not match the UID in record");
    check("limit=1", Value::Null, &["e"], "");
}

/// Somebody who deletes one object while another is deleted, and makes it anew under its name.
struct Remaker {
    store: Arc<dyn Store>,
    /// The two: while the first goes, the second is made anew.
    next: Arc<Mutex<Option<[&'static str; 2]>>>,
}

impl AdmissionPlugin for Remaker {
    fn name(&self) -> &'static str {
        "Remaker"
    }
    fn validate(&self, attributes: &Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        let goes = attributes.operation == Operation::Delete;
        let next = self.next.lock().expect("lock").take_if(|[first, _]| goes && attributes.name == *first);
        let Some([_, again]) = next else { return Ok(()) };
        let key = storage_prefix("", "configmaps", Some("default")) + again;
        let entry = now(self.store.get(&key)).expect("readable").0.expect("it is there");
        let value = carrack_store::Value { bytes: entry.value(), stamp_at: None };
        for op in [Op::Delete(entry.key.clone()), Op::Put(entry.key.clone(), value)] {
            now(self.store.transact(Txn { checks: Vec::new(), ops: vec![op] })).expect("committed");
        }
        Ok(())
    }
}

#[test]
fn what_is_made_anew_while_its_collection_goes_stays() {
    let next = Arc::new(Mutex::new(None));
    let cluster = Cluster::with(|config| {
        config.plugins.push(Box::new(Remaker { store: config.store.clone(), next: Arc::clone(&next) }));
    });
    for name in ["a", "b", "c"] {
        cluster.post(CONFIG_MAPS, &config_map(name, "x")).expect(201);
    }
    *next.lock().expect("lock") = Some(["a", "b"]);
    let deleted = cluster.delete(CONFIG_MAPS).expect(200);
    assert_eq!(names(&deleted), ["a", "b", "c"]);
    assert_eq!(names(&cluster.get(CONFIG_MAPS).expect(200)), ["b"]);
}

#[test]
fn events_are_forgotten() {
    let cluster = Cluster::new();
    let event = |name: &str| json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default", "kind": "Pod", "name": "p"}});
    cluster.post(EVENTS, &event("old")).expect(201);
    cluster.post(EVENTS, &event("again")).expect(201);
    cluster.env.advance(1800);
    cluster.post(EVENTS, &event("new")).expect(201);
    cluster
        .merge(&format!("{EVENTS}/again"), &json!({"count": 2, "lastTimestamp": "2027-01-15T08:30:00Z"}))
        .expect(200);
    assert_eq!(crate::harness::now(cluster.api.expire_events()), Ok(0));
    cluster.env.advance(1801);
    assert_eq!(crate::harness::now(cluster.api.expire_events()), Ok(1));
    assert_eq!(names(&cluster.get(EVENTS).expect(200)), ["again", "new"]);
}

/// For as long as the server is told to keep them.
#[test]
fn events_are_kept_for_as_long_as_is_wanted() {
    for (ttl_s, after_s, removed) in [(60, 60, 0), (60, 61, 1), (0, 1_000_000, 0)] {
        let cluster = Cluster::with(|config| config.event_ttl = std::time::Duration::from_secs(ttl_s));
        let event =
            json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default", "kind": "Pod", "name": "p"}});
        cluster.post(EVENTS, &event).expect(201);
        cluster.env.advance(after_s);
        assert_eq!(crate::harness::now(cluster.api.expire_events()), Ok(removed), "{ttl_s} s, after {after_s} s");
    }
}

#[test]
fn namespaces_end_in_two_steps() {
    let cluster = Cluster::new();
    let made = cluster.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).expect(201);
    assert_eq!(
        (made["status"]["phase"].as_str(), &made["spec"]["finalizers"]),
        (Some("Active"), &json!(["kubernetes"]))
    );
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "n");
    let inside = "/api/v1/namespaces/n/configmaps";
    cluster.post(inside, &config_map("m", "x")).expect(201);
    let ending = cluster.delete("/api/v1/namespaces/n").expect(200);
    assert_eq!(ending["status"]["phase"], "Terminating");
    let refused = cluster.post(inside, &config_map("late", "x")).refused(
        403,
        "Forbidden",
        "configmaps \"late\" is forbidden: unable to create new content in namespace n because it is being terminated",
    );
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    // The namespace controller empties it, then lets it go.
    cluster.delete(inside).expect(200);
    let mut done: Value = cluster.get("/api/v1/namespaces/n").expect(200);
    done["spec"]["finalizers"] = json!([]);
    cluster.put("/api/v1/namespaces/n/finalize", &done).expect(200);
    cluster.get("/api/v1/namespaces/n").expect(404);
    cluster.post(inside, &config_map("m", "x")).refused(404, "NotFound", "namespaces \"n\" not found");
    cluster.delete("/api/v1/namespaces/default").refused(403, "Forbidden", "this namespace may not be deleted");
}

#[test]
fn less_than_no_time_is_a_second() {
    let cluster = Cluster::new();
    for (name, evicts) in [("deleted", false), ("evicted", true)] {
        cluster.running_pod(name);
        cluster.merge(&format!("{PODS}/{name}/status"), &json!({"status": {"phase": "Running"}})).expect(200);
        let path = format!("{PODS}/{name}");
        let options = json!({"gracePeriodSeconds": -5});
        if evicts {
            cluster.post(&format!("{path}/eviction"), &json!({"deleteOptions": options})).expect(201);
        } else {
            cluster.delete_with(&path, &options).expect(200);
        }
        let marked = cluster.get(&path).expect(200);
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 1, "{name}");
        // The node's word ends it.
        cluster.delete_with(&path, &json!({"gracePeriodSeconds": 0})).expect(200);
        cluster.get(&path).expect(404);
    }
    let both = json!({"orphanDependents": true, "propagationPolicy": "Foreground"});
    cluster.post(CONFIG_MAPS, &config_map("m", "x")).expect(201);
    cluster.delete_with(&format!("{CONFIG_MAPS}/m"), &both).refused(422, "Invalid", "cannot be both set");
}
