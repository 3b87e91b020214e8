//! Nanoseconds for taking and releasing a lock by its name, ours and the peers' in turns.

use crate::{engine::Engine, names};
use dashmap::DashMap;
use futures_lite::future::block_on;
use lockkeeper::Locks;
use std::{
    fmt::Write,
    hint::black_box,
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Pairs of acquire and release in one round.
const PAIRS: usize = 100_000;
/// Rounds; each contender's best counts. All take turns, so that a noisy moment hits all.
const ROUNDS: usize = 25;

/// One way to take and release the lock of a name.
trait Contender: Sync {
    fn name(&self) -> &'static str;
    async fn pair(&self, name: &'static str);
}

/// Calls with names in an order that is neither sequential nor costly to work out.
async fn pairs(contender: &impl Contender, names: &[&'static str], pairs: usize) {
    let mut next = 0;
    for _ in 0..pairs {
        next += 79;
        if next >= names.len() {
            next -= names.len();
        }
        contender.pair(names[next]).await;
    }
}

/// Looks at a guard, so that it has to be there, and lets it go.
#[inline(always)]
fn use_up<G>(guard: G) {
    black_box(&guard);
}

macro_rules! contenders {
    ($($contender:ident($inner:ty) = $label:literal, $construct:expr, |$this:ident, $key:ident| $pair:expr;)*) => {$(
        struct $contender($inner);
        impl Contender for $contender {
            fn name(&self) -> &'static str {
                $label
            }
            async fn pair(&self, $key: &'static str) {
                let $this = &self.0;
                $pair
            }
        }
        impl Default for $contender {
            fn default() -> Self {
                Self($construct)
            }
        }
    )*};
}

contenders! {
    Guard(Locks) = "lockkeeper, `acquire`", Locks::new(),
        |locks, name| use_up(locks.acquire(name).await.expect("a free name"));
    Run(Locks) = "lockkeeper, `run`", Locks::new(),
        |locks, name| locks.request(name).run(async |lock| _ = black_box(lock)).await.expect("a free name");
    DashTokio(DashMap<&'static str, Arc<tokio::sync::RwLock<()>>>) =
        "DashMap + tokio `RwLock`, entries kept", DashMap::new(),
        |map, name| {
            let lock = map.get(name).map(|lock| lock.clone());
            let lock = lock.unwrap_or_else(|| map.entry(name).or_default().clone());
            use_up(lock.write_owned().await);
        };
    DashTokioRemoved(DashMap<&'static str, Arc<tokio::sync::RwLock<()>>>) =
        "DashMap + tokio `RwLock`, removed on release", DashMap::new(),
        |map, name| {
            let lock = map.entry(name).or_default().clone();
            use_up(lock.write_owned().await);
            map.remove_if(name, |_, lock| Arc::strong_count(lock) == 1);
        };
    DashAsyncLock(DashMap<&'static str, Arc<async_lock::RwLock<()>>>) =
        "DashMap + async-lock `RwLock`, entries kept", DashMap::new(),
        |map, name| {
            let lock = map.get(name).map(|lock| lock.clone());
            let lock = lock.unwrap_or_else(|| map.entry(name).or_default().clone());
            use_up(lock.write_arc().await);
        };
    Lockable(lockable::LockPool<&'static str>) = "lockable `LockPool`", lockable::LockPool::new(),
        |pool, name| use_up(pool.async_lock(name).await);
    KeyedLock(keyed_lock::r#async::KeyedLock<&'static str>) = "keyed-lock", keyed_lock::r#async::KeyedLock::new(),
        |lock, name| use_up(lock.lock(name).await);
    BareTokio(tokio::sync::RwLock<()>) = "bare tokio `RwLock`, no names", tokio::sync::RwLock::new(()),
        |lock, _name| use_up(lock.write().await);
}

/// The best nanoseconds per pair over all rounds.
fn time(best: &mut f64, pairs: usize, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    *best = best.min(start.elapsed().as_nanos() as f64 / pairs as f64);
}

/// One contender's round, ready to be run in turn with the others'.
type Round<'a> = (&'static str, f64, Box<dyn Fn() + 'a>);

fn round<'a, C: Contender + Default + 'a>(names: &'a [&'static str]) -> Round<'a> {
    let contender = C::default();
    (contender.name(), f64::INFINITY, Box::new(move || block_on(pairs(&contender, names, PAIRS))))
}

pub fn table() -> String {
    let mut out = String::new();
    for count in [1_000, 100_000] {
        let names = names(count);
        let mut best = [
            round::<Guard>(&names),
            round::<Run>(&names),
            round::<DashTokio>(&names),
            round::<DashTokioRemoved>(&names),
            round::<DashAsyncLock>(&names),
            round::<Lockable>(&names),
            round::<KeyedLock>(&names),
            round::<BareTokio>(&names),
        ];
        for _ in 0..ROUNDS {
            for (_, best, round) in &mut best {
                time(best, PAIRS, &*round);
            }
        }
        let ours = best[0].1;
        let _ = writeln!(out, "## Uncontended acquire + release by name, {count} names, one thread\n");
        let _ = writeln!(out, "| | ns a pair | lockkeeper's `acquire` takes |\n|---|---|---|");
        for (name, ns, _) in &best {
            let _ = writeln!(out, "| {name} | {ns:.1} | {:.2} × that |", ours / ns);
        }
        let _ = writeln!(out, "| the core alone, no mutex | {:.1} | |\n", core(&names));
    }
    let _ = writeln!(out, "## Several threads, distinct names, millions of pairs a second in all\n");
    let _ = writeln!(
        out,
        "| threads | lockkeeper | of its one-thread rate | DashMap + tokio `RwLock` |\n|---|---|---|---|"
    );
    let one = threads(1);
    for (threads, (ours, theirs)) in [(1, one), (2, threads(2)), (4, threads(4))] {
        let _ = writeln!(out, "| {threads} | {ours:.1} | {:.2} × | {theirs:.1} |", ours / one.0);
    }
    let _ = writeln!(
        out,
        "\n## The longest pair of four threads, each processor being busy with another thread\n"
    );
    let _ = writeln!(out, "| lockkeeper | DashMap + tokio `RwLock` |\n|---|---|");
    let (ours, theirs) = longest();
    let _ = writeln!(out, "| {:.0} ms | {:.0} ms |", ours.as_secs_f64() * 1e3, theirs.as_secs_f64() * 1e3);
    out
}

/// The core alone: what the async crate adds is the difference.
fn core(names: &[&'static str]) -> f64 {
    let mut engine = Engine::new();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        time(&mut best, PAIRS, || {
            let mut next = 0;
            for _ in 0..PAIRS {
                next += 79;
                if next >= names.len() {
                    next -= names.len();
                }
                let held = engine.request(names[next]);
                engine.release(black_box(held));
            }
        });
    }
    best
}

/// The longest pair of four threads while as many others as there are processors only count, ours
/// and DashMap + tokio's: the median of the rounds.
fn longest() -> (Duration, Duration) {
    const TIME: Duration = Duration::from_millis(200);
    fn worst(contender: &impl Contender, names: &[&'static str]) -> Duration {
        let worst = |names: &[&'static str]| {
            let (start, mut worst) = (Instant::now(), Duration::ZERO);
            while start.elapsed() < TIME {
                let pair = Instant::now();
                block_on(pairs(contender, names, 1));
                worst = worst.max(pair.elapsed());
            }
            worst
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                names.chunks(names.len() / 4).map(|names| scope.spawn(move || worst(names))).collect();
            threads.into_iter().map(|thread| thread.join().expect("it works")).max().expect("there are four")
        })
    }
    let names = names(1_000);
    let (ours, theirs) = (Guard::default(), DashTokio::default());
    let over = AtomicBool::new(false);
    let mut rounds: Vec<_> = thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| (0..u64::MAX).take_while(|_| !over.load(Relaxed)).count());
        }
        let rounds = (0..ROUNDS).map(|_| (worst(&ours, &names), worst(&theirs, &names))).collect();
        over.store(true, Relaxed);
        rounds
    });
    let mut median = |of: fn(&(Duration, Duration)) -> Duration| {
        rounds.sort_by_key(of);
        of(&rounds[rounds.len() / 2])
    };
    (median(|round| round.0), median(|round| round.1))
}

/// Millions of pairs a second with so many threads, ours and DashMap + tokio's: the median of the
/// rounds, since with several threads the best is luck.
fn threads(threads: usize) -> (f64, f64) {
    fn rate<C: Contender>(contender: &C, names: &[&'static str], threads: usize) -> f64 {
        let share = names.len() / threads;
        let start = Instant::now();
        thread::scope(|scope| {
            for names in names.chunks(share).take(threads) {
                scope.spawn(move || block_on(pairs(contender, names, PAIRS)));
            }
        });
        (threads * PAIRS) as f64 / start.elapsed().as_secs_f64() / 1e6
    }
    let names = names(1_000);
    let (ours, theirs) = (Guard::default(), DashTokio::default());
    let mut rates: Vec<_> =
        (0..ROUNDS).map(|_| (rate(&ours, &names, threads), rate(&theirs, &names, threads))).collect();
    let mut median = |of: fn(&(f64, f64)) -> f64| {
        rates.sort_by(|a, b| of(a).total_cmp(&of(b)));
        of(&rates[rates.len() / 2])
    };
    (median(|rate| rate.0), median(|rate| rate.1))
}
