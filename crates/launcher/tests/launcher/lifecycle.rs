//! The launcher's own life around a real QEMU, without a guest system: fast.

use crate::pod::{Pod, bare, dead, kill};
use carrack_launcher::client::ClientError;
use carrack_launcher::proto::Call;
use carrack_launcher::qmp::Qmp;
use carrack_launcher::spec::{CpuSpec, Dedicated, DiskBus, DiskSource, DiskSpec};
use carrack_launcher::{EndReason, Phase};
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn reason(domain: &carrack_launcher::Domain) -> Option<EndReason> {
    domain.end.as_ref().map(|end| end.reason)
}

#[tokio::test]
async fn commands() {
    let mut pod = Pod::start();
    let first = pod.sync(&bare()).await.expect("started");
    assert!(matches!(first.phase, Phase::Starting | Phase::Running), "{first:?}");
    pod.until(|domain| domain.phase == Phase::Running).await;
    // A second time it is nothing new.
    assert_eq!(pod.sync(&bare()).await.expect("accepted").phase, Phase::Running);
    assert_eq!(pod.call(Call::Pause).await.expect("paused").phase, Phase::Paused);
    assert_eq!(pod.written().phase, Phase::Paused);
    assert_eq!(pod.call(Call::Unpause).await.expect("unpaused").phase, Phase::Running);
    assert_eq!(pod.call(Call::Reset).await.expect("reset").resets, 0, "only the guest's own resets count");
    assert!(pod.call(Call::Shutdown).await.expect("pressed").shutdown_requested);
    let killed = pod.call(Call::Kill).await.expect("killed");
    assert_eq!((killed.phase, reason(&killed)), (Phase::Ended, Some(EndReason::Killed)));
    assert!(pod.ended().await.success());
    assert_eq!(pod.written(), killed);
}

#[tokio::test]
async fn a_monitor_may_die_at_any_time() {
    let mut pod = Pod::start();
    pod.sync(&bare()).await.expect("started");
    pod.until(|domain| domain.phase == Phase::Running).await;
    let qemu = pod.first_process();
    for _ in 0..3 {
        dead(pod.kill_monitor()).await;
        assert!(matches!(pod.call(Call::Status).await, Err(ClientError::Connect(_))));
        assert!(pod.exec(&["monitor", "--detach"]).success());
        assert!(!pod.exec(&["monitor"]).success(), "there is one already");
        assert_eq!(pod.call(Call::Status).await.expect("answered").phase, Phase::Running);
        assert_eq!(pod.first_process(), qemu);
    }
    // What happened while there was no monitor is found out by the next one.
    let killed = pod.kill_monitor();
    let mut spare = Qmp::connect(&pod.layout.spare_qmp_socket()).await.expect("connected");
    spare.execute("stop", json!({})).await.expect("stopped");
    dead(killed).await;
    assert!(pod.exec(&["monitor", "--detach"]).success());
    assert_eq!(pod.call(Call::Status).await.expect("answered").phase, Phase::Paused);
    // QEMU told to go by somebody else.
    spare.execute("quit", json!({})).await.expect("told");
    pod.ended().await;
}

#[tokio::test]
async fn a_new_monitor_finds_what_was_not_told_again() {
    let pod = Pod::start();
    let mut spec = bare();
    spec.board.no_acpi = true;
    pod.sync(&spec).await.expect("started");
    pod.until(|domain| domain.phase == Phase::Running).await;
    let refused = |result: Result<_, _>| matches!(result, Err(ClientError::Refused(_)));
    assert!(refused(pod.call(Call::SoftReboot).await), "there is no power button");
    dead(pod.kill_monitor()).await;
    // An agent was there, and went while nobody listened.
    let known = pod.written();
    let text = serde_json::to_vec(&carrack_launcher::Domain { agent_connected: true, ..known }).expect("JSON");
    std::fs::write(pod.layout.domain_file(), text).expect("written");
    assert!(pod.exec(&["monitor", "--detach"]).success());
    let found = pod.call(Call::Status).await.expect("answered");
    assert_eq!((found.phase, found.agent_connected), (Phase::Running, false));
    assert!(refused(pod.call(Call::SoftReboot).await), "there is none still");
}

#[tokio::test]
async fn a_restart_that_a_monitor_did_not_live_to_finish_is_finished() {
    let pod = Pod::start();
    pod.sync(&bare()).await.expect("started");
    pod.until(|domain| domain.phase == Phase::Running).await;
    pod.call(Call::SoftReboot).await.expect("pressed");
    assert!(pod.written().restart_requested);
    let killed = pod.kill_monitor();
    let mut spare = Qmp::connect(&pod.layout.spare_qmp_socket()).await.expect("connected");
    // As it is between the reset and the processors' going on.
    for command in ["stop", "system_reset"] {
        spare.execute(command, json!({})).await.expect("done");
    }
    dead(killed).await;
    assert!(pod.exec(&["monitor", "--detach"]).success());
    let found = pod.call(Call::Status).await.expect("answered");
    assert_eq!((found.phase, found.restart_requested, found.resets), (Phase::Running, false, 1));
}

#[tokio::test]
async fn a_container_is_not_stopped_by_its_stop_signal() {
    let mut pod = Pod::start();
    pod.sync(&bare()).await.expect("started");
    pod.until(|domain| domain.phase == Phase::Running).await;
    for _ in 0..3 {
        kill(Signal::POWER, pod.first_process());
    }
    assert_eq!(pod.call(Call::Pause).await.expect("answered").phase, Phase::Paused);
    // SIGTERM still ends a machine; the monitor goes with it, with or without a last word.
    let mut watch = carrack_launcher::client::Watch::open(&pod.layout.command_socket()).await.expect("watched");
    let mut last = watch.next().await.expect("a state");
    kill(Signal::TERM, pod.first_process());
    while let Ok(domain) = crate::pod::within(watch.next()).await {
        last = domain;
    }
    pod.ended().await;
    assert!(last.phase == Phase::Paused || reason(&last) == Some(EndReason::Killed), "{last:?}");
}

#[tokio::test]
async fn a_restart_ends_a_machine_that_is_to_end_then() {
    let mut pod = Pod::start();
    let mut spec = bare();
    spec.board.ends_with_reboot = true;
    pod.sync(&spec).await.expect("started");
    pod.until(|domain| domain.phase == Phase::Running).await;
    pod.call(Call::Reset).await.expect("reset");
    assert!(pod.ended().await.success());
    assert_eq!(reason(&pod.written()), Some(EndReason::GuestShutdown));
}

#[tokio::test]
async fn more_cpus_of_its_own_than_there_are() {
    let mut pod = Pod::start();
    let mut spec = bare();
    spec.cpu = CpuSpec { cores: 255, dedicated: Some(Dedicated { isolate_emulator: true }), ..CpuSpec::default() };
    let Err(ClientError::Refused(why)) = pod.sync(&spec).await else { panic!("it was taken") };
    assert!(why.contains("is to have 256 CPUs for itself"), "{why}");
    assert!(!pod.ended().await.success());
    assert_eq!(reason(&pod.written()), Some(EndReason::FailedToStart));
}

#[tokio::test]
async fn qemu_that_cannot_start_is_a_failure() {
    let mut pod = Pod::start();
    let mut spec = bare();
    spec.cpu.model = Some("no-such-model".to_owned());
    pod.sync(&spec).await.expect("prepared");
    assert!(!pod.ended().await.success());
    assert!(pod.written().phase <= Phase::Starting || reason(&pod.written()) == Some(EndReason::FailedToStart));
}

#[tokio::test]
async fn what_cannot_be_prepared_is_told() {
    let disk = |path: &str| DiskSpec {
        name: "root".to_owned(),
        source: DiskSource::Ephemeral { path: path.into() },
        cdrom: false,
        bus: DiskBus::Virtio,
        read_only: false,
        serial: None,
        boot_order: None,
        tuning: Default::default(),
    };
    let mut pod = Pod::start();
    let mut spec = bare();
    spec.disks = vec![disk("/nowhere/disk.img")];
    let Err(ClientError::Refused(why)) = pod.sync(&spec).await else { panic!("it was taken") };
    assert!(why.contains("root") && why.contains("/nowhere/disk.img"), "{why}");
    assert!(!pod.ended().await.success());
    assert_eq!(reason(&pod.written()), Some(EndReason::FailedToStart));
}

#[tokio::test]
async fn a_launcher_that_never_got_a_machine_ends() {
    let mut pod = Pod::start();
    crate::pod::within(async {
        while pod.call(Call::Status).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(matches!(pod.call(Call::Pause).await, Err(ClientError::Refused(_))));
    assert!(pod.exec(&["shutdown"]).success());
    // Whoever sees the container alone is to know that nothing ran.
    assert!(!pod.ended().await.success());
    assert_eq!((reason(&pod.written()), pod.written().has_begun()), (Some(EndReason::Killed), false));
}

#[tokio::test]
async fn rubbish_on_the_command_socket() {
    let pod = Pod::start();
    pod.sync(&bare()).await.expect("started");
    let long = vec![b'x'; (4 << 20) + 10];
    let mut wrong = bare();
    wrong.uid = "other".to_owned();
    let cases: [(&[u8], &str); 5] = [
        (b"\n", "not a request"),
        (b"{}\n", "not a request"),
        (b"{\"v\":2,\"call\":{\"method\":\"status\"}}\n", "version 1"),
        (b"{\"v\":1,\"call\":{\"method\":\"fly\"}}\n", "not a request"),
        (&long, "not a request"),
    ];
    for (bytes, expected) in cases {
        let mut stream = tokio::net::UnixStream::connect(pod.layout.command_socket()).await.expect("connected");
        let (mut reader, mut writer) = stream.split();
        let mut answer = String::new();
        // The launcher may hang up before it has read everything.
        let (_, read) = tokio::join!(writer.write_all(bytes), reader.read_to_string(&mut answer));
        assert!(read.is_err() || answer.contains(expected), "{answer:?} to {:?}", &bytes[..bytes.len().min(60)]);
    }
    assert!(matches!(pod.sync(&wrong).await, Err(ClientError::Refused(_))));
    pod.until(|domain| domain.phase == Phase::Running).await;
}

#[tokio::test]
async fn many_connections_do_not_shut_the_handler_out() {
    let pod = Pod::start();
    pod.sync(&bare()).await.expect("started");
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(tokio::net::UnixStream::connect(pod.layout.command_socket()).await.expect("connected"));
    }
    idle.clear();
    pod.call(Call::Status).await.expect("answered");
}
