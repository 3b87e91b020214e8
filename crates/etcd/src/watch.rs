//! Changes of keys, as they are committed.

use crate::{
    Error, Etcd, KeyValue, end_of_prefix,
    messages::{WatchCreateRequest, WatchRequest, WatchResponse},
};
use std::collections::VecDeque;
use tokio_stream::StreamExt;
use tonic::{Request, Streaming, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

/// A stream of changes. It is never reopened by itself: its reader has to catch up.
pub struct Watch {
    etcd: Etcd,
    at: usize,
    stream: Streaming<WatchResponse>,
    waiting: VecDeque<Change>,
}

/// A key was written or deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The key; without a value if it was deleted.
    pub kv: KeyValue,
    /// Whether it was deleted.
    pub deleted: bool,
}

impl Etcd {
    /// Watches the keys with a prefix, from the changes of that revision on.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn watch(&self, prefix: &[u8], start_revision: i64) -> Result<Watch, Error> {
        let at = self.shared.current.load(std::sync::atomic::Ordering::Relaxed);
        let opened = self.within_deadline(at, self.open(at, prefix, start_revision)).await;
        if opened.is_err() {
            self.leave(at);
        }
        Ok(Watch { etcd: self.clone(), at, stream: opened?, waiting: VecDeque::new() })
    }

    async fn open(
        &self,
        at: usize,
        prefix: &[u8],
        start_revision: i64,
    ) -> Result<Streaming<WatchResponse>, Error> {
        let create =
            WatchCreateRequest { key: prefix.into(), range_end: end_of_prefix(prefix), start_revision };
        // The stream of requests stays open: etcd takes its end for the client's.
        let requests = tokio_stream::once(WatchRequest { create: Some(create) });
        let mut request = Request::new(requests.chain(tokio_stream::pending()));
        if let Some(token) = self.token(at).await? {
            request.metadata_mut().insert("token", token);
        }
        let mut grpc = self.connected(at).await?;
        let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let answer = grpc.streaming(request, path, codec).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| Error::of(&self.shared.members[at].name, &status))
    }
}

impl Watch {
    /// The next change. It waits for it without end: a member that stopped says nothing. Nothing is
    /// lost if it is not awaited to its end.
    ///
    /// # Errors
    ///
    /// [`Error`]: the stream has ended.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            if let Some(change) = self.waiting.pop_front() {
                return Ok(change);
            }
            let member = &self.etcd.shared.members[self.at].name;
            let answer = match self.stream.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => {
                    let why = "the watch has ended".into();
                    return Err(Error::NoAnswer { member: member.clone(), why });
                }
                Err(status) => return Err(Error::of(member, &status)),
            };
            if answer.canceled {
                return Err(match answer.compact_revision {
                    0 => Error::Refused { member: member.clone(), why: answer.cancel_reason },
                    _ => Error::Compacted,
                });
            }
            let changes = answer.events.into_iter();
            let changes =
                changes.filter_map(|event| Some(Change { kv: event.kv?, deleted: event.kind == 1 }));
            self.waiting.extend(changes);
        }
    }
}

impl Drop for Watch {
    /// The next watch is opened at another member: this one may be slow, or cut off.
    fn drop(&mut self) {
        self.etcd.leave(self.at);
    }
}
