//! Ten thousand clients with a million waiting requests, and what that costs the daemon and somebody else.

use crate::{
    clients::{Client, Raw, Resource},
    load::alone,
    report::{Report, Target::AtMost},
    servers::{Server, Stage, beside},
};
use lockkeeper_wire::v2::ToClient;
use rustix::process::{Resource as Limited, getrlimit, setrlimit};
use std::{
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

const PROCESSES: usize = 2;
const CLIENTS: usize = 10_000;
/// Of each client: one for each name.
const REQUESTS: usize = 100;

pub fn table(stage: &Stage, report: &mut Report) {
    let server = Server::lockkeeper(stage, "crowd");
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

    let start = Instant::now();
    for mut crowd in crowds {
        drop(crowd.stdin.take());
        assert!(crowd.wait().expect("it ends").success());
    }
    while other.query(&crowded(0).name).0 > 1 {}
    let went = start.elapsed();

    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let times = busy.as_secs_f64() / idle.as_secs_f64();
    report.target("10,000 clients, 1,000,000 requests: MiB of memory", mebibytes(full), AtMost(1024.0));
    report.target("another client's pair then ÷ when there is nobody else", times, AtMost(2.0));
    report.say("## 10,000 clients of two processes, each with 100 waiting requests\n\n| | |\n|---|---|");
    report.say(&format!(
        "| memory of the daemon | {:.0} MiB, {:.0} before |",
        mebibytes(full),
        mebibytes(empty)
    ));
    for (what, busy, idle) in
        [("another client's pair", busy, idle), ("the daemon's processor time for it", busy_cpu, idle_cpu)]
    {
        let (busy, idle) = (busy.as_secs_f64() * 1e6, idle.as_secs_f64() * 1e6);
        report.say(&format!("| {what} | {busy:.1} µs, {idle:.1} before |"));
    }
    for (what, (entries, bytes, time, cpu)) in [("nobody waits", quiet), ("all wait", hot)] {
        report.say(&format!(
            "| who holds and waits for one name, for which {what} | {entries} entries, {bytes} bytes: {:.2} ms, {:.2} of the daemon's |",
            time.as_secs_f64() * 1e3,
            cpu.as_secs_f64() * 1e3
        ));
    }
    report.say(&format!("| memory after these questions | {:.1} MiB more |", mebibytes(grown)));
    report.say(&format!("| from the first connection to the last request | {:.1} s |", came.as_secs_f64()));
    report.say(&format!(
        "| from the end of both processes to that of the last request | {:.1} s |\n",
        went.as_secs_f64()
    ));
}

fn crowded(number: usize) -> Resource {
    Resource { name: format!("crowded/{number}"), number: 0 }
}

/// One of the processes: connects its clients, has them wait, and stays until its input ends.
pub fn run(socket: &Path) {
    let mut limit = getrlimit(Limited::Nofile);
    limit.current = limit.maximum;
    setrlimit(Limited::Nofile, limit).expect("as many files as allowed");
    let clients: Vec<_> = (0..CLIENTS / PROCESSES)
        .map(|_| {
            let mut client = Raw::connect(socket);
            (0..REQUESTS).for_each(|number| _ = client.ask(&crowded(number).name));
            client.send();
            for _ in 0..REQUESTS {
                assert!(matches!(client.hear(), ToClient::Queued { .. }));
            }
            client
        })
        .collect();
    println!("waiting");
    let _ = io::stdin().read(&mut [0]);
    drop(clients);
}
