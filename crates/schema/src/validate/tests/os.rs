//! What pods may ask for, by the system that they are for, and what they call their hosts.

use serde_json::{Value, json};

use super::causes::{created, named};

fn pod(rest: Value) -> Value {
    let mut pod = named(json!({"spec": {"securityContext": {}, "containers": [{"name": "a", "image": "x"}]}}));
    if let (Value::Object(spec), Value::Object(rest)) = (&mut pod["spec"], rest) {
        spec.extend(rest);
    }
    pod
}

#[test]
fn systems() {
    let (own, of_container) = ("/spec/securityContext", "/spec/containers/0/securityContext");
    created(
        "",
        "Pod",
        &pod(json!({"os": {"name": "linux"}})),
        &[
            (own, json!({"runAsUser": 1}), &[]),
            (own, json!({"windowsOptions": {}}), &["Forbidden spec.securityContext.windowsOptions"]),
            (
                of_container,
                json!({"windowsOptions": {}}),
                &["Forbidden spec.containers[0].securityContext.windowsOptions"],
            ),
        ],
    );
    created(
        "",
        "Pod",
        &pod(json!({"os": {"name": "windows"}})),
        &[
            (own, json!({"windowsOptions": {"runAsUserName": "a"}, "runAsNonRoot": true, "sysctls": []}), &[]),
            (
                own,
                json!({"runAsUser": 1, "fsGroup": 2, "seLinuxOptions": {}, "supplementalGroups": [1]}),
                &[
                    "Forbidden spec.securityContext.fsGroup",
                    "Forbidden spec.securityContext.runAsUser",
                    "Forbidden spec.securityContext.seLinuxOptions",
                    "Forbidden spec.securityContext.supplementalGroups",
                ],
            ),
            ("/spec/hostPID", json!(true), &["Forbidden spec.hostPID"]),
            ("/spec/hostIPC", json!(false), &[]),
            ("/spec/hostNetwork", json!(true), &[]),
            ("/spec/hostUsers", json!(false), &["Forbidden spec.hostUsers"]),
            ("/spec/shareProcessNamespace", json!(false), &["Forbidden spec.shareProcessNamespace"]),
            (
                of_container,
                json!({"privileged": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true}),
                &[
                    "Forbidden spec.containers[0].securityContext.capabilities",
                    "Forbidden spec.containers[0].securityContext.privileged",
                ],
            ),
        ],
    );
    created("", "Pod", &pod(json!({})), &[(own, json!({"runAsUser": 1, "windowsOptions": {}}), &[])]);
}

#[test]
fn names_of_hosts() {
    created(
        "",
        "Pod",
        &pod(json!({"hostnameOverride": "a.example.com"})),
        &[
            ("/spec/hostnameOverride", json!("A"), &["Invalid spec.hostnameOverride"]),
            ("/spec/hostnameOverride", json!("a".repeat(65)), &["TooLong spec.hostnameOverride"]),
            ("/spec/hostNetwork", json!(true), &["Forbidden spec.hostnameOverride"]),
            ("/spec/setHostnameAsFQDN", json!(true), &["Forbidden spec.hostnameOverride"]),
            ("/spec/setHostnameAsFQDN", json!(false), &[]),
        ],
    );
}
