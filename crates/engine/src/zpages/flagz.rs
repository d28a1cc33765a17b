//! `/flagz`: what a program was told on its command line, and what holds where it was told nothing.

use std::collections::BTreeMap;

use http::HeaderMap;
use serde_json::json;

use super::{Page, PageError};

/// Where the page is.
pub const PATH: &str = "/flagz";

/// Flags and their values, by name.
pub type Flags = BTreeMap<String, String>;

/// The page of a program, which is called as upstream's component, in the form that is asked for.
///
/// # Errors
/// 406 where it has no such form.
pub fn page(component: &str, flags: &Flags, headers: &HeaderMap) -> Result<Page, PageError> {
    let words = || flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect::<String>();
    super::page(headers, (component, "Flagz"), words, || json!({"flags": flags}))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::ACCEPT;
    use serde_json::Value;

    use super::*;

    #[test]
    fn flags_are_told() {
        let flags = [("v", "2"), ("bind-address", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let flags = Flags::from(flags);
        let mut headers = HeaderMap::new();
        let (_, text) = page("kube-scheduler", &flags, &headers).expect("a page");
        assert!(text.starts_with("\nkube-scheduler flagz\n") && text.ends_with("\n\nbind-address=\nv=2\n"), "{text}");
        let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let (_, text) = page("kube-scheduler", &flags, &headers).expect("a page");
        let want = json!({"apiVersion": "config.k8s.io/v1beta1", "kind": "Flagz", "metadata": {"name": "kube-scheduler"},
            "flags": {"v": "2", "bind-address": ""}});
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), want);
        let accept = "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz";
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let (media_type, text) = page("kube-scheduler", &flags, &headers).expect("a page");
        assert_eq!(media_type, "application/yaml");
        assert_eq!(serde_saphyr::from_str::<Value>(&text).expect("YAML"), want);
    }
}
