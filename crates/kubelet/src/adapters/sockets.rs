//! gRPC over the unix sockets of plugins and drivers.

use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// How long a plugin has to be connected to.
pub const CONNECT: Duration = Duration::from_secs(10);

/// Connects to a plugin's socket.
///
/// # Errors
/// What `what` is about, and why it failed.
pub async fn dial(socket: PathBuf, what: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::try_from("http://localhost").map_err(|e| e.to_string())?;
    let dial = endpoint.connect_with_connector(tower::service_fn(move |_: http::Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    }));
    match tokio::time::timeout(CONNECT, dial).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(e)) => Err(format!("{what}: {e}")),
        Err(_) => Err(format!("{what} took too long")),
    }
}
