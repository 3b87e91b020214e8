//! `lockkeeper stop`, `restart` and `logs`: management of a daemon that was started on demand.

use crate::{Done, Failure, args::Logs, exit, process::Process, session};
use lockkeeper_client::Endpoint;
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};
use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

/// How long a daemon may take to exit.
const LEAVE: Duration = Duration::from_secs(10);

/// The log file of a daemon that was started on demand.
pub(crate) fn log_file(socket: &Path) -> PathBuf {
    socket.with_extension("log")
}

/// `lockkeeper stop`.
pub(crate) fn stop() -> Done {
    let endpoint = session::endpoint()?;
    match end(&endpoint)? {
        None => println!("No daemon runs at {endpoint}."),
        Some(pid) => println!(
            "Stopped the daemon at {endpoint} (pid {pid}). Locks stay held: whoever holds or wants one starts it again."
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// `lockkeeper restart`.
pub(crate) fn restart() -> Done {
    let endpoint = session::endpoint()?;
    if !endpoint.is_own() {
        let why = format!("the daemon at {endpoint} was not started on demand");
        return Err((exit::USAGE, format!("{why}: {}", session::how_to_restart(&endpoint))));
    }
    let before = end(&endpoint)?;
    let session = session::open()?;
    let pid = session.server_pid().map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    match before {
        Some(before) => println!("Restarted the daemon at {endpoint}{pid}; before, it was {before}."),
        None => println!("Started the daemon at {endpoint}{pid}; none was running."),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the daemon and waits until it has exited. Returns its process; none if there was none.
fn end(endpoint: &Endpoint) -> Result<Option<u32>, Failure> {
    if endpoint.socket().is_none() {
        return Err((exit::USAGE, format!("{endpoint} is on the network: stop it where it runs")));
    }
    let Some(pid) = endpoint.server_pid() else {
        let why = "its process is in another PID namespace: stop it there";
        return match endpoint.is_served() {
            Ok(true) => Err((exit::USAGE, format!("the daemon at {endpoint}: {why}"))),
            Ok(false) => Ok(None),
            Err(error) => Err((exit::NO_PERMISSION, format!("{endpoint}: {error}"))),
        };
    };
    if pid == 1 {
        let why = "systemd has opened its socket: `systemctl stop` and `restart` are for it";
        return Err((exit::USAGE, format!("the daemon at {endpoint}: {why}")));
    }
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(process) = process else { return Ok(None) };
    let failed =
        |error: Errno| (exit::NO_PERMISSION, format!("the daemon at {endpoint} (pid {pid}): {error}"));
    kill_process(process, Signal::TERM).map_err(failed)?;
    // One that is stopped hears nothing else.
    let _ = kill_process(process, Signal::CONT);
    let deadline = Instant::now() + LEAVE;
    // A zombie counts as exited.
    let runs = || Process::of(pid).is_some_and(|process| !process.ended);
    while endpoint.server_pid() == Some(pid) || runs() {
        if Instant::now() >= deadline {
            let why = format!("the daemon at {endpoint} does not leave: `kill -KILL {pid}` loses no lock");
            return Err((exit::UNAVAILABLE, why));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(Some(pid))
}

/// `lockkeeper logs`.
pub(crate) fn logs(args: &Logs) -> Done {
    let endpoint = session::endpoint()?;
    let none = || (exit::USAGE, format!("{endpoint} is on the network: its log is where it runs"));
    let file = log_file(endpoint.socket().ok_or_else(none)?);
    if !file.exists() {
        let unit = if endpoint.is_machine() { "lockkeeper-machine" } else { "lockkeeper" };
        let why = format!(
            "there is no {}: only a daemon that was started on demand writes it. For one of systemd's: journalctl -u \
             {unit}",
            file.display()
        );
        return Err((exit::UNAVAILABLE, why));
    }
    let mut tail = Command::new("tail");
    tail.arg("-n").arg(args.lines.to_string());
    if args.follow {
        tail.arg("-F");
    }
    let error = tail.arg("--").arg(&file).exec();
    Err((exit::SOFTWARE, format!("tail: {error}")))
}
