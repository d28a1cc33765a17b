//! Exec, attach and port-forward against a streaming server of the runtime's kind.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// A streaming server: it keeps the request's head, answers, and if it has switched protocols sends
/// back what comes and says goodbye when nothing more does.
async fn runtime(world: &World, answer: &'static str) -> JoinHandle<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("address").port();
    *lock(&world.node.url) = format!("http://127.0.0.1:{port}/exec/token");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head"));
        }
        stream.write_all(answer.as_bytes()).await.expect("answers");
        if answer.starts_with("HTTP/1.1 101") {
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await.expect("echoes");
            stream.write_all(b"bye").await.expect("says goodbye");
        }
        String::from_utf8(head).expect("text")
    })
}

const SPDY: &[(&str, &str)] = &[
    ("connection", "Upgrade"),
    ("upgrade", "SPDY/3.1"),
    ("x-stream-protocol-version", "v4.channel.k8s.io"),
    ("x-stream-protocol-version", "channel.k8s.io"),
    ("content-length", "0"),
];
const SPDY_ANSWER: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";
const WEBSOCKET: &[(&str, &str)] = &[
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("sec-websocket-protocol", "v4.channel.k8s.io"),
];
const WEBSOCKET_ANSWER: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\nfirst";

async fn read_exactly(stream: &mut (impl AsyncRead + Unpin), expected: &str) {
    let mut buffer = vec![0; expected.len()];
    tokio::time::timeout(LONG, stream.read_exact(&mut buffer)).await.expect("in time").expect("reads");
    assert_eq!(String::from_utf8(buffer).expect("text"), expected);
}

#[tokio::test]
async fn bytes_pass_both_ways_with_half_close() {
    let world = World::new().await.with_pod(ContainerState::Running);
    for (method, path, headers, answer, asked, first) in [
        (
            Method::POST,
            "/exec/ns/p/c?command=sh&command=-c&command=a+b&input=1&output=1&error=1",
            SPDY,
            SPDY_ANSWER,
            "exec id [\"sh\", \"-c\", \"a b\"] Streams { stdin: true, stdout: true, stderr: true, tty: false }",
            "",
        ),
        (
            Method::GET,
            "/attach/ns/p/uid/c?output=1&error=1&tty=1",
            WEBSOCKET,
            WEBSOCKET_ANSWER,
            "attach id Streams { stdin: false, stdout: true, stderr: false, tty: false }",
            "first",
        ),
        (Method::POST, "/portForward/ns/p", SPDY, SPDY_ANSWER, "port-forward sandbox []", ""),
        (
            Method::GET,
            "/portForward/ns/p/uid?port=80",
            WEBSOCKET,
            WEBSOCKET_ANSWER,
            "port-forward sandbox [80]",
            "first",
        ),
    ] {
        let runtime = runtime(&world, answer).await;
        let mut response = world.send(request(method.clone(), path, headers)).await;
        assert_eq!(response.status().as_u16(), 101, "{path}");
        for name in ["upgrade", "x-stream-protocol-version", "sec-websocket-accept", "sec-websocket-protocol"] {
            let sent = response.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
            let given = answer.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix(&format!("{name}: ")).map(|_| line[name.len() + 2..].to_owned())
            });
            assert_eq!(sent, given, "{path} {name}");
        }
        let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgrades"));
        read_exactly(&mut stream, first).await;
        let large = "0123456789abcdef".repeat(100_000);
        let (mut read, mut write) = tokio::io::split(stream);
        let (sent, ()) = tokio::join!(write.write_all(large.as_bytes()), read_exactly(&mut read, &large));
        sent.expect("writes");
        write.shutdown().await.expect("closes its half");
        let mut rest = String::new();
        tokio::time::timeout(LONG, read.read_to_string(&mut rest)).await.expect("ends").expect("reads");
        assert_eq!(rest, "bye", "{path}");
        let head = runtime.await.expect("no panic");
        assert!(head.starts_with(&format!("{method} /exec/token HTTP/1.1\r\n")), "{head}");
        for (name, value) in headers.iter().filter(|(name, _)| *name != "content-length") {
            assert!(head.contains(&format!("\r\n{name}: {value}\r\n")), "{name}: {value} is missing of {head}");
        }
        assert_eq!(lock(&world.node.asked).pop().as_deref(), Some(asked));
    }
}

#[tokio::test]
async fn who_attaches_has_the_terminal_that_the_container_has() {
    let world = World::new().await.with_pod(ContainerState::Running);
    for (tty, query, expected) in [
        (false, "output=1&error=1", "stdin: false, stdout: true, stderr: true, tty: false"),
        (false, "input=1&output=1&error=1&tty=1", "stdin: true, stdout: true, stderr: false, tty: false"),
        (true, "input=1&output=1&error=1&tty=1", "stdin: true, stdout: true, stderr: false, tty: true"),
        // The runtime refuses it.
        (true, "output=1&error=1", "stdin: false, stdout: true, stderr: true, tty: true"),
    ] {
        lock(&world.node.pods)[0] = pod_of(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "uid"},
            "spec": {"containers": [{"name": "c", "tty": tty}]},
        }));
        let attach = request(Method::POST, &format!("/attach/ns/p/c?{query}"), SPDY);
        // This node's runtime streams nothing.
        assert_eq!(text(world.send(attach).await).await, (500, "no streaming".into()), "{query}");
        assert_eq!(lock(&world.node.asked).pop(), Some(format!("attach id Streams {{ {expected} }}")), "{query}");
    }
}

#[tokio::test]
async fn a_refusal_of_the_runtime_comes_back() {
    let world = World::new().await.with_pod(ContainerState::Running);
    let exec = || request(Method::GET, "/exec/ns/p/c?command=sh&output=1", WEBSOCKET);
    for (answer, expected) in [
        ("HTTP/1.1 403 Forbidden\r\n\r\nno such protocol", (403, "no such protocol")),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", (404, "no")),
        (
            "HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nno\r\n0\r\n\r\n",
            (400, "no"),
        ),
    ] {
        let runtime = runtime(&world, answer).await;
        let (code, body) = text(world.send(exec()).await).await;
        assert_eq!((code, body.as_str()), expected);
        runtime.await.expect("no panic");
    }
    // Nobody listens there any more.
    let (code, body) = text(world.send(exec()).await).await;
    assert!(code == 500 && body.starts_with("error dialing backend: connect: "), "{code} {body}");
}

#[tokio::test]
async fn bad_requests_do_not_reach_the_runtime() {
    let world = World::new().await.with_pod(ContainerState::Running);
    for (path, headers, expected) in [
        ("/exec/ns/p/c?command=sh&output=1", &[][..], (400, "Upgrade request required")),
        ("/exec/ns/p/c?command=sh", SPDY, (400, "you must specify at least 1 of stdin, stdout, stderr")),
        ("/exec/ns/p/c?output=1", SPDY, (400, "you must specify a command")),
        ("/exec/ns/q/c?command=sh&output=1", SPDY, (404, "pod \"q\" does not exist")),
        ("/exec/ns/p/other/c?command=sh&output=1", SPDY, (404, "pod \"p\" does not exist")),
        ("/attach/ns/p/x?output=1", SPDY, (404, "container \"x\" not found in pod \"p\"")),
        ("/portForward/ns/p?port=x", WEBSOCKET, (400, "unable to parse \"x\" as a port")),
    ] {
        let (code, body) = text(world.send(request(Method::POST, path, headers)).await).await;
        assert_eq!((code, body.as_str()), expected, "{path}");
    }
    world.run(ContainerState::Created);
    let (code, body) = text(world.send(request(Method::POST, "/exec/ns/p/c?command=sh&output=1", SPDY)).await).await;
    assert_eq!((code, body.as_str()), (404, "container not found (\"c\")"));
    assert!(lock(&world.node.asked).is_empty());
}

/// Who has a shell open everywhere must not keep the node from being looked after.
#[tokio::test]
async fn what_goes_on_takes_no_place_of_who_asks_one_thing_after_another() {
    let settings = Settings { max_connections: 1, max_streams: 1, ..Settings::default() };
    let world = World::with(settings).await.with_pod(ContainerState::Running);
    let attach = || request(Method::POST, "/attach/ns/p/c?input=1&output=1", SPDY);
    for _ in 0..2 {
        let first = runtime(&world, SPDY_ANSWER).await;
        // Who has ended may not have left yet.
        let mut response = loop {
            let response = world.send(attach()).await;
            if response.status().as_u16() != 429 {
                break response;
            }
        };
        assert_eq!(response.status().as_u16(), 101);
        let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgrades"));
        assert_eq!(world.get("/healthz").await, (200, "ok".into()));
        // One more is refused; the runtime's streaming server is not asked for it.
        let (code, said) = text(world.send(attach()).await).await;
        assert!(code == 429 && said.starts_with("1 streams go on already"), "{code} {said}");
        assert_eq!(world.get("/healthz").await, (200, "ok".into()));
        // What has ended leaves its place to another.
        stream.shutdown().await.expect("closes its half");
        let mut rest = String::new();
        tokio::time::timeout(LONG, stream.read_to_string(&mut rest)).await.expect("ends").expect("reads");
        assert_eq!(rest, "bye");
        first.await.expect("no panic");
    }
}

#[tokio::test]
async fn joined_streams_end_with_the_server() {
    let mut world = World::new().await.with_pod(ContainerState::Running);
    let runtime = runtime(&world, SPDY_ANSWER).await;
    let mut response = world.send(request(Method::POST, "/attach/ns/p/c?input=1&output=1", SPDY)).await;
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgrades"));
    stream.write_all(b"hello").await.expect("writes");
    read_exactly(&mut stream, "hello").await;
    world.stop().await;
    let mut rest = Vec::new();
    // Cut off, but in order: reading fails where the goodbye of TLS is missing.
    tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await.expect("ends").expect("a goodbye");
    assert!(rest.is_empty());
    tokio::time::timeout(LONG, runtime).await.expect("the runtime is told").unwrap_or_default();
}

/// A runtime that ends while its client is still sending resets the connection; what it has said until then arrives, and the
/// client sees an end in order.
#[tokio::test]
async fn a_runtime_that_hangs_up_is_heard_to_the_end() {
    let world = World::new().await.with_pod(ContainerState::Running);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let port = listener.local_addr().expect("address").port();
    *lock(&world.node.url) = format!("http://127.0.0.1:{port}/attach/token");
    let runtime = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a head"));
        }
        stream.write_all(SPDY_ANSWER.as_bytes()).await.expect("answers");
        // There is something to be read, which nobody reads.
        stream.peek(&mut [0]).await.expect("input");
        stream.write_all(b"the outcome").await.expect("writes");
    });
    let mut response = world.send(request(Method::POST, "/attach/ns/p/c?input=1&output=1", SPDY)).await;
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.expect("upgrades"));
    stream.write_all(b"input").await.expect("writes");
    runtime.await.expect("no panic");
    let mut heard = String::new();
    tokio::time::timeout(LONG, stream.read_to_string(&mut heard)).await.expect("ends").expect("a goodbye");
    assert_eq!(heard, "the outcome");
}
