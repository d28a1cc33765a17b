//! From claims that are proved to a caller.

use std::collections::BTreeMap;

use carrack_auth::Caller;
use carrack_auth::token::BoundNames;
use carrack_cel::{Budget, Program, Type, Value as Cel, Variables};
use serde_json::{Map, Value, json};

use super::config::{ClaimRule, Name, Provider, Rule};

/// What one expression may cost.
const MAX_COST: u64 = 1_000_000;
/// Clocks of provider and server may differ by this much where a token is not good yet; upstream's bound.
const LEEWAY_S: i64 = 300;

/// Who a token's claims say that its bearer is.
pub(super) fn caller(provider: &Provider, claims: &Map<String, Value>, now_s: i64) -> Result<Caller, String> {
    if claims.get("iss").and_then(Value::as_str) != Some(&provider.url) {
        return Err("it is of another issuer".to_owned());
    }
    let audiences = texts(claims.get("aud").unwrap_or(&Value::Null)).ok_or("its audiences are no texts")?;
    if !audiences.iter().any(|audience| provider.audiences.contains(audience)) {
        return Err(format!("it is for {audiences:?}"));
    }
    let time = |claim: &str| claims.get(claim).and_then(seconds);
    if time("exp").ok_or("it does not say when it ends")? <= now_s {
        return Err("it has expired".to_owned());
    }
    if time("nbf").is_some_and(|from| from > now_s + LEEWAY_S) {
        return Err("it is not good yet".to_owned());
    }
    let variables = variables("claims", &Value::Object(claims.clone()));
    for rule in &provider.rules {
        match rule {
            ClaimRule::Is { claim, value } => {
                if claims.get(claim).and_then(Value::as_str) != Some(value) {
                    return Err(format!("the claim {claim:?} is not {value:?}"));
                }
            }
            ClaimRule::Holds(rule) => holds(rule, &variables)?,
        }
    }
    let username = named(&provider.username, claims, &variables)?;
    let [username] = username.as_slice() else { return Err("it names no user, or several".to_owned()) };
    if username.is_empty() {
        return Err("it names nobody".to_owned());
    }
    let groups = provider.groups.as_ref().map(|name| named(name, claims, &variables)).transpose()?.unwrap_or_default();
    let uid = provider.uid.as_ref().map(|name| named(name, claims, &variables)).transpose()?.unwrap_or_default();
    let groups: Vec<String> = groups.into_iter().filter(|group| !group.is_empty()).collect();
    let mut caller = Caller::new(username.clone(), groups.clone());
    caller.uid = uid.into_iter().next().unwrap_or_default();
    for (key, program) in &provider.extra {
        let values: Vec<String> =
            evaluated(program, &variables)?.into_iter().filter(|value| !value.is_empty()).collect();
        if !values.is_empty() {
            caller.extra.insert(key.clone(), values);
        }
    }
    if let Some(id) = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty()) {
        caller.extra.insert(BoundNames::CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
    }
    // As the provider has it, without the group that every user is in.
    let user = json!({"username": caller.user, "uid": caller.uid, "groups": groups, "extra": caller.extra});
    let variables = self::variables("user", &user);
    provider.user_rules.iter().try_for_each(|rule| holds(rule, &variables))?;
    Ok(caller)
}

fn variables(name: &'static str, value: &Value) -> Variables {
    Variables(BTreeMap::from([(name, Cel::from_json(value, &Type::Dyn))]))
}

fn holds(rule: &Rule, variables: &Variables) -> Result<(), String> {
    match rule.program.eval(variables, &mut Budget::new(MAX_COST)) {
        Ok(Cel::Bool(true)) => Ok(()),
        Ok(_) => Err(rule.message.clone()),
        Err(error) => Err(error.to_string()),
    }
}

/// The names that a claim or an expression gives.
fn named(name: &Name, claims: &Map<String, Value>, variables: &Variables) -> Result<Vec<String>, String> {
    match name {
        Name::Expression(program) => evaluated(program, variables),
        Name::Claim { claim, prefix } => {
            let value = claims.get(claim).unwrap_or(&Value::Null);
            // An address that its owner has not confirmed is nobody's.
            if claim == "email" && claims.get("email_verified").is_some_and(|verified| *verified != Value::Bool(true)) {
                return Err("the address is not verified".to_owned());
            }
            let texts = texts(value).ok_or_else(|| format!("the claim {claim:?} is no text, nor a list of them"))?;
            Ok(texts.into_iter().map(|text| if text.is_empty() { text } else { format!("{prefix}{text}") }).collect())
        }
    }
}

fn evaluated(program: &Program, variables: &Variables) -> Result<Vec<String>, String> {
    let value = program.eval(variables, &mut Budget::new(MAX_COST)).map_err(|error| error.to_string())?;
    value.to_json().as_ref().and_then(texts).ok_or_else(|| "an expression gives no text, nor a list of them".to_owned())
}

/// A text, or a list of texts; nothing is none.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(list) => list.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

/// A time in seconds since the epoch, which providers may give parts of.
fn seconds(value: &Value) -> Option<i64> {
    let number = value.as_f64().filter(|number| number.is_finite() && number.abs() < 1e15)?;
    // Within these bounds nothing is lost but the part of a second.
    format!("{:.0}", number.floor()).parse().ok()
}
