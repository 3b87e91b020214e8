//! Calls and answers between daemons and the store: they are late, lost, duplicated and reordered.
//! Watches lag and end.
//!
//! A daemon that waits too long for an answer makes another call. The answer to the earlier one is
//! ignored; the earlier call may still be executed, at any time.

use crate::{
    clock::{Ticks, ticks},
    simulation::{Happening, Simulation, note},
    store::{Answer, Call},
};
use std::collections::BTreeMap;

/// Calls that were made, by their numbers.
#[derive(Default)]
pub(crate) struct Calls {
    last: u64,
    made: BTreeMap<u64, Made>,
}

struct Made {
    daemon: usize,
    life: u64,
    call: Call,
    /// One for each time that it was executed.
    answers: Vec<Option<Answer>>,
}

/// A watch that a follower reads.
#[derive(Debug)]
pub(crate) struct Watch {
    number: u64,
    /// The next change to deliver to it.
    pub(crate) next: usize,
    /// Changes before this one have arrived.
    pub(crate) arrived: usize,
    /// When the newest of those that are on their way arrives: changes do not overtake each other.
    last: Ticks,
    /// Whether it has ended.
    pub(crate) ended: bool,
}

impl Simulation {
    /// Calls the store. Returns the number of the call.
    pub(crate) fn call(&mut self, daemon: usize, call: Call) -> u64 {
        self.calls.last += 1;
        let (number, life) = (self.calls.last, self.daemons[daemon].life);
        note!(self, "D{daemon} calls #{number} {call:?}");
        self.calls.made.insert(number, Made { daemon, life, call, answers: Vec::new() });
        let doubled = !self.calm && self.random.chance(self.plan.double_log_message);
        for _ in 0..1 + usize::from(doubled) {
            if !self.log_message_is_lost() {
                let at = self.log_arrival(daemon);
                self.at(at, Happening::Call(number));
            }
        }
        self.time_out_after(daemon, number, self.plan.takeover_after / 2);
        number
    }

    /// The store is another one: what is on its way to it, or from it, is lost.
    pub(crate) fn drop_calls(&mut self) {
        self.calls.made.clear();
    }

    /// A daemon continues after that time, if the call is not answered before.
    pub(crate) fn time_out_after(&mut self, daemon: usize, call: u64, pause: u64) {
        let life = self.daemons[daemon].life;
        self.after(pause, Happening::CallTimeout { daemon, life, call });
    }

    fn log_message_is_lost(&mut self) -> bool {
        !self.calm && self.random.chance(self.plan.lose_log_message)
    }

    /// When something that is sent now between a daemon and the store arrives.
    fn log_arrival(&mut self, daemon: usize) -> Ticks {
        let delay = match self.calm {
            true => self.random.below(200),
            false => self.plan.log_delay.choose(&mut self.random),
        };
        (self.now + ticks(delay)).max(self.daemons[daemon].partitioned_until)
    }

    /// A call arrives and is executed.
    pub(crate) fn on_call(&mut self, number: u64) {
        let Some(Made { daemon, call, .. }) = self.calls.made.get(&number) else { return };
        let (daemon, call) = (*daemon, call.clone());
        let answer = self.execute(daemon, call);
        note!(self, "the store executes #{number} of D{daemon}: {answer:?}");
        let Some(made) = self.calls.made.get_mut(&number) else { return };
        made.answers.push(Some(answer));
        let which = made.answers.len() - 1;
        if !self.log_message_is_lost() {
            let at = self.log_arrival(daemon);
            self.at(at, Happening::Answer(number, which));
        }
    }

    /// An answer arrives. A stalled daemon finds it when it continues.
    pub(crate) fn on_answer(&mut self, number: u64, which: usize) {
        let Some(&Made { daemon, life, .. }) = self.calls.made.get(&number) else { return };
        if !self.is_alive(daemon, life) {
            return;
        }
        if self.daemons[daemon].stalled {
            return self.daemons[daemon].answers.push((number, which));
        }
        let made = self.calls.made.get_mut(&number);
        let answer = made.and_then(|made| made.answers.get_mut(which)).and_then(Option::take);
        let Some(answer) = answer else { return };
        match self.daemons[daemon].follower.is_some() {
            true => self.answer_follower(daemon, number, answer),
            false => self.answer_leader(daemon, number, answer),
        }
    }

    pub(crate) fn on_call_timeout(&mut self, daemon: usize, life: u64, call: u64) {
        if !self.is_alive(daemon, life) {
            return;
        }
        if self.daemons[daemon].stalled {
            return self.time_out_after(daemon, call, self.plan.takeover_after / 8 + 1);
        }
        match self.daemons[daemon].follower.is_some() {
            true => self.follower_timeout(daemon, call),
            false => self.leader_timeout(daemon, call),
        }
    }

    /// Whether a daemon is in that life.
    pub(crate) fn is_alive(&self, daemon: usize, life: u64) -> bool {
        self.daemons[daemon].life == life && self.daemons[daemon].running
    }

    /// How long a daemon waits before it asks the store again.
    pub(crate) fn choose_pause(&mut self) -> u64 {
        self.random.between(1, self.plan.takeover_after / 8 + 1)
    }

    /// A watch that begins with that change.
    pub(crate) fn open_watch(&mut self, daemon: usize, next: usize) -> Watch {
        self.calls.last += 1;
        let mut watch = Watch { number: self.calls.last, next, arrived: next, last: self.now, ended: false };
        if next < self.store.changes.len() {
            self.send_changes(daemon, &mut watch);
        }
        watch
    }

    /// There is a change: watchers are notified.
    pub(crate) fn announce_change(&mut self) {
        for daemon in 0..self.daemons.len() {
            let watch = self.daemons[daemon].follower.as_mut().and_then(|follower| follower.watch.take());
            let Some(mut watch) = watch else { continue };
            self.send_changes(daemon, &mut watch);
            if let Some(follower) = &mut self.daemons[daemon].follower {
                follower.watch = Some(watch);
            }
        }
    }

    fn send_changes(&mut self, daemon: usize, watch: &mut Watch) {
        let delay = match self.calm {
            true => self.random.below(200),
            false => self.plan.watch_delay.choose(&mut self.random),
        };
        let arrival = (self.now + ticks(delay)).max(self.daemons[daemon].partitioned_until);
        watch.last = watch.last.max(arrival);
        let ends = !self.calm && self.random.chance(self.plan.end_watch);
        let (life, upto) = (self.daemons[daemon].life, self.store.changes.len());
        let upto = if ends { None } else { Some(upto) };
        self.at(watch.last, Happening::Changes { daemon, life, watch: watch.number, upto });
    }

    /// Changes up to that one arrive, or the end of the watch.
    pub(crate) fn on_changes(&mut self, daemon: usize, life: u64, number: u64, upto: Option<usize>) {
        if !self.is_alive(daemon, life) {
            return;
        }
        let (changes, compacted) = (&self.store.changes, self.store.compacted);
        let Some(follower) = &mut self.daemons[daemon].follower else { return };
        let Some(watch) = follower.watch.as_mut().filter(|watch| watch.number == number) else { return };
        match upto {
            // Changes that it has not delivered yet are compacted away.
            Some(_) if changes.get(watch.arrived).is_some_and(|change| change.revision <= compacted) => {
                watch.ended |= self.random.chance(500);
            }
            Some(_) => {}
            None => watch.ended = true,
        }
        if !watch.ended {
            watch.arrived = watch.arrived.max(upto.unwrap_or(0));
        }
        self.read_watch(daemon);
    }
}
