#![expect(
    clippy::disallowed_types,
    reason = "zbus puts the properties of an interface into a map of the standard library"
)]
//! A real bus, and who plays systemd-logind on it: logind itself runs under systemd alone.

use std::io::{PipeReader, Read as _};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;

const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// A bus of the test's own.
async fn bus(dir: &Path) -> (Child, String) {
    let (socket, config) = (dir.join("bus"), dir.join("bus.conf"));
    let text = format!(
        "<busconfig><type>session</type><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context='default'>\
         <allow send_destination='*'/><allow receive_sender='*'/><allow own='*'/></policy></busconfig>",
        socket.display()
    );
    fs::write(&config, text).unwrap();
    let mut daemon = Command::new("dbus-daemon");
    daemon.arg(format!("--config-file={}", config.display())).args(["--nofork", "--print-address"]);
    let mut daemon = daemon.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("dbus-daemon is there");
    // It says where it listens once it does.
    let mut said = String::new();
    BufReader::new(daemon.stdout.take().unwrap()).read_line(&mut said).await.unwrap();
    assert!(said.contains("unix:path="), "{said}");
    (daemon, format!("unix:path={}", socket.display()))
}

/// Who plays logind, and systemd, which lets it read its settings.
#[derive(Clone)]
struct Plays {
    /// How long it lets a shutdown be delayed, in microseconds.
    delay: Arc<AtomicU64>,
    /// Settings have no effect on it.
    deaf: bool,
    goes_down: Arc<AtomicBool>,
    settings: PathBuf,
    /// What it was asked for, and its end of each lock.
    locks: UnboundedSender<(String, PipeReader)>,
}

struct OfLogind(Plays);

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl OfLogind {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> Passed {
        let (mine, theirs) = std::io::pipe().unwrap();
        self.0.locks.send((format!("{what} {who} {mode}: {why}"), mine)).unwrap();
        OwnedFd::from(theirs).into()
    }
    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn delay(&self) -> u64 {
        self.0.delay.load(Ordering::SeqCst)
    }
    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> bool {
        self.0.goes_down.load(Ordering::SeqCst)
    }
}

struct OfSystemd(Plays);

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl OfSystemd {
    fn kill_unit(&self, unit: &str, who: &str, signal: i32) {
        assert_eq!((unit, who, signal), ("systemd-logind.service", "all", 1));
        let text = fs::read_to_string(self.0.settings.join("99-kubelet.conf")).unwrap();
        let seconds = text.lines().find_map(|l| l.strip_prefix("InhibitDelayMaxSec=")?.parse::<u64>().ok()).unwrap();
        if !self.0.deaf {
            self.0.delay.store(seconds * 1_000_000, Ordering::SeqCst);
        }
    }
}

/// A machine with logind, and a kubelet that holds it up for thirty seconds.
struct Machine {
    dir: tempfile::TempDir,
    daemon: Child,
    plays: Connection,
    locks: UnboundedReceiver<(String, PipeReader)>,
    heard: UnboundedReceiver<In>,
    logind: Logind,
    following: tokio::task::JoinHandle<()>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl Machine {
    async fn new(delay_s: u64, deaf: bool, goes_down: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (daemon, address) = bus(dir.path()).await;
        let (given, locks) = unbounded_channel();
        let plays = Plays {
            delay: Arc::new(AtomicU64::new(delay_s * 1_000_000)),
            deaf,
            goes_down: Arc::new(AtomicBool::new(goes_down)),
            settings: dir.path().join("settings"),
            locks: given,
        };
        let logind = Logind {
            time: Duration::from_secs(30),
            bus: Some(address.clone()),
            settings: plays.settings.clone(),
            lock: Lock::default(),
        };
        let served = connection::Builder::address(address.as_str()).unwrap();
        let served = served.serve_at(PATH, OfLogind(plays.clone())).unwrap();
        let served = served.serve_at("/org/freedesktop/systemd1", OfSystemd(plays)).unwrap();
        let served = served.name("org.freedesktop.login1").unwrap().name("org.freedesktop.systemd1").unwrap();
        let plays = served.build().await.unwrap();
        let (report, heard) = unbounded_channel();
        let following = logind.follow(move |event| drop(report.send(event))).unwrap();
        Self { dir, daemon, plays, locks, heard, logind, following }
    }

    async fn says(&self, begins: bool) {
        self.plays.emit_signal(None::<&str>, PATH, MANAGER, "PrepareForShutdown", &(begins,)).await.unwrap();
    }

    async fn heard(&mut self) -> String {
        format!("{:?}", self.heard.recv().await.unwrap())
    }

    async fn lock(&mut self) -> PipeReader {
        let (asked, lock) = self.locks.recv().await.unwrap();
        assert_eq!(asked, "shutdown kubelet delay: Kubelet needs time to handle node shutdown");
        lock
    }
}

/// Waits until nobody holds a lock any more, whose other end this is.
async fn freed(mut lock: PipeReader) {
    let read = tokio::task::spawn_blocking(move || lock.read(&mut [0]));
    assert_eq!(read.await.unwrap().unwrap(), 0);
}

/// Whether nobody holds a lock any more, whose other end this is.
fn is_free(lock: &PipeReader) -> bool {
    let mut fds = [rustix::event::PollFd::new(lock, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
}

#[tokio::test]
async fn a_shutdown_waits_until_it_is_let_go() {
    for (delay_s, written) in [(45, false), (5, true)] {
        let mut machine = Machine::new(delay_s, false, false).await;
        let first = machine.lock().await;
        let settings = machine.dir.path().join("settings/99-kubelet.conf");
        assert_eq!(settings.exists(), written, "{delay_s}");
        machine.says(true).await;
        assert_eq!(machine.heard().await, "ShutdownBegins");
        assert!(!is_free(&first), "{delay_s}: nobody let it go");
        machine.logind.let_go();
        freed(first).await;
        // It is not shut down after all, and held up again.
        machine.says(false).await;
        let second = machine.lock().await;
        assert_eq!(machine.heard().await, "ShutdownCancelled");
        assert!(!is_free(&second));
        machine.logind.let_go();
        freed(second).await;
    }
}

#[tokio::test]
async fn a_machine_that_goes_down_already_is_told_at_once() {
    let mut machine = Machine::new(45, false, true).await;
    assert_eq!(machine.heard().await, "ShutdownBegins");
    assert!(machine.locks.try_recv().is_err(), "it is too late for a lock");
}

#[tokio::test]
async fn who_listens_no_more_holds_nothing_up() {
    let mut machine = Machine::new(45, false, false).await;
    let lock = machine.lock().await;
    let nonsense = ("soon",);
    machine.plays.emit_signal(None::<&str>, PATH, MANAGER, "PrepareForShutdown", &nonsense).await.unwrap();
    let heard = machine.heard().await;
    assert!(heard.contains("ShutdownUnheld"), "{heard}");
    freed(lock).await;
}

#[tokio::test]
async fn who_cannot_hold_a_machine_up_says_so() {
    let mut deaf = Machine::new(5, true, false).await;
    let heard = deaf.heard().await;
    assert!(heard.contains("ShutdownUnheld") && heard.contains("for 5 s at most, and not 30 s"), "{heard}");
    // The bus goes away.
    let mut machine = Machine::new(45, false, false).await;
    let _lock = machine.lock().await;
    machine.daemon.kill().await.unwrap();
    let heard = machine.heard().await;
    assert!(heard.contains("ShutdownUnheld"), "{heard}");
    // There is none; and who does not want it looks for none.
    let nowhere = Logind { bus: Some("unix:path=/nowhere".into()), ..Logind::new(Duration::from_secs(1)) };
    let (report, mut heard) = unbounded_channel();
    let following = nowhere.follow(move |event| drop(report.send(event))).unwrap();
    let heard = format!("{:?}", heard.recv().await.unwrap());
    assert!(heard.contains("connecting to the bus"), "{heard}");
    following.abort();
    assert!(Logind::new(Duration::ZERO).follow(drop).is_none());
}
