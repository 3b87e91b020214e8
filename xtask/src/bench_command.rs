//! Writes `bench/RESULTS-command.md`: `lockkeeper run` beside other commands for the same purpose.

use crate::{Result, bench, root, run, setup};
use std::{
    env, fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio, id},
    thread,
    time::{Duration, Instant},
};

/// Runs of each command; all take turns, so that a noisy moment hits all.
const ROUNDS: usize = 300;

/// Which of the commands is the measure.
const FLOCK: usize = 1;

/// The row of a command that starts the daemon.
const COLD: &str = "`lockkeeper run NAME -- true`, cold";

pub(crate) fn write_results() -> Result {
    setup::command("etcd", "etcd-server")?;
    setup::package_for(Command::new("etcdctl").arg("version"), "etcd-client")?;
    run(Command::new("cargo").args(["build", "--release", "--package", "lockkeeper-cli"]))?;
    eprintln!("xtask: measuring, half a minute or so");
    let dir = env::temp_dir().join(format!("lockkeeper-bench-{}", id()));
    fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let table = measure(&dir);
    let _ = fs::remove_dir_all(&dir);
    let etcd = bench::said("etcd", &["--version"]);
    let results = format!(
        "# `lockkeeper run` beside flock and etcdctl\n\nWritten by `cargo xtask bench command` on {}: {}, {}, both of Debian.\n\
         The time from the start of a command that locks and runs `true` to its end, of {ROUNDS} runs each, in \
         turns: the best, as if\nnothing else ran, and the median, as busy as the machine was.\nThe daemons of lockkeeper and etcd run already, on this machine, and the lock is free. In the row *cold*, lockkeeper's does\nnot run: \
         the command starts it.\n\n{}",
        bench::machine(),
        bench::said("flock", &["--version"]),
        etcd.lines().next().unwrap_or("etcd").replace(" Version:", ""),
        table?
    );
    bench::save("RESULTS-command.md", &results)
}

fn measure(dir: &Path) -> Result<String> {
    let lockkeeper = root().join("target/release/lockkeeper");
    let socket = dir.join("daemon.sock");
    let url = format!("unix:{}", socket.display());
    let mut serve = Command::new(&lockkeeper);
    serve.arg("serve").arg("--socket").arg(&socket).arg("--state-dir").arg(dir.join("state"));
    let _daemon = Daemon::start(&mut serve)?;
    let (client, peer) = (free_port()?, free_port()?);
    let etcd = || Command::new("etcd");
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let _etcd = Daemon::start(etcd().arg("--data-dir").arg(dir.join("etcd")).args([
        "--listen-client-urls",
        &client,
        "--advertise-client-urls",
        &client,
        "--listen-peer-urls",
        &peer,
        "--initial-advertise-peer-urls",
        &peer,
        "--initial-cluster",
        &format!("default={peer}"),
    ]))?;

    let mut bare = Command::new("true");
    let mut ours = Command::new(&lockkeeper);
    ours.args(["run", "bench", "--", "true"]).env("LOCKKEEPER_URL", &url);
    let mut flock = Command::new("flock");
    flock.arg(dir.join("bench.lock")).arg("true");
    let mut etcdctl = Command::new("etcdctl");
    etcdctl.args(["lock", "bench", "true"]).env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", &client);
    let on_demand = |args: &[&str]| {
        let mut command = Command::new(&lockkeeper);
        command.args(args).env("LOCKKEEPER_DIR", dir.join("cold")).env_remove("LOCKKEEPER_URL");
        command
    };
    let mut cold = on_demand(&["run", "bench", "--", "true"]);
    let mut commands = [
        ("`true`, no lock", &mut bare),
        ("`flock FILE true`", &mut flock),
        ("`lockkeeper run NAME -- true`", &mut ours),
        (COLD, &mut cold),
        ("`etcdctl lock NAME true`", &mut etcdctl),
    ];
    for (_, command) in &mut commands {
        until_it_works(command)?;
    }
    let mut times = commands.each_ref().map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for ((name, command), times) in commands.iter_mut().zip(&mut times) {
            if *name == COLD {
                time(&mut on_demand(&["stop"]))?;
            }
            times.push(time(command)?);
        }
    }
    time(&mut on_demand(&["stop"]))?;
    let (mut bests, mut medians) = (Vec::new(), Vec::new());
    for mut times in times {
        times.sort();
        bests.push(times[0].as_secs_f64() * 1000.0);
        medians.push(times[times.len() / 2].as_secs_f64() * 1000.0);
    }
    let mut table =
        "| | ms, best | beside flock | ms, median | beside flock |\n|---|---|---|---|---|\n".to_string();
    for (row, (name, _)) in commands.iter().enumerate() {
        table += &format!("| {name} |");
        for times in [&bests, &medians] {
            let (time, flock) = (times[row], times[FLOCK]);
            table += &format!(" {time:.2} | {:+.2} ms, {:.2} × |", time - flock, time / flock);
        }
        table.push('\n');
    }
    Ok(table)
}

/// How long a command takes that must succeed.
fn time(command: &mut Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    match command.status().map_err(|error| format!("{command:?} did not start: {error}"))? {
        status if status.success() => Ok(start.elapsed()),
        status => Err(format!("{command:?} failed: {status}")),
    }
}

/// Its daemon may not be there yet.
fn until_it_works(command: &mut Command) -> Result {
    let deadline = Instant::now() + Duration::from_secs(30);
    command.stderr(Stdio::null());
    while let Err(error) = time(command) {
        if Instant::now() > deadline {
            return Err(error);
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn free_port() -> Result<u16> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    port.map(|address| address.port()).map_err(|error| format!("there is no port: {error}"))
}

/// A process that ends with this.
struct Daemon(Child);

impl Daemon {
    fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.spawn().map(Self);
        started.map_err(|error| format!("{command:?} did not start: {error}"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
