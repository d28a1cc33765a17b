//! Volumes of drivers on the real machine: staged for the node, published to pods, and undone.
//!
//! What is mounted already is left as it is: after a restart the mount table and the record say what there
//! is, and no driver is called about a volume that a container may be writing to. Nothing is undone for the
//! node while any mount namespace has it mounted, other than as a copy that goes with the node's mount, or anybody has the
//! device open.

pub mod csi;
pub mod dead;
pub mod flex;
mod nfs;
pub mod usage;

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use carrack_disks::filesystem as disk;
use carrack_disks::{namespaces, ownership};

use super::{blocking, io_error, mounts, remove};
use crate::effects::{OpError, Outcome, Reply};
use crate::runtime::Uid;
use crate::volumes::staged::StageInputs;
use crate::volumes::{Driver, Expanding, GroupPolicy, Published, Publishing, Staging, VolumeSetup};

/// Drivers of both kinds.
#[derive(Clone, Debug)]
pub struct Drivers {
    /// CSI.
    pub csi: csi::Csi,
    /// FlexVolume.
    pub flex: flex::Flex,
    /// The kubelet's directory.
    pub root: PathBuf,
    /// This boot.
    pub boot_id: String,
    /// How full volumes are.
    pub usages: usage::Usages,
    /// Looks at what may have lost its server.
    pub looks: dead::Looks,
}

fn failed<T>(text: impl Into<String>) -> Result<T, OpError> {
    Err(OpError::Failed(text.into()))
}

fn mounted(path: &str) -> Result<Option<mounts::MountPoint>, OpError> {
    mounts::at(path).map_err(io_error("reading the mount table"))
}

/// Whether a pod's part of a volume is there. The kernel is asked about the path alone; off the event loop, since the server of
/// what is mounted may not answer.
async fn is_there(path: String, block: bool) -> Result<bool, OpError> {
    blocking(move || {
        let linked = block && fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink());
        Ok(linked || mounts::is_mount_point(&path).map_err(io_error(format!("looking for a mount at {path}")))?)
    })
    .await
}

/// Makes a directory. What is mounted at its place may not answer, and is not asked whether it is one.
fn make_dir(path: impl AsRef<Path>) -> Result<(), OpError> {
    let path = path.as_ref();
    if mounts::is_mount_point(&path.to_string_lossy()).unwrap_or(false) {
        return Ok(());
    }
    fs::create_dir_all(path).map_err(io_error(format!("creating {}", path.display())))
}

fn is_block(path: &str) -> Result<bool, OpError> {
    Ok(fs::metadata(path).map_err(io_error(format!("looking at {path}")))?.file_type().is_block_device())
}

impl Drivers {
    /// Makes a volume ready for the node, or makes sure that it is.
    ///
    /// # Errors
    /// What the driver or the kernel says.
    pub async fn stage(&self, s: &Staging, inputs: &StageInputs) -> Outcome {
        if let Some(there) = mounted(&s.path)? {
            // The disk and the record agree: it is as it was left.
            let identity = format!("{} {}", self.boot_id, there.device);
            if s.identity.as_ref() == Some(&identity) {
                return Ok(Reply::Staged { device: s.device.clone(), identity: Some(identity) });
            }
            if !inputs.confirm_only {
                self.looks.clear_dead(&s.origin.driver, &s.path).await?;
            }
        }
        if inputs.confirm_only && !matches!(s.origin.driver, Driver::Local { .. }) {
            return failed(
                "it was there before the kubelet's restart and is not found now, and what it is made from cannot be read",
            );
        }
        let device = match &s.origin.driver {
            Driver::Local { path } => self.stage_local(s, path).await?,
            Driver::Flex { .. } => self.flex.stage(s, inputs).await?,
            Driver::Csi { .. } => {
                self.csi.stage(s, inputs).await?;
                None
            }
            Driver::HostPath { .. } | Driver::Nfs { .. } => None,
        };
        let there = mounted(&s.path)?;
        Ok(Reply::Staged { device, identity: there.map(|m| format!("{} {}", self.boot_id, m.device)) })
    }

    async fn stage_local(&self, s: &Staging, path: &str) -> Result<Option<String>, OpError> {
        // It may be on a file server, which may not answer: nobody else waits for that.
        let at = path.to_owned();
        let (is_device, is_dir) = blocking(move || Ok((is_block(&at)?, Path::new(&at).is_dir()))).await?;
        match (is_device, s.origin.block) {
            (true, false) => {
                make_dir(&s.path)?;
                disk::format_and_mount(path, &s.path, &s.origin.fs_type, s.origin.read_only, &s.origin.mount_options)
                    .await?;
                Ok(Some(path.to_owned()))
            }
            (true, true) => Ok(Some(path.to_owned())),
            (false, true) => failed(format!("{path} is no block device")),
            (false, false) if is_dir => Ok(None),
            (false, false) => failed(format!("{path} is neither a directory nor a block device")),
        }
    }

    /// Undoes the staging of a volume.
    ///
    /// # Errors
    /// While anybody has it, or when that is not known; and what the driver or the kernel says.
    pub async fn unstage(&self, s: &Staging) -> Outcome {
        let proof = s.clone();
        let (boot, plugins) = (self.boot_id.clone(), self.root.join("plugins"));
        if let Some(device) = blocking(move || prove_free(&proof, &boot, &plugins)).await? {
            disk::prove_unused(&device).await?;
        }
        match &s.origin.driver {
            Driver::Flex { .. } => self.flex.unstage(s).await?,
            Driver::Csi { .. } => self.csi.unstage(s).await?,
            Driver::Local { .. } | Driver::HostPath { .. } | Driver::Nfs { .. } => {}
        }
        let path = s.path.clone();
        blocking(move || {
            if mounted(&path)?.is_some() {
                mounts::unmount(&path).map_err(io_error(format!("unmounting {path}")))?;
            }
            remove::unmounted(&path).map_err(io_error(format!("removing {path}")))
        })
        .await?;
        Ok(Reply::Done)
    }

    /// Gives a pod its part of a volume, or makes sure that it has it.
    ///
    /// # Errors
    /// What the driver or the kernel says.
    pub async fn publish(&self, setup: &VolumeSetup, p: &Publishing) -> Outcome {
        let outcome = self.give(setup, p).await;
        if outcome.is_ok() {
            let mounted = usage::Mounted { path: setup.path.clone(), published: p.published.clone() };
            self.usages.mounted(&setup.uid, &setup.name, mounted);
        }
        outcome
    }

    async fn give(&self, setup: &VolumeSetup, p: &Publishing) -> Outcome {
        let path = &setup.path;
        let mut there = is_there(path.clone(), p.published.origin.block).await?;
        if there && !p.confirm_only && !p.published.origin.block {
            there = !self.looks.clear_dead(&p.published.origin.driver, path).await?;
        }
        if there {
            self.keep_read_only(setup, p).await?;
            // What is there is left as it is; a driver may want to renew what it wrote there.
            let renewed = p.republish && !p.confirm_only;
            if renewed {
                self.csi.publish(setup, p).await?;
            }
            self.give_to_group(setup, p, !renewed).await?;
            return Ok(Reply::Done);
        }
        if p.confirm_only {
            return failed(
                "it was there before the kubelet's restart and is not found now, and what it is made from cannot be read",
            );
        }
        let origin = &p.published.origin;
        match &origin.driver {
            Driver::Csi { .. } => self.csi.publish(setup, p).await?,
            _ if origin.block => self.link(setup, p)?,
            Driver::Flex { .. } => self.flex.publish(setup, p).await?,
            Driver::Nfs { server, path: exported } => {
                make_dir(path)?;
                nfs::mount(origin, server, exported, path).await?;
            }
            Driver::Local { path: local } => {
                let staged = &p.published.stage_path;
                let from = if mounted(staged)?.is_some() { staged } else { local };
                make_dir(path)?;
                let binding = format!("binding {from} to {path}");
                let (from, to, read_only) = (from.clone(), path.clone(), origin.read_only);
                blocking(move || mounts::bind(&from, &to, read_only).map_err(io_error(binding))).await?;
            }
            Driver::HostPath { .. } => {}
        }
        self.give_to_group(setup, p, false).await?;
        Ok(Reply::Done)
    }

    /// Makes what is there read-only where it is to be: an earlier life may have ended after it bound it, and before that. No
    /// container has it then.
    async fn keep_read_only(&self, setup: &VolumeSetup, p: &Publishing) -> Result<(), OpError> {
        let origin = &p.published.origin;
        if !origin.read_only || origin.block {
            return Ok(());
        }
        let is_bound = match &origin.driver {
            Driver::Local { .. } => true,
            // Else its driver mounted it. Nobody writes to what does not answer.
            Driver::Flex { .. } => mounted(&p.published.stage_path)?.is_some() && self.looks.answers(&setup.path).await,
            Driver::Csi { .. } | Driver::HostPath { .. } | Driver::Nfs { .. } => false,
        };
        if !is_bound {
            return Ok(());
        }
        let path = setup.path.clone();
        blocking(move || mounts::make_read_only(&path).map_err(io_error(format!("making {path} read-only")))).await
    }

    /// Gives what is in a volume to the pod's group, where that is this kubelet's to do. What was there before is given only where
    /// that was cut short: the root is given last.
    async fn give_to_group(&self, setup: &VolumeSetup, p: &Publishing, was_there: bool) -> Result<(), OpError> {
        let Some(group) = setup.fs_group.filter(|_| p.group_policy != GroupPolicy::None) else { return Ok(()) };
        let is_ours = match &p.published.origin.driver {
            Driver::Flex { driver, .. } => self.flex.capabilities(driver).await?.fs_group,
            Driver::Csi { driver, .. } => match self.csi.mounts_for_groups(driver) {
                Some(by_driver) => !by_driver,
                None => return self.is_given(&setup.path, group, driver).await,
            },
            // Who has it already keeps what its group may do.
            Driver::Local { .. } => !self.others_have(&setup.path)?,
            _ => true,
        };
        // What was there may have a server that stands still, and then it is left as it is.
        if is_ours && (!was_there || self.looks.answers(&setup.path).await) {
            let only_on_mismatch = was_there || p.group_policy == GroupPolicy::OnRootMismatch;
            let path = setup.path.clone();
            blocking(move || Ok(ownership::own(Path::new(&path), group, only_on_mismatch)?)).await?;
        }
        Ok(())
    }

    /// Makes sure that what was there before a restart has been given to the pod's group, by whoever is to do that: while its driver
    /// has not registered, that is not known. A driver that gives it itself may show the group otherwise; then it is waited for, too.
    async fn is_given(&self, path: &str, group: i64, driver: &str) -> Result<(), OpError> {
        let root = PathBuf::from(path);
        let answers = self.looks.answers(path).await;
        if answers && blocking(move || Ok(ownership::is_own(&root, group)?)).await? {
            return Ok(());
        }
        failed(format!(
            "driver {driver} has not registered yet, and whether it gives volumes to the pod's group is not known"
        ))
    }

    /// Whether another pod has what is mounted at a path (upstream's `GetMountRefs`, `pkg/volume/local`).
    fn others_have(&self, path: &str) -> Result<bool, OpError> {
        let pods = self.root.join("pods");
        let all = mounts::at_or_below(&pods.to_string_lossy()).map_err(io_error("reading the mount table"))?;
        let Some(own) = all.iter().find(|m| m.path == path) else { return Ok(false) };
        let is_volume = |at: &str| Path::new(at).ancestors().nth(2).is_some_and(|dir| dir.ends_with("volumes"));
        let same = |m: &&mounts::MountPoint| m.path != path && (&m.device, &m.root) == (&own.device, &own.root);
        Ok(all.iter().filter(same).any(|m| is_volume(&m.path)))
    }

    /// Lets the device and the file system of a volume follow its size.
    ///
    /// # Errors
    /// What the driver says.
    pub async fn expand(&self, e: &Expanding) -> Result<(), OpError> {
        match &e.published.origin.driver {
            Driver::Csi { .. } => self.csi.expand(e).await,
            Driver::Flex { .. } => self.flex.expand(e).await,
            Driver::Local { .. } | Driver::HostPath { .. } | Driver::Nfs { .. } => Ok(()),
        }
    }

    /// A device of a pod is a link to the node's.
    fn link(&self, setup: &VolumeSetup, p: &Publishing) -> Result<(), OpError> {
        let Some(device) = p.staging.as_ref().and_then(|s| s.device.clone()) else {
            return failed("the driver named no device");
        };
        if !is_block(&device)? {
            return failed(format!("{device} is no block device"));
        }
        let path = Path::new(&setup.path);
        if let Some(parent) = path.parent() {
            make_dir(parent)?;
        }
        std::os::unix::fs::symlink(&device, path).map_err(io_error(format!("linking {}", path.display())))
    }

    /// Takes a pod's part of a volume away. Parts of it that were bound for containers go first.
    ///
    /// # Errors
    /// When something is busy; then what is mounted stays mounted. And what the driver says.
    pub async fn unpublish(&self, uid: &Uid, name: &str, path: &str, p: &Published) -> Outcome {
        self.usages.unmounted(uid, name);
        let parts = self.root.join("pods").join(uid.as_ref()).join("volume-subpaths").join(name);
        blocking(move || super::volumes::unmount_below(&parts.to_string_lossy())).await?;
        match &p.origin.driver {
            Driver::Csi { .. } => self.csi.unpublish(path, p, uid, name).await?,
            Driver::Flex { .. } if !p.origin.block => self.flex.unpublish(path, p).await?,
            _ => {}
        }
        let path = path.to_owned();
        blocking(move || {
            super::volumes::unmount_below(&path)?;
            match fs::symlink_metadata(&path) {
                Ok(m) if !m.is_dir() => fs::remove_file(&path).map_err(io_error(format!("removing {path}"))),
                _ => remove::unmounted(&path).map_err(io_error(format!("removing {path}"))),
            }
        })
        .await?;
        Ok(Reply::Done)
    }
}

/// Whether a path, or what is left of it, lies on the file system of this number.
fn is_of(number: &str, path: &Path) -> Result<bool, OpError> {
    use std::os::unix::fs::MetadataExt as _;
    for at in path.ancestors() {
        match fs::metadata(at) {
            Ok(found) => {
                let device = found.dev();
                return Ok(number == format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(io_error(format!("looking at {}", at.display()))(e)),
        }
    }
    Ok(false)
}

/// The node's own mounts of a file system that a volume is, beside that of the volume itself. Where there is no device, a file
/// server's directory say, two volumes may be one file system, and each would wait for the other to go.
fn of_node(path: &str, number: &str, staged: &[mounts::MountPoint]) -> Vec<String> {
    let beside = staged.iter().filter(|m| number.starts_with("0:") && m.device == number);
    std::iter::once(path.to_owned()).chain(beside.map(|m| m.path.clone())).collect()
}

/// Whether a volume's file system is free of everybody but the node's own mounts, which are in a directory. Returns the device
/// that must be unused besides.
fn prove_free(s: &Staging, boot_id: &str, plugins: &Path) -> Result<Option<String>, OpError> {
    let there = mounted(&s.path)?;
    let recorded = s.identity.as_deref().and_then(|i| i.strip_prefix(boot_id)).map(str::trim);
    if let (Some(there), Some(recorded)) = (&there, recorded)
        && there.device != recorded
    {
        return failed(format!("{} has device {} and was mounted with {recorded}", s.path, there.device));
    }
    let number = there.as_ref().map(|m| m.device.as_str()).or(recorded);
    // What is bound from the node's own disk has no device to give back. Once it is unmounted, nothing tells it from the rest
    // of that disk; while it is mounted, its root does.
    let is_nodes = match (&there, number) {
        (None, Some(number)) => is_of(number, Path::new(&s.path))?,
        _ => false,
    };
    let shared = is_nodes || matches!(s.origin.driver, Driver::Local { .. }) && s.device.is_none();
    let root = there.as_ref().map_or("/", |m| m.root.as_str());
    if let Some(number) = number.filter(|_| !shared) {
        let staged = mounts::at_or_below(&plugins.to_string_lossy()).map_err(io_error("reading the mount table"))?;
        let ours = of_node(&s.path, number, &staged);
        let found = namespaces::elsewhere(number, root, &ours).map_err(io_error("looking at mount namespaces"))?;
        if let Some((pid, at)) = found {
            return failed(format!("the volume is mounted at {at}, as process {pid} sees it"));
        }
    }
    // While it is mounted for the node, that has claimed it.
    let device = s.device.clone().filter(|d| there.is_none() && is_block(d).unwrap_or(false));
    Ok(device)
}

#[cfg(test)]
pub(super) mod tests;
