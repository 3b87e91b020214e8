//! The session: its connection, the thread that reads it, and what happens when the daemon dies.

use crate::{
    endpoint::Endpoint,
    table::{Answer, Asker, Entry, Event, Request, Snapshot, Table, Told, send},
};
use lockkeeper_core::{Cause, Name};
use lockkeeper_wire::{Seal, ToClient, ToServer, VERSION, code, frame};
use std::{
    fmt,
    io::{self, Read, Write},
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long to wait before another attempt to reach a daemon that is not there.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a daemon may take to leave.
const LEAVING: Duration = Duration::from_secs(5);

/// Why there is no session, or no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No daemon can be reached, or it went away.
    Unreachable(Endpoint, io::Error),
    /// The daemon refuses, with one of the protocol's codes.
    Refused {
        /// Why, for programs.
        code: u32,
        /// Why, for people.
        message: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(endpoint, error) => write!(f, "no daemon at {endpoint}: {error}"),
            Self::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Whether a daemon was there that is about to leave: the next one can be asked.
    fn is_leaving(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match self {
            Self::Refused { code: why, .. } => *why == code::STOPPING,
            Self::Unreachable(_, error) => {
                matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
            }
        }
    }
}

/// A session with a daemon. When it is dropped, all it has is released.
pub struct Session(Arc<Shared>);

struct Shared {
    endpoint: Endpoint,
    program: Option<PathBuf>,
    bucket: String,
    state: Mutex<State>,
}

struct State {
    table: Table,
    /// What is to be written. Nothing while the daemon is gone: all that matters is in the table, and said again.
    outgoing: Vec<u8>,
    stream: Arc<UnixStream>,
    connected: bool,
    /// Somebody is writing, and will write what others add.
    writing: bool,
    id: String,
    secret: Seal,
    /// How long the daemon may be gone before what is held is taken for lost.
    patience: Duration,
    closed: bool,
}

impl Session {
    /// Opens a session in a bucket. Where no daemon answers at this user's own endpoint, `program` is started as one.
    ///
    /// # Errors
    ///
    /// If no daemon can be reached, or it refuses.
    pub fn open(endpoint: &Endpoint, program: Option<PathBuf>, bucket: &str) -> Result<Self, Error> {
        let unreachable = |error| Error::Unreachable(endpoint.clone(), error);
        let deadline = Instant::now() + LEAVING;
        let (reader, welcome) = loop {
            match greet(endpoint, program.as_deref(), bucket, None, None) {
                Err(error) if error.is_leaving() && Instant::now() < deadline => thread::sleep(PAUSE),
                done => break done?,
            }
        };
        let stream = reader.stream.try_clone().map_err(unreachable)?;
        let state = State {
            table: Table::default(),
            outgoing: Vec::new(),
            stream: Arc::new(stream),
            connected: true,
            writing: false,
            id: welcome.id,
            secret: welcome.secret,
            patience: welcome.patience,
            closed: false,
        };
        let (endpoint, bucket) = (endpoint.clone(), bucket.into());
        let shared = Arc::new(Shared { endpoint, program, bucket, state: Mutex::new(state) });
        let listening = Arc::clone(&shared);
        let listen = move || listening.listen(reader);
        thread::Builder::new()
            .name("lockkeeper-session".into())
            .spawn(listen)
            .map_err(|error| Error::Unreachable(shared.endpoint.clone(), error))?;
        Ok(Self(shared))
    }

    /// The session's public name.
    pub fn client_id(&self) -> String {
        self.0.lock().id.clone()
    }

    /// Makes a request, of which its listener will hear. Returns its number.
    pub fn request(&self, request: Request) -> u64 {
        let listener = Arc::clone(&request.listener);
        let made = self.0.say(|state| (!state.closed).then(|| state.table.ask(request, &mut state.outgoing)));
        made.unwrap_or_else(|| {
            listener(Event::Broken(Cause::Lost));
            0
        })
    }

    /// Releases a lock, or aborts its request. `false` if it was over already.
    pub fn release(&self, rid: u64) -> bool {
        self.0.say(|state| state.table.give_up(rid, &mut state.outgoing))
    }

    /// The held locks and waiting requests of the bucket, or of one name of it.
    ///
    /// # Errors
    ///
    /// If the daemon goes away, or refuses.
    pub fn query(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.wait(|asker| self.ask_state(name, false, asker)).map(|snapshot| snapshot.entries)
    }

    /// The same, and the cycles of requests that wait for each other.
    ///
    /// # Errors
    ///
    /// If the daemon goes away, or refuses.
    pub fn inspect(&self, name: Option<&Name>) -> Result<Snapshot, Error> {
        self.wait(|asker| self.ask_state(name, true, asker))
    }

    /// As [`query`](Self::query), without waiting: `then` is called on the session's thread, and must not wait for anything.
    pub fn query_then(&self, name: Option<&Name>, then: impl FnOnce(Answer) + Send + 'static) {
        self.ask_state(name, false, Box::new(then));
    }

    /// As [`inspect`](Self::inspect), without waiting: `then` is called on the session's thread, and must not wait for anything.
    pub fn inspect_then(&self, name: Option<&Name>, then: impl FnOnce(Answer) + Send + 'static) {
        self.ask_state(name, true, Box::new(then));
    }

    fn ask_state(&self, name: Option<&Name>, deadlocks: bool, asker: Asker) {
        self.ask(|rid| ToServer::Query { rid, name: name.map(Name::as_bytes), deadlocks }, asker);
    }

    /// Breaks every lock of a name.
    ///
    /// # Errors
    ///
    /// If the daemon goes away, or refuses.
    pub fn force_release(&self, name: &Name) -> Result<(), Error> {
        self.wait(|asker| self.force_release_then(name, asker)).map(drop)
    }

    /// The same, without waiting: `then` is called on the session's thread, and must not wait for anything.
    pub fn force_release_then(&self, name: &Name, then: impl FnOnce(Answer) + Send + 'static) {
        self.ask(|rid| ToServer::ForceRelease { rid, name: name.as_bytes() }, Box::new(then));
    }

    fn wait(&self, ask: impl FnOnce(Asker)) -> Result<Snapshot, Error> {
        let (sender, answer) = mpsc::channel();
        ask(Box::new(move |answer| _ = sender.send(answer)));
        let gone = || Err((0, "the daemon went away".into()));
        match answer.recv().unwrap_or_else(|_| gone()) {
            Ok(snapshot) => Ok(snapshot),
            Err((0, why)) => {
                let error = io::Error::new(io::ErrorKind::ConnectionReset, why);
                Err(Error::Unreachable(self.0.endpoint.clone(), error))
            }
            Err((code, message)) => Err(Error::Refused { code, message }),
        }
    }

    fn ask<'a>(&self, message: impl FnOnce(u64) -> ToServer<'a>, asker: Asker) {
        let unasked = self.0.say(|state| {
            if !state.connected {
                return Some(asker);
            }
            state.table.question(asker, message, &mut state.outgoing);
            None
        });
        if let Some(asker) = unasked {
            asker(Err((0, "there is no daemon at the moment".into())));
        }
    }

    /// Ends the session, and all it has with it: listeners are told that it is lost.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        let _ = state.stream.shutdown(Shutdown::Both);
    }

    /// The connection, for a child process to inherit: the session lasts as long as somebody has it open.
    ///
    /// # Errors
    ///
    /// If there are no file descriptors left.
    pub fn connection(&self) -> io::Result<OwnedFd> {
        self.0.lock().stream.try_clone().map(OwnedFd::from)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table and sends what that says to the daemon.
    fn say<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state);
        self.flush(state);
        result
    }

    /// Writes what there is, unless somebody does already. The mutex is not held meanwhile: a daemon that wants its
    /// answers to be read first must find somebody who does.
    fn flush<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        if state.writing {
            return;
        }
        state.writing = true;
        loop {
            if !state.connected {
                state.outgoing.clear();
            }
            if state.outgoing.is_empty() {
                break;
            }
            let (bytes, stream) = (std::mem::take(&mut state.outgoing), Arc::clone(&state.stream));
            drop(state);
            let written = (&*stream).write_all(&bytes);
            state = self.lock();
            // That the daemon is gone is noticed by who reads.
            if written.is_err() && Arc::ptr_eq(&stream, &state.stream) {
                state.connected = false;
            }
        }
        state.writing = false;
    }

    /// The session's thread.
    fn listen(&self, mut reader: Reader) {
        loop {
            while let Ok(()) = reader.read(|message| {
                let told = self.lock().table.hear(message);
                told.tell();
            }) {}
            let told = {
                let mut state = self.lock();
                state.connected = false;
                state.table.disconnected()
            };
            told.into_iter().for_each(Told::tell);
            match self.come_back() {
                Some(again) => reader = again,
                None => break,
            }
        }
        let told = {
            let mut state = self.lock();
            state.closed = true;
            state.table.lose()
        };
        told.into_iter().for_each(Told::tell);
    }

    /// Goes on with the session at the daemon that is there next. `None` if there is none in time, or it is another one.
    fn come_back(&self) -> Option<Reader> {
        let deadline = Instant::now() + self.lock().patience;
        loop {
            let resume = {
                let state = self.lock();
                if state.closed {
                    return None;
                }
                (state.id.clone(), state.secret)
            };
            match greet(&self.endpoint, self.program.as_deref(), &self.bucket, Some(&resume), Some(deadline))
            {
                Ok((_, welcome)) if !welcome.resumed => return None,
                _ if Instant::now() >= deadline => return None,
                Ok((reader, _)) => {
                    let mut state = self.lock();
                    if state.closed {
                        return None;
                    }
                    state.stream = Arc::new(reader.stream.try_clone().ok()?);
                    state.connected = true;
                    let State { table, outgoing, .. } = &mut *state;
                    outgoing.clear();
                    table.reclaim(outgoing);
                    self.flush(state);
                    return Some(reader);
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

/// What a daemon says of a session.
struct Welcome {
    id: String,
    secret: Seal,
    patience: Duration,
    resumed: bool,
}

/// Connects and says hello. A daemon that does not answer is waited for until the deadline.
fn greet(
    endpoint: &Endpoint,
    program: Option<&Path>,
    bucket: &str,
    resume: Option<&(String, Seal)>,
    deadline: Option<Instant>,
) -> Result<(Reader, Welcome), Error> {
    let unreachable = |error| Error::Unreachable(endpoint.clone(), error);
    let mut stream = endpoint.connect(program).map_err(unreachable)?;
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // A socket takes no timeout of zero.
    stream.set_read_timeout(left.map(|left| left.max(Duration::from_millis(1)))).map_err(unreachable)?;
    let resume = resume.map(|(id, secret)| (&id[..], *secret));
    let mut out = Vec::new();
    send(&mut out, &ToServer::Hello { version: VERSION, bucket, resume, token: None });
    stream.write_all(&out).map_err(unreachable)?;
    let mut reader = Reader { stream, input: Vec::new() };
    let welcome = loop {
        // Only this: what came with it is news, for who listens.
        match reader.first(welcome).map_err(unreachable)? {
            Some(welcome) => break welcome?,
            None => reader.fill().map_err(unreachable)?,
        }
    };
    reader.stream.set_read_timeout(None).map_err(unreachable)?;
    Ok((reader, welcome))
}

fn welcome(message: ToClient<'_>) -> Result<Welcome, Error> {
    match message {
        ToClient::Welcome { client_id, secret, ttl, resumed, .. } => Ok(Welcome {
            id: client_id.into(),
            secret,
            // Before the daemon gives up on this side, this side has given up.
            patience: Duration::from_millis(ttl) * 3 / 4,
            resumed,
        }),
        ToClient::Goodbye { code, message } => Err(Error::Refused { code, message: message.into() }),
        _ => Err(Error::Refused { code: 0, message: "the daemon does not speak as a daemon does".into() }),
    }
}

/// Messages out of a stream of bytes.
struct Reader {
    stream: UnixStream,
    input: Vec<u8>,
}

impl Reader {
    /// Hands on every whole message that has come, then waits for more.
    fn read(&mut self, mut hear: impl FnMut(ToClient<'_>)) -> io::Result<()> {
        let mut start = 0;
        while let Some((message, length)) = Self::message(&self.input[start..])? {
            hear(message);
            start += length;
        }
        self.input.drain(..start);
        self.fill()
    }

    /// Hands on the first message, if it is whole.
    fn first<R>(&mut self, hear: impl FnOnce(ToClient<'_>) -> R) -> io::Result<Option<R>> {
        let Some((message, length)) = Self::message(&self.input)? else { return Ok(None) };
        let heard = hear(message);
        self.input.drain(..length);
        Ok(Some(heard))
    }

    /// The first message of these bytes, and its length.
    fn message(bytes: &[u8]) -> io::Result<Option<(ToClient<'_>, usize)>> {
        let invalid = |error: String| io::Error::new(io::ErrorKind::InvalidData, error);
        let first = frame::first(bytes, frame::MAX_TO_CLIENT).map_err(|error| invalid(error.to_string()))?;
        let Some((message, length)) = first else { return Ok(None) };
        let message = ToClient::decode(message).map_err(|error| invalid(error.to_string()))?;
        Ok(Some((message, length)))
    }

    /// Waits for bytes.
    fn fill(&mut self) -> io::Result<()> {
        let length = self.input.len();
        self.input.resize(length + (64 << 10), 0);
        let count = match self.stream.read(&mut self.input[length..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            other => other?,
        };
        self.input.truncate(length + count);
        Ok(())
    }
}
