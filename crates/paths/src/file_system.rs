//! Network file systems, on which locks, FIFOs and sockets are unreliable.

use std::{io, path::Path};

/// The kind of network file system that a path is on; none if it is local. For a missing path, its
/// nearest ancestor is examined.
///
/// # Errors
///
/// If the system does not report it.
pub fn network_file_system(path: &Path) -> io::Result<Option<&'static str>> {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    Ok(kind(&rustix::fs::statfs(there)?))
}

#[cfg(target_os = "linux")]
fn kind(stat: &rustix::fs::StatFs) -> Option<&'static str> {
    // The kernel's magic numbers have 32 bits; the field's type differs between architectures.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    name_of(stat.f_type as u32)
}

/// The network file systems by their magic numbers. FUSE is not among them: what is behind it is
/// unknown, and most of it is local: the root of many containers is.
#[cfg(any(target_os = "linux", test))]
fn name_of(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x0102_1997 => "9p",
        0x00c3_6400 => "Ceph",
        0x7375_7245 => "Coda",
        0x0bd0_0bd0 => "Lustre",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        _ => return None,
    })
}

#[cfg(target_os = "macos")]
fn kind(stat: &rustix::fs::StatFs) -> Option<&'static str> {
    /// Set for file systems of this machine.
    const MNT_LOCAL: u32 = 0x1000;
    (stat.f_flags & MNT_LOCAL == 0).then_some("not local")
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn kind(_: &rustix::fs::StatFs) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn network_file_systems_are_known_by_their_magic() {
        let named = [(0x6969, "NFS"), (0xff53_4d42, "SMB"), (0x0102_1997, "9p"), (0x5346_414f, "AFS")];
        for (magic, name) in named {
            assert_eq!(name_of(magic), Some(name));
        }
        for (magic, local) in [(0xef53, "ext4"), (0x0102_1994, "tmpfs"), (0x6573_5546, "FUSE")] {
            assert_eq!(name_of(magic), None, "{local}");
        }
    }
}
