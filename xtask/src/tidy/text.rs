//! Files as text: sizes, headers, blanks, open ends.

use super::{Complaint, Tree};

/// A Rust file above this holds two ideas.
const MAX_LINES: usize = 1000;
const MAX_BYTES: usize = 40_000;

/// Directories of data that is generated or comes from elsewhere.
const DATA: [&str; 2] = ["crates/schema/data/", "xtask/schemas/"];

/// Files whose blanks carry meaning or are not ours to choose.
const FREE_FORM: [&str; 4] = [".lock", ".json", ".patch", ".snap"];

pub fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (path, text) in tree {
        if DATA.iter().any(|dir| path.starts_with(dir)) || FREE_FORM.iter().any(|ending| path.ends_with(ending)) {
            continue;
        }
        blanks(path, text, &mut complaints);
        open_ends(path, text, &mut complaints);
        if path.ends_with(".rs") {
            rust(path, text, &mut complaints);
        }
    }
    complaints
}

fn blanks(path: &str, text: &str, complaints: &mut Vec<Complaint>) {
    // Elsewhere a tab can be part of a script's pattern or of a here-document.
    let tabs_allowed = ![".rs", ".toml", ".md", ".yaml", ".yml"].iter().any(|ending| path.ends_with(ending));
    for (number, line) in (1..).zip(text.split('\n')) {
        if line.ends_with([' ', '\t', '\r']) {
            complaints.push(format!("{path}:{number}: a blank at the end of the line"));
        }
        if !tabs_allowed && line.contains('\t') {
            complaints.push(format!("{path}:{number}: a tab"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        complaints.push(format!("{path}: no newline at the end"));
    }
}

/// A mark for later says what is missing, in at least three words; otherwise it helps nobody.
fn open_ends(path: &str, text: &str, complaints: &mut Vec<Complaint>) {
    for (number, line) in (1..).zip(text.lines()) {
        for mark in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")] {
            let Some((before, after)) = line.split_once(mark) else { continue };
            let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
                && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
            if is_word && after.trim_start_matches(':').split_whitespace().count() < 3 {
                complaints.push(format!("{path}:{number}: {mark} without an explanation"));
            }
        }
    }
}

fn rust(path: &str, text: &str, complaints: &mut Vec<Complaint>) {
    let lines = text.lines().count();
    if lines > MAX_LINES || text.len() > MAX_BYTES {
        complaints.push(format!(
            "{path}: {lines} lines and {} bytes are above {MAX_LINES} and {MAX_BYTES}: make two files of it",
            text.len()
        ));
    }
    // A module's tests stand under the comment of the module.
    if !path.ends_with("tests.rs") && !has_module_comment(text) {
        complaints.push(format!("{path}: no module comment (//!) at the top"));
    }
}

/// Whether `//!` comes before the first item. Inner attributes may stand before it, also over several lines.
fn has_module_comment(text: &str) -> bool {
    let mut in_attribute = false;
    for line in text.lines().map(str::trim) {
        if in_attribute {
            in_attribute = !line.ends_with(']');
        } else if line.starts_with("//!") {
            return true;
        } else if line.starts_with("#![") {
            in_attribute = !line.ends_with(']');
        } else if !line.is_empty() && !line.starts_with("// ") {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::tests::complaints;

    fn verdict(path: &str, text: &str, expected: &[&str]) {
        assert_eq!(complaints(super::check, &[(path, text)]), expected, "{path}: {text:?}");
    }

    #[test]
    fn headers() {
        let missing = ["a.rs: no module comment (//!) at the top"];
        verdict("a.rs", "//! What.\nfn f() {}\n", &[]);
        verdict("a.rs", "#![expect(\n    x,\n    reason = \"y\"\n)]\n//! What.\n", &[]);
        verdict("a.rs", "fn f() {}\n//! Late.\n", &missing);
        verdict("a.rs", "", &missing);
        verdict("a/tests.rs", "use super::*;\n", &[]);
        verdict("a.sh", "true\n", &[]);
    }

    #[test]
    fn blanks() {
        verdict(
            "a.md",
            "a \nb\t\n",
            &["a.md:1: a blank at the end of the line", "a.md:2: a blank at the end of the line", "a.md:2: a tab"],
        );
        verdict("Makefile", "a:\n\tb\n", &[]);
        verdict("a.md", "a", &["a.md: no newline at the end"]);
        verdict("crates/schema/data/a.txt", "a \t", &[]);
    }

    #[test]
    fn open_ends() {
        let mark = concat!("TO", "DO");
        verdict("a.md", &format!("{mark}\n"), &[&format!("a.md:1: {mark} without an explanation")]);
        verdict("a.md", &format!("{mark}: the reason why\n"), &[]);
        verdict("a.md", &format!("{mark}NE S_{mark}\n"), &[]);
    }

    #[test]
    fn sizes() {
        let long = format!("//! Long.\n{}", "//\n".repeat(1000));
        verdict("a.rs", &long, &["a.rs: 1001 lines and 3010 bytes are above 1000 and 40000: make two files of it"]);
    }
}
