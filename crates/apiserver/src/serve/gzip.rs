//! Large replies are compressed for clients that ask for it, while they are sent.
//!
//! Bound and level are upstream's (`k8s.io/apiserver/pkg/endpoints/handlers/responsewriters`).

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::part::{Part, Pieces};

/// Smaller ones are sent as they are: the time would be worth more than the bytes.
pub(super) const MIN_BYTES: u64 = 128 * 1024;
/// How much is put out at a time. Other requests get their turn in between.
const PIECE_BYTES: usize = 32 * 1024;
/// How much of the input is taken at a time.
const STEP_BYTES: usize = 64 * 1024;

/// Parts on their way through the compressor.
pub(crate) struct Zipped {
    pieces: Pieces,
    rest: Bytes,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Zipped {
    pub(super) fn new(parts: Vec<Part>) -> Self {
        Self {
            pieces: Pieces::new(parts),
            rest: Bytes::new(),
            encoder: Some(GzEncoder::new(Vec::with_capacity(PIECE_BYTES), Compression::fast())),
        }
    }

    /// The next piece of the reply; none at its end.
    pub(super) fn next(&mut self) -> std::io::Result<Option<Bytes>> {
        let Some(encoder) = &mut self.encoder else { return Ok(None) };
        while encoder.get_ref().len() < PIECE_BYTES {
            if self.rest.is_empty() {
                match self.pieces.next() {
                    Some(piece) => self.rest = piece,
                    None => {
                        let last = self.encoder.take().map(GzEncoder::finish).transpose()?;
                        return Ok(last.map(Bytes::from));
                    }
                }
            }
            let step = self.rest.split_to(self.rest.len().min(STEP_BYTES));
            encoder.write_all(&step)?;
        }
        Ok(Some(std::mem::replace(encoder.get_mut(), Vec::with_capacity(PIECE_BYTES)).into()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let part = |n: u32| Bytes::from(format!("{{\"n\":{}}}", n.wrapping_mul(2_654_435_761))).into();
        let parts: Vec<Part> = (0..60_000).map(part).collect();
        let whole = crate::part::joined(&parts);
        let mut zipped = Zipped::new(parts);
        let (mut out, mut pieces) = (Vec::new(), 0);
        while let Some(piece) = zipped.next().expect("memory takes everything") {
            out.extend_from_slice(&piece);
            pieces += 1;
        }
        let mut back = Vec::new();
        flate2::read::GzDecoder::new(&*out).read_to_end(&mut back).expect("it is gzip");
        assert!(pieces > 1 && out.len() < whole.len());
        assert_eq!(back, whole);
    }
}
