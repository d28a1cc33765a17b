//! What a guest shows and says of itself: its screen, and its agent's answers.

use std::io::{self, Read as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use carrack_launcher::agent::AgentError;
use carrack_launcher::proto::Call;
use carrack_launcher::{Layout, client, layout};
use carrack_types::duration::parse_unsigned;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::super::agent::{self, Agents, Frozen, UNFREEZE_AFTER};
use super::{Body, CALL_DEADLINE, Config, Guests, tell, text};
use crate::handler::agent::{agent_info, filesystems, users};
use crate::handler::effects::Served;

/// Longest picture, bytes.
const MAX_PICTURE: u64 = 64 << 20;
/// Longest options, bytes.
const MAX_OPTIONS: usize = 64 << 10;

static PICTURES: AtomicU64 = AtomicU64::new(0);

/// A picture of the guest's screen.
pub(super) async fn screenshot(layout: &Layout, move_cursor: bool) -> Response<Body> {
    let name = format!("{}x{}", std::process::id(), PICTURES.fetch_add(1, Ordering::Relaxed));
    let call = Call::Screenshot { name: name.clone(), move_cursor };
    if let Err(error) = client::call(&layout.command_socket(), call, CALL_DEADLINE).await {
        return text(StatusCode::INTERNAL_SERVER_ERROR, carrack_engine::causes(&error));
    }
    let path = layout.screenshot(&name);
    let read = tokio::task::spawn_blocking(move || {
        let bytes = picture(&path);
        layout::remove_file(&path)?;
        bytes
    });
    match read.await {
        Ok(Ok(bytes)) => typed("image/png", bytes.into()),
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("the picture cannot be read: {error}")),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// What the launcher has written. It may be anything that somebody in its container has put there instead.
fn picture(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    layout::open_file(path)?.take(MAX_PICTURE + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_PICTURE) {
        return Ok(bytes);
    }
    Err(io::Error::other("the picture is too large"))
}

/// Has the guest start again: by its agent, if there is one that can, and else by the power button. (Upstream:
/// `SoftRebootVMI` in pkg/virt-launcher, which does not try the button where there is an agent.)
pub(super) async fn soft_reboot(agents: &Agents, guest: &Served, layout: &Layout) -> Response<Body> {
    let known = client::call(&layout.command_socket(), Call::Status, CALL_DEADLINE).await;
    if known.is_ok_and(|domain| domain.agent_connected) {
        let uid = &guest.place.uid;
        match agent::reboot(agents, uid, layout).await {
            Ok(()) => return Response::new(Full::default()),
            Err(error) => tracing::info!(uid, %error, "a guest is not restarted by its agent"),
        }
    }
    tell(layout, Call::SoftReboot).await
}

/// Answers of the guest's agent: `guestosinfo`, `userlist` or `filesystemlist`.
pub(super) async fn info(agents: &Agents, guest: &Served, layout: &Layout, what: &str) -> Response<Body> {
    let uid = &guest.place.uid;
    let list = |kind: &str, items: Vec<Value>| json!({"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {}, "items": items});
    let said = match what {
        "userlist" => agent::ask(agents, uid, layout, "guest-get-users")
            .await
            .map(|answer| list("VirtualMachineInstanceGuestOSUserList", users(&answer))),
        "filesystemlist" => agent::ask(agents, uid, layout, "guest-get-fsinfo")
            .await
            .map(|answer| list("VirtualMachineInstanceFileSystemList", filesystems(&answer))),
        _ => agent::ask_all(agents, uid, layout).await.map(|answers| {
            let mut info = agent_info(&answers);
            info["apiVersion"] = json!("kubevirt.io/v1");
            info["kind"] = json!("VirtualMachineInstanceGuestAgentInfo");
            info
        }),
    };
    match said {
        Ok(value) => typed("application/json", value.to_string().into()),
        Err(error) => refused(&error),
    }
}

/// Freezes the guest's file systems, until they are thawed or the time is over.
pub(super) async fn freeze(
    config: &Config,
    guests: &Guests,
    guest: &Served,
    request: Request<Incoming>,
) -> Response<Body> {
    let body = match Limited::new(request.into_body(), MAX_OPTIONS).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("the options cannot be read: {error}")),
    };
    let options: Value = if body.iter().all(u8::is_ascii_whitespace) {
        json!({})
    } else {
        match serde_json::from_slice(&body) {
            Ok(options) => options,
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("the options are not understood: {error}")),
        }
    };
    let after = match options["unfreezeTimeout"].as_str().filter(|text| !text.is_empty()) {
        None => UNFREEZE_AFTER,
        Some(given) => match parse_unsigned(given) {
            // Zero is KubeVirt's word for never; a guest that is never thawed is of no use, so that is bounded, too.
            Some(Duration::ZERO) => Duration::from_secs(3600),
            Some(after) => after,
            None => return text(StatusCode::BAD_REQUEST, format!("unfreezeTimeout {given:?} is no duration")),
        },
    };
    let (frozen, place) = (Frozen::new(&config.state_dir), &guest.place);
    let answer = agent::freeze(&guests.agents, &frozen, place, &config.layout(place), after).await;
    guests.agent_changed(&place.uid);
    match answer {
        Ok(Ok(())) => Response::new(Full::default()),
        Ok(Err(error)) => refused(&error),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("it cannot be written down: {error}")),
    }
}

/// Thaws the guest's file systems.
pub(super) async fn unfreeze(config: &Config, guests: &Guests, guest: &Served) -> Response<Body> {
    let (frozen, place) = (Frozen::new(&config.state_dir), &guest.place);
    let answer = agent::thaw(&guests.agents, &frozen, place, &config.layout(place)).await;
    guests.agent_changed(&place.uid);
    match answer {
        Ok(()) => Response::new(Full::default()),
        Err(error) => refused(&error),
    }
}

fn refused(error: &AgentError) -> Response<Body> {
    text(StatusCode::INTERNAL_SERVER_ERROR, carrack_engine::causes(error))
}

fn typed(kind: &'static str, bytes: Bytes) -> Response<Body> {
    let mut reply = Response::new(Full::new(bytes));
    reply.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}
