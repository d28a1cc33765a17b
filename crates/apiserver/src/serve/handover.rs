//! Connections that are handed over once they are upgraded: to a kubelet, to a group served by code, to a watch.

use std::sync::Arc;

use hyper::upgrade::{OnUpgrade, Upgraded};

use super::places::Place;

/// A client's connection that may be upgraded. It keeps its place among all connections while it is carried on: without
/// one there would be no bound on how many there are.
pub(super) struct Handover {
    upgrade: OnUpgrade,
    place: Arc<Place>,
}

impl Handover {
    pub(super) fn new(upgrade: OnUpgrade, place: Arc<Place>) -> Handover {
        Handover { upgrade, place }
    }

    /// Waits until the connection is upgraded, and carries it on by `work`, until that ends or the place is somebody
    /// else's.
    pub(super) async fn carry<F: Future<Output = ()>>(self, work: impl FnOnce(Upgraded) -> F) {
        let Handover { upgrade, place } = self;
        let carried = async {
            match upgrade.await {
                Ok(connection) => work(connection).await,
                Err(error) => tracing::debug!(%error, "the client did not upgrade"),
            }
        };
        tokio::select! {
            () = carried => {}
            () = place.given_up() => tracing::debug!("an upgraded connection makes room for one from elsewhere"),
        }
    }
}
