//! A user's folder: whether it can be used, and by whom.

use crate::{DIR, SOCKET_LIMIT, TEMP, network_file_system, socket};
use rustix::{
    fs::{Access, AtFlags, CWD, accessat},
    process::geteuid,
};
use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
};

/// Whether a user's folder can be used: nobody else can put a socket there, and the other processes
/// of the user find the same one. A folder that is not there yet can be.
///
/// # Errors
///
/// If it cannot: names the folder, and says what to do.
pub fn check(dir: &Path) -> io::Result<()> {
    let refused = |why: String| {
        let hint = format!("set {DIR} to a directory of your own, the same for all that are to meet");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{why}: {hint}")))
    };
    let shown = dir.display();
    if !dir.is_absolute() {
        return refused(format!("{shown} is no absolute path"));
    }
    if socket(dir).as_os_str().len() > SOCKET_LIMIT {
        return refused(format!("{shown} is too long for a socket"));
    }
    let temporary = dir.starts_with(TEMP);
    if temporary && hidden_temp() {
        let why = "the home of this user cannot be used, and /var/tmp is this service's own (PrivateTmp)";
        return refused(format!("{why}, so that no other process of the user would be met"));
    }
    match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return refused(format!("{shown}: {error}")),
        Ok(file) if !file.is_dir() => return refused(format!("{shown} is no directory")),
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
    made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", dir.display())))?;
    // Somebody else may have been quicker.
    check(dir)
}

/// Whether a daemon of this user runs there, or has left sessions behind: then its lock file says
/// where its log is.
pub(crate) fn in_use(dir: &Path) -> bool {
    let ours = fs::symlink_metadata(dir).is_ok_and(|file| file.is_dir() && file.uid() == geteuid().as_raw());
    ours && fs::metadata(socket(dir).with_extension("lock")).is_ok_and(|lock| lock.len() > 0)
}

/// Whether the folder can be written to, or made.
pub(crate) fn writable(dir: &Path) -> bool {
    let nearest = dir.ancestors().find(|dir| fs::symlink_metadata(dir).is_ok());
    let access = Access::WRITE_OK | Access::EXEC_OK;
    nearest.is_some_and(|dir| dir.is_dir() && accessat(CWD, dir, access, AtFlags::EACCESS).is_ok())
}

/// Whether this process sees another `/var/tmp` than others.
fn hidden_temp() -> bool {
    fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| mounts.lines().any(hides_temp))
}

/// Whether a line of `mountinfo` is the private `/var/tmp` of a service.
fn hides_temp(line: &str) -> bool {
    let mut fields = line.split(' ').skip(3);
    let (root, point) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    point == TEMP && root.contains("/systemd-private-")
}

#[cfg(test)]
mod tests {
    use super::hides_temp;

    #[test]
    fn a_private_temporary_folder_is_noticed() {
        let private =
            "541 539 254:0 /var/tmp/systemd-private-0123-job.service-x/tmp /var/tmp rw - ext4 /dev/vda rw";
        assert!(hides_temp(private));
        assert!(!hides_temp(
            "542 539 254:0 /tmp/systemd-private-0123-job.service-x/tmp /tmp rw - ext4 /dev/vda rw"
        ));
        assert!(!hides_temp("30 1 0:27 / /var/tmp rw - tmpfs tmpfs rw"));
    }
}
