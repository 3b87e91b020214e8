//! A session with a server that says just what the test wants, when the test wants it.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use lockkeeper_client::{Callbacks, Endpoint, Flags, Key, Options, Request, Session, Update};
use lockkeeper_core::{Mode, Name};
use lockkeeper_wire::{
    frame,
    v2::{Listed, ToClient, ToServer, VERSION},
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::{
    env, fs,
    io::{IoSlice, Read, Write},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    process,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

/// Nothing in these tests takes so long.
const NEVER: Duration = Duration::from_secs(30);

struct Script {
    dir: PathBuf,
    listener: UnixListener,
}

impl Script {
    fn new(test: &str) -> (Self, Endpoint) {
        let dir = env::temp_dir().join(format!("lockkeeper-client-{test}-{}", process::id()));
        fs::create_dir(&dir).unwrap();
        let socket = dir.join("daemon.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        (Self { dir, listener }, format!("unix:{}", socket.display()).parse().unwrap())
    }

    /// Accepts a client, and hears its Hello.
    fn accept(&self) -> UnixStream {
        let (mut stream, _) = self.listener.accept().unwrap();
        assert!(receive(&mut stream, |message| matches!(message, ToServer::Hello { .. })));
        stream
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Whether the next message is as expected.
fn receive(stream: &mut UnixStream, expected: impl FnOnce(&ToServer<'_>) -> bool) -> bool {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut message).unwrap();
    expected(&ToServer::decode(&message).unwrap())
}

/// Sends all messages at once.
fn send<const N: usize>(stream: &mut UnixStream, messages: [ToClient<'_>; N]) {
    let mut out = Vec::new();
    messages.iter().for_each(|message| frame::append(&mut out, |out| message.encode(out)));
    stream.write_all(&out).unwrap();
}

fn welcome(resumed: bool, last_rid: u64) -> ToClient<'static> {
    let (client_id, secret) = ("0123456789abcdef", [7; 16]);
    ToClient::Welcome {
        version: VERSION,
        features: 0,
        number: 1 + u64::from(resumed),
        client_id,
        secret,
        ttl: 600_000,
        resumed,
        last_rid,
    }
}

fn request(session: &Session, name: &str) -> (Key, Receiver<Update>) {
    let (sender, updates) = mpsc::channel();
    let scope = vec![(Name::from(name), Mode::Exclusive)];
    let request = Request { scope, flags: Flags::default(), nested_in: None, info: None };
    (session.request(request, Box::new(move |update| _ = sender.send(update))), updates)
}

#[test]
fn what_comes_with_the_welcome_is_heard() {
    let (script, endpoint) = Script::new("welcome");
    let server = thread::spawn(move || {
        let mut stream = script.accept();
        send(&mut stream, [welcome(false, 0), ToClient::Synced]);
        assert!(receive(&mut stream, |message| matches!(message, ToServer::Request { rid: 1, .. })));
        send(&mut stream, [ToClient::Queued { rid: 1, arrival: 9 }]);
        drop(stream);
        let mut stream = script.accept();
        let requests = vec![Listed { rid: 1, arrival: 9, token: Some(7) }];
        send(&mut stream, [welcome(true, 1), ToClient::Listed { requests }, ToClient::Synced]);
        assert!(receive(&mut stream, |message| matches!(message, ToServer::Bye { .. })));
    });
    let session = Session::open(&endpoint, Options::new("default"), Callbacks).unwrap();
    let (key, updates) = request(&session, "a");
    assert_eq!(updates.recv_timeout(NEVER), Ok(Update::Queued { arrival: 9 }));
    assert_eq!(updates.recv_timeout(NEVER), Ok(Update::Granted { token: 7 }));
    assert!(session.is_held(key));
    drop(session);
    server.join().unwrap();
}

#[test]
fn a_message_in_pieces_is_put_together_whoever_reads_them() {
    let (script, endpoint) = Script::new("pieces");
    let (go, goes) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut stream = script.accept();
        send(&mut stream, [welcome(false, 0), ToClient::Synced]);
        assert!(receive(&mut stream, |message| matches!(message, ToServer::Request { rid: 1, .. })));
        let mut out = Vec::new();
        let granted = ToClient::Granted { rid: 1, token: 1 << 40 };
        frame::append(&mut out, |out| granted.encode(out));
        // Most of it is read by a thread that then stops waiting, the rest by the session thread.
        stream.write_all(&out[..7]).unwrap();
        goes.recv_timeout(NEVER).unwrap();
        stream.write_all(&out[7..]).unwrap();
        assert!(receive(&mut stream, |message| matches!(message, ToServer::Bye { .. })));
    });
    let session = Session::open(&endpoint, Options::new("default"), Callbacks).unwrap();
    let (_, updates) = request(&session, "a");
    session.spin_for_reply(|| false);
    session.wait(|| false, Some(std::time::Instant::now() + Duration::from_millis(10)));
    go.send(()).unwrap();
    assert_eq!(updates.recv_timeout(NEVER), Ok(Update::Granted { token: 1 << 40 }));
    drop(session);
    server.join().unwrap();
}

#[test]
fn bytes_that_are_no_message_end_the_connection_and_not_the_session() {
    let (script, endpoint) = Script::new("malformed");
    let server = thread::spawn(move || {
        let mut stream = script.accept();
        send(&mut stream, [welcome(false, 0), ToClient::Synced]);
        assert!(receive(&mut stream, |message| matches!(message, ToServer::Request { rid: 1, .. })));
        stream.write_all(b"\0\0\0\x01\xc1").unwrap();
        assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "the client closes it");
        let mut stream = script.accept();
        let requests = vec![Listed { rid: 1, arrival: 9, token: Some(7) }];
        send(&mut stream, [welcome(true, 1), ToClient::Listed { requests }, ToClient::Synced]);
        assert!(receive(&mut stream, |message| matches!(message, ToServer::Bye { .. })));
    });
    let session = Session::open(&endpoint, Options::new("default"), Callbacks).unwrap();
    let (_, updates) = request(&session, "a");
    assert_eq!(updates.recv_timeout(NEVER), Ok(Update::Granted { token: 7 }));
    drop(session);
    server.join().unwrap();
}

/// Passes a descriptor that ends up as the session's.
fn pass_fifo(stream: &mut UnixStream) {
    let (_, writer) = std::io::pipe().unwrap();
    let mut out = Vec::new();
    frame::append(&mut out, |out| ToClient::Fifo.encode(out));
    let fds = [writer.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    assert_eq!(sendmsg(&*stream, &[IoSlice::new(&out)], &mut control, SendFlags::NOSIGNAL), Ok(out.len()));
}

/// Answers the next question, after these messages.
fn answer<const N: usize>(stream: &mut UnixStream, before: [ToClient<'_>; N]) {
    let mut number = 0;
    let question = |message: &ToServer<'_>| match message {
        ToServer::Query { rid, .. } => {
            number = *rid;
            true
        }
        _ => false,
    };
    assert!(receive(stream, question));
    send(stream, before);
    let (entries, deadlocks) = (Vec::new(), Vec::new());
    send(stream, [ToClient::Snapshot { rid: number, entries, deadlocks, last_token: 0, more: false }]);
}

/// A child that inherits it would not keep the session alive: that has a lease, which ends with
/// this process.
#[test]
fn a_descriptor_is_inherited_once_the_server_has_confirmed_that_the_session_lives_by_it() {
    let (script, endpoint) = Script::new("confirmed");
    let (confirmed, confirms) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut stream = script.accept();
        send(&mut stream, [welcome(false, 0), ToClient::Synced]);
        pass_fifo(&mut stream);
        assert!(receive(&mut stream, |message| matches!(message, ToServer::Confirm { .. })));
        confirmed.send(()).unwrap();
        answer(&mut stream, []);
        answer(&mut stream, [ToClient::Confirmed]);
        assert!(receive(&mut stream, |message| matches!(message, ToServer::Bye { .. })));
    });
    let session = Session::open(&endpoint, Options::new("default"), Callbacks).unwrap();
    confirms.recv_timeout(NEVER).unwrap();
    assert!(session.fifo().unwrap().is_none());
    assert!(session.fifo().unwrap().is_some());
    // From now on no query is needed.
    assert!(session.fifo().unwrap().is_some());
    drop(session);
    server.join().unwrap();
}
