//! `lockkeeper` without a command, and `lockkeeper status`: the daemon's address and state, and
//! what to try next.

use crate::{
    Done,
    args::Status,
    exit,
    process::{self, Process},
    session, show,
};
use lockkeeper_client::{Endpoint, Error, Session};
use std::{env, fs, os::unix::fs::MetadataExt, path::PathBuf, process::ExitCode};

const TRY: &str = "
Try:
  lockkeeper run hello -- echo mine     run a command while holding a lock
  lockkeeper query                      see who holds and who waits
  lockkeeper --help                     see what else there is
";

/// `lockkeeper` alone.
pub(crate) fn alone() -> Done {
    println!("lockkeeper {}: named locks, served in order", env!("CARGO_PKG_VERSION"));
    print_status(&session::endpoint()?);
    print!("{TRY}");
    Ok(ExitCode::SUCCESS)
}

/// `lockkeeper status`.
pub(crate) fn status(args: &Status) -> Done {
    let endpoint = session::endpoint()?;
    if args.socket {
        let none = || (exit::USAGE, format!("{endpoint} is on the network: it has no socket here"));
        println!("{}", endpoint.socket().ok_or_else(none)?.display());
        return Ok(ExitCode::SUCCESS);
    }
    let runs = print_status(&endpoint);
    if let Some(socket) = endpoint.socket().filter(|_| endpoint.is_own()) {
        let state = lockkeeper_server::remembered_state_dir(socket);
        println!("state  {}", state.unwrap_or_else(|| lockkeeper_paths::state(socket)).display());
        println!("log    {}", crate::daemon::log_file(socket).display());
    }
    Ok(if runs { ExitCode::SUCCESS } else { exit::UNAVAILABLE.into() })
}

/// Prints the daemon's address, and whether it runs. Starts no daemon.
fn print_status(endpoint: &Endpoint) -> bool {
    match session::open_running(endpoint) {
        Ok(session) => {
            running(endpoint, &session);
            return true;
        }
        Err(Error::Unreachable(_, error)) if endpoint.is_own() && session::absent(&error) => {
            println!("No daemon runs at {endpoint}. It is started when it is needed.");
        }
        Err(error) => println!("{}.", session::explained(&error)),
    }
    false
}

fn running(endpoint: &Endpoint, session: &Session) {
    print!("The daemon at {endpoint} runs");
    match session.server_pid() {
        // systemd has its socket; more is not known.
        Some(1) => print!(" (systemd has opened its socket)"),
        Some(pid) => print!(" ({})", daemon(pid, endpoint)),
        None => {}
    }
    match session::ask(session, |session, then| session.query_then(None, then)) {
        Ok(snapshot) => {
            let entries = snapshot.entries;
            let held = entries.iter().filter(|entry| entry.token.is_some()).count();
            println!(": {held} held, {} waiting.", entries.len() - held);
        }
        Err((_, why)) => println!(". {why}."),
    }
}

/// Its process, as the system knows it. Its version is known if it is this program.
fn daemon(pid: u32, endpoint: &Endpoint) -> String {
    let mut about = format!("pid {pid}");
    if let Some(seconds) = Process::of(pid).and_then(|process| process.seconds) {
        about.push_str(&format!(", for {}", show::age(seconds * 1000)));
    }
    match (process::program(pid), same_program(pid)) {
        (_, Some(true)) => about.push_str(&format!(", version {}", env!("CARGO_PKG_VERSION"))),
        (Some(program), Some(false)) => {
            let restart = session::how_to_restart(endpoint);
            about.push_str(&format!(", another program: {}; {restart}", program.display()));
        }
        _ => {}
    }
    about
}

/// Whether it is this program. On Linux also if that was deleted or replaced since.
fn same_program(pid: u32) -> Option<bool> {
    let file = |path: PathBuf| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    let (its, ours) = match cfg!(target_os = "linux") {
        true => (format!("/proc/{pid}/exe").into(), "/proc/self/exe".into()),
        false => (process::program(pid)?, env::current_exe().ok()?),
    };
    Some(file(its)? == file(ours)?)
}
