//! Holds the machine up while pods end, when somebody shuts it down: systemd-logind, over D-Bus
//! (<https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.login1.html>, "inhibitor locks").
//!
//! ```text
//!  a lock is taken that delays a shutdown ─▶ PrepareForShutdown(true) ─▶ pods end ─▶ the lock is let go ─▶ the machine goes down
//!                   ▲                        PrepareForShutdown(false)
//!                   └──────────────────────────────────┘
//! ```
//!
//! logind waits no longer than its `InhibitDelayMaxSec`, which is raised where pods have more time than that, as upstream's kubelet
//! does it (`pkg/kubelet/nodeshutdown/systemd`). A kubelet that dies lets go of its lock with that: the kernel closes it. Where there
//! is no logind, that is told, and looked for again.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use zbus::proxy::CacheProperties;
use zbus::zvariant::OwnedFd as Passed;
use zbus::{Connection, Proxy, connection};

use super::blocking;
use crate::effects::{In, OpError};

/// How soon it is looked for logind again (upstream's `dbusReconnectPeriod`; where it is not, a minute).
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Where logind reads what takes precedence over its own settings.
const SETTINGS: &str = "/etc/systemd/logind.conf.d";

/// What delays a shutdown: open for as long as it does.
type Lock = Arc<Mutex<Option<OwnedFd>>>;

/// Who holds the machine up.
#[derive(Clone, Debug)]
pub struct Logind {
    /// How long, at most; for no time at all where that is zero.
    time: Duration,
    /// Where to listen; the system's bus without it.
    bus: Option<String>,
    settings: PathBuf,
    lock: Lock,
}

fn failed(doing: &str) -> impl Fn(zbus::Error) -> OpError {
    move |error| OpError::Failed(format!("{doing}: {error}"))
}

impl Logind {
    /// One that holds the machine up for so long at most.
    #[must_use]
    pub fn new(time: Duration) -> Self {
        Self { time, bus: None, settings: PathBuf::from(SETTINGS), lock: Lock::default() }
    }

    /// Follows what becomes of the machine, for ever. Nothing where it is not to be held up.
    pub fn follow(&self, report: impl Fn(In) + Send + Sync + 'static) -> Option<tokio::task::JoinHandle<()>> {
        if self.time.is_zero() {
            return None;
        }
        let this = self.clone();
        Some(tokio::spawn(async move {
            loop {
                let mut held = false;
                let why = match this.watch(&mut held, &report).await {
                    Ok(()) => OpError::Failed("the bus has closed the connection".into()),
                    Err(why) => why,
                };
                // Nobody would hear that the machine is to go down, and let it.
                this.hold(None);
                tracing::warn!(error = %why, "nobody holds this machine up when it is shut down");
                report(In::ShutdownUnheld(why.to_string()));
                tokio::time::sleep(if held { AGAIN.0 } else { AGAIN.1 }).await;
            }
        }))
    }

    /// Holds the machine up no more.
    pub fn let_go(&self) {
        self.hold(None);
    }

    /// Holds this lock in the place of the one that is held, which is let go.
    fn hold(&self, lock: Option<OwnedFd>) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = lock;
    }

    /// Follows one connection to its end.
    async fn watch(&self, held: &mut bool, report: &(impl Fn(In) + Sync)) -> Result<(), OpError> {
        let bus = match &self.bus {
            Some(address) => connection::Builder::address(address.as_str()).map_err(failed("the bus"))?.build().await,
            None => Connection::system().await,
        };
        let bus = bus.map_err(failed("connecting to the bus"))?;
        let manager = manager(&bus).await.map_err(failed("reaching systemd-logind"))?;
        self.raise_delay(&bus, &manager).await?;
        // Who listens first misses nothing.
        let mut news = manager.receive_signal("PrepareForShutdown").await.map_err(failed("listening"))?;
        let goes_down = manager.get_property::<bool>("PreparingForShutdown").await.unwrap_or(false);
        if goes_down {
            // It is too late for a lock, and pods have what time is left.
            report(In::ShutdownBegins);
        } else {
            self.inhibit(&manager).await?;
        }
        tracing::info!(seconds = self.time.as_secs(), "this machine is held up while pods end, when it is shut down");
        *held = true;
        while let Some(message) = news.next().await {
            let begins: bool = message.body().deserialize().map_err(failed("PrepareForShutdown"))?;
            if begins {
                report(In::ShutdownBegins);
            } else {
                let held = self.inhibit(&manager).await;
                report(In::ShutdownCancelled);
                held?;
            }
        }
        Ok(())
    }

    /// Takes the lock that delays a shutdown.
    async fn inhibit(&self, manager: &Proxy<'_>) -> Result<(), OpError> {
        let asked = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay");
        let lock: Passed = manager.call("Inhibit", &asked).await.map_err(failed("delaying a shutdown"))?;
        self.hold(Some(lock.into()));
        Ok(())
    }

    /// Makes sure that logind waits as long as pods may take.
    async fn raise_delay(&self, bus: &Connection, manager: &Proxy<'_>) -> Result<(), OpError> {
        if delay(manager).await? >= self.time {
            return Ok(());
        }
        let (settings, time) = (self.settings.clone(), self.time);
        blocking(move || {
            write_delay(&settings, time).map_err(super::io_error(format!("writing to {}", settings.display())))
        })
        .await?;
        // It reads its settings again when it is told to.
        let systemd = "org.freedesktop.systemd1";
        let of_systemd = Proxy::new(bus, systemd, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager");
        let systemd = of_systemd.await.map_err(failed("reaching systemd"))?;
        let told = systemd.call::<_, _, ()>("KillUnit", &("systemd-logind.service", "all", HANG_UP)).await;
        told.map_err(failed("telling systemd-logind to read its settings"))?;
        let now = delay(manager).await?;
        if now < time {
            let (now, wanted) = (now.as_secs(), time.as_secs());
            return Err(OpError::Failed(format!(
                "systemd-logind delays a shutdown for {now} s at most, and not {wanted} s"
            )));
        }
        Ok(())
    }
}

/// SIGHUP.
const HANG_UP: i32 = 1;

/// logind, whose properties are read anew each time.
async fn manager(bus: &Connection) -> zbus::Result<Proxy<'static>> {
    let builder: zbus::proxy::Builder<'static, Proxy<'static>> = zbus::proxy::Builder::new(bus);
    builder
        .destination("org.freedesktop.login1")?
        .path("/org/freedesktop/login1")?
        .interface("org.freedesktop.login1.Manager")?
        .cache_properties(CacheProperties::No)
        .build()
        .await
}

/// How long logind waits for those who delay a shutdown.
async fn delay(manager: &Proxy<'_>) -> Result<Duration, OpError> {
    let micros = manager.get_property("InhibitDelayMaxUSec").await;
    micros.map(Duration::from_micros).map_err(failed("asking how long a shutdown can be delayed"))
}

/// Writes how long logind is to wait, in the file that upstream's kubelet writes.
fn write_delay(settings: &Path, time: Duration) -> std::io::Result<()> {
    fs::create_dir_all(settings)?;
    let text = format!("# Written by the kubelet\n[Login]\nInhibitDelayMaxSec={}\n", time.as_secs());
    fs::write(settings.join("99-kubelet.conf"), text)
}

#[cfg(test)]
#[path = "logind_tests.rs"]
mod tests;
