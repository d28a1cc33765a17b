//! Pages that tell a reader what to type: their blocks of commands, and a sandbox in which somebody types them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::{Run, Sandbox, carrack, root};

/// The blocks of commands below a heading of a page, in their order.
///
/// # Panics
/// There is no such page, or no such heading in it.
#[must_use]
pub fn blocks(page: &str, heading: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join(page)).expect("the page");
    let heading = format!("{heading}\n");
    let section = page.split("\n## ").find(|section| section.starts_with(&heading)).expect("the heading");
    let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned());
    blocks.collect()
}

impl Sandbox {
    /// What a reader types in a directory, as it stands: `carrack` is the program under test, for `make` too, which so installs and
    /// builds nothing, and the machine's directories are the sandbox's.
    ///
    /// # Panics
    /// The program cannot be put where a shell finds it.
    #[must_use]
    pub fn typed(&self, dir: &Path, block: &str) -> Run {
        let (home, program) = (self.home(), carrack().display().to_string());
        let bin = home.join("bin");
        fs::create_dir_all(&bin).expect("a directory");
        let link = bin.join("carrack");
        if !link.exists() {
            symlink(&program, &link).expect("linked");
        }
        let block = block
            .replace("/var/lib/carrack", &self.data_dir().display().to_string())
            .replace("/srv/backup", &home.join("backup").display().to_string())
            .replace("target/release/carrack", &program);
        let exports = [
            ("PATH", format!("{}:$PATH", bin.display())),
            ("TMPDIR", home.display().to_string()),
            ("CARRACK_IMAGES_DIR", root().join("target/e2e-images").display().to_string()),
            ("CARRACK_BOOT_ID_FILE", self.boot_id_file().display().to_string()),
            ("CARRACK_KUBELET_CONFIG", home.join("limits.yaml").display().to_string()),
            ("MAKEFLAGS", format!("CARRACK={program}")),
            ("SOAK_DIR", home.join("soak").display().to_string()),
        ];
        let exports: String = exports.iter().map(|(name, value)| format!("export {name}={value}\n")).collect();
        self.shell(&format!("set -e\n{exports}cd {}\n{block}", dir.display())).limit_s(300)
    }
}
