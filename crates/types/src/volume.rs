//! Names of volumes on which a node and the control plane must agree: each derives them by itself.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// How a node reports a CSI volume, in `volumesInUse` and `volumesAttached`
/// (<https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/#NodeStatus>).
#[must_use]
pub fn csi_unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// Name of the VolumeAttachment of a CSI volume to a node: a digest of volume handle, driver and node
/// (pkg/volume/csi/csi_attacher.go, `getAttachmentName`).
#[must_use]
pub fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    format!("csi-{}", digest(&format!("{handle}{driver}{node}")))
}

/// SHA-256 in hexadecimal digits.
#[must_use]
pub fn digest(text: &str) -> String {
    let mut out = String::with_capacity(64);
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing into a string cannot fail.
        write!(out, "{byte:02x}").unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{attachment_name, csi_unique_name};

    #[test]
    fn names_are_as_others_derive_them() {
        assert_eq!(csi_unique_name("d.example", "h"), "kubernetes.io/csi/d.example^h");
        // printf '%s' hdn | sha256sum
        let digest = "9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d";
        assert_eq!(attachment_name("d", "h", "n"), format!("csi-{digest}"));
    }
}
