//! Makes ready on disk what QEMU needs: overlays, volumes with configuration, empty images, the command line.

use crate::argv::{self, Backing, MachineError, NodeKind};
use crate::image::{self, ImageFormat, InspectError};
use crate::iso::{self, VolumeError};
use crate::layout::Layout;
use crate::pinning;
use crate::receive;
use crate::spec::{DiskSource, DiskSpec, MachineSpec};
use crate::tpm;
use crate::writer::{Claim, Held, TakeError};
use rustix::fs::CWD;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

mod persistent;

/// Making an overlay writes a few hundred kilobytes.
const IMAGE_DEADLINE: Duration = Duration::from_secs(30);

/// What the firmware's variables are called where disks are told of.
const NVRAM: &str = "with the firmware's variables";

/// Why a machine could not be made ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error("the disk {disk}: {source}")]
    Image { disk: String, source: InspectError },
    #[error("the disk {disk}: {source}")]
    Volume { disk: String, source: VolumeError },
    #[error("the disk {disk}: {reason}")]
    Persistent { disk: String, reason: String },
    #[error("the disk {disk}: {source}")]
    Taken { disk: String, source: TakeError },
    #[error("the disk {disk}: qemu-img failed: {detail}")]
    QemuImg { disk: String, detail: String },
    #[error("the trusted platform module: {0}")]
    Tpm(String),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// The disks that a machine may write from its start on, and nobody else.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    /// Images with records.
    pub images: Vec<Held>,
    /// Block devices.
    pub devices: Vec<Claim>,
}

/// Prepares `spec` and returns QEMU's command line, with the disks that it may write from now on.
pub(crate) async fn prepare(spec: &MachineSpec, layout: &Layout) -> Result<(Vec<String>, Disks), PrepareError> {
    let directory = layout.machine_dir();
    let write = |path: PathBuf| move |source| PrepareError::Write { path, source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(write(directory.clone()))?;
    // Before an image is even made.
    let mut held = Disks::default();
    let refused = |disk: &str| {
        let disk = disk.to_owned();
        move |source| PrepareError::Taken { disk, source }
    };
    for (name, device) in devices(spec) {
        held.devices.push(Claim::take(device).await.map_err(refused(name))?);
    }
    for (name, image) in images(spec) {
        let Some(writer) = spec.writer() else { break };
        held.images.push(Held::take(image, &writer).await.map_err(refused(name))?);
    }
    let mut backings = Vec::with_capacity(spec.disks.len());
    for (index, disk) in spec.disks.iter().enumerate() {
        backings.push(backing(disk, index, &directory).await?);
    }
    if let Some((_, template)) = spec.board.firmware.files() {
        let template = Path::new(template);
        match &spec.board.nvram {
            Some(kept) => persistent::variables(kept, template)
                .map_err(|reason| PrepareError::Persistent { disk: NVRAM.to_owned(), reason })?,
            // A machine that is started anew finds its firmware's settings as they come.
            None => {
                let vars = layout.firmware_vars();
                std::fs::copy(template, &vars).map_err(write(vars))?;
            }
        }
    }
    let argv = argv::argv(spec, layout, &backings)?;
    if spec.board.tpm {
        pinning::step_aside(&spec.cpu).map_err(PrepareError::Tpm)?;
        tpm::start(layout).await.map_err(PrepareError::Tpm)?;
    }
    let file = layout.spec_file();
    let text = serde_json::to_vec(spec).map_err(|error| write(file.clone())(error.into()))?;
    replace(&file, &text).map_err(write(file))?;
    Ok((argv, held))
}

/// The disks that have one writer at a time, and what is behind them. Variables that outlive the machine are written by one run
/// at a time as a disk is.
fn exclusive(spec: &MachineSpec) -> impl Iterator<Item = (&str, &Path)> {
    let disks = spec.disks.iter().filter_map(|disk| Some((disk.name.as_str(), disk.exclusive_image()?)));
    disks.chain(spec.board.nvram.iter().map(|kept| (NVRAM, kept.as_path())))
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Those with records. A block device has no room beside it.
fn images(spec: &MachineSpec) -> impl Iterator<Item = (&str, &Path)> {
    exclusive(spec).filter(|(_, path)| !is_device(path))
}

/// Those that are block devices.
fn devices(spec: &MachineSpec) -> impl Iterator<Item = (&str, &Path)> {
    exclusive(spec).filter(|(_, path)| is_device(path))
}

/// The block devices that a machine which runs already has, for a monitor that takes over.
pub(crate) fn claimed(spec: &MachineSpec) -> Vec<PathBuf> {
    devices(spec).map(|(_, device)| device.to_owned()).collect()
}

/// The images that a machine which runs already has, for a monitor that takes over.
pub(crate) fn resume(spec: &MachineSpec) -> Vec<Held> {
    let resumed = images(spec).filter_map(|(disk, image)| match Held::resume(image, &spec.writer()?) {
        Ok(held) => Some(held),
        Err(error) => {
            tracing::error!(%error, disk, "who writes the disk cannot be followed");
            None
        }
    });
    resumed.collect()
}

/// Makes ready what is behind one disk. Files are named by the disk's place: its name is the user's.
async fn backing(disk: &DiskSpec, index: usize, directory: &Path) -> Result<Backing, PrepareError> {
    let overlay = directory.join(format!("disk-{index}.qcow2"));
    let volume = directory.join(format!("disk-{index}.iso"));
    let written = |source| PrepareError::Volume { disk: disk.name.clone(), source };
    // Some guests write to the volume that they are configured from; it is thrown away anyway.
    let made =
        |path: &Path| Backing::Direct { path: path.to_path_buf(), format: ImageFormat::Raw, node: NodeKind::default() };
    Ok(match &disk.source {
        DiskSource::Ephemeral { path } => {
            let format =
                image::inspect(path).map_err(|source| PrepareError::Image { disk: disk.name.clone(), source })?;
            if disk.read_only || disk.cdrom {
                Backing::Direct { path: path.clone(), format, node: NodeKind::default() }
            } else {
                create(&disk.name, &overlay, CreateFrom::Image { path, format }).await?;
                Backing::Overlay { overlay, base: path.clone(), format }
            }
        }
        DiskSource::Persistent { path, create_bytes, tolerance_percent } => {
            let failed = |reason| PrepareError::Persistent { disk: disk.name.clone(), reason };
            let tolerance_percent = tolerance_percent.unwrap_or(persistent::TOLERANCE_PERCENT);
            let node = persistent::ready(path, *create_bytes, tolerance_percent).map_err(failed)?;
            Backing::Direct { path: path.clone(), format: ImageFormat::Raw, node }
        }
        DiskSource::Empty { capacity_bytes } => {
            let capacity_bytes = persistent::whole(*capacity_bytes);
            create(&disk.name, &overlay, CreateFrom::Nothing { capacity_bytes }).await?;
            Backing::Direct { path: overlay, format: ImageFormat::Qcow2, node: NodeKind::default() }
        }
        DiskSource::NoCloud(data) => {
            iso::no_cloud(&volume, data).map_err(written)?;
            made(&volume)
        }
        DiskSource::ConfigDrive(data) => {
            iso::config_drive(&volume, data).map_err(written)?;
            made(&volume)
        }
        DiskSource::Files { directory, label } => {
            iso::directory(&volume, label, directory).map_err(written)?;
            made(&volume)
        }
    })
}

enum CreateFrom<'a> {
    Image { path: &'a Path, format: ImageFormat },
    Nothing { capacity_bytes: u64 },
}

async fn create(disk: &str, overlay: &Path, from: CreateFrom<'_>) -> Result<(), PrepareError> {
    let failed = |detail: String| PrepareError::QemuImg { disk: disk.to_owned(), detail };
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2"]);
    match from {
        CreateFrom::Image { path, format } => {
            command.arg("-F").arg(format.driver()).arg("-b").arg(path).arg(overlay);
        }
        CreateFrom::Nothing { capacity_bytes } => {
            command.arg(overlay).arg(capacity_bytes.to_string());
        }
    }
    ends(command, IMAGE_DEADLINE).await.map_err(|error| failed(error.to_string()))
}

/// Runs a program to its end; what it complained of is in the error.
pub(crate) async fn ends(mut command: Command, deadline: Duration) -> std::io::Result<()> {
    use std::io::{Error, ErrorKind};
    command.stdin(Stdio::null()).kill_on_drop(true);
    let late = |_| Error::new(ErrorKind::TimedOut, format!("no end after {} s", deadline.as_secs()));
    let output = tokio::time::timeout(deadline, command.output()).await.map_err(late)??;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::other(format!("{}: {:.300}", output.status, said.trim())))
}

/// Writes a file so that it is seen either as it was or as a whole, by nobody but the owner. One at a time for each.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    let (mut file, partial) = begin(path, 0o600)?;
    file.write_all(bytes)?;
    std::fs::rename(partial, path)
}

/// Makes the file that is to be called `path` once it is whole, and tells what it is called until then. The host writes
/// so, too, where a container does, and a launcher where others have had the claim: what they have put under that
/// name, such as a link to another disk, is not written through.
fn begin(path: &Path, mode: u32) -> std::io::Result<(std::fs::File, PathBuf)> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let partial = path.with_extension("partial");
    receive::remove(CWD, &partial)?;
    let file = std::fs::File::options().write(true).create_new(true).mode(mode).open(&partial)?;
    Ok((file, partial))
}
