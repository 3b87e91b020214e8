//! A connection to a daemon: written to by whoever has something to say, read by the session's thread or by who looks out.

#[cfg(feature = "network")]
use crate::web::Web;
#[cfg(feature = "network")]
use lockkeeper_wire::websocket::{Frames, Said};
use lockkeeper_wire::{ToClient, frame};
use rustix::{
    buffer::spare_capacity,
    event::{
        PollFd, PollFlags, Timespec,
        epoll::{self, EventData, EventFlags},
        poll,
    },
    io::Errno,
    net::RecvFlags,
};
use std::{
    io::{self, Write},
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) enum Line {
    Local {
        stream: UnixStream,
        /// Wakes the session's thread when there is something to read.
        bell: OwnedFd,
    },
    #[cfg(feature = "network")]
    Network(Web),
}

impl Line {
    pub(crate) fn local(stream: UnixStream) -> io::Result<Self> {
        let bell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&bell, &stream, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self::Local { stream, bell })
    }

    /// Writes messages, each preceded by its length.
    pub(crate) fn write(&self, messages: &[u8]) -> io::Result<()> {
        match self {
            Self::Local { stream, .. } => (&*stream).write_all(messages),
            #[cfg(feature = "network")]
            Self::Network(web) => web.write(messages),
        }
    }

    /// Sleeps until the bell rings. Who sleeps in the read itself is woken, too, when the daemon has read.
    pub(crate) fn sleep(&self) {
        match self {
            Self::Local { bell, .. } => {
                let _ = epoll::wait(bell, spare_capacity(&mut Vec::with_capacity(1)), None);
            }
            #[cfg(feature = "network")]
            Self::Network(_) => {}
        }
    }

    /// Sleeps until there is something to read, whether the bell rings or not. `false` if that time comes first.
    pub(crate) fn sleep_until(&self, until: Option<Instant>) -> bool {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // So long a time that it cannot be said is as good as none.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        !matches!(poll(&mut [PollFd::new(self, PollFlags::IN)], left.as_ref()), Ok(0))
    }

    /// Whether the bell rings when there is something to read, or only at the end. There is one on this machine only.
    pub(crate) fn ring(&self, rings: bool) -> bool {
        let flags = if rings { EventFlags::IN } else { EventFlags::empty() };
        match self {
            Self::Local { stream, bell } => epoll::modify(bell, stream, EventData::new_u64(0), flags).is_ok(),
            #[cfg(feature = "network")]
            Self::Network(_) => false,
        }
    }

    /// Waits for bytes, and appends them.
    fn read(&self, input: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Local { stream, .. } => read_some(stream, RecvFlags::empty(), input).map(drop),
            #[cfg(feature = "network")]
            Self::Network(web) => web.read(input),
        }
    }

    /// Appends the bytes that are there. `false` if there are none; on the network, waits for some.
    fn try_read(&self, input: &mut Vec<u8>) -> io::Result<bool> {
        match self {
            Self::Local { stream, .. } => read_some(stream, RecvFlags::DONTWAIT, input),
            #[cfg(feature = "network")]
            Self::Network(web) => web.read(input).map(|()| true),
        }
    }

    pub(crate) fn shutdown(&self) {
        let _ = match self {
            Self::Local { stream, .. } => stream.shutdown(Shutdown::Both),
            #[cfg(feature = "network")]
            Self::Network(web) => web.stream().shutdown(Shutdown::Both),
        };
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Local { stream, .. } => stream.set_read_timeout(timeout),
            #[cfg(feature = "network")]
            Self::Network(web) => web.stream().set_read_timeout(timeout),
        }
    }

    /// Whether the daemon may be on another machine, so that only heartbeats tell whether it is still there.
    pub(crate) fn is_network(&self) -> bool {
        !matches!(self, Self::Local { .. })
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Local { stream, .. } => stream.as_fd(),
            #[cfg(feature = "network")]
            Self::Network(web) => web.stream().as_fd(),
        }
    }
}

/// Reads once, and appends what came, if anything did. The space for it is not cleared first: an answer is short.
pub(crate) fn read_some(stream: impl AsFd, flags: RecvFlags, input: &mut Vec<u8>) -> io::Result<bool> {
    input.reserve(64 << 10);
    match rustix::net::recv(stream, spare_capacity(input), flags) {
        Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(true),
        Err(Errno::INTR) => Ok(false),
        Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Messages out of what a connection says.
pub(crate) struct Reader {
    pub(crate) line: Arc<Line>,
    input: Vec<u8>,
    #[cfg(feature = "network")]
    frames: Option<Frames>,
}

impl Reader {
    pub(crate) fn new(line: Line) -> Self {
        #[cfg(feature = "network")]
        let frames = line.is_network().then(|| Frames::new(false, frame::MAX_TO_CLIENT));
        Self {
            line: Arc::new(line),
            input: Vec::new(),
            #[cfg(feature = "network")]
            frames,
        }
    }

    /// Waits for bytes.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        self.line.read(&mut self.input)
    }

    /// Takes the bytes that are there. `false` if there are none; on the network, waits for some.
    pub(crate) fn try_fill(&mut self) -> io::Result<bool> {
        self.line.try_read(&mut self.input)
    }

    /// Hands on every whole message that has come. `false` if there is none.
    pub(crate) fn read(&mut self, mut hear: impl FnMut(ToClient<'_>)) -> io::Result<bool> {
        let mut start = 0;
        let end = loop {
            match self.take(start, &mut hear) {
                Ok(Some(length)) => start += length,
                end => break end.map(|_| start > 0),
            }
        };
        self.input.drain(..start);
        end
    }

    /// Hands on the first message, if it is whole.
    pub(crate) fn first<R>(&mut self, hear: impl FnOnce(ToClient<'_>) -> R) -> io::Result<Option<R>> {
        let (mut hear, mut heard) = (Some(hear), None);
        while heard.is_none() {
            let taken = self.take(0, &mut |message| heard = hear.take().map(|hear| hear(message)))?;
            let Some(length) = taken else { break };
            self.input.drain(..length);
        }
        Ok(heard)
    }

    /// Takes the first message from there on. Its length, if it is whole.
    fn take(&mut self, start: usize, hear: &mut dyn FnMut(ToClient<'_>)) -> io::Result<Option<usize>> {
        #[cfg(feature = "network")]
        if let Some(frames) = &mut self.frames {
            return match frames.first(&mut self.input[start..]).map_err(invalid)? {
                Some((Said::Message(message), length)) => {
                    hear(ToClient::decode(message).map_err(invalid)?);
                    Ok(Some(length))
                }
                Some((Said::Close, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
                // A daemon does not ping.
                Some((Said::Ping(_) | Said::Nothing, length)) => Ok(Some(length)),
                None => Ok(None),
            };
        }
        let first = frame::first(&self.input[start..], frame::MAX_TO_CLIENT).map_err(invalid)?;
        let Some((message, length)) = first else { return Ok(None) };
        hear(ToClient::decode(message).map_err(invalid)?);
        Ok(Some(length))
    }
}

fn invalid(error: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
