//! Runs a [`Keeper`] on files and keys.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use carrack_auth::pki::{KeyPairPem, Subject, key_fingerprint, new_key, new_request};
use carrack_auth::secret::Secret;
use carrack_engine::shell::{Clock, Doer, EventSink, random_seed, run_core};
use carrack_engine::{Rng, Time, Transport};
use tokio::sync::oneshot;

use super::{Asked, Done, Files, Held, Keeper, Task, Unkept, Wanted};

/// Who is handed each certificate that comes into use.
type Use = Arc<dyn Fn(&KeyPairPem) -> Result<(), String> + Send + Sync>;

#[derive(Clone)]
struct Work {
    files: Files,
    subject: Subject,
    take: Use,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Work {
    fn asked(&self, key: &Secret) -> Result<Asked, String> {
        let request = new_request(key, &self.subject).map_err(text)?;
        Ok(Asked { fingerprint: key_fingerprint(key).map_err(text)?, request })
    }

    fn load(&self) -> Result<Held, String> {
        let current = match self.files.current().map_err(text)? {
            Some(pair) => match pair.facts() {
                Ok(facts) if facts.satisfies(&self.subject) => {
                    (self.take)(&pair)?;
                    Some(facts)
                }
                Ok(_) => None,
                Err(error) => {
                    tracing::warn!(file = %self.files.current_path().display(), %error, "another certificate is needed");
                    None
                }
            },
            None => None,
        };
        // A key that cannot be read is of no use: another is made.
        let asked = self.files.key().map_err(text)?.and_then(|key| self.asked(&key).ok());
        Ok(Held { current, asked })
    }

    fn ask(&self) -> Result<Asked, String> {
        let key = new_key().map_err(text)?;
        self.files.keep_key(&key).map_err(text)?;
        self.asked(&key)
    }

    fn keep(&self, certificate: String, now: Time) -> Result<carrack_auth::pki::CertificateFacts, Unkept> {
        let disk = |error: std::io::Error| Unkept::Disk(error.to_string());
        let Some(key) = self.files.key().map_err(disk)? else {
            return Err(Unkept::Unfit("the key of the request is gone".into()));
        };
        let pair = KeyPairPem { certificate, key };
        let facts = pair.facts().map_err(|error| Unkept::Unfit(carrack_engine::causes(&error)))?;
        if !facts.satisfies(&self.subject) {
            return Err(Unkept::Unfit("the certificate is not for what was asked".into()));
        }
        self.files.keep(&pair, now).map_err(disk)?;
        (self.take)(&pair).map_err(Unkept::Unfit)?;
        self.files.drop_key().map_err(disk)?;
        Ok(facts)
    }

    fn carry_out(&self, task: Task, now: Time) -> Done {
        match task {
            Task::Load => Done::Loaded(self.load()),
            Task::Ask => Done::Asked(self.ask()),
            Task::Keep(certificate) => Done::Kept(self.keep(certificate, now)),
            Task::Drop => Done::Dropped(self.files.drop_key().map_err(text)),
        }
    }
}

struct Clerk {
    work: Work,
    clock: Clock,
    events: Option<EventSink<Done>>,
}

impl Doer<Task, Done> for Clerk {
    fn clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    fn start(&mut self, events: EventSink<Done>) {
        self.events = Some(events);
    }

    fn run(&mut self, task: Task) {
        let Some(events) = self.events.clone() else { return };
        let (work, now) = (self.work.clone(), self.clock.now());
        tokio::task::spawn_blocking(move || events.send(work.carry_out(task, now)));
    }
}

/// Sees to one certificate until `shutdown` resolves. `take` is handed each one that comes into use, the first included.
///
/// # Errors
/// It cannot go on: the certificate has expired, and nobody would believe a request for another.
pub async fn keep(
    wanted: Wanted,
    directory: &Path,
    transport: Arc<dyn Transport>,
    take: impl Fn(&KeyPairPem) -> Result<(), String> + Send + Sync + 'static,
    shutdown: impl Future<Output = ()>,
) -> Result<(), String> {
    let files = Files::new(directory, wanted.files);
    let work = Work { files, subject: wanted.subject.clone(), take: Arc::new(take) };
    let clerk = Clerk { work, clock: Clock::default(), events: None };
    run_core(Keeper::new(wanted, Rng::new(random_seed())), transport, clerk, shutdown).await
}

/// Gets a certificate once, where there is no good one: what a node does that joins a cluster. Returns false when
/// `shutdown` resolved before there was one.
///
/// # Errors
/// As for [`keep`].
pub async fn join(
    wanted: Wanted,
    directory: &Path,
    transport: Arc<dyn Transport>,
    shutdown: impl Future<Output = ()>,
) -> Result<bool, String> {
    let (had, has) = oneshot::channel();
    let had = Mutex::new(Some(had));
    let take = move |pair: &KeyPairPem| {
        let expired = pair.facts().map_err(text)?.not_after_unix_s <= Clock::default().now().unix_s();
        if !expired && let Some(had) = had.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Who does not listen any more is ending.
            had.send(()).unwrap_or_default();
        }
        Ok(())
    };
    let mut got = false;
    let done = async {
        tokio::select! {
            result = has => result.is_ok(),
            () = shutdown => false,
        }
    };
    keep(wanted, directory, transport, take, async { got = done.await }).await?;
    Ok(got)
}
