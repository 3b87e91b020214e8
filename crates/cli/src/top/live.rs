//! The state of the bucket as received by subscription, request by request. No terminal, no daemon.

use lockkeeper_client::{Change, Deadlock, Entry, Snapshot};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

#[derive(Default)]
pub(crate) struct Live {
    /// By arrival: the entries of a request, and when they were received.
    requests: BTreeMap<u64, (Instant, Vec<Entry>)>,
    last_token: u64,
    pub(crate) deadlocks: Vec<Deadlock>,
}

impl Live {
    /// Takes on what has changed.
    pub(crate) fn take(&mut self, change: Change, now: Instant) {
        match change {
            Change::State(Snapshot { entries, last_token, .. }) => {
                self.requests.clear();
                self.add(entries, now);
                self.last_token = last_token;
            }
            Change::Changes { entries, gone, last_token, .. } => {
                entries.iter().for_each(|entry| _ = self.requests.remove(&entry.arrival));
                self.add(entries, now);
                gone.iter().for_each(|arrival| _ = self.requests.remove(arrival));
                self.last_token = last_token;
            }
        }
    }

    fn add(&mut self, entries: Vec<Entry>, now: Instant) {
        for entry in entries {
            self.requests.entry(entry.arrival).or_insert((now, Vec::new())).1.push(entry);
        }
    }

    /// Whether there can be a deadlock: only a nested request that waits can close a cycle.
    pub(crate) fn may_deadlock(&self) -> bool {
        let first = |(_, entries): &(Instant, Vec<Entry>)| {
            entries.first().is_some_and(|entry| entry.nested_in.is_some() && entry.token.is_none())
        };
        self.requests.values().any(first)
    }

    /// The state at that time: held first, each in the order of arrival.
    pub(crate) fn snapshot(&self, now: Instant) -> Snapshot {
        let entries = self.requests.values().flat_map(|(told, entries)| {
            let older = millis(now.saturating_duration_since(*told));
            entries.iter().map(move |entry| Entry { since: entry.since + older, ..entry.clone() })
        });
        let (held, waiting): (Vec<_>, Vec<_>) = entries.partition(|entry| entry.token.is_some());
        let entries = held.into_iter().chain(waiting).collect();
        Snapshot { entries, deadlocks: self.deadlocks.clone(), last_token: self.last_token }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::Live;
    use lockkeeper_client::{Change, Entry, Snapshot};
    use lockkeeper_core::{Mode, Name};
    use std::time::{Duration, Instant};

    fn entry(name: &str, arrival: u64, token: Option<u64>, nested_in: Option<u64>) -> Entry {
        Entry {
            name: Name::from(name),
            mode: Mode::Exclusive,
            client_id: "c".into(),
            arrival,
            token,
            info: None,
            since: 100,
            nested_in,
            stole: false,
            owner: None,
        }
    }

    fn changes(entries: Vec<Entry>, gone: Vec<u64>) -> Change {
        Change::Changes { entries, gone, last_token: 7, more: false }
    }

    #[test]
    fn requests_are_replaced_and_forgotten_and_grow_older() {
        let (mut live, start) = (Live::default(), Instant::now());
        let entries =
            vec![entry("a", 1, Some(1), None), entry("b", 1, Some(1), None), entry("a", 2, None, None)];
        live.take(Change::State(Snapshot { entries, ..Snapshot::default() }), start);
        let later = start + Duration::from_secs(1);
        live.take(changes(vec![entry("a", 2, Some(2), None), entry("c", 3, None, Some(2))], vec![1]), later);
        let shown = live.snapshot(later + Duration::from_secs(1));
        let seen: Vec<_> =
            shown.entries.iter().map(|entry| (entry.arrival, entry.token, entry.since)).collect();
        assert_eq!(seen, [(2, Some(2), 1100), (3, None, 1100)]);
        assert_eq!(shown.last_token, 7);
        assert!(live.may_deadlock());
        live.take(changes(vec![entry("c", 3, Some(3), Some(2))], vec![]), later);
        assert!(!live.may_deadlock(), "it waits no more");
        live.take(Change::State(Snapshot::default()), later);
        assert!(live.snapshot(later).entries.is_empty());
    }
}
