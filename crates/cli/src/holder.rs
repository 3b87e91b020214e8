//! Which process holds a lock when the one that asked for it is gone: the command of a `run` that
//! was killed, or the shell of `lock`.
//!
//! A daemon knows the process that has connected. What lives on has its FIFO, whose name is the client id, or is its guardian.
//! That is looked up among the processes of this machine that the caller may see; nothing is asked of the daemon.

use crate::lock;
use lockkeeper_client::Entry;
use rustix::process::Pid;
use std::{
    collections::HashMap,
    fs,
    sync::Mutex,
    time::{Duration, Instant},
};

/// How long what was seen counts: a list of locks asks once for each.
const FRESH: Duration = Duration::from_secs(1);

/// The process whose request it is, on the machine of the daemon. The daemon puts it before what
/// the client says.
pub(crate) fn pid(entry: &Entry) -> Option<u32> {
    let asked = entry.owner.as_ref()?.strip_prefix("pid ")?.split(' ').next()?.parse().ok()?;
    match runs(asked) {
        true => Some(asked),
        // In another PID namespace, that says nothing.
        false => Some(find(&entry.client_id).unwrap_or(asked)),
    }
}

fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn find(client_id: &str) -> Option<u32> {
    static SEEN: Mutex<Option<(Instant, HashMap<String, u32>)>> = Mutex::new(None);
    let mut seen = SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if seen.as_ref().is_none_or(|(at, _)| at.elapsed() >= FRESH) {
        *seen = Some((Instant::now(), holders()));
    }
    seen.as_ref().and_then(|(_, holders)| holders.get(client_id).copied())
}

/// The process of each session that lives by a FIFO or by a shell's guardian: the oldest, which started the others.
fn holders() -> HashMap<String, u32> {
    let mut oldest: HashMap<String, (u64, u32)> = HashMap::new();
    for pid in processes() {
        let pid = pid.as_raw_nonzero().get().unsigned_abs();
        let born = born(pid);
        for client in sessions(pid) {
            let holder = oldest.entry(client).or_insert((born, pid));
            *holder = (*holder).min((born, pid));
        }
    }
    oldest.into_iter().map(|(client, (_, pid))| (client, pid)).collect()
}

/// All processes that this one may see.
pub(crate) fn processes() -> impl Iterator<Item = Pid> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// When a process was started: process ids begin anew.
fn born(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let born = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19));
    born.and_then(|born| born.parse().ok()).unwrap_or(u64::MAX)
}

/// The client ids of sessions that a process keeps alive.
fn sessions(pid: u32) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let fifos = files.filter_map(|file| {
        let target = fs::read_link(file.path()).ok()?;
        let (folder, id) = target.to_str()?.rsplit_once('/')?;
        let is_held =
            folder.ends_with("/fifo") && is_id(id) && is_for_writing(pid, file.file_name().to_str()?);
        is_held.then(|| id.to_string())
    });
    fifos.chain(lock::guardian::client_of(pid)).collect()
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
