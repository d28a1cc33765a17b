//! Real TLS handshakes over a socket pair: who the server takes the client for, and whom either refuses.
#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::disallowed_methods, reason = "rustls checks certificates against the real clock")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_auth::Caller;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, KeyPairPem, Pki, Sans, Server};
use carrack_auth::tls::{
    Offered, Reloadable, ServerTls, Trust, client_config, mutual_server_config, server_config, server_config_offering,
};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, SigningKey as _};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConnection, StreamOwned};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tempfile::TempDir;

const YEAR_S: i64 = 365 * 24 * 3600;

fn now_unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_secs()).expect("in range")
}

struct Cluster {
    _directory: TempDir,
    pki: Pki,
}

fn cluster(now: i64) -> Cluster {
    let directory = tempfile::tempdir().expect("a directory");
    let pki = Pki::open_or_create(directory.path(), now).expect("a PKI");
    Cluster { _directory: directory, pki }
}

impl Cluster {
    fn serving(&self) -> Arc<Reloadable> {
        let sans = Sans::apiserver("10.43.0.1".parse().expect("an address"));
        let pair = self.pki.server(&Server::Apiserver, &sans, now_unix_s()).expect("issued");
        Reloadable::new(&pair).expect("usable")
    }

    fn apiserver(&self) -> ServerTls {
        server_config(self.serving(), self.pki.ca_pem()).expect("a configuration")
    }

    fn client(&self, pair: Option<&KeyPairPem>) -> ClientConfig {
        let pair = pair.map(|p| Reloadable::new(p).expect("usable"));
        client_config(Trust::Authorities(self.pki.ca_pem()), pair).expect("a configuration")
    }

    /// A client that speaks no newer version than 1.2.
    fn old_client(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(self.pki.ca_pem().as_bytes()) {
            roots.add(authority.expect("PEM")).expect("usable");
        }
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS12])
            .expect("a version")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    fn identity(&self, identity: &Identity) -> KeyPairPem {
        self.pki.client(identity, now_unix_s()).expect("issued")
    }
}

#[derive(Debug)]
struct Met {
    /// Whom the server saw.
    caller: Option<Caller>,
    /// What the two agreed to speak.
    alpn: Option<Vec<u8>>,
    /// The certificate that the client saw.
    served: Vec<u8>,
    /// Whether the handshake was a whole one.
    kind: Option<HandshakeKind>,
}

/// Connects the two over a socket pair and exchanges a byte each way.
fn meet(server: ServerTls, mut client: ClientConfig, name: &str) -> Result<Met, String> {
    client.alpn_protocols = vec![b"h2".to_vec()];
    let (near, far) = UnixStream::pair().expect("a socket pair");
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    }
    let name = name.to_owned().try_into().expect("a server name");
    let serve = move || -> Result<(Option<Caller>, Option<Vec<u8>>), String> {
        let connection = ServerConnection::new(Arc::new(server.config)).map_err(|e| e.to_string())?;
        let mut stream = StreamOwned::new(connection, far);
        let mut byte = [0];
        stream.read_exact(&mut byte).map_err(|e| e.to_string())?;
        stream.write_all(&byte).map_err(|e| e.to_string())?;
        let peer = server.clients.peer(stream.conn.peer_certificates()).map_err(|e| e.to_string())?;
        Ok((peer.map(|peer| peer.caller), stream.conn.alpn_protocol().map(<[u8]>::to_vec)))
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(serve);
        let connection = ClientConnection::new(Arc::new(client), name).map_err(|e| e.to_string())?;
        let mut stream = StreamOwned::new(connection, near);
        let mut byte = [42];
        let exchanged = stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte));
        let served = stream.conn.peer_certificates().and_then(|c| c.first()).map(|c| c.to_vec());
        let kind = stream.conn.handshake_kind();
        drop(stream);
        let (caller, alpn) = server.join().expect("no panic")?;
        exchanged.map_err(|e| e.to_string())?;
        Ok(Met { caller, alpn, served: served.unwrap_or_default(), kind })
    })
}

/// What the client makes of the handshake.
fn meet_client(server: ServerTls, client: ClientConfig, name: &str) -> Result<(), String> {
    let (mut near, far) = UnixStream::pair().expect("a socket pair");
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    }
    let name = name.to_owned().try_into().expect("a server name");
    std::thread::scope(|scope| {
        let served = scope.spawn(move || {
            let connection = ServerConnection::new(Arc::new(server.config)).map_err(|e| e.to_string())?;
            let mut stream = StreamOwned::new(connection, far);
            stream.conn.complete_io(&mut stream.sock).map_err(|e| e.to_string())
        });
        let mut client = ClientConnection::new(Arc::new(client), name).map_err(|e| e.to_string())?;
        let shaken = client.complete_io(&mut near).map_err(|e| carrack_auth::tls::why_refused(&e));
        // Who waits for more learns that there is none.
        drop(near);
        let served = served.join().expect("no panic");
        shaken?;
        served.map(|_| ())
    })
}

#[test]
fn the_certificate_says_who_it_is() {
    let c = cluster(now_unix_s());
    let check = |identity: Identity, user: &str, groups: &[&str]| {
        let pair = c.identity(&identity);
        let met = meet(c.apiserver(), c.client(Some(&pair)), "localhost").expect("they meet");
        let caller = met.caller.expect("a certificate was shown");
        assert_eq!(
            (caller.user.as_str(), caller.groups.as_slice()),
            (user, &groups.iter().map(|&g| g.to_owned()).collect::<Vec<_>>()[..])
        );
        assert_eq!(met.alpn.as_deref(), Some(&b"h2"[..]));
        let id = caller.extra.get("authentication.kubernetes.io/credential-id").expect("a credential id");
        assert!(id.iter().all(|id| id.starts_with("X509SHA256=") && id.len() == 11 + 64), "{id:?}");
    };
    check(Identity::Admin, "system:admin", &["system:masters", "system:authenticated"]);
    check(Identity::Scheduler, "system:kube-scheduler", &["system:authenticated"]);
    check(Identity::Node { node: "n1".into() }, "system:node:n1", &["system:nodes", "system:authenticated"]);
    check(
        Identity::VirtHandler { node: "n1".into() },
        "kubevirt.io:virt-handler:n1",
        &["kubevirt.io:virt-handlers", "system:authenticated"],
    );
}

#[test]
fn who_comes_again_shows_its_certificate_again() {
    let c = cluster(now_unix_s());
    let (server, client) = (c.apiserver(), c.client(Some(&c.identity(&Identity::Admin))));
    for time in ["first", "second"] {
        let met = meet(server.clone(), client.clone(), "localhost").expect("they meet");
        assert_eq!(met.kind, Some(HandshakeKind::Full), "the {time} time");
    }
}

#[test]
fn a_server_offers_what_it_is_told_to() {
    let c = cluster(now_unix_s());
    for (oldest, suites, takes_old) in [
        ("", &[][..], true),
        ("VersionTLS11", &[], true),
        ("VersionTLS13", &[], false),
        ("", &["TLS_AES_128_GCM_SHA256"], false),
        ("", &["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_RSA_WITH_AES_256_GCM_SHA384"], true),
        // The server's key is not for that.
        ("", &["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"], false),
    ] {
        let suites: Vec<String> = suites.iter().map(|name: &&str| (*name).to_owned()).collect();
        let offered = Offered::named(oldest, &suites).expect("it is known");
        let server = server_config_offering(c.serving(), c.pki.ca_pem(), &offered).expect("a configuration");
        meet(server.clone(), c.client(None), "localhost").expect("the newest version is always there");
        assert_eq!(meet(server, c.old_client(), "localhost").is_ok(), takes_old, "{oldest} {suites:?}");
    }
}

#[test]
fn no_certificate_is_nobody() {
    let c = cluster(now_unix_s());
    let met = meet(c.apiserver(), c.client(None), "127.0.0.1").expect("they meet");
    assert_eq!(met.caller, None);
}

/// The handshake is done with all of them: that they are not believed is found out after it.
#[test]
fn whom_the_server_does_not_believe() {
    let c = cluster(now_unix_s());
    let other = cluster(now_unix_s());
    let old = cluster(now_unix_s() - 2 * YEAR_S);
    let early = cluster(now_unix_s() - 2 * YEAR_S);
    let check = |cluster: &Cluster, pair: &KeyPairPem, want: &str| {
        let met = meet(cluster.apiserver(), cluster.client(Some(pair)), "localhost");
        let error = met.expect_err("must not be believed");
        let is_told = error.starts_with("the client certificate is not accepted: ") && error.contains(want);
        assert!(is_told, "{want}: {error}");
        // Where a certificate is demanded, it has to be a good one.
        let mutual = mutual_server_config(cluster.serving(), cluster.pki.ca_pem()).expect("a configuration");
        let error = meet(mutual, cluster.client(Some(pair)), "localhost").expect_err("must be refused");
        assert!(error.contains(want) && !error.contains("not accepted"), "{want}: {error}");
    };
    check(&c, &other.identity(&Identity::Admin), "UnknownIssuer");
    let expired = old.pki.client(&Identity::Admin, now_unix_s() - 2 * YEAR_S).expect("issued");
    check(&old, &expired, "expired");
    let future = early.pki.client(&Identity::Admin, now_unix_s() + 3600).expect("issued");
    check(&early, &future, "not valid yet");
    // A serving certificate is no client's, though the same authority signed it.
    let serving =
        c.pki.server(&Server::Kubelet { node: "n1".into() }, &Sans::loopback(), now_unix_s()).expect("issued");
    check(&c, &serving, "extended key usage");
    // The front proxy's authority is another one.
    check(&c, &c.identity(&Identity::FrontProxy), "UnknownIssuer");
}

#[test]
fn a_mutual_server_demands_a_certificate() {
    let c = cluster(now_unix_s());
    let server = || {
        let node = Server::Kubelet { node: "n1".into() };
        let pair = c.pki.server(&node, &Sans::loopback(), now_unix_s()).expect("issued");
        mutual_server_config(Reloadable::new(&pair).expect("usable"), c.pki.ca_pem()).expect("a configuration")
    };
    assert!(meet(server(), c.client(None), "localhost").is_err());
    let pair = c.identity(&Identity::ApiserverKubeletClient);
    let met = meet(server(), c.client(Some(&pair)), "localhost").expect("they meet");
    assert_eq!(met.caller.map(|caller| caller.user).as_deref(), Some("kube-apiserver-kubelet-client"));
}

#[test]
fn whom_the_client_refuses() {
    let (c, other) = (cluster(now_unix_s()), cluster(now_unix_s()));
    assert!(meet(c.apiserver(), other.client(None), "localhost").is_err(), "another authority");
    assert!(meet(c.apiserver(), c.client(None), "example.com").is_err(), "another name");
    let blind = client_config(Trust::Anybody, None).expect("a configuration");
    assert!(meet(c.apiserver(), blind, "example.com").is_ok(), "asked not to look");
    for name in ["kubernetes.default.svc.cluster.local", "10.43.0.1", "::1"] {
        assert!(meet(c.apiserver(), c.client(None), name).is_ok(), "{name}");
    }
}

/// A certificate that is trusted by itself needs no other, be it an authority's (as `openssl req -x509` makes them) or not;
/// name, time and purpose have to fit all the same.
#[test]
fn a_server_whose_own_certificate_is_trusted() {
    let c = cluster(now_unix_s());
    let today = now_unix_s() / 86400;
    let day = |days: i64| {
        let since = Duration::from_secs(86400) * u32::try_from(today + days).expect("after 1970");
        rcgen::date_time_ymd(1970, 1, 1) + since
    };
    let made = |is_ca: IsCa, usage: &[ExtendedKeyUsagePurpose], from: i64, to: i64| {
        let mut params = CertificateParams::new(["hook.example".to_owned()]).expect("a name");
        (params.is_ca, params.extended_key_usages) = (is_ca, usage.to_vec());
        (params.not_before, params.not_after) = (day(from), day(to));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("signed").pem();
        KeyPairPem { certificate, key: key.serialize_pem().into() }
    };
    let authority = || IsCa::Ca(BasicConstraints::Unconstrained);
    let (serves, asks) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
    for (pair, name, want) in [
        (made(authority(), &[], -1, 1), "hook.example", Ok(())),
        (made(authority(), std::slice::from_ref(&serves), -1, 1), "hook.example", Ok(())),
        (made(IsCa::NoCa, &[], -1, 1), "hook.example", Ok(())),
        (made(authority(), &[], -1, 1), "other.example", Err("not valid for name")),
        (made(authority(), &[], -3, -2), "hook.example", Err("expired")),
        (made(authority(), &[], 2, 3), "hook.example", Err("not valid yet")),
        (made(authority(), &[asks], -1, 1), "hook.example", Err("InvalidPurpose")),
    ] {
        let server = || server_config(Reloadable::new(&pair).expect("usable"), c.pki.ca_pem()).expect("TLS");
        let trusting = |pem: &str| client_config(Trust::Authorities(pem), None).expect("a configuration");
        // The client is not heard of, where it is the one who refuses.
        let met = meet_client(server(), trusting(&pair.certificate), name);
        match want {
            Ok(()) => assert_eq!(met, Ok(()), "{name}"),
            Err(why) => assert!(met.as_ref().is_err_and(|error| error.contains(why)), "{why}: {met:?}"),
        }
        // Another one with the same names is nobody's, though its owner says it is.
        let other = made(authority(), &[], -1, 1);
        assert!(meet_client(server(), trusting(&other.certificate), name).is_err(), "{name}");
    }
}

#[test]
fn a_certificate_is_exchanged_while_in_use() {
    let c = cluster(now_unix_s());
    let serving = |sans: &Sans| c.pki.server(&Server::Apiserver, sans, now_unix_s()).expect("issued");
    let reloadable = Reloadable::new(&serving(&Sans::loopback())).expect("usable");
    let config = server_config(Arc::clone(&reloadable), c.pki.ca_pem()).expect("a configuration");
    let first = meet(config.clone(), c.client(None), "localhost").expect("they meet").served;
    assert!(meet(config.clone(), c.client(None), "late.example").is_err());
    reloadable.replace(&serving(&Sans::loopback().with_name("late.example"))).expect("usable");
    let second = meet(config, c.client(None), "late.example").expect("they meet").served;
    assert_ne!(first, second);
    let mismatched = KeyPairPem { key: c.identity(&Identity::Admin).key, ..c.identity(&Identity::Scheduler) };
    assert!(reloadable.replace(&mismatched).is_err(), "the key is another one's");
}

#[test]
fn a_kubeconfig_opens_the_door() {
    let c = cluster(now_unix_s());
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kube/admin.conf");
    let pair = c.identity(&Identity::Admin);
    Kubeconfig::for_certificate("carrack", "admin", "https://127.0.0.1:6443", c.pki.ca_pem(), &pair)
        .write(&path)
        .expect("written");
    let target = Kubeconfig::load(&path).expect("loaded").resolve(None).expect("resolved");
    assert_eq!(target.host_port().expect("an address"), ("127.0.0.1".to_owned(), 6443));
    let met = meet(c.apiserver(), target.client_config().expect("a configuration"), "127.0.0.1");
    let caller = met.expect("they meet").caller.expect("a certificate");
    assert!(caller.in_group("system:masters"));
}

/// An element of DER.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let [high, low] = u16::try_from(content.len()).expect("not that long").to_be_bytes();
    let head = match (high, low) {
        (0, 0..0x80) => vec![tag, low],
        (0, _) => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [head, content].concat()
}

/// A certificate without a version and extensions, as one of OpenSSL's commands makes them: a subject and its key, signed by
/// the issuer's.
fn of_the_first_version(issuer: &[u8], issuer_key: &KeyPair, subject: &[u8], key: &[u8], until: &str) -> Vec<u8> {
    // ecdsa-with-SHA256.
    let algorithm = [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    let times = [der(0x17, &[b"200101000000Z"]), der(0x17, &[until.as_bytes()])].concat();
    let text = der(0x30, &[&[2, 1, 7], &algorithm, issuer, &der(0x30, &[&times]), subject, key]);
    let signature = issuer_key.sign(&text).expect("signed");
    der(0x30, &[&text, &algorithm, &der(0x03, &[&[0], &signature])])
}

/// Go takes clients' certificates of X.509's first version, which say nothing of what they are for, and authorities of that
/// version that are trusted themselves.
#[test]
fn certificates_of_the_first_version() {
    const LATE: &str = "491231235959Z";
    let c = cluster(now_unix_s());
    let named = |name: &str, is_authority: bool| {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if is_authority {
            (params.is_ca, params.extended_key_usages) = (IsCa::Ca(BasicConstraints::Unconstrained), Vec::new());
        }
        params
    };
    // The parts of a name's certificate that others are put together from.
    let parts = |params: &CertificateParams, key: &KeyPair| {
        let certificate = params.self_signed(key).expect("signed");
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate.der()).expect("a certificate");
        (parsed.subject().as_raw().to_vec(), parsed.public_key().raw.to_vec(), certificate.pem())
    };
    let [ca_key, other_key, key] = [(); 3].map(|()| KeyPair::generate().expect("a key"));
    let (ca, _, ca_pem) = parts(&named("ca", true), &ca_key);
    let (subject, public, _) = parts(&named("jane", false), &key);
    let meets = |trusted: &str, certificate: Vec<u8>| {
        let server = server_config(c.serving(), trusted).expect("a configuration");
        let pkcs8 = rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let signing = rustls::crypto::ring::default_provider().key_provider.load_private_key(pkcs8).expect("a key");
        // As other clients: rustls itself would not show it.
        let shown = rustls::sign::CertifiedKey::new(vec![certificate.into()], signing);
        let mut client = c.client(None);
        client.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(shown));
        meet(server, client, "localhost").map(|met| met.caller.map(|caller| caller.user).unwrap_or_default())
    };
    let good = || of_the_first_version(&ca, &ca_key, &subject, &public, LATE);
    assert_eq!(meets(&ca_pem, good()).as_deref(), Ok("jane"));
    let refused = |certificate: Vec<u8>, want: &str| {
        let error = meets(&ca_pem, certificate).expect_err("must not be believed");
        assert!(error.contains(want), "{want}: {error}");
    };
    refused(of_the_first_version(&ca, &other_key, &subject, &public, LATE), "UnknownIssuer");
    refused(of_the_first_version(&subject, &ca_key, &subject, &public, LATE), "UnknownIssuer");
    refused(of_the_first_version(&ca, &ca_key, &subject, &public, "210101000000Z"), "expired");
    // One of the third version that says it is no authority vouches for nobody.
    let (leaf, _, leaf_pem) = parts(&named("leaf", false), &other_key);
    let by_a_leaf = of_the_first_version(&leaf, &other_key, &subject, &public, LATE);
    assert!(meets(&leaf_pem, by_a_leaf).is_err_and(|error| error.contains("UnknownIssuer")));

    // An authority of the first version, for clients of the first version and of the third.
    let (_, ca_public, _) = parts(&named("ca", true), &ca_key);
    let root = of_the_first_version(&ca, &ca_key, &ca, &ca_public, LATE);
    let root_pem = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(&root));
    assert_eq!(meets(&root_pem, good()).as_deref(), Ok("jane"));
    let issuer = rcgen::Issuer::new(named("ca", true), &ca_key);
    let newer = named("jane", false).signed_by(&key, &issuer).expect("signed");
    assert_eq!(meets(&root_pem, newer.der().to_vec()).as_deref(), Ok("jane"));
}
