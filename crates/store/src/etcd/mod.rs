//! The store on etcd v3, for several API servers.
//!
//! ```text
//!   transact ──► etcd: compare, put, delete ──► wait until the mirror shows it ──► answer
//!   get, range ─► which revision is the newest? (one question for all who wait) ─► mirror there ─► read it
//!   watch ─────► mirror                    range of an old revision that the mirror has not ─► etcd
//! ```
//!
//! The [mirror](mirror) is the same published state that the other stores have, so a list or a watch costs
//! the same here as there, and entries are shared by all who read them. Reads are exact all the same: they
//! wait for what etcd calls the newest. A request whose answer was lost is [`StoreError::Unknown`] when it
//! might have changed something.
//!
//! Values are kept without their revision, for etcd has it beside them; see [`stamp_place`](crate::stamp_place). What others have put
//! there is brought into this process's form as it comes; see [`Options::foreign`].

mod compactor;
mod errors;
mod mirror;
mod options;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, DeleteOptions, GetOptions, SortOrder, SortTarget, TxnOp, TxnOpResponse};
use futures::channel::oneshot;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};

use self::errors::{Asked, failed, is_out_of_range, silent};
use self::mirror::{Mirror, end_of, entry, number, start_of};
pub use self::options::{Options, Tls};
use crate::mem;
use crate::model::{
    Check, Entry, Op, Range, RangePage, Revision, Store, StoreError, StoreFuture, Txn, TxnOutcome, Value, Watch,
};

/// How long etcd may take to answer before it counts as gone for whoever asks whether it is well; upstream's default of
/// `--etcd-healthcheck-timeout`.
const HEALTH: Duration = Duration::from_secs(2);

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Addresses or certificates make no sense.
    #[error("cannot use etcd at {endpoints}: {why}")]
    Options {
        /// Where it is said to be.
        endpoints: String,
        /// What is wrong.
        why: String,
    },
    /// It does not answer, or refuses.
    #[error("cannot read etcd at {endpoints}")]
    Read {
        /// Where it is said to be.
        endpoints: String,
        /// The cause.
        source: StoreError,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread for etcd")]
    Thread(#[source] std::io::Error),
}

/// A store in etcd. Dropping it ends its connections.
pub struct EtcdStore {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// What the store's tasks share.
struct Shared {
    client: Client,
    options: Options,
    mirror: Mirror,
    /// Asks which revision is the newest.
    questions: mpsc::UnboundedSender<oneshot::Sender<Result<Revision, StoreError>>>,
    /// The watch is behind what etcd has told otherwise.
    late: Notify,
    fault: Mutex<Option<StoreError>>,
}

impl EtcdStore {
    /// Connects and reads everything. Blocks meanwhile; must not be called on a thread that runs a runtime.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let endpoints = options.endpoints.join(",");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("store-etcd")
            .enable_all()
            .build()
            .map_err(OpenError::Thread)?;
        let (questions, asked) = mpsc::unbounded_channel();
        let shared = runtime.block_on(async {
            let client = Client::connect(options.urls(), Some(options.connect()))
                .await
                .map_err(|error| OpenError::Options { endpoints: endpoints.clone(), why: error.to_string() })?;
            let state =
                mirror::load(&client, &options).await.map_err(|source| OpenError::Read { endpoints, source })?;
            let mirror = Mirror::new(state, &options);
            Ok(Arc::new(Shared { client, options, mirror, questions, late: Notify::new(), fault: Mutex::default() }))
        })?;
        runtime.spawn(mirror::keep(Arc::clone(&shared)));
        runtime.spawn(answer(Arc::clone(&shared), asked));
        if let Some(every) = shared.options.compact_every {
            runtime.spawn(compactor::run(Arc::clone(&shared), every));
        }
        Ok(Self { shared, runtime: Some(runtime) })
    }

    /// The oldest revision that can be watched from.
    #[must_use]
    pub fn oldest(&self) -> Revision {
        self.shared.mirror.published.state().compacted()
    }

    /// Runs work of the store on its own threads, so that its callers need no runtime.
    async fn run<T: Send + 'static>(
        &self,
        asked: Asked,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(runtime) = &self.runtime else { return Err(StoreError::Closed) };
        runtime.spawn(work).await.unwrap_or_else(|error| Err(silent(asked, error.to_string())))
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.shared.mirror.published.end_watches(&StoreError::Closed, true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Store for EtcdStore {
    fn transact(&self, txn: Txn) -> StoreFuture<'_, TxnOutcome> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            mem::validate(&txn)?;
            self.run(Asked::Write, async move { shared.transact(txn).await }).await
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, (Option<Arc<Entry>>, Revision)> {
        Box::pin(async move {
            self.sync().await?;
            let state = self.shared.mirror.published.state();
            Ok((state.get(key).cloned(), state.revision()))
        })
    }

    fn range(&self, range: Range) -> StoreFuture<'_, RangePage> {
        Box::pin(async move {
            let published = &self.shared.mirror.published;
            if range.at.is_none_or(|at| at > published.visible()) {
                self.sync().await?;
            }
            match published.state().range(&range) {
                Err(StoreError::Compacted { oldest }) => {
                    let shared = Arc::clone(&self.shared);
                    self.run(Asked::Read, async move { shared.old_range(range, oldest).await }).await
                }
                other => other,
            }
        })
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, StoreError> {
        self.shared.mirror.published.watch(prefix, after)
    }

    fn revision(&self) -> Revision {
        self.shared.mirror.published.newest()
    }

    fn sync(&self) -> StoreFuture<'_, Revision> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run(Asked::Read, async move {
            let newest = shared.ask_newest().await?;
            shared.arrive(Asked::Read, newest).await?;
            Ok(newest)
        }))
    }

    fn fault(&self) -> Option<StoreError> {
        self.shared.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn health(&self) -> StoreFuture<'_, ()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            if let Some(fault) = self.fault() {
                return Err(fault);
            }
            self.run(Asked::Read, async move {
                let answered = tokio::time::timeout(HEALTH, shared.ask_newest()).await;
                answered.unwrap_or_else(|_| Err(silent(Asked::Read, "it does not answer".to_owned()))).map(|_| ())
            })
            .await
        })
    }

    fn compact(&self, revision: Revision) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let newest = self.sync().await?;
            if revision > newest {
                return Err(StoreError::Future { asked: revision, newest });
            }
            let shared = Arc::clone(&self.shared);
            self.run(Asked::Write, async move { shared.compact(revision).await }).await
        })
    }
}

/// Asks etcd which revision is the newest, once for all who have asked since the last time.
async fn answer(
    shared: Arc<Shared>,
    mut asked: mpsc::UnboundedReceiver<oneshot::Sender<Result<Revision, StoreError>>>,
) {
    while let Some(first) = asked.recv().await {
        let mut all = vec![first];
        while let Ok(next) = asked.try_recv() {
            all.push(next);
        }
        let newest = shared.newest().await;
        for question in all {
            if question.send(newest.clone()).is_err() {
                tracing::trace!("whoever asked for the newest revision has gone");
            }
        }
    }
}

impl Shared {
    fn set_fault(&self, fault: Option<StoreError>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// The newest revision, asked for once for all who want to know it at a time.
    async fn ask_newest(&self) -> Result<Revision, StoreError> {
        let (question, answered) = oneshot::channel();
        self.questions.send(question).map_err(|_| StoreError::Closed)?;
        answered.await.unwrap_or(Err(StoreError::Closed))
    }

    /// The newest revision, as the cluster's majority knows it.
    async fn newest(&self) -> Result<Revision, StoreError> {
        let options = GetOptions::new().with_count_only();
        let mut kv = self.client.kv_client();
        let reply = tokio::time::timeout(self.options.timeout, kv.get(start_of(&self.options.prefix), Some(options)))
            .await
            .map_err(|_| silent(Asked::Read, "it does not answer".to_owned()))?
            .map_err(|error| failed(Asked::Read, &error))?;
        Ok(number(reply.header().map_or(0, etcd_client::ResponseHeader::revision)))
    }

    /// Waits until the mirror shows a revision that etcd has told of.
    async fn arrive(&self, asked: Asked, revision: Revision) -> Result<(), StoreError> {
        if tokio::time::timeout(self.options.timeout, self.mirror.arrival(revision)).await.is_ok() {
            return Ok(());
        }
        self.late.notify_one();
        Err(silent(asked, format!("its watch is not at revision {revision} yet")))
    }

    async fn transact(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let request = etcd_client::Txn::new()
            .when(txn.checks.iter().map(compare).collect::<Vec<_>>())
            .and_then(txn.ops.iter().map(operation).collect::<Vec<_>>())
            .or_else(txn.checks.iter().map(look).collect::<Vec<_>>());
        let mut kv = self.client.kv_client().max_decoding_message_size(usize::MAX);
        let reply = tokio::time::timeout(self.options.timeout, kv.txn(request))
            .await
            .map_err(|_| silent(Asked::Write, "it does not answer".to_owned()))?
            .map_err(|error| failed(Asked::Write, &error))?;
        let revision = number(reply.header().map_or(0, etcd_client::ResponseHeader::revision));
        let replies = reply.op_responses();
        if !reply.succeeded() {
            self.arrive(Asked::Read, revision).await?;
            let current = replies.into_iter().map(|reply| match reply {
                TxnOpResponse::Get(mut found) => found.take_kvs().into_iter().next().and_then(|kv| self.share(kv)),
                _ => None,
            });
            return Ok(TxnOutcome::Failed { current: current.collect(), revision });
        }
        self.arrive(Asked::Write, revision).await?;
        let mut entries = Vec::with_capacity(txn.ops.len());
        for (op, reply) in txn.ops.iter().zip(replies) {
            entries.push(self.written(op, reply, revision).await?);
        }
        Ok(TxnOutcome::Committed { revision, entries })
    }

    /// The entry that a committed change wrote or removed.
    async fn written(
        &self,
        op: &Op,
        reply: TxnOpResponse,
        revision: Revision,
    ) -> Result<Option<Arc<Entry>>, StoreError> {
        let (Op::Put(key, _) | Op::Delete(key)) = op;
        let state = self.mirror.published.state();
        let event = state.events_at(revision).find(|event| mem::event_key(event) == &**key);
        match (op, reply) {
            (Op::Put(..), _) => {
                if let Some(entry) = event.and_then(|event| event.current.clone()) {
                    return Ok(Some(entry));
                }
                // More came at once than the mirror remembers.
                let at = GetOptions::new().with_revision(i64::try_from(revision.0).unwrap_or(i64::MAX));
                let mut kv = self.client.kv_client().max_decoding_message_size(usize::MAX);
                let mut found = tokio::time::timeout(self.options.timeout, kv.get(&**key, Some(at)))
                    .await
                    .map_err(|_| silent(Asked::Write, "it does not answer".to_owned()))?
                    .map_err(|error| silent(Asked::Write, error.to_string()))?;
                Ok(found.take_kvs().into_iter().next().and_then(|kv| self.share(kv)))
            }
            (Op::Delete(_), TxnOpResponse::Delete(mut removed)) => {
                let previous = removed.take_prev_kvs().into_iter().next();
                Ok(event.and_then(|event| event.previous.clone()).or_else(|| previous.and_then(|kv| self.share(kv))))
            }
            (Op::Delete(_), _) => Ok(None),
        }
    }

    /// The mirror's entry, if it is the same; so that all readers share one.
    fn share(&self, kv: etcd_client::KeyValue) -> Option<Arc<Entry>> {
        let fresh = entry(kv, self.options.foreign)?;
        let state = self.mirror.published.state();
        match state.get(&fresh.key) {
            Some(known) if known.mod_revision == fresh.mod_revision => Some(Arc::clone(known)),
            _ => Some(Arc::new(fresh)),
        }
    }

    /// A range of a state that is older than the mirror's history.
    async fn old_range(&self, range: Range, oldest: Revision) -> Result<RangePage, StoreError> {
        // etcd takes 0 for the newest.
        let at = range.at.filter(|at| at.0 > 0).ok_or(StoreError::Compacted { oldest })?;
        let start = match &range.after {
            Some(after) if after.as_str() >= range.prefix.as_str() => [after.as_bytes(), b"\0"].concat(),
            _ => start_of(&range.prefix),
        };
        let options = GetOptions::new()
            .with_range(end_of(&range.prefix))
            .with_revision(i64::try_from(at.0).unwrap_or(i64::MAX))
            .with_limit(i64::try_from(range.limit).unwrap_or(i64::MAX))
            .with_sort(SortTarget::Key, SortOrder::None);
        let mut kv = self.client.kv_client().max_decoding_message_size(usize::MAX);
        let mut page = tokio::time::timeout(self.options.timeout, kv.get(start, Some(options)))
            .await
            .map_err(|_| silent(Asked::Read, "it does not answer".to_owned()))?
            .map_err(|error| match is_out_of_range(&error) {
                true => StoreError::Compacted { oldest },
                false => failed(Asked::Read, &error),
            })?;
        let count = usize::try_from(page.count()).unwrap_or(0);
        let entries: Vec<Arc<Entry>> = page.take_kvs().into_iter().filter_map(|kv| self.share(kv)).collect();
        Ok(RangePage { remaining: count.saturating_sub(entries.len()), entries, revision: at })
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let mut kv = self.client.kv_client();
        let compacted = kv.compact(i64::try_from(revision.0).unwrap_or(i64::MAX), None);
        let compacted = tokio::time::timeout(self.options.timeout, compacted).await;
        match compacted.map_err(|_| silent(Asked::Write, "it does not answer".to_owned()))? {
            Ok(_) => {}
            // It is compacted further already.
            Err(error) if is_out_of_range(&error) => {}
            Err(error) => return Err(failed(Asked::Write, &error)),
        }
        self.mirror.change(&self.options.history, |state, _| {
            if let Err(error) = state.compact(revision) {
                tracing::error!(%error, "the mirror is behind what it has shown");
            }
        });
        Ok(())
    }
}

/// What is asked for when a check fails, so that each has its answer: where it is about many keys, nothing but their number.
fn look(check: &Check) -> TxnOp {
    match check {
        Check::Unchanged(key, _) | Check::Absent(key) | Check::Exists(key) => TxnOp::get(&**key, None),
        Check::NoneSince(prefix, _) => {
            let options = GetOptions::new().with_range(end_of(prefix)).with_count_only();
            TxnOp::get(start_of(prefix), Some(options))
        }
    }
}

fn compare(check: &Check) -> Compare {
    match check {
        // Revision 0 is that of a key that is not there.
        Check::Unchanged(key, Revision(0)) => Compare::mod_revision(&**key, CompareOp::Less, 0),
        Check::Unchanged(key, revision) => {
            Compare::mod_revision(&**key, CompareOp::Equal, i64::try_from(revision.0).unwrap_or(i64::MAX))
        }
        Check::Absent(key) => Compare::create_revision(&**key, CompareOp::Equal, 0),
        Check::Exists(key) => Compare::create_revision(&**key, CompareOp::Greater, 0),
        // It holds of each key there; where there is none, the revision is 0.
        Check::NoneSince(prefix, revision) => {
            let next = i64::try_from(revision.0.saturating_add(1)).unwrap_or(i64::MAX);
            Compare::mod_revision(start_of(prefix), CompareOp::Less, next).with_range(end_of(prefix))
        }
    }
}

fn operation(op: &Op) -> TxnOp {
    match op {
        Op::Put(key, Value { bytes, .. }) => TxnOp::put(&**key, &**bytes, None),
        Op::Delete(key) => TxnOp::delete(&**key, Some(DeleteOptions::new().with_prev_key())),
    }
}
