//! Asks guests' agents. One question at a time for each guest: the channel serves one client.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use carrack_engine::shell::EventSink;
use carrack_launcher::agent::{Agent, AgentError, Freezing};
use carrack_launcher::promise::now_ns;
use carrack_launcher::{Layout, LineError};
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::task::JoinSet;

use super::{Config, boot_id, lock, record};
use crate::handler::agent::{Answers, commands, interfaces, os_info};
use crate::handler::effects::{AgentQuestion, AgentReport, Credential, In, Place};
use crate::handler::spec::keys_by_user;

/// How long an agent may take for one answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long freezing may take: the guest writes everything out first.
const FREEZE_DEADLINE: Duration = Duration::from_secs(60);
/// How long an agent may take to say that it does not restart its guest.
const REFUSAL_WITHIN: Duration = Duration::from_secs(2);
/// Wait before a guest is thawed again that was not.
const THAW_AGAIN: Duration = Duration::from_secs(5);
/// How long a guest stays frozen unless somebody says otherwise; KubeVirt's choice.
pub(super) const UNFREEZE_AFTER: Duration = Duration::from_secs(300);

/// The guests that are being asked.
#[derive(Clone, Debug, Default)]
pub struct Agents {
    turns: Arc<Mutex<BTreeMap<String, Arc<AsyncMutex<()>>>>>,
}

impl Agents {
    /// Waits for the turn to ask a guest's agent, which lasts until it is dropped.
    async fn turn(&self, uid: &str) -> OwnedMutexGuard<()> {
        let turn = lock(&self.turns).entry(uid.to_owned()).or_default().clone();
        turn.lock_owned().await
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
    let _turn = agents.turn(&place.uid).await;
    let mut agent = Agent::connect(&config.layout(place).agent_socket()).await?;
    let mut report = said(&mut agent).await?;
    if !question.credentials.is_empty() && !report.frozen {
        report.credentials = Some(credentials(config, place, &mut agent, question).await);
    }
    Ok(report)
}

/// What the status shows. The agent of a guest that is frozen says that, and refuses to say anything else (QEMU:
/// `ga_freeze_allowlist` in qga/main.c).
async fn said(agent: &mut Agent) -> Result<AgentReport, AgentError> {
    let frozen = optional(agent.execute("guest-fsfreeze-status", json!({}), DEADLINE).await)?;
    if frozen == "frozen" {
        return Ok(AgentReport { frozen: true, ..AgentReport::default() });
    }
    let os = optional(agent.execute("guest-get-osinfo", json!({}), DEADLINE).await)?;
    let nics = optional(agent.execute("guest-network-get-interfaces", json!({}), DEADLINE).await)?;
    let info = optional(agent.execute("guest-info", json!({}), DEADLINE).await)?;
    Ok(AgentReport {
        os: os_info(&os),
        interfaces: interfaces(&nics),
        frozen: false,
        commands: commands(&info),
        credentials: None,
    })
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
    for (user, keys) in keys_by_user(&wanted) {
        let arguments = json!({"username": user, "keys": keys, "reset": true});
        let answer = agent.execute("guest-ssh-add-authorized-keys", arguments, DEADLINE).await;
        answer.map_err(|error| format!("the keys of {user}: {}", carrack_engine::causes(&error)))?;
    }
    let passwords = wanted.iter().filter(|(credential, _)| matches!(credential, Credential::Passwords { .. }));
    let passwords: Vec<(&String, &Vec<u8>)> = passwords.flat_map(|(_, files)| files).collect();
    for (user, password) in passwords {
        let password = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, password.trim_ascii_end());
        let arguments = json!({"username": user, "password": password, "crypted": false});
        let answer = agent.execute("guest-set-user-password", arguments, DEADLINE).await;
        answer.map_err(|error| format!("the password of {user}: {}", carrack_engine::causes(&error)))?;
    }
    Ok(print)
}

/// Everything that `guestosinfo` shows.
pub(super) async fn ask_all(agents: &Agents, uid: &str, layout: &Layout) -> Result<Answers, AgentError> {
    let _turn = agents.turn(uid).await;
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
    let _turn = agents.turn(uid).await;
    ask_in_turn(layout, command).await
}

/// One question of whose turn it is.
async fn ask_in_turn(layout: &Layout, command: &'static str) -> Result<Value, AgentError> {
    let freezes = command.starts_with("guest-fsfreeze");
    let deadline = if freezes { FREEZE_DEADLINE } else { DEADLINE };
    // Or the guest's own probes would take it for dead.
    let _freezing = if freezes { Freezing::say(layout).await } else { None };
    Agent::connect(&layout.agent_socket()).await?.execute(command, json!({}), deadline).await
}

/// Freezes a guest's file systems, until they are thawed or the time is over. That is written down in the same turn:
/// whoever thaws strikes out what was there before, and not this.
///
/// # Errors
/// It cannot be written down, and nothing was done; or the agent's. After any but one that is known to have done
/// nothing, the guest is thawed when its time is over.
pub(super) async fn freeze(
    agents: &Agents,
    frozen: &Frozen,
    place: &Place,
    layout: &Layout,
    after: Duration,
) -> std::io::Result<Result<(), AgentError>> {
    let _turn = agents.turn(&place.uid).await;
    frozen.remember(place, after)?;
    let Err(error) = ask_in_turn(layout, "guest-fsfreeze-freeze").await else { return Ok(Ok(())) };
    match &error {
        AgentError::Refused { .. } => match ask_in_turn(layout, "guest-fsfreeze-status").await {
            // It refuses what is done already. (Upstream: `FreezeVMI` in pkg/virt-launcher.)
            Ok(said) if said == "frozen" => return Ok(Ok(())),
            Ok(_) => frozen.forget(&place.uid),
            Err(error) => tracing::debug!(uid = place.uid, %error, "whether a guest is frozen is not known"),
        },
        error if is_gone(error) => frozen.forget(&place.uid),
        _ => {}
    }
    Ok(Err(error))
}

/// Thaws a guest's file systems, and strikes out that they are to be.
///
/// # Errors
/// The agent's.
pub(super) async fn thaw(agents: &Agents, frozen: &Frozen, place: &Place, layout: &Layout) -> Result<(), AgentError> {
    let _turn = agents.turn(&place.uid).await;
    ask_in_turn(layout, "guest-fsfreeze-thaw").await?;
    frozen.forget(&place.uid);
    Ok(())
}

/// Thaws a guest whose time is over, unless somebody has frozen it anew or thawed it meanwhile.
async fn thaw_if_due(agents: &Agents, frozen: &Frozen, place: &Place, layout: &Layout) -> Result<(), AgentError> {
    let _turn = agents.turn(&place.uid).await;
    if !frozen.due().contains(place) {
        return Ok(());
    }
    match ask_in_turn(layout, "guest-fsfreeze-thaw").await {
        Err(error) if !is_gone(&error) => return Err(error),
        _ => frozen.forget(&place.uid),
    }
    Ok(())
}

/// Asks for a restart. An agent that does it does not answer: it goes with its guest.
pub(super) async fn reboot(agents: &Agents, uid: &str, layout: &Layout) -> Result<(), AgentError> {
    let _turn = agents.turn(uid).await;
    let mut agent = Agent::connect(&layout.agent_socket()).await?;
    match agent.execute("guest-shutdown", json!({"mode": "reboot"}), REFUSAL_WITHIN).await {
        Err(error) if !is_gone_with_its_guest(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether what came in place of an answer is what an agent leaves that restarts its guest. Words that are not
/// understood are no such thing.
fn is_gone_with_its_guest(error: &AgentError) -> bool {
    matches!(error, AgentError::Silent(_) | AgentError::Line(LineError::Closed | LineError::Io(_)))
}

/// Guests that were frozen, and until when. Kept on the node: a handler that dies must not leave a guest frozen. The time is of
/// the machine's own clock, with the boot that it counts from: one that somebody sets back would leave a guest frozen for as long.
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
        let until_ns = now_ns().saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
        let text = serde_json::to_vec(&(place, boot_id(), until_ns)).map_err(std::io::Error::from)?;
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
        self.due_at(&boot_id(), now_ns())
    }

    /// The same at a time of a boot. What was written down in another one, or by an earlier version, is over.
    fn due_at(&self, boot: &str, now_ns: u64) -> Vec<Place> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let read = |path: PathBuf| {
            let text = std::fs::read(path).ok()?;
            let known = serde_json::from_slice::<(Place, String, u64)>(&text);
            let earlier = || serde_json::from_slice::<(Place, u64)>(&text).map(|(place, _)| (place, String::new(), 0));
            known.or_else(|_| earlier()).ok()
        };
        entries
            .filter_map(|entry| read(entry.path()))
            .filter(|(_, of, until_ns)| of != boot || *until_ns <= now_ns)
            .map(|(place, ..)| place)
            .collect()
    }
}

/// Thaws guests whose time is over, as long as the handler runs: each by itself, since one may not answer for long.
pub(super) async fn thaw_all(config: Arc<Config>, agents: Agents, events: EventSink<In>) {
    let frozen = Frozen::new(&config.state_dir);
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut thaws: JoinSet<String> = JoinSet::new();
    let mut under_way: BTreeSet<String> = BTreeSet::new();
    loop {
        tick.tick().await;
        while let Some(ended) = thaws.try_join_next() {
            match ended {
                Ok(uid) => {
                    under_way.remove(&uid);
                    events.send(In::AgentChanged(uid));
                }
                // Which one it was is not known: all that are due are looked at again.
                Err(error) => {
                    tracing::error!(%error, "thawing a guest has failed");
                    under_way.clear();
                }
            }
        }
        for place in frozen.due() {
            if under_way.insert(place.uid.clone()) {
                thaws.spawn(thaw_in_time(config.clone(), agents.clone(), place));
            }
        }
    }
}

/// Thaws a guest, or waits a little. Returns its UID.
async fn thaw_in_time(config: Arc<Config>, agents: Agents, place: Place) -> String {
    let frozen = Frozen::new(&config.state_dir);
    if let Err(error) = thaw_if_due(&agents, &frozen, &place, &config.layout(&place)).await {
        tracing::warn!(uid = place.uid, %error, "a frozen guest was not thawed");
        tokio::time::sleep(THAW_AGAIN).await;
    }
    place.uid
}

/// Whether it is a fact that the guest is gone, and with it what was frozen: there is no channel, or nobody at its end.
fn is_gone(error: &AgentError) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error, AgentError::Connect(why) if matches!(why.kind(), ConnectionRefused | NotFound))
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::time::Duration;

    use carrack_launcher::{Layout, layout};
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixListener;

    use super::{
        Agent, AgentError, Agents, Frozen, LineError, Place, boot_id, freeze, is_gone, is_gone_with_its_guest, now_ns,
        said, thaw_if_due,
    };

    /// An agent that answers these commands, and refuses all others.
    async fn play(listener: UnixListener, answers: &[(&str, Value)]) {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        let (reader, mut writer) = stream.split();
        let mut lines = BufReader::new(reader).lines();
        while let Some(line) = lines.next_line().await.ok().flatten() {
            let asked: Value = serde_json::from_str(&line).expect("JSON");
            let command = asked["execute"].as_str().unwrap_or_default();
            let known = answers.iter().find(|(name, _)| *name == command).map(|(_, answer)| answer.clone());
            let answer = match known {
                _ if command == "guest-sync" => json!({"return": asked["arguments"]["id"]}),
                Some(answer) => json!({"return": answer}),
                None => json!({"error": {"class": "GenericError", "desc": "not now"}}),
            };
            writer.write_all(format!("{answer}\n").as_bytes()).await.expect("written");
        }
    }

    #[tokio::test]
    async fn an_agent_that_does_not_say_all_is_heard() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::on_host(dir.path(), "vmi");
        std::fs::create_dir_all(layout.machine_dir()).expect("made");
        let is = |status: &str| ("guest-fsfreeze-status", json!(status));
        let os = || ("guest-get-osinfo", json!({"id": "demo"}));
        let info = || ("guest-info", json!({"supported_commands": [{"name": "guest-ping", "enabled": true}]}));
        for (answers, frozen, id, commands) in [
            (vec![is("thawed"), os(), info()], false, "demo", 1),
            (vec![os(), info()], false, "demo", 1),
            // One from before this question was there.
            (vec![info()], false, "", 1),
            // All but these is refused while it lasts, and what is told of commands is not how they are otherwise.
            (vec![is("frozen"), info()], true, "", 0),
        ] {
            let socket = layout.agent_socket();
            let listener = layout::listen(&socket).expect("listens");
            let ask = async {
                let mut agent = Agent::connect(&socket).await?;
                said(&mut agent).await
            };
            let (report, ()) = tokio::join!(ask, play(listener, &answers));
            let report = report.expect("it is heard");
            assert_eq!((report.frozen, report.os.id.as_str(), report.commands.len()), (frozen, id, commands));
        }
    }

    #[tokio::test]
    async fn what_is_written_down_about_a_frozen_guest_is_of_the_last_turn() {
        let dir = tempfile::tempdir().expect("a directory");
        let (agents, frozen) = (Agents::default(), Frozen::new(dir.path()));
        let place = Place { uid: "vmi".to_owned(), ..Place::default() };
        let layout = Layout::on_host(&dir.path().join("none"), "vmi");
        let hour = Duration::from_secs(3600);
        let held = agents.turn("vmi").await;
        let waiting = freeze(&agents, &frozen, &place, &layout, hour);
        assert!(tokio::time::timeout(Duration::ZERO, waiting).await.is_err(), "it is somebody else's turn");
        assert!(!frozen.file("vmi").exists(), "who has the turn might strike it out");
        drop(held);
        let answer = freeze(&agents, &frozen, &place, &layout, hour).await.expect("written down");
        assert!(matches!(answer, Err(AgentError::Connect(_))), "{answer:?}");
        assert!(!frozen.file("vmi").exists(), "no guest, nothing frozen");
        // What was frozen anew is left alone; what is due and gone is struck out.
        for (after, is_left) in [(hour, true), (Duration::ZERO, false)] {
            frozen.remember(&place, after).expect("written down");
            thaw_if_due(&agents, &frozen, &place, &layout).await.expect("thawed");
            assert_eq!(frozen.file("vmi").exists(), is_left);
        }
    }

    #[test]
    fn a_guest_is_thawed_by_the_clock_of_the_boot_in_which_it_was_frozen() {
        let dir = tempfile::tempdir().expect("a directory");
        let frozen = Frozen::new(dir.path());
        let place = Place { uid: "vmi".to_owned(), ..Place::default() };
        let (boot, now_ns, hour) = (boot_id(), now_ns(), Duration::from_secs(3600));
        let (soon, late) = (now_ns + 60_000_000_000, now_ns + 3_700_000_000_000);
        frozen.remember(&place, hour).expect("written down");
        for (of, at_ns, is_due) in [(boot.as_str(), soon, false), (boot.as_str(), late, true), ("another", soon, true)]
        {
            assert_eq!(frozen.due_at(of, at_ns).contains(&place), is_due, "{of} {at_ns}");
        }
        // As earlier versions wrote it down.
        let text = serde_json::to_vec(&(&place, 4_000_000_000_u64)).expect("it has a form");
        std::fs::write(frozen.file("vmi"), text).expect("written");
        assert_eq!(frozen.due_at(&boot, soon), [place]);
    }

    #[test]
    fn words_that_are_not_understood_are_no_restart() {
        let check = |error: AgentError, expected: bool| {
            assert_eq!(is_gone_with_its_guest(&error), expected, "{error:?}");
        };
        check(AgentError::Silent("guest-shutdown"), true);
        check(AgentError::Line(LineError::Closed), true);
        check(AgentError::Line(LineError::Io(ErrorKind::BrokenPipe.into())), true);
        check(AgentError::Line(LineError::TooLong(1)), false);
        check(AgentError::Line(serde_json::from_str::<u8>("no").expect_err("no number").into()), false);
        check(AgentError::Odd("guest-shutdown"), false);
        check(AgentError::Refused { command: "guest-shutdown", message: "no".to_owned() }, false);
    }

    #[test]
    fn what_is_not_known_to_be_gone_stays_frozen_in_the_books() {
        let check = |error: AgentError, gone: bool| assert_eq!(is_gone(&error), gone, "{error:?}");
        let connect = |kind: ErrorKind| AgentError::Connect(Error::from(kind));
        check(connect(ErrorKind::NotFound), true);
        check(connect(ErrorKind::ConnectionRefused), true);
        check(connect(ErrorKind::WouldBlock), false);
        check(connect(ErrorKind::PermissionDenied), false);
        check(AgentError::Silent("guest-sync"), false);
    }
}
