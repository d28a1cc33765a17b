//! The drills, and the commands of the pages that tell of them: each page's are run as they stand, those with a planted wrong
//! with the expectation that it is found. What a drill leaves on the machine is looked for afterwards.
//!
//! `CARRACK_DRILLS=all` also runs what takes long: several rounds, and another kubelet.

#![expect(clippy::expect_used, reason = "a test fails by panicking, and what it needs is there")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use carrack_e2e::{Sandbox, Spawned, assert_contains, carrack, eventually_true, root};
use rustix::process::{Pid, Signal, kill_process};

/// How a drill's directory begins.
const PREFIX: &str = "carrack-drill-";

/// The commands in the fenced blocks of a page.
fn commands(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("docs/incidents").join(page)).expect("the page");
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    blocks.flat_map(str::lines).map(str::to_owned).collect()
}

/// What a sandbox's drills have left on the machine.
fn left(sandbox: &Sandbox) -> Vec<String> {
    let home = sandbox.home();
    let begin = home.join(PREFIX).display().to_string();
    let dirs = fs::read_dir(home).expect("listed").flatten().map(|entry| entry.path().display().to_string());
    let mut left: Vec<String> = dirs.filter(|path| path.contains(PREFIX)).collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read");
    left.extend(mounts.lines().filter(|line| line.contains(&begin)).map(str::to_owned));
    for entry in fs::read_dir("/proc").expect("listed").flatten() {
        let words = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if words.contains(&begin) {
            left.push(words.replace('\0', " "));
        }
    }
    for entry in fs::read_dir("/sys/block").expect("listed").flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if file.contains(&begin) {
            left.push(file);
        }
    }
    left
}

/// Runs a command of a page.
fn run(sandbox: &Sandbox, command: &str, more: &[&str]) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let (program, arguments) = words.split_first().expect("a command");
    assert_eq!(*program, "carrack", "{command}");
    let is_drill = arguments.first() == Some(&"drill") && !arguments.contains(&"--list");
    let planted = arguments.contains(&"--plant");
    let home = sandbox.home().display().to_string();
    let where_to: &[&str] = if is_drill { &["--timeline-dir", &home] } else { &[] };
    let output = sandbox.carrack(&[arguments, where_to, more].concat()).limit_s(400).output();
    assert_eq!(output.code, Some(i32::from(planted)), "{output}");
    if arguments.first() == Some(&"sim") {
        // A command that nobody understands ends with the same status.
        for part in [" is broken: ", "replay: carrack sim --seed "] {
            assert_eq!(output.stdout.contains(part), planted, "{output}");
        }
    }
    if is_drill {
        let name = arguments[1];
        timeline(&sandbox.home(), name, planted);
        let verdict = if planted { format!("{name}: DOES NOT HOLD\n") } else { format!("{name}: holds\n") };
        assert!(output.stdout.contains(&verdict), "{output}");
        assert_eq!(output.stdout.contains("BROKEN: "), planted, "{output}");
        assert!(planted || !output.stdout.contains("not seen"), "{output}");
        println!("{}", output.stdout);
    }
    assert_eq!(left(sandbox), Vec::<String>::new(), "{output}");
    output.stdout
}

/// A drill's timeline is there, as text and as a picture, and tells of what was planted.
fn timeline(dir: &Path, name: &str, planted: bool) {
    let text = fs::read_to_string(dir.join(format!("drill-{name}.txt"))).expect("the timeline");
    assert!(text.lines().count() > 10, "{text}");
    assert_eq!((text.contains("PLANTED"), text.contains(" is broken: ")), (planted, planted), "{text}");
    println!("{text}");
    let svg = fs::read_to_string(dir.join(format!("drill-{name}.svg"))).expect("the picture");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    assert!(svg.matches("<rect").count() > 5 && svg.contains(name), "{svg}");
}

fn page(page: &str) {
    let sandbox = Sandbox::new();
    let commands = commands(page);
    assert!(!commands.is_empty(), "{page} has no commands");
    for command in commands {
        println!("$ {command}");
        run(&sandbox, &command, &[]);
    }
}

#[test]
fn commands_of_the_page_on_killed_agents() {
    page("README.md");
}

#[test]
fn commands_of_the_page_on_node_reboots() {
    page("1-node-reboot.md");
}

#[test]
fn commands_of_the_page_on_node_death() {
    page("2-node-death.md");
}

#[test]
fn commands_of_the_page_on_clones_under_lag() {
    page("3-clone-under-lag.md");
}

#[test]
fn commands_of_the_page_on_gpus() {
    page("4-gpu-extender.md");
}

#[test]
fn commands_of_the_page_on_api_outages() {
    page("5-api-outage.md");
}

/// What is planted in one of those who are killed is found in what that one alone does.
#[test]
fn a_role_that_does_not_come_back_is_missed() {
    let sandbox = Sandbox::new();
    let all = std::env::var("CARRACK_DRILLS").is_ok_and(|which| which == "all");
    let most = if all { usize::MAX } else { 1 };
    for plant in ["leave-gpu-plugin", "leave-local-storage", "leave-gpu-extender", "switch-off"].iter().take(most) {
        run(&sandbox, &format!("carrack drill kill-9 --plant {plant}"), &[]);
    }
}

/// A drill with these flags besides, whose scheduler has just been started.
fn started(sandbox: &Sandbox, more: &[&str]) -> Spawned {
    let home = sandbox.home().display().to_string();
    let words: &[&str] = &["drill", "gpu-extender", "--timeline-dir", &home];
    let child = sandbox.carrack(&[words, more].concat()).spawn();
    // One program after the other becomes this process.
    let dir = sandbox.home().join(format!("{PREFIX}{}", child.id()));
    let log = dir.join("logs/scheduler.log");
    eventually_true("the drill's scheduler runs", 60, || log.exists());
    child
}

/// Sends a drill a signal, and waits until it has ended. Returns its exit status.
fn interrupted(mut child: Spawned, signal: Signal) -> Option<i32> {
    kill_process(Pid::from_child(&child), signal).expect("it runs");
    child.wait().expect("it was ours").code()
}

#[test]
fn a_role_that_ends_by_itself_ends_the_drill_and_breaks_nothing() {
    let sandbox = Sandbox::new();
    let home = sandbox.home().display().to_string();
    let ends = program(&sandbox, "ends", "#!/bin/sh\necho no flag is known here\nexit 7\n");
    for (drill, flag, role) in [("gpu-extender", "--scheduler", "scheduler"), ("kill-9", "--kubelet", "kubelet")] {
        let output = sandbox.carrack(&["drill", drill, "--timeline-dir", &home, flag, &ends]).limit_s(400).output();
        assert_eq!(output.code, Some(1), "{output}");
        let how = format!("{role} ended by itself (exit status: 7); the end of its log: no flag is known here");
        assert_contains(&output.stdout, &[&how, "DOES NOT HOLD"]);
        assert!(!output.stdout.contains("BROKEN"), "{output}");
        assert_eq!(left(&sandbox), Vec::<String>::new(), "{output}");
    }
}

#[test]
fn a_drill_that_is_interrupted_or_asked_for_nonsense_leaves_nothing() {
    let sandbox = Sandbox::new();
    let said = sandbox.carrack(&["drill", "no-such-drill"]).fails();
    assert_contains(&said, &["no-such-drill", "node-reboot", "kill-9"]);
    let said = sandbox.carrack(&["drill", "kill-9", "--plant", "nonsense"]).fails();
    assert_contains(&said, &["nonsense", "kill-the-guest"]);
    let said = sandbox.carrack(&["drill", "node-death", "--kubelet", "/bin/true"]).fails();
    assert_contains(&said, &["--kubelet", "node-death", "carrack up"]);
    let said = sandbox.carrack(&["drill", "kill-9", "--kubelet", "/no/such/kubelet"]).fails();
    assert_contains(&said, &["--kubelet", "/no/such/kubelet"]);

    // A terminal that closes interrupts as well, unless whoever started the tests has its hang-ups ignored.
    let status = fs::read_to_string("/proc/self/status").expect("read");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask").trim();
    let hears = u64::from_str_radix(ignored, 16).expect("a mask") & 1 == 0;
    for signal in [Signal::INT, Signal::HUP].into_iter().filter(|signal| hears || *signal == Signal::INT) {
        assert_eq!(interrupted(started(&sandbox, &[]), signal), Some(1), "{signal:?}");
        assert_eq!(left(&sandbox), Vec::<String>::new(), "{signal:?}");
        let text = fs::read_to_string(sandbox.home().join("drill-gpu-extender.txt")).expect("the timeline");
        assert_contains(&text, &["the drill ends: interrupted"]);
    }

    // What a drill leaves that is killed, the next one clears away.
    let mut child = started(&sandbox, &[]);
    child.kill().and_then(|()| child.wait()).expect("it was ours");
    assert_ne!(left(&sandbox), Vec::<String>::new(), "its roles outlive it");
    run(&sandbox, "carrack drill gpu-extender", &[]);
}

/// A program that takes upstream's flags of a kubelet and is ours.
const OTHER_KUBELET: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    --kubeconfig) kubeconfig=$2 ;;
    --config) config=$2 ;;
    --hostname-override) node=$2 ;;
    --node-ip) ip=$2 ;;
    --root-dir) root=$2 ;;
    *) echo "unknown flag: $1" >&2; exit 1 ;;
  esac
  shift 2
done
value() { sed -n "s|.*\"$1\": \"\(.*\)\".*|\1|p" "$config"; }
exec @CARRACK@ kubelet --kubeconfig "$kubeconfig" --config "$config" --node-name "$node" --node-ip "$ip" \
  --data-dir "$(dirname "$root")" --tls-cert-file "$(value tlsCertFile)" \
  --tls-private-key-file "$(value tlsPrivateKeyFile)" --client-ca-file "$(value clientCAFile)"
"#;

/// The same for a scheduler.
const OTHER_SCHEDULER: &str = "#!/bin/sh\nexec @CARRACK@ scheduler --secure-port 0 \"$@\"\n";

fn program(sandbox: &Sandbox, name: &str, text: &str) -> String {
    let path = sandbox.home().join(name);
    fs::write(&path, text.replace("@CARRACK@", &carrack().display().to_string())).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("made executable");
    path.display().to_string()
}

#[test]
fn others_may_play_a_role() {
    let sandbox = Sandbox::new();
    let scheduler = program(&sandbox, "other-scheduler", OTHER_SCHEDULER);
    run(&sandbox, "carrack drill gpu-extender", &["--scheduler", &scheduler]);
    let text = fs::read_to_string(sandbox.home().join("drill-gpu-extender.txt")).expect("the timeline");
    assert_contains(&text, &["other-scheduler"]);

    let all = std::env::var("CARRACK_DRILLS").is_ok_and(|which| which == "all");
    if all {
        let kubelet = program(&sandbox, "other-kubelet", OTHER_KUBELET);
        for drill in ["node-reboot", "api-outage", "kill-9"] {
            run(&sandbox, &format!("carrack drill {drill}"), &["--kubelet", &kubelet]);
        }
        // Each round ends with a guest that boots anew.
        run(&sandbox, "carrack drill kill-9", &["--rounds", "2"]);
        run(&sandbox, "carrack drill api-outage", &["--rounds", "5"]);
    }
}

/// Whatever becomes of a drill, an API server that is somebody else's is afterwards as it was, so that it can be drilled again.
#[test]
fn an_api_server_that_runs_already_is_left_as_it_was() {
    let sandbox = Sandbox::new();
    let mut api = sandbox.carrack(&["apiserver", "--bind-address", "127.0.0.1"]).spawn();
    let kubectl = sandbox.kubectl();
    eventually_true("the API server is ready", 60, || {
        kubectl.run(&["get", "--raw", "/readyz"]).output().code == Some(0)
    });
    // It is the URL that counts.
    let admin = fs::read_to_string(sandbox.data_dir().join("kubeconfig.yaml")).expect("the administrator's");
    let elsewhere = sandbox.home().join("elsewhere.yaml");
    fs::write(&elsewhere, admin.replace(":6443", ":1")).expect("written");
    let elsewhere = elsewhere.display().to_string();
    let theirs = ["--apiserver", "https://127.0.0.1:6443", "--kubeconfig", &elsewhere];
    let kinds = "namespaces,nodes,customresourcedefinitions,csinodes,leases.coordination.k8s.io,deployments.apps,pods";
    let there = || kubectl.ok(&["get", kinds, "--all-namespaces", "--output", "name"]);
    let before = there();

    run(&sandbox, "carrack drill gpu-extender", &theirs);
    assert_eq!(there(), before);
    run(&sandbox, "carrack drill gpu-extender --plant past-the-extender", &theirs);
    assert_eq!(there(), before);
    assert_eq!(interrupted(started(&sandbox, &theirs), Signal::INT), Some(1));
    assert_eq!((there(), left(&sandbox)), (before.clone(), Vec::<String>::new()));
    if std::env::var("CARRACK_DRILLS").is_ok_and(|which| which == "all") {
        run(&sandbox, "carrack drill node-reboot", &theirs);
        assert_eq!(there(), before);
    }
    run(&sandbox, "carrack drill gpu-extender", &theirs);
    assert_eq!(there(), before);
    api.kill().and_then(|()| api.wait()).expect("it was ours");
}
