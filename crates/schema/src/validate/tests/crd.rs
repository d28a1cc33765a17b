//! What CustomResourceDefinitions may say but for their schemas, and in which groups they need an approval.

use serde_json::{Value, json};

use super::{refuses, texts, with};
use crate::validate::{create, names, update};
use crate::{default, table};

#[test]
fn what_definitions_may_say() {
    let good = crate::crd::tests::definition();
    let form = names::dns1035_label("CronTab").unwrap_or_default();
    let unprintable = "must only contain printable UTF-8 characters; non-printable character found at index";
    let unused = "Forbidden: should not be set when strategy is not set to Webhook";
    let webhook = json!({"clientConfig": {"url": "https://x.example"}, "conversionReviewVersions": ["v1"]});
    let taking = |version: &str| {
        let webhook = with(webhook.clone(), &[("/conversionReviewVersions", json!([version]))]);
        json!({"strategy": "Webhook", "webhook": webhook})
    };
    // The errors are expected line by line.
    for (pointer, value, expected) in [
        ("/spec/names/kind", json!("crontab"), String::new()),
        ("/spec/names/singular", json!("CronTab"), format!("spec.names.singular: Invalid value: \"CronTab\": {form}")),
        (
            "/spec/names/listKind",
            json!("Cron Tabs"),
            format!(
                "spec.names.listKind: Invalid value: \"Cron Tabs\": may have mixed case, but should otherwise match: {form}"
            ),
        ),
        (
            "/spec/conversion",
            json!({"strategy": "None", "webhook": webhook}),
            format!(
                "spec.conversion.webhook.clientConfig: {unused}\nspec.conversion.webhook.conversionReviewVersions: {unused}"
            ),
        ),
        ("/spec/conversion", json!({"strategy": "Webhook", "webhook": webhook}), String::new()),
        (
            "/spec/conversion",
            taking("v1beta1"),
            String::new(),
        ),
        (
            "/spec/conversion",
            taking("v2"),
            "spec.conversion.webhook.conversionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1"
                .to_owned(),
        ),
        (
            "/spec/versions/1/additionalPrinterColumns/0/type",
            Value::Null,
            "spec.versions[1].additionalPrinterColumns[0].type: Required value: must be one of boolean,date,integer,number,string"
                .to_owned(),
        ),
        (
            "/spec/versions/1/additionalPrinterColumns/0/format",
            json!("odd"),
            "spec.versions[1].additionalPrinterColumns[0].format: Invalid value: \"odd\": must be one of byte,date,date-time,double,float,int32,int64,password"
                .to_owned(),
        ),
        ("/spec/versions/1/additionalPrinterColumns/0/format", json!("date-time"), String::new()),
        (
            "/spec/versions/1/subresources/scale/specReplicasPath",
            json!(".status.replicas"),
            "spec.versions[1].subresources.scale.specReplicasPath: Invalid value: \".status.replicas\": should be a json path under .spec"
                .to_owned(),
        ),
        (
            "/spec/versions/1/subresources/scale/labelSelectorPath",
            json!(".metadata.labels"),
            "spec.versions[1].subresources.scale.labelSelectorPath: Invalid value: \".metadata.labels\": should be a json path under either .spec or .status"
                .to_owned(),
        ),
        ("/spec/versions/1/subresources/scale/labelSelectorPath", json!(".spec.selector"), String::new()),
        ("/spec/versions/1/subresources/scale/labelSelectorPath", json!(""), String::new()),
        (
            "/spec/versions/1/deprecationWarning",
            json!("gone soon"),
            "spec.versions[1].deprecationWarning: Invalid value: \"gone soon\": can only be set for deprecated versions"
                .to_owned(),
        ),
        ("/spec/versions/0/deprecationWarning", json!("\"gone\" \\ 'soon' – très bientôt e\u{301}"), String::new()),
        (
            "/spec/versions/0/deprecationWarning",
            json!(""),
            "spec.versions[0].deprecationWarning: Invalid value: \"\": must not be an empty string".to_owned(),
        ),
        (
            "/spec/versions/0/deprecationWarning",
            json!("gone\nsoon"),
            format!("spec.versions[0].deprecationWarning: Invalid value: \"gone\\nsoon\": {unprintable} 4"),
        ),
        (
            "/spec/versions/0/deprecationWarning",
            json!("é\u{a0}"),
            format!("spec.versions[0].deprecationWarning: Invalid value: \"é\u{a0}\": {unprintable} 2"),
        ),
        (
            "/spec/versions/0/deprecationWarning",
            json!("x".repeat(257)),
            format!(
                "spec.versions[0].deprecationWarning: Invalid value: \"{}\": must be <= 256 characters long",
                "x".repeat(257)
            ),
        ),
    ] {
        let expected: Vec<&str> = expected.lines().collect();
        let changed = with(good.clone(), &[(pointer, value)]);
        refuses("apiextensions.k8s.io", "CustomResourceDefinition", changed, &expected);
    }
}

#[test]
fn definitions_of_the_community_are_approved() {
    let info = table::find_kind("apiextensions.k8s.io", "CustomResourceDefinition").expect("definitions");
    let said = |annotation: Option<&str>| {
        let mut definition = with(
            crate::crd::tests::definition(),
            &[("/spec/group", json!("stable.k8s.io")), ("/metadata/name", json!("crontabs.stable.k8s.io"))],
        );
        if let Some(annotation) = annotation {
            definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": annotation});
        }
        default::apply(info, "v1", &mut definition);
        definition
    };
    let policy = "see https://github.com/kubernetes/enhancements/pull/1111";
    let field = "metadata.annotations[api-approved.kubernetes.io]";
    let demand = "protected groups must have approval annotation \"api-approved.kubernetes.io\"";
    let missing = format!("{field}: Required value: {demand}, {policy}");
    let invalid = format!(
        "{field}: Invalid value: \"yes\": {demand} with either a URL or a reason starting with \"unapproved\", {policy}"
    );
    let url = Some("https://example.com/1");
    for (old, new, expected) in [
        (None, None, missing.as_str()),
        (None, Some("yes"), invalid.as_str()),
        (None, url, ""),
        (None, Some("unapproved, a trial"), ""),
        // Who has none already may change everything else.
        (Some(None), None, ""),
        (Some(Some("no")), Some("yes"), ""),
        (Some(url), None, missing.as_str()),
        (Some(None), Some("yes"), invalid.as_str()),
    ] {
        let found = match old {
            None => create(info, "v1", &said(new)),
            Some(old) => {
                let old = with(said(old), &[("/status", json!({"storedVersions": ["v1"]}))]);
                let new = with(said(new), &[("/status", json!({"storedVersions": ["v1"]}))]);
                update(info, "v1", &new, &old, "")
            }
        };
        let expected: Vec<&str> = expected.lines().collect();
        assert_eq!(texts(&found), expected, "{old:?} {new:?}");
    }
}
