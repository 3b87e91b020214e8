//! The label of a lock that is taken by a command: user, host and command.
//!
//! Other users see it, on a network also those of other machines. So it omits options and their
//! values, and arguments that are more than a word. `--info` sets another label.

use rustix::{process::geteuid, system::uname};
use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

/// The longest label that is made up here.
const LABEL: usize = 200;

/// How many arguments are shown, and how long one of them may be.
const ARGUMENTS: usize = 3;
const ARGUMENT: usize = 40;

/// `ann@build7: ./backup.sh nightly /srv`.
pub(crate) fn label(command: &[OsString]) -> String {
    let user = geteuid().as_raw();
    let user = lockkeeper_paths::users::user_name(user).unwrap_or_else(|| user.to_string());
    let label = format!("{user}@{}: {}", uname().nodename().to_string_lossy(), words(command).join(" "));
    label.chars().take(LABEL).collect()
}

/// The program, its first arguments up to an option, and the first argument that is a file: the
/// script of an interpreter, for example. For a shell line, its first words.
fn words(command: &[OsString]) -> Vec<String> {
    let Some((program, arguments)) = command.split_first() else { return Vec::new() };
    let mut words = vec![program.to_string_lossy().into_owned()];
    if let [option, line, ..] = arguments
        && option == "-c"
        && program.to_string_lossy().ends_with("sh")
    {
        words.push("-c".into());
        let line = line.to_string_lossy();
        words.extend(line.split_ascii_whitespace().take(ARGUMENTS).take_while(is_plain).map(String::from));
        return words;
    }
    let text = |argument: &OsString| argument.to_string_lossy().into_owned();
    let is_file = |argument: &OsStr| Path::new(argument).is_file();
    let first = arguments
        .iter()
        .take(ARGUMENTS)
        .take_while(|argument| is_file(argument) || argument.to_str().as_ref().is_some_and(is_plain));
    words.extend(first.map(text));
    if let Some(script) = arguments.iter().find(|argument| is_file(argument)).map(text)
        && !words[1..].contains(&script)
    {
        words.push(script);
    }
    words
}

/// Whether a word is a name, a number or a path. An option is none; an assignment, an address with
/// credentials, or a long key is not.
fn is_plain(word: &&str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "._/+,-".contains(c);
    !word.is_empty() && !word.starts_with('-') && word.len() <= ARGUMENT && word.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::words;
    use std::ffi::OsString;

    fn shown(command: &[&str]) -> String {
        words(&command.iter().map(OsString::from).collect::<Vec<_>>()).join(" ")
    }

    #[test]
    fn first_arguments_are_shown() {
        assert_eq!(shown(&["backup", "nightly", "/srv", "3", "4"]), "backup nightly /srv 3");
        assert_eq!(shown(&["make"]), "make");
        assert_eq!(shown(&["/bin/sh", "-c", "make check && echo secret"]), "/bin/sh -c make check");
        assert_eq!(shown(&["/bin/sh", "-c", "TOKEN=x make"]), "/bin/sh -c");
    }

    #[test]
    fn what_may_be_a_secret_is_not() {
        for (command, label) in [
            (&["mysql", "-psecret", "db"][..], "mysql"),
            (&["curl", "--user", "ann", "secret"], "curl"),
            (&["psql", "postgres://ann:secret@db/x"], "psql"),
            (&["env", "PASSWORD=secret", "job"], "env"),
            (&["login", "ann", "ann:secret"], "login ann"),
            (&["login", "secret7secret7secret7secret7secret7secret7x"], "login"),
            (&["ssh", "host", "-c", "secret"], "ssh host"),
        ] {
            assert_eq!(shown(command), label);
        }
        // A script, wherever it stands.
        assert_eq!(shown(&["python3", "-u", "Cargo.toml", "--key", "secret"]), "python3 Cargo.toml");
    }
}
