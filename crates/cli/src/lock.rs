//! `lockkeeper lock` and `unlock`: a lock for the rest of a script.
//!
//! A local session lives as long as a process has its FIFO open for writing. The output of `lock`
//! makes the shell open it, and confirm that with a byte. Until then a helper, `lockkeeper keep`,
//! has it open, for 10 s at most. The shell opens both through the helper's entries in `/proc`. A
//! session with a lease, and one whose FIFO the shell cannot open, has a [`guardian`].

pub(crate) mod guardian;

use crate::{
    Done, Failure, acquire,
    args::{Lock, Unlock},
    exit, process,
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
    fs::{self, OpenOptions},
    io::{self, IsTerminal, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::OpenOptionsExt,
        },
    },
    process::{Command, ExitCode, Stdio},
    sync::mpsc,
    time::Duration,
};

/// The shell's locks: for each `lock`, the client id of its session, the process id of its guardian
/// if it has one, the shell's descriptor, and its names, as words of `LOCKKEEPER_NAMES`:
/// `5f0c7d1e2a9b4c38/4711:9=deploy`.
const LOCKS: &str = "LOCKKEEPER_LOCKS";

/// How long the shell may take to run the printed code.
const TAKE: Duration = Duration::from_secs(10);

pub(crate) fn lock(args: Lock) -> Done {
    if let Some(why) = refusal() {
        print_failure(exit::USAGE);
        return Err((exit::USAGE, why.into()));
    }
    // Before anything is waited for.
    print!("{BEGIN}");
    let _ = io::stdout().flush();
    let locked = print_lock(&args);
    if let Err((code, _)) = &locked {
        println!("exit {code}");
    }
    locked
}

/// Why this is no call of `lock`, if it is none.
fn refusal() -> Option<&'static str> {
    // No name begins with a hyphen, so that nobody needs it here.
    if env::args_os().any(|word| word == "--") {
        return Some(
            "lock takes names and no command: lockkeeper run NAME -- COMMAND, or eval \"$(lockkeeper lock NAME)\"",
        );
    }
    if is_fish() {
        return Some(
            "fish cannot run what lock prints. Put what is to be locked into a script of its own: \
                     lockkeeper run NAME -- fish SCRIPT",
        );
    }
    let typed = io::stdout().is_terminal();
    typed.then_some("it prints what the shell is to run: eval \"$(lockkeeper lock NAME)\"")
}

/// Whether the shell is fish, which has a language of its own.
fn is_fish() -> bool {
    shell().0 == "fish"
}

/// What is printed first. A script must not go on without its lock, which `eval` of nothing would
/// have it do. The end is a call, whose words are yet to come: `held`, or `exit` and a status. If
/// `lock` is killed they never come, and the call ends the script all the same. An interactive shell
/// goes on.
const BEGIN: &str = "lockkeeper_lock() { case ${1-} in held) return ;; esac; case $- in *i*) return \"${2-69}\" ;; esac; \
                     exit \"${2-69}\"; }; lockkeeper_lock ";

/// All that is printed for a call that is wrong. On a terminal, no shell would run it.
pub(crate) fn print_failure(code: u8) {
    match (io::stdout().is_terminal(), is_fish()) {
        (true, _) => {}
        (false, true) => println!("status is-interactive; or exit {code}"),
        (false, false) => println!("{BEGIN}exit {code}"),
    }
}

/// The shell opens its end of a lock in `/proc`.
fn check_proc() -> Result<(), Failure> {
    const WHY: &str = "lock and unlock need /proc, which this system does not have: use `lockkeeper run`, with a script of \
                       its own for what is to be locked";
    if cfg!(target_os = "linux") { Ok(()) } else { Err((exit::USAGE, WHY.into())) }
}

fn print_lock(args: &Lock) -> Done {
    check_proc()?;
    // Before anything else is opened.
    let variable = env::var_os(LOCKS).unwrap_or_default();
    let (released, kept): (Vec<Taken<'_>>, Vec<Taken<'_>>) = taken(&variable).partition(Taken::is_released);
    let descriptor = free_descriptor(&released)?;
    let system = |error: io::Error| (exit::SOFTWARE, error.to_string());
    let (sender, news) = mpsc::channel();
    let (name, pid) = shell();
    let mut held = acquire::acquire(&args.lock, (label(&[name]), pid), &sender, &news)?;
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
    for lock in &released {
        held.environment.forget(lock.client_id, &lock.names());
    }
    let words = words(&args.lock.names);
    let new = Taken { client_id: &held.environment.client_id, guardian, descriptor, words: &words };
    let locks: Vec<Vec<u8>> = kept.iter().chain([&new]).map(Taken::to_word).collect();
    let words = [
        format!("held; if {take}; then unset -f lockkeeper_lock").into_bytes(),
        export(&held.environment.variables()),
        export(&[(LOCKS, OsString::from_vec(locks.join(&b' ')))]),
        b"else lockkeeper_lock; fi".to_vec(),
    ];
    // Not closed, which would end the session: it continues without this process.
    std::mem::forget(held);
    io::stdout().write_all(&[&words.join(&b"; "[..])[..], b"\n"].concat()).map_err(system)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the helper. Returns what has the shell open the FIFO.
fn take_fifo(fifo: OwnedFd, descriptor: u8) -> Result<String, Failure> {
    let system = |error: io::Error| (exit::SOFTWARE, error.to_string());
    let (told, tell) = io::pipe().map_err(system)?;
    // Without a reader, the shell would wait for one. That is the daemon, which may be gone.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let reader = options.open(format!("/proc/self/fd/{}", fifo.as_raw_fd())).map_err(system)?;
    let _reader = inherit(OwnedFd::from(reader)).map_err(system)?;
    let kept = inherit(fifo).map_err(system)?;
    let tell = inherit(OwnedFd::from(tell)).map_err(system)?;
    let mut helper = Command::new(session::program()?);
    helper.arg("keep").stdin(Stdio::from(OwnedFd::from(told))).stdout(Stdio::null()).stderr(Stdio::null());
    let files = format!("/proc/{}/fd", helper.spawn().map_err(system)?.id());
    let (kept, tell) = (kept.as_raw_fd(), tell.as_raw_fd());
    Ok(format!("exec {descriptor}>{files}/{kept} && echo >{files}/{tell}"))
}

/// `lockkeeper keep`, which only `lock` starts: has both ends of the FIFO open until the shell says
/// that it has one.
pub(crate) fn keep() -> Done {
    // Signals to the shell's job must not end this process.
    let _ = rustix::process::setsid();
    let _ = poll(&mut [PollFd::new(&io::stdin(), PollFlags::IN)], Timespec::try_from(TAKE).ok().as_ref());
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn unlock(args: Unlock) -> Done {
    check_proc()?;
    let (words, variable) = (words(&args.names), env::var_os(LOCKS).unwrap_or_default());
    let (mut local, mut ended) = (Vec::new(), 0);
    for lock in taken(&variable).filter(|lock| lock.words == words) {
        let Some(guardian) = lock.guardian else {
            local.push(lock.client_id);
            continue;
        };
        // It may have released the lock before, or was killed.
        ended += guardian::unlock(guardian, lock.client_id).transpose()?.map_or(0, |()| 1);
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

/// A descriptor that the shell, whose own this process has inherited, does not use, or only for a
/// lock that was released. Shells take one digit.
fn free_descriptor(released: &[Taken<'_>]) -> Result<u8, Failure> {
    let used = |number: &u8| {
        fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok()
            && released.iter().all(|lock| lock.descriptor != *number)
    };
    let none = || (exit::USAGE, "the shell has no descriptor left below 10".to_string());
    (3..10).rev().find(|number| !used(number)).ok_or_else(none)
}

/// The program that wants the lock, and its process.
fn shell() -> (OsString, u32) {
    let pid = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    (process::name(pid).map_or_else(|| "sh".into(), OsString::from), pid)
}

/// A lock that the shell has taken.
struct Taken<'a> {
    client_id: &'a str,
    guardian: Option<u32>,
    descriptor: u8,
    /// Its names, as words, with commas between.
    words: &'a [u8],
}

/// The locks in the variable.
fn taken(variable: &OsStr) -> impl Iterator<Item = Taken<'_>> {
    variable.as_bytes().split(|&byte| byte == b' ').filter_map(Taken::parse)
}

impl<'a> Taken<'a> {
    fn parse(word: &'a [u8]) -> Option<Self> {
        let at = word.iter().position(|&byte| byte == b'=')?;
        let (client, descriptor) = std::str::from_utf8(&word[..at]).ok()?.split_once(':')?;
        let (client_id, guardian) = match client.split_once('/') {
            Some((client_id, guardian)) => (client_id, Some(guardian.parse().ok()?)),
            None => (client, None),
        };
        Some(Self { client_id, guardian, descriptor: descriptor.parse().ok()?, words: &word[at + 1..] })
    }

    fn to_word(&self) -> Vec<u8> {
        let guardian = self.guardian.map(|guardian| format!("/{guardian}")).unwrap_or_default();
        let about = format!("{}{guardian}:{}=", self.client_id, self.descriptor);
        [about.as_bytes(), self.words].concat()
    }

    /// Its names, as words of `LOCKKEEPER_NAMES`.
    fn names(&self) -> Vec<Vec<u8>> {
        self.words.split(|&byte| byte == b',').map(<[u8]>::to_vec).collect()
    }

    /// Whether what the shell has open for it has no other end any more, and never will.
    fn is_released(&self) -> bool {
        let path = format!("/proc/self/fd/{}", self.descriptor);
        let Ok(file) = fs::read_link(&path) else { return false };
        let file = file.to_string_lossy();
        if let Some(guardian) = self.guardian {
            return file.starts_with("pipe:")
                && guardian::client_of(guardian).as_deref() != Some(self.client_id);
        }
        // The daemon removes the FIFO with the session. One that is only restarted comes back to
        // it.
        let removed = file.ends_with(&format!("/{} (deleted)", self.client_id));
        let mut options = OpenOptions::new();
        let opened = options.write(true).custom_flags(libc::O_NONBLOCK).open(path);
        removed && opened.is_err_and(|error| error.raw_os_error() == Some(libc::ENXIO))
    }
}

/// Names as words, with commas between.
fn words(names: &[OsString]) -> Vec<u8> {
    let words: Vec<Vec<u8>> = names.iter().map(|name| acquire::encode(name)).collect();
    words.join(&b',')
}

/// Sets variables in a shell.
fn export(variables: &[(&str, OsString)]) -> Vec<u8> {
    let words = variables.iter().map(|(name, value)| [name.as_bytes(), b"=", &quote(value)].concat());
    [b"export", &words.fold(Vec::new(), |all, word| [&all[..], b" ", &word].concat())[..]].concat()
}

/// A word of a shell, whatever is in it.
pub(crate) fn quote(value: &OsStr) -> Vec<u8> {
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
