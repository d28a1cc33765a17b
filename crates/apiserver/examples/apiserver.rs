//! A bare API server over a store in memory, for trying clients against it:
//! `cargo run -p carrack-apiserver --example apiserver -- DIR`, then `kubectl --kubeconfig DIR/admin.conf`.
#![expect(clippy::disallowed_methods, reason = "shell: hands the clock and chance to the logic")]

use std::path::PathBuf;
use std::sync::Arc;

use carrack_apiserver::serve::{Outbound, Settings, TlsNodeProxy, serve};
use carrack_apiserver::{ApiServer, Call, Calling, Config, Dialing, Env};
use carrack_auth::Authenticator;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, Pki, Sans, Server};
use carrack_auth::tls::{self, Reloadable, Trust};
use carrack_auth::token::{DEFAULT_ISSUER, Issuer, SigningKey, Verifier};
use carrack_store::MemStore;

struct System(Outbound);

impl Env for System {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }
    fn random(&self) -> u64 {
        use std::hash::{BuildHasher as _, Hasher as _};
        std::hash::RandomState::new().build_hasher().finish()
    }
    fn call(&self, call: Call) -> Calling {
        self.0.call(call)
    }
    fn dial(&self, call: &Call) -> Dialing {
        self.0.dial(call)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = PathBuf::from(std::env::args().nth(1).ok_or("usage: apiserver DIR")?);
    let now_s = jiff::Timestamp::now().as_second();
    let pki = Pki::open_or_create(&directory.join("pki"), now_s)?;
    let key = SigningKey::from_pem(pki.service_account_key())?;
    let verifier = Verifier::new(DEFAULT_ISSUER, vec![key.verifying_key().clone()]);
    let proxy = Reloadable::new(&pki.client(&Identity::FrontProxy, now_s)?)?;
    let mut config =
        Config::new(Arc::new(MemStore::default()), Arc::new(System(Outbound::new(pki.ca_pem(), Some(proxy)))));
    config.authenticator = Some(Authenticator::new(verifier));
    config.issuer = Some(Issuer::new(DEFAULT_ISSUER, key));
    config.ca_pem = pki.ca_pem().to_owned();
    config.front_proxy_ca_pem = pki.front_proxy_ca_pem().to_owned();
    let server = ApiServer::new(config);
    server.bootstrap().await?;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://{}", listener.local_addr()?);
    let admin = pki.client(&Identity::Admin, now_s)?;
    let path = directory.join("admin.conf");
    Kubeconfig::for_certificate("carrack", "admin", &url, pki.ca_pem(), &admin).write(&path)?;
    println!("{url} {}", path.display());
    let certificate = Reloadable::new(&pki.server(&Server::Apiserver, &Sans::loopback(), now_s)?)?;
    let tls_server = tls::server_config(certificate, pki.ca_pem())?;
    let client = Reloadable::new(&pki.client(&Identity::ApiserverKubeletClient, now_s)?)?;
    let tls_client = tls::client_config(Trust::Authorities(pki.ca_pem()), Some(client))?;
    let nodes = Arc::new(TlsNodeProxy::new(tls_client));
    serve(server, listener, tls_server, nodes, Settings::default(), std::future::pending()).await?;
    Ok(())
}
