//! Drives the engine and the models with one sequence of operations and compares them after every
//! step.
//!
//! The sequence is read from a stream of bytes: a random one in the tests, libFuzzer's in the fuzz
//! target. Compared are effects and their order, return values, refusals, snapshots, fencing tokens
//! (which must grow), and deadlock reports against a naive search of the whole graph. The engine's
//! own audit runs each time.

use crate::{
    Cause, Client, Effect, Info, Mode, Refusal, Serial, Snapshot, draft::LockManager, scopes::Scoped,
};
use lockkeeper_core::{
    self as engine, ClientId, Manager, Options, Outcome, RequestError, RequestId, Token, WaitsFor,
};
use std::collections::{BTreeMap, BTreeSet};

/// A name for each kind that the engine could treat differently: short, empty, exactly as long as
/// is kept inline, longer, a lone surrogate, and one that is reserved.
const NAMES: [&[u8]; 6] = [
    b"a",
    b"",
    b"exactly-24-bytes-of-name",
    b"a name that is too long to be kept without an allocation",
    b"\xed\xa0\x80",
    b"-reserved",
];
const CLIENTS: usize = 4;
/// Live requests are kept to about this number: more would only make each step slower.
const LIVE: usize = 16;

/// What a run did, so that a test can show that it was not idle.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Steps taken.
    pub steps: u64,
    /// Effects by kind.
    pub effects: BTreeMap<&'static str, u64>,
    /// Requests refused, by why.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Cycles reported.
    pub deadlocks: u64,
}

impl Seen {
    fn count(&mut self, effects: &[Effect]) {
        for effect in effects {
            let kind = match effect {
                Effect::Queued(_) => "queued",
                Effect::Granted(_) => "granted",
                Effect::Unavailable(_) => "unavailable",
                Effect::Aborted(_) => "aborted",
                Effect::Broken(_, Cause::Stolen) => "stolen",
                Effect::Broken(_, Cause::Lost) => "lost",
            };
            *self.effects.entry(kind).or_default() += 1;
        }
    }
}

/// Runs the sequence that `bytes` spells, to its end.
///
/// With `draft`, scopes have one name, and the Working Draft's model is compared too.
///
/// # Panics
///
/// If the engine and a model differ, or the engine's audit fails.
pub fn run(bytes: impl IntoIterator<Item = u8>, draft: bool, seen: &mut Seen) {
    let mut bytes = bytes.into_iter();
    let mut driver = Driver::new(draft);
    while driver.step(&mut bytes, seen).is_some() {
        seen.steps += 1;
    }
}

struct Driver {
    engine: Manager<Serial>,
    scoped: Scoped,
    draft: Option<LockManager>,
    clients: [(ClientId, Client); CLIENTS],
    next_client: Client,
    next_serial: Serial,
    /// The latest requests, live or not, so that stale ids are used too.
    recent: Vec<RequestId>,
    serials: BTreeMap<RequestId, Serial>,
    /// For each nested request that lives: the one it was declared to be within.
    outer: BTreeMap<Serial, Serial>,
    last_token: Option<Token>,
}

impl Driver {
    fn new(draft: bool) -> Self {
        let mut engine = Manager::default();
        let clients = [0, 1, 2, 3].map(|client| (engine.client().expect("within limits"), client));
        Self {
            engine,
            scoped: Scoped::new(),
            draft: draft.then(LockManager::new),
            clients,
            next_client: 4,
            next_serial: 0,
            recent: Vec::new(),
            serials: BTreeMap::new(),
            outer: BTreeMap::new(),
            last_token: None,
        }
    }

    /// `None` when the bytes are used up.
    fn step(&mut self, bytes: &mut impl Iterator<Item = u8>, seen: &mut Seen) -> Option<()> {
        let mut effects = Vec::new();
        let mut expected = Vec::new();
        let mut by_draft = Vec::new();
        let mut own = None;
        let crowded = self.engine.requests().count() > LIVE;
        match bytes.next()? % 32 {
            0..14 if !crowded => {
                own = self.request(bytes, &mut effects, &mut expected, &mut by_draft, seen)?;
            }
            0..22 => {
                let (id, serial) = self.pick(bytes)?;
                let released = self.engine.release(id, &mut effects);
                assert_eq!(released.is_some(), self.scoped.release(serial, &mut expected));
                assert!(released.is_none_or(|data| data == serial), "the host's data comes back");
                if let Some(draft) = &mut self.draft {
                    assert_eq!(released.is_some(), draft.release(serial, &mut by_draft));
                }
            }
            22..29 => {
                let (id, serial) = self.pick(bytes)?;
                let aborted = self.engine.abort(id, &mut effects);
                assert_eq!(aborted, self.scoped.abort(serial, &mut expected));
                if let Some(draft) = &mut self.draft {
                    assert_eq!(aborted, draft.abort(serial, &mut by_draft));
                }
            }
            29..31 => {
                let name = NAMES[usize::from(bytes.next()?) % NAMES.len()];
                self.engine.force_release(name, &mut effects);
                self.scoped.force_release(name, &mut expected);
                if let Some(draft) = &mut self.draft {
                    draft.force_release(name, &mut by_draft);
                }
            }
            _ => {
                let at = usize::from(bytes.next()?) % CLIENTS;
                let (id, client) = self.clients[at];
                assert!(self.engine.client_gone(id, &mut effects));
                assert!(!self.engine.client_gone(id, &mut effects), "a client is gone once");
                self.scoped.client_gone(client, &mut expected);
                if let Some(draft) = &mut self.draft {
                    draft.client_gone(client, &mut by_draft);
                }
                self.clients[at] = (self.engine.client().expect("within limits"), self.next_client);
                self.next_client += 1;
            }
        }
        // Requests that a steal breaks come before its own grant, those granted as a consequence
        // after it.
        let broken = effects.iter().take_while(|effect| matches!(effect, engine::Effect::Broken { .. }));
        let before_own = broken.count();
        let mut effects = self.translate(effects);
        if let Some(own) = own {
            effects.insert(before_own, own);
        }
        seen.count(&effects);
        assert_eq!(effects, expected, "engine and rule of scopes");
        let snapshot = self.snapshot();
        assert_eq!(snapshot, self.scoped.snapshot(), "engine and rule of scopes");
        if let Some(draft) = &self.draft {
            assert_eq!(effects, by_draft, "engine and Working Draft");
            assert_eq!(snapshot, draft.snapshot(), "engine and Working Draft");
        }
        self.engine.audit();
        self.compare_queues(&snapshot);
        self.forget_dead(&snapshot);
        // The naive search of the graph costs more than all the rest.
        if seen.steps.is_multiple_of(4) {
            self.compare_deadlocks(seen);
        }
        Some(())
    }

    /// Gives what became of the request itself, unless it was refused.
    fn request(
        &mut self,
        bytes: &mut impl Iterator<Item = u8>,
        effects: &mut Vec<engine::Effect<Serial>>,
        expected: &mut Vec<Effect>,
        by_draft: &mut Vec<Effect>,
        seen: &mut Seen,
    ) -> Option<Option<Effect>> {
        let (id, client) = self.clients[usize::from(bytes.next()?) % CLIENTS];
        let flags = bytes.next()?;
        let steal = flags % 16 == 0;
        let if_available = flags % 5 == 0;
        let refuse_deadlock = flags % 3 == 0;
        let nested_in = if flags % 2 == 0 { None } else { self.pick(bytes) };
        let mut scope = Vec::new();
        let names = if self.draft.is_some() { 1 } else { bytes.next()? % 5 };
        for _ in 0..names {
            let pick = bytes.next()?;
            // The reserved name is rare: most requests are to be accepted.
            let name = if pick % 64 == 0 { NAMES.len() - 1 } else { usize::from(pick) % (NAMES.len() - 1) };
            let mode = if pick >= 128 && !(steal && pick % 4 > 0) { Mode::Shared } else { Mode::Exclusive };
            scope.push((NAMES[name].to_vec(), mode));
        }
        let before = (self.scoped.clone(), self.draft.clone());
        let serial = self.next_serial;
        let options =
            Options { if_available, steal, nested_in: nested_in.map(|(id, _)| id), refuse_deadlock };
        let modes: Vec<_> = scope.iter().map(|(name, mode)| (name, to_engine(*mode))).collect();
        let outcome = self.engine.request(id, &modes, options, serial, effects);
        let by_rule = self.scoped.request(client, &scope, if_available, steal, expected);
        if let Some(draft) = &mut self.draft {
            let (name, mode) = &scope[0];
            assert_eq!(draft.request(client, name, *mode, if_available, steal, by_draft), by_rule);
        }
        match outcome {
            Ok(outcome) => {
                assert_eq!(by_rule, Ok(serial));
                self.next_serial += 1;
                let (id, own) = match outcome {
                    Outcome::Unavailable => return Some(Some(Effect::Unavailable(serial))),
                    Outcome::Queued { request } => (request, Effect::Queued(serial)),
                    Outcome::Granted { request, token } => {
                        self.see_token(token);
                        (request, Effect::Granted(serial))
                    }
                };
                self.serials.insert(id, serial);
                self.recent.push(id);
                // Stale ids stay in reach for a while.
                if self.recent.len() > 2 * LIVE {
                    self.recent.remove(0);
                }
                if let Some((outer, outer_serial)) = nested_in
                    && (self.engine.get(outer).is_some() || was_live(&before.0, outer_serial))
                {
                    self.outer.insert(serial, outer_serial);
                }
                if refuse_deadlock {
                    assert!(
                        self.engine.deadlock(id).is_none(),
                        "a request that would close a cycle was let in"
                    );
                }
                return Some(Some(own));
            }
            Err(RequestError::Deadlock(deadlock)) => {
                assert!(refuse_deadlock);
                assert_eq!(
                    expected[..],
                    [Effect::Queued(serial)],
                    "only a request that waits closes a cycle"
                );
                let (_, outer) = nested_in.expect("only a nested request closes a cycle");
                self.outer.insert(serial, outer);
                assert!(self.reaches(serial).contains(&serial), "refused without a cycle");
                assert!(deadlock.cycle.len() > 1);
                self.outer.remove(&serial);
                (self.scoped, self.draft) = before;
                expected.clear();
                by_draft.clear();
                *seen.refusals.entry("deadlock").or_default() += 1;
            }
            Err(refused) => {
                let (refusal, why) = match refused {
                    RequestError::EmptyScope => (Refusal::EmptyScope, "empty scope"),
                    RequestError::ReservedName => (Refusal::ReservedName, "reserved name"),
                    RequestError::Unsupported(_) => (Refusal::Unsupported, "unsupported"),
                    other => panic!("unexpected refusal: {other}"),
                };
                assert_eq!(by_rule, Err(refusal));
                *seen.refusals.entry(why).or_default() += 1;
            }
        }
        Some(None)
    }

    fn pick(&mut self, bytes: &mut impl Iterator<Item = u8>) -> Option<(RequestId, Serial)> {
        let pick = usize::from(bytes.next()?);
        let id = *self.recent.get(pick % self.recent.len().max(1))?;
        Some((id, self.serials[&id]))
    }

    fn translate(&mut self, effects: Vec<engine::Effect<Serial>>) -> Vec<Effect> {
        let translate = |effect| match effect {
            engine::Effect::Granted { request, token } => {
                self.see_token(token);
                Effect::Granted(self.serials[&request])
            }
            engine::Effect::Aborted { data, .. } => Effect::Aborted(data),
            engine::Effect::Broken { cause: engine::Cause::Stolen, data, .. } => {
                Effect::Broken(data, Cause::Stolen)
            }
            engine::Effect::Broken { cause: engine::Cause::Lost, data, .. } => {
                Effect::Broken(data, Cause::Lost)
            }
        };
        effects.into_iter().map(translate).collect()
    }

    fn see_token(&mut self, token: Token) {
        assert!(Some(token) > self.last_token, "tokens grow");
        self.last_token = Some(token);
    }

    fn snapshot(&self) -> Snapshot {
        let engine::Snapshot { held, pending } = self.engine.query();
        let list = |list: Vec<engine::LockInfo>| {
            let client = |id| self.clients.iter().find(|known| known.0 == id).expect("a live client").1;
            let mut infos: Vec<_> = list
                .into_iter()
                .map(|info| Info {
                    name: info.name.as_bytes().to_vec(),
                    mode: from_engine(info.mode),
                    client: client(info.client),
                    serial: self.serials[&info.request],
                })
                .collect();
            assert!(infos.is_sorted_by_key(|info| info.serial), "a snapshot is in the order of arrival");
            // The engine keeps the names of a scope as they were given, the model sorts them.
            infos.sort_by(|a, b| (a.serial, &a.name).cmp(&(b.serial, &b.name)));
            infos
        };
        Snapshot { held: list(held), pending: list(pending) }
    }

    /// One name's queue shows exactly what the snapshot has of it.
    fn compare_queues(&self, snapshot: &Snapshot) {
        for name in NAMES {
            let of_name = |list: &[Info]| -> BTreeSet<Serial> {
                list.iter().filter(|info| info.name == name).map(|info| info.serial).collect()
            };
            let in_queue = |held: bool| -> BTreeSet<Serial> {
                let queue = self.engine.queue(name).filter(|(live, _)| live.token().is_some() == held);
                queue.map(|(live, _)| *live.data()).collect()
            };
            assert_eq!(in_queue(true), of_name(&snapshot.held));
            assert_eq!(in_queue(false), of_name(&snapshot.pending));
        }
    }

    fn forget_dead(&mut self, snapshot: &Snapshot) {
        let live: BTreeSet<Serial> =
            snapshot.held.iter().chain(&snapshot.pending).map(|info| info.serial).collect();
        self.outer.retain(|inner, outer| live.contains(inner) && live.contains(outer));
    }

    fn compare_deadlocks(&self, seen: &mut Seen) {
        let live = self.engine.requests().map(|live| *live.data());
        let in_cycle: BTreeSet<Serial> =
            live.filter(|&serial| self.reaches(serial).contains(&serial)).collect();

        let reported = self.engine.deadlocks();
        assert_eq!(reported.is_empty(), in_cycle.is_empty());
        seen.deadlocks += reported.len() as u64;
        let mut covered = BTreeSet::new();
        for deadlock in &reported {
            for (i, step) in deadlock.cycle.iter().enumerate() {
                let serial = self.serials[&step.request];
                let next = self.serials[&deadlock.cycle[(i + 1) % deadlock.cycle.len()].request];
                let real = match step.waits_for {
                    WaitsFor::Name(_) => self.scoped.waits_for(serial).contains(&next),
                    WaitsFor::Nested => self.outer.get(&next) == Some(&serial),
                };
                assert!(real, "a reported cycle has a step that nobody waits on");
                covered.insert(serial);
            }
        }
        for id in &self.recent {
            let serial = self.serials[id];
            assert_eq!(self.engine.deadlock(*id).is_some(), in_cycle.contains(&serial));
            // Of each knot at least one cycle is reported.
            if in_cycle.contains(&serial) {
                assert!(self.reaches(serial).iter().any(|other| covered.contains(other)));
            }
            let outer = self.engine.get(*id).and_then(|live| live.nested_in()).map(|id| self.serials[&id]);
            assert_eq!(outer, self.outer.get(&serial).copied());
        }
    }

    /// Whom `serial` waits for, directly or not, if each awaits what is nested in it.
    fn reaches(&self, serial: Serial) -> BTreeSet<Serial> {
        let mut reached = BTreeSet::new();
        let mut ahead = vec![serial];
        while let Some(here) = ahead.pop() {
            let nested = self.outer.iter().filter(|(_, outer)| **outer == here).map(|(inner, _)| *inner);
            for next in self.scoped.waits_for(here).into_iter().chain(nested) {
                if reached.insert(next) {
                    ahead.push(next);
                }
            }
        }
        reached
    }
}

fn was_live(before: &Scoped, serial: Serial) -> bool {
    let Snapshot { held, pending } = before.snapshot();
    held.iter().chain(&pending).any(|info| info.serial == serial)
}

fn to_engine(mode: Mode) -> engine::Mode {
    match mode {
        Mode::Exclusive => engine::Mode::Exclusive,
        Mode::Shared => engine::Mode::Shared,
    }
}

fn from_engine(mode: engine::Mode) -> Mode {
    match mode {
        engine::Mode::Exclusive => Mode::Exclusive,
        engine::Mode::Shared => Mode::Shared,
    }
}
