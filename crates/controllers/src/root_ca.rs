//! Every namespace has a config map with the cluster's CA certificate, which the projected service
//! account volume of each pod shows. It holds that, and nothing else.

use std::collections::BTreeMap;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const NAME: &str = "kube-root-ca.crt";
/// Annotation that says what the config map is for.
const DESCRIPTION: &str = "kubernetes.io/description";

/// Publishes the CA certificate (kube-controller-manager's root-ca-certificate-publisher).
pub struct RootCaController {
    ca_pem: String,
}

impl RootCaController {
    /// Publishes this certificate, in PEM.
    #[must_use]
    pub fn new(ca_pem: impl Into<String>) -> Self {
        Self { ca_pem: ca_pem.into() }
    }
}

impl Controller for RootCaController {
    fn name(&self) -> &'static str {
        "root-ca-cert-publisher"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Namespace>();
        setup.watch::<ConfigMap>(
            |map, _| {
                if map.name() == NAME { vec![Key::new("", map.namespace())] } else { Vec::new() }
            },
        );
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        if view.get::<Namespace>("", &key.name).is_none_or(|ns| ns.is_deleting()) {
            return Plan::none();
        }
        let data = BTreeMap::from([("ca.crt".to_owned(), self.ca_pem.clone())]);
        let said = "The certificate of the authority that signed this API server's certificate.".to_owned();
        let Some(map) = view.get::<ConfigMap>(&key.name, NAME) else {
            return Plan::none().create(&ConfigMap {
                metadata: ObjectMeta {
                    namespace: Some(key.name.clone()),
                    name: Some(NAME.into()),
                    annotations: Some(BTreeMap::from([(DESCRIPTION.to_owned(), said)])),
                    ..ObjectMeta::default()
                },
                data: Some(data),
                ..ConfigMap::default()
            });
        };
        if map.data.as_ref() == Some(&data) && map.annotation(DESCRIPTION).is_some_and(|text| !text.is_empty()) {
            return Plan::none();
        }
        // What somebody added to its data goes, and what it is for is told again.
        let mut whole = ConfigMap { data: Some(data), ..ConfigMap::clone(map) };
        let annotations = whole.metadata.annotations.get_or_insert_default();
        let text = annotations.entry(DESCRIPTION.to_owned()).or_default();
        if text.is_empty() {
            *text = said;
        }
        Plan::none().update(map.as_ref(), &whole)
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Write;
    use carrack_engine::testing::Caches;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{of, words};

    /// What is written where a namespace has this config map, and what that holds then.
    fn check(map: Option<Value>, expected: &[&str]) {
        let map = map.map(|mut map| {
            map["metadata"]["namespace"] = "ns".into();
            map["metadata"]["name"] = NAME.into();
            map["metadata"]["resourceVersion"] = "1".into();
            map
        });
        let caches = Caches::new()
            .with::<Namespace>([of(json!({"metadata": {"name": "ns"}}))])
            .with::<ConfigMap>(map.iter().cloned().map(of));
        let plan = RootCaController::new("CA").reconcile(&Key::new("", "ns"), &caches.view(), Time::default());
        assert_eq!(words(&plan), expected, "{map:?}");
        for write in &plan.writes {
            let (Write::Create { object, .. } | Write::Update { object, .. }) = write else { panic!("{write:?}") };
            assert_eq!(object["data"], json!({"ca.crt": "CA"}), "{map:?}");
            assert!(object["metadata"]["annotations"][DESCRIPTION].is_string(), "{map:?}");
        }
    }

    #[test]
    fn each_namespace_has_the_certificate_and_nothing_else_there() {
        let described = || json!({"annotations": {DESCRIPTION: "text"}});
        let mended = ["update ns/kube-root-ca.crt"];
        check(None, &["create configmaps ns/kube-root-ca.crt"]);
        check(Some(json!({"metadata": described(), "data": {"ca.crt": "CA"}})), &[]);
        check(Some(json!({"metadata": described(), "data": {"ca.crt": "old"}})), &mended);
        check(Some(json!({"metadata": described(), "data": {"ca.crt": "CA", "other": "x"}})), &mended);
        check(Some(json!({"metadata": described()})), &mended);
        check(Some(json!({"metadata": {}, "data": {"ca.crt": "CA"}})), &mended);
    }
}
