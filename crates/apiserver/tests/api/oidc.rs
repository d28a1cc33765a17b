//! Tokens of OpenID Connect providers, which a configuration makes users of.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use carrack_apiserver::{Answer, AuthenticationConfiguration, Call, CallError, Calling, Env, Trust};
use carrack_auth::token::{DEFAULT_ISSUER, Verifier};
use carrack_auth::{Anonymous, Authenticator, Caller};
use http::HeaderMap;
use serde_json::{Value, json};

use crate::harness::{Cluster, now};

const URL: &str = "https://idp.example.com";

/// Keys, and tokens that OpenSSL has signed with them: for the 600 s from the clock of these tests on.
fn vectors() -> Value {
    serde_json::from_str(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../auth/tests/data/oidc.json")))
        .expect("JSON")
}

/// A provider, and the rest of the world as it was.
struct Provider {
    env: Arc<dyn Env>,
    keys: Mutex<Value>,
    is_silent: Mutex<bool>,
    /// Whether it leaves those who ask waiting.
    hangs: AtomicBool,
    asked: AtomicUsize,
}

impl Env for Provider {
    fn now(&self) -> jiff::Timestamp {
        self.env.now()
    }
    fn random(&self) -> u64 {
        self.env.random()
    }
    fn call(&self, call: Call) -> Calling {
        self.asked.fetch_add(1, Ordering::Relaxed);
        assert_eq!(call.trust, Trust::Authorities("authorities".to_owned()));
        let body = match call.url().as_str() {
            "https://idp.example.com:443/.well-known/openid-configuration" => {
                json!({"issuer": URL, "jwks_uri": "https://keys.example.com:8443/all?of=them"})
            }
            "https://keys.example.com:8443/all?of=them" => self.keys.lock().expect("lock").clone(),
            other => panic!("nobody is at {other}"),
        };
        let answer = if *self.is_silent.lock().expect("lock") {
            Err(CallError::Timeout)
        } else {
            Ok(Answer { code: 200, headers: HeaderMap::new(), body: body.to_string().into() })
        };
        if self.hangs.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        Box::pin(std::future::ready(answer))
    }
}

fn configuration(mappings: &str, rest: &str) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: {URL}
    certificateAuthority: authorities
    audiences: [carrack]
  claimMappings:
{mappings}
{rest}"
    )
}

const BY_CLAIM: &str = "    username: {claim: email, prefix: 'idp:'}
    groups: {claim: groups, prefix: 'idp:'}";

fn cluster(configuration: &str) -> (Cluster, Arc<Provider>) {
    let mut provider = None;
    let cluster = Cluster::with(|config| {
        let keys = Mutex::new(vectors()["jwks"].clone());
        let env = config.env.clone();
        let (is_silent, hangs, asked) = (Mutex::default(), AtomicBool::new(false), AtomicUsize::new(0));
        let own = Arc::new(Provider { env, keys, is_silent, hangs, asked });
        config.env = own.clone();
        provider = Some(own);
        config.authentication =
            AuthenticationConfiguration::parse(configuration.as_bytes(), DEFAULT_ISSUER).expect("a configuration");
        config.authenticator = Some(Authenticator::new(Verifier::new(DEFAULT_ISSUER, Vec::new())));
    });
    (cluster, provider.expect("a provider"))
}

/// The headers of a token's bearer.
fn headers(token: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let token = vectors()["tokens"][token].as_str().unwrap_or(token).to_owned();
    headers.insert("authorization", format!("Bearer {token}").parse().expect("header"));
    headers
}

/// Who the bearer of a token is, or the code that he is told.
fn bearer(cluster: &Cluster, token: &str) -> Result<Caller, u16> {
    now(cluster.api.authenticate(None, "/", &headers(token))).map_err(|status| status.code)
}

fn text(caller: Result<Caller, u16>) -> Result<String, u16> {
    caller.map(|caller| format!("{} {}", caller.user, caller.groups.join(",")))
}

#[test]
fn claims_become_names() {
    let (cluster, _) = cluster(&configuration(BY_CLAIM, "  claimValidationRules: [{claim: tenant, requiredValue: a}]"));
    for (token, want) in [
        ("jane", Ok("idp:jane@example.com idp:dev,idp:ops,system:authenticated")),
        ("later", Ok("idp:late@example.com idp:dev,system:authenticated")),
        ("unverified", Err(401)),
        ("expired", Err(401)),
        ("future", Err(401)),
        ("other_aud", Err(401)),
        ("other_tenant", Err(401)),
        // It has no address, and so no name.
        ("RS256", Err(401)),
    ] {
        assert_eq!(text(bearer(&cluster, token)), want.map(str::to_owned), "{token}");
    }
    let jane = bearer(&cluster, "jane").expect("jane");
    assert_eq!(jane.extra["authentication.kubernetes.io/credential-id"], ["JTI=x1"]);
    // In time, what was good is not.
    cluster.env.advance(600);
    assert_eq!(text(bearer(&cluster, "jane")), Err(401));
}

#[test]
fn expressions_become_names() {
    let mappings = r#"    username: {expression: "'idp:' + claims.email.split('@')[0]"}
    groups: {expression: "claims.?groups.orValue([])"}
    uid: {expression: claims.sub}
    extra: [{key: example.com/tenant, valueExpression: claims.tenant}]"#;
    let rest = r#"  claimValidationRules:
  - {expression: "claims.email_verified == true", message: who is it?}
  - {expression: claims.exp - claims.iat <= 3600}
  userValidationRules:
  - {expression: "user.groups.all(group, !group.startsWith('system:'))"}
  - {expression: "user.username != 'idp:system:admin'"}"#;
    let (cluster, _) = cluster(&configuration(mappings, rest));
    let jane = bearer(&cluster, "jane").expect("jane");
    assert_eq!((jane.user.as_str(), jane.uid.as_str()), ("idp:jane", "1234"));
    assert_eq!(jane.groups, ["dev", "ops", "system:authenticated"]);
    assert_eq!(jane.extra["example.com/tenant"], ["a"]);
    for (token, want) in [
        ("later", Ok("idp:late dev,system:authenticated")),
        ("unverified", Err(401)),
        ("system", Err(401)),
        ("RS256", Err(401)),
    ] {
        assert_eq!(text(bearer(&cluster, token)), want.map(str::to_owned), "{token}");
    }
}

#[test]
fn a_provider_that_is_silent_says_nothing_about_its_tokens() {
    let (cluster, provider) = cluster(&configuration(BY_CLAIM, ""));
    let asked = || provider.asked.load(Ordering::Relaxed);
    let silent = |is: bool| *provider.is_silent.lock().expect("lock") = is;
    silent(true);
    assert_eq!(text(bearer(&cluster, "jane")), Err(503));
    // Nor is it asked again at once, whoever comes.
    assert_eq!((text(bearer(&cluster, "jane")), asked()), (Err(503), 1));
    silent(false);
    cluster.env.advance(10);
    assert!(bearer(&cluster, "jane").is_ok());
    assert_eq!(asked(), 3);
}

#[test]
fn keys_that_are_new_are_asked_for_now_and_then() {
    let (cluster, provider) = cluster(&configuration("    username: {claim: sub, prefix: ''}", ""));
    let asked = || provider.asked.load(Ordering::Relaxed);
    let all = vectors()["jwks"].clone();
    *provider.keys.lock().expect("lock") = json!({"keys": [all["keys"][0]]});
    assert_eq!((bearer(&cluster, "RS256").is_ok(), asked()), (true, 2));
    *provider.keys.lock().expect("lock") = all;
    // Nobody can make the server ask again and again.
    assert_eq!((text(bearer(&cluster, "ES256")), asked()), (Err(401), 2));
    cluster.env.advance(10);
    assert_eq!((bearer(&cluster, "ES256").is_ok(), asked()), (true, 4));
    assert_eq!((bearer(&cluster, "ES384").is_ok(), asked()), (true, 4));
    // Where the provider is silent, another key may be new; those that are known are known.
    *provider.is_silent.lock().expect("lock") = true;
    cluster.env.advance(10);
    let parts = |token: &str| {
        let all = vectors();
        let (signed, signature) = all["tokens"][token].as_str().and_then(|t| t.rsplit_once('.')).expect("a token");
        (signed.to_owned(), signature.to_owned())
    };
    let forged = format!("{}.{}", parts("jane").0, parts("RS256").1);
    assert_eq!((text(bearer(&cluster, &forged)), asked()), (Err(503), 5));
    assert_eq!((bearer(&cluster, "ES384").is_ok(), asked()), (true, 5));
}

#[test]
fn a_key_that_is_known_waits_for_no_other() {
    let (cluster, provider) = cluster(&configuration("    username: {claim: sub, prefix: ''}", ""));
    let asked = || provider.asked.load(Ordering::Relaxed);
    let all = vectors()["jwks"].clone();
    *provider.keys.lock().expect("lock") = json!({"keys": [all["keys"][0]]});
    assert_eq!((bearer(&cluster, "RS256").is_ok(), asked()), (true, 2));
    cluster.env.advance(10);
    provider.hangs.store(true, Ordering::Relaxed);
    let unknown = headers("ES256");
    let mut cx = Context::from_waker(Waker::noop());
    {
        let mut first = pin!(cluster.api.authenticate(None, "/", &unknown));
        let mut second = pin!(cluster.api.authenticate(None, "/", &unknown));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert_eq!((bearer(&cluster, "RS256").is_ok(), asked()), (true, 3));
        // The other waits for the same answer.
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert_eq!((bearer(&cluster, "RS256").is_ok(), asked()), (true, 3));
    }
    // Who went away has had the provider asked all the same.
    provider.hangs.store(false, Ordering::Relaxed);
    *provider.keys.lock().expect("lock") = all;
    assert_eq!((text(bearer(&cluster, "ES256")), asked()), (Err(401), 3));
    cluster.env.advance(10);
    assert_eq!((bearer(&cluster, "ES256").is_ok(), asked()), (true, 5));
}

#[test]
fn a_key_that_is_withdrawn_is_good_for_no_more_than_an_hour() {
    let text_of = configuration("    username: {claim: sub, prefix: ''}", "");
    let (cluster, provider) = cluster(&text_of);
    assert_eq!(text(bearer(&cluster, "ES256")), Ok("1234 system:authenticated".to_owned()));
    let first = vectors()["jwks"]["keys"][0].clone();
    *provider.keys.lock().expect("lock") = json!({"keys": [first]});
    // Another token, of a key that is not there, has the provider asked again.
    cluster.env.advance(10);
    assert!(bearer(&cluster, "RS256").is_ok());
    assert_eq!(provider.asked.load(Ordering::Relaxed), 2);
    cluster.env.advance(3600 - 10);
    // All have expired by now; what matters is that the provider is asked.
    assert!(bearer(&cluster, "ES256").is_err());
    assert_eq!(provider.asked.load(Ordering::Relaxed), 4);
}

#[test]
fn reviews_know_them_too() {
    let (cluster, _) = cluster(&configuration(BY_CLAIM, ""));
    let review = |token: &str| {
        let spec = json!({"token": vectors()["tokens"][token]});
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        cluster.post(path, &json!({"spec": spec})).expect(201)["status"].clone()
    };
    let jane = review("jane");
    assert_eq!((&jane["authenticated"], &jane["user"]["username"]), (&json!(true), &json!("idp:jane@example.com")));
    assert_eq!(review("expired")["authenticated"], json!(false));
}

#[test]
fn configurations_that_cannot_be_used() {
    let good = configuration(BY_CLAIM, "");
    for (from, to, why) in [
        ("kind: AuthenticationConfiguration", "kind: AuthorizationConfiguration", "is not apiserver.config.k8s.io/v1"),
        ("apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v2", "is not apiserver.config.k8s.io/v1"),
        ("https://idp", "http://idp", "is not an https URL"),
        (URL, DEFAULT_ISSUER, "the issuer of service accounts"),
        ("[carrack]", "[]", "issuer.audiences"),
        ("[carrack]", "[a, b]", "issuer.audienceMatchPolicy"),
        (", prefix: 'idp:'}\n    groups", "}\n    groups", "username.prefix: required"),
        ("{claim: email, prefix: 'idp:'}", "{expression: claims.email}", "claims.email_verified must be used"),
        ("{claim: email, prefix: 'idp:'}", "{expression: 'claims.'}", "claimMappings.username: ERROR"),
        ("{claim: email, prefix: 'idp:'}", "{claim: a, expression: b}", "either claim or expression"),
        ("claim: groups", "clam: groups", "unknown field"),
        (
            "    groups:",
            "    extra: [{key: authentication.kubernetes.io/node-name, valueExpression: claims.node}]\n    groups:",
            "a domain that is Kubernetes' own",
        ),
        ("jwt:", "anonymous: {enabled: false, conditions: [{path: /livez}]}\njwt:", "enabled should be set to true"),
        ("jwt:", "anonymous: {enabled: true, conditions: [{url: /livez}]}\njwt:", "unknown field"),
    ] {
        assert!(good.contains(from), "{from}");
        let text = good.replacen(from, to, 1);
        let refused = AuthenticationConfiguration::parse(text.as_bytes(), DEFAULT_ISSUER).expect_err(&text);
        assert!(refused.contains(why), "{refused}, not {why}");
    }
}

#[test]
fn who_shows_nothing_is_anonymous_where_the_configuration_says() {
    let at = |path: &str| Anonymous::At(BTreeSet::from([path.to_owned()]));
    for (said, want) in [
        ("", Anonymous::All),
        ("anonymous: {enabled: true}", Anonymous::All),
        ("anonymous: {enabled: false}", Anonymous::None),
        ("anonymous: {enabled: true, conditions: [{path: /livez}]}", at("/livez")),
    ] {
        let text = format!("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n{said}\n");
        let parsed = AuthenticationConfiguration::parse(text.as_bytes(), DEFAULT_ISSUER).expect(said);
        assert_eq!(parsed.anonymous, want, "{said}");
    }
}
