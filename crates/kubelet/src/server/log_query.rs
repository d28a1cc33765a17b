//! Queries of the node's logs: `GET /logs/?query=kubelet&sinceTime=…`, as upstream answers them where `enableSystemLogQuery` says
//! so (`pkg/kubelet/kubelet_server_journal.go`).
//!
//! ```text
//!   query=path/of.log ─▶ that file, as by its path
//!   query=service ─┬─ the journal knows its unit ─▶ what journalctl prints of it, with all options
//!                  └─ else, without options ─▶ /var/log/service, service.log, or service/service.log
//! ```
//!
//! What is handed to journalctl are options of its own with their values in the same word; names of services have letters, digits,
//! `-`, `_` and `@` alone.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use carrack_engine::Time;
use http::{HeaderMap, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::connection::Shared;
use super::query::Query;
use super::reply::{self, Broken, Refusal, Reply};
use super::system_logs::{self, Found};

/// How long an answer may take.
const LONGEST: Duration = Duration::from_secs(30);
/// How much is read at a time, in bytes.
const CHUNK_BYTES: usize = 32 * 1024;
/// Most lines from the end.
const MOST_LINES: i64 = 100_000;
/// Most services in one query.
const MOST_SERVICES: usize = 4;
/// Longest name of one, in bytes.
const LONGEST_NAME: usize = 256;

/// What somebody wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogQuery {
    services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

/// What of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    since: Option<Time>,
    until: Option<Time>,
    tail: Option<i64>,
    /// Which boot, from the present one, 0, back.
    boot: Option<i64>,
    pattern: String,
}

fn invalid(name: &str, value: &str, why: &str) -> String {
    format!("{name}: Invalid value: {value:?}: {why}")
}

impl LogQuery {
    /// Reads a query; none where it is no query of this kind.
    pub(super) fn read(query: &Query) -> Result<Option<Self>, Refusal> {
        let read = Self::parse(query).map_err(|why| Refusal::bad(format!("{why}\n")))?;
        if read == Self::default() {
            return Ok(None);
        }
        read.check().map_err(|why| Refusal::new(StatusCode::NOT_ACCEPTABLE, format!("{why}\n")))?;
        Ok(Some(read))
    }

    fn parse(query: &Query) -> Result<Self, String> {
        let asked = || query.all("query").filter(|name| !name.trim().is_empty());
        let is_file = |name: &&str| name.contains(['/', '\\']);
        if query.get("query").is_some() && asked().next().is_none() {
            return Err(invalid("query", "", "query cannot be empty"));
        }
        let time = |name: &str| -> Result<Option<Time>, String> {
            let read = |text: &str| Time::parse(text).ok_or_else(|| invalid(name, text, "invalid time format"));
            query.non_empty(name).map(read).transpose()
        };
        let number = |name: &str| -> Result<Option<i64>, String> {
            let read = |text: &str| text.parse::<i64>().map_err(|error| invalid(name, text, &error.to_string()));
            query.non_empty(name).map(read).transpose()
        };
        Ok(Self {
            services: asked().filter(|name| !is_file(name)).map(str::to_owned).collect(),
            files: asked().filter(is_file).map(str::to_owned).collect(),
            options: Options {
                since: time("sinceTime")?,
                until: time("untilTime")?,
                tail: number("tailLines")?,
                boot: number("boot")?,
                pattern: query.get("pattern").unwrap_or_default().to_owned(),
            },
        })
    }

    fn check(&self) -> Result<(), String> {
        let Self { services, files, options } = self;
        for name in services {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '@');
            if name.len() > LONGEST_NAME {
                return Err(invalid("query", name, &format!("must be no more than {LONGEST_NAME} bytes")));
            }
            if !name.chars().all(is_plain) {
                return Err(invalid("query", name, "input contains unsupported characters"));
            }
        }
        if services.len() > MOST_SERVICES {
            return Err(format!("query: Too many: {}: must have at most {MOST_SERVICES} items", services.len()));
        }
        let all = [services.as_slice(), files.as_slice()].concat().join(", ");
        match (services.len(), files.len()) {
            (0, 0) => return Err("query: Required value: cannot be empty with options".into()),
            (1.., 1..) => return Err(invalid("query", &all, "cannot specify a file and service")),
            (_, 2..) => return Err(invalid("query", &all, "cannot specify more than one file")),
            (_, 1) if *options != Options::default() => {
                return Err(invalid("query", &all, "cannot specify file with options"));
            }
            _ => {}
        }
        if let Some((since, until)) = options.since.zip(options.until)
            && since > until
        {
            return Err(invalid("untilTime", &until.rfc3339(), "must be after `sinceTime`"));
        }
        if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
            return Err(invalid("boot", &boot.to_string(), "must be less than 1"));
        }
        if let Some(tail) = options.tail.filter(|tail| !(0..=MOST_LINES).contains(tail)) {
            let why = format!("must be between 0 and {MOST_LINES}, inclusive");
            return Err(invalid("tailLines", &tail.to_string(), &why));
        }
        Ok(())
    }

    /// The arguments of journalctl. Times are told as seconds, which are the same wherever the machine is.
    fn arguments(&self, units: &[String]) -> Vec<String> {
        let options = &self.options;
        let mut out: Vec<String> = ["--utc", "--no-pager"].map(str::to_owned).into();
        out.extend(options.since.map(|at| format!("--since=@{}", at.unix_s())));
        out.extend(options.until.map(|at| format!("--until=@{}", at.unix_s())));
        if let Some(tail) = options.tail {
            out.extend(["--pager-end".to_owned(), format!("--lines={tail}")]);
        }
        out.extend(units.iter().map(|unit| format!("--unit={unit}")));
        if !options.pattern.is_empty() {
            out.push(format!("--grep={}", options.pattern));
        }
        out.extend(options.boot.map(|boot| format!("--boot={boot}")));
        out.push("--output=short-precise".to_owned());
        out
    }

    /// Answers.
    pub(super) async fn answer(
        self,
        shared: &Shared,
        dir: &Path,
        headers: &HeaderMap,
    ) -> Result<Response<Reply>, Refusal> {
        if let Some(file) = self.files.first() {
            return system_logs::file(shared, dir, file.clone(), headers).await;
        }
        let (client, parts) = mpsc::channel(1);
        let (dir, journal) = (dir.to_owned(), shared.settings.journal.clone());
        let mut ending = shared.ending.clone();
        tokio::spawn(async move {
            let telling = self.tell(dir, &journal, Client(client));
            tokio::select! {
                told = tokio::time::timeout(LONGEST, telling) => if told.is_err() {
                    tracing::debug!("a query of the node's logs took too long");
                },
                // An error means that the server is gone, which is the end as well.
                _ = ending.wait_for(|ending| *ending) => {}
            }
        });
        Ok(reply::stream("text/plain;charset=UTF-8", parts))
    }

    /// Tells what there is of the services; none where the client has gone.
    async fn tell(self, dir: PathBuf, journal: &[String], client: Client) -> Option<()> {
        let known = units(journal).await;
        let in_journal = |name: &String| known.lines().any(|unit| unit.strip_suffix(".service") == Some(name.as_str()));
        let (units, files): (Vec<String>, Vec<String>) = self.services.iter().cloned().partition(in_journal);
        if !units.is_empty() {
            self.tell_units(journal, &units, &client).await?;
        }
        if files.is_empty() {
            return Some(());
        }
        if self.options != Options::default() {
            let files = files.join(" ");
            let text = format!(
                "\noptions present and query resolved to log files for [{files}]\ntry without specifying options\n"
            );
            return client.say(text).await;
        }
        for name in files {
            tell_file(&dir, &name, &client).await?;
        }
        Some(())
    }

    async fn tell_units(&self, journal: &[String], units: &[String], client: &Client) -> Option<()> {
        let mut command = command(journal);
        command.args(self.arguments(units)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::debug!(%error, "the journal cannot be asked");
                return client.say("\nerror: journal output not available\n").await;
            }
        };
        // It waits for whoever reads what it complains of, too: there is a line for each file of the journal that is damaged.
        let (found, complaints) = (child.stdout.take()?, child.stderr.take()?);
        let (found, complaints) = tokio::join!(copy(found, client), copy(complaints, client));
        found.and(complaints)?;
        if let Err(error) = child.wait().await {
            tracing::debug!(%error, "how journalctl ended is not known");
        }
        Some(())
    }
}

/// Who asks.
struct Client(mpsc::Sender<Result<Bytes, Broken>>);

impl Client {
    async fn say(&self, text: impl Into<Bytes>) -> Option<()> {
        self.0.send(Ok(text.into())).await.ok()
    }
}

/// The program, which ends with whoever waits for it.
fn command(journal: &[String]) -> Command {
    let mut words = journal.iter();
    let mut command = Command::new(words.next().map_or("journalctl", String::as_str));
    command.args(words).stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// The units that the journal has something of, each in a line; nothing where there is no journal.
async fn units(journal: &[String]) -> String {
    match command(journal).args(["--field", "_SYSTEMD_UNIT"]).output().await {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => String::new(),
    }
}

/// Tells the file of a service that does not write to the journal.
async fn tell_file(dir: &Path, name: &str, client: &Client) -> Option<()> {
    for way in [name.to_owned(), format!("{name}.log"), format!("{name}/{name}.log")] {
        match system_logs::found(dir, way).await {
            Ok(Found::File(log)) => return copy(tokio::fs::File::from_std(log.file).take(log.length), client).await,
            Ok(Found::List(_)) => {}
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return client.say(format!("\nerror getting log for {name}: {error}\n")).await,
        }
    }
    client.say(format!("\nlog not found for {name}\n")).await
}

/// Sends all that is to be read.
async fn copy(mut from: impl AsyncRead + Unpin, client: &Client) -> Option<()> {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        match from.read(&mut chunk).await {
            Ok(0) => return Some(()),
            Ok(count) => chunk.truncate(count),
            Err(error) => {
                tracing::debug!(%error, "a log broke off");
                return Some(());
            }
        }
        client.say(chunk).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Option<LogQuery>, Refusal> {
        LogQuery::read(&Query::parse(query).unwrap())
    }

    #[test]
    fn queries_become_arguments() {
        for (query, expected) in [
            ("query=kubelet", "--unit=kubelet"),
            ("query=kubelet&query=crio", "--unit=kubelet --unit=crio"),
            ("query=kubelet&tailLines=7", "--pager-end --lines=7 --unit=kubelet"),
            ("query=kubelet&boot=-1&pattern=a+b", "--unit=kubelet --grep=a b --boot=-1"),
            (
                "query=kubelet&sinceTime=1970-01-01T00:00:05Z&untilTime=1970-01-01T01:00:09%2B01:00",
                "--since=@5 --until=@9 --unit=kubelet",
            ),
        ] {
            let read = read(query).unwrap().unwrap();
            let arguments = read.arguments(&read.services).join(" ");
            assert_eq!(arguments, format!("--utc --no-pager {expected} --output=short-precise"), "{query}");
        }
        for query in ["", "other=1", "pattern="] {
            assert_eq!(read(query), Ok(None), "{query}");
        }
    }

    #[test]
    fn what_is_no_query_is_refused() {
        let long = format!("query={}", "x".repeat(LONGEST_NAME + 1));
        for (query, code) in [
            ("query=", 400),
            ("query=+", 400),
            ("query=kubelet&sinceTime=yesterday", 400),
            ("query=kubelet&tailLines=x", 400),
            ("query=kubelet&boot=x", 400),
            ("tailLines=7", 406),
            ("query=kubelet&tailLines=-1", 406),
            ("query=kubelet&tailLines=100001", 406),
            ("query=kubelet&boot=1", 406),
            ("query=kubelet&sinceTime=1970-01-01T00:00:05Z&untilTime=1970-01-01T00:00:04Z", 406),
            ("query=a&query=b&query=c&query=d&query=e", 406),
            ("query=a.service", 406),
            ("query=a%0Ab", 406),
            ("query=%24(id)", 406),
            (long.as_str(), 406),
            ("query=/a.log&query=b", 406),
            ("query=/a.log&query=/b.log", 406),
            ("query=/a.log&tailLines=7", 406),
        ] {
            assert_eq!(read(query).map_err(|refusal| refusal.code.as_u16()), Err(code), "{query}");
        }
    }
}
