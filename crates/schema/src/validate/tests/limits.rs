//! Networking, quotas and limits, budgets, certificate requests.

use serde_json::json;

use super::causes::changed;
use super::refuses;

fn metadata() -> serde_json::Value {
    json!({"name": "x", "namespace": "d"})
}

#[test]
fn ingresses() {
    const NET: &str = "networking.k8s.io";
    let path = |path: serde_json::Value| json!({"metadata": metadata(), "spec": {"rules": [{"host": "a.example.com", "http": {"paths": [path]}}]}});
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    refuses(NET, "Ingress", path(json!({"path": "/", "pathType": "Prefix", "backend": backend})), &[]);
    refuses(NET, "Ingress", path(json!({"pathType": "ImplementationSpecific", "backend": backend})), &[]);
    for (kind, text, problem) in [
        ("Prefix", "/a/..", "cannot end with '/..'"),
        ("Exact", "/a/.", "cannot end with '/.'"),
        ("ImplementationSpecific", "a", "must be an absolute path"),
    ] {
        refuses(
            NET,
            "Ingress",
            path(json!({"path": text, "pathType": kind, "backend": backend})),
            &[&format!("spec.rules[0].http.paths[0].path: Invalid value: \"{text}\": {problem}")],
        );
    }
    refuses(
        NET,
        "Ingress",
        path(json!({"path": "a", "pathType": "Exact", "backend": {"service": {"name": "s"}}})),
        &[
            "spec.rules[0].http.paths[0].path: Invalid value: \"a\": must be an absolute path",
            "spec.rules[0].http.paths[0].backend: Required value: port name or number is required",
        ],
    );
    refuses(
        NET,
        "Ingress",
        path(json!({"path": "/", "backend": {}})),
        &[
            "spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified",
            "spec.rules[0].http.paths[0].backend: Required value: resource or service backend is required",
        ],
    );
    refuses(
        NET,
        "Ingress",
        json!({"metadata": metadata(), "spec": {"defaultBackend": backend, "rules": [{"host": "10.0.0.1"}]}}),
        &["spec.rules[0].host: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address"],
    );
    refuses(
        NET,
        "Ingress",
        json!({"metadata": metadata(), "spec": {}}),
        &["spec: Invalid value: {}: either `defaultBackend` or `rules` must be specified"],
    );
}

#[test]
fn network_policies() {
    let policy = |rule: serde_json::Value| json!({"metadata": metadata(), "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [rule]}});
    let check = |rule, expected: &[&str]| refuses("networking.k8s.io", "NetworkPolicy", policy(rule), expected);
    check(json!({"ports": [{"port": 80, "protocol": "TCP", "endPort": 90}], "from": [{"podSelector": {}}]}), &[]);
    check(
        json!({"ports": [{"port": 80, "protocol": "TCP", "endPort": 70}]}),
        &["spec.ingress[0].ports[0].endPort: Invalid value: 70: must be greater than or equal to `port`"],
    );
    check(json!({"from": [{}]}), &["spec.ingress[0].from[0]: Required value: must specify a peer"]);
    check(
        json!({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/16"]}}]}),
        &[
            "spec.ingress[0].from[0].ipBlock.except[1]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`",
        ],
    );
    check(
        json!({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}),
        &["spec.ingress[0].from[0]: Forbidden: may not specify both ipBlock and another peer"],
    );
}

#[test]
fn endpoint_slices_and_addresses() {
    let slice = |kind: &str, address: &str| json!({"metadata": metadata(), "addressType": kind, "endpoints": [{"addresses": [address]}], "ports": []});
    let check = |object, expected: &[&str]| refuses("discovery.k8s.io", "EndpointSlice", object, expected);
    check(slice("IPv4", "10.0.0.1"), &[]);
    check(
        slice("IPv4", "fd00::1"),
        &["endpoints[0].addresses[0]: Invalid value: \"fd00::1\": must be a valid IPv4 address"],
    );
    refuses(
        "networking.k8s.io",
        "IPAddress",
        json!({"metadata": {"name": "10.0.0"}, "spec": {"parentRef": {"resource": "services", "name": "s"}}}),
        &["metadata.name: Invalid value: \"10.0.0\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"],
    );
    refuses(
        "networking.k8s.io",
        "ServiceCIDR",
        json!({"metadata": {"name": "c"}, "spec": {"cidrs": ["10.0.0.0"]}}),
        &[
            "spec.cidrs[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ],
    );
}

#[test]
fn budgets_and_autoscalers() {
    let budget = |spec| json!({"metadata": metadata(), "spec": spec});
    let check = |spec, expected: &[&str]| refuses("policy", "PodDisruptionBudget", budget(spec), expected);
    check(json!({"maxUnavailable": "50%", "selector": {}}), &[]);
    check(
        json!({"maxUnavailable": "150%"}),
        &["spec.maxUnavailable: Invalid value: \"150%\": must not be greater than 100%"],
    );
    check(json!({"minAvailable": -1}), &["spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"]);
    check(
        json!({"minAvailable": 1, "unhealthyPodEvictionPolicy": "Never"}),
        &[
            "spec.unhealthyPodEvictionPolicy: Unsupported value: \"Never\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
        ],
    );
    refuses(
        "autoscaling",
        "HorizontalPodAutoscaler",
        json!({"metadata": metadata(), "spec": {"minReplicas": 3, "maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment"}}}),
        &[
            "spec.scaleTargetRef.name: Required value",
            "spec.maxReplicas: Invalid value: 2: must be greater than or equal to `minReplicas`",
        ],
    );
}

#[test]
fn quotas_and_limit_ranges() {
    let check = |spec, expected: &[&str]| {
        refuses("", "ResourceQuota", json!({"metadata": metadata(), "spec": spec}), expected);
    };
    check(
        json!({"hard": {"pods": "10", "count/deployments.apps": "1", "requests.nvidia.com/gpu": 1, "limits.cpu": "500m"}}),
        &[],
    );
    check(
        json!({"hard": {"things": "1", "pods": "-1"}}),
        &[
            "spec.hard[pods]: Invalid value: \"-1\": must be greater than or equal to 0",
            "spec.hard[things]: Invalid value: \"things\": must be a standard resource for quotas",
        ],
    );
    check(json!({"hard": {"pods": "1.5"}}), &["spec.hard[pods]: Invalid value: \"1.5\": must be an integer"]);
    check(json!({"scopes": ["Some"]}), &["spec.scopes: Invalid value: \"Some\": unsupported scope"]);
    // What can never be in a scope is not limited there.
    let unfit =
        |path: &str, shown: &str| format!("spec.{path}: Invalid value: {shown}: unsupported scope applied to resource");
    for (scope, name, fits) in [
        ("BestEffort", "pods", true),
        ("BestEffort", "requests.cpu", false),
        ("NotBestEffort", "requests.cpu", true),
        ("PriorityClass", "limits.memory", true),
        ("PriorityClass", "services", false),
        ("PriorityClass", "requests.ephemeral-storage", false),
        ("PriorityClass", "hugepages-2Mi", false),
        ("PriorityClass", "count/deployments.apps", true),
        ("VolumeAttributesClass", "requests.storage", true),
        ("VolumeAttributesClass", "pods", false),
    ] {
        let expected = unfit("scopes", &format!("[\"{scope}\"]"));
        let expected: &[&str] = if fits { &[] } else { &[&expected] };
        check(json!({"hard": {name: "1"}, "scopes": [scope]}), expected);
        let expressions = json!([{"operator": "Exists", "scopeName": scope}]);
        let expected = unfit("scopeSelector.matchExpressions", &expressions.to_string());
        let expected: &[&str] = if fits { &[] } else { &[&expected] };
        check(json!({"hard": {name: "1"}, "scopeSelector": {"matchExpressions": expressions}}), expected);
    }
    let expressions = json!([{"operator": "Exists", "scopeName": "Terminating"},
        {"operator": "In", "scopeName": "NotTerminating", "values": ["a"]}]);
    check(
        json!({"scopeSelector": {"matchExpressions": expressions}}),
        &[
            &format!("spec.scopeSelector.matchExpressions: Invalid value: {expressions}: conflicting scopes"),
            "spec.scopeSelector.matchExpressions[1].operator: Invalid value: \"In\": must be 'Exist' when scope is any of \
             ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
             ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
        ],
    );
    refuses(
        "",
        "LimitRange",
        json!({"metadata": metadata(), "spec": {"limits": [{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}, "default": {"cpu": "1"},
            "defaultRequest": {"cpu": "1"}}]}}),
        &[
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than default value 1",
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than default request value 1",
        ],
    );
    // No scopes are the same however they are written.
    let quota = json!({"metadata": metadata(), "spec": {"hard": {"pods": "1"}, "scopes": []}});
    changed(
        "",
        "ResourceQuota",
        "",
        &quota,
        &[
            ("/spec/scopes", json!(null), &[]),
            ("/spec/hard/pods", json!("2"), &[]),
            ("/spec/scopes", json!(["BestEffort"]), &["Invalid spec.scopes"]),
        ],
    );
    refuses(
        "",
        "LimitRange",
        json!({"metadata": metadata(), "spec": {"limits": [{"type": "Odd"}, {"type": "example.com/odd"},
            {"type": "PersistentVolumeClaim", "max": {"cpu": "1"}}]}}),
        &[
            "spec.limits[0].type: Invalid value: \"Odd\": must be a standard limit type or fully qualified",
            "spec.limits[2].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
        ],
    );
    let claims = json!({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}});
    refuses("", "LimitRange", json!({"metadata": metadata(), "spec": {"limits": [claims]}}), &[]);
}

#[test]
fn certificate_requests() {
    let check = |spec, expected: &[&str]| {
        refuses(
            "certificates.k8s.io",
            "CertificateSigningRequest",
            json!({"metadata": {"name": "c"}, "spec": spec}),
            expected,
        );
    };
    check(json!({"request": "AAAA", "signerName": "example.com/s", "usages": ["client auth"]}), &[]);
    check(
        json!({"request": "AAAA", "signerName": "kubernetes.io/legacy-unknown", "usages": ["client auth"], "expirationSeconds": 60}),
        &[
            "spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 600 seconds (10 minutes)",
            "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed via this API version",
        ],
    );
    check(
        json!({"request": "AAAA", "signerName": "s", "usages": []}),
        &[
            "spec.signerName: Invalid value: \"s\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
            "spec.usages: Required value: usages cannot be empty",
        ],
    );
}

#[test]
fn priority_levels() {
    let level = |part: &str, field: &str, number: i64| {
        let (name, mut spec) = match part {
            "exempt" => ("exempt", json!({"type": "Exempt"})),
            _ => ("l", json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}})),
        };
        spec[part][field] = number.into();
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let (negative, beyond) = ("must be a non-negative integer", "must be between 0 and 100, inclusive");
    for (part, field, number, problem) in [
        ("limited", "nominalConcurrencyShares", 0, None),
        ("limited", "nominalConcurrencyShares", -1, Some(negative)),
        ("limited", "lendablePercent", 100, None),
        ("limited", "lendablePercent", 101, Some(beyond)),
        ("limited", "borrowingLimitPercent", 0, None),
        ("limited", "borrowingLimitPercent", 500, None),
        ("limited", "borrowingLimitPercent", -1, Some("if specified, must be a non-negative integer")),
        ("exempt", "nominalConcurrencyShares", -1, Some(negative)),
        ("exempt", "lendablePercent", 101, Some(beyond)),
    ] {
        let found = problem.map(|problem| format!("spec.{part}.{field}: Invalid value: {number}: {problem}"));
        let wanted: Vec<&str> = found.as_deref().into_iter().collect();
        refuses("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", level(part, field, number), &wanted);
    }
}
