//! Making, loading and judging authorities, certificates and keys.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, SanType, date_time_ymd,
};
use ring::digest::{SHA256, digest};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::files::Directory;
use super::{BACKDATE_S, CA_VALIDITY_S, KeyPairPem, LEAF_VALIDITY_S, PkiError, RENEW_BEFORE_S, Sans};
use crate::secret::Secret;
use crate::token::SigningKey;

/// A certificate authority with its key.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    key_identifier: Vec<u8>,
    not_after_unix_s: i64,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("not_after_unix_s", &self.not_after_unix_s).finish_non_exhaustive()
    }
}

/// A certificate that is wanted.
pub(super) struct Leaf {
    pub file: String,
    pub common_name: String,
    pub organization: Option<&'static str>,
    /// For a server its names; none for a client.
    pub sans: Option<Sans>,
}

pub(super) fn making(what: &str) -> impl FnOnce(rcgen::Error) -> PkiError {
    let what = what.to_owned();
    move |source| PkiError::Issue { what, source }
}

fn params(common_name: &str, organization: Option<&str>, now_unix_s: i64, validity_s: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    let at = |unix_s: i64| date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(unix_s).unwrap_or(0));
    params.not_before = at(now_unix_s.saturating_sub(BACKDATE_S));
    params.not_after = at(now_unix_s.saturating_add(validity_s));
    params
}

/// A serving certificate that nobody has signed but itself, for a process that was given none.
pub(super) fn self_signed(common_name: &str, sans: &Sans, now_unix_s: i64) -> Result<KeyPairPem, PkiError> {
    let key_pair = KeyPair::generate().map_err(making(common_name))?;
    let mut params = params(common_name, None, now_unix_s, LEAF_VALIDITY_S);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.subject_alt_names = alternatives(sans)?;
    let certificate = params.self_signed(&key_pair).map_err(making(common_name))?.pem();
    Ok(KeyPairPem { certificate, key: Secret::new(key_pair.serialize_pem()) })
}

pub(super) fn alternatives(sans: &Sans) -> Result<Vec<SanType>, PkiError> {
    let name = |name: &String| {
        let dns = name.as_str().try_into().map_err(|_| PkiError::Name { name: name.clone() })?;
        Ok(SanType::DnsName(dns))
    };
    let mut all = sans.names.iter().map(name).collect::<Result<Vec<_>, _>>()?;
    all.extend(sans.addresses.iter().copied().map(SanType::IpAddress));
    Ok(all)
}

impl Authority {
    /// Loads an authority, or makes it when there is nothing of it.
    pub(super) fn ensure(
        directory: &Directory,
        file: &str,
        common_name: &str,
        now_unix_s: i64,
    ) -> Result<Self, PkiError> {
        let (crt, key) = (format!("{file}.crt"), format!("{file}.key"));
        match (directory.read(&crt)?, directory.read(&key)?) {
            (Some(certificate), Some(key_pem)) => {
                let authority = Self::load(directory, file, certificate, key_pem)?;
                if authority.not_after_unix_s <= now_unix_s {
                    return Err(PkiError::CaExpired(directory.file(&crt)));
                }
                Ok(authority)
            }
            (Some(_), None) => {
                Err(PkiError::Incomplete { missing: directory.file(&key), present: directory.file(&crt) })
            }
            // A key alone is what a crash between the two writes leaves. It is used again, so that
            // whatever it may have signed stays good.
            (None, found) => {
                let key_pair = match &found {
                    Some(pem) => KeyPair::from_pem(pem).map_err(|error| PkiError::Damaged {
                        path: directory.file(&key),
                        problem: error.to_string(),
                    })?,
                    None => KeyPair::generate().map_err(making(file))?,
                };
                // The name follows from the key: authorities of different clusters have different
                // names, and one that is made again from its key has the same.
                let hash = digest(&SHA256, &key_pair.subject_public_key_info());
                let hex: String = hash.as_ref().iter().take(6).map(|b| format!("{b:02x}")).collect();
                let name = format!("{common_name}@{hex}");
                let mut params = params(&name, None, now_unix_s, CA_VALIDITY_S);
                params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
                params.key_usages =
                    vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
                let certificate = params.self_signed(&key_pair).map_err(making(file))?.pem();
                let key_pem = key_pair.serialize_pem();
                directory.write(&key, &key_pem)?;
                directory.write(&crt, &certificate)?;
                Self::load(directory, file, certificate, key_pem)
            }
        }
    }

    fn load(directory: &Directory, file: &str, certificate: String, key_pem: String) -> Result<Self, PkiError> {
        let crt = directory.file(&format!("{file}.crt"));
        let damaged = |problem: String| PkiError::Damaged { path: crt.clone(), problem };
        let key_pair = KeyPair::from_pem(&key_pem).map_err(|error| PkiError::Damaged {
            path: directory.file(&format!("{file}.key")),
            problem: error.to_string(),
        })?;
        let facts = Facts::read(&certificate).map_err(&damaged)?;
        if !facts.is_ca {
            return Err(damaged("it is not a certificate authority".into()));
        }
        if facts.public_key != key_pair.subject_public_key_info() {
            return Err(damaged(format!("{file}.key is not its key")));
        }
        let issuer = Issuer::from_ca_cert_pem(&certificate, key_pair).map_err(|error| damaged(error.to_string()))?;
        Ok(Self {
            issuer,
            certificate,
            key_identifier: facts.subject_key_identifier,
            not_after_unix_s: facts.not_after_unix_s,
        })
    }

    pub(super) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    pub(super) fn not_after_unix_s(&self) -> i64 {
        self.not_after_unix_s
    }

    pub(super) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Loads a certificate, or issues it when it is missing, near its end, signed by another
    /// authority or for other names.
    pub(super) fn ensure_leaf(
        &self,
        directory: &Directory,
        leaf: &Leaf,
        now_unix_s: i64,
    ) -> Result<KeyPairPem, PkiError> {
        let (crt, key) = (format!("{}.crt", leaf.file), format!("{}.key", leaf.file));
        if let (Some(certificate), Some(key_pem)) = (directory.read(&crt)?, directory.read(&key)?) {
            let facts = Facts::read(&certificate)
                .map_err(|problem| PkiError::Damaged { path: directory.file(&crt), problem })?;
            let pair = KeyPair::from_pem(&key_pem)
                .map_err(|error| PkiError::Damaged { path: directory.file(&key), problem: error.to_string() })?;
            let renew_at = facts.not_after_unix_s.min(self.not_after_unix_s) - RENEW_BEFORE_S;
            let fits = facts.authority_key_identifier == self.key_identifier
                && facts.public_key == pair.subject_public_key_info()
                && facts.common_name == leaf.common_name
                && facts.organizations.iter().eq(leaf.organization.iter())
                && facts.sans == leaf.sans.clone().unwrap_or_default()
                // An authority that is near its own end cannot give more time than it has.
                && (now_unix_s < renew_at || facts.not_after_unix_s >= self.not_after_unix_s)
                && facts.not_before_unix_s <= now_unix_s
                && now_unix_s < facts.not_after_unix_s;
            if fits {
                return Ok(KeyPairPem { certificate, key: Secret::new(key_pem) });
            }
        }
        let issued = self.issue(leaf, now_unix_s)?;
        directory.write(&key, issued.key.expose())?;
        directory.write(&crt, &issued.certificate)?;
        Ok(issued)
    }

    fn issue(&self, leaf: &Leaf, now_unix_s: i64) -> Result<KeyPairPem, PkiError> {
        let validity_s = LEAF_VALIDITY_S.min(self.not_after_unix_s.saturating_sub(now_unix_s));
        let mut params = params(&leaf.common_name, leaf.organization, now_unix_s, validity_s);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![match leaf.sans {
            Some(_) => ExtendedKeyUsagePurpose::ServerAuth,
            None => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        if let Some(sans) = &leaf.sans {
            params.subject_alt_names = alternatives(sans)?;
        }
        let key_pair = KeyPair::generate().map_err(making(&leaf.file))?;
        let certificate = params.signed_by(&key_pair, &self.issuer).map_err(making(&leaf.file))?;
        Ok(KeyPairPem { certificate: certificate.pem(), key: Secret::new(key_pair.serialize_pem()) })
    }
}

/// The key that signs service account tokens, made when there is none.
pub(super) fn ensure_service_account_key(directory: &Directory) -> Result<Secret, PkiError> {
    if let Some(text) = directory.read("sa.key")? {
        let key = Secret::new(text);
        let signing = SigningKey::from_pem(&key)
            .map_err(|error| PkiError::Damaged { path: directory.file("sa.key"), problem: error.to_string() })?;
        // The public half follows from the key; a crash may have left it unwritten.
        if directory.read("sa.pub")?.is_none() {
            directory.write("sa.pub", &pem("PUBLIC KEY", &signing.verifying_key().spki_der()))?;
        }
        return Ok(key);
    }
    if directory.read("sa.pub")?.is_some() {
        return Err(PkiError::Incomplete { missing: directory.file("sa.key"), present: directory.file("sa.pub") });
    }
    let pair = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(making("sa.key"))?;
    let key = pair.serialize_pem();
    directory.write("sa.key", &key)?;
    directory.write("sa.pub", &pair.public_key_pem())?;
    Ok(Secret::new(key))
}

/// DER as text.
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in encoded.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

/// What a certificate says, as far as it decides whether it can stay.
struct Facts {
    common_name: String,
    organizations: Vec<String>,
    sans: Sans,
    is_ca: bool,
    not_before_unix_s: i64,
    not_after_unix_s: i64,
    public_key: Vec<u8>,
    subject_key_identifier: Vec<u8>,
    authority_key_identifier: Vec<u8>,
}

impl Facts {
    fn read(pem: &str) -> Result<Self, String> {
        use rustls_pki_types::CertificateDer;
        use rustls_pki_types::pem::PemObject as _;
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| e.to_string())?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|e| e.to_string())?;
        let subject = certificate.subject();
        let texts = |oid: &x509_parser::der_parser::oid::Oid<'_>| -> Vec<String> {
            subject.iter_by_oid(oid).filter_map(|attribute| attribute.as_str().ok().map(str::to_owned)).collect()
        };
        let mut subject_key_identifier = Vec::new();
        let mut authority_key_identifier = Vec::new();
        for extension in certificate.extensions() {
            use x509_parser::extensions::ParsedExtension;
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => subject_key_identifier = id.0.to_vec(),
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    authority_key_identifier = id.key_identifier.as_ref().map(|id| id.0.to_vec()).unwrap_or_default();
                }
                _ => {}
            }
        }
        Ok(Self {
            common_name: texts(&x509_parser::oid_registry::OID_X509_COMMON_NAME).into_iter().next().unwrap_or_default(),
            organizations: texts(&x509_parser::oid_registry::OID_X509_ORGANIZATION_NAME),
            sans: sans(&certificate)?,
            is_ca: certificate.is_ca(),
            not_before_unix_s: certificate.validity().not_before.timestamp(),
            not_after_unix_s: certificate.validity().not_after.timestamp(),
            public_key: certificate.public_key().raw.to_vec(),
            subject_key_identifier,
            authority_key_identifier,
        })
    }
}

pub(super) fn sans(certificate: &X509Certificate<'_>) -> Result<Sans, String> {
    let mut names = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    let extension = certificate.subject_alternative_name().map_err(|e| e.to_string())?;
    for name in extension.iter().flat_map(|e| &e.value.general_names) {
        match name {
            GeneralName::DNSName(name) => {
                names.insert((*name).to_owned());
            }
            GeneralName::IPAddress(bytes) => {
                if let Ok(v4) = <[u8; 4]>::try_from(*bytes) {
                    addresses.insert(IpAddr::from(v4));
                } else if let Ok(v6) = <[u8; 16]>::try_from(*bytes) {
                    addresses.insert(IpAddr::from(v6));
                }
            }
            _ => {}
        }
    }
    Ok(Sans { names, addresses })
}
