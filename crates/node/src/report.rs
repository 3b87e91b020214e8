//! The state of the manager, as JavaScript values.

use crate::{
    names::{self, Text},
    state::Owner,
};
use lockkeeper_core::{ClientId, Manager, Mode, Name, WaitsFor};
use napi::{
    Either,
    bindgen_prelude::{BigInt, Uint32Array, Utf16String},
};
use napi_derive::napi;

pub(crate) type JsText = Either<String, Utf16String>;

/// The snapshot (§4.5), packed: thousands of objects are made faster in JavaScript than through
/// Node-API.
#[napi(object, object_from_js = false)]
pub struct Snapshot {
    /// The names, one after the other; one that is also that of the entry before, once.
    pub names: JsText,
    /// For each entry: four times the length of its name, plus two if it is that of the entry
    /// before, plus one if it is shared; the index of its client.
    pub entries: Uint32Array,
    /// How many entries are held; the others are pending.
    pub held: u32,
    pub clients: Vec<String>,
}

pub(crate) fn query(manager: &Manager<Owner>) -> Snapshot {
    let (mut held, mut pending) = (Entries::default(), Entries::default());
    let mut clients: Vec<ClientId> = Vec::new();
    for live in manager.requests() {
        let client = match clients.iter().rposition(|&known| known == live.client()) {
            Some(index) => index,
            None => {
                clients.push(live.client());
                clients.len() - 1
            }
        };
        let list = if live.token().is_some() { &mut held } else { &mut pending };
        for (name, mode) in live.scope() {
            let same = list.last == Some(name);
            let length = if same { 0 } else { list.names.push(name) };
            let packed = 4 * length + 2 * usize::from(same) + usize::from(mode == Mode::Shared);
            list.packed.extend([packed, client].map(|number| u32::try_from(number).unwrap_or(u32::MAX)));
            list.last = Some(name);
        }
    }
    let count = u32::try_from(held.packed.len() / 2).unwrap_or(u32::MAX);
    held.packed.append(&mut pending.packed);
    held.names.append(pending.names);
    Snapshot {
        names: held.names.into_js(),
        entries: Uint32Array::new(held.packed),
        held: count,
        clients: clients.iter().map(ToString::to_string).collect(),
    }
}

#[derive(Default)]
struct Entries<'a> {
    names: Text,
    packed: Vec<u32>,
    last: Option<&'a Name>,
}

/// All that the snapshot may not show.
#[napi(object, object_from_js = false)]
pub struct Inspection {
    pub held: Vec<Request>,
    pub pending: Vec<Request>,
    pub deadlocks: Vec<Deadlock>,
}

#[napi(object, object_from_js = false)]
pub struct Request {
    pub request: BigInt,
    pub client_id: String,
    pub scope: Vec<ScopeEntry>,
    pub info: Option<String>,
    pub token: Option<BigInt>,
    /// Milliseconds.
    pub waited: Option<f64>,
    pub nested_in: Option<BigInt>,
    pub stole: bool,
}

/// A name of a scope.
#[napi(object, object_from_js = false)]
pub struct ScopeEntry {
    pub name: JsText,
    pub mode: &'static str,
}

/// A cycle of requests that wait for each other.
#[napi(object, object_from_js = false)]
pub struct Deadlock {
    pub message: String,
    pub cycle: Vec<Step>,
}

#[napi(object, object_from_js = false)]
pub struct Step {
    pub request: BigInt,
    pub client_id: String,
    /// The name for which it waits; none if it waits for a request that is nested in it, the next
    /// one.
    pub waits_for: Option<JsText>,
}

pub(crate) fn inspect(manager: &Manager<Owner>, now: u64) -> Inspection {
    let (mut held, mut pending) = (Vec::new(), Vec::new());
    for live in manager.requests() {
        let token = live.token();
        let list = if token.is_some() { &mut held } else { &mut pending };
        let owner = live.data();
        #[expect(clippy::cast_precision_loss)]
        let waited = || now.saturating_sub(owner.queued_at) as f64 / 1e6;
        list.push(Request {
            request: BigInt::from(live.id().arrival()),
            client_id: live.client().to_string(),
            scope: scope(live.scope()),
            info: owner.info.as_deref().map(String::from),
            token: token.map(|token| BigInt::from(token.get())),
            waited: token.is_none().then(waited),
            nested_in: live.nested_in().map(|outer| BigInt::from(outer.arrival())),
            stole: live.stole(),
        });
    }
    let deadlocks = manager.deadlocks().iter().map(deadlock).collect();
    Inspection { held, pending, deadlocks }
}

/// Sorted as JavaScript sorts strings.
fn scope<'a>(scope: impl Iterator<Item = (&'a Name, Mode)>) -> Vec<ScopeEntry> {
    let mut scope: Vec<_> = scope.collect();
    scope.sort_by_cached_key(|(name, _)| name.to_utf16());
    scope.into_iter().map(|(name, mode)| place(name, mode)).collect()
}

pub(crate) fn place(name: &Name, mode: Mode) -> ScopeEntry {
    let mode = match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
    };
    ScopeEntry { name: names::to_js(name), mode }
}

pub(crate) fn deadlock(deadlock: &lockkeeper_core::Deadlock) -> Deadlock {
    let cycle = deadlock.cycle.iter().map(|step| Step {
        request: BigInt::from(step.request.arrival()),
        client_id: step.client.to_string(),
        waits_for: match &step.waits_for {
            WaitsFor::Name(name) => Some(names::to_js(name)),
            WaitsFor::Nested => None,
        },
    });
    Deadlock { message: deadlock.to_string(), cycle: cycle.collect() }
}
