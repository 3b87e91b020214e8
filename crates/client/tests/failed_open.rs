//! An attempt to open a session that fails. Alone in its process: it counts threads and
//! descriptors.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use lockkeeper_client::{Callbacks, Endpoint, Error, Options, Session};
use lockkeeper_wire::{frame, v2::ToClient};
use std::{
    env, fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    process, thread,
};

/// How many threads and descriptors this process has.
fn has() -> [usize; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(|dir| fs::read_dir(dir).unwrap().count())
}

#[test]
fn it_says_why_and_leaves_neither_threads_nor_descriptors() {
    let dir = env::temp_dir().join(format!("lockkeeper-client-failed-{}", process::id()));
    fs::create_dir(&dir).unwrap();
    let socket = dir.join("daemon.sock");
    let endpoint: Endpoint = format!("unix:{}", socket.display()).parse().unwrap();
    let open = || Session::open(&endpoint, Options::new("default"), Callbacks).map(drop);
    let before = has();
    let Err(error @ Error::Unreachable(..)) = open() else { panic!("nobody listens") };
    assert!(error.to_string().contains(&endpoint.to_string()), "{error}");
    assert_eq!(has(), before);
    // A server of another version.
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        send(&mut stream, &ToClient::Goodbye { code: 18, message: "upgrade the client" });
        // The client closes the connection.
        assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0);
    });
    let refused = open();
    let Err(Error::Refused { code: 18, message }) = refused else { panic!("{refused:?}") };
    assert_eq!(message, "upgrade the client");
    server.join().unwrap();
    assert_eq!(has(), before);
    fs::remove_dir_all(dir).unwrap();
}

fn send(stream: &mut UnixStream, message: &ToClient<'_>) {
    let mut out = Vec::new();
    frame::append(&mut out, |out| message.encode(out));
    stream.write_all(&out).unwrap();
}
