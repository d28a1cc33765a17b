//! What an agent takes of the machine beyond what it was given, and what of that does not go on to containers.
//!
//! Open files: what a process may have unasked, 1,024 mostly, is for programs that cannot count further (select(2)), and less than
//! the connections that an API server takes. The runtime, and so its containers, begin with what they would have had: some
//! programs close every file that they may have before they do anything.
//!
//! Memory: a kernel that has none left ends the process that it holds for the worst. An agent or a runtime that goes leaves all
//! pods alone, so each of them comes after every pod, whose least score is -998 (a sandbox's). What a runtime starts gets its
//! own score from it.
//!
//! Upstream: the kubelet's `maxOpenFiles` and `oomScoreAdj` (-999), which containerd's own service has, too.

use std::fs;
use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many files this process might have open before it took all.
static GIVEN: OnceLock<u64> = OnceLock::new();

/// The score of those that come last.
const LAST: i32 = -999;

/// Lets this process have as many files open as it may have at all. It is inherited: whoever starts a runtime does so by
/// [`as_given`].
pub fn take_all_files() {
    let now = getrlimit(Resource::Nofile);
    if now.current == now.maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum }) {
        Ok(()) => {
            if let Some(given) = now.current {
                GIVEN.get_or_init(|| given);
            }
        }
        Err(error) => tracing::warn!(%error, limit = now.current, "the number of open files stays limited"),
    }
}

/// Words that stand before a command which is to begin with no more files than this process was given; none where it has
/// taken none.
#[must_use]
pub fn as_given() -> Vec<String> {
    words(GIVEN.get().copied())
}

fn words(given: Option<u64>) -> Vec<String> {
    // In place: the process that is started becomes the command.
    const SCRIPT: &str = r#"ulimit -S -n "$0" && exec "$@""#;
    let words = given.map(|files| vec!["sh".to_owned(), "-c".to_owned(), SCRIPT.to_owned(), files.to_string()]);
    words.unwrap_or_default()
}

/// Has the kernel come to this process last when memory runs out. It goes on where the kernel does not let it have that.
pub fn come_last() {
    come_last_as("self");
}

/// The same for another process.
pub(crate) fn comes_last(pid: i32) {
    come_last_as(&pid.to_string());
}

fn come_last_as(process: &str) {
    let file = format!("/proc/{process}/oom_score_adj");
    let lowered = || -> io::Result<()> {
        let now: i32 = fs::read_to_string(&file)?.trim().parse().map_err(io::Error::other)?;
        if now > LAST { fs::write(&file, LAST.to_string()) } else { Ok(()) }
    };
    if let Err(error) = lowered() {
        tracing::info!(%error, process, "it may be ended before pods are when memory runs out");
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn all_files_are_taken_and_a_runtime_begins_with_what_was_given() {
        let before = getrlimit(Resource::Nofile);
        take_all_files();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        let given = before.current.filter(|_| before.current != before.maximum);
        assert_eq!(as_given().last().cloned(), given.map(|files| files.to_string()));

        assert!(words(None).is_empty());
        let words = words(Some(64));
        let said = |script: &str| {
            let output = Command::new(&words[0]).args(&words[1..]).args(["sh", "-c", script, "a", "b c"]).output();
            String::from_utf8_lossy(&output.expect("a shell").stdout).trim().to_owned()
        };
        assert_eq!(said("ulimit -S -n"), "64");
        assert_eq!(said("echo $0, $1"), "a, b c");
        assert_ne!(said("ulimit -H -n"), "64", "it may have more when it asks");
    }

    /// The capability that it needs is not everywhere.
    #[test]
    fn who_is_to_come_last_does_where_it_may() {
        let mut child = Command::new("sleep").arg("100").spawn().expect("sleep starts");
        let file = format!("/proc/{}/oom_score_adj", child.id());
        let score = || fs::read_to_string(&file).expect("a score").trim().parse::<i32>().expect("a number");
        let may = fs::write(&file, LAST.to_string()).is_ok();
        fs::write(&file, "500").expect("anybody may come sooner");
        comes_last(i32::try_from(child.id()).expect("a pid"));
        let found = score();
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert_eq!(found, if may { LAST } else { 500 });
    }
}
