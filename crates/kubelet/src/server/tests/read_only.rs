//! What is told to everybody at the read-only port.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// Asks over plain HTTP, as nobody; code and text come back.
async fn ask(world: &World, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(world.read_only).await.expect("connects");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("asked");
    let mut text = String::new();
    tokio::time::timeout(LONG, stream.read_to_string(&mut text)).await.expect("in time").expect("read");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
    (code, body.to_owned())
}

#[tokio::test]
async fn what_looks_into_no_container_is_told_and_nothing_else_is() {
    let world = World::new().await.with_pod(ContainerState::Running);
    for (method, path, code, said) in [
        ("GET", "/healthz", 200, "ok"),
        ("GET", "/pods", 200, "\"uid\":\"uid\""),
        ("GET", "/stats/summary", 200, "{"),
        ("GET", "/metrics", 200, "path=\"pods\",server_type=\"readonly\"} 1\n"),
        ("GET", "/metrics/resource", 200, "resource_scrape_error"),
        ("GET", "/metrics/cadvisor", 200, ""),
        ("GET", "/metrics/probes", 200, ""),
        ("POST", "/pods", 405, ""),
        ("GET", "/configz", 404, ""),
        ("GET", "/statusz", 404, ""),
        ("GET", "/flagz", 404, ""),
        ("GET", "/runningpods/", 405, "Debug endpoints are disabled."),
        ("GET", "/containerLogs/ns/p/c", 405, "Debug endpoints are disabled."),
        ("GET", "/logs/", 405, "Debug endpoints are disabled."),
        ("POST", "/run/ns/p/c?cmd=ls", 405, "Debug endpoints are disabled."),
        ("POST", "/exec/ns/p/c?command=ls&output=1", 405, "Debug endpoints are disabled."),
        ("POST", "/portForward/ns/p", 405, "Debug endpoints are disabled."),
    ] {
        let (found, body) = ask(&world, method, path).await;
        assert!(found == code && body.contains(said), "{method} {path}: {found} {body}");
    }
    assert!(lock(&world.node.asked).is_empty());
}

#[tokio::test]
async fn whoever_says_nothing_there_makes_room() {
    let world = World::new().await;
    let mut silent = Vec::new();
    for _ in 0..=MOST_READERS {
        silent.push(TcpStream::connect(world.read_only).await.expect("connects"));
    }
    assert_eq!(ask(&world, "GET", "/healthz").await, (200, "ok".into()));
    let first = silent.first_mut().expect("one");
    let ended = tokio::time::timeout(LONG, first.read_u8()).await.expect("in time");
    assert!(ended.is_err(), "it goes");
    assert_eq!(world.get("/healthz").await.0, 200, "those with credentials have their own");
}

#[tokio::test]
async fn it_ends_with_the_server() {
    let mut world = World::new().await;
    world.stop().await;
    assert!(TcpStream::connect(world.read_only).await.is_err());
}
