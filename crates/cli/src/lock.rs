//! `lockkeeper lock` and `unlock`: a lock for the rest of a script.
//!
//! A local session lives as long as somebody has its FIFO open for writing. What `lock` prints has
//! the shell open it, and say so with a byte; until then a helper, `lockkeeper keep`, has it open,
//! for 10 s at most. The shell opens both through the helper's entries in `/proc`. A session with a
//! lease, and one whose FIFO the shell cannot open, has a [`guardian`].

pub(crate) mod guardian;

use crate::{
    Done, Failure, acquire,
    args::{Lock, Unlock},
    exit,
    run::{child::inherit, label},
    session, show,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Access, AtFlags, CWD, accessat},
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    process::{Command, ExitCode, Stdio},
    sync::mpsc,
};

/// What the shell holds: for each `lock`, the client id of its session, the process id of its guardian if it has one, and its
/// names, as words of `LOCKKEEPER_NAMES`: `5f0c7d1e2a9b4c38/4711=deploy`.
const LOCKS: &str = "LOCKKEEPER_LOCKS";

/// How long the shell may take to run what it is told.
const TAKE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

pub(crate) fn lock(args: Lock) -> Done {
    let locked = print_lock(&args);
    if let Err((code, _)) = &locked {
        print_failure(*code);
    }
    locked
}

/// A script must not go on without its lock, which `eval` of nothing would have it do.
pub(crate) fn print_failure(code: u8) {
    println!("case $- in *i*) (exit {code}) ;; *) exit {code} ;; esac");
}

fn print_lock(args: &Lock) -> Done {
    // Before anything else is opened.
    let descriptor = free_descriptor()?;
    let system = |error: io::Error| (exit::SOFTWARE, error.to_string());
    let (sender, news) = mpsc::channel();
    let (name, pid) = shell();
    let held = acquire::acquire(&args.lock, (label(&[name]), pid), &sender, &news)?;
    let fifo = held.session.fifo().map_err(system)?;
    // The FIFO of another user's daemon cannot be opened again.
    let fifo = fifo.filter(|fifo| {
        let path = format!("/proc/self/fd/{}", fifo.as_raw_fd());
        accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
    });
    let (take, guardian) = match fifo {
        Some(fifo) => (take_fifo(fifo, descriptor)?, None),
        None => {
            let lost = || (exit::UNAVAILABLE, "the session was lost: try again".to_string());
            let guardian = guardian::hire(&held.session.give_away().ok_or_else(lost)?)?;
            let take = format!("exec {descriptor}>{} && echo >&{descriptor}", guardian::pipe(guardian));
            (take, Some(guardian))
        }
    };
    let client = (held.environment.client_id.as_str(), guardian);
    let words = [
        format!("{{ {take}; }} || exit 69").into_bytes(),
        export(&held.environment.variables()),
        export(&[(LOCKS, with(client, &args.lock.names))]),
    ];
    // Not closed, which would end it: it goes on without this process.
    std::mem::forget(held);
    io::stdout().write_all(&[&words.join(&b"; "[..])[..], b"\n"].concat()).map_err(system)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the helper. Returns what has the shell open the FIFO.
fn take_fifo(fifo: OwnedFd, descriptor: u8) -> Result<String, Failure> {
    let system = |error: io::Error| (exit::SOFTWARE, error.to_string());
    let (told, tell) = io::pipe().map_err(system)?;
    let kept = inherit(fifo).map_err(system)?;
    let tell = inherit(OwnedFd::from(tell)).map_err(system)?;
    let mut helper = Command::new(session::program()?);
    helper.arg("keep").stdin(Stdio::from(OwnedFd::from(told))).stdout(Stdio::null()).stderr(Stdio::null());
    let files = format!("/proc/{}/fd", helper.spawn().map_err(system)?.id());
    let (kept, tell) = (kept.as_raw_fd(), tell.as_raw_fd());
    Ok(format!("exec {descriptor}>{files}/{kept} && echo >{files}/{tell}"))
}

/// `lockkeeper keep`, which only `lock` starts: has the FIFO open until the shell says that it has.
pub(crate) fn keep() -> Done {
    // What ends the shell's job must not end this.
    let _ = rustix::process::setsid();
    let _ = poll(&mut [PollFd::new(&io::stdin(), PollFlags::IN)], Some(&TAKE));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn unlock(args: Unlock) -> Done {
    let words = names(&args.names);
    let locks = env::var_os(LOCKS).unwrap_or_default();
    let (mut local, mut ended) = (Vec::new(), 0);
    for (client, guardian) in locks.as_bytes().split(|&byte| byte == b' ').filter_map(|lock| {
        let at = lock.iter().position(|&byte| byte == b'=')?;
        let client = std::str::from_utf8(&lock[..at]).ok().filter(|_| lock[at + 1..] == words)?;
        Some(client.split_once('/').map_or((client, None), |(client, pid)| (client, Some(pid))))
    }) {
        let Some(guardian) = guardian else {
            local.push(client);
            continue;
        };
        // It may have released the lock before, or somebody has killed it.
        let dismissed = guardian.parse().ok().and_then(|guardian| guardian::dismiss(guardian, client));
        ended += dismissed.transpose()?.map_or(0, |()| 1);
    }
    if !local.is_empty() {
        let session = session::open_running(&session::endpoint()?).map_err(session::failed)?;
        for client in local {
            ended += session::ask(&session, |session, then| session.end_session_then(client, then))?;
        }
    }
    match ended {
        0 => {
            let names: Vec<String> =
                args.names.iter().map(|name| show::name(&crate::args::name(name))).collect();
            Err((1, format!("{}: this shell does not hold it", names.join(", "))))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// A descriptor that the shell, whose own this process has inherited, does not use. Shells take one digit.
fn free_descriptor() -> Result<u8, (u8, String)> {
    let used = |number: &u8| fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    let none = || (exit::USAGE, "the shell has no descriptor left below 10".to_string());
    (3..10).rev().find(|number| !used(number)).ok_or_else(none)
}

/// The program that wants the lock, and its process.
fn shell() -> (OsString, u32) {
    let pid = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    (name.map_or_else(|_| "sh".into(), |name| name.trim().into()), pid)
}

/// The locks of this shell, and one more.
fn with((client_id, guardian): (&str, Option<u32>), held: &[OsString]) -> OsString {
    let mut locks = env::var_os(LOCKS).unwrap_or_default().into_vec();
    if !locks.is_empty() {
        locks.push(b' ');
    }
    locks.extend(client_id.bytes());
    if let Some(guardian) = guardian {
        locks.extend(format!("/{guardian}").bytes());
    }
    locks.push(b'=');
    locks.extend(names(held));
    OsString::from_vec(locks)
}

fn names(names: &[OsString]) -> Vec<u8> {
    let words: Vec<Vec<u8>> = names.iter().map(|name| acquire::encode(name)).collect();
    words.join(&b',')
}

/// Sets variables in a shell.
fn export(variables: &[(&str, OsString)]) -> Vec<u8> {
    let words = variables.iter().map(|(name, value)| [name.as_bytes(), b"=", &quote(value)].concat());
    [b"export", &words.fold(Vec::new(), |all, word| [&all[..], b" ", &word].concat())[..]].concat()
}

/// A word of a shell, whatever is in it.
fn quote(value: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in value.as_bytes() {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::{export, quote};
    use std::{ffi::OsStr, process::Command};

    #[test]
    fn a_shell_reads_what_was_quoted() {
        let nasty = "it's; $HOME `x` \\ \"";
        let script = [b"printf %s ".as_slice(), &quote(OsStr::new(nasty))].concat();
        let script = String::from_utf8(script).expect("it is text");
        let done = Command::new("sh").args(["-c", &script]).output().expect("sh starts");
        assert_eq!(String::from_utf8_lossy(&done.stdout), nasty);
        assert_eq!(export(&[("A", "b c".into()), ("D", "".into())]), b"export A='b c' D=''");
    }
}
