//! What a daemon owes to clients that were there before it: each case alone, where [`faults`](../faults.rs) has them by
//! chance. The clients speak the protocol themselves, so that they come back when, and with what, the case wants.

use lockkeeper_core::{Cause, Mode};
use lockkeeper_faults::{
    process::{self, Daemon},
    stage::Stage,
};
use lockkeeper_wire::{Claim, Flags, Seal, ToClient, ToServer, VERSION, frame};
use rustix::process::Signal;
use std::{
    env, fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

const PROMPT: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(5);

/// A daemon, and the next one.
struct Place {
    stage: Stage,
    program: PathBuf,
    daemon: Option<Daemon>,
}

impl Place {
    fn new(test: &str) -> Self {
        let dir = env::temp_dir().join(format!("lockkeeper-restarts-{test}-{}", std::process::id()));
        let stage = Stage::new(&dir).expect("a directory can be made");
        let program = process::daemon_program().expect("the daemon can be built");
        let mut place = Self { stage, program, daemon: None };
        assert!(place.start(), "the daemon serves");
        place
    }

    fn start(&mut self) -> bool {
        let mut daemon =
            Daemon::start(&self.program, &self.stage, TTL, None).expect("the daemon can be started");
        let serves = daemon.serves(PROMPT);
        self.daemon = Some(daemon);
        serves
    }

    /// The daemon leaves in good order, and another starts.
    fn replace(&mut self) {
        let daemon = self.daemon.take().expect("there is one");
        daemon.signal(Signal::TERM).expect("it can be sent a signal");
        assert!(daemon.wait(PROMPT).expect("it can be waited for").is_some_and(|status| status.success()));
        assert!(self.start(), "the daemon serves");
    }

    /// The daemon is killed.
    fn kill(&mut self) {
        self.daemon.take().expect("there is one").kill().expect("it can be killed");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.daemon = None;
        let _ = fs::remove_dir_all(self.stage.dir());
    }
}

/// A client without a table of its own.
struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    id: String,
    secret: Seal,
    resumed: bool,
}

/// What a daemon says, as far as the cases need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Granted { rid: u64, token: u64, receipt: Seal },
    Queued { rid: u64, ticket: u64 },
    Broken { rid: u64, cause: Cause },
    Released { rid: u64 },
    Shown { token: Option<u64> },
}

impl Client {
    fn new(place: &Place) -> Self {
        Self::hello(place, None)
    }

    /// The same client, come back.
    fn back(self, place: &Place) -> Self {
        let back = Self::hello(place, Some((&self.id, self.secret)));
        assert!(back.resumed, "the daemon knows the session");
        back
    }

    fn hello(place: &Place, resume: Option<(&str, Seal)>) -> Self {
        let stream = UnixStream::connect(place.stage.socket()).expect("the daemon listens");
        stream.set_read_timeout(Some(PROMPT)).expect("it is a time");
        let (id, secret) = (String::new(), Seal::default());
        let mut client = Self { stream, input: Vec::new(), id, secret, resumed: false };
        client.say(&ToServer::Hello { version: VERSION, bucket: "default", resume, token: None });
        let (id, secret, resumed) = client.next(|message| match message {
            ToClient::Welcome { client_id, secret, resumed, .. } => (client_id.to_owned(), secret, resumed),
            other => panic!("no welcome: {other:?}"),
        });
        Self { id, secret, resumed, ..client }
    }

    fn say(&mut self, message: &ToServer<'_>) {
        let mut bytes = Vec::new();
        frame::append(&mut bytes, |out| message.encode(out));
        self.stream.write_all(&bytes).expect("the daemon reads");
    }

    fn next<T>(&mut self, then: impl FnOnce(ToClient<'_>) -> T) -> T {
        loop {
            if let Some((message, length)) =
                frame::first(&self.input, frame::MAX_TO_CLIENT).expect("it is not too long")
            {
                let result = then(ToClient::decode(message).expect("it is a message"));
                self.input.drain(..length);
                return result;
            }
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).expect("the daemon answers");
            assert_ne!(count, 0, "the daemon is there");
            self.input.extend(&bytes[..count]);
        }
    }

    fn hear(&mut self) -> Said {
        self.next(|message| match message {
            ToClient::Granted { rid, token, receipt } => Said::Granted { rid, token, receipt },
            ToClient::Queued { rid, ticket } => Said::Queued { rid, ticket },
            ToClient::Broken { rid, cause } => Said::Broken { rid, cause },
            ToClient::Released { rid } => Said::Released { rid },
            ToClient::Snapshot { entries, .. } => {
                Said::Shown { token: entries.first().and_then(|e| e.token) }
            }
            other => panic!("not expected: {other:?}"),
        })
    }

    fn request(&mut self, rid: u64, name: &str, flags: Flags) -> Said {
        let scope = vec![(name.as_bytes(), Mode::Exclusive)];
        self.say(&ToServer::Request { rid, scope, flags, nested_in: None, info: None });
        self.hear()
    }

    fn wait_for(&mut self, rid: u64, name: &str) -> Said {
        self.request(rid, name, Flags::default())
    }

    fn release(&mut self, rid: u64) {
        self.say(&ToServer::Release { rid });
        assert_eq!(self.hear(), Said::Released { rid });
    }

    fn reclaim(&mut self, said: Said, name: &str) {
        let (rid, claim) = match said {
            Said::Granted { rid, token, receipt } => (rid, Claim::Held { token, receipt }),
            Said::Queued { rid, ticket } => (rid, Claim::Waiting { ticket: Some(ticket) }),
            other => panic!("there is nothing to claim: {other:?}"),
        };
        let scope = vec![(name.as_bytes(), Mode::Exclusive)];
        self.say(&ToServer::Reclaim { rid, scope, info: None, claim });
    }
}

const STEAL: Flags = Flags { steal: true, if_available: false, refuse_deadlock: false };

#[test]
fn what_a_client_does_not_claim_when_it_comes_back_is_given_up() {
    let mut place = Place::new("unclaimed");
    let mut client = Client::new(&place);
    assert!(matches!(client.wait_for(1, "a"), Said::Granted { .. }));
    // It releases the lock, but the daemon leaves before it reads that.
    place.replace();
    let mut client = client.back(&place);
    client.say(&ToServer::Ready);
    let mut other = Client::new(&place);
    match other.wait_for(1, "a") {
        Said::Granted { .. } => {}
        _ => assert!(matches!(other.hear(), Said::Granted { .. })),
    }
}

#[test]
fn a_lock_that_was_stolen_while_its_holder_was_away_does_not_come_back() {
    let mut place = Place::new("stolen");
    let mut holder = Client::new(&place);
    let held = holder.wait_for(1, "a");
    place.replace();
    let mut thief = Client::new(&place);
    assert!(matches!(thief.request(1, "a", STEAL), Said::Granted { .. }));
    thief.release(1);
    let mut holder = holder.back(&place);
    holder.reclaim(held, "a");
    holder.say(&ToServer::Ready);
    assert_eq!(holder.hear(), Said::Broken { rid: 1, cause: Cause::Stolen });
}

#[test]
fn a_lock_that_was_granted_and_stolen_while_its_client_was_away_is_stolen() {
    let mut place = Place::new("granted-and-stolen");
    let (mut holder, mut waiter) = (Client::new(&place), Client::new(&place));
    let held = holder.wait_for(1, "a");
    let queued = waiter.wait_for(1, "a");
    place.replace();
    let mut holder = holder.back(&place);
    holder.reclaim(held, "a");
    holder.say(&ToServer::Ready);
    assert_eq!(holder.hear(), held);
    holder.release(1);
    let mut thief = Client::new(&place);
    assert!(matches!(thief.request(1, "a", STEAL), Said::Granted { .. }));
    let mut waiter = waiter.back(&place);
    waiter.reclaim(queued, "a");
    waiter.say(&ToServer::Ready);
    assert_eq!(waiter.hear(), Said::Broken { rid: 1, cause: Cause::Stolen });
}

#[test]
fn the_token_of_a_grant_that_was_not_heard_is_the_one_that_others_see() {
    let mut place = Place::new("token");
    let (mut holder, mut waiter) = (Client::new(&place), Client::new(&place));
    assert!(matches!(holder.wait_for(1, "a"), Said::Granted { .. }));
    let queued = waiter.wait_for(1, "a");
    holder.release(1);
    // The waiter is granted the lock, but does not read that.
    place.replace();
    let mut waiter = waiter.back(&place);
    waiter.reclaim(queued, "a");
    waiter.say(&ToServer::Ready);
    let Said::Granted { token, .. } = waiter.hear() else { panic!("it was granted") };
    waiter.say(&ToServer::Query { rid: 2, name: None, deadlocks: false });
    assert_eq!(waiter.hear(), Said::Shown { token: Some(token) });
}

#[test]
fn places_are_kept_through_two_daemons_of_which_one_was_never_seen() {
    let mut place = Place::new("order");
    let (mut holder, mut first, mut second) = (Client::new(&place), Client::new(&place), Client::new(&place));
    // Others have come and gone before.
    for rid in 1..10 {
        holder.wait_for(rid, "b");
        holder.release(rid);
    }
    let held = holder.wait_for(10, "a");
    let ahead = first.wait_for(1, "a");
    let behind = second.wait_for(1, "a");
    place.replace();
    let mut second = second.back(&place);
    second.reclaim(behind, "a");
    second.say(&ToServer::Ready);
    let behind = second.hear();
    place.kill();
    assert!(place.start());
    let (mut holder, mut first, mut second) = (holder.back(&place), first.back(&place), second.back(&place));
    for (client, said) in [(&mut second, behind), (&mut first, ahead), (&mut holder, held)] {
        client.reclaim(said, "a");
        client.say(&ToServer::Ready);
    }
    assert_eq!(holder.hear(), held);
    assert!(matches!(first.hear(), Said::Queued { .. }));
    assert!(matches!(second.hear(), Said::Queued { .. }));
    holder.release(10);
    assert!(matches!(first.hear(), Said::Granted { .. }), "who came first goes first");
}

#[test]
fn a_daemon_that_cannot_start_leaves_the_sessions_to_the_next() {
    let mut place = Place::new("start");
    let mut holder = Client::new(&place);
    let held = holder.wait_for(1, "a");
    place.kill();
    // As if the disk were full: the list of sessions cannot be written anew.
    let in_the_way = place.stage.state().join("sessions.new");
    fs::create_dir(&in_the_way).expect("a directory can be made");
    assert!(!place.start(), "it does not start");
    fs::remove_dir(&in_the_way).expect("it can be removed");
    assert!(place.start(), "it starts");
    let mut holder = holder.back(&place);
    holder.reclaim(held, "a");
    holder.say(&ToServer::Ready);
    assert_eq!(holder.hear(), held);
}

#[test]
fn the_end_of_a_client_that_waits_behind_itself_harms_nobody() {
    let place = Place::new("behind-itself");
    let (mut holder, mut greedy, mut other) = (Client::new(&place), Client::new(&place), Client::new(&place));
    // Two requests of one client: when the first ends, the second is next, and ends too.
    holder.wait_for(1, "a");
    greedy.wait_for(1, "b");
    let scope = vec![(&b"a"[..], Mode::Exclusive), (&b"c"[..], Mode::Exclusive)];
    greedy.say(&ToServer::Request { rid: 2, scope, flags: Flags::default(), nested_in: None, info: None });
    assert!(matches!(greedy.hear(), Said::Queued { .. }));
    assert!(matches!(greedy.wait_for(3, "c"), Said::Queued { .. }));
    assert!(matches!(other.wait_for(1, "b"), Said::Queued { .. }));
    drop(greedy);
    assert!(matches!(other.hear(), Said::Granted { .. }));
}
