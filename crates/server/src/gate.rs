//! Admission and rights of clients. The daemon that has the connection decides them, also where
//! another one leads.

use crate::{
    audit::{Record, shown},
    auth::{Bearer, Keys},
    users::{self, Allow, Subject},
};
use lockkeeper_service::{Access, Origin, Rights};
use std::{borrow::Cow, cell::RefCell};
use tokio::sync::watch;

/// Stands before the buckets of clients on the network without keys.
const NETWORK: &str = "network:";

pub(crate) struct Gate {
    /// The keys that grant rights on the network. Without keys, every client has all rights.
    keys: RefCell<Option<Keys>>,
    /// The rights of other users of this machine.
    allow: Vec<Allow>,
    refusals: RefCell<Record>,
    /// Whether, without keys, clients on the network have the buckets of the Unix socket.
    share_buckets: bool,
    /// Changed with the keys. A watcher misses no change, also while it is busy.
    reloaded: watch::Sender<()>,
}

impl Gate {
    pub(crate) fn new(allow: Vec<Allow>, share_buckets: bool) -> Self {
        Self {
            keys: RefCell::new(None),
            allow,
            refusals: RefCell::new(Record::new()),
            share_buckets,
            reloaded: watch::Sender::default(),
        }
    }

    /// Whether users other than the daemon's own can connect.
    pub(crate) fn serves_others(&self) -> bool {
        !self.allow.is_empty()
    }

    pub(crate) fn has_keys(&self) -> bool {
        self.keys.borrow().is_some()
    }

    /// Takes other keys.
    pub(crate) fn set_keys(&self, keys: Option<Keys>) {
        *self.keys.borrow_mut() = keys;
        self.reloaded.send_replace(());
    }

    /// Changes whenever the keys do from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.reloaded.subscribe()
    }

    /// The rights of a client in a bucket; or why it is refused, which is recorded.
    pub(crate) fn admit(
        &self,
        origin: Origin,
        subject: &Subject,
        token: Option<&str>,
        bucket: &str,
    ) -> Result<Access, String> {
        let bearer = match (&*self.keys.borrow(), origin) {
            (Some(keys), Origin::Network) => keys.check(token, bucket),
            (None, Origin::Network) => Ok(Bearer { rights: Rights::ALL, subject: None }),
            (_, Origin::Local) => users::rights(&self.allow, subject.user, bucket)
                .map(|rights| Bearer { rights, subject: None }),
        };
        match bearer {
            Ok(Bearer { rights, subject: Some(name) }) => {
                Ok(Access { rights, subject: format!("{} {}", printable(&name), subject.words) })
            }
            Ok(Bearer { rights, subject: None }) => Ok(Access { rights, subject: subject.words.clone() }),
            Err(why) => {
                self.record_refusal(&subject.words, bucket, &why);
                Err(why)
            }
        }
    }

    /// Whether the bearer of this token may see the fleet's state. Without keys, every client may.
    pub(crate) fn may_inspect(&self, token: Option<&str>) -> Result<(), String> {
        self.keys.borrow().as_ref().map_or(Ok(()), |keys| keys.check_inspect(token))
    }

    /// The bucket in the state. Without keys, every client of the port has all rights, so its
    /// buckets are separate from those of this machine's processes, unless they are shared.
    pub(crate) fn bucket_of<'a>(&self, origin: Origin, bucket: &'a str) -> Cow<'a, str> {
        match origin {
            // An empty name stays one, and is refused.
            Origin::Network if !self.has_keys() && !self.share_buckets && !bucket.is_empty() => {
                format!("{NETWORK}{bucket}").into()
            }
            _ => bucket.into(),
        }
    }

    /// Records a refusal, unless there were too many just now: unauthenticated clients cause them.
    pub(crate) fn record_refusal(&self, by: &str, bucket: &str, why: &str) {
        if self.refusals.borrow_mut().admits() {
            let [by, bucket, why] = [by, bucket, why].map(shown);
            tracing::info!(target: "audit", by, bucket, why, "refused");
        }
    }

    /// The current rights of an earlier accepted token: none if its key was removed. Without keys,
    /// nothing changes.
    pub(crate) fn check_again(&self, token: &str, bucket: &str) -> Result<Option<Rights>, ()> {
        match &*self.keys.borrow() {
            Some(keys) => keys.check_again(token, bucket).map(Some).ok_or(()),
            None => Ok(None),
        }
    }
}

/// The printable form of a name.
fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(100).collect()
}
