//! The launcher image: this program, QEMU, the libraries of both, and the firmware QEMU boots guests with.
//!
//! QEMU and its libraries are a layer of their own below the program's, so that a new build of the program
//! leaves what is large unchanged.

use crate::error::require;
use crate::layer::{Content, Layer};
use crate::oci::{self, ImageConfig};
use crate::stamp::{Inputs, Recipe};
use crate::{Built, ImageError, elf, reference};
use std::path::Path;

const QEMU: (&str, &str) = ("/usr/bin/qemu-system-x86_64", "qemu-system-x86");
const QEMU_IMG: (&str, &str) = ("/usr/bin/qemu-img", "qemu-utils");

/// Emulates trusted platform modules for machines that have one; an image without it has none.
const SWTPM: &str = "/usr/bin/swtpm";

/// What QEMU loads only when it is asked for: its emulator, the screens with virtio.
const MODULES: [(&str, &str); 3] = [
    ("/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so", "qemu-system-x86"),
    ("/usr/lib/x86_64-linux-gnu/qemu/hw-display-virtio-gpu.so", "qemu-system-common"),
    ("/usr/lib/x86_64-linux-gnu/qemu/hw-display-virtio-vga.so", "qemu-system-common"),
];

const FIRMWARE: &[(&str, &str)] = &[
    ("/usr/share/seabios/bios-256k.bin", "seabios"),
    ("/usr/share/seabios/vgabios-stdvga.bin", "seabios"),
    ("/usr/share/seabios/vgabios-virtio.bin", "seabios"),
    ("/usr/share/seabios/vgabios-bochs-display.bin", "seabios"),
    ("/usr/share/seabios/vgabios-cirrus.bin", "seabios"),
    ("/usr/share/seabios/vgabios-ramfb.bin", "seabios"),
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "ovmf"),
    ("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "ovmf"),
    ("/usr/share/OVMF/OVMF_VARS_4M.fd", "ovmf"),
    ("/usr/share/OVMF/OVMF_VARS_4M.ms.fd", "ovmf"),
    ("/usr/share/qemu/kvmvapic.bin", "qemu-system-data"),
    ("/usr/share/qemu/linuxboot_dma.bin", "qemu-system-data"),
    ("/usr/share/qemu/keymaps/en-us", "qemu-system-data"),
    ("/usr/lib/ipxe/qemu/efi-virtio.rom", "ipxe-qemu"),
    ("/usr/lib/ipxe/qemu/efi-e1000.rom", "ipxe-qemu"),
    ("/usr/lib/ipxe/qemu/efi-e1000e.rom", "ipxe-qemu"),
    ("/usr/lib/ipxe/qemu/efi-ne2k_pci.rom", "ipxe-qemu"),
    ("/usr/lib/ipxe/qemu/efi-pcnet.rom", "ipxe-qemu"),
    ("/usr/lib/ipxe/qemu/efi-rtl8139.rom", "ipxe-qemu"),
];

/// Where the program lies in the image.
const PROGRAM: &str = "/usr/bin/carrack";

/// Builds `localhost/carrack/virt-launcher` in `dir` around `program`, the `carrack` executable.
///
/// The image's entry point is `carrack virt-launcher`. Its stop signal is one that QEMU, as the container's
/// first process, does not react to: a container is stopped by way of the guest's power button.
///
/// # Errors
/// A Debian package is missing (the error names it), a file cannot be read, or `dir` cannot be written.
pub fn build_virt_launcher(dir: &Path, program: &Path) -> Result<Built, ImageError> {
    let program = program.canonicalize().map_err(ImageError::io("cannot find", program))?;
    let config = ImageConfig {
        entrypoint: vec![PROGRAM.to_owned(), "virt-launcher".to_owned()],
        env: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        stop_signal: Some("SIGPWR".to_owned()),
        ..ImageConfig::default()
    };
    let recipe = Recipe::new(
        dir,
        "virt-launcher",
        &[
            format!("{config:?}{FIRMWARE:?}{MODULES:?}{}", has_swtpm()).as_bytes(),
            program.as_os_str().as_encoded_bytes(),
        ],
    );
    if let Some(built) = recipe.unchanged() {
        return Ok(built);
    }
    let base = base_layer()?;
    let mut top = Layer::new();
    top.file(PROGRAM, Content::Host(program.clone()), 0o755, 0);
    elf::add_files(&mut top, elf::closure(&program)?);
    let inputs = Inputs::of(base.host_files().chain(top.host_files()))?;
    recipe.begin()?;
    let blobs = [base.write(&recipe.scratch("base"))?, top.write(&recipe.scratch("top"))?];
    let built = oci::write(&recipe.tar(), &reference("virt-launcher"), &config, &blobs)?;
    for blob in &blobs {
        std::fs::remove_file(&blob.path).map_err(ImageError::io("cannot remove", &blob.path))?;
    }
    recipe.finish(built, inputs)
}

fn has_swtpm() -> bool {
    Path::new(SWTPM).exists()
}

fn base_layer() -> Result<Layer, ImageError> {
    let mut layer = Layer::new();
    let qemu = require(QEMU.0, QEMU.1)?;
    elf::add(&mut layer, &qemu)?;
    elf::add(&mut layer, &require(QEMU_IMG.0, QEMU_IMG.1)?)?;
    if has_swtpm() {
        elf::add(&mut layer, Path::new(SWTPM))?;
    }
    let loader = elf::interpreter(&qemu)?;
    for (path, package) in MODULES {
        let module = require(path, package)?;
        if let Some(loader) = &loader {
            elf::add_files(&mut layer, elf::listed(loader, &module)?);
        }
        layer.host(&module, 0o644);
    }
    for (path, package) in FIRMWARE {
        layer.host(&require(path, package)?, 0o644);
    }
    elf::add_usr_links(&mut layer);
    let text = |text: &str| Content::Bytes(text.as_bytes().to_vec());
    layer.file(
        "/etc/passwd",
        text("root:x:0:0:root:/root:/sbin/nologin\nqemu:x:107:107:qemu:/:/sbin/nologin\n"),
        0o644,
        0,
    );
    layer.file("/etc/group", text("root:x:0:\nqemu:x:107:\n"), 0o644, 0);
    layer.directory("/tmp", 0o1777, 0);
    for path in ["/dev", "/proc", "/sys", "/run", "/var/run/kubevirt", "/var/run/kubevirt-private"] {
        layer.directory(path, 0o755, 0);
    }
    Ok(layer)
}
