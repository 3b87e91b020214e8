//! Writes `bench/RESULTS.md` and `bench/RESULTS-daemon.md`: the machine, the command, and the
//! tables that it printed.

use crate::{Result, root, run, setup};
use std::{fs, process::Command};

/// The Rust crate beside its peers.
pub(crate) fn rust() -> Result {
    setup::command("valgrind", "valgrind")?;
    run(Command::new("cargo").args(["build", "--release", "--package", "lockkeeper-bench"]))?;
    write("lockkeeper-bench", "Results", "cargo xtask bench", "RESULTS.md")
}

/// The daemon beside its peers.
pub(crate) fn daemon() -> Result {
    setup::peers_of_the_daemon()?;
    let packages = ["--package", "lockkeeper-bench-daemon", "--package", "lockkeeper-cli"];
    run(Command::new("cargo").args(["build", "--release"]).args(packages))?;
    let title = "The daemon beside Redis, PostgreSQL and a bare echo";
    write("lockkeeper-bench-daemon", title, "cargo xtask bench daemon", "RESULTS-daemon.md")
}

pub(crate) fn fleet() -> Result {
    setup::peers_of_the_daemon()?;
    setup::command("etcd", "etcd-server")?;
    let packages = ["--package", "lockkeeper-bench-daemon", "--package", "lockkeeper-cli"];
    run(Command::new("cargo").args(["build", "--release"]).args(packages))?;
    let title = "A fleet on etcd beside etcd's lock API, Redis and PostgreSQL";
    write_part(
        "lockkeeper-bench-daemon",
        &["table", "fleet"],
        title,
        "cargo xtask bench fleet",
        "RESULTS-fleet.md",
    )
}

fn write(program: &str, title: &str, job: &str, file: &str) -> Result {
    write_part(program, &["table"], title, job, file)
}

fn write_part(program: &str, args: &[&str], title: &str, job: &str, file: &str) -> Result {
    eprintln!("xtask: measuring, a minute or so");
    let output = Command::new(root().join("target/release").join(program)).args(args).output();
    let output = output.map_err(|error| format!("the benchmark did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("the benchmark failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let tables = String::from_utf8_lossy(&output.stdout);
    let results = format!(
        "# {title}\n\nWritten by `{job}` on {}, {}.\nCompare within a table: all that stands in it was measured in turns, \
         in one run.\n\n{}\n",
        machine(),
        said("rustc", &["--version"]),
        tables.trim_end()
    );
    save(file, &results)
}

/// Writes a file of `bench/`, and shows it.
pub(crate) fn save(file: &str, results: &str) -> Result {
    let path = root().join("bench").join(file);
    fs::write(&path, results).map_err(|error| format!("{}: {error}", path.display()))?;
    print!("{results}");
    Ok(())
}

/// Cores and model of the processor.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(": ").nth(1));
    format!("{cores} cores of {}", model.unwrap_or("an unknown processor"))
}

pub(crate) fn said(command: &str, args: &[&str]) -> String {
    let output = Command::new(command).args(args).output();
    output.map_or_else(
        |_| "unknown".into(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_string(),
    )
}
