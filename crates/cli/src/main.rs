//! The `lockkeeper` command.

mod args;
mod query;
mod run;
mod serve;
mod settings;

use args::{Args, Command};
use clap::Parser;
use std::process::ExitCode;

/// Exit codes, as `sysexits.h` has them where it does.
mod exit {
    /// The call is wrong.
    pub(crate) const USAGE: u8 = 64;
    /// No daemon can be reached.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// Something of the system's does not work.
    pub(crate) const SOFTWARE: u8 = 70;
    /// The lock is not to be had.
    pub(crate) const NO_LOCK: u8 = 75;
    /// The lock was lost while the command ran.
    pub(crate) const LOST: u8 = 76;
    /// The command cannot be started; not found is one more. As shells have it.
    pub(crate) const CANNOT_RUN: u8 = 126;
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let done = match args.command {
        Command::Serve(args) => serve::serve(args),
        Command::Run(args) => run::run(args),
        Command::Query(args) => query::query(args),
    };
    done.unwrap_or_else(|(code, message)| {
        eprintln!("lockkeeper: {message}");
        code.into()
    })
}

/// What a command comes to: an exit code, or one with words.
type Done = Result<ExitCode, (u8, String)>;
