//! One connection: its bytes as messages to the daemon, and the daemon's messages as bytes.

use crate::{daemon::Daemon, process::Process, session::Outbox};
use lockkeeper_wire::{ToClient, ToServer, code, frame};
use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    rc::Rc,
    task::{Context, Poll, ready},
};
use tokio::net::UnixStream;

/// Bytes that are read in one go.
const READ: usize = 64 << 10;

/// While so many bytes wait for a client to read them, it is not listened to.
const PATIENCE: usize = 256 << 10;

/// Turns after which a connection that still has work lets others have theirs.
const TURNS: usize = 16;

struct Connection {
    stream: UnixStream,
    process: Option<Process>,
    daemon: Rc<RefCell<Daemon>>,
    /// Its session, once it has said hello.
    session: Option<u32>,
    /// What was read and is not a whole message yet.
    input: Vec<u8>,
    /// There may be a whole message in it all the same: the client had too much to read.
    more: bool,
    /// What is being written, from `written` on.
    output: Vec<u8>,
    written: usize,
    /// It ends once all is written.
    closing: bool,
}

pub(crate) async fn run(stream: UnixStream, process: Option<Process>, daemon: Rc<RefCell<Daemon>>) {
    let mut connection = Connection {
        stream,
        process,
        daemon,
        session: None,
        input: Vec::new(),
        more: false,
        output: Vec::new(),
        written: 0,
        closing: false,
    };
    poll_fn(|context| connection.poll(context)).await;
    if let Some(session) = connection.session {
        connection.daemon.borrow_mut().disconnected(session);
    }
}

impl Connection {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TURNS {
            let write = match self.write(context) {
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                write => write,
            };
            if self.closing && write.is_ready() {
                return Poll::Ready(());
            }
            let read = match self.closing || self.backlog() > PATIENCE {
                true => Poll::Pending,
                false if std::mem::take(&mut self.more) => {
                    self.understand();
                    Poll::Ready(Ok(true))
                }
                false => self.read(context),
            };
            match read {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false) | Err(_)) => return Poll::Ready(()),
                Poll::Pending => match self.sleep(context) {
                    Sleep::Cut => return Poll::Ready(()),
                    Sleep::Work if write.is_ready() => {}
                    _ => return Poll::Pending,
                },
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads once and hands on what is whole. `false` at the end of the stream.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let length = self.input.len();
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            self.input.resize(length + READ, 0);
            match self.stream.try_read(&mut self.input[length..]) {
                Ok(0) => return Poll::Ready(Ok(false)),
                Ok(count) => {
                    self.input.truncate(length + count);
                    self.understand();
                    return Poll::Ready(Ok(true));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.input.truncate(length),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Handles every whole message, until too much waits for the client: a short question can have a long answer.
    fn understand(&mut self) {
        let mut input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while !self.closing {
            if self.backlog() > PATIENCE {
                self.more = true;
                break;
            }
            let message = match frame::first(rest, frame::MAX) {
                Ok(Some((message, length))) => {
                    rest = &rest[length..];
                    ToServer::decode(message).map_err(|error| error.to_string())
                }
                Ok(None) => break,
                Err(error) => Err(error.to_string()),
            };
            match message {
                Ok(message) => self.handle(message),
                Err(why) => self.part(code::MALFORMED, &why),
            }
        }
        let done = input.len() - rest.len();
        input.drain(..done);
        self.input = input;
    }

    fn handle(&mut self, message: ToServer<'_>) {
        let mut daemon = self.daemon.borrow_mut();
        let done = match (self.session, message) {
            (None, ToServer::Hello { version, bucket, resume, token: _ }) => {
                let welcome = daemon.hello(version, bucket, resume, self.process);
                welcome.map(|session| self.session = Some(session))
            }
            (None, _) => Err((code::OUT_OF_ORDER, "the first message is hello".into())),
            (Some(session), ToServer::Bye) => {
                // What was answered before it is still written.
                if let Some(outbox) = daemon.outbox(session) {
                    self.output.append(&mut outbox.bytes);
                }
                daemon.end(session);
                (self.session, self.closing) = (None, true);
                Ok(())
            }
            (Some(session), message) => daemon.handle(session, message),
        };
        drop(daemon);
        if let Err((code, why)) = done {
            self.part(code, &why);
        }
    }

    /// Says goodbye for a reason of the client's making.
    fn part(&mut self, code: u32, message: &str) {
        tracing::warn!(code, message, pid = self.process.map(|process| process.pid), "cut off");
        self.take_outbox();
        let goodbye = ToClient::Goodbye { code, message };
        frame::append(&mut self.output, |out| goodbye.encode(out));
        self.closing = true;
    }

    /// Writes all there is. Ready when nothing is left.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.output.len() {
                self.output.clear();
                self.written = 0;
                self.take_outbox();
                if self.output.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            match self.stream.try_write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.stream.poll_write_ready(context))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Takes over what the daemon has for the client.
    fn take_outbox(&mut self) {
        let closing = self.with_outbox(|output, outbox| {
            match output.is_empty() {
                true => std::mem::swap(output, &mut outbox.bytes),
                false => output.append(&mut outbox.bytes),
            }
            outbox.closing
        });
        self.closing |= closing == Some(true);
    }

    fn with_outbox<R>(&mut self, then: impl FnOnce(&mut Vec<u8>, &mut Outbox) -> R) -> Option<R> {
        let mut daemon = self.daemon.borrow_mut();
        let outbox = daemon.outbox(self.session?)?;
        Some(then(&mut self.output, outbox))
    }

    /// Has the next message wake the connection, unless there is one already.
    fn sleep(&mut self, context: &mut Context<'_>) -> Sleep {
        let sleep = self.with_outbox(|_, outbox| {
            outbox.waker = Some(context.waker().clone());
            match outbox.bytes.is_empty() && !outbox.closing {
                _ if outbox.cut => Sleep::Cut,
                true => Sleep::Idle,
                false => Sleep::Work,
            }
        });
        sleep.unwrap_or(Sleep::Idle)
    }

    /// How much waits to be read by the client.
    fn backlog(&mut self) -> usize {
        let waiting = self.with_outbox(|_, outbox| outbox.bytes.len()).unwrap_or(0);
        self.output.len() - self.written + waiting
    }
}

enum Sleep {
    Idle,
    /// There is something to write.
    Work,
    /// The client has let too much wait.
    Cut,
}
