//! virt-launcher, which runs in the pod of one virtual machine.

use std::process::ExitCode;

use carrack_launcher::cli::{self, LauncherArgs};

use crate::logging;

/// Runs it. Its exit status tells the kubelet how the guest ended.
pub fn run(args: LauncherArgs) -> ExitCode {
    let filter = std::env::var("CARRACK_LOG").unwrap_or_else(|_| "info".to_owned());
    if let Err(error) = logging::start(&filter) {
        crate::output::say(format_args!("error: {error:#}"));
        return ExitCode::FAILURE;
    }
    cli::run(&["virt-launcher"], args)
}
