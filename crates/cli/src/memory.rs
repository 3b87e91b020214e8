//! The memory limit of this process. A daemon that stays below it can refuse a request with a
//! reason; above it, the operating system kills the daemon.

use rustix::process::{Resource, getrlimit};
use std::fs;

/// The least of what the limits of the process, of its control group, and the machine allow, if any
/// of that is known. `hard` is for a process that is about to raise its own limits.
pub(crate) fn available(hard: bool) -> Option<u64> {
    let of_process = [Resource::As, Resource::Data].into_iter().filter_map(|resource| {
        let limit = getrlimit(resource);
        if hard { limit.maximum } else { limit.current }
    });
    of_process.chain(of_group()).chain(of_machine()).min()
}

/// The limit of the control group, in both versions of those.
fn of_group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let limit = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let file = match controllers {
            "" => format!("/sys/fs/cgroup{path}/memory.max"),
            "memory" => format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"),
            _ => return None,
        };
        fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    groups.lines().filter_map(limit).min()
}

#[cfg(not(target_vendor = "apple"))]
fn of_machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(target_vendor = "apple")]
#[expect(unsafe_code, reason = "no safe wrapper has this call")]
fn of_machine() -> Option<u64> {
    // SAFETY: it has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).ok()?.checked_mul(rustix::param::page_size() as u64)
}
