//! The command line.

use clap::{Parser, Subcommand};
use lockkeeper_client::{Endpoint, Session};
use lockkeeper_core::Name;
use std::{env, ffi::OsString, net::SocketAddr, os::unix::ffi::OsStrExt, path::PathBuf, time::Duration};

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

The daemon is started when it is needed. With LOCKKEEPER_URL (unix:/path/to/daemon.sock) it is one that you start."
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
pub(crate) struct Serve {
    /// Where to listen [default: this user's own]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Where to keep what must outlive the daemon [default: in lockkeeper in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Listen for WebSockets too, with /healthz and /metrics (127.0.0.1:7420)
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// Speak TLS there, with this certificate (PEM); it is read anew on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let in only who has a token signed with one of these keys (a JSON Web Key Set); they are read anew on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(crate) keys: Option<PathBuf>,
    /// Let in everybody who reaches the port, from other machines too
    #[arg(long, conflicts_with = "keys")]
    pub(crate) insecure: bool,
    /// Let pages of this origin connect (https://example.com; * for all); browsers are refused otherwise
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) allow_origin: Vec<String>,
    /// How long a client on the network, or a daemon that was killed, may be silent before the others go on
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s")]
    pub(crate) ttl: Duration,
    /// Leave after so long without a client [default: never; 5m if it was started on demand]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) idle: Option<Duration>,
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
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a duration is a number with ms, s, m or h".into()),
    };
    let number: f64 = number.parse().map_err(|_| "a duration is a number with ms, s, m or h".to_string())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{Args, duration};
    use clap::CommandFactory;
    use std::time::Duration;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        for wrong in ["", "s", "5 s", "1d", "-1s", "1e99h", "99999999999999999999h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
