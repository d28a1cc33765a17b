//! Which plugins there are and for which images: `CredentialProviderConfig` of `kubelet.config.k8s.io`, strictly decoded
//! (<https://kubernetes.io/docs/reference/config-api/kubelet-config.v1/>).

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_types::duration::parse_unsigned;
use serde::Deserialize;
use serde_json::Value;

use super::docker::is_for;
use crate::configuration::document;

/// The version in which plugins are asked, and those before it, which differ in nothing that is used here.
pub const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const VERSIONS: [&str; 3] =
    [V1, "credentialprovider.kubelet.k8s.io/v1beta1", "credentialprovider.kubelet.k8s.io/v1alpha1"];
const FILE_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];

/// A plugin.
#[derive(Clone, PartialEq, Eq)]
pub struct Provider {
    /// Its name, which is its program's.
    pub name: String,
    /// For which images it is.
    pub match_images: Vec<String>,
    /// For how long its answers are good where they do not say.
    pub default_lasts: Duration,
    /// In which version it is asked.
    pub api_version: String,
    /// What its program is called with.
    pub args: Vec<String>,
    /// Variables besides the kubelet's own.
    pub env: Vec<(String, String)>,
}

/// Arguments and variables may be secrets.
impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Provider {
    /// Whether it is for a repository, which is given in full.
    #[must_use]
    pub fn is_for(&self, repository: &str) -> bool {
        self.match_images.iter().any(|pattern| is_for(pattern, repository))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    providers: Option<Vec<Written>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Written {
    name: Option<String>,
    match_images: Option<Vec<String>>,
    default_cache_duration: Option<String>,
    api_version: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    token_attributes: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

/// Reads the files of a configuration, with their names: together they are one.
///
/// # Errors
/// What is wrong, and with which of them.
pub fn read(files: &[(String, Vec<u8>)]) -> Result<Vec<Provider>, String> {
    let (mut all, mut names) = (Vec::new(), BTreeSet::new());
    for (file, bytes) in files {
        for written in written(bytes).map_err(|why| format!("{file}: {why}"))? {
            let provider = written.checked().map_err(|why| format!("{file}: {why}"))?;
            if !names.insert(provider.name.clone()) {
                return Err(format!("{file}: there is another provider {:?}", provider.name));
            }
            all.push(provider);
        }
    }
    if all.is_empty() {
        return Err("there are no providers".into());
    }
    Ok(all)
}

fn written(bytes: &[u8]) -> Result<Vec<Written>, String> {
    let mut fields = document(bytes)?;
    let (version, kind) = (fields.remove("apiVersion"), fields.remove("kind"));
    let version = version.as_ref().and_then(Value::as_str).unwrap_or_default();
    if !FILE_VERSIONS.contains(&version) || kind != Some("CredentialProviderConfig".into()) {
        return Err("it is no CredentialProviderConfig of kubelet.config.k8s.io/v1".into());
    }
    let file: File = serde_json::from_value(Value::Object(fields)).map_err(|e| e.to_string())?;
    Ok(file.providers.unwrap_or_default())
}

/// Whether a text can be a pattern of images: a host, with or without a port and a path.
fn is_pattern(text: &str) -> bool {
    let host = text.split('/').next().unwrap_or_default();
    !host.is_empty() && !text.contains("://") && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

impl Written {
    fn checked(self) -> Result<Provider, String> {
        let name = self.name.unwrap_or_default();
        let bad = |why: &str| Err(format!("provider {name:?}: {why}"));
        // It is a file's, and nobody leads out of the directory by it.
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', ' ', '\0']) {
            return bad("its name is no file's");
        }
        let api_version = self.api_version.unwrap_or_default();
        if !VERSIONS.contains(&api_version.as_str()) {
            return bad(&format!("its apiVersion is none of {}", VERSIONS.join(", ")));
        }
        let match_images = self.match_images.unwrap_or_default();
        if match_images.is_empty() {
            return bad("it is for no images (matchImages)");
        }
        if let Some(pattern) = match_images.iter().find(|pattern| !is_pattern(pattern)) {
            return bad(&format!("{pattern:?} of matchImages is no registry, with or without a path"));
        }
        let Some(default_lasts) = self.default_cache_duration.as_deref().and_then(parse_unsigned) else {
            return bad("its defaultCacheDuration is no duration such as 1m30s");
        };
        if self.token_attributes.is_some() {
            return bad("tokenAttributes is not supported: here no plugin is handed a service account's token");
        }
        let env: Vec<(String, String)> = self.env.unwrap_or_default().into_iter().map(|v| (v.name, v.value)).collect();
        if env.iter().any(|(key, value)| key.is_empty() || key.contains(['=', '\0']) || value.contains('\0')) {
            return bad("a variable has no name, or one that none can have");
        }
        let args = self.args.unwrap_or_default();
        if args.iter().any(|arg| arg.contains('\0')) {
            return bad("an argument that none can be");
        }
        Ok(Provider { name, match_images, default_lasts, api_version, args, env })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";

    fn file(providers: &str) -> Vec<u8> {
        format!("{HEAD}providers: {providers}\n").into_bytes()
    }

    fn with(more: &str) -> String {
        format!("{{name: p, matchImages: [r.io], defaultCacheDuration: 10m, apiVersion: {V1}{more}}}")
    }

    #[test]
    fn a_configuration_is_read() {
        let more = ", args: [get, -v], env: [{name: A, value: b}]";
        let other =
            format!("[{{name: q, matchImages: ['*.io/x'], defaultCacheDuration: 0s, apiVersion: {V1}, args: null}}]");
        let files = [("a".to_owned(), file(&format!("[{}]", with(more)))), ("b".to_owned(), file(&other))];
        let all = read(&files).unwrap();
        assert_eq!(all.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["p", "q"]);
        let p = &all[0];
        assert_eq!((p.default_lasts, p.args.join(" ")), (Duration::from_secs(600), "get -v".to_owned()));
        assert_eq!(p.env, [("A".to_owned(), "b".to_owned())]);
        assert!(p.is_for("r.io/x") && !p.is_for("s.io/x") && all[1].is_for("s.io/x"));
        assert!(!format!("{p:?}").contains("get"), "{p:?}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (providers, why) in [
            ("[]".to_owned(), "there are no providers"),
            (format!("[{}, {}]", with(""), with("")), "there is another provider \"p\""),
            (format!("[{}]", with(", some: thing")), "some"),
            (format!("[{}]", with(", tokenAttributes: {serviceAccountTokenAudience: a}")), "tokenAttributes"),
            (format!("[{}]", with("").replace("name: p", "name: ../p")), "its name is no file's"),
            (format!("[{}]", with("").replace("name: p, ", "")), "its name is no file's"),
            (format!("[{}]", with("").replace("[r.io]", "[]")), "it is for no images"),
            (format!("[{}]", with("").replace("[r.io]", "['https://r.io']")), "no registry"),
            (format!("[{}]", with("").replace("[r.io]", "[/x]")), "no registry"),
            (format!("[{}]", with("").replace("10m", "-10m")), "defaultCacheDuration"),
            (format!("[{}]", with("").replace("defaultCacheDuration: 10m, ", "")), "defaultCacheDuration"),
            (format!("[{}]", with("").replace("io/v1", "io/v2")), "its apiVersion is none of"),
            (format!("[{}]", with(", env: [{name: A=B}]")), "a variable"),
        ] {
            let said = read(&[("f".to_owned(), file(&providers))]).expect_err(&providers);
            assert!(said.contains(why), "{providers}: {said}");
        }
        let other = file(&format!("[{}]", with("")));
        let other = String::from_utf8(other).unwrap().replace("CredentialProviderConfig", "KubeletConfiguration");
        assert!(read(&[("f".to_owned(), other.into_bytes())]).is_err_and(|why| why.starts_with("f: it is no")));
    }
}
