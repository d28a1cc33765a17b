//! Objects that are taken, and what their writers are told about them.

use serde_json::{Value, json};

use super::causes::{created, global, named, template};
use super::with;
use crate::validate::{create, warnings};
use crate::{default, table};

/// What is said about the object when it is new, or when it is changed from the old one. It is a good one.
fn told(group: &str, kind: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
    let info = table::find_kind(group, kind).expect(kind);
    let version = info.storage_version().expect("a version").name.clone();
    let [object, old] = [Some(object), old].map(|object| {
        let mut object = object?.clone();
        default::apply(info, &version, &mut object);
        Some(object)
    });
    let object = object.expect("it is there");
    assert!(create(info, &version, &object).is_empty(), "{kind} {:?}", create(info, &version, &object));
    warnings(info, &object, old.as_ref().and_then(Value::as_object))
}

/// A change of an object, and the beginnings of what is said about it.
type Row<'a> = (&'a str, Value, &'a [&'a str]);

/// Nothing is said about the base, and exactly this about each change of it when it is created.
#[track_caller]
fn says(group: &str, kind: &str, base: &Value, rows: &[Row<'_>]) {
    assert_eq!(told(group, kind, base, None), Vec::<String>::new(), "{kind} as it is");
    for (pointer, value, expected) in rows {
        let found = told(group, kind, &with(base.clone(), &[(pointer, value.clone())]), None);
        let fits =
            found.len() == expected.len() && found.iter().zip(*expected).all(|(text, start)| text.starts_with(start));
        assert!(fits, "{kind} {pointer} {value}: {found:#?}");
    }
}

fn pod() -> Value {
    with(
        named(json!({"spec": template()["spec"]})),
        &[("/metadata/annotations", json!({})), ("/spec/containers/0/name", json!("a"))],
    )
}

#[test]
fn places_of_pods() {
    let key = |key: &str| json!([{"matchExpressions": [{"key": key, "operator": "Exists"}]}]);
    let term = json!({"topologyKey": "a", "labelSelector": {}});
    let unselective = json!({"topologyKey": "a"});
    let odd =
        json!([{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["a/b"]}]}}]);
    let spread = |key: &str| json!([{"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]);
    says(
        "",
        "Pod",
        &pod(),
        &[
            (
                "/metadata/name",
                json!("a.b"),
                &[
                    "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [a lowercase RFC 1123 label",
                ],
            ),
            (
                "/spec/nodeSelector",
                json!({"beta.kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux"}),
                &[
                    "spec.nodeSelector[beta.kubernetes.io/arch]: deprecated since v1.14; use \"kubernetes.io/arch\" instead",
                ],
            ),
            (
                "/spec/affinity",
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": key("failure-domain.beta.kubernetes.io/zone")}}}),
                &[
                    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
                ],
            ),
            (
                "/spec/affinity",
                json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": odd}}),
                &[
                    "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].values[0]: a/b is invalid, a valid label must be",
                ],
            ),
            (
                "/spec/affinity",
                json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term, unselective]},
                    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": unselective}, {"weight": 1, "podAffinityTerm": term}]}}),
                &[
                    "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[1].labelSelector: a null labelSelector results in matching no pod",
                    "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a null labelSelector results in matching no pod",
                ],
            ),
            ("/spec/topologySpreadConstraints", spread("topology.kubernetes.io/zone"), &[]),
            (
                "/spec/topologySpreadConstraints",
                spread("beta.kubernetes.io/instance-type"),
                &[
                    "spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/instance-type is deprecated since v1.17; use",
                ],
            ),
            (
                "/spec/topologySpreadConstraints",
                json!([{"topologyKey": "a", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]),
                &["spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod"],
            ),
            ("/spec/terminationGracePeriodSeconds", json!(0), &[]),
            (
                "/spec/terminationGracePeriodSeconds",
                json!(-1),
                &[
                    "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
                ],
            ),
            (
                "/spec/imagePullSecrets",
                json!([{"name": "a"}, {"name": "a"}, {}]),
                &[
                    "spec.imagePullSecrets[2].name: invalid empty name \"\"",
                    "spec.imagePullSecrets[1].name: duplicate name \"a\"",
                ],
            ),
            (
                "/spec/hostAliases",
                json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}, {"ip": "::ffff:10.0.0.2"}]),
                &[
                    "spec.hostAliases[2].ip: non-standard IP address \"::ffff:10.0.0.2\" will be considered invalid",
                    "spec.hostAliases[1].ip: duplicate ip \"10.0.0.1\"",
                ],
            ),
            (
                "/spec/dnsConfig",
                json!({"nameservers": ["2001:DB8::1"]}),
                &["spec.dnsConfig.nameservers[0]: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format"],
            ),
        ],
    );
}

#[test]
fn annotations_of_pods() {
    let all = json!({
        "scheduler.alpha.kubernetes.io/critical-pod": "", "seccomp.security.alpha.kubernetes.io/pod": "unconfined",
        "container.seccomp.security.alpha.kubernetes.io/a": "unconfined",
        "container.apparmor.security.beta.kubernetes.io/a": "unconfined",
    });
    let annotated = with(pod(), &[("/metadata/annotations", all.clone())]);
    let found = told("", "Pod", &annotated, None);
    let expected = [
        "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead",
        "metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
        "metadata.annotations[container.seccomp.security.alpha.kubernetes.io/a]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
    ];
    assert_eq!(found, expected);
    let made = named(json!({"template": with(template(), &[("/metadata/annotations", all)])}));
    let found = told("", "PodTemplate", &made, None);
    let of_template = [
        &expected[..],
        &[
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/a]: deprecated since v1.30; use the \"appArmorProfile\" field instead",
        ],
    ];
    assert_eq!(found, of_template.concat().into_iter().map(|text| format!("template.{text}")).collect::<Vec<_>>());
    // Who has the fields keeps the annotations for others.
    let profiles = json!({"seccompProfile": {"type": "Unconfined"}, "appArmorProfile": {"type": "Unconfined"}});
    let fields = ["/spec/securityContext", "/spec/containers/0/securityContext"].map(|at| (at, profiles.clone()));
    assert_eq!(told("", "Pod", &with(annotated, &fields), None), &expected[..1]);
}

#[test]
fn containers() {
    const CONTAINER: &str = "/spec/containers/0";
    let container =
        |rest: Value| with(named(rest), &[("/metadata", Value::Null), ("/name", json!("a")), ("/image", json!("x"))]);
    let ports = |ports: Value| container(json!({"ports": ports}));
    says(
        "",
        "Pod",
        &pod(),
        &[
            (
                CONTAINER,
                container(
                    json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"}]}),
                ),
                &[
                    "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
                ],
            ),
            (
                CONTAINER,
                container(json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)"},
                    {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]})),
                &["spec.containers[0].env[1]: hides previous", "spec.containers[0].env[2]: hides previous"],
            ),
            (
                CONTAINER,
                container(
                    json!({"resources": {"limits": {"memory": "1500m", "cpu": "1500m"}, "requests": {"memory": "1", "ephemeral-storage": "100m"}}}),
                ),
                &[
                    "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
                    "spec.containers[0].resources.requests[ephemeral-storage]: fractional byte value \"100m\" is invalid, must be an integer",
                ],
            ),
            (CONTAINER, ports(json!([{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}])), &[]),
            (
                CONTAINER,
                ports(json!([{"containerPort": 80}, {"containerPort": 80}, {"containerPort": 80, "hostPort": 8080}])),
                &[
                    "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
                    "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[0]",
                    "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[1]",
                ],
            ),
            (
                CONTAINER,
                ports(
                    json!([{"containerPort": 80, "hostPort": 80}, {"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"},
                    {"containerPort": 81, "hostIP": "10.0.0.1"}]),
                ),
                &[
                    "spec.containers[0].ports[1]: dangerously ambiguous port definition with spec.containers[0].ports[0]",
                    "spec.containers[0].ports[2]: hostIP set without hostPort: 10.0.0.1",
                ],
            ),
            (
                "/spec/containers",
                json!([
                    ports(json!([{"containerPort": 80, "name": "web"}])),
                    with(ports(json!([{"containerPort": 81, "name": "web"}])), &[("/name", json!("b"))])
                ]),
                &[
                    "spec.containers[1].ports[0]: duplicate port name \"web\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
                ],
            ),
        ],
    );
    // However many there are, it takes no longer than there is room for what is said.
    let same = vec![json!({"containerPort": 80, "protocol": "TCP"}); 20_000];
    let info = table::find_kind("", "Pod").expect("pods");
    assert_eq!(warnings(info, &with(pod(), &[(CONTAINER, ports(same.into()))]), None).len(), 1000);
}

#[test]
fn volumes() {
    let volume = |kind: &str, source: Value| json!([{"name": "v", kind: source}]);
    let items = |paths: &[&str]| -> Vec<Value> { paths.iter().map(|path| json!({"key": "k", "path": path})).collect() };
    let token = json!({"serviceAccountToken": {"path": "token"}});
    says(
        "",
        "Pod",
        &with(pod(), &[("/spec/serviceAccountName", json!("s"))]),
        &[
            (
                "/spec/volumes",
                volume("gitRepo", json!({"repository": "r"})),
                &["spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+"],
            ),
            (
                "/spec/volumes",
                volume("glusterfs", json!({"endpoints": "e", "path": "p"})),
                &["spec.volumes[0].glusterfs: deprecated in v1.25, non-functional in v1.26+"],
            ),
            (
                "/spec/volumes",
                volume(
                    "ephemeral",
                    json!({"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1500m"}}}}}),
                ),
                &[
                    "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: fractional byte value \"1500m\"",
                ],
            ),
            (
                "/spec/volumes",
                volume("configMap", json!({"name": "m", "items": items(&["a", "ab", "b/a", "b/c"])})),
                &[],
            ),
            (
                "/spec/volumes",
                volume("configMap", json!({"name": "m", "items": items(&["a", "b", "a/c", "b"])})),
                &[
                    "volume \"v\" (ConfigMap \"m\"): overlapping paths: \"a/c\" with \"a\"",
                    "volume \"v\" (ConfigMap \"m\"): overlapping paths: \"b\" with \"b\"",
                ],
            ),
            (
                "/spec/volumes",
                volume("secret", json!({"secretName": "s", "items": items(&["a/b", "a"])})),
                &["volume \"v\" (Secret \"s\"): overlapping paths: \"a\" with \"a/b\""],
            ),
            (
                "/spec/volumes",
                volume(
                    "projected",
                    json!({"sources": [token, {"configMap": {"name": "m", "items": items(&["token/a", "b"])}}]}),
                ),
                &[
                    "volume \"v\" (Projected): overlapping paths: \"token/a\" (ConfigMap \"m\") with \"token\" (ServiceAccountToken)",
                ],
            ),
        ],
    );
}

/// Templates are looked at when what they are in changes, under their own path.
#[test]
fn templates() {
    let bad = with(template(), &[("/spec/terminationGracePeriodSeconds", json!(-5))]);
    let selector = json!({"matchLabels": {"a": "b"}});
    let job = with(bad.clone(), &[("/spec/restartPolicy", json!("Never"))]);
    for (group, kind, object, path) in [
        ("", "PodTemplate", json!({"template": bad}), "template"),
        ("", "ReplicationController", json!({"spec": {"selector": {"a": "b"}, "template": bad}}), "spec.template"),
        ("apps", "DaemonSet", json!({"spec": {"selector": selector, "template": bad}}), "spec.template"),
        ("apps", "Deployment", json!({"spec": {"selector": selector, "template": bad}}), "spec.template"),
        ("apps", "ReplicaSet", json!({"spec": {"selector": selector, "template": bad}}), "spec.template"),
        (
            "apps",
            "StatefulSet",
            json!({"spec": {"selector": selector, "serviceName": "s", "template": bad}}),
            "spec.template",
        ),
        (
            "batch",
            "CronJob",
            json!({"spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": job}}}}),
            "spec.jobTemplate.spec.template",
        ),
    ] {
        let object = named(object);
        let expected = format!(
            "{path}.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        );
        assert_eq!(told(group, kind, &object, None), [expected.as_str()], "{kind}");
        let labeled = with(object.clone(), &[("/metadata/labels", json!({"a": "b"}))]);
        assert_eq!(told(group, kind, &labeled, Some(&object)), Vec::<String>::new(), "{kind}");
        if path != "template" {
            let former = with(object.clone(), &[("/spec/minReadySeconds", json!(1)), ("/spec/suspend", json!(true))]);
            assert_eq!(told(group, kind, &object, Some(&former)), [expected], "{kind}");
        }
    }
    let selected = json!({"spec": {"selector": selector, "template": template()}});
    let deployment = with(named(selected.clone()), &[("/metadata/name", json!("a.b"))]);
    let found = told("apps", "Deployment", &deployment, None);
    assert!(
        found.len() == 1 && found[0].starts_with("metadata.name: this is used in Pod names and hostnames"),
        "{found:?}"
    );
    assert_eq!(told("apps", "Deployment", &deployment, Some(&deployment)), Vec::<String>::new());
    let set = with(named(selected), &[("/spec/serviceName", json!("s")), ("/spec/revisionHistoryLimit", json!(-1))]);
    let limit =
        "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
    assert_eq!(told("apps", "StatefulSet", &set, None), [limit]);
    created(
        "apps",
        "Deployment",
        &with(set.clone(), &[("/spec/revisionHistoryLimit", json!(0)), ("/spec/serviceName", Value::Null)]),
        &[("/spec/revisionHistoryLimit", json!(-1), &["Invalid spec.revisionHistoryLimit"])],
    );
}

/// Pods that exist are changed by programs, which read no warnings.
#[test]
fn changed_pods() {
    let bad = with(pod(), &[("/spec/terminationGracePeriodSeconds", json!(-1))]);
    assert_eq!(told("", "Pod", &bad, Some(&pod())), Vec::<String>::new());
}

#[test]
fn services() {
    let service = named(json!({"spec": {"ports": [{"port": 80}]}}));
    let external = json!({"type": "ExternalName", "externalName": "a.b", "externalIPs": ["10.0.0.1"]});
    says(
        "",
        "Service",
        &service,
        &[
            (
                "/metadata/annotations",
                json!({"service.kubernetes.io/topology-aware-hints": "auto"}),
                &[
                    "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
                ],
            ),
            (
                "/spec/externalIPs",
                json!(["2001:DB8::1"]),
                &[
                    "spec.externalIPs[0]: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format",
                    "spec.externalIPs is deprecated",
                ],
            ),
            ("/spec", external, &["spec.externalIPs is ignored when spec.type is \"ExternalName\""]),
            (
                "/spec/externalName",
                json!("a.b"),
                &["spec.externalName is ignored when spec.type is not \"ExternalName\""],
            ),
            (
                "/spec/trafficDistribution",
                json!("PreferClose"),
                &["spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\""],
            ),
            (
                "/spec",
                json!({"clusterIP": "None", "clusterIPs": ["None"], "loadBalancerIP": "10.0.0.1", "sessionAffinity": "ClientIP"}),
                &["spec.loadBalancerIP is ignored for headless", "spec.SessionAffinity is ignored for headless"],
            ),
            (
                "/spec",
                json!({"type": "LoadBalancer", "ports": [{"port": 80}], "loadBalancerSourceRanges": ["10.0.0.1/8"]}),
                &[
                    "spec.loadBalancerSourceRanges[0]: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
                ],
            ),
        ],
    );
}

#[test]
fn networks() {
    let rule = |range: &str| json!([{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": [range]}}]}]);
    says(
        "networking.k8s.io",
        "NetworkPolicy",
        &named(json!({"spec": {"podSelector": {}, "policyTypes": ["Egress"]}})),
        &[
            ("/spec/egress", rule("10.1.0.0/16"), &[]),
            (
                "/spec/egress",
                rule("10.1.0.1/16"),
                &["spec.egress[0].to[0].ipBlock.except[0]: CIDR value \"10.1.0.1/16\" is ambiguous"],
            ),
        ],
    );
    let ingress = named(json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}}));
    let annotated = with(ingress.clone(), &[("/metadata/annotations", json!({"kubernetes.io/ingress.class": "a"}))]);
    let why = "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead";
    assert_eq!(told("networking.k8s.io", "Ingress", &annotated, None), [why]);
    assert_eq!(told("networking.k8s.io", "Ingress", &annotated, Some(&ingress)), Vec::<String>::new());
    let slice = named(json!({"addressType": "FQDN", "endpoints": [{"addresses": ["a.b"]}]}));
    assert_eq!(told("discovery.k8s.io", "EndpointSlice", &slice, None), ["addressType: FQDN endpoints are deprecated"]);
    assert_eq!(told("discovery.k8s.io", "EndpointSlice", &slice, Some(&slice)), Vec::<String>::new());
}

#[test]
fn storage() {
    let old_class = json!({"volume.beta.kubernetes.io/storage-class": "s"});
    let class = "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \"storageClassName\" attribute instead";
    says(
        "",
        "PersistentVolume",
        &global(
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}}}),
        ),
        &[
            ("/metadata/annotations", old_class.clone(), &[class]),
            (
                "/spec/persistentVolumeReclaimPolicy",
                json!("Recycle"),
                &["spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated."],
            ),
            (
                "/spec/nodeAffinity",
                json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "beta.kubernetes.io/os", "operator": "Exists"}]}]}}),
                &[
                    "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14",
                ],
            ),
        ],
    );
    says(
        "",
        "PersistentVolumeClaim",
        &named(json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})),
        &[
            ("/metadata/annotations", old_class, &[class]),
            (
                "/spec/resources/requests/storage",
                json!("1500m"),
                &["spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer"],
            ),
        ],
    );
    says(
        "storage.k8s.io",
        "StorageClass",
        &global(json!({"provisioner": "a.b/c"})),
        &[(
            "/allowedTopologies",
            json!([{"matchLabelExpressions": [{"key": "failure-domain.beta.kubernetes.io/region", "values": ["a"]}]}]),
            &[
                "allowedTopologies[0].matchLabelExpressions[0].key: failure-domain.beta.kubernetes.io/region is deprecated since v1.17",
            ],
        )],
    );
}

#[test]
fn nodes() {
    says(
        "",
        "Node",
        &global(json!({"spec": {}})),
        &[(
            "/spec/externalID",
            json!("a"),
            &["spec.externalID: this field is deprecated, and is unused by Kubernetes"],
        )],
    );
    says(
        "node.k8s.io",
        "RuntimeClass",
        &global(json!({"handler": "h"})),
        &[(
            "/scheduling",
            json!({"nodeSelector": {"node-role.kubernetes.io/master": ""}}),
            &[
                "scheduling.nodeSelector[node-role.kubernetes.io/master]: use \"node-role.kubernetes.io/control-plane\" instead",
            ],
        )],
    );
}

#[test]
fn formats_of_definitions() {
    let (group, kind) = ("apiextensions.k8s.io", "CustomResourceDefinition");
    let good = crate::crd::tests::definition();
    let text = "/spec/versions/1/schema/openAPIV3Schema/properties/spec/properties/mode/format";
    let number = "/spec/versions/1/schema/openAPIV3Schema/properties/spec/properties/replicas/format";
    says(
        group,
        kind,
        &good,
        &[
            (text, json!("foobar"), &["unrecognized format \"foobar\""]),
            (text, json!("k8s-short-name"), &[]),
            (number, json!("int32"), &[]),
            (number, json!("date"), &["unrecognized format \"date\""]),
        ],
    );
    // What was said before is not said again.
    let odd = with(good, &[(text, json!("foobar"))]);
    let odder = with(odd.clone(), &[(number, json!("uint8"))]);
    assert_eq!(told(group, kind, &odder, Some(&odd)), ["unrecognized format \"uint8\""]);
}
