//! The Web Platform Tests, from a checkout outside this repository.

use crate::{Result, npm, root, setup};
use std::{path, process::Command};

/// Runs `web-locks` of a checkout, and writes `docs/conformance.md`. With parts of paths, only
/// those tests, and writes nothing.
pub(crate) fn run(path: &str, filters: &[&str]) -> Result {
    // It is relative to where this was called, and what is called is not.
    let checkout = path::absolute(path).map_err(|error| error.to_string())?;
    setup::browser(&[])?;
    setup::command("firefox-esr", "firefox-esr")?;
    setup::node_modules()?;
    npm(&["run", "build"])?;
    let node = root().join("node_modules/node24/bin/node");
    crate::run(Command::new(node).arg("packages/lockkeeper/test/wpt/run.js").arg(checkout).args(filters))
}
