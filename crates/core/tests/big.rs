//! Size: what is linear stays linear and what is a loop does not recurse.
//!
//! No assertion on time. A drain that recursed would overflow the stack here; an operation that
//! scanned all requests, names or clients would not come back.

use lockkeeper_core::{
    Cause, ClientId, Effect, Manager, Mode,
    Mode::{Exclusive, Shared},
    Options, Outcome, RequestId, Snapshot,
};

/// A manager and what its commands did, without the harness's books: an audit of a million requests
/// after each command would take longer than all the commands.
struct Crowd {
    manager: Manager,
    effects: Vec<Effect>,
}

impl Crowd {
    fn new() -> Self {
        Self { manager: Manager::default(), effects: Vec::new() }
    }

    fn client(&mut self) -> ClientId {
        self.manager.client().expect("within limits")
    }

    fn request(&mut self, client: ClientId, name: &str, mode: Mode) -> RequestId {
        self.ask(client, name, mode, Options::default())
    }

    fn ask(&mut self, client: ClientId, name: &str, mode: Mode, options: Options) -> RequestId {
        match self.manager.request(client, &[(name, mode)], options, (), &mut self.effects).expect("accepted")
        {
            Outcome::Granted { request, .. } | Outcome::Queued { request } => request,
            Outcome::Unavailable => panic!("nobody asked not to wait"),
        }
    }

    /// What the commands since the last call did.
    fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Who was granted since the last call, if nothing else happened.
    fn granted(&mut self) -> Vec<RequestId> {
        let granted = |effect| match effect {
            Effect::Granted { request, .. } => request,
            other => panic!("only grants were expected: {other:?}"),
        };
        self.effects().into_iter().map(granted).collect()
    }
}

#[test]
fn a_million_waiters_on_one_name_drain_in_order() {
    const WAITERS: usize = 1_000_000;
    let mut crowd = Crowd::new();
    let client = crowd.client();
    let requests: Vec<_> = (0..=WAITERS).map(|_| crowd.request(client, "a", Exclusive)).collect();
    crowd.effects();
    for pair in requests.windows(2) {
        assert_eq!(crowd.manager.release(pair[0], &mut crowd.effects), Some(()));
        // In place of `granted`, which would allocate a million lists.
        assert!(matches!(crowd.effects[..], [Effect::Granted { request, .. }] if request == pair[1]));
        crowd.effects.clear();
    }
    crowd.manager.release(requests[WAITERS], &mut crowd.effects);
    assert_eq!(crowd.effects(), []);
    assert_eq!(crowd.manager.query(), Snapshot::default());
    crowd.manager.audit();
}

#[test]
fn a_hundred_thousand_shared_requests_are_granted_at_once_and_in_order() {
    let mut crowd = Crowd::new();
    let client = crowd.client();
    let writer = crowd.request(client, "a", Exclusive);
    let readers: Vec<_> = (0..100_000).map(|_| crowd.request(client, "a", Shared)).collect();
    let last = crowd.request(client, "a", Exclusive);
    crowd.effects();
    crowd.manager.release(writer, &mut crowd.effects);
    assert_eq!(crowd.granted(), readers);
    for reader in readers {
        crowd.manager.release(reader, &mut crowd.effects);
    }
    assert_eq!(crowd.granted(), [last], "the last reader lets the writer in");
    crowd.manager.audit();
}

/// From the back, from the front and from between: leaving a queue costs the same everywhere.
#[test]
fn a_hundred_thousand_waiters_are_aborted_in_any_order() {
    let mut crowd = Crowd::new();
    let client = crowd.client();
    let holder = crowd.request(client, "a", Shared);
    let waiters: Vec<_> = (0..100_000).map(|_| crowd.request(client, "a", Exclusive)).collect();
    let reader = crowd.request(client, "a", Shared);
    crowd.effects();
    let (front, back) = waiters.split_at(waiters.len() / 2);
    for waiter in front.iter().zip(back.iter().rev()).flat_map(|(one, other)| [one, other]) {
        assert!(crowd.manager.abort(*waiter, &mut crowd.effects));
    }
    let effects = crowd.effects();
    assert_eq!(effects.len(), waiters.len() + 1);
    assert!(matches!(effects.last(), Some(Effect::Granted { request, .. }) if *request == reader));
    assert!(crowd.manager.get(holder).is_some());
    crowd.manager.audit();
}

#[test]
fn ending_a_client_with_a_hundred_thousand_requests_leaves_the_others() {
    const EACH: usize = 100_000;
    let mut crowd = Crowd::new();
    let [leaving, staying] = [(); 2].map(|()| crowd.client());
    let (mut leave, mut stay) = (Vec::new(), Vec::new());
    // One name on which both wait in turn, and as many names of their own as they have requests.
    let stayer = crowd.request(staying, "one", Shared);
    for i in 0..EACH / 2 {
        leave.push(crowd.request(leaving, "one", Exclusive));
        stay.push(crowd.request(staying, "one", Shared));
        leave.push(crowd.request(leaving, &format!("own {i}"), Exclusive));
        crowd.request(staying, &format!("other {i}"), Exclusive);
    }
    crowd.effects();

    assert!(crowd.manager.client_gone(leaving, &mut crowd.effects));
    let effects = crowd.effects();
    let aborted = effects.iter().filter(|effect| matches!(effect, Effect::Aborted { .. })).count();
    let lost =
        effects.iter().filter(|effect| matches!(effect, Effect::Broken { cause: Cause::Lost, .. })).count();
    let granted: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Granted { request, .. } => Some(*request),
            _ => None,
        })
        .collect();
    assert_eq!((aborted, lost), (EACH / 2, EACH / 2));
    assert_eq!(granted, stay, "each abort lets the next reader in");
    assert!(leave.iter().all(|&request| crowd.manager.get(request).is_none()));
    assert_eq!(crowd.manager.requests().count(), 1 + EACH);
    assert!(crowd.manager.requests().all(|live| live.client() == staying && live.token().is_some()));
    assert_eq!(crowd.manager.queue("one").next().map(|(live, _)| live.id()), Some(stayer));
    crowd.manager.audit();
}

/// Among a million names and ten thousand clients, one client's end costs what that client had.
#[test]
fn clients_come_and_go_beside_a_million_names() {
    let mut crowd = Crowd::new();
    let resident = crowd.client();
    for i in 0..1_000_000 {
        crowd.request(resident, &i.to_string(), Exclusive);
    }
    for _ in 0..10_000 {
        let guest = crowd.client();
        let waiting = crowd.request(guest, "7", Exclusive);
        let held = crowd.request(guest, "own", Exclusive);
        crowd.effects.clear();
        assert!(crowd.manager.client_gone(guest, &mut crowd.effects));
        let [Effect::Aborted { request: aborted, .. }, Effect::Broken { request: broken, .. }] =
            crowd.effects[..]
        else {
            panic!("a guest leaves with both its requests: {:?}", crowd.effects)
        };
        assert_eq!((aborted, broken), (waiting, held));
    }
    assert_eq!(crowd.manager.requests().count(), 1_000_000);
    crowd.manager.audit();
}

#[test]
fn a_steal_breaks_a_hundred_thousand_holders_in_order() {
    let mut crowd = Crowd::new();
    let client = crowd.client();
    let holders: Vec<_> = (0..100_000).map(|_| crowd.request(client, "a", Shared)).collect();
    crowd.effects();
    let thief = crowd.ask(client, "a", Exclusive, Options { steal: true, ..Options::default() });
    let broken = crowd.effects();
    let stolen = |(effect, holder): (&Effect, &RequestId)| matches!(effect, Effect::Broken { request, cause: Cause::Stolen, .. } if request == holder);
    assert_eq!(broken.len(), holders.len());
    assert!(broken.iter().zip(&holders).all(stolen));
    assert!(crowd.manager.get(thief).unwrap().token().is_some());
    crowd.manager.audit();
}
