//! The user database.

use nix::unistd::{Gid, Group, Uid, User};
use std::ffi::CString;

/// The id of a user of that name; a number is one.
pub fn user_id(name: &str) -> Option<u32> {
    let known = User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    known.or_else(|| name.parse().ok())
}

/// The id of a group of that name; a number is one.
pub fn group_id(name: &str) -> Option<u32> {
    let known = Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
    known.or_else(|| name.parse().ok())
}

/// The name of a user.
pub fn user_name(user: u32) -> Option<String> {
    User::from_uid(Uid::from_raw(user)).ok().flatten().map(|user| user.name)
}

/// The groups in which a user is.
pub fn groups_of(user: u32) -> Vec<u32> {
    let Some(user) = User::from_uid(Uid::from_raw(user)).ok().flatten() else { return Vec::new() };
    let Ok(name) = CString::new(user.name) else { return Vec::new() };
    list(&name, user.gid).into_iter().map(Gid::as_raw).collect()
}

#[cfg(not(any(target_os = "macos", target_os = "ios")))]
fn list(name: &std::ffi::CStr, first: Gid) -> Vec<Gid> {
    nix::unistd::getgrouplist(name, first).unwrap_or_else(|_| vec![first])
}

/// The system's own interface has other types there; a machine's daemon is for systemd's systems.
#[cfg(any(target_os = "macos", target_os = "ios"))]
fn list(_: &std::ffi::CStr, first: Gid) -> Vec<Gid> {
    vec![first]
}

#[cfg(test)]
mod tests {
    use super::{group_id, groups_of, user_id, user_name};

    #[test]
    fn root_is_known() {
        assert_eq!((user_id("root"), user_name(0).as_deref()), (Some(0), Some("root")));
        assert_eq!(
            (user_id("4711"), user_id("no-such-user"), group_id("no-such-group")),
            (Some(4711), None, None)
        );
        assert!(groups_of(0).contains(&0) && groups_of(3_999_999_999).is_empty());
    }
}
