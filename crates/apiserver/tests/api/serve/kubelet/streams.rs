//! Exec, attach and port-forward through the API server, in the protocols that clients speak.

use std::sync::Arc;
use std::time::Duration;

use carrack_apiserver::serve::Settings;
use carrack_auth::pki::Identity;
use futures::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::serve::{Running, request, within};

#[tokio::test]
async fn exec_passes_through_to_the_kubelet() {
    let running = Running::start(Settings::default()).await;
    running.pod_on("n1").await;
    let exec = request("POST", "/api/v1/namespaces/default/pods/n1/exec?command=sh&stdin=true&stdout=true")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("authorization", "Basic unused")
        .body(Full::default())
        .expect("request");
    let mut sender = running.connect(Some(Identity::Admin)).await;
    let response = within("the upgrade", sender.send_request(exec)).await.expect("reply");
    assert_eq!(
        (response.status().as_u16(), &response.headers()["upgrade"]),
        (101, &"SPDY/3.1".parse::<http::HeaderValue>().expect("header"))
    );
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.expect("upgraded"));
    io.write_all(b"ping").await.expect("write");
    let want = b"you asked for POST /exec/default/n1/c?input=1&output=1&command=sh\nping";
    let mut got = vec![0; want.len()];
    within("the echo", io.read_exact(&mut got)).await.expect("read");
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(want));
}

/// A WebSocket of these protocols, and which of them was chosen.
async fn websocket(
    running: &Running,
    path: &str,
    protocols: &'static str,
) -> (WebSocketStream<tokio_rustls::client::TlsStream<TcpStream>>, String) {
    let mut config = running.client_tls(Some(Identity::Admin));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(running.address).await.expect("connect");
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("name");
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("handshake");
    let mut request = format!("wss://localhost{path}").into_client_request().expect("request");
    request.headers_mut().insert("sec-websocket-protocol", http::HeaderValue::from_static(protocols));
    let (socket, response) = within("the upgrade", client_async(request, stream)).await.expect("a websocket");
    (socket, response.headers()["sec-websocket-protocol"].to_str().expect("text").to_owned())
}

/// All that comes until the other side says that it is over, and with which code.
async fn to_the_end(socket: &mut WebSocketStream<tokio_rustls::client::TlsStream<TcpStream>>) -> (Vec<String>, u16) {
    let mut got = Vec::new();
    loop {
        match within("a message", socket.next()).await.expect("a message").expect("is whole") {
            Message::Binary(data) => got.push(format!("{} {}", data[0], String::from_utf8_lossy(&data[1..]))),
            Message::Close(frame) => return (got, frame.map_or(0, |frame| frame.code.into())),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn websockets_of_version_5_become_spdy() {
    let running = Running::start(Settings::default()).await;
    running.pod_on("n1").await;
    let pod = "/api/v1/namespaces/default/pods/n1";
    for (subresource, query, messages, want) in [
        // The end of what goes in is told, and what came of it heard.
        (
            "exec",
            "command=cat&stdin=true&stdout=true&stderr=true",
            &[&b"\0hello "[..], b"\0world", b"\xff\0", b"\0late"][..],
            &["1 ", "1 error stdin stdout stderr: hello world", "3 {\"status\":\"Success\"}"][..],
        ),
        // A terminal has no errors of its own, and a size.
        (
            "attach",
            "stdin=true&stdout=true&tty=true&stderr=true",
            &[&b"\x04{\"Width\":80,\"Height\":24}"[..], b"\x01not theirs to say", b"\0hi", b"\xff\0"],
            &["1 ", "1 error stdin stdout resize: hi{\"Width\":80,\"Height\":24}", "3 {\"status\":\"Success\"}"],
        ),
        // A kubelet that is gone without a word has not said that all went well.
        (
            "exec",
            "command=die&stdin=true&stdout=true",
            &[&b"\xff\0"[..]],
            &["1 ", "1 error stdin stdout: ", "3 the kubelet's connection ended before it told the outcome"],
        ),
        // Nor one that breaks off.
        (
            "exec",
            "command=cut&stdin=true&stdout=true",
            &[&b"\xff\0"[..]],
            &["1 ", "1 error stdin stdout: ", "3 error reading from the kubelet"],
        ),
    ] {
        let path = format!("{pod}/{subresource}?{query}");
        let (mut socket, protocol) = websocket(&running, &path, "v4.channel.k8s.io, v5.channel.k8s.io").await;
        assert_eq!(protocol, "v5.channel.k8s.io", "{path}");
        for message in messages {
            socket.send(Message::binary(message.to_vec())).await.expect("send");
        }
        let (got, code) = to_the_end(&mut socket).await;
        assert_eq!((got.len(), code), (want.len(), 1000), "{path} {got:?}");
        for (got, want) in got.iter().zip(want) {
            let is_it = if want.starts_with("3 ") && !want.ends_with('}') {
                got.contains("\"reason\":\"InternalError\"") && got.contains(&want[2..])
            } else {
                got == want
            };
            assert!(is_it, "{path}: {got}, not {want}");
        }
    }
}

#[tokio::test]
async fn what_the_kubelet_refuses_is_told_before_there_is_a_websocket() {
    let running = Running::start(Settings::default()).await;
    running.pod_on("n1").await;
    for (command, code, text) in [("no", 404, "container not found"), ("v3", 500, "the kubelet agreed to")] {
        let exec = request("GET", &format!("/api/v1/namespaces/default/pods/n1/exec?command={command}&stdout=true"))
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", "v5.channel.k8s.io")
            .body(Full::default())
            .expect("request");
        let mut sender = running.connect(Some(Identity::Admin)).await;
        let response = within("the reply", sender.send_request(exec)).await.expect("reply");
        assert_eq!(response.status().as_u16(), code, "{command}");
        let body = within("the body", response.into_body().collect()).await.expect("body").to_bytes();
        assert!(String::from_utf8_lossy(&body).contains(text), "{command}: {body:?}");
    }
}

/// A node is not asked what its streams would say to a request that is no upgrade.
#[tokio::test]
async fn streams_take_an_upgrade() {
    let running = Running::start(Settings::default()).await;
    running.pod_on("n1").await;
    for (method, stream) in [("GET", "exec?command=sh&stdout=true"), ("POST", "attach"), ("POST", "portforward")] {
        let path = format!("/api/v1/namespaces/default/pods/n1/{stream}");
        let plain = request(method, &path).body(Full::default()).expect("request");
        let (code, status) = running.send(Some(Identity::Admin), plain).await;
        let told = (code, status["reason"].as_str(), status["message"].as_str());
        assert_eq!(told, (400, Some("BadRequest"), Some("Upgrade request required")), "{stream}");
    }
}

/// An upgraded connection counts among those that there may be for as long as it lasts.
#[tokio::test]
async fn streams_keep_their_places() {
    let settings = Settings { max_connections: 1, handshake: Duration::from_secs(60), ..Settings::default() };
    let running = Running::start(settings).await;
    running.pod_on("n1").await;
    let path = "/api/v1/namespaces/default/pods/n1/portforward?ports=80";
    let (socket, _) = websocket(&running, path, "SPDY/3.1+portforward.k8s.io").await;
    let mut one_more = TcpStream::connect(running.address).await.expect("connect");
    let ended = within("the end of one too many", one_more.read(&mut [0; 1])).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    drop(socket);
}

/// Each event is a message of its own, and the end comes when it was asked for.
#[tokio::test]
async fn watches_come_over_websockets() {
    let running = Running::start(Settings::default()).await;
    running.pod_on("n1").await;
    let path = "/api/v1/namespaces/default/pods?watch=true&timeoutSeconds=2";
    let (mut socket, protocol) = websocket(&running, path, "base64url.binary.k8s.io").await;
    assert_eq!(protocol, "base64url.binary.k8s.io");
    let mut events = Vec::new();
    let code = loop {
        match within("a message", socket.next()).await.expect("a message").expect("is whole") {
            Message::Text(text) => {
                let event: serde_json::Value = serde_json::from_str(text.as_str()).expect("an event");
                events.push((event["type"].clone(), event["object"]["metadata"]["name"].clone()));
            }
            Message::Close(frame) => break frame.map_or(0, |frame| frame.code.into()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((events, code), (vec![("ADDED".into(), "n1".into())], 1000_u16));
}

#[tokio::test]
async fn port_forward_is_spdy_inside_of_a_websocket() {
    let running = Running::start(Settings::default()).await;
    running.pod_on("n1").await;
    let path = "/api/v1/namespaces/default/pods/n1/portforward?ports=80";
    let (mut socket, protocol) = websocket(&running, path, "SPDY/3.1+portforward.k8s.io").await;
    assert_eq!(protocol, "SPDY/3.1+portforward.k8s.io");
    for message in [&b"\x80\x03frame"[..], b" in parts", b"!"] {
        socket.send(Message::binary(message.to_vec())).await.expect("send");
    }
    let want = b"you asked for POST /portForward/default/n1?port=80\n\x80\x03frame in parts!";
    let mut got = Vec::new();
    while got.len() < want.len() {
        match within("a message", socket.next()).await.expect("a message").expect("is whole") {
            Message::Binary(data) => got.extend_from_slice(&data),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(want));
    within("the end", socket.close(None)).await.expect("closes");
    while let Some(Ok(_)) = within("the goodbye", socket.next()).await {}
}
