//! Which machine this is.

use std::fs;

/// Enough of the machine's id to distinguish machines: the whole is confidential, and paths of
/// sockets are short.
const DIGITS: usize = 12;

/// A short name for this machine: of its id if it has one. Homes on network file systems are not
/// used, so that a fixed word serves where there is none.
pub(crate) fn id() -> String {
    let files = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    let ids = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    ids.filter_map(|id| short(&id)).next().unwrap_or_else(|| "default".into())
}

fn short(id: &str) -> Option<String> {
    let id = id.trim().get(..DIGITS)?;
    id.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| id.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn an_id_is_hexadecimal() {
        assert_eq!(short("3D1219c7c4c5404aaa1f6d2a48adfda4\n").as_deref(), Some("3d1219c7c4c5"));
        for none in ["", "uninitialized\n", "3d12", "../../../../etc"] {
            assert_eq!(short(none), None, "{none}");
        }
    }
}
