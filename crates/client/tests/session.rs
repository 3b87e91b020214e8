//! A session against a server of the test's, on a Unix socket and on a WebSocket.
#![cfg(feature = "network")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use common::{Setup, TestServer};
use lockkeeper_client::{
    Callbacks, Endpoint, Error, Failure, Flags, Host, Key, Lifecycle, Options, Outcome, Outer, Request,
    Session, Update,
};
use lockkeeper_core::{Cause, Mode, Name};
use std::{
    fs,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

/// Nothing in these tests takes so long.
const NEVER: Duration = Duration::from_secs(30);

fn endpoint(server: &TestServer) -> Endpoint {
    server.url().parse().unwrap()
}

fn open(server: &TestServer) -> Session {
    Session::open(&endpoint(server), Options::new("default"), Callbacks).unwrap()
}

fn network() -> TestServer {
    TestServer::with(Setup { network: true, ..Setup::default() })
}

fn exclusive(name: &str) -> Request {
    Request {
        scope: vec![(Name::from(name), Mode::Exclusive)],
        flags: Flags::default(),
        nested_in: None,
        info: None,
    }
}

/// A request, and what becomes of it.
struct Submission {
    key: Key,
    updates: Receiver<Update>,
}

impl Submission {
    fn new(session: &Session, request: Request) -> Self {
        let (sender, updates) = mpsc::channel();
        let key = session.request(request, Box::new(move |update| _ = sender.send(update)));
        Self { key, updates }
    }

    fn next(&self) -> Update {
        self.updates.recv_timeout(NEVER).expect("something becomes of it")
    }

    fn granted(session: &Session, name: &str) -> Self {
        let submission = Self::new(session, exclusive(name));
        assert!(matches!(submission.next(), Update::Granted { .. }));
        submission
    }

    fn queued(session: &Session, name: &str) -> Self {
        let submission = Self::new(session, exclusive(name));
        assert!(matches!(submission.next(), Update::Queued { .. }));
        submission
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let never = Instant::now() + NEVER;
    while !holds() {
        assert!(Instant::now() < never, "not so: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

const LOST: Update = Update::Over(Outcome::Broken { cause: Cause::Lost, by: None, forced: false });

mod requests {
    use super::*;

    fn pass_a_lock_on(server: &TestServer) {
        let (one, other) = (open(server), open(server));
        let held = Submission::granted(&one, "a");
        let waits = Submission::queued(&other, "a");
        assert!(one.is_held(held.key) && !other.is_held(waits.key));
        assert_eq!(one.query(None).unwrap().entries.len(), 2);
        assert!(one.release(held.key));
        assert_eq!(held.next(), Update::Over(Outcome::Released));
        assert!(matches!(waits.next(), Update::Granted { .. }));
        assert!(!one.is_held(held.key) && other.is_held(waits.key));
        assert!(!one.release(held.key), "it is over");
        assert!(other.detach(waits.key));
        assert!(other.query(None).unwrap().entries.is_empty());
    }

    #[test]
    fn a_lock_goes_from_one_session_to_the_other_on_a_unix_socket() {
        pass_a_lock_on(&TestServer::start());
    }

    #[test]
    fn a_lock_goes_from_one_session_to_the_other_on_a_websocket() {
        pass_a_lock_on(&network());
    }

    #[test]
    fn a_request_can_be_refused_to_wait_and_can_steal() {
        let server = TestServer::start();
        let (one, other) = (open(&server), open(&server));
        let held = Submission::granted(&one, "a");
        let flags = Flags { if_available: true, ..Flags::default() };
        let unavailable = Submission::new(&other, Request { flags, ..exclusive("a") });
        assert_eq!(unavailable.next(), Update::Over(Outcome::Unavailable));
        let flags = Flags { steal: true, ..Flags::default() };
        let thief = Submission::new(&other, Request { flags, ..exclusive("a") });
        assert!(matches!(thief.next(), Update::Granted { .. }));
        let Update::Over(Outcome::Broken { cause: Cause::Stolen, .. }) = held.next() else { panic!() };
        assert!(!one.is_held(held.key));
    }

    #[test]
    fn what_is_too_long_for_a_message_is_refused_and_the_session_goes_on() {
        let server = TestServer::start();
        let session = open(&server);
        let info = Some("long".repeat(1 << 20));
        let refused = Submission::new(&session, Request { info, ..exclusive("a") });
        assert!(matches!(refused.next(), Update::Over(Outcome::Refused { code: 2, .. })));
        Submission::granted(&session, "a");
    }

    #[test]
    fn locks_are_broken_and_sessions_ended_by_hand() {
        let server = TestServer::start();
        let (one, other) = (open(&server), open(&server));
        let held = Submission::granted(&one, "a");
        assert_eq!(other.force_release(&Name::from("a")).unwrap(), 1);
        assert!(matches!(held.next(), Update::Over(Outcome::Broken { cause: Cause::Stolen, .. })));
        assert_eq!(other.force_release(&Name::from("a")).unwrap(), 0);
        let held = Submission::granted(&one, "b");
        let before = one.client_id();
        assert_eq!(other.end_session(&before).unwrap(), 1);
        let ended = Outcome::Broken { cause: Cause::Lost, by: None, forced: true };
        assert_eq!(held.next(), Update::Over(ended));
        Submission::granted(&one, "b");
        assert_ne!(one.client_id(), before, "it is another session");
        assert_eq!(other.end_session(&before).unwrap(), 0);
    }

    #[test]
    fn a_request_can_be_nested_in_one_of_another_session() {
        let server = TestServer::start();
        let (one, other) = (open(&server), open(&server));
        let a = Submission::granted(&one, "a");
        let (client_id, rid) = one.with(|view| view.outer(a.key)).unwrap();
        let nested_in = Some(Outer::Other(client_id, rid));
        let flags = Flags { refuse_deadlock: true, ..Flags::default() };
        // The holder of `a` waits for this one, and this one for `a`.
        let refused = Submission::new(&other, Request { nested_in, flags, ..exclusive("a") });
        assert!(matches!(refused.next(), Update::Over(Outcome::Deadlocked(_))));
        let own = Submission::new(&one, Request { nested_in: Some(Outer::Own(a.key)), ..exclusive("b") });
        assert!(matches!(own.next(), Update::Granted { .. }));
        let inspected = one.inspect(None).unwrap();
        assert!(inspected.entries[1].nested_in.is_some(), "{inspected:?}");
        assert!(inspected.entries[0].owner.as_ref().unwrap().contains(&std::process::id().to_string()));
    }

    #[test]
    fn a_thread_that_waits_reads_the_reply_itself() {
        let server = TestServer::start();
        let session = open(&server);
        // The session thread cannot: it does not get the read lock, nor is it woken.
        for number in 0..200 {
            let submission = Submission::new(&session, exclusive(&format!("a{number}")));
            let granted = std::cell::Cell::new(false);
            let answered = || {
                granted.set(granted.get() || submission.updates.try_recv().is_ok());
                granted.get()
            };
            session.spin_for_reply(answered);
            session.wait(answered, None);
            eventually("it was granted", answered);
            session.detach(submission.key);
        }
        let until = Instant::now() + Duration::from_millis(20);
        session.wait(|| false, Some(until));
        assert!(session.query(None).unwrap().entries.is_empty(), "the session thread reads again");
    }

    #[test]
    fn many_threads_share_one_session() {
        let server = TestServer::start();
        let session = &open(&server);
        thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || {
                    for _ in 0..200 {
                        let name = if number % 2 == 0 { "shared".into() } else { format!("own {number}") };
                        let (sender, updates) = mpsc::channel();
                        let key = session
                            .request(exclusive(&name), Box::new(move |update| _ = sender.send(update)));
                        loop {
                            session.spin_for_reply(|| false);
                            match updates.recv_timeout(NEVER).expect("it is served") {
                                Update::Queued { .. } => {}
                                Update::Granted { .. } => break,
                                over => panic!("{over:?}"),
                            }
                        }
                        assert!(session.detach(key));
                    }
                });
            }
        });
        assert!(session.query(None).unwrap().entries.is_empty());
    }

    #[test]
    fn more_than_a_socket_takes_is_sent_in_the_end() {
        let server = TestServer::start();
        let session = open(&server);
        server.freeze(true);
        let info = || Some("x".repeat(4000));
        let submissions: Vec<_> = (0..500)
            .map(|number| {
                Submission::new(&session, Request { info: info(), ..exclusive(&number.to_string()) })
            })
            .collect();
        server.freeze(false);
        for submission in &submissions {
            assert!(matches!(submission.next(), Update::Granted { .. }));
        }
    }
}

mod restarts {
    use super::*;

    fn outlived(mut server: TestServer) {
        let (one, other) = (open(&server), open(&server));
        let held = Submission::granted(&one, "a");
        let waits = Submission::queued(&other, "a");
        let (id, other_id) = (one.client_id(), other.client_id());
        server.kill();
        // What is asked meanwhile is asked later.
        let late = Submission::new(&one, exclusive("b"));
        server.run();
        assert!(matches!(late.next(), Update::Granted { .. }));
        assert_eq!(one.query(None).unwrap().entries.len(), 3);
        assert!(one.is_held(held.key));
        one.release(held.key);
        assert!(matches!(waits.next(), Update::Granted { .. }));
        assert_eq!((one.client_id(), other.client_id()), (id, other_id));
    }

    #[test]
    fn locks_outlive_a_server_that_is_killed_on_a_unix_socket() {
        outlived(TestServer::start());
    }

    #[test]
    fn locks_outlive_a_server_that_is_killed_on_a_websocket() {
        outlived(network());
    }

    #[test]
    fn a_lock_released_while_the_server_is_down_is_released() {
        let mut server = TestServer::start();
        let (one, other) = (open(&server), open(&server));
        let (released, dropped) = (Submission::granted(&one, "a"), Submission::granted(&one, "b"));
        server.kill();
        one.release(released.key);
        assert!(one.detach(dropped.key));
        server.run();
        assert_eq!(released.next(), Update::Over(Outcome::Released));
        Submission::new(&other, exclusive("a")).updates.recv_timeout(NEVER).unwrap();
        eventually("both are free", || one.query(None).unwrap().entries.len() == 1);
    }

    #[test]
    fn a_client_that_ends_while_the_server_is_down_is_gone_afterwards() {
        let mut server = TestServer::start();
        let (one, other) = (open(&server), open(&server));
        let _held = Submission::granted(&one, "a");
        let waits = Submission::queued(&other, "a");
        eventually("it has its FIFO", || one.fifo().unwrap().is_some());
        // Answered in order: what confirmed the FIFO is recorded.
        one.query(None).unwrap();
        server.kill();
        drop(one);
        server.run();
        assert!(matches!(waits.next(), Update::Granted { .. }));
    }
}

mod fifos {
    use super::*;
    use rustix::fs::OFlags;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_session_lives_as_long_as_somebody_has_its_descriptor() {
        let mut server = TestServer::start();
        let (one, other) = (open(&server), open(&server));
        let _held = Submission::granted(&one, "a");
        let inherited = one.fifo().unwrap().expect("it came before the grant");
        one.query(None).unwrap();
        let waits = Submission::queued(&other, "a");
        let id = one.client_id();
        // The server hears no Bye, and the client's own descriptor is closed.
        server.kill();
        drop(one);
        server.run();
        assert_eq!(other.query(None).unwrap().entries[0].client_id, id);
        assert!(waits.updates.try_recv().is_err(), "another process would have it open");
        drop(inherited);
        assert!(matches!(waits.next(), Update::Granted { .. }));
    }

    /// The other end of a session's FIFO. Whether nobody has this end open is what is read from it.
    fn other_end(session: &Session) -> impl Fn() -> bool {
        let fifo = session.fifo().unwrap().expect("it has one");
        let path = format!("/proc/self/fd/{}", fifo.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let end = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
        move || matches!(rustix::io::read(&end, &mut [0; 1]), Ok(0))
    }

    #[test]
    fn it_is_closed_with_the_session_and_replaced_with_the_next_one() {
        let server = TestServer::start();
        let (one, other) = (open(&server), open(&server));
        eventually("it has its FIFO", || one.fifo().unwrap().is_some());
        let flags = rustix::io::fcntl_getfd(one.fifo().unwrap().unwrap()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let is_closed = other_end(&one);
        assert!(!is_closed());
        other.end_session(&one.client_id()).unwrap();
        eventually("the first one is closed", is_closed);
        eventually("there is another one", || one.fifo().unwrap().is_some());
        let is_closed = other_end(&one);
        assert!(!is_closed());
        one.close();
        assert!(one.fifo().unwrap().is_none());
        // The server closes its own copy when it has sent it.
        eventually("the second one is closed", is_closed);
        eventually("one session is left", || server.sessions() == 1);
    }

    #[test]
    fn it_is_closed_when_the_session_is_lost_whatever_comes_next() {
        let server = TestServer::start();
        let (one, other) = (open(&server), open(&server));
        eventually("it has its FIFO", || one.fifo().unwrap().is_some());
        let (before, is_closed) = (one.client_id(), other_end(&one));
        server.pass_no_fifos();
        other.end_session(&before).unwrap();
        eventually("there is another session", || {
            ![String::new(), before.clone()].contains(&one.client_id())
        });
        assert!(is_closed() && one.fifo().unwrap().is_none());
    }

    #[test]
    fn without_one_a_local_session_has_a_lease() {
        let server = TestServer::with(Setup { fifo: false, ttl: 1000, ..Setup::default() });
        let session = open(&server);
        let held = Submission::granted(&session, "a");
        eventually("it pings", || server.pings() > 0);
        assert!(session.fifo().unwrap().is_none());
        server.freeze(true);
        assert_eq!(held.next(), LOST);
        assert!(!session.is_held(held.key));
        server.freeze(false);
        // The server may receive the Hello of the next session before the end of this one.
        let again = Submission::new(&session, exclusive("a"));
        while !matches!(again.next(), Update::Granted { .. }) {}
    }

    #[test]
    fn with_one_it_has_none() {
        let server = TestServer::with(Setup { ttl: 1000, ..Setup::default() });
        let (session, other) = (open(&server), open(&server));
        let held = Submission::granted(&session, "a");
        // Both have confirmed: the answers come in order.
        for session in [&session, &other] {
            eventually("it has its FIFO", || session.fifo().unwrap().is_some());
            session.query(None).unwrap();
        }
        assert_eq!(server.pings(), 0);
        assert!(session.is_held(held.key));
    }
}

mod leases {
    use super::*;

    fn server(ttl: u64) -> TestServer {
        TestServer::with(Setup { network: true, ttl, ..Setup::default() })
    }

    #[test]
    fn a_lock_is_lost_when_the_server_is_not_heard_and_the_next_session_comes_by_itself() {
        let mut server = server(1000);
        let session = open(&server);
        let held = Submission::granted(&session, "a");
        let waits = Submission::queued(&session, "a");
        server.kill();
        assert_eq!(held.next(), LOST);
        assert_eq!(waits.next(), LOST);
        assert!(!session.is_held(held.key));
        let later = Submission::new(&session, exclusive("b"));
        server.run();
        assert!(matches!(later.next(), Update::Granted { .. }));
    }

    #[test]
    fn whoever_asks_is_told_by_the_clock_even_if_the_session_thread_does_not_run() {
        let server = server(1000);
        let session = open(&server);
        let held = Submission::granted(&session, "a");
        let (released, unreleased) = (Submission::granted(&session, "b"), Submission::granted(&session, "c"));
        assert!(session.is_held(held.key));
        // The session thread, which alone reads a WebSocket, is kept busy until after the lease.
        let (go, goes) = mpsc::channel::<()>();
        let (busy, is_busy) = mpsc::channel();
        session.query_then(None, move |_| {
            busy.send(()).unwrap();
            let _ = goes.recv_timeout(NEVER);
        });
        is_busy.recv_timeout(NEVER).unwrap();
        eventually("the lease expires", || !session.is_held(held.key));
        assert!(!session.detach(released.key), "nor can they be released");
        assert!(!session.release(unreleased.key));
        assert_eq!(held.next(), LOST);
        go.send(()).unwrap();
        let again = Submission::new(&session, exclusive("a"));
        while !matches!(again.next(), Update::Granted { .. }) {}
    }

    #[test]
    fn pings_keep_the_lease() {
        let server = server(2000);
        let session = open(&server);
        let held = Submission::granted(&session, "a");
        // Seven in each ttl.
        eventually("two ttls have passed", || server.pings() > 10);
        assert!(session.is_held(held.key));
    }
}

mod opening {
    use super::*;

    #[test]
    fn a_token_file_may_end_with_a_new_line_and_is_read_each_time() {
        let mut server =
            TestServer::with(Setup { network: true, token: Some("good".into()), ..Setup::default() });
        let wrong = endpoint(&server).with_token("bad");
        let refused = Session::open(&wrong, Options::new("default"), Callbacks).map(drop);
        assert!(matches!(refused, Err(Error::Refused { code: 20, .. })), "{refused:?}");
        let file = std::env::temp_dir().join(format!("lockkeeper-client-token-{}", std::process::id()));
        fs::write(&file, "good\n").unwrap();
        let endpoint = endpoint(&server).with_token_file(&file);
        let session = Session::open(&endpoint, Options::new("default"), Callbacks).unwrap();
        Submission::granted(&session, "a");
        // A session that is refused is asked for again by the next request.
        server.kill();
        server.set_token("better");
        server.run();
        // The first may be sent before it is noticed that the server is gone: it is lost with the
        // session.
        let refused = std::iter::repeat_with(|| Submission::new(&session, exclusive("b")).next());
        let refused = refused.take(2).find(|update| *update != LOST);
        let Some(Update::Over(Outcome::Failed(Failure::Refused { code: 20, .. }))) = refused else {
            panic!("{refused:?}")
        };
        fs::write(&file, "better\n").unwrap();
        Submission::granted(&session, "b");
        fs::remove_file(file).unwrap();
    }

    #[test]
    fn of_several_urls_the_next_one_is_tried() {
        let mut server = network();
        // No server listens on the first.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let endpoint: Endpoint = format!("ws://{free},{}", server.url()).parse().unwrap();
        let session = Session::open(&endpoint, Options::new("default"), Callbacks).unwrap();
        let held = Submission::granted(&session, "a");
        server.kill();
        server.run();
        assert_eq!(session.query(None).unwrap().entries.len(), 1);
        assert!(session.is_held(held.key));
    }

    #[test]
    fn a_server_that_stops_is_waited_for() {
        let server = TestServer::start();
        let session = open(&server);
        let held = Submission::granted(&session, "a");
        server.goodbye(32);
        assert_eq!(session.query(None).unwrap().entries.len(), 1);
        assert!(session.is_held(held.key));
    }

    struct Lives(Sender<Lifecycle>);

    impl Host for Lives {
        type Data = Sender<Outcome>;
        type After = ();
        fn granted(&mut self, _: Key, _: u64, _: &mut Self::Data, (): &mut ()) {}
        fn over(&mut self, _: Key, outcome: Outcome, data: Self::Data, (): &mut ()) {
            let _ = data.send(outcome);
        }
        fn session(&mut self, news: Lifecycle, (): &mut ()) {
            let _ = self.0.send(news);
        }
    }

    #[test]
    fn a_session_that_is_started_takes_requests_before_it_is_open() {
        let server = TestServer::start();
        let (sender, lives) = mpsc::channel();
        let (opened, opens) = mpsc::channel();
        let session =
            Session::start(&endpoint(&server), Options::new("default"), Lives(sender), move |result| {
                opened.send(result.is_ok()).unwrap();
            })
            .unwrap();
        let (over, _) = mpsc::channel();
        let key = session.request(exclusive("a"), over);
        assert_eq!(opens.recv_timeout(NEVER), Ok(true));
        assert!(matches!(lives.recv_timeout(NEVER), Ok(Lifecycle::Opened { resumed: false, .. })));
        eventually("it is granted", || session.is_held(key));
        session.close();
        assert_eq!(lives.recv_timeout(NEVER), Ok(Lifecycle::Closed));
        let (over, overs) = mpsc::channel();
        session.request(exclusive("a"), over);
        assert_eq!(overs.recv_timeout(NEVER), Ok(Outcome::Failed(Failure::Closed)));
    }

    #[test]
    fn a_session_that_cannot_be_started_fails_its_requests() {
        let (sender, _lives) = mpsc::channel();
        let (opened, opens) = mpsc::channel();
        let nobody = "unix:/nowhere/daemon.sock".parse().unwrap();
        let session = Session::start(&nobody, Options::new("default"), Lives(sender), move |result| {
            opened.send(result.unwrap_err().to_string()).unwrap();
        })
        .unwrap();
        let (over, overs) = mpsc::channel();
        session.request(exclusive("a"), over);
        assert!(opens.recv_timeout(NEVER).unwrap().contains("unix:/nowhere/daemon.sock"));
        assert!(matches!(overs.recv_timeout(NEVER), Ok(Outcome::Failed(_))));
    }
}
