//! `lockkeeper-bench-daemon table` prints how the daemon does beside Redis, PostgreSQL and a bare
//! echo, as Markdown. All are processes on Unix sockets, and their clients are threads of this one:
//! the same few lines for each protocol.

mod baton;
mod clients;
mod crowd;
mod fleet;
mod load;
mod report;
mod servers;

use clients::{Baton, Client, Echo, Ours, Pipeline as _, Postgres, Raw, Redis};
use load::{Busy, Contender, Names};
use report::{
    Report,
    Target::{AtLeast, AtMost},
};
use servers::{Server, WorkDir};
use std::{
    env, fs,
    io::{Read, Write},
    os::unix::net::UnixListener,
    path::Path,
    process::ExitCode,
    thread,
};

const BLOCKING: &str = "Lockkeeper, bare protocol, blocking";
const BARE: &str = ", bare protocol, blocking";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["table"] => table(),
        ["table", "fleet"] => fleet::table(None),
        ["table", "fleet", clients] => fleet::table(Some(clients.parse().expect("a number of clients"))),
        ["table", "spin"] => {
            let mut report = Report::default();
            spinning_or_not(&Server::lockkeeper(&WorkDir::new(), "daemon", &[]), &mut report);
            report.print();
        }
        ["table", "hot"] => {
            let (work_dir, mut report) = (WorkDir::new(), Report::default());
            let (ours, baton) =
                (Server::lockkeeper(&work_dir, "daemon", &[]), Server::bare(&work_dir, "baton"));
            let contenders = [
                contender("Lockkeeper", &ours, Box::new(|_| Box::new(Ours::connect(&ours.socket)))),
                contender(&baton.version, &baton, Box::new(|_| Box::new(Baton::connect(&baton.socket)))),
            ];
            for clients in [16, 64] {
                report.figures(clients, &load::compare(&contenders, clients, Names::Hot), true);
            }
            report.print();
        }
        ["table", "pipelined"] => {
            let (work_dir, mut report) = (WorkDir::new(), Report::default());
            let (ours, redis) =
                (Server::lockkeeper(&work_dir, "daemon", &[]), Server::redis(&work_dir, false));
            pipelined(&ours, &redis, &mut report);
            report.print();
        }
        ["table", "crowd"] => {
            let mut report = Report::default();
            crowd::table(&WorkDir::new(), &mut report);
            report.print();
        }
        // What it starts itself.
        ["echo", socket] => echo(socket),
        ["baton", socket] => baton::serve(socket),
        ["crowd", socket] => crowd::run(Path::new(socket)),
        _ => {
            eprintln!(
                "usage: lockkeeper-bench-daemon table [hot | spin | pipelined | crowd | fleet [CLIENTS]]"
            );
            return ExitCode::from(64);
        }
    }
    ExitCode::SUCCESS
}

fn contender<'a>(
    name: &str,
    server: &'a Server,
    connect: Box<dyn Fn(usize) -> Box<dyn Client> + 'a>,
) -> Contender<'a> {
    Contender { name: name.into(), server, connect, spins: true }
}

fn table() {
    let work_dir = WorkDir::new();
    let (echo, ours) = (Server::bare(&work_dir, "echo"), Server::lockkeeper(&work_dir, "daemon", &[]));
    let baton = Server::bare(&work_dir, "baton");
    let (redis, postgres) = (Server::redis(&work_dir, false), Server::postgres(&work_dir, 90));
    let spinning = format!("{}, spinning client", redis.version);
    let mut contenders = vec![
        contender("Lockkeeper", &ours, Box::new(|_| Box::new(Ours::connect(&ours.socket)))),
        contender(&redis.version, &redis, Box::new(|number| Box::new(Redis::connect(&redis.socket, number)))),
        contender(&postgres.version, &postgres, Box::new(|_| Box::new(Postgres::advisory(&postgres.socket)))),
        contender(BLOCKING, &ours, Box::new(|_| Box::new(Raw::connect(&ours.socket)))),
        contender(&spinning, &redis, Box::new(|number| Box::new(Redis::spinning(&redis.socket, number)))),
        contender("bare echo, twice", &echo, Box::new(|_| Box::new(Echo::connect(&echo.socket)))),
    ];
    let mut report = Report::default();
    let load = fs::read_to_string("/proc/loadavg").expect("the kernel counts it");
    let load = load.split(' ').next().unwrap_or_default();
    report.write(&format!(
        "The load average was {load} before the run: the work of other processes is in the figures.\n"
    ));
    report.write(
        "Each client is a thread that asks, waits for the answer, and asks again. Ours is the crate `lockkeeper`, with \
         `acquire_blocking` and `Lock::release`. It spins for up to 50 µs before it blocks on a reply: waking an idle \
         processor takes longer than everything else. It does not wait for the answer to a release: a holder is notified of \
         a loss, where a client of Redis learns from that answer whether the lock was still its own. *Bare protocol, \
         blocking* is a client like those of Redis and PostgreSQL: it blocks until each answer, also to a release. *Spinning \
         client* is a client of Redis that spins as ours does. A bare echo has a thread for each connection. Redis: `SET NX \
         PX` and a compare-and-delete by `EVALSHA`. PostgreSQL: `pg_advisory_lock` and `pg_advisory_unlock`, prepared.\n",
    );

    report.write("## Acquire + release, each client its own names\n");
    for clients in [1, 16, 64] {
        let figures = load::compare(&contenders, clients, Names::Distinct);
        let [ours, redis, postgres, blocking, _, echo] = &figures[..] else {
            unreachable!("as many as contenders")
        };
        for (client, who) in [(ours, ""), (blocking, BARE)] {
            if clients == 1 {
                let times = echo.per_second / client.per_second;
                report.target(&format!("1 client{who}: the time of a pair ÷ two echoes"), times, AtMost(0.7));
            }
            let mut target = |what: &str, measured, target| {
                report.target(&format!("{clients} at once, distinct names{who}: {what}"), measured, target);
            };
            target("pairs ÷ Redis's", client.per_second / redis.per_second, AtLeast(2.0));
            target("pairs ÷ PostgreSQL's", client.per_second / postgres.per_second, AtLeast(1.8));
            target("processor time ÷ Redis's", client.cpu / redis.cpu, AtMost(0.5));
        }
        report.figures(clients, &figures, false);
    }

    // No client waits for an echo.
    contenders.pop();
    contenders.push(contender(&baton.version, &baton, Box::new(|_| Box::new(Baton::connect(&baton.socket)))));
    report.write("## Acquire + release of one name, by all clients\n");
    report.write(
        "Redis has no queue: its clients try again after a millisecond, and the client that releases is often the next holder. \
         Ours and PostgreSQL's have it in the order in which they ask. A bare baton is a server of one queue that passes a \
         byte on and does nothing else: a hand-over takes two wake-ups there too, one of the server and one of the next \
         client.\n",
    );
    for clients in [16, 64] {
        let figures = load::compare(&contenders, clients, Names::Hot);
        let [ours, redis, postgres, blocking, _, _] = &figures[..] else {
            unreachable!("as many as contenders")
        };
        for (client, who) in [(ours, ""), (blocking, BARE)] {
            let mut target = |what: &str, measured, target| {
                report.target(&format!("{clients} at once, one name{who}: {what}"), measured, target);
            };
            target("pairs ÷ PostgreSQL's", client.per_second / postgres.per_second, AtLeast(3.0));
            target("pairs ÷ Redis's", client.per_second / redis.per_second, AtLeast(5.0));
            target("changes of the holder ÷ Redis's", client.changes / redis.changes, AtLeast(5.0));
            target("longest wait ÷ mean", client.longest, AtMost(3.0));
            target("longest wait ÷ mean, in turns", client.longest_turns, AtMost(3.0));
        }
        report.figures(clients, &figures, true);
    }
    contenders.pop();

    report.write(
        "## Both on a busy machine\n\nEach processor also runs a thread that only counts. A spinner loses the processor to it \
         for milliseconds; ours notices, and blocks instead.\n",
    );
    let busy = Busy::new();
    for names in [Names::Distinct, Names::Hot] {
        report.figures(16, &load::compare(&contenders, 16, names), names == Names::Hot);
    }
    drop(busy);

    pipelined(&ours, &redis, &mut report);
    spinning_or_not(&ours, &mut report);
    durable(&work_dir, &postgres, &mut report);
    crowd::table(&work_dir, &mut report);
    report.print();
}

fn pipelined(ours: &Server, redis: &Server, report: &mut Report) {
    report.write("## Acquire + release, pipelined on one connection\n\n| | pairs a second |\n|---|---|");
    let names = ["Lockkeeper's protocol", &redis.version];
    let rates = load::pipelined([&mut Raw::connect(&ours.socket), &mut Redis::connect(&redis.socket, 0)]);
    report.target("pipelined: pairs a second", rates[0], AtLeast(1_000_000.0));
    names.iter().zip(rates).for_each(|(name, rate)| report.write(&format!("| {name} | {rate:.0} |")));
    let grown = written_per_pair(ours);
    report.write(&format!("\nThe daemon writes {grown:.0} bytes of log for each of these pairs.\n"));
}

/// How many bytes the daemon's log grows by for a pair of a short name.
fn written_per_pair(server: &Server) -> f64 {
    // Less than what has the log replaced by a snapshot, or begun anew.
    const PAIRS: usize = 100_000;
    let resources: Vec<_> = (0..100).map(clients::Resource::new).collect();
    let mut client = Raw::connect(&server.socket);
    let bytes = || server.log().iter().map(|(_, bytes)| bytes).sum::<u64>();
    loop {
        let (files, before) = (server.log().len(), bytes());
        for _ in 0..PAIRS / resources.len() {
            client.ask_all(&resources);
            client.hear_all(resources.len());
        }
        if server.log().len() == files && bytes() > before {
            return (bytes() - before) as f64 / PAIRS as f64;
        }
    }
}

/// What it is worth that a client spins for a reply.
fn spinning_or_not(ours: &Server, report: &mut Report) {
    let contenders =
        [("the client spins", true), ("the client blocks at once", false)].map(|(name, spins)| {
            let connect = Box::new(|_| -> Box<dyn Client> { Box::new(Ours::connect(&ours.socket)) });
            Contender { name: name.into(), server: ours, connect, spins }
        });
    report.write(
        "## What spinning is worth\n\nOnly a client that blocks spins for a reply. It does so as long as these tables show \
         a gain of 1.2 × where it matters, for one client on a quiet machine, and elsewhere no loss beyond what the \
         machine's noise explains.\n",
    );
    let mut measure = |machine: &str, gain: f64| {
        for (clients, names) in [(1, Names::Distinct), (16, Names::Distinct), (16, Names::Hot)] {
            let figures = load::compare(&contenders, clients, names);
            let [spins, blocks] = &figures[..] else { unreachable!("as many as contenders") };
            let which = if names == Names::Hot { "one name" } else { "distinct names" };
            let what = format!("{machine} machine, {clients} at once, {which}: with spinning ÷ without");
            let least = if clients == 1 { gain } else { 1.0 };
            report.target(&what, spins.per_second / blocks.per_second, AtLeast(least));
            report.write(&format!("On a {machine} machine, {which}:\n"));
            report.figures(clients, &figures, names == Names::Hot);
        }
    };
    measure("quiet", 1.2);
    let busy = Busy::new();
    measure("busy", 1.0);
    drop(busy);
}

/// Answers that mean that what they say is on disk.
fn durable(work_dir: &WorkDir, postgres: &Server, report: &mut Report) {
    let (ours, redis) = (Server::lockkeeper(work_dir, "sync", &["--sync"]), Server::redis(work_dir, true));
    let contenders = [
        contender("Lockkeeper `--sync`", &ours, Box::new(|_| Box::new(Ours::connect(&ours.socket)))),
        contender(
            "Redis, `appendfsync always`",
            &redis,
            Box::new(|number| Box::new(Redis::connect(&redis.socket, number))),
        ),
        contender(
            "PostgreSQL, a committed row",
            postgres,
            Box::new(|_| Box::new(Postgres::rows(&postgres.socket))),
        ),
        contender(
            &format!("{BLOCKING}, `--sync`"),
            &ours,
            Box::new(|_| Box::new(Raw::connect(&ours.socket))),
        ),
    ];
    report.write("## Acquire + release on disk before it is answered, each client its own names\n");
    for clients in [1, 16, 64] {
        let figures = load::compare(&contenders, clients, Names::Distinct);
        let [ours, redis, postgres, _] = &figures[..] else { unreachable!("as many as contenders") };
        if clients == 64 {
            for (peer, name) in [(redis, "Redis's"), (postgres, "PostgreSQL's")] {
                let what = format!("{clients} at once, on disk: pairs ÷ {name}");
                report.target(&what, ours.per_second / peer.per_second, AtLeast(1.0));
            }
        }
        report.figures(clients, &figures, false);
    }
}

/// A bare echo: a thread for each connection, that reads and writes.
fn echo(socket: &str) {
    for stream in UnixListener::bind(socket).expect("the socket is free").incoming() {
        let mut stream = stream.expect("a connection");
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                if stream.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
        });
    }
}
