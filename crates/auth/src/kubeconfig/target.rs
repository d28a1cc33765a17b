//! What a client needs to talk to a cluster, taken together from a context.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;

use super::credentials::{Credentials, pem};
use super::model::Kubeconfig;
use super::{KubeconfigError, read_bounded};
use crate::pki::KeyPairPem;
use crate::secret::Secret;
use crate::tls::{self, Reloadable, Trust};

/// A server and how to authenticate to it.
#[derive(Clone, Debug)]
pub struct Target {
    /// `https://host:port`, without a slash at the end.
    pub server: String,
    /// The server's authorities, as PEM; none only where the server is trusted blindly.
    pub ca_pem: Option<String>,
    /// Whether any server is trusted (`insecure-skip-tls-verify`).
    pub insecure: bool,
    /// The name that the server's certificate must have, where it is not the host.
    pub tls_server_name: Option<String>,
    /// The client certificate.
    pub client: Option<KeyPairPem>,
    /// The bearer token.
    pub token: Option<Token>,
    /// The context's namespace.
    pub namespace: String,
}

/// A bearer token, or where to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// The token itself.
    Inline(Secret),
    /// A file, to be read again from time to time: tokens of pods are exchanged in place.
    File(PathBuf),
}

impl Token {
    /// The token as it is now.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self) -> Result<Secret, KubeconfigError> {
        match self {
            Self::Inline(token) => Ok(token.clone()),
            Self::File(path) => Ok(Secret::new(read_bounded(path)?.trim())),
        }
    }
}

impl Kubeconfig {
    /// Follows a context (none: the current one).
    ///
    /// # Errors
    /// When a name is not there, a file cannot be read, or a field makes no sense.
    pub fn resolve(&self, context: Option<&str>) -> Result<Target, KubeconfigError> {
        let name = context.unwrap_or(&self.current_context);
        if name.is_empty() {
            return Err(KubeconfigError::NoContext);
        }
        let missing = |kind: &'static str, name: &str| KubeconfigError::NotFound { kind, name: name.to_owned() };
        let named = self.contexts.iter().find(|c| c.name == name);
        let context = &named.ok_or_else(|| missing("context", name))?.context;
        let cluster = self.clusters.iter().find(|c| c.name == context.cluster);
        let cluster = &cluster.ok_or_else(|| missing("cluster", &context.cluster))?.cluster;
        let user = self.users.iter().find(|u| u.name == context.user);
        let user = &user.ok_or_else(|| missing("user", &context.user))?.user;

        let Credentials { client, token, basic, acts_as } = user.credentials(&context.user)?;
        let unsupported = [(basic.is_some(), "a user name with password"), (!acts_as.is_empty(), "impersonation (as)")];
        if let Some((_, what)) = unsupported.into_iter().find(|(used, _)| *used) {
            return Err(KubeconfigError::Unsupported { user: context.user.clone(), what });
        }
        let host = cluster.server.strip_prefix("https://").unwrap_or_default();
        if host.trim_end_matches('/').is_empty() {
            return Err(KubeconfigError::Server(cluster.server.clone()));
        }
        let insecure = cluster.insecure_skip_tls_verify == Some(true);
        let ca_pem = pem(
            cluster.certificate_authority_data.as_deref(),
            cluster.certificate_authority.as_deref(),
            "certificate-authority-data",
        )?;
        if ca_pem.is_none() && !insecure {
            return Err(KubeconfigError::MissingField("certificate-authority"));
        }
        Ok(Target {
            server: cluster.server.trim_end_matches('/').to_owned(),
            ca_pem,
            insecure,
            tls_server_name: cluster.tls_server_name.clone().filter(|n| !n.is_empty()),
            client,
            token,
            namespace: context.namespace.clone().filter(|n| !n.is_empty()).unwrap_or("default".into()),
        })
    }
}

impl Target {
    /// The TLS of a client to this server.
    ///
    /// # Errors
    /// When a certificate or key cannot be used.
    pub fn client_config(&self) -> Result<ClientConfig, KubeconfigError> {
        let client: Option<Arc<Reloadable>> = self.client.as_ref().map(Reloadable::new).transpose()?;
        let trust = match &self.ca_pem {
            _ if self.insecure => Trust::Anybody,
            Some(pem) => Trust::Authorities(pem),
            None => return Err(KubeconfigError::MissingField("certificate-authority")),
        };
        Ok(tls::client_config(trust, client)?)
    }

    /// The host and port of the server; the port is 443 when none is given.
    ///
    /// # Errors
    /// When the address has no such form.
    pub fn host_port(&self) -> Result<(String, u16), KubeconfigError> {
        let bad = || KubeconfigError::Server(self.server.clone());
        let uri: http::Uri = self.server.parse().map_err(|_| bad())?;
        let host = uri.host().ok_or_else(bad)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok((host.to_owned(), uri.port_u16().unwrap_or(443)))
    }
}
