//! Acting as somebody else: the `Impersonate-*` headers, what they take, and who the request is then by.
//!
//! It may be allowed for every request, by the verb `impersonate` on what the headers name, or for some requests only
//! ([`modes`]). What is allowed for some only is tried first, so that who has both is noted as one who needed no more.
//!
//! Upstream: `apiserver/pkg/endpoints/filters/impersonation`.

mod modes;

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName};

use crate::attributes::Attributes;
use crate::authorizer::Authorizer;
use crate::caller::{
    Caller, GROUP_AUTHENTICATED, GROUP_NODES, GROUP_UNAUTHENTICATED, service_account_groups, split_service_account,
};
pub use modes::verb_on;
use modes::{Asker, Mode};

/// The way of those who may act as somebody else whatever they ask for, as it is counted.
const LEGACY: &str = "legacy";

pub(crate) const HEADER_USER: &str = "impersonate-user";
pub(crate) const HEADER_GROUP: &str = "impersonate-group";
pub(crate) const HEADER_UID: &str = "impersonate-uid";
pub(crate) const HEADER_EXTRA_PREFIX: &str = "impersonate-extra-";

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
        /// The resource that was refused (`users`, `nodes`, `groups`, `serviceaccounts`, `uids`, `userextras`).
        resource: String,
        /// Its API group.
        group: String,
        /// Its name.
        name: String,
    },
}

/// As whom a request is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonated {
    /// Who it counts for.
    pub caller: Caller,
    /// The verb that allows it, where it is allowed for some requests only.
    pub constraint: Option<&'static str>,
}

/// Is told of each question whether the caller may act so: the way in which he acts as somebody else, and whether he may.
pub type Checked<'a> = &'a dyn Fn(&'static str, bool);

impl Impersonated {
    /// The way in which the caller acts as somebody else.
    #[must_use]
    pub fn mode(&self) -> &'static str {
        self.constraint.map_or(LEGACY, |verb| verb.strip_prefix("impersonate:").unwrap_or(verb))
    }
}

/// As whom the request is to be made: none when it does not ask to be made as somebody else.
///
/// Who may make it as somebody else, but not as this one, is told so; all others are told that they may not act as others.
/// Upstream tells whatever it tried first.
///
/// # Errors
/// [`ImpersonationError`].
pub fn impersonate(
    authorizer: &Authorizer,
    caller: &Caller,
    request: &Attributes<'_>,
    headers: &HeaderMap,
    checked: Checked<'_>,
) -> Result<Option<Impersonated>, ImpersonationError> {
    let Some(wanted) = wanted(headers)? else {
        return Ok(None);
    };
    let asker = Asker { authorizer, caller, checked };
    let mut told = None;
    for mode in Mode::ALL {
        if !mode.fits(caller, &wanted) || !asker.may_act(mode, request) {
            continue;
        }
        match asker.may_be(Some(mode), &wanted) {
            Ok(()) => {
                let caller = complete(wanted, mode.is_of_nodes());
                return Ok(Some(Impersonated { caller, constraint: Some(mode.verb()) }));
            }
            Err(refusal) => {
                told.get_or_insert(refusal);
            }
        }
    }
    match asker.may_be(None, &wanted) {
        Ok(()) => Ok(Some(Impersonated { caller: complete(wanted, false), constraint: None })),
        Err(refusal) => Err(told.unwrap_or(refusal)),
    }
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

/// Adds the groups that the impersonated would have got by authentication; of a node, where it is known to be one.
fn complete(mut caller: Caller, is_node: bool) -> Caller {
    if is_node {
        caller.groups = vec![GROUP_NODES.to_owned()];
    } else if caller.groups.is_empty()
        && let Some((namespace, _)) = split_service_account(&caller.user)
    {
        caller.groups = service_account_groups(namespace).into();
    }
    if caller.is_anonymous() {
        caller.add_group(GROUP_UNAUTHENTICATED);
    } else if !caller.in_group(GROUP_UNAUTHENTICATED) {
        caller.add_group(GROUP_AUTHENTICATED);
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
