//! The TCP port. A connection is a pending handshake until it has sent Hello, and has little time and room for that.

use crate::{
    Error, GoingAway, Listen,
    auth::Keys,
    connection::{self, Peer, Transport},
    daemon::Sender,
    http::{self, Opened, Pages, Upgraded},
    listen::accept_all,
    node::Node,
    users::Subject,
};
use lockkeeper_service::Origin;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    task::AbortHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// How long it may take from the connection to the hello.
const HELLO: Duration = Duration::from_secs(10);

/// Pending handshakes at a time, in all and of one address. One more, and the least advanced is closed; of those, the
/// oldest.
const HANDSHAKES: usize = 1_000;
const HANDSHAKES_PER_ADDRESS: usize = 500;

pub(crate) struct Network {
    listener: TcpListener,
    address: SocketAddr,
    listen: Listen,
    tls: RefCell<Option<TlsAcceptor>>,
    handshakes: Rc<RefCell<Handshakes>>,
    /// Told when the first stranger comes.
    first: Rc<Notify>,
}

impl Network {
    /// Opens the port. Returns the keys, too, of those who may do something there.
    pub(crate) async fn bind(listen: &Listen) -> Result<(Self, Option<Keys>), Error> {
        let failed = |error| Error::Address(listen.address, error);
        let listener = match &listen.given {
            Some(given) => {
                given.set_nonblocking(true).map_err(failed)?;
                given.try_clone().and_then(TcpListener::from_std)
            }
            None => TcpListener::bind(listen.address).await,
        };
        let listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (tls, keys) = listen.read()?;
        listen.check_address(address)?;
        let (listen, tls) = (listen.clone(), RefCell::new(tls));
        Ok((Self { listener, address, listen, tls, handshakes: Rc::default(), first: Rc::default() }, keys))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads certificates and keys anew when it is told to. What cannot be used does not take the
    /// place of what can.
    pub(crate) async fn reload(&self, node: &Node) {
        loop {
            self.listen.reload.notified().await;
            match self.listen.read() {
                Ok((tls, keys)) => {
                    *self.tls.borrow_mut() = tls;
                    node.set_keys(keys);
                    tracing::info!("certificates and keys are read anew");
                }
                Err(error) => tracing::error!(%error, "certificates and keys stay as they were"),
            }
        }
    }

    pub(crate) async fn accept(self: &Rc<Self>, node: &Rc<Node>) {
        accept_all(async || self.listener.accept().await, |stream| self.admit(stream, node)).await;
    }

    fn admit(self: &Rc<Self>, stream: TcpStream, node: &Rc<Node>) {
        // Messages are short, and somebody waits for each.
        let _ = stream.set_nodelay(true);
        let (network, node) = (Rc::clone(self), Rc::clone(node));
        let Ok(address) = stream.peer_addr().map(|address| address.ip()) else { return };
        let mut handshakes = self.handshakes.borrow_mut();
        handshakes.last += 1;
        let number = handshakes.last;
        let handshake = PendingHandshake { number, handshakes: Rc::clone(&self.handshakes) };
        let task = tokio::task::spawn_local(async move {
            let tls = network.tls.borrow().clone();
            let _ = match tls {
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => {
                        handshake.advance(Stage::Secured);
                        network.serve(stream, address, true, node, handshake).await
                    }
                    Err(error) => Err(error),
                },
                None => network.serve(stream, address, false, node, handshake).await,
            };
        });
        let pending = Pending {
            until: Instant::now() + HELLO,
            stage: Stage::Connected,
            address,
            task: task.abort_handle(),
        };
        handshakes.insert(number, pending);
        self.first.notify_one();
    }

    async fn serve<S: Transport>(
        &self,
        mut stream: S,
        address: IpAddr,
        tls: bool,
        node: Rc<Node>,
        handshake: PendingHandshake,
    ) -> io::Result<()> {
        let pages = Pages {
            origins: Some(&self.listen.origins),
            per_origin: self.listen.bucket_per_origin,
            examples: self.listen.examples,
            health: !self.listen.metrics_elsewhere,
            buckets: false,
            loopback: self.address.ip().is_loopback(),
        };
        let Some((upgraded, input)) = http::greet(&mut stream, &pages, &node).await? else { return Ok(()) };
        handshake.advance(Stage::Upgraded);
        let origin = Origin::Network;
        match upgraded {
            Upgraded::WebSocket(Opened { origin: page, relayed }) => {
                let subject = Subject { words: address.to_string(), user: None };
                let page = page.filter(|_| self.listen.bucket_per_origin);
                let trusts_status = match self.listen.going_away {
                    GoingAway::Auto => !relayed && (tls || address.is_loopback()),
                    GoingAway::Ends => true,
                    GoingAway::Ignored => false,
                };
                let peer = Peer { origin, sender: Sender::Client(subject), page, trusts_status };
                node.serve(stream, input, peer, Some(handshake)).await;
            }
            Upgraded::Relay(access, daemon) => {
                let sender = Sender::Relayed(access);
                let peer = Peer { origin, sender, page: None, trusts_status: false };
                connection::run(stream, input, peer, daemon, Some(handshake)).await;
            }
        }
        Ok(())
    }

    /// Sends away those who have had their time.
    pub(crate) async fn time_out_handshakes(&self) {
        loop {
            let first = self.handshakes.borrow().waiting.values().next().map(|pending| pending.until);
            match first {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => self.first.notified().await,
            }
            let mut handshakes = self.handshakes.borrow_mut();
            while let Some((&number, _)) =
                handshakes.waiting.first_key_value().filter(|(_, pending)| pending.until <= Instant::now())
            {
                handshakes.close(number);
            }
        }
    }
}

/// A port of its own for `/healthz` and `/metrics`, which names buckets, too.
pub(crate) struct Metrics {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

/// Questions that are answered at a time.
const QUESTIONS: usize = 16;

impl Metrics {
    pub(crate) async fn bind(address: SocketAddr) -> Result<Self, Error> {
        let failed = |error| Error::Address(address, error);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        Ok(Self { address: listener.local_addr().map_err(failed)?, listener })
    }

    pub(crate) async fn accept(&self, node: &Rc<Node>) {
        let free = Rc::new(Semaphore::new(QUESTIONS));
        let admit = |mut stream: TcpStream| {
            let (node, free, loopback) = (Rc::clone(node), Rc::clone(&free), self.address.ip().is_loopback());
            let answer = async move {
                let Ok(_place) = free.try_acquire() else { return };
                let pages = Pages {
                    origins: None,
                    per_origin: false,
                    health: true,
                    buckets: true,
                    examples: false,
                    loopback,
                };
                let _ = tokio::time::timeout(HELLO, http::greet(&mut stream, &pages, &node)).await;
            };
            tokio::task::spawn_local(answer);
        };
        accept_all(async || self.listener.accept().await, admit).await;
    }
}

/// How far a handshake has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Connected,
    Secured,
    Upgraded,
}

struct Pending {
    until: Instant,
    stage: Stage,
    address: IpAddr,
    task: AbortHandle,
}

/// Those who have connected and not said hello, by their number, which is the order of their coming.
#[derive(Default)]
struct Handshakes {
    waiting: BTreeMap<u64, Pending>,
    /// The same of each address, by stage and number.
    by_address: HashMap<IpAddr, BTreeSet<(Stage, u64)>>,
    last: u64,
}

impl Handshakes {
    fn insert(&mut self, number: u64, pending: Pending) {
        let place = (pending.stage, number);
        let of_address = self.by_address.entry(pending.address).or_default();
        of_address.insert(place);
        self.waiting.insert(number, pending);
        let crowded = match of_address.len() > HANDSHAKES_PER_ADDRESS {
            true => of_address.first(),
            // Of the address that has the most: it crowds out the others.
            false if self.waiting.len() > HANDSHAKES => {
                self.by_address.values().max_by_key(|of_address| of_address.len()).and_then(BTreeSet::first)
            }
            false => None,
        };
        if let Some(&(_, number)) = crowded {
            self.close(number);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Pending> {
        let pending = self.waiting.remove(&number)?;
        let place = (pending.stage, number);
        if let Some(of_address) = self.by_address.get_mut(&pending.address) {
            of_address.remove(&place);
            if of_address.is_empty() {
                self.by_address.remove(&pending.address);
            }
        }
        Some(pending)
    }

    fn close(&mut self, number: u64) {
        if let Some(pending) = self.remove(number) {
            pending.task.abort();
        }
    }
}

/// Leaves the handshake set on drop.
pub(crate) struct PendingHandshake {
    number: u64,
    handshakes: Rc<RefCell<Handshakes>>,
}

impl PendingHandshake {
    fn advance(&self, stage: Stage) {
        let mut handshakes = self.handshakes.borrow_mut();
        if let Some(pending) = handshakes.remove(self.number) {
            handshakes.insert(self.number, Pending { stage, ..pending });
        }
    }
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.handshakes.borrow_mut().remove(self.number);
    }
}

impl Transport for TcpStream {}

impl Transport for tokio_rustls::server::TlsStream<TcpStream> {}

/// What speaks TLS with the certificate of these files, if there are any.
pub(crate) fn acceptor(listen: &Listen) -> Result<Option<TlsAcceptor>, Error> {
    let Some((certificate, key)) = &listen.tls else { return Ok(None) };
    let unusable = |path: &Path, error: String| Error::File(path.into(), io::Error::other(error));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| unusable(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(unusable(certificate, "no certificate in it".into()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| unusable(certificate, error.to_string()))?;
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

#[cfg(test)]
mod tests {
    use super::{HANDSHAKES, HANDSHAKES_PER_ADDRESS, Handshakes, Pending, Stage};
    use std::{
        future::pending,
        net::{IpAddr, Ipv4Addr},
        time::Instant,
    };

    /// Two addresses with as many idle handshakes as one may have kept everybody else out.
    #[test]
    fn an_address_with_few_handshakes_is_not_crowded_out() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let task = runtime.spawn(pending::<()>()).abort_handle();
        let mut handshakes = Handshakes::default();
        let mut insert = |number: u64, last: u8, stage| {
            let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
            handshakes.insert(number, Pending { until: Instant::now(), stage, address, task: task.clone() });
            handshakes.waiting.contains_key(&number)
        };
        let many = u64::try_from(HANDSHAKES_PER_ADDRESS).expect("it fits");
        let addresses = u8::try_from(HANDSHAKES / HANDSHAKES_PER_ADDRESS).expect("it fits");
        for address in 0..addresses {
            (0..many).for_each(|number| {
                _ = insert(u64::from(address) * many + number, address + 2, Stage::Upgraded)
            });
        }
        assert!(insert(u64::MAX, 1, Stage::Connected));
        assert_eq!(handshakes.waiting.len(), HANDSHAKES);
    }
}
