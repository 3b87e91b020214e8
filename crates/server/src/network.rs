//! The TCP port. A connection is a [pending handshake](crate::handshakes) until it has sent Hello.

use crate::{
    Error, GoingAway, HandshakeLimits, Listen,
    auth::Keys,
    connection::{self, Peer, Transport},
    daemon::Sender,
    handshakes::{HandshakeStage, Handshakes, PendingHandshake, Source},
    http::{self, Opened, Pages, Upgraded},
    listen::{PAUSE, accept_all},
    node::Node,
    users::Subject,
};
use lockkeeper_service::Origin;
use std::{
    cell::RefCell,
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::{
    LazyConfigAcceptor, TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::Acceptor,
    },
    server::TlsStream,
};

pub(crate) struct Network {
    listener: TcpListener,
    address: SocketAddr,
    listen: Listen,
    tls: RefCell<Option<TlsAcceptor>>,
    /// Had by the handshake of TLS that computes its answer.
    answering: Semaphore,
    handshakes: Rc<Handshakes>,
}

impl Network {
    /// Opens the port. Also returns the keys that grant rights there.
    pub(crate) async fn bind(
        listen: &Listen,
        limits: HandshakeLimits,
    ) -> Result<(Self, Option<Keys>), Error> {
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
        let (answering, handshakes) = (Semaphore::new(1), Handshakes::new(limits));
        Ok((Self { listener, address, listen, tls, answering, handshakes }, keys))
    }

    pub(crate) fn handshakes(&self) -> &Handshakes {
        &self.handshakes
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads certificates and keys again on request. Unusable ones do not replace the current ones.
    pub(crate) async fn reload(&self, node: &Node) {
        loop {
            self.listen.reload.notified().await;
            match self.listen.read() {
                Ok((tls, keys)) => {
                    *self.tls.borrow_mut() = tls;
                    node.set_keys(keys);
                    tracing::info!("reloaded certificates and keys");
                }
                Err(error) => {
                    tracing::error!(%error, "cannot reload certificates and keys: the current ones stay in use")
                }
            }
        }
    }

    pub(crate) async fn accept(self: &Rc<Self>, node: &Rc<Node>) {
        let admit = |stream| self.admit(stream, node);
        let refuse = async |stream| {
            let tls = self.tls.borrow().is_some();
            refuse(stream, tls).await;
        };
        accept_all(async || self.listener.accept().await, admit, || self.handshakes.close_one(), refuse)
            .await;
    }

    fn admit(self: &Rc<Self>, stream: TcpStream, node: &Rc<Node>) {
        // Messages are short, and each is waited for.
        let _ = stream.set_nodelay(true);
        let (network, node) = (Rc::clone(self), Rc::clone(node));
        let Ok(address) = stream.peer_addr().map(|address| address.ip().to_canonical()) else { return };
        let loopback = is_on_loopback(&stream);
        self.handshakes.spawn(Source::of(address), async move |handshake| {
            let tls = network.tls.borrow().clone();
            let _ = match tls {
                Some(tls) => match network.secure(&tls, stream).await {
                    Ok(stream) => {
                        handshake.advance(HandshakeStage::Secured);
                        network.serve(stream, address, true, node, handshake, loopback).await
                    }
                    Err(error) => Err(error),
                },
                None => network.serve(stream, address, false, node, handshake, loopback).await,
            };
        });
    }

    /// Does the handshake of TLS. A signature can take a millisecond, and a stranger can ask for
    /// hundreds with as many copies of one message: it is looked for what has come in for others
    /// before each.
    async fn secure(&self, tls: &TlsAcceptor, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let turn = self.answering.acquire().await.map_err(io::Error::other)?;
        tokio::task::yield_now().await;
        let answer = hello.into_stream(Arc::clone(tls.config()));
        drop(turn);
        answer.await
    }

    async fn serve<S: Transport>(
        &self,
        mut stream: S,
        address: IpAddr,
        tls: bool,
        node: Rc<Node>,
        handshake: PendingHandshake,
        loopback: bool,
    ) -> io::Result<()> {
        let pages = Pages {
            origins: Some(&self.listen.origins),
            per_origin: self.listen.bucket_per_origin,
            examples: self.listen.examples,
            health: !self.listen.metrics_elsewhere,
            head: handshake.max(),
            buckets: false,
            by: address.to_string(),
            loopback,
        };
        let Some((upgraded, input)) = http::accept(&mut stream, &pages, &node).await? else { return Ok(()) };
        handshake.advance(HandshakeStage::Upgraded);
        let origin = Origin::Network;
        match upgraded {
            Upgraded::WebSocket(Opened { origin: page, relayed }) => {
                let subject = Subject { words: address.to_string(), user: None };
                let page = page.filter(|_| self.listen.bucket_per_origin);
                let trusts_status = trusts_status(self.listen.going_away, relayed, tls, address);
                let peer = Peer { origin, sender: Sender::Client(subject), page, trusts_status };
                node.serve(stream, input, peer, handshake).await;
            }
            Upgraded::Relay(access, daemon) => {
                let sender = Sender::Relayed(access);
                let peer = Peer { origin, sender, page: None, trusts_status: false };
                connection::run(stream, input, peer, daemon, handshake).await;
            }
        }
        Ok(())
    }
}

/// Whether a status of 1001 can only be the client's own. A proxy can send it, too: one that shows
/// itself, or, without TLS, any between here and another machine.
fn trusts_status(policy: GoingAway, proxied: bool, tls: bool, address: IpAddr) -> bool {
    match policy {
        GoingAway::Auto => !proxied && (tls || address.is_loopback()),
        GoingAway::Ends => true,
        GoingAway::Ignored => false,
    }
}

/// A separate port for `/healthz` and `/metrics`, which contains names of buckets.
pub(crate) struct Metrics {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
    questions: Rc<Handshakes>,
}

/// Bytes that are read in one go of a request that is refused.
const READ: usize = 8 << 10;

/// Questions of the port for metrics at a time, half of them from one address.
const QUESTIONS: usize = 32;

impl Metrics {
    pub(crate) async fn bind(address: SocketAddr, limits: HandshakeLimits) -> Result<Self, Error> {
        let failed = |error| Error::Address(address, error);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let limits = HandshakeLimits { connections: QUESTIONS, ..limits };
        Ok(Self { address, listener, questions: Handshakes::new(limits) })
    }

    /// A question is a handshake that comes to nothing: whoever says nothing gives way to others.
    pub(crate) async fn accept(&self, node: &Rc<Node>) {
        let admit = |mut stream: TcpStream| {
            let (node, loopback) = (Rc::clone(node), is_on_loopback(&stream));
            let Ok(address) = stream.peer_addr().map(|address| address.ip().to_canonical()) else { return };
            self.questions.spawn(Source::of(address), async move |question| {
                let pages = Pages {
                    origins: None,
                    per_origin: false,
                    health: true,
                    head: question.max(),
                    buckets: true,
                    examples: false,
                    by: String::new(),
                    loopback,
                };
                let _ = http::accept(&mut stream, &pages, &node).await;
            });
        };
        let refuse = async |stream| refuse(stream, false).await;
        let accept =
            accept_all(async || self.listener.accept().await, admit, || self.questions.close_one(), refuse);
        tokio::join!(accept, self.questions.time_out());
    }
}

/// Sends the reason for the refusal. On a TLS port this is not possible before the handshake.
async fn refuse(stream: TcpStream, tls: bool) {
    if !tls {
        refuse_within(PAUSE, stream).await;
    }
}

async fn refuse_within(patience: Duration, mut stream: TcpStream) {
    let refusal = http::refusal("limit reached: the daemon has no file descriptor left (ulimit -n)\n");
    let refuse = async {
        stream.write_all(&refusal).await?;
        stream.shutdown().await?;
        // Closing with something unread would reset the connection, and the answer could be lost.
        let mut unread = Vec::with_capacity(READ);
        while stream.read_buf(&mut unread).await? > 0 {
            unread.clear();
        }
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(patience, refuse).await;
}

/// Whether a connection was made to an address of the loopback, at whichever the port is open.
fn is_on_loopback(stream: &TcpStream) -> bool {
    stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback())
}

impl Transport for TcpStream {}

impl Transport for TlsStream<TcpStream> {}

/// A TLS acceptor with the certificate of these files, if there are any.
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
    use super::{Duration, GoingAway, TcpListener, refuse_within, trusts_status};
    use std::io::{Read, Write};

    /// Clients of the port were dropped without a reason.
    #[test]
    fn who_is_refused_is_told_why() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let told = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let address = listener.local_addr().expect("it has one");
            let asks = std::thread::spawn(move || {
                let mut stream = std::net::TcpStream::connect(address).expect("somebody listens");
                let mut told = Vec::new();
                stream
                    .write_all(b"GET / HTTP/1.1\r\n\r\n")
                    .and_then(|()| stream.read_to_end(&mut told))
                    .map(|_| told)
            });
            let (stream, _) = listener.accept().await.expect("somebody connects");
            // It may wait for longer than a slow machine takes to ask.
            refuse_within(Duration::from_secs(60), stream).await;
            asks.join().expect("it asks").expect("it is told")
        });
        let told = String::from_utf8(told).expect("it is text");
        assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("file descriptor"), "{told}");
    }

    #[test]
    fn status_1001_is_the_clients_over_loopback_or_tls_without_a_proxy() {
        let [here, there] = ["127.0.0.1", "192.0.2.1"].map(|address| address.parse().expect("it is one"));
        let auto = |proxied, tls, address| trusts_status(GoingAway::Auto, proxied, tls, address);
        assert!(auto(false, false, here));
        assert!(!auto(false, false, there), "another machine, without TLS");
        assert!(auto(false, true, there));
        assert!(!auto(true, true, there) && !auto(true, false, here));
        assert!(trusts_status(GoingAway::Ends, true, false, there));
        assert!(!trusts_status(GoingAway::Ignored, false, true, here));
    }
}
