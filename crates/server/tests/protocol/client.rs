//! A client that speaks the protocol's messages one after the other, and raw bytes if need be. It
//! shares the messages' encoding with the daemon, and nothing else.

use crate::{
    daemon::{Daemon, in_a_fleet},
    web::{self, Web},
};
use lockkeeper_core::{Cause, Mode};
use lockkeeper_wire::{
    frame,
    v2::{Deadlock, EndFlags, Entry, Flags, Listed, NestedIn, Secret, ToClient, ToServer, VERSION, feature},
    websocket::first_message,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::{
    collections::VecDeque,
    io::{ErrorKind, IoSliceMut, Write},
    mem::MaybeUninit,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Duration,
};
use tungstenite::protocol::CloseFrame;

/// After how long a test that hears nothing has failed. No test passes or fails by it that does not
/// hang.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    link: Link,
    input: Vec<u8>,
    /// Received descriptors that are not taken yet.
    descriptors: VecDeque<OwnedFd>,
    /// The descriptor that keeps the session alive.
    pub(crate) fifo: Option<OwnedFd>,
    bucket: String,
    features: u64,
    /// The lease that it wishes for, in milliseconds.
    wish: Option<u64>,
    /// The number of the last Hello.
    pub(crate) hello: u64,
    /// The last number it has used.
    pub(crate) last_rid: u64,
    /// What it acknowledges with its next message.
    pub(crate) ack: u64,
    /// Whether it acknowledges what it hears.
    pub(crate) acks: bool,
    pub(crate) id: String,
    pub(crate) secret: Secret,
}

enum Link {
    Local(UnixStream),
    Network(Box<Web>),
}

/// A request that was granted, or waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) rid: u64,
    /// Its token if it is held, its arrival if it waits.
    pub(crate) number: u64,
}

/// What answers a Hello, up to the end marker.
#[derive(Debug)]
pub(crate) struct Welcomed {
    pub(crate) resumed: bool,
    pub(crate) number: u64,
    pub(crate) ttl: u64,
    pub(crate) last_rid: u64,
    pub(crate) listed: Vec<Listed>,
    pub(crate) notices: Vec<ToClient<'static>>,
}

/// Why a connection is refused.
pub(crate) type Refusal = (u32, &'static str);

impl Client {
    /// Connects, and says nothing.
    pub(crate) fn mute(daemon: &Daemon) -> Self {
        Self::over(daemon.connect())
    }

    pub(crate) fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(SILENCE)).expect("a socket takes a timeout");
        Self::with(Link::Local(stream), feature::FIFO)
    }

    /// Connects on the network, and says nothing.
    pub(crate) fn mute_on_network(daemon: &Daemon) -> Self {
        Self::on_web(web::connect(daemon))
    }

    pub(crate) fn on_web(web: Web) -> Self {
        Self::with(Link::Network(Box::new(web)), 0)
    }

    fn with(link: Link, features: u64) -> Self {
        Self {
            link,
            input: Vec::new(),
            descriptors: VecDeque::new(),
            fifo: None,
            bucket: "default".into(),
            features,
            wish: None,
            hello: 0,
            last_rid: 0,
            ack: 0,
            acks: true,
            id: String::new(),
            secret: Secret::default(),
        }
    }

    /// Opens a session that lives as long as its descriptor is open.
    pub(crate) fn open(daemon: &Daemon) -> Self {
        Self::open_in(daemon, "default")
    }

    pub(crate) fn open_in(daemon: &Daemon, bucket: &str) -> Self {
        Self::mute(daemon).in_bucket(bucket).opened()
    }

    /// Opens a session on its connection, and confirms its descriptor. A fleet gives none, but a
    /// lease longer than a test.
    pub(crate) fn opened(mut self) -> Self {
        if in_a_fleet() {
            self = self.with_long_lease();
        }
        self.open_session(None).expect("a welcome");
        if !in_a_fleet() {
            self.take_fifo();
            self.confirm();
        }
        self
    }

    /// Opens a session that never has a descriptor.
    pub(crate) fn open_with_lease(daemon: &Daemon) -> Self {
        let mut client = Self::mute(daemon);
        client.features = 0;
        client.open_session(None).expect("a welcome");
        client
    }

    /// Opens a session on the network.
    pub(crate) fn on_network(daemon: &Daemon) -> Self {
        let mut client = Self::mute_on_network(daemon);
        client.open_session(None).expect("a welcome");
        client
    }

    /// Opens a session in its bucket.
    pub(crate) fn open_session(&mut self, token: Option<&str>) -> Result<Welcomed, Refusal> {
        let welcomed = self.greet(None, token, self.wish)?;
        assert!(!welcomed.resumed && welcomed.listed.is_empty() && welcomed.notices.is_empty());
        Ok(welcomed)
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.link, Link::Local(_))
    }

    pub(crate) fn in_bucket(mut self, bucket: &str) -> Self {
        self.bucket = bucket.into();
        self
    }

    /// Resumes the session with another connection of the same kind. The connection before is
    /// closed.
    pub(crate) fn resume(&mut self, daemon: &Daemon) -> Welcomed {
        self.resume_with(daemon, None).expect("a welcome")
    }

    pub(crate) fn resume_with(&mut self, daemon: &Daemon, token: Option<&str>) -> Result<Welcomed, Refusal> {
        self.reconnect(daemon);
        self.resume_here(token)
    }

    /// Resumes the session on its connection.
    pub(crate) fn resume_here(&mut self, token: Option<&str>) -> Result<Welcomed, Refusal> {
        let resume = Some((self.id.clone(), self.secret));
        let welcomed = self.greet(resume, token, self.wish)?;
        if welcomed.ttl > 0 && self.features & feature::FIFO != 0 && !in_a_fleet() {
            self.take_fifo();
            self.confirm();
        }
        Ok(welcomed)
    }

    /// Connects anew, and says nothing.
    pub(crate) fn reconnect(&mut self, daemon: &Daemon) {
        self.reconnect_as(match self.link {
            Link::Local(_) => Self::mute(daemon),
            Link::Network(_) => Self::mute_on_network(daemon),
        });
    }

    /// Goes on with another's connection.
    pub(crate) fn reconnect_as(&mut self, other: Self) {
        (self.link, self.input) = (other.link, other.input);
    }

    /// Closes the connection, and keeps the descriptor.
    pub(crate) fn disconnect(&mut self) {
        let (nowhere, _) = UnixStream::pair().expect("a pair");
        match self.link {
            Link::Local(_) => self.link = Link::Local(nowhere),
            Link::Network(ref mut web) => {
                let stream: Box<dyn web::Stream> = Box::new(nowhere);
                **web = Web::from_raw_socket(stream, tungstenite::protocol::Role::Client, None);
            }
        }
    }

    /// Says Hello, and hears all that answers it. If it is refused, why.
    pub(crate) fn greet(
        &mut self,
        resume: Option<(String, Secret)>,
        token: Option<&str>,
        ttl: Option<u64>,
    ) -> Result<Welcomed, Refusal> {
        self.hello += 1;
        self.say_hello(resume.as_ref().map(|(id, secret)| (&id[..], *secret)), token, ttl);
        self.hear_welcome()
    }

    /// Says Hello with the number that it has.
    pub(crate) fn say_hello(
        &mut self,
        resume: Option<(&str, Secret)>,
        token: Option<&str>,
        ttl: Option<u64>,
    ) {
        let Self { features, hello, ack, .. } = *self;
        let bucket = self.bucket.clone();
        let (version, bucket, owner) = (VERSION, &*bucket, None);
        self.say(&ToServer::Hello { version, features, hello, bucket, resume, ack, token, ttl, owner });
    }

    /// Hears a Welcome, and what belongs to it.
    pub(crate) fn hear_welcome(&mut self) -> Result<Welcomed, Refusal> {
        let mut welcomed = match self.hear() {
            ToClient::Welcome { version, features, number, client_id, secret, ttl, resumed, last_rid } => {
                assert_eq!((version, features & feature::FIFO), (VERSION, feature::FIFO));
                (self.id, self.secret) = (client_id.into(), secret);
                Welcomed { resumed, number, ttl, last_rid, listed: Vec::new(), notices: Vec::new() }
            }
            ToClient::Goodbye { code, message } => return Err((code, message)),
            other => unexpected("not a welcome", &other),
        };
        loop {
            match self.hear_unacknowledged() {
                // What is live comes before what has ended.
                ToClient::Listed { requests } if welcomed.notices.is_empty() => {
                    welcomed.listed.extend(requests);
                }
                notice @ (ToClient::Broken { number, .. } | ToClient::Outcome { number, .. }) => {
                    assert!(number < welcomed.number, "{notice:?} belongs to a Welcome of a greater number");
                    welcomed.notices.push(notice);
                }
                ToClient::Synced => break,
                other => unexpected("not before the end marker", &other),
            }
        }
        self.acknowledge(welcomed.number);
        Ok(welcomed)
    }

    /// Hears that a descriptor has come, and takes it.
    pub(crate) fn take_fifo(&mut self) {
        assert_eq!(self.hear(), ToClient::Fifo);
        self.fifo = Some(self.descriptors.pop_front().expect("it comes with a descriptor"));
    }

    /// Confirms the descriptor.
    pub(crate) fn confirm(&mut self) {
        self.say(&ToServer::Confirm { ack: self.ack });
        assert_eq!(self.hear(), ToClient::Confirmed);
    }

    /// Says in Hello that it ends for good with status 1001.
    pub(crate) fn that_ends_with_1001(mut self) -> Self {
        self.features |= feature::GOING_AWAY_ENDS;
        self
    }

    /// Closes its WebSocket with a status, and hears the end.
    pub(crate) fn close_with(&mut self, status: u16) {
        let frame = CloseFrame { code: status.into(), reason: "".into() };
        self.web().close(Some(frame)).expect("the daemon listens");
        assert_eq!(self.hear_or_end(), None);
    }

    /// Wishes for a lease longer than a test.
    pub(crate) fn with_long_lease(mut self) -> Self {
        self.wish = Some(3_600_000);
        self
    }

    /// Leaves out the features that a message tells.
    pub(crate) fn without_features(mut self) -> Self {
        self.features = 0;
        self
    }

    pub(crate) fn say(&mut self, message: &ToServer<'_>) {
        match &mut self.link {
            Link::Local(_) => self.write(&framed(message)),
            Link::Network(web) => {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                web::say(web, bytes);
            }
        }
    }

    /// Sends a message that the daemon may not receive any more.
    pub(crate) fn say_in_vain(&mut self, message: &ToServer<'_>) {
        match &mut self.link {
            Link::Local(_) => self.write_in_vain(&framed(message)),
            Link::Network(web) => {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                let _ = web.send(tungstenite::Message::Binary(bytes.into()));
            }
        }
    }

    /// The WebSocket, for what no client of ours would do with it.
    pub(crate) fn web(&mut self) -> &mut Web {
        match &mut self.link {
            Link::Network(web) => web,
            Link::Local(_) => panic!("it is not on the network"),
        }
    }

    fn stream(&mut self) -> &mut UnixStream {
        match &mut self.link {
            Link::Local(stream) => stream,
            Link::Network(_) => panic!("it is not on a Unix socket"),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream().write_all(bytes).expect("the daemon listens");
    }

    /// Writes what the daemon may well not read to its end.
    pub(crate) fn write_in_vain(&mut self, bytes: &[u8]) {
        let _ = self.stream().write_all(bytes);
    }

    /// Says that nothing more will be said.
    pub(crate) fn fall_silent(&mut self) {
        let _ = self.stream().shutdown(Shutdown::Write);
    }

    /// The next message. Leaked: it borrows from its bytes, and tests are short.
    pub(crate) fn hear(&mut self) -> ToClient<'static> {
        let message = self.hear_unacknowledged();
        if let ToClient::Broken { number, .. } | ToClient::Outcome { number, .. } = message {
            self.acknowledge(number);
        }
        message
    }

    fn acknowledge(&mut self, number: u64) {
        if self.acks {
            self.ack = self.ack.max(number);
        }
    }

    fn hear_unacknowledged(&mut self) -> ToClient<'static> {
        self.hear_or_end().expect("a message, not the end")
    }

    /// The next message; `None` if the connection has ended.
    pub(crate) fn hear_or_end(&mut self) -> Option<ToClient<'static>> {
        if let Link::Network(web) = &mut self.link {
            if self.input.is_empty() {
                self.input = web::hear(web)?;
            }
            let (message, rest) = first_message(&self.input).expect("a whole message");
            let message: &'static [u8] = message.to_vec().leak();
            self.input = rest.to_vec();
            return Some(ToClient::decode(message).expect("the daemon speaks the protocol"));
        }
        loop {
            let first =
                frame::first(&self.input, frame::MAX_TO_CLIENT).expect("the daemon keeps to its limit");
            if let Some((message, length)) = first {
                let message: &'static [u8] = message.to_vec().leak();
                self.input.drain(..length);
                return Some(ToClient::decode(message).expect("the daemon speaks the protocol"));
            }
            if !self.hear_bytes() {
                assert!(self.input.is_empty(), "it ends within a message");
                return None;
            }
        }
    }

    /// Waits for bytes. `false` at the end.
    pub(crate) fn hear_bytes(&mut self) -> bool {
        let length = self.input.len();
        self.input.resize(length + (64 << 10), 0);
        let Link::Local(stream) = &self.link else { panic!("it is not on a Unix socket") };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut self.input[length..])];
        let count = match recvmsg(stream, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received.bytes,
            // What it had not read when it closed is lost, and the kernel says so.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("nothing to hear: {error}"),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.input.truncate(length + count);
        count > 0
    }

    /// Hears a goodbye, and the end.
    pub(crate) fn goodbye(&mut self) -> Refusal {
        let message = self.hear();
        let ToClient::Goodbye { code, message } = message else { unexpected("not a goodbye", &message) };
        assert_eq!(self.hear_or_end(), None, "goodbye is the last message");
        (code, message)
    }

    pub(crate) fn next_rid(&mut self) -> u64 {
        self.last_rid += 1;
        self.last_rid
    }

    /// Asks for a name, exclusive. Returns the request.
    pub(crate) fn request(&mut self, name: &str) -> u64 {
        self.request_with(name, Flags::default())
    }

    pub(crate) fn request_with(&mut self, name: &str, flags: Flags) -> u64 {
        self.request_scope(&[(name, Mode::Exclusive)], flags, None)
    }

    pub(crate) fn request_scope(
        &mut self,
        scope: &[(&str, Mode)],
        flags: Flags,
        nested_in: Option<u64>,
    ) -> u64 {
        self.request_nested(scope, flags, nested_in.map(|rid| (None, rid)))
    }

    pub(crate) fn request_nested(
        &mut self,
        scope: &[(&str, Mode)],
        flags: Flags,
        nested_in: Option<NestedIn<'_>>,
    ) -> u64 {
        let (rid, ack) = (self.next_rid(), self.ack);
        let scope = scope.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect();
        self.say(&ToServer::Request { ack, rid, scope, flags, nested_in, info: None });
        rid
    }

    /// Hears that the request is held. Its token.
    pub(crate) fn granted(&mut self, rid: u64) -> u64 {
        match self.hear() {
            ToClient::Granted { rid: granted, token } if granted == rid => token,
            other => unexpected(&format!("not the grant of {rid}"), &other),
        }
    }

    /// Hears that the request waits. Its arrival.
    pub(crate) fn queued(&mut self, rid: u64) -> u64 {
        match self.hear() {
            ToClient::Queued { rid: queued, arrival } if queued == rid => arrival,
            other => unexpected(&format!("{rid} does not wait"), &other),
        }
    }

    pub(crate) fn refused(&mut self, rid: u64) -> Refusal {
        match self.hear() {
            ToClient::Refused { rid: refused, code, message } if refused == rid => (code, message),
            other => unexpected(&format!("{rid} is not refused"), &other),
        }
    }

    pub(crate) fn deadlocked(&mut self, rid: u64) -> Deadlock<'static> {
        match self.hear() {
            ToClient::Deadlocked { rid: refused, deadlock } if refused == rid => deadlock,
            other => unexpected(&format!("{rid} is not refused"), &other),
        }
    }

    pub(crate) fn broken(&mut self, rid: u64) -> Cause {
        match self.hear() {
            ToClient::Broken { rid: broken, cause, .. } if broken == rid => cause,
            other => unexpected(&format!("{rid} is not broken"), &other),
        }
    }

    /// Breaks every lock on a name.
    pub(crate) fn force_release(&mut self, name: &str) -> u64 {
        let (rid, ack) = (self.next_rid(), self.ack);
        self.say(&ToServer::ForceRelease { ack, rid, name: name.as_bytes() });
        rid
    }

    /// Ends another session.
    pub(crate) fn end_session(&mut self, client_id: &str) -> u64 {
        let (rid, ack) = (self.next_rid(), self.ack);
        self.say(&ToServer::EndSession { ack, rid, client_id });
        rid
    }

    /// Hears what a force release, or the ending of a session, did.
    pub(crate) fn outcome(&mut self, rid: u64) -> u64 {
        match self.hear() {
            ToClient::Outcome { rid: done, count, .. } if done == rid => count,
            other => unexpected(&format!("not the outcome of {rid}"), &other),
        }
    }

    /// Asks for a name and has it.
    pub(crate) fn hold(&mut self, name: &str) -> Known {
        let rid = self.request(name);
        Known { rid, number: self.granted(rid) }
    }

    /// Asks for a name and waits for it.
    pub(crate) fn wait_for(&mut self, name: &str) -> Known {
        let rid = self.request(name);
        Known { rid, number: self.queued(rid) }
    }

    /// Asks for a name, and has it at once or after others.
    pub(crate) fn get(&mut self, name: &str) -> Known {
        let rid = self.request(name);
        loop {
            match self.hear() {
                ToClient::Granted { rid: granted, token } if granted == rid => {
                    return Known { rid, number: token };
                }
                ToClient::Queued { rid: queued, .. } if queued == rid => {}
                other => unexpected(&format!("not the grant of {rid}"), &other),
            }
        }
    }

    /// Releases a lock, or aborts a request, and hears so.
    pub(crate) fn release(&mut self, rid: u64) {
        self.say(&ToServer::Release { ack: self.ack, rid, flags: EndFlags::default() });
        assert_eq!(self.hear(), ToClient::Released { rid });
    }

    /// The same without an answer.
    pub(crate) fn release_quietly(&mut self, rid: u64) {
        let flags = EndFlags { quiet: true, ..EndFlags::default() };
        self.say(&ToServer::Release { ack: self.ack, rid, flags });
    }

    /// Says that the session ends, and hears the end.
    pub(crate) fn bye(&mut self) {
        self.say(&ToServer::Bye { ack: self.ack });
        assert_eq!(self.hear_or_end(), None);
    }

    /// The state of the bucket, or of one name.
    pub(crate) fn query(&mut self, name: Option<&[u8]>) -> Vec<Entry<'static>> {
        self.snapshot(name, false).0
    }

    /// The state of the bucket, and its deadlocks.
    pub(crate) fn inspect(&mut self) -> (Vec<Entry<'static>>, Vec<Deadlock<'static>>) {
        let (entries, deadlocks, _) = self.snapshot(None, true);
        (entries, deadlocks)
    }

    /// The greatest token that was given out, as a snapshot has it.
    pub(crate) fn last_token(&mut self) -> u64 {
        self.snapshot(None, false).2
    }

    fn snapshot(
        &mut self,
        name: Option<&[u8]>,
        deadlocks: bool,
    ) -> (Vec<Entry<'static>>, Vec<Deadlock<'static>>, u64) {
        let (asked, ack) = (self.next_rid(), self.ack);
        self.say(&ToServer::Query { ack, rid: asked, name, deadlocks });
        self.hear_snapshot(asked)
    }

    /// Hears all parts of the answer to a query.
    pub(crate) fn hear_snapshot(&mut self, asked: u64) -> (Vec<Entry<'static>>, Vec<Deadlock<'static>>, u64) {
        let (mut all, mut cycles) = (Vec::new(), Vec::new());
        loop {
            match self.hear() {
                ToClient::Snapshot { rid, entries, deadlocks, last_token, more } if rid == asked => {
                    all.extend(entries);
                    cycles.extend(deadlocks);
                    if !more {
                        return (all, cycles, last_token);
                    }
                }
                other => unexpected("not a snapshot", &other),
            }
        }
    }

    /// Whose requests for a name there are, in order, and which are held.
    pub(crate) fn queue_of(&mut self, name: &str) -> Vec<(String, bool)> {
        let entries = self.query(Some(name.as_bytes()));
        entries.iter().map(|entry| (entry.client_id.into(), entry.token.is_some())).collect()
    }

    pub(crate) fn ping(&mut self) {
        self.say(&ToServer::Ping { ack: self.ack, seq: 7 });
        assert_eq!(self.hear(), ToClient::Pong { seq: 7 });
    }
}

/// Fails with the beginning of a message that may be long.
fn unexpected(what: &str, message: &ToClient<'_>) -> ! {
    let message = format!("{message:?}");
    panic!("{what}: {}", message.chars().take(500).collect::<String>());
}

/// A Hello of a new client.
pub(crate) fn hello(bucket: &str) -> ToServer<'_> {
    ToServer::hello(bucket, None)
}

/// The bytes of a message, its length before it.
pub(crate) fn framed(message: &ToServer<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame::append(&mut out, |out| message.encode(out));
    out
}
