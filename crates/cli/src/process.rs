//! Information on other processes: from `/proc` on Linux, from libproc on macOS.
//!
//! No lock's safety depends on it, except that [`all`] and [`Process::parent`] find the descendants
//! of a command.

use rustix::process::Pid;
use std::path::PathBuf;

/// A process, as it is now.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) parent: u32,
    /// It has ended, and its parent has not waited for it yet.
    pub(crate) ended: bool,
    /// Stopped by a signal.
    pub(crate) stopped: bool,
    /// When it was started, to compare: process ids begin anew.
    pub(crate) born: u64,
    /// For how many seconds it has run.
    pub(crate) seconds: Option<u64>,
}

impl Process {
    /// None if there is none of that number, or none that this one may see.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        system::process(pid)
    }
}

/// All processes that this one may see.
pub(crate) fn all() -> impl Iterator<Item = Pid> {
    system::all().into_iter().filter_map(Pid::from_raw)
}

/// The process that was started last, where the system shows it.
pub(crate) fn newest() -> Option<Pid> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    Pid::from_raw(load.split_ascii_whitespace().last()?.parse().ok()?)
}

/// The name of its program.
pub(crate) fn name(pid: u32) -> Option<String> {
    system::name(pid)
}

/// The file that it runs. It may be gone from where it was.
pub(crate) fn program(pid: u32) -> Option<PathBuf> {
    system::program(pid)
}

#[cfg(not(target_vendor = "apple"))]
mod system {
    use super::Process;
    use std::{fs, path::PathBuf};

    /// A constant: Linux uses a hundred ticks a second in all its interfaces for programs.
    const TICKS: u64 = 100;

    pub(super) fn all() -> Vec<i32> {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    pub(super) fn process(pid: u32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may have anything in it.
        let mut words = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (words.next()?, words.next()?.parse().ok()?);
        let born: u64 = words.nth(17)?.parse().ok()?;
        let ended = state.starts_with(['Z', 'X']);
        let stopped = state.starts_with(['T', 't']);
        let seconds = uptime().and_then(|now| now.checked_sub(born / TICKS));
        Some(Process { parent, ended, stopped, born, seconds })
    }

    fn uptime() -> Option<u64> {
        let now = fs::read_to_string("/proc/uptime").ok()?;
        now.split('.').next()?.parse().ok()
    }

    pub(super) fn name(pid: u32) -> Option<String> {
        Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().into())
    }

    pub(super) fn program(pid: u32) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{pid}/exe")).ok()
    }
}

#[cfg(target_vendor = "apple")]
#[expect(unsafe_code, reason = "no safe wrapper has these calls")]
mod system {
    use super::Process;
    use std::{
        ffi::{CStr, OsStr, c_int, c_void},
        mem::MaybeUninit,
        os::unix::ffi::OsStrExt,
        path::PathBuf,
        ptr,
        time::{Duration, SystemTime, UNIX_EPOCH},
    };

    pub(super) fn all() -> Vec<i32> {
        // SAFETY: without a buffer it returns their number.
        let count = unsafe { libc::proc_listallpids(ptr::null_mut(), 0) };
        // Some may be started before the next call.
        let mut all = vec![0_i32; usize::try_from(count).unwrap_or(0) + 256];
        let size = c_int::try_from(size_of_val(&all[..])).unwrap_or(c_int::MAX);
        // SAFETY: it writes at most as many bytes as the buffer has.
        let count = unsafe { libc::proc_listallpids(all.as_mut_ptr().cast(), size) };
        all.truncate(usize::try_from(count).unwrap_or(0));
        all
    }

    fn info(pid: u32) -> Option<libc::proc_bsdinfo> {
        let pid = c_int::try_from(pid).ok()?;
        let mut info = MaybeUninit::<libc::proc_bsdinfo>::uninit();
        let size = c_int::try_from(size_of::<libc::proc_bsdinfo>()).ok()?;
        let buffer = info.as_mut_ptr().cast::<c_void>();
        // SAFETY: it writes at most as many bytes as the buffer has.
        let written = unsafe { libc::proc_pidinfo(pid, libc::PROC_PIDTBSDINFO, 0, buffer, size) };
        // SAFETY: all of it was written, and it is plain data.
        (written == size).then(|| unsafe { info.assume_init() })
    }

    pub(super) fn process(pid: u32) -> Option<Process> {
        let info = info(pid)?;
        let born = Duration::new(info.pbi_start_tvsec, 0) + Duration::from_micros(info.pbi_start_tvusec);
        let ran = SystemTime::now().duration_since(UNIX_EPOCH + born);
        Some(Process {
            parent: info.pbi_ppid,
            ended: info.pbi_status == libc::SZOMB,
            stopped: info.pbi_status == libc::SSTOP,
            born: u64::try_from(born.as_micros()).unwrap_or(u64::MAX),
            seconds: ran.ok().map(|ran| ran.as_secs()),
        })
    }

    pub(super) fn name(pid: u32) -> Option<String> {
        let name = info(pid)?.pbi_comm.map(|byte| byte.cast_unsigned());
        Some(CStr::from_bytes_until_nul(&name).ok()?.to_string_lossy().into_owned())
    }

    pub(super) fn program(pid: u32) -> Option<PathBuf> {
        let mut path = [0_u8; libc::PROC_PIDPATHINFO_MAXSIZE as usize];
        let size = u32::try_from(path.len()).ok()?;
        // SAFETY: it writes at most as many bytes as the buffer has.
        let length =
            unsafe { libc::proc_pidpath(c_int::try_from(pid).ok()?, path.as_mut_ptr().cast(), size) };
        let length = usize::try_from(length).ok().filter(|length| *length > 0)?;
        Some(OsStr::from_bytes(&path[..length]).into())
    }
}

#[cfg(test)]
mod tests {
    use super::{Process, all, name, program};
    use std::{env, os::unix::process::parent_id, process::id};

    #[test]
    fn this_process_is_known() {
        let me = Process::of(id()).expect("it runs");
        assert_eq!(me.parent, parent_id());
        assert!(!me.ended && !me.stopped && me.seconds.is_some_and(|seconds| seconds < 3600), "{me:?}");
        let parent = Process::of(parent_id()).expect("it runs");
        assert!(parent.born <= me.born, "{parent:?} {me:?}");
        assert!(all().any(|pid| pid.as_raw_nonzero().get().unsigned_abs() == id()));
        assert!(name(id()).is_some_and(|name| !name.is_empty()));
        assert_eq!(program(id()), env::current_exe().ok());
    }

    #[test]
    fn one_that_is_not_there_is_not_known() {
        assert!(Process::of(u32::MAX).is_none() && name(u32::MAX).is_none() && program(u32::MAX).is_none());
    }
}
