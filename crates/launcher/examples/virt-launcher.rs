//! The launcher as a program of its own, for its tests; `carrack virt-launcher` is the same thing.
use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    launcher: carrack_launcher::cli::LauncherArgs,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    carrack_launcher::cli::run(&[], Cli::parse().launcher)
}
