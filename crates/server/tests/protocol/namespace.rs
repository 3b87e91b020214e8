//! Tests that mount something start themselves again in a namespace of their own, with `unshare` of
//! util-linux. Set `LOCKKEEPER_SKIP_MOUNT=1` where that is not permitted.

use crate::temp::Temp;
use std::{env, path::Path, process::Command};

const INSIDE: &str = "LOCKKEEPER_TEST_NAMESPACE";

/// Runs the body of the test of this name where it may mount, with a directory of its own.
pub(crate) fn enter(name: &str, test: impl FnOnce(&Path)) {
    if let Some(dir) = env::var_os(INSIDE) {
        return test(Path::new(&dir));
    }
    if is_skipped(name) {
        return;
    }
    let dir = Temp::new();
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "--"]).arg(env::current_exe().expect("this program"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(INSIDE, &*dir);
    let output = command.output().expect("`unshare` of util-linux is needed");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\nThis test mounts something in a namespace of its own. Where that is not permitted, set \
         LOCKKEEPER_SKIP_MOUNT=1."
    );
}

/// Whether tests that need a namespace are to be left out.
pub(crate) fn is_skipped(name: &str) -> bool {
    let skipped = env::var_os("LOCKKEEPER_SKIP_MOUNT").is_some_and(|value| value == "1");
    if skipped {
        eprintln!("SKIPPED {name}: LOCKKEEPER_SKIP_MOUNT is set");
    }
    skipped
}

pub(crate) fn mount(args: &[&str], at: &Path) {
    let status = Command::new("mount").args(args).arg(at).status().expect("`mount` is needed");
    assert!(status.success(), "mount {args:?} {}: {status}", at.display());
}
