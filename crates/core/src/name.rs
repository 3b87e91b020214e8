//! A resource name (§2.1): the caller's code units, kept as bytes.
//!
//! JavaScript strings may hold lone surrogates, which `str` cannot; names are therefore WTF-8 bytes
//! and compare byte by byte. A name of up to 24 bytes needs no allocation.

use alloc::{borrow::Cow, boxed::Box, string::String, vec::Vec};
use core::{borrow::Borrow, cmp::Ordering, fmt, hash};

/// The name of a lock: any bytes, compared byte by byte. The empty name is a name like any other.
///
/// ```
/// use lockkeeper_core::Name;
/// let name = Name::from("orders/42");
/// assert_eq!(name.as_str(), Some("orders/42"));
/// assert_eq!(name.to_string(), "orders/42");
/// ```
#[derive(Clone)]
pub struct Name {
    /// The bytes, if they fit, zeros behind them.
    inline: InlineBytes,
    /// The bytes, if they do not. Boxed twice, so that the many short names are a word shorter. Not
    /// an enum: its tag would be one byte, and a name that was just made would be moved
    /// byte-shifted, which stalls.
    heap: Option<Box<Box<[u8]>>>,
    /// The number of inline bytes.
    len: u8,
}

const INLINE: usize = 24;

/// Bytes that are written and moved as machine words: a name is often read right after it was made.
#[derive(Clone)]
#[repr(align(8))]
struct InlineBytes([u8; INLINE]);

impl Name {
    /// The name that a JavaScript string spells: its UTF-16 code units, as WTF-8. A surrogate pair
    /// becomes one character, a lone surrogate is kept, so two strings are equal if and only if
    /// their names are.
    ///
    /// ```
    /// # use lockkeeper_core::Name;
    /// assert_eq!(Name::from_utf16("🔒".encode_utf16()), "🔒");
    /// assert_ne!(Name::from_utf16([0xD83D]), Name::from_utf16([0xD83C]));
    /// ```
    pub fn from_utf16(units: impl IntoIterator<Item = u16>) -> Self {
        let mut bytes = Vec::new();
        for unit in char::decode_utf16(units) {
            match unit {
                Ok(char) => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
                Err(lone) => bytes.extend_from_slice(&encode_surrogate(lone.unpaired_surrogate())),
            }
        }
        Self::from(&bytes[..])
    }

    /// The name as the UTF-16 code units of a JavaScript string. Bytes that are not WTF-8, which no
    /// string spells, become U+FFFD.
    ///
    /// ```
    /// # use lockkeeper_core::Name;
    /// let units = [0x61, 0xD83D, 0x62];
    /// assert_eq!(Name::from_utf16(units).to_utf16(), units);
    /// ```
    pub fn to_utf16(&self) -> Vec<u16> {
        let mut units = Vec::new();
        let mut rest = self.as_bytes();
        loop {
            let valid = match core::str::from_utf8(rest) {
                Ok(all) => all,
                Err(error) => core::str::from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default(),
            };
            units.extend(valid.encode_utf16());
            rest = &rest[valid.len()..];
            match decode_surrogate(rest) {
                _ if rest.is_empty() => return units,
                Some(lone) => {
                    units.push(lone);
                    rest = &rest[3..];
                }
                None => {
                    units.push(0xFFFD);
                    rest = &rest[1..];
                }
            }
        }
    }

    /// The bytes of the name.
    ///
    /// ```
    /// # use lockkeeper_core::Name;
    /// let lone_surrogate: &[u8] = &[0xED, 0xA0, 0x80];
    /// assert_eq!(Name::from(lone_surrogate).as_bytes(), lone_surrogate);
    /// assert_eq!(Name::from("ü").as_bytes(), [0xC3, 0xBC]);
    /// ```
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.heap {
            None => &self.inline.0[..usize::from(self.len)],
            Some(heap) => heap,
        }
    }

    /// Whether these are its bytes.
    #[inline(always)]
    pub(crate) fn is(&self, bytes: &[u8]) -> bool {
        match &self.heap {
            None => usize::from(self.len) == bytes.len() && same(&self.inline.0, bytes),
            Some(heap) => ***heap == *bytes,
        }
    }

    /// The name as text, or `None` if it holds a lone surrogate or is not UTF-8 for another reason.
    ///
    /// ```
    /// # use lockkeeper_core::Name;
    /// let lone_surrogate: &[u8] = &[0xED, 0xA0, 0x80];
    /// assert_eq!(Name::from(lone_surrogate).as_str(), None);
    /// assert_eq!(Name::from("ü").as_str(), Some("ü"));
    /// ```
    pub fn as_str(&self) -> Option<&str> {
        core::str::from_utf8(self.as_bytes()).ok()
    }

    /// The name as text with U+FFFD in place of what is not UTF-8: for people, not for comparing.
    ///
    /// ```
    /// # use lockkeeper_core::Name;
    /// let (one, other) = (Name::from(&b"\xFE.log"[..]), Name::from(&b"\xFF.log"[..]));
    /// assert_eq!(one.to_string_lossy(), "\u{FFFD}.log");
    /// assert_eq!(one.to_string_lossy(), other.to_string_lossy());
    /// assert_ne!(one, other);
    /// ```
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.as_bytes())
    }

    /// Whether the bytes are kept elsewhere, and so cost more than the name itself.
    pub(crate) fn is_long(&self) -> bool {
        self.heap.is_some()
    }

    /// Whether the name is reserved: §2.1 sets aside names that start with U+002D HYPHEN-MINUS.
    ///
    /// ```
    /// # use lockkeeper_core::Name;
    /// assert!(Name::from("-a").is_reserved());
    /// assert!(!Name::from("a-").is_reserved());
    /// assert!(!Name::from("").is_reserved());
    /// ```
    pub fn is_reserved(&self) -> bool {
        is_reserved(self.as_bytes())
    }
}

/// A surrogate as WTF-8 has it: in the three bytes that UTF-8 would use, were it a character.
fn encode_surrogate(unit: u16) -> [u8; 3] {
    let [high, low] = unit.to_be_bytes();
    [0xED, 0x80 | (high & 0x0F) << 2 | low >> 6, 0x80 | low & 0x3F]
}

fn decode_surrogate(bytes: &[u8]) -> Option<u16> {
    match *bytes {
        [0xED, second @ 0xA0..=0xBF, third @ 0x80..=0xBF, ..] => {
            Some(0xD000 | u16::from(second & 0x3F) << 6 | u16::from(third & 0x3F))
        }
        _ => None,
    }
}

pub(crate) fn is_reserved(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'-')
}

impl Default for Name {
    /// The empty name.
    fn default() -> Self {
        Self::from("")
    }
}

impl From<&[u8]> for Name {
    #[inline]
    fn from(name: &[u8]) -> Self {
        match u8::try_from(name.len()) {
            Ok(len) if name.len() <= INLINE => Self { inline: inline(name), heap: None, len },
            _ => Self { inline: inline(b""), heap: Some(Box::new(name.into())), len: 0 },
        }
    }
}

/// Copies up to 24 bytes, zeros behind them, without a loop or a call: each word is put together
/// from one or two reads of a fixed size.
#[inline]
fn inline(name: &[u8]) -> InlineBytes {
    let len = name.len();
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&name[at..at + 8]);
        u64::from_le_bytes(word)
    };
    // The last `len - at` bytes of the name, read as part of its last eight.
    let rest = |at: usize| word(len - 8) >> (8 * (at + 8 - len));
    let words = match len {
        17.. => [word(0), word(8), rest(16)],
        9.. => [word(0), rest(8), 0],
        8 => [word(0), 0, 0],
        _ => [name.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)), 0, 0],
    };
    let mut bytes = [0; INLINE];
    bytes[..8].copy_from_slice(&words[0].to_le_bytes());
    bytes[8..16].copy_from_slice(&words[1].to_le_bytes());
    bytes[16..].copy_from_slice(&words[2].to_le_bytes());
    InlineBytes(bytes)
}

/// Whether a short name begins with these bytes. For the usual lengths it needs no loop or call,
/// which every request would pay for: the last eight bytes are compared as one word, even if some
/// of them were in the previous word.
#[inline(always)]
fn same(name: &[u8; INLINE], bytes: &[u8]) -> bool {
    let len = bytes.len();
    match len {
        8..=16 => same_word(name, bytes, 0) && same_word(name, bytes, len - 8),
        _ => name.starts_with(bytes),
    }
}

#[inline(always)]
fn same_word(a: &[u8], b: &[u8], at: usize) -> bool {
    a[at..at + 8] == b[at..at + 8]
}

impl From<&str> for Name {
    #[inline]
    fn from(name: &str) -> Self {
        name.as_bytes().into()
    }
}

impl From<&String> for Name {
    fn from(name: &String) -> Self {
        name.as_bytes().into()
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        name.as_bytes().into()
    }
}

impl From<&Name> for Name {
    fn from(name: &Name) -> Self {
        name.clone()
    }
}

impl AsRef<[u8]> for Name {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl hash::Hash for Name {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_string_lossy(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn a_name_keeps_its_bytes_whatever_its_length() {
        for len in (0..=26).chain([255, 256, 5000]) {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1).collect();
            assert_eq!(Name::from(&bytes[..]).as_bytes(), bytes);
        }
    }

    #[test]
    fn a_name_is_its_bytes_and_no_others() {
        for len in 0..=26 {
            let bytes: Vec<u8> = (1..=len).collect();
            let name = Name::from(&bytes[..]);
            assert!(name.is(&bytes));
            assert!(!name.is(&[&bytes[..], &[0]].concat()));
            for at in 0..bytes.len() {
                let mut other = bytes.clone();
                other[at] = 0;
                assert!(!name.is(&other));
                assert!(!name.is(&bytes[..at]));
            }
        }
    }

    /// Every code unit alone, and every surrogate next to every other: no two strings share a name,
    /// and each comes back as it was.
    #[test]
    fn every_string_of_code_units_has_its_own_name_and_comes_back() {
        for unit in 0..=u16::MAX {
            assert_eq!(Name::from_utf16([unit]).to_utf16(), [unit]);
        }
        let surrogates = [0xD800, 0xD801, 0xDBFF, 0xDC00, 0xDC01, 0xDFFF, 0x61, 0xFFFD];
        let mut names = BTreeSet::new();
        for a in surrogates {
            for b in surrogates {
                for c in surrogates {
                    let units = [a, b, c];
                    let name = Name::from_utf16(units);
                    assert_eq!(name.to_utf16(), units);
                    assert!(names.insert(name), "{units:x?} has the name of another");
                }
            }
        }
    }

    #[test]
    fn a_string_without_lone_surrogates_has_the_name_of_the_same_text() {
        for text in ["", "a", "ß", "€", "𝄞", "a𝄞€\u{10FFFF}\0"] {
            assert_eq!(Name::from_utf16(text.encode_utf16()), text);
        }
    }

    #[test]
    fn bytes_that_no_string_spells_are_shown_as_replacement_characters() {
        let broken: &[u8] = &[0x61, 0xFF, 0xED, 0xA0, 0x62];
        assert_eq!(Name::from(broken).to_utf16(), [0x61, 0xFFFD, 0xFFFD, 0xFFFD, 0x62]);
    }

    #[test]
    fn lone_surrogates_stay_distinct() {
        let high: &[u8] = &[0xED, 0xA0, 0x80];
        let higher: &[u8] = &[0xED, 0xA0, 0x81];
        assert_ne!(Name::from(high), Name::from(higher));
        assert_eq!(Name::from(high).as_str(), None);
    }
}
