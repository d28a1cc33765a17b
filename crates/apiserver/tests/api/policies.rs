//! Admission by what a namespace or a class says: limit ranges, pod security, runtime and ingress classes.

use carrack_apiserver::admission::AdmissionConfiguration;
use carrack_auth::Caller;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Cluster, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn limit(cluster: &Cluster, item: Value) {
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [item]}});
    cluster.post("/api/v1/namespaces/default/limitranges", &range).expect(201);
}

#[test]
fn limit_ranges_complete_and_bound() {
    let cluster = Cluster::new();
    limit(
        &cluster,
        json!({"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"},
            "max": {"cpu": "1"}, "min": {"cpu": "50m"}, "maxLimitRequestRatio": {"cpu": "5"}}),
    );
    let made = cluster.post(PODS, &pod("p")).expect(201);
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})
    );
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    for (resources, why) in [
        (
            json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}),
            "pods \"q\" is forbidden: maximum cpu usage per Container is 1, but limit is 2",
        ),
        (
            json!({"limits": {"cpu": "100m"}, "requests": {"cpu": "20m"}}),
            "minimum cpu usage per Container is 50m, but request is 20m",
        ),
        (
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "100m"}}),
            "cpu max limit to request ratio per Container is 5, but provided ratio is 10.000000",
        ),
    ] {
        let mut pod = pod("q");
        pod["spec"]["containers"][0]["resources"] = resources;
        cluster.post(PODS, &pod).refused(403, "Forbidden", why);
    }
}

#[test]
fn claims_keep_to_their_limits() {
    let cluster = Cluster::new();
    limit(&cluster, json!({"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}}));
    let claim = json!({"metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "3Gi"}}}});
    cluster.post("/api/v1/namespaces/default/persistentvolumeclaims", &claim).refused(
        403,
        "Forbidden",
        "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi",
    );
}

fn label(cluster: &Cluster, labels: Value) -> Vec<String> {
    let reply = cluster.merge("/api/v1/namespaces/default", &json!({"metadata": {"labels": labels}}));
    let warnings = reply.headers.get_all("warning").iter().map(|w| w.to_str().unwrap_or_default().to_owned()).collect();
    reply.expect(200);
    warnings
}

#[test]
fn pods_keep_to_the_level_of_their_namespace() {
    let cluster = Cluster::new();
    cluster.post(PODS, &pod("old")).expect(201);
    let warnings = label(&cluster, json!({"pod-security.kubernetes.io/enforce": "restricted"}));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("existing pods in namespace \\\"default\\\" violate the new PodSecurity enforce level \\\"restricted:latest\\\""), "{warnings:?}");
    cluster.post(PODS, &pod("p")).refused(
        403,
        "Forbidden",
        "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"c\" must set \
         securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set \
         securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
         securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
         securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
    );
    let mut hardened = pod("p");
    hardened["spec"]["securityContext"] = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    hardened["spec"]["containers"][0]["securityContext"] =
        json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    cluster.post(PODS, &hardened).expect(201);
    // The level as it was before it had checks of its own has those of the lower one.
    label(&cluster, json!({"pod-security.kubernetes.io/enforce-version": "v1.18"}));
    hardened["metadata"]["name"] = "adds".into();
    hardened["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["SYS_ADMIN"]);
    cluster.post(PODS, &hardened).refused(403, "Forbidden", "non-default capabilities");
    label(&cluster, json!({"pod-security.kubernetes.io/enforce-version": null}));

    label(
        &cluster,
        json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"}),
    );
    let mut bad = pod("q");
    bad["spec"]["hostNetwork"] = true.into();
    bad["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/"}}]);
    bad["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    cluster.post(PODS, &bad).refused(
        403,
        "Forbidden",
        "violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true), hostPath volumes (volume \"v\"), \
         privileged (container \"c\" must not set securityContext.privileged=true)",
    );
    let warned = cluster.post(PODS, &pod("q"));
    let text = warned.headers.get("warning").and_then(|w| w.to_str().ok()).unwrap_or_default();
    assert!(text.contains("would violate PodSecurity \\\"restricted:latest\\\": allowPrivilegeEscalation"), "{text}");
    warned.expect(201);
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let warned = cluster.post("/apis/apps/v1/namespaces/default/deployments", &deployment);
    assert!(warned.headers.contains_key("warning"));
    warned.expect(201);
    cluster
        .merge(
            "/api/v1/namespaces/default",
            &json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "strict"}}}),
        )
        .refused(422, "Invalid", "must be one of privileged, baseline, restricted");
}

#[test]
fn what_pods_are_held_against_is_counted() {
    let cluster = Cluster::new();
    let mode = |mode: &str, level: &str| json!({format!("pod-security.kubernetes.io/{mode}"): level});
    for labels in [mode("enforce", "baseline"), mode("warn", "restricted"), mode("audit", "restricted")] {
        label(&cluster, labels);
    }
    label(&cluster, json!({"pod-security.kubernetes.io/audit-version": "v1.99"}));
    let mut bad = pod("bad");
    bad["spec"]["hostNetwork"] = true.into();
    cluster.post(PODS, &bad).refused(403, "Forbidden", "violates PodSecurity");
    cluster.post(PODS, &pod("good")).expect(201);
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    cluster.post("/apis/apps/v1/namespaces/default/deployments", &deployment).expect(201);
    let text = cluster.get("/metrics").expect(200);
    let counted: Vec<_> =
        text.as_str().unwrap_or_default().lines().filter(|line| line.starts_with("pod_security")).collect();
    for (decision, level, version, mode, resource, count) in [
        ("allow", "baseline", "latest", "enforce", "pod", 1),
        ("deny", "baseline", "latest", "enforce", "pod", 1),
        // Who is refused is not warned besides.
        ("deny", "restricted", "latest", "warn", "pod", 1),
        ("deny", "restricted", "latest", "warn", "controller", 1),
        ("deny", "restricted", "future", "audit", "pod", 2),
        ("deny", "restricted", "future", "audit", "controller", 1),
    ] {
        let line = format!(
            "pod_security_evaluations_total{{decision=\"{decision}\",policy_level=\"{level}\",policy_version=\"{version}\",\
             mode=\"{mode}\",request_operation=\"create\",resource=\"{resource}\",subresource=\"\"}} {count}"
        );
        assert!(counted.contains(&line.as_str()), "{line}: {counted:#?}");
    }
    assert_eq!(counted.len(), 6, "{counted:#?}");
}

/// Where labels say nothing what the server was told holds, but not for those of whom it was told, too.
#[test]
fn pod_security_is_told_when_the_server_starts() {
    let told = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
        {"name": "PodSecurity", "configuration": {
            "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
            "defaults": {"enforce": "baseline", "enforce-version": "v1.30", "warn": "restricted"},
            "exemptions": {"usernames": ["operator"], "namespaces": ["kube-system"], "runtimeClasses": ["kata"]}}}]});
    let cluster = Cluster::with(|config| {
        let none = |path: &str| Err(format!("{path} is not there"));
        config.admission = AdmissionConfiguration::parse(told.to_string().as_bytes(), none).expect("a configuration");
    });
    let class = json!({"metadata": {"name": "kata"}, "handler": "kata"});
    cluster.post("/apis/node.k8s.io/v1/runtimeclasses", &class).expect(201);
    let account = json!({"metadata": {"name": "default"}});
    cluster.post("/api/v1/namespaces/kube-system/serviceaccounts", &account).expect(201);
    let bad = |name: &str| {
        let mut pod = pod(name);
        pod["spec"]["hostNetwork"] = true.into();
        pod
    };
    cluster.post(PODS, &bad("a")).refused(403, "Forbidden", "violates PodSecurity \"baseline:v1.30\"");
    let warned = cluster.post(PODS, &pod("b"));
    let warning = warned.headers.get("warning").and_then(|text| text.to_str().ok()).unwrap_or_default();
    assert!(warned.code == 201 && warning.contains("restricted:latest"), "{warning}");
    // Neither refused nor warned: by namespace, user and class.
    let mut of_class = bad("c");
    of_class["spec"]["runtimeClassName"] = "kata".into();
    let operator = || Caller::new("operator", ["system:masters"]);
    let admin = || Caller::new("admin", ["system:masters"]);
    for (caller, path, pod) in [
        (admin(), "/api/v1/namespaces/kube-system/pods", bad("d")),
        (operator(), PODS, bad("e")),
        (admin(), PODS, of_class),
    ] {
        let json = [("content-type", "application/json")];
        let made = cluster.request(caller, Method::POST, path, &json, pod.to_string().into());
        assert!(made.code == 201 && !made.headers.contains_key("warning"), "{:?} {}", made.headers, made.json);
    }
    let text = cluster.get("/metrics").expect(200);
    let line = "pod_security_exemptions_total{request_operation=\"create\",resource=\"pod\",subresource=\"\"} 3";
    assert!(text.as_str().unwrap_or_default().lines().any(|told| told == line), "{text}");
    // A namespace's own word goes before.
    label(&cluster, json!({"pod-security.kubernetes.io/enforce": "privileged"}));
    cluster.post(PODS, &bad("f")).expect(201);
}

#[test]
fn classes_of_runtimes_and_ingresses() {
    let cluster = Cluster::new();
    let class = json!({"metadata": {"name": "kata"}, "handler": "kata", "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"kata": "yes"}}});
    cluster.post("/apis/node.k8s.io/v1/runtimeclasses", &class).expect(201);
    let mut pod = pod("p");
    pod["spec"]["runtimeClassName"] = "none".into();
    cluster.post(PODS, &pod).refused(403, "Forbidden", "pod rejected: RuntimeClass \"none\" not found");
    pod["spec"]["runtimeClassName"] = "kata".into();
    let made = cluster.post(PODS, &pod).expect(201);
    assert_eq!(
        (&made["spec"]["overhead"], &made["spec"]["nodeSelector"]),
        (&json!({"cpu": "250m"}), &json!({"kata": "yes"}))
    );

    let class = json!({"metadata": {"name": "nginx", "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
        "spec": {"controller": "k8s.io/nginx"}});
    cluster.post("/apis/networking.k8s.io/v1/ingressclasses", &class).expect(201);
    let ingress = json!({"metadata": {"name": "i"},
        "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}});
    let made = cluster.post("/apis/networking.k8s.io/v1/namespaces/default/ingresses", &ingress).expect(201);
    assert_eq!(made["spec"]["ingressClassName"], "nginx");
}
