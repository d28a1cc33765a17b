//! HTTP/1.1 over TLS, one request at a time: as little as a client can do, for measuring servers and for copying bytes.

mod tls;

use anyhow::{Context as _, bail, ensure};
use carrack_auth::kubeconfig::{Target, Token};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::tls::Tls;

/// The longest head of a reply, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How long connecting may take, with TLS's handshake.
const LIMIT: Duration = Duration::from_secs(10);
/// What ends a line.
const LINE_END: usize = b"\r\n".len();

/// A server and the credentials for it.
#[derive(Clone)]
pub struct Endpoint {
    host: String,
    port: u16,
    /// The server's address as requests name it, and what their paths begin with.
    authority: String,
    base: String,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
    authorization: String,
}

impl Endpoint {
    /// The server of a kubeconfig.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn of(target: &Target) -> anyhow::Result<Self> {
        let (host, port) = target.host_port()?;
        let mut tls = target.client_config()?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let token = target.token.as_ref().map(Token::read).transpose()?;
        let authorization = token.map(|token| format!("Authorization: Bearer {}\r\n", token.expose()));
        let place = target.server.strip_prefix("https://").unwrap_or(&target.server);
        let (authority, base) = place.split_at(place.find('/').unwrap_or(place.len()));
        let name = target.tls_server_name.as_ref().unwrap_or(&host).clone();
        Ok(Self {
            name: ServerName::try_from(name).context("the server has no usable name")?,
            authority: authority.to_owned(),
            base: base.to_owned(),
            host,
            port,
            tls: Arc::new(tls),
            authorization: authorization.unwrap_or_default(),
        })
    }

    /// Connects.
    ///
    /// # Errors
    /// Nobody listens or answers, or TLS fails.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let context = || format!("cannot connect to {}", self.authority);
        let opens = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true).context("TCP_NODELAY")?;
            Tls::handshake(stream, Arc::clone(&self.tls), self.name.clone()).await.context("TLS handshake")
        };
        let silent = |_| Err(anyhow::anyhow!("no answer within {} s", LIMIT.as_secs()));
        let stream = timeout(LIMIT, opens).await.unwrap_or_else(silent).with_context(context)?;
        Ok(Connection { stream, text: Vec::new(), at: 0, place: Place::Before, body: Vec::new(), request: Vec::new() })
    }

    /// A request's bytes.
    pub fn request(&self, out: &mut Vec<u8>, method: &str, path: &str, content_type: &str, body: &[u8]) {
        out.clear();
        let Self { authority, base, authorization, .. } = self;
        out.extend_from_slice(
            format!("{method} {base}{path} HTTP/1.1\r\nHost: {authority}\r\nAccept: application/json\r\nUser-Agent: carrack\r\n{authorization}").as_bytes(),
        );
        if !body.is_empty() {
            out.extend_from_slice(
                format!("Content-Type: {content_type}\r\nContent-Length: {}\r\n", body.len()).as_bytes(),
            );
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
    }
}

/// The message of a Status, if that is what it is.
#[must_use]
pub fn message(body: &[u8]) -> Option<String> {
    let status: serde_json::Value = serde_json::from_slice(body).ok()?;
    status["message"].as_str().map(str::to_owned)
}

/// What a refusal says: a Status' message, or the beginning of whatever it is.
#[must_use]
pub fn said(body: &[u8]) -> String {
    message(body).unwrap_or_else(|| String::from_utf8_lossy(&body[..body.len().min(400)]).trim().to_owned())
}

/// A connection that is kept.
pub struct Connection {
    stream: Tls,
    /// What was read; from `at` on it is not understood yet.
    text: Vec<u8>,
    at: usize,
    place: Place,
    body: Vec<u8>,
    request: Vec<u8>,
}

/// Where in the chunks of a body it is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Before the size of a chunk.
    Before,
    /// So many bytes before the end of one.
    Inside(usize),
    /// Before the end of line that follows a chunk.
    Behind,
}

/// How a body ends.
enum Framing {
    Length(usize),
    Chunks,
}

impl Connection {
    /// Sends a request, and returns status and body of the reply.
    ///
    /// # Errors
    /// The connection broke, or the reply is not HTTP.
    pub async fn exchange(
        &mut self,
        endpoint: &Endpoint,
        method: &str,
        path: &str,
        content_type: &str,
        body: &[u8],
    ) -> anyhow::Result<(u16, &[u8])> {
        endpoint.request(&mut self.request, method, path, content_type, body);
        self.stream.write(&self.request).await.context("cannot send")?;
        let (status, framing) = self.head().await?;
        match framing {
            Framing::Length(length) => {
                while self.text.len() - self.at < length {
                    self.read().await?;
                }
                self.at += length;
                Ok((status, &self.text[self.at - length..self.at]))
            }
            Framing::Chunks => {
                self.body.clear();
                let mut body = std::mem::take(&mut self.body);
                while let Some(piece) = self.piece().await? {
                    body.extend_from_slice(piece);
                }
                self.body = body;
                Ok((status, &self.body))
            }
        }
    }

    /// Sends a request whose reply has no end, and returns its status; [`Self::piece`] brings the rest.
    ///
    /// # Errors
    /// As for [`Self::exchange`].
    pub async fn stream(&mut self, endpoint: &Endpoint, path: &str) -> anyhow::Result<u16> {
        endpoint.request(&mut self.request, "GET", path, "", b"");
        self.stream.write(&self.request).await.context("cannot send")?;
        match self.head().await? {
            (status, Framing::Chunks) => Ok(status),
            // What has an end from the start is a refusal.
            (status, Framing::Length(length)) => {
                let length = length.min(MAX_HEAD_BYTES);
                while self.text.len() - self.at < length {
                    self.read().await?;
                }
                bail!("the server refuses ({status}): {}", said(&self.text[self.at..self.at + length]))
            }
        }
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        if self.at == self.text.len() {
            self.text.clear();
        } else if self.at > 0 {
            self.text.drain(..self.at);
        }
        self.at = 0;
        ensure!(self.stream.read(&mut self.text).await?, "the server hung up");
        Ok(())
    }

    async fn head(&mut self) -> anyhow::Result<(u16, Framing)> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut reply = httparse::Response::new(&mut headers);
            let unread = &self.text[self.at..];
            if let httparse::Status::Complete(length) = reply.parse(unread).context("the reply is no HTTP")? {
                let status = reply.code.unwrap_or(0);
                let framing = reply.headers.iter().find_map(|header| {
                    if header.name.eq_ignore_ascii_case("content-length") {
                        std::str::from_utf8(header.value).ok()?.trim().parse().ok().map(Framing::Length)
                    } else {
                        header.name.eq_ignore_ascii_case("transfer-encoding").then_some(Framing::Chunks)
                    }
                });
                self.at += length;
                return Ok((status, framing.unwrap_or(Framing::Length(0))));
            }
            ensure!(unread.len() < MAX_HEAD_BYTES, "the head of the reply has no end");
            self.read().await?;
        }
    }

    /// The next piece of a body that comes in chunks, as much of it as is there; none at its end.
    ///
    /// # Errors
    /// As for [`Self::exchange`].
    pub async fn piece(&mut self) -> anyhow::Result<Option<&[u8]>> {
        if self.place == Place::Behind {
            while self.text.len() - self.at < LINE_END {
                self.read().await?;
            }
            self.at += LINE_END;
            self.place = Place::Before;
        }
        let left = match self.place {
            Place::Inside(left) => left,
            _ => loop {
                match httparse::parse_chunk_size(&self.text[self.at..]) {
                    Ok(httparse::Status::Complete((head, length))) => {
                        self.at += head;
                        break usize::try_from(length).context("a chunk is too long")?;
                    }
                    Ok(httparse::Status::Partial) => self.read().await?,
                    Err(_) => bail!("a chunk has no size"),
                }
            },
        };
        if left == 0 {
            while self.text.len() - self.at < LINE_END {
                self.read().await?;
            }
            self.at += LINE_END;
            self.place = Place::Before;
            return Ok(None);
        }
        while self.text.len() == self.at {
            self.read().await?;
        }
        let (from, taken) = (self.at, left.min(self.text.len() - self.at));
        self.at += taken;
        self.place = if taken == left { Place::Behind } else { Place::Inside(left - taken) };
        Ok(Some(&self.text[from..from + taken]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_by_its_address() {
        let check = |server: &str, address: (&str, u16), line: &str, host: &str| {
            let target = Target {
                server: server.to_owned(),
                ca_pem: None,
                insecure: true,
                tls_server_name: None,
                client: None,
                token: None,
                namespace: String::new(),
            };
            let endpoint = Endpoint::of(&target).expect("usable");
            assert_eq!((endpoint.host.as_str(), endpoint.port), address, "{server}");
            let mut request = Vec::new();
            endpoint.request(&mut request, "GET", "/version", "", b"");
            let text = String::from_utf8(request).expect("text");
            let lines: Vec<&str> = text.lines().take(2).collect();
            assert_eq!(lines, [format!("GET {line} HTTP/1.1"), format!("Host: {host}")], "{server}");
        };
        check("https://192.0.2.10:6443", ("192.0.2.10", 6443), "/version", "192.0.2.10:6443");
        check("https://[2001:db8::1]:6443", ("2001:db8::1", 6443), "/version", "[2001:db8::1]:6443");
        check("https://api.example", ("api.example", 443), "/version", "api.example");
        check("https://api.example/clusters/c-1", ("api.example", 443), "/clusters/c-1/version", "api.example");
    }

    #[test]
    fn refusals_are_told_in_their_own_words() {
        let check = |body: &str, expected: &str| assert_eq!(said(body.as_bytes()), expected, "{body}");
        check(r#"{"kind":"Status","message":"users \"a\" is forbidden","code":403}"#, "users \"a\" is forbidden");
        check("404 page not found\n", "404 page not found");
        check("{}", "{}");
        check("", "");
        assert_eq!(said(&[b'x'; 1000]).len(), 400);
    }
}
