//! What a daemon says.

use crate::{
    Seal,
    pack::{Malformed, Reader, Result, Writer},
};
use lockkeeper_core::{Cause, Mode};

/// What a daemon says to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToClient<'a> {
    /// The answer to a hello.
    Welcome {
        /// The version of the protocol that the daemon speaks.
        version: u32,
        /// The session's public name.
        client_id: &'a str,
        /// What resumes it.
        secret: Seal,
        /// For how many milliseconds a daemon that is gone may be gone, before the client takes its locks for lost.
        ttl: u64,
        /// Whether it is the session that the client wanted to go on with. Whatever that had is gone if not.
        resumed: bool,
    },
    /// The lock is held.
    Granted {
        /// The request.
        rid: u64,
        /// Its fencing token.
        token: u64,
        /// The daemon's signature over the grant.
        receipt: Seal,
    },
    /// The request waits.
    Queued {
        /// The request.
        rid: u64,
        /// Its place in the order of arrivals.
        ticket: u64,
    },
    /// The request asked not to wait, and was refused.
    Unavailable {
        /// The request.
        rid: u64,
    },
    /// The lock is released.
    Released {
        /// The request.
        rid: u64,
    },
    /// The request is given up.
    Aborted {
        /// The request.
        rid: u64,
    },
    /// The lock was broken.
    Broken {
        /// The request.
        rid: u64,
        /// By whose doing.
        cause: Cause,
    },
    /// What was asked is refused, and nothing has changed.
    Refused {
        /// The request or question.
        rid: u64,
        /// Why, for programs.
        code: u32,
        /// Why, for people.
        message: &'a str,
    },
    /// The answer to a query: held first, each in the order of arrival.
    Snapshot {
        /// The question.
        rid: u64,
        /// A name of a request each.
        entries: Vec<Entry<'a>>,
        /// The cycles that were looked for.
        deadlocks: Vec<Deadlock<'a>>,
        /// The greatest token that was given out.
        last_token: u64,
    },
    /// The daemon is there.
    Pong,
    /// The last message of a connection.
    Goodbye {
        /// Why, for programs.
        code: u32,
        /// Why, for people.
        message: &'a str,
    },
    /// The request would have waited in a cycle, and asked not to.
    Deadlocked {
        /// The request.
        rid: u64,
        /// The cycle.
        deadlock: Deadlock<'a>,
    },
}

/// Requests each of which waits for the next, the last for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock<'a> {
    /// The cycle, for people.
    pub words: &'a str,
    /// Its requests.
    pub cycle: Vec<Step<'a>>,
}

/// One name of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// How it is asked for.
    pub mode: Mode,
    /// Whose request it is.
    pub client_id: &'a str,
    /// The place of the request in the order of arrivals.
    pub ticket: u64,
    /// Its fencing token, if it is held.
    pub token: Option<u64>,
    /// Its label.
    pub info: Option<&'a str>,
    /// For how many milliseconds it has waited, or has been held.
    pub since: u64,
    /// The ticket of the request within which it was made.
    pub nested_in: Option<u64>,
    /// Whether it was made with *steal*.
    pub stole: bool,
    /// Its process, if that is one of the daemon's machine.
    pub pid: Option<u32>,
}

/// One request of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The place of the request in the order of arrivals.
    pub ticket: u64,
    /// Whose request it is.
    pub client_id: &'a str,
    /// The name it waits for; none if it waits for the next request, which is nested in it.
    pub waits_for: Option<&'a [u8]>,
}

const WELCOME: u64 = 0;
const GRANTED: u64 = 1;
const QUEUED: u64 = 2;
const UNAVAILABLE: u64 = 3;
const RELEASED: u64 = 4;
const ABORTED: u64 = 5;
const BROKEN: u64 = 6;
const REFUSED: u64 = 7;
const SNAPSHOT: u64 = 8;
const PONG: u64 = 9;
const GOODBYE: u64 = 10;
const DEADLOCKED: u64 = 11;

impl<'a> ToClient<'a> {
    /// Appends the bytes of the message.
    ///
    /// ```
    /// # use lockkeeper_wire::ToClient;
    /// let mut out = Vec::new();
    /// ToClient::Released { rid: 7 }.encode(&mut out);
    /// assert_eq!(out, [0x92, 4, 7]);
    /// ```
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        match self {
            Self::Welcome { version, client_id, secret, ttl, resumed } => {
                writer.array(6).uint(WELCOME).uint(u64::from(*version)).text(client_id).bytes(secret);
                writer.uint(*ttl).bool(*resumed);
            }
            Self::Granted { rid, token, receipt } => {
                writer.array(4).uint(GRANTED).uint(*rid).uint(*token).bytes(receipt);
            }
            Self::Queued { rid, ticket } => _ = writer.array(3).uint(QUEUED).uint(*rid).uint(*ticket),
            Self::Unavailable { rid } => _ = writer.array(2).uint(UNAVAILABLE).uint(*rid),
            Self::Released { rid } => _ = writer.array(2).uint(RELEASED).uint(*rid),
            Self::Aborted { rid } => _ = writer.array(2).uint(ABORTED).uint(*rid),
            Self::Broken { rid, cause } => {
                writer.array(3).uint(BROKEN).uint(*rid).uint(match cause {
                    Cause::Stolen => 0,
                    Cause::Lost => 1,
                });
            }
            Self::Refused { rid, code, message } => {
                writer.array(4).uint(REFUSED).uint(*rid).uint(u64::from(*code)).text(message);
            }
            Self::Snapshot { rid, entries, deadlocks, last_token } => {
                writer.array(5).uint(SNAPSHOT).uint(*rid).array(entries.len());
                entries.iter().for_each(|entry| entry.write(&mut writer));
                writer.array(deadlocks.len());
                deadlocks.iter().for_each(|deadlock| deadlock.write(&mut writer));
                writer.uint(*last_token);
            }
            Self::Pong => _ = writer.array(1).uint(PONG),
            Self::Goodbye { code, message } => {
                writer.array(3).uint(GOODBYE).uint(u64::from(*code)).text(message);
            }
            Self::Deadlocked { rid, deadlock } => {
                writer.array(3).uint(DEADLOCKED).uint(*rid);
                deadlock.write(&mut writer);
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// [`Malformed`] says what is wrong with it.
    ///
    /// ```
    /// # use lockkeeper_wire::ToClient;
    /// assert_eq!(ToClient::decode(&[0x91, 9]), Ok(ToClient::Pong));
    /// assert!(ToClient::decode(&[0x91, 99]).is_err());
    /// ```
    pub fn decode(bytes: &'a [u8]) -> std::result::Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let elements = reader.array()?;
        let kind = reader.uint()?;
        let length = match kind {
            WELCOME => 6,
            SNAPSHOT => 5,
            GRANTED | REFUSED => 4,
            QUEUED | BROKEN | GOODBYE | DEADLOCKED => 3,
            UNAVAILABLE | RELEASED | ABORTED => 2,
            PONG => 1,
            _ => return Err(Malformed("no such message")),
        };
        if elements != length {
            return Err(Malformed("a wrong number of elements"));
        }
        let code = |reader: &mut Reader<'_>| Ok(u32::try_from(reader.uint()?).unwrap_or(u32::MAX));
        let message = match kind {
            WELCOME => Self::Welcome {
                version: code(&mut reader)?,
                client_id: reader.text()?,
                secret: reader.seal()?,
                ttl: reader.uint()?,
                resumed: reader.bool()?,
            },
            GRANTED => Self::Granted { rid: reader.uint()?, token: reader.uint()?, receipt: reader.seal()? },
            QUEUED => Self::Queued { rid: reader.uint()?, ticket: reader.uint()? },
            UNAVAILABLE => Self::Unavailable { rid: reader.uint()? },
            RELEASED => Self::Released { rid: reader.uint()? },
            ABORTED => Self::Aborted { rid: reader.uint()? },
            BROKEN => Self::Broken {
                rid: reader.uint()?,
                cause: match reader.uint()? {
                    0 => Cause::Stolen,
                    1 => Cause::Lost,
                    _ => return Err(Malformed("no such cause")),
                },
            },
            REFUSED => {
                Self::Refused { rid: reader.uint()?, code: code(&mut reader)?, message: reader.text()? }
            }
            SNAPSHOT => Self::Snapshot {
                rid: reader.uint()?,
                entries: list(&mut reader, Entry::read)?,
                deadlocks: list(&mut reader, Deadlock::read)?,
                last_token: reader.uint()?,
            },
            PONG => Self::Pong,
            DEADLOCKED => Self::Deadlocked { rid: reader.uint()?, deadlock: Deadlock::read(&mut reader)? },
            _ => Self::Goodbye { code: code(&mut reader)?, message: reader.text()? },
        };
        reader.end()?;
        Ok(message)
    }
}

impl<'a> Entry<'a> {
    fn write(&self, writer: &mut Writer<'_>) {
        writer
            .array(10)
            .bytes(self.name)
            .bool(self.mode == Mode::Shared)
            .text(self.client_id)
            .uint(self.ticket);
        writer.option(self.token, |writer, token| _ = writer.uint(token));
        writer.option(self.info, |writer, info| _ = writer.text(info)).uint(self.since);
        writer.option(self.nested_in, |writer, outer| _ = writer.uint(outer)).bool(self.stole);
        writer.option(self.pid, |writer, pid| _ = writer.uint(u64::from(pid)));
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self> {
        reader.tuple(10)?;
        Ok(Self {
            name: reader.bytes()?,
            mode: if reader.bool()? { Mode::Shared } else { Mode::Exclusive },
            client_id: reader.text()?,
            ticket: reader.uint()?,
            token: reader.option(Reader::uint)?,
            info: reader.option(Reader::text)?,
            since: reader.uint()?,
            nested_in: reader.option(Reader::uint)?,
            stole: reader.bool()?,
            pid: reader.option(Reader::pid)?,
        })
    }
}

impl<'a> Deadlock<'a> {
    fn write(&self, writer: &mut Writer<'_>) {
        writer.array(2).text(self.words).array(self.cycle.len());
        for Step { ticket, client_id, waits_for } in &self.cycle {
            writer.array(3).uint(*ticket).text(client_id);
            writer.option(*waits_for, |writer, name| _ = writer.bytes(name));
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self> {
        reader.tuple(2)?;
        let words = reader.text()?;
        let step = |reader: &mut Reader<'a>| {
            reader.tuple(3)?;
            let (ticket, client_id) = (reader.uint()?, reader.text()?);
            Ok(Step { ticket, client_id, waits_for: reader.option(Reader::bytes)? })
        };
        Ok(Self { words, cycle: list(reader, step)? })
    }
}

/// An array of as many as it says. Grown as it is read: it may say anything.
fn list<'a, T>(
    reader: &mut Reader<'a>,
    mut read: impl FnMut(&mut Reader<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    (0..reader.array()?).map(|_| read(reader)).collect()
}
