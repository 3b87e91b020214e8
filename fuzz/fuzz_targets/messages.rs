//! Messages: any bytes are refused or decoded; what is decoded encodes to bytes that decode to the
//! same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lockkeeper_wire::v2::{ToClient, ToServer};

/// A macro and not a function: the two have the same methods, but no trait.
macro_rules! round_trip {
    ($message:ident, $bytes:expr) => {
        if let Ok(message) = $message::decode($bytes) {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            assert_eq!($message::decode(&encoded), Ok(message));
        }
    };
}

fuzz_target!(|bytes: &[u8]| {
    round_trip!(ToServer, bytes);
    round_trip!(ToClient, bytes);
});
