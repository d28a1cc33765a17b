//! Tables for who may use an image, and for what is kept of pulls.

use carrack_engine::Time;

use super::*;

const REPOSITORY: &str = "r.io/a";

/// A secret in short: `namespace/name/uid=hash`.
fn secret(text: &str) -> PullSecret {
    let (object, hash) = text.split_once('=').unwrap();
    let parts: Vec<&str> = object.split('/').collect();
    PullSecret { namespace: parts[0].into(), name: parts[1].into(), uid: parts[2].into(), credential_hash: hash.into() }
}

fn record(repository: &str, pulled_with: &Credentials) -> PulledRecord {
    let mut record = PulledRecord::new("sha256:1", Time::from_unix_s(0));
    record.note(Time::from_unix_s(1), repository, pulled_with);
    record
}

fn policy(name: &str) -> Verification {
    let held = ["r.io/a".to_owned(), "s.io/*".to_owned()];
    let list = if name == "NeverVerifyAllowlistedImages" { &held[..] } else { &held[..0] };
    Verification::named(name, list).unwrap()
}

#[test]
fn who_may_use_an_image_that_is_there() {
    let known = || Credentials::of(secret("n/s/1=h"));
    let (with_secret, anybody) = (record(REPOSITORY, &known()), record(REPOSITORY, &Credentials::none_needed()));
    let empty = record(REPOSITORY, &Credentials::default());
    let elsewhere = record("r.io/b", &Credentials::none_needed());
    let unhashed = record(REPOSITORY, &Credentials::of(secret("n/s/1=")));
    let (preset, listed) = ("NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages");
    let (of, granted, verify) = (Origin::Recorded, "granted", "verify");
    let digested = format!("r.io/a@sha256:{}", "0".repeat(64));
    for (policy_name, image, origin, gives, expected) in [
        // What no kubelet is known to have pulled.
        (preset, "r.io/a:1", Origin::Preloaded, "", granted),
        ("AlwaysVerify", "r.io/a:1", Origin::Preloaded, "", verify),
        (listed, "r.io/a:1", Origin::Preloaded, "", granted),
        (listed, "s.io/x/y", Origin::Preloaded, "", granted),
        (listed, "r.io/ab", Origin::Preloaded, "", verify),
        (listed, "no name", Origin::Preloaded, "", verify),
        ("NeverVerify", "r.io/a:1", of(&with_secret), "", granted),
        // What was pulled, nobody knows how.
        (preset, "r.io/a:1", Origin::Unknown, "n/s/1=h", verify),
        ("NeverVerify", "r.io/a:1", Origin::Unknown, "", granted),
        (preset, "r.io/a:1", of(&empty), "n/s/1=h", verify),
        (preset, "r.io/a:1", of(&elsewhere), "n/s/1=h", verify),
        (preset, "no name", of(&with_secret), "n/s/1=h", verify),
        // What was pulled with nothing.
        (preset, "r.io/a:1", of(&anybody), "", granted),
        // What was pulled with a secret: the same one, its credentials elsewhere, others in it.
        (preset, "r.io/a:1", of(&with_secret), "", verify),
        (preset, &digested, of(&with_secret), "n/s/1=h", granted),
        (listed, "r.io/a:1", of(&with_secret), "", granted),
        ("AlwaysVerify", "r.io/a:1", of(&with_secret), "n/s/1=h", granted),
        (preset, "r.io/a:1", of(&with_secret), "m/t/2=h", "granted by m/t"),
        (preset, "r.io/a:1", of(&with_secret), "n/s/1=i", "granted by n/s"),
        (preset, "r.io/a:1", of(&with_secret), "m/t/2=i n/s/1=h", granted),
        (preset, "r.io/a:1", of(&with_secret), "m/t/2=i", verify),
        (preset, "r.io/a:1", of(&with_secret), "m/s/1=i", verify),
        (preset, "r.io/a:1", of(&with_secret), "n/s/2=i", verify),
        // A hash that was not made is nobody's.
        (preset, "r.io/a:1", of(&unhashed), "m/t/2=", verify),
    ] {
        let secrets: Vec<PullSecret> = gives.split_whitespace().map(secret).collect();
        let said = match access(&policy(policy_name), image, origin, &secrets) {
            Access::Granted => granted.to_owned(),
            Access::GrantedBy(s) => format!("granted by {}/{}", s.namespace, s.name),
            Access::Verify => verify.to_owned(),
        };
        assert_eq!(said, expected, "{policy_name} {image} {origin:?} {gives}");
    }
}

#[test]
fn a_record_does_not_grow_for_ever() {
    let mut full = record(REPOSITORY, &Credentials::of(secret("n/s/0=h")));
    for n in 1..MOST_NOTED {
        full.note(Time::default(), REPOSITORY, &Credentials::of(secret(&format!("n/s{n}/{n}=h"))));
    }
    for (gives, expected) in [("m/t/2=h", Access::Granted), ("n/s/0=i", Access::Verify)] {
        assert_eq!(access(&policy(""), "r.io/a", Origin::Recorded(&full), &[secret(gives)]), expected, "{gives}");
    }
}

#[test]
fn what_a_pull_adds_to_a_record() {
    let (one, two) = (Credentials::of(secret("n/s/1=h")), Credentials::of(secret("m/t/2=i")));
    let (anybody, nothing) = (Credentials::none_needed(), Credentials::default());
    let changed = Credentials::of(secret("n/s/1=j"));
    for (before, new, is_new, secrets, open) in [
        (&nothing, &one, true, 1, false),
        (&nothing, &nothing, false, 0, false),
        (&one, &one, false, 1, false),
        (&one, &two, true, 2, false),
        (&one, &changed, true, 1, false),
        (&one, &nothing, false, 1, false),
        (&one, &anybody, true, 0, true),
        (&anybody, &one, false, 0, true),
    ] {
        let mut record = record(REPOSITORY, before);
        assert_eq!(record.note(Time::from_unix_s(5), REPOSITORY, new), is_new, "{before:?} and {new:?}");
        let now = record.credential_mapping.get(REPOSITORY).cloned().unwrap_or_default();
        assert_eq!((now.kubernetes_secrets.len(), now.node_pods_accessible), (secrets, open), "{before:?} and {new:?}");
    }
}

#[test]
fn documents_are_upstreams() {
    let upstream = br#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1",
        "lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"testimageref","credentialMapping":{"docker.io/testing/test":
        {"kubernetesSecrets":[{"uid":"u","namespace":"default","name":"pull-secret","credentialHash":"h"}],
         "kubernetesServiceAccounts":[{"uid":"v","namespace":"default","name":"a"}]}}}"#;
    let name = "pulled-sha256-b3c0cc4278800b03a308ceb2611161430df571ca733122f0a40ac8b9792a9064";
    let repository = "docker.io/testing/test";
    let mut record = PulledRecord::read(name, upstream).unwrap();
    assert_eq!(record.credential_mapping[repository].kubernetes_secrets, [secret("default/pull-secret/u=h")]);
    record.note(Time::from_unix_s(1), repository, &Credentials::of(secret("n/s/1=h")));
    let again = PulledRecord::read(name, &record.document()).unwrap();
    assert_eq!(again, record);
    assert_eq!(again.credential_mapping[repository].kubernetes_service_accounts.len(), 1);
    assert!(String::from_utf8(record.document()).unwrap().contains("kubelet.config.k8s.io/v1beta1"));
    assert_eq!(PulledRecord::read("pulled-sha256-00", upstream), None, "another image's");
    assert_eq!(PulledRecord::read(name, b"{}"), None);
    let name = "pulling-sha256-ee81caca15454863449fb55a1d942904d56d5ed9f9b20a7cb3453944ea2c7e11";
    let intent = Intent::new("repo.repo/test/test:v1");
    assert_eq!(Intent::read(name, &intent.document()), Some(intent));
    assert_eq!(Intent::read(name, record.document().as_slice()), None);
    assert!(!format!("{:?}", secret("n/s/1=hash")).contains("hash"));
}

#[test]
fn lists_hold_repositories_in_full() {
    let listed = "NeverVerifyAllowlistedImages";
    for (name, list, is_good) in [
        ("", &[][..], true),
        ("AlwaysVerify", &[], true),
        ("NeverVerify", &["r.io/a"], false),
        ("Sometimes", &[], false),
        (listed, &[], true),
        (listed, &["r.io/a", "r.io/*", "docker.io/library/nginx"], true),
        (listed, &["nginx"], false),
        (listed, &["r.io/a:1"], false),
        (listed, &["r.io/a@sha256:00"], false),
        (listed, &["/*"], false),
        (listed, &["*"], false),
        (listed, &["r.io/*/a/*"], false),
        (listed, &[" r.io/*"], false),
        (listed, &["r.io/a*"], false),
    ] {
        let list: Vec<String> = list.iter().map(|text| (*text).to_owned()).collect();
        let policy = Verification::named(name, &list);
        assert_eq!(policy.is_ok(), is_good, "{name} {list:?}: {policy:?}");
        if let Ok(policy) = policy {
            assert_eq!((policy.name() == listed, policy.list()), (name == listed, &list[..]));
        }
    }
}
