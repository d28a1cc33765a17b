//! Devices for pods, and certificates for them.

use serde_json::{Value, json};

use super::causes::{changed, created, global, named};
use super::with;

const DRA: &str = "resource.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";

fn selector(expression: &str) -> Value {
    json!([{"cel": {"expression": expression}}])
}

/// Ten times what a selector may cost, at the least.
const COSTLY: &str = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(a, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(b, \
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(c, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(d, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(e, \
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(f, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(g, a + b + c + d + e + f + g < 100)))))))";

fn claim() -> Value {
    named(json!({"spec": {"devices": {
        "requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com",
                "selectors": selector("device.attributes['gpu.example.com'].model == 'a' && device.driver == 'gpu.example.com'"),
                "tolerations": [{"key": "example.com/broken", "operator": "Exists"}]}},
            {"name": "nic", "firstAvailable": [
                {"name": "fast", "deviceClassName": "nic", "allocationMode": "All"}, {"name": "slow", "deviceClassName": "nic"}]},
        ],
        "constraints": [{"requests": ["gpu", "nic/fast"], "matchAttribute": "example.com/numaNode"}],
        "config": [{"requests": ["nic"], "opaque": {"driver": "nic.example.com", "parameters": {"mtu": 9000}}}],
    }}}))
}

#[test]
fn claims() {
    let rows: &[(&str, Value, &[&str])] = &[
        ("/spec/devices", json!({}), &[]),
        (
            "/spec/devices/requests/0/name",
            json!("nic"),
            &["Duplicate spec.devices.requests[1]", "Invalid spec.devices.constraints[0].requests[0]"],
        ),
        ("/spec/devices/requests/0/exactly", Value::Null, &["Required spec.devices.requests[0]"]),
        ("/spec/devices/requests/1/exactly", json!({"deviceClassName": "x"}), &["Invalid spec.devices.requests[1]"]),
        (
            "/spec/devices/requests/0/exactly/deviceClassName",
            json!(""),
            &["Required spec.devices.requests[0].exactly.deviceClassName"],
        ),
        ("/spec/devices/requests/0/exactly/count", json!(-1), &["Invalid spec.devices.requests[0].exactly.count"]),
        (
            "/spec/devices/requests/0/exactly/allocationMode",
            json!("Some"),
            &["NotSupported spec.devices.requests[0].exactly.allocationMode"],
        ),
        (
            "/spec/devices/requests/0/exactly/selectors",
            json!([{}]),
            &["Required spec.devices.requests[0].exactly.selectors[0].cel"],
        ),
        (
            "/spec/devices/requests/0/exactly/selectors",
            selector("device.driver"),
            &["Invalid spec.devices.requests[0].exactly.selectors[0].cel.expression"],
        ),
        (
            "/spec/devices/requests/0/exactly/selectors",
            selector("device.name == 'a'"),
            &["Invalid spec.devices.requests[0].exactly.selectors[0].cel.expression"],
        ),
        (
            "/spec/devices/requests/0/exactly/selectors",
            selector(
                "device.capacity['a.example.com'].memory.compareTo(quantity('1Gi')) >= 0 && device.allowMultipleAllocations",
            ),
            &[],
        ),
        (
            "/spec/devices/requests/0/exactly/selectors",
            selector(COSTLY),
            &["Forbidden spec.devices.requests[0].exactly.selectors[0].cel.expression"],
        ),
        (
            "/spec/devices/requests/0/exactly/tolerations",
            json!([{"operator": "Exists", "value": "a"}]),
            &["Invalid spec.devices.requests[0].exactly.tolerations[0].value"],
        ),
        (
            "/spec/devices/requests/1/firstAvailable/1/name",
            json!("fast"),
            &["Duplicate spec.devices.requests[1].firstAvailable[1]"],
        ),
        (
            "/spec/devices/constraints/0/matchAttribute",
            Value::Null,
            &["Required spec.devices.constraints[0].matchAttribute"],
        ),
        (
            "/spec/devices/constraints/0/matchAttribute",
            json!("numaNode"),
            &["Invalid spec.devices.constraints[0].matchAttribute"],
        ),
        (
            "/spec/devices/constraints/0/requests",
            json!(["nic/none", "gpu/fast", "nic", "nic"]),
            &[
                "Invalid spec.devices.constraints[0].requests[0]",
                "Invalid spec.devices.constraints[0].requests[1]",
                "Duplicate spec.devices.constraints[0].requests[3]",
            ],
        ),
        ("/spec/devices/config/0/opaque", Value::Null, &["Required spec.devices.config[0].opaque"]),
        ("/spec/devices/config/0/opaque/driver", json!("a b"), &["Invalid spec.devices.config[0].opaque.driver"]),
        (
            "/spec/devices/config/0/opaque/parameters",
            json!({"a": "x".repeat(11_000)}),
            &["TooLong spec.devices.config[0].opaque.parameters"],
        ),
        (
            "/spec/devices/requests",
            vec![json!({"name": "a"}); 33].into(),
            &[
                "TooMany spec.devices.requests",
                "Invalid spec.devices.constraints[0].requests[0]",
                "Invalid spec.devices.constraints[0].requests[1]",
                "Invalid spec.devices.config[0].requests[0]",
            ],
        ),
    ];
    created(DRA, "ResourceClaim", &claim(), rows);
    let template = named(json!({"spec": {"metadata": {"labels": {"a": "b"}}, "spec": claim()["spec"].clone()}}));
    created(
        DRA,
        "ResourceClaimTemplate",
        &template,
        &[
            ("/spec/metadata/labels", json!({"a b": "c"}), &["Invalid spec.metadata.labels"]),
            (
                "/spec/spec/devices/requests/0/name",
                json!("A"),
                &["Invalid spec.spec.devices.requests[0].name", "Invalid spec.spec.devices.constraints[0].requests[0]"],
            ),
        ],
    );
    changed(
        DRA,
        "ResourceClaim",
        "",
        &claim(),
        &[
            ("/metadata/labels", json!({"a": "b"}), &[]),
            // As a client in Go writes it back.
            ("/spec/devices/requests/0/exactly/tolerations/0/value", json!(""), &[]),
            ("/spec/devices/requests/0/exactly/count", json!(2), &["Invalid spec"]),
        ],
    );
    changed(DRA, "ResourceClaim", "", &named(json!({"spec": {}})), &[("/spec/devices", json!({}), &[])]);
    changed(DRA, "ResourceClaimTemplate", "", &template, &[("/spec/metadata/labels", json!({}), &["Invalid spec"])]);
}

#[test]
fn statuses_of_claims() {
    let result = json!({"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"});
    let device = json!({"driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"});
    let user = json!({"resource": "pods", "name": "p", "uid": "1"});
    let open = with(claim(), &[("/status", json!({}))]);
    let status = "status";
    changed(
        DRA,
        "ResourceClaim",
        status,
        &open,
        &[
            (
                "/status",
                json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": [user], "devices": [device]}),
                &[],
            ),
            ("/status", json!({"reservedFor": [user]}), &["Forbidden status.reservedFor"]),
            ("/status", json!({"devices": [device]}), &["Invalid status.devices[0]"]),
            (
                "/status",
                json!({"allocation": {"devices": {"results": [{"request": "nic/none", "driver": "", "pool": "A", "device": "d"}]}}}),
                &[
                    "Invalid status.allocation.devices.results[0].request",
                    "Required status.allocation.devices.results[0].driver",
                    "Invalid status.allocation.devices.results[0].pool",
                ],
            ),
            (
                "/status",
                json!({"allocation": {"devices": {"config": [{"source": "Else", "opaque": {"driver": "d", "parameters": {}}}]}}}),
                &["NotSupported status.allocation.devices.config[0].source"],
            ),
        ],
    );
    let given =
        with(claim(), &[("/status", json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}))]);
    changed(
        DRA,
        "ResourceClaim",
        status,
        &given,
        &[
            ("/status/reservedFor", json!([user, user]), &["Duplicate status.reservedFor[1]"]),
            (
                "/status/reservedFor",
                json!([{"resource": "pods", "name": "q"}]),
                &["Required status.reservedFor[0].uid"],
            ),
            ("/status/allocation/devices/results/0/device", json!("gpu-1"), &["Invalid status.allocation"]),
            ("/status", json!({}), &[]),
            (
                "/status/devices",
                json!([with(device.clone(), &[("/data", json!("no object"))])]),
                &["Invalid status.devices[0].data"],
            ),
        ],
    );
    let going = with(given, &[("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))]);
    changed(
        DRA,
        "ResourceClaim",
        status,
        &going,
        &[
            (
                "/status/reservedFor",
                json!([user, {"resource": "pods", "name": "q", "uid": "2"}]),
                &["Forbidden status.reservedFor"],
            ),
            ("/status/reservedFor", json!([]), &[]),
        ],
    );
}

#[test]
fn classes_and_slices() {
    let class = global(json!({"spec": {"selectors": selector("device.driver == 'a.example.com'"),
        "config": [{"opaque": {"driver": "a.example.com", "parameters": {}}}], "extendedResourceName": "example.com/gpu"}}));
    created(
        DRA,
        "DeviceClass",
        &class,
        &[
            ("/spec/selectors", selector("1"), &["Invalid spec.selectors[0].cel.expression"]),
            ("/spec/selectors", selector(&" ".repeat(11_000)), &["TooLong spec.selectors[0].cel.expression"]),
            ("/spec/selectors", selector(COSTLY), &["Forbidden spec.selectors[0].cel.expression"]),
            ("/spec/config", json!([{}]), &["Required spec.config[0].opaque"]),
            ("/spec/extendedResourceName", json!("cpu"), &["Invalid spec.extendedResourceName"]),
            ("/spec/extendedResourceName", json!("requests.example.com/gpu"), &["Invalid spec.extendedResourceName"]),
        ],
    );
    // What was stored before there was a limit can still be changed elsewhere.
    let old = global(json!({"spec": {"selectors": selector(COSTLY)}}));
    changed(
        DRA,
        "DeviceClass",
        "",
        &old,
        &[
            ("/metadata/labels", json!({"a": "b"}), &[]),
            ("/spec/config", json!([{}]), &["Required spec.config[0].opaque"]),
            (
                "/spec/selectors/0/cel/expression",
                json!(COSTLY.replace("100", "99")),
                &["Forbidden spec.selectors[0].cel.expression"],
            ),
        ],
    );
    let rule =
        global(json!({"spec": {"deviceSelector": {"pool": "a/b"}, "taint": {"key": "a.io/b", "effect": "None"}}}));
    created(
        DRA,
        "DeviceTaintRule",
        &rule,
        &[
            ("/spec/deviceSelector/pool", json!("a//b"), &["Invalid spec.deviceSelector.pool"]),
            ("/spec/taint/effect", json!("Some"), &["NotSupported spec.taint.effect"]),
            ("/spec/taint/key", Value::Null, &["Required spec.taint.key"]),
        ],
    );
    let device = json!({"name": "d0", "attributes": {"model": {"string": "a"}, "example.com/v": {"version": "1.2.3-rc.1+b"}},
        "capacity": {"memory": {"value": "1Gi"}}});
    let slice = global(json!({"spec": {"driver": "a.example.com", "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}, "devices": [device]}}));
    let many: Vec<Value> = (0..129).map(|n| json!({"name": format!("d{n}")})).collect();
    let tainted: Vec<Value> =
        (0..65).map(|n| json!({"name": format!("d{n}"), "taints": [{"key": "a", "effect": "NoSchedule"}]})).collect();
    created(
        DRA,
        "ResourceSlice",
        &slice,
        &[
            ("/spec/driver", json!(""), &["Required spec.driver"]),
            ("/spec/pool/resourceSliceCount", json!(0), &["Invalid spec.pool.resourceSliceCount"]),
            ("/spec/pool/name", Value::Null, &["Required spec.pool.name"]),
            ("/spec/nodeName", Value::Null, &["Required spec"]),
            ("/spec/allNodes", json!(true), &["Invalid spec"]),
            ("/spec/allNodes", json!(false), &["Invalid spec.allNodes"]),
            ("/spec/sharedCounters", json!([{"name": "c", "counters": {"x": {"value": "1"}}}]), &["Invalid spec"]),
            ("/spec/devices", many.into(), &["TooMany spec.devices"]),
            ("/spec/devices", tainted.into(), &["TooMany spec.devices"]),
            ("/spec/devices", json!([device, device]), &["Duplicate spec.devices[1]"]),
            ("/spec/devices/0/name", json!("D"), &["Invalid spec.devices[0].name"]),
            ("/spec/devices/0/nodeName", json!("n1"), &["Invalid spec.devices[0]"]),
            ("/spec/devices/0/attributes", json!({"a-b": {"int": 1}}), &["Invalid spec.devices[0].attributes[a-b]"]),
            ("/spec/devices/0/attributes", json!({"a": {}}), &["Invalid spec.devices[0].attributes[a]"]),
            (
                "/spec/devices/0/attributes",
                json!({"a": {"int": 1, "bool": true}}),
                &["Invalid spec.devices[0].attributes[a]"],
            ),
            (
                "/spec/devices/0/attributes",
                json!({"a": {"version": "1.02.3"}}),
                &["Invalid spec.devices[0].attributes[a].version"],
            ),
            (
                "/spec/devices/0/attributes",
                json!({"a": {"string": "x".repeat(65)}}),
                &["TooLong spec.devices[0].attributes[a].string"],
            ),
            (
                "/spec/devices/0/capacity",
                json!({"m": {"value": "1", "requestPolicy": {}}}),
                &["Forbidden spec.devices[0].capacity[m].requestPolicy"],
            ),
            (
                "/spec/devices/0/taints",
                json!([{"key": "a", "effect": "Odd"}]),
                &["NotSupported spec.devices[0].taints[0].effect"],
            ),
            (
                "/spec/devices/0/consumesCounters",
                json!([{"counterSet": "c", "counters": {}}]),
                &["Required spec.devices[0].consumesCounters[0].counters"],
            ),
            (
                "/spec/devices/0/bindingConditions",
                json!(["a.io/Ready"]),
                &["Invalid spec.devices[0].bindingFailureConditions"],
            ),
        ],
    );
    changed(
        DRA,
        "ResourceSlice",
        "",
        &slice,
        &[
            ("/spec/pool/generation", json!(2), &[]),
            ("/spec/pool/name", json!("n2"), &["Invalid spec.pool.name"]),
            ("/spec/driver", json!("b.example.com"), &["Invalid spec.driver"]),
            ("/spec/nodeName", json!("n2"), &["Invalid spec.nodeName"]),
        ],
    );
}

fn certificate() -> Value {
    named(json!({"spec": {"signerName": "example.com/pods", "podName": "p", "podUID": "1", "serviceAccountName": "a",
        "serviceAccountUID": "2", "nodeName": "n", "nodeUID": "3", "stubPKCS10Request": "AAAA"}}))
}

#[test]
fn certificates_of_pods() {
    created(
        CERTIFICATES,
        "PodCertificateRequest",
        &certificate(),
        &[
            ("/metadata/name", json!("A"), &["Invalid metadata.name"]),
            ("/spec/signerName", json!("pods"), &["Invalid spec.signerName"]),
            ("/spec/podName", Value::Null, &["Required spec.podName"]),
            ("/spec/nodeName", json!("N"), &["Invalid spec.nodeName"]),
            ("/spec/podUID", json!(""), &["Invalid spec.podUID"]),
            ("/spec/nodeUID", json!("x".repeat(129)), &["TooLong spec.nodeUID"]),
            ("/spec/maxExpirationSeconds", json!(3599), &["Invalid spec.maxExpirationSeconds"]),
            ("/spec/maxExpirationSeconds", json!(91 * 86_400), &[]),
            ("/spec/maxExpirationSeconds", json!(91 * 86_400 + 1), &["Invalid spec.maxExpirationSeconds"]),
            ("/spec/unverifiedUserAnnotations", json!({"a.io/b": "c"}), &[]),
            ("/spec/unverifiedUserAnnotations", json!({"b": "c"}), &["Invalid spec.unverifiedUserAnnotations"]),
            ("/spec/stubPKCS10Request", Value::Null, &["Invalid spec"]),
            ("/spec/pkixPublicKey", json!("AAAA"), &["Invalid spec"]),
            ("/spec/stubPKCS10Request", json!("A".repeat(16_000)), &["TooLong spec.stubPKCS10Request"]),
        ],
    );
    let own = with(certificate(), &[("/spec/signerName", json!("kubernetes.io/pods"))]);
    created(
        CERTIFICATES,
        "PodCertificateRequest",
        &own,
        &[("/spec/maxExpirationSeconds", json!(86_401), &["Invalid spec.maxExpirationSeconds"])],
    );
    changed(
        CERTIFICATES,
        "PodCertificateRequest",
        "",
        &certificate(),
        &[("/metadata/labels", json!({"a": "b"}), &[]), ("/spec/nodeName", json!("m"), &["Invalid spec"])],
    );
}

#[test]
fn what_is_decided_of_a_pods_certificate_stays() {
    let condition = |kind: &str, status: &str| json!([{"type": kind, "status": status, "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let issued = |until: &str, renewed: &str| {
        json!({"conditions": condition("Issued", "True"), "certificateChain": "x", "notBefore": "2026-01-01T00:00:00Z",
            "notAfter": until, "beginRefreshAt": renewed})
    };
    let status = "status";
    changed(
        CERTIFICATES,
        "PodCertificateRequest",
        status,
        &certificate(),
        &[
            ("/status", json!({}), &[]),
            ("/status", json!({"certificateChain": "x"}), &["Invalid status"]),
            ("/status", json!({"conditions": condition("Denied", "True")}), &[]),
            (
                "/status",
                json!({"conditions": condition("Denied", "False")}),
                &["NotSupported status.conditions[0].status"],
            ),
            ("/status", json!({"conditions": condition("Ready", "True")}), &["NotSupported status.conditions[0].type"]),
            (
                "/status",
                json!({"conditions": condition("Denied", "True"), "certificateChain": "x"}),
                &["Invalid status"],
            ),
            ("/status", json!({"conditions": condition("Issued", "True")}), &["Invalid status.certificateChain"]),
            (
                "/status",
                json!({"conditions": condition("Issued", "True"), "certificateChain": "x"}),
                &["Required status.notBefore", "Required status.notAfter", "Required status.beginRefreshAt"],
            ),
            ("/status", issued("2026-01-01T12:00:00Z", "2026-01-01T08:00:00Z"), &[]),
            ("/status", issued("2026-01-01T00:59:00Z", "2026-01-01T00:30:00Z"), &["Invalid status.certificateChain"]),
            ("/status", issued("2026-01-03T00:00:00Z", "2026-01-01T08:00:00Z"), &["Invalid status.certificateChain"]),
            ("/status", issued("2026-01-01T12:00:00Z", "2026-01-01T00:09:00Z"), &["Invalid status.beginRefreshAt"]),
            ("/status", issued("2026-01-01T12:00:00Z", "2026-01-01T11:51:00Z"), &["Invalid status.beginRefreshAt"]),
        ],
    );
    let denied = with(certificate(), &[("/status", json!({"conditions": condition("Denied", "True")}))]);
    changed(
        CERTIFICATES,
        "PodCertificateRequest",
        status,
        &denied,
        &[
            ("/status/conditions", condition("Issued", "True"), &["Invalid status"]),
            ("/status/conditions", json!([]), &["Invalid status"]),
        ],
    );
}
