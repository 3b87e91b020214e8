//! `lockkeeper` alone: where the daemon is, whether it runs, and what to try.

use crate::{Done, args, exit, show};
use lockkeeper_client::{Callbacks, Endpoint, Error, Options, Session};
use std::{fs, os::unix::fs::MetadataExt, process::ExitCode};

const TRY: &str = "
Try:
  lockkeeper run hello -- echo mine     run a command while holding a lock
  lockkeeper query                      see who holds and who waits
  lockkeeper --help                     see what else there is
";

/// Starts no daemon: it is to tell what is there.
pub(crate) fn status() -> Done {
    let endpoint = Endpoint::from_env().map_err(|why| (exit::USAGE, why))?;
    println!("lockkeeper {}: named locks, served in order", env!("CARGO_PKG_VERSION"));
    match Session::open(&endpoint, Options::new(args::bucket()), Callbacks) {
        Ok(session) => running(&endpoint, &session),
        Err(Error::Unreachable(_, error)) if args::is_own(&endpoint) => {
            println!("No daemon at {endpoint}: {error}. It is started when it is needed.");
        }
        Err(error) => println!("{}.", args::explained(&error)),
    }
    print!("{TRY}");
    Ok(ExitCode::SUCCESS)
}

fn running(endpoint: &Endpoint, session: &Session) {
    print!("The daemon at {endpoint} runs");
    if let Some(pid) = session.server_pid() {
        print!(" ({})", daemon(pid));
    }
    match session.query(None) {
        Ok(snapshot) => {
            let entries = snapshot.entries;
            let held = entries.iter().filter(|entry| entry.token.is_some()).count();
            println!(": {held} held, {} waiting.", entries.len() - held);
        }
        Err(error) => println!(". {error}."),
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
            about.push_str(&format!(", another program: {}", program.display()));
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
