//! Calls that the logic makes to other servers: admission webhooks, conversion webhooks, aggregated APIs.
//!
//! The logic says whom to call, with what, and how long to wait; [`crate::Env::call`] does it. In a process
//! that is [`crate::serve::Outbound`]; the simulator has one that is slow, fails and lies.

use std::sync::Arc;

use bytes::Bytes;
use carrack_auth::kubeconfig::Credentials;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Uri};

/// A call over HTTPS.
#[derive(Clone, Debug)]
pub struct Call {
    /// Method.
    pub method: Method,
    /// The name that the server's certificate must carry.
    pub server_name: String,
    /// The host that the URL names, without brackets; the server is told it.
    pub host: String,
    /// Where the server is, by address or by a name to look up; none where that is the host.
    pub place: Option<String>,
    /// The server's port.
    pub port: u16,
    /// Path and query.
    pub path_and_query: String,
    /// Whom to take for the server.
    pub trust: Trust,
    /// What the caller shows beside the certificate of the process, or in its place.
    pub credentials: Option<Arc<Credentials>>,
    /// Headers besides the usual ones.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// When to give up, in milliseconds from now.
    pub timeout_ms: u64,
    /// Longest reply that is read, in bytes.
    pub max_reply_bytes: usize,
}

/// Where a URL leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Name or address, without brackets.
    pub host: String,
    pub port: u16,
    pub path_and_query: String,
}

impl Destination {
    /// Reads a URL.
    ///
    /// # Errors
    /// In words, where it is none, or not one of HTTPS.
    pub(crate) fn parse(url: &str) -> Result<Destination, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url:?} is not a URL: {error}"))?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("https"));
        let host = host.ok_or_else(|| format!("{url:?} is not an https URL"))?;
        Ok(Destination {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(443),
            path_and_query: uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
        })
    }
}

/// Whose certificates a server may show.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// Those of the authorities that the process trusts anyway.
    Own,
    /// Those of these authorities (PEM).
    Authorities(String),
    /// Any: only where an APIService says `insecureSkipTLSVerify`.
    Anybody,
}

/// A connection that bytes are carried over, for streams and upgrades.
pub type Dialing = BoxFuture<'static, std::io::Result<Box<dyn crate::serve::NodeIo>>>;

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status code.
    pub code: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Why nothing came back, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It took too long.
    #[error("context deadline exceeded")]
    Timeout,
    /// The server was not reached, or broke off.
    #[error("{0}")]
    Failed(String),
}

/// A call under way.
pub type Calling = BoxFuture<'static, Result<Answer, CallError>>;

impl Call {
    /// The URL, for messages.
    pub fn url(&self) -> String {
        format!("https://{}{}", self.authority(), self.path_and_query)
    }

    /// Host and port, as the URL has them.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Where the server is.
    pub(crate) fn place(&self) -> &str {
        self.place.as_deref().unwrap_or(&self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (url, want) in [
            ("https://a.example.com", Ok(("a.example.com", 443, "/"))),
            ("https://a.example.com:8443/b?c=d", Ok(("a.example.com", 8443, "/b?c=d"))),
            ("https://[::1]:1/x", Ok(("::1", 1, "/x"))),
            ("http://a.example.com", Err("\"http://a.example.com\" is not an https URL")),
            ("/a", Err("\"/a\" is not an https URL")),
        ] {
            let got = Destination::parse(url);
            let got = got.as_ref().map(|to| (to.host.as_str(), to.port, to.path_and_query.as_str()));
            assert_eq!(got.map_err(String::as_str), want, "{url}");
        }
        assert!(Destination::parse("https://a b").is_err_and(|why| why.contains("is not a URL")));
    }
}
