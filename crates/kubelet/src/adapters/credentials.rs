//! Credentials that are the node's own ([`crate::credentials`]): files of docker's, and plugins that are run for an image.
//!
//! A file is read for each pull, so that a new one counts at once. What a plugin says lives in this process alone, and nothing but
//! what it writes on its standard error is ever logged.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use carrack_processes::group::{self, Group};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{ChildStdin, Command};
use tokio::sync::Semaphore;

use super::{blocking, io_error, now};
use crate::credentials::answer::{self, Answer};
use crate::credentials::docker::{self, Entries};
use crate::credentials::kept::Answers;
use crate::credentials::providers::Provider;
use crate::credentials::{NodeCredentials, is_wrapped, own};
use crate::effects::{OpError, RegistryAuth};
use crate::spec::image_name::ImageName;

/// How long a plugin may take, as upstream's kubelet has it.
const LIMIT: Duration = Duration::from_secs(60);
/// Most bytes of an answer.
const MAX_ANSWER: usize = 1 << 20;
/// Most bytes of what a plugin that fails says to people.
const MAX_WORDS: usize = 1 << 10;
/// Most bytes of a file of docker's.
const MAX_FILE: u64 = 1 << 20;
/// Most plugins that run at the same time.
const AT_ONCE: usize = 8;

/// A node's own credentials.
pub struct Own {
    of: NodeCredentials,
    answers: Mutex<Answers>,
    turns: Semaphore,
    limit: Duration,
}

/// None.
impl Default for Own {
    fn default() -> Self {
        Self { of: NodeCredentials::default(), answers: Mutex::default(), turns: Semaphore::new(AT_ONCE), limit: LIMIT }
    }
}

impl Own {
    /// Those from there. That the plugins' programs are there is looked at now, and not when somebody waits for an image.
    ///
    /// # Errors
    /// One of them is not.
    pub fn new(of: NodeCredentials) -> Result<Self, OpError> {
        for provider in &of.providers {
            let program = of.program_dir.join(&provider.name);
            let what = || format!("the credential provider {}", program.display());
            let meta = std::fs::metadata(&program).map_err(io_error(what()))?;
            if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
                return Err(OpError::Failed(format!("{} is no program", what())));
            }
        }
        Ok(Self { of, ..Self::default() })
    }

    /// Those that fit an image, in the order in which they are tried. What cannot be had is left out: the registry's answer tells.
    pub async fn of(&self, image: &str) -> Vec<RegistryAuth> {
        let Ok(name) = ImageName::parse(image) else { return Vec::new() };
        let mut of_plugins = Vec::new();
        for provider in self.of.providers.iter().filter(|provider| provider.is_for(&name.repository)) {
            of_plugins.push(self.ask(provider, &name.repository).await);
        }
        let files = self.of.files.clone();
        let of_file = blocking(move || Ok(first(&files))).await.unwrap_or_default();
        own(image, of_file, of_plugins)
    }

    /// What a plugin has said of a repository before, if that is still good.
    fn kept(&self, provider: &Provider, repository: &str) -> Option<Entries> {
        // Answers are put in whole.
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.find(now(), &provider.name, repository)
    }

    /// What a plugin says of a repository; nothing where it fails.
    async fn ask(&self, provider: &Provider, repository: &str) -> Entries {
        if let Some(kept) = self.kept(provider, repository) {
            return kept;
        }
        // Nobody closes it.
        let Ok(_turn) = self.turns.acquire().await else { return Entries::new() };
        // Somebody else may have asked meanwhile.
        if let Some(kept) = self.kept(provider, repository) {
            return kept;
        }
        match self.run(provider, repository).await {
            Ok(answer) => {
                let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.keep(now(), &provider.name, repository, &answer, provider.default_lasts);
                answer.entries
            }
            Err(why) => {
                tracing::error!(plugin = provider.name, image = repository, why, "a credential provider gives none");
                Entries::new()
            }
        }
    }

    /// Runs a plugin. All that it started ends with it when it takes too long, or nobody waits for it any more.
    async fn run(&self, provider: &Provider, repository: &str) -> Result<Answer, String> {
        let program = self.of.program_dir.join(&provider.name);
        let question = answer::question(&provider.api_version, repository);
        let mut command = Command::new(&program);
        command.args(&provider.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        for (name, value) in &provider.env {
            command.env(name, value);
        }
        let mut child = command.spawn().map_err(|error| format!("running {}: {error}", program.display()))?;
        let mut group = Group::of(&child);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (mut said, mut words) = (Vec::new(), Vec::new());
        let talk = async {
            // A byte more shows that there was more.
            let answers = group::read(stdout, MAX_ANSWER + 1, &mut said);
            tokio::join!(answers, group::read(stderr, MAX_WORDS, &mut words), tell(stdin, &question));
            child.wait().await
        };
        let Ok(ended) = tokio::time::timeout(self.limit, talk).await else {
            return Err(format!("it did not answer within {} s", self.limit.as_secs()));
        };
        group.ended();
        let status = ended.map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&words).trim()));
        }
        if said.len() > MAX_ANSWER {
            return Err(format!("it answers with more than {MAX_ANSWER} bytes"));
        }
        answer::read(&provider.api_version, &said).map_err(str::to_owned)
    }
}

/// Writes the question, and closes. Who answers without reading it may do so.
async fn tell(to: Option<ChildStdin>, question: &[u8]) {
    let Some(mut to) = to else { return };
    if let Err(error) = to.write_all(question).await {
        tracing::debug!(%error, "a credential provider does not read what it is asked");
    }
}

/// What is in the first of docker's files that can be read.
fn first(files: &[PathBuf]) -> Entries {
    for file in files {
        match contents(file) {
            Ok(bytes) => match docker::read(is_wrapped(file), &bytes) {
                Some(entries) => return entries,
                None => tracing::warn!(file = %file.display(), "credentials for registries cannot be understood"),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(file = %file.display(), %error, "credentials for registries cannot be read"),
        }
    }
    Entries::new()
}

fn contents(file: &Path) -> io::Result<Vec<u8>> {
    // To open a pipe would take for as long as nobody writes into it.
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    File::open(file)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("it has more than {MAX_FILE} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::credentials::files;
    use crate::credentials::providers::V1;

    /// A plugin that does this, in a directory of its own, for images of `r.io`.
    fn plugin(script: &str) -> (tempfile::TempDir, Own) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("p");
        fs::write(&program, format!("#!/bin/sh\ncd {}\necho >>calls\n{script}\n", dir.path().display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let provider = Provider {
            name: "p".into(),
            match_images: vec!["r.io".into()],
            default_lasts: Duration::ZERO,
            api_version: V1.into(),
            args: vec!["get".into()],
            env: vec![("WHO".into(), "me".into())],
        };
        let of = NodeCredentials { files: Vec::new(), providers: vec![provider], program_dir: dir.path().to_owned() };
        (dir, Own::new(of).unwrap())
    }

    /// An answer as a shell writes it.
    fn says(lasts: &str) -> String {
        format!(
            r#"echo '{{"apiVersion": "{V1}", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry",
            "cacheDuration": "{lasts}", "auth": {{"r.io": {{"username": "'$WHO-$1'", "password": "pw"}}}}}}'"#
        )
    }

    fn users(all: &[RegistryAuth]) -> Vec<&str> {
        all.iter().map(|auth| auth.username.as_str()).collect()
    }

    fn calls(dir: &Path) -> usize {
        fs::read_to_string(dir.join("calls")).unwrap_or_default().lines().count()
    }

    #[tokio::test]
    async fn a_plugin_is_asked_as_often_as_its_answers_end() {
        for (lasts, expected) in [("10h", 1), ("0s", 2)] {
            let (dir, own) = plugin(&format!("cat >asked\n{}", says(lasts)));
            let first = own.of("r.io/team/app:1").await;
            assert_eq!((users(&first), first[0].password.as_str()), (vec!["me-get"], "pw"));
            let asked: serde_json::Value =
                serde_json::from_slice(&fs::read(dir.path().join("asked")).unwrap()).unwrap();
            assert_eq!(asked["image"], "r.io/team/app");
            assert_eq!(users(&own.of("r.io/other@sha256:0").await), Vec::<&str>::new(), "that is no image's name");
            assert_eq!(users(&own.of("r.io/other").await), ["me-get"]);
            assert!(own.of("s.io/other").await.is_empty(), "it is not for those");
            assert_eq!(calls(dir.path()), expected, "{lasts}");
        }
    }

    #[tokio::test]
    async fn what_goes_wrong_with_a_plugin_is_told_without_what_it_answers() {
        let many = "yes pw | head -c 2000000";
        for (script, expected) in [
            ("echo pw; echo 'no metadata' >&2; exit 3", "exit status: 3: no metadata"),
            ("echo pw", "it answers with no CredentialProviderResponse"),
            (many, "it answers with more than 1048576 bytes"),
            ("exec sleep 600", "it did not answer within 1 s"),
            ("kill -9 $$", "signal: 9"),
        ] {
            let (_dir, own) = plugin(script);
            // Whoever answers has his time, however busy the machine is.
            let limit = if script.contains("sleep") { Duration::from_secs(1) } else { LIMIT };
            let own = Own { limit, ..own };
            let why = own.run(&own.of.providers[0], "r.io/a").await.unwrap_err();
            assert!(why.contains(expected) && !why.contains("pw"), "{script}: {why}");
            assert!(own.of("r.io/a").await.is_empty(), "{script}");
        }
    }

    /// It leads a group of processes, which ends with it.
    #[tokio::test]
    async fn a_plugin_that_takes_too_long_ends_with_all_that_it_started() {
        let (dir, own) = plugin("sleep 600 & echo $! >started; wait");
        let own = Own { limit: Duration::from_secs(1), ..own };
        // A busy machine may not let it come as far in its time.
        let mut pid = String::new();
        for _ in 0..60 {
            assert!(own.of("r.io/a").await.is_empty());
            pid = fs::read_to_string(dir.path().join("started")).unwrap_or_default();
            if pid.ends_with('\n') {
                break;
            }
        }
        assert!(pid.trim().parse::<u32>().is_ok(), "it did not start: {pid:?}");
        let stat = format!("/proc/{}/stat", pid.trim());
        let gone = async {
            while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.expect("it runs on");
    }

    #[test]
    fn a_plugin_that_is_not_there_is_noticed_at_the_start() {
        let (dir, own) = plugin("exit");
        let of = own.of;
        fs::set_permissions(dir.path().join("p"), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Own::new(of.clone()).is_err_and(|error| error.to_string().ends_with("is no program")));
        fs::remove_file(dir.path().join("p")).unwrap();
        assert!(Own::new(of).is_err());
    }

    #[tokio::test]
    async fn the_first_file_that_can_be_read_counts() {
        let (dir, own) = plugin(&says("1h"));
        let (root, home) = (dir.path().join("kubelet"), dir.path().join("home"));
        fs::create_dir_all(home.join(".docker")).unwrap();
        fs::create_dir_all(&root).unwrap();
        let of = NodeCredentials { files: files(&root, std::slice::from_ref(&home)), ..own.of.clone() };
        let own = Own::new(of).unwrap();
        let docker = |user: &str| format!(r#"{{"auths": {{"r.io": {{"username": "{user}", "password": "p"}}}}}}"#);
        for (file, text, expected) in [
            (home.join(".dockercfg"), "nonsense".to_owned(), vec!["me-get"]),
            (home.join(".docker/config.json"), docker("home"), vec!["home", "me-get"]),
            (root.join("config.json"), docker("root"), vec!["root", "me-get"]),
            (root.join("config.json"), " ".repeat(2 << 20), vec!["home", "me-get"]),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(users(&own.of("r.io/a").await), expected, "{}", file.display());
        }
    }
}
