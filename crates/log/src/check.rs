//! Inspection of a state directory from outside, and moving its files aside.

use crate::{
    Mark, SegmentSummary, SnapshotSummary, Torn,
    dir::{self, Dir, mark_path},
    error::OpenError,
    mark::{self, MarkFile, Stored},
    recover::Survey,
    segment::Segment,
};
use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// The contents of a state directory. See [`check`].
#[derive(Debug)]
pub struct Report {
    /// Another process has the log open; what it is writing now can look torn.
    pub in_use: bool,
    /// The upper bounds of what clients were given, if there is a log.
    pub mark: Option<Mark>,
    /// The log was closed, and nothing was written since.
    pub closed: bool,
    /// [`open`](crate::open) would report a crash of the machine.
    pub crashed: bool,
    /// The snapshot that recovery begins with.
    pub snapshot: Option<SnapshotSummary>,
    /// The segments after it, as far as they are readable.
    pub segments: Vec<SegmentSummary>,
    /// What [`open`](crate::open) would cut off.
    pub torn: Option<Torn>,
    /// Why [`open`](crate::open) would refuse. Other reasons can be behind this one.
    pub refused: Option<OpenError>,
}

/// Reads a state directory as [`open`](crate::open) would, and changes nothing.
pub fn check(path: &Path, boot_id: [u8; 16]) -> Report {
    let mut survey = Survey::default();
    let mut in_use = false;
    let refused = (|| {
        dir::vet(path)?;
        // Held until everything is read.
        let lock = dir::share(path).map_err(OpenError::io(path))?;
        in_use = lock.is_none();
        survey.run(path, boot_id)
    })();
    let stored = survey.stored.unwrap_or_default();
    Report {
        in_use,
        mark: survey.stored.map(|stored| stored.mark),
        closed: stored.closed,
        crashed: survey.crashed || stored.unsettled,
        snapshot: survey.snapshot.as_ref().map(SnapshotSummary::from),
        segments: survey.segments,
        torn: survey.torn,
        refused: refused.err(),
    }
}

/// What [`reset`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Where the files are now: `old-1` in the directory, or the next number that was free.
    pub moved_to: PathBuf,
    /// Their names. A mark that could be read was copied there instead, and is not among them.
    pub files: Vec<String>,
    /// The previous mark, if it was readable; it stays in force. Without it, tokens begin anew, and
    /// earlier clients may hold locks that are granted again.
    pub mark: Option<Mark>,
}

/// Moves the files of a log, or of a daemon from before there was one, into a folder beside them.
/// The next [`open`](crate::open) finds an empty log and reports a crash with the previous mark.
/// Returns none if there was no file.
///
/// # Errors
///
/// [`OpenError`]. If only some files were moved, another reset moves the rest.
pub fn reset(path: &Path) -> Result<Option<Reset>, OpenError> {
    dir::vet_owner(path)?;
    let dir = Dir::lock(path)?;
    let listing = dir::list(dir.path())?;
    let name = |path: PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let segments = listing.segments.iter().map(|first| dir::segment_path(Path::new(""), *first));
    let snapshots = listing.snapshots.iter().map(|position| dir::snapshot_path(Path::new(""), *position));
    let mut files: Vec<String> = segments.chain(snapshots).filter_map(name).collect();
    files.extend(listing.unfinished);
    files.extend(listing.earlier);
    if files.is_empty() && !listing.mark {
        return Ok(None);
    }

    let moved_to = new_folder(dir.path())?;
    let failed = || OpenError::io(&moved_to);
    let stored = if listing.mark { mark::read(dir.path()).ok() } else { None };
    if let Some(stored) = stored {
        fs::copy(mark_path(dir.path()), mark_path(&moved_to)).map_err(failed())?;
        // First of all: if this is interrupted at any point, the remaining files are not trusted.
        let unsettled = Stored { unsettled: true, closed: false, synced: true, ..stored };
        MarkFile::open(&dir, stored).and_then(|mut marks| marks.store(unsettled)).map_err(failed())?;
    } else if listing.mark {
        files.push("mark".into());
    }
    for file in &files {
        fs::rename(dir.path().join(file), moved_to.join(file)).map_err(failed())?;
    }
    if stored.is_some() {
        Segment::create(&dir, 1, 0, true).map_err(failed())?;
    }
    dir.sync().map_err(failed())?;
    Ok(Some(Reset { moved_to, files, mark: stored.map(|stored| stored.mark) }))
}

fn new_folder(dir: &Path) -> Result<PathBuf, OpenError> {
    let mut number = 1;
    loop {
        let folder = dir.join(format!("old-{number}"));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(OpenError::Io { path: folder, error }),
        }
    }
}
