//! Every namespace has a service account named `default`, for pods that name none.

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const NAME: &str = "default";

/// Makes the `default` service account of each namespace, again if it is deleted
/// (kube-controller-manager's serviceaccount-controller).
pub struct ServiceAccountController;

impl Controller for ServiceAccountController {
    fn name(&self) -> &'static str {
        "service-account"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Namespace>();
        setup.watch::<ServiceAccount>(
            |sa, _| {
                if sa.name() == NAME { vec![Key::new("", sa.namespace())] } else { Vec::new() }
            },
        );
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let active = view.get::<Namespace>("", &key.name).is_some_and(|ns| !ns.is_deleting());
        if !active || view.get::<ServiceAccount>(&key.name, NAME).is_some() {
            return Plan::none();
        }
        Plan::none().create(&ServiceAccount {
            metadata: ObjectMeta {
                namespace: Some(key.name.clone()),
                name: Some(NAME.into()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        })
    }
}
