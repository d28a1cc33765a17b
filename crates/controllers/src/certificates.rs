//! Certificate requests that nobody waits for any more (kube-controller-manager's
//! certificatesigningrequest-cleaner-controller, pkg/controller/certificates/cleaner).
//!
//! ```text
//!   pending ── 24 h ──▶ gone        approved, with or without a certificate ── 1 h ──▶ gone
//!   denied, failed ── 1 h ──▶ gone  its certificate has expired ──▶ gone
//! ```
//!
//! Upstream looks at all of them once an hour; here each one has its time.

use std::time::Duration;

use carrack_engine::{Controller, Key, Plan, Setup, Time, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use x509_parser::pem::parse_x509_pem;

/// How long a request is kept that somebody decided about.
const DECIDED: Duration = Duration::from_secs(3600);
/// How long one is kept that nobody decided about.
const PENDING: Duration = Duration::from_secs(24 * 3600);

/// Removes old certificate requests.
pub struct CertificateCleaner;

/// When the certificate that was issued expires, if there is one that can be read.
fn expires(request: &CertificateSigningRequest) -> Option<Time> {
    let certificate = request.status.as_ref()?.certificate.as_ref()?;
    let (_, pem) = parse_x509_pem(&certificate.0).ok()?;
    let end_s = pem.parse_x509().ok()?.validity().not_after.timestamp();
    Some(Time::from_unix_s(end_s))
}

/// When a request may go.
fn goes_at(request: &CertificateSigningRequest) -> Option<Time> {
    let conditions = request.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    if conditions.is_empty() {
        return request.metadata.creation_timestamp.as_ref().map(|made| Time::from(made) + PENDING);
    }
    let decided = conditions.iter().filter(|c| matches!(c.type_.as_str(), "Approved" | "Denied" | "Failed"));
    // A condition without a time never makes a request old.
    let old = decided.filter_map(|c| c.last_update_time.as_ref()).map(|at| Time::from(at) + DECIDED);
    let approved = conditions.iter().any(|c| c.type_ == "Approved");
    old.chain(expires(request).filter(|_| approved)).min()
}

impl Controller for CertificateCleaner {
    fn name(&self) -> &'static str {
        "certificatesigningrequest-cleaner-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<CertificateSigningRequest>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(request) = view.get::<CertificateSigningRequest>("", &key.name) else { return Plan::none() };
        let Some(at) = goes_at(request).filter(|_| !request.is_deleting()) else { return Plan::none() };
        if now < at {
            return Plan::none().requeue_after(at.since(now));
        }
        // Somebody may have decided about it meanwhile.
        Plan::none().delete_unchanged(request.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::of;

    /// Noon.
    const MADE: &str = "2026-01-01T12:00:00Z";

    /// After how many seconds a request goes that was made at noon; none for never.
    fn check(status: Value, expected_s: Option<u64>) {
        let request: CertificateSigningRequest = of(
            json!({"metadata": {"name": "r", "creationTimestamp": MADE}, "spec": {"request": "", "signerName": "s"},
                "status": status}),
        );
        let made = Time::from(request.metadata.creation_timestamp.as_ref().unwrap());
        assert_eq!(goes_at(&request).map(|at| at.since(made).as_secs()), expected_s, "{status}");
    }

    fn condition(kind: &str, at: Option<&str>) -> Value {
        json!({"type": kind, "status": "True", "lastUpdateTime": at})
    }

    #[test]
    fn requests_go_when_their_time_is_over() {
        let soon = Some("2026-01-01T12:10:00Z");
        check(json!({}), Some(24 * 3600));
        check(json!({"conditions": []}), Some(24 * 3600));
        for kind in ["Approved", "Denied", "Failed"] {
            check(json!({"conditions": [condition(kind, soon)]}), Some(600 + 3600));
            check(json!({"conditions": [condition(kind, None)]}), None);
        }
        check(json!({"conditions": [condition("Approved", soon)], "certificate": "bm90aGluZw=="}), Some(600 + 3600));
        check(json!({"conditions": [condition("Other", soon)]}), None);
        check(
            json!({"conditions": [condition("Approved", Some("2026-01-01T13:00:00Z")), condition("Failed", soon)]}),
            Some(600 + 3600),
        );
    }

    #[test]
    fn a_certificate_that_has_expired_takes_its_request_along() {
        // Valid until ten minutes and thirty seconds past noon.
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::default();
        parameters.not_before = rcgen::date_time_ymd(2025, 12, 31);
        parameters.not_after = rcgen::date_time_ymd(2026, 1, 1) + Duration::from_secs(12 * 3600 + 630);
        let pem = parameters.self_signed(&key).expect("a certificate").pem();
        let status = |kind: &str| {
            let certificate = k8s_openapi::ByteString(pem.clone().into_bytes());
            json!({"conditions": [condition(kind, Some("2026-01-01T12:10:00Z"))], "certificate": certificate})
        };
        check(status("Approved"), Some(630));
        check(status("Denied"), Some(600 + 3600));
    }
}
