//! Tests of the check itself: small histories, right and wrong.

use super::{
    LATE, Rule, check,
    seen::{Facts, Fate, Seen, Story},
};
use crate::{Nanos, history::Touch, ms};
use lockkeeper_client::{Flags, code};
use lockkeeper_core::{Cause, Mode};
use std::time::Duration;

/// A request of a process of its own for `a`, granted 1 ms after it was asked for and held for as
/// long as is said.
fn held(process: usize, mode: Mode, asked: Nanos, token: u64, to: Nanos) -> Story {
    let story = Story::new(process, 0, Flags::default(), vec![("a".into(), mode)], asked);
    Story { granted: Some((asked + ms(1), token)), releasing: Some(to), over: true, ..story }
}

fn exclusive(process: usize, asked: Nanos, token: u64, to: Nanos) -> Story {
    held(process, Mode::Exclusive, asked, token, to)
}

fn thief(process: usize, asked: Nanos, token: u64, to: Nanos) -> Story {
    Story { flags: Flags { steal: true, ..Flags::default() }, ..exclusive(process, asked, token, to) }
}

fn told(story: Story, at: Nanos, cause: Cause) -> Story {
    Story { releasing: None, broken: Some((at, cause)), ..story }
}

fn facts(processes: usize) -> Facts {
    let ttl = Duration::from_secs(2);
    Facts { ttl, least_ttl: ttl, lease: ttl, fates: vec![Fate::default(); processes], ..Facts::default() }
}

fn seen(facts: Facts, stories: Vec<Story>, touches: &[(Nanos, u64, usize)]) -> Vec<Rule> {
    let touch = |&(at, token, process): &(Nanos, u64, usize)| Touch {
        at,
        token,
        mode: Mode::Exclusive,
        process,
        request: 0,
    };
    let touches = vec![("a", touches.iter().map(touch).collect())];
    check(&Seen::new(facts, stories, touches)).into_iter().map(|violation| violation.rule).collect()
}

#[test]
fn one_after_the_other_is_well() {
    let stories = vec![exclusive(0, ms(0), 1, ms(10)), exclusive(1, ms(10), 2, ms(20))];
    assert_eq!(seen(facts(2), stories, &[(ms(5), 1, 0), (ms(15), 2, 1)]), []);
}

#[test]
fn who_shares_may_overlap() {
    let shared = |process, token| held(process, Mode::Shared, ms(0), token, ms(20));
    assert_eq!(seen(facts(2), vec![shared(0, 1), shared(1, 2)], &[]), []);
}

#[test]
fn two_at_once_are_not() {
    let stories = vec![exclusive(0, ms(0), 1, ms(30)), exclusive(1, ms(10), 2, ms(40))];
    let touches = [(ms(15), 2, 1), (ms(25), 1, 0)];
    assert_eq!(seen(facts(2), stories, &touches), [Rule::Overlap, Rule::Stale]);
}

#[test]
fn whose_lock_was_stolen_has_until_it_is_told_and_not_for_ever() {
    let late = |late| {
        let victim = told(exclusive(0, ms(0), 1, 0), ms(11) + late, Cause::Stolen);
        let stories = vec![victim, thief(1, ms(10), 2, ms(11) + 2 * LATE)];
        seen(facts(2), stories, &[(ms(12), 2, 1), (ms(10) + late, 1, 0)])
    };
    assert_eq!(late(LATE), []);
    assert_eq!(late(LATE + ms(2)), [Rule::Overlap, Rule::Stale]);
}

#[test]
fn a_later_thief_is_no_excuse_for_what_the_first_took() {
    let end = ms(100) + 2 * LATE;
    let victim = exclusive(0, ms(0), 1, end);
    let stories = vec![victim, thief(1, ms(10), 2, ms(20)), thief(2, ms(50) + 2 * LATE, 3, end)];
    assert_eq!(seen(facts(3), stories, &[]), [Rule::Overlap]);
}

#[test]
fn who_is_stopped_hears_of_a_cut_later() {
    let rules = |stops: Vec<(Nanos, Nanos)>| {
        let mut facts = facts(2);
        facts.fates[0] = Fate { cuts: vec![ms(10)], stops, ..Fate::default() };
        let cut = told(exclusive(0, ms(0), 1, 0), ms(20) + LATE + ms(200), Cause::Lost);
        seen(facts, vec![cut, exclusive(1, ms(10), 2, ms(100) + 2 * LATE)], &[])
    };
    assert_eq!(rules(vec![(ms(15), ms(300))]), []);
    assert_eq!(rules(Vec::new()), [Rule::Overlap]);
}

#[test]
fn nobody_goes_on_after_it_was_told() {
    let victim = told(exclusive(0, ms(0), 1, 0), ms(15), Cause::Stolen);
    let stories = vec![victim, thief(1, ms(10), 2, ms(12))];
    assert_eq!(seen(facts(2), stories, &[(ms(16), 1, 0)]), [Rule::Told]);
}

#[test]
fn tokens_grow_and_are_given_once() {
    let stories = |token| vec![exclusive(0, ms(0), 2, ms(10)), exclusive(1, ms(20), token, ms(30))];
    assert_eq!(seen(facts(2), stories(1), &[]), [Rule::Tokens]);
    assert_eq!(seen(facts(2), stories(2), &[]), [Rule::Tokens]);
    assert_eq!(seen(facts(2), stories(3), &[]), []);
}

#[test]
fn who_waits_goes_before_who_asks_later() {
    let stories = || {
        let mut first = exclusive(0, ms(0), 2, ms(50));
        (first.queued, first.granted) = (Some(ms(1)), Some((ms(40), 2)));
        vec![first, exclusive(1, ms(10), 1, ms(30))]
    };
    assert_eq!(seen(facts(2), stories(), &[]), [Rule::Order]);
    let across = Facts { disturbances: vec![ms(5)], ..facts(2) };
    assert_eq!(seen(across, stories(), &[]), [Rule::OrderAcross]);
}

#[test]
fn whose_lock_was_stolen_before_the_grant_was_heard_was_not_overtaken() {
    // The first has the token that nobody hears of, loses it to a steal, and waits on with the next
    // daemon.
    let rules = |cuts: Vec<Nanos>, unheard| {
        let mut first = exclusive(0, ms(0), 1000, ms(100));
        (first.queued, first.granted) = (Some(ms(1)), Some((ms(90), 1000)));
        let (steals, next) = (100 + u64::from(unheard), 101 + u64::from(unheard));
        let before = (90..100).map(|token| exclusive(3, ms(0), token, ms(0)));
        let stories = [first, thief(1, ms(10), steals, ms(12)), exclusive(2, ms(20), next, ms(30))];
        let mut facts = Facts { disturbances: vec![ms(50)], ..facts(4) };
        facts.fates[0].cuts = cuts;
        let of_order = |rule: &Rule| matches!(rule, Rule::Order | Rule::OrderAcross);
        let stories = stories.into_iter().chain(before).collect();
        seen(facts, stories, &[]).into_iter().filter(of_order).collect::<Vec<_>>()
    };
    assert_eq!(rules(vec![ms(15)], true), []);
    assert_eq!(rules(vec![ms(15)], false), [Rule::Order]);
    assert_eq!(rules(vec![], true), [Rule::Order]);
}

#[test]
fn every_request_has_its_end_and_its_reason() {
    let asked = Story { releasing: None, over: false, ..exclusive(0, ms(0), 1, 0) };
    assert_eq!(seen(facts(1), vec![asked.clone()], &[]), [Rule::Answered]);
    let refused = Story { refused: Some((0, 4)), over: true, ..asked.clone() };
    assert_eq!(seen(facts(1), vec![refused], &[]), [Rule::Refused]);
    // A full disk is a reason, while it is full.
    let full = |from, to| Facts { full: vec![(ms(from), ms(to))], ..facts(1) };
    let refused = Story { refused: Some((ms(10), code::STORAGE)), over: true, ..asked.clone() };
    assert_eq!(seen(full(5, 8), vec![refused.clone()], &[]), []);
    assert_eq!(seen(full(20, 30), vec![refused], &[]), [Rule::Refused]);
    for (cause, rule) in [(Cause::Lost, Rule::Lost), (Cause::Stolen, Rule::Stolen)] {
        let broken = Story { over: true, ..told(asked.clone(), ms(10), cause) };
        assert_eq!(seen(facts(1), vec![broken], &[]), [rule]);
    }
}

#[test]
fn a_lock_is_lost_when_no_daemon_answered_for_long_within_its_lease() {
    let lost = |outages: &[(Nanos, Nanos)], commands| {
        let mut facts = Facts { outages: outages.to_vec(), ..facts(1) };
        (facts.fates[0].network, facts.fates[0].commands) = (true, commands);
        seen(facts, vec![told(exclusive(0, ms(0), 1, 0), ms(9000), Cause::Lost)], &[])
    };
    // The ttl is 2 s, and the lease so long, too. Several outages add up.
    assert_eq!(lost(&[(ms(7000), ms(8000))], false), []);
    assert_eq!(lost(&[(ms(7000), ms(7500)), (ms(8000), ms(9500))], false), []);
    assert_eq!(lost(&[(ms(7000), ms(7900))], false), [Rule::Lost]);
    assert_eq!(lost(&[(ms(2000), ms(6300)), (ms(9000), ms(12000))], false), [Rule::Lost]);
    // A command is ended sooner.
    assert_eq!(lost(&[(ms(7000), ms(7500))], true), []);
    assert_eq!(lost(&[(ms(7000), ms(7400))], true), [Rule::Lost]);
}
