//! Records steals, forced releases, ended sessions and refusals: lines of the log with the target
//! `audit`. Names and owners are as clients gave them, with all control characters escaped.

use lockkeeper_service::{Audit, Audited, Server};
use std::time::{Duration, Instant};

/// So many refusals are on record in such a time; of the others, only their number.
const REFUSALS: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

pub(crate) struct Record {
    window: Instant,
    refusals: u32,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self { window: Instant::now(), refusals: 0 }
    }

    /// Takes down what there is.
    pub(crate) fn take(&mut self, server: &mut Server) {
        while let Some(Audit { session, what }) = server.next_audit() {
            let view = server.state().session(session);
            let (by, bucket) = view.map_or(("", ""), |view| (view.owner, view.bucket));
            let client = format!("{session:016x}");
            match what {
                Audited::Stole { names, broken } => {
                    let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
                    tracing::info!(target: "audit", by, client, bucket, ?names, broken, "stole");
                }
                Audited::Forced { name, broken } => {
                    let name = String::from_utf8_lossy(&name);
                    tracing::info!(target: "audit", by, client, bucket, ?name, broken, "released by force");
                }
                Audited::Ended { target } => {
                    let ended = format!("{target:016x}");
                    tracing::info!(target: "audit", by, client, bucket, ended, "ended a session");
                }
                Audited::Refused { code, why } => {
                    if self.admits() {
                        tracing::info!(target: "audit", by, client, bucket, code, why, "refused");
                    }
                }
            }
        }
    }

    /// Whether one more refusal is put on record.
    pub(crate) fn admits(&mut self) -> bool {
        if self.window.elapsed() >= WINDOW {
            let more = self.refusals.saturating_sub(REFUSALS);
            if more > 0 {
                tracing::info!(target: "audit", more, "refused");
            }
            (self.window, self.refusals) = (Instant::now(), 0);
        }
        self.refusals += 1;
        self.refusals <= REFUSALS
    }
}
