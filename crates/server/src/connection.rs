//! One connection: its bytes as messages to the daemon, and the daemon's messages as bytes.

use crate::{
    daemon::Daemon,
    network::Stranger,
    session::{Framing, Outbox, Peer},
};
use lockkeeper_wire::{
    ToServer, code, frame,
    websocket::{self, Frames, Said},
};
use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    mem::MaybeUninit,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Bytes that are read in one go.
const READ: usize = 16 << 10;

/// Bytes of each of its buffers that a connection keeps when it has no use for them.
const KEPT: usize = 4 << 10;

/// While so many bytes wait for a client to read them, it is not listened to.
const PATIENCE: usize = 256 << 10;

/// Turns after which a connection that still has work lets others have theirs.
const TURNS: usize = 16;

/// How long a client may take to hear the last that is said to it.
const FAREWELL: Duration = Duration::from_secs(5);

struct Connection<S> {
    stream: S,
    peer: Peer,
    daemon: Rc<RefCell<Daemon>>,
    /// It counts as a stranger until it has said hello.
    stranger: Option<Stranger>,
    /// Its session, once it has said hello.
    session: Option<u32>,
    /// What was read and is not a whole message yet.
    input: Vec<u8>,
    /// There may be a whole message in it all the same: the client had too much to read.
    more: bool,
    /// How to find messages in it, if not by their lengths.
    frames: Option<Frames>,
    /// What the daemon has for the client.
    outbox: Rc<RefCell<Outbox>>,
    /// What is being written, from `written` on.
    output: Vec<u8>,
    written: usize,
}

/// Serves a connection of which `input` has been read already.
pub(crate) async fn run<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    input: Vec<u8>,
    peer: Peer,
    daemon: Rc<RefCell<Daemon>>,
    stranger: Option<Stranger>,
) {
    let (framing, frames) = match peer {
        Peer::Local(_) => (Framing::Lengths, None),
        Peer::Network => (Framing::WebSocket, Some(Frames::new(true, frame::MAX))),
    };
    let outbox = Rc::new(RefCell::new(Outbox::new(framing)));
    let mut connection = Connection {
        stream,
        peer,
        daemon,
        stranger,
        session: None,
        more: !input.is_empty(),
        input,
        frames,
        outbox,
        output: Vec::new(),
        written: 0,
    };
    let alive = Rc::clone(&connection.daemon.borrow().connections);
    poll_fn(|context| connection.poll(context)).await;
    if let Some(session) = connection.session {
        let heir = connection.daemon.borrow_mut().inherit(session, &connection.outbox);
        if let Some(heir) = heir {
            drop(alive);
            connection.outbox.borrow_mut().cut();
            heir.ended().await;
        }
        connection.daemon.borrow_mut().disconnected(session, &connection.outbox);
    }
    let _ = tokio::time::timeout(FAREWELL, connection.farewell()).await;
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Ready when it is to end.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.outbox.borrow_mut().waker = None;
        for _ in 0..TURNS {
            let write = match self.write(context) {
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                write => write,
            };
            if self.outbox.borrow().closing {
                return Poll::Ready(());
            }
            let read = match self.backlog() > PATIENCE {
                true => Poll::Pending,
                false if std::mem::take(&mut self.more) => {
                    self.understand();
                    Poll::Ready(Ok(true))
                }
                false => self.read(context),
            };
            match read {
                // Who has the lock now hears of it before who has it no more.
                Poll::Ready(Ok(true)) if self.daemon.borrow().attention.has_handed_over() => break,
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false) | Err(_)) => return Poll::Ready(()),
                Poll::Pending => {
                    let mut outbox = self.outbox.borrow_mut();
                    outbox.waker = Some(context.waker().clone());
                    // Unless there is news already that can be written.
                    if !outbox.closing && (write.is_pending() || outbox.bytes.is_empty()) {
                        return Poll::Pending;
                    }
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads once and hands on what is whole. `false` at the end of the stream.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        // On the stack, and never cleared: an idle connection keeps no space, and a short message pays for no long one.
        let mut space = [const { MaybeUninit::uninit() }; READ];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
        if read.filled().is_empty() {
            return Poll::Ready(Ok(false));
        }
        self.input.extend_from_slice(read.filled());
        self.daemon.borrow().attention.hear();
        if self.peer == Peer::Network {
            self.outbox.borrow_mut().heard = Instant::now();
        }
        self.understand();
        Poll::Ready(Ok(true))
    }

    /// Handles every whole message, until too much waits for the client: a short question can have a long answer.
    fn understand(&mut self) {
        let (mut input, mut frames) = (std::mem::take(&mut self.input), self.frames.take());
        let mut done = 0;
        while !self.outbox.borrow().closing {
            if self.backlog() > PATIENCE {
                self.more = true;
                break;
            }
            let rest = &mut input[done..];
            let first = match &mut frames {
                Some(frames) => frames.first(rest).map_err(|error| error.to_string()),
                None => match frame::first(rest, frame::MAX) {
                    Ok(first) => Ok(first.map(|(message, length)| (Said::Message(message), length))),
                    Err(error) => Err(error.to_string()),
                },
            };
            match first {
                Ok(Some((said, length))) => {
                    self.hear(said);
                    done += length;
                }
                Ok(None) => break,
                Err(why) => self.part(code::MALFORMED, &why),
            }
        }
        input.drain(..done);
        if input.is_empty() {
            // Not while a long message comes in pieces: it would be moved with each.
            input.shrink_to(KEPT);
        }
        (self.input, self.frames) = (input, frames);
    }

    fn hear(&mut self, said: Said<'_>) {
        match said {
            Said::Message(message) => match ToServer::decode(message) {
                Ok(message) => self.handle(message),
                Err(error) => self.part(code::MALFORMED, &error.to_string()),
            },
            Said::Ping(ping) => websocket::append_pong(&mut self.outbox.borrow_mut().bytes, None, ping),
            Said::Nothing => {}
            Said::Close => self.outbox.borrow_mut().close(),
        }
    }

    fn handle(&mut self, message: ToServer<'_>) {
        let mut daemon = self.daemon.borrow_mut();
        let done = match (self.session, message) {
            (None, ToServer::Hello { version, bucket, resume, token }) => {
                let hello = daemon.hello(version, bucket, resume, token, self.peer, &self.outbox);
                hello.map(|session| (self.session, self.stranger) = (Some(session), None))
            }
            (None, _) => Err((code::OUT_OF_ORDER, "the first message is hello".into())),
            (Some(session), ToServer::Bye) => {
                self.outbox.borrow_mut().close();
                daemon.end(session);
                self.session = None;
                Ok(())
            }
            (Some(session), message) => daemon.handle(session, message),
        };
        drop(daemon);
        if let Err((code, why)) = done {
            self.part(code, &why);
        }
    }

    /// Says goodbye for a reason of the client's making, mostly. Its session ends.
    fn part(&mut self, code: u32, message: &str) {
        let pid = self.peer.process().map(|process| process.pid);
        tracing::warn!(code, message, pid, "cut off");
        self.outbox.borrow_mut().dismiss(code, message);
        if code == code::STOPPING {
            return;
        }
        let mut daemon = self.daemon.borrow_mut();
        daemon.metrics.refused_frames += 1;
        if let Some(session) = self.session.take() {
            daemon.end(session);
        }
    }

    /// Writes all there is. Ready when nothing is left.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.output.len() {
                self.output.clear();
                self.output.shrink_to(KEPT);
                self.written = 0;
                std::mem::swap(&mut self.output, &mut self.outbox.borrow_mut().bytes);
                if self.output.is_empty() {
                    return Pin::new(&mut self.stream).poll_flush(context);
                }
            }
            let rest = &self.output[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
    }

    /// How much waits to be read by the client.
    fn backlog(&self) -> usize {
        self.output.len() - self.written + self.outbox.borrow().bytes.len()
    }

    /// Writes what is left, if the connection ends in good order.
    async fn farewell(&mut self) -> io::Result<()> {
        let (closing, cut) = (self.outbox.borrow().closing, self.outbox.borrow().cut);
        if !closing || cut {
            return Ok(());
        }
        poll_fn(|context| self.write(context)).await?;
        self.stream.shutdown().await?;
        // Closing a TCP connection with something unread resets it, and the last words could be lost on their way.
        while self.peer == Peer::Network && self.stream.read_buf(&mut self.input).await? > 0 {
            self.input.clear();
        }
        Ok(())
    }
}
