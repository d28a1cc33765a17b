//! A kubelet that has no logs and echoes upgraded connections; what asks for streams of version 4 gets SPDY.

mod streams;

use std::collections::BTreeMap;

use bytes::Bytes;
use carrack_apiserver::NodeTarget;
use carrack_apiserver::serve::{NodeIo, NodeProxy};
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Reached without a socket.
pub struct FakeKubelet;

impl NodeProxy for FakeKubelet {
    fn connect(&self, target: &NodeTarget) -> BoxFuture<'static, std::io::Result<Box<dyn NodeIo>>> {
        let target = target.clone();
        Box::pin(async move {
            if target.node == "gone" {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
            }
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            tokio::spawn(async move {
                let service = hyper::service::service_fn(answer);
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(theirs), service)
                    .with_upgrades();
                drop(connection.await);
            });
            Ok(Box::new(ours) as Box<dyn NodeIo>)
        })
    }
}

async fn answer(mut request: Request<hyper::body::Incoming>) -> http::Result<http::Response<Full<Bytes>>> {
    assert!(request.headers().get("authorization").is_none(), "credentials do not go on");
    let path = request.uri().to_string();
    let plain =
        |code: u16, text: &'static str| http::Response::builder().status(code).body(Full::new(Bytes::from(text)));
    if !["/exec", "/attach", "/portForward"].iter().any(|stream| path.starts_with(stream)) {
        if path.contains("tailLines") {
            return plain(200, "line\n");
        }
        return plain(400, "container \"c\" is waiting to start");
    }
    if path.contains("command=no") {
        return plain(404, "container not found (\"c\")");
    }
    assert_eq!(request.headers()["upgrade"], "SPDY/3.1");
    let mut protocol = request.headers().get("x-stream-protocol-version").cloned();
    if path.contains("command=v3") {
        protocol = Some(http::HeaderValue::from_static("v3.channel.k8s.io"));
    }
    let asked = format!("{} {path}", request.method());
    let upgrade = hyper::upgrade::on(&mut request);
    let has_streams = protocol.as_ref().is_some_and(|protocol| protocol == "v4.channel.k8s.io");
    tokio::spawn(async move {
        let mut io = TokioIo::new(upgrade.await.expect("upgraded"));
        if has_streams {
            assert!(asked.starts_with("POST "), "{asked}");
            command(&mut io, &asked).await;
            return;
        }
        io.write_all(format!("you asked for {asked}\n").as_bytes()).await.expect("write");
        let mut buffer = [0; 64];
        while let Ok(count @ 1..) = io.read(&mut buffer).await {
            io.write_all(&buffer[..count]).await.expect("write");
        }
    });
    let mut response = http::Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    if let Some(protocol) = protocol {
        response = response.header("x-stream-protocol-version", protocol);
    }
    response.body(Full::new(Bytes::new()))
}

/// A command that reads to the end of its input, and then says which streams it has and what it read.
async fn command(io: &mut (impl AsyncRead + AsyncWrite + Unpin), asked: &str) {
    let mut headers = flate2::Decompress::new(true);
    let mut names: Vec<(u32, String)> = Vec::new();
    let mut read: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let mut has_ponged = false;
    // The server's pings have even numbers. Those that go on its connection before anything else are to be answered, too.
    io.write_all(&[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2]).await.expect("ping");
    let id = |names: &[(u32, String)], wanted: &str| {
        names.iter().find(|(_, name)| name == wanted).map(|(id, _)| *id).expect("the stream is there")
    };
    let mut is_over = false;
    while !(is_over && has_ponged) {
        let mut head = [0; 8];
        io.read_exact(&mut head).await.expect("a frame");
        let mut payload = vec![0; u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize];
        io.read_exact(&mut payload).await.expect("its payload");
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
        match &head[..4] {
            // A stream is opened, and confirmed.
            [0x80, 3, 0, 1] => {
                let mut text = Vec::with_capacity(1024);
                headers
                    .decompress_vec(&payload[10..], &mut text, flate2::FlushDecompress::Sync)
                    .expect("headers of one zlib stream");
                let text = String::from_utf8(text).expect("text");
                let name = text.rsplit_once('\0').map(|(_, name)| name[1..].to_owned()).expect("a value");
                assert!(text.contains("streamtype"), "{text:?}");
                names.push((number(&payload), name));
                let mut reply = vec![0x80, 3, 0, 2, 0, 0, 0, 4];
                reply.extend(&payload[..4]);
                io.write_all(&reply).await.expect("reply");
            }
            [0x80, 3, 0, 6] => has_ponged |= payload == [0, 0, 0, 2],
            [0x80, ..] => panic!("an unknown frame: {head:?}"),
            data => {
                let stream = number(data);
                read.entry(stream).or_default().extend(&payload);
                if head[4] & 1 != 0 {
                    assert_eq!(stream, id(&names, "stdin"));
                    is_over = true;
                }
            }
        }
    }
    let all: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
    let mut text = format!("{}: ", all.join(" "));
    text.extend(read.values().map(|bytes| String::from_utf8_lossy(bytes)));
    let mut out = frame(id(&names, "stdout"), text.as_bytes());
    if asked.contains("command=cut") {
        out.extend([0, 0, 0]);
    } else if !asked.contains("command=die") {
        // The outcome comes in two frames, before the streams end.
        out.extend(frame(id(&names, "error"), br#"{"status":"#));
        out.extend(frame(id(&names, "error"), br#""Success"}"#));
        for (stream, _) in &names {
            out.extend([0x80, 3, 0, 3, 0, 0, 0, 8]);
            out.extend(stream.to_be_bytes());
            out.extend([0, 0, 0, 5]);
        }
    }
    io.write_all(&out).await.expect("write");
    io.shutdown().await.expect("ends");
}

fn frame(stream: u32, bytes: &[u8]) -> Vec<u8> {
    let mut frame = stream.to_be_bytes().to_vec();
    frame.extend(u32::try_from(bytes.len()).expect("small").to_be_bytes());
    frame.extend_from_slice(bytes);
    frame
}
