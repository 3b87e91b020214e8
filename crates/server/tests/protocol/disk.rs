//! Disks that are full or read-only.

use crate::{
    client::Client,
    daemon::Daemon,
    namespace::{enter, mount},
    temp::Temp,
    web,
};
use lockkeeper_server::code;
use lockkeeper_wire::v2::{Flags, ToClient};
use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
};

fn daemon(dir: &Path) -> Daemon {
    mount(&["-t", "tmpfs", "-o", "size=16m", "tmpfs"], dir);
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let mut daemon = Daemon::prepare(Temp::given(dir));
    daemon.open_port();
    daemon
}

/// Takes all space that is left. Removing the file gives it back.
pub(crate) fn fill(dir: &Path) {
    let mut file = OpenOptions::new().create(true).append(true).open(dir.join("filler")).expect("it is ours");
    for size in [64 << 10, 4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

#[test]
fn a_full_disk_refuses_requests_and_never_a_release() {
    enter("disk::a_full_disk_refuses_requests_and_never_a_release", |dir| {
        let mut daemon = daemon(dir);
        daemon.run();
        let [mut client, mut other] = [(); 2].map(|()| Client::open(&daemon));
        let mut remote = Client::on_network(&daemon);
        let first = client.hold("a");
        let waiting = other.wait_for("a");
        let theirs = remote.hold("b");
        fill(dir);
        // Long names take the space that the log has left, and short ones the rest.
        let name = "n".repeat(4000);
        let mut held = Vec::new();
        let mut why = "";
        for name in [&name[..], ""] {
            loop {
                let rid = client.request(&format!("{name} {}", held.len()));
                match client.hear() {
                    ToClient::Granted { rid: granted, .. } => held.push(granted),
                    ToClient::Refused { rid: refused, code, message } => {
                        assert_eq!((refused, code), (rid, code::STORAGE), "{message}");
                        why = message;
                        break;
                    }
                    message => panic!("{message:?}"),
                }
            }
        }
        let state_dir = daemon.setup.state_dir.display().to_string();
        assert!(why.contains("No space left") && why.contains(&state_dir), "{why}");
        assert!(held.len() > 10);
        let health = web::get(&daemon, "/healthz");
        assert!(health.starts_with("HTTP/1.1 503 ") && health.contains("No space left"), "{health}");
        // No new sessions, no steals, no force releases; but every question is answered.
        let refusal = loop {
            if let Err((code, _)) = Client::mute(&daemon).open_session(None) {
                break code;
            }
        };
        assert_eq!(refusal, code::STORAGE);
        let rid = other.force_release(&name);
        assert_eq!(other.refused(rid).0, code::STORAGE);
        let rid = other.request_with(&name, Flags { steal: true, ..Flags::default() });
        assert_eq!(other.refused(rid).0, code::STORAGE);
        assert_eq!(other.query(None).len(), held.len() + 3);
        remote.ping();
        // What is there can be resumed and released, also by a daemon that starts on a full disk.
        for restart in [false, true] {
            if restart {
                daemon.kill();
                daemon.run();
            }
            for session in [&mut client, &mut other, &mut remote] {
                assert!(session.resume(&daemon).resumed);
            }
            for _ in 0..held.len() / 2 {
                let rid = held.pop().expect("there are some");
                client.release(rid);
            }
        }
        client.release(first.rid);
        other.granted(waiting.rid);
        remote.release(theirs.rid);
        remote.bye();
        drop(other);
        let rid = client.request(&name);
        assert_eq!(client.refused(rid).0, code::STORAGE);
        // With space, all goes on.
        fs::remove_file(dir.join("filler")).expect("it is ours");
        let again = client.hold(&name);
        assert!(again.number > first.number);
        client.hold("a");
        Client::open(&daemon).hold("b");
        assert!(web::get(&daemon, "/healthz").starts_with("HTTP/1.1 200 "));
        held.push(again.rid);
        daemon.kill();
        daemon.run();
        assert_eq!(client.resume(&daemon).listed.len(), held.len() + 1);
    });
}

#[test]
fn a_read_only_state_directory_is_named() {
    enter("disk::a_read_only_state_directory_is_named", |dir| {
        let mut daemon = daemon(dir);
        daemon.run();
        let mut client = Client::open(&daemon);
        client.hold("a");
        daemon.stop();
        let state_dir = daemon.setup.state_dir.clone();
        mount(&["--bind", state_dir.to_str().expect("text")], &state_dir);
        mount(&["-o", "remount,bind,ro"], &state_dir);
        let why = daemon.try_run().expect_err("nothing can be written");
        let expected = state_dir.display().to_string();
        assert!(why.contains("Read-only file system") && why.contains(&expected), "{why}");
        mount(&["-o", "remount,bind,rw"], &state_dir);
        daemon.run();
        assert_eq!(client.resume(&daemon).listed.len(), 1);
    });
}
