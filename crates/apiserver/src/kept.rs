//! What every cluster has comes back by itself when somebody removes it: its namespaces, the service by which the API is
//! reached, flow schemas and priority levels, APIServices of what is served here, whom servers of other APIs believe, and since
//! when tokens of Secrets are tracked.
//!
//! ```text
//!   now and then ─► has any of them changed? ─ no ─► nothing is read
//!                     └ yes, or the last look came to no end ─► all are looked at, and what is missing is made
//! ```
//!
//! Several servers on one store may find the same things missing: who is slower looks again the next time.
//!
//! Upstream has a controller for each of them, in `pkg/controlplane/controller` and `kube-aggregator`, and a loop in
//! `pkg/registry/flowcontrol/rest`. As there, roles, their bindings and the system's priority classes are looked at when a
//! server starts and no more; those classes cannot be removed.

use std::sync::atomic::{AtomicU64, Ordering};

use carrack_store::{Entry, Store, StoreError};
use futures::future::join5;

use crate::bootstrap::{AUTHENTICATION, NAMESPACES};
use crate::follow::{Fold, Follower};
use crate::legacy_tokens::TRACKING;
use crate::server::ApiServer;
use crate::services::{NET, RANGES};
use crate::status::Status;
use crate::{aggregate, flow, keys};

/// Counts changes of what is kept.
#[derive(Default)]
struct Changes(u64);

impl Fold for Changes {
    fn clear(&mut self) {
        self.0 += 1;
    }

    fn apply(&mut self, _: &str, _: Option<&Entry>) {
        self.0 += 1;
    }
}

/// What is kept, and when all of it was there last.
pub(crate) struct Kept {
    changes: Follower<Changes>,
    /// How many changes there had been then; the first look is one already.
    whole_at: AtomicU64,
}

impl Kept {
    pub(crate) fn new() -> Self {
        let of_one =
            |group: &str, plural: &str, namespace: Option<&str>, name: &str| keys::of(group, plural, namespace) + name;
        let namespaces = NAMESPACES.into_iter().map(|name| of_one("", "namespaces", None, name));
        let mut prefixes: Vec<String> = namespaces.collect();
        prefixes.extend([
            of_one("", "services", Some("default"), "kubernetes"),
            of_one(NET, RANGES, None, "kubernetes"),
            of_one("", "configmaps", Some(AUTHENTICATION.0), AUTHENTICATION.1),
            of_one("", "configmaps", Some(TRACKING.0), TRACKING.1),
            keys::of(flow::GROUP, flow::LEVELS, None),
            keys::of(flow::GROUP, flow::SCHEMAS, None),
            keys::of(aggregate::GROUP, aggregate::API_SERVICES, None),
        ]);
        Self { changes: Follower::new(prefixes, Changes::default()), whole_at: AtomicU64::new(0) }
    }

    /// How many changes there have been, unless all was there after as many.
    async fn news(&self, store: &dyn Store) -> Result<Option<u64>, StoreError> {
        let changes = self.changes.with(store, |changes| changes.0).await?;
        Ok((changes != self.whole_at.load(Ordering::Acquire)).then_some(changes))
    }
}

impl ApiServer {
    /// Makes again what every cluster has and somebody removed. The shell calls this now and then.
    ///
    /// # Errors
    /// When something cannot be read or written; the next call tries again.
    pub async fn restore(&self) -> Result<(), Status> {
        let inner = &*self.inner;
        let Some(changes) = inner.kept.news(&*inner.store).await? else { return Ok(()) };
        match self.look_after().await {
            Ok(true) => inner.kept.whole_at.store(changes, Ordering::Release),
            Ok(false) => {}
            Err(status) if status.code == 409 => {
                tracing::debug!(%status, "another server makes what was removed; it is looked at again");
            }
            Err(status) => return Err(status),
        }
        Ok(())
    }

    /// Whether all is there then.
    async fn look_after(&self) -> Result<bool, Status> {
        // Each is tried, whatever becomes of the others; namespaces first, since some of them are in one.
        let namespaces = self.ensure_namespaces().await;
        let (flow, authentication, tracking, apis, kubernetes) = join5(
            self.ensure_flow(),
            self.ensure_authentication(),
            self.ensure_token_tracking(),
            aggregate::sync(&self.inner, false),
            self.ensure_kubernetes(),
        )
        .await;
        namespaces.and(flow).and(authentication).and(tracking).and(apis).and(kubernetes)
    }
}
