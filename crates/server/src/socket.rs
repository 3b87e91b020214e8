//! A client's Unix socket.
//!
//! Tokio's own type also registers for room to write. That event occurs whenever a client has read
//! its answer, and would wake the daemon twice for each message. So the socket is registered with
//! Tokio as the readable end of a pipe, and as a writable one only while it has no room.

use crate::connection::Transport;

use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, send, sendmsg, shutdown},
};
use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
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
    /// A descriptor that goes with the next bytes.
    descriptor: Option<OwnedFd>,
}

impl Socket {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        // A closed connection is an error, not a signal. Where `send` has no flag for that, the
        // socket has an option.
        #[cfg(target_vendor = "apple")]
        rustix::net::sockopt::set_socket_nosigpipe(&stream, true)?;
        let socket = Receiver::from_owned_fd_unchecked(OwnedFd::from(stream.into_std()?))?;
        Ok(Self { socket, full: None, descriptor: None })
    }
}

impl Transport for Socket {
    fn attach(&mut self, descriptor: OwnedFd) {
        self.descriptor = Some(descriptor);
    }
}

#[cfg(not(target_vendor = "apple"))]
const FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const FLAGS: SendFlags = SendFlags::empty();

/// Sends bytes, the descriptor with the first of them.
fn send_with(socket: impl AsFd, bytes: &[u8], descriptor: &OwnedFd) -> rustix::io::Result<usize> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, FLAGS)
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
            let sent = match &self.descriptor {
                Some(descriptor) => send_with(&self.socket, bytes, descriptor),
                None => send(&self.socket, bytes, FLAGS),
            };
            match sent {
                Err(Errno::AGAIN) => {
                    let again = self.socket.as_fd().try_clone_to_owned()?;
                    self.full = Some(Sender::from_owned_fd_unchecked(again)?);
                }
                Err(Errno::INTR) => {}
                done => {
                    let count = done?;
                    // The client has it; this copy would keep the session alive.
                    self.descriptor = None;
                    return Poll::Ready(Ok(count));
                }
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
