//! The object with the cluster's settings.

use carrack_apiserver::Status;
use carrack_apiserver::admission::{Attributes, Lookup, Needed, Operation};
use carrack_apiserver::object::{Object, meta_str, name};
use carrack_types::duration::parse;
use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::well_known::kubevirt::GROUP;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::Faults;
use super::plugin::SETTINGS;

/// All that are there, where another one is to be made: two that are made at the same time find each other.
pub(super) fn needs(attributes: &Attributes<'_>) -> Vec<Needed> {
    let is_new = attributes.is(GROUP, SETTINGS) && attributes.operation == Operation::Create;
    if is_new { vec![Needed::all(GROUP, SETTINGS, "").pinned()] } else { Vec::new() }
}

/// There is one. That the same one is there already is told by the store. (Upstream: `kubevirt-create-admitter.go` in virt-operator,
/// its word and its code included.)
///
/// # Errors
/// 400 if there is another one.
pub(super) fn check_alone(attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
    let place = (attributes.namespace, attributes.name.as_str());
    let is_other = |object: &&Object| (meta_str(object, "namespace"), name(object)) != place;
    let is_new = attributes.operation == Operation::Create;
    if is_new && lookup.list(GROUP, SETTINGS, "").iter().any(is_other) {
        return Err(Status::bad_request("Kubevirt is already created"));
    }
    Ok(())
}

/// What is wrong with the object's spec, of which many settings are kept as they are: what they say of upstream's components is
/// checked, so that it means the same wherever it is read. (Upstream: `kubevirt-update-admitter.go` in virt-operator.)
pub(super) fn check(spec: &Value, settings: &KubeVirtConfiguration, faults: &mut Faults) {
    tls(settings, faults);
    if let Some(ratio) = &settings.additional_guest_memory_overhead_ratio {
        let at = "spec.configuration.additionalGuestMemoryOverheadRatio";
        match ratio.parse::<f64>() {
            Err(error) => {
                faults.unsupported(at, format!("ratio provided, {ratio}, cannot be parsed into float: {error}"));
            }
            Ok(number) if !number.is_finite() || number < 1.0 => {
                faults.unsupported(at, format!("ratio provided, {ratio}, cannot be smaller than 1.0"));
            }
            Ok(_) => {}
        }
    }
    if spec["infra"]["replicas"] == 0 {
        faults.invalid("spec.infra.replicas", "infra replica count can't be 0");
    }
    let patches = spec["customizeComponents"]["patches"].as_array();
    for (index, patch) in patches.into_iter().flatten().enumerate() {
        let text = patch["patch"].as_str().unwrap_or_default();
        if serde_json::from_str::<IgnoredAny>(text).is_err() {
            let at = format!("spec.customizeComponents.patches[{index}].patch");
            faults.unsupported(at, format!("patch {text:?} is not valid JSON"));
        }
    }
    certificates(&spec["certificateRotateStrategy"]["selfSigned"], faults);
    let profile = &spec["configuration"]["seccompConfiguration"]["virtualMachineInstanceProfile"];
    if profile.is_object() {
        seccomp(&profile["customProfile"], faults);
    }
}

/// Certificates end before those of who signs them, and are made anew before they end. What is not said is a week, a day, and a
/// fifth of either. (Upstream: `validateCertificates`.)
fn certificates(strategy: &Value, faults: &mut Faults) {
    const DAY_NS: i64 = 86_400_000_000_000;
    if !strategy.is_object() {
        return;
    }
    let at = "spec.certificateRotateStrategy.selfSigned";
    let has_any = |fields: &[&str]| fields.iter().any(|field| !strategy[*field].is_null());
    if has_any(&["caRotateInterval", "certRotateInterval", "caOverlapInterval"]) && has_any(&["ca", "server"]) {
        let message = "caRotateInterval, certRotateInterval and caOverlapInterval are deprecated and conflict with CertConfig \
            defined rotation parameters";
        faults.unsupported(at, message);
    }
    let said = |value: &Value| value.as_str().and_then(parse);
    let [ca, server] = ["ca", "server"].map(|of| &strategy[of]);
    let lasts =
        |former: &Value, of: &Value, usual_ns: i64| said(former).or_else(|| said(&of["duration"])).unwrap_or(usual_ns);
    let ca_ns = lasts(&strategy["caRotateInterval"], ca, 7 * DAY_NS);
    let server_ns = lasts(&strategy["certRotateInterval"], server, DAY_NS);
    let ca_renewed = said(&strategy["caOverlapInterval"]).or_else(|| said(&ca["renewBefore"]));
    let pairs = [("CA", "ca", ca_ns, ca_renewed), ("Cert", "server", server_ns, said(&server["renewBefore"]))];
    for (what, of, lasts_ns, renewed_ns) in pairs {
        if renewed_ns.is_some_and(|renewed_ns| lasts_ns < renewed_ns) {
            let message =
                format!("{what} RenewBefore cannot exceed Duration ({at}.{of}.duration < {at}.{of}.renewBefore)");
            faults.invalid(format!("{at}.{of}.renewBefore"), message);
        }
    }
    if server_ns > ca_ns {
        let message = format!("Certificate duration cannot exceed CA ({at}.server.duration > {at}.ca.duration)");
        faults.invalid(format!("{at}.server.duration"), message);
    }
}

/// A profile is one of the node's files or the runtime's own. (Upstream: `validateSeccompConfiguration`.)
fn seccomp(custom: &Value, faults: &mut Faults) {
    let at = "spec.configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile";
    if !custom.is_object() {
        faults.invalid(at, format!("{at} needs to be set"));
    } else if custom["localhostProfile"].is_string() && custom["runtimeDefaultProfile"] == true {
        let fields = ["localhostProfile", "runtimeDefaultProfile"];
        for (field, other) in [(fields[0], fields[1]), (fields[1], fields[0])] {
            faults.invalid(format!("{at}.{field}"), format!("{at}.{field} cannot be set when {at}.{other} is set"));
        }
    }
}

/// Ciphers are chosen where there is a choice. (Upstream: `validateTLSConfiguration`.)
fn tls(settings: &KubeVirtConfiguration, faults: &mut Faults) {
    let Some(tls) = &settings.tls_configuration else { return };
    let chooses = matches!(tls.min_tls_version.as_deref(), Some("VersionTLS10" | "VersionTLS11" | "VersionTLS12"));
    if !chooses && !tls.ciphers.is_empty() {
        let at = "spec.configuration.tlsConfiguration";
        let message = format!("You cannot specify ciphers when {at}.minTLSVersion is empty or VersionTLS13");
        faults.unsupported(format!("{at}.ciphers"), message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Faults, check};

    /// The fields of what is wrong with a spec.
    fn expect(spec: &Value, wanted: &[&str]) {
        let mut faults = Faults::default();
        let settings = serde_json::from_value(spec["configuration"].clone()).expect("settings");
        check(spec, &settings, &mut faults);
        let fields: Vec<String> = faults.into_vec().into_iter().map(|fault| fault.field).collect();
        assert_eq!(fields, wanted, "{spec}");
    }

    #[test]
    fn what_upstream_refuses_is_refused() {
        let check = |mut more: Value, wanted: &[&str]| {
            if more["configuration"].is_null() {
                more["configuration"] = json!({});
            }
            expect(&more, wanted);
        };
        check(json!({}), &[]);
        check(json!({"infra": {"replicas": 0}}), &["spec.infra.replicas"]);
        check(json!({"infra": {"replicas": 1}}), &[]);
        let patch = |text: &str| json!({"customizeComponents": {"patches": [{"patch": "[]"}, {"patch": text}]}});
        check(patch("{\"a\": 1}"), &[]);
        check(patch("{a: 1}"), &["spec.customizeComponents.patches[1].patch"]);
        let ratio = |ratio: &str| json!({"configuration": {"additionalGuestMemoryOverheadRatio": ratio}});
        check(ratio("1.5"), &[]);
        for senseless in ["0.999", "-1.3", "abcdefg", "NaN", ""] {
            check(ratio(senseless), &["spec.configuration.additionalGuestMemoryOverheadRatio"]);
        }
        let signed = |strategy: Value| json!({"certificateRotateStrategy": {"selfSigned": strategy}});
        let at = |what: &str| format!("spec.certificateRotateStrategy.selfSigned{what}");
        check(signed(json!({"ca": {"duration": "24h", "renewBefore": "1h"}, "server": {"duration": "2h"}})), &[]);
        check(signed(json!({"ca": {"duration": "24h", "renewBefore": "25h"}})), &[&at(".ca.renewBefore")]);
        check(signed(json!({"server": {"renewBefore": "25h"}})), &[&at(".server.renewBefore")]);
        check(signed(json!({"server": {"duration": "169h"}})), &[&at(".server.duration")]);
        check(signed(json!({"caRotateInterval": "24h"})), &[]);
        check(signed(json!({"caRotateInterval": "24h", "server": {"duration": "2h"}})), &[&at("")]);
        let profile = |custom: Value| {
            let profile = json!({"customProfile": custom});
            json!({"configuration": {"seccompConfiguration": {"virtualMachineInstanceProfile": profile}}})
        };
        let at = "spec.configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile";
        check(profile(Value::Null), &[at]);
        check(profile(json!({"runtimeDefaultProfile": true})), &[]);
        let both = [format!("{at}.localhostProfile"), format!("{at}.runtimeDefaultProfile")];
        check(profile(json!({"localhostProfile": "p.json", "runtimeDefaultProfile": true})), &[&both[0], &both[1]]);
    }

    #[test]
    fn ciphers_are_chosen_where_there_is_a_choice() {
        let check = |tls: Value, wanted: &[&str]| expect(&json!({"configuration": {"tlsConfiguration": tls}}), wanted);
        let at = "spec.configuration.tlsConfiguration.ciphers";
        let ciphers = || json!(["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
        check(Value::Null, &[]);
        check(json!({"minTLSVersion": "VersionTLS13"}), &[]);
        check(json!({"minTLSVersion": "VersionTLS12", "ciphers": ciphers()}), &[]);
        check(json!({"minTLSVersion": "VersionTLS13", "ciphers": ciphers()}), &[at]);
        check(json!({"ciphers": ciphers()}), &[at]);
    }
}
