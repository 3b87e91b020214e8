//! The log of a daemon that was started on demand: a file beside its socket, of bounded size.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

/// As large as it gets. One that is full is kept, under another name, until the next is.
const LIMIT: u64 = 1 << 20;

/// Writes to the file, and drops what cannot be written: the daemon serves with a full disk.
pub(crate) struct LogFile {
    path: PathBuf,
    file: Option<File>,
    size: u64,
}

impl LogFile {
    pub(crate) fn open(path: PathBuf) -> Self {
        let mut log = Self { path, file: None, size: 0 };
        log.reopen();
        log
    }

    fn reopen(&mut self) {
        self.file = File::options().create(true).append(true).mode(0o600).open(&self.path).ok();
        let size = self.file.as_ref().and_then(|file| file.metadata().ok()).map(|file| file.len());
        self.size = size.unwrap_or(0);
    }

    /// The file, to be standard error.
    pub(crate) fn file(&self) -> Option<File> {
        self.file.as_ref().and_then(|file| file.try_clone().ok())
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.size >= LIMIT {
            let _ = fs::rename(&self.path, self.path.with_extension("log.old"));
            self.reopen();
        }
        if let Some(file) = &mut self.file
            && file.write_all(bytes).is_ok()
        {
            self.size += bytes.len() as u64;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, LogFile};
    use std::{env, fs, io::Write, process};

    #[test]
    fn a_log_does_not_grow_without_end() {
        let dir = env::temp_dir().join(format!("lockkeeper-log-file-{}", process::id()));
        fs::create_dir(&dir).expect("it is new");
        let path = dir.join("daemon.log");
        let mut log = LogFile::open(path.clone());
        let line = [b'x'; 1 << 16];
        for _ in 0..40 {
            log.write_all(&line).expect("it never fails");
        }
        let sizes: Vec<u64> = fs::read_dir(&dir)
            .expect("it is there")
            .flatten()
            .map(|file| file.metadata().expect("it is").len())
            .collect();
        assert_eq!(sizes.len(), 2);
        assert!(sizes.iter().all(|&size| size <= LIMIT + line.len() as u64), "{sizes:?}");
        let nowhere = LogFile::open(dir.join("no/daemon.log")).write(b"x");
        assert_eq!(nowhere.expect("it is as if it were written"), 1);
        fs::remove_dir_all(dir).expect("it is ours");
    }
}
