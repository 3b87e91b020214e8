//! How a daemon begins that was killed: it waits for the clients of its former life, who say what they had. Until all are
//! back or known to be gone, nobody else is granted anything.

use crate::{
    daemon::Ask,
    journal::Kept,
    process::{Life, Process},
};
use lockkeeper_core::{Mode, Name};
use lockkeeper_wire::Flags;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// What is said meanwhile: by session and by the client's own number, each with its place in the order of arrival.
#[derive(Default)]
pub(crate) struct Grace {
    said: HashMap<u32, HashMap<u64, (u64, Said)>>,
    count: u64,
}

enum Said {
    /// A session of the former life had this.
    Claim(Kept),
    /// Somebody asks for this.
    Later(Later),
}

/// A request that is kept for later.
pub(crate) struct Later {
    key: u32,
    rid: u64,
    scope: Vec<(Name, Mode)>,
    flags: Flags,
    nested_in: Option<u64>,
    info: Option<Box<str>>,
}

impl Grace {
    pub(crate) fn claim(&mut self, key: u32, kept: Kept) {
        self.say(key, kept.rid, Said::Claim(kept));
    }

    pub(crate) fn later(&mut self, ask: &Ask<'_>) {
        let Ask { key, rid, scope, flags, nested_in, info } = *ask;
        let scope = scope.iter().map(|(name, mode)| (Name::from(*name), *mode)).collect();
        let later = Later { key, rid, scope, flags, nested_in, info: info.map(Into::into) };
        self.say(key, rid, Said::Later(later));
    }

    fn say(&mut self, key: u32, rid: u64, said: Said) {
        self.count += 1;
        self.said.entry(key).or_default().insert(rid, (self.count, said));
    }

    /// How much a session has said. Nothing of it is answered yet, so that nothing but this bounds it.
    pub(crate) fn count_of(&self, key: u32) -> usize {
        self.said.get(&key).map_or(0, HashMap::len)
    }

    /// A request is given up before the daemon has looked at it.
    pub(crate) fn give_up(&mut self, key: u32, rid: u64) {
        self.said.get_mut(&key).map(|said| said.remove(&rid));
    }

    /// A session has ended.
    pub(crate) fn forget(&mut self, key: u32) {
        self.said.remove(&key);
    }

    /// What was claimed, and what was asked for, each in the order in which it was said.
    pub(crate) fn end(self) -> (Vec<(u32, Kept)>, Vec<Later>) {
        let (mut claims, mut later) = (Vec::new(), Vec::new());
        for (key, said) in self.said {
            for (place, said) in said.into_values() {
                match said {
                    Said::Claim(kept) => claims.push((place, (key, kept))),
                    Said::Later(ask) => later.push((place, ask)),
                }
            }
        }
        claims.sort_by_key(|(place, _)| *place);
        later.sort_by_key(|(place, _)| *place);
        (
            claims.into_iter().map(|(_, claim)| claim).collect(),
            later.into_iter().map(|(_, ask)| ask).collect(),
        )
    }
}

impl Later {
    pub(crate) fn with<R>(&self, then: impl FnOnce(Ask<'_>) -> R) -> R {
        let Self { key, rid, scope, flags, nested_in, info } = self;
        let scope: Vec<_> = scope.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect();
        let (flags, nested_in, info) = (*flags, *nested_in, info.as_deref());
        then(Ask { key: *key, rid: *rid, scope: &scope, flags, nested_in, info })
    }
}

/// Until when a session is waited for, if it still is. A process that is stopped cannot come back, and believes that it
/// holds what it held: it has all its time once it is continued.
pub(crate) fn verdict(
    process: Option<Process>,
    until: Instant,
    now: Instant,
    ttl: Duration,
) -> Option<Instant> {
    match process.map(Process::life) {
        Some(Life::Dead) => None,
        Some(Life::Stopped) => Some(now + ttl),
        Some(Life::Running) | None => (now < until).then_some(until),
    }
}
