//! FIFOs: whether a local client is alive, independent of its connection and of the daemon.
//!
//! A session's client, and every process that inherited it, has the write end open. The daemon
//! opens the read end only to check: end of file means that no writer is left. It never keeps the
//! write end, nor opens a FIFO for reading and writing. A process that is stopped, frozen, or in
//! another PID namespace still has its end open.

use lockkeeper_service::{Fifo, SessionId};
use nix::{sys::stat, unistd::mkfifo};
use rustix::{
    fs::{FileType, Mode, OFlags, fstat, open},
    io::{Errno, read},
};
use std::{
    fs::{self, DirBuilder},
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::unix::pipe::Receiver;

/// When to ask again where a lack of resources prevents an answer.
const AGAIN: Duration = Duration::from_secs(1);

/// The FIFOs of a state directory, one for each session that has one.
pub(crate) struct Fifos {
    dir: PathBuf,
    boot: [u8; 16],
}

/// The result of checking a FIFO.
pub(crate) enum Life {
    /// It has a writer. The read end reports when it has none. There is no read end if a process
    /// writes to the FIFO: then it is checked again.
    Alive(Option<OwnedFd>),
    /// It has no writer, or is of another boot.
    Dead,
    /// Another file is at its path: unknown.
    Unverifiable,
    /// It cannot be asked just now.
    Busy(Errno),
}

impl Fifos {
    pub(crate) fn open(state_dir: &Path, boot: [u8; 16]) -> io::Result<Self> {
        let dir = state_dir.join("fifo");
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self { dir, boot })
    }

    /// Removes the files of ended sessions that a killed daemon left.
    pub(crate) fn remove_others(&self, is_session: impl Fn(SessionId) -> bool) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let session = entry.file_name().to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
            if session.is_none_or(|session| !is_session(session)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn path(&self, session: SessionId) -> PathBuf {
        self.dir.join(format!("{session:016x}"))
    }

    /// Makes a FIFO for a session, in the place of one that it may have had. Returns its write end.
    pub(crate) fn make(&self, session: SessionId) -> io::Result<(OwnedFd, Fifo)> {
        let path = self.path(session);
        self.remove(session);
        let mode = stat::Mode::S_IRUSR | stat::Mode::S_IWUSR;
        if let Err(nix::Error::ENOENT) = mkfifo(&path, mode) {
            // The directory was deleted under the daemon.
            DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            mkfifo(&path, mode)?;
        }
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // A FIFO without a reader cannot be opened for writing.
        let reader = open(&path, flags | OFlags::RDONLY, Mode::empty())?;
        let writer = open(&path, flags | OFlags::WRONLY, Mode::empty())?;
        let fifo = self.identify(&reader)?;
        Ok((writer, fifo))
    }

    pub(crate) fn remove(&self, session: SessionId) {
        let _ = fs::remove_file(self.path(session));
    }

    /// Asks whether a FIFO has a writer. It is read once: who writes to it could keep the daemon
    /// reading without end.
    pub(crate) fn ask(&self, session: SessionId, fifo: Fifo) -> Life {
        if fifo.boot != self.boot {
            return Life::Dead;
        }
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::RDONLY;
        let reader = match open(self.path(session), flags, Mode::empty()) {
            Ok(reader) => reader,
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR)) => {
                return Life::Busy(error);
            }
            Err(_) => return Life::Unverifiable,
        };
        match self.identify(&reader) {
            Ok(found) if found == fifo => {}
            _ => return Life::Unverifiable,
        }
        match read(&reader, &mut [0; 64]) {
            Ok(0) => Life::Dead,
            // Its writer may be gone. What it wrote goes with the last descriptor, and then the end
            // of file shows.
            Ok(_) => Life::Alive(None),
            Err(Errno::AGAIN) => Life::Alive(Some(reader)),
            Err(error) => Life::Busy(error),
        }
    }

    fn identify(&self, file: &OwnedFd) -> io::Result<Fifo> {
        let stat = fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        #[allow(clippy::useless_conversion, reason = "signed on some systems")]
        let device = u64::try_from(stat.st_dev).unwrap_or(u64::MAX);
        Ok(Fifo { device, inode: stat.st_ino, boot: self.boot })
    }
}

/// Waits until a FIFO that had a writer has none, or is worth another question.
pub(crate) async fn closed(reader: OwnedFd) {
    let Ok(reader) = Receiver::from_owned_fd_unchecked(reader) else {
        return tokio::time::sleep(AGAIN).await;
    };
    while reader.readable().await.is_ok() {
        match reader.try_read(&mut [0; 64]) {
            Ok(0) => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // No data is expected, but any process with the write end can write. Without a reader,
            // none can.
            Ok(_) | Err(_) => break,
        }
    }
    drop(reader);
    tokio::time::sleep(AGAIN).await;
}

/// When to ask a busy one again.
pub(crate) async fn pause() {
    #[cfg(feature = "sabotage")]
    if let Some(pause) = crate::sabotage::pause() {
        return tokio::time::sleep(pause).await;
    }
    tokio::time::sleep(AGAIN).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_is_alive_as_long_as_somebody_has_its_write_end() {
        let dir = std::env::temp_dir().join(format!("lockkeeper-fifo-{}", std::process::id()));
        let fifos = Fifos::open(&dir, [1; 16]).expect("a directory can be made");
        let (writer, fifo) = fifos.make(7).expect("a FIFO can be made");
        let inherited = writer.try_clone().expect("a descriptor can be cloned");
        assert!(matches!(fifos.ask(7, fifo), Life::Alive(Some(_))));
        drop(writer);
        assert!(matches!(fifos.ask(7, fifo), Life::Alive(Some(_))));
        drop(inherited);
        assert!(matches!(fifos.ask(7, fifo), Life::Dead));

        // Another FIFO at its place has no writer, which says nothing of the first.
        let (writer, again) = fifos.make(7).expect("a FIFO can be made");
        assert!(matches!(fifos.ask(7, Fifo { inode: fifo.inode + 1_000_000, ..fifo }), Life::Unverifiable));
        assert!(matches!(fifos.ask(7, again), Life::Alive(Some(_))));
        drop(writer);
        fifos.remove(7);
        assert!(matches!(fifos.ask(7, again), Life::Unverifiable));
        // Nothing of another boot is alive.
        assert!(matches!(fifos.ask(7, Fifo { boot: [2; 16], ..again }), Life::Dead));
        fs::remove_dir_all(dir).expect("it can be removed");
    }

    /// Two processes that write endlessly kept the daemon reading, and no client was served.
    #[test]
    fn a_fifo_is_asked_in_bounded_time_whatever_its_writer_writes() {
        let dir = std::env::temp_dir().join(format!("lockkeeper-fifo-full-{}", std::process::id()));
        let fifos = Fifos::open(&dir, [1; 16]).expect("a directory can be made");
        let (writer, fifo) = fifos.make(7).expect("a FIFO can be made");
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::RDONLY;
        let reader = open(fifos.path(7), flags, Mode::empty()).expect("it can be opened");
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        assert!(matches!(fifos.ask(7, fifo), Life::Alive(None)));
        assert!(read(&reader, &mut [0; 64]).is_ok_and(|read| read > 0), "it did not read all there was");
        drop(reader);
        assert!(matches!(fifos.ask(7, fifo), Life::Alive(None)));
        drop(writer);
        assert!(matches!(fifos.ask(7, fifo), Life::Dead));
        fs::remove_dir_all(dir).expect("it can be removed");
    }
}
