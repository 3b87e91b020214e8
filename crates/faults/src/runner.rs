//! A worker that uses `lockkeeper run`, one after the other. Its command is this program once more:
//! it records its token, touches the protected resource, and records its end.
//!
//! The processes that may be killed are `run` and, under a lease, its guardian. The lock has to
//! last as long as the command does, and the command no longer than the lock.

use crate::{
    history::{Line, Lines, Touch, What},
    now,
    plan::NAMES,
    run_dir::RunDir,
};
use fastrand::Rng;
use lockkeeper_client::Flags;
use lockkeeper_core::{Cause, Mode};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::{
    env,
    io::{self, BufRead as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The exit status of `run` if the lock was lost or stolen.
const LOST: i32 = 76;

/// A `run` that is left alone ends.
const TIMEOUT: &str = "60s";

/// How often a command touches its resource.
const TOUCH: Duration = Duration::from_millis(2);

/// The arguments of a runner.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The number of its history.
    pub process: usize,
    /// Where its choices come from.
    pub seed: u64,
    /// The program that has `run`.
    pub program: PathBuf,
    /// Whether its locks end with `run` and not with their commands.
    pub stubborn: bool,
    /// Whether each command takes a while.
    pub long: bool,
}

/// Closes all descriptors but the first three, as `ssh` and `sudo` do, and becomes another program.
const CLOSES: &str =
    r#"for fd in /proc/self/fd/*; do n=${fd##*/}; [ "$n" -gt 2 ] && eval "exec $n>&-"; done; exec "$0" "$@""#;

/// Works until it is stopped.
///
/// # Errors
///
/// If its files cannot be used.
pub fn work(dir: &Path, url: &str, orders: Orders) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let (run_dir, settling) = (RunDir::at(dir), Arc::new(AtomicBool::new(false)));
    let runner = Runner { history: Lines::open(&run_dir.history(orders.process))?, orders, url, dir };
    let told = Arc::clone(&settling);
    let (over, ended) = std::sync::mpsc::channel::<()>();
    thread::spawn(move || {
        let mut lines = io::stdin().lock().lines();
        let settles = matches!(lines.next(), Some(Ok(line)) if line == "settle");
        told.store(true, Ordering::Relaxed);
        if settles {
            lines.next();
        }
        drop(over);
    });
    let mut rng = Rng::with_seed(runner.orders.seed);
    let mut number = 0;
    while !settling.load(Ordering::Relaxed) {
        let hold = match runner.orders.long {
            true => 3000,
            false if rng.u8(..16) == 0 => rng.u64(200..1200),
            false => rng.u64(0..30),
        };
        let mode = if rng.u8(..4) == 0 { Mode::Shared } else { Mode::Exclusive };
        runner.run(number, NAMES[rng.usize(..NAMES.len())], mode, hold, rng.bool())?;
        number += 1;
    }
    for name in NAMES {
        runner.run(number, name, Mode::Exclusive, 0, false)?;
        number += 1;
    }
    println!("settled");
    let _ = ended.recv();
    Ok(())
}

struct Runner<'a> {
    history: Lines,
    orders: Orders,
    url: &'a str,
    dir: &'a Path,
}

impl Runner<'_> {
    fn run(&self, request: u64, name: &str, mode: Mode, hold: u64, closes: bool) -> io::Result<()> {
        let write = |what| self.history.append(Line { at: now(), request, what }.format());
        write(What::Asked { flags: Flags::default(), scope: vec![(name.into(), mode)] });
        let mut command = Command::new(&self.orders.program);
        command
            .env("LOCKKEEPER_URL", self.url)
            .env("LOCKKEEPER_BUCKET", "faults")
            .env_remove("LOCKKEEPER_BIN");
        command.args(["run", "--quiet", "--timeout", TIMEOUT]);
        if mode == Mode::Shared {
            command.arg("--shared");
        }
        if self.orders.stubborn {
            command.arg("--close");
        }
        command.arg(name).arg("--");
        if closes {
            command.args(["bash", "-c", CLOSES]);
        }
        command.arg(env::current_exe()?).arg("command").arg("--dir").arg(self.dir);
        command.arg(format!("--process={}", self.orders.process)).arg(format!("--request={request}"));
        command.arg(format!("--name={name}")).arg(format!("--hold={hold}"));
        if mode == Mode::Shared {
            command.arg("--shared");
        }
        // The command has the same, so that this waits for it, too.
        let output = command.stdin(Stdio::null()).output()?;
        let stolen = String::from_utf8_lossy(&output.stderr).contains("stolen");
        match output.status.code() {
            Some(LOST) => write(What::Broken(if stolen { Cause::Stolen } else { Cause::Lost })),
            // It was killed, or did not reach a daemon in time: that is no promise.
            _ => write(What::Ended),
        }
        Ok(())
    }
}

/// The command of a `run`.
///
/// # Errors
///
/// If its files cannot be used.
pub fn command(
    dir: &Path,
    process: usize,
    request: u64,
    name: &str,
    mode: Mode,
    hold: Duration,
) -> io::Result<()> {
    let token = env::var("LOCKKEEPER_FENCE").ok().and_then(|token| token.parse().ok());
    let token = token.ok_or_else(|| io::Error::other("this is for `lockkeeper run` to start"))?;
    let run_dir = RunDir::at(dir);
    let (history, resource) =
        (Lines::open(&run_dir.history(process))?, Lines::open(&run_dir.resource(name))?);
    let write = |what| history.append(Line { at: now(), request, what }.format());
    write(What::Granted { token });
    let until = Instant::now() + hold;
    loop {
        resource.append(Touch { at: now(), token, mode, process, request }.format());
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        thread::sleep(left.min(TOUCH));
    }
    write(What::Releasing);
    Ok(())
}
