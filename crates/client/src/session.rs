//! The session: its connection, the thread that reads it, and what happens when the daemon dies.

use crate::{
    endpoint::Endpoint,
    line::{Line, Reader},
    pulse::{self, Due, Pulse},
    table::{Answer, Asker, Entry, Event, Request, Snapshot, Table, Told, send},
};
use lockkeeper_core::{Cause, Name};
use lockkeeper_wire::{Seal, ToClient, ToServer, VERSION, code};
use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long to wait before another attempt to reach a daemon that is not there; on the network, longer each time, but not so
/// long that there would be few of them while locks are believed in.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 8;

/// How long who has asked looks out for the answer, before it sleeps. To wake a processor that sleeps can take as long.
const LOOK_OUT: Duration = Duration::from_micros(50);

/// Who gets the processor back so late has lost it to others, who need it: on a busy machine it is better to sleep.
const ROBBED: Duration = Duration::from_micros(500);

/// For how many times as long as it took in vain it is left out at most. For twice as many each time; for all, if robbed.
const DISCOURAGED: u32 = 64;

/// How often it looks, while it cannot reach the daemon, whether that still makes sense.
const LOOK: Duration = Duration::from_millis(100);

/// How long a daemon on the network may take to answer a hello.
const HELLO: Duration = Duration::from_secs(10);

/// How long one that is said bye may take to close the connection.
const BYE: Duration = Duration::from_secs(1);

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
pub struct Session {
    shared: Arc<Shared>,
    /// Closed when the session's thread has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

struct Shared {
    endpoint: Endpoint,
    program: Option<PathBuf>,
    bucket: String,
    state: Mutex<State>,
    ear: Mutex<Ear>,
}

/// Who has it hears the daemon, and tells listeners and askers in that order. Locked before the state.
struct Ear {
    reader: Reader,
    /// Until when it is not looked out for answers, and for how many times as long as it took in vain last.
    rest: Instant,
    pause: u32,
}

struct State {
    table: Table,
    /// What is to be written. Nothing while the daemon is gone: all that matters is in the table, and said again.
    outgoing: Vec<u8>,
    line: Arc<Line>,
    connected: bool,
    /// Somebody is writing, and will write what others add.
    writing: bool,
    id: String,
    secret: Seal,
    /// How long the daemon may be gone before what is held is taken for lost.
    patience: Duration,
    closed: bool,
    /// A child with which the session goes on, if this process ends before it.
    heir: Option<u32>,
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
        let pulse = welcome.pulse(&reader).map_err(unreachable)?;
        let state = State {
            table: Table::default(),
            outgoing: Vec::new(),
            line: Arc::clone(&reader.line),
            connected: true,
            writing: false,
            id: welcome.id,
            secret: welcome.secret,
            patience: pulse::belief(welcome.ttl),
            closed: false,
            heir: None,
        };
        let (endpoint, bucket) = (endpoint.clone(), bucket.into());
        let ear = Mutex::new(Ear { reader, rest: Instant::now(), pause: 1 });
        let shared = Arc::new(Shared { endpoint, program, bucket, state: Mutex::new(state), ear });
        let (ends, ended) = mpsc::channel();
        let listening = Arc::clone(&shared);
        let listen = move || {
            listening.listen(pulse);
            drop(ends);
        };
        thread::Builder::new()
            .name("lockkeeper-session".into())
            .spawn(listen)
            .map_err(|error| Error::Unreachable(shared.endpoint.clone(), error))?;
        Ok(Self { shared, ended: Mutex::new(ended) })
    }

    /// The session's public name.
    pub fn client_id(&self) -> String {
        self.shared.lock().id.clone()
    }

    /// Makes a request, of which its listener will hear. Returns its number.
    pub fn request(&self, request: Request) -> u64 {
        let listener = Arc::clone(&request.listener);
        let made =
            self.shared.say(|state| (!state.closed).then(|| state.table.ask(request, &mut state.outgoing)));
        let (rid, told) = made.unwrap_or((0, Told::Listener(listener, Event::Broken(Cause::Lost))));
        told.tell();
        rid
    }

    /// Releases a lock, or aborts its request. `false` if it was over already.
    pub fn release(&self, rid: u64) -> bool {
        self.shared.say(|state| state.table.give_up(rid, false, &mut state.outgoing))
    }

    /// The same, of a request whose time is up: the daemon counts those.
    pub fn time_out(&self, rid: u64) -> bool {
        self.shared.say(|state| state.table.give_up(rid, true, &mut state.outgoing))
    }

    /// Releases a lock, or gives its request up, of which its listener is to hear no more. `false` if it was over already.
    pub fn let_go(&self, rid: u64) -> bool {
        self.shared.say(|state| state.table.let_go(rid, &mut state.outgoing))
    }

    /// Whether its daemon is on this machine, so that it may be worth to [look out](Self::look_out) for answers.
    pub fn is_near(&self) -> bool {
        self.shared.endpoint.socket().is_some()
    }

    /// Hears the daemon on this thread for some microseconds, or until it has `answered`. Who has just asked calls this before it
    /// sleeps: to wake a thread for an answer often takes longer than the answer.
    ///
    /// It returns early if the daemon is on the network, goes away, or is heard by another thread; and if such answers took
    /// long of late.
    pub fn look_out(&self, answered: impl Fn() -> bool) {
        if answered() {
            return;
        }
        let Some(mut ear) = self.shared.free_ear() else { return };
        let begun = Instant::now();
        if begun < ear.rest {
            return;
        }
        ear.overhear(|ear| {
            while !answered() {
                let (heard, took) = (self.shared.hear_some(ear)?, begun.elapsed());
                if heard && took < ROBBED {
                    ear.pause = 1;
                } else if took < LOOK_OUT {
                    thread::yield_now();
                } else {
                    ear.pause = if took < ROBBED { (2 * ear.pause).min(DISCOURAGED) } else { DISCOURAGED };
                    ear.rest = begun + took * ear.pause;
                    break;
                }
            }
            Ok(())
        });
    }

    /// Hears the daemon on this thread, and sleeps meanwhile, until it is `done` or that time has come. A thread that would sleep
    /// anyway does it here first: what it waits for then wakes one thread rather than two.
    ///
    /// It returns early if the daemon is on the network, goes away, or is heard by another thread: who is told of what is waited
    /// for must wake this thread, too.
    pub fn wait(&self, done: impl Fn() -> bool, until: Option<Instant>) {
        let Some(mut ear) = self.shared.free_ear() else { return };
        ear.overhear(|ear| {
            while !done() && (self.shared.hear_some(ear)? || ear.reader.line.sleep_until(until)) {}
            Ok(())
        });
    }

    /// The held locks and waiting requests of the bucket, or of one name of it.
    ///
    /// # Errors
    ///
    /// If the daemon goes away, or refuses.
    pub fn query(&self, name: Option<&Name>) -> Result<Vec<Entry>, Error> {
        self.answer(|asker| self.ask_state(name, false, asker)).map(|snapshot| snapshot.entries)
    }

    /// The same, and the cycles of requests that wait for each other.
    ///
    /// # Errors
    ///
    /// If the daemon goes away, or refuses.
    pub fn inspect(&self, name: Option<&Name>) -> Result<Snapshot, Error> {
        self.answer(|asker| self.ask_state(name, true, asker))
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
        self.answer(|asker| self.force_release_then(name, asker)).map(drop)
    }

    /// The same, without waiting: `then` is called on the session's thread, and must not wait for anything.
    pub fn force_release_then(&self, name: &Name, then: impl FnOnce(Answer) + Send + 'static) {
        self.ask(|rid| ToServer::ForceRelease { rid, name: name.as_bytes() }, Box::new(then));
    }

    fn answer(&self, ask: impl FnOnce(Asker)) -> Result<Snapshot, Error> {
        let (sender, answer) = mpsc::channel();
        ask(Box::new(move |answer| _ = sender.send(answer)));
        let gone = || Err((0, "the daemon went away".into()));
        match answer.recv().unwrap_or_else(|_| gone()) {
            Ok(snapshot) => Ok(snapshot),
            Err((0, why)) => {
                let error = io::Error::new(io::ErrorKind::ConnectionReset, why);
                Err(Error::Unreachable(self.shared.endpoint.clone(), error))
            }
            Err((code, message)) => Err(Error::Refused { code, message }),
        }
    }

    fn ask<'a>(&self, message: impl FnOnce(u64) -> ToServer<'a>, asker: Asker) {
        let told = self.shared.say(|state| match state.connected {
            true => state.table.question(asker, message, &mut state.outgoing),
            false => Told::Asker(asker, Err((0, "there is no daemon at the moment".into()))),
        });
        told.tell();
    }

    /// Ends the session, and all it has with it: listeners are told that it is lost.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let line = Arc::clone(&state.line);
        if line.is_network() && state.connected {
            // It closes the connection. Who does that first can lose what is on its way.
            send(&mut state.outgoing, &ToServer::Bye);
            drop(state);
            self.shared.flush_aside();
            let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv_timeout(BYE);
        }
        line.shutdown();
    }

    /// Has the session last at least as long as a child of this process, with this daemon and those after it. On the network
    /// it does not.
    pub fn set_heir(&self, pid: u32) {
        self.shared.say(|state| {
            if !state.line.is_network() {
                state.heir = Some(pid);
                send(&mut state.outgoing, &ToServer::Heir { pid });
            }
        });
    }

    /// The connection to a daemon of this machine, for a child process to inherit: the session lasts as long as somebody
    /// has it open. On the network it does not, and there is none.
    ///
    /// # Errors
    ///
    /// If there are no file descriptors left.
    pub fn connection(&self) -> io::Result<Option<OwnedFd>> {
        let line = Arc::clone(&self.shared.lock().line);
        if line.is_network() { Ok(None) } else { line.as_fd().try_clone_to_owned().map(Some) }
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
            let (bytes, line) = (std::mem::take(&mut state.outgoing), Arc::clone(&state.line));
            drop(state);
            let written = line.write(&bytes);
            state = self.lock();
            // That the daemon is gone is noticed by who reads.
            if written.is_err() && Arc::ptr_eq(&line, &state.line) {
                state.connected = false;
            }
        }
        state.writing = false;
    }

    /// The same on another thread: who reads must not wait for a daemon that wants to be read.
    fn flush_aside(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let flush = move || shared.flush(shared.lock());
        // If there are no threads to be had, what there is goes with what is said next.
        let _ = thread::Builder::new().name("lockkeeper-write".into()).spawn(flush);
    }

    fn ear(&self) -> MutexGuard<'_, Ear> {
        self.ear.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session's thread.
    fn listen(self: &Arc<Self>, mut pulse: Option<Pulse>) {
        loop {
            let line = Arc::clone(&self.ear().reader.line);
            let _ = self.hear(&line, &mut pulse);
            line.shutdown();
            let (told, patience) = {
                let mut state = self.lock();
                state.connected = false;
                (state.table.disconnected(), state.patience)
            };
            told.into_iter().for_each(Told::tell);
            let deadline = pulse.map_or_else(|| pulse::now() + patience, |pulse| pulse.deadline());
            match self.come_back(deadline) {
                Some(again) => (self.ear().reader, pulse) = again,
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

    /// Hears what the daemon says, and shows it that this side is there, until the connection ends.
    fn hear(self: &Arc<Self>, line: &Line, pulse: &mut Option<Pulse>) -> io::Result<()> {
        loop {
            self.ear().reader.read(|message| match (&message, &mut *pulse) {
                (ToClient::Pong, Some(pulse)) => pulse.pong(),
                _ => self.tell(message),
            })?;
            let due = match pulse {
                Some(pulse) => pulse.wait(line)?,
                None => {
                    line.sleep();
                    Due::Read
                }
            };
            match due {
                Due::Read => _ = self.ear().reader.try_fill()?,
                Due::Ping => {
                    send(&mut self.lock().outgoing, &ToServer::Ping);
                    self.flush_aside();
                }
                Due::Lost => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    fn tell(&self, message: ToClient<'_>) {
        let told = self.lock().table.hear(message);
        told.tell();
    }

    /// Hears what there is. `false` if there is nothing: neither in the connection, nor left by who had the ear before.
    fn hear_some(&self, ear: &mut Ear) -> io::Result<bool> {
        let came = ear.reader.try_fill()?;
        let heard = ear.reader.read(|message| self.tell(message))?;
        Ok(came || heard)
    }

    /// The ear, unless somebody has it.
    fn free_ear(&self) -> Option<MutexGuard<'_, Ear>> {
        match self.ear.try_lock() {
            Ok(ear) => Some(ear),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Goes on with the session at the daemon that is there next. `None` if there is none in time, or it is another one.
    fn come_back(self: &Arc<Self>, deadline: Duration) -> Option<(Reader, Option<Pulse>)> {
        let mut pause = PAUSE;
        let longest = LONGEST_PAUSE.min(self.lock().patience / ATTEMPTS);
        loop {
            if self.lock().closed || pulse::now() >= deadline {
                return None;
            }
            match self.greet_again(deadline) {
                Ok((_, welcome)) if !welcome.resumed => return None,
                Ok((reader, welcome)) if pulse::now() < deadline => {
                    let pulse = welcome.pulse(&reader).ok()?;
                    let mut state = self.lock();
                    if state.closed {
                        return None;
                    }
                    state.line = Arc::clone(&reader.line);
                    (state.connected, state.patience) = (true, pulse::belief(welcome.ttl));
                    let State { table, outgoing, heir, .. } = &mut *state;
                    outgoing.clear();
                    if let Some(pid) = *heir {
                        send(outgoing, &ToServer::Heir { pid });
                    }
                    table.reclaim(outgoing);
                    drop(state);
                    self.flush_aside();
                    return Some((reader, pulse));
                }
                Ok(_) => return None,
                Err(_) => {
                    thread::sleep(pause.min(deadline.saturating_sub(pulse::now())));
                    if self.endpoint.socket().is_none() {
                        pause = (pause * 2).min(longest);
                    }
                }
            }
        }
    }

    /// Says hello on another thread: a name may take long to be looked up, and holders must be told in time.
    fn greet_again(self: &Arc<Self>, deadline: Duration) -> Result<(Reader, Welcome), Error> {
        let (sender, greeted) = mpsc::channel();
        let shared = Arc::clone(self);
        let greet = move || {
            let resume = {
                let state = shared.lock();
                (state.id.clone(), state.secret)
            };
            let Shared { endpoint, program, bucket, .. } = &*shared;
            let _ = sender.send(greet(endpoint, program.as_deref(), bucket, Some(&resume), Some(deadline)));
        };
        let unreachable = |error| Error::Unreachable(self.endpoint.clone(), error);
        thread::Builder::new().name("lockkeeper-hello".into()).spawn(greet).map_err(unreachable)?;
        loop {
            match greeted.recv_timeout(LOOK) {
                Ok(greeted) => return greeted,
                Err(mpsc::RecvTimeoutError::Timeout) if !self.lock().closed && pulse::now() < deadline => {}
                Err(_) => return Err(unreachable(io::ErrorKind::TimedOut.into())),
            }
        }
    }
}

impl Ear {
    /// Lets this thread hear the daemon instead of the session's, which sleeps on meanwhile; unless the connection ends: that is
    /// its business.
    fn overhear(&mut self, hear: impl FnOnce(&mut Self) -> io::Result<()>) {
        let line = Arc::clone(&self.reader.line);
        if line.ring(false) {
            let _ = hear(self);
            line.ring(true);
        }
    }
}

/// What a daemon says of a session.
struct Welcome {
    id: String,
    secret: Seal,
    ttl: Duration,
    resumed: bool,
    /// When it was asked.
    hello: Duration,
}

impl Welcome {
    /// What keeps the session alive, if it takes anything.
    fn pulse(&self, reader: &Reader) -> io::Result<Option<Pulse>> {
        reader.line.is_network().then(|| Pulse::new(self.hello, self.ttl)).transpose()
    }
}

/// Connects and says hello. A daemon that does not answer is waited for until the deadline.
fn greet(
    endpoint: &Endpoint,
    program: Option<&Path>,
    bucket: &str,
    resume: Option<&(String, Seal)>,
    deadline: Option<Duration>,
) -> Result<(Reader, Welcome), Error> {
    let unreachable = |error| Error::Unreachable(endpoint.clone(), error);
    let token = endpoint.token().map_err(unreachable)?;
    let mut reader = Reader::new(endpoint.connect(program).map_err(unreachable)?);
    let left = deadline.map(|deadline| deadline.saturating_sub(pulse::now()));
    let left = left.or(reader.line.is_network().then_some(HELLO));
    // A socket takes no timeout of zero.
    reader.line.set_read_timeout(left.map(|left| left.max(Duration::from_millis(1)))).map_err(unreachable)?;
    let resume = resume.map(|(id, secret)| (&id[..], *secret));
    let mut out = Vec::new();
    send(&mut out, &ToServer::Hello { version: VERSION, bucket, resume, token: token.as_deref() });
    let hello = pulse::now();
    reader.line.write(&out).map_err(unreachable)?;
    let welcome = loop {
        // Only this: what came with it is news, for who listens.
        match reader.first(|message| welcome(message, hello)).map_err(unreachable)? {
            Some(welcome) => break welcome?,
            None => reader.fill().map_err(unreachable)?,
        }
    };
    reader.line.set_read_timeout(None).map_err(unreachable)?;
    Ok((reader, welcome))
}

fn welcome(message: ToClient<'_>, hello: Duration) -> Result<Welcome, Error> {
    match message {
        ToClient::Welcome { client_id, secret, ttl, resumed, .. } => {
            let ttl = Duration::from_millis(ttl);
            Ok(Welcome { id: client_id.into(), secret, ttl, resumed, hello })
        }
        ToClient::Goodbye { code, message } => Err(Error::Refused { code, message: message.into() }),
        _ => Err(Error::Refused { code: 0, message: "the daemon does not speak as a daemon does".into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::Mode;
    use lockkeeper_wire::frame;
    use std::{
        env, fs,
        io::{Read, Write},
        os::unix::net::UnixListener,
        process,
        sync::mpsc,
    };

    /// The session's thread reads first and tells then. Who takes the ear in between must not go to sleep on what it was told.
    #[test]
    fn what_another_thread_has_read_is_heard_before_anybody_sleeps() {
        let socket = env::temp_dir().join(format!("lockkeeper-session-{}.sock", process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut say = |message: ToClient<'_>| {
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0, "each message comes in one piece");
                let mut out = Vec::new();
                frame::append(&mut out, |out| message.encode(out));
                stream.write_all(&out).unwrap();
            };
            let client_id = "0123456789abcdef";
            say(ToClient::Welcome {
                version: VERSION,
                client_id,
                secret: [0; 16],
                ttl: 10_000,
                resumed: false,
            });
            say(ToClient::Granted { rid: 1, token: 42, receipt: [0; 16] });
            stream
        });
        let endpoint = format!("unix:{}", socket.display()).parse().unwrap();
        let session = Session::open(&endpoint, None, "default").unwrap();
        let mut ear = session.shared.ear();
        let (told, tells) = mpsc::channel();
        session.request(Request {
            scope: vec![(Name::from("a"), Mode::Exclusive)],
            flags: lockkeeper_wire::Flags::default(),
            nested_in: None,
            info: None,
            listener: Arc::new(move |event| told.send(event).unwrap()),
        });
        ear.reader.fill().unwrap();
        let _stream = daemon.join().unwrap();
        assert!(tells.try_recv().is_err(), "it was read, and nobody was told");
        assert!(session.shared.hear_some(&mut ear).unwrap());
        assert!(matches!(tells.try_recv(), Ok(Event::Granted { token: 42, .. })));
        assert!(!session.shared.hear_some(&mut ear).unwrap());
        drop(ear);
        fs::remove_file(socket).unwrap();
    }
}
