//! A durable log of opaque records in a directory of files, with snapshots.
//!
//! The daemon's state machine appends what it did, commits, and only then answers. After a kill or
//! a clean stop, [`open`] gives back the newest snapshot and every record after it. The crate knows
//! nothing of locks. It has no thread and no clock, and it never prints.
//!
//! # Files
//!
//! * `lock`: held by the process that has the log open.
//! * `mark`: the format, the boot in which the log was last written, and a [`Mark`]. Two copies in
//!   one file, replaced in place one after the other, so that it can be set on a full disk.
//! * `log-N`: a segment, whose first record is the Nth ever. A header, then one frame for each
//!   commit, then zeros.
//! * `snapshot-N`: the state after N records. A header, a frame for each chunk, a closing frame.
//!   It is written as `snapshot-N.new` and renamed when it is complete and on disk.
//!
//! A frame has a checksum (CRC-32C) over its length, its number and its content. The number of a
//! segment's frame is the position of its first record, and its checksum begins with a random
//! number of the segment, so neither bytes left over from elsewhere nor the content of a record can
//! be read as a frame. One frame for each *commit* makes a commit whole or absent: pages of a
//! commit that a power cut interrupted reach the disk in any order, and none of them can look like
//! a later commit.
//!
//! # Recovery
//!
//! A frame that is incomplete at the end of the last segment is a torn tail: its commit had not
//! returned, so nobody was told of it, and it is cut. A bad frame with a valid one after it, or a
//! missing segment, is damage, and [`open`] refuses. If the machine has crashed since the log was
//! written, and commits were not synced, the log ends at its first bad frame, wherever that is, and
//! [`Recovered::crash`] says so until [`Log::settle_crash`].
//!
//! # Decisions
//!
//! * **One `write` for each commit**, not a mapped segment. Mapping measured faster, by a tenth or
//!   two of a round trip through a Unix socket if each record is a commit of its own, and by less
//!   in batches. But it takes `unsafe`, which this workspace does without. `examples/speed.rs`
//!   prints what a record costs.
//! * **Space is preallocated in small steps** within the current segment. A whole segment ahead
//!   would need a thread, since on tmpfs it takes long enough to be noticed.
//! * **A snapshot is always synced**, in slices as it is written: it replaces everything before it.
//!   Its writer can be given to a thread, since a file system can take a tenth of a second for a
//!   sync.
//!
//! Preallocation is a promise on file systems that overwrite in place. On copy-on-write ones
//! (btrfs, ZFS, APFS) a commit can still fail for lack of space, and then ends the process.
#![forbid(unsafe_code)]

mod check;
mod dir;
mod error;
mod format;
mod log;
mod mark;
mod recover;
mod segment;
mod snapshot;

pub use check::{Report, Reset, check, reset};
pub use error::{Damage, Full, OpenError, Torn};
pub use log::{Log, Priority, RECORD_OVERHEAD};
pub use mark::Mark;
pub use recover::{Crash, Records, Recovered, SegmentSummary, open};
pub use snapshot::{FinishedSnapshot, Snapshot, SnapshotSummary, SnapshotWriter};

use std::path::PathBuf;

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the files are. Created, with mode 0700, if it is not there.
    pub dir: PathBuf,
    /// A segment that has grown beyond this many bytes is followed by a new one.
    pub segment_bytes: u64,
    /// Whether a commit is on disk when it returns. Without it, a commit survives the process but
    /// not a crash of the machine.
    pub sync: bool,
    /// Identifies the current boot of the machine.
    pub boot_id: [u8; 16],
    /// Bytes that [`Priority::Normal`] leaves untouched for [`Priority::Release`].
    pub reserve: u64,
}
