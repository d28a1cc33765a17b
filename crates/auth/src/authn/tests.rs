use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::*;
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
            let got = authenticator.authenticate(peer, &headers(pairs), NOW, world);
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

    let strict = authenticator.clone().without_anonymous();
    assert_eq!(strict.authenticate(None, &HeaderMap::new(), NOW, &unread), Err(AuthnError::Missing));
    let caller = authenticator
        .authenticate(None, &headers(&[("authorization", "Bearer s3cret")]), NOW, &unread)
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
        json!({"subjects": [{"kind": "User", "name": "jane"}], "roleRef": {"kind": "ClusterRole", "name": "r"}}),
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
    let ask = |pairs: &[(&str, &str)]| impersonate(&authorizer, &jane, &headers(pairs));
    assert_eq!(ask(&[]), Ok(None));
    let groups = |pairs: &[(&str, &str)]| ask(pairs).expect("allowed").expect("somebody").groups;
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
    assert_eq!(full.uid, "7");
    assert_eq!(full.extra.get("acme.com/scopes"), Some(&vec!["view".to_owned()]));

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
