//! The subject of what is signed, in DER.
//!
//! The library that makes certificates has room for one value of each kind in a subject, and a user may be in any number of
//! groups. So a certificate or request is made without, and is given its subject afterwards:
//!
//! ```text
//!   SEQUENCE { SEQUENCE { what comes first …, subject, … }, algorithm, signature }
//!                                            └ another ─► signed once more
//! ```

use rcgen::SigningKey;
use x509_parser::asn1_rs::Oid;
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};

use super::RequestFacts;
use crate::authn::UID_ATTRIBUTE;
use crate::der::first;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;

/// What is signed, by where its subject stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signed {
    /// Behind version, number, algorithm, issuer and time.
    Certificate,
    /// Behind the version.
    #[cfg(test)]
    Request,
}

/// The subject that a certificate has for this request.
pub(super) fn of(facts: &RequestFacts) -> Vec<u8> {
    joined(std::slice::from_ref(facts))
}

/// One subject with the names of all.
pub(super) fn joined(all: &[RequestFacts]) -> Vec<u8> {
    tlv(SEQUENCE, &all.iter().flat_map(names).collect::<Vec<_>>().concat())
}

fn names(facts: &RequestFacts) -> Vec<Vec<u8>> {
    let attribute = |kind: &Oid<'_>, text: &str| {
        let pair = [tlv(OBJECT_IDENTIFIER, kind.as_bytes()), tlv(UTF8_STRING, text.as_bytes())].concat();
        tlv(SET, &tlv(SEQUENCE, &pair))
    };
    let groups = facts.organizations.iter().map(|group| attribute(&OID_X509_ORGANIZATION_NAME, group));
    let uids = facts.uids.iter().map(|uid| attribute(&UID_ATTRIBUTE, uid));
    let name = attribute(&OID_X509_COMMON_NAME, &facts.common_name);
    groups.chain(uids).chain([name]).collect()
}

/// The same certificate or request, in DER, with another subject.
///
/// # Errors
/// It is not of its form, or the key cannot sign.
pub(super) fn replaced(der: &[u8], signed: Signed, subject: &[u8], key: &impl SigningKey) -> Result<Vec<u8>, String> {
    let (before, behind, algorithm) = around(der, signed).ok_or("it is not of the form of what is signed")?;
    let content = tlv(SEQUENCE, &[before, subject, behind].concat());
    let signature = key.sign(&content).map_err(|error| error.to_string())?;
    // No bit of its last byte is unused.
    let signature = tlv(BIT_STRING, &[&[0_u8][..], &signature[..]].concat());
    Ok(tlv(SEQUENCE, &[&content[..], algorithm, &signature[..]].concat()))
}

/// What stands before the subject and behind it, and by which algorithm it is signed.
fn around(der: &[u8], signed: Signed) -> Option<(&[u8], &[u8], &[u8])> {
    let fields = first(first(der)?.content)?;
    let algorithm = first(fields.rest)?.whole;
    let place = match signed {
        Signed::Certificate => 5,
        #[cfg(test)]
        Signed::Request => 1,
    };
    let mut left = fields.content;
    for _ in 0..place {
        left = first(left)?.rest;
    }
    let before = fields.content.strip_suffix(left)?;
    Some((before, first(left)?.rest, algorithm))
}

/// A value: its tag, its length, and what it holds.
fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut value = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => value.push(short),
        _ => {
            let digits: Vec<u8> = content.len().to_be_bytes().into_iter().skip_while(|digit| *digit == 0).collect();
            value.push(0x80 | digits.len() as u8);
            value.extend(digits);
        }
    }
    value.extend_from_slice(content);
    value
}
