//! Who may act as whom, and for which requests.
//!
//! ```text
//!   the node it runs on ─► any node ─► a service account ─► another user ─► anybody, for every request
//!
//!   of each but the last: may the request be made so? ─► may it be in their name?
//!                         impersonate-on:<mode>:<verb>   impersonate:<mode>
//! ```
//!
//! Upstream: `apiserver/pkg/endpoints/filters/impersonation/mode.go`
//! (<https://kubernetes.io/docs/reference/access-authn-authz/constrained-impersonation/>).

use super::{AUTHENTICATION_GROUP, Checked, ImpersonationError};
use crate::attributes::Attributes;
use crate::authorizer::Authorizer;
use crate::caller::{Caller, GROUP_MASTERS, NODE_USER_PREFIX, SERVICE_ACCOUNT_USER_PREFIX, split_service_account};
use crate::token::BoundNames;

/// The verb of those who may act as somebody else whatever they ask for.
const FOR_EVERYTHING: &str = "impersonate";
/// Of so many groups, or values of `extra`, it is asked first whether all that there are may be taken.
const MANY: usize = 4;

/// A way to act as somebody else for some requests only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// A pod acts as the node that it runs on.
    AssociatedNode,
    /// As any node.
    ArbitraryNode,
    /// As a service account.
    ServiceAccount,
    /// As a user of another kind, with any groups, uid and `extra`.
    UserInfo,
}

impl Mode {
    /// In the order in which they are tried.
    pub(super) const ALL: [Mode; 4] = [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo];

    /// The verb on whom one acts as.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "impersonate:associated-node",
            Mode::ArbitraryNode => "impersonate:arbitrary-node",
            Mode::ServiceAccount => "impersonate:serviceaccount",
            Mode::UserInfo => "impersonate:user-info",
        }
    }

    /// As it is counted.
    fn name(self) -> &'static str {
        self.verb().strip_prefix("impersonate:").unwrap_or_default()
    }

    /// Whether it is a node that one acts as.
    pub(super) fn is_of_nodes(self) -> bool {
        matches!(self, Mode::AssociatedNode | Mode::ArbitraryNode)
    }

    /// Whether this is the way for `caller` to act as `wanted`. What nodes and service accounts are in besides is not for who
    /// acts as one to say.
    pub(super) fn fits(self, caller: &Caller, wanted: &Caller) -> bool {
        let is_name_alone = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let node = node_of(&wanted.user);
        match self {
            Mode::AssociatedNode => is_name_alone && node.is_some_and(|node| runs_on(caller, node)),
            Mode::ArbitraryNode => is_name_alone && node.is_some(),
            Mode::ServiceAccount => is_name_alone && split_service_account(&wanted.user).is_some(),
            Mode::UserInfo => {
                let reserved = [NODE_USER_PREFIX, SERVICE_ACCOUNT_USER_PREFIX];
                !reserved.iter().any(|prefix| wanted.user.starts_with(prefix))
            }
        }
    }

    /// The user as whom one acts, as something that the verb is allowed on.
    fn user(self, wanted: &Caller) -> Attributes<'_> {
        let at = |resource| Attributes::resource(self.verb(), AUTHENTICATION_GROUP, resource);
        match self {
            // Which node it is follows from the pod, so that a rule is for all nodes or for none.
            Mode::AssociatedNode => at("nodes").named("*"),
            Mode::ArbitraryNode => at("nodes").named(node_of(&wanted.user).unwrap_or_default()),
            Mode::ServiceAccount | Mode::UserInfo => named(at, wanted),
        }
    }
}

/// The verb on what one does in somebody's name, by the verb on whom one acts as ([`super::Impersonated::constraint`]).
#[must_use]
pub fn verb_on(constraint: &str, verb: &str) -> String {
    let mode = constraint.strip_prefix("impersonate:").unwrap_or(constraint);
    format!("impersonate-on:{mode}:{verb}")
}

/// A user or a service account.
fn named<'a>(at: impl Fn(&'static str) -> Attributes<'a>, wanted: &'a Caller) -> Attributes<'a> {
    match split_service_account(&wanted.user) {
        Some((namespace, name)) => at("serviceaccounts").in_namespace(namespace).named(name),
        None => at("users").named(&wanted.user),
    }
}

/// The node of a user's name, if it is one's.
fn node_of(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_USER_PREFIX).filter(|name| is_subdomain(name))
}

/// Whether it is a pod on this node that asks, as its token says.
fn runs_on(caller: &Caller, node: &str) -> bool {
    let said = caller.extra.get(BoundNames::NODE_NAME).map(Vec::as_slice);
    caller.service_account_name().is_some() && matches!(said, Some([one]) if one == node)
}

/// Whether a text is a DNS-1123 subdomain.
fn is_subdomain(text: &str) -> bool {
    let is_label = |label: &str| {
        let has_form = label.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        has_form && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Asks for somebody what he may.
pub(super) struct Asker<'a> {
    pub authorizer: &'a Authorizer,
    pub caller: &'a Caller,
    pub checked: Checked<'a>,
}

impl Asker<'_> {
    /// Whether the request may be made in somebody else's name.
    pub(super) fn may_act(&self, mode: Mode, request: &Attributes<'_>) -> bool {
        let verb = verb_on(mode.verb(), request.verb);
        let allowed = self.authorizer.authorize(self.caller, &Attributes { verb: &verb, ..*request }).allowed();
        (self.checked)(mode.name(), allowed);
        allowed
    }

    /// Whether it may be in their name; without a mode, for every request.
    ///
    /// # Errors
    /// What of it he may not.
    pub(super) fn may_be(&self, mode: Option<Mode>, wanted: &Caller) -> Result<(), ImpersonationError> {
        let verb = mode.map_or(FOR_EVERYTHING, Mode::verb);
        // Those who may act for every request have their rules since before there was a group for such things.
        let of_names = if mode.is_some() { AUTHENTICATION_GROUP } else { "" };
        self.check(
            mode,
            &match mode {
                Some(mode) => mode.user(wanted),
                None => named(|resource| Attributes::resource(verb, of_names, resource), wanted),
            },
        )?;
        if !wanted.uid.is_empty() {
            self.check(mode, &Attributes::resource(verb, AUTHENTICATION_GROUP, "uids").named(&wanted.uid))?;
        }
        self.may_have_groups(mode, &Attributes::resource(verb, of_names, "groups"), wanted)?;
        self.may_have_extra(mode, &Attributes::resource(verb, AUTHENTICATION_GROUP, "userextras"), wanted)
    }

    fn may_have_groups(
        &self,
        mode: Option<Mode>,
        groups: &Attributes<'_>,
        wanted: &Caller,
    ) -> Result<(), ImpersonationError> {
        if mode.is_some() {
            for (unfit, shown) in [("", "empty string"), (GROUP_MASTERS, GROUP_MASTERS)] {
                if wanted.in_group(unfit) {
                    let why = format!("impersonating the {shown} group is not allowed");
                    return Err(self.refusal(&Attributes { name: unfit, ..*groups }, &why));
                }
            }
            if wanted.groups.len() >= MANY && self.check(mode, &Attributes { name: "*", ..*groups }).is_ok() {
                return Ok(());
            }
        }
        wanted.groups.iter().try_for_each(|name| self.check(mode, &Attributes { name, ..*groups }))
    }

    fn may_have_extra(
        &self,
        mode: Option<Mode>,
        extra: &Attributes<'_>,
        wanted: &Caller,
    ) -> Result<(), ImpersonationError> {
        if mode.is_some() {
            if let Some(why) = wanted.extra.iter().find_map(|(key, values)| extra_fault(key, values)) {
                return Err(self.refusal(extra, &why));
            }
            let count: usize = wanted.extra.values().map(Vec::len).sum();
            if count >= MANY && self.check(mode, &Attributes { subresource: "*", name: "*", ..*extra }).is_ok() {
                return Ok(());
            }
        }
        let mut each = wanted.extra.iter().flat_map(|(key, values)| values.iter().map(move |value| (key, value)));
        each.try_for_each(|(key, value)| self.check(mode, &Attributes { subresource: key, name: value, ..*extra }))
    }

    fn check(&self, mode: Option<Mode>, attributes: &Attributes<'_>) -> Result<(), ImpersonationError> {
        let decision = self.authorizer.authorize(self.caller, attributes);
        (self.checked)(mode.map_or(super::LEGACY, Mode::name), decision.allowed());
        if decision.allowed() { Ok(()) } else { Err(self.refusal(attributes, decision.reason())) }
    }

    fn refusal(&self, attributes: &Attributes<'_>, why: &str) -> ImpersonationError {
        ImpersonationError::Forbidden {
            message: attributes.forbidden_message(self.caller, why),
            resource: attributes.resource.to_owned(),
            group: attributes.group.to_owned(),
            name: attributes.name.to_owned(),
        }
    }
}

/// What is wrong with something of `extra` where it is taken for some requests only.
fn extra_fault(key: &str, values: &[String]) -> Option<String> {
    let (domain, path) = key.split_once('/').unwrap_or_default();
    let is_of_paths = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if key.is_empty() {
        Some("impersonating the empty string key in extra is not allowed".to_owned())
    } else if !is_subdomain(domain) || path.is_empty() || !path.bytes().all(is_of_paths) {
        let form = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        Some(format!("impersonating an invalid key in extra is not allowed: {key:?}: {form}"))
    } else if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Some(format!("impersonating a non-lowercase key in extra is not allowed: {key:?}"))
    } else if values.iter().any(String::is_empty) {
        Some("impersonating the empty string value in extra is not allowed".to_owned())
    } else {
        None
    }
}
