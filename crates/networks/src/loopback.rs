//! The sandbox's own link: what containerd calls the plugin `loopback` for, besides the pod network's.

use std::path::Path;

use serde_json::json;

use crate::plugin::{self, Environment, Outcome};
use crate::pod_network::links;

/// What the plugin is called, by containerd as by everybody.
pub const PLUGIN: &str = "loopback";

/// Does what the runtime asks.
#[must_use]
pub fn run(environment: &Environment, input: &str) -> Outcome {
    let config = serde_json::from_str::<serde_json::Value>(input).unwrap_or_default();
    let version = config["cniVersion"].as_str().unwrap_or(plugin::LATEST).to_owned();
    let done = match environment.command.as_str() {
        "VERSION" => return plugin::versions(input),
        "ADD" => links::set_up_loopback(Path::new(&environment.netns)).map_err(|error| plugin::chain(&error)),
        // It goes with the sandbox's namespace, and is up as long as that is there.
        "DEL" | "CHECK" | "GC" | "STATUS" => return Outcome { stdout: String::new(), code: 0 },
        other => Err(format!("CNI_COMMAND {other:?} is not known")),
    };
    match done {
        Ok(()) => {
            let mut ip = json!({ "interface": 0, "address": "127.0.0.1/8" });
            if version.starts_with("0.") {
                ip["version"] = json!("4");
            }
            let result = json!({
                "cniVersion": version,
                "interfaces": [{ "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": environment.netns }],
                "ips": [ip],
                "dns": {},
            });
            Outcome { stdout: result.to_string(), code: 0 }
        }
        Err(why) => plugin::refusal(&version, plugin::FAILED, &why),
    }
}
