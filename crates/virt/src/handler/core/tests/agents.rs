//! What a guest's agent is asked, how often, and what is told of it.

use super::*;
use crate::handler::effects::{AgentInterface, AgentReport};

#[test]
fn an_agent_is_asked_beside_all_else_and_believed_about_itself() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.change(VMI, |vmi| vmi["status"]["volumeStatus"] = json!([{"name": "root"}]));
    rig.start(Vec::new());
    rig.boot();
    let alive = |connected: bool| {
        let domain = Domain { phase: Phase::Running, agent_connected: connected, ..Domain::waiting("vmi") };
        Input::Own(In::Domain("vmi".to_owned(), Box::new(domain)))
    };
    rig.step(alive(true));
    rig.settle();
    assert_eq!(rig.condition("AgentConnected").expect("connected")["status"], "True");
    let ask = |op: &Op| matches!(op, Op::AskAgent(_));
    // No answer is no trouble of the guest's.
    rig.answer(ask, Err(OpError("silence".to_owned())));
    assert!(rig.condition("Synchronized").is_none());
    rig.pass(Duration::from_secs(10));
    // Credentials that it did not take are tried again as soon.
    let refused = AgentReport { credentials: Some(Err("no such user".to_owned())), ..AgentReport::default() };
    rig.answer(ask, Ok(Reply::Agent(Box::new(refused))));
    rig.settle();
    rig.pass(Duration::from_secs(10));
    // Those that it took are looked at again soon: somebody may exchange them.
    let taken = AgentReport { credentials: Some(Ok(7)), ..AgentReport::default() };
    rig.answer(ask, Ok(Reply::Agent(Box::new(taken))));
    rig.settle();
    rig.pass(Duration::from_secs(14));
    assert!(rig.idle());
    rig.pass(Duration::from_secs(1));
    let mac = rig.objects[VMI]["status"]["interfaces"][0]["mac"].as_str().unwrap_or_default().to_owned();
    let mut report = AgentReport::default();
    report.os.id = "demo".to_owned();
    report.commands.push("guest-ping".to_owned());
    report.interfaces.push(AgentInterface { name: "ens3".to_owned(), mac, ..AgentInterface::default() });
    let addresses = vec!["172.17.0.1".to_owned()];
    report.interfaces.push(AgentInterface { name: "docker0".to_owned(), mac: "02:42:0".to_owned(), addresses });
    rig.answer(ask, Ok(Reply::Agent(Box::new(report.clone()))));
    let status = rig.objects[VMI]["status"].clone();
    assert_eq!(status["guestOSInfo"]["id"], "demo");
    let lacking = rig.condition("AgentVersionNotSupported").expect("told");
    assert_eq!(lacking["reason"], "This guest agent doesn't support required basic commands");
    assert_eq!(status["interfaces"][0]["interfaceName"], "ens3");
    assert_eq!(status["interfaces"][0]["infoSource"], "domain, guest-agent");
    assert_eq!(status["interfaces"][0]["ipAddress"], "10.1.0.5");
    let own = json!({"mac": "02:42:0", "interfaceName": "docker0", "ipAddress": "172.17.0.1", "ipAddresses": ["172.17.0.1"],
        "infoSource": "guest-agent"});
    assert_eq!(status["interfaces"][1], own);
    assert_eq!(status["volumeStatus"][0], json!({"name": "root", "target": "vda"}));
    // What somebody has changed is told at once.
    let frozen = |rig: &Rig| rig.objects[VMI]["status"]["fsFreezeStatus"].clone();
    assert_eq!(frozen(&rig), Value::Null);
    rig.settle();
    let before = report;
    // The agent of a frozen guest says nothing else.
    let report = AgentReport { frozen: true, ..AgentReport::default() };
    // The second while it is being asked: that answer may be from before.
    for _ in 0..2 {
        rig.step(Input::Own(In::AgentChanged("vmi".to_owned())));
    }
    rig.answer(ask, Ok(Reply::Agent(Box::new(before))));
    rig.answer(ask, Ok(Reply::Agent(Box::new(report))));
    assert_eq!(frozen(&rig), "frozen");
    let status = rig.objects[VMI]["status"].clone();
    assert_eq!(status["guestOSInfo"]["id"], "demo");
    assert_eq!(status["interfaces"][0]["interfaceName"], "ens3");
    rig.settle();
    rig.pass(Duration::from_secs(119));
    assert!(rig.idle());
    // A question that is under way does not keep the power button from being pressed.
    rig.pass(Duration::from_secs(2));
    rig.expect(ask);
    rig.change(VMI, |vmi| vmi["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done));
    rig.expect(|op| matches!(op, Op::Call(_, Call::Shutdown)));
    rig.step(alive(false));
    rig.settle();
    assert!(rig.condition("AgentConnected").is_none());
    assert!(rig.condition("AgentVersionNotSupported").is_none());
    assert_eq!(rig.objects[VMI]["status"].get("guestOSInfo"), None);
}

/// As a handler finds it that was started meanwhile.
#[test]
fn what_an_agent_told_before_stands_while_its_guest_is_frozen() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.boot();
    let domain = Domain { phase: Phase::Running, agent_connected: true, ..Domain::waiting("vmi") };
    rig.step(Input::Own(In::Domain("vmi".to_owned(), Box::new(domain))));
    rig.settle();
    rig.change(VMI, |vmi| {
        vmi["status"]["guestOSInfo"] = json!({"id": "demo"});
        vmi["status"]["interfaces"][0]["interfaceName"] = json!("ens3");
    });
    let frozen = AgentReport { frozen: true, ..AgentReport::default() };
    rig.answer(|op| matches!(op, Op::AskAgent(_)), Ok(Reply::Agent(Box::new(frozen))));
    rig.pass(Duration::from_secs(5));
    rig.settle();
    let status = &rig.objects[VMI]["status"];
    assert_eq!(status["fsFreezeStatus"], "frozen");
    assert_eq!(status["guestOSInfo"]["id"], "demo");
    assert_eq!(status["interfaces"][0]["interfaceName"], "ens3");
    assert!(rig.condition("AgentVersionNotSupported").is_none());
}
