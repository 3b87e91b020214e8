//! Fuzzing with libFuzzer: the targets of `fuzz/`, for a while, endlessly, or as a short sample.
//!
//! It runs on the stable toolchain. cargo-fuzz passes flags that a stable compiler takes only with
//! `RUSTC_BOOTSTRAP`. The address sanitizer, which needs a nightly toolchain, is left out: there is
//! hardly any unsafe code.

use crate::{Result, root, run, setup};
use std::{fs, path::Path, process::Command};

/// How long a target has its turn if all of them run without end.
const TURN: &str = "60";

/// How often a sample runs a target: seconds each.
const RUNS: u32 = 50_000;

/// `[TARGET] [SECS]`: one target or all, for so long each or without end.
pub(crate) fn fuzz(args: &[&str]) -> Result {
    let targets = targets()?;
    let (chosen, seconds) = match *args {
        [] => (None, None),
        [seconds] if seconds.parse::<u32>().is_ok() => (None, Some(seconds)),
        [target] => (Some(target), None),
        [target, seconds] => (Some(target), Some(seconds)),
        _ => return Err("fuzz takes a target and a number of seconds".into()),
    };
    if let Some(target) = chosen.filter(|target| !targets.iter().any(|name| name == target)) {
        return Err(format!("no target {target}; there are {}", targets.join(", ")));
    }
    build()?;
    if let Some(target) = chosen {
        return fuzz_one(target, seconds);
    }
    loop {
        for target in &targets {
            fuzz_one(target, Some(seconds.unwrap_or(TURN)))?;
        }
        if seconds.is_some() {
            return Ok(());
        }
    }
}

/// Every target for a fixed number of runs, the same ones every time: whether it still builds, and
/// holds what it did.
pub(crate) fn sample() -> Result {
    build()?;
    for target in targets()? {
        // Under `target`, which git ignores. Empty, so that the corpus of earlier fuzzing does not
        // change a sample.
        let corpus = root().join("fuzz/target/sample").join(&target);
        let _ = fs::remove_dir_all(&corpus);
        // Its inputs are long, and each is a whole history.
        let runs = if target == "equivalence" { RUNS / 25 } else { RUNS };
        libfuzzer(&target, &corpus, &["-seed=1".into(), "-verbosity=0".into(), format!("-runs={runs}")])?;
    }
    Ok(())
}

fn fuzz_one(target: &str, seconds: Option<&str>) -> Result {
    let limit = seconds.map(|seconds| format!("-max_total_time={seconds}"));
    libfuzzer(target, &root().join("fuzz/corpus").join(target), limit.as_slice())
}

/// Runs a target on a corpus, which grows, and on its seeds, which do not.
fn libfuzzer(target: &str, corpus: &Path, options: &[String]) -> Result {
    let failed = |error: std::io::Error| format!("{}: {error}", corpus.display());
    fs::create_dir_all(corpus).map_err(failed)?;
    if target == "messages" {
        seed_with_vectors(corpus).map_err(failed)?;
    }
    let mut command = cargo_fuzz();
    command.args(["run", "-s", "none", target]).arg(corpus);
    let seeds = root().join("fuzz/seeds").join(target);
    if seeds.exists() {
        command.arg(seeds);
    }
    command.arg("--").args(options);
    if target == "equivalence" {
        // Left alone, libFuzzer begins with a few bytes: sequences too short to get anywhere.
        command.args(["-len_control=0", "-max_len=4096"]);
    }
    run(&mut command)
}

/// The protocol's test vectors are its best seeds: every message, in every form.
fn seed_with_vectors(corpus: &Path) -> std::io::Result<()> {
    let vectors = fs::read_to_string(root().join("docs/protocol-vectors.txt"))?;
    let lines = vectors.lines().filter(|line| !line.starts_with('#'));
    for (number, hex) in lines.filter_map(|line| line.rsplit_once(" | ")).map(|(_, hex)| hex).enumerate() {
        let digits = hex.as_bytes().chunks(2).map(std::str::from_utf8);
        let bytes: Option<Vec<u8>> =
            digits.map(|pair| pair.ok().and_then(|pair| u8::from_str_radix(pair, 16).ok())).collect();
        let bytes = bytes.ok_or_else(|| std::io::Error::other(format!("not a vector: {hex}")))?;
        fs::write(corpus.join(format!("vector-{number}")), bytes)?;
    }
    Ok(())
}

fn build() -> Result {
    setup::cargo_fuzz()?;
    run(cargo_fuzz().args(["build", "-s", "none"]))
}

fn cargo_fuzz() -> Command {
    let mut command = Command::new("cargo");
    command.arg("fuzz").env("RUSTC_BOOTSTRAP", "1");
    command
}

/// The targets, by the names of their files.
fn targets() -> Result<Vec<String>> {
    let dir = root().join("fuzz/fuzz_targets");
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut targets = Vec::new();
    for entry in fs::read_dir(&dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        targets.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    targets.sort();
    Ok(targets)
}
