//! Manifests of static pods at a URL: one request, with bounds in size and time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use carrack_engine::causes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};

use super::blocking;
use crate::effects::OpError;
use crate::spec::manifest::{self, Manifest};
use crate::static_url::StaticUrl;

/// How long all of it may take, as with upstream.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Who asks at the URL.
pub struct Fetcher {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    url: StaticUrl,
}

impl Fetcher {
    /// Prepares to ask; nothing is sent yet. Over TLS it is asked whom the system trusts.
    ///
    /// # Errors
    /// The system trusts nobody, and the URL is one of HTTPS.
    pub fn new(url: &StaticUrl) -> Result<Self, OpError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        let builder = HttpsConnectorBuilder::new();
        let builder = if url.is_https() {
            let none = |error| {
                OpError::Failed(format!("no authority is known that staticPodURL could be trusted by: {error}"))
            };
            builder.with_provider_and_native_roots(default_provider()).map_err(none)?
        } else {
            let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|error| OpError::Failed(error.to_string()))?;
            builder.with_tls_config(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
        };
        let connector = builder.https_or_http().enable_http1().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Ok(Self { client, url: url.clone() })
    }

    /// Asks for the pods of a node.
    ///
    /// # Errors
    /// Nobody answers, or what is answered is of no use.
    pub async fn read(&self, node: &str) -> Result<Vec<Manifest>, OpError> {
        let (url, node) = (self.url.shown(), node.to_owned());
        let late = |_| Err(format!("no answer within {} s", TIMEOUT.as_secs()));
        let answer = tokio::time::timeout(TIMEOUT, self.ask()).await.unwrap_or_else(late);
        let answer = answer.map_err(|why| OpError::Failed(format!("{url}: {why}")))?;
        blocking(move || {
            let pods = manifest::read_answer(&answer, &url, &node);
            let pods = pods.map_err(|why| OpError::Failed(format!("{url}: {why}")))?;
            Ok(pods.into_iter().map(|pod| Manifest { path: url.clone(), pod: Ok(Box::new(pod)) }).collect())
        })
        .await
    }

    /// A redirection is no answer: what it leads to may be somebody else's, who is not to have the headers.
    async fn ask(&self) -> Result<Bytes, String> {
        let reply = self.client.request(self.url.request(Empty::new())).await.map_err(|error| causes(&error))?;
        if reply.status() != StatusCode::OK {
            return Err(format!("it answered with status {}", reply.status()));
        }
        let body = Limited::new(reply.into_body(), manifest::MAX_ANSWER_BYTES).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| causes(error.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::static_url::Headers;

    async fn listen() -> (TcpListener, Fetcher) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/pods?key=hidden", listener.local_addr().expect("an address"));
        let headers = Headers::try_from(json!({"X-Key": ["hidden", "too"]})).expect("headers");
        let url = StaticUrl::new(&url, &headers).expect("a URL");
        (listener, Fetcher::new(&url).expect("a client"))
    }

    /// Answers one request, and says what it was.
    async fn serve(listener: &TcpListener, answer: &str) -> String {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head"));
        }
        // Whoever has read enough goes.
        drop(stream.write_all(answer.as_bytes()).await);
        String::from_utf8(head).expect("text")
    }

    #[tokio::test]
    async fn pods_are_what_is_answered() {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: x}]}\n";
        let large = "x".repeat(manifest::MAX_ANSWER_BYTES + 1);
        let (listener, fetcher) = listen().await;
        for (status, body, expected) in [
            ("200 OK", pod, Ok(&["web-n1"][..])),
            ("200 OK", "", Ok(&[][..])),
            ("200 OK", "nonsense", Err("version/kind")),
            ("200 OK", &large, Err("length limit exceeded")),
            ("201 Created", pod, Err("it answered with status 201")),
            ("302 Found\r\nLocation: /others", pod, Err("it answered with status 302")),
            ("404 Not Found", pod, Err("it answered with status 404")),
        ] {
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            let (found, asked) = tokio::join!(fetcher.read("n1"), serve(&listener, &answer));
            assert!(asked.starts_with("GET /pods?key=hidden HTTP/1.1\r\n"), "{asked}");
            assert!(asked.contains("x-key: hidden\r\nx-key: too\r\n"), "{asked}");
            match (found, expected) {
                (Ok(found), Ok(names)) => {
                    let pods = found.iter().filter_map(|manifest| manifest.pod.as_ref().ok());
                    let found: Vec<&str> = pods.filter_map(|pod| pod.metadata.name.as_deref()).collect();
                    assert_eq!(found, names, "{status}");
                }
                (Err(error), Err(part)) => {
                    let text = error.to_string();
                    assert!(text.contains("/pods: ") && text.contains(part) && !text.contains("hidden"), "{text}");
                }
                (found, _) => panic!("{status}: {found:?}"),
            }
        }
        drop(listener);
        let error = fetcher.read("n1").await.expect_err("nobody listens").to_string();
        assert!(error.starts_with("http://127.0.0.1:") && !error.contains("hidden"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_not_waited_for() {
        let (_listener, fetcher) = listen().await;
        let error = fetcher.read("n1").await.expect_err("it is silent").to_string();
        assert!(error.ends_with("no answer within 10 s"), "{error}");
    }
}
