//! The demo guest: a Linux that boots from a small disk in a few seconds, also where KVM cannot be used.
//!
//! ```text
//!   containerDisk image: /disk/disk.img, owned by 107 as KubeVirt expects it
//!     └─ isohybrid disk: MBR → isolinux → /boot/vmlinuz + /boot/initrd
//!                                            └─ busybox, drivers, dropbear, qemu-ga, the scripts under guest/
//! ```
//!
//! Everything is taken from the host's Debian packages: the cloud kernel, busybox-static, dropbear-bin,
//! qemu-guest-agent and isolinux. ISOLINUX needs no installer to run on the disk, only two files on it and a master boot record.
//! The initramfs is not compressed: under emulation, unpacking costs more than reading.

mod kernel;
mod tree;

use crate::error::require;
use crate::layer::{Content, Layer};
use crate::oci::{self, ImageConfig};
use crate::stamp::{Inputs, Recipe};
use crate::{Built, ImageError, reference};
use hadris_fs::{Node, Tree};
use hadris_iso::{BootEntry, BootInfo, ElTorito, Hybrid, IsoId, IsoOptions};
use std::path::{Path, PathBuf};

/// KubeVirt's user for QEMU, to whom the files of a containerDisk belong.
const QEMU_USER: u32 = 107;

/// What the guest's kernel is told: `quiet` keeps it off the slow emulated serial line; the rest skips work that a demo does not
/// need. `no_timer_check`: a kernel that looks whether its timer ticks panics where an emulator is not given a processor for that moment.
pub const KERNEL_ARGS: &str = "console=tty0 console=ttyS0,115200 quiet mitigations=off nokaslr cryptomgr.notests \
                               8250.nr_uarts=1 random.trust_cpu=on no_timer_check";

fn boot_config() -> String {
    format!(
        "DEFAULT demo\nPROMPT 0\nNOESCAPE 1\nLABEL demo\n  KERNEL /boot/vmlinuz\n  INITRD /boot/initrd\n  APPEND {KERNEL_ARGS}\n"
    )
}

/// The host files that the guest is made from.
struct Sources {
    kernel: kernel::Kernel,
    busybox: PathBuf,
    dropbear: PathBuf,
    agent: PathBuf,
    master_boot_record: PathBuf,
    isolinux: PathBuf,
    ldlinux: PathBuf,
}

impl Sources {
    fn find() -> Result<Self, ImageError> {
        Ok(Self {
            kernel: kernel::Kernel::newest(Path::new("/boot"), Path::new("/lib/modules"))?,
            busybox: require("/bin/busybox", "busybox-static")?,
            dropbear: require("/usr/sbin/dropbear", "dropbear-bin")?,
            agent: require("/usr/sbin/qemu-ga", "qemu-guest-agent")?,
            master_boot_record: require("/usr/lib/ISOLINUX/isohdpfx.bin", "isolinux")?,
            isolinux: require("/usr/lib/ISOLINUX/isolinux.bin", "isolinux")?,
            ldlinux: require("/usr/lib/syslinux/modules/bios/ldlinux.c32", "syslinux-common")?,
        })
    }

    fn inputs(&self) -> Result<Inputs, ImageError> {
        let files =
            [&self.busybox, &self.dropbear, &self.agent, &self.master_boot_record, &self.isolinux, &self.ldlinux];
        let modules = self.kernel.modules.iter();
        Inputs::of(files.into_iter().chain(modules).chain([&self.kernel.image]).map(PathBuf::as_path))
    }
}

/// Builds `localhost/carrack/demo-guest` in `dir`, a containerDisk with `/disk/disk.img`.
///
/// # Errors
/// A Debian package is missing (the error names it), a file cannot be read, or `dir` cannot be written.
pub fn build_demo_guest(dir: &Path) -> Result<Built, ImageError> {
    let scripts: Vec<&[u8]> = tree::SCRIPTS.iter().map(|(_, _, text)| text.as_bytes()).collect();
    let boot_config = boot_config();
    let recipe = Recipe::new(dir, "demo-guest", &[&[boot_config.as_bytes()], scripts.as_slice()].concat());
    // A newer kernel that was installed beside the old one is not taken up until something else changes.
    if let Some(built) = recipe.unchanged() {
        return Ok(built);
    }
    let sources = Sources::find()?;
    let inputs = sources.inputs()?;
    recipe.begin()?;
    let disk = recipe.scratch("img");
    write_disk(&sources, &disk)?;
    let mut layer = Layer::new();
    layer.directory("/disk", 0o555, QEMU_USER);
    layer.file("/disk/disk.img", Content::Host(disk.clone()), 0o440, QEMU_USER);
    let blob = layer.write(&recipe.scratch("layer"))?;
    let built =
        oci::write(&recipe.tar(), &reference("demo-guest"), &ImageConfig::default(), std::slice::from_ref(&blob))?;
    for path in [&blob.path, &disk] {
        std::fs::remove_file(path).map_err(ImageError::io("cannot remove", path))?;
    }
    recipe.finish(built, inputs)
}

/// Builds only the guest's disk, to boot it without a container.
///
/// # Errors
/// As for [`build_demo_guest`].
pub fn build_disk(out: &Path) -> Result<(), ImageError> {
    write_disk(&Sources::find()?, out)
}

/// The guest's kernel on this host, and the initramfs that is all else of the guest: for machines that boot them without a disk.
///
/// # Errors
/// As for [`build_demo_guest`].
pub fn boot_files() -> Result<(PathBuf, Vec<u8>), ImageError> {
    let sources = Sources::find()?;
    let initrd = tree::build(&sources)?.cpio();
    Ok((sources.kernel.image, initrd))
}

fn write_disk(sources: &Sources, out: &Path) -> Result<(), ImageError> {
    let initrd = tree::build(sources)?.cpio();
    let mut files = Tree::new();
    let content = |path: &PathBuf| std::fs::read(path).map_err(ImageError::io("cannot read", path));
    let entries: [(&str, Vec<u8>); 5] = [
        ("isolinux/isolinux.bin", content(&sources.isolinux)?),
        ("isolinux/ldlinux.c32", content(&sources.ldlinux)?),
        ("isolinux/isolinux.cfg", boot_config().into()),
        ("boot/vmlinuz", content(&sources.kernel.image)?),
        ("boot/initrd", initrd),
    ];
    let unplanned = |error: &dyn std::fmt::Display| ImageError::Disk(error.to_string());
    for (path, bytes) in entries {
        files.insert(path, Node::file(hadris_fs::Content::bytes(bytes))).map_err(|e| unplanned(&e))?;
    }
    let options = IsoOptions::default()
        .with_id(IsoId::Volume, "CARRACK_DEMO")
        .with_rock_ridge()
        .with_el_torito(
            ElTorito::new()
                .with_entry(BootEntry::bios("isolinux/isolinux.bin").with_load_size(4).with_boot_info(BootInfo::Table))
                .with_catalog_path("isolinux/boot.cat"),
        )
        .with_hybrid(Hybrid::mbr().with_bootstrap(&content(&sources.master_boot_record)?));
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(out)
        .map_err(ImageError::io("cannot create", out))?;
    let device = hadris_storage::host::FileDevice::new(file).map_err(|e| unplanned(&e))?;
    let report = hadris_iso::sync::write(device, &files, &options).map_err(|e| unplanned(&e))?;
    // A whole number of mebibytes suits every partition and image tool.
    let size = report.size().next_multiple_of(1 << 20);
    let grow = std::fs::File::options().write(true).open(out).and_then(|file| file.set_len(size));
    grow.map_err(ImageError::io("cannot extend", out))
}
