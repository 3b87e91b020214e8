//! The machine's daemon, with two ordinary users and root. Only root can try that: others set
//! `LOCKKEEPER_SKIP_USERS=1`.

mod common;

use common::{User, is_skipped, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::{
    fs,
    os::{
        fd::OwnedFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

const ANN: u32 = 3_999_000_001;
const BOB: u32 = 3_999_000_002;
const EVE: u32 = 3_999_000_003;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text")
}

/// A daemon for several users, in a folder that they can all pass through.
struct Machine {
    user: User,
    folder: PathBuf,
    daemon: Option<Child>,
}

impl Machine {
    fn start() -> Option<Self> {
        if common::is_one_user() {
            return None;
        }
        let user = User::new();
        let folder = PathBuf::from(user.file("marker", "")).with_file_name("machine");
        let open =
            |dir: &Path| fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("it is ours");
        open(folder.parent().expect("it is in one"));
        fs::create_dir(&folder).expect("it is new");
        open(&folder);
        common::copy_program(folder.join("lockkeeper"));
        let mut machine = Self { user, folder, daemon: None };
        let rules = format!(
            "[[allow]]\nusers = [\"{ANN}\", \"{BOB}\"]\nbuckets = [\"default\", \"jobs*\"]\n\n\
             [[allow]]\nusers = [\"{BOB}\"]\nbuckets = [\"jobs*\"]\nsteal = true\nforce-release = true\ninspect = true\n"
        );
        let config = machine.user.file("machine.toml", &rules);
        let mut serve = machine.user.command(&["serve", "--config", &config, "--state-dir"]);
        serve.arg(machine.folder.join("state")).arg("--socket").arg(machine.socket()).stderr(Stdio::null());
        machine.daemon = Some(serve.spawn().expect("it starts"));
        wait_until(|| UnixStream::connect(machine.socket()).is_ok());
        Some(machine)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("machine.sock")
    }

    fn command(&self, uid: u32, bucket: &str, args: &[&str]) -> Command {
        let mut command = self.program(uid, bucket, &self.folder.join("lockkeeper"));
        command.args(args);
        command
    }

    /// Any program, as that user.
    fn program(&self, uid: u32, bucket: &str, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        let id = uid.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        command.env("LOCKKEEPER_URL", format!("unix:{}", self.socket().display()));
        command.env("LOCKKEEPER_BUCKET", bucket);
        command
    }

    fn run(&self, uid: u32, bucket: &str, args: &[&str]) -> Output {
        self.command(uid, bucket, args).output().expect("it starts")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn users_meet_as_far_as_they_are_allowed_to() {
    let Some(machine) = Machine::start() else { return };
    assert_eq!(fs::metadata(machine.socket()).expect("it is there").permissions().mode() & 0o777, 0o666);
    let mut holder =
        machine.command(ANN, "jobs", &["run", "a", "--", "sleep", "1000"]).spawn().expect("it starts");
    wait_until(|| text(&machine.run(0, "jobs", &["query", "a"]).stdout).contains("\"token\""));
    // Whose it is, nobody can say for her.
    let seen = machine.run(0, "jobs", &["query", "--json"]);
    assert!(text(&seen.stdout).contains(&format!(" uid {ANN} ")), "{seen:?}");
    // Bob meets her; so does root. Eve is not allowed, nor is anybody in another bucket.
    for (uid, bucket, code) in
        [(BOB, "jobs", 75), (0, "jobs", 75), (BOB, "default", 0), (EVE, "jobs", 77), (ANN, "x", 77)]
    {
        let done = machine.run(uid, bucket, &["run", "-n", "a", "--", "true"]);
        assert_eq!(done.status.code(), Some(code), "{uid} {bucket}: {}", text(&done.stderr));
    }
    let refused = machine.run(EVE, "jobs", &["run", "a", "--", "true"]);
    assert!(
        text(&refused.stderr).contains(&format!("does not allow user {EVE} this bucket")),
        "{}",
        text(&refused.stderr)
    );
    // She sees that somebody is there, and is told that it is not all.
    let seen = machine.run(ANN, "jobs", &["query"]);
    assert!(text(&seen.stderr).contains("no right to inspect") && !text(&seen.stdout).contains("\"owner\""));
    assert!(!text(&seen.stdout).contains("token") && !text(&seen.stdout).contains("since"), "{seen:?}");
    let seen = machine.run(ANN, "jobs", &["query", "--table"]);
    assert!(!text(&seen.stdout).contains(" 0.0s"), "{}", text(&seen.stdout));
    let told = machine.run(ANN, "jobs", &["run", "-w", "1500ms", "a", "--", "true"]);
    assert!(text(&told.stderr).contains("held by client "), "{}", text(&told.stderr));
    assert!(!text(&machine.run(BOB, "jobs", &["query"]).stderr).contains("inspect"));
    // Rights are those of the bucket: Bob may steal there, and Ann may not.
    assert_eq!(machine.run(ANN, "jobs", &["run", "--steal", "a", "--", "true"]).status.code(), Some(77));
    let refused = machine.run(ANN, "jobs", &["release", "--yes", "a"]);
    assert_eq!(refused.status.code(), Some(77));
    assert!(
        text(&refused.stderr).contains("no right to release by force: neither a token"),
        "{}",
        text(&refused.stderr)
    );
    assert_eq!(machine.run(BOB, "default", &["run", "--steal", "a", "--", "true"]).status.code(), Some(77));
    assert_eq!(machine.run(BOB, "jobs", &["run", "--steal", "a", "--", "echo", "mine"]).stdout, b"mine\n");
    assert_eq!(holder.wait().expect("it ends").code(), Some(76));
}

/// The shell cannot open the FIFO of another user's daemon: it has a guardian. It was refused.
#[test]
fn a_lock_for_the_rest_of_a_script_is_to_be_had_of_another_users_daemon() {
    let Some(machine) = Machine::start() else { return };
    let script =
        "eval \"$($0 lock a)\"; echo held; $0 query a; read -r line; $0 unlock a; echo $?; read -r line";
    let mut shell = machine.program(ANN, "jobs", Path::new("sh"));
    shell.args(["-c", script]).arg(machine.folder.join("lockkeeper"));
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = std::io::BufReader::new(shell.stdout.take().expect("it is a pipe"));
    let mut input = shell.stdin.take().expect("it is a pipe");
    let mut line = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).expect("it is text");
        line
    };
    assert_eq!(line(), "held\n");
    assert!(line().starts_with("{\"held\":[{"));
    let taken = |machine: &Machine| machine.run(BOB, "jobs", &["run", "-n", "a", "--", "true"]).status.code();
    assert_eq!(taken(&machine), Some(75));
    std::io::Write::write_all(&mut input, b"\n").expect("it reads");
    assert_eq!(line(), "0\n");
    assert_eq!(taken(&machine), Some(0));
    drop(input);
    shell.wait().expect("it ends");
}

/// Killing `run` leaves the lock to its command, also at the machine's daemon; and locks outlive
/// the daemon.
#[test]
fn the_lock_of_another_users_command_outlives_run_and_the_daemon() {
    let Some(mut machine) = Machine::start() else { return };
    let mut holder =
        machine.command(ANN, "jobs", &["run", "a", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let mut holder = holder.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = std::io::BufReader::new(holder.stdout.take().expect("it is a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).expect("it is text");
    holder.kill().expect("it runs");
    holder.wait().expect("it is dead");
    let taken = |machine: &Machine| machine.run(BOB, "jobs", &["run", "-n", "a", "--", "true"]).status.code();
    assert_eq!(taken(&machine), Some(75));
    // Bob cannot see which process of hers has it, only that `run` is gone. Root sees it.
    let seen = |uid, form| machine.run(uid, "jobs", &["query", form]).stdout;
    let (bobs, table, roots) = (seen(BOB, "--json"), seen(BOB, "--table"), seen(0, "--json"));
    let run = holder.id();
    assert!(text(&bobs).contains(&format!("\"pid\":{run},")) && text(&bobs).contains("\"ended\":true"));
    assert!(text(&table).contains(" (ended)"), "{}", text(&table));
    assert!(text(&roots).contains(&format!("\"pid\":{},", line.trim())) && !text(&roots).contains("ended"));
    let mut daemon = machine.daemon.take().expect("it runs");
    daemon.kill().expect("it runs");
    daemon.wait().expect("it is dead");
    let config = machine.folder.with_file_name("machine.toml");
    let mut serve =
        machine.user.command(&["serve", "--config", config.to_str().expect("it is text"), "--state-dir"]);
    serve.arg(machine.folder.join("state")).arg("--socket").arg(machine.socket()).stderr(Stdio::null());
    machine.daemon = Some(serve.spawn().expect("it starts"));
    wait_until(|| UnixStream::connect(machine.socket()).is_ok());
    assert_eq!(taken(&machine), Some(75));
    let command = Pid::from_raw(line.trim().parse().expect("it is a process id")).expect("it is one");
    kill_process(command, Signal::KILL).expect("it runs");
    assert_eq!(machine.run(BOB, "jobs", &["run", "-w", "60", "a", "--", "true"]).status.code(), Some(0));
}

/// A user without any rights took all descriptors of the daemon, and no other client could connect.
#[test]
fn one_user_cannot_take_all_connections() {
    let Some(machine) = Machine::start() else { return };
    let daemon = machine.daemon.as_ref().expect("it runs");
    let limit = Rlimit { current: Some(200), maximum: Some(200) };
    prlimit(Some(Pid::from_child(daemon)), Resource::Nofile, limit).expect("it is ours");
    // Connects until it is refused, or gets no answer.
    let script = "import socket, sys\nopen = []\nanswer = b''\nwhile not answer and len(open) < 500:\n \
                  s = socket.socket(socket.AF_UNIX)\n s.connect(sys.argv[1])\n s.settimeout(0.01)\n open.append(s)\n \
                  try: answer = s.recv(1000)\n except OSError: pass\nprint(len(open), answer, flush=True)\ninput()";
    let id = EVE.to_string();
    let mut eve = Command::new("setpriv");
    eve.args(["--reuid", &id, "--regid", &id, "--clear-groups", "python3", "-c", script])
        .arg(machine.socket());
    eve.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
    let mut eve = eve.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(eve.stdout.take().expect("it is a pipe"));
    std::io::BufRead::read_line(&mut output, &mut line).expect("it is text");
    assert!(line.contains("limit reached: 25 connections of one user"), "{line}");
    let done = machine.run(ANN, "default", &["run", "-n", "a", "--", "true"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    drop(eve.stdin.take());
    eve.wait().expect("it ends");
}

#[test]
fn out_of_threads_a_client_says_so_and_harms_nobody() {
    let Some(machine) = Machine::start() else { return };
    let mut holder =
        machine.command(ANN, "default", &["run", "a", "--", "sleep", "1000"]).spawn().expect("it starts");
    wait_until(|| text(&machine.run(0, "default", &["query", "a"]).stdout).contains("\"token\""));
    // Ann has some threads already: she gets none.
    let id = ANN.to_string();
    let mut limited = Command::new("setpriv");
    limited.args(["--reuid", &id, "--regid", &id, "--clear-groups", "prlimit", "--nproc=1"]);
    limited.arg(machine.folder.join("lockkeeper")).args(["run", "b", "--", "true"]);
    limited.env_clear().env("PATH", "/usr/bin:/bin");
    limited.env("LOCKKEEPER_URL", format!("unix:{}", machine.socket().display()));
    let refused = limited.output().expect("it starts");
    assert_eq!(refused.status.code(), Some(69), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("Resource temporarily unavailable"), "{}", text(&refused.stderr));
    let done = machine.run(BOB, "default", &["run", "-n", "a", "--", "true"]);
    assert_eq!(done.status.code(), Some(75), "{}", text(&done.stderr));
    assert!(machine.run(BOB, "default", &["run", "-n", "b", "--", "true"]).status.success());
    kill_process(Pid::from_child(&holder), Signal::TERM).expect("it runs");
    assert_eq!(holder.wait().expect("it ends").code(), Some(143));
}

/// In a mount namespace of its own, with an empty `/run`.
#[test]
fn the_flag_and_the_url_reach_the_daemon_in_run() {
    if is_skipped("LOCKKEEPER_SKIP_MOUNT") {
        return;
    }
    let Some(machine) = Machine::start() else { return };
    let program = machine.folder.join("lockkeeper");
    let config = machine.folder.with_file_name("machine.toml");
    let script = format!(
        "set -e; mount -t tmpfs -o mode=755 run /run; mount -t tmpfs -o mode=755 state /var/lib\n\
         l={}; as() {{ u=$1; shift; setpriv --reuid=$u --regid=$u --clear-groups $l \"$@\"; }}\n\
         $l --machine query 2>&1 || echo $?\n\
         $l --machine serve 2>/var/lib/log & daemon=$!\n\
         while ! [ -S /run/lockkeeper/machine.sock ]; do sleep 0.01; done\n\
         for call in query stop; do as {ANN} --machine $call 2>&1 || echo $call $?; done\n\
         kill $daemon; wait $daemon; rm -f /run/lockkeeper/machine.sock; grep -o 'WARN.*only root' /var/lib/log | wc -l\n\
         $l --machine serve --config {} 2>/dev/null & trap 'kill $!' EXIT\n\
         while ! [ -S /run/lockkeeper/machine.sock ]; do sleep 0.01; done\n\
         as {ANN} run --machine a -- $l run --machine b -- echo both\n\
         as {ANN} run --machine a -- env -u LOCKKEEPER_OUTER $l run --machine -n a -- echo never 2>&1 || echo $?\n\
         LOCKKEEPER_URL=machine as {BOB} run a -- echo url\n\
         LOCKKEEPER_BUCKET=jobs as {BOB} --machine status | grep -c 'runs (pid'\n\
         rm -r /var/lib/lockkeeper/machine/fifo; : > /var/lib/lockkeeper/machine/fifo\n\
         as {ANN} run --machine a -- echo guarded\n\
         [ -d /var/lib/lockkeeper/machine ] && echo state",
        program.display(),
        config.display()
    );
    let done = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")
        .output();
    let done = done.expect("it starts");
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(out.contains("lockkeeper-machine.socket") && out.contains("\n69\n"), "{out} {err}");
    // One that serves nobody else says so, to both sides.
    assert!(out.contains("query 69\n") && out.contains("stop 77\n1\n"), "{out} {err}");
    assert!(out.contains("[[allow]] in its configuration"), "{out} {err}");
    assert!(out.contains("`lockkeeper --machine query` shows who has it\n75\n"), "{out} {err}");
    assert!(out.contains("\nboth\n") && out.ends_with("\nurl\n1\nguarded\nstate\n"), "{out} {err}");
}

#[test]
fn a_rule_for_somebody_who_is_not_there_is_refused() {
    let user = User::new();
    let config = user.file("machine.toml", "[[allow]]\nusers = [\"no-such-user\"]\nbuckets = [\"*\"]\n");
    let refused = user.run(&["serve", "--check-config", "--config", &config]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(text(&refused.stderr).contains("no-such-user"), "{}", text(&refused.stderr));
    let config =
        user.file("machine.toml", "[[allow]]\nusers = [\"*\"]\nbuckets = [\"default\"]\ninspect = true\n");
    let shown = user.run(&["serve", "--check-config", "--config", &config]);
    assert!(text(&shown.stdout).contains("[[allow]]"), "{} {}", text(&shown.stdout), text(&shown.stderr));
}

#[test]
fn top_says_that_the_right_to_inspect_is_missing() {
    let Some(machine) = Machine::start() else { return };
    let mut top = common::terminal::Terminal::start(&machine.command(ANN, "default", &["top"]));
    assert_eq!(top.ended().code(), Some(77));
    top.shows("inspect");
}

/// As the units have it: an ordinary user serves, at a socket that was opened before; rules name
/// users and groups.
#[test]
fn an_unprivileged_daemon_at_a_given_socket_knows_users_and_groups_by_name() {
    if common::is_one_user() {
        return;
    }
    // Users that every Debian has: one serves, one has a rule, one is in a group that has one.
    let id = |name: &str| lockkeeper_paths::users::user_id(name).expect("there is such a user");
    let (daemon, nobody, bin, games) = (id("daemon"), id("nobody"), id("bin"), id("games"));
    let user = User::new();
    let folder = PathBuf::from(user.file("marker", "")).with_file_name("machine");
    fs::create_dir(&folder).expect("it is new");
    for dir in [&folder, folder.parent().expect("it is in one")] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    common::copy_program(folder.join("lockkeeper"));
    let state = folder.join("state");
    fs::create_dir(&state).expect("it is new");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).expect("it is ours");
    std::os::unix::fs::chown(&state, Some(daemon), Some(daemon)).expect("root can");
    let config = user.file(
        "machine.toml",
        "[[allow]]\nusers = [\"nobody\"]\nbuckets = [\"jobs\"]\n\n\
         [[allow]]\nusers = [\"@bin\"]\nbuckets = [\"jobs\"]\nsteal = true\n",
    );
    let socket = folder.join("machine.sock");
    let listener = UnixListener::bind(&socket).expect("it is new");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("it is ours");
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let mut serve = Command::new("setpriv");
    serve.args(["--reuid", "daemon", "--regid", "daemon", "--clear-groups", "sh", "-c", script, "sh"]);
    serve.arg(folder.join("lockkeeper")).args(["serve", "--machine", "--config", &config, "--state-dir"]);
    serve.arg(&state).env_clear().env("PATH", "/usr/bin:/bin");
    let serve = serve.stdin(OwnedFd::from(listener)).stderr(Stdio::null()).spawn().expect("it starts");
    let machine = Machine { user, folder, daemon: Some(serve) };
    let mut holder =
        machine.command(nobody, "jobs", &["run", "a", "--", "sleep", "1000"]).spawn().expect("it starts");
    wait_until(|| text(&machine.run(0, "jobs", &["query", "a"]).stdout).contains("\"token\""));
    for (uid, args, code) in [
        (bin, &["run", "-n", "a", "--", "true"][..], 75),
        (games, &["run", "-n", "a", "--", "true"], 77),
        (nobody, &["run", "--steal", "a", "--", "true"], 77),
        (bin, &["run", "--steal", "a", "--", "true"], 0),
    ] {
        let done = machine.run(uid, "jobs", args);
        assert_eq!(done.status.code(), Some(code), "{uid} {args:?}: {}", text(&done.stderr));
    }
    assert_eq!(holder.wait().expect("it ends").code(), Some(76));
}
