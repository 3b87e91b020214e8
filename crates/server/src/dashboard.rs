//! The dashboard: a page for operators at `/` of the port. Its files are part of the binary, built
//! from `packages/dashboard`, whose tests compare the two. With a shared store, it also shows the
//! fleet.

use crate::fleet::report;
use lockkeeper_etcd::Settings;
use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

/// The path of its WebSocket.
pub(crate) const SOCKET: &str = "/dashboard";

/// The type and the bytes of what is at a path.
pub(crate) fn find(path: &str) -> Option<(&'static str, &'static str)> {
    Some(match path {
        "/" => ("text/html; charset=utf-8", include_str!("../dashboard/index.html")),
        "/dashboard.js" => ("text/javascript; charset=utf-8", include_str!("../dashboard/dashboard.js")),
        "/dashboard.css" => ("text/css; charset=utf-8", include_str!("../dashboard/dashboard.css")),
        _ => return None,
    })
}

/// Nothing but the daemon's own files, and connections to it; no frame, no form, no markup that
/// names and labels could bring.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

/// The store is queried no more often than this, independent of the number of pages.
const FRESH: Duration = Duration::from_secs(2);

/// How the fleet is, as its store shows it.
pub(crate) struct FleetView {
    etcd: Settings,
    last: RefCell<Option<(Instant, String)>>,
}

impl FleetView {
    pub(crate) fn new(etcd: Settings) -> Self {
        Self { etcd, last: RefCell::new(None) }
    }

    /// A report in JSON, or the reason why there is none.
    pub(crate) async fn report(&self) -> Result<String, String> {
        if let Some((_, json)) = self.last.borrow().as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(json.clone());
        }
        let json = report(&self.etcd).await.map_err(|error| error.to_string())?.to_json();
        *self.last.borrow_mut() = Some((Instant::now(), json.clone()));
        Ok(json)
    }
}
