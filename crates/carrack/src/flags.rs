//! The command line, and what is told of it: `/flagz` of each role has the flags of the command that runs it. What is secret is in
//! files, never among them.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use carrack_engine::zpages::flagz::Flags;
use clap::{Arg, ArgMatches, CommandFactory as _, FromArgMatches as _};

use crate::cli::Cli;

static TOLD: OnceLock<Flags> = OnceLock::new();
static NONE: Flags = BTreeMap::new();

/// Reads this process's command line.
///
/// # Errors
/// It says something that there is not, or asks for help.
pub fn parse() -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    TOLD.get_or_init(|| of(&command, &matches));
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The flags of this process, with what holds where they were not given.
#[must_use]
pub fn told() -> &'static Flags {
    TOLD.get().unwrap_or(&NONE)
}

/// The flags of a command, and of the one below it that was called.
fn of(command: &clap::Command, matches: &ArgMatches) -> Flags {
    let value = |flag: &Arg| {
        let raw = matches.try_get_raw(flag.get_id().as_str()).ok().flatten();
        raw.into_iter().flatten().map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>().join(",")
    };
    let flags = command.get_arguments().filter(|flag| !matches!(flag.get_long(), Some("help" | "version")));
    let mut flags: Flags = flags.filter_map(|flag| Some((flag.get_long()?.to_owned(), value(flag)))).collect();
    if let Some((name, below)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        flags.extend(of(command, below));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_values_that_hold() {
        let mut command = Cli::command();
        let words = ["carrack", "apiserver", "--gpu-writer", "a", "--gpu-writer", "b"];
        let matches = command.try_get_matches_from_mut(words).expect("flags");
        let flags = of(&command, &matches);
        for (name, want) in
            [("gpu-writer", Some("a,b")), ("audit-log-maxsize", Some("100")), ("token-auth-file", Some(""))]
        {
            assert_eq!(flags.get(name).map(String::as_str), want, "{name}");
        }
        assert!(!flags.contains_key("help"));
    }
}
