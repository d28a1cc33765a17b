//! As whom a user of a kubeconfig makes requests (`as` and what goes with it), in the headers of impersonation.
//!
//! Upstream: `AuthInfo` of `k8s.io/client-go/tools/clientcmd/api/v1`, and the round tripper of `k8s.io/client-go/transport` that
//! makes headers of it.

use http::{HeaderName, HeaderValue};

use super::KubeconfigError;
use super::model::AuthInfo;
use crate::authn::{HEADER_EXTRA_PREFIX, HEADER_GROUP, HEADER_UID, HEADER_USER};

/// The headers of the user with this name; none where he acts for himself.
pub(super) fn headers(user: &AuthInfo, name: &str) -> Result<Vec<(HeaderName, HeaderValue)>, KubeconfigError> {
    let text = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let (acts_as, uid) = (text(&user.act_as), text(&user.as_uid));
    let groups = user.as_groups.iter().flatten();
    let extra = user.as_user_extra.iter().flatten();
    let Some(acts_as) = acts_as else {
        let says_more = uid.is_some() || groups.count() > 0 || extra.count() > 0;
        return if says_more { Err(KubeconfigError::MissingField("as")) } else { Ok(Vec::new()) };
    };
    let mut said = vec![(HeaderName::from_static(HEADER_USER), acts_as)];
    said.extend(uid.map(|uid| (HeaderName::from_static(HEADER_UID), uid)));
    said.extend(groups.map(|group| (HeaderName::from_static(HEADER_GROUP), group.clone())));
    for (key, values) in extra {
        let header = HeaderName::try_from(format!("{HEADER_EXTRA_PREFIX}{}", escaped(key)));
        let header = header.map_err(|_| KubeconfigError::ActsAs(name.to_owned()))?;
        said.extend(values.iter().flatten().map(|value| (header.clone(), value.clone())));
    }
    let written = |(header, text): (HeaderName, String)| {
        let value = HeaderValue::try_from(text.into_bytes());
        value.map(|value| (header, value)).map_err(|_| KubeconfigError::ActsAs(name.to_owned()))
    };
    said.into_iter().map(written).collect()
}

/// A key as a header's name can have it: what that cannot hold is `%XX`.
fn escaped(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            name.push(char::from(byte));
        } else {
            name += &format!("%{byte:02X}");
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn who_is_acted_for_is_told_in_headers() {
        let check = |written: Value, want: Result<&[(&str, &str)], &str>| {
            let user: AuthInfo = serde_json::from_value(written.clone()).expect("a user");
            let got = headers(&user, "u").map_err(|error| error.to_string());
            let got = got.map(|all| {
                let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
                all.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect::<Vec<_>>()
            });
            let want = want.map(|all| all.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>());
            assert_eq!(got, want.map_err(str::to_owned), "{written}");
        };
        check(json!({}), Ok(&[]));
        check(json!({"as": "", "as-groups": null, "as-user-extra": {}}), Ok(&[]));
        check(json!({"as": "jürgen"}), Ok(&[("impersonate-user", "jürgen")]));
        let all = json!({"as": "a", "as-uid": "1", "as-groups": ["g", "h"],
            "as-user-extra": {"example.com/x%": ["1", "2"], "none": null}});
        let want = [
            ("impersonate-user", "a"),
            ("impersonate-uid", "1"),
            ("impersonate-group", "g"),
            ("impersonate-group", "h"),
            ("impersonate-extra-example.com%2fx%25", "1"),
            ("impersonate-extra-example.com%2fx%25", "2"),
        ];
        check(all, Ok(&want));
        for more in [json!({"as-uid": "1"}), json!({"as-groups": ["g"]}), json!({"as-user-extra": {"k": ["v"]}})] {
            check(more, Err("the kubeconfig's as is missing"));
        }
        let why = "the kubeconfig's user \"u\" acts as somebody who cannot be named in a header";
        check(json!({"as": "a\nb"}), Err(why));
    }
}
