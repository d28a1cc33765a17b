//! What there is to know of operations by their kind alone.

use carrack_kubelet::Op;

use crate::images;

/// Whether the kubelet itself does this to files: it ends with the kubelet.
pub(super) fn ends_with_kubelet(op: &Op) -> bool {
    match op {
        Op::SetUpVolume(setup) => crate::settings::files(setup).is_some(),
        Op::WriteGroups(_)
        | Op::SweepGroups { .. }
        | Op::SaveAllocated(_)
        | Op::SaveActuated(_)
        | Op::SaveRecord { .. }
        | Op::DropRecord(_) => true,
        _ => false,
    }
}

/// Whether an operation concerns CPUs and sizes of pods alone.
pub(super) fn is_aside(op: &Op) -> bool {
    matches!(
        op,
        Op::SaveCpus(_)
            | Op::SaveMemory(_)
            | Op::GiveCpus { .. }
            | Op::WriteGroups(_)
            | Op::SweepGroups { .. }
            | Op::ReadGroup { .. }
            | Op::UpdateContainer { .. }
            | Op::SaveAllocated(_)
            | Op::SaveActuated(_)
    )
}

/// An operation that changes something, for the trace.
pub(super) fn describe(op: &Op) -> Option<String> {
    match op {
        Op::RunSandbox(spec) => Some(format!("runs a sandbox for {}", spec.pod)),
        Op::StopSandbox(id) => Some(format!("stops sandbox {id}")),
        Op::PullImage { image, .. } if images::is_pull(op) => Some(format!("pulls {image}")),
        Op::CreateContainer(_, spec) => Some(format!("creates container {} of {}", spec.name, spec.pod)),
        Op::StartContainer(id) => Some(format!("starts {id}")),
        Op::StopContainer { id, .. } => Some(format!("stops {id}")),
        Op::GiveCpus { id, cpus } => Some(format!("lets {id} run on {cpus}")),
        Op::UpdateContainer { id, limits } => {
            Some(format!("gives {id} a quota of {} and {} bytes", limits.cpu_quota_us, limits.memory_limit_bytes))
        }
        Op::TearDownVolume { uid, path, .. } => Some(format!("unmounts {path} of {uid}")),
        Op::StageVolume(s, _) => Some(format!("mounts {} for the node", s.id)),
        Op::UnstageVolume(s) => Some(format!("unmounts {} from the node", s.id)),
        Op::ExpandVolume(e) => Some(format!("lets the file system at {} grow", e.path)),
        Op::RemovePod { uid, .. } => Some(format!("removes the directories of {uid}")),
        Op::SaveRecord { name, .. } => Some(format!("keeps the record {name}")),
        Op::DropRecord(name) => Some(format!("drops the record {name}")),
        Op::Allocate { resource, ids, .. } => Some(format!("allocates {resource} {ids:?}")),
        Op::LetGoDown => Some("holds the machine up no more".to_owned()),
        _ => None,
    }
}
