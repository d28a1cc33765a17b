//! `carrack sim`: simulated clusters under seeds.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use carrack_sim::{Options, PARTS, Request, SWITCHES, simulate};

use crate::cli::sim::SimArgs;

/// Plays the runs that were asked for.
///
/// # Errors
/// When an invariant broke, or a name is unknown.
pub fn run(args: SimArgs) -> anyhow::Result<()> {
    if let Some(filter) = &args.log_level {
        crate::logging::start(filter)?;
    }
    play(&request(args), &mut std::io::stdout().lock())
}

/// Plays and prints. A list whose reader has hung up (`| head`) is no error; a run that ends so has no verdict.
fn play(request: &Request, out: &mut dyn Write) -> anyhow::Result<()> {
    let is_list = request.list_plants || request.list_invariants;
    match simulate(request, out).and_then(|held| out.flush().map(|()| held)) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe && is_list => Ok(()),
        Err(error) => Err(error.into()),
        Ok(held) => {
            anyhow::ensure!(held, "an invariant broke");
            Ok(())
        }
    }
}

fn request(args: SimArgs) -> Request {
    let usual = Options::default();
    let is_named = |name: &&str, names: &[String]| names.iter().any(|other| other == name);
    let without = SWITCHES.iter().map(|switch| switch.name).filter(|name| is_named(name, &args.without));
    let only = PARTS.iter().map(|part| part.name).filter(|name| is_named(name, &args.only));
    let options = Options {
        safety: args.safety.map_or(usual.safety, Duration::from_secs),
        liveness: args.liveness.map_or(usual.liveness, Duration::from_secs),
        faults: !args.no_faults,
        workloads: args.workloads,
        gpus: args.gpus,
        whole: args.whole,
        machines: !args.no_machines,
        clones: args.clones,
        copies: args.copies,
        swarm: args.swarm,
        small: args.small,
        keep_trace: args.trace,
        without: without.collect(),
        kept_parts: (!args.only.is_empty()).then(|| only.collect()),
        heal_after: args.heal_after.map(Duration::from_secs),
        compares: args.compare,
        ..usual
    };
    Request {
        seed: args.seed,
        runs: args.runs,
        end_after: args.end_after.map(Duration::from_secs),
        plant: args.plant,
        list_plants: args.list_plants,
        list_invariants: args.list_invariants,
        svg: args.svg,
        shrink: !args.no_shrink,
        options,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use carrack_sim::{plants, run, shrink};
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    /// What a failure's command prints is the run that failed, to the letter.
    #[test]
    fn the_command_of_a_failure_replays_it() {
        let short = Options { safety: Duration::from_secs(45), keep_trace: true, ..Options::default() };
        for (name, options) in [
            ("stale-reads", Options { machines: false, ..short.clone() }),
            ("cache-for-ledger", Options { gpus: true, ..short.clone() }),
        ] {
            let options = Options { plant: plants::find(name), ..options };
            let failed = (1..40).map(|seed| run(seed, &options)).find(|outcome| outcome.failure.is_some());
            let outcome = failed.expect("the planted bug is found");
            let command = &outcome.failure.as_ref().expect("it failed").replay;
            let Ok(Cli { command: Command::Sim(args), .. }) = Cli::try_parse_from(command.split(' ')) else {
                panic!("{command} is no command");
            };
            let mut printed = Vec::new();
            assert!(!simulate(&request(args), &mut printed).expect("it is printed"), "{command}");
            let printed = String::from_utf8(printed).expect("text");
            let lines = printed.lines().zip(outcome.trace.text().lines());
            for (again, first) in lines {
                assert_eq!(again, first, "{command}");
            }
            assert!(printed.starts_with(outcome.trace.text()), "{command}: there are lines left");
            assert!(printed.ends_with(&format!("replay: {command}\n")), "{command}");
        }
    }

    /// A failing run that was made smaller is played by its command.
    #[test]
    fn the_command_of_a_shrunk_run_replays_it() {
        let options = Options { small: true, plant: plants::find("final-rejection"), ..Options::default() };
        let failed = (1..60).map(|seed| run(seed, &options)).find(|outcome| outcome.failure.is_some());
        let shrunk = shrink(&failed.expect("the planted bug is found"), &options, &mut |replays| replays < 12);
        let shrunk = shrunk.expect("it failed");
        let command = &shrunk.outcome.failure.as_ref().expect("it fails").replay;
        assert!(command.contains(" --without "), "{command}");
        let Ok(Cli { command: Command::Sim(args), .. }) = Cli::try_parse_from(command.split(' ')) else {
            panic!("{command} is no command");
        };
        let request = request(args);
        let again = run(request.seed, &Options { plant: options.plant, ..request.options });
        assert_eq!(again.trace_hash, shrunk.outcome.trace_hash, "{command}");
        assert_eq!(&again.failure.expect("it fails again").replay, command);
    }

    #[test]
    fn what_is_left_out_has_a_name() {
        let check = |words: &str, without: &[&str], only: Option<&[&str]>| {
            let Ok(Cli { command: Command::Sim(args), .. }) = Cli::try_parse_from(words.split(' ')) else {
                panic!("{words} is no command");
            };
            let options = request(args).options;
            assert_eq!(options.without, without, "{words}");
            assert_eq!(options.kept_parts.as_deref(), only, "{words}");
        };
        check("carrack sim", &[], None);
        check("carrack sim --without cuts,crashes", &["crashes", "cuts"], None);
        check("carrack sim --without cuts --without crashes", &["crashes", "cuts"], None);
        check("carrack sim --small --only env-files,pods", &[], Some(&["pods", "env-files"]));
        check("carrack sim --only none", &[], Some(&[]));
        for words in ["carrack sim --without sleep", "carrack sim --only crashes"] {
            let refusal = Cli::try_parse_from(words.split(' ')).expect_err(words).to_string();
            assert!(refusal.contains("possible values: "), "{refusal}");
        }
    }

    /// A reader that reads no line, or a disk without room.
    struct Ended(ErrorKind);

    impl Write for Ended {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_hung_up_is_no_error() {
        for (kind, good) in [(ErrorKind::BrokenPipe, true), (ErrorKind::StorageFull, false)] {
            let Ok(Cli { command: Command::Sim(args), .. }) = Cli::try_parse_from(["carrack", "sim", "--list-plants"])
            else {
                panic!("a command")
            };
            assert_eq!(play(&request(args), &mut Ended(kind)).is_ok(), good, "{kind}");
        }
    }

    #[test]
    fn a_failure_is_drawn() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("broken.svg");
        let words = "carrack sim --runs 40 --plant stale-reads --safety 45 --no-machines --no-shrink --svg";
        let words = words.split(' ').map(std::ffi::OsString::from).chain([file.clone().into_os_string()]);
        let Ok(Cli { command: Command::Sim(args), .. }) = Cli::try_parse_from(words) else { panic!("a command") };
        let mut printed = Vec::new();
        assert!(!simulate(&request(args), &mut printed).expect("it is printed"), "the planted bug is found");
        let printed = String::from_utf8(printed).expect("text");
        assert!(printed.contains(&format!("picture: {}\n", file.display())), "{printed}");
        let picture = std::fs::read_to_string(&file).expect("the picture");
        for part in ["<svg ", "apiserver 0", "scheduler", "no-child-made-twice is broken"] {
            assert!(picture.contains(part), "{part}");
        }
    }

    /// What a night makes of a program that says this and fails: what broke, the last line, and the seeds it was asked to play,
    /// each with its kind of runs, in their order.
    fn night(said: &str) -> (String, String, Vec<(u64, String)>) {
        let dir = tempfile::tempdir().expect("a directory");
        let [program, soak, asked] = ["broken", "soak", "asked"].map(|name| dir.path().join(name));
        let note = format!("echo \"$3 $6\" >>'{}'", asked.display());
        let lines = format!("#!/bin/sh\n{note}\necho '{said}'\necho 'error: an invariant broke' >&2\nexit 1\n");
        std::fs::write(&program, lines).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("changed");
        let night = std::process::Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/soak"))
            .arg(&program)
            .arg("2")
            .env("SOAK_DIR", &soak)
            .env("SOAK_SEED", "1")
            .output()
            .expect("it runs");
        let told = String::from_utf8(night.stdout).expect("text");
        assert_eq!(night.status.code(), Some(1), "{told}");
        let failed = std::fs::read_to_string(soak.join("failed")).expect("what broke");
        let asked = std::fs::read_to_string(&asked).expect("what was asked for");
        let asked = asked.lines().filter_map(|line| line.split_once(' '));
        let asked = asked.map(|(seed, kind)| (seed.parse().expect("a seed"), kind.to_owned()));
        (failed, told.lines().last().unwrap_or_default().to_owned(), asked.collect())
    }

    /// What broke in a night is told with the command that plays it, and counted at the end, as is what held before it; and no
    /// run is played twice.
    #[test]
    fn a_night_tells_what_broke() {
        let broken = "seed 8: it is broken: so\nreplay: carrack sim --seed 8 --trace";
        // What is said, what is told of it, whether anything held before, and how far it is from one whole run to the next.
        for (said, parts, has_clean, step) in [
            (format!("{broken}\npicture: x.svg"), [broken, "replay: "], false, 1),
            (format!("{broken}\n30 runs before it held, in 1.0 s"), [broken, "replay: "], true, 31),
            // It was killed.
            (
                "seed 7: 5 s simulated, 3 events, trace 00".to_owned(),
                ["ended otherwise, after 1 runs", "seed 7"],
                true,
                2,
            ),
        ] {
            let (failed, sum, asked) = night(&said);
            for part in parts {
                assert!(failed.contains(part), "{failed}");
            }
            assert_eq!(sum.starts_with("0 clean runs; "), !has_clean, "{said}: {sum}");
            assert!(!sum.contains(" 0 broken ones"), "{said}: {sum}");
            // Those of the first worker; the others begin far from there.
            let is_own = |(seed, _): &&(u64, String)| (100_000_000..200_000_000).contains(seed);
            let own: Vec<&(u64, String)> = asked.iter().filter(is_own).collect();
            assert!(own.len() > 1, "{said}: {asked:?}");
            for pair in own.windows(2) {
                let [(seed, kind), (next, _)] = pair else { continue };
                let expected = seed + if kind == "--small" { 10_000 } else { step };
                assert_eq!(*next, expected, "{said}: {asked:?}");
            }
        }
    }

    #[test]
    fn a_picture_that_cannot_be_written_costs_no_verdict() {
        // A full disk is noticed in the end alone, a directory that is not there before a run begins.
        for (file, told) in [("/dev/full", true), ("/no/such/directory/broken.svg", false)] {
            let words =
                format!("carrack sim --runs 40 --plant stale-reads --safety 45 --no-machines --no-shrink --svg {file}");
            let Ok(Cli { command: Command::Sim(args), .. }) = Cli::try_parse_from(words.split(' ')) else {
                panic!("{words} is no command");
            };
            let mut printed = Vec::new();
            let error = simulate(&request(args), &mut printed).expect_err(file).to_string();
            assert!(error.contains(file), "{error}");
            let printed = String::from_utf8(printed).expect("text");
            assert_eq!((printed.contains(" is broken: "), printed.contains("replay: ")), (told, told), "{printed}");
        }
    }
}
