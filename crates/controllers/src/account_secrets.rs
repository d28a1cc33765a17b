//! Secrets that hold the token of a service account for good: they are filled while the account is there, and go with it.
//!
//! Behaviour follows kube-controller-manager's tokens controller (pkg/controller/serviceaccount/tokens_controller.go). The
//! token itself is the API server's to make, in the write that names the account's UID: it has the key.

use carrack_engine::{Controller, Key, Plan, Selector, Setup, Source, Time, View};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::well_known::account_token::{ACCOUNT_NAME, ACCOUNT_UID, TYPE};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};

/// Fills and deletes Secrets of service accounts.
pub struct AccountSecrets {
    ca_pem: String,
}

fn source() -> Source {
    Source { selector: Selector::fields(format!("type={TYPE}")), ..Source::of::<Secret>() }
}

impl AccountSecrets {
    /// With the certificate of the cluster's authority, in PEM.
    #[must_use]
    pub fn new(ca_pem: impl Into<String>) -> Self {
        Self { ca_pem: ca_pem.into() }
    }

    /// The Secret with what it lacks; none when it is whole.
    fn filled(&self, secret: &Secret, account: &ServiceAccount) -> Option<Secret> {
        let has = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        let own = [("ca.crt", self.ca_pem.as_str()), ("namespace", secret.namespace())];
        // Where nobody has told of an authority, what is there stays.
        let own = own.into_iter().filter(|(_, value)| !value.is_empty());
        let lacks: Vec<_> = own.filter(|(key, value)| has(key) != Some(value.as_bytes())).collect();
        let named = secret.annotation(ACCOUNT_UID) == Some(account.uid());
        if lacks.is_empty() && named && has("token").is_some_and(|token| !token.is_empty()) {
            return None;
        }
        let mut filled = secret.clone();
        filled.metadata.annotations.get_or_insert_default().insert(ACCOUNT_UID.to_owned(), account.uid().to_owned());
        let data = filled.data.get_or_insert_default();
        data.extend(lacks.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec()))));
        Some(filled)
    }
}

impl Controller for AccountSecrets {
    fn name(&self) -> &'static str {
        "serviceaccount-token-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_source::<Secret>(source(), |secret, _| vec![Key::of(secret)]);
        setup.watch::<ServiceAccount>(|account, view| {
            let secrets = view.cache_of::<Secret>(&source()).into_iter();
            let secrets = secrets.flat_map(|cache| cache.in_namespace(account.namespace()));
            secrets
                .filter(|s| s.annotation(ACCOUNT_NAME) == Some(account.name()))
                .map(|s| Key::of(s.as_ref()))
                .collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let secret = view.cache_of::<Secret>(&source()).and_then(|cache| cache.get_key(key));
        let Some(secret) = secret.filter(|s| s.type_.as_deref() == Some(TYPE) && !s.is_deleting()) else {
            return Plan::none();
        };
        let name = secret.annotation(ACCOUNT_NAME).unwrap_or_default();
        let uid = secret.annotation(ACCOUNT_UID).unwrap_or_default();
        match view.get::<ServiceAccount>(&key.namespace, name) {
            Some(account) if account.is_deleting() => Plan::none(),
            Some(account) if uid.is_empty() || uid == account.uid() => {
                let filled = self.filled(secret, account);
                filled.map_or_else(Plan::none, |filled| Plan::none().update(secret.as_ref(), &filled))
            }
            _ => {
                let account = Key::new(&*key.namespace, name);
                Plan::none().confirm_absent(&ServiceAccount::resource(), account, uid).delete(secret.as_ref())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Write;
    use carrack_engine::testing::Caches;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{of, words};

    /// What is planned for a Secret with these annotations and this data, beside an account `sa` of UID `1`, if that is there.
    fn plan(there: bool, uid: Value, data: Value) -> Plan {
        let secret = json!({"metadata": {"namespace": "ns", "name": "s", "uid": "s", "resourceVersion": "3",
            "annotations": {ACCOUNT_NAME: "sa", ACCOUNT_UID: uid}}, "type": TYPE, "data": data});
        let mut secret = secret;
        if secret["metadata"]["annotations"][ACCOUNT_UID].is_null() {
            secret["metadata"]["annotations"] = json!({ACCOUNT_NAME: "sa"});
        }
        let account = json!({"metadata": {"namespace": "ns", "name": "sa", "uid": "1"}});
        let caches = Caches::new()
            .with_source::<Secret>(source(), [of(secret)])
            .with::<ServiceAccount>(there.then(|| of(account)));
        AccountSecrets::new("CA").reconcile(&Key::new("ns", "s"), &caches.view(), Time::default())
    }

    #[test]
    fn secrets_are_filled_and_go_with_their_account() {
        // "CA", "ns" and "token" in base64.
        let whole = json!({"ca.crt": "Q0E=", "namespace": "bnM=", "token": "dG9rZW4="});
        assert_eq!(words(&plan(true, "1".into(), whole.clone())), [""; 0]);
        let mut stale = whole.clone();
        stale["ca.crt"] = "b2xk".into();
        let lacking = [json!({}), json!({"ca.crt": "Q0E=", "namespace": "bnM="}), stale];
        for data in lacking {
            let plan = plan(true, Value::Null, data.clone());
            let [Write::Update { object, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
            assert_eq!(object["metadata"]["annotations"][ACCOUNT_UID], "1");
            assert_eq!(
                (&object["data"]["ca.crt"], &object["data"]["namespace"]),
                (&whole["ca.crt"], &whole["namespace"])
            );
            assert_eq!(object["data"]["token"], data["token"], "the token is the API server's to make");
            assert_eq!(object["metadata"]["resourceVersion"], "3", "it rests on what was read");
        }
        // One of another account of that name, or of none, goes, once that is confirmed.
        let gone = ["confirm absent ns/sa", "delete ns/s"];
        assert_eq!(words(&plan(true, "2".into(), whole.clone())), gone);
        assert_eq!(words(&plan(false, "1".into(), whole)), gone);
        assert_eq!(words(&plan(false, Value::Null, json!({}))), gone);
    }
}
