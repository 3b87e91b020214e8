//! A description of this client for people who inspect locks.

use std::{env, path::Path};

/// User, host, program and process id: `ann@build7 backup[4711]`.
pub(crate) fn describe(process: u32) -> String {
    // Not from the environment: cron and services set none, and `sudo` may leave another's.
    let user = rustix::process::geteuid().as_raw();
    let user = lockkeeper_paths::users::user_name(user).unwrap_or_else(|| user.to_string());
    let host = rustix::system::uname();
    let program = env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
    format!("{user}@{} {program}[{process}]", host.nodename().to_string_lossy())
}
