//! The records that logs and snapshots are made of.
//!
//! ```text
//!   magic 4 │ length 4 │ synced 8 │ crc 4 │ payload: kind 1, fields …      (little endian)
//! ```
//!
//! The checksum covers length, `synced` and payload. `synced` says how much of the file was durable
//! when the record was written. That tells a tail torn by a crash from damage: behind a bad record
//! at X, a good one with `synced` greater than X proves that X had been whole on the disk once.
//! The magic begins with a byte that no UTF-8 text contains, so no JSON value looks like a record.

use std::sync::Arc;

use bytes::Bytes;

use crate::mem::{Change, event_key};
use crate::model::{Entry, Event, Revision};

const MAGIC: [u8; 4] = *b"\xffCRK";
pub(super) const HEADER_BYTES: usize = 20;

/// The version of the format. A file with a greater one is refused.
pub(super) const FORMAT: u32 = 1;

/// One record's meaning.
pub(super) enum Record {
    /// The first of each file.
    Head(Head),
    /// One transaction's changes.
    Txn { revision: Revision, changes: Vec<Change> },
    /// History up to and including this was forgotten by request.
    Compacted(Revision),
    /// The store was closed in order; everything before is durable.
    Closed,
    /// A snapshot's entry.
    Entry(Entry),
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) format: u32,
    pub(super) generation: u64,
    /// The state's revision where a log begins, or in a snapshot.
    pub(super) revision: Revision,
    /// How many entries follow; 0 in a log.
    pub(super) entries: u64,
}

/// A record that was written to a file, with how much of the file was durable then.
pub(super) struct Framed {
    pub(super) record: Record,
    /// Its length in the file, header included.
    pub(super) bytes: usize,
    /// How much of the file was durable when it was written: it begins there, or is of the batch that does.
    pub(super) synced: u64,
}

const KIND_HEAD: u8 = 0;
const KIND_TXN: u8 = 1;
const KIND_COMPACTED: u8 = 2;
const KIND_CLOSED: u8 = 3;
const KIND_ENTRY: u8 = 4;

pub(super) fn put_head(out: &mut Vec<u8>, head: &Head) {
    frame(out, 0, |out| {
        out.push(KIND_HEAD);
        out.extend(head.format.to_le_bytes());
        out.extend(head.generation.to_le_bytes());
        out.extend(head.revision.0.to_le_bytes());
        out.extend(head.entries.to_le_bytes());
    });
}

pub(super) fn put_txn(out: &mut Vec<u8>, synced: u64, revision: Revision, events: &[Event]) {
    frame(out, synced, |out| {
        out.push(KIND_TXN);
        out.extend(revision.0.to_le_bytes());
        for event in events {
            put_bytes(out, event_key(event).as_bytes());
            match &event.current {
                Some(entry) => {
                    out.push(1);
                    put_bytes(out, &entry.value());
                }
                None => out.push(0),
            }
        }
    });
}

pub(super) fn put_compacted(out: &mut Vec<u8>, synced: u64, revision: Revision) {
    frame(out, synced, |out| {
        out.push(KIND_COMPACTED);
        out.extend(revision.0.to_le_bytes());
    });
}

pub(super) fn put_closed(out: &mut Vec<u8>, synced: u64) {
    frame(out, synced, |out| out.push(KIND_CLOSED));
}

pub(super) fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    frame(out, 0, |out| {
        out.push(KIND_ENTRY);
        out.extend(entry.create_revision.0.to_le_bytes());
        out.extend(entry.mod_revision.0.to_le_bytes());
        put_bytes(out, entry.key.as_bytes());
        put_bytes(out, &entry.value());
    });
}

/// A length as it is written. Transactions are bounded long before this (see the caller), so that
/// the highest value stands for nothing that is ever written.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(length(bytes.len()));
    out.extend(bytes);
}

fn frame(out: &mut Vec<u8>, synced: u64, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(MAGIC);
    out.extend([0; HEADER_BYTES - MAGIC.len()]);
    put(out);
    let len = length(out.len() - start - HEADER_BYTES);
    let synced = synced.to_le_bytes();
    let crc = checksum(len, synced, &out[start + HEADER_BYTES..]);
    out[start + 4..start + 8].copy_from_slice(&len);
    out[start + 8..start + 16].copy_from_slice(&synced);
    out[start + 16..start + 20].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(len: [u8; 4], synced: [u8; 8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&len);
    hasher.update(&synced);
    hasher.update(payload);
    hasher.finalize()
}

/// The header's fields, if it begins like one.
pub(super) struct Header {
    pub(super) payload_bytes: usize,
    len: [u8; 4],
    synced: [u8; 8],
    crc: u32,
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields { rest: bytes };
        if fields.array::<4>()? != MAGIC {
            return None;
        }
        let len = fields.array::<4>()?;
        let synced = fields.array::<8>()?;
        let crc = fields.u32()?;
        let payload_bytes = usize::try_from(u32::from_le_bytes(len)).ok()?;
        Some(Self { payload_bytes, len, synced, crc })
    }

    /// The record, if it is whole.
    pub(super) fn decode(&self, payload: &[u8]) -> Option<Record> {
        if self.crc != checksum(self.len, self.synced, payload) {
            return None;
        }
        decode(&mut Fields { rest: payload })
    }
}

/// The record that begins at `at`, if it is whole.
pub(super) fn read(file: &[u8], at: usize) -> Option<Framed> {
    let (header, payload) = split(file, at)?;
    let (bytes, synced) = (HEADER_BYTES + header.payload_bytes, u64::from_le_bytes(header.synced));
    Some(Framed { record: header.decode(payload)?, bytes, synced })
}

fn split(file: &[u8], at: usize) -> Option<(Header, &[u8])> {
    let rest = file.get(at..)?;
    let header = Header::parse(rest)?;
    let payload = rest.get(HEADER_BYTES..)?.get(..header.payload_bytes)?;
    Some((header, payload))
}

/// Whether something behind `at` proves that the file was durable beyond `at` once.
pub(super) fn was_durable(file: &[u8], at: usize) -> bool {
    let behind = at + 1..file.len().saturating_sub(HEADER_BYTES - 1);
    behind.filter(|start| file[*start..].starts_with(&MAGIC)).any(|start| {
        split(file, start).is_some_and(|(header, payload)| {
            u64::from_le_bytes(header.synced) > at as u64 && header.decode(payload).is_some()
        })
    })
}

/// Whether the file ends before what begins at `at` does, or nothing of that has come to the disk: it was never written to its
/// end, and so never acknowledged.
pub(super) fn was_cut_short(file: &[u8], at: usize) -> bool {
    let rest = file.get(at..).unwrap_or_default();
    if rest.len() < HEADER_BYTES {
        return true;
    }
    match Header::parse(rest) {
        Some(header) => rest.len() - HEADER_BYTES < header.payload_bytes,
        // A file system may have made the file longer before it had the bytes.
        None => rest.iter().all(|byte| *byte == 0),
    }
}

fn decode(fields: &mut Fields<'_>) -> Option<Record> {
    let record = match fields.u8()? {
        KIND_HEAD => Record::Head(Head {
            format: fields.u32()?,
            generation: fields.u64()?,
            revision: Revision(fields.u64()?),
            entries: fields.u64()?,
        }),
        KIND_TXN => {
            let revision = Revision(fields.u64()?);
            let mut changes = Vec::new();
            while !fields.rest.is_empty() {
                let key = fields.key()?;
                let value = match fields.u8()? {
                    0 => None,
                    1 => Some(fields.value()?),
                    _ => return None,
                };
                changes.push((key, value));
            }
            Record::Txn { revision, changes }
        }
        KIND_COMPACTED => Record::Compacted(Revision(fields.u64()?)),
        KIND_CLOSED => Record::Closed,
        KIND_ENTRY => {
            let create_revision = Revision(fields.u64()?);
            let mod_revision = Revision(fields.u64()?);
            let key = fields.key()?;
            let value = fields.value()?;
            Record::Entry(Entry::new(key, value, create_revision, mod_revision))
        }
        _ => return None,
    };
    fields.rest.is_empty().then_some(record)
}

struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        self.take(len)
    }

    fn key(&mut self) -> Option<Arc<str>> {
        std::str::from_utf8(self.bytes()?).ok().map(Arc::from)
    }

    /// Copied, so that a value does not keep the whole file in memory.
    fn value(&mut self) -> Option<Bytes> {
        self.bytes().map(Bytes::copy_from_slice)
    }
}
