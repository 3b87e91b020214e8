//! The rule for scopes: requests of one or more names, each name in its own mode, taken together or
//! not at all.
//!
//! The explainer pictures one ordered list of held and requested locks, and the second sketch says
//! when a request of that list is *grantable*. Both come down to one sentence: *a request is held
//! if and only if, for every name it asks for, no earlier live request conflicts.* This model keeps
//! the list and evaluates the sentence anew after every change.
//!
//! The Working Draft's options, which are younger than scopes, mean here what they mean there for
//! one name. Unlike in the draft, a request need not be first in any queue: it passes those waiting
//! that it has no conflict with.

use std::collections::BTreeMap;

use crate::{Cause, Client, Effect, Info, Mode, Refusal, Serial, Snapshot};

/// A lock manager whose requests are scopes.
#[derive(Clone, Debug, Default)]
pub struct Scoped {
    /// The live requests, held or waiting. New ones go to the end, steals to the front. A steal
    /// never waits, so waiting requests are in the order of arrival.
    live: Vec<Request>,
    /// The number of the next accepted request.
    next_serial: Serial,
    /// How many requests were granted so far.
    grants: u64,
}

#[derive(Clone, Debug)]
struct Request {
    serial: Serial,
    client: Client,
    scope: BTreeMap<Vec<u8>, Mode>,
    state: RequestState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    Waiting,
    /// The number orders the held requests as the draft's held lock set is ordered: by when each
    /// was granted.
    Held(u64),
}

impl Scoped {
    /// A lock manager without locks or requests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for every name of the scope at once. A name that occurs twice counts once, and
    /// exclusive wins.
    pub fn request(
        &mut self,
        client: Client,
        scope: &[(Vec<u8>, Mode)],
        if_available: bool,
        steal: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<Serial, Refusal> {
        // Sketch 000, requestLock step 2
        if scope.is_empty() {
            return Err(Refusal::EmptyScope);
        }
        // §3.2.1 step 5
        if scope.iter().any(|(name, _)| name.starts_with(b"-")) {
            return Err(Refusal::ReservedName);
        }
        // §3.2.1 step 6
        if steal && if_available {
            return Err(Refusal::Unsupported);
        }
        // §3.2.1 step 7, of the scope as it was given
        if steal && scope.iter().any(|(_, mode)| *mode != Mode::Exclusive) {
            return Err(Refusal::Unsupported);
        }

        // Sketch 000, requestLock step 1
        let scope = merge(scope);
        let serial = self.next_serial;
        self.next_serial += 1;
        let request = Request { serial, client, scope, state: RequestState::Waiting };
        if steal {
            let names: Vec<Vec<u8>> = request.scope.keys().cloned().collect();
            self.break_held(&names, effects);
            // In front, the steal is also the first to be considered: it is granted before all
            // requests that the victims' other names make grantable.
            self.live.insert(0, request);
            self.evaluate(effects);
            return Ok(serial);
        }
        if if_available && !grantable(&request, &self.live) {
            effects.push(Effect::Unavailable(serial));
            return Ok(serial);
        }
        self.live.push(request);
        self.evaluate(effects);
        if self.is_waiting(serial) {
            effects.push(Effect::Queued(serial));
        }
        Ok(serial)
    }

    /// Ends a held request. Returns whether there was one of this number.
    pub fn release(&mut self, serial: Serial, effects: &mut Vec<Effect>) -> bool {
        if !self.is_held(serial) {
            return false;
        }
        self.remove(serial);
        self.evaluate(effects);
        true
    }

    /// Ends a waiting request; a granted one is past aborting. Returns whether there was one of
    /// this number.
    pub fn abort(&mut self, serial: Serial, effects: &mut Vec<Effect>) -> bool {
        if !self.is_waiting(serial) {
            return false;
        }
        effects.push(Effect::Aborted(serial));
        self.remove(serial);
        self.evaluate(effects);
        true
    }

    /// §2.6: aborts the client's requests, then releases its locks, each in the order of arrival.
    pub fn client_gone(&mut self, client: Client, effects: &mut Vec<Effect>) {
        // §2.6 step 1
        for serial in self.serials_of(client) {
            // §2.6 step 1.1. What is held, also since an earlier abort let it in, `abort` leaves to
            // step 2.
            self.abort(serial, effects);
        }
        // §2.6 step 2
        for serial in self.serials_of(client) {
            effects.push(Effect::Broken(serial, Cause::Lost));
            // §2.6 step 2.1
            self.release(serial, effects);
        }
    }

    /// The proto-spec's `forceRelease(name)`: breaks every held request that has the name, as a
    /// steal would, without a thief to come first.
    pub fn force_release(&mut self, name: &[u8], effects: &mut Vec<Effect>) {
        self.break_held(&[name.to_vec()], effects);
        self.evaluate(effects);
    }

    /// §4.5: the held and the waiting requests.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot { held: Vec::new(), pending: Vec::new() };
        let mut by_arrival: Vec<&Request> = self.live.iter().collect();
        by_arrival.sort_by_key(|request| request.serial);
        for Request { serial, client, scope, state } in by_arrival {
            for (name, mode) in scope {
                let info = Info { name: name.clone(), mode: *mode, client: *client, serial: *serial };
                match state {
                    RequestState::Held(_) => snapshot.held.push(info),
                    RequestState::Waiting => snapshot.pending.push(info),
                }
            }
        }
        snapshot
    }

    /// The live requests that a waiting request waits for: every earlier one that conflicts.
    pub fn waits_for(&self, serial: Serial) -> Vec<Serial> {
        let Some(index) = self.live.iter().position(|request| request.serial == serial) else {
            return Vec::new();
        };
        let (earlier, rest) = self.live.split_at(index);
        earlier.iter().filter(|other| conflict(&rest[0], other)).map(|other| other.serial).collect()
    }

    /// Grants what the rule allows. One pass over the list is enough: a request blocks later ones
    /// whether it is held or waits, so no grant makes another possible.
    fn evaluate(&mut self, effects: &mut Vec<Effect>) {
        for index in 0..self.live.len() {
            let (earlier, rest) = self.live.split_at_mut(index);
            let request = &mut rest[0];
            if request.state == RequestState::Waiting && grantable(request, earlier) {
                request.state = RequestState::Held(self.grants);
                self.grants += 1;
                effects.push(Effect::Granted(request.serial));
            }
        }
    }

    /// Breaks, whole, each held request that has one of the names (§4.1 step 3.4.1), in the order
    /// of the held lock set. A waiting request holds nothing that could be taken from it, and
    /// stays.
    fn break_held(&mut self, names: &[Vec<u8>], effects: &mut Vec<Effect>) {
        let mut victims: Vec<(u64, Serial)> = Vec::new();
        for request in &self.live {
            if let RequestState::Held(grant) = request.state
                && names.iter().any(|name| request.scope.contains_key(name))
            {
                victims.push((grant, request.serial));
            }
        }
        victims.sort();
        for (_, serial) in victims {
            effects.push(Effect::Broken(serial, Cause::Stolen));
            self.remove(serial);
        }
    }

    fn remove(&mut self, serial: Serial) {
        self.live.retain(|request| request.serial != serial);
    }

    fn is_waiting(&self, serial: Serial) -> bool {
        self.live.iter().any(|request| request.serial == serial && request.state == RequestState::Waiting)
    }

    fn is_held(&self, serial: Serial) -> bool {
        self.live.iter().any(|request| request.serial == serial && request.state != RequestState::Waiting)
    }

    /// The client's live requests in the order of arrival.
    fn serials_of(&self, client: Client) -> Vec<Serial> {
        let mut serials: Vec<Serial> = self
            .live
            .iter()
            .filter(|request| request.client == client)
            .map(|request| request.serial)
            .collect();
        serials.sort();
        serials
    }
}

/// The rule: no earlier live request, held or waiting, conflicts.
fn grantable(request: &Request, earlier: &[Request]) -> bool {
    !earlier.iter().any(|other| conflict(request, other))
}

/// Two requests conflict if there is a name that both ask for, unless both ask for it as shared.
fn conflict(one: &Request, other: &Request) -> bool {
    one.scope.iter().any(|(name, mode)| match other.scope.get(name) {
        None => false,
        Some(other_mode) => !(*mode == Mode::Shared && *other_mode == Mode::Shared),
    })
}

/// The set of unique names (sketch 000, requestLock step 1), each with the stronger of the modes
/// given for it.
fn merge(scope: &[(Vec<u8>, Mode)]) -> BTreeMap<Vec<u8>, Mode> {
    let mut merged = BTreeMap::new();
    for (name, mode) in scope {
        let kept = merged.entry(name.clone()).or_insert(*mode);
        if *mode == Mode::Exclusive {
            *kept = Mode::Exclusive;
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use Effect::{Aborted, Broken, Granted, Queued, Unavailable};
    use Mode::{Exclusive, Shared};

    /// A manager with its effects: each call returns only what it caused itself.
    #[derive(Default)]
    struct Fixture(Scoped);

    impl Fixture {
        fn request(&mut self, client: Client, scope: &[(&str, Mode)]) -> Vec<Effect> {
            self.request_with(client, scope, false, false).expect("an ordinary request is accepted")
        }

        fn request_with(
            &mut self,
            client: Client,
            scope: &[(&str, Mode)],
            if_available: bool,
            steal: bool,
        ) -> Result<Vec<Effect>, Refusal> {
            let scope: Vec<_> = scope.iter().map(|(name, mode)| (name.as_bytes().to_vec(), *mode)).collect();
            let mut effects = Vec::new();
            self.0.request(client, &scope, if_available, steal, &mut effects)?;
            Ok(effects)
        }

        fn effects(&mut self, operation: impl FnOnce(&mut Scoped, &mut Vec<Effect>)) -> Vec<Effect> {
            let mut effects = Vec::new();
            operation(&mut self.0, &mut effects);
            effects
        }
    }

    #[test]
    fn the_explainers_worked_example() {
        let mut locks = Fixture::default();
        // The explainer counts from #1; a dummy takes number 0 so that the numbers below are its
        // own.
        locks.request(0, &[("unrelated", Exclusive)]);
        assert_eq!(locks.request(1, &[("a", Exclusive)]), [Granted(1)]);
        assert_eq!(locks.request(1, &[("b", Shared)]), [Granted(2)]);
        assert_eq!(locks.request(2, &[("b", Shared)]), [Granted(3)], "#2 is shared on 'b' too");
        assert_eq!(locks.request(2, &[("a", Exclusive), ("b", Exclusive)]), [Queued(4)]);
        assert_eq!(locks.request(2, &[("b", Shared)]), [Queued(5)], "#4 arrived before and overlaps");
        assert_eq!(locks.request(2, &[("c", Exclusive)]), [Granted(6)], "nothing overlaps");
        // "It must wait for all of locks #1, #2 and #3 to be released before it can be granted."
        assert_eq!(locks.effects(|l, e| assert!(l.release(3, e))), []);
        assert_eq!(locks.effects(|l, e| assert!(l.release(1, e))), []);
        assert_eq!(locks.effects(|l, e| assert!(l.release(2, e))), [Granted(4)]);
        // "It is blocked until #4 is granted then released."
        assert_eq!(locks.effects(|l, e| assert!(l.release(4, e))), [Granted(5)]);
    }

    #[test]
    fn an_aborted_scope_lets_in_what_waited_for_it_on_any_of_its_names() {
        let mut locks = Fixture::default();
        locks.request(1, &[("a", Exclusive)]);
        assert_eq!(locks.request(1, &[("a", Exclusive), ("b", Exclusive), ("c", Exclusive)]), [Queued(1)]);
        assert_eq!(locks.request(1, &[("c", Exclusive)]), [Queued(2)]);
        assert_eq!(locks.request(1, &[("b", Exclusive)]), [Queued(3)]);
        assert_eq!(locks.effects(|l, e| assert!(l.abort(1, e))), [Aborted(1), Granted(2), Granted(3)]);
        assert_eq!(locks.effects(|l, e| assert!(!l.abort(2, e))), [], "a granted request is past aborting");
    }

    #[test]
    fn a_shared_request_passes_a_waiting_scope_that_is_shared_on_that_name() {
        let mut locks = Fixture::default();
        locks.request(1, &[("a", Exclusive)]);
        assert_eq!(locks.request(1, &[("a", Exclusive), ("b", Shared)]), [Queued(1)]);
        assert_eq!(locks.request(1, &[("b", Shared)]), [Granted(2)]);
        assert_eq!(locks.request(1, &[("b", Exclusive)]), [Queued(3)]);
        assert_eq!(locks.effects(|l, e| assert!(l.release(0, e))), [Granted(1)]);
    }

    #[test]
    fn a_steal_breaks_its_victims_whole_and_their_other_names_let_others_in() {
        let mut locks = Fixture::default();
        locks.request(1, &[("x", Exclusive)]); // 0
        locks.request(1, &[("a", Shared), ("x", Shared)]); // 1: waits, so it joins the held lock set after 2
        locks.request(1, &[("a", Shared), ("b", Exclusive)]); // 2
        assert_eq!(locks.effects(|l, e| assert!(l.release(0, e))), [Granted(1)]);
        locks.request(2, &[("b", Exclusive)]); // 3
        locks.request(2, &[("x", Exclusive)]); // 4
        locks.request(2, &[("a", Exclusive), ("y", Exclusive)]); // 5: a waiting scope is never broken
        assert_eq!(
            locks.request_with(3, &[("a", Exclusive)], false, true),
            Ok(vec![Broken(2, Cause::Stolen), Broken(1, Cause::Stolen), Granted(6), Granted(3), Granted(4)])
        );
        assert_eq!(locks.effects(|l, e| assert!(l.release(6, e))), [Granted(5)]);
    }

    #[test]
    fn a_thief_goes_before_a_waiting_scope_that_was_there_first() {
        let mut locks = Fixture::default();
        locks.request(1, &[("a", Exclusive)]);
        assert_eq!(locks.request(2, &[("a", Exclusive), ("b", Exclusive)]), [Queued(1)]);
        assert_eq!(locks.request_with(3, &[("b", Exclusive)], false, true), Ok(vec![Granted(2)]));
        assert_eq!(locks.effects(|l, e| assert!(l.release(0, e))), [], "the thief has 'b'");
        assert_eq!(locks.effects(|l, e| assert!(l.release(2, e))), [Granted(1)]);
    }

    #[test]
    fn an_unavailable_scope_takes_none_of_its_names() {
        let mut locks = Fixture::default();
        locks.request(1, &[("a", Exclusive)]);
        let both = [("a", Exclusive), ("b", Exclusive)];
        assert_eq!(locks.request_with(1, &both, true, false), Ok(vec![Unavailable(1)]));
        assert_eq!(locks.request(1, &[("b", Exclusive)]), [Granted(2)]);
    }

    #[test]
    fn a_clients_end_aborts_its_requests_then_breaks_its_locks() {
        let mut locks = Fixture::default();
        locks.request(2, &[("a", Exclusive)]); // 0
        locks.request(1, &[("c", Exclusive)]); // 1
        locks.request(1, &[("a", Shared), ("b", Exclusive)]); // 2
        locks.request(1, &[("b", Exclusive)]); // 3: let in by the abort of 2
        locks.request(2, &[("b", Shared), ("c", Shared)]); // 4
        assert_eq!(
            locks.effects(|l, e| l.client_gone(1, e)),
            [Aborted(2), Granted(3), Broken(1, Cause::Lost), Broken(3, Cause::Lost), Granted(4)]
        );
    }

    #[test]
    fn a_forced_release_breaks_whole_scopes_and_lets_others_in_by_arrival() {
        let mut locks = Fixture::default();
        locks.request(1, &[("a", Shared), ("b", Exclusive)]);
        locks.request(1, &[("a", Shared)]);
        locks.request(2, &[("b", Exclusive)]);
        locks.request(2, &[("a", Exclusive)]);
        assert_eq!(
            locks.effects(|l, e| l.force_release(b"a", e)),
            [Broken(0, Cause::Stolen), Broken(1, Cause::Stolen), Granted(2), Granted(3)]
        );
    }

    #[test]
    fn of_a_name_given_twice_exclusive_wins() {
        let mut locks = Fixture::default();
        locks.request(1, &[("b", Shared), ("a", Exclusive), ("a", Shared)]);
        let info = |name: &str, mode| Info { name: name.as_bytes().to_vec(), mode, client: 1, serial: 0 };
        assert_eq!(locks.0.snapshot().held, [info("a", Exclusive), info("b", Shared)]);
    }

    #[test]
    fn refusals_are_checked_in_the_drafts_order_and_take_no_number() {
        let mut locks = Fixture::default();
        assert_eq!(locks.request_with(1, &[], true, true), Err(Refusal::EmptyScope));
        assert_eq!(
            locks.request_with(1, &[("a", Shared), ("-b", Shared)], true, true),
            Err(Refusal::ReservedName)
        );
        assert_eq!(locks.request_with(1, &[("a", Exclusive)], true, true), Err(Refusal::Unsupported));
        let mixed = [("a", Exclusive), ("b", Shared)];
        assert_eq!(locks.request_with(1, &mixed, false, true), Err(Refusal::Unsupported));
        assert_eq!(locks.request(1, &mixed), [Granted(0)]);
    }
}
