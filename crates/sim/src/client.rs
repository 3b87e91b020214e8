//! A simulated client: the real session machine in a simulated driver.

use crate::{
    clock::{Clock, Ticks},
    network::{Direction, Packet},
    simulation::{Happening, Simulation, note},
    transcript,
};
use lockkeeper_core::{Cause, Mode, Name};
use lockkeeper_service::{
    Event, Failure, Key, Micros, Origin, Outcome, Request, Session, SessionConfig, SessionId,
};
use lockkeeper_wire::v2::{ToClient, code};
use std::collections::BTreeMap;

/// What goes into a session.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Connected,
    ConnectFailed(String),
    Message(u64, Vec<u8>),
    Disconnected(u64),
    Request(Request),
    Release(Key, bool),
    Detach(Key, bool),
    Query(Option<Name>, bool),
    ForceRelease(Name),
    EndSession(String),
    Close,
    Confirm,
    Wake,
}

/// What a host asked for, and what became of it.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Empty unless it is a lock.
    pub(crate) scope: Vec<(Name, Mode)>,
    pub(crate) kind: Kind,
    pub(crate) steal: bool,
    /// It may be refused, and then be asked again.
    pub(crate) conditional: bool,
    pub(crate) token: Option<u64>,
    /// Whether the host released or detached it.
    pub(crate) given_up: bool,
    pub(crate) over: bool,
    /// The session and number that it had last.
    pub(crate) number: Option<(SessionId, u64)>,
    /// How often the log has made it.
    pub(crate) made: u32,
    /// Why the log has broken it.
    pub(crate) broken: Option<Cause>,
    /// Whether another client or the operator has ended its session.
    pub(crate) ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    Query,
    ForceRelease,
    EndSession,
}

pub(crate) struct Client {
    pub(crate) session: Session<()>,
    pub(crate) config: SessionConfig,
    pub(crate) clock: Clock,
    pub(crate) start: Micros,
    pub(crate) origin: Origin,
    /// The process lives.
    pub(crate) alive: bool,
    /// It is suspended or stopped: its clock runs, it does nothing.
    pub(crate) away: bool,
    pub(crate) connecting: Option<u64>,
    /// The attempt to connect that was over while it was away, and the daemon.
    pub(crate) connected_meanwhile: Option<(u64, usize)>,
    attempts: u64,
    pub(crate) current: Option<usize>,
    /// Connections with something to read.
    pub(crate) readable: Vec<usize>,
    pub(crate) wishes: BTreeMap<Key, Wish>,
    /// The wishes that are not over.
    pub(crate) live: Vec<Key>,
    /// The write end that it has: the newest that it was passed.
    pub(crate) descriptor: Option<u64>,
    received: Option<u64>,
    /// The connection on which it has confirmed the descriptor.
    pub(crate) confirming: Option<usize>,
    timer: Option<Ticks>,
    /// Sessions that were lost.
    pub(crate) losses: u64,
    /// Whether it is `run`, with a command.
    pub(crate) runs: bool,
    /// The `run` that it belongs to, as `run` or as the guardian.
    pub(crate) job: Option<usize>,
    /// The lock whose command works.
    pub(crate) working: Option<Key>,
    pub(crate) steps: Vec<String>,
}

impl Client {
    pub(crate) fn new(
        session: Session<()>,
        config: SessionConfig,
        clock: Clock,
        start: Micros,
        origin: Origin,
    ) -> Self {
        Self {
            session,
            config,
            clock,
            start,
            origin,
            alive: true,
            away: false,
            connecting: None,
            connected_meanwhile: None,
            attempts: 0,
            current: None,
            readable: Vec::new(),
            wishes: BTreeMap::new(),
            live: Vec::new(),
            descriptor: None,
            received: None,
            confirming: None,
            timer: None,
            losses: 0,
            runs: false,
            job: None,
            working: None,
            steps: Vec::new(),
        }
    }
}

impl Simulation {
    /// A client takes part.
    pub(crate) fn spawn(&mut self) {
        let index = self.clients.len();
        if self.calm || index >= self.plan.clients_in_all {
            return;
        }
        let locals = self.clients.iter().filter(|client| client.alive && client.origin == Origin::Local);
        let local = locals.count() < self.plan.local;
        let shows = self.random.below(1_000_000_000);
        let rate = match local {
            // It has the clock of the server's machine.
            true => None,
            false => Some(self.random.pick(&self.plan.client_rates)),
        };
        let clock = rate.map_or(self.daemons[0].clock, |rate| Clock::new(self.now, shows, rate));
        let start = clock.read(self.now);
        let wish = self.plan.wishes && self.random.chance(500);
        let config = SessionConfig {
            bucket: format!("bucket {}", self.random.below(self.plan.buckets)),
            owner: self.random.chance(500).then(|| format!("client {index}")),
            ttl: wish.then(|| self.random.pick(&self.plan.ttls)),
            fifo: local,
            going_away_ends: false,
        };
        note!(self, "client {index} starts: {config:?}, clock {clock:?}");
        let origin = if local { Origin::Local } else { Origin::Network };
        let session = Session::new(config.clone(), start);
        let mut client = Client::new(session, config, clock, start, origin);
        client.runs = self.random.chance(self.plan.runs);
        self.clients.push(client);
        self.stats.clients += 1;
        self.arm_client(index);
        let pause = self.around(self.plan.act_every);
        self.after(pause, Happening::Act(index));
    }

    /// Gives a session an input, and does all that a driver does after it. Returns the number or
    /// key that came of it.
    pub(crate) fn feed(&mut self, index: usize, input: Input) -> u64 {
        let client = &mut self.clients[index];
        let now = client.clock.read(self.now);
        let was_valid = client.session.lease_is_valid(now);
        let session = &mut client.session;
        let mut result = 0;
        let mut unreadable = None;
        match &input {
            Input::Connected => {
                result = session.connected(now, None);
                if let Some(current) = client.current {
                    self.connections[current].number = result;
                }
            }
            Input::ConnectFailed(why) => session.connect_failed(now, &Failure::Unreachable(why.clone())),
            Input::Message(number, message) => match ToClient::decode(message) {
                Ok(message) => session.message(now, *number, message),
                Err(error) => unreadable = Some(error),
            },
            Input::Disconnected(number) => session.disconnected(now, *number),
            Input::Request(request) => result = session.request(request.clone(), ()),
            Input::Release(key, timed_out) => _ = session.release(*key, *timed_out),
            Input::Detach(key, timed_out) => _ = session.detach(*key, *timed_out),
            Input::Query(name, deadlocks) => result = session.query(name.clone(), *deadlocks, ()),
            Input::ForceRelease(name) => result = session.force_release(name.clone(), ()),
            Input::EndSession(client) => result = session.end_session(client.clone(), ()),
            Input::Close => session.close(),
            Input::Confirm => session.confirm(),
            Input::Wake => session.wake(now),
        }
        if let Some(error) = unreadable {
            self.fail(format!("client {index} cannot read what the server sent: {error}"));
        }
        self.enter_wish(index, result, &input);
        let session = &mut self.clients[index].session;
        let output = session.take_output();
        let mut events = Vec::new();
        while let Some(event) = session.next_event() {
            events.push(event);
        }
        let drop = session.wants_drop();
        if self.transcripts {
            let client = &mut self.clients[index];
            let step = transcript::step(now, &input, &output, &events, drop, &client.session);
            client.steps.push(step);
        }
        self.learn_numbers(index);
        let mut gained = !was_valid && self.clients[index].session.lease_is_valid(now);
        let mut granted = Vec::new();
        let mut fifo = false;
        for event in events {
            note!(self, "client {index}: {event:?}");
            if let Event::Granted { key, .. } = event {
                gained = true;
                granted.push(key);
            }
            fifo |= matches!(event, Event::Fifo);
            self.on_event(index, event);
        }
        if let Some(current) = self.clients[index].current {
            self.send(current, Direction::Up, &output);
        }
        if (drop || self.clients[index].session.is_closed())
            && let Some(current) = self.clients[index].current.take()
        {
            self.client_closes(current);
        }
        let client = &self.clients[index];
        let expired = |key: &&Key| client.live.contains(key) && !client.session.is_held(now, **key);
        if let Some(key) = granted.iter().find(expired) {
            // A host that does not ask again would work without its lock.
            let what = format!("client {index}: {key} is granted although its lease is over");
            self.fail(what);
        }
        if gained {
            self.check_beliefs(index);
        }
        if fifo && let Some(inode) = self.clients[index].received.take() {
            self.clients[index].descriptor = Some(inode);
            self.clients[index].confirming = self.clients[index].current;
            self.feed(index, Input::Confirm);
        }
        self.arm_client(index);
        self.tend_job_of(index);
        result
    }

    fn enter_wish(&mut self, index: usize, key: Key, input: &Input) {
        let (kind, scope) = match input {
            Input::Request(request) => (Kind::Lock, request.scope.clone()),
            Input::Query(..) => (Kind::Query, Vec::new()),
            Input::ForceRelease(_) => (Kind::ForceRelease, Vec::new()),
            Input::EndSession(_) => (Kind::EndSession, Vec::new()),
            _ => return,
        };
        let steal = matches!(input, Input::Request(request) if request.flags.steal);
        let conditional = match input {
            Input::Request(request) => request.flags.if_available || request.flags.refuse_deadlock,
            _ => true,
        };
        let wish = Wish {
            scope,
            kind,
            steal,
            conditional,
            token: None,
            given_up: false,
            over: false,
            number: None,
            made: 0,
            broken: None,
            ended: false,
        };
        let client = &mut self.clients[index];
        client.wishes.insert(key, wish);
        client.live.push(key);
    }

    /// The numbers that wishes have on the wire: the log has them.
    fn learn_numbers(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let Some(id) = client.session.client_id().and_then(|id| u64::from_str_radix(id, 16).ok()) else {
            return;
        };
        for key in &client.live {
            let Some(rid) = client.session.rid(*key) else { continue };
            let Some(wish) = client.wishes.get_mut(key) else { continue };
            if wish.number != Some((id, rid)) {
                wish.number = Some((id, rid));
                self.history.numbers.insert((id, rid), (index, *key));
            }
        }
    }

    fn on_event(&mut self, index: usize, event: Event<()>) {
        match event {
            Event::Granted { key, token } => self.on_granted(index, key, token),
            Event::Over { key, outcome, .. } => self.on_over(index, key, &outcome),
            Event::SessionLost => {
                self.clients[index].losses += 1;
                self.stats.losses += 1;
                self.close_descriptors(index);
            }
            Event::Closed | Event::Failed(_) => {
                self.close_descriptors(index);
                self.replace(index);
            }
            Event::Opened { .. }
            | Event::Unreachable(_)
            | Event::Fifo
            | Event::Queued { .. }
            | Event::Changed { .. } => {}
        }
    }

    fn on_granted(&mut self, index: usize, key: Key, token: u64) {
        self.stats.grants += 1;
        let Some(wish) = self.clients[index].wishes.get_mut(&key) else { return };
        if wish.over || wish.token.is_some() || wish.given_up {
            let what = format!("client {index}: request {key} is granted twice, or after its end: {wish:?}");
            return self.fail(what);
        }
        wish.token = Some(token);
        let scope = wish.scope.clone();
        let bucket = self.clients[index].config.bucket.clone();
        self.check_told_token(index, key, &bucket, &scope, token);
    }

    fn on_over(&mut self, index: usize, key: Key, outcome: &Outcome) {
        let losses = self.clients[index].losses;
        let closed = self.clients[index].session.is_closed();
        let client = &mut self.clients[index];
        client.live.retain(|live| *live != key);
        let Some(wish) = client.wishes.get_mut(&key) else { return };
        if wish.over {
            let what = format!("client {index}: {key} is over twice: {outcome:?}");
            return self.fail(what);
        }
        wish.over = true;
        let wrong = match outcome {
            Outcome::Released => !wish.given_up,
            Outcome::Unavailable | Outcome::Refused { .. } | Outcome::Deadlocked(_) => wish.token.is_some(),
            Outcome::Broken { cause, .. } => {
                let stolen = *cause == Cause::Stolen;
                self.stats.broken += 1;
                // A holder whose lock was stolen is notified, unless the whole session is lost.
                (stolen && wish.broken != Some(Cause::Stolen)) || (!stolen && self.must_be_lost(index, key))
            }
            Outcome::Answer(_) | Outcome::Failed(_) => false,
        };
        if wrong {
            let wish = &self.clients[index].wishes[&key];
            let what = format!(
                "client {index}: {key} ended with {outcome:?}, losses {losses}, closed {closed}, {wish:?}"
            );
            self.fail(what);
        }
    }

    /// Whether it is wrong to report a wish as lost to a client: the session continues, and was
    /// only cut off.
    fn must_be_lost(&self, index: usize, key: Key) -> bool {
        let client = &self.clients[index];
        // A session that is lost has no id at this moment, or another one.
        let id = client.session.client_id().and_then(|id| u64::from_str_radix(id, 16).ok());
        client.wishes[&key].number.is_some_and(|(session, _)| id == Some(session))
    }

    /// A client's process is no more interested, or gone: another one may take its place.
    fn replace(&mut self, index: usize) {
        note!(self, "client {index} is done");
        let pause = self.around(self.plan.act_every * 2);
        self.after(pause, Happening::Spawn);
        self.clients[index].connecting = None;
    }

    pub(crate) fn close_descriptors(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.descriptor = None;
        client.received = None;
        if client.origin == Origin::Local {
            self.turn_soon(0);
        }
    }

    /// The process dies: it sends nothing more, and holds nothing.
    pub(crate) fn crash_client(&mut self, index: usize) {
        note!(self, "client {index} crashes");
        self.clients[index].alive = false;
        self.close_descriptors(index);
        self.replace(index);
        let client = &mut self.clients[index];
        client.live.clear();
        if let Some(current) = client.current.take() {
            let local = client.origin == Origin::Local;
            if !local && self.random.chance(self.plan.unnoticed) {
                self.cut(current, Direction::Up, 0, 0);
            } else {
                self.client_closes(current);
            }
        }
    }

    /// Reads all that came, unless it is suspended.
    pub(crate) fn client_reads(&mut self, index: usize) {
        while !self.clients[index].away && self.violation.is_none() {
            let Some(&connection) = self.clients[index].readable.first() else { break };
            let Some(packet) = self.connections[connection].down.arrived.pop_front() else {
                self.clients[index].readable.remove(0);
                self.connections[connection].listed[1] = false;
                continue;
            };
            if !self.clients[index].alive || self.clients[index].session.is_closed() {
                continue;
            }
            let number = self.connections[connection].number;
            match packet {
                Packet::Message(message, descriptor) => {
                    if descriptor.is_some() {
                        let lost = self.random.chance(self.plan.lose_descriptor);
                        self.clients[index].received = descriptor.filter(|_| !lost);
                    }
                    self.check_superseded(index, connection, &message);
                    self.feed(index, Input::Message(number, message));
                }
                Packet::End => {
                    if self.clients[index].current == Some(connection) {
                        note!(self, "client {index} sees the end of connection {connection}");
                        self.clients[index].current = None;
                        self.client_closes(connection);
                    }
                    self.feed(index, Input::Disconnected(number));
                }
            }
        }
    }

    /// A client's newest connection is never superseded: a Hello that was late does not cut it off.
    fn check_superseded(&mut self, index: usize, connection: usize, message: &[u8]) {
        let superseded =
            matches!(ToClient::decode(message), Ok(ToClient::Goodbye { code: code::SUPERSEDED, .. }));
        if superseded && self.clients[index].current == Some(connection) {
            self.fail(format!("client {index}: its newest connection, {connection}, is superseded"));
        }
    }

    /// The client continues where it was: it reads the clock first, or its input first.
    pub(crate) fn client_back(&mut self, index: usize) {
        if !std::mem::take(&mut self.clients[index].away) || !self.clients[index].alive {
            return;
        }
        note!(self, "client {index} goes on");
        self.tend_job_of(index);
        if let Some((attempt, daemon)) = self.clients[index].connected_meanwhile.take() {
            self.connect(index, attempt, daemon);
        }
        if self.random.chance(500) {
            self.client_reads(index);
            self.client_timer(index);
        } else {
            self.client_timer(index);
            self.client_reads(index);
        }
    }

    pub(crate) fn client_timer(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.timer = client.timer.filter(|at| *at > self.now);
        if client.away || !client.alive || client.session.is_closed() {
            return;
        }
        let now = client.clock.read(self.now);
        if client.session.next_wake().is_some_and(|at| at <= now) {
            self.feed(index, Input::Wake);
        }
        let client = &mut self.clients[index];
        if client.session.connect_at().is_some_and(|at| at <= now)
            && client.connecting.is_none()
            && client.current.is_none()
        {
            client.attempts += 1;
            let attempt = client.attempts;
            client.connecting = Some(attempt);
            // It tries one after the other; not every client begins with the same.
            let daemon = (usize::try_from(attempt).unwrap_or(0) + index) % self.daemons.len();
            let delay = match self.calm {
                true => 100,
                false => self.plan.delay.choose(&mut self.random),
            };
            self.after(delay, Happening::Connect { client: index, attempt, daemon });
        }
        self.arm_client(index);
    }

    /// Sets the client's timer to the next thing it has to do.
    pub(crate) fn arm_client(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.away || !client.alive || client.session.is_closed() {
            return;
        }
        let connect = client.session.connect_at().filter(|_| client.connecting.is_none());
        let Some(at) = [connect, client.session.next_wake()].into_iter().flatten().min() else { return };
        let at = client.clock.when(at).max(self.now);
        if client.timer.is_none_or(|timer| at < timer) {
            client.timer = Some(at);
            self.at(at, Happening::ClientTimer(index));
        }
    }
}
