//! The drivers of a directory: `VENDOR~DRIVER/DRIVER`, run once for each call.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use carrack_disks::DiskError;

use crate::run::{Until, run};
use crate::{Answer, Capabilities};

/// How long a call may take. Upstream limits waitforattach alone, to ten minutes; a driver that hangs in another call would
/// hold its volume for ever, so the same limit is put on all of them.
pub const LIMIT: Duration = Duration::from_secs(600);

/// What came of a call that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The driver did it.
    Answer(Answer),
    /// The driver has no such call: its default is to be done.
    NotSupported,
}

/// Which program is at a driver's place: its number, its size, and when it was put there.
type Program = (u64, u64, i64, i64);

/// The program at a path, if there is one.
fn at(path: &Path) -> Option<Program> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec()))
}

/// What a driver has said of itself.
#[derive(Debug, Default)]
struct Known {
    /// By which program.
    program: Option<Program>,
    capabilities: Option<Capabilities>,
    not_supported: BTreeSet<&'static str>,
}

/// The drivers of a directory.
#[derive(Clone, Debug)]
pub struct Drivers {
    dir: PathBuf,
    limit: Duration,
    until: Option<Until>,
    known: Arc<Mutex<BTreeMap<String, Known>>>,
}

fn failed<T>(text: String) -> Result<T, DiskError> {
    Err(DiskError::Failed(text))
}

impl Drivers {
    /// Those below a directory.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, limit: LIMIT, until: None, known: Arc::default() }
    }

    /// With another limit for calls.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// For somebody who may call until then, and no longer: what runs is ended then by itself, even where the caller is stopped.
    #[must_use]
    pub fn bound_by(self, until: Until) -> Self {
        Self { until: Some(until), ..self }
    }

    /// What is known of a driver. Another program at its place is another driver (upstream notices that, too, `probe.go`); where
    /// none is there, what was said last holds.
    fn known<T>(&self, driver: &str, program: Option<Program>, look: impl FnOnce(&mut Known) -> T) -> T {
        // Entries are put in whole.
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if program.is_none() && !all.contains_key(driver) {
            // Names come from users, and what never was there is not remembered.
            return look(&mut Known::default());
        }
        let known = all.entry(driver.to_owned()).or_default();
        if program.is_some() && known.program != program {
            *known = Known { program, ..Known::default() };
        }
        look(known)
    }

    /// Where a driver is. Its name comes from users, and does not lead out of the directory.
    fn program(&self, driver: &str) -> Result<PathBuf, DiskError> {
        let mut parts = driver.split('/');
        let plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
        if !driver.split('/').all(plain) || parts.clone().count() > 2 {
            return failed(format!("FlexVolume driver {driver:?} is not vendor/driver"));
        }
        let name = parts.next_back().unwrap_or(driver);
        Ok(self.dir.join(driver.replace('/', "~")).join(name))
    }

    /// Calls a driver. What runs of it ends with this process, and when this is dropped.
    ///
    /// # Errors
    /// It fails, hangs, or does not say what it did.
    pub async fn call(&self, driver: &str, verb: &'static str, args: &[String]) -> Result<Told, DiskError> {
        let path = self.program(driver)?;
        let program = at(&path);
        if self.known(driver, program, |known| known.not_supported.contains(verb)) {
            return Ok(Told::NotSupported);
        }
        let all: Vec<String> = std::iter::once(verb.to_owned()).chain(args.iter().cloned()).collect();
        let (code, text) = run(&path, &all, self.limit, self.until.clone()).await?;
        // The arguments hold secrets and are not shown.
        let about = format!("FlexVolume driver {driver}, {verb}");
        let code = code.unwrap_or(-1);
        let answer = match Answer::read(&text) {
            Ok(answer) => answer,
            Err(error) => {
                let start: String = text.chars().take(200).collect();
                return failed(format!("{about}: exit status {code}, and no answer in JSON ({error}): {start:?}"));
            }
        };
        match (answer.status.as_str(), code) {
            ("Not supported", _) => {
                self.known(driver, program, |known| known.not_supported.insert(verb));
                Ok(Told::NotSupported)
            }
            ("Success", 0) => Ok(Told::Answer(answer)),
            ("Success", _) => failed(format!("{about}: it says Success and ends with exit status {code}")),
            _ => failed(format!("{about}: {}", answer.message)),
        }
    }

    /// What a driver can; it is initialised at the first question.
    ///
    /// # Errors
    /// There is no such driver, or it fails.
    pub async fn capabilities(&self, driver: &str) -> Result<Capabilities, DiskError> {
        let program = at(&self.program(driver)?);
        if let Some(known) = self.known(driver, program, |known| known.capabilities) {
            return Ok(known);
        }
        let found = match self.call(driver, "init", &[]).await? {
            Told::Answer(answer) => answer.capabilities.unwrap_or_default(),
            Told::NotSupported => return failed(format!("FlexVolume driver {driver} does not support init")),
        };
        self.known(driver, program, |known| known.capabilities = Some(found));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "real processes run for a real time")]

    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A driver that does this, in a directory of its own.
    fn driver(script: &str) -> (tempfile::TempDir, Drivers) {
        let dir = tempfile::tempdir().expect("a directory");
        put(dir.path(), script);
        let drivers = Drivers::new(dir.path().to_owned()).with_limit(Duration::from_secs(1));
        (dir, drivers)
    }

    fn put(dir: &Path, script: &str) {
        let at = dir.join("v~d");
        fs::create_dir_all(&at).expect("a directory");
        fs::write(at.join("d"), format!("#!/bin/sh\necho \"$1\" >>{}/calls\n{script}\n", dir.display()))
            .expect("written");
        fs::set_permissions(at.join("d"), fs::Permissions::from_mode(0o755)).expect("made executable");
    }

    #[tokio::test]
    async fn drivers_that_never_were_are_not_remembered() {
        let (_dir, drivers) = driver("exit 1");
        assert!(drivers.capabilities("no/such").await.is_err());
        assert!(drivers.known.lock().expect("whole").is_empty());
    }

    #[tokio::test]
    async fn answers_and_what_is_none() {
        let device = Told::Answer(Answer { status: "Success".into(), device: "/dev/x".into(), ..Answer::default() });
        for (script, expected) in [
            (r#"echo '{"status": "Success", "device": "/dev/x"}'"#, Ok(device)),
            (r#"echo '{"status": "Not supported"}'; exit 1"#, Ok(Told::NotSupported)),
            (r#"echo '{"status": "Failure", "message": "no slot"}'; exit 1"#, Err("no slot")),
            (r#"echo '{"status": "Failure", "message": "no slot"}'"#, Err("no slot")),
            (r#"echo '{"status": "Success"}'; exit 3"#, Err("it says Success and ends with exit status 3")),
            (r#"echo '{"status": "Maybe", "message": "?"}'"#, Err("?")),
            ("echo 'Segmentation fault'; exit 139", Err("exit status 139, and no answer in JSON")),
            (r#"echo '{"status": "Success"}{"status": "Success"}'"#, Err("no answer in JSON")),
            ("exec 1>&-", Err("no answer in JSON")),
            ("kill -9 $$", Err("exit status -1, and no answer in JSON")),
            ("exec sleep 60", Err("no answer within 1 s")),
        ] {
            let (_dir, drivers) = driver(script);
            let found = drivers.call("v/d", "attach", &["a".into()]).await.map_err(|e| e.to_string());
            match (found, expected) {
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{script}: {found}"),
                (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{script}"),
            }
        }
    }

    #[tokio::test]
    async fn what_is_not_supported_or_can_be_done_is_asked_for_once() {
        let script = r#"[ "$1" = init ] && { echo '{"status": "Success", "capabilities": {"attach": false}}'; exit; }
            echo '{"status": "Not supported"}'"#;
        let (dir, drivers) = driver(script);
        for _ in 0..2 {
            assert_eq!(drivers.call("v/d", "getvolumename", &[]).await, Ok(Told::NotSupported));
            assert!(!drivers.capabilities("v/d").await.expect("known").attach);
        }
        assert_eq!(fs::read_to_string(dir.path().join("calls")).expect("read"), "getvolumename\ninit\n");
    }

    #[tokio::test]
    async fn another_driver_at_the_place_of_one_is_asked_anew() {
        let (dir, drivers) = driver(
            r#"[ "$1" = init ] && { echo '{"status": "Success", "capabilities": {"attach": false}}'; exit; }
            echo '{"status": "Not supported"}'"#,
        );
        assert!(!drivers.capabilities("v/d").await.expect("known").attach);
        assert_eq!(drivers.call("v/d", "mountdevice", &[]).await, Ok(Told::NotSupported));
        put(dir.path(), r#"echo '{"status": "Success"}'"#);
        assert!(drivers.capabilities("v/d").await.expect("known").attach);
        let did = drivers.call("v/d", "mountdevice", &[]).await;
        assert!(matches!(did, Ok(Told::Answer(_))), "{did:?}");
        // While it is not there, what it said last holds.
        fs::remove_file(dir.path().join("v~d/d")).expect("removed");
        assert!(drivers.capabilities("v/d").await.expect("known").attach);
    }

    /// What a driver started is there, in that file.
    fn started(at: &std::path::Path) -> Option<u32> {
        fs::read_to_string(at.join("started")).ok()?.trim().parse().ok()
    }

    /// Waits until a process is gone, or only its parent has not heard of it.
    async fn is_gone(pid: u32) -> bool {
        for _ in 0..400 {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        false
    }

    /// Starts something that outlives it, unless it is ended, and waits for it.
    const LONG: &str =
        r#"sleep 600 & echo $! >"$(dirname "$0")/new"; mv "$(dirname "$0")/new" "$(dirname "$0")/../started"; wait"#;

    #[tokio::test]
    async fn a_call_that_is_given_up_ends_with_all_that_it_started() {
        let (dir, drivers) = driver(LONG);
        // Its time is over.
        let said = drivers.call("v/d", "detach", &[]).await.expect_err("it hangs").to_string();
        assert!(said.contains("no answer within 1 s"), "{said}");
        let first = started(dir.path()).expect("it has begun");
        assert!(is_gone(first).await, "{first} runs on");
        // Nobody waits for it any more.
        let drivers = drivers.with_limit(Duration::from_secs(600));
        let call = tokio::spawn(async move { drivers.call("v/d", "detach", &[]).await });
        let second = loop {
            match started(dir.path()).filter(|pid| *pid != first) {
                Some(pid) => break pid,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        call.abort();
        assert!(is_gone(second).await, "{second} runs on");
    }

    #[tokio::test]
    async fn a_driver_dies_with_its_caller_and_what_it_left_behind_when_it_answered_does_not() {
        // What it leaves behind has its outputs.
        let (dir, drivers) = driver(&format!(
            r#"[ "$1" = detach ] || {{ sleep 600 & echo $! >{}/left; echo '{{"status": "Success"}}'; exit; }}
            {LONG}"#,
            dir_of_driver()
        ));
        drivers.call("v/d", "mount", &[]).await.expect("it answers");
        let left =
            fs::read_to_string(dir.path().join("v~d/left")).expect("read").trim().parse::<u32>().expect("a number");
        // A process that calls a driver, and is killed.
        let mut caller = calling(dir.path());
        let begun = loop {
            match started(dir.path()) {
                Some(pid) => break pid,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        assert!(fs::exists(format!("/proc/{begun}")).expect("read"));
        caller.kill().expect("killed");
        caller.wait().expect("it ended");
        assert!(is_gone(begun).await, "{begun} runs on");
        assert!(fs::exists(format!("/proc/{left}")).expect("read"), "what serves a volume was ended");
        end(left);
    }

    /// The caller does not come to hear that the driver has ended.
    #[tokio::test]
    async fn what_a_driver_left_behind_goes_on_when_its_caller_dies_before_it_hears_the_answer() {
        let (dir, drivers) =
            driver(r#"sleep 600 & echo $! >"$0.left"; kill -STOP $PPID; echo '{"status": "Success"}'"#);
        drop(drivers);
        let mut caller = calling(dir.path());
        let left = loop {
            let text = fs::read_to_string(dir.path().join("v~d/d.left")).unwrap_or_default();
            match text.trim().parse::<u32>() {
                Ok(pid) => break pid,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let group = fs::read_to_string(format!("/proc/{left}/stat")).expect("it runs");
        let group = group.split(' ').nth(4).and_then(|group| group.parse().ok()).expect("its group is the driver");
        assert!(is_gone(group).await, "the driver does not end");
        caller.kill().expect("killed");
        caller.wait().expect("it ended");
        // The watcher is gone, whatever it did.
        let members = || {
            let all = fs::read_dir("/proc").expect("read").flatten();
            let stats = all.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
            stats.filter(|stat| stat.split(' ').nth(4) == Some(&group.to_string()) && !stat.contains(") Z ")).count()
        };
        while members() > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(members(), 1, "what serves a volume was ended");
        end(left);
    }

    /// A leader that is stopped when its time begins to run out, and one that gets more of it.
    #[tokio::test]
    async fn a_call_ends_when_its_time_is_over_even_if_its_caller_is_stopped() {
        let (dir, drivers) = driver(LONG);
        drop(drivers);
        // The watcher ends a process of its own, and not the one that the environment calls as it does.
        let mut bystander = std::process::Command::new("sleep").arg("600").spawn().expect("it runs");
        let other = bystander.id().to_string();
        let caller = calling_with(dir.path(), &[("MAY_MS", "5000"), ("clock", other.as_str())]);
        let begun = loop {
            match started(dir.path()) {
                Some(pid) => break pid,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let pid = rustix::process::Pid::from_child(&caller);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
        assert!(fs::exists(format!("/proc/{begun}")).expect("read"), "it has its time");
        assert!(is_gone(begun).await, "{begun} runs on");
        let state = fs::read_to_string(format!("/proc/{}/stat", caller.id())).expect("read");
        assert!(state.contains(") T "), "the caller was stopped: {state}");
        assert_eq!(bystander.try_wait().expect("asked"), None, "somebody else's process was ended");
        for mut process in [caller, bystander] {
            process.kill().expect("killed");
            process.wait().expect("it ended");
        }
    }

    #[tokio::test]
    async fn a_call_goes_on_for_as_long_as_its_caller_gets_more_time() {
        let soon = || Some(tokio::time::Instant::now() + Duration::from_millis(300));
        let (leads, until) = tokio::sync::watch::channel(soon());
        let (dir, drivers) = driver(r#"sleep 1; echo '{"status": "Success"}'"#);
        let drivers = drivers.with_limit(Duration::from_secs(60)).bound_by(until);
        let call = drivers.call("v/d", "detach", &[]);
        let renewed = async {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                leads.send_replace(soon());
            }
        };
        tokio::select! {
            said = call => said.map(drop).expect("it has the time that it takes"),
            () = renewed => {}
        }
        // Without more of it, it is ended.
        leads.send_replace(soon());
        let said = drivers.call("v/d", "attach", &[]).await.expect_err("its time is over").to_string();
        assert!(said.contains("exit status -1"), "{said}");
        drop(dir);
    }

    /// Another process that calls a driver, and waits for it.
    fn calling(drivers: &Path) -> std::process::Child {
        calling_with(drivers, &[])
    }

    fn calling_with(drivers: &Path, more: &[(&str, &str)]) -> std::process::Child {
        std::process::Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "drivers::tests::calls_and_waits", "--ignored", "--nocapture"])
            .env("DRIVERS", drivers)
            .envs(more.iter().copied())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("it runs")
    }

    /// Ends what a driver left behind.
    fn end(pid: u32) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("small")).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("ended");
    }

    /// The directory of the driver, in its own words.
    fn dir_of_driver() -> &'static str {
        r#""$(dirname "$0")""#
    }

    #[tokio::test]
    #[ignore = "it is the process that another test kills"]
    async fn calls_and_waits() {
        let Some(dir) = std::env::var_os("DRIVERS") else { return };
        let may_ms = std::env::var("MAY_MS").ok().and_then(|ms| ms.parse().ok());
        let until = may_ms.map(|ms| tokio::time::Instant::now() + Duration::from_millis(ms));
        let (_leads, until) = tokio::sync::watch::channel(until);
        let drivers = Drivers::new(dir.into()).bound_by(until);
        drivers.call("v/d", "detach", &[]).await.expect_err("it does not end");
    }

    #[tokio::test]
    async fn a_driver_that_waits_in_the_kernel_holds_up_nobody() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return;
        }
        let script = r#"[ "$1" = detach ] && cat "${0%/v~d/d}/stuck/file"; echo '{"status": "Success"}'"#;
        let (dir, drivers) = driver(script);
        let silent = crate::testing::Silent::mount(&dir.path().join("stuck")).expect("mounted");
        let error = drivers.call("v/d", "detach", &[]).await.expect_err("it does not answer").to_string();
        assert!(error.contains("it waits in the kernel"), "{error}");
        let stuck = silent.stuck();
        assert_eq!(stuck.len(), 1, "it was killed, and is still there");
        // What else there is to be done is done meanwhile, for this volume, too.
        drivers.call("v/d", "attach", &[]).await.expect("another call works");
        assert_eq!(silent.stuck(), stuck);
        drop(silent);
        assert!(is_gone(stuck[0]).await, "it ends when it is answered");
    }

    #[tokio::test]
    async fn a_name_does_not_lead_out_of_the_directory() {
        let (_dir, drivers) = driver("exit 0");
        for name in ["", ".", "..", "../sh", "v/..", "/bin/sh", "a/b/c", "v/", "v/d\0"] {
            let error = drivers.call(name, "init", &[]).await.expect_err(name).to_string();
            assert!(error.contains("is not vendor/driver"), "{name:?}: {error}");
        }
        drivers.capabilities("v/absent").await.expect_err("there is none");
    }
}
