//! The head of a shared log, and its entries, as the store has them.

use crate::codec::{Damaged, Reader, put_bytes, put_uint};

/// The head of the log: who leads, and how long the log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// A random number of this leadership. No other has it.
    pub owner: u64,
    /// Counts the writes of this leadership.
    pub sequence: u64,
    /// How many entries there are.
    pub position: u64,
    /// The position of the snapshot that the log begins with.
    pub snapshot: u64,
    /// After how long without a change another replica takes over, in milliseconds.
    pub takeover: u64,
    /// Whether the leader has handed over: anybody may take over at once.
    pub vacant: bool,
    /// Where the leader can be reached.
    pub url: String,
}

/// The version of the bytes of a head and of an entry.
const FORMAT: u64 = 1;

impl Head {
    /// As the store has it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let numbers = [FORMAT, self.owner, self.sequence, self.position, self.snapshot, self.takeover];
        numbers.into_iter().for_each(|number| put_uint(&mut out, number));
        out.push(u8::from(self.vacant));
        put_bytes(&mut out, self.url.as_bytes());
        out
    }

    /// What [`encode`](Self::encode) has written.
    ///
    /// # Errors
    ///
    /// If it is something else, or of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader(bytes);
        format(&mut reader)?;
        let mut number = || reader.uint();
        let (owner, sequence, position) = (number()?, number()?, number()?);
        let (snapshot, takeover) = (number()?, number()?);
        let vacant = reader.bool()?;
        let url = String::from_utf8_lossy(reader.bytes()?).into_owned();
        Ok(Self { owner, sequence, position, snapshot, takeover, vacant, url })
    }
}

fn format(reader: &mut Reader<'_>) -> Result<(), Damaged> {
    match reader.uint()? {
        format @ FORMAT.. if format <= newest => Ok(format),
        format => Err(Damaged::later(format_args!("format {format}"))),
    }
}

/// An entry as the store has it: its position and a batch.
pub fn encode_entry(position: u64, batch: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(batch.len() + 11);
    put_uint(&mut out, FORMAT);
    put_uint(&mut out, position);
    out.extend_from_slice(batch);
    out
}

/// The position and the batch of an entry.
///
/// # Errors
///
/// If it is something else, or of a later version.
pub fn decode_entry(bytes: &[u8]) -> Result<(u64, &[u8]), Damaged> {
    let mut reader = Reader(bytes);
    format(&mut reader)?;
    Ok((reader.uint()?, reader.0))
}
