//! Pods: every rule once, and what may change in one.

use serde_json::{Value, json};

use super::causes::{changed, created, named};

fn pod() -> Value {
    named(json!({"spec": {
        "serviceAccountName": "default",
        "containers": [{"name": "a", "image": "x",
            "ports": [{"containerPort": 80, "name": "web"}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            "livenessProbe": {"httpGet": {"path": "/", "port": "web"}}}],
        "initContainers": [{"name": "i", "image": "x"}, {"name": "s", "image": "x", "restartPolicy": "Always"}],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}}],
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "securityContext": {},
        "affinity": {},
    }}))
}

fn volume(source: Value) -> Value {
    let mut volume = json!({"name": "v"});
    if let (Value::Object(map), Value::Object(source)) = (&mut volume, source) {
        map.extend(source);
    }
    volume
}

#[test]
fn volumes() {
    const LOST: &str = "NotFound spec.containers[0].volumeMounts[0].name";
    let at = "/spec/volumes/0";
    created(
        "",
        "Pod",
        &pod(),
        &[
            (at, json!({"name": "V", "emptyDir": {}}), &["Invalid spec.volumes[0].name", LOST]),
            (
                at,
                volume(json!({"emptyDir": {"sizeLimit": "-1"}})),
                &["Forbidden spec.volumes[0].emptyDir.sizeLimit", LOST],
            ),
            (at, volume(json!({"hostPath": {}})), &["Required spec.volumes[0].hostPath.path", LOST]),
            (at, volume(json!({"hostPath": {"path": "/a/../b"}})), &["Invalid spec.volumes[0].hostPath.path", LOST]),
            (
                at,
                volume(json!({"hostPath": {"path": "/a", "type": "Odd"}})),
                &["NotSupported spec.volumes[0].hostPath.type", LOST],
            ),
            (
                at,
                volume(json!({"nfs": {"path": "a"}})),
                &["Required spec.volumes[0].nfs.server", "Invalid spec.volumes[0].nfs.path", LOST],
            ),
            (
                at,
                volume(json!({"iscsi": {"targetPortal": "a", "iqn": "x", "lun": 300}})),
                &["Invalid spec.volumes[0].iscsi.iqn", "Invalid spec.volumes[0].iscsi.lun", LOST],
            ),
            (at, volume(json!({"fc": {}})), &["Required spec.volumes[0].fc.targetWWNs", LOST]),
            (
                at,
                volume(json!({"flexVolume": {"driver": "v/d", "options": {"kubernetes.io/pod.name": "other"}}})),
                &["Invalid spec.volumes[0].flexVolume.options[kubernetes.io/pod.name]", LOST],
            ),
            (
                at,
                volume(json!({"flexVolume": {"driver": "v/d", "options": {"Storage.K8S.io": ""}}})),
                &["Invalid spec.volumes[0].flexVolume.options[Storage.K8S.io]", LOST],
            ),
            (
                at,
                volume(
                    json!({"flexVolume": {"driver": "v/d", "options": {"a": "", "v.io/k8s.io": "", "xk8s.io/a": ""}}}),
                ),
                &[],
            ),
            (at, volume(json!({"csi": {"driver": "a_b"}})), &["Invalid spec.volumes[0].csi.driver", LOST]),
            (
                at,
                volume(json!({"configMap": {"name": "c", "items": [{"key": "", "path": "/x", "mode": 4096}]}})),
                &[
                    "Required spec.volumes[0].configMap.items[0].key",
                    "Invalid spec.volumes[0].configMap.items[0].path",
                    "Invalid spec.volumes[0].configMap.items[0].mode",
                    LOST,
                ],
            ),
            (
                at,
                volume(json!({"secret": {"secretName": "s", "defaultMode": 512}})),
                &["Invalid spec.volumes[0].secret.defaultMode", LOST],
            ),
            (
                at,
                volume(json!({"secret": {"secretName": "s", "items": [{"key": "a", "path": "..a"}]}})),
                &["Invalid spec.volumes[0].secret.items[0].path", LOST],
            ),
            (
                at,
                volume(json!({"downwardAPI": {"items": [{"path": "a"}]}})),
                &["Required spec.volumes[0].downwardAPI.items[0]", LOST],
            ),
            (
                at,
                volume(json!({"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "status.podIP"}}]}})),
                &["NotSupported spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath", LOST],
            ),
            (
                at,
                volume(
                    json!({"downwardAPI": {"items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}}]}}),
                ),
                &["Required spec.volumes[0].downwardAPI.items[0].resourceFieldRef.containerName", LOST],
            ),
            (
                at,
                volume(json!({"projected": {"sources": [{}]}})),
                &["Required spec.volumes[0].projected.sources[0]", LOST],
            ),
            (
                at,
                volume(
                    json!({"projected": {"sources": [{"secret": {"name": "a", "items": [{"key": "k", "path": "p"}]}},
                {"configMap": {"name": "a", "items": [{"key": "k", "path": "p"}]}}]}}),
                ),
                &["Invalid spec.volumes[0].projected", LOST],
            ),
            (
                at,
                volume(
                    json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 60}}]}}),
                ),
                &["Invalid spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds", LOST],
            ),
            (
                at,
                volume(
                    json!({"projected": {"sources": [{"podCertificate": {"signerName": "a.io/b", "keyType": "ED25519",
                "keyPath": "../k", "certificateChainPath": "c"}}, {"serviceAccountToken": {"path": "c"}}]}}),
                ),
                &[
                    "Invalid spec.volumes[0].projected.sources[0].podCertificate.keyPath",
                    "Invalid spec.volumes[0].projected",
                    LOST,
                ],
            ),
            (at, volume(json!({"ephemeral": {}})), &["Required spec.volumes[0].ephemeral.volumeClaimTemplate", LOST]),
            (
                at,
                volume(
                    json!({"ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "n"}, "spec": {"accessModes": ["ReadWriteOnce"]}}}}),
                ),
                &[
                    "Forbidden spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.name",
                    "Required spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]",
                    LOST,
                ],
            ),
            (
                at,
                volume(json!({"image": {"reference": "x", "pullPolicy": "Odd"}})),
                &["NotSupported spec.volumes[0].image.pullPolicy", LOST],
            ),
        ],
    );
}

#[test]
fn mounts_and_devices() {
    let at = "/spec/containers/0/volumeMounts";
    let devices = "/spec/containers/0/volumeDevices";
    created(
        "",
        "Pod",
        &pod(),
        &[
            (
                at,
                json!([{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a"}]),
                &["Invalid spec.containers[0].volumeMounts[1].mountPath"],
            ),
            (at, json!([{"name": "v"}]), &["Required spec.containers[0].volumeMounts[0].mountPath"]),
            (
                at,
                json!([{"name": "v", "mountPath": "/a", "subPath": "../x"}]),
                &["Invalid spec.containers[0].volumeMounts[0].subPath"],
            ),
            (
                at,
                json!([{"name": "v", "mountPath": "/a", "subPath": "x", "subPathExpr": "y"}]),
                &["Invalid spec.containers[0].volumeMounts[0].subPathExpr"],
            ),
            (
                at,
                json!([{"name": "v", "mountPath": "/a", "mountPropagation": "Odd"}]),
                &["NotSupported spec.containers[0].volumeMounts[0].mountPropagation"],
            ),
            (
                at,
                json!([{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}]),
                &["Forbidden spec.containers[0].volumeMounts[0].mountPropagation"],
            ),
            (
                at,
                json!([{"name": "v", "mountPath": "/a", "recursiveReadOnly": "Enabled"}]),
                &["Forbidden spec.containers[0].volumeMounts[0].recursiveReadOnly"],
            ),
            (devices, json!([{"name": "claim", "devicePath": "/dev/x"}]), &[]),
            (
                devices,
                json!([{"name": "v", "devicePath": "/dev/x"}]),
                &[
                    "Invalid spec.containers[0].volumeMounts[0].name",
                    "Invalid spec.containers[0].volumeDevices[0].name",
                ],
            ),
            (
                devices,
                json!([{"name": "claim", "devicePath": "/v"}]),
                &["Invalid spec.containers[0].volumeMounts[0].mountPath"],
            ),
            (
                devices,
                json!([{"name": "claim", "devicePath": "/dev/../x"}]),
                &["Invalid spec.containers[0].volumeDevices[0].devicePath"],
            ),
            (
                devices,
                json!([{"name": "none", "devicePath": "/dev/x"}]),
                &["NotFound spec.containers[0].volumeDevices[0].name"],
            ),
        ],
    );
}

#[test]
fn variables_of_files() {
    const AT: &str = "spec.containers[0].env[0].valueFrom";
    let file = |volume: &str, path: &str, key: &str| json!({"volumeName": volume, "path": path, "key": key});
    let env = |from: Value| json!([{"name": "A", "valueFrom": from}]);
    let rows = [
        (file("v", "a/b.env", "a.b-c"), vec![]),
        (json!({}), vec!["Required fileKeyRef.key", "Required fileKeyRef.volumeName", "Required fileKeyRef.path"]),
        (file("v", "b.env", "a=b"), vec!["Invalid fileKeyRef.key"]),
        (file("v", "/b.env", "A"), vec!["Invalid fileKeyRef.path"]),
        (file("v", "a/../b.env", "A"), vec!["Invalid fileKeyRef.path"]),
        (file("v", "..b.env", "A"), vec!["Invalid fileKeyRef.path"]),
        (file("V", "b.env", "A"), vec!["Invalid fileKeyRef.volumeName", "NotFound fileKeyRef.volumeName"]),
        (file("none", "b.env", "A"), vec!["NotFound fileKeyRef.volumeName"]),
        (file("claim", "b.env", "A"), vec!["Invalid fileKeyRef.volumeName"]),
    ];
    for (reference, want) in rows {
        let want: Vec<String> =
            want.iter().map(|cause| cause.replace("fileKeyRef", &format!("{AT}.fileKeyRef"))).collect();
        let want: Vec<&str> = want.iter().map(String::as_str).collect();
        created("", "Pod", &pod(), &[("/spec/containers/0/env", env(json!({"fileKeyRef": reference})), &want[..])]);
    }
    let good = file("v", "b.env", "A");
    created(
        "",
        "Pod",
        &pod(),
        &[
            // Whoever does not mount the volume has the file all the same.
            ("/spec/initContainers/0/env", env(json!({"fileKeyRef": good})), &[]),
            (
                "/spec/initContainers/0/env",
                env(json!({"fileKeyRef": file("claim", "b.env", "A")})),
                &["Invalid spec.initContainers[0].env[0].valueFrom.fileKeyRef.volumeName"],
            ),
            (
                "/spec/containers/0/env",
                env(json!({"fileKeyRef": good, "secretKeyRef": {"name": "s", "key": "k"}})),
                &["Invalid spec.containers[0].env[0].valueFrom"],
            ),
            (
                "/spec/containers/0/env",
                json!([{"name": "A", "value": "x", "valueFrom": {"fileKeyRef": good}}]),
                &["Invalid spec.containers[0].env[0].valueFrom"],
            ),
        ],
    );
}

#[test]
fn containers() {
    let container = |field: &str| format!("/spec/containers/0/{field}");
    let ports = container("ports");
    let env = container("env");
    let env_from = container("envFrom");
    let probe = container("livenessProbe");
    let lifecycle = container("lifecycle");
    let context = container("securityContext");
    let resources = container("resources");
    created(
        "",
        "Pod",
        &pod(),
        &[
            (
                &ports,
                json!([{"containerPort": 80, "name": "web"}, {"containerPort": 81, "name": "web"}]),
                &["Duplicate spec.containers[0].ports[1].name"],
            ),
            (&ports, json!([{"name": "web"}]), &["Required spec.containers[0].ports[0].containerPort"]),
            (
                &ports,
                json!([{"containerPort": 80, "protocol": "ICMP"}]),
                &["NotSupported spec.containers[0].ports[0].protocol"],
            ),
            (
                &ports,
                json!([{"containerPort": 80, "hostPort": 99_999}]),
                &["Invalid spec.containers[0].ports[0].hostPort"],
            ),
            (
                &ports,
                json!([{"containerPort": 80, "hostPort": 8080, "hostIP": "x"}]),
                &["Invalid spec.containers[0].ports[0].hostIP"],
            ),
            (
                &ports,
                json!([{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 8080}]),
                &["Duplicate spec.containers[0].ports[1].hostPort"],
            ),
            (&env, json!([{"value": "x"}]), &["Required spec.containers[0].env[0].name"]),
            (&env, json!([{"name": "A", "valueFrom": {}}]), &["Invalid spec.containers[0].env[0].valueFrom"]),
            (
                &env,
                json!([{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
                &["Invalid spec.containers[0].env[0].valueFrom"],
            ),
            (
                &env,
                json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"name": "s", "key": "k"}}}]),
                &["Invalid spec.containers[0].env[0].valueFrom"],
            ),
            (
                &env,
                json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels"}}}]),
                &["NotSupported spec.containers[0].env[0].valueFrom.fieldRef.fieldPath"],
            ),
            (
                &env,
                json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.odd"}}}]),
                &["Invalid spec.containers[0].env[0].valueFrom.fieldRef.fieldPath"],
            ),
            (
                &env,
                json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a b']"}}}]),
                &["Invalid spec.containers[0].env[0].valueFrom.fieldRef"],
            ),
            (
                &env,
                json!([{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.odd"}}}]),
                &["NotSupported spec.containers[0].env[0].valueFrom.resourceFieldRef.resource"],
            ),
            (
                &env,
                json!([{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1Mi"}}}]),
                &["Invalid spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor"],
            ),
            (
                &env,
                json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "a b"}}}]),
                &["Invalid spec.containers[0].env[0].valueFrom.configMapKeyRef.key"],
            ),
            (
                &env_from,
                json!([{"prefix": "a=", "configMapRef": {"name": "c"}}]),
                &["Invalid spec.containers[0].envFrom[0].prefix"],
            ),
            (&env_from, json!([{}]), &["Invalid spec.containers[0].envFrom[0]"]),
            (&env_from, json!([{"secretRef": {}}]), &["Required spec.containers[0].envFrom[0].secretRef.name"]),
            (&probe, json!({"tcpSocket": {"port": 0}}), &["Invalid spec.containers[0].livenessProbe.tcpSocket.port"]),
            (&probe, json!({"exec": {}}), &["Required spec.containers[0].livenessProbe.exec.command"]),
            (
                &probe,
                json!({"exec": {"command": ["a"]}, "grpc": {"port": 1}}),
                &["Forbidden spec.containers[0].livenessProbe.grpc"],
            ),
            (
                &probe,
                json!({"httpGet": {"port": 1, "scheme": "FTP"}}),
                &["NotSupported spec.containers[0].livenessProbe.httpGet.scheme"],
            ),
            (
                &probe,
                json!({"httpGet": {"port": 1, "httpHeaders": [{"name": "a b", "value": ""}]}}),
                &["Invalid spec.containers[0].livenessProbe.httpGet.httpHeaders"],
            ),
            (
                &probe,
                json!({"exec": {"command": ["a"]}, "periodSeconds": -1, "terminationGracePeriodSeconds": 0}),
                &[
                    "Invalid spec.containers[0].livenessProbe.periodSeconds",
                    "Invalid spec.containers[0].livenessProbe.terminationGracePeriodSeconds",
                ],
            ),
            (
                "/spec/containers/0/readinessProbe",
                json!({"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 5}),
                &["Invalid spec.containers[0].readinessProbe.terminationGracePeriodSeconds"],
            ),
            (
                &lifecycle,
                json!({"preStop": {"sleep": {"seconds": 31}}}),
                &["Invalid spec.containers[0].lifecycle.preStop.sleep"],
            ),
            (&lifecycle, json!({"postStart": {}}), &["Required spec.containers[0].lifecycle.postStart"]),
            (&context, json!({"runAsUser": -1}), &["Invalid spec.containers[0].securityContext.runAsUser"]),
            (
                &context,
                json!({"privileged": true, "allowPrivilegeEscalation": false}),
                &["Invalid spec.containers[0].securityContext"],
            ),
            (&context, json!({"procMount": "Odd"}), &["NotSupported spec.containers[0].securityContext.procMount"]),
            (&context, json!({"procMount": "Unmasked"}), &["Invalid spec.containers[0].securityContext.procMount"]),
            (
                &context,
                json!({"seccompProfile": {"type": "Localhost"}}),
                &["Required spec.containers[0].securityContext.seccompProfile.localhostProfile"],
            ),
            (
                &context,
                json!({"appArmorProfile": {"type": "Odd"}}),
                &["NotSupported spec.containers[0].securityContext.appArmorProfile.type"],
            ),
            (
                &resources,
                json!({"limits": {"odd": "1"}}),
                &[
                    "Invalid spec.containers[0].resources.limits[odd]",
                    "Invalid spec.containers[0].resources.requests[odd]",
                ],
            ),
            (&resources, json!({"limits": {"hugepages-2Mi": "2Mi"}}), &["Forbidden spec.containers[0].resources"]),
            (
                &resources,
                json!({"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}}),
                &[
                    "Invalid spec.containers[0].resources.limits[hugepages-2Mi]",
                    "Invalid spec.containers[0].resources.requests[hugepages-2Mi]",
                ],
            ),
            (
                &resources,
                json!({"claims": [{"name": "none"}]}),
                &["NotFound spec.containers[0].resources.claims[0].name"],
            ),
            (
                "/spec/containers/0/resizePolicy",
                json!([{"resourceName": "disk", "restartPolicy": "NotRequired"}]),
                &["NotSupported spec.containers[0].resizePolicy[0].resourceName"],
            ),
            (
                "/spec/containers/0/terminationMessagePolicy",
                json!("Odd"),
                &["NotSupported spec.containers[0].terminationMessagePolicy"],
            ),
            ("/spec/containers/0/image", json!(" x"), &["Invalid spec.containers[0].image"]),
            (
                "/spec/initContainers/0/lifecycle",
                json!({"preStop": {"exec": {"command": ["a"]}}}),
                &["Forbidden spec.initContainers[0].lifecycle"],
            ),
            (
                "/spec/initContainers/0/restartPolicy",
                json!("Odd"),
                &["NotSupported spec.initContainers[0].restartPolicy"],
            ),
            ("/spec/initContainers/1/livenessProbe", json!({"exec": {"command": ["a"]}}), &[]),
            (
                "/spec/ephemeralContainers",
                json!([{"name": "e", "image": "x"}]),
                &["Forbidden spec.ephemeralContainers"],
            ),
        ],
    );
}

#[test]
fn who_has_users_of_his_own_may_see_all_of_proc() {
    let mut base = pod();
    base["spec"]["hostUsers"] = json!(false);
    created("", "Pod", &base, &[("/spec/containers/0/securityContext", json!({"procMount": "Unmasked"}), &[])]);
}

#[test]
fn rules_of_restarts() {
    let mut base = pod();
    base["spec"]["containers"][0]["restartPolicy"] = json!("Never");
    let rules = "/spec/containers/0/restartPolicyRules";
    const AT: &str = "spec.containers[0].restartPolicyRules";
    let rule = |action: &str, operator: &str, values: Vec<i32>| json!({"action": action, "exitCodes": {"operator": operator, "values": values}});
    let good = || rule("Restart", "In", vec![1, 42]);
    let action = format!("NotSupported {AT}[0].action");
    let operator = format!("NotSupported {AT}[1].exitCodes.operator");
    let (codes, values) = (format!("Required {AT}[0].exitCodes"), format!("TooMany {AT}[0].exitCodes.values"));
    let many = format!("TooMany {AT}");
    created(
        "",
        "Pod",
        &base,
        &[
            (rules, json!([good(), rule("Restart", "NotIn", vec![])]), &[]),
            (rules, json!([rule("RestartAllContainers", "In", vec![1])]), &[]),
            (rules, json!([rule("RestartNone", "In", vec![1])]), &[&action]),
            (rules, json!([good(), rule("Restart", "Odd", vec![1])]), &[&operator]),
            (rules, json!([{"action": "Restart"}]), &[&codes]),
            (rules, json!([rule("Restart", "In", (0..255).collect())]), &[]),
            (rules, json!([rule("Restart", "In", (0..256).collect())]), &[&values]),
            (rules, Value::Array(vec![good(); 20]), &[]),
            (rules, Value::Array(vec![good(); 21]), &[&many]),
            ("/spec/containers/0/restartPolicy", json!("Odd"), &["NotSupported spec.containers[0].restartPolicy"]),
            (
                "/spec/initContainers/0/restartPolicyRules",
                json!([good()]),
                &["Required spec.initContainers[0].restartPolicy"],
            ),
            // A sidecar may end so that all are started again.
            ("/spec/initContainers/1/restartPolicyRules", json!([rule("RestartAllContainers", "In", vec![1])]), &[]),
        ],
    );
}

#[test]
fn specs() {
    let anti = "/spec/affinity/podAntiAffinity";
    let nodes = "/spec/affinity/nodeAffinity";
    let required =
        |term: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
    const TERMS: &str = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let told = |reason: &str, rest: &str| format!("{reason} {TERMS}{rest}");
    let (no_terms, no_values, no_operator, odd_field, two_values) = (
        told("Required", ""),
        told("Required", "[0].matchExpressions[0].values"),
        told("Invalid", "[0].matchExpressions[0].operator"),
        told("Invalid", "[0].matchFields[0].key"),
        told("Required", "[0].matchExpressions[0].values"),
    );
    let spread = "/spec/topologySpreadConstraints";
    created(
        "",
        "Pod",
        &pod(),
        &[
            ("/spec/activeDeadlineSeconds", json!(0), &["Invalid spec.activeDeadlineSeconds"]),
            ("/spec/dnsPolicy", json!("Odd"), &["NotSupported spec.dnsPolicy"]),
            ("/spec/dnsPolicy", json!("None"), &["Required spec.dnsConfig"]),
            (
                "/spec/dnsConfig",
                json!({"nameservers": ["1.1.1.1", "x", "1.1.1.2", "1.1.1.3"]}),
                &["Invalid spec.dnsConfig.nameservers[1]", "Invalid spec.dnsConfig.nameservers"],
            ),
            (
                "/spec/dnsConfig",
                json!({"searches": ["a_b.c.", "a b"], "options": [{}]}),
                &["Invalid spec.dnsConfig.searches[1]", "Required spec.dnsConfig.options[0]"],
            ),
            (
                "/spec/hostAliases",
                json!([{"ip": "x", "hostnames": ["a_"]}]),
                &["Invalid spec.hostAliases[0].ip", "Invalid spec.hostAliases[0].hostnames[0]"],
            ),
            ("/spec/hostname", json!("A"), &["Invalid spec.hostname"]),
            ("/spec/nodeSelector", json!({"a b": "c"}), &["Invalid spec.nodeSelector"]),
            ("/spec/priorityClassName", json!("A"), &["Invalid spec.priorityClassName"]),
            ("/spec/runtimeClassName", json!("A"), &["Invalid spec.runtimeClassName"]),
            ("/spec/preemptionPolicy", json!("Odd"), &["NotSupported spec.preemptionPolicy"]),
            ("/spec/os", json!({"name": "plan9"}), &["NotSupported spec.os"]),
            ("/spec/schedulingGates", json!([{"name": "a"}, {"name": "a"}]), &["Duplicate spec.schedulingGates[1]"]),
            (
                "/spec/readinessGates",
                json!([{"conditionType": "a b"}]),
                &["Invalid spec.readinessGates[0].conditionType"],
            ),
            ("/spec/resourceClaims", json!([{"name": "a"}]), &["Invalid spec.resourceClaims[0]"]),
            ("/spec/overhead", json!({"cpu": "-1"}), &["Invalid spec.overhead.limits[cpu]"]),
            ("/spec/resources", json!({"requests": {"cpu": "500m"}}), &["Invalid spec.resources.requests[cpu]"]),
            ("/spec/hostNetwork", json!(true), &[]),
            (
                "/spec/securityContext",
                json!({"fsGroup": -1, "supplementalGroups": [1, -2], "fsGroupChangePolicy": "Odd"}),
                &[
                    "Invalid spec.securityContext.fsGroup",
                    "Invalid spec.securityContext.supplementalGroups[1]",
                    "NotSupported spec.securityContext.fsGroupChangePolicy",
                ],
            ),
            (
                "/spec/securityContext",
                json!({"sysctls": [{"name": "a"}, {"name": "a"}, {"name": "B"}]}),
                &["Invalid spec.securityContext.sysctls[2].name", "Duplicate spec.securityContext.sysctls[1].name"],
            ),
            (
                "/spec/securityContext",
                json!({"seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "x"}}),
                &["Invalid spec.securityContext.seccompProfile.localhostProfile"],
            ),
            ("/spec/tolerations", json!([{"value": "x"}]), &["Invalid spec.tolerations[0].operator"]),
            (
                "/spec/tolerations",
                json!([{"key": "a", "operator": "Odd"}]),
                &["NotSupported spec.tolerations[0].operator"],
            ),
            (
                "/spec/tolerations",
                json!([{"key": "a", "operator": "Gt", "value": "1"}, {"key": "a", "operator": "Lt", "value": "x"}]),
                &["NotSupported spec.tolerations[0].operator", "NotSupported spec.tolerations[1].operator"],
            ),
            ("/spec/tolerations", json!([{"key": "a", "effect": "Odd"}]), &["NotSupported spec.tolerations[0].effect"]),
            (
                "/spec/tolerations",
                json!([{"key": "a", "tolerationSeconds": 1}]),
                &["Invalid spec.tolerations[0].effect"],
            ),
            (nodes, json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}), &[&no_terms]),
            (nodes, required(json!({"matchExpressions": [{"key": "a", "operator": "In"}]})), &[&no_values]),
            (nodes, required(json!({"matchExpressions": [{"key": "a", "operator": "Odd"}]})), &[&no_operator]),
            (
                nodes,
                required(json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]})),
                &[&two_values],
            ),
            (nodes, required(json!({"matchFields": [{"key": "a", "operator": "In", "values": ["1"]}]})), &[&odd_field]),
            (
                nodes,
                json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "preference": {}}]}),
                &["Invalid spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight"],
            ),
            (
                anti,
                json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"a": "b c"}}}]}),
                &[
                    "Invalid spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchLabels",
                    "Required spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
                ],
            ),
            (
                spread,
                json!([{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Odd"}]),
                &[
                    "Invalid spec.topologySpreadConstraints[0].maxSkew",
                    "Required spec.topologySpreadConstraints[0].topologyKey",
                    "NotSupported spec.topologySpreadConstraints[0].whenUnsatisfiable",
                ],
            ),
            (
                spread,
                json!([{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2, "matchLabelKeys": ["x"]}]),
                &[
                    "Invalid spec.topologySpreadConstraints[0].minDomains",
                    "Forbidden spec.topologySpreadConstraints[0].matchLabelKeys",
                ],
            ),
            (
                spread,
                json!([{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}, {"maxSkew": 2, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]),
                &["Duplicate spec.topologySpreadConstraints[1].{topologyKey, whenUnsatisfiable}"],
            ),
            (
                "/metadata/annotations",
                json!({"controller.kubernetes.io/pod-deletion-cost": "much"}),
                &["Invalid metadata.annotations[controller.kubernetes.io/pod-deletion-cost]"],
            ),
        ],
    );
}

#[test]
fn updates() {
    changed(
        "",
        "Pod",
        "",
        &pod(),
        &[
            ("/spec/containers/0/image", json!("y"), &[]),
            ("/spec/activeDeadlineSeconds", json!(5), &[]),
            // What is empty is as good as absent, and clients in Go leave it out.
            ("/spec/containers/0/command", json!([]), &[]),
            ("/spec/containers/0/stdin", json!(false), &[]),
            ("/spec/hostNetwork", json!(false), &[]),
            ("/spec/nodeSelector", json!({}), &[]),
            ("/spec/tolerations", json!([{"key": "k", "operator": "Exists", "value": ""}]), &[]),
            ("/spec/containers/0/env", json!([{"name": "A", "value": ""}]), &["Forbidden spec"]),
            ("/spec/automountServiceAccountToken", json!(false), &["Forbidden spec"]),
            ("/spec/tolerations", json!([{"key": "k", "operator": "Exists"}, {"operator": "Exists"}]), &[]),
            ("/spec/tolerations", json!([]), &["Forbidden spec.tolerations"]),
            ("/spec/hostname", json!("h"), &["Forbidden spec"]),
            ("/spec/containers/0/resources/limits/cpu", json!("2"), &["Forbidden spec"]),
            ("/spec/schedulingGates", json!([{"name": "a"}]), &["Forbidden spec.schedulingGates[0].name"]),
            (
                "/metadata/annotations",
                json!({"kubernetes.io/config.mirror": "x"}),
                &[
                    "Invalid metadata.annotations[kubernetes.io/config.mirror]",
                    "Forbidden metadata.annotations[kubernetes.io/config.mirror]",
                ],
            ),
        ],
    );
    // An earlier release has let it in, with what is as good as absent.
    let mut old = pod();
    old["spec"]["restartPolicy"] = "Odd".into();
    old["spec"]["hostNetwork"] = false.into();
    old["spec"]["containers"][0]["command"] = json!([]);
    changed(
        "",
        "Pod",
        "",
        &old,
        &[
            ("/spec/hostNetwork", Value::Null, &[]),
            ("/spec/containers/0/command", Value::Null, &[]),
            ("/spec/containers/0/image", json!("y"), &["NotSupported spec.restartPolicy"]),
        ],
    );
    let mut gated = pod();
    gated["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    gated["spec"]["nodeSelector"] = json!({"a": "b"});
    changed(
        "",
        "Pod",
        "",
        &gated,
        &[
            ("/spec/schedulingGates", json!([]), &[]),
            ("/spec/nodeSelector", json!({"a": "b", "c": "d"}), &[]),
            ("/spec/nodeSelector", json!({"c": "d"}), &["Invalid spec.nodeSelector"]),
        ],
    );
}

#[test]
fn subresources() {
    changed(
        "",
        "Pod",
        "ephemeralcontainers",
        &pod(),
        &[
            ("/spec/ephemeralContainers", json!([{"name": "e", "image": "x", "targetContainerName": "a"}]), &[]),
            (
                "/spec/ephemeralContainers",
                json!([{"name": "e", "image": "x", "targetContainerName": "z"}]),
                &["NotFound spec.ephemeralContainers[0].targetContainerName"],
            ),
            (
                "/spec/ephemeralContainers",
                json!([{"name": "e", "image": "x", "ports": [{"containerPort": 1}]}]),
                &["Forbidden spec.ephemeralContainers[0].ports"],
            ),
            (
                "/spec/ephemeralContainers",
                json!([{"name": "a", "image": "x"}]),
                &["Duplicate spec.ephemeralContainers[0].name"],
            ),
            ("/spec/hostname", json!("h"), &["Forbidden spec"]),
        ],
    );
    let mut debugged = pod();
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "x"}]);
    changed(
        "",
        "Pod",
        "ephemeralcontainers",
        &debugged,
        &[
            ("/spec/ephemeralContainers", json!([]), &["Forbidden spec.ephemeralContainers"]),
            ("/spec/ephemeralContainers/0/image", json!("y"), &["Forbidden spec.ephemeralContainers"]),
        ],
    );
    changed(
        "",
        "Pod",
        "resize",
        &pod(),
        &[
            ("/spec/containers/0/resources/limits/cpu", json!("2"), &[]),
            (
                "/spec/containers/0/resources",
                json!({}),
                &[
                    "Invalid spec",
                    "Forbidden spec.containers[0].resources.requests",
                    "Forbidden spec.containers[0].resources.limits",
                ],
            ),
            ("/spec/containers/0/name", json!("b"), &["Forbidden spec.containers[0].name"]),
            (
                "/spec/containers",
                json!([{"name": "a", "image": "x", "ports": [{"containerPort": 80, "name": "web"}], "resources":
                    {"limits": {"cpu": "1", "memory": "1Gi"}}}, {"name": "b", "image": "x"}]),
                &["Forbidden spec.containers"],
            ),
            ("/spec/initContainers", json!([{"name": "i", "image": "x"}]), &["Forbidden spec.initContainers"]),
            ("/spec/resources", json!({"limits": {"cpu": "1"}}), &[]),
            (
                "/spec/containers/0/resources/limits/ephemeral-storage",
                json!("1Gi"),
                &["Forbidden spec", "Forbidden spec"],
            ),
            ("/spec/initContainers/0/resources", json!({"limits": {"cpu": "1"}}), &["Forbidden spec"]),
            ("/spec/hostname", json!("h"), &["Forbidden spec"]),
        ],
    );
}

#[test]
fn whole_pods_are_resized() {
    let mut whole = pod();
    whole["spec"]["resources"] = json!({"limits": {"cpu": "2", "memory": "2Gi"}});
    changed(
        "",
        "Pod",
        "resize",
        &whole,
        &[
            ("/spec/containers/0/resources/limits/cpu", json!("2"), &[]),
            ("/spec/resources/limits/cpu", json!("3"), &[]),
            ("/spec/resources", json!({"limits": {"cpu": "2"}}), &["Forbidden spec.resources.limits"]),
            // Of another class.
            ("/spec/resources", json!({"limits": {"cpu": "1", "memory": "1Gi"}}), &["Invalid spec"]),
        ],
    );
}

#[test]
fn what_is_never_resized() {
    let wanted = ("/spec/containers/0/resources/limits/cpu", json!("2"));
    let mut mirror = pod();
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    let mut windows = pod();
    windows["spec"]["os"] = json!({"name": "windows"});
    // Its node says what containers have, or it does not resize them.
    let mut told = pod();
    told["status"] = json!({"qosClass": "Burstable", "containerStatuses": [
        {"name": "a", "state": {"running": {}}, "resources": {}}]});
    let mut silent = told.clone();
    silent["status"]["containerStatuses"][0] = json!({"name": "a", "state": {"running": {}}});
    let mut waits = silent.clone();
    waits["status"]["containerStatuses"][0] = json!({"name": "a", "state": {"waiting": {}}});
    // The class that a pod has been given counts.
    let mut other = told.clone();
    other["status"]["qosClass"] = json!("Guaranteed");
    for (base, expected) in [
        (mirror, &["Forbidden "][..]),
        (windows, &["Forbidden "]),
        (silent, &["Forbidden spec"]),
        (waits, &[]),
        (told, &[]),
        (other, &["Invalid spec"]),
    ] {
        changed("", "Pod", "resize", &base, &[(wanted.0, wanted.1.clone(), expected)]);
    }
}

#[test]
fn statuses() {
    let mut done = pod();
    done["spec"]["restartPolicy"] = json!("Never");
    done["status"] = json!({"phase": "Running", "qosClass": "Burstable", "podIPs": [{"ip": "10.0.0.1"}]});
    changed(
        "",
        "Pod",
        "status",
        &done,
        &[
            ("/status/phase", json!("Failed"), &[]),
            ("/status/qosClass", json!("Guaranteed"), &["Invalid status.qosClass"]),
            ("/status/podIPs", json!([{"ip": "x"}]), &["Invalid status.podIPs[0].ip"]),
            ("/status/podIPs", json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]), &["Invalid status.podIPs"]),
            ("/status/hostIPs", json!([{"ip": "10.0.0.1"}]), &["Invalid status.hostIPs[0].ip"]),
            ("/status/conditions", json!([{"type": "example.com/fed", "status": "True"}]), &[]),
            ("/status/conditions", json!([{"type": "a b", "status": "True"}]), &["Invalid status.conditions[0].Type"]),
        ],
    );
}
