//! A provider of OpenID Connect, in the flags that upstream's API server has for one alone; for more of them, and for all that can be
//! said of them, there is `--authentication-config`.
//!
//! Upstream: `OIDCAuthenticationOptions` of `k8s.io/kubernetes/pkg/kubeapiserver/options`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

/// The claim that is the user's name where no other is named.
const USERNAME: &str = "sub";

/// Flags of upstream's API server.
#[derive(Debug, Clone, Default, Args)]
pub struct OidcArgs {
    /// Provider of OpenID Connect whose tokens are accepted, as the URL that they name
    #[arg(long, value_name = "URL", requires = "oidc_client_id", conflicts_with = "authentication_config")]
    pub oidc_issuer_url: Option<String>,
    /// For whom the provider's tokens have to be
    #[arg(long, value_name = "NAME", requires = "oidc_issuer_url")]
    pub oidc_client_id: Option<String>,
    /// Certificate authority of the provider, in PEM
    #[arg(long, value_name = "FILE", requires = "oidc_issuer_url")]
    pub oidc_ca_file: Option<PathBuf>,
    /// The claim that is the user's name; sub without it
    #[arg(long, value_name = "CLAIM", requires = "oidc_issuer_url")]
    pub oidc_username_claim: Option<String>,
    /// What is put before the user's name, - for nothing; the provider's URL and # without it, unless the name is an email address
    #[arg(long, value_name = "TEXT", requires = "oidc_issuer_url")]
    pub oidc_username_prefix: Option<String>,
    /// The claim that is the user's groups
    #[arg(long, value_name = "CLAIM", requires = "oidc_issuer_url")]
    pub oidc_groups_claim: Option<String>,
    /// What is put before the names of groups
    #[arg(long, value_name = "TEXT", requires = "oidc_groups_claim")]
    pub oidc_groups_prefix: Option<String>,
    /// A claim that a token has to have, and its value; may be given several times
    #[arg(long, value_name = "CLAIM=VALUE", requires = "oidc_issuer_url")]
    pub oidc_required_claim: Vec<String>,
}

impl OidcArgs {
    /// The same as a configuration of authentication would say it; nothing where no provider is named.
    ///
    /// # Errors
    /// The authority cannot be read, or a claim that is required has no value.
    pub(super) fn configuration(&self) -> anyhow::Result<Option<String>> {
        let Some(url) = &self.oidc_issuer_url else { return Ok(None) };
        let authority = self
            .oidc_ca_file
            .as_ref()
            .map(|path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display())));
        let username = self.oidc_username_claim.as_deref().unwrap_or(USERNAME);
        let prefix = match self.oidc_username_prefix.as_deref() {
            Some("-") => String::new(),
            Some(prefix) if !prefix.is_empty() => prefix.to_owned(),
            _ if username == "email" => String::new(),
            _ => format!("{url}#"),
        };
        let groups = self
            .oidc_groups_claim
            .as_ref()
            .map(|claim| json!({"claim": claim, "prefix": self.oidc_groups_prefix.as_deref().unwrap_or_default()}));
        let mut rules = Vec::new();
        for required in &self.oidc_required_claim {
            let (claim, value) = required
                .split_once('=')
                .with_context(|| format!("--oidc-required-claim {required:?} is no CLAIM=VALUE"))?;
            rules.push(json!({"claim": claim, "requiredValue": value}));
        }
        let provider = json!({
            "issuer": {"url": url, "audiences": [self.oidc_client_id], "certificateAuthority": authority.transpose()?},
            "claimMappings": {"username": {"claim": username, "prefix": prefix}, "groups": groups},
            "claimValidationRules": rules,
        });
        let all = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "jwt": [provider]});
        Ok(Some(all.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn provider(change: impl FnOnce(&mut OidcArgs)) -> Result<Value, String> {
        let mut args = OidcArgs {
            oidc_issuer_url: Some("https://login.example.com".to_owned()),
            oidc_client_id: Some("carrack".to_owned()),
            ..OidcArgs::default()
        };
        change(&mut args);
        let text = args.configuration().map_err(|why| why.to_string())?.expect("a provider");
        let all: Value = serde_json::from_str(&text).expect("JSON");
        Ok(all["jwt"][0].clone())
    }

    #[test]
    fn names_have_prefixes() {
        let check = |claim: Option<&str>, prefix: Option<&str>, want: [&str; 2]| {
            let told = provider(|args| {
                args.oidc_username_claim = claim.map(str::to_owned);
                args.oidc_username_prefix = prefix.map(str::to_owned);
            });
            let name = told.expect("a provider")["claimMappings"]["username"].clone();
            assert_eq!(name, json!({"claim": want[0], "prefix": want[1]}), "{claim:?} {prefix:?}");
        };
        check(None, None, ["sub", "https://login.example.com#"]);
        check(Some("email"), None, ["email", ""]);
        check(Some("email"), Some("x:"), ["email", "x:"]);
        check(None, Some("-"), ["sub", ""]);
    }

    #[test]
    fn what_is_told_of_a_provider() {
        let plain = provider(|_| {}).expect("a provider");
        assert_eq!(
            (&plain["issuer"]["audiences"], &plain["claimMappings"]["groups"]),
            (&json!(["carrack"]), &Value::Null)
        );
        let told = provider(|args| {
            args.oidc_groups_claim = Some("groups".to_owned());
            args.oidc_groups_prefix = Some("g:".to_owned());
            args.oidc_required_claim = vec!["hd=example.com".to_owned()];
        });
        let told = told.expect("a provider");
        assert_eq!(told["claimMappings"]["groups"], json!({"claim": "groups", "prefix": "g:"}));
        assert_eq!(told["claimValidationRules"], json!([{"claim": "hd", "requiredValue": "example.com"}]));
        for (refused, why) in [
            (provider(|args| args.oidc_required_claim = vec!["hd".to_owned()]), "\"hd\" is no CLAIM=VALUE"),
            (provider(|args| args.oidc_ca_file = Some("/nowhere/ca.pem".into())), "cannot read /nowhere/ca.pem"),
        ] {
            assert!(refused.as_ref().is_err_and(|told| told.contains(why)), "{refused:?}, and not {why}");
        }
    }
}
