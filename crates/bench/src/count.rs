//! Instructions, counted by valgrind's callgrind: the same on a noisy machine as on a quiet one.
//!
//! Each scenario is run with n and with 2n iterations; the difference, over n, is what one
//! iteration costs without its set-up.

use crate::{engine::Engine, names};
use futures_lite::future::block_on;
use lockkeeper::Locks;
use std::{
    env,
    fmt::Write,
    hint::black_box,
    process::{Command, ExitCode},
};

const ITERATIONS: u64 = 20_000;

/// What is counted, and the most instructions that one iteration may take.
const GATES: &[(&str, &str, u64)] = &[
    ("core", "the core alone: acquire + release by name, 1,000 names", 345),
    ("async", "the async crate: acquire + release by name, 1,000 names", 530),
];

/// Pairs of scenarios that must cost the same, whatever the length of the queue: at most 1.3 times.
const FLAT: &[(&str, &str, &str)] = &[
    ("hand-off-1000", "hand-off-1000000", "hand-off, 1,000 and 1,000,000 queued"),
    ("abort-10", "abort-100000", "abort from anywhere in a queue of 10 and of 100,000"),
];

/// Runs a scenario, to be counted.
pub fn run(scenario: &str, iterations: u64) -> ExitCode {
    match scenario.rsplit_once('-').map(|(kind, queued)| (kind, queued.parse())) {
        None if scenario == "core" => core(iterations),
        None if scenario == "async" => block_on(through_async(iterations)),
        Some(("hand-off", Ok(queued))) => hand_off(iterations, queued),
        Some(("abort", Ok(queued))) => abort(iterations, queued),
        _ => return ExitCode::from(64),
    }
    ExitCode::SUCCESS
}

fn core(iterations: u64) {
    let names = names(1_000);
    let mut engine = Engine::new();
    for i in 0..iterations {
        let held = engine.request(names[i as usize % names.len()]);
        engine.release(black_box(held));
    }
}

async fn through_async(iterations: u64) {
    let names = names(1_000);
    let locks = Locks::new();
    for i in 0..iterations {
        let lock = locks.acquire(names[i as usize % names.len()]).await.expect("a free name");
        drop(black_box(lock));
    }
}

/// One iteration: the holder releases, the first of `queued` waiters is granted, a new one joins
/// the end.
fn hand_off(iterations: u64, queued: usize) {
    let mut engine = Engine::new();
    let mut waiting: std::collections::VecDeque<_> = (0..=queued).map(|_| engine.request("hot")).collect();
    for _ in 0..iterations {
        let held = waiting.pop_front().expect("somebody holds");
        engine.release(held);
        waiting.push_back(engine.request("hot"));
    }
}

/// One iteration: a waiter somewhere in a queue of `queued` is aborted, and a new one joins the
/// end.
fn abort(iterations: u64, queued: usize) {
    let mut engine = Engine::new();
    engine.request("hot");
    let mut waiting: Vec<_> = (0..queued).map(|_| engine.request("hot")).collect();
    let mut at = 0;
    for _ in 0..iterations {
        at = (at + 7_919) % queued;
        engine.abort(waiting[at]);
        waiting[at] = engine.request("hot");
    }
}

/// Instructions of one iteration.
fn count(scenario: &str) -> u64 {
    let once = collected(scenario, ITERATIONS);
    let twice = collected(scenario, 2 * ITERATIONS);
    (twice - once) / ITERATIONS
}

fn collected(scenario: &str, iterations: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe().expect("this program"))
        .args(["count", scenario, &iterations.to_string()])
        .output()
        .expect("valgrind is installed: `cargo xtask setup` does it");
    let report = String::from_utf8_lossy(&output.stderr);
    let line = report.lines().find_map(|line| line.split_once("Collected :"));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    count.unwrap_or_else(|| panic!("callgrind did not count {scenario}:\n{report}"))
}

/// Counts all, as rows of a table: what it is, what was counted, what is allowed, whether it holds.
fn rows() -> Vec<(String, String, String, bool)> {
    let gates = GATES.iter().map(|&(scenario, what, most)| {
        let count = count(scenario);
        (what.to_string(), count.to_string(), format!("at most {most}"), count <= most)
    });
    let flat = FLAT.iter().map(|&(short, long, what)| {
        let (short, long) = (count(short), count(long));
        let ratio = long as f64 / short as f64;
        (
            what.to_string(),
            format!("{short} and {long}"),
            format!("{ratio:.2} ×, at most 1.3 ×"),
            ratio <= 1.3,
        )
    });
    gates.chain(flat).collect()
}

pub fn table() -> String {
    let mut out = String::from("## Instructions\n\n| | counted | allowed |\n|---|---|---|\n");
    for (what, counted, allowed, _) in rows() {
        let _ = writeln!(out, "| {what} | {counted} | {allowed} |");
    }
    out
}

/// Fails if anything takes more instructions than it may.
pub fn gate() -> ExitCode {
    let mut held = true;
    for (what, counted, allowed, holds) in rows() {
        println!("{} {what}: {counted} instructions ({allowed})", if holds { "ok  " } else { "OVER" });
        held &= holds;
    }
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
