//! A separate PostgreSQL, in a folder.

use crate::run;
use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// How long it may take to serve, on a busy machine.
const START: Duration = Duration::from_secs(60);

/// What is needed to run Debian's PostgreSQL on a Unix socket in a folder.
pub struct Postgres {
    bin: PathBuf,
    dir: PathBuf,
}

impl Postgres {
    /// Makes a database in a new folder.
    ///
    /// # Errors
    ///
    /// If PostgreSQL is not installed, or the folder cannot be made.
    pub fn new(dir: &Path) -> io::Result<Self> {
        fs::create_dir(dir)?;
        let postgres = Self { bin: newest()?, dir: dir.into() };
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(dir))?;
            // That user has to get there.
            for folder in
                dir.ancestors().skip(1).take_while(|folder| folder.starts_with(std::env::temp_dir()))
            {
                let mode = fs::metadata(folder)?.permissions().mode();
                fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o011))?;
            }
        }
        let mut make = postgres.command("initdb");
        run(make.args(["--username=postgres", "--auth=trust", "--no-sync", "-D"]).arg(postgres.data()))?;
        Ok(postgres)
    }

    /// The command that serves.
    pub fn serve(&self) -> Command {
        let mut serve = self.command("postgres");
        serve.arg("-D").arg(self.data()).arg("-k").arg(&self.dir);
        serve.args(["-c", "listen_addresses=", "-c", "max_connections=100"]);
        serve
    }

    /// Waits until it serves.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn wait(&self) -> io::Result<()> {
        let begun = Instant::now();
        while !self.command("pg_isready").arg("-q").arg("-h").arg(&self.dir).status()?.success() {
            if begun.elapsed() > START {
                return Err(io::Error::other("PostgreSQL does not serve"));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// One of its programs. It refuses to be root, so it is another user's then.
    pub fn command(&self, name: &str) -> Command {
        let program = self.bin.join(name);
        if !is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        // A change of the user takes away what ends it with this process.
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "KILL", "--"]);
        command.arg(program);
        command
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join(".s.PGSQL.5432")
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The newest of Debian's.
fn newest() -> io::Result<PathBuf> {
    let all = Path::new("/usr/lib/postgresql");
    let versions = fs::read_dir(all)?.flatten();
    let versions = versions.filter_map(|version| version.file_name().to_str()?.parse::<u32>().ok());
    let newest = versions.max().ok_or_else(|| io::Error::other("PostgreSQL is not installed"))?;
    Ok(all.join(newest.to_string()).join("bin"))
}
