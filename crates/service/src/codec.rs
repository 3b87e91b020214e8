//! Numbers and bytes as records and snapshots have them: LEB128 numbers, bytes preceded by their
//! length.

use std::fmt;

/// Bytes that are no record, or records that are not those of one history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    why: String,
    later: bool,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Damaged {}

impl Damaged {
    /// For people.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), later: false }
    }

    pub(crate) fn later(what: impl fmt::Display) -> Self {
        Self { why: format!("{what} is of a later version of Lockkeeper: upgrade"), later: true }
    }

    /// Whether nothing is damaged: a later version wrote it, and can read it.
    pub fn is_later(&self) -> bool {
        self.later
    }
}

pub(crate) fn put_uint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(low_bits(value) | 0x80);
        value >>= 7;
    }
    out.push(low_bits(value));
}

fn low_bits(value: u64) -> u8 {
    u8::try_from(value & 0x7f).expect("seven bits")
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_uint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

/// Reads what the functions above have written. Never further than the bytes, and allocates
/// nothing.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Damaged> {
        let (&byte, rest) = self.0.split_first().ok_or_else(|| Damaged::new("bytes are missing"))?;
        self.0 = rest;
        Ok(byte)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Damaged> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damaged::new("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn uint(&mut self) -> Result<u64, Damaged> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damaged::new("a number has more than 64 bits"))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let length = usize::try_from(self.uint()?).unwrap_or(usize::MAX);
        let (bytes, rest) =
            self.0.split_at_checked(length).ok_or_else(|| Damaged::new("bytes are missing"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(|| Damaged::new("bytes are missing"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Damaged> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Damaged::new("text is not UTF-8"))
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Damaged>,
    ) -> Result<Option<T>, Damaged> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_and_longer_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), 1 << 63, u64::MAX] {
            let mut out = Vec::new();
            put_uint(&mut out, value);
            let mut reader = Reader(&out);
            assert_eq!(reader.uint(), Ok(value));
            assert!(reader.is_empty());
        }
        assert!(Reader(&[0xff; 10]).uint().is_err());
        assert!(Reader(&[0x80, 0x80]).uint().is_err());
        assert!(Reader(&[5, 1, 2]).bytes().is_err());
    }
}
