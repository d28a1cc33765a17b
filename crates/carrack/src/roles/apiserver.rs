#![expect(clippy::disallowed_methods, reason = "shell: the API server's clock is read here")]
//! The API server: store, certificates, the server's logic, and its HTTPS socket.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use carrack_apiserver::admission::AdmissionPlugin;
use carrack_apiserver::serve::{self, Outbound, Settings, TlsNodeProxy};
use carrack_apiserver::{ApiServer, Call, Calling, Cidr, Config, Dialing, Env, Network, ProcessStats};
use carrack_auth::Authenticator;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, Pki, PkiError, Sans, Server};
use carrack_auth::tls::{self, Reloadable, ServerTls, Trust};
use carrack_auth::token::{Issuer, SigningKey, Verifier};
use carrack_engine::Rng;
use carrack_engine::shell::random_seed;
use carrack_gpu_extender::GpuAnnotations;
use carrack_noderuntime::{Layout, limits};
use carrack_store::embedded::Options;
use carrack_store::{EmbeddedStore, EtcdStore, Store, StoreError, etcd};
use carrack_virt::admission::{CloneAdmission, VirtAdmission};
use carrack_virt::api::Subresources;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::renewal::{self, Renewal};
use crate::cli::access::AccessArgs;
use crate::cli::roles::ApiserverArgs;
use crate::cli::store::{Choice, StoreArgs};
use crate::kubeconfig::CLUSTER;
use crate::{flags, logging, network, process};

/// The issuer of service account tokens, which is also their audience.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// How often it is looked whether the store still takes writes.
const LOOK_AT_STORE: Duration = Duration::from_secs(1);

/// How the API server is reached.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Where it listens.
    pub bind: SocketAddr,
    /// Where the addresses of services come from; the first of all is the `kubernetes` service's.
    pub service_range: Cidr,
    /// Other addresses of this machine that go into the certificate; the first is told to the cluster.
    pub addresses: Vec<IpAddr>,
    /// Other names that go into the certificate.
    pub names: Vec<String>,
}

/// An API server that has everything but a socket's first request.
pub struct Role {
    /// The server, for in-process clients.
    pub server: ApiServer,
    listener: TcpListener,
    tls: ServerTls,
    /// The way to the nodes' agents.
    pub nodes: Arc<TlsNodeProxy>,
    /// Bounds of the socket's side.
    pub settings: Settings,
    /// What is renewed while it serves.
    pub renewals: Vec<Renewal>,
    pki_dir: PathBuf,
}

/// The wall clock, the operating system's randomness, and the network.
struct ProcessEnv {
    random: Mutex<Rng>,
    outbound: Outbound,
}

impl Env for ProcessEnv {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn random(&self) -> u64 {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).u64()
    }

    fn call(&self, call: Call) -> Calling {
        self.outbound.call(call)
    }

    fn dial(&self, call: &Call) -> Dialing {
        self.outbound.dial(call)
    }

    fn set_verbosity(&self, level: u8) -> Result<(), String> {
        logging::set(logging::of_verbosity(level)).map_err(|error| format!("{error:#}"))
    }

    fn process(&self) -> Option<ProcessStats> {
        process::stats()
    }
}

/// Seconds since the epoch.
#[must_use]
pub fn now_unix_s() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Opens the certificates, making what is missing.
///
/// # Errors
/// They cannot be used.
pub fn open_pki(layout: &Layout) -> anyhow::Result<Pki> {
    let dir = layout.pki_dir();
    let opened = Pki::open_or_create(&dir, now_unix_s());
    let hint = match opened {
        Err(PkiError::CaExpired(_)) => {
            ": unless the clock is wrong, put all but sa.key and sa.pub aside, so that another authority is made, and make \
             what others have of it anew"
        }
        _ => "",
    };
    opened.with_context(|| format!("cannot use the certificates in {}{hint}", dir.display()))
}

/// Opens the store that was chosen. Blocks meanwhile.
fn open_store(dir: &Path, choice: Choice) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match choice {
        Choice::Embedded => Arc::new(
            EmbeddedStore::open(dir, Options::default())
                .with_context(|| format!("cannot open the store in {}", dir.display()))?,
        ),
        Choice::Etcd(options) => {
            Arc::new(EtcdStore::open(etcd::Options { foreign: carrack_apiserver::stored_form, ..*options })?)
        }
    })
}

impl Role {
    /// Opens store and socket, and makes the server. No request is answered before [`Self::run`].
    ///
    /// # Errors
    /// The store is damaged or in use, the port is taken, a certificate cannot be made.
    pub async fn open(
        layout: &Layout,
        pki: &Pki,
        endpoint: &Endpoint,
        store: &StoreArgs,
        access: &AccessArgs,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(endpoint.bind).await.with_context(|| {
            format!("the API server cannot listen on {}: choose another --https-port", endpoint.bind)
        })?;
        let (dir, choice) = (layout.store_dir(), store.choice()?);
        let opening = tokio::task::spawn_blocking(move || open_store(&dir, choice));
        // Meanwhile, all certificates that are asked for below.
        let clients = [Identity::FrontProxy, Identity::ApiserverKubeletClient, Identity::Admin];
        pki.prepare(&clients, &[(Server::Apiserver, sans(endpoint))], now_unix_s())?;
        let store = opening.await??;

        let key =
            SigningKey::from_pem(pki.service_account_key()).context("the key of service account tokens is unusable")?;
        let verifier = Verifier::new(ISSUER, vec![key.verifying_key().clone()]);
        let front_proxy = Reloadable::new(&pki.client(&Identity::FrontProxy, now_unix_s())?)?;
        let env = ProcessEnv {
            random: Mutex::new(Rng::new(random_seed())),
            outbound: Outbound::new(pki.ca_pem(), Some(front_proxy.clone())),
        };
        let mut config = Config::new(store, Arc::new(env));
        let authenticator = Authenticator::new(verifier).with_static_tokens(access.tokens()?);
        config.authentication = access.authentication(ISSUER)?;
        config.authenticator = Some(authenticator.with_anonymous(config.authentication.anonymous.clone()));
        config.audit = access.audit()?;
        config.flags = flags::told().clone();
        config.issuer = Some(Issuer::new(ISSUER, key));
        config.admission = access.admission()?;
        config.event_ttl = access.event_ttl.unwrap_or(config.event_ttl);
        config.plugins = plugins(access.gpu_annotations());
        config.apis = vec![Arc::new(Subresources::new())];
        config.runtime = access.runtime()?;
        config.ca_pem = pki.ca_pem().to_owned();
        config.front_proxy_ca_pem = pki.front_proxy_ca_pem().to_owned();
        let signer = pki.request_signer(now_unix_s())?;
        config.signer = Some(match access.cluster_signing_duration {
            Some(longest) => signer.lasting(longest),
            None => signer,
        });
        config.network = Network {
            service_ranges: vec![endpoint.service_range],
            // A machine without a network has none that anybody could be told of.
            advertise: (endpoint.addresses.first().filter(|address| !address.is_loopback()))
                .map(|address| SocketAddr::new(*address, endpoint.bind.port())),
            ..Network::default()
        };

        let certificate = Reloadable::new(&pki.server(&Server::Apiserver, &sans(endpoint), now_unix_s())?)?;
        let too_old = access.too_old();
        if !too_old.is_empty() {
            tracing::warn!(
                names = too_old.join(", "),
                "--tls-min-version and --tls-cipher-suites name what is not served"
            );
        }
        let tls = tls::server_config_offering(certificate.clone(), pki.ca_pem(), &access.tls()?)?;
        let client = Reloadable::new(&pki.client(&Identity::ApiserverKubeletClient, now_unix_s())?)?;
        let nodes = tls::client_config(Trust::Authorities(pki.ca_pem()), Some(client.clone()))?;
        Ok(Self {
            server: ApiServer::new(config),
            listener,
            tls,
            nodes: Arc::new(TlsNodeProxy::new(nodes)),
            settings: access.settings()?,
            renewals: vec![
                renewal::serving(Server::Apiserver, sans(endpoint), certificate),
                renewal::client(Identity::ApiserverKubeletClient, client),
                renewal::client(Identity::FrontProxy, front_proxy),
            ],
            pki_dir: pki.directory().to_owned(),
        })
    }

    /// Writes the administrator's kubeconfig, and writes it again when its certificate is near its end.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_kubeconfig(&mut self, endpoint: &Endpoint, pki: &Pki, path: &Path) -> anyhow::Result<()> {
        let path = std::path::absolute(path).with_context(|| format!("cannot write {}", path.display()))?;
        let endpoint = endpoint.clone();
        let make = move |pki: &Pki, now: i64| administrator(&endpoint, pki, now);
        self.renewals.push(renewal::kubeconfig(path, pki, now_unix_s(), make)?);
        Ok(())
    }

    /// Serves until `stop`, and sees to the objects that every cluster begins with.
    ///
    /// # Errors
    /// The listener failed, the first objects cannot be written, or the store takes no writes as long as this process has it.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let store = Arc::clone(self.server.store());
        tokio::spawn(renewal::keep(self.pki_dir, self.renewals, stop.clone()));
        let server = self.server.clone();
        let bootstrap = async move {
            server
                .bootstrap()
                .await
                .map_err(|status| anyhow::anyhow!("the first objects cannot be written: {status:?}"))
        };
        let serving = serve::serve(
            self.server,
            self.listener,
            self.tls,
            self.nodes,
            self.settings,
            stop.clone().cancelled_owned(),
        );
        let bootstrap = async {
            let outcome = bootstrap.await;
            if outcome.is_err() {
                stop.cancel();
            }
            outcome
        };
        let (bootstrapped, served) = tokio::select! {
            ended = async { tokio::join!(bootstrap, serving) } => ended,
            fault = lasting_fault(|| store.fault(), LOOK_AT_STORE) => {
                stop.cancel();
                return Err(fault).context("only a new start shows what of the store is on disk");
            }
        };
        bootstrapped?;
        served.context("the API server's socket failed")
    }
}

/// Waits until a store has a fault that lasts as long as this process has it open.
async fn lasting_fault(fault: impl Fn() -> Option<StoreError>, every: Duration) -> StoreError {
    loop {
        if let Some(fault) = fault().filter(StoreError::lasts) {
            return fault;
        }
        tokio::time::sleep(every).await;
    }
}

/// Admission of KubeVirt's kinds, and of what pods' annotations say of GPUs.
fn plugins(gpus: GpuAnnotations) -> Vec<Box<dyn AdmissionPlugin>> {
    vec![Box::new(VirtAdmission), Box::new(CloneAdmission::default()), Box::new(gpus)]
}

/// An API server on a store of its own, for measuring: no socket, no tokens.
///
/// # Errors
/// The store cannot be opened.
pub fn bare(store_dir: &Path) -> anyhow::Result<ApiServer> {
    let store = EmbeddedStore::open(store_dir, Options::default())
        .with_context(|| format!("cannot open a store in {}", store_dir.display()))?;
    let env = ProcessEnv { random: Mutex::new(Rng::new(random_seed())), outbound: Outbound::new("", None) };
    let mut config = Config::new(Arc::new(store), Arc::new(env));
    config.plugins = plugins(GpuAnnotations::default());
    Ok(ApiServer::new(config))
}

/// `carrack apiserver`
///
/// # Errors
/// As for [`Role::open`] and [`Role::run`].
pub async fn alone(args: ApiserverArgs) -> anyhow::Result<()> {
    logging::start(args.log.filter())?;
    limits::take_all_files();
    let layout = args.data_dir.layout()?;
    std::fs::create_dir_all(layout.data_dir())
        .with_context(|| format!("cannot create {}", layout.data_dir().display()))?;
    let pki = open_pki(&layout)?;
    let endpoint = Endpoint {
        bind: SocketAddr::new(args.bind_address, args.https_port),
        service_range: network::range(&args.service_cidr)?,
        addresses: vec![network::own_address()],
        // A host's name that no node could have is no name for a certificate either.
        names: super::node_name(None).into_iter().chain(args.tls_san.clone()).collect(),
    };
    let stop = super::run_until_signal()?;
    let mut role = Role::open(&layout, &pki, &endpoint, &args.store, &args.access).await?;
    role.settings.shutdown_delay = args.shutdown_delay_duration;
    role.write_kubeconfig(&endpoint, &pki, &layout.kubeconfig())?;
    tracing::info!(address = %endpoint.bind, "the API server listens");
    role.run(stop).await
}

/// The administrator's kubeconfig.
fn administrator(endpoint: &Endpoint, pki: &Pki, now_unix_s: i64) -> anyhow::Result<Kubeconfig> {
    let admin = pki.client(&Identity::Admin, now_unix_s)?;
    let (address, port) = (endpoint.bind.ip(), endpoint.bind.port());
    let host = if address.is_unspecified() { "127.0.0.1".to_owned() } else { address.to_string() };
    let server = format!("https://{host}:{port}");
    Ok(Kubeconfig::for_certificate(CLUSTER, &Identity::Admin.user(), &server, pki.ca_pem(), &admin))
}

fn sans(endpoint: &Endpoint) -> Sans {
    let mut sans = Sans::apiserver(endpoint.service_range.first_usable());
    for address in &endpoint.addresses {
        sans = sans.with_address(*address);
    }
    for name in &endpoint.names {
        sans = sans.with_name(name);
    }
    sans
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A full store or one that cannot be reached is waited for; one that cannot write any more is not.
    #[tokio::test]
    async fn only_a_fault_that_lasts_ends_the_server() {
        let broken = || StoreError::Broken(Arc::new(std::io::Error::other("EIO")));
        for (last, word) in [(broken(), "EIO"), (StoreError::Closed, "closed")] {
            let passing =
                [None, Some(StoreError::Refused("full".into())), Some(StoreError::Unavailable("etcd".into()))];
            let told = RefCell::new(passing.into_iter().chain([Some(last)]));
            let fault = lasting_fault(|| told.borrow_mut().next().flatten(), Duration::from_millis(1)).await;
            assert!(fault.to_string().contains(word), "{fault}");
            assert!(told.borrow_mut().next().is_none(), "it has waited for it");
        }
    }
}
