//! The wire format of protobuf: fields by number.
//!
//! <https://protobuf.dev/programming-guides/encoding/>

/// A field's value as it is on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
pub(super) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// Reads a varint off the front.
pub(super) fn varint(rest: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, tail) = rest.split_first().ok_or("it ends within a number")?;
        *rest = tail;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number is too long".to_owned())
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        if count > self.rest.len() {
            return Err("it ends within a field".to_owned());
        }
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| "it ends within a field".to_owned())
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), String> {
        let key = varint(&mut self.rest)?;
        let number = u32::try_from(key >> 3).map_err(|_| "a field's number is too large")?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = varint(&mut self.rest)?;
                Value::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.array()?)),
            other => return Err(format!("wire type {other} is not known")),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            // Nothing after a fault makes sense.
            self.rest = &[];
        }
        Some(field)
    }
}
