//! Ten thousand clients with a million waiting requests, and what that costs the daemon and
//! somebody else.

use crate::{
    clients::{Client, Pipeline as _, Raw, Resource},
    load::alone,
    report::{Report, Target::AtMost},
    servers::{Server, WorkDir, beside},
};
use lockkeeper_wire::v2::ToClient;
use rustix::process::{Resource as Limited, getrlimit, setrlimit};
use std::{
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const PROCESSES: usize = 2;
const CLIENTS: usize = 10_000;
/// Of each client: one for each name.
const REQUESTS: usize = 100;

pub fn table(work_dir: &WorkDir, report: &mut Report) {
    let server = Server::lockkeeper(work_dir, "crowd", &[]);
    let mut holder = Raw::connect(&server.socket);
    (0..REQUESTS).for_each(|number| holder.acquire(&crowded(number)));
    holder.acquire(&Resource { name: "quiet".into(), number: 0 });
    let mut other = Raw::connect(&server.socket);
    let (idle, idle_cpu) = alone(&server, &mut other);
    let empty = server.memory();

    let start = Instant::now();
    let mut crowds: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut crowd = Command::new(beside("lockkeeper-bench-daemon"));
            crowd.arg("crowd").arg(&server.socket).stdin(Stdio::piped()).stdout(Stdio::piped());
            crowd.spawn().expect("it starts")
        })
        .collect();
    for crowd in &mut crowds {
        let mut line = String::new();
        BufReader::new(crowd.stdout.as_mut().expect("it is piped")).read_line(&mut line).expect("it speaks");
        assert_eq!(line, "waiting\n");
    }
    let came = start.elapsed();
    let full = server.memory();
    let (busy, busy_cpu) = alone(&server, &mut other);
    let mut query = |name: &str| {
        let (start, cpu) = (Instant::now(), server.cpu());
        let (entries, bytes) = other.query(name);
        (entries, bytes, start.elapsed(), server.cpu() - cpu)
    };
    let (quiet, hot) = (query("quiet"), query(&crowded(0).name));
    let grown = server.memory().saturating_sub(full);
    assert_eq!((quiet.0, hot.0), (1, CLIENTS + 1));

    let attacks = attacks(&server, &mut other);
    let silence = silence(&server, &mut other);
    let start = Instant::now();
    server.kill();
    let server = Server::lockkeeper(work_dir, "crowd", &[]);
    let mut other = Raw::connect(&server.socket);
    other.acquire(&Resource { name: "again".into(), number: 0 });
    let again = start.elapsed();
    let recovered = server.memory();
    assert_eq!(other.query(&crowded(0).name).0, CLIENTS + 1);

    for mut crowd in crowds {
        drop(crowd.stdin.take());
        assert!(crowd.wait().expect("it ends").success());
    }

    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let times = busy.as_secs_f64() / idle.as_secs_f64();
    report.target("10,000 clients, 1,000,000 requests: MiB of memory", mebibytes(full), AtMost(300.0));
    report.target("another client's pair then ÷ on an otherwise idle daemon", times, AtMost(2.0));
    report.write("## 10,000 clients of two processes, each with 100 waiting requests\n\n| | |\n|---|---|");
    report.write(&format!(
        "| memory of the daemon | {:.0} MiB, {:.0} before |",
        mebibytes(full),
        mebibytes(empty)
    ));
    for (what, busy, idle) in
        [("another client's pair", busy, idle), ("the daemon's processor time for it", busy_cpu, idle_cpu)]
    {
        let (busy, idle) = (busy.as_secs_f64() * 1e6, idle.as_secs_f64() * 1e6);
        report.write(&format!("| {what} | {busy:.1} µs, {idle:.1} before |"));
    }
    for (what, (entries, bytes, time, cpu)) in [("nobody waits", quiet), ("all wait", hot)] {
        report.write(&format!(
            "| a query of one name, for which {what} | {entries} entries, {bytes} bytes: {:.2} ms, {:.2} of the daemon's |",
            time.as_secs_f64() * 1e3,
            cpu.as_secs_f64() * 1e3
        ));
    }
    report.write(&format!("| memory after these queries | {:.1} MiB more |", mebibytes(grown)));
    report.write(&format!("| from the first connection to the last request | {:.1} s |", came.as_secs_f64()));
    let [idle, queries, searches, cycles] = attacks;
    for (what, (mean, longest)) in [
        ("nobody else", idle),
        ("a client that queries everything again and again", queries),
        ("a client whose requests have deadlocks searched for, in a long chain", searches),
        ("a client whose requests are refused as deadlocks, with long names in a long cycle", cycles),
    ] {
        let (mean, longest) = (mean.as_secs_f64() * 1e6, longest.as_secs_f64() * 1e3);
        report.write(&format!(
            "| another client's pair beside {what} | {mean:.0} µs, {longest:.1} ms at most |"
        ));
    }
    for (what, (mean, _)) in [
        ("queries everything", queries),
        ("has deadlocks searched for", searches),
        ("has deadlocks refused", cycles),
    ] {
        let times = mean.as_secs_f64() / idle.0.as_secs_f64();
        report.target(&format!("another client's pair beside one that {what} ÷ idle"), times, AtMost(10.0));
    }
    report.write(&format!(
        "| the longest pair of another client while a snapshot of this is written | {:.1} ms, {:.1} in as long a time \
         without one |",
        silence.0.as_secs_f64() * 1e3,
        silence.1.as_secs_f64() * 1e3
    ));
    report.write(&format!(
        "| from `kill -9` to the next grant, all requests waiting again | {:.2} s, {:.0} MiB of memory |\n",
        again.as_secs_f64(),
        mebibytes(recovered)
    ));
    let what = "another client's longest pair while that is snapshotted, in milliseconds";
    report.target(what, silence.0.as_secs_f64() * 1e3, AtMost(20.0));
    report.target("seconds from `kill -9` then to the next grant", again.as_secs_f64(), AtMost(2.0));
}

/// What a pair takes a client until it is over: on average, and at most.
fn pairs(client: &mut Raw, mut over: impl FnMut() -> bool) -> (Duration, Duration) {
    let resource = Resource { name: "measured".into(), number: 0 };
    let (mut count, mut sum, mut longest) = (0, Duration::ZERO, Duration::ZERO);
    while !over() {
        let start = Instant::now();
        client.acquire(&resource);
        client.release(&resource);
        let took = start.elapsed();
        (count, sum, longest) = (count + 1, sum + took, longest.max(took));
    }
    (sum / count.max(1), longest)
}

/// Measures while another client works.
fn while_working<R>(server: &Server, work: impl Fn(&mut Raw) + Sync, measure: impl FnOnce() -> R) -> R {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = Raw::connect(&server.socket);
            while !over.load(Relaxed) {
                work(&mut other);
            }
            other.end();
        });
        let measured = measure();
        over.store(true, Relaxed);
        measured
    })
}

/// What a pair takes a client beside nobody, and beside attackers of three kinds.
fn attacks(server: &Server, client: &mut Raw) -> [(Duration, Duration); 4] {
    const PAIRS: u32 = 3000;
    let mut measure = || {
        let mut left = PAIRS + 1;
        pairs(client, || {
            left -= 1;
            left == 0
        })
    };
    let idle = measure();
    let queries = while_working(server, |attacker| attacker.query_all(2), &mut measure);
    // Each with a new session, as one would soon be refused: so many requests are more than it may
    // have.
    let chain = |attacker: &mut Raw| {
        std::mem::replace(attacker, Raw::connect(&server.socket)).end();
        attacker.chain(2000);
    };
    let searches = while_working(server, chain, &mut measure);
    let cycles = while_working(server, |attacker| attacker.close_cycles(10), &mut measure);
    [idle, queries, searches, cycles]
}

/// The longest pair of a client while a snapshot is written, because another client has the log
/// grow; and in as long a time afterwards.
fn silence(server: &Server, client: &mut Raw) -> (Duration, Duration) {
    let resources: Vec<_> = (0..100).map(Resource::new).collect();
    let is_unfinished = |(name, _): &(String, u64)| name.starts_with("snapshot") && name.ends_with("new");
    let in_snapshot = || server.log().iter().any(is_unfinished);
    let grow = |other: &mut Raw| {
        other.ask_all(&resources);
        other.hear_all(resources.len());
    };
    while_working(server, grow, || {
        pairs(client, || !in_snapshot());
        pairs(client, in_snapshot);
        let start = Instant::now();
        let (_, during) = pairs(client, || !in_snapshot());
        let (time, start) = (start.elapsed(), Instant::now());
        let (_, after) = pairs(client, || start.elapsed() >= time);
        (during, after)
    })
}

fn crowded(number: usize) -> Resource {
    Resource { name: format!("crowded/{number}"), number: 0 }
}

/// Has this process, and those that it starts, open as many files as it may.
pub fn allow_files() {
    let mut limit = getrlimit(Limited::Nofile);
    limit.current = limit.maximum;
    setrlimit(Limited::Nofile, limit).expect("as many files as allowed");
}

/// One of the processes: connects its clients, has them wait, and stays until its input ends.
pub fn run(socket: &Path) {
    allow_files();
    let clients: Vec<_> = (0..CLIENTS / PROCESSES)
        .map(|_| {
            let mut client = Raw::connect(socket);
            (0..REQUESTS).for_each(|number| _ = client.ask(&crowded(number).name));
            client.send();
            for _ in 0..REQUESTS {
                assert!(matches!(client.receive(), ToClient::Queued { .. }));
            }
            client
        })
        .collect();
    println!("waiting");
    let _ = io::stdin().read(&mut [0]);
    drop(clients);
}
