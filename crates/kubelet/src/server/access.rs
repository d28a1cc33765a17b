//! Who may use the kubelet: the API server under its client identity, and `system:masters`.
//!
//! As upstream with anonymous requests switched off, nobody else may do anything, not even ask for
//! health. Upstream asks the API server about others; whoever needs more goes through the API
//! server's `nodes/proxy`, which does the asking.

use carrack_auth::Caller;
use carrack_auth::caller::GROUP_MASTERS;
use http::{Method, StatusCode};

use super::reply::Refusal;
use super::route::bucket;

/// What a connection may do, by its client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everything.
    Granted,
    /// Nothing: this user is not one of those who may.
    Denied(String),
    /// Nothing: there is no certificate, or it names nobody.
    Unknown,
}

impl Access {
    /// Decides by the caller that the certificate names.
    pub(super) fn of(caller: Option<&Caller>, allowed_users: &[String]) -> Self {
        match caller {
            None => Self::Unknown,
            Some(caller) if caller.in_group(GROUP_MASTERS) || allowed_users.contains(&caller.user) => Self::Granted,
            Some(caller) => Self::Denied(caller.user.clone()),
        }
    }

    /// Checks a request, in upstream's words.
    pub(super) fn check(&self, method: &Method, path: &str) -> Result<(), Refusal> {
        match self {
            Self::Granted => Ok(()),
            Self::Unknown => Err(Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized")),
            Self::Denied(user) => {
                let verb = match *method {
                    Method::POST => "create",
                    Method::PUT => "update",
                    Method::PATCH => "patch",
                    Method::DELETE => "delete",
                    _ => "get",
                };
                let subresource = match bucket(path) {
                    name @ ("stats" | "healthz" | "configz" | "pods") => name,
                    "metrics" | "metrics/resource" => "metrics",
                    "runningpods" => "pods",
                    _ => "proxy",
                };
                Err(Refusal::new(
                    StatusCode::FORBIDDEN,
                    format!("Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{subresource}])\n"),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carrack_auth::pki::Identity;

    #[test]
    fn only_the_api_server_and_masters() {
        let allowed = [Identity::ApiserverKubeletClient.user()];
        for (caller, expected) in [
            (None, Err(401)),
            (Some(Caller::new(Identity::ApiserverKubeletClient.user(), [""; 0])), Ok(())),
            (Some(Caller::new("anyone", [GROUP_MASTERS])), Ok(())),
            (Some(Caller::node("n1")), Err(403)),
            (Some(Caller::new("system:masters", ["system:nodes"])), Err(403)),
            (Some(Caller::anonymous()), Err(403)),
        ] {
            let access = Access::of(caller.as_ref(), &allowed);
            let found = access.check(&Method::GET, "/healthz").map_err(|refusal| refusal.code.as_u16());
            assert_eq!(found, expected, "{caller:?}");
        }
    }

    #[test]
    fn a_refusal_names_what_was_asked() {
        let refusal = Access::Denied("bob".into()).check(&Method::POST, "/exec/ns/p/c").expect_err("refused");
        assert_eq!(refusal.text, "Forbidden (user=bob, verb=create, resource=nodes, subresource(s)=[proxy])\n");
    }
}
