//! Which pods may use an image that is on the node without their credentials being tried
//! (<https://kubernetes.io/docs/concepts/containers/images/#ensureimagepullcredentialverification>; upstream:
//! `pkg/kubelet/images/pullmanager`, feature `KubeletEnsureSecretPulledImages`).
//!
//! ```text
//!  pull asked for ─▶ intent written ─▶ pulled ─▶ record: image id, repository, with whose secret ─▶ intent dropped
//! ```
//!
//! Of an image with an intent and no record nobody knows with what it was pulled: everybody is verified. Of one with neither
//! no kubelet is known to have pulled it. An image that may not be used is pulled, whatever is there: the registry decides.
//! A pod that has a container of the image already is not asked again, which is otherwise upstream.

mod policy;
mod record;

pub use policy::{AllowList, Verification};
pub use record::{
    Account, Credentials, Intent, PULLED_PREFIX, PULLING_PREFIX, PullSecret, PulledRecord, pulled_name, pulling_name,
};

use crate::spec::image_name::ImageName;

/// From so many secrets of one image on no more are noted when they are only looked at, so that many namespaces that come and go
/// do not make a record grow (upstream's `writeRecordWhileMatchingLimit`).
const MOST_NOTED: usize = 100;

/// What is known of how an image that is there came.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// Nothing says that a kubelet pulled it.
    Preloaded,
    /// A kubelet has pulled it, or was about to, and with what is not known.
    Unknown,
    /// As this says.
    Recorded(&'a PulledRecord),
}

/// Whether a pod may use an image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may.
    Granted,
    /// It may, and its secret is one more that is known to do for the image.
    GrantedBy(PullSecret),
    /// Its credentials have to be tried.
    Verify,
}

/// Whether a pod that gives these secrets for an image may use it as it is (upstream's `MustAttemptImagePull`).
#[must_use]
pub fn access(policy: &Verification, image: &str, origin: Origin<'_>, secrets: &[PullSecret]) -> Access {
    if !policy.verifies(image, !matches!(origin, Origin::Preloaded)) {
        return Access::Granted;
    }
    let (Origin::Recorded(record), Ok(name)) = (origin, ImageName::parse(image)) else { return Access::Verify };
    let Some(pulled_with) = record.credential_mapping.get(&name.repository) else { return Access::Verify };
    if pulled_with.node_pods_accessible {
        return Access::Granted;
    }
    let is_full = pulled_with.kubernetes_secrets.len() >= MOST_NOTED;
    for secret in secrets {
        for known in &pulled_with.kubernetes_secrets {
            let opens = !known.credential_hash.is_empty() && secret.credential_hash == known.credential_hash;
            match (opens, secret.is_same_object(known)) {
                (true, true) => return Access::Granted,
                (true, false) if is_full => return Access::Granted,
                // The same credentials in another secret; or the secret that did, with others by now.
                (true, false) => return Access::GrantedBy(secret.clone()),
                (false, true) if !is_full => return Access::GrantedBy(secret.clone()),
                (false, _) => {}
            }
        }
    }
    Access::Verify
}

#[cfg(test)]
mod tests;
