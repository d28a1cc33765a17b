//! Values in DER whose bytes are wanted as they stand, which those who read certificates and keys do not keep.

use x509_parser::asn1_rs::{Any, FromDer as _};

/// A value among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value<'a> {
    /// All of it.
    pub whole: &'a [u8],
    /// What it holds.
    pub content: &'a [u8],
    /// What follows it.
    pub rest: &'a [u8],
}

/// The first of some values; none where there is no whole one.
pub(crate) fn first(der: &[u8]) -> Option<Value<'_>> {
    let (rest, any) = Any::from_der(der).ok()?;
    let whole = der.get(..der.len() - rest.len())?;
    Some(Value { whole, content: any.data, rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(der: &[u8]) -> Option<(&[u8], &[u8])> {
        first(der).map(|value| (value.content, value.rest))
    }

    #[test]
    fn values_have_a_length() {
        assert_eq!(parts(&[0x30, 2, 1, 2, 3]), Some((&[1, 2][..], &[3][..])));
        assert_eq!(parts(&[0x30, 0x81, 1, 7]), Some((&[7][..], &[][..])));
        assert_eq!(first(&[0xa0, 1, 7, 8]).map(|value| value.whole), Some(&[0xa0, 1, 7][..]));
        let long: Vec<u8> = [&[0x30, 0x82, 1, 0][..], &[9; 256]].concat();
        assert_eq!(parts(&long), Some((&[9; 256][..], &[][..])));
        for cut in [
            &[][..],
            &[0x30],
            &[0x30, 2, 1],
            &[0x30, 0x80, 0, 0],
            &[0x30, 0x82, 1],
            &[0x30, 0x89, 255, 255, 255, 255, 255, 255, 255, 255, 255],
        ] {
            assert_eq!(parts(cut), None, "{cut:?}");
        }
    }
}
