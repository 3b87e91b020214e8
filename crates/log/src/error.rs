//! Errors of opening a log, with what was found in it.

use std::{
    error, fmt, io,
    path::{Path, PathBuf},
};

/// Why [`open`](crate::open) refuses. Unless it is [`Io`](Self::Io), nothing was changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the log open.
    InUse(PathBuf),
    /// The directory belongs to another user.
    Owner {
        /// The directory.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
    },
    /// The directory is on a network file system, where neither locks nor FIFOs can be relied on.
    Network {
        /// The directory.
        path: PathBuf,
        /// The file system's name.
        kind: &'static str,
    },
    /// The directory has a file of a daemon from before there was a log.
    Earlier(PathBuf),
    /// A file has another format version.
    Format {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that this crate reads and writes.
        known: u32,
    },
    /// A file is damaged or missing, other than by an interrupted write.
    Damaged(Damage),
    /// The operating system refused. A read-only file system is found here.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
}

/// A file that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// The byte where what cannot be read begins.
    pub offset: u64,
    /// The damage there.
    pub what: &'static str,
}

/// The part that was cut off the end of the log. Without a crash of the machine, its commit had not
/// returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The segment.
    pub path: PathBuf,
    /// The byte where the log now ends.
    pub offset: u64,
    /// How many bytes after that were overwritten with zeros.
    pub bytes: u64,
}

/// No space for a record of this priority. Nothing has changed; a later attempt can succeed.
#[derive(Debug)]
pub struct Full(
    /// What the operating system said.
    pub io::Error,
);

impl OpenError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, error }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: &'static str) -> Self {
        Self::Damaged(Damage { path: path.to_owned(), offset, what })
    }
}

/// The advice for a state that is not read.
const WAY_OUT: &str =
    "`lockkeeper state check` shows what is there, and `lockkeeper state reset` moves it aside";

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => write!(f, "{} is in use by another process", path.display()),
            Self::Owner { path, owner } => {
                write!(f, "{} belongs to another user, with the id {owner}", path.display())
            }
            Self::Network { path, kind } => {
                write!(f, "{} is on a network file system ({kind}): state has to be local", path.display())
            }
            Self::Earlier(path) => {
                write!(
                    f,
                    "{} was written by an earlier version, and this one cannot read it. {WAY_OUT}",
                    path.display()
                )
            }
            Self::Format { path, found, known } => {
                let path = path.display();
                write!(f, "{path} has format {found}, and this version reads format {known} only. {WAY_OUT}")
            }
            Self::Damaged(damage) => write!(f, "{damage}. {WAY_OUT}"),
            Self::Io { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl error::Error for OpenError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged at byte {}: {}", self.path.display(), self.offset, self.what)
    }
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, offset, bytes } = self;
        write!(f, "the incomplete end of {} was removed: {bytes} bytes from byte {offset}", path.display())
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no space for the log: {}", self.0)
    }
}

impl error::Error for Full {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.0)
    }
}
