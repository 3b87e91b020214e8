//! The dashboard: a page for operators at `/` of the port. Its files are part of the binary, built from
//! `packages/dashboard`, whose tests compare the two.

/// The type and the bytes of what is at a path.
pub(crate) fn find(path: &str) -> Option<(&'static str, &'static str)> {
    Some(match path {
        "/" => ("text/html; charset=utf-8", include_str!("../dashboard/index.html")),
        "/dashboard.js" => ("text/javascript; charset=utf-8", include_str!("../dashboard/dashboard.js")),
        "/dashboard.css" => ("text/css; charset=utf-8", include_str!("../dashboard/dashboard.css")),
        _ => return None,
    })
}

/// Nothing but the daemon's own files, and connections to it; no frame, no form, no markup that names and labels could bring.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";
