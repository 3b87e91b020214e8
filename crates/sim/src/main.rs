//! Runs seeds endlessly, replays one, or writes transcripts.

use lockkeeper_sim::{Stats, Violation, run, transcripts};
use std::{io::Write, process::ExitCode, time::Instant};

const HELP: &str = "\
Lockkeeper's server and clients in virtual time, under faults.

  lockkeeper-sim run [SEED]               runs seeds from that one on, without end; from 1 by default
  lockkeeper-sim run SEED COUNT           so many of them
  lockkeeper-sim replay SEED              runs one and prints what happens in it
  lockkeeper-sim transcripts SEED COUNT   prints what each client's session was given and answered, as lines of JSON
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().ok();
    match args[..] {
        ["run"] => run_all(1, u64::MAX),
        ["run", first] => number(first).map_or_else(help, |first| run_all(first, u64::MAX)),
        ["run", first, count] => match (number(first), number(count)) {
            (Some(first), Some(count)) => run_all(first, count),
            _ => help(),
        },
        ["replay", seed] => number(seed).map_or_else(help, replay),
        ["transcripts", first, count] => match (number(first), number(count)) {
            (Some(first), Some(count)) => print_transcripts(first, count),
            _ => help(),
        },
        _ => help(),
    }
}

fn help() -> ExitCode {
    eprint!("{HELP}");
    ExitCode::from(64)
}

fn run_all(first: u64, count: u64) -> ExitCode {
    let start = Instant::now();
    let (mut stats, mut done, mut shown) = (Stats::default(), 0u64, 0);
    for seed in first..first.saturating_add(count) {
        match run(seed, false) {
            Ok(more) => stats.add(&more),
            Err(violation) => {
                show(seed, violation);
                return ExitCode::FAILURE;
            }
        }
        done += 1;
        if start.elapsed().as_secs() >= shown + 10 || seed + 1 == first.saturating_add(count) {
            shown = start.elapsed().as_secs();
            let rate = done as f64 / start.elapsed().as_secs_f64();
            println!("{done} seeds, {rate:.0} per second; {stats:?}");
        }
    }
    ExitCode::SUCCESS
}

/// How many lines of a trace are shown.
const LINES: usize = 400;

/// Runs the seed again, with a trace.
fn show(seed: u64, violation: Violation) {
    let Violation { what, trace } = run(seed, true).err().unwrap_or(violation);
    let skipped = trace.len().saturating_sub(LINES);
    trace.iter().skip(skipped).for_each(|line| println!("{line}"));
    println!("seed {seed}: {what}");
    println!(
        "The last {} lines of {} are shown; `replay {seed}` shows all.",
        trace.len() - skipped,
        trace.len()
    );
}

fn replay(seed: u64) -> ExitCode {
    println!("{:#?}", lockkeeper_sim::Plan::of_seed(seed));
    match run(seed, true) {
        Ok(stats) => {
            println!("seed {seed}: no violation; {stats:?}");
            ExitCode::SUCCESS
        }
        Err(Violation { what, trace }) => {
            trace.iter().for_each(|line| println!("{line}"));
            println!("seed {seed}: {what}");
            ExitCode::FAILURE
        }
    }
}

fn print_transcripts(first: u64, count: u64) -> ExitCode {
    let mut out = std::io::stdout().lock();
    for seed in first..first.saturating_add(count) {
        match transcripts(seed) {
            Ok(lines) => {
                for line in lines {
                    // Whoever reads may have seen enough.
                    if writeln!(out, "{line}").is_err() {
                        return ExitCode::SUCCESS;
                    }
                }
            }
            Err(violation) => {
                eprintln!("seed {seed}: {}", violation.what);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
