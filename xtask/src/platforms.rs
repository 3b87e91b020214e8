//! Checks the crates that the npm package carries for every platform that it is meant for, from
//! this machine.
//!
//! Type checking needs the source of the standard library and nothing of the target: no linker, no
//! headers. What it shows is that the code compiles there. Then the addon is built (`build.rs`),
//! and the end of the job says what was run and what was not.

mod build;

use crate::{Result, root, run, setup};
use std::process::{Command, Stdio};

/// What sessions need: Unix sockets.
const UNIX: &[&str] = &[
    "aarch64-apple-darwin",
    "x86_64-apple-darwin",
    "aarch64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
    "x86_64-unknown-linux-musl",
];

/// Without sessions: the manager of a process, and the addon that has it.
const OTHERS: &[&str] = &["x86_64-pc-windows-msvc"];

/// Checks all, and builds the packages.
pub(crate) fn check_and_build() -> Result {
    let toolchain = Toolchain::find()?;
    check_all(&toolchain)?;
    build::build_all(&toolchain)
}

/// Builds the packages.
pub(crate) fn build() -> Result {
    build::build_all(&Toolchain::find()?)
}

/// Checks all, and builds nothing.
pub(crate) fn check() -> Result {
    check_all(&Toolchain::find()?)
}

fn check_all(toolchain: &Toolchain) -> Result {
    for target in UNIX {
        let packages = ["lockkeeper-core", "lockkeeper", "lockkeeper-client", "lockkeeper-node"];
        toolchain.check(target, &packages, &["--features", "lockkeeper/connect"])?;
    }
    for target in OTHERS {
        toolchain.check(target, &["lockkeeper-core", "lockkeeper", "lockkeeper-node"], &[])?;
    }
    eprintln!("xtask: checked: {}, {}", UNIX.join(", "), OTHERS.join(", "));
    eprintln!("xtask: built and tested, by the other jobs: x86_64-unknown-linux-gnu");
    Ok(())
}

/// A compiler that comes with the source of the standard library.
enum Toolchain {
    Nightly,
    /// Debian's, of the packages rustc-web, cargo-web and rust-web-src.
    Debian,
}

impl Toolchain {
    fn find() -> Result<Self> {
        if has_source(Command::new("rustc").args(["+nightly", "--print", "sysroot"])) {
            return Ok(Self::Nightly);
        }
        for package in ["rustc-web", "cargo-web", "rust-web-src"] {
            let mut probe = Command::new("dpkg");
            setup::package_for(probe.args(["--status", package]), package)?;
        }
        Ok(Self::Debian)
    }

    /// Has a command, and the cargo that it calls, use this compiler.
    fn choose(&self, command: &mut Command) {
        match self {
            Self::Nightly => command.env("RUSTUP_TOOLCHAIN", "nightly"),
            Self::Debian => command
                .env("CARGO", "/usr/bin/cargo")
                .env("RUSTC", "/usr/bin/rustc")
                .env("RUSTC_BOOTSTRAP", "1"),
        };
        if let Self::Nightly = self {
            // Cargo sets it for what it runs, and it names the compiler in use.
            command.env_remove("CARGO").env_remove("RUSTC");
        }
    }

    fn check(&self, target: &str, packages: &[&str], features: &[&str]) -> Result {
        let mut cargo = Command::new(match self {
            Self::Nightly => "cargo",
            Self::Debian => "/usr/bin/cargo",
        });
        self.choose(&mut cargo);
        cargo.args([
            "check",
            "--quiet",
            "-Zbuild-std",
            "--target",
            target,
            "--target-dir",
            "target/platforms",
        ]);
        cargo.args(packages.iter().flat_map(|package| ["--package", package])).args(features);
        run(&mut cargo)
    }
}

fn has_source(sysroot: &mut Command) -> bool {
    let output = sysroot.current_dir(root()).stderr(Stdio::null()).output();
    output.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_string();
        output.status.success()
            && std::path::Path::new(&sysroot).join("lib/rustlib/src/rust/library/std").exists()
    })
}
