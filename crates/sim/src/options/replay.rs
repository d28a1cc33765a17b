//! The command that plays a run again.

use std::time::Duration;

use super::Options;

impl Options {
    /// How the command line says that no part of the work is done.
    pub const NO_PART: &'static str = "none";

    /// The command that plays a seed with these options again. Times are whole seconds. Tests alone choose scenes and mishaps of
    /// clones, and where their controller runs: there are no flags for these.
    #[must_use]
    pub fn replay(&self, seed: u64) -> String {
        let usual = Self::default();
        let mut words = vec![format!("carrack sim --seed {seed}")];
        words.extend(self.plant.map(|plant| format!("--plant {}", plant.name)));
        let mut time = |flag: &str, own: Duration, usual: Duration| {
            words.extend((own != usual).then(|| format!("{flag} {}", own.as_secs())));
        };
        time("--safety", self.safety, usual.safety);
        time("--liveness", self.liveness, usual.liveness);
        for (flag, set) in [
            ("--workloads", self.workloads),
            ("--gpus", self.gpus),
            ("--whole", self.whole),
            ("--clones", self.clones && !self.copies),
            ("--copies", self.copies),
            ("--swarm", self.swarm),
            ("--small", self.small),
            ("--no-machines", !self.machines),
            ("--no-faults", !self.faults),
            ("--compare", self.compares),
        ] {
            words.extend(set.then(|| flag.to_owned()));
        }
        if !self.without.is_empty() {
            words.push(format!("--without {}", self.without.join(",")));
        }
        if let Some(kept) = &self.kept_parts {
            let kept = if kept.is_empty() { Self::NO_PART.to_owned() } else { kept.join(",") };
            words.push(format!("--only {kept}"));
        }
        words.extend(self.heal_after.map(|after| format!("--heal-after {}", after.as_secs())));
        words.push("--trace".to_owned());
        words.join(" ")
    }
}
