//! HTTP/1.1 over TLS, one request at a time: as little as a client can do, for measuring servers and for copying bytes.

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, BytesMut};
use carrack_auth::kubeconfig::{Target, Token};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The longest head of a reply, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const READ_BYTES: usize = 64 * 1024;

/// A server and the credentials for it.
#[derive(Clone)]
pub struct Endpoint {
    address: String,
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
        Ok(Self {
            address: format!("{host}:{port}"),
            name: ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                .context("the server has no usable name")?,
            tls: Arc::new(tls),
            authorization: authorization.unwrap_or_default(),
        })
    }

    /// Connects.
    ///
    /// # Errors
    /// Nobody listens, or TLS fails.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let stream =
            TcpStream::connect(&self.address).await.with_context(|| format!("cannot connect to {}", self.address))?;
        stream.set_nodelay(true).context("TCP_NODELAY")?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let stream = connector.connect(self.name.clone(), stream).await.context("TLS handshake")?;
        Ok(Connection { stream, buffer: BytesMut::with_capacity(READ_BYTES), body: Vec::new(), request: Vec::new() })
    }

    /// A request's bytes.
    pub fn request(&self, out: &mut Vec<u8>, method: &str, path: &str, content_type: &str, body: &[u8]) {
        out.clear();
        let Self { address, authorization, .. } = self;
        out.extend_from_slice(
            format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\nUser-Agent: carrack\r\n{authorization}").as_bytes(),
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

/// A connection that is kept.
pub struct Connection {
    stream: TlsStream<TcpStream>,
    /// What was read and not yet understood.
    buffer: BytesMut,
    body: Vec<u8>,
    request: Vec<u8>,
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
        let mut request = std::mem::take(&mut self.request);
        endpoint.request(&mut request, method, path, content_type, body);
        let sent = self.stream.write_all(&request).await;
        self.request = request;
        sent.context("cannot send")?;
        self.stream.flush().await.context("cannot send")?;
        let (status, framing) = self.head().await?;
        self.body.clear();
        match framing {
            Framing::Length(length) => {
                while self.buffer.len() < length {
                    self.read().await?;
                }
                self.body.extend_from_slice(&self.buffer[..length]);
                self.buffer.advance(length);
            }
            Framing::Chunks => {
                let mut body = std::mem::take(&mut self.body);
                while self.chunk(&mut body).await? {}
                self.body = body;
            }
        }
        Ok((status, &self.body))
    }

    /// Sends a request whose reply has no end, and returns its status; [`Self::chunk`] brings the rest.
    ///
    /// # Errors
    /// As for [`Self::exchange`].
    pub async fn stream(&mut self, endpoint: &Endpoint, path: &str) -> anyhow::Result<u16> {
        endpoint.request(&mut self.request, "GET", path, "", b"");
        self.stream.write_all(&self.request).await.context("cannot send")?;
        self.stream.flush().await.context("cannot send")?;
        match self.head().await? {
            (status, Framing::Chunks) => Ok(status),
            (status, Framing::Length(_)) => bail!("a watch was answered with {status} and a length"),
        }
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        self.buffer.reserve(READ_BYTES);
        ensure!(self.stream.read_buf(&mut self.buffer).await.context("cannot read")? > 0, "the server hung up");
        Ok(())
    }

    async fn head(&mut self) -> anyhow::Result<(u16, Framing)> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut reply = httparse::Response::new(&mut headers);
            if let httparse::Status::Complete(length) = reply.parse(&self.buffer).context("the reply is no HTTP")? {
                let status = reply.code.unwrap_or(0);
                let framing = reply.headers.iter().find_map(|header| {
                    if header.name.eq_ignore_ascii_case("content-length") {
                        std::str::from_utf8(header.value).ok()?.trim().parse().ok().map(Framing::Length)
                    } else {
                        header.name.eq_ignore_ascii_case("transfer-encoding").then_some(Framing::Chunks)
                    }
                });
                self.buffer.advance(length);
                return Ok((status, framing.unwrap_or(Framing::Length(0))));
            }
            ensure!(self.buffer.len() < MAX_HEAD_BYTES, "the head of the reply has no end");
            self.read().await?;
        }
    }

    /// Appends the next chunk of a body; false when it was the last.
    ///
    /// # Errors
    /// As for [`Self::exchange`].
    pub async fn chunk(&mut self, out: &mut Vec<u8>) -> anyhow::Result<bool> {
        let length = loop {
            match httparse::parse_chunk_size(&self.buffer) {
                Ok(httparse::Status::Complete((head, length))) => {
                    self.buffer.advance(head);
                    break usize::try_from(length).context("a chunk is too long")?;
                }
                Ok(httparse::Status::Partial) => self.read().await?,
                Err(_) => bail!("a chunk has no size"),
            }
        };
        while self.buffer.len() < length + 2 {
            self.read().await?;
        }
        out.extend_from_slice(&self.buffer[..length]);
        self.buffer.advance(length + 2);
        Ok(length > 0)
    }
}
