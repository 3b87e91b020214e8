//! A client's Unix socket.
//!
//! Tokio's own wants to hear of room to write, too, and there is such news whenever a client has read its answer: the
//! daemon would be woken twice for each message. So the socket is given to Tokio as the end of a pipe that can be read, and,
//! only while it has no room, as one that can be written to.

use rustix::{
    io::Errno,
    net::{SendFlags, Shutdown, send, shutdown},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{
        UnixStream,
        unix::pipe::{Receiver, Sender},
    },
};

pub(crate) struct Socket {
    socket: Receiver,
    /// The same one, while it has no room.
    full: Option<Sender>,
}

impl Socket {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        let socket = Receiver::from_owned_fd_unchecked(OwnedFd::from(stream.into_std()?))?;
        Ok(Self { socket, full: None })
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(full) = &self.full {
                ready!(full.poll_write_ready(context))?;
                self.full = None;
            }
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN) => {
                    let again = self.socket.as_fd().try_clone_to_owned()?;
                    self.full = Some(Sender::from_owned_fd_unchecked(again)?);
                }
                Err(Errno::INTR) => {}
                done => return Poll::Ready(Ok(done?)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(shutdown(&self.socket, Shutdown::Write)?))
    }
}
