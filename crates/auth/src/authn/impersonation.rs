//! Acting as somebody else: the `Impersonate-*` headers, each of which takes the verb `impersonate`
//! on what it names.
//!
//! Upstream: `apiserver/pkg/endpoints/filters/impersonation`.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName};

use crate::attributes::Attributes;
use crate::authorizer::Authorizer;
use crate::caller::{
    Caller, GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED, service_account_groups, split_service_account,
};

const HEADER_USER: &str = "impersonate-user";
const HEADER_GROUP: &str = "impersonate-group";
const HEADER_UID: &str = "impersonate-uid";
const HEADER_EXTRA_PREFIX: &str = "impersonate-extra-";

const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";

/// Why a request must not be made as somebody else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImpersonationError {
    /// 400: the headers make no sense.
    #[error("{0}")]
    BadRequest(String),
    /// 403: the caller may not. The text is the whole message of the Status.
    #[error("{message}")]
    Forbidden {
        /// The message.
        message: String,
        /// The resource that was refused (`users`, `groups`, `serviceaccounts`, `uids`, `userextras`).
        resource: &'static str,
        /// Its API group.
        group: &'static str,
        /// Its name.
        name: String,
    },
}

/// As whom the request is to be made: none when it does not ask to be made as somebody else.
///
/// # Errors
/// [`ImpersonationError`].
pub fn impersonate(
    authorizer: &Authorizer,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Option<Caller>, ImpersonationError> {
    let Some(wanted) = wanted(headers)? else {
        return Ok(None);
    };
    let check = |attributes: Attributes<'_>, resource, group| {
        let decision = authorizer.authorize(caller, &attributes);
        if decision.allowed() {
            return Ok(());
        }
        Err(ImpersonationError::Forbidden {
            message: attributes.forbidden_message(caller, decision.reason()),
            resource,
            group,
            name: attributes.name.to_owned(),
        })
    };
    let verb = "impersonate";
    match split_service_account(&wanted.user) {
        Some((namespace, name)) => check(
            Attributes::resource(verb, "", "serviceaccounts").in_namespace(namespace).named(name),
            "serviceaccounts",
            "",
        )?,
        None => check(Attributes::resource(verb, "", "users").named(&wanted.user), "users", "")?,
    }
    for name in &wanted.groups {
        check(Attributes::resource(verb, "", "groups").named(name), "groups", "")?;
    }
    if !wanted.uid.is_empty() {
        check(
            Attributes::resource(verb, AUTHENTICATION_GROUP, "uids").named(&wanted.uid),
            "uids",
            AUTHENTICATION_GROUP,
        )?;
    }
    for (key, values) in &wanted.extra {
        for value in values {
            check(
                Attributes::resource(verb, AUTHENTICATION_GROUP, "userextras").with_subresource(key).named(value),
                "userextras",
                AUTHENTICATION_GROUP,
            )?;
        }
    }
    Ok(Some(complete(wanted)))
}

/// Removes the headers that ask for impersonation, so that nobody behind sees them again.
pub fn strip_impersonation(headers: &mut HeaderMap) {
    let names: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            let name = name.as_str();
            matches!(name, HEADER_USER | HEADER_GROUP | HEADER_UID) || name.starts_with(HEADER_EXTRA_PREFIX)
        })
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}

/// What the headers ask for.
fn wanted(headers: &HeaderMap) -> Result<Option<Caller>, ImpersonationError> {
    let bad = |text: &str| ImpersonationError::BadRequest(text.to_owned());
    let text = |value: &http::HeaderValue| {
        value.to_str().map(str::to_owned).map_err(|_| bad("an impersonation header is not text"))
    };
    let single = |name: &str| headers.get(name).map(text).transpose();
    let groups: Vec<String> = headers.get_all(HEADER_GROUP).iter().map(text).collect::<Result<_, _>>()?;
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(HEADER_EXTRA_PREFIX) {
            extra.entry(percent_decode(key)).or_default().push(text(value)?);
        }
    }
    let caller = Caller {
        user: single(HEADER_USER)?.unwrap_or_default(),
        uid: single(HEADER_UID)?.unwrap_or_default(),
        groups,
        extra,
    };
    if caller == Caller::default() {
        return Ok(None);
    }
    if caller.user.is_empty() {
        return Err(bad("requested group, uid or extra without impersonating a user"));
    }
    Ok(Some(caller))
}

/// Adds the groups that the impersonated would have got by authentication.
fn complete(mut caller: Caller) -> Caller {
    if caller.groups.is_empty()
        && let Some((namespace, _)) = split_service_account(&caller.user)
    {
        caller.groups = service_account_groups(namespace).into();
    }
    let classed = caller.in_group(GROUP_AUTHENTICATED) || caller.in_group(GROUP_UNAUTHENTICATED);
    if !classed {
        let group = if caller.is_anonymous() { GROUP_UNAUTHENTICATED } else { GROUP_AUTHENTICATED };
        caller.add_group(group);
    }
    caller
}

/// Decodes `%XX`; what is not so encoded stays as it is.
fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex =
            (byte == b'%').then(|| text.get(at + 1..at + 3)).flatten().and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match hex {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}
