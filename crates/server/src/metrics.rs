//! Metrics in Prometheus's text format. They contain no names of locks or clients, and names of
//! buckets only on request.

use lockkeeper_service::{BucketView, Bytes, Histogram, Server, State};
use rustix::{param::page_size, process::Resource, time::ClockId};
use std::{fmt::Write, fs};

/// The most buckets that are named: those that take the most memory.
const BUCKETS: usize = 100;

pub(crate) fn render(server: &Server, buckets: bool) -> String {
    let counts = server.counts();
    let mut out = shared(server.state(), buckets);
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    };
    let gauge = "gauge";
    let unverifiable = server.unverifiable_count() as u64;
    let help = "Sessions whose process cannot be checked: end them with lockkeeper release --client.";
    one("lockkeeper_unverifiable_sessions", gauge, help, unverifiable);
    one("lockkeeper_connections", gauge, "Connections.", server.connection_count() as u64);
    one("lockkeeper_log_position", gauge, "Batches in the log.", server.position());
    let help = "Approximate memory of all buckets, with their records of ended requests.";
    one("lockkeeper_memory_bytes", gauge, help, server.state().memory() as u64);
    let counter = "counter";
    one("lockkeeper_grants_total", counter, "Granted requests.", counts.granted);
    one("lockkeeper_steals_total", counter, "Locks broken by a steal or by force.", counts.broken);
    one("lockkeeper_aborts_total", counter, "Requests aborted while they waited.", counts.aborted);
    one("lockkeeper_timeouts_total", counter, "Aborts because of a timeout.", counts.timed_out);
    one("lockkeeper_resumes_total", counter, "Sessions resumed by another connection.", counts.resumed);
    one("lockkeeper_expired_total", counter, "Sessions ended by their lease.", counts.expired);
    one("lockkeeper_losses_total", counter, "Locks that ended with their session.", counts.lost);
    one("lockkeeper_refused_total", counter, "Requests that were refused.", counts.refused);
    let config = server.config();
    one("lockkeeper_max_sessions", gauge, "Limit of sessions.", config.sessions as u64);
    one("lockkeeper_max_buckets", gauge, "Limit of buckets.", config.buckets as u64);
    let Bytes { session, bucket, all } = config.bytes;
    one("lockkeeper_max_session_bytes", gauge, "Limit of the memory of a session.", session as u64);
    one("lockkeeper_max_bucket_bytes", gauge, "Limit of the memory of a bucket.", bucket as u64);
    one("lockkeeper_max_request_bytes", gauge, "Limit of the memory of sessions and requests.", all as u64);
    out.push_str(&of_process());
    histogram(&mut out, "lockkeeper_wait_seconds", "Time from the request to the grant.", &counts.wait);
    histogram(&mut out, "lockkeeper_hold_seconds", "Time from the grant to the release.", &counts.hold);
    out
}

/// What every daemon of a fleet shows alike, also one that follows: it has the state, and what
/// happened is counted where it happens. Anybody may ask, so nothing is looked for.
pub(crate) fn shared(state: &State, buckets: bool) -> String {
    let mut out = String::new();
    for (name, help, value) in [
        ("lockkeeper_held", "Requests that hold their locks.", state.held()),
        ("lockkeeper_pending", "Requests that wait.", state.pending()),
        ("lockkeeper_sessions", "Sessions, connected or not.", state.session_count() as u64),
        ("lockkeeper_request_bytes", "Approximate memory of sessions and requests.", state.bytes() as u64),
        ("lockkeeper_buckets", "Buckets.", state.bucket_count() as u64),
    ] {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
    }
    if buckets {
        by_bucket(&mut out, state);
    }
    out
}

/// The metrics of a process that serves no locks itself.
pub(crate) fn of_process() -> String {
    let mut out = String::new();
    process(&mut out);
    let version = env!("CARGO_PKG_VERSION");
    let _ = write!(
        out,
        "# HELP lockkeeper_build_info The version.\n# TYPE lockkeeper_build_info gauge\n\
         lockkeeper_build_info{{version=\"{version}\"}} 1\n"
    );
    out
}

/// The role of this daemon in its fleet.
pub(crate) fn fleet(out: &mut String, leads: bool, position: u64, lag: u64, relayed: usize) {
    for (name, help, value) in [
        ("lockkeeper_fleet_leads", "Whether this daemon leads.", u64::from(leads)),
        (
            "lockkeeper_fleet_position",
            "Entries of the shared log that this daemon has applied, or committed.",
            position,
        ),
        ("lockkeeper_fleet_lag", "Entries that it has yet to apply.", lag),
        ("lockkeeper_fleet_relayed", "Clients whose messages it relays to the leader.", relayed as u64),
    ] {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
    }
}

/// What Prometheus's clients tell of their process.
fn process(out: &mut String) {
    let mut one = |name: &str, kind: &str, help: &str, value: f64| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    };
    let cpu = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    let seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    one("process_cpu_seconds_total", "counter", "Processor time.", seconds);
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    if let Some(pages) = pages.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()) {
        one("process_resident_memory_bytes", "gauge", "Memory.", pages * page_size() as f64);
    }
    if let Ok(open) = fs::read_dir("/dev/fd") {
        one("process_open_fds", "gauge", "Open descriptors.", open.count() as f64);
    }
    if let Some(most) = rustix::process::getrlimit(Resource::Nofile).current {
        one("process_max_fds", "gauge", "Limit of open descriptors.", most as f64);
    }
}

fn by_bucket(out: &mut String, state: &State) {
    let mut buckets: Vec<_> = state.buckets().collect();
    buckets.sort_by_key(|bucket| std::cmp::Reverse(bucket.bytes));
    buckets.truncate(BUCKETS);
    let mut all = |name: &str, help: &str, value: fn(&BucketView<'_>) -> usize| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n");
        for bucket in &buckets {
            let _ = writeln!(out, "{name}{{bucket={}}} {}", label(bucket.name), value(bucket));
        }
    };
    all("lockkeeper_bucket_sessions", "Sessions of a bucket.", |bucket| bucket.sessions);
    all("lockkeeper_bucket_names", "Names that requests of a bucket ask for.", |bucket| bucket.names);
    all("lockkeeper_bucket_bytes", "Approximate memory of a bucket.", |bucket| bucket.bytes);
}

/// A label's value, in quotes.
fn label(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
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
