//! Directories that go with their tests.

use std::{
    env, fs,
    ops::Deref,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

pub(crate) struct Temp {
    path: PathBuf,
    /// Whether it was made here.
    ours: bool,
}

impl Temp {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("lockkeeper-protocol-{}-{number}", process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).expect("a directory for the test");
        Self { path, ours: true }
    }

    /// One that somebody else looks after.
    pub(crate) fn given(path: &Path) -> Self {
        Self { path: path.into(), ours: false }
    }
}

impl Deref for Temp {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
