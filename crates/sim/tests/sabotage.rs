//! Each rule is taken away in turn: the oracle must notice. Random seeds miss boundaries, so each has a plan aimed at it.

use lockkeeper_service::{Rule, sabotage};
use lockkeeper_sim::{Acts, Delay, DriverRule, Faults, Plan, run_plan};

/// The first seed that violates without the rules. With them, none of the same plans does.
fn first_violation(
    rules: &[Rule],
    away: &[DriverRule],
    aim: impl Fn(u64) -> Plan,
    seeds: u64,
) -> Option<(u64, String)> {
    sabotage(rules);
    let found = (0..seeds).find_map(|seed| {
        let plan = Plan { away: away.to_vec(), ..aim(seed) };
        run_plan(seed, plan, false).err().map(|violation| (seed, violation.what))
    });
    sabotage(&[]);
    found
}

fn is_noticed(rules: &[Rule], away: &[DriverRule], aim: impl Fn(u64) -> Plan) {
    let found = first_violation(rules, away, &aim, SEEDS);
    let (seed, what) = found.unwrap_or_else(|| panic!("{rules:?} {away:?} can be taken away"));
    println!("{rules:?} {away:?}: seed {seed}: {what}");
    for seed in 0..HONEST {
        if let Err(violation) = run_plan(seed, aim(seed), false) {
            panic!("seed {seed} violates with every rule in force: {}", violation.what);
        }
    }
}

/// How many seeds may pass before a missing rule is noticed.
const SEEDS: u64 = 3000;

/// How many seeds of an aimed plan are run with every rule in force.
const HONEST: u64 = 100;

fn contention() -> Acts {
    Acts { request: 10, release: 6, ..Acts::default() }
}

/// Messages take no time, and the clients' clocks are as slow as they may be.
fn boundary(_: u64) -> Plan {
    Plan {
        names: 1,
        ttls: vec![1000],
        client_rates: vec![9],
        server_rates: vec![12],
        act_every: 200_000,
        acts: contention(),
        chaos: 20_000_000,
        fault_every: 400_000,
        faults: Faults { cut: 2, suspend: 3, ..Faults::default() },
        unnoticed: 1000,
        ..Plan::calm()
    }
}

#[test]
fn leases() {
    let _ = (DriverRule::ReadBeforeExpiry, Delay::NONE);
    is_noticed(&[Rule::LeaseIsShorter], &[], boundary);
    is_noticed(&[Rule::LeaseIsStrict], &[], boundary);
    is_noticed(&[Rule::RoundUp], &[], boundary);
    is_noticed(&[Rule::ExpireAfterTtl], &[], boundary);
}
