//! The approval that definitions need in the groups of Kubernetes' own community.
//!
//! Upstream: `k8s.io/apiextensions-apiserver/pkg/apihelpers`.

/// The annotation with the URL of an approval, or with the reason why there is none.
pub const ANNOTATION: &str = "api-approved.kubernetes.io";
/// What the annotation is about.
const POLICY: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// What is said of an approval that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Where it is.
    Approved,
    /// That there is none.
    Bypassed,
    /// Nothing.
    Missing,
    /// Neither where it is nor that there is none.
    Invalid,
}

impl Approval {
    /// What the annotation of a definition says; none where the group needs no approval.
    #[must_use]
    pub fn of(group: &str, annotation: &str) -> Option<Approval> {
        let is_below =
            |domain: &str| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if !is_below("k8s.io") && !is_below("kubernetes.io") {
            return None;
        }
        Some(match annotation {
            "" => Approval::Missing,
            text if text.starts_with("unapproved") => Approval::Bypassed,
            text if is_url(text) => Approval::Approved,
            _ => Approval::Invalid,
        })
    }

    /// Why, in one word.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Approval::Approved => "ApprovedAnnotation",
            Approval::Bypassed => "UnapprovedAnnotation",
            Approval::Missing => "MissingAnnotation",
            Approval::Invalid => "InvalidAnnotation",
        }
    }

    /// The same, to be read.
    #[must_use]
    pub fn message(self, annotation: &str) -> String {
        let demand = format!("protected groups must have approval annotation {ANNOTATION:?}");
        match self {
            Approval::Approved => format!("approved in {annotation}"),
            Approval::Bypassed => format!("not approved: {annotation:?}"),
            Approval::Missing => format!("{demand}, {POLICY}"),
            Approval::Invalid => {
                format!("{demand} with either a URL or a reason starting with \"unapproved\", {POLICY}")
            }
        }
    }
}

/// Whether a text is a URL with a scheme and a host.
fn is_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        && !host.is_empty()
        && !host.contains(' ')
        && !text.contains(|c: char| c.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approvals() {
        use Approval::{Approved, Bypassed, Invalid, Missing};
        for (group, annotation, want) in [
            ("example.com", "", None),
            ("k8s.io.example.com", "", None),
            ("myk8s.io", "", None),
            ("kubevirt.io", "", None),
            ("k8s.io", "", Some(Missing)),
            ("x.k8s.io", "", Some(Missing)),
            ("a.b.kubernetes.io", "", Some(Missing)),
            ("x.k8s.io", "unapproved, it is a trial", Some(Bypassed)),
            ("x.k8s.io", "https://example.com/pull/1", Some(Approved)),
            ("x.k8s.io", "example.com/pull/1", Some(Invalid)),
            ("x.k8s.io", "https:///pull/1", Some(Invalid)),
            ("x.k8s.io", "https://me@/pull/1", Some(Invalid)),
            ("x.k8s.io", "//example.com", Some(Invalid)),
            ("x.k8s.io", "approved", Some(Invalid)),
        ] {
            assert_eq!(Approval::of(group, annotation), want, "{group} {annotation}");
        }
    }
}
