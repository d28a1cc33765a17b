//! Device plugins that announce themselves by a socket of their own, as CSI drivers do, instead of calling the kubelet's
//! (upstream: `pkg/kubelet/pluginmanager`, plugins of type `DevicePlugin`).
//!
//! ```text
//!  plugins_registry/<name>-reg.sock ──GetInfo──▶ resource, endpoint, versions ──▶ as after Register
//!                                   ◀─NotifyRegistrationStatus
//! ```
//!
//! Who takes the socket away hangs up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrack_csi::registration::registration_client::RegistrationClient;
use carrack_csi::registration::{InfoRequest, RegistrationStatus};
use carrack_deviceplugin::VERSION;
use tokio::task::{JoinHandle, JoinSet};

use super::{Plugins, name_problem, within};
use crate::adapters::sockets::{self, CONNECT, File, MAX_ASKED};
use crate::effects::In;

/// The type of what announces devices.
const TYPE: &str = "DevicePlugin";
/// How often the directory is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// What a socket announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    /// Nothing for the device manager, or nothing that it can do with.
    Other,
    /// This resource, registered in this epoch.
    Devices(String, u64),
}

impl Plugins {
    /// Follows the directory of registration sockets for ever.
    #[must_use]
    pub fn follow(&self, dir: PathBuf) -> JoinHandle<()> {
        let this = self.clone();
        tokio::spawn(async move {
            let mut known = BTreeMap::new();
            loop {
                this.look(&dir, &mut known).await;
                tokio::time::sleep(LOOK).await;
            }
        })
    }

    /// Takes what is new in the directory, and lets go of what went.
    pub(super) async fn look(&self, dir: &Path, known: &mut BTreeMap<PathBuf, (File, Announced)>) {
        // What is not known changes nothing.
        let Ok(sockets) = sockets::listed(dir).await else { return };
        let (mut kept, mut gone) = (BTreeMap::new(), Vec::new());
        for (path, (file, what)) in std::mem::take(known) {
            let here = sockets.get(&path);
            match &what {
                Announced::Devices(resource, epoch) if here.is_none() => gone.push((resource.clone(), *epoch)),
                // One whose plugin hung up is asked anew. Where another has taken its place the two do not take turns.
                Announced::Devices(resource, _) if !self.is_connected(resource) => {}
                _ if here == Some(&file) => {
                    kept.insert(path, (file, what));
                }
                _ => {}
            }
        }
        *known = kept;
        for (resource, epoch) in gone {
            self.hang_up(&resource, epoch);
        }
        // All at once: however many hang, a look takes no longer than one of them.
        let mut asked = JoinSet::new();
        for (path, file) in sockets.into_iter().filter(|(path, _)| !known.contains_key(path)).take(MAX_ASKED) {
            let this = self.clone();
            asked.spawn(async move {
                let what = this.announced(&path).await;
                (path, file, what)
            });
        }
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((path, file, Ok(what))) => {
                    known.insert(path, (file, what));
                }
                Ok((path, _, Err(error))) => {
                    tracing::debug!(error, socket = %path.display(), "nothing was registered");
                }
                Err(error) => tracing::error!(%error, "a registration socket was not asked to the end"),
            }
        }
    }

    fn is_connected(&self, resource: &str) -> bool {
        self.plugins().contains_key(resource)
    }

    async fn announced(&self, socket: &Path) -> Result<Announced, String> {
        let channel = sockets::dial(socket.to_owned(), "connecting to a registration socket").await?;
        let mut registration = RegistrationClient::new(channel);
        let info = within(CONNECT, registration.get_info(InfoRequest {})).await.map_err(|e| e.to_string())?;
        if info.r#type != TYPE {
            return Ok(Announced::Other);
        }
        let endpoint = if info.endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(&info.endpoint) };
        let is_known = info.supported_versions.iter().any(|version| version == VERSION);
        let unknown = || format!("versions {:?} are not supported, {VERSION} is", info.supported_versions);
        let problem = if is_known { name_problem(&info.name) } else { Some(unknown()) };
        let is_for_good = problem.is_some();
        let taken = match problem {
            None => self.take(info.name.clone(), endpoint).await,
            Some(problem) => Err(problem),
        };
        let error = taken.as_ref().err().cloned().unwrap_or_default();
        let status = RegistrationStatus { plugin_registered: taken.is_ok(), error };
        if let Err(error) = within(CONNECT, registration.notify_registration_status(status)).await {
            tracing::debug!(%error, resource = info.name, "a device plugin does not want to hear how it was registered");
        }
        match taken {
            Ok(epoch) => Ok(Announced::Devices(info.name, epoch)),
            // It says the same until it is another.
            Err(error) if is_for_good => {
                self.refuse(&info.name, &error);
                Ok(Announced::Other)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets go of a plugin, unless it has been registered anew.
    fn hang_up(&self, resource: &str, epoch: u64) {
        if let Some(connected) = self.forget(resource, epoch) {
            connected.watch.abort();
            (self.0.report)(In::PluginDown { resource: resource.to_owned(), epoch });
        }
    }
}
