//! `lockkeeper-bench table` prints how Lockkeeper does beside its peers, measured in one run, as
//! Markdown. `lockkeeper-bench gate` counts instructions and fails if there are more than there
//! should be.

mod count;
mod engine;
mod memory;
mod speed;

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["table"] => {
            println!("{}", speed::table());
            println!("{}", count::table());
            println!("{}", memory::table());
            ExitCode::SUCCESS
        }
        ["gate"] => count::gate(),
        // What valgrind runs.
        ["count", scenario, iterations] => count::run(scenario, iterations.parse().expect("a number")),
        _ => {
            eprintln!("usage: lockkeeper-bench table | gate");
            ExitCode::from(64)
        }
    }
}

/// The names that are locked: what names of resources look like.
fn names(count: usize) -> Vec<&'static str> {
    (0..count).map(|i| &*format!("resource/{i}").leak()).collect()
}
