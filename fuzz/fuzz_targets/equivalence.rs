//! The engine against the models, with libFuzzer choosing the operations.
//!
//! The first byte of an input chooses the oracle: the Working Draft, with one name per request, or
//! the rule of scopes. The others spell the operations, as they do in the model's own tests; after
//! each, effects, snapshots, tokens and deadlock reports are compared, and the engine is audited.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lockkeeper_model::driver::{Seen, run};

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, operations)) = bytes.split_first() else { return };
    run(operations.iter().copied(), choice % 2 == 0, &mut Seen::default());
});
