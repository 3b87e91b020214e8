//! A session with the daemon, with a time limit on each step: a stopped daemon leads to an error.

use crate::{Failure, exit, process::Process, show};
use lockkeeper_client::{Callbacks, Endpoint, Error, Options, Session, code};
use std::{
    env,
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    process,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

/// How long a daemon may take to answer before it counts as one that does not.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);

/// After this time, a command reports that it waits for the daemon.
const UNSAID: Duration = Duration::from_secs(1);

/// `--machine` was given.
static MACHINE: AtomicBool = AtomicBool::new(false);

/// Has every session be one with the machine's daemon.
pub(crate) fn use_machine() {
    MACHINE.store(true, Relaxed);
}

/// Whether every session is one with the machine's daemon.
pub(crate) fn uses_machine() -> bool {
    MACHINE.load(Relaxed)
}

/// Where the daemon is: what `--machine` or `LOCKKEEPER_URL` say, or this user's own.
pub(crate) fn endpoint() -> Result<Endpoint, Failure> {
    match uses_machine() {
        true => Ok(Endpoint::machine()),
        false => Endpoint::from_env().map_err(|why| (exit::USAGE, why)),
    }
}

/// The bucket whose locks are meant.
pub(crate) fn bucket() -> Result<String, Failure> {
    lockkeeper_client::bucket_from_env().map_err(|why| (exit::USAGE, why))
}

/// The limits of waiting for a session.
#[derive(Clone, Copy)]
pub(crate) enum WaitLimits {
    /// As long as an answer takes: a daemon that was stopped by a signal gives none.
    Answer,
    /// Until then; or, without, until the attempt fails. After a second, a line says what is waited
    /// for, unless `quiet`.
    Until { until: Option<Instant>, quiet: bool },
}

/// A session for a question, with the daemon, which this program can be.
pub(crate) fn open() -> Result<Session, Failure> {
    open_with(None, process::id(), WaitLimits::Answer)
}

/// A session of that process with a lease of that length, if it has one.
pub(crate) fn open_with(ttl: Option<Duration>, pid: u32, limits: WaitLimits) -> Result<Session, Failure> {
    let mut options = Options::new(bucket()?).process(pid).program(Some(program()?));
    options.ttl = ttl;
    start(&endpoint()?, options, limits).map_err(failed)
}

/// A session for a question, without starting a daemon.
pub(crate) fn open_running(endpoint: &Endpoint) -> Result<Session, Error> {
    let wrong = |why| Error::Unreachable(endpoint.clone(), io::Error::new(io::ErrorKind::InvalidInput, why));
    let bucket = lockkeeper_client::bucket_from_env().map_err(wrong)?;
    start(endpoint, Options::new(bucket), WaitLimits::Answer)
}

fn start(endpoint: &Endpoint, options: Options, limits: WaitLimits) -> Result<Session, Error> {
    let (sender, opened) = mpsc::channel();
    let session = Session::start(endpoint, options, Callbacks, move |result| _ = sender.send(result))?;
    let mut look_at = Some(Instant::now() + UNSAID);
    let until = match limits {
        WaitLimits::Answer => Some(Instant::now() + ANSWER),
        WaitLimits::Until { until, .. } => until,
    };
    loop {
        let result = match [until, look_at].into_iter().flatten().min() {
            Some(wake) => opened.recv_timeout(wake.saturating_duration_since(Instant::now())),
            None => opened.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let early = match result {
            Ok(Err(error)) if error.is_silence() => true,
            Ok(result) => return result.map(|()| session),
            Err(_) => matches!(limits, WaitLimits::Answer) && endpoint.server_pid().is_some_and(stopped),
        };
        if early || until.is_some_and(|until| Instant::now() >= until) {
            let why =
                session.refusal().map(|why| format!("the daemon at {endpoint} cannot serve now: {why}"));
            let error = io::Error::new(io::ErrorKind::TimedOut, why.unwrap_or_else(|| silent(endpoint)));
            return Err(Error::Unreachable(endpoint.clone(), error));
        }
        if look_at.take().is_some() && matches!(limits, WaitLimits::Until { quiet: false, .. }) {
            // If no daemon ran, none listens yet: on a busy machine the start takes a while.
            show::say(&match endpoint.server_pid() {
                None if endpoint.is_own() => format!("waiting for the daemon at {endpoint} to start"),
                _ => session.refusal().unwrap_or_else(|| silent(endpoint)),
            });
        }
    }
}

/// The answer to a question, unless there is none in time.
pub(crate) fn ask<T: Send + 'static>(
    session: &Session,
    question: impl FnOnce(&Session, Box<dyn FnOnce(Result<T, Error>) + Send>),
) -> Result<T, Failure> {
    ask_until(session, Instant::now() + ANSWER, question)
}

/// The same, with less time.
pub(crate) fn ask_until<T: Send + 'static>(
    session: &Session,
    until: Instant,
    question: impl FnOnce(&Session, Box<dyn FnOnce(Result<T, Error>) + Send>),
) -> Result<T, Failure> {
    let (sender, answer) = mpsc::channel();
    question(session, Box::new(move |answer| _ = sender.send(answer)));
    match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err((exit::UNAVAILABLE, silent_in(session))),
    }
}

/// The message for a daemon that does not answer.
pub(crate) fn silent(endpoint: &Endpoint) -> String {
    silence(endpoint, endpoint.server_pid())
}

/// The same of a daemon with which there is a session.
pub(crate) fn silent_in(session: &Session) -> String {
    silence(session.endpoint(), session.server_pid())
}

fn silence(endpoint: &Endpoint, pid: Option<u32>) -> String {
    let Some(pid) = pid else { return format!("the daemon at {endpoint} does not answer") };
    match stopped(pid) {
        true => format!(
            "the daemon at {endpoint} does not answer: its process {pid} is stopped. `kill -CONT {pid}` continues it"
        ),
        false => format!("the daemon at {endpoint} (pid {pid}) does not answer"),
    }
}

/// Whether a process was stopped by a signal.
pub(crate) fn stopped(pid: u32) -> bool {
    Process::of(pid).is_some_and(|process| process.stopped)
}

/// This program, to start as the daemon. If it was upgraded while this process runs, the new one.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    let program = env::current_exe().map_err(|error| (exit::SOFTWARE, error.to_string()))?;
    match program.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(path) if !program.exists() => Ok(OsStr::from_bytes(path).into()),
        _ => Ok(program),
    }
}

/// The message for a daemon that cannot be reached, or refuses.
pub(crate) fn failed(error: Error) -> Failure {
    match &error {
        Error::Refused { code, .. } => refused(*code, explained(&error)),
        // A file or an address that was given is wrong.
        Error::Unreachable(_, why) if why.kind() == io::ErrorKind::InvalidInput => {
            (exit::USAGE, explained(&error))
        }
        _ => (exit::UNAVAILABLE, explained(&error)),
    }
}

pub(crate) fn refused(why: u32, message: String) -> Failure {
    let exit = match why {
        code::NOT_SUPPORTED => exit::USAGE,
        code::FORBIDDEN | code::UNAUTHORIZED => exit::NO_PERMISSION,
        _ => exit::UNAVAILABLE,
    };
    (exit, message)
}

/// Whether no daemon listens.
pub(crate) fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// The error, and what to do next.
pub(crate) fn explained(error: &Error) -> String {
    match error {
        Error::Unreachable(_, why) if why.kind() == io::ErrorKind::TimedOut => why.to_string(),
        Error::Unreachable(endpoint, _) if endpoint.is_own() => error.to_string(),
        Error::Unreachable(endpoint, why) if endpoint.is_machine() && absent(why) => format!(
            "{error}. The machine's daemon is for several users: `systemctl enable --now lockkeeper-machine.socket` \
             starts it, as root"
        ),
        Error::Unreachable(endpoint, why) if endpoint.is_machine() && is_denied(why) => {
            format!(
                "{error}. [[allow]] in its configuration, /etc/lockkeeper/machine.toml, says whom it serves beside root"
            )
        }
        // It admits nobody to whom it would say so.
        Error::Unreachable(endpoint, why)
            if why.kind() == io::ErrorKind::ConnectionReset && endpoint.socket().is_some() =>
        {
            format!("{error}. It closes the connection: it may serve another user alone, or stop")
        }
        Error::Unreachable(endpoint, why) if is_denied(why) && endpoint.socket().is_some() => {
            format!(
                "{error}. A user's own daemon is for that user alone: for several, there is `lockkeeper --machine`"
            )
        }
        Error::Unreachable(_, why) if !absent(why) => error.to_string(),
        Error::Unreachable(..) => format!(
            "{error}. LOCKKEEPER_URL says that it is there: start it with `lockkeeper serve`, or unset the variable to \
             use this user's own"
        ),
        Error::Refused { code: code::UNAUTHORIZED, message } if message == "a token is needed" => {
            format!("{error}: LOCKKEEPER_TOKEN_FILE names the file that has one")
        }
        // A server that is older than this program, which may be the one that is installed now.
        Error::Refused { code: code::VERSION, message } if message.ends_with("upgrade the server") => {
            match endpoint().ok().filter(|endpoint| endpoint.socket().is_some()) {
                Some(endpoint) => format!("{error}: {}", how_to_restart(&endpoint)),
                None => error.to_string(),
            }
        }
        _ => error.to_string(),
    }
}

/// The command that replaces a daemon of this machine by the currently installed program.
pub(crate) fn how_to_restart(endpoint: &Endpoint) -> &'static str {
    match endpoint {
        _ if endpoint.is_own() => "`lockkeeper restart` starts this one",
        _ if endpoint.is_machine() => {
            "`systemctl restart lockkeeper-machine`, as root, starts the one installed now"
        }
        _ => "restart it with what started it",
    }
}

#[cfg(test)]
mod tests {
    use super::stopped;

    #[test]
    fn a_process_that_runs_is_not_stopped() {
        assert!(!stopped(std::process::id()));
        assert!(!stopped(u32::MAX), "one that is not there is not");
    }
}
