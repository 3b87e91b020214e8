//! Snapshots in etcd: chunks under separate keys, which become valid when a guarded write points at
//! them.

use super::keys::{Keys, Pointer};
use lockkeeper_etcd::Etcd;
use lockkeeper_service::State;
use std::{cell::RefCell, collections::VecDeque, rc::Rc, time::Duration};
use tokio::{sync::Notify, task::AbortHandle};

/// Bytes of a chunk, at most: what one slice has is split. A request to etcd has at most 1.5 MiB.
const CHUNK: usize = 512 << 10;

/// Chunks that wait to be written before more are made, which would only take memory.
const WAITING: usize = 2;

/// When a chunk that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// A snapshot that is being written.
pub(super) struct Snapshot {
    pub(super) pointer: Pointer,
    /// All chunks are made.
    whole: bool,
    queue: Rc<Queue>,
    task: AbortHandle,
}

#[derive(Default)]
struct Queue {
    chunks: RefCell<VecDeque<(Vec<u8>, Vec<u8>)>>,
    filled: Notify,
}

impl Snapshot {
    /// Begins a snapshot of the state as it is, whose position may not be committed yet.
    pub(super) fn begin(state: &mut State, id: String, etcd: &Etcd, written: Rc<Notify>) -> Self {
        state.begin_snapshot();
        let pointer = Pointer { id, position: state.position(), chunks: 0, bytes: 0 };
        let queue = Rc::new(Queue::default());
        let (chunks, etcd) = (Rc::clone(&queue), etcd.clone());
        let task = tokio::task::spawn_local(async move {
            loop {
                let next = chunks.chunks.borrow().front().cloned();
                let Some((key, chunk)) = next else {
                    chunks.filled.notified().await;
                    continue;
                };
                match etcd.put(key, chunk).await {
                    Ok(()) => {
                        chunks.chunks.borrow_mut().pop_front();
                        written.notify_one();
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the snapshot cannot be written");
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
        });
        Self { pointer, whole: false, queue, task: task.abort_handle() }
    }

    /// Makes the next chunk, if there is room. True when all are written.
    pub(super) fn go_on(&mut self, state: &mut State, keys: &Keys) -> bool {
        while !self.whole && self.queue.chunks.borrow().len() < WAITING {
            let mut slice = Vec::new();
            self.whole = state.snapshot_slice(CHUNK, &mut slice);
            self.pointer.bytes += slice.len() as u64;
            // A slice can be long: it contains whole items, and all that have changed since the
            // last slice.
            for chunk in slice.chunks(CHUNK) {
                let key = keys.chunk(&self.pointer.id, self.pointer.chunks);
                self.pointer.chunks += 1;
                self.queue.chunks.borrow_mut().push_back((key, chunk.to_vec()));
            }
            self.queue.filled.notify_one();
        }
        self.whole && self.queue.chunks.borrow().is_empty()
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How often it is tried to free what a snapshot has made superfluous, before that is left to the
/// next one.
const ATTEMPTS: u32 = 30;

/// Frees what a snapshot has made superfluous: earlier snapshots, and, if the store is the fleet's
/// own, etcd's history, which still has their chunks and the entries that were deleted. etcd uses
/// that space again.
pub(super) async fn free(etcd: &Etcd, keys: &Keys, id: &str, own: bool) {
    for _ in 0..ATTEMPTS {
        match try_to_free(etcd, keys, id, own).await {
            // More of it has been compacted already.
            Ok(()) | Err(lockkeeper_etcd::Error::Compacted) => return,
            Err(error) => tracing::debug!(%error, "earlier snapshots stay"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Deletes the chunks of snapshots before this one, also of other leaders. Those of later positions
/// are left alone: this may be executed late, when the newest snapshot is a later one, of another
/// leader perhaps.
async fn try_to_free(etcd: &Etcd, keys: &Keys, id: &str, own: bool) -> Result<(), lockkeeper_etcd::Error> {
    let (first, _) = keys.all_chunks();
    let (kept, _) = keys.chunks(id);
    let revision = etcd.delete(first, kept).await?;
    // A follower whose watch is behind that reads the log again.
    if own { etcd.compact(revision).await } else { Ok(()) }
}
