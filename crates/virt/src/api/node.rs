//! Calls that the handler on the instance's node answers.

use std::borrow::Cow;

use carrack_apiserver::body::json as json_reply;
use carrack_apiserver::{Body, LocalRequest, NodeTarget, Response, Scheme, Status};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, phase};
use carrack_types::resource::{Kind, Object};
use carrack_types::url::segment;
use carrack_types::well_known::kubevirt::{HANDLER_PORT, HANDLER_PORT_ANNOTATION};
use k8s_openapi::api::core::v1::Node;

use super::AnyOptions;
use super::lifecycle::is_running;
use super::objects::Call;
use crate::identity::has_acpi;

const NO_ADDRESS: &str = "no network interfaces are present";

/// Why a call makes no sense for an instance as it is, if it does not: a status code and KubeVirt's words, which speak of the machine
/// in some calls and of its instance in others.
pub(super) fn refusal(vmi: &VirtualMachineInstance, sub: &str) -> Option<(u16, Cow<'static, str>)> {
    const NOT_RUNNING: &str = "VMI is not running";
    let devices = &vmi.spec.domain.devices;
    let words = |code: u16, why: &'static str| Some((code, Cow::from(why)));
    match sub {
        "console" if devices.autoattach_serial_console == Some(false) => words(400, "No serial consoles are present."),
        "console" if vmi.phase() == phase::FAILED => words(409, "VMI is in failed status"),
        "vnc" | "vnc/screenshot" if devices.autoattach_graphics_device == Some(false) => {
            words(400, "No graphics devices are present.")
        }
        "portforward" if vmi.is_paused() => words(409, "VMI is paused"),
        _ if !is_running(vmi) => match sub {
            "console" | "vnc" | "vnc/screenshot" => words(400, NOT_RUNNING),
            "portforward" => words(400, NO_ADDRESS),
            "pause" | "softreboot" | "freeze" => words(409, "VM is not running"),
            "reset" => {
                let phase = vmi.phase();
                let why = "Unable to connect to VirtualMachineInstance because phase is";
                Some((400, format!("{why} {phase} instead of Running or Scheduled").into()))
            }
            _ => words(409, NOT_RUNNING),
        },
        // The guest would be taken for dead.
        "pause" if vmi.spec.liveness_probe.is_some() => {
            words(403, "Pausing VMIs with LivenessProbe is currently not supported")
        }
        "pause" if vmi.is_paused() => words(409, "VMI is already paused"),
        "unpause" if !vmi.is_paused() => words(409, "VMI is not paused"),
        "softreboot" | "freeze" if vmi.is_paused() => words(409, "VMI is paused"),
        "guestosinfo" | "userlist" | "filesystemlist" | "freeze" | "unfreeze" if !vmi.is_true("AgentConnected") => {
            words(409, "VMI does not have guest agent connected")
        }
        "softreboot" if !can_be_asked_to_reboot(vmi) => {
            words(409, "VMI neither have the agent connected nor the ACPI feature enabled")
        }
        _ => None,
    }
}

fn can_be_asked_to_reboot(vmi: &VirtualMachineInstance) -> bool {
    vmi.is_true("AgentConnected") || has_acpi(&vmi.spec.domain)
}

/// Sends the request on.
pub(super) async fn forward(call: &Call<'_>, request: &LocalRequest<'_>, sub: &str) -> Result<Response, Status> {
    let vmi: VirtualMachineInstance = call.get().await?;
    match refusal(&vmi, sub) {
        Some((400, why)) => return Err(Status::bad_request(why)),
        Some((403, why)) => return Err(Status::forbidden("kubevirt.io", "virtualmachineinstance", call.name, &why)),
        Some((_, why)) => return Err(Status::conflict("kubevirt.io", "virtualmachineinstance", call.name, &why)),
        None => {}
    }
    // While a guest's disks are kept, it is paused or frozen for that.
    if sub == "unpause"
        && let Some(vm) = call.find::<VirtualMachine>().await?
        && vm.status.is_some_and(|status| status.snapshot_in_progress.is_some())
    {
        return Err(Status::conflict("kubevirt.io", "virtualmachine", call.name, "VM snapshot is in progress"));
    }
    let node = vmi.status.as_ref().map_or("", |status| status.node_name.as_str());
    let object: Node = call.get_at(&Node::resource().object_path("", node)).await?;
    let port = object.annotation(HANDLER_PORT_ANNOTATION).and_then(|text| text.parse().ok()).unwrap_or(HANDLER_PORT);
    let host = address(&object).ok_or_else(|| Status::unavailable(format!("no address is known of node {node:?}")))?;
    let (namespace, name) = (segment(call.namespace), segment(call.name));
    let mut path = format!("/v1/namespaces/{namespace}/virtualmachineinstances/{name}/{sub}");
    // portforward/<port>[/<protocol>]
    for part in request.resource.rest.iter().filter(|_| sub == "portforward") {
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(Status::bad_request(format!("{part:?} is not understood")));
        }
        path.push('/');
        path.push_str(part);
    }
    for option in ["preserveSession", "moveCursor"] {
        if request.query.flag(option) {
            path.push_str(&format!("{}{option}=true", if path.contains('?') { '&' } else { '?' }));
        }
    }
    // Pause and unpause have an option that leaves everything as it is.
    if request.method == http::Method::PUT {
        let options: AnyOptions = super::options(request)?;
        if super::is_dry_run(options.dry_run.as_deref())? {
            return Ok(json_reply(200, Body::Full(bytes::Bytes::new())));
        }
    }
    let target = NodeTarget { node: node.to_owned(), scheme: Scheme::Agent, host, port, path_and_query: path };
    Ok(json_reply(200, Body::Node(target)))
}

fn address(node: &Node) -> Option<String> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let of = |kind: &str| addresses.iter().find(|address| address.type_ == kind).map(|found| found.address.clone());
    of("InternalIP").or_else(|| of("ExternalIP")).or_else(|| of("Hostname"))
}
