//! Cycles of requests that wait for each other, found from declared nesting.
//!
//! The graph: a waiting request points at what blocks it. A live request points at every live
//! request nested in it, held or waiting, because it may be awaiting that one before it releases.
//! Queues alone have no cycles, so without nesting there is nothing to search.
//!
//! The search runs only on request. It is linear in the part of the graph it reaches: a waiting
//! entry does not point at all its predecessors but at the nearest that, between them, wait for all
//! the others.

use crate::{
    manager::Manager,
    name::Name,
    queues,
    slab::NIL,
    types::{ClientId, Mode, RequestId},
};
use alloc::{format, string::String, vec::Vec};
use core::{fmt, ops::ControlFlow};
use foldhash::fast::FixedState;
use hashbrown::{HashMap, hash_map::Entry};

/// A cycle: these requests wait for each other if each awaits its nested request.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, Options};
/// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
/// # let tab = manager.client()?;
/// # manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// # let nested_in = manager.requests().next().map(|outer| outer.id());
/// # manager.request(tab, &scope, Options { nested_in, ..Options::default() }, (), &mut effects)?;
/// // A request for "a", made within a held request for "a", and not refused.
/// assert_eq!(
///     manager.deadlocks()[0].to_string(),
///     "deadlock, if each awaits its nested request: \
///      request 1 of client-0 waits for \"a\" behind request 0 of client-0; request 1 is nested in request 0"
/// );
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Each waits for the next, the last for the first, unless steps were left out: then the last
    /// waits for one of those.
    pub cycle: Vec<Step>,
    /// How many steps at the end were left out, by a search with a bound.
    pub left_out: usize,
}

/// Steps of a cycle that a search with a bound reports.
const REPORTED: usize = 16;

/// Bytes of a name in a report that count as a step of a search with a bound, and names of a scope.
const STEP_BYTES: usize = 512;
const STEP_NAMES: usize = 8;

/// One request of a cycle.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, Options, Step};
/// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
/// # let tab = manager.client()?;
/// # manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// # let nested_in = manager.requests().next().map(|outer| outer.id());
/// # manager.request(tab, &scope, Options { nested_in, ..Options::default() }, (), &mut effects)?;
/// // A request for "a", made within a held request for "a".
/// let cycle: Vec<Step> = manager.deadlocks().remove(0).cycle;
/// let arrivals: Vec<_> = cycle.iter().map(|step| step.request.arrival()).collect();
/// assert_eq!(arrivals, [1, 0]);
/// assert!(cycle.iter().all(|step| step.client == tab));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The request.
    pub request: RequestId,
    /// The client of the request.
    pub client: ClientId,
    /// How it waits for the next request of the cycle.
    pub waits_for: WaitsFor,
}

/// How a request of a cycle waits for the next one.
///
/// ```
/// # use lockkeeper_core::{Manager, Mode, Options, WaitsFor};
/// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
/// # let tab = manager.client()?;
/// # manager.request(tab, &scope, Options::default(), (), &mut effects)?;
/// # let nested_in = manager.requests().next().map(|outer| outer.id());
/// # manager.request(tab, &scope, Options { nested_in, ..Options::default() }, (), &mut effects)?;
/// // A request for "a", made within a held request for "a".
/// let cycle = &manager.deadlocks()[0].cycle;
/// assert_eq!(cycle[0].waits_for, WaitsFor::Name("a".into()));
/// assert_eq!(cycle[1].waits_for, WaitsFor::Nested);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// In the queue of this name, where the next request comes before it.
    Name(Name),
    /// The next request is nested in it, and it releases nothing before that one is done.
    Nested,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(|step| (step.request.arrival, step.client)))
    }
}

impl Deadlock {
    /// The cycle as text, for a host with its own numbers for requests and names for clients.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
    /// # let tab = manager.client()?;
    /// # manager.request(tab, &scope, Options::default(), (), &mut effects)?;
    /// # let nested_in = manager.requests().next().map(|outer| outer.id());
    /// # manager.request(tab, &scope, Options { nested_in, ..Options::default() }, (), &mut effects)?;
    /// let words = manager.deadlocks()[0].describe(|step| (step.request.arrival() + 100, "the first tab"));
    /// assert!(words.contains("request 101 of the first tab waits for \"a\" behind request 100 of the first tab"));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn describe<C: fmt::Display>(&self, mut who: impl FnMut(&Step) -> (u64, C)) -> String {
        let words = self.cycle.iter().enumerate().map(|(i, step)| {
            let (request, client) = who(step);
            if self.left_out > 0 && i + 1 == self.cycle.len() {
                return format!("request {request} of {client} waits for one of {} more", self.left_out);
            }
            let (next, its_client) = who(&self.cycle[(i + 1) % self.cycle.len()]);
            match &step.waits_for {
                WaitsFor::Name(name) => {
                    format!("request {request} of {client} waits for {name:?} behind request {next} of {its_client}")
                }
                WaitsFor::Nested => format!("request {next} is nested in request {request}"),
            }
        });
        let words: Vec<_> = words.collect();
        format!("deadlock, if each awaits its nested request: {}", words.join("; "))
    }
}

impl<T> Manager<T> {
    /// The cycles among live requests; of cycles that share a request, one.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
    /// # let tab = manager.client()?;
    /// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
    /// assert!(manager.deadlocks().is_empty());
    /// let nested_in = manager.requests().next().map(|outer| outer.id());
    /// manager.request(tab, &scope, Options { nested_in, ..Options::default() }, (), &mut effects)?;
    /// assert_eq!(manager.deadlocks().len(), 1);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn deadlocks(&self) -> Vec<Deadlock> {
        self.all_deadlocks(&mut { usize::MAX }, usize::MAX)
    }

    /// The same, by a search that takes at most so many steps. The number is lowered by those
    /// taken: if none are left, it may not have come to its end. Of a long cycle, the first steps
    /// are reported.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
    /// # let tab = manager.client()?;
    /// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
    /// let nested_in = manager.requests().next().map(|outer| outer.id());
    /// manager.request(tab, &scope, Options { nested_in, ..Options::default() }, (), &mut effects)?;
    /// let mut steps = 1;
    /// assert!(manager.deadlocks_within(&mut steps).is_empty());
    /// assert_eq!(steps, 0);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn deadlocks_within(&self, steps: &mut usize) -> Vec<Deadlock> {
        self.all_deadlocks(steps, REPORTED)
    }

    fn all_deadlocks(&self, steps: &mut usize, reported: usize) -> Vec<Deadlock> {
        let mut nested: Vec<_> = self.nesting.nested().take(*steps).collect();
        nested.sort_unstable_by_key(|&slot| self.queues.request(slot).arrival);
        let mut search = Search::new(self, *steps);
        let mut found = Vec::new();
        for root in nested {
            let _: ControlFlow<()> = search.from(root, |cycle, steps| {
                found.push(self.report(cycle, reported, steps));
                ControlFlow::Continue(Reported::Yes)
            });
        }
        *steps = search.steps;
        found
    }

    /// A cycle that the live request `id` is part of, if there is one. As in every report, a
    /// request that is only between two others in one queue is left out, even if it is `id`.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
    /// # let tab = manager.client()?;
    /// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
    /// let outer = manager.query().held[0].request;
    /// assert_eq!(manager.deadlock(outer), None);
    /// let nested = Options { nested_in: Some(outer), ..Options::default() };
    /// manager.request(tab, &scope, nested, (), &mut effects)?;
    /// let found = manager.deadlock(outer).unwrap();
    /// assert!(found.cycle.iter().any(|step| step.request == outer));
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn deadlock(&self, id: RequestId) -> Option<Deadlock> {
        self.deadlock_of(id, &mut { usize::MAX }, usize::MAX)
    }

    /// The same, by a search that takes at most so many steps. The number is lowered by those
    /// taken: if none are left, it may not have come to its end. Of a long cycle, the first steps
    /// are reported.
    ///
    /// ```
    /// # use lockkeeper_core::{Manager, Mode, Options};
    /// # let (mut manager, mut effects, scope) = (Manager::default(), Vec::new(), [("a", Mode::Exclusive)]);
    /// # let tab = manager.client()?;
    /// manager.request(tab, &scope, Options::default(), (), &mut effects)?;
    /// let outer = manager.query().held[0].request;
    /// let nested = Options { nested_in: Some(outer), ..Options::default() };
    /// manager.request(tab, &scope, nested, (), &mut effects)?;
    /// let mut steps = 1;
    /// assert_eq!(manager.deadlock_within(outer, &mut steps), None);
    /// assert_eq!(steps, 0);
    /// assert!(manager.deadlock_within(outer, &mut 100).is_some());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn deadlock_within(&self, id: RequestId, steps: &mut usize) -> Option<Deadlock> {
        self.deadlock_of(id, steps, REPORTED)
    }

    fn deadlock_of(&self, id: RequestId, steps: &mut usize, reported: usize) -> Option<Deadlock> {
        self.live(id)?;
        if self.nesting.is_empty() {
            return None;
        }
        let mut search = Search::new(self, *steps);
        let found = search.from(id.slot, |cycle, steps| match cycle[0].from == id.slot {
            true => ControlFlow::Break(self.report(cycle, reported, steps)),
            false => ControlFlow::Continue(Reported::No),
        });
        *steps = search.steps;
        found.break_value()
    }

    /// Turns a cycle so that it starts behind a nesting, at the earliest such request, and leaves
    /// out requests that are only between two others in one queue. At most so many steps are
    /// reported. The names in them count as steps of the search.
    fn report(&self, cycle: &[Edge], reported: usize, steps: &mut usize) -> Deadlock {
        let starts = (0..cycle.len()).filter(|&i| cycle[(i + cycle.len() - 1) % cycle.len()].queue == NIL);
        let start = starts.min_by_key(|&i| self.queues.request(cycle[i].from).arrival).unwrap_or(0);
        let turned = cycle[start..].iter().chain(&cycle[..start]).copied();

        let mut kept: Vec<Edge> = Vec::new();
        for edge in turned {
            // a waits for b waits for c in one queue: then a waits for c, unless both are shared.
            while let [.., a, b] = kept[..]
                && a.queue == b.queue
                && a.queue != NIL
                && self.conflict(a.queue, a.from, edge.from)
            {
                kept.pop();
            }
            kept.push(edge);
        }
        let left_out = kept.len().saturating_sub(reported);
        let step = |edge: Edge| Step {
            request: self.request_id(edge.from),
            client: self.client_id(self.queues.request(edge.from).client),
            waits_for: match edge.queue {
                NIL => WaitsFor::Nested,
                queue => {
                    let name = self.queues.table[queue].name.clone();
                    *steps = steps.saturating_sub(name.as_bytes().len() / STEP_BYTES);
                    WaitsFor::Name(name)
                }
            },
        };
        Deadlock { cycle: kept.into_iter().take(reported).map(step).collect(), left_out }
    }

    fn conflict(&self, queue: u32, a: u32, b: u32) -> bool {
        let mode = |request: u32| {
            let mut scope = self.queues.scope(request);
            scope.find(|entry| entry.queue == queue).map(|entry| entry.mode)
        };
        matches!((mode(a), mode(b)), (Some(a), Some(b)) if a.conflicts(b))
    }
}

/// `from` waits for another request: in `queue`, or, if that is `NIL`, because the other is nested
/// in it.
#[derive(Clone, Copy)]
struct Edge {
    from: u32,
    queue: u32,
}

/// A depth-first search. Never recursive: a chain of waiting requests may be a million long.
struct Search<'a, T> {
    manager: &'a Manager<T>,
    /// Requests met so far; those on the path by their place in it, those done with as `DONE`.
    met: HashMap<u32, usize, FixedState>,
    /// For blocked shared entries passed so far: the nearest exclusive entry before.
    exclusive_before: HashMap<u32, u32, FixedState>,
    /// Edges not yet tried: first those of the first request on the path, then those of the next.
    ahead: Vec<(u32, u32)>,
    /// Edges that may still be examined.
    steps: usize,
}

/// A request on the path.
struct Visit {
    /// Where its edges begin in `ahead`.
    ahead: usize,
    /// The end of the last reported cycle in the path up to here. Reported requests off the path
    /// are finished.
    told: usize,
}

/// Whether a cycle was reported.
enum Reported {
    Yes,
    No,
}

const DONE: usize = usize::MAX;

impl<'a, T> Search<'a, T> {
    fn new(manager: &'a Manager<T>, steps: usize) -> Self {
        let (met, exclusive_before) = (HashMap::default(), HashMap::default());
        Self { manager, met, exclusive_before, ahead: Vec::new(), steps }
    }

    /// Searches all that `root` reaches and was not visited before; passes every cycle it closes to
    /// `closed`, except those that share a request with a reported one.
    fn from<B>(
        &mut self,
        root: u32,
        mut closed: impl FnMut(&[Edge], &mut usize) -> ControlFlow<B, Reported>,
    ) -> ControlFlow<B> {
        if self.met.contains_key(&root) || self.steps == 0 {
            return ControlFlow::Continue(());
        }
        // `path[i]` leads to `path[i + 1].from`; `visits[i]` is of the same request.
        let mut path = Vec::from([Edge { from: root, queue: NIL }]);
        let mut visits = Vec::from([Visit { ahead: 0, told: 0 }]);
        self.ahead.clear();
        self.look_ahead(root);
        self.met.insert(root, 0);
        while let (Some(here), Some(visit)) = (path.last_mut(), visits.last()) {
            if self.steps == 0 {
                break;
            }
            let Some((to, queue)) = self.ahead.get(visit.ahead..).and_then(<[_]>::last).copied() else {
                self.met.insert(here.from, DONE);
                path.pop();
                visits.pop();
                continue;
            };
            self.ahead.pop();
            here.queue = queue;
            match self.met.entry(to) {
                Entry::Vacant(new) => {
                    new.insert(path.len());
                    let told = visit.told;
                    visits.push(Visit { ahead: self.ahead.len(), told });
                    path.push(Edge { from: to, queue: NIL });
                    self.look_ahead(to);
                }
                Entry::Occupied(met) => {
                    let at = *met.get();
                    if at != DONE
                        && visit.told <= at
                        && let Reported::Yes = closed(&path[at..], &mut self.steps)?
                    {
                        (at..path.len()).for_each(|i| visits[i].told = i + 1);
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Whom a request waits for, each with the queue it waits in, or `NIL` for one nested in it.
    fn look_ahead(&mut self, request: u32) {
        let manager = self.manager;
        let record = manager.queues.request(request);
        for inner in manager.nesting.inner(record.nesting) {
            if self.steps == 0 {
                return;
            }
            self.add((inner, NIL));
        }
        let (mut entry, mut names) = (request, 0);
        while let Some(place) = manager.queues.entries.get(entry) {
            if place.blocked {
                self.blockers(entry, place);
            }
            entry = place.sibling;
            names += 1;
        }
        self.steps = self.steps.saturating_sub(names / STEP_NAMES);
    }

    /// An exclusive entry waits for the shared ones right before it and for the exclusive one
    /// before those, which in turn waits for the rest. A shared entry waits for the nearest
    /// exclusive one.
    fn blockers(&mut self, entry: u32, place: &queues::Entry<T>) {
        let entries = &self.manager.queues.entries;
        let mut passed = Vec::new();
        let mut before = place.prev;
        while let Some(earlier) = entries.get(before) {
            if earlier.mode == Mode::Exclusive || self.steps == 0 {
                break;
            }
            if place.mode == Mode::Exclusive {
                self.add((earlier.request, place.queue));
            } else if let Some(&known) = self.exclusive_before.get(&before) {
                before = known;
                break;
            } else {
                self.steps -= 1;
                passed.push(before);
            }
            before = earlier.prev;
        }
        if let Some(exclusive) = entries.get(before) {
            self.add((exclusive.request, place.queue));
        }
        if place.mode == Mode::Shared {
            passed.push(entry);
            self.exclusive_before.extend(passed.into_iter().map(|entry| (entry, before)));
        }
    }

    fn add(&mut self, edge: (u32, u32)) {
        self.steps = self.steps.saturating_sub(1);
        self.ahead.push(edge);
    }
}
