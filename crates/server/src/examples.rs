//! Example pages for browsers, served with `--examples`. They are part of the binary.
//!
//! `navigator.min.js` is the drop-in as the npm package builds it; the package's tests compare the
//! two.

/// The type and the bytes of what is at a path.
pub(crate) fn find(path: &str) -> Option<(&'static str, &'static str)> {
    const HTML: &str = "text/html; charset=utf-8";
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    Some(match path.strip_prefix("/examples")? {
        "" | "/" => (HTML, include_str!("../pages/index.html")),
        "/editor.html" => (HTML, include_str!("../pages/editor.html")),
        "/editor.js" => (SCRIPT, include_str!("../pages/editor.js")),
        "/sync.html" => (HTML, include_str!("../pages/sync.html")),
        "/sync.js" => (SCRIPT, include_str!("../pages/sync.js")),
        "/config.js" => (SCRIPT, include_str!("../pages/config.js")),
        "/navigator.min.js" => (SCRIPT, include_str!("../pages/navigator.min.js")),
        "/style.css" => ("text/css; charset=utf-8", include_str!("../pages/style.css")),
        _ => return None,
    })
}

/// Nothing but the daemon's own files, and connections to it.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
