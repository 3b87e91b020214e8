//! Batches of records, as the log has them: any bytes are applied or refused. Batches that are
//! applied have the same effects once more.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lockkeeper_service::State;

fuzz_target!(|bytes: &[u8]| {
    let mut states = [State::new(1), State::new(2)];
    // A batch each, by a length of two bytes. Its hash is set right: no search would hit on it.
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (records, others) = after.split_at(length);
        rest = others;
        let [first, second] = &mut states;
        let mut effects = [Vec::new(), Vec::new()];
        let wrong = [records, &[0; 8]].concat();
        // It is refused for its hash at least, unless nothing has happened yet; what it does is
        // done by then.
        let applied = first.apply_batch(&wrong, &mut effects[0]);
        let batch = [records, &first.hash().to_le_bytes()].concat();
        let again = second.apply_batch(&batch, &mut effects[1]);
        match again {
            Ok(true) => assert_eq!(effects[0], effects[1]),
            _ => {
                assert!(!matches!(applied, Ok(true)));
                return;
            }
        }
        assert!(first.snapshot() == second.snapshot());
    }
});
