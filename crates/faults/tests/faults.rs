//! A short run, and runs that break the protocol on purpose: the check must notice.

use lockkeeper_faults::{
    check::Rule,
    driver::{self, Config, Mutation},
    plan::KINDS,
    process,
    report::Report,
};
use std::{
    env, fs,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Runs are timed by the clock: two at once would be in each other's way.
static ONE: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(test: &str, each: usize, kinds: &[&str]) -> Config {
    let kinds = (0..KINDS.len()).filter(|kind| kinds.is_empty() || kinds.contains(&KINDS[*kind]));
    let seed = env::var("LOCKKEEPER_SEED").map_or(1, |seed| seed.parse().expect("a seed is a number"));
    Config {
        seed,
        kinds: kinds.collect(),
        each,
        workers: 5,
        hands: 3,
        ttl: Duration::from_secs(2),
        daemon: process::daemon_program().expect("the daemon can be built"),
        worker: PathBuf::from(env!("CARGO_BIN_EXE_lockkeeper-faults")),
        dir: env::temp_dir().join(format!("lockkeeper-faults-{test}-{}", std::process::id())),
        mutation: None,
    }
}

/// The histories of a run that did not go as it should are kept.
fn run(config: &Config, well: impl Fn(&Report) -> bool) -> Report {
    println!("seed {}", config.seed);
    let report = driver::run(config).expect("the machine does as it should");
    println!("{report}");
    match well(&report) {
        true => fs::remove_dir_all(&config.dir).expect("it can be removed"),
        false => panic!("not as it should be: see {}", config.dir.display()),
    }
    report
}

#[test]
fn no_fault_breaks_a_promise() {
    let _one = one_at_a_time();
    let report = run(&config("short", 24, &[]), |report| report.violations.is_empty());
    assert!(report.faults.iter().all(|count| *count == 24));
    assert!(report.holds > 200, "locks were held: {}", report.holds);
}

/// Whether two were in each other's way.
fn met(report: &Report) -> bool {
    report.violations.iter().any(|violation| matches!(violation.rule, Rule::Overlap | Rule::Stale))
}

#[test]
fn the_check_notices_a_daemon_without_grace() {
    let _one = one_at_a_time();
    let kinds = ["kill-daemon", "stop-across"];
    run(&Config { mutation: Some(Mutation::NoGrace), ..config("no-grace", 20, &kinds) }, met);
}

#[test]
fn the_check_notices_a_client_that_goes_on_with_what_it_lost() {
    let _one = one_at_a_time();
    run(&Config { mutation: Some(Mutation::Stubborn), ..config("stubborn", 40, &["cut"]) }, met);
}
