//! Writes that take more than the right to make them: nobody grants what they do not hold, and who
//! approves, signs or attests for a signer, or gives devices to claims, needs a right of that name.
//!
//! Upstream: RBAC's escalation checks, and the admission plugins CertificateApproval,
//! CertificateSigning and ClusterTrustBundleAttest; `pkg/registry/certificates/podcertificaterequest`.

mod claims;

use carrack_auth::rbac::{self, escalation::EscalationError};
use carrack_auth::{Attributes, Caller};
use carrack_schema::error::FieldError;

use crate::context::Cx;
use crate::object::{Object, at, str_at};
use crate::server::Inner;
use crate::status::Status;

const CERTIFICATES: &str = "certificates.k8s.io";

impl Inner {
    /// Checks an object that is about to be written.
    pub(crate) async fn check_privileges(&self, cx: &Cx<'_>, new: &Object, old: Option<&Object>) -> Result<(), Status> {
        match &*cx.row.group {
            rbac::GROUP => self.check_escalation(cx, new, old).await,
            CERTIFICATES => self.check_signer(cx, new, old).await,
            claims::GROUP => claims::check(self, cx, new, old).await,
            _ => Ok(()),
        }
    }

    async fn check_escalation(&self, cx: &Cx<'_>, new: &Object, old: Option<&Object>) -> Result<(), Status> {
        let Some(kind) = rbac::Kind::of_resource(&cx.row.plural) else { return Ok(()) };
        let namespace = cx.namespace().unwrap_or_default();
        let name = crate::object::name(new).to_owned();
        let read = |object: &Object| {
            let json = serde_json::to_vec(object).unwrap_or_default();
            rbac::Object::parse(kind, namespace, &json).map_err(|error| Status::bad_request(error.to_string()))
        };
        let new = read(new)?;
        let old = old.map(read).transpose()?;
        let key = rbac::Key::new(kind, namespace, &name);
        // It is compared when nobody waits for the authorizer any more.
        let claim =
            self.with_authorizer(|authorizer| authorizer.rbac.escalation(cx.caller, &key, &new, old.as_ref())).await?;
        let checked = claim.and_then(|claim| claim.map_or(Ok(()), |claim| claim.check()));
        checked.map_err(|error| match error {
            EscalationError::Forbidden(why) => cx.forbidden(&name, &why),
            EscalationError::RoleNotFound { kind, name } => Status::not_found(rbac::GROUP, kind.resource(), &name),
        })
    }

    async fn check_signer(&self, cx: &Cx<'_>, new: &Object, old: Option<&Object>) -> Result<(), Status> {
        let signer = str_at(new, &["spec", "signerName"]);
        let changed = |path: &[&str]| old.is_none_or(|old| at(old, path) != at(new, path));
        let (verb, what) = match (&*cx.row.plural, cx.request.subresource.as_deref().unwrap_or_default()) {
            ("certificatesigningrequests", "approval") => {
                ("approve", "user not permitted to approve requests with signerName")
            }
            ("certificatesigningrequests", "status")
                if changed(&["status", "certificate"]) || changed(&["status", "conditions"]) =>
            {
                ("sign", "user not permitted to sign requests with signerName")
            }
            // Also who denies a request, or says that it failed, speaks for its signer.
            ("podcertificaterequests", "status") if changed(&["status"]) => {
                if self.may_for_signer(cx.caller, "sign", signer).await? {
                    return Ok(());
                }
                let why = format!("User {:?} is not permitted to \"sign\" for signer {signer:?}", cx.caller.user);
                let fault = FieldError::forbidden("spec.signerName", why);
                return Err(Status::faulty(CERTIFICATES, &cx.row.kind, cx.name(), &[fault]));
            }
            ("clustertrustbundles", "") if !signer.is_empty() && changed(&["spec"]) => {
                ("attest", "user not permitted to attest for signerName")
            }
            _ => return Ok(()),
        };
        if self.may_for_signer(cx.caller, verb, signer).await? {
            return Ok(());
        }
        Err(cx.forbidden(cx.name(), &format!("{what} {signer:?}")))
    }

    /// Whether a caller has a right on a signer, by its name or by all of its domain.
    async fn may_for_signer(&self, caller: &Caller, verb: &'static str, signer: &str) -> Result<bool, Status> {
        let domain = signer.split('/').next().unwrap_or_default();
        for name in [signer, &format!("{domain}/*")] {
            if self.may(caller, verb, CERTIFICATES, "signers", "", name).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a caller may do this with a cluster-scoped resource.
    pub(crate) async fn may(
        &self,
        caller: &Caller,
        verb: &'static str,
        group: &str,
        resource: &str,
        subresource: &str,
        name: &str,
    ) -> Result<bool, Status> {
        let attributes = Attributes {
            verb,
            group,
            version: "*",
            resource,
            subresource,
            name,
            namespace: "",
            path: "",
            field_selector: "",
        };
        self.with_authorizer(|authorizer| authorizer.authorize(caller, &attributes).allowed()).await
    }
}
