//! The file tree that the guest runs in.

use super::Sources;
use crate::initramfs::Initramfs;
use crate::program::apart;
use crate::{ImageError, elf};
use std::path::Path;

/// Path in the guest, mode, text.
pub(super) const SCRIPTS: &[(&str, u32, &str)] = &[
    ("/etc/inittab", 0o644, include_str!("../../../../guest/inittab")),
    ("/etc/rc", 0o755, include_str!("../../../../guest/rc")),
    ("/etc/rc.cloud", 0o755, include_str!("../../../../guest/rc.cloud")),
    ("/etc/rc.down", 0o755, include_str!("../../../../guest/rc.down")),
    ("/etc/cloud.awk", 0o644, include_str!("../../../../guest/cloud.awk")),
    ("/etc/udhcpc.script", 0o755, include_str!("../../../../guest/udhcpc.script")),
    // The names that busybox acpid gives to the power button's event.
    ("/etc/acpi/PWRF/00000080", 0o755, include_str!("../../../../guest/acpi.power")),
    ("/usr/sbin/chpasswd", 0o755, include_str!("../../../../guest/chpasswd")),
    ("/etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n"),
    ("/etc/group", 0o644, "root:x:0:\n"),
    // Nobody can log in until NoCloud data says who.
    ("/etc/shadow", 0o600, "root:*:19000:0:99999:7:::\n"),
    ("/etc/shells", 0o644, "/bin/sh\n"),
    (
        "/etc/os-release",
        0o644,
        "ID=carrack-demo\nNAME=\"Carrack demo guest\"\nPRETTY_NAME=\"Carrack demo guest\"\nVERSION_ID=0.1.0\nVERSION=0.1.0\n",
    ),
    ("/etc/profile", 0o644, "export PATH=/bin:/sbin:/usr/bin:/usr/sbin\nexport PS1='\\u@\\h:\\w\\$ '\n"),
];

pub(super) fn build(sources: &Sources) -> Result<Initramfs, ImageError> {
    let mut tree = Initramfs::new();
    for (path, mode) in [
        ("/dev", 0o755),
        ("/proc", 0o555),
        ("/sys", 0o555),
        ("/run", 0o755),
        ("/tmp", 0o1777),
        ("/root", 0o700),
        ("/home", 0o755),
        ("/media", 0o755),
        ("/etc/dropbear", 0o700),
        ("/var/log", 0o755),
    ] {
        tree.directory(path, mode);
    }
    tree.symlink("/var/run", "/run").character("/dev/console", 0o600, 5, 1);
    for (path, mode, text) in SCRIPTS {
        tree.file(path, *mode, *text);
    }
    let read = |path: &Path| std::fs::read(path).map_err(ImageError::io("cannot read", path));

    if elf::interpreter(&sources.busybox)?.is_some() {
        return Err(ImageError::MissingPackage { what: "a static busybox".to_owned(), package: "busybox-static" });
    }
    tree.file("/bin/busybox", 0o755, read(&sources.busybox)?).symlink("/init", "/bin/busybox");
    let output =
        apart(&sources.busybox).arg("--list-full").output().map_err(ImageError::io("cannot run", &sources.busybox))?;
    for applet in String::from_utf8_lossy(&output.stdout).lines().filter(|name| !name.is_empty()) {
        if !tree.contains(applet) {
            tree.symlink(applet, "/bin/busybox");
        }
    }

    for (path, program) in [("/usr/sbin/dropbear", &sources.dropbear), ("/usr/sbin/qemu-ga", &sources.agent)] {
        tree.file(path, 0o755, read(program)?);
        // Libraries go where the loader looks without a cache.
        for (path, source) in elf::closure(program)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let directory = if name.starts_with("ld-linux") { "/lib64" } else { "/lib/x86_64-linux-gnu" };
            let path = format!("{directory}/{name}");
            if !tree.contains(&path) {
                tree.file(&path, 0o755, read(&source)?);
            }
        }
    }

    let mut order = String::new();
    for module in &sources.kernel.modules {
        let name = module.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        tree.file(&format!("/lib/modules/{name}"), 0o644, read(module)?);
        order.push_str(&name);
        order.push('\n');
    }
    tree.file("/lib/modules/order", 0o644, order);
    Ok(tree)
}
