//! What a driver has to be told, gathered from the API: attachment, secrets, what the driver asks for.

use std::collections::BTreeMap;

use carrack_types::resource::Object as _;
use carrack_types::volume::attachment_name;
use k8s_openapi::api::core::v1::{Pod, ServiceAccountTokenProjection};
use k8s_openapi::api::storage::v1::CSIDriverSpec;
use serde_json::json;

use super::origin::{Driver, SecretName};
use super::staged::{Attached, Secrets, StageInputs};
use super::{GroupPolicy, NotReady, PayloadSources, Published};
use crate::config::NodeConfig;
use crate::spec::pod::spec;

/// Under this name tokens are handed to a driver.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Everything that is gathered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inputs {
    pub stage: StageInputs,
    pub publish_context: BTreeMap<String, String>,
    pub publish_secrets: Secrets,
    pub pod_info: bool,
    pub tokens: Secrets,
    pub republish: bool,
    pub group_policy: GroupPolicy,
}

impl Inputs {
    /// When nothing can be read.
    pub fn confirm_only() -> Self {
        Self { stage: StageInputs { confirm_only: true, ..StageInputs::default() }, ..Self::default() }
    }
}

/// Gathers what a driver has to be told about a pod's volume.
///
/// # Errors
/// [`NotReady`] while something is not read or not there.
pub(super) fn inputs(
    pod: &Pod,
    published: &Published,
    config: &NodeConfig,
    sources: &dyn PayloadSources,
) -> Result<Inputs, NotReady> {
    let security = spec(pod).security_context.as_ref();
    let fs_group = security.and_then(|s| s.fs_group);
    let by_pod = match security.and_then(|s| s.fs_group_change_policy.as_deref()) {
        Some("OnRootMismatch") => GroupPolicy::OnRootMismatch,
        _ => GroupPolicy::Always,
    };
    let origin = &published.origin;
    let mut out = Inputs::default();
    out.stage.fs_group = fs_group;
    match &origin.driver {
        Driver::Local { .. } => out.group_policy = by_pod,
        Driver::HostPath { .. } | Driver::Nfs { .. } => {}
        Driver::Flex { driver, secret: name, .. } => {
            if config.controller_attach && sources.flex_attaches(driver)? {
                out.stage.attached = Attached::ByNode;
            }
            // Whether the driver takes groups is known once it was asked; the adapter knows.
            out.group_policy = by_pod;
            out.stage.secrets = secrets(name.as_ref(), sources)?;
            out.publish_secrets = out.stage.secrets.clone();
        }
        Driver::Csi { driver, handle, stage_secret, publish_secret, ephemeral, .. } => {
            let about = sources.csi_driver(driver)?.map(|d| d.spec.clone());
            out.pod_info = about.as_ref().and_then(|s| s.pod_info_on_mount) == Some(true);
            out.republish = about.as_ref().and_then(|s| s.requires_republish) == Some(true);
            let tokens = about.as_ref().map_or(Ok(None), |about| tokens(pod, about, sources))?;
            serves(driver, if *ephemeral { "Ephemeral" } else { "Persistent" }, about.as_ref())?;
            if !*ephemeral && about.as_ref().and_then(|s| s.attach_required) != Some(false) {
                out.stage.attached = attached(handle, driver, config, sources)?;
                if let Attached::With { context, .. } = &out.stage.attached {
                    out.publish_context.clone_from(context);
                }
            }
            let single_writer = origin.access_modes.iter().any(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod");
            out.group_policy = match about.as_ref().and_then(|s| s.fs_group_policy.as_deref()) {
                Some("None") => GroupPolicy::None,
                Some("File") => by_pod,
                _ if single_writer && !origin.fs_type.is_empty() => by_pod,
                _ => GroupPolicy::None,
            };
            out.stage.secrets = secrets(stage_secret.as_ref(), sources)?;
            out.publish_secrets = secrets(publish_secret.as_ref(), sources)?;
            if let Some(tokens) = tokens {
                let in_secrets = about.as_ref().and_then(|s| s.service_account_token_in_secrets) == Some(true);
                let to = if in_secrets { &mut out.publish_secrets } else { &mut out.tokens };
                to.0.insert(TOKENS.to_owned(), tokens.into_bytes());
            }
        }
    }
    if fs_group.is_none() || origin.read_only || origin.block {
        out.group_policy = GroupPolicy::None;
    }
    Ok(out)
}

/// Whether a driver has volumes that live so; without a word from it, they are persistent (upstream's
/// `supportsVolumeLifecycleMode`, `pkg/volume/csi/csi_mounter.go`).
fn serves(driver: &str, mode: &str, about: Option<&CSIDriverSpec>) -> Result<(), NotReady> {
    let modes = about.and_then(|s| s.volume_lifecycle_modes.as_deref()).unwrap_or_default();
    let (serves, why) = match modes {
        [] => (mode == "Persistent", "no CSIDriver says so".to_owned()),
        modes => (modes.iter().any(|m| m == mode), format!("it supports {}", modes.join(", "))),
    };
    match serves {
        true => Ok(()),
        false => Err(NotReady::Failed(format!("volume mode \"{mode}\" not supported by driver {driver} ({why})"))),
    }
}

/// The tokens that a driver wants of the pod's service account, by audience (upstream's `podServiceAccountTokenAttrs`).
fn tokens(pod: &Pod, about: &CSIDriverSpec, sources: &dyn PayloadSources) -> Result<Option<String>, NotReady> {
    let mut all = serde_json::Map::new();
    for request in about.token_requests.iter().flatten() {
        let projection = ServiceAccountTokenProjection {
            audience: Some(request.audience.clone()),
            expiration_seconds: request.expiration_seconds,
            path: String::new(),
        };
        let token = sources.token(pod, &projection)?;
        let status = json!({"token": token.token, "expirationTimestamp": token.expires});
        all.insert(request.audience.clone(), status);
    }
    Ok((!all.is_empty()).then(|| serde_json::Value::Object(all).to_string()))
}

fn attached(
    handle: &str,
    driver: &str,
    config: &NodeConfig,
    sources: &dyn PayloadSources,
) -> Result<Attached, NotReady> {
    let name = attachment_name(driver, handle, &config.node_name);
    let (attachment, read_at) = sources.attachment(&name)?;
    let Some(attachment) = attachment else {
        return Ok(Attached::Waiting(format!("volume attachment is being waited for: {name}")));
    };
    let status = attachment.status.as_ref();
    if let Some(error) = status.and_then(|s| s.attach_error.as_ref()).and_then(|e| e.message.clone()) {
        return Ok(Attached::Waiting(format!("AttachVolume.Attach failed: {error}")));
    }
    if attachment.is_deleting() || !status.is_some_and(|s| s.attached) {
        return Ok(Attached::Waiting(format!("volume is not attached yet, says {name}")));
    }
    Ok(Attached::With { context: status.and_then(|s| s.attachment_metadata.clone()).unwrap_or_default(), read_at })
}

/// The entries of a secret; none where none is named.
///
/// # Errors
/// [`NotReady`] while it is not read or not there.
pub(super) fn secrets(name: Option<&SecretName>, sources: &dyn PayloadSources) -> Result<Secrets, NotReady> {
    let Some((namespace, name)) = name else { return Ok(Secrets::default()) };
    let Some(secret) = sources.secret(namespace, name)? else {
        return Err(NotReady::Failed(format!("secret \"{name}\" not found in namespace {namespace}")));
    };
    let data = secret.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
    Ok(Secrets(data.collect()))
}
