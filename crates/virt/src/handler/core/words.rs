//! QEMU's last words.
//!
//! QEMU complains on its standard error, which is its container's log. Nobody of ours outlives it there to pass that on; but of a
//! container that fails, the kubelet tells the end of its log, as the launcher's pod asks it to (`FallbackToLogsOnError`).

use carrack_launcher::argv::PROGRAM;
use carrack_launcher::said::one_line;
use carrack_types::well_known::kubevirt::COMPUTE_CONTAINER;
use k8s_openapi::api::core::v1::Pod;

use crate::handler::spec::status_of;

/// What its lines begin with. Some of its parts call it by its family's name alone, such as the one that loads a kernel.
const NAMES: [&str; 2] = [PROGRAM, "qemu"];
/// How many of its lines are told: the last one often rests on the one before.
const LINES: usize = 2;
/// Most characters of them.
const MOST_CHARS: usize = 300;

/// What is told of an end, with what QEMU said before it, as far as its pod tells that.
pub(super) fn added(detail: &str, pod: Option<&Pod>) -> String {
    match pod.and_then(last) {
        Some(words) => format!("{detail}: {words}"),
        None => detail.to_owned(),
    }
}

/// QEMU's own lines alone: what else is in the log, such as the launcher's, is for those who may read it. Its warnings are
/// older than its end.
fn last(pod: &Pod) -> Option<String> {
    let ended = status_of(pod, COMPUTE_CONTAINER)?.state.as_ref()?.terminated.as_ref()?;
    let lines = ended.message.iter().flat_map(|message| message.lines());
    let lines = lines.filter_map(|line| NAMES.iter().find_map(|name| line.strip_prefix(name)?.strip_prefix(": ")));
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("warning: ") && !line.starts_with("info: ")).collect();
    let last = lines.get(lines.len().saturating_sub(LINES)..).filter(|last| !last.is_empty())?;
    Some(one_line(&last.join("; "), MOST_CHARS))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::added;

    #[test]
    fn qemu_has_the_last_word() {
        let check = |message: &str, wanted: &str| {
            let state = json!({"terminated": {"exitCode": 1, "message": message}});
            let compute = json!({"name": "compute", "state": state, "ready": false, "image": "", "imageID": "",
                "restartCount": 0});
            let pod: Pod =
                carrack_types::json::from_value(json!({"status": {"containerStatuses": [compute]}})).expect("a pod");
            assert_eq!(added("it ended", Some(&pod)), wanted, "{message}");
        };
        check("", "it ended");
        check("the launcher: a token\n", "it ended");
        check("qemu-system-x86_64: unable to find CPU model 'foo'\n", "it ended: unable to find CPU model 'foo'");
        check(
            "qemu-system-x86_64: unsupported machine type\nUse -machine help to list supported machines\n",
            "it ended: unsupported machine type",
        );
        check(
            "qemu-system-x86_64: a\nqemu-system-x86_64: b\nlauncher: x\nqemu-system-x86_64: c\u{7}",
            "it ended: b; c ",
        );
        check("qemu: invalid kernel header\n", "it ended: invalid kernel header");
        check("qemu-img: no\n", "it ended");
        check("qemu-system-x86_64: warning: host doesn't support requested feature\n", "it ended");
        let long = format!("qemu-system-x86_64: {}", "y".repeat(1000));
        check(&long, &format!("it ended: {}", "y".repeat(300)));
        assert_eq!(added("it ended", None), "it ended");
    }
}
