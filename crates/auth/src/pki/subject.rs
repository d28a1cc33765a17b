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

use super::RequestFacts;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;

/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.4.10
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
/// 1.3.6.1.4.1.57683.2, as [`crate::authn::UID_ATTRIBUTE`] has it.
const UID: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];

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
    let attribute = |kind: &[u8], text: &str| {
        let pair = [tlv(OBJECT_IDENTIFIER, kind), tlv(UTF8_STRING, text.as_bytes())].concat();
        tlv(SET, &tlv(SEQUENCE, &pair))
    };
    let mut names: Vec<Vec<u8>> = facts.organizations.iter().map(|group| attribute(ORGANIZATION, group)).collect();
    names.extend(facts.uids.iter().map(|uid| attribute(UID, uid)));
    names.push(attribute(COMMON_NAME, &facts.common_name));
    names
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
    let (_, whole, _) = first(der)?;
    let (_, fields, rest) = first(whole)?;
    let (algorithm, ..) = first(rest)?;
    let place = match signed {
        Signed::Certificate => 5,
        #[cfg(test)]
        Signed::Request => 1,
    };
    let mut left = fields;
    for _ in 0..place {
        left = first(left)?.2;
    }
    let before = fields.get(..fields.len() - left.len())?;
    Some((before, first(left)?.2, algorithm))
}

/// The first of some values, what it holds, and the others.
fn first(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let length = usize::from(*bytes.get(1)?);
    let (header, length) = match length.checked_sub(0x80) {
        None => (2, length),
        Some(count) if count <= 4 => {
            let digits = bytes.get(2..2 + count)?;
            (2 + count, digits.iter().fold(0_usize, |all, digit| (all << 8) | usize::from(*digit)))
        }
        Some(_) => return None,
    };
    let (whole, rest) = bytes.split_at_checked(header.checked_add(length)?)?;
    Some((whole, whole.get(header..)?, rest))
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
