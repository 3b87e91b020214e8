//! Sessions whose clients are not heard: for how long they are waited for, and what becomes of them.

use super::{Daemon, code};
use crate::{
    grace,
    session::{Peer, Session},
};
use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

/// How often it looks whether processes that it waits for still live.
const LOOK: Duration = Duration::from_millis(50);

/// Looks after those of a former life who are waited for, until nobody is.
pub(crate) async fn watch_for_absent(daemon: Rc<RefCell<Daemon>>) {
    loop {
        let next = daemon.borrow_mut().look_for_absent(Instant::now());
        let Some(next) = next else { return };
        tokio::time::sleep_until(next.into()).await;
    }
}

/// Ends the sessions on the network of which nothing is heard.
pub(crate) async fn watch_for_silent(daemon: Rc<RefCell<Daemon>>) {
    let first = Rc::clone(&daemon.borrow().first_look);
    loop {
        let next = daemon.borrow_mut().look_for_silent(Instant::now());
        match next {
            Some(next) => tokio::time::sleep_until(next.into()).await,
            None => first.notified().await,
        }
    }
}

impl Daemon {
    /// Ends the sessions of a former life that are not coming back. When to look for the others.
    fn look_for_absent(&mut self, now: Instant) -> Option<Instant> {
        let mut gone = Vec::new();
        self.blind_until = self.blind_until.filter(|until| now < *until);
        let mut next = self.blind_until;
        for (&key, until) in &mut self.awaited {
            let session = self.sessions[key as usize].as_ref().expect("who is waited for has a session");
            match grace::verdict(session.peer.process(), *until, now, self.former_ttl) {
                None => gone.push(key),
                Some(later) => {
                    *until = later;
                    let look = if session.peer == Peer::Network { later } else { later.min(now + LOOK) };
                    next = Some(next.map_or(look, |next: Instant| next.min(look)));
                }
            }
        }
        // By their numbers: the order in which they were recorded.
        gone.sort_unstable();
        for key in gone {
            let session = self.session(key);
            tracing::info!(session = session.id, "is not coming back");
            session.dismiss(code::OUT_OF_ORDER, "it is not ready: all was to be reclaimed within the ttl");
            self.lose(key);
        }
        self.settle_if_all_are_back();
        next
    }

    /// A session of a former life, or one whose connection was cut, goes on.
    pub(super) fn came_back(&mut self, key: u32, now: Instant) {
        if let Some(grace) = &mut self.grace {
            // It says all again.
            grace.forget(key);
        }
        let local = self.session(key).peer != Peer::Network;
        if let Some(until) = self.awaited.get_mut(&key).filter(|_| local) {
            *until = now + self.ttl;
        }
    }

    /// Ends the sessions on the network that have not been heard for the ttl. When to look for the next.
    fn look_for_silent(&mut self, now: Instant) -> Option<Instant> {
        while let Some(&(at, key)) = self.looks.first() {
            if at > now {
                return Some(at);
            }
            self.looks.pop_first();
            let session = self.session(key);
            session.look_at = None;
            let heard = session.outbox.as_ref().map_or(session.heard, |outbox| outbox.borrow().heard);
            if now < heard + self.ttl {
                self.look_later(key, heard);
                continue;
            }
            let session = self.session(key);
            tracing::info!(session = session.id, "ended: nothing was heard of it for the ttl");
            session.dismiss(code::OUT_OF_ORDER, "nothing was heard for the ttl: say ping");
            self.lose(key);
        }
        None
    }

    /// Ends a session whose client did not come back.
    fn lose(&mut self, key: u32) {
        let before = self.metrics.ended;
        self.end(key);
        self.metrics.losses += self.metrics.ended - before;
    }

    /// Looks at a session when the ttl has passed from when it was heard, unless it will be looked at before.
    pub(super) fn look_later(&mut self, key: u32, heard: Instant) {
        let at = heard + self.ttl;
        let session = self.session(key);
        session.heard = heard;
        if session.look_at.is_none() {
            session.look_at = Some(at);
            self.looks.insert((at, key));
            self.first_look.notify_one();
        }
    }

    /// A session has ended. Whether it was waited for.
    pub(super) fn forget(&mut self, key: u32, session: &Session) -> bool {
        if let Some(grace) = &mut self.grace {
            grace.forget(key);
        }
        if let Some(at) = session.look_at {
            self.looks.remove(&(at, key));
        }
        self.awaited.remove(&key).is_some()
    }
}
