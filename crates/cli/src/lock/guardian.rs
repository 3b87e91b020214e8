//! The guardian of a shell whose lock has a lease: a process that has the session, renews the
//! lease, and exits with the shell.
//!
//! Its standard input is a pipe that the shell holds open for writing. At end of file the shell and
//! its descendants have exited, and the lock is released. `lock` writes the session there first,
//! then the shell an empty line, then `unlock` its request. Its standard output is a pipe from
//! which `unlock` reads the answer. Both are opened through the guardian's entries in `/proc`, so
//! that no file remains.
//!
//! When the lock is lost, every process that has the pipe open gets SIGTERM, as `run` does with its
//! command. No SIGKILL follows: an interactive shell ignores SIGTERM, and must not be killed for a
//! lock.

use super::TAKE;
use crate::{
    Done, Failure, exit,
    holder::is_for_writing,
    process,
    run::{
        RELEASE,
        guard::{LOCK, Lease},
    },
    serve, session, show,
};
use lockkeeper_client::{Callbacks, Options, Outcome, Session, Transfer, Update};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    os::fd::OwnedFd,
    path::Path,
    process::{Command, ExitCode, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// The subcommand with which `lock` starts it; the client id follows.
pub(crate) const COMMAND: &str = "guard-shell";

/// The guardian's answer.
const READY: &str = "ready";
const RELEASED: &str = "released";

/// Gives the session to a guardian, and waits until that has it. Returns its process id.
pub(super) fn hire(transfer: &Transfer) -> Result<u32, Failure> {
    let system = |error: io::Error| (exit::SOFTWARE, error.to_string());
    let (input, mut tell) = io::pipe().map_err(system)?;
    let (answers, output) = io::pipe().map_err(system)?;
    let guardian = Command::new(session::program()?)
        .args([COMMAND, transfer.client_id()])
        .args(session::uses_machine().then_some("--machine"))
        .stdin(Stdio::from(OwnedFd::from(input)))
        .stdout(Stdio::from(OwnedFd::from(output)))
        .spawn()
        .map_err(system)?;
    writeln!(tell, "{}", transfer.to_line()).map_err(system)?;
    let mut answer = String::new();
    // It is ready, or it ends and says why on standard error.
    BufReader::new(answers).read_line(&mut answer).map_err(system)?;
    match answer.trim_end() {
        READY => Ok(guardian.id()),
        _ => Err((exit::UNAVAILABLE, "the session was lost before the shell had the lock: try again".into())),
    }
}

/// Where the shell opens the pipe that it shares with its guardian.
pub(super) fn pipe(guardian: u32) -> String {
    format!("/proc/{guardian}/fd/0")
}

/// The client id of the session that a process guards, if it is a guardian.
pub(super) fn client_of(pid: u32) -> Option<String> {
    client_guarded_by(pid, COMMAND)
}

/// The same, of one that was started by that command.
pub(crate) fn client_guarded_by(pid: u32, guard: &str) -> Option<String> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = command.split(|&byte| byte == 0).skip(1);
    let client = words.next().filter(|&word| word == guard.as_bytes()).and(words.next())?;
    String::from_utf8(client.into()).ok()
}

/// Has a guardian release its lock. None if there is no such guardian.
pub(super) fn unlock(guardian: u32, client_id: &str) -> Option<Result<(), Failure>> {
    // Another process may have its number by now.
    client_of(guardian).filter(|client| client == client_id)?;
    let answers = File::open(format!("/proc/{guardian}/fd/1")).ok()?;
    let mut tell = OpenOptions::new().write(true).open(pipe(guardian)).ok()?;
    tell.write_all(b"unlock\n").ok()?;
    drop(tell);
    let mut answer = String::new();
    BufReader::new(answers).read_line(&mut answer).ok()?;
    match answer.trim_end() {
        "" => None,
        RELEASED => Some(Ok(())),
        why => Some(Err((exit::LOST, why.into()))),
    }
}

/// An event for the guardian.
enum Input {
    Line(String),
    /// No process has the pipe open for writing any more.
    ShellGone,
    Lock(Update),
}

/// `lockkeeper guard-shell`, which only `lock` starts.
pub(crate) fn guard_shell() -> Done {
    let wrong = || (exit::USAGE, format!("{COMMAND} is for `lockkeeper lock` to start"));
    // The shell's end of another guardian's pipe may be among them.
    serve::close_inherited();
    // Signals to the shell's job must not end this process.
    let _ = rustix::process::setsid();
    // Until the shell has it open.
    let keep_open = OpenOptions::new().write(true).open("/proc/self/fd/0").map_err(|_| wrong())?;
    let mut lines = BufReader::new(io::stdin()).lines();
    let transfer = lines.next().and_then(Result::ok).ok_or_else(wrong)?;
    let transfer = Transfer::from_line(&transfer).map_err(|_| wrong())?;
    let (sender, inputs) = mpsc::channel();
    let updates = sender.clone();
    let listener = Box::new(move |update| _ = updates.send(Input::Lock(update)));
    let options = Options::new(session::bucket()?);
    let session = Session::adopt(&session::endpoint()?, options, Callbacks, &transfer, listener);
    let session = session.map_err(session::failed)?;
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = sender.send(Input::Line(line));
        }
        let _ = sender.send(Input::ShellGone);
    });
    answer(READY);
    let take_until = Instant::now() + TAKE;
    Guardian { session, keep_open: Some(keep_open), take_until, lost: None }.run(&inputs)
}

struct Guardian {
    session: Session,
    /// The shell's end of the pipe, while the shell has not opened it.
    keep_open: Option<File>,
    take_until: Instant,
    /// Why the lock is lost.
    lost: Option<String>,
}

impl Guardian {
    fn run(&mut self, inputs: &Receiver<Input>) -> Done {
        loop {
            match inputs.recv_timeout(self.pause()) {
                Ok(Input::Line(line)) if line == "unlock" => {
                    self.release(inputs);
                    answer(self.lost.as_deref().unwrap_or(RELEASED));
                    return Ok(ExitCode::SUCCESS);
                }
                // The shell has it.
                Ok(Input::Line(_)) => self.keep_open = None,
                Ok(Input::Lock(Update::Over(outcome))) => self.on_end(outcome),
                Ok(Input::Lock(_)) => {}
                Err(RecvTimeoutError::Timeout) => {
                    if self.keep_open.is_some() && Instant::now() >= self.take_until {
                        break;
                    }
                    if Lease::of(&self.session).is_some_and(|lease| lease.before_term().is_zero()) {
                        self.out_of_reach();
                    }
                }
                Ok(Input::ShellGone) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.release(inputs);
        Ok(ExitCode::SUCCESS)
    }

    /// How long it can wait before it reads the clock again, which runs while the machine is
    /// suspended.
    fn pause(&self) -> Duration {
        const LOOK: Duration = Duration::from_secs(1);
        let lease = Lease::of(&self.session).filter(|_| self.lost.is_none());
        let lease = lease.map_or(LOOK, |lease| lease.before_term().max(Duration::from_millis(1)));
        let take = self.keep_open.as_ref().map(|_| self.take_until.saturating_duration_since(Instant::now()));
        LOOK.min(lease).min(take.unwrap_or(LOOK))
    }

    fn on_end(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Broken { cause, by, forced } => self.on_lost(show::broken(cause, by.as_deref(), forced)),
            _ => self.out_of_reach(),
        }
    }

    fn out_of_reach(&mut self) {
        self.on_lost(show::OUT_OF_REACH.into());
    }

    /// Reports the loss, to `unlock` as well, and ends the processes that have the shell's pipe
    /// open.
    fn on_lost(&mut self, why: String) {
        if self.lost.is_some() {
            return;
        }
        show::say(&why);
        self.lost = Some(why);
        let before = process::newest();
        let found = writers();
        let newest = process::newest();
        found.iter().for_each(|&process| _ = kill_process(process, Signal::TERM));
        // Processes that were forked between the scan and the signal to their parent are signalled,
        // too. Those that a handler of that signal has started are not: one may be `unlock`.
        if let (Some(before), Some(newest)) = (before, newest) {
            let missed = writers().into_iter().filter(|process| !found.contains(process));
            missed
                .filter(|&process| is_born_between(process, before, newest))
                .for_each(|process| _ = kill_process(process, Signal::TERM));
        }
    }

    fn release(&mut self, inputs: &Receiver<Input>) {
        // Not if it is lost by now, which may be news after the machine was suspended.
        let held = self.session.release(LOCK);
        let deadline = Instant::now() + RELEASE;
        while (held || self.lost.is_none())
            && let Ok(input) = inputs.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if let Input::Lock(Update::Over(outcome)) = input {
                if !held {
                    self.on_end(outcome);
                }
                break;
            }
        }
        self.session.close();
    }
}

fn answer(line: &str) {
    // The reader may have exited.
    let _ = writeln!(io::stdout(), "{line}");
}

/// The other processes of this user that have this one's standard input open for writing.
fn writers() -> Vec<Pid> {
    let Ok(pipe) = fs::read_link("/proc/self/fd/0") else { return Vec::new() };
    let me = getpid();
    process::all().filter(|&pid| pid != me && writes_to(pid, &pipe)).collect()
}

/// Whether a process was started after one, but not after another. Numbers begin anew at a limit.
fn is_born_between(process: Pid, before: Pid, newest: Pid) -> bool {
    let [process, before, newest] = [process, before, newest].map(Pid::as_raw_pid);
    if before <= newest {
        before < process && process <= newest
    } else {
        before < process || process <= newest
    }
}

fn writes_to(pid: Pid, pipe: &Path) -> bool {
    let pid = pid.as_raw_nonzero().get().unsigned_abs();
    let mut files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.any(|file| {
        fs::read_link(file.path()).is_ok_and(|target| target == pipe)
            && file.file_name().to_str().is_some_and(|number| is_for_writing(pid, number))
    })
}

#[cfg(test)]
mod tests {
    use super::is_born_between;
    use crate::process::newest;
    use rustix::process::Pid;
    use std::process::Command;

    #[test]
    fn a_process_is_born_between_two_others() {
        let pid = |number| Pid::from_raw(number).expect("a number");
        for (process, before, newest, between) in [
            (11, 10, 20, true),
            (20, 10, 20, true),
            (10, 10, 20, false),
            (21, 10, 20, false),
            // Behind the greatest number comes a small one.
            (31_000, 30_000, 300, true),
            (299, 30_000, 300, true),
            (301, 30_000, 300, false),
            (30_000, 30_000, 300, false),
        ] {
            let told = is_born_between(pid(process), pid(before), pid(newest));
            assert_eq!(told, between, "{process} between {before} and {newest}");
        }
        let before = newest().expect("the kernel tells it");
        let mut child = Command::new("true").spawn().expect("it starts");
        let after = newest().expect("the kernel tells it");
        assert!(is_born_between(Pid::from_child(&child), before, after));
        child.wait().expect("it ends");
    }
}
