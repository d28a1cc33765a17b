//! What a server speaks with its clients where it is told to speak less than it could: versions of TLS, and ciphers of 1.2. Those
//! of 1.3 are all good, and are not chosen among, as in Go.
//!
//! Upstream: `--tls-min-version` and `--tls-cipher-suites` of its servers (`k8s.io/component-base/cli/flag`).

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion};

/// The versions that are spoken, newest first.
static VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// What is spoken: everything, unless it was bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    only_newest: bool,
    /// The ciphers of 1.2; empty for all.
    ciphers: Vec<CipherSuite>,
}

/// A cipher's name in the registry of IANA, which is upstream's.
fn name(cipher: CipherSuite) -> String {
    cipher.as_str().unwrap_or_default().replacen("TLS13_", "TLS_", 1)
}

impl Terms {
    /// Reads the oldest version that is spoken (`VersionTLS12`) and the names of ciphers.
    ///
    /// # Errors
    /// There is no such version, or no such cipher is spoken here.
    pub fn parse(oldest: Option<&str>, ciphers: &[String]) -> Result<Terms, String> {
        let only_newest = match oldest {
            // Nothing older than 1.2 is ever spoken.
            None | Some("VersionTLS10" | "VersionTLS11" | "VersionTLS12") => false,
            Some("VersionTLS13") => true,
            Some(other) => return Err(format!("{other:?} is no version of TLS, such as VersionTLS12")),
        };
        let spoken: Vec<CipherSuite> =
            super::provider().cipher_suites.iter().map(SupportedCipherSuite::suite).collect();
        let find = |wanted: &String| {
            let found = spoken.iter().copied().find(|cipher| name(*cipher) == *wanted);
            found.ok_or_else(|| {
                let all: Vec<String> = spoken.iter().copied().map(name).collect();
                format!("the cipher {wanted:?} is not spoken, only {} are", all.join(", "))
            })
        };
        Ok(Terms { only_newest, ciphers: ciphers.iter().map(find).collect::<Result<_, _>>()? })
    }

    /// The versions that are spoken.
    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        if self.only_newest { &VERSIONS[..1] } else { &VERSIONS }
    }

    /// With which ciphers, in the order that they have anyway.
    pub(super) fn provider(&self) -> Arc<CryptoProvider> {
        let provider = super::provider();
        if self.ciphers.is_empty() {
            return provider;
        }
        let mut provider = (*provider).clone();
        provider.cipher_suites.retain(|known| known.version() == &TLS13 || self.ciphers.contains(&known.suite()));
        Arc::new(provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spoken() {
        let check = |oldest: Option<&str>, ciphers: &[&str], want: Result<(usize, &[&str]), &str>| {
            let ciphers: Vec<String> = ciphers.iter().map(|name| (*name).to_owned()).collect();
            let got = Terms::parse(oldest, &ciphers).map(|terms| {
                let suites = terms.provider().cipher_suites.clone();
                let older = suites.iter().filter(|known| known.version() == &TLS12).map(|known| name(known.suite()));
                (terms.versions().len(), older.collect::<Vec<_>>())
            });
            match (got, want) {
                (Ok((versions, older)), Ok((want, names))) => {
                    assert_eq!(versions, want, "{oldest:?}");
                    assert!(names.is_empty() || older == names, "{older:?}, and not {names:?}");
                }
                (Err(got), Err(want)) => assert!(got.contains(want), "{got}, and not {want}"),
                (got, want) => panic!("{got:?}, and not {want:?}"),
            }
        };
        let (ecdsa, rsa) = ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384");
        check(None, &[], Ok((2, &[])));
        check(Some("VersionTLS12"), &[], Ok((2, &[])));
        check(Some("VersionTLS13"), &[], Ok((1, &[])));
        check(None, &[rsa, "TLS_AES_128_GCM_SHA256", ecdsa], Ok((2, &[ecdsa, rsa])));
        check(Some("TLS1.2"), &[], Err("\"TLS1.2\" is no version of TLS"));
        check(None, &["TLS_RSA_WITH_RC4_128_SHA"], Err("is not spoken, only TLS_AES_128_GCM_SHA256, "));
    }
}
