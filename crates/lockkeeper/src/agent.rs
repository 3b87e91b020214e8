//! An agent of a lock manager: on whose behalf requests are made.

use crate::shared::Shared;
use lockkeeper_core::ClientId;
use std::sync::Arc;

pub(crate) struct Agent {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: ClientId,
    /// Whether the client ends with this value. The one that came with the manager ends with the manager.
    pub(crate) ends: bool,
}

impl Agent {
    /// The same agent, for a guard, which does not keep the client from ending.
    pub(crate) fn without_end(&self) -> Self {
        Self { shared: self.shared.clone(), client: self.client, ends: false }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.ends {
            self.shared.with(|state| state.manager.client_gone(self.client, &mut state.effects));
        }
    }
}
