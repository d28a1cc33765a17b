//! What is asked of a guest, by its agent.

use crate::machines::BOOT_S;
use crate::{Kubectl, eventually, eventually_true};

impl Kubectl<'_> {
    /// Waits until the agent of an instance's guest answers.
    ///
    /// # Panics
    /// It does not.
    pub fn wait_agent(&self, name: &str) {
        eventually_true(&format!("there is an instance {name}"), BOOT_S, || self.get("vmi", name).is_some());
        let wait = ["wait", "--for=condition=AgentConnected", &format!("vmi/{name}"), &format!("--timeout={BOOT_S}s")];
        self.run(&wait).limit_s(BOOT_S + 10).done();
    }

    /// Waits until a line of the shell succeeds in an instance's guest.
    ///
    /// # Panics
    /// It does not.
    pub fn holds_in_guest(&self, name: &str, line: &str) {
        self.holds_in_guest_within(name, line, 180, 60);
    }

    /// As [`Self::holds_in_guest`], in a guest that boots meanwhile.
    ///
    /// # Panics
    /// It does not.
    pub fn holds_in_booted_guest(&self, name: &str, line: &str) {
        // What was asked just before it went down is never answered.
        self.holds_in_guest_within(name, line, BOOT_S, 10);
    }

    /// Each try may take some of the time.
    fn holds_in_guest_within(&self, name: &str, line: &str, limit_s: u64, try_s: u64) {
        let try_s = try_s.to_string();
        let uid = self.field("vmi", name, "/metadata/uid");
        let uid = uid.as_str().expect("a UID");
        let pods = ["get", "pods", "-l", &format!("kubevirt.io/created-by={uid}"), "-o", "name"];
        let pod = self.ok(&pods).trim().to_owned();
        let probe =
            ["/usr/bin/carrack", "virt-launcher", "probe", "--uid", uid, "--timeout-s", &try_s, "--", "/bin/sh", "-c"];
        let exec = [["exec", &pod, "-c", "compute", "--"].as_slice(), &probe, &[line]].concat();
        eventually(&format!("in the guest: {line}"), limit_s, || {
            let output = self.run(&exec).output();
            if output.code == Some(0) { Ok(()) } else { Err(output.to_string()) }
        });
    }
}
