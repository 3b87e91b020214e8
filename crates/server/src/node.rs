//! The role of this process for its clients: it leads, or relays to the daemon that leads.
//!
//! A daemon with its own log always leads. Of those that share the log of a store, one leads; the
//! others relay their clients' messages to it. A connection belongs to one leader: when the leader
//! changes, the connection ends, and its client resumes.

use crate::{
    Store,
    auth::Keys,
    connection::{self, Peer, Transport},
    daemon::Daemon,
    dashboard::FleetView,
    fleet::{Fleet, Silence},
    gate::Gate,
    handshakes::PendingHandshake,
    metrics,
    relay::{self, Client, Relays},
};
use lockkeeper_service::{Access, State};
use std::{
    cell::RefCell,
    rc::{Rc, Weak},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

/// How soon a leader that cannot be reached is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// How long the store may be silent, and clients may wait for a leader longer than a takeover
/// takes, before new clients are refused.
const REFUSE_AFTER: Duration = Duration::from_secs(3);

/// A client itself waits for ten seconds: it is refused before.
const LONGEST: Duration = Duration::from_secs(5);

pub(crate) struct Node {
    role: RefCell<Role>,
    /// Told when it has another role.
    changed: Notify,
    pub(crate) gate: Rc<Gate>,
    /// How to reach other daemons of the fleet, and be reached by them.
    pub(crate) relays: Option<Relays>,
    /// The state of the fleet, for clients that may see it.
    pub(crate) fleet: Option<FleetView>,
    /// Why the store does not answer, while it does not.
    silence: Rc<RefCell<Option<Silence>>>,
    /// How long a client waits for a leader.
    patience: Duration,
}

pub(crate) enum Role {
    Leading(Rc<RefCell<Daemon>>),
    Following(Following),
    Stopping,
}

/// The knowledge of a follower.
#[derive(Clone, Default)]
pub(crate) struct Following {
    /// The leader, if there is one.
    pub(crate) leader: Option<Leader>,
    pub(crate) position: u64,
    pub(crate) lag: u64,
    /// Why it cannot follow just now.
    pub(crate) trouble: Option<String>,
    /// The state it has applied.
    pub(crate) state: Weak<RefCell<State>>,
}

/// Another daemon that leads.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) url: String,
    /// The number of its leadership.
    pub(crate) owner: u64,
}

/// Where the messages of a client go.
pub(crate) enum Route {
    Here(Rc<RefCell<Daemon>>),
    There(Leader),
    Nowhere,
}

impl Node {
    pub(crate) fn new(role: Role, gate: Rc<Gate>, relays: Option<Relays>) -> Self {
        let (role, changed, silence) = (RefCell::new(role), Notify::new(), Rc::default());
        Self { role, changed, gate, relays, fleet: None, silence, patience: REFUSE_AFTER }
    }

    /// Shares the log of that store.
    pub(crate) fn of_fleet(self, fleet: &Fleet, store: &Store) -> Self {
        let silence = Rc::clone(&fleet.silence);
        let patience = REFUSE_AFTER + store.takeover.min(LONGEST);
        Self { fleet: Some(FleetView::new(store.etcd.clone())), silence, patience, ..self }
    }

    pub(crate) fn set_role(&self, role: Role) {
        *self.role.borrow_mut() = role;
        self.changed.notify_waiters();
    }

    /// A follower has applied more. No task waits for that.
    pub(crate) fn set_progress(&self, position: u64, lag: u64) {
        if let Role::Following(following) = &mut *self.role.borrow_mut() {
            (following.position, following.lag) = (position, lag);
        }
    }

    /// The daemon that leads, if it is this one.
    pub(crate) fn daemon(&self) -> Option<Rc<RefCell<Daemon>>> {
        match &*self.role.borrow() {
            Role::Leading(daemon) => Some(Rc::clone(daemon)),
            _ => None,
        }
    }

    /// Serves a client, or relays its messages, once there is a leader. A client that would wait
    /// too long is refused with the reason.
    pub(crate) async fn serve<S: Transport>(
        self: &Rc<Self>,
        stream: S,
        input: Vec<u8>,
        peer: Peer,
        handshake: PendingHandshake,
    ) {
        let mut client = Client { stream, input, peer, handshake };
        let until = Instant::now() + self.patience;
        loop {
            let route = match self.long_silence() {
                None => timeout_at(until, self.route()).await.ok(),
                Some(_) => None,
            };
            let Some(route) = route else { return self.turn_away(client).await };
            let leader = match route {
                Route::Here(daemon) => {
                    let Client { stream, input, peer, handshake } = client;
                    return connection::run(stream, input, peer, daemon, handshake).await;
                }
                Route::There(leader) => leader,
                Route::Nowhere => return,
            };
            match relay::run(client, self, &leader).await {
                Ok(Some(unserved)) => client = unserved,
                Ok(None) => return,
                Err(error) => return tracing::debug!(%error, "a relayed connection ended"),
            }
            if Instant::now() >= until {
                return self.turn_away(client).await;
            }
            // It may have ended: then another one leads soon.
            tokio::select! {
                () = self.leader_changed(&leader) => {}
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }

    /// Refuses a client with the reason. That confirms nothing: leases do not count from it.
    async fn turn_away<S: Transport>(&self, client: Client<S>) {
        let why = self.unhealthy_reason().unwrap_or_else(|| "the leader changes".into());
        if let Err(error) = relay::turn_away(client, &why).await {
            tracing::debug!(%error, "a client that was turned away");
        }
    }

    /// Why the store does not answer, if that has lasted.
    fn long_silence(&self) -> Option<String> {
        let silence = self.silence.borrow();
        let long = silence.as_ref().filter(|silence| silence.since.elapsed() >= REFUSE_AFTER);
        long.map(ToString::to_string)
    }

    async fn route(&self) -> Route {
        loop {
            match &*self.role.borrow() {
                Role::Leading(daemon) => return Route::Here(Rc::clone(daemon)),
                Role::Following(Following { leader: Some(leader), .. }) => {
                    return Route::There(leader.clone());
                }
                Role::Following(_) => {}
                Role::Stopping => return Route::Nowhere,
            }
            self.changed.notified().await;
        }
    }

    /// The daemon that leads, if it is another one.
    pub(crate) fn leader(&self) -> Option<Leader> {
        match &*self.role.borrow() {
            Role::Following(following) => following.leader.clone(),
            _ => None,
        }
    }

    /// Completes when that leader no longer leads, as far as is known here.
    pub(crate) async fn leader_changed(&self, leader: &Leader) {
        loop {
            match &*self.role.borrow() {
                Role::Following(Following { leader: Some(now), .. }) if now == leader => {}
                _ => return,
            }
            self.changed.notified().await;
        }
    }

    /// Takes other keys.
    pub(crate) fn set_keys(&self, keys: Option<Keys>) {
        self.gate.set_keys(keys);
        if let Some(daemon) = self.daemon() {
            daemon.borrow_mut().check_tokens();
        }
    }

    /// Whether the log is where it was.
    pub(crate) fn has_state(&self) -> bool {
        self.daemon().is_none_or(|daemon| daemon.borrow().has_state())
    }

    /// Why it should not be relied on just now.
    pub(crate) fn not_ready_reason(&self) -> Option<String> {
        match &*self.role.borrow() {
            Role::Leading(daemon) => daemon.borrow().not_ready_reason(),
            Role::Following(Following { trouble: Some(trouble), .. }) => Some(trouble.clone()),
            Role::Following(Following { leader: None, .. }) => Some("no daemon leads".into()),
            Role::Following(_) => None,
            Role::Stopping => Some("stopping".into()),
        }
    }

    /// Why a load balancer should send clients to another daemon.
    pub(crate) fn unhealthy_reason(&self) -> Option<String> {
        let of_leader = || {
            let (leader, relays) = (self.leader()?, self.relays.as_ref()?);
            relays.unreachable(&leader).or_else(|| relays.unhealthy(&leader))
        };
        let silence = || self.silence.borrow().as_ref().map(ToString::to_string);
        self.not_ready_reason().or_else(silence).or_else(of_leader)
    }

    /// How many entries it has yet to apply.
    pub(crate) fn lag(&self) -> u64 {
        match &*self.role.borrow() {
            Role::Following(following) => following.lag,
            Role::Leading(_) | Role::Stopping => 0,
        }
    }

    pub(crate) fn metrics(&self, buckets: bool) -> String {
        let (mut out, position, lag) = match &*self.role.borrow() {
            Role::Leading(daemon) => {
                let position = daemon.borrow_mut().server().position();
                (daemon.borrow().metrics(buckets), position, 0)
            }
            Role::Following(Following { state, position, lag, .. }) => {
                let shown = state.upgrade().map(|state| metrics::shared(&state.borrow(), buckets));
                (shown.unwrap_or_default() + &metrics::of_process(), *position, *lag)
            }
            Role::Stopping => (metrics::of_process(), 0, 0),
        };
        if let Some(relays) = &self.relays {
            metrics::fleet(&mut out, self.daemon().is_some(), position, lag, relays.count());
        }
        out
    }

    /// A client of another daemon, as that one presents it.
    pub(crate) fn relayed(&self, ticket: Option<&str>) -> Result<(Access, Rc<RefCell<Daemon>>), String> {
        let relays = self.relays.as_ref().ok_or("this daemon is not part of a fleet")?;
        let access = relays.check(ticket)?;
        let daemon = self.daemon().ok_or("this daemon does not lead")?;
        Ok((access, daemon))
    }
}
