//! Finds the guest's kernel and the drivers it needs, in the order they must be loaded in.

use crate::ImageError;
use std::path::{Path, PathBuf};

const PACKAGE: &str = "linux-image-cloud-amd64";

/// What the demo guest drives: virtio with the agent's channel, volumes with configuration, the power button.
const DRIVERS: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_scsi",
    "virtio_console",
    "sd_mod",
    "sr_mod",
    "isofs",
    "vfat",
    "nls_cp437",
    "nls_iso8859-1",
    "nls_ascii",
    "button",
    "evdev",
    "virtio-rng",
    "virtio_balloon",
];

/// A kernel and its drivers on the host.
pub(super) struct Kernel {
    pub(super) image: PathBuf,
    /// The modules to load, dependencies first.
    pub(super) modules: Vec<PathBuf>,
}

impl Kernel {
    /// The newest installed cloud kernel.
    pub(super) fn newest(boot: &Path, modules: &Path) -> Result<Self, ImageError> {
        let missing = |what: &str| ImageError::MissingPackage { what: what.to_owned(), package: PACKAGE };
        let names = std::fs::read_dir(boot).map_err(ImageError::io("cannot read", boot))?;
        let release = names
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned))
            .filter(|release| release.ends_with("-cloud-amd64"))
            .filter(|release| modules.join(release).join("modules.dep").is_file())
            .max_by_key(|release| version_key(release))
            .ok_or_else(|| missing("the cloud kernel"))?;
        let directory = modules.join(&release);
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read_to_string(&path).map_err(ImageError::io("cannot read", &path))
        };
        let (depends, builtin) = (read("modules.dep")?, read("modules.builtin")?);
        let order = load_order(&depends, &builtin, DRIVERS)
            .map_err(|driver| missing(&format!("the driver {driver} of the kernel {release}")))?;
        Ok(Self {
            image: boot.join(format!("vmlinuz-{release}")),
            modules: order.iter().map(|path| directory.join(path)).collect(),
        })
    }
}

/// Numbers compare as numbers: 6.1.0-9 is older than 6.1.0-10.
fn version_key(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

/// `drivers` and what they depend on, each after its own dependencies; the name of one that is nowhere.
///
/// `depends` is modules.dep, whose lines read `module: nearest-dependency … farthest-dependency`.
fn load_order<'a>(depends: &'a str, builtin: &str, drivers: &[&'a str]) -> Result<Vec<&'a str>, &'a str> {
    let is = |path: &str, driver: &str| {
        let file = path.rsplit('/').next().unwrap_or(path);
        file.split_once(".ko").is_some_and(|(stem, _)| stem.replace('-', "_") == driver.replace('-', "_"))
    };
    let mut order: Vec<&str> = Vec::new();
    for driver in drivers {
        if builtin.lines().any(|path| is(path, driver)) {
            continue;
        }
        let line = depends.lines().filter_map(|line| line.split_once(':')).find(|(path, _)| is(path, driver));
        let (module, needs) = line.ok_or(*driver)?;
        for path in needs.split_whitespace().rev().chain([module]) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDS: &str = "kernel/a/virtio_blk.ko: kernel/v/virtio_ring.ko kernel/v/virtio.ko\n\
        kernel/v/virtio_ring.ko: kernel/v/virtio.ko\nkernel/v/virtio.ko:\nkernel/h/virtio-rng.ko.xz: kernel/v/virtio.ko\n";

    #[test]
    fn dependencies_come_first_and_once() {
        let order = load_order(DEPENDS, "kernel/drivers/evdev.ko\n", &["virtio_blk", "evdev", "virtio_rng"]);
        let expected =
            ["kernel/v/virtio.ko", "kernel/v/virtio_ring.ko", "kernel/a/virtio_blk.ko", "kernel/h/virtio-rng.ko.xz"];
        assert_eq!(order.as_deref(), Ok(&expected[..]));
        assert_eq!(load_order(DEPENDS, "", &["virtio_blk", "isofs"]), Err("isofs"));
    }

    #[test]
    fn releases_order_by_number() {
        assert!(version_key("6.1.0-10-cloud-amd64") > version_key("6.1.0-9-cloud-amd64"));
        assert!(version_key("6.12.1-1-cloud-amd64") > version_key("6.1.0-56-cloud-amd64"));
    }
}
