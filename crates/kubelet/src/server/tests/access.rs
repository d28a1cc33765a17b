//! Who is let in.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

#[tokio::test]
async fn by_certificate() {
    let world = World::new().await.with_pod(ContainerState::Running);
    let node = || Identity::Node { node: "n1".into() };
    for (identity, path, expected) in [
        (Some(Identity::ApiserverKubeletClient), "/healthz", 200),
        (Some(Identity::Admin), "/healthz", 200),
        (Some(Identity::Admin), "/pods", 200),
        (Some(node()), "/healthz", 403),
        (Some(node()), "/pods", 403),
        (Some(node()), "/no/such/path", 403),
        (Some(Identity::ControllerManager), "/exec/ns/p/c?command=sh", 403),
        (None, "/healthz", 401),
        (None, "/containerLogs/ns/p/c", 401),
        (None, "/no/such/path", 401),
        (Some(Identity::ApiserverKubeletClient), "/no/such/path", 404),
    ] {
        let mut sender = world.connect(identity.as_ref()).await;
        let response = sender.send_request(request(Method::GET, path, &[])).await.expect("answers");
        assert_eq!(response.status().as_u16(), expected, "{identity:?} {path}");
    }
    assert!(lock(&world.node.asked).is_empty());
}

#[tokio::test]
async fn certificates_of_others_prove_nothing() {
    let world = World::new().await;
    let other = tempfile::tempdir().expect("directory");
    let other = Pki::open_or_create(other.path(), now_s()).expect("pki");
    let foreign = other.client(&Identity::ApiserverKubeletClient, now_s()).expect("certificate");
    let front_proxy = world.pki.client(&Identity::FrontProxy, now_s()).expect("certificate");
    for pair in [foreign, front_proxy] {
        let certificate = Reloadable::new(&pair).expect("usable");
        let config = client_config(Trust::Authorities(world.pki.ca_pem()), Some(certificate)).expect("tls");
        let stream = TcpStream::connect(world.address).await.expect("connects");
        let connector = TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect("n1".try_into().expect("name"), stream).await.expect("the handshake");
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n").await.expect("asked");
        let mut line = [0; 12];
        stream.read_exact(&mut line).await.expect("answers");
        assert_eq!(line, *b"HTTP/1.1 401");
    }
}

/// What the API server of these authorities is answered.
async fn answered(world: &World, pki: &Pki) -> u16 {
    let tls = world.tls_of(pki, Some(&Identity::ApiserverKubeletClient));
    let mut sender = world.connect_with(tls).await;
    let sent = sender.send_request(request(Method::GET, "/pods", &[]));
    tokio::time::timeout(LONG, sent).await.expect("in time").expect("answers").status().as_u16()
}

/// Whoever exchanges the authority of a cluster need not start its nodes again.
#[tokio::test]
async fn who_comes_is_judged_by_the_authority_of_then() {
    let world = World::new().await;
    let other = Pki::open_or_create(&world.dir.path().join("other"), now_s()).expect("pki");
    let both = format!("{}{}", world.pki.ca_pem(), other.ca_pem());
    for (believed, expected) in
        [(world.pki.ca_pem(), (200, 401)), (both.as_str(), (200, 200)), (other.ca_pem(), (401, 200))]
    {
        world.client_ca.replace(believed).expect("usable");
        assert_eq!((answered(&world, &world.pki).await, answered(&world, &other).await), expected);
    }
}

#[tokio::test]
async fn slow_and_silent_clients_are_left() {
    let settings = Settings {
        // Long enough for an honest client on a busy machine.
        handshake: Duration::from_secs(2),
        head: Duration::from_secs(2),
        max_connections: 2,
        ..Settings::default()
    };
    let world = World::with(settings).await;
    // Both places are taken by clients that say nothing; the third gets in when they are gone.
    let mut silent = TcpStream::connect(world.address).await.expect("connects");
    let stream = TcpStream::connect(world.address).await.expect("connects");
    let name = "n1".try_into().expect("name");
    let mut slow = world.tls(Some(&Identity::Admin)).connect(name, stream).await.expect("handshake");
    slow.write_all(b"GET /healthz HT").await.expect("writes");
    assert_eq!(tokio::time::timeout(LONG, world.get("/healthz")).await.expect("gets in"), (200, "ok".into()));
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, silent.read_to_end(&mut rest)).await.expect("is left").unwrap_or_default();
}

#[tokio::test]
async fn who_says_nothing_keeps_nobody_out() {
    let never = Duration::from_secs(3600);
    let settings =
        Settings { handshake: never, head: never, max_connections: 4, max_strangers: 2, ..Settings::default() };
    let world = World::with(settings).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect(world.address).await.expect("connects"));
    }
    assert_eq!(tokio::time::timeout(LONG, world.get("/healthz")).await.expect("gets in"), (200, "ok".into()));
    // Who came first made room.
    let ended = tokio::time::timeout(LONG, silent[0].read(&mut [0; 1])).await.expect("is left");
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

#[tokio::test]
async fn too_large_a_head_is_refused() {
    let world = World::new().await;
    let huge = "x".repeat(300 << 10);
    let mut sender = world.connect(Some(&Identity::Admin)).await;
    let sent = sender.send_request(request(Method::GET, "/healthz", &[("x-huge", &huge)])).await;
    assert!(sent.is_err() || sent.is_ok_and(|response| response.status().as_u16() == 431));
    assert_eq!(world.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn by_token_and_the_api_servers_word() {
    let world = World::new().await.with_pod(ContainerState::Running);
    for (token, path, expected) in [
        ("Bearer token=get:pods", "/pods", 200),
        ("bearer token=get:pods", "/runningpods/", 200),
        ("Bearer token=get:pods", "/stats/summary", 403),
        ("Bearer token=get:stats", "/stats/summary", 200),
        ("Bearer token=get:proxy", "/pods", 200),
        ("Bearer token=get:proxy", "/metrics", 403),
        ("Bearer token=get:metrics", "/metrics/probes", 200),
        ("Bearer token=get:configz", "/configz", 200),
        ("Bearer token=get:proxy", "/no/such/path", 404),
        ("Bearer token=get:proxy", "/logs/", 403),
        ("Bearer token=unsure", "/pods", 500),
        ("Bearer token=lost", "/pods", 401),
        ("Bearer other", "/pods", 401),
        ("Bearer ", "/pods", 401),
        ("Basic token=get:pods", "/pods", 401),
    ] {
        let mut sender = world.connect(None).await;
        let request = request(Method::GET, path, &[("authorization", token)]);
        let response = sender.send_request(request).await.expect("answers");
        assert_eq!(response.status().as_u16(), expected, "{token} {path}");
    }
}

#[tokio::test]
async fn who_shows_nothing_is_anonymous_where_that_is_allowed() {
    for (anonymous, headers, expected) in [
        (false, &[][..], 401),
        // The API server does not know him as one who may.
        (true, &[], 403),
        (true, &[("authorization", "Basic eDp5")], 403),
        (true, &[("authorization", "Bearer other")], 401),
        (true, &[("authorization", "Bearer token=get:pods")], 200),
    ] {
        let world = World::with(Settings { anonymous, ..Settings::default() }).await;
        let mut sender = world.connect(None).await;
        let response = sender.send_request(request(Method::GET, "/pods", headers)).await.expect("answers");
        assert_eq!(response.status().as_u16(), expected, "{anonymous} {headers:?}");
    }
}
