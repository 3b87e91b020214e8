//! Installs what the jobs need and a fresh machine lacks, and names what it installs.

use crate::{Result, root, run};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What `cargo xtask test` needs, except for what is skipped by name.
pub(crate) fn all(skips: &[&str]) -> Result {
    command("valgrind", "valgrind")?;
    component("rustfmt", &["fmt", "--version"])?;
    component("clippy", &["clippy", "--version"])?;
    cargo_fuzz()?;
    command("etcd", "etcd-server")?;
    postgres()?;
    command("zsh", "zsh")?;
    command("fish", "fish")?;
    browser(skips)?;
    node_modules()
}

/// The browser in which the npm package is tested, unless that is skipped.
pub(crate) fn browser(skips: &[&str]) -> Result {
    if skips.contains(&"chromium") { Ok(()) } else { command("chromium", "chromium") }
}

/// What package-lock.json names: TypeScript, and the runtimes and tools in which the npm package is
/// tested.
pub(crate) fn node_modules() -> Result {
    let changed = |path| fs::metadata(root().join(path)).and_then(|file| file.modified()).ok();
    if changed("node_modules/.package-lock.json") >= changed("package-lock.json") {
        return Ok(());
    }
    eprintln!(
        "xtask: installing TypeScript, Node 20 to 26, Bun, Deno and the tools of the tests into node_modules (npm)"
    );
    run(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]))
}

/// A command of a Debian package.
pub(crate) fn command(name: &str, package_name: &str) -> Result {
    package_for(Command::new(name).arg("--version"), package_name)
}

/// A Debian package, unless what it is for works already.
pub(crate) fn package_for(probe: &mut Command, package_name: &str) -> Result {
    package(answers(probe), package_name)
}

/// A Debian package, unless what it brings is there.
fn package(present: bool, package: &str) -> Result {
    if present {
        return Ok(());
    }
    eprintln!("xtask: installing {package} (apt-get)");
    let install =
        || run(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends", package]));
    // The list of packages may be missing or old.
    install()
        .or_else(|_| run(Command::new("apt-get").arg("update")).and_then(|()| install()))
        .map_err(|error| format!("{error}. Install {package} by hand and try again"))
}

/// What the daemon is measured beside.
pub(crate) fn peers_of_the_daemon() -> Result {
    command("redis-server", "redis-server")?;
    postgres()
}

pub(crate) fn postgres() -> Result {
    // Its programs are not on the path.
    package(Path::new("/usr/lib/postgresql").exists(), "postgresql")
}

/// `promtool`. Prometheus itself, a service with a web page, is not installed.
pub(crate) fn promtool() -> Result<PathBuf> {
    if answers(Command::new("promtool").arg("--version")) {
        return Ok("promtool".into());
    }
    let dir = root().join("target/prometheus");
    let program = dir.join("usr/bin/promtool");
    if program.exists() {
        return Ok(program);
    }
    eprintln!("xtask: unpacking prometheus into {} (apt-get)", dir.display());
    fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let unpack = || {
        let script = "apt-get download prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb";
        run(Command::new("sh").args(["-ec", &format!("cd target/prometheus && {script}")]))
    };
    // The list of packages may be missing or old.
    unpack().or_else(|_| run(Command::new("apt-get").arg("update")).and_then(|()| unpack()))?;
    Ok(program)
}

/// A component of the toolchain in use.
fn component(name: &str, probe: &[&str]) -> Result {
    if answers(Command::new("cargo").args(probe)) {
        return Ok(());
    }
    eprintln!("xtask: installing {name} (rustup)");
    run(Command::new("rustup").args(["component", "add", name]))
}

/// A component of the nightly toolchain. The toolchain itself is not installed: no other job needs
/// it.
pub(crate) fn nightly_component(name: &str) -> Result {
    if answers(Command::new("cargo").args(["+nightly", name, "--version"])) {
        return Ok(());
    }
    eprintln!("xtask: installing {name} and rust-src for nightly (rustup)");
    run(Command::new("rustup").args(["component", "add", "--toolchain", "nightly", name, "rust-src"]))
}

/// The source of the standard library, of the nightly toolchain.
pub(crate) fn nightly_source() -> Result {
    let sysroot = Command::new("rustc").args(["+nightly", "--print", "sysroot"]).output();
    let sysroot = sysroot.map_err(|error| format!("rustc: {error}"))?.stdout;
    let source = Path::new(String::from_utf8_lossy(&sysroot).trim()).join("lib/rustlib/src/rust/library/std");
    if source.exists() {
        return Ok(());
    }
    eprintln!("xtask: installing rust-src for nightly (rustup)");
    run(Command::new("rustup").args(["component", "add", "--toolchain", "nightly", "rust-src"]))
}

pub(crate) fn cargo_fuzz() -> Result {
    if answers(Command::new("cargo").args(["fuzz", "--version"])) {
        return Ok(());
    }
    eprintln!("xtask: installing cargo-fuzz (cargo)");
    run(Command::new("cargo").args(["install", "--locked", "cargo-fuzz"]))
}

fn answers(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
