//! The tests of the workspace.

use crate::{Result, cargo, root};
use std::{
    io::{BufRead, BufReader},
    iter,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Runs all of them. They stop, kill and time real processes: on a machine that others use at the same time, one can fail that
/// would not on another. A target that fails is run once more, alone, and said to be unstable if it passes.
pub(crate) fn test_all() -> Result {
    let failed = run_all()?;
    for target in &failed {
        eprintln!("xtask: {target} has failed: once more, alone");
        let target: Vec<&str> = target.split(' ').collect();
        cargo(&[&["test", "--all-features"], &target[..]].concat())?;
    }
    for target in &failed {
        eprintln!("xtask: UNSTABLE: {target} failed, and passed alone. It deserves a look");
    }
    Ok(())
}

/// The targets that have failed, as cargo names them.
fn run_all() -> Result<Vec<String>> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--all-features", "--no-fail-fast"]).current_dir(root());
    eprintln!("xtask: {command:?}");
    let broken = |error: std::io::Error| format!("cargo did not run: {error}");
    let mut child = command.stderr(Stdio::piped()).spawn().map_err(broken)?;
    let stderr = child.stderr.take().ok_or("cargo has no standard error")?;
    let (sender, failed) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).split(b'\n').map_while(|line| line.ok()) {
            let line = String::from_utf8_lossy(&line).into_owned();
            eprintln!("{line}");
            let target = line.trim().strip_prefix("`-p ").and_then(|line| line.strip_suffix('`'));
            if let Some(target) = target {
                let _ = sender.send(format!("-p {target}"));
            }
        }
    });
    let status = child.wait().map_err(broken)?;
    if status.success() {
        return Ok(Vec::new());
    }
    // To the end of what was said; not for ever, since what a test has left behind could have its end of the pipe.
    let failed: Vec<_> = iter::from_fn(|| failed.recv_timeout(Duration::from_secs(1)).ok()).collect();
    match failed.is_empty() {
        // It does not even compile.
        true => Err(format!("{command:?} failed: {status}")),
        false => Ok(failed),
    }
}
