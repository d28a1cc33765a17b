//! Parameters of exec, attach and port-forward.

use super::backend::Streams;
use super::query::Query;
use super::reply::Refusal;

/// Most ports that one request may name.
const MAX_PORTS: usize = 64;

/// Which streams are wanted. A terminal has one output, so that stderr does not go with it.
pub(super) fn streams(query: &Query) -> Result<Streams, Refusal> {
    let tty = query.flag("tty");
    let streams =
        Streams { stdin: query.flag("input"), stdout: query.flag("output"), stderr: query.flag("error") && !tty, tty };
    if streams.stdin || streams.stdout || streams.stderr {
        Ok(streams)
    } else {
        Err(Refusal::bad("you must specify at least 1 of stdin, stdout, stderr"))
    }
}

/// The command to run.
pub(super) fn command(query: &Query) -> Result<Vec<String>, Refusal> {
    let command: Vec<String> = query.all("command").map(Into::into).collect();
    if command.iter().all(String::is_empty) { Err(Refusal::bad("you must specify a command")) } else { Ok(command) }
}

/// The command of `/run`, which takes it in one parameter and splits it at blanks, as upstream does.
pub(super) fn run_command(query: &Query) -> Result<Vec<String>, Refusal> {
    let command: Vec<String> = query.get("cmd").unwrap_or_default().split(' ').map(Into::into).collect();
    if command.iter().all(String::is_empty) { Err(Refusal::bad("you must specify a command")) } else { Ok(command) }
}

/// The ports named in the query; clients that speak SPDY name them later, on the connection.
pub(super) fn ports(query: &Query) -> Result<Vec<i32>, Refusal> {
    let ports = query
        .all("port")
        .chain(query.all("ports"))
        .flat_map(|list| list.split(','))
        .map(|text| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(i32::from(port)),
            _ => Err(Refusal::bad(format!("unable to parse {text:?} as a port"))),
        })
        .take(MAX_PORTS + 1)
        .collect::<Result<Vec<_>, _>>()?;
    if ports.len() > MAX_PORTS {
        return Err(Refusal::bad(format!("more than {MAX_PORTS} ports")));
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(text).expect("query")
    }

    #[test]
    fn streams_are_read() {
        let of = |stdin, stdout, stderr, tty| Some(Streams { stdin, stdout, stderr, tty });
        for (text, expected) in [
            ("input=1&output=1&error=1", of(true, true, true, false)),
            ("input=1&output=1&error=1&tty=1", of(true, true, false, true)),
            ("output=true", of(false, true, false, false)),
            ("input=0&output=1", of(false, true, false, false)),
            ("", None),
            ("tty=1", None),
            ("tty=1&error=1", None),
        ] {
            assert_eq!(streams(&query(text)).ok(), expected, "{text}");
        }
    }

    #[test]
    fn commands_are_read() {
        assert_eq!(
            command(&query("command=sh&command=-c&command=a+b")).ok(),
            Some(vec!["sh".into(), "-c".into(), "a b".into()])
        );
        assert_eq!(run_command(&query("cmd=ls+-l")).ok(), Some(vec!["ls".into(), "-l".into()]));
        assert!(command(&query("input=1")).is_err() && run_command(&query("")).is_err());
    }

    #[test]
    fn ports_are_read() {
        let many = vec!["port=1"; MAX_PORTS + 1].join("&");
        for (text, expected) in [
            ("", Some(vec![])),
            ("port=80&port=443", Some(vec![80, 443])),
            ("ports=80,443", Some(vec![80, 443])),
            ("port=0", None),
            ("port=65536", None),
            ("port=", None),
            ("port=http", None),
            (many.as_str(), None),
        ] {
            assert_eq!(ports(&query(text)).ok(), expected, "{text}");
        }
    }
}
