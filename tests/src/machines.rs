//! Machines as their users drive them: what they are made of, how they are called, and what they say of themselves.

use crate::{Kubectl, eventually, root};

/// How long a guest may take to boot, in seconds. There may be no KVM.
pub const BOOT_S: u64 = 240;

/// Where machines and their instances are called.
pub const CALLS: &str = "/apis/subresources.kubevirt.io/v1/namespaces/default";

/// The machine of the example, under another name.
///
/// # Panics
/// The example is not there.
#[must_use]
pub fn demo_machine(name: &str, strategy: &str) -> String {
    let text = std::fs::read_to_string(root().join("examples/vm.yaml")).expect("the example");
    text.replace("name: demo\n", &format!("name: {name}\n"))
        .replace("hostname: demo", &format!("hostname: {name}"))
        .replace("runStrategy: Always", &format!("runStrategy: {strategy}"))
}

/// The same for tests that end guests which have just begun to boot, and do not hear the power button yet.
///
/// # Panics
/// As [`demo_machine`].
#[must_use]
pub fn hasty_machine(name: &str, strategy: &str) -> String {
    demo_machine(name, strategy).replace("terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 2")
}

impl Kubectl<'_> {
    /// What a machine says of itself.
    #[must_use]
    pub fn machine_status(&self, name: &str) -> String {
        self.field("vm", name, "/status/printableStatus").as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a machine says so of itself, for as long as a guest may take to boot.
    ///
    /// # Panics
    /// It does not.
    pub fn wait_status(&self, name: &str, wanted: &str) {
        self.wait_status_within(name, wanted, BOOT_S);
    }

    /// As [`Self::wait_status`], for so long.
    ///
    /// # Panics
    /// It does not.
    pub fn wait_status_within(&self, name: &str, wanted: &str, limit_s: u64) {
        eventually(&format!("{name} is {wanted}"), limit_s, || {
            let now = self.machine_status(name);
            if now == wanted { Ok(()) } else { Err(format!("it is {now}")) }
        });
    }

    /// Calls a machine or its instance, which must succeed.
    pub fn call(&self, path: &str, body: &str) {
        self.run(&["replace", "--raw", &format!("{CALLS}/{path}"), "-f", "-"]).input(body).done();
    }
}
