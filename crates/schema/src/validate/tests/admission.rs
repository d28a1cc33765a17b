//! Webhook configurations, admission policies and their bindings.

use serde_json::{Value, json};

use super::causes::{created, global};

const GROUP: &str = "admissionregistration.k8s.io";

fn rule() -> Value {
    json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]})
}

fn webhooks() -> Value {
    global(json!({"webhooks": [{
        "name": "a.example.com", "clientConfig": {"service": {"name": "s", "namespace": "d"}}, "rules": [rule()],
        "sideEffects": "None", "admissionReviewVersions": ["v1", "v2"],
    }]}))
}

#[test]
fn rules_of_webhooks() {
    let resources = "/webhooks/0/rules/0/resources";
    let told = |reason: &str, rest: &str| format!("{reason} webhooks[0].rules[0].{rest}");
    let (all, first, second) =
        (told("Invalid", "resources"), told("Required", "resources[0]"), told("Invalid", "resources[1]"));
    created(
        GROUP,
        "ValidatingWebhookConfiguration",
        &webhooks(),
        &[
            (resources, json!(["*/*", "pods"]), &[&all]),
            (resources, json!(["*/*"]), &[]),
            (resources, json!(["pods/*", "pods/status"]), &[&second]),
            (resources, json!(["*/status", "pods/status"]), &[&second]),
            (resources, json!(["pods/*", "*/scale"]), &[]),
            (resources, json!(["*", "pods"]), &[&all]),
            (resources, json!(["*", "pods/status"]), &[]),
            (resources, json!(["pods", "*"]), &[]),
            (resources, json!([""]), &[&first]),
            (resources, json!([]), &[&told("Required", "resources")]),
            ("/webhooks/0/rules/0/apiVersions", json!([""]), &[&told("Required", "apiVersions[0]")]),
            ("/webhooks/0/rules/0/apiGroups", json!(["*", "apps"]), &[&told("Invalid", "apiGroups")]),
            ("/webhooks/0/rules/0/operations", json!(["*", "CREATE"]), &[&told("Invalid", "operations")]),
            ("/webhooks/0/rules/0/operations", json!(["Odd"]), &[&told("NotSupported", "operations[0]")]),
        ],
    );
}

#[test]
fn where_webhooks_are() {
    let (config, path) = ("/webhooks/0/clientConfig", "/webhooks/0/clientConfig/service/path");
    let (bad_path, bad_url) =
        (&["Invalid webhooks[0].clientConfig.service.path"][..], "Invalid webhooks[0].clientConfig.url");
    let versions = "/webhooks/0/admissionReviewVersions";
    created(
        GROUP,
        "MutatingWebhookConfiguration",
        &webhooks(),
        &[
            (path, json!("/"), &[]),
            (path, json!("/a/b.c/"), &[]),
            (path, json!("a"), bad_path),
            (path, json!("//"), bad_path),
            (path, json!("/a//b"), bad_path),
            (path, json!("/a_b"), bad_path),
            ("/webhooks/0/clientConfig/service/name", json!(""), &["Required webhooks[0].clientConfig.service.name"]),
            (config, json!({}), &["Required webhooks[0].clientConfig"]),
            (config, json!({"url": "https://localhost:8443/a/b"}), &[]),
            (config, json!({"url": "http://example.com"}), &[bad_url]),
            (config, json!({"url": "example.com"}), &[bad_url, bad_url]),
            (config, json!({"url": "https:///a"}), &[bad_url]),
            (config, json!({"url": "https://a:b@example.com/?c=d#e"}), &[bad_url, bad_url, bad_url]),
            (config, json!({"url": "https://example.com:port"}), &["Required webhooks[0].clientConfig.url"]),
            (versions, json!(["v1", "v1"]), &["Invalid webhooks[0].admissionReviewVersions[1]"]),
            (
                versions,
                json!(["V1"]),
                &["Invalid webhooks[0].admissionReviewVersions[0]", "Invalid webhooks[0].admissionReviewVersions"],
            ),
            (versions, json!(["v2"]), &["Invalid webhooks[0].admissionReviewVersions"]),
            (versions, json!([]), &["Required webhooks[0].admissionReviewVersions"]),
            ("/webhooks/0/sideEffects", json!(null), &["Required webhooks[0].sideEffects"]),
            ("/webhooks/0/sideEffects", json!("Some"), &["NotSupported webhooks[0].sideEffects"]),
        ],
    );
}

#[test]
fn validating_policies() {
    let annotation = |key: &str| json!({"key": key, "valueExpression": "'v'"});
    let many: Vec<Value> = (0..21).map(|number| annotation(&format!("k{number}"))).collect();
    let long = json!([{"key": "k", "valueExpression": format!("'{}'", "x".repeat(5 << 10))}]);
    let names = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"],
        "resourceNames": ["a", "a", "b/c"]});
    created(
        GROUP,
        "ValidatingAdmissionPolicy",
        &global(json!({"spec": {
            "matchConstraints": {"resourceRules": [rule()]}, "paramKind": {"apiVersion": "a.b/v1", "kind": "Kind"},
            "variables": [{"name": "one", "expression": "1"}], "validations": [{"expression": "true"}],
            "auditAnnotations": [annotation("k")],
        }})),
        &[
            ("/spec/paramKind/apiVersion", json!("v1"), &[]),
            ("/spec/paramKind/apiVersion", json!("a/b/c"), &["Invalid spec.paramKind.apiVersion"]),
            ("/spec/paramKind/apiVersion", json!("a/"), &["Invalid spec.paramKind.apiVersion"]),
            ("/spec/paramKind/apiVersion", json!("a_b/v1"), &["Invalid spec.paramKind.apiVersion"]),
            ("/spec/paramKind/apiVersion", json!("1"), &["Invalid spec.paramKind.apiVersion"]),
            ("/spec/paramKind/kind", json!("a b"), &["Invalid spec.paramKind.kind"]),
            ("/spec/variables/0/name", json!("in"), &["Invalid spec.variables[0].name"]),
            ("/spec/validations/0/message", json!(" "), &["Invalid spec.validations[0].message"]),
            ("/spec/validations/0/message", json!("a\nb"), &["Invalid spec.validations[0].message"]),
            ("/spec/validations/0/message", json!("a\n"), &[]),
            ("/spec/validations/0/messageExpression", json!(" "), &["Invalid spec.validations[0].messageExpression"]),
            ("/spec/auditAnnotations", json!([annotation("a/b")]), &["Invalid spec.auditAnnotations[0].key"]),
            ("/spec/auditAnnotations", json!([annotation("")]), &["Invalid spec.auditAnnotations[0].key"]),
            (
                "/spec/auditAnnotations",
                json!([annotation("k"), annotation("k")]),
                &["Duplicate spec.auditAnnotations[1].key"],
            ),
            ("/spec/auditAnnotations", json!(many), &["Invalid spec.auditAnnotations"]),
            ("/spec/auditAnnotations", long, &["Required spec.auditAnnotations[0].valueExpression"]),
            (
                "/spec/matchConstraints",
                json!({"resourceRules": [names]}),
                &[
                    "Invalid spec.matchConstraints.resourceRules[0].resourceNames[2]",
                    "Duplicate spec.matchConstraints.resourceRules[0].resourceNames[1]",
                ],
            ),
            (
                "/spec/matchConstraints/resourceRules/0/resources",
                json!(["*/*", "pods"]),
                &["Invalid spec.matchConstraints.resourceRules[0].resources"],
            ),
            ("/spec/matchConstraints/matchPolicy", json!("Odd"), &["NotSupported spec.matchConstraints.matchPolicy"]),
        ],
    );
}

#[test]
fn mutating_policies() {
    let expression = json!({"expression": "Object{data: {'made': 'so'}}"});
    created(
        GROUP,
        "MutatingAdmissionPolicy",
        &global(json!({"spec": {
            "matchConstraints": {"resourceRules": [rule()]}, "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": expression}],
        }})),
        &[
            ("/spec/reinvocationPolicy", json!(null), &["Required spec.reinvocationPolicy"]),
            ("/spec/reinvocationPolicy", json!("Odd"), &["NotSupported spec.reinvocationPolicy"]),
            (
                "/spec/mutations/0/applyConfiguration/expression",
                json!("{'data': {'made': 'so'}}"),
                &["Invalid spec.mutations[0].applyConfiguration.expression"],
            ),
            (
                "/spec/mutations/0/applyConfiguration/expression",
                json!("has(object.data) ? Object{} : Object{data: {'made': 'so'}}"),
                &[],
            ),
            ("/spec/paramKind", json!({"apiVersion": "a/b/c", "kind": "K"}), &["Invalid spec.paramKind.apiVersion"]),
        ],
    );
}

#[test]
fn bindings() {
    created(
        GROUP,
        "ValidatingAdmissionPolicyBinding",
        &global(json!({"spec": {
            "policyName": "p", "paramRef": {"name": "n", "parameterNotFoundAction": "Deny"}, "validationActions": ["Deny"],
        }})),
        &[
            ("/spec/policyName", json!("P"), &["Invalid spec.policyName"]),
            ("/spec/validationActions", json!(["Deny", "Deny"]), &["Duplicate spec.validationActions[1]"]),
            ("/spec/validationActions", json!([]), &["Required spec.validationActions"]),
            ("/spec/paramRef/name", json!("a/b"), &["Invalid spec.paramRef.name"]),
            ("/spec/paramRef/name", json!(null), &["Required spec.paramRef"]),
            (
                "/spec/paramRef/selector",
                json!({}),
                &["Forbidden spec.paramRef.name", "Forbidden spec.paramRef.selector"],
            ),
            (
                "/spec/paramRef/parameterNotFoundAction",
                json!(null),
                &["Required spec.paramRef.parameterNotFoundAction"],
            ),
        ],
    );
    created(
        GROUP,
        "MutatingAdmissionPolicyBinding",
        &global(json!({"spec": {"policyName": "p"}})),
        &[("/spec/policyName", json!("P"), &["Invalid spec.policyName"])],
    );
}
