//! What relying parties read to verify tokens themselves: the OpenID discovery document
//! (`/.well-known/openid-configuration`) and the key set (`/openid/v1/jwks`).

use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::key::VerifyingKey;

/// The discovery document of an issuer. The keys are where the API server itself is reached, as upstream's default has it
/// (`pkg/serviceaccount/openidmetadata.go`), or else with the issuer.
#[must_use]
pub fn openid_configuration(issuer: &str, own: Option<SocketAddr>) -> Value {
    let base = own.map_or_else(|| issuer.trim_end_matches('/').to_owned(), |address| format!("https://{address}"));
    json!({
        "issuer": issuer,
        "jwks_uri": format!("{base}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// The key set (`application/jwk-set+json`).
#[must_use]
pub fn jwks(keys: &[VerifyingKey]) -> Value {
    let keys: Vec<Value> = keys
        .iter()
        .map(|key| {
            let (x, y) = key.coordinates();
            json!({
                "use": "sig",
                "kty": "EC",
                "kid": key.kid(),
                "crv": "P-256",
                "alg": "ES256",
                "x": URL_SAFE_NO_PAD.encode(x),
                "y": URL_SAFE_NO_PAD.encode(y),
            })
        })
        .collect();
    json!({ "keys": keys })
}
