//! Prints the GPUs of this machine as the plugin sees them: `cargo run -p carrack-gpu-plugin --example gpus`.

use carrack_gpu_plugin::{Source, look};

fn main() -> Result<(), String> {
    let found = look(&Source::Nvml)?;
    println!("{}\n{}", found.describe(), found.annotation());
    println!("{} devices of cores, {} of memory", found.core_devices().len(), found.memory_devices().len());
    Ok(())
}
