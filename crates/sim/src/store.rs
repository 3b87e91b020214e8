//! The shared log.

/// The shared log.
#[derive(Default)]
pub(crate) struct Store {}
