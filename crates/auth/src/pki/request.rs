//! Certificates that clients ask for: what a request says, what a signer demands of it, and the
//! certificate that comes of it.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/>

use std::time::Duration;

use rcgen::{
    CertificateParams, CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType,
    date_time_ymd,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateSigningRequestDer, pem};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::prelude::FromDer as _;

use super::issue::{Authority, pem as pem_of};
use super::subject::{self, Signed};
use super::{BACKDATE_S, LEAF_VALIDITY_S, Pki, PkiError};
use crate::authn::UID_ATTRIBUTE;
use crate::caller::{GROUP_MASTERS, GROUP_NODES, NODE_USER_PREFIX};

/// Signs certificates by which clients authenticate to the API server.
pub const SIGNER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Signs the client certificates of kubelets.
pub const SIGNER_KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs the serving certificates of kubelets.
pub const SIGNER_KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// Signs what nobody vouches for.
pub const SIGNER_LEGACY: &str = "kubernetes.io/legacy-unknown";

/// No request is larger, in bytes.
const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// What a certificate request says of its sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// The common name, which becomes the user.
    pub common_name: String,
    /// The organizations, which become the groups.
    pub organizations: Vec<String>,
    /// UIDs of the user.
    pub uids: Vec<String>,
    /// Number of these names, groups and UIDs that cannot be read: others may, and take the request for another one.
    pub unread: usize,
    /// Number of names and addresses of hosts.
    pub hosts: usize,
    /// Number of other alternative names: mail addresses, URIs.
    pub others: usize,
}

/// Reads a request in PEM; its signature is checked.
///
/// # Errors
/// What is wrong with it.
pub fn read_request(pem_text: &[u8]) -> Result<RequestFacts, String> {
    let der = der(pem_text)?;
    let (_, request) = X509CertificationRequest::from_der(&der).map_err(|error| error.to_string())?;
    request.verify_signature().map_err(|_| "its signature does not match its key".to_owned())?;
    let subject = &request.certification_request_info.subject;
    let mut facts = RequestFacts::default();
    for attribute in subject.iter_attributes() {
        let kind = attribute.attr_type();
        let (is_name, is_group) = (*kind == OID_X509_COMMON_NAME, *kind == OID_X509_ORGANIZATION_NAME);
        if !is_name && !is_group && *kind != UID_ATTRIBUTE {
            continue;
        }
        let Ok(text) = attribute.as_str() else {
            facts.unread += 1;
            continue;
        };
        match (is_name, is_group) {
            // The last one counts, as in Go.
            (true, _) => text.clone_into(&mut facts.common_name),
            (_, true) => facts.organizations.push(text.to_owned()),
            _ => facts.uids.push(text.to_owned()),
        }
    }
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(_) | GeneralName::IPAddress(_) => facts.hosts += 1,
                _ => facts.others += 1,
            }
        }
    }
    Ok(facts)
}

fn der(pem_text: &[u8]) -> Result<CertificateSigningRequestDer<'static>, String> {
    if pem_text.len() > MAX_REQUEST_BYTES {
        return Err(format!("it is longer than {MAX_REQUEST_BYTES} bytes"));
    }
    CertificateSigningRequestDer::from_pem_slice(pem_text).map_err(|error| match error {
        pem::Error::NoItemsFound => "PEM block type must be CERTIFICATE REQUEST".to_owned(),
        other => other.to_string(),
    })
}

/// What a signer demands of a request and of the usages that are asked for.
///
/// # Errors
/// Why it is not signed.
pub fn check_request(signer: &str, facts: &RequestFacts, usages: &[String]) -> Result<(), String> {
    let has = |usage: &str| usages.iter().any(|u| u == usage);
    let only = |allowed: &[&str]| usages.iter().all(|usage| allowed.contains(&usage.as_str()));
    let client = ["digital signature", "key encipherment", "client auth"];
    let server = ["digital signature", "key encipherment", "server auth"];
    let node = || {
        if facts.organizations != [GROUP_NODES] {
            return Err("subject organization is not system:nodes".to_owned());
        }
        let name = facts.common_name.strip_prefix(NODE_USER_PREFIX);
        if name.is_none_or(str::is_empty) {
            return Err("subject common name does not begin with system:node:".to_owned());
        }
        // Nobody looks at these requests, so that nothing is signed that a kubelet has no use for. Upstream signs it.
        if !facts.uids.is_empty() {
            return Err("a UID is not allowed in the subject of a node".to_owned());
        }
        Ok(())
    };
    if facts.unread > 0 {
        return Err("the subject has a name, group or UID that cannot be read".to_owned());
    }
    // With more of them, or an empty one, it would be nobody's certificate.
    if facts.uids.len() > 1 || facts.uids.iter().any(String::is_empty) {
        return Err("the subject has more than one UID, or an empty one".to_owned());
    }
    match signer {
        SIGNER_CLIENT => {
            if facts.organizations.iter().any(|group| group == GROUP_MASTERS) {
                return Err(format!("use of {SIGNER_CLIENT} signer with {GROUP_MASTERS} group is not allowed"));
            }
            if !only(&client) || !has("client auth") {
                return Err("invalid usages for client certificate: must include client auth and no other than digital signature and key encipherment".to_owned());
            }
        }
        SIGNER_KUBELET_CLIENT => {
            node()?;
            if facts.hosts + facts.others > 0 {
                return Err("DNS, IP, email and URI subjectAltNames are not allowed".to_owned());
            }
            if !only(&client) || !has("client auth") || !has("digital signature") {
                return Err("usages did not match [client auth digital signature key encipherment]".to_owned());
            }
        }
        SIGNER_KUBELET_SERVING => {
            node()?;
            if facts.hosts == 0 {
                return Err("DNS or IP subjectAltName is required".to_owned());
            }
            if facts.others > 0 {
                return Err("email and URI subjectAltNames are not allowed".to_owned());
            }
            if !only(&server) || !has("server auth") || !has("digital signature") {
                return Err("usages did not match [digital signature key encipherment server auth]".to_owned());
            }
        }
        SIGNER_LEGACY => {}
        other => return Err(format!("{other} is not a signer of this cluster")),
    }
    Ok(())
}

/// Signs certificate requests with the cluster's authority.
#[derive(Debug)]
pub struct RequestSigner {
    authority: Authority,
    /// The longest that a certificate lasts.
    longest_s: i64,
}

impl Pki {
    /// The signer of requests.
    ///
    /// # Errors
    /// When the authority cannot be read.
    pub fn request_signer(&self, now_unix_s: i64) -> Result<RequestSigner, PkiError> {
        let authority = Authority::ensure(&self.directory, "ca", "carrack-ca", now_unix_s)?;
        Ok(RequestSigner { authority, longest_s: LEAF_VALIDITY_S })
    }
}

impl RequestSigner {
    /// Whether this signer's certificates are made here.
    #[must_use]
    pub fn knows(signer: &str) -> bool {
        [SIGNER_CLIENT, SIGNER_KUBELET_CLIENT, SIGNER_KUBELET_SERVING, SIGNER_LEGACY].contains(&signer)
    }

    /// The same with certificates that last no longer than this (upstream's `--cluster-signing-duration`).
    #[must_use]
    pub fn lasting(self, longest: Duration) -> Self {
        Self { longest_s: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX).min(LEAF_VALIDITY_S), ..self }
    }

    /// The certificate for a request, in PEM. `wanted_s` is how long it is to be valid, in seconds.
    ///
    /// # Errors
    /// Why it is not signed.
    pub fn sign(
        &self,
        pem_text: &[u8],
        signer: &str,
        usages: &[String],
        wanted_s: Option<i64>,
        now_unix_s: i64,
    ) -> Result<String, String> {
        let facts = read_request(pem_text)?;
        check_request(signer, &facts, usages)?;
        let mut request =
            CertificateSigningRequestParams::from_der(&der(pem_text)?).map_err(|error| error.to_string())?;
        let asked = std::mem::take(&mut request.params);
        let mut params = CertificateParams::default();
        // Names of hosts stand in what a server shows, and in what nobody vouches for.
        if matches!(signer, SIGNER_KUBELET_SERVING | SIGNER_LEGACY) {
            params.subject_alt_names = asked
                .subject_alt_names
                .into_iter()
                .filter(|name| matches!(name, SanType::DnsName(_) | SanType::IpAddress(_)))
                .collect();
        }
        for usage in usages {
            match usage.as_str() {
                "digital signature" | "signing" => params.key_usages.push(KeyUsagePurpose::DigitalSignature),
                "key encipherment" => params.key_usages.push(KeyUsagePurpose::KeyEncipherment),
                "client auth" => params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth),
                "server auth" => params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth),
                _ => {}
            }
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        let left_s = self.authority.not_after_unix_s().saturating_sub(now_unix_s);
        let validity_s = wanted_s.unwrap_or(self.longest_s).min(self.longest_s).min(left_s);
        let at = |unix_s: i64| date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(unix_s).unwrap_or(0));
        params.not_before = at(now_unix_s.saturating_sub(BACKDATE_S));
        params.not_after = at(now_unix_s.saturating_add(validity_s));
        let certificate =
            params.signed_by(&request.public_key, self.authority.issuer()).map_err(|error| error.to_string())?;
        // Of the subject there is what was looked at, and nothing else.
        let subject = subject::of(&facts);
        let certificate =
            subject::replaced(certificate.der(), Signed::Certificate, &subject, self.authority.issuer().key())?;
        Ok(pem_of("CERTIFICATE", &certificate))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::KeyPair;

    use super::*;
    use crate::authn::{CertificateError, caller_of_certificate};

    const NOW: i64 = 1_800_000_000;

    fn request(common_name: &str, organizations: &[&str], hosts: &[&str]) -> String {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let facts = RequestFacts {
            common_name: common_name.to_owned(),
            organizations: organizations.iter().map(|o| (*o).to_owned()).collect(),
            ..RequestFacts::default()
        };
        request_of(&facts, hosts)
    }

    fn request_of(facts: &RequestFacts, hosts: Vec<String>) -> String {
        request_with(&subject::of(facts), hosts)
    }

    fn request_with(subject: &[u8], hosts: Vec<String>) -> String {
        let params = CertificateParams::new(hosts).expect("names");
        let key = KeyPair::generate().expect("a key");
        let plain = params.serialize_request(&key).expect("a request");
        let der = subject::replaced(plain.der(), Signed::Request, subject, &key).expect("a request");
        pem_of("CERTIFICATE REQUEST", &der)
    }

    fn named(common_name: &str, uids: &[&str]) -> RequestFacts {
        let uids = uids.iter().map(|uid| (*uid).to_owned()).collect();
        RequestFacts { common_name: common_name.to_owned(), uids, ..RequestFacts::default() }
    }

    /// The subject of `admin`, whom others take for `jane`: her name comes last, as a `T61String`.
    fn shown_as_another() -> Vec<u8> {
        let mut subject = subject::joined(&[named("admin", &[]), named("jane", &[])]);
        let tag = subject.len() - "jane".len() - 2;
        assert_eq!(std::mem::replace(&mut subject[tag], 0x14), 0x0c);
        subject
    }

    fn usages(list: &[&str]) -> Vec<String> {
        list.iter().map(|usage| (*usage).to_owned()).collect()
    }

    #[test]
    fn signers_demand() {
        let directory = tempfile::tempdir().expect("a directory");
        let pki = Pki::open_or_create(directory.path(), NOW).expect("a PKI");
        let signer = pki.request_signer(NOW).expect("a signer");
        let (client, server) =
            (usages(&["digital signature", "client auth"]), usages(&["digital signature", "server auth"]));
        let node = request("system:node:n1", &["system:nodes"], &[]);
        let serving = request("system:node:n1", &["system:nodes"], &["n1", "192.0.2.1"]);
        let person = request("jane", &["dev", "ops"], &[]);
        let master = request("jane", &["dev", "system:masters"], &[]);
        let of_node = |uids: &[&str]| {
            let organizations = vec![GROUP_NODES.to_owned()];
            request_of(&RequestFacts { organizations, ..named("system:node:n1", uids) }, Vec::new())
        };
        let (two, none) =
            (request_of(&named("jane", &["7", "8"]), Vec::new()), request_of(&named("jane", &[""]), Vec::new()));
        let another = request_with(&shown_as_another(), Vec::new());
        for (request, name, usages, want) in [
            (&two, SIGNER_CLIENT, &client, "more than one UID"),
            (&none, SIGNER_CLIENT, &client, "more than one UID, or an empty one"),
            (&another, SIGNER_CLIENT, &client, "cannot be read"),
            (&another, SIGNER_LEGACY, &client, "cannot be read"),
            (&of_node(&[]), SIGNER_KUBELET_CLIENT, &client, ""),
            (&of_node(&["7"]), SIGNER_KUBELET_CLIENT, &client, "a UID is not allowed"),
            (&person, SIGNER_CLIENT, &client, ""),
            (&person, SIGNER_CLIENT, &server, "invalid usages"),
            (&master, SIGNER_CLIENT, &client, "system:masters group is not allowed"),
            (&node, SIGNER_KUBELET_CLIENT, &client, ""),
            (&person, SIGNER_KUBELET_CLIENT, &client, "organization is not system:nodes"),
            (&serving, SIGNER_KUBELET_CLIENT, &client, "subjectAltNames are not allowed"),
            (&serving, SIGNER_KUBELET_SERVING, &server, ""),
            (&node, SIGNER_KUBELET_SERVING, &server, "subjectAltName is required"),
            (&person, "example.com/x", &client, "is not a signer"),
            (&"nonsense".to_owned(), SIGNER_CLIENT, &client, "CERTIFICATE REQUEST"),
        ] {
            match (signer.sign(request.as_bytes(), name, usages, Some(3600), NOW), want) {
                (Ok(_), "") => {}
                (Err(why), want) if !want.is_empty() => assert!(why.contains(want), "{why}"),
                (got, want) => panic!("{got:?}, {want:?}"),
            }
        }
    }

    #[test]
    fn a_signed_certificate_names_its_owner() {
        let directory = tempfile::tempdir().expect("a directory");
        let pki = Pki::open_or_create(directory.path(), NOW).expect("a PKI");
        let signer = pki.request_signer(NOW).expect("a signer");
        let usages = usages(&["client auth"]);
        let many: Vec<String> = (0..40).map(|group| format!("group-{group}-{}", "x".repeat(group))).collect();
        for (common_name, organizations, uid) in [
            ("jane", &[][..], ""),
            ("jane", &["dev".to_owned(), "ops".to_owned(), "on-call".to_owned()][..], "7c3b"),
            ("Jürgen ☃", &many[..], "7c3b"),
        ] {
            let facts = RequestFacts {
                common_name: common_name.to_owned(),
                organizations: organizations.to_vec(),
                uids: Some(uid.to_owned()).filter(|uid| !uid.is_empty()).into_iter().collect(),
                ..RequestFacts::default()
            };
            let pem_text = request_of(&facts, Vec::new());
            assert_eq!(read_request(pem_text.as_bytes()), Ok(facts));
            let signed = signer.sign(pem_text.as_bytes(), SIGNER_CLIENT, &usages, None, NOW);
            let certificate = signed.expect("a certificate");
            let der = rustls_pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).expect("DER");
            let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&der).expect("a certificate");
            let (_, authority) = x509_parser::pem::parse_x509_pem(pki.ca_pem().as_bytes()).expect("PEM");
            let authority = authority.parse_x509().expect("an authority");
            parsed.verify_signature(Some(authority.public_key())).expect("signed by the authority");
            let caller = caller_of_certificate(&der).expect("a caller");
            let mut groups = organizations.to_vec();
            groups.push("system:authenticated".to_owned());
            assert_eq!((caller.user.as_str(), caller.uid.as_str(), caller.groups), (common_name, uid, groups));
        }
    }

    #[test]
    fn the_last_name_counts_and_a_uid_is_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let pki = Pki::open_or_create(directory.path(), NOW).expect("a PKI");
        let authority = Authority::ensure(&pki.directory, "ca", "carrack-ca", NOW).expect("an authority");
        let plain = CertificateParams::default().signed_by(&KeyPair::generate().expect("a key"), authority.issuer());
        let plain = plain.expect("a certificate");
        let check = |subject: &[u8], want: Result<(&str, &str), CertificateError>| {
            let made = subject::replaced(plain.der(), Signed::Certificate, subject, authority.issuer().key());
            let got = caller_of_certificate(&made.expect("a certificate").into());
            let got = got.as_ref().map(|caller| (caller.user.as_str(), caller.uid.as_str()));
            assert_eq!(got, want.as_ref().copied());
        };
        let of = |names: &[(&str, &[&str])]| {
            subject::joined(&names.iter().map(|(name, uids)| named(name, uids)).collect::<Vec<_>>())
        };
        check(&of(&[("a", &[]), ("b", &[])]), Ok(("b", "")));
        check(&of(&[("a", &["7"]), ("b", &[])]), Ok(("b", "7")));
        check(&of(&[("a", &["7"]), ("b", &["8"])]), Err(CertificateError::Uid));
        check(&of(&[("a", &[""])]), Err(CertificateError::Uid));
        check(&of(&[("a", &[]), ("", &[])]), Err(CertificateError::NoName));
        check(&shown_as_another(), Err(CertificateError::NoName));
    }
}
