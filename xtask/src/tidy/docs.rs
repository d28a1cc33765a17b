//! Documents: what README, ARCHITECTURE and the pages in `docs/` tell a reader to type or to open exists.

use std::collections::BTreeSet;

use super::{Complaint, Tree};

const DOCUMENTS: [&str; 2] = ["README.md", "ARCHITECTURE.md"];

pub fn check(tree: &Tree) -> Vec<Complaint> {
    let targets = make_targets(tree.get("Makefile").map_or("", String::as_str));
    let commands = commands(tree.get("crates/carrack/src/cli.rs").map_or("", String::as_str));
    let mut complaints = Vec::new();
    let pages = tree.keys().map(String::as_str).filter(|path| path.starts_with("docs/") && path.ends_with(".md"));
    for document in DOCUMENTS.into_iter().chain(pages) {
        let Some(text) = tree.get(document) else {
            complaints.push(format!("{document}: is missing"));
            continue;
        };
        for (number, line) in (1..).zip(text.lines()) {
            for code in code_in(line, is_in_block(text, number)) {
                for problem in problems(code, tree, &targets, &commands) {
                    complaints.push(format!("{document}:{number}: {problem}"));
                }
            }
        }
    }
    complaints
}

fn problems(code: &str, tree: &Tree, targets: &BTreeSet<&str>, commands: &BTreeSet<String>) -> Vec<String> {
    let words: Vec<&str> =
        code.split(|c: char| c.is_whitespace() || "|;()&".contains(c)).filter(|word| !word.is_empty()).collect();
    let mut problems = Vec::new();
    for pair in words.windows(2) {
        let (program, argument) = (pair[0], pair[1]);
        let is_name = argument.starts_with(|c: char| c.is_ascii_lowercase());
        if program == "make" && is_name && !targets.contains(argument) {
            problems.push(format!("the Makefile has no target {argument}"));
        }
        if (program == "carrack" || program.ends_with("/carrack")) && is_name && !commands.contains(argument) {
            problems.push(format!("there is no command carrack {argument}"));
        }
    }
    for word in words {
        let path = word.trim_start_matches("./").trim_matches(['`', ',', '.', ':', '/']);
        let ours =
            ["crates/", "examples/", "scripts/", "tests/", "xtask/", "docs/"].iter().any(|dir| path.starts_with(dir));
        let is_pattern = path.contains(['*', '{', '<', '$']);
        let exists = || tree.contains_key(path) || tree.keys().any(|file| file.starts_with(&format!("{path}/")));
        if ours && !is_pattern && !exists() {
            problems.push(format!("{path} does not exist"));
        }
    }
    problems
}

/// Whether the line with this number, counted from 1, lies in a fenced block.
fn is_in_block(text: &str, number: usize) -> bool {
    let fences = text.lines().take(number).filter(|line| line.trim_start().starts_with("```")).count();
    fences % 2 == 1
}

/// The code in a line: all of it within a block, what stands between back-ticks elsewhere.
fn code_in(line: &str, in_block: bool) -> Vec<&str> {
    if in_block { vec![line.split(" #").next().unwrap_or(line)] } else { line.split('`').skip(1).step_by(2).collect() }
}

fn make_targets(makefile: &str) -> BTreeSet<&str> {
    let heads = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', ' ', '#', '.']))
        .filter_map(|line| line.split_once(':'));
    heads.filter(|(_, rest)| !rest.starts_with('=')).flat_map(|(names, _)| names.split_whitespace()).collect()
}

/// The subcommands, from the variants of the enum `Command`: `VirtHandler(…)` is `virt-handler`.
fn commands(cli: &str) -> BTreeSet<String> {
    let body = cli.split_once("pub enum Command {").map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or(body, |(body, _)| body);
    let variants = body.lines().map(str::trim).filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    variants.filter_map(|line| line.split(['(', ',', ' ']).next()).map(kebab).collect()
}

fn kebab(name: &str) -> String {
    let mut out = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.push(character.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::complaints;

    const CLI: &str =
        "pub enum Command {\n    /// Up\n    Up(UpArgs),\n    VirtHandler(Args),\n}\nenum Other {\n    No,\n}\n";

    fn verdict(readme: &str, expected: &[&str]) {
        let files = [
            ("README.md", readme),
            ("ARCHITECTURE.md", "\n"),
            ("Makefile", "X := 1\nup: build\n\tmake nothing\n"),
            ("crates/carrack/src/cli.rs", CLI),
            ("examples/vm.yaml", ""),
        ];
        assert_eq!(complaints(super::check, &files), expected, "{readme}");
    }

    #[test]
    fn what_the_readme_names_exists() {
        verdict("`make up` then `carrack up --detach` and `carrack virt-handler`\n", &[]);
        verdict("`make go`\n", &["README.md:1: the Makefile has no target go"]);
        verdict("words that make things\n", &[]);
        verdict(
            "\n```\nsudo target/release/carrack no # carrack nope\n```\n",
            &["README.md:3: there is no command carrack no"],
        );
        verdict("`kubectl apply -f examples/vm.yaml`, `examples/*`, `examples/`\n", &[]);
        verdict("`examples/no.yaml`\n", &["README.md:1: examples/no.yaml does not exist"]);
    }

    #[test]
    fn pages_are_looked_at_too() {
        let files =
            [("README.md", ""), ("ARCHITECTURE.md", ""), ("docs/a/b.md", "`make go`\n"), ("docs/c.txt", "`make go`\n")];
        assert_eq!(complaints(super::check, &files), ["docs/a/b.md:1: the Makefile has no target go"]);
    }

    #[test]
    fn both_documents_are_there() {
        let found = complaints(super::check, &[("README.md", "")]);
        assert_eq!(found, ["ARCHITECTURE.md: is missing"]);
    }
}
