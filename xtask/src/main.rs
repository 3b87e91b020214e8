//! The task runner. `cargo xtask` lists the jobs; CI runs `cargo xtask test` and nothing else.

mod bench;
mod bench_command;
mod fleet;
mod fuzz;
mod guides;
mod package;
mod platforms;
mod setup;
mod wpt;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

type Result<T = ()> = std::result::Result<T, String>;

const HELP: &str = "\
Jobs of the Lockkeeper workspace:

  cargo xtask test          what CI runs: the jobs marked *. Installs missing tools first, and fails if it cannot install
                            one, unless that is skipped by name: `--skip bun --skip chromium`
  cargo xtask lint        * formatting, clippy, documentation without a warning
  cargo xtask unit        * every test of the workspace, examples and doc examples included
  cargo xtask loom        * the wake and cancel paths under every interleaving
  cargo xtask packages    * builds the npm package and runs its tests in every runtime (npm, chromium); takes `--skip` too
  cargo xtask wpt PATH      runs web-locks of the Web Platform Tests, from a checkout, in Chromium and Firefox with and without the drop-in,
                            and in Node; writes docs/conformance.md
  cargo xtask tools         the npm package in Next.js: server, client page (chromium), standalone output. Other tools are in `packages`
  cargo xtask platforms     checks the crates of the npm package for macOS, Windows, musl and arm64; builds the addon for them (zig, from
                            PyPI), runs its tests in QEMU and Wine, and lists what was only built. `platforms check` and `platforms build [NAME]` do one half each
  cargo xtask guides      * runs every command of the guides in docs/ and of the npm README, and compares the output with the text
  cargo xtask package       a Debian package: target/package/lockkeeper_VERSION_ARCH.deb
  cargo xtask package --check
                          * installs such a package into a private root; uses, upgrades and removes it; checks the units
  cargo xtask alerts      * tests the alert rules for Prometheus (promtool)
  cargo xtask manifests   * checks the Kubernetes manifests against the API's schemas (kubernetes-validate, from PyPI)
  cargo xtask fuzz-sample * every fuzz target, for a second or two
  cargo xtask gate        * instruction counts against their limits (valgrind)
  cargo xtask miri          the async crate's tests under Miri (nightly)
  cargo xtask bench         the Rust crate beside its peers; writes bench/RESULTS.md
  cargo xtask bench command `lockkeeper run` beside flock and etcdctl; writes bench/RESULTS-command.md
  cargo xtask bench daemon  the daemon beside Redis, PostgreSQL and a bare echo; writes bench/RESULTS-daemon.md
  cargo xtask bench fleet   a fleet on etcd beside etcd's lock API, Redis and PostgreSQL; writes bench/RESULTS-fleet.md
  npm run bench             the npm package beside navigator.locks; writes bench/RESULTS-javascript.md
  npm run bench:browser     the drop-in beside the native locks of Chromium, in one page; writes bench/RESULTS-browser.md
  cargo xtask fuzz [TARGET] [SECS]
                            fuzzes the parsers of untrusted bytes, and the engine against its models: the targets of fuzz/,
                            all in turns if none is named, without end by default
  cargo xtask faults [N]    N faults of each kind, 200 by default, to the daemon and its clients; a short run is in `unit`
  cargo xtask faults fleet [N]
                            N rounds of faults, 100 by default, to a fleet on etcd, of one member and of three; a short run is in `unit`
  cargo xtask simulate [SEED] runs the service in virtual time, with seeds from SEED on, without end; `unit` runs thousands
  cargo xtask fleet [1]     three daemons on three members of etcd, or on one, on the loopback; prints what to try
  cargo xtask soak [SECS]   every way to wait for a lock, all at once, 60 seconds each by default; a short run is in `unit`
  cargo xtask docs          builds the documentation and prints where it is
  cargo xtask setup         installs the tools of the jobs, and lists them
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let start = Instant::now();
    let done = match args[..] {
        ["test", ref skips @ ..] => skipped(skips).and_then(|skips| test(&skips)),
        ["lint"] => lint(),
        ["unit"] => unit(),
        ["loom"] => loom(),
        ["miri"] => miri(),
        ["packages", ref skips @ ..] => skipped(skips).and_then(|skips| packages(&skips)),
        ["wpt", path, ref rest @ ..] => wpt::run(path, rest),
        ["tools"] => tools(),
        ["platforms"] => platforms::check_and_build(),
        ["platforms", "check"] => platforms::check(),
        ["platforms", "build"] => platforms::build(""),
        ["platforms", "build", part] => platforms::build(part),
        ["guides"] => guides::run_all(""),
        ["guides", part] => guides::run_all(part),
        ["package"] => package::package(),
        ["package", "--check"] => package::check(),
        ["alerts"] => package::check_alerts(),
        ["manifests"] => package::check_manifests(),
        ["gate"] => gate(),
        ["bench"] => bench::rust(),
        ["bench", "daemon"] => bench::daemon(),
        ["bench", "fleet"] => bench::fleet(),
        ["bench", "command"] => bench_command::write_results(),
        ["fuzz", ref args @ ..] => fuzz::fuzz(args),
        ["fuzz-sample"] => fuzz::sample(),
        ["faults"] => faults("200"),
        ["faults", "fleet"] => faults_of_fleet("100"),
        ["faults", "fleet", rounds] => faults_of_fleet(rounds),
        ["faults", count] => faults(count),
        ["simulate"] => simulate("1"),
        ["simulate", seed] => simulate(seed),
        ["fleet"] => fleet::run(3),
        ["fleet", "1"] => fleet::run(1),
        ["soak"] => soak("60"),
        ["soak", seconds] => soak(seconds),
        ["docs"] => docs(),
        ["setup"] => setup::all(&[]),
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

/// The names of `--skip NAME...`. Which names there are is for `packages/lockkeeper/test/run.js` to
/// say.
fn skipped<'a>(args: &[&'a str]) -> Result<Vec<&'a str>> {
    let named = |pair: &[&'a str]| match *pair {
        ["--skip", name] => Ok(name),
        _ => Err(format!("expected `--skip NAME`, found `{}`", pair.join(" "))),
    };
    args.chunks(2).map(named).collect()
}

fn test(skips: &[&str]) -> Result {
    setup::all(skips)?;
    lint()?;
    unit()?;
    loom()?;
    packages(skips)?;
    guides::run_all("")?;
    package::check()?;
    package::check_alerts()?;
    package::check_manifests()?;
    fuzz::sample()?;
    gate()
}

fn lint() -> Result {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"])?;
    build_docs()
}

fn unit() -> Result {
    cargo(&["test", "--workspace", "--all-features", "--no-fail-fast"])?;
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
    setup::nightly_component("miri")?;
    let args = ["+nightly", "miri", "test", "--package", "lockkeeper", "--test", "spec", "--test", "forms"];
    // Timeouts need the real clock; the timer's thread outlives the tests.
    let flags = "-Zmiri-disable-isolation -Zmiri-ignore-leaks";
    run(Command::new("cargo").args(args).args(["--target-dir", "target/miri"]).env("MIRIFLAGS", flags))
}

fn packages(skips: &[&str]) -> Result {
    setup::browser(skips)?;
    setup::node_modules()?;
    npm(&["run", "build"])?;
    let skips = skips.iter().flat_map(|name| ["--skip", name]);
    npm(&["test", "--"].into_iter().chain(skips).collect::<Vec<_>>())?;
    // The package among others that are killed and cut off: a sample of `faults`.
    let faults = ["run", "--package", "lockkeeper-faults", "--", "--seed", "1", "--faults", "4"];
    let kinds = ["kill-daemon", "kill-worker", "cut", "end-daemon"];
    for workers in [
        &["--workers", "2", "--scripts", "3"][..],
        &["--workers", "1", "--network", "1", "--scripts", "4", "--ttl", "1000"],
    ] {
        let only = kinds.iter().flat_map(|kind| ["--only", kind]);
        cargo(&faults.into_iter().chain(workers.iter().copied()).chain(only).collect::<Vec<_>>())?;
    }
    let fleet = ["run", "--package", "lockkeeper-faults", "--", "fleet", "--seed", "1", "--rounds", "3"];
    let workers = ["--members", "1", "--workers", "1", "--scripts", "3", "--ttl", "6000"];
    cargo(&[&fleet[..], &workers[..]].concat())
}

fn tools() -> Result {
    setup::browser(&[])?;
    setup::node_modules()?;
    npm(&["run", "build"])?;
    let project = "packages/lockkeeper/test/next";
    npm(&["ci", "--prefix", project, "--no-audit", "--no-fund"])?;
    let node = root().join("node_modules/node24/bin/node");
    // A build takes longer than a test may.
    run(Command::new(node).arg(format!("{project}/run.mjs")).env("WATCHDOG", "600000"))
}

fn gate() -> Result {
    setup::command("valgrind", "valgrind")?;
    cargo(&["run", "--release", "--package", "lockkeeper-bench", "--", "gate"])
}

fn faults(count: &str) -> Result {
    setup::node_modules()?;
    npm(&["run", "build"])?;
    let run = ["run", "--release", "--package", "lockkeeper-faults", "--", "--faults", count];
    let others = [
        "--namespaces",
        "2",
        "--runners",
        "2",
        "--pythons",
        "2",
        "--scripts",
        "2",
        "--forks",
        "1",
        "--threads",
        "1",
    ];
    cargo(&run.into_iter().chain(others).collect::<Vec<_>>())?;
    // Clients on the network, and what does not have the daemon wait for the dead all the time.
    let kinds = ["silence", "cut", "cut-stopped", "stop-worker", "stop-daemon", "end-daemon"];
    let only = kinds.iter().flat_map(|kind| ["--only", kind]);
    let network = ["--network", "3", "--ttl", "1000", "--runners", "2", "--scripts", "2"];
    cargo(&run.into_iter().chain(network).chain(only).collect::<Vec<_>>())
}

fn faults_of_fleet(rounds: &str) -> Result {
    setup::command("etcd", "etcd-server")?;
    setup::node_modules()?;
    npm(&["run", "build"])?;
    let run = ["run", "--release", "--package", "lockkeeper-faults", "--", "fleet", "--rounds", rounds];
    let run = [&run[..], &["--runners", "2", "--scripts", "2"]].concat();
    for members in ["1", "3"] {
        cargo(&[&run[..], &["--members", members]].concat())?;
    }
    Ok(())
}

fn simulate(seed: &str) -> Result {
    cargo(&["run", "--release", "--package", "lockkeeper-sim", "--", "run", seed])
}

fn soak(seconds: &str) -> Result {
    let tests = ["--test", "soak", "--test", "soak_daemon", "--test", "soak_network", "--test", "soak_fleet"];
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

#[cfg(test)]
mod tests {
    use super::skipped;

    #[test]
    fn what_is_skipped_is_named() {
        assert_eq!(skipped(&[]), Ok(vec![]));
        assert_eq!(skipped(&["--skip", "bun", "--skip", "chromium"]), Ok(vec!["bun", "chromium"]));
        assert!(skipped(&["--skip"]).is_err());
        assert!(skipped(&["bun"]).is_err());
        assert!(skipped(&["--skip", "bun", "deno"]).is_err());
    }
}
