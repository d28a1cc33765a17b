//! Who may use the kubelet: the API server under its client identity and `system:masters`, and whoever else may by the
//! API server's word, as upstream has it (`pkg/kubelet/server/auth.go`).
//!
//! ```text
//!  client certificate, else bearer token (TokenReview) ─▶ who ─▶ may they, to a subresource of this node? (SubjectAccessReview)
//!       neither, where that is allowed ─▶ the anonymous user ─▶┘
//! ```
//!
//! What runs commands is `create`, by whatever method it is asked for; upstream goes by the method, so that `get nodes/proxy` is enough.
//!
//! Subresources are fine-grained (`nodes/pods`, `nodes/stats`, ...); `nodes/proxy` does for those that had none of their own once.

use carrack_auth::Caller;
use carrack_auth::caller::GROUP_MASTERS;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, StatusCode};

use super::authority::Authority;
use super::reply::Refusal;

/// What a connection may do, by its client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everything.
    Granted,
    /// What may be read at the read-only port, where nobody is asked who he is.
    ReadOnly,
    /// What the API server says of this one.
    Of(Caller),
    /// There is no certificate, or none that counts: a token may.
    Unknown,
}

/// A request in the terms of authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    verb: &'static str,
    /// Subresources of which any one suffices.
    subresources: &'static [&'static str],
}

impl Asked {
    fn of(method: &Method, path: &str) -> Self {
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "get",
        };
        let below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        // Commands are run by GET too, where the connection is a WebSocket: that is more than reading.
        let verb =
            if ["/exec", "/attach", "/portForward", "/run"].iter().any(|root| below(root)) { "create" } else { verb };
        let subresources: &[&str] = match () {
            () if below("/stats") => &["stats"],
            () if below("/metrics") => &["metrics"],
            () if below("/logs") => &["log"],
            () if below("/healthz") => &["healthz", "proxy"],
            () if below("/configz") => &["configz", "proxy"],
            // Newer than those, so that `proxy` never did for them.
            () if below("/statusz") => &["statusz"],
            () if below("/flagz") => &["configz"],
            () if below("/pods") || below("/runningpods") => &["pods", "proxy"],
            () => &["proxy"],
        };
        Self { verb, subresources }
    }

    /// In upstream's words.
    fn refused(&self, what: &str, code: StatusCode, user: &str) -> Refusal {
        let subresources = self.subresources.join(" ");
        let text =
            format!("{what} (user={user}, verb={}, resource=nodes, subresource(s)=[{subresources}])\n", self.verb);
        Refusal::new(code, text)
    }
}

impl Access {
    /// Decides by the caller that the certificate names.
    pub(super) fn of(caller: Option<Caller>, allowed_users: &[String]) -> Self {
        match caller {
            None => Self::Unknown,
            Some(caller) if caller.in_group(GROUP_MASTERS) || allowed_users.contains(&caller.user) => Self::Granted,
            Some(caller) => Self::Of(caller),
        }
    }

    /// Checks a request. Who shows nothing may be the anonymous user.
    pub(super) async fn check(
        &self,
        authority: Option<&dyn Authority>,
        anonymous: bool,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let asked = Asked::of(method, path);
        match self {
            Self::Granted | Self::ReadOnly => Ok(()),
            Self::Of(caller) => may(authority, caller, asked).await,
            Self::Unknown => {
                let caller = match bearer(headers) {
                    Some(token) => owner(authority, token).await,
                    None => anonymous.then(Caller::anonymous),
                };
                match caller {
                    Some(caller) => may(authority, &caller, asked).await,
                    None => Err(Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized")),
                }
            }
        }
    }
}

/// The token that a request comes with.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|t| scheme.eq_ignore_ascii_case("bearer") && !t.is_empty())
}

/// Who has a token.
async fn owner(authority: Option<&dyn Authority>, token: &str) -> Option<Caller> {
    match authority?.identify(token).await {
        Ok(caller) => caller,
        Err(error) => {
            tracing::warn!(%error, "whose a token is could not be asked");
            None
        }
    }
}

/// Whether somebody may, by any of the subresources.
async fn may(authority: Option<&dyn Authority>, caller: &Caller, asked: Asked) -> Result<(), Refusal> {
    let mut unknown = None;
    for subresource in asked.subresources {
        let Some(authority) = authority else { break };
        match authority.may(caller, asked.verb, subresource).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => unknown = Some(error),
        }
    }
    match unknown {
        Some(error) => {
            tracing::warn!(%error, user = caller.user, "whether somebody may use the kubelet could not be asked");
            Err(asked.refused("Authorization error", StatusCode::INTERNAL_SERVER_ERROR, &caller.user))
        }
        None => Err(asked.refused("Forbidden", StatusCode::FORBIDDEN, &caller.user)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use carrack_auth::pki::Identity;

    #[test]
    fn only_the_api_server_and_masters_are_not_asked_about() {
        let allowed = [Identity::ApiserverKubeletClient.user()];
        let node = Caller::node("n1");
        for (caller, expected) in [
            (None, Access::Unknown),
            (Some(Caller::new(Identity::ApiserverKubeletClient.user(), [""; 0])), Access::Granted),
            (Some(Caller::new("anyone", [GROUP_MASTERS])), Access::Granted),
            (Some(node.clone()), Access::Of(node)),
        ] {
            assert_eq!(Access::of(caller.clone(), &allowed), expected, "{caller:?}");
        }
    }

    #[test]
    fn paths_are_subresources() {
        for (method, path, verb, subresources) in [
            (Method::GET, "/pods", "get", &["pods", "proxy"][..]),
            (Method::GET, "/runningpods/", "get", &["pods", "proxy"]),
            (Method::GET, "/podsecurity", "get", &["proxy"]),
            (Method::GET, "/healthz/syncloop", "get", &["healthz", "proxy"]),
            (Method::GET, "/configz", "get", &["configz", "proxy"]),
            (Method::GET, "/statusz", "get", &["statusz"]),
            (Method::GET, "/flagz", "get", &["configz"]),
            (Method::GET, "/stats/summary", "get", &["stats"]),
            (Method::GET, "/metrics", "get", &["metrics"]),
            (Method::GET, "/metrics/probes", "get", &["metrics"]),
            (Method::GET, "/logs/messages", "get", &["log"]),
            (Method::GET, "/logs", "get", &["log"]),
            (Method::GET, "/logsearch", "get", &["proxy"]),
            (Method::GET, "/containerLogs/ns/p/c", "get", &["proxy"]),
            (Method::POST, "/exec/ns/p/c", "create", &["proxy"]),
            (Method::GET, "/exec/ns/p/c", "create", &["proxy"]),
            (Method::GET, "/attach/ns/p/c", "create", &["proxy"]),
            (Method::GET, "/portForward/ns/p", "create", &["proxy"]),
            (Method::GET, "/runningpods", "get", &["pods", "proxy"]),
            (Method::DELETE, "/", "delete", &["proxy"]),
        ] {
            assert_eq!(Asked::of(&method, path), Asked { verb, subresources }, "{method} {path}");
        }
    }

    #[test]
    fn a_refusal_names_what_was_asked() {
        let refusal = Asked::of(&Method::GET, "/pods").refused("Forbidden", StatusCode::FORBIDDEN, "bob");
        assert_eq!(refusal.text, "Forbidden (user=bob, verb=get, resource=nodes, subresource(s)=[pods proxy])\n");
    }
}
