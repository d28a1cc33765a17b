//! Tokens that others sign: JWTs of an OpenID Connect provider, verified with the keys that it publishes.
//!
//! Nothing here says what a token is good for; its claims come out as they are, once its signature is proved. The algorithms are
//! those that upstream takes and ring has: RSA, and P-256 and P-384. A key is used for an algorithm only if it is of its kind.
//!
//! RFC 7515 (JWS), RFC 7517 (JWK), RFC 7518 (JWA).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::jws::Parts;

/// More keys than these no provider has at a time.
const MAX_KEYS: usize = 128;

/// The keys of a provider (a JWK set). Those that are of no kind known here are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignKeys(Vec<Key>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    kid: String,
    /// The one algorithm that it is for, if it says so.
    alg: Option<String>,
    material: Material,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// Points of curves, uncompressed.
    P256(Vec<u8>),
    P384(Vec<u8>),
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    used_for: String,
    kid: String,
    alg: Option<String>,
    crv: String,
    n: String,
    e: String,
    x: String,
    y: String,
}

impl Jwk {
    fn material(&self) -> Option<Material> {
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).ok().filter(|bytes| !bytes.is_empty());
        let point = |length: usize| {
            let (x, y) = (bytes(&self.x)?, bytes(&self.y)?);
            (x.len() == length && y.len() == length).then(|| [&[4], &x[..], &y[..]].concat())
        };
        match (self.kty.as_str(), self.crv.as_str()) {
            ("RSA", _) => Some(Material::Rsa { n: bytes(&self.n)?, e: bytes(&self.e)? }),
            ("EC", "P-256") => point(32).map(Material::P256),
            ("EC", "P-384") => point(48).map(Material::P384),
            _ => None,
        }
    }
}

impl ForeignKeys {
    /// Reads a JWK set.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        let set: Set = serde_json::from_slice(json)?;
        let signing = set.keys.into_iter().filter(|key| matches!(key.used_for.as_str(), "" | "sig"));
        let known = signing.filter_map(|key| {
            let material = key.material()?;
            Some(Key { kid: key.kid, alg: key.alg, material })
        });
        Ok(Self(known.take(MAX_KEYS).collect()))
    }

    /// Whether there are any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Material {
    fn verify(&self, alg: &str, message: &[u8], signature: &[u8]) -> bool {
        let rsa: &RsaParameters = match (self, alg) {
            (Self::P256(point), "ES256") => {
                return UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature).is_ok();
            }
            (Self::P384(point), "ES384") => {
                return UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(message, signature).is_ok();
            }
            (Self::Rsa { .. }, "RS256") => &signature::RSA_PKCS1_2048_8192_SHA256,
            (Self::Rsa { .. }, "RS384") => &signature::RSA_PKCS1_2048_8192_SHA384,
            (Self::Rsa { .. }, "RS512") => &signature::RSA_PKCS1_2048_8192_SHA512,
            (Self::Rsa { .. }, "PS256") => &signature::RSA_PSS_2048_8192_SHA256,
            (Self::Rsa { .. }, "PS384") => &signature::RSA_PSS_2048_8192_SHA384,
            (Self::Rsa { .. }, "PS512") => &signature::RSA_PSS_2048_8192_SHA512,
            _ => return false,
        };
        let Self::Rsa { n, e } = self else { return false };
        RsaPublicKeyComponents { n, e }.verify(rsa, message, signature).is_ok()
    }
}

/// A token of which nothing is proved yet.
pub struct ForeignToken<'a>(Parts<'a>);

impl<'a> ForeignToken<'a> {
    /// None when it is no compact JWS.
    #[must_use]
    pub fn read(token: &'a str) -> Option<Self> {
        Parts::split(token).map(Self)
    }

    /// Whose token it says that it is.
    #[must_use]
    pub fn claimed_issuer(&self) -> Option<String> {
        self.0.claimed_issuer()
    }

    /// Its claims, if one of the keys has signed it.
    #[must_use]
    pub fn verify(&self, keys: &ForeignKeys) -> Option<Map<String, Value>> {
        let (kid, alg) = (&self.0.header.kid, self.0.header.alg.as_str());
        let fits = |key: &&Key| (kid.is_empty() || key.kid == *kid) && key.alg.as_deref().is_none_or(|own| own == alg);
        let mut fitting = keys.0.iter().filter(fits);
        let is_signed = fitting.any(|key| key.material.verify(alg, self.0.signed, &self.0.signature));
        if is_signed { self.0.claims() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Keys, and tokens that OpenSSL has signed with them.
    fn vectors() -> Value {
        serde_json::from_str(include_str!("../../tests/data/oidc.json")).expect("JSON")
    }

    #[test]
    fn what_a_provider_has_signed() {
        let vectors = vectors();
        let keys = ForeignKeys::parse(vectors["jwks"].to_string().as_bytes()).expect("keys");
        // The one of an unknown kind is left out.
        assert_eq!(keys.0.len(), 3);
        let without = |kid: &str| ForeignKeys(keys.0.iter().filter(|key| key.kid != kid).cloned().collect());
        for (name, kid) in [("RS256", "r"), ("RS512", "r"), ("PS256", "r"), ("ES256", "e"), ("ES384", "f")] {
            let token = vectors["tokens"][name].as_str().expect("a token");
            let read = ForeignToken::read(token).expect("a JWS");
            assert_eq!(read.claimed_issuer().as_deref(), Some("https://idp.example.com"));
            assert_eq!(read.verify(&keys).and_then(|claims| claims.get("sub").cloned()), Some(json!("1234")), "{name}");
            assert_eq!(read.verify(&without(kid)), None, "{name} without its key");
            // Another payload, another signature, another algorithm.
            let parts: Vec<&str> = token.split('.').collect();
            let other = vectors["tokens"]["jane"].as_str().expect("a token").split('.').collect::<Vec<_>>();
            for forged in [
                format!("{}.{}.{}", parts[0], other[1], parts[2]),
                format!("{}.{}.{}", parts[0], parts[1], other[2]),
                format!("{}.{}.", parts[0], parts[1]),
                format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), parts[1], parts[2]),
                format!("{}.{}.{}", URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#), parts[1], parts[2]),
            ] {
                let claims = ForeignToken::read(&forged).and_then(|read| read.verify(&keys));
                assert_eq!(claims, None, "{name}: {forged}");
            }
        }
    }

    #[test]
    fn a_key_is_for_its_algorithm() {
        let vectors = vectors();
        let mut set = vectors["jwks"].clone();
        let token = ForeignToken::read(vectors["tokens"]["RS256"].as_str().expect("a token")).expect("a JWS");
        for (field, value, is_taken) in [
            ("alg", json!("RS256"), true),
            ("alg", json!("RS512"), false),
            ("use", json!("enc"), false),
            ("kid", json!("other"), false),
            ("n", json!("not base64!"), false),
            ("kty", json!("EC"), false),
        ] {
            let before = set["keys"][0].clone();
            set["keys"][0][field] = value;
            let keys = ForeignKeys::parse(set.to_string().as_bytes()).expect("keys");
            assert_eq!(token.verify(&keys).is_some(), is_taken, "{field}");
            set["keys"][0] = before;
        }
        assert!(ForeignKeys::parse(b"{}").is_err() && ForeignKeys::parse(b"{\"keys\":[]}").expect("a set").is_empty());
    }
}
