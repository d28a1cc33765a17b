use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::*;
use crate::attributes::Attributes;
use crate::authorizer::Authorizer;
use crate::token::{DEFAULT_ISSUER, Found, Issuer, Reference, SigningKey, TokenSpec};

const NOW: i64 = 1_800_000_000;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            let name: HeaderName = name.parse().expect("a header's name");
            (name, HeaderValue::from_str(value).expect("a header's value"))
        })
        .collect()
}

fn issuer() -> Issuer {
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
    let key = SigningKey::from_pem(&Secret::new(pair.serialize_pem())).expect("a P-256 key");
    Issuer::new(DEFAULT_ISSUER, key)
}

#[test]
fn who_sends_it() {
    let issuer = issuer();
    let verifier = Verifier::new(DEFAULT_ISSUER, vec![issuer.key().verifying_key().clone()]);
    let tokens = StaticTokens::parse("s3cret,tool,7,\"dev,ops\"").expect("a token file");
    let authenticator = Authenticator::new(verifier).with_static_tokens(tokens);
    let spec = TokenSpec {
        namespace: "ns".into(),
        account: Reference { name: "sa".into(), uid: "u".into() },
        ..TokenSpec::default()
    };
    let issued = issuer.issue(&spec, NOW, "id").expect("a token").token;
    let token = issued.expose();
    let account = BoundObject::ServiceAccount { namespace: "ns".into(), name: "sa".into() };
    let exists = Found { uid: "u".into(), ..Found::default() };
    let there = BTreeMap::from([(account.clone(), Some(exists))]);
    let gone = BTreeMap::from([(account, None)]);
    let unread = BTreeMap::new();
    let peer = Caller::new("system:admin", ["system:masters"]);
    type World = BTreeMap<BoundObject, Option<Found>>;
    let check =
        |peer: Option<&Caller>, pairs: &[(&str, &str)], world: &World, want: Result<&str, fn(&AuthnError) -> bool>| {
            let got = authenticator.authenticate(peer, "/", &headers(pairs), NOW, world);
            match (&got, want) {
                (Ok(caller), Ok(user)) => assert_eq!(caller.user, user, "{pairs:?}"),
                (Err(error), Err(is)) => assert!(is(error), "{pairs:?}: {error:?}"),
                _ => panic!("{pairs:?}: {got:?}"),
            }
            if let Err(error) = got {
                assert!(!format!("{error:?} {error}").contains(token), "a token must not show");
            }
        };
    let rejected: fn(&AuthnError) -> bool = |e| matches!(e, AuthnError::Rejected(_));
    let bearer = format!("Bearer {token}");
    let socket = format!("{WEBSOCKET_TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(token));
    check(Some(&peer), &[], &unread, Ok("system:admin"));
    check(Some(&peer), &[("authorization", "Bearer junk")], &unread, Ok("system:admin"));
    check(None, &[], &unread, Ok("system:anonymous"));
    check(None, &[("authorization", &bearer)], &there, Ok("system:serviceaccount:ns:sa"));
    check(None, &[("authorization", &bearer.replace("Bearer", "bearer"))], &there, Ok("system:serviceaccount:ns:sa"));
    check(
        None,
        &[("sec-websocket-protocol", &format!("plain.kubevirt.io, {socket}"))],
        &there,
        Ok("system:serviceaccount:ns:sa"),
    );
    check(None, &[("authorization", "Bearer s3cret")], &unread, Ok("tool"));
    check(None, &[("authorization", "Basic dTpw")], &unread, Ok("system:anonymous"));
    // A bad token is no anonymous request.
    check(None, &[("authorization", "Bearer junk")], &unread, Err(rejected));
    check(None, &[("authorization", &bearer)], &gone, Err(rejected));
    check(None, &[("authorization", &bearer)], &unread, Err(|e| matches!(e, AuthnError::Unavailable(_))));
    // A token that cannot be read, two of them, or one beside which nothing is offered that could be agreed upon.
    for offered in [format!("a, {WEBSOCKET_TOKEN_PREFIX}!"), format!("a, {socket}, {socket}"), socket] {
        let malformed: fn(&AuthnError) -> bool = |e| matches!(e, AuthnError::Malformed(_));
        check(None, &[("sec-websocket-protocol", &offered)], &unread, Err(malformed));
    }

    let at_livez = Anonymous::At(BTreeSet::from(["/livez".to_owned()]));
    for (anonymous, path, want) in [
        (Anonymous::All, "/api/v1/nodes", true),
        (Anonymous::None, "/livez", false),
        (at_livez.clone(), "/livez", true),
        (at_livez.clone(), "/livez/ping", false),
        (at_livez, "/api/v1/nodes", false),
    ] {
        let strict = authenticator.clone().with_anonymous(anonymous);
        let got = strict.authenticate(None, path, &HeaderMap::new(), NOW, &unread);
        assert_eq!(got, if want { Ok(Caller::anonymous()) } else { Err(AuthnError::Missing) }, "{path}");
    }
    let caller = authenticator
        .authenticate(None, "/", &headers(&[("authorization", "Bearer s3cret")]), NOW, &unread)
        .expect("the tool");
    assert_eq!(caller.groups, ["dev", "ops", "system:authenticated"]);
    assert_eq!(caller.uid, "7");
    // For a TokenReview with other audiences, static tokens are nobody's.
    let other = authenticator.present_token(&Secret::new("s3cret"), &["vault".into()], NOW);
    assert!(other.is_err());
}

#[test]
fn token_files() {
    let line = |line, problem| StaticTokensError::Line { line, problem };
    for (text, want) in [
        ("", Ok(())),
        ("# nothing\n\nt,u,1", Ok(())),
        ("t,u,1,\"a,b\"\nv,w,2", Ok(())),
        ("t,u", Err(line(1, "expected token,user,uid[,\"groups\"]"))),
        ("t,u,1\n,u,1", Err(line(2, "token and user must not be empty"))),
        ("t,u,1\nt,w,2", Err(line(2, "the token is there twice"))),
        ("t,u,1,\"a", Err(line(1, "a quote is not closed"))),
    ] {
        assert_eq!(StaticTokens::parse(text).map(|_| ()), want, "{text:?}");
    }
}

fn authorizer(rules: Value) -> Authorizer {
    let mut authorizer = Authorizer::new();
    let mut put = |resource: &str, name: &str, json: Value| {
        authorizer.observe(crate::rbac::GROUP, resource, "", name, Some(json.to_string().as_bytes())).expect("valid")
    };
    put("clusterroles", "r", json!({ "rules": rules }));
    put(
        "clusterrolebindings",
        "b",
        json!({
            "subjects": [{"kind": "User", "name": "jane"}, {"kind": "ServiceAccount", "namespace": "ns", "name": "agent"}],
            "roleRef": {"kind": "ClusterRole", "name": "r"},
        }),
    );
    authorizer
}

#[test]
fn acting_as_somebody_else() {
    let authorizer = authorizer(json!([
        {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["bob", "system:anonymous"]},
        {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["groups"], "resourceNames": ["dev"]},
        {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["serviceaccounts"]},
        {"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"], "resources": ["userextras/acme.com/scopes"], "resourceNames": ["view"]},
        {"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"], "resources": ["uids"], "resourceNames": ["7"]},
    ]));
    let jane = Caller::new("jane", Vec::<String>::new());
    let list = Attributes::resource("list", "", "pods");
    let ask = |pairs: &[(&str, &str)]| impersonate(&authorizer, &jane, &list, &headers(pairs), &|_, _| {});
    assert_eq!(ask(&[]), Ok(None));
    let groups = |pairs: &[(&str, &str)]| ask(pairs).expect("allowed").expect("somebody").caller.groups;
    assert_eq!(groups(&[("impersonate-user", "bob")]), ["system:authenticated"]);
    assert_eq!(groups(&[("impersonate-user", "bob"), ("impersonate-group", "dev")]), ["dev", "system:authenticated"]);
    assert_eq!(groups(&[("impersonate-user", "system:anonymous")]), ["system:unauthenticated"]);
    assert_eq!(
        groups(&[("impersonate-user", "system:serviceaccount:ns:sa")]),
        ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
    );
    let full =
        ask(&[("impersonate-user", "bob"), ("impersonate-uid", "7"), ("impersonate-extra-acme.com%2fscopes", "view")])
            .expect("allowed")
            .expect("somebody");
    assert_eq!((full.caller.uid.as_str(), full.constraint), ("7", None));
    assert_eq!(full.caller.extra.get("acme.com/scopes"), Some(&vec!["view".to_owned()]));

    let forbidden = |pairs: &[(&str, &str)], want: &str| match ask(pairs) {
        Err(ImpersonationError::Forbidden { message, .. }) => assert_eq!(message, want),
        other => panic!("{pairs:?}: {other:?}"),
    };
    forbidden(
        &[("impersonate-user", "root")],
        r#"users "root" is forbidden: User "jane" cannot impersonate resource "users" in API group "" at the cluster scope"#,
    );
    forbidden(
        &[("impersonate-user", "bob"), ("impersonate-group", "dev"), ("impersonate-group", "system:masters")],
        r#"groups "system:masters" is forbidden: User "jane" cannot impersonate resource "groups" in API group "" at the cluster scope"#,
    );
    forbidden(
        &[("impersonate-user", "bob"), ("impersonate-extra-acme.com%2fscopes", "edit")],
        r#"userextras.authentication.k8s.io "edit" is forbidden: User "jane" cannot impersonate resource "userextras/acme.com/scopes" in API group "authentication.k8s.io" at the cluster scope"#,
    );
    assert!(matches!(ask(&[("impersonate-group", "dev")]), Err(ImpersonationError::BadRequest(_))));
}

#[test]
fn acting_as_somebody_else_for_some_requests() {
    let own = "authentication.k8s.io";
    let on_pods = |mode: &str| json!({"verbs": [format!("impersonate-on:{mode}:list")], "apiGroups": [""], "resources": ["pods"]});
    let of = |mode: &str, resource: &str, names: Value| json!({"verbs": [format!("impersonate:{mode}")], "apiGroups": [own], "resources": [resource], "resourceNames": names});
    let authorizer = authorizer(json!([
        on_pods("associated-node"),
        on_pods("arbitrary-node"),
        on_pods("serviceaccount"),
        on_pods("user-info"),
        of("associated-node", "nodes", json!([])),
        of("arbitrary-node", "nodes", json!(["n2"])),
        of("serviceaccount", "serviceaccounts", json!(["sa"])),
        of("user-info", "users", json!(["bob", "system:anonymous"])),
        of("user-info", "groups", json!(["dev", "system:masters", ""])),
        of("user-info", "userextras/acme.com/scopes", json!([])),
        {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["ann"]},
    ]));
    let jane = Caller::new("jane", Vec::<String>::new());
    let on_node = |mut caller: Caller, nodes: &[&str]| {
        let names = nodes.iter().map(|name| (*name).to_owned()).collect();
        caller.extra.insert("authentication.kubernetes.io/node-name".to_owned(), names);
        caller
    };
    // Bound to whom the rules are for, whoever it is.
    let account = |nodes: &[&str]| on_node(Caller::service_account("ns", "agent", "u"), nodes);
    let check = |caller: &Caller, verb: &str, pairs: &[(&str, &str)], want: &str| {
        let request = Attributes::resource(verb, "", "pods").in_namespace("ns");
        let got = match impersonate(&authorizer, caller, &request, &headers(pairs), &|_, _| {}) {
            Ok(Some(one)) => {
                format!(
                    "{} {} {}",
                    one.constraint.unwrap_or("impersonate"),
                    one.caller.user,
                    one.caller.groups.join(",")
                )
            }
            Ok(None) => "nobody".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want, "{verb} {pairs:?}");
    };
    let user = |name: &'static str| ("impersonate-user", name);
    let bob = "impersonate:user-info bob system:authenticated";
    let no_user = |name: &str| {
        format!(
            r#"users "{name}" is forbidden: User "jane" cannot impersonate resource "users" in API group "" at the cluster scope"#
        )
    };
    check(&jane, "list", &[user("bob")], bob);
    // What may be done otherwise is not for this.
    check(&jane, "delete", &[user("bob")], &no_user("bob"));
    check(&jane, "delete", &[user("ann")], "impersonate ann system:authenticated");
    check(&jane, "list", &[user("ann")], "impersonate ann system:authenticated");
    check(
        &jane,
        "list",
        &[user("eve")],
        r#"users.authentication.k8s.io "eve" is forbidden: User "jane" cannot impersonate:user-info resource "users" in API group "authentication.k8s.io" at the cluster scope"#,
    );
    check(&jane, "list", &[user("system:anonymous")], "impersonate:user-info system:anonymous system:unauthenticated");
    check(
        &jane,
        "list",
        &[user("bob"), ("impersonate-group", "dev")],
        "impersonate:user-info bob dev,system:authenticated",
    );
    let refused = |group: &str, shown: &str| {
        let what = if group.is_empty() { String::new() } else { format!(" {group:?}") };
        format!(
            r#"groups.authentication.k8s.io{what} is forbidden: User "jane" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope: impersonating the {shown} group is not allowed"#
        )
    };
    for (group, shown) in [("system:masters", "system:masters"), ("", "empty string")] {
        check(&jane, "list", &[user("bob"), ("impersonate-group", group)], &refused(group, shown));
    }
    // All of many groups are asked about at once, and then each.
    let many: Vec<(&str, &str)> = ["a", "b", "c", "dev"].map(|group| ("impersonate-group", group)).to_vec();
    check(
        &jane,
        "list",
        &[vec![user("bob")], many].concat(),
        r#"groups.authentication.k8s.io "a" is forbidden: User "jane" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope"#,
    );
    check(&jane, "list", &[user("bob"), ("impersonate-extra-acme.com%2fscopes", "view")], bob);
    for (header, value, why) in [
        (
            "impersonate-extra-scopes",
            "view",
            r#"impersonating an invalid key in extra is not allowed: "scopes": must be a domain-prefixed path (such as "acme.io/foo")"#,
        ),
        (
            "impersonate-extra-acme.com%2f%53copes",
            "view",
            r#"impersonating a non-lowercase key in extra is not allowed: "acme.com/Scopes""#,
        ),
        ("impersonate-extra-acme.com%2fscopes", "", "impersonating the empty string value in extra is not allowed"),
    ] {
        let refused = r#"userextras.authentication.k8s.io is forbidden: User "jane" cannot impersonate:user-info resource "userextras" in API group "authentication.k8s.io" at the cluster scope"#;
        check(&jane, "list", &[user("bob"), (header, value)], &format!("{refused}: {why}"));
    }
    // Nodes and accounts have ways of their own, in which nothing is said beside the name.
    let node = "system:nodes,system:authenticated";
    check(&jane, "list", &[user("system:node:n2")], &format!("impersonate:arbitrary-node system:node:n2 {node}"));
    check(
        &jane,
        "list",
        &[user("system:node:n1")],
        r#"nodes.authentication.k8s.io "n1" is forbidden: User "jane" cannot impersonate:arbitrary-node resource "nodes" in API group "authentication.k8s.io" at the cluster scope"#,
    );
    check(&jane, "list", &[user("system:node:n2"), ("impersonate-group", "dev")], &no_user("system:node:n2"));
    check(&jane, "list", &[user("system:node:N_2")], &no_user("system:node:N_2"));
    let groups = "system:serviceaccounts,system:serviceaccounts:ns,system:authenticated";
    check(
        &jane,
        "list",
        &[user("system:serviceaccount:ns:sa")],
        &format!("impersonate:serviceaccount system:serviceaccount:ns:sa {groups}"),
    );
    // Who runs on a node acts as that one, and as no other.
    let agent = account(&["n1"]);
    check(&agent, "list", &[user("system:node:n1")], &format!("impersonate:associated-node system:node:n1 {node}"));
    check(&agent, "list", &[user("system:node:n2")], &format!("impersonate:arbitrary-node system:node:n2 {node}"));
    let other = "system:node:n3";
    for caller in [account(&["n1"]), account(&["n3", "n1"]), account(&[]), on_node(jane.clone(), &["n3"])] {
        let want = format!(
            r#"nodes.authentication.k8s.io "n3" is forbidden: User {:?} cannot impersonate:arbitrary-node resource "nodes" in API group "authentication.k8s.io" at the cluster scope"#,
            caller.user
        );
        check(&caller, "list", &[user(other)], &want);
    }
}

#[test]
fn impersonation_headers_are_taken_off() {
    let mut map = headers(&[
        ("impersonate-user", "a"),
        ("impersonate-group", "b"),
        ("impersonate-extra-x", "c"),
        ("impersonate-uid", "d"),
        ("accept", "e"),
    ]);
    strip_impersonation(&mut map);
    assert_eq!(map.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
}
