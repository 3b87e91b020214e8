//! Resources of the machine for faults: a small disk that can be filled, a cgroup that can be
//! frozen, and limits of descriptors.
//!
//! Not every machine allows them. A fault that is not possible is reported by name, and never
//! counted as done.

use rustix::{
    io::Errno,
    process::{Pid, Resource, Rlimit, geteuid, prlimit},
};
use std::{
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Kinds of faults, and namespaces, that this machine does not allow, and why.
pub fn not_allowed() -> Vec<(&'static str, String)> {
    let mut kinds = Vec::new();
    if !is_root() {
        kinds.push(("full-disk", "only root can mount a small disk".into()));
    }
    if let Err(error) = Freezer::new("probe") {
        kinds.push(("freeze", format!("no cgroup can be frozen: {error}")));
    }
    if let Err(error) = run(in_namespace(Path::new("true")).stderr(Stdio::null())) {
        kinds.push(("namespaces", format!("no PID namespace can be made: {error}")));
    }
    kinds
}

/// A program in a separate PID namespace, as the only child of the process that is started.
pub(crate) fn in_namespace(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork"]).arg(program);
    command
}

/// Whether this is root.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// A small disk. It is unmounted when it is dropped.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Mounts one at a directory, which it makes.
    pub(crate) fn mount(dir: &Path, size: &str) -> io::Result<Self> {
        fs::create_dir(dir)?;
        let options = format!("size={size},mode=700");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(dir))?;
        Ok(Self(dir.into()))
    }

    /// Takes all space that is left.
    pub(crate) fn fill(&self) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.filler())?;
        for size in [64 << 10, 4096, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn clear(&self) -> io::Result<()> {
        match fs::remove_file(self.filler()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A process that still has a file open there keeps it until then.
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    match command.status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("{command:?}: {status}"))),
    }
}

/// A cgroup whose processes can be frozen. It is removed when it is dropped, and thawed before.
pub(crate) struct Freezer {
    dir: PathBuf,
    /// The file that freezes, and what is written to it to freeze and to thaw.
    switch: (PathBuf, &'static str, &'static str),
}

impl Freezer {
    /// Makes one, in the second version of cgroups or the first.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let name = format!("lockkeeper-faults-{}-{name}", std::process::id());
        let places = [
            ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
        ];
        let mut why = io::Error::from(ErrorKind::Unsupported);
        for (root, file, freeze, thaw) in places {
            // In a tmpfs that has the controllers in it, too, a directory could be made.
            if !Path::new(root).join("cgroup.procs").is_file() {
                continue;
            }
            let dir = Path::new(root).join(&name);
            if let Err(error) = fs::create_dir(&dir) {
                why = error;
                continue;
            }
            let freezer = Self { switch: (dir.join(file), freeze, thaw), dir };
            match freezer.thaw() {
                Ok(()) => return Ok(freezer),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Freezes processes, with all their threads. One that ends meanwhile is left out.
    pub(crate) fn freeze(&self, processes: &[Pid]) -> io::Result<()> {
        for process in processes {
            let moved = fs::write(self.dir.join("cgroup.procs"), process.as_raw_nonzero().to_string());
            moved.or_else(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::SRCH) => Ok(()),
                _ => Err(error),
            })?;
        }
        fs::write(&self.switch.0, self.switch.1)
    }

    pub(crate) fn thaw(&self) -> io::Result<()> {
        OpenOptions::new().write(true).open(&self.switch.0)?.write_all(self.switch.2.as_bytes())
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = self.thaw();
        // It can be removed when its processes have ended.
        let until = Instant::now() + Duration::from_secs(5);
        while matches!(fs::remove_dir(&self.dir), Err(error) if error.kind() == ErrorKind::ResourceBusy)
            && Instant::now() < until
        {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Leaves a process no descriptor beyond those it has; or as many as it wants.
pub(crate) fn limit_descriptors(pid: Pid, limited: bool) -> io::Result<()> {
    let open = || fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).map(|all| all.count() as u64);
    let current = if limited { open()? } else { PLENTY };
    let maximum = Some(PLENTY);
    match prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(current), maximum }) {
        // It has ended meanwhile.
        Err(Errno::SRCH) => Ok(()),
        result => result.map(drop).map_err(Into::into),
    }
}

/// How many descriptors a daemon has, unless they are limited.
pub(crate) const PLENTY: u64 = 1024;
