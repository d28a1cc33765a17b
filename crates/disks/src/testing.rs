//! Processes in mount namespaces of their own, for tests.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts a program apart, as `unshare` is told to, and returns when that has said that it is there. It is to end when its
/// standard input does.
pub(crate) fn apart(arguments: &[&str]) -> Child {
    let mut child =
        Command::new("unshare").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "there\n");
    child
}
