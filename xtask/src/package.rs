//! A Debian package: the program, its units, manual pages and completions.
//!
//! `check` makes two versions of it and does with them what an administrator does, in a root of its own: installs,
//! uses, upgrades under somebody who holds a lock, removes. It changes nothing outside its directory.

use crate::{Result, root, setup};
use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const UNITS: [&str; 4] =
    ["lockkeeper.service", "lockkeeper.socket", "lockkeeper-machine.service", "lockkeeper-machine.socket"];

/// The package of a release build.
pub(crate) fn package() -> Result {
    crate::cargo(&["build", "--release", "--package", "lockkeeper-cli"])?;
    let program = root().join("target/release/lockkeeper");
    let version = output(Command::new(&program).arg("--version"))?;
    let package = build(&program, version.split_whitespace().nth(1).ok_or("it has no version")?)?;
    println!("{}", package.display());
    Ok(())
}

/// Whether a package can be installed, used, upgraded and removed; and whether units and alert
/// rules are what they should be.
pub(crate) fn check() -> Result {
    crate::cargo(&["build", "--package", "lockkeeper-cli"])?;
    setup::command("dpkg-deb", "dpkg")?;
    setup::command("systemd-analyze", "systemd")?;
    let program = root().join("target/debug/lockkeeper");
    let (old, new) = (build(&program, "0.0.1")?, build(&program, "0.0.2")?);
    let scratch = env::temp_dir().join(format!("lockkeeper-package-{}", std::process::id()));
    let checked = administrate(&scratch, &old, &new);
    let removed = fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()));
    checked.and(removed)
}

/// Whether the alert rules say what they should.
pub(crate) fn check_alerts() -> Result {
    setup::command("promtool", "prometheus")?;
    run(Command::new("promtool").args(["test", "rules"]).arg(root().join("docs/prometheus/test.yml")))
}

/// Writes the package, and returns where it is.
fn build(program: &Path, version: &str) -> Result<PathBuf> {
    let out = root().join("target/package");
    let tree = out.join("tree");
    let _ = fs::remove_dir_all(&tree);
    let put = |from: &Path, to: &str, mode: u32| -> Result {
        let to = tree.join(to);
        let made = fs::create_dir_all(to.parent().unwrap_or(&tree)).and_then(|()| fs::copy(from, &to));
        made.and_then(|_| fs::set_permissions(&to, fs::Permissions::from_mode(mode)))
            .map_err(|error| format!("{}: {error}", to.display()))
    };
    let write = |to: &str, text: &str| -> Result {
        let to = tree.join(to);
        let made = fs::create_dir_all(to.parent().unwrap_or(&tree)).and_then(|()| fs::write(&to, text));
        made.map_err(|error| format!("{}: {error}", to.display()))
    };
    let docs = root().join("docs");
    put(program, "usr/bin/lockkeeper", 0o755)?;
    if installed("strip") {
        run(Command::new("strip").arg(tree.join("usr/bin/lockkeeper")))?;
    }
    for unit in UNITS {
        put(&docs.join("systemd").join(unit), &format!("usr/lib/systemd/system/{unit}"), 0o644)?;
    }
    put(&docs.join("systemd/machine.toml"), "etc/lockkeeper/machine.toml", 0o644)?;
    put(
        &docs.join("prometheus/lockkeeper.rules.yml"),
        "usr/share/doc/lockkeeper/lockkeeper.rules.yml",
        0o644,
    )?;
    put(&root().join("LICENSE-MIT"), "usr/share/doc/lockkeeper/copyright", 0o644)?;
    write("usr/lib/sysusers.d/lockkeeper.conf", "u lockkeeper - \"Lockkeeper\" /var/lib/lockkeeper\n")?;
    // Nothing clears the folders of users without a home while they are in use.
    write("usr/lib/tmpfiles.d/lockkeeper.conf", "x /var/tmp/lockkeeper-*\n")?;
    let man = tree.join("usr/share/man/man1");
    fs::create_dir_all(&man).map_err(|error| error.to_string())?;
    run(Command::new(program).arg("man").arg(&man))?;
    for page in fs::read_dir(&man).map_err(|error| error.to_string())?.flatten() {
        run(Command::new("gzip").arg("-9n").arg(page.path()))?;
    }
    for (shell, file) in [
        ("bash", "usr/share/bash-completion/completions/lockkeeper"),
        ("zsh", "usr/share/zsh/vendor-completions/_lockkeeper"),
        ("fish", "usr/share/fish/vendor_completions.d/lockkeeper.fish"),
    ] {
        write(file, &output(Command::new(program).args(["completions", shell]))?)?;
    }
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    write(
        "DEBIAN/control",
        &format!(
            "Package: lockkeeper\nVersion: {version}\nArchitecture: {architecture}\nSection: utils\nPriority: optional\n\
             Maintainer: Lockkeeper <lockkeeper@localhost>\nDepends: libc6 (>= 2.34)\n\
             Description: named locks for commands, users and machines\n \
             Runs commands one at a time, in the order in which they came, and shows who holds and\n who waits. \
             A daemon, which is started when it is needed, keeps the locks.\n"
        ),
    )?;
    write("DEBIAN/conffiles", "/etc/lockkeeper/machine.toml\n")?;
    for script in ["postinst", "prerm", "postrm"] {
        put(&root().join("xtask/package").join(script), &format!("DEBIAN/{script}"), 0o755)?;
    }
    let package = out.join(format!("lockkeeper_{version}_{architecture}.deb"));
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "--build"])
        .arg(&tree)
        .arg(&package)
        .stdout(Stdio::null()))?;
    Ok(package)
}

/// What an administrator does with two versions of it.
fn administrate(scratch: &Path, old: &Path, new: &Path) -> Result {
    let admin = scratch.join("root");
    let made = ["var/lib/dpkg/info", "var/lib/dpkg/updates"]
        .iter()
        .try_for_each(|dir| fs::create_dir_all(admin.join(dir)));
    made.and_then(|()| fs::write(admin.join("var/lib/dpkg/status"), ""))
        .map_err(|error| error.to_string())?;
    let dpkg = |args: &[&str], package: &Path| {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", admin.display())).arg(format!("--log={}/log", scratch.display()));
        command.args([
            "--force-script-chrootless",
            "--force-not-root",
            "--force-depends",
            "--force-bad-path",
        ]);
        run(command.args(args).arg(package).stdout(Stdio::null()).stderr(Stdio::null()))
    };
    dpkg(&["--install"], old)?;
    let lockkeeper = |args: &[&str]| {
        let mut command = Command::new(admin.join("usr/bin/lockkeeper"));
        command
            .args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LOCKKEEPER_DIR", scratch.join("user"));
        command
    };
    let mut holder = lockkeeper(&["run", "a", "--", "sh", "-c", "echo held; read -r line"]);
    let mut holder =
        holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    let mut line = String::new();
    let stdout = holder.stdout.take().ok_or("it has no output")?;
    BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
    expect(line == "held\n", "the lock is held")?;
    dpkg(&["--install"], new)?;
    let status = output(&mut lockkeeper(&["status"]))?;
    expect(status.contains("`lockkeeper restart`") && status.contains("1 held"), &status)?;
    run(lockkeeper(&["restart"]).stdout(Stdio::null()))?;
    let status = output(&mut lockkeeper(&["status"]))?;
    expect(!status.contains("another program") && status.contains("1 held"), &status)?;
    let busy =
        lockkeeper(&["run", "-q", "-n", "a", "--", "true"]).status().map_err(|error| error.to_string())?;
    expect(busy.code() == Some(75), "the lock is held across the upgrade")?;
    drop(holder.stdin.take());
    expect(
        holder.wait().is_ok_and(|status| status.code() == Some(1)),
        "the holder ends as its command does",
    )?;
    verify_units(&admin)?;
    run(lockkeeper(&["stop"]).stdout(Stdio::null()))?;
    dpkg(&["--remove"], Path::new("lockkeeper"))?;
    expect(!admin.join("usr/bin/lockkeeper").exists(), "the program is removed")?;
    expect(admin.join("etc/lockkeeper/machine.toml").exists(), "the configuration stays until it is purged")?;
    dpkg(&["--purge"], Path::new("lockkeeper"))?;
    expect(!admin.join("etc/lockkeeper/machine.toml").exists(), "the configuration is purged")
}

/// Whether systemd takes the units, and calls them safe.
fn verify_units(admin: &Path) -> Result {
    for unit in UNITS.iter().filter(|unit| unit.ends_with(".service")) {
        let path = admin.join("usr/lib/systemd/system").join(unit);
        let mut analyze = Command::new("systemd-analyze");
        let said = output(analyze.args(["security", "--offline=yes", "--no-pager"]).arg(&path))?;
        let verdict = said.lines().last().unwrap_or_default();
        expect(verdict.contains("OK") || verdict.contains("SAFE"), verdict)?;
    }
    Ok(())
}

fn installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn run(command: &mut Command) -> Result {
    crate::run(command)
}

fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let done = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{shown}: {error}"))?;
    match done.status.success() {
        true => String::from_utf8(done.stdout).map_err(|error| format!("{shown}: {error}")),
        false => Err(format!("{shown}: {}", done.status)),
    }
}

fn expect(holds: bool, what: &str) -> Result {
    if holds { Ok(()) } else { Err(format!("package: not so: {what}")) }
}

/// Checks the Kubernetes manifests against the schemas of the API.
pub(crate) fn check_manifests() -> Result {
    let venv = root().join("target/manifests");
    let bin = |name: &str| venv.join("bin").join(name);
    if !bin("kubernetes-validate").exists() {
        eprintln!("xtask: installing kubernetes-validate into {} (PyPI)", venv.display());
        crate::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        crate::run(Command::new(bin("pip")).args(["install", "--quiet", "kubernetes-validate"]))?;
    }
    crate::run(Command::new(bin("kubernetes-validate")).args(["--strict", "docs/kubernetes/lockkeeper.yaml"]))
}
