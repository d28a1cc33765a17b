//! Field numbers of Kubernetes' messages, from `data/protobuf-fields.txt`
//! (made by the example `protobuf_fields`).

use std::collections::BTreeMap;
use std::sync::LazyLock;

static TABLE: &str = include_str!("../../data/protobuf-fields.txt");

/// A message's fields by number.
pub(super) type Numbers = BTreeMap<u32, Field>;

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// The property of this name, in lower case and without separators.
    Named(&'static str),
    /// A message of this type of this package, whose fields JSON has in its parent.
    Inline { package: &'static str, type_: &'static str },
}

/// Lines of the table by type, in lower case: what writes the table spells some names its own way.
static LINES: LazyLock<BTreeMap<String, Numbers>> = LazyLock::new(|| {
    TABLE
        .lines()
        .filter_map(|line| {
            let (name, fields) = line.split_once(' ').unwrap_or((line, ""));
            let package = name.rsplit_once('.')?.0;
            let fields = fields.split(' ').filter_map(|field| {
                let digits = field.find(|c: char| !c.is_ascii_digit())?;
                let number = field[..digits].parse().ok()?;
                let rest = &field[digits..];
                Some((
                    number,
                    match rest.strip_prefix('=') {
                        Some(type_) => Field::Inline { package, type_ },
                        None => Field::Named(rest),
                    },
                ))
            });
            Some((name.to_ascii_lowercase(), fields.collect()))
        })
        .collect()
});

/// The fields of a type, by its OpenAPI name.
pub(super) fn of(type_name: &str) -> Option<&'static Numbers> {
    LINES.get(&type_name.to_ascii_lowercase())
}
