//! The snapshot (§4.5).

use super::{Daemon, Ticket, code, since};
use lockkeeper_core::{Live, Mode, Name};
use lockkeeper_wire::{Entry, ToClient, frame};

impl Daemon {
    pub(super) fn query(&mut self, key: u32, rid: u64, name: Option<&[u8]>) {
        if self.refuse_in_grace(key, rid) {
            return;
        }
        let now = since(self.began);
        let number = self.session(key).bucket;
        let manager = &self.buckets[number as usize].manager;
        let entry = |live: Live<'_, Ticket>, name: &Name, mode: Mode| OwnedEntry {
            name: name.clone(),
            mode,
            session: live.data().session,
            ticket: live.data().place,
            token: live.token().map(|token| live.data().token.unwrap_or(token.get())),
            info: live.data().info.clone(),
            since: now.saturating_sub(live.data().since),
        };
        let mut entries = Vec::new();
        // No more than fits: a name is kept once, however many ask for it, and shown for each.
        let mut room = frame::MAX_TO_CLIENT;
        let mut show = |live: Live<'_, Ticket>, name: &Name, mode| {
            let length = name.as_bytes().len() + live.data().info.as_ref().map_or(0, |info| info.len());
            room = room.saturating_sub(length);
            if room > 0 {
                entries.push(entry(live, name, mode));
            }
        };
        match name {
            Some(name) => {
                let name = Name::from(name);
                manager.queue(&name).for_each(|(live, mode)| show(live, &name, mode));
            }
            None => {
                for live in manager.requests() {
                    live.scope().for_each(|(name, mode)| show(live, name, mode));
                }
            }
        }
        // Held first; within each, the order of arrival stays.
        entries.sort_by_key(|entry| entry.token.is_none());
        let sessions = &self.sessions;
        let id = |key: u32| sessions[key as usize].as_ref().map_or("", |session| &session.id);
        let borrowed = entries.iter().map(|entry| Entry {
            name: entry.name.as_bytes(),
            mode: entry.mode,
            client_id: id(entry.session),
            ticket: entry.ticket,
            token: entry.token,
            info: entry.info.as_deref(),
            since: entry.since,
        });
        let snapshot = ToClient::Snapshot { rid, entries: borrowed.collect() };
        let mut bytes = Vec::new();
        frame::append(&mut bytes, |out| snapshot.encode(out));
        let session = self.session(key);
        if room == 0 || bytes.len() > frame::MAX_TO_CLIENT {
            let message = "the snapshot is too long: ask for one name";
            return session.send(&ToClient::Refused { rid, code: code::LIMIT, message });
        }
        if let Some(outbox) = &mut session.outbox {
            outbox.bytes.append(&mut bytes);
        }
    }
}

struct OwnedEntry {
    name: Name,
    mode: Mode,
    session: u32,
    ticket: u64,
    token: Option<u64>,
    info: Option<Box<str>>,
    since: u64,
}
