//! Programs of the machine that help to make or to load an image.
//!
//! Each is a process group of its own. A key that interrupts (ctrl-C) goes to all of a terminal's foreground group: a program in
//! the group of who called it would end by itself, as a failure with an error of its own, before its caller has heard of the
//! signal. This way the caller alone hears of it, and decides what becomes of the program.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// A program apart from its caller's process group, without an input.
pub(crate) fn apart(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).process_group(0);
    command
}

#[cfg(test)]
mod tests {
    use super::apart;

    #[test]
    fn a_program_leads_a_process_group() {
        let ask = "read -r pid _ _ _ group _ < /proc/self/stat && echo \"$pid $group\"";
        let output = apart("sh").args(["-c", ask]).output().expect("a shell runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (pid, group) = said.trim().split_once(' ').expect("two numbers");
        assert!(output.status.success() && !pid.is_empty());
        assert_eq!(pid, group);
    }
}
