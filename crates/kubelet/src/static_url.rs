//! The URL that static pods are read from, with the headers that it is asked with (`staticPodURL`, `staticPodURLHeader`). Headers may
//! be keys, and so may what follows a `?`: neither is in a log, an event, or on a page.

use std::collections::BTreeMap;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Uri};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What is shown in place of a header's value, as in upstream's log.
const MASKED: &str = "<masked>";

/// Headers as the file has them.
#[derive(Clone, Default, Deserialize)]
#[serde(try_from = "Value")]
pub struct Headers(BTreeMap<String, Vec<String>>);

impl Headers {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl TryFrom<Value> for Headers {
    type Error = String;

    /// What is wrong is told without what is there.
    fn try_from(value: Value) -> Result<Self, String> {
        let read: Result<BTreeMap<String, Vec<String>>, _> = serde_json::from_value(value);
        read.map(Self).map_err(|_| "staticPodURLHeader is no object with a list of texts for each header".into())
    }
}

/// Where pods are read from.
#[derive(Clone, PartialEq, Eq)]
pub struct StaticUrl {
    url: Uri,
    headers: HeaderMap,
}

impl std::fmt::Debug for StaticUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

impl StaticUrl {
    /// A URL with headers.
    ///
    /// # Errors
    /// One that nobody can be asked at, or what is no header.
    pub fn new(url: &str, headers: &Headers) -> Result<Self, String> {
        let url = url.parse::<Uri>().map_err(|error| format!("staticPodURL is no URL: {error}"))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
            return Err("staticPodURL has to begin with http:// or https:// and a host".into());
        }
        if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(
                "staticPodURL must have no user and password; staticPodURLHeader may have an Authorization".into()
            );
        }
        let mut all = HeaderMap::new();
        for (name, values) in &headers.0 {
            let bad = || format!("staticPodURLHeader: {name:?} is no header, or has a value that none may have");
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            for value in values {
                let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
                value.set_sensitive(true);
                all.append(header.clone(), value);
            }
        }
        Ok(Self { url, headers: all })
    }

    /// Whether it is asked over TLS.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.url.scheme_str() == Some("https")
    }

    /// The URL for people.
    #[must_use]
    pub fn shown(&self) -> String {
        let (scheme, authority) = (self.url.scheme_str(), self.url.authority());
        format!("{}://{}{}", scheme.unwrap_or_default(), authority.map_or("", |at| at.as_str()), self.url.path())
    }

    /// The headers for people: who has which is no secret.
    #[must_use]
    pub fn shown_headers(&self) -> Map<String, Value> {
        self.headers.keys().map(|name| (name.to_string(), json!([MASKED]))).collect()
    }

    /// What is asked. Upstream's client takes no `Host` of these headers, either: it is the URL's.
    #[must_use]
    pub fn request<B>(&self, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.uri_mut() = self.url.clone();
        request.headers_mut().clone_from(&self.headers);
        request.headers_mut().remove(HOST);
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: Value) -> Result<Headers, String> {
        Headers::try_from(value)
    }

    #[test]
    fn a_url_is_one_that_can_be_asked_at() {
        for (url, given, expected) in [
            ("http://m.example.com/pods", json!({}), Ok("http://m.example.com/pods")),
            ("https://[::1]:8443", json!({"X-A": ["1", "2"]}), Ok("https://[::1]:8443/")),
            ("http://m:80/pods?key=hidden", json!({}), Ok("http://m:80/pods")),
            ("ftp://m/pods", json!({}), Err("http:// or https://")),
            ("/pods", json!({}), Err("http:// or https://")),
            ("http://", json!({}), Err("staticPodURL")),
            ("http://user:hidden@m/pods", json!({}), Err("no user and password")),
            ("http://m/", json!({"a b": ["hidden"]}), Err("\"a b\" is no header")),
            ("http://m/", json!({"A": ["hidden\n"]}), Err("\"A\" is no header")),
            ("http://m/", json!({"A": "hidden"}), Err("no object with a list")),
            ("http://m/", json!(["hidden"]), Err("no object with a list")),
        ] {
            let found = headers(given).and_then(|headers| StaticUrl::new(url, &headers)).map(|url| url.shown());
            match (&found, expected) {
                (Ok(shown), Ok(expected)) => assert_eq!(shown, expected, "{url}"),
                (Err(why), Err(part)) => assert!(why.contains(part) && !why.contains("hidden"), "{url}: {why}"),
                _ => panic!("{url}: {found:?}"),
            }
        }
    }

    #[test]
    fn headers_are_sent_and_never_shown() {
        let given = headers(json!({"Authorization": ["Bearer hidden"], "X-A": ["1", "2"], "Host": ["other"]})).unwrap();
        let url = StaticUrl::new("http://m/pods?key=hidden", &given).unwrap();
        let request = url.request(());
        assert_eq!(request.uri(), "http://m/pods?key=hidden");
        assert_eq!(request.headers()["authorization"], "Bearer hidden");
        assert_eq!(request.headers().get_all("x-a").iter().count(), 2);
        assert!(!request.headers().contains_key(HOST));
        let shown = Value::from(url.shown_headers());
        assert_eq!(shown, json!({"authorization": [MASKED], "host": [MASKED], "x-a": [MASKED]}));
        for text in [format!("{given:?}"), format!("{url:?}"), format!("{:?}", request.headers()), shown.to_string()] {
            assert!(!text.contains("hidden"), "{text}");
        }
    }
}
