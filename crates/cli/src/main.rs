//! The `lockkeeper` command.

/// As the standard library's, which panic when the reader of a pipe has seen enough.
macro_rules! print {
    ($($words:tt)*) => { $crate::show::print(&format!($($words)*)) };
}

macro_rules! println {
    ($($words:tt)*) => { $crate::show::print(&(format!($($words)*) + "\n")) };
}

mod acquire;
mod args;
mod complete;
mod daemon;
mod fleet;
mod held;
mod holder;
mod lock;
mod log_file;
mod man;
mod memory;
mod process;
mod query;
mod release;
mod run;
mod serve;
mod session;
mod settings;
mod show;
mod state;
mod status;
mod table;
mod token;
mod top;
mod usage;

use args::{Args, Command};
use clap::Parser;
use std::process::ExitCode;

/// Exit codes, as `sysexits.h` has them where it does.
mod exit {
    /// The call is wrong.
    pub(crate) const USAGE: u8 = 64;
    /// No daemon can be reached, or it cannot do the task.
    pub(crate) const UNAVAILABLE: u8 = 69;
    /// Something of the system's does not work.
    pub(crate) const SOFTWARE: u8 = 70;
    /// The lock is not available.
    pub(crate) const NO_LOCK: u8 = 75;
    /// The lock was lost while the command ran.
    pub(crate) const LOST: u8 = 76;
    /// The credentials do not allow it.
    pub(crate) const NO_PERMISSION: u8 = 77;
    /// The command cannot be started; not found is one more. As shells have it.
    pub(crate) const CANNOT_RUN: u8 = 126;
}

/// The result of a command: an exit code, or a failure.
type Done = Result<ExitCode, Failure>;

/// An exit code, and a message for standard error, which may be empty.
type Failure = (u8, String);

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage::explain(&error),
    };
    if args.machine {
        session::use_machine();
    }
    let done = match args.command {
        None => status::alone(),
        Some(Command::Status(args)) => status::status(&args),
        Some(Command::Stop) => daemon::stop(),
        Some(Command::Restart) => daemon::restart(),
        Some(Command::Logs(args)) => daemon::logs(&args),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Lock(args)) => lock::lock(args),
        Some(Command::Unlock(args)) => lock::unlock(args),
        Some(Command::Held(args)) => held::held(&args),
        Some(Command::Keep) => lock::keep(),
        Some(Command::Guard { .. }) => run::guard::guard(),
        Some(Command::GuardShell { .. }) => lock::guardian::guard_shell(),
        Some(Command::Query(args)) => query::query(args),
        Some(Command::Inspect(args)) => query::inspect(args.query),
        Some(Command::Release(args)) => release::release(args),
        Some(Command::Top(_)) => top::top(),
        Some(Command::Serve(args)) => serve::serve(*args),
        Some(Command::Fleet(args)) => fleet::fleet(args),
        Some(Command::State(args)) => state::state(args),
        Some(Command::Token(args)) => token::token(args),
        Some(Command::Completions(args)) => complete::completions(args.shell),
        Some(Command::Names) => complete::names(),
        Some(Command::Man(args)) => man::man(&args.directory),
    };
    done.unwrap_or_else(|(code, message)| {
        if !message.is_empty() {
            show::say(&message);
        }
        code.into()
    })
}
