//! Subscriptions, over sockets: changes come by themselves, and again after a daemon was killed.

use crate::{client::Client, daemon::Daemon};
use lockkeeper_wire::v2::{ToClient, ToServer};
use std::collections::BTreeMap;

/// The names that are held, and those that are waited for, by arrival.
#[derive(Default)]
pub(crate) struct Seen {
    rid: u64,
    requests: BTreeMap<u64, (Vec<u8>, bool)>,
    states: usize,
}

impl Seen {
    pub(crate) fn subscribe(client: &mut Client) -> Self {
        let (ack, rid) = (client.ack, client.last_rid + 1);
        client.last_rid = rid;
        client.say(&ToServer::Subscribe { ack, rid });
        Self { rid, ..Self::default() }
    }

    fn hear(&mut self, client: &mut Client) {
        match client.hear() {
            ToClient::Snapshot { rid, entries, more, .. } => {
                assert_eq!((rid, more), (self.rid, false), "it is short");
                self.states += 1;
                self.requests.clear();
                self.add(entries);
            }
            ToClient::Changes { rid, entries, gone, .. } => {
                assert!(rid == self.rid && self.states > 0, "the state comes first");
                gone.iter().for_each(|arrival| _ = self.requests.remove(arrival));
                self.add(entries);
            }
            other => panic!("{other:?}"),
        }
    }

    fn add(&mut self, entries: Vec<lockkeeper_wire::v2::Entry<'_>>) {
        for entry in entries {
            self.requests.insert(entry.arrival, (entry.name.to_vec(), entry.token.is_some()));
        }
    }

    /// Hears until it has seen what there is: changes may come one by one or together.
    pub(crate) fn await_requests(&mut self, client: &mut Client, expected: &[(&str, bool)]) {
        let seen = |seen: &Self| seen.requests.values().cloned().collect::<Vec<_>>();
        let expected: Vec<_> =
            expected.iter().map(|(name, held)| (name.as_bytes().to_vec(), *held)).collect();
        while self.states == 0 || seen(self) != expected {
            self.hear(client);
        }
    }
}

#[test]
fn changes_come_by_themselves() {
    let daemon = Daemon::on_network();
    type Open = fn(&Daemon) -> Client;
    for open in [Client::open as Open, Client::on_network] {
        let [mut viewer, mut one, mut other] = [(); 3].map(|()| open(&daemon));
        let held = one.hold("a");
        let mut seen = Seen::subscribe(&mut viewer);
        seen.await_requests(&mut viewer, &[("a", true)]);
        let waiting = other.wait_for("a");
        seen.await_requests(&mut viewer, &[("a", true), ("a", false)]);
        one.release(held.rid);
        seen.await_requests(&mut viewer, &[("a", true)]);
        other.granted(waiting.rid);
        other.hold("b");
        seen.await_requests(&mut viewer, &[("a", true), ("b", true)]);
        // It ends with all it has.
        other.say(&ToServer::Bye { ack: other.ack });
        seen.await_requests(&mut viewer, &[]);
        assert_eq!(seen.states, 1);
    }
}

#[test]
fn who_resumes_subscribes_again() {
    let mut daemon = Daemon::start();
    let (mut viewer, mut one) = (Client::open(&daemon), Client::open(&daemon));
    one.hold("a");
    let mut seen = Seen::subscribe(&mut viewer);
    seen.await_requests(&mut viewer, &[("a", true)]);
    daemon.kill();
    daemon.run();
    viewer.resume(&daemon);
    one.resume(&daemon);
    let mut seen = Seen::subscribe(&mut viewer);
    seen.await_requests(&mut viewer, &[("a", true)]);
    one.hold("b");
    seen.await_requests(&mut viewer, &[("a", true), ("b", true)]);
}
