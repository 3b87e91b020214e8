//! A worker's history on disk: one line for each event, appended by one call, so that it survives
//! the worker.
//!
//! A history is a file for each worker process. A resource is a file for each name, to which the
//! holder of the lock appends its touches. The order of its lines is the order in which they
//! happened, independent of clocks.

use crate::Nanos;
use lockkeeper_client::Flags;
use lockkeeper_core::{Cause, Mode};
use std::{
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

/// A file that lines are appended to.
pub struct Lines(File);

impl Lines {
    /// Opens it; makes it if it is not there.
    ///
    /// # Errors
    ///
    /// As opening a file does.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Self)
    }

    /// Appends a line.
    pub fn append(&self, mut line: String) {
        line.push('\n');
        // One call: other processes append to the same file, and this one may be killed after any
        // instruction.
        let written = (&self.0).write(line.as_bytes()).expect("a worker can write its history");
        assert_eq!(written, line.len(), "a line is written whole");
    }
}

/// One event in the life of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When.
    pub at: Nanos,
    /// The worker's number for the request.
    pub request: u64,
    /// What.
    pub what: What,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It is about to be made.
    Asked {
        /// How.
        flags: Flags,
        /// Of what.
        scope: Vec<(String, Mode)>,
    },
    /// The daemon says that it waits.
    Queued,
    /// The daemon says that it is held.
    Granted {
        /// The fencing token.
        token: u64,
    },
    /// The worker is done with the lock, and is about to release it.
    Releasing,
    /// The worker waits no longer, and is about to abort.
    GivingUp,
    /// It was not available at once.
    Unavailable,
    /// The daemon does not take it on.
    Refused {
        /// Why.
        code: u32,
    },
    /// The worker is notified that it no longer holds or waits.
    Broken(Cause),
    /// What the worker gave up is over.
    Ended,
}

impl Line {
    /// As it is written.
    pub fn format(&self) -> String {
        let mut line = format!("{} {} ", self.at, self.request);
        let _ = match &self.what {
            What::Asked { flags, scope } => {
                let how = match flags {
                    Flags { steal: true, .. } => "steal",
                    Flags { if_available: true, .. } => "if-available",
                    _ => "wait",
                };
                let _ = write!(line, "asked {how}");
                scope.iter().try_for_each(|(name, mode)| write!(line, " {name}:{}", letter(*mode)))
            }
            What::Queued => line.write_str("queued"),
            What::Granted { token } => write!(line, "granted {token}"),
            What::Releasing => line.write_str("releasing"),
            What::GivingUp => line.write_str("giving-up"),
            What::Unavailable => line.write_str("unavailable"),
            What::Refused { code } => write!(line, "refused {code}"),
            What::Broken(Cause::Stolen) => line.write_str("broken stolen"),
            What::Broken(Cause::Lost) => line.write_str("broken lost"),
            What::Ended => line.write_str("ended"),
        };
        line
    }

    /// As it is read: `None` for what is no line.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let at = words.next()?.parse().ok()?;
        let request = words.next()?.parse().ok()?;
        let what = match words.next()? {
            "asked" => {
                let how = words.next()?;
                let flags =
                    Flags { steal: how == "steal", if_available: how == "if-available", ..Flags::default() };
                let part = |word: &str| {
                    let (name, mode) = word.rsplit_once(':')?;
                    Some((name.to_owned(), mode_of(mode)?))
                };
                What::Asked { flags, scope: words.map(part).collect::<Option<_>>()? }
            }
            "queued" => What::Queued,
            "granted" => What::Granted { token: words.next()?.parse().ok()? },
            "releasing" => What::Releasing,
            "giving-up" => What::GivingUp,
            "unavailable" => What::Unavailable,
            "refused" => What::Refused { code: words.next()?.parse().ok()? },
            "broken" if words.next()? == "stolen" => What::Broken(Cause::Stolen),
            "broken" => What::Broken(Cause::Lost),
            "ended" => What::Ended,
            _ => return None,
        };
        Some(Self { at, request, what })
    }
}

/// A holder was at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// When, just before.
    pub at: Nanos,
    /// The holder's token.
    pub token: u64,
    /// How it holds the name.
    pub mode: Mode,
    /// The history of the holder.
    pub process: usize,
    /// The holder's request.
    pub request: u64,
}

impl Touch {
    /// As it is written.
    pub fn format(&self) -> String {
        let Self { at, token, mode, process, request } = self;
        format!("{at} {token} {} {process} {request}", letter(*mode))
    }

    /// As it is read: `None` for what is no touch.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            at: words.next()?.parse().ok()?,
            token: words.next()?.parse().ok()?,
            mode: mode_of(words.next()?)?,
            process: words.next()?.parse().ok()?,
            request: words.next()?.parse().ok()?,
        })
    }
}

/// The lines of a file that are whole. None if there is no file.
///
/// # Errors
///
/// As reading a file does; and of a line that is none.
pub fn read<T>(path: &Path, parse: impl Fn(&str) -> Option<T>) -> io::Result<Vec<T>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let parse = |line: &str| {
        parse(line).ok_or_else(|| io::Error::other(format!("{}: not a line: {line}", path.display())))
    };
    whole.map(parse).collect()
}

fn letter(mode: Mode) -> char {
    if mode == Mode::Shared { 's' } else { 'x' }
}

fn mode_of(letter: &str) -> Option<Mode> {
    match letter {
        "s" => Some(Mode::Shared),
        "x" => Some(Mode::Exclusive),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, Touch, What};
    use lockkeeper_client::Flags;
    use lockkeeper_core::{Cause, Mode};

    #[test]
    fn lines_are_read_as_they_were_written() {
        let scope = vec![("a".to_owned(), Mode::Exclusive), ("b".to_owned(), Mode::Shared)];
        let all = [
            What::Asked { flags: Flags { steal: true, ..Flags::default() }, scope: scope.clone() },
            What::Asked { flags: Flags { if_available: true, ..Flags::default() }, scope },
            What::Queued,
            What::Granted { token: u64::MAX },
            What::Releasing,
            What::GivingUp,
            What::Unavailable,
            What::Refused { code: 5 },
            What::Broken(Cause::Stolen),
            What::Broken(Cause::Lost),
            What::Ended,
        ];
        for what in all {
            let line = Line { at: 1, request: 2, what };
            assert_eq!(Line::parse(&line.format()), Some(line));
        }
        let touch = Touch { at: 1, token: 2, mode: Mode::Shared, process: 3, request: 4 };
        assert_eq!(Touch::parse(&touch.format()), Some(touch));
        assert_eq!(Line::parse("1 2 gran"), None);
    }
}
