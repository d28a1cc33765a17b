//! `carrack completion`: a shell asks this very program what may come next, so that no list of words can be out of date.
//!
//! ```text
//!   shell ──Tab──► script of `carrack completion` ──words so far──► `carrack complete` ──candidates, one a line──► shell
//! ```

use clap::{Arg, Command, CommandFactory as _};

use crate::cli::{Cli, CompleteArgs, CompletionArgs, Shell};
use crate::output;

/// Where there are no candidates, files are completed.
const BASH: &str = r#"_carrack() {
  local IFS=$'\n'
  local typed=("${COMP_WORDS[@]:1:COMP_CWORD}")
  COMPREPLY=($("${COMP_WORDS[0]}" complete -- "${typed[@]}" 2>/dev/null))
}
complete -o default -F _carrack carrack
"#;

/// zsh takes bash's functions.
const ZSH: &str = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n";

const FISH: &str = "complete -c carrack -a '(carrack complete -- (commandline -opc)[2..-1] (commandline -ct))'\n";

/// Prints the script of a shell.
///
/// # Errors
/// Standard output is closed.
pub fn script(args: &CompletionArgs) -> anyhow::Result<()> {
    let text = match args.shell {
        Shell::Bash => BASH.to_owned(),
        Shell::Zsh => format!("{ZSH}{BASH}"),
        Shell::Fish => FISH.to_owned(),
    };
    output::write_all(text.as_bytes())
}

/// Prints what may come next.
///
/// # Errors
/// Standard output is closed.
pub fn complete(args: &CompleteArgs) -> anyhow::Result<()> {
    let mut cli = Cli::command();
    cli.build();
    let found = candidates(&cli, &args.words);
    output::write_all(found.iter().map(|word| format!("{word}\n")).collect::<String>().as_bytes())
}

/// What the last word may become, which is the one that is being typed.
fn candidates(cli: &Command, words: &[String]) -> Vec<String> {
    let (typed, before) = words.split_last().map_or(("", [].as_slice()), |(last, before)| (last.as_str(), before));
    let mut command = cli;
    let mut value_of: Option<&Arg> = None;
    for word in before {
        if word.starts_with('-') {
            value_of = flag(command, word);
        } else if value_of.take().is_none() {
            command = command.find_subcommand(word).unwrap_or(command);
        }
    }
    let all: Vec<String> = match value_of {
        Some(flag) if !typed.starts_with('-') => values(flag),
        _ if typed.starts_with('-') => {
            let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
            shown.filter_map(|arg| arg.get_long().map(|long| format!("--{long}"))).collect()
        }
        _ => {
            let below = command.get_subcommands().filter(|below| !below.is_hide_set());
            below.map(|below| below.get_name().to_owned()).chain(command.get_positionals().flat_map(values)).collect()
        }
    };
    all.into_iter().filter(|word| word.starts_with(typed)).collect()
}

/// The flag that a word is, if the next word is its value.
fn flag<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut letters = word.trim_start_matches('-').chars();
    let short = letters.next().filter(|_| letters.next().is_none());
    let is_it = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => short.is_some() && arg.get_short() == short,
    };
    command.get_arguments().find(is_it).filter(|arg| arg.get_action().takes_values())
}

/// The values that an argument may have, where there are few.
fn values(arg: &Arg) -> Vec<String> {
    let values = arg.get_possible_values();
    values.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_completed() {
        let mut cli = Cli::command();
        cli.build();
        let check = |words: &[&str], expected: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            assert_eq!(candidates(&cli, &words), expected, "{words:?}");
        };
        check(&["u"], &["up"]);
        check(&["virt-c"], &["virt-controller"]);
        check(&["node", "o"], &["off", "on"]);
        // Hidden, and none at all.
        check(&["node", "age"], &[]);
        check(&["nonsense-"], &[]);
        check(&["kubeconfig", "--us"], &["--user"]);
        check(&["kubeconfig", "--user", "virt"], &["virt-controller", "virt-handler"]);
        check(&["kubeconfig", "--raw", "--tls"], &["--tls-dir"]);
        check(&["version", "-o", ""], &["json", "yaml"]);
        check(&["version", "--output", "j"], &["json"]);
        check(&["image", "build", "--data-dir", "/x", "pa"], &["pause"]);
        // The shell completes files.
        check(&["up", "--data-dir", ""], &[]);
        assert!(candidates(&cli, &[]).contains(&"up".to_owned()));
    }
}
