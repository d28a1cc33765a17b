//! Bootstrap tokens: `<id>.<secret>`, kept in secrets of `kube-system`, by which new nodes introduce
//! themselves.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/>

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::caller::{Caller, GROUP_AUTHENTICATED};
use crate::secret::Secret;

/// Where the secrets are.
pub const NAMESPACE: &str = "kube-system";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
const USER_PREFIX: &str = "system:bootstrap:";
const GROUP: &str = "system:bootstrappers";

/// A token of this form that somebody presents.
#[derive(Clone, Debug)]
pub struct BootstrapToken {
    id: String,
    secret: Secret,
}

#[derive(Deserialize)]
struct Stored {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    data: std::collections::BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(rename = "deletionTimestamp")]
    deletion_timestamp: Option<String>,
}

impl BootstrapToken {
    /// Reads a bearer token; none when it has another form.
    #[must_use]
    pub fn parse(token: &Secret) -> Option<BootstrapToken> {
        let (id, secret) = token.expose().split_once('.')?;
        let good = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        (good(id, 6) && good(secret, 16)).then(|| BootstrapToken { id: id.to_owned(), secret: Secret::new(secret) })
    }

    /// The name of the secret that tells whether it is good.
    #[must_use]
    pub fn secret_name(&self) -> String {
        format!("bootstrap-token-{}", self.id)
    }

    /// Whose token it is, by its secret as stored.
    ///
    /// # Errors
    /// Why it is not accepted; for the log.
    pub fn caller(&self, secret: &[u8], now_unix_s: i64) -> Result<Caller, &'static str> {
        let stored: Stored = serde_json::from_slice(secret).map_err(|_| "the secret cannot be read")?;
        let field = |name: &str| {
            let text = stored.data.get(name)?;
            String::from_utf8(STANDARD.decode(text).ok()?).ok()
        };
        if stored.kind != SECRET_TYPE || stored.metadata.deletion_timestamp.is_some() {
            return Err("the secret is no bootstrap token");
        }
        let known = field("token-secret").map(Secret::new);
        if field("token-id").as_deref() != Some(&self.id) || known.as_ref() != Some(&self.secret) {
            return Err("the token does not match");
        }
        if let Some(text) = field("expiration") {
            let expires: k8s_openapi::jiff::Timestamp = text.parse().map_err(|_| "the expiration is no time")?;
            if expires.as_second() <= now_unix_s {
                return Err("the token has expired");
            }
        }
        if field("usage-bootstrap-authentication").as_deref() != Some("true") {
            return Err("the token is not for authentication");
        }
        let mut groups = vec![GROUP.to_owned()];
        for group in field("auth-extra-groups").unwrap_or_default().split(',').filter(|group| !group.is_empty()) {
            // Nobody becomes an administrator this way.
            if !group.starts_with("system:bootstrappers:") {
                return Err("a group of the token is not one of bootstrappers");
            }
            groups.push(group.to_owned());
        }
        let mut caller = Caller { user: format!("{USER_PREFIX}{}", self.id), groups, ..Caller::default() };
        caller.add_group(GROUP_AUTHENTICATED);
        Ok(caller)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn tokens_are_checked() {
        let token = |text: &str| BootstrapToken::parse(&Secret::new(text));
        for bad in ["abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "a.b.c", ""] {
            assert!(token(bad).is_none(), "{bad}");
        }
        let good = token("abcdef.0123456789abcdef").expect("a token");
        assert_eq!(good.secret_name(), "bootstrap-token-abcdef");
        let base = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
            ("expiration", "2027-01-15T08:00:01Z"),
            ("auth-extra-groups", "system:bootstrappers:kubeadm:default-node-token"),
        ];
        for (change, want) in [
            (
                ("", ""),
                Ok(vec![
                    "system:bootstrappers",
                    "system:bootstrappers:kubeadm:default-node-token",
                    "system:authenticated",
                ]),
            ),
            (("token-secret", "x"), Err("the token does not match")),
            (("expiration", "2027-01-15T08:00:00Z"), Err("the token has expired")),
            (("usage-bootstrap-authentication", "false"), Err("the token is not for authentication")),
            (("auth-extra-groups", "system:masters"), Err("a group of the token is not one of bootstrappers")),
        ] {
            let data: serde_json::Map<String, Value> = base
                .iter()
                .map(|(key, value)| (key, if *key == change.0 { change.1 } else { value }))
                .map(|(key, value)| ((*key).to_owned(), json!(STANDARD.encode(value))))
                .collect();
            let secret = json!({"type": SECRET_TYPE, "data": data});
            let got = good.caller(secret.to_string().as_bytes(), 1_800_000_000).map(|caller| caller.groups);
            assert_eq!(got, want.map(|groups| groups.into_iter().map(str::to_owned).collect()), "{change:?}");
        }
    }
}
