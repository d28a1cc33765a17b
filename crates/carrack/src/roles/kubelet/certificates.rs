//! How a kubelet in a process of its own comes by its certificates: from files, or by asking for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use carrack_auth::kubeconfig::{Kubeconfig, KubeconfigError, Target};
use carrack_auth::pki::{KeyPairPem, Sans};
use carrack_auth::tls::{ClientCa, Reloadable};
use carrack_engine::Transport;
use carrack_kubelet::certificates::{self, Files, Renewable, Wanted};
use carrack_noderuntime::Layout;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Node, Served};
use crate::cli::roles::KubeletCertificateArgs;
use crate::roles::apiserver::now_unix_s;
use crate::roles::credentials;

/// Who is handed each certificate that comes into use.
type Take = Box<dyn Fn(&KeyPairPem) -> Result<(), String> + Send + Sync>;

/// What flags and configuration say of certificates.
pub(super) struct Wishes {
    node: String,
    sans: Sans,
    kubeconfig: PathBuf,
    bootstrap: Option<PathBuf>,
    directory: PathBuf,
    rotate: bool,
    ask_to_serve: bool,
    /// Certificate and key to serve with.
    files: Option<(PathBuf, PathBuf)>,
    client_ca: Option<PathBuf>,
}

fn file(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

fn load(path: &Path) -> anyhow::Result<Target> {
    let target = Kubeconfig::load(path).and_then(|kubeconfig| kubeconfig.resolve(None));
    target.with_context(|| format!("cannot use the kubeconfig {}", path.display()))
}

/// Whether a kubeconfig is there whose client certificate can be used at this time. One that is there and wrong is not
/// replaced: somebody wrote it.
fn is_good(path: &Path, now_unix_s: i64) -> anyhow::Result<bool> {
    match Kubeconfig::load(path) {
        Err(KubeconfigError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("cannot use the kubeconfig {}", path.display())),
        Ok(_) => {}
    }
    // Its certificate's file may be missing.
    let Ok(target) = load(path) else { return Ok(false) };
    let facts = target.client.as_ref().and_then(|pair| pair.facts().ok());
    Ok(facts.is_some_and(|facts| now_unix_s < facts.not_after_unix_s))
}

/// A way to the API server, and what of it is given the next certificate, if it is exchanged here.
type Way = (Arc<dyn Transport>, Option<Arc<Renewable>>);

impl Wishes {
    /// Flags go before the configuration.
    pub(super) fn new(args: &KubeletCertificateArgs, kubeconfig: &Path, layout: &Layout, node: &Node) -> Self {
        let configuration = node.configuration.as_ref();
        let both = |pair: (Option<PathBuf>, Option<PathBuf>)| pair.0.zip(pair.1);
        Self {
            node: node.name.clone(),
            sans: Sans::default().with_name(&node.name).with_address(node.address),
            // It is written beside itself first.
            kubeconfig: std::path::absolute(kubeconfig).unwrap_or_else(|_| kubeconfig.to_owned()),
            bootstrap: args.bootstrap_kubeconfig.clone(),
            directory: args.cert_dir.clone().unwrap_or_else(|| layout.kubelet_root().join("pki")),
            rotate: args.rotate_certificates || configuration.is_some_and(|c| c.rotate_certificates),
            ask_to_serve: args.rotate_server_certificates || configuration.is_some_and(|c| c.server_tls_bootstrap),
            files: both((args.tls_cert_file.clone(), args.tls_private_key_file.clone())).or_else(|| {
                let c = configuration?;
                both((file(&c.tls_cert_file), file(&c.tls_private_key_file)))
            }),
            client_ca: args.client_ca_file.clone().or_else(|| configuration.and_then(|c| file(c.client_ca_file()))),
        }
    }

    /// Sees to it that there are credentials; false when the end was asked for before there were any.
    pub(super) async fn join(&self, stop: &CancellationToken) -> anyhow::Result<bool> {
        let Some(bootstrap) = &self.bootstrap else { return Ok(true) };
        if is_good(&self.kubeconfig, now_unix_s())? {
            return Ok(true);
        }
        let target = load(bootstrap)?;
        tracing::info!(server = target.server, node = self.node, "asking for a client certificate");
        let transport = Renewable::new(target.clone(), "kubelet").map_err(anyhow::Error::msg)?;
        let wanted = Wanted::client(&self.node);
        let files = Files::new(&self.directory, wanted.files);
        let joined = certificates::join(wanted, &self.directory, Arc::new(transport), stop.cancelled());
        if !joined.await.map_err(anyhow::Error::msg)? {
            return Ok(false);
        }
        let pair = std::path::absolute(files.current_path()).context("the directory of certificates")?;
        Kubeconfig::for_certificate_file("default-cluster", "default-auth", &target, &pair)
            .write(&self.kubeconfig)
            .with_context(|| format!("cannot write {}", self.kubeconfig.display()))?;
        Ok(true)
    }

    /// The way to the API server: with a certificate that is exchanged here, or with whatever somebody else puts into the kubeconfig
    /// and its files, as other roles have it.
    fn way(&self, target: Target, stop: &CancellationToken) -> anyhow::Result<Way> {
        if self.rotate {
            let renewed = Arc::new(Renewable::new(target, "kubelet").map_err(anyhow::Error::msg)?);
            return Ok((renewed.clone(), Some(renewed)));
        }
        let followed = Arc::new(credentials::Followed::new(&self.kubeconfig, "kubelet")?);
        tokio::spawn(followed.clone().follow(stop.clone()));
        Ok((followed, None))
    }

    /// What to serve with and the way to the API server, exchanged as time goes by.
    pub(super) fn keep(
        &self,
        keepers: &mut JoinSet<Result<(), String>>,
        stop: &CancellationToken,
    ) -> anyhow::Result<(Served, Arc<dyn Transport>)> {
        let target = load(&self.kubeconfig)?;
        let client_ca = match &self.client_ca {
            Some(path) => {
                let file = credentials::ClientCaFile::open(path)?;
                let used = file.used();
                tokio::spawn(file.follow(stop.clone()));
                used
            }
            None => {
                let pem = target.ca_pem.as_deref();
                let pem = pem.context("--client-ca-file is missing: whose requests are to be answered?")?;
                ClientCa::new(pem).context("the authority that the kubeconfig names")?
            }
        };
        let (transport, renewed) = self.way(target, stop)?;
        let mut see_to = |wanted: Wanted, take: Take| {
            let (directory, stop, transport) = (self.directory.clone(), stop.clone(), transport.clone());
            keepers.spawn(async move {
                certificates::keep(wanted, &directory, transport, take, stop.cancelled_owned()).await
            });
        };
        if let Some(renewed) = renewed {
            see_to(Wanted::client(&self.node), Box::new(move |pair| renewed.renew(pair)));
        }
        let certificate = match &self.files {
            Some((certificate, key)) => {
                let files = credentials::Files::open(certificate, key)?;
                let used = files.used();
                tokio::spawn(files.follow(stop.clone()));
                used
            }
            None if self.ask_to_serve => {
                let certificate = Reloadable::none();
                let taken = certificate.clone();
                let wanted = Wanted::serving(&self.node, self.sans.clone());
                see_to(wanted, Box::new(move |pair| taken.replace(pair).map_err(|error| error.to_string())));
                certificate
            }
            None => {
                tracing::warn!("serving with a certificate that nobody else has signed; see --tls-cert-file");
                let pair = KeyPairPem::self_signed(&self.node, &self.sans, now_unix_s())?;
                Reloadable::new(&pair).context("a certificate of our own")?
            }
        };
        Ok((Served { certificate, client_ca }, transport))
    }
}

#[cfg(test)]
mod tests {
    use carrack_auth::Secret;
    use carrack_auth::pki::{Identity, Pki};

    use super::*;

    #[tokio::test]
    async fn who_exchanges_no_certificate_follows_the_kubeconfig() {
        let dir = tempfile::tempdir().unwrap();
        let now = now_unix_s();
        let pki = Pki::open_or_create(&dir.path().join("pki"), now).unwrap();
        let pair = pki.client(&Identity::Node { node: "n1".into() }, now).unwrap();
        let kubeconfig = dir.path().join("kubeconfig.yaml");
        Kubeconfig::for_certificate("c", "u", "https://a:1", pki.ca_pem(), &pair).write(&kubeconfig).unwrap();
        for rotate in [true, false] {
            let wishes = Wishes {
                node: "n1".into(),
                sans: Sans::default(),
                kubeconfig: kubeconfig.clone(),
                bootstrap: None,
                directory: dir.path().join("kubelet"),
                rotate,
                ask_to_serve: false,
                files: None,
                client_ca: None,
            };
            let target = load(&kubeconfig).unwrap();
            let (_, renewed) = wishes.way(target, &CancellationToken::new()).unwrap();
            assert_eq!(renewed.is_some(), rotate);
        }
    }

    #[test]
    fn which_kubeconfig_is_good() {
        let dir = tempfile::tempdir().unwrap();
        let now = 1_800_000_000;
        let pki = Pki::open_or_create(&dir.path().join("pki"), now).unwrap();
        let pair = pki.client(&Identity::Node { node: "n1".into() }, now).unwrap();
        let path = dir.path().join("kubeconfig.yaml");
        let of_pair = Kubeconfig::for_certificate("c", "u", "https://a:1", pki.ca_pem(), &pair);
        let of_token = Kubeconfig::for_token("c", "u", "https://a:1", pki.ca_pem(), &Secret::new("t"));
        let target = of_pair.resolve(None).unwrap();
        let of_file = Kubeconfig::for_certificate_file("c", "u", &target, &dir.path().join("missing.pem"));
        let year_s = 366 * 24 * 3600;
        for (what, kubeconfig, at, want) in [
            ("a certificate", &of_pair, now, true),
            ("one that has expired", &of_pair, now + year_s, false),
            ("a token", &of_token, now, false),
            ("a file that is missing", &of_file, now, false),
        ] {
            kubeconfig.write(&path).unwrap();
            assert_eq!(is_good(&path, at).unwrap(), want, "{what}");
        }
        assert!(!is_good(&dir.path().join("none.yaml"), now).unwrap());
        std::fs::write(&path, "- nonsense").unwrap();
        assert!(is_good(&path, now).is_err());
    }
}
