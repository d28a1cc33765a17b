//! The terminal in raw mode: every key goes to the guest, and the guest alone echoes.

use std::io;

use anyhow::Context as _;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

/// Raw mode, until dropped. Nothing where standard input is no terminal.
#[derive(Debug)]
pub struct Raw {
    before: Option<Termios>,
}

impl Raw {
    /// Switches standard input to raw mode.
    ///
    /// # Errors
    /// The terminal refused.
    pub fn enter() -> anyhow::Result<Self> {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            return Ok(Self { before: None });
        }
        let before = tcgetattr(&stdin).context("cannot read the terminal's mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw).context("cannot switch the terminal to raw mode")?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = tcsetattr(io::stdin(), OptionalActions::Now, before)
        {
            crate::output::say(format_args!("the terminal's mode could not be restored ({error}); type: reset"));
        }
    }
}
