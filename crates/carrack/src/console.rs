#![expect(clippy::disallowed_methods, reason = "shell: waits for a guest with a deadline")]
//! `carrack console`: a guest's serial console over the API server, by KubeVirt's websocket protocol.
//!
//! ```text
//!   terminal (raw) ──stdin thread──► websocket plain.kubevirt.io ──► API server ──► virt-handler ──► guest
//!                  ◄────────────────
//! ```
//!
//! With `--expect` nobody types: Enter is pressed now and then, so that a prompt that stood there before we came is
//! printed again, and the command ends once the text was seen.

mod socket;
mod terminal;

use std::time::Duration;

use anyhow::{Context as _, bail};
use carrack_auth::kubeconfig::Target;
use carrack_engine::{ApiError, ApiRequest, Transport as _};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::resource::{Kind as _, Resource};
use futures::{SinkExt as _, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_tungstenite::tungstenite::Message;

use crate::cli::ConsoleArgs;
use crate::roles::credentials;
use crate::{kubeconfig, output, roles};
use socket::{Refused, Socket};

/// How often Enter is pressed while waiting for a text.
const NUDGE: Duration = Duration::from_secs(2);

/// How often a guest that does not run yet is asked for.
const RETRY: Duration = Duration::from_millis(500);

/// Ctrl+]
const ESCAPE: u8 = 0x1d;

/// Connects, and hands the terminal over.
pub async fn run(args: ConsoleArgs) -> anyhow::Result<()> {
    let target = kubeconfig::target(&args.client)?;
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let socket = connect(&target, &args.name, deadline).await?;
    match &args.expect {
        Some(text) => tokio::time::timeout_at(deadline, expect(socket, text.as_bytes()))
            .await
            .map_err(|_| anyhow::anyhow!("the console did not say {text:?} within {} s", args.timeout))?,
        None => interact(socket, &args.name).await,
    }
}

async fn connect(target: &Target, name: &str, deadline: Instant) -> anyhow::Result<Socket> {
    let namespace = &target.namespace;
    let path = path(namespace, name);
    let mut said = false;
    loop {
        let refused = match socket::open(target, &path).await? {
            Ok(socket) => return Ok(socket),
            Err(refused) => refused,
        };
        if !refused.may_pass() || Instant::now() >= deadline {
            bail!("no console of {namespace}/{name}: {refused}");
        }
        if refused.status == 404 {
            require_machine(target, name, &refused).await?;
        }
        if !said {
            output::say(format_args!("waiting for {namespace}/{name} to run ({refused})"));
            said = true;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Where an instance's console is.
fn path(namespace: &str, name: &str) -> String {
    let of = Resource { group: "subresources.kubevirt.io".into(), ..VirtualMachineInstance::resource() };
    format!("{}/console", of.object_path(namespace, name))
}

/// An instance that is not there yet may come only if there is a machine that makes it.
async fn require_machine(target: &Target, name: &str, refused: &Refused) -> anyhow::Result<()> {
    let namespace = &target.namespace;
    let request = ApiRequest::get(&VirtualMachine::resource(), namespace, name);
    match credentials::reach(target)?.send(request).await {
        Err(error @ ApiError::Status { .. }) if error.is_not_found() => {
            bail!("no console of {namespace}/{name}: {refused}")
        }
        _ => Ok(()),
    }
}

async fn expect(socket: Socket, text: &[u8]) -> anyhow::Result<()> {
    let (mut to_guest, mut from_guest) = socket.split();
    let mut nudge = tokio::time::interval(NUDGE);
    nudge.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = Vec::new();
    loop {
        let message = tokio::select! {
            _ = nudge.tick() => {
                to_guest.send(Message::binary(b"\r".as_slice())).await.context("the console broke off")?;
                continue;
            }
            message = from_guest.next() => message,
        };
        let Some(bytes) = bytes_of(message)? else {
            bail!("the console was closed before it said the text");
        };
        output::write_all(&bytes)?;
        seen.extend_from_slice(&bytes);
        if seen.windows(text.len().max(1)).any(|window| window == text) {
            return output::write_all(b"\n");
        }
        // Only the tail can still become part of a match.
        let keep = seen.len().min(text.len());
        seen.drain(..seen.len() - keep);
    }
}

async fn interact(socket: Socket, name: &str) -> anyhow::Result<()> {
    output::say(format_args!("Successfully connected to {name} console. Press Ctrl+] to exit console."));
    // Ended by default it would leave the terminal as it is for the guest.
    let stop = roles::until_signal()?;
    let terminal = terminal::Raw::enter()?;
    let (mut to_guest, mut from_guest) = socket.split();
    let mut keys = read_keys();
    let outcome = loop {
        tokio::select! {
            typed = keys.recv() => {
                let Some(typed) = typed else { break Ok("end of input") };
                if let Err(error) = to_guest.send(Message::binary(typed)).await {
                    break Err(error).context("the console broke off");
                }
            }
            message = from_guest.next() => match bytes_of(message) {
                Ok(Some(bytes)) => output::write_all(&bytes)?,
                Ok(None) => break Ok("closed by the other side: the guest stopped, or somebody else connected"),
                Err(error) => break Err(error),
            },
            () = stop.cancelled() => break Err(anyhow::anyhow!(roles::ENDED)),
        }
    };
    // The other side need not agree to the end.
    if let Err(error) = to_guest.close().await {
        tracing::debug!(%error, "the websocket was gone already");
    }
    drop(terminal);
    output::say(format_args!("\nconsole of {name}: {}", outcome?));
    Ok(())
}

/// The bytes of a message; `None` when the stream is closed.
fn bytes_of(
    message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>,
) -> anyhow::Result<Option<Vec<u8>>> {
    match message {
        None | Some(Ok(Message::Close(_))) => Ok(None),
        Some(Ok(Message::Binary(bytes))) => Ok(Some(bytes.to_vec())),
        Some(Ok(Message::Text(text))) => Ok(Some(text.as_bytes().to_vec())),
        Some(Ok(_)) => Ok(Some(Vec::new())),
        Some(Err(error)) => Err(error).context("the console broke off"),
    }
}

/// Keys from standard input, up to the escape key. Reading a terminal blocks, so a thread does it; it ends with the
/// process.
fn read_keys() -> mpsc::Receiver<Vec<u8>> {
    use std::io::Read as _;
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        let mut stdin = std::io::stdin().lock();
        while let Ok(count @ 1..) = stdin.read(&mut buffer) {
            let typed = &buffer[..count];
            let escape = typed.iter().position(|byte| *byte == ESCAPE);
            let typed = &typed[..escape.unwrap_or(count)];
            if (!typed.is_empty() && sender.blocking_send(typed.to_vec()).is_err()) || escape.is_some() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_is_asked_for_by_its_machines_name_alone() {
        let root = "/apis/subresources.kubevirt.io/v1/namespaces";
        assert_eq!(path("n", "demo"), format!("{root}/n/virtualmachineinstances/demo/console"));
        let odd = format!("{root}/a%2Fb/virtualmachineinstances/%2E%2E%2Fx%3Fy/console");
        assert_eq!(path("a/b", "../x?y"), odd);
    }
}
