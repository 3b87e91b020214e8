//! A harness who keeps the books of one manager, so that tests can speak of requests as #1, #2, #3.
//!
//! The harness numbers the requests in the order in which they are accepted, passes every command
//! on, tells what it did in short words, and audits the whole manager after each one. He also
//! checks what holds for every command: tokens grow, the host's data comes back with the request it
//! was given with, and a request that is told to be held or to wait does so.

// Each test file uses the part of the fixture that it needs.
#![allow(dead_code)]

use lockkeeper_core::{
    Cause, ClientId, Config, Deadlock, Effect, Limits, Live, Manager, Mode, Options, Outcome, RequestError,
    RequestId, Snapshot, Token,
};
use std::collections::BTreeMap;

/// What a command did, in the harness's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    Queued(usize),
    Granted(usize),
    Unavailable(usize),
    Aborted(usize),
    Stolen(usize),
    Lost(usize),
}

/// One name or several, each with its mode: what a test may write where a scope is meant.
pub(crate) trait Scope {
    fn names(&self) -> Vec<(&[u8], Mode)>;
}

impl Scope for (&str, Mode) {
    fn names(&self) -> Vec<(&[u8], Mode)> {
        vec![(self.0.as_bytes(), self.1)]
    }
}

impl Scope for (&[u8], Mode) {
    fn names(&self) -> Vec<(&[u8], Mode)> {
        vec![*self]
    }
}

impl<const N: usize> Scope for [(&str, Mode); N] {
    fn names(&self) -> Vec<(&[u8], Mode)> {
        self.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect()
    }
}

impl Scope for Vec<(String, Mode)> {
    fn names(&self) -> Vec<(&[u8], Mode)> {
        self.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect()
    }
}

pub(crate) struct Harness {
    manager: Manager<usize>,
    /// By number; #0 is nobody, and a request that was unavailable never got an id.
    ids: Vec<Option<RequestId>>,
    numbers: BTreeMap<RequestId, usize>,
    /// Of each grant so far, in the order of grants.
    tokens: Vec<(usize, Token)>,
}

impl Harness {
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self::with(Config { limits, ..Config::default() })
    }

    pub(crate) fn with(config: Config) -> Self {
        Self { manager: Manager::new(config), ids: vec![None], numbers: BTreeMap::new(), tokens: Vec::new() }
    }

    /// New agents, as many as the test names.
    pub(crate) fn clients<const N: usize>(&mut self) -> [ClientId; N] {
        [(); N].map(|()| self.manager.client().expect("within limits"))
    }

    pub(crate) fn manager(&mut self) -> &mut Manager<usize> {
        &mut self.manager
    }

    /// Requests one name.
    pub(crate) fn request(&mut self, client: ClientId, name: &str, mode: Mode) -> Vec<Did> {
        self.ask(client, (name, mode), Options::default())
    }

    /// Requests several names at once.
    pub(crate) fn request_all(&mut self, client: ClientId, scope: impl Scope) -> Vec<Did> {
        self.ask(client, scope, Options::default())
    }

    pub(crate) fn if_available(&mut self, client: ClientId, name: &str, mode: Mode) -> Vec<Did> {
        self.ask(client, (name, mode), Options { if_available: true, ..Options::default() })
    }

    pub(crate) fn steal(&mut self, client: ClientId, name: &str) -> Vec<Did> {
        self.steal_all(client, (name, Mode::Exclusive))
    }

    pub(crate) fn steal_all(&mut self, client: ClientId, scope: impl Scope) -> Vec<Did> {
        self.ask(client, scope, Options { steal: true, ..Options::default() })
    }

    /// Requests one name, within the request numbered `outer`.
    pub(crate) fn request_within(
        &mut self,
        outer: usize,
        client: ClientId,
        name: &str,
        mode: Mode,
    ) -> Vec<Did> {
        self.request_all_within(outer, client, (name, mode))
    }

    pub(crate) fn request_all_within(
        &mut self,
        outer: usize,
        client: ClientId,
        scope: impl Scope,
    ) -> Vec<Did> {
        let nested_in = Some(self.id(outer));
        self.ask(client, scope, Options { nested_in, ..Options::default() })
    }

    /// A request that is accepted, with any options.
    pub(crate) fn ask(&mut self, client: ClientId, scope: impl Scope, options: Options) -> Vec<Did> {
        self.try_ask(client, scope, options).expect("the request is accepted")
    }

    /// A request that is refused. Being refused, it must change nothing.
    pub(crate) fn refused(&mut self, client: ClientId, scope: impl Scope, options: Options) -> RequestError {
        let before = (self.query(), self.manager.deadlocks());
        let error = self.try_ask(client, scope, options).expect_err("the request is refused");
        assert_eq!((self.query(), self.manager.deadlocks()), before, "a refused request changes nothing");
        error
    }

    fn try_ask(
        &mut self,
        client: ClientId,
        scope: impl Scope,
        options: Options,
    ) -> Result<Vec<Did>, RequestError> {
        let number = self.ids.len();
        let mut effects = Vec::new();
        let outcome = match self.manager.request(client, &scope.names(), options, number, &mut effects) {
            Ok(outcome) => outcome,
            Err(error) => {
                assert_eq!(effects, [], "a refused request has no effect");
                self.manager.audit();
                return Err(error);
            }
        };
        // What a steal breaks comes before its own grant, what that lets in after it.
        let broken = effects.iter().take_while(|effect| matches!(effect, Effect::Broken { .. })).count();
        let let_in = effects.split_off(broken);
        let mut did = self.note(effects);
        did.push(self.enter(number, outcome));
        did.extend(self.note(let_in));
        Ok(did)
    }

    /// Enters a new request into the books.
    fn enter(&mut self, number: usize, outcome: Outcome) -> Did {
        let (id, did) = match outcome {
            Outcome::Granted { request, token } => {
                self.note_grant(number, request, token);
                (Some(request), Did::Granted(number))
            }
            Outcome::Queued { request } => {
                let waiting = self.manager.get(request).expect("who is queued lives");
                assert_eq!(waiting.token(), None, "who is queued holds nothing");
                (Some(request), Did::Queued(number))
            }
            Outcome::Unavailable => (None, Did::Unavailable(number)),
        };
        if let Some(id) = id {
            let latest = self.numbers.last_key_value();
            assert!(latest.is_none_or(|(latest, _)| *latest < id), "ids order by arrival");
            self.numbers.insert(id, number);
        }
        self.ids.push(id);
        did
    }

    /// Releases the request, which is held.
    pub(crate) fn release(&mut self, number: usize) -> Vec<Did> {
        let mut effects = Vec::new();
        let data = self.manager.release(self.id(number), &mut effects);
        assert_eq!(data, Some(number), "#{number} is held and gives its data back");
        self.note(effects)
    }

    /// Releases a request that is not held, which must change nothing.
    pub(crate) fn release_in_vain(&mut self, number: usize) {
        let before = self.query();
        let mut effects = Vec::new();
        assert_eq!(self.manager.release(self.id(number), &mut effects), None, "#{number} is not held");
        assert_eq!(self.note(effects), []);
        assert_eq!(self.query(), before, "a release of what is not held changes nothing");
    }

    /// Aborts the request, which waits.
    pub(crate) fn abort(&mut self, number: usize) -> Vec<Did> {
        let mut effects = Vec::new();
        assert!(self.manager.abort(self.id(number), &mut effects), "#{number} waits");
        self.note(effects)
    }

    /// Aborts a request that does not wait, which must change nothing.
    pub(crate) fn abort_in_vain(&mut self, number: usize) {
        let before = self.query();
        let mut effects = Vec::new();
        assert!(!self.manager.abort(self.id(number), &mut effects), "#{number} does not wait");
        assert_eq!(self.note(effects), []);
        assert_eq!(self.query(), before, "an abort of what does not wait changes nothing");
    }

    /// Ends a client that lives.
    pub(crate) fn gone(&mut self, client: ClientId) -> Vec<Did> {
        let mut effects = Vec::new();
        assert!(self.manager.client_gone(client, &mut effects), "the client lived until now");
        self.note(effects)
    }

    pub(crate) fn force_release(&mut self, name: &str) -> Vec<Did> {
        let mut effects = Vec::new();
        let broken = self.manager.force_release(name, &mut effects);
        let did = self.note(effects);
        assert_eq!(did.iter().filter(|did| matches!(did, Did::Stolen(_))).count(), broken);
        did
    }

    pub(crate) fn query(&self) -> Snapshot {
        self.manager.query()
    }

    /// The numbers of the held requests, in the order of arrival.
    pub(crate) fn held(&self) -> Vec<usize> {
        self.live(true)
    }

    /// The numbers of the waiting requests, in the order of arrival.
    pub(crate) fn pending(&self) -> Vec<usize> {
        self.live(false)
    }

    fn live(&self, held: bool) -> Vec<usize> {
        let live = self.manager.requests().filter(|live| live.token().is_some() == held);
        live.map(|live| *live.data()).collect()
    }

    /// The numbers of the live requests for one name, in the order of its queue.
    pub(crate) fn queue(&self, name: &str) -> Vec<usize> {
        self.manager.queue(name).map(|(live, _)| *live.data()).collect()
    }

    /// The request, which lives.
    pub(crate) fn get(&self, number: usize) -> Live<'_, usize> {
        self.manager.get(self.id(number)).expect("the request lives")
    }

    /// The token with which a request was granted, be it live or not.
    pub(crate) fn token(&self, number: usize) -> Token {
        let grant = self.tokens.iter().find(|(granted, _)| *granted == number);
        grant.expect("the request was granted").1
    }

    pub(crate) fn id(&self, number: usize) -> RequestId {
        self.ids[number].expect("the request was granted or queued")
    }

    pub(crate) fn number(&self, id: RequestId) -> usize {
        self.numbers[&id]
    }

    /// A cycle that the request is part of.
    pub(crate) fn deadlock(&self, number: usize) -> Option<Deadlock> {
        self.manager.deadlock(self.id(number))
    }

    /// The numbers in each reported cycle.
    pub(crate) fn deadlocks(&self) -> Vec<Vec<usize>> {
        self.manager.deadlocks().iter().map(|deadlock| self.cycle(deadlock)).collect()
    }

    pub(crate) fn cycle(&self, deadlock: &Deadlock) -> Vec<usize> {
        deadlock.cycle.iter().map(|step| self.number(step.request)).collect()
    }

    /// Writes the effects of a command down, and checks what holds after each.
    fn note(&mut self, effects: Vec<Effect<usize>>) -> Vec<Did> {
        let mut did = Vec::new();
        for effect in effects {
            did.push(match effect {
                Effect::Granted { request, token } => {
                    let number = self.number(request);
                    self.note_grant(number, request, token);
                    Did::Granted(number)
                }
                Effect::Aborted { request, data } => Did::Aborted(self.ended(request, data)),
                Effect::Broken { request, cause, data, .. } => match cause {
                    Cause::Stolen => Did::Stolen(self.ended(request, data)),
                    Cause::Lost => Did::Lost(self.ended(request, data)),
                },
            });
        }
        self.manager.audit();
        did
    }

    fn note_grant(&mut self, number: usize, request: RequestId, token: Token) {
        assert!(self.tokens.last().is_none_or(|(_, last)| *last < token), "tokens grow");
        // Who is granted and lost in one command, with its client, is no longer there to be asked.
        if let Some(lock) = self.manager.get(request) {
            assert_eq!(lock.token(), Some(token), "a lock keeps the token of its grant");
        }
        self.tokens.push((number, token));
    }

    fn ended(&self, request: RequestId, data: usize) -> usize {
        assert!(self.manager.get(request).is_none(), "who has ended is no longer live");
        assert_eq!(self.number(request), data, "the host's data comes back");
        data
    }
}
