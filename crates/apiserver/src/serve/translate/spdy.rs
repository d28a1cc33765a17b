//! As much of SPDY/3.1 as a client needs that opens a few streams and looks at no headers.
//!
//! Frames have eight bytes of head: what it is, flags, and how long the rest is. Servers of Kubernetes (`moby/spdystream`) use
//! neither flow control nor settings. Headers are compressed, one zlib stream for all of a connection; ours are written as
//! blocks that are stored, without the dictionary, which every decompressor takes, and those of the other side say nothing
//! that we would need.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// What a frame is, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// So many bytes of a stream follow, to be read by [`piece`].
    Data { stream: u32, size: usize, ends: bool },
    /// The other side has opened its half of a stream.
    Reply { stream: u32, ends: bool },
    /// A stream is over, both ways.
    Reset { stream: u32 },
    /// To be sent back, if its number is the other side's.
    Ping { id: u32 },
    /// Anything else.
    Other,
}

const FIN: u8 = 1;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
/// How much of a frame that is not data is looked at.
const LOOK: usize = 8;
/// The most that is read at a time.
const PIECE: usize = 32 << 10;

/// Opens a stream. `first` is whether it is the first of its connection.
pub(super) fn open(stream: u32, first: bool, headers: &[(&str, &str)]) -> Vec<u8> {
    let block = stored(first, &pairs(headers));
    let mut payload = Vec::with_capacity(10 + block.len());
    payload.extend(stream.to_be_bytes());
    // No stream that it belongs to, the highest priority.
    payload.extend([0; 6]);
    payload.extend(block);
    control(SYN_STREAM, &payload)
}

/// Data of a stream, and whether it is its last. A frame holds less than 16 MiB.
pub(super) fn data(stream: u32, bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut frame = Vec::with_capacity(8 + bytes.len());
    frame.extend(stream.to_be_bytes());
    frame.extend(sized(if ends { FIN } else { 0 }, bytes.len()));
    frame.extend_from_slice(bytes);
    frame
}

/// The answer to a ping.
pub(super) fn ping(id: u32) -> Vec<u8> {
    control(PING, &id.to_be_bytes())
}

fn control(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(8 + payload.len());
    frame.extend((0x8003_u16).to_be_bytes());
    frame.extend(kind.to_be_bytes());
    frame.extend(sized(0, payload.len()));
    frame.extend_from_slice(payload);
    frame
}

/// Flags and a length of three bytes.
fn sized(flags: u8, length: usize) -> [u8; 4] {
    let [_, a, b, c] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [flags, a, b, c]
}

/// Names and values before they are compressed.
fn pairs(headers: &[(&str, &str)]) -> Vec<u8> {
    let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    let mut out = number(headers.len()).to_vec();
    for (name, value) in headers {
        for text in [name, value] {
            out.extend(number(text.len()));
            out.extend(text.as_bytes());
        }
    }
    out
}

/// The same as zlib has them: at the begin of a connection its two bytes of head, then a stored block, and an empty one, which
/// makes the reader give out what it has.
fn stored(first: bool, bytes: &[u8]) -> Vec<u8> {
    let mut out = if first { vec![0x78, 0x01] } else { Vec::new() };
    for block in [bytes, &[]] {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        out.push(0);
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend_from_slice(block);
    }
    out
}

/// The next frame; none at the end of the connection. Of data only the head is read.
pub(super) async fn next(connection: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Frame>> {
    let mut head = [0; 8];
    if connection.read(&mut head[..1]).await? == 0 {
        return Ok(None);
    }
    connection.read_exact(&mut head[1..]).await?;
    let [a, b, c, d, flags, rest @ ..] = head;
    let size = usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
    let ends = flags & FIN != 0;
    if a & 0x80 == 0 {
        return Ok(Some(Frame::Data { stream: u32::from_be_bytes([a, b, c, d]), size, ends }));
    }
    let mut look = [0; LOOK];
    let looked = size.min(LOOK);
    connection.read_exact(&mut look[..looked]).await?;
    let mut left = (size - looked) as u64;
    left -= tokio::io::copy(&mut connection.take(left), &mut tokio::io::sink()).await?;
    if left > 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let number = u32::from_be_bytes([look[0], look[1], look[2], look[3]]);
    let stream = number & 0x7fff_ffff;
    Ok(Some(match u16::from_be_bytes([c, d]) {
        SYN_REPLY => Frame::Reply { stream, ends },
        RST_STREAM => Frame::Reset { stream },
        PING => Frame::Ping { id: number },
        _ => Frame::Other,
    }))
}

/// The next piece of a frame's data, of which `left` bytes are to come; it is appended.
pub(super) async fn piece(
    connection: &mut (impl AsyncRead + Unpin),
    left: &mut usize,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let count = (*left).min(PIECE);
    let start = out.len();
    out.resize(start + count, 0);
    connection.read_exact(&mut out[start..]).await?;
    *left -= count;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn headers_are_one_zlib_stream() {
        let blocks = [open(1, true, &[("streamtype", "error")]), open(3, false, &[("streamtype", "stdin"), ("a", "")])];
        let mut zlib = Vec::new();
        for (frame, stream) in blocks.iter().zip([1_u32, 3]) {
            assert_eq!(frame[..5], [0x80, 3, 0, 1, 0]);
            assert_eq!(usize::from(frame[7]), frame.len() - 8, "its length");
            assert_eq!(frame[8..12], stream.to_be_bytes());
            zlib.extend_from_slice(&frame[18..]);
        }
        let mut text = vec![0; 4 + 8 + 15 + 4 + 16 + 15 + 1];
        flate2::read::ZlibDecoder::new(&zlib[..]).read_exact(&mut text).expect("decompresses");
        let want = b"\0\0\0\x01\0\0\0\nstreamtype\0\0\0\x05error\0\0\0\x02\0\0\0\nstreamtype\0\0\0\x05stdin\0\0\0\x01a\0\0\0\0";
        assert_eq!(text, want);
    }

    #[tokio::test]
    async fn frames_are_read() {
        let mut bytes = data(5, b"hello", true);
        bytes.extend(ping(2));
        bytes.extend(control(SYN_REPLY, &[0, 0, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
        bytes.extend(control(RST_STREAM, &[0, 0, 0, 7, 0, 0, 0, 5]));
        bytes.extend(control(7, &[0, 0]));
        let mut source = bytes.as_slice();
        assert_eq!(next(&mut source).await.expect("reads"), Some(Frame::Data { stream: 5, size: 5, ends: true }));
        let (mut left, mut out) = (5, vec![1]);
        piece(&mut source, &mut left, &mut out).await.expect("reads");
        assert_eq!((left, out.as_slice()), (0, &b"\x01hello"[..]));
        for want in
            [Frame::Ping { id: 2 }, Frame::Reply { stream: 5, ends: false }, Frame::Reset { stream: 7 }, Frame::Other]
        {
            assert_eq!(next(&mut source).await.expect("reads"), Some(want));
        }
        assert_eq!(next(&mut source).await.expect("reads"), None);
        // Cut off within a frame.
        for end in [3, 12] {
            let cut = control(RST_STREAM, &[0; 8]);
            assert!(next(&mut &cut[..end]).await.is_err(), "{end}");
        }
    }
}
