//! What the guest's probes ask: whether its agent is there, or whether a command in the guest does well.
//!
//! A guest whose file systems are frozen runs no commands, and one that is being frozen answers nothing at all. Somebody wanted it so,
//! such as a snapshot, and thaws it in time: probes that fail meanwhile would end it.

use crate::agent::{Agent, AgentError, Freezing};
use crate::layout::Layout;
use serde_json::json;
use std::time::Duration;

/// Asks. Without a command, the agent is only asked whether it is there.
///
/// # Errors
/// Nobody answers, or the command has failed; for people.
pub(crate) async fn ask(layout: &Layout, command: &[String], deadline: Duration) -> Result<(), String> {
    tokio::select! {
        biased;
        () = Freezing::heard(layout) => Ok(()),
        answer = answered(layout, command, deadline) => answer,
    }
}

async fn answered(layout: &Layout, command: &[String], deadline: Duration) -> Result<(), String> {
    let text = |error: AgentError| error.to_string();
    let mut agent = Agent::connect(&layout.agent_socket()).await.map_err(text)?;
    let Some((program, arguments)) = command.split_first() else {
        return agent.execute("guest-ping", json!({}), deadline).await.map(drop).map_err(text);
    };
    let ended = agent.exec(program, arguments, deadline).await;
    match ended {
        Ok(exit) if exit.code == 0 => Ok(()),
        Ok(exit) => Err(format!("{program} ended with {}", exit.code)),
        Err(refused @ AgentError::Refused { .. }) => {
            let status = agent.execute("guest-fsfreeze-status", json!({}), deadline).await;
            if status.is_ok_and(|said| said == "frozen") { Ok(()) } else { Err(text(refused)) }
        }
        Err(error) => Err(text(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;
    use serde_json::Value;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixListener;

    /// An agent that says this of its file systems, and whose commands end with this code, if they run.
    async fn play(listener: UnixListener, status: &str, code: Option<i64>) {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        let (reader, mut writer) = stream.split();
        let mut lines = BufReader::new(reader).lines();
        while let Some(line) = lines.next_line().await.ok().flatten() {
            let asked: Value = serde_json::from_str(&line).expect("JSON");
            let answer = match (asked["execute"].as_str().unwrap_or_default(), code) {
                ("guest-sync", _) => json!({"return": asked["arguments"]["id"]}),
                ("guest-fsfreeze-status", _) => json!({"return": status}),
                ("guest-exec", Some(_)) => json!({"return": {"pid": 1}}),
                ("guest-exec-status", Some(code)) => json!({"return": {"exited": true, "exitcode": code}}),
                _ => json!({"error": {"class": "GenericError", "desc": "no"}}),
            };
            writer.write_all(format!("{answer}\n").as_bytes()).await.expect("written");
        }
    }

    #[tokio::test]
    async fn a_guest_that_is_frozen_is_not_taken_for_dead() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::on_host(dir.path(), "u1");
        std::fs::create_dir_all(layout.machine_dir()).expect("made");
        let command = ["true".to_owned()];
        let deadline = Duration::from_secs(10);
        for (status, code, wanted) in [
            ("thawed", Some(0), Ok(())),
            ("thawed", Some(3), Err("true ended with 3".to_owned())),
            ("thawed", None, Err("the guest agent refused guest-exec: no".to_owned())),
            ("frozen", None, Ok(())),
        ] {
            let listener = layout::listen(&layout.agent_socket()).expect("listens");
            let (asked, ()) = tokio::join!(ask(&layout, &command, deadline), play(listener, status, code));
            assert_eq!(asked, wanted, "{status} {code:?}");
        }
        // While it is being frozen, its agent answers nobody.
        let _silent = layout::listen(&layout.agent_socket()).expect("listens");
        let freezing = Freezing::say(&layout).await.expect("said");
        assert_eq!(ask(&layout, &command, deadline).await, Ok(()));
        drop(freezing);
        assert!(ask(&layout, &command, deadline).await.is_err());
    }
}
