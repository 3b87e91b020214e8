//! The `lockkeeper-faults` command.

use clap::{Parser, Subcommand};
use lockkeeper_core::Mode as LockMode;
use lockkeeper_faults::{
    driver::{self, Config, Mutation},
    fleet, machine,
    plan::KINDS,
    process,
    report::Report,
    runner, worker,
};
use lockkeeper_testing::Network;
use std::{
    env, io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Kills, stops and cuts off Lockkeeper's daemon and its clients, and checks that no promise was
/// broken.
#[derive(Parser)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
It starts a daemon and workers that ask for locks, then does to them what a schedule says that is drawn from the seed,
and in the end reads what the workers have seen. It exits with 0 if all was well; with 1 if a promise was broken, and
says which: then the histories are kept, and where they are is printed.

The kinds of faults: kill-daemon, end-daemon, kill-in-start, kill-in-end, kill-worker, kill-both, stop-worker,
stop-across, cut, cut-stopped, stop-daemon, settings, full-disk, descriptors, freeze; with --network, silence. What the
machine does not allow is left out, and named.

To see that the check notices:
  lockkeeper-faults --mutate forgetful        a daemon that has been killed forgets who had sessions
  lockkeeper-faults --mutate stubborn         clients that are told that their locks are lost go on
  lockkeeper-faults --mutate unguarded        the command of a `run` that is killed under a lease goes on without a lock
  lockkeeper-faults --mutate busy-is-dead     a daemon without a descriptor to ask whether a client is alive takes it for dead
  lockkeeper-faults --mutate judge-by-process a daemon judges a client by the process and the thread that connected
  lockkeeper-faults fleet --mutate stubborn   as above
  lockkeeper-faults fleet --mutate loyal      clients know one daemon each, and lose their locks while others answer
  lockkeeper-faults fleet --mutate restored   etcd goes back to a backup, and no daemon is told"
)]
struct Args {
    #[command(flatten)]
    run: Run,
    #[command(subcommand)]
    command: Option<Mode>,
}

#[derive(clap::Args)]
struct Run {
    /// How many faults of each kind
    #[arg(long, default_value_t = 24)]
    faults: usize,
    /// Where all that is random comes from [default: the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Only this kind of fault; can be given more than once
    #[arg(long, value_name = "KIND", value_parser = KINDS)]
    only: Vec<String>,
    /// How many workers there are at a time
    #[arg(long, default_value_t = 5)]
    workers: usize,
    /// How many of them are on the network: slower, since the locks of one that is killed last for
    /// the TTL
    #[arg(long, default_value_t = 0)]
    network: usize,
    /// How many of them are in PID namespaces of their own
    #[arg(long, default_value_t = 0)]
    namespaces: usize,
    /// How many of them use `lockkeeper run`
    #[arg(long, default_value_t = 0)]
    runners: usize,
    /// How many of them use the Python client
    #[arg(long, default_value_t = 0)]
    pythons: usize,
    /// How many of them use it in a process whose parent connected and exited
    #[arg(long, default_value_t = 0)]
    forks: usize,
    /// How many of them use it on a thread, after the main thread connected and exited
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// How many of them use the npm package, which has to be built
    #[arg(long, default_value_t = 0)]
    scripts: usize,
    /// The directory of the npm package
    #[arg(long, default_value = PACKAGE)]
    package: PathBuf,
    /// How many requests a worker makes at a time
    #[arg(long, default_value_t = 3)]
    hands: usize,
    /// How long a daemon that was killed waits for its clients, in milliseconds
    #[arg(long, default_value_t = 2000)]
    ttl: u64,
    /// The daemon's program [default: $LOCKKEEPER_BIN, or built with cargo]
    #[arg(long, value_name = "PATH")]
    daemon: Option<PathBuf>,
    /// Break the protocol on purpose
    #[arg(long, value_enum)]
    mutate: Option<Mutation>,
    /// Print the schedule, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep the histories, however it ends
    #[arg(long)]
    keep: bool,
}

#[derive(clap::Args)]
struct Fleet {
    /// How often something happens
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// Where all that is random comes from [default: the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// How many members etcd has
    #[arg(long, default_value_t = 3)]
    members: usize,
    /// How many workers there are at a time
    #[arg(long, default_value_t = 5)]
    workers: usize,
    /// How many more there are that use `lockkeeper run`
    #[arg(long, default_value_t = 0)]
    runners: usize,
    /// How many more that use the npm package, which has to be built
    #[arg(long, default_value_t = 0)]
    scripts: usize,
    /// The directory of the npm package
    #[arg(long, default_value = PACKAGE)]
    package: PathBuf,
    /// The lease of a client, in milliseconds
    #[arg(long, default_value_t = 4000)]
    ttl: u64,
    /// Break the protocol on purpose
    #[arg(long, value_enum)]
    mutate: Option<fleet::Mutation>,
}

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packages/lockkeeper");

/// What every worker is told.
#[derive(clap::Args)]
struct Common {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    url: String,
    #[arg(long)]
    process: usize,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    stubborn: bool,
}

#[derive(Subcommand)]
enum Mode {
    /// Do it to a fleet: daemons on a real etcd, and that etcd itself
    Fleet(Fleet),
    /// Be a worker
    #[command(hide = true)]
    Worker {
        #[command(flatten)]
        common: Common,
        #[arg(long)]
        hands: usize,
    },
    /// Be a worker that uses `lockkeeper run`
    #[command(hide = true)]
    Runner {
        #[command(flatten)]
        common: Common,
        #[arg(long)]
        program: PathBuf,
        #[arg(long)]
        long: bool,
    },
    /// Be the command of a `lockkeeper run`
    #[command(hide = true)]
    Command {
        #[arg(long)]
        dir: PathBuf,
        #[arg(long)]
        process: usize,
        #[arg(long)]
        request: u64,
        #[arg(long)]
        name: String,
        #[arg(long)]
        hold: u64,
        #[arg(long)]
        shared: bool,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.command {
        Some(Mode::Worker { common: Common { dir, url, process, seed, stubborn }, hands }) => {
            worker::work(&dir, &url, worker::Orders { process, seed, hands, stubborn }).map(|()| true)
        }
        Some(Mode::Runner { common: Common { dir, url, process, seed, stubborn }, program, long }) => {
            runner::work(&dir, &url, runner::Orders { process, seed, program, stubborn, long }).map(|()| true)
        }
        Some(Mode::Command { dir, process, request, name, hold, shared }) => {
            let mode = if shared { LockMode::Shared } else { LockMode::Exclusive };
            let hold = Duration::from_millis(hold);
            runner::command(&dir, process, request, &name, mode, hold).map(|()| true)
        }
        Some(Mode::Fleet(args)) => run_fleet(args),
        None => run(args.run),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lockkeeper-faults: {error}");
            ExitCode::from(70)
        }
    }
}

fn seed_or_clock(seed: Option<u64>) -> u64 {
    let clock = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::from(since.subsec_nanos())
    };
    let seed = seed.unwrap_or_else(clock);
    println!("seed {seed}");
    seed
}

fn run_fleet(args: Fleet) -> io::Result<bool> {
    let hosts = match Network::alone() {
        Ok(()) => true,
        Err(error) => {
            println!("SKIPPED cut-leader, cut-leader-from-etcd, cut-etcd: no network namespaces: {error}");
            false
        }
    };
    let config = fleet::Config {
        seed: seed_or_clock(args.seed),
        rounds: args.rounds,
        daemons: 3,
        members: args.members,
        workers: args.workers,
        runners: args.runners,
        scripts: args.scripts,
        package: args.package,
        ttl: Duration::from_millis(args.ttl),
        hosts,
        daemon: process::daemon_program()?,
        worker: env::current_exe()?,
        dir: env::temp_dir().join(format!("lockkeeper-faults-{}", std::process::id())),
        mutation: args.mutate,
    };
    conclude(&fleet::run(&config)?, &config.dir, false)
}

/// Prints the report, and removes the histories unless somebody wants them. Whether all was well.
fn conclude(report: &Report, dir: &Path, keep: bool) -> io::Result<bool> {
    print!("{report}");
    let well = report.violations.is_empty() && report.holds > 0;
    match well && !keep {
        true => std::fs::remove_dir_all(dir)?,
        false => println!("histories: {}", dir.display()),
    }
    Ok(well)
}

/// Whether all was well.
fn run(args: Run) -> io::Result<bool> {
    let seed = seed_or_clock(args.seed);
    let worker = env::current_exe()?;
    let not_allowed = machine::not_allowed();
    for (kind, why) in &not_allowed {
        println!("SKIPPED {kind}: {why}");
    }
    let allowed = |kind: &usize| !not_allowed.iter().any(|(name, _)| KINDS[*kind] == *name);
    let wanted = |kind: &usize| match args.only.is_empty() {
        true => allowed(kind) && (args.network > 0 || KINDS[*kind] != "silence"),
        false => args.only.iter().any(|only| only == KINDS[*kind]),
    };
    let kinds: Vec<_> = (0..KINDS.len()).filter(wanted).collect();
    let config = Config {
        seed,
        kinds,
        each: args.faults,
        workers: args.workers,
        network: args.network,
        namespaces: args.namespaces,
        runners: args.runners,
        pythons: args.pythons,
        forks: args.forks,
        threads: args.threads,
        scripts: args.scripts,
        package: args.package,
        hands: args.hands,
        ttl: Duration::from_millis(args.ttl),
        daemon: PathBuf::new(),
        worker,
        dir: env::temp_dir().join(format!("lockkeeper-faults-{}", std::process::id())),
        mutation: args.mutate,
    };
    if args.dry_run {
        config.schedule().iter().for_each(|step| println!("{:?} {}", step.after, step.fault));
        return Ok(true);
    }
    let config = Config { daemon: args.daemon.map_or_else(process::daemon_program, Ok)?, ..config };
    conclude(&driver::run(&config)?, &config.dir, args.keep)
}
