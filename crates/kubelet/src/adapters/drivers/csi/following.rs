//! The directory of registration sockets, and who is behind each of them.
//!
//! ```text
//!            ┌──────────────── changed, or two seconds later ────────────────┐
//!            ▼                                                               │
//!  look: who went is forgotten, what is new is asked ──▶ answers are taken ──┘
//! ```
//!
//! All are asked at once, and however long one takes, the others do not wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrack_csi::registration::registration_client::RegistrationClient;
use carrack_csi::registration::{InfoRequest, RegistrationStatus};
use tokio::task::{Id, JoinError, JoinHandle, JoinSet};

use super::super::{failed, make_dir};
use super::{Csi, Registered, Socket, call, dial};
use crate::adapters::sockets::{self, File, MAX_ASKED};
use crate::effects::{In, OpError};
use crate::server::logs::changes::Changes;
use crate::volumes::CsiNodeInfo;

/// Looked at at least this often: a socket that refused may answer now.
const AGAIN: Duration = Duration::from_secs(2);

/// Drivers' names for which somebody is being registered: nobody else is meanwhile.
#[derive(Clone, Debug, Default)]
struct Names(Arc<Mutex<BTreeSet<String>>>);

/// A name, until this is dropped.
struct Claim {
    names: Names,
    name: String,
}

impl Names {
    fn claimed(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Names are put in and taken out whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a name; none while another has it.
    fn claim(&self, name: &str) -> Option<Claim> {
        let is_free = self.claimed().insert(name.to_owned());
        is_free.then(|| Claim { names: self.clone(), name: name.to_owned() })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.names.claimed().remove(&self.name);
    }
}

/// A driver that was connected to.
pub(super) struct New {
    name: String,
    registered: Registered,
    about: CsiNodeInfo,
    claim: Claim,
}

/// What a socket said: none where it announces no CSI driver.
type Answer = (Socket, Result<Option<New>, OpError>);

/// What is being asked, and what need not be.
#[derive(Default)]
pub(super) struct Asking {
    /// Who has not answered yet.
    pub tasks: JoinSet<Answer>,
    under_way: Vec<(Id, Socket)>,
    /// Sockets that announce something else. They say the same until they are others.
    others: BTreeMap<PathBuf, File>,
    names: Names,
}

impl Asking {
    fn is_asked(&self, socket: &Socket) -> bool {
        self.under_way.iter().any(|(_, asked)| asked == socket) || self.others.contains_key(&socket.path)
    }
}

impl Csi {
    /// Follows the directory of registration sockets for ever.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn follow(&self, dir: PathBuf, report: impl Fn(In) + Send + Sync + 'static) -> Result<JoinHandle<()>, OpError> {
        make_dir(&dir)?;
        let this = self.clone();
        Ok(tokio::spawn(async move {
            let changes = Changes::of(&dir);
            let mut asking = Asking::default();
            loop {
                this.look(&dir, &mut asking, &report).await;
                let due = tokio::time::sleep(AGAIN);
                tokio::pin!(due);
                loop {
                    tokio::select! {
                        () = changes.next() => break,
                        () = &mut due => break,
                        Some(answer) = asking.tasks.join_next_with_id() => {
                            this.answered(answer, &mut asking, &report);
                        }
                    }
                }
            }
        }))
    }

    /// Asks what is new in the directory, and forgets what went.
    pub(super) async fn look(&self, dir: &Path, asking: &mut Asking, report: &(impl Fn(In) + Send + Sync)) {
        let sockets = match sockets::listed(dir).await {
            Ok(sockets) => sockets,
            // What is not known changes nothing.
            Err(error) => {
                tracing::warn!(%error, dir = %dir.display(), "registration sockets cannot be looked at");
                return;
            }
        };
        let gone: Vec<String> = {
            let drivers = self.drivers();
            let is_gone = |d: &Registered| !sockets.contains_key(&d.socket.path);
            drivers.iter().filter(|(_, d)| is_gone(d)).map(|(name, _)| name.clone()).collect()
        };
        for name in gone {
            self.forget(&name, report);
        }
        asking.others.retain(|path, file| sockets.get(path) == Some(file));
        for (path, file) in sockets {
            let socket = Socket { path, file };
            // Another one at the place of a driver's is that of its next life: it is registered anew, and may have other limits.
            let is_known = asking.is_asked(&socket) || self.drivers().values().any(|d| d.socket == socket);
            if is_known || asking.under_way.len() >= MAX_ASKED {
                continue;
            }
            let (this, names, asked) = (self.clone(), asking.names.clone(), socket.clone());
            let task = asking.tasks.spawn(async move {
                let outcome = this.register(&asked, &names).await;
                (asked, outcome)
            });
            asking.under_way.push((task.id(), socket));
        }
    }

    /// Takes what a socket said.
    pub(super) fn answered(
        &self,
        answer: Result<(Id, Answer), JoinError>,
        asking: &mut Asking,
        report: &(impl Fn(In) + Send + Sync),
    ) {
        let id = answer.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        asking.under_way.retain(|(other, _)| *other != id);
        match answer {
            Ok((_, (socket, Ok(Some(new))))) => self.came(&socket, new, report),
            Ok((_, (socket, Ok(None)))) => {
                asking.others.insert(socket.path, socket.file);
            }
            Ok((_, (socket, Err(error)))) => {
                tracing::debug!(%error, socket = %socket.path.display(), "not registered");
            }
            Err(error) => tracing::error!(%error, "a registration socket was not asked to the end"),
        }
    }

    /// A driver is registered. Who was behind its socket before is not any more.
    fn came(&self, socket: &Socket, new: New, report: &(impl Fn(In) + Send + Sync)) {
        let New { name, registered, about, claim } = new;
        tracing::info!(driver = name, "CSI driver registered");
        let others: Vec<String> = {
            let mut drivers = self.drivers();
            drivers.insert(name.clone(), registered);
            let was_here = |(other, d): &(&String, &Registered)| **other != name && d.socket.path == socket.path;
            drivers.iter().filter(was_here).map(|(other, _)| other.clone()).collect()
        };
        drop(claim);
        for other in others {
            self.forget(&other, report);
        }
        report(In::CsiUp { driver: name, info: about });
    }

    fn forget(&self, name: &str, report: &impl Fn(In)) {
        tracing::warn!(driver = name, "CSI driver unregistered");
        self.drivers().remove(name);
        report(In::CsiDown { driver: name.to_owned() });
    }

    async fn register(&self, socket: &Socket, names: &Names) -> Result<Option<New>, OpError> {
        let mut registration = RegistrationClient::new(dial(socket.path.clone()).await?);
        let info = call("GetInfo", registration.get_info(InfoRequest {})).await?;
        if info.r#type != "CSIPlugin" {
            return Ok(None);
        }
        // Whoever is being registered under this name may not get it. A registrar that is refused ends, so this one is told
        // nothing yet, and asked again.
        let Some(claim) = names.claim(&info.name) else {
            return failed(format!("another driver of the name {} is being registered", info.name));
        };
        let outcome = if self.registered_elsewhere(&info.name, socket).await {
            failed(format!("another driver of the name {} is registered already", info.name))
        } else {
            let connected = self.connect(socket, &info).await;
            connected.map(|(registered, about)| New { name: info.name, registered, about, claim })
        };
        let status = RegistrationStatus {
            plugin_registered: outcome.is_ok(),
            error: outcome.as_ref().err().map(ToString::to_string).unwrap_or_default(),
        };
        call("NotifyRegistrationStatus", registration.notify_registration_status(status)).await?;
        outcome.map(Some)
    }

    /// Whether a driver of this name has been announced by another socket, which still answers.
    async fn registered_elsewhere(&self, name: &str, socket: &Socket) -> bool {
        let other = self.drivers().get(name).map(|d| d.socket.path.clone()).filter(|path| *path != socket.path);
        match other {
            Some(path) => dial(path).await.is_ok(),
            None => false,
        }
    }
}
