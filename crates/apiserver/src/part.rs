//! Parts of replies: bytes that are there, and stored objects, which are opened when they are sent.
//!
//! A list of thousands of objects takes no more memory than the store itself does, however slowly its reader takes it.

use std::sync::Arc;

use bytes::Bytes;
use carrack_store::Entry;

/// A part of a reply.
#[derive(Clone, Debug)]
pub enum Part {
    /// What is there.
    Bytes(Bytes),
    /// A stored object, and how it begins for who reads it, up to its revision.
    Object(Arc<Entry>, Bytes),
}

impl Part {
    /// How long it is, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Object(entry, front) => front.len() + entry.value_len() - entry.front_len(),
        }
    }

    /// Puts it behind what there is.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Part::Bytes(bytes) => out.extend_from_slice(bytes),
            Part::Object(entry, front) => {
                let at = out.len();
                entry.append_to(out);
                // Usually it is stored as it is read.
                if !out[at..].starts_with(front) {
                    out.splice(at..at + entry.front_len(), front.iter().copied());
                }
            }
        }
    }
}

impl From<Bytes> for Part {
    fn from(bytes: Bytes) -> Self {
        Part::Bytes(bytes)
    }
}

/// All parts in one piece.
#[must_use]
pub fn joined(parts: &[Part]) -> Bytes {
    match parts {
        [Part::Bytes(one)] => return one.clone(),
        [Part::Object(entry, front)] => {
            let value = entry.value();
            if value.starts_with(front) {
                return value;
            }
        }
        _ => {}
    }
    let mut all = Vec::with_capacity(size_bytes(parts));
    parts.iter().for_each(|part| part.append_to(&mut all));
    all.into()
}

/// How long the parts are together, in bytes.
#[must_use]
pub fn size_bytes(parts: &[Part]) -> usize {
    parts.iter().map(Part::size_bytes).sum()
}

/// The parts in pieces of about a size.
pub(crate) struct Pieces {
    parts: std::vec::IntoIter<Part>,
    /// How long what is left is, in bytes.
    left: u64,
}

/// Pieces are longer than this by less than a part: as much as is worth a write, and little enough to have for each reader.
const PIECE_BYTES: usize = 64 * 1024;

impl Pieces {
    pub(crate) fn new(parts: Vec<Part>) -> Self {
        Self { left: size_bytes(&parts) as u64, parts: parts.into_iter() }
    }

    /// How long what is left is, in bytes.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.left
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let first = self.parts.next()?;
        let piece = match first {
            // What is one piece already is sent as it is.
            Part::Bytes(bytes) if bytes.len() >= PIECE_BYTES || self.parts.len() == 0 => bytes,
            first => {
                let left = usize::try_from(self.left).unwrap_or(usize::MAX);
                let mut piece = Vec::with_capacity(left.min(PIECE_BYTES + PIECE_BYTES / 4));
                first.append_to(&mut piece);
                while piece.len() < PIECE_BYTES
                    && let Some(part) = self.parts.next()
                {
                    part.append_to(&mut piece);
                }
                piece.into()
            }
        };
        self.left = self.left.saturating_sub(piece.len() as u64);
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use carrack_store::Revision;

    use super::*;
    use crate::stored::front;

    #[test]
    fn parts_are_as_long_as_they_say() {
        let object = |number: usize| {
            let value = [&*front("v1", "Pod"), format!("7\",\"name\":\"pod-{number}\"}}}}").as_bytes()].concat();
            Arc::new(Entry::new("/pods".into(), value.into(), Revision(7), Revision(7)))
        };
        let fronts: [Bytes; 3] = [("v1", "Pod"), ("v2", "Pod"), ("example.com/v1alpha1", "PodOfAnotherKind")]
            .map(|(version, kind)| front(version, kind).into());
        let part = |number: usize| match number % 5 {
            0 => Bytes::from_static(b",").into(),
            1 => Bytes::from(vec![b'.'; number * 100]).into(),
            other => Part::Object(object(number), fronts[other - 2].clone()),
        };
        for count in [0, 1, 2, 3, 7, 1000] {
            let parts: Vec<Part> = (0..count).map(part).collect();
            let all = joined(&parts);
            assert_eq!(all.len(), size_bytes(&parts), "{count}");
            let mut pieces = Pieces::new(parts.clone());
            let mut sent = Vec::new();
            while let Some(piece) = pieces.next() {
                assert!(piece.len() < PIECE_BYTES + 100_100, "{count}");
                sent.extend_from_slice(&piece);
                assert_eq!(pieces.left_bytes() as usize, all.len() - sent.len(), "{count}");
            }
            assert!(sent == all, "{count}");
        }
        let text = |part: &Part| String::from_utf8(joined(std::slice::from_ref(part)).into()).expect("text");
        assert_eq!(
            text(&part(3)),
            "{\"apiVersion\":\"v2\",\"kind\":\"Pod\",\"metadata\":{\"resourceVersion\":\"7\",\"name\":\"pod-3\"}}"
        );
    }
}
