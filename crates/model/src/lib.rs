//! The oracle: two naive models of a lock manager, to be compared with the engine step by step.
//!
//! [`draft`] is the Working Draft to the letter, one name per request. [`scopes`] is the older
//! sketches' rule for requests of several names. Where both apply they must agree, and this crate's
//! tests hold them to it.
//!
//! The models exist to be obviously right. They use plain lists and linear scans, share no code
//! with the engine or with each other beyond the vocabulary below, and never trade clarity for
//! speed.
//!
//! What a browser would do with promises, callbacks and event loops appears here as a list of
//! [`Effect`]s, in the order in which the specification's steps cause them.

pub mod draft;
pub mod driver;
pub mod scopes;

/// §2.3: how a name is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Tolerates no other lock of the name.
    Exclusive,
    /// Tolerates other shared locks of the name.
    Shared,
}

/// The number of a request: 0, 1, 2… in order of arrival.
///
/// Every accepted call of `request` counts, also one that ends as [`Effect::Unavailable`]. A
/// refused call does not. The lock keeps the number of the request that it was granted to.
pub type Serial = u64;

/// The agent that a request belongs to (§2.4); it stands for the draft's *agent* and its *clientId*
/// at once.
pub type Client = u32;

/// Why a held lock was taken from its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// By a request with `steal`, or by `forceRelease`.
    Stolen,
    /// By the end of the client that held it.
    Lost,
}

/// What an operation makes known to the client of a request.
///
/// Every accepted call of `request` causes exactly one of `Queued`, `Granted` and `Unavailable` for
/// the new request itself, among the effects that it has on others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The new request waits.
    Queued(Serial),
    /// The request became a held lock, at once or after waiting.
    Granted(Serial),
    /// The new request was made with `ifAvailable`, would have had to wait, and left no trace.
    Unavailable(Serial),
    /// The waiting request was removed.
    Aborted(Serial),
    /// The held lock ended without its holder releasing it.
    Broken(Serial, Cause),
}

/// Why a call of `request` was not accepted. Such a call changes nothing and has no effects.
///
/// The variants stand in the order in which the conditions are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The scope has no names (sketch 000, `requestLock` step 2).
    EmptyScope,
    /// A name starts with U+002D HYPHEN-MINUS (§3.2.1 step 5).
    ReservedName,
    /// `steal` together with `ifAvailable`, or with a mode other than exclusive (§3.2.1 steps 6 and
    /// 7).
    Unsupported,
}

/// One entry of a [`Snapshot`]: one name of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The resource name.
    pub name: Vec<u8>,
    /// The mode in which the request asks for this name.
    pub mode: Mode,
    /// The client that made the request.
    pub client: Client,
    /// The request's number.
    pub serial: Serial,
}

/// §4.5: the state of a lock manager.
///
/// Both lists are sorted by arrival. A scope shows once per name, its names in the order of their
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The locks that are held.
    pub held: Vec<Info>,
    /// The requests that wait.
    pub pending: Vec<Info>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Client, Effect, Info, Mode, Serial, Snapshot, draft::LockManager, scopes::Scoped};

    const CLIENTS: [Client; 3] = [1, 2, 3];
    const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

    #[test]
    fn for_single_names_the_draft_and_the_rule_of_scopes_agree_in_every_step() {
        let names: [&[u8]; 3] = [b"a", b"", b"\xed\xa0\x80"];
        let mut seen = Seen::default();
        for seed in 1..=20 {
            let mut random = Xorshift(seed);
            let (mut draft, mut scoped) = (LockManager::new(), Scoped::new());
            for step in 0..5_000 {
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                let before = draft.snapshot();
                let serial = random.serial(&before);
                let client = random.pick(&CLIENTS);
                let name = random.pick(&names);
                match random.below(100) {
                    0..50 => {
                        let name = if random.below(50) == 0 { b"-reserved" } else { name };
                        let mode = random.pick(&MODES);
                        let (if_available, steal) = (random.below(5) == 0, random.below(12) == 0);
                        assert_eq!(
                            draft.request(client, name, mode, if_available, steal, &mut ours),
                            scoped.request(
                                client,
                                &[(name.to_vec(), mode)],
                                if_available,
                                steal,
                                &mut theirs
                            ),
                            "seed {seed}, step {step}"
                        );
                    }
                    50..80 => assert_eq!(
                        draft.release(serial, &mut ours),
                        scoped.release(serial, &mut theirs),
                        "seed {seed}, step {step}: release {serial}"
                    ),
                    80..95 => assert_eq!(
                        draft.abort(serial, &mut ours),
                        scoped.abort(serial, &mut theirs),
                        "seed {seed}, step {step}: abort {serial}"
                    ),
                    95..98 => {
                        draft.client_gone(client, &mut ours);
                        scoped.client_gone(client, &mut theirs);
                    }
                    _ => {
                        draft.force_release(name, &mut ours);
                        scoped.force_release(name, &mut theirs);
                    }
                }
                assert_eq!(ours, theirs, "seed {seed}, step {step}");
                assert_eq!(draft.snapshot(), scoped.snapshot(), "seed {seed}, step {step}");
                seen.check(&before, &ours, &draft.snapshot());
            }
        }
        seen.enough_of_everything();
    }

    #[test]
    fn for_scopes_nothing_grantable_waits_and_nothing_held_conflicts() {
        let names: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
        let mut seen = Seen::default();
        for seed in 1..=20 {
            let mut random = Xorshift(seed);
            let mut scoped = Scoped::new();
            for _ in 0..5_000 {
                let mut effects = Vec::new();
                let before = scoped.snapshot();
                let serial = random.serial(&before);
                let client = random.pick(&CLIENTS);
                match random.below(100) {
                    0..50 => {
                        let (if_available, steal) = (random.below(5) == 0, random.below(12) == 0);
                        let mut scope = Vec::new();
                        for _ in 0..random.below(4) {
                            let mode = if steal { Mode::Exclusive } else { random.pick(&MODES) };
                            scope.push((random.pick(&names).to_vec(), mode));
                        }
                        let result = scoped.request(client, &scope, if_available, steal, &mut effects);
                        assert_eq!(result.is_err(), scope.is_empty() || steal && if_available);
                    }
                    50..80 => {
                        let held = before.held.iter().any(|info| info.serial == serial);
                        assert_eq!(scoped.release(serial, &mut effects), held);
                    }
                    80..95 => {
                        let waiting = before.pending.iter().any(|info| info.serial == serial);
                        assert_eq!(scoped.abort(serial, &mut effects), waiting);
                    }
                    95..98 => {
                        scoped.client_gone(client, &mut effects);
                        let after = scoped.snapshot();
                        assert!(after.held.iter().chain(&after.pending).all(|info| info.client != client));
                    }
                    _ => scoped.force_release(random.pick(&names), &mut effects),
                }
                seen.check(&before, &effects, &scoped.snapshot());
            }
        }
        seen.enough_of_everything();
    }

    /// Checks what holds after every step, and counts what happened so that a test cannot pass
    /// idle.
    #[derive(Default)]
    struct Seen {
        queued: usize,
        granted_later: usize,
        unavailable: usize,
        aborted: usize,
        broken: usize,
    }

    impl Seen {
        fn check(&mut self, before: &Snapshot, effects: &[Effect], after: &Snapshot) {
            let was_held = |serial: &Serial| before.held.iter().any(|info| info.serial == *serial);
            let was_pending = |serial: &Serial| before.pending.iter().any(|info| info.serial == *serial);
            let is_held = |serial: &Serial| after.held.iter().any(|info| info.serial == *serial);
            let is_pending = |serial: &Serial| after.pending.iter().any(|info| info.serial == *serial);
            for (index, effect) in effects.iter().enumerate() {
                // What was granted may be broken later in the same step, by the end of its client.
                let broken_later = |serial: &Serial| {
                    effects[index..].iter().any(|later| matches!(later, Effect::Broken(s, _) if s == serial))
                };
                match effect {
                    Effect::Queued(serial) => {
                        self.queued += 1;
                        assert!(!was_pending(serial) && is_pending(serial));
                    }
                    Effect::Granted(serial) => {
                        self.granted_later += usize::from(was_pending(serial));
                        assert!(!was_held(serial) && (is_held(serial) || broken_later(serial)));
                    }
                    Effect::Unavailable(serial) => {
                        self.unavailable += 1;
                        assert!(!is_held(serial) && !is_pending(serial));
                        assert_eq!((effects.len(), before), (1, after), "nothing changes");
                    }
                    Effect::Aborted(serial) => {
                        self.aborted += 1;
                        assert!(was_pending(serial) && !is_pending(serial) && !is_held(serial));
                    }
                    Effect::Broken(serial, _) => {
                        self.broken += 1;
                        let granted_before = effects[..index].contains(&Effect::Granted(*serial));
                        assert!(
                            (was_held(serial) || granted_before) && !is_held(serial) && !is_pending(serial)
                        );
                    }
                }
            }

            // Sketch 000, grantable, steps 5 and 6, without the order of any list but that of
            // arrival.
            let (held, pending) = (by_serial(&after.held), by_serial(&after.pending));
            for (serial, scope) in &held {
                assert!(held.range(serial + 1..).all(|(_, other)| !conflict(scope, other)), "{after:?}");
            }
            for (serial, scope) in &pending {
                let held_in_the_way = held.values().any(|other| conflict(scope, other));
                let earlier_in_the_way = pending.range(..serial).any(|(_, other)| conflict(scope, other));
                assert!(held_in_the_way || earlier_in_the_way, "{serial} is grantable in {after:?}");
            }
        }

        fn enough_of_everything(&self) {
            let Self { queued, granted_later, unavailable, aborted, broken } = *self;
            for count in [queued, granted_later, unavailable, aborted, broken] {
                assert!(count > 1_000, "the sequences exercise too little: {count}");
            }
        }
    }

    fn by_serial(infos: &[Info]) -> BTreeMap<Serial, Vec<&Info>> {
        let mut scopes: BTreeMap<Serial, Vec<&Info>> = BTreeMap::new();
        for info in infos {
            scopes.entry(info.serial).or_default().push(info);
        }
        scopes
    }

    fn conflict(one: &[&Info], other: &[&Info]) -> bool {
        one.iter().any(|a| {
            other.iter().any(|b| a.name == b.name && (a.mode == Mode::Exclusive || b.mode == Mode::Exclusive))
        })
    }

    struct Xorshift(u64);

    impl Xorshift {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        /// The low bits of the first numbers of a small seed are poor, hence the high ones.
        fn below(&mut self, bound: u64) -> u64 {
            (self.next() >> 32) % bound
        }

        fn pick<T: Copy>(&mut self, items: &[T]) -> T {
            let index = self.below(items.len() as u64);
            items[usize::try_from(index).expect("an index below a length is a usize")]
        }

        /// Mostly a live request, sometimes any number that there was or will be.
        fn serial(&mut self, state: &Snapshot) -> Serial {
            let live: Vec<Serial> = state.held.iter().chain(&state.pending).map(|info| info.serial).collect();
            let newest = live.iter().max().copied().unwrap_or(0);
            if live.is_empty() || self.below(8) == 0 { self.below(newest + 3) } else { self.pick(&live) }
        }
    }
}
