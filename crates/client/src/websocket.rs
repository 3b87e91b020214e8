//! A WebSocket to a server on the network, with or without TLS. Only connecting blocks.

use crate::{connection::read_some, endpoint::Address};
use lockkeeper_wire::{
    frame,
    websocket::{self, SUBPROTOCOL},
};
use rustix::net::RecvFlags;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{
    env,
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The longest answer to the handshake.
const HEAD: usize = 16 << 10;

/// After this time without an answer to TLS, the server is tested for plain HTTP, in which it may
/// be waiting for more bytes.
const SILENCE: Duration = Duration::from_millis(500);

const NO_TLS: &str = "it does not speak TLS: use ws:// instead of wss://";

pub(crate) struct WebSocket {
    stream: TcpStream,
    tls: Option<Box<Mutex<ClientConnection>>>,
}

impl WebSocket {
    /// Connects, and does the handshakes. Each step takes no longer than `step`.
    pub(crate) fn connect(address: &Address, step: Duration) -> io::Result<Self> {
        let stream = dial(address, step)?;
        // Messages are short, and each is waited for.
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(step))?;
        stream.set_write_timeout(Some(step))?;
        let tls = address.tls.then(|| handshake(address, &stream, step)).transpose()?;
        let socket = Self { stream, tls: tls.map(|tls| Box::new(Mutex::new(tls))) };
        socket.upgrade(address)?;
        Ok(socket)
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Appends the bytes for messages, each of which is preceded by its length.
    pub(crate) fn encode(&self, mut messages: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut frames = Vec::with_capacity(messages.len() + 16);
        let mut batch = Vec::new();
        while let Ok(Some((message, length))) = frame::first(messages, usize::MAX) {
            if !batch.is_empty() && batch.len() + message.len() > websocket::BATCH {
                websocket::append(&mut frames, Some(random()?), |out| out.append(&mut batch));
            }
            batch.extend_from_slice(message);
            messages = &messages[length..];
        }
        if !batch.is_empty() {
            websocket::append(&mut frames, Some(random()?), |out| out.append(&mut batch));
        }
        self.encrypt(&frames, out)
    }

    /// Appends the bytes of the answer to a ping.
    pub(crate) fn encode_pong(&self, ping: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut frame = Vec::new();
        websocket::append_pong(&mut frame, Some(random()?), ping);
        self.encrypt(&frame, out)
    }

    fn encrypt(&self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let Some(tls) = &self.tls else {
            out.extend_from_slice(bytes);
            return Ok(());
        };
        let mut tls = lock(tls);
        tls.writer().write_all(bytes)?;
        while tls.wants_write() {
            tls.write_tls(out)?;
        }
        Ok(())
    }

    /// Reads once, and appends what can be decrypted of it. False if nothing came.
    pub(crate) fn read(&self, flags: RecvFlags, input: &mut Vec<u8>) -> io::Result<bool> {
        let Some(tls) = &self.tls else { return read_some(&self.stream, flags, input) };
        let mut sealed = Vec::new();
        if !read_some(&self.stream, flags, &mut sealed)? {
            return Ok(false);
        }
        let (mut sealed, mut tls) = (&sealed[..], lock(tls));
        while !sealed.is_empty() {
            tls.read_tls(&mut sealed)?;
            tls.process_new_packets().map_err(io::Error::other)?;
            match tls.reader().read_to_end(input) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                // All there was; or the server has closed its side.
                _ => {}
            }
        }
        Ok(true)
    }

    /// Makes it a WebSocket.
    fn upgrade(&self, address: &Address) -> io::Result<()> {
        let key = websocket::key(random()?);
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n",
            address.path,
            address.authority()
        );
        let mut out = Vec::new();
        self.encrypt(request.as_bytes(), &mut out)?;
        (&self.stream).write_all(&out)?;
        let mut answer = Vec::new();
        let mut failed = None;
        // A server sends nothing before Hello: this ends with the head, unless it is a refusal.
        while !answer.ends_with(b"\r\n\r\n") && answer.len() <= HEAD && failed.is_none() {
            if answer.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                // What a web server says besides may come late, and is not needed.
                self.stream.set_read_timeout(Some(SILENCE))?;
            }
            failed = self.read(RecvFlags::empty(), &mut answer).err();
        }
        if let Some(error) = failed.filter(|_| answer.is_empty()) {
            return Err(error);
        }
        // An alert, with which a server of TLS answers what is none.
        if self.tls.is_none() && answer.starts_with(&[0x15, 3]) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it speaks TLS: use wss:// instead of ws://",
            ));
        }
        let answer = String::from_utf8_lossy(&answer);
        let mut lines = answer.lines();
        let http = lines.next().unwrap_or_default().strip_prefix("HTTP/1.");
        let status = http.and_then(|rest| rest.split_once(' ')).map_or("no HTTP", |(_, status)| status);
        if !status.starts_with("101 ") {
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
            let said = format!("{} {}", words(status), words(body));
            return Err(io::Error::other(format!("it does not speak WebSocket: {}", said.trim_end())));
        }
        let header = |name: &str| {
            let mut headers = answer.lines().filter_map(|line| line.split_once(':'));
            headers.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        let proof = header("sec-websocket-accept") == Some(&websocket::accept(&key));
        if !proof || header("sec-websocket-protocol") != Some(SUBPROTOCOL) {
            let why =
                format!("it speaks WebSocket, but not {SUBPROTOCOL}: is it another version of Lockkeeper?");
            return Err(io::Error::other(why));
        }
        Ok(())
    }
}

/// The first line of what is said, for people; nothing of a page.
fn words(body: &str) -> String {
    const WORDS: usize = 300;
    let line = body.lines().next().filter(|line| !line.starts_with('<')).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(WORDS).collect()
}

/// The first of the host's addresses that answers.
fn dial(address: &Address, step: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (&*address.host, address.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, step) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn handshake(address: &Address, mut stream: &TcpStream, step: Duration) -> io::Result<ClientConnection> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(trusted()?)
        .with_no_client_auth();
    let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    // What is written at once is as long as it is.
    tls.set_buffer_limit(None);
    let mut rest = step.checked_sub(SILENCE);
    stream.set_read_timeout(Some(step.min(SILENCE)))?;
    while tls.is_handshaking() {
        match tls.complete_io(&mut stream) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let Some(rest) = rest.take().filter(|rest| !rest.is_zero()) else { return Err(error) };
                if speaks_http(address) {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, NO_TLS));
                }
                stream.set_read_timeout(Some(rest))?;
            }
            Err(error) => return Err(explain(error)),
        }
    }
    stream.set_read_timeout(Some(step))?;
    Ok(tls)
}

/// Whether the server answers a request without TLS. Some servers that require TLS answer it with
/// status 400.
fn speaks_http(address: &Address) -> bool {
    let ask = || {
        let mut stream = dial(address, SILENCE)?;
        stream.set_read_timeout(Some(SILENCE))?;
        write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", address.authority())?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        io::Result::Ok(answer.starts_with(b"HTTP/1.") && !answer.ends_with(b" 400"))
    };
    ask().unwrap_or(false)
}

/// Why TLS fails, and what to set.
fn explain(error: io::Error) -> io::Error {
    use rustls::{CertificateError, Error};
    let why = match error.get_ref().and_then(|error| error.downcast_ref()) {
        // The last two: an authority of the same name is known, with another key.
        Some(Error::InvalidCertificate(
            CertificateError::UnknownIssuer
            | CertificateError::BadSignature
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
        )) => {
            "its certificate is from an unknown issuer: set LOCKKEEPER_CA to a file with the issuer's (PEM)"
                .into()
        }
        Some(Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => "its certificate has expired".into(),
        Some(Error::InvalidCertificate(
            error @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
        )) => format!("its certificate is for another name: {error}"),
        Some(Error::InvalidMessage(_)) => NO_TLS.into(),
        _ => return error,
    };
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// The certificate authorities that `LOCKKEEPER_CA` names (a PEM file), or those that the system
/// trusts.
///
/// # Errors
///
/// If the file cannot be used, or there is no authority at all.
pub fn trusted() -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match env::var_os("LOCKKEEPER_CA").filter(|path| !path.is_empty()) {
        Some(path) => {
            let wrong = |error: &dyn std::fmt::Display| {
                let why = format!("LOCKKEEPER_CA: {}: {error}", path.to_string_lossy());
                io::Error::new(io::ErrorKind::InvalidInput, why)
            };
            for certificate in CertificateDer::pem_file_iter(&path).map_err(|error| wrong(&error))? {
                roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"no certificate in it"));
            }
        }
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    match roots.is_empty() {
        true => Err(io::Error::other("no certificate authority is trusted: LOCKKEEPER_CA=FILE names one")),
        false => Ok(roots),
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn lock(tls: &Mutex<ClientConnection>) -> MutexGuard<'_, ClientConnection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}
