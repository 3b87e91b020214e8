//! Checks the crates of the npm package for every supported platform, from this machine.
//!
//! Type checking needs the source of the standard library and nothing of the target: no linker, no
//! headers. It shows that the code compiles there. Then the addon is built (`build.rs`). The end of
//! the job lists what was run and what was not.

mod build;

use crate::{Result, run, setup};
use std::process::Command;

/// What sessions need: Unix sockets.
const UNIX: &[&str] = &[
    "aarch64-apple-darwin",
    "x86_64-apple-darwin",
    "aarch64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
    "x86_64-unknown-linux-musl",
];

/// The command, where no job links it: Apple's frameworks are on Macs only.
const COMMAND: &[&str] = &["aarch64-apple-darwin", "x86_64-apple-darwin"];

/// Without sessions: the manager of a process, and the addon that has it.
const OTHERS: &[&str] = &["x86_64-pc-windows-msvc"];

/// Checks all, and builds the packages.
pub(crate) fn check_and_build() -> Result {
    check()?;
    build("")
}

/// Builds the packages with `part` in their names.
pub(crate) fn build(part: &str) -> Result {
    setup::nightly_source()?;
    build::build_all(part)
}

/// Checks all, and builds nothing.
pub(crate) fn check() -> Result {
    setup::nightly_source()?;
    for target in UNIX {
        let packages = ["lockkeeper-core", "lockkeeper", "lockkeeper-client", "lockkeeper-node"];
        check_packages(target, &packages, &["--features", "lockkeeper/connect"])?;
    }
    for target in OTHERS {
        check_packages(target, &["lockkeeper-core", "lockkeeper", "lockkeeper-node"], &[])?;
    }
    // It has C code in it, which needs a compiler for there.
    let zig = build::Zig::install()?;
    COMMAND.iter().try_for_each(|target| zig.check(target, "lockkeeper-cli"))?;
    eprintln!("xtask: checked: {}, {}", UNIX.join(", "), OTHERS.join(", "));
    eprintln!("xtask: the command was checked for {}, neither linked nor run", COMMAND.join(", "));
    eprintln!("xtask: built and tested, by the other jobs: x86_64-unknown-linux-gnu");
    Ok(())
}

fn check_packages(target: &str, packages: &[&str], features: &[&str]) -> Result {
    let mut cargo = Command::new("cargo");
    cargo.args(["check", "--quiet", "-Zbuild-std", "--target", target, "--target-dir", "target/platforms"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package])).args(features);
    run(use_nightly(&mut cargo))
}

/// Has a command, and the cargo that it calls, use the compiler that comes with the source of the
/// standard library. Cargo sets the other two for what it runs, and they name the compiler in use.
fn use_nightly(command: &mut Command) -> &mut Command {
    command.env("RUSTUP_TOOLCHAIN", "nightly").env_remove("CARGO").env_remove("RUSTC")
}
