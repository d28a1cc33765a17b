//! `carrack version`

use serde::Serialize;

use crate::cli::VersionArgs;
use crate::output;

/// The Kubernetes release whose API is served.
pub const KUBERNETES: &str = "v1.36.1";

/// The KubeVirt release whose API is served.
pub const KUBEVIRT: &str = "v1.9.0";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    carrack: &'static str,
    kubernetes_api: &'static str,
    kubevirt_api: &'static str,
    platform: String,
}

/// Prints it.
pub fn run(args: &VersionArgs) -> anyhow::Result<()> {
    let version = Version {
        carrack: concat!("v", env!("CARGO_PKG_VERSION")),
        kubernetes_api: KUBERNETES,
        kubevirt_api: KUBEVIRT,
        platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    };
    output::print(args.output, &version, || {
        format!(
            "carrack {}\nKubernetes API {}\nKubeVirt API {}\nplatform {}\n",
            version.carrack, version.kubernetes_api, version.kubevirt_api, version.platform
        )
    })
}
