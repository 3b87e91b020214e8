//! The data behind the read lock: the connection that is read, and the bytes of incomplete
//! messages.

use crate::{
    connection::Connection,
    spin::{self, Backoff},
};
#[cfg(feature = "network")]
use lockkeeper_wire::websocket::{Frames, Incoming, first_message};
use lockkeeper_wire::{frame, v2::ToClient};
use std::{io, os::fd::OwnedFd, sync::Arc, time::Instant};

/// Messages out of one connection after the other.
pub(crate) struct Reader {
    source: Option<Source>,
    input: Vec<u8>,
    backoff: Backoff,
    /// Whether the server has said that a request waits for others.
    queued: bool,
}

struct Source {
    connection: Arc<Connection>,
    /// The machine's number for it.
    number: u64,
    /// Whether a descriptor is still to come.
    expects_descriptor: bool,
    #[cfg(feature = "network")]
    frames: Option<Frames>,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self { source: None, input: Vec::new(), backoff: Backoff::new(Instant::now()), queued: false }
    }

    /// Reads another connection from now on.
    pub(crate) fn replace(&mut self, connection: Arc<Connection>, number: u64) {
        self.input.clear();
        let local = connection.is_local();
        self.source = Some(Source {
            connection,
            number,
            expects_descriptor: local,
            #[cfg(feature = "network")]
            frames: (!local).then(|| Frames::new(false, frame::MAX_TO_CLIENT)),
        });
    }

    /// Closes this side's share of the connection.
    pub(crate) fn forget(&mut self) {
        self.source = None;
        self.input = Vec::new();
    }

    /// The machine's number for the connection that is read.
    pub(crate) fn number(&self) -> Option<u64> {
        self.source.as_ref().map(|source| source.number)
    }

    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        self.source.as_ref().map(|source| &source.connection)
    }

    /// Takes the bytes that are there, and perhaps a descriptor. False if there are none.
    pub(crate) fn fill(&mut self, descriptor: &mut Option<OwnedFd>) -> io::Result<bool> {
        let Some(source) = &mut self.source else { return Err(io::ErrorKind::NotConnected.into()) };
        if !source.expects_descriptor {
            return source.connection.read(&mut self.input);
        }
        let came = source.connection.read_with_descriptor(&mut self.input, descriptor)?;
        source.expects_descriptor = descriptor.is_none();
        Ok(came)
    }

    /// Whether there are bytes that were not understood yet: another thread may have read them.
    pub(crate) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Passes on every complete message. False if there is none.
    pub(crate) fn messages(&mut self, mut on_message: impl FnMut(ToClient<'_>)) -> io::Result<bool> {
        let Some(source) = &mut self.source else { return Ok(false) };
        let queued = &mut self.queued;
        let mut on_message = |message: ToClient<'_>| {
            *queued |= matches!(message, ToClient::Queued { .. });
            on_message(message);
        };
        let mut start = 0;
        let end = loop {
            match source.take(&mut self.input[start..], &mut on_message) {
                Ok(Some(length)) => start += length,
                end => break end.map(|_| start > 0),
            }
        };
        self.input.drain(..start);
        end
    }

    /// Polls `read` for a while, until it is `done` or the request waits for others. Gives up
    /// sooner if that took long of late.
    pub(crate) fn spin(
        &mut self,
        done: impl Fn() -> bool,
        mut read: impl FnMut(&mut Self) -> io::Result<bool>,
    ) -> io::Result<()> {
        let begun = Instant::now();
        self.queued = false;
        while !done() && !self.queued {
            let (came, took) = (read(self)?, begun.elapsed());
            if came && took < spin::PREEMPTED {
                self.backoff.succeeded();
            } else if took < spin::REPLY {
                std::thread::yield_now();
            } else {
                self.backoff.failed(begun, took);
                break;
            }
        }
        Ok(())
    }

    /// Whether spinning is worth it now.
    pub(crate) fn may_spin(&self) -> bool {
        self.backoff.allows(Instant::now())
    }
}

impl Source {
    /// Hands on the first message, or those of the first frame. Its length, if it is whole.
    fn take(
        &mut self,
        input: &mut [u8],
        on_message: &mut dyn FnMut(ToClient<'_>),
    ) -> io::Result<Option<usize>> {
        #[cfg(feature = "network")]
        if let Some(frames) = &mut self.frames {
            return match frames.first(input).map_err(invalid)? {
                Some((Incoming::Messages(mut frame), length)) => {
                    while !frame.is_empty() {
                        let (message, rest) = first_message(frame).map_err(invalid)?;
                        on_message(ToClient::decode(message).map_err(invalid)?);
                        frame = rest;
                    }
                    Ok(Some(length))
                }
                Some((Incoming::Ping(ping), length)) => {
                    self.connection.pong(ping)?;
                    Ok(Some(length))
                }
                Some((Incoming::Close(_), _)) => Err(io::ErrorKind::UnexpectedEof.into()),
                Some((Incoming::Nothing, length)) => Ok(Some(length)),
                None => Ok(None),
            };
        }
        let Some((message, length)) = frame::first(input, frame::MAX_TO_CLIENT).map_err(invalid)? else {
            return Ok(None);
        };
        on_message(ToClient::decode(message).map_err(invalid)?);
        Ok(Some(length))
    }
}

fn invalid(error: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
