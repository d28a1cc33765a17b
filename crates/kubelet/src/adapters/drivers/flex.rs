//! FlexVolumes on this node. A call that a driver does not support has a default, which is done here
//! (pkg/volume/flexvolume, the files `*-defaults.go`).
//!
//! ```text
//!   attach, by the node or by the control plane ─▶ waitforattach ─▶ mountdevice ─▶ mount ─▶ unmount ─▶ unmountdevice
//!                                                    └─ expandfs, when the device has grown          detach, by the same ◀┘
//! ```

use std::path::{Path, PathBuf};

use base64::Engine as _;
use carrack_disks::DiskError;
use carrack_flexvolume::{Capabilities, Drivers, Told, Volume};
use carrack_types::volume::DEVICE_PATH;

use super::{disk, failed, is_block, make_dir, mounted};
use crate::adapters::{blocking, io_error, mounts};
use crate::effects::OpError;
use crate::volumes::staged::{Attached, Secrets, StageInputs};
use crate::volumes::{Driver, Expanding, Origin, Published, Publishing, Staging, VolumeSetup};

/// The drivers of a directory.
#[derive(Clone, Debug)]
pub struct Flex {
    drivers: Drivers,
    node: String,
}

impl Flex {
    /// Drivers below a directory, told the node's name.
    #[must_use]
    pub fn new(dir: PathBuf, node: &str) -> Self {
        Self { drivers: Drivers::new(dir), node: node.to_owned() }
    }

    async fn call(&self, driver: &str, verb: &'static str, args: &[String]) -> Result<Told, DiskError> {
        self.drivers.call(driver, verb, args).await
    }

    /// What a driver can; it is initialised at the first question.
    ///
    /// # Errors
    /// When there is no such driver, or it fails.
    pub async fn capabilities(&self, driver: &str) -> Result<Capabilities, OpError> {
        Ok(self.drivers.capabilities(driver).await?)
    }

    /// The device of a volume that is attached to this node: by the control plane, or by the driver now.
    async fn device(&self, s: &Staging, inputs: &StageInputs, driver: &str, options: &str) -> Result<String, OpError> {
        let device = match (&inputs.attached, s.by_control_plane) {
            (Attached::With { context, .. }, _) => context.get(DEVICE_PATH).cloned().unwrap_or_default(),
            (_, true) => return failed(format!("volume {:?} is not attached yet", s.origin.spec_name)),
            (_, false) => match self.call(driver, "attach", &[options.to_owned(), self.node.clone()]).await? {
                Told::Answer(answer) => answer.device,
                Told::NotSupported => String::new(),
            },
        };
        Ok(match self.call(driver, "waitforattach", &[device.clone(), options.to_owned()]).await? {
            Told::Answer(answer) if !answer.device.is_empty() => answer.device,
            _ => device,
        })
    }

    /// Attaches, waits for the device, and mounts it for the node. Returns the device, where there is one: a driver that
    /// knows of none mounts its volumes for each pod alone.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn stage(&self, s: &Staging, inputs: &StageInputs) -> Result<Option<String>, OpError> {
        let Some((driver, options)) = options(&s.origin, &inputs.secrets, None) else {
            return failed("not a FlexVolume");
        };
        let can = self.capabilities(driver).await?;
        if !can.attach {
            // Mounting it for a pod is all that there is.
            return Ok(None);
        }
        let device = self.device(s, inputs, driver, &options).await?;
        if s.origin.block {
            return match device.is_empty() {
                true => failed(format!("FlexVolume driver {driver} attached no device")),
                false => Ok(Some(device)),
            };
        }
        make_dir(&s.path)?;
        if mounted(&s.path)?.is_none() {
            let args = [s.path.clone(), device.clone(), options];
            if let Told::NotSupported = self.call(driver, "mountdevice", &args).await? {
                if device.is_empty() {
                    return Ok(None);
                }
                // A driver may name anything, and a file of the node would become a file system.
                if !is_block(&device)? {
                    return failed(format!("FlexVolume driver {driver} named {device}, which is no block device"));
                }
                let o = &s.origin;
                if can.requires_fs_resize && !o.read_only {
                    // What has grown while it was mounted nowhere follows here, which takes no more than writing to it.
                    disk::grow_unmounted(&device).await?;
                }
                disk::format_and_mount(&device, &s.path, &o.fs_type, o.read_only, &o.mount_options).await?;
            }
            if mounted(&s.path)?.is_none() {
                return failed(format!(
                    "FlexVolume driver {driver} says that it mounted {}, and nothing is there",
                    s.path
                ));
            }
        }
        Ok(Some(device).filter(|device| !device.is_empty()))
    }

    /// Unmounts it for the node, and detaches it where this node attached it.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn unstage(&self, s: &Staging) -> Result<(), OpError> {
        let Driver::Flex { driver, .. } = &s.origin.driver else { return Ok(()) };
        // What has a device was attached, whatever the driver says of itself by now.
        if s.device.is_none() && !self.capabilities(driver).await?.attach {
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
        if let Some(device) = &s.device {
            disk::prove_unused(device).await?;
        }
        if s.by_control_plane {
            return Ok(());
        }
        // The default name is used also where the driver has getvolumename, as upstream does.
        self.call(driver, "detach", &[s.origin.spec_name.clone(), self.node.clone()]).await?;
        Ok(())
    }

    /// Lets the file system follow a device that has grown (`expandfs`).
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
        let args = [options, device.clone(), at.clone(), e.bytes().to_string(), e.from_bytes().to_string()];
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
    let encode = |value: &[u8]| base64::engine::general_purpose::STANDARD.encode(value);
    let mut more: Vec<(String, String)> =
        secrets.0.iter().map(|(key, value)| (format!("secret/{key}"), encode(value))).collect();
    if let Some((setup, p)) = pod {
        let mut put = |key: &str, value: String| more.push((key.to_owned(), value));
        if let Some(group) = setup.fs_group {
            put("mounterArgs.FsGroup", group.to_string());
        }
        put("pod.name", p.pod.name.clone());
        put("pod.namespace", p.pod.namespace.clone());
        put("pod.uid", p.pod.uid.to_string());
        put("serviceAccount.name", p.pod.service_account.clone());
    }
    let (name, fs_type, read_only) = (origin.spec_name.as_str(), origin.fs_type.as_str(), origin.read_only);
    Some((driver, Volume { name, fs_type, read_only, options }.options(more)))
}
