use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::escalation::EscalationError;
use super::{Binding, Index, Key, Kind, Object, Role, RoleRef, Rule, Selector, Subject, covers};
use crate::attributes::{Attributes, Decision};
use crate::caller::Caller;

fn rule(verbs: &str, groups: &str, resources: &str, names: &str) -> Rule {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    Rule {
        verbs: words(verbs),
        api_groups: words(groups),
        resources: words(resources),
        resource_names: if names.is_empty() { Vec::new() } else { words(names) },
        non_resource_urls: Vec::new(),
    }
}

fn urls(verbs: &str, urls: &str) -> Rule {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    Rule { verbs: words(verbs), non_resource_urls: words(urls), ..Rule::default() }
}

#[test]
fn a_rule_matches() {
    let check = |rule: &Rule, a: Attributes<'_>, want: bool| {
        assert_eq!(rule.allows(&a), want, "{} on {a:?}", rule.compact());
    };
    let at = |verb, group, resource| Attributes::resource(verb, group, resource).in_namespace("ns");
    let pods = rule("get list", "", "pods", "");
    check(&pods, at("get", "", "pods"), true);
    check(&pods, at("watch", "", "pods"), false);
    check(&pods, at("get", "apps", "pods"), false);
    check(&pods, at("get", "", "nodes"), false);
    check(&pods, at("get", "", "pods").with_subresource("log"), false);
    check(&pods, Attributes::path("get", "/pods"), false);

    let all = rule("*", "*", "*", "");
    check(&all, at("anything", "any", "thing").with_subresource("sub"), true);
    check(&all, Attributes::path("get", "/metrics"), false);

    let log = rule("get", "", "pods/log", "");
    check(&log, at("get", "", "pods").with_subresource("log"), true);
    check(&log, at("get", "", "pods"), false);
    check(&log, at("get", "", "pods").with_subresource("exec"), false);

    let scale = rule("update", "*", "*/scale", "");
    check(&scale, at("update", "apps", "deployments").with_subresource("scale"), true);
    check(&scale, at("update", "apps", "deployments"), false);
    check(&scale, at("update", "apps", "deployments").with_subresource("status"), false);

    let named = rule("get update", "", "configmaps", "a b");
    check(&named, at("get", "", "configmaps").named("a"), true);
    check(&named, at("get", "", "configmaps").named("c"), false);
    check(&named, at("get", "", "configmaps"), false);

    let paths = urls("get", "/healthz /api/* /metrics*");
    for (path, want) in [
        ("/healthz", true),
        ("/healthz/x", false),
        ("/api/", true),
        ("/api/v1", true),
        ("/api", false),
        ("/metrics", true),
        ("/metrics/slis", true),
        ("/", false),
    ] {
        check(&paths, Attributes::path("get", path), want);
    }
    check(&paths, Attributes::path("post", "/healthz"), false);
    check(&urls("*", "*"), Attributes::path("delete", "/x"), true);
    check(&urls("*", "*"), at("get", "", "pods"), false);
}

#[test]
fn rules_cover_rules() {
    let check = |held: &[Rule], wanted: &[Rule], missing: usize| {
        let got = covers(held, wanted);
        assert_eq!(got.len(), missing, "{held:?} against {wanted:?}: {got:?}");
    };
    let all = [rule("*", "*", "*", "")];
    check(&all, &[rule("get", "", "pods", "")], 0);
    check(&all, &[rule("*", "*", "*", "")], 0);
    check(&all, &[urls("get", "/x")], 1);
    check(&[rule("get", "", "pods", "")], &[rule("*", "", "pods", "")], 1);
    check(&[rule("get list", "", "pods", "")], &[rule("get list watch", "", "pods nodes", "")], 4);
    // Several rules together cover one.
    check(&[rule("get", "", "pods", ""), rule("list", "", "pods", "")], &[rule("get list", "", "pods", "")], 0);
    check(&[rule("get", "", "pods", "")], &[rule("get", "", "pods", "x")], 0);
    check(&[rule("get", "", "pods", "x")], &[rule("get", "", "pods", "")], 1);
    check(&[rule("get", "", "pods", "x y")], &[rule("get", "", "pods", "y")], 0);
    check(&[rule("get", "", "*/scale", "")], &[rule("get", "", "deployments/scale", "")], 0);
    check(&[rule("get", "", "deployments/scale", "")], &[rule("get", "", "*/scale", "")], 1);
    check(&[rule("get", "", "pods", "")], &[rule("get", "", "pods/log", "")], 1);
    check(&[urls("get", "/api/*")], &[urls("get", "/api/v1 /api/*")], 0);
    check(&[urls("get", "/api/v1")], &[urls("get", "/api/*")], 1);
    check(&[], &[], 0);
}

fn parsed(kind: Kind, namespace: &str, json: &Value) -> Object {
    Object::parse(kind, namespace, json.to_string().as_bytes()).expect("a valid object")
}

fn example() -> Index {
    let mut index = Index::new();
    let mut put = |kind, namespace: &str, name: &str, json: Value| {
        index.upsert(Key::new(kind, namespace, name), parsed(kind, namespace, &json));
    };
    put(
        Kind::ClusterRole,
        "",
        "reader",
        json!({"rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]}),
    );
    put(
        Kind::Role,
        "ns1",
        "writer",
        json!({"rules": [{"verbs": ["create"], "apiGroups": [""], "resources": ["pods"]}]}),
    );
    put(
        Kind::ClusterRoleBinding,
        "",
        "everywhere",
        json!({"subjects": [{"kind": "Group", "name": "readers"}], "roleRef": {"kind": "ClusterRole", "name": "reader"}}),
    );
    put(
        Kind::RoleBinding,
        "ns1",
        "here",
        json!({"subjects": [{"kind": "User", "name": "jane"}, {"kind": "ServiceAccount", "name": "bot"},
                            {"kind": "ServiceAccount", "name": "far", "namespace": "ns2"}],
               "roleRef": {"kind": "Role", "name": "writer"}}),
    );
    put(
        Kind::RoleBinding,
        "ns1",
        "reads",
        json!({"subjects": [{"kind": "User", "name": "jane"}], "roleRef": {"kind": "ClusterRole", "name": "reader"}}),
    );
    put(
        Kind::RoleBinding,
        "ns1",
        "dangling",
        json!({"subjects": [{"kind": "User", "name": "lost"}], "roleRef": {"kind": "Role", "name": "gone"}}),
    );
    put(
        Kind::RoleBinding,
        "ns2",
        "elsewhere",
        // The Role of that name is in another namespace.
        json!({"subjects": [{"kind": "User", "name": "jane"}], "roleRef": {"kind": "Role", "name": "writer"}}),
    );
    index
}

#[test]
fn bindings_give_roles() {
    let index = example();
    let check = |caller: &Caller, a: Attributes<'_>, want: Decision| {
        assert_eq!(index.authorize(caller, &a), want, "{} {a:?}", caller.user);
    };
    let allow = |reason: &str| Decision::Allow { reason: reason.into() };
    let deny = |reason: &str| Decision::Deny { reason: reason.into() };
    let none = || Vec::<String>::new();
    let jane = Caller::new("jane", none());
    let get = Attributes::resource("get", "", "pods");
    let create = Attributes::resource("create", "", "pods");
    let by_reads = r#"RBAC: allowed by RoleBinding "reads/ns1" of ClusterRole "reader" to User "jane""#;
    check(&jane, get.in_namespace("ns1"), allow(by_reads));
    check(&jane, get, deny(""));
    check(&jane, get.in_namespace("ns3"), deny(""));
    check(
        &jane,
        create.in_namespace("ns1"),
        allow(r#"RBAC: allowed by RoleBinding "here/ns1" of Role "writer" to User "jane""#),
    );
    check(&jane, create.in_namespace("ns2"), deny(r#"RBAC: role.rbac.authorization.k8s.io "writer" not found"#));
    let reader = Caller::new("bob", ["readers"]);
    let everywhere = r#"RBAC: allowed by ClusterRoleBinding "everywhere" of ClusterRole "reader" to Group "readers""#;
    check(&reader, get, allow(everywhere));
    check(&reader, get.in_namespace("ns1"), allow(everywhere));
    check(&reader, create.in_namespace("ns1"), deny(""));
    let bot = Caller::service_account("ns1", "bot", "u");
    check(
        &bot,
        create.in_namespace("ns1"),
        allow(r#"RBAC: allowed by RoleBinding "here/ns1" of Role "writer" to ServiceAccount "bot/ns1""#),
    );
    check(&Caller::service_account("ns2", "bot", "u"), create.in_namespace("ns1"), deny(""));
    assert!(index.authorize(&Caller::service_account("ns2", "far", "u"), &create.in_namespace("ns1")).allowed());
    check(
        &Caller::new("lost", none()),
        get.in_namespace("ns1"),
        deny(r#"RBAC: role.rbac.authorization.k8s.io "gone" not found"#),
    );
    check(&Caller::new("root", ["system:masters"]), Attributes::path("delete", "/x"), allow(""));
    check(&Caller::anonymous(), get, deny(""));
}

#[test]
fn aggregation_follows_labels() {
    let mut index = Index::new();
    let aggregated = |label: &str, own: &[(&str, &str)]| {
        Object::Role(Role {
            labels: own.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            // Rules of an aggregated role itself do not count: a controller would overwrite them.
            rules: vec![rule("delete", "", "nodes", "")],
            aggregate: Some(vec![Selector::label(label, "true")]),
        })
    };
    let part = |label: &str, rules: Vec<Rule>| {
        Object::Role(Role { labels: BTreeMap::from([(label.into(), "true".into())]), rules, aggregate: None })
    };
    let key = |name: &str| Key::new(Kind::ClusterRole, "", name);
    index.upsert(key("admin"), aggregated("to-admin", &[]));
    index.upsert(key("edit"), aggregated("to-edit", &[("to-admin", "true")]));
    index.upsert(key("a"), part("to-admin", vec![rule("get", "", "a", "")]));
    index.upsert(key("e"), part("to-edit", vec![rule("get", "", "e", "")]));
    // A cycle: admin is part of edit, too.
    index.upsert(key("back"), aggregated("to-admin", &[("to-edit", "true")]));
    index.upsert(
        Key::new(Kind::ClusterRoleBinding, "", "b"),
        Object::Binding(Binding {
            subjects: vec![Subject::User("jane".into())],
            role: RoleRef { kind: Kind::ClusterRole, name: "admin".into() },
        }),
    );
    let jane = Caller::new("jane", Vec::<String>::new());
    let may =
        |index: &Index, verb, resource| index.authorize(&jane, &Attributes::resource(verb, "", resource)).allowed();
    assert!(may(&index, "get", "a"));
    assert!(may(&index, "get", "e"), "through edit");
    assert!(!may(&index, "delete", "nodes"));
    assert!(!may(&index, "get", "late"));
    index.upsert(key("late"), part("to-edit", vec![rule("get", "", "late", "")]));
    assert!(may(&index, "get", "late"));
    index.remove(&key("late"));
    assert!(!may(&index, "get", "late"));
    index.remove(&key("edit"));
    assert!(!may(&index, "get", "e"));
    assert_eq!(index.aggregated().count(), 2);
}

#[test]
fn selectors_select() {
    let check = |selector: Value, want: bool| {
        let selector: Selector = serde_json::from_value(selector).expect("a selector");
        let labels = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        assert_eq!(selector.matches(&labels), want, "{selector:?}");
    };
    let expression = |operator: &str, key: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    check(json!({}), true);
    check(json!({"matchLabels": {"a": "1"}}), true);
    check(json!({"matchLabels": {"a": "2"}}), false);
    check(json!({"matchLabels": {"a": "1", "b": "1"}}), false);
    check(expression("In", "a", json!(["1", "2"])), true);
    check(expression("In", "b", json!(["1"])), false);
    check(expression("NotIn", "a", json!(["1"])), false);
    check(expression("NotIn", "b", json!(["1"])), true);
    check(expression("Exists", "a", json!(null)), true);
    check(expression("DoesNotExist", "a", json!(null)), false);
    check(expression("Gt", "a", json!(["0"])), false);
}

#[test]
fn malformed_objects_are_errors() {
    let check = |kind, json: &str| assert!(Object::parse(kind, "ns", json.as_bytes()).is_err(), "{json}");
    check(Kind::Role, "{");
    check(Kind::Role, r#"{"rules": 7}"#);
    check(Kind::RoleBinding, r#"{"subjects": []}"#);
    check(Kind::RoleBinding, r#"{"roleRef": {"kind": "Deployment", "name": "x"}}"#);
    check(Kind::ClusterRoleBinding, r#"{"roleRef": {"kind": "Role", "name": "x"}}"#);
    let empty = Object::parse(Kind::ClusterRole, "", br#"{"rules": null}"#).expect("null is none");
    assert_eq!(empty, Object::Role(Role::default()));
}

#[test]
fn nobody_grants_what_they_do_not_hold() {
    let mut index = example();
    index.upsert(
        Key::new(Kind::Role, "ns1", "rbac"),
        parsed(
            Kind::Role,
            "ns1",
            &json!({"rules": [
                {"verbs": ["escalate"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "resourceNames": ["free"]},
                {"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["big"]}]}),
        ),
    );
    index.upsert(
        Key::new(Kind::RoleBinding, "ns1", "rbac"),
        parsed(
            Kind::RoleBinding,
            "ns1",
            &json!({"subjects": [{"kind": "User", "name": "jane"}], "roleRef": {"kind": "Role", "name": "rbac"}}),
        ),
    );
    let jane = Caller::new("jane", Vec::<String>::new());
    let role = |rules: Vec<Rule>| Object::Role(Role { rules, ..Role::default() });
    let check = |caller: &Caller, kind, namespace: &str, name: &str, new: &Object, old: Option<&Object>| {
        index.check_escalation(caller, &Key::new(kind, namespace, name), new, old)
    };
    let held = role(vec![rule("get create", "", "pods", "")]);
    let more = role(vec![rule("get delete watch", "", "pods", "")]);
    assert_eq!(check(&jane, Kind::Role, "ns1", "r", &held, None), Ok(()));
    // What is held in one namespace cannot be granted in another, or everywhere.
    assert!(check(&jane, Kind::Role, "ns2", "r", &held, None).is_err());
    assert!(check(&jane, Kind::ClusterRole, "", "r", &held, None).is_err());
    let Err(EscalationError::Forbidden(message)) = check(&jane, Kind::Role, "ns1", "r", &more, None) else {
        panic!("must be forbidden");
    };
    assert_eq!(
        message,
        "user \"jane\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\" \"watch\"]}"
    );
    // An update that leaves the rules alone needs nothing.
    assert_eq!(check(&jane, Kind::Role, "ns1", "r", &more, Some(&more)), Ok(()));
    assert!(check(&jane, Kind::Role, "ns1", "r", &more, Some(&held)).is_err());
    // The verb escalate, on that name only.
    assert_eq!(check(&jane, Kind::Role, "ns1", "free", &more, None), Ok(()));
    assert_eq!(check(&Caller::new("r", ["system:masters"]), Kind::Role, "ns1", "r", &more, None), Ok(()));
    // An aggregation rule may come to select anything.
    let aggregate = Object::Role(Role { aggregate: Some(vec![Selector::default()]), ..Role::default() });
    assert!(check(&jane, Kind::ClusterRole, "", "agg", &aggregate, None).is_err());

    let binding = |kind, name: &str| {
        Object::Binding(Binding {
            subjects: vec![Subject::User("x".into())],
            role: RoleRef { kind, name: name.into() },
        })
    };
    let bind = |name: &str, new: &Object, old| check(&jane, Kind::RoleBinding, "ns1", name, new, old);
    assert_eq!(bind("b", &binding(Kind::Role, "writer"), None), Ok(()));
    assert!(matches!(bind("b", &binding(Kind::Role, "rbac"), None), Ok(())), "jane holds it herself");
    let gone = binding(Kind::Role, "gone");
    assert!(matches!(bind("b", &gone, None), Err(EscalationError::RoleNotFound { .. })));
    assert_eq!(bind("b", &gone, Some(&gone)), Ok(()), "nothing changes");
    assert_eq!(bind("b", &binding(Kind::ClusterRole, "big"), None), Ok(()), "by the verb bind");
    let reader = binding(Kind::ClusterRole, "reader");
    assert_eq!(bind("b", &reader, None), Ok(()), "jane reads in ns1");
    let elsewhere = check(&jane, Kind::RoleBinding, "ns3", "b", &reader, None);
    assert!(matches!(elsewhere, Err(EscalationError::Forbidden(_))), "{elsewhere:?}");
}

/// By its labels a role is gathered into others, so that they grant what is in it, or what it has gathered itself.
#[test]
fn labels_of_roles_grant() {
    let mut index = example();
    let big = || vec![rule("*", "*", "*", "")];
    let role = |label: &str, rules: Vec<Rule>, aggregate: Option<&str>| Role {
        labels: BTreeMap::from([(label.to_owned(), "true".to_owned())]),
        rules,
        aggregate: aggregate.map(|label| vec![Selector::label(label, "true")]),
    };
    let key = |name: &str| Key::new(Kind::ClusterRole, "", name);
    let mut put = |name: &str, role: &Role| index.upsert(key(name), Object::Role(role.clone()));
    put("source", &role("to-all", big(), None));
    put("all", &role("x", vec![], Some("to-all")));
    let bob = Caller::new("bob", ["readers"]);
    for (name, rules, aggregate, good) in [
        ("source", big(), None, false),
        ("all", vec![], Some("to-all"), false),
        ("reader", vec![rule("get", "", "pods", "")], None, true),
        ("none", vec![], Some("to-none"), true),
    ] {
        let [old, new] = ["x", "to-edit"].map(|label| Object::Role(role(label, rules.clone(), aggregate)));
        let check = |new: &Object| index.check_escalation(&bob, &key(name), new, Some(&old));
        assert_eq!(check(&new).is_ok(), good, "{name}");
        assert_eq!(check(&old), Ok(()), "{name} is as it was");
    }
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c"]).prop_map(str::to_owned)
}

fn key() -> impl Strategy<Value = Key> {
    let kind = prop::sample::select(vec![Kind::Role, Kind::ClusterRole, Kind::RoleBinding, Kind::ClusterRoleBinding]);
    (kind, prop::sample::select(vec!["n1", "n2"]), name()).prop_map(|(kind, namespace, name)| {
        let cluster = matches!(kind, Kind::ClusterRole | Kind::ClusterRoleBinding);
        Key::new(kind, if cluster { "" } else { namespace }, &name)
    })
}

fn object(kind: Kind) -> BoxedStrategy<Object> {
    let any_rule = || (name(), name()).prop_map(|(verb, resource)| rule(&verb, "", &resource, ""));
    match kind {
        Kind::Role | Kind::ClusterRole => (
            prop::collection::vec(any_rule(), 0..3),
            prop::collection::btree_map(name(), Just("true".to_owned()), 0..3),
            prop::option::of(name()),
        )
            .prop_map(move |(rules, labels, aggregate)| {
                Object::Role(Role {
                    labels,
                    rules,
                    aggregate: aggregate
                        .filter(|_| kind == Kind::ClusterRole)
                        .map(|label| vec![Selector::label(&label, "true")]),
                })
            })
            .boxed(),
        Kind::RoleBinding | Kind::ClusterRoleBinding => {
            let subject = (0..3, name()).prop_map(|(kind, name)| match kind {
                0 => Subject::User(name),
                1 => Subject::Group(name),
                _ => Subject::ServiceAccount("n1".into(), name),
            });
            (prop::collection::vec(subject, 0..4), any::<bool>(), name())
                .prop_map(move |(subjects, cluster, name)| {
                    Object::Binding(Binding {
                        subjects,
                        role: RoleRef {
                            kind: if cluster || kind == Kind::ClusterRoleBinding {
                                Kind::ClusterRole
                            } else {
                                Kind::Role
                            },
                            name,
                        },
                    })
                })
                .boxed()
        }
    }
}

fn change() -> impl Strategy<Value = (Key, Option<Object>)> {
    key().prop_flat_map(|key| {
        let object = prop::option::weighted(0.7, object(key.kind));
        (Just(key), object)
    })
}

/// The plainest evaluation there is: look at every binding.
fn model(objects: &BTreeMap<Key, Object>, caller: &Caller, a: &Attributes<'_>) -> bool {
    fn role_allows(objects: &BTreeMap<Key, Object>, key: &Key, a: &Attributes<'_>, seen: &mut Vec<Key>) -> bool {
        let Some(Object::Role(role)) = objects.get(key) else {
            return false;
        };
        let Some(selectors) = &role.aggregate else {
            return role.rules.iter().any(|rule| rule.allows(a));
        };
        seen.push(key.clone());
        objects.iter().any(|(other_key, other)| {
            let Object::Role(other) = other else { return false };
            other_key.kind == Kind::ClusterRole
                && !seen.contains(other_key)
                && selectors.iter().any(|s| s.matches(&other.labels))
                && role_allows(objects, other_key, a, seen)
        })
    }
    objects.iter().any(|(key, object)| {
        let Object::Binding(binding) = object else { return false };
        let counts = key.kind == Kind::ClusterRoleBinding || (!a.namespace.is_empty() && key.namespace == a.namespace);
        let applies = binding.subjects.iter().any(|subject| match subject {
            Subject::User(name) => *name == caller.user,
            Subject::Group(name) => caller.groups.contains(name),
            Subject::ServiceAccount(namespace, name) => {
                caller.user == format!("system:serviceaccount:{namespace}:{name}")
            }
        });
        let namespace = match binding.role.kind {
            Kind::Role => key.namespace.as_str(),
            _ => "",
        };
        let role = Key::new(binding.role.kind, namespace, &binding.role.name);
        counts && applies && role_allows(objects, &role, a, &mut Vec::new())
    })
}

proptest! {
    #[test]
    fn an_index_kept_current_equals_one_made_anew(changes in prop::collection::vec(change(), 0..40)) {
        let mut index = Index::new();
        let mut objects = BTreeMap::new();
        for (key, object) in changes {
            let (view, had) = (index.clone(), objects.clone());
            match object {
                Some(object) => {
                    objects.insert(key.clone(), object.clone());
                    index.upsert(key, object);
                }
                None => {
                    objects.remove(&key);
                    index.remove(&key);
                }
            }
            // A clone knows nothing of what comes after it.
            prop_assert_eq!(&view, &Index::from_objects(had));
        }
        prop_assert_eq!(&index, &Index::from_objects(objects.clone()));
        let callers = [
            Caller::new("a", ["b"]),
            Caller::new("c", ["a", "c"]),
            Caller::service_account("n1", "a", "u"),
        ];
        for caller in &callers {
            for verb in ["a", "b", "c"] {
                for resource in ["a", "b"] {
                    for namespace in ["", "n1", "n2"] {
                        let a = Attributes::resource(verb, "", resource).in_namespace(namespace);
                        prop_assert_eq!(
                            index.authorize(caller, &a).allowed(),
                            model(&objects, caller, &a),
                            "{} {:?}", caller.user, a
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn lists_that_multiply_are_not_multiplied() {
    let many = |what: &str| (0..400).map(|n| format!("{what}{n}")).collect::<Vec<String>>();
    let wanted = Rule { verbs: many("v"), api_groups: many("g"), resources: many("r"), ..Rule::default() };
    let all = || vec!["*".to_owned()];
    let everything = Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() };
    assert!(covers(&[everything], std::slice::from_ref(&wanted)).is_empty());
    let own = Rule { verbs: many("v"), api_groups: many("g"), resources: all(), ..Rule::default() };
    assert!(covers(std::slice::from_ref(&own), std::slice::from_ref(&wanted)).is_empty());
    let less = Rule { verbs: many("w"), ..own };
    assert_eq!(covers(&[less], std::slice::from_ref(&wanted)), [wanted]);
    // Of many that are missing, some are named.
    let wanted = Rule { verbs: many("v"), api_groups: all(), resources: many("r")[..100].to_vec(), ..Rule::default() };
    assert_eq!(covers(&[], &[wanted]).len(), 500);
}

/// What says the same again and again is looked at once: else a short text would take hours.
#[test]
fn what_is_said_again_is_not_compared_again() {
    let again = |what: &str| vec![what.to_owned(); 300];
    let wanted = Rule { verbs: again("v"), api_groups: again(""), resources: again("r"), ..Rule::default() };
    let held: Vec<Rule> = (0..200).map(|n| rule("get list", "", &format!("r{n}"), "")).collect();
    assert_eq!(covers(&held, &vec![wanted; 1000]), [rule("v", "", "r", "")]);
    // However it is said otherwise, there is an end; what was not looked at counts as missing.
    let wanted = (0..1000).map(|n| Rule {
        verbs: (0..60).map(|verb| format!("v{verb}")).collect(),
        api_groups: vec![format!("g{n}")],
        resources: (0..30).map(|resource| format!("r{resource}")).collect(),
        ..Rule::default()
    });
    let wanted: Vec<Rule> = wanted.collect();
    let held: Vec<Rule> = (0..30).map(|n| rule("*", "*", &format!("r{n}"), "")).collect();
    let missing = covers(&held, &wanted);
    assert!(!missing.is_empty() && missing.iter().all(|rule| wanted.contains(rule)), "{}", missing.len());
    assert!(covers(&held, &wanted[..10]).is_empty());
}

#[test]
fn aggregation_is_resolved_whatever_comes_first() {
    let key = |name: &str| Key::new(Kind::ClusterRole, "", name);
    let labelled = |labels: &[&str], verbs: &str| Role {
        labels: labels.iter().map(|label| ((*label).to_owned(), "true".to_owned())).collect(),
        rules: vec![rule(verbs, "", "pods", "")],
        aggregate: None,
    };
    let gathers = |label: &str| Role { aggregate: Some(vec![Selector::label(label, "true")]), ..Role::default() };
    let mut index = Index::new();
    let held = |index: &Index| {
        let all = RoleRef { kind: Kind::ClusterRole, name: "all".to_owned() };
        let rules = index.role_rules(&all, "").unwrap_or_default();
        rules.iter().map(|rule| rule.verbs.join(" ")).collect::<Vec<_>>().join(",")
    };
    for (name, role, want) in [
        ("a", labelled(&["to-all"], "get"), ""),
        ("all", gathers("to-all"), "get"),
        ("b", labelled(&[], "list"), "get"),
        // The same again is no change, another rule is.
        ("a", labelled(&["to-all"], "get"), "get"),
        ("a", labelled(&["to-all"], "watch"), "watch"),
        // A label that comes, and one that goes.
        ("b", labelled(&["to-all"], "list"), "watch,list"),
        ("a", labelled(&["other"], "watch"), "list"),
        ("all", gathers("other"), "watch"),
        ("all", labelled(&[], "delete"), "delete"),
    ] {
        index.upsert(key(name), Object::Role(role));
        assert_eq!(held(&index), want, "{name}");
    }
}
