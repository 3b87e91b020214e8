//! Tokens grow, the order is kept, every request ends, and each end has a reason.

use super::{
    LATE, Rule, Violation,
    seen::{Seen, Story, conflict},
};
use crate::{Nanos, plan::NAMES};
use lockkeeper_client::code;
use lockkeeper_core::{Cause, Mode};
use std::collections::{HashMap, HashSet};

/// Tokens grow with every grant of a name: what is asked for when another has been granted gets a
/// greater one.
pub(crate) fn tokens(seen: &Seen) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut once: HashMap<u64, &Story> = HashMap::new();
    for story in &seen.stories {
        let Some((_, token)) = story.granted else { continue };
        if let Some(other) = once.insert(token, story) {
            let what = format!("{} and {} have the same", other.show(), story.show());
            violations.push(Violation { rule: Rule::Tokens, what });
        }
    }
    for name in NAMES {
        let grants =
            seen.stories.iter().filter(|story| story.mode(name).is_some() && story.granted.is_some());
        let earlier = grants.clone().map(|story| (story.granted.map_or(0, |(at, _)| at), story));
        for (other, story) in overtaken(name, earlier, grants, |_, _| true) {
            let what = format!("{name}: {} was granted before {} was asked for", other.show(), story.show());
            violations.push(Violation { rule: Rule::Tokens, what });
        }
    }
    violations
}

/// A waiting request is granted before later ones.
pub(crate) fn order(seen: &Seen) -> Vec<Violation> {
    let mut violations = Vec::new();
    let tokens: HashSet<u64> = seen.stories.iter().filter_map(|story| Some(story.granted?.1)).collect();
    for name in NAMES {
        let fair = |story: &&Story| !story.flags.steal && story.token().is_some();
        let stories = seen.stories.iter().filter(|story| story.mode(name).is_some()).filter(fair);
        let waited = stories.clone().filter_map(|story| Some((story.queued?, story)));
        let modes = |one: &Story, other: &Story| {
            one.mode(name).zip(other.mode(name)).is_some_and(|(one, other)| conflict(one, other))
        };
        for (first, second) in overtaken(name, waited, stories, modes) {
            let from = first.queued.unwrap_or(0);
            let to = second.granted.map_or(from, |(at, _)| at);
            if stolen_unheard(seen, &tokens, first, second) {
                continue;
            }
            let ends = seen.disturbances.iter().filter(|&&at| from <= at && at <= to).count();
            let what = format!(
                "{name}: {} was queued at {from}, {} asked for at {} and granted first, at {to}",
                first.show(),
                second.show(),
                second.asked
            );
            let rule = if ends == 0 { Rule::Order } else { Rule::OrderAcross };
            violations.push(Violation { rule, what });
        }
    }
    violations
}

/// Whether one that waited may have had the lock, and lost it to a steal, before the other got it,
/// and was cut off from the daemon before it had heard either. A daemon that was killed since knows
/// no more of that than the client, which waits on. There is the token that nobody has heard of,
/// shortly before the thief's.
fn stolen_unheard(seen: &Seen, tokens: &HashSet<u64>, first: &Story, second: &Story) -> bool {
    let (Some(from), Some((to, _)), Some((_, before))) = (first.queued, first.granted, second.granted) else {
        return false;
    };
    let fate = &seen.fates[first.process];
    let cut = fate.cuts.iter().any(|&at| from <= at && at <= to);
    let silent = fate.silences.iter().any(|&(start, end)| from <= end && start <= to);
    let stole = |thief: &Story| {
        let Some((at, token)) = thief.granted else { return false };
        from <= at
            && token < before
            && thief.meets(first)
            && (token.saturating_sub(8)..token).any(|unheard| !tokens.contains(&unheard))
    };
    (cut || silent) && seen.steals.iter().any(|&thief| stole(&seen.stories[thief]))
}

/// Pairs of which the first was queued before the second was requested, and still has the greater
/// token. Of those before one, only the one with the greatest token is checked.
fn overtaken<'a>(
    name: &str,
    earlier: impl Iterator<Item = (Nanos, &'a Story)>,
    later: impl Iterator<Item = &'a Story>,
    conflict: impl Fn(&Story, &Story) -> bool,
) -> Vec<(&'a Story, &'a Story)> {
    let mut earlier: Vec<_> = earlier.collect();
    earlier.sort_by_key(|(at, _)| *at);
    let mut later: Vec<_> = later.collect();
    later.sort_by_key(|story| story.asked);
    let token = |story: &Story| story.granted.map_or(0, |(_, token)| token);
    // The greatest of those that are exclusive, and of the others: which of the two is in one's way
    // depends on the mode.
    let mut greatest: [Option<&Story>; 2] = [None; 2];
    let mut pairs = Vec::new();
    let mut next = earlier.into_iter().peekable();
    for story in later {
        while let Some((_, first)) = next.next_if(|(at, _)| *at < story.asked) {
            let exclusive = first.mode(name) == Some(Mode::Exclusive);
            let place = &mut greatest[usize::from(exclusive)];
            if place.is_none_or(|other| token(other) < token(first)) {
                *place = Some(first);
            }
        }
        let first = greatest
            .into_iter()
            .flatten()
            .find(|first| token(first) > token(story) && conflict(first, story));
        pairs.extend(first.map(|first| (first, story)));
    }
    pairs
}

/// Every request is answered, and well.
pub(crate) fn ends(seen: &Seen) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (place, story) in seen.stories.iter().enumerate() {
        let mut report = |rule, what: String| violations.push(Violation { rule, what });
        if !story.over && seen.fates[story.process].killed.is_none() {
            report(Rule::Answered, story.show());
        }
        if let Some((at, code)) = story.refused
            && !may_be_refused(seen, story, at, code)
        {
            report(Rule::Refused, format!("{}: code {code}", story.show()));
        }
        match story.broken {
            Some((at, Cause::Lost)) if !may_be_lost(seen, story.process, at) => {
                report(Rule::Lost, format!("{} at {at}", story.show()));
            }
            Some((at, Cause::Stolen)) if !seen.thieves(place).any(|thief| seen.stories[thief].asked < at) => {
                report(Rule::Stolen, format!("{} at {at}", story.show()));
            }
            _ => {}
        }
    }
    violations
}

/// Whether the disk was full between a request and its answer: then nothing is taken on.
fn may_be_refused(seen: &Seen, story: &Story, at: Nanos, code: u32) -> bool {
    code == code::STORAGE && seen.full.iter().any(|(from, to)| story.asked <= *to && *from <= at)
}

/// Whether a process was cut off, or could not reach a daemon for long, not long before.
fn may_be_lost(seen: &Seen, process: usize, at: Nanos) -> bool {
    let fate = &seen.fates[process];
    let from = at.saturating_sub(seen.lease + LATE);
    // A process that was stopped is notified later.
    let from = from.saturating_sub(seen.stopped(process, from, at));
    let cut = !fate.network && fate.cuts.iter().any(|&cut| from <= cut && cut <= at);
    // Several that follow each other are as one.
    let within = |(start, end): &(Nanos, Nanos)| (*end.min(&at)).checked_sub(*start.max(&from));
    let down: Nanos = seen.outages.iter().filter_map(within).sum();
    // A command is asked to end at half of the ttl.
    let enough = seen.least_ttl / if fate.commands { 4 } else { 2 };
    // Its last message may have arrived a fifth of the ttl before.
    let quiet = |length| length >= seen.least_ttl / 4;
    let silent = fate.silences.iter().filter_map(within).any(quiet);
    let maimed = fate.maimed.iter().any(|maimed| from <= *maimed && *maimed <= at);
    cut || maimed || down >= enough || silent || quiet(seen.stopped(process, from, at))
}
