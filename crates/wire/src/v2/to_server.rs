//! What a client sends.

use super::Secret;
use crate::pack::{Malformed, Reader, Result, Writer};
use lockkeeper_core::Mode;

/// The names of a request, each with its mode. Names are WTF-8 bytes.
pub type Scope<'a> = Vec<(&'a [u8], Mode)>;

/// A request of this session, or of the session with this client id.
pub type NestedIn<'a> = (Option<&'a str>, u64);

/// What a client sends.
///
/// `rid` numbers requests and questions: it grows within a session and is never reused. `ack` is
/// the greatest number of a numbered message ([`Welcome`](super::ToClient::Welcome),
/// [`Broken`](super::ToClient::Broken), [`Outcome`](super::ToClient::Outcome)) up to which the
/// client has processed all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToServer<'a> {
    /// The first message of a connection: opens a session, or resumes one.
    Hello {
        /// The client's version of the protocol.
        version: u32,
        /// Bits of [`feature`](super::feature).
        features: u64,
        /// Numbers the Hellos of this client. One that is not above the last is refused.
        hello: u64,
        /// The bucket.
        bucket: &'a str,
        /// The session to resume: its client id and its secret.
        resume: Option<(&'a str, Secret)>,
        /// The acknowledgement.
        ack: u64,
        /// Credentials, on a network.
        token: Option<&'a str>,
        /// The lease that the client would like, in milliseconds.
        ttl: Option<u64>,
        /// A description of the client: user, host, process, command.
        owner: Option<&'a str>,
    },
    /// Requests a lock (§4.1).
    Request {
        /// The acknowledgement.
        ack: u64,
        /// The request.
        rid: u64,
        /// The scope of the request.
        scope: Scope<'a>,
        /// How.
        flags: Flags,
        /// The live request within which it is made.
        nested_in: Option<NestedIn<'a>>,
        /// A label for people.
        info: Option<&'a str>,
    },
    /// Releases a lock (§4.2), or aborts a waiting request (§4.3).
    Release {
        /// The acknowledgement.
        ack: u64,
        /// The request.
        rid: u64,
        /// How.
        flags: EndFlags,
    },
    /// Breaks every lock on a name.
    ForceRelease {
        /// The acknowledgement.
        ack: u64,
        /// The question.
        rid: u64,
        /// The name.
        name: &'a [u8],
    },
    /// Ends a session of the same bucket, with all it has.
    EndSession {
        /// The acknowledgement.
        ack: u64,
        /// The question.
        rid: u64,
        /// The client id of that session.
        client_id: &'a str,
    },
    /// Asks for the state (§4.5).
    Query {
        /// The acknowledgement.
        ack: u64,
        /// The question.
        rid: u64,
        /// A single name to query.
        name: Option<&'a [u8]>,
        /// Whether to search for deadlocks.
        deadlocks: bool,
    },
    /// Extends the lease.
    Ping {
        /// The acknowledgement.
        ack: u64,
        /// Returned in the answer.
        seq: u64,
    },
    /// The client holds the descriptor that it was sent.
    Confirm {
        /// The acknowledgement.
        ack: u64,
    },
    /// The session ends.
    Bye {
        /// The acknowledgement.
        ack: u64,
    },
    /// Asks for the state, and from then on for what changes.
    Subscribe {
        /// The acknowledgement.
        ack: u64,
        /// The question.
        rid: u64,
    },
}

/// How a lock is requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Answer `Unavailable` rather than wait.
    pub if_available: bool,
    /// Break conflicting locks.
    pub steal: bool,
    /// Answer `Deadlocked` rather than close a cycle.
    pub refuse_deadlock: bool,
}

/// How a request is ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndFlags {
    /// The client needs no answer.
    pub quiet: bool,
    /// Its timeout expired. Counted apart from other aborts.
    pub timed_out: bool,
}

const HELLO: u64 = 0;
const REQUEST: u64 = 1;
const RELEASE: u64 = 2;
const FORCE_RELEASE: u64 = 3;
const END_SESSION: u64 = 4;
const QUERY: u64 = 5;
const PING: u64 = 6;
const CONFIRM: u64 = 7;
const BYE: u64 = 8;
const SUBSCRIBE: u64 = 9;

const IF_AVAILABLE: u64 = 1;
const STEAL: u64 = 2;
const REFUSE_DEADLOCK: u64 = 4;

const QUIET: u64 = 1;
const TIMED_OUT: u64 = 2;

impl<'a> ToServer<'a> {
    /// The Hello of a client that opens its first session, without credentials.
    ///
    /// ```
    /// # use lockkeeper_wire::v2::ToServer;
    /// assert!(matches!(ToServer::hello("default", None), ToServer::Hello { resume: None, .. }));
    /// ```
    pub fn hello(bucket: &'a str, ttl: Option<u64>) -> Self {
        Self::Hello {
            version: super::VERSION,
            features: 0,
            hello: 1,
            bucket,
            resume: None,
            ack: 0,
            token: None,
            ttl,
            owner: None,
        }
    }

    /// Appends the bytes of the message.
    ///
    /// ```
    /// # use lockkeeper_wire::v2::{EndFlags, ToServer};
    /// let mut out = Vec::new();
    /// ToServer::Release { ack: 0, rid: 7, flags: EndFlags::default() }.encode(&mut out);
    /// assert_eq!(out, [0x94, 2, 0, 7, 0]);
    /// ```
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        match self {
            Self::Hello { version, features, hello, bucket, resume, ack, token, ttl, owner } => {
                writer.array(10).uint(HELLO).uint(u64::from(*version)).uint(*features).uint(*hello);
                writer.text(bucket);
                writer.option(*resume, |writer, (client, secret)| {
                    writer.array(2).text(client).bytes(&secret);
                });
                writer.uint(*ack);
                writer.option(*token, |writer, token| _ = writer.text(token));
                writer.option(*ttl, |writer, ttl| _ = writer.uint(ttl));
                writer.option(*owner, |writer, owner| _ = writer.text(owner));
            }
            Self::Request { ack, rid, scope, flags, nested_in, info } => {
                writer.array(7).uint(REQUEST).uint(*ack).uint(*rid).array(scope.len());
                for (name, mode) in scope {
                    writer.array(2).bytes(name).bool(*mode == Mode::Shared);
                }
                writer.uint(flags.bits());
                writer.option(*nested_in, |writer, (client, rid)| {
                    writer.array(2).option(client, |writer, client| _ = writer.text(client)).uint(rid);
                });
                writer.option(*info, |writer, info| _ = writer.text(info));
            }
            Self::Release { ack, rid, flags } => {
                writer.array(4).uint(RELEASE).uint(*ack).uint(*rid).uint(flags.bits());
            }
            Self::ForceRelease { ack, rid, name } => {
                writer.array(4).uint(FORCE_RELEASE).uint(*ack).uint(*rid).bytes(name);
            }
            Self::EndSession { ack, rid, client_id } => {
                writer.array(4).uint(END_SESSION).uint(*ack).uint(*rid).text(client_id);
            }
            Self::Query { ack, rid, name, deadlocks } => {
                writer.array(5).uint(QUERY).uint(*ack).uint(*rid);
                writer.option(*name, |writer, name| _ = writer.bytes(name)).bool(*deadlocks);
            }
            Self::Ping { ack, seq } => _ = writer.array(3).uint(PING).uint(*ack).uint(*seq),
            Self::Confirm { ack } => _ = writer.array(2).uint(CONFIRM).uint(*ack),
            Self::Bye { ack } => _ = writer.array(2).uint(BYE).uint(*ack),
            Self::Subscribe { ack, rid } => _ = writer.array(3).uint(SUBSCRIBE).uint(*ack).uint(*rid),
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Malformed`] says what is wrong with it.
    ///
    /// ```
    /// # use lockkeeper_wire::v2::ToServer;
    /// assert_eq!(ToServer::decode(&[0x93, 6, 0, 7]), Ok(ToServer::Ping { ack: 0, seq: 7 }));
    /// assert!(ToServer::decode(&[0x92, 6, 0]).is_err());
    /// // A later version may add elements.
    /// assert_eq!(ToServer::decode(&[0x94, 6, 0, 7, 0xc0]), Ok(ToServer::Ping { ack: 0, seq: 7 }));
    /// ```
    pub fn decode(bytes: &'a [u8]) -> std::result::Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let elements = reader.array()?;
        let kind = reader.uint()?;
        let known = match kind {
            HELLO => 10,
            REQUEST => 7,
            QUERY => 5,
            RELEASE | FORCE_RELEASE | END_SESSION => 4,
            PING | SUBSCRIBE => 3,
            CONFIRM | BYE => 2,
            _ => return Err(Malformed("no such message")),
        };
        let unknown = elements.checked_sub(known).ok_or(Malformed("too few elements"))?;
        let message = match kind {
            HELLO => Self::Hello {
                version: u32::try_from(reader.uint()?).unwrap_or(u32::MAX),
                features: reader.uint()?,
                hello: reader.uint()?,
                bucket: reader.text()?,
                resume: reader.option(|reader| {
                    reader.tuple(2)?;
                    Ok((reader.text()?, reader.secret()?))
                })?,
                ack: reader.uint()?,
                token: reader.option(Reader::text)?,
                ttl: reader.option(Reader::uint)?,
                owner: reader.option(Reader::text)?,
            },
            REQUEST => Self::Request {
                ack: reader.uint()?,
                rid: reader.uint()?,
                scope: reader.list(|reader| {
                    reader.tuple(2)?;
                    let name = reader.bytes()?;
                    Ok((name, if reader.bool()? { Mode::Shared } else { Mode::Exclusive }))
                })?,
                flags: Flags::from_bits(reader.uint()?)?,
                nested_in: reader.option(|reader| {
                    reader.tuple(2)?;
                    Ok((reader.option(Reader::text)?, reader.uint()?))
                })?,
                info: reader.option(Reader::text)?,
            },
            RELEASE => Self::Release {
                ack: reader.uint()?,
                rid: reader.uint()?,
                flags: EndFlags::from_bits(reader.uint()?)?,
            },
            FORCE_RELEASE => {
                Self::ForceRelease { ack: reader.uint()?, rid: reader.uint()?, name: reader.bytes()? }
            }
            END_SESSION => {
                Self::EndSession { ack: reader.uint()?, rid: reader.uint()?, client_id: reader.text()? }
            }
            QUERY => Self::Query {
                ack: reader.uint()?,
                rid: reader.uint()?,
                name: reader.option(Reader::bytes)?,
                deadlocks: reader.bool()?,
            },
            PING => Self::Ping { ack: reader.uint()?, seq: reader.uint()? },
            CONFIRM => Self::Confirm { ack: reader.uint()? },
            SUBSCRIBE => Self::Subscribe { ack: reader.uint()?, rid: reader.uint()? },
            _ => Self::Bye { ack: reader.uint()? },
        };
        reader.skip(unknown)?;
        reader.end()?;
        Ok(message)
    }
}

impl Flags {
    /// The flags as a number.
    pub fn bits(self) -> u64 {
        let bit = |set, bit| if set { bit } else { 0 };
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

impl EndFlags {
    fn bits(self) -> u64 {
        let bit = |set, bit| if set { bit } else { 0 };
        bit(self.quiet, QUIET) | bit(self.timed_out, TIMED_OUT)
    }

    fn from_bits(bits: u64) -> Result<Self> {
        if bits & !(QUIET | TIMED_OUT) != 0 {
            return Err(Malformed("no such flag"));
        }
        Ok(Self { quiet: bits & QUIET != 0, timed_out: bits & TIMED_OUT != 0 })
    }
}
