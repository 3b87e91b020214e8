//! A batch is no longer than what etcd takes, however many sessions end at once.

use lockkeeper_core::Limits;
use lockkeeper_service::{
    Access, BATCH, Bytes, Framing, Fresh, Hello, Origin, Rights, Server, ServerConfig, State, Ttl,
};
use lockkeeper_wire::v2::VERSION;

const SESSIONS: u64 = 60_000;

fn config() -> ServerConfig {
    ServerConfig {
        ttl: Ttl::fixed(1000),
        limits: Limits::default(),
        sessions: usize::MAX,
        buckets: 10,
        bytes: Bytes::default(),
        backlog: 1 << 20,
        slice: 1000,
        hash: |_| [0; 32],
    }
}

/// A server with many sessions.
fn server() -> Server {
    let mut server = Server::new(State::new(1), config(), 0, 0, None);
    for session in 0..SESSIONS {
        let fresh = Fresh { session, secret: [0; 16] };
        let id = server.connect(Origin::Network, Framing::Lengths, fresh);
        let hello = Hello {
            version: VERSION,
            features: 0,
            hello: 1,
            bucket: "a",
            resume: None,
            ack: 0,
            ttl: None,
            owner: None,
        };
        let access = Access { rights: Rights::ALL, subject: String::new() };
        server.hello(0, id, hello, access).expect("the state is right");
    }
    commit(&mut server);
    server
}

/// Commits what there is. Returns the bytes of the batch.
fn commit(server: &mut Server) -> usize {
    let Some(round) = server.take_round() else { return 0 };
    server.round_done(round.number);
    round.batch.len()
}

/// Wakes the server until all sessions have ended. Each batch is a little longer than [`BATCH`] at
/// most.
fn end_all(server: &mut Server, now: u64) {
    let mut batches = 0;
    while server.state().session_count() > 0 {
        assert!(server.next_wake().is_some_and(|at| at <= now), "it wants to go on");
        server.wake(now).expect("the state is right");
        let bytes = commit(server);
        assert!((1..BATCH + 100).contains(&bytes), "{bytes}");
        batches += 1;
    }
    assert!(batches > 1);
}

#[test]
fn sessions_that_expire_together_end_in_several_batches() {
    let mut server = server();
    end_all(&mut server, 2_000_000);
}

#[test]
fn sessions_of_before_a_crash_end_in_several_batches() {
    let mut state = server();
    let snapshot = state.state_mut().snapshot();
    let state = State::restore([snapshot], 2).expect("it is whole");
    let mut server = Server::new(state, config(), 0, 0, None);
    server.recover_from_crash(100, BATCH).expect("the state is right");
    assert!(server.is_blind(0), "sessions are left");
    let bytes = commit(&mut server);
    assert!((BATCH..BATCH + 100).contains(&bytes), "{bytes}");
    end_all(&mut server, 0);
    assert!(!server.is_blind(0));
}
