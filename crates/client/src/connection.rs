//! A connection to a server. One thread at a time writes; the thread that holds the read lock
//! reads. Nothing here blocks.

use crate::poller::Poller;
#[cfg(feature = "network")]
use crate::websocket::WebSocket;
use rustix::{
    buffer::spare_capacity,
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg},
};
use std::{
    io,
    mem::MaybeUninit,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// Room for what is read at once.
const READ: usize = 64 << 10;

/// Room for what is read at once together with a descriptor: the answers to a Hello.
const READ_WITH_DESCRIPTOR: usize = 8 << 10;

/// Capacity that an empty buffer keeps.
const KEPT: usize = 64 << 10;

pub(crate) enum Transport {
    Local(UnixStream),
    #[cfg(feature = "network")]
    Network(WebSocket),
}

pub(crate) struct Connection {
    transport: Transport,
    poller: Arc<Poller>,
    /// Bytes that the socket has not accepted yet.
    unsent: Mutex<Vec<u8>>,
}

impl Connection {
    pub(crate) fn new(transport: Transport, poller: &Arc<Poller>) -> io::Result<Self> {
        match &transport {
            Transport::Local(stream) => poller.add(stream)?,
            #[cfg(feature = "network")]
            Transport::Network(socket) => poller.add(socket.stream())?,
        }
        Ok(Self { transport, poller: Arc::clone(poller), unsent: Mutex::default() })
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.transport, Transport::Local(_))
    }

    /// Sends messages, each preceded by its length. Whether the socket has taken all; if not, call
    /// it again with nothing once the socket is writable.
    pub(crate) fn write(&self, messages: &[u8]) -> io::Result<bool> {
        let mut unsent = self.unsent();
        match &self.transport {
            // The usual case: no copy.
            Transport::Local(stream) if unsent.is_empty() => {
                let sent = send_some(stream, messages)?;
                unsent.extend_from_slice(&messages[sent..]);
                return Ok(unsent.is_empty());
            }
            Transport::Local(_) => unsent.extend_from_slice(messages),
            #[cfg(feature = "network")]
            Transport::Network(socket) => socket.encode(messages, &mut unsent)?,
        }
        self.send_unsent(unsent)
    }

    /// Answers the transport's own ping.
    #[cfg(feature = "network")]
    pub(crate) fn pong(&self, ping: &[u8]) -> io::Result<()> {
        let mut unsent = self.unsent();
        if let Transport::Network(socket) = &self.transport {
            socket.encode_pong(ping, &mut unsent)?;
        }
        // The rest is sent with the next message.
        self.send_unsent(unsent).map(drop)
    }

    fn send_unsent(&self, mut unsent: MutexGuard<'_, Vec<u8>>) -> io::Result<bool> {
        let sent = send_some(self, &unsent)?;
        unsent.drain(..sent);
        if unsent.is_empty() {
            unsent.shrink_to(KEPT);
        }
        Ok(unsent.is_empty())
    }

    fn unsent(&self) -> MutexGuard<'_, Vec<u8>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the bytes that are there. False if there are none.
    pub(crate) fn read(&self, input: &mut Vec<u8>) -> io::Result<bool> {
        match &self.transport {
            Transport::Local(stream) => read_some(stream, RecvFlags::DONTWAIT, input),
            #[cfg(feature = "network")]
            Transport::Network(socket) => socket.read(RecvFlags::DONTWAIT, input),
        }
    }

    /// The same on a Unix socket, and the descriptor that comes with the bytes, if one does.
    pub(crate) fn read_with_descriptor(
        &self,
        input: &mut Vec<u8>,
        descriptor: &mut Option<OwnedFd>,
    ) -> io::Result<bool> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const FLAGS: RecvFlags = RecvFlags::DONTWAIT.union(RecvFlags::CMSG_CLOEXEC);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const FLAGS: RecvFlags = RecvFlags::DONTWAIT;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; READ_WITH_DESCRIPTOR];
        let received = match recvmsg(self, &mut [io::IoSliceMut::new(&mut bytes)], &mut control, FLAGS) {
            Ok(received) => received.bytes,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                // The last one counts; others are closed.
                for right in rights {
                    #[cfg(not(any(target_os = "linux", target_os = "android")))]
                    rustix::io::fcntl_setfd(&right, rustix::io::FdFlags::CLOEXEC)?;
                    *descriptor = Some(right);
                }
            }
        }
        if received == 0 {
            return Err(ended());
        }
        input.extend_from_slice(&bytes[..received]);
        Ok(true)
    }

    /// Sleeps until there is something to read. False if that time comes first.
    pub(crate) fn sleep_until(&self, until: Option<Instant>) -> bool {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A time that does not fit counts as none.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        !matches!(poll(&mut [PollFd::new(self, PollFlags::IN)], left.as_ref()), Ok(0))
    }

    /// Sets which events of this connection wake the session thread.
    pub(crate) fn set_interest(&self, readable: bool, writable: bool) {
        self.poller.set_interest(self, readable, writable);
    }

    /// Nothing more is sent: the server closes next.
    pub(crate) fn finish(&self) {
        self.shutdown(Shutdown::Write);
    }

    /// Closes it for this process and every thread that sleeps in a read. The session thread is not
    /// woken by it any more.
    pub(crate) fn close(&self) {
        self.poller.remove(self);
        self.shutdown(Shutdown::Both);
    }

    /// Makes the reading thread notice that the connection is unusable.
    pub(crate) fn abort(&self) {
        self.shutdown(Shutdown::Both);
    }

    fn shutdown(&self, how: Shutdown) {
        // If the server has closed it already, this fails, and it is closed in any case.
        let _ = match &self.transport {
            Transport::Local(stream) => stream.shutdown(how),
            #[cfg(feature = "network")]
            Transport::Network(socket) => socket.stream().shutdown(how),
        };
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.transport {
            Transport::Local(stream) => stream.as_fd(),
            #[cfg(feature = "network")]
            Transport::Network(socket) => socket.stream().as_fd(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.poller.remove(&*self);
    }
}

/// Reads once, and appends what came, if anything did. The space for it is not cleared first: an
/// answer is short.
pub(crate) fn read_some(stream: impl AsFd, flags: RecvFlags, input: &mut Vec<u8>) -> io::Result<bool> {
    input.reserve(READ);
    match rustix::net::recv(stream, spare_capacity(input), flags) {
        Ok((_, 0)) => Err(ended()),
        Ok(_) => Ok(true),
        Err(Errno::INTR) => Ok(false),
        Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Sends what the socket takes now.
fn send_some(stream: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    // Where there is no such flag, the standard library sets the socket's own option.
    #[cfg(not(target_vendor = "apple"))]
    const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
    #[cfg(target_vendor = "apple")]
    const FLAGS: SendFlags = SendFlags::DONTWAIT;
    let mut sent = 0;
    while sent < bytes.len() {
        match rustix::net::send(&stream, &bytes[sent..], FLAGS) {
            Ok(count) => sent += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sent)
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")
}
