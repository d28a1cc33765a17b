//! Credentials in files that somebody else exchanges: certificates are made anew within their year, tokens of pods within
//! their hour. They are read again each minute, as client-go and upstream's servers do it, so that nobody has to start a
//! role again for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use carrack_auth::Secret;
use carrack_auth::kubeconfig::{Kubeconfig, Target, Token};
use carrack_auth::pki::KeyPairPem;
use carrack_auth::tls::{ClientCa, Reloadable};
use carrack_engine::{ApiError, ApiRequest, ApiResponse, EventStream, HttpsTransport, Transport};
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// How often files are read again.
const PERIOD: Duration = Duration::from_secs(60);

/// The way to the API server that a kubeconfig names, with its credentials as they are now.
///
/// # Errors
/// The kubeconfig cannot be used.
pub fn connect(kubeconfig: &Path) -> anyhow::Result<HttpsTransport> {
    let (target, token) = read(kubeconfig)?;
    to(&target, token.as_ref()).with_context(|| unusable(kubeconfig))
}

/// The way to a server, with the credentials for it as they are now.
///
/// # Errors
/// They cannot be used.
pub fn reach(target: &Target) -> anyhow::Result<HttpsTransport> {
    to(target, target.token.as_ref().map(Token::read).transpose()?.as_ref())
}

fn unusable(kubeconfig: &Path) -> String {
    format!("cannot use the kubeconfig {}", kubeconfig.display())
}

fn read(kubeconfig: &Path) -> anyhow::Result<(Target, Option<Secret>)> {
    let context = || unusable(kubeconfig);
    let target = Kubeconfig::load(kubeconfig).with_context(context)?.resolve(None).with_context(context)?;
    let token = target.token.as_ref().map(Token::read).transpose().with_context(context)?;
    Ok((target, token))
}

fn to(target: &Target, token: Option<&Secret>) -> anyhow::Result<HttpsTransport> {
    let tls = target.client_config()?;
    let name = target.tls_server_name.as_deref();
    HttpsTransport::new(&target.server, name, tls, token.map(|token| token.expose()))
        .map_err(|error| anyhow::anyhow!("{error}"))
}

/// The way to the API server with the credentials of a kubeconfig, also when these are other ones later. What is sent from
/// then on goes over new connections; watches that are open end with their own.
pub struct Followed {
    kubeconfig: PathBuf,
    name: String,
    state: RwLock<State>,
}

struct State {
    target: Target,
    token: Option<Secret>,
    transport: Arc<HttpsTransport>,
}

impl Followed {
    /// Under a name that the server is told.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub fn new(kubeconfig: &Path, name: &str) -> anyhow::Result<Self> {
        let (target, token) = read(kubeconfig)?;
        let transport = to(&target, token.as_ref()).with_context(|| unusable(kubeconfig))?;
        let transport = Arc::new(transport.named(name));
        let state = RwLock::new(State { target, token, transport });
        Ok(Self { kubeconfig: kubeconfig.to_owned(), name: name.to_owned(), state })
    }

    /// Looks at the files until `stop`. What cannot be used is told, and the credentials before it stay in use.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
        while !passes(&stop).await {
            let this = Arc::clone(&self);
            // A disk may be slow.
            match tokio::task::spawn_blocking(move || this.look()).await {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => tracing::info!("the API server is shown other credentials from now on"),
                Ok(Err(error)) => tracing::warn!("credentials stay as they are: {error:#}"),
                Err(panic) => tracing::error!(%panic, "credentials were not looked at"),
            }
        }
    }

    /// Whether there are others.
    fn look(&self) -> anyhow::Result<bool> {
        let (target, token) = read(&self.kubeconfig)?;
        {
            let before = self.state();
            if (&target.client, &token) == (&before.target.client, &before.token) {
                return Ok(false);
            }
            // What is known of one cluster must not be taken for another's.
            ensure!(
                (&target.server, &target.ca_pem) == (&before.target.server, &before.target.ca_pem),
                "{} is for another server by now: start this role again",
                self.kubeconfig.display()
            );
        }
        let transport = to(&target, token.as_ref()).with_context(|| unusable(&self.kubeconfig))?;
        let transport = Arc::new(transport.named(&self.name));
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = State { target, token, transport };
        Ok(true)
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn transport(&self) -> Arc<HttpsTransport> {
        Arc::clone(&self.state().transport)
    }
}

impl Transport for Followed {
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        self.transport().send(request)
    }

    fn watch(&self, request: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        self.transport().watch(request)
    }
}

/// A certificate to serve with, and its key, in files.
pub struct Files {
    certificate: PathBuf,
    key: PathBuf,
    read: KeyPairPem,
    used: Arc<Reloadable>,
}

impl Files {
    /// Reads them.
    ///
    /// # Errors
    /// They cannot be read, or do not fit together.
    pub fn open(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let read = pair(certificate, key)?;
        let used = Reloadable::new(&read).with_context(|| format!("cannot serve with {}", certificate.display()))?;
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), read, used })
    }

    /// What to serve with.
    pub fn used(&self) -> Arc<Reloadable> {
        Arc::clone(&self.used)
    }

    /// Looks at the files until `stop`, and exchanges what is served with when they are others. What cannot be used, as
    /// between the writing of the one and of the other, is told, and the certificate before it stays in use.
    pub async fn follow(self, stop: CancellationToken) {
        let file = self.certificate.clone();
        follow("certificate to serve with", &file, self, Self::look, stop).await;
    }

    /// Whether there are others.
    fn look(&mut self) -> anyhow::Result<bool> {
        let now = pair(&self.certificate, &self.key)?;
        if now == self.read {
            return Ok(false);
        }
        self.used.replace(&now).with_context(|| format!("cannot serve with {}", self.certificate.display()))?;
        self.read = now;
        Ok(true)
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn pair(certificate: &Path, key: &Path) -> anyhow::Result<KeyPairPem> {
    Ok(KeyPairPem { certificate: text(certificate)?, key: text(key)?.into() })
}

/// The authority of a server's clients, in a file.
pub struct ClientCaFile {
    path: PathBuf,
    read: String,
    used: Arc<ClientCa>,
}

impl ClientCaFile {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read, or used.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let read = text(path)?;
        let used = ClientCa::new(&read).with_context(|| format!("cannot use {}", path.display()))?;
        Ok(Self { path: path.to_owned(), read, used })
    }

    /// The authority that is believed.
    pub fn used(&self) -> Arc<ClientCa> {
        Arc::clone(&self.used)
    }

    /// Looks at the file until `stop`, and believes another authority when it has one. What cannot be used is told, and the one
    /// before it stays.
    pub async fn follow(self, stop: CancellationToken) {
        let file = self.path.clone();
        follow("authority of clients", &file, self, Self::look, stop).await;
    }

    /// Whether there is another.
    fn look(&mut self) -> anyhow::Result<bool> {
        let now = text(&self.path)?;
        if now == self.read {
            return Ok(false);
        }
        self.used.replace(&now).with_context(|| format!("cannot use {}", self.path.display()))?;
        self.read = now;
        Ok(true)
    }
}

/// Looks again and again until `stop`, and tells what comes of it.
async fn follow<T: Send + 'static>(
    what: &str,
    file: &Path,
    mut followed: T,
    look: fn(&mut T) -> anyhow::Result<bool>,
    stop: CancellationToken,
) {
    while !passes(&stop).await {
        // A disk may be slow.
        let looked = tokio::task::spawn_blocking(move || (look(&mut followed), followed)).await;
        followed = match looked {
            Ok((outcome, followed)) => {
                match outcome {
                    Ok(false) => {}
                    Ok(true) => tracing::info!(file = %file.display(), "another {what} is in use"),
                    Err(error) => tracing::warn!("the {what} stays as it is: {error:#}"),
                }
                followed
            }
            Err(panic) => return tracing::error!(%panic, "nobody looks for another {what} any more"),
        };
    }
}

/// Whether the end came before the next look.
async fn passes(stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => true,
        () = tokio::time::sleep(PERIOD) => false,
    }
}

#[cfg(test)]
mod tests {
    use carrack_auth::pki::{Identity, Pki, Sans, Server};
    use carrack_engine::Method;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::roles::apiserver::now_unix_s;
    use crate::wire::Endpoint;

    fn pairs(dir: &Path) -> (Pki, [KeyPairPem; 2]) {
        let now = 1_800_000_000;
        let pki = Pki::open_or_create(&dir.join("pki"), now).expect("made");
        let pairs = [Identity::Scheduler, Identity::VirtController].map(|of| pki.client(&of, now).expect("issued"));
        (pki, pairs)
    }

    #[tokio::test]
    async fn a_role_goes_on_with_other_credentials() {
        let dir = tempfile::tempdir().expect("a directory");
        let (pki, [first, second]) = pairs(dir.path());
        let file = dir.path().join("role.yaml");
        let write = |pair: &KeyPairPem, server: &str| {
            Kubeconfig::for_certificate("c", "u", server, pki.ca_pem(), pair).write(&file).expect("written");
        };
        write(&first, "https://a:1");
        let role = Followed::new(&file, "role").expect("usable");
        let begun = role.transport();
        assert!(!role.look().expect("the same") && Arc::ptr_eq(&begun, &role.transport()));
        write(&second, "https://a:1");
        assert!(role.look().expect("others") && !Arc::ptr_eq(&begun, &role.transport()));
        let current = role.transport();
        assert!(!role.look().expect("the same"));
        write(&first, "https://b:1");
        assert!(role.look().is_err_and(|why| why.to_string().contains("another server")));
        fs::write(&file, "- nonsense").expect("written");
        assert!(role.look().is_err() && Arc::ptr_eq(&current, &role.transport()));
    }

    #[tokio::test]
    async fn a_server_may_have_another_name_than_its_address() {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = Pki::open_or_create(dir.path(), now_unix_s()).expect("made");
        let sans = Sans::default().with_name("api.example");
        let pair = pki.server(&Server::Apiserver, &sans, now_unix_s()).expect("issued");
        let certificate = Reloadable::new(&pair).expect("usable");
        let mut tls = carrack_auth::tls::server_config(certificate, pki.ca_pem()).expect("usable").config;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let server = format!("https://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Who does not believe the certificate hangs up.
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut asked = [0; 4096];
                if stream.read(&mut asked).await.is_ok_and(|count| count > 0) {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.expect("answered");
                    stream.flush().await.expect("answered");
                }
            }
        });
        let admin = pki.client(&Identity::Admin, now_unix_s()).expect("issued");
        let kubeconfig = Kubeconfig::for_certificate("c", "u", &server, pki.ca_pem(), &admin);
        let target = kubeconfig.resolve(None).expect("it is whole");
        for (name, is_reached) in [(None, false), (Some("api.example"), true), (Some("other.example"), false)] {
            let target = Target { tls_server_name: name.map(str::to_owned), ..target.clone() };
            let reply = reach(&target).expect("usable").send(ApiRequest::new(Method::Get, "/version")).await;
            assert_eq!(reply.is_ok(), is_reached, "{name:?}: {reply:?}");
            let connected = Endpoint::of(&target).expect("usable").connect().await;
            assert_eq!(connected.is_ok(), is_reached, "{name:?}");
        }
    }

    #[test]
    fn an_authority_is_exchanged_in_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ca.crt");
        let [first, second] = ["a", "b"].map(|name| {
            let own = dir.path().join(name);
            fs::create_dir(&own).expect("made");
            pairs(&own).0.ca_pem().to_owned()
        });
        fs::write(&path, &first).expect("written");
        let mut file = ClientCaFile::open(&path).expect("usable");
        let used = file.used();
        assert!(!file.look().expect("the same") && *used.current() == *first);
        // Both are believed while clients change from the one to the other.
        let both = format!("{first}{second}");
        for (now, expected) in [("nonsense", &first), (both.as_str(), &both), ("", &both), (second.as_str(), &second)] {
            fs::write(&path, now).expect("written");
            assert_eq!(file.look().ok(), (now == expected).then_some(true), "{now}");
            assert_eq!(*used.current(), **expected, "{now}");
        }
        fs::remove_file(&path).expect("removed");
        assert!(file.look().is_err() && *used.current() == *second);
        assert!(ClientCaFile::open(&path).is_err());
    }

    #[test]
    fn a_certificate_is_exchanged_in_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_, [first, second]) = pairs(dir.path());
        let (certificate, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
        let write = |path: &Path, text: &str| fs::write(path, text).expect("written");
        write(&certificate, &first.certificate);
        write(&key, first.key.expose());
        let mut files = Files::open(&certificate, &key).expect("usable");
        let (used, begun) = (files.used(), files.used().leaf());
        assert!(!files.look().expect("the same"));
        // The one is written before the other.
        write(&key, second.key.expose());
        assert!(files.look().is_err() && used.leaf() == begun);
        write(&certificate, &second.certificate);
        assert!(files.look().expect("another") && used.leaf() != begun);
        assert!(!files.look().expect("the same"));
        assert!(Files::open(&certificate, &dir.path().join("none")).is_err());
    }
}
