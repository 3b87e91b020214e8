//! The TCP port. A connection is a pending handshake until it has sent Hello, and has little time and room for that.

use crate::{
    Error, Listen,
    auth::Keys,
    connection::{self, Transport},
    daemon::Daemon,
    http,
    listen::accept_all,
    users::Subject,
};
use lockkeeper_service::Origin;
use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::Path,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
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

/// Pending handshakes at a time. One more, and the oldest is closed.
const HANDSHAKES: usize = 1_000;

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

    /// Reads certificates and keys anew when it is told to. What cannot be used does not take the place of what can.
    pub(crate) async fn reload(&self, daemon: &RefCell<Daemon>) {
        loop {
            self.listen.reload.notified().await;
            match self.listen.read() {
                Ok((tls, keys)) => {
                    *self.tls.borrow_mut() = tls;
                    daemon.borrow_mut().set_keys(keys);
                    tracing::info!("certificates and keys are read anew");
                }
                Err(error) => tracing::error!(%error, "certificates and keys stay as they were"),
            }
        }
    }

    pub(crate) async fn accept(self: &Rc<Self>, daemon: &Rc<RefCell<Daemon>>) {
        accept_all(async || self.listener.accept().await, |stream| self.admit(stream, daemon)).await;
    }

    fn admit(self: &Rc<Self>, stream: TcpStream, daemon: &Rc<RefCell<Daemon>>) {
        // Messages are short, and somebody waits for each.
        let _ = stream.set_nodelay(true);
        let (network, daemon) = (Rc::clone(self), Rc::clone(daemon));
        let mut handshakes = self.handshakes.borrow_mut();
        handshakes.last += 1;
        let number = handshakes.last;
        let handshake = PendingHandshake { number, handshakes: Rc::clone(&self.handshakes) };
        let subject = stream.peer_addr().map(|address| address.ip().to_string()).unwrap_or_default();
        let task = tokio::task::spawn_local(async move {
            let tls = network.tls.borrow().clone();
            let _ = match tls {
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => network.serve(stream, subject, daemon, handshake).await,
                    Err(error) => Err(error),
                },
                None => network.serve(stream, subject, daemon, handshake).await,
            };
        });
        handshakes.waiting.insert(number, (Instant::now() + HELLO, task.abort_handle()));
        if handshakes.waiting.len() > HANDSHAKES
            && let Some((_, (_, oldest))) = handshakes.waiting.pop_first()
        {
            oldest.abort();
        }
        self.first.notify_one();
    }

    async fn serve<S: Transport>(
        &self,
        mut stream: S,
        subject: String,
        daemon: Rc<RefCell<Daemon>>,
        handshake: PendingHandshake,
    ) -> io::Result<()> {
        if let Some(input) = http::greet(&mut stream, &self.listen.origins, &daemon).await? {
            let subject = Subject { words: subject, user: None };
            let run = connection::run(stream, input, Origin::Network, subject, daemon, Some(handshake));
            run.await;
        }
        Ok(())
    }

    /// Sends away those who have had their time.
    pub(crate) async fn time_out_handshakes(&self) {
        loop {
            let first = self.handshakes.borrow().waiting.values().next().map(|(until, _)| *until);
            match first {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => self.first.notified().await,
            }
            let waiting = &mut self.handshakes.borrow_mut().waiting;
            while let Some(entry) = waiting.first_entry()
                && entry.get().0 <= Instant::now()
            {
                entry.remove().1.abort();
            }
        }
    }
}

/// Those who have connected and not said hello: by their number, which is the order of their coming, until when each
/// has, and what ends it.
#[derive(Default)]
struct Handshakes {
    waiting: BTreeMap<u64, (Instant, AbortHandle)>,
    last: u64,
}

/// Leaves the handshake set on drop.
pub(crate) struct PendingHandshake {
    number: u64,
    handshakes: Rc<RefCell<Handshakes>>,
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.handshakes.borrow_mut().waiting.remove(&self.number);
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
