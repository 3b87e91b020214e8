//! The transfer of a session, with its locks, to another process of the same machine.
//!
//! The process that gives it away sends no Bye and keeps nothing. The receiver resumes it, as after
//! a lost connection. Both use the same clock, so the lease continues.

use super::{Body, Identity, Lease, Link, Record, Request, Session, SessionConfig, Stage};
use crate::{
    Micros,
    codec::Damaged,
    sabotage::{Rule, holds},
};
use lockkeeper_wire::v2::Secret;

/// The data with which another process continues a session. It contains the session's secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    client_id: String,
    secret: Secret,
    hello: u64,
    ack: u64,
    last_rid: u64,
    ttl: Option<u64>,
    answered: Micros,
    /// Number and token of each lock.
    held: Vec<(u64, u64)>,
    /// The lease that was wished for, which the next Hello repeats.
    wish: Option<u64>,
}

impl Transfer {
    /// The public id of the session.
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The transfer as a line of text.
    pub fn to_line(&self) -> String {
        let Self { client_id, secret, hello, ack, last_rid, ttl, answered, held, wish } = self;
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let ttl = ttl.unwrap_or(0);
        let mut line = format!("{client_id} {secret} {hello} {ack} {last_rid} {ttl} {answered}");
        for (rid, token) in held {
            line.push_str(&format!(" {rid} {token}"));
        }
        // Alone after the pairs, so that a program of before and one of after an upgrade understand
        // each other.
        line.extend(wish.map(|wish| format!(" {wish}")));
        line
    }

    /// Reads what [`to_line`](Self::to_line) wrote.
    ///
    /// # Errors
    ///
    /// If it is no such line.
    pub fn from_line(line: &str) -> Result<Self, Damaged> {
        Self::parse(line).ok_or_else(|| Damaged::new("not the state of a session"))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let client_id = words.next()?.to_string();
        let digits = words.next().filter(|secret| secret.len() == 32 && secret.is_ascii())?;
        let mut secret = Secret::default();
        for (i, byte) in secret.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
        }
        let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
        let numbers = numbers?;
        let ([hello, ack, last_rid, ttl, answered], held) = numbers.split_first_chunk()?;
        let (held, wish) = held.as_chunks();
        let held = held.iter().map(|&[rid, token]| (rid, token)).collect();
        let (hello, ack, last_rid, answered) = (*hello, *ack, *last_rid, *answered);
        Some(Self {
            client_id,
            secret,
            hello,
            ack,
            last_rid,
            ttl: (*ttl > 0).then_some(*ttl),
            answered,
            held,
            wish: wish.first().copied(),
        })
    }
}

impl<T> Session<T> {
    /// Gives the session away with the locks it holds. This side is closed, and sends nothing more.
    /// None if there is no session.
    pub fn give_away(&mut self) -> Option<Transfer> {
        let Identity { client_id, secret } = self.identity.take()?;
        let held = self.by_rid.iter().filter_map(|(&rid, key)| match self.entries.get(key)?.stage {
            Stage::Held { token } => Some((rid, token)),
            _ => None,
        });
        let transfer = Transfer {
            client_id,
            secret,
            hello: self.hello,
            ack: self.ack,
            last_rid: self.last_rid,
            ttl: self.lease.ttl,
            answered: self.lease.answered,
            held: held.collect(),
            wish: self.config.ttl,
        };
        self.closed = true;
        self.connect_at = None;
        self.drop_connection = !matches!(self.link, Link::None);
        self.output.clear();
        self.unlink();
        Some(transfer)
    }

    /// Goes on with a session that another process gave away, and with its first lock, whose key is 0. Others are
    /// released. The session has a lease, whatever `config` says: if this process is killed, it does not end at once.
    pub fn adopt(config: SessionConfig, transfer: &Transfer, now: Micros, data: T) -> Self {
        let fifo = config.fifo && !holds(Rule::AdoptedHasLease);
        let Transfer { client_id, secret, hello, ack, last_rid, ttl, answered, held, wish } = transfer;
        let mut session = Self::new(SessionConfig { fifo, ttl: config.ttl.or(*wish), ..config }, now);
        session.identity = Some(Identity { client_id: client_id.clone(), secret: *secret });
        (session.hello, session.ack, session.last_rid) = (*hello, *ack, *last_rid);
        session.lease = Lease { ttl: *ttl, answered: *answered };
        session.lives_by_fifo = ttl.is_none();
        session.ever_opened = true;
        if let Some(&(rid, token)) = held.first() {
            let key = session.next_key;
            session.next_key += 1;
            // It is held: only the server needs its scope.
            let request =
                Request { scope: Vec::new(), flags: Default::default(), nested_in: None, info: None };
            let record =
                Record { rid: Some(rid), stage: Stage::Held { token }, body: Body::Request(request), data };
            session.entries.insert(key, record);
            session.by_rid.insert(rid, key);
        }
        session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_survives_as_text() {
        let transfer = Transfer {
            client_id: "0123456789abcdef".into(),
            secret: [7; 16],
            hello: 3,
            ack: 9,
            last_rid: 12,
            ttl: Some(10_000),
            answered: 123_456_789,
            held: vec![(12, 42)],
            wish: None,
        };
        for transfer in [Transfer { wish: Some(5_000), ..transfer.clone() }, transfer] {
            assert_eq!(Transfer::from_line(&transfer.to_line()), Ok(transfer));
        }
        for wrong in ["", "a b", "0123456789abcdef 07 1 2 3 4 5"] {
            assert!(Transfer::from_line(wrong).is_err());
        }
    }
}
