//! What a user of a kubeconfig shows so that it is known who asks.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};

use super::model::AuthInfo;
use super::{KubeconfigError, Token, acts_as, read_bounded};
use crate::pki::KeyPairPem;
use crate::secret::Secret;

/// What is shown to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The client certificate.
    pub client: Option<KeyPairPem>,
    /// The bearer token.
    pub token: Option<Token>,
    /// Name and password.
    pub basic: Option<(String, Secret)>,
    /// The headers that say as whom requests are made, if not as the one who is shown.
    pub acts_as: Vec<(HeaderName, HeaderValue)>,
}

impl Credentials {
    /// The header `Authorization` of a request: a token goes before a password.
    ///
    /// # Errors
    /// When the token's file cannot be read.
    pub fn authorization(&self) -> Result<Option<Secret>, KubeconfigError> {
        if let Some(token) = &self.token {
            return Ok(Some(Secret::new(format!("Bearer {}", token.read()?.expose()))));
        }
        let basic =
            self.basic.as_ref().map(|(name, password)| STANDARD.encode(format!("{name}:{}", password.expose())));
        Ok(basic.map(|both| Secret::new(format!("Basic {both}"))))
    }
}

impl AuthInfo {
    /// What this user of a kubeconfig shows; `name` is the user's there. The files of its certificate are read now, that of its
    /// token each time.
    ///
    /// # Errors
    /// When a file cannot be read, a field makes no sense, or it is a way of authentication that is not supported.
    pub fn credentials(&self, name: &str) -> Result<Credentials, KubeconfigError> {
        let unsupported =
            [(self.exec.is_some(), "a credential plugin (exec)"), (self.auth_provider.is_some(), "an auth-provider")];
        if let Some((_, what)) = unsupported.into_iter().find(|(used, _)| *used) {
            return Err(KubeconfigError::Unsupported { user: name.to_owned(), what });
        }
        let acts_as = acts_as::headers(self, name)?;
        let certificate = pem(
            self.client_certificate_data.as_deref(),
            self.client_certificate.as_deref(),
            "client-certificate-data",
        )?;
        let key =
            pem(self.client_key_data.as_ref().map(Secret::expose), self.client_key.as_deref(), "client-key-data")?;
        let client = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(KeyPairPem { certificate, key: Secret::new(key) }),
            (None, None) => None,
            (Some(_), None) => return Err(KubeconfigError::MissingField("client-key")),
            (None, Some(_)) => return Err(KubeconfigError::MissingField("client-certificate")),
        };
        let token = match (&self.token_file, &self.token) {
            (Some(file), _) if !file.is_empty() => Some(Token::File(PathBuf::from(file))),
            (_, Some(token)) if !token.is_empty() => Some(Token::Inline(token.clone())),
            _ => None,
        };
        let name = self.username.clone().filter(|name| !name.is_empty());
        let basic = name.map(|name| (name, self.password.clone().unwrap_or_default()));
        Ok(Credentials { client, token, basic, acts_as })
    }
}

/// PEM text from a `-data` field or the file beside it; the field goes first, as in client-go.
pub(super) fn pem(
    data: Option<&str>,
    path: Option<&str>,
    field: &'static str,
) -> Result<Option<String>, KubeconfigError> {
    if let Some(data) = data.filter(|d| !d.is_empty()) {
        let text: String = data.chars().filter(|c| !c.is_whitespace()).collect();
        let bytes = STANDARD.decode(text).map_err(|_| KubeconfigError::Data(field))?;
        return String::from_utf8(bytes).map(Some).map_err(|_| KubeconfigError::Data(field));
    }
    path.filter(|p| !p.is_empty()).map(|p| read_bounded(Path::new(p))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        std::fs::write(&file, "t1\n").expect("written");
        let token = Some(Secret::new("t0"));
        let basic = |name: &str| AuthInfo {
            username: Some(name.to_owned()),
            password: Some(Secret::new("p")),
            ..AuthInfo::default()
        };
        let file = Some(file.to_string_lossy().into_owned());
        for (user, want) in [
            (AuthInfo::default(), None),
            (basic(""), None),
            (basic("u"), Some("Basic dTpw")),
            (AuthInfo { token: token.clone(), ..basic("u") }, Some("Bearer t0")),
            (AuthInfo { token, token_file: file, ..AuthInfo::default() }, Some("Bearer t1")),
        ] {
            let shown = user.credentials("u").and_then(|credentials| credentials.authorization()).expect("read");
            assert_eq!(shown.as_ref().map(Secret::expose), want);
        }
    }
}
