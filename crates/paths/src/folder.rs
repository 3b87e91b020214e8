//! A user's folder: whether it is usable, and by whom.

use crate::{DIR, SOCKET_LIMIT, TEMP, network_file_system, socket};
use rustix::{
    fs::{Access, AtFlags, CWD, accessat},
    io::Errno,
    process::geteuid,
};
use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
};

/// Whether a user's folder is usable: no other user can put a socket there, and all processes of
/// the user find the same one. A missing folder is usable.
///
/// # Errors
///
/// If it is not: names the folder, and says what to do.
pub fn check(dir: &Path) -> io::Result<()> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, with_hint(&why)));
    let shown = dir.display();
    if !dir.is_absolute() {
        return refused(format!("{shown} is not an absolute path"));
    }
    if socket(dir).as_os_str().len() > SOCKET_LIMIT {
        return refused(format!("{shown} is too long for a socket"));
    }
    let temporary = dir.starts_with(TEMP);
    if temporary && hidden_temp() {
        let why = "the home of this user cannot be used, and /var/tmp is this service's own (PrivateTmp)";
        return refused(format!("{why}, so this user's other processes would use another daemon"));
    }
    if let Some(why) = crate::why_alone(dir) {
        return refused(why);
    }
    match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return refused(format!("{shown}: {error}")),
        Ok(file) if !file.is_dir() => return refused(format!("{shown} is not a directory")),
        Ok(file) if file.uid() != geteuid().as_raw() => {
            return refused(format!("{shown} belongs to another user ({})", file.uid()));
        }
        Ok(file) if file.mode() & if temporary { 0o077 } else { 0o022 } != 0 => {
            return refused(format!("{shown} is open to other users (mode {:o})", file.mode() & 0o777));
        }
        Ok(_) => {}
    }
    match network_file_system(dir) {
        Ok(Some(kind)) => refused(format!("{shown} is on a network file system ({kind})")),
        _ => Ok(()),
    }
}

/// Makes the folder, for this user alone, if it is not there.
///
/// # Errors
///
/// If it cannot be made, or [cannot be used](check): names the folder.
pub fn create(dir: &Path) -> io::Result<()> {
    check(dir)?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| io::Error::new(error.kind(), with_hint(&format!("{}: {error}", dir.display()))))?;
    // Another process may have made it first.
    check(dir)
}

/// The error, and what to do.
fn with_hint(why: &str) -> String {
    format!("{why}: set {DIR} to a directory of your own, the same one for all processes that share locks")
}

/// Whether a daemon of this user runs there, or has left sessions behind: then its lock file says
/// where its log is.
pub(crate) fn in_use(dir: &Path) -> bool {
    let ours = fs::symlink_metadata(dir).is_ok_and(|file| file.is_dir() && file.uid() == geteuid().as_raw());
    ours && fs::metadata(socket(dir).with_extension("lock")).is_ok_and(|lock| lock.len() > 0)
}

/// Whether the folder can be written to, or made.
pub(crate) fn writable(dir: &Path) -> bool {
    access(nearest(dir)).is_ok()
}

/// Whether a folder cannot be written to by this process, and other processes of the user may well
/// be able to: its mount is read-only while the file system is not (`ProtectHome=read-only`,
/// `ProtectSystem=strict`), or it is the user's own and denied all the same.
pub(crate) fn is_denied_here(dir: &Path) -> bool {
    let dir = nearest(dir);
    match access(dir) {
        Err(Errno::ROFS) => fs::read_to_string(MOUNTS).is_ok_and(|mounts| is_read_only_here(&mounts, dir)),
        Err(Errno::ACCESS) => fs::metadata(dir)
            .is_ok_and(|file| file.uid() == geteuid().as_raw() && file.mode() & 0o300 == 0o300),
        _ => false,
    }
}

/// The nearest existing ancestor of a path.
fn nearest(dir: &Path) -> &Path {
    dir.ancestors().find(|dir| fs::symlink_metadata(dir).is_ok()).unwrap_or(dir)
}

fn access(dir: &Path) -> Result<(), Errno> {
    if !dir.is_dir() {
        return Err(Errno::NOTDIR);
    }
    accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
}

/// The mounts that this process sees.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Whether this process sees another `/var/tmp` than others.
fn hidden_temp() -> bool {
    fs::read_to_string(MOUNTS).is_ok_and(|mounts| hides_temp(&mounts))
}

/// Whether this process sees something else in the place of a home, or of a directory above it,
/// than others do.
pub(crate) fn is_hidden(home: &Path) -> bool {
    fs::read_to_string(MOUNTS).is_ok_and(|mounts| hides(&mounts, home))
}

/// A mount, as `mountinfo` has it.
struct Mount<'a> {
    /// The mounted part of the file system.
    root: &'a str,
    point: &'a str,
    options: &'a str,
    file_system: &'a str,
    /// Options that all mounts of the file system have.
    shared_options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, source) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut source = source.splitn(3, ' ');
        Some(Self {
            root: mount.next()?,
            point: mount.next()?,
            options: mount.next()?,
            file_system: source.next()?,
            shared_options: source.nth(1)?,
        })
    }

    /// The one that a path is on.
    fn of(path: &Path, mounts: &'a str) -> Option<Self> {
        let above = mounts.lines().filter_map(Mount::parse).filter(|mount| path.starts_with(mount.point));
        above.max_by_key(|mount| mount.point.len())
    }
}

/// Whether the mount of the home is one by which systemd hides it: an empty directory, or a
/// `tmpfs`.
fn hides(mounts: &str, home: &Path) -> bool {
    Mount::of(home, mounts).is_some_and(|mount| {
        let is_empty = mount.root.contains("/systemd/inaccessible/") || mount.file_system == "tmpfs";
        mount.point != "/" && is_empty
    })
}

/// Whether `/var/tmp` is a service's own: a directory that systemd has made in the real one, or
/// (`PrivateTmp=disconnected`) the one of this name in a `tmpfs`.
fn hides_temp(mounts: &str) -> bool {
    Mount::of(Path::new(TEMP), mounts).is_some_and(|mount| {
        let is_disconnected = mount.file_system == "tmpfs" && mount.root == "/var-tmp";
        mount.point == TEMP && (mount.root.contains("/systemd-private-") || is_disconnected)
    })
}

fn is_read_only_here(mounts: &str, dir: &Path) -> bool {
    let is_read_only = |options: &str| options.split(',').any(|option| option == "ro");
    Mount::of(dir, mounts)
        .is_some_and(|mount| is_read_only(mount.options) && !is_read_only(mount.shared_options))
}

#[cfg(test)]
mod tests {
    use super::{hides, hides_temp, is_read_only_here};
    use std::path::Path;

    #[test]
    fn a_hidden_home_is_noticed() {
        let root = "29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n";
        let disk = "40 29 254:1 / /home rw,relatime shared:2 - ext4 /dev/vdb rw\n";
        let protected = "611 29 0:25 /systemd/inaccessible/dir /home ro,nosuid - tmpfs tmpfs rw,mode=755\n";
        let empty = "612 29 0:60 / /home ro,nosuid - tmpfs tmpfs ro,mode=755\n";
        let bound = "613 612 254:1 /ann /home/ann rw - ext4 /dev/vdb rw\n";
        let home = Path::new("/home/ann");
        assert!(!hides(root, home) && !hides(&[root, disk].concat(), home));
        assert!(hides(&[root, disk, protected].concat(), home) && hides(&[root, empty].concat(), home));
        assert!(!hides(&[root, empty, bound].concat(), home), "what is mounted into it is the real one");
        assert!(!hides(&[root, protected].concat(), Path::new("/srv/ann")));
    }

    #[test]
    fn a_private_temporary_folder_is_noticed() {
        let disk = "29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n";
        let private =
            "541 29 254:0 /var/tmp/systemd-private-0123-job.service-x/tmp /var/tmp rw - ext4 /dev/vda rw";
        let disconnected = "543 29 0:61 /var-tmp /var/tmp rw,nosuid - tmpfs tmpfs rw,size=10%";
        let other = "542 29 254:0 /tmp/systemd-private-0123-job.service-x/tmp /tmp rw - ext4 /dev/vda rw";
        let of_all = "30 29 0:27 / /var/tmp rw - tmpfs tmpfs rw";
        for (line, hidden) in [(private, true), (disconnected, true), (other, false), (of_all, false)] {
            assert_eq!(hides_temp(&[disk, line].concat()), hidden, "{line}");
        }
    }

    #[test]
    fn a_home_that_is_read_only_for_this_process_alone_is_noticed() {
        let root = "29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n";
        let protected = "611 29 254:0 /home /home ro,relatime shared:7 master:1 - ext4 /dev/vda rw\n";
        let live = "612 29 7:0 / /home ro,relatime - squashfs /dev/loop0 ro\n";
        let folder = "613 611 254:0 /home/ann/locks /home/ann/locks rw,relatime - ext4 /dev/vda rw\n";
        let home = Path::new("/home/ann");
        assert!(is_read_only_here(&[root, protected].concat(), home));
        assert!(!is_read_only_here(root, home) && !is_read_only_here(&[root, live].concat(), home));
        let mounts = [root, protected, folder].concat();
        assert!(!is_read_only_here(&mounts, Path::new("/home/ann/locks")));
    }
}
