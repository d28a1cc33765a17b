//! What a server offers in a handshake, as its administrator narrows it: the oldest version, and the suites.
//!
//! The names, and what they mean, are those of upstream's flags (`TLSVersion` and `TLSCipherSuites` of
//! `k8s.io/component-base/cli/flag`). Suites are chosen among those of TLS 1.2; those of 1.3 are always offered, as with Go's
//! `crypto/tls`, which lets nobody choose among them. Who names those of 1.3 alone so has no 1.2.
//!
//! Upstream knows older suites and versions besides, and lists that everybody copies name them (CIS's for kubelets has two). They are
//! never served, so that a server is not the weaker for starting with such a list: it serves the others.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::{ALL_VERSIONS, CipherSuite, SupportedCipherSuite, SupportedProtocolVersion};

/// The suites that rustls has with ring, by IANA's names, and two of them by the names that Go had first.
static SUITES: [(&str, CipherSuite); 11] = [
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Suites that upstream takes besides, and that are not served here: they have no key of their own for each session, or ciphers
/// that were given up.
static OLD_SUITES: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Versions of which the same is true.
static OLD_VERSIONS: [&str; 2] = ["VersionTLS10", "VersionTLS11"];

static ONLY_13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Why that cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// Nobody knows the version.
    #[error("{0:?} is no version of TLS that is known here: there are VersionTLS12 and VersionTLS13")]
    Unknown(String),
    /// A suite that there is not, or the first of many that are all too old.
    #[error("the cipher suite {0:?} cannot be served: there are {known}", known = Offered::known())]
    NoSuite(String),
}

/// What a server offers; all that there is by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    only_13: bool,
    /// All where it names none.
    suites: Vec<CipherSuite>,
}

impl Offered {
    /// By upstream's names; what is empty leaves all that there is. What is [too old](Self::too_old) is left out.
    ///
    /// # Errors
    /// What cannot be offered, or that nothing would be left of what was named.
    pub fn named(oldest: &str, suites: &[String]) -> Result<Self, OfferError> {
        let only_13 = match oldest {
            "" | "VersionTLS12" => false,
            "VersionTLS13" => true,
            old if OLD_VERSIONS.contains(&old) => false,
            _ => return Err(OfferError::Unknown(oldest.to_owned())),
        };
        let find = |name: &String| {
            let found = SUITES.iter().find(|(known, _)| known == name);
            found.map(|(_, suite)| *suite).ok_or_else(|| OfferError::NoSuite(name.clone()))
        };
        let served = suites.iter().filter(|name| !OLD_SUITES.contains(&name.as_str()));
        let served: Vec<CipherSuite> = served.map(find).collect::<Result<_, _>>()?;
        match suites.first() {
            // None of them would be all of them.
            Some(first) if served.is_empty() => Err(OfferError::NoSuite(first.clone())),
            _ => Ok(Self { only_13, suites: served }),
        }
    }

    /// Whether this version or suite is one of upstream's that nobody serves here.
    #[must_use]
    pub fn too_old(name: &str) -> bool {
        OLD_VERSIONS.contains(&name) || OLD_SUITES.contains(&name)
    }

    /// Upstream's name for the oldest version.
    #[must_use]
    pub fn oldest(&self) -> &'static str {
        if self.only_13 { "VersionTLS13" } else { "VersionTLS12" }
    }

    /// The suites that were named, under IANA's names.
    #[must_use]
    pub fn suites(&self) -> Vec<&'static str> {
        let name = |suite: &CipherSuite| SUITES.iter().find(|(_, known)| known == suite).map(|(name, _)| *name);
        self.suites.iter().filter_map(name).collect()
    }

    fn known() -> String {
        SUITES.map(|(name, _)| name).join(", ")
    }

    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        if self.only_13 { ONLY_13 } else { ALL_VERSIONS }
    }

    /// Of a provider's suites those that are offered.
    pub(super) fn of(&self, provider: &CryptoProvider) -> Arc<CryptoProvider> {
        let mut provider = provider.clone();
        let stays = |known: &SupportedCipherSuite| known.tls13().is_some() || self.suites.contains(&known.suite());
        if !self.suites.is_empty() {
            provider.cipher_suites.retain(stays);
        }
        Arc::new(provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_upstreams() {
        let rsa = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        let none: &[&str] = &[];
        let old = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305";
        let gone = "TLS_RSA_WITH_AES_256_GCM_SHA384";
        for (oldest, suites, expected) in [
            ("", none, Ok(("VersionTLS12", vec![]))),
            ("VersionTLS12", &[rsa], Ok(("VersionTLS12", vec![rsa]))),
            ("VersionTLS13", &[], Ok(("VersionTLS13", vec![]))),
            ("", &[old], Ok(("VersionTLS12", vec!["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]))),
            ("VersionTLS11", &[], Ok(("VersionTLS12", vec![]))),
            ("TLS1.2", &[], Err("\"TLS1.2\" is no version")),
            // CIS's list for kubelets ends so.
            ("", &[rsa, gone], Ok(("VersionTLS12", vec![rsa]))),
            ("", &[gone], Err("\"TLS_RSA_WITH_AES_256_GCM_SHA384\" cannot be served")),
            ("", &[rsa, "TLS_NULL_WITH_NULL_NULL"], Err("\"TLS_NULL_WITH_NULL_NULL\" cannot be served")),
        ] {
            let suites: Vec<String> = suites.iter().map(|name| (*name).to_owned()).collect();
            match (Offered::named(oldest, &suites), expected) {
                (Ok(offered), Ok(expected)) => assert_eq!((offered.oldest(), offered.suites()), expected, "{oldest}"),
                (Err(why), Err(part)) => assert!(why.to_string().contains(part), "{why}"),
                (found, expected) => panic!("{oldest} {suites:?}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn what_is_too_old_is_not_served() {
        assert!(OLD_SUITES.iter().all(|old| SUITES.iter().all(|(name, _)| name != old)));
        assert!(Offered::too_old("TLS_RSA_WITH_AES_128_GCM_SHA256") && Offered::too_old("VersionTLS10"));
        assert!(!Offered::too_old("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256") && !Offered::too_old("VersionTLS12"));
    }

    #[test]
    fn every_suite_that_there_is_has_a_name() {
        let provider = rustls::crypto::ring::default_provider();
        for known in &provider.cipher_suites {
            assert!(SUITES.iter().any(|(_, suite)| *suite == known.suite()), "{known:?}");
        }
    }

    #[test]
    fn suites_of_the_newest_version_are_nobodys_choice() {
        let provider = rustls::crypto::ring::default_provider();
        let none: &[&str] = &[];
        for (named, of_12) in
            [(none, 6), (&["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"], 1), (&["TLS_AES_128_GCM_SHA256"], 0)]
        {
            let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
            let left = Offered::named("", &named).map(|offered| offered.of(&provider));
            let counts = left.map(|left| {
                let (of_13, of_12): (Vec<SupportedCipherSuite>, Vec<SupportedCipherSuite>) =
                    left.cipher_suites.iter().copied().partition(|s: &SupportedCipherSuite| s.tls13().is_some());
                (of_13.len(), of_12.len())
            });
            assert_eq!(counts, Ok((3, of_12)), "{named:?}");
        }
    }
}
