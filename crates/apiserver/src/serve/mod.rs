//! The HTTPS shell: sockets, TLS, HTTP, and nothing that decides.
//!
//! ```text
//!   accept ─► TLS, whose certificate is it? ─► HTTP/1.1 or 2 ─► read body ─► authenticate ─► handle
//!                                                    ▲                                            │
//!                    whole, parts, watch lines ──────┴────────────────────────────────────────────┤
//!         kubelet's reply, or both connections joined (proxy, translate) ◄─ Body::Node ────────────┤
//!    the connection itself, handed over ◄─ Body::Upgrade, and Body::Watch where a WebSocket is wanted ┘
//! ```

mod ask;
mod audit_log;
mod connection;
mod deadline;
mod flow;
mod gzip;
mod handover;
mod outbound;
mod places;
mod proxy;
mod reply;
mod settings;
mod sockets;
mod translate;
mod unreached;
mod watch_socket;
mod websocket;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use carrack_auth::tls::{Clients, ServerTls};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::server::ApiServer;

pub(crate) use ask::ask;
pub use audit_log::AuditLog;
pub(crate) use flow::Gate;
pub use outbound::Outbound;
pub(crate) use proxy::watch_remote;
pub use proxy::{NodeIo, NodeProxy, TlsNodeProxy};
pub use settings::Settings;

/// How long it may take to say that this server ends: it goes all the same.
const FAREWELL: Duration = Duration::from_secs(2);

/// Everything that connections share.
pub(crate) struct Shared {
    pub server: ApiServer,
    /// Who finds out who clients are by their certificates.
    clients: Clients,
    pub nodes: Arc<dyn NodeProxy>,
    pub settings: Settings,
    /// Where requests wait for their turn.
    gate: Arc<Gate>,
    /// Room for bodies that are read before their requests have a seat.
    small: Semaphore,
    /// Becomes true at shutdown.
    pub ending: watch::Receiver<bool>,
}

/// Serves the API on a listener until `shutdown` resolves and [`Settings::shutdown_delay`] is over; then lets
/// requests in flight come to their end, within [`Settings::drain`].
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(
    server: ApiServer,
    listener: TcpListener,
    tls: ServerTls,
    nodes: Arc<dyn NodeProxy>,
    settings: Settings,
    shutdown: impl Future<Output = ()> + Send,
) -> std::io::Result<()> {
    let (end, ending) = watch::channel(false);
    let places = places::Places::new(settings.max_connections);
    let drain = settings.drain;
    let gate = Arc::new(Gate::new(settings.max_in_flight, settings.max_wait));
    server.told_of(&gate);
    let (small, clients) = (Semaphore::new(connection::SMALL_BODIES), tls.clients);
    let shared = Arc::new(Shared { server, clients, nodes, settings, gate, small, ending });
    let acceptor = TlsAcceptor::from(Arc::new(tls.config));
    let graceful = GracefulShutdown::new();
    let (goes, leaves) = oneshot::channel();
    let present = tokio::spawn(keep_present(Arc::clone(&shared), leaves));
    let (ends, delay) = (shared.server.clone(), shared.settings.shutdown_delay);
    let shutdown = async move {
        shutdown.await;
        ends.announce_end();
        drop(goes);
        leave(&ends, present).await;
        tokio::time::sleep(delay).await;
    };
    tokio::pin!(shutdown);
    let keeper = tokio::spawn(keep_house(Arc::clone(&shared)));
    let restorer = tokio::spawn(restore(Arc::clone(&shared)));
    let finisher = tokio::spawn(finish_definitions(Arc::clone(&shared)));
    let asker = tokio::spawn(ask_others(Arc::clone(&shared)));
    loop {
        let (stream, peer) = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Out of file descriptors, most likely: give the others a moment to end.
                    tokio::time::sleep(shared.settings.accept_pause).await;
                    continue;
                }
            },
        };
        let Some(place) = places.take(peer.ip()) else {
            tracing::debug!(%peer, "a connection is refused: all are taken, and from nowhere come more");
            continue;
        };
        let (shared, acceptor, watcher) = (Arc::clone(&shared), acceptor.clone(), graceful.watcher());
        let place = Arc::new(place);
        tokio::spawn(async move {
            tokio::select! {
                () = connection::run(&shared, stream, acceptor, watcher, &place) => {}
                () = place.given_up() => tracing::debug!(%peer, "a connection makes room for one from elsewhere"),
            }
        });
    }
    drop(listener);
    keeper.abort();
    restorer.abort();
    finisher.abort();
    asker.abort();
    // Watches end at once; all else within the time given.
    end.send_replace(true);
    if tokio::time::timeout(drain, graceful.shutdown()).await.is_err() {
        tracing::info!("connections are cut off after {} s", drain.as_secs());
    }
    Ok(())
}

/// Says now and then that this server is there, until it leaves. Others take it for gone when it does not, so nothing else is done
/// here that may take its time.
async fn keep_present(shared: Arc<Shared>, mut leaves: oneshot::Receiver<()>) {
    let mut every = tokio::time::interval(shared.settings.presence);
    loop {
        tokio::select! {
            biased;
            _ = &mut leaves => return,
            _ = every.tick() => {}
        }
        // The first time belongs to the bootstrap.
        if shared.server.is_ready()
            && let Err(status) = shared.server.announce().await
        {
            tracing::warn!(%status, "the endpoints of the kubernetes service are not up to date");
        }
    }
}

/// Says that this server is there no more, once it is through with what it says to the contrary (`present`): a write that is on its
/// way to the store is not taken back by giving up on it, and might come last. Should all that not be heard in time, others find out
/// by themselves.
async fn leave(server: &ApiServer, present: JoinHandle<()>) {
    let farewell = async {
        if let Err(error) = present.await {
            tracing::warn!(%error, "who says that this server is there came to no good end");
        }
        server.renounce().await
    };
    match tokio::time::timeout(FAREWELL, farewell).await {
        Ok(Ok(())) => {}
        Ok(Err(status)) => tracing::warn!(%status, "the kubernetes service has this server's address for a while"),
        Err(_) => {
            tracing::warn!("the kubernetes service has this server's address for a while: the store takes its time")
        }
    }
}

/// What the logic wants done now and then, apart from what has to be done in time: there may be much to remove.
async fn keep_house(shared: Arc<Shared>) {
    let mut every = tokio::time::interval(shared.settings.housekeeping);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        match shared.server.expire_events().await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "events have expired"),
            Err(status) => tracing::warn!(%status, "events cannot be expired"),
        }
    }
}

/// Sees to what every cluster has, apart from what has to be done in time: its writes wait for webhooks.
async fn restore(shared: Arc<Shared>) {
    loop {
        // What is there at first is the bootstrap's business: nothing is to be looked at twice while a server starts.
        tokio::time::sleep(shared.settings.presence).await;
        if shared.server.is_ready()
            && let Err(status) = shared.server.restore().await
        {
            tracing::warn!(%status, "what every cluster has is not all there");
        }
    }
}

/// Ends what was begun with definitions, apart from what has to be done in time: there may be much to remove.
async fn finish_definitions(shared: Arc<Shared>) {
    let mut every = tokio::time::interval(shared.settings.housekeeping);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        if let Err(status) = crate::crd::finish_all(&shared.server.inner).await {
            tracing::warn!(%status, "it is not known which definitions are to go");
        }
    }
}

/// Asks the servers of other APIs now and then whether they answer.
async fn ask_others(shared: Arc<Shared>) {
    let mut every = tokio::time::interval(shared.settings.api_services);
    loop {
        every.tick().await;
        if let Err(status) = shared.server.check_api_services().await {
            tracing::warn!(%status, "the availability of other APIs is not known");
        }
    }
}

fn is_fatal(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::NotConnected)
}
