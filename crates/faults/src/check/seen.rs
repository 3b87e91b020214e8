//! The events that workers recorded and the faults applied to them, combined.

use super::LATE;
use crate::{
    Nanos,
    history::{self, Line, Touch, What},
    plan::NAMES,
    run_dir::RunDir,
};
use lockkeeper_client::Flags;
use lockkeeper_core::{Cause, Mode};
use std::{collections::HashMap, io, time::Duration};

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// How long a daemon that was killed waited for its clients.
    pub ttl: Duration,
    /// The shortest lease that a daemon was set to.
    pub least_ttl: Duration,
    /// How long before a loss its reason may be.
    pub lease: Duration,
    /// What was done to each worker process, in the order of the histories.
    pub fates: Vec<Fate>,
    /// When the daemon ended, or another was started.
    pub disturbances: Vec<Nanos>,
    /// From when to when there was none, or none that a client would have found.
    pub outages: Vec<(Nanos, Nanos)>,
    /// From when to when its disk was full.
    pub full: Vec<(Nanos, Nanos)>,
}

/// What was done to a worker process.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    /// When it was killed, if it was.
    pub killed: Option<Nanos>,
    /// From when to when it was stopped.
    pub stops: Vec<(Nanos, Nanos)>,
    /// When its connections were cut.
    pub cuts: Vec<Nanos>,
    /// Whether it is on the network: a cut ends nothing there, the TTL does.
    pub network: bool,
    /// The period in which no message was delivered there.
    pub silences: Vec<(Nanos, Nanos)>,
    /// Whether it uses `run`: its locks are held by commands, which last longer than `run` if that
    /// is killed.
    pub commands: bool,
    /// Whether it uses the Python client.
    pub python: bool,
    /// Whether the process that connected has forked and exited.
    pub forks: bool,
    /// Whether the thread that connected, the main one, has exited.
    pub threads: bool,
    /// It uses the npm package.
    pub script: bool,
    /// When `run` or a guardian was killed.
    pub maimed: Vec<Nanos>,
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub(crate) ttl: Nanos,
    pub(crate) least_ttl: Nanos,
    pub(crate) lease: Nanos,
    pub(crate) fates: Vec<Fate>,
    pub(crate) disturbances: Vec<Nanos>,
    pub(crate) outages: Vec<(Nanos, Nanos)>,
    pub(crate) full: Vec<(Nanos, Nanos)>,
    pub(crate) stories: Vec<Story>,
    /// Of each name, in the order in which they happened.
    pub(crate) touches: Vec<(&'static str, Vec<Touch>)>,
    /// The stories of thieves.
    pub(crate) steals: Vec<usize>,
}

/// One request, from its beginning to its end.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) process: usize,
    pub(crate) request: u64,
    pub(crate) flags: Flags,
    pub(crate) scope: Vec<(String, Mode)>,
    pub(crate) asked: Nanos,
    pub(crate) queued: Option<Nanos>,
    pub(crate) granted: Option<(Nanos, u64)>,
    pub(crate) releasing: Option<Nanos>,
    pub(crate) giving_up: Option<Nanos>,
    pub(crate) broken: Option<(Nanos, Cause)>,
    pub(crate) refused: Option<(Nanos, u32)>,
    /// Whether its last message was delivered.
    pub(crate) over: bool,
}

/// A time during which a lock was valid by its worker's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) story: usize,
    pub(crate) token: u64,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

/// Reads the histories and the resources.
pub(crate) fn read(run_dir: &RunDir, facts: Facts) -> io::Result<Seen> {
    let mut stories = Vec::new();
    for process in 0..facts.fates.len() {
        let lines = history::read(&run_dir.history(process), Line::parse)?;
        stories.extend(tell(process, lines).map_err(io::Error::other)?);
    }
    let touches =
        NAMES.into_iter().map(|name| Ok((name, history::read(&run_dir.resource(name), Touch::parse)?)));
    let touches = touches.collect::<io::Result<_>>()?;
    Ok(Seen::new(facts, stories, touches))
}

/// The lines of one process as stories.
fn tell(process: usize, lines: Vec<Line>) -> Result<Vec<Story>, String> {
    let mut stories: Vec<Story> = Vec::new();
    let mut places = HashMap::new();
    for Line { at, request, what } in lines {
        if let What::Asked { flags, scope } = what {
            places.insert(request, stories.len());
            stories.push(Story::new(process, request, flags, scope, at));
            continue;
        }
        let place = places.get(&request).ok_or(format!("{process}: {request} was not asked for"))?;
        let story = &mut stories[*place];
        match what {
            What::Asked { .. } => {}
            What::Queued => story.queued = Some(at),
            What::Granted { token } => story.granted = Some((at, token)),
            What::Releasing => story.releasing = Some(at),
            What::GivingUp => story.giving_up = Some(at),
            What::Refused { code } => (story.refused, story.over) = (Some((at, code)), true),
            What::Broken(cause) => (story.broken, story.over) = (Some((at, cause)), true),
            What::Unavailable | What::Ended => story.over = true,
        }
    }
    Ok(stories)
}

impl Story {
    pub(crate) fn new(
        process: usize,
        request: u64,
        flags: Flags,
        scope: Vec<(String, Mode)>,
        asked: Nanos,
    ) -> Self {
        Self {
            process,
            request,
            flags,
            scope,
            asked,
            queued: None,
            granted: None,
            releasing: None,
            giving_up: None,
            broken: None,
            refused: None,
            over: false,
        }
    }

    /// Whether they have a name in common.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.scope.iter().any(|(name, _)| other.mode(name).is_some())
    }

    pub(crate) fn mode(&self, name: &str) -> Option<Mode> {
        self.scope.iter().find(|(own, _)| own == name).map(|(_, mode)| *mode)
    }

    /// Its token, if it was granted while it was still wanted.
    pub(crate) fn token(&self) -> Option<u64> {
        self.granted.filter(|_| self.giving_up.is_none()).map(|(_, token)| token)
    }

    /// For people.
    pub(crate) fn show(&self) -> String {
        let Self { process, request, flags, scope, .. } = self;
        let steal = if flags.steal { " by force" } else { "" };
        let scope: Vec<_> = scope.iter().map(|(name, mode)| format!("{name} {mode}")).collect();
        let token = self.granted.map_or("none".into(), |(_, token)| token.to_string());
        format!("{process}/{request} ({}{steal}, token {token})", scope.join(", "))
    }
}

impl Seen {
    pub(crate) fn new(facts: Facts, stories: Vec<Story>, touches: Vec<(&'static str, Vec<Touch>)>) -> Self {
        let Facts { ttl, least_ttl, lease, fates, disturbances, outages, full } = facts;
        let [ttl, least_ttl, lease] =
            [ttl, least_ttl, lease].map(|ttl| u64::try_from(ttl.as_nanos()).expect("a TTL is short"));
        let steals = (0..stories.len()).filter(|&story| stories[story].flags.steal).collect();
        Self { ttl, least_ttl, lease, fates, disturbances, outages, full, stories, touches, steals }
    }

    /// How many requests, grants and touches there were.
    pub fn counts(&self) -> (usize, usize, usize) {
        let granted = self.stories.iter().filter(|story| story.granted.is_some()).count();
        (self.stories.len(), granted, self.touches.iter().map(|(_, touches)| touches.len()).sum())
    }

    /// How many requests of some processes were granted.
    pub(crate) fn granted_to(&self, some: impl Fn(&Fate) -> bool) -> usize {
        let granted = self.stories.iter().filter(|story| story.granted.is_some());
        granted.filter(|story| some(&self.fates[story.process])).count()
    }

    pub(crate) fn hold(&self, place: usize) -> Option<Hold> {
        let story = &self.stories[place];
        let token = story.token()?;
        let (from, _) = story.granted?;
        let ends = [story.releasing, story.broken.map(|(at, _)| at), self.fates[story.process].killed];
        // A killed command cannot record its end.
        let last = self.fates[story.process].commands.then(|| self.last_touch(story, from));
        let to = ends.into_iter().flatten().min().or(last).unwrap_or(Nanos::MAX);
        Some(Hold { story: place, token, from, to })
    }

    fn last_touch(&self, story: &Story, from: Nanos) -> Nanos {
        let touches = self.touches.iter().flat_map(|(_, touches)| touches);
        let own = touches.filter(|touch| (touch.process, touch.request) == (story.process, story.request));
        own.map(|touch| touch.at).max().unwrap_or(from)
    }

    /// Whether somebody whose lock is another's may not have been told by then: it was stolen, or
    /// the connection was cut, and not long ago. The first who steals from a holder does, and the
    /// first cut ends its session: what comes later is no excuse.
    pub(crate) fn is_excused(&self, place: usize, at: Nanos) -> bool {
        let story = &self.stories[place];
        let fate = &self.fates[story.process];
        let cut = fate.cuts.iter().find(|cut| **cut >= story.asked && !fate.network).map(|&cut| (cut, cut));
        // A stopped network client cannot read its clock. A silence is no excuse: its clock
        // continues.
        let frozen =
            fate.stops.iter().copied().filter(|(from, to)| fate.network && to - from >= self.ttl / 4);
        let (told, untold): (Vec<_>, Vec<_>) =
            self.thieves(place).map(|thief| &self.stories[thief]).partition(|thief| thief.granted.is_some());
        let first = told.into_iter().min_by_key(|thief| thief.granted.map(|(_, token)| token));
        let steals = first.into_iter().chain(untold).map(|thief| {
            let killed = self.fates[thief.process].killed;
            let told = thief.granted.map(|(at, _)| at);
            let latest = told.or(thief.broken.map(|(at, _)| at)).or(killed);
            (thief.asked, latest.unwrap_or(Nanos::MAX))
        });
        let may_be = |(earliest, latest)| earliest <= at && at <= self.due(story.process, latest, at);
        cut.into_iter().chain(frozen).chain(steals).any(may_be)
    }

    /// The requests that may have stolen from a holder: those with a greater token, and those whose
    /// outcome is unknown.
    pub(crate) fn thieves(&self, place: usize) -> impl Iterator<Item = usize> {
        let victim = &self.stories[place];
        let is_thief = move |&&thief: &&usize| {
            let thief = &self.stories[thief];
            let greater = match (thief.granted, victim.granted) {
                (Some((_, theirs)), Some((_, ours))) => theirs > ours,
                _ => true,
            };
            greater && thief.refused.is_none() && thief.meets(victim)
        };
        self.steals.iter().filter(is_thief).copied()
    }

    /// Until when a process may not have been told of what was at `since`. A daemon that began
    /// meanwhile first had to wait for its clients, and they for it.
    fn due(&self, process: usize, since: Nanos, now: Nanos) -> Nanos {
        let stopped = self.stopped(process, since, now);
        let due = since.saturating_add(LATE + stopped);
        let early = since.saturating_sub(LATE);
        match self.disturbances.iter().rfind(|&&at| early <= at && at <= now) {
            Some(&at) => {
                let others: Nanos = (0..self.fates.len()).map(|other| self.stopped(other, early, now)).sum();
                due.max(at + 2 * self.ttl + LATE + others)
            }
            None => due,
        }
    }

    /// For how long a process was stopped within a time.
    pub(crate) fn stopped(&self, process: usize, from: Nanos, to: Nanos) -> Nanos {
        let within = |&(start, end): &(Nanos, Nanos)| end.min(to).saturating_sub(start.max(from));
        self.fates[process].stops.iter().map(within).sum()
    }
}

pub(crate) fn conflict(one: Mode, other: Mode) -> bool {
    one == Mode::Exclusive || other == Mode::Exclusive
}
