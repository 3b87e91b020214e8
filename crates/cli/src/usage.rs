//! Messages for wrong calls: the intended call, rather than the parser's view.

use crate::{args, exit, lock, show};
use clap::{
    Arg, CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::{
    env,
    error::Error as _,
    ffi::{OsStr, OsString},
    process::ExitCode,
};

/// Prints what is wrong with the call. Requested help is not an error.
pub(crate) fn explain(error: &clap::Error) -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    match (hint(error, &words), too_long(error)) {
        (Some((hint, help)), _) => show::say(&format!("{hint}\nSee {help}.")),
        (None, Some(why)) => show::say(&why),
        (None, None) => _ = error.print(),
    }
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    // Only `lock` prints output for a shell. `--machine` may come before it.
    if words.iter().find(|word| !word.as_encoded_bytes().starts_with(b"-")).is_some_and(|word| word == "lock")
    {
        lock::print_failure(exit::USAGE);
    }
    exit::USAGE.into()
}

/// The error of a value that is too long to be shown.
fn too_long(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    };
    text(ContextKind::InvalidValue).filter(|value| value.len() > 1_000)?;
    Some(format!("{}: {}", text(ContextKind::InvalidArg)?, error.source()?))
}

/// What was meant, where that is known.
///
/// Returns it, and whose help has more.
fn hint(error: &clap::Error, words: &[OsString]) -> Option<(String, &'static str)> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    // `--machine` may stand before it.
    match words.iter().position(|word| !word.starts_with('-')).filter(|&at| words[at] == "run") {
        Some(at) => {
            let run = Run { before: &words[..at], words: &words[at + 1..] };
            run.hint(error).map(|hint| (hint, "lockkeeper run --help"))
        }
        None => missing_run(error, &words).map(|hint| (hint, "lockkeeper --help")),
    }
}

/// `run`, as it is mistyped.
const ALMOST_RUN: [&str; 9] = ["rn", "ru", "un", "urn", "rnu", "nur", "rum", "runn", "ruun"];

/// What to type if `run` is missing.
fn missing_run(error: &clap::Error, words: &[&str]) -> Option<String> {
    let (wrong, what) = match error.kind() {
        ErrorKind::InvalidSubcommand if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            (error.get(ContextKind::InvalidSubcommand)?, "command")
        }
        ErrorKind::UnknownArgument => (error.get(ContextKind::InvalidArg)?, "option"),
        _ => return None,
    };
    let known = |word: &&str| *word == "help" || args::Args::command().find_subcommand(word).is_some();
    // What follows `--` is a command of another kind.
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    if words[..end].iter().any(known) {
        return None;
    }
    let name = options(words);
    let (before, words) = match words.get(name..end)? {
        [] => return None,
        [almost, _, ..] if ALMOST_RUN.contains(almost) => (&words[..name], &words[name + 1..]),
        _ => (&words[..0], words),
    };
    Some(format!("{wrong} is no {what} of lockkeeper. Is this meant?\n  {}", Run { before, words }.typed()))
}

/// A call of `run`.
struct Run<'a> {
    before: &'a [&'a str],
    words: &'a [&'a str],
}

impl Run<'_> {
    fn hint(&self, error: &clap::Error) -> Option<String> {
        match error.kind() {
            ErrorKind::UnknownArgument => {
                let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
                    return None;
                };
                Some(self.unknown(unknown, error.get(ContextKind::SuggestedArg)))
            }
            // All options that were given are those of `run`, before and after the name.
            ErrorKind::MissingRequiredArgument if !self.is_separated() && self.name() < self.words.len() => {
                Some(match self.command() {
                    at if at < self.words.len() => {
                        format!("there is no command. Put -- before it:\n  {}", self.typed())
                    }
                    _ => format!("there is no command. It comes after the name:\n  {}", self.typed()),
                })
            }
            _ => None,
        }
    }

    /// What to say of an option that `run` does not have.
    fn unknown(&self, unknown: &str, suggested: Option<&ContextValue>) -> String {
        let words = self.words;
        let at = words.iter().position(|word| word.starts_with(unknown)).unwrap_or(words.len());
        let line = words[..at].iter().position(|word| ["-c", "--command"].contains(word));
        match (unknown, suggested) {
            ("-u" | "--unlock", _) => {
                "a lock ends with its command. In a script: lockkeeper lock NAME, lockkeeper unlock NAME"
                    .into()
            }
            ("--verbose", _) => {
                "it says what it waits for, unless --quiet is given: leave --verbose out".into()
            }
            _ if line.is_some() => {
                let (run, line) = words.split_at(line.map_or(0, |line| line + 1));
                format!(
                    "{unknown} is no option of run. What comes after -c is one word:\n  {}",
                    typed(self.before.iter().chain([&"run"]).chain(run).chain([&&*line.join(" ")]))
                )
            }
            // What follows a word of the command is the command's, most likely.
            _ if !self.is_separated() && self.command() < at => format!(
                "{unknown} is no option of run. If it is one of the command, put -- before the command:\n  {}",
                self.typed()
            ),
            (_, Some(meant)) => format!("{unknown} is no option of run. Is {meant} meant?"),
            _ => format!("{unknown} is no option of run"),
        }
    }

    fn is_separated(&self) -> bool {
        self.words.contains(&"--")
    }

    /// Where the name is, behind options.
    fn name(&self) -> usize {
        options(self.words)
    }

    /// Where the command begins if there is one name, which may have options behind it.
    fn command(&self) -> usize {
        let after = self.name() + 1;
        after + options(self.words.get(after..).unwrap_or_default())
    }

    /// The call as it is to be typed, with `--` before the command.
    fn typed(&self) -> String {
        let at = match self.is_separated() {
            true => self.words.len(),
            false => self.command().min(self.words.len()),
        };
        let (before, after) = self.words.split_at(at);
        let end: &[&str] = match (self.is_separated(), after) {
            (true, _) => &[],
            (false, []) => &["--", "COMMAND"],
            (false, _) => &["--"],
        };
        typed(self.before.iter().chain([&"run"]).chain(before).chain(end).chain(after))
    }
}

/// A call of `lockkeeper` with these words.
fn typed<'a>(words: impl Iterator<Item = &'a &'a str>) -> String {
    words.fold("lockkeeper".to_string(), |typed, word| typed + " " + &quoted(word))
}

/// How many words at the beginning are options and their values.
fn options(words: &[&str]) -> usize {
    let run = args::Run::command();
    // With a value in the next word.
    let has_value = |word: &str| {
        let is_named = |option: &&Arg| match word.strip_prefix("--") {
            Some(long) => option.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long)),
            None => option.get_short().is_some_and(|short| word.chars().skip(1).eq([short])),
        };
        run.get_arguments().find(is_named).is_some_and(|option| option.get_action().takes_values())
    };
    let mut count = 0;
    while let Some(word) = words.get(count).filter(|word| word.starts_with('-') && **word != "--") {
        count += 1 + usize::from(has_value(word));
    }
    count.min(words.len())
}

/// A word as it is typed.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "%+,-./:=@_".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into();
    }
    String::from_utf8_lossy(&lock::quote(OsStr::new(word))).into_owned()
}

#[cfg(test)]
mod tests {
    use super::hint;
    use crate::args::Args;
    use clap::Parser;
    use std::ffi::OsString;

    fn said(call: &str) -> String {
        // A blank within a word is `~`.
        let words: Vec<OsString> = call.split(' ').map(|word| word.replace('~', " ").into()).collect();
        let error = Args::try_parse_from([OsString::from("lockkeeper")].iter().chain(&words)).err();
        hint(&error.expect("it is wrong"), &words).map(|(hint, _)| hint).unwrap_or_default()
    }

    #[test]
    fn a_wrong_call_is_told_what_to_type() {
        assert!(said("run backup ls -l").ends_with("\n  lockkeeper run backup -- ls -l"));
        assert!(said("run backup ./backup.sh").ends_with("\n  lockkeeper run backup -- ./backup.sh"));
        assert!(said("run -n backup ./backup.sh").ends_with("\n  lockkeeper run -n backup -- ./backup.sh"));
        assert!(said("run -w 5 backup ls").ends_with("\n  lockkeeper run -w 5 backup -- ls"));
        assert!(said("run backup -s -w 5 ls").ends_with("\n  lockkeeper run backup -s -w 5 -- ls"));
        let machine = said("--machine run backup ls -l");
        assert!(machine.ends_with("\n  lockkeeper --machine run backup -- ls -l"), "{machine}");
        let quoted = said("run my~job.sh it's~$HOME -l");
        assert!(quoted.ends_with("\n  lockkeeper run 'my job.sh' -- 'it'\\''s $HOME' -l"), "{quoted}");
        assert!(said("run -u backup").contains("lockkeeper unlock"));
        assert_eq!(said("run --bogus a -- b"), "--bogus is no option of run");
        assert_eq!(said("run --timout 5s a -- b"), "--timout is no option of run. Is --timeout meant?");
        assert_eq!(said("run backup --timout 5s -- b"), "--timout is no option of run. Is --timeout meant?");
        assert_eq!(said("run backup -l"), "-l is no option of run");
        assert!(said("run -n backup ls -l").ends_with("\n  lockkeeper run -n backup -- ls -l"));
        for call in ["run -n backup", "run -w 5 backup"] {
            assert!(said(call).ends_with(&format!("\n  lockkeeper {call} -- COMMAND")), "{}", said(call));
        }
        assert_eq!(said("run -w 5"), "");
        assert!(said("run backup -c ls -l").ends_with("\n  lockkeeper run backup -c 'ls -l'"));
        assert_eq!(said("query --bogus"), "");
        assert_eq!(said("--timeout 5 run a -- ls"), "");
        assert_eq!(said("help backup"), "");
        assert!(said("backup -- ./backup.sh").ends_with("\n  lockkeeper run backup -- ./backup.sh"));
        assert!(said("-q my~job -- b").ends_with("\n  lockkeeper run -q 'my job' -- b"));
        assert!(said("backup ./backup.sh -l").ends_with("\n  lockkeeper run backup -- ./backup.sh -l"));
        assert!(said("-n backup ./backup.sh").ends_with("\n  lockkeeper run -n backup -- ./backup.sh"));
        assert!(said("backup").ends_with("\n  lockkeeper run backup -- COMMAND"));
        assert!(said("--machine rn backup -- ls").ends_with("\n  lockkeeper --machine run backup -- ls"));
        assert!(said("rn -- ls").ends_with("\n  lockkeeper run rn -- ls"));
        // `query` is meant, most likely.
        assert_eq!(said("querry -- b"), "");
    }
}
