//! The result of a run, for people and for tests.

use crate::check::{Rule, Violation};
use std::{fmt, time::Duration};

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// How many faults of each kind there were, by the names of the kinds.
    pub faults: Vec<(&'static str, usize)>,
    /// What the workers did.
    pub requests: usize,
    /// How many of those were granted.
    pub holds: usize,
    /// How many of those to commands of `run`.
    pub commands: usize,
    /// How many of those to Python clients.
    pub pythons: usize,
    /// How many of those after the process that connected had forked and exited.
    pub forks: usize,
    /// How many of them after the main thread, which connected, had exited.
    pub threads: usize,
    /// How many of those to the npm package.
    pub scripts: usize,
    /// How often holders were at work.
    pub touches: usize,
    /// How many worker processes there were.
    pub processes: usize,
    /// How long it took.
    pub took: Duration,
    /// Every promise that was broken.
    pub violations: Vec<Violation>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: usize = self.faults.iter().map(|(_, count)| count).sum();
        writeln!(f, "{count} faults in {:.1} s:", self.took.as_secs_f64())?;
        for (kind, count) in &self.faults {
            writeln!(f, "  {count:5} {kind}")?;
        }
        let Self { requests, holds, commands, pythons, forks, threads, scripts, .. } = self;
        let Self { touches, processes, violations, .. } = self;
        writeln!(f, "{processes} workers, {requests} requests, {holds} granted, {touches} touches")?;
        writeln!(
            f,
            "{commands} granted to commands of run, {pythons} to Python clients, {scripts} to the npm package"
        )?;
        writeln!(
            f,
            "{forks} granted after the process that connected exited, {threads} after its main thread did"
        )?;
        writeln!(f, "{} violations", violations.len())?;
        for rule in Rule::ALL {
            let of: Vec<_> = violations.iter().filter(|violation| violation.rule == rule).collect();
            if !of.is_empty() {
                writeln!(f, "{} times: {rule}", of.len())?;
            }
            of.iter().take(5).try_for_each(|violation| writeln!(f, "    {}", violation.what))?;
        }
        Ok(())
    }
}
