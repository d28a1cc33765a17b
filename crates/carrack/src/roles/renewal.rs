//! Certificates of a process that runs for longer than they last.
//!
//! Each is looked at again and again, and exchanged in use when it is near its end: new connections take the new one.
//! What another process reads from a file is written there anew.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_auth::pki::{Identity, Pki, Sans, Server};
use carrack_auth::tls::Reloadable;
use tokio_util::sync::CancellationToken;

use super::apiserver::now_unix_s;

/// How often they are looked at. One that is issued again was good for months more, so a failure is no matter of hours.
const PERIOD: Duration = Duration::from_secs(12 * 3600);

/// Brings something to the certificates as they are at a time, in seconds since the epoch.
pub type Renewal = Box<dyn Fn(&Pki, i64) -> anyhow::Result<()> + Send + Sync>;

/// A server's certificate in use.
pub fn serving(server: Server, sans: Sans, used: Arc<Reloadable>) -> Renewal {
    Box::new(move |pki, now| Ok(used.replace(&pki.server(&server, &sans, now)?)?))
}

/// A client's certificate in use.
pub fn client(identity: Identity, used: Arc<Reloadable>) -> Renewal {
    Box::new(move |pki, now| Ok(used.replace(&pki.client(&identity, now)?)?))
}

/// A kubeconfig that others read. It is written now, and again when its certificate was issued again, and not for what
/// somebody has changed in it; where it was taken away it stays away.
///
/// # Errors
/// It cannot be made now, or written.
pub fn kubeconfig(
    path: PathBuf,
    pki: &Pki,
    now_unix_s: i64,
    make: impl Fn(&Pki, i64) -> anyhow::Result<Kubeconfig> + Send + Sync + 'static,
) -> anyhow::Result<Renewal> {
    let first = make(pki, now_unix_s)?;
    write(&first, &path)?;
    let written = Mutex::new(first.to_text());
    Ok(Box::new(move |pki, now| {
        let made = make(pki, now)?;
        let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
        if *written != made.to_text() && path.try_exists().unwrap_or(true) {
            write(&made, &path)?;
            *written = made.to_text();
        }
        Ok(())
    }))
}

fn write(kubeconfig: &Kubeconfig, path: &Path) -> anyhow::Result<()> {
    kubeconfig.write(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Sees to them until `stop`. What fails is logged, and tried again at the next look.
pub async fn keep(pki_dir: PathBuf, renewals: Vec<Renewal>, stop: CancellationToken) {
    let renewals = Arc::new(renewals);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let (pki_dir, renewals) = (pki_dir.clone(), renewals.clone());
        // Keys may be made, and files flushed.
        let looked = tokio::task::spawn_blocking(move || look(&pki_dir, &renewals, now_unix_s()));
        if let Err(panic) = looked.await {
            tracing::error!(%panic, "certificates were not looked at");
        }
    }
}

fn look(pki_dir: &Path, renewals: &[Renewal], now_unix_s: i64) {
    let pki = match Pki::open(pki_dir, now_unix_s) {
        Ok(pki) => pki,
        Err(error) => {
            let error = anyhow::Error::new(error);
            tracing::error!(dir = %pki_dir.display(), "certificates cannot be looked at: {error:#}");
            return;
        }
    };
    for renewal in renewals {
        if let Err(error) = renewal(&pki, now_unix_s) {
            tracing::error!("a certificate cannot be renewed: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_S: i64 = 24 * 3600;

    #[test]
    fn what_is_near_its_end_is_exchanged_in_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let (pki_dir, begins) = (dir.path().join("pki"), 1_800_000_000);
        let pki = Pki::open_or_create(&pki_dir, begins).expect("made");
        let sans = Sans::loopback();
        let used = |pair| Reloadable::new(&pair).expect("usable");
        let served = used(pki.server(&Server::Apiserver, &sans, begins).expect("issued"));
        let shown = used(pki.client(&Identity::FrontProxy, begins).expect("issued"));
        let admin = |pki: &Pki, now: i64| -> anyhow::Result<Kubeconfig> {
            let pair = pki.client(&Identity::Admin, now)?;
            Ok(Kubeconfig::for_certificate("c", "u", "https://a:1", pki.ca_pem(), &pair))
        };
        let (file, none) = (dir.path().join("admin.yaml"), dir.path().join("none.yaml"));
        let renewals = [
            // One that fails keeps no other from being seen to.
            Box::new(|_: &Pki, _: i64| Err(anyhow::anyhow!("never"))) as Renewal,
            serving(Server::Apiserver, sans.clone(), served.clone()),
            client(Identity::FrontProxy, shown.clone()),
            kubeconfig(file.clone(), &pki, begins, admin).expect("written"),
            kubeconfig(none.clone(), &pki, begins, admin).expect("written"),
        ];
        std::fs::remove_file(&none).expect("taken away");
        let state = || (served.leaf(), shown.leaf(), std::fs::read_to_string(&file).expect("read"));
        let first = state();
        look(&pki_dir, &renewals, begins + 200 * DAY_S);
        assert!(state() == first, "they are good for long");
        look(&pki_dir, &renewals, begins + 300 * DAY_S);
        let second = state();
        assert!(second.0 != first.0 && second.1 != first.1 && second.2 != first.2);
        look(&pki_dir, &renewals, begins + 301 * DAY_S);
        assert!(state() == second, "once is enough");
        assert!(!none.exists());
    }
}
