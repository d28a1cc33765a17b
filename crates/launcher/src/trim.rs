//! What a process needs of the program only while it starts, given back.
//!
//! Each process is a large program's small part, the monitor the smallest. Starting touches megabytes of its code and constants, and
//! the kernel maps what lies around; a quiet monitor then uses a tenth of that until the machine ends. What was read of it and
//! never written is dropped from this process: the next use maps it again, out of the page cache as a rule. One machine's
//! overhead is then its own memory and the little that runs (`carrack bench vm`, "PSS beside QEMU").

use std::io;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// When it is time: after a whole period in which nothing happened, once until something happens again.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// Whether anything has happened since the last [`Rest::tick`].
    pub(crate) busy: bool,
    rested: bool,
}

impl Rest {
    /// A period is over.
    pub(crate) fn tick(&mut self) {
        if self.over()
            && let Err(error) = drop_file_pages()
        {
            tracing::warn!(%error, "memory that is not needed any more is kept");
        }
    }

    fn over(&mut self) -> bool {
        let due = !self.busy && !self.rested;
        self.rested = !self.busy;
        self.busy = false;
        due
    }
}

/// Drops the pages of this process that are mapped from its program and equal to it. Those of libraries stay: one may just be loaded.
///
/// # Errors
/// `/proc/self/smaps` cannot be read, or the kernel refuses.
pub fn drop_file_pages() -> io::Result<()> {
    let program = std::fs::read_link("/proc/self/exe")?;
    for range in unwritten(&std::fs::read_to_string("/proc/self/smaps")?, &program.to_string_lossy()) {
        drop_pages(&range)?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "advice about mappings whose pages the kernel can read again from their file")]
fn drop_pages(range: &Range<usize>) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the range is one whole mapping of the program that can't be written through it and of which no page was changed
    // before it was protected: the kernel counts no anonymous page in it, present or swapped out. The program was mapped and relocated
    // before it began, and nothing here maps or protects memory by itself. So every later access finds the same bytes, in all threads.
    unsafe { madvise(start, range.len(), Advice::LinuxDontNeed) }.map_err(io::Error::from)
}

/// The mappings of the program that cannot be written and in which nothing was changed, as `/proc/PID/smaps` tells (proc(5)):
/// a page that was changed is anonymous while it is present, and counts as swapped when it is not.
fn unwritten(smaps: &str, program: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut of_file = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Anonymous:"), Some(amount)) if amount != "0" => of_file = None,
            // It comes after the other.
            (Some("Swap:"), Some("0")) => found.extend(of_file.take()),
            (Some(addresses), Some(rights)) if !addresses.ends_with(':') => {
                // Nothing before the path has a slash; there may be blanks in it.
                let is_program = line.find('/').is_some_and(|at| line[at..] == *program);
                of_file = (is_program && rights.starts_with("r-") && rights.ends_with('p'))
                    .then(|| range(addresses))
                    .flatten();
            }
            _ => {}
        }
    }
    found
}

fn range(addresses: &str) -> Option<Range<usize>> {
    let (start, end) = addresses.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let range = number(start)?..number(end)?;
    (!range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(head: &str, anonymous: u32, swap: u32) -> String {
        let amounts =
            format!("Size:   4 kB\nRss:   4 kB\nAnonymous:   {anonymous} kB\nSwap:   {swap} kB\nSwapPss:   0 kB");
        format!("{head}\n{amounts}\nVmFlags: rd mr mw me\n")
    }

    #[test]
    fn only_what_equals_the_program_goes() {
        let program = "/usr/bin/carrack";
        let table = [
            ("1000-3000 r--p 00000000 fe:00 12 /usr/bin/carrack", 0, 0, true),
            ("1000-3000 r-xp 00001000 fe:00 12 /usr/bin/carrack", 0, 0, true),
            ("1000-3000 r-xp 00001000 fe:00 12 /usr/bin/carrack (deleted)", 0, 0, false),
            ("1000-3000 r-xp 00001000 fe:00 12 /lib/usr/bin/carrack", 0, 0, false),
            // It may be on its way in.
            ("1000-3000 r--p 00000000 fe:00 13 /usr/lib/libc.so.6", 0, 0, false),
            // Relocated, and protected since.
            ("1000-3000 r--p 00002000 fe:00 12 /usr/bin/carrack", 8, 0, false),
            // The same, and what was relocated is swapped out.
            ("1000-3000 r--p 00002000 fe:00 12 /usr/bin/carrack", 0, 8, false),
            ("1000-3000 rw-p 00003000 fe:00 12 /usr/bin/carrack", 0, 0, false),
            ("1000-3000 ---p 00003000 fe:00 12 /usr/bin/carrack", 0, 0, false),
            ("1000-3000 r--s 00000000 fe:00 12 /usr/bin/carrack", 0, 0, false),
            ("1000-3000 r--p 00000000 00:00 0 [vvar]", 0, 0, false),
            ("1000-3000 r-xp 00000000 00:00 0", 0, 0, false),
            ("3000-1000 r-xp 00001000 fe:00 12 /usr/bin/carrack", 0, 0, false),
            ("what-this r-xp 00001000 fe:00 12 /usr/bin/carrack", 0, 0, false),
        ];
        for (head, anonymous, swap, goes) in table {
            let expected = Vec::from_iter(goes.then_some(0x1000..0x3000));
            assert_eq!(unwritten(&mapping(head, anonymous, swap), program), expected, "{head}");
        }
        // What one mapping says does not hold for the next.
        let two = [mapping(table[0].0, 0, 0), mapping("5000-6000 rw-p 00000000 00:00 0 [heap]", 0, 0)].concat();
        assert_eq!(unwritten(&two, program), Vec::from_iter(Some(0x1000..0x3000)));
        assert_eq!(unwritten("", program).len(), 0);
        // One that was replaced since, below a directory with a blank in its name.
        let odd = "/opt/a b/carrack (deleted)";
        let head = format!("1000-3000 r-xp 00001000 fe:00 12   {odd}");
        assert_eq!(unwritten(&mapping(&head, 0, 0), odd), Vec::from_iter(Some(0x1000..0x3000)));
    }

    #[test]
    fn a_quiet_period_counts_once() {
        let mut rest = Rest { busy: true, rested: false };
        let periods = [(false, false), (false, true), (false, false), (true, false), (true, false), (false, true)];
        for (number, (busy, due)) in periods.into_iter().enumerate() {
            rest.busy |= busy;
            assert_eq!(rest.over(), due, "period {number}");
        }
    }

    #[test]
    fn this_process_becomes_smaller_and_goes_on() {
        let mapped = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
            let line =
                status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("RssFile").trim().to_owned();
            line.trim_end_matches(" kB").parse::<u64>().expect("a number")
        };
        let before = mapped();
        drop_file_pages().expect("drops");
        let after = mapped();
        assert!(after < before, "{after} kB of files are mapped, and {before} kB were");
    }
}
