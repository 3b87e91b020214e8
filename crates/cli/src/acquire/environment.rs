//! What a command is told of its lock in its environment, and what that says to a `lockkeeper`
//! inside it.

use lockkeeper_client::Outer;
use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

/// The fencing number of the innermost lock.
const FENCE: &str = "LOCKKEEPER_FENCE";
/// The names held, of all locks around the command, separated by blanks.
const NAMES: &str = "LOCKKEEPER_NAMES";
/// The client id and the request of the innermost lock: what asks inside it is nested in it.
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
        let around = env::var_os(NAMES).unwrap_or_default();
        let all = [around.into_vec()].into_iter().filter(|names| !names.is_empty());
        let all: Vec<Vec<u8>> = all.chain(names.iter().map(|name| encode(name))).collect();
        let (client_id, request) = outer.unwrap_or_default();
        let outer = format!("{client_id} {request}").into();
        Self { fence, client_id, names: OsString::from_vec(all.join(&b' ')), outer }
    }

    pub(crate) fn variables(&self) -> [(&'static str, OsString); 3] {
        [(FENCE, self.fence.to_string().into()), (NAMES, self.names.clone()), (OUTER, self.outer.clone())]
    }
}

/// The request that the command around this one holds. A server ignores one that no longer lives.
pub(super) fn outer() -> Option<Outer> {
    parse_outer(&env::var(OUTER).ok()?)
}

fn parse_outer(text: &str) -> Option<Outer> {
    let (client, request) = text.split_once(' ')?;
    Some(Outer::Other(client.into(), request.parse().ok()?))
}

/// Whether the environment says that a name is held.
pub(super) fn holds(name: &OsStr) -> bool {
    let held = env::var_os(NAMES).unwrap_or_default();
    held.as_bytes().split(|&byte| byte == b' ').any(|held| held == encode(name))
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

#[cfg(test)]
mod tests {
    use super::{Environment, encode, parse_outer};
    use lockkeeper_client::Outer;
    use std::ffi::OsStr;

    #[test]
    fn a_name_is_one_word() {
        assert_eq!(encode(OsStr::new("db:orders/ü")), "db:orders/ü".as_bytes());
        assert_eq!(encode(OsStr::new("a b%\n")), b"a%20b%25%0A");
    }

    #[test]
    fn what_is_told_is_understood() {
        let told = Environment::new(&["a".into(), "b c".into()], 7, Some(("c0ffee".into(), 3)));
        let [fence, names, outer] =
            told.variables().map(|(_, value)| value.into_string().expect("it is text"));
        assert_eq!((&*fence, &*names), ("7", "a b%20c"));
        assert!(matches!(parse_outer(&outer), Some(Outer::Other(client, 3)) if client == "c0ffee"));
        assert!(parse_outer("").is_none() && parse_outer("c0ffee").is_none());
    }
}
