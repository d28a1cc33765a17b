//! What other servers tell of their groups and versions, kept for a while.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::Remote;
use crate::env::Env;

/// How long what a server told is believed, in seconds.
const FRESH_S: i64 = 30;
/// How long a server that did not answer is left alone, in seconds: whoever asks for all of discovery waits for it,
/// and it may be back soon.
const SILENT_S: i64 = 5;

/// What was told last, by group and version.
pub(super) struct Told<T>(Mutex<BTreeMap<(String, String), Word<T>>>);

/// The word of one server.
#[derive(Clone, Debug)]
pub(super) struct Word<T> {
    /// What it told last; none when it never told anything.
    pub last: Option<T>,
    /// Whether it answered when it was asked last.
    pub is_current: bool,
    /// The state of the APIService by which it was asked.
    revision: u64,
    at_s: i64,
}

impl<T> Default for Told<T> {
    fn default() -> Self {
        Told(Mutex::default())
    }
}

impl<T> Word<T> {
    /// One that is of a later time was told before the clock was set back: how old it is nobody knows.
    fn is_believed(&self, remote: &Remote, now_s: i64) -> bool {
        let fresh_s = if self.is_current { FRESH_S } else { SILENT_S };
        self.revision == remote.revision && (0..fresh_s).contains(&now_s.saturating_sub(self.at_s))
    }
}

impl<T: Clone> Told<T> {
    /// What a server tells, asked by `ask` where what is known is too old. What a silent one told last is kept,
    /// whatever has become of its APIService. How old that is counts from when it answered, or was given up on: to wait
    /// for it takes as long as it is left alone then.
    pub(super) async fn get(
        &self,
        remote: &Remote,
        env: &dyn Env,
        ask: impl Future<Output = Result<T, String>>,
    ) -> Word<T> {
        let id = (remote.group.clone(), remote.version.clone());
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.is_believed(remote, env.now().as_second())) {
            return known.clone();
        }
        let (last, is_current) = match ask.await {
            Ok(told) => (Some(told), true),
            Err(why) => {
                tracing::debug!(group = remote.group, version = remote.version, %why, "another server tells nothing");
                (known.and_then(|known| known.last), false)
            }
        };
        let word = Word { last, is_current, revision: remote.revision, at_s: env.now().as_second() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, word.clone());
        word
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use futures::FutureExt as _;
    use jiff::Timestamp;

    use super::*;

    /// How long a server takes to answer, or is waited for in vain.
    const ASKING_S: i64 = SILENT_S;

    /// A clock that is set.
    #[derive(Default)]
    struct Clock(AtomicI64);
    impl Env for Clock {
        fn now(&self) -> Timestamp {
            Timestamp::from_second(self.0.load(Ordering::Relaxed)).expect("in range")
        }
        fn random(&self) -> u64 {
            0
        }
    }

    fn remote(revision: u64) -> Remote {
        Remote {
            group: "a.example.com".to_owned(),
            version: "v1".to_owned(),
            revision,
            namespace: String::new(),
            service: String::new(),
            port: 443,
            ca_pem: None,
            insecure: false,
        }
    }

    /// A silent server is not waited for again and again, and what it told last is not lost.
    #[test]
    fn words_are_kept_for_a_while() {
        let (told, clock) = (Told::<u32>::default(), Clock::default());
        // How much time has passed since the row before.
        for (after_s, revision, answer, asked, last, is_current) in [
            (0, 1, Err(()), true, None, false),
            (SILENT_S - 1, 1, Ok(1), false, None, false),
            (1, 1, Ok(1), true, Some(1), true),
            (FRESH_S - 1, 1, Ok(2), false, Some(1), true),
            // Its APIService has changed.
            (0, 2, Ok(3), true, Some(3), true),
            (FRESH_S, 2, Err(()), true, Some(3), false),
            (1, 2, Ok(4), false, Some(3), false),
            // The clock is set back.
            (-3600, 2, Ok(5), true, Some(5), true),
        ] {
            let now_s = clock.0.fetch_add(after_s, Ordering::Relaxed) + after_s;
            let mut was_asked = false;
            let ask = async {
                was_asked = true;
                clock.0.fetch_add(ASKING_S, Ordering::Relaxed);
                answer.map_err(|()| "silence".to_owned())
            };
            let word = told.get(&remote(revision), &clock, ask).now_or_never().expect("an answer");
            assert_eq!((word.last, word.is_current, was_asked), (last, is_current, asked), "at {now_s} s");
        }
    }
}
