//! What changes the state, and its bytes.
//!
//! A record carries everything that is not determined by the records before it: ids, hashes of
//! secrets, who ended and why. Records travel in batches: the level, a time for display, the
//! records, and the running hash of their effects.

use crate::codec::{Damaged, Reader, put_bytes, put_option, put_uint};
use lockkeeper_core::Mode;

/// The hash of the secret that resumes a session.
pub type SecretHash = [u8; 32];

/// Where a client connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process of the server's machine.
    Local,
    /// Anywhere.
    Network,
}

/// The FIFO whose writers keep a local session alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fifo {
    /// The device it is on.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// The boot of the machine during which it was made.
    pub boot: [u8; 16],
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The client said so.
    Bye,
    /// Its lease expired.
    Expired,
    /// No process has its FIFO open any more.
    Exited,
    /// The machine crashed, and the log may lack what the client did last.
    Crashed,
    /// The operator, or the server on its own account: a revoked key, a client that does not follow
    /// the protocol.
    Revoked,
}

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A session begins, with its first attachment.
    Open {
        /// Its id.
        session: u64,
        /// The hash of its secret.
        secret: SecretHash,
        /// Its bucket.
        bucket: &'a str,
        /// Where its client is.
        origin: Origin,
        /// The number of the Hello.
        hello: u64,
        /// Its lease, in milliseconds.
        ttl: u64,
        /// A description of the client.
        owner: &'a str,
    },
    /// A client is back with another connection: the session's next attachment.
    Resume {
        /// The session.
        session: u64,
        /// The number of the Hello.
        hello: u64,
        /// The client's acknowledgement.
        ack: u64,
        /// The lease in the Welcome, in milliseconds.
        ttl: u64,
        /// Whether the FIFO that it had is still good.
        keeps_fifo: bool,
    },
    /// The session's life is a FIFO from now on.
    Fifo {
        /// The session.
        session: u64,
        /// The FIFO.
        fifo: Fifo,
    },
    /// A request that is granted or waits.
    Request {
        /// The session.
        session: u64,
        /// The request.
        rid: u64,
        /// The scope.
        scope: Vec<(&'a [u8], Mode)>,
        /// Whether it breaks conflicting locks.
        steal: bool,
        /// The session and number of the request within which it is made.
        nested_in: Option<(u64, u64)>,
        /// A label for people.
        info: Option<&'a str>,
    },
    /// A request ends as its client wished.
    Release {
        /// The session.
        session: u64,
        /// The request.
        rid: u64,
    },
    /// Every lock on a name is broken.
    ForceRelease {
        /// The session that asked for it.
        session: u64,
        /// Its question.
        rid: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A session ends another of its bucket.
    EndSession {
        /// The session that asked for it.
        session: u64,
        /// Its question.
        rid: u64,
        /// The one that ends.
        target: u64,
    },
    /// A client has processed numbered messages.
    Ack {
        /// The session.
        session: u64,
        /// Up to this one.
        ack: u64,
    },
    /// A session ends, with all it has.
    End {
        /// The session.
        session: u64,
        /// Why.
        reason: EndReason,
    },
    /// No token up to this one is given out from now on.
    SkipTokens {
        /// The token.
        last: u64,
    },
}

const OPEN: u8 = 0;
const RESUME: u8 = 1;
const FIFO: u8 = 2;
const REQUEST: u8 = 3;
const RELEASE: u8 = 4;
const FORCE_RELEASE: u8 = 5;
const END_SESSION: u8 = 6;
const ACK: u8 = 7;
const END: u8 = 8;
const SKIP_TOKENS: u8 = 9;

impl<'a> Record<'a> {
    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut head = |kind: u8, session: u64| {
            out.push(kind);
            out.extend_from_slice(&session.to_le_bytes());
        };
        match self {
            Self::Open { session, secret, bucket, origin, hello, ttl, owner } => {
                head(OPEN, *session);
                out.extend_from_slice(secret);
                put_bytes(out, bucket.as_bytes());
                put_origin(out, *origin);
                put_uint(out, *hello);
                put_uint(out, *ttl);
                put_bytes(out, owner.as_bytes());
            }
            Self::Resume { session, hello, ack, ttl, keeps_fifo } => {
                head(RESUME, *session);
                put_uint(out, *hello);
                put_uint(out, *ack);
                put_uint(out, *ttl);
                out.push(u8::from(*keeps_fifo));
            }
            Self::Fifo { session, fifo } => {
                head(FIFO, *session);
                put_fifo(out, *fifo);
            }
            Self::Request { session, rid, scope, steal, nested_in, info } => {
                head(REQUEST, *session);
                put_uint(out, *rid);
                put_scope(out, scope.iter().copied());
                out.push(u8::from(*steal));
                put_option(out, *nested_in, |out, (session, rid)| {
                    out.extend_from_slice(&session.to_le_bytes());
                    put_uint(out, rid);
                });
                put_option(out, *info, |out, info| put_bytes(out, info.as_bytes()));
            }
            Self::Release { session, rid } => {
                head(RELEASE, *session);
                put_uint(out, *rid);
            }
            Self::ForceRelease { session, rid, name } => {
                head(FORCE_RELEASE, *session);
                put_uint(out, *rid);
                put_bytes(out, name);
            }
            Self::EndSession { session, rid, target } => {
                head(END_SESSION, *session);
                put_uint(out, *rid);
                out.extend_from_slice(&target.to_le_bytes());
            }
            Self::Ack { session, ack } => {
                head(ACK, *session);
                put_uint(out, *ack);
            }
            Self::End { session, reason } => {
                head(END, *session);
                out.push(match reason {
                    EndReason::Bye => 0,
                    EndReason::Expired => 1,
                    EndReason::Exited => 2,
                    EndReason::Crashed => 3,
                    EndReason::Revoked => 4,
                });
            }
            Self::SkipTokens { last } => {
                out.push(SKIP_TOKENS);
                put_uint(out, *last);
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'a>) -> Result<Self, Damaged> {
        let kind = reader.byte()?;
        if kind == SKIP_TOKENS {
            return Ok(Self::SkipTokens { last: reader.uint()? });
        }
        let session = u64::from_le_bytes(reader.array()?);
        Ok(match kind {
            OPEN => Self::Open {
                session,
                secret: reader.array()?,
                bucket: reader.text()?,
                origin: read_origin(reader)?,
                hello: reader.uint()?,
                ttl: reader.uint()?,
                owner: reader.text()?,
            },
            RESUME => Self::Resume {
                session,
                hello: reader.uint()?,
                ack: reader.uint()?,
                ttl: reader.uint()?,
                keeps_fifo: reader.bool()?,
            },
            FIFO => Self::Fifo { session, fifo: read_fifo(reader)? },
            REQUEST => Self::Request {
                session,
                rid: reader.uint()?,
                scope: read_scope(reader)?,
                steal: reader.bool()?,
                nested_in: reader
                    .option(|reader| Ok((u64::from_le_bytes(reader.array()?), reader.uint()?)))?,
                info: reader.option(Reader::text)?,
            },
            RELEASE => Self::Release { session, rid: reader.uint()? },
            FORCE_RELEASE => Self::ForceRelease { session, rid: reader.uint()?, name: reader.bytes()? },
            END_SESSION => {
                Self::EndSession { session, rid: reader.uint()?, target: u64::from_le_bytes(reader.array()?) }
            }
            ACK => Self::Ack { session, ack: reader.uint()? },
            END => Self::End {
                session,
                reason: match reader.byte()? {
                    0 => EndReason::Bye,
                    1 => EndReason::Expired,
                    2 => EndReason::Exited,
                    3 => EndReason::Crashed,
                    4 => EndReason::Revoked,
                    _ => return Err(Damaged::new("no such reason to end")),
                },
            },
            _ => return Err(Damaged::new(format!("no such record: {kind}"))),
        })
    }
}

pub(crate) fn put_origin(out: &mut Vec<u8>, origin: Origin) {
    out.push(u8::from(origin == Origin::Network));
}

pub(crate) fn read_origin(reader: &mut Reader<'_>) -> Result<Origin, Damaged> {
    Ok(if reader.bool()? { Origin::Network } else { Origin::Local })
}

pub(crate) fn put_fifo(out: &mut Vec<u8>, fifo: Fifo) {
    put_uint(out, fifo.device);
    put_uint(out, fifo.inode);
    out.extend_from_slice(&fifo.boot);
}

pub(crate) fn read_fifo(reader: &mut Reader<'_>) -> Result<Fifo, Damaged> {
    Ok(Fifo { device: reader.uint()?, inode: reader.uint()?, boot: reader.array()? })
}

pub(crate) fn put_scope<'b>(out: &mut Vec<u8>, scope: impl ExactSizeIterator<Item = (&'b [u8], Mode)>) {
    put_uint(out, scope.len() as u64);
    for (name, mode) in scope {
        put_bytes(out, name);
        out.push(u8::from(mode == Mode::Shared));
    }
}

pub(crate) fn read_scope<'b>(reader: &mut Reader<'b>) -> Result<Vec<(&'b [u8], Mode)>, Damaged> {
    let mut scope = Vec::new();
    for _ in 0..reader.uint()? {
        let name = reader.bytes()?;
        scope.push((name, if reader.bool()? { Mode::Shared } else { Mode::Exclusive }));
    }
    Ok(scope)
}
