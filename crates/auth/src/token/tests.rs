use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use serde_json::Value;

use super::verify::Found;
use super::*;
use crate::secret::Secret;

const NOW: i64 = 1_800_000_000;

fn key() -> SigningKey {
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
    SigningKey::from_pem(&Secret::new(pair.serialize_pem())).expect("a P-256 key")
}

fn reference(name: &str) -> Reference {
    Reference { name: name.into(), uid: format!("{name}-uid") }
}

fn spec() -> TokenSpec {
    TokenSpec {
        namespace: "ns".into(),
        account: reference("sa"),
        bound: Some(BoundTo::Pod { pod: reference("pod"), node: Some(reference("node")) }),
        ..TokenSpec::default()
    }
}

fn account() -> BoundObject {
    BoundObject::ServiceAccount { namespace: "ns".into(), name: "sa".into() }
}

fn pod() -> BoundObject {
    BoundObject::Pod { namespace: "ns".into(), name: "pod".into() }
}

type World = BTreeMap<BoundObject, Option<Found>>;

fn world() -> World {
    let found = |uid: &str| Some(Found { uid: uid.into(), ..Found::default() });
    BTreeMap::from([(account(), found("sa-uid")), (pod(), found("pod-uid"))])
}

struct Fixture {
    issuer: Issuer,
    verifier: Verifier,
}

fn fixture() -> Fixture {
    let key = key();
    let verifier = Verifier::new(DEFAULT_ISSUER, vec![key.verifying_key().clone()]);
    Fixture { issuer: Issuer::new(DEFAULT_ISSUER, key), verifier }
}

impl Fixture {
    fn issue(&self, spec: &TokenSpec) -> String {
        self.issuer.issue(spec, NOW, "id-1").expect("a token").token.expose().to_owned()
    }

    fn check(&self, token: &str, now: i64, world: &World) -> Result<crate::Caller, TokenError> {
        self.verifier.verify(token, &[], now)?.confirm(now, world)
    }
}

#[test]
fn a_good_token_names_its_account() {
    let f = fixture();
    let token = f.issue(&spec());
    let verified = f.verifier.verify(&token, &[], NOW).expect("verifies");
    assert_eq!(verified.needs(), [account(), pod()]);
    let caller = verified.confirm(NOW, &world()).expect("confirms");
    assert_eq!(caller.user, "system:serviceaccount:ns:sa");
    assert_eq!(caller.uid, "sa-uid");
    assert_eq!(caller.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]);
    let extra = |name: &str| caller.extra.get(name).map(|v| v.join(","));
    assert_eq!(extra(BoundNames::POD_NAME).as_deref(), Some("pod"));
    assert_eq!(extra(BoundNames::POD_UID).as_deref(), Some("pod-uid"));
    assert_eq!(extra(BoundNames::NODE_NAME).as_deref(), Some("node"));
    assert_eq!(extra(BoundNames::CREDENTIAL_ID).as_deref(), Some("JTI=id-1"));
}

#[test]
fn claims_have_upstreams_form() {
    let f = fixture();
    let token = f.issue(&spec());
    let payload = token.split('.').nth(1).expect("three parts");
    let json: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).expect("base64url")).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({
            "aud": [DEFAULT_ISSUER], "exp": NOW + 3600, "iat": NOW, "nbf": NOW, "iss": DEFAULT_ISSUER,
            "jti": "id-1", "sub": "system:serviceaccount:ns:sa",
            "kubernetes.io": {
                "namespace": "ns",
                "node": {"name": "node", "uid": "node-uid"},
                "pod": {"name": "pod", "uid": "pod-uid"},
                "serviceaccount": {"name": "sa", "uid": "sa-uid"},
            },
        })
    );
}

#[test]
fn time_bounds() {
    let f = fixture();
    let token = f.issue(&spec());
    let at = |now| f.check(&token, now, &world()).map(|_| ());
    assert_eq!(at(NOW + 3600), Ok(()), "within the leeway");
    assert_eq!(at(NOW + 3659), Ok(()));
    assert_eq!(at(NOW + 3660), Err(TokenError::Expired));
    assert_eq!(at(NOW - 60), Ok(()));
    assert_eq!(at(NOW - 61), Err(TokenError::NotYetValid));
}

#[test]
fn audiences() {
    let f = fixture();
    let vault = TokenSpec { audiences: vec!["vault".into(), "db".into()], ..spec() };
    let token = f.issue(&vault);
    assert!(matches!(f.verifier.verify(&token, &[], NOW), Err(TokenError::Audience { .. })));
    let verified = f.verifier.verify(&token, &["x".into(), "vault".into()], NOW).expect("for the vault");
    assert_eq!(verified.audiences(), ["vault"]);
}

#[test]
fn what_is_gone_takes_its_tokens_along() {
    let f = fixture();
    let token = f.issue(&spec());
    let with = |object: BoundObject, found: Option<Found>| {
        let mut world = world();
        world.insert(object, found);
        f.check(&token, NOW, &world).map(|_| ())
    };
    let other = || Some(Found { uid: "other".into(), ..Found::default() });
    let deleted = |uid: &str, at: i64| Some(Found { uid: uid.into(), deletion_unix_s: Some(at), ..Found::default() });
    assert_eq!(with(account(), None), Err(TokenError::Gone(account())));
    assert_eq!(with(account(), other()), Err(TokenError::Replaced(account())));
    assert_eq!(with(pod(), None), Err(TokenError::Gone(pod())));
    assert_eq!(with(pod(), other()), Err(TokenError::Replaced(pod())));
    // A pod that is being deleted keeps its token through its grace period and a minute.
    assert_eq!(with(pod(), deleted("pod-uid", NOW + 30)), Ok(()));
    assert_eq!(with(pod(), deleted("pod-uid", NOW - 60)), Ok(()));
    assert_eq!(with(pod(), deleted("pod-uid", NOW - 61)), Err(TokenError::Gone(pod())));
    assert_eq!(with(account(), deleted("sa-uid", NOW - 61)), Err(TokenError::Gone(account())));
}

#[test]
fn unknown_is_not_absent() {
    let f = fixture();
    let mut world = world();
    world.remove(&pod());
    let got = f.check(&f.issue(&spec()), NOW, &world);
    assert!(matches!(got, Err(TokenError::Unknown { .. })), "{got:?}");
}

#[test]
fn bindings_of_other_kinds() {
    let f = fixture();
    let needs = |bound| {
        let token = f.issue(&TokenSpec { bound, ..spec() });
        f.verifier.verify(&token, &[], NOW).expect("verifies").needs()
    };
    assert_eq!(needs(None), [account()]);
    let node = BoundObject::Node { name: "node".into() };
    assert_eq!(needs(Some(BoundTo::Node(reference("node")))), [account(), node]);
    let secret = BoundObject::Secret { namespace: "ns".into(), name: "s".into() };
    assert_eq!(needs(Some(BoundTo::Secret(reference("s")))), [account(), secret]);
}

#[test]
fn forgeries() {
    let f = fixture();
    let token = f.issue(&spec());
    let verify = |token: &str| f.verifier.verify(token, &[], NOW).map(|_| ());
    assert_eq!(verify(&token), Ok(()));
    // Signed by somebody else, under the same issuer's name.
    assert_eq!(verify(&fixture().issue(&spec())), Err(TokenError::Signature));
    let parts: Vec<&str> = token.split('.').collect();
    let [header, payload, signature] = parts.as_slice() else {
        panic!("three parts");
    };
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let kid = f.issuer.key().verifying_key().kid();
    let claims = String::from_utf8(URL_SAFE_NO_PAD.decode(payload).expect("base64url")).expect("UTF-8");
    let cases = [
        ("no algorithm", format!("{}.{payload}.", encode(r#"{"alg":"none"}"#)), TokenError::Signature),
        (
            "HMAC",
            format!("{}.{payload}.{signature}", encode(&format!(r#"{{"alg":"HS256","kid":"{kid}"}}"#))),
            TokenError::Signature,
        ),
        (
            "another key's id",
            format!("{}.{payload}.{signature}", encode(r#"{"alg":"ES256","kid":"x"}"#)),
            TokenError::Signature,
        ),
        (
            "changed claims",
            format!("{header}.{}.{signature}", encode(&claims.replace(":sa\"", ":admin\""))),
            TokenError::Signature,
        ),
        ("cut signature", format!("{header}.{payload}.{}", &signature[..40]), TokenError::Signature),
        (
            "another issuer",
            format!("{header}.{}.{signature}", encode(&claims.replace("https://kube", "https://cube"))),
            TokenError::NotOurs,
        ),
        ("two parts", format!("{header}.{payload}"), TokenError::NotOurs),
        ("four parts", format!("{token}.x"), TokenError::NotOurs),
        ("no base64", token.replace('.', "!."), TokenError::NotOurs),
        ("empty", String::new(), TokenError::NotOurs),
        ("too long", "a".repeat(20_000), TokenError::NotOurs),
    ];
    for (name, forged, want) in cases {
        assert_eq!(verify(&forged), Err(want), "{name}");
    }
}

#[test]
fn a_subject_that_is_not_the_account_is_refused() {
    let key = key();
    let verifier = Verifier::new(DEFAULT_ISSUER, vec![key.verifying_key().clone()]);
    let sign = |sub: &str| {
        let claims = serde_json::json!({
            "aud": DEFAULT_ISSUER, "exp": NOW + 60, "iat": NOW, "iss": DEFAULT_ISSUER, "sub": sub,
            "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "sa", "uid": "u"}},
        });
        super::jws::sign(&claims, &key).expect("signs")
    };
    assert!(verifier.verify(&sign("system:serviceaccount:ns:sa"), &[], NOW).is_ok(), "aud as a string");
    let got = verifier.verify(&sign("system:admin"), &[], NOW);
    assert_eq!(got.map(|_| ()), Err(TokenError::Claims));
}

#[test]
fn several_keys_verify_during_a_change_of_keys() {
    let (old, new) = (key(), key());
    let keys = vec![new.verifying_key().clone(), old.verifying_key().clone()];
    let verifier = Verifier::new(DEFAULT_ISSUER, keys);
    for key in [old, new] {
        let issued = Issuer::new(DEFAULT_ISSUER, key).issue(&spec(), NOW, "id").expect("a token");
        assert!(verifier.verify(issued.token.expose(), &[], NOW).is_ok());
    }
}

#[test]
fn validity_bounds() {
    let f = fixture();
    let ask = |expiration_s| f.issuer.issue(&TokenSpec { expiration_s, ..spec() }, NOW, "id");
    let granted = |asked| ask(asked).map(|t| (t.expiration_s, t.expiration_unix_s - NOW)).expect("granted");
    assert_eq!(granted(None), (3600, 3600));
    assert_eq!(granted(Some(600)), (600, 600));
    assert_eq!(granted(Some(1 << 32)), (365 * 24 * 3600, 365 * 24 * 3600), "cut to the most there is");
    assert!(matches!(ask(Some(599)), Err(IssueError::TooShort)));
    assert!(matches!(ask(Some(-1)), Err(IssueError::TooShort)));
    assert!(matches!(ask(Some((1 << 32) + 1)), Err(IssueError::TooLong)));
}

/// As upstream's `TestServiceAccountTokenCreate` has it (`test/integration/auth/svcaccttoken_test.go`): what pods are given as
/// theirs is taken for a year, though its holder is told an hour; whoever asks for something else gets just that.
#[test]
fn mounted_tokens_are_taken_for_longer_than_they_say() {
    const YEAR_S: i64 = 365 * 24 * 3600;
    let f = fixture();
    let mounted = TokenSpec { expiration_s: Some(MOUNTED_EXPIRATION_S), ..spec() };
    let secret = Some(BoundTo::Secret(reference("s")));
    for (spec, extended) in [
        (mounted.clone(), true),
        (TokenSpec { audiences: vec![DEFAULT_ISSUER.into()], ..mounted.clone() }, true),
        (TokenSpec { audiences: vec![DEFAULT_ISSUER.into(), "vault".into()], ..mounted.clone() }, false),
        (TokenSpec { bound: secret, ..mounted.clone() }, false),
        (TokenSpec { bound: None, ..mounted.clone() }, false),
        (TokenSpec { expiration_s: Some(3600), ..mounted }, false),
    ] {
        let asked_s = spec.expiration_s.expect("asked for");
        let issued = f.issuer.issue(&spec, NOW, "id").expect("a token");
        assert_eq!((issued.expiration_s, issued.expiration_unix_s), (asked_s, NOW + asked_s), "{spec:?}");
        let verify = |now| f.verifier.verify(issued.token.expose(), &[], now);
        let verified = verify(NOW).expect("verifies");
        let want = if extended { (NOW + YEAR_S, Some(NOW + asked_s)) } else { (NOW + asked_s, None) };
        assert_eq!((verified.claims().exp, verified.claims().kubernetes.warnafter), want, "{spec:?}");
        let stale = |now| verified.is_stale(now);
        let want = if extended { (Some(false), Some(true)) } else { (None, None) };
        assert_eq!((stale(NOW + asked_s), stale(NOW + asked_s + 1)), want, "{spec:?}");
        assert_eq!(verify(NOW + YEAR_S).is_ok(), extended, "{spec:?}");
        assert!(verify(NOW + YEAR_S + 60).is_err(), "{spec:?}");
    }
    let short = Issuer::new(DEFAULT_ISSUER, key()).with_max_expiration_s(3600);
    let issued = short.issue(&TokenSpec { expiration_s: Some(MOUNTED_EXPIRATION_S), ..spec() }, NOW, "id");
    assert_eq!(issued.expect("a token").expiration_s, 3600, "who bounds all of them has none extended");
}

/// They have no end of their own: what their Secret holds is good, and nothing else.
#[test]
fn tokens_that_secrets_hold() {
    let f = fixture();
    let issued = f.issuer.issue_held(&spec(), "s").expect("a token");
    let payload = issued.expose().split('.').nth(1).expect("three parts");
    let json: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).expect("base64url")).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({
            "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:ns:sa",
            "kubernetes.io/serviceaccount/namespace": "ns",
            "kubernetes.io/serviceaccount/secret.name": "s",
            "kubernetes.io/serviceaccount/service-account.name": "sa",
            "kubernetes.io/serviceaccount/service-account.uid": "sa-uid",
        })
    );
    let secret = BoundObject::Secret { namespace: "ns".into(), name: "s".into() };
    let verified = f.verifier.verify(issued.expose(), &[], NOW).expect("verifies");
    assert_eq!(verified.held_in().as_ref(), Some(&secret));
    assert_eq!(f.verifier.verify(&f.issue(&spec()), &[], NOW).expect("verifies").held_in(), None);
    assert_eq!(
        (verified.audiences(), verified.needs()),
        (&[DEFAULT_ISSUER.to_owned()][..], vec![account(), secret.clone()])
    );
    assert!(matches!(f.verifier.verify(issued.expose(), &["vault".into()], NOW), Err(TokenError::Audience { .. })));
    let held = Found { uid: "any".into(), token: Some(issued.clone()), ..Found::default() };
    let changed = Some(Secret::new("another"));
    for (found, want) in [
        (Some(held.clone()), Ok("system:serviceaccount:ns:sa")),
        (Some(Found { deletion_unix_s: Some(NOW - 60), ..held.clone() }), Ok("system:serviceaccount:ns:sa")),
        (Some(Found { deletion_unix_s: Some(NOW - 61), ..held.clone() }), Err(TokenError::Gone(secret.clone()))),
        (Some(Found { is_invalidated: true, ..held.clone() }), Err(TokenError::Invalidated(secret.clone()))),
        (Some(Found { token: changed, ..held.clone() }), Err(TokenError::Replaced(secret.clone()))),
        (Some(Found { token: None, ..held }), Err(TokenError::Replaced(secret.clone()))),
        (None, Err(TokenError::Gone(secret.clone()))),
    ] {
        let mut world = world();
        world.insert(secret.clone(), found.clone());
        let got = f.check(issued.expose(), NOW, &world).map(|caller| caller.user);
        assert_eq!(got.as_deref().map_err(Clone::clone), want, "{found:?}");
    }
    let nobody = TokenSpec { account: Reference { name: "sa".into(), uid: String::new() }, ..spec() };
    for issued in [f.issuer.issue_held(&spec(), ""), f.issuer.issue_held(&nobody, "s")] {
        let got = f.verifier.verify(issued.expect("a token").expose(), &[], NOW);
        assert_eq!(got.map(|_| ()), Err(TokenError::Claims));
    }
}

#[test]
fn the_key_set_verifies_tokens() {
    let f = fixture();
    let set = jwks(&[f.issuer.key().verifying_key().clone()]);
    let key = &set["keys"][0];
    let coordinate = |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str().expect("a string")).expect("base64url");
    let point = [vec![4], coordinate("x"), coordinate("y")].concat();
    let token = f.issue(&spec());
    let (signed, signature) = token.rsplit_once('.').expect("three parts");
    ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_FIXED, point)
        .verify(signed.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).expect("base64url"))
        .expect("the published key verifies");
    assert_eq!(key["kid"], f.issuer.key().verifying_key().kid());
    for (own, base) in [
        (None, DEFAULT_ISSUER),
        (Some("192.0.2.1:6443"), "https://192.0.2.1:6443"),
        (Some("[2001:db8::1]:443"), "https://[2001:db8::1]:443"),
    ] {
        let own = own.map(|address| address.parse().expect("an address"));
        let document = openid_configuration(DEFAULT_ISSUER, own);
        assert_eq!(document["issuer"], DEFAULT_ISSUER);
        assert_eq!(document["jwks_uri"], format!("{base}/openid/v1/jwks"));
    }
}

#[test]
fn tokens_and_keys_do_not_print() {
    let f = fixture();
    let issued = f.issuer.issue(&spec(), NOW, "id").expect("a token");
    let printed = format!("{issued:?} {:?}", f.issuer);
    assert!(!printed.contains(issued.token.expose()), "{printed}");
    assert!(printed.contains("<redacted>"), "{printed}");
}

#[test]
fn only_p256_keys_sign() {
    let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let pem = Secret::new(ed25519.serialize_pem());
    assert!(matches!(SigningKey::from_pem(&pem), Err(KeyError::Rejected(_))));
    assert!(matches!(SigningKey::from_pem(&Secret::new("x")), Err(KeyError::Pem(_))));
}

proptest! {
    /// No character of a token can be another one: neither what is signed nor the signature.
    #[test]
    fn every_character_counts(at in any::<prop::sample::Index>(), with in "[A-Za-z0-9_.-]") {
        static SIGNED: std::sync::LazyLock<(Fixture, String)> = std::sync::LazyLock::new(|| {
            let f = fixture();
            let token = f.issue(&spec());
            (f, token)
        });
        let (f, token) = &*SIGNED;
        let at = at.index(token.len());
        let mut changed = token.clone();
        changed.replace_range(at..=at, &with);
        let verified = f.verifier.verify(&changed, &[], NOW).is_ok();
        prop_assert_eq!(verified, changed == *token, "{} at {}", with, at);
    }
}
