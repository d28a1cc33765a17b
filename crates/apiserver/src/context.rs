//! One request for a resource: what every handler of the registry needs to know.

use std::sync::{Arc, Mutex, PoisonError};

use carrack_auth::{Attributes, Caller, authn};
use carrack_schema::table::{ResourceInfo, Version};
use carrack_store::{Check, Entry, Revision};
use http::HeaderMap;
use jiff::Timestamp;

use crate::accept::{self, Form};
use crate::audit::Notes;
use crate::catalog::{CRD_GROUP, CRDS};
use crate::keys;
use crate::kinds;
use crate::object::Object;
use crate::present::Presenter;
use crate::query::Query;
use crate::registry::options;
use crate::route::ResourceRequest;
use crate::server::Inner;
use crate::status::Status;

/// How strictly fields that are unknown or given twice are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// A request whose resource is known and that may be made.
pub(crate) struct Cx<'a> {
    pub server: &'a Inner,
    pub caller: &'a Caller,
    /// Who makes it in the caller's name, if that is let for some requests only, and the verb that lets it.
    pub limited: Option<(&'a Caller, &'static str)>,
    pub request: &'a ResourceRequest,
    /// The API verb by which it was authorized.
    pub verb: &'static str,
    pub query: &'a Query,
    pub headers: &'a HeaderMap,
    pub row: Arc<ResourceInfo>,
    pub version_index: usize,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
    /// More of them, by those who see the request only.
    pub notes: Mutex<Vec<String>>,
    /// What the audit log is to say of the request beside who made it.
    pub audited: &'a Notes,
}

impl Cx<'_> {
    /// Adds a text for a `Warning` header; a decision that is made again says it once.
    pub(crate) fn note(&self, text: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Webhooks were waited for since then.
    pub(crate) fn waited(&self, since: Timestamp) {
        self.audited.waited(self.server.env.now().duration_since(since));
    }

    /// Whether anybody reads what [`Self::annotate`] is told.
    pub(crate) fn is_audited(&self) -> bool {
        self.audited.is_noted()
    }

    /// Adds an annotation to the request's audit event, if it has none of that name.
    pub(crate) fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        self.audited.annotate(key.into(), value);
    }

    pub(crate) fn version(&self) -> &Version {
        &self.row.versions[self.version_index]
    }

    /// `apiVersion` of objects in the request's version.
    pub(crate) fn api_version(&self) -> String {
        self.row.api_version(&self.version().name)
    }

    /// The namespace that objects of the request are in; none for cluster-scoped resources and for
    /// requests across namespaces.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.request.namespace.as_deref().filter(|_| self.row.namespaced)
    }

    pub(crate) fn name(&self) -> &str {
        self.request.name.as_deref().unwrap_or_default()
    }

    /// Storage key of the request's object.
    pub(crate) fn key(&self) -> Arc<str> {
        keys::key(&self.row, self.namespace(), self.name()).into()
    }

    /// An entry as if it had been stored in the request's version, as it is defined now.
    pub(crate) async fn converted(&self, entry: Arc<Entry>) -> Result<Arc<Entry>, Status> {
        if !self.row.is_custom {
            return Ok(entry);
        }
        self.server.converter(&self.row).entry(entry, self.version_index).await
    }

    /// What a write of a custom resource rests on beside its own object: the definition by which the request was read. What is
    /// written while that changes would be stored as the one before had it, and be taken for complete.
    pub(crate) fn definition(&self) -> Option<Check> {
        self.row.is_custom.then(|| Check::Unchanged(definition_key(&self.row), Revision(self.row.defined_at)))
    }

    /// Looks again how a custom resource is defined, for a write that did not come about.
    ///
    /// # Errors
    /// 404 when it is not served any more; a store that cannot be read.
    pub(crate) async fn renew(&mut self) -> Result<(), Status> {
        if !self.row.is_custom {
            return Ok(());
        }
        let catalog = self.server.catalog().await?;
        let row = catalog.find(&self.row.group, &self.row.plural).ok_or_else(Status::no_such_path)?;
        let is_asked_for = |version: &Version| version.served && version.name == self.version().name;
        self.version_index = row.versions.iter().position(is_asked_for).ok_or_else(Status::no_such_path)?;
        self.row = Arc::clone(row);
        Ok(())
    }

    /// Drops of what was read before [`Self::renew`] what a custom resource has not any more.
    pub(crate) fn fit(&self, object: &mut Object) -> Result<(), Status> {
        if self.row.is_custom {
            kinds::conform(&self.row, self.version(), object).map_err(Status::internal)?;
        }
        Ok(())
    }

    /// Whether the caller may do this, too, with the request's object or a subresource of it; and who makes the request in his
    /// name, where that is for some requests only. Upstream asks for the caller alone.
    pub(crate) async fn may(&self, verb: &'static str, subresource: &str) -> Result<(), Status> {
        let attributes = Attributes {
            verb,
            group: &self.request.group,
            version: &self.request.version,
            resource: &self.request.resource,
            subresource,
            name: self.name(),
            namespace: self.request.namespace.as_deref().unwrap_or_default(),
            path: "",
            field_selector: "",
        };
        self.is_allowed(self.caller, &attributes).await?;
        let Some((real, constraint)) = self.limited else { return Ok(()) };
        let verb = authn::verb_on(constraint, verb);
        self.is_allowed(real, &Attributes { verb: &verb, ..attributes }).await
    }

    async fn is_allowed(&self, caller: &Caller, attributes: &Attributes<'_>) -> Result<(), Status> {
        let decision = self.server.with_authorizer(|authorizer| authorizer.authorize(caller, attributes)).await?;
        if decision.allowed() {
            return Ok(());
        }
        let mut status = self.forbidden(self.name(), "");
        status.message = attributes.forbidden_message(caller, decision.reason());
        Err(status)
    }

    pub(crate) fn presenter(&self) -> Result<Presenter, Status> {
        self.presenter_of(accept::form(self.headers)?)
    }

    /// Shows objects in this form.
    pub(crate) fn presenter_of(&self, form: Form) -> Result<Presenter, Status> {
        Presenter::new(Arc::clone(&self.row), self.version_index, form, self.query, Arc::clone(&self.server.env))
    }

    /// Reads `dryRun`: `All` or nothing. Of all writes but deletions, it has been looked at before.
    pub(crate) fn dry_run(&self) -> Result<bool, Status> {
        let values: Vec<&str> = self.query.all("dryRun").collect();
        match options::dry_run(&values) {
            Some(fault) => Err(options::invalid("DeleteOptions", &[fault])),
            None => Ok(!values.is_empty()),
        }
    }

    pub(crate) fn field_validation(&self) -> Result<FieldValidation, Status> {
        match self.query.get("fieldValidation").unwrap_or_default() {
            "Ignore" => Ok(FieldValidation::Ignore),
            "" | "Warn" => Ok(FieldValidation::Warn),
            "Strict" => Ok(FieldValidation::Strict),
            other => Err(Status::bad_request(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }

    pub(crate) fn not_found(&self, name: &str) -> Status {
        Status::not_found(&self.row.group, &self.row.plural, name)
    }

    pub(crate) fn modified(&self, name: &str) -> Status {
        Status::modified(&self.row.group, &self.row.plural, name)
    }

    pub(crate) fn conflict(&self, name: &str, why: &str) -> Status {
        Status::conflict(&self.row.group, &self.row.plural, name, why)
    }

    pub(crate) fn forbidden(&self, name: &str, why: &str) -> Status {
        Status::forbidden(&self.row.group, &self.row.plural, name, why)
    }
}

/// Where the definition of a custom resource is stored.
pub(crate) fn definition_key(row: &ResourceInfo) -> Arc<str> {
    (keys::of(CRD_GROUP, CRDS, None) + &row.group_resource()).into()
}
