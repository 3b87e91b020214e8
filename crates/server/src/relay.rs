//! Clients of a daemon that does not lead: it relays their messages to the leader, and the answers
//! back.
//!
//! Each client has its own connection between the two daemons. It ends with the client's
//! connection, with the leader's, and when another daemon leads. The daemon that has the client
//! decides the client's identity and rights, and sends them when it connects: a ticket, sealed with
//! a key that the daemons of a fleet keep in their store. The ticket contains the leader's number,
//! so it is valid for one leadership only.

use crate::{
    connection::{CLOSE_TIMEOUT, Peer, Transport},
    daemon::Sender,
    handshakes::{PendingHandshake, why_malformed},
    node::{Leader, Node},
    unfinished::{self, Unfinished},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use lockkeeper_client::Address;
use lockkeeper_service::{Access, ConnectionId, Framing, Origin, Rights};
use lockkeeper_wire::{
    frame,
    v2::{ToClient, ToServer, code},
    websocket::{self, Broken, Frames, GOING_AWAY, Incoming},
};
use ring::hmac;
use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::HashMap,
    future::pending,
    io,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf},
    net::TcpStream,
    sync::{Notify, watch},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, crypto::ring as provider, pki_types::ServerName},
};

/// The path of a relay's request to a leader, the header of its ticket, and the upgrade.
pub(crate) const PATH: &str = "/relay";
pub(crate) const HEADER: &str = "lockkeeper-relay";
pub(crate) const UPGRADE: &str = "lockkeeper-relay";

/// In the answer of a leader that cannot serve clients just now: why.
pub(crate) const UNHEALTHY: &str = "lockkeeper-unhealthy";

/// How long a leader may take to let a relay in.
const CONNECT: Duration = Duration::from_secs(2);

/// For how long a leader that could not be reached is held to be out of reach.
const LATELY: Duration = Duration::from_secs(10);

/// How long a client may leave unread what there is for it.
const UNREAD: Duration = Duration::from_secs(15);

/// The longest answer to that.
const HEAD: usize = 4 << 10;

/// Bytes that are read in one go.
const READ: usize = 16 << 10;

/// How daemons of a fleet reach each other.
pub(crate) struct Relays {
    key: hmac::Key,
    tls: OnceCell<TlsConnector>,
    /// The number of this daemon's leadership.
    owner: Cell<u64>,
    counted: Rc<()>,
    /// The memory of relays for unforwarded messages and long tokens.
    unfinished: RefCell<Unfinished>,
    /// Told to a relay that has too much of it.
    too_much: RefCell<HashMap<ConnectionId, Rc<Notify>>>,
    last: Cell<ConnectionId>,
    /// The leader that could not be reached, when, and why.
    unreachable: RefCell<Option<(String, Instant, String)>>,
    /// The leader that was reached and cannot serve clients, when it said so, and why.
    unhealthy: RefCell<Option<(String, Instant, String)>>,
}

/// Recent observations of this leader.
fn lately(noticed: &RefCell<Option<(String, Instant, String)>>, leader: &Leader) -> Option<String> {
    let noticed = noticed.borrow();
    let noticed = noticed.as_ref().filter(|(url, when, _)| *url == leader.url && when.elapsed() < LATELY);
    noticed.map(|(_, _, why)| why.clone())
}

impl Relays {
    /// With the key of the fleet, for clients that may take so many bytes in all.
    pub(crate) fn new(key: &[u8], bytes: usize) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key),
            tls: OnceCell::new(),
            owner: Cell::new(0),
            counted: Rc::default(),
            unfinished: RefCell::new(Unfinished::new(bytes)),
            too_much: RefCell::default(),
            last: Cell::new(0),
            unreachable: RefCell::default(),
            unhealthy: RefCell::default(),
        }
    }

    /// Checks leaders' certificates as clients do. Loaded on the first connection with TLS.
    fn tls(&self) -> io::Result<TlsConnector> {
        if let Some(tls) = self.tls.get() {
            return Ok(tls.clone());
        }
        let config = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let config = config.with_root_certificates(lockkeeper_client::trusted()?).with_no_client_auth();
        Ok(self.tls.get_or_init(|| TlsConnector::from(Arc::new(config))).clone())
    }

    /// This daemon leads, under that number.
    pub(crate) fn lead(&self, owner: u64) {
        self.owner.set(owner);
    }

    /// Why this leader could not be reached, if that was lately.
    pub(crate) fn unreachable(&self, leader: &Leader) -> Option<String> {
        let why = lately(&self.unreachable, leader)?;
        Some(format!("the leader, {}, cannot be reached: {why}", leader.url))
    }

    /// Why this leader cannot serve clients, if it said so lately.
    pub(crate) fn unhealthy(&self, leader: &Leader) -> Option<String> {
        let why = lately(&self.unhealthy, leader)?;
        Some(format!("the leader, {}: {why}", leader.url))
    }

    /// Finds out whether clients can be relayed to this leader. Why not, if they cannot.
    pub(crate) async fn probe(&self, leader: &Leader) -> Option<String> {
        let rights = Rights { steal: false, force_release: false, inspect: false };
        let access = Access { rights, subject: String::new() };
        let connected = timeout(CONNECT, self.connect(leader, &access)).await;
        let error = connected.map_err(io::Error::from).flatten().err();
        *self.unreachable.borrow_mut() =
            error.map(|error| (leader.url.clone(), Instant::now(), error.to_string()));
        self.unreachable(leader)
    }

    /// How many clients are relayed.
    pub(crate) fn count(&self) -> usize {
        Rc::strong_count(&self.counted) - 1
    }

    fn ticket(&self, leader: &Leader, access: &Access) -> String {
        let Rights { steal, force_release, inspect } = access.rights;
        let mut ticket = leader.owner.to_le_bytes().to_vec();
        ticket.push(u8::from(steal) | u8::from(force_release) << 1 | u8::from(inspect) << 2);
        ticket.extend_from_slice(access.subject.as_bytes());
        let seal = hmac::sign(&self.key, &ticket);
        ticket.extend_from_slice(seal.as_ref());
        URL_SAFE_NO_PAD.encode(ticket)
    }

    /// The rights in a ticket, if it is sealed with the fleet's key and for this leadership.
    pub(crate) fn check(&self, ticket: Option<&str>) -> Result<Access, String> {
        let wrong = "the relay has no ticket of this fleet";
        let ticket = ticket.and_then(|ticket| URL_SAFE_NO_PAD.decode(ticket).ok()).ok_or(wrong)?;
        let split = ticket.len().checked_sub(32).ok_or(wrong)?;
        let (ticket, seal) = ticket.split_at(split);
        hmac::verify(&self.key, ticket, seal).map_err(|_| wrong)?;
        let (owner, rest) = ticket.split_first_chunk().ok_or(wrong)?;
        let (rights, subject) = rest.split_first().ok_or(wrong)?;
        if u64::from_le_bytes(*owner) != self.owner.get() {
            return Err("this daemon leads no longer".into());
        }
        let has = |bit: u8| rights >> bit & 1 == 1;
        let rights = Rights { steal: has(0), force_release: has(1), inspect: has(2) };
        Ok(Access { rights, subject: String::from_utf8_lossy(subject).into_owned() })
    }

    /// Connects to the leader for a client.
    async fn connect(&self, leader: &Leader, access: &Access) -> io::Result<(Box<dyn Duplex>, Vec<u8>)> {
        let address = Address::parse(&leader.url);
        let address = address.ok_or_else(|| io::Error::other(format!("{} is no address", leader.url)))?;
        let stream = TcpStream::connect((&*address.host, address.port)).await?;
        stream.set_nodelay(true)?;
        let mut stream: Box<dyn Duplex> = match address.tls {
            true => {
                let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
                Box::new(self.tls()?.connect(name, stream).await?)
            }
            false => Box::new(stream),
        };
        let request = format!(
            "GET {PATH} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\
             {HEADER}: {}\r\n\r\n",
            address.authority(),
            self.ticket(leader, access)
        );
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        loop {
            if stream.read_buf(&mut answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let end = answer.windows(4).position(|end| end == b"\r\n\r\n");
            match end {
                Some(end) if answer.starts_with(b"HTTP/1.1 101 ") => {
                    let head = String::from_utf8_lossy(&answer[..end]);
                    let mut headers = head.lines().filter_map(|line| line.split_once(": "));
                    let why = headers.find(|(name, _)| name.eq_ignore_ascii_case(UNHEALTHY));
                    let why = why.map(|(_, why)| (leader.url.clone(), Instant::now(), why.to_owned()));
                    *self.unhealthy.borrow_mut() = why;
                    return Ok((stream, answer.split_off(end + 4)));
                }
                None if answer.len() < HEAD => {}
                _ => {
                    let words = String::from_utf8_lossy(&answer);
                    let words =
                        words.split_once("\r\n\r\n").map_or(&*words, |(_, body)| body).trim().to_owned();
                    return Err(io::Error::other(words));
                }
            }
        }
    }
}

/// Counts what a relay keeps.
struct Counted<'a> {
    relays: &'a Relays,
    id: ConnectionId,
    too_much: Rc<Notify>,
}

impl<'a> Counted<'a> {
    fn new(relays: &'a Relays) -> Self {
        let (id, too_much) = (relays.last.get() + 1, Rc::<Notify>::default());
        relays.last.set(id);
        relays.too_much.borrow_mut().insert(id, Rc::clone(&too_much));
        Self { relays, id, too_much }
    }

    fn set(&self, bytes: usize) {
        let longest = self.relays.unfinished.borrow_mut().set(self.id, bytes);
        if let Some(relay) = longest.and_then(|longest| self.relays.too_much.borrow().get(&longest).cloned())
        {
            relay.notify_one();
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.relays.unfinished.borrow_mut().set(self.id, 0);
        self.relays.too_much.borrow_mut().remove(&self.id);
    }
}

/// A stream in both directions.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Duplex for S {}

/// A client that is not served yet. `input` has been read already.
pub(crate) struct Client<S> {
    pub(crate) stream: S,
    pub(crate) input: Vec<u8>,
    pub(crate) peer: Peer,
    pub(crate) handshake: PendingHandshake,
}

/// Relays a client. Gives it back as it was if the leader cannot be reached.
pub(crate) async fn run<S: Transport>(
    client: Client<S>,
    node: &Rc<Node>,
    leader: &Leader,
) -> io::Result<Option<Client<S>>> {
    let Client { stream, input, peer, handshake } = client;
    let Sender::Client(subject) = &peer.sender else { return Ok(None) };
    let Some(relays) = &node.relays else { return Ok(None) };
    let origin = peer.origin;
    let framing = framing_of(origin);
    let frames = matches!(framing, Framing::WebSocket).then(|| Frames::new(true, handshake.max()));
    let (reader, writer) = tokio::io::split(stream);
    let counted = Counted::new(relays);
    let too_much = Rc::clone(&counted.too_much);
    let mut from_client = FromClient {
        reader,
        input,
        start: 0,
        counted,
        frames,
        batch: (Vec::new(), 0),
        token: 0,
        max: handshake.max(),
        before_hello: true,
        going_away_ends: false,
        over: false,
    };
    let to_client = ToClientQueue::default();
    let mut writer = Writer { writer, framing };
    let hello = match from_client.message(&to_client).await {
        Ok(Some(hello)) => hello,
        Ok(None) => return Ok(None),
        Err(error) if is_malformed(&error) => {
            writer.goodbye(code::MALFORMED, &error.to_string()).await?;
            return from_client.finish().await.map(|()| None);
        }
        Err(error) => return Err(error),
    };
    let mut first = Vec::new();
    // Subscribed before its token is checked: the token may be invalid once the leader is reached.
    let changes = node.gate.changes();
    let admitted = match ToServer::decode(&hello) {
        Ok(ToServer::Hello { version, features, hello, bucket, resume, ack, token, ttl, owner }) => {
            let bucket = &*peer.bucket(bucket);
            from_client.going_away_ends = peer.ends_going_away(features);
            // The token stays here.
            let hello =
                ToServer::Hello { version, features, hello, bucket, resume, ack, token: None, ttl, owner };
            frame::append(&mut first, |out| hello.encode(out));
            let kept =
                token.filter(|_| node.gate.has_keys()).map(|token| (token.to_owned(), bucket.to_owned()));
            let admitted = node.gate.admit(origin, subject, token, bucket);
            admitted.map(|access| (access, kept)).map_err(|why| (code::UNAUTHORIZED, why))
        }
        Ok(_) => Err((code::OUT_OF_ORDER, "the first message is Hello".to_owned())),
        Err(error) => Err((code::MALFORMED, error.to_string())),
    };
    let (access, token) = match admitted {
        Ok(admitted) => admitted,
        Err((code, why)) => return writer.goodbye(code, &why).await.map(|()| None),
    };
    let connected = timeout(CONNECT, relays.connect(leader, &access)).await;
    let (mut upstream, answer) = match connected.map_err(io::Error::from).flatten() {
        Ok(connected) => {
            *relays.unreachable.borrow_mut() = None;
            connected
        }
        Err(error) => {
            tracing::info!(leader = leader.url, %error, "the leader cannot be reached");
            *relays.unreachable.borrow_mut() = Some((leader.url.clone(), Instant::now(), error.to_string()));
            let FromClient { reader, input: rest, start, batch, .. } = from_client;
            let mut input = Vec::new();
            match framing {
                Framing::Lengths => frame::append(&mut input, |out| out.extend_from_slice(&hello)),
                Framing::WebSocket => websocket::append(&mut input, Some([0; 4]), |out| {
                    out.extend_from_slice(&hello);
                    out.extend_from_slice(&batch.0[batch.1..]);
                }),
            }
            input.extend_from_slice(&rest[start..]);
            let stream = reader.unsplit(writer.writer);
            return Ok(Some(Client { stream, input, peer, handshake }));
        }
    };
    drop(handshake);
    from_client.token = token.as_ref().map_or(0, |(token, _)| token.len());
    upstream.write_all(&first).await?;
    let _counted = Rc::clone(&relays.counted);
    from_client.grant_length();
    let (from_leader, to_leader) = tokio::io::split(upstream);
    let watched = Watched { node, token, rights: access.rights, changes };
    tokio::select! {
        done = upward(&mut from_client, to_leader, &to_client, watched) => if let Some(why) = done? {
            writer.goodbye(code::ENDED, why).await?;
        },
        done = downward(from_leader, answer, &mut writer, &to_client) => done?,
        () = too_much.notified() => {
            let why = relays.unfinished.borrow().why();
            writer.goodbye(code::LIMIT, &why).await?;
        }
        () = node.leader_changed(leader) => {}
    }
    timeout(UNREAD, writer.writer.shutdown()).await??;
    from_client.finish().await.map(|()| None)
}

/// How messages of a client are delimited.
fn framing_of(origin: Origin) -> Framing {
    match origin {
        Origin::Local => Framing::Lengths,
        Origin::Network => Framing::WebSocket,
    }
}

/// Refuses a client with the reason.
pub(crate) async fn turn_away<S: Transport>(client: Client<S>, why: &str) -> io::Result<()> {
    let framing = framing_of(client.peer.origin);
    let (mut reader, writer) = tokio::io::split(client.stream);
    Writer { writer, framing }.goodbye(code::RECOVERING, why).await?;
    read_to_end(&mut reader).await
}

/// Closing a TCP connection with something unread resets it, and the last message could be lost on
/// its way.
async fn read_to_end(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut rest = Vec::with_capacity(READ);
    let read = async {
        while reader.read_buf(&mut rest).await? > 0 {
            rest.clear();
        }
        Ok(())
    };
    timeout(CLOSE_TIMEOUT, read).await?
}

/// For the client, what does not come from the leader.
#[derive(Default)]
struct ToClientQueue {
    /// Answers to pings of a WebSocket.
    bytes: RefCell<Vec<u8>>,
    filled: Notify,
    /// Why what it sent is not passed on any more. The leader was sent a message that is none
    /// instead: its Goodbye comes after its answers, and goes to the client with this reason.
    malformed: RefCell<Option<String>>,
}

struct FromClient<'a, S> {
    reader: ReadHalf<S>,
    input: Vec<u8>,
    /// How much of the input is done with.
    start: usize,
    counted: Counted<'a>,
    frames: Option<Frames>,
    /// A frame whose messages were not all taken, and how much of it is done.
    batch: (Vec<u8>, usize),
    /// Bytes of the token that is kept.
    token: usize,
    max: usize,
    before_hello: bool,
    /// Status 1001 ends its session: its Hello has that feature, and no proxy can have sent the
    /// status.
    going_away_ends: bool,
    over: bool,
}

impl<S: Transport> FromClient<'_, S> {
    /// After Hello, messages may be long.
    fn grant_length(&mut self) {
        (self.max, self.before_hello) = (frame::MAX, false);
        if let Some(frames) = &mut self.frames {
            frames.set_max(frame::MAX);
        }
    }

    /// Reads and discards the rest.
    async fn finish(mut self) -> io::Result<()> {
        self.counted.set(0);
        read_to_end(&mut self.reader).await
    }

    /// Counts what it keeps of messages that were not passed on.
    fn count(&self) {
        let kept = self.input.len() + self.batch.0.len() + self.frames.as_ref().map_or(0, Frames::kept);
        self.counted.set(unfinished::counted(kept) + unfinished::counted(self.token));
    }

    /// The next message, or none at the end. Nothing is lost if it is not awaited to its end.
    async fn message(&mut self, to_client: &ToClientQueue) -> io::Result<Option<Vec<u8>>> {
        let mut begun = false;
        loop {
            if let Some(message) = self.next(to_client)? {
                return Ok(Some(message));
            }
            if self.over {
                return Ok(None);
            }
            // Thousands of frames that are no messages fit into one read.
            if std::mem::replace(&mut begun, true) {
                tokio::task::yield_now().await;
            }
            self.input.drain(..std::mem::take(&mut self.start));
            self.count();
            make_room(&mut self.input);
            if self.reader.read_buf(&mut self.input).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next message of what was read.
    fn next(&mut self, to_client: &ToClientQueue) -> io::Result<Option<Vec<u8>>> {
        let before_hello = self.before_hello;
        let refused = |error| malformed(why_malformed(error, before_hello));
        let Some(frames) = &mut self.frames else {
            let first = frame::first(&self.input[self.start..], self.max);
            let first = first.map_err(|error| refused(Broken::TooLong(error)))?;
            let Some((message, length)) = first else { return Ok(None) };
            self.start += length;
            return Ok(Some(message.to_vec()));
        };
        while !self.over {
            let (batch, done) = &mut self.batch;
            if *done < batch.len() {
                let (message, _) = websocket::first_message(&batch[*done..]).map_err(malformed)?;
                *done += message.len();
                return Ok(Some(message.to_vec()));
            }
            let Some((said, length)) = frames.first(&mut self.input[self.start..]).map_err(refused)? else {
                self.batch = (Vec::new(), 0);
                break;
            };
            match said {
                Incoming::Messages([]) => return Err(malformed("a frame without a message")),
                Incoming::Messages(frame) => {
                    batch.clear();
                    batch.extend_from_slice(frame);
                    *done = 0;
                }
                Incoming::Ping(ping) => {
                    let mut bytes = to_client.bytes.borrow_mut();
                    if bytes.len() > READ {
                        return Err(malformed("it does not read the answers to its pings"));
                    }
                    websocket::append_pong(&mut bytes, None, ping);
                    to_client.filled.notify_one();
                }
                Incoming::Nothing => {}
                Incoming::Close(status) => {
                    self.over = true;
                    if status == Some(GOING_AWAY) && self.going_away_ends {
                        let mut bye = Vec::new();
                        ToServer::Bye { ack: 0 }.encode(&mut bye);
                        return Ok(Some(bye));
                    }
                }
            }
            self.start += length;
        }
        Ok(None)
    }
}

/// For the next read. What a long message took is given back: it is not counted any more.
fn make_room(input: &mut Vec<u8>) {
    if input.capacity() > 2 * (input.len() + READ) {
        input.shrink_to(input.len() + READ);
    }
    input.reserve(READ);
}

fn malformed(why: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

fn is_malformed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// Watches the keys, whose change can end a relay while the client is silent.
struct Watched<'a> {
    node: &'a Node,
    token: Option<(String, String)>,
    rights: Rights,
    changes: watch::Receiver<()>,
}

impl Watched<'_> {
    /// Done when what the client was let do is not what its token allows. True if that is nothing.
    async fn revoked(&mut self) -> bool {
        loop {
            if self.changes.changed().await.is_err() {
                return pending().await;
            }
            let Some((token, bucket)) = &self.token else { continue };
            match self.node.gate.check_again(token, bucket) {
                Ok(Some(rights)) if rights != self.rights => return false,
                Ok(_) => {}
                Err(()) => return true,
            }
        }
    }
}

/// Passes messages on to the leader, complete ones only. Returns the reason if the client is no
/// longer admitted.
async fn upward<S: Transport>(
    from_client: &mut FromClient<'_, S>,
    mut to_leader: WriteHalf<Box<dyn Duplex>>,
    to_client: &ToClientQueue,
    mut watched: Watched<'_>,
) -> io::Result<Option<&'static str>> {
    let mut out = Vec::new();
    loop {
        out.clear();
        out.shrink_to(2 * READ);
        tokio::select! {
            message = from_client.message(to_client) => {
                let mut message = message;
                loop {
                    match message {
                        Ok(Some(message)) => frame::append(&mut out, |out| out.extend_from_slice(&message)),
                        Ok(None) => break,
                        Err(error) if is_malformed(&error) => {
                            *to_client.malformed.borrow_mut() = Some(error.to_string());
                            frame::append(&mut out, |_| {});
                            break;
                        }
                        Err(error) => return Err(error),
                    }
                    if out.len() >= READ {
                        break;
                    }
                    // Bytes that arrived with it are passed on with it.
                    message = from_client.next(to_client);
                }
                if out.is_empty() {
                    return Ok(None);
                }
            },
            gone = watched.revoked() => {
                if gone {
                    frame::append(&mut out, |out| ToServer::Bye { ack: 0 }.encode(out));
                    to_leader.write_all(&out).await?;
                    to_leader.flush().await?;
                    return Ok(Some("the key of its token was removed, or no longer covers this bucket"));
                }
                // It resumes, and has other rights then.
                return Ok(None);
            }
        }
        // The leader may take a while.
        from_client.count();
        to_leader.write_all(&out).await?;
        to_leader.flush().await?;
        if to_client.malformed.borrow().is_some() {
            // The leader closes the connection.
            std::future::pending::<()>().await;
        }
    }
}

/// Passes the leader's messages on to the client.
async fn downward<S: Transport>(
    mut from_leader: ReadHalf<Box<dyn Duplex>>,
    mut input: Vec<u8>,
    writer: &mut Writer<S>,
    to_client: &ToClientQueue,
) -> io::Result<()> {
    loop {
        let mut out = std::mem::take(&mut *to_client.bytes.borrow_mut());
        let (mut done, mut open) = (0, None);
        while let Some((message, length)) = frame::first(&input[done..], frame::MAX_TO_CLIENT)
            .map_err(|error| io::Error::other(error.to_string()))?
        {
            let why = to_client.malformed.borrow();
            let goodbye = why.as_ref().and_then(|why| match ToClient::decode(message) {
                Ok(ToClient::Goodbye { code: code::MALFORMED, .. }) => {
                    Some(ToClient::Goodbye { code: code::MALFORMED, message: why })
                }
                _ => None,
            });
            writer.framing.append(&mut out, &mut open, |out| match &goodbye {
                Some(goodbye) => goodbye.encode(out),
                None => out.extend_from_slice(message),
            });
            done += length;
        }
        input.drain(..done);
        if !out.is_empty() {
            writer.write(&out).await?;
        }
        make_room(&mut input);
        tokio::select! {
            read = from_leader.read_buf(&mut input) => if read? == 0 {
                return Ok(());
            },
            () = to_client.filled.notified() => {}
        }
    }
}

struct Writer<S> {
    writer: WriteHalf<S>,
    framing: Framing,
}

impl<S: Transport> Writer<S> {
    async fn goodbye(&mut self, code: u32, why: &str) -> io::Result<()> {
        let mut out = Vec::new();
        let goodbye = ToClient::Goodbye { code, message: why };
        self.framing.append(&mut out, &mut None, |out| goodbye.encode(out));
        self.write(&out).await?;
        timeout(UNREAD, self.writer.shutdown()).await?
    }

    /// Fails if the client does not read. It has time for each part: a message may be long.
    async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match timeout(UNREAD, self.writer.write(bytes)).await?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => bytes = &bytes[count..],
            }
        }
        timeout(UNREAD, self.writer.flush()).await?
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Counted, Duplex, FromClient, READ, Relays, ToClientQueue, Transport, UNREAD, Watched, Writer,
        downward,
    };
    use crate::{
        auth::{Keys, Permit, new_keys, sign},
        gate::Gate,
        node::{Following, Node, Role},
    };
    use lockkeeper_service::{Framing, Rights};
    use lockkeeper_wire::{frame, v2::ToClient, websocket::Frames};
    use std::{cell::Cell, io, rc::Rc, time::Duration};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split},
        join, select,
        task::yield_now,
        time::{Instant, timeout},
    };

    impl Transport for DuplexStream {}

    /// A relay to a client, between sockets in memory.
    async fn relay(from_leader: DuplexStream, to_client: DuplexStream) -> io::Result<()> {
        let from_leader: Box<dyn Duplex> = Box::new(from_leader);
        let mut writer = Writer { writer: split(to_client).1, framing: Framing::Lengths };
        downward(split(from_leader).0, Vec::new(), &mut writer, &ToClientQueue::default()).await
    }

    /// Time passes only while all tasks are idle: the runtime's clock is the test's.
    #[tokio::test(start_paused = true)]
    async fn who_reads_nothing_for_15_seconds_is_cut_off_and_delays_nobody() {
        const MANY: usize = 1_000;
        let mut messages = Vec::new();
        for seq in 0..1_000 {
            frame::append(&mut messages, |out| ToClient::Pong { seq }.encode(out));
        }
        let begun = Instant::now();
        let [(mut leader, from_leader), (mut leader_too, from_leader_too)] = [(); 2].map(|()| duplex(READ));
        let [(mut deaf, to_deaf), (mut other, to_other)] = [(); 2].map(|()| duplex(READ));
        let deaf = async {
            let mut some = [0; 100];
            // It reads a little, late, and then no more.
            tokio::time::sleep(UNREAD / 2).await;
            deaf.read_exact(&mut some).await.expect("it is there");
            tokio::time::sleep(2 * UNREAD).await;
        };
        let leaders = async {
            // The leader's own connection to a deaf client fills up as well.
            let (stuck, done) = join!(
                async {
                    loop {
                        if let Err(error) = leader.write_all(&messages).await {
                            break error;
                        }
                    }
                },
                async {
                    for _ in 0..MANY {
                        leader_too.write_all(&messages).await.expect("it is there");
                    }
                    drop(leader_too);
                    begun.elapsed()
                },
            );
            assert_eq!(done, Duration::ZERO, "others are told at once");
            stuck
        };
        let reads = async {
            let mut all = Vec::new();
            other.read_to_end(&mut all).await.expect("it is there");
            all.len()
        };
        let cut = async {
            let cut = relay(from_leader, to_deaf).await;
            (cut.expect_err("it is cut off").kind(), begun.elapsed())
        };
        let (cut, (), served, all, _) = join!(cut, deaf, relay(from_leader_too, to_other), reads, leaders);
        served.expect("it is served to the end");
        assert_eq!(cut, (io::ErrorKind::TimedOut, UNREAD / 2 + UNREAD));
        assert_eq!(all, MANY * messages.len());
    }

    /// Who sent frames that are no messages had 128 reads of them in one turn.
    #[tokio::test]
    async fn others_have_their_turns_while_frames_come_that_are_no_messages() {
        const READS: usize = 64;
        let pongs = b"\x8a\x80mask".repeat(READS * READ / 6);
        let (mut client, stream) = duplex(pongs.len());
        client.write_all(&pongs).await.expect("there is room");
        drop(client);
        let relays = Relays::new(&[1; 32], usize::MAX);
        let mut from_client = FromClient {
            reader: split(stream).0,
            input: Vec::new(),
            start: 0,
            counted: Counted::new(&relays),
            frames: Some(Frames::new(true, READ)),
            batch: (Vec::new(), 0),
            token: 0,
            max: READ,
            before_hello: true,
            going_away_ends: false,
            over: false,
        };
        let turns = Cell::new(0);
        let others = async {
            loop {
                turns.set(turns.get() + 1);
                yield_now().await;
            }
        };
        let to_client = ToClientQueue::default();
        let message: io::Result<Option<Vec<u8>>> = select! {
            biased;
            message = from_client.message(&to_client) => message,
            () = others => unreachable!("they go on"),
        };
        assert!(message.expect("the frames are good").is_none());
        assert!(turns.get() > READS / 4, "{}", turns.get());
    }

    /// A client that said much was let go on with the token of a key that was removed meanwhile.
    #[test]
    fn keys_that_change_while_nobody_listens_count() {
        let text = new_keys();
        let keys = |text: &str| Some(Keys::parse(text).expect("keys"));
        let permit = Permit { buckets: vec!["default".into()], ..Permit::default() };
        let token = sign(&text, permit, Duration::from_secs(600)).expect("a token");
        let gate = Rc::new(Gate::new(Vec::new(), false));
        gate.set_keys(keys(&text));
        let node = Node::new(Role::Following(Following::default()), Rc::clone(&gate), None);
        let rights = Rights { steal: false, force_release: false, inspect: false };
        let token = Some((token, "default".into()));
        let mut watched = Watched { node: &node, token, rights, changes: gate.changes() };
        // The same keys again are no reason.
        gate.set_keys(keys(&text));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let nothing = timeout(Duration::ZERO, watched.revoked()).await;
            assert!(nothing.is_err(), "{nothing:?}");
            gate.set_keys(keys(&new_keys()));
            let revoked = timeout(Duration::from_secs(60), watched.revoked()).await;
            assert_eq!(revoked, Ok(true));
        });
    }
}
