//! What is kept of pulls: documents of upstream's kinds, which its kubelet reads as well (`pkg/kubelet/apis/config`,
//! `ImagePullIntent` and `ImagePulledRecord` of `kubelet.config.k8s.io`).

use std::collections::BTreeMap;

use carrack_engine::Time;
use carrack_types::volume::digest;
use serde::{Deserialize, Serialize};

/// The version that is written, and those that are read.
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const READ_VERSIONS: [&str; 2] = [API_VERSION, "kubelet.config.k8s.io/v1alpha1"];
const PULLED_KIND: &str = "ImagePulledRecord";
const INTENT_KIND: &str = "ImagePullIntent";

/// Prefix of the names of records of pulled images; upstream's name of the file follows.
pub const PULLED_PREFIX: &str = "pulled-";
/// Prefix of the names of intents to pull; upstream's name of the file follows.
pub const PULLING_PREFIX: &str = "pulling-";

/// Name of the record of an image, by its id.
#[must_use]
pub fn pulled_name(image_ref: &str) -> String {
    format!("{PULLED_PREFIX}sha256-{}", digest(image_ref))
}

/// Name of the intent to pull an image, by what a pod calls it.
#[must_use]
pub fn pulling_name(image: &str) -> String {
    format!("{PULLING_PREFIX}sha256-{}", digest(image))
}

/// A secret that an image was pulled with. What is in it shows in nothing but a hash.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullSecret {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// SHA-256 of the credentials, in hexadecimal digits.
    pub credential_hash: String,
}

impl PullSecret {
    /// Whether both are of one object of the API, whatever was in it.
    #[must_use]
    pub fn is_same_object(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

impl std::fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "secret {}/{} ({})", self.namespace, self.name, self.uid)
    }
}

/// A service account that an image was pulled for. An upstream kubelet notes those; here no credentials come of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Account {
    /// UID.
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// What an image was pulled with under one repository's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Credentials {
    /// Secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<PullSecret>,
    /// Service accounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<Account>,
    /// None were needed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

impl Credentials {
    /// Anybody may have it.
    #[must_use]
    pub fn none_needed() -> Self {
        Self { node_pods_accessible: true, ..Self::default() }
    }

    /// This secret does.
    #[must_use]
    pub fn of(secret: PullSecret) -> Self {
        Self { kubernetes_secrets: vec![secret], ..Self::default() }
    }

    /// Notes these as well; true where that says something new.
    fn add(&mut self, new: &Self) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if new.node_pods_accessible {
            *self = Self::none_needed();
            return true;
        }
        let before = self.kubernetes_secrets.clone();
        for secret in &new.kubernetes_secrets {
            self.kubernetes_secrets.retain(|known| !known.is_same_object(secret));
            self.kubernetes_secrets.push(secret.clone());
        }
        self.kubernetes_secrets.sort();
        self.kubernetes_secrets != before
    }
}

/// What is kept of an image that was pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PulledRecord {
    kind: String,
    api_version: String,
    #[serde(default)]
    last_updated_time: Option<String>,
    /// Id of the image, as the runtime has it.
    pub image_ref: String,
    /// What it was pulled with, by repository.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_mapping: BTreeMap<String, Credentials>,
}

impl PulledRecord {
    /// Of an image of which nobody knows what it was pulled with.
    #[must_use]
    pub fn new(image_ref: &str, now: Time) -> Self {
        Self {
            kind: PULLED_KIND.into(),
            api_version: API_VERSION.into(),
            last_updated_time: Some(now.rfc3339()),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }

    /// Reads the document of a name; none where it is not one, or is another's.
    #[must_use]
    pub fn read(name: &str, bytes: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok()?;
        let is_one = record.kind == PULLED_KIND && READ_VERSIONS.contains(&record.api_version.as_str());
        (is_one && pulled_name(&record.image_ref) == name).then_some(Self { api_version: API_VERSION.into(), ..record })
    }

    /// The document.
    #[must_use]
    pub fn document(&self) -> Vec<u8> {
        // Strings, lists and a flag: this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Notes with what it was pulled from a repository (upstream's `pulledRecordMergeNewCreds`); true where that is new.
    pub fn note(&mut self, now: Time, repository: &str, new: &Credentials) -> bool {
        if *new == Credentials::default() {
            return false;
        }
        let is_new = match self.credential_mapping.get_mut(repository) {
            Some(known) => known.add(new),
            None => {
                self.credential_mapping.insert(repository.to_owned(), new.clone());
                true
            }
        };
        if is_new {
            self.last_updated_time = Some(now.rfc3339());
        }
        is_new
    }
}

/// That an image is about to be pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Intent {
    kind: String,
    api_version: String,
    /// What a pod calls the image.
    pub image: String,
}

impl Intent {
    /// To pull this image.
    #[must_use]
    pub fn new(image: &str) -> Self {
        Self { kind: INTENT_KIND.into(), api_version: API_VERSION.into(), image: image.to_owned() }
    }

    /// Reads the document of a name; none where it is not one, or is another's.
    #[must_use]
    pub fn read(name: &str, bytes: &[u8]) -> Option<Self> {
        let intent: Self = serde_json::from_slice(bytes).ok()?;
        let is_one = intent.kind == INTENT_KIND && READ_VERSIONS.contains(&intent.api_version.as_str());
        (is_one && pulling_name(&intent.image) == name).then_some(intent)
    }

    /// The document.
    #[must_use]
    pub fn document(&self) -> Vec<u8> {
        // Strings alone: this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}
