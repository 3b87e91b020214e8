//! Rules that need a story of more steps than random plans tell: message by message.

use lockkeeper_core::{Limits, Mode, Name};
use lockkeeper_service::{
    Access, Bytes, ConnectionId, Framing, Fresh, Hello, Key, Micros, Origin, Request, Rights, Rule, Server,
    ServerConfig, Session, SessionConfig, State, Ttl, sabotage,
};
use lockkeeper_wire::{
    frame,
    v2::{Flags, ToClient, ToServer},
};

fn server(state: State, ttl: u64, now: Micros) -> Server {
    let config = ServerConfig {
        ttl: Ttl::fixed(ttl),
        limits: Limits::default(),
        sessions: 100,
        buckets: 100,
        bytes: Bytes::default(),
        backlog: 1 << 20,
        slice: 1000,
        hash: |_| [0; 32],
    };
    Server::new(state, config, now, 0, None)
}

struct Client {
    session: Session<()>,
    /// Its connection at the server, and its number at the client.
    line: (ConnectionId, u64),
    id: u64,
}

impl Client {
    fn new(server: &mut Server, id: u64) -> Self {
        let config = SessionConfig { bucket: "default".into(), ..SessionConfig::default() };
        let mut client = Self { session: Session::new(config, 0), line: (0, 0), id };
        client.connect(server, 0);
        client.exchange(server, 0);
        client
    }

    fn connect(&mut self, server: &mut Server, now: Micros) {
        let fresh = Fresh { session: self.id, secret: [0; 16] };
        let id = server.connect(Origin::Network, Framing::Lengths, fresh);
        self.line = (id, self.session.connected(now, None));
    }

    /// What the server answers to all that the client has sent.
    fn up(&mut self, server: &mut Server, now: Micros) -> Vec<Vec<u8>> {
        for message in split(&self.session.take_output()) {
            match ToServer::decode(&message).expect("a message") {
                ToServer::Hello { version, features, hello, bucket, resume, ack, ttl, owner, .. } => {
                    let hello = Hello { version, features, hello, bucket, resume, ack, ttl, owner };
                    let access = Access { rights: Rights::ALL, subject: String::new() };
                    server.hello(now, self.line.0, hello, access).expect("a sound state");
                }
                message => server.message(now, self.line.0, message).expect("a sound state"),
            }
        }
        while let Some(round) = server.take_round() {
            server.round_done(round.number);
        }
        let output = server.output(self.line.0).to_vec();
        server.sent(self.line.0, output.len());
        split(&output)
    }

    fn down(&mut self, messages: &[Vec<u8>], now: Micros) {
        for message in messages {
            self.session.message(now, self.line.1, ToClient::decode(message).expect("a message"));
        }
    }

    fn exchange(&mut self, server: &mut Server, now: Micros) {
        while self.session.has_output() {
            let messages = self.up(server, now);
            self.down(&messages, now);
        }
    }

    fn request(&mut self, server: &mut Server, name: &str, steal: bool) -> Key {
        let flags = Flags { steal, ..Flags::default() };
        let scope = vec![(Name::from(name), Mode::Exclusive)];
        let key = self.session.request(Request { scope, flags, nested_in: None, info: None }, ());
        self.exchange(server, 0);
        key
    }
}

fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Ok(Some((message, length))) = frame::first(bytes, frame::MAX_TO_CLIENT) {
        messages.push(message.to_vec());
        bytes = &bytes[length..];
    }
    messages
}

/// A lock is stolen while its client is cut off, and the server starts again with a shorter lease.
/// The answer to its Hello is cut off before the end marker, and the next one is lost. Returns
/// whether the client believes in its other lock, and whether the server still has its session,
/// when the shorter lease is over.
fn shorter_lease_half_told() -> (bool, bool) {
    let mut first = server(State::new(1), 4000, 0);
    let mut client = Client::new(&mut first, 1);
    let held = client.request(&mut first, "a", false);
    client.request(&mut first, "b", false);
    first.disconnect(client.line.0);
    client.session.disconnected(0, client.line.1);
    let mut thief = Client::new(&mut first, 2);
    thief.request(&mut first, "b", true);

    let snapshot = first.state_mut().snapshot();
    let mut second = server(State::restore([&snapshot], 2).expect("a snapshot"), 300, 0);
    client.connect(&mut second, 0);
    let answer = client.up(&mut second, 0);
    assert_eq!(answer.len(), 4, "Welcome, what is held, what was stolen, the end marker");
    client.down(&answer[..3], 0);
    second.disconnect(client.line.0);
    client.session.disconnected(0, client.line.1);
    client.connect(&mut second, 0);
    client.up(&mut second, 0);
    second.wake(300_001).expect("a sound state");
    (client.session.is_held(300_001, held), second.state().session(1).is_some())
}

#[test]
fn a_welcome_is_acknowledged_after_all_that_came_with_it() {
    assert_eq!(shorter_lease_half_told(), (true, true));
    sabotage(&[Rule::WelcomeNumber]);
    let without = shorter_lease_half_told();
    sabotage(&[]);
    assert_eq!(without, (true, false), "the rule is not noticed");
}
