//! `lockkeeper token`: makes keys, and tokens that carry a client's rights.

use crate::{Done, args::Token, exit};
use lockkeeper_server::{Permit, new_keys, sign};
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    process::ExitCode,
};

pub(crate) fn token(args: Token) -> Done {
    let Token { new_key, keys, bucket, expires, steal, force_release, inspect, subject, audience } = args;
    if let Some(path) = new_key {
        let failed = |error| (exit::SOFTWARE, format!("{}: {error}", path.display()));
        // Readable by its owner only, and never overwrites a key in use.
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(new_keys().as_bytes())).map_err(failed)?;
    }
    if let Some(path) = keys {
        let text = fs::read_to_string(&path);
        let text = text.map_err(|error| (exit::USAGE, format!("{}: {error}", path.display())))?;
        let permit = Permit { buckets: bucket, steal, force_release, inspect, subject, audience };
        let token = sign(&text, permit, expires);
        let token = token.map_err(|why| (exit::USAGE, format!("{}: {why}", path.display())))?;
        println!("{token}");
    }
    Ok(ExitCode::SUCCESS)
}
