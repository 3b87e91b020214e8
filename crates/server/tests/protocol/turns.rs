//! Connections take turns. Daemon and clients are tasks of one thread here, so how many turns each
//! has does not depend on how the system schedules threads.

use crate::{client::hello, daemon::Daemon, network::certify, temp::Temp};
use lockkeeper_core::Mode;
use lockkeeper_server::{Listen, serve};
use lockkeeper_wire::{
    frame,
    v2::{EndFlags, Flags, ToClient, ToServer},
    websocket::SUBPROTOCOL,
};
use std::{
    cell::Cell,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    runtime,
    task::{JoinHandle, LocalSet, spawn_local},
};
use tokio_rustls::rustls;

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
fn serve_for(ttl: Option<Duration>, listen: Option<Listen>, test: impl AsyncFnOnce(&Path)) {
    let mut daemon = Daemon::prepare(Temp::new());
    daemon.setup.ttl = ttl.unwrap_or(daemon.setup.ttl);
    let config = daemon.setup.clone().config(listen);
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

/// Sends the same again and again. Counts answers of that length.
async fn flood(stream: impl AsyncRead + AsyncWrite, said: Vec<u8>, answer: usize, answers: Rc<Cell<u32>>) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let says = async { while writer.write_all(&said).await.is_ok() {} };
    let hears = async {
        let (mut heard, mut left) = (vec![0; 64 << 10], 0);
        while let Ok(count @ 1..) = reader.read(&mut heard).await {
            left += count;
            answers.set(answers.get() + u32::try_from(left / answer).expect("few"));
            left %= answer;
        }
    };
    tokio::join!(says, hears);
}

/// Opens a WebSocket, and pings without a Hello. Counts the pongs.
async fn ping_as_a_stranger(address: SocketAddr, pongs: Rc<Cell<u32>>) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("it listens");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("it answers"));
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
    flood(stream, b"\x89\x80mask".repeat(10_000), 2, pongs).await;
}

/// Pings on so many connections at a time. Counts the pongs.
async fn ping_on_many(socket: PathBuf, connections: usize, pongs: Rc<Cell<u32>>) {
    let (mut said, mut answer) = (Vec::new(), Vec::new());
    frame::append(&mut said, |out| ToServer::Ping { ack: 1, seq: 1 }.encode(out));
    frame::append(&mut answer, |out| ToClient::Pong { seq: 1 }.encode(out));
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(Client::open(&socket).await);
    }
    let attack = |client: Client| {
        spawn_local(flood(client.stream, said.repeat(5_000), answer.len(), Rc::clone(&pongs)))
    };
    let attackers: Vec<_> = clients.into_iter().map(attack).collect();
    for attacker in attackers {
        attacker.await.expect("it attacks");
    }
}

/// Begins handshakes of TLS, many at a time, all with the same message. Counts the answers.
async fn begin_tls(address: SocketAddr, connections: usize, answers: Rc<Cell<u32>>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = "localhost".try_into().expect("it is a name");
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("it is set up");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("it is written to memory");
    let begin = async || loop {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(&hello).await.expect("it listens");
        stream.read_u8().await.expect("it answers");
        answers.set(answers.get() + 1);
    };
    let mut attackers: Vec<_> = (0..connections).map(|_| Box::pin(begin())).collect();
    std::future::poll_fn(|context| {
        attackers.iter_mut().for_each(|attacker| _ = attacker.as_mut().poll(context));
        Poll::<()>::Pending
    })
    .await;
}

/// Has somebody attack, and a client ping so many times. Returns how many answers the attacker got
/// for each ping.
fn answers_per_ping<A>(
    count: u32,
    listen: Option<Listen>,
    attack: impl FnOnce(PathBuf, Rc<Cell<u32>>) -> A,
) -> u32
where
    A: Future<Output = ()> + 'static,
{
    let mean = Cell::new(0);
    serve_for(None, listen, async |socket| {
        let answers = Rc::new(Cell::new(0));
        let mut victim = Client::open(socket).await;
        let attacker = spawn_local(attack(socket.to_owned(), Rc::clone(&answers)));
        let pings = spawn_local(async move {
            while answers.get() == 0 {
                victim.ping().await;
            }
            let before = answers.get();
            for _ in 0..count {
                victim.ping().await;
            }
            (answers.get() - before).div_ceil(count)
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
    let attack = async |socket: PathBuf, parts| query_all(Client::open(&socket).await, parts).await;
    let parts = answers_per_ping(200, None, attack);
    assert!(parts <= 4, "{parts} parts for each ping");
}

#[test]
fn refused_deadlocks_delay_others_by_few_searches() {
    let attack = async |socket: PathBuf, refusals| close_cycles(Client::open(&socket).await, refusals).await;
    let refusals = answers_per_ping(200, None, attack);
    assert!(refusals <= 4, "{refusals} refusals for each ping");
}

/// Frames that are no messages were no work, also before Hello: tens of thousands had one turn.
#[test]
fn pings_of_a_stranger_delay_others_by_few() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = port.local_addr().expect("it has one");
    let listen = Listen { given: Some(Arc::new(port)), ..Listen::at(address) };
    let pongs =
        answers_per_ping(
            200,
            Some(listen),
            |_, pongs| async move { ping_as_a_stranger(address, pongs).await },
        );
    assert!(pongs <= 4_000, "{pongs} pongs for each ping");
}

/// As many signatures were made in one go as there were handshakes.
#[test]
fn handshakes_of_tls_delay_others_by_few() {
    let dir = Temp::new();
    certify(&dir.join(""));
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = port.local_addr().expect("it has one");
    let tls = Some((dir.join("cert.pem"), dir.join("key.pem")));
    let listen = Listen { given: Some(Arc::new(port)), tls, ..Listen::at(address) };
    let answers =
        answers_per_ping(
            200,
            Some(listen),
            |_, answers| async move { begin_tls(address, 50, answers).await },
        );
    assert!(answers <= 5, "{answers} answers for each ping");
}

/// Each connection had a whole turn, however many had more to do.
#[test]
fn those_who_are_busy_have_shorter_turns_if_they_are_many() {
    const MANY: usize = 200;
    let attack = async |socket: PathBuf, pongs| ping_on_many(socket, MANY, pongs).await;
    let pongs = answers_per_ping(20, None, attack);
    assert!(pongs <= 80_000, "{pongs} pongs for each ping");
}

#[test]
fn no_lease_is_lost_while_others_attack() {
    const TTL: Duration = Duration::from_secs(1);
    serve_for(Some(TTL), None, async |socket| {
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
