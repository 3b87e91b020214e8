//! A WebSocket by somebody else's hand, and the HTTP beside it.

use crate::{client::SILENCE, daemon::Daemon};
use std::{
    collections::HashMap,
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tungstenite::{ClientRequestBuilder, Error, HandshakeError, Message, WebSocket, http::Uri};

pub(crate) type Web = WebSocket<Box<dyn Stream>>;

pub(crate) trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

pub(crate) fn connect(daemon: &Daemon) -> Web {
    connect_with(Box::new(dial(daemon)), |request| request).expect("a WebSocket")
}

/// Does the handshake on a stream. If it is refused: the status, and what was said.
pub(crate) fn connect_with(
    stream: Box<dyn Stream>,
    change: impl FnOnce(ClientRequestBuilder) -> ClientRequestBuilder,
) -> Result<Web, (u16, String)> {
    connect_to("localhost", stream, change)
}

/// The same, with another name for the host.
pub(crate) fn connect_to(
    host: &str,
    stream: Box<dyn Stream>,
    change: impl FnOnce(ClientRequestBuilder) -> ClientRequestBuilder,
) -> Result<Web, (u16, String)> {
    connect_at(host, "/", stream, change)
}

/// The same, at another path.
pub(crate) fn connect_at(
    host: &str,
    path: &str,
    stream: Box<dyn Stream>,
    change: impl FnOnce(ClientRequestBuilder) -> ClientRequestBuilder,
) -> Result<Web, (u16, String)> {
    let uri: Uri = format!("ws://{host}{path}").parse().expect("a URI");
    let request = ClientRequestBuilder::new(uri);
    let request = change(request.with_sub_protocol("lockkeeper.v2"));
    match tungstenite::client(request, stream) {
        Ok((web, _)) => Ok(web),
        Err(HandshakeError::Failure(Error::Http(answer))) => {
            let words = answer.body().clone().unwrap_or_default();
            Err((answer.status().as_u16(), String::from_utf8_lossy(&words).into()))
        }
        Err(error) => panic!("neither a WebSocket nor an answer: {error}"),
    }
}

pub(crate) fn dial(daemon: &Daemon) -> TcpStream {
    let stream = TcpStream::connect(daemon.address()).expect("somebody listens");
    stream.set_read_timeout(Some(SILENCE)).expect("a socket takes a timeout");
    stream.set_nodelay(true).expect("a socket takes that");
    stream
}

pub(crate) fn say(web: &mut Web, bytes: Vec<u8>) {
    web.send(Message::Binary(bytes.into())).expect("the daemon listens");
}

/// The next message; `None` at the end.
pub(crate) fn hear(web: &mut Web) -> Option<Vec<u8>> {
    loop {
        match web.read() {
            Ok(Message::Binary(bytes)) => return Some(bytes.into()),
            Ok(Message::Text(text)) => panic!("the daemon says text: {text}"),
            Ok(_) => {}
            Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("nothing to hear")
            }
            Err(_) => return None,
        }
    }
}

/// Writes a request and reads all that comes back.
pub(crate) fn http(daemon: &Daemon, request: &str) -> String {
    let mut stream = dial(daemon);
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers in text, and closes");
    answer
}

pub(crate) fn get(daemon: &Daemon, path: &str) -> String {
    http(daemon, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

/// A stream with TLS, for who trusts this certificate (PEM).
pub(crate) fn tls(daemon: &Daemon, trusted: &[u8]) -> Box<dyn Stream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted).expect("a certificate")).expect("one to trust");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("there are some")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    Box::new(StreamOwned::new(connection, dial(daemon)))
}

/// Whether the daemon shows a certificate that this one vouches for.
pub(crate) fn trusts(daemon: &Daemon, trusted: &[u8]) -> bool {
    let mut stream = tls(daemon, trusted);
    let asked = stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").and_then(|()| stream.flush());
    let mut answer = String::new();
    let heard = asked.and_then(|()| stream.read_to_string(&mut answer));
    heard.is_ok() && answer.starts_with("HTTP/1.1 200 OK")
}

/// What is counted where that is done, by its name.
pub(crate) fn counts(daemon: &Daemon) -> HashMap<String, f64> {
    let answer = get(daemon.leader(), "/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").expect("it has a head");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let count = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    lines.map(|line| count(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

/// Waits until something is counted so often.
pub(crate) fn await_count(daemon: &Daemon, name: &str, value: f64) {
    while counts(daemon)[name] != value {
        std::thread::yield_now();
    }
}
