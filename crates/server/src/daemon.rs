//! The daemon: connects the service's state machine with its log, sockets and FIFOs.
//!
//! For every input it reserves room in the log, passes the input to the state machine, and has the
//! round committed. A round is committed after all readable connections have been read, so one
//! write to the log serves them all.

use crate::{
    Config, Error,
    audit::{Record, shown},
    clock,
    connection::Peer,
    fifo::{self, Fifos, Life},
    gate::Gate,
    metrics,
    snapshot::{self, Progress, Snapshot},
    unfinished::Unfinished,
    users::Subject,
};
use lockkeeper_log::{Full, Log, Mark, Priority};
use lockkeeper_service::{
    Access, Action, BATCH, ConnectionId, Damaged, Fifo, Framing, Fresh, Hello, Micros, Origin, Round, Server,
    ServerConfig, SessionId, State, Ttl, replica::Head,
};
use lockkeeper_wire::v2::{Secret, ToServer, code};
use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    rc::Rc,
    task::Waker,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, task::AbortHandle};

/// Bytes that a record takes beyond the message that it comes from: headers, hashes, an end for
/// each session is less.
const RECORD: usize = 1 << 10;

/// How long a change that no client waits for may stay uncommitted.
const LAZY: Duration = Duration::from_millis(5);

/// Tokens that may be given out before the mark has to be set again.
const TOKENS: u64 = 1 << 24;

/// Bytes of a snapshot that are written at a time.
const SLICE: usize = 128 << 10;

/// The log is replaced by a snapshot when it has so many bytes, or as many as the snapshot before
/// had, twice over.
const SNAPSHOT_AT: u64 = 64 << 20;

/// While so many bytes wait for a client, it is not read.
const HIGH_WATER: usize = 256 << 10;

/// The interval for checking slow changes: the mark, and a full disk.
const LOOK: Duration = Duration::from_secs(2);

/// Bytes kept for releases and ends on a full disk.
const RESERVE: u64 = 4 << 20;

/// Bytes of it that sessions whose lease has expired leave to releases.
const SPARE: usize = 256 << 10;

const SEGMENT: u64 = 64 << 20;

pub(crate) struct Daemon {
    server: Server,
    /// None where daemons share the log of a store: then `fleet` commits.
    log: Option<Log>,
    shared: bool,
    /// Another daemon leads: nothing of this one is true any more.
    deposed: bool,
    state_dir: PathBuf,
    fifos: Fifos,
    /// FIFOs that are to be watched: those with a reader until they close, the others are asked
    /// again.
    to_watch: Vec<(SessionId, Fifo, Option<Reader>)>,
    /// The tasks that watch FIFOs, by session.
    watches: HashMap<SessionId, AbortHandle>,
    /// Counts the FIFOs that are open, and how many may be: clients need descriptors, too, to come
    /// back.
    readers: Rc<()>,
    max_readers: usize,
    max_descriptors: usize,
    /// The tasks of connections that sleep.
    wakers: HashMap<ConnectionId, Waker>,
    /// Write ends of FIFOs on their way to clients.
    descriptors: HashMap<ConnectionId, OwnedFd>,
    /// How many connections ended their turn though they have more to do.
    unfinished_turns: usize,
    gate: Rc<Gate>,
    /// The tokens of connections on the network.
    tokens: HashMap<ConnectionId, Box<str>>,
    unfinished: Unfinished,
    signals: Rc<Signals>,
    ttl: Ttl,
    sync: bool,
    /// The number of grants when the mark was last checked.
    granted_at_mark: u64,
    snapshot_at: u64,
    snapshot: Option<Snapshot>,
    /// The machine crashed, and until then nothing is granted. Set until the log knows that this is
    /// done.
    unsettled: Option<Micros>,
    /// The deadline that is waited for.
    first_deadline: Option<Micros>,
    stopping: bool,
    /// When it last had a session.
    busy: Instant,
    failure: Option<Error>,
    record: Record,
}

/// The read end of a FIFO, counted as long as it is open.
struct Reader {
    fifo: OwnedFd,
    _counted: Rc<()>,
}

/// The wake-ups of the daemon's own tasks.
#[derive(Default)]
pub(crate) struct Signals {
    /// Something is to be committed.
    pub(crate) commit: Notify,
    /// There are records to commit, and no client waits for them.
    lazy: Notify,
    /// There is a deadline, or an earlier one than before.
    deadline: Notify,
    /// There is a FIFO to watch.
    watch: Notify,
    /// The daemon cannot go on.
    failed: Notify,
}

/// The sender of a Hello.
pub(crate) enum Sender {
    /// A client of this daemon's: its credentials are in the Hello.
    Client(Subject),
    /// A client of another daemon, which has checked them.
    Relayed(Access),
}

impl Daemon {
    /// Leads with a state that it shares with other daemons. If the store was restored from a
    /// backup, the state may lack its end: it is treated as after a crash of the machine, until the
    /// head says that earlier leases have expired.
    pub(crate) fn lead(
        config: &Config,
        gate: Rc<Gate>,
        state: State,
        head: Option<&Head>,
    ) -> Result<Self, Error> {
        let (blind, tokens) = head.map_or((0, 0), |head| (head.blind, head.lost_tokens()));
        let fifos = Fifos::open(&config.state_dir, clock::boot_id());
        let fifos = fifos.map_err(|error| Error::File(config.state_dir.join("fifo"), error))?;
        let (server_config, now) = (server_config(config), clock::now());
        let blind_until = (blind > 0).then(|| now.saturating_add(blind.saturating_mul(1000)));
        let mut server = Server::new(state, server_config, now, clock::wall(), blind_until);
        if blind > 0 {
            tracing::warn!(wait_ms = blind, "the store was restored: waiting for earlier leases to expire");
            let recovered = server.recover_from_crash(tokens, BATCH);
            recovered.map_err(|damaged| Unread::from(damaged).of(&config.state_dir))?;
        }
        Ok(Self { shared: true, ..Self::new(config, gate, server, fifos) })
    }

    fn new(config: &Config, gate: Rc<Gate>, server: Server, fifos: Fifos) -> Self {
        Self {
            server,
            log: None,
            shared: false,
            deposed: false,
            state_dir: config.state_dir.clone(),
            fifos,
            to_watch: Vec::new(),
            watches: HashMap::new(),
            readers: Rc::default(),
            max_readers: max_descriptors() / 2,
            max_descriptors: max_descriptors(),
            wakers: HashMap::new(),
            descriptors: HashMap::new(),
            unfinished_turns: 0,
            gate,
            tokens: HashMap::new(),
            unfinished: Unfinished::new(config.bytes.all),
            signals: Rc::default(),
            ttl: ttl_of(config),
            sync: config.sync,
            granted_at_mark: 0,
            snapshot_at: SNAPSHOT_AT,
            snapshot: None,
            unsettled: None,
            first_deadline: None,
            stopping: false,
            busy: Instant::now(),
            failure: None,
            record: Record::new(),
        }
    }

    /// Recovers what the log has.
    pub(crate) fn start(config: &Config, gate: Rc<Gate>) -> Result<Self, Error> {
        let boot = clock::boot_id();
        let (mut log, recovered) = lockkeeper_log::open(lockkeeper_log::Config {
            dir: config.state_dir.clone(),
            segment_bytes: SEGMENT,
            sync: config.sync,
            boot_id: boot,
            reserve: RESERVE,
        })
        .map_err(Error::Log)?;
        if let Some(torn) = &recovered.torn {
            tracing::warn!(?torn, "removed the incomplete end of the log: it was never acknowledged");
        }
        let crash = recovered.crash;
        let state = replay(recovered).map_err(|why| why.of(&config.state_dir))?;
        let fifos = Fifos::open(&config.state_dir, boot);
        let fifos = fifos.and_then(|fifos| {
            fifos.remove_others(|session| state.session(session).is_some())?;
            Ok(fifos)
        });
        let fifos = fifos.map_err(|error| Error::File(config.state_dir.join("fifo"), error))?;
        let now = clock::now();
        let blind_until = crash.map(|crash| now.saturating_add(crash.mark.max_ttl_ms.saturating_mul(1000)));
        let mut server = Server::new(state, server_config(config), now, clock::wall(), blind_until);
        if let Some(crash) = crash {
            tracing::warn!(
                wait_ms = crash.mark.max_ttl_ms,
                "the machine crashed: ending earlier sessions, and waiting for their leases to expire"
            );
            // One record. The sessions end when there is room for that.
            log.reserve(RECORD, Priority::Release)
                .map_err(|full| Error::File(config.state_dir.clone(), full.0))?;
            let recovered = server.recover_from_crash(crash.mark.token_ceiling, 0);
            recovered.map_err(|damaged| Unread::from(damaged).of(&config.state_dir))?;
        }
        let mut daemon = Self { unsettled: blind_until, ..Self::new(config, gate, server, fifos) };
        let mark = |error| Error::File(config.state_dir.clone(), error);
        if !config.sync {
            let state = daemon.server.state();
            let token_ceiling = state.last_token().saturating_add(2 * TOKENS);
            // Includes sessions of an earlier daemon, which may have synced and set no mark.
            let max_ttl_ms = longest_lease(state).unwrap_or(0);
            log.set_mark(Mark { max_ttl_ms, token_ceiling }).map_err(mark)?;
        }
        daemon.log = Some(log);
        Ok(daemon)
    }

    /// Counts sessions, connections and locks, as Prometheus wants it.
    pub(crate) fn metrics(&self, buckets: bool) -> String {
        metrics::render(&self.server, buckets)
    }

    /// Why it should not be relied on just now.
    pub(crate) fn not_ready_reason(&self) -> Option<String> {
        self.server.not_ready_reason(clock::now())
    }

    pub(crate) fn connected(&self) -> usize {
        self.server.connection_count()
    }

    pub(crate) fn idle_for(&self) -> Duration {
        if self.server.state().session_count() == 0 { self.busy.elapsed() } else { Duration::ZERO }
    }

    /// Whether the log is where it was.
    pub(crate) fn has_state(&self) -> bool {
        self.log.as_ref().is_none_or(Log::is_in_place)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.server.state().session_count() == 0
    }

    pub(crate) fn connect(&mut self, origin: Origin, framing: Framing) -> ConnectionId {
        let session = loop {
            let id = u64::from_le_bytes(random());
            if self.server.state().session(id).is_none() {
                break id;
            }
        };
        // Where daemons share a log, a client may go to another machine's: it has a lease.
        let origin = if self.shared { Origin::Network } else { origin };
        self.server.connect(origin, framing, Fresh { session, secret: random() })
    }

    /// Credentials are checked by the daemon that has the connection.
    pub(crate) fn hello(&mut self, id: ConnectionId, message: ToServer<'_>, peer: &Peer) {
        let ToServer::Hello { version, features, hello, bucket, resume, ack, token, ttl, owner } = message
        else {
            return;
        };
        let (bucket, origin) = (peer.bucket(bucket), peer.origin);
        let access = match &peer.sender {
            Sender::Client(subject) => self.gate.admit(origin, subject, token, &bucket),
            Sender::Relayed(access) => Ok(access.clone()),
        };
        let access = match access {
            Ok(access) => access,
            Err(why) => {
                self.server.close(id, code::UNAUTHORIZED, &why);
                return self.changed();
            }
        };
        if !self.make_room(RECORD + bucket.len()) || !self.raise_mark(origin, ttl) {
            return;
        }
        let bucket = self.gate.bucket_of(origin, &bucket);
        let hello = Hello { version, features, hello, bucket: &bucket, resume, ack, ttl, owner };
        let now = self.tick();
        if !self.settle(now) {
            return;
        }
        self.server.set_crowded(self.is_short_of_descriptors().then_some(
            "the daemon reserves its last file descriptors for clients that reconnect (ulimit -n)",
        ));
        let done = self.server.hello(now, id, hello, access);
        self.check(done);
        if let Some(why) = self.server.take_refused_hello() {
            self.gate.record_refusal(peer.words(), &bucket, &why);
        }
        if let (Sender::Client(_), Some(token)) = (&peer.sender, token.filter(|_| self.gate.has_keys())) {
            self.tokens.insert(id, token.into());
        }
        if let Some(session) = self.server.session_of(id) {
            self.unwatch(session);
        }
        self.changed();
    }

    /// Bytes of the token that is kept of a connection.
    pub(crate) fn token_len(&self, id: ConnectionId) -> usize {
        self.tokens.get(&id).map_or(0, |token| token.len())
    }

    /// Whether only an eighth of the descriptors is left, besides those for the daemon's own files
    /// and sockets. Without this reserve, a process that opens sessions could take them all, and no
    /// client could resume.
    fn is_short_of_descriptors(&self) -> bool {
        let taken = self.server.connection_count() + Rc::strong_count(&self.readers) - 1;
        taken + OWN_DESCRIPTORS > self.max_descriptors - self.max_descriptors / 8
    }

    pub(crate) fn message(&mut self, id: ConnectionId, message: ToServer<'_>, length: usize) {
        if !self.make_room(RECORD + length) {
            return;
        }
        let now = self.tick();
        let done = self.server.message(now, id, message);
        self.check(done);
        self.changed();
    }

    /// The keys have changed. The rights of connected clients are derived from their tokens again,
    /// and sessions whose key was removed end.
    pub(crate) fn check_tokens(&mut self) {
        let now = self.tokens.iter().filter_map(|(&id, token)| {
            let session = self.server.session_of(id)?;
            let bucket = self.server.state().session(session)?.bucket;
            Some((id, session, self.gate.check_again(token, bucket)))
        });
        let now: Vec<_> = now.collect();
        for (id, session, rights) in now {
            match rights {
                Ok(Some(rights)) => self.server.set_rights(id, rights),
                Ok(None) => {}
                Err(()) if self.make_room(RECORD) => {
                    let why = "the key of its token was removed, or no longer covers this bucket";
                    let view = self.server.state().session(session);
                    let (by, bucket) = view.map_or(("", ""), |view| (view.owner, view.bucket));
                    let (by, client) = (shown(by), format!("{session:016x}"));
                    tracing::info!(target: "audit", by, client, bucket, why, "session ended");
                    let done = self.server.revoke(session, why);
                    self.check(done);
                }
                Err(()) => {}
            }
        }
        self.changed();
    }

    /// Goes on with a long answer.
    pub(crate) fn go_on(&mut self, id: ConnectionId) {
        self.server.go_on(id);
        self.changed();
    }

    /// Closes a connection for what it sent.
    pub(crate) fn reject(&mut self, id: ConnectionId, peer: &Peer, code: u32, why: &str) {
        let session = self.server.session_of(id).and_then(|session| self.server.state().session(session));
        let bucket = session.map_or("", |session| session.bucket);
        self.gate.record_refusal(peer.words(), bucket, why);
        self.server.close(id, code, why);
        self.changed();
    }

    /// A connection keeps so many bytes of messages and its token. If all keep too many, one is
    /// closed.
    pub(crate) fn set_unfinished(&mut self, id: ConnectionId, bytes: usize) {
        if let Some(longest) = self.unfinished.set(id, bytes) {
            self.server.close(longest, code::LIMIT, &self.unfinished.why());
            self.changed();
        }
    }

    /// The client closes its connection; its session continues.
    pub(crate) fn hang_up(&mut self, id: ConnectionId) {
        self.server.hang_up(id);
        self.changed();
    }

    /// Answers a ping of the transport.
    pub(crate) fn pong(&mut self, id: ConnectionId, write: impl FnOnce(&mut Vec<u8>)) {
        self.server.append(id, write);
        self.changed();
    }

    pub(crate) fn disconnect(&mut self, id: ConnectionId) {
        self.wakers.remove(&id);
        self.descriptors.remove(&id);
        self.tokens.remove(&id);
        self.unfinished.set(id, 0);
        if self.make_room(RECORD) {
            self.server.disconnect(id);
            self.changed();
        }
    }

    /// The time of an input.
    fn tick(&mut self) -> Micros {
        self.server.set_wall(clock::wall());
        clock::now()
    }

    /// The server, for what a connection sends and whether it is to be closed.
    pub(crate) fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    pub(crate) fn take_descriptor(&mut self, id: ConnectionId) -> Option<OwnedFd> {
        self.descriptors.remove(&id)
    }

    /// A connection sleeps until it has something to send.
    pub(crate) fn sleeps(&mut self, id: ConnectionId, waker: &Waker) {
        match self.wakers.get_mut(&id) {
            Some(known) => known.clone_from(waker),
            None => _ = self.wakers.insert(id, waker.clone()),
        }
    }

    /// How many connections have ended their turns before their work.
    pub(crate) fn unfinished_turns(&mut self) -> &mut usize {
        &mut self.unfinished_turns
    }

    /// A connection goes on by itself: nothing has to wake it.
    pub(crate) fn stays_awake(&mut self, id: ConnectionId) {
        self.wakers.remove(&id);
    }

    /// Makes sure that what an input may record fits. Without room for more, requests are refused,
    /// and releases are taken from a reserve. False if the daemon cannot go on.
    fn make_room(&mut self, bytes: usize) -> bool {
        self.find_room(bytes).unwrap_or_else(|full| {
            self.fail(Error::File(self.state_dir.clone(), full.0));
            false
        })
    }

    /// The same, where the daemon can go on without.
    fn find_room(&mut self, bytes: usize) -> Result<bool, Full> {
        if self.shared {
            return Ok(self.failure.is_none() && !self.deposed);
        }
        let Some(log) = self.log.as_mut().filter(|_| self.failure.is_none()) else { return Ok(false) };
        let needed = self.server.batch_len() + bytes;
        let why = log.reserve(needed, Priority::Normal).err();
        if why.is_some() {
            log.reserve(needed, Priority::Release)?;
        }
        self.server.set_full(why.map(|full| format!("{}: {full}", self.state_dir.display())));
        Ok(true)
    }

    /// Raises the mark before a client on the network is given a longer lease.
    fn raise_mark(&mut self, origin: Origin, wish: Option<u64>) -> bool {
        let ttl = self.ttl.choose(wish);
        let Some(log) = self.log.as_mut() else { return self.shared };
        let mark = log.mark();
        if self.sync || origin == Origin::Local || ttl <= mark.max_ttl_ms {
            return true;
        }
        match log.set_mark(Mark { max_ttl_ms: mark_of(self.ttl, ttl), ..mark }) {
            Ok(()) => true,
            Err(error) => {
                self.fail(Error::File(self.state_dir.clone(), error));
                false
            }
        }
    }

    /// Once earlier leases have expired, the crash of the machine is over. The log has to know
    /// before the first session is opened: the next daemon would end it. False if the daemon cannot
    /// go on.
    fn settle(&mut self, now: Micros) -> bool {
        if self.unsettled.is_none_or(|until| now < until) {
            return true;
        }
        self.unsettled = None;
        match self.log.as_mut().map(Log::settle_crash) {
            Some(Err(error)) => {
                self.fail(Error::File(self.state_dir.clone(), error));
                false
            }
            _ => true,
        }
    }

    /// An input was handled: what it recorded is to be committed.
    fn changed(&mut self) {
        self.record.take(&mut self.server);
        let urgent = if self.shared { self.server.is_awaited() } else { self.server.is_urgent() };
        if urgent {
            self.signals.commit.notify_one();
        } else if self.server.batch_len() > 0 {
            self.signals.lazy.notify_one();
        }
        let deadline = self.server.next_wake();
        if deadline != self.first_deadline {
            self.first_deadline = deadline;
            self.signals.deadline.notify_one();
        }
        self.act();
    }

    /// Does what only a driver can.
    fn act(&mut self) {
        while let Some(action) = self.server.next_action() {
            match action {
                Action::PassFifo { connection, session } => match self.fifos.make(session) {
                    Ok((writer, fifo)) => {
                        self.descriptors.insert(connection, writer);
                        self.server.fifo_passed(connection, fifo);
                        self.signals.commit.notify_one();
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot create a FIFO: the session gets a lease instead")
                    }
                },
                Action::WatchFifo { session, fifo } => self.watch_fifo(session, fifo),
                Action::RemoveFifo { session } => {
                    self.fifos.remove(session);
                    self.busy = Instant::now();
                    self.unwatch(session);
                }
            }
        }
    }

    /// A session without a connection lives as long as its FIFO has a writer.
    fn watch_fifo(&mut self, session: SessionId, fifo: Fifo) {
        // It may have ended, or have another connection by now.
        if !self.server.is_detached(session, fifo) {
            return;
        }
        let life = self.fifos.ask(session, fifo);
        #[cfg(feature = "sabotage")]
        let life = match self.server.state().session(session) {
            Some(view) => crate::sabotage::judge(life, session, view),
            None => life,
        };
        match life {
            Life::Dead => self.fifo_closed(session, fifo),
            Life::Alive(fifo_reader) => {
                let counted = Rc::clone(&self.readers);
                let room = Rc::strong_count(&counted) <= self.max_readers;
                let fifo_reader = fifo_reader.filter(|_| room);
                let reader = fifo_reader.map(|fifo| Reader { fifo, _counted: counted });
                self.watch_later(session, fifo, reader);
            }
            Life::Unverifiable => {
                let session_id = format!("{session:016x}");
                tracing::warn!(
                    session = session_id,
                    "cannot tell whether the client's process is alive: its FIFO was removed or replaced. If the process \
                     has exited, run: lockkeeper release --client {session_id}"
                );
                self.server.fifo_unverifiable(session);
                self.changed();
            }
            Life::Busy(error) => {
                tracing::warn!(%error, "cannot probe a FIFO: retrying");
                self.watch_later(session, fifo, None);
            }
        }
    }

    fn watch_later(&mut self, session: SessionId, fifo: Fifo, reader: Option<Reader>) {
        self.to_watch.push((session, fifo, reader));
        self.signals.watch.notify_one();
    }

    /// A session has ended, or has a connection.
    fn unwatch(&mut self, session: SessionId) {
        if let Some(watch) = self.watches.remove(&session) {
            watch.abort();
        }
    }

    fn fifo_closed(&mut self, session: SessionId, fifo: Fifo) {
        if self.make_room(RECORD) {
            self.tick();
            let done = self.server.fifo_closed(session, fifo);
            self.check(done);
            self.changed();
        }
    }

    /// Commits rounds until there is nothing left, and has connections send what that releases.
    fn commit(&mut self) {
        if self.shared {
            return self.signals.commit.notify_one();
        }
        while let Some(round) = self.server.take_round() {
            let Some(log) = self.log.as_mut().filter(|_| self.failure.is_none()) else { return };
            if !round.batch.is_empty() {
                log.append(&round.batch);
                if let Err(error) = log.commit() {
                    return self.fail(Error::File(self.state_dir.clone(), error));
                }
            }
            self.round_done(round.number);
        }
        self.raise_token_ceiling();
        self.go_on_with_snapshot();
    }

    /// A round is committed: connections send what that releases.
    pub(crate) fn round_done(&mut self, number: u64) {
        self.server.round_done(number);
        self.wake_ready();
    }

    /// Why the shared log takes nothing at all, or that it does again. Returns the number
    /// of the last message that needs no commit.
    pub(crate) fn set_stuck(&mut self, why: Option<String>) -> u64 {
        self.server.set_stuck(why);
        self.wake_ready();
        self.server.stateless()
    }

    /// The store has confirmed that this daemon leads: messages up to this one need nothing else.
    pub(crate) fn send_stateless(&mut self, last: u64) {
        self.server.send_stateless(last);
        self.wake_ready();
    }

    fn wake_ready(&mut self) {
        while let Some(id) = self.server.next_ready() {
            if let Some(waker) = self.wakers.get(&id) {
                waker.wake_by_ref();
            }
        }
        self.act();
    }

    /// Whether a connection is not to be read for now.
    pub(crate) fn is_crowded(&self, id: ConnectionId) -> bool {
        self.server.backlog(id) > HIGH_WATER || self.is_batch_full()
    }

    /// While so many bytes wait to be committed to a shared log, no connection is read: together
    /// with one more message, they fit into a transaction of etcd.
    fn is_batch_full(&self) -> bool {
        self.shared && self.server.batch_len() >= BATCH
    }

    /// Whether earlier leases that the log does not know may be valid.
    pub(crate) fn is_blind(&self) -> bool {
        self.server.is_blind(clock::now())
    }

    /// The next round to commit to the shared log.
    pub(crate) fn take_round(&mut self) -> Option<Round> {
        let was_full = self.is_batch_full();
        let round = self.server.take_round();
        if was_full {
            self.signals.deadline.notify_one();
            self.wakers.values().for_each(Waker::wake_by_ref);
        }
        round
    }

    /// Another daemon leads. Connections end: their clients resume there.
    pub(crate) fn depose(&mut self) {
        self.deposed = true;
        self.wakers.values().for_each(Waker::wake_by_ref);
    }

    pub(crate) fn is_deposed(&self) -> bool {
        self.deposed
    }

    pub(crate) fn signals(&self) -> Rc<Signals> {
        Rc::clone(&self.signals)
    }

    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// No token above the mark is given out.
    fn raise_token_ceiling(&mut self) {
        let granted = self.server.counts().granted;
        if self.sync || granted - self.granted_at_mark < TOKENS {
            return;
        }
        self.granted_at_mark = granted;
        let token_ceiling = self.server.state().last_token().saturating_add(2 * TOKENS);
        let Some(log) = self.log.as_mut() else { return };
        if let Err(error) = log.set_mark(Mark { token_ceiling, ..log.mark() }) {
            self.fail(Error::File(self.state_dir.clone(), error));
        }
    }

    /// Replaces a long log by a snapshot, a slice at a time. Nothing is uncommitted here.
    fn go_on_with_snapshot(&mut self) {
        let Some(log) = self.log.as_mut().filter(|_| self.failure.is_none()) else { return };
        let snapshot = match &mut self.snapshot {
            Some(snapshot) => snapshot,
            None if log.bytes_since_snapshot() < self.snapshot_at => return,
            none => match log.begin_snapshot().and_then(Snapshot::begin) {
                Ok(snapshot) => {
                    self.server.state_mut().begin_snapshot();
                    none.insert(snapshot)
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot begin a snapshot");
                    self.snapshot_at = log.bytes_since_snapshot() * 2;
                    return;
                }
            },
        };
        match snapshot.progress() {
            Ok(Progress::Finished(finished)) => {
                tracing::debug!(bytes = snapshot.bytes, "snapshot taken");
                self.snapshot_at = SNAPSHOT_AT.max(2 * snapshot.bytes);
                snapshot::remove(log.replace(finished));
                self.snapshot = None;
                return;
            }
            Ok(Progress::NextSlice) => {
                let mut slice = Vec::new();
                let last = self.server.state_mut().snapshot_slice(SLICE, &mut slice);
                snapshot.slice(slice, last);
            }
            Ok(Progress::Busy) => {}
            Err(error) => {
                tracing::warn!(%error, "abandoned the snapshot");
                self.server.state_mut().abandon_snapshot();
                self.snapshot_at = log.bytes_since_snapshot() * 2;
                self.snapshot = None;
                return;
            }
        }
        // It continues without input, too.
        self.signals.lazy.notify_one();
    }

    /// Ends sessions whose lease has expired at that time, and continues subscriptions. False if
    /// there is no room to end them: that can wait, and the rest of the reserve is for releases.
    fn expire(&mut self, now: Micros) -> bool {
        let before = self.server.batch_len();
        let mut limit = None;
        for more in [BATCH.saturating_sub(before), RECORD] {
            match self.find_room(more + SPARE) {
                Ok(true) => {
                    limit = Some(before + more);
                    break;
                }
                Ok(false) => return true,
                Err(_) => {}
            }
        }
        self.server.set_wall(clock::wall());
        let done = self.server.wake_within(now, limit.unwrap_or(0));
        self.check(done);
        self.changed();
        self.wake_ready();
        limit.is_some()
    }

    /// The longest lease in the mark falls when the sessions that had it have ended: after a crash
    /// of the machine, it is waited for.
    fn lower_mark(&mut self) {
        let Some(log) = self.log.as_mut().filter(|_| self.failure.is_none() && self.unsettled.is_none())
        else {
            return;
        };
        let mark = log.mark();
        if self.sync || mark.max_ttl_ms == 0 {
            return;
        }
        // Not below the default while there are any, or each that comes and goes has it set.
        let longest = longest_lease(self.server.state());
        let max_ttl_ms = longest.map_or(0, |ttl| mark_of(self.ttl, ttl.max(self.ttl.default)));
        if max_ttl_ms < mark.max_ttl_ms {
            // If it cannot be set, the wait is longer than it need be.
            let _ = log.set_mark(Mark { max_ttl_ms, ..mark });
        }
    }

    /// Stops: clients get a Goodbye, and recorded changes are committed.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        if self.failure.is_none() {
            self.server.stop();
            self.commit();
        }
    }

    /// Closes the log, so that it is trusted also after the machine is rebooted.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.commit();
        let Some(mut log) = self.log.take() else { return Ok(()) };
        let failed = |error| Error::File(self.state_dir.clone(), error);
        if longest_lease(self.server.state()).is_none() {
            log.set_mark(Mark { max_ttl_ms: 0, ..log.mark() }).map_err(failed)?;
        }
        drop(self.snapshot.take());
        log.close().map_err(failed)
    }

    fn check(&mut self, done: Result<(), Damaged>) {
        if let Err(error) = done {
            self.fail(Error::Damaged(self.state_dir.clone(), error.to_string()));
        }
    }

    fn fail(&mut self, error: Error) {
        tracing::error!(%error, "stopping after an error");
        self.failure.get_or_insert(error);
        self.signals.failed.notify_one();
    }
}

/// The daemon's own tasks. Ends when the daemon cannot go on.
pub(crate) async fn run(daemon: &Rc<RefCell<Daemon>>) {
    let signals = Rc::clone(&daemon.borrow().signals);
    let shared = daemon.borrow().shared;
    let commit = async {
        // Where the log is shared, `fleet` does it.
        if shared {
            std::future::pending::<()>().await;
        }
        loop {
            signals.commit.notified().await;
            daemon.borrow_mut().commit();
        }
    };
    let lazy = async {
        loop {
            signals.lazy.notified().await;
            tokio::time::sleep(LAZY).await;
            daemon.borrow_mut().commit();
        }
    };
    let settle = async {
        while let Some(until) = { daemon.borrow().unsettled } {
            tokio::time::sleep(Duration::from_micros(until.saturating_sub(clock::now()))).await;
            daemon.borrow_mut().settle(clock::now());
        }
        std::future::pending().await
    };
    let lower_mark = async {
        loop {
            tokio::time::sleep(LOOK).await;
            daemon.borrow_mut().lower_mark();
        }
    };
    daemon.borrow_mut().act();
    daemon.borrow_mut().commit();
    tokio::select! {
        biased;
        () = signals.failed.notified() => {}
        () = commit => {}
        () = lazy => {}
        () = watch_fifos(daemon, &signals) => {}
        () = watch_leases(daemon, &signals) => {}
        () = settle => {}
        () = lower_mark => {}
    }
}

async fn watch_fifos(daemon: &Rc<RefCell<Daemon>>, signals: &Signals) {
    loop {
        let to_watch = std::mem::take(&mut daemon.borrow_mut().to_watch);
        for (session, fifo, reader) in to_watch {
            if !daemon.borrow().server.is_detached(session, fifo) {
                continue;
            }
            let again = Rc::clone(daemon);
            let watch = tokio::task::spawn_local(async move {
                match reader {
                    Some(Reader { fifo, _counted }) => fifo::closed(fifo).await,
                    None => fifo::pause().await,
                }
                // Checked again: it may have a writer again, or another file may be there.
                let mut daemon = again.borrow_mut();
                daemon.watches.remove(&session);
                daemon.watch_fifo(session, fifo);
            });
            if let Some(before) = daemon.borrow_mut().watches.insert(session, watch.abort_handle()) {
                before.abort();
            }
        }
        signals.watch.notified().await;
    }
}

async fn watch_leases(daemon: &Rc<RefCell<Daemon>>, signals: &Signals) {
    loop {
        let next = daemon.borrow().server.next_wake();
        let Some(next) = next else {
            signals.deadline.notified().await;
            continue;
        };
        let left = next.saturating_sub(clock::now());
        if left > 0 {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_micros(left)) => {}
                () = signals.deadline.notified() => {}
            }
            continue;
        }
        if !daemon.borrow_mut().expire(clock::now()) {
            daemon.borrow_mut().commit();
            tokio::time::sleep(LOOK).await;
        }
        if daemon.borrow().server.batch_len() >= BATCH {
            // It continues once this is committed.
            daemon.borrow_mut().commit();
            if daemon.borrow().is_batch_full() {
                signals.deadline.notified().await;
            }
        }
        // The deadline stays if the daemon has failed: the task that ends it has to get a turn.
        tokio::task::yield_now().await;
    }
}

/// Why a log could not be read.
enum Unread {
    Damaged(String),
    /// A later version wrote it.
    Later,
    /// The operating system refused: with more descriptors, or rights, it can be read.
    Refused(io::Error),
}

impl Unread {
    fn of(self, state_dir: &Path) -> Error {
        match self {
            Self::Damaged(why) => Error::Damaged(state_dir.into(), why),
            Self::Later => Error::Later(state_dir.into()),
            Self::Refused(error) => Error::File(state_dir.into(), error),
        }
    }
}

impl From<Damaged> for Unread {
    fn from(damaged: Damaged) -> Self {
        if damaged.is_later() { Self::Later } else { Self::Damaged(damaged.to_string()) }
    }
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(_) => Self::Refused(error),
            None => Self::Damaged(error.to_string()),
        }
    }
}

/// The state that a log has.
fn replay(recovered: lockkeeper_log::Recovered) -> Result<State, Unread> {
    let seed = u64::from_le_bytes(random());
    let mut state = match recovered.snapshot {
        Some(mut snapshot) => {
            let mut failure = None;
            let chunks = std::iter::from_fn(|| match snapshot.next_chunk() {
                Ok(chunk) => chunk.map(<[u8]>::to_vec),
                Err(error) => {
                    failure = Some(error);
                    None
                }
            });
            let state = State::restore(chunks, seed);
            if let Some(error) = failure {
                return Err(error.into());
            }
            state?
        }
        None => State::new(seed),
    };
    let mut effects = Vec::new();
    let mut records = recovered.records;
    while let Some((_, batch)) = records.next_record()? {
        if !state.apply_batch(batch, &mut effects)? {
            return Err(Unread::Later);
        }
        effects.clear();
    }
    Ok(state)
}

pub(crate) fn ttl_of(config: &Config) -> Ttl {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let (min, max) = config.ttl_bounds;
    Ttl { default: millis(config.ttl), min: millis(min), max: millis(max) }
}

fn server_config(config: &Config) -> ServerConfig {
    ServerConfig {
        ttl: ttl_of(config),
        limits: config.limits,
        sessions: config.limits.clients as usize,
        buckets: BUCKETS,
        bytes: config.bytes,
        backlog: BACKLOG,
        slice: ENDING,
        hash: hash_secret,
    }
}

/// The longest lease of a session on the network. Others end with the machine.
fn longest_lease(state: &State) -> Option<u64> {
    let views = state.sessions().filter_map(|id| state.session(id));
    views.filter(|view| view.origin == Origin::Network).map(|view| view.ttl).max()
}

/// The lease that the mark has for one of `ttl`: the default, the longest, or the shortest doubled
/// some times. A mark is synced, which takes the disk a while: clients that wish for ever longer
/// leases must not have it set each time.
fn mark_of(bounds: Ttl, ttl: u64) -> u64 {
    let doubled = std::iter::successors(Some(bounds.min.max(1)), |step| step.checked_mul(2));
    let steps = doubled.take_while(|step| *step < bounds.max).chain([bounds.default, bounds.max]);
    steps.filter(|step| *step >= ttl).min().unwrap_or(ttl)
}

/// How many descriptors this process may have.
pub(crate) fn max_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Descriptors of the daemon's own: its log and a snapshot of it, sockets, timers.
const OWN_DESCRIPTORS: usize = 16;

/// Buckets that a daemon keeps apart.
const BUCKETS: usize = 10_000;

/// Requests of a session that end at a time: some milliseconds. Their records fit into a batch.
const ENDING: usize = 8_000;

/// A client that lets so many bytes wait is disconnected. More than the longest answer.
const BACKLOG: usize = 2 * lockkeeper_wire::frame::MAX_TO_CLIENT;

fn hash_secret(secret: &Secret) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, secret);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    bytes
}

#[cfg(test)]
mod tests {
    use super::{Error, SEGMENT, Ttl, Unread, mark_of, replay};
    use crate::clock;
    use lockkeeper_log::Priority;
    use rustix::io::Errno;
    use std::{fs, io, path::Path};

    /// The advice for a damaged state, to start anew, would discard an intact one.
    #[test]
    fn a_log_that_cannot_be_opened_just_now_is_not_damaged() {
        let of = |error: io::Error| Unread::from(error).of(Path::new("/state"));
        assert!(matches!(of(Errno::MFILE.into()), Error::File(..)));
        assert!(matches!(of(io::ErrorKind::InvalidData.into()), Error::Damaged(..)));
    }

    /// The error of replaying a log with such a batch.
    fn replay_of(test: &str, batch: &[u8]) -> String {
        let dir = std::env::temp_dir().join(format!("lockkeeper-replay-{test}-{}", std::process::id()));
        let open = || {
            let config = lockkeeper_log::Config {
                dir: dir.clone(),
                segment_bytes: SEGMENT,
                sync: false,
                boot_id: clock::boot_id(),
                reserve: 0,
            };
            lockkeeper_log::open(config).expect("it is ours")
        };
        let (mut log, _) = open();
        log.reserve(batch.len(), Priority::Normal).expect("there is room");
        log.append(batch);
        log.commit().expect("it can be written");
        drop(log);
        let (log, recovered) = open();
        let why = replay(recovered).expect_err("it cannot be applied").of(Path::new("/state")).to_string();
        drop(log);
        fs::remove_dir_all(dir).expect("it is ours");
        why
    }

    #[test]
    fn a_log_of_a_later_version_is_not_damaged() {
        let why = replay_of("later", &[127, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(why.contains("/state") && why.contains("later version of Lockkeeper: upgrade"), "{why}");
        assert!(!why.contains("damaged") && !why.contains("reset"), "{why}");
    }

    #[test]
    fn a_log_whose_records_have_other_effects_is_refused() {
        let why = replay_of("effects", &[0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(why.contains("other effects here") && why.contains("(0807060504030201)"), "{why}");
    }

    #[test]
    fn ever_longer_leases_set_few_marks() {
        let bounds = Ttl { default: 10_000, min: 1_000, max: 600_000 };
        assert_eq!(
            [1_000, 1_001, 10_000, 300_000].map(|ttl| mark_of(bounds, ttl)),
            [1_000, 2_000, 10_000, 512_000]
        );
        let marks: std::collections::BTreeSet<u64> =
            (1_000..=600_000).map(|ttl| mark_of(bounds, ttl)).collect();
        assert_eq!(marks.len(), 12);
        assert!((1_000..=600_000).all(|ttl| (ttl..2 * ttl).contains(&mark_of(bounds, ttl))));
        assert_eq!(mark_of(Ttl::fixed(7), 7), 7);
    }
}
