//! `carrack completion`: a shell asks this very program what may come next, so that no list of words can be out of date.
//!
//! ```text
//!   shell ──Tab──► script of `carrack completion` ──words so far, a variable──► this program ──candidates──► shell
//! ```
//!
//! Scripts and candidates are `clap_complete`'s. Its scripts that hold all words themselves would need no feature that is
//! called unstable, but they age. Should the interface change with a new version, a build says so.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;

use crate::cli::{Cli, CompletionArgs, Shell};
use crate::output;

/// By this variable a script says which shell asks.
const ASKS: &str = "CARRACK_COMPLETE";

/// What the command is called, and looked up by.
const NAME: &str = "carrack";

/// Prints the script of a shell.
///
/// # Errors
/// Standard output is closed.
pub fn script(args: &CompletionArgs) -> anyhow::Result<()> {
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    output::write_all(&text(args.shell, &program(&called)?)?)
}

fn text(shell: Shell, program: &str) -> anyhow::Result<Vec<u8>> {
    let name = match shell {
        Shell::Bash => "bash",
        Shell::Zsh => "zsh",
        Shell::Fish => "fish",
    };
    let shells = Shells::builtins();
    let script = shells.completer(name).with_context(|| format!("nothing is known of {name}"))?;
    let mut text = Vec::new();
    script.write_registration(ASKS, NAME, NAME, program, &mut text).context("the script cannot be written")?;
    Ok(text)
}

/// What the script is to ask: the file that this program was called by, or its name where the shell looked it up.
fn program(called: &Path) -> anyhow::Result<String> {
    if called.components().count() < 2 {
        return Ok(NAME.to_owned());
    }
    let path = std::path::absolute(called).with_context(|| format!("cannot make {} absolute", called.display()))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Answers a script that asks what may come next; false where none does.
///
/// # Errors
/// It asks for a shell that is not known, or standard output is closed.
pub fn answer() -> anyhow::Result<bool> {
    let dir = std::env::current_dir().ok();
    let asked = CompleteEnv::with_factory(Cli::command).var(ASKS);
    asked.try_complete(std::env::args_os(), dir.as_deref()).map_err(|error| anyhow::anyhow!("{error}"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// What the last word may become.
    fn candidates(words: &[&str]) -> Vec<String> {
        let words: Vec<OsString> = [NAME].iter().chain(words).map(OsString::from).collect();
        let last = words.len() - 1;
        let found = clap_complete::engine::complete(&mut Cli::command(), words, last, None).expect("an answer");
        let mut found: Vec<String> =
            found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect();
        found.sort();
        found
    }

    #[test]
    fn words_are_completed() {
        let check = |words: &[&str], expected: &[&str]| assert_eq!(candidates(words), expected, "{words:?}");
        check(&["u"], &["up"]);
        check(&["virt-c"], &["virt-controller"]);
        check(&["node", "o"], &["off", "on"]);
        check(&["nonsense-"], &[]);
        check(&["kubeconfig", "--us"], &["--user"]);
        check(&["kubeconfig", "--user", "virt"], &["virt-controller", "virt-handler"]);
        check(&["kubeconfig", "--raw", "--tls"], &["--tls-dir"]);
        check(&["version", "-o", ""], &["json", "yaml"]);
        check(&["version", "--output", "j"], &["json"]);
        check(&["version", "--output=j"], &["--output=json"]);
        check(&["image", "build", "--data-dir", "/x", "pa"], &["pause"]);
        let node = candidates(&["node", ""]);
        assert!(node.contains(&"off".to_owned()) && !node.contains(&"agent".to_owned()), "{node:?}");
    }

    #[test]
    fn files_are_completed() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("monday"), "").expect("written");
        let begun = dir.path().join("mon").display().to_string();
        let rows: [&[&str]; 2] = [&["store", "check", &begun], &["up", "--kubelet-config", &begun]];
        for words in rows {
            let found = candidates(words);
            assert!(found.len() == 1 && found[0].ends_with("/monday"), "{words:?}: {found:?}");
        }
    }

    #[test]
    fn scripts_ask_this_program() {
        for (called, expected) in [("carrack", "carrack"), ("", "carrack"), ("/opt/carrack", "/opt/carrack")] {
            let program = program(Path::new(called)).expect("a program");
            assert_eq!(program, expected);
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                let script = String::from_utf8(text(shell, &program).expect("a script")).expect("text");
                assert!(script.contains(ASKS) && script.contains(expected), "{shell:?}: {script}");
            }
        }
        assert!(program(Path::new("target/carrack")).expect("a program").starts_with('/'));
    }
}
