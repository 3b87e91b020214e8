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

/// Whether the machine allows a kind of fault. What it does not allow is named.
fn is_allowed(kind: &str) -> bool {
    match machine::not_allowed().into_iter().find(|(name, _)| *name == kind) {
        Some((name, why)) => {
            println!("SKIPPED {name}: {why}");
            false
        }
        None => true,
    }
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

/// Commands of `run`, on this machine and under a lease, and clients in Python.
#[test]
fn nor_does_one_to_other_clients() {
    let _one = one_at_a_time();
    let kinds = ["kill-daemon", "end-daemon", "kill-worker", "kill-both", "stop-daemon", "cut"];
    let config =
        Config { workers: 2, network: 1, runners: 4, pythons: 2, ..config("other-clients", 6, &kinds) };
    let report = run(&config);
    assert!(report.violations.is_empty(), "promises were broken: see {}", config.dir.display());
    clear(&config);
    // Each of them asks for every name in the end.
    let names = NAMES.len();
    assert!(report.commands >= 4 * names && report.pythons >= 2 * names, "locks were held: {report}");
}

/// Runs with a promise broken on purpose until two are seen in each other's way. A machine that is
/// quick or slow enough can have good luck for a while.
fn notices(mut config: Config) {
    for _ in 0..20 {
        let report = run(&config);
        clear(&config);
        let met = |rule: &Rule| matches!(rule, Rule::Overlap | Rule::Stale);
        if report.violations.iter().any(|violation| met(&violation.rule)) {
            return;
        }
        config.seed += 1;
    }
    panic!("nobody was in anybody's way");
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
fn the_check_notices_a_daemon_that_takes_the_living_for_dead() {
    let _one = one_at_a_time();
    let mutation = Some(Mutation::Reaper);
    for kind in ["freeze", "descriptors"].into_iter().filter(|kind| is_allowed(kind)) {
        notices(Config { mutation, ..config("reaper", 10, &[kind]) });
    }
    if is_allowed("namespaces") {
        notices(Config { mutation, namespaces: 3, ..config("reaper-namespaces", 10, &["kill-daemon"]) });
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
fn the_check_notices_a_client_on_the_network_without_a_deadline_of_its_own() {
    let _one = one_at_a_time();
    let config = Config { network: 3, ttl: Duration::from_secs(1), ..config("deadline", 10, &["silence"]) };
    notices(Config { mutation: Some(Mutation::Stubborn), ..config });
}

/// Leaders, followers and members of etcd, killed, stopped and cut off, several at once.
#[test]
fn a_fleet_keeps_its_promises() {
    let _one = one_at_a_time();
    let daemon = process::daemon_program().expect("the daemon can be built");
    let seed = env::var("LOCKKEEPER_SEED").unwrap_or_else(|_| "1".into());
    // The program, since a network that can be cut is its own.
    let mut faults = Command::new(env!("CARGO_BIN_EXE_lockkeeper-faults"));
    faults.args(["fleet", "--rounds", "6", "--workers", "4", "--seed", &seed]).env("LOCKKEEPER_BIN", daemon);
    assert!(faults.status().expect("it starts").success());
}
