//! A short run, and runs that break the protocol on purpose: the check must notice.

use lockkeeper_faults::{
    check::Rule,
    driver::{self, Config, Mutation},
    machine,
    plan::{KINDS, NAMES},
    process,
    report::Report,
};
use std::{
    env, fs,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Runs are timed by the clock: two at once would be in each other's way.
static ONE: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Faults that not every machine allows, or that last while others happen.
const OF_THE_MACHINE: [&str; 4] = ["settings", "full-disk", "descriptors", "freeze"];

/// Whether the machine allows a kind of fault. What it does not allow fails the test, unless it is
/// to be left out.
fn is_allowed(kind: &str) -> bool {
    let Some((name, why)) = machine::not_allowed().into_iter().find(|(name, _)| *name == kind) else {
        return true;
    };
    let skipped = env::var_os("LOCKKEEPER_SKIP_FAULTS").is_some_and(|value| value == "1");
    assert!(skipped, "no fault of the kind {name}: {why}. To leave it out, set LOCKKEEPER_SKIP_FAULTS=1");
    eprintln!("SKIPPED {name}: LOCKKEEPER_SKIP_FAULTS is set");
    false
}

fn config(test: &str, each: usize, kinds: &[&str]) -> Config {
    let wanted = |kind: &str| match kinds.is_empty() {
        true => kind != "silence" && !OF_THE_MACHINE.contains(&kind),
        false => kinds.contains(&kind) && is_allowed(kind),
    };
    let kinds = (0..KINDS.len()).filter(|kind| wanted(KINDS[*kind]));
    let seed = env::var("LOCKKEEPER_SEED").map_or(1, |seed| seed.parse().expect("a seed is a number"));
    Config {
        seed,
        kinds: kinds.collect(),
        each,
        workers: 5,
        network: 0,
        namespaces: 0,
        runners: 0,
        pythons: 0,
        forks: 0,
        threads: 0,
        scripts: 0,
        package: PathBuf::new(),
        hands: 3,
        ttl: Duration::from_secs(2),
        daemon: process::daemon_program().expect("the daemon can be built"),
        worker: PathBuf::from(env!("CARGO_BIN_EXE_lockkeeper-faults")),
        dir: env::temp_dir().join(format!("lockkeeper-faults-{test}-{}", std::process::id())),
        mutation: None,
    }
}

fn run(config: &Config) -> Report {
    println!("seed {}", config.seed);
    let report = driver::run(config).expect("the machine does as it should");
    println!("{report}");
    report
}

/// The histories of a run that went as it should are of no more use.
fn clear(config: &Config) {
    fs::remove_dir_all(&config.dir).expect("it can be removed");
}

#[test]
fn no_fault_breaks_a_promise() {
    let _one = one_at_a_time();
    let config = config("short", 24, &[]);
    let report = run(&config);
    assert!(report.violations.is_empty(), "promises were broken: see {}", config.dir.display());
    clear(&config);
    let kinds = KINDS.len() - OF_THE_MACHINE.len() - 1;
    assert_eq!(report.faults.iter().filter(|(_, count)| *count == 24).count(), kinds);
    assert!(report.holds > 200, "locks were held: {}", report.holds);
}

#[test]
fn nor_does_one_on_the_network() {
    let _one = one_at_a_time();
    let faults = ["silence", "cut", "cut-stopped", "stop-worker", "stop-daemon", "end-daemon"];
    // What makes the daemon wait for the dead is rare: it would do nothing else.
    let deaths = ["silence", "cut", "kill-worker", "kill-daemon", "kill-in-end", "stop-across"];
    for (test, kinds, each, holds) in [("network", faults, 24, 200), ("network-killed", deaths, 3, 20)] {
        let config = Config { network: 3, ttl: Duration::from_secs(1), ..config(test, each, &kinds) };
        let report = run(&config);
        assert!(report.violations.is_empty(), "promises were broken: see {}", config.dir.display());
        clear(&config);
        assert!(report.holds > holds, "locks were held: {}", report.holds);
    }
}

/// The disk is full, there are no descriptors, workers are frozen, and the settings change: with
/// each other, and with kills.
#[test]
fn nor_do_several_at_once() {
    let _one = one_at_a_time();
    let deaths = ["kill-daemon", "kill-worker", "kill-both", "stop-across", "cut"];
    let kinds: Vec<_> = OF_THE_MACHINE.into_iter().chain(deaths).collect();
    let network = [&OF_THE_MACHINE[..], &["silence", "cut", "kill-daemon"]].concat();
    let namespaces = if is_allowed("namespaces") { 2 } else { 0 };
    let ttl = Duration::from_secs(1);
    for config in [
        Config { namespaces, ..config("several", 8, &kinds) },
        Config { network: 3, namespaces, ttl, ..config("several-network", 5, &network) },
    ] {
        let report = run(&config);
        assert!(report.violations.is_empty(), "promises were broken: see {}", config.dir.display());
        clear(&config);
        assert!(report.holds > 50, "locks were held: {}", report.holds);
    }
}

/// Commands of `run`, on this machine and under a lease, and clients in Python, of which some have
/// lost the process or the thread that connected.
#[test]
fn nor_does_one_to_other_clients() {
    let _one = one_at_a_time();
    let kinds = ["kill-daemon", "end-daemon", "kill-worker", "kill-both", "stop-daemon", "cut"];
    let config = Config {
        workers: 2,
        network: 1,
        runners: 4,
        pythons: 2,
        forks: 2,
        threads: 2,
        ..config("other-clients", 6, &kinds)
    };
    let report = run(&config);
    assert!(report.violations.is_empty(), "promises were broken: see {}", config.dir.display());
    clear(&config);
    // Each of them asks for every name in the end.
    let names = NAMES.len();
    assert!(report.commands >= 4 * names && report.pythons >= 6 * names, "locks were held: {report}");
    assert!(report.forks >= 2 * names && report.threads >= 2 * names, "locks were held: {report}");
}

/// Runs with a promise broken on purpose until two are seen in each other's way. A machine that is
/// quick or slow enough can have good luck for a while.
fn notices(config: Config) {
    notices_broken(config, &[Rule::Overlap, Rule::Stale]);
}

/// What is seen of a client that is alive and loses its session.
const LOSES: [Rule; 3] = [Rule::Overlap, Rule::Stale, Rule::Lost];

fn notices_broken(mut config: Config, rules: &[Rule]) {
    for _ in 0..20 {
        let report = run(&config);
        clear(&config);
        if report.violations.iter().any(|violation| rules.contains(&violation.rule)) {
            return;
        }
        config.seed += 1;
    }
    panic!("nobody noticed");
}

#[test]
fn the_check_notices_a_daemon_that_loses_its_log() {
    let _one = one_at_a_time();
    let kinds = ["kill-daemon", "stop-across"];
    notices(Config { mutation: Some(Mutation::Forgetful), ..config("forgetful", 20, &kinds) });
}

#[test]
fn the_check_notices_a_daemon_that_loses_its_log_with_other_faults() {
    let _one = one_at_a_time();
    for kinds in [&["settings"][..], &["full-disk", "kill-daemon"]] {
        let config = config("forgetful-others", 10, kinds);
        notices(Config { mutation: Some(Mutation::Forgetful), ..config });
    }
}

#[test]
fn the_check_notices_a_daemon_that_takes_whom_it_cannot_ask_for_dead() {
    let _one = one_at_a_time();
    if is_allowed("descriptors") {
        // A daemon that starts has too few to ask them all. The ttl is long: locks that are lost
        // after a daemon was away for half of it are excused.
        let ttl = Duration::from_secs(4);
        let config = Config { workers: 24, hands: 1, ttl, ..config("busy-is-dead", 8, &["descriptors"]) };
        let mutation = Some(Mutation::BusyIsDead);
        notices_broken(Config { mutation, ..config }, &LOSES);
    }
}

#[test]
fn the_check_notices_a_daemon_that_judges_a_client_by_the_process_that_connected() {
    let _one = one_at_a_time();
    let mutation = Some(Mutation::JudgeByProcess);
    let killed = Config { mutation, workers: 1, ..config("judge-by-process", 20, &["kill-daemon"]) };
    // Once its session is lost, the surviving process opens the next one itself.
    notices_broken(Config { forks: 4, ..killed.clone() }, &LOSES);
    notices_broken(Config { threads: 4, ..killed }, &LOSES);
    let frozen = ["freeze", "kill-daemon"];
    if frozen.iter().all(|kind| is_allowed(kind)) {
        notices_broken(Config { mutation, ..config("judge-by-process-frozen", 20, &frozen) }, &LOSES);
    }
    if is_allowed("namespaces") {
        let config = config("judge-by-process-namespaces", 20, &["stop-across"]);
        notices(Config { mutation, namespaces: 5, ..config });
    }
}

#[test]
fn the_check_notices_other_clients_that_go_on_without_their_lock() {
    let _one = one_at_a_time();
    let stubborn = Config {
        workers: 2,
        mutation: Some(Mutation::Stubborn),
        ..config("other-stubborn", 12, &["kill-worker"])
    };
    notices(Config { pythons: 3, ..stubborn.clone() });
    notices(Config { runners: 4, ..stubborn });
}

#[test]
fn the_check_notices_a_command_under_a_lease_that_nobody_ends() {
    let _one = one_at_a_time();
    let config = config("unguarded", 20, &["kill-worker"]);
    let ttl = Duration::from_millis(500);
    let mutation = Some(Mutation::Unguarded);
    notices(Config { workers: 1, network: 1, runners: 4, ttl, mutation, ..config });
}

#[test]
fn the_check_notices_a_client_on_the_network_without_a_deadline_of_its_own() {
    let _one = one_at_a_time();
    let config = Config { network: 3, ttl: Duration::from_secs(1), ..config("deadline", 10, &["silence"]) };
    notices(Config { mutation: Some(Mutation::Stubborn), ..config });
}

/// etcd goes back to a backup, and the daemons are started without the flag: two clients hold a
/// lock, or tokens do not grow.
#[test]
fn a_fleet_whose_store_went_back_is_noticed() {
    let _one = one_at_a_time();
    let daemon = process::daemon_program().expect("the daemon can be built");
    let mut faults = Command::new(env!("CARGO_BIN_EXE_lockkeeper-faults"));
    faults.args(["fleet", "--rounds", "3", "--workers", "4", "--members", "1", "--seed", "1"]);
    let ran =
        faults.args(["--mutate", "restored"]).env("LOCKKEEPER_BIN", daemon).output().expect("it starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(ran.status.code(), Some(1), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    let histories = said.lines().find_map(|line| line.strip_prefix("histories: "));
    fs::remove_dir_all(histories.expect("they are kept")).expect("they can be removed");
}

/// While other daemons answer, no client is to lose its locks.
#[test]
fn a_fleet_whose_clients_stay_with_a_daemon_that_is_away_is_noticed() {
    let _one = one_at_a_time();
    let daemon = process::daemon_program().expect("the daemon can be built");
    // One that has just released all that it had loses nothing.
    for seed in 1..20 {
        let mut faults = Command::new(env!("CARGO_BIN_EXE_lockkeeper-faults"));
        faults.args(["fleet", "--rounds", "1", "--workers", "3", "--members", "1", "--mutate", "loyal"]);
        faults.arg(format!("--seed={seed}")).env("LOCKKEEPER_BIN", &daemon);
        let ran = faults.output().expect("it starts");
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(said.contains(" violations"), "{said}{}", String::from_utf8_lossy(&ran.stderr));
        if let Some(histories) = said.lines().find_map(|line| line.strip_prefix("histories: ")) {
            fs::remove_dir_all(histories).expect("they can be removed");
        }
        if said.contains("a lock was lost for no reason") {
            return;
        }
    }
    panic!("nobody lost a lock");
}

/// Leaders, followers and members of etcd, killed, stopped and cut off, several at once.
#[test]
fn a_fleet_keeps_its_promises() {
    let _one = one_at_a_time();
    let daemon = process::daemon_program().expect("the daemon can be built");
    let seed = env::var("LOCKKEEPER_SEED").unwrap_or_else(|_| "1".into());
    // The program, since a network that can be cut is its own.
    let mut faults = Command::new(env!("CARGO_BIN_EXE_lockkeeper-faults"));
    // A lease that a busy machine does not exceed by itself.
    faults.args(["fleet", "--rounds", "6", "--workers", "3", "--runners", "2", "--ttl", "6000"]);
    faults.args(["--seed", &seed]).env("LOCKKEEPER_BIN", daemon);
    let ran = faults.output().expect("it starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    println!("{said}");
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    let may_skip = env::var_os("LOCKKEEPER_SKIP_MOUNT").is_some_and(|value| value == "1");
    assert!(
        may_skip || !said.contains("SKIPPED"),
        "{said}\nSet LOCKKEEPER_SKIP_MOUNT=1 where it is not permitted."
    );
    // The lines of the report: how often each kind was done.
    let done = |line: &str| {
        let (count, kind) = line.trim().split_once(' ')?;
        let count: u32 = line.strip_prefix("  ").and(count.parse().ok())?;
        DEEDS.iter().any(|deed| kind.ends_with(deed)).then_some(count)
    };
    let done: Vec<u32> = said.lines().filter_map(done).collect();
    assert!(done.len() >= 3 && done.iter().sum::<u32>() >= 4, "{said}");
    let commands =
        said.split(" granted to commands").next().and_then(|said| said.lines().last()?.parse().ok());
    assert!(commands.is_some_and(|commands: usize| commands >= 2 * NAMES.len()), "{said}");
    let holds = said.split(" granted,").next().and_then(|said| said.rsplit(' ').next()?.parse::<u32>().ok());
    assert!(holds.is_some_and(|holds| holds >= 50), "{said}");
}

/// What is done to a fleet.
const DEEDS: [&str; 5] = ["-leader", "-follower", "-etcd", "-worker", "-run"];
