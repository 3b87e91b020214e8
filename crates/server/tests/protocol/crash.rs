//! A crash of the machine, of which the daemon knows by another boot: an unsynced log may lack its
//! end.

use crate::{
    client::Client,
    daemon::Daemon,
    disk::fill,
    namespace::{enter, mount},
    temp::Temp,
    web,
};
use lockkeeper_server::code;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// A machine with simulated boots.
struct Machine {
    dir: PathBuf,
    boots: u32,
}

impl Machine {
    fn new(dir: &Path) -> Self {
        let mut machine = Self { dir: dir.into(), boots: 0 };
        machine.boot();
        machine
    }

    /// All that starts from now on finds another boot.
    fn boot(&mut self) {
        self.boots += 1;
        let id = self.dir.join(format!("boot-{}", self.boots));
        fs::write(&id, format!("01234567-89ab-cdef-0123-{:012x}\n", self.boots)).expect("it is ours");
        mount(&["--bind", id.to_str().expect("text")], Path::new("/proc/sys/kernel/random/boot_id"));
    }

    fn daemon(&self, ttl: Duration) -> Daemon {
        let mut daemon = Daemon::prepare(Temp::given(&self.dir));
        daemon.open_port();
        daemon.setup.ttl = ttl;
        daemon.run();
        daemon
    }
}

const TTL: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(600);

/// Connects until the daemon has recovered.
fn first(daemon: &Daemon) -> Client {
    loop {
        let mut client = Client::mute(daemon);
        match client.open_session(None) {
            Ok(_) => {
                client.take_fifo();
                client.confirm();
                return client;
            }
            Err((code, why)) => assert!(code == code::RECOVERING && why.contains("crash"), "{why}"),
        }
    }
}

#[test]
fn sessions_end_the_longest_ttl_is_waited_for_and_tokens_skip_ahead() {
    enter("crash::sessions_end_the_longest_ttl_is_waited_for_and_tokens_skip_ahead", |dir| {
        let mut machine = Machine::new(dir);
        let mut daemon = machine.daemon(Duration::from_millis(100));
        let mut client = Client::mute_on_network(&daemon);
        let ttl = u64::try_from(TTL.as_millis()).expect("it is short");
        assert_eq!(client.greet(None, None, Some(ttl)).expect("a welcome").ttl, ttl);
        let token = client.hold("a").number;
        let mut local = Client::open(&daemon);
        local.hold("b");
        daemon.kill();
        machine.boot();
        let before = Instant::now();
        daemon.run();
        let health = web::get(&daemon, "/healthz");
        assert!(health.starts_with("HTTP/1.1 503 ") && health.contains("recovering"), "{health}");
        for client in [&mut client, &mut local] {
            client.reconnect(&daemon);
            let (code, why) = client.resume_here(None).expect_err("it is too early");
            assert!(code == code::RECOVERING, "{why}");
        }
        let mut next = first(&daemon);
        assert!(before.elapsed() >= TTL, "{:?}", before.elapsed());
        assert!(!client.resume(&daemon).resumed && !local.resume(&daemon).resumed);
        let skipped = next.hold("a").number;
        assert!(skipped > token + (1 << 24), "{skipped} after {token}");
        next.hold("b");
        assert!(web::get(&daemon, "/healthz").starts_with("HTTP/1.1 200 "));
        // It is over: the next start is one like any other.
        daemon.kill();
        daemon.run();
        assert_eq!(next.resume(&daemon).listed.len(), 2);
    });
}

#[test]
fn a_daemon_that_is_killed_while_it_waits_waits_again() {
    enter("crash::a_daemon_that_is_killed_while_it_waits_waits_again", |dir| {
        let mut machine = Machine::new(dir);
        let mut daemon = machine.daemon(TTL);
        let mut client = Client::on_network(&daemon);
        let token = client.hold("a").number;
        daemon.kill();
        machine.boot();
        daemon.run();
        for stop in [Daemon::kill, Daemon::stop] {
            stop(&mut daemon);
            let before = Instant::now();
            daemon.run();
            let mut next = Client::mute(&daemon);
            // Unless that took very long, it waits.
            match next.open_session(None) {
                Err((code, _)) => assert_eq!(code, code::RECOVERING),
                Ok(_) => assert!(before.elapsed() >= TTL),
            }
        }
        let mut next = first(&daemon);
        assert!(next.hold("a").number > token);
        assert!(!client.resume(&daemon).resumed);
    });
}

#[test]
fn nothing_is_waited_for_without_leases() {
    enter("crash::nothing_is_waited_for_without_leases", |dir| {
        let mut machine = Machine::new(dir);
        let mut daemon = machine.daemon(LONG);
        let mut local = Client::open(&daemon);
        let token = local.hold("a").number;
        daemon.kill();
        machine.boot();
        daemon.run();
        let mut next = Client::open(&daemon);
        assert!(next.hold("a").number > token);
        assert!(!local.resume(&daemon).resumed);
    });
}

#[test]
fn a_clean_stop_keeps_network_sessions_over_a_reboot() {
    enter("crash::a_clean_stop_keeps_network_sessions_over_a_reboot", |dir| {
        let mut machine = Machine::new(dir);
        let mut daemon = machine.daemon(LONG);
        let (mut remote, mut local) = (Client::on_network(&daemon), Client::open(&daemon));
        let held = remote.hold("a");
        local.hold("b");
        daemon.stop();
        machine.boot();
        daemon.run();
        assert_eq!(remote.resume(&daemon).listed[0].token, Some(held.number));
        // No process of this machine is left.
        remote.hold("b");
        assert!(!local.resume(&daemon).resumed);
    });
}

#[test]
fn a_synced_log_keeps_network_sessions_over_a_crash() {
    enter("crash::a_synced_log_keeps_network_sessions_over_a_crash", |dir| {
        let mut machine = Machine::new(dir);
        let mut daemon = machine.daemon(LONG);
        daemon.stop();
        daemon.setup.sync = true;
        daemon.run();
        let (mut remote, mut local) = (Client::on_network(&daemon), Client::open(&daemon));
        let held = remote.hold("a");
        local.hold("b");
        daemon.kill();
        machine.boot();
        daemon.run();
        assert_eq!(remote.resume(&daemon).listed[0].token, Some(held.number));
        assert!(remote.hold("b").number > held.number);
        assert!(!local.resume(&daemon).resumed);
    });
}

/// The lease was told by a daemon that syncs, and its session is still there under one that does
/// not.
#[test]
fn a_lease_that_was_told_with_a_synced_log_is_waited_for_without() {
    enter("crash::a_lease_that_was_told_with_a_synced_log_is_waited_for_without", |dir| {
        let mut machine = Machine::new(dir);
        let mut daemon = machine.daemon(TTL);
        daemon.stop();
        daemon.setup.sync = true;
        daemon.run();
        let mut client = Client::on_network(&daemon);
        client.hold("a");
        daemon.kill();
        daemon.setup.sync = false;
        daemon.run();
        daemon.kill();
        machine.boot();
        let before = Instant::now();
        daemon.run();
        let mut next = first(&daemon);
        assert!(before.elapsed() >= TTL, "{:?}", before.elapsed());
        next.hold("a");
    });
}

/// A lease that a daemon no longer grants may still be valid.
#[test]
fn a_lease_that_was_told_by_an_earlier_daemon_is_waited_for() {
    enter("crash::a_lease_that_was_told_by_an_earlier_daemon_is_waited_for", |dir| {
        let mut machine = Machine::new(dir);
        let mut daemon = machine.daemon(TTL);
        let mut client = Client::on_network(&daemon);
        client.hold("a");
        daemon.stop();
        daemon.setup.ttl = Duration::from_millis(1);
        daemon.run();
        daemon.kill();
        machine.boot();
        let before = Instant::now();
        daemon.setup.ttl = LONG;
        daemon.run();
        let mut next = first(&daemon);
        assert!(before.elapsed() >= TTL, "{:?}", before.elapsed());
        next.hold("a");
    });
}

/// Waits for something that happens elsewhere.
fn wait_until(mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "what was waited for does not happen");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Their ends are more than what is left of the disk. The daemon could not write them, and neither
/// could the next.
#[test]
fn sessions_end_when_the_disk_has_room_for_that() {
    enter("crash::sessions_end_when_the_disk_has_room_for_that", |dir| {
        mount(&["-t", "tmpfs", "-o", "size=24m", "tmpfs"], dir);
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("it is ours");
        let mut machine = Machine::new(dir);
        let mut daemon = machine.daemon(LONG);
        const COUNT: u64 = 1000;
        for _ in 0..COUNT {
            drop(Client::on_network(&daemon));
        }
        daemon.kill();
        machine.boot();
        // Without the room that the log has reserved, as it is copied from a backup.
        for entry in fs::read_dir(&daemon.setup.state_dir).expect("it is ours") {
            let path = entry.expect("it is ours").path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-")) {
                let bytes = fs::read(&path).expect("it is ours");
                let end = bytes.iter().rposition(|byte| *byte != 0).expect("it is not empty") as u64 + 64;
                fs::OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .and_then(|file| file.set_len(end))
                    .expect("it is ours");
            }
        }
        fill(dir);
        let filler = fs::OpenOptions::new().write(true).open(dir.join("filler")).expect("it is ours");
        let filled = filler.metadata().expect("it is ours").len();
        filler.set_len(filled - (8 << 10)).expect("it is ours");
        // An open file has its space.
        drop(filler);
        daemon.run();
        assert!(web::get(&daemon, "/healthz").starts_with("HTTP/1.1 503 "));
        assert_eq!(web::counts(&daemon)["lockkeeper_sessions"], COUNT as f64);
        fs::remove_file(dir.join("filler")).expect("it is ours");
        web::await_count(&daemon, "lockkeeper_sessions", 0.0);
    });
}

/// The longest wish has ended, and is not waited for.
#[test]
fn the_wait_after_a_crash_is_as_long_as_the_leases_of_sessions_that_were_there() {
    enter("crash::the_wait_after_a_crash_is_as_long_as_the_leases_of_sessions_that_were_there", |dir| {
        let mut machine = Machine::new(dir);
        let mut daemon = machine.daemon(Duration::from_millis(100));
        let mut client = Client::mute_on_network(&daemon);
        client.greet(None, None, Some(3_600_000)).expect("a welcome");
        let path = daemon.setup.state_dir.join("mark");
        let before = fs::read(&path).expect("it is there");
        client.bye();
        wait_until(|| fs::read(&path).expect("it is there") != before);
        daemon.kill();
        machine.boot();
        daemon.run();
        let mut next = first(&daemon);
        next.hold("a");
    });
}
