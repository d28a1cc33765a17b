//! A trusted platform module, which swtpm emulates beside QEMU.
//!
//! Its state goes with the machine, as KubeVirt has it for modules that are not persistent. swtpm runs by itself, as QEMU
//! does: it needs no monitor, and ends when QEMU hangs up. It is started before QEMU, which connects to its control
//! socket and gets everything else from there. Upstream reference: swtpm(8), and `TPMDomainConfigurator` in KubeVirt's
//! virt-launcher.

use crate::layout::Layout;
use crate::prepare::ends;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

const PROGRAM: &str = "swtpm";

/// swtpm leaves its starter once its socket is there; that takes a few hundredths of a second.
const DEADLINE: Duration = Duration::from_secs(20);

/// Starts the module of a machine. QEMU finds it at [`Layout::tpm_socket`].
///
/// # Errors
/// It cannot be started; for people.
pub(crate) async fn start(layout: &Layout) -> Result<(), String> {
    let state = layout.tpm_dir();
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&state)
        .map_err(|error| format!("cannot make {}: {error}", state.display()))?;
    let mut command = Command::new(PROGRAM);
    command.args(["socket", "--tpm2", "--daemon", "--terminate", "--flags", "startup-clear"]);
    command.arg("--tpmstate").arg(option("dir", &state)?);
    command.arg("--ctrl").arg(format!("type=unixio,{}", option("path", &layout.tpm_socket())?));
    ends(command, DEADLINE).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("{PROGRAM} is missing: the launcher's image was made on a machine without the package {PROGRAM}")
        }
        _ => format!("{PROGRAM}: {error}"),
    })
}

/// One of swtpm's options, for nobody but the owner. It has no way to write a comma in a path.
fn option(name: &str, path: &Path) -> Result<String, String> {
    match path.to_str().filter(|path| !path.contains(',')) {
        Some(path) => Ok(format!("{name}={path},mode=0600")),
        None => Err(format!("{PROGRAM} cannot use {}", path.display())),
    }
}
