//! Each rule is taken away in turn: the oracle must notice. Random plans show most of them.
//! Boundaries and long stories are rare there, so those rules have a plan aimed at them.

use lockkeeper_service::{Rule, sabotage};
use lockkeeper_sim::{Acts, Delay, DriverRule, Faults, Plan, run_plan};

/// How many seeds may pass before a missing rule is noticed.
const SEEDS: u64 = 4000;

/// How many seeds of an aimed plan are run with every rule in force.
const HONEST: u64 = 60;

/// The first seed that violates without the rules.
fn is_noticed(rules: &[Rule], away: &[DriverRule], aim: impl Fn(u64) -> Plan) {
    sabotage(rules);
    let found = (0..SEEDS).find_map(|seed| {
        let plan = Plan { away: away.to_vec(), ..aim(seed) };
        run_plan(seed, plan, false).err().map(|violation| (seed, violation.what))
    });
    sabotage(&[]);
    let (seed, what) = found.unwrap_or_else(|| panic!("{rules:?} {away:?} can be taken away"));
    println!("{rules:?} {away:?}: seed {seed}: {what}");
}

/// The same for a plan of its own, which shows nothing while every rule is in force.
fn is_noticed_by(aim: impl Fn(u64) -> Plan, rules: &[Rule], away: &[DriverRule]) {
    is_noticed(rules, away, &aim);
    for seed in 0..HONEST {
        if let Err(violation) = run_plan(seed, aim(seed), false) {
            panic!("seed {seed} violates with every rule in force: {}", violation.what);
        }
    }
}

/// Messages take no time, and the clients' clocks are as slow as they may be.
fn boundary(_: u64) -> Plan {
    Plan {
        names: 1,
        client_rates: vec![9],
        server_rates: vec![12],
        act_every: 200_000,
        acts: Acts { request: 10, release: 6, ..Acts::default() },
        chaos: 20_000_000,
        fault_every: 400_000,
        faults: Faults { cut: 2, suspend: 3, ..Faults::default() },
        unnoticed: 1000,
        ..Plan::calm()
    }
}

#[test]
fn leases() {
    is_noticed_by(boundary, &[Rule::LeaseIsShorter], &[]);
    is_noticed_by(boundary, &[Rule::LeaseIsStrict], &[]);
    is_noticed_by(boundary, &[Rule::RoundUp], &[]);
    is_noticed_by(boundary, &[Rule::ExpireAfterTtl], &[]);
    is_noticed_by(boundary, &[], &[DriverRule::FreshClock]);
    for rule in [Rule::LeaseFromSending, Rule::HeardAtStart, Rule::TtlOfSession, Rule::ClockBeforeMessage] {
        is_noticed(&[rule], &[], Plan::of_seed);
    }
}

/// The server is often started again with a much shorter or longer lease, and answers to a Hello
/// often arrive in part.
fn other_leases(_: u64) -> Plan {
    Plan {
        clients: 3,
        clients_in_all: 4,
        names: 1,
        ttls: vec![4000, 200],
        act_every: 100_000,
        acts: Acts { request: 10, release: 2, ..Acts::default() },
        chaos: 20_000_000,
        fault_every: 300_000,
        faults: Faults { cut: 2, kill: 6, ..Faults::default() },
        restart_after: Some(0),
        cut_between: 500,
        lose_flight: 1000,
        unnoticed: 200,
        ..Plan::calm()
    }
}

/// Moreover, locks are stolen while their holders are cut off: there are notices between a Welcome
/// and its end marker.
fn other_leases_and_notices(seed: u64) -> Plan {
    Plan {
        names: 2,
        acts: Acts { request: 10, release: 1, steal: 200, ..Acts::default() },
        unnoticed: 0,
        ..other_leases(seed)
    }
}

#[test]
fn other_leases_after_a_restart() {
    is_noticed_by(other_leases, &[Rule::RaiseBeforeTelling], &[]);
    is_noticed_by(other_leases, &[Rule::LowerAfterAck], &[]);
    is_noticed_by(other_leases, &[Rule::NewerCancelsLowering], &[]);
    is_noticed_by(other_leases_and_notices, &[Rule::WelcomeNumber], &[]);
}

#[test]
fn connections() {
    for rule in [
        Rule::HelloNumbers,
        Rule::CloseSuperseded,
        Rule::NewestConnectionOnly,
        Rule::AckAfterMarker,
        Rule::SilentUntilMarker,
        Rule::ResumeKeepsRequests,
        Rule::KeepTombstones,
        Rule::OutcomeIsKept,
        Rule::ResendInOrder,
        Rule::ReleaseUnwanted,
    ] {
        is_noticed(&[rule], &[], Plan::of_seed);
    }
}

/// Local clients of a server that is often killed. FIFOs are replaced, and descriptors get lost.
fn fifos(_: u64) -> Plan {
    Plan {
        clients: 4,
        local: 3,
        clients_in_all: 6,
        names: 1,
        ttls: vec![300],
        acts: Acts { request: 10, release: 2, ..Acts::default() },
        chaos: 20_000_000,
        fault_every: 300_000,
        faults: Faults { cut: 2, kill: 6, suspend: 4, ..Faults::default() },
        restart_after: Some(0),
        replace_fifo: 500,
        lose_descriptor: 500,
        delay: Delay { zero: 100, max: 20_000, long: 100, long_max: 600_000 },
        ..Plan::calm()
    }
}

/// Local clients that end and crash often, of a server that is killed around its commits.
fn short_lives(_: u64) -> Plan {
    Plan {
        clients: 4,
        local: 4,
        clients_in_all: 20,
        acts: Acts { request: 10, release: 5, crash: 4, close: 2, ..Acts::default() },
        kill_at_commit: 50,
        ..Plan::calm()
    }
}

#[test]
fn local_sessions() {
    is_noticed_by(fifos, &[Rule::FifoAfterConfirm], &[]);
    is_noticed_by(fifos, &[Rule::FifoUntilAck], &[]);
    is_noticed_by(fifos, &[], &[DriverRule::UnknownIsNotDead]);
    is_noticed_by(short_lives, &[Rule::RemoveFifoAfterCommit], &[]);
}

/// Every client is `run`. Its processes are killed and stopped, and the slowest clocks are beside
/// the fastest.
fn runs(_: u64) -> Plan {
    Plan {
        clients: 4,
        clients_in_all: 40,
        runs: 1000,
        names: 1,
        client_rates: vec![9],
        server_rates: vec![12],
        act_every: 300_000,
        chaos: 20_000_000,
        fault_every: 200_000,
        faults: Faults { process: 6, cut: 2, ..Faults::default() },
        unnoticed: 1000,
        ..Plan::calm()
    }
}

/// It takes the guardian some time to resume the session, in which `run` may be stopped.
fn slow_runs(seed: u64) -> Plan {
    let delay = Delay { zero: 0, max: 100_000, long: 0, long_max: 1 };
    Plan {
        fault_every: 50_000,
        faults: Faults { process: 6, cut: 1, ..Faults::default() },
        delay,
        ..runs(seed)
    }
}

/// The same on the server's machine, whose daemon is killed, too. Sometimes it has no FIFO to pass.
fn local_runs(seed: u64) -> Plan {
    Plan {
        local: 4,
        client_rates: vec![12],
        faults: Faults { process: 6, kill: 2, cut: 2, ..Faults::default() },
        no_fifo: 300,
        delay: Delay { zero: 100, max: 20_000, long: 100, long_max: 200_000 },
        ..runs(seed)
    }
}

#[test]
fn commands() {
    for rule in [DriverRule::KillBeforeExpiry, DriverRule::RunWatchesLease, DriverRule::CommandIsKnown] {
        is_noticed_by(runs, &[], &[rule]);
    }
    is_noticed_by(slow_runs, &[], &[DriverRule::GuardianAllows]);
    is_noticed_by(local_runs, &[], &[DriverRule::ConfirmedFifo]);
    is_noticed_by(local_runs, &[Rule::AdoptedHasLease], &[]);
}

/// Any plan, with one daemon.
fn alone(seed: u64) -> Plan {
    Plan { daemons: 1, ..Plan::of_seed(seed) }
}

/// Any plan, with daemons that share a log.
fn fleet(seed: u64) -> Plan {
    Plan { daemons: 2 + usize::from(seed % 2 == 1), local: 0, ..Plan::of_seed(seed) }
}

#[test]
fn file_log() {
    for rule in [Rule::SpeakAfterCommit, Rule::WaitAfterCrash, Rule::SkipTokensAfterCrash] {
        is_noticed(&[rule], &[], alone);
    }
    for rule in [
        DriverRule::CutTornTail,
        DriverRule::MarkBeforeTelling,
        DriverRule::MarkStaysWhileBlind,
        DriverRule::StaysBlind,
    ] {
        is_noticed(&[], &[rule], alone);
    }
}

/// A leader is often cut off from the log, while its clients, which seldom ask for anything, go on
/// renewing their leases.
fn deposed(_: u64) -> Plan {
    Plan {
        clients: 4,
        clients_in_all: 8,
        names: 1,
        daemons: 2,
        ttls: vec![300],
        act_every: 900_000,
        acts: Acts { request: 10, release: 1, ..Acts::default() },
        chaos: 20_000_000,
        fault_every: 1_000_000,
        faults: Faults { partition: 4, ..Faults::default() },
        takeover_after: 70_000,
        ..Plan::calm()
    }
}

/// A member of the store refuses the leader's writes, and another daemon takes over. The clients do
/// not notice that.
fn full(seed: u64) -> Plan {
    Plan {
        faults: Faults { full: 4, ..Faults::default() },
        fault_every: 300_000,
        unnoticed: 1000,
        ..deposed(seed)
    }
}

/// Moreover, the leader is cut off from the store meanwhile, and clients are suspended after they
/// have heard of it.
fn full_and_cut_off(seed: u64) -> Plan {
    Plan {
        client_rates: vec![9],
        act_every: 300_000,
        faults: Faults { full: 4, partition: 3, suspend: 6, ..Faults::default() },
        fault_every: 100_000,
        lose_flight: 0,
        ..full(seed)
    }
}

/// The smallest ring, snapshots that take long, and leaders that do not live to see them whole.
fn small_ring(seed: u64) -> Plan {
    Plan {
        daemons: 3,
        ring: 4,
        act_every: 100_000,
        acts: Acts { request: 10, release: 10, ..Acts::default() },
        chaos: 10_000_000,
        fault_every: 500_000,
        faults: Faults { kill: 6, partition: 2, ..Faults::default() },
        lose_log_message: 200,
        log_delay: Delay { zero: 100, max: 10_000, long: 20, long_max: 200_000 },
        ..deposed(seed)
    }
}

/// Leaders hand over often, and the store is slow.
fn handing_over(seed: u64) -> Plan {
    Plan {
        act_every: 100_000,
        acts: Acts { request: 10, release: 10, ..Acts::default() },
        chaos: 10_000_000,
        fault_every: 500_000,
        faults: Faults { hand_over: 4, ..Faults::default() },
        log_delay: Delay { zero: 100, max: 20_000, long: 100, long_max: 100_000 },
        ..deposed(seed)
    }
}

/// Takeovers are refused, and watches lag.
fn lagging(seed: u64) -> Plan {
    Plan {
        daemons: 3,
        act_every: 100_000,
        faults: Faults { partition: 4, hand_over: 4, stall: 2, ..Faults::default() },
        fault_every: 300_000,
        watch_delay: Delay { zero: 200, max: 20_000, long: 200, long_max: 600_000 },
        ..deposed(seed)
    }
}

/// A snapshot after every round or two: entries are gone before followers, whose watches lag, end
/// and are compacted away, have seen them, and leaders that were deposed meanwhile try to delete
/// more.
fn lapped(seed: u64) -> Plan {
    Plan {
        snapshot_bytes: Some(1),
        end_watch: 100,
        compact: 300,
        double_log_message: 200,
        log_delay: Delay { zero: 100, max: 10_000, long: 50, long_max: 300_000 },
        ..lagging(seed)
    }
}

/// Clients change daemons while what they said to the one before is late, and relays outlive the
/// leadership that they were meant for.
fn stale_relays(seed: u64) -> Plan {
    Plan {
        daemons: 3,
        careless_relays: true,
        act_every: 100_000,
        acts: Acts { request: 10, release: 10, ..Acts::default() },
        faults: Faults { delay_old: 8, cut: 4, partition: 1, hand_over: 1, ..Faults::default() },
        fault_every: 100_000,
        lose_flight: 0,
        leaky: 1000,
        delay: Delay { zero: 100, max: 20_000, long: 100, long_max: 300_000 },
        ..deposed(seed)
    }
}

/// An attachment through a relay that is stale is superseded: each of these rules, by itself, sees
/// to it.
#[test]
fn relays() {
    for rule in [Rule::HelloNumbers, Rule::NewestConnectionOnly] {
        is_noticed_by(stale_relays, &[rule], &[]);
    }
}

/// The store is often restored from a backup, and leaders do not live long.
fn restored(seed: u64) -> Plan {
    Plan {
        daemons: 3,
        act_every: 100_000,
        acts: Acts { request: 10, release: 3, ..Acts::default() },
        faults: Faults { restore: 2, kill: 6, hand_over: 2, ..Faults::default() },
        fault_every: 400_000,
        restart_after: Some(0),
        ..deposed(seed)
    }
}

#[test]
fn restored_store() {
    is_noticed_by(restored, &[Rule::StaysBlind], &[]);
    is_noticed_by(restored, &[Rule::AcceptWithoutMemory], &[]);
    is_noticed_by(restored, &[Rule::WaitAfterCrash], &[]);
    is_noticed_by(restored, &[Rule::SkipTokensAfterCrash], &[]);
    is_noticed_by(restored, &[], &[DriverRule::SettleWhenExpired]);
}

#[test]
fn shared_log() {
    is_noticed_by(full, &[], &[DriverRule::ConfirmStateless]);
    is_noticed_by(full_and_cut_off, &[Rule::LeftoversWait], &[]);
    is_noticed_by(deposed, &[], &[DriverRule::ConfirmEmptyRounds]);
    is_noticed_by(lagging, &[Rule::ServeAfterApplying], &[DriverRule::CatchUpWhenRefused]);
    for rule in [
        DriverRule::AppendComparesLeader,
        DriverRule::AnswerAfterAppend,
        DriverRule::TakeoverComparesLeader,
        DriverRule::RetryUntilAnswered,
        DriverRule::SnapshotWhenLeading,
        DriverRule::DeleteEarlierChunks,
        DriverRule::DeleteComparesLeader,
    ] {
        is_noticed(&[], &[rule], fleet);
    }
    is_noticed_by(lapped, &[], &[DriverRule::DeleteComparesLeader]);
    is_noticed_by(lapped, &[Rule::DeleteBehindSnapshot], &[]);
    is_noticed_by(lapped, &[Rule::ApplyEveryEntry], &[]);
    is_noticed_by(small_ring, &[Rule::KeepEntries], &[]);
    is_noticed(&[], &[DriverRule::SnapshotFirst], small_ring);
    is_noticed_by(handing_over, &[], &[DriverRule::SilentHandOver]);
    is_noticed(&[Rule::ApplyEveryEntry], &[], fleet);
}
