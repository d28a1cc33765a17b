//! Random histories, compared with a model that keeps every state there ever was.

use std::collections::BTreeMap;

use carrack_store::embedded::{EmbeddedStore, Options};
use carrack_store::mem::HistoryLimits;
use carrack_store::{Check, EtcdStore, MemStore, Op, Range, Revision, Store, StoreError, TxnOutcome, Watch};
use futures::executor::block_on;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::etcd::Etcd;
use crate::help::{self, drain, text, txn};

const KEYS: [&str; 7] = ["a", "a/1", "a/2", "ab/1", "b/1", "b/2", "b/2/x"];
const PREFIXES: [&str; 7] = ["", "a", "a/", "a/2", "b/", "b/2", "c"];

/// What is done to the store. Revisions are given as steps back from the newest.
#[derive(Clone, Debug)]
enum Step {
    Transact { checks: Vec<(u8, usize, u64)>, ops: Vec<(usize, Option<u16>, bool)> },
    Range { prefix: usize, after: Option<usize>, limit: usize, back: Option<u64> },
    Watch { prefix: usize, back: u64 },
    Drain(usize),
    Drop(usize),
    Compact { back: u64 },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS.len();
    let check = (0_u8..4, key.clone(), 0_u64..4);
    let op = (key.clone(), prop::option::weighted(0.7, any::<u16>()), any::<bool>());
    prop_oneof![
        8 => (prop::collection::vec(check, 0..2), prop::collection::vec(op, 0..4))
            .prop_map(|(checks, ops)| Step::Transact { checks, ops }),
        4 => (0..PREFIXES.len(), prop::option::of(key), 0_usize..4, prop::option::of(0_u64..20))
            .prop_map(|(prefix, after, limit, back)| Step::Range { prefix, after, limit, back }),
        2 => (0..PREFIXES.len(), 0_u64..20).prop_map(|(prefix, back)| Step::Watch { prefix, back }),
        3 => (0_usize..8).prop_map(Step::Drain),
        1 => (0_usize..8).prop_map(Step::Drop),
        1 => (0_u64..20).prop_map(|back| Step::Compact { back }),
        1 => Just(Step::Reopen),
    ]
}

/// A store under test.
trait Subject {
    type Store: Store;
    fn store(&self) -> &Self::Store;
    /// Closes and opens it again. Returns the oldest revision that is known then, or none if it
    /// cannot be reopened.
    fn reopen(&mut self) -> Option<Revision>;
}

impl Subject for MemStore {
    type Store = Self;
    fn store(&self) -> &Self {
        self
    }
    fn reopen(&mut self) -> Option<Revision> {
        None
    }
}

struct OnDisk {
    dir: TempDir,
    options: Options,
    store: Option<EmbeddedStore>,
}

impl OnDisk {
    fn new(log_bytes: u64) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = Options { history: LIMITS, log_bytes, ..Options::default() };
        let mut on_disk = Self { dir, options, store: None };
        on_disk.reopen();
        on_disk
    }
}

impl Subject for OnDisk {
    type Store = EmbeddedStore;
    fn store(&self) -> &EmbeddedStore {
        self.store.as_ref().expect("it is open between the steps")
    }
    fn reopen(&mut self) -> Option<Revision> {
        self.store = None;
        let store = EmbeddedStore::open(self.dir.path(), self.options).expect("it opens again");
        let oldest = store.oldest();
        self.store = Some(store);
        Some(oldest)
    }
}

struct OnEtcd {
    etcd: Etcd,
    store: Option<EtcdStore>,
}

impl OnEtcd {
    fn new() -> Self {
        let mut on_etcd = Self { etcd: Etcd::start(), store: None };
        on_etcd.reopen();
        on_etcd
    }
}

impl Subject for OnEtcd {
    type Store = EtcdStore;
    fn store(&self) -> &EtcdStore {
        self.store.as_ref().expect("it is open between the steps")
    }
    fn reopen(&mut self) -> Option<Revision> {
        self.store = None;
        let options = carrack_store::etcd::Options { history: LIMITS, ..self.etcd.options() };
        let store = EtcdStore::open(options).expect("it opens again");
        self.store = Some(store);
        None
    }
}

const LIMITS: HistoryLimits = HistoryLimits { events: 10_000, bytes: 100 << 20, age_ms: u64::MAX };

/// Key to value, creation and last change.
type Contents = BTreeMap<String, (String, u64, u64)>;

/// Every state there was, and every event in words.
struct Model {
    /// The first is revision 1.
    states: Vec<Contents>,
    events: Vec<(u64, String, String)>,
    compacted: u64,
}

struct Watched {
    prefix: &'static str,
    watch: Watch,
    after: u64,
    /// The newest progress that was told.
    progress: u64,
}

impl Model {
    fn newest(&self) -> u64 {
        self.states.len() as u64
    }

    fn state(&self, revision: u64) -> &Contents {
        &self.states[usize::try_from(revision - 1).expect("small")]
    }

    fn now(&self) -> &Contents {
        self.state(self.newest())
    }

    fn back(&self, back: u64) -> u64 {
        // One step beyond the newest is the future.
        (self.newest() + 1).saturating_sub(back)
    }

    fn expected_error(&self, revision: u64) -> Option<StoreError> {
        if revision > self.newest() {
            Some(StoreError::Future { asked: Revision(revision), newest: Revision(self.newest()) })
        } else if revision < self.compacted {
            Some(StoreError::Compacted { oldest: Revision(self.compacted) })
        } else {
            None
        }
    }

    fn transact(&mut self, store: &impl Store, checks: &[(u8, usize, u64)], ops: &[(usize, Option<u16>, bool)]) {
        let mut next = self.now().clone();
        let revision = self.newest() + 1;
        let mut holds = true;
        let checks: Vec<Check> = checks
            .iter()
            .map(|&(kind, key, back)| {
                let key = KEYS[key];
                let found = next.get(key);
                match kind {
                    0 => {
                        holds &= found.is_some();
                        Check::Exists(key.into())
                    }
                    1 => {
                        holds &= found.is_none();
                        Check::Absent(key.into())
                    }
                    2 => {
                        let asked = self.newest().saturating_sub(back);
                        let mut under = next.iter().filter(|(other, _)| other.starts_with(key));
                        holds &= under.all(|(_, (_, _, changed))| *changed <= asked);
                        Check::NoneSince(key.into(), Revision(asked))
                    }
                    _ => {
                        // Mostly the right one.
                        let asked = found.map_or(0, |(_, _, changed)| *changed) + back / 3;
                        holds &= found.is_some_and(|(_, _, changed)| *changed == asked);
                        Check::Unchanged(key.into(), Revision(asked))
                    }
                }
            })
            .collect();
        let mut events = Vec::new();
        let mut sent = Vec::new();
        let mut twice = false;
        for (place, &(key, value, stamped)) in ops.iter().enumerate() {
            twice |= ops[..place].iter().any(|(other, ..)| *other == key);
            let key = KEYS[key];
            if let Some(value) = value {
                let (front, back) = (format!("{value}\"metadata\":{{\"resourceVersion\":\""), "\"");
                let text = if stamped { format!("{front}{revision}{back}") } else { format!("{value}@") };
                sent.push(Op::Put(
                    key.into(),
                    if stamped { help::stamped(&front, back) } else { help::value(text.clone()) },
                ));
                events.push((revision, key.to_owned(), format!("{revision}+{key}={text}")));
                let created = next.get(key).map_or(revision, |(_, created, _)| *created);
                next.insert(key.to_owned(), (text, created, revision));
            } else {
                sent.push(Op::Delete(key.into()));
                if next.remove(key).is_some() {
                    events.push((revision, key.to_owned(), format!("{revision}-{key}")));
                }
            }
        }
        match block_on(store.transact(txn(checks, sent))) {
            Err(StoreError::Invalid(_)) => assert!(twice),
            Err(error) => panic!("{error}"),
            Ok(TxnOutcome::Failed { revision, .. }) => {
                assert!(!holds);
                assert_eq!(revision.0, self.newest());
            }
            Ok(TxnOutcome::Committed { revision, .. }) => {
                assert!(holds && !twice);
                if !events.is_empty() {
                    self.states.push(next);
                    self.events.extend(events);
                }
                assert_eq!(revision.0, self.newest());
            }
        }
    }

    fn range(&self, store: &impl Store, range: Range) {
        let at = range.at.map_or(self.newest(), |at| at.0);
        let page = block_on(store.range(range.clone()));
        if let Some(expected) = self.expected_error(at) {
            let error = page.expect_err("the model says so");
            assert_eq!(error.to_string(), expected.to_string());
            return;
        }
        let page = page.expect("the model says so");
        let mut expected: Vec<_> = self
            .state(at)
            .iter()
            .filter(|(key, _)| key.starts_with(&range.prefix))
            .filter(|(key, _)| range.after.as_ref().is_none_or(|after| *key > after))
            .map(|(key, (text, created, changed))| (key.clone(), text.clone(), *created, *changed))
            .collect();
        let limit = if range.limit == 0 { expected.len() } else { range.limit };
        let remaining = expected.split_off(limit.min(expected.len())).len();
        let found: Vec<_> =
            page.entries.iter().map(|e| (e.key.to_string(), text(e), e.create_revision.0, e.mod_revision.0)).collect();
        assert_eq!((found, page.remaining, page.revision.0), (expected, remaining, at));
    }

    /// Drains a watch, which must yield exactly what has happened since it was drained last.
    fn drain(&self, watched: &mut Watched, closed: bool) {
        let mut expected: Vec<_> = self
            .events
            .iter()
            .filter(|(at, key, _)| *at > watched.after && key.starts_with(watched.prefix))
            .map(|(_, _, words)| words.clone())
            .collect();
        if closed {
            expected.extend(["!the store is closed".to_owned(), "end".to_owned()]);
        } else if self.newest() > watched.progress {
            expected.push(format!("..{}", self.newest()));
        }
        assert_eq!(drain(&mut watched.watch), expected, "prefix {:?}", watched.prefix);
        watched.after = self.newest();
        watched.progress = self.newest();
    }
}

fn check(subject: &mut impl Subject, steps: Vec<Step>) {
    let mut model = Model { states: vec![Contents::new()], events: Vec::new(), compacted: 1 };
    let mut watches: Vec<Watched> = Vec::new();
    for step in steps {
        match step {
            Step::Transact { checks, ops } => model.transact(subject.store(), &checks, &ops),
            Step::Range { prefix, after, limit, back } => {
                let range = Range {
                    prefix: PREFIXES[prefix].to_owned(),
                    after: after.map(|key| KEYS[key].to_owned()),
                    limit,
                    at: back.map(|back| Revision(model.back(back))),
                };
                model.range(subject.store(), range);
            }
            Step::Watch { prefix, back } => {
                let (prefix, after) = (PREFIXES[prefix], model.back(back));
                match (subject.store().watch(prefix, Revision(after)), model.expected_error(after)) {
                    (Ok(watch), None) => {
                        watches.push(Watched { prefix, watch, after, progress: after });
                    }
                    (Err(found), Some(expected)) => {
                        assert_eq!(found.to_string(), expected.to_string());
                    }
                    (found, expected) => panic!("{:?}, but {expected:?}", found.map(|_| ())),
                }
            }
            Step::Drain(number) => {
                if let Some(watched) = watches.get_mut(number) {
                    model.drain(watched, false);
                }
            }
            Step::Drop(number) => {
                if number < watches.len() {
                    watches.swap_remove(number);
                }
            }
            Step::Compact { back } => {
                let revision = model.back(back);
                let compacted = block_on(subject.store().compact(Revision(revision)));
                if revision > model.newest() {
                    assert!(matches!(compacted, Err(StoreError::Future { .. })));
                } else {
                    compacted.expect("the model says so");
                    model.compacted = model.compacted.max(revision);
                }
            }
            Step::Reopen => {
                if let Some(oldest) = subject.reopen() {
                    watches.iter_mut().for_each(|watched| model.drain(watched, true));
                    watches.clear();
                    // What was compacted stays so. A snapshot holds no history, so there may be less.
                    assert!((model.compacted..=model.newest()).contains(&oldest.0));
                    model.compacted = oldest.0;
                }
            }
        }
        assert_eq!(subject.store().revision().0, model.newest());
    }
    watches.iter_mut().for_each(|watched| model.drain(watched, false));
    model.range(subject.store(), Range { prefix: String::new(), after: None, limit: 0, at: None });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn mem_store_behaves_like_the_model(steps in prop::collection::vec(step(), 1..80)) {
        check(&mut MemStore::new(LIMITS, 1000), steps);
    }
}

proptest! {
    // Each transaction is flushed to a real disk.
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn embedded_store_behaves_like_the_model(steps in prop::collection::vec(step(), 1..60)) {
        check(&mut OnDisk::new(1 << 20), steps);
    }

    #[test]
    fn snapshots_change_nothing_but_history(steps in prop::collection::vec(step(), 1..60)) {
        check(&mut OnDisk::new(200), steps);
    }
}

proptest! {
    // Each case starts an etcd.
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 50, ..ProptestConfig::default() })]
    #[test]
    fn etcd_store_behaves_like_the_model(steps in prop::collection::vec(step(), 20..100)) {
        // It has no history from before it was opened, unlike the model.
        let steps = steps.into_iter().filter(|step| !matches!(step, Step::Reopen)).collect();
        check(&mut OnEtcd::new(), steps);
    }
}
