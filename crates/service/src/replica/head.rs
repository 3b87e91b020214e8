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
    /// Whether the leader has handed over: any replica may take over at once.
    pub vacant: bool,
    /// Where the leader can be reached.
    pub url: String,
    /// The last time that a store with less than it had was accepted: a number that grows. Zero for
    /// never.
    pub recovery: u64,
    /// The longest remaining lease that was granted before the recovery and is not in the log, in
    /// milliseconds. A new leader waits so long before it serves clients. Zero once that time is
    /// over.
    pub blind: u64,
}

/// The version of the bytes of an entry, and of a head of a store that was never recovered.
const FORMAT: u64 = 1;

/// How many entries a store keeps. It decides under which key an entry is, so it is part of the
/// format.
pub const RING: u64 = 1 << 14;
const _: () = assert!(FORMAT > 1 || RING == 1 << 14, "another ring needs another format");

/// The version of the bytes of a head after a recovery.
const RECOVERED: u64 = 2;

impl Head {
    /// As the store has it. A head that was read is encoded as it was: writes are guarded by these
    /// bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let recovered = (self.recovery, self.blind) != (0, 0);
        let format = if recovered { RECOVERED } else { FORMAT };
        let numbers = [format, self.owner, self.sequence, self.position, self.snapshot, self.takeover];
        numbers.into_iter().for_each(|number| put_uint(&mut out, number));
        out.push(u8::from(self.vacant));
        put_bytes(&mut out, self.url.as_bytes());
        if recovered {
            [self.recovery, self.blind].into_iter().for_each(|number| put_uint(&mut out, number));
        }
        out
    }

    /// What [`encode`](Self::encode) has written.
    ///
    /// # Errors
    ///
    /// If it is something else, or of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader(bytes);
        let format = format(&mut reader, RECOVERED)?;
        let mut number = || reader.uint();
        let (owner, sequence, position) = (number()?, number()?, number()?);
        let (snapshot, takeover) = (number()?, number()?);
        let vacant = reader.bool()?;
        let url = String::from_utf8_lossy(reader.bytes()?).into_owned();
        let mut number = || if format == RECOVERED { reader.uint() } else { Ok(0) };
        let (recovery, blind) = (number()?, number()?);
        Ok(Self { owner, sequence, position, snapshot, takeover, vacant, url, recovery, blind })
    }
}

fn format(reader: &mut Reader<'_>, newest: u64) -> Result<u64, Damaged> {
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
    format(&mut reader, FORMAT)?;
    Ok((reader.uint()?, reader.0))
}
