//! The Working Draft of January 2023 to the letter: one name per request, one queue per name.
//!
//! The private functions are the draft's algorithms under the draft's names, and each line carries
//! the number of its step. The public ones are the events that start them. Steps that only name a
//! variable, and those that hop between the lock task queue and an event loop, have no counterpart:
//! the model runs each event to its end before the next, which is what the lock task queue
//! promises.

use std::collections::{BTreeMap, VecDeque};

use crate::{Cause, Client, Effect, Info, Mode, Refusal, Serial, Snapshot};

/// §2.2: a lock manager.
#[derive(Clone, Debug, Default)]
pub struct LockManager {
    /// §2.4: the held lock set, in the order in which §4.4 step 2.13 appended.
    held: Vec<Lock>,
    /// §2.5: the lock request queue map.
    queue_map: BTreeMap<Vec<u8>, VecDeque<LockRequest>>,
    /// The number of the next accepted request.
    next_serial: Serial,
}

/// §2.5: a lock request.
#[derive(Clone, Debug)]
struct LockRequest {
    serial: Serial,
    agent: Client,
    name: Vec<u8>,
    mode: Mode,
}

/// §2.4: a lock.
#[derive(Clone, Debug)]
struct Lock {
    serial: Serial,
    agent: Client,
    name: Vec<u8>,
    mode: Mode,
}

impl LockManager {
    /// A lock manager without locks or requests.
    pub fn new() -> Self {
        Self::default()
    }

    /// §3.2.1: the `request()` method. Steps 1 to 4 and 8 to 10 concern the caller's document,
    /// signal and promise, which the model does not have.
    pub fn request(
        &mut self,
        client: Client,
        name: &[u8],
        mode: Mode,
        if_available: bool,
        steal: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<Serial, Refusal> {
        // §3.2.1 step 5
        if name.starts_with(b"-") {
            return Err(Refusal::ReservedName);
        }
        // §3.2.1 step 6
        if steal && if_available {
            return Err(Refusal::Unsupported);
        }
        // §3.2.1 step 7
        if steal && mode != Mode::Exclusive {
            return Err(Refusal::Unsupported);
        }
        // §3.2.1 steps 11 and 12
        Ok(self.request_a_lock(client, name, mode, if_available, steal, effects))
    }

    /// §2.4: the lock's waiting promise settled. Returns whether the lock was held.
    ///
    /// The draft would run its steps for a stolen lock too. They would change nothing: the lock is
    /// no longer in the set, and the queue was processed when it left.
    pub fn release(&mut self, serial: Serial, effects: &mut Vec<Effect>) -> bool {
        let Some(lock) = self.held.iter().find(|lock| lock.serial == serial).cloned() else {
            return false;
        };
        // §2.4 step 1
        self.release_the_lock(&lock, effects);
        true
    }

    /// §4.3: signal to abort the request. Returns whether the request was waiting.
    ///
    /// A granted request is past aborting. §4.4 step 2.14.1 can still drop one whose callback has
    /// not begun; the model's grants reach their callbacks at once, which leaves no such moment.
    pub fn abort(&mut self, serial: Serial, effects: &mut Vec<Effect>) -> bool {
        let Some(request) =
            self.queue_map.values().flatten().find(|request| request.serial == serial).cloned()
        else {
            return false;
        };
        // §4.3 signal to abort the request, steps 1 and 2
        self.abort_the_request(&request, effects);
        true
    }

    /// §2.6: the agent terminated.
    pub fn client_gone(&mut self, client: Client, effects: &mut Vec<Effect>) {
        self.terminate_remaining_locks_and_requests(client, effects);
    }

    /// The proto-spec's `forceRelease(name)`, for which no text has an algorithm: what a steal does
    /// to the held locks of the name (§4.1 step 3.4.1), without a thief to come first in the queue.
    pub fn force_release(&mut self, name: &[u8], effects: &mut Vec<Effect>) {
        self.break_held_locks(name, effects);
        self.process_the_lock_request_queue(name, effects);
    }

    /// §3.2.2: the `query()` method.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_the_lock_state()
    }

    /// §2.5: get the lock request queue.
    fn get_the_lock_request_queue(&mut self, name: &[u8]) -> &mut VecDeque<LockRequest> {
        // §2.5 get the lock request queue, steps 1 and 2
        self.queue_map.entry(name.to_vec()).or_default()
    }

    /// §2.5: whether the request is grantable.
    fn grantable(&mut self, request: &LockRequest) -> bool {
        // §2.5 grantable, step 4
        let queue = self.get_the_lock_request_queue(&request.name);
        // §2.5 grantable, step 7
        if queue.front().is_some_and(|first| first.serial != request.serial) {
            return false;
        }
        match request.mode {
            // §2.5 grantable, step 8
            Mode::Exclusive => !self.held.iter().any(|lock| lock.name == request.name),
            // §2.5 grantable, step 9
            Mode::Shared => {
                !self.held.iter().any(|lock| lock.mode == Mode::Exclusive && lock.name == request.name)
            }
        }
    }

    /// §2.6: terminate remaining locks and requests.
    ///
    /// The draft names no order for either step; the model takes the order of arrival.
    fn terminate_remaining_locks_and_requests(&mut self, agent: Client, effects: &mut Vec<Effect>) {
        // §2.6 step 1
        let mut requests: Vec<LockRequest> =
            self.queue_map.values().flatten().filter(|request| request.agent == agent).cloned().collect();
        requests.sort_by_key(|request| request.serial);
        for request in requests {
            // Aborting an earlier one may have granted this one: then it is a lock, and step 2 has
            // it.
            if self.queue_map.values().flatten().any(|waiting| waiting.serial == request.serial) {
                // §2.6 step 1.1
                self.abort_the_request(&request, effects);
            }
        }
        // §2.6 step 2
        let mut locks: Vec<Lock> = self.held.iter().filter(|lock| lock.agent == agent).cloned().collect();
        locks.sort_by_key(|lock| lock.serial);
        for lock in locks {
            effects.push(Effect::Broken(lock.serial, Cause::Lost));
            // §2.6 step 2.1
            self.release_the_lock(&lock, effects);
        }
    }

    /// §4.1: request a lock.
    fn request_a_lock(
        &mut self,
        agent: Client,
        name: &[u8],
        mode: Mode,
        if_available: bool,
        steal: bool,
        effects: &mut Vec<Effect>,
    ) -> Serial {
        let serial = self.next_serial;
        self.next_serial += 1;
        // §4.1 step 1
        let request = LockRequest { serial, agent, name: name.to_vec(), mode };
        // §4.1 step 3.4
        if steal {
            // §4.1 step 3.4.1
            self.break_held_locks(name, effects);
            // §4.1 step 3.4.2
            self.get_the_lock_request_queue(name).push_front(request);
        // §4.1 step 3.5
        } else {
            // §4.1 step 3.5.1
            if if_available && !self.grantable(&request) {
                // §4.1 steps 3.5.1.1 and 3.5.1.2. "Abort these steps" must end the outer steps too,
                // or the refused request would be queued after all.
                effects.push(Effect::Unavailable(serial));
                return serial;
            }
            // §4.1 step 3.5.2
            self.get_the_lock_request_queue(name).push_back(request);
        }
        // §4.1 step 3.6
        self.process_the_lock_request_queue(name, effects);
        // The draft has no step that notifies a waiting client: the effect reports the result of
        // step 3.6.
        if self.get_the_lock_request_queue(name).iter().any(|waiting| waiting.serial == serial) {
            effects.push(Effect::Queued(serial));
        }
        // §4.1 step 4
        serial
    }

    /// §4.1 step 3.4.1: break every held lock of the name.
    fn break_held_locks(&mut self, name: &[u8], effects: &mut Vec<Effect>) {
        // §4.1 step 3.4.1: over the set as it stood, since its own steps remove from it
        for lock in self.held.clone() {
            // §4.1 step 3.4.1.1
            if lock.name == name {
                // §4.1 step 3.4.1.1.1
                self.held.retain(|held| held.serial != lock.serial);
                // §4.1 step 3.4.1.1.2
                effects.push(Effect::Broken(lock.serial, Cause::Stolen));
            }
        }
    }

    /// §4.2: release the lock.
    fn release_the_lock(&mut self, lock: &Lock, effects: &mut Vec<Effect>) {
        // §4.2 step 6
        self.held.retain(|held| held.serial != lock.serial);
        // §4.2 step 7
        self.process_the_lock_request_queue(&lock.name, effects);
    }

    /// §4.3: abort the request.
    fn abort_the_request(&mut self, request: &LockRequest, effects: &mut Vec<Effect>) {
        effects.push(Effect::Aborted(request.serial));
        // §4.3 steps 5 and 6
        self.get_the_lock_request_queue(&request.name).retain(|waiting| waiting.serial != request.serial);
        // §4.3 step 7
        self.process_the_lock_request_queue(&request.name, effects);
    }

    /// §4.4: process the lock request queue of a name.
    fn process_the_lock_request_queue(&mut self, name: &[u8], effects: &mut Vec<Effect>) {
        // §4.4 step 2: over the queue as it stood, since its own steps remove from it
        for request in self.get_the_lock_request_queue(name).clone() {
            // §4.4 step 2.1
            if !self.grantable(&request) {
                return;
            }
            // §4.4 step 2.2
            self.get_the_lock_request_queue(name).retain(|waiting| waiting.serial != request.serial);
            // §4.4 steps 2.3 to 2.12
            let LockRequest { serial, agent, name, mode } = request;
            let lock = Lock { serial, agent, name, mode };
            // §4.4 step 2.13
            self.held.push(lock);
            // §4.4 step 2.14
            effects.push(Effect::Granted(serial));
        }
    }

    /// §4.5: snapshot the lock state.
    fn snapshot_the_lock_state(&self) -> Snapshot {
        // §4.5 step 2
        let mut pending = Vec::new();
        // §4.5 step 3
        for queue in self.queue_map.values() {
            // §4.5 step 3.1
            for request in queue {
                // §4.5 step 3.1.1
                let LockRequest { serial, agent: client, name, mode } = request.clone();
                pending.push(Info { name, mode, client, serial });
            }
        }
        // §4.5 step 4
        let mut held = Vec::new();
        // §4.5 step 5
        for lock in &self.held {
            // §4.5 step 5.1
            let Lock { serial, agent: client, name, mode } = lock.clone();
            held.push(Info { name, mode, client, serial });
        }
        // §4.5 leaves the order of locks, and that of requests of different names, open: arrival
        // decides, so that two snapshots of one state are equal.
        pending.sort_by_key(|info| info.serial);
        held.sort_by_key(|info| info.serial);
        // §4.5 step 6
        Snapshot { held, pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Effect::{Aborted, Broken, Granted, Queued, Unavailable};
    use Mode::{Exclusive, Shared};

    /// A manager with its effects: each call returns only what it caused itself.
    #[derive(Default)]
    struct Fixture(LockManager);

    impl Fixture {
        fn request(&mut self, client: Client, name: &str, mode: Mode) -> Vec<Effect> {
            self.request_with(client, name, mode, false, false).expect("an ordinary request is accepted")
        }

        fn request_with(
            &mut self,
            client: Client,
            name: &str,
            mode: Mode,
            if_available: bool,
            steal: bool,
        ) -> Result<Vec<Effect>, Refusal> {
            let mut effects = Vec::new();
            self.0.request(client, name.as_bytes(), mode, if_available, steal, &mut effects)?;
            Ok(effects)
        }

        fn effects(&mut self, operation: impl FnOnce(&mut LockManager, &mut Vec<Effect>)) -> Vec<Effect> {
            let mut effects = Vec::new();
            operation(&mut self.0, &mut effects);
            effects
        }
    }

    #[test]
    fn only_the_first_item_in_a_queue_is_grantable() {
        let mut locks = Fixture::default();
        assert_eq!(locks.request(1, "a", Shared), [Granted(0)]);
        assert_eq!(locks.request(1, "a", Exclusive), [Queued(1)]);
        assert_eq!(locks.request(1, "a", Shared), [Queued(2)]);
        assert_eq!(locks.request(1, "b", Exclusive), [Granted(3)]);
    }

    #[test]
    fn a_release_grants_shared_requests_up_to_the_next_exclusive_one() {
        let mut locks = Fixture::default();
        locks.request(1, "a", Exclusive);
        for mode in [Shared, Shared, Exclusive, Shared] {
            locks.request(1, "a", mode);
        }
        assert_eq!(locks.effects(|l, e| assert!(l.release(0, e))), [Granted(1), Granted(2)]);
        assert_eq!(locks.effects(|l, e| assert!(!l.release(0, e))), []);
        assert_eq!(locks.effects(|l, e| assert!(l.release(1, e))), []);
        assert_eq!(locks.effects(|l, e| assert!(l.release(2, e))), [Granted(3)]);
    }

    #[test]
    fn aborting_an_exclusive_request_lets_the_shared_ones_behind_it_in() {
        let mut locks = Fixture::default();
        locks.request(1, "a", Shared);
        locks.request(1, "a", Exclusive);
        locks.request(1, "a", Shared);
        assert_eq!(locks.effects(|l, e| assert!(l.abort(1, e))), [Aborted(1), Granted(2)]);
        assert_eq!(locks.effects(|l, e| assert!(!l.abort(1, e))), []);
        assert_eq!(locks.effects(|l, e| assert!(!l.abort(2, e))), [], "a granted request is past aborting");
    }

    #[test]
    fn a_steal_breaks_all_held_locks_of_the_name_and_goes_before_the_queue() {
        let mut locks = Fixture::default();
        locks.request(1, "a", Shared);
        locks.request(1, "b", Exclusive);
        locks.request(2, "a", Shared);
        locks.request(3, "a", Exclusive);
        assert_eq!(
            locks.request_with(4, "a", Exclusive, false, true),
            Ok(vec![Broken(0, Cause::Stolen), Broken(2, Cause::Stolen), Granted(4)])
        );
        assert_eq!(
            locks.effects(|l, e| assert!(!l.release(0, e))),
            [],
            "a stolen lock has nothing to release"
        );
        assert_eq!(locks.effects(|l, e| assert!(l.release(4, e))), [Granted(3)]);
    }

    #[test]
    fn a_request_that_is_not_available_is_not_queued() {
        let mut locks = Fixture::default();
        locks.request(1, "a", Shared);
        assert_eq!(locks.request_with(2, "a", Exclusive, true, false), Ok(vec![Unavailable(1)]));
        assert_eq!(locks.0.snapshot().pending, []);
        assert_eq!(locks.request_with(2, "a", Shared, true, false), Ok(vec![Granted(2)]));
        assert_eq!(locks.request(2, "a", Exclusive), [Queued(3)]);
        assert_eq!(
            locks.request_with(2, "a", Shared, true, false),
            Ok(vec![Unavailable(4)]),
            "it would have to wait behind the exclusive request"
        );
    }

    #[test]
    fn an_agents_end_aborts_its_requests_then_releases_its_locks() {
        let mut locks = Fixture::default();
        locks.request(1, "b", Exclusive); // 0
        locks.request(2, "a", Shared); // 1
        locks.request(1, "a", Exclusive); // 2
        locks.request(1, "a", Shared); // 3: granted by the abort of 2, so a lock when it ends
        locks.request(2, "b", Exclusive); // 4
        assert_eq!(
            locks.effects(|l, e| l.client_gone(1, e)),
            [Aborted(2), Granted(3), Broken(0, Cause::Lost), Granted(4), Broken(3, Cause::Lost)]
        );
        assert_eq!(locks.effects(|l, e| l.client_gone(1, e)), []);
    }

    #[test]
    fn a_forced_release_breaks_the_held_locks_and_lets_the_queue_in() {
        let mut locks = Fixture::default();
        locks.request(1, "a", Shared);
        locks.request(1, "a", Shared);
        locks.request(2, "a", Exclusive);
        assert_eq!(
            locks.effects(|l, e| l.force_release(b"a", e)),
            [Broken(0, Cause::Stolen), Broken(1, Cause::Stolen), Granted(2)]
        );
        assert_eq!(locks.effects(|l, e| l.force_release(b"none", e)), []);
    }

    #[test]
    fn a_refused_request_takes_no_number() {
        let mut locks = Fixture::default();
        assert_eq!(locks.request_with(1, "-a", Shared, true, true), Err(Refusal::ReservedName));
        assert_eq!(locks.request_with(1, "a", Exclusive, true, true), Err(Refusal::Unsupported));
        assert_eq!(locks.request_with(1, "a", Shared, false, true), Err(Refusal::Unsupported));
        assert_eq!(locks.request(1, "", Exclusive), [Granted(0)], "the empty name is a name");
    }

    #[test]
    fn a_snapshot_lists_locks_and_requests_by_arrival() {
        let mut locks = Fixture::default();
        locks.request(1, "b", Exclusive);
        locks.request(2, "a", Shared);
        locks.request(3, "b", Shared);
        locks.request(4, "a", Exclusive);
        let info =
            |name: &str, mode, client, serial| Info { name: name.as_bytes().to_vec(), mode, client, serial };
        assert_eq!(
            locks.0.snapshot(),
            Snapshot {
                held: vec![info("b", Exclusive, 1, 0), info("a", Shared, 2, 1)],
                pending: vec![info("b", Shared, 3, 2), info("a", Exclusive, 4, 3)],
            }
        );
    }
}
