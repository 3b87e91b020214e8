//! Rights on a socket for several users of a machine.
//!
//! The kernel names the user that connected, and the user database that user's groups. Root and the
//! daemon's own user have all rights.

use lockkeeper_paths::users;
use lockkeeper_service::Rights;
use serde::{Deserialize, Serialize};

/// The rights of some users in some buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Allow {
    /// Names of users; names of groups begin with `@`; `*` is for all users.
    pub users: Vec<String>,
    /// Buckets; a trailing `*` matches any suffix.
    pub buckets: Vec<String>,
    /// Whether they may steal locks.
    #[serde(default)]
    pub steal: bool,
    /// Whether they may release locks by force.
    #[serde(default)]
    pub force_release: bool,
    /// Whether they see others' labels, tokens and processes.
    #[serde(default)]
    pub inspect: bool,
}

impl Allow {
    /// Whether the users and groups that it names exist.
    ///
    /// # Errors
    ///
    /// Names the one that does not.
    pub fn check(&self) -> Result<(), String> {
        let unknown = |name: &&String| match name.strip_prefix('@') {
            _ if *name == "*" => false,
            Some(group) => users::group_id(group).is_none(),
            None => users::user_id(name).is_none(),
        };
        match self.users.iter().find(unknown) {
            Some(name) => Err(format!("allow: there is no user or group {name:?} (a group is \"@name\")")),
            None => Ok(()),
        }
    }

    fn is_for(&self, user: u32, groups: &[u32]) -> bool {
        self.users.iter().any(|name| match name.strip_prefix('@') {
            _ if name == "*" => true,
            Some(group) => users::group_id(group).is_some_and(|group| groups.contains(&group)),
            None => users::user_id(name) == Some(user),
        })
    }
}

/// The identity of a connected client, as known to the daemon itself.
pub(crate) struct Subject {
    /// For people.
    pub(crate) words: String,
    /// On this machine: the user.
    pub(crate) user: Option<u32>,
}

/// The rights of a user in a bucket.
pub(crate) fn rights(all: &[Allow], user: Option<u32>, bucket: &str) -> Result<Rights, String> {
    let me = rustix::process::geteuid().as_raw();
    let Some(user) = user.filter(|user| *user != me && *user != 0) else { return Ok(Rights::ALL) };
    let groups = users::groups_of(user);
    let applies = |allow: &&Allow| {
        allow.is_for(user, &groups)
            && allow.buckets.iter().any(|pattern| crate::auth::matches(pattern, bucket))
    };
    let union = all.iter().filter(applies).fold(None, |rights: Option<Rights>, allow| {
        let before = rights.unwrap_or(Rights { steal: false, force_release: false, inspect: false });
        Some(Rights {
            steal: before.steal || allow.steal,
            force_release: before.force_release || allow.force_release,
            inspect: before.inspect || allow.inspect,
        })
    });
    union.ok_or_else(|| {
        let name = users::user_name(user).unwrap_or_else(|| user.to_string());
        format!("the daemon's configuration does not allow user {name} this bucket ([[allow]])")
    })
}

#[cfg(test)]
mod tests {
    use super::{Allow, rights};
    use lockkeeper_service::Rights;

    /// Of a user that no database has.
    const SOMEBODY: Option<u32> = Some(3_999_999_999);

    fn allow(users: &[&str], buckets: &[&str]) -> Allow {
        let all = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        Allow { users: all(users), buckets: all(buckets), ..Allow::default() }
    }

    #[test]
    fn rights_add_up_and_what_is_not_allowed_is_refused() {
        let none = Rights { steal: false, force_release: false, inspect: false };
        let all = [
            allow(&["*"], &["default"]),
            Allow { inspect: true, ..allow(&["3999999999"], &["job*"]) },
            Allow { steal: true, ..allow(&["*"], &["jobs"]) },
            Allow { force_release: true, ..allow(&["root", "@root"], &["*"]) },
        ];
        assert_eq!(rights(&all, SOMEBODY, "default"), Ok(none));
        assert_eq!(rights(&all, SOMEBODY, "jobs"), Ok(Rights { steal: true, inspect: true, ..none }));
        assert_eq!(rights(&all, SOMEBODY, "job"), Ok(Rights { inspect: true, ..none }));
        assert!(rights(&all, SOMEBODY, "other").unwrap_err().contains("3999999999"));
        assert_eq!(rights(&[], Some(0), "other"), Ok(Rights::ALL), "root may");
        assert!(rights(&[], SOMEBODY, "default").is_err());
    }

    #[test]
    fn a_name_that_nobody_has_is_refused() {
        assert_eq!(allow(&["*", "root", "@root", "0"], &[]).check(), Ok(()));
        for wrong in ["no-such-user", "@no-such-group"] {
            assert!(allow(&[wrong], &[]).check().unwrap_err().contains(wrong));
        }
    }
}
