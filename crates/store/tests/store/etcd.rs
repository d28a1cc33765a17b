//! An etcd of our own, and what only a store on etcd has to withstand.

#![expect(clippy::disallowed_methods, reason = "tests of real processes: they wait for conditions, within bounds")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use carrack_store::etcd::{Options, Tls};
use carrack_store::{Check, EtcdStore, Op, Range, Revision, Store, StoreError, TxnOutcome};
use futures::executor::block_on;
use tempfile::TempDir;

use crate::help::{commit, drain, get, keys, next, put, range, stamped, text, txn};

/// How long something may take that has no bound of its own, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Debian's etcd in a directory of its own.
pub struct Etcd {
    dir: TempDir,
    client_port: u16,
    peer_port: u16,
    flags: Vec<String>,
    process: Option<Child>,
    tls: Option<Tls>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    listener.local_addr().expect("it is bound").port()
}

impl Etcd {
    pub fn start() -> Self {
        Self::with(None, Vec::new())
    }

    fn with(tls: Option<Tls>, flags: Vec<String>) -> Self {
        // Somebody else may have got one of the ports before etcd has.
        for _ in 0..5 {
            let mut etcd = Self {
                dir: tempfile::tempdir().expect("a temporary directory"),
                client_port: free_port(),
                peer_port: free_port(),
                flags: flags.clone(),
                process: None,
                tls: tls.clone(),
            };
            if etcd.run() {
                return etcd;
            }
        }
        panic!("etcd does not start: is it installed (scripts/install-deps test)?");
    }

    /// Starts the process, and waits until it listens; false when it ended instead.
    fn run(&mut self) -> bool {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.client_port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let log = std::fs::File::create(self.dir.path().join("log")).expect("a log");
        let mut process = Command::new("etcd")
            .args(["--name", "test", "--data-dir"])
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            .args(&self.flags)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd can be started (scripts/install-deps test)");
        let began = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.client_port)).is_err() {
            if process.try_wait().expect("it is ours").is_some() || began.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.process = Some(process);
        true
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().and_then(|()| process.wait()).expect("it is ours");
        }
    }

    fn signal(&self, name: &str) {
        let process = self.process.as_ref().expect("it runs");
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", process.id())]).status();
        assert!(sent.expect("there is a shell").success(), "{name}");
    }

    pub fn options(&self) -> Options {
        Options {
            prefix: String::new(),
            compact_every: None,
            tls: self.tls.clone(),
            ..Options::new(vec![format!("127.0.0.1:{}", self.client_port)])
        }
    }

    fn open(&self) -> EtcdStore {
        EtcdStore::open(self.options()).expect("etcd is there")
    }

    /// Something that is not a store talks to it.
    fn raw<T>(&self, talk: impl AsyncFnOnce(&mut etcd_client::Client) -> Result<T, etcd_client::Error>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime
            .block_on(async {
                let mut client =
                    etcd_client::Client::connect([format!("127.0.0.1:{}", self.client_port)], None).await?;
                talk(&mut client).await
            })
            .expect("etcd answers")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_one_server_wrote_another_one_reads() {
    let etcd = Etcd::start();
    let (a, b) = (etcd.open(), etcd.open());
    let mut watch = b.watch("k/", Revision(1)).expect("watchable");
    for round in 0..50 {
        let key = format!("k/{}", round % 7);
        let (revision, _) = commit(&a, vec![put(&key, format!("{round}"))]);
        assert_eq!(get(&b, &key).map(|entry| text(&entry)), Some(format!("{round}")), "read right after the write");
        assert!(b.revision() >= revision);
        let (listed, _) = keys(&b, range("k/"));
        assert!(listed.contains(&key));
        assert_eq!(next(&mut watch), format!("{revision}+{key}={round}"));
        if let Some(progress) = drain(&mut watch).first() {
            assert_eq!(*progress, format!("..{revision}"));
        }
    }
    assert_eq!(block_on(a.sync()).expect("etcd answers"), a.revision());
}

#[test]
fn servers_do_not_lose_each_others_updates() {
    let etcd = Etcd::start();
    let (a, b) = (etcd.open(), etcd.open());
    commit(&a, vec![put("n", "0")]);
    let count = |store: &EtcdStore| {
        for _ in 0..40 {
            let mut entry = get(store, "n").expect("it is there");
            loop {
                let number: u32 = text(&entry).parse().expect("a number");
                let check = Check::Unchanged("n".into(), entry.mod_revision);
                match block_on(store.transact(txn(vec![check], vec![put("n", (number + 1).to_string())]))) {
                    Ok(TxnOutcome::Committed { .. }) => break,
                    Ok(TxnOutcome::Failed { mut current, .. }) => entry = current.remove(0).expect("it is there"),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| count(&a));
        scope.spawn(|| count(&b));
    });
    assert_eq!(get(&a, "n").map(|entry| text(&entry)).as_deref(), Some("80"));
}

#[test]
fn watches_outlive_a_killed_etcd_and_lost_answers_are_unknown() {
    let mut etcd = Etcd::start();
    let options = Options { timeout: Duration::from_secs(2), ..etcd.options() };
    let store = EtcdStore::open(options).expect("etcd is there");
    let mut watch = store.watch("", Revision(1)).expect("watchable");
    commit(&store, vec![put("a", "1")]);
    assert_eq!(next(&mut watch), "2+a=1");
    etcd.kill();
    let lost = block_on(store.transact(txn(vec![], vec![put("a", "2")])));
    assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
    let unread = block_on(store.get("a")).map(|_| ());
    assert!(matches!(unread, Err(StoreError::Unavailable(_))), "{unread:?}");
    until("the fault is known", || store.fault());
    assert!(etcd.run(), "it starts again");
    // It listens before it answers.
    let entry = until("it answers again", || block_on(store.get("a")).ok()).0.expect("it is there");
    let written = if text(&entry) == "2" { 3 } else { 2 };
    let (revision, _) =
        until("it is written again", || match block_on(store.transact(txn(vec![], vec![put("a", "3")]))) {
            Ok(TxnOutcome::Committed { revision, entries }) => Some((revision, entries)),
            Ok(failed) => panic!("{failed:?}"),
            Err(_) => None,
        });
    assert!(revision.0 > written);
    let mut seen = Vec::new();
    while seen.last() != Some(&format!("{revision}+a=3")) {
        seen.extend(next(&mut watch).split(' ').map(str::to_owned));
        assert!(!seen.last().is_some_and(|item| item.starts_with('!')), "{seen:?}");
    }
    assert!(store.fault().is_none());
}

/// Its connections stay open, so nothing breaks.
#[test]
fn an_etcd_that_hangs_is_not_well() {
    let etcd = Etcd::start();
    let store = EtcdStore::open(Options { timeout: PATIENCE, ..etcd.options() }).expect("etcd is there");
    block_on(store.health()).expect("it is well");
    etcd.signal("STOP");
    let began = Instant::now();
    let told = until("the silence is told of", || block_on(store.health()).err());
    assert!(matches!(told, StoreError::Unavailable(_)), "{told:?}");
    assert!(began.elapsed() < PATIENCE / 2, "it takes less than a request may: {:?}", began.elapsed());
    etcd.signal("CONT");
    until("it is well again", || block_on(store.health()).ok());
}

#[test]
fn an_etcd_that_went_back_in_time_ends_all_watches() {
    let mut etcd = Etcd::start();
    let store = etcd.open();
    commit(&store, vec![put("a", "1"), put("b", "1")]);
    commit(&store, vec![put("a", "2")]);
    let mut watch = store.watch("", Revision(1)).expect("watchable");
    etcd.kill();
    std::fs::remove_dir_all(etcd.dir.path().join("data")).expect("it is there");
    assert!(etcd.run(), "it starts again");
    until("the watch ends", || drain(&mut watch).contains(&"!the watch fell too far behind".to_owned()).then_some(()));
    let found = until("it answers", || block_on(store.range(range(""))).ok());
    assert!(found.entries.is_empty(), "what is gone in etcd is gone here");
    assert_eq!(commit(&store, vec![put("c", "1")]).0, Revision(2));
    assert_eq!(get(&store, "c").map(|entry| entry.mod_revision), Some(Revision(2)));
}

#[test]
fn history_from_before_a_start_is_read_from_etcd() {
    let etcd = Etcd::start();
    let first = etcd.open();
    for round in 0..9 {
        commit(&first, vec![put(&format!("k/{round}"), "old"), put("other", format!("{round}"))]);
    }
    let at = first.revision();
    commit(&first, vec![put("k/3", "new"), put("l", "")]);
    let second = etcd.open();
    assert!(matches!(second.watch("", at), Err(StoreError::Compacted { .. })));
    let page = Range { prefix: "k/".into(), after: Some("k/2".into()), limit: 4, at: Some(at) };
    let page = block_on(second.range(page)).expect("etcd still has it");
    assert!(page.entries.iter().all(|entry| text(entry) == "old"));
    let found: Vec<_> = page.entries.iter().map(|entry| &*entry.key).collect();
    assert_eq!((found, page.remaining, page.revision), (vec!["k/3", "k/4", "k/5", "k/6"], 2, at));
    block_on(second.compact(Revision(at.0 + 1))).expect("compactable");
    let gone = block_on(second.range(Range { at: Some(at), ..range("k/") }));
    assert!(matches!(gone, Err(StoreError::Compacted { .. })), "{gone:?}");
}

#[test]
fn others_keys_are_left_alone_but_count() {
    let etcd = Etcd::start();
    let options = Options { prefix: "/registry/".to_owned(), ..etcd.options() };
    let store = EtcdStore::open(options).expect("etcd is there");
    let mut watch = store.watch("/registry/", Revision(1)).expect("watchable");
    etcd.raw(async |client| client.put("/elsewhere", "x", None).await.map(drop));
    assert_eq!(block_on(store.sync()).expect("etcd answers"), Revision(2));
    assert!(keys(&store, range("")).0.is_empty());
    let value = stamped("{\"metadata\":{\"resourceVersion\":\"", "\"}}");
    commit(&store, vec![Op::Put("/registry/pods/default/a".into(), value)]);
    assert_eq!(next(&mut watch), "3+/registry/pods/default/a={\"metadata\":{\"resourceVersion\":\"3\"}}");
    // Where upstream's tools look, and without a revision that would be wrong for them.
    let raw = etcd.raw(async |client| client.get("/registry/pods/default/a", None).await);
    assert_eq!(raw.kvs()[0].value(), b"{\"metadata\":{\"resourceVersion\":\"\"}}");
}

/// What others have put is handed to who knows its form; what that cannot read stays as it is.
#[test]
fn values_of_others_are_adopted() {
    let etcd = Etcd::start();
    let foreign =
        |value: &[u8]| value.starts_with(b"{").then(|| stamped("{\"metadata\":{\"resourceVersion\":\"", "\"}}"));
    let put = |key: &str, value: &str| etcd.raw(async |client| client.put(key, value, None).await.map(drop));
    put("before", "{ }");
    let store = EtcdStore::open(Options { foreign, ..etcd.options() }).expect("etcd is there");
    put("after", "{}");
    put("odd", "k8s");
    for (key, value) in [
        ("before", "{\"metadata\":{\"resourceVersion\":\"2\"}}"),
        ("after", "{\"metadata\":{\"resourceVersion\":\"3\"}}"),
        ("odd", "k8s"),
    ] {
        assert_eq!(get(&store, key).map(|entry| text(&entry)).as_deref(), Some(value), "{key}");
    }
}

#[test]
fn one_of_several_servers_compacts() {
    let etcd = Etcd::start();
    let options =
        Options { prefix: "/registry/".to_owned(), compact_every: Some(Duration::from_millis(100)), ..etcd.options() };
    let stores = [0, 1].map(|_| EtcdStore::open(options.clone()).expect("etcd is there"));
    let (first, _) = commit(&stores[0], vec![put("/registry/a", "1")]);
    commit(&stores[1], vec![put("/registry/a", "2")]);
    until("the first write is forgotten", || {
        etcd.raw(async |client| {
            let at = etcd_client::GetOptions::new().with_revision(i64::try_from(first.0).expect("small"));
            Ok(client.get("/registry/a", Some(at)).await.is_err().then_some(()))
        })
    });
    assert_eq!(get(&stores[0], "/registry/a").map(|entry| text(&entry)).as_deref(), Some("2"));
}

#[test]
fn over_tls_with_a_client_certificate() {
    let made = |name: &str, ca: Option<&(rcgen::Certificate, rcgen::Issuer<'static, rcgen::KeyPair>)>| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        match ca {
            Some((_, issuer)) => (params.signed_by(&key, issuer).expect("signed"), None, key.serialize_pem()),
            None => {
                params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
                let certificate = params.self_signed(&key).expect("signed");
                (certificate, Some(rcgen::Issuer::new(params, key)), String::new())
            }
        }
    };
    let (ca, issuer, _) = made("ca", None);
    let ca = (ca, issuer.expect("it is one"));
    let (server, _, server_key) = made("etcd", Some(&ca));
    let (client, _, client_key) = made("client", Some(&ca));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).expect("written");
        dir.path().join(name).to_string_lossy().into_owned()
    };
    let flags = vec![
        format!("--cert-file={}", file("server.crt", &server.pem())),
        format!("--key-file={}", file("server.key", &server_key)),
        format!("--trusted-ca-file={}", file("ca.crt", &ca.0.pem())),
        "--client-cert-auth".to_owned(),
    ];
    let tls = Tls { ca: ca.0.pem().into_bytes(), identity: Some((client.pem().into_bytes(), client_key.into_bytes())) };
    let etcd = Etcd::with(Some(tls.clone()), flags);
    let store = etcd.open();
    commit(&store, vec![put("a", "1")]);
    assert_eq!(get(&store, "a").map(|entry| text(&entry)).as_deref(), Some("1"));
    let nobody =
        Options { tls: Some(Tls { identity: None, ..tls }), timeout: Duration::from_secs(1), ..etcd.options() };
    assert!(EtcdStore::open(nobody).is_err(), "it asks for a certificate");
}
