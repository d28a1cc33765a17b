//! Where a certificate is kept, as upstream's kubelet keeps it (client-go `util/certificate`, `certificate_store.go`):
//!
//! ```text
//!   kubelet-client-2027-01-15-08-00-00.pem    certificate and key
//!   kubelet-client-current.pem                a link to the one in use
//!   kubelet-client.key.tmp                    the key of a request that is under way
//! ```
//!
//! All are private. The link is exchanged by a rename: who opens it sees one certificate with its own key.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

use carrack_auth::pki::{KeyPairPem, write_private};
use carrack_auth::secret::Secret;
use carrack_engine::Time;

use crate::adapters::remove;

/// Larger files are no certificates.
const MAX_BYTES: u64 = 1 << 20;

/// The files of one certificate.
#[derive(Clone, Debug)]
pub struct Files {
    directory: PathBuf,
    prefix: &'static str,
}

fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(Some(text))
}

impl Files {
    /// Files with names that begin with `prefix`, in this directory.
    #[must_use]
    pub fn new(directory: &Path, prefix: &'static str) -> Self {
        Self { directory: directory.to_owned(), prefix }
    }

    fn file(&self, rest: &str) -> PathBuf {
        self.directory.join(format!("{}{rest}", self.prefix))
    }

    /// Where the certificate in use is, with its key.
    #[must_use]
    pub fn current_path(&self) -> PathBuf {
        self.file("-current.pem")
    }

    /// The certificate in use with its key; none where there is none.
    ///
    /// # Errors
    /// What the disk says.
    pub fn current(&self) -> io::Result<Option<KeyPairPem>> {
        // Readers of PEM take what they look for, and leave the rest.
        let text = read(&self.current_path())?;
        Ok(text.map(|text| KeyPairPem { key: Secret::new(text.as_str()), certificate: text }))
    }

    /// Puts a certificate with its key into use.
    ///
    /// # Errors
    /// What the disk says; then the one before is still in use.
    pub fn keep(&self, pair: &KeyPairPem, now: Time) -> io::Result<()> {
        let stamp = now.rfc3339().replace(['T', ':'], "-").replace('Z', "");
        let file = self.file(&format!("-{stamp}.pem"));
        write_private(&file, &format!("{}{}", pair.certificate, pair.key.expose()))?;
        let updated = self.file("-updated.pem");
        remove::file(&updated)?;
        symlink(&file, &updated)?;
        fs::rename(&updated, self.current_path())?;
        File::open(&self.directory)?.sync_all()
    }

    /// The key of a request that is under way.
    ///
    /// # Errors
    /// What the disk says.
    pub fn key(&self) -> io::Result<Option<Secret>> {
        Ok(read(&self.file(".key.tmp"))?.map(Secret::new))
    }

    /// Keeps the key of a request that is to be sent.
    ///
    /// # Errors
    /// What the disk says.
    pub fn keep_key(&self, key: &Secret) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        write_private(&self.file(".key.tmp"), key.expose())
    }

    /// Forgets it.
    ///
    /// # Errors
    /// What the disk says.
    pub fn drop_key(&self) -> io::Result<()> {
        remove::file(&self.file(".key.tmp"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_certificate_is_exchanged_whole_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(&dir.path().join("pki"), "kubelet-client");
        assert_eq!(files.current().unwrap(), None);
        files.keep_key(&Secret::new("key\n")).unwrap();
        assert_eq!(files.key().unwrap(), Some(Secret::new("key\n")));
        for (second, text) in [(0, "one\n"), (0, "again\n"), (3600, "two\n")] {
            let pair = KeyPairPem { certificate: text.into(), key: Secret::new("key\n") };
            files.keep(&pair, Time::from_unix_s(1_800_000_000 + second)).unwrap();
            assert_eq!(files.current().unwrap().unwrap().certificate, format!("{text}key\n"));
        }
        files.drop_key().unwrap();
        files.drop_key().unwrap();
        assert_eq!(files.key().unwrap(), None);
        let mut names: Vec<(String, u32)> = fs::read_dir(dir.path().join("pki"))
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| {
                (e.file_name().into_string().unwrap(), fs::metadata(e.path()).unwrap().permissions().mode() & 0o777)
            })
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                ("kubelet-client-2027-01-15-08-00-00.pem".to_owned(), 0o600),
                ("kubelet-client-2027-01-15-09-00-00.pem".to_owned(), 0o600),
                ("kubelet-client-current.pem".to_owned(), 0o600),
            ]
        );
    }
}
