//! Tables for the plan of a pod.

use super::*;
use crate::runtime::PodRef;
use carrack_engine::Time;
use serde_json::json;

fn pod(policy: &str, init: &[(&str, bool)], regular: &[&str]) -> Pod {
    let init: Vec<_> = init
        .iter()
        .map(|(name, sidecar)| match sidecar {
            true => json!({"name": name, "image": "i", "restartPolicy": "Always"}),
            false => json!({"name": name, "image": "i"}),
        })
        .collect();
    let regular: Vec<_> = regular.iter().map(|n| json!({"name": n, "image": "i"})).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"restartPolicy": policy, "initContainers": init, "containers": regular}
    }))
    .unwrap()
}

fn reference() -> PodRef {
    PodRef { namespace: "n".into(), name: "p".into(), uid: "u".into() }
}

fn sandbox(attempt: u32, ready: bool) -> SandboxRecord {
    SandboxRecord {
        id: format!("s{attempt}"),
        pod: reference(),
        attempt,
        ready,
        created_at: Time(i64::from(attempt)),
        ips: vec![],
        runtime_handler: String::new(),
    }
}

/// `name:attempt@sandbox=state` with state `run`, `new`, `unk` or an exit code; `^1` behind it for the second round of its pod.
fn container(text: &str) -> ContainerRecord {
    let (name, rest) = text.split_once(':').unwrap();
    let (attempt, rest) = rest.split_once('@').unwrap();
    let (sandbox, state) = rest.split_once('=').unwrap();
    let (state, round) = state.split_once('^').unwrap_or((state, "0"));
    let attempt: u32 = attempt.parse().unwrap();
    ContainerRecord {
        id: format!("{name}{attempt}"),
        sandbox_id: sandbox.into(),
        pod: reference(),
        name: name.into(),
        attempt,
        state: match state {
            "run" => ContainerState::Running,
            "new" => ContainerState::Created,
            "unk" => ContainerState::Unknown,
            code => ContainerState::Exited {
                code: code.parse().unwrap(),
                reason: String::new(),
                message: String::new(),
                finished_at: Time(0),
            },
        },
        created_at: Time(i64::from(attempt)),
        started_at: None,
        image: "i".into(),
        image_ref: String::new(),
        hash: String::new(),
        round: round.parse().unwrap(),
        size: Default::default(),
        user: None,
    }
}

/// The plan in a short form: `box0`, `+c0` (start c as attempt 0), `-c0` (kill), `~c0` (kill later), `stop s0`, `rm c0`,
/// `rmbox s0`, `end Failed`, `stopped`.
fn text(p: &Plan) -> String {
    let mut out: Vec<String> = Vec::new();
    out.extend(p.end.as_ref().map(|e| format!("end {e:?}")));
    out.extend(p.run_sandbox.map(|a| format!("box{a}")));
    out.extend(p.stop_sandboxes.iter().map(|s| format!("stop {s}")));
    out.extend(p.remove_sandboxes.iter().map(|s| format!("rmbox {s}")));
    out.extend(p.start.iter().map(|s| format!("+{}{}", s.name, s.attempt)));
    out.extend(p.kill.iter().map(|k| format!("-{}", k.id)));
    out.extend(p.later.iter().map(|k| format!("~{}", k.id)));
    out.extend(p.remove.iter().map(|id| format!("rm {id}")));
    if p.stopped {
        out.push("stopped".into());
    }
    out.join(", ")
}

struct Case {
    pod: Pod,
    sandboxes: Vec<SandboxRecord>,
    containers: Vec<ContainerRecord>,
    stopped: BTreeSet<String>,
    verdicts: BTreeMap<String, Verdict>,
    ran_before: BTreeMap<String, u32>,
    outgrown: BTreeSet<String>,
    renewed: BTreeSet<String>,
    restarting: BTreeSet<String>,
    lost: BTreeSet<String>,
    spent: BTreeSet<String>,
}

impl Case {
    fn new(pod: Pod, sandboxes: &[(u32, bool)], containers: &[&str]) -> Self {
        Self {
            pod,
            sandboxes: sandboxes.iter().map(|(a, r)| sandbox(*a, *r)).collect(),
            containers: containers.iter().map(|c| container(c)).collect(),
            stopped: BTreeSet::new(),
            verdicts: BTreeMap::new(),
            ran_before: BTreeMap::new(),
            outgrown: BTreeSet::new(),
            renewed: BTreeSet::new(),
            restarting: BTreeSet::new(),
            lost: BTreeSet::new(),
            spent: BTreeSet::new(),
        }
    }
    fn with<T>(&self, f: impl FnOnce(&Facts<'_>) -> T) -> T {
        let sandboxes: Vec<_> = self.sandboxes.iter().collect();
        let containers: Vec<_> = self.containers.iter().collect();
        f(&Facts {
            pod: &self.pod,
            sandboxes: &sandboxes,
            containers: &containers,
            stopped: &self.stopped,
            verdicts: &self.verdicts,
            ran_before: &self.ran_before,
            surplus: &super::super::dead::surplus(Time(0), &Default::default(), &self.containers),
            outgrown: &self.outgrown,
            renewed: &self.renewed,
            restarting: &self.restarting,
            lost: &self.lost,
            spent: &self.spent,
            round: rounds::present(&self.pod, &self.containers, &self.restarting),
        })
    }
    fn run(&self) -> String {
        self.with(|f| text(&run(f)))
    }
    fn stop(&self) -> String {
        self.with(|f| text(&stop(f, false, "")))
    }
}

#[test]
fn a_pod_that_should_run() {
    let (one, two) = (&["a"][..], &["a", "b"][..]);
    let init = &[("i", false), ("j", false)][..];
    for (policy, inits, regular, sandboxes, containers, expected) in [
        // The way up.
        ("Always", &[][..], one, &[][..], &[][..], "box0"),
        ("Always", &[], one, &[(0, true)], &[], "+a0"),
        ("Always", &[], two, &[(0, true)], &["a:0@s0=run"], "+b0"),
        ("Always", &[], one, &[(0, true)], &["a:0@s0=run"], ""),
        ("Always", &[], one, &[(0, true)], &["a:0@s0=new"], "rm a0"),
        ("Always", &[], one, &[(0, true)], &["a:0@s0=unk"], ""),
        ("Always", init, one, &[(0, true)], &[], "+i0"),
        ("Always", init, one, &[(0, true)], &["i:0@s0=run"], ""),
        ("Always", init, one, &[(0, true)], &["i:0@s0=0"], "+j0"),
        ("Always", init, one, &[(0, true)], &["i:0@s0=1"], "+i1"),
        ("Always", init, one, &[(0, true)], &["i:0@s0=0", "j:0@s0=0"], "+a0"),
        // The runtime has forgotten what is over; one that was made later says that it went well.
        ("Always", init, one, &[(0, true)], &["j:0@s0=run"], ""),
        ("Always", init, one, &[(0, true)], &["j:0@s0=1"], "+j1"),
        ("Always", init, one, &[(0, true)], &["j:0@s0=0"], "+a0"),
        // Restart policies.
        ("Always", &[], one, &[(0, true)], &["a:0@s0=0"], "+a1"),
        ("OnFailure", &[], one, &[(0, true)], &["a:0@s0=1"], "+a1"),
        ("OnFailure", &[], one, &[(0, true)], &["a:0@s0=0"], "end Succeeded"),
        ("OnFailure", &[], two, &[(0, true)], &["a:0@s0=0", "b:0@s0=run"], ""),
        ("Never", &[], one, &[(0, true)], &["a:0@s0=1"], "end Failed"),
        ("Never", &[], one, &[(0, true)], &["a:0@s0=0"], "end Succeeded"),
        ("Never", &[], two, &[(0, true)], &["a:0@s0=1", "b:0@s0=run"], ""),
        ("Never", init, one, &[(0, true)], &["i:0@s0=2"], "end Failed"),
        // Init containers do not run again beside the others.
        ("Always", init, one, &[(0, true)], &["i:0@s0=0", "j:0@s0=0", "a:0@s0=7"], "+a1"),
        // The sandbox died.
        ("Always", &[], one, &[(0, false)], &["a:0@s0=255"], "stop s0"),
        ("Always", &[], one, &[(0, false)], &["a:0@s0=run"], "-a0"),
        ("Always", &[], two, &[(0, false)], &["a:0@s0=run", "b:0@s0=255"], "-a0"),
        ("Never", &[], one, &[(0, false)], &["a:0@s0=255"], "end Failed"),
        ("Never", &[], two, &[(0, false)], &["a:0@s0=0"], "end Failed"),
        ("Never", init, one, &[(0, false)], &["i:0@s0=0"], "stop s0"),
        ("Never", &[], one, &[(0, false)], &["a:0@s0=unk"], "-a0"),
        // A new sandbox runs init containers again; a leftover one is stopped.
        ("Always", init, one, &[(0, false), (1, true)], &["i:0@s0=0", "a:0@s0=1"], "stop s0, +i1"),
        // Whoever is done by his policy is not done once more there.
        ("OnFailure", &[], two, &[(0, false), (1, true)], &["a:0@s0=0", "b:0@s0=143"], "stop s0, +b1"),
        ("OnFailure", &[], two, &[(0, false), (1, true)], &["a:0@s0=0", "b:1@s1=run"], "stop s0"),
        ("OnFailure", &[], two, &[(0, false), (1, true)], &["a:0@s0=0", "b:1@s1=0"], "end Succeeded"),
        ("Always", &[], two, &[(0, false), (1, true)], &["a:0@s0=0", "b:1@s1=run"], "stop s0, +a1"),
        // Only the last two of each name are kept.
        ("Always", &[], one, &[(0, true)], &["a:0@s0=1", "a:1@s0=1", "a:2@s0=1", "a:3@s0=run"], "rm a0, rm a1"),
    ] {
        let case = Case::new(pod(policy, inits, regular), sandboxes, containers);
        assert_eq!(case.run(), expected, "{policy} {inits:?} {sandboxes:?} {containers:?}");
    }
}

#[test]
fn a_stopped_sandbox_is_replaced_and_in_the_end_forgotten() {
    let mut case = Case::new(pod("Always", &[], &["a"]), &[(0, false)], &["a:0@s0=255"]);
    case.stopped.insert("s0".into());
    assert_eq!(case.run(), "box1");
    case.sandboxes.push(sandbox(1, true));
    assert_eq!(case.run(), "+a1");
    case.containers = vec![container("a:1@s1=run")];
    assert_eq!(case.run(), "rmbox s0");
}

/// A container whose sandbox died has its time, and ends well: it goes on in another sandbox, unless its pod never does.
#[test]
fn who_is_stopped_since_the_sandbox_died_starts_again() {
    for (policy, noted, expected) in [
        ("Always", false, ["-a0", "stop s0", "box1"]),
        // It might be over then: why it is stopped is written down first, and nothing else begins before.
        ("OnFailure", false, ["", "end Succeeded", "end Succeeded"]),
        ("OnFailure", true, ["-a0", "stop s0", "box1"]),
        ("Never", false, ["-a0", "end Succeeded", "end Succeeded"]),
    ] {
        let mut case = Case::new(pod(policy, &[], &["a"]), &[(0, false)], &["a:0@s0=run"]);
        if noted {
            case.renewed.insert("a0".into());
            case.restarting.insert("a0".into());
        }
        let begins = case.run();
        case.containers = vec![container("a:0@s0=0")];
        let over = case.run();
        case.stopped.insert("s0".into());
        assert_eq!([begins, over, case.run()], expected, "{policy} {noted}");
        case.sandboxes.push(sandbox(1, true));
        let again = if expected[2] == "box1" { "+a1" } else { expected[2] };
        assert_eq!(case.run(), again, "{policy} {noted}");
    }
}

#[test]
fn containers_that_the_runtime_lost() {
    for (policy, expected) in [("Always", "+a4"), ("OnFailure", "+a4"), ("Never", "end Failed")] {
        let mut case = Case::new(pod(policy, &[], &["a"]), &[(0, true)], &[]);
        case.ran_before.insert("a".into(), 3);
        assert_eq!(case.run(), expected, "{policy}");
    }
}

#[test]
fn sidecars_start_in_order_and_stay() {
    let p = || pod("Always", &[("s", true), ("i", false)], &["a"]);
    let waiting = Verdict { started: false, ready: false, must_restart: false };
    for (containers, verdict, expected) in [
        (&[][..], None, "+s0"),
        (&["s:0@s0=run"], Some(waiting), ""),
        (&["s:0@s0=run"], None, "+i0"),
        (&["s:0@s0=run", "i:0@s0=0"], None, "+a0"),
        (&["s:0@s0=1", "i:0@s0=0", "a:0@s0=run"], None, "+s1"),
        // One that is to run on is made again.
        (&["i:0@s0=run"], None, "+s0"),
        (&["i:0@s0=0"], None, "+s0, +a0"),
        // It has let on those behind it once: however often it ends, these go on.
        (&["s:0@s0=1", "i:0@s0=run"], None, "+s1"),
        (&["s:0@s0=1", "i:0@s0=1"], None, "+s1, +i1"),
        (&["s:0@s0=1", "i:0@s0=0"], None, "+s1, +a0"),
        (&["s:0@s0=run", "i:0@s0=1"], Some(waiting), "+i1"),
        // Who was never begun behind it waits for it.
        (&["s:0@s0=1"], None, "+s1"),
    ] {
        let mut case = Case::new(p(), &[(0, true)], containers);
        if let Some(v) = verdict {
            case.verdicts.insert("s0".into(), v);
        }
        assert_eq!(case.run(), expected, "{containers:?}");
    }
}

#[test]
fn probes_and_changed_images_restart_a_container() {
    let mut case = Case::new(pod("Always", &[], &["a"]), &[(0, true)], &["a:0@s0=run"]);
    case.verdicts.insert("a0".into(), Verdict { must_restart: true, ..Verdict::default() });
    assert_eq!(case.run(), "-a0");
    // Whether that it is stopped for a probe was written down, where it might end well; and what is said of it.
    for (policy, own, noted, expected) in [
        ("OnFailure", json!(null), false, None),
        ("OnFailure", json!(null), true, Some("Container a failed liveness probe, will be restarted")),
        ("Never", json!(null), false, Some("Container a failed liveness probe")),
        ("Never", json!("OnFailure"), false, None),
        ("Always", json!("Never"), false, Some("Container a failed liveness probe")),
    ] {
        let mut p = serde_json::to_value(pod(policy, &[], &["a"])).unwrap();
        p["spec"]["containers"][0]["restartPolicy"] = own.clone();
        let mut case = Case::new(serde_json::from_value(p).unwrap(), &[(0, true)], &["a:0@s0=run"]);
        case.verdicts.insert("a0".into(), Verdict { must_restart: true, ..Verdict::default() });
        case.renewed.extend(noted.then(|| "a0".to_owned()));
        let said = case.with(|f| run(f).kill.into_iter().map(|kill| kill.message).next());
        assert_eq!(said.as_deref(), expected, "{policy} {own} {noted}");
    }
    for (policy, hash, expected) in [
        ("Always", "carrack-00000000", "-a0"),
        ("Always", "c0ffee", ""),
        ("Always", "", ""),
        // These would be over then: why they are stopped is written down first.
        ("OnFailure", "carrack-00000000", ""),
        ("Never", "carrack-00000000", ""),
    ] {
        let mut case = Case::new(pod(policy, &[], &["a"]), &[(0, true)], &["a:0@s0=run"]);
        case.containers[0].hash = hash.into();
        assert_eq!(case.run(), expected, "{policy} {hash}");
    }
}

#[test]
fn another_image_starts_a_container_again_whatever_its_policy_is() {
    for (policy, ends) in [("Always", 0), ("OnFailure", 0), ("OnFailure", 143), ("Never", 0), ("Never", 143)] {
        let mut case = Case::new(pod(policy, &[], &["a"]), &[(0, true)], &["a:0@s0=run"]);
        case.containers[0].hash = "carrack-00000000".into();
        case.renewed.insert("a0".into());
        case.restarting.insert("a0".into());
        assert_eq!(case.run(), "-a0", "{policy}");
        case.renewed.clear();
        case.containers = vec![container(&format!("a:0@s0={ends}"))];
        assert_eq!(case.run(), "+a1", "{policy} {ends}");
    }
    // What a container does once is not done twice for it.
    let mut case = Case::new(pod("Always", &[("i", false)], &["a"]), &[(0, true)], &["i:0@s0=run"]);
    case.containers[0].hash = "carrack-00000000".into();
    assert_eq!(case.run(), "");
}

/// A container that is stopped for its size is started again, however it ends and whatever its pod's policy is.
#[test]
fn another_size_starts_a_container_again() {
    for (policy, ends, expected) in [("Always", 0, "+a1"), ("OnFailure", 0, "+a1"), ("OnFailure", 143, "+a1")] {
        let mut case = Case::new(pod(policy, &[], &["a"]), &[(0, true)], &["a:0@s0=run"]);
        case.outgrown.insert("a0".into());
        case.restarting.insert("a0".into());
        assert_eq!(case.run(), "-a0", "{policy}");
        case.containers = vec![container(&format!("a:0@s0={ends}"))];
        assert_eq!(case.run(), expected, "{policy} {ends}");
        // Another one that ends by itself is judged as ever.
        case.restarting.clear();
        let alone = if policy == "OnFailure" && ends == 0 { "end Succeeded" } else { "+a1" };
        assert_eq!(case.run(), alone, "{policy} {ends}");
    }
}

#[test]
fn a_pod_that_should_stop() {
    let p = || pod("Always", &[("s", true), ("t", true)], &["a", "b"]);
    for (containers, expected) in [
        (&["s:0@s0=run", "t:0@s0=run", "a:0@s0=run", "b:0@s0=0"][..], "-a0, ~s0, ~t0"),
        (&["s:0@s0=run", "t:0@s0=run", "a:0@s0=0"], "-t0, ~s0"),
        (&["s:0@s0=run", "t:0@s0=0"], "-s0"),
        // Sidecars do not wait for those that they do not serve: for debugging, or before the regular ones.
        (&["s:0@s0=run", "e:0@s0=run"], "-s0, -e0"),
        (&["s:0@s0=run", "t:0@s0=run", "e:0@s0=run", "a:0@s0=run"], "-e0, -a0, ~s0, ~t0"),
        (&["s:0@s0=0", "a:0@s0=unk"], "-a0"),
        (&["s:0@s0=0", "a:0@s0=new"], "stop s0"),
        (&[], "stop s0"),
    ] {
        let case = Case::new(p(), &[(0, true)], containers);
        assert_eq!(case.stop(), expected, "{containers:?}");
    }
    let mut case = Case::new(p(), &[(0, false)], &["a:0@s0=0"]);
    assert_eq!(case.stop(), "stop s0", "a sandbox that is not ready may still hold its network");
    case.stopped.insert("s0".into());
    assert_eq!(case.stop(), "stopped");
    assert_eq!(case.with(|f| text(&forget(f))), "rm a0");
    case.containers.clear();
    assert_eq!(case.with(|f| text(&forget(f))), "rmbox s0");
    case.sandboxes.clear();
    assert_eq!(case.with(|f| text(&forget(f))), "stopped");
}

#[test]
fn containers_have_policies_and_rules_of_their_own() {
    let rule = |operator: &str, values: &[i32]| json!([{"action": "Restart", "exitCodes": {"operator": operator, "values": values}}]);
    for (of_pod, own, rules, containers, expected) in [
        ("Never", json!(null), json!(null), "a:0@s0=1", "end Failed"),
        ("Never", json!("Always"), json!(null), "a:0@s0=0", "+a1"),
        ("Never", json!("OnFailure"), json!(null), "a:0@s0=1", "+a1"),
        ("Never", json!("OnFailure"), json!(null), "a:0@s0=0", "end Succeeded"),
        ("Always", json!("Never"), json!(null), "a:0@s0=1", "end Failed"),
        ("Always", json!("Never"), json!(null), "a:0@s0=0", "end Succeeded"),
        ("Never", json!("Never"), rule("In", &[42]), "a:0@s0=42", "+a1"),
        ("Never", json!("Never"), rule("In", &[42]), "a:0@s0=41", "end Failed"),
        ("Never", json!("Never"), rule("NotIn", &[1]), "a:0@s0=2", "+a1"),
        ("Never", json!("Never"), rule("NotIn", &[1]), "a:0@s0=1", "end Failed"),
        ("Never", json!("OnFailure"), rule("In", &[0]), "a:0@s0=0", "+a1"),
    ] {
        let what = format!("{of_pod} {own} {rules} {containers}");
        let mut p = serde_json::to_value(pod(of_pod, &[], &["a"])).unwrap();
        p["spec"]["containers"][0]["restartPolicy"] = own.clone();
        p["spec"]["containers"][0]["restartPolicyRules"] = rules;
        let p: Pod = carrack_types::json::from_value(p).unwrap();
        assert_eq!(Case::new(p, &[(0, true)], &[containers]).run(), expected, "{what}");
    }
    // One that is started again keeps its pod from ending; one that has ended for good does not end it alone.
    let mut p = serde_json::to_value(pod("Never", &[("i", false)], &["a", "b"])).unwrap();
    p["spec"]["containers"][0]["restartPolicy"] = "Always".into();
    p["spec"]["initContainers"][0]["restartPolicy"] = "OnFailure".into();
    let p: Pod = carrack_types::json::from_value(p).unwrap();
    for (containers, expected) in [
        (&["i:0@s0=1"][..], "+i1"),
        (&["i:0@s0=0", "a:0@s0=run", "b:0@s0=1"], ""),
        (&["i:0@s0=0", "a:0@s0=0", "b:0@s0=1"], "+a1"),
    ] {
        assert_eq!(Case::new(p.clone(), &[(0, true)], containers).run(), expected, "{containers:?}");
    }
}

/// One that was made and never started has not run (upstream's `computePodActions` takes it for one that has).
#[test]
fn an_ephemeral_container_runs_once() {
    for (ran_before, containers, expected) in [
        (false, &["a:0@s0=run"][..], "+e0"),
        (false, &["a:0@s0=run", "e:0@s0=new"], "rm e0"),
        (false, &["a:0@s0=run", "e:0@s0=run"], ""),
        (false, &["a:0@s0=run", "e:0@s0=unk"], ""),
        (false, &["a:0@s0=run", "e:0@s0=0"], ""),
        (false, &["a:0@s0=run", "e:0@s0=1"], ""),
        // In another sandbox it does not run once more, and not where the runtime knows no more of it.
        (false, &["a:0@s0=run", "e:0@s1=255"], ""),
        (true, &["a:0@s0=run"], ""),
        (true, &["a:0@s0=1"], "+a1"),
    ] {
        let mut p = serde_json::to_value(pod("Always", &[], &["a"])).unwrap();
        p["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i"}]);
        let mut case = Case::new(carrack_types::json::from_value(p).unwrap(), &[(0, true)], containers);
        case.ran_before.extend(ran_before.then(|| ("e".to_owned(), 0)));
        assert_eq!(case.run(), expected, "{ran_before} {containers:?}");
    }
}

/// Upstream's `TestComputePodActionsWithRestartAllContainers` has cases like these, with containers removed in the place of rounds.
#[test]
fn all_containers_start_again_together() {
    let mut p = serde_json::to_value(pod("Never", &[("i", false)], &["a", "b"])).unwrap();
    p["spec"]["containers"][0]["restartPolicy"] = "Never".into();
    p["spec"]["containers"][0]["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    p["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i"}]);
    let p: Pod = carrack_types::json::from_value(p).unwrap();
    // Somebody has looked at it in `e`.
    let looked_at = |sandboxes: &[(u32, bool)], containers: &[&str]| {
        let mut case = Case::new(p.clone(), sandboxes, containers);
        case.ran_before.insert("e".into(), 0);
        case
    };
    let one = &[(0, true)][..];
    for (sandboxes, containers, expected) in [
        // What runs is killed, and nothing starts before that.
        (one, &["i:0@s0=0", "a:0@s0=42", "b:0@s0=run"][..], "-b0"),
        (one, &["i:0@s0=0", "a:0@s0=42", "b:0@s0=unk"], "-b0"),
        (one, &["i:0@s0=0", "a:0@s0=42", "b:0@s0=new"], "+i1, rm b0"),
        // Who is done does it once more, and who had failed has not.
        (one, &["i:0@s0=0", "a:0@s0=42", "b:0@s0=0"], "+i1"),
        (one, &["i:0@s0=0", "a:0@s0=42", "b:0@s0=1"], "+i1"),
        (one, &["i:0@s0=0", "a:0@s0=41", "b:0@s0=0"], "end Failed"),
        // One after another, and then it is as ever.
        (one, &["i:1@s0=run^1", "a:0@s0=42", "b:0@s0=137"], ""),
        (one, &["i:1@s0=0^1", "a:0@s0=42", "b:0@s0=137"], "+a1, +b1"),
        (one, &["i:1@s0=0^1", "a:1@s0=run^1", "b:0@s0=137"], "+b1"),
        (one, &["i:1@s0=0^1", "a:1@s0=run^1", "b:1@s0=run^1"], ""),
        (one, &["i:1@s0=1^1", "a:0@s0=42", "b:0@s0=137"], "end Failed"),
        (one, &["i:1@s0=0^1", "a:1@s0=0^1", "b:1@s0=0^1"], "end Succeeded"),
        (one, &["i:1@s0=0^1", "a:1@s0=42^1", "b:1@s0=run^1"], "-b1"),
        // Another sandbox is of the same round.
        (&[(0, false), (1, true)], &["i:0@s0=0", "a:0@s0=42", "b:0@s0=0"], "stop s0, +i1"),
        // Who looks at it goes on looking.
        (one, &["e:0@s0=run", "i:0@s0=0", "a:0@s0=42", "b:0@s0=0"], "+i1"),
    ] {
        assert_eq!(looked_at(sandboxes, containers).run(), expected, "{containers:?}");
    }
    // How it ends says nothing where it was stopped to start again, or has started again since.
    let mut case = looked_at(one, &["i:0@s0=0", "a:0@s0=42", "b:0@s0=run"]);
    case.restarting.insert("a0".into());
    assert_eq!(case.run(), "+a1");
    let since = ["i:0@s0=0", "a:0@s0=42", "a:1@s0=run", "b:0@s0=run"];
    assert_eq!(looked_at(one, &since).run(), "");
    let case = looked_at(one, &["i:0@s0=0", "a:0@s0=42", "b:0@s0=run"]);
    assert!(case.with(|f| run(f).kill.iter().all(|kill| kill.at_once)), "without a hook and without any time");
}

/// Upstream kills a container of unknown state before it starts it anew (`computePodActions`); here it has to stay unknown for that.
#[test]
fn who_stays_unknown_is_stopped_before_it_starts_again() {
    for (policy, is_lost, is_noted, expected) in [
        ("Always", false, false, ""),
        ("Always", true, false, "-a0"),
        ("Never", true, false, "-a0"),
        // It might heed its stop signal, and count as done.
        ("OnFailure", true, false, ""),
        ("OnFailure", true, true, "-a0"),
    ] {
        let mut case = Case::new(pod(policy, &[], &["a"]), &[(0, true)], &["a:0@s0=unk"]);
        case.lost.extend(is_lost.then(|| "a0".to_owned()));
        case.renewed.extend(is_noted.then(|| "a0".to_owned()));
        assert_eq!(case.run(), expected, "{policy} {is_lost} {is_noted}");
        let said = case.with(|f| run(f).kill.into_iter().map(|kill| kill.message).next());
        let words = "Container is in \"unknown\" state, try killing it before restart";
        assert!(said.is_none_or(|said| said == words), "{policy}");
    }
}

/// Upstream's `killPodWithSyncResult` stops the sandboxes whatever has become of the containers.
#[test]
fn who_cannot_be_stopped_holds_up_no_sandbox_once_its_time_is_over() {
    let p = || pod("Always", &[], &["a", "b"]);
    for (spent, run, stop) in [
        (&[][..], "-a0, -b0", "-a0, -b0"),
        (&["a0"], "-a0, -b0", "-a0, -b0"),
        (&["a0", "b0"], "stop s0, -a0, -b0", "stop s0, -a0, -b0"),
    ] {
        let mut case = Case::new(p(), &[(0, false)], &["a:0@s0=run", "b:0@s0=run"]);
        case.spent = spent.iter().map(|id| (*id).to_owned()).collect();
        assert_eq!((case.run().as_str(), case.stop().as_str()), (run, stop), "{spent:?}");
        // Nothing starts beside them, and the pod has not stopped.
        case.stopped.insert("s0".into());
        assert_eq!((case.run().as_str(), case.stop().as_str()), ("-a0, -b0", "-a0, -b0"), "{spent:?}");
    }
}
