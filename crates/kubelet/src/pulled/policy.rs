//! Which images are verified (`imagePullCredentialsVerificationPolicy`; upstream: `image_pull_policies.go`).

use crate::spec::image_name::ImageName;

/// For which images on the node a pod's credentials are verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// For none.
    Never,
    /// For those that a kubelet has pulled.
    #[default]
    NeverPreloaded,
    /// For all but these.
    NeverListed(AllowList),
    /// For all.
    Always,
}

impl Verification {
    /// Under upstream's name; the default without one. `list` is `preloadedImagesVerificationAllowlist`.
    ///
    /// # Errors
    /// There is no such policy, it has no list, or something in the list is no repository.
    pub fn named(name: &str, list: &[String]) -> Result<Self, String> {
        let policy = match name {
            "NeverVerify" => Self::Never,
            "" | "NeverVerifyPreloadedImages" => Self::NeverPreloaded,
            "NeverVerifyAllowlistedImages" => return AllowList::read(list).map(Self::NeverListed),
            "AlwaysVerify" => Self::Always,
            _ => return Err(format!("{name:?} is no imagePullCredentialsVerificationPolicy that is known here")),
        };
        if list.is_empty() {
            return Ok(policy);
        }
        let only = "imagePullCredentialsVerificationPolicy NeverVerifyAllowlistedImages";
        Err(format!("preloadedImagesVerificationAllowlist is for {only}"))
    }

    /// Upstream's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Never => "NeverVerify",
            Self::NeverPreloaded => "NeverVerifyPreloadedImages",
            Self::NeverListed(_) => "NeverVerifyAllowlistedImages",
            Self::Always => "AlwaysVerify",
        }
    }

    /// Its list.
    #[must_use]
    pub fn list(&self) -> &[String] {
        match self {
            Self::NeverListed(list) => &list.0,
            _ => &[],
        }
    }

    /// Whether credentials for an image are verified; `was_pulled` says that a kubelet is known to have pulled it.
    #[must_use]
    pub fn verifies(&self, image: &str, was_pulled: bool) -> bool {
        match self {
            Self::Never => false,
            Self::NeverPreloaded => was_pulled,
            Self::NeverListed(list) => !list.holds(image),
            Self::Always => true,
        }
    }
}

/// Repositories in full; one that ends in `/*` stands for all below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(Vec<String>);

impl AllowList {
    fn read(list: &[String]) -> Result<Self, String> {
        for pattern in list {
            let is_good = match pattern.strip_suffix("/*") {
                Some(above) => !above.is_empty() && !above.contains('*') && above.trim() == above,
                // A tag, a digest or a short form would never be found.
                None => ImageName::parse(pattern).is_ok_and(|name| name.repository == *pattern),
            };
            if !is_good {
                let why = "is neither a repository in full, without tag and digest, nor one that ends in /*";
                return Err(format!("preloadedImagesVerificationAllowlist: {pattern:?} {why}"));
            }
        }
        Ok(Self(list.to_vec()))
    }

    fn holds(&self, image: &str) -> bool {
        let Ok(name) = ImageName::parse(image) else { return false };
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(above) => name.repository.starts_with(above),
            None => name.repository == *pattern,
        })
    }
}
