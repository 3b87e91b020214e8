//! Checks the crates that the npm package carries for every platform that it is meant for, from this machine.
//!
//! Type checking needs the source of the standard library and nothing of the target: no linker, no headers. What it shows is that
//! the code compiles there; nothing is linked or run, and the end of the job says so.

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

pub(crate) fn check_all() -> Result {
    let toolchain = Toolchain::find()?;
    for target in UNIX {
        let packages = ["lockkeeper-core", "lockkeeper", "lockkeeper-client", "lockkeeper-node"];
        toolchain.check(target, &packages, &["--features", "lockkeeper/connect"])?;
    }
    for target in OTHERS {
        toolchain.check(target, &["lockkeeper-core", "lockkeeper", "lockkeeper-node"], &[])?;
    }
    eprintln!("xtask: checked, neither linked nor run: {}, {}", UNIX.join(", "), OTHERS.join(", "));
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

    fn check(&self, target: &str, packages: &[&str], features: &[&str]) -> Result {
        let mut cargo = match self {
            Self::Nightly => {
                let mut cargo = Command::new("cargo");
                cargo.arg("+nightly");
                cargo
            }
            Self::Debian => {
                let mut cargo = Command::new("/usr/bin/cargo");
                cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
        };
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
