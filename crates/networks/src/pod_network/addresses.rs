//! Which addresses of the node's range are taken, and by which sandbox: a directory with a file for each, named after the address.
//!
//! Layout, lock and meaning are those of CNI's `host-local`, so that each goes on with what the other has written: a pod that was
//! made by either is undone by either, and both may be at work at once.
//!
//! ```text
//!   <dir>/lock                 taken (flock) by whoever changes anything
//!   <dir>/last_reserved_ip.0   the address given last; the next one is looked for behind it
//!   <dir>/10.42.0.7            "<sandbox>\r\n<interface>"
//! ```
//!
//! A file appears whole, by a rename, before anything is made that has the address, and goes after that is gone. After a power cut
//! it may have lost its text: such an address is given again where no other is left.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

const LOCK: &str = "lock";
const LAST: &str = "last_reserved_ip.0";
const PART: &str = ".part";

/// The range of addresses that a node's pods have. The first is the bridge's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    network: Ipv4Addr,
    bits: u8,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(network, bits)| {
            // No sign, no leading zeros: as all others read it.
            let plain = bits == "0" || (bits.bytes().all(|byte| byte.is_ascii_digit()) && !bits.starts_with('0'));
            Some((network.parse::<Ipv4Addr>().ok()?, bits.parse::<u8>().ok().filter(|_| plain)?))
        });
        let (network, bits) = parts.ok_or_else(|| format!("{text:?} is no range of IPv4 addresses"))?;
        if !(1..=30).contains(&bits) {
            return Err(format!("{text} has no room for pods"));
        }
        let range = Self { network, bits };
        if network.to_bits() & !range.mask() != 0 {
            let begins = Ipv4Addr::from_bits(network.to_bits() & range.mask());
            return Err(format!("{text} is no range: it begins with {begins}"));
        }
        Ok(range)
    }
}

impl Range {
    fn mask(self) -> u32 {
        u32::MAX << (32 - u32::from(self.bits))
    }

    /// The length of its prefix.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// The bridge's address, which is the pods' way out.
    #[must_use]
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.to_bits() + 1)
    }

    /// The address that reaches all.
    #[must_use]
    pub fn broadcast(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.to_bits() | !self.mask())
    }

    /// The next address that nobody has, behind the one that was given last: one that was just given back rests as long as it can.
    #[must_use]
    pub fn next(self, last: Option<Ipv4Addr>, taken: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
        let (first, end) = (self.gateway().to_bits() + 1, self.broadcast().to_bits());
        let from = last.map_or(first, |last| last.to_bits().saturating_add(1));
        let from = if (first..end).contains(&from) { from } else { first };
        (from..end).chain(first..from).map(Ipv4Addr::from_bits).find(|address| !taken.contains(address))
    }
}

/// Who has an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The sandbox.
    pub sandbox: String,
    /// The interface in it.
    pub interface: String,
}

impl Owner {
    fn text(&self) -> String {
        format!("{}\r\n{}", self.sandbox, self.interface)
    }

    /// Whether a file's text names it. Old ones name the sandbox only.
    fn is_in(&self, text: &str) -> bool {
        let text = text.trim();
        text == self.text() || text == self.sandbox
    }
}

/// The addresses of one network.
#[derive(Clone, Debug)]
pub struct Addresses {
    dir: PathBuf,
}

impl Addresses {
    /// Those of the network `name`, below the directory of all networks.
    #[must_use]
    pub fn new(data_dir: &Path, name: &str) -> Self {
        Self { dir: data_dir.join(name) }
    }

    /// Gives a free address to `owner`; none where all are taken.
    ///
    /// # Errors
    /// The directory cannot be read or written; nothing is given.
    pub fn reserve(&self, range: Range, owner: &Owner) -> io::Result<Option<Ipv4Addr>> {
        fs::create_dir_all(&self.dir)?;
        let _lock = self.lock()?;
        let taken = self.taken()?;
        let last = fs::read_to_string(self.dir.join(LAST)).ok().and_then(|text| text.trim().parse().ok());
        let given = range.next(last, &taken).or_else(|| {
            // With the lock in hand nobody is about to write its text, and no sandbox outlives a power cut.
            let taken = taken.iter().copied().filter(|address| !self.is_torn(*address)).collect();
            range.next(last, &taken)
        });
        let Some(address) = given else { return Ok(None) };
        self.put(&address.to_string(), &owner.text())?;
        self.remember(address)?;
        Ok(Some(address))
    }

    /// Takes back all that `owner` has.
    ///
    /// # Errors
    /// Something cannot be read or removed; it stays taken.
    pub fn release(&self, owner: &Owner) -> io::Result<()> {
        if !self.dir.try_exists()? {
            return Ok(());
        }
        let _lock = self.lock()?;
        for (address, text) in self.all()? {
            if owner.is_in(&text) {
                fs::remove_file(self.dir.join(address.to_string()))?;
            }
        }
        Ok(())
    }

    /// Takes back one address of `owner`'s.
    ///
    /// # Errors
    /// It stays taken.
    pub fn release_one(&self, address: Ipv4Addr, owner: &Owner) -> io::Result<()> {
        let _lock = self.lock()?;
        let file = self.dir.join(address.to_string());
        match fs::read_to_string(&file) {
            Ok(text) if owner.is_in(&text) => fs::remove_file(file),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What `owner` has.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(&self, owner: &Owner) -> io::Result<Vec<Ipv4Addr>> {
        let theirs = self.all()?.into_iter().filter(|(_, text)| owner.is_in(text));
        Ok(theirs.map(|(address, _)| address).collect())
    }

    /// All that have an address. An empty interface is one that is not known.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn owners(&self) -> io::Result<BTreeSet<Owner>> {
        let owner = |text: &str| {
            let (sandbox, interface) = text.trim().split_once("\r\n").unwrap_or((text.trim(), ""));
            Owner { sandbox: sandbox.to_owned(), interface: interface.to_owned() }
        };
        let all = self.all()?.into_iter().map(|(_, text)| owner(&text));
        Ok(all.filter(|owner| !owner.sandbox.is_empty()).collect())
    }

    fn lock(&self) -> io::Result<File> {
        let lock = File::options().create(true).truncate(false).write(true).open(self.dir.join(LOCK))?;
        loop {
            match flock(&lock, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                other => return other.map(|()| lock).map_err(Into::into),
            }
        }
    }

    /// Whether the file of an address names nobody.
    fn is_torn(&self, address: Ipv4Addr) -> bool {
        fs::metadata(self.dir.join(address.to_string())).is_ok_and(|file| file.len() == 0)
    }

    fn taken(&self) -> io::Result<BTreeSet<Ipv4Addr>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(error),
        };
        let mut taken = BTreeSet::new();
        for entry in entries {
            taken.extend(entry?.file_name().to_str().and_then(|name| name.parse::<Ipv4Addr>().ok()));
        }
        Ok(taken)
    }

    fn all(&self) -> io::Result<Vec<(Ipv4Addr, String)>> {
        let mut all = Vec::new();
        for address in self.taken()? {
            match fs::read(self.dir.join(address.to_string())) {
                Ok(text) => all.push((address, String::from_utf8_lossy(&text).into_owned())),
                // Given back meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Remembers the address that was given last. In place, since file systems write out what a rename replaces; half of it, after
    /// a crash, is none.
    fn remember(&self, address: Ipv4Addr) -> io::Result<()> {
        let text = address.to_string();
        let mut file = File::options().create(true).truncate(false).write(true).open(self.dir.join(LAST))?;
        file.write_all(text.as_bytes())?;
        file.set_len(text.len() as u64)
    }

    /// Writes a file that is never seen in part.
    fn put(&self, name: &str, text: &str) -> io::Result<()> {
        let part = self.dir.join(PART);
        fs::write(&part, text)?;
        fs::rename(part, self.dir.join(name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn owner(sandbox: &str) -> Owner {
        Owner { sandbox: sandbox.to_owned(), interface: "eth0".to_owned() }
    }

    #[test]
    fn ranges() {
        let check = |text: &str, expected: Result<(&str, &str), &str>| {
            let range = text.parse::<Range>();
            let read = range.as_ref().map(|range| (range.gateway().to_string(), range.broadcast().to_string()));
            match (read, expected) {
                (Ok(read), Ok(expected)) => assert_eq!((read.0.as_str(), read.1.as_str()), expected, "{text}"),
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{text}: {why}"),
                (read, expected) => panic!("{text}: {read:?}, not {expected:?}"),
            }
        };
        check("10.42.0.0/24", Ok(("10.42.0.1", "10.42.0.255")));
        check("10.0.0.0/8", Ok(("10.0.0.1", "10.255.255.255")));
        check("192.168.7.252/30", Ok(("192.168.7.253", "192.168.7.255")));
        check("10.42.0.0/31", Err("no room"));
        check("0.0.0.0/0", Err("no room"));
        check("10.42.0.5/24", Err("it begins with 10.42.0.0"));
        check("10.42.0.0", Err("no range of IPv4 addresses"));
        check("10.42.0.0/+8", Err("no range of IPv4 addresses"));
        check("10.42.0.0/024", Err("no range of IPv4 addresses"));
        check("fd00::/64", Err("no range of IPv4 addresses"));
        check("", Err("no range of IPv4 addresses"));
    }

    #[test]
    fn the_next_address_lies_behind_the_last() {
        let check = |last: &str, taken: &[&str], expected: Option<&str>| {
            let range: Range = "10.0.0.0/29".parse().expect("a range");
            let taken = taken.iter().map(|text| text.parse().expect("an address")).collect();
            let next = range.next(last.parse().ok(), &taken).map(|address| address.to_string());
            assert_eq!(next.as_deref(), expected, "after {last}, with {taken:?}");
        };
        check("", &[], Some("10.0.0.2"));
        check("10.0.0.2", &[], Some("10.0.0.3"));
        check("10.0.0.6", &[], Some("10.0.0.2"));
        check("10.0.0.3", &["10.0.0.4", "10.0.0.5"], Some("10.0.0.6"));
        check("10.0.0.5", &["10.0.0.6", "10.0.0.2"], Some("10.0.0.3"));
        check("192.168.0.1", &["10.0.0.2"], Some("10.0.0.3"));
        check("255.255.255.255", &[], Some("10.0.0.2"));
        check("10.0.0.3", &["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"], None);
        check("10.0.0.3", &["10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"], Some("10.0.0.3"));
    }

    /// What is written by CNI's own program is understood, and looks like ours.
    #[test]
    fn the_layout_is_that_of_host_local() {
        let dir = tempfile::tempdir().expect("a directory");
        let addresses = Addresses::new(dir.path(), "net");
        let own = dir.path().join("net");
        fs::create_dir(&own).expect("made");
        fs::write(own.join("10.0.0.2"), "old").expect("written");
        fs::write(own.join("10.0.0.3"), "s1\r\neth0").expect("written");
        fs::write(own.join("10.0.0.9"), "").expect("written");
        fs::write(own.join(LAST), "10.0.0.2").expect("written");
        let range = "10.0.0.0/28".parse().expect("a range");
        assert_eq!(addresses.reserve(range, &owner("s2")).expect("given"), Some(Ipv4Addr::new(10, 0, 0, 4)));
        assert_eq!(fs::read_to_string(own.join("10.0.0.4")).expect("there"), "s2\r\neth0");
        assert_eq!(fs::read_to_string(own.join(LAST)).expect("there"), "10.0.0.4");
        let names = |owners: BTreeSet<Owner>| owners.into_iter().map(|owner| owner.sandbox).collect::<Vec<_>>();
        assert_eq!(names(addresses.owners().expect("read")), ["old", "s1", "s2"]);
        for sandbox in ["old", "s1", "s1"] {
            addresses.release(&owner(sandbox)).expect("given back");
        }
        assert_eq!(names(addresses.owners().expect("read")), ["s2"]);
        assert_eq!(addresses.of(&owner("s2")).expect("read"), [Ipv4Addr::new(10, 0, 0, 4)]);
        let other = Owner { interface: "net1".into(), ..owner("s2") };
        assert!(addresses.of(&other).expect("read").is_empty());
    }

    #[test]
    fn what_a_killed_writer_left_takes_no_address() {
        let dir = tempfile::tempdir().expect("a directory");
        let addresses = Addresses::new(dir.path(), "net");
        fs::create_dir(dir.path().join("net")).expect("made");
        fs::write(dir.path().join("net").join(PART), "s1\r\net").expect("written");
        let range = "10.0.0.0/30".parse().expect("a range");
        assert_eq!(addresses.owners().expect("read"), BTreeSet::new());
        assert!(addresses.reserve(range, &owner("s2")).expect("given").is_some());
        assert_eq!(addresses.reserve(range, &owner("s3")).expect("asked"), None, "there is but one");
    }

    #[test]
    fn what_a_power_cut_left_of_a_file_takes_no_address_for_ever() {
        let dir = tempfile::tempdir().expect("a directory");
        let addresses = Addresses::new(dir.path(), "net");
        fs::create_dir(dir.path().join("net")).expect("made");
        fs::write(dir.path().join("net/10.0.0.2"), "").expect("written");
        let range = "10.0.0.0/29".parse().expect("a range");
        let given: Vec<Option<String>> = (0..6)
            .map(|n| addresses.reserve(range, &owner(&format!("s{n}"))).expect("asked"))
            .map(|address| address.map(|address| address.to_string()))
            .collect();
        let wanted = [Some("10.0.0.3"), Some("10.0.0.4"), Some("10.0.0.5"), Some("10.0.0.6"), Some("10.0.0.2"), None];
        assert_eq!(given.iter().map(Option::as_deref).collect::<Vec<_>>(), wanted);
        assert_eq!(addresses.of(&owner("s4")).expect("read"), [Ipv4Addr::new(10, 0, 0, 2)]);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_no_empty_one() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("net"), "no directory").expect("written");
        let addresses = Addresses::new(dir.path(), "net");
        assert!(addresses.owners().is_err());
        assert!(addresses.release(&owner("s1")).is_err());
        assert!(addresses.reserve("10.0.0.0/24".parse().expect("a range"), &owner("s1")).is_err());
        assert_eq!(Addresses::new(dir.path(), "none").owners().expect("read"), BTreeSet::new());
    }

    proptest! {
        // A step reads every file there is.
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Against a map in memory: nobody has another's address, what is taken is what was given and not given back, and the
        /// range is used up before anybody is refused. Whoever works on it is new each time.
        #[test]
        fn addresses_are_given_as_a_map_gives_them(
            bits in 26u8..=30,
            steps in proptest::collection::vec((any::<bool>(), 0usize..40), 1..120),
        ) {
            let dir = tempfile::tempdir().expect("a directory");
            let range: Range = format!("10.0.0.0/{bits}").parse().expect("a range");
            let room = (1usize << (32 - bits)) - 3;
            let mut model: BTreeMap<String, Vec<Ipv4Addr>> = BTreeMap::new();
            for (gives, number) in steps {
                let addresses = Addresses::new(dir.path(), "net");
                let name = format!("s{number}");
                if gives {
                    let taken: Vec<Ipv4Addr> = model.values().flatten().copied().collect();
                    match addresses.reserve(range, &owner(&name)).expect("asked") {
                        Some(address) => {
                            prop_assert!(!taken.contains(&address), "{address} is taken");
                            prop_assert!(address > range.gateway() && address < range.broadcast(), "{address}");
                            model.entry(name).or_default().push(address);
                        }
                        None => prop_assert_eq!(taken.len(), room),
                    }
                } else {
                    addresses.release(&owner(&name)).expect("given back");
                    model.remove(&name);
                }
                for (name, mut expected) in model.clone() {
                    expected.sort();
                    prop_assert_eq!(addresses.of(&owner(&name)).expect("read"), expected);
                }
                prop_assert_eq!(addresses.owners().expect("read").len(), model.len());
            }
        }
    }
}
