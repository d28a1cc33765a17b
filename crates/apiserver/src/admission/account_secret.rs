//! AccountSecrets: a Secret that asks for a service account's token gets one, in the write that names the account's UID.
//!
//! Upstream's controller manager signs these tokens itself, with the API server's key. Here only the API server has that key:
//! the controller checks that the account is there and writes everything else, and the token comes along. It is valid as long
//! as the Secret and the account are there. A creation brings none, as upstream: who may create Secrets need not be allowed
//! to read them.

use std::sync::Arc;

use base64::Engine as _;
use carrack_auth::token::{Issuer, Reference, TokenSpec};
use carrack_types::well_known::account_token::{ACCOUNT_NAME, ACCOUNT_UID, TYPE};
use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{Object, at, child_mut, is_deleting, meta_str, str_at};
use crate::status::Status;

/// Without an issuer it does nothing.
pub(super) struct AccountSecrets(pub Option<Arc<Issuer>>);

fn annotation<'a>(object: &'a Object, key: &str) -> &'a str {
    str_at(object, &["metadata", "annotations", key])
}

fn concerns(attributes: &Attributes<'_>) -> bool {
    attributes.is("", "secrets")
        && attributes.operation == Operation::Update
        && !attributes.dry_run
        && str_at(&attributes.object, &["type"]) == TYPE
        && str_at(&attributes.object, &["data", "token"]).is_empty()
        && !annotation(&attributes.object, ACCOUNT_UID).is_empty()
        // What may not change is refused for what it asks for, not for what it would be given.
        && at(&attributes.object, &["immutable"]).and_then(Value::as_bool) != Some(true)
        && attributes.old.is_some_and(|old| !is_deleting(old))
}

impl AdmissionPlugin for AccountSecrets {
    fn name(&self) -> &'static str {
        "AccountSecrets"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if self.0.is_none() || !concerns(attributes) {
            return Vec::new();
        }
        let account = annotation(&attributes.object, ACCOUNT_NAME);
        vec![Needed::one("", "serviceaccounts", attributes.namespace, account)]
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let Some(issuer) = &self.0 else { return Ok(()) };
        if !concerns(attributes) {
            return Ok(());
        }
        let name = annotation(&attributes.object, ACCOUNT_NAME);
        let Some(account) = lookup.get("", "serviceaccounts", attributes.namespace, name) else { return Ok(()) };
        let uid = meta_str(account, "uid");
        if annotation(&attributes.object, ACCOUNT_UID) != uid {
            return Ok(());
        }
        let spec = TokenSpec {
            namespace: attributes.namespace.to_owned(),
            account: Reference { name: name.to_owned(), uid: uid.to_owned() },
            ..TokenSpec::default()
        };
        let token = issuer.issue_held(&spec, &attributes.name).map_err(Status::internal)?;
        let token = base64::engine::general_purpose::STANDARD.encode(token.expose());
        child_mut(&mut attributes.object, "data").insert("token".to_owned(), token.into());
        Ok(())
    }
}
