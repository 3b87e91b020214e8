//! What to say of a wrong call: what was meant, rather than how the parser sees it.

use crate::{args::Run, exit, lock, show};
use clap::{
    Arg, CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::{env, ffi::OsString, process::ExitCode};

/// Says what is wrong with the call. Help that was asked for is no error.
pub(crate) fn explain(error: &clap::Error) -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    match hint(error, &words) {
        Some(hint) => show::say(&format!("{hint}\nSee lockkeeper run --help.")),
        None => _ = error.print(),
    }
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    if words.iter().any(|word| word == "lock") {
        lock::print_failure(exit::USAGE);
    }
    exit::USAGE.into()
}

/// What was meant, where that is known.
fn hint(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let words = words.strip_prefix(&["run".into()])?;
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
                // What follows a name is the command's, most likely.
                _ if words.first().is_some_and(|word| !word.starts_with('-')) => Some(format!(
                    "{unknown} is no option of run. If it is one of the command, put -- before the command:\n  \
                     lockkeeper run {}",
                    separated(words, 1)
                )),
                _ => Some(format!("{unknown} is no option of run")),
            }
        }
        ErrorKind::MissingRequiredArgument if !words.iter().any(|word| word == "--") && words.len() > 1 => {
            // All options that were given are those of `run`, before and after the name.
            let name = options(words) + 1;
            let words = separated(words, name + options(words.get(name..).unwrap_or_default()));
            Some(format!("there is no command. Put -- before it:\n  lockkeeper run {words}"))
        }
        _ => None,
    }
}

/// How many words at the beginning are options and their values.
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

/// A call with `--` after so many words.
fn separated<S: AsRef<str>>(words: &[S], at: usize) -> String {
    let at = at.min(words.len());
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    [&words[..at], &["--"], &words[at..]].concat().join(" ")
}

#[cfg(test)]
mod tests {
    use super::hint;
    use crate::args::Args;
    use clap::Parser;
    use std::ffi::OsString;

    fn said(call: &str) -> String {
        let words: Vec<OsString> = call.split(' ').map(Into::into).collect();
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
        assert!(said("run -u backup").contains("lockkeeper unlock"));
        assert_eq!(said("run --bogus a -- b"), "--bogus is no option of run");
        assert_eq!(said("query --bogus"), "");
    }
}
