//! `carrack drill`: the incidents on real processes, and whether what must hold held.
//!
//! ```text
//!   drill ──unshare --net──► drill --inside: sandbox ─► stage ─► story ─► verdict, timeline ─► sandbox gone
//!                                                         │         │
//!                                   watches look at pods, guests,   └─ cluster: roles as processes, containerd, power
//!                                   processes, mounts all the time     relay: stands between a role and the API server
//! ```
//!
//! A story ([`stories`]) is a list of moves on a [`cluster`], and what it is about is looked at on the machine itself
//! ([`machine`]): the kernel's processes and mounts, not what the cluster says of them. A story that nothing was looked at
//! in has proved nothing, and its verdict says so.

mod api;
mod cluster;
mod journal;
mod looks;
mod machine;
mod objects;
mod relay;
mod roles;
mod rules;
mod running;
mod sandbox;
mod stage;
mod stories;
mod visit;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use carrack_noderuntime::Layout;
use carrack_noderuntime::layout::DEFAULT_DATA_DIR;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::cluster::Programs;
use self::journal::Line;
use self::rules::Rule;
use self::stage::{Options, Stage};
use self::stories::{Plant, STORIES, Story};
use crate::cli::drill::DrillArgs;
use crate::output;
use crate::process::require_root;

/// Threads for asynchronous work.
const WORKERS: usize = 2;

/// What is told at the end.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    drill: &'static str,
    holds: bool,
    /// Why it did not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    invariants: Vec<Line>,
    timeline: PathBuf,
    picture: PathBuf,
}

/// Plays a drill, or tells which there are.
///
/// # Errors
/// An invariant broke, or it could not be played.
pub fn run(args: &DrillArgs) -> anyhow::Result<()> {
    if args.list {
        return output::print(args.output, &listed(), list);
    }
    let wanted = args.name.as_deref().unwrap_or_default();
    let Some(story) = STORIES.iter().find(|story| story.name == wanted) else {
        let known: Vec<&str> = STORIES.iter().map(|story| story.name).collect();
        bail!("there is no drill {wanted:?}; there are: {}", known.join(", "));
    };
    let options = options(story, args)?;
    require_root()?;
    fs::create_dir_all(&args.timeline_dir).with_context(|| format!("cannot make {}", args.timeline_dir.display()))?;
    if !args.inside && options.programs.apiserver.is_none() {
        return enter_network();
    }
    let files = Files::new(&args.timeline_dir, story.name)?;
    let verdict = play(story, options, &files, !args.inside)?;
    output::print(args.output, &verdict, || text(&verdict))?;
    if verdict.holds { Ok(()) } else { bail!("the drill {} did not hold", story.name) }
}

fn options(story: &Story, args: &DrillArgs) -> anyhow::Result<Options> {
    let plant = match &args.plant {
        None => None,
        Some(wanted) => {
            let found = story.plants.iter().find(|plant| plant.name == wanted);
            let known: Vec<&str> = story.plants.iter().map(|plant| plant.name).collect();
            let unknown = || format!("{wanted:?} cannot be planted in {}; there is: {}", story.name, known.join(", "));
            Some(found.with_context(unknown)?.name)
        }
    };
    let absolute = |path: &PathBuf| std::path::absolute(path).with_context(|| format!("{}", path.display()));
    let apiserver = match (&args.apiserver, &args.kubeconfig) {
        (Some(url), Some(kubeconfig)) => Some((url.clone(), absolute(kubeconfig)?)),
        _ => None,
    };
    for (given, role, flag) in [
        (args.kubelet.is_some(), "kubelet", "--kubelet"),
        (args.scheduler.is_some(), "scheduler", "--scheduler"),
        (apiserver.is_some(), "apiserver", "--apiserver"),
    ] {
        if given && !story.replaceable.contains(&role) {
            bail!("{flag} is not for {}: {}", story.name, story.others);
        }
    }
    if args.outage.is_some() && story.outage.is_none() {
        bail!("--outage is not for {}: nothing is out there for a time that could be chosen", story.name);
    }
    let program = |flag: &str, path: &Option<PathBuf>| -> anyhow::Result<Option<PathBuf>> {
        let Some(path) = path.as_ref().map(absolute).transpose()? else { return Ok(None) };
        executable(&path).with_context(|| format!("{flag} {}", path.display()))?;
        Ok(Some(path))
    };
    let (kubelet, scheduler) = (program("--kubelet", &args.kubelet)?, program("--scheduler", &args.scheduler)?);
    Ok(Options {
        plant,
        rounds: args.rounds,
        outage: args.outage.map(Duration::from_secs).or(story.outage).unwrap_or_default(),
        programs: Programs { kubelet, scheduler, apiserver },
        images_dir: absolute(&args.images_dir.path(&Layout::new(DEFAULT_DATA_DIR)))?,
    })
}

/// Whether there is a program that can be started.
fn executable(path: &Path) -> anyhow::Result<()> {
    let found = fs::metadata(path).context("it cannot be looked at")?;
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        bail!("it is no program that can be executed");
    }
    Ok(())
}

/// Becomes this very command in a network namespace of its own, which has no name and goes with its last process.
fn enter_network() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--"]).arg(program).args(std::env::args_os().skip(1)).arg("--inside");
    Err(command.exec()).context("unshare cannot be run")
}

/// Where the timeline goes, and on failure the logs.
struct Files {
    text: PathBuf,
    picture: PathBuf,
    logs: PathBuf,
}

impl Files {
    fn new(dir: &Path, name: &str) -> anyhow::Result<Self> {
        let dir = dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))?;
        let file = |ending: &str| dir.join(format!("drill-{name}.{ending}"));
        Ok(Self { text: file("txt"), picture: file("svg"), logs: file("logs") })
    }
}

fn play(story: &'static Story, options: Options, files: &Files, shared_network: bool) -> anyhow::Result<Verdict> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let stop = stop_by_signal(&runtime)?;
    for failure in sandbox::sweep(&runtime) {
        output::say(format_args!("of a drill that was killed something is left: {failure}"));
    }
    if !shared_network {
        sandbox::set_up_network()?;
    }
    let dir = sandbox::make()?;
    let title = format!("drill {}: {}", story.name, story.title);
    let stage = Stage::new(&title, options, &dir, runtime, stop.clone());
    let outcome = (story.play)(&stage);
    let ended = outcome.err().filter(|_| !stage.journal.is_broken()).map(|error| format!("{error:#}"));
    if let Some(why) = &ended {
        stage.journal.note(&format!("the drill ends: {why}"));
    }
    let invariants = stage.journal.verdict(story.rules);
    let broken = stage.journal.is_broken() || ended.is_some();
    stage.journal.step("clearing away");
    if broken {
        keep_logs(&dir, &files.logs);
    }
    let mut left = stage.left();
    left.extend(sandbox::clear(&dir, &stage.runtime));
    stage.journal.finish();
    let (words, picture) = stage.journal.timeline();
    for (path, content) in [(&files.text, words), (&files.picture, picture)] {
        fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let Stage { runtime, .. } = stage;
    runtime.shutdown_background();
    if !left.is_empty() {
        bail!("something of the drill is left:\n  {}", left.join("\n  "));
    }
    let unseen = invariants.iter().any(|line| line.standing.looks == 0);
    Ok(Verdict {
        drill: story.name,
        holds: !broken && !unseen,
        ended,
        invariants,
        timeline: files.text.clone(),
        picture: files.picture.clone(),
    })
}

fn stop_by_signal(runtime: &Runtime) -> anyhow::Result<CancellationToken> {
    let _inside = runtime.enter();
    crate::roles::until_signal()
}

/// Copies what the cluster had to say beside the timeline.
fn keep_logs(dir: &Path, to: &Path) {
    let copy = || -> std::io::Result<()> {
        fs::create_dir_all(to)?;
        for (from, prefix) in [("logs", ""), ("d/logs", "up-"), ("n/logs", "node-")] {
            for entry in fs::read_dir(dir.join(from)).into_iter().flatten().flatten() {
                if entry.file_type()?.is_file() {
                    fs::copy(entry.path(), to.join(format!("{prefix}{}", entry.file_name().to_string_lossy())))?;
                }
            }
        }
        Ok(())
    };
    match copy() {
        Ok(()) => output::say(format_args!("what the roles said is in {}", to.display())),
        Err(error) => output::say(format_args!("the logs cannot be kept: {error}")),
    }
}

fn text(verdict: &Verdict) -> String {
    let width = verdict.invariants.iter().map(|line| line.invariant.len()).max().unwrap_or(0);
    let mut out = String::new();
    for line in &verdict.invariants {
        let standing = match &line.standing {
            standing if standing.broken.is_some() => {
                format!("BROKEN: {}", standing.broken.as_deref().unwrap_or_default())
            }
            standing if standing.looks == 0 => "not seen".to_owned(),
            standing => format!("held, looked at {} times", standing.looks),
        };
        out.push_str(&format!("{} {:<width$}  {standing}\n", line.mark, line.invariant));
    }
    if let Some(why) = &verdict.ended {
        out.push_str(&format!("it did not come to its end: {why}\n"));
    }
    let word = if verdict.holds { "holds" } else { "DOES NOT HOLD" };
    out.push_str(&format!("{}: {word}\n", verdict.drill));
    out.push_str(&format!("timeline: {} and {}\n", verdict.timeline.display(), verdict.picture.display()));
    out
}

/// A drill, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    drill: &'static str,
    title: &'static str,
    invariants: Vec<Invariant>,
    /// For how long what is out stays out, where that can be chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    outage_s: Option<u64>,
    /// Roles that another program may play, by the flag that names it.
    replaceable: &'static [&'static str],
    /// Why no other program may play the rest.
    #[serde(skip_serializing_if = "str::is_empty")]
    others: &'static str,
    plants: Vec<Planted>,
}

#[derive(Debug, Serialize)]
struct Invariant {
    mark: &'static str,
    invariant: &'static str,
    sentence: &'static str,
}

#[derive(Debug, Serialize)]
struct Planted {
    name: &'static str,
    what: &'static str,
}

fn listed() -> Vec<Listed> {
    let invariant = |rule: &&Rule| Invariant { mark: rule.mark, invariant: rule.name, sentence: rule.sentence() };
    let planted = |plant: &Plant| Planted { name: plant.name, what: plant.what };
    let of = |story: &Story| Listed {
        drill: story.name,
        title: story.title,
        invariants: story.rules.iter().map(invariant).collect(),
        outage_s: story.outage.map(|outage| outage.as_secs()),
        replaceable: story.replaceable,
        others: story.others,
        plants: story.plants.iter().map(planted).collect(),
    };
    STORIES.iter().map(of).collect()
}

fn list() -> String {
    let mut out = String::new();
    for story in STORIES {
        out.push_str(&format!("{}\n    {}\n", story.name, story.title));
        for rule in story.rules {
            out.push_str(&format!("    {} {}: {}\n", rule.mark, rule.name, rule.sentence()));
        }
        if let Some(outage) = story.outage {
            out.push_str(&format!("    --outage SECONDS, {} by default\n", outage.as_secs()));
        }
        if !story.replaceable.is_empty() {
            let flags: Vec<String> = story.replaceable.iter().map(|role| format!("--{role}")).collect();
            out.push_str(&format!("    others may play: {}\n", flags.join(", ")));
        }
        if !story.others.is_empty() {
            out.push_str(&format!("    nobody else may play the rest: {}\n", story.others));
        }
        for plant in story.plants {
            out.push_str(&format!("    --plant {}: {}\n", plant.name, plant.what));
        }
    }
    out
}

/// Whether something of this name can be planted in a drill.
#[cfg(test)]
pub fn can_plant(name: &str) -> bool {
    STORIES.iter().flat_map(|story| story.plants).any(|plant| plant.name == name)
}

/// Whether a drill looks at an invariant of this name.
#[cfg(test)]
pub fn looks_at(name: &str) -> bool {
    STORIES.iter().flat_map(|story| story.rules).any(|rule| rule.name == name)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    /// What becomes of these words behind `carrack drill`.
    fn asked(words: &[&str]) -> Result<Options, String> {
        let words = ["carrack", "drill"].iter().chain(words).copied();
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Drill(args) = cli.command else { return Err("another command".to_owned()) };
        let story = STORIES.iter().find(|story| Some(story.name) == args.name.as_deref()).ok_or("no such drill")?;
        options(story, &args).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_cannot_take_a_role_is_refused_before_anything_starts() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        for (name, mode) in [("plain", 0o644), ("good", 0o755)] {
            fs::write(path(name), "#!/bin/sh\n").expect("written");
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).expect("changed");
        }
        let (none, plain, good, folder) = (path("none"), path("plain"), path("good"), path(""));
        let check = |words: &[&str], refused: &[&str]| {
            let told = asked(words).err();
            assert_eq!(told.is_some(), !refused.is_empty(), "{words:?}: {told:?}");
            for part in refused {
                assert!(told.as_ref().is_some_and(|told| told.contains(part)), "{words:?}: {told:?}");
            }
        };
        check(&["kill-9", "--kubelet", &good, "--scheduler", &good], &[]);
        check(&["kill-9", "--kubelet", &none], &["--kubelet", &none]);
        check(&["kill-9", "--scheduler", &none], &["--scheduler", &none]);
        check(&["gpu-extender", "--scheduler", &plain], &["--scheduler", &plain, "executed"]);
        check(&["gpu-extender", "--scheduler", &folder], &["--scheduler", "executed"]);
        check(&["node-death", "--kubelet", &none], &["--kubelet is not for node-death", "`carrack up`"]);
        check(&["node-death", "--scheduler", &good], &["--scheduler is not for node-death", "promise"]);
        check(&["gpu-extender", "--kubelet", &good], &["--kubelet is not for gpu-extender", "hollow"]);
        // No pod is scheduled there: whoever were named would take no part, and be said to hold.
        check(&["clone-under-lag", "--scheduler", &good], &["--scheduler is not for clone-under-lag"]);
        // A list of all, or one drill.
        check(&["--list", "kill-9"], &["--list", "cannot be used with"]);
    }

    #[test]
    fn the_list_names_all_that_can_be_asked_for() {
        let data = serde_json::to_value(listed()).expect("JSON");
        for list in [list(), data.to_string()] {
            for story in STORIES {
                assert!(list.contains(story.name) && !story.plants.is_empty(), "{}", story.name);
                for plant in story.plants {
                    assert!(list.contains(plant.name), "{}", plant.name);
                }
                for role in story.replaceable {
                    assert!(list.contains(role), "{role}");
                }
                // Whoever is refused is told why.
                assert_eq!(story.others.is_empty(), story.replaceable.len() == 3, "{}", story.name);
                assert!(list.contains(story.others), "{}", story.name);
            }
        }
        assert_eq!(data.as_array().map(Vec::len), Some(STORIES.len()));
    }
}
