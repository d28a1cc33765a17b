//! The file format (`v1 Config` of client-go), as far as it is used here.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::{KubeconfigError, Target, io, read_bounded};
use crate::pki::KeyPairPem;
use crate::secret::Secret;

/// A kubeconfig. Fields that are not known are ignored when it is read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Kubeconfig {
    /// `v1`.
    #[serde(rename = "apiVersion")]
    pub api_version: String,
    /// `Config`.
    pub kind: String,
    /// Clusters.
    #[serde(deserialize_with = "list")]
    pub clusters: Vec<NamedCluster>,
    /// Users.
    #[serde(deserialize_with = "list")]
    pub users: Vec<NamedAuthInfo>,
    /// Contexts: a cluster and a user each.
    #[serde(deserialize_with = "list")]
    pub contexts: Vec<NamedContext>,
    /// The context that is used when none is named.
    pub current_context: String,
}

/// A list that may be written as `null`.
fn list<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(d)?.unwrap_or_default())
}

/// A cluster under its name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NamedCluster {
    /// The name.
    pub name: String,
    /// The cluster.
    #[serde(default)]
    pub cluster: Cluster,
}

/// A user under its name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NamedAuthInfo {
    /// The name.
    pub name: String,
    /// The user's credentials.
    #[serde(default)]
    pub user: AuthInfo,
}

/// A context under its name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NamedContext {
    /// The name.
    pub name: String,
    /// The context.
    #[serde(default)]
    pub context: Context,
}

/// How a cluster is reached.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Cluster {
    /// `https://host:port`
    pub server: String,
    /// Path of the authorities that sign the server's certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority: Option<String>,
    /// The same as base64 of PEM; goes before the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data: Option<String>,
    /// Trust any server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure_skip_tls_verify: Option<bool>,
    /// The name that the server's certificate must have, where it is not the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
}

/// How a user authenticates.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct AuthInfo {
    /// Path of the client certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<String>,
    /// The same as base64 of PEM; goes before the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_data: Option<String>,
    /// Path of the client certificate's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    /// The same as base64 of PEM; goes before the path.
    #[serde(skip_serializing_if = "Option::is_none", with = "secret")]
    pub client_key_data: Option<Secret>,
    /// A bearer token.
    #[serde(skip_serializing_if = "Option::is_none", with = "secret")]
    pub token: Option<Secret>,
    /// Path of a file with a bearer token, read again as it changes; goes before `token`.
    #[serde(rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    /// The name of basic authentication, which is good for webhooks alone.
    #[serde(skip_serializing)]
    pub username: Option<String>,
    /// Its password.
    #[serde(skip_serializing, deserialize_with = "secret::deserialize")]
    pub password: Option<Secret>,
    /// As whom requests are made, if not as this user, which is good for webhooks alone.
    #[serde(rename = "as", skip_serializing)]
    pub act_as: Option<String>,
    /// The identity of the one as whom they are made.
    #[serde(skip_serializing)]
    pub as_uid: Option<String>,
    /// The groups.
    #[serde(skip_serializing)]
    pub as_groups: Option<Vec<String>>,
    /// What else is said of him.
    #[serde(skip_serializing)]
    pub as_user_extra: Option<BTreeMap<String, Option<Vec<String>>>>,
    /// A credential plugin (not supported).
    #[serde(skip_serializing)]
    pub exec: Option<serde::de::IgnoredAny>,
    /// An authentication provider (not supported).
    #[serde(skip_serializing)]
    pub auth_provider: Option<serde::de::IgnoredAny>,
}

/// A cluster, a user, and a namespace to begin with.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// The cluster's name.
    pub cluster: String,
    /// The user's name.
    pub user: String,
    /// The namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Secrets are written out only into the file that they are for.
mod secret {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::secret::Secret;

    pub(super) fn serialize<S: Serializer>(secret: &Option<Secret>, serializer: S) -> Result<S::Ok, S::Error> {
        secret.as_ref().map(Secret::expose).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Secret::new))
    }
}

impl Kubeconfig {
    /// For a user with a client certificate, everything in the file itself.
    #[must_use]
    pub fn for_certificate(cluster: &str, user: &str, server: &str, ca_pem: &str, pair: &KeyPairPem) -> Self {
        let auth = AuthInfo {
            client_certificate_data: Some(STANDARD.encode(&pair.certificate)),
            client_key_data: Some(Secret::new(STANDARD.encode(pair.key.expose()))),
            ..AuthInfo::default()
        };
        Self::single(cluster, user, server, ca_pem, auth)
    }

    /// For a user with a bearer token.
    #[must_use]
    pub fn for_token(cluster: &str, user: &str, server: &str, ca_pem: &str, token: &Secret) -> Self {
        let auth = AuthInfo { token: Some(token.clone()), ..AuthInfo::default() };
        Self::single(cluster, user, server, ca_pem, auth)
    }

    /// For a user whose certificate and key are in one file, which is exchanged from time to time: what a kubelet
    /// writes once it has joined.
    #[must_use]
    pub fn for_certificate_file(cluster: &str, user: &str, target: &Target, pair: &Path) -> Self {
        let pair = Some(pair.to_string_lossy().into_owned());
        let auth = AuthInfo { client_certificate: pair.clone(), client_key: pair, ..AuthInfo::default() };
        let mut config =
            Self::single(cluster, user, &target.server, target.ca_pem.as_deref().unwrap_or_default(), auth);
        for NamedCluster { cluster, .. } in &mut config.clusters {
            cluster.certificate_authority_data = cluster.certificate_authority_data.take().filter(|_| !target.insecure);
            cluster.insecure_skip_tls_verify = target.insecure.then_some(true);
            cluster.tls_server_name.clone_from(&target.tls_server_name);
        }
        config
    }

    fn single(cluster: &str, user: &str, server: &str, ca_pem: &str, auth: AuthInfo) -> Self {
        Self {
            api_version: "v1".into(),
            kind: "Config".into(),
            clusters: vec![NamedCluster {
                name: cluster.into(),
                cluster: Cluster {
                    server: server.into(),
                    certificate_authority_data: Some(STANDARD.encode(ca_pem)),
                    ..Cluster::default()
                },
            }],
            users: vec![NamedAuthInfo { name: user.into(), user: auth }],
            contexts: vec![NamedContext {
                name: cluster.into(),
                context: Context { cluster: cluster.into(), user: user.into(), namespace: None },
            }],
            current_context: cluster.into(),
        }
    }

    /// The text of the file. JSON is YAML, so that every reader of kubeconfigs reads it; `kubectl
    /// config` rewrites it as YAML when it changes something.
    #[must_use]
    pub fn to_text(&self) -> String {
        // The types are strings and lists of them: there is nothing that JSON could not say.
        serde_json::to_string_pretty(self).map(|text| text + "\n").unwrap_or_default()
    }

    /// Reads a kubeconfig's text.
    ///
    /// # Errors
    /// [`KubeconfigError::Parse`].
    pub fn parse(text: &str) -> Result<Self, KubeconfigError> {
        serde_saphyr::from_str(text)
            .map_err(|error| KubeconfigError::Parse(error.location().map(|at| (at.line(), at.column()))))
    }

    /// Reads a kubeconfig file. Relative paths in it then count from its directory.
    ///
    /// # Errors
    /// [`KubeconfigError`].
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let mut config = Self::parse(&read_bounded(path)?)?;
        let base = path.parent().unwrap_or(Path::new("."));
        let absolute = |field: &mut Option<String>| {
            if let Some(file) = field.as_mut().filter(|f| !f.is_empty()) {
                *file = base.join(&*file).to_string_lossy().into_owned();
            }
        };
        for cluster in &mut config.clusters {
            absolute(&mut cluster.cluster.certificate_authority);
        }
        for user in &mut config.users {
            absolute(&mut user.user.client_certificate);
            absolute(&mut user.user.client_key);
            absolute(&mut user.user.token_file);
        }
        Ok(config)
    }

    /// Writes the file: private (0600), in full or not at all.
    ///
    /// # Errors
    /// [`KubeconfigError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), KubeconfigError> {
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(io("create directory", parent))?;
        }
        crate::pki::write_private(path, &self.to_text()).map_err(io("write", path))
    }
}
