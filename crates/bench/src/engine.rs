//! A core with what it takes to call it.

use lockkeeper_core::{ClientId, Effect, Manager, Mode, Options, Outcome, RequestId};

pub struct Engine {
    pub manager: Manager,
    pub effects: Vec<Effect>,
    client: ClientId,
}

impl Engine {
    pub fn new() -> Self {
        let mut manager = Manager::default();
        let client = manager.client().expect("a first client");
        Self { manager, client, effects: Vec::new() }
    }

    #[inline]
    pub fn request(&mut self, name: &str) -> RequestId {
        let scope = [(name, Mode::Exclusive)];
        match self.manager.request(self.client, &scope, Options::default(), (), &mut self.effects) {
            Ok(Outcome::Granted { request, .. } | Outcome::Queued { request }) => request,
            _ => panic!("a plain request is granted or queued"),
        }
    }

    #[inline]
    pub fn release(&mut self, request: RequestId) {
        self.manager.release(request, &mut self.effects);
        self.effects.clear();
    }

    pub fn abort(&mut self, request: RequestId) {
        self.manager.abort(request, &mut self.effects);
        self.effects.clear();
    }
}
