//! `run` and `query` with a daemon that is reached by WebSocket.

mod common;

use common::{Holder, User, http, listen, wait_until};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// A daemon with a port, and where to find it.
struct Server {
    user: User,
    args: Vec<String>,
    child: Child,
    address: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        // Others listen at 127.0.0.1, and connections start there. They cannot be given the port of
        // a daemon that is about to be started again.
        Self::start_as(User::new(), args, "127.0.0.2:0")
    }

    fn start_as(user: User, args: &[&str], address: &str) -> Self {
        let (child, address) = listen(&user, args, address);
        let args = args.iter().map(ToString::to_string).collect();
        Self { user, args, child, address }
    }

    /// Kills it, and starts it again where it was.
    fn restart(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is dead");
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        (self.child, _) = listen(&self.user, &args, &self.address);
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.user.command(args);
        command.env("LOCKKEEPER_URL", format!("ws://{}", self.address));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().expect("it starts")
    }

    /// Starts `run` with a command that says when it holds the lock, and holds it until it is let
    /// go.
    fn start_holder(&self, args: &[&str]) -> Holder {
        Holder::start(self.command(&["run"]).args(args))
    }

    fn hold(&self, args: &[&str]) -> Holder {
        let mut holder = self.start_holder(args);
        assert_eq!(holder.line(), "held");
        holder
    }

    fn pending(&self, name: &str) -> usize {
        let json = String::from_utf8(self.run(&["query", "--json", name]).stdout).expect("it is text");
        json.split_once("\"pending\"").map_or(0, |(_, pending)| pending.matches("\"clientId\"").count())
    }

    fn wait_for_pending(&self, name: &str, count: usize) {
        common::wait_until(|| self.pending(name) == count);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn locks_reach_across_the_network() {
    let server = Server::start(&["--share-buckets"]);
    let mut holder = server.hold(&["a"]);
    assert_eq!(server.run(&["run", "--if-available", "a", "--", "true"]).status.code(), Some(75));
    assert_eq!(server.run(&["run", "--timeout", "10ms", "a", "--", "true"]).status.code(), Some(75));
    // The processes of the daemon's machine have the same locks, if that is wished for.
    assert_eq!(server.user.run(&["run", "--if-available", "a", "--", "true"]).status.code(), Some(75));
    let mut next = server.start_holder(&["a"]);
    server.wait_for_pending("a", 1);
    assert_eq!(holder.let_go(), 0);
    assert_eq!(next.line(), "held");
    let mut thief = server.hold(&["--steal", "a"]);
    assert_eq!(next.code(), 76);
    assert_eq!(thief.let_go(), 0);
    // It went at once, not with the ttl: it has said bye.
    assert!(server.run(&["run", "--if-available", "a", "--", "true"]).status.success());
}

/// Otherwise every client of the port could take the locks of this user's jobs.
#[test]
fn without_keys_the_network_has_buckets_of_its_own() {
    let server = Server::start(&[]);
    let mut holder = server.hold(&["a"]);
    let mut local = server.user.hold(&["a"]);
    assert_eq!(server.run(&["run", "--if-available", "a", "--", "true"]).status.code(), Some(75));
    // They are told apart by their names, which only this machine's processes can use in full.
    let there = |name: &str, bucket: &str| {
        let mut query = server.user.command(&["query", "--json", name]);
        let found = query.env("LOCKKEEPER_BUCKET", bucket).output().expect("it starts");
        String::from_utf8(found.stdout).expect("it is text").contains("\"token\"")
    };
    assert!(there("a", "network:default") && !there("b", "network:default"));
    let mut other = server.command(&["run", "--if-available", "a", "--", "true"]);
    assert!(other.env("LOCKKEEPER_BUCKET", "network:default").output().expect("it starts").status.success());
    // Who operates the daemon breaks them from there.
    let mut release = server.user.command(&["release", "--yes", "a"]);
    assert!(
        release.env("LOCKKEEPER_BUCKET", "network:default").output().expect("it starts").status.success()
    );
    assert_eq!(holder.code(), 76);
    assert_eq!(local.let_go(), 0);
}

/// It was told so once it had waited for the lock.
#[test]
fn what_is_for_this_machine_only_is_refused_before_the_lock_is_waited_for() {
    let server = Server::start(&[]);
    let _holder = server.hold(&["a"]);
    let refused = server.run(&["run", "--exec", "--timeout", "60s", "a", "--", "true"]);
    assert_eq!(refused.status.code(), Some(64));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(why.contains("for locks of this machine"), "{why}");
}

/// A port without TLS waits for the rest of a request. It was called one that does not answer,
/// after 10 s.
#[test]
fn a_port_without_tls_is_named_as_such() {
    let server = Server::start(&[]);
    let mut command = server.user.command(&["run", "a", "--", "true"]);
    let done =
        command.env("LOCKKEEPER_URL", format!("wss://{}", server.address)).output().expect("it starts");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("it does not speak TLS: use ws://"), "{said}");
    assert_eq!(done.status.code(), Some(64));
}

/// The whole page was shown, or nothing for 10 s.
#[test]
fn a_web_server_is_named_as_such_in_a_line() {
    let user = User::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("ws://{}", listener.local_addr().expect("it has one"));
    let page = "<!DOCTYPE html>\n<title>Nothing here</title>";
    let answers = [
        (format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n{page}", page.len()), "404 Not Found"),
        ("HTTP/1.0 404 Not Found\r\n\r\nNot \x1b[2Jhere.\nGo away.".into(), "404 Not Found Not [2Jhere."),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n".into(), "no HTTP"),
    ];
    for (answer, words) in answers {
        let mut command = user.command(&["query"]);
        let query = command.env("LOCKKEEPER_URL", &url).stderr(Stdio::piped()).spawn().expect("it starts");
        let (mut stream, _) = listener.accept().expect("it connects");
        stream.write_all(answer.as_bytes()).expect("it reads");
        // The connection stays open, as those of web servers do.
        let done = query.wait_with_output().expect("it ends");
        let said = String::from_utf8(done.stderr).expect("it is text");
        assert!(said.ends_with(&format!("it does not speak WebSocket: {words}\n")), "{said}");
        assert_eq!((done.status.code(), said.lines().count()), (Some(69), 1), "{said}");
    }
}

#[test]
fn timeouts_are_counted() {
    let server = Server::start(&["--share-buckets"]);
    let mut holder = server.start_holder(&["a"]);
    assert_eq!(holder.line(), "held");
    // The time counts from the start of the command: on a busy machine it may be over before
    // anything was asked.
    let args = ["run", "--timeout", "300ms", "a", "--", "true"];
    wait_until(|| {
        for late in [server.run(&args), server.user.run(&args)] {
            assert_eq!(late.status.code(), Some(75));
        }
        let stream = TcpStream::connect(&server.address).expect("it listens");
        let page = http(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let count = page.lines().find_map(|line| line.strip_prefix("lockkeeper_timeouts_total "));
        count.expect("it is counted").parse::<u32>().expect("it is a number") >= 2
    });
}

#[test]
fn holders_and_waiters_outlive_a_daemon_that_is_killed() {
    let mut server = Server::start(&["--ttl", "60s"]);
    let mut holder = server.hold(&["a"]);
    let mut first = server.start_holder(&["a"]);
    server.wait_for_pending("a", 1);
    let mut second = server.start_holder(&["a"]);
    server.wait_for_pending("a", 2);
    for _ in 0..3 {
        server.restart();
        server.wait_for_pending("a", 2);
    }
    assert_eq!(holder.let_go(), 0);
    assert_eq!(first.line(), "held");
    assert_eq!(first.let_go(), 0);
    assert_eq!(second.line(), "held");
}

/// A cable between a client and the daemon.
struct Cable {
    address: String,
    cut: Arc<AtomicBool>,
}

impl Cable {
    fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has one").to_string();
        let (cut, far) = (Arc::new(AtomicBool::new(false)), server.address.clone());
        let is_cut = Arc::clone(&cut);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&far) else { continue };
                let clone = |stream: &TcpStream| stream.try_clone().expect("there are file descriptors");
                for (from, to) in [(clone(&near), clone(&far)), (far, near)] {
                    let cut = Arc::clone(&is_cut);
                    thread::spawn(move || carry(from, to, &cut));
                }
            }
        });
        Self { address, cut }
    }
}

/// Carries bytes; once it is cut, it drops them silently.
fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !cut.load(Ordering::Relaxed) && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    if !cut.load(Ordering::Relaxed) {
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}

/// Cuts a holder's command off for longer than the ttl. The next command ends with 0 if it finds
/// that one stopped. Both are given the name of a file.
fn cut_off(holds: &str, checks: &str) {
    let server = Server::start(&["--ttl", "12s"]);
    let cable = Cable::to(&server);
    let file = server.user.socket().with_file_name("inside");
    let file = file.to_str().expect("it is text");
    let mut command = server.user.command(&["run", "a", "--", "sh", "-c", holds, file]);
    command.env("LOCKKEEPER_URL", format!("ws://{}", cable.address)).stdout(Stdio::piped());
    let mut holder = command.spawn().expect("it starts");
    let mut line = String::new();
    let mut output = BufReader::new(holder.stdout.take().expect("it is a pipe"));
    output.read_line(&mut line).expect("it is text");
    assert_eq!(line, "held\n");
    cable.cut.store(true, Ordering::Relaxed);
    let next = server.run(&["run", "a", "--", "sh", "-c", checks, file]);
    assert_eq!(next.status.code(), Some(0), "the holder was still inside");
    assert_eq!(holder.wait().expect("it ends").code(), Some(76));
}

#[test]
fn who_is_cut_off_for_longer_than_the_ttl_has_stopped_before_the_next_begins() {
    let holds = "echo > $0; trap 'rm $0; exit' TERM; echo held; while :; do sleep 0.1; done";
    cut_off(holds, "test ! -e $0");
}

/// The grace that a stolen lock's command has would be longer than the lease.
#[test]
fn who_is_cut_off_and_does_not_heed_sigterm_is_dead_before_the_next_begins() {
    let holds = "echo $$ > $0; trap '' TERM; echo held; while :; do sleep 0.1; done";
    cut_off(holds, "read pid < $0 && ! grep -q '^State:.[^ZX]' /proc/$pid/status");
}

#[test]
fn a_daemon_with_tls_and_keys_lets_in_who_has_a_token() {
    let user = User::new();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = user.state_dir().with_file_name(name);
        fs::create_dir_all(path.parent().expect("it is in a directory")).expect("it is ours");
        fs::write(&path, text).expect("it is ours");
        path
    };
    let names = vec!["localhost".to_string()];
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(names).expect("a certificate");
    let (cert, key) = (file("cert.pem", &cert.pem()), file("key.pem", &signing_key.serialize_pem()));
    let keys = user.state_dir().with_file_name("keys.json");
    let make = |args: &[&str]| {
        let made = user.run(&[&["token"], args].concat());
        (made.status.code(), String::from_utf8(made.stdout).expect("it is text"))
    };
    let path = keys.to_str().expect("it is text");
    assert_eq!(make(&["--new-key", path]), (Some(0), String::new()));
    let mode = fs::metadata(&keys).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else can read the key");
    assert_eq!(make(&["--new-key", path]).0, Some(70), "a key is not overwritten");
    assert_eq!(make(&["--keys", path]).0, Some(64), "a token is for a bucket");
    assert_eq!(make(&["--bucket", "default", "--steal"]).0, Some(64), "a token is signed with a key");
    let (made, token) = make(&["--keys", path, "--bucket", "default", "--expires", "1h"]);
    assert_eq!(made, Some(0));
    let token_text = token.clone();
    let token = file("token", &token);
    let expired = file("expired", &make(&["--keys", path, "--bucket", "default", "--expires", "0s"]).1);
    let other = file("other", &make(&["--keys", path, "--bucket", "jobs", "--bucket", "de*t"]).1);

    let text = |path: &PathBuf| path.to_str().expect("it is text").to_owned();
    let args = ["--tls-cert", &text(&cert), "--tls-key", &text(&key), "--keys", &text(&keys)];
    let (start, end) = token_text.split_at(40);
    // A token that a line's end was put into, and one with a line's end after it, as editors leave
    // it.
    let folded = file("folded", &format!("{start}\r\n{end}\n"));
    let nowhere: PathBuf = "/nowhere/token".into();
    let server = Server::start_as(user, &args, "127.0.0.1:0");
    let port = server.address.rsplit(':').next().expect("it has one");
    let run = |env: &[(&str, &PathBuf)]| {
        let mut command = server.user.command(&["run", "a", "--", "echo", "mine"]);
        command.env("LOCKKEEPER_URL", format!("wss://localhost:{port}"));
        command.envs(env.iter().copied()).output().expect("it starts")
    };
    let served = run(&[("LOCKKEEPER_CA", &cert), ("LOCKKEEPER_TOKEN_FILE", &token)]);
    assert_eq!((served.status.code(), &served.stdout[..]), (Some(0), &b"mine\n"[..]));
    let with = |token| [("LOCKKEEPER_CA", &cert), ("LOCKKEEPER_TOKEN_FILE", token)];
    for (env, code, words) in [
        (&[("LOCKKEEPER_CA", &cert)][..], 77, "a token is needed: LOCKKEEPER_TOKEN_FILE"),
        (&with(&keys), 77, "the token is malformed"),
        (&with(&expired), 77, "expired"),
        (&with(&other), 77, "not for this bucket"),
        (&with(&nowhere), 64, "LOCKKEEPER_TOKEN_FILE: /nowhere/token"),
        (
            &[("LOCKKEEPER_TOKEN_FILE", &token)],
            64,
            "its certificate is from an unknown issuer: set LOCKKEEPER_CA",
        ),
        (&[("LOCKKEEPER_CA", &key), ("LOCKKEEPER_TOKEN_FILE", &token)], 64, "no certificate in it"),
        (&[("LOCKKEEPER_CA", &nowhere)], 64, "LOCKKEEPER_CA: /nowhere/token"),
    ] {
        let refused = run(env);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(code) && said.contains(words), "{words}: {said}");
    }
    assert_eq!(run(&with(&folded)).stdout, b"mine\n");
    // Without TLS, it is not understood.
    let plain = server.run(&["run", "a", "--", "true"]);
    let said = String::from_utf8_lossy(&plain.stderr);
    assert!(plain.status.code() == Some(64) && said.contains("it speaks TLS: use wss://"), "{said}");
    // A file without a certificate is named.
    let args = ["serve", "--listen", "localhost:0", "--tls-cert", &text(&key), "--tls-key", &text(&key)];
    let refused = server.user.run(&args);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(64));
    assert!(said.contains(&format!("{}: no certificate in it", text(&key))), "{said}");
}
