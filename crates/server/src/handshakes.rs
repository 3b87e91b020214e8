//! Connections before their Hello. The rights of their clients are unknown, so they have little
//! time and memory, and those of one source cannot keep out the others.

use crate::{HandshakeLimits, daemon::max_descriptors};
use lockkeeper_wire::websocket::Broken;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    net::{IpAddr, Ipv6Addr},
    rc::Rc,
    time::Instant,
};
use tokio::{sync::Notify, task::AbortHandle};

/// The pending handshakes of a port, or of a socket.
pub(crate) struct Handshakes {
    limits: HandshakeLimits,
    pending: RefCell<Pending>,
    /// Told when there is one.
    first: Notify,
}

/// The source of connections, by which they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Network(IpAddr),
    /// A user of this machine.
    User(u32),
}

impl Source {
    /// An address, or the network of IPv6 addresses that a host can have all of.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self::Network(match address {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// The progress of a handshake.
#[derive(Clone, Copy)]
pub(crate) enum HandshakeStage {
    Connected,
    Secured,
    Upgraded,
}

/// Leaves the handshake set on drop.
pub(crate) struct PendingHandshake {
    number: u64,
    handshakes: Rc<Handshakes>,
}

impl PendingHandshake {
    pub(crate) fn advance(&self, stage: HandshakeStage) {
        self.handshakes.pending.borrow_mut().advance(self.number, stage);
    }

    /// The longest message before Hello is done.
    pub(crate) fn max(&self) -> usize {
        self.handshakes.limits.bytes
    }
}

/// Why bytes are no message. Before Hello is done, with the setting that says how long one may be.
pub(crate) fn why_malformed(error: Broken, before_hello: bool) -> String {
    match error {
        Broken::TooLong(error) if before_hello => format!("{error} before Hello (max-hello-bytes)"),
        error => error.to_string(),
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.handshakes.pending.borrow_mut().remove(self.number);
    }
}

impl Handshakes {
    pub(crate) fn new(limits: HandshakeLimits) -> Rc<Self> {
        let pending = RefCell::new(Pending::new(limits.connections, max_descriptors()));
        Rc::new(Self { limits, pending, first: Notify::new() })
    }

    /// Serves a connection with a task that is aborted if it has to give way.
    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(
        self: &Rc<Self>,
        source: Source,
        serve: impl FnOnce(PendingHandshake) -> F,
    ) {
        let mut pending = self.pending.borrow_mut();
        pending.last += 1;
        let number = pending.last;
        let task = tokio::task::spawn_local(serve(PendingHandshake { number, handshakes: Rc::clone(self) }));
        let (until, stage) = (Instant::now() + self.limits.timeout, HandshakeStage::Connected);
        pending.insert(number, Handshake { until, stage, source, task: task.abort_handle() });
        self.first.notify_one();
    }

    /// Closes one that gives way. False if there is none.
    pub(crate) fn close_one(&self) -> bool {
        let mut pending = self.pending.borrow_mut();
        let number = pending.gives_way();
        number.inspect(|&number| pending.close(number)).is_some()
    }

    /// Sends away those who have had their time.
    pub(crate) async fn time_out(&self) {
        loop {
            let first = self.pending.borrow().waiting.values().next().map(|handshake| handshake.until);
            match first {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => self.first.notified().await,
            }
            let mut pending = self.pending.borrow_mut();
            while let Some((&number, _)) =
                pending.waiting.first_key_value().filter(|(_, handshake)| handshake.until <= Instant::now())
            {
                pending.close(number);
            }
        }
    }
}

struct Handshake {
    until: Instant,
    stage: HandshakeStage,
    source: Source,
    task: AbortHandle,
}

/// Those who have connected and not said Hello, by their number, which is the order of their
/// coming.
struct Pending {
    most: usize,
    waiting: BTreeMap<u64, Handshake>,
    by_source: HashMap<Source, OfSource>,
    last: u64,
}

/// The pending handshakes of one source, by stage, in the order of their coming.
#[derive(Default)]
struct OfSource([BTreeSet<u64>; 3]);

impl OfSource {
    fn count(&self) -> usize {
        self.0.iter().map(BTreeSet::len).sum()
    }

    /// The oldest of the least advanced stage that has more than a third of the places. So a new
    /// connection has time for each stage, even if many others have reached the same stage or a
    /// later one and stopped there.
    fn gives_way(&self, places: usize) -> Option<u64> {
        let share = (places / 3).max(1);
        let crowded = self.0.iter().find(|stage| stage.len() > share);
        let crowded = crowded.or_else(|| self.0.iter().rev().find(|stage| !stage.is_empty()))?;
        crowded.first().copied()
    }
}

impl Pending {
    /// At most so many, or a quarter of the descriptors that this process may have.
    fn new(most: usize, descriptors: usize) -> Self {
        let most = most.min(descriptors / 4).max(2);
        Self { most, waiting: BTreeMap::new(), by_source: HashMap::new(), last: 0 }
    }

    /// The most of one source.
    fn places(&self) -> usize {
        self.most / 2
    }

    /// The handshake of the source that has the most, which crowds out the others.
    fn gives_way(&self) -> Option<u64> {
        self.by_source.values().max_by_key(|of_source| of_source.count())?.gives_way(self.places())
    }

    fn insert(&mut self, number: u64, handshake: Handshake) {
        let places = self.places();
        let of_source = self.by_source.entry(handshake.source).or_default();
        of_source.0[handshake.stage as usize].insert(number);
        self.waiting.insert(number, handshake);
        let crowded = match of_source.count() > places {
            true => of_source.gives_way(places),
            false if self.waiting.len() > self.most => self.gives_way(),
            false => None,
        };
        if let Some(number) = crowded {
            self.close(number);
        }
    }

    fn advance(&mut self, number: u64, stage: HandshakeStage) {
        if let Some(handshake) = self.remove(number) {
            self.insert(number, Handshake { stage, ..handshake });
        }
    }

    fn remove(&mut self, number: u64) -> Option<Handshake> {
        let handshake = self.waiting.remove(&number)?;
        if let Some(of_source) = self.by_source.get_mut(&handshake.source) {
            of_source.0[handshake.stage as usize].remove(&number);
            if of_source.count() == 0 {
                self.by_source.remove(&handshake.source);
            }
        }
        Some(handshake)
    }

    fn close(&mut self, number: u64) {
        if let Some(handshake) = self.remove(number) {
            handshake.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Handshake, HandshakeStage, Pending, Source};
    use std::{future::pending, time::Instant};
    use tokio::task::AbortHandle;

    struct World(Pending, AbortHandle);

    impl World {
        fn new() -> Self {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            Self(Pending::new(1_000, 800), runtime.spawn(pending::<()>()).abort_handle())
        }

        fn come(&mut self, number: u64, address: &str, stage: HandshakeStage) {
            let source = Source::of(address.parse().expect("an address"));
            self.0.insert(number, Handshake { until: Instant::now(), stage, source, task: self.1.clone() });
        }

        fn has(&self, number: u64) -> bool {
            self.0.waiting.contains_key(&number)
        }
    }

    /// Two addresses with as many idle handshakes as one may have kept all others out.
    #[test]
    fn an_address_with_few_handshakes_is_not_crowded_out() {
        let mut world = World::new();
        for number in 0..100 {
            world.come(2 * number, "127.0.0.2", HandshakeStage::Upgraded);
            world.come(2 * number + 1, "127.0.0.3", HandshakeStage::Upgraded);
        }
        world.come(1_000, "127.0.0.1", HandshakeStage::Connected);
        assert!(world.has(1_000));
        // A quarter of the descriptors.
        assert_eq!(world.0.waiting.len(), 200);
    }

    /// As many upgraded handshakes as an address may have closed each newcomer of that address at
    /// once.
    #[test]
    fn newcomers_have_time_for_each_stage() {
        for flood in [HandshakeStage::Connected, HandshakeStage::Secured, HandshakeStage::Upgraded] {
            let (mut world, mut last) = (World::new(), 0);
            let mut come = |world: &mut World, count, stage| {
                for _ in 0..count {
                    last += 1;
                    world.come(last, "192.0.2.1", stage);
                }
                last
            };
            come(&mut world, 300, flood);
            let newcomer = come(&mut world, 1, HandshakeStage::Connected);
            for stage in [HandshakeStage::Secured, HandshakeStage::Upgraded] {
                come(&mut world, 30, flood);
                assert!(world.has(newcomer));
                world.0.advance(newcomer, stage);
            }
            come(&mut world, 30, flood);
            assert!(world.has(newcomer));
            assert_eq!(world.0.waiting.len(), 100);
        }
    }

    #[test]
    fn addresses_that_one_host_can_have_count_together() {
        let mut world = World::new();
        for number in 0..150 {
            world.come(number, &format!("2001:db8:0:1::{number:x}"), HandshakeStage::Connected);
        }
        assert_eq!(world.0.waiting.len(), 100);
        world.come(150, "2001:db8:0:2::1", HandshakeStage::Connected);
        assert_eq!(world.0.waiting.len(), 101);
    }
}
