//! Files with variables for containers (`fileKeyRef`), which an init container writes. Their form is a part of what a POSIX shell
//! reads (<https://kubernetes.io/docs/tasks/inject-data-application/define-environment-variable-via-file/#env-file-syntax>;
//! upstream: `ParseEnv`, `pkg/kubelet/util/env`): `NAME='value'`, where a value may go over several lines, and comments.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, FileKeySelector, Pod, Volume};

use super::pod::spec;

/// What is in a file. It may be confidential, and is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvText(pub String);

impl std::fmt::Debug for EnvText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// A file: its volume, and its path there.
pub type EnvFile = (String, String);

/// What is in files; none in those that surely are not there.
pub type EnvFiles = BTreeMap<EnvFile, Option<EnvText>>;

/// What is around a name and a value.
const BLANK: [char; 2] = [' ', '\t'];

fn file_of(r: &FileKeySelector) -> EnvFile {
    (r.volume_name.clone(), r.path.clone())
}

/// The files that a container gets variables from, each with the directory of its volume.
///
/// # Errors
/// A volume that is no emptyDir of the pod, or a path that leads out of it.
pub fn files(
    pod: &Pod,
    c: &Container,
    volumes: &BTreeMap<String, String>,
) -> Result<BTreeMap<EnvFile, String>, String> {
    let mut out = BTreeMap::new();
    for r in c.env.iter().flatten().filter_map(|e| e.value_from.as_ref()?.file_key_ref.as_ref()) {
        let is_it = |v: &Volume| v.name == r.volume_name && v.empty_dir.is_some();
        let is_empty_dir = spec(pod).volumes.iter().flatten().any(is_it);
        let Some(dir) = volumes.get(&r.volume_name).filter(|_| is_empty_dir) else {
            return Err(format!("the pod has no emptyDir {:?} for a file with variables", r.volume_name));
        };
        if r.path.is_empty() || r.path.starts_with('/') || r.path.split('/').any(|part| part == "..") {
            return Err(format!("file {:?} with variables must be inside volume {:?}", r.path, r.volume_name));
        }
        out.insert(file_of(r), dir.clone());
    }
    Ok(out)
}

/// The variables in files. Each file is gone through once, however many of its variables are asked for.
pub(super) struct Variables<'a>(BTreeMap<&'a EnvFile, Given<'a>>);

impl<'a> Variables<'a> {
    /// Of these files.
    pub(super) fn of(files: &'a EnvFiles) -> Self {
        Self(files.iter().filter_map(|(file, text)| Some((file, given(&text.as_ref()?.0)))).collect())
    }

    /// The value that a variable has from a file; none where it may lack, and does.
    ///
    /// # Errors
    /// The file is not as it should be, or it or the variable lacks and must not.
    pub(super) fn value(&self, r: &FileKeySelector) -> Result<Option<String>, String> {
        let place = || format!("file {:?} of volume {:?}", r.path, r.volume_name);
        let given = self.0.get(&file_of(r));
        let found = match given {
            Some(given) => given.value(&r.key).map_err(|why| format!("{}: {why}", place()))?,
            None => None,
        };
        match found {
            Some(value) => Ok(Some(value.to_owned())),
            None if r.optional == Some(true) => Ok(None),
            None if given.is_none() => Err(format!("{} with variables not found", place())),
            None => Err(format!("environment variable key {:?} not found in {}", r.key, place())),
        }
    }
}

/// What a text gives.
struct Given<'a> {
    /// Variables, each as it is given first, up to what is wrong.
    values: BTreeMap<&'a str, String>,
    /// What is wrong with the text.
    bad: Option<String>,
}

impl Given<'_> {
    /// The value of a variable; none where there is no such variable. What comes behind it may be wrong.
    fn value(&self, key: &str) -> Result<Option<&str>, &str> {
        match (self.values.get(key), &self.bad) {
            (Some(value), _) => Ok(Some(value.as_str())),
            (None, Some(why)) => Err(why.as_str()),
            (None, None) => Ok(None),
        }
    }
}

fn given(text: &str) -> Given<'_> {
    let mut values = BTreeMap::new();
    let mut lines = (1_usize..).zip(text.lines());
    let bad = loop {
        match following(&mut lines) {
            Ok(Some((name, value))) => {
                values.entry(name).or_insert(value);
            }
            Ok(None) => break None,
            Err(why) => break Some(why),
        }
    };
    Given { values, bad }
}

/// The next variable, and its value; none where there are no more.
fn following<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>) -> Result<Option<(&'a str, String)>, String> {
    let bad = |line: usize, why: &str| Err(format!("invalid environment variable format at line {line}: {why}"));
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches(BLANK);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, given)) = line.split_once('=') else { return bad(number, "missing '='") };
        if name.trim_end_matches(BLANK).is_empty() {
            return bad(number, "empty variable name");
        }
        if name.ends_with(BLANK) {
            return bad(number, "whitespace before '=' is not allowed");
        }
        // To a shell this sets the variable to nothing, for a command that follows.
        if given.starts_with(BLANK) {
            return Ok(Some((name, String::new())));
        }
        let Some(mut rest) = given.strip_prefix('\'') else {
            return bad(number, "value must be enclosed in single quotes");
        };
        let (mut value, mut last) = (String::new(), number);
        let behind = loop {
            if let Some((inside, behind)) = rest.split_once('\'') {
                value.push_str(inside);
                break behind;
            }
            value.push_str(rest);
            value.push('\n');
            let Some((number_of_next, next)) = lines.next() else { return bad(number, "unclosed single quote") };
            (last, rest) = (number_of_next, next);
        };
        let behind = behind.trim_start_matches(BLANK);
        if !behind.is_empty() && !behind.starts_with('#') {
            return bad(last, "unexpected content after closing quote");
        }
        return Ok(Some((name, value)));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_those_of_a_shell() {
        for (text, expected) in [
            ("  A='1'\n\t\tK='2'\nB='3'\n", Ok(Some("2"))),
            ("# c\n\nA='1'\n   # d\nK='2' # e\n", Ok(Some("2"))),
            ("A='1'\r\nK='2'\r\n", Ok(Some("2"))),
            ("A='1'", Ok(None)),
            ("", Ok(None)),
            ("K=''", Ok(Some(""))),
            // The first counts.
            ("K='1'\nK='2'", Ok(Some("1"))),
            ("K= 'x'\n", Ok(Some(""))),
            ("A= 'x'\nK='2'", Ok(Some("2"))),
            ("K='  a#b=c $X ${Y} \\n \"q\" '", Ok(Some("  a#b=c $X ${Y} \\n \"q\" "))),
            ("K='one\n\n  # two\nthree '\nB='x'", Ok(Some("one\n\n  # two\nthree "))),
            ("A='one\nB='2'\nK='2'", Err("at line 2: unexpected content")),
            ("K='2'\nnonsense", Ok(Some("2"))),
            ("A='1'\nnonsense\nK='2'", Err("at line 2: missing '='")),
            ("='1'", Err("at line 1: empty variable name")),
            ("K ='1'", Err("whitespace before '='")),
            ("K=1", Err("enclosed in single quotes")),
            ("K=", Err("enclosed in single quotes")),
            ("K=\"1\"", Err("enclosed in single quotes")),
            ("K='1''2'", Err("unexpected content")),
            ("K='1'2", Err("unexpected content")),
            ("\nK='1\n2", Err("at line 2: unclosed")),
        ] {
            let given = given(text);
            match (given.value("K"), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_variable_of_a_file_may_lack_or_must_not() {
        let files = |text: Option<&str>| EnvFiles::from([(("v".into(), "f".into()), text.map(|t| EnvText(t.into())))]);
        for (text, optional, expected) in [
            (Some("K='1'"), false, Ok(Some("1"))),
            (Some("K=''"), false, Ok(Some(""))),
            (Some("A='1'"), false, Err("key \"K\" not found")),
            (Some("A='1'"), true, Ok(None)),
            (None, false, Err("with variables not found")),
            (None, true, Ok(None)),
            // One that cannot be read says nothing of what lacks.
            (Some("K=1"), true, Err("single quotes")),
        ] {
            let r = FileKeySelector {
                key: "K".into(),
                path: "f".into(),
                volume_name: "v".into(),
                optional: Some(optional),
            };
            let found = Variables::of(&files(text)).value(&r);
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.as_deref(), expected, "{text:?} {optional}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{text:?} {optional}: {why}"),
                _ => panic!("{text:?} {optional}: {found:?}"),
            }
        }
        assert!(!format!("{:?}", files(Some("K='secret'"))).contains("secret"));
    }

    #[test]
    fn files_are_inside_an_empty_dir() {
        let volumes = BTreeMap::from([("e".to_owned(), "/d/e".to_owned()), ("h".to_owned(), "/".to_owned())]);
        for (volume, path, expected) in [
            ("e", "a/b.env", Ok("/d/e")),
            ("h", "a", Err("no emptyDir \"h\"")),
            ("none", "a", Err("no emptyDir \"none\"")),
            ("e", "/a", Err("inside volume")),
            ("e", "a/../../b", Err("inside volume")),
            ("e", "", Err("inside volume")),
        ] {
            let reference = json!({"volumeName": volume, "path": path, "key": "K"});
            let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"name": "p"}, "spec": {
                "containers": [{"name": "c", "env": [{"name": "K", "valueFrom": {"fileKeyRef": reference}}]}],
                "volumes": [{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/"}}]}}))
            .unwrap();
            let found = files(&pod, &spec(&pod).containers[0], &volumes);
            match (&found, expected) {
                (Ok(found), Ok(dir)) => {
                    assert_eq!(found.get(&(volume.to_owned(), path.to_owned())).map(String::as_str), Some(dir));
                }
                (Err(why), Err(part)) => assert!(why.contains(part), "{volume} {path}: {why}"),
                _ => panic!("{volume} {path}: {found:?}"),
            }
        }
    }
}
