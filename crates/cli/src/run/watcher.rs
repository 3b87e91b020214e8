//! Holds a local lock for a command that closes inherited descriptors, such as `ssh` and `sudo`.
//!
//! A local lock lasts while a process has the session's FIFO open: `run`, and the command, which
//! inherits it. If the command closes it and `run` is killed, no such process is left. So `run`
//! forks a watcher, which has the FIFO open until the command's process ends. The watcher has no
//! connection, decides nothing, and receives no signal but SIGKILL and SIGSTOP. It is a fork
//! without exec, because an exec would take as long as the rest of `run`.
//!
//! The command is executed once its process is watched. So a `run` that is killed at any moment
//! leaves either no command or one that has its lock. The watcher needs Linux 5.9. Elsewhere such a
//! command has its lock only while `run` lives.

use super::guard::Hired;
#[cfg(target_os = "linux")]
pub(super) use linux::hire;
#[cfg(target_os = "linux")]
pub(crate) use linux::watched_by;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A watcher, as `run` has it.
pub(super) struct Watcher {
    pub(super) hired: Hired,
    process: Pid,
}

impl Drop for Watcher {
    /// The command has ended, or there is none, so the watcher ends. `run` waits for it: the first
    /// process of a container often waits for none but its own.
    fn drop(&mut self) {
        // It may be stopped.
        let _ = kill_process(self.process, Signal::KILL);
        let _ = waitpid(Some(self.process), WaitOptions::empty());
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn hire(_: &std::os::fd::OwnedFd) -> std::io::Result<Option<Watcher>> {
    Ok(None)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn watched_by(_: u32) -> Option<u32> {
    None
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "it forks, and what it does then must not allocate")]
mod linux {
    use super::Watcher;
    use crate::{
        process,
        run::{
            child::told,
            guard::{ALLOWED, Hired},
        },
    };
    use rustix::{
        event::{PollFd, PollFlags, poll},
        io::Errno,
        process::{Pid, PidfdFlags, chdir, pidfd_open, setsid},
    };
    use std::{
        ffi::CStr,
        fs, io,
        mem::MaybeUninit,
        os::{
            fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
            unix::net::UnixStream,
        },
        ptr,
    };

    /// The name in `ps`. The system keeps 15 bytes.
    const NAME: &CStr = c"lockkeeper-wait";

    /// The watcher's open descriptors, by number. The last is that of the command's process.
    const FIFO: RawFd = 0;
    const CONTROL: RawFd = 1;
    const ALLOWS: RawFd = 2;
    const COMMAND: RawFd = 3;

    /// Starts a watcher.
    pub(in crate::run) fn hire(fifo: &OwnedFd) -> io::Result<Option<Watcher>> {
        let (control, its_control) = UnixStream::pair()?;
        let (allowed, allows) = io::pipe()?;
        let files = [fifo.as_raw_fd(), its_control.as_raw_fd(), allows.as_raw_fd()];
        // SAFETY: the new process has one thread, and leaves only by `_exit`. Until then it makes
        // system calls, and neither allocates nor locks.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                watch(files);
                // SAFETY: it ends the process, and runs nothing of what was forked.
                unsafe { libc::_exit(0) }
            }
            process => {
                let hired = Hired { control, allowed };
                Ok(Pid::from_raw(process).map(|process| Watcher { hired, process }))
            }
        }
    }

    /// Returns when the command has ended, or none will be executed.
    fn watch(files: [RawFd; 3]) {
        leave();
        let Ok(leaves_nothing_open) = keep_only(files) else { return };
        let Some(command) = command() else { return };
        let exit = pidfd_open(command, PidfdFlags::empty());
        // SAFETY: these are open, and used by nobody else in this process.
        let [control, allows] = [CONTROL, ALLOWS].map(|number| unsafe { BorrowedFd::borrow_raw(number) });
        let is_allowed = rustix::io::write(allows, &[ALLOWED]);
        for file in [control, allows] {
            // SAFETY: it is not used any more.
            unsafe { rustix::io::close(file.as_raw_fd()) };
        }
        if let (true, Ok(exit), Ok(_)) = (leaves_nothing_open, exit, is_allowed) {
            let mut exit = [PollFd::new(&exit, PollFlags::IN)];
            while poll(&mut exit, None) == Err(Errno::INTR) {}
        }
    }

    /// Leaves the job, the terminal and the folder of `run`.
    fn leave() {
        let mut signals = MaybeUninit::uninit();
        // SAFETY: the set is filled before it is used, the name ends with a zero byte, and the old
        // value is not requested.
        unsafe {
            libc::sigfillset(signals.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, signals.as_ptr(), ptr::null_mut());
            libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        }
        let _ = setsid();
        let _ = chdir(c"/");
    }

    /// Moves the files to their numbers. Returns whether all others could be closed.
    fn keep_only(files: [RawFd; 3]) -> io::Result<bool> {
        // Above these numbers at first, so that none takes another's place.
        // SAFETY: plain system calls on descriptors of this process.
        let above = files.map(|file| unsafe { libc::fcntl(file, libc::F_DUPFD, COMMAND) });
        for (file, number) in above.into_iter().zip([FIFO, CONTROL, ALLOWS]) {
            // SAFETY: as above.
            if unsafe { libc::dup2(file, number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        // SAFETY: as above. Nothing in this process uses what `run` had open.
        Ok(unsafe { libc::syscall(libc::SYS_close_range, COMMAND, u32::MAX, 0) } == 0)
    }

    /// The process that says that it becomes the command.
    fn command() -> Option<Pid> {
        let mut line = [0; 32];
        let mut length = 0;
        while !line[..length].ends_with(b"\n") {
            // SAFETY: it is open, and used by nobody else in this process.
            let control = unsafe { BorrowedFd::borrow_raw(CONTROL) };
            match rustix::io::read(control, &mut line[length..]) {
                Ok(0) | Err(_) => return None,
                Ok(read) => length += read,
            }
        }
        told(str::from_utf8(&line[..length]).ok()?.trim_end()).map(|(command, _)| command)
    }

    /// The command for which that process holds a lock, if it is a watcher.
    pub(crate) fn watched_by(pid: u32) -> Option<u32> {
        process::name(pid).filter(|name| name.as_bytes() == NAME.to_bytes())?;
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{COMMAND}")).ok()?;
        info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
    }
}
