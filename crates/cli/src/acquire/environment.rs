//! The environment variables that tell a command about its lock, and how a nested `lockkeeper`
//! reads them.

use lockkeeper_core::Name;
use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

/// The fencing number of the innermost lock.
const FENCE: &str = "LOCKKEEPER_FENCE";
/// The names of all locks around the command, separated by blanks. Some may have been released
/// since, because a shell's environment cannot be changed from outside.
const NAMES: &str = "LOCKKEEPER_NAMES";
/// The locks of the commands around this one, the innermost last: for each, the client id of its
/// session, its request and the first of its names: `5f0c7d1e2a9b4c38/0=deploy`. What asks inside
/// them is nested in them.
const OUTER: &str = "LOCKKEEPER_OUTER";

/// The variables of a command that holds a lock.
pub(crate) struct Environment {
    pub(crate) fence: u64,
    pub(crate) client_id: String,
    names: OsString,
    outer: OsString,
}

impl Environment {
    pub(crate) fn new(names: &[OsString], fence: u64, outer: Option<(String, u64)>) -> Self {
        let words: Vec<Vec<u8>> = names.iter().map(|name| encode(name)).collect();
        let (client_id, request) = outer.unwrap_or_default();
        let lock = [format!("{client_id}/{request}=").as_bytes(), &words[0]].concat();
        Self { fence, client_id, names: appended(NAMES, words), outer: appended(OUTER, vec![lock]) }
    }

    /// Takes out a lock that has been released.
    pub(crate) fn forget(&mut self, client_id: &str, names: &[Vec<u8>]) {
        let mut words = words(&self.names);
        for name in names {
            if let Some(at) = words.iter().position(|word| word == name) {
                words.remove(at);
            }
        }
        self.names = OsString::from_vec(words.join(&b' '));
        let mut locks = self::words(&self.outer);
        locks.retain(|lock| !lock.starts_with(format!("{client_id}/").as_bytes()));
        self.outer = OsString::from_vec(locks.join(&b' '));
    }

    pub(crate) fn variables(&self) -> [(&'static str, OsString); 3] {
        [(FENCE, self.fence.to_string().into()), (NAMES, self.names.clone()), (OUTER, self.outer.clone())]
    }
}

/// The value of a variable, with more appended.
fn appended(variable: &str, more: Vec<Vec<u8>>) -> OsString {
    let mut all = words(&env::var_os(variable).unwrap_or_default());
    all.extend(more);
    OsString::from_vec(all.join(&b' '))
}

fn words(text: &OsStr) -> Vec<Vec<u8>> {
    let words = text.as_bytes().split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    words.map(<[u8]>::to_vec).collect()
}

/// A lock that was taken around this command. It may have been released since.
pub(super) struct Around {
    pub(super) client_id: String,
    pub(super) request: u64,
    /// The first of its names.
    pub(super) name: Name,
}

impl Around {
    fn parse(word: &[u8]) -> Option<Self> {
        let at = word.iter().position(|&byte| byte == b'=')?;
        let (client_id, request) = std::str::from_utf8(&word[..at]).ok()?.split_once('/')?;
        let name = Name::from(&decode(&word[at + 1..])[..]);
        Some(Self { client_id: client_id.into(), request: request.parse().ok()?, name })
    }
}

/// The locks around this command, the innermost last.
pub(super) fn around() -> Vec<Around> {
    words(&env::var_os(OUTER).unwrap_or_default()).iter().filter_map(|word| Around::parse(word)).collect()
}

/// A name as one word: blanks, control characters and `%` are `%20` and so on.
pub(crate) fn encode(name: &OsStr) -> Vec<u8> {
    let mut word = Vec::with_capacity(name.len());
    for &byte in name.as_bytes() {
        match byte {
            0..=b' ' | b'%' | 0x7f => word.extend(format!("%{byte:02X}").bytes()),
            _ => word.push(byte),
        }
    }
    word
}

/// Decodes the name in a word.
fn decode(word: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| byte == b'%').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(decoded) => (rest, _) = (&after[2..], name.push(decoded)),
            None => (rest, _) = (after, name.push(byte)),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::{Around, Environment, decode, encode};
    use lockkeeper_core::Name;
    use std::ffi::OsStr;

    #[test]
    fn a_name_is_one_word() {
        assert_eq!(encode(OsStr::new("db:orders/ü")), "db:orders/ü".as_bytes());
        assert_eq!(encode(OsStr::new("a b%\n")), b"a%20b%25%0A");
        for name in ["db:orders/ü", "a b%\n", "%", "%2", "100%zz"] {
            assert_eq!(decode(&encode(OsStr::new(name))), name.as_bytes());
        }
    }

    #[test]
    fn what_is_told_is_understood_and_forgotten() {
        let mut told = Environment::new(&["b c".into(), "a=b".into()], 7, Some(("c0ffee".into(), 3)));
        let [fence, names, outer] =
            told.variables().map(|(_, value)| value.into_string().expect("it is text"));
        assert_eq!((&*fence, &*names, &*outer), ("7", "b%20c a=b", "c0ffee/3=b%20c"));
        let around = Around::parse(outer.as_bytes()).expect("it was told");
        assert_eq!((&*around.client_id, around.request, around.name), ("c0ffee", 3, Name::from("b c")));
        assert!(
            ["", "c0ffee", "3", "c0ffee/=a", "c0ffee/3"]
                .iter()
                .all(|word| Around::parse(word.as_bytes()).is_none())
        );
        told.forget("c0ffee", &["b%20c", "a=b"].map(|name| name.as_bytes().to_vec()));
        assert!(told.variables()[1..].iter().all(|(_, value)| value.is_empty()));
    }
}
