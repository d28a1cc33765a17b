#![expect(clippy::disallowed_methods, reason = "shell: shows how long a step takes")]
//! What a command is doing, for the person who waits: a moving line on a terminal, plain lines elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// Steps, one after the other. All of it goes to standard error, so that standard output holds only data.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    step: Option<(String, Instant)>,
}

impl Progress {
    /// No step yet.
    pub fn new() -> Self {
        let bar = output::is_fancy().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner:.cyan} {msg} {elapsed:.dim}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar, step: None }
    }

    /// Begins a step, which ends the one before.
    pub fn step(&mut self, text: impl Into<String>) {
        self.done();
        let text = text.into();
        match &self.bar {
            Some(bar) => {
                bar.reset_elapsed();
                bar.set_message(text.clone());
            }
            None => output::say(&text),
        }
        self.step = Some((text, Instant::now()));
    }

    /// Says something in between; the step goes on.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("  {text}")),
            None => output::say(format_args!("  {text}")),
        }
    }

    /// Ends the step with success.
    pub fn done(&mut self) {
        if let (Some((text, began)), Some(bar)) = (self.step.take(), &self.bar) {
            bar.println(format!(
                "\u{1b}[32m✓\u{1b}[0m {text} \u{1b}[2m{:.1} s\u{1b}[0m",
                began.elapsed().as_secs_f64()
            ));
        }
    }

    /// Takes the moving line away; what was done stays on the screen.
    pub fn finish(&mut self) {
        self.done();
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // A step that did not end failed; the error message that follows says how.
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
