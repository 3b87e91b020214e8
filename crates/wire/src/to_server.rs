//! What a client says.

use crate::{
    Seal,
    pack::{Malformed, Reader, Result, Writer},
};
use lockkeeper_core::Mode;

/// The names of a request, each with its mode. Names are WTF-8 bytes.
pub type Scope<'a> = Vec<(&'a [u8], Mode)>;

/// What a client says to a daemon. `rid` is the client's own number for a request or a question: growing, and never
/// used again within a session, so that what was not answered can be said again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToServer<'a> {
    /// The first message of a connection.
    Hello {
        /// The version of the protocol that the client speaks.
        version: u32,
        /// The bucket whose locks it wants.
        bucket: &'a str,
        /// The session to go on with: its client's id, and its secret.
        resume: Option<(&'a str, Seal)>,
        /// Credentials, on a network.
        token: Option<&'a str>,
    },
    /// Requests a lock (§4.1).
    Request {
        /// The request.
        rid: u64,
        /// What it asks for.
        scope: Scope<'a>,
        /// How.
        flags: Flags,
        /// The request of this session within which it is made.
        nested_in: Option<u64>,
        /// A label for people.
        info: Option<&'a str>,
    },
    /// Releases a lock (§4.2).
    Release {
        /// The request.
        rid: u64,
    },
    /// Gives a request up (§4.3), whether it waits or, unknown to the client, was granted.
    Abort {
        /// The request.
        rid: u64,
        /// Whether its time was up: for who counts.
        timed_out: bool,
    },
    /// Breaks every lock of a name.
    ForceRelease {
        /// The question.
        rid: u64,
        /// The name.
        name: &'a [u8],
    },
    /// Asks for the state (§4.5).
    Query {
        /// The question.
        rid: u64,
        /// Of one name only.
        name: Option<&'a [u8]>,
        /// Whether to look for cycles, too.
        deadlocks: bool,
    },
    /// Says what a request was when the connection was lost, in a session that goes on.
    Reclaim {
        /// The request.
        rid: u64,
        /// What it asked for.
        scope: Scope<'a>,
        /// Its label.
        info: Option<&'a str>,
        /// What it was.
        claim: Claim,
    },
    /// All has been reclaimed.
    Ready,
    /// The client is there.
    Ping,
    /// The client wants no more: its session ends.
    Bye,
    /// The session lasts at least as long as a process that the client has started.
    Heir {
        /// The process.
        pid: u32,
    },
    /// Releases a lock, or gives a request up, of which the client wants to hear no more.
    Drop {
        /// The request.
        rid: u64,
    },
}

/// What a client says that its request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Held, with this token, of which the daemon's signature is the proof.
    Held {
        /// The token.
        token: u64,
        /// The signature that came with the grant.
        receipt: Seal,
    },
    /// Waiting, with this ticket; none if the daemon had not answered.
    Waiting {
        /// The ticket.
        ticket: Option<u64>,
    },
}

/// How a lock is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Not at all, rather than wait.
    pub if_available: bool,
    /// By force.
    pub steal: bool,
    /// Not at all, rather than close a cycle.
    pub refuse_deadlock: bool,
}

const HELLO: u64 = 0;
const REQUEST: u64 = 1;
const RELEASE: u64 = 2;
const ABORT: u64 = 3;
const FORCE_RELEASE: u64 = 4;
const QUERY: u64 = 5;
const RECLAIM: u64 = 6;
const READY: u64 = 7;
const PING: u64 = 8;
const BYE: u64 = 9;
const HEIR: u64 = 10;
const DROP: u64 = 11;

const IF_AVAILABLE: u64 = 1;
const STEAL: u64 = 2;
const REFUSE_DEADLOCK: u64 = 4;

impl<'a> ToServer<'a> {
    /// Appends the bytes of the message.
    ///
    /// ```
    /// # use lockkeeper_wire::ToServer;
    /// let mut out = Vec::new();
    /// ToServer::Release { rid: 7 }.encode(&mut out);
    /// assert_eq!(out, [0x92, 2, 7]);
    /// ```
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        match self {
            Self::Hello { version, bucket, resume, token } => {
                writer.array(5).uint(HELLO).uint(u64::from(*version)).text(bucket);
                writer.option(*resume, |writer, (client, secret)| {
                    writer.array(2).text(client).bytes(&secret);
                });
                writer.option(*token, |writer, token| _ = writer.text(token));
            }
            Self::Request { rid, scope, flags, nested_in, info } => {
                writer.array(6).uint(REQUEST).uint(*rid);
                write_scope(&mut writer, scope);
                writer.uint(flags.bits());
                writer.option(*nested_in, |writer, outer| _ = writer.uint(outer));
                writer.option(*info, |writer, info| _ = writer.text(info));
            }
            Self::Release { rid } => _ = writer.array(2).uint(RELEASE).uint(*rid),
            Self::Abort { rid, timed_out } => _ = writer.array(3).uint(ABORT).uint(*rid).bool(*timed_out),
            Self::ForceRelease { rid, name } => {
                writer.array(3).uint(FORCE_RELEASE).uint(*rid).bytes(name);
            }
            Self::Query { rid, name, deadlocks } => {
                writer.array(4).uint(QUERY).uint(*rid);
                writer.option(*name, |writer, name| _ = writer.bytes(name)).bool(*deadlocks);
            }
            Self::Reclaim { rid, scope, info, claim } => {
                writer.array(5).uint(RECLAIM).uint(*rid);
                write_scope(&mut writer, scope);
                writer.option(*info, |writer, info| _ = writer.text(info));
                match claim {
                    Claim::Held { token, receipt } => _ = writer.array(2).uint(*token).bytes(receipt),
                    Claim::Waiting { ticket } => {
                        writer.array(1).option(*ticket, |writer, ticket| _ = writer.uint(ticket));
                    }
                }
            }
            Self::Ready => _ = writer.array(1).uint(READY),
            Self::Ping => _ = writer.array(1).uint(PING),
            Self::Bye => _ = writer.array(1).uint(BYE),
            Self::Heir { pid } => _ = writer.array(2).uint(HEIR).uint(u64::from(*pid)),
            Self::Drop { rid } => _ = writer.array(2).uint(DROP).uint(*rid),
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Malformed`] says what is wrong with it.
    ///
    /// ```
    /// # use lockkeeper_wire::ToServer;
    /// assert_eq!(ToServer::decode(&[0x92, 2, 7]), Ok(ToServer::Release { rid: 7 }));
    /// assert!(ToServer::decode(&[0x92, 2]).is_err());
    /// ```
    pub fn decode(bytes: &'a [u8]) -> std::result::Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let elements = reader.array()?;
        let kind = reader.uint()?;
        let expect = |length| match elements == length {
            true => Ok(()),
            false => Err(Malformed("a wrong number of elements")),
        };
        let message = match kind {
            HELLO => {
                expect(5)?;
                Self::Hello {
                    version: u32::try_from(reader.uint()?).unwrap_or(u32::MAX),
                    bucket: reader.text()?,
                    resume: reader.option(|reader| {
                        reader.tuple(2)?;
                        Ok((reader.text()?, reader.seal()?))
                    })?,
                    token: reader.option(Reader::text)?,
                }
            }
            REQUEST => {
                expect(6)?;
                Self::Request {
                    rid: reader.uint()?,
                    scope: read_scope(&mut reader)?,
                    flags: Flags::from_bits(reader.uint()?)?,
                    nested_in: reader.option(Reader::uint)?,
                    info: reader.option(Reader::text)?,
                }
            }
            RELEASE => {
                expect(2)?;
                Self::Release { rid: reader.uint()? }
            }
            ABORT => {
                expect(3)?;
                Self::Abort { rid: reader.uint()?, timed_out: reader.bool()? }
            }
            FORCE_RELEASE => {
                expect(3)?;
                Self::ForceRelease { rid: reader.uint()?, name: reader.bytes()? }
            }
            QUERY => {
                expect(4)?;
                let (rid, name) = (reader.uint()?, reader.option(Reader::bytes)?);
                Self::Query { rid, name, deadlocks: reader.bool()? }
            }
            RECLAIM => {
                expect(5)?;
                Self::Reclaim {
                    rid: reader.uint()?,
                    scope: read_scope(&mut reader)?,
                    info: reader.option(Reader::text)?,
                    claim: match reader.array()? {
                        1 => Claim::Waiting { ticket: reader.option(Reader::uint)? },
                        2 => Claim::Held { token: reader.uint()?, receipt: reader.seal()? },
                        _ => return Err(Malformed("a claim has one element or two")),
                    },
                }
            }
            READY => {
                expect(1)?;
                Self::Ready
            }
            PING => {
                expect(1)?;
                Self::Ping
            }
            BYE => {
                expect(1)?;
                Self::Bye
            }
            HEIR => {
                expect(2)?;
                Self::Heir { pid: reader.pid()? }
            }
            DROP => {
                expect(2)?;
                Self::Drop { rid: reader.uint()? }
            }
            _ => return Err(Malformed("no such message")),
        };
        reader.end()?;
        Ok(message)
    }
}

fn write_scope(writer: &mut Writer<'_>, scope: &[(&[u8], Mode)]) {
    writer.array(scope.len());
    for (name, mode) in scope {
        writer.array(2).bytes(name).bool(*mode == Mode::Shared);
    }
}

fn read_scope<'a>(reader: &mut Reader<'a>) -> Result<Scope<'a>> {
    let length = reader.array()?;
    // Grown as it is read: a name is many times longer here than in a message that only claims to have it.
    let mut scope = Vec::with_capacity(length.min(16));
    for _ in 0..length {
        reader.tuple(2)?;
        let name = reader.bytes()?;
        scope.push((name, if reader.bool()? { Mode::Shared } else { Mode::Exclusive }));
    }
    Ok(scope)
}

impl Flags {
    fn bits(self) -> u64 {
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        bit(self.if_available, IF_AVAILABLE)
            | bit(self.steal, STEAL)
            | bit(self.refuse_deadlock, REFUSE_DEADLOCK)
    }

    fn from_bits(bits: u64) -> Result<Self> {
        if bits & !(IF_AVAILABLE | STEAL | REFUSE_DEADLOCK) != 0 {
            return Err(Malformed("no such flag"));
        }
        Ok(Self {
            if_available: bits & IF_AVAILABLE != 0,
            steal: bits & STEAL != 0,
            refuse_deadlock: bits & REFUSE_DEADLOCK != 0,
        })
    }
}
