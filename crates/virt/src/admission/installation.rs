//! The object with the cluster's settings.

use carrack_apiserver::Status;
use carrack_apiserver::admission::{Attributes, Lookup, Needed, Operation};
use carrack_apiserver::object::{Object, meta_str, name};
use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::well_known::kubevirt::GROUP;

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

/// What is wrong with the settings. (Upstream: `validateTLSConfiguration` in virt-operator.)
pub(super) fn check(settings: &KubeVirtConfiguration, faults: &mut Faults) {
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

    #[test]
    fn ciphers_are_chosen_where_there_is_a_choice() {
        let check = |tls: Value, wanted: &[&str]| {
            let settings = json!({"tlsConfiguration": tls});
            let mut faults = Faults::default();
            check(&serde_json::from_value(settings.clone()).expect("settings"), &mut faults);
            let fields: Vec<String> = faults.into_vec().into_iter().map(|fault| fault.field).collect();
            assert_eq!(fields, wanted, "{settings}");
        };
        let at = "spec.configuration.tlsConfiguration.ciphers";
        let ciphers = || json!(["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
        check(Value::Null, &[]);
        check(json!({"minTLSVersion": "VersionTLS13"}), &[]);
        check(json!({"minTLSVersion": "VersionTLS12", "ciphers": ciphers()}), &[]);
        check(json!({"minTLSVersion": "VersionTLS13", "ciphers": ciphers()}), &[at]);
        check(json!({"ciphers": ciphers()}), &[at]);
    }
}
