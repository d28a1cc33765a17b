//! What documents tell a reader to type and to look for: that this program takes it, and that it is there. What comes of the commands
//! is for the end-to-end tests.

use std::fs;
use std::path::{Path, PathBuf};

use carrack_sim::{INVARIANTS, plants};
use clap::{CommandFactory as _, Parser as _};

use crate::cli::Cli;
use crate::drill;

/// README, ARCHITECTURE.md and the pages below `docs`, each with its text.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    let mut dirs = vec![root.join("docs")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("it can be listed").flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                pages.push(path);
            }
        }
    }
    let read = |page: PathBuf| {
        let text = fs::read_to_string(&page).expect("it can be read");
        (page, text)
    };
    pages.into_iter().map(read).collect()
}

/// The words of a line, if this program is called in it: up to where the shell takes over.
fn called(line: &str) -> Option<Vec<&str>> {
    let words = line.split_whitespace().take_while(|word| !word.starts_with(['#', '>', '|']));
    let words: Vec<&str> = words.collect();
    let program = words.first()?;
    (*program == "carrack" || program.ends_with("/carrack")).then_some(words)
}

/// The lines of a text's blocks that are to be typed, each in one piece.
fn typed(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let whole: Vec<String> = blocks.map(|block| block.replace("\\\n", " ")).collect();
    whole.iter().flat_map(|block| block.lines().map(str::to_owned)).collect()
}

/// What stands between back-ticks in the lines of a text, outside of its blocks.
fn quoted(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    outside.flat_map(str::lines).flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// The flags among these words that the command does not have, or the one below it that they name.
fn unknown_flags<'a>(cli: &clap::Command, words: &[&'a str]) -> Vec<&'a str> {
    let mut command = cli;
    let mut unknown = Vec::new();
    for word in words.iter().copied() {
        let Some(flag) = word.strip_prefix("--") else {
            command = command.find_subcommand(word).unwrap_or(command);
            continue;
        };
        let name = flag.split('=').next().unwrap_or_default();
        let has = command.get_arguments().any(|argument| argument.get_long() == Some(name));
        if !has && !matches!(name, "help" | "version") {
            unknown.push(word);
        }
    }
    unknown
}

/// What follows `--plant` in a piece of code.
fn planted(code: &str) -> Option<&str> {
    let (_, rest) = code.split_once("--plant ")?;
    rest.split_whitespace().next()
}

/// The names in the paragraphs that say which invariants a page is about.
fn invariants(text: &str) -> Vec<&str> {
    text.split("\n\n").filter(|paragraph| paragraph.starts_with("The invariants: ")).flat_map(quoted).collect()
}

#[test]
fn commands_of_blocks_can_be_typed() {
    let mut count = 0;
    for (page, text) in documents() {
        for line in typed(&text) {
            let Some(words) = called(&line) else { continue };
            let parsed = Cli::try_parse_from(&words);
            assert!(parsed.is_ok(), "{}: {line:?}: {:?}", page.display(), parsed.err());
            count += 1;
        }
    }
    assert!(count > 20, "{count} commands were found");
}

/// An end-to-end test plays the pages of incidents: it runs this program alone, and without a shell.
#[test]
fn blocks_of_incidents_have_nothing_but_commands() {
    let mut count = 0;
    for (page, text) in documents() {
        if !page.parent().is_some_and(|dir| dir.ends_with("docs/incidents")) {
            continue;
        }
        for line in typed(&text) {
            let whole: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(whole.first(), Some(&"carrack"), "{}: {line:?}", page.display());
            assert_eq!(called(&line), Some(whole), "{}: {line:?}", page.display());
            count += 1;
        }
    }
    assert!(count > 20, "{count} commands were found");
}

#[test]
fn flags_that_are_told_of_are_there() {
    let cli = Cli::command();
    let mut count = 0;
    for (page, text) in documents() {
        for words in quoted(&text).into_iter().filter_map(called) {
            let unknown = unknown_flags(&cli, &words[1..]);
            assert!(unknown.is_empty(), "{}: {words:?} has no {unknown:?}", page.display());
            count += 1;
        }
    }
    assert!(count > 50, "{count} commands were found");
}

#[test]
fn what_is_said_to_be_planted_can_be() {
    let mut count = 0;
    for (page, text) in documents() {
        let lines = typed(&text);
        for name in quoted(&text).into_iter().chain(lines.iter().map(String::as_str)).filter_map(planted) {
            let known = plants::find(name).is_some() || drill::can_plant(name) || name == "NAME";
            assert!(known, "{}: nobody plants {name}", page.display());
            count += 1;
        }
    }
    assert!(count > 30, "{count} were found");
}

#[test]
fn invariants_of_incidents_are_looked_after() {
    let mut count = 0;
    for (page, text) in documents() {
        for name in invariants(&text) {
            let known = INVARIANTS.iter().any(|invariant| invariant.name == name) || drill::looks_at(name);
            assert!(known, "{}: nobody looks after {name}", page.display());
            count += 1;
        }
    }
    assert!(count > 20, "{count} were found");
}

#[test]
fn what_is_to_be_typed_is_found() {
    let text = "Say `carrack up --no` or `ls`.\n\n```sh\nexport A=B\n./carrack up \\\n    --detach > log # so\n```\n`--plant x`\n\nThe invariants: `a` (A1),\n`b`.\n\n`c`\n";
    let lines = typed(text);
    let calls: Vec<Vec<&str>> = lines.iter().filter_map(|line| called(line)).collect();
    assert_eq!(calls, [["./carrack", "up", "--detach"]]);
    assert_eq!(quoted(text), ["carrack up --no", "ls", "--plant x", "a", "b", "c"]);
    assert_eq!(unknown_flags(&Cli::command(), &["up", "--no", "--detach"]), ["--no"]);
    assert_eq!(quoted(text).into_iter().filter_map(planted).collect::<Vec<_>>(), ["x"]);
    assert_eq!(invariants(text), ["a", "b"]);
}
