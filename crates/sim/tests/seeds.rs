//! Thousands of seeds, in every run of the tests.

use lockkeeper_sim::{Acts, Delay, Faults, Plan, Stats, run, run_plan, transcripts};

/// Runs seeds of a kind of plan.
fn run_all(seeds: std::ops::Range<u64>, plan: impl Fn(u64) -> Plan) -> Stats {
    let mut stats = Stats::default();
    for seed in seeds {
        match run_plan(seed, plan(seed), false) {
            Ok(more) => stats.add(&more),
            Err(violation) => panic!("seed {seed}: {}", violation.what),
        }
    }
    stats
}

#[test]
fn no_seed_has_a_violation() {
    let stats = run_all(0..4000, Plan::of_seed);
    // A simulation in which nothing happens shows nothing.
    assert!(stats.grants > 50_000, "{stats:?}");
    assert!(stats.broken > 5_000 && stats.losses > 5_000 && stats.expired > 5_000, "{stats:?}");
    assert!(stats.snapshots > 5_000 && stats.takeovers > 1_000, "{stats:?}");
    assert!(stats.commands > 1_000, "{stats:?}");
    assert!(stats.relays > 5_000 && stats.reads > 200 && stats.full > 1_000, "{stats:?}");
    assert!(stats.turned_away > 1_000, "{stats:?}");
    assert!(stats.restored > 100 && stats.blind > 150, "{stats:?}");
}

/// A client asks for the end of a session that ends in slices, and resumes, or ends itself, before
/// that is done: it was answered twice, or the end counted for no client.
#[test]
fn nor_have_those_that_had_one() {
    for seed in [906_524, 909_512] {
        if let Err(violation) = run(seed, false) {
            panic!("seed {seed}: {}", violation.what);
        }
    }
}

/// Whatever the rates of the clocks are, a session is never lost without a fault.
#[test]
fn without_faults_nothing_is_lost() {
    let stats = run_all(0..300, |seed| {
        let plan = Plan::of_seed(seed);
        let delay = Delay { max: 1000, long: 0, ..plan.delay };
        let acts = Acts { end_session: 0, ..plan.acts };
        let (kill_at_commit, cut_between, lose_log_message) = (0, 0, 0);
        Plan {
            fault_every: 0,
            kill_at_commit,
            cut_between,
            lose_log_message,
            acts,
            delay,
            log_delay: delay,
            ..plan
        }
    });
    assert_eq!((stats.faults, stats.losses), (0, 0), "{stats:?}");
    assert!(stats.grants > 2_000, "{stats:?}");
}

/// Three daemons that share a log, with a fault now and then.
fn fleet(faults: Faults) -> Plan {
    let delay = Delay { zero: 100, max: 1000, long: 0, long_max: 1 };
    Plan {
        clients: 4,
        clients_in_all: 4,
        daemons: 3,
        act_every: 200_000,
        chaos: 40_000_000,
        fault_every: 15_000_000,
        faults,
        delay,
        log_delay: delay,
        ..Plan::calm()
    }
}

/// A store that has no room can be read: leases are kept as long as that lasts, also while another
/// daemon takes over. It is full for up to three leases; seldom twice in a row, when a client that
/// has lost its connection could not resume.
#[test]
fn a_full_store_loses_no_session() {
    let stats = run_all(0..60, |_| fleet(Faults { full: 1, ..Faults::default() }));
    assert_eq!(stats.losses, 0, "{stats:?}");
    assert!(stats.full > 1_000 && stats.takeovers > 80 && stats.grants > 1_000, "{stats:?}");
}

/// A leader that stops has another one take over at once, and its clients resume there.
#[test]
fn a_hand_over_to_a_daemon_that_runs_loses_no_session() {
    let faults = Faults { hand_over: 1, ..Faults::default() };
    let stats = run_all(0..300, |_| Plan { fault_every: 1_000_000, never_alone: true, ..fleet(faults) });
    assert_eq!(stats.losses, 0, "{stats:?}");
    assert!(stats.takeovers > 4_000 && stats.grants > 5_000, "{stats:?}");
}

/// Nor is one lost with a leader that is killed: the lease is long enough for another one to take
/// over.
#[test]
fn a_killed_leader_loses_no_session() {
    let stats = run_all(0..60, |_| fleet(Faults { kill: 1, ..Faults::default() }));
    assert_eq!(stats.losses, 0, "{stats:?}");
    assert!(stats.takeovers > 80 && stats.grants > 1_000, "{stats:?}");
}

#[test]
fn a_seed_has_one_history() {
    for seed in 0..20 {
        assert_eq!(run(seed, false).unwrap(), run(seed, true).unwrap());
        assert_eq!(transcripts(seed).unwrap(), transcripts(seed).unwrap());
    }
}
