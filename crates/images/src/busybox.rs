//! The busybox image: a shell and the usual tools in one static program, for pods of examples and tests.

use crate::error::require;
use crate::layer::{Content, Layer};
use crate::oci::{self, ImageConfig};
use crate::program::apart;
use crate::stamp::{Inputs, Recipe};
use crate::{Built, ImageError, elf, reference};
use std::path::Path;

const BUSYBOX: (&str, &str) = ("/bin/busybox", "busybox-static");

/// Builds `localhost/carrack/busybox` in `dir` from the host's static busybox.
///
/// # Errors
/// The package is missing or its program is not the static one, or `dir` cannot be written.
pub fn build_busybox(dir: &Path) -> Result<Built, ImageError> {
    let recipe = Recipe::new(dir, "busybox", &[b"2"]);
    if let Some(built) = recipe.unchanged() {
        return Ok(built);
    }
    let busybox = require(BUSYBOX.0, BUSYBOX.1)?;
    if elf::interpreter(&busybox)?.is_some() {
        return Err(ImageError::MissingPackage { what: "a static busybox".to_owned(), package: BUSYBOX.1 });
    }
    let inputs = Inputs::of(std::iter::once(busybox.as_path()))?;
    let applets = apart(&busybox).arg("--list").output().map_err(ImageError::io("cannot run", &busybox))?;
    recipe.begin()?;
    let mut layer = Layer::new();
    layer.file("/bin/busybox", Content::Host(busybox.clone()), 0o755, 0);
    for applet in String::from_utf8_lossy(&applets.stdout).lines().filter(|name| !name.is_empty() && *name != "busybox")
    {
        layer.symlink(&format!("/bin/{applet}"), "busybox");
    }
    let text = |text: &str| Content::Bytes(text.as_bytes().to_vec());
    layer.file(
        "/etc/passwd",
        text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
        0o644,
        0,
    );
    layer.file("/etc/group", text("root:x:0:\nnogroup:x:65534:\n"), 0o644, 0);
    layer.directory("/tmp", 0o1777, 0);
    for path in ["/root", "/var", "/run"] {
        layer.directory(path, 0o755, 0);
    }
    let blob = layer.write(&recipe.scratch("layer"))?;
    let config =
        ImageConfig { cmd: vec!["/bin/sh".to_owned()], env: vec!["PATH=/bin".to_owned()], ..ImageConfig::default() };
    let built = oci::write(&recipe.tar(), &reference("busybox"), &config, std::slice::from_ref(&blob))?;
    std::fs::remove_file(&blob.path).map_err(ImageError::io("cannot remove", &blob.path))?;
    recipe.finish(built, inputs)
}
