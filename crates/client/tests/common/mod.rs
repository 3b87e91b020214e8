//! A server for the tests: one thread around the service's machine, with a log in memory. It can be
//! killed and run again, with the same log and the same FIFOs.

#![allow(dead_code, reason = "not every suite needs all of it")]

use lockkeeper_core::Limits;
use lockkeeper_service::{
    Access, Action, ConnectionId, Fifo, Framing, Fresh, Hello, Origin, Rights, Server, ServerConfig, State,
    Ttl,
};
use lockkeeper_wire::{
    frame,
    v2::{ToServer, code},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{CWD, FileType, Mode, OFlags, fstat, mknodat, open},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
    time::{ClockId, clock_gettime},
};
use std::{
    collections::HashMap,
    env, fs,
    io::{IoSlice, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

static COUNT: AtomicU64 = AtomicU64::new(0);

pub(crate) struct TestServer {
    dir: PathBuf,
    setup: Setup,
    shared: Arc<Shared>,
    thread: Option<(UnixStream, JoinHandle<()>)>,
}

/// The commands to a test server.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) ttl: u64,
    /// Whether it passes FIFOs to local clients.
    pub(crate) fifo: bool,
    /// Serves a WebSocket too.
    pub(crate) network: bool,
    /// The one token that is good.
    pub(crate) token: Option<String>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { ttl: 10_000, fifo: true, network: false, token: None }
    }
}

#[derive(Default)]
struct Shared {
    /// The batches of all its lives.
    log: Mutex<Vec<Vec<u8>>>,
    address: Mutex<Option<SocketAddr>>,
    /// Sends every client a Goodbye with this code.
    goodbye: Mutex<Option<u32>>,
    token: Mutex<Option<String>>,
    /// It passes no FIFO any more.
    no_fifos: AtomicBool,
    /// It neither reads nor writes.
    frozen: AtomicBool,
    sessions: AtomicU64,
    pings: AtomicU64,
}

impl TestServer {
    pub(crate) fn start() -> Self {
        Self::with(Setup::default())
    }

    pub(crate) fn with(setup: Setup) -> Self {
        let number = COUNT.fetch_add(1, SeqCst);
        let dir = env::temp_dir().join(format!("lockkeeper-client-{}-{number}", process::id()));
        fs::create_dir(&dir).expect("a directory for the test");
        let shared = Arc::new(Shared::default());
        *shared.token.lock().unwrap() = setup.token.clone();
        let mut server = Self { dir, setup, shared, thread: None };
        server.run();
        server
    }

    pub(crate) fn url(&self) -> String {
        match *self.shared.address.lock().unwrap() {
            Some(address) => format!("ws://{address}"),
            None => format!("unix:{}", self.socket().display()),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("daemon.sock")
    }

    /// How many sessions it has.
    pub(crate) fn sessions(&self) -> u64 {
        self.shared.sessions.load(SeqCst)
    }

    /// Sessions from now on have leases.
    pub(crate) fn pass_no_fifos(&self) {
        self.shared.no_fifos.store(true, SeqCst);
    }

    /// The number of pings received.
    pub(crate) fn pings(&self) -> u64 {
        self.shared.pings.load(SeqCst)
    }

    pub(crate) fn set_token(&self, token: &str) {
        *self.shared.token.lock().unwrap() = Some(token.into());
    }

    /// It hears and says nothing any more, until it is thawed.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.shared.frozen.store(frozen, SeqCst);
        self.nudge();
    }

    /// Closes all connections with this code.
    pub(crate) fn goodbye(&self, code: u32) {
        *self.shared.goodbye.lock().unwrap() = Some(code);
        self.nudge();
    }

    fn nudge(&self) {
        if let Some((control, _)) = &self.thread {
            (&*control).write_all(b"!").unwrap();
        }
    }

    /// As `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some((control, thread)) = self.thread.take() {
            drop(control);
            thread.join().expect("the server does not panic");
        }
    }

    /// Runs it, with what its log has.
    pub(crate) fn run(&mut self) {
        let _ = fs::remove_file(self.socket());
        let listener = UnixListener::bind(self.socket()).expect("a socket");
        let mut address = self.shared.address.lock().unwrap();
        let network = self.setup.network.then(|| {
            let at = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
            let listener = TcpListener::bind(at).expect("the port is free");
            *address = Some(listener.local_addr().unwrap());
            listener
        });
        drop(address);
        let (control, ours) = UnixStream::pair().expect("a pair of sockets");
        let (setup, shared, dir) = (self.setup.clone(), Arc::clone(&self.shared), self.dir.clone());
        let thread = thread::spawn(move || {
            let mut state = State::new(1);
            for batch in &*shared.log.lock().unwrap() {
                state.apply_batch(batch, &mut Vec::new()).expect("it is its own log");
            }
            let config = ServerConfig {
                ttl: Ttl { default: setup.ttl, min: 1, max: 100_000 },
                limits: Limits::default(),
                sessions: 1000,
                buckets: 100,
                bytes: lockkeeper_service::Bytes::default(),
                backlog: 64 << 20,
                slice: 1000,
                hash: |secret| {
                    let mut hash = [0; 32];
                    hash[..16].copy_from_slice(secret);
                    hash
                },
            };
            let server = Server::new(state, config, now(), 0, None);
            let (peers, fifos) = (HashMap::new(), HashMap::new());
            let mut run = Run { server, setup, shared, dir, peers, fifos };
            run.actions();
            run.serve(&listener, network.as_ref(), &ours);
        });
        self.thread = Some((control, thread));
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000 + u64::try_from(time.tv_nsec).unwrap() / 1000
}

struct Run {
    server: Server,
    setup: Setup,
    shared: Arc<Shared>,
    dir: PathBuf,
    peers: HashMap<ConnectionId, Peer>,
    /// The read ends, by session.
    fifos: HashMap<u64, (OwnedFd, Fifo)>,
}

struct Peer {
    stream: Stream,
    input: Vec<u8>,
    frames: Option<lockkeeper_wire::websocket::Frames>,
    /// To be attached to the next write.
    descriptor: Option<OwnedFd>,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Run {
    fn serve(&mut self, listener: &UnixListener, network: Option<&TcpListener>, control: &UnixStream) {
        loop {
            let frozen = self.shared.frozen.load(SeqCst);
            let ids: Vec<_> = self.peers.keys().copied().filter(|_| !frozen).collect();
            let watched: Vec<_> = self.fifos.keys().copied().collect();
            let mut polled = vec![PollFd::new(control, PollFlags::IN)];
            if !frozen {
                polled.push(PollFd::new(listener, PollFlags::IN));
                polled.extend(network.map(|listener| PollFd::new(listener, PollFlags::IN)));
            }
            let first = polled.len();
            polled.extend(ids.iter().map(|id| PollFd::new(&self.peers[id].stream, PollFlags::IN)));
            let wake = self.server.next_wake().filter(|_| !frozen);
            let left = wake.map(|at| Duration::from_micros(at.saturating_sub(now())));
            // FIFOs are asked in turn: one without a writer is always ready.
            let left = left.unwrap_or(Duration::from_millis(20)).min(Duration::from_millis(20));
            poll(&mut polled, Some(&left.try_into().unwrap())).expect("poll works");
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(polled);
            if ready[0] && matches!((&*control).read(&mut [0; 64]), Ok(0) | Err(_)) {
                return;
            }
            if frozen {
                continue;
            }
            for (at, id) in ids.iter().enumerate() {
                if ready[first + at] {
                    self.read(*id);
                }
            }
            if ready[1] {
                let (stream, _) = listener.accept().unwrap();
                self.accept(Stream::Unix(stream));
            }
            if let (Some(listener), true) = (network, ready.len() > 2 && ready[2]) {
                let (stream, _) = listener.accept().unwrap();
                self.upgrade(stream);
            }
            if let Some(code) = self.shared.goodbye.lock().unwrap().take() {
                let all: Vec<_> = self.peers.keys().copied().collect();
                all.into_iter().for_each(|id| self.server.close(id, code, "goodbye"));
            }
            for session in watched {
                self.look_at_fifo(session);
            }
            self.server.wake(now()).unwrap();
            self.actions();
            self.speak();
            self.shared.sessions.store(self.server.state().session_count() as u64, SeqCst);
        }
    }

    fn upgrade(&mut self, mut stream: TcpStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte).unwrap_or(0) == 0 {
                return;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        assert_eq!(header("Sec-WebSocket-Protocol:"), "lockkeeper.v2");
        let accept = lockkeeper_wire::websocket::accept(header("Sec-WebSocket-Key:"));
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: lockkeeper.v2\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).unwrap();
        stream.set_nodelay(true).unwrap();
        self.accept(Stream::Tcp(stream));
    }

    fn accept(&mut self, stream: Stream) {
        let (origin, framing, frames) = match &stream {
            Stream::Unix(_) => (Origin::Local, Framing::Lengths, None),
            Stream::Tcp(_) => {
                let frames = lockkeeper_wire::websocket::Frames::new(true, frame::MAX);
                (Origin::Network, Framing::WebSocket, Some(frames))
            }
        };
        let random = COUNT.fetch_add(1, SeqCst) + 1;
        let mut secret = [7; 16];
        secret[..8].copy_from_slice(&random.to_be_bytes());
        let id = self.server.connect(origin, framing, Fresh { session: random, secret });
        // Numbers of connections begin anew with each life.
        self.peers.insert(id, Peer { stream, input: Vec::new(), frames, descriptor: None });
    }

    fn read(&mut self, id: ConnectionId) {
        let peer = self.peers.get_mut(&id).unwrap();
        let mut bytes = [0; 64 << 10];
        let count = match &mut peer.stream {
            Stream::Unix(stream) => stream.read(&mut bytes),
            Stream::Tcp(stream) => stream.read(&mut bytes),
        };
        let Ok(count @ 1..) = count else { return self.gone(id) };
        peer.input.extend_from_slice(&bytes[..count]);
        let mut input = std::mem::take(&mut peer.input);
        let mut start = 0;
        while let Some(length) = self.message(id, &mut input[start..]) {
            start += length;
        }
        input.drain(..start);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.input = input;
        }
    }

    fn message(&mut self, id: ConnectionId, input: &mut [u8]) -> Option<usize> {
        let mut frames = self.peers.get_mut(&id)?.frames.take();
        let taken = match &mut frames {
            None => {
                frame::first(input, frame::MAX).unwrap().map(|(message, length)| (message.to_vec(), length))
            }
            Some(frames) => match frames.first(input).unwrap() {
                Some((lockkeeper_wire::websocket::Incoming::Messages(message), length)) => {
                    Some((message.to_vec(), length))
                }
                Some((said, _)) => panic!("the client says {said:?}"),
                None => None,
            },
        };
        self.peers.get_mut(&id)?.frames = frames;
        let (messages, length) = taken?;
        let mut messages = &messages[..];
        while !messages.is_empty() {
            let (message, rest) =
                lockkeeper_wire::websocket::first_message(messages).expect("a whole message");
            self.on_message(id, message);
            messages = rest;
        }
        Some(length)
    }

    fn on_message(&mut self, id: ConnectionId, message: &[u8]) {
        let message = ToServer::decode(message).expect("the client speaks the protocol");
        if let ToServer::Ping { .. } = message {
            self.shared.pings.fetch_add(1, SeqCst);
        }
        let ToServer::Hello { version, features, hello, bucket, resume, ack, token, ttl, owner } = message
        else {
            return self.server.message(now(), id, message).unwrap();
        };
        let wanted = self.shared.token.lock().unwrap().clone();
        if wanted.is_some() && wanted.as_deref() != token {
            return self.server.close(id, code::UNAUTHORIZED, "the token is not good");
        }
        let hello = Hello { version, features, hello, bucket, resume, ack, ttl, owner };
        let access = Access { rights: Rights::ALL, subject: String::new() };
        self.server.hello(now(), id, hello, access).unwrap();
        self.actions();
    }

    fn actions(&mut self) {
        while let Some(action) = self.server.next_action() {
            match action {
                Action::PassFifo { connection, session }
                    if self.setup.fifo && !self.shared.no_fifos.load(SeqCst) =>
                {
                    let path = self.fifo_path(session);
                    let _ = fs::remove_file(&path);
                    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
                    let (read, fifo) = self.open_fifo(session).unwrap();
                    let write = open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
                    self.peers.get_mut(&connection).unwrap().descriptor = Some(write);
                    self.fifos.insert(session, (read, fifo));
                    self.server.fifo_passed(connection, fifo);
                }
                Action::PassFifo { .. } => {}
                Action::WatchFifo { session, .. } => {
                    if !self.fifos.contains_key(&session) {
                        let found = self.open_fifo(session).expect("it is there");
                        self.fifos.insert(session, found);
                    }
                }
                Action::RemoveFifo { session } => {
                    self.fifos.remove(&session);
                    let _ = fs::remove_file(self.fifo_path(session));
                }
            }
        }
    }

    fn fifo_path(&self, session: u64) -> PathBuf {
        self.dir.join(format!("{session:016x}.fifo"))
    }

    fn open_fifo(&self, session: u64) -> Option<(OwnedFd, Fifo)> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let read = open(self.fifo_path(session), flags, Mode::empty()).ok()?;
        let stat = fstat(&read).ok()?;
        Some((read, Fifo { device: stat.st_dev, inode: stat.st_ino, boot: [0; 16] }))
    }

    fn look_at_fifo(&mut self, session: u64) {
        let Some((read, fifo)) = self.fifos.get(&session) else { return };
        if let Ok(0) = rustix::io::read(read, &mut [0; 1]) {
            self.server.fifo_closed(session, *fifo).unwrap();
        }
    }

    fn speak(&mut self) {
        while let Some(round) = self.server.take_round() {
            if !round.batch.is_empty() {
                self.shared.log.lock().unwrap().push(round.batch);
            }
            self.server.round_done(round.number);
        }
        while let Some(id) = self.server.next_ready() {
            let output = self.server.output(id).to_vec();
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            let sent = match &mut peer.stream {
                Stream::Unix(stream) => send(stream, &output, peer.descriptor.take()),
                Stream::Tcp(stream) => stream.write_all(&output),
            };
            self.server.sent(id, output.len());
            if sent.is_err() || self.server.is_done(id) {
                self.gone(id);
            }
        }
    }

    fn gone(&mut self, id: ConnectionId) {
        self.peers.remove(&id);
        self.server.disconnect(id);
    }
}

fn send(stream: &mut UnixStream, bytes: &[u8], descriptor: Option<OwnedFd>) -> std::io::Result<()> {
    let Some(descriptor) = descriptor else { return stream.write_all(bytes) };
    let fds = [descriptor.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(&stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&bytes[sent..])
}
