//! `AuthenticationConfiguration`: which providers there are, and how their claims become names.

use std::collections::BTreeSet;

use carrack_auth::Anonymous;
use carrack_cel::{Env, Program, Type};
use carrack_schema::decode;
use serde::Deserialize;

const GROUP: &str = "apiserver.config.k8s.io/";
const KIND: &str = "AuthenticationConfiguration";
/// Most providers that a configuration may have, as upstream.
const MAX_PROVIDERS: usize = 64;

/// Who may come in by other people's tokens.
#[derive(Debug, Default)]
pub struct AuthenticationConfiguration {
    pub(crate) providers: Vec<Provider>,
    /// Which requests without credentials are taken.
    pub anonymous: Anonymous,
}

/// A provider of tokens.
#[derive(Debug)]
pub(crate) struct Provider {
    pub url: String,
    pub discovery_url: Option<String>,
    pub authorities_pem: Option<String>,
    pub audiences: Vec<String>,
    pub rules: Vec<ClaimRule>,
    pub username: Name,
    pub groups: Option<Name>,
    pub uid: Option<Name>,
    pub extra: Vec<(String, Program)>,
    pub user_rules: Vec<Rule>,
}

/// Where a name comes from.
#[derive(Debug)]
pub(crate) enum Name {
    Claim { claim: String, prefix: String },
    Expression(Program),
}

/// What has to hold of claims.
#[derive(Debug)]
pub(crate) enum ClaimRule {
    /// A claim is this text.
    Is {
        claim: String,
        value: String,
    },
    Holds(Rule),
}

/// An expression that has to be true, and what is said when it is not.
#[derive(Debug)]
pub(crate) struct Rule {
    pub program: Program,
    pub message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    api_version: String,
    kind: String,
    #[serde(default)]
    jwt: Vec<WrittenProvider>,
    anonymous: Option<WrittenAnonymous>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAnonymous {
    enabled: bool,
    #[serde(default)]
    conditions: Vec<WrittenCondition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCondition {
    path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenProvider {
    issuer: WrittenIssuer,
    #[serde(default)]
    claim_validation_rules: Vec<WrittenRule>,
    claim_mappings: WrittenMappings,
    #[serde(default)]
    user_validation_rules: Vec<WrittenRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenIssuer {
    url: String,
    #[serde(rename = "discoveryURL")]
    discovery_url: Option<String>,
    certificate_authority: Option<String>,
    audiences: Vec<String>,
    #[serde(default)]
    audience_match_policy: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct WrittenRule {
    claim: String,
    required_value: String,
    expression: String,
    message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenMappings {
    username: WrittenName,
    groups: Option<WrittenName>,
    uid: Option<WrittenName>,
    #[serde(default)]
    extra: Vec<WrittenExtra>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenName {
    claim: String,
    prefix: Option<String>,
    expression: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenExtra {
    key: String,
    value_expression: String,
}

impl AuthenticationConfiguration {
    /// Reads a file. `own_issuer` is this server's own, whose tokens are not another's to say anything about.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(text: &[u8], own_issuer: &str) -> Result<Self, String> {
        let written: Written = serde_json::from_value(decode::file(text)?).map_err(|error| error.to_string())?;
        let version = written.api_version.strip_prefix(GROUP).unwrap_or_default();
        if !matches!(version, "v1" | "v1beta1" | "v1alpha1") || written.kind != KIND {
            return Err(format!("{} {} is not {GROUP}v1 {KIND}", written.api_version, written.kind));
        }
        if written.jwt.len() > MAX_PROVIDERS {
            return Err(format!("jwt: there are more than {MAX_PROVIDERS}"));
        }
        let mut providers = Vec::new();
        let mut urls = BTreeSet::new();
        for (index, one) in written.jwt.into_iter().enumerate() {
            let provider = provider(one).map_err(|why| format!("jwt[{index}].{why}"))?;
            if provider.url == own_issuer {
                return Err(format!("jwt[{index}].issuer.url: that is the issuer of service accounts"));
            }
            let places = [Some(provider.url.clone()), provider.discovery_url.clone()];
            if !places.into_iter().flatten().all(|url| urls.insert(url)) {
                return Err(format!("jwt[{index}].issuer: there is another provider of the same URL"));
            }
            providers.push(provider);
        }
        let anonymous = match written.anonymous {
            None => Anonymous::All,
            Some(WrittenAnonymous { enabled: false, conditions }) if conditions.is_empty() => Anonymous::None,
            Some(WrittenAnonymous { enabled: false, .. }) => {
                return Err(
                    "anonymous.conditions: enabled should be set to true when conditions are defined".to_owned()
                );
            }
            Some(WrittenAnonymous { conditions, .. }) if conditions.is_empty() => Anonymous::All,
            Some(WrittenAnonymous { conditions, .. }) => {
                Anonymous::At(conditions.into_iter().map(|condition| condition.path).collect())
            }
        };
        Ok(Self { providers, anonymous })
    }
}

fn provider(written: WrittenProvider) -> Result<Provider, String> {
    let WrittenProvider { issuer, claim_validation_rules, claim_mappings, user_validation_rules } = written;
    for (field, url) in [("url", Some(&issuer.url)), ("discoveryURL", issuer.discovery_url.as_ref())] {
        let Some(url) = url else { continue };
        let parsed = url.parse::<http::Uri>().ok().filter(|uri| uri.scheme_str() == Some("https"));
        if parsed.is_none_or(|uri| uri.host().is_none_or(str::is_empty) || uri.query().is_some()) {
            return Err(format!("issuer.{field}: {url:?} is not an https URL without a query"));
        }
    }
    if issuer.audiences.is_empty() || issuer.audiences.iter().any(String::is_empty) {
        return Err("issuer.audiences: at least one is required".to_owned());
    }
    match (issuer.audiences.len(), issuer.audience_match_policy.as_str()) {
        (1, "") | (_, "MatchAny") => {}
        (1, other) => return Err(format!("issuer.audienceMatchPolicy: {other:?} is not MatchAny")),
        _ => return Err("issuer.audienceMatchPolicy: must be MatchAny for several audiences".to_owned()),
    }
    verified_email(&claim_mappings, &claim_validation_rules)?;
    let mappings = claim_mappings;
    let optional = |field: &str, name: Option<WrittenName>, with_prefix: bool| match name {
        Some(name) if name.claim.is_empty() && name.expression.is_empty() => Ok(None),
        Some(name) => name_of(field, name, with_prefix).map(Some),
        None => Ok(None),
    };
    let mut extra = Vec::new();
    for one in mappings.extra {
        if !one.key.contains('/') || one.key.to_ascii_lowercase() != one.key {
            return Err(format!("claimMappings.extra: the key {:?} is no path in a domain, in lower case", one.key));
        }
        // What is below these is what the server itself has found out, such as the node that a token's pod runs on.
        let domain = one.key.split('/').next().unwrap_or_default();
        let is_in = |own: &str| domain.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if is_in("k8s.io") || is_in("kubernetes.io") {
            return Err(format!("claimMappings.extra: the key {:?} is in a domain that is Kubernetes' own", one.key));
        }
        if extra.iter().any(|(known, _)| *known == one.key) {
            return Err(format!("claimMappings.extra: the key {:?} is there twice", one.key));
        }
        let program = compiled("claimMappings.extra", &one.value_expression, "claims")?;
        extra.push((one.key, program));
    }
    let claim_rule = |rule: WrittenRule| match (rule.claim.is_empty(), rule.expression.is_empty()) {
        (false, true) => Ok(ClaimRule::Is { claim: rule.claim, value: rule.required_value }),
        (true, false) => rule_of("claimValidationRules", rule, "claims").map(ClaimRule::Holds),
        _ => Err("claimValidationRules: either claim or expression is required".to_owned()),
    };
    Ok(Provider {
        url: issuer.url,
        discovery_url: issuer.discovery_url,
        authorities_pem: issuer.certificate_authority.filter(|pem| !pem.is_empty()),
        audiences: issuer.audiences,
        rules: claim_validation_rules.into_iter().map(claim_rule).collect::<Result<_, _>>()?,
        username: name_of("claimMappings.username", mappings.username, true)?,
        groups: optional("claimMappings.groups", mappings.groups, true)?,
        uid: optional("claimMappings.uid", mappings.uid, false)?,
        extra,
        user_rules: user_validation_rules
            .into_iter()
            .map(|rule| rule_of("userValidationRules", rule, "user"))
            .collect::<Result<_, _>>()?,
    })
}

/// An address that nobody has verified could be anybody's: who makes a name of it by an expression has to look.
fn verified_email(mappings: &WrittenMappings, rules: &[WrittenRule]) -> Result<(), String> {
    let looks = |expression: &str| expression.contains("claims.email_verified");
    let uses_email = mappings.username.expression.replace("claims.email_verified", "").contains("claims.email");
    let is_looked_at = looks(&mappings.username.expression)
        || mappings.extra.iter().any(|extra| looks(&extra.value_expression))
        || rules.iter().any(|rule| looks(&rule.expression));
    if uses_email && !is_looked_at {
        let why = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";
        return Err(format!("claimMappings.username.expression: {why}"));
    }
    Ok(())
}

fn name_of(field: &str, name: WrittenName, with_prefix: bool) -> Result<Name, String> {
    match (name.claim.is_empty(), name.expression.is_empty(), name.prefix) {
        (false, true, Some(prefix)) if with_prefix => Ok(Name::Claim { claim: name.claim, prefix }),
        (false, true, None) if with_prefix => {
            Err(format!("{field}.prefix: required when claim is set; it may be empty"))
        }
        (false, true, None) => Ok(Name::Claim { claim: name.claim, prefix: String::new() }),
        (true, false, None) => Ok(Name::Expression(compiled(field, &name.expression, "claims")?)),
        (true, false, Some(_)) => Err(format!("{field}.prefix: not together with an expression")),
        _ => Err(format!("{field}: either claim or expression is required")),
    }
}

fn rule_of(field: &str, rule: WrittenRule, variable: &'static str) -> Result<Rule, String> {
    let program = compiled(field, &rule.expression, variable)?;
    if !program.result.fits(&Type::Bool) {
        return Err(format!("{field}: {:?} is no boolean", rule.expression));
    }
    let message =
        if rule.message.is_empty() { format!("failed expression: {}", rule.expression) } else { rule.message };
    Ok(Rule { program, message })
}

fn compiled(field: &str, source: &str, variable: &'static str) -> Result<Program, String> {
    Program::compile(source, &Env::new().with(variable, Type::Dyn)).map_err(|error| format!("{field}: {error}"))
}
