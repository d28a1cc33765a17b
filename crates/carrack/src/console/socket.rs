//! A websocket through the API server, with the kubeconfig's credentials.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use carrack_auth::kubeconfig::Target;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderValue, Request};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::wire;

/// KubeVirt's protocol: binary messages, no channel byte.
const PROTOCOL: &str = "plain.kubevirt.io";

/// How long connecting may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A connected websocket.
pub type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// The API server's answer where it is no upgrade.
#[derive(Debug)]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// What it says.
    pub message: String,
}

impl Refused {
    /// Whether the same request may succeed later, without anybody changing their rights: the guest is not there yet,
    /// does not run yet, or the node is busy.
    pub fn may_pass(&self) -> bool {
        // A machine that was made without a console does not get one by waiting.
        !(matches!(self.status, 401 | 403) || self.status == 400 && self.message.starts_with("No serial consoles"))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)
    }
}

/// Opens a websocket at `path`.
///
/// # Errors
/// The server cannot be reached or is not the one that the kubeconfig trusts. Its refusal is a value.
pub async fn open(target: &Target, path: &str) -> anyhow::Result<Result<Socket, Refused>> {
    let work = async {
        let stream = connect(target).await?;
        let request = request(target, path)?;
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(Ok(socket)),
            Err(Error::Http(response)) => Ok(Err(refused(response.status().as_u16(), response.body().as_deref()))),
            Err(error) => Err(error).context("the API server did not answer as a websocket"),
        }
    };
    tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| Err(anyhow::anyhow!("{} did not answer", target.server)))
}

async fn connect(target: &Target) -> anyhow::Result<TlsStream<TcpStream>> {
    let (host, port) = target.host_port()?;
    let mut config = target.client_config()?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream =
        TcpStream::connect((host.as_str(), port)).await.with_context(|| format!("cannot reach {}", target.server))?;
    stream.set_nodelay(true).context("cannot set up the connection")?;
    let name = target.tls_server_name.clone().unwrap_or(host);
    let name = ServerName::try_from(name).context("the server's name makes no sense")?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .with_context(|| format!("no TLS with {}", target.server))
}

fn request(target: &Target, path: &str) -> anyhow::Result<Request<()>> {
    let url = format!("{}{path}", target.server.replacen("https://", "wss://", 1));
    let mut request = url.into_client_request().context("the address makes no sense")?;
    let headers = request.headers_mut();
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    if let Some(token) = &target.token {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", token.read()?.expose())).context("the token is malformed")?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Ok(request)
}

/// The message of a `Status` object, or the body as it is.
fn refused(status: u16, body: Option<&[u8]>) -> Refused {
    let body = body.unwrap_or_default();
    let text = String::from_utf8_lossy(body);
    let message = match wire::message(body) {
        Some(message) => message,
        None if text.trim().is_empty() => format!("HTTP status {status}"),
        None => text.trim().to_owned(),
    };
    Refused { status, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_shows_its_message() {
        let check = |status, body: &str, expected: &str| {
            assert_eq!(refused(status, Some(body.as_bytes())).to_string(), expected);
        };
        check(
            404,
            r#"{"kind":"Status","message":"virtualmachineinstances \"x\" not found"}"#,
            "virtualmachineinstances \"x\" not found",
        );
        check(400, "No serial consoles are present.\n", "No serial consoles are present.");
        check(503, "", "HTTP status 503");
        let passes = |status, body: &str| refused(status, Some(body.as_bytes())).may_pass();
        assert!(!passes(403, "") && passes(503, ""));
        assert!(!passes(400, "No serial consoles are present."));
        assert!(passes(400, "Unable to connect to VirtualMachineInstance because phase is Pending"));
    }
}
