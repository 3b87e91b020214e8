//! One connection: decodes its bytes to messages for the daemon, and encodes the daemon's messages.

use crate::{
    daemon::{Daemon, Sender},
    handshakes::{PendingHandshake, why_malformed},
    unfinished,
};
use lockkeeper_service::{ConnectionId, Framing, Origin};
use lockkeeper_wire::{
    frame,
    v2::{ToServer, code, feature},
    websocket::{self, Broken, Frames, GOING_AWAY, Incoming},
};
use std::{
    borrow::Cow,
    cell::RefCell,
    future::poll_fn,
    io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Sleep, sleep},
};

/// Bytes that are read in one go.
const READ: usize = 16 << 10;

/// Bytes of its buffer that an idle connection keeps.
const KEPT: usize = 4 << 10;

/// How much is done for a connection before others have their turn, in units of a short message:
/// some 200 µs. A batch of requests that a client sends at once is worth more than the wait of the
/// others.
const TURN: u64 = 512;

/// The same for one turn of every connection that has more to do: about 15 ms. With many such
/// connections their turns are shorter, so that a thousand of them do not delay others a
/// thousandfold.
const ALL_TURNS: u64 = 64 * TURN;

/// The shortest turn. A shorter one would cost more than its work.
const SHORTEST: u64 = 16;

/// Bytes whose reading or writing counts as much as a short message.
const UNIT: u64 = 512;

/// How long a client may take to read the last message.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The transport of a connection.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// Sends a descriptor with the next bytes. Only a Unix socket can.
    fn attach(&mut self, _: OwnedFd) {}
}

/// Whom a connection is with.
pub(crate) struct Peer {
    pub(crate) origin: Origin,
    /// The client's identity as known to this daemon, or to the one that relays.
    pub(crate) sender: Sender,
    /// The origin of its page, if that names its bucket.
    pub(crate) page: Option<String>,
    /// Whether a WebSocket status of 1001 can only be the client's own.
    pub(crate) trusts_status: bool,
}

impl Peer {
    /// The bucket of a client that asks for one. That of a page is its origin, or the partition
    /// below it that the page says it is in.
    pub(crate) fn bucket<'a>(&self, asked: &'a str) -> Cow<'a, str> {
        match (&self.page, asked) {
            (None, _) => asked.into(),
            (Some(page), "default") => page.clone().into(),
            // No origin has a space in it: no page reaches another's buckets.
            (Some(page), partition) => format!("{page} {partition}").into(),
        }
    }

    /// The client's identity as known to this daemon.
    pub(crate) fn words(&self) -> &str {
        match &self.sender {
            Sender::Client(subject) => &subject.words,
            Sender::Relayed(access) => &access.subject,
        }
    }

    /// Whether status 1001 ends the client's session: its Hello has that feature, and no proxy can
    /// have sent the status.
    pub(crate) fn ends_going_away(&self, features: u64) -> bool {
        self.trusts_status && features & feature::GOING_AWAY_ENDS != 0
    }
}

struct Connection<S> {
    stream: S,
    id: ConnectionId,
    peer: Peer,
    /// See [`Peer::ends_going_away`].
    going_away_ends: bool,
    daemon: Rc<RefCell<Daemon>>,
    /// Until its Hello is accepted. It can send no long messages before that.
    handshake: Option<PendingHandshake>,
    /// Bytes of an incomplete message.
    input: Vec<u8>,
    /// It may still contain a complete message: the turn had ended, or the client had too much
    /// unread output.
    more: bool,
    /// How to find messages in it, if not by their lengths.
    frames: Option<Frames>,
    /// A frame whose messages have not all had their turn, and how much of it is done.
    batch: (Vec<u8>, usize),
    /// The server's work at which it is the others' turn.
    turn_ends: u64,
    /// Its last turn ended before its work did.
    yielded: bool,
    /// Its next turn has not begun since: the daemon counts it among those that have more to do.
    busy: bool,
    /// When it ends whether or not its client has read the last message. Set while it is being
    /// closed.
    closes: Option<Pin<Box<Sleep>>>,
    /// Bytes of the token that the daemon keeps.
    token: usize,
    /// Bytes that it keeps, as the daemon counts them.
    unfinished: usize,
}

/// Serves a connection of which `input` has been read already.
pub(crate) async fn run<S: Transport>(
    stream: S,
    input: Vec<u8>,
    peer: Peer,
    daemon: Rc<RefCell<Daemon>>,
    handshake: PendingHandshake,
) {
    let (framing, frames) = match (peer.origin, &peer.sender) {
        (Origin::Local, _) | (_, Sender::Relayed(_)) => (Framing::Lengths, None),
        (Origin::Network, _) => (Framing::WebSocket, Some(Frames::new(true, handshake.max()))),
    };
    let id = daemon.borrow_mut().connect(peer.origin, framing);
    let more = !input.is_empty();
    let (going_away_ends, turn_ends, closes, token, unfinished) = (false, 0, None, 0, 0);
    let (yielded, busy) = (false, false);
    let mut connection = Connection {
        stream,
        id,
        peer,
        going_away_ends,
        daemon,
        handshake: Some(handshake),
        input,
        more,
        frames,
        batch: (Vec::new(), 0),
        turn_ends,
        yielded,
        busy,
        closes,
        token,
        unfinished,
    };
    let closed = poll_fn(|context| connection.poll(context)).await;
    connection.daemon.borrow_mut().disconnect(id);
    if closed.is_ok() {
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connection.finish()).await;
    }
}

/// A turn beside so many connections that have more to do.
fn turn(busy: usize) -> u64 {
    (ALL_TURNS / (busy as u64 + 1)).clamp(SHORTEST, TURN)
}

/// Yields to other connections. A task that only wakes itself would be polled up to 61 times before
/// tokio checks for other input.
fn yield_turn<T>(context: &mut Context<'_>) -> Poll<T> {
    let _: Poll<()> = pin!(tokio::task::yield_now()).poll(context);
    Poll::Pending
}

impl<S> Drop for Connection<S> {
    /// Its task may have been aborted.
    fn drop(&mut self) {
        let mut daemon = self.daemon.borrow_mut();
        *daemon.unfinished_turns() -= usize::from(self.busy);
        daemon.disconnect(self.id);
    }
}

impl<S: Transport> Connection<S> {
    /// Ready when it is over: gracefully, or because of an error.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The answers for other clients are committed and sent before it continues. Once only, so
        // that it has its turn, too.
        if self.begin_turn() {
            return yield_turn(context);
        }
        loop {
            let written = self.write(context)?;
            let (closing, crowded, ended) = {
                let mut daemon = self.daemon.borrow_mut();
                if daemon.is_deposed() {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
                let server = daemon.server();
                if server.is_done(self.id) {
                    return Poll::Ready(Ok(()));
                }
                let crowded = daemon.is_crowded(self.id);
                if daemon.server().has_more(self.id) && !crowded {
                    daemon.go_on(self.id);
                }
                let server = daemon.server();
                (server.is_closing(self.id), crowded, server.work() >= self.turn_ends)
            };
            if closing && self.poll_close_timeout(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if ended {
                return self.end_turn(context);
            }
            let read = match closing || crowded {
                true => Poll::Pending,
                false if std::mem::take(&mut self.more) => {
                    self.handle_input();
                    Poll::Ready(Ok(true))
                }
                false => self.read(context),
            };
            match read {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    if !crowded && self.daemon.borrow_mut().server().has_more(self.id) {
                        return self.end_turn(context);
                    }
                    let mut daemon = self.daemon.borrow_mut();
                    daemon.sleeps(self.id, context.waker());
                    if written.is_pending() || daemon.server().output(self.id).is_empty() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Begins a turn. True if others come before, once, after a turn that ended before its work.
    fn begin_turn(&mut self) -> bool {
        let mut daemon = self.daemon.borrow_mut();
        if std::mem::take(&mut self.yielded) && daemon.server().is_urgent() {
            return true;
        }
        *daemon.unfinished_turns() -= usize::from(std::mem::take(&mut self.busy));
        self.turn_ends = daemon.server().work() + turn(*daemon.unfinished_turns());
        false
    }

    /// Lets others have their turns, though there is more to do. A commit must not wake it before
    /// they had them.
    fn end_turn<T>(&mut self, context: &mut Context<'_>) -> Poll<T> {
        (self.yielded, self.busy) = (true, true);
        let mut daemon = self.daemon.borrow_mut();
        *daemon.unfinished_turns() += 1;
        daemon.stays_awake(self.id);
        yield_turn(context)
    }

    /// A connection that is being closed needs no input, and does not stay for a client that does
    /// not read.
    fn poll_close_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.closes.is_none() {
            (self.input, self.batch) = (Vec::new(), (Vec::new(), 0));
            self.daemon.borrow_mut().set_unfinished(self.id, 0);
        }
        let timeout = self.closes.get_or_insert_with(|| Box::pin(sleep(CLOSE_TIMEOUT)));
        timeout.as_mut().poll(context)
    }

    /// Reads once and handles what is whole. False at the end of the stream.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        // On the stack, and never cleared: an idle connection keeps no space, and a short message
        // pays for no long one.
        let mut space = [const { MaybeUninit::uninit() }; READ];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
        if read.filled().is_empty() {
            return Poll::Ready(Ok(false));
        }
        self.input.extend_from_slice(read.filled());
        // Incomplete messages count as work, too.
        self.turn_ends = self.turn_ends.saturating_sub(read.filled().len() as u64 / UNIT);
        self.handle_input();
        Poll::Ready(Ok(true))
    }

    /// Handles every whole message, until its turn is over or too much waits for the client: a
    /// short question can have a long answer.
    fn handle_input(&mut self) {
        let (mut input, mut frames) = (std::mem::take(&mut self.input), self.frames.take());
        let (batch, begun) = std::mem::take(&mut self.batch);
        let mut done = 0;
        let left = self.on_messages(&batch[begun..]);
        if left > 0 {
            let begun = batch.len() - left;
            self.batch = (batch, begun);
        }
        while self.goes_on() {
            let rest = &mut input[done..];
            let max = self.handshake.as_ref().map_or(frame::MAX, PendingHandshake::max);
            let first = match &mut frames {
                Some(frames) => {
                    frames.set_max(max);
                    let first = frames.first(rest);
                    first.map(|first| first.map(|(said, length)| (self.on_frame(said), length)))
                }
                None => {
                    let first = frame::first(rest, max).map_err(Broken::TooLong);
                    first.map(|first| first.map(|(message, length)| (self.on_message(message), length)))
                }
            };
            match first {
                Ok(Some(((), length))) => done += length,
                Ok(None) => break,
                Err(error) => {
                    let why = why_malformed(error, self.handshake.is_some());
                    self.daemon.borrow_mut().reject(self.id, &self.peer, code::MALFORMED, &why);
                }
            }
        }
        input.drain(..done);
        // A buffer that grows has at most twice what is in it: a long message that comes in pieces
        // is not moved with each.
        if input.capacity() > KEPT + 2 * input.len() {
            input.shrink_to(KEPT);
        }
        let kept = input.len() + self.batch.0.len() + frames.as_ref().map_or(0, Frames::kept);
        let unfinished = unfinished::counted(kept) + unfinished::counted(self.token);
        if unfinished != self.unfinished {
            self.unfinished = unfinished;
            self.daemon.borrow_mut().set_unfinished(self.id, unfinished);
        }
        (self.input, self.frames) = (input, frames);
    }

    /// Whether it may process more input now. If it may later, `more` is set.
    fn goes_on(&mut self) -> bool {
        let mut daemon = self.daemon.borrow_mut();
        if daemon.server().is_closing(self.id) {
            return false;
        }
        self.more = daemon.is_crowded(self.id) || daemon.server().work() >= self.turn_ends;
        !self.more
    }

    /// Handles the messages of a frame, until the turn is over. Returns how many bytes are left
    /// then.
    fn on_messages(&mut self, mut frame: &[u8]) -> usize {
        while !frame.is_empty() && self.goes_on() {
            match websocket::first_message(frame) {
                Ok((message, rest)) => {
                    self.on_message(message);
                    frame = rest;
                }
                Err(error) => {
                    self.daemon.borrow_mut().reject(self.id, &self.peer, code::MALFORMED, &error.to_string())
                }
            }
        }
        frame.len()
    }

    fn on_message(&mut self, bytes: &[u8]) {
        let mut daemon = self.daemon.borrow_mut();
        match ToServer::decode(bytes) {
            Ok(message @ ToServer::Hello { features, .. }) if self.handshake.is_some() => {
                self.going_away_ends = self.peer.ends_going_away(features);
                daemon.hello(self.id, message, &self.peer);
                self.token = daemon.token_len(self.id);
                // One that is refused gives way to others until it is closed.
                if daemon.server().session_of(self.id).is_some() {
                    self.handshake = None;
                }
            }
            Ok(message) => daemon.message(self.id, message, bytes.len()),
            Err(error) => daemon.reject(self.id, &self.peer, code::MALFORMED, &error.to_string()),
        }
    }

    fn on_frame(&mut self, said: Incoming<'_>) {
        if let Incoming::Messages(frame @ [_, ..]) = said {
            let left = self.on_messages(frame);
            self.batch = (frame[frame.len() - left..].to_vec(), 0);
            return;
        }
        // Strangers can send these, too, and thousands fit into one read.
        self.turn_ends = self.turn_ends.saturating_sub(1);
        let mut daemon = self.daemon.borrow_mut();
        match said {
            Incoming::Messages(_) => {
                daemon.reject(self.id, &self.peer, code::MALFORMED, "a frame without a message")
            }
            Incoming::Ping(ping) => daemon.pong(self.id, |out| websocket::append_pong(out, None, ping)),
            Incoming::Nothing => {}
            Incoming::Close(Some(GOING_AWAY)) if self.going_away_ends => {
                daemon.message(self.id, ToServer::Bye { ack: 0 }, 0);
            }
            Incoming::Close(_) => daemon.hang_up(self.id),
        }
    }

    /// Writes what may be sent. Ready when nothing is left of that, or its turn is over: to a client
    /// that reads as fast, much could be written in one go.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<Poll<()>> {
        loop {
            let mut daemon = self.daemon.borrow_mut();
            let id = self.id;
            if daemon.server().output(id).is_empty() {
                drop(daemon);
                return match Pin::new(&mut self.stream).poll_flush(context) {
                    Poll::Ready(flushed) => flushed.map(Poll::Ready),
                    Poll::Pending => Ok(Poll::Pending),
                };
            }
            if let Some(descriptor) = daemon.take_descriptor(id) {
                self.stream.attach(descriptor);
            }
            match Pin::new(&mut self.stream).poll_write(context, daemon.server().output(id)) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    daemon.server().sent(id, count);
                    self.turn_ends = self.turn_ends.saturating_sub(count as u64 / UNIT);
                    if daemon.server().work() >= self.turn_ends {
                        return Ok(Poll::Ready(()));
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(Poll::Pending),
            }
        }
    }

    /// Closes the connection gracefully.
    async fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown().await?;
        // Closing a TCP connection with something unread resets it, and the last message could be
        // lost on its way.
        while self.peer.origin == Origin::Network && self.stream.read_buf(&mut self.input).await? > 0 {
            self.input.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ALL_TURNS, SHORTEST, TURN, turn, yield_turn};
    use std::{cell::Cell, future::poll_fn, io::Write, rc::Rc, task::Poll};
    use tokio::{
        net::UnixStream,
        runtime::Builder,
        task::{LocalSet, spawn_local, yield_now},
    };

    #[test]
    fn the_more_have_more_to_do_the_shorter_are_their_turns() {
        assert_eq!([0, 10, 63].map(turn), [TURN; 3]);
        for busy in [100, 1_000, 2_000] {
            assert!(turn(busy) * busy as u64 <= ALL_TURNS, "{busy}");
        }
        assert_eq!(turn(1_000_000), SHORTEST);
    }

    #[test]
    fn what_has_come_in_for_another_is_looked_for_after_each_turn() {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(LocalSet::new().run_until(async {
            let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("two ends");
            ours.set_nonblocking(true).expect("it can be polled");
            let ours = UnixStream::from_std(ours).expect("a registered end");
            let heard = Rc::new(Cell::new(false));
            let hears = heard.clone();
            spawn_local(async move {
                ours.readable().await.expect("it can be read");
                hears.set(true);
            });
            yield_now().await;
            theirs.write_all(b"a message").expect("it is sent");
            let mut turns = 0;
            let busy = poll_fn(move |context| {
                if heard.get() {
                    return Poll::Ready(turns);
                }
                turns += 1;
                yield_turn(context)
            });
            let turns = spawn_local(busy).await.expect("it ends");
            assert!(turns <= 2, "{turns} turns before anything else was looked at");
        }));
    }
}
