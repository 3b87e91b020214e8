//! A connection that says and hears the protocol's messages, one after the other, and raw bytes if need be.

use crate::{
    daemon::Daemon,
    web::{self, Web},
};
use lockkeeper_core::{Cause, Mode};
use lockkeeper_wire::{Claim, Deadlock, Entry, Flags, Seal, ToClient, ToServer, VERSION, frame};
use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    time::Duration,
};

/// After how long a test that hears nothing has failed. No test passes or fails by it that does not hang.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    line: Line,
    input: Vec<u8>,
    /// The last number it has used.
    pub(crate) last_rid: u64,
    pub(crate) id: String,
    pub(crate) secret: Seal,
}

enum Line {
    Local(UnixStream),
    Network(Box<Web>),
}

/// What a client knows of a lock or request, to reclaim it.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) rid: u64,
    pub(crate) scope: Vec<(&'static str, Mode)>,
    pub(crate) claim: Claim,
}

impl Client {
    /// Connects, and says nothing.
    pub(crate) fn mute(daemon: &Daemon) -> Self {
        let stream = daemon.connect();
        stream.set_read_timeout(Some(SILENCE)).expect("a socket takes a timeout");
        Self::with(Line::Local(stream))
    }

    fn with(line: Line) -> Self {
        Self { line, input: Vec::new(), last_rid: 0, id: String::new(), secret: Seal::default() }
    }

    /// Connects on the network, and says nothing.
    pub(crate) fn mute_on_network(daemon: &Daemon) -> Self {
        Self::on_line(web::connect(daemon))
    }

    pub(crate) fn on_line(web: Web) -> Self {
        Self::with(Line::Network(Box::new(web)))
    }

    /// Opens a session on the network.
    pub(crate) fn on_network(daemon: &Daemon) -> Self {
        let mut client = Self::mute_on_network(daemon);
        assert!(!client.hello("default", None), "a new session goes on with none");
        client
    }

    /// Goes on with the session on another connection, and drops this one without a word. Whether it does.
    pub(crate) fn reconnect(&mut self, daemon: &Daemon) -> bool {
        let again = Self::mute_on_network(daemon);
        self.go_on(again)
    }

    /// Opens a session.
    pub(crate) fn open(daemon: &Daemon) -> Self {
        Self::open_in(daemon, "default")
    }

    pub(crate) fn open_in(daemon: &Daemon, bucket: &str) -> Self {
        let mut client = Self::mute(daemon);
        assert!(!client.hello(bucket, None), "a new session goes on with none");
        client
    }

    /// Connects anew and wants to go on with the session. Whether it does.
    pub(crate) fn come_back(&mut self, daemon: &Daemon) -> bool {
        self.go_on(Self::mute(daemon))
    }

    fn go_on(&mut self, mut again: Self) -> bool {
        let resumed = again.hello("default", Some((&self.id, self.secret)));
        again.last_rid = self.last_rid;
        *self = again;
        resumed
    }

    /// Says hello and hears welcome. Whether the session goes on.
    pub(crate) fn hello(&mut self, bucket: &str, resume: Option<(&str, Seal)>) -> bool {
        self.hello_with(bucket, resume, None).unwrap_or_else(|refusal| panic!("not a welcome: {refusal:?}"))
    }

    /// The same with a token. If it is refused, why.
    pub(crate) fn hello_with(
        &mut self,
        bucket: &str,
        resume: Option<(&str, Seal)>,
        token: Option<&str>,
    ) -> Result<bool, (u32, &'static str)> {
        self.say(&ToServer::Hello { version: VERSION, bucket, resume, token });
        match self.hear() {
            ToClient::Welcome { client_id, secret, resumed, .. } => {
                (self.id, self.secret) = (client_id.into(), secret);
                Ok(resumed)
            }
            ToClient::Goodbye { code, message } => Err((code, message)),
            other => panic!("not a welcome: {other:?}"),
        }
    }

    pub(crate) fn say(&mut self, message: &ToServer<'_>) {
        match &mut self.line {
            Line::Local(_) => self.write(&framed(message)),
            Line::Network(web) => {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                web::say(web, bytes);
            }
        }
    }

    /// The WebSocket, for what no client of ours would do with it.
    pub(crate) fn web(&mut self) -> &mut Web {
        match &mut self.line {
            Line::Network(web) => web,
            Line::Local(_) => panic!("it is not on the network"),
        }
    }

    fn stream(&mut self) -> &mut UnixStream {
        match &mut self.line {
            Line::Local(stream) => stream,
            Line::Network(_) => panic!("it is not on a Unix socket"),
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
        self.hear_or_end().expect("a message, not the end")
    }

    /// The next message; `None` if the connection has ended.
    pub(crate) fn hear_or_end(&mut self) -> Option<ToClient<'static>> {
        if let Line::Network(web) = &mut self.line {
            let message: &'static [u8] = web::hear(web)?.leak();
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
        let Line::Local(stream) = &mut self.line else { panic!("it is not on a Unix socket") };
        let count = match stream.read(&mut self.input[length..]) {
            Ok(count) => count,
            // What it had not read when it closed is lost, and the kernel says so.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("nothing to hear: {error}"),
        };
        self.input.truncate(length + count);
        count > 0
    }

    /// Hears a goodbye, and the end.
    pub(crate) fn goodbye(&mut self) -> (u32, &'static str) {
        let ToClient::Goodbye { code, message } = self.hear() else { panic!("not a goodbye") };
        assert_eq!(self.hear_or_end(), None, "goodbye is the last message");
        (code, message)
    }

    pub(crate) fn next_rid(&mut self) -> u64 {
        self.last_rid += 1;
        self.last_rid
    }

    /// Asks for a name, exclusive. Returns the request.
    pub(crate) fn request(&mut self, name: &str) -> u64 {
        self.request_scope(&[(name, Mode::Exclusive)], Flags::default(), None)
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
        let rid = self.next_rid();
        let scope = scope.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect();
        self.say(&ToServer::Request { rid, scope, flags, nested_in, info: None });
        rid
    }

    /// Hears that the request is held. Its token.
    pub(crate) fn granted(&mut self, rid: u64) -> u64 {
        self.granted_with_receipt(rid).0
    }

    pub(crate) fn granted_with_receipt(&mut self, rid: u64) -> (u64, Seal) {
        match self.hear() {
            ToClient::Granted { rid: granted, token, receipt } if granted == rid => (token, receipt),
            other => panic!("not the grant of {rid}: {other:?}"),
        }
    }

    /// Hears that the request waits. Its ticket.
    pub(crate) fn queued(&mut self, rid: u64) -> u64 {
        match self.hear() {
            ToClient::Queued { rid: queued, ticket } if queued == rid => ticket,
            other => panic!("{rid} does not wait: {other:?}"),
        }
    }

    pub(crate) fn refused(&mut self, rid: u64) -> (u32, &'static str) {
        match self.hear() {
            ToClient::Refused { rid: refused, code, message } if refused == rid => (code, message),
            other => panic!("{rid} is not refused: {other:?}"),
        }
    }

    pub(crate) fn deadlocked(&mut self, rid: u64) -> Deadlock<'static> {
        match self.hear() {
            ToClient::Deadlocked { rid: refused, deadlock } if refused == rid => deadlock,
            other => panic!("{rid} is not refused: {other:?}"),
        }
    }

    pub(crate) fn broken(&mut self, rid: u64) -> Cause {
        match self.hear() {
            ToClient::Broken { rid: broken, cause } if broken == rid => cause,
            other => panic!("{rid} is not broken: {other:?}"),
        }
    }

    /// Asks for a name and has it.
    pub(crate) fn hold(&mut self, name: &'static str) -> Known {
        let rid = self.request(name);
        let (token, receipt) = self.granted_with_receipt(rid);
        Known { rid, scope: vec![(name, Mode::Exclusive)], claim: Claim::Held { token, receipt } }
    }

    /// Asks for a name and waits for it.
    pub(crate) fn wait_for(&mut self, name: &'static str) -> Known {
        let rid = self.request(name);
        let ticket = Some(self.queued(rid));
        Known { rid, scope: vec![(name, Mode::Exclusive)], claim: Claim::Waiting { ticket } }
    }

    /// Releases a lock and hears so.
    pub(crate) fn release(&mut self, rid: u64) {
        self.say(&ToServer::Release { rid });
        assert_eq!(self.hear(), ToClient::Released { rid });
    }

    pub(crate) fn reclaim(&mut self, known: &Known) {
        let scope = known.scope.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect();
        self.say(&ToServer::Reclaim { rid: known.rid, scope, info: None, claim: known.claim });
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
        let asked = self.next_rid();
        self.say(&ToServer::Query { rid: asked, name, deadlocks });
        match self.hear() {
            ToClient::Snapshot { rid, entries, deadlocks, last_token } if rid == asked => {
                (entries, deadlocks, last_token)
            }
            other => panic!("not a snapshot: {other:?}"),
        }
    }

    /// Whose requests for a name there are, in order, and which are held.
    pub(crate) fn queue_of(&mut self, name: &str) -> Vec<(String, bool)> {
        let entries = self.query(Some(name.as_bytes()));
        entries.iter().map(|entry| (entry.client_id.into(), entry.token.is_some())).collect()
    }

    pub(crate) fn ping(&mut self) {
        self.say(&ToServer::Ping);
        assert_eq!(self.hear(), ToClient::Pong);
    }
}

/// The bytes of a message, its length before it.
pub(crate) fn framed(message: &ToServer<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame::append(&mut out, |out| message.encode(out));
    out
}
