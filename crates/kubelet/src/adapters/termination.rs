//! What a container left behind as its last words: its termination message, or the end of its log.

use k8s_cri::v1;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, SeekFrom};

use crate::runtime::labels;

/// Longest termination message, and longest end of a log in its place, in bytes; most lines of it
/// (kubernetes pkg/kubelet/kuberuntime).
const MAX_MESSAGE: u64 = 4096;
const MAX_LOG: usize = 2048;
const MAX_LINES: usize = 80;

/// The message of a container that is over.
pub(super) async fn message(s: &v1::ContainerStatus) -> String {
    let mut text = String::new();
    if let Some(path) = s.annotations.get(labels::TERMINATION_PATH)
        && let Some(m) = s.mounts.iter().find(|m| m.container_path == *path)
    {
        text = read(&m.host_path, false).await;
    }
    let fall_back = s.annotations.get(labels::TERMINATION_POLICY).is_some_and(|p| p == "FallbackToLogsOnError");
    if text.is_empty() && fall_back && s.exit_code != 0 {
        text = log_end(&read(&s.log_path, true).await);
    }
    if text.is_empty() { s.message.clone() } else { text }
}

/// The start or the end of a file; nothing where it cannot be read, which is no news of the container.
async fn read(path: &str, end: bool) -> String {
    let work = async {
        let mut file = tokio::fs::File::open(path).await?;
        let limit = if end { 64 << 10 } else { MAX_MESSAGE };
        if end {
            let length = file.metadata().await?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(limit))).await?;
        }
        let mut out = Vec::new();
        file.take(limit).read_to_end(&mut out).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&out).into_owned())
    };
    work.await.unwrap_or_default()
}

/// The last lines' texts of a log in the CRI format, `<time> <stream> <tags> <text>`.
fn log_end(raw: &str) -> String {
    let lines: Vec<&str> = raw.lines().filter_map(|l| l.splitn(4, ' ').nth(3)).collect();
    let text = lines[lines.len().saturating_sub(MAX_LINES)..].join("\n");
    let mut from = text.len().saturating_sub(MAX_LOG);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log() {
        assert_eq!(log_end("t stdout F one\nt stderr F two words\n"), "one\ntwo words");
        assert_eq!(log_end("cut off\n"), "");
        let long = format!("t stdout F {}\n", "ü".repeat(2000));
        assert_eq!(log_end(&long).len(), MAX_LOG);
    }

    #[tokio::test]
    async fn last_words() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let log = write("log", "t stdout F first\nt stderr F last\n");
        let (said, silent) = (write("said", "bad luck"), write("silent", ""));
        let long = write("long", &"x".repeat(9000));
        let missing = dir.path().join("missing").display().to_string();
        for (file, policy, code, want) in [
            (&said, "File", 0, "bad luck"),
            (&said, "FallbackToLogsOnError", 1, "bad luck"),
            (&silent, "File", 1, "of the runtime"),
            (&silent, "FallbackToLogsOnError", 1, "first\nlast"),
            // Nothing went wrong: logs are no message.
            (&silent, "FallbackToLogsOnError", 0, "of the runtime"),
            (&missing, "FallbackToLogsOnError", 2, "first\nlast"),
            (&missing, "File", 2, "of the runtime"),
            (&long, "File", 0, &"x".repeat(4096)),
        ] {
            let annotations =
                [(labels::TERMINATION_PATH, "/dev/termination-log"), (labels::TERMINATION_POLICY, policy)];
            let status = v1::ContainerStatus {
                exit_code: code,
                message: "of the runtime".into(),
                log_path: log.clone(),
                annotations: annotations.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
                mounts: vec![v1::Mount {
                    container_path: "/dev/termination-log".into(),
                    host_path: file.clone(),
                    ..v1::Mount::default()
                }],
                ..v1::ContainerStatus::default()
            };
            assert_eq!(message(&status).await, want, "{file} {policy} {code}");
        }
    }
}
