//! Counts for those who watch the daemon, in Prometheus's text format. They name no lock, no bucket and no client.

use lockkeeper_service::{Histogram, Server};
use std::fmt::Write;

pub(crate) fn render(server: &Server) -> String {
    let counts = server.counts();
    let mut out = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    };
    let gauge = "gauge";
    one("lockkeeper_held", gauge, "Requests that hold their locks.", counts.held);
    one("lockkeeper_pending", gauge, "Requests that wait.", counts.pending);
    one("lockkeeper_sessions", gauge, "Sessions, connected or not.", server.state().session_count() as u64);
    one("lockkeeper_connections", gauge, "Connections.", server.connection_count() as u64);
    one("lockkeeper_log_position", gauge, "Batches in the log.", server.state().position());
    let counter = "counter";
    one("lockkeeper_grants_total", counter, "Requests that were granted.", counts.granted);
    one("lockkeeper_steals_total", counter, "Locks broken by a steal or by force.", counts.broken);
    one("lockkeeper_aborts_total", counter, "Requests aborted while they waited.", counts.aborted);
    one("lockkeeper_timeouts_total", counter, "Aborts because of a timeout.", counts.timed_out);
    one("lockkeeper_resumes_total", counter, "Sessions resumed by another connection.", counts.resumed);
    one("lockkeeper_expired_total", counter, "Sessions ended by their lease.", counts.expired);
    one("lockkeeper_losses_total", counter, "Locks that ended with their session.", counts.lost);
    one("lockkeeper_refused_total", counter, "Requests that were refused.", counts.refused);
    histogram(&mut out, "lockkeeper_wait_seconds", "From the request to the grant.", &counts.wait);
    histogram(&mut out, "lockkeeper_hold_seconds", "From the grant to the release.", &counts.hold);
    out
}

fn histogram(out: &mut String, name: &str, help: &str, histogram: &Histogram) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
    let mut count = 0;
    for (bound, more) in histogram.buckets() {
        count += more;
        match bound {
            Some(millis) => {
                let _ = writeln!(out, "{name}_bucket{{le=\"{}\"}} {count}", seconds(millis));
            }
            None => {
                let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}");
            }
        }
    }
    let _ = write!(out, "{name}_sum {}\n{name}_count {count}\n", seconds(histogram.sum()));
}

fn seconds(millis: u64) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').into()
}
