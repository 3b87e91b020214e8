//! A Debian package: the program, its units, manual pages and completions.
//!
//! `check` makes two versions of it and acts as an administrator in a copy of this system: it
//! installs, uses, upgrades while a lock is held, removes, and purges. It changes nothing outside
//! of that copy.

use crate::{Result, root, setup};
use std::{
    env, fs,
    io::{self, BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
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
    if env::var_os("LOCKKEEPER_SKIP_MOUNT").is_some_and(|value| value == "1") {
        eprintln!("SKIPPED: LOCKKEEPER_SKIP_MOUNT is set");
        return Ok(());
    }
    let scratch = env::temp_dir().join(format!("lockkeeper-package-{}", std::process::id()));
    let checked = System::start(&scratch, [&old, &new]).and_then(|system| administrate(&system));
    let removed = fs::remove_dir(&scratch).map_err(|error| format!("{}: {error}", scratch.display()));
    checked.and(removed)
}

/// Whether the alert rules say what they should.
pub(crate) fn check_alerts() -> Result {
    run(Command::new(setup::promtool()?).args(["test", "rules"]).arg(root().join("docs/prometheus/test.yml")))
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

/// This system, with changes that are only in memory, in a mount namespace of its own. Maintainer
/// scripts are executed there as on any system; `systemctl` is one that writes down its calls.
struct System {
    keeper: Child,
    root: PathBuf,
}

impl System {
    fn start(scratch: &Path, packages: [&Path; 2]) -> Result<Self> {
        let failed = |error: io::Error| format!("unshare: {error}");
        fs::create_dir(scratch).map_err(failed)?;
        let script = r#"set -e
            mount -t tmpfs lockkeeper "$0"
            cd "$0"
            mkdir upper work root
            mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work lockkeeper root
            for dir in dev proc; do mount --rbind /$dir root/$dir; done
            mkdir -p root/run/systemd/system root/usr/local/bin
            cp "$1" root/old.deb
            cp "$2" root/new.deb
            printf '#!/bin/sh\necho "$*" >> /calls\n[ "$1" != try-restart ]\n' > root/usr/local/bin/systemctl
            chmod 755 root/usr/local/bin/systemctl
            echo ready
            read -r end"#;
        let mut keeper = Command::new("unshare");
        keeper.args(["--mount", "sh", "-c", script]).arg(scratch).args(packages);
        let mut keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let ready = line_of(&mut keeper);
        let system = Self { keeper, root: scratch.join("root") };
        expect(ready? == "ready\n", "root can mount an overlay (LOCKKEEPER_SKIP_MOUNT=1 leaves this out)")?;
        Ok(system)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.keeper.id().to_string()).args(["--mount", "chroot"]).arg(&self.root);
        command.args(["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
        command.args(["LOCKKEEPER_DIR=/user", program]).args(args);
        command
    }

    fn lockkeeper(&self, args: &[&str]) -> Command {
        self.command("lockkeeper", args)
    }

    /// Calls `dpkg`. Returns how that called `systemctl`.
    fn dpkg(&self, args: &[&str]) -> Result<String> {
        run(&mut self.command("sh", &["-c", ": > /calls"]))?;
        let mut dpkg = self.command("dpkg", &["--no-triggers"]);
        // It complains of what `systemctl` is made to fail at.
        run(dpkg.args(args).stdout(Stdio::null()).stderr(Stdio::null()))?;
        output(&mut self.command("cat", &["/calls"]))
    }

    fn is_there(&self, path: &str) -> bool {
        self.command("test", &["-e", path]).status().is_ok_and(|status| status.success())
    }

    fn has_user(&self) -> bool {
        let mut id = self.command("id", &["-u", "lockkeeper"]);
        id.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = self.lockkeeper(&["stop"]).output();
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// What an administrator does with two versions of it.
fn administrate(system: &System) -> Result {
    // The images of some containers come with one.
    if system.has_user() {
        run(&mut system.command("userdel", &["lockkeeper"]))?;
    }
    // Into another root, as for an image, nothing of this system is changed.
    let database =
        "mkdir -p /image/var/lib/dpkg/info /image/var/lib/dpkg/updates; > /image/var/lib/dpkg/status";
    run(&mut system.command("sh", &["-c", database]))?;
    let force = ["--root=/image", "--force-script-chrootless", "--force-depends"];
    let calls = system.dpkg(&[&force[..], &["--install", "/old.deb"]].concat())?;
    expect(calls.is_empty() && !system.has_user(), &format!("an image is made: {calls}"))?;
    let calls = system.dpkg(&["--install", "/old.deb"])?;
    expect(calls == "daemon-reload\n", &format!("nothing is started or enabled: {calls}"))?;
    expect(system.has_user(), "the daemons have a user")?;
    let mut holder = system.lockkeeper(&["run", "a", "--", "sh", "-c", "echo held; read -r line"]);
    let mut holder =
        holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    expect(line_of(&mut holder)? == "held\n", "the lock is held")?;
    let calls = system.dpkg(&["--install", "/new.deb"])?;
    let restarts = "daemon-reload\ntry-restart lockkeeper-machine.service lockkeeper.service\n";
    expect(calls == restarts, &format!("daemons that run are restarted: {calls}"))?;
    let status = output(&mut system.lockkeeper(&["status"]))?;
    expect(status.contains("`lockkeeper restart`") && status.contains("1 held"), &status)?;
    run(system.lockkeeper(&["restart"]).stdout(Stdio::null()))?;
    let status = output(&mut system.lockkeeper(&["status"]))?;
    expect(!status.contains("another program") && status.contains("1 held"), &status)?;
    let busy = system.lockkeeper(&["run", "-q", "-n", "a", "--", "true"]).status();
    let busy = busy.map_err(|error| error.to_string())?;
    expect(busy.code() == Some(75), "the lock is held across the upgrade")?;
    drop(holder.stdin.take());
    expect(
        holder.wait().is_ok_and(|status| status.code() == Some(1)),
        "the holder ends as its command does",
    )?;
    verify_units(system)?;
    run(system.lockkeeper(&["stop"]).stdout(Stdio::null()))?;
    run(&mut system.command("install", &["-d", "-o", "lockkeeper", "/var/lib/lockkeeper/machine"]))?;
    let calls = system.dpkg(&["--remove", "lockkeeper"])?;
    let ends = "disable --now lockkeeper-machine.socket lockkeeper-machine.service\n\
                disable --now lockkeeper.socket lockkeeper.service\ndaemon-reload\n";
    expect(calls == ends, &format!("the daemons end before the program is removed: {calls}"))?;
    expect(!system.is_there("/usr/bin/lockkeeper"), "the program is removed")?;
    for kept in ["/etc/lockkeeper/machine.toml", "/var/lib/lockkeeper/machine"] {
        expect(system.is_there(kept), &format!("{kept} stays until the package is purged"))?;
    }
    system.dpkg(&["--purge", "lockkeeper"])?;
    for purged in ["/etc/lockkeeper", "/var/lib/lockkeeper"] {
        expect(!system.is_there(purged), &format!("{purged} is purged"))?;
    }
    // Once more, where systemd makes no users.
    run(&mut system.command("userdel", &["lockkeeper"]))?;
    run(&mut system.command("rm", &["-f", "/usr/bin/systemd-sysusers", "/bin/systemd-sysusers"]))?;
    system.dpkg(&["--install", "/new.deb"])?;
    expect(system.has_user(), "the daemons have a user without systemd-sysusers")
}

/// Whether systemd takes the units without a warning, and calls the services safe.
fn verify_units(system: &System) -> Result {
    let units = UNITS.map(|unit| format!("/usr/lib/systemd/system/{unit}"));
    let mut verify = system.command("systemd-analyze", &["verify", "--man=no"]);
    let done = verify.args(&units).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&done.stderr);
    // It succeeds with warnings, and warns of the machine's own units, too.
    expect(done.status.success() && !said.contains("lockkeeper"), &said)?;
    for unit in units.iter().filter(|unit| unit.ends_with(".service")) {
        let mut analyze =
            system.command("systemd-analyze", &["security", "--offline=yes", "--no-pager", unit]);
        let said = output(&mut analyze)?;
        let summary = said.lines().last().unwrap_or_default();
        expect(is_safe(summary), summary)?;
    }
    Ok(())
}

/// The first line that a process prints.
fn line_of(child: &mut Child) -> Result<String> {
    let mut line = String::new();
    let stdout = child.stdout.take().ok_or("it has no output")?;
    BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
    Ok(line)
}

/// Whether the last line of `systemd-analyze security` says so: `→ Overall exposure level for NAME:
/// 1.6 OK 🙂`.
fn is_safe(summary: &str) -> bool {
    let verdict = summary.rsplit(": ").next().and_then(|rest| rest.split_whitespace().nth(1));
    matches!(verdict, Some("PERFECT" | "SAFE" | "OK"))
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

/// Its version decides which Kubernetes the manifests are checked for.
const KUBERNETES_VALIDATE: &str = "kubernetes-validate==1.37.0";

/// Checks the Kubernetes manifests against the schemas of the API.
pub(crate) fn check_manifests() -> Result {
    let venv = root().join("target/manifests");
    let bin = |name: &str| venv.join("bin").join(name);
    if !bin("kubernetes-validate").exists() {
        eprintln!("xtask: installing kubernetes-validate into {} (PyPI)", venv.display());
        crate::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        crate::run(Command::new(bin("pip")).args(["install", "--quiet", KUBERNETES_VALIDATE]))?;
    }
    crate::run(Command::new(bin("kubernetes-validate")).args(["--strict", "docs/kubernetes/lockkeeper.yaml"]))
}

#[cfg(test)]
mod tests {
    use super::is_safe;

    /// `UNSAFE` contains `SAFE`.
    #[test]
    fn only_what_systemd_calls_safe_is_safe() {
        let said =
            |verdict: &str| is_safe(&format!("→ Overall exposure level for lockkeeper.service: {verdict}"));
        assert!(said("1.6 OK 🙂") && said("0.9 SAFE 😀") && said("0.0 PERFECT 😀"));
        assert!(!said("5.1 MEDIUM 😐") && !said("7.2 EXPOSED 🙁") && !said("9.6 UNSAFE 😨"));
        assert!(!said("") && !is_safe("OK"));
    }
}
