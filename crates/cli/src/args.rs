//! The command line.

use crate::settings::{Settings, Span};
use clap::{
    ArgGroup, Parser, Subcommand,
    builder::{OsStringValueParser, TypedValueParser},
};
use lockkeeper_core::{Limits, Name};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    time::Duration,
};

/// Named locks for the processes of a user, of a machine, or of many machines, served in order.
#[derive(Parser)]
#[command(
    name = "lockkeeper",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  lockkeeper run backup -- ./backup.sh                 one at a time; others wait their turn
  lockkeeper run --if-available backup -- ./backup.sh  not twice at once: exit status 75
  lockkeeper query                                     who holds, who waits
  lockkeeper top                                       the same, live
  lockkeeper inspect backup                            all details of one lock
  lockkeeper release backup                            take it from its holder

Commands use this user's own daemon, which is started on demand. All processes of a user on a machine
share it, whatever their environment. --machine uses the machine's daemon, which its users share.

Environment:
  LOCKKEEPER_URL         the daemon: user, machine, unix:PATH, ws://HOST:PORT, wss://HOST:PORT
  LOCKKEEPER_BUCKET      another bucket than \"default\"
  LOCKKEEPER_DIR         another folder for the user's own daemon
  LOCKKEEPER_TOKEN_FILE  the token for a daemon on the network
  LOCKKEEPER_CA          certificates (PEM) of its authority, if the system does not trust it"
)]
pub(crate) struct Args {
    /// Use the machine's daemon, which several users share, instead of this user's own
    #[arg(long, global = true)]
    pub(crate) machine: bool,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Lock(Lock),
    Unlock(Unlock),
    Held(Held),
    /// Keep a session alive until the shell has it: for `lock` to start
    #[command(hide = true)]
    Keep,
    /// Renew the lease of a command's lock: for `run` to start
    #[command(hide = true)]
    Guard {
        /// The client id of the session, for `query` to see. A `run` of before an upgrade has none
        client: Option<String>,
    },
    /// Renew the lease of a shell's lock: for `lock` to start
    #[command(hide = true)]
    GuardShell {
        /// The client id of the session, for `unlock` to see
        client: String,
    },
    Query(Query),
    Inspect(Inspect),
    Top(Top),
    Release(Release),
    Status(Status),
    /// Stop the daemon. Locks stay held; the next client that needs it starts it again
    Stop,
    /// Restart the daemon: after an upgrade, with the program that is installed now. Locks stay
    /// held
    Restart,
    Logs(Logs),
    Serve(Box<Serve>),
    Fleet(Fleet),
    State(State),
    Token(Token),
    Completions(Completions),
    /// Print names of locks, for completions
    #[command(hide = true)]
    Names,
    Man(Man),
}

/// Run a command while holding a lock.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  lockkeeper run backup -- ./backup.sh                 one at a time; others wait their turn
  lockkeeper run -n backup -- ./backup.sh              not twice at once: exit status 75
  lockkeeper run -w 5s orders pdf -- ./report          two locks at once, or exit status 75
  lockkeeper run -s orders -- ./read-only.sh           together with others that only read
  lockkeeper run build -c 'make && make check'         a line of shell
  lockkeeper run --for 1h30m nightly -- ./nightly.sh   end it if it takes longer
  lockkeeper run --exec web -- ./server                become the command, for supervisors

Exit status:
  that of the command, or 128+N if signal N ended it
  64   the call is wrong
  69   no daemon can be reached; with --if-available, also if it is silent for 10s
  75   the lock was not available (--if-available, --timeout; -E sets another)
  76   the lock was lost while the command ran: stolen, released by force, or the daemon was gone too long
  77   the credentials do not allow it
  124  the command ran for longer than --for
  126  the command cannot be started; 127: there is no such command

The command sees the fencing number of its lock in LOCKKEEPER_FENCE: it grows with every grant.
LOCKKEEPER_NAMES has the names that were taken around it, separated by blanks; lockkeeper held NAME
tells whether one is still held. Signals that are sent to lockkeeper run are passed on. The lock lasts as
long as the command, even if lockkeeper run is killed.")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) lock: Wanted,
    /// Pass this line to the shell ($SHELL -c LINE), in the place of a command
    #[arg(short = 'c', long = "command", value_name = "LINE", conflicts_with = "command")]
    pub(crate) shell_command: Option<OsString>,
    /// End the command if it runs for longer, as when the lock is stolen
    #[arg(long = "for", value_parser = duration, value_name = "DURATION", conflicts_with = "exec")]
    pub(crate) limit: Option<Duration>,
    /// Keep the lock for so long at least, also if the command is done sooner
    #[arg(long, value_parser = duration, value_name = "DURATION", conflicts_with = "exec")]
    pub(crate) min_hold: Option<Duration>,
    /// Time from SIGTERM to SIGKILL when the command is ended
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s")]
    pub(crate) grace: Duration,
    /// Become the command, without notice of a steal
    #[arg(short = 'F', long, visible_alias = "no-fork")]
    pub(crate) exec: bool,
    /// Do not let the command inherit the lock, which ends with run
    #[arg(short = 'o', long, conflicts_with = "exec")]
    pub(crate) close: bool,
    /// The command, after --
    #[arg(
        last = true,
        required_unless_present = "shell_command",
        value_name = "COMMAND",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub(crate) command: Vec<OsString>,
}

/// Which locks, and how they are waited for.
#[derive(clap::Args)]
pub(crate) struct Wanted {
    /// Hold the lock together with others who do too
    #[arg(short, long)]
    pub(crate) shared: bool,
    /// Hold the lock alone, which is the default
    #[arg(short = 'x', short_alias = 'e', long, hide = true, conflicts_with = "shared")]
    pub(crate) exclusive: bool,
    /// Do not wait: exit 75 if the lock is held, 69 if the daemon is silent for 10s
    #[arg(short = 'n', long, aliases = ["nonblock", "nb"], conflicts_with_all = ["timeout", "steal"])]
    pub(crate) if_available: bool,
    /// Wait no longer (500ms, 1h30m; a number is in seconds), then exit with 75
    #[arg(short = 'w', long, alias = "wait", value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: Option<Duration>,
    /// The exit status if the lock is not available
    #[arg(short = 'E', long = "status", alias = "conflict-exit-code", value_name = "STATUS")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Take the lock from its holder, which is notified
    #[arg(long, conflicts_with = "shared")]
    pub(crate) steal: bool,
    /// A label that others see [default: user@host: COMMAND ARGUMENTS, up to an option]
    #[arg(long, value_name = "TEXT", value_parser = label)]
    pub(crate) info: Option<String>,
    /// The lease to ask for, on a network
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) ttl: Option<Duration>,
    /// Say nothing while waiting, nor when the lock is not available
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The locks to hold, all at once
    #[arg(required = true, num_args = 1..=usize::from(Limits::default().names_per_scope), value_name = "NAME", value_parser = lock_name())]
    pub(crate) names: Vec<OsString>,
}

/// Hold a lock for the rest of a script
///
/// What it prints is for the shell: eval "$(lockkeeper lock NAME)". The lock lives as long as the
/// shell, and what the shell starts; lockkeeper unlock NAME releases it sooner. On a network, and
/// at the machine's daemon, a guardian holds it for the shell: if it is stolen or lost, the
/// guardian says so on standard error and sends SIGTERM to the shell and what that has started. At
/// this user's own daemon, nobody is told.
#[derive(Parser)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  eval \"$(lockkeeper lock deploy)\"                     wait for it, then go on
  eval \"$(lockkeeper lock -n deploy || echo exit 75)\"  or leave, if it is held
  lockkeeper unlock deploy                             release it before the script ends

It is for sh, bash, zsh and other POSIX shells; in fish, use lockkeeper run.

Exit status: as that of lockkeeper run. What is printed ends a script that did not get its lock, with that
status; with 69 if lockkeeper lock is killed while it waits. An interactive shell goes on."
)]
pub(crate) struct Lock {
    #[command(flatten)]
    pub(crate) lock: Wanted,
}

/// Release a lock that lockkeeper lock has taken in this shell.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  lockkeeper unlock deploy                             as it was named to lockkeeper lock

Exit status: 0; 1 if this shell does not hold it; 76 if its guardian has lost it.")]
pub(crate) struct Unlock {
    /// The locks, as they were taken
    #[arg(required = true, value_name = "NAME", value_parser = lock_name())]
    pub(crate) names: Vec<OsString>,
}

/// Tell whether the command or script around this one holds a lock
///
/// It asks the daemon: a lock that was unlocked, stolen or lost is not held. LOCKKEEPER_NAMES in
/// the environment has the names that were taken, whatever has become of them since.
#[derive(Parser)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  lockkeeper held deploy || exit 75                    not without the lock
  lockkeeper held a || exec lockkeeper run -n a -- \"$0\" \"$@\"

The second one has a script lock itself.

Exit status: 0 if all are held, 1 if not, 69 if no daemon can be reached."
)]
pub(crate) struct Held {
    /// The locks
    #[arg(required = true, value_name = "NAME", value_parser = lock_name())]
    pub(crate) names: Vec<OsString>,
}

/// Check or reset what a daemon has on disk.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  lockkeeper state check                    what is there, and whether a daemon would take it
  lockkeeper state reset                    move it aside: the next daemon begins with nothing held

check changes nothing. reset moves the files into a folder beside them; it refuses while a daemon runs.")]
pub(crate) struct State {
    /// The state directory [default: that of this user's daemon]
    #[arg(long, value_name = "DIR", env = "LOCKKEEPER_STATE_DIR", hide_env = true, global = true)]
    pub(crate) state_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: StateCommand,
}

#[derive(Subcommand)]
pub(crate) enum StateCommand {
    /// Print what is there; fail if a daemon would refuse it
    Check,
    /// Move it aside
    Reset,
}

/// Show who holds and who waits, a line for each name
///
/// A table on a terminal, JSON elsewhere.
#[derive(Parser)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  lockkeeper query                                     all locks
  lockkeeper query backup                              one of them, and the queue for it in order
  lockkeeper query --json | jq '.held[].name'          the names that are held

JSON: {\"held\":[{\"name\",\"mode\",\"clientId\",\"token\",\"info\",\"pid\",\"since\"}],\"pending\":[…]}, where since is the
time in milliseconds for which it has been held or has waited. token is missing where it waits, info and
pid where they are not known, and all of these without the right to inspect. stopped is true if a signal
has stopped the process (Ctrl-Z), ended if it is gone and something that it started has the lock, and
unverifiable if the daemon cannot tell whether it is alive: lockkeeper release --client ends its session.
A name that no JavaScript string spells has its bytes in nameBytes, in hex.

The process of a client on the network is the one that asked. If lockkeeper run was killed and its command
lives, the command is shown in its place on the machine where it runs; elsewhere, run is."
)]
pub(crate) struct Query {
    /// JSON, even on a terminal
    #[arg(long)]
    pub(crate) json: bool,
    /// A table, even if it does not go to a terminal
    #[arg(long, conflicts_with = "json")]
    pub(crate) table: bool,
    /// Of this lock only
    #[arg(value_parser = lock_name())]
    pub(crate) name: Option<OsString>,
}

/// Show all details: scopes, labels, tokens, processes, deadlocks
///
/// A line for each request, which may have several names. A table on a terminal, JSON elsewhere.
#[derive(Parser)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  lockkeeper inspect                                   all requests
  lockkeeper inspect backup                            those that ask for this lock
  lockkeeper inspect --json | jq '.deadlocks[].cycle'  who waits for whom in a circle

JSON: {\"held\":[{\"request\",\"scope\":[{\"name\",\"mode\"}],\"clientId\",\"token\",\"info\",\"pid\",\"since\",\"nestedIn\",
\"stole\"}],\"pending\":[…],\"deadlocks\":[{\"cycle\":[{\"request\",\"waitsFor\":{\"name\"}}]}]}. Each request of a cycle
waits for the next: for the name in waitsFor, or because the next is nested in it. See also query --help."
)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) query: Query,
}

/// Show who holds and who waits, live, on the whole screen
///
/// The longest wait comes first; below the list is the queue of the lock that is selected.
#[derive(Parser)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  lockkeeper top                                       ? shows the keys: filter, sort, release, quit"
)]
pub(crate) struct Top {}

/// Break all locks of a name
///
/// The holders are told: lockkeeper run ends its command and exits with 76. Whoever waits is next.
/// On a terminal, it asks before it does so.
#[derive(Parser)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  lockkeeper release backup                            shows who holds it, and asks
  lockkeeper release --yes backup                      does not ask
  lockkeeper release --client 5f0c7d1e2a9b4c38         ends that client's session, by its id

Exit status: 0, also if nobody held it; 1 if you said no, or there is no such client."
)]
pub(crate) struct Release {
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// End the session of this client instead, by its id, which `inspect` shows
    #[arg(long, value_name = "ID", conflicts_with = "name")]
    pub(crate) client: Option<String>,
    /// The lock
    #[arg(value_parser = lock_name(), required_unless_present = "client")]
    pub(crate) name: Option<OsString>,
}

/// Show where the daemon is, and whether it runs. Does not start it.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  lockkeeper status                                    the daemon, its locks, its files
  lockkeeper status --socket                           the path of its socket, for other programs

Exit status: 0 if it runs, 69 if not.")]
pub(crate) struct Status {
    /// Print the path of the socket and nothing else
    #[arg(long)]
    pub(crate) socket: bool,
}

/// Show the daemons of a fleet, their leader, and the state of etcd.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  lockkeeper fleet --store etcd://a:2379,b:2379,c:2379
  LOCKKEEPER_STORE=etcd://a:2379 lockkeeper fleet --json

It asks etcd, and works also if no daemon does. What `lockkeeper serve` needs to reach etcd, this needs, too.

Exit status: 0 if a daemon leads and etcd is well, 1 if something is wrong, 69 if etcd cannot be reached.")]
pub(crate) struct Fleet {
    /// The etcd (etcd://a:2379,b:2379,c:2379/prefix; etcds:// for TLS)
    #[arg(long, value_name = "URL", env = "LOCKKEEPER_STORE", hide_env = true)]
    pub(crate) store: String,
    /// Trust etcd's certificate by these authorities (PEM) [default: the system's]
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_STORE_CA", hide_env = true)]
    pub(crate) store_ca: Option<PathBuf>,
    /// The certificate of this client of etcd (PEM)
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_STORE_CERT", hide_env = true)]
    pub(crate) store_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_STORE_KEY", hide_env = true)]
    pub(crate) store_key: Option<PathBuf>,
    /// A user of etcd
    #[arg(long, value_name = "NAME", env = "LOCKKEEPER_STORE_USER", hide_env = true)]
    pub(crate) store_user: Option<String>,
    /// The file with that user's password
    #[arg(long, value_name = "FILE", env = "LOCKKEEPER_STORE_PASSWORD_FILE", hide_env = true)]
    pub(crate) store_password_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the log of a daemon that was started on demand.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  lockkeeper logs                                      the last lines
  lockkeeper logs -f                                   and those that follow")]
pub(crate) struct Logs {
    /// Go on with what is added
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// How many lines
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100)]
    pub(crate) lines: u32,
}

/// Print a script that completes commands and options in a shell.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  lockkeeper completions bash > ~/.local/share/bash-completion/completions/lockkeeper
  lockkeeper completions zsh > ~/.zfunc/_lockkeeper    with ~/.zfunc in fpath
  lockkeeper completions fish > ~/.config/fish/completions/lockkeeper.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Write the manual pages, one for each command.
#[derive(Parser)]
#[command(after_help = "\
Example:
  lockkeeper man ~/.local/share/man/man1 && man lockkeeper-run")]
pub(crate) struct Man {
    /// Where to, a directory that exists
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

/// Run the daemon in the foreground. Otherwise it is started on demand.
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

/// Make a token, which gives a client on the network its rights
///
/// The daemon has the keys: lockkeeper serve --listen ADDR --keys FILE. A client shows a token:
/// LOCKKEEPER_TOKEN_FILE=FILE.
#[derive(Parser)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  lockkeeper token --new-key keys.json
  lockkeeper token --keys keys.json --bucket jobs --expires 30d > jobs.token
  lockkeeper token --keys keys.json --bucket '*' --steal --force-release --inspect > operator.token"
)]
#[command(group = ArgGroup::new("what").args(["new_key", "keys"]).multiple(true).required(true))]
pub(crate) struct Token {
    /// Make a key, and write it to a file that is not there yet
    #[arg(long, value_name = "FILE")]
    pub(crate) new_key: Option<PathBuf>,
    /// Print a token that is signed with the key in this file
    #[arg(long, value_name = "FILE", requires = "bucket")]
    pub(crate) keys: Option<PathBuf>,
    /// A bucket that it is for; a trailing * stands for any end
    #[arg(long, value_name = "NAME")]
    pub(crate) bucket: Vec<String>,
    /// For how long it is good (12h, 30d)
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "30d")]
    pub(crate) expires: Duration,
    /// It allows to steal locks
    #[arg(long)]
    pub(crate) steal: bool,
    /// It allows to release locks by force
    #[arg(long)]
    pub(crate) force_release: bool,
    /// It shows others' labels, tokens and processes
    #[arg(long)]
    pub(crate) inspect: bool,
    /// Who has it: shown beside the locks, and in the daemon's log
    #[arg(long, value_name = "NAME")]
    pub(crate) subject: Option<String>,
    /// The daemon that it is for, by the name that one has as its --audience
    #[arg(long, value_name = "NAME")]
    pub(crate) audience: Option<String>,
}

/// A name of any bytes that the shell can pass.
pub(crate) fn name(given: &OsStr) -> Name {
    Name::from(given.as_bytes())
}

/// What can be a name: the daemon would refuse others, but a wrong call should not start one.
fn lock_name() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|name| match name.len() {
        0 => Err("a name is not empty".to_string()),
        length if length > Limits::default().name_bytes => {
            Err(format!("a name has at most {} bytes", Limits::default().name_bytes))
        }
        _ => Ok(name),
    })
}

/// What can be a label, likewise.
fn label(text: &str) -> Result<String, String> {
    const LABEL: usize = 4096;
    if text.len() > LABEL { Err(format!("a label has at most {LABEL} bytes")) } else { Ok(text.into()) }
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
