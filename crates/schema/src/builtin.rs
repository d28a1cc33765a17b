//! The schemas of built-in types, loaded from the crate's data when they are first needed.
//!
//! The data is one archive with a member for each package of types (`io.k8s.api.core.v1`), each
//! member twice: its structure, and its descriptions, which only documents need. A package's
//! structure is inflated and parsed when one of its types is first asked for, and stays.
//! `cargo xtask schemas` writes the archive.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::{LazyLock, OnceLock};

use serde_json::{Map, Value};

use crate::schema::Schema;

/// Written by `cargo xtask schemas`. Layout: `u32` count of members, then for each a `u8` name
/// length, the name, and the `u32` lengths of its two deflated texts; then the texts in that order.
/// All numbers are little-endian.
static ARCHIVE: &[u8] = include_bytes!("../data/types.bin");

/// The type of what every object has as its `metadata`.
pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

struct Package {
    structure: &'static [u8],
    descriptions: &'static [u8],
    types: OnceLock<BTreeMap<Box<str>, Schema>>,
}

static PACKAGES: LazyLock<BTreeMap<&'static str, Package>> = LazyLock::new(|| read_index(ARCHIVE).unwrap_or_default());

fn take<'a>(data: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, tail) = data.split_at_checked(length)?;
    *data = tail;
    Some(head)
}

fn take_u32(data: &mut &[u8]) -> Option<usize> {
    let bytes: [u8; 4] = take(data, 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

fn read_index(mut data: &'static [u8]) -> Option<BTreeMap<&'static str, Package>> {
    let count = take_u32(&mut data)?;
    let mut index = Vec::new();
    for _ in 0..count {
        let length = usize::from(*take(&mut data, 1)?.first()?);
        let name = std::str::from_utf8(take(&mut data, length)?).ok()?;
        index.push((name, take_u32(&mut data)?, take_u32(&mut data)?));
    }
    index
        .into_iter()
        .map(|(name, structure, descriptions)| {
            let package = Package {
                structure: take(&mut data, structure)?,
                descriptions: take(&mut data, descriptions)?,
                types: OnceLock::new(),
            };
            Some((name, package))
        })
        .collect()
}

/// The archive is a part of the program and a test reads all of it, so that what cannot be read
/// here does not exist.
fn inflate(data: &[u8]) -> Map<String, Value> {
    let mut text = Vec::new();
    let read = flate2::read::DeflateDecoder::new(data).read_to_end(&mut text);
    match read.ok().and_then(|_| serde_json::from_slice(&text).ok()) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

impl Package {
    fn types(&self) -> &BTreeMap<Box<str>, Schema> {
        self.types.get_or_init(|| {
            let raw = inflate(self.structure);
            raw.iter()
                .filter_map(|(name, value)| Some((Box::from(name.as_str()), Schema::parse(value).ok()?)))
                .collect()
        })
    }
}

/// Splits `io.k8s.api.core.v1.Pod` into its package and its name in it.
fn split(type_name: &str) -> Option<(&str, &str)> {
    type_name.rsplit_once('.')
}

/// A built-in type by its OpenAPI name.
#[must_use]
pub fn schema(type_name: &str) -> Option<&'static Schema> {
    let (package, name) = split(type_name)?;
    PACKAGES.get(package)?.types().get(name)
}

/// All types of a package as JSON Schema with their descriptions, by full name; references are
/// `#/components/schemas/<full name>`. Made anew at each call.
pub(crate) fn raw_types(package: &str) -> BTreeMap<String, Value> {
    let Some(member) = PACKAGES.get(package) else { return BTreeMap::new() };
    let mut descriptions = inflate(member.descriptions);
    inflate(member.structure)
        .into_iter()
        .map(|(name, mut schema)| {
            if let Some(Value::Object(texts)) = descriptions.remove(&name) {
                describe(&mut schema, texts);
            }
            (format!("{package}.{name}"), schema)
        })
        .collect()
}

/// Puts descriptions back: the type's own under the empty name, the fields' under theirs.
fn describe(schema: &mut Value, texts: Map<String, Value>) {
    for (field, text) in texts {
        let place = if field.is_empty() {
            Some(&mut *schema)
        } else {
            schema.get_mut("properties").and_then(|p| p.get_mut(&field))
        };
        if let Some(Value::Object(place)) = place {
            place.insert("description".to_owned(), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every member can be read and every type in it is a schema.
    #[test]
    fn the_archive_is_whole() {
        assert!(PACKAGES.len() > 20);
        for (name, package) in PACKAGES.iter() {
            let structure = inflate(package.structure);
            assert!(!structure.is_empty(), "{name}");
            assert_eq!(package.types().len(), structure.len(), "{name}");
            assert_eq!(inflate(package.descriptions).len(), structure.len(), "{name}");
        }
    }
}
