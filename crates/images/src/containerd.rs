//! Hands images to containerd with its own client program, `ctr`, which every containerd package has.
//!
//! The gRPC services under it differ between containerd 1.6 and 2.x (content and images, then transfer);
//! `ctr images import` is the interface that stayed.
//!
//! Whoever drops one of these calls, since a signal came, ends its `ctr` with it: that has nothing to put in order, and ends by any
//! signal at once. An image has its name only when all of it is there, so that none is half imported. What was loaded of one is
//! containerd's to keep, for a day at the most: the next import goes on with it. A `ctr` whose caller is killed goes on to its end,
//! and what it loads is whole.

use crate::elf::shorten;
use crate::program::apart;
use crate::{Built, ImageError};
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

/// The namespace in which CRI keeps its images.
const NAMESPACE: &str = "k8s.io";

/// An import of a large image from a slow disk stays well below this.
const DEADLINE: Duration = Duration::from_secs(300);

/// Imports the image in the tar file into the containerd behind `socket`.
///
/// # Errors
/// `ctr` is missing, fails, or does not end in time.
pub async fn import(socket: &Path, tar: &Path) -> Result<(), ImageError> {
    let mut command = ctr(socket);
    command.args(["images", "import"]).arg(tar);
    run(command).await.map(drop)
}

/// The digest under which containerd knows `reference`, if it does.
///
/// # Errors
/// As for [`import`].
pub async fn present(socket: &Path, reference: &str) -> Result<Option<String>, ImageError> {
    let mut command = ctr(socket);
    command.args(["images", "list", &format!("name=={reference}")]);
    Ok(find_digest(&run(command).await?, reference))
}

/// Imports `built` unless containerd has exactly it. Tells whether it had to.
///
/// # Errors
/// As for [`import`].
pub async fn ensure(socket: &Path, built: &Built) -> Result<bool, ImageError> {
    if present(socket, &built.reference).await?.as_deref() == Some(&built.digest) {
        return Ok(false);
    }
    import(socket, &built.tar).await?;
    Ok(true)
}

fn ctr(socket: &Path) -> Command {
    let mut command = Command::from(apart("ctr"));
    command.arg("--address").arg(socket).args(["--namespace", NAMESPACE]);
    command
}

async fn run(mut command: Command) -> Result<String, ImageError> {
    let failed = |detail: String| ImageError::Program { program: "ctr".to_owned(), detail };
    command.kill_on_drop(true);
    let output = match tokio::time::timeout(DEADLINE, command.output()).await {
        Err(_) => return Err(failed(format!("no end after {} s", DEADLINE.as_secs()))),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ImageError::MissingPackage { what: "ctr".to_owned(), package: "containerd" });
        }
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Ok(Ok(output)) => output,
    };
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(failed(format!("{}: {}", output.status, shorten(&output.stderr))))
    }
}

/// Finds the digest in the table `REF TYPE DIGEST SIZE PLATFORMS LABELS`.
fn find_digest(table: &str, reference: &str) -> Option<String> {
    table.lines().find_map(|line| {
        let mut columns = line.split_whitespace();
        if columns.next() != Some(reference) {
            return None;
        }
        columns.find(|column| column.starts_with("sha256:")).map(str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_in_the_table() {
        let table = "REF TYPE DIGEST SIZE PLATFORMS LABELS \n\
            localhost/carrack/pause:0.1.0 application/vnd.oci.image.manifest.v1+json sha256:ab12 3.1 KiB linux/amd64 - \n";
        assert_eq!(find_digest(table, "localhost/carrack/pause:0.1.0").as_deref(), Some("sha256:ab12"));
        assert_eq!(find_digest(table, "localhost/carrack/pause"), None);
        assert_eq!(find_digest("", "x"), None);
    }
}
