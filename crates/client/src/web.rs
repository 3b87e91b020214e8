//! A WebSocket to a daemon on the network, with TLS or without.

use crate::{endpoint::Address, line::read_some};
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

/// How long each step to a connection may take.
const STEP: Duration = Duration::from_secs(10);

/// The longest answer to the handshake.
const HEAD: usize = 16 << 10;

pub(crate) struct Web {
    stream: TcpStream,
    tls: Option<Box<Mutex<ClientConnection>>>,
}

impl Web {
    /// Connects, and does the handshakes.
    pub(crate) fn connect(address: &Address) -> io::Result<Self> {
        let stream = dial(address)?;
        // Messages are short, and somebody waits for each.
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STEP))?;
        let tls = address.tls.then(|| handshake(address, &stream)).transpose()?;
        let web = Self { stream, tls: tls.map(|tls| Box::new(Mutex::new(tls))) };
        web.upgrade(address)?;
        web.stream.set_read_timeout(None)?;
        Ok(web)
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Writes messages, each preceded by its length. One at a time does.
    pub(crate) fn write(&self, mut messages: &[u8]) -> io::Result<()> {
        let mut out = Vec::with_capacity(messages.len() + 16);
        while let Ok(Some((message, length))) = frame::first(messages, usize::MAX) {
            websocket::append(&mut out, Some(random()?), |out| out.extend(message));
            messages = &messages[length..];
        }
        self.write_bytes(&out)
    }

    fn write_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &self.tls else { return (&self.stream).write_all(bytes) };
        let mut sealed = Vec::new();
        {
            let mut tls = lock(tls);
            tls.writer().write_all(bytes)?;
            while tls.wants_write() {
                tls.write_tls(&mut sealed)?;
            }
        }
        // Not under the mutex: who reads must be able to, or the daemon will not listen.
        (&self.stream).write_all(&sealed)
    }

    /// Reads once, and appends what can be understood of it.
    pub(crate) fn read(&self, input: &mut Vec<u8>) -> io::Result<()> {
        let Some(tls) = &self.tls else {
            return read_some(&self.stream, RecvFlags::empty(), input).map(drop);
        };
        let mut sealed = Vec::new();
        read_some(&self.stream, RecvFlags::empty(), &mut sealed)?;
        let (mut sealed, mut tls) = (&sealed[..], lock(tls));
        while !sealed.is_empty() {
            tls.read_tls(&mut sealed)?;
            tls.process_new_packets().map_err(io::Error::other)?;
            match tls.reader().read_to_end(input) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                // All there was; or the daemon has closed its side.
                _ => {}
            }
        }
        Ok(())
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
        self.write_bytes(request.as_bytes())?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let read = self.read(&mut answer);
            // A daemon says nothing before it has heard hello: this ends with the head, unless it is a refusal.
            if read.is_err() || answer.len() > HEAD {
                break;
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        let mut lines = answer.lines();
        let status = lines.next().unwrap_or_default().strip_prefix("HTTP/1.1 ").unwrap_or("no HTTP");
        if !status.starts_with("101 ") {
            let words = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
            return Err(io::Error::other(format!("it does not speak WebSocket: {status} {words}")));
        }
        let header = |name: &str| {
            let mut headers = answer.lines().filter_map(|line| line.split_once(':'));
            headers.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        let proof = header("sec-websocket-accept") == Some(&websocket::accept(&key));
        if !proof || header("sec-websocket-protocol") != Some(SUBPROTOCOL) {
            return Err(io::Error::other("it speaks WebSocket, but is no daemon of Lockkeeper's"));
        }
        Ok(())
    }
}

/// The first of the host's addresses that answers.
fn dial(address: &Address) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (&*address.host, address.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, STEP) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn handshake(address: &Address, mut stream: &TcpStream) -> io::Result<ClientConnection> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(trusted()?)
        .with_no_client_auth();
    let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
    let mut tls = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    // What is written at once is as long as it is.
    tls.set_buffer_limit(None);
    while tls.is_handshaking() {
        tls.complete_io(&mut stream)?;
    }
    Ok(tls)
}

/// Who may vouch for a daemon: those whom `LOCKKEEPER_CA` names (a PEM file), or whom the system trusts.
fn trusted() -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match env::var_os("LOCKKEEPER_CA").filter(|path| !path.is_empty()) {
        Some(path) => {
            let wrong = |error: &dyn std::fmt::Display| {
                io::Error::other(format!("LOCKKEEPER_CA: {}: {error}", path.to_string_lossy()))
            };
            for certificate in CertificateDer::pem_file_iter(&path).map_err(|error| wrong(&error))? {
                roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
            }
        }
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    match roots.is_empty() {
        true => {
            Err(io::Error::other("nobody is trusted to vouch for the daemon: LOCKKEEPER_CA=FILE says who is"))
        }
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
