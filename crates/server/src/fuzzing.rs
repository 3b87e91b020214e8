//! Internals for the fuzz targets in `fuzz/`. Compiled for them alone, and not part of the API.

use crate::{auth::Keys, http};

/// The response to an HTTP request for a WebSocket, whether the client has one then, and the length
/// of the request's head.
pub fn respond(input: &[u8], origins: &[String]) -> (Vec<u8>, bool, usize) {
    let (response, length) = http::respond(input, crate::HandshakeLimits::default().bytes, |request| {
        http::upgrade(request, origins, false, false, false, |_| ())
    });
    (response.bytes, response.upgraded.is_some(), length)
}

/// The rights of a token's bearer in a bucket, besides requesting locks: steal, release by force,
/// inspect.
///
/// # Errors
///
/// The reason if the key set is unusable or the token is refused.
pub fn rights(keys: &str, token: &str, bucket: &str) -> Result<[bool; 3], String> {
    let rights = Keys::parse(keys)?.check(Some(token), bucket)?.rights;
    Ok([rights.steal, rights.force_release, rights.inspect])
}
