//! The keys in etcd, and what their values are.

use crate::Error;
use lockkeeper_etcd::{KeyValue, end_of_prefix};
use lockkeeper_service::replica::{Head, Revision};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The names of keys. There is one log, number 0. Buckets are independent: further logs, with
/// separate leaders, would have other numbers.
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The key by which daemons know each other.
    pub(crate) fn key(&self) -> Vec<u8> {
        format!("{}key", self.prefix).into()
    }

    /// The prefix of the log's keys, including those of its snapshots.
    pub(crate) fn log(&self) -> Vec<u8> {
        format!("{}0/", self.prefix).into()
    }

    /// The head of the log. It is also the beginning of the keys of entries: one watch has all.
    pub(crate) fn head(&self) -> Vec<u8> {
        format!("{}0/log", self.prefix).into()
    }

    /// An entry, by its place in the ring.
    pub(crate) fn entry(&self, slot: u64) -> Vec<u8> {
        format!("{}0/log/{slot:08x}", self.prefix).into()
    }

    /// The entries of these places: the first key, and the end.
    pub(crate) fn entries(&self, places: &RangeInclusive<u64>) -> (Vec<u8>, Vec<u8>) {
        (self.entry(*places.start()), self.entry(places.end() + 1))
    }

    /// What says which snapshot is the newest whole one.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        format!("{}0/snapshot", self.prefix).into()
    }

    /// A chunk of a snapshot.
    pub(crate) fn chunk(&self, id: &str, number: u64) -> Vec<u8> {
        format!("{}0/snapshot/{id}/{number:06}", self.prefix).into()
    }

    /// The chunks of a snapshot: the first key, and the end.
    pub(crate) fn chunks(&self, id: &str) -> (Vec<u8>, Vec<u8>) {
        let first = format!("{}0/snapshot/{id}/", self.prefix).into_bytes();
        let end = end_of_prefix(&first);
        (first, end)
    }

    /// All chunks of all snapshots.
    pub(crate) fn all_chunks(&self) -> (Vec<u8>, Vec<u8>) {
        let first = format!("{}0/snapshot/", self.prefix).into_bytes();
        let end = end_of_prefix(&first);
        (first, end)
    }

    /// A daemon.
    pub(crate) fn daemon(&self, id: u64) -> Vec<u8> {
        format!("{}daemons/{id:016x}", self.prefix).into()
    }

    /// All daemons.
    pub(crate) fn daemons(&self) -> (Vec<u8>, Vec<u8>) {
        let first = format!("{}daemons/", self.prefix).into_bytes();
        let end = end_of_prefix(&first);
        (first, end)
    }
}

/// The head that a key has.
pub(crate) fn head(kv: Option<KeyValue>) -> Result<Option<(Head, Revision)>, Error> {
    let Some(kv) = kv else { return Ok(None) };
    let head = Head::decode(&kv.value);
    let head = head.map_err(|error| Error::Fleet(format!("the head of the log: {error}")))?;
    Ok(Some((head, kv.mod_revision)))
}

/// What says which snapshot is the newest whole one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pointer {
    pub(crate) id: String,
    pub(crate) position: u64,
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
}

/// A daemon's entry in the register.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Registered {
    pub(crate) url: String,
    pub(crate) version: String,
    pub(crate) leads: bool,
    pub(crate) position: u64,
    pub(crate) lag: u64,
    /// Milliseconds since 1970.
    pub(crate) time: u64,
    /// Problems between daemons that this one has noticed.
    #[serde(default)]
    pub(crate) trouble: Vec<String>,
}
