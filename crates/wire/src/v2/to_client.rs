//! What a server sends.

use super::Secret;
use crate::pack::{Malformed, Reader, Result, Writer};
use lockkeeper_core::{Cause, Mode};

/// A message of a server. Messages with a `number` are repeated on every resume until the client
/// acknowledges them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToClient<'a> {
    /// Answers a Hello. On a resumed session, [`Listed`](Self::Listed) and the unacknowledged
    /// numbered messages follow. [`Synced`](Self::Synced) always does; the client sends nothing
    /// before it.
    Welcome {
        /// The server's version of the protocol.
        version: u32,
        /// Bits of [`feature`](super::feature).
        features: u64,
        /// Greater than that of every numbered message before [`Synced`](Self::Synced).
        /// Acknowledged after that.
        number: u64,
        /// The session's public id.
        client_id: &'a str,
        /// Resumes it.
        secret: Secret,
        /// The lease in milliseconds; 0 if the session lives as long as its descriptor is open.
        ttl: u64,
        /// Whether it is the session that the client wanted to resume. If not, all that one had is
        /// gone.
        resumed: bool,
        /// The greatest request number that the server has recorded.
        last_rid: u64,
    },
    /// Live requests of a resumed session.
    Listed {
        /// Some of them.
        requests: Vec<Listed>,
    },
    /// The end of what answers a Hello.
    Synced,
    /// The lock is held.
    Granted {
        /// The request.
        rid: u64,
        /// Its fencing token.
        token: u64,
    },
    /// The request waits.
    Queued {
        /// The request.
        rid: u64,
        /// Its arrival.
        arrival: u64,
    },
    /// The request was not to wait, and is refused.
    Unavailable {
        /// The request.
        rid: u64,
    },
    /// The lock is released, or the request aborted.
    Released {
        /// The request.
        rid: u64,
    },
    /// The lock was broken.
    Broken {
        /// Numbers the message.
        number: u64,
        /// The request.
        rid: u64,
        /// Why.
        cause: Cause,
        /// A description of the client that did it.
        by: Option<&'a str>,
        /// Whether by a force release rather than a steal.
        forced: bool,
    },
    /// The outcome of a force release or the ending of a session.
    Outcome {
        /// Numbers the message.
        number: u64,
        /// The question.
        rid: u64,
        /// How many locks or sessions ended.
        count: u64,
    },
    /// The request or question is refused. Nothing has changed.
    Refused {
        /// The request or question.
        rid: u64,
        /// One of [`code`](super::code).
        code: u32,
        /// Why, for people.
        message: &'a str,
    },
    /// The request would have closed a cycle, and asked to be refused.
    Deadlocked {
        /// The request.
        rid: u64,
        /// The cycle.
        deadlock: Deadlock<'a>,
    },
    /// Answers a query: held first, each in the order of arrival.
    Snapshot {
        /// The question.
        rid: u64,
        /// One name of one request each.
        entries: Vec<Entry<'a>>,
        /// The cycles, if they were requested.
        deadlocks: Vec<Deadlock<'a>>,
        /// The greatest token that was given out.
        last_token: u64,
        /// Whether another part of the answer follows.
        more: bool,
    },
    /// Answers a ping.
    Pong {
        /// The ping's.
        seq: u64,
    },
    /// Comes with a descriptor. The session lives as long as that is open, once the client has
    /// confirmed it and was answered with [`Confirmed`](Self::Confirmed).
    Fifo,
    /// The session has no lease any more.
    Confirmed,
    /// The changes since the last message of a subscription: requests in their current state, and
    /// those that have ended.
    Changes {
        /// The subscription.
        rid: u64,
        /// One name of one request each, with all names of that request. It replaces what was known
        /// of the request.
        entries: Vec<Entry<'a>>,
        /// The arrivals of requests that have ended.
        gone: Vec<u64>,
        /// The greatest token that was given out.
        last_token: u64,
        /// Whether more has changed already. If not, the client now has the whole state of one
        /// moment.
        more: bool,
    },
    /// The last message of a connection.
    Goodbye {
        /// One of [`code`](super::code).
        code: u32,
        /// Why, for people.
        message: &'a str,
    },
}

/// A live request of a resumed session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The request.
    pub rid: u64,
    /// Its arrival.
    pub arrival: u64,
    /// Its fencing token, if it is held.
    pub token: Option<u64>,
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
    /// Its mode.
    pub mode: Mode,
    /// Whose request it is.
    pub client_id: &'a str,
    /// The request's arrival.
    pub arrival: u64,
    /// Its fencing token, if it is held.
    pub token: Option<u64>,
    /// Its label.
    pub info: Option<&'a str>,
    /// For how many milliseconds it has waited, or has been held.
    pub since: u64,
    /// The arrival of the request within which it was made.
    pub nested_in: Option<u64>,
    /// Whether it was made with *steal*.
    pub stole: bool,
    /// Who the client is, for people.
    pub owner: Option<&'a str>,
}

/// One request of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// The request's arrival.
    pub arrival: u64,
    /// Whose request it is.
    pub client_id: &'a str,
    /// The name it waits for; none if it waits for the next request, which is nested in it.
    pub waits_for: Option<&'a [u8]>,
}

const WELCOME: u64 = 0;
const LISTED: u64 = 1;
const SYNCED: u64 = 2;
const GRANTED: u64 = 3;
const QUEUED: u64 = 4;
const UNAVAILABLE: u64 = 5;
const RELEASED: u64 = 6;
const BROKEN: u64 = 7;
const OUTCOME: u64 = 8;
const REFUSED: u64 = 9;
const DEADLOCKED: u64 = 10;
const SNAPSHOT: u64 = 11;
const PONG: u64 = 12;
const FIFO: u64 = 13;
const CONFIRMED: u64 = 14;
const GOODBYE: u64 = 15;
const CHANGES: u64 = 16;

impl<'a> ToClient<'a> {
    /// Appends the bytes of the message.
    ///
    /// ```
    /// # use lockkeeper_wire::v2::ToClient;
    /// let mut out = Vec::new();
    /// ToClient::Released { rid: 7 }.encode(&mut out);
    /// assert_eq!(out, [0x92, 6, 7]);
    /// ```
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        match self {
            Self::Welcome { version, features, number, client_id, secret, ttl, resumed, last_rid } => {
                writer.array(9).uint(WELCOME).uint(u64::from(*version)).uint(*features).uint(*number);
                writer.text(client_id).bytes(secret).uint(*ttl).bool(*resumed).uint(*last_rid);
            }
            Self::Listed { requests } => {
                writer.array(2).uint(LISTED).array(requests.len());
                for Listed { rid, arrival, token } in requests {
                    writer.array(3).uint(*rid).uint(*arrival);
                    writer.option(*token, |writer, token| _ = writer.uint(token));
                }
            }
            Self::Synced => _ = writer.array(1).uint(SYNCED),
            Self::Granted { rid, token } => _ = writer.array(3).uint(GRANTED).uint(*rid).uint(*token),
            Self::Queued { rid, arrival } => _ = writer.array(3).uint(QUEUED).uint(*rid).uint(*arrival),
            Self::Unavailable { rid } => _ = writer.array(2).uint(UNAVAILABLE).uint(*rid),
            Self::Released { rid } => _ = writer.array(2).uint(RELEASED).uint(*rid),
            Self::Broken { number, rid, cause, by, forced } => {
                writer.array(6).uint(BROKEN).uint(*number).uint(*rid).uint(match cause {
                    Cause::Stolen => 0,
                    Cause::Lost => 1,
                });
                writer.option(*by, |writer, by| _ = writer.text(by)).bool(*forced);
            }
            Self::Outcome { number, rid, count } => {
                writer.array(4).uint(OUTCOME).uint(*number).uint(*rid).uint(*count);
            }
            Self::Refused { rid, code, message } => {
                writer.array(4).uint(REFUSED).uint(*rid).uint(u64::from(*code)).text(message);
            }
            Self::Deadlocked { rid, deadlock } => {
                writer.array(3).uint(DEADLOCKED).uint(*rid);
                deadlock.write(&mut writer);
            }
            Self::Snapshot { rid, entries, deadlocks, last_token, more } => {
                writer.array(6).uint(SNAPSHOT).uint(*rid).array(entries.len());
                entries.iter().for_each(|entry| entry.write(&mut writer));
                writer.array(deadlocks.len());
                deadlocks.iter().for_each(|deadlock| deadlock.write(&mut writer));
                writer.uint(*last_token).bool(*more);
            }
            Self::Pong { seq } => _ = writer.array(2).uint(PONG).uint(*seq),
            Self::Fifo => _ = writer.array(1).uint(FIFO),
            Self::Confirmed => _ = writer.array(1).uint(CONFIRMED),
            Self::Changes { rid, entries, gone, last_token, more } => {
                writer.array(6).uint(CHANGES).uint(*rid).array(entries.len());
                entries.iter().for_each(|entry| entry.write(&mut writer));
                writer.array(gone.len());
                gone.iter().for_each(|arrival| _ = writer.uint(*arrival));
                writer.uint(*last_token).bool(*more);
            }
            Self::Goodbye { code, message } => {
                writer.array(3).uint(GOODBYE).uint(u64::from(*code)).text(message);
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
    /// # use lockkeeper_wire::v2::ToClient;
    /// assert_eq!(ToClient::decode(&[0x92, 12, 7]), Ok(ToClient::Pong { seq: 7 }));
    /// assert!(ToClient::decode(&[0x91, 99]).is_err());
    /// ```
    pub fn decode(bytes: &'a [u8]) -> std::result::Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let elements = reader.array()?;
        let kind = reader.uint()?;
        let known = match kind {
            WELCOME => 9,
            SNAPSHOT | CHANGES => 6,
            // Earlier servers do not say whether it was released by force.
            BROKEN => elements.clamp(5, 6),
            OUTCOME | REFUSED => 4,
            GRANTED | QUEUED | DEADLOCKED | GOODBYE => 3,
            LISTED | UNAVAILABLE | RELEASED | PONG => 2,
            SYNCED | FIFO | CONFIRMED => 1,
            _ => return Err(Malformed("no such message")),
        };
        let unknown = elements.checked_sub(known).ok_or(Malformed("too few elements"))?;
        let message = match kind {
            WELCOME => Self::Welcome {
                version: reader.code()?,
                features: reader.uint()?,
                number: reader.uint()?,
                client_id: reader.text()?,
                secret: reader.secret()?,
                ttl: reader.uint()?,
                resumed: reader.bool()?,
                last_rid: reader.uint()?,
            },
            LISTED => Self::Listed {
                requests: reader.list(|reader| {
                    reader.tuple(3)?;
                    let (rid, arrival) = (reader.uint()?, reader.uint()?);
                    Ok(Listed { rid, arrival, token: reader.option(Reader::uint)? })
                })?,
            },
            SYNCED => Self::Synced,
            GRANTED => Self::Granted { rid: reader.uint()?, token: reader.uint()? },
            QUEUED => Self::Queued { rid: reader.uint()?, arrival: reader.uint()? },
            UNAVAILABLE => Self::Unavailable { rid: reader.uint()? },
            RELEASED => Self::Released { rid: reader.uint()? },
            BROKEN => Self::Broken {
                number: reader.uint()?,
                rid: reader.uint()?,
                cause: match reader.uint()? {
                    0 => Cause::Stolen,
                    1 => Cause::Lost,
                    _ => return Err(Malformed("no such cause")),
                },
                by: reader.option(Reader::text)?,
                forced: known > 5 && reader.bool()?,
            },
            OUTCOME => Self::Outcome { number: reader.uint()?, rid: reader.uint()?, count: reader.uint()? },
            REFUSED => Self::Refused { rid: reader.uint()?, code: reader.code()?, message: reader.text()? },
            DEADLOCKED => Self::Deadlocked { rid: reader.uint()?, deadlock: Deadlock::read(&mut reader)? },
            SNAPSHOT => Self::Snapshot {
                rid: reader.uint()?,
                entries: reader.list(Entry::read)?,
                deadlocks: reader.list(Deadlock::read)?,
                last_token: reader.uint()?,
                more: reader.bool()?,
            },
            PONG => Self::Pong { seq: reader.uint()? },
            CHANGES => Self::Changes {
                rid: reader.uint()?,
                entries: reader.list(Entry::read)?,
                gone: reader.list(Reader::uint)?,
                last_token: reader.uint()?,
                more: reader.bool()?,
            },
            FIFO => Self::Fifo,
            CONFIRMED => Self::Confirmed,
            _ => Self::Goodbye { code: reader.code()?, message: reader.text()? },
        };
        reader.skip(unknown)?;
        reader.end()?;
        Ok(message)
    }
}

impl<'a> Entry<'a> {
    fn write(&self, writer: &mut Writer<'_>) {
        writer.array(10).bytes(self.name).bool(self.mode == Mode::Shared).text(self.client_id);
        writer.uint(self.arrival);
        writer.option(self.token, |writer, token| _ = writer.uint(token));
        writer.option(self.info, |writer, info| _ = writer.text(info)).uint(self.since);
        writer.option(self.nested_in, |writer, outer| _ = writer.uint(outer)).bool(self.stole);
        writer.option(self.owner, |writer, owner| _ = writer.text(owner));
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self> {
        reader.tuple(10)?;
        Ok(Self {
            name: reader.bytes()?,
            mode: if reader.bool()? { Mode::Shared } else { Mode::Exclusive },
            client_id: reader.text()?,
            arrival: reader.uint()?,
            token: reader.option(Reader::uint)?,
            info: reader.option(Reader::text)?,
            since: reader.uint()?,
            nested_in: reader.option(Reader::uint)?,
            stole: reader.bool()?,
            owner: reader.option(Reader::text)?,
        })
    }
}

impl<'a> Deadlock<'a> {
    fn write(&self, writer: &mut Writer<'_>) {
        writer.array(2).text(self.words).array(self.cycle.len());
        for Step { arrival, client_id, waits_for } in &self.cycle {
            writer.array(3).uint(*arrival).text(client_id);
            writer.option(*waits_for, |writer, name| _ = writer.bytes(name));
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self> {
        reader.tuple(2)?;
        let words = reader.text()?;
        let step = |reader: &mut Reader<'a>| {
            reader.tuple(3)?;
            let (arrival, client_id) = (reader.uint()?, reader.text()?);
            Ok(Step { arrival, client_id, waits_for: reader.option(Reader::bytes)? })
        };
        Ok(Self { words, cycle: reader.list(step)? })
    }
}
