//! Conditions that must never occur, and those that must hold at the end.

use crate::{
    client::{Client, Wish},
    history::conflict,
    simulation::{Happening, LOOK_EVERY, Simulation, note},
    store::Full,
};
use lockkeeper_service::{Key, SessionId};

impl Client {
    /// Whether the client's lock is valid at this moment by its own clock, or its command works.
    fn believes(&self, now: u64, key: Key) -> bool {
        self.working == Some(key) || self.alive && self.session.is_held(self.clock.read(now), key)
    }

    fn locks(&self) -> impl Iterator<Item = (Key, &Wish)> {
        let of = |key: &Key| Some((*key, self.wishes.get(key)?));
        let working = self.working.iter().filter(|key| !self.live.contains(key));
        self.live.iter().chain(working).filter_map(of).filter(|(_, wish)| wish.token.is_some())
    }
}

impl Wish {
    /// It was stolen, released by force, or its session was ended by another client: it may seem
    /// valid to its client until it is notified.
    fn is_excused(&self) -> bool {
        self.broken.is_some() || self.ended
    }
}

impl Simulation {
    /// Two clients never have valid conflicting locks. Checked whenever one may have become valid.
    pub(crate) fn check_beliefs(&mut self, index: usize) {
        if let Some(what) = self.find_two_holders(index) {
            self.fail(what);
        }
    }

    fn find_two_holders(&self, index: usize) -> Option<String> {
        let now = self.now;
        let client = &self.clients[index];
        let believed = client.locks().filter(|(key, wish)| !wish.is_excused() && client.believes(now, *key));
        for (key, wish) in believed {
            for (other, someone) in self.clients.iter().enumerate() {
                if someone.config.bucket != client.config.bucket {
                    continue;
                }
                for (known, theirs) in someone.locks() {
                    let same = other == index && known == key;
                    let conflicting = !same && conflict(&wish.scope, &theirs.scope);
                    if conflicting && !theirs.is_excused() && someone.believes(now, known) {
                        return Some(format!(
                            "two holders: client {index} of {key} {wish:?}, and client {other} of {known} {theirs:?}"
                        ));
                    }
                }
            }
        }
        None
    }

    /// The faults have ended: stopped processes continue, and daemons start again.
    pub(crate) fn calm_down(&mut self) {
        note!(self, "the faults are over");
        self.calm = true;
        self.set_full(Full::Nobody);
        for client in 0..self.clients.len() {
            self.client_back(client);
        }
        for daemon in 0..self.daemons.len() {
            self.daemons[daemon].partitioned_until = 0;
            self.daemon_back(daemon);
            if self.daemons[daemon].few_sessions {
                self.kill(daemon, "to be started with another limit");
            }
            self.start(daemon);
        }
    }

    /// Ends the run as soon as all is over.
    pub(crate) fn look(&mut self) {
        self.end_unverifiable();
        let mut alive = self.clients.iter().filter(|client| client.alive);
        if !self.closing {
            self.closing = alive.all(|client| client.live.is_empty());
        } else if alive.all(|client| client.session.is_closed())
            && self.history.replica.session_count() == 0
            && self.disk.fifos.sessions().is_empty()
        {
            self.finished = true;
        }
        self.after(LOOK_EVERY, Happening::Look);
    }

    /// Every wish is over by now, and every session that has no client, too.
    pub(crate) fn check_served(&mut self) {
        self.closing = true;
        for (index, client) in self.clients.iter().enumerate() {
            if !client.alive {
                continue;
            }
            if let Some(key) = client.live.first() {
                let wish = &client.wishes[key];
                let state = (client.session.is_ready(), client.session.client_id(), client.current);
                let what = format!("client {index} still waits for {key}: {wish:?}, session {state:?}");
                return self.fail(what);
            }
        }
    }

    /// An operator ends unverifiable sessions.
    fn end_unverifiable(&mut self) {
        for index in 0..self.daemons.len() {
            let Some(server) = &self.daemons[index].server else { continue };
            let unverifiable = |id: &u64| server.is_unverifiable(*id);
            let sessions: Vec<_> = server.state().sessions().filter(unverifiable).collect();
            for session in sessions {
                self.end_by_hand(index, session);
            }
        }
    }

    /// An operator ends a session.
    pub(crate) fn end_by_hand(&mut self, index: usize, session: SessionId) {
        note!(self, "an operator ends {session:016x}");
        let Some(server) = &mut self.daemons[index].server else { return };
        if let Err(damaged) = server.revoke(session, "an operator ended the session") {
            return self.fail(damaged.to_string());
        }
        self.excuse(session);
        self.turn(index);
    }

    /// All clients have closed: no session and no request is left.
    pub(crate) fn check_nothing_left(&mut self) {
        let sessions: Vec<_> = self.history.replica.sessions().map(|id| format!("{id:016x}")).collect();
        if !sessions.is_empty() {
            let open: Vec<_> = self.clients.iter().map(|client| client.session.is_closed()).collect();
            self.fail(format!("sessions are left: {sessions:?}; clients that have closed: {open:?}"));
        }
        let fifos = self.disk.fifos.sessions();
        if !fifos.is_empty() {
            self.fail(format!("FIFOs are left of {fifos:x?}"));
        }
    }
}
