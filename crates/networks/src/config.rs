//! The configuration of a network: what a NetworkAttachmentDefinition says, and what each of its plugins is told.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::selection::Selection;

/// The version of a configuration that names none.
const OLDEST: &str = "0.1.0";

/// A network as CNI has it: one plugin after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Its name, by which plugins keep what they hand out.
    pub name: String,
    /// Version of the specification.
    pub cni_version: String,
    /// The plugins' configurations, in the order of ADD.
    pub plugins: Vec<Map<String, Value>>,
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// It is no JSON object.
    #[error("its config is no JSON object: {0}")]
    Json(String),
    /// A field is missing or wrong.
    #[error("its config {0}")]
    Field(String),
    /// It has none, and the node has no file for it.
    #[error("it has no config, and no file in {0} is for a network of its name")]
    NoFile(String),
    /// A directory of the node cannot be read.
    #[error("{0} cannot be read: {1}")]
    Read(String, String),
}

/// Reads a configuration, a single plugin's or a list's. A network without a name has that of its definition.
///
/// # Errors
/// See [`ConfigError`].
pub fn read(text: &str, definition: &str) -> Result<Network, ConfigError> {
    let wrong = |why: &str| ConfigError::Field(why.to_owned());
    let value: Map<String, Value> = serde_json::from_str(text).map_err(|error| ConfigError::Json(error.to_string()))?;
    let word = |field: &str| match value.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) if !word.is_empty() => Ok(Some(word.clone())),
        Some(_) => Err(ConfigError::Field(format!("has a {field} that is no name"))),
    };
    let name = word("name")?.unwrap_or_else(|| definition.to_owned());
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !name.bytes().all(known) || !name.as_bytes()[0].is_ascii_alphanumeric() {
        return Err(wrong("has a name that CNI does not allow"));
    }
    let cni_version = word("cniVersion")?.unwrap_or_else(|| OLDEST.to_owned());
    let plugins = match value.get("plugins") {
        None => vec![value],
        Some(Value::Array(list)) => list
            .iter()
            .map(|plugin| plugin.as_object().cloned().ok_or_else(|| wrong("has a plugin that is no object")))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(wrong("has plugins that are no list")),
    };
    if plugins.is_empty() {
        return Err(wrong("names no plugin"));
    }
    for plugin in &plugins {
        match plugin.get("type").and_then(Value::as_str) {
            Some(program) if is_program(program) => {}
            Some(program) => {
                return Err(ConfigError::Field(format!("names the plugin {program:?}, which is no program's name")));
            }
            None => return Err(wrong("names no plugin (type)")),
        }
    }
    Ok(Network { name, cni_version, plugins })
}

/// A program's name and nothing that leads elsewhere. This plugin within itself would never end.
fn is_program(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0']) && !matches!(name, "." | ".." | crate::PLUGIN)
}

/// The configuration of a definition: its own, or the one that a file of the node has under its name.
///
/// # Errors
/// See [`ConfigError`].
pub fn of_definition(definition: &Value, name: &str, node_dirs: &[PathBuf]) -> Result<Network, ConfigError> {
    let text = match definition.pointer("/spec/config") {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) => text.trim(),
        Some(_) => return Err(ConfigError::Field("is no text".to_owned())),
    };
    if !text.is_empty() {
        return read(text, name);
    }
    for dir in node_dirs {
        if let Some(text) = file_of(dir, name)? {
            return read(&text, name);
        }
    }
    let dirs: Vec<String> = node_dirs.iter().map(|dir| dir.display().to_string()).collect();
    Err(ConfigError::NoFile(dirs.join(" or ")))
}

/// The files of a directory with configurations, in the order in which runtimes look at them.
///
/// # Errors
/// It is there and cannot be read.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |error: std::io::Error| ConfigError::Read(dir.display().to_string(), error.to_string());
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|end| end == "conf" || end == "conflist" || end == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The name that a file gives its network.
#[must_use]
pub fn name_in(text: &str) -> Option<String> {
    serde_json::from_str::<Value>(text).ok()?.get("name")?.as_str().map(str::to_owned)
}

/// The first file of a directory that is for a network of this name.
fn file_of(dir: &Path, name: &str) -> Result<Option<String>, ConfigError> {
    for path in files(dir)? {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| ConfigError::Read(path.display().to_string(), error.to_string()))?;
        if name_in(&text).as_deref() == Some(name) {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

impl Network {
    /// What the plugin at `index` reads: its own configuration with what all plugins of the network are told, and what
    /// the one before it made.
    ///
    /// Addresses that the pod asks for are told as the plugin wants to hear them: where it declares the capability, as that;
    /// where no plugin of the network does, as the arguments `args.cni` of CNI's conventions, so that they are not lost.
    #[must_use]
    pub fn told(&self, index: usize, selection: &Selection, before: Option<&Value>) -> Value {
        let mut config = self.plugins[index].clone();
        config.insert("name".to_owned(), json!(self.name));
        config.insert("cniVersion".to_owned(), json!(self.cni_version));
        if let Some(before) = before {
            config.insert("prevResult".to_owned(), before.clone());
        }
        let mut asked = Map::new();
        asked.extend(selection.mac.as_ref().map(|mac| ("mac".to_owned(), json!(mac))));
        asked.extend((!selection.ips.is_empty()).then(|| ("ips".to_owned(), json!(selection.ips))));
        let mut runtime = Map::new();
        let mut arguments = selection.cni_args.clone();
        for (capability, value) in asked {
            if declares(&self.plugins[index], &capability) {
                runtime.insert(capability, value);
            } else if !self.plugins.iter().any(|plugin| declares(plugin, &capability)) {
                arguments.insert(capability, value);
            }
        }
        for (capability, value) in &selection.capabilities {
            if declares(&self.plugins[index], capability) {
                runtime.insert(capability.clone(), value.clone());
            }
        }
        if !runtime.is_empty() {
            config.insert("runtimeConfig".to_owned(), Value::Object(runtime));
        }
        if !arguments.is_empty() {
            let args = config.entry("args").or_insert_with(|| json!({}));
            if !args.is_object() {
                *args = json!({});
            }
            let cni = &mut args["cni"];
            if !cni.is_object() {
                *cni = json!({});
            }
            for (name, value) in arguments {
                cni[name] = value;
            }
        }
        Value::Object(config)
    }

    /// What a pod asks for by a capability that no plugin of the network declares. Upstream: Multus lets it go unheard.
    #[must_use]
    pub fn lacks<'a>(&self, selection: &'a Selection) -> Option<&'a str> {
        let declared = |capability: &str| self.plugins.iter().any(|plugin| declares(plugin, capability));
        selection.capabilities.keys().map(String::as_str).find(|capability| !declared(capability))
    }

    /// `CNI_ARGS` for ADD: the runtime's, and the hardware address that the pod asks for where no plugin of the network
    /// declares that capability. Some hear of it by this alone (macvlan, tap). Upstream: Multus' `DelegateAdd`, which
    /// tells addresses so, too; whoever reads those reads `args.cni` as well, where there may be several.
    #[must_use]
    pub fn arguments(&self, runtimes: &str, selection: &Selection) -> String {
        let is_told = self.plugins.iter().any(|plugin| declares(plugin, "mac"));
        match &selection.mac {
            Some(mac) if !is_told && runtimes.is_empty() => format!("IgnoreUnknown=true;MAC={mac}"),
            Some(mac) if !is_told => format!("{runtimes};IgnoreUnknown=true;MAC={mac}"),
            _ => runtimes.to_owned(),
        }
    }

    /// The program of the plugin at `index`.
    #[must_use]
    pub fn program(&self, index: usize) -> &str {
        self.plugins[index].get("type").and_then(Value::as_str).unwrap_or_default()
    }
}

fn declares(plugin: &Map<String, Value>, capability: &str) -> bool {
    plugin.get("capabilities").and_then(|all| all.get(capability)) == Some(&Value::Bool(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_plugins_and_lists_are_read() {
        let network = read(r#"{"type": "bridge", "bridge": "br1"}"#, "red").expect("read");
        assert_eq!((network.name.as_str(), network.cni_version.as_str(), network.plugins.len()), ("red", "0.1.0", 1));
        assert_eq!(network.program(0), "bridge");
        let list = r#"{"name": "n", "cniVersion": "0.4.0", "plugins": [{"type": "bridge"}, {"type": "tuning"}]}"#;
        let network = read(list, "red").expect("read");
        assert_eq!((network.name.as_str(), network.plugins.len(), network.program(1)), ("n", 2, "tuning"));
    }

    #[test]
    fn nonsense_is_refused() {
        let refused = |text: &str, expected: &str| {
            let error = read(text, "red").expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        refused("", "no JSON object");
        refused("[]", "no JSON object");
        refused("{", "no JSON object");
        refused("{}", "names no plugin (type)");
        refused(r#"{"plugins": []}"#, "names no plugin");
        refused(r#"{"plugins": 1}"#, "no list");
        refused(r#"{"plugins": ["bridge"]}"#, "no object");
        refused(r#"{"type": "../bin/sh"}"#, "no program's name");
        refused(r#"{"type": "carrack-networks"}"#, "no program's name");
        refused(r#"{"type": "bridge", "name": 1}"#, "name that is no name");
        refused(r#"{"type": "bridge", "name": "a/b"}"#, "CNI does not allow");
    }

    #[test]
    fn a_definition_without_a_config_names_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let dirs = [dir.path().to_owned()];
        std::fs::write(dir.path().join("20.conf"), r#"{"name": "red", "type": "ptp"}"#).expect("written");
        std::fs::write(dir.path().join("10.conf"), r#"{"name": "blue", "type": "macvlan"}"#).expect("written");
        std::fs::write(dir.path().join("00.txt"), r#"{"name": "red", "type": "vlan"}"#).expect("written");
        std::fs::write(dir.path().join("05.conf"), "nonsense").expect("written");
        let of =
            |definition: Value| of_definition(&definition, "red", &dirs).map(|network| network.program(0).to_owned());
        assert_eq!(of(json!({})), Ok("ptp".to_owned()));
        assert_eq!(of(json!({"spec": {"config": " "}})), Ok("ptp".to_owned()));
        assert_eq!(of(json!({"spec": {"config": "{\"type\": \"bridge\"}"}})), Ok("bridge".to_owned()));
        assert!(matches!(of(json!({"spec": {"config": 3}})), Err(ConfigError::Field(_))));
        assert!(matches!(of_definition(&json!({}), "green", &dirs), Err(ConfigError::NoFile(_))));
        assert!(matches!(of_definition(&json!({}), "red", &["/nowhere".into()]), Err(ConfigError::NoFile(_))));
    }

    #[test]
    fn what_a_plugin_is_told() {
        let selection = Selection {
            mac: Some("02:00:00:00:00:01".to_owned()),
            ips: vec!["10.0.0.5/24".to_owned()],
            cni_args: json!({"vendor": true}).as_object().cloned().unwrap_or_default(),
            ..Selection::default()
        };
        let told = |text: &str, index: usize| read(text, "red").expect("read").told(index, &selection, None);
        // Nobody declares anything: by arguments.
        let plain = told(r#"{"type": "bridge", "args": {"cni": {"own": 1}}}"#, 0);
        assert_eq!(
            plain["args"]["cni"],
            json!({"own": 1, "vendor": true, "mac": "02:00:00:00:00:01", "ips": ["10.0.0.5/24"]})
        );
        assert_eq!(plain.get("runtimeConfig"), None);
        // Who declares it is told so, and nobody else is told.
        let list = r#"{"plugins": [{"type": "bridge", "capabilities": {"ips": true}},
            {"type": "tuning", "capabilities": {"mac": true}}]}"#;
        assert_eq!(told(list, 0)["runtimeConfig"], json!({"ips": ["10.0.0.5/24"]}));
        assert_eq!(told(list, 1)["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}));
        assert_eq!(told(list, 0)["args"]["cni"], json!({"vendor": true}));
        // What only those can do that declare it.
        let mut limited = Selection::default();
        limited.capabilities.insert("bandwidth".to_owned(), json!({"ingressRate": 1}));
        let chain = r#"{"plugins": [{"type": "bridge"}, {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}"#;
        let chain = read(chain, "red").expect("read");
        assert_eq!((chain.lacks(&limited), chain.lacks(&selection)), (None, None));
        assert_eq!(read(list, "red").expect("read").lacks(&limited), Some("bandwidth"));
        assert_eq!(chain.told(0, &limited, None).get("runtimeConfig"), None);
        assert_eq!(chain.told(1, &limited, None)["runtimeConfig"], json!({"bandwidth": {"ingressRate": 1}}));
        // By the environment, too, since some look nowhere else.
        let arguments = |text: &str, runtimes: &str, selection: &Selection| {
            read(text, "red").expect("read").arguments(runtimes, selection)
        };
        let (macvlan, none) = (r#"{"type": "macvlan"}"#, Selection::default());
        assert_eq!(arguments(macvlan, "K=v", &selection), "K=v;IgnoreUnknown=true;MAC=02:00:00:00:00:01");
        assert_eq!(arguments(macvlan, "", &selection), "IgnoreUnknown=true;MAC=02:00:00:00:00:01");
        assert_eq!(arguments(list, "K=v", &selection), "K=v");
        assert_eq!(arguments(macvlan, "K=v", &none), "K=v");
        // What was made before it.
        let network = read(r#"{"type": "tuning", "cniVersion": "1.0.0"}"#, "red").expect("read");
        let after = network.told(0, &Selection::default(), Some(&json!({"ips": []})));
        assert_eq!(after, json!({"type": "tuning", "cniVersion": "1.0.0", "name": "red", "prevResult": {"ips": []}}));
    }
}
