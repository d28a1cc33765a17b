//! Calls to the driver, through its socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use carrack_csi::v1 as csi;
use carrack_csi::v1::controller_client::ControllerClient;
use carrack_engine::shell::{Doer, EventSink, random_seed, run_core};
use carrack_engine::{Rng, Transport};
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::volume_content_source as content;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::calls::{Access, Answer, Call, CallError, From, NewVolume};
use super::{In, Out, Provisioner};
use crate::TOPOLOGY;

/// How long a call may take. One that takes longer goes on at the driver, and is asked for again.
const CALL: Duration = Duration::from_secs(120);
/// How long a driver that is busy is left alone, at first and at most.
const FIRST_TURN: Duration = Duration::from_millis(20);
const LAST_TURN: Duration = Duration::from_secs(1);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);

struct Caller {
    socket: PathBuf,
    node: Arc<str>,
    events: Option<EventSink<In>>,
}

impl Doer<Out, In> for Caller {
    fn start(&mut self, events: EventSink<In>) {
        self.events = Some(events);
    }
    fn run(&mut self, out: Out) {
        // It is the only one of its node, and takes part in no election.
        let (Out::Call { id, call }, Some(events)) = (out, self.events.clone()) else { return };
        let (socket, node) = (self.socket.clone(), self.node.clone());
        tokio::spawn(async move {
            let late = |_| failed(format!("the driver gave no answer within {} s", CALL.as_secs()));
            let ended = tokio::time::timeout(CALL, in_turn(&socket, &node, &call)).await.unwrap_or_else(late);
            let outcome = ended.map_err(|refusal| refusal.error);
            events.send(In { id, outcome });
        });
    }
}

/// Why a driver did not do what it was asked for.
struct Refusal {
    /// It does something else with the same volume (the protocol's `ABORTED`): it is to be asked again, ever less often.
    busy: bool,
    error: CallError,
}

impl std::convert::From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        Self { busy: false, error }
    }
}

fn failed(message: impl Into<String>) -> Result<Answer, Refusal> {
    Err(CallError { no_room: false, message: message.into() }.into())
}

fn refused(status: &Status) -> Refusal {
    let message = format!("rpc error: code = {:?} desc = {}", status.code(), status.message());
    Refusal {
        busy: status.code() == Code::Aborted,
        error: CallError { no_room: status.code() == Code::ResourceExhausted, message },
    }
}

/// Calls the driver once it has ended what else it does with the volume. That it is busy is no failure, and told to nobody.
async fn in_turn(socket: &Path, node: &str, call: &Call) -> Result<Answer, Refusal> {
    let mut pause = FIRST_TURN;
    loop {
        match make(socket.to_owned(), node, call.clone()).await {
            Err(Refusal { busy: true, .. }) => tokio::time::sleep(pause).await,
            ended => return ended,
        }
        pause = (pause * 2).min(LAST_TURN);
    }
}

async fn dial(socket: PathBuf) -> Result<Channel, CallError> {
    let error = |e: String| CallError { no_room: false, message: format!("connecting to the driver: {e}") };
    let endpoint = Endpoint::try_from("http://localhost").map_err(|e| error(e.to_string()))?;
    let dial = endpoint.connect_with_connector(tower::service_fn(move |_: http::Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    }));
    match tokio::time::timeout(CONNECT, dial).await {
        Ok(dialed) => dialed.map_err(|e| error(e.to_string())),
        Err(_) => Err(error("it took too long".to_owned())),
    }
}

fn capability(v: &NewVolume, access: Access) -> csi::VolumeCapability {
    let mode = match access {
        Access::OneNode => Mode::SingleNodeWriter,
        Access::ManyRead => Mode::MultiNodeReaderOnly,
        Access::Many => Mode::MultiNodeMultiWriter,
    };
    let access_type = match v.block {
        true => AccessType::Block(BlockVolume {}),
        false => AccessType::Mount(MountVolume {
            fs_type: v.fs_type.clone(),
            mount_flags: v.mount_options.clone(),
            volume_mount_group: String::new(),
        }),
    };
    csi::VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A size that a driver tells; what is negative is nothing.
fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// A volume that was made, of whatever size: one that is too small has to go before another is made, which is not decided here.
fn created(volume: Option<csi::Volume>) -> Result<Answer, Refusal> {
    // An empty answer is none: a PersistentVolume of it would be of nothing.
    let Some(made) = volume.filter(|v| !v.volume_id.is_empty()) else {
        return failed("the driver says that it made a volume, and names none");
    };
    Ok(Answer::Created {
        handle: made.volume_id,
        bytes: unsigned(made.capacity_bytes),
        context: made.volume_context,
        topologies: made.accessible_topology.into_iter().map(|t| t.segments).collect(),
    })
}

/// A snapshot that there is.
fn taken(snapshot: csi::Snapshot) -> Result<Answer, Refusal> {
    if !snapshot.ready_to_use {
        return failed("the snapshot is not ready yet");
    }
    let at = snapshot.creation_time.unwrap_or_default();
    Ok(Answer::Taken {
        handle: snapshot.snapshot_id,
        bytes: unsigned(snapshot.size_bytes),
        made_unix_ns: at.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(at.nanos)),
    })
}

async fn make(socket: PathBuf, node: &str, call: Call) -> Result<Answer, Refusal> {
    let mut driver = ControllerClient::new(dial(socket).await?);
    match call {
        Call::Create(v) => {
            let here = csi::Topology { segments: [(TOPOLOGY.to_owned(), node.to_owned())].into() };
            let request = csi::CreateVolumeRequest {
                name: v.name.clone(),
                capacity_range: Some(csi::CapacityRange { required_bytes: signed(v.bytes), limit_bytes: 0 }),
                volume_capabilities: v.access.iter().map(|a| capability(&v, *a)).collect(),
                parameters: v.parameters.clone(),
                secrets: std::collections::BTreeMap::new(),
                volume_content_source: v.from.clone().map(|from| csi::VolumeContentSource {
                    r#type: Some(match from {
                        From::Snapshot(snapshot_id) => content::Type::Snapshot(content::SnapshotSource { snapshot_id }),
                        From::Volume(volume_id) => content::Type::Volume(content::VolumeSource { volume_id }),
                    }),
                }),
                accessibility_requirements: Some(csi::TopologyRequirement {
                    requisite: vec![here.clone()],
                    preferred: vec![here],
                }),
            };
            let reply = driver.create_volume(request).await.map_err(|s| refused(&s))?.into_inner();
            created(reply.volume)
        }
        Call::Delete(volume_id) => {
            let request = csi::DeleteVolumeRequest { volume_id, ..csi::DeleteVolumeRequest::default() };
            driver.delete_volume(request).await.map_err(|s| refused(&s))?;
            Ok(Answer::Deleted)
        }
        Call::Snapshot(name, of) if of.is_empty() => {
            let request =
                csi::ListSnapshotsRequest { snapshot_id: name.clone(), ..csi::ListSnapshotsRequest::default() };
            let reply = driver.list_snapshots(request).await.map_err(|s| refused(&s))?.into_inner();
            let found = reply.entries.into_iter().filter_map(|entry| entry.snapshot).find(|s| s.snapshot_id == name);
            found.map_or(Ok(Answer::Deleted), taken)
        }
        Call::Snapshot(name, source_volume_id) => {
            let request =
                csi::CreateSnapshotRequest { source_volume_id, name, ..csi::CreateSnapshotRequest::default() };
            let reply = driver.create_snapshot(request).await.map_err(|s| refused(&s))?.into_inner();
            let Some(snapshot) = reply.snapshot.filter(|s| !s.snapshot_id.is_empty()) else {
                return failed("the driver says that it took a snapshot, and names none");
            };
            taken(snapshot)
        }
        Call::DeleteSnapshot(snapshot_id) => {
            let request = csi::DeleteSnapshotRequest { snapshot_id, ..csi::DeleteSnapshotRequest::default() };
            driver.delete_snapshot(request).await.map_err(|s| refused(&s))?;
            Ok(Answer::Deleted)
        }
        Call::Expand(volume_id, bytes) => {
            let request = csi::ControllerExpandVolumeRequest {
                volume_id,
                capacity_range: Some(csi::CapacityRange { required_bytes: signed(bytes), limit_bytes: 0 }),
                ..csi::ControllerExpandVolumeRequest::default()
            };
            let reply = driver.controller_expand_volume(request).await.map_err(|s| refused(&s))?.into_inner();
            if unsigned(reply.capacity_bytes) < bytes {
                return failed(format!("the driver made it {} bytes of {bytes}", reply.capacity_bytes));
            }
            Ok(Answer::Expanded { bytes: unsigned(reply.capacity_bytes), on_node: reply.node_expansion_required })
        }
    }
}

/// Runs the controllers of a node's driver until `stop`.
///
/// # Errors
/// Why they ended.
pub async fn run(
    node: &str,
    socket: PathBuf,
    transport: Arc<dyn Transport>,
    stop: impl Future<Output = ()>,
) -> Result<(), String> {
    let core = Provisioner::new(node, Rng::new(random_seed()));
    run_core(core, transport, Caller { socket, node: node.into(), events: None }, stop).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the driver has made is told as it is.
    #[test]
    fn volumes_are_told_of_whatever_their_size() {
        let volume = |volume_id: &str, capacity_bytes: i64| csi::Volume {
            volume_id: volume_id.to_owned(),
            capacity_bytes,
            ..csi::Volume::default()
        };
        for (answer, expected) in [
            (Some(volume("v", 1 << 30)), Some(1 << 30)),
            (Some(volume("v", 1)), Some(1)),
            (Some(volume("v", -1)), Some(0)),
            (Some(volume("", 1)), None),
            (None, None),
        ] {
            let case = format!("{answer:?}");
            let told = created(answer).ok().and_then(|answer| match answer {
                Answer::Created { bytes, .. } => Some(bytes),
                _ => None,
            });
            assert_eq!(told, expected, "{case}");
        }
    }
}
