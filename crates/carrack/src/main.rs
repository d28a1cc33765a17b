//! The `carrack` command: a whole cluster, each of its roles, and what a person needs around them.
//!
//! ```text
//!   up, down ──► node runtime (containerd, pod network) and all roles in one process
//!   <role>   ──► one role in this process, over HTTPS
//!   console, kubeconfig, version, completion, man, image, bench, sim, drill, store ──► tools for a person
//! ```
//!
//! Each command is a module that reads its arguments, calls the crates that do the work, and says what happened.
//! Exit status: 0 when it was done, 1 when not, as with kubectl and k3s; a signal ends a role with 0. virt-launcher's says how its
//! guest ended, and that of `node exec` is its command's.

mod advice;
mod bench;
mod cli;
mod completion;
mod console;
#[cfg(test)]
mod documents;
mod down;
mod drill;
mod explain;
mod flags;
mod image;
mod kubeconfig;
mod log_file;
mod logging;
mod man;
mod network;
mod node;
mod notify;
mod output;
mod process;
mod progress;
mod roles;
mod sim;
mod store;
mod up;
mod version;
mod wire;

use std::process::ExitCode;

/// Objects are trees of small pieces: a third of the API server's time went into the C library's allocator. Without huge pages,
/// since those keep whole what is free between the objects: a third of an idle cluster's memory was that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use cli::{Cli, Command};

fn main() -> ExitCode {
    // The allocator keeps this process from huge pages by a setting that children inherit. Guests want them.
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(false) {
        output::say(format_args!("huge pages stay disabled for guests: {error}"));
    }
    // containerd calls it by other names.
    if let Some(called) = roles::networks::called() {
        return roles::networks::run(called);
    }
    match completion::answer() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            output::say(format_args!("error: {error:#}"));
            return ExitCode::FAILURE;
        }
    }
    let cli = match flags::parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap's own exit status for a wrong argument is 2, kubectl's and k3s's is 1.
            let code = u8::from(error.use_stderr());
            // Help that nobody reads to its end (`| head`) is no error.
            if let Err(error) = error.print()
                && error.kind() != std::io::ErrorKind::BrokenPipe
            {
                output::say(format_args!("error: {error}"));
            }
            return ExitCode::from(code);
        }
    };
    if drives_a_node(&cli.command) {
        process::find_system_programs();
    }
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            output::say(format_args!("error: {error:#}"));
            advice::on(&error).into_iter().for_each(output::say);
            ExitCode::FAILURE
        }
    }
}

/// Whether a command has the machine's programs do something: mounts, networks, containers.
fn drives_a_node(command: &Command) -> bool {
    use Command::{Down, Drill, Kubelet, LocalStorage, Node, Up, VirtHandler};
    matches!(command, Up(_) | Down(_) | Node(_) | Drill(_) | Kubelet(_) | VirtHandler(_) | LocalStorage(_))
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let done = match cli.command {
        Command::Node(args) => return node::run(args),
        Command::VirtLauncher(args) => return Ok(roles::virt_launcher::run(args)),
        Command::Up(args) => up::run(&args),
        Command::Down(args) => block_on(down::run(args)),
        Command::Kubeconfig(args) => kubeconfig::run(&args),
        Command::Console(args) => block_on(console::run(args)),
        Command::Explain(args) => block_on(explain::run(args)),
        Command::Version(args) => version::run(&args),
        Command::Completion(args) => completion::script(&args),
        Command::Man(args) => man::run(&args),
        Command::Image(args) => block_on(image::run(args)),
        Command::Bench(args) => block_on(bench::run(args)),
        Command::Sim(args) => sim::run(args),
        Command::Drill(args) => drill::run(&args),
        Command::Store(args) => block_on(store::run(args)),
        Command::Apiserver(args) => serve(roles::apiserver::alone(*args)),
        Command::Scheduler(args) => block_on(roles::scheduler::alone(args)),
        Command::Controllers(args) => block_on(roles::controllers::alone(args)),
        Command::VirtController(args) => block_on(roles::virt_controller::alone(args)),
        Command::Kubelet(args) => block_on(roles::kubelet::alone(args)),
        Command::VirtHandler(args) => block_on(roles::virt_handler::alone(args)),
        Command::GpuExtender(args) => block_on(roles::gpu_extender::alone(args)),
        Command::GpuPlugin(args) => block_on(roles::gpu_plugin::alone(args)),
        Command::Hollow(args) => block_on(roles::hollow::alone(args)),
        Command::LocalStorage(args) => block_on(roles::local_storage::alone(args)),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Runs a role that is to use the machine: a core is left to the store's writer, where there are more than two. One thread alone would
/// serve whoever asks before whoever watches, as long as somebody asks: what the writer wakes is behind what is awake.
fn serve(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    if cores == 1 {
        return block_on(work);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2.max(cores - 1)).enable_all().build()?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}

/// Runs a tool's work. A thread that still reads the terminal does not hold the process back.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}
