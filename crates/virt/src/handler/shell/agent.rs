#![expect(
    clippy::disallowed_methods,
    reason = "shell: it reads the clock for what it thaws what was frozen when its time is over"
)]
//! Asks guests' agents. One question at a time for each guest: the channel serves one client.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use carrack_launcher::Layout;
use carrack_launcher::agent::{Agent, AgentError};
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;

use super::{Config, lock, record};
use crate::handler::agent::{Answers, interfaces, os_info};
use crate::handler::effects::{AgentQuestion, AgentReport, Credential, Place};

/// How long an agent may take for one answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long freezing may take: the guest writes everything out first.
const FREEZE_DEADLINE: Duration = Duration::from_secs(60);
/// How long a guest stays frozen unless somebody says otherwise; KubeVirt's choice.
pub(super) const UNFREEZE_AFTER: Duration = Duration::from_secs(300);

/// The guests that are being asked.
#[derive(Clone, Debug, Default)]
pub struct Agents {
    turns: Arc<Mutex<BTreeMap<String, Arc<AsyncMutex<()>>>>>,
}

impl Agents {
    /// The turn of a guest.
    pub(super) fn turn(&self, uid: &str) -> Arc<AsyncMutex<()>> {
        lock(&self.turns).entry(uid.to_owned()).or_default().clone()
    }

    /// Forgets guests that are gone.
    pub(super) fn retain(&self, there: impl Fn(&str) -> bool) {
        lock(&self.turns).retain(|uid, _| there(uid));
    }
}

/// Everything that the status shows, and credentials, where they changed.
pub(super) async fn report(
    config: &Config,
    agents: &Agents,
    question: &AgentQuestion,
) -> Result<AgentReport, AgentError> {
    let place = &question.place;
    let turn = agents.turn(&place.uid);
    let _turn = turn.lock().await;
    let mut agent = Agent::connect(&config.layout(place).agent_socket()).await?;
    let os = agent.execute("guest-get-osinfo", json!({}), DEADLINE).await?;
    let nics = optional(agent.execute("guest-network-get-interfaces", json!({}), DEADLINE).await)?;
    let frozen = optional(agent.execute("guest-fsfreeze-status", json!({}), DEADLINE).await)?;
    let mut report =
        AgentReport { os: os_info(&os), interfaces: interfaces(&nics), frozen: frozen == "frozen", credentials: None };
    if !question.credentials.is_empty() {
        report.credentials = Some(credentials(config, place, &mut agent, question).await);
    }
    Ok(report)
}

/// A refusal is an agent that does not know the question; it is no failure.
fn optional(answer: Result<Value, AgentError>) -> Result<Value, AgentError> {
    match answer {
        Err(AgentError::Refused { .. }) => Ok(Value::Null),
        other => other,
    }
}

/// Puts credentials into the guest, if they are not those that were put there last. Returns what they are told by.
async fn credentials(
    config: &Config,
    place: &Place,
    agent: &mut Agent,
    question: &AgentQuestion,
) -> Result<u64, String> {
    let volumes = config.kubelet_dir.join("pods").join(&place.pod_uid).join("volumes/kubernetes.io~secret");
    let mut wanted = Vec::new();
    for credential in &question.credentials {
        let files = record::read_files(&volumes.join(credential.volume()))
            .map_err(|error| format!("cannot read the secret {}: {error}", credential.volume()))?;
        wanted.push((credential, files));
    }
    let print = carrack_engine::fnv1a(format!("{wanted:?}").as_bytes());
    if question.applied == Some(print) {
        return Ok(print);
    }
    for (credential, files) in wanted {
        match credential {
            Credential::Keys { users, .. } => {
                let lines = files.values().flat_map(|text| text.lines()).map(str::trim);
                let keys: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
                for user in users {
                    let arguments = json!({"username": user, "keys": keys, "reset": true});
                    let answer = agent.execute("guest-ssh-add-authorized-keys", arguments, DEADLINE).await;
                    answer.map_err(|error| format!("the keys of {user}: {}", carrack_engine::causes(&error)))?;
                }
            }
            Credential::Passwords { .. } => {
                for (user, password) in &files {
                    let password =
                        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, password.trim_end());
                    let arguments = json!({"username": user, "password": password, "crypted": false});
                    let answer = agent.execute("guest-set-user-password", arguments, DEADLINE).await;
                    answer.map_err(|error| format!("the password of {user}: {}", carrack_engine::causes(&error)))?;
                }
            }
        }
    }
    Ok(print)
}

/// Everything that `guestosinfo` shows.
pub(super) async fn ask_all(agents: &Agents, uid: &str, layout: &Layout) -> Result<Answers, AgentError> {
    let turn = agents.turn(uid);
    let _turn = turn.lock().await;
    let mut agent = Agent::connect(&layout.agent_socket()).await?;
    let mut answers = Answers { info: agent.execute("guest-info", json!({}), DEADLINE).await?, ..Answers::default() };
    for (command, into) in [
        ("guest-get-osinfo", &mut answers.os),
        ("guest-get-host-name", &mut answers.host),
        ("guest-get-timezone", &mut answers.zone),
        ("guest-get-users", &mut answers.users),
        ("guest-get-fsinfo", &mut answers.filesystems),
        ("guest-fsfreeze-status", &mut answers.frozen),
    ] {
        *into = optional(agent.execute(command, json!({}), DEADLINE).await)?;
    }
    Ok(answers)
}

/// One question.
pub(super) async fn ask(
    agents: &Agents,
    uid: &str,
    layout: &Layout,
    command: &'static str,
) -> Result<Value, AgentError> {
    let turn = agents.turn(uid);
    let _turn = turn.lock().await;
    let deadline = if command.starts_with("guest-fsfreeze") { FREEZE_DEADLINE } else { DEADLINE };
    Agent::connect(&layout.agent_socket()).await?.execute(command, json!({}), deadline).await
}

/// Guests that were frozen, and until when. Kept on the node: a handler that dies must not leave a guest frozen.
pub(super) struct Frozen {
    directory: PathBuf,
}

impl Frozen {
    pub(super) fn new(state_dir: &Path) -> Self {
        Self { directory: state_dir.join("frozen") }
    }

    fn file(&self, uid: &str) -> PathBuf {
        self.directory.join(format!("{uid}.json"))
    }

    /// Writes down that a guest is to be thawed, before it is frozen.
    pub(super) fn remember(&self, place: &Place, after: Duration) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.directory)?;
        let until = SystemTime::now() + after;
        let until_s = until.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let text = serde_json::to_vec(&(place, until_s)).map_err(std::io::Error::from)?;
        record::replace(&self.file(&place.uid), &text)
    }

    /// A guest is thawed, or gone.
    pub(super) fn forget(&self, uid: &str) {
        if let Err(error) = std::fs::remove_file(self.file(uid))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(uid, %error, "what was written down about a frozen guest is not removed");
        }
    }

    /// The guests whose time is over.
    fn due(&self) -> Vec<Place> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let read = |path: PathBuf| serde_json::from_slice::<(Place, u64)>(&std::fs::read(path).ok()?).ok();
        entries
            .filter_map(|entry| read(entry.path()))
            .filter(|(_, until)| *until <= now)
            .map(|(place, _)| place)
            .collect()
    }
}

/// Thaws guests whose time is over, as long as the handler runs.
pub(super) async fn thaw_all(config: Arc<Config>, agents: Agents) {
    let frozen = Frozen::new(&config.state_dir);
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        for place in frozen.due() {
            let layout = config.layout(&place);
            match ask(&agents, &place.uid, &layout, "guest-fsfreeze-thaw").await {
                Ok(_) => frozen.forget(&place.uid),
                // The guest is gone, and with it what was frozen.
                Err(AgentError::Connect(_)) => frozen.forget(&place.uid),
                Err(error) => tracing::warn!(uid = place.uid, %error, "a frozen guest was not thawed"),
            }
        }
    }
}
