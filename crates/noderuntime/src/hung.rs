//! A containerd that runs and does not answer any more: stopped, or waiting for itself. Nobody is served until it is started again,
//! and its end stops no container. How long it must have been silent is far beyond what a slow machine takes.

use std::path::PathBuf;
use std::time::Duration;

use crate::containerd::StartError;
use crate::cri::{Cri, CriError};

/// How often it is asked, how long it has for an answer, and how often it may give none, one time after the other.
const LOOK: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(20);
const SILENT: u32 = 4;

/// One that was just started reads first what it has to look after. It does not hang before it has run for so long.
const STARTS: Duration = Duration::from_secs(300);

/// Returns once containerd has been silent for too long.
pub(crate) async fn until_hung(socket: PathBuf) {
    let mut silent = 0;
    while silent < SILENT {
        tokio::time::sleep(LOOK).await;
        let asked = async {
            let mut cri = Cri::connect(&socket).await?;
            cri.version().await.map(drop)
        };
        silent = after(silent, tokio::time::timeout(ANSWER, asked).await.ok().as_ref());
    }
}

/// How often it has been silent by now. A refusal is an answer.
fn after(silent: u32, answer: Option<&Result<(), CriError>>) -> u32 {
    match answer {
        Some(Ok(()) | Err(CriError::Call { .. })) => 0,
        _ => silent + 1,
    }
}

/// Whether the containerd that was found running hangs, by what came of waiting for it and how long it has run.
pub(crate) fn is_hung(why: &StartError, age: Option<Duration>) -> bool {
    matches!(why, StartError::NotReady { .. }) && age.is_some_and(|age| age > STARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> CriError {
        CriError::Silent { limit_s: 1, last: String::new() }
    }

    #[test]
    fn only_silence_counts_and_an_answer_ends_it() {
        let refused = || Err(CriError::Call { call: "Version", message: String::new() });
        for (answer, expected) in [(None, 3), (Some(Err(silent())), 3), (Some(refused()), 0), (Some(Ok(())), 0)] {
            assert_eq!(after(2, answer.as_ref()), expected, "{answer:?}");
        }
    }

    #[test]
    fn who_was_just_started_does_not_hang() {
        let not_ready = || StartError::NotReady { log: PathBuf::new(), source: silent() };
        let ended = || StartError::Ended { status: String::new(), log: PathBuf::new(), log_tail: String::new() };
        let age = |s: u64| Some(Duration::from_secs(s));
        for (why, age, expected) in [
            (not_ready(), age(40), false),
            (not_ready(), age(4000), true),
            (not_ready(), None, false),
            (ended(), age(4000), false),
        ] {
            assert_eq!(is_hung(&why, age), expected, "{why:?} {age:?}");
        }
    }
}
