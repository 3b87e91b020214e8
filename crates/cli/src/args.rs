//! The command line.

use crate::settings::{Settings, Span};
use clap::{Parser, Subcommand};
use lockkeeper_client::{Endpoint, Session};
use lockkeeper_core::Name;
use std::{env, ffi::OsString, os::unix::ffi::OsStrExt, path::PathBuf, time::Duration};

/// Named locks for every process of this machine, served in order.
#[derive(Parser)]
#[command(
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Try it:
  lockkeeper run hello -- echo mine                  run a command while holding a lock
  lockkeeper run hello -- sleep 60 &                 …and see who has it
  lockkeeper query

The daemon is started when it is needed. With LOCKKEEPER_URL (unix:/path/to/daemon.sock, ws://host:port or
wss://host:port) it is one that you start. LOCKKEEPER_TOKEN_FILE has the token for one on the network, LOCKKEEPER_CA
the certificates (PEM) of who vouches for it, if that is none that the system trusts."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Query(Query),
    Serve(Serve),
}

/// Run a command while holding a lock.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  lockkeeper run backup -- ./backup.sh               one backup at a time; others wait their turn
  lockkeeper run --if-available backup -- ./backup.sh
  lockkeeper run --timeout 5s orders report.pdf -- ./report.sh
  lockkeeper run --shared orders -- ./read-only.sh

Exit status: that of the command; 75 if the lock was not to be had (--if-available, --timeout); 76 if it was
lost while the command ran; 64 if the call is wrong; 69 if no daemon can be reached; 126 or 127 if the command
cannot be started. The command sees its fencing token in LOCKKEEPER_TOKEN.")]
pub(crate) struct Run {
    /// Hold the lock together with others who do too
    #[arg(long)]
    pub(crate) shared: bool,
    /// Do not wait: exit with 75 if the lock is held
    #[arg(long, conflicts_with_all = ["timeout", "steal"])]
    pub(crate) if_available: bool,
    /// Wait no longer than that (500ms, 5s, 2m), then exit with 75
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
    /// Take the lock from whoever holds it
    #[arg(long, conflicts_with = "shared")]
    pub(crate) steal: bool,
    /// A label that others see
    #[arg(long, value_name = "TEXT")]
    pub(crate) info: Option<String>,
    /// Time between SIGTERM and SIGKILL for a command whose lock is lost
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s")]
    pub(crate) grace: Duration,
    /// The locks to hold, all at once
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<OsString>,
    /// The command, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Show who holds and who waits.
#[derive(Parser)]
pub(crate) struct Query {
    /// JSON rather than a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Of this lock only
    pub(crate) name: Option<OsString>,
}

/// Be the daemon. It is started when it is needed; this is for those who want it under their own care.
#[derive(Parser)]
#[command(after_help = "\
Every flag can also be set in the environment (LOCKKEEPER_TTL=30s for --ttl 30s), or in the file that --config names
(ttl = \"30s\"). A flag wins over the environment, and that over the file. LOCKKEEPER_LOG says what is logged: info,
debug, lockkeeper_server=debug.")]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Read more of these from a TOML file
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_CONFIG", hide_env = true)]
    pub(crate) config: Option<PathBuf>,
    /// Print what would be used, as such a file, and exit; or what is wrong, with status 64
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Started on demand: leave the terminal, and leave at once if another daemon was quicker
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

/// A session with the daemon, which this program can be.
pub(crate) fn session() -> Result<Session, (u8, String)> {
    let endpoint = Endpoint::from_env().map_err(|why| (crate::exit::USAGE, why))?;
    let program = env::current_exe().map_err(|error| (crate::exit::SOFTWARE, error.to_string()))?;
    Session::open(&endpoint, Some(program), "default")
        .map_err(|error| (crate::exit::UNAVAILABLE, error.to_string()))
}

/// A name of any bytes that the shell can pass.
pub(crate) fn name(given: &OsString) -> Name {
    Name::from(given.as_bytes())
}

fn duration(text: &str) -> Result<Duration, String> {
    text.parse().map(|Span(duration)| duration)
}

#[cfg(test)]
mod tests {
    use super::Args;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }
}
