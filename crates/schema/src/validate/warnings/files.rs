//! Files of one volume where only one can be: at the same path, or one where another has a directory.

use std::fmt;

use serde_json::Value;

use super::{MAX_OTHERS, MAX_WARNINGS, list, text};

/// What a volume's files are from: the field, what it is called, and the field with its name.
const WHOLE: [(&str, &str, &str); 3] =
    [("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"), ("downwardAPI", "DownwardAPI", "")];
/// The same in a projected volume, where the first name that is given counts.
const PROJECTED: [(&str, &str, [&str; 2]); 5] = [
    ("configMap", "ConfigMap", ["name", ""]),
    ("secret", "Secret", ["name", ""]),
    ("downwardAPI", "DownwardAPI", ["", ""]),
    ("serviceAccountToken", "ServiceAccountToken", ["", ""]),
    ("clusterTrustBundle", "ClusterTrustBundle", ["name", "signerName"]),
];
const OF_CERTIFICATES: [(&str, &str); 3] = [
    ("certificateChainPath", "PodCertificate chain"),
    ("keyPath", "PodCertificate key"),
    ("credentialBundlePath", "PodCertificate credential bundle"),
];

/// What files are from: what it is called, and its name.
#[derive(Clone, Copy)]
struct Source<'a>(&'static str, &'a str);

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source(kind, "") => f.write_str(kind),
            Source(kind, name) => write!(f, "{kind} \"{name}\""),
        }
    }
}

struct File<'a> {
    path: &'a str,
    from: Source<'a>,
}

impl<'a> File<'a> {
    fn new(path: &'a str, from: Source<'a>) -> Self {
        File { path: path.trim_end_matches('/'), from }
    }

    /// Whether it is at the path of the other, or below.
    fn is_within(&self, other: &File<'_>) -> bool {
        self.path.strip_prefix(other.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// What to say about the volumes of a pod's spec.
pub(super) fn of_volumes(spec: &Value, warnings: &mut Vec<String>) {
    for volume in list(spec, "volumes") {
        let name = text(volume, "name");
        for (field, kind, named) in WHOLE {
            let source = &volume[field];
            let from = Source(kind, text(source, named));
            let files: Vec<File<'_>> = listed(source, from).collect();
            let room = MAX_WARNINGS.saturating_sub(warnings.len());
            warnings.extend(overlapping(&files).take(room).map(|(file, other)| {
                let (path, taken) = (file.path, other.path);
                format!("volume \"{name}\" ({from}): overlapping paths: \"{path}\" with \"{taken}\"")
            }));
        }
        let files: Vec<File<'_>> = list(&volume["projected"], "sources").iter().flat_map(projected).collect();
        let room = MAX_WARNINGS.saturating_sub(warnings.len());
        warnings.extend(overlapping(&files).take(room).map(|(file, other)| {
            format!(
                "volume \"{name}\" (Projected): overlapping paths: \"{}\" ({}) with \"{}\" ({})",
                file.path, file.from, other.path, other.from
            )
        }));
    }
}

fn listed<'a>(source: &'a Value, from: Source<'a>) -> impl Iterator<Item = File<'a>> {
    list(source, "items").iter().map(move |item| File::new(text(item, "path"), from))
}

fn projected(projection: &Value) -> Vec<File<'_>> {
    let mut files = Vec::new();
    for (field, kind, named) in PROJECTED {
        let source = &projection[field];
        let name = named.into_iter().map(|field| text(source, field)).find(|name| !name.is_empty());
        let from = Source(kind, name.unwrap_or_default());
        let own = File::new(text(source, "path"), from);
        files.extend(listed(source, from).chain([own]).filter(|file| !file.path.is_empty()));
    }
    let certificate = &projection["podCertificate"];
    let named = OF_CERTIFICATES.map(|(field, kind)| File::new(text(certificate, field), Source(kind, "")));
    files.extend(named.into_iter().filter(|file| !file.path.is_empty()));
    files
}

/// Each file that gets into the way of one before it, and that one.
fn overlapping<'f, 'a>(files: &'f [File<'a>]) -> impl Iterator<Item = (&'f File<'a>, &'f File<'a>)> {
    files.iter().enumerate().filter_map(move |(index, file)| {
        let mut before = files.iter().take(index.min(MAX_OTHERS));
        Some((file, before.find(|other| file.is_within(other) || other.is_within(file))?))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_more_is_written_than_is_told() {
        let items: Vec<Value> = vec![json!({"key": "k", "path": "a"}); 2 * MAX_WARNINGS];
        let map = json!({"name": "m", "items": items});
        let spec = json!({"volumes": [
            {"name": "v", "configMap": map},
            {"name": "w", "projected": {"sources": [{"configMap": map}]}},
        ]});
        let mut warnings = vec!["said before".to_owned()];
        of_volumes(&spec, &mut warnings);
        assert_eq!(warnings.len(), MAX_WARNINGS);
    }
}
