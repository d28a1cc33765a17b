//! Tokens of OpenID Connect providers: whose they are, as the operator's configuration says.
//!
//! ```text
//!   token ─► its issuer is configured? ─► signed by one of its keys? ─► for us, and not over? ─► rules ─► names ─► Caller
//!                                              │ no key fits
//!                                              └─► the provider is asked for its keys again, now and then
//! ```
//!
//! The configuration is upstream's file (`apiserver.config.k8s.io`, `AuthenticationConfiguration`), expressions included. A
//! provider that cannot be reached makes its tokens unknown (503), not wrong (401).
//!
//! Upstream: `k8s.io/apiserver/plugin/pkg/authenticator/token/oidc` and `pkg/apis/apiserver/validation`.
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#using-authentication-configuration>

mod claims;
mod config;
mod keys;

use carrack_auth::token::ForeignToken;
use carrack_auth::{Caller, Secret};

use crate::env::Env;
use crate::status::Status;

pub use config::AuthenticationConfiguration;
use config::Provider;
use keys::Keys;

/// The providers whose tokens are taken.
#[derive(Debug, Default)]
pub(crate) struct Providers(Vec<(Provider, Keys)>);

impl Providers {
    pub(crate) fn new(providers: Vec<Provider>) -> Providers {
        Providers(providers.into_iter().map(|provider| (provider, Keys::default())).collect())
    }

    /// Whose token this is; none when it is of no provider that is configured.
    ///
    /// # Errors
    /// 401 for a token that is not good, 503 when the provider's keys are not to be had.
    pub(crate) async fn caller(&self, env: &dyn Env, token: &Secret) -> Result<Option<Caller>, Status> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let Some(token) = ForeignToken::read(token.expose()) else { return Ok(None) };
        let issuer = token.claimed_issuer().unwrap_or_default();
        let Some((provider, keys)) = self.0.iter().find(|(provider, _)| provider.url == issuer) else {
            return Ok(None);
        };
        let claims = keys.verify(env, provider, &token).await?;
        match claims::caller(provider, &claims, env.now().as_second()) {
            Ok(caller) => Ok(Some(caller)),
            Err(why) => {
                tracing::debug!(issuer, why, "a provider's token is not accepted");
                Err(Status::unauthorized())
            }
        }
    }
}
