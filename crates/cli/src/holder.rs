//! Finds the process that holds a lock after the requesting process has exited: the command of a
//! killed `run`, or the shell of `lock`.
//!
//! A daemon knows the process that connected. The holder has the session's FIFO open, whose name is
//! the client id, or the pipe of a guardian that was started with the client id. It is searched for
//! among the visible processes of this machine, without the daemon. For a watcher that has the FIFO
//! open, its command is shown.

use crate::{
    lock::guardian::{self, client_guarded_by},
    process::{self, Process},
    run::{guard, watcher::watched_by},
    session,
};
use lockkeeper_client::Entry;
use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};
use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    sync::{Mutex, OnceLock},
    time::{Duration, Instant},
};

/// How long a scan stays valid: a list of locks needs the result once for each.
const FRESH: Duration = Duration::from_secs(1);

/// The process whose request it is, on the machine of the daemon. The daemon puts it before what
/// the client says.
pub(crate) fn pid(entry: &Entry) -> Option<u32> {
    let asked = asked_by(entry)?;
    match Process::of(asked).is_some_and(|process| !process.ended) {
        true => Some(asked),
        false => Some(find(&entry.client_id).unwrap_or(asked)),
    }
}

/// The same for a client on the network, whose process has that number on its own machine. None if
/// that process lives, or nothing of this machine has taken its place.
pub(crate) fn successor(entry: &Entry, asked: &str) -> Option<u32> {
    let lives = |process: Process| !process.ended;
    if Process::of(asked.parse().ok()?).is_some_and(lives) { None } else { find(&entry.client_id) }
}

/// Whether that process has ended: what holds the lock is another one, which the caller may not
/// see.
pub(crate) fn has_ended(entry: &Entry) -> bool {
    asked_by(entry).is_some_and(|asked| pid(entry) == Some(asked) && is_gone(asked) && shares_pids())
}

fn asked_by(entry: &Entry) -> Option<u32> {
    entry.owner.as_ref()?.strip_prefix("pid ")?.split(' ').next()?.parse().ok()
}

/// With `hidepid`, another user's process is not in `/proc`; a signal shows whether it exists.
fn is_gone(pid: u32) -> bool {
    let signalled = || test_kill_process(i32::try_from(pid).ok().and_then(Pid::from_raw)?).err();
    Process::of(pid).map_or_else(|| signalled() == Some(Errno::SRCH), |process| process.ended)
}

/// Whether the daemon's process ids are known to be those that this process sees. For a process in
/// another PID namespace, `/proc` has an id for each namespace.
fn shares_pids() -> bool {
    static SHARED: OnceLock<bool> = OnceLock::new();
    *SHARED.get_or_init(|| {
        let daemon = session::endpoint().ok().and_then(|endpoint| endpoint.server_pid());
        let status = daemon.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
        let ids =
            status.as_ref().and_then(|status| status.lines().find_map(|line| line.strip_prefix("NSpid:")));
        ids.is_some_and(|ids| ids.split_ascii_whitespace().count() == 1)
    })
}

fn find(client_id: &str) -> Option<u32> {
    static SEEN: Mutex<Option<(Instant, HashMap<String, u32>)>> = Mutex::new(None);
    let mut seen = SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if seen.as_ref().is_none_or(|(at, _)| at.elapsed() >= FRESH) {
        *seen = Some((Instant::now(), holders()));
    }
    seen.as_ref().and_then(|(_, holders)| holders.get(client_id).copied())
}

/// The process of each session that lives by a FIFO or has a guardian: the oldest, which started the
/// others. The guardian, if it cannot be seen whom that guards.
fn holders() -> HashMap<String, u32> {
    let pids = || process::all().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    let mut oldest: HashMap<String, (u64, u32)> = HashMap::new();
    let mut pipes = HashMap::new();
    for guardian in pids() {
        let Some((client, pipe)) = guarded(guardian) else { continue };
        pipes.extend(pipe.map(|pipe| (pipe, client.clone())));
        oldest.insert(client, (u64::MAX, guardian));
    }
    for pid in pids() {
        let born = Process::of(pid).map_or(u64::MAX, |process| process.born);
        let sessions = sessions(pid, &pipes);
        if sessions.is_empty() {
            continue;
        }
        let pid = watched_by(pid).unwrap_or(pid);
        for client in sessions {
            let holder = oldest.entry(client).or_insert((born, pid));
            *holder = (*holder).min((born, pid));
        }
    }
    oldest.into_iter().map(|(client, (_, pid))| (client, pid)).collect()
}

/// The client id of the session that a process guards, and the pipe that ends with what it guards.
fn guarded(pid: u32) -> Option<(String, Option<PathBuf>)> {
    // The guardian of a shell has it as its input, and that of a command as its output.
    [(guardian::COMMAND, 0), (guard::COMMAND, 1)].into_iter().find_map(|(command, descriptor)| {
        let client = client_guarded_by(pid, command)?;
        Some((client, fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).ok()))
    })
}

/// The client ids of sessions that a process keeps alive, by a FIFO or the pipe of a guardian. Only
/// Linux shows them, in `/proc`.
fn sessions(pid: u32, pipes: &HashMap<PathBuf, String>) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let held = files.filter_map(|file| {
        let target = fs::read_link(file.path()).ok()?;
        let client = match pipes.get(&target) {
            Some(client) => client.clone(),
            None => {
                let (folder, id) = target.to_str()?.rsplit_once('/')?;
                (folder.ends_with("/fifo") && is_id(id)).then(|| id.to_string())?
            }
        };
        is_for_writing(pid, file.file_name().to_str()?).then_some(client)
    });
    held.collect()
}

/// Whether a process may write to one of its descriptors. The daemon only reads FIFOs.
pub(crate) fn is_for_writing(pid: u32, descriptor: &str) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    // The access mode is in the last octal digit: 1 and 2 are for writing.
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.is_some_and(|flags| flags.trim_end().ends_with(['1', '2']))
}

fn is_id(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
