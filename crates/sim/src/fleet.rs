//! Daemons that share a log.

use crate::world::World;

pub(crate) struct Follower {}
pub(crate) struct Lead {}

impl World {
    pub(crate) fn follow(&mut self, _index: usize) {}
    pub(crate) fn propose(&mut self, _index: usize) {}
    pub(crate) fn hand_over(&mut self, _index: usize) {}
    pub(crate) fn log_request(&mut self, _operation: u64) {}
    pub(crate) fn log_reply(&mut self, _operation: u64) {}
    pub(crate) fn log_timeout(&mut self, _daemon: usize, _life: u64, _operation: u64) {}
    pub(crate) fn poll(&mut self, _daemon: usize, _life: u64) {}
}
