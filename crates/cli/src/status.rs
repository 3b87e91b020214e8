//! `lockkeeper` alone, and `lockkeeper status`: where the daemon is, whether it runs, and what to
//! try.

use crate::{Done, args::Status, exit, session, show};
use lockkeeper_client::{Endpoint, Error, Session};
use std::{fs, os::unix::fs::MetadataExt, process::ExitCode};

const TRY: &str = "
Try:
  lockkeeper run hello -- echo mine     run a command while holding a lock
  lockkeeper query                      see who holds and who waits
  lockkeeper --help                     see what else there is
";

/// `lockkeeper` alone.
pub(crate) fn alone() -> Done {
    println!("lockkeeper {}: named locks, served in order", env!("CARGO_PKG_VERSION"));
    tell(&session::endpoint()?);
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
    let runs = tell(&endpoint);
    if let Some(socket) = endpoint.socket().filter(|_| endpoint.is_own()) {
        let state = lockkeeper_server::remembered_state_dir(socket);
        println!("state  {}", state.unwrap_or_else(|| lockkeeper_paths::state(socket)).display());
        println!("log    {}", crate::daemon::log_file(socket).display());
    }
    Ok(if runs { ExitCode::SUCCESS } else { exit::UNAVAILABLE.into() })
}

/// Tells what is there, and whether it runs. Starts no daemon.
fn tell(endpoint: &Endpoint) -> bool {
    match session::open_running(endpoint) {
        Ok(session) => {
            running(endpoint, &session);
            return true;
        }
        Err(Error::Unreachable(_, error)) if endpoint.is_own() && session::absent(&error) => {
            println!("No daemon at {endpoint}: {error}. It is started when it is needed.");
        }
        Err(error) => println!("{}.", session::explained(&error)),
    }
    false
}

fn running(endpoint: &Endpoint, session: &Session) {
    print!("The daemon at {endpoint} runs");
    match session.server_pid() {
        // Its socket is systemd's, and nobody knows more.
        Some(1) => print!(" (systemd has opened its socket)"),
        Some(pid) => print!(" ({})", daemon(pid)),
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
fn daemon(pid: u32) -> String {
    let mut about = format!("pid {pid}");
    if let Some(seconds) = uptime(pid) {
        about.push_str(&format!(", for {}", show::age(seconds * 1000)));
    }
    let file = |path: String| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    match (file(format!("/proc/{pid}/exe")), file("/proc/self/exe".into())) {
        (Some(its), Some(ours)) if its == ours => {
            about.push_str(&format!(", version {}", env!("CARGO_PKG_VERSION")))
        }
        (Some(_), Some(_)) => {
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            about.push_str(&format!(
                ", another program: {}; `lockkeeper restart` starts this one",
                program.display()
            ));
        }
        _ => {}
    }
    about
}

/// For how many seconds a process has run.
fn uptime(pid: u32) -> Option<u64> {
    // Nobody who could change it is asked for it: Linux has a hundred ticks a second for all that it tells programs.
    const TICKS: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let started: u64 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let now = fs::read_to_string("/proc/uptime").ok()?;
    let now: f64 = now.split_ascii_whitespace().next()?.parse().ok()?;
    std::time::Duration::try_from_secs_f64(now).ok()?.as_secs().checked_sub(started / TICKS)
}
