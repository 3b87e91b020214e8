//! The task runner. `cargo xtask` lists the jobs; CI runs `cargo xtask test` and nothing else.

mod bench;
mod bench_command;
mod guides;
mod setup;
mod unit;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

type Result<T = ()> = std::result::Result<T, String>;

const HELP: &str = "\
Jobs of the Lockkeeper workspace:

  cargo xtask test          all that CI runs: the jobs marked *, after installing what is missing
  cargo xtask lint        * formatting, clippy, documentation without a warning
  cargo xtask unit        * every test of the workspace, examples and doc examples included
  cargo xtask loom        * the wake and cancel paths under every interleaving
  cargo xtask miri        * the async crate's tests under Miri (nightly)
  cargo xtask packages    * builds the npm package and runs its tests in every runtime (npm, chromium)
  cargo xtask guides      * every command of the guides in docs/, compared with what they show
  cargo xtask gate        * instruction counts against their limits (valgrind)
  cargo xtask bench         the Rust crate beside its peers; writes bench/RESULTS.md
  cargo xtask bench command `lockkeeper run` beside flock and etcdctl; writes bench/RESULTS-command.md
  cargo xtask bench daemon  the daemon beside Redis, PostgreSQL and a bare echo; writes bench/RESULTS-daemon.md
  npm run bench             the npm package beside navigator.locks; writes bench/RESULTS-javascript.md
  cargo xtask fuzz [SECS]   the engine against the models, from libFuzzer's bytes (nightly); without end by default
  cargo xtask faults [N]    N faults of each kind, 200 by default, to the daemon and its clients; a short run is in `unit`
  cargo xtask simulate [SEED] the service in virtual time, seeds from that one on, without end; thousands are in `unit`
  cargo xtask soak [SECS]   every way to wait for a lock, all at once, 60 seconds each by default; a short run is in `unit`
  cargo xtask docs          builds the documentation and says where it is
  cargo xtask setup         installs what the jobs need, and says what
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let start = Instant::now();
    let done = match args[..] {
        ["test"] => test(),
        ["lint"] => lint(),
        ["unit"] => unit(),
        ["loom"] => loom(),
        ["miri"] => miri(),
        ["packages"] => packages(),
        ["guides"] => guides::run_all(),
        ["gate"] => gate(),
        ["bench"] => bench::rust(),
        ["bench", "daemon"] => bench::daemon(),
        ["bench", "command"] => bench_command::write_results(),
        ["fuzz"] => fuzz(None),
        ["fuzz", seconds] => fuzz(Some(seconds)),
        ["faults"] => faults("200"),
        ["faults", count] => faults(count),
        ["simulate"] => simulate("1"),
        ["simulate", seed] => simulate(seed),
        ["soak"] => soak("60"),
        ["soak", seconds] => soak(seconds),
        ["docs"] => docs(),
        ["setup"] => setup::all(),
        ["help" | "-h" | "--help"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(()) => {
            eprintln!("xtask: {} done in {} s", args[0], start.elapsed().as_secs());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result {
    setup::all()?;
    lint()?;
    unit()?;
    loom()?;
    miri()?;
    packages()?;
    guides::run_all()?;
    gate()
}

fn lint() -> Result {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"])?;
    build_docs()
}

fn unit() -> Result {
    unit::test_all()?;
    for example in ["leader_election", "document_editor", "multi_store_transaction"] {
        cargo(&["run", "--package", "lockkeeper", "--example", example])?;
    }
    Ok(())
}

fn loom() -> Result {
    // A target directory of its own: the flag would have the whole workspace built anew each time.
    let args =
        ["test", "--package", "lockkeeper", "--test", "loom", "--release", "--target-dir", "target/loom"];
    run(Command::new("cargo").args(args).env("RUSTFLAGS", "--cfg lockkeeper_loom"))
}

fn miri() -> Result {
    if !setup::nightly_component("miri") {
        eprintln!(
            "xtask: SKIPPED miri: it needs a nightly toolchain with the component miri, and none can be had"
        );
        return Ok(());
    }
    let args = ["+nightly", "miri", "test", "--package", "lockkeeper", "--test", "spec", "--test", "forms"];
    // Timeouts need the real clock; the timer's thread outlives the tests.
    let flags = "-Zmiri-disable-isolation -Zmiri-ignore-leaks";
    run(Command::new("cargo").args(args).args(["--target-dir", "target/miri"]).env("MIRIFLAGS", flags))
}

fn packages() -> Result {
    setup::command("chromium", "chromium")?;
    setup::node_modules()?;
    npm(&["run", "build"])?;
    npm(&["test"])
}

fn gate() -> Result {
    setup::command("valgrind", "valgrind")?;
    cargo(&["run", "--release", "--package", "lockkeeper-bench", "--", "gate"])
}

fn fuzz(seconds: Option<&str>) -> Result {
    setup::cargo_fuzz()?;
    let limit = seconds.map(|seconds| format!("-max_total_time={seconds}"));
    // Left alone, libFuzzer begins with a few bytes: sequences too short to get anywhere.
    let args = ["+nightly", "fuzz", "run", "equivalence", "--", "-len_control=0", "-max_len=4096"];
    run(Command::new("cargo").args(args).args(limit))
}

fn faults(count: &str) -> Result {
    let run = ["run", "--release", "--package", "lockkeeper-faults", "--", "--faults", count];
    cargo(&run)?;
    // Clients on the network, and what does not have the daemon wait for the dead all the time.
    let kinds = ["silence", "cut", "cut-stopped", "stop-worker", "stop-daemon", "end-daemon"];
    let only = kinds.iter().flat_map(|kind| ["--only", kind]);
    let network = ["--network", "3", "--ttl", "1000"];
    cargo(&run.into_iter().chain(network).chain(only).collect::<Vec<_>>())
}

fn simulate(seed: &str) -> Result {
    cargo(&["run", "--release", "--package", "lockkeeper-sim", "--", "run", seed])
}

fn soak(seconds: &str) -> Result {
    let tests = ["--test", "soak", "--test", "soak_daemon", "--test", "soak_network"];
    let args = ["test", "--release", "--package", "lockkeeper", "--all-features"];
    run(Command::new("cargo").args(args).args(tests).env("LOCKKEEPER_SOAK", seconds))
}

fn docs() -> Result {
    build_docs()?;
    eprintln!("xtask: open {}", root().join("target/doc/lockkeeper/index.html").display());
    Ok(())
}

fn build_docs() -> Result {
    let args = ["doc", "--workspace", "--no-deps", "--all-features", "--exclude", "xtask"];
    run(Command::new("cargo").args(args).env("RUSTDOCFLAGS", "-D warnings"))
}

fn cargo(args: &[&str]) -> Result {
    run(Command::new("cargo").args(args))
}

fn npm(args: &[&str]) -> Result {
    run(Command::new("npm").args(args))
}

/// Shows a command, runs it at the root of the workspace, and fails as it fails.
fn run(command: &mut Command) -> Result {
    eprintln!("xtask: {command:?}");
    let status = command.current_dir(root()).status();
    match status.map_err(|error| format!("{command:?} did not start: {error}"))? {
        status if status.success() => Ok(()),
        status => Err(format!("{command:?} failed: {status}")),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
