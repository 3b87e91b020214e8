//! The number of connections of other users at the socket of a daemon that serves several.
//!
//! A connection takes a descriptor before its user's rights are known. Other users can take only a
//! part of them. The rest is for this daemon's own user, root, and the FIFOs of sessions.

use rustix::process::{Resource, getrlimit};
use std::{cell::RefCell, collections::HashMap, rc::Rc};

/// Connections of users other than the daemon's own and root.
#[derive(Clone, Default)]
pub(crate) struct Guests(Rc<RefCell<HashMap<u32, usize>>>);

/// One of them. Leaves the count on drop.
pub(crate) struct Guest {
    guests: Guests,
    user: u32,
}

impl Guests {
    /// Admits one more connection of a user: an eighth of all descriptors for one, and a quarter
    /// for all.
    ///
    /// # Errors
    ///
    /// The limit that is reached, as a message.
    pub(crate) fn admit(&self, user: u32) -> Result<Guest, String> {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        self.admit_within(user, usize::try_from(descriptors).unwrap_or(usize::MAX))
    }

    fn admit_within(&self, user: u32, descriptors: usize) -> Result<Guest, String> {
        let mut counts = self.0.borrow_mut();
        let (each, all) = (descriptors / 8, descriptors / 4);
        if counts.values().sum::<usize>() >= all {
            return Err(format!("limit reached: {all} connections of other users (ulimit -n)"));
        }
        let count = counts.entry(user).or_default();
        if *count >= each {
            return Err(format!("limit reached: {each} connections of one user (ulimit -n)"));
        }
        *count += 1;
        Ok(Guest { guests: self.clone(), user })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut counts = self.guests.0.borrow_mut();
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Guests;

    #[test]
    fn no_user_takes_all_descriptors_nor_do_all_of_them() {
        let guests = Guests::default();
        let admit = |user| guests.admit_within(user, 16);
        let first = [(); 2].map(|()| admit(1).expect("there is room"));
        assert!(admit(1).is_err_and(|why| why.contains("2 connections of one user")));
        let _second = [(); 2].map(|()| admit(2).expect("there is room"));
        assert!(admit(3).is_err_and(|why| why.contains("4 connections of other users")));
        drop(first);
        let _third = admit(3).expect("there is room again");
        assert!(!guests.0.borrow().contains_key(&1), "who has left is forgotten");
    }
}
