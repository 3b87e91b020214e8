//! Snapshots: any bytes are refused or restored; what is restored has a snapshot that restores to
//! the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lockkeeper_service::State;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(mut state) = State::restore([bytes], 1) {
        let snapshot = state.snapshot();
        let mut again = State::restore([&snapshot], 2).expect("a snapshot can be restored");
        assert!(again.snapshot() == snapshot);
    }
});
