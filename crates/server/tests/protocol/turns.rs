//! Connections take turns. Daemon and clients are tasks of one thread here, so how many turns each
//! has does not depend on how the system schedules threads.

use crate::{client::hello, daemon::Daemon, temp::Temp};
use lockkeeper_core::Mode;
use lockkeeper_server::serve;
use lockkeeper_wire::{
    frame,
    v2::{EndFlags, Flags, ToClient, ToServer},
};
use std::{
    cell::Cell,
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    runtime,
    task::{JoinHandle, LocalSet, spawn_local},
};

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    /// Bytes of the input that were messages.
    heard: usize,
    last_rid: u64,
}

impl Client {
    async fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).await.expect("it listens");
        let mut client = Self { stream, input: Vec::new(), heard: 0, last_rid: 0 };
        client.say(&hello("default")).await;
        client.hear_until(|message| matches!(message, ToClient::Synced)).await;
        client
    }

    async fn say(&mut self, message: &ToServer<'_>) {
        let mut bytes = Vec::new();
        frame::append(&mut bytes, |out| message.encode(out));
        self.stream.write_all(&bytes).await.expect("it listens");
    }

    /// Hears messages up to the first that is meant.
    async fn hear_until(&mut self, is_meant: impl Fn(&ToClient<'_>) -> bool) {
        loop {
            let input = &self.input[self.heard..];
            if let Some((message, length)) = frame::first(input, frame::MAX_TO_CLIENT).expect("frames") {
                let meant = is_meant(&ToClient::decode(message).expect("a message"));
                self.heard += length;
                if meant {
                    return;
                }
                continue;
            }
            self.input.drain(..std::mem::take(&mut self.heard));
            assert!(self.stream.read_buf(&mut self.input).await.expect("it speaks") > 0, "it is there");
        }
    }

    async fn request(&mut self, name: &str, flags: Flags, nested_in: Option<u64>) -> u64 {
        self.last_rid += 1;
        let (rid, scope) = (self.last_rid, vec![(name.as_bytes(), Mode::Exclusive)]);
        let nested_in = nested_in.map(|rid| (None, rid));
        self.say(&ToServer::Request { ack: 1, rid, scope, flags, nested_in, info: None }).await;
        rid
    }

    async fn ping(&mut self) {
        self.say(&ToServer::Ping { ack: 1, seq: 1 }).await;
        self.hear_until(|message| matches!(message, ToClient::Pong { .. })).await;
    }
}

/// Serves, and runs a test within the same thread.
fn serve_for(ttl: Option<Duration>, test: impl AsyncFnOnce(&Path)) {
    let mut daemon = Daemon::prepare(Temp::new());
    daemon.setup.ttl = ttl.unwrap_or(daemon.setup.ttl);
    let config = daemon.setup.clone().config(None);
    let socket = config.socket.clone();
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, serve(config, test(&socket))).expect("it serves");
}

/// Asks for 20,000 entries, again and again. Counts the parts of the answers.
async fn query_all(mut client: Client, parts: Rc<Cell<u32>>) {
    for number in 0..20_000 {
        client.request(&format!("n{number}"), Flags::default(), None).await;
    }
    client.hear_until(|message| matches!(message, ToClient::Granted { rid: 20_000, .. })).await;
    loop {
        client.last_rid += 1;
        client.say(&ToServer::Query { ack: 1, rid: client.last_rid, name: None, deadlocks: false }).await;
        let ends = |message: &ToClient<'_>| {
            parts.set(parts.get() + 1);
            matches!(message, ToClient::Snapshot { more: false, .. })
        };
        client.hear_until(ends).await;
    }
}

/// Makes requests that are refused because they would close a long cycle. Counts the refusals.
async fn close_cycles(mut client: Client, refusals: Rc<Cell<u32>>) {
    const LONG: u32 = 300;
    let name = |number: u32| format!("{number}{}", "m".repeat(1_000));
    let first = client.request(&name(0), Flags::default(), None).await;
    for number in 1..LONG {
        let outer = client.request(&name(number), Flags::default(), None).await;
        client.request(&name(number - 1), Flags::default(), Some(outer)).await;
    }
    let flags = Flags { refuse_deadlock: true, ..Flags::default() };
    loop {
        for _ in 0..100 {
            client.request(&name(LONG - 1), flags, Some(first)).await;
        }
        let last_rid = client.last_rid;
        let ends = |message: &ToClient<'_>| match message {
            ToClient::Deadlocked { rid, .. } => {
                refusals.set(refusals.get() + 1);
                *rid == last_rid
            }
            _ => false,
        };
        client.hear_until(ends).await;
    }
}

/// Has a client attack, and another one ping 200 times. Returns how many answers the attacker got
/// for each ping.
fn answers_per_ping<A>(attack: impl FnOnce(Client, Rc<Cell<u32>>) -> A) -> u32
where
    A: Future<Output = ()> + 'static,
{
    const PINGS: u32 = 200;
    let mean = Cell::new(0);
    serve_for(None, async |socket| {
        let answers = Rc::new(Cell::new(0));
        let mut victim = Client::open(socket).await;
        let attacker = spawn_local(attack(Client::open(socket).await, Rc::clone(&answers)));
        let pings = spawn_local(async move {
            while answers.get() == 0 {
                victim.ping().await;
            }
            let before = answers.get();
            for _ in 0..PINGS {
                victim.ping().await;
            }
            (answers.get() - before).div_ceil(PINGS)
        });
        mean.set(pings.await.expect("they are answered"));
        assert!(!attacker.is_finished(), "it attacks all the time");
        attacker.abort();
    });
    mean.get()
}

/// A commit woke whoever had just ended a turn: the daemon sent 20 parts and more before it looked
/// for what had come in.
#[test]
fn long_answers_delay_others_by_few_parts() {
    let parts = answers_per_ping(query_all);
    assert!(parts <= 4, "{parts} parts for each ping");
}

#[test]
fn refused_deadlocks_delay_others_by_few_searches() {
    let refusals = answers_per_ping(close_cycles);
    assert!(refusals <= 4, "{refusals} refusals for each ping");
}

#[test]
fn no_lease_is_lost_while_others_attack() {
    const TTL: Duration = Duration::from_secs(1);
    serve_for(Some(TTL), async |socket| {
        let answers = Rc::new(Cell::new(0));
        let mut victim = Client::open(socket).await;
        let mine = victim.request("mine", Flags::default(), None).await;
        let attackers = [
            spawn_local(query_all(Client::open(socket).await, Rc::clone(&answers))),
            spawn_local(close_cycles(Client::open(socket).await, Rc::clone(&answers))),
        ];
        let attacked = Instant::now();
        let pings = spawn_local(async move {
            // Three leases long.
            while attacked.elapsed() < 3 * TTL {
                victim.ping().await;
            }
            // Its connection would have been closed with its session.
            let end = ToServer::Release { ack: 1, rid: mine, flags: EndFlags::default() };
            victim.say(&end).await;
            victim.hear_until(|message| matches!(message, ToClient::Released { .. })).await;
        });
        pings.await.expect("its session is there");
        assert!(answers.get() > 100 && !attackers.iter().any(JoinHandle::is_finished), "they attack");
        attackers.iter().for_each(JoinHandle::abort);
    });
}
