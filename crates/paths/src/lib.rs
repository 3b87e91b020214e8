//! The folder of a user's daemon, with its socket and its log. It depends on the user and the
//! machine alone.
//!
//! The folder is in the home that the user database names. `$HOME`, `XDG_RUNTIME_DIR` and `TMPDIR`
//! are ignored, so that a login shell, cron, `sudo -u` and a service use one daemon. If the home is
//! on a network file system, is not writable, or does not exist, it is a private folder in
//! `/var/tmp`. `LOCKKEEPER_DIR` names another one.
//!
//! This crate only looks at files. It starts nothing and connects to nothing.
#![cfg(unix)]
#![forbid(unsafe_code)]

mod file_system;
mod folder;
mod machine;
pub mod users;

pub use file_system::network_file_system;
pub use folder::{check, create};

use std::{
    env,
    path::{Path, PathBuf},
};

/// The variable that names the folder.
pub const DIR: &str = "LOCKKEEPER_DIR";

/// The socket of the machine's daemon, which serves several users.
pub const MACHINE_SOCKET: &str = "/run/lockkeeper/machine.sock";

/// Where the machine's daemon keeps its log.
pub const MACHINE_STATE: &str = "/var/lib/lockkeeper/machine";

/// The most bytes that the path of a socket has. The kernel's limit, less the zero at its end.
pub const SOCKET_LIMIT: usize = if cfg!(any(target_os = "linux", target_os = "android")) { 107 } else { 103 };

const SOCKET: &str = "daemon.sock";
const TEMP: &str = "/var/tmp";

/// This user's folder. It may not exist yet, and may be unusable: see [`check`].
pub fn own() -> PathBuf {
    named().unwrap_or_else(|| Candidates::of_this_user().choose())
}

/// The folder that the environment names.
fn named() -> Option<PathBuf> {
    env::var_os(DIR).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// The socket of the daemon whose folder that is.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join(SOCKET)
}

/// Where the daemon of a user's folder keeps its log.
pub fn state_in(dir: &Path) -> PathBuf {
    dir.join("state")
}

/// Where the daemon at that socket keeps its log by default: beside the socket in a user's own
/// folder; for a socket elsewhere, in a separate directory in the user's folder.
pub fn state(socket: &Path) -> PathBuf {
    if socket == Path::new(MACHINE_SOCKET) {
        return MACHINE_STATE.into();
    }
    let candidates = Candidates::of_this_user();
    let own = named().unwrap_or_else(|| candidates.clone().choose());
    let folders = [Some(own.clone()), candidates.home, Some(candidates.temp)];
    match folders.into_iter().flatten().find(|dir| *socket == self::socket(dir)) {
        Some(dir) => state_in(&dir),
        None => {
            let escaped = socket.to_string_lossy().replace('%', "%%").replace('/', "%");
            own.join("state-of").join(escaped)
        }
    }
}

/// Whether this user's folder with that socket is not where others look for a daemon: the other one
/// of the two that could be is in use. One that begins to serve asks when its own is in use, too:
/// of two that begin at once, at least one sees the other.
pub fn is_elsewhere(socket: &Path) -> bool {
    Candidates::of_this_user().others(socket.parent().unwrap_or(socket)).any(|dir| folder::in_use(&dir))
}

/// Why other processes of this user would look for a daemon elsewhere: the folder is the temporary
/// one, and only because of what this process cannot see or write to.
fn why_alone(dir: &Path) -> Option<String> {
    let user = nix::unistd::geteuid();
    let candidates = Candidates::of_this_user();
    if named().is_some() || dir != candidates.temp {
        return None;
    }
    let home = nix::unistd::User::from_uid(user).ok().flatten()?.dir;
    let shown = home.display();
    if folder::is_hidden(&home) {
        let why = format!("the home of this user, {shown}, is hidden from this process (ProtectHome)");
        return Some(format!("{why}, so processes that see it would use another daemon"));
    }
    let denied = candidates.home.filter(|dir| is_local(dir) && folder::is_denied_here(dir))?;
    let why = "cannot be written to by this process (ProtectHome or ProtectSystem, without ReadWritePaths)";
    Some(format!("{} {why}, so processes that can write there would use another daemon", denied.display()))
}

fn is_local(dir: &Path) -> bool {
    matches!(network_file_system(dir), Ok(None))
}

/// The folders that could be a user's, the better one first.
#[derive(Clone)]
struct Candidates {
    /// None without a home, or if the path of a socket there would be too long.
    home: Option<PathBuf>,
    temp: PathBuf,
}

impl Candidates {
    fn of_this_user() -> Self {
        let user = nix::unistd::geteuid();
        // Without an entry, as in many containers, there is no home.
        let home = nix::unistd::User::from_uid(user).ok().flatten().map(|user| user.dir);
        Self::new(home.as_deref(), &machine::id(), Path::new(TEMP), user.as_raw())
    }

    fn new(home: Option<&Path>, machine: &str, temp: &Path, user: u32) -> Self {
        let home = home.filter(|home| home.is_absolute() && home.is_dir());
        let home = home.map(|home| home.join(".local/state/lockkeeper").join(machine));
        let home = home.filter(|dir| socket(dir).as_os_str().len() <= SOCKET_LIMIT);
        Self { home, temp: temp.join(format!("lockkeeper-{user}")) }
    }

    /// The folder in which a daemon runs or has left sessions behind, so that a process that sees
    /// the home read-only, and one that can write to it, meet. Else the home, if it can serve.
    fn choose(self) -> PathBuf {
        self.choose_if(is_local)
    }

    /// Those beside a folder that is one of them.
    fn others(self, dir: &Path) -> impl Iterator<Item = PathBuf> {
        let all: Vec<_> = [self.home, Some(self.temp)].into_iter().flatten().collect();
        let known = all.iter().any(|candidate| candidate == dir);
        all.into_iter().filter(move |candidate| known && candidate != dir)
    }

    fn choose_if(self, is_local: impl FnOnce(&Path) -> bool) -> PathBuf {
        let Some(home) = self.home.filter(|dir| is_local(dir)) else {
            return self.temp;
        };
        match !folder::in_use(&home) && (folder::in_use(&self.temp) || !folder::writable(&home)) {
            true => self.temp,
            false => home,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidates, SOCKET_LIMIT, folder, socket};
    use std::{
        env, fs,
        os::unix::fs::{DirBuilderExt, symlink},
        path::{Path, PathBuf},
        process,
    };

    struct Dir(PathBuf);

    impl Dir {
        fn new(test: &str) -> Self {
            let dir = env::temp_dir().join(format!("lockkeeper-paths-{}-{test}", process::id()));
            for name in ["home", "temp"] {
                fs::create_dir_all(dir.join(name)).unwrap();
            }
            Self(dir)
        }

        fn candidates(&self) -> Candidates {
            let user = nix::unistd::geteuid().as_raw();
            Candidates::new(Some(&self.0.join("home")), "0123456789ab", &self.0.join("temp"), user)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn occupy(dir: &Path) {
        folder::create(dir).unwrap();
        fs::write(dir.join("daemon.lock"), "state").unwrap();
    }

    #[test]
    fn it_is_in_the_home_by_machine() {
        let dir = Dir::new("home");
        let chosen = dir.candidates().choose();
        assert_eq!(chosen, dir.0.join("home/.local/state/lockkeeper/0123456789ab"));
        assert_eq!(socket(&chosen), chosen.join("daemon.sock"));
        assert!(!chosen.exists(), "choosing makes nothing");
    }

    #[test]
    fn without_a_home_it_is_in_the_temporary_folder() {
        let dir = Dir::new("homeless");
        let temp = dir.0.join("temp");
        for home in [None, Some(Path::new("/nonexistent")), Some(Path::new("relative"))] {
            assert_eq!(Candidates::new(home, "0", &temp, 7).choose(), temp.join("lockkeeper-7"));
        }
    }

    #[test]
    fn so_it_is_if_the_home_is_on_a_network_whatever_was_there_before() {
        let dir = Dir::new("network");
        let candidates = dir.candidates();
        occupy(candidates.home.as_ref().unwrap());
        assert_eq!(candidates.clone().choose_if(|_| false), candidates.temp);
        let home = candidates.home.clone().unwrap();
        assert_eq!(candidates.choose_if(|dir| dir == home), home);
    }

    #[test]
    fn so_it_is_if_the_home_makes_the_path_of_the_socket_too_long() {
        let dir = Dir::new("long");
        let home = dir.0.join("x".repeat(SOCKET_LIMIT));
        fs::create_dir(&home).unwrap();
        let temp = dir.0.join("temp");
        assert_eq!(Candidates::new(Some(&home), "0", &temp, 7).choose(), temp.join("lockkeeper-7"));
    }

    /// `/proc` cannot be written to, by root either.
    #[test]
    fn so_it_is_if_the_home_cannot_be_written_to() {
        let dir = Dir::new("read-only");
        let temp = dir.0.join("temp");
        let home = Path::new("/proc/self");
        assert_eq!(Candidates::new(Some(home), "0", &temp, 7).choose(), temp.join("lockkeeper-7"));
    }

    #[test]
    fn a_folder_in_use_is_chosen_whatever_can_be_written_to() {
        let dir = Dir::new("in-use");
        let candidates = dir.candidates();
        let (home, temp) = (candidates.home.clone().unwrap(), candidates.temp.clone());
        occupy(&temp);
        assert_eq!(candidates.choose(), temp);
        occupy(&home);
        assert_eq!(dir.candidates().choose(), home, "if both are, the home");
        fs::write(home.join("daemon.lock"), "").unwrap();
        assert_eq!(dir.candidates().choose(), temp, "a daemon that left nobody behind emptied its file");
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused_by_name() {
        let dir = Dir::new("open").0.join("temp/open");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).unwrap();
        folder::check(&dir).unwrap();
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let refused = folder::check(&dir).unwrap_err().to_string();
        assert!(refused.contains(dir.to_str().unwrap()) && refused.contains("777"), "{refused}");
        let link = dir.with_file_name("link");
        symlink("/", &link).unwrap();
        assert!(folder::check(&link).is_err(), "what a link points to can change");
        let _ = fs::remove_dir_all(dir.ancestors().nth(2).unwrap());
    }
}
