//! Writes an OCI image layout as a tar file, in the form that `ctr images import` and CRI runtimes take.
//!
//! Upstream reference: OCI image-spec v1, image-layout.md, manifest.md, config.md; the annotation
//! `io.containerd.image.name` is containerd's.

use crate::layer::{LayerBlob, header};
use crate::{Built, ImageError};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

/// What the image says about how to run it.
#[derive(Debug, Clone, Default)]
pub struct ImageConfig {
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// What runs when nothing else is asked for: arguments of the entrypoint, or a program where there is none.
    pub cmd: Vec<String>,
    /// `NAME=value` pairs.
    pub env: Vec<String>,
    /// The signal that asks the container to stop, such as `SIGPWR`; the runtime's default when absent.
    pub stop_signal: Option<String>,
}

impl ImageConfig {
    fn json(&self, layers: &[LayerBlob]) -> Value {
        let mut config = json!({ "Env": self.env, "WorkingDir": "/" });
        for (name, words) in [("Entrypoint", &self.entrypoint), ("Cmd", &self.cmd)] {
            if !words.is_empty() {
                config[name] = json!(words);
            }
        }
        if let Some(signal) = &self.stop_signal {
            config["StopSignal"] = json!(signal);
        }
        json!({
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {
                "type": "layers",
                "diff_ids": layers.iter().map(|layer| &layer.digest).collect::<Vec<_>>(),
            },
            "history": layers.iter().map(|_| json!({ "created_by": "carrack" })).collect::<Vec<_>>(),
        })
    }
}

/// Writes the image `reference` made of `layers`, lowest first, to `out`.
///
/// The file appears under its name only when it is complete.
///
/// # Errors
/// A layer that cannot be read, or `out` that cannot be written.
pub fn write(out: &Path, reference: &str, config: &ImageConfig, layers: &[LayerBlob]) -> Result<Built, ImageError> {
    let config = config.json(layers).to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": layers.iter().map(|layer| json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": layer.digest,
            "size": layer.size_bytes,
        })).collect::<Vec<_>>(),
    })
    .to_string()
    .into_bytes();
    let mut named = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    named["annotations"] = json!({
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference.rsplit(':').next().unwrap_or(reference),
    });
    named["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [named],
    })
    .to_string();

    let partial = out.with_extension("partial");
    let failed = || ImageError::io("cannot write", &partial);
    let file = File::create(&partial).map_err(failed())?;
    let mut tar = tar::Builder::new(BufWriter::with_capacity(1 << 18, file));
    append(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#).map_err(failed())?;
    append(&mut tar, "index.json", index.as_bytes()).map_err(failed())?;
    append(&mut tar, &blob_path(&digest(&manifest)), &manifest).map_err(failed())?;
    append(&mut tar, &blob_path(&digest(&config)), &config).map_err(failed())?;
    for layer in layers {
        let source = File::open(&layer.path).map_err(ImageError::io("cannot read", &layer.path))?;
        let mut header = header(0o644, 0);
        header.set_size(layer.size_bytes);
        tar.append_data(&mut header, blob_path(&layer.digest), source).map_err(failed())?;
    }
    tar.into_inner().and_then(|mut file| file.flush()).map_err(failed())?;
    std::fs::rename(&partial, out).map_err(ImageError::io("cannot rename to", out))?;
    Ok(Built { reference: reference.to_owned(), tar: out.to_path_buf(), digest: digest(&manifest), fresh: true })
}

fn append<W: std::io::Write>(tar: &mut tar::Builder<W>, path: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut header = header(0o644, 0);
    header.set_size(bytes.len() as u64);
    tar.append_data(&mut header, path, bytes)
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}
