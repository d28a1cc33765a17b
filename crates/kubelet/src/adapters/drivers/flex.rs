//! FlexVolume drivers: programs, one call a run, an answer in JSON
//! (<https://github.com/kubernetes/community/blob/master/contributors/devel/sig-storage/flexvolume.md>).
//!
//! A call that a driver does not support has a default that the kubelet does itself. What is not supported
//! is asked for once: the answer is remembered for each driver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{disk, failed, make_dir, mounted, program};
use crate::adapters::{blocking, io_error, mounts};
use crate::effects::OpError;
use crate::volumes::staged::{Secrets, StageInputs};
use crate::volumes::{Driver, Expanding, Origin, Published, Publishing, Staging, VolumeSetup};

/// Upstream limits waitforattach alone, to ten minutes. A driver that hangs in another call would
/// hold its volume for ever, so the same limit is put on all of them.
const LIMIT: Duration = Duration::from_secs(600);

/// What a driver says that it can do; what it leaves out it can, but for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Capabilities {
    /// It attaches and detaches.
    pub attach: bool,
    /// The kubelet may give its volumes to a group.
    #[serde(rename = "fsGroup")]
    pub fs_group: bool,
    /// A larger device needs its file system enlarged.
    #[serde(rename = "requiresFSResize")]
    pub requires_fs_resize: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { attach: true, fs_group: true, requires_fs_resize: true }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Answer {
    status: String,
    message: String,
    device: String,
    attached: bool,
    capabilities: Option<Capabilities>,
}

/// How a driver is told about a volume.
#[derive(Debug)]
enum Told {
    Answer(Answer),
    NotSupported,
}

#[derive(Debug, Default)]
struct Known {
    capabilities: BTreeMap<String, Capabilities>,
    not_supported: BTreeSet<(String, &'static str)>,
}

/// The drivers of a directory.
#[derive(Clone, Debug)]
pub struct Flex {
    dir: PathBuf,
    node: String,
    known: Arc<Mutex<Known>>,
}

impl Flex {
    /// Drivers below a directory, told the node's name.
    #[must_use]
    pub fn new(dir: PathBuf, node: &str) -> Self {
        Self { dir, node: node.to_owned(), known: Arc::default() }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // Entries are put in whole.
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn program(&self, driver: &str) -> PathBuf {
        let name = driver.rsplit('/').next().unwrap_or(driver);
        self.dir.join(driver.replace('/', "~")).join(name)
    }

    async fn call(&self, driver: &str, verb: &'static str, args: &[String]) -> Result<Told, OpError> {
        let key = (driver.to_owned(), verb);
        if self.known().not_supported.contains(&key) {
            return Ok(Told::NotSupported);
        }
        let mut all = vec![verb.to_owned()];
        all.extend_from_slice(args);
        let path = self.program(driver);
        let (code, text) = program(&path, &all, LIMIT).await?;
        // The arguments hold secrets and are not shown.
        let about = format!("FlexVolume driver {driver}, {verb}");
        let answer: Answer = match serde_json::from_str(&text) {
            Ok(answer) => answer,
            Err(error) => {
                let start: String = text.chars().take(200).collect();
                let code = code.unwrap_or(-1);
                return failed(format!("{about}: exit status {code}, and no answer in JSON ({error}): {start:?}"));
            }
        };
        match (answer.status.as_str(), code) {
            ("Not supported", _) => {
                self.known().not_supported.insert(key);
                Ok(Told::NotSupported)
            }
            ("Success", Some(0)) => Ok(Told::Answer(answer)),
            ("Success", code) => {
                failed(format!("{about}: it says Success and ends with exit status {}", code.unwrap_or(-1)))
            }
            (_, _) => failed(format!("{about}: {}", answer.message)),
        }
    }

    /// What a driver can; it is initialised at the first question.
    ///
    /// # Errors
    /// When there is no such driver, or it fails.
    pub async fn capabilities(&self, driver: &str) -> Result<Capabilities, OpError> {
        if let Some(known) = self.known().capabilities.get(driver) {
            return Ok(*known);
        }
        let found = match self.call(driver, "init", &[]).await? {
            Told::Answer(answer) => answer.capabilities.unwrap_or_default(),
            Told::NotSupported => return failed(format!("FlexVolume driver {driver} does not support init")),
        };
        self.known().capabilities.insert(driver.to_owned(), found);
        Ok(found)
    }

    /// Attaches, waits for the device, and mounts it for the node. Returns the device.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn stage(&self, s: &Staging, inputs: &StageInputs) -> Result<Option<String>, OpError> {
        let Some((driver, options)) = options(&s.origin, &inputs.secrets, None) else {
            return failed("not a FlexVolume");
        };
        if !self.capabilities(driver).await?.attach {
            // Mounting it for a pod is all that there is.
            return Ok(None);
        }
        let device = match self.call(driver, "attach", &[options.clone(), self.node.clone()]).await? {
            Told::Answer(answer) => answer.device,
            Told::NotSupported => String::new(),
        };
        let device = match self.call(driver, "waitforattach", &[device.clone(), options.clone()]).await? {
            Told::Answer(answer) if !answer.device.is_empty() => answer.device,
            _ => device,
        };
        if device.is_empty() {
            return failed(format!("FlexVolume driver {driver} attached no device"));
        }
        if s.origin.block {
            return Ok(Some(device));
        }
        make_dir(&s.path)?;
        if mounted(&s.path)?.is_none() {
            let args = [s.path.clone(), device.clone(), options];
            if let Told::NotSupported = self.call(driver, "mountdevice", &args).await? {
                let o = &s.origin;
                disk::format_and_mount(&device, &s.path, &o.fs_type, o.read_only, &o.mount_options).await?;
            }
            if mounted(&s.path)?.is_none() {
                return failed(format!(
                    "FlexVolume driver {driver} says that it mounted {}, and nothing is there",
                    s.path
                ));
            }
        }
        Ok(Some(device))
    }

    /// Unmounts it for the node and detaches it.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn unstage(&self, s: &Staging) -> Result<(), OpError> {
        let Driver::Flex { driver, .. } = &s.origin.driver else { return Ok(()) };
        if !self.capabilities(driver).await?.attach {
            return Ok(());
        }
        if mounted(&s.path)?.is_some()
            && let Told::NotSupported = self.call(driver, "unmountdevice", std::slice::from_ref(&s.path)).await?
        {
            let path = s.path.clone();
            blocking(move || mounts::unmount(&path).map_err(io_error(format!("unmounting {path}")))).await?;
        }
        if mounted(&s.path)?.is_some() {
            return failed(format!(
                "FlexVolume driver {driver} says that it unmounted {}, and it is still there",
                s.path
            ));
        }
        // Unmounted here and still in use: somebody else has it.
        if let Some(device) = s.device.clone() {
            blocking(move || Ok(disk::prove_closed(&device)?)).await?;
        }
        // The default name is used also where the driver has getvolumename, as upstream does.
        self.call(driver, "detach", &[s.origin.spec_name.clone(), self.node.clone()]).await.map(drop)
    }

    /// Lets the file system follow a device that has grown (`expandfs`). How large it was is not known here.
    ///
    /// # Errors
    /// What the driver or the program of the file system says.
    pub async fn expand(&self, e: &Expanding) -> Result<(), OpError> {
        let p = &e.published;
        let Some((driver, options)) = options(&p.origin, &e.secrets, None) else { return failed("not a FlexVolume") };
        if p.origin.block || !self.capabilities(driver).await?.requires_fs_resize {
            return Ok(());
        }
        let at = p.stage_path.clone();
        let Some(there) = mounted(&at)? else { return failed(format!("{at} is not mounted")) };
        let device = mounts::device_of(&there).map_err(io_error(format!("looking for the device at {at}")))?;
        let args = [options, device.clone(), at.clone(), e.bytes().to_string(), "0".to_owned()];
        if let Told::NotSupported = self.call(driver, "expandfs", &args).await? {
            disk::grow(&device, &at).await?;
        }
        Ok(())
    }

    /// Mounts it for a pod.
    ///
    /// # Errors
    /// What the driver or the kernel says.
    pub async fn publish(&self, setup: &VolumeSetup, p: &Publishing) -> Result<(), OpError> {
        let origin = &p.published.origin;
        let Some((driver, options)) = options(origin, &p.secrets, Some((setup, p))) else {
            return failed("not a FlexVolume");
        };
        make_dir(&setup.path)?;
        if let Told::NotSupported = self.call(driver, "mount", &[setup.path.clone(), options]).await? {
            let (from, to, read_only) = (p.published.stage_path.clone(), setup.path.clone(), origin.read_only);
            if mounted(&from)?.is_none() {
                return failed(format!("{from} is not mounted"));
            }
            blocking(move || mounts::bind(&from, &to, read_only).map_err(io_error(format!("binding {from} to {to}"))))
                .await?;
        }
        Ok(())
    }

    /// Takes it from a pod.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn unpublish(&self, path: &str, p: &Published) -> Result<(), OpError> {
        let Driver::Flex { driver, .. } = &p.origin.driver else { return Ok(()) };
        if mounted(path)?.is_some() || Path::new(path).exists() {
            self.call(driver, "unmount", &[path.to_owned()]).await?;
        }
        Ok(())
    }
}

/// The options that go with every call, as JSON.
fn options<'a>(
    origin: &'a Origin,
    secrets: &Secrets,
    pod: Option<(&VolumeSetup, &Publishing)>,
) -> Option<(&'a str, String)> {
    let Driver::Flex { driver, options, .. } = &origin.driver else { return None };
    let mut all: Map<String, Value> = Map::new();
    let mut put = |key: &str, value: String| all.insert(format!("kubernetes.io/{key}"), Value::String(value));
    put("fsType", origin.fs_type.clone());
    put("readwrite", if origin.read_only { "ro" } else { "rw" }.to_owned());
    put("pvOrVolumeName", origin.spec_name.clone());
    for (key, value) in &secrets.0 {
        put(&format!("secret/{key}"), base64::engine::general_purpose::STANDARD.encode(value));
    }
    if let Some((setup, p)) = pod {
        if let Some(group) = setup.fs_group {
            put("mounterArgs.FsGroup", group.to_string());
        }
        put("pod.name", p.pod.name.clone());
        put("pod.namespace", p.pod.namespace.clone());
        put("pod.uid", p.pod.uid.to_string());
        put("serviceAccount.name", p.pod.service_account.clone());
    }
    // The user's win.
    all.extend(options.iter().map(|(k, v)| (k.clone(), Value::String(v.clone()))));
    Some((driver, Value::Object(all).to_string()))
}
