//! Volumes on the node's own disk: the CSI driver, and what has it make them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use carrack_engine::Transport;
use carrack_storage::driver::{self, Faults, Settings};
use carrack_storage::{install, provision};
use tokio_util::sync::CancellationToken;

use super::held;
use crate::cli::roles::LocalStorageArgs;

/// What it is called in messages.
const ROLE: &str = "local-storage";

/// What a driver is told.
#[must_use]
pub fn settings(dir: &Path, kubelet_dir: &Path, node: &str, faults: Option<PathBuf>) -> Settings {
    Settings {
        dir: dir.to_owned(),
        kubelet_dir: kubelet_dir.to_owned(),
        node: node.to_owned(),
        faults: Faults::new(faults),
    }
}

/// Serves the node's volumes until `stop`. They stay as they are afterwards.
///
/// # Errors
/// Why it cannot start or go on.
pub async fn run(settings: Settings, transport: Arc<dyn Transport>, stop: CancellationToken) -> anyhow::Result<()> {
    super::closed_dir(&settings.dir)?;
    let _held = held::hold(&settings.dir, ROLE).await?;
    // Another one that keeps its volumes elsewhere would take this one's place with the kubelet.
    let _called = match settings.socket().parent() {
        Some(dir) => Some(held::hold(dir, ROLE).await?),
        None => None,
    };
    let (node, socket) = (settings.node.clone(), settings.socket());
    let serving = async { driver::serve(settings, stop.clone().cancelled_owned()).await.context("the driver ended") };
    let controllers = async {
        install::install(transport.as_ref()).await.map_err(anyhow::Error::msg)?;
        provision::shell::run(&node, socket, transport.clone(), stop.clone().cancelled_owned())
            .await
            .map_err(anyhow::Error::msg)
    };
    tokio::try_join!(serving, controllers).map(|_| ())
}

/// `carrack local-storage`
///
/// # Errors
/// As for [`run`].
pub async fn alone(args: LocalStorageArgs) -> anyhow::Result<()> {
    let layout = args.data_dir.layout()?;
    let node = super::node_name(args.node_name.as_deref())?;
    let kubelet_dir = args.kubelet_dir.unwrap_or_else(|| layout.kubelet_root());
    let settings = settings(&layout.storage_dir(), &kubelet_dir, &node, args.faults);
    super::alone(ROLE, &args.role, |transport, stop| run(settings, transport, stop)).await
}

#[cfg(test)]
mod tests {
    use carrack_engine::{ApiError, ApiRequest, ApiResponse, EventStream};
    use futures::future::{BoxFuture, pending};

    use super::*;

    /// An API server that never answers.
    struct Silent;

    impl Transport for Silent {
        fn send(&self, _: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
            Box::pin(pending())
        }
        fn watch(&self, _: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
            Box::pin(pending())
        }
    }

    /// Neither beside another driver of the same volumes, nor beside one that the same kubelet calls.
    #[tokio::test]
    async fn it_does_not_run_beside_another() {
        for same in ["storage", "kubelet/plugins/local.carrack.io"] {
            let dir = tempfile::tempdir().expect("a directory");
            let _other = held::hold(&dir.path().join(same), ROLE).await.expect("nobody has it");
            let settings = settings(&dir.path().join("storage"), &dir.path().join("kubelet"), "n", None);
            let ended = run(settings, Arc::new(Silent), CancellationToken::new()).await;
            let said = ended.expect_err("it may not run").to_string();
            assert!(said.contains("runs already"), "{same}: {said}");
        }
    }
}
