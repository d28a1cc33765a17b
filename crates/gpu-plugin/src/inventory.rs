//! The GPUs of a node: what is known of them, and how they are offered.

use std::collections::BTreeSet;
use std::path::PathBuf;

use carrack_gpu_extender::{CORES, Gpu, demand};
use carrack_types::quantity::Quantity;
use serde::{Deserialize, Serialize};

/// Memory of one device of the memory resource, in MiB. Upstream's plugin has the same.
pub const MEMORY_UNIT_MIB: u64 = 256;
/// More GPUs than this has no node.
const MAX_GPUS: usize = 64;
/// More memory than this has no GPU.
const MAX_MEMORY_MIB: u64 = 16 << 20;

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// Its UUID.
    pub uuid: String,
    /// Its memory, in MiB.
    pub memory_mib: u64,
    /// Where it sits, from the outside in: see [`carrack_gpu_extender::node`].
    pub near: Vec<String>,
    /// It does not work.
    pub broken: bool,
    /// Device files that a container needs to use it.
    #[serde(skip_deserializing)]
    pub files: Vec<PathBuf>,
}

/// All GPUs, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// The GPUs.
    pub gpus: Vec<Device>,
    /// Device files that a container with any of them needs.
    pub shared_files: Vec<PathBuf>,
}

impl Inventory {
    /// Made-up GPUs: `2x16Gi`, or `2x16Gi,1x24Gi`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn made_up(text: &str) -> Result<Self, String> {
        let mut gpus = Vec::new();
        for part in text.split(',') {
            let wrong = || format!("{part:?} is no number of GPUs: it is COUNTxMEMORY, such as 2x16Gi");
            let (count, memory) = part.trim().split_once('x').ok_or_else(wrong)?;
            let count: usize = count.parse().map_err(|_| wrong())?;
            let memory = Quantity::parse(memory).map_err(|_| wrong())?;
            let memory_mib = u64::try_from(memory.units()).map_err(|_| wrong())? >> 20;
            if count > MAX_GPUS {
                return Err(format!("no more than {MAX_GPUS} GPUs can be made up"));
            }
            gpus.extend((0..count).map(|_| Device { memory_mib, ..Device::default() }));
        }
        Self::checked(gpus)
    }

    /// Made-up GPUs as JSON: a list of [`Device`]s.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn from_json(text: &str) -> Result<Self, String> {
        Self::checked(serde_json::from_str(text).map_err(|e| e.to_string())?)
    }

    fn checked(mut gpus: Vec<Device>) -> Result<Self, String> {
        if gpus.len() > MAX_GPUS {
            return Err(format!("no more than {MAX_GPUS} GPUs can be made up"));
        }
        for (number, gpu) in gpus.iter_mut().enumerate() {
            if gpu.uuid.is_empty() {
                gpu.uuid = format!("GPU-fake-{number}");
            }
            if gpu.memory_mib < MEMORY_UNIT_MIB || gpu.memory_mib > MAX_MEMORY_MIB {
                return Err(format!("GPU {number} has {} MiB of memory: 256 to 16777216 are possible", gpu.memory_mib));
            }
            if !gpu.uuid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
                return Err(format!("{:?} is no UUID of a GPU", gpu.uuid));
            }
        }
        let mut uuids: Vec<&str> = gpus.iter().map(|g| g.uuid.as_str()).collect();
        uuids.sort_unstable();
        uuids.dedup();
        if uuids.len() < gpus.len() {
            return Err("two GPUs have the same UUID".to_owned());
        }
        Ok(Self { gpus, shared_files: Vec::new() })
    }

    /// The same GPUs under the numbers that they had before: choices are written down by number, and a driver numbers anew when
    /// it misses one. Who is missing, or does not answer, is broken and keeps its number; new ones come after all others, but for
    /// one that sits where a broken one was.
    #[must_use]
    pub fn numbered_as(mut self, before: &Self) -> Self {
        let broken = |old: &Device| Device { broken: true, ..old.clone() };
        let is_known = |gpu: &Device| before.gpus.iter().any(|old| old.uuid == gpu.uuid);
        let in_place =
            |(new, old): (&Device, &Device)| new.uuid == old.uuid || new.broken || old.broken && !is_known(new);
        if self.gpus.len() == before.gpus.len() && self.gpus.iter().zip(&before.gpus).all(in_place) {
            for (new, old) in self.gpus.iter_mut().zip(&before.gpus).filter(|(new, _)| new.broken) {
                *new = broken(old);
            }
            return self;
        }
        let mut gpus = Vec::new();
        for old in &before.gpus {
            let found = self.gpus.iter().position(|gpu| gpu.uuid == old.uuid);
            gpus.push(found.map_or_else(|| broken(old), |at| self.gpus.remove(at)));
        }
        // What does not answer has no UUID of its own, and is one of those that are missing.
        self.gpus.retain(|gpu| !gpu.broken);
        gpus.append(&mut self.gpus);
        Self { gpus, ..self }
    }

    /// The GPUs that a node's annotation names ([`Self::annotation`]), by the numbers that they have there. None where it does not
    /// name all of them, or tells of what no node has.
    #[must_use]
    pub fn noted(annotation: &str) -> Option<Self> {
        let noted: Vec<Gpu> = serde_json::from_str(annotation).ok()?;
        let device = |gpu: Gpu| Device {
            uuid: gpu.uuid,
            memory_mib: gpu.memory.saturating_mul(MEMORY_UNIT_MIB),
            near: gpu.near,
            broken: gpu.broken,
            files: Vec::new(),
        };
        let gpus: Vec<Device> = noted.into_iter().map(device).collect();
        let possible = |gpu: &Device| !gpu.uuid.is_empty() && gpu.memory_mib <= MAX_MEMORY_MIB;
        let all = gpus.len() <= demand::MAX_GPUS && gpus.iter().all(possible);
        all.then_some(Self { gpus, shared_files: Vec::new() })
    }

    /// What a driver tells of at the start, by the numbers that are noted. Those that are missing and in no use were taken out: one
    /// that is new is in its place, and at the end of the list they are forgotten.
    #[must_use]
    pub fn recalled(self, noted: &Self, in_use: &BTreeSet<usize>) -> Self {
        let silent = self.gpus.iter().any(|gpu| gpu.broken);
        let there: BTreeSet<String> = self.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let mut all = self.numbered_as(noted);
        // Who does not answer may be one of those that are missing.
        if silent {
            return all;
        }
        let is_free = |gpus: &[Device], number: usize| {
            gpus.get(number).is_some_and(|gpu| !there.contains(&gpu.uuid)) && !in_use.contains(&number)
        };
        for number in 0..noted.gpus.len() {
            if is_free(&all.gpus, number) && all.gpus.len() > noted.gpus.len() {
                let new = all.gpus.remove(noted.gpus.len());
                all.gpus[number] = new;
            }
        }
        while is_free(&all.gpus, all.gpus.len().saturating_sub(1)) {
            all.gpus.pop();
        }
        all
    }

    /// The numbers of GPUs by their UUIDs, and those that are not here.
    #[must_use]
    pub fn find(&self, uuids: &[&str]) -> (Vec<usize>, Vec<String>) {
        let (mut here, mut gone) = (Vec::new(), Vec::new());
        for uuid in uuids {
            match self.gpus.iter().position(|gpu| gpu.uuid == *uuid) {
                Some(number) => here.push(number),
                None => gone.push((*uuid).to_owned()),
            }
        }
        (here, gone)
    }

    /// All of it as JSON, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        // Texts, numbers and lists alone: this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Devices of the core resource: names, and whether they may be given out.
    #[must_use]
    pub fn core_devices(&self) -> Vec<(String, bool)> {
        self.devices("c", |_| u64::from(CORES))
    }
    /// Devices of the memory resource.
    #[must_use]
    pub fn memory_devices(&self) -> Vec<(String, bool)> {
        self.devices("m", |gpu| gpu.memory_mib / MEMORY_UNIT_MIB)
    }
    fn devices(&self, kind: &str, count: impl Fn(&Device) -> u64) -> Vec<(String, bool)> {
        let of = |gpu: &Device| -> Vec<(String, bool)> {
            (0..count(gpu)).map(|n| (format!("{}-{kind}{n}", gpu.uuid), !gpu.broken)).collect()
        };
        self.gpus.iter().flat_map(of).collect()
    }

    /// What the node's annotation says.
    #[must_use]
    pub fn annotation(&self) -> String {
        let gpus: Vec<Gpu> = self
            .gpus
            .iter()
            .map(|gpu| Gpu {
                uuid: gpu.uuid.clone(),
                memory: gpu.memory_mib / MEMORY_UNIT_MIB,
                near: gpu.near.clone(),
                broken: gpu.broken,
            })
            .collect();
        // Strings and numbers alone: this cannot fail.
        serde_json::to_string(&gpus).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_can_be_made_up() {
        let check = |text: &str, expected: Result<&[u64], &str>| match (Inventory::made_up(text), expected) {
            (Ok(found), Ok(memories)) => {
                assert_eq!(found.gpus.iter().map(|g| g.memory_mib).collect::<Vec<_>>(), memories, "{text}");
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
            (other, _) => panic!("{text}: {other:?}"),
        };
        check("2x16Gi", Ok(&[16384, 16384]));
        check("1x512Mi,1x1Gi", Ok(&[512, 1024]));
        check("0x1Gi", Ok(&[]));
        check("2", Err("COUNTxMEMORY"));
        check("2x", Err("COUNTxMEMORY"));
        check("-1x1Gi", Err("COUNTxMEMORY"));
        check("1x-1Gi", Err("COUNTxMEMORY"));
        check("1x1Mi", Err("256"));
        check("1000000000x1Gi", Err("no more than 64"));
        check("64x1Gi,1x1Gi", Err("no more than 64"));
        assert!(Inventory::from_json(r#"[{"memory_mib": 1024, "near": ["a"]}]"#).is_ok());
        assert!(Inventory::from_json(r#"[{"memory_mib": 1024, "uuid": "x y"}]"#).is_err());
        assert!(Inventory::from_json(r#"[{"memory": 1024}]"#).is_err());
        assert!(
            Inventory::from_json(r#"[{"memory_mib": 1024, "uuid": "x"}, {"memory_mib": 1024, "uuid": "x"}]"#).is_err()
        );
    }

    /// GPUs by UUID, with a `!` for one that is broken.
    fn gpus(uuids: &[&str]) -> Inventory {
        let gpu = |uuid: &&str| {
            let (name, broken) = uuid.strip_suffix('!').map_or((*uuid, false), |name| (name, true));
            Device { uuid: name.to_owned(), broken, ..Device::default() }
        };
        Inventory { gpus: uuids.iter().map(gpu).collect(), shared_files: Vec::new() }
    }

    /// GPUs before and now, and what they are by number.
    fn check_numbers(before: &[&str], now: &[&str], expected: &[&str]) {
        assert_eq!(gpus(now).numbered_as(&gpus(before)), gpus(expected), "{before:?} {now:?}");
    }

    #[test]
    fn gpus_keep_their_numbers() {
        check_numbers(&["a", "b", "c"], &["a", "b", "c"], &["a", "b", "c"]);
        check_numbers(&["a", "b", "c"], &["a", "lost!", "c"], &["a", "b!", "c"]);
        check_numbers(&["a", "b", "c"], &["a", "c"], &["a", "b!", "c"]);
        check_numbers(&["a", "b!", "c"], &["c", "b", "a"], &["a", "b", "c"]);
        check_numbers(&["a", "b"], &["d", "a", "b!"], &["a", "b!", "d"]);
        check_numbers(&["a", "lost!"], &["a", "b"], &["a", "b"]);
        check_numbers(&["a"], &[], &["a!"]);
        check_numbers(&["a!", "b!"], &["b", "a"], &["a", "b"]);
        check_numbers(&[], &["a"], &["a"]);
    }

    /// GPUs that are noted, which numbers are in use, what the driver tells of at the start, and what comes of it.
    fn check_recalled(noted: &[&str], in_use: &[usize], now: &[&str], expected: &[&str]) {
        let noted = Inventory::noted(&gpus(noted).annotation()).expect("GPUs with names");
        let recalled = gpus(now).recalled(&noted, &in_use.iter().copied().collect());
        assert_eq!(recalled, gpus(expected), "{noted:?} {in_use:?} {now:?}");
    }

    #[test]
    fn numbers_outlive_a_reboot() {
        check_recalled(&["a", "b", "c"], &[], &["a", "b", "c"], &["a", "b", "c"]);
        // One is lost, and the driver numbers the others anew.
        check_recalled(&["a", "b", "c"], &[], &["b", "c"], &["a!", "b", "c"]);
        check_recalled(&["a", "b", "c"], &[2], &["a", "b"], &["a", "b", "c!"]);
        check_recalled(&["a!", "b", "c"], &[], &["b", "c", "a"], &["a", "b", "c"]);
        // Nobody has the last ones.
        check_recalled(&["a", "b", "c"], &[0], &["a"], &["a"]);
        check_recalled(&["a", "b", "c"], &[1], &["a"], &["a", "b!"]);
        check_recalled(&["a", "b"], &[], &["a", "lost!"], &["a", "b!"]);
        check_recalled(&["a", "b"], &[1], &["c", "a"], &["a", "b!", "c"]);
        // Others are in their places.
        check_recalled(&["a", "b"], &[], &["b", "c"], &["c", "b"]);
        check_recalled(&["a", "b", "c"], &[1], &["x", "y"], &["x", "b!", "y"]);
        check_recalled(&["a", "b"], &[], &["x", "y", "z"], &["x", "y", "z"]);
        check_recalled(&["a", "b", "c"], &[], &["x"], &["x"]);
        check_recalled(&["a", "b"], &[], &["b", "c", "lost!"], &["a!", "b", "c"]);
        check_recalled(&[], &[], &["a"], &["a"]);
    }

    #[test]
    fn notes_of_others_are_no_numbers() {
        let none = |text: &str| assert_eq!(Inventory::noted(text), None, "{text}");
        none("");
        none("{}");
        none(r#"[{"memory": 4}]"#);
        none(r#"[{"uuid": "a", "memory": 4}, {"memory": 4}]"#);
        none(r#"[{"uuid": "a", "memory": 18446744073709551615}]"#);
        let found = Inventory::made_up("2x1Gi").expect("two GPUs");
        assert_eq!(Inventory::noted(&found.annotation()), Some(found.clone()));
        assert_eq!(found.find(&["GPU-fake-1", "x"]), (vec![1], vec!["x".to_owned()]));
    }

    #[test]
    fn a_gpu_is_a_hundred_cores() {
        let mut found = Inventory::made_up("2x1Gi").expect("two GPUs");
        found.gpus[1].broken = true;
        assert_eq!(found.core_devices().len(), 200);
        assert_eq!(found.core_devices().iter().filter(|(_, healthy)| *healthy).count(), 100);
        assert_eq!(found.memory_devices().len(), 8);
        assert_eq!(
            found.annotation(),
            r#"[{"uuid":"GPU-fake-0","memory":4},{"uuid":"GPU-fake-1","memory":4,"broken":true}]"#
        );
    }
}
