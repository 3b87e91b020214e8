//! A fleet on etcd beside etcd's own lock API, Redis that syncs each write, and PostgreSQL's
//! advisory locks.

use crate::{
    clients::{Client, Ours, Postgres, Redis, Resource},
    crowd,
    load::{Names, all_at_once, median},
    report::{Report, Target::AtLeast},
    servers::{Server, WorkDir, beside},
};
use lockkeeper::{Lock, Locks};
use lockkeeper_testing::{Cluster, Daemons, Setup};
use prost::Message;
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use tonic::{
    Request,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

/// How long one contender works before it is the next one's turn, and how often.
const ROUND: Duration = Duration::from_millis(500);
const ROUNDS: usize = 6;

/// The most clients, and how often it is their turn: they take their time.
const MANY: usize = 1000;
const ROUNDS_OF_MANY: usize = 2;

/// A contender, with its clients.
struct Contender {
    name: String,
    clients: Vec<Box<dyn Client>>,
}

/// With `only`, the rows of so many clients, to try them out.
pub fn table(only: Option<usize>) {
    crowd::allow_files();
    let work_dir = WorkDir::new();
    let (redis, postgres) = (Server::redis(&work_dir, true), Server::postgres(&work_dir, MANY));
    let mut report = Report::default();
    report.write(
        "Each client is a thread that asks, waits for the answer, and asks again. Ours is the crate `lockkeeper` at the daemon that \
         leads. etcd's is its lock API (`v3lock`) with a lease for each client. Redis has `appendfsync always`; PostgreSQL has \
         advisory locks, which are in memory only, and a process for each client. Everything is on one machine, also three \
         members of etcd. What etcd receives for a pair of ours is counted where each client has a name of its own.\n",
    );
    for members in [1, 3] {
        let cluster = Cluster::start(members).expect("etcd starts");
        let more = vec!["--store-own".into(), "--takeover".into(), "500ms".into()];
        let setup = Setup { program: beside("lockkeeper"), store: cluster.url("bench"), more };
        let mut daemons = Daemons::start(3, setup).expect("the daemons start");
        let leader = daemons.wait_for_leader();
        let etcd = cluster.url("").trim_start_matches("etcd://").trim_end_matches('/').to_owned();
        let all = etcd.clone();
        let written = || all.split(',').map(written).sum::<f64>();
        let etcd = etcd.split(',').next().unwrap_or_default().to_owned();
        let plural = if members == 1 { "one member" } else { "three members" };
        report.write(&format!("## etcd of {plural}\n"));
        for (names, clients) in [
            (Names::Hot, 16),
            (Names::Hot, 64),
            (Names::Distinct, 1),
            (Names::Distinct, 16),
            (Names::Distinct, 64),
            (Names::Distinct, MANY),
        ]
        .into_iter()
        .filter(|(_, clients)| only.is_none_or(|only| only == *clients))
        {
            let mut contenders = vec![
                Contender {
                    name: "Lockkeeper".into(),
                    clients: many(clients, |_| Ours::connect(&daemons.socket(leader))),
                },
                Contender {
                    name: "etcd's lock API".into(),
                    clients: many(clients, |_| EtcdLock::connect(&etcd)),
                },
                Contender {
                    name: format!("{}, synced", redis.version),
                    clients: many(clients, |number| Redis::connect(&redis.socket, number)),
                },
                Contender {
                    name: postgres.version.clone(),
                    clients: many(clients, |_| Postgres::advisory(&postgres.socket)),
                },
            ];
            let (rates, bytes) = compare(&mut contenders, names, written);
            let what = if names == Names::Hot { "one name" } else { "distinct names" };
            let target = match (names, clients, members) {
                (Names::Hot, 16, 1) => Some(4.5),
                (Names::Hot, 64, 1) | (Names::Hot, 16, _) => Some(2.0),
                (Names::Hot, 64, _) | (Names::Distinct, 1, _) => Some(1.5),
                (Names::Distinct, 16, _) => Some(2.8),
                (Names::Distinct, 64, 1) => Some(6.0),
                (Names::Distinct, 64, _) => Some(4.5),
                _ => None,
            };
            if let (Some(target), [ours, theirs, ..]) = (target, &rates[..]) {
                let what =
                    format!("etcd of {plural}, {what}, {clients} clients: Lockkeeper ÷ etcd's lock API");
                report.target(&what, ours / theirs, AtLeast(target));
            }
            report.write(&format!(
                "| {what}, {clients} clients | pairs a second | Lockkeeper ÷ this |\n|---|---|---|"
            ));
            for (contender, rate) in contenders.iter().zip(&rates) {
                report.write(&format!("| {} | {rate:.0} | {:.2} |", contender.name, rates[0] / rate));
            }
            if names == Names::Distinct {
                report.write(&format!("\nBytes that etcd received from daemons for a pair: {bytes:.0}."));
            }
            report.write("");
        }
        let (killed, handed) = (gap(&mut daemons, Daemons::kill), gap(&mut daemons, Daemons::stop));
        report.write(&format!(
            "From `kill -9` of the leader to the next grant of a client with several URLs, with `--takeover 500ms`: {} ms. From \
             SIGTERM: {} ms.\n",
            killed.as_millis(),
            handed.as_millis()
        ));
    }
    report.print();
}

fn many<C: Client + 'static>(count: usize, connect: impl Fn(usize) -> C) -> Vec<Box<dyn Client>> {
    (0..count).map(|number| Box::new(connect(number)) as Box<dyn Client>).collect()
}

/// Pairs a second of each, in turns: the median round's. And what `written` counts for a pair of the
/// first one, while it has its turn.
fn compare(contenders: &mut [Contender], names: Names, written: impl Fn() -> f64) -> (Vec<f64>, f64) {
    let mut rates = vec![Vec::new(); contenders.len()];
    let (mut bytes, mut pairs) = (0.0, 0);
    let rounds = if contenders[0].clients.len() == MANY { ROUNDS_OF_MANY } else { ROUNDS };
    for turn in 0..=rounds {
        for (number, (contender, rates)) in contenders.iter_mut().zip(&mut rates).enumerate() {
            let before = written();
            let round = round(&mut contender.clients, names);
            if number == 0 {
                bytes += written() - before;
                pairs += round.pairs;
            }
            // Everything is warm after the first.
            if turn > 0 {
                rates.push(round.rate);
            }
        }
    }
    (rates.into_iter().map(|rates| median(rates.into_iter())).collect(), bytes / pairs.max(1) as f64)
}

struct Round {
    pairs: u64,
    /// Pairs a second: of those that were done in time.
    rate: f64,
}

fn round(clients: &mut [Box<dyn Client>], names: Names) -> Round {
    let (pairs, time) = all_at_once(clients, ROUND, |number, client, over| {
        let resource = Resource::new(if names == Names::Hot { 0 } else { number + 1 });
        let (mut pairs, mut in_time) = (0, 0);
        while !over.load(Relaxed) {
            client.acquire(&resource);
            client.release(&resource);
            pairs += 1;
            in_time += u64::from(!over.load(Relaxed));
        }
        (pairs, in_time)
    });
    let (all, in_time) =
        pairs.into_iter().fold((0, 0), |(all, done), (pairs, more)| (all + pairs, done + more));
    Round { pairs: all, rate: in_time as f64 / time.as_secs_f64() }
}

/// How long a client that locks and releases all the time gets no lock when the leader ends.
fn gap(daemons: &mut Daemons, end: fn(&mut Daemons, usize)) -> Duration {
    let before = daemons.wait_for_leader();
    let locks = Locks::connect(daemons.urls((before + 1) % 3)).blocking().expect("the fleet serves");
    let over = AtomicBool::new(false);
    let longest = thread::scope(|scope| {
        let (locks, stop) = (&locks, &over);
        let work = scope.spawn(move || {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            while !stop.load(Relaxed) {
                let lock: Lock<'_> = locks.acquire_blocking("gap").expect("the fleet serves");
                longest = longest.max(last.elapsed());
                last = Instant::now();
                let _ = lock.release();
            }
            longest
        });
        thread::sleep(Duration::from_secs(1));
        end(daemons, before);
        thread::sleep(Duration::from_secs(5));
        over.store(true, Relaxed);
        work.join().expect("it works")
    });
    daemons.run(before).expect("it starts");
    daemons.wait(before).expect("it serves");
    longest
}

/// Bytes that clients have sent to a member of etcd.
fn written(member: &str) -> f64 {
    let mut stream = TcpStream::connect(member).expect("it listens");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {member}\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let line =
        answer.lines().find_map(|line| line.strip_prefix("etcd_network_client_grpc_received_bytes_total "));
    line.and_then(|value| value.trim().parse().ok()).expect("it counts them")
}

/// etcd's own lock API.
struct EtcdLock {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
    lease: i64,
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrant {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGranted {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Unlocked {}

impl EtcdLock {
    fn connect(member: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let endpoint = Endpoint::from_shared(format!("http://{member}")).expect("an address");
        let channel = runtime.block_on(endpoint.tcp_nodelay(true).connect()).expect("etcd listens");
        let mut lock = Self { runtime, channel, lease: 0, key: Vec::new() };
        // Longer than the benchmark.
        let granted: LeaseGranted = lock.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl: 3600 });
        lock.lease = granted.id;
        lock
    }

    fn call<Q: Message + 'static, A: Message + Default + 'static>(
        &mut self,
        path: &'static str,
        request: Q,
    ) -> A {
        let channel = self.channel.clone();
        self.runtime.block_on(async move {
            let mut grpc = Grpc::new(channel);
            grpc.ready().await.expect("etcd listens");
            let codec: ProstCodec<Q, A> = ProstCodec::default();
            let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await;
            answer.expect("etcd answers").into_inner()
        })
    }
}

impl Client for EtcdLock {
    fn acquire(&mut self, resource: &Resource) {
        let request = LockRequest { name: resource.name.clone().into(), lease: self.lease };
        let locked: LockResponse = self.call("/v3lockpb.Lock/Lock", request);
        self.key = locked.key;
    }

    fn release(&mut self, _: &Resource) {
        let key = std::mem::take(&mut self.key);
        let _: Unlocked = self.call("/v3lockpb.Lock/Unlock", UnlockRequest { key });
    }
}
