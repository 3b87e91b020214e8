//! MessagePack, as far as the messages need it: integers, text, bytes, booleans, nil and arrays.

use rmp::{Marker, decode, encode};
use std::fmt;

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

pub(crate) type Result<T> = std::result::Result<T, Malformed>;

const FITS: &str = "a vector takes all that is written to it";

/// Writes one message: an array.
pub(crate) struct Writer<'a>(&'a mut Vec<u8>);

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self(out)
    }

    pub(crate) fn array(&mut self, length: usize) -> &mut Self {
        let length = u32::try_from(length).expect("no array is that long");
        encode::write_array_len(self.0, length).expect(FITS);
        self
    }

    pub(crate) fn uint(&mut self, value: u64) -> &mut Self {
        encode::write_uint(self.0, value).expect(FITS);
        self
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        encode::write_bool(self.0, value).expect(FITS);
        self
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        encode::write_bin(self.0, value).expect(FITS);
        self
    }

    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        encode::write_str(self.0, value).expect(FITS);
        self
    }

    /// A value that may be missing: nil then.
    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) -> &mut Self {
        match value {
            Some(value) => write(self, value),
            None => encode::write_nil(self.0).expect(FITS),
        }
        self
    }
}

/// Reads one message. Whatever the bytes are, it reads no further and allocates no more than they
/// are long.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The unread bytes.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn end(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes after its end")) }
    }

    pub(crate) fn array(&mut self) -> Result<usize> {
        let length = decode::read_array_len(&mut self.0).map_err(|_| Malformed("an array was expected"))?;
        // Each element is a byte at least.
        match usize::try_from(length) {
            Ok(length) if length <= self.0.len() => Ok(length),
            _ => Err(Malformed("an array is longer than the message")),
        }
    }

    /// An array of just so many elements.
    pub(crate) fn tuple(&mut self, length: usize) -> Result<()> {
        if self.array()? == length { Ok(()) } else { Err(Malformed("a wrong number of elements")) }
    }

    pub(crate) fn uint(&mut self) -> Result<u64> {
        decode::read_int(&mut self.0).map_err(|_| Malformed("a number was expected"))
    }

    pub(crate) fn bool(&mut self) -> Result<bool> {
        decode::read_bool(&mut self.0).map_err(|_| Malformed("a boolean was expected"))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = decode::read_bin_len(&mut self.0).map_err(|_| Malformed("bytes were expected"))?;
        let length = usize::try_from(length).map_err(|_| Malformed("bytes are longer than the message"))?;
        let (value, rest) =
            self.0.split_at_checked(length).ok_or(Malformed("bytes are longer than the message"))?;
        self.0 = rest;
        Ok(value)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        let (value, rest) =
            decode::read_str_from_slice(self.0).map_err(|_| Malformed("text was expected"))?;
        self.0 = rest;
        Ok(value)
    }

    pub(crate) fn secret(&mut self) -> Result<crate::v2::Secret> {
        self.bytes()?.try_into().map_err(|_| Malformed("16 bytes were expected"))
    }

    pub(crate) fn code(&mut self) -> Result<u32> {
        Ok(u32::try_from(self.uint()?).unwrap_or(u32::MAX))
    }

    /// An array of as many elements as it says. Grown as it is read: it may say anything.
    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        (0..self.array()?).map(|_| read(self)).collect()
    }

    /// Passes over values of whatever kind, without recursion.
    pub(crate) fn skip(&mut self, values: usize) -> Result<()> {
        let mut left = values;
        while left > 0 {
            left -= 1;
            let &first = self.0.first().ok_or(Malformed("too few elements"))?;
            match Marker::from_u8(first) {
                Marker::Null | Marker::True | Marker::False => self.0 = &self.0[1..],
                Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => left += self.array()?,
                Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => _ = self.text()?,
                Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => _ = self.bytes()?,
                _ => _ = self.uint()?,
            }
        }
        Ok(())
    }

    /// A value, or nil.
    pub(crate) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        match self.0.split_first() {
            Some((&first, rest)) if Marker::from_u8(first) == Marker::Null => {
                self.0 = rest;
                Ok(None)
            }
            _ => read(self).map(Some),
        }
    }
}
