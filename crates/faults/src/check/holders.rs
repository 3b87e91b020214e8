//! No two holders conflict.

use super::{
    Rule, Violation,
    seen::{Hold, Seen, conflict},
};
use crate::{Nanos, plan::NAMES};
use lockkeeper_core::Mode;
use std::collections::{HashMap, HashSet};

/// Of two that both seem to hold an exclusive lock, the one with the smaller token needs an excuse.
pub(crate) fn overlaps(seen: &Seen) -> Vec<Violation> {
    let mut violations = Vec::new();
    for name in NAMES {
        let of_name = |place: &usize| seen.stories[*place].mode(name).is_some();
        let places = (0..seen.stories.len()).filter(of_name);
        let mut holds: Vec<Hold> =
            places.filter_map(|place| seen.hold(place)).filter(|hold| hold.from < hold.to).collect();
        holds.sort_by_key(|hold| hold.from);
        let mut live: Vec<Hold> = Vec::new();
        for hold in holds {
            live.retain(|other| other.to > hold.from);
            for other in &live {
                let mode = |hold: &Hold| seen.stories[hold.story].mode(name).expect("it was picked so");
                if !conflict(mode(&hold), mode(other)) {
                    continue;
                }
                let old = if other.token < hold.token { other } else { &hold };
                let until = other.to.min(hold.to);
                if !seen.is_excused(old.story, until) {
                    let (first, second) = (&seen.stories[other.story], &seen.stories[hold.story]);
                    let what = format!(
                        "{name}: {} held when {} was granted at {}, for another {}",
                        first.show(),
                        second.show(),
                        hold.from,
                        millis(until - hold.from),
                    );
                    violations.push(Violation { rule: Rule::Overlap, what });
                }
            }
            live.push(hold);
        }
    }
    violations
}

/// The same from outside: a touch after a conflicting one with a greater token, and a touch after
/// its holder was notified.
pub(crate) fn touches(seen: &Seen) -> Vec<Violation> {
    let mut violations = Vec::new();
    let places: HashMap<_, _> = seen
        .stories
        .iter()
        .enumerate()
        .map(|(place, story)| ((story.process, story.request), place))
        .collect();
    for (name, touches) in &seen.touches {
        // The greatest token at work so far, of those in the way of a shared touch, and of an
        // exclusive one.
        let (mut exclusive, mut any) = (0, 0);
        let mut reported = HashSet::new();
        for touch in touches {
            let Some(&place) = places.get(&(touch.process, touch.request)) else { continue };
            let story = &seen.stories[place];
            let mut report = |rule, what: String| {
                // One of a holder is enough.
                if reported.insert((place, rule)) {
                    violations.push(Violation { rule, what });
                }
            };
            if let Some((told, cause)) = story.broken
                && told < touch.at
            {
                let late = millis(touch.at - told);
                report(Rule::Told, format!("{name}: {} was told {cause:?} {late} before", story.show()));
            }
            let greatest = if touch.mode == Mode::Exclusive { any } else { exclusive };
            if touch.token < greatest && !seen.is_excused(place, touch.at) {
                let at = touch.at;
                let what = format!("{name}: {} at {at}, after one with token {greatest}", story.show());
                report(Rule::Stale, what);
            }
            any = any.max(touch.token);
            if touch.mode == Mode::Exclusive {
                exclusive = exclusive.max(touch.token);
            }
        }
    }
    violations
}

pub(crate) fn millis(nanos: Nanos) -> String {
    format!("{}.{:03} ms", nanos / 1_000_000, nanos / 1000 % 1000)
}
