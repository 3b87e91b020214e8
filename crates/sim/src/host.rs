//! The actions of clients' hosts: they request, release, query, close and crash.

use crate::{
    client::{Input, Kind},
    simulation::{Happening, Simulation},
};
use lockkeeper_core::{Mode, Name};
use lockkeeper_service::{Key, Outer, Request};
use lockkeeper_wire::v2::Flags;

/// How many wishes a client has at most.
const WISHES: usize = 4;

impl Simulation {
    /// A client's host does something, if the client is not suspended.
    pub(crate) fn act(&mut self, index: usize) {
        let client = &self.clients[index];
        if !client.alive || client.session.is_closed() {
            return;
        }
        if !client.away {
            match (self.closing, self.calm) {
                (true, _) => _ = self.feed(index, Input::Close),
                _ if client.runs => self.act_as_run(index),
                (false, true) => self.release_all(index),
                (false, false) => self.act_freely(index),
            }
        }
        let pause = self.around(self.plan.act_every).max(1);
        self.after(pause, Happening::Act(index));
    }

    /// When the faults are over, locks are released as soon as they are held.
    fn release_all(&mut self, index: usize) {
        for key in self.locks(index, true) {
            self.cancel(index, key, false);
        }
    }

    /// The locks that a host waits for or holds.
    fn locks(&self, index: usize, held: bool) -> Vec<Key> {
        let client = &self.clients[index];
        let wanted = |key: &&Key| {
            let wish = &client.wishes[key];
            wish.kind == Kind::Lock && !wish.given_up && (!held || wish.token.is_some())
        };
        client.live.iter().filter(wanted).copied().collect()
    }

    pub(crate) fn cancel(&mut self, index: usize, key: Key, detach: bool) {
        let timed_out = self.random.chance(100);
        if let Some(wish) = self.clients[index].wishes.get_mut(&key) {
            wish.given_up = true;
        }
        if detach {
            self.feed(index, Input::Detach(key, timed_out));
            self.clients[index].live.retain(|live| *live != key);
        } else {
            self.feed(index, Input::Release(key, timed_out));
        }
    }

    fn act_freely(&mut self, index: usize) {
        let acts = self.plan.acts;
        let weights = [
            acts.request,
            acts.release,
            acts.detach,
            acts.query,
            acts.force_release,
            acts.end_session,
            acts.close,
            acts.crash,
        ];
        match self.random.weighted(&weights) {
            Some(0) if self.clients[index].live.len() < WISHES => {
                let request = self.choose_request(index);
                self.feed(index, Input::Request(request));
            }
            Some(act @ (1 | 2)) => {
                // Mostly what is held: waiting is what makes for contention.
                let held = self.random.chance(800);
                let locks = self.locks(index, held);
                if !locks.is_empty() {
                    let key = self.random.pick(&locks);
                    self.cancel(index, key, act == 2);
                }
            }
            Some(3) => {
                let name = self.random.chance(500).then(|| self.choose_name());
                let deadlocks = self.random.chance(300);
                self.feed(index, Input::Query(name, deadlocks));
            }
            Some(4) => {
                let name = self.choose_name();
                self.feed(index, Input::ForceRelease(name));
            }
            Some(5) => {
                let other = self.random.index(self.clients.len());
                if let Some(id) = self.clients[other].session.client_id().map(Into::into) {
                    self.feed(index, Input::EndSession(id));
                }
            }
            Some(6) => _ = self.feed(index, Input::Close),
            Some(7) => self.crash_client(index),
            _ => {}
        }
    }

    pub(crate) fn choose_name(&mut self) -> Name {
        let name = [b'a' + u8::try_from(self.random.below(self.plan.names)).unwrap_or(0)];
        Name::from(&name[..])
    }

    fn choose_request(&mut self, index: usize) -> Request {
        let acts = self.plan.acts;
        let mut scope = vec![self.choose_name()];
        while self.random.chance(acts.several) {
            let name = self.choose_name();
            if !scope.contains(&name) {
                scope.push(name);
            }
        }
        let mut flags = Flags {
            if_available: self.random.chance(acts.if_available),
            steal: self.random.chance(acts.steal),
            refuse_deadlock: self.random.chance(acts.nested),
        };
        let mode = |simulation: &mut Self| match simulation.random.chance(acts.shared) && !flags.steal {
            true => Mode::Shared,
            false => Mode::Exclusive,
        };
        let scope = scope.into_iter().map(|name| (name, mode(self))).collect();
        flags.if_available &= !flags.steal;
        let outer = self.locks(index, true);
        let nested = !outer.is_empty() && self.random.chance(acts.nested);
        let nested_in = nested.then(|| Outer::Own(self.random.pick(&outer)));
        Request { scope, flags, nested_in, info: self.random.chance(200).then(|| "a label".into()) }
    }
}
