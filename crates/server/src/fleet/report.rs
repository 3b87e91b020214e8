//! The state of a fleet, as its store shows it.

use super::{
    head_is_gone,
    keys::{self, Keys, Pointer, Registered},
    register::{FORGET, MANY, is_double},
};
use crate::{Error, clock};
use lockkeeper_etcd::{Etcd, Settings};
use serde::Serialize;
use std::time::Duration;

/// How a fleet is.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The leader, if the log was ever written to.
    pub leader: Option<LeaderReport>,
    /// The daemons that have said in the last minutes that they are there.
    pub daemons: Vec<DaemonReport>,
    /// The members of etcd.
    pub etcd: Vec<MemberReport>,
    /// Problems with the log, or of daemons in reaching each other, and what to do.
    pub trouble: Vec<String>,
}

impl Report {
    /// The same as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("it has nothing that JSON has not")
    }
}

/// The log, and who leads.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaderReport {
    /// Where the leader is reached.
    pub url: String,
    /// Whether it has handed over, and no daemon has taken over yet.
    pub vacant: bool,
    /// How many entries the log has.
    pub position: u64,
    /// The position of the newest snapshot, and its bytes.
    pub snapshot: Option<(u64, u64)>,
    /// After how long without a sign of the leader another daemon takes over, in milliseconds.
    pub takeover: u64,
}

/// A daemon.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DaemonReport {
    /// Where it is reached.
    pub url: String,
    /// Its version.
    pub version: String,
    /// Whether it leads.
    pub leads: bool,
    /// How many entries it had applied when it last said so.
    pub position: u64,
    /// How many it had yet to apply.
    pub lag: u64,
    /// How long ago that was, in milliseconds, by this machine's clock.
    pub seen: u64,
}

/// A member of etcd.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberReport {
    /// Its address.
    pub member: String,
    /// Its version.
    pub version: Option<String>,
    /// Whether it is the one that leads etcd.
    pub leads: bool,
    /// Bytes of its database.
    pub bytes: u64,
    /// Its problems.
    pub trouble: Vec<String>,
}

/// A daemon says every three seconds that it is there. One that has not for so long is silent.
const LATE: Duration = Duration::from_secs(15);

/// Looks how a fleet is.
///
/// # Errors
///
/// If no member of etcd answers.
pub async fn report(settings: &Settings) -> Result<Report, Error> {
    let etcd = Etcd::new(settings).map_err(|error| Error::Fleet(error.to_string()))?;
    let keys = Keys::new(&settings.prefix);
    let mut members = Vec::new();
    for (member, status) in etcd.status().await {
        members.push(match status {
            Ok(status) => {
                let mut trouble = status.errors.clone();
                trouble.extend(known_bug(&status.version));
                let own = status.header.as_ref().map(|header| header.member_id);
                MemberReport {
                    member,
                    leads: own == Some(status.leader),
                    version: Some(status.version),
                    bytes: u64::try_from(status.db_size).unwrap_or(0),
                    trouble,
                }
            }
            Err(error) => {
                let trouble = vec![error.to_string()];
                MemberReport { member, version: None, leads: false, bytes: 0, trouble }
            }
        });
    }
    if members.iter().all(|member| member.version.is_none()) {
        let tried: Vec<_> = members.iter().flat_map(|member| member.trouble.clone()).collect();
        return Err(Error::Fleet(format!("etcd cannot be reached: tried {}", tried.join(", "))));
    }
    let failed = |error: lockkeeper_etcd::Error| Error::Fleet(error.to_string());
    // A member that does not answer is left for the next one.
    let mut read = etcd.get(&keys.head()).await;
    for _ in 1..members.len() {
        if read.is_err() {
            read = etcd.get(&keys.head()).await;
        }
    }
    let head = keys::head(read.map_err(failed)?.0)?;
    let pointer = etcd.get(&keys.snapshot()).await.map_err(failed)?.0;
    let pointer: Option<Pointer> = pointer.and_then(|kv| serde_json::from_slice(&kv.value).ok());
    let mut trouble = Vec::new();
    if head.is_none() {
        let (entries, _) = etcd.range(&keys.entry(0), &keys.entry(super::RING), 1).await.map_err(failed)?;
        if pointer.is_some() || !entries.is_empty() {
            trouble.push(head_is_gone(&keys).to_string());
        }
    }
    let leader = head.map(|(head, _)| LeaderReport {
        url: head.url,
        vacant: head.vacant,
        position: head.position,
        snapshot: pointer.map(|pointer| (pointer.position, pointer.bytes)),
        takeover: head.takeover,
    });
    let (first, end) = keys.daemons();
    let (registered, _) = etcd.range(&first, &end, MANY).await.map_err(failed)?;
    let now = clock::wall();
    let daemons = registered.iter().filter_map(|kv| serde_json::from_slice::<Registered>(&kv.value).ok());
    let mut daemons: Vec<_> = daemons
        .map(|Registered { url, version, leads, position, lag, time, trouble, .. }| {
            (DaemonReport { url, version, leads, position, lag, seen: now.saturating_sub(time) }, trouble)
        })
        .filter(|(daemon, _)| Duration::from_millis(daemon.seen) < FORGET)
        .collect();
    daemons.sort_by(|(one, _), (other, _)| (&one.url, one.seen).cmp(&(&other.url, other.seen)));
    let is_late = |daemon: &DaemonReport| Duration::from_millis(daemon.seen) > LATE;
    for (daemon, noticed) in daemons.iter().filter(|(daemon, _)| !is_late(daemon)) {
        trouble.extend(noticed.iter().map(|noticed| format!("{}: {noticed}", daemon.url)));
    }
    for two in daemons.windows(2).filter(|two| two[0].0.url == two[1].0.url && !is_late(&two[1].0)) {
        trouble.push(is_double(&two[0].0.url));
    }
    trouble.dedup();
    let mut daemons: Vec<_> = daemons.into_iter().map(|(daemon, _)| daemon).collect();
    // One that was killed and started again can have two.
    daemons.dedup_by(|later, first| later.url == first.url);
    Ok(Report { leader, daemons, etcd: members, trouble })
}

/// Versions of etcd that can lose what they have confirmed.
fn known_bug(version: &str) -> Option<String> {
    matches!(version, "3.5.0" | "3.5.1" | "3.5.2")
        .then(|| format!("etcd {version} can corrupt its data when it is killed: upgrade to 3.5.3 or later"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_lose_data_are_named() {
        for version in ["3.5.0", "3.5.1", "3.5.2"] {
            assert!(known_bug(version).is_some_and(|words| words.contains(version)));
        }
        for version in ["3.4.23", "3.5.3", "3.5.20", "3.6.0"] {
            assert_eq!(known_bug(version), None);
        }
    }
}
