use serde_json::{Value, json};

use super::*;
use crate::builtin;

const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";
const POD: &str = "io.k8s.api.core.v1.Pod";
const SERVICE: &str = "io.k8s.api.core.v1.Service";

fn object(value: Value) -> Object {
    match value {
        Value::Object(map) => map,
        other => panic!("not an object: {other}"),
    }
}

fn unknown(_: &str) -> Other<'static> {
    Other::Unknown
}

fn kind(name: &str) -> Kind<'static> {
    let schema = builtin::schema(name).expect("built-in");
    Kind { schema, other: &unknown, convert: &|object, _| Ok(object.clone()), settle: &|_| {} }
}

fn writer(manager: &'static str, second: u32) -> Writer<'static> {
    let now: &'static str = Box::leak(format!("2026-01-01T00:00:{second:02}Z").into_boxed_str());
    Writer { manager, api_version: "apps/v1", subresource: "", now }
}

fn status_resets(field: &str) -> bool {
    field == "status"
}

/// An object under several writers.
struct Story {
    kind: Kind<'static>,
    object: Option<Object>,
    managed: Managed,
}

impl Story {
    fn of(name: &str) -> Story {
        Story { kind: kind(name), object: None, managed: Managed::default() }
    }

    fn update(&mut self, manager: &'static str, second: u32, new: Value) -> bool {
        let new = object(new);
        let old = self.object.take().unwrap_or_else(|| nothing(false, &new));
        let changed = update(&old, &new, &self.kind, &mut self.managed, &writer(manager, second)).expect("one version");
        self.object = Some(new);
        changed
    }

    fn try_apply(&mut self, manager: &'static str, second: u32, force: bool, config: Value) -> Result<(), ApplyError> {
        let config = object(config);
        let who = writer(manager, second);
        let applied =
            apply(self.object.as_ref(), &config, &self.kind, self.managed.clone(), &who, force, &status_resets)?;
        self.object = Some(applied.object);
        self.managed = applied.managed;
        Ok(())
    }

    fn apply(&mut self, manager: &'static str, config: Value) {
        self.try_apply(manager, 30, false, config).expect("no conflict");
    }

    fn is(&self, want: Value) {
        assert_eq!(self.object.clone().map(Value::Object), Some(want));
    }

    fn owns(&self, manager: &str, want: &[&str]) {
        let paths: Vec<String> = self
            .managed
            .clone()
            .entries
            .iter_mut()
            .filter(|entry| entry.manager == manager)
            .flat_map(|entry| entry.fields.set_mut().paths())
            .collect();
        assert_eq!(paths, want, "what {manager} owns");
    }
}

fn deployment(replicas: Option<i64>, image: &str) -> Value {
    let mut value = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}},
    });
    if let Some(replicas) = replicas {
        value["spec"]["replicas"] = replicas.into();
    }
    value
}

#[test]
fn creating_owns_what_was_given() {
    let mut story = Story::of(DEPLOYMENT);
    assert!(story.update("kubectl", 1, deployment(Some(1), "a")));
    story.owns(
        "kubectl",
        &[
            ".metadata.labels",
            ".metadata.labels.app",
            ".spec.replicas",
            ".spec.template",
            ".spec.template.spec",
            ".spec.template.spec.containers",
            ".spec.template.spec.containers[name=\"c\"]",
            ".spec.template.spec.containers[name=\"c\"].image",
            ".spec.template.spec.containers[name=\"c\"].name",
        ],
    );
    assert!(!story.update("other", 2, deployment(Some(1), "a")), "nothing changed");
    assert!(story.update("other", 3, deployment(Some(2), "a")));
    story.owns("other", &[".spec.replicas"]);
    let text = story.managed.clone().into_json().expect("managers").to_string();
    assert!(text.contains(r#""manager":"kubectl","operation":"Update","time":"2026-01-01T00:00:01Z""#), "{text}");
    assert!(!text.contains(r#""f:replicas":{},"f:template""#), "{text}");
}

#[test]
fn conflicts_are_named() {
    let mut story = Story::of(DEPLOYMENT);
    story.update("kubectl", 1, deployment(Some(1), "a"));
    let before = story.managed.clone();
    let error = story.try_apply("ci", 2, false, deployment(Some(3), "a")).expect_err("a conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl\" using apps/v1: .spec.replicas"
    );
    assert_eq!(story.managed, before);
    let error = story.try_apply("ci", 2, false, deployment(Some(3), "b")).expect_err("conflicts");
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"kubectl\" using apps/v1:\n\
         - .spec.replicas\n- .spec.template.spec.containers[name=\"c\"].image"
    );
    story.try_apply("ci", 3, true, deployment(Some(3), "b")).expect("forced");
    story.is(deployment(Some(3), "b"));
    let error = story.try_apply("third", 4, false, deployment(Some(4), "b")).expect_err("a conflict");
    assert_eq!(error.to_string(), "Apply failed with 1 conflict: conflict with \"ci\": .spec.replicas");
    // The same value is no conflict: both own it.
    story.apply("third", deployment(Some(3), "b"));
    story.apply("ci", deployment(None, "b"));
    story.is(deployment(Some(3), "b"));
    story.apply("third", deployment(None, "b"));
    // The last owner lets go of it.
    story.is(deployment(None, "b"));
}

#[test]
fn what_is_not_applied_any_more_goes() {
    let mut story = Story::of(POD);
    let pod = |containers: Value, labels: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels}, "spec": {"containers": containers}});
    let two = json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]);
    story.apply("me", pod(two, json!({"x": "1", "y": "2"})));
    // Somebody adds to an item, and somebody else an item in front.
    let full = pod(
        json!([{"name": "z", "image": "0"}, {"name": "a", "image": "1", "tty": true}, {"name": "b", "image": "2", "tty": true}]),
        json!({"x": "1", "y": "2", "z": "3"}),
    );
    story.update("them", 40, full);
    story.apply("me", pod(json!([{"name": "a", "image": "1"}]), json!({"x": "1"})));
    story.is(pod(
        json!([{"name": "z", "image": "0"}, {"name": "a", "image": "1", "tty": true}]),
        json!({"x": "1", "z": "3"}),
    ));
    // The item itself was nobody else's, so it went with what others had in it.
    story.owns(
        "them",
        &[
            ".metadata.labels.z",
            ".spec.containers[name=\"a\"].tty",
            ".spec.containers[name=\"z\"]",
            ".spec.containers[name=\"z\"].image",
            ".spec.containers[name=\"z\"].name",
        ],
    );
    story.update("them", 41, pod(json!([{"name": "a", "image": "1"}]), json!({"x": "1"})));
    story.apply("me", pod(json!([]), json!({})));
    // What nobody owns goes with what it was a part of, and empty containers with their last part.
    let Value::Object(left) =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {}}, "spec": {}})
    else {
        unreachable!()
    };
    let object = story.object.clone().expect("an object");
    assert_eq!(object.get("spec").cloned().unwrap_or_else(|| json!({})), left["spec"]);
    assert!(object["metadata"].get("labels").is_none_or(|labels| labels == &json!({})));
}

#[test]
fn what_is_empty_is_owned_and_not_stored() {
    fn settle(pod: &mut Object) {
        let mut value = Value::Object(std::mem::take(pod));
        let schema = builtin::schema(POD).expect("built-in");
        assert_eq!(crate::decode::conform(&mut value, schema), Ok(Vec::new()));
        *pod = object(value);
    }
    let kind = Kind { settle: &settle, ..kind(POD) };
    let run = |live: Option<&Applied>, manager: &'static str, second: u32, force: bool, args: Value| {
        let spec = json!({"containers": [{"name": "c", "args": args}]});
        let pod = object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}));
        let managed = live.map(|live| live.managed.clone()).unwrap_or_default();
        let who = writer(manager, second);
        apply(live.map(|live| &live.object), &pod, &kind, managed, &who, force, &status_resets)
    };
    let theirs = run(None, "them", 1, false, json!(["x"])).expect("nobody else");
    let refused = run(Some(&theirs), "me", 2, false, json!([]));
    assert!(matches!(refused, Err(ApplyError::Conflict(_))), "{refused:?}");
    // It is taken from them, and is nothing.
    let mine = run(Some(&theirs), "me", 2, true, json!([])).expect("by force");
    assert_eq!(mine.object["spec"], json!({"containers": [{"name": "c"}]}));
    assert_eq!(run(Some(&mine), "me", 3, false, json!([])), Ok(mine.clone()), "it is empty already");
    let refused = run(Some(&mine), "them", 4, false, json!(["x"]));
    assert!(matches!(refused, Err(ApplyError::Conflict(_))), "somebody wants it to be empty: {refused:?}");
}

#[test]
fn defaults_stay_with_their_item() {
    let mut story = Story::of(SERVICE);
    let service = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}});
    story.apply("me", service(json!([{"port": 80}, {"port": 443}])));
    story.owns(
        "me",
        &[
            ".spec.ports[port=443,protocol=\"TCP\"]",
            ".spec.ports[port=443,protocol=\"TCP\"].port",
            ".spec.ports[port=80,protocol=\"TCP\"]",
            ".spec.ports[port=80,protocol=\"TCP\"].port",
        ],
    );
    let defaulted = service(json!([
        {"port": 80, "protocol": "TCP", "targetPort": 80}, {"port": 443, "protocol": "TCP", "targetPort": 443}
    ]));
    story.object = Some(object(defaulted));
    story.apply("me", service(json!([{"port": 443}])));
    story.is(service(json!([{"port": 443, "protocol": "TCP", "targetPort": 443}])));
}

#[test]
fn lists_merge_in_order() {
    let schema = builtin::schema(POD).expect("pods");
    let list = |names: &str| -> Value {
        names.chars().map(|name| json!({"name": name.to_string()})).collect::<Vec<_>>().into()
    };
    for (live, applied, want) in [
        ("abc", "", "abc"),
        ("", "abc", "abc"),
        ("abc", "ca", "bca"),
        ("abc", "cba", "cba"),
        ("abc", "xb", "axbc"),
        ("abc", "dabc", "dabc"),
        ("abcd", "dx", "abcdx"),
        ("xay", "ab", "xayb"),
    ] {
        let mut merged = object(json!({"spec": {"containers": list(live)}}));
        merge::merge(&mut merged, &object(json!({"spec": {"containers": list(applied)}})), schema);
        assert_eq!(merged["spec"]["containers"], list(want), "{live} and {applied}");
    }
}

#[test]
fn atomic_values_are_owned_whole() {
    let mut story = Story::of(DEPLOYMENT);
    let spec =
        |spec: Value| json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec});
    let selector = |labels: Value| spec(json!({"selector": {"matchLabels": labels}}));
    story.apply("a", selector(json!({"x": "1"})));
    story.owns("a", &[".spec.selector"]);
    let error = story.try_apply("b", 31, false, selector(json!({"x": "1", "y": "2"}))).expect_err("a conflict");
    assert_eq!(error.to_string(), "Apply failed with 1 conflict: conflict with \"a\": .spec.selector");
    story.apply("a", selector(json!({"y": "2"})));
    story.is(selector(json!({"y": "2"})));
    let command = |words: Value| spec(json!({"template": {"spec": {"containers": [{"name": "c", "command": words}]}}}));
    story.apply("c", command(json!(["a", "b"])));
    story.apply("c", command(json!(["b"])));
    assert_eq!(
        story.object.as_ref().expect("it")["spec"]["template"]["spec"]["containers"][0]["command"],
        json!(["b"])
    );
}

#[test]
fn sets_are_owned_by_item() {
    let mut story = Story::of(POD);
    let pod = |finalizers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": finalizers}});
    story.apply("a", pod(json!(["x", "y"])));
    story.apply("b", pod(json!(["z"])));
    story.is(pod(json!(["x", "y", "z"])));
    story.apply("a", pod(json!(["y"])));
    story.is(pod(json!(["y", "z"])));
    story.owns("a", &[".metadata.finalizers[=\"y\"]"]);
}

#[test]
fn the_schema_is_kept() {
    for (config, want) in [
        (json!({"spec": {"nothing": 1, "replicas": 1}}), ".spec.nothing: field not declared in schema"),
        (json!({"spec": {"replicas": "x"}}), ".spec.replicas: expected numeric (int or float), got \"x\""),
        (
            json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}}}),
            ".spec.template.spec.containers: duplicate entries for key [name=\"a\"]",
        ),
        (
            json!({"spec": {"template": {"spec": {"containers": [{"image": "a"}]}}}}),
            ".spec.template.spec.containers: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
        ),
        (json!({"a": 1, "b": 1}), "errors:\n  .a: field not declared in schema\n  .b: field not declared in schema"),
    ] {
        let error = Story::of(DEPLOYMENT).try_apply("me", 1, false, config).expect_err("a fault");
        assert_eq!(error, ApplyError::Untyped(want.to_owned()));
    }
}

#[test]
fn the_first_apply_leaves_what_was_there() {
    let mut story = Story::of(DEPLOYMENT);
    story.object = Some(object(deployment(Some(1), "a")));
    let error = story.try_apply("me", 1, false, deployment(Some(2), "a")).expect_err("a conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn kubectl_takes_over_what_it_applied_before() {
    let with_annotation = |applied: &Value, mut object: Value| {
        object["metadata"]["annotations"] = json!({LAST_APPLIED: applied.to_string()});
        object
    };
    let applied = deployment(Some(1), "a");
    let mut story = Story::of(DEPLOYMENT);
    story.update("kubectl-client-side-apply", 1, with_annotation(&applied, applied.clone()));
    let mut changed = with_annotation(&applied, applied.clone());
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "patched".into();
    story.update("somebody", 2, changed);
    // Another manager may not.
    assert!(story.try_apply("ci", 3, false, deployment(Some(2), "patched")).is_err());
    let error = story.try_apply("kubectl", 3, false, deployment(Some(2), "b")).expect_err("a conflict");
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"somebody\" using apps/v1: .spec.template.spec.containers[name=\"c\"].image"
    );
    story.apply("kubectl", deployment(Some(2), "patched"));
    let now = story.object.clone().expect("it");
    let annotation = now["metadata"]["annotations"][LAST_APPLIED].as_str().expect("kept");
    assert_eq!(serde_json::from_str::<Value>(annotation).expect("json"), deployment(Some(2), "patched"));
}

#[test]
fn status_is_for_the_status_resource() {
    let mut story = Story::of(DEPLOYMENT);
    let mut config = deployment(None, "a");
    config["status"] = json!({"replicas": 3});
    story.apply("me", config);
    let mut managed = story.managed.clone();
    assert!(!managed.entries[0].fields.set_mut().children.contains_key("f:status"));
}

#[test]
fn too_many_updaters_are_folded() {
    let mut story = Story::of(DEPLOYMENT);
    let mut value = deployment(None, "a");
    story.update("creator", 0, value.clone());
    for (second, manager) in ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"].into_iter().enumerate() {
        value["metadata"]["labels"][manager] = "x".into();
        story.update(manager, u32::try_from(second).expect("small") + 1, value.clone());
    }
    assert_eq!(story.managed.entries.len(), 10);
    let ancient = story.managed.entries.iter().find(|entry| entry.manager == ANCIENT).expect("folded");
    assert_eq!(ancient.time, "2026-01-01T00:00:02Z");
    story.owns("l", &[".metadata.labels.l"]);
}

/// As they are sent: many managers, each with these fields.
fn managers(count: usize, api_version: &str, fields: &Value) -> Managed {
    let entry = |n: usize| {
        json!({"manager": format!("m{n}"), "operation": "Apply", "apiVersion": api_version,
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields})
    };
    Managed::parse((0..count).map(entry).collect()).expect("managers")
}

/// This would take minutes, were each list gone through for each manager that owns something in it.
#[test]
fn lists_are_gone_through_once_however_many_managers_there_are() {
    let mut value = deployment(None, "a");
    let variables: Value = (0..20_000).map(|n| json!({"name": format!("v{n}")})).collect();
    value["spec"]["template"]["spec"]["containers"][0]["env"] = variables;
    let mut story = Story::of(DEPLOYMENT);
    story.update("creator", 1, value);
    let variable = json!({"f:env": {"k:{\"name\":\"v1\"}": {".": {}, "f:name": {}}}});
    let fields = json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": variable}}}}});
    story.managed.entries.extend(managers(5_000, "apps/v1", &fields).entries);
    story.apply("me", deployment(Some(1), "a"));
    story.owns(
        "m7",
        &[
            ".spec.template.spec.containers[name=\"c\"].env[name=\"v1\"]",
            ".spec.template.spec.containers[name=\"c\"].env[name=\"v1\"].name",
        ],
    );
}

#[test]
fn objects_are_converted_once_for_each_version() {
    let schema = builtin::schema(DEPLOYMENT).expect("built-in");
    let converted = std::cell::Cell::new(0);
    let other = |_: &str| Other::Form(schema);
    let convert = |object: &Object, _: &str| {
        converted.set(converted.get() + 1);
        Ok::<_, Unconverted>(object.clone())
    };
    let kind = Kind { schema, other: &other, convert: &convert, settle: &|_| {} };
    let mut managed = managers(100, "apps/v1beta1", &json!({"f:spec": {"f:replicas": {}}}));
    let (old, new) = (object(deployment(Some(1), "a")), object(deployment(Some(2), "a")));
    assert_eq!(update(&old, &new, &kind, &mut managed, &writer("me", 1)), Ok(true));
    assert_eq!((converted.get(), managed.entries.len()), (2, 1), "all have lost what they owned");
}

/// A converter that has to ask somebody is asked for the old object and the new one before it is decided again, and nothing has
/// been noted then.
#[test]
fn what_is_not_known_in_another_version_is_asked_for() {
    let schema = builtin::schema(DEPLOYMENT).expect("built-in");
    let asked = std::cell::RefCell::new(Vec::new());
    let other = |_: &str| Other::Form(schema);
    let convert = |object: &Object, version: &str| {
        asked.borrow_mut().push((object["spec"]["replicas"].clone(), version.to_owned()));
        Err::<Object, _>(Unconverted)
    };
    let kind = Kind { schema, other: &other, convert: &convert, settle: &|_| {} };
    let before = managers(2, "apps/v1beta1", &json!({"f:spec": {"f:replicas": {}}}));
    let (old, new) = (object(deployment(Some(1), "a")), object(deployment(Some(2), "a")));
    let mut managed = before.clone();
    assert_eq!(update(&old, &new, &kind, &mut managed, &writer("me", 1)), Err(Unconverted));
    assert_eq!(managed, before);
    assert_eq!(asked.take(), [(json!(1), "apps/v1beta1".to_owned()), (json!(2), "apps/v1beta1".to_owned())]);
    let applied = apply(Some(&old), &new, &kind, before, &writer("me", 1), true, &status_resets);
    assert_eq!(applied, Err(ApplyError::Unconverted(Unconverted)));
}

/// One write of an object whose versions differ: how (`apply`, `force` or `update`), the manager, the version, and the spec.
type Write = (&'static str, &'static str, &'static str, Value);

/// An object in another version: what `v2` calls `replicas` is the `size` of the others.
fn renamed(given: &Object, version: &str) -> Object {
    let (from, to) = if version == "v2" { ("size", "replicas") } else { ("replicas", "size") };
    let mut made = given.clone();
    made.insert("apiVersion".to_owned(), version.into());
    if let Some(spec) = made.get_mut("spec").and_then(Value::as_object_mut)
        && let Some(value) = spec.remove(from)
    {
        spec.insert(to.to_owned(), value);
    }
    made
}

/// Makes the writes one after the other. `v0` is a version that there is only for who writes in it.
fn written(writes: &[Write]) -> Result<(Object, Managed), ApplyError> {
    let schema = |size: &str, list: Value| {
        let mut parts = json!({"type": "array", "items": {"type": "object", "properties": {
            "id": {"type": "string"}, "n": {"type": "integer"},
        }}});
        parts.as_object_mut().expect("an object").append(&mut object(list));
        let spec = json!({size: {"type": "integer"}, "mode": {"type": "string"}, "parts": parts});
        let properties = json!({"apiVersion": {"type": "string"}, "spec": {"type": "object", "properties": spec}});
        Schema::parse(&json!({"type": "object", "properties": properties})).expect("a schema")
    };
    let by_id = json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]});
    let (v1, v2) = (schema("size", by_id), schema("replicas", json!({})));
    let of = |version: &str| if version == "v2" { &v2 } else { &v1 };
    let other = |version: &str| if version == "v0" { Other::Unknown } else { Other::Form(of(version)) };
    let convert = |object: &Object, version: &str| Ok::<_, Unconverted>(renamed(object, version));
    let mut state: Option<Object> = None;
    let mut managed = Managed::default();
    for (how, manager, version, spec) in writes {
        let kind = Kind { schema: of(version), other: &other, convert: &convert, settle: &|_| {} };
        let who = Writer { manager, api_version: version, subresource: "", now: "2026-01-01T00:00:00Z" };
        let given = object(json!({"apiVersion": version, "spec": spec}));
        let live = state.take().map(|live| renamed(&live, version));
        if *how == "update" {
            let old = live.unwrap_or_else(|| nothing(true, &given));
            update(&old, &given, &kind, &mut managed, &who)?;
            state = Some(given);
        } else {
            let applied = apply(live.as_ref(), &given, &kind, managed, &who, *how == "force", &|_| false)?;
            (state, managed) = (Some(applied.object), applied.managed);
        }
    }
    Ok((state.expect("something was written"), managed))
}

/// What writes come to: the spec in the version of the last one, and of each manager the version and the fields; or why the last
/// one is refused.
fn check(writes: &[Write], want: Result<(Value, &[&str]), &str>) {
    match (written(writes), want) {
        (Ok((made, managed)), Ok((spec, owners))) => {
            let owner = |entry: &Entry| {
                format!("{} {} {}", entry.manager, entry.api_version, entry.fields.to_set().paths().join(" "))
            };
            let mut found: Vec<String> = managed.entries.iter().map(owner).collect();
            found.sort();
            assert_eq!(
                (made["spec"].clone(), found),
                (spec, owners.iter().map(ToString::to_string).collect()),
                "{writes:?}"
            );
        }
        (Err(error), Err(why)) => assert_eq!(error.to_string(), why, "{writes:?}"),
        (found, _) => panic!("{writes:?}: {found:?}"),
    }
}

#[test]
fn fields_are_owned_in_the_version_in_which_they_were_written() {
    let first = |spec: Value| ("apply", "a", "v1", spec);
    let comes_to = |spec: Value, owners: &'static [&'static str]| Ok((spec, owners));
    for (writes, want) in [
        // The same value under another name is no conflict; another value is one.
        (
            vec![first(json!({"size": 1})), ("apply", "b", "v2", json!({"replicas": 1}))],
            comes_to(json!({"replicas": 1}), &["a v1 .spec.size", "b v2 .spec.replicas"]),
        ),
        (
            vec![first(json!({"size": 1})), ("apply", "b", "v2", json!({"replicas": 2}))],
            Err("Apply failed with 1 conflict: conflict with \"a\": .spec.size"),
        ),
        (
            vec![first(json!({"size": 1, "mode": "x"})), ("force", "b", "v2", json!({"replicas": 2}))],
            comes_to(json!({"replicas": 2, "mode": "x"}), &["a v1 .spec.mode", "b v2 .spec.replicas"]),
        ),
        // Who applies in another version than before lets go of what he applied under another name.
        (
            vec![first(json!({"size": 1, "mode": "x"})), ("apply", "a", "v2", json!({"mode": "x"}))],
            comes_to(json!({"mode": "x"}), &["a v2 .spec.mode"]),
        ),
        (
            vec![first(json!({"size": 1, "mode": "x"})), ("apply", "a", "v2", json!({"replicas": 3}))],
            comes_to(json!({"replicas": 3}), &["a v2 .spec.replicas"]),
        ),
        // But not of what another owns, in whatever version.
        (
            vec![
                first(json!({"size": 1, "mode": "x"})),
                ("apply", "b", "v2", json!({"replicas": 1})),
                first(json!({"mode": "x"})),
            ],
            comes_to(json!({"size": 1, "mode": "x"}), &["a v1 .spec.mode", "b v2 .spec.replicas"]),
        ),
        (
            vec![
                first(json!({"size": 1, "mode": "x"})),
                ("apply", "b", "v2", json!({"replicas": 1})),
                ("apply", "a", "v2", json!({"mode": "x"})),
            ],
            comes_to(json!({"replicas": 1, "mode": "x"}), &["a v2 .spec.mode", "b v2 .spec.replicas"]),
        ),
        // Updates take from appliers what they change or remove.
        (
            vec![first(json!({"size": 1, "mode": "x"})), ("update", "b", "v2", json!({"replicas": 3, "mode": "x"}))],
            comes_to(json!({"replicas": 3, "mode": "x"}), &["a v1 .spec.mode", "b v2 .spec.replicas"]),
        ),
        (
            vec![first(json!({"size": 1, "mode": "x"})), ("update", "b", "v2", json!({"mode": "x"}))],
            comes_to(json!({"mode": "x"}), &["a v1 .spec.mode"]),
        ),
        (
            vec![first(json!({"size": 1})), ("update", "b", "v2", json!({"replicas": 3})), first(json!({"size": 1}))],
            Err("Apply failed with 1 conflict: conflict with \"b\" using v2: .spec.replicas"),
        ),
        // A list is owned as its owner's version has it, whatever another version makes of it.
        (
            vec![
                ("apply", "a", "v2", json!({"parts": [{"id": "x", "n": 1}]})),
                ("apply", "b", "v1", json!({"parts": [{"id": "y", "n": 1}]})),
            ],
            Err("Apply failed with 1 conflict: conflict with \"a\": .spec.parts"),
        ),
        // Versions that are gone take with them what was owned in them, and nothing of the object.
        (
            vec![("apply", "a", "v0", json!({"size": 1})), ("apply", "b", "v1", json!({"size": 2}))],
            comes_to(json!({"size": 2}), &["b v1 .spec.size"]),
        ),
        (
            vec![("apply", "a", "v0", json!({"size": 1})), first(json!({"mode": "x"}))],
            comes_to(json!({"size": 1, "mode": "x"}), &["a v1 .spec.mode"]),
        ),
    ] {
        check(&writes, want);
    }
}

/// Items that are there many times are merged in their order, and each of them is moved once.
#[test]
fn many_items_of_one_name_are_merged() {
    let mut value = deployment(None, "a");
    let variables: Value = (0..100_000).map(|n| json!({"name": "v", "value": format!("{n}")})).collect();
    value["spec"]["template"]["spec"]["containers"][0]["env"] = variables;
    let mut story = Story::of(DEPLOYMENT);
    story.update("creator", 1, value);
    let mut config = deployment(None, "a");
    config["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "w", "value": "1"}]);
    story.apply("me", config);
    let now = story.object.clone().expect("it");
    let merged = now["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("a list");
    assert_eq!(merged.len(), 100_001);
}

#[test]
fn times_stay_where_nothing_changes() {
    let mut story = Story::of(DEPLOYMENT);
    story.try_apply("me", 1, false, deployment(Some(1), "a")).expect("applied");
    let before = story.managed.clone().into_json();
    story.try_apply("me", 2, false, deployment(Some(1), "a")).expect("applied");
    assert_eq!(story.managed.clone().into_json(), before);
    story.try_apply("me", 3, false, deployment(Some(2), "a")).expect("applied");
    assert_ne!(story.managed.clone().into_json(), before);
}

#[test]
fn versions_that_are_gone_lose_their_managers() {
    let mut story = Story::of(DEPLOYMENT);
    story.update("old", 1, deployment(Some(1), "a"));
    story.managed.entries[0].api_version = "apps/v0".to_owned();
    story.update("new", 2, deployment(Some(2), "a"));
    story.owns("old", &[]);
    story.owns("new", &[".spec.replicas"]);
}

#[test]
fn sent_managers_are_checked() {
    let good = json!([{"manager": "m", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:x": {}}}}]);
    assert_eq!(Managed::parse(good.clone()).and_then(Managed::into_json), Some(good));
    for bad in [
        json!({}),
        json!([{}]),
        json!([{"operation": "Guess", "fieldsType": "FieldsV1"}]),
        json!([{"operation": "Apply"}]),
        json!([{"operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"spec": {}}}]),
        json!(["x"]),
    ] {
        assert_eq!(Managed::parse(bad.clone()), None, "{bad}");
    }
}
