//! HEAD over either version of HTTP: what a GET is told, without the body.

use std::sync::Arc;

use carrack_apiserver::serve::Settings;
use carrack_auth::pki::Identity;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::serve::{Running, get, request, within};

#[tokio::test]
async fn a_head_is_answered_without_a_body() {
    let running = Running::start(Settings::default()).await;
    let mut config = running.client_tls(Some(Identity::Admin));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(running.address).await.expect("connect");
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("name");
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("handshake");
    let (mut newer, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("http");
    tokio::spawn(async move { drop(connection.await) });
    for (path, code) in [("/version", 200), ("/healthz", 200), ("/api/v1/namespaces", 405), ("/nonsense", 404)] {
        let head = || request("HEAD", path).body(Full::default()).expect("request");
        let replies = [
            within("HTTP/2", newer.send_request(head())).await.expect("reply"),
            within("HTTP/1.1", running.connect(Some(Identity::Admin)).await.send_request(head())).await.expect("reply"),
        ];
        let whole = running.connect(Some(Identity::Admin)).await.send_request(get(path)).await.expect("reply");
        let whole = whole.into_body().collect().await.expect("body").to_bytes();
        for reply in replies {
            let version = reply.version();
            assert_eq!(reply.status().as_u16(), code, "{path} {version:?}");
            let told: usize = reply.headers()["content-length"].to_str().ok().and_then(|n| n.parse().ok()).expect("n");
            let body = within("the end", reply.into_body().collect()).await.expect("an end in order").to_bytes();
            assert!(body.is_empty() && told > 0, "{path} {version:?}");
            assert!(code == 405 || told == whole.len(), "{path} {version:?}: {told}, not {}", whole.len());
        }
    }
}
