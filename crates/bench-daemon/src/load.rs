//! Runs the same work against several servers in turns.

use crate::{
    clients::{Client, Pipeline, Resource},
    servers::Server,
};
use lockkeeper_client::spin;
use std::{
    num::NonZero,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// How long one contender works before it is the next one's turn, and how often.
const ROUND: Duration = Duration::from_millis(100);
const ROUNDS: usize = 25;

/// One way to lock: a server, and a kind of client.
pub struct Contender<'a> {
    pub name: String,
    pub server: &'a Server,
    pub connect: Box<dyn Fn(usize) -> Box<dyn Client> + 'a>,
    /// Whether our own clients spin for replies.
    pub spins: bool,
}

pub struct Figures {
    pub name: String,
    /// Pairs of acquire and release, by all clients: the median round's; of one client, the best
    /// round's, since where the system puts two processes that take turns makes more difference
    /// than what they do.
    pub per_second: f64,
    /// How often the lock went to another client than had it before: the median round's.
    pub changes: f64,
    /// Microseconds of the server's processor time for a pair.
    pub cpu: f64,
    /// The longest wait of a round over the mean one, in time: the median round's.
    pub longest: f64,
    /// The same, in turns of others.
    pub longest_turns: f64,
}

/// While it lives, each processor has a thread to run that only counts.
pub struct Busy(Arc<AtomicBool>);

impl Busy {
    pub fn new() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            let over = Arc::clone(&over);
            thread::spawn(move || (0..u64::MAX).take_while(|_| !over.load(Relaxed)).count());
        }
        Self(over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The names that the clients lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Each its own hundred.
    Distinct,
    /// All the same one.
    Hot,
}

pub fn compare(contenders: &[Contender<'_>], clients: usize, names: Names) -> Vec<Figures> {
    let mut connected: Vec<Vec<_>> = contenders
        .iter()
        .map(|contender| (0..clients).map(|number| (contender.connect)(number)).collect())
        .collect();
    let mut rounds: Vec<Vec<Round>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..=ROUNDS {
        for ((contender, clients), rounds) in contenders.iter().zip(&mut connected).zip(&mut rounds) {
            spin::enable(contender.spins);
            rounds.push(round(contender.server, clients, names));
        }
    }
    spin::enable(true);
    let figures = contenders.iter().zip(rounds).map(|(contender, mut rounds)| {
        // Everything is warm after the first.
        rounds.remove(0);
        let pairs: u64 = rounds.iter().map(|round| round.pairs).sum();
        let cpu: Duration = rounds.iter().map(|round| round.cpu).sum();
        let rates = rounds.iter().map(|round| round.pairs as f64 / round.time.as_secs_f64());
        Figures {
            name: contender.name.clone(),
            per_second: if clients == 1 { rates.fold(0.0, f64::max) } else { median(rates) },
            changes: median(rounds.iter().map(|round| round.changes as f64 / round.time.as_secs_f64())),
            cpu: cpu.as_secs_f64() * 1e6 / pairs as f64,
            longest: median(rounds.iter().map(|round| round.longest)),
            longest_turns: median(rounds.iter().map(|round| round.longest_turns)),
        }
    });
    figures.collect()
}

struct Round {
    pairs: u64,
    changes: u64,
    time: Duration,
    cpu: Duration,
    longest: f64,
    longest_turns: f64,
}

fn round(server: &Server, clients: &mut [Box<dyn Client>], names: Names) -> Round {
    let turns = Turns { count: AtomicU64::new(0), last: AtomicUsize::new(usize::MAX) };
    let cpu = server.cpu();
    let (waits, time) = all_at_once(clients, ROUND, |number, client, over| {
        let resources: Vec<_> = match names {
            Names::Distinct => (0..100).map(|i| Resource::new(1 + number * 100 + i)).collect(),
            Names::Hot => vec![Resource::new(0)],
        };
        work(client, number, &resources, over, &turns)
    });
    let waits = waits.into_iter().reduce(Waits::and).expect("there are clients");
    let cpu = server.cpu() - cpu;
    let pairs = waits.count as f64;
    Round {
        pairs: waits.count,
        changes: waits.changes,
        time,
        cpu,
        longest: waits.longest.as_secs_f64() / (waits.sum.as_secs_f64() / pairs),
        longest_turns: waits.longest_turns as f64 / (waits.turns as f64 / pairs),
    }
}

/// Runs all clients at once, each on a thread, until they are told to stop. Returns their results,
/// and how long that was.
pub fn all_at_once<T: Send>(
    clients: &mut [Box<dyn Client>],
    lasts: Duration,
    work: impl Fn(usize, &mut dyn Client, &AtomicBool) -> T + Sync,
) -> (Vec<T>, Duration) {
    let (ready, over) = (Barrier::new(clients.len() + 1), AtomicBool::new(false));
    thread::scope(|scope| {
        let (ready, over, work) = (&ready, &over, &work);
        let start = |(number, client): (usize, &mut Box<dyn Client>)| {
            ready.wait();
            work(number, client.as_mut(), over)
        };
        let threads: Vec<_> =
            clients.iter_mut().enumerate().map(|client| scope.spawn(move || start(client))).collect();
        ready.wait();
        let begun = Instant::now();
        thread::sleep(lasts);
        over.store(true, Relaxed);
        let time = begun.elapsed();
        (threads.into_iter().map(|thread| thread.join().expect("it works")).collect(), time)
    })
}

/// Who got a lock.
struct Turns {
    count: AtomicU64,
    /// The client that got one last.
    last: AtomicUsize,
}

/// How long acquires took, and how many others got a lock meanwhile.
#[derive(Default)]
struct Waits {
    count: u64,
    /// How often it was another client that had got one before.
    changes: u64,
    sum: Duration,
    longest: Duration,
    turns: u64,
    longest_turns: u64,
}

impl Waits {
    fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            changes: self.changes + other.changes,
            sum: self.sum + other.sum,
            longest: self.longest.max(other.longest),
            turns: self.turns + other.turns,
            longest_turns: self.longest_turns.max(other.longest_turns),
        }
    }
}

fn work(
    client: &mut dyn Client,
    number: usize,
    resources: &[Resource],
    over: &AtomicBool,
    turns: &Turns,
) -> Waits {
    let mut waits = Waits::default();
    for resource in resources.iter().cycle() {
        if over.load(Relaxed) {
            break;
        }
        let (start, before) = (Instant::now(), turns.count.load(Relaxed));
        client.acquire(resource);
        let (sum, others) = (start.elapsed(), turns.count.fetch_add(1, Relaxed) - before);
        let changes = u64::from(turns.last.swap(number, Relaxed) != number);
        client.release(resource);
        waits =
            waits.and(Waits { count: 1, changes, sum, longest: sum, turns: others, longest_turns: others });
    }
    waits
}

/// Pairs of acquire and release that are sent at once.
const BATCH: usize = 128;

/// Pairs a second of clients that send many messages before they read the replies, each with one
/// connection: the median round's.
pub fn pipelined<const N: usize>(mut clients: [&mut dyn Pipeline; N]) -> [f64; N] {
    let resources: Vec<_> = (0..BATCH).map(Resource::new).collect();
    let mut rates = [const { Vec::new() }; N];
    for _ in 0..ROUNDS {
        for (client, rates) in clients.iter_mut().zip(&mut rates) {
            let (start, mut batches) = (Instant::now(), 0);
            client.ask_all(&resources);
            while start.elapsed() < ROUND {
                client.ask_all(&resources);
                client.hear_all(BATCH);
                batches += 1;
            }
            client.hear_all(BATCH);
            rates.push(((batches + 1) * BATCH) as f64 / start.elapsed().as_secs_f64());
        }
    }
    rates.map(|rates| median(rates.into_iter()))
}

/// What a pair costs one client: the time of the best of many short rounds, and the server's
/// processor time.
pub fn alone(server: &Server, client: &mut dyn Client) -> (Duration, Duration) {
    const PAIRS: u32 = 300;
    const ROUNDS: u32 = 100;
    let resources: Vec<_> = (0..100).map(Resource::new).collect();
    let (mut best, cpu) = (Duration::MAX, server.cpu());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for resource in resources.iter().cycle().take(PAIRS as usize) {
            client.acquire(resource);
            client.release(resource);
        }
        best = best.min(start.elapsed() / PAIRS);
    }
    (best, (server.cpu() - cpu) / (PAIRS * ROUNDS))
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
