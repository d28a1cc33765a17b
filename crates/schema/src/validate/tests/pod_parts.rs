//! Parts of pods: projected sources, keys of labels, AppArmor profiles; and pods that were stored before a default was there.

use serde_json::{Value, json};

use super::causes::{changed, created, named, template};
use super::with;
use crate::validate::update;
use crate::{default, table};

const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

fn pod() -> Value {
    let sources = json!([{"configMap": {"name": "m"}}]);
    named(json!({"spec": {
        "serviceAccountName": "default",
        "containers": [{"name": "a", "image": "x"}],
        "volumes": [{"name": "v", "projected": {"sources": sources}}],
    }}))
}

/// A projected source, and the reason and the place within it for which it is refused; no text where it is taken.
#[track_caller]
fn projects(source: Value, expected: &str) {
    let expected = expected
        .split_once(' ')
        .map(|(reason, field)| format!("{reason} spec.volumes[0].projected.sources[0].{field}"));
    let expected: Vec<&str> = expected.as_deref().into_iter().collect();
    created("", "Pod", &pod(), &[("/spec/volumes/0/projected/sources/0", source, &expected)]);
}

#[test]
fn projected_sources() {
    let token = |seconds: i64| json!({"serviceAccountToken": {"path": "t", "expirationSeconds": seconds}});
    projects(token(1 << 32), "");
    projects(token((1 << 32) + 1), "Invalid serviceAccountToken.expirationSeconds");
    for (bundles, expected) in [
        (json!({}), "Required clusterTrustBundle"),
        (json!({"name": "a", "signerName": "a.io/b"}), "Invalid clusterTrustBundle"),
        (json!({"name": "a"}), ""),
        (json!({"name": "a.io:b:c"}), ""),
        (json!({"name": "a:b"}), "Invalid clusterTrustBundle.name"),
        (json!({"name": "A"}), "Invalid clusterTrustBundle.name"),
        (json!({"name": "a", "labelSelector": {}}), "Invalid clusterTrustBundle.labelSelector"),
        (json!({"signerName": "a.io/b"}), ""),
        (json!({"signerName": "odd"}), "Invalid clusterTrustBundle.signerName"),
        (
            json!({"signerName": "a.io/b", "labelSelector": {"matchLabels": {"a": "b c"}}}),
            "Invalid clusterTrustBundle.labelSelector.matchLabels",
        ),
    ] {
        let mut source = json!({"clusterTrustBundle": bundles});
        source["clusterTrustBundle"]["path"] = "p".into();
        projects(source, expected);
    }
    let certificate = json!({"signerName": "a.io/b", "keyType": "ED25519", "keyPath": "k"});
    for (pointer, value, expected) in [
        ("/keyType", json!("RSA3072"), ""),
        ("/keyType", json!("RSA2048"), "NotSupported podCertificate.keyType"),
        ("/keyType", Value::Null, "NotSupported podCertificate.keyType"),
        ("/keyPath", Value::Null, "Required podCertificate"),
        ("/signerName", json!("odd"), "Invalid podCertificate.signerName"),
        ("/maxExpirationSeconds", json!(91 * 86_400), ""),
        ("/maxExpirationSeconds", json!(91 * 86_400 + 1), "Invalid podCertificate.maxExpirationSeconds"),
        ("/maxExpirationSeconds", json!(60), "Invalid podCertificate.maxExpirationSeconds"),
    ] {
        projects(json!({"podCertificate": with(certificate.clone(), &[(pointer, value)])}), expected);
    }
}

#[test]
fn keys_are_in_one_place() {
    let is = |key: &str| json!({"key": key, "operator": "Exists"});
    let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [is("a"), is("c"), is("d"), is("d")]});
    let term = json!({"topologyKey": "zone", "labelSelector": selector, "matchLabelKeys": ["c", "a"]});
    let spread = with(term.clone(), &[("/maxSkew", json!(1)), ("/whenUnsatisfiable", json!("DoNotSchedule"))]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = format!("Invalid spec.affinity.podAffinity.{required}[0][1]");
    created(
        "",
        "Pod",
        &pod(),
        &[
            ("/spec/affinity", json!({"podAffinity": {required: [term]}}), &[affinity.as_str()]),
            ("/spec/topologySpreadConstraints", json!([spread]), &["Invalid spec.topologySpreadConstraints[0][1]"]),
        ],
    );
}

#[test]
fn annotations_name_profiles() {
    const AT: &str = "/metadata/annotations";
    let said = |container: &str, profile: &str| json!({format!("{APPARMOR}{container}"): profile});
    let refused = |reason: &str, place: &str, name: &str| format!("{reason} {place}annotations[{APPARMOR}{name}]");
    let (odd, unknown) = (refused("Invalid", "metadata.", "a"), refused("Invalid", "metadata.", "b"));
    created(
        "",
        "Pod",
        &pod(),
        &[
            (AT, said("a", "runtime/default"), &[]),
            (AT, said("a", ""), &[]),
            (AT, said("a", "odd"), &[odd.as_str()]),
            (AT, said("b", "unconfined"), &[unknown.as_str()]),
        ],
    );
    let (field, kind) = ("spec.containers[0].securityContext.appArmorProfile", "Forbidden ");
    let (other_kind, other_name) = (format!("{kind}{field}.type"), format!("{kind}{field}.localhostProfile"));
    let confined = |at: &str, profile: Value| with(pod(), &[(at, json!({"appArmorProfile": profile}))]);
    let own = confined("/spec/containers/0/securityContext", json!({"type": "Unconfined"}));
    let rows = &[(AT, said("a", "unconfined"), &[][..]), (AT, said("a", "runtime/default"), &[other_kind.as_str()])];
    created("", "Pod", &own, rows);
    let of_pod = confined("/spec/securityContext", json!({"type": "Localhost", "localhostProfile": "web"}));
    let rows = &[(AT, said("a", "localhost/web"), &[][..]), (AT, said("a", "localhost/x"), &[other_name.as_str()])];
    created("", "Pod", &of_pod, rows);
    let forbidden = refused("Forbidden", "metadata.", "a");
    changed("", "Pod", "", &pod(), &[(AT, said("a", "unconfined"), &[forbidden.as_str()])]);
    let annotated = with(pod(), &[(AT, said("a", "unconfined"))]);
    changed("", "Pod", "", &annotated, &[(AT, json!({}), &[forbidden.as_str()])]);
    let of_template = refused("Invalid", "template.", "x");
    let made = named(json!({"template": template()}));
    let at = "/template/metadata/annotations";
    created("", "PodTemplate", &made, &[(at, said("x", "odd"), &[of_template.as_str(), of_template.as_str()])]);
}

/// A pod that was stored before something of it had a default is given that when somebody writes it back, who changes nothing.
#[test]
fn pods_of_before_a_default() {
    let info = table::find_kind("", "Pod").expect("pods");
    let mut new = with(
        pod(),
        &[
            ("/spec/resources", json!({"limits": {"cpu": "1"}})),
            ("/spec/containers/0/resources", json!({"requests": {"cpu": "100m"}})),
        ],
    );
    default::apply(info, "v1", &mut new);
    assert_eq!(new["spec"]["resources"]["requests"], json!({"cpu": "100m"}));
    let mut old = new.clone();
    old["spec"]["resources"] = json!({"limits": {"cpu": "1"}});
    let found = update(info, "v1", &new, &old, "");
    assert!(found.is_empty(), "{found:?}");
    new["spec"]["resources"]["requests"]["cpu"] = "200m".into();
    assert_eq!(update(info, "v1", &new, &old, "").len(), 1);
}
