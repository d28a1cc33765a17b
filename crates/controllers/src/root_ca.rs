//! Every namespace has a config map with the cluster's CA certificate, which the projected service
//! account volume of each pod shows.

use std::collections::BTreeMap;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

const NAME: &str = "kube-root-ca.crt";

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
        match view.get::<ConfigMap>(&key.name, NAME) {
            None => Plan::none().create(&ConfigMap {
                metadata: ObjectMeta {
                    namespace: Some(key.name.clone()),
                    name: Some(NAME.into()),
                    annotations: Some(BTreeMap::from([(
                        "kubernetes.io/description".to_owned(),
                        "The certificate of the authority that signed this API server's certificate.".to_owned(),
                    )])),
                    ..ObjectMeta::default()
                },
                data: Some(data),
                ..ConfigMap::default()
            }),
            Some(map) if map.data.as_ref() != Some(&data) => Plan::none().patch(map.as_ref(), json!({ "data": data })),
            Some(_) => Plan::none(),
        }
    }
}
