//! The files of a daemon, when somebody else has their hands on them.

use crate::{
    client::Client,
    daemon::{Daemon, send_signal},
    temp::Temp,
};
use rustix::process::Signal;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Waits for something that is a matter of seconds.
fn wait_until(mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "it did not happen");
        thread::sleep(Duration::from_millis(20));
    }
}

fn listens(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

#[test]
fn a_socket_that_was_removed_is_made_again() {
    let daemon = Daemon::start();
    let mut holder = Client::open(&daemon);
    holder.hold("a");
    for lock_too in [false, true] {
        fs::remove_file(&daemon.setup.socket).expect("it is there");
        if lock_too {
            fs::remove_file(daemon.setup.socket.with_extension("lock")).expect("it is there");
        }
        wait_until(|| listens(&daemon.setup.socket));
        // A process that could open the lock file could hold it, and no daemon would start.
        for file in [daemon.setup.socket.clone(), daemon.setup.socket.with_extension("lock")] {
            let mode = fs::metadata(&file).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", file.display());
        }
        // It is the same daemon.
        let mut other = Client::open(&daemon);
        other.wait_for("a");
        holder.ping();
    }
    assert!(daemon.setup.socket.with_extension("lock").exists());
}

#[test]
fn a_folder_that_was_removed_is_made_again() {
    let daemon = Daemon::start_with(|setup| {
        setup.socket = setup.socket.with_file_name("folder").join("daemon.sock");
    });
    let mut holder = Client::open(&daemon);
    holder.hold("a");
    fs::remove_dir_all(daemon.setup.socket.parent().expect("it is in a folder")).expect("it is there");
    wait_until(|| listens(&daemon.setup.socket));
    Client::open(&daemon).wait_for("a");
}

#[test]
fn a_daemon_whose_place_another_has_taken_ends() {
    let mut daemon = Daemon::start();
    // It must not make its lock again before the other one has it.
    send_signal(daemon.pid(), Signal::STOP);
    fs::remove_file(daemon.setup.socket.with_extension("lock")).expect("it is there");
    let mut other = Daemon::prepare(Temp::new());
    other.setup.socket.clone_from(&daemon.setup.socket);
    other.run();
    let mut client = Client::open(&other);
    client.hold("a");
    send_signal(daemon.pid(), Signal::CONT);
    assert!(daemon.ended(), "it stops gracefully");
    // It leaves the other one's socket alone.
    Client::open(&other).wait_for("a");
}

#[test]
fn a_daemon_whose_state_was_removed_ends() {
    let mut daemon = Daemon::start();
    let mut holder = Client::open(&daemon);
    holder.hold("a");
    fs::remove_dir_all(&daemon.setup.state_dir).expect("it is there");
    wait_until(|| !listens(&daemon.setup.socket));
    daemon.kill();
    daemon.run();
    assert!(!holder.resume(&daemon).resumed);
}

#[test]
fn a_daemon_that_cannot_have_the_state_leaves_the_socket_alone() {
    let daemon = Daemon::start();
    let mut holder = Client::open(&daemon);
    holder.hold("a");
    // The socket's lock file was removed.
    fs::remove_file(daemon.setup.socket.with_extension("lock")).expect("it is there");
    let mut second = Daemon::prepare(crate::temp::Temp::new());
    second.setup = daemon.setup.clone();
    let why = second.try_run().expect_err("the state has another daemon");
    assert!(why.contains("another daemon is running"), "{why}");
    Client::open(&daemon).wait_for("a");
}
