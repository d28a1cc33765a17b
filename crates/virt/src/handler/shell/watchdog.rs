//! The kernel's watchdog device: opened, set, petted and closed as the core says.
//!
//! Whoever opens it starts it, and whoever closes it without having written a `V` leaves it running: then the machine is
//! reset, unless another process opens it in time. That is what it is for here: an agent that dies, or hangs, while guests
//! run that may be started elsewhere. What was opened is written down, so that `carrack down` can close it in good order.
//!
//! Upstream of the device's behaviour: the kernel's `Documentation/watchdog/watchdog-api.rst` and
//! `Documentation/ABI/testing/sysfs-class-watchdog`.

pub mod trial;

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use carrack_engine::Time;
use carrack_launcher::promise::now_ns;
use rustix::ioctl::{Getter, Opcode, Updater, ioctl, opcode};

use super::anchor::Anchor;
use super::{boot_id, lock, record};
use crate::fence::{GUEST_RUNS, RESET_AFTER};
use crate::handler::effects::{Armed, OpError, Outcome, Reply, WatchdogCall};

/// Its numbers, from `linux/watchdog.h`.
const GROUP: u8 = b'W';
const GET_SUPPORT: Opcode = opcode::read::<Info>(GROUP, 0);
const SET_TIMEOUT: Opcode = opcode::read_write::<i32>(GROUP, 6);
const GET_TIMEOUT: Opcode = opcode::read::<i32>(GROUP, 7);
const SETS_TIMEOUT: u32 = 0x0080;
const MAGIC_CLOSE: u32 = 0x0100;

/// `struct watchdog_info`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    options: u32,
    firmware: u32,
    identity: [u8; 32],
}

/// An open device.
#[derive(Debug)]
struct Device(File);

impl Device {
    fn open(path: &Path) -> Result<Self, Refused> {
        let device = path.display();
        // What is no device must not be written to.
        if std::fs::metadata(path).is_ok_and(|meta| !meta.file_type().is_char_device()) {
            return Err(format!("{device} is no device").into());
        }
        File::options().write(true).open(path).map(Self).map_err(|error| {
            let is = |errno: rustix::io::Errno| error.raw_os_error() == Some(errno.raw_os_error());
            let held = is(rustix::io::Errno::BUSY);
            let why = if is(rustix::io::Errno::NOENT) {
                format!("{device} is not there: the machine has no watchdog, or its driver is not loaded")
            } else if held {
                format!("{device} is in use by another process (systemd's RuntimeWatchdogSec, watchdogd?)")
            } else {
                format!("{device} cannot be opened: {error}")
            };
            Refused { held, why }
        })
    }

    #[expect(unsafe_code, reason = "the watchdog's time has no other way in than its ioctl")]
    fn set_timeout(&self, timeout_s: u32) -> io::Result<()> {
        let mut seconds = i32::try_from(timeout_s).unwrap_or(i32::MAX);
        // SAFETY: WDIOC_SETTIMEOUT reads and writes one int.
        unsafe { ioctl(self.0.as_fd(), Updater::<SET_TIMEOUT, i32>::new(&mut seconds)) }.map_err(io::Error::from)
    }

    #[expect(unsafe_code, reason = "not every driver shows its time in another way")]
    fn timeout(&self) -> io::Result<u32> {
        // SAFETY: WDIOC_GETTIMEOUT writes one int.
        let seconds = unsafe { ioctl(self.0.as_fd(), Getter::<GET_TIMEOUT, i32>::new()) }?;
        u32::try_from(seconds).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }

    #[expect(unsafe_code, reason = "not every driver shows its abilities in another way")]
    fn info(&self) -> io::Result<Info> {
        // SAFETY: WDIOC_GETSUPPORT writes one struct of this layout, whose bits are valid whatever they are.
        unsafe { ioctl(self.0.as_fd(), Getter::<GET_SUPPORT, Info>::new()) }.map_err(io::Error::from)
    }

    fn pet(&mut self) -> io::Result<()> {
        self.0.write_all(b"\0")
    }

    /// Closes it in good order: it stops, if its driver lets it.
    fn close(mut self) -> io::Result<()> {
        self.0.write_all(b"V")
    }
}

/// What the kernel shows of a device, without opening it.
fn shown(path: &Path, attribute: &str) -> Option<String> {
    let meta = std::fs::metadata(path).ok()?;
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    // The old name, `/dev/watchdog`, is the first device under a number of its own.
    let directory = match (major, minor) {
        (10, 130) => "/sys/class/watchdog/watchdog0".to_owned(),
        _ => format!("/sys/dev/char/{major}:{minor}"),
    };
    std::fs::read_to_string(format!("{directory}/{attribute}")).ok().map(|text| text.trim().to_owned())
}

/// Whether closing does not stop a device, as the kernel shows it. Where it does not, nobody relies on closing.
fn stays(path: &Path) -> bool {
    shown(path, "nowayout").is_none_or(|text| text != "0")
}

/// After how long without a petting a device resets the machine, as the kernel shows it.
#[must_use]
pub fn set_to(path: &Path) -> Option<Duration> {
    shown(path, "timeout")?.parse().ok().map(Duration::from_secs)
}

/// Where it is written down what was opened.
fn note(state_dir: &Path) -> PathBuf {
    state_dir.join("watchdog")
}

/// What is written down: the device, and the boot that it was opened in. After another one it does not run.
fn noted(device: &Path) -> String {
    format!("{}\n{}\n", device.display(), boot_id())
}

/// A device that is open, and its time.
#[derive(Debug)]
struct Held {
    device: Device,
    timeout: Duration,
}

/// The machine's watchdog, as the handler holds it.
#[derive(Debug)]
pub(super) struct Watchdog {
    path: Option<PathBuf>,
    note: Option<PathBuf>,
    open: Mutex<Option<Held>>,
}

impl Watchdog {
    /// One at this path; what is opened is written down in the handler's directory, if there is one.
    pub fn new(path: Option<PathBuf>, state_dir: Option<&Path>) -> Self {
        Self { path, note: state_dir.map(note), open: Mutex::default() }
    }

    /// Does what the core asked for, if it is not too late for that.
    pub fn call(&self, call: WatchdogCall, anchor: &Anchor) -> Outcome {
        let mut open = lock(&self.open);
        match call {
            WatchdogCall::Open { timeout_s, not_after } => {
                let path = self.path.as_deref().ok_or_else(|| OpError("no watchdog was named".to_owned()))?;
                let limit_ns = limit(not_after, Duration::from_secs(timeout_s.into()), anchor);
                let noted = self.is_noted(path);
                if !noted {
                    let failed =
                        |error| OpError(format!("cannot write down that {} is opened: {error}", path.display()));
                    self.write_note(path).map_err(failed)?;
                }
                if is_over(limit_ns) {
                    let dropped = if noted { Ok(()) } else { self.drop_note() };
                    return dropped.map(|()| Reply::TooLate).map_err(|error| OpError(error.to_string()));
                }
                let opened = Device::open(path).map_err(|refused| refused.why);
                let opened = opened.and_then(|device| armed(device, timeout_s, path));
                match opened {
                    Ok((device, armed)) => {
                        *open = Some(Held { device, timeout: Duration::from_secs(armed.timeout_s.into()) });
                        Ok(Reply::Armed(armed))
                    }
                    // What an earlier process has written down still holds.
                    Err(why) if noted => Err(OpError(why)),
                    Err(why) => {
                        let Err(error) = self.drop_note() else { return Err(OpError(why)) };
                        Err(OpError(format!("{why}; and what is written down of it is not removed: {error}")))
                    }
                }
            }
            WatchdogCall::Pet { not_after } => {
                let held = open.as_mut().ok_or_else(|| OpError("the watchdog is not open".to_owned()))?;
                let limit_ns = limit(not_after, held.timeout, anchor);
                if is_over(limit_ns) {
                    return Ok(Reply::TooLate);
                }
                held.device.pet().map(|()| Reply::Done).map_err(|error| OpError(error.to_string()))
            }
            WatchdogCall::Close => {
                let closed = open.take().map_or(Ok(()), |held| held.device.close());
                closed.map_err(|error| OpError(error.to_string()))?;
                self.drop_note().map(|()| Reply::Done).map_err(|error| OpError(error.to_string()))
            }
        }
    }

    fn write_note(&self, device: &Path) -> io::Result<()> {
        let Some(note) = &self.note else { return Ok(()) };
        note.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        record::replace(note, noted(device).as_bytes())
    }

    fn is_noted(&self, device: &Path) -> bool {
        // Also by a version that did not write down the boot.
        let state_dir = self.note.as_deref().and_then(Path::parent);
        state_dir.and_then(left).as_deref() == Some(device)
    }

    fn drop_note(&self) -> io::Result<()> {
        self.note.as_deref().map_or(Ok(()), drop_note)
    }
}

/// The last moment for a call to a watchdog of this time, on the machine's own clock; zero where what it rests on was before
/// the machine was suspended.
fn limit(not_after: Option<Time>, timeout: Duration, anchor: &Anchor) -> Option<u64> {
    let after = (GUEST_RUNS + RESET_AFTER).saturating_sub(timeout);
    not_after.map(|at| anchor.boot_ns(at, after).unwrap_or(0))
}

/// A process that was held up since the core decided finds out here.
fn is_over(limit_ns: Option<u64>) -> bool {
    limit_ns.is_some_and(|limit| now_ns() >= limit)
}

/// Sets a device that was just opened; one that is of no use is closed in good order.
fn armed(device: Device, timeout_s: u32, path: &Path) -> Result<(Device, Armed), String> {
    let why = match set(&device, timeout_s, stays(path)) {
        Ok(armed) => return Ok((device, armed)),
        Err(why) => format!("{}: {why}", path.display()),
    };
    device.close().map_err(|error| format!("{why}; and it cannot be closed: {error}"))?;
    Err(why)
}

/// Sets a device's time, and reads what its driver made of it.
fn set(device: &Device, timeout_s: u32, stays: bool) -> Result<Armed, String> {
    let info = device.info().map_err(|error| format!("its driver does not say what it can: {error}"))?;
    if info.options & MAGIC_CLOSE == 0 && !stays {
        return Err("its driver stops it when the process that holds it dies, so that it guards nothing".to_owned());
    }
    if info.options & SETS_TIMEOUT != 0
        && let Err(error) = device.set_timeout(timeout_s)
    {
        tracing::warn!(%error, timeout_s, "the watchdog does not take its time");
    }
    let timeout_s = device.timeout().map_err(|error| format!("its driver does not say its time: {error}"))?;
    let identity = info.identity.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Armed { identity: String::from_utf8_lossy(identity).into_owned(), timeout_s, stays })
}

fn drop_note(note: &Path) -> io::Result<()> {
    match std::fs::remove_file(note) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The device that a handler with this state has left running since the machine was started, or still holds.
#[must_use]
pub fn left(state_dir: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(note(state_dir)).ok()?;
    let mut lines = text.lines();
    let (device, boot) = (lines.next()?, lines.next().unwrap_or_default());
    // Which boot it was, or which one this is, may not be known.
    let now = boot_id();
    (boot.is_empty() || now.is_empty() || boot == now).then(|| device.into())
}

/// Why a device cannot be had, or not be closed.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// Another process holds it: it can be had once that has ended.
    pub held: bool,
    /// For people.
    pub why: String,
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self { held: false, why }
    }
}

/// Closes in good order what a handler left running that is at its end, because a person takes its node out of service: the
/// device that was found to be [`left`], whether it is still written down or not. A handler that was about to open it once more
/// has looked at what was written down before that is dropped here, and does not write it down again.
///
/// # Errors
/// It cannot be closed; the machine will be reset. Or its driver lets nobody stop it.
pub fn release(state_dir: &Path, path: &Path) -> Result<(), Refused> {
    let note = note(state_dir);
    let dropped = || drop_note(&note).map_err(|error| Refused::from(error.to_string()));
    let stays = stays(path);
    let device = match Device::open(path) {
        Ok(device) => device,
        // A device that is not there bites nobody.
        Err(_) if !path.exists() => return dropped(),
        Err(refused) => return Err(refused),
    };
    device.close().map_err(|error| format!("{} cannot be closed: {error}", path.display()))?;
    if stays {
        let why = format!("the driver of {} does not stop it: it will reset the machine", path.display());
        return Err(why.into());
    }
    dropped()
}

#[cfg(test)]
mod tests {
    use super::*;
    use carrack_engine::shell::Clock;
    use std::time::Duration;

    fn call(path: Option<PathBuf>, dir: &Path, call: WatchdogCall) -> Outcome {
        Watchdog::new(path, Some(dir)).call(call, &Anchor::new(Clock::default()))
    }

    #[test]
    fn what_is_no_watchdog_is_refused_by_name_and_not_held() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = |path: PathBuf| {
            let dir = dir.path();
            call(Some(path), dir, WatchdogCall::Open { timeout_s: 8, not_after: None }).expect_err("refused").0
        };
        let said = open(dir.path().join("none"));
        assert!(said.contains("none is not there"), "{said}");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        let said = open(file);
        assert!(said.contains("file is no device"), "{said}");
        assert_eq!(std::fs::read(dir.path().join("file")).expect("a file"), b"", "it is left as it was");
        let said = open("/dev/null".into());
        assert!(said.contains("/dev/null: its driver does not say what it can"), "{said}");
        assert_eq!(left(dir.path()), None);
        assert_eq!(call(None, dir.path(), WatchdogCall::Close), Ok(Reply::Done));
        assert!(call(None, dir.path(), WatchdogCall::Pet { not_after: None }).is_err());
    }

    #[test]
    fn a_petting_that_was_held_up_is_none() {
        let clock = Clock::default();
        let (now, anchor, timeout) = (clock.now(), Anchor::new(clock), Duration::from_secs(8));
        let over = |at: Time| is_over(limit(Some(at), timeout, &anchor));
        assert!(!over(now + Duration::from_secs(60)));
        assert!(over(now - Duration::from_secs(1)));
        // Nothing is opened then, and nothing written down of it.
        let dir = tempfile::tempdir().expect("a directory");
        let open = WatchdogCall::Open { timeout_s: 8, not_after: Some(now - Duration::from_secs(1)) };
        let held = Watchdog::new(Some("/dev/null".into()), Some(dir.path()));
        assert_eq!(held.call(open, &anchor), Ok(Reply::TooLate));
        assert_eq!(left(dir.path()), None);
    }

    #[test]
    fn what_was_left_running_is_written_down_until_it_is_closed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = Path::new("/dev/no-such-watchdog");
        // The second one is of a version that did not know which boot it was.
        for text in [noted(path), "/dev/no-such-watchdog".to_owned()] {
            record::replace(&note(dir.path()), text.as_bytes()).expect("written");
            assert_eq!(left(dir.path()).as_deref(), Some(path));
            assert_eq!(release(dir.path(), path), Ok(()));
            assert!(!note(dir.path()).exists());
        }
        // The machine was started anew since: what was left does not run, and must not be opened.
        record::replace(&note(dir.path()), b"/dev/null\nanother-boot\n").expect("written");
        assert_eq!(left(dir.path()), None);
    }

    #[test]
    fn what_is_not_written_down_any_more_is_closed_all_the_same() {
        let dir = tempfile::tempdir().expect("a directory");
        // It takes what is written to it, and does not say that it stops.
        let path = Path::new("/dev/null");
        record::replace(&note(dir.path()), noted(path).as_bytes()).expect("written");
        let device = left(dir.path()).expect("it is written down");
        // A handler opens it once more at its end, and what it rests on is dropped in between.
        drop_note(&note(dir.path())).expect("dropped");
        let refused = release(dir.path(), &device).expect_err("it is looked at");
        assert!(refused.why.contains("will reset the machine") && !refused.held, "{refused:?}");
    }
}
