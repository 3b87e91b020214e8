//! Each rule is taken away in turn: the oracle must notice. Random seeds miss boundaries, so each has a plan aimed at it.
//! With every rule in force, no seed of these plans has a violation.

use lockkeeper_service::{Rule, sabotage};
use lockkeeper_sim::{Acts, Delay, DriverRule, Faults, Plan, run_plan};

/// How many seeds may pass before a missing rule is noticed.
const SEEDS: u64 = 3000;

/// How many seeds of each plan are run with every rule in force.
const HONEST: u64 = 100;

fn is_noticed(rules: &[Rule], away: &[DriverRule], aim: fn(u64) -> Plan) {
    sabotage(rules);
    let violates = |seed: &u64| {
        let plan = Plan { away: away.to_vec(), ..aim(*seed) };
        run_plan(*seed, plan, false).is_err()
    };
    let found = (0..SEEDS).find(violates);
    sabotage(&[]);
    assert!(found.is_some(), "{rules:?} {away:?} can be taken away");
}

fn rule(rule: Rule, aim: fn(u64) -> Plan) {
    is_noticed(&[rule], &[], aim);
}

fn driver_rule(rule: DriverRule, aim: fn(u64) -> Plan) {
    is_noticed(&[], &[rule], aim);
}

#[test]
fn with_every_rule_in_force_no_aimed_plan_has_a_violation() {
    let plans: [fn(u64) -> Plan; 12] = [
        boundary,
        late_answers,
        restarts,
        other_leases,
        cuts,
        many_restarts,
        old_bytes,
        old_leader,
        commits,
        crashes,
        fifos,
        fleet,
    ];
    for aim in plans {
        for seed in 0..HONEST {
            if let Err(violation) = run_plan(seed, aim(seed), false) {
                panic!("seed {seed} of {:?}: {}", aim(seed), violation.what);
            }
        }
    }
}

#[test]
fn a_lease_is_over_for_the_client_before_it_is_for_the_server() {
    rule(Rule::LeaseIsShorter, boundary);
    rule(Rule::LeaseIsStrict, boundary);
    rule(Rule::RoundUp, boundary);
    // What a daemon did that dropped a session at its own start and a ttl (S1).
    rule(Rule::ExpireAfterTtl, boundary);
    rule(Rule::HeardAtStart, restarts);
    rule(Rule::LeaseFromSending, late_answers);
    rule(Rule::ClockBeforeMessage, late_answers);
}

#[test]
fn a_lease_belongs_to_its_session() {
    // S3.
    rule(Rule::TtlOfSession, other_leases);
    rule(Rule::LowerAfterAck, many_restarts);
    rule(Rule::NewerCancelsLowering, many_restarts);
}

/// S8.
#[test]
fn a_command_is_dead_before_its_lease_is_over() {
    driver_rule(DriverRule::CommandDiesFirst, boundary);
}

#[test]
fn connections_do_not_mix() {
    rule(Rule::CloseSuperseded, old_bytes);
    rule(Rule::NewestConnectionOnly, cuts);
    rule(Rule::SilentUntilMarker, cuts);
    rule(Rule::ResendInOrder, cuts);
    rule(Rule::ReleaseUnwanted, cuts);
}

#[test]
fn what_ended_is_in_the_state() {
    // S2.
    rule(Rule::ResumeKeepsRequests, cuts);
    // S9.
    rule(Rule::KeepTombstones, cuts);
    rule(Rule::OutcomeIsKept, cuts);
    rule(Rule::AckAfterMarker, cuts);
}

#[test]
fn an_answer_waits_for_its_commit() {
    rule(Rule::SpeakAfterCommit, commits);
    driver_rule(DriverRule::AnswerAfterAppend, fleet);
}

#[test]
fn a_crash_of_the_machine_is_waited_out() {
    rule(Rule::WaitAfterCrash, crashes);
    rule(Rule::SkipTokensAfterCrash, crashes);
    driver_rule(DriverRule::MarkBeforeTelling, crashes);
    driver_rule(DriverRule::MarkStaysWhileBlind, crashes);
    driver_rule(DriverRule::StaysBlind, crashes);
}

/// S4.
#[test]
fn a_torn_record_is_cut_off() {
    driver_rule(DriverRule::CutTornTail, commits);
}

#[test]
fn a_local_session_lives_by_its_descriptor() {
    rule(Rule::FifoUntilAck, fifos);
    driver_rule(DriverRule::KeepDescriptors, fifos);
}

#[test]
fn only_one_daemon_leads() {
    driver_rule(DriverRule::AppendComparesLeader, fleet);
    driver_rule(DriverRule::ConfirmEmptyRounds, old_leader);
    driver_rule(DriverRule::TakeoverComparesLeader, fleet);
    driver_rule(DriverRule::SilentHandOver, fleet);
    driver_rule(DriverRule::ApplyEveryEntry, fleet);
    driver_rule(DriverRule::ServeAfterApplying, fleet);
    driver_rule(DriverRule::SettleByReading, fleet);
}

fn contention() -> Acts {
    Acts { request: 10, release: 6, ..Acts::default() }
}

/// Messages take no time, and the clients' clocks are as slow as they may be.
fn boundary(_: u64) -> Plan {
    Plan {
        names: 1,
        client_rates: vec![9],
        act_every: 200_000,
        acts: contention(),
        chaos: 20_000_000,
        fault_every: 400_000,
        faults: Faults { cut: 2, suspend: 3, ..Faults::default() },
        unnoticed: 1000,
        ..Plan::calm()
    }
}

/// Answers take long.
fn late_answers(seed: u64) -> Plan {
    let delay = Delay { zero: 300, max: 100_000, long: 200, long_max: 600_000 };
    Plan { delay, leaky: 1000, ..boundary(seed) }
}

/// The server is killed and started again.
fn restarts(seed: u64) -> Plan {
    let faults = Faults { cut: 2, suspend: 3, kill: 3, ..Faults::default() };
    Plan { faults, unnoticed: 500, ..boundary(seed) }
}

/// The server is started again with longer and shorter leases.
fn other_leases(seed: u64) -> Plan {
    let acts = Acts { steal: 200, ..contention() };
    let delay = Delay { zero: 500, max: 20_000, long: 50, long_max: 300_000 };
    let faults = Faults { cut: 4, suspend: 2, kill: 3, ..Faults::default() };
    Plan {
        names: 2,
        ttls: vec![300, 1200],
        acts,
        delay,
        faults,
        fault_every: 200_000,
        lose_flight: 800,
        cut_between: 100,
        ..restarts(seed)
    }
}

/// Connections are cut while clients steal, force, and give up.
fn cuts(seed: u64) -> Plan {
    let delay = Delay { zero: 200, max: 50_000, long: 50, long_max: 500_000 };
    let acts =
        Acts { detach: 3, force_release: 2, end_session: 0, steal: 200, if_available: 200, ..contention() };
    Plan {
        clients: 4,
        clients_in_all: 4,
        names: 2,
        act_every: 40_000,
        chaos: 6_000_000,
        fault_every: 50_000,
        faults: Faults { cut: 4, delay_old: 3, ..Faults::default() },
        lose_flight: 700,
        unnoticed: 200,
        leaky: 1000,
        acts,
        delay,
        ..boundary(seed)
    }
}

/// The server is started again and again, at once, with longer and shorter leases. Answers are lost with it.
fn many_restarts(seed: u64) -> Plan {
    Plan {
        names: 2,
        ttls: vec![300, 2400],
        acts: Acts { steal: 200, ..contention() },
        faults: Faults { suspend: 2, kill: 4, cut: 2, ..Faults::default() },
        chaos: 6_000_000,
        fault_every: 60_000,
        restart_after: Some(0),
        act_every: 200_000,
        delay: Delay { zero: 100, max: 30_000, long: 0, long_max: 1 },
        unnoticed: 0,
        lose_flight: 800,
        cut_between: 300,
        ..boundary(seed)
    }
}

/// Bytes of an old connection arrive when there is a newer one.
fn old_bytes(seed: u64) -> Plan {
    Plan {
        clients: 4,
        clients_in_all: 4,
        act_every: 8_000,
        acts: Acts { request: 10, release: 8, detach: 4, ..Acts::default() },
        delay: Delay { zero: 100, max: 20_000, long: 0, long_max: 1 },
        chaos: 700_000,
        fault_every: 60_000,
        faults: Faults { delay_old: 1, ..Faults::default() },
        unnoticed: 0,
        ..boundary(seed)
    }
}

/// A leader that does not know that it is none any more.
fn old_leader(seed: u64) -> Plan {
    let faults = Faults { partition: 3, cut: 3, suspend: 0, ..Faults::default() };
    Plan {
        ttls: vec![300],
        takeover_after: 50_000,
        log_delay: Delay::NONE,
        delay: Delay::NONE,
        lose_log_message: 0,
        unnoticed: 0,
        act_every: 300_000,
        fault_every: 200_000,
        faults,
        ..fleet(seed)
    }
}

/// The server is killed when it commits.
fn commits(seed: u64) -> Plan {
    Plan { kill_at_commit: 50, acts: Acts { steal: 100, ..contention() }, ..boundary(seed) }
}

/// The machine crashes.
fn crashes(seed: u64) -> Plan {
    let faults = Faults { cut: 1, suspend: 2, crash: 3, kill: 3, ..Faults::default() };
    Plan { faults, ttls: vec![300, 1200], act_every: 50_000, fault_every: 200_000, ..boundary(seed) }
}

/// Local clients, whose connections break and whose server is killed.
fn fifos(seed: u64) -> Plan {
    let faults = Faults { cut: 3, suspend: 4, kill: 3, ..Faults::default() };
    Plan {
        local: 3,
        ttls: vec![300],
        replace_fifo: 500,
        kill_at_commit: 20,
        cut_between: 50,
        delay: Delay { zero: 100, max: 20_000, long: 0, long_max: 1 },
        faults,
        fault_every: 150_000,
        act_every: 60_000,
        ..boundary(seed)
    }
}

/// Daemons that share a log, and lose it.
fn fleet(seed: u64) -> Plan {
    let faults = Faults { partition: 4, stall: 2, hand_over: 2, suspend: 2, cut: 2, ..Faults::default() };
    Plan {
        daemons: 3,
        clients: 4,
        clients_in_all: 4,
        ttls: vec![600],
        takeover_after: 100_000,
        log_delay: Delay { zero: 300, max: 20_000, long: 50, long_max: 1_000_000 },
        delay: Delay { zero: 300, max: 10_000, long: 0, long_max: 1 },
        lose_log_message: 100,
        unnoticed: 700,
        act_every: 60_000,
        fault_every: 150_000,
        snapshot_every: 10,
        faults,
        ..boundary(seed)
    }
}
