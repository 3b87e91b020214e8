//! A daemon's entry in the register of its fleet, and its observations of the others.
//!
//! It checks that its URL is its own, that it can reach the leader, and that etcd still has the
//! fleet's key. It does not decide who leads: it helps operators to find out why clients wait.

use super::{Fleet, keys::Registered};
use crate::{clock, node::Node};
use lockkeeper_etcd::{Guarded, Outcome};
use std::time::{Duration, Instant};

/// How often a daemon says that it is there.
const REGISTER: Duration = Duration::from_secs(3);

/// After how long a daemon that says nothing is forgotten.
pub(super) const FORGET: Duration = Duration::from_secs(600);

/// Daemons that are read at a time.
pub(super) const MANY: usize = 10_000;

/// The observations of the last time. A problem has to appear twice in a row, because daemons
/// start, stop and take over.
#[derive(Default)]
struct Noticed {
    /// Another daemon with the same URL: its key, and when it said so.
    double: Option<(Vec<u8>, u64)>,
    /// The leadership whose daemon could not be reached.
    unreachable: Option<u64>,
}

impl Fleet {
    /// Says to others, now and then, that this daemon is there.
    pub(super) async fn register(&self, node: &Node) {
        let (mut forgotten, mut noticed) = (Instant::now(), Noticed::default());
        let mut said: Vec<String> = Vec::new();
        // Entries of an earlier daemon at this URL, which was killed. A live one registers again.
        self.forget_others(|other| other.url == self.store.advertise).await;
        loop {
            let trouble = self.notice(node, &mut noticed).await;
            for trouble in trouble.iter().filter(|trouble| !said.contains(trouble)) {
                tracing::warn!("{trouble}");
            }
            said.clone_from(&trouble);
            let leads = node.daemon().is_some();
            let record = Registered {
                url: self.store.advertise.clone(),
                version: env!("CARGO_PKG_VERSION").into(),
                leads,
                position: self.memory.borrow().known().position,
                lag: node.lag(),
                time: clock::wall(),
                trouble,
            };
            if let Ok(json) = serde_json::to_vec(&record)
                && let Err(error) = self.etcd.put(self.keys.daemon(self.id), json).await
            {
                self.complain(&error);
            }
            self.remember().await;
            if leads && forgotten.elapsed() >= FORGET {
                let late = |other: &Registered| {
                    Duration::from_millis(clock::wall().saturating_sub(other.time)) > FORGET
                };
                self.forget_others(late).await;
                forgotten = Instant::now();
            }
            tokio::time::sleep(REGISTER).await;
        }
    }

    /// Removes the entries of exited daemons.
    async fn forget_others(&self, is_gone: impl Fn(&Registered) -> bool) {
        for (key, other) in self.others().await {
            if is_gone(&other) {
                let _ = self.etcd.delete(key, Vec::new()).await;
            }
        }
    }

    /// The entries of other daemons, by key.
    async fn others(&self) -> Vec<(Vec<u8>, Registered)> {
        let ((first, end), own) = (self.keys.daemons(), self.keys.daemon(self.id));
        let Ok((registered, _)) = self.etcd.range(&first, &end, MANY).await else { return Vec::new() };
        let others = registered.into_iter().filter(|kv| kv.key != own);
        others.filter_map(|kv| Some((kv.key, serde_json::from_slice(&kv.value).ok()?))).collect()
    }

    /// Problems of daemons in reaching each other, and what to do.
    async fn notice(&self, node: &Node, noticed: &mut Noticed) -> Vec<String> {
        let mut trouble = Vec::new();
        let url = &self.store.advertise;
        let double = self.others().await.into_iter().find(|(_, other)| other.url == *url);
        let double = double.map(|(key, other)| (key, other.time));
        if let (Some((key, time)), Some((before, earlier))) = (&double, &noticed.double)
            && key == before
        {
            // It has said so once more since: it is alive.
            if time != earlier {
                trouble.push(is_double(url));
            }
        }
        noticed.double = double;
        let leader = node.leader();
        let before = noticed.unreachable.take();
        if let (Some(leader), Some(relays)) = (leader, &node.relays)
            && let Some(why) = relays.probe(&leader).await
        {
            noticed.unreachable = Some(leader.owner);
            if before == Some(leader.owner) {
                trouble.push(format!(
                    "{why}. Clients of this daemon wait. Check the leader's --advertise, and that other \
                     daemons can reach its port and trust its certificate"
                ));
            }
        }
        trouble.extend(self.check_key().await);
        trouble
    }

    /// Looks whether etcd has the key that this daemon has. One that was deleted is written again:
    /// a daemon that starts would make another, and could not be relayed to.
    async fn check_key(&self) -> Option<String> {
        let name = self.keys.key();
        let puts = vec![(name.clone(), self.key.clone())];
        let found = match self.etcd.get(&name).await {
            Ok((Some(kv), _)) => kv.value,
            Ok((None, _)) => {
                let writes = Guarded { key: name.clone(), guard: None, puts, deletes: Vec::new() };
                match self.etcd.write(writes).await {
                    Ok(Outcome::Done(_)) => {
                        let name = String::from_utf8_lossy(&name).into_owned();
                        tracing::warn!("the key of the fleet, {name}, was deleted from etcd: wrote it again");
                        return None;
                    }
                    Ok(Outcome::Refused(Some(kv))) => kv.value,
                    Ok(Outcome::Refused(None)) | Err(_) => return None,
                }
            }
            Err(_) => return None,
        };
        (found != self.key).then(|| {
            let name = String::from_utf8_lossy(&name).into_owned();
            format!("the key of the fleet in etcd, {name}, differs from this daemon's: restart this daemon")
        })
    }
}

/// Two daemons have the same URL.
pub(super) fn is_double(url: &str) -> String {
    format!("two daemons advertise {url}: give each an --advertise at which the others reach it")
}
