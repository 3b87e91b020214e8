//! How a daemon is set up, and how it gets on with systemd.

mod common;

use common::{Holder, User, address_in, http, wait_until};
use lockkeeper_client::{Callbacks, Endpoint, Flags, Options, Request, Session, Update};
use lockkeeper_core::{Mode, Name};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{BufRead, BufReader},
    net::{TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::{
            fs::DirBuilderExt,
            net::{UnixDatagram, UnixListener, UnixStream},
        },
    },
    path::PathBuf,
    process::{Child, ChildStderr, Command, Output, Stdio},
    sync::mpsc,
    time::Duration,
};

/// A file of the user's.
fn file(user: &User, name: &str, text: &str) -> PathBuf {
    let dir = user.socket().parent().expect("it is in a directory").to_owned();
    if !dir.exists() {
        fs::DirBuilder::new().mode(0o700).create(&dir).expect("it is new");
    }
    let path = dir.join(name);
    fs::write(&path, text).expect("it is ours");
    path
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it is text")
}

fn check(command: &mut Command) -> Output {
    command.args(["serve", "--check-config"]).stdin(Stdio::null()).output().expect("it starts")
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let user = User::new();
    let config = "ttl = \"1s\"\nidle = \"2s\"\nmax-requests = 3\nlisten = \"127.0.0.1:1\"\nallow-origin = [\"https://a.test\"]\n";
    let config = file(&user, "config.toml", config);
    let mut command = user.command(&[]);
    command
        .env("LOCKKEEPER_CONFIG", &config)
        .env("LOCKKEEPER_IDLE", "20s")
        .env("LOCKKEEPER_MAX_REQUESTS", "30");
    let output = check(&mut command).stdout;
    let set =
        |line: &str| assert!(text(&output).lines().any(|set| set == line), "{line}:\n{}", text(&output));
    set("ttl = \"1s\"");
    set("idle = \"20s\"");
    set("max-requests = 30");
    set("listen = \"127.0.0.1:1\"");
    set("allow-origin = [\"https://a.test\"]");
    set(&format!("socket = {:?}", user.socket().to_str().expect("it is text")));
    set(&format!("state-dir = {:?}", user.state_dir().to_str().expect("it is text")));
    set("max-requests-per-client = 1000000");
    set("log-format = \"text\"");

    // What is printed is a file that says the same.
    let again = file(&user, "again.toml", &text(&output));
    let again = check(user.command(&[]).env("LOCKKEEPER_CONFIG", again)).stdout;
    assert_eq!(text(&again), text(&output));

    let mut command = user.command(&[]);
    command.env("LOCKKEEPER_MAX_REQUESTS", "30").args(["serve", "--check-config", "--max-requests", "300"]);
    command.args(["--config", config.to_str().expect("it is text")]);
    let output = command.output().expect("it starts").stdout;
    assert!(text(&output).contains("max-requests = 300\n"));
    for line in ["max-hello-bytes = \"8KiB\"\n", "hello-timeout = \"10s\"\n", "max-handshakes = 1000\n"] {
        assert!(text(&output).contains(line), "{line}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_status_64() {
    let user = User::new();
    let refused = |text: &str, words: &[&str]| {
        let config = file(&user, "config.toml", text);
        let refused = check(user.command(&[]).env("LOCKKEEPER_CONFIG", config));
        assert_eq!(refused.status.code(), Some(64), "{text}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        words.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
        assert!(refused.stdout.is_empty());
    };
    refused("ttl = \"1s\"\nlisten = \"127.0.0.1:0\"\ncolour = 3\n", &["config.toml", "line 3", "colour"]);
    refused("ttl = 5\n", &["config.toml", "line 1"]);
    refused("ttl = \"5 days\"\n", &["line 1", "a duration is a number with"]);
    refused("ttl = \"0s\"\n", &["--ttl"]);
    refused("max-hello-bytes = \"1000\"\n", &["--max-hello-bytes", "1KiB"]);
    refused("hello-timeout = \"0s\"\n", &["--hello-timeout"]);
    refused("max-handshakes = 1\n", &["--max-handshakes"]);
    refused("= nonsense", &["line 1"]);
    refused("listen = \"0.0.0.0:7420\"\n", &["--keys", "--insecure"]);
    refused("listen = \"[::]:7420\"\n", &["--keys", "--insecure"]);
    refused("listen = \"127.0.0.1:0\"\nkeys = \"/nowhere/keys.json\"\n", &["/nowhere/keys.json"]);
    refused("listen = \"127.0.0.1:0\"\ntls-cert = \"/nowhere/cert.pem\"\n", &["--tls-key"]);
    refused("tls-cert = \"/a\"\ntls-key = \"/b\"\n", &["--listen"]);
    let keys = user.file("keys.json", &new_keys(&user));
    let clear = format!("listen = \"0.0.0.0:7420\"\nkeys = {keys:?}\n");
    refused(&clear, &["--tls-cert", "--insecure"]);
    refused("listen = \"127.0.0.1:0\"\naudience = \"locks\"\n", &["--keys"]);
    let missing = check(user.command(&[]).env("LOCKKEEPER_CONFIG", "/nowhere/config.toml"));
    assert_eq!(missing.status.code(), Some(64));
    // What is fine is not refused.
    for fine in ["listen = \"0.0.0.0:7420\"\ninsecure = true\n", &format!("{clear}insecure = true\n")] {
        let open = file(&user, "config.toml", fine);
        assert!(check(user.command(&[]).env("LOCKKEEPER_CONFIG", open)).status.success());
    }
    let refused = user.run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(64), "not only when it is asked to check");
}

/// A new key set.
fn new_keys(user: &User) -> String {
    let path = user.file("unused", "").replace("unused", "new-keys.json");
    assert!(user.run(&["token", "--new-key", &path]).status.success());
    fs::read_to_string(path).expect("it is written")
}

/// A daemon of a test's, which is ended with it.
struct Daemon {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Daemon {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let log = BufReader::new(child.stderr.take().expect("it is a pipe"));
        Self { child, log }
    }

    /// The next line of the log that has these words.
    fn logged(&mut self, words: &str) -> String {
        let mut seen = String::new();
        loop {
            let start = seen.len();
            let read = self.log.read_line(&mut seen).expect("it is text");
            assert!(read > 0, "the log ends without {words}: {seen}");
            if seen[start..].contains(words) {
                return seen.split_off(start);
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn healthy(stream: TcpStream) -> String {
    http(stream, "GET /healthz HTTP/1.1\r\n\r\n")
}

#[test]
fn a_port_is_opened_and_keys_are_read_anew_on_sighup() {
    let user = User::new();
    let keys =
        |name: &str| format!(r#"{{"keys":[{{"kty":"oct","kid":"{name}","k":"{}"}}]}}"#, "A".repeat(43));
    let path = file(&user, "keys.json", &keys("one"));
    let mut command = user.command(&["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--keys"]);
    let mut daemon = Daemon::start(command.arg(&path));
    let line = daemon.logged("listening");
    assert!(line.starts_with('{'), "it is JSON: {line}");
    let address = address_in(&line);
    assert!(healthy(TcpStream::connect(address).expect("it listens")).starts_with("HTTP/1.1 200 OK"));
    fs::write(&path, "nonsense").expect("it is ours");
    kill_process(daemon.pid(), Signal::HUP).expect("it runs");
    daemon.logged("cannot reload certificates and keys");
    fs::write(&path, keys("two")).expect("it is ours");
    kill_process(daemon.pid(), Signal::HUP).expect("it runs");
    daemon.logged("reloaded certificates and keys");
    // The others of this machine are served as ever.
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
    kill_process(daemon.pid(), Signal::TERM).expect("it runs");
    assert!(daemon.child.wait().expect("it ends").success());
}

#[test]
fn systemd_gives_it_its_sockets_and_is_told_when_it_is_ready() {
    let user = User::new();
    let notify = user.socket().with_file_name("notify");
    file(&user, "made", "");
    let told = UnixDatagram::bind(&notify).expect("it is new");
    told.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket takes a timeout");
    let next = || {
        let mut words = [0; 100];
        let length = told.recv(&mut words).expect("it is told");
        text(&words[..length])
    };
    let socket = UnixListener::bind(user.socket()).expect("it is new");
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = port.local_addr().expect("it has one");
    // Who connects before the daemon is there waits.
    let early = UnixStream::connect(user.socket()).expect("systemd listens");

    let script = "exec 3<&0 4<&1 0</dev/null 1>&2; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" serve";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockkeeper")]).env_clear().env("PATH", "/usr/bin:/bin");
    command.env("NOTIFY_SOCKET", &notify).env("LOCKKEEPER_STATE_DIR", user.state_dir());
    command.stdin(OwnedFd::from(socket)).stdout(OwnedFd::from(port));
    let mut daemon = Daemon::start(&mut command);
    assert_eq!(next(), "READY=1");
    assert!(healthy(TcpStream::connect(address).expect("it listens")).starts_with("HTTP/1.1 200 OK"));
    let served = user.run(&["run", "a", "--", "echo", "mine"]);
    assert_eq!(text(&served.stdout), "mine\n");
    drop(early);
    kill_process(daemon.pid(), Signal::TERM).expect("it runs");
    assert_eq!(next(), "STOPPING=1");
    assert!(daemon.child.wait().expect("it ends").success());
    assert!(user.socket().exists(), "the socket is systemd's");
}

/// It went on, and another daemon could begin anew with the same names.
#[test]
fn a_daemon_with_a_socket_of_systemd_ends_if_its_state_is_removed() {
    let user = User::new();
    file(&user, "made", "");
    let socket = UnixListener::bind(user.socket()).expect("it is new");
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_lockkeeper")]).env_clear().env("PATH", "/usr/bin:/bin");
    command.env("LOCKKEEPER_STATE_DIR", user.state_dir()).stdin(OwnedFd::from(socket));
    let mut daemon = Daemon::start(&mut command);
    assert_eq!(text(&user.run(&["run", "a", "--", "echo", "mine"]).stdout), "mine\n");
    fs::remove_dir_all(user.state_dir()).expect("it is there");
    daemon.logged("the state was removed");
    daemon.child.wait().expect("it ends");
    assert!(user.socket().exists(), "the socket is systemd's");
}

#[test]
fn a_daemon_whose_terminal_is_gone_leaves_in_good_order() {
    let user = User::new();
    let mut daemon = Daemon::start(&mut user.command(&["serve"]));
    daemon.logged("serving");
    let mut holder = user.hold(&["a"]);
    kill_process(daemon.pid(), Signal::HUP).expect("it runs");
    assert!(daemon.child.wait().expect("it ends").success());
    wait_until(|| UnixStream::connect(user.socket()).is_ok());
    assert_eq!(holder.let_go(), 0);
}

#[test]
fn the_units_are_for_the_command_as_it_is() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/systemd");
    let unit = |name: &str| fs::read_to_string(format!("{dir}/{name}")).expect("it is there");
    let (socket, service) = (unit("lockkeeper.socket"), unit("lockkeeper.service"));
    assert!(socket.contains("ListenStream=") && service.contains("Type=notify"));
    let start =
        service.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
    let user = User::new();
    let args: Vec<String> = start.split(' ').skip(1).map(|arg| arg.replace("%S", "/tmp/state")).collect();
    let args: Vec<&str> = args.iter().map(|arg| &**arg).chain(["--check-config"]).collect();
    let checked = user.run(&args);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

fn get(address: &str, path: &str, host: &str) -> String {
    let stream = TcpStream::connect(address).expect("it listens");
    http(stream, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
}

#[test]
fn metrics_can_have_a_port_of_their_own() {
    let user = User::new();
    let args = ["serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--log-format", "json"];
    let mut daemon = Daemon::start(&mut user.command(&args));
    let port = address_in(&daemon.logged("\"listening\""));
    let metrics = address_in(&daemon.logged("\"metrics\""));
    let holder = user.hold(&["secret name"]);
    let answer = get(&metrics, "/metrics", &metrics);
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    for line in [
        "lockkeeper_held 1",
        "lockkeeper_bucket_sessions{bucket=\"default\"} 1",
        concat!("lockkeeper_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
    ] {
        assert!(answer.lines().any(|found| found == line), "{line}: {answer}");
    }
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
        assert!(answer.lines().any(|line| line.starts_with(name)), "{name}: {answer}");
    }
    assert!(!answer.contains("secret"), "{answer}");
    // Who connects and says nothing does not keep out who asks: the daemon would be held to be ill.
    let idle: Vec<_> = (0..40).map(|_| TcpStream::connect(&metrics).expect("it listens")).collect();
    assert!(get(&metrics, "/healthz", "localhost").starts_with("HTTP/1.1 200 OK"));
    drop(idle);
    assert!(get(&metrics, "/", "localhost").starts_with("HTTP/1.1 404"));
    assert!(get(&port, "/metrics", "localhost").starts_with("HTTP/1.1 404"));
    // A page whose name was made to mean this machine reads nothing.
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example"] {
        assert!(get(&metrics, "/metrics", host).starts_with("HTTP/1.1 421"), "{host}");
    }
    drop(holder);
}

#[test]
fn who_did_what_to_others_is_on_record() {
    let user = User::new();
    let mut daemon = Daemon::start(&mut user.command(&["serve", "--log-format", "json"]));
    daemon.logged("serving");
    let mut record = || {
        let line = daemon.logged("\"audit\"");
        // No key stands twice, and nothing is coloured.
        let keys: Vec<_> = line.split("\":").filter_map(|part| part.rsplit('"').next()).collect();
        let mut once = keys.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), keys.len(), "{line}");
        assert!(!line.contains('\u{1b}'));
        line
    };
    let first = user.hold(&["a"]);
    let second = user.hold(&["--steal", "a"]);
    let line = record();
    for word in ["\"stole\"", "\"broken\":1", "pid ", "\"bucket\":\"default\"", "[\\\"a\\\"]"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    let thief = line.split("\"client\":\"").nth(1).and_then(|rest| rest.get(..16)).expect("it is named");
    assert!(user.run(&["release", "--client", thief]).status.success());
    let line = record();
    assert!(line.contains("ended a session") && line.contains(&format!("\"ended\":\"{thief}\"")), "{line}");
    // It is over: nothing is done, and nothing on record.
    user.run(&["release", "--client", thief]);
    let third = user.hold(&["b"]);
    assert!(user.run(&["release", "--yes", "b"]).status.success());
    let line = record();
    assert!(line.contains("released by force") && line.contains("\"broken\":1"), "{line}");
    drop((first, second, third));
}

#[test]
fn who_is_refused_by_a_limit_is_on_record() {
    let user = User::new();
    let serve = ["serve", "--log-format", "json", "--max-clients", "1"];
    let mut daemon = Daemon::start(&mut user.command(&serve));
    daemon.logged("serving");
    let _only = user.hold(&["a"]);
    let refused = user.run(&["run", "b", "--", "true"]);
    assert!(text(&refused.stderr).contains("max-clients"), "{}", text(&refused.stderr));
    let line = daemon.logged("\"audit\"");
    for word in ["\"refused\"", "1 sessions (max-clients)", "pid ", "\"bucket\":\"default\""] {
        assert!(line.contains(word), "{word}: {line}");
    }
}

#[test]
fn who_is_refused_is_on_record() {
    let user = User::new();
    let keys = user.file("keys.json", &new_keys(&user));
    let mut command = user.command(&["serve", "--listen", "127.0.0.1:0", "--keys", &keys]);
    let mut daemon = Daemon::start(&mut command);
    let line = daemon.logged("listening");
    assert!(!line.contains('\u{1b}'), "a file has no colours: {line}");
    let address = line.rsplit("address=").next().expect("it has one").trim();
    let token = user.run(&["token", "--keys", &keys, "--bucket", "default", "--subject", "alice"]);
    let token = user.file("token", &text(&token.stdout));
    let mut run = user.command(&["run", "--steal", "a", "--", "true"]);
    run.env("LOCKKEEPER_URL", format!("ws://{address}"));
    assert!(!run.output().expect("it starts").status.success());
    let line = daemon.logged(" audit: ");
    assert!(line.contains("a token is needed") && line.contains("127.0.0.1"), "{line}");
    assert!(!run.env("LOCKKEEPER_TOKEN_FILE", token).output().expect("it starts").status.success());
    let line = daemon.logged(" audit: ");
    assert!(line.contains("alice 127.0.0.1") && line.contains("no right to steal"), "{line}");
}

/// Each connection of a stranger was a line of the log, and could have in it what terminals obey.
#[test]
fn strangers_do_not_fill_the_log() {
    let user = User::new();
    let args = ["serve", "--listen", "127.0.0.1:0", "--log-format", "json"];
    let mut daemon = Daemon::start(&mut user.command(&args));
    let address = address_in(&daemon.logged("listening"));
    let start = std::time::Instant::now();
    for _ in 0..500 {
        let stream = TcpStream::connect(&address).expect("it listens");
        let refused = http(stream, "GET /locks HTTP/1.1\r\nOrigin: http://\u{9b}2J\r\n\r\n");
        assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    }
    // Twenty lines for each second that has begun, and the number of the others.
    let most = 21 * (start.elapsed().as_secs() + 2);
    kill_process(daemon.pid(), Signal::TERM).expect("it runs");
    let lines: Vec<_> =
        std::iter::repeat_with(|| daemon.logged("")).take_while(|line| !line.contains("stopped")).collect();
    assert!((20..=most).contains(&(lines.len() as u64)), "{} lines", lines.len());
    assert!(
        !lines.concat().contains('\u{9b}') && lines.concat().contains(r"http://\\u{9b}2J"),
        "{}",
        lines[0]
    );
}

/// It was ended by a failed allocation, and the next one likewise.
#[test]
fn out_of_memory_a_daemon_refuses_and_goes_on() {
    let user = User::new();
    let start = || {
        let mut command = Command::new("prlimit");
        let serve = user.command(&["serve"]);
        command.arg("--as=260000000").arg(serve.get_program()).args(serve.get_args());
        command.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut daemon = Daemon::start(&mut command);
        daemon.logged("serving");
        daemon
    };
    let daemon = start();
    // Of a socket that is named, nobody starts a daemon but this test.
    let url = format!("unix:{}", user.socket().display());
    let mut holder = Holder::start(user.command(&["run", "mine"]).env("LOCKKEEPER_URL", &url));
    assert_eq!(holder.line(), "held");
    let endpoint: Endpoint = url.parse().expect("it is a URL");
    let session = Session::open(&endpoint, Options::new("full"), Callbacks).expect("it serves");
    let long = "n".repeat(60_000);
    let refused = (0..10_000).find_map(|number| {
        let scope = vec![(Name::from(&*format!("{number}{long}")), Mode::Exclusive)];
        let request = Request { scope, flags: Flags::default(), nested_in: None, info: None };
        let (sender, updates) = mpsc::channel();
        session.request(request, Box::new(move |update| _ = sender.send(update)));
        match updates.recv().expect("it is answered") {
            Update::Granted { .. } => None,
            other => Some(format!("{other:?}")),
        }
    });
    let refused = refused.expect("it has a limit");
    assert!(refused.contains("(max-bytes)"), "{refused}");
    // The client keeps its lock, also at the next daemon.
    drop(daemon);
    let _daemon = start();
    assert_eq!(user.run(&["run", "-n", "mine", "--", "true"]).status.code(), Some(75));
    assert_eq!(holder.let_go(), 0);
}
