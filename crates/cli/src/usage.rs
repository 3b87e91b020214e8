//! Messages for wrong calls: the intended call, rather than the parser's view.

use crate::{args::Run, exit, lock, show};
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
        (Some(hint), _) => show::say(&format!("{hint}\nSee lockkeeper run --help.")),
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

/// The intended call, if it is known.
fn hint(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    if let Some(unknown) = error.get(ContextKind::InvalidSubcommand)
        && error.get(ContextKind::SuggestedSubcommand).is_none()
        && words.iter().any(|word| word == "--")
    {
        let typed = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        return Some(format!(
            "{unknown} is no command of lockkeeper. Is this meant?\n  lockkeeper run {typed}"
        ));
    }
    // `--machine` may come before it.
    let at = words.iter().position(|word| !word.starts_with('-')).filter(|&at| words[at] == "run")?;
    let (before, words) = (&words[..at], &words[at + 1..]);
    let typed = |at| {
        let run = before.iter().map(AsRef::as_ref).chain(["run"]);
        let words = run.chain(separated(words, at));
        words.fold("lockkeeper".to_string(), |typed, word| typed + " " + &quoted(word))
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
            match unknown.as_str() {
                "-u" | "--unlock" => Some(
                    "a lock ends with its command. In a script: lockkeeper lock NAME, lockkeeper unlock NAME"
                        .into(),
                ),
                "--verbose" => {
                    Some("it says what it waits for, unless --quiet is given: leave --verbose out".into())
                }
                // Words after a name most likely belong to the command.
                _ if words.first().is_some_and(|word| !word.starts_with('-')) => Some(format!(
                    "{unknown} is no option of run. If it is one of the command, put -- before the command:\n  \
                     {}",
                    typed(1)
                )),
                _ => match error.get(ContextKind::SuggestedArg) {
                    Some(meant) => Some(format!("{unknown} is no option of run. Is {meant} meant?")),
                    None => Some(format!("{unknown} is no option of run")),
                },
            }
        }
        ErrorKind::MissingRequiredArgument if !words.iter().any(|word| word == "--") && words.len() > 1 => {
            // All options that were given are those of `run`, before and after the name.
            let name = options(words) + 1;
            let at = name + options(words.get(name..).unwrap_or_default());
            Some(format!("there is no command. Put -- before it:\n  {}", typed(at)))
        }
        _ => None,
    }
}

/// The number of leading words that are options and their values.
fn options<S: AsRef<str>>(words: &[S]) -> usize {
    let run = Run::command();
    // With a value in the next word.
    let has_value = |word: &str| {
        let is_named = |option: &&Arg| match word.strip_prefix("--") {
            Some(long) => option.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long)),
            None => option.get_short().is_some_and(|short| word.chars().skip(1).eq([short])),
        };
        run.get_arguments().find(is_named).is_some_and(|option| option.get_action().takes_values())
    };
    let mut count = 0;
    while let Some(word) = words.get(count).map(AsRef::as_ref).filter(|word| word.starts_with('-')) {
        count += 1 + usize::from(has_value(word));
    }
    count.min(words.len())
}

/// The words, with `--` after so many.
fn separated<S: AsRef<str>>(words: &[S], at: usize) -> impl Iterator<Item = &str> {
    let (before, after) = words.split_at(at.min(words.len()));
    before.iter().map(AsRef::as_ref).chain(["--"]).chain(after.iter().map(AsRef::as_ref))
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
        hint(&error.expect("it is wrong"), &words).unwrap_or_default()
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
        assert_eq!(said("query --bogus"), "");
        assert!(said("backup -- ./backup.sh").ends_with("\n  lockkeeper run backup -- ./backup.sh"));
        assert!(said("-q my~job -- b").is_empty());
        // `query` is meant, most likely.
        assert_eq!(said("querry -- b"), "");
    }
}
