//! The thread that writes a snapshot.
//!
//! A sync, or the removal of a large file, can take a tenth of a second. The daemon serializes a
//! slice at a time and passes it to this thread; it waits for the thread only at its own end.

use lockkeeper_log::{FinishedSnapshot, SnapshotWriter};
use std::{
    fs, io,
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, TryRecvError, channel},
    thread::{Builder, JoinHandle},
};

/// Slices that wait to be written. More would only take memory.
const WAITING: usize = 4;

/// A snapshot that is being written.
pub(crate) struct Snapshot {
    /// Slices for the thread; none once all are there.
    slices: Option<Sender<Option<Vec<u8>>>>,
    written: Receiver<io::Result<Option<FinishedSnapshot>>>,
    waiting: usize,
    pub(crate) bytes: u64,
    thread: Option<JoinHandle<()>>,
}

/// The thread's next work.
pub(crate) enum Progress {
    Busy,
    NextSlice,
    Finished(FinishedSnapshot),
}

impl Snapshot {
    pub(crate) fn begin(mut writer: SnapshotWriter) -> io::Result<Self> {
        let (slices, to_write) = channel::<Option<Vec<u8>>>();
        let (report, written) = channel();
        let write = move || {
            while let Ok(slice) = to_write.recv() {
                let done = match slice {
                    Some(slice) => writer.write(&slice).map(|()| None),
                    None => {
                        let _ = report.send(writer.finish().map(Some));
                        return;
                    }
                };
                let failed = done.is_err();
                if report.send(done).is_err() || failed {
                    return;
                }
            }
        };
        let thread = Some(Builder::new().name("snapshot".into()).spawn(write)?);
        Ok(Self { slices: Some(slices), written, waiting: 0, bytes: 0, thread })
    }

    /// Never waits.
    pub(crate) fn progress(&mut self) -> io::Result<Progress> {
        loop {
            match self.written.try_recv() {
                Ok(done) => match done? {
                    Some(finished) => return Ok(Progress::Finished(finished)),
                    None => self.waiting -= 1,
                },
                Err(TryRecvError::Empty) if self.slices.is_some() && self.waiting < WAITING => {
                    return Ok(Progress::NextSlice);
                }
                Err(TryRecvError::Empty) => return Ok(Progress::Busy),
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("its thread has ended")),
            }
        }
    }

    /// Passes a slice on. After the last one, only [`Progress::Finished`] follows.
    pub(crate) fn slice(&mut self, slice: Vec<u8>, last: bool) {
        let Some(slices) = &self.slices else { return };
        self.bytes += slice.len() as u64;
        self.waiting += 1;
        // If the thread has ended, `progress` says why.
        let _ = slices.send(Some(slice));
        if last {
            let _ = slices.send(None);
            self.slices = None;
        }
    }
}

impl Drop for Snapshot {
    /// Abandons it, if it is not finished. Nothing of it is left, so that another can begin.
    fn drop(&mut self) {
        self.slices = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Removes files that the log does not need any more. The next start removes remaining ones.
pub(crate) fn remove(files: Vec<PathBuf>) {
    let remove = move || files.iter().for_each(|file| _ = fs::remove_file(file));
    let _ = Builder::new().name("remove".into()).spawn(remove);
}
